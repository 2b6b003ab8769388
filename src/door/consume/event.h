/* SPDX-License-Identifier: Apache-2.0
 *
 * A message as a CloudEvent (CloudEvents 1.0.2): its attributes as any of the brokers' bindings spells them,
 * and the header lines of the HTTP request that tells a handler of it.
 *
 * Kafka writes an attribute `ce_id`, AMQP `cloudEvents:id` or `cloudEvents_id`, HTTP and NATS `ce-id`.
 */
#ifndef HAPAX_DOOR_CONSUME_EVENT_H
#define HAPAX_DOOR_CONSUME_EVENT_H

#include <hapax/consume.h>

struct curl_slist;

/* Of the message's own headers, attributes included, at most so many and so many bytes are passed on, in their
 * order, the traces first; what does not fit is left out whole, and counted in the line `Hapax-Left-Out: N`, as is what is no
 * header of HTTP. There are servers that take no more than 8k of headers. */
#define HAPAX__PASSED_LINES_MAX 64u
#define HAPAX__PASSED_BYTES_MAX 5120u

/* Whether a header's name is that of a CloudEvents attribute; *attribute is then the bare name (`id`), and
 * *encoded says whether its value is percent-encoded already, as HTTP and NATS have it. */
bool hapax__event_attribute(struct hapax_span *attribute, bool *encoded, struct hapax_span name);

/* Takes the encoding off the value of an attribute that came `encoded`: a quoted string's quotes and escapes, then
 * percent-encoding; what is not well encoded stands for itself. At most size bytes; false: it is longer. */
bool hapax__event_decode(uint8_t *out, size_t size, size_t *len, struct hapax_span value);

/* Whether the body is the event, not its data: `application/cloudevents…`. json: as one event in JSON. */
bool hapax__event_structured(struct hapax_span content_type, bool json);

/* Makes the lines of a request about a message; *out is to be freed by curl_slist_free_all(), on failure NULL.
 *   broker   the first part of a ce-source that is made: /BROKER/QUEUE
 *   body     whether the request has one
 * An Idempotency-Key that cannot hold the key has its hash. Where the handler is told the token, `Hapax-Key` has the
 * key itself, percent-encoded as an attribute is. A body that is NULL, not empty, is told by `Hapax-Tombstone: true`.
 * False: out of memory. */
bool hapax__event_lines(struct curl_slist **out, const struct hapax_message *message,
                        const struct hapax_attempt *attempt, const char *broker, bool body);

#endif
