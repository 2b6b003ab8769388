/* SPDX-License-Identifier: Apache-2.0
 *
 * The two seams of the message door: a source gives messages and settles them, a sink publishes
 * letters. Both are driven by one thread, without blocking: it polls their descriptors together with its own,
 * calls pump() when one is ready or due, and then take() or reap() until there is no more. Only open(), close() and the
 * making of a new connection within pump() may block, for a few seconds.
 *
 * They hold no semantics: what becomes of a message is decided by the loop (loop.c), which says it by settle().
 *
 * A source keeps each message it gave until that is settled. Where the broker takes deliveries back (a connection is
 * lost, a partition moves) it marks them `voided`; the loop still settles each once, and the source then does
 * nothing for it but free it. A connection that is lost is made again by pump(), with growing pauses.
 */
#ifndef HAPAX_BROKER_SOURCE_H
#define HAPAX_BROKER_SOURCE_H

#include <hapax/consume.h>

#include <poll.h>

#define HAPAX__POLLFDS_MAX 8u /* of one source or sink */

/* ---- messages ------------------------------------------------------------------------ */

/* The consumer's own headers on a copy (hapax/consume.h). */
#define HAPAX__HEADER_ATTEMPTS "hapax-attempts"
#define HAPAX__HEADER_BASE     "hapax-base"
#define HAPAX__HEADER_REASON   "hapax-reason"
#define HAPAX__HEADER_ERROR    "hapax-error"
#define HAPAX__HEADER_FROM     "hapax-from"
#define HAPAX__HEADER_SCOPE    "hapax-scope"
#define HAPAX__HEADER_TIME     "hapax-time"
#define HAPAX__HEADER_POSITION "hapax-position"
#define HAPAX__HEADER_REDRIVE  "hapax-redrive"

/* One delivery: made by a source, lent to the loop from take() to settle(). */
struct hapax__delivered {
    struct hapax_message message; /* its bytes are the source's, and stay until settle() */
    struct hapax_span
        order; /* deliveries with the same bytes here are run one at a time, in the order
                                taken; empty: any */
    bool voided; /* set by the source, in the loop's thread */
    bool
        damaged; /* its headers cannot be read, or are too many: `too_large` or a letter as it is */
    const struct hapax_span
        *unread; /* names of headers whose values are no text: not among the message's, but there */
    size_t unread_count;
    struct hapax_span
        kept; /* AMQP: headers of other types than text, as encoded, for letters to AMQP */
    void *loop; /* the loop's own */
};

enum hapax__settle {
    HAPAX__SETTLE_ACK =
        1, /* done with: the broker forgets it. Where it was copied elsewhere, that is confirmed */
    HAPAX__SETTLE_RETURN, /* back to the broker, for anybody, soon */
    HAPAX__SETTLE_REJECT /* to the broker's own dead-lettering (types with `rejects`) */
};

/* ---- letters ------------------------------------------------------------------------- */

/* What is published. All spans are borrowed until it is reaped or the sink is closed. */
struct hapax__letter {
    const char *to; /* queue (through the default exchange) or topic */
    struct hapax_span body;
    struct hapax_span content_type;
    struct hapax_span id;
    struct hapax_span type;
    struct hapax_span key; /* Kafka: the key; SQS: the group; AMQP: not used */
    struct hapax_span
        life; /* what tells it from one that was put back and is a letter again: `hapax-time` of the message */
    const struct hapax_message_header
        *headers; /* not those of names beginning with `hapax-` that `own` has too */
    size_t header_count;
    struct hapax_span kept; /* of the delivery it is a copy of */
    const struct hapax_message_header *own;
    size_t own_count;
    int64_t
        delay_ms; /* sinks that delay: to be delivered to `to` after this time at the earliest, rounded up to
                         a second or a power of two of them; 0: now */
    void *tag; /* the sender's */
};

enum hapax__sent {
    HAPAX__SENT_NOTHING = 0, /* reap: no more for now */
    HAPAX__SENT_OK, /* confirmed by the broker, durable as far as that is */
    HAPAX__SENT_REFUSED, /* surely not published: no such queue or topic, too large; sending again will not help soon */
    HAPAX__SENT_LOST /* may have been published: send it again */
};

/* ---- sources ------------------------------------------------------------------------- */

struct hapax__source {
    const struct hapax__source_type *type;
    char text[HAPAX_TEXT_MAX]; /* the last failure, without secrets */
    bool connected;
    uint64_t reconnects;
    uint64_t voided;
    int64_t lag; /* -1: not known */
    bool more; /* when nothing is taken any more: it has messages, or takes none as it is full */
    const char *
        name; /* of the queue, or TOPIC.GROUP: what dead letters, retries and parked ones are named after */
    const char *group; /* what the scope is by default: the queue, or the group */
};

struct hapax__source_type {
    const char *schemes[3]; /* "amqp", "amqps" */
    bool delays; /* its sink can delay letters: retries go by way of the broker */
    bool rejects;
    bool positions; /* its messages have one */
    bool estimates; /* its lag is about right, and a minute late */
    enum hapax_order
        orders; /* the default order; NONE: it has no other; DEFAULT: open() knows, and refuses what it has not */

    /* Reads the settings' URI and connects to nobody. INVALID, UNSUPPORTED, NOMEM; text says which. */
    enum hapax_error (*open)(struct hapax__source **out, const struct hapax_consumer *consumer,
                             char text[HAPAX_TEXT_MAX]);

    /* Sets at most HAPAX__POLLFDS_MAX; returns how many. *due_us (hapax__monotonic_us()): call pump() then at the latest. */
    size_t (*watch)(struct hapax__source *source, struct pollfd *fds, int64_t *due_us);

    /* Connects, keeps the connection alive, sends what waits. room: how many more messages the loop would
     * take; 0: stop fetching, and go on with all else. REFUSED: the queue is not there or may not be read
     * (text); anything else is mended by itself, and only told by `connected` and text. */
    enum hapax_error (*pump)(struct hapax__source *source, size_t room);

    /* The next message; NULL: none now. */
    struct hapax__delivered *(*take)(struct hapax__source *source);

    /* Ends a delivery and frees it, at once or when the broker was told. Never fails: what cannot be told will be
     * delivered again. */
    void (*settle)(struct hapax__source *source, struct hapax__delivered *delivered,
                   enum hapax__settle how);

    /* It is still in hand: called for each every few seconds. NULL: not needed. */
    void (*extend)(struct hapax__source *source, struct hapax__delivered *delivered);

    /* Ends a delivery as RETURN does, but it is delivered again after this time at the earliest, as far as the broker
     * can. NULL: it cannot. Where it can, messages of an order are not delivered while one of them is out or waits, so
     * those behind one that is given back are given back as well. */
    void (*postpone)(struct hapax__source *source, struct hapax__delivered *delivered,
                     int64_t delay_ms);

    /* What the queue is called that dead letters ("dead") or parked ones ("parked") go to. NULL: NAME.dead, NAME.parked. */
    void (*name_letters)(const struct hapax__source *source, char *out, size_t size,
                         const char *what);

    /* The loop takes no more, and has settled all: tells the broker what is left to tell, for wait_ms at most,
     * and frees the source. */
    void (*close)(struct hapax__source *source, int64_t wait_ms);
};

extern const struct hapax__source_type hapax__source_amqp, hapax__source_kafka, hapax__source_sqs;

/* The type for a URI; NULL: none of its scheme. */
const struct hapax__source_type *hapax__source_type_of(const char *uri);

/* ---- sinks --------------------------------------------------------------------------- */

struct hapax__sink {
    const struct hapax__sink_type *type;
    char text[HAPAX_TEXT_MAX];
    bool connected;
    const char *name; /* of the queue or topic of its URI; "": it has none */
};

struct hapax__sink_type {
    const char *schemes[3];

    /* Reads the URI (as a source's; queue or topic may be missing) and connects to nobody. */
    enum hapax_error (*open)(struct hapax__sink **out, const char *uri, char text[HAPAX_TEXT_MAX]);

    /* Makes a queue or topic that letters will go to, durable, where it is not there; with the next pump().
     * Where that is refused, letters to it are. */
    void (*make)(struct hapax__sink *sink, const char *name);

    /* Whether letters can go to this name, or *why not: a static text. NULL: to any. */
    bool (*name_check)(const char *name, const char **why);

    size_t (*watch)(struct hapax__sink *sink, struct pollfd *fds, int64_t *due_us);
    void (*pump)(struct hapax__sink *sink);

    /* Takes a letter to publish; letters to one name (and key) are published in the order sent. False: no room for now; pump and reap first. */
    bool (*send)(struct hapax__sink *sink, const struct hapax__letter *letter);

    /* What became of a letter, in any order; *tag is its. NOTHING: none now. */
    enum hapax__sent (*reap)(struct hapax__sink *sink, void **tag);

    /* Frees the sink; letters not reaped are forgotten, published or not. */
    void (*close)(struct hapax__sink *sink);
};

extern const struct hapax__sink_type hapax__sink_amqp, hapax__sink_kafka, hapax__sink_sqs;

const struct hapax__sink_type *hapax__sink_type_of(const char *uri);

/* Types that a test plays itself, looked at first; NULL: none any more. Before other threads look. */
void hapax__source_use(const struct hapax__source_type *source,
                       const struct hapax__sink_type *sink);

#endif
