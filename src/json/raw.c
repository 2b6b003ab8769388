/* SPDX-License-Identifier: Apache-2.0
 *
 * The check, and the walks over what passed it.
 *
 * What it keeps: nothing is copied but what is asked for by name, so that an event of six megabytes costs one look at each
 * byte. Rejected: yajl, which src/json uses. It tells of values, not of where they stand; and a document that is
 * written anew is another one for whoever signs or hashes it.
 */
#include "raw.h"

#include <assert.h>
#include <string.h>

/* ---- the check ------------------------------------------------------------------------- */

struct check {
    const uint8_t *at, *end;
};

static void skip_space(struct check *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

static bool take(struct check *c, uint8_t byte)
{
    if (c->at == c->end || *c->at != byte)
        return false;
    c->at++;
    return true;
}

static int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

static bool check_escape(struct check *c)
{
    if (c->at == c->end)
        return false;
    if (*c->at != 'u')
        return *c->at != '\0' && strchr("\"\\/bfnrt", *c->at++) != NULL;
    if (c->end - c->at < 5)
        return false;
    for (int i = 1; i <= 4; i++)
        if (hex_digit(c->at[i]) < 0)
            return false;
    c->at += 5;
    return true;
}

static bool check_string(struct check *c)
{
    if (!take(c, '"'))
        return false;
    while (c->at < c->end) {
        uint8_t byte = *c->at++;

        if (byte == '"')
            return true;
        if (byte < 0x20 || (byte == '\\' && !check_escape(c)))
            return false;
    }
    return false;
}

static bool check_digits(struct check *c)
{
    const uint8_t *from = c->at;

    while (c->at < c->end && *c->at >= '0' && *c->at <= '9')
        c->at++;
    return c->at > from;
}

static bool check_number(struct check *c)
{
    (void)take(c, '-');
    if (!take(c, '0') && !check_digits(c))
        return false;
    if (take(c, '.') && !check_digits(c))
        return false;
    if (!take(c, 'e') && !take(c, 'E'))
        return true;
    if (!take(c, '+'))
        (void)take(c, '-');
    return check_digits(c);
}

static bool check_word(struct check *c, const char *word)
{
    size_t len = strlen(word);

    if ((size_t)(c->end - c->at) < len || memcmp(c->at, word, len) != 0)
        return false;
    c->at += len;
    return true;
}

static bool check_scalar(struct check *c)
{
    switch (c->at == c->end ? 0 : *c->at) {
    case '"':
        return check_string(c);
    case 't':
        return check_word(c, "true");
    case 'f':
        return check_word(c, "false");
    case 'n':
        return check_word(c, "null");
    default:
        return check_number(c);
    }
}

static bool check_name(struct check *c)
{
    skip_space(c);
    if (!check_string(c))
        return false;
    skip_space(c);
    return take(c, ':');
}

/* After a value: closes what ends here. *more: another value is to come. */
static bool check_after(struct check *c, const uint8_t *closers, size_t *depth, bool *more)
{
    for (*more = false; *depth > 0; --*depth) {
        skip_space(c);
        if (take(c, ',')) {
            *more = true;
            return closers[*depth - 1] == ']' || check_name(c);
        }
        if (!take(c, closers[*depth - 1]))
            return false;
    }
    return true;
}

bool hapax__raw_check(struct hapax_span *value, struct hapax_span text)
{
    struct check c = {text.ptr, text.ptr + text.len};
    uint8_t closers[HAPAX__RAW_DEPTH_MAX];
    const uint8_t *from;
    size_t depth = 0;
    bool more = true;

    if (text.len == 0)
        return false;
    skip_space(&c);
    from = c.at;
    while (more) {
        skip_space(&c);
        if (c.at < c.end && (*c.at == '{' || *c.at == '[')) {
            uint8_t closer = *c.at++ == '{' ? '}' : ']';

            skip_space(&c);
            if (depth == HAPAX__RAW_DEPTH_MAX)
                return false;
            if (!take(&c, closer)) {
                closers[depth++] = closer;
                if (closer == '}' && !check_name(&c))
                    return false;
                continue;
            }
        } else if (!check_scalar(&c)) {
            return false;
        }
        if (!check_after(&c, closers, &depth, &more))
            return false;
    }
    *value = (struct hapax_span){from, (size_t)(c.at - from)};
    skip_space(&c);
    return c.at == c.end;
}

/* ---- walks ----------------------------------------------------------------------------- */

static bool begins(struct hapax_span value, uint8_t with)
{
    return value.len > 0 && value.ptr[0] == with;
}

bool hapax__raw_is_object(struct hapax_span value)
{
    return begins(value, '{');
}

bool hapax__raw_is_array(struct hapax_span value)
{
    return begins(value, '[');
}

bool hapax__raw_is_string(struct hapax_span value)
{
    return begins(value, '"');
}

bool hapax__raw_is_null(struct hapax_span value)
{
    return value.len == 0 || begins(value, 'n');
}

static const uint8_t *past_space(const uint8_t *at)
{
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')
        at++;
    return at;
}

static const uint8_t *past_string(const uint8_t *at)
{
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

static const uint8_t *past_value(const uint8_t *at)
{
    size_t depth = 0;

    do {
        if (*at == '"') {
            at = past_string(at);
            continue;
        }
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else if (depth == 0) {
            while (!strchr(",]} \t\r\n", *at) || *at == '\0')
                at++;
            break;
        }
        at++;
    } while (depth > 0);
    return at;
}

void hapax__raw_begin(struct hapax__raw_walk *walk, struct hapax_span container)
{
    *walk = (struct hapax__raw_walk){NULL, NULL, hapax__raw_is_object(container)};
    if (!walk->named && !hapax__raw_is_array(container))
        return;
    walk->at = past_space(container.ptr + 1);
    walk->end = container.ptr + container.len - 1;
}

bool hapax__raw_next(struct hapax__raw_walk *walk, struct hapax_span *name,
                     struct hapax_span *value)
{
    const uint8_t *at = walk->at;

    *name = *value = (struct hapax_span){NULL, 0};
    if (at == walk->end)
        return false;
    if (walk->named) {
        name->ptr = at;
        at = past_string(at);
        name->len = (size_t)(at - name->ptr);
        at = past_space(past_space(at) + 1);
    }
    value->ptr = at;
    at = past_value(at);
    value->len = (size_t)(at - value->ptr);
    at = past_space(at);
    if (at < walk->end)
        at = past_space(at + 1);
    walk->at = at;
    return true;
}

static bool member(struct hapax_span *out, struct hapax_span object, const char *name, size_t len)
{
    struct hapax_span found = {NULL, 0}, at_name, value;
    struct hapax__raw_walk walk;
    char text[64];

    assert(len < sizeof(text));
    memcpy(text, name, len);
    text[len] = '\0';
    if (hapax__raw_is_object(object)) {
        hapax__raw_begin(&walk, object);
        while (hapax__raw_next(&walk, &at_name, &value))
            if (hapax__raw_says(at_name, text))
                found = value;
    }
    *out = found;
    return found.len > 0;
}

bool hapax__raw_member(struct hapax_span *out, struct hapax_span object, const char *path)
{
    for (;;) {
        size_t len = strcspn(path, ".");

        if (!member(&object, object, path, len) || path[len] == '\0')
            break;
        path += len + 1;
    }
    *out = object;
    return object.len > 0;
}

/* ---- strings --------------------------------------------------------------------------- */

static uint32_t unit_at(const uint8_t *at)
{
    uint32_t unit = 0;

    for (int i = 0; i < 4; i++)
        unit = unit << 4 | (uint32_t)hex_digit(at[i]);
    return unit;
}

static size_t put_utf8(uint8_t *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

/* *at is behind "\u". */
static uint32_t take_unit(const uint8_t **at)
{
    uint32_t high = unit_at(*at), low;

    *at += 4;
    if (high < 0xd800 || high > 0xdfff)
        return high;
    if (high > 0xdbff || (*at)[0] != '\\' || (*at)[1] != 'u')
        return 0xfffd;
    low = unit_at(*at + 2);
    if (low < 0xdc00 || low > 0xdfff)
        return 0xfffd;
    *at += 6;
    return 0x10000 + ((high - 0xd800) << 10 | (low - 0xdc00));
}

size_t hapax__raw_unescape(uint8_t *out, struct hapax_span string)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const uint8_t *at = string.ptr + 1, *end = string.ptr + string.len - 1;
    uint8_t *begin = out;

    assert(hapax__raw_is_string(string) && string.len >= 2);
    while (at < end) {
        const char *short_form;

        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        at++;
        if (*at == 'u') {
            at++;
            out += put_utf8(out, take_unit(&at));
            continue;
        }
        short_form = strchr(from, *at);
        *out++ = short_form ? (uint8_t)to[short_form - from] : *at;
        at++;
    }
    return (size_t)(out - begin);
}

bool hapax__raw_says(struct hapax_span string, const char *text)
{
    size_t len = strlen(text);
    uint8_t bytes[6 * 64 + 2];

    if (!hapax__raw_is_string(string))
        return false;
    if (!memchr(string.ptr, '\\', string.len))
        return string.len == len + 2 && memcmp(string.ptr + 1, text, len) == 0;
    return string.len <= sizeof(bytes) && hapax__raw_unescape(bytes, string) == len &&
           memcmp(bytes, text, len) == 0;
}

bool hapax__raw_number(int64_t *out, struct hapax_span value)
{
    bool negative = begins(value, '-');
    int64_t number = 0;

    if (value.len == (size_t)negative || value.len > 18)
        return false;
    for (size_t i = negative; i < value.len; i++) {
        if (value.ptr[i] < '0' || value.ptr[i] > '9')
            return false;
        number = number * 10 + (value.ptr[i] - '0');
    }
    *out = negative ? -number : number;
    return true;
}

void hapax__raw_put_string(FILE *out, struct hapax_span bytes)
{
    size_t from = 0;

    (void)fputc('"', out);
    for (size_t i = 0; i < bytes.len; i++) {
        uint8_t byte = bytes.ptr[i];

        if (byte >= 0x20 && byte != '"' && byte != '\\')
            continue;
        (void)fwrite(bytes.ptr + from, 1, i - from, out);
        from = i + 1;
        if (byte < 0x20)
            (void)fprintf(out, "\\u%04x", byte);
        else
            (void)fprintf(out, "\\%c", byte);
    }
    if (from < bytes.len)
        (void)fwrite(bytes.ptr + from, 1, bytes.len - from, out);
    (void)fputc('"', out);
}

/* ---- bytes ----------------------------------------------------------------------------- */

/* How many bytes follow the first one of a character; -1: it is no first one. *least: what the character is at least. */
static int following(uint8_t first, uint32_t *least)
{
    *least = first < 0x80 ? 0 : first < 0xe0 ? 0x80 : first < 0xf0 ? 0x800 : 0x10000;
    if (first < 0x80)
        return 0;
    if (first < 0xc2 || first > 0xf4)
        return -1;
    return first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
}

bool hapax__is_utf8(struct hapax_span bytes)
{
    size_t i = 0;

    while (i < bytes.len) {
        uint32_t least, c;
        int n = following(bytes.ptr[i], &least);

        if (n < 0 || bytes.len - i <= (size_t)n)
            return false;
        c = n == 0 ? bytes.ptr[i] : bytes.ptr[i] & (0x3fu >> n);
        for (int k = 1; k <= n; k++) {
            if ((bytes.ptr[i + (size_t)k] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (bytes.ptr[i + (size_t)k] & 0x3f);
        }
        if (c < least || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
            return false;
        i += (size_t)n + 1;
    }
    return true;
}

static int base64_digit(uint8_t c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool hapax__base64_decode(uint8_t *out, size_t *len, struct hapax_span in)
{
    uint32_t bits = 0;
    size_t n = 0;
    unsigned have = 0;

    while (in.len > 0 && in.ptr[in.len - 1] == '=')
        in.len--;
    if (in.len % 4 == 1)
        return false;
    for (size_t i = 0; i < in.len; i++) {
        int digit = base64_digit(in.ptr[i]);

        if (digit < 0)
            return false;
        bits = bits << 6 | (uint32_t)digit;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[n++] = (uint8_t)(bits >> have);
        }
    }
    *len = n;
    return true;
}

void hapax__base64_put(FILE *out, struct hapax_span bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char quad[4];

    for (size_t i = 0; i < bytes.len; i += 3) {
        size_t n = bytes.len - i < 3 ? bytes.len - i : 3;
        uint32_t bits = (uint32_t)bytes.ptr[i] << 16;

        bits |= n > 1 ? (uint32_t)bytes.ptr[i + 1] << 8 : 0;
        bits |= n > 2 ? bytes.ptr[i + 2] : 0;
        quad[0] = digits[bits >> 18];
        quad[1] = digits[bits >> 12 & 63];
        quad[2] = n > 1 ? digits[bits >> 6 & 63] : '=';
        quad[3] = n > 2 ? digits[bits & 63] : '=';
        (void)fwrite(quad, 1, 4, out);
    }
}
