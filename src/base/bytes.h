/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers and spans in foreign bytes, most significant byte first. A reader that meets the end
 * gives zeros and remembers it in `bad`, so that a decoder checks once, at its end. A
 * writer is sized beforehand; running over is a bug.
 */
#ifndef HAPAX_BASE_BYTES_H
#define HAPAX_BASE_BYTES_H

#include "span.h"

#include <assert.h>
#include <endian.h>

struct hapax__reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static inline struct hapax_span hapax__take(struct hapax__reader *r, size_t len)
{
    struct hapax_span span = {r->at, len};

    if (r->bad || len > r->left) {
        r->bad = true;
        return (struct hapax_span){NULL, 0};
    }
    r->at += len;
    r->left -= len;
    return span;
}

static inline uint64_t hapax__take_number(struct hapax__reader *r, size_t width)
{
    struct hapax_span span = hapax__take(r, width);
    uint64_t value = 0;

    if (span.len > 0)
        memcpy((uint8_t *)&value + sizeof(value) - width, span.ptr, width);
    return be64toh(value);
}

static inline uint8_t hapax__take_u8(struct hapax__reader *r)
{
    return (uint8_t)hapax__take_number(r, 1);
}

static inline uint16_t hapax__take_u16(struct hapax__reader *r)
{
    return (uint16_t)hapax__take_number(r, 2);
}

static inline uint32_t hapax__take_u32(struct hapax__reader *r)
{
    return (uint32_t)hapax__take_number(r, 4);
}

static inline uint64_t hapax__take_u64(struct hapax__reader *r)
{
    return hapax__take_number(r, 8);
}

static inline void hapax__take_into(struct hapax__reader *r, void *out, size_t len)
{
    struct hapax_span span = hapax__take(r, len);

    if (span.len == len)
        memcpy(out, span.ptr, len);
    else
        memset(out, 0, len);
}

struct hapax__writer {
    uint8_t *at;
    size_t left;
};

static inline void hapax__put(struct hapax__writer *w, const void *bytes, size_t len)
{
    assert(len <= w->left);
    if (len > 0)
        memcpy(w->at, bytes, len);
    w->at += len;
    w->left -= len;
}

static inline void hapax__put_number(struct hapax__writer *w, uint64_t value, size_t width)
{
    assert(width <= w->left && width <= sizeof(value));
    value = htobe64(value);
    memcpy(w->at, (uint8_t *)&value + sizeof(value) - width, width);
    w->at += width;
    w->left -= width;
}

/* The n bytes that 2 * n lowercase hex digits say. False: there is another character, and out is
 * overwritten. */
static inline bool hapax__unhex(uint8_t *out, const uint8_t *digits, size_t n)
{
    for (; n >= 4; n -= 4, out += 4, digits += 8) {
        const uint64_t high = UINT64_C(0x8080808080808080);
        uint64_t x, letters, all;
        uint32_t four;

        memcpy(&x, digits, sizeof(x));
        x = be64toh(x);
        if (x & high)
            return false;
        /* The high bit of a byte says that its character is at least "a"; and so on. */
        letters = x + UINT64_C(0x1f1f1f1f1f1f1f1f);
        all = (letters & ~(x + UINT64_C(0x1919191919191919))) |
              ((x + UINT64_C(0x5050505050505050)) & ~(x + UINT64_C(0x4646464646464646)));
        if ((all & high) != high)
            return false;
        x = (x & UINT64_C(0x0f0f0f0f0f0f0f0f)) + ((letters & high) >> 7) * 9;
        x = (x | x >> 4) & UINT64_C(0x00ff00ff00ff00ff);
        x = (x | x >> 8) & UINT64_C(0x0000ffff0000ffff);
        four = htobe32((uint32_t)(x | x >> 16));
        memcpy(out, &four, sizeof(four));
    }
    for (size_t i = 0; i < 2 * n; i++) {
        uint8_t c = digits[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

        if (digit < 0)
            return false;
        out[i / 2] = (uint8_t)(i % 2 == 0 ? digit << 4 : out[i / 2] | digit);
    }
    return true;
}

static inline void hapax__put_hex(struct hapax__writer *w, const uint8_t *bytes, size_t len)
{
    assert(len <= w->left / 2);
    hapax__hex((char *)w->at, bytes, len);
    w->at += 2 * len;
    w->left -= 2 * len;
}

#endif
