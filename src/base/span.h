/* SPDX-License-Identifier: Apache-2.0
 *
 * Spans and C strings compared and judged, and bytes as hexadecimal digits. A span of length 0 may
 * have a NULL pointer.
 */
#ifndef HAPAX_BASE_SPAN_H
#define HAPAX_BASE_SPAN_H

#include <endian.h>
#include <hapax/hapax.h>
#include <string.h>
#include <strings.h>

static inline bool hapax__same(struct hapax_span a, struct hapax_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

/* Whether the span is this word. */
static inline bool hapax__is(struct hapax_span span, const char *word)
{
    return hapax__same(span, hapax_str(word));
}

/* The same for the name of a header and other words whose case means nothing. */
static inline bool hapax__name_is(struct hapax_span name, const char *other)
{
    return name.len == strlen(other) &&
           (name.len == 0 || strncasecmp((const char *)name.ptr, other, name.len) == 0);
}

static inline bool hapax__begins(struct hapax_span span, const char *with)
{
    size_t len = strlen(with);

    return span.len >= len && (len == 0 || memcmp(span.ptr, with, len) == 0);
}

static inline bool hapax__text_begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* A request's target without its query. */
static inline struct hapax_span hapax__path_of(struct hapax_span target)
{
    const uint8_t *query = target.len > 0 ? memchr(target.ptr, '?', target.len) : NULL;

    return (struct hapax_span){target.ptr, query ? (size_t)(query - target.ptr) : target.len};
}

static inline bool hapax__is_alnum(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Whether it can be the name of a header: RFC 9110, section 5.6.2. */
static inline bool hapax__is_field_name(struct hapax_span name)
{
    for (size_t i = 0; i < name.len; i++)
        if (!hapax__is_alnum(name.ptr[i]) && !memchr("!#$%&'*+-.^_`|~", name.ptr[i], 15))
            return false;
    return name.len > 0;
}

/* Whether it can be the value of a header: it has no control character but tabs. */
static inline bool hapax__is_field_value(struct hapax_span value)
{
    for (size_t i = 0; i < value.len; i++)
        if ((value.ptr[i] < ' ' && value.ptr[i] != '\t') || value.ptr[i] == 0x7f)
            return false;
    return true;
}

typedef uint8_t hapax__sixteen __attribute__((vector_size(16)));
typedef int8_t hapax__sixteen_signed __attribute__((vector_size(16)));

/* The digits of values under 16. */
static inline hapax__sixteen hapax__hex_digits(hapax__sixteen values)
{
    return values + '0' +
           ((hapax__sixteen)((hapax__sixteen_signed)values > 9) & (uint8_t)('a' - '0' - 10));
}

/* Writes 2 * len small digits, and no NUL. Gives the end of them. Sixteen bytes at a time, then
 * four: ids are written for each request. */
static inline char *hapax__hex(char *out, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;

    for (; len >= 16; len -= 16, at += 16, out += 32) {
        hapax__sixteen all, high, low, pairs;

        memcpy(&all, at, sizeof(all));
        high = hapax__hex_digits(all >> 4);
        low = hapax__hex_digits(all & 15);
        pairs = __builtin_shufflevector(high, low, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22,
                                        7, 23);
        memcpy(out, &pairs, sizeof(pairs));
        pairs = __builtin_shufflevector(high, low, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                        30, 15, 31);
        memcpy(out + 16, &pairs, sizeof(pairs));
    }
    for (; len >= 4; len -= 4, at += 4, out += 8) {
        uint64_t x = (uint64_t)at[0] << 24 | (uint64_t)at[1] << 16 | (uint64_t)at[2] << 8 | at[3];

        x = (x << 16 | x) & UINT64_C(0x0000ffff0000ffff);
        x = (x << 8 | x) & UINT64_C(0x00ff00ff00ff00ff);
        x = (x << 4 | x) & UINT64_C(0x0f0f0f0f0f0f0f0f);
        x += UINT64_C(0x3030303030303030) +
             ((x + UINT64_C(0x0606060606060606)) >> 4 & UINT64_C(0x0101010101010101)) *
                 ('a' - '0' - 10);
        x = htobe64(x);
        memcpy(out, &x, sizeof(x));
    }
    for (; len > 0; len--, at++) {
        *out++ = "0123456789abcdef"[*at >> 4];
        *out++ = "0123456789abcdef"[*at & 15];
    }
    return out;
}

#endif
