/* SPDX-License-Identifier: Apache-2.0
 *
 * What an SQS URI says (docs/consume.md, "SQS"):
 *
 *   sqs://REGION[/QUEUE][?endpoint=URL&account=ID&profile=NAME&wait=20s&visibility=30s]
 *
 * There is no login in it: credentials are those of every AWS program (src/aws/aws.h).
 */
#ifndef HAPAX_BROKER_SQS_URI_H
#define HAPAX_BROKER_SQS_URI_H

#include <hapax/hapax.h>

#define HAPAX__SQS_QUEUE_MAX 80u /* bytes of a queue's name, its ".fifo" included */
#define HAPAX__SQS_FIFO      ".fifo" /* what the name of a FIFO queue ends in, and no other's */

#define HAPAX__SQS_VISIBILITY_MAX_S 43200 /* of a message, from the moment it is received */

struct hapax__sqs_uri {
    char region[64];
    char queue[HAPAX__SQS_QUEUE_MAX + 1]; /* "": none */
    char endpoint[256]; /* "": the region's own */
    char account[13]; /* whose queue it is; "": the caller's own */
    char profile[129]; /* "": none is named */
    int wait_s; /* of a poll */
    int visibility_s; /* for how long a message is hidden from others, each time */
};

/* INVALID: text says what is wrong, and shows no value. */
enum hapax_error hapax__sqs_uri(struct hapax__sqs_uri *out, const char *uri,
                                char text[HAPAX_TEXT_MAX]);

/* Whether this is the name of a queue, or *why not: a static text. */
bool hapax__sqs_name_check(const char *name, const char **why);

bool hapax__sqs_is_fifo(const char *name);

#endif
