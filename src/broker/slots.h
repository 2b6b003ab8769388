/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sinks do alike. A letter has a slot from send() to reap(); a queue (or topic) that
 * letters go to is known by its name.
 *
 * The invariant: a slot is in exactly one list, free, waiting, sent or done. A letter waits until
 * all of it is on its way to the broker, is sent until its result is known, and is done until it is
 * reaped. Why a letter was refused stands in its slot: by the time one letter is reaped, the sink
 * may have met the next failure.
 *
 * A sink has slots and queues of its own: a struct that begins with hapax__slot or
 * hapax__sink_queue.
 */
#ifndef HAPAX_BROKER_SLOTS_H
#define HAPAX_BROKER_SLOTS_H

#include "sink.h"

#include <sys/queue.h>

#define HAPAX__SINK_NAME_MAX 255u /* bytes of a queue's name */

/* UNKNOWN → ASKED → READY, or → MAKE → MADE → READY if the queue is not there, or → REFUSED. */
enum hapax__sink_queue_state {
    HAPAX__QUEUE_UNKNOWN = 0, /* the broker is to be asked for it */
    HAPAX__QUEUE_ASKED,
    HAPAX__QUEUE_MAKE, /* the broker is to be asked to make it */
    HAPAX__QUEUE_MADE, /* and was asked */
    HAPAX__QUEUE_READY,
    HAPAX__QUEUE_REFUSED /* letters to it are refused until again_us */
};

struct hapax__sink_queue {
    TAILQ_ENTRY(hapax__sink_queue) link;
    char name[HAPAX__SINK_NAME_MAX + 1];
    enum hapax__sink_queue_state state;
    bool makes; /* it is made if it is not there */
    int64_t again_us; /* UNKNOWN, MAKE, REFUSED: nothing is asked before */
    char why[HAPAX_TEXT_MAX]; /* REFUSED */
};

struct hapax__slot {
    TAILQ_ENTRY(hapax__slot) link;
    struct hapax__slot_list *list; /* that the slot is in */
    struct hapax__letter letter;
    struct hapax__sink_queue *queue; /* that the letter goes to; NULL: none that is known */
    enum hapax__sent result;
    char *why; /* NULL: nothing was said */
};

TAILQ_HEAD(hapax__slot_list, hapax__slot);
TAILQ_HEAD(hapax__sink_queues, hapax__sink_queue);

struct hapax__slots {
    struct hapax__sink *sink;
    struct hapax__slot_list free, waiting, sent, done;
    uint8_t *memory; /* of all slots; those from slot_count on were never taken */
    size_t slot_size, slot_count, slots_max;
    struct hapax__sink_queues queues;
    size_t queue_size, queue_count, queues_max;
};

/* The sizes are those of the sink's own slots and queues. The memory for all slots is taken here:
 * hapax__slots_take() never fails for want of memory. False: out of memory. */
bool hapax__slots_init(struct hapax__slots *slots, struct hapax__sink *sink, size_t slot_size,
                       size_t slots_max, size_t queue_size, size_t queues_max);

/* Frees all slots and queues, whatever is in them. */
void hapax__slots_release(struct hapax__slots *slots);

/* ---- letters ------------------------------------------------------------------------- */

/* Takes a letter over into a slot that waits; the rest of the slot is zeroed. NULL: all slots are
 * taken. */
struct hapax__slot *hapax__slots_take(struct hapax__slots *slots,
                                      const struct hapax__letter *letter);

/* Takes a letter that waits, or was sent, out again: send() returns false after all. */
void hapax__slots_untake(struct hapax__slots *slots, struct hapax__slot *slot);

/* The slot of a letter that waits, by its tag. NULL: no such letter waits. */
struct hapax__slot *hapax__slots_waiting(const struct hapax__slots *slots, const void *tag);

/* All of a waiting letter is on its way. */
void hapax__slots_sent(struct hapax__slots *slots, struct hapax__slot *slot);

/* Notes why the letter is going to be refused. */
void hapax__slot_explain(struct hapax__slot *slot, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The result of a letter that waits or was sent. refuse(): REFUSED, and why. */
void hapax__slots_finish(struct hapax__slots *slots, struct hapax__slot *slot,
                         enum hapax__sent result);
void hapax__slots_refuse(struct hapax__slots *slots, struct hapax__slot *slot, const char *format,
                         ...) __attribute__((format(printf, 3, 4)));

/* reap() of a sink: the oldest letter that is done, and frees its slot. Sets the sink's `why`. */
enum hapax__sent hapax__slots_reap(struct hapax__slots *slots, void **tag);

/* ---- queues -------------------------------------------------------------------------- */

/* The queue of this name; NULL: it is not known. */
struct hapax__sink_queue *hapax__slots_find(const struct hapax__slots *slots, const char *name);

/* The same, and makes an entry for a name that is not known. NULL: *why is a static text. */
struct hapax__sink_queue *hapax__slots_queue(struct hapax__slots *slots, const char *name,
                                             const char **why);

/* make() of a sink: has the queue made if it is not there; if it was refused, it is asked for
 * again. NULL: as hapax__slots_queue(). */
struct hapax__sink_queue *hapax__slots_make(struct hapax__slots *slots, const char *name);

/* look() of a sink, for its own queue: the queue is asked for where it is not known. */
enum hapax__sent hapax__slots_look(struct hapax__slots *slots);

/* REFUSED until this time; the text goes to the queue and to the sink. */
void hapax__slots_refuse_queue(struct hapax__slots *slots, struct hapax__sink_queue *queue,
                               int64_t until_us, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Queues whose refusal is over are UNKNOWN again. */
void hapax__slots_forgive(struct hapax__slots *slots, int64_t now_us);

/* The next queue to ask for, or to have made, now; NULL: none. */
struct hapax__sink_queue *hapax__slots_unknown(const struct hapax__slots *slots, int64_t now_us);

/* When there is something to ask, or a refusal is over; INT64_MAX: never. asks: UNKNOWN and MAKE
 * count, too. */
int64_t hapax__slots_due(const struct hapax__slots *slots, bool asks);

#endif
