/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection of the runtime's to the proxy, with the request it is at. What returns false has broken it, or has to close it.
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

/* error: of errno; 0: none. */
void hapax__say(const struct hapax_lambda *lambda, const char *what, int error);

/* Lets a runtime that waits for 100 Continue send its body. */
bool hapax__let_send(struct hapax__runtime_connection *c);

/* Reads the request's body; *body is to be freed. */
bool hapax__read_body(struct hapax__runtime_connection *c, uint8_t **body, size_t *len);

/* Answers. lines: header lines besides those of the connection; NULL: none. */
bool hapax__respond(struct hapax__runtime_connection *c, int status,
                    const struct hapax__head *lines, struct hapax_span body);
bool hapax__respond_error(struct hapax__runtime_connection *c, int status, const char *type,
                          const char *message);

/* Answers with what the Runtime API said, and releases it. */
bool hapax__relay(struct hapax__runtime_connection *c, struct hapax__got *got);

/* The Runtime API cannot be reached: the runtime is left alone, as it would be by that. False. */
bool hapax__gone(struct hapax__runtime_connection *c);

/* The lines of a head that are not about its connection. */
void hapax__put_lines(FILE *out, const struct hapax__head *head);

/* Asks the Runtime API as the runtime asks, with its own headers. */
bool hapax__ask_as(struct hapax__got *got, struct hapax__runtime_connection *c,
                   struct hapax_span target, struct hapax_span body);

/* The request goes through as it is, and so does its answer; its body has been read. */
bool hapax__pass(struct hapax__runtime_connection *c, struct hapax_span body);

/* Posts the end of an invocation, in the function's words or ours. False: errno says why nobody knows whether it was taken. */
bool hapax__post_end(struct hapax__got *got, struct hapax__runtime_connection *c,
                     const struct hapax__invocation *invocation,
                     const struct hapax__lambda_reply *reply);

/* ---- streams (stream.c) --------------------------------------------------------------------- */

/* A response that is passed on as it comes. *over: the invocation is, and freed; else the runtime broke off before anything of it
 * counted. */
bool hapax__serve_stream(struct hapax__runtime_connection *c, struct hapax__invocation *invocation,
                         bool *over);

/* Of a stream that was read to its end: whether its trailers are an error's. *type is its, and *body what they say of it, decoded in
 * place; both are spans into the trailers. */
bool hapax__stream_failed(const struct hapax__runtime_connection *c, struct hapax_span *type,
                          struct hapax_span *body);

#endif
