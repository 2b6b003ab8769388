/* SPDX-License-Identifier: Apache-2.0
 *
 * What a BEGIN asks for, as a request of the flow: which operation it is, by scope, key and owner,
 * who asks, and what makes the request this request. The HTTP door makes the same of a request.
 */
#include "connection.h"

#include "base/fail.h"
#include "base/span.h"

#include <string.h>

static struct hapax_span keep(uint8_t *to, struct hapax_span from, size_t max)
{
    size_t len = from.len < max ? from.len : max;

    if (len > 0)
        memcpy(to, from.ptr, len);
    return (struct hapax_span){to, len};
}

void hapax__door_request_keep(struct hapax__door_op *op, const struct hapax_request *request)
{
    op->request = *request;
    op->request.scope = keep(op->names.scope, request->scope, sizeof(op->names.scope));
    op->request.key = keep(op->names.key, request->key, sizeof(op->names.key));
    op->request.owner = keep(op->names.owner, request->owner, sizeof(op->names.owner));
    op->request.step = keep(op->names.step, request->step, sizeof(op->names.step));
    op->request.what = keep(op->names.what, request->what, sizeof(op->names.what));
}

/* The credentials of a request, each with its name in lower case, in the order of the HTTP door. */
static const char *const credentials[] = {"authorization", "cookie",       "x-api-key",
                                          "api-key",       "x-auth-token", "x-access-token"};

/* The caller of a request or a message that names none. Of a request, as at the gate: all
 * credentials, and nobody where the owner is named, or there are none. Of a message, as at hapax
 * consume: nobody. */
static void default_caller(struct hapax_digest *out, const struct hapax__meta_begin *begin)
{
    const struct hapax__lines *headers =
        begin->as == HAPAX__AS_HTTP && !begin->owner.is ? begin->headers : NULL;
    struct hapax_span parts[2 * HAPAX__LINES_MAX];
    size_t n = 0;

    parts[0] = (struct hapax_span){NULL, 0};
    for (size_t i = 0; i < sizeof(credentials) / sizeof(credentials[0]); i++)
        for (size_t j = 0; headers && j < headers->n; j++)
            if (hapax__line_is(&headers->at[j], hapax_str(credentials[i]))) {
                parts[n++] = hapax_str(credentials[i]);
                parts[n++] = headers->at[j].value;
            }
    hapax_digest(out, parts, n > 0 ? n : 1);
}

static bool fingerprint(struct hapax_digest *out, const struct hapax__meta_begin *begin,
                        struct hapax_span body, char text[HAPAX_TEXT_MAX])
{
    struct hapax_span parts[3 + HAPAX__META_PARTS_MAX];
    const struct hapax__given *line[] = {&begin->method, &begin->host, &begin->uri};
    struct hapax__ask ask = {0};
    struct hapax__ask_view view = {.ask = &ask, .body = body};
    size_t n = 0;

    _Static_assert(3 + HAPAX__META_PARTS_MAX <= HAPAX__ASK_PARTS_MAX, "all parts fit");
    if (!begin->body)
        ask.counts = body.len > 0 ? HAPAX__ASK_BYTES : HAPAX__ASK_OFF;
    else if (hapax__ask_read_fingerprint(&ask, begin->body, false, text) != HAPAX_ERR_NONE)
        return false;
    for (size_t i = 0; i < 3; i++)
        if (begin->as == HAPAX__AS_HTTP && line[i]->is)
            parts[n++] = line[i]->bytes;
    for (size_t i = 0; i < begin->fingerprint.n; i++)
        parts[n++] = begin->fingerprint.at[i];
    if (hapax__ask_fingerprint(out, &view, parts, n))
        return true;
    hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    return false;
}

/* Finds the key. *bad: it is there and is none. */
static struct hapax_span find_key(uint8_t memory[HAPAX_KEY_MAX], const char **bad,
                                  const struct hapax__meta_begin *begin)
{
    struct hapax_span values[2], none = {NULL, 0};
    size_t n = 0, len = 0;

    *bad = NULL;
    if (begin->key.is)
        return begin->key.bytes;
    for (size_t i = 0; i < begin->key_headers.n && n < 2; i++)
        values[n++] = begin->key_headers.at[i];
    for (size_t i = 0; !begin->key_headers.are && begin->headers && i < begin->headers->n; i++)
        if (n < 2 && hapax__line_is(&begin->headers->at[i], hapax_str("idempotency-key")))
            values[n++] = begin->headers->at[i].value;
    if (n == 0)
        return none;
    if (n > 1)
        *bad = "there is more than one header of its name";
    else if (hapax_key_parse(memory, &len, values[0], bad) == HAPAX_ERR_NONE)
        *bad = NULL;
    return *bad ? none : (struct hapax_span){memory, len};
}

bool hapax__door_request_is_unowned(const struct hapax__meta_begin *begin)
{
    size_t len = 0;

    for (size_t i = 0; i < begin->caller.n; i++)
        len += begin->caller.at[i].len;
    return (begin->owner.is && begin->owner.bytes.len == 0) || (begin->caller.are && len == 0);
}

enum hapax_error hapax__door_request_take(struct hapax__door_op *op,
                                          const struct hapax__meta_begin *begin,
                                          struct hapax_span body, char text[HAPAX_TEXT_MAX])
{
    struct hapax_request request = {.scope = begin->scope, .owner = begin->owner.bytes};
    uint8_t key[HAPAX_KEY_MAX], what[HAPAX_WHAT_MAX];
    /* A query may have a token. */
    struct hapax_span line[2] = {begin->method.bytes, hapax__path_of(begin->uri.bytes)};
    struct hapax_span scope = begin->scope.len > 0 ? begin->scope : hapax_str("default");
    enum hapax_error error = HAPAX_ERR_NONE;

    op->policy = *hapax__scopes_find(op->c->door->options.scopes, scope);
    if (begin->policy.len > 0)
        error = hapax__meta_policy_set(&op->policy, begin->policy, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    request.key = find_key(key, &op->why, begin);
    request.trace = begin->trace;
    for (size_t i = 0; begin->headers && i < begin->headers->n && request.trace.len == 0; i++)
        if (hapax__line_is(&begin->headers->at[i], hapax_str("traceparent")))
            request.trace = begin->headers->at[i].value;
    request.what = begin->what;
    if (begin->as == HAPAX__AS_HTTP && request.what.len == 0)
        request.what = (struct hapax_span){what, hapax_what(what, line, 2)};
    if (begin->caller.are)
        hapax_digest(&request.caller, begin->caller.at, begin->caller.n);
    else if (begin->as != HAPAX__AS_CALL)
        default_caller(&request.caller, begin);
    text[0] = '\0';
    if (!fingerprint(&request.fingerprint, begin, body, text))
        return strcmp(text, "out of memory") == 0 ? HAPAX_ERR_NOMEM : HAPAX_ERR_INVALID;
    error = hapax__call_check(&op->policy, &request, false, begin->reconciles, text);
    if (error == HAPAX_ERR_NONE)
        hapax__door_request_keep(op, &request);
    return error;
}
