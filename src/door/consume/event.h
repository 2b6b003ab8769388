/* SPDX-License-Identifier: Apache-2.0
 *
 * A message as a CloudEvent (CloudEvents 1.0.2): its attributes, in the spelling of any binding,
 * and the header lines of the HTTP request to its handler. Kafka writes an attribute `ce_id`, AMQP
 * `cloudEvents:id` or `cloudEvents_id`, HTTP and NATS `ce-id`.
 */
#ifndef HAPAX_DOOR_CONSUME_EVENT_H
#define HAPAX_DOOR_CONSUME_EVENT_H

#include <hapax/consume.h>

struct curl_slist;

/* Limits of the message's own headers, attributes included, that are passed on: some servers take
 * only 8k of headers. Headers keep their order; traces come first. A header that does not fit, or
 * is none in HTTP, is left out whole, and counted in the line `Hapax-Left-Out: N`. */
#define HAPAX__PASSED_LINES_MAX 64u
#define HAPAX__PASSED_BYTES_MAX 5120u

/* Before the name of a message's own header: whoever may publish chooses names and values, and a
 * handler trusts names such as X-Remote-User that its own proxy sets. */
#define HAPAX__HEADER_PREFIX "Hapax-Header-"

/* Whether a header is a CloudEvents attribute. *attribute: the bare name (`id`). *encoded: the
 * value is percent-encoded, as in HTTP and NATS. */
bool hapax__event_attribute(struct hapax_span *attribute, bool *encoded, struct hapax_span name);

/* Decodes the value of an `encoded` attribute: the quotes and escapes of a quoted string, then
 * percent-encoding. What is not well encoded stands for itself. False: it is over size bytes. */
bool hapax__event_decode(uint8_t *out, size_t size, size_t *len, struct hapax_span value);

/* Whether the body is the event itself: `application/cloudevents…`. json: only if it is one event
 * in JSON. */
bool hapax__event_structured(struct hapax_span content_type, bool json);

/* Whether a header may be passed on by its own name: it is a token, and no name about the
 * connection, the body, the sender, the event or the operation. */
bool hapax__event_may_pass(struct hapax_span name);

/* Makes the header lines of a request about a message. *out is to be freed by
 * curl_slist_free_all().
 *   broker   the first part of a ce-source that is made: /BROKER/QUEUE
 *   names    those of the message's headers that keep their names, besides traceparent and
 *            tracestate; ends with NULL. Other headers go behind HAPAX__HEADER_PREFIX
 *   body     whether the request has a body
 * A key that Idempotency-Key cannot hold is sent as its hash. A handler that gets the token gets
 * the key itself, too, in `Hapax-Key`, percent-encoded like an attribute. A NULL body, which is not
 * an empty one, adds `Hapax-Tombstone: true`. False: out of memory, and *out is NULL. */
bool hapax__event_lines(struct curl_slist **out, const struct hapax_message *message,
                        const struct hapax_attempt *attempt, const char *broker, char *const *names,
                        bool body);

#endif
