/* SPDX-License-Identifier: Apache-2.0
 *
 * The deliveries in hand, which are those taken and not released: their order, their duplicates and
 * their timers. Only the loop's thread touches them, but for the fields of an entry that hands write
 * while the entry is with them.
 *
 * Deliveries of one order stand in a line, and only the first of a line may ask. A line needs no
 * memory of its own: its first entry stands for it in the table of lines.
 */
#ifndef HAPAX_DOOR_CONSUME_INHAND_H
#define HAPAX_DOOR_CONSUME_INHAND_H

#include "base/heap.h"
#include "broker/letter.h"
#include "decide.h"
#include "door/ask.h"

#include <stdatomic.h>
#include <sys/queue.h>

struct hapax__call;

/* What a handler sees of its delivery. */
struct hapax_delivery {
    const struct hapax_message *message;
    const atomic_bool *hurry;
    bool refused;
    char why[HAPAX_TEXT_MAX];
};

enum hapax__delivery_phase {
    HAPAX__PHASE_FREE = 0, /* not in hand */
    HAPAX__PHASE_IN_LINE, /* behind another of its order */
    HAPAX__PHASE_READY, /* for a hand */
    HAPAX__PHASE_RUNNING, /* with the hands or the store */
    HAPAX__PHASE_WAITING, /* until its timer, or until it is woken */
    HAPAX__PHASE_SENDING, /* its letter waits for the sink, or is with the sink */
    HAPAX__PHASE_RESEND /* its letter came back, and is sent again after a pause */
};

struct hapax__entry {
    enum hapax__delivery_phase phase;
    struct hapax__delivered *delivered;
    struct hapax__history history; /* of the letters it came by, and since */
    struct hapax__before before; /* `attempts` is that of the history */
    int64_t postpone_ms; /* the broker is to deliver it again after this; 0: it is released */
    bool away; /* nobody listened the last time, and it will ask again */
    int64_t taken_us;

    /* Between the loop and the hands. */
    struct hapax_policy policy; /* of this question */
    struct hapax_delivery delivery;
    struct hapax__asked asked;
    struct hapax__call *call; /* NULL: not begun, or answered */
    struct hapax__ended ended;
    uint64_t operation; /* a hash of the operation; 0: not known */

    /* Its place in the one list that it stands in: ready, waiting for a hand, back from the hands,
     * letters to send. */
    STAILQ_ENTRY(hapax__entry) next;

    /* Its letter; NULL: none. */
    struct hapax__letter *letter;
    enum hapax__act sent_as;
    unsigned sends; /* in vain */
    bool letter_refused; /* the last time */

    /* inhand.c's own. */
    TAILQ_ENTRY(hapax__entry) in_hand; /* of all, the newest first */
    uint64_t order_hash;
    struct hapax__entry *line_next;
    struct hapax__entry *line_last, *line_bucket; /* of the first of a line */
    struct hapax__entry *duplicate_next; /* of its bucket */
    bool duplicate;
    struct hapax__timer timer;
};

STAILQ_HEAD(hapax__entries, hapax__entry);

struct hapax__inhand {
    struct hapax__entry *entries;
    struct hapax__entry *unused; /* by line_next */
    TAILQ_HEAD(, hapax__entry) all;
    uint32_t count, max;
    uint64_t seed;
    size_t mask; /* of both tables */
    struct hapax__entry **lines;
    struct hapax__entry **duplicates;
    struct hapax__heap timers;
};

/* Takes all memory. seed: random, so that no producer can choose which orders collide. NOMEM. */
enum hapax_error hapax__inhand_open(struct hapax__inhand *inhand, uint32_t max, uint64_t seed);
void hapax__inhand_close(struct hapax__inhand *inhand);

/* Takes a delivery in hand; there must be room. READY: it may ask. IN_LINE: others precede it. */
struct hapax__entry *hapax__inhand_add(struct hapax__inhand *inhand,
                                       struct hapax__delivered *delivered, int64_t now_us);

/* Lets go of an entry before its delivery is released. The entry is the first of its line, or has no
 * order. Returns the entry after it, which is now the first and still IN_LINE; NULL: none. */
struct hapax__entry *hapax__inhand_remove(struct hapax__inhand *inhand, struct hapax__entry *entry);

/* Sets an entry's timer, or clears it. */
void hapax__inhand_wake_at(struct hapax__inhand *inhand, struct hapax__entry *entry,
                           int64_t wake_us);
void hapax__inhand_wake_not(struct hapax__inhand *inhand, struct hapax__entry *entry);

/* When the next timer is due; INT64_MAX: none. */
int64_t hapax__inhand_due(const struct hapax__inhand *inhand);

/* Returns the next entry whose timer is due, and clears the timer. NULL: none is due. */
struct hapax__entry *hapax__inhand_woken(struct hapax__inhand *inhand, int64_t now_us);

/* Adds an entry to those that wait for another attempt of their operation, or removes it. */
void hapax__inhand_duplicate_add(struct hapax__inhand *inhand, struct hapax__entry *entry);
void hapax__inhand_duplicate_remove(struct hapax__inhand *inhand, struct hapax__entry *entry);

/* One of those that wait for this operation; NULL: none. */
struct hapax__entry *hapax__inhand_duplicate_of(struct hapax__inhand *inhand, uint64_t operation);

/* A hash of an operation, never 0. */
uint64_t hapax__operation_hash(const struct hapax_request *request, uint64_t seed);

#endif
