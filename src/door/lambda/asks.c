/* SPDX-License-Identifier: Apache-2.0
 *
 * What an event asks: its key, from the first source of a list that has one, its fingerprint, and who asks.
 *
 * What it keeps: the rules are the other doors' (the header's grammar, pointers, fingerprints: see src/door/consume/ask.c),
 * so that an operation may come in by any of them; a source that contradicts itself is BAD_KEY, never "the next
 * source"; nothing is cut. What this door adds: a pointer goes on into a string that holds JSON, or base64 of it,
 * since bodies stand in events as strings.
 *
 * Rejected: Lambda's request id as the last resort. It is the same for Lambda's own retries and another for everybody
 * else's: who wants that says so.
 */
#include "asks.h"
#include "base/base64.h"
#include "json/raw.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "core/key.h"

#include <assert.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the event's parts ------------------------------------------------------------------- */

/* One event, or record, while it is asked for. */
struct look {
    const struct hapax__lambda_ask *ask;
    enum hapax_lambda_kind kind;
    struct hapax_span root; /* what pointers begin at; empty: no JSON */
    struct hapax_span request_id;
    struct hapax_span body;
    bool body_is_value; /* a JSON value of the event, not bytes it carries */
    struct hapax_arena arena;
    const char *why; /* BAD */
    size_t len;
    uint8_t key[HAPAX_KEY_MAX];
};

enum found { NOTHING = 0, FOUND, BAD, NOMEM };

static enum found bad(struct look *look, const char *why)
{
    look->why = why;
    return BAD;
}

/* The bytes of a string, in the arena where they are not those in the event. */
static enum found unescape(struct look *look, struct hapax_span *out, struct hapax_span string)
{
    uint8_t *bytes;

    *out = (struct hapax_span){string.ptr + 1, string.len - 2};
    if (!memchr(string.ptr, '\\', string.len))
        return FOUND;
    bytes = hapax__arena_alloc(&look->arena, string.len);
    if (!bytes)
        return NOMEM;
    *out = (struct hapax_span){bytes, hapax__raw_unescape(bytes, string)};
    return FOUND;
}

static enum found decode(struct look *look, struct hapax_span *out, struct hapax_span in)
{
    uint8_t *bytes = hapax__arena_alloc(&look->arena, in.len + 1);
    size_t len;

    if (!bytes)
        return NOMEM;
    if (!hapax__base64_decode(bytes, &len, in))
        return NOTHING;
    *out = (struct hapax_span){bytes, len};
    return FOUND;
}

/* The bytes of the string at `path`; NOTHING: there is none. */
static enum found string_at(struct look *look, struct hapax_span *out, const char *path)
{
    struct hapax_span value;

    *out = (struct hapax_span){NULL, 0};
    if (!hapax__raw_member(&value, look->root, path) || !hapax__raw_is_string(value))
        return NOTHING;
    return unescape(look, out, value);
}

static bool is_true(struct hapax_span root, const char *path)
{
    struct hapax_span value;

    return hapax__raw_member(&value, root, path) && value.ptr[0] == 't';
}

static enum found find_body(struct look *look)
{
    enum found found = NOTHING;

    switch (look->kind) {
    case HAPAX_LAMBDA_REST:
    case HAPAX_LAMBDA_HTTP:
    case HAPAX_LAMBDA_ALB:
        found = string_at(look, &look->body, "body");
        if (found == FOUND && is_true(look->root, "isBase64Encoded"))
            found = decode(look, &look->body, look->body);
        return found;
    case HAPAX_LAMBDA_SQS:
        return string_at(look, &look->body, "body");
    case HAPAX_LAMBDA_KINESIS:
        found = string_at(look, &look->body, "kinesis.data");
        return found == FOUND ? decode(look, &look->body, look->body) : found;
    case HAPAX_LAMBDA_SNS:
        return string_at(look, &look->body, "Sns.Message");
    case HAPAX_LAMBDA_DYNAMODB:
        look->body_is_value = true;
        return hapax__raw_member(&look->body, look->root, "dynamodb") ? FOUND : NOTHING;
    default:
        look->body_is_value = true;
        look->body = look->root;
        return FOUND;
    }
}

/* ---- headers ----------------------------------------------------------------------------- */

static bool is_header(struct hapax_span string, struct hapax_span name)
{
    return string.len == name.len + 2 &&
           strncasecmp((const char *)string.ptr + 1, (const char *)name.ptr, name.len) == 0;
}

/* Looks through one object of headers, whose values are strings or lists of them. */
static size_t count_headers(struct hapax_span *value, struct hapax_span headers,
                            struct hapax_span name)
{
    struct hapax__raw_walk walk, list;
    struct hapax_span at, found, none;
    size_t n = 0;

    if (!hapax__raw_is_object(headers))
        return 0;
    hapax__raw_begin(&walk, headers);
    while (hapax__raw_next(&walk, &at, &found)) {
        if (!is_header(at, name))
            continue;
        if (hapax__raw_is_string(found)) {
            *value = found;
            n++;
            continue;
        }
        hapax__raw_begin(&list, found);
        while (hapax__raw_next(&list, &none, &found))
            if (hapax__raw_is_string(found)) {
                *value = found;
                n++;
            }
    }
    return n;
}

/* The header of an HTTP event; how often it is there. Where both forms are, the one with lists has them all. */
static size_t http_header(struct look *look, struct hapax_span *value, struct hapax_span name)
{
    struct hapax_span single, lists, other;
    size_t n;

    (void)hapax__raw_member(&single, look->root, "headers");
    (void)hapax__raw_member(&lists, look->root, "multiValueHeaders");
    n = count_headers(value, lists, name);
    if (n == 0)
        return count_headers(value, single, name);
    if (n == 1 && count_headers(&other, single, name) > 1)
        return 2;
    return n;
}

/* An attribute of a message, as a header. */
static size_t attribute(struct look *look, struct hapax_span *value, struct hapax_span name,
                        const char *attributes, const char *member)
{
    struct hapax__raw_walk walk;
    struct hapax_span all, at, found;
    size_t n = 0;

    if (!hapax__raw_member(&all, look->root, attributes) || !hapax__raw_is_object(all))
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

static enum found find_header(struct look *look, struct hapax_span *out, struct hapax_span name)
{
    struct hapax_span value = {NULL, 0};
    size_t n = 0;

    if (hapax__event_is_http(look->kind))
        n = http_header(look, &value, name);
    else if (look->kind == HAPAX_LAMBDA_SQS)
        n = attribute(look, &value, name, "messageAttributes", "stringValue");
    else if (look->kind == HAPAX_LAMBDA_SNS)
        n = attribute(look, &value, name, "Sns.MessageAttributes", "Value");
    if (n == 0)
        return NOTHING;
    if (n > 1)
        return bad(look, "there is more than one header of its name");
    return unescape(look, out, value);
}

/* ---- keys ------------------------------------------------------------------------------ */

static enum found found_digest(struct look *look, const struct hapax_digest *digest)
{
    look->len = hapax__key_of_digest(look->key, digest->bytes);
    return FOUND;
}

static enum found found_bytes(struct look *look, struct hapax_span bytes)
{
    look->len = hapax__key_of_bytes(look->key, bytes);
    return look->len > 0 ? FOUND : bad(look, "the key is empty");
}

static enum found find_string(struct look *look, const char *path)
{
    struct hapax_span bytes;
    enum found found = string_at(look, &bytes, path);

    return found == FOUND ? found_bytes(look, bytes) : found;
}

static enum found find_cloudevent(struct look *look)
{
    struct hapax_span source, id;

    if (string_at(look, &source, "source") == NOMEM || string_at(look, &id, "id") == NOMEM)
        return NOMEM;
    if (hapax__key_of_event(look->key, &look->len, source, id) != HAPAX_ERR_NONE)
        return bad(look, "source or id of the event is empty, or over 4096 bytes");
    return FOUND;
}

static enum found find_event_id(struct look *look)
{
    switch (look->kind) {
    case HAPAX_LAMBDA_SQS:
        return find_string(look, "messageId");
    case HAPAX_LAMBDA_KINESIS:
    case HAPAX_LAMBDA_DYNAMODB:
        return find_string(look, "eventID");
    case HAPAX_LAMBDA_SNS:
        return find_string(look, "Sns.MessageId");
    case HAPAX_LAMBDA_EVENTBRIDGE:
        return find_string(look, "id");
    case HAPAX_LAMBDA_CLOUDEVENT:
        return find_cloudevent(look);
    default:
        return NOTHING;
    }
}

/* ---- keys by pointers -------------------------------------------------------------------- */

/* Takes the first token off a pointer, unescaped; it is as long as the pointer at most. */
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

/* What a token names in a container; of a name that is there twice nothing is certain. */
static enum found child(struct look *look, struct hapax_span *value, const uint8_t *token,
                        size_t len)
{
    struct hapax_span container = *value, name, at, bytes;
    struct hapax__raw_walk walk;
    size_t index = 0, n = 0;
    char number[24];

    hapax__raw_begin(&walk, container);
    for (; hapax__raw_next(&walk, &name, &at); index++) {
        if (walk.named) {
            if (unescape(look, &bytes, name) == NOMEM)
                return NOMEM;
        } else {
            bytes = hapax_str((snprintf(number, sizeof(number), "%zu", index), number));
        }
        if (bytes.len == len && memcmp(bytes.ptr, token, len) == 0) {
            *value = at;
            n++;
        }
    }
    return n == 1 ? FOUND : NOTHING;
}

/* A string that holds JSON, or base64 of it, is what it holds. */
static enum found enter(struct look *look, struct hapax_span *value)
{
    struct hapax_span bytes;
    enum found found;

    if (!hapax__raw_is_string(*value))
        return FOUND;
    found = unescape(look, &bytes, *value);
    if (found == FOUND && !hapax__raw_check(value, bytes)) {
        found = decode(look, &bytes, bytes);
        if (found == FOUND && !hapax__raw_check(value, bytes))
            return NOTHING;
    }
    return found;
}

static enum found resolve(struct look *look, struct hapax_span *value, struct hapax_span pointer)
{
    uint8_t token[HAPAX__JSON_POINTER_LEN_MAX];
    enum found found = look->root.len > 0 ? FOUND : NOTHING;

    *value = look->root;
    while (pointer.len > 0 && found == FOUND) {
        size_t len = take_token(token, &pointer);

        found = enter(look, value);
        if (found == FOUND)
            found = child(look, value, token, len);
    }
    return found;
}

static enum found pointed(struct look *look, uint8_t out[HAPAX_KEY_MAX], size_t *len,
                          struct hapax_span pointer)
{
    struct hapax_span value;
    enum found found = resolve(look, &value, pointer);

    *len = 0;
    if (found != FOUND)
        return found;
    switch (hapax__json_scalar(out, HAPAX_KEY_MAX, len, value, hapax_str(""))) {
    case HAPAX__JSON_OK:
        return *len > 0 ? FOUND : bad(look, "what the event holds in its place is empty");
    case HAPAX__JSON_NOMEM:
        return NOMEM;
    case HAPAX__JSON_NOT_SCALAR:
        return bad(look, "what the event holds in its place is no scalar");
    case HAPAX__JSON_TOO_LONG:
        return bad(look, "what the event holds in its place is over 255 bytes");
    default:
        return NOTHING;
    }
}

/* As the other doors': one pointer: what it finds; several: a digest of what they find. */
static enum found find_pointed(struct look *look, const struct key_source *source)
{
    uint8_t values[HAPAX__JSON_POINTERS_MAX][HAPAX_KEY_MAX];
    struct hapax_span parts[HAPAX__JSON_POINTERS_MAX];
    struct hapax_digest digest;

    for (size_t i = 0; i < source->count; i++) {
        size_t len;
        enum found found =
            pointed(look, values[i], &len, look->ask->pointers.at[source->first + i]);

        if (found != FOUND)
            return found;
        parts[i] = (struct hapax_span){values[i], len};
    }
    if (source->count == 1)
        return found_bytes(look, parts[0]);
    hapax_digest(&digest, parts, source->count);
    return found_digest(look, &digest);
}

/* ---- fingerprint and caller ---------------------------------------------------------------- */

static bool digest_body(struct hapax_digest *out, struct look *look)
{
    const struct hapax__lambda_ask *ask = look->ask;
    struct hapax_span body = look->body;

    if (ask->counts == COUNTS_JSON || look->body_is_value)
        return hapax__json_fingerprint(out, body, ask->select, ask->selected.at, ask->selected.n) !=
               HAPAX__JSON_NOMEM;
    SHA256(body.len > 0 ? body.ptr : (const uint8_t *)"", body.len, out->bytes);
    return true;
}

/* Path and query. The two older payloads have the query taken apart, so that it stands for itself in canonical JSON. */
static bool find_uri(struct hapax_span *out, struct look *look)
{
    struct hapax_span path, query = {NULL, 0}, value;
    uint8_t *canonical = NULL, *uri;
    bool v2 = look->kind == HAPAX_LAMBDA_HTTP;

    if (string_at(look, &path, v2 ? "rawPath" : "path") == NOMEM)
        return false;
    if (v2) {
        if (string_at(look, &query, "rawQueryString") == NOMEM)
            return false;
    } else if ((hapax__raw_member(&value, look->root, "multiValueQueryStringParameters") &&
                hapax__raw_is_object(value)) ||
               (hapax__raw_member(&value, look->root, "queryStringParameters") &&
                hapax__raw_is_object(value))) {
        if (hapax__json_canonical(&canonical, &query.len, value) == HAPAX__JSON_NOMEM)
            return false;
        query.ptr = canonical;
        if (!canonical)
            query = value;
        if (query.len == 2)
            query.len = 0;
    }
    uri = hapax__arena_alloc(&look->arena, path.len + query.len + 1);
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

static bool digest_all(struct hapax_digest *out, struct look *look)
{
    const struct hapax__lambda_ask *ask = look->ask;
    bool http = hapax__event_is_http(look->kind);
    struct hapax_span parts[3];
    struct hapax_digest body;
    size_t n = 0;

    if (http && ask->method &&
        string_at(look, &parts[n++],
                  look->kind == HAPAX_LAMBDA_HTTP ? "requestContext.http.method" : "httpMethod") ==
            NOMEM)
        return false;
    if (http && ask->uri && !find_uri(&parts[n++], look))
        return false;
    if (ask->counts != COUNTS_NOTHING) {
        if (!digest_body(&body, look))
            return false;
        parts[n++] = (struct hapax_span){body.bytes, sizeof(body.bytes)};
    }
    hapax_digest(out, parts, n);
    return true;
}

/* Who an authorizer says it is; else the credentials as the HTTP door takes them, which a signature makes others each time. */
static bool digest_caller(struct hapax_digest *out, struct look *look)
{
    static const char *const principals[] = {
        "requestContext.authorizer.jwt.claims.sub", "requestContext.authorizer.claims.sub",
        "requestContext.authorizer.principalId",    "requestContext.authorizer.iam.userArn",
        "requestContext.identity.userArn",
    };
    struct hapax_span parts[2] = {hapax_str("principal"), {NULL, 0}};
    struct hapax_span value = {NULL, 0};

    if (hapax__event_is_http(look->kind)) {
        for (size_t i = 0; i < sizeof(principals) / sizeof(principals[0]); i++) {
            enum found found = string_at(look, &parts[1], principals[i]);

            if (found == NOMEM)
                return false;
            if (found == FOUND && parts[1].len > 0) {
                hapax_digest(out, parts, 2);
                return true;
            }
        }
        if (http_header(look, &value, hapax_str("Authorization")) > 0 &&
            unescape(look, &value, value) == NOMEM)
            return false;
    }
    hapax_digest(out, &value, 1);
    return true;
}

/* ---- asking ------------------------------------------------------------------------------ */

static enum found find(struct look *look, const struct key_source *source)
{
    struct hapax_digest digest;
    struct hapax_span value;
    enum found found;

    switch (source->kind) {
    case OF_POINTERS:
        return find_pointed(look, source);
    case OF_EVENT_ID:
        return find_event_id(look);
    case OF_REQUEST_ID:
        return look->request_id.len > 0 ? found_bytes(look, look->request_id) : NOTHING;
    case OF_PAYLOAD:
        return digest_body(&digest, look) ? found_digest(look, &digest) : NOMEM;
    default:
        break;
    }
    found = find_header(look, &value, source->name);
    if (found != FOUND || source->kind == OF_HEADER)
        return found == FOUND ? found_bytes(look, value) : found;
    if (hapax_key_parse(look->key, &look->len, value, &look->why) != HAPAX_ERR_NONE)
        return BAD;
    return FOUND;
}

static void set_key(struct hapax__lambda_asked *out, const struct look *look)
{
    size_t len = look->len;
    enum hapax_error error = HAPAX_ERR_NONE;

    if (look->ask->step.len > 0)
        error = hapax_key_derive(out->key, &len, (struct hapax_span){look->key, look->len},
                                 look->ask->step);
    else
        memcpy(out->key, look->key, len);
    assert(error == HAPAX_ERR_NONE);
    out->request.key = (struct hapax_span){out->key, len};
}

static bool ask_for(struct hapax__lambda_asked *out, struct look *look)
{
    enum found found = NOTHING;

    if (find_body(look) == NOMEM)
        return false;
    for (size_t i = 0; i < look->ask->source_count && found == NOTHING; i++)
        found = find(look, &look->ask->sources[i]);
    if (found == NOMEM)
        return false;
    if (found == BAD) {
        out->refused = HAPAX_ANSWER_BAD_KEY;
        out->why = look->why;
        return true;
    }
    if (found == NOTHING)
        return true;
    if (look->body.len > look->ask->request_max) {
        out->refused = HAPAX_ANSWER_TOO_LARGE;
        out->why = "its body is over max_request";
        return true;
    }
    set_key(out, look);
    return digest_all(&out->request.fingerprint, look) && digest_caller(&out->request.caller, look);
}

bool hapax__lambda_asks(struct hapax__lambda_asked *out, const struct hapax__lambda_ask *ask,
                        enum hapax_lambda_kind kind, struct hapax_span root,
                        struct hapax_span request_id)
{
    struct look look = {.ask = ask, .kind = kind, .root = root, .request_id = request_id};
    struct hapax__raw_walk walk;
    struct hapax_span name;
    bool good;

    if (kind == HAPAX_LAMBDA_SNS && hapax__raw_member(&look.root, root, "Records")) {
        hapax__raw_begin(&walk, look.root);
        (void)hapax__raw_next(&walk, &name, &look.root);
    }
    memset(out, 0, sizeof(*out));
    out->request.scope = ask->scope;
    good = ask_for(out, &look);
    hapax__arena_release(&look.arena);
    return good;
}
