/* SPDX-License-Identifier: Apache-2.0
 *
 * Spans and C strings compared, and bytes as hexadecimal digits. A span of length 0 may have a
 * NULL pointer.
 */
#ifndef HAPAX_BASE_SPAN_H
#define HAPAX_BASE_SPAN_H

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

/* Writes 2 * len small digits, and no NUL. Gives the end of them. */
static inline char *hapax__hex(char *out, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = ((const uint8_t *)bytes)[i];

        *out++ = "0123456789abcdef"[byte >> 4];
        *out++ = "0123456789abcdef"[byte & 15];
    }
    return out;
}

#endif
