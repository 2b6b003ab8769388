/* SPDX-License-Identifier: Apache-2.0
 *
 * A record as version 1 wrote it, for tests of what becomes of a store after an upgrade.
 */
#ifndef HAPAX_TESTS_RECORD_V1_H
#define HAPAX_TESTS_RECORD_V1_H

#include "core/record.h"

#include <assert.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define RECORD_V1_MAX 4096u

/* Writes a record that has neither owner nor what, and which no operator has resolved. Its mark is
 * the token itself, as version 1 had it there. Returns its size. */
static inline size_t record_v1(uint8_t out[RECORD_V1_MAX], const struct hapax_record *record)
{
    size_t size = hapax__record_size(record);
    /* The length of what: behind scope and resolved_by, before headers, body and checksum. */
    size_t at = size - 8 - 4 - record->outcome.body.len - 4 - record->outcome.headers.len - 1;
    uint64_t sum;

    assert(size <= RECORD_V1_MAX && record->what.len == 0);
    hapax__record_encode(out, record);
    assert(out[0] == 2 && out[at] == 0 && !(out[2] & 0x60));
    out[0] = 1;
    memmove(out + at, out + at + 1, size - at - 1);
    size--;
    sum = XXH3_64bits_withSeed(out, size - 8, XXH3_64bits(&record->id, sizeof(record->id)));
    for (size_t i = 0; i < 8; i++)
        out[size - 1 - i] = (uint8_t)(sum >> 8 * i);
    return size;
}

#endif
