/* SPDX-License-Identifier: Apache-2.0
 *
 * What an SQS URI says (docs/consume-sqs.md):
 *
 *   sqs://REGION[/QUEUE][?endpoint=URL&account=ID&profile=NAME&wait=20s&visibility=30s]
 *
 * There is no login in it: credentials are those of every AWS program (src/aws/aws.h).
 */
#ifndef HAPAX_BROKER_SQS_URI_H
#define HAPAX_BROKER_SQS_URI_H

#include <hapax/hapax.h>

#define HAPAX__SQS_QUEUE_MAX 80u /* bytes of a queue's name, with its ".fifo" */
/* The end of each FIFO queue's name, and of no other name. */
#define HAPAX__SQS_FIFO ".fifo"

/* The longest that a message can be hidden, from the moment it is received. */
#define HAPAX__SQS_VISIBILITY_MAX_S 43200

struct hapax__sqs_uri {
    char region[64];
    char queue[HAPAX__SQS_QUEUE_MAX + 1]; /* "": none */
    char endpoint[256]; /* "": the region's own */
    /* The account that owns the queue. "": the caller's own. */
    char account[13];
    char profile[129]; /* "": none is named */
    int wait_s; /* of a poll */
    /* For how long a message is hidden from others, each time. */
    int visibility_s;
};

/* INVALID: text says what is wrong, and shows no value. */
enum hapax_error hapax__sqs_uri(struct hapax__sqs_uri *out, const char *uri,
                                char text[HAPAX_TEXT_MAX]);

/* Whether a queue may have this name. False: *why is a static text. */
bool hapax__sqs_name_check(const char *name, const char **why);

bool hapax__sqs_is_fifo(const char *name);

#endif
