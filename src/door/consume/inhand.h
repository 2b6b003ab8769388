/* SPDX-License-Identifier: Apache-2.0
 *
 * The deliveries in hand: those taken and not settled, who waits behind whom, and who waits for when. Of the
 * loop's thread alone, but for the fields of an entry that hands write while it is with them.
 *
 * Deliveries of one order stand in a line, of which only the first may be asked for; a line costs no memory of its
 * own, for its first entry stands for it in the table of lines.
 */
#ifndef HAPAX_DOOR_CONSUME_INHAND_H
#define HAPAX_DOOR_CONSUME_INHAND_H

#include "base/heap.h"
#include "broker/letter.h"
#include "settle.h"

#include <stdatomic.h>

/* What a handler sees of its delivery. */
struct hapax_delivery {
    const struct hapax_message *message;
    const atomic_bool *hurry;
    bool refused;
    char why[HAPAX_TEXT_MAX];
};

enum hapax__phase {
    HAPAX__PHASE_FREE = 0, /* not in hand */
    HAPAX__PHASE_IN_LINE, /* behind another of its order */
    HAPAX__PHASE_READY, /* for a hand */
    HAPAX__PHASE_RUNNING, /* with the hands, or the store for them */
    HAPAX__PHASE_HELD, /* until its timer, or until woken */
    HAPAX__PHASE_SENDING, /* its letter waits for the sink, or is with it */
    HAPAX__PHASE_RESEND /* its letter came back, and goes again after a pause */
};

struct hapax__entry {
    enum hapax__phase phase;
    struct hapax__delivered *delivered;
    struct hapax__history history; /* in the letters it came by, and since */
    struct hapax__before before; /* `attempts` is history's */
    int64_t postpone_ms; /* it is given back, to come again after this; 0: it is not */
    bool away; /* nobody listened the last time, and it asks again */
    int64_t taken_us;

    /* between the loop and a hand */
    struct hapax_policy policy; /* of this asking */
    struct hapax_delivery delivery;
    struct hapax__ended ended;
    uint64_t operation; /* a hash of what it asks for; 0: not known */
    struct hapax__entry
        *next; /* of the one list it stands in: ready, back from the hands, letters to send */

    /* its letter */
    struct hapax__posting *posting; /* NULL: none */
    enum hapax__act sent_as;
    unsigned sends; /* in vain */
    bool letter_refused; /* the last time */

    /* inhand.c's */
    struct hapax__entry *before_it, *after_it; /* of all in hand */
    uint64_t order_hash;
    struct hapax__entry *line_next, *line_last, *line_bucket; /* the latter two: of a first one */
    struct hapax__entry *twin_next; /* of its bucket */
    bool twin;
    struct hapax__timer timer;
};

struct hapax__inhand {
    struct hapax__entry *entries;
    struct hapax__entry *unused; /* by line_next */
    struct hapax__entry *all;
    uint32_t count, max;
    uint64_t seed;
    size_t mask; /* of both tables */
    struct hapax__entry **lines;
    struct hapax__entry **twins;
    struct hapax__heap timers;
};

/* NOMEM. `seed`: random, so that no producer can choose what collides. */
enum hapax_error hapax__inhand_open(struct hapax__inhand *inhand, uint32_t max, uint64_t seed);
void hapax__inhand_close(struct hapax__inhand *inhand);

/* Takes a delivery into hand; there is room. READY: it may be asked for. IN_LINE: others are before it. */
struct hapax__entry *hapax__inhand_add(struct hapax__inhand *inhand,
                                       struct hapax__delivered *delivered, int64_t now_us);

/* Lets go of one that is the first of its line, or of none, before it is settled. The one after it is then the
 * first, and still IN_LINE; NULL: none. */
struct hapax__entry *hapax__inhand_remove(struct hapax__inhand *inhand, struct hapax__entry *entry);

/* Sets or clears an entry's timer. */
void hapax__inhand_wake_at(struct hapax__inhand *inhand, struct hapax__entry *entry,
                           int64_t wake_us);
void hapax__inhand_wake_not(struct hapax__inhand *inhand, struct hapax__entry *entry);

/* When the next timer is due; INT64_MAX: none. */
int64_t hapax__inhand_due(const struct hapax__inhand *inhand);

/* The next entry whose timer is due, which is cleared; NULL: none. */
struct hapax__entry *hapax__inhand_woken(struct hapax__inhand *inhand, int64_t now_us);

/* An entry that waits for another attempt of its operation, and one of those who wait for it; NULL: none. */
void hapax__inhand_twin(struct hapax__inhand *inhand, struct hapax__entry *entry);
void hapax__inhand_untwin(struct hapax__inhand *inhand, struct hapax__entry *entry);
struct hapax__entry *hapax__inhand_twin_of(struct hapax__inhand *inhand, uint64_t operation);

/* A hash for `operation`, never 0. */
uint64_t hapax__operation_hash(const struct hapax_request *request, uint64_t seed);

#endif
