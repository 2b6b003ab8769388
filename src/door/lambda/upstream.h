/* SPDX-License-Identifier: Apache-2.0
 *
 * The Runtime API as a client of it sees it: connections that are kept, and the calls. Nothing here asks a proxy.
 */
#ifndef HAPAX_DOOR_LAMBDA_UPSTREAM_H
#define HAPAX_DOOR_LAMBDA_UPSTREAM_H

#include "reply.h"
#include "wire.h"

#include <stdio.h>

#define HAPAX__RUNTIME_PATH "/2018-06-01/runtime/"

struct hapax__upstream;

/* address: HOST:PORT. Connects to nothing yet. INVALID: it is no address, or there is no such host. NOMEM. stop_fd: ends calls that wait
 * for an event; -1: none. */
enum hapax_error hapax__upstream_open(struct hapax__upstream **out, const char *address,
                                      int stop_fd, char text[HAPAX_TEXT_MAX]);
void hapax__upstream_close(struct hapax__upstream *upstream);

/* A connection; *used: it has served before, and may have gone since. NULL: errno says why. */
struct hapax__wire *hapax__upstream_take(struct hapax__upstream *upstream, bool fresh, bool *used);

/* Gives one back. keep: the last response was read to its end, and the other side keeps the connection. */
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

/* Asks and reads the whole answer. lines: more header lines. A connection that turns out to be gone is replaced once. False:
 * errno says why; *got is empty. */
bool hapax__upstream_ask(struct hapax__got *got, struct hapax__upstream *upstream,
                         struct hapax_span method, struct hapax_span target,
                         struct hapax_span lines, struct hapax_span body);

/* Asks for the next event; one without an id is none (EPROTO). for_fd: the connection it is asked for, which ends the question when it is closed (ECANCELED); -1: none,
 * and stop_fd ends it. */
bool hapax__upstream_next(struct hapax__got *got, struct hapax__upstream *upstream, int for_fd);

/* Posts what we made ourselves to invocation/ID/response, or …/error; with ID "" to init/error. */
bool hapax__upstream_post(struct hapax__got *got, struct hapax__upstream *upstream,
                          struct hapax_span id, const struct hapax__lambda_reply *reply);

#endif
