/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the Kafka source: the source itself (source.c), its messages (message.c), and its
 * membership of the group (group.c). Only the loop's thread uses them. librdkafka's own threads
 * write to `wake` and `join_us`, and to nothing else.
 */
#ifndef HAPAX_BROKER_KAFKA_SOURCE_H
#define HAPAX_BROKER_KAFKA_SOURCE_H

#include "broker/source.h"
#include "kafka.h"

#include <stdatomic.h>

struct hapax__kafka_part;

/* A message: lent to the loop, or waiting in its partition. */
struct hapax__kafka_item {
    struct hapax__delivered delivered; /* the first member: the loop uses it */
    struct hapax__kafka_part *part; /* NULL: voided */
    struct hapax__kafka_item *next; /* of part->again */
    rd_kafka_message_t *raw;
    uint64_t index; /* in the window, once handed out */
    int64_t due_us; /* monotonic: not handed out before */
    bool lent; /* to the loop */
};

/* A partition that is assigned to us. */
struct hapax__kafka_part {
    struct hapax__kafka_part *after_it;
    bool retry; /* of the retry topic */
    /* Revoked: none of its messages is handed out. */
    bool leaving;
    int32_t number;
    rd_kafka_queue_t *queue; /* what was fetched of it */
    struct hapax__kafka_window window;
    int64_t committed; /* -1: not known, or none */
    size_t lent;
    rd_kafka_message_t *raw; /* fetched, but there was no memory for an item */
    /* Read, and not due yet. The messages behind it wait, too. */
    struct hapax__kafka_item *first;
    /* Returned by the loop: handed out again when due. */
    struct hapax__kafka_item *again, **again_end;
};

struct hapax__kafka_source {
    struct hapax__source base; /* the first member: the loop uses it */
    struct hapax__kafka_uri uri;
    char name[HAPAX__KAFKA_TOPIC_MAX + 1]; /* TOPIC.GROUP */
    char retry[HAPAX__KAFKA_TOPIC_MAX + 1]; /* its retry topic; "": not read */
    enum hapax_order order;
    int64_t wait_max_ms;
    /* How long to wait for the messages of a revoked partition. */
    int64_t leave_max_us;
    void (*log)(void *arg, const char *line);
    void *log_arg;

    int wake; /* eventfd: something is in a queue */
    rd_kafka_t *rk; /* NULL: to be made at make_us */
    rd_kafka_queue_t *common; /* what concerns no partition */
    rd_kafka_queue_t *replies; /* answers to commits and questions */
    rd_kafka_topic_t *held; /* the retry topic, with settings of its own; NULL: none */
    size_t room; /* the loop's, at the last pump */
    int64_t make_us;
    /* A fatal error: the client is made anew when nothing is lent. */
    bool broken;
    bool closing;
    /* The client got an assignment, even an empty one. */
    bool assigned;
    /* The client must not be destroyed (hapax__kafka_group_stillborn()). */
    bool stillborn;
    /* A stillborn client is left behind, and may still read this struct. */
    bool kept;
    bool seen; /* it was connected before */
    size_t lent;

    struct hapax__kafka_part *parts;
    struct hapax__kafka_part *turn; /* whose messages are taken now */
    unsigned turn_left;

    rd_kafka_topic_partition_list_t *leaving; /* revoked, and not given up yet; NULL: none */
    int64_t leave_until_us; /* for the messages in hand */
    bool committing; /* a reply is awaited */
    int64_t commit_us; /* the next one at the earliest */
    /* No commit before this time: the group is being joined. Set by librdkafka's threads. */
    _Atomic int64_t join_us;
    int64_t ask_us; /* while the broker is away: when to ask again */
    /* A connection was lost: if the broker does not answer by then, it is away. 0: no doubt. */
    int64_t doubt_us;
    int64_t lag_us;
    uint64_t not_committed; /* commits that were refused */

    /* When to ask whether the topic exists. 0: it exists. */
    int64_t missing_us;
    bool refused; /* text says why */
};

static inline const char *hapax__kafka_topic_of(const struct hapax__kafka_source *s,
                                                const struct hapax__kafka_part *part)
{
    return part->retry ? s->retry : s->uri.topic;
}

/* ---- message.c --------------------------------------------------------------------------- */

/* Makes an item of a fetched message, and owns the message then. NULL: out of memory; the message
 * stays the caller's. */
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

/* Makes a client that is being configured report when it joins its group. */
void hapax__kafka_group_listen(struct hapax__kafka_source *s, rd_kafka_conf_t *conf);

/* Sets s->stillborn if the client must be left behind instead of destroyed. Call it before the
 * client is closed. */
void hapax__kafka_group_stillborn(struct hapax__kafka_source *s);

/* Leaves the group, so that other members get its partitions at once. False: librdkafka has not
 * left by then; the others get them after session.timeout.ms. */
bool hapax__kafka_group_leave(struct hapax__kafka_source *s, int64_t until_us);

/* Commits what is due, asks the broker what is needed, reads answers, and gives revoked partitions
 * up. */
void hapax__kafka_group_pump(struct hapax__kafka_source *s, int64_t now_us);

/* When to call hapax__kafka_group_pump() at the latest. */
int64_t hapax__kafka_group_due(const struct hapax__kafka_source *s);

/* Voids all partitions and their messages in hand. */
void hapax__kafka_void_all(struct hapax__kafka_source *s);

/* Whether something done is not committed. Commits it, unless an answer is awaited. */
bool hapax__kafka_uncommitted(const struct hapax__kafka_source *s);
void hapax__kafka_commit(struct hapax__kafka_source *s, int64_t now_us);

/* Reads answers to commits and questions. Waits for the first one for wait_ms. */
void hapax__kafka_replies(struct hapax__kafka_source *s, int wait_ms);

/* Asks the broker for an answer, after a connection was lost. */
void hapax__kafka_doubt(struct hapax__kafka_source *s);

/* Notes whether the broker answers. */
void hapax__kafka_seen(struct hapax__kafka_source *s, bool connected);

#endif
