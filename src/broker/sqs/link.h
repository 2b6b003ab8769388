/* SPDX-License-Identifier: Apache-2.0
 *
 * What the SQS source and sink share: the service of a URI, and the calls under way.
 */
#ifndef HAPAX_BROKER_SQS_LINK_H
#define HAPAX_BROKER_SQS_LINK_H

#include "aws/aws.h"
#include "message.h"
#include "uri.h"

#define HAPAX__SQS_URL_MAX 1024u

struct hapax__sqs_link {
    struct hapax__sqs_uri uri;
    struct hapax__aws *aws;
};

/* Reads the URI, and connects to nobody. connections: how many calls run at once. On failure
 * nothing has to be released. */
enum hapax_error hapax__sqs_link_open(struct hapax__sqs_link *link, const char *uri,
                                      uint32_t connections, char text[HAPAX_TEXT_MAX]);
void hapax__sqs_link_close(struct hapax__sqs_link *link);

/* A call and its purpose. A zeroed call is idle. After it is reaped, it belongs to its owner
 * again. */
struct hapax__sqs_call {
    struct hapax__aws_call call;
    struct hapax__json_out body;
    bool busy;
    int64_t begun_us;
    int what; /* the owner's, as the next two */
    void *of[HAPAX__SQS_BATCH_MAX];
    size_t count;
};

/* Empties the body of a call. Write the request into the result. */
struct hapax__json_out *hapax__sqs_begin(struct hapax__sqs_call *call);

/* Sends the body; all tries together take within_ms at most. try_ms: of one try; 0: the default.
 * False: there was no memory for the body. */
bool hapax__sqs_submit(struct hapax__sqs_link *link, struct hapax__sqs_call *call,
                       const char *operation, int64_t within_ms, int64_t try_ms, bool once);

/* Asks for a queue's URL. hapax__sqs_url() reads the answer. */
bool hapax__sqs_ask_url(struct hapax__sqs_link *link, struct hapax__sqs_call *call,
                        const char *queue);
bool hapax__sqs_url(char out[HAPAX__SQS_URL_MAX], const struct hapax__sqs_call *call);

/* Returns the next call that ended. Its reply stays until hapax__sqs_done(). NULL: none ended. */
struct hapax__sqs_call *hapax__sqs_reap(struct hapax__sqs_link *link);
void hapax__sqs_done(struct hapax__sqs_call *call);
void hapax__sqs_call_release(struct hapax__sqs_link *link, struct hapax__sqs_call *call);

/* The meaning of a service's refusal. */
enum hapax__sqs_refusal { HAPAX__SQS_OTHER = 0, HAPAX__SQS_GONE, HAPAX__SQS_DENIED };
enum hapax__sqs_refusal hapax__sqs_refusal(const struct hapax__sqs_call *call);

#endif
