/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines, duplicates and timers of the deliveries in hand. All memory is allocated at the start, so
 * memory cannot run out for a delivery that was taken.
 *
 * Invariant: an entry is in hand from add to remove. Of each line only the first entry is in the
 * table, and only the first has another phase than IN_LINE. The others follow in the order in which
 * they were taken.
 *
 * Rejected: a node for each order, with a copy of its bytes. The bytes of a line are those of its
 * first delivery, which stay until that delivery is released.
 */
#include "inhand.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include <xxhash.h>

/* ---- storage ------------------------------------------------------------------------- */

enum hapax_error hapax__inhand_open(struct hapax__inhand *inhand, uint32_t max, uint64_t seed)
{
    size_t size = 2;

    assert(max > 0 && max <= HAPAX_IN_HAND_MAX);
    memset(inhand, 0, sizeof(*inhand));
    while (size < max)
        size *= 2;
    inhand->max = max;
    inhand->seed = seed;
    inhand->mask = size - 1;
    TAILQ_INIT(&inhand->all);
    inhand->entries = calloc(max, sizeof(*inhand->entries));
    inhand->lines = calloc(size, sizeof(*inhand->lines));
    inhand->duplicates = calloc(size, sizeof(*inhand->duplicates));
    if (!inhand->entries || !inhand->lines || !inhand->duplicates ||
        hapax__heap_init(&inhand->timers, max) != HAPAX_ERR_NONE) {
        hapax__inhand_close(inhand);
        return HAPAX_ERR_NOMEM;
    }
    for (uint32_t i = max; i-- > 0;) {
        inhand->entries[i].line_next = inhand->unused;
        inhand->unused = &inhand->entries[i];
    }
    return HAPAX_ERR_NONE;
}

void hapax__inhand_close(struct hapax__inhand *inhand)
{
    assert(inhand->count == 0);
    free(inhand->entries);
    free(inhand->lines);
    free(inhand->duplicates);
    hapax__heap_release(&inhand->timers);
    memset(inhand, 0, sizeof(*inhand));
}

/* ---- lines --------------------------------------------------------------------------- */

static bool same_order(const struct hapax__entry *a, const struct hapax__entry *b)
{
    const struct hapax_span *x = &a->delivered->order, *y = &b->delivered->order;

    return a->order_hash == b->order_hash && x->len == y->len &&
           memcmp(x->ptr, y->ptr, x->len) == 0;
}

/* Returns where the table has the first entry of this entry's order, or would have it. */
static struct hapax__entry **line_of(struct hapax__inhand *inhand, const struct hapax__entry *entry)
{
    struct hapax__entry **at = &inhand->lines[entry->order_hash & inhand->mask];

    while (*at && !same_order(*at, entry))
        at = &(*at)->line_bucket;
    return at;
}

static void line_up(struct hapax__inhand *inhand, struct hapax__entry *entry)
{
    const struct hapax_span *order = &entry->delivered->order;
    struct hapax__entry **at;

    entry->order_hash = XXH3_64bits_withSeed(order->ptr, order->len, inhand->seed);
    at = line_of(inhand, entry);
    if (*at) {
        (*at)->line_last->line_next = entry;
        (*at)->line_last = entry;
        entry->phase = HAPAX__PHASE_IN_LINE;
    } else {
        entry->line_last = entry;
        *at = entry;
    }
}

struct hapax__entry *hapax__inhand_add(struct hapax__inhand *inhand,
                                       struct hapax__delivered *delivered, int64_t now_us)
{
    struct hapax__entry *entry = inhand->unused;

    assert(entry && entry->phase == HAPAX__PHASE_FREE && inhand->count < inhand->max);
    inhand->unused = entry->line_next;
    inhand->count++;
    memset(entry, 0, sizeof(*entry));
    entry->delivered = delivered;
    entry->taken_us = now_us;
    entry->phase = HAPAX__PHASE_READY;
    TAILQ_INSERT_HEAD(&inhand->all, entry, in_hand);
    delivered->loop = entry;
    if (entry->delivered->order.len > 0)
        line_up(inhand, entry);
    return entry;
}

static struct hapax__entry *leave_line(struct hapax__inhand *inhand, struct hapax__entry *entry)
{
    struct hapax__entry **at = line_of(inhand, entry);
    struct hapax__entry *next = entry->line_next;

    assert(*at == entry);
    if (next) {
        assert(next->phase == HAPAX__PHASE_IN_LINE);
        next->line_last = entry->line_last;
        next->line_bucket = entry->line_bucket;
        *at = next;
    } else {
        *at = entry->line_bucket;
    }
    return next;
}

struct hapax__entry *hapax__inhand_remove(struct hapax__inhand *inhand, struct hapax__entry *entry)
{
    struct hapax__entry *next = NULL;

    assert(entry->phase != HAPAX__PHASE_FREE && entry->phase != HAPAX__PHASE_IN_LINE);
    assert(inhand->count > 0 && !entry->letter);
    hapax__inhand_wake_not(inhand, entry);
    hapax__inhand_duplicate_remove(inhand, entry);
    if (entry->delivered->order.len > 0)
        next = leave_line(inhand, entry);
    TAILQ_REMOVE(&inhand->all, entry, in_hand);
    entry->phase = HAPAX__PHASE_FREE;
    entry->line_next = inhand->unused;
    inhand->unused = entry;
    inhand->count--;
    return next;
}

/* ---- duplicates --------------------------------------------------------------------------- */

uint64_t hapax__operation_hash(const struct hapax_request *request, uint64_t seed)
{
    const struct hapax_span parts[] = {request->scope, request->key, request->step, request->owner};
    uint64_t hash = seed;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i].len > 0)
            hash = XXH3_64bits_withSeed(parts[i].ptr, parts[i].len, hash + i + 1);
    return hash > 0 ? hash : 1;
}

void hapax__inhand_duplicate_add(struct hapax__inhand *inhand, struct hapax__entry *entry)
{
    struct hapax__entry **bucket = &inhand->duplicates[entry->operation & inhand->mask];

    assert(!entry->duplicate && entry->operation > 0);
    entry->duplicate = true;
    entry->duplicate_next = *bucket;
    *bucket = entry;
}

void hapax__inhand_duplicate_remove(struct hapax__inhand *inhand, struct hapax__entry *entry)
{
    struct hapax__entry **at = &inhand->duplicates[entry->operation & inhand->mask];

    if (!entry->duplicate)
        return;
    while (*at != entry)
        at = &(*at)->duplicate_next;
    *at = entry->duplicate_next;
    entry->duplicate = false;
}

struct hapax__entry *hapax__inhand_duplicate_of(struct hapax__inhand *inhand, uint64_t operation)
{
    struct hapax__entry *entry = inhand->duplicates[operation & inhand->mask];

    while (entry && entry->operation != operation)
        entry = entry->duplicate_next;
    return entry;
}

/* ---- timers -------------------------------------------------------------------------- */

void hapax__inhand_wake_not(struct hapax__inhand *inhand, struct hapax__entry *entry)
{
    hapax__heap_clear(&inhand->timers, &entry->timer);
}

void hapax__inhand_wake_at(struct hapax__inhand *inhand, struct hapax__entry *entry,
                           int64_t wake_us)
{
    hapax__heap_set(&inhand->timers, &entry->timer, wake_us);
}

int64_t hapax__inhand_due(const struct hapax__inhand *inhand)
{
    return hapax__heap_due_us(&inhand->timers);
}

struct hapax__entry *hapax__inhand_woken(struct hapax__inhand *inhand, int64_t now_us)
{
    struct hapax__timer *timer = hapax__heap_take(&inhand->timers, now_us);

    return timer ? HAPAX__TIMED(timer, struct hapax__entry, timer) : NULL;
}
