/* SPDX-License-Identifier: Apache-2.0
 *
 * The course of each delivery from taken to settled: when it is ready for a hand, what its answer makes of it, and
 * what becomes of its letter. The loop (loop.c) brings the events; both are of its thread alone.
 */
#ifndef HAPAX_DOOR_CONSUME_COURSE_H
#define HAPAX_DOOR_CONSUME_COURSE_H

#include "inhand.h"
#include "loop.h"

struct hapax__queue { /* by next */
    struct hapax__entry *first, *last;
};

struct hapax__course {
    /* the loop's to set */
    const struct hapax__loop_parts *parts;
    struct hapax_consumer_stats *stats;
    int64_t now_us; /* when events were last waited for */
    bool by_broker; /* the broker keeps what is to be tried later */
    uint64_t random;

    struct hapax__inhand inhand;
    struct hapax__queue ready;
    struct hapax__queue to_send;
    uint32_t running; /* with hands */
    uint32_t held[HAPAX__HOLDS];
    uint32_t away; /* entries that are */
    bool store_away; /* taking stops for it */
    bool nobody; /* nobody listens: so does it for that */
    bool nobody_told; /* the log says so */
    int64_t nobody_us; /* when it last did; 0: never */
    /* when the log last said that letters sent as that are refused; 0: they are taken */
    int64_t refused_us[HAPAX__ACT_REJECT + 1];
    int64_t corrupt_us; /* when it last said that a record is damaged; 0: never */
    bool draining;
    bool settled; /* set: the source may have something to tell. The loop clears it */
    bool sent; /* set: the sink has. The loop clears it */
};

/* How many more deliveries would be taken now. */
size_t hapax__course_room(struct hapax__course *course);

void hapax__course_take(struct hapax__course *course, struct hapax__delivered *delivered);

/* The next for a hand, with all that it needs; NULL: none is ready. */
struct hapax__entry *hapax__course_next(struct hapax__course *course);

/* Looks whether a claim went through while the store was thought away. */
void hapax__course_see_claims(struct hapax__course *course);

/* A hand gave it back. */
void hapax__course_answered(struct hapax__course *course, struct hapax__entry *entry);

/* Goes on with those whose pause is over by now_us. */
void hapax__course_wake(struct hapax__course *course);

/* Sends letters as long as the sink takes them; and takes what became of them. */
void hapax__course_send(struct hapax__course *course);
void hapax__course_reap(struct hapax__course *course);

/* The source has voided some: those that are not with a hand or the sink go. */
void hapax__course_voided(struct hapax__course *course);

/* From now on none is taken, begun or held: all such go back to the broker. */
void hapax__course_drain(struct hapax__course *course);

/* Lets go of the rest, when hands and sink are closed: letters that were not confirmed. */
void hapax__course_end(struct hapax__course *course);

/* A line for the log, printf-like. */
void hapax__course_say(const struct hapax__course *course, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
