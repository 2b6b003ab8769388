/* SPDX-License-Identifier: Apache-2.0
 *
 * Hints as bytes. The invariant: a value that is read back is whole and of this id (the record's
 * checksum covers the id), or it is no hint. With a secret a copy that is read back was made by one
 * who knows the secret. A value of another program, id or version costs a question to PostgreSQL
 * and nothing more. The rank is in digits, not bytes, since the scripts
 * compare it as text, which orders digits correctly in every locale.
 */
#include "core/id.h"
#include "core/record.h"
#include "hybrid.h"

#include <assert.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#define NUMBER    20u /* digits of a 64-bit number */
#define BARE_SIZE (HAPAX__HINT_HEAD + 32u + 32u + NUMBER)

static void put_number(uint8_t *out, uint64_t value)
{
    for (size_t i = NUMBER; i > 0; i--) {
        out[i - 1] = (uint8_t)('0' + value % 10);
        value /= 10;
    }
}

static void put_rank(uint8_t *out, uint64_t fence, enum hapax__hint_kind kind, uint64_t last)
{
    put_number(out, fence);
    out[NUMBER] = (uint8_t)('0' + kind);
    put_number(out + NUMBER + 1, last);
}

/* Reads a number. False: it is none. */
static bool take_number(uint64_t *out, const uint8_t *in)
{
    uint64_t value = 0;

    for (size_t i = 0; i < NUMBER; i++) {
        unsigned digit = (unsigned)in[i] - '0';

        if (digit > 9 || value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

/* The seal of a copy: its value is as in hybrid.h, and its mark is not looked at. */
static struct hapax_mark seal_of(const struct hapax_id *id, struct hapax_span value,
                                 const struct hapax_digest *key)
{
    const struct hapax_span parts[] = {
        {id->bytes, sizeof(id->bytes)},
        {value.ptr, HAPAX__HINT_RANK},
        {value.ptr + HAPAX__HINT_HEAD, value.len - HAPAX__HINT_HEAD}};
    struct hapax_digest mac;
    struct hapax_mark seal;

    hapax__mac(&mac, (struct hapax_span){key->bytes, sizeof(key->bytes)}, parts, 3);
    memcpy(seal.bytes, mac.bytes, sizeof(seal.bytes));
    return seal;
}

struct hapax_span hapax__hint_bare(struct hapax_arena *arena, const struct hapax_op *claim,
                                   const struct hapax_mark *mark, int64_t until_us)
{
    uint8_t *out = hapax__arena_alloc(arena, BARE_SIZE), *at = out;

    assert(until_us > 0);
    if (!out)
        return (struct hapax_span){NULL, 0};
    put_rank(at, 0, HAPAX__HINT_BARE, 0);
    memcpy(at + HAPAX__HINT_RANK, mark->bytes, sizeof(mark->bytes));
    at += HAPAX__HINT_HEAD;
    memcpy(at, claim->fingerprint.bytes, 32);
    memcpy(at + 32, claim->caller.bytes, 32);
    put_number(at + 64, (uint64_t)until_us);
    return (struct hapax_span){out, BARE_SIZE};
}

static struct hapax_span make(struct hapax_arena *arena, const struct hapax_record *record,
                              enum hapax__hint_kind kind, const struct hapax_mark *mark,
                              uint64_t last, const struct hapax_digest *key)
{
    static const struct hapax_mark none;
    struct hapax_mark seal;
    size_t size = HAPAX__HINT_HEAD + hapax__record_size(record);
    uint8_t *out = hapax__arena_alloc(arena, size);

    assert(memcmp(&record->mark, &none, sizeof(none)) == 0);
    if (!out)
        return (struct hapax_span){NULL, 0};
    put_rank(out, record->fence, kind, last);
    memcpy(out + HAPAX__HINT_RANK, mark->bytes, sizeof(mark->bytes));
    hapax__record_encode(out + HAPAX__HINT_HEAD, record);
    if (key) {
        seal = seal_of(&record->id, (struct hapax_span){out, size}, key);
        memcpy(out + HAPAX__HINT_RANK, seal.bytes, sizeof(seal.bytes));
    }
    return (struct hapax_span){out, size};
}

struct hapax_span hapax__hint_lock(struct hapax_arena *arena, const struct hapax_record *record,
                                   const struct hapax_mark *mark)
{
    assert(record->state == HAPAX_STATE_STARTED && record->lease_until_us > 0);
    return make(arena, record, HAPAX__HINT_LOCK, mark, (uint64_t)record->lease_until_us, NULL);
}

struct hapax_span hapax__hint_copy(struct hapax_arena *arena, const struct hapax_record *record,
                                   uint64_t epoch, const struct hapax_digest *key)
{
    static const struct hapax_mark none;

    assert(record->state == HAPAX_STATE_COMPLETED && !record->reruns && epoch > 0);
    return make(arena, record, HAPAX__HINT_COPY, &none, epoch, key);
}

static bool sealed(const struct hapax_id *id, struct hapax_span value,
                   const struct hapax_digest *key)
{
    struct hapax_mark seal;

    if (!key)
        return true;
    seal = seal_of(id, value, key);
    return CRYPTO_memcmp(value.ptr + HAPAX__HINT_RANK, seal.bytes, sizeof(seal.bytes)) == 0;
}

static bool read_bare(struct hapax__hint *out, const struct hapax_id *id, struct hapax_span value)
{
    const uint8_t *at = value.ptr + HAPAX__HINT_HEAD;
    uint64_t until_us;

    if (value.len != BARE_SIZE || !take_number(&until_us, at + 64) || until_us > INT64_MAX)
        return false;
    out->record.id = *id;
    out->record.state = HAPAX_STATE_STARTED;
    memcpy(out->record.fingerprint.bytes, at, 32);
    memcpy(out->record.caller.bytes, at + 32, 32);
    out->record.lease_until_us = (int64_t)until_us;
    return true;
}

bool hapax__hint_read(struct hapax__hint *out, const struct hapax_id *id, struct hapax_span value,
                      const struct hapax_digest *key)
{
    struct hapax_span rest = {NULL, 0};
    uint64_t fence, last;

    memset(out, 0, sizeof(*out));
    if (value.len <= HAPAX__HINT_HEAD || !take_number(&fence, value.ptr) ||
        !take_number(&last, value.ptr + NUMBER + 1))
        return false;
    memcpy(out->mark.bytes, value.ptr + HAPAX__HINT_RANK, sizeof(out->mark.bytes));
    rest = (struct hapax_span){value.ptr + HAPAX__HINT_HEAD, value.len - HAPAX__HINT_HEAD};
    switch (value.ptr[NUMBER]) {
    case '0':
        out->kind = HAPAX__HINT_BARE;
        return fence == 0 && last == 0 && read_bare(out, id, value);
    case '1':
        out->kind = HAPAX__HINT_LOCK;
        return hapax__record_decode(&out->record, id, rest) == HAPAX_ERR_NONE &&
               out->record.state == HAPAX_STATE_STARTED && out->record.fence == fence;
    case '2':
        out->kind = HAPAX__HINT_COPY;
        out->epoch = last;
        return sealed(id, value, key) &&
               hapax__record_decode(&out->record, id, rest) == HAPAX_ERR_NONE &&
               out->record.state == HAPAX_STATE_COMPLETED && !out->record.reruns &&
               out->record.fence == fence;
    default:
        return false;
    }
}
