/* SPDX-License-Identifier: Apache-2.0
 *
 * The deliveries in hand, which are those taken and not released: their order, their duplicates and
 * their timers. Only the loop's thread touches them. The one exception: hands write some fields of
 * an entry while the entry is with them.
 *
 * Deliveries of one order form a line, and only the first of a line may ask. A line has no struct
 * of its own: the table of lines has the first entry of each line.
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
    int64_t retry_after_ms; /* 0: the handler named none */
    char why[HAPAX_TEXT_MAX];
};

enum hapax__delivery_phase {
    HAPAX__PHASE_FREE = 0, /* not in hand */
    HAPAX__PHASE_IN_LINE, /* behind another entry of its order */
    HAPAX__PHASE_READY, /* for a hand */
    HAPAX__PHASE_RUNNING, /* with the hands or the store */
    HAPAX__PHASE_WAITING, /* until its timer is due, or another event wakes it */
    HAPAX__PHASE_SENDING, /* its letter waits for the sink, or is with the sink */
    HAPAX__PHASE_RESEND /* its letter came back; it is sent again after a pause */
};

struct hapax__entry {
    enum hapax__delivery_phase phase;
    struct hapax__delivered *delivered;
    struct hapax__history history; /* from the message's headers, and counted since */
    struct hapax__before before; /* its `attempts` is that of `history` */
    /* Above 0: the delivery is postponed for this time, instead of released. */
    int64_t postpone_ms;
    bool away; /* nobody listened the last time; it will ask again */
    bool told; /* how long it waits is the handler's word */
    int64_t taken_us;

    /* Between the loop and the hands. */
    struct hapax_policy policy; /* of this call */
    struct hapax_delivery delivery;
    struct hapax__asked asked;
    struct hapax__call *call; /* NULL: it has not begun, or is answered */
    struct hapax__ended ended;
    uint64_t operation; /* hapax__operation_hash(); 0: not known */
    bool has_id; /* the message has a key */
    struct hapax_id id; /* of its record */

    /* Links the entry into one list at a time: ready, waiting for a hand, back from the hands, or
     * letters to send. */
    STAILQ_ENTRY(hapax__entry) next;

    /* Its letter; NULL: none. */
    struct hapax__letter *letter;
    enum hapax__act sent_as;
    enum hapax__reason reason; /* of a dead or parked letter */
    unsigned sends; /* how often the letter came back */
    bool letter_refused; /* when it was sent last */

    /* Only for inhand.c. */
    TAILQ_ENTRY(hapax__entry) in_hand; /* in `all`, the newest first */
    uint64_t order_hash;
    struct hapax__entry *line_next;
    /* Set in the first entry of a line: the last one, and the next line of the bucket. */
    struct hapax__entry *line_last, *line_bucket;
    struct hapax__entry *duplicate_next; /* the next in its bucket */
    bool duplicate;
    struct hapax__timer timer;
};

STAILQ_HEAD(hapax__entries, hapax__entry);

struct hapax__inhand {
    struct hapax__entry *entries;
    struct hapax__entry *unused; /* linked by line_next */
    TAILQ_HEAD(, hapax__entry) all;
    uint32_t count, max;
    uint64_t seed;
    size_t mask; /* of both tables */
    struct hapax__entry **lines;
    struct hapax__entry **duplicates;
    struct hapax__heap timers;
};

/* Allocates all memory for `max` entries, 1 to HAPAX_IN_HAND_MAX. seed: random, so that no producer
 * can choose which orders collide. NOMEM: nothing is left to close. */
enum hapax_error hapax__inhand_open(struct hapax__inhand *inhand, uint32_t max, uint64_t seed);

/* Frees the memory. No entry may be in hand. */
void hapax__inhand_close(struct hapax__inhand *inhand);

/* Takes a delivery in hand. There must be room. Returns its entry, which is READY (it may ask) or
 * IN_LINE (others of its order are before it), until hapax__inhand_remove(). */
struct hapax__entry *hapax__inhand_add(struct hapax__inhand *inhand,
                                       struct hapax__delivered *delivered, int64_t now_us);

/* Frees an entry; call it before its delivery is released. The entry must be the first of its line,
 * or have no order. Returns the entry behind it, which is the first now, and still IN_LINE. NULL:
 * none. */
struct hapax__entry *hapax__inhand_remove(struct hapax__inhand *inhand, struct hapax__entry *entry);

/* Sets an entry's timer, or clears the timer. */
void hapax__inhand_wake_at(struct hapax__inhand *inhand, struct hapax__entry *entry,
                           int64_t wake_us);
void hapax__inhand_wake_not(struct hapax__inhand *inhand, struct hapax__entry *entry);

/* Returns when the next timer is due; INT64_MAX: no timer is set. */
int64_t hapax__inhand_due(const struct hapax__inhand *inhand);

/* Returns the next entry whose timer is due, and clears the timer. NULL: none is due. */
struct hapax__entry *hapax__inhand_woken(struct hapax__inhand *inhand, int64_t now_us);

/* Adds an entry to the duplicates, which wait for another attempt of their operation, or removes
 * the entry from them. */
void hapax__inhand_duplicate_add(struct hapax__inhand *inhand, struct hapax__entry *entry);
void hapax__inhand_duplicate_remove(struct hapax__inhand *inhand, struct hapax__entry *entry);

/* Returns a duplicate that waits for this operation; NULL: none. */
struct hapax__entry *hapax__inhand_duplicate_of(struct hapax__inhand *inhand, uint64_t operation);

/* A hash of an operation, never 0. */
uint64_t hapax__operation_hash(const struct hapax_request *request, uint64_t seed);

#endif
