/* SPDX-License-Identifier: Apache-2.0
 *
 * The check, and the walks over a text that passed it.
 *
 * Nothing is copied but what is asked for, so an event of six megabytes costs one look at each
 * byte. Rejected: a parser that gives values, and not where they stand. A document that is written
 * anew is another one for whoever signs or hashes it.
 */
#include "raw.h"

#include "base/utf8.h"

#include <assert.h>
#include <string.h>

#define REPLACEMENT 0xfffdu

/* ---- strings and numbers ------------------------------------------------------------- */

static const uint8_t *past_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

/* The first byte that is a quote, a backslash or a control character; `end`: there is none. */
static const uint8_t *past_plain(const uint8_t *at, const uint8_t *end)
{
    static const uint64_t ones = UINT64_C(0x0101010101010101);

    for (uint64_t eight; end - at >= 8; at += 8) {
        uint64_t found;

        memcpy(&eight, at, sizeof(eight));
        found =
            (eight - 0x20 * ones) | ((eight ^ '"' * ones) - ones) | ((eight ^ '\\' * ones) - ones);
        if (found & ~eight & 0x80 * ones)
            break;
    }
    while (at < end && *at >= 0x20 && *at != '"' && *at != '\\')
        at++;
    return at;
}

static int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The end of the escape at `at`; NULL: it is broken. */
static const uint8_t *check_escape(const uint8_t *at, const uint8_t *end)
{
    if (end - at < 2)
        return NULL;
    if (at[1] != 'u')
        return at[1] != '\0' && strchr("\"\\/bfnrt", at[1]) ? at + 2 : NULL;
    if (end - at < 6)
        return NULL;
    for (int i = 2; i < 6; i++)
        if (hex_digit(at[i]) < 0)
            return NULL;
    return at + 6;
}

/* These take a token off a text that may be broken: its end, or NULL. */
static const uint8_t *check_string(const uint8_t *at, const uint8_t *end)
{
    if (at == end || *at != '"')
        return NULL;
    for (at++; at;) {
        at = past_plain(at, end);
        if (at == end || *at < 0x20)
            return NULL;
        if (*at == '"')
            return at + 1;
        at = check_escape(at, end);
    }
    return NULL;
}

static const uint8_t *check_digits(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *from = at;

    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at > from ? at : NULL;
}

static const uint8_t *check_number(const uint8_t *at, const uint8_t *end)
{
    if (at < end && *at == '-')
        at++;
    at = at < end && *at == '0' ? at + 1 : check_digits(at, end);
    if (at && at < end && *at == '.')
        at = check_digits(at + 1, end);
    if (!at || at == end || (*at != 'e' && *at != 'E'))
        return at;
    at++;
    at += at < end && (*at == '+' || *at == '-');
    return check_digits(at, end);
}

static const uint8_t *check_word(const uint8_t *at, const uint8_t *end)
{
    const char *word = *at == 't' ? "true" : *at == 'f' ? "false" : "null";
    size_t len = strlen(word);

    return (size_t)(end - at) >= len && memcmp(at, word, len) == 0 ? at + len : NULL;
}

/* ---- tokens -------------------------------------------------------------------------- */

void hapax__raw_open(struct hapax__raw_reader *reader, struct hapax_span text)
{
    reader->at = text.ptr;
    reader->end = text.len > 0 ? text.ptr + text.len : text.ptr;
    reader->depth = 0;
    reader->next = HAPAX__RAW_VALUE;
}

static enum hapax__raw_token broken(struct hapax__raw_reader *r)
{
    r->next = HAPAX__RAW_BROKEN;
    return HAPAX__RAW_BAD;
}

/* A token from r->at to `end`; NULL: it is broken. */
static enum hapax__raw_token token(struct hapax__raw_reader *r, enum hapax__raw_token token,
                                   const uint8_t *end, struct hapax_span *text)
{
    if (!end)
        return broken(r);
    *text = (struct hapax_span){r->at, (size_t)(end - r->at)};
    r->at = end;
    r->next = HAPAX__RAW_AFTER;
    return token;
}

static enum hapax__raw_token read_name(struct hapax__raw_reader *r, struct hapax_span *text)
{
    if (token(r, HAPAX__RAW_NAME, check_string(r->at, r->end), text) == HAPAX__RAW_BAD)
        return HAPAX__RAW_BAD;
    r->at = past_space(r->at, r->end);
    if (r->at == r->end || *r->at != ':')
        return broken(r);
    r->at++;
    r->next = HAPAX__RAW_VALUE;
    return HAPAX__RAW_NAME;
}

static enum hapax__raw_token read_value(struct hapax__raw_reader *r, struct hapax_span *text)
{
    uint8_t first = r->at < r->end ? *r->at : 0;

    switch (first) {
    case '"':
        return token(r, HAPAX__RAW_STRING, check_string(r->at, r->end), text);
    case 't':
    case 'f':
    case 'n':
        return token(r, HAPAX__RAW_WORD, check_word(r->at, r->end), text);
    case '{':
    case '[':
        if (r->depth == HAPAX__RAW_DEPTH_MAX)
            return broken(r);
        r->closers[r->depth++] = first == '{' ? '}' : ']';
        (void)token(r, HAPAX__RAW_OBJECT, r->at + 1, text);
        r->next = HAPAX__RAW_FIRST;
        return first == '{' ? HAPAX__RAW_OBJECT : HAPAX__RAW_ARRAY;
    default:
        return token(r, HAPAX__RAW_NUMBER, check_number(r->at, r->end), text);
    }
}

enum hapax__raw_token hapax__raw_read(struct hapax__raw_reader *r, struct hapax_span *text)
{
    uint8_t closer = r->depth > 0 ? r->closers[r->depth - 1] : 0;

    r->at = past_space(r->at, r->end);
    if (r->next == HAPAX__RAW_VALUE)
        return read_value(r, text);
    if (r->next == HAPAX__RAW_BROKEN)
        return HAPAX__RAW_BAD;
    if (r->depth == 0)
        return r->at == r->end ? HAPAX__RAW_END : broken(r);
    if (r->at < r->end && *r->at == closer) {
        r->depth--;
        return token(r, closer == '}' ? HAPAX__RAW_OBJECT_END : HAPAX__RAW_ARRAY_END, r->at + 1,
                     text);
    }
    if (r->next == HAPAX__RAW_AFTER) {
        if (r->at == r->end || *r->at != ',')
            return broken(r);
        r->at = past_space(r->at + 1, r->end);
    }
    return closer == '}' ? read_name(r, text) : read_value(r, text);
}

bool hapax__raw_check(struct hapax_span *value, struct hapax_span text)
{
    struct hapax_span at, whole = {NULL, 0};
    struct hapax__raw_reader reader;
    enum hapax__raw_token token;

    hapax__raw_open(&reader, text);
    while ((token = hapax__raw_read(&reader, &at)) != HAPAX__RAW_BAD) {
        if (token == HAPAX__RAW_END) {
            *value = whole;
            return true;
        }
        if (!whole.ptr)
            whole = at;
        whole.len = (size_t)(at.ptr + at.len - whole.ptr);
    }
    return false;
}

/* ---- walks --------------------------------------------------------------------------- */

static const uint8_t *past_string(const uint8_t *at, const uint8_t *end)
{
    for (at = past_plain(at + 1, end); *at != '"'; at = past_plain(at + 2, end))
        ;
    return at + 1;
}

/* The end of the value at `at`. What is between brackets is passed over by strings. */
static const uint8_t *past_value(const uint8_t *at, const uint8_t *end)
{
    size_t depth = 0;

    do {
        if (*at == '"') {
            at = past_string(at, end);
            continue;
        }
        if (*at == '{' || *at == '[') {
            depth++;
        } else if (*at == '}' || *at == ']') {
            depth--;
        } else if (depth == 0) {
            while (at < end && !strchr(",]} \t\r\n", *at))
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
    walk->end = container.ptr + container.len - 1;
    walk->at = past_space(container.ptr + 1, walk->end);
}

bool hapax__raw_next(struct hapax__raw_walk *walk, struct hapax_span *name,
                     struct hapax_span *value)
{
    const uint8_t *at = walk->at, *end = walk->end;

    *name = *value = (struct hapax_span){NULL, 0};
    if (at == end)
        return false;
    if (walk->named) {
        name->ptr = at;
        at = past_string(at, end);
        name->len = (size_t)(at - name->ptr);
        at = past_space(past_space(at, end) + 1, end);
    }
    value->ptr = at;
    at = past_value(at, end);
    value->len = (size_t)(at - value->ptr);
    at = past_space(at, end);
    walk->at = at < end ? past_space(at + 1, end) : end;
    return true;
}

static bool find_member(struct hapax_span *out, struct hapax_span object, const char *name,
                        size_t len)
{
    struct hapax_span at_name, value;
    struct hapax__raw_walk walk;
    char text[64];

    assert(len < sizeof(text));
    memcpy(text, name, len);
    text[len] = '\0';
    *out = (struct hapax_span){NULL, 0};
    hapax__raw_begin(&walk, object);
    while (hapax__raw_next(&walk, &at_name, &value))
        if (hapax__raw_says(at_name, text))
            *out = value;
    return out->len > 0;
}

bool hapax__raw_member(struct hapax_span *out, struct hapax_span object, const char *path)
{
    for (;; path++) {
        size_t len = strcspn(path, ".");
        bool found = find_member(out, object, path, len);

        path += len;
        if (!found || *path == '\0')
            return found;
        object = *out;
    }
}

/* ---- strings ------------------------------------------------------------------------- */

static uint32_t unit_at(const uint8_t *at)
{
    uint32_t unit = 0;

    for (int i = 0; i < 4; i++)
        unit = unit << 4 | (uint32_t)hex_digit(at[i]);
    return unit;
}

size_t hapax__raw_escape(uint32_t *character, const uint8_t *at, const uint8_t *end)
{
    uint32_t low;

    if (at[1] != 'u') {
        *character = at[1] == 'n'   ? '\n'
                     : at[1] == 't' ? '\t'
                     : at[1] == 'r' ? '\r'
                     : at[1] == 'b' ? '\b'
                     : at[1] == 'f' ? '\f'
                                    : at[1];
        return 2;
    }
    *character = unit_at(at + 2);
    if (*character < 0xd800 || *character > 0xdbff || end - at < 12 || at[6] != '\\' ||
        at[7] != 'u')
        return 6;
    low = unit_at(at + 8);
    if (low < 0xdc00 || low > 0xdfff)
        return 6;
    *character = 0x10000 + ((*character - 0xd800) << 10 | (low - 0xdc00));
    return 12;
}

static bool is_half(uint32_t character)
{
    return character >= 0xd800 && character <= 0xdfff;
}

size_t hapax__raw_unescape(uint8_t *out, struct hapax_span string)
{
    const uint8_t *at = string.ptr + 1, *end = string.ptr + string.len - 1;
    uint8_t *begin = out;

    assert(hapax__raw_is_string(string) && string.len >= 2);
    while (at < end) {
        const uint8_t *slash = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((slash ? slash : end) - at);
        uint32_t character;

        memmove(out, at, plain);
        out += plain;
        at += plain;
        if (!slash)
            break;
        at += hapax__raw_escape(&character, at, end);
        out += hapax__utf8_write(out, is_half(character) ? REPLACEMENT : character);
    }
    return (size_t)(out - begin);
}

bool hapax__raw_text(struct hapax_span *out, struct hapax_arena *arena, struct hapax_span value)
{
    uint8_t *bytes;

    *out = (struct hapax_span){NULL, 0};
    if (!hapax__raw_is_string(value))
        return true;
    if (memchr(value.ptr, '\\', value.len)) {
        bytes = hapax__arena_alloc(arena, value.len);
        if (!bytes)
            return false;
        *out = (struct hapax_span){bytes, hapax__raw_unescape(bytes, value)};
    } else {
        *out = (struct hapax_span){value.ptr + 1, value.len - 2};
    }
    return true;
}

bool hapax__raw_copy(char *out, size_t size, struct hapax_span value)
{
    const uint8_t *at, *end;
    size_t len = 0;

    out[0] = '\0';
    if (!hapax__raw_is_string(value))
        return false;
    at = value.ptr + 1;
    end = value.ptr + value.len - 1;
    while (at < end) {
        uint8_t bytes[4] = {*at};
        uint32_t character = *at;
        size_t n = 1;

        if (*at != '\\') {
            at++;
        } else {
            at += hapax__raw_escape(&character, at, end);
            n = hapax__utf8_write(bytes, is_half(character) ? REPLACEMENT : character);
        }
        if (character == 0 || len + n >= size) {
            out[0] = '\0';
            return false;
        }
        memcpy(out + len, bytes, n);
        len += n;
    }
    out[len] = '\0';
    return true;
}

/* Whether a value with escapes is the text. A function of its own: its bytes are cleared at each
 * call. */
static bool unescaped_says(struct hapax_span value, const char *text, size_t len)
{
    uint8_t bytes[6 * 64 + 2];

    return value.len <= sizeof(bytes) && hapax__raw_unescape(bytes, value) == len &&
           memcmp(bytes, text, len) == 0;
}

bool hapax__raw_says(struct hapax_span value, const char *text)
{
    size_t len;

    if (!hapax__raw_is_string(value))
        return false;
    /* Names of a table mostly differ in their first letter. */
    if (value.ptr[1] != (uint8_t)text[0] && value.ptr[1] != '\\' && text[0] != '\0')
        return false;
    len = strlen(text);
    if (value.len == len + 2 && memcmp(value.ptr + 1, text, len) == 0)
        return !memchr(text, '\\', len);
    return value.len > len + 2 && memchr(value.ptr, '\\', value.len) &&
           unescaped_says(value, text, len);
}

bool hapax__raw_number(int64_t *out, struct hapax_span value)
{
    bool negative = value.len > 0 && value.ptr[0] == '-';
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
