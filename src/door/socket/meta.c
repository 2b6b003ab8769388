/* SPDX-License-Identifier: Apache-2.0
 *
 * One walk over the members of an object, with a table that says how each is read. Rejected:
 * looking each name up by itself, which walks the object a dozen times for one BEGIN.
 */
#include "meta.h"

#include "base/base64.h"
#include "base/bytes.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/units.h"
#include "base/utf8.h"
#include "door/attempt.h"
#include "json/raw.h"

#include <string.h>

#define NONCE_LEN 16u

/* An object that is read. */
struct reading {
    void *out;
    struct hapax_arena *arena;
    const char *name; /* of the member in hand */
    bool http;
    enum hapax_error error;
    char *text;
};

struct member {
    const char *name;
    bool (*read)(struct reading *r, void *field, struct hapax_span value);
    size_t at; /* of its field in `out` */
};

static bool refuse(struct reading *r, const char *what)
{
    r->error = hapax__fail(r->text, HAPAX_ERR_INVALID, "member \"%s\" %s", r->name, what);
    return false;
}

static bool no_memory(struct reading *r)
{
    r->error = hapax__fail(r->text, HAPAX_ERR_NOMEM, "out of memory");
    return false;
}

/* Reads what the table names; the object was checked. */
static bool read_object(struct reading *r, const struct member *members, struct hapax_span object)
{
    struct hapax_span name, value;
    struct hapax__raw_walk walk;

    hapax__raw_begin(&walk, object);
    while (hapax__raw_next(&walk, &name, &value)) {
        const struct member *m = members;

        while (m->name && !hapax__raw_says(name, m->name))
            m++;
        if (!m->name || hapax__raw_is_null(value))
            continue;
        r->name = m->name;
        if (!m->read(r, (uint8_t *)r->out + m->at, value))
            return false;
    }
    return true;
}

/* ---- values -------------------------------------------------------------------------- */

static bool read_string(struct reading *r, void *field, struct hapax_span value)
{
    if (!hapax__raw_is_string(value))
        return refuse(r, "is no string");
    return hapax__raw_text(field, r->arena, value) || no_memory(r);
}

static bool read_cstring(struct reading *r, void *field, struct hapax_span value)
{
    char *copy = hapax__arena_alloc(r->arena, value.len + 1);

    if (!copy)
        return no_memory(r);
    if (!hapax__raw_copy(copy, value.len + 1, value))
        return refuse(r, "is no string, or holds a NUL");
    *(const char **)field = copy;
    return true;
}

/* TEXT: a string, or bytes in base64. */
static bool read_text(struct reading *r, struct hapax_span *out, struct hapax_span value)
{
    struct hapax_span digits;
    uint8_t *bytes;
    size_t len;

    if (hapax__raw_is_string(value))
        return hapax__raw_text(out, r->arena, value) || no_memory(r);
    if (!hapax__raw_is_object(value) || !hapax__raw_member(&digits, value, "base64") ||
        !hapax__raw_is_string(digits))
        return refuse(r, "is neither a string nor {\"base64\":…}");
    if (!hapax__raw_text(&digits, r->arena, digits))
        return no_memory(r);
    bytes = hapax__arena_alloc(r->arena, digits.len + 1);
    if (!bytes)
        return no_memory(r);
    if (!hapax__base64_decode(bytes, &len, digits))
        return refuse(r, "is no base64");
    *out = (struct hapax_span){bytes, len};
    return true;
}

static bool read_given(struct reading *r, void *field, struct hapax_span value)
{
    struct hapax__given *given = field;

    given->is = true;
    return read_text(r, &given->bytes, value);
}

static bool read_parts(struct reading *r, void *field, struct hapax_span value)
{
    struct hapax__parts *parts = field;
    struct hapax_span name, at;
    struct hapax__raw_walk walk;

    if (!hapax__raw_is_array(value))
        return refuse(r, "is no list");
    parts->are = true;
    parts->n = 0;
    hapax__raw_begin(&walk, value);
    while (hapax__raw_next(&walk, &name, &at)) {
        if (parts->n == HAPAX__META_PARTS_MAX)
            return refuse(r, "has over 16 parts");
        if (!read_text(r, &parts->at[parts->n++], at))
            return false;
    }
    return true;
}

/* A string, or a list of strings. */
static bool read_key_header(struct reading *r, void *field, struct hapax_span value)
{
    struct hapax__parts *parts = field;

    if (!hapax__raw_is_string(value))
        return read_parts(r, field, value);
    parts->are = true;
    parts->n = 1;
    return read_text(r, &parts->at[0], value);
}

static bool read_bool(struct reading *r, void *field, struct hapax_span value)
{
    *(bool *)field = hapax__is(value, "true");
    return hapax__is(value, "true") || hapax__is(value, "false") ||
           refuse(r, "is neither true nor false");
}

static bool read_number(struct reading *r, void *field, struct hapax_span value)
{
    int64_t *number = field;

    return (hapax__raw_number(number, value) && *number >= 0 && *number <= UINT32_MAX) ||
           refuse(r, "is no whole number from 0 to 4294967295");
}

static bool read_duration(struct reading *r, void *field, struct hapax_span value)
{
    const char *why = "", *copy = "";

    if (!read_cstring(r, &copy, value))
        return false;
    return (hapax__duration_parse(field, copy, &why) && *(int64_t *)field > 0) ||
           refuse(r, "is no duration above 0, as 30s");
}

static bool read_is_object(struct reading *r, void *field, struct hapax_span value)
{
    if (!hapax__raw_is_object(value))
        return refuse(r, "is no object");
    *(struct hapax_span *)field = value;
    return true;
}

static bool read_nonce(struct reading *r, void *field, struct hapax_span value)
{
    uint8_t *bytes = hapax__arena_alloc(r->arena, NONCE_LEN);
    struct hapax__given *nonce = field;

    if (!bytes)
        return no_memory(r);
    *nonce = (struct hapax__given){true, {bytes, NONCE_LEN}};
    return (hapax__raw_is_string(value) && value.len == 2 * NONCE_LEN + 2 &&
            hapax__unhex(bytes, value.ptr + 1, NONCE_LEN)) ||
           refuse(r, "is not 32 lowercase hex digits");
}

static bool read_as(struct reading *r, void *field, struct hapax_span value)
{
    static const char *const words[] = {"call", "http", "message"};

    for (int i = 0; i < 3; i++)
        if (hapax__raw_says(value, words[i])) {
            *(enum hapax__as *)field = (enum hapax__as)(i + 1);
            return true;
        }
    return refuse(r, "is not call, http or message");
}

static bool read_class(struct reading *r, void *field, struct hapax_span value)
{
    static const char *const words[] = {"final", "not_run", "failed", "unknown"};

    _Static_assert(HAPAX_CLASS_FINAL == 1 && HAPAX_CLASS_UNKNOWN == 4, "the words are in order");
    for (int i = 0; i < 4; i++)
        if (hapax__raw_says(value, words[i])) {
            *(enum hapax_class *)field = (enum hapax_class)(i + 1);
            return true;
        }
    return refuse(r, "is not final, not_run, failed or unknown");
}

/* ---- headers ------------------------------------------------------------------------- */

/* A list of pairs. */
static bool read_lines(struct reading *r, struct hapax__lines *lines, struct hapax_span value)
{
    struct hapax_span name, pair, at;
    struct hapax__raw_walk walk, both;

    if (!hapax__raw_is_array(value))
        return refuse(r, "is no list");
    lines->n = 0;
    hapax__raw_begin(&walk, value);
    while (hapax__raw_next(&walk, &name, &pair)) {
        struct hapax__line *line = &lines->at[lines->n];

        if (lines->n == HAPAX__LINES_MAX)
            return refuse(r, "has over 256 headers");
        hapax__raw_begin(&both, hapax__raw_is_array(pair) ? pair : (struct hapax_span){NULL, 0});
        if (!hapax__raw_next(&both, &name, &at))
            return refuse(r, "has a header that is no pair");
        if (!read_text(r, &line->name, at))
            return false;
        if (!hapax__raw_next(&both, &name, &at))
            return refuse(r, "has a header that is no pair");
        if (!read_text(r, &line->value, at))
            return false;
        if (hapax__raw_next(&both, &name, &at))
            return refuse(r, "has a header that is no pair");
        lines->n++;
    }
    return true;
}

static bool read_request_headers(struct reading *r, void *field, struct hapax_span value)
{
    struct hapax__lines *lines = hapax__arena_alloc(r->arena, sizeof(*lines));

    if (!lines)
        return no_memory(r);
    *(struct hapax__lines **)field = lines;
    return read_lines(r, lines, value);
}

/* As the lines of an outcome. Of a response without those that are never kept. */
static bool read_headers(struct reading *r, void *field, struct hapax_span value)
{
    struct hapax__lines *lines = hapax__arena_alloc(r->arena, sizeof(*lines));
    size_t size = 1;
    uint8_t *out, *at;

    if (!lines)
        return no_memory(r);
    if (!read_lines(r, lines, value))
        return false;
    for (size_t i = 0; i < lines->n; i++)
        size += lines->at[i].name.len + lines->at[i].value.len + 4;
    out = at = hapax__arena_alloc(r->arena, size);
    if (!out)
        return no_memory(r);
    for (size_t i = 0; i < lines->n; i++) {
        const struct hapax__line *line = &lines->at[i];

        if (!hapax__line_is_whole(line->name, line->value))
            return refuse(r, "has a name or a value that cannot stand in a line");
        if (r->http && !hapax__line_is_kept(line->name))
            continue;
        at = (uint8_t *)mempcpy(at, line->name.ptr, line->name.len);
        at = (uint8_t *)mempcpy(at, ": ", 2);
        if (line->value.len > 0)
            at = (uint8_t *)mempcpy(at, line->value.ptr, line->value.len);
        at = (uint8_t *)mempcpy(at, "\r\n", 2);
    }
    *(struct hapax_span *)field = (struct hapax_span){out, (size_t)(at - out)};
    if ((size_t)(at - out) > HAPAX_HEADERS_MAX)
        return refuse(r, "has over 65536 bytes as lines");
    return true;
}

/* ---- objects within objects ---------------------------------------------------------- */

#define FIELD(type, field) offsetof(struct type, field)

static bool read_inner(struct reading *r, const struct member *members, void *out,
                       struct hapax_span value)
{
    void *outer = r->out;
    bool good;

    if (!hapax__raw_is_object(value))
        return refuse(r, "is no object");
    r->out = out;
    good = read_object(r, members, value);
    r->out = outer;
    return good;
}

static bool read_request(struct reading *r, void *field, struct hapax_span value)
{
    static const struct member members[] = {
        {"method", read_given, FIELD(hapax__meta_begin, method)},
        {"host", read_given, FIELD(hapax__meta_begin, host)},
        {"uri", read_given, FIELD(hapax__meta_begin, uri)},
        {"headers", read_request_headers, FIELD(hapax__meta_begin, headers)},
        {NULL, NULL, 0},
    };

    return read_inner(r, members, field, value);
}

static bool read_unknown(struct reading *r, void *field, struct hapax_span value)
{
    *(bool *)field = hapax__raw_says(value, "dead");
    return *(bool *)field || hapax__raw_says(value, "park") || refuse(r, "is not park or dead");
}

static bool read_again(struct reading *r, void *field, struct hapax_span value)
{
    static const struct member members[] = {
        {"wait", read_number, FIELD(hapax__meta_message, wait)},
        {"waits", read_number, FIELD(hapax__meta_message, waits)},
        {NULL, NULL, 0},
    };

    return read_inner(r, members, field, value);
}

static bool read_message(struct reading *r, void *field, struct hapax_span value)
{
    static const struct member members[] = {
        {"attempts", read_number, FIELD(hapax__meta_message, attempts)},
        {"retry_min", read_duration, FIELD(hapax__meta_message, retry_min_ms)},
        {"retry_max", read_duration, FIELD(hapax__meta_message, retry_max_ms)},
        {"unknown", read_unknown, FIELD(hapax__meta_message, dead)},
        {"again", read_again, 0},
        {NULL, NULL, 0},
    };

    return read_inner(r, members, field, value);
}

/* ---- frames -------------------------------------------------------------------------- */

static enum hapax_error read_meta(struct reading *r, const struct member *members,
                                  struct hapax_span meta)
{
    struct hapax_span object = {NULL, 0};

    if (meta.len == 0)
        return HAPAX_ERR_NONE;
    if (!hapax__is_utf8(meta) || !hapax__raw_check(&object, meta) || !hapax__raw_is_object(object))
        return hapax__fail(r->text, HAPAX_ERR_INVALID, "the members are no JSON object in UTF-8");
    (void)read_object(r, members, object);
    return r->error;
}

enum hapax_error hapax__meta_begin_read(struct hapax__meta_begin *out, struct hapax_arena *arena,
                                        struct hapax_span meta, char text[HAPAX_TEXT_MAX])
{
    static const struct member members[] = {
        {"scope", read_string, FIELD(hapax__meta_begin, scope)},
        {"key", read_given, FIELD(hapax__meta_begin, key)},
        {"key_header", read_key_header, FIELD(hapax__meta_begin, key_headers)},
        {"owner", read_given, FIELD(hapax__meta_begin, owner)},
        {"caller", read_parts, FIELD(hapax__meta_begin, caller)},
        {"fingerprint", read_parts, FIELD(hapax__meta_begin, fingerprint)},
        {"body", read_cstring, FIELD(hapax__meta_begin, body)},
        {"what", read_string, FIELD(hapax__meta_begin, what)},
        {"policy", read_is_object, FIELD(hapax__meta_begin, policy)},
        {"reconciles", read_bool, FIELD(hapax__meta_begin, reconciles)},
        {"nonce", read_nonce, FIELD(hapax__meta_begin, nonce)},
        {"ticket", read_string, FIELD(hapax__meta_begin, ticket)},
        {"step", read_string, FIELD(hapax__meta_begin, step)},
        {"in", read_number, FIELD(hapax__meta_begin, in)},
        {"traceparent", read_string, FIELD(hapax__meta_begin, trace)},
        {"as", read_as, FIELD(hapax__meta_begin, as)},
        {"request", read_request, 0},
        {"message", read_message, FIELD(hapax__meta_begin, message)},
        {NULL, NULL, 0},
    };
    struct reading r = {.out = out, .arena = arena, .text = text};

    memset(out, 0, sizeof(*out));
    out->as = HAPAX__AS_CALL;
    return read_meta(&r, members, meta);
}

enum hapax_error hapax__meta_end_read(struct hapax__meta_end *out, struct hapax_arena *arena,
                                      struct hapax_span meta, bool http, char text[HAPAX_TEXT_MAX])
{
    static const struct member members[] = {
        {"class", read_class, FIELD(hapax__meta_end, cls)},
        {"status", read_number, FIELD(hapax__meta_end, status)},
        {"headers", read_headers, FIELD(hapax__meta_end, headers)},
        {"body_kept", read_bool, FIELD(hapax__meta_end, body_kept)},
        {"refuse", read_given, FIELD(hapax__meta_end, refuse)},
        {NULL, NULL, 0},
    };
    struct reading r = {.out = out, .arena = arena, .http = http, .text = text};
    enum hapax_error error;

    memset(out, 0, sizeof(*out));
    out->status = -1;
    out->body_kept = true;
    error = read_meta(&r, members, meta);
    if (error != HAPAX_ERR_NONE)
        return error;
    if (out->status > 999)
        return hapax__fail(text, HAPAX_ERR_INVALID, "member \"status\" is not 0 to 999");
    if (!out->cls && out->status < 0 && !out->refuse.is)
        return hapax__fail(text, HAPAX_ERR_INVALID, "member \"class\" is missing");
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__meta_hello_read(int64_t *version, struct hapax_arena *arena,
                                        struct hapax_span meta, char text[HAPAX_TEXT_MAX])
{
    static const struct member members[] = {{"hapax", read_number, 0}, {NULL, NULL, 0}};
    struct reading r = {.out = version, .arena = arena, .text = text};
    enum hapax_error error;

    *version = 0;
    error = read_meta(&r, members, meta);
    if (error == HAPAX_ERR_NONE && *version < 1)
        return hapax__fail(text, HAPAX_ERR_INVALID, "member \"hapax\", the version, is missing");
    return error;
}

/* ---- policies ------------------------------------------------------------------------ */

static enum hapax_error set_policy(struct hapax_policy *policy, struct hapax_span name,
                                   struct hapax_span value, char text[HAPAX_TEXT_MAX])
{
    char names[32], words[64];

    if (!hapax__raw_copy(names, sizeof(names), name))
        return hapax__fail(text, HAPAX_ERR_INVALID, "no policy has so long a name");
    if (hapax__is(value, "true") || hapax__is(value, "false"))
        value = hapax_str(hapax__is(value, "true") ? "\"on\"" : "\"off\"");
    if (!hapax__raw_is_string(value) && value.len < sizeof(words)) {
        memcpy(words, value.ptr, value.len);
        words[value.len] = '\0';
    } else if (!hapax__raw_copy(words, sizeof(words), value)) {
        return hapax__fail(text, HAPAX_ERR_INVALID, "policy \"%s\" has no such value", names);
    }
    return hapax_policy_set(policy, names, words, text) == HAPAX_ERR_NONE ? HAPAX_ERR_NONE
                                                                          : HAPAX_ERR_INVALID;
}

enum hapax_error hapax__meta_policy_set(struct hapax_policy *policy, struct hapax_span object,
                                        char text[HAPAX_TEXT_MAX])
{
    struct hapax_span name, value;
    struct hapax__raw_walk walk;
    enum hapax_error error = HAPAX_ERR_NONE;

    /* A profile sets several. What stands beside it differs from it, wherever it stands. */
    if (hapax__raw_member(&value, object, "profile") && !hapax__raw_is_null(value))
        error = set_policy(policy, hapax_str("\"profile\""), value, text);
    hapax__raw_begin(&walk, object);
    while (error == HAPAX_ERR_NONE && hapax__raw_next(&walk, &name, &value))
        if (!hapax__raw_says(name, "profile") && !hapax__raw_is_null(value))
            error = set_policy(policy, name, value, text);
    return error;
}
