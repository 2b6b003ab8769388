/* SPDX-License-Identifier: Apache-2.0
 *
 * What an event asks (door/ask.h), or a record of a batch: its key, whose key it is, its
 * fingerprint and its caller.
 * Here a pointer goes on into a string that holds JSON, or base64 of JSON, since bodies stand in
 * events as strings.
 *
 * Rejected: Lambda's request id as the last source of the default list. A retry by Lambda has the
 * same id, and a retry by anybody else has another. Whoever wants that sets it.
 * Rejected: the caller is whom an authorizer names, and no token counts then. Many authorizers give
 * all callers one name (`user`), and one subject may act for two tenants with two tokens.
 */
#include "event.h"
#include "json/raw.h"

#include "base/arena.h"
#include "base/base64.h"
#include "base/bytes.h"
#include "base/fail.h"
#include "core/key.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEADER_NAME_MAX 128u

enum { OF_EVENT_ID = HAPAX__ASK_OWN, OF_REQUEST_ID };

static const struct hapax__ask_word words[] = {
    {"event-id", OF_EVENT_ID, false},
    {"request-id", OF_REQUEST_ID, false},
    {NULL, 0, false},
};

enum hapax_error hapax__event_ask_read(struct hapax__ask *ask, const struct hapax_lambda *lambda,
                                       char text[HAPAX_TEXT_MAX])
{
    const struct hapax__ask_settings settings = {
        .key = lambda->key ? lambda->key : "Idempotency-Key,event-id",
        .fingerprint = lambda->fingerprint ? lambda->fingerprint : "method uri body",
        .has_line = true,
        .scope = lambda->scope ? lambda->scope : "default",
        .step = lambda->step,
        .owner = lambda->owner,
        .caller = lambda->caller,
        .words = words,
    };
    enum hapax_error error = hapax__ask_read(ask, &settings, text);

    for (size_t i = 0; i < ask->source_count && error == HAPAX_ERR_NONE; i++) {
        struct hapax_span name = ask->sources[i].name;

        if (ask->sources[i].kind == HAPAX__ASK_HEADER &&
            (name.len > HEADER_NAME_MAX || memchr(name.ptr, ' ', name.len)))
            error = hapax__fail(text, HAPAX_ERR_INVALID,
                                "key \"%.*s\": no name of a header, and no JSON Pointer",
                                name.len < 64 ? (int)name.len : 64, (const char *)name.ptr);
    }
    return error;
}

/* ---- the event's parts ------------------------------------------------------------------- */

/* An event, or a record of a batch, that is asked. */
struct asking {
    struct hapax__ask_view view; /* first: callbacks are given this */
    enum hapax_lambda_kind kind;
    struct hapax_span root; /* the value that pointers begin at; empty: no JSON */
    struct hapax_span request_id;
    struct hapax_arena arena;
    uint8_t event_key[HAPAX_KEY_MAX];
};

/* Gives the bytes of a string; they are in the arena if the string has escapes. */
static enum hapax__found unescape(struct asking *asking, struct hapax_span *out,
                                  struct hapax_span string)
{
    return hapax__raw_text(out, &asking->arena, string) ? HAPAX__FOUND : HAPAX__FOUND_NOMEM;
}

static enum hapax__found decode(struct asking *asking, struct hapax_span *out, struct hapax_span in)
{
    uint8_t *bytes = hapax__arena_alloc(&asking->arena, in.len + 1);
    size_t len;

    if (!bytes)
        return HAPAX__FOUND_NOMEM;
    if (!hapax__base64_decode(bytes, &len, in))
        return HAPAX__FOUND_NOTHING;
    *out = (struct hapax_span){bytes, len};
    return HAPAX__FOUND;
}

/* Gives the bytes of the string at `path`. NOTHING: there is no string. */
static enum hapax__found string_at(struct asking *asking, struct hapax_span *out, const char *path)
{
    struct hapax_span value;

    *out = (struct hapax_span){NULL, 0};
    if (!hapax__raw_member(&value, asking->root, path) || !hapax__raw_is_string(value))
        return HAPAX__FOUND_NOTHING;
    return unescape(asking, out, value);
}

static bool is_true(struct hapax_span root, const char *path)
{
    struct hapax_span value;

    return hapax__raw_member(&value, root, path) && value.ptr[0] == 't';
}

static enum hapax__found find_body(struct asking *asking)
{
    enum hapax__found found = HAPAX__FOUND_NOTHING;

    switch (asking->kind) {
    case HAPAX_LAMBDA_REST:
    case HAPAX_LAMBDA_HTTP:
    case HAPAX_LAMBDA_ALB:
        found = string_at(asking, &asking->view.body, "body");
        if (found == HAPAX__FOUND && is_true(asking->root, "isBase64Encoded"))
            found = decode(asking, &asking->view.body, asking->view.body);
        return found;
    case HAPAX_LAMBDA_SQS:
        return string_at(asking, &asking->view.body, "body");
    case HAPAX_LAMBDA_KINESIS:
        found = string_at(asking, &asking->view.body, "kinesis.data");
        return found == HAPAX__FOUND ? decode(asking, &asking->view.body, asking->view.body)
                                     : found;
    case HAPAX_LAMBDA_SNS:
        return string_at(asking, &asking->view.body, "Sns.Message");
    case HAPAX_LAMBDA_DYNAMODB:
        asking->view.body_is_json = true;
        return hapax__raw_member(&asking->view.body, asking->root, "dynamodb")
                   ? HAPAX__FOUND
                   : HAPAX__FOUND_NOTHING;
    default:
        asking->view.body_is_json = true;
        asking->view.body = asking->root;
        return HAPAX__FOUND;
    }
}

/* ---- headers ----------------------------------------------------------------------------- */

static bool is_header(struct hapax_span string, struct hapax_span name)
{
    return string.len == name.len + 2 &&
           strncasecmp((const char *)string.ptr + 1, (const char *)name.ptr, name.len) == 0;
}

/* A walk over the values of one header in one object, whose values are strings or lists of
 * strings. */
struct header_walk {
    struct hapax__raw_walk all, list;
    struct hapax_span name;
};

static void begin_header(struct header_walk *walk, struct hapax_span headers,
                         struct hapax_span name)
{
    struct hapax_span none = {NULL, 0};

    hapax__raw_begin(&walk->all, hapax__raw_is_object(headers) ? headers : none);
    hapax__raw_begin(&walk->list, none);
    walk->name = name;
}

static bool next_header(struct header_walk *walk, struct hapax_span *value)
{
    struct hapax_span at;

    for (;;) {
        if (hapax__raw_next(&walk->list, &at, value)) {
            if (hapax__raw_is_string(*value))
                return true;
            continue;
        }
        if (!hapax__raw_next(&walk->all, &at, value))
            return false;
        if (!is_header(at, walk->name))
            continue;
        if (hapax__raw_is_string(*value))
            return true;
        hapax__raw_begin(&walk->list, *value);
    }
}

/* Counts a header in one object. *value: the last. */
static size_t count_headers(struct hapax_span *value, struct hapax_span headers,
                            struct hapax_span name)
{
    struct header_walk walk;
    struct hapax_span found;
    size_t n = 0;

    begin_header(&walk, headers, name);
    for (; next_header(&walk, &found); n++)
        *value = found;
    return n;
}

/* Finds a header of an HTTP event; returns how often it is there. If the event has both forms, the
 * form with lists has all headers. */
static size_t http_header(struct asking *asking, struct hapax_span *value, struct hapax_span name)
{
    struct hapax_span single, lists, other;
    size_t n;

    (void)hapax__raw_member(&single, asking->root, "headers");
    (void)hapax__raw_member(&lists, asking->root, "multiValueHeaders");
    n = count_headers(value, lists, name);
    if (n == 0)
        return count_headers(value, single, name);
    if (n == 1 && count_headers(&other, single, name) > 1)
        return 2;
    return n;
}

/* The same for an attribute of a message. */
static size_t attribute(struct asking *asking, struct hapax_span *value, struct hapax_span name,
                        const char *attributes, const char *member)
{
    struct hapax__raw_walk walk;
    struct hapax_span all, at, found;
    size_t n = 0;

    if (!hapax__raw_member(&all, asking->root, attributes) || !hapax__raw_is_object(all))
        return 0;
    hapax__raw_begin(&walk, all);
    while (hapax__raw_next(&walk, &at, &found))
        if (is_header(at, name) && hapax__raw_member(&found, found, member) &&
            hapax__raw_is_string(found)) {
            *value = found;
            n++;
        }
    return n;
}

static enum hapax__found find_header(struct asking *asking, struct hapax_span *out,
                                     struct hapax_span name)
{
    struct hapax_span value = {NULL, 0};
    size_t n = 0;

    if (hapax__event_is_http(asking->kind))
        n = http_header(asking, &value, name);
    else if (asking->kind == HAPAX_LAMBDA_SQS)
        n = attribute(asking, &value, name, "messageAttributes", "stringValue");
    else if (asking->kind == HAPAX_LAMBDA_SNS)
        n = attribute(asking, &value, name, "Sns.MessageAttributes", "Value");
    if (n == 0)
        return HAPAX__FOUND_NOTHING;
    if (n > 1)
        return hapax__found_bad(&asking->view, "there is more than one header of its name");
    return unescape(asking, out, value);
}

/* ---- pointers ---------------------------------------------------------------------------- */

/* Takes the first token off a pointer, and writes it unescaped: at most as long as the pointer. */
static size_t take_token(uint8_t *out, struct hapax_span *pointer)
{
    size_t i = 1, n = 0;

    for (; i < pointer->len && pointer->ptr[i] != '/'; i++) {
        uint8_t byte = pointer->ptr[i];

        if (byte == '~')
            byte = pointer->ptr[++i] == '0' ? '~' : '/';
        out[n++] = byte;
    }
    pointer->ptr += i;
    pointer->len -= i;
    return n;
}

/* Goes from a container to the child that a token names. A name that stands there twice finds
 * nothing. */
static enum hapax__found child(struct asking *asking, struct hapax_span *value,
                               const uint8_t *token, size_t len)
{
    struct hapax_span container = *value, name, at, bytes;
    struct hapax__raw_walk walk;
    size_t index = 0, n = 0;
    char number[24];

    hapax__raw_begin(&walk, container);
    for (; hapax__raw_next(&walk, &name, &at); index++) {
        if (walk.named) {
            if (unescape(asking, &bytes, name) == HAPAX__FOUND_NOMEM)
                return HAPAX__FOUND_NOMEM;
        } else {
            bytes = hapax_str((snprintf(number, sizeof(number), "%zu", index), number));
        }
        if (bytes.len == len && memcmp(bytes.ptr, token, len) == 0) {
            *value = at;
            n++;
        }
    }
    return n == 1 ? HAPAX__FOUND : HAPAX__FOUND_NOTHING;
}

/* Goes from a string that holds JSON, or base64 of JSON, to the JSON. */
static enum hapax__found open_string(struct asking *asking, struct hapax_span *value)
{
    struct hapax_span bytes;
    enum hapax__found found;

    if (!hapax__raw_is_string(*value))
        return HAPAX__FOUND;
    found = unescape(asking, &bytes, *value);
    if (found == HAPAX__FOUND && !hapax__raw_check(value, bytes)) {
        found = decode(asking, &bytes, bytes);
        if (found == HAPAX__FOUND && !hapax__raw_check(value, bytes))
            return HAPAX__FOUND_NOTHING;
    }
    return found;
}

/* Follows the whole pointer from the event's root on. */
static enum hapax__found enter(struct hapax__ask_view *view, struct hapax_span *document,
                               struct hapax_span *pointer)
{
    struct asking *asking = (struct asking *)view;
    uint8_t token[HAPAX__JSON_POINTER_LEN_MAX];
    enum hapax__found found = asking->root.len > 0 ? HAPAX__FOUND : HAPAX__FOUND_NOTHING;

    *document = asking->root;
    while (pointer->len > 0 && found == HAPAX__FOUND) {
        size_t len = take_token(token, pointer);

        found = open_string(asking, document);
        if (found == HAPAX__FOUND)
            found = child(asking, document, token, len);
    }
    return found;
}

/* ---- sources of keys --------------------------------------------------------------------- */

static enum hapax__found find_cloudevent(struct asking *asking, struct hapax_span *value)
{
    struct hapax_span source, id;

    if (string_at(asking, &source, "source") == HAPAX__FOUND_NOMEM ||
        string_at(asking, &id, "id") == HAPAX__FOUND_NOMEM)
        return HAPAX__FOUND_NOMEM;
    value->ptr = asking->event_key;
    if (hapax__key_of_event(asking->event_key, &value->len, source, id) != HAPAX_ERR_NONE)
        return hapax__found_bad(&asking->view,
                                "source or id of the event is empty, or over 4096 bytes");
    return HAPAX__FOUND;
}

static enum hapax__found find_event_id(struct asking *asking, struct hapax_span *value)
{
    switch (asking->kind) {
    case HAPAX_LAMBDA_SQS:
        return string_at(asking, value, "messageId");
    case HAPAX_LAMBDA_KINESIS:
    case HAPAX_LAMBDA_DYNAMODB:
        return string_at(asking, value, "eventID");
    case HAPAX_LAMBDA_SNS:
        return string_at(asking, value, "Sns.MessageId");
    case HAPAX_LAMBDA_EVENTBRIDGE:
        return string_at(asking, value, "id");
    case HAPAX_LAMBDA_CLOUDEVENT:
        return find_cloudevent(asking, value);
    default:
        return HAPAX__FOUND_NOTHING;
    }
}

static enum hapax__found find(struct hapax__ask_view *view, const struct hapax__ask_source *source,
                              struct hapax_span *value)
{
    struct asking *asking = (struct asking *)view;

    switch (source->kind) {
    case OF_EVENT_ID:
        return find_event_id(asking, value);
    case OF_REQUEST_ID:
        *value = asking->request_id;
        return value->len > 0 ? HAPAX__FOUND : HAPAX__FOUND_NOTHING;
    default:
        return find_header(asking, value, source->name);
    }
}

/* ---- fingerprint ---------------------------------------------------------------- */

/* Gives path and query. The two older payloads have the query as an object: its canonical JSON
 * stands for the query. */
static bool find_uri(struct hapax_span *out, struct asking *asking)
{
    struct hapax_span path, query = {NULL, 0}, value;
    uint8_t *canonical = NULL, *uri;
    bool v2 = asking->kind == HAPAX_LAMBDA_HTTP;

    if (string_at(asking, &path, v2 ? "rawPath" : "path") == HAPAX__FOUND_NOMEM)
        return false;
    if (v2) {
        if (string_at(asking, &query, "rawQueryString") == HAPAX__FOUND_NOMEM)
            return false;
    } else if ((hapax__raw_member(&value, asking->root, "multiValueQueryStringParameters") &&
                hapax__raw_is_object(value)) ||
               (hapax__raw_member(&value, asking->root, "queryStringParameters") &&
                hapax__raw_is_object(value))) {
        if (hapax__json_canonical(&canonical, &query.len, value) == HAPAX__JSON_NOMEM)
            return false;
        query.ptr = canonical;
        if (!canonical)
            query = value;
        if (query.len == 2)
            query.len = 0;
    }
    uri = hapax__arena_alloc(&asking->arena, path.len + query.len + 1);
    if (uri) {
        struct hapax__writer w = {uri, path.len + query.len + 1};

        hapax__put(&w, path.ptr, path.len);
        hapax__put(&w, "?", query.len > 0);
        hapax__put(&w, query.ptr, query.len);
        *out = (struct hapax_span){uri, path.len + query.len + (query.len > 0)};
    }
    free(canonical);
    return uri != NULL;
}

static bool make_fingerprint(struct hapax_digest *out, struct asking *asking)
{
    bool http = hapax__event_is_http(asking->kind);
    struct hapax_span parts[2];
    size_t n = 0;

    if (http && asking->view.ask->method &&
        string_at(asking, &parts[n++],
                  asking->kind == HAPAX_LAMBDA_HTTP ? "requestContext.http.method"
                                                    : "httpMethod") == HAPAX__FOUND_NOMEM)
        return false;
    if (http && asking->view.ask->uri && !find_uri(&parts[n++], asking))
        return false;
    return hapax__ask_fingerprint(out, &asking->view, parts, n);
}

/* ---- credentials ------------------------------------------------------------------------- */

/* What tells callers apart: each credential of an event, behind its name. */
struct credentials {
    struct asking *asking;
    struct hapax_span *parts;
    size_t n, room;
};

/* False: out of memory. */
static bool put(struct credentials *c, const char *name, struct hapax_span value)
{
    if (c->n == c->room) {
        size_t room = c->room > 0 ? 2 * c->room : 32;
        struct hapax_span *parts =
            hapax__arena_alloc(&c->asking->arena, room * sizeof(struct hapax_span));

        if (!parts)
            return false;
        if (c->n > 0)
            memcpy(parts, c->parts, c->n * sizeof(struct hapax_span));
        c->parts = parts;
        c->room = room;
    }
    c->parts[c->n++] = hapax_str(name);
    c->parts[c->n++] = value;
    return true;
}

static bool put_string(struct credentials *c, const char *path)
{
    struct hapax_span value;
    enum hapax__found found = string_at(c->asking, &value, path);

    return found != HAPAX__FOUND_NOMEM &&
           (found != HAPAX__FOUND || value.len == 0 || put(c, path, value));
}

/* Puts an object, as canonical JSON. */
static bool put_object(struct credentials *c, const char *path)
{
    /* Of what an authorizer says: put by itself, or another with each token; and a time. */
    static const char *const left_out[] = {"/jwt", "/claims", "/iam", "/integrationLatency"};
    struct hapax_span pointers[4], value;
    struct hapax_digest *digest;

    if (!hapax__raw_member(&value, c->asking->root, path) || !hapax__raw_is_object(value))
        return true;
    for (size_t i = 0; i < 4; i++)
        pointers[i] = hapax_str(left_out[i]);
    digest = hapax__arena_alloc(&c->asking->arena, sizeof(*digest));
    return digest &&
           hapax__json_fingerprint(digest, value, HAPAX__JSON_EXCLUDE, pointers, 4) !=
               HAPAX__JSON_NOMEM &&
           put(c, path, (struct hapax_span){digest->bytes, sizeof(digest->bytes)});
}

static bool is_signature(struct hapax_span value)
{
    return value.len > 5 && memcmp(value.ptr, "AWS4-", 5) == 0;
}

/* Puts all values of a header, as the HTTP door does. signed_for: an authorizer names the caller,
 * and a signature, which differs with each request, does not count. */
static bool put_header(struct credentials *c, const char *name, bool signed_for)
{
    struct header_walk walk;
    struct hapax_span headers, value;

    if (!hapax__raw_member(&headers, c->asking->root, "multiValueHeaders") ||
        count_headers(&value, headers, hapax_str(name)) == 0)
        (void)hapax__raw_member(&headers, c->asking->root, "headers");
    begin_header(&walk, headers, hapax_str(name));
    while (next_header(&walk, &value))
        if (unescape(c->asking, &value, value) == HAPAX__FOUND_NOMEM ||
            (!(signed_for && is_signature(value)) && !put(c, name, value)))
            return false;
    return true;
}

/* Payload 2.0 has cookies in a list, which the client sent as one header. */
static bool put_cookies(struct credentials *c)
{
    struct hapax__raw_walk walk;
    struct hapax_span list, name, value;
    struct hapax__writer w;
    uint8_t *joined;

    if (!hapax__raw_member(&list, c->asking->root, "cookies") || !hapax__raw_is_array(list))
        return true;
    /* Quotes and the comma between two cookies leave room for what joins them. */
    joined = hapax__arena_alloc(&c->asking->arena, list.len);
    if (!joined)
        return false;
    w = (struct hapax__writer){joined, list.len};
    hapax__raw_begin(&walk, list);
    while (hapax__raw_next(&walk, &name, &value)) {
        if (unescape(c->asking, &value, value) == HAPAX__FOUND_NOMEM)
            return false;
        if (w.at != joined)
            hapax__put(&w, "; ", 2);
        hapax__put(&w, value.ptr, value.len);
    }
    return w.at == joined || put(c, "cookie", (struct hapax_span){joined, (size_t)(w.at - joined)});
}

/* The caller of an HTTP event is all credentials that the event carries. Without what API Gateway
 * says of them this is the caller of the HTTP door, with its headers in their order. */
static bool find_credentials(struct hapax_digest *out, struct asking *asking)
{
    static const char *const principals[] = {
        "requestContext.authorizer.jwt.claims.sub",
        "requestContext.authorizer.claims.sub",
        "requestContext.authorizer.principalId",
        "requestContext.authorizer.iam.userArn",
        "requestContext.authorizer.iam.cognitoIdentity.identityId",
        "requestContext.identity.userArn",
        "requestContext.identity.cognitoIdentityId",
    };
    static const char *const objects[] = {
        "requestContext.authorizer",
        "requestContext.identity.clientCert",
        "requestContext.authentication.clientCert",
    };
    static const char *const headers[] = {
        "x-api-key",
        "api-key",
        "x-auth-token",
        "x-access-token",
        "x-amzn-oidc-identity",
        "x-amzn-mtls-clientcert",
        "x-amzn-mtls-clientcert-leaf",
    };
    struct credentials c = {.asking = asking};
    bool good = true, signed_for;

    for (size_t i = 0; i < sizeof(principals) / sizeof(principals[0]) && good; i++)
        good = put_string(&c, principals[i]);
    signed_for = c.n > 0;
    if (good)
        good = put_string(&c, "requestContext.identity.apiKeyId");
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]) && good; i++)
        good = put_object(&c, objects[i]);
    good = good && put_header(&c, "authorization", signed_for) && put_header(&c, "cookie", false) &&
           put_cookies(&c);
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]) && good; i++)
        good = put_header(&c, headers[i], false);
    if (good && c.n > 0)
        hapax_digest(out, c.parts, c.n);
    return good;
}

/* Gives owner and caller, or refuses. False: out of memory. */
static bool find_who(struct hapax__asked *out, struct asking *asking)
{
    const struct hapax__ask *ask = asking->view.ask;
    enum hapax__found found = hapax__ask_who(out, &asking->view);

    /* An owner's tokens change between retries. */
    if (found == HAPAX__FOUND && hapax__event_is_http(asking->kind) && !ask->owner.kind &&
        !ask->caller.kind && !ask->one_caller)
        return find_credentials(&out->request.caller, asking);
    return found != HAPAX__FOUND_NOMEM;
}

/* What the event is: its method and path, or what it comes from and its type. Of two members of
 * each kind. */
static bool find_what(struct hapax__asked *out, struct asking *asking)
{
    static const char *const members[][2] = {
        [HAPAX_LAMBDA_PLAIN] = {NULL, NULL},
        [HAPAX_LAMBDA_REST] = {"httpMethod", "path"},
        [HAPAX_LAMBDA_HTTP] = {"requestContext.http.method", "rawPath"},
        [HAPAX_LAMBDA_ALB] = {"httpMethod", "path"},
        [HAPAX_LAMBDA_SQS] = {"eventSource", "eventSourceARN"},
        [HAPAX_LAMBDA_KINESIS] = {"eventSource", "eventSourceARN"},
        [HAPAX_LAMBDA_DYNAMODB] = {"eventSource", "eventSourceARN"},
        [HAPAX_LAMBDA_SNS] = {"EventSource", "Sns.TopicArn"},
        [HAPAX_LAMBDA_EVENTBRIDGE] = {"source", "detail-type"},
        [HAPAX_LAMBDA_CLOUDEVENT] = {"source", "type"},
    };
    struct hapax_span parts[2] = {{NULL, 0}, {NULL, 0}};

    for (size_t i = 0; i < 2; i++)
        if (members[asking->kind][i] &&
            string_at(asking, &parts[i], members[asking->kind][i]) == HAPAX__FOUND_NOMEM)
            return false;
    out->request.what = (struct hapax_span){out->what, hapax_what(out->what, parts, 2)};
    return true;
}

/* The client's traceparent, which stands in the event; empty: none. */
static struct hapax_span find_trace(struct asking *asking)
{
    struct hapax_span value = {NULL, 0}, none = {NULL, 0};

    if (!hapax__event_is_http(asking->kind) ||
        http_header(asking, &value, hapax_str("traceparent")) != 1 || !hapax__raw_is_string(value))
        return none;
    return (struct hapax_span){value.ptr + 1, value.len - 2};
}

/* ---- asking ------------------------------------------------------------------------------ */

static bool ask_for(struct hapax__asked *out, struct asking *asking, size_t request_max)
{
    if (find_body(asking) == HAPAX__FOUND_NOMEM)
        return false;
    switch (hapax__ask_key(out, &asking->view)) {
    case HAPAX__FOUND_NOMEM:
        return false;
    case HAPAX__FOUND:
        break;
    default:
        return true;
    }
    if (!find_who(out, asking))
        return false;
    if (out->refused) {
        out->request.key.len = 0;
        return true;
    }
    if (asking->view.body.len > request_max) {
        out->refused = HAPAX_ANSWER_TOO_LARGE;
        out->why = "its body is over max_request";
        out->request.key.len = 0;
        return true;
    }
    return make_fingerprint(&out->request.fingerprint, asking) && find_what(out, asking);
}

bool hapax__event_ask(struct hapax__asked *out, const struct hapax__ask *ask,
                      const struct hapax_policy *policy, enum hapax_lambda_kind kind,
                      struct hapax_span root, struct hapax_span request_id)
{
    struct asking asking = {
        .view = {.ask = ask, .find = find, .enter = enter},
        .kind = kind,
        .root = root,
        .request_id = request_id,
    };
    struct hapax__ask windowed;
    struct hapax__raw_walk walk;
    struct hapax_span name;
    bool good;

    if (kind == HAPAX_LAMBDA_PLAIN && hapax__event_is_windowed(root)) {
        windowed = *ask;
        windowed.sources[0] = (struct hapax__ask_source){.kind = HAPAX__ASK_PAYLOAD};
        windowed.source_count = 1;
        asking.view.ask = &windowed;
    }
    if (kind == HAPAX_LAMBDA_SNS && hapax__raw_member(&asking.root, root, "Records")) {
        hapax__raw_begin(&walk, asking.root);
        (void)hapax__raw_next(&walk, &name, &asking.root);
    }
    memset(out, 0, sizeof(*out));
    out->request.scope = ask->scope;
    out->request.trace = find_trace(&asking);
    good = ask_for(out, &asking, policy->max_request);
    hapax__arena_release(&asking.arena);
    return good;
}
