/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of the Runtime API: its calls, and the connections that are kept. No proxy is asked.
 */
#ifndef HAPAX_DOOR_LAMBDA_UPSTREAM_H
#define HAPAX_DOOR_LAMBDA_UPSTREAM_H

#include "reply.h"
#include "wire.h"

#include <stdio.h>

#define HAPAX__RUNTIME_PATH "/2018-06-01/runtime/"

struct hapax__upstream;

/* Connects to nothing yet.
 *   address  HOST:PORT
 *   stop_fd  when it is readable, calls that wait for an event end; -1: none
 * INVALID: the address is none, or there is no such host. NOMEM. */
enum hapax_error hapax__upstream_open(struct hapax__upstream **out, const char *address,
                                      int stop_fd, char text[HAPAX_TEXT_MAX]);
void hapax__upstream_close(struct hapax__upstream *upstream);

/* Gives a connection. *used: it has served before, and may be gone. fresh: do not give such a one.
 * NULL: errno says why. */
struct hapax__wire *hapax__upstream_take(struct hapax__upstream *upstream, bool fresh, bool *used);

/* Takes a connection back. keep: the last response was read to its end, and the other side keeps
 * the connection. Otherwise the connection is closed. */
void hapax__upstream_give(struct hapax__upstream *upstream, struct hapax__wire *wire, bool keep);

/* Writes the beginning of a head: the request line, and Host. */
void hapax__upstream_begin(FILE *out, const struct hapax__upstream *upstream,
                           struct hapax_span method, struct hapax_span target);

struct hapax__got {
    struct hapax__head head;
    uint8_t *body;
    size_t len;
};

void hapax__got_release(struct hapax__got *got);

/* Asks, and reads the whole answer. lines: more header lines. A connection that turns out to be
 * gone is replaced once. False: errno says why; *got is empty. */
bool hapax__upstream_ask(struct hapax__got *got, struct hapax__upstream *upstream,
                         struct hapax_span method, struct hapax_span target,
                         struct hapax_span lines, struct hapax_span body);

/* Asks for the next event; an event without an id is an error (EPROTO). The question ends with
 * ECANCELED when the peer of for_fd closes; with for_fd -1, when stop_fd is readable. */
bool hapax__upstream_next(struct hapax__got *got, struct hapax__upstream *upstream, int for_fd);

/* Posts a reply of our own to invocation/ID/response or …/error; with an empty ID to init/error. */
bool hapax__upstream_post(struct hapax__got *got, struct hapax__upstream *upstream,
                          struct hapax_span id, const struct hapax__lambda_reply *reply);

#endif
