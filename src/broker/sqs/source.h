/* SPDX-License-Identifier: Apache-2.0
 *
 * An SQS source's two halves. source.c finds the queue and polls it. visibility.c keeps the
 * messages in hand hidden from other consumers, and tells SQS of their release.
 */
#ifndef HAPAX_BROKER_SQS_SOURCE_H
#define HAPAX_BROKER_SQS_SOURCE_H

#include "link.h"

#define HAPAX__SQS_POLLS_MAX 16u /* at once */
/* Batches under way that delete messages, hide them longer, or return them. */
#define HAPAX__SQS_TELLS_MAX 12u

enum hapax__sqs_what {
    HAPAX__SQS_ASK_URL = 1,
    HAPAX__SQS_COUNT,
    HAPAX__SQS_POLL,
    HAPAX__SQS_DELETE,
    HAPAX__SQS_CHANGE,
    HAPAX__SQS_EXTEND
};

TAILQ_HEAD(hapax__sqs_deliveries, hapax__sqs_delivery);

struct hapax__sqs_source {
    struct hapax__source base;
    struct hapax__sqs_link link;
    char url[HAPAX__SQS_URL_MAX]; /* "": not known yet */
    bool ordered; /* messages of a group are run one at a time */
    bool was_connected;
    bool closing;
    unsigned failures; /* in a row */
    int64_t now_us; /* of this turn */
    int64_t gate_us; /* no question is sent before */
    int64_t tell_gate_us; /* no batch is sent before */
    int64_t poll_gate_us; /* no poll is sent before */
    int64_t count_us; /* when to count next */
    enum hapax_error error; /* for pump() to return: REFUSED */

    size_t room; /* of the loop, at its last pump() */
    size_t worth; /* the least room that is worth a poll */
    size_t asked; /* messages, by the polls under way */
    size_t wanted; /* polls at once */
    struct hapax__sqs_deliveries ready; /* not taken yet */
    size_t ready_count;
    struct hapax__sqs_deliveries lists[HAPAX__SQS_LISTS];
    size_t counts[HAPAX__SQS_LISTS];

    struct hapax__sqs_call ask; /* for the URL, or how many wait */
    struct hapax__sqs_call polls[HAPAX__SQS_POLLS_MAX];
    struct hapax__sqs_call tells[HAPAX__SQS_TELLS_MAX];
    size_t polling, telling[HAPAX__SQS_EXTEND + 1]; /* calls under way, by kind */
};

/* ---- messages in hand (visibility.c) ------------------------------------------------------- */

/* For how many seconds a message may be hidden from now on: visibility_s at most. 0: its 12 hours
 * are over. */
int hapax__sqs_longer(int64_t received_us, int64_t now_us, int visibility_s);

/* Takes a message that was received now into hand, and keeps it hidden until it is released. */
void hapax__sqs_keep(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d);

/* Releases a message: deletes it, or makes it visible again after so many seconds. */
void hapax__sqs_delete(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d);
void hapax__sqs_give_back(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d, int seconds);

/* Frees a message that another consumer may have by now, as soon as no call is about it. */
void hapax__sqs_drop(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d);

/* Sends the calls that are due. told() takes the end of such a call, and returns false if the call
 * failed. */
void hapax__sqs_tell(struct hapax__sqs_source *s);
bool hapax__sqs_told(struct hapax__sqs_source *s, struct hapax__sqs_call *call);

/* When hapax__sqs_tell() is due without any event. INT64_MAX: never. */
int64_t hapax__sqs_tell_due(const struct hapax__sqs_source *s);

/* Whether SQS knows of every release. */
bool hapax__sqs_all_told(const struct hapax__sqs_source *s);

/* Removes a delivery from those that are not taken yet, if it is one of them. */
void hapax__sqs_unready(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d);

/* Frees all deliveries in the lists. */
void hapax__sqs_forget(struct hapax__sqs_source *s);

#endif
