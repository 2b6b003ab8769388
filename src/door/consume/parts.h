/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the message door between its sources and the calls it makes (call.h): what a message asks (ask.c), what its
 * handler over HTTP is told and says (http.c), and what is counted (stats.c, metrics.c).
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
    const char *
        broker; /* "amqp", "kafka": for a ce-source that is made, /BROKER/QUEUE; NULL: "messages" */
    int64_t timeout_ms; /* for an answer; policy run_max */
    size_t body_max; /* of an answer that is kept; policy max_response */
    uint32_t concurrency;
    void (*log)(void *arg,
                const char *line); /* NULL: none; when calls go unanswered, and when no more */
    void *log_arg;
};

/* INVALID: text names the setting, and no URL: it may hold a password. NOMEM. Texts are copied. Reads no environment, and
 * asks no proxy. */
enum hapax_error hapax__post_open(struct hapax__post **out,
                                  const struct hapax__post_options *options,
                                  char text[HAPAX_TEXT_MAX]);
void hapax__post_close(struct hapax__post *post);

/* hapax_message_handlers; arg is the struct hapax__post.
 *
 * POSTs the message as a CloudEvent in binary mode (event.h), once per attempt:
 *   2xx                            FINAL; over body_max, or over HAPAX_HEADERS_MAX of headers, it is not kept
 *   401 403 408 425 429 503, 409 with Retry-After, and no connection     NOT_RUN
 *   502 504, an answer that is none or not whole, timeout_ms over, the claim lost, or in a hurry   UNKNOWN
 *   other 5xx                      FAILED
 *   other 4xx, and 3xx: none is followed    FAILED, and refused
 * reconcile: GETs the other URL with the same headers. Whole 2xx: FINAL, with it; 404: NOT_RUN; else UNKNOWN. */
hapax_message_handler hapax__post_handler, hapax__post_reconcile;

/* ---- counting (stats.c), and showing it (metrics.c) -------------------------------------- */

/* Adds to a counter or gauge of struct hapax_consumer_stats while others read it. */
void hapax__stats_add(uint64_t *counter, uint64_t n);
void hapax__stats_sub(uint64_t *gauge, uint64_t n);
void hapax__stats_time(uint64_t buckets[32], uint64_t *sum, int64_t us);

struct hapax__metrics;

/* Serves http://ADDRESS/metrics (Prometheus text 0.0.4) and /health (200, or 503 with a line that says what is
 * away) from a thread of its own. address: HOST:PORT; port 0: any, *port says which. INVALID, UNAVAILABLE (taken). */
enum hapax_error hapax__metrics_open(struct hapax__metrics **out, const char *address,
                                     const struct hapax_consumer_stats *stats, const char *source,
                                     uint16_t *port, char text[HAPAX_TEXT_MAX]);
void hapax__metrics_close(struct hapax__metrics *metrics);

#endif
