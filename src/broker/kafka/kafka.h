/* SPDX-License-Identifier: Apache-2.0
 *
 * Kafka URIs (docs/consume-kafka.md), and what the source and the sink of Kafka share:
 *
 *   kafka://HOST:PORT[,HOST:PORT…][/TOPIC][?group=GROUP][&partitions=N][&PROPERTY=VALUE…]
 *
 * PROPERTY is one of librdkafka's, which checks the value. Properties that this door must own are
 * refused. Names and values are percent-decoded. A user and a password are sasl.username and
 * sasl.password, or come from the environment: HAPAX_KAFKA_USER and HAPAX_KAFKA_PASSWORD. With a
 * user and nothing else, the connection is encrypted (sasl_ssl) and the mechanism is PLAIN.
 */
#ifndef HAPAX_BROKER_KAFKA_KAFKA_H
#define HAPAX_BROKER_KAFKA_KAFKA_H

#include <hapax/hapax.h>

#include <librdkafka/rdkafka.h>

#define HAPAX__KAFKA_TOPIC_MAX      249u /* bytes of a topic's name, by Kafka */
#define HAPAX__KAFKA_BROKERS_MAX    2048u /* bytes of the list of brokers */
#define HAPAX__KAFKA_VALUE_MAX      8192u /* bytes of a property; a certificate may be one */
#define HAPAX__KAFKA_PARTITIONS_MAX 10000u /* of a topic that is made */

/* Headers that only the source and the sink use. DUE: a message in a retry topic is not handed out
 * before this time, in ms since 1970. POSITION: where the message stood that a letter copies. */
#define HAPAX__KAFKA_DUE      "hapax-due"
#define HAPAX__KAFKA_POSITION "hapax-position"

/* TOPIC.GROUP.retry is the topic of messages that are tried later. */
#define HAPAX__KAFKA_RETRY ".retry"

enum hapax__kafka_role { HAPAX__KAFKA_SOURCE = 1, HAPAX__KAFKA_SINK };

struct hapax__kafka_uri {
    char topic[HAPAX__KAFKA_TOPIC_MAX + 1]; /* "": none */
    char group[HAPAX__KAFKA_TOPIC_MAX + 1]; /* "": none */
    int partitions; /* of topics that are made; -1: the broker's default */
    rd_kafka_conf_t *conf; /* owned by the caller, who destroys it */
};

/* Reads a URI, and the environment. A source needs a topic and a group. INVALID, NOMEM: text says
 * what is wrong, without the value of a property that may be a secret; `out` then owns nothing. */
enum hapax_error hapax__kafka_uri(struct hapax__kafka_uri *out, const char *uri,
                                  enum hapax__kafka_role role, char text[HAPAX_TEXT_MAX]);

/* Calls hapax__kafka_uri(), and makes the eventfd that librdkafka writes to when it has something
 * to report. The caller closes the eventfd. */
enum hapax_error hapax__kafka_begin(struct hapax__kafka_uri *out, int *wake, const char *uri,
                                    enum hapax__kafka_role role, char text[HAPAX_TEXT_MAX]);

/* Says why the broker did not take the login of these settings. */
const char *hapax__kafka_login_refused(const rd_kafka_conf_t *conf);

/* ---- the window of a partition (window.c) ------------------------------------------ */

/* The most offsets from the first that is not done to the last that was taken. */
#define HAPAX__KAFKA_WINDOW_MAX 16384u

struct hapax__kafka_slot {
    int64_t offset;
    void *item; /* NULL: done */
};

struct hapax__kafka_window {
    struct hapax__kafka_slot *slots; /* a ring */
    size_t size; /* a power of two, or 0 */
    uint64_t head, tail; /* indexes of slots; they only grow */
    /* All offsets below it are done. -1: none was added yet. */
    int64_t next;
};

/* Whether another offset may be added. */
bool hapax__kafka_window_open(const struct hapax__kafka_window *window);

/* The least offset that may be added. */
int64_t hapax__kafka_window_least(const struct hapax__kafka_window *window);

/* Adds an offset; *index names it. `item` is not NULL, and stays the caller's. False: out of
 * memory. */
bool hapax__kafka_window_add(struct hapax__kafka_window *window, int64_t offset, void *item,
                             uint64_t *index);

void hapax__kafka_window_done(struct hapax__kafka_window *window, uint64_t index);

/* Notes that the offsets below `end` that were not added never come. They are done once all offsets
 * before them are. Without memory for this note, or with a single slot left, the next offset that
 * is added shows the same. The window stays open. */
void hapax__kafka_window_end(struct hapax__kafka_window *window, int64_t end);

/* Walks the items that are not done, the oldest first. Start *index at 0. NULL: no more. */
void *hapax__kafka_window_item(const struct hapax__kafka_window *window, uint64_t *index);

void hapax__kafka_window_release(struct hapax__kafka_window *window);

#endif
