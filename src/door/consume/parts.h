/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the message door between its sources and its calls (call.h): what a message asks
 * (ask.c), a handler over HTTP (http.c), and what is counted (stats.c, metrics.c).
 */
#ifndef HAPAX_DOOR_CONSUME_PARTS_H
#define HAPAX_DOOR_CONSUME_PARTS_H

#include "broker/sink.h"
#include "broker/source.h"
#include "door/ask.h"

/* ---- what a message asks (ask.c) ------------------------------------------------------- */

/* Reads the settings key, fingerprint, scope and step of a consumer, which is borrowed. INVALID:
 * text names the setting. */
enum hapax_error hapax__message_ask_read(struct hapax__ask *ask,
                                         const struct hapax_consumer *consumer,
                                         const struct hapax__source *source,
                                         char text[HAPAX_TEXT_MAX]);

/* Finds what a message asks. With MISSING_KEY the rest of the request is there. The caller is that
 * of the HTTP door for a request without credentials: a broker does not say who sends. NOMEM: ask
 * again. */
enum hapax_error hapax__message_ask(struct hapax__asked *out, const struct hapax__ask *ask,
                                    const struct hapax_policy *policy,
                                    const struct hapax__delivered *delivered);

/* ---- a handler over HTTP (http.c) ------------------------------------------------------ */

struct hapax__post;

struct hapax__post_options {
    const char *to; /* http:// or https:// URL; messages are POSTed to it */
    const char *reconcile; /* URL, asked by GET; NULL: none */
    const char *ca; /* file; NULL: the system's */
    /* "amqp" or "kafka", for a ce-source that is made: /BROKER/QUEUE. NULL: "messages". */
    const char *broker;
    int64_t timeout_ms; /* for an answer; policy run_max */
    size_t body_max; /* of an answer that is kept; policy max_response */
    uint32_t concurrency;
    /* Called when calls go unanswered, and when they are answered again. NULL: none. */
    void (*log)(void *arg, const char *line);
    void *log_arg;
};

/* Copies the texts. Reads no environment, and asks no proxy. INVALID: text names the setting, and
 * never the URL, which may hold a password. NOMEM. */
enum hapax_error hapax__post_open(struct hapax__post **out,
                                  const struct hapax__post_options *options,
                                  char text[HAPAX_TEXT_MAX]);
void hapax__post_close(struct hapax__post *post);

/* Handlers; arg is the struct hapax__post.
 *
 * hapax__post_handler() POSTs the message as a CloudEvent in binary mode (event.h), once per
 * attempt. The class by the answer:
 *   FINAL              2xx. Over body_max, or HAPAX_HEADERS_MAX of headers, it is not kept
 *   NOT_RUN            401 403 408 425 429 503, 409 with Retry-After, and no connection
 *   UNKNOWN            502 504, no answer or half an answer, timeout_ms over, the claim lost, or
 *                      the consumer ends in a hurry
 *   FAILED             other 5xx
 *   FAILED, refused    other 4xx, and 3xx: no redirect is followed
 *
 * hapax__post_reconcile() GETs the other URL with the same headers. A whole 2xx is FINAL, with that
 * outcome; 404 is NOT_RUN; any other answer is UNKNOWN. */
hapax_message_handler hapax__post_handler, hapax__post_reconcile;

/* ---- counting (stats.c), and showing it (metrics.c) -------------------------------------- */

/* Adds to a counter or gauge of struct hapax_consumer_stats while others read it. */
void hapax__stats_add(uint64_t *counter, uint64_t n);
void hapax__stats_sub(uint64_t *gauge, uint64_t n);
void hapax__stats_time(uint64_t buckets[32], uint64_t *sum, int64_t us);

struct hapax__metrics;

/* Serves http://ADDRESS/metrics (Prometheus text 0.0.4) and /health from a thread of its own.
 * /health is 200, or 503 with a line that names what is away. address: HOST:PORT; with port 0 any
 * port, which *port says. INVALID, UNAVAILABLE (the port is taken). */
enum hapax_error hapax__metrics_open(struct hapax__metrics **out, const char *address,
                                     const struct hapax_consumer_stats *stats, const char *source,
                                     uint16_t *port, char text[HAPAX_TEXT_MAX]);
void hapax__metrics_close(struct hapax__metrics *metrics);

#endif
