/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam of a source: it takes messages from one queue, or from a topic for a group. It decides
 * nothing about a message; the message door does, and says the decision by release().
 *
 * One thread drives a source. It polls the source's descriptors together with its own, calls pump()
 * when one is ready or the source is due, then calls take() until it returns NULL. No call blocks,
 * with two exceptions: open() and close(), and pump() while it makes a new connection, may block
 * for a few seconds. pump() makes a lost connection again, with growing pauses.
 *
 * A source keeps each delivery until the delivery is released. The broker may take deliveries back,
 * because a connection is lost or a partition moves. The source then marks them `voided`. A voided
 * delivery must still be released, once; release() then only frees it.
 */
#ifndef HAPAX_BROKER_SOURCE_H
#define HAPAX_BROKER_SOURCE_H

#include "seam.h"

#include <hapax/consume.h>

#include <poll.h>

#define HAPAX__HEADERS_MANY   "it has over 256 headers"
#define HAPAX__HEADERS_UNREAD "its headers cannot be read"
_Static_assert(HAPAX_MESSAGE_HEADERS_MAX == 256, "the limit that HAPAX__HEADERS_MANY names");

/* The headers of a message that a source reads. A copy has more than its message: Hapax adds up to
 * 11, and a broker some. So no copy of a message that is not too_large loses any. */
#define HAPAX__HEADERS_READ_MAX (HAPAX_MESSAGE_HEADERS_MAX + 32u)

/* One delivery of a message. A source makes it and lends it from take() to release(). */
struct hapax__delivered {
    /* Its bytes belong to the source and stay until release(). */
    struct hapax_message message;
    /* Deliveries with equal bytes here are run one at a time, in the order they were taken. Empty:
     * in any order. */
    struct hapax_span order;
    /* The broker took the delivery back. Set by the source, in the thread that drives it. */
    bool voided;
    /* Why the message is `too_large` by its headers: static. A copy would lack some of them. NULL:
     * they are read, all of them. */
    const char *damaged;
    /* Names of headers whose values are no text. The message has these headers, but `message` does
     * not. */
    const struct hapax_span *unread;
    size_t unread_count;
    /* AMQP: headers of other types than text, as encoded, for letters to AMQP. */
    struct hapax_span kept;
    void *loop; /* the driver's own */
};

/* What becomes of a delivery. */
enum hapax__release {
    /* The message is done with; the broker forgets it. Any copy elsewhere has been confirmed
       before. */
    HAPAX__RELEASE_ACK = 1,
    /* The message goes back to the broker, which delivers it again soon, to any consumer. */
    HAPAX__RELEASE_RETURN,
    /* The message goes to the broker's own dead-lettering. Only for types with `rejects`. */
    HAPAX__RELEASE_REJECT
};

struct hapax__source {
    const struct hapax__source_type *type;
    char text[HAPAX_TEXT_MAX]; /* the last failure, without secrets */
    bool connected;
    uint64_t reconnects;
    uint64_t voided; /* how many deliveries were voided so far */
    int64_t lag; /* how many messages wait; -1: not known */
    /* Read it once take() has returned NULL: the source has messages that it cannot give now, or is
     * full. */
    bool more;
    /* Set by the driver, and only read by the AMQP source: how many messages may come to it before
     * one is released. It may grow. 0: as many as in_hand_max. */
    uint32_t at_once;
    /* The queue, or TOPIC.GROUP: dead letters, retries and parked messages are named after it. */
    const char *name;
    const char *group; /* the queue or the group: the default scope */
};

struct hapax__source_type {
    const char *schemes[3]; /* "amqp", "amqps" */
    bool delays; /* its sink can delay letters: retries go by way of the broker */
    bool rejects; /* release() takes REJECT */
    bool positions; /* its messages have a position */
    bool estimates; /* its lag is an estimate, and may be a minute old */
    /* The default order. NONE: the type has no other. DEFAULT: open() decides, and refuses an order
     * that the queue does not have. */
    enum hapax_order orders;

    /* Reads the URI of the settings and connects to nobody. INVALID, UNSUPPORTED, NOMEM: text says
     * why. */
    enum hapax_error (*open)(struct hapax__source **out, const struct hapax_consumer *consumer,
                             char text[HAPAX_TEXT_MAX]);

    /* Sets at most HAPAX__POLLFDS_MAX descriptors and returns how many. *due_us
     * (hapax__monotonic_us()): call pump() at this time at the latest. */
    size_t (*watch)(struct hapax__source *source, struct pollfd *fds, int64_t *due_us);

    /* Connects, keeps the connection alive, sends what waits to be sent. `room` is how many more
     * messages the caller would take; with 0 the source stops fetching and goes on with all else.
     * REFUSED: the queue is not there, or may not be read; text says which. The source mends any
     * other failure itself; `connected` and text show it. */
    enum hapax_error (*pump)(struct hapax__source *source, size_t room);

    /* The next message; NULL: none for now. */
    struct hapax__delivered *(*take)(struct hapax__source *source);

    /* Ends a delivery and frees it, at once or when the broker has been told. Never fails: if the
     * broker cannot be told, it delivers the message again. */
    void (*release)(struct hapax__source *source, struct hapax__delivered *delivered,
                    enum hapax__release how);

    /* Call it for each delivery that was not released, every few seconds. NULL: not needed. */
    void (*extend)(struct hapax__source *source, struct hapax__delivered *delivered);

    /* Releases a delivery as RETURN does, and asks the broker to deliver it again after this time
     * at the earliest. NULL: the broker cannot do that. A broker that can does not deliver the
     * messages of an order while one of them is out or waits. So if one delivery is returned, those
     * behind it in its order must be returned as well. */
    void (*postpone)(struct hapax__source *source, struct hapax__delivered *delivered,
                     int64_t delay_ms);

    /* Writes the name of the queue that dead letters (what: "dead") or parked messages ("parked")
     * go to. NULL: the names are NAME.dead and NAME.parked. */
    void (*name_letters)(const struct hapax__source *source, char *out, size_t size,
                         const char *what);

    /* Call it once every delivery has been released. Tells the broker what is left to tell, for
     * wait_ms at most, and frees the source. */
    void (*close)(struct hapax__source *source, int64_t wait_ms);
};

extern const struct hapax__source_type hapax__source_amqp, hapax__source_kafka, hapax__source_sqs;

#endif
