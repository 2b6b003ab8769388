/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 as the Runtime API speaks it, for both sides of the door: heads, bodies by length and in
 * chunks, trailers. Calls block: the next event may take any time to come.
 */
#ifndef HAPAX_DOOR_LAMBDA_WIRE_H
#define HAPAX_DOOR_LAMBDA_WIRE_H

#include "lines.h"

#define HAPAX__HEAD_MAX (256u << 10) /* bytes of a head */
#define HAPAX__BODY_MAX (64u << 20) /* bytes of a body that is not passed through as it comes */

struct hapax__wire {
    int fd; /* -1: closed */
    /* Until a message begins, a read fails with ECANCELED once stop_fd has one of these events, of
     * poll(). -1: never. */
    int stop_fd;
    short stop_events;
    uint8_t *buffer;
    size_t from, to, size;
    enum {
        HAPAX__BODY_OVER = 0, /* the message has come to its end */
        HAPAX__BODY_LENGTH,
        HAPAX__BODY_CHUNKED,
        HAPAX__BODY_CLOSE /* ends with the connection */
    } framing;
    uint64_t left; /* of the body, or of the chunk */
    bool begun; /* the first chunk's size has been read */
    char *trailers; /* lines behind the last chunk; NULL: none */
    size_t trailers_len;
};

struct hapax__head {
    char *memory;
    struct hapax_span method, target; /* of a request */
    int status; /* of a response */
    bool keep_alive;
    bool expects; /* 100-continue */
    bool chunked;
    struct hapax__lines lines;
};

/* Takes the descriptor. False: out of memory, and it is closed. */
bool hapax__wire_open(struct hapax__wire *wire, int fd);
void hapax__wire_close(struct hapax__wire *wire);

/* Whether a connection is idle and open: the peer sent nothing, and did not close. */
bool hapax__wire_is_idle(const struct hapax__wire *wire);

/* Whether the peer has closed, and nothing is left to be read. */
bool hapax__wire_is_closed(const struct hapax__wire *wire);

enum hapax__wire_end {
    HAPAX__WIRE_GOOD = 0,
    HAPAX__WIRE_OVER, /* closed, or reset, before the first byte */
    /* errno: EPROTO (no HTTP), EMSGSIZE (over a limit), ECANCELED (stopped), or the socket's */
    HAPAX__WIRE_BROKEN
};

/* Reads the next head. The message before must have been read to its end. On GOOD, *head is to be
 * released. */
enum hapax__wire_end hapax__wire_request(struct hapax__wire *wire, struct hapax__head *head);
enum hapax__wire_end hapax__wire_response(struct hapax__wire *wire, struct hapax__head *head);
void hapax__head_release(struct hapax__head *head);

/* The value of a header; empty: none. */
struct hapax_span hapax__head_line(const struct hapax__head *head, const char *name);

/* Gives the next piece of the body, valid until the next call. Empty: the body is over. False: the
 * connection is broken. */
bool hapax__wire_piece(struct hapax__wire *wire, struct hapax_span *piece);

/* Gives the whole body, from malloc(). False: the connection is broken, or the body is over max
 * (EMSGSIZE). */
bool hapax__wire_body(struct hapax__wire *wire, uint8_t **body, size_t *len, size_t max);

/* Sends all of up to eight spans. */
bool hapax__wire_send(struct hapax__wire *wire, const struct hapax_span *parts, size_t n);

#endif
