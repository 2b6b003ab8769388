/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of inputs that are a stream of frames, each behind its length (four bytes). A frame is
 * changed inside, dropped, doubled, or changes places with the next one; then each length is
 * that of what follows it. Every eighth change is any change of the bytes, so that wrong lengths
 * are met, too.
 */
#ifndef HAPAX_TESTS_FUZZ_FUZZ_FRAMES_H
#define HAPAX_TESTS_FUZZ_FUZZ_FRAMES_H

#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#define FRAMES_MAX 64

/* Makes true the lengths within a frame's bytes, behind its own length. NULL: it has none. */
typedef void fuzz_true_frame(uint8_t *frame, size_t len);

struct fuzz_frame {
    uint8_t *bytes; /* behind the length; free() */
    size_t len;
};

static inline uint32_t fuzz_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline void fuzz_put_u32(uint8_t *at, size_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * (3 - i));
}

static inline size_t fuzz_cut(struct fuzz_frame frames[FRAMES_MAX], const uint8_t *data,
                              size_t size, size_t max)
{
    size_t n = 0;

    while (size >= 4 && n < FRAMES_MAX - 1) {
        size_t len = fuzz_u32(data);

        data += 4;
        size -= 4;
        if (len > size)
            len = size;
        frames[n].bytes = malloc(max + len + 1);
        if (!frames[n].bytes)
            abort();
        memcpy(frames[n].bytes, data, len);
        frames[n++].len = len;
        data += len;
        size -= len;
    }
    return n;
}

static inline size_t fuzz_join(uint8_t *data, size_t max, struct fuzz_frame *frames, size_t n,
                               fuzz_true_frame *make_true)
{
    size_t size = 0;

    for (size_t i = 0; i < n; i++) {
        if (frames[i].len + 4 <= max - size) {
            if (make_true)
                make_true(frames[i].bytes, frames[i].len);
            fuzz_put_u32(data + size, frames[i].len);
            memcpy(data + size + 4, frames[i].bytes, frames[i].len);
            size += 4 + frames[i].len;
        }
        free(frames[i].bytes);
    }
    return size;
}

static inline size_t fuzz_change_frames(uint8_t *data, size_t size, size_t max, unsigned seed,
                                        fuzz_true_frame *make_true)
{
    struct fuzz_frame frames[FRAMES_MAX], one;
    size_t n, at;

    if (seed % 8 == 0 || size < 4 || max < size)
        return LLVMFuzzerMutate(data, size, max);
    n = fuzz_cut(frames, data, size, max);
    at = seed / 64 % n;
    switch (seed / 8 % 8) {
    case 0: /* drop it */
        free(frames[at].bytes);
        memmove(&frames[at], &frames[at + 1], (--n - at) * sizeof(frames[0]));
        break;
    case 1: /* double it */
        one = (struct fuzz_frame){malloc(max + frames[at].len + 1), frames[at].len};
        if (!one.bytes)
            abort();
        memcpy(one.bytes, frames[at].bytes, one.len);
        frames[n++] = one;
        break;
    case 2: /* change places */
        one = frames[at];
        frames[at] = frames[(at + 1) % n];
        frames[(at + 1) % n] = one;
        break;
    default:
        frames[at].len = LLVMFuzzerMutate(frames[at].bytes, frames[at].len, max);
    }
    return fuzz_join(data, max, frames, n, make_true);
}

#endif
