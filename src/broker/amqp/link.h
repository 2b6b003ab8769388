/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to RabbitMQ for one thread: connecting with a deadline, frames read and written
 * without waiting, heartbeats, and pauses between tries that grow. Frames of its channels go to the
 * source (source.c) or the sink (sink.c); frames of the connection itself end here.
 *
 * Only hapax__amqp_link_connect() blocks, for the URI's timeout at most (and as long as a name
 * takes to be resolved).
 */
#ifndef HAPAX_BROKER_AMQP_LINK_H
#define HAPAX_BROKER_AMQP_LINK_H

#include "uri.h"

#include <amqp.h>
#include <poll.h>

#define HAPAX__AMQP_FRAME_MAX 131072 /* bytes; RabbitMQ's own default, and most */

struct hapax__amqp_link {
    const struct hapax__amqp_uri *uri; /* borrowed */
    char *text; /* of HAPAX_TEXT_MAX, borrowed: the last failure, without secrets */
    amqp_connection_state_t state; /* NULL: not connected */
    amqp_frame_t frame; /* the last one read */
    bool blocked; /* the broker has an alarm and takes no letters */
    bool served; /* it logged in once, so that a refused login is a broker in trouble */
    bool minus_one; /* a delivery limit of -1 means none: RabbitMQ 4 and later */
    uint32_t tries; /* that failed, one after another */
    int64_t next_us; /* not connected: when to try again */
};

void hapax__amqp_link_init(struct hapax__amqp_link *link, const struct hapax__amqp_uri *uri,
                           char text[HAPAX_TEXT_MAX]);

/* Closes the connection, telling the broker where that takes no waiting. */
void hapax__amqp_link_release(struct hapax__amqp_link *link);

/* Connects and logs in; no channel is open then. UNAVAILABLE: text says why, next_us when to try
 * again. REFUSED: the same, where trying again will hardly help (user, password, vhost, a
 * certificate, a file of the URI). */
enum hapax_error hapax__amqp_link_connect(struct hapax__amqp_link *link);

/* The connection did what it is for: the next pause is a short one again. */
void hapax__amqp_link_works(struct hapax__amqp_link *link);

/* Closes the connection for a reason, printf-like; next_us is set. */
void hapax__amqp_link_lose(struct hapax__amqp_link *link, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The next frame of a channel; borrowed until the next call. NULL: none is there now, or the
 * connection was lost meanwhile (state is NULL then). Sends heartbeats that are due. */
const amqp_frame_t *hapax__amqp_link_read(struct hapax__amqp_link *link);

/* How many bytes can be sent now without waiting: 0, or some thousands. 0 without a connection. */
size_t hapax__amqp_link_room(struct hapax__amqp_link *link);

/* Sends a method, or a part of a message. Where there was no room() for it this may wait, at most
 * two heartbeats. False: the connection is lost. */
bool hapax__amqp_link_method(struct hapax__amqp_link *link, amqp_channel_t channel,
                             amqp_method_number_t method, void *fields);
bool hapax__amqp_link_frame(struct hapax__amqp_link *link, const amqp_frame_t *frame);

/* Gathers what is sent from now on, until it is uncorked, into few packets. */
void hapax__amqp_link_cork(struct hapax__amqp_link *link, bool corked);

/* For watch(): the socket, with POLLOUT where `writes`, and when hapax__amqp_link_read() is due
 * next. */
size_t hapax__amqp_link_watch(const struct hapax__amqp_link *link, bool writes, struct pollfd *fds,
                              int64_t *due_us);

/* ---- small things of source and sink --------------------------------------------------- */

/* Arguments of a queue to be made. */
struct hapax__amqp_arguments {
    amqp_table_entry_t entries[8];
    amqp_table_t table;
};

/* Those of any queue: its type, and that no number of returns makes the broker drop a message. */
void hapax__amqp_arguments(struct hapax__amqp_arguments *out, const struct hapax__amqp_link *link);
void hapax__amqp_argument_text(struct hapax__amqp_arguments *to, const char *name,
                               const char *value);
void hapax__amqp_argument_number(struct hapax__amqp_arguments *to, const char *name, int64_t value);

/* Asks for a queue: passive, or to be made with arguments. */
bool hapax__amqp_declare(struct hapax__amqp_link *link, amqp_channel_t channel, const char *queue,
                         const struct hapax__amqp_arguments *arguments);

/* Bytes as text: printable ASCII, the rest as '?'; cut to the size. */
void hapax__amqp_text(char *out, size_t size, amqp_bytes_t bytes);

#endif
