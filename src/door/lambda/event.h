/* SPDX-License-Identifier: Apache-2.0
 *
 * A Lambda event: who sent it, what it asks (its key, fingerprint and caller), and where its parts are. Of a batch each
 * record is asked for by itself.
 */
#ifndef HAPAX_DOOR_LAMBDA_EVENT_H
#define HAPAX_DOOR_LAMBDA_EVENT_H

#include <hapax/lambda.h>

/* The kind of an event whose text was checked; PLAIN where it is no JSON (an empty span). */
enum hapax_lambda_kind hapax__event_kind(struct hapax_span root);

static inline bool hapax__event_is_http(enum hapax_lambda_kind kind)
{
    return kind == HAPAX_LAMBDA_REST || kind == HAPAX_LAMBDA_HTTP || kind == HAPAX_LAMBDA_ALB;
}

static inline bool hapax__event_is_batch(enum hapax_lambda_kind kind)
{
    return kind == HAPAX_LAMBDA_SQS || kind == HAPAX_LAMBDA_KINESIS ||
           kind == HAPAX_LAMBDA_DYNAMODB;
}

/* Key, fingerprint and step rules, read once from the settings, which are borrowed. */
struct hapax__lambda_ask;

/* INVALID: text names the setting. NOMEM. */
enum hapax_error hapax__lambda_ask_open(struct hapax__lambda_ask **out,
                                        const struct hapax_lambda *lambda,
                                        char text[HAPAX_TEXT_MAX]);
void hapax__lambda_ask_close(struct hapax__lambda_ask *ask);

/* What an event, or a record of a batch, asks. It stays where it is: the request's key points into it. */
struct hapax__lambda_asked {
    enum hapax_answer_kind refused; /* 0; or BAD_KEY, TOO_LARGE: nothing to ask for */
    const char *why; /* static; refused: what is wrong, without the key */
    struct hapax_request request; /* without a key where there is none */
    uint8_t key[HAPAX_KEY_MAX];
};

/* `root`: the event, or of a batch the record. Safe from any number of threads. False: out of memory. */
bool hapax__lambda_asks(struct hapax__lambda_asked *out, const struct hapax__lambda_ask *ask,
                        enum hapax_lambda_kind kind, struct hapax_span root,
                        struct hapax_span request_id);

#endif
