/* SPDX-License-Identifier: Apache-2.0
 *
 * The record codec. Layout (numbers most significant byte first):
 *
 *   version u8 · state u8 · bits u8 · status u16 · attempt u32 · spent u32 · fence u64
 *   created_us, updated_us, lease_until_us, expires_us, retention_ms, resolved_us  i64
 *   mark 16 · fingerprint 32 · caller 32
 *   scope u8+bytes · resolved_by u8+bytes · what u8+bytes
 *   owner 32 · replaced state u8, status u16: where their bits are set
 *   headers u32+bytes · body u32+bytes
 *   checksum u64: XXH3-64 over id and all before
 *
 * Version 1 has no what, owner and replaced, and has the token itself in place of its mark. Such a
 * record is read, with the mark of that token, and written anew as version 2.
 *
 * XXH3 finds flipped bits and torn writes; it is no defence against somebody who can
 * write to the store. Rejected: CRC32C, whose fast form wants tables or CPU probes.
 */
#include "record.h"

#include "base/bytes.h"
#include "id.h"

#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include <xxhash.h>

#define FIXED_SIZE    (3 + 2 + 4 + 4 + 8 + 6 * 8 + 16 + 32 + 32)
#define CHECKSUM_SIZE 8u

enum {
    BIT_HOLD = 1,
    BIT_STALE = 2,
    BIT_RAN = 4,
    BIT_RERUNS = 8,
    BIT_BODY_KEPT = 16,
    BITS_V1 = 31,
    BIT_OWNED = 32,
    BIT_REPLACED = 64,
    BITS_ALL = 127
};

#define REPLACED_SIZE 3u

static uint64_t checksum(const struct hapax_id *id, struct hapax_span bytes)
{
    return XXH3_64bits_withSeed(bytes.ptr, bytes.len, XXH3_64bits(id->bytes, sizeof(id->bytes)));
}

size_t hapax__record_size(const struct hapax_record *record)
{
    size_t extras = (hapax__owned(&record->owner) ? sizeof(record->owner) : 0) +
                    (record->replaced_state != HAPAX_STATE_ABSENT ? REPLACED_SIZE : 0);

    return FIXED_SIZE + 1 + record->scope.len + 1 + record->resolved_by.len + 1 + record->what.len +
           extras + 4 + record->outcome.headers.len + 4 + record->outcome.body.len + CHECKSUM_SIZE;
}

static uint8_t bits_of(const struct hapax_record *record)
{
    unsigned bits = 0;

    bits |= record->hold ? BIT_HOLD : 0;
    bits |= record->stale ? BIT_STALE : 0;
    bits |= record->ran ? BIT_RAN : 0;
    bits |= record->reruns ? BIT_RERUNS : 0;
    bits |= record->outcome.body_kept ? BIT_BODY_KEPT : 0;
    bits |= hapax__owned(&record->owner) ? BIT_OWNED : 0;
    bits |= record->replaced_state != HAPAX_STATE_ABSENT ? BIT_REPLACED : 0;
    return (uint8_t)bits;
}

static void put_span(struct hapax__writer *w, struct hapax_span span, size_t width)
{
    hapax__put_number(w, span.len, width);
    hapax__put(w, span.ptr, span.len);
}

void hapax__record_encode(uint8_t *out, const struct hapax_record *record)
{
    size_t size = hapax__record_size(record);
    struct hapax__writer w = {out, size};
    unsigned bits = bits_of(record);

    assert(record->state >= HAPAX_STATE_STARTED && record->state <= HAPAX_STATE_UNKNOWN);
    assert(record->scope.len <= HAPAX_SCOPE_MAX && record->resolved_by.len <= HAPAX_BY_MAX);
    assert(record->what.len <= HAPAX_WHAT_MAX);
    assert(record->outcome.headers.len <= HAPAX_HEADERS_MAX);
    assert(record->outcome.body.len <= HAPAX_BODY_MAX);
    assert(record->outcome.status >= 0 && record->outcome.status <= 999);
    hapax__put_number(&w, HAPAX__RECORD_VERSION, 1);
    hapax__put_number(&w, (uint64_t)record->state, 1);
    hapax__put_number(&w, bits, 1);
    hapax__put_number(&w, (uint64_t)record->outcome.status, 2);
    hapax__put_number(&w, record->attempt, 4);
    hapax__put_number(&w, record->spent, 4);
    hapax__put_number(&w, record->fence, 8);
    hapax__put_number(&w, (uint64_t)record->created_us, 8);
    hapax__put_number(&w, (uint64_t)record->updated_us, 8);
    hapax__put_number(&w, (uint64_t)record->lease_until_us, 8);
    hapax__put_number(&w, (uint64_t)record->expires_us, 8);
    hapax__put_number(&w, (uint64_t)record->retention_ms, 8);
    hapax__put_number(&w, (uint64_t)record->resolved_us, 8);
    hapax__put(&w, record->mark.bytes, sizeof(record->mark.bytes));
    hapax__put(&w, record->fingerprint.bytes, sizeof(record->fingerprint.bytes));
    hapax__put(&w, record->caller.bytes, sizeof(record->caller.bytes));
    put_span(&w, record->scope, 1);
    put_span(&w, record->resolved_by, 1);
    put_span(&w, record->what, 1);
    if (bits & BIT_OWNED)
        hapax__put(&w, record->owner.bytes, sizeof(record->owner.bytes));
    if (bits & BIT_REPLACED) {
        hapax__put_number(&w, (uint64_t)record->replaced_state, 1);
        hapax__put_number(&w, (uint64_t)record->replaced_status, 2);
    }
    put_span(&w, record->outcome.headers, 4);
    put_span(&w, record->outcome.body, 4);
    hapax__put_number(&w, checksum(&record->id, (struct hapax_span){out, size - CHECKSUM_SIZE}),
                      CHECKSUM_SIZE);
    assert(w.left == 0);
}

/* False: the version is not known. Fields of fixed width come first, and are taken from a reader of
 * their own: its end is known to the compiler, which then checks it for none of them. */
static bool take_fields(struct hapax__reader *r, struct hapax_record *out)
{
    unsigned version = hapax__take_u8(r), bits;
    struct hapax__reader fixed = {NULL, FIXED_SIZE - 1, false};

    if (version < 1 || version > HAPAX__RECORD_VERSION)
        return false;
    fixed.at = hapax__take(r, FIXED_SIZE - 1).ptr;
    if (!fixed.at)
        return true;
    out->state = (enum hapax_state)hapax__take_u8(&fixed);
    bits = hapax__take_u8(&fixed);
    out->hold = bits & BIT_HOLD;
    out->stale = bits & BIT_STALE;
    out->ran = bits & BIT_RAN;
    out->reruns = bits & BIT_RERUNS;
    out->outcome.body_kept = bits & BIT_BODY_KEPT;
    r->bad |= bits > (version == 1 ? BITS_V1 : BITS_ALL);
    out->outcome.status = hapax__take_u16(&fixed);
    out->attempt = hapax__take_u32(&fixed);
    out->spent = hapax__take_u32(&fixed);
    out->fence = hapax__take_u64(&fixed);
    out->created_us = (int64_t)hapax__take_u64(&fixed);
    out->updated_us = (int64_t)hapax__take_u64(&fixed);
    out->lease_until_us = (int64_t)hapax__take_u64(&fixed);
    out->expires_us = (int64_t)hapax__take_u64(&fixed);
    out->retention_ms = (int64_t)hapax__take_u64(&fixed);
    out->resolved_us = (int64_t)hapax__take_u64(&fixed);
    hapax__take_into(&fixed, out->mark.bytes, sizeof(out->mark.bytes));
    hapax__take_into(&fixed, out->fingerprint.bytes, sizeof(out->fingerprint.bytes));
    hapax__take_into(&fixed, out->caller.bytes, sizeof(out->caller.bytes));
    assert(fixed.left == 0);
    out->scope = hapax__take(r, hapax__take_u8(r));
    out->resolved_by = hapax__take(r, hapax__take_u8(r));
    if (version > 1)
        out->what = hapax__take(r, hapax__take_u8(r));
    if (bits & BIT_OWNED)
        hapax__take_into(r, out->owner.bytes, sizeof(out->owner.bytes));
    r->bad |= bits & BIT_OWNED && !hapax__owned(&out->owner);
    if (bits & BIT_REPLACED) {
        out->replaced_state = (enum hapax_state)hapax__take_u8(r);
        out->replaced_status = hapax__take_u16(r);
        r->bad |= out->replaced_state == HAPAX_STATE_ABSENT;
    }
    out->outcome.headers = hapax__take(r, hapax__take_u32(r));
    out->outcome.body = hapax__take(r, hapax__take_u32(r));
    return true;
}

static bool in_range(const struct hapax_record *record)
{
    return record->state >= HAPAX_STATE_STARTED && record->state <= HAPAX_STATE_UNKNOWN &&
           record->attempt < UINT32_MAX && record->fence < UINT64_MAX &&
           record->outcome.status <= 999 && record->resolved_by.len <= HAPAX_BY_MAX &&
           record->replaced_state <= HAPAX_STATE_UNKNOWN && record->replaced_status <= 999 &&
           record->outcome.headers.len <= HAPAX_HEADERS_MAX &&
           record->outcome.body.len <= HAPAX_BODY_MAX && record->created_us >= 0 &&
           record->updated_us >= 0 && record->lease_until_us >= 0 && record->expires_us >= 0 &&
           record->retention_ms >= 0 && record->resolved_us >= 0;
}

enum hapax_error hapax__record_decode(struct hapax_record *out, const struct hapax_id *id,
                                      struct hapax_span bytes)
{
    struct hapax__reader r = {bytes.ptr, bytes.len, false};
    uint64_t sum;

    memset(out, 0, sizeof(*out));
    out->id = *id;
    if (!take_fields(&r, out))
        return bytes.len == 0 ? HAPAX_ERR_CORRUPT : HAPAX_ERR_UNSUPPORTED;
    sum = hapax__take_u64(&r);
    if (r.bad || r.left != 0)
        return HAPAX_ERR_CORRUPT;
    bytes.len -= CHECKSUM_SIZE;
    if (sum != checksum(id, bytes) || !in_range(out))
        return HAPAX_ERR_CORRUPT;
    if (bytes.ptr[0] == 1) {
        struct hapax_token token;

        static_assert(sizeof(token) == sizeof(out->mark), "a token stands in place of its mark");
        memcpy(token.bytes, out->mark.bytes, sizeof(token.bytes));
        hapax__mark(&out->mark, &token);
    }
    return HAPAX_ERR_NONE;
}

bool hapax__record_peek(struct hapax_record *out, struct hapax_span bytes)
{
    struct hapax__reader r = {bytes.ptr, bytes.len, false};

    memset(out, 0, sizeof(*out));
    return take_fields(&r, out) && !r.bad;
}
