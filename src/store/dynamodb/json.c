/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON of DynamoDB's protocol: written piece by piece, and read by walking through the text, without a tree. A reply
 * is mostly one long base64 string, which is passed over at the speed of memchr() and copied once.
 *
 * The invariant: a reader never leaves its text, and what is not JSON where it is looked at is never taken for a value.
 * Rejected: a tree of the reply, which costs several times its size for the two or three attributes we ask for.
 */
#include "dynamodb.h"

#include <assert.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64u

/* ---- writing --------------------------------------------------------------------------- */

static char *grow(struct hapax__ddb_out *out, size_t more)
{
    size_t cap = out->cap ? out->cap : 1024;
    char *bytes;

    if (out->failed)
        return NULL;
    while (cap - out->len < more)
        cap *= 2;
    if (cap > out->cap) {
        bytes = realloc(out->bytes, cap);
        if (!bytes) {
            out->failed = true;
            return NULL;
        }
        out->bytes = bytes;
        out->cap = cap;
    }
    return out->bytes + out->len;
}

void hapax__ddb_put_text(struct hapax__ddb_out *out, const char *text)
{
    size_t len = strlen(text);
    char *at = grow(out, len);

    if (!at)
        return;
    memcpy(at, text, len);
    out->len += len;
}

void hapax__ddb_put_number(struct hapax__ddb_out *out, int64_t value)
{
    char digits[24];

    snprintf(digits, sizeof(digits), "%" PRId64, value);
    hapax__ddb_put_text(out, digits);
}

void hapax__ddb_put_base64(struct hapax__ddb_out *out, struct hapax_span bytes)
{
    char *at;

    assert(bytes.len <= INT32_MAX / 2);
    if (bytes.len == 0)
        return;
    at = grow(out, (bytes.len + 2) / 3 * 4 + 1); /* it writes a NUL as well */
    if (at)
        out->len += (size_t)EVP_EncodeBlock((unsigned char *)at, bytes.ptr, (int)bytes.len);
}

static void put_name(struct hapax__ddb_out *out, const char *name)
{
    bool first = out->len > 0 && out->bytes[out->len - 1] == '{';

    hapax__ddb_put_text(out, first ? "\"" : ",\"");
    hapax__ddb_put_text(out, name);
}

void hapax__ddb_put_binary(struct hapax__ddb_out *out, const char *name, struct hapax_span bytes)
{
    put_name(out, name);
    hapax__ddb_put_text(out, "\":{\"B\":\"");
    hapax__ddb_put_base64(out, bytes);
    hapax__ddb_put_text(out, "\"}");
}

void hapax__ddb_put_numeric(struct hapax__ddb_out *out, const char *name, int64_t value)
{
    put_name(out, name);
    hapax__ddb_put_text(out, "\":{\"N\":\"");
    hapax__ddb_put_number(out, value);
    hapax__ddb_put_text(out, "\"}");
}

/* ---- walking --------------------------------------------------------------------------- */

static void skip_space(struct hapax__ddb_walk *walk)
{
    while (walk->at < walk->end &&
           (*walk->at == ' ' || *walk->at == '\t' || *walk->at == '\n' || *walk->at == '\r'))
        walk->at++;
}

static int look(struct hapax__ddb_walk *walk)
{
    skip_space(walk);
    return walk->at < walk->end ? *walk->at : -1;
}

/* Passes over a string, from its first quote to behind its last. */
static bool skip_string(struct hapax__ddb_walk *walk)
{
    const uint8_t *at = walk->at + 1;

    for (;;) {
        const uint8_t *quote = at < walk->end ? memchr(at, '"', (size_t)(walk->end - at)) : NULL;
        const uint8_t *slash = quote ? memchr(at, '\\', (size_t)(quote - at)) : NULL;

        if (!quote)
            return false;
        if (!slash) {
            walk->at = quote + 1;
            return true;
        }
        if (walk->end - slash < 2)
            return false;
        at = slash + 2;
    }
}

/* Passes over a value, whatever it is: brackets must fit one another. */
static bool skip_value(struct hapax__ddb_walk *walk)
{
    uint8_t open[DEPTH_MAX];
    size_t depth = 0;

    do {
        int c = look(walk);

        if (c == '"') {
            if (!skip_string(walk))
                return false;
        } else if (c == '{' || c == '[') {
            if (depth == DEPTH_MAX)
                return false;
            open[depth++] = c == '{' ? '}' : ']';
            walk->at++;
        } else if (c == '}' || c == ']') {
            if (depth == 0 || open[--depth] != c)
                return false;
            walk->at++;
        } else if (c == ',' || c == ':') {
            if (depth == 0)
                return false;
            walk->at++;
        } else if (c == '-' || c == '+' || c == '.' || (c >= '0' && c <= '9') ||
                   (c >= 'a' && c <= 'z') || c == 'E') {
            while (walk->at < walk->end &&
                   (*walk->at == '-' || *walk->at == '+' || *walk->at == '.' || *walk->at == 'E' ||
                    (*walk->at >= '0' && *walk->at <= '9') ||
                    (*walk->at >= 'a' && *walk->at <= 'z')))
                walk->at++;
        } else {
            return false;
        }
    } while (depth > 0);
    return true;
}

bool hapax__ddb_walk(struct hapax__ddb_walk *walk, struct hapax_span value)
{
    int c;

    *walk = (struct hapax__ddb_walk){
        .at = value.ptr, .end = value.ptr ? value.ptr + value.len : value.ptr, .first = true};
    c = look(walk);
    walk->object = c == '{';
    walk->bad = c != '{' && c != '[';
    if (!walk->bad)
        walk->at++;
    return !walk->bad;
}

static bool give_up(struct hapax__ddb_walk *walk)
{
    walk->bad = true;
    return false;
}

bool hapax__ddb_next(struct hapax__ddb_walk *walk, struct hapax_span *name,
                     struct hapax_span *value)
{
    int c = walk->bad ? -1 : look(walk);

    *name = (struct hapax_span){NULL, 0};
    if (c == (walk->object ? '}' : ']'))
        return false; /* and stays there */
    if (c < 0 || (!walk->first && c != ','))
        return give_up(walk);
    if (!walk->first) {
        walk->at++;
        c = look(walk);
    }
    walk->first = false;
    if (walk->object) {
        const uint8_t *from = walk->at + 1;

        if (c != '"' || !skip_string(walk))
            return give_up(walk);
        *name = (struct hapax_span){from, (size_t)(walk->at - 1 - from)};
        if (look(walk) != ':')
            return give_up(walk);
        walk->at++;
        (void)look(walk);
    }
    value->ptr = walk->at;
    if (!skip_value(walk))
        return give_up(walk);
    value->len = (size_t)(walk->at - value->ptr);
    return true;
}

bool hapax__ddb_is_reply(struct hapax_span reply)
{
    struct hapax__ddb_walk walk;

    if (!hapax__ddb_walk(&walk, reply) || !walk.object)
        return false;
    walk.at = reply.ptr;
    (void)look(&walk);
    return skip_value(&walk) && look(&walk) < 0;
}

bool hapax__ddb_find(struct hapax_span object, const char *path, struct hapax_span *value)
{
    struct hapax__ddb_walk walk;
    struct hapax_span name;
    size_t len = strcspn(path, "/");

    if (!hapax__ddb_walk(&walk, object) || !walk.object)
        return false;
    while (hapax__ddb_next(&walk, &name, value))
        if (name.len == len && memcmp(name.ptr, path, len) == 0)
            return path[len] == '\0' || hapax__ddb_find(*value, path + len + 1, value);
    return false;
}

/* ---- values ---------------------------------------------------------------------------- */

/* What stands between the quotes, raw. */
static bool quoted(struct hapax_span *out, struct hapax_span value)
{
    if (value.len < 2 || value.ptr[0] != '"')
        return false;
    *out = (struct hapax_span){value.ptr + 1, value.len - 2};
    return true;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One character of a string, and how many bytes of it that was; what is not ASCII is '?'. 0: bad. */
static size_t unescape(char *out, const uint8_t *at, size_t left)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;
    int value = 0;

    if (at[0] != '\\') {
        *out = (char)at[0];
        return 1;
    }
    if (left < 2)
        return 0;
    if (at[1] == 'u') {
        for (size_t i = 2; i < 6; i++) {
            int digit = i < left ? hex_digit(at[i]) : -1;

            if (digit < 0)
                return 0;
            value = value * 16 + digit;
        }
        *out = value > 0 && value < 128 ? (char)value : '?';
        return 6;
    }
    found = at[1] != '\0' ? strchr(from, at[1]) : NULL;
    if (!found)
        return 0;
    *out = to[found - from];
    return 2;
}

bool hapax__ddb_is(struct hapax_span value, const char *string)
{
    struct hapax_span raw;

    return quoted(&raw, value) && raw.len == strlen(string) &&
           memcmp(raw.ptr, string, raw.len) == 0;
}

bool hapax__ddb_string(char *out, size_t size, struct hapax_span value)
{
    struct hapax_span raw;
    size_t n = 0;

    assert(size > 0);
    out[0] = '\0';
    if (!quoted(&raw, value))
        return false;
    for (size_t i = 0, step; i < raw.len && n + 1 < size; i += step) {
        step = unescape(&out[n], raw.ptr + i, raw.len - i);
        if (step == 0)
            return false;
        n++;
    }
    out[n] = '\0';
    return true;
}

bool hapax__ddb_integer(int64_t *out, struct hapax_span value)
{
    struct hapax_span digits = value;
    bool minus;
    int64_t number = 0;

    (void)quoted(&digits, value);
    minus = digits.len > 0 && digits.ptr[0] == '-';
    if (digits.len == (size_t)minus || digits.len > 18)
        return false;
    for (size_t i = minus; i < digits.len; i++) {
        if (digits.ptr[i] < '0' || digits.ptr[i] > '9')
            return false;
        number = number * 10 + (digits.ptr[i] - '0');
    }
    *out = minus ? -number : number;
    return true;
}

/* Servers may write '/' as "\/" and '+' as "\u002b". */
static enum hapax__ddb_seen plain(struct hapax_span *raw, struct hapax_arena *arena)
{
    char *copy;
    size_t n = 0;

    if (raw->len == 0 || !memchr(raw->ptr, '\\', raw->len))
        return HAPAX__DDB_FOUND;
    copy = hapax__arena_alloc(arena, raw->len);
    if (!copy)
        return HAPAX__DDB_NOMEM;
    for (size_t i = 0, step; i < raw->len; i += step, n++) {
        step = unescape(&copy[n], raw->ptr + i, raw->len - i);
        if (step == 0)
            return HAPAX__DDB_DAMAGED;
    }
    *raw = (struct hapax_span){(const uint8_t *)copy, n};
    return HAPAX__DDB_FOUND;
}

enum hapax__ddb_seen hapax__ddb_bytes(struct hapax_span *out, struct hapax_arena *arena,
                                      struct hapax_span value)
{
    enum hapax__ddb_seen seen;
    struct hapax_span raw;
    uint8_t *bytes;
    size_t pads = 0;
    int len;

    *out = (struct hapax_span){NULL, 0};
    if (!quoted(&raw, value) || raw.len > HAPAX__AWS_REPLY_MAX)
        return HAPAX__DDB_DAMAGED;
    seen = plain(&raw, arena);
    if (seen != HAPAX__DDB_FOUND || raw.len == 0)
        return seen;
    if (raw.len % 4 != 0)
        return HAPAX__DDB_DAMAGED;
    while (pads < 2 && raw.ptr[raw.len - 1 - pads] == '=')
        pads++;
    bytes = hapax__arena_alloc(arena, raw.len / 4 * 3);
    if (!bytes)
        return HAPAX__DDB_NOMEM;
    len = EVP_DecodeBlock(bytes, raw.ptr, (int)raw.len);
    if (len < 0 || (size_t)len != raw.len / 4 * 3)
        return HAPAX__DDB_DAMAGED;
    *out = (struct hapax_span){bytes, (size_t)len - pads};
    return HAPAX__DDB_FOUND;
}
