/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the Kafka source: itself (source.c), its messages (message.c), and the group it is a
 * member of (group.c). Only the loop's thread uses them; librdkafka's own threads write to `wake`
 * and `join_us`, and to nothing else.
 */
#ifndef HAPAX_BROKER_KAFKA_SOURCE_H
#define HAPAX_BROKER_KAFKA_SOURCE_H

#include "broker/source.h"
#include "kafka.h"

#include <stdatomic.h>

struct hapax__kafka_part;

/* A message: lent to the loop, or waiting in its partition. */
struct hapax__kafka_item {
    struct hapax__delivered delivered; /* first: the loop knows it by this */
    struct hapax__kafka_part *part; /* NULL: voided */
    struct hapax__kafka_item *next; /* of part->again */
    rd_kafka_message_t *raw;
    uint64_t index; /* in the window, once it was handed out */
    int64_t due_us; /* monotonic: not handed out before */
    bool lent; /* to the loop */
};

/* A partition that is assigned to us. */
struct hapax__kafka_part {
    struct hapax__kafka_part *after_it;
    bool retry; /* of the retry topic */
    bool leaving; /* revoked: nothing of it is handed out any more */
    int32_t number;
    rd_kafka_queue_t *queue; /* what was fetched of it */
    struct hapax__kafka_window window;
    int64_t committed; /* -1: not known, or none */
    size_t lent;
    rd_kafka_message_t *raw; /* there was no memory to make an item of it */
    struct hapax__kafka_item *first; /* read, and not due yet; those behind wait, too */
    struct hapax__kafka_item *again, **again_end; /* given back: handed out once more when due */
};

struct hapax__kafka_source {
    struct hapax__source base; /* first: the loop knows it by this */
    struct hapax__kafka_uri uri;
    char name[HAPAX__KAFKA_TOPIC_MAX + 1]; /* TOPIC.GROUP */
    char retry[HAPAX__KAFKA_TOPIC_MAX + 1]; /* and its retry topic; "": not read */
    enum hapax_order order;
    int64_t wait_max_ms;
    int64_t leave_max_us; /* how long a revoked partition's messages are waited for */
    void (*log)(void *arg, const char *line);
    void *log_arg;

    int wake; /* eventfd: something is in a queue */
    rd_kafka_t *rk; /* NULL: to be made at make_us */
    rd_kafka_queue_t *common; /* of what concerns no partition */
    rd_kafka_queue_t *replies; /* to commits and questions */
    size_t room; /* of the loop, as of the last pump */
    int64_t make_us;
    bool broken; /* a fatal error: it is made anew when nothing is lent */
    bool closing;
    bool assigned; /* the client was told of an assignment, if only of an empty one */
    bool stillborn; /* the client must not be destroyed (hapax__kafka_group_stillborn()) */
    bool kept; /* such a client is left behind, and may still read this struct */
    bool seen; /* it was connected before */
    size_t lent;

    struct hapax__kafka_part *parts;
    struct hapax__kafka_part *turn; /* whose messages are taken now */
    unsigned turn_left;

    rd_kafka_topic_partition_list_t *leaving; /* revoked, and not given up yet; NULL: none */
    int64_t leave_until_us; /* for what is in hand */
    bool committing; /* a reply is awaited */
    int64_t commit_us; /* the next one at the earliest */
    _Atomic int64_t
        join_us; /* no commit before: the group is being joined. Set by librdkafka's threads */
    int64_t ask_us; /* while the broker is away: when to ask again */
    int64_t doubt_us; /* a connection was lost: the broker is away where it has not answered by
                         then; 0: none */
    int64_t lag_us;
    uint64_t not_committed; /* commits that were refused */

    int64_t missing_us; /* when to look whether the topic is there; 0: it is */
    bool refused; /* text says why */
};

static inline const char *hapax__kafka_topic_of(const struct hapax__kafka_source *s,
                                                const struct hapax__kafka_part *part)
{
    return part->retry ? s->retry : s->uri.topic;
}

/* ---- message.c --------------------------------------------------------------------------- */

/* Makes an item of a fetched message, which the item then owns. NULL: out of memory; the message is
 * still the caller's. */
struct hapax__kafka_item *hapax__kafka_item_new(const struct hapax__kafka_source *s,
                                                struct hapax__kafka_part *part,
                                                rd_kafka_message_t *raw);
void hapax__kafka_item_free(struct hapax__kafka_item *item);

/* When the item may be handed out, by its header, in ms since 1970; 0: now. */
int64_t hapax__kafka_item_due(const struct hapax__kafka_item *item);

/* ---- group.c ----------------------------------------------------------------------------- */

/* librdkafka's rebalance callback; opaque is the source. */
void hapax__kafka_rebalanced(rd_kafka_t *rk, rd_kafka_resp_err_t why,
                             rd_kafka_topic_partition_list_t *list, void *opaque);

/* Has a client that is to be made tell when it joins its group. */
void hapax__kafka_group_listen(struct hapax__kafka_source *s, rd_kafka_conf_t *conf);

/* Whether the client must be left behind rather than destroyed, into s->stillborn. Not once it is
 * closed. */
void hapax__kafka_group_stillborn(struct hapax__kafka_source *s);

/* Leaves the group: other members have its partitions at once. False: librdkafka had not left by
 * then; the others get them after session.timeout.ms. */
bool hapax__kafka_group_leave(struct hapax__kafka_source *s, int64_t until_us);

/* Commits what is due, asks what is to be known, reads replies, and lets revoked partitions go. */
void hapax__kafka_group_pump(struct hapax__kafka_source *s, int64_t now_us);

/* When to call hapax__kafka_group_pump() at the latest. */
int64_t hapax__kafka_group_due(const struct hapax__kafka_source *s);

/* Voids all partitions and what is in hand of them. */
void hapax__kafka_void_all(struct hapax__kafka_source *s);

/* Whether something done is not committed; and commits it, unless a reply is awaited. */
bool hapax__kafka_uncommitted(const struct hapax__kafka_source *s);
void hapax__kafka_commit(struct hapax__kafka_source *s, int64_t now_us);

/* Reads what was replied to commits and questions; waits for the first for wait_ms. */
void hapax__kafka_replies(struct hapax__kafka_source *s, int wait_ms);

/* A connection was lost: asks the broker for an answer. */
void hapax__kafka_doubt(struct hapax__kafka_source *s);

/* The broker was seen to answer, or not to. */
void hapax__kafka_seen(struct hapax__kafka_source *s, bool connected);

#endif
