/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam of a sink: it publishes letters to the queues or topics of one broker.
 *
 * One thread drives a sink. It polls the sink's descriptors together with its own, calls pump()
 * when one is ready or the sink is due, then calls reap() until nothing is left. No call blocks,
 * with two exceptions: open() and close(), and pump() while it makes a new connection, may block
 * for a few seconds. pump() makes a lost connection again, with growing pauses.
 */
#ifndef HAPAX_BROKER_SINK_H
#define HAPAX_BROKER_SINK_H

#include "seam.h"

#include <hapax/consume.h>

#include <poll.h>

/* ---- letters ------------------------------------------------------------------------- */

/* The headers that Hapax itself puts on a letter (hapax/consume.h). */
#define HAPAX__HEADER_ATTEMPTS "hapax-attempts"
#define HAPAX__HEADER_BASE     "hapax-base"
#define HAPAX__HEADER_REASON   "hapax-reason"
#define HAPAX__HEADER_ERROR    "hapax-error"
#define HAPAX__HEADER_FROM     "hapax-from"
#define HAPAX__HEADER_SCOPE    "hapax-scope"
#define HAPAX__HEADER_TIME     "hapax-time"
#define HAPAX__HEADER_ID       "hapax-id"
#define HAPAX__HEADER_POSITION "hapax-position"
#define HAPAX__HEADER_REDRIVE  "hapax-redrive"

/* A letter to publish. The sink borrows all that it points to, until the letter is reaped or
 * withdrawn, or the sink closed. */
struct hapax__letter {
    /* The queue (published through the default exchange), or the topic. */
    const char *to;
    struct hapax_span body;
    struct hapax_span content_type;
    struct hapax_span id;
    struct hapax_span type;
    /* Kafka: the key. SQS: the message group. AMQP has no use for it. */
    struct hapax_span key;
    /* The message's own `hapax-time`: two letters of one message differ by it, if the message was
     * put back between them. SQS would drop the second one as a duplicate otherwise. */
    struct hapax_span life;
    /* Published too, but for names beginning with `hapax-` that `own` has as well. */
    const struct hapax_message_header *headers;
    size_t header_count;
    /* The `kept` of the delivery that the letter is a copy of. */
    struct hapax_span kept;
    const struct hapax_message_header *own;
    size_t own_count;
    /* The letter is delivered after this time at the earliest, rounded up to a second or a power of
     * two of seconds; 0: now. Only for sinks that delay. */
    int64_t delay_ms;
    void *tag; /* the sender's own */
};

enum hapax__sent {
    /* reap(): no letter has ended since. */
    HAPAX__SENT_NOTHING = 0,
    /* The broker confirmed the letter: it is as durable as the broker makes it. */
    HAPAX__SENT_OK,
    /* The letter was surely not published: there is no such queue or topic, or it is too large.
     * Sending it again will not help soon. */
    HAPAX__SENT_REFUSED,
    /* The letter may have been published. Send it again. */
    HAPAX__SENT_LOST
};

/* ---- sinks --------------------------------------------------------------------------- */

struct hapax__sink {
    const struct hapax__sink_type *type;
    /* The last failure of the connection, a queue or a topic, without secrets. Empty since it works
     * again. */
    char text[HAPAX_TEXT_MAX];
    /* Why the letter that was reaped last is REFUSED; "" for any other result. */
    char why[HAPAX_TEXT_MAX];
    bool connected;
    /* The broker refused the login, and never took one. Or its library refuses the settings.
     * Waiting will not help; `text` says why. */
    bool refused;
    const char *name; /* of the URI's queue or topic; "": the URI has none */
};

struct hapax__sink_type {
    const char *schemes[3];

    /* Reads the URI, as a source does, and connects to nobody. The queue or topic may be missing.
     * INVALID, UNSUPPORTED, NOMEM: text says why. */
    enum hapax_error (*open)(struct hapax__sink **out, const char *uri, char text[HAPAX_TEXT_MAX]);

    /* Notes that letters will go to this queue or topic. The next pump() makes it, durable, if it
     * is not there. If the broker refuses to make it, letters to it are REFUSED. */
    void (*make)(struct hapax__sink *sink, const char *name);

    /* Whether the sink's own queue or topic (`name`) is there. NOTHING: not known yet; pump, and
     * ask again. OK. REFUSED: it is not, or may not be used; `why` says more. Kafka's may block for
     * a few seconds. */
    enum hapax__sent (*look)(struct hapax__sink *sink);

    /* Whether letters can go to this name; if not, *why is a static text. NULL: letters can go to
     * any name. */
    bool (*name_check)(const char *name, const char **why);

    /* Sets at most HAPAX__POLLFDS_MAX descriptors and returns how many. *due_us
     * (hapax__monotonic_us()): call pump() at this time at the latest. */
    size_t (*watch)(struct hapax__sink *sink, struct pollfd *fds, int64_t *due_us);
    void (*pump)(struct hapax__sink *sink);

    /* Takes a letter to publish. Letters to one name (and key) are published in the order they were
     * sent. False: the sink has no room for now; pump and reap first. */
    bool (*send)(struct hapax__sink *sink, const struct hapax__letter *letter);

    /* Takes a letter back, named by its tag: nothing of it was sent, and it is not reaped. False:
     * it may have been sent, or there is no such letter. NULL: no letter can be taken back. */
    bool (*withdraw)(struct hapax__sink *sink, const void *tag);

    /* The result of a letter that has ended, in any order; *tag is the letter's. Each letter is
     * reaped once. */
    enum hapax__sent (*reap)(struct hapax__sink *sink, void **tag);

    /* Frees the sink. Letters that were not reaped are forgotten, published or not. */
    void (*close)(struct hapax__sink *sink);
};

extern const struct hapax__sink_type hapax__sink_amqp, hapax__sink_kafka, hapax__sink_sqs;

#endif
