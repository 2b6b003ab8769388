/* SPDX-License-Identifier: Apache-2.0
 *
 * What the SQS source and sink share: the service of a URI, and calls to it that are under way in
 * numbers.
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

/* Reads the URI and connects to nobody. connections: calls at once. On failure nothing is left. */
enum hapax_error hapax__sqs_link_open(struct hapax__sqs_link *link, const char *uri,
                                      uint32_t connections, char text[HAPAX_TEXT_MAX]);
void hapax__sqs_link_close(struct hapax__sqs_link *link);

/* A call and what is asked by it. Zeroed it is idle; it is its owner's again once it was reaped. */
struct hapax__sqs_call {
    struct hapax__aws_call call;
    struct hapax__json_out body;
    bool busy;
    int64_t begun_us;
    int what; /* the owner's, as the next two */
    void *of[HAPAX__SQS_BATCH_MAX];
    size_t count;
};

/* Empties the body, to be written. */
struct hapax__json_out *hapax__sqs_begin(struct hapax__sqs_call *call);

/* Sends what was written, within this time, tries included. try_ms: 0: the usual. False: there was
 * no memory to write it. */
bool hapax__sqs_submit(struct hapax__sqs_link *link, struct hapax__sqs_call *call,
                       const char *operation, int64_t within_ms, int64_t try_ms, bool once);

/* Asks for a queue's URL: hapax__sqs_url() reads the answer. */
bool hapax__sqs_ask_url(struct hapax__sqs_link *link, struct hapax__sqs_call *call,
                        const char *queue);
bool hapax__sqs_url(char out[HAPAX__SQS_URL_MAX], const struct hapax__sqs_call *call);

/* The next call that ended, idle but for its reply, which stays until hapax__sqs_done(); NULL:
 * none. */
struct hapax__sqs_call *hapax__sqs_reap(struct hapax__sqs_link *link);
void hapax__sqs_done(struct hapax__sqs_call *call);
void hapax__sqs_call_release(struct hapax__sqs_link *link, struct hapax__sqs_call *call);

/* What the service means by a refusal. */
enum hapax__sqs_refusal { HAPAX__SQS_OTHER = 0, HAPAX__SQS_GONE, HAPAX__SQS_DENIED };
enum hapax__sqs_refusal hapax__sqs_refusal(const struct hapax__sqs_call *call);

#endif
