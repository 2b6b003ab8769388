/* SPDX-License-Identifier: Apache-2.0
 *
 * AMQP content as a delivered message, and a letter as AMQP content.
 *
 * Properties without a field in hapax/consume.h are shown as headers: amqp-content-encoding,
 * amqp-correlation-id, amqp-reply-to, amqp-app-id, amqp-priority (0 to 255), amqp-timestamp
 * (seconds since 1970). They become properties again when the message is sent on, so a retry or a
 * dead letter loses none of them. Expiration, user-id and delivery-mode are not kept: the copy is
 * another message, durable, and published by us.
 *
 * Headers of other types than text are shown as text, and are also kept in encoded form. A letter
 * has them again with their own types. A letter leaves out headers on which the broker would act,
 * or in which the broker takes notes. CC and BCC would publish the letter to other queues as well.
 * RabbitMQ takes a retry with a foreign x-death for a message that goes in circles, and drops it.
 */
#ifndef HAPAX_BROKER_AMQP_MESSAGE_H
#define HAPAX_BROKER_AMQP_MESSAGE_H

#include "broker/sink.h"
#include "broker/source.h"

#include "library.h"
#include <sys/queue.h>

/* Marks a letter, so that a returned one is recognised. Not shown to users. */
#define HAPAX__AMQP_LETTER "hapax-letter"

struct hapax__amqp_delivery {
    struct hapax__delivered shown;
    /* Of the source: deliveries that are not released, by tag. */
    TAILQ_ENTRY(hapax__amqp_delivery) link;
    uint64_t tag;
    uint8_t *body;
    size_t body_len;
    size_t body_got;
};

/* What the delivery's method says. */
struct hapax__amqp_coming {
    uint64_t tag;
    bool redelivered;
    size_t key_len;
    uint8_t key[255]; /* the routing key */
};

/* Makes a delivery without its body: the caller fills in body_len bytes, and frees the delivery
 * with free(). NULL: out of memory. */
struct hapax__amqp_delivery *hapax__amqp_delivery(const struct hapax__amqp_coming *coming,
                                                  const amqp_basic_properties_t *properties,
                                                  size_t body_len, struct hapax_span from);

#define HAPAX__AMQP_ENTRIES_MAX (2 * HAPAX__HEADERS_READ_MAX + 16)
/* Bytes of all headers and properties of a letter: they go in one frame. */
#define HAPAX__AMQP_HEADERS_MAX 120000u

/* Writes a letter's properties and headers. `entries` has room for HAPAX__AMQP_ENTRIES_MAX. `pool`
 * is emptied first, and then has what is decoded. Both must stay until the letter is published.
 * False: it has too many headers, or one is longer than AMQP can carry (255 bytes for a name or a
 * property). If only the kept headers do not fit, they become texts or are left out. */
bool hapax__amqp_properties(amqp_basic_properties_t *out, amqp_table_entry_t *entries,
                            const struct hapax__letter *letter, uint64_t number, amqp_pool_t *pool);

#endif
