/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands in a hybrid's Redis, which others may be able to write to. The first byte says
 * whether the store has a secret. With bit 2 a copy is made of the rest first, so that inputs get
 * past the checksum.
 * Claims: what is read lies in the value, and is written again as it was. Under a secret a copy
 * that was changed in any bit, or is of another operation, is none.
 */
#include "fuzz.h"

#include "core/record.h"
#include "store/hybrid/hybrid.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct hapax_id id = {{1, 2, 3}}, other = {{3, 2, 1}};
static const struct hapax_digest key = {{4, 5, 6}};

static void within(struct hapax_span span, struct hapax_span value)
{
    assert(span.len == 0 ||
           (span.ptr >= value.ptr && span.ptr + span.len <= value.ptr + value.len));
}

/* The value once more, of what was read of it. */
static struct hapax_span again_of(struct hapax_arena *arena, const struct hapax__hint *hint,
                                  const struct hapax_digest *secret)
{
    const struct hapax_record *record = &hint->record;
    struct hapax_op claim = {.fingerprint = record->fingerprint, .caller = record->caller};

    if (hint->kind == HAPAX__HINT_BARE)
        return hapax__hint_bare(arena, &claim, &hint->mark, record->lease_until_us);
    if (hint->kind == HAPAX__HINT_LOCK)
        return hapax__hint_lock(arena, record, &hint->mark);
    return hapax__hint_copy(arena, record, hint->epoch, secret);
}

/* Whether the value could have been written here: others may write records that no store makes. */
static bool is_ours(const struct hapax__hint *hint)
{
    static const struct hapax_mark none;

    if (hint->kind == HAPAX__HINT_BARE)
        return hint->record.lease_until_us > 0;
    return memcmp(&hint->record.mark, &none, sizeof(none)) == 0 &&
           (hint->kind == HAPAX__HINT_LOCK ? hint->record.lease_until_us > 0 : hint->epoch > 0);
}

static void read_value(struct hapax_span value, const struct hapax_digest *secret, bool sealed)
{
    struct hapax_arena arena = {0};
    struct hapax__hint hint;
    struct hapax_span again;

    if (!hapax__hint_read(&hint, &id, value, secret)) {
        hapax__arena_release(&arena);
        return;
    }
    assert(value.len > HAPAX__HINT_HEAD);
    assert(!secret || hint.kind != HAPAX__HINT_COPY || sealed);
    within(hint.record.scope, value);
    within(hint.record.what, value);
    within(hint.record.resolved_by, value);
    within(hint.record.outcome.headers, value);
    within(hint.record.outcome.body, value);
    assert(hint.record.state ==
           (hint.kind == HAPAX__HINT_COPY ? HAPAX_STATE_COMPLETED : HAPAX_STATE_STARTED));
    if (is_ours(&hint) && value.ptr[HAPAX__HINT_HEAD] == HAPAX__RECORD_VERSION) {
        again = again_of(&arena, &hint, secret);
        assert(hint.kind == HAPAX__HINT_BARE || again.len == value.len);
        /* Others may write a lock whose rank is not of its lease. Nobody looks at a copy's mark. */
        if (hint.kind == HAPAX__HINT_COPY && secret)
            assert(memcmp(again.ptr, value.ptr, value.len) == 0);
    }
    hapax__arena_release(&arena);
}

/* The rest as a record that passes its checks, if it can be one: with the mark and the sums that it
 * needs. */
static void make_first(const uint8_t *data, size_t size, const struct hapax_digest *secret)
{
    struct hapax_arena arena = {0};
    struct hapax_record record = {
        .id = id, .state = HAPAX_STATE_COMPLETED, .attempt = 1, .fence = 7};
    struct hapax__hint hint;
    struct hapax_span made, moved;
    uint8_t *changed;
    size_t at;

    if (size < 4)
        return;
    record.outcome.status = data[0];
    record.outcome.headers = (struct hapax_span){data + 3, data[1] % (size - 2)};
    record.outcome.body = (struct hapax_span){data + 3, (size - 3) / 2};
    if (record.outcome.headers.len > size - 3)
        record.outcome.headers.len = size - 3;
    made = hapax__hint_copy(&arena, &record, 9, secret);
    assert(made.ptr);
    read_value(made, secret, true);
    changed = malloc(made.len);
    assert(changed);
    memcpy(changed, made.ptr, made.len);
    at = (size_t)data[2] * made.len / 256;
    changed[at] ^= (uint8_t)(1u << (data[1] & 7));
    read_value((struct hapax_span){changed, made.len}, secret, false);
    /* A record of another operation, whole, behind the seal of this one. */
    record.id = other;
    moved = hapax__hint_copy(&arena, &record, 9, NULL);
    assert(moved.ptr && moved.len == made.len);
    memcpy(changed, moved.ptr, moved.len);
    memcpy(changed + HAPAX__HINT_RANK, made.ptr + HAPAX__HINT_RANK, HAPAX__HINT_MARK);
    assert(hapax__hint_read(&hint, &other, (struct hapax_span){changed, made.len}, secret) ==
           !secret);
    free(changed);
    hapax__arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct hapax_digest *secret;

    if (size == 0)
        return 0;
    secret = data[0] & 1 ? &key : NULL;
    if (data[0] & 2)
        make_first(data + 1, size - 1, secret);
    else
        read_value((struct hapax_span){data + 1, size - 1}, secret, false);
    return 0;
}
