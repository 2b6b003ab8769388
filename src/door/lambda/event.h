/* SPDX-License-Identifier: Apache-2.0
 *
 * A Lambda event: its kind, and what it asks. Each record of a batch asks for itself.
 */
#ifndef HAPAX_DOOR_LAMBDA_EVENT_H
#define HAPAX_DOOR_LAMBDA_EVENT_H

#include "door/ask.h"

#include <hapax/lambda.h>

/* The kind of an event whose text was checked. An empty span, which is no JSON, is PLAIN. */
enum hapax_lambda_kind hapax__event_kind(struct hapax_span root);

/* Whether it is of a stream with a tumbling window. The reply to such an event has the `state` of
 * the window, which is of all records; so none is cut out, and the event is PLAIN. */
bool hapax__event_is_windowed(struct hapax_span root);

static inline bool hapax__event_is_http(enum hapax_lambda_kind kind)
{
    return kind == HAPAX_LAMBDA_REST || kind == HAPAX_LAMBDA_HTTP || kind == HAPAX_LAMBDA_ALB;
}

static inline bool hapax__event_is_batch(enum hapax_lambda_kind kind)
{
    return kind == HAPAX_LAMBDA_SQS || kind == HAPAX_LAMBDA_KINESIS ||
           kind == HAPAX_LAMBDA_DYNAMODB;
}

/* Reads the settings key, fingerprint, scope, step, owner and caller, which are borrowed. INVALID:
 * text names the setting. */
enum hapax_error hapax__event_ask_read(struct hapax__ask *ask, const struct hapax_lambda *lambda,
                                       char text[HAPAX_TEXT_MAX]);

/* Finds what an event asks, or a record of a batch: `root`. Where there is no key, `out` is not
 * refused and has no key. False: out of memory. */
bool hapax__event_ask(struct hapax__asked *out, const struct hapax__ask *ask,
                      const struct hapax_policy *policy, enum hapax_lambda_kind kind,
                      struct hapax_span root, struct hapax_span request_id);

#endif
