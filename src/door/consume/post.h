/* SPDX-License-Identifier: Apache-2.0
 *
 * A handler over HTTP: each message is POSTed to a URL.
 */
#ifndef HAPAX_DOOR_CONSUME_POST_H
#define HAPAX_DOOR_CONSUME_POST_H

#include <hapax/consume.h>

struct hapax__post;

struct hapax__post_options {
    const char *to; /* URL (http, https) that gets messages by POST */
    const char *reconcile; /* URL that is asked by GET; NULL: none */
    const char *user; /* login at both, where a URL has none; NULL: none */
    const char *password;
    const char *ca; /* file; NULL: the system's */
    /* "amqp", "kafka": for a ce-source that is made, /BROKER/QUEUE. NULL: "messages". */
    const char *broker;
    const char *const *pass_headers; /* names of headers that pass as they are; see event.h */
    size_t pass_header_count;
    int64_t timeout_ms; /* for an answer; policy run_max */
    size_t body_max; /* of an answer that is kept; policy max_response */
    uint32_t concurrency;
    /* Called when calls begin to go unanswered, and when they are answered again. NULL: none. */
    void (*log)(void *arg, const char *line);
    void *log_arg;
};

/* Copies the texts. Reads no environment and asks no proxy. INVALID: text names the setting, but
 * not the URL, which may hold a password. NOMEM. */
enum hapax_error hapax__post_open(struct hapax__post **out,
                                  const struct hapax__post_options *options,
                                  char text[HAPAX_TEXT_MAX]);
void hapax__post_close(struct hapax__post *post);

/* The handler and the hook; arg is the struct hapax__post.
 *
 * The handler POSTs the message as a CloudEvent in binary mode (event.h), once per attempt:
 *   2xx         FINAL. An answer over body_max, or over HAPAX_HEADERS_MAX of headers, is not kept
 *   no connection, and as the attempt's policy has it (core/class.h)    NOT_RUN
 *                 Retry-After of such an answer is told (hapax_delivery_retry_after())
 *   the same, and no answer or a broken one, timeout_ms over, the claim lost, in a hurry    UNKNOWN
 *   other 5xx   FAILED
 *   other 4xx, and 3xx, which is not followed    FAILED, and refused
 * The hook GETs the other URL with the same headers. A whole 2xx: FINAL, with that answer. 404:
 * NOT_RUN. Anything else: UNKNOWN. */
hapax_message_handler hapax__post_handler, hapax__post_reconcile;

#endif
