/* SPDX-License-Identifier: Apache-2.0
 *
 * AMQP content as a delivered message, and a letter as AMQP content.
 *
 * Properties that hapax/consume.h has no field for are shown as headers and made properties again
 * where such a message is sent on, so that a retry or a dead letter loses none of them:
 * amqp-content-encoding, amqp-correlation-id, amqp-reply-to, amqp-app-id, amqp-priority (0 to 255),
 * amqp-timestamp (seconds since 1970). Of expiration, user-id and delivery-mode nothing is kept:
 * the copy is another message, durable, from us.
 *
 * Headers of other types than text are kept beside what is shown of them, encoded, and are what
 * they were in a letter. But not those by which the broker would act on the letter, or takes notes
 * of its own: CC and BCC would publish it to other queues as well, and with an x-death that it did
 * not write RabbitMQ takes a retry for going in circles, and drops it.
 */
#ifndef HAPAX_BROKER_AMQP_MESSAGE_H
#define HAPAX_BROKER_AMQP_MESSAGE_H

#include "broker/sink.h"
#include "broker/source.h"

#include <amqp.h>

/* Marks a letter, so that one that comes back is known; not shown to anybody. */
#define HAPAX__AMQP_LETTER "hapax-letter"

/* A delivery with all its bytes in one block. */
struct hapax__amqp_delivery {
    struct hapax__delivered shown;
    struct hapax__amqp_delivery *older, *newer; /* the source's: those not released, by tag */
    uint64_t tag;
    uint8_t *body;
    size_t body_len;
    size_t body_got;
};

/* What a delivery's method said. */
struct hapax__amqp_coming {
    uint64_t tag;
    bool redelivered;
    size_t key_len;
    uint8_t key[255]; /* the routing key */
};

/* A delivery but for its body: to be filled by body_len bytes, and freed with free(). NULL: out of
 * memory. */
struct hapax__amqp_delivery *hapax__amqp_delivery(const struct hapax__amqp_coming *coming,
                                                  const amqp_basic_properties_t *properties,
                                                  size_t body_len, struct hapax_span from);

#define HAPAX__AMQP_ENTRIES_MAX (2 * HAPAX_MESSAGE_HEADERS_MAX + 16)
#define HAPAX__AMQP_HEADERS_MAX                                                                    \
    120000u /* bytes of all headers and properties: they go in one frame */

/* A letter's properties and headers. `entries` has room for HAPAX__AMQP_ENTRIES_MAX; `pool`, which
 * is emptied first, is for what is decoded; both are the letter's until it is published. False: it
 * has too many headers, or one is over what AMQP can carry (a name or property 255 bytes). Where
 * only its kept headers do not fit, they are texts, or left out. */
bool hapax__amqp_properties(amqp_basic_properties_t *out, amqp_table_entry_t *entries,
                            const struct hapax__letter *letter, uint64_t number, amqp_pool_t *pool);

#endif
