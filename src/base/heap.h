/* SPDX-License-Identifier: Apache-2.0
 *
 * A binary heap of timers: the one that is due first stands on top. A timer is a member of what it
 * wakes, and knows its index in the heap, so that it can be moved and removed.
 *
 * Rejected: a callback that compares. All that is kept in heaps is ordered by a time.
 */
#ifndef HAPAX_BASE_HEAP_H
#define HAPAX_BASE_HEAP_H

#include <hapax/hapax.h>
#include <stddef.h>

/* Zeroed: it is in no heap. */
struct hapax__timer {
    int64_t due_us;
    size_t index; /* from 1; 0: in no heap */
};

struct hapax__heap {
    struct hapax__timer **timers; /* from 1 */
    size_t count, max;
};

/* Takes the memory for `max` timers, so that setting one never fails. NOMEM. */
HAPAX__SHARED enum hapax_error hapax__heap_init(struct hapax__heap *heap, size_t max);
HAPAX__SHARED void hapax__heap_release(struct hapax__heap *heap);

/* Sets a timer, also one that is set already. INT64_MAX clears it. */
HAPAX__SHARED void hapax__heap_set(struct hapax__heap *heap, struct hapax__timer *timer,
                                   int64_t due_us);

/* Takes the timer out, if it is in. */
HAPAX__SHARED void hapax__heap_clear(struct hapax__heap *heap, struct hapax__timer *timer);

/* What a timer is a member of. */
#define HAPAX__TIMED(timer, type, member) ((type *)((char *)(timer)-offsetof(type, member)))

/* When the first timer is due; INT64_MAX: none is set. */
HAPAX__SHARED int64_t hapax__heap_due_us(const struct hapax__heap *heap);

/* Takes out the first timer if it is due, and returns it. NULL: none is due. */
HAPAX__SHARED struct hapax__timer *hapax__heap_take(struct hapax__heap *heap, int64_t now_us);

#endif
