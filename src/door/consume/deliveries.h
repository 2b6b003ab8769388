/* SPDX-License-Identifier: Apache-2.0
 *
 * Each delivery from taken to released: when it is ready for a hand, what its answer makes of it, and
 * what becomes of its letter. The loop (loop.c) brings the events. Both run in the loop's thread.
 */
#ifndef HAPAX_DOOR_CONSUME_DELIVERIES_H
#define HAPAX_DOOR_CONSUME_DELIVERIES_H

#include "hands.h"

/* The parts that the loop drives; hapax_consumer_run() opens them. `consumer` has a default in place
 * of each setting that was left 0. */
struct hapax__loop_parts {
    const struct hapax_consumer *consumer;
    const struct hapax__source_type *source_type;
    struct hapax__source *source;
    const struct hapax__sink_type *sink_type;
    struct hapax__sink *sink;
    struct hapax__work *work;
    const char *scope;
    const char *dead_letters;
    const char *parked;
};

struct hapax__deliveries {
    /* Set by the loop. */
    const struct hapax__loop_parts *parts;
    struct hapax_consumer_stats *stats;
    int64_t now_us; /* when events were last waited for */
    bool by_broker; /* the broker keeps messages that are tried later */
    uint64_t random;

    struct hapax__inhand inhand;
    struct hapax__entries ready;
    struct hapax__entries to_send;
    uint32_t running; /* with the hands */
    uint32_t waiting[HAPAX__WAITS]; /* by what they wait for */
    uint32_t away; /* entries with `away` set */
    bool store_away; /* taking stops, since the store is away */
    bool nobody; /* taking stops, since nobody listens */
    bool nobody_told; /* the log says so */
    int64_t nobody_us; /* when the log last said so; 0: never */
    /* By how letters were sent: when the log last said that they are refused; 0: they are taken. */
    int64_t refused_us[HAPAX__ACT_REJECT + 1];
    int64_t corrupt_us; /* when the log last told of a damaged record; 0: never */
    bool draining;
    bool released; /* set: the source may have something to tell. The loop clears it */
    bool sent; /* set: the sink may have something to tell. The loop clears it */
};

/* Prepares a struct whose first fields the loop has set. NOMEM. */
enum hapax_error hapax__deliveries_open(struct hapax__deliveries *d);

/* How many more deliveries would be taken now. */
size_t hapax__deliveries_room(struct hapax__deliveries *d);

/* Takes a delivery in hand; there must be room. */
void hapax__deliveries_take(struct hapax__deliveries *d, struct hapax__delivered *delivered);

/* The next entry for a hand, with all that the hand needs; NULL: none is ready. */
struct hapax__entry *hapax__deliveries_next(struct hapax__deliveries *d);

/* Notices that a claim went through while the store seemed to be away. */
void hapax__deliveries_see_claims(struct hapax__deliveries *d);

/* Takes an entry back from the hands, and decides. */
void hapax__deliveries_answered(struct hapax__deliveries *d, struct hapax__entry *entry);

/* Goes on with the entries whose pause is over by now_us. */
void hapax__deliveries_wake(struct hapax__deliveries *d);

/* Sends letters as long as the sink takes them. */
void hapax__deliveries_send(struct hapax__deliveries *d);

/* Takes the results of letters from the sink. */
void hapax__deliveries_reap(struct hapax__deliveries *d);

/* Releases the deliveries that the source has voided, but for those with a hand or the sink. */
void hapax__deliveries_voided(struct hapax__deliveries *d);

/* From now on nothing is taken, begun or left waiting. All such deliveries go back to the broker. */
void hapax__deliveries_drain(struct hapax__deliveries *d);

/* Lets go of the rest, whose letters were not confirmed. The hands and the sink are closed. */
void hapax__deliveries_close(struct hapax__deliveries *d);

/* Writes a line to the log, printf-like. */
void hapax__deliveries_log(const struct hapax__deliveries *d, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
