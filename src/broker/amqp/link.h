/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to RabbitMQ for one thread: it connects with a deadline, reads and writes frames
 * without waiting, keeps heartbeats, and makes growing pauses between tries. Frames of a channel go
 * to the source (source.c) or the sink (sink.c); frames of the connection itself end here.
 *
 * Only hapax__amqp_link_connect() blocks: for the URI's timeout at most, and while the host's name
 * is resolved.
 */
#ifndef HAPAX_BROKER_AMQP_LINK_H
#define HAPAX_BROKER_AMQP_LINK_H

#include "uri.h"

#include "library.h"
#include <poll.h>

#define HAPAX__AMQP_FRAME_MAX 131072 /* bytes; RabbitMQ's own default and maximum */

struct hapax__amqp_link {
    const struct hapax__amqp_uri *uri; /* borrowed */
    /* Of HAPAX_TEXT_MAX bytes, borrowed, without secrets: the last failure or the alarm. Empty: it
     * works. */
    char *text;
    amqp_connection_state_t state; /* NULL: not connected */
    amqp_frame_t frame; /* the last one read */
    bool blocked; /* the broker has an alarm and takes no letters */
    int64_t turned_us; /* when blocked changed; 0: it never did */
    /* A login succeeded before: if one is refused now, the broker is in trouble. */
    bool served;
    /* A delivery limit of -1 means no limit: RabbitMQ 4 and later. */
    bool minus_one;
    uint32_t tries; /* failed ones in a row */
    int64_t next_us; /* not connected: when to try again */
};

void hapax__amqp_link_init(struct hapax__amqp_link *link, const struct hapax__amqp_uri *uri,
                           char text[HAPAX_TEXT_MAX]);

/* Closes the connection. Tells the broker, if that takes no waiting. */
void hapax__amqp_link_release(struct hapax__amqp_link *link);

/* Connects and logs in, and opens no channel. UNAVAILABLE: text says why, next_us when to try
 * again. REFUSED: the same, but another try will hardly help (user, password, vhost, a certificate,
 * a file of the URI). */
enum hapax_error hapax__amqp_link_connect(struct hapax__amqp_link *link);

/* Notes that the connection works: the next pause is a short one again. */
void hapax__amqp_link_works(struct hapax__amqp_link *link);

/* Closes the connection, sets text (printf-like) and next_us. */
void hapax__amqp_link_lose(struct hapax__amqp_link *link, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads the next frame of a channel; borrowed until the next call. Sends heartbeats that are due.
 * NULL: there is no frame now, or the connection was lost (state is NULL then). */
const amqp_frame_t *hapax__amqp_link_read(struct hapax__amqp_link *link);

/* How many bytes can be sent now without waiting: 0, or some thousands. 0 without a connection. */
size_t hapax__amqp_link_room(struct hapax__amqp_link *link);

/* Sends a method, or a part of a message. The call may wait, for two heartbeats at most, if it
 * sends more than hapax__amqp_link_room() bytes. False: the connection is lost. */
bool hapax__amqp_link_method(struct hapax__amqp_link *link, amqp_channel_t channel,
                             amqp_method_number_t method, void *fields);
bool hapax__amqp_link_frame(struct hapax__amqp_link *link, const amqp_frame_t *frame);

/* Corked: gathers what is sent into few packets, until the link is uncorked. */
void hapax__amqp_link_cork(struct hapax__amqp_link *link, bool corked);

/* For watch(): the socket, with POLLOUT if `writes`, and when hapax__amqp_link_read() is due
 * next. */
size_t hapax__amqp_link_watch(const struct hapax__amqp_link *link, bool writes, struct pollfd *fds,
                              int64_t *due_us);

/* ---- small things of source and sink --------------------------------------------------- */

/* The arguments of a queue to be made. */
struct hapax__amqp_arguments {
    amqp_table_entry_t entries[8];
    amqp_table_t table;
};

/* Writes the arguments of any queue: its type, and a delivery limit that never drops a message. */
void hapax__amqp_arguments(struct hapax__amqp_arguments *out, const struct hapax__amqp_link *link);
void hapax__amqp_argument_text(struct hapax__amqp_arguments *to, const char *name,
                               const char *value);
void hapax__amqp_argument_number(struct hapax__amqp_arguments *to, const char *name, int64_t value);

/* Asks whether a queue exists. With arguments: makes the queue if it does not exist. */
bool hapax__amqp_declare(struct hapax__amqp_link *link, amqp_channel_t channel, const char *queue,
                         const struct hapax__amqp_arguments *arguments);

/* Writes bytes as text: printable ASCII, any other byte as '?'; cut to the size. */
void hapax__amqp_text(char *out, size_t size, amqp_bytes_t bytes);

#endif
