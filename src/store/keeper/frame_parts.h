/* SPDX-License-Identifier: Apache-2.0
 *
 * The small parts that frames are made of.
 */
#ifndef HAPAX_STORE_KEEPER_FRAME_PARTS_H
#define HAPAX_STORE_KEEPER_FRAME_PARTS_H

#include "frame.h"

static inline void put_span(struct hapax__writer *w, struct hapax_span span, size_t width)
{
    hapax__put_number(w, span.len, width);
    hapax__put(w, span.ptr, span.len);
}

static inline struct hapax_span take_span(struct hapax__reader *r, size_t width)
{
    return hapax__take(r, (size_t)hapax__take_number(r, width));
}

static inline bool whole(const struct hapax__reader *r)
{
    return !r->bad && r->left == 0;
}

static inline struct hapax__reader reader_of(struct hapax_span span)
{
    return (struct hapax__reader){span.ptr, span.len, false};
}

static inline unsigned take_flags(struct hapax__reader *r, unsigned known)
{
    unsigned flags = hapax__take_u8(r);

    r->bad |= (flags & ~known) != 0;
    return flags;
}

static inline struct hapax_span text_span(const char *text)
{
    struct hapax_span span = hapax_str(text);

    if (span.len > UINT8_MAX)
        span.len = UINT8_MAX;
    return span;
}

/* Foreign text for a terminal or a log: what is not printable ASCII becomes '?'. */
static inline void take_text(struct hapax__reader *r, char text[HAPAX_TEXT_MAX])
{
    struct hapax_span span = take_span(r, 1);

    for (size_t i = 0; i < span.len; i++)
        text[i] = span.ptr[i] >= 0x20 && span.ptr[i] < 0x7f ? (char)span.ptr[i] : '?';
    text[span.len] = '\0';
}

#endif
