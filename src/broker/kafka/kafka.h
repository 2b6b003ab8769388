/* SPDX-License-Identifier: Apache-2.0
 *
 * What a Kafka URI says (docs/consume.md, "Kafka"), and what the source and the sink of Kafka
 * share:
 *
 *   kafka://HOST:PORT[,HOST:PORT…][/TOPIC][?group=GROUP][&partitions=N][&PROPERTY=VALUE…]
 *
 * PROPERTY is one of librdkafka's, and checked by it; those that this door has to own are refused.
 * Names and values are percent-decoded. A user and a password are its sasl.username and
 * sasl.password, or come from the environment, HAPAX_KAFKA_USER and HAPAX_KAFKA_PASSWORD. Where
 * there is a user and nothing else is said, the connection is encrypted (sasl_ssl) and the
 * mechanism is PLAIN.
 */
#ifndef HAPAX_BROKER_KAFKA_KAFKA_H
#define HAPAX_BROKER_KAFKA_KAFKA_H

#include <hapax/hapax.h>

#include <librdkafka/rdkafka.h>

#define HAPAX__KAFKA_TOPIC_MAX      249u /* bytes of a topic's name, by Kafka */
#define HAPAX__KAFKA_BROKERS_MAX    2048u /* bytes of the list of brokers */
#define HAPAX__KAFKA_VALUE_MAX      8192u /* bytes of a property: certificates are given so */
#define HAPAX__KAFKA_PARTITIONS_MAX 10000u /* of a topic that is made */

/* Headers that only these two know. */
#define HAPAX__KAFKA_DUE                                                                           \
    "hapax-due" /* on what is in a retry topic: not before, in ms since 1970  \
                                      */
#define HAPAX__KAFKA_POSITION "hapax-position" /* and where it stood before it came there */

/* After TOPIC.GROUP: the topic of what is to be tried later. */
#define HAPAX__KAFKA_RETRY ".retry"

enum hapax__kafka_role { HAPAX__KAFKA_SOURCE = 1, HAPAX__KAFKA_SINK };

struct hapax__kafka_uri {
    char topic[HAPAX__KAFKA_TOPIC_MAX + 1]; /* "": none */
    char group[HAPAX__KAFKA_TOPIC_MAX + 1]; /* "": none */
    int partitions; /* of topics that are made; -1: as the broker has it */
    rd_kafka_conf_t *conf; /* the caller's, to destroy */
};

/* Reads a URI, and the environment. A source has a topic and a group. INVALID, NOMEM: text says
 * what is wrong, never shows the value of a property that may be a secret, and out holds nothing.
 */
enum hapax_error hapax__kafka_uri(struct hapax__kafka_uri *out, const char *uri,
                                  enum hapax__kafka_role role, char text[HAPAX_TEXT_MAX]);

/* The same, and the eventfd that librdkafka writes to when it has something to tell: the caller's,
 * to close. */
enum hapax_error hapax__kafka_begin(struct hapax__kafka_uri *out, int *wake, const char *uri,
                                    enum hapax__kafka_role role, char text[HAPAX_TEXT_MAX]);

/* ---- the window of a partition (window.c) ------------------------------------------ */

#define HAPAX__KAFKA_WINDOW_MAX                                                                    \
    16384u /* offsets from the first that is not done to the last that was taken */

struct hapax__kafka_slot {
    int64_t offset;
    void *item; /* NULL: done */
};

struct hapax__kafka_window {
    struct hapax__kafka_slot *slots; /* a ring */
    size_t size; /* a power of two, or 0 */
    uint64_t head, tail; /* indexes of slots, counted from the beginning of time */
    int64_t next; /* all offsets below are done; -1: nothing was yet */
};

/* Whether another offset may be added. */
bool hapax__kafka_window_open(const struct hapax__kafka_window *window);

/* The least offset that may be added. */
int64_t hapax__kafka_window_least(const struct hapax__kafka_window *window);

/* Adds an offset; *index names it. item is not NULL, and the caller's. False: out
 * of memory. */
bool hapax__kafka_window_add(struct hapax__kafka_window *window, int64_t offset, void *item,
                             uint64_t *index);

void hapax__kafka_window_done(struct hapax__kafka_window *window, uint64_t index);

/* The offsets below `end` that were not added never come: they are done once all before them are.
 * Without the memory to note this, or with a single slot left, the next offset that is added shows
 * it. The window stays open. */
void hapax__kafka_window_end(struct hapax__kafka_window *window, int64_t end);

/* The items that are not done, oldest first: *index is 0 at the beginning. NULL: no more. */
void *hapax__kafka_window_item(const struct hapax__kafka_window *window, uint64_t *index);

void hapax__kafka_window_release(struct hapax__kafka_window *window);

#endif
