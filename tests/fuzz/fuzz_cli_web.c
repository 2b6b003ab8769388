/* SPDX-License-Identifier: Apache-2.0
 *
 * What hapax web is asked: who asks, and the options in a request. The input is `METHOD PATH`, the
 * headers `name:value`, one a line, an empty line, and the body. A header's value `TOKEN` is the
 * token that the page reads. The store has a claim that is dead, one that lives and a completion;
 * the headers are handed to the guard as libmicrohttpd would hand them.
 * Claims: an answer has a status of ours, and what is JSON is one object a line. The API answers
 * nobody without a name, without a Host of ours, or, a POST, without the token. Without --allow
 * nothing in the store changes.
 */
#include "fuzz_cli.h"

#include "base/span.h"
#include "cli/web.h"
#include "json/raw.h"

#include <strings.h>

#define HEADERS_MAX 16u

struct header {
    char *name, *value;
};

static struct header headers[HEADERS_MAX];
static unsigned headers_n;

/* ---- in place of those of http/site.c (the linker's --wrap) -------------------------------- */

const char *__wrap_hapax__site_header(const struct hapax__site_request *request, const char *name);
unsigned __wrap_hapax__site_header_count(const struct hapax__site_request *request,
                                         const char *name);

const char *__wrap_hapax__site_header(const struct hapax__site_request *request, const char *name)
{
    (void)request;
    for (unsigned i = 0; i < headers_n; i++)
        if (strcasecmp(headers[i].name, name) == 0)
            return headers[i].value;
    return NULL;
}

unsigned __wrap_hapax__site_header_count(const struct hapax__site_request *request,
                                         const char *name)
{
    unsigned n = 0;

    (void)request;
    for (unsigned i = 0; i < headers_n; i++)
        n += strcasecmp(headers[i].name, name) == 0;
    return n;
}

/* ---- a store ------------------------------------------------------------------------------- */

static struct hapax_op op_on(enum hapax_op_kind kind, const char *key)
{
    struct hapax_op op = {.kind = kind,
                          .scope = hapax_str("default"),
                          .lease_ms = strcmp(key, "dead") == 0 ? 1 : 3600000,
                          .retention_ms = 86400000,
                          .on_expired = HAPAX_EXPIRED_HOLD,
                          .outcome = {201, true, hapax_str("A: b\r\n"), hapax_str("a body")}};
    const struct hapax_span none = {NULL, 0};

    memset(op.token.bytes, 't', sizeof(op.token.bytes));
    (void)hapax_owned_id(&op.id, none, op.scope, hapax_str(key), none, none);
    return op;
}

static void run(struct hapax_store *store, struct hapax_op *op)
{
    enum hapax_error error = hapax_store_run(store, op, 1);

    assert(error == HAPAX_ERR_NONE);
}

static struct hapax_store *make_store(void)
{
    static const char *const keys[] = {"dead", "live", "done"};
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;
    enum hapax_error error = hapax_store_open(&store, "memory:", text);

    assert(error == HAPAX_ERR_NONE);
    for (size_t i = 0; i < 3; i++) {
        struct hapax_op op = op_on(HAPAX_OP_CLAIM, keys[i]);

        run(store, &op);
    }
    {
        struct hapax_op op = op_on(HAPAX_OP_COMPLETE, "done");

        run(store, &op);
    }
    return store;
}

/* When each was written last; 0: it is not there. */
static void look(int64_t updated_us[3], struct hapax_store *store)
{
    static const char *const keys[] = {"dead", "live", "done"};

    for (size_t i = 0; i < 3; i++) {
        struct hapax_op op = op_on(HAPAX_OP_READ, keys[i]);

        run(store, &op);
        updated_us[i] = op.verdict == HAPAX_FOUND ? op.record.updated_us : 0;
    }
}

/* ---- a request ----------------------------------------------------------------------------- */

static void read_headers(struct hapax_span *rest, const struct web_guard *guard)
{
    struct hapax_span line;

    headers_n = 0;
    while ((line = fuzz_line(rest)).len > 0 && headers_n < HEADERS_MAX) {
        struct header *header = &headers[headers_n];
        char *colon;

        header->name = fuzz_copy(line);
        colon = strchr(header->name, ':');
        header->value = fuzz_copy(hapax_str(colon ? colon + 1 : ""));
        if (colon)
            *colon = '\0';
        if (strcmp(header->value, "TOKEN") == 0) {
            free(header->value);
            header->value = fuzz_copy(hapax_str(web_guard_token(guard)));
        }
        headers_n++;
    }
}

static void check_reply(const struct hapax__site_reply *reply)
{
    static const unsigned statuses[] = {200, 400, 401, 403, 404, 405, 409, 415, 421, 429, 503};
    struct hapax_span rest = {(const uint8_t *)reply->body, reply->len}, line, value;
    bool known = false;

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        known |= reply->status == statuses[i];
    assert(known && reply->type);
    if (reply->owned)
        rest.ptr = (const uint8_t *)reply->owned;
    if (strcmp(reply->type, "application/x-ndjson") != 0)
        return;
    while ((line = fuzz_line(&rest)).len > 0)
        assert(hapax__raw_check(&value, line) && hapax__raw_is_object(value));
    assert(rest.len == 0);
}

/* Whether the API may have been reached: what the guard has to see, said here in other words. */
static bool may_be_reached(const struct hapax__site_request *request, const struct web_guard *guard)
{
    const char *user = __wrap_hapax__site_header(request, "X-User");
    const char *token = __wrap_hapax__site_header(request, "X-Hapax-Token");
    const char *site = __wrap_hapax__site_header(request, "Sec-Fetch-Site");

    return user && *user && __wrap_hapax__site_header_count(request, "X-User") == 1 &&
           __wrap_hapax__site_header(request, "Host") &&
           (!site || strcmp(site, "same-origin") == 0) &&
           (strcmp(request->method, "POST") != 0 ||
            (token && strcmp(token, web_guard_token(guard)) == 0));
}

static void ask(const struct cli_args *args, struct web_guard *guard,
                const struct hapax__site_request *request, bool may_resolve)
{
    static struct board board;
    struct web web = {.args = args,
                      .may_resolve = may_resolve,
                      .guard = guard,
                      .redriving = PTHREAD_MUTEX_INITIALIZER,
                      .one = PTHREAD_MUTEX_INITIALIZER,
                      .doors = PTHREAD_MUTEX_INITIALIZER,
                      .store = make_store(),
                      .board = &board};
    struct hapax__site_reply reply = {0};
    int64_t before[3], after[3];
    struct fuzz_said said;

    board = (struct board){.args = args};
    look(before, web.store);
    fuzz_said_begin(&said);
    web_answer(&reply, request, &web);
    fuzz_said_end(&said);
    look(after, web.store);
    check_reply(&reply);
    if (hapax__text_begins(request->path, "/api/") && reply.status == 200)
        assert(may_be_reached(request, guard));
    if (!may_resolve)
        assert(memcmp(before, after, sizeof(before)) == 0);
    free(said.text);
    free(reply.owned);
    hapax_store_close(web.store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct cli_texts names = {{"hapax.example"}, 1};
    static const struct web_rules rules = {NULL, "X-User", &names};
    static struct web_guard *guard;
    static struct cli_args *args;
    struct hapax_span rest = {data, size};
    char *line = fuzz_copy(fuzz_line(&rest)), *space = strchr(line, ' ');
    struct hapax__site_request request = {.method = line, .path = space ? space + 1 : "/"};

    if (!args) {
        (void)setenv("HAPAX_AUDIT_FILE", "/dev/null", 1);
        args = cli_args_new(&cli_web);
        assert(args);
        args->store = args->shown = "memory:";
        (void)web_guard_open(&guard, args, &rules);
        assert(guard);
    }
    if (space)
        *space = '\0';
    read_headers(&rest, guard);
    request.body = rest;
    ask(args, guard, &request, false);
    ask(args, guard, &request, true);
    for (unsigned i = 0; i < headers_n; i++) {
        free(headers[i].name);
        free(headers[i].value);
    }
    free(line);
    return 0;
}
