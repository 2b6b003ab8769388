/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection of the runtime to the proxy, with the request that is being served. A function that
 * returns false has broken the connection, or has to close it.
 */
#ifndef HAPAX_DOOR_LAMBDA_CONNECTION_H
#define HAPAX_DOOR_LAMBDA_CONNECTION_H

#include "invocation.h"

#include <stdio.h>

struct hapax__runtime_connection {
    const struct hapax_lambda *lambda; /* for its log */
    struct hapax__upstream *upstream;
    struct hapax__wire wire;
    struct hapax__head head; /* of the request */
};

/* Lets a runtime that waits for 100 Continue send its body. */
bool hapax__let_send(struct hapax__runtime_connection *c);

/* Reads the request's body; *body is to be freed. */
bool hapax__read_body(struct hapax__runtime_connection *c, uint8_t **body, size_t *len);

/* Answers the request. lines: header lines besides those of the connection; NULL: none. */
bool hapax__respond(struct hapax__runtime_connection *c, int status,
                    const struct hapax__head *lines, struct hapax_span body);
bool hapax__respond_error(struct hapax__runtime_connection *c, int status, const char *type,
                          const char *message);

/* Answers the request with an answer of the Runtime API, and releases that. */
bool hapax__relay(struct hapax__runtime_connection *c, struct hapax__got *got);

/* The Runtime API cannot be reached: gives the runtime no answer either. False. */
bool hapax__gone(struct hapax__runtime_connection *c);

/* Writes the lines of a head that are not about its connection. */
void hapax__put_lines(FILE *out, const struct hapax__head *head);

/* Asks the Runtime API what the runtime asks, with the runtime's headers. */
bool hapax__ask_as(struct hapax__got *got, struct hapax__runtime_connection *c,
                   struct hapax_span target, struct hapax_span body);

/* Passes the request on as it is, and its answer back. The body has been read. */
bool hapax__pass(struct hapax__runtime_connection *c, struct hapax_span body);

/* Posts the end of an invocation, in the function's words or ours. False: errno says why; whether
 * the Runtime API took it is not known. */
bool hapax__post_end(struct hapax__got *got, struct hapax__runtime_connection *c,
                     const struct hapax__invocation *invocation,
                     const struct hapax__lambda_reply *reply);

/* ---- streams (stream.c) --------------------------------------------------------------------- */

/* Passes a response on as it comes. *over: the invocation has ended, and is freed. Otherwise the
 * runtime broke off before anything of the response counted. */
bool hapax__serve_stream(struct hapax__runtime_connection *c, struct hapax__invocation *invocation,
                         bool *over);

/* Whether the trailers of a stream that was read to its end report an error: its type, and its
 * body, decoded in place. Both are spans into the trailers. */
bool hapax__stream_failed(const struct hapax__runtime_connection *c, struct hapax_span *type,
                          struct hapax_span *body);

#endif
