/* SPDX-License-Identifier: Apache-2.0
 *
 * Each delivery from taken to released: when it is ready for a hand, what its answer means for it,
 * and what becomes of its letter. The loop (loop.c) brings the events. All functions run in the
 * loop's thread.
 */
#ifndef HAPAX_DOOR_CONSUME_DELIVERIES_H
#define HAPAX_DOOR_CONSUME_DELIVERIES_H

#include "hands.h"

/* The parts that the loop drives; hapax_consumer_run() opens them. `consumer` has a default in
 * place of each setting that was left 0. */
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

/* Dead or parked letters of one reason, for the log. */
struct hapax__letters_seen {
    uint64_t count; /* that the log does not have yet */
    int64_t logged_us; /* when the log last had some; 0: never */
    enum hapax__act as;
    char error[HAPAX_TEXT_MAX]; /* of the last one */
};

struct hapax__deliveries {
    /* Set by the loop. */
    const struct hapax__loop_parts *parts;
    struct hapax_consumer_stats *stats;
    int64_t now_us; /* when the last wait for events ended */
    bool by_broker; /* the broker keeps messages that are tried later */
    uint64_t random;

    struct hapax__inhand inhand;
    struct hapax__entries ready;
    struct hapax__entries to_send;
    uint32_t running; /* entries with the hands */
    uint32_t waiting[HAPAX__WAITS]; /* entries that wait, by their reason */
    uint32_t away; /* entries with `away` set */
    bool store_away; /* no message is taken: the store is away */
    bool nobody; /* no message is taken: nobody listens */
    bool nobody_logged;
    int64_t nobody_us; /* when the log last had that; 0: never */
    int64_t sealed_us; /* when the log last had that an outcome is sealed; 0: never */
    /* When the last place in hand was taken, or the log last had that none is free. */
    int64_t full_us;
    /* By the act that letters were sent for: when the log last had that they are refused. 0: the
     * sink takes them. */
    int64_t refused_us[HAPAX__ACT_REJECT + 1];
    struct hapax__letters_seen letters[HAPAX__REASONS];
    uint32_t letters_out; /* entries whose letter is not confirmed */
    /* When a letter was last confirmed or refused, the first of them went out, or the log last had
     * that neither happens. */
    int64_t sink_us;
    bool draining;
    /* Set here, cleared by the loop: the source, or the sink, may have something to report. */
    bool released;
    bool sent;
};

/* Prepares a struct whose first fields the loop has set. On failure too, hapax__deliveries_close()
 * may be called. NOMEM. */
enum hapax_error hapax__deliveries_open(struct hapax__deliveries *d);

/* How many more deliveries may be taken now. */
size_t hapax__deliveries_room(struct hapax__deliveries *d);

/* Takes a delivery in hand. There must be room. The delivery is lent until it is released. */
void hapax__deliveries_take(struct hapax__deliveries *d, struct hapax__delivered *delivered);

/* Returns the next entry for a hand, with all fields that the hand needs. NULL: none is ready. */
struct hapax__entry *hapax__deliveries_next(struct hapax__deliveries *d);

/* Takes messages again if a claim went through while the store seemed to be away. */
void hapax__deliveries_see_claims(struct hapax__deliveries *d);

/* Takes an entry back from the hands, and decides what becomes of its message. */
void hapax__deliveries_answered(struct hapax__deliveries *d, struct hapax__entry *entry);

/* Returns when to call hapax__deliveries_wake(). INT64_MAX: there is no need to. */
int64_t hapax__deliveries_due(const struct hapax__deliveries *d);

/* Goes on with the entries whose pause is over at now_us, and with the log. */
void hapax__deliveries_wake(struct hapax__deliveries *d);

/* Sends letters as long as the sink takes them. */
void hapax__deliveries_send(struct hapax__deliveries *d);

/* Takes the results of letters from the sink, and releases deliveries that are done with. */
void hapax__deliveries_reap(struct hapax__deliveries *d);

/* Releases the deliveries that the source has voided, except those with a hand or the sink. */
void hapax__deliveries_voided(struct hapax__deliveries *d);

/* Returns all deliveries to the broker, except those with a hand or the sink. From now on no
 * message is taken, begun or left waiting. */
void hapax__deliveries_drain(struct hapax__deliveries *d);

/* Returns the rest to the broker: deliveries whose letters were not confirmed. Call it when the
 * hands and the sink are closed. */
void hapax__deliveries_close(struct hapax__deliveries *d);

/* Writes a line to the log, printf-like. */
void hapax__deliveries_log(const struct hapax__deliveries *d, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
