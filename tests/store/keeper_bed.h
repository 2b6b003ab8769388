/* SPDX-License-Identifier: Apache-2.0
 *
 * What the keeper's tests share: a keeper over a memory store that can be held and made to fail
 * (store/faulty.h), in a folder of its own, and peers that speak the protocol byte by byte.
 */
#ifndef HAPAX_TESTS_KEEPER_BED_H
#define HAPAX_TESTS_KEEPER_BED_H

#include "faulty.h"
#include "store/keeper/frame.h"
#include "store/keeper/keeper.h"

#include "../must.h"

#define WAIT_MS 60000

/* Waits until the condition holds; aborts where it does not in time. */
#define AWAIT(ok)                                                                                  \
    do {                                                                                           \
        int64_t until_ms = bed_now_ms() + WAIT_MS;                                                 \
        while (!(ok)) {                                                                            \
            must(bed_now_ms() < until_ms);                                                         \
            bed_pause();                                                                           \
        }                                                                                          \
    } while (0)

int64_t bed_now_ms(void);
void bed_pause(void);

struct bed {
    char folder[32];
    char path[64];
    char uri[96];
    struct hapax__plan plan;
    struct hapax_store *kept; /* the memory store; lives as long as the bed */
    struct hapax__keeper_server *server;
};

/* A keeper at bed->path; `options` may be NULL, their path is set. */
void bed_open(struct bed *bed, struct hapax__keeper_options *options);
void bed_close(struct bed *bed);

/* Another keeper over the same store, after hapax__keeper_stop(). */
void bed_serve(struct bed *bed, struct hapax__keeper_options *options);

struct hapax_store *bed_client(const struct bed *bed, const char *query);

/* An op on the n-th id by the who-th token, everything else set to ordinary values. */
struct hapax_op bed_op(enum hapax_op_kind kind, unsigned n, unsigned who);

/* The keeper serves, whatever became of others. */
void bed_still_serves(const struct bed *bed);

/* What the keeper says of itself. */
struct bed_info {
    uint32_t queued, clients;
};
struct bed_info bed_ask(const struct bed *bed);

/* ---- peers --------------------------------------------------------------------------- */

int peer_dial(const char *path);
int peer_greet(const char *path); /* dial and exchange greetings */

/* False: the other end is closed. */
bool peer_send(int fd, const void *bytes, size_t len);

/* A whole frame: its kind, and its payload in memory to free. False: the connection ended first. */
bool peer_read(int fd, uint8_t *kind, struct hapax_span *payload);

/* Nothing more comes: the connection is closed. Closes this end. */
void peer_ends(int fd);

/* The next frame is a FAULT with this in its text, and the connection ends. */
void peer_faulted(int fd, const char *text);

/* A REQUEST in memory to free. */
struct hapax_span peer_request(uint32_t seq, const struct hapax_op *ops, uint16_t n);

/* Reads replies until all ops of the request are answered. The frames are leaked into *frames, a
 * list to be freed by peer_free(). */
struct peer_frame {
    struct peer_frame *next;
    uint8_t *bytes;
};
bool peer_answers(int fd, uint32_t seq, struct hapax_op *ops, uint16_t n,
                  struct peer_frame **frames);
void peer_free(struct peer_frame *frames);

#endif
