/* SPDX-License-Identifier: Apache-2.0
 *
 * One client's connection to a keeper's server. It belongs to the server's thread.
 */
#ifndef HAPAX_STORE_KEEPER_CONNECTION_H
#define HAPAX_STORE_KEEPER_CONNECTION_H

#include "base/socket.h"
#include "frame.h"
#include "lane/lane.h"

#define HAPAX__IN_HAND_MAX 4u /* requests of one connection */
#define HAPAX__BUFFER_SIZE                                                                         \
    ((size_t)32 << 10) /* longer ones are for one frame, and freed after it */

/* What a connection does with its input. Requests in hand go on in every phase but GONE. */
enum hapax__client_phase {
    HAPAX__GREETING, /* a HELLO is awaited */
    HAPAX__READING, /* a request is awaited, or its rest */
    HAPAX__ADMISSION, /* a long request waits for memory */
    HAPAX__WAITING, /* a fault or the end is next, when nothing is in hand */
    HAPAX__CLOSING, /* a fault is being written */
    HAPAX__GONE /* closed; jobs in the lane may still borrow from it */
};

struct hapax__keeper_work { /* one op in hand */
    struct hapax__job job; /* first: a job is cast to its work */
    struct hapax__keeper_connection *connection;
    size_t answer_size; /* at most; once it is ready */
    bool done;
};

struct hapax__keeper_request {
    uint8_t *bytes; /* its frame, from which its ops borrow; or memory for a next one */
    size_t cap;
    struct hapax__keeper_work *work; /* its ops */
    uint32_t work_cap;
    uint32_t seq;
    uint32_t count;
    uint32_t submitted; /* ops before this were given to the lane, or refused */
    uint32_t ready; /* ops before this are answered */
    uint32_t replied; /* ops before this are in a reply */
};

struct hapax__keeper_connection {
    struct hapax__keeper_server *server;
    struct hapax__keeper_connection *next, *prev; /* of all */
    struct hapax__keeper_connection *next_touched;
    bool touched; /* jobs came back in this round */
    bool door; /* its peer may do no more than a door does */
    enum hapax__client_phase phase;
    int fd;
    uint32_t events; /* what epoll watches for */
    int64_t since_us; /* when a half frame began, or when output moved last */
    uint32_t frame_max; /* the longest the client takes */

    uint8_t *in;
    size_t in_cap;
    size_t in_len;

    uint8_t *out;
    size_t out_cap;
    size_t out_at;
    size_t out_len;

    struct hapax__keeper_request request[HAPAX__IN_HAND_MAX]; /* a ring */
    uint32_t first;
    uint32_t in_hand;
    uint32_t in_lane; /* ops */
    uint32_t unready; /* ops that were submitted, and are not ready */
    size_t ready_size; /* of the answers that are ready, and in no reply */
    size_t answer_max; /* the longest of the recent answers */
};

struct hapax__keeper_server {
    struct hapax__lane *lane;
    struct hapax__socket socket;
    size_t body_max;
    uint32_t clients_max;
    int64_t patience_ms;
    int stop_fd;
    int epoll_fd;

    struct hapax__keeper_connection *connections;
    uint32_t clients;
    size_t grown; /* bytes of buffers for long requests */
    bool released; /* some of `grown` was freed */
    bool graves; /* some connections are GONE */
    bool deaf; /* no descriptors to accept with, until the next tick */
    bool stopping;

    uint32_t pid;
    struct hapax_span scheme; /* of the store */
};

/* Makes a connection that owns fd and is in the server's list. door: its peer has only a door's
 * rights. False: no memory or descriptor; the caller still owns fd. */
bool hapax__connection_open(struct hapax__keeper_server *server, int fd, bool door);

/* Takes the events of epoll. */
void hapax__connection_event(struct hapax__keeper_connection *c, uint32_t events);

/* Whether nothing is in hand, and all replies are written. */
bool hapax__connection_idle(const struct hapax__keeper_connection *c);

/* Whether input is taken now. */
bool hapax__connection_reads(const struct hapax__keeper_connection *c);

/* Calls recv() once and advances. The connection reads. */
void hapax__connection_receive(struct hapax__keeper_connection *c);

/* Makes room for output; what there was is written. False: no memory. */
bool hapax__connection_reserve(struct hapax__keeper_connection *c, size_t size);

/* Writes as much as it can. True: all output is written. False: not yet, or the client is gone. */
bool hapax__connection_flush(struct hapax__keeper_connection *c);

/* Frees a buffer, and sets it to none. */
void hapax__buffer_free(struct hapax__keeper_server *server, uint8_t **bytes, size_t *cap);

/* Does all that can be done now: takes frames, submits ops, replies. */
void hapax__connection_advance(struct hapax__keeper_connection *c);

/* A job came back from the lane. Call advance when all jobs of the round have. */
void hapax__connection_answered(struct hapax__keeper_work *work);

/* Whether the client takes too long over a frame or a reply. */
bool hapax__connection_overdue(const struct hapax__keeper_connection *c, int64_t now_us);

/* Closes the socket; the connection is GONE then. */
void hapax__connection_hang_up(struct hapax__keeper_connection *c);

/* Frees a connection that is GONE and has no job in the lane. */
void hapax__connection_bury(struct hapax__keeper_connection *c);

/* What the keepers of this process count. Two keepers are two threads, so each word is changed by a
 * locked instruction. */
struct hapax__keeper_counts {
    struct hapax__lane_counts lane;
    uint64_t requests;
    uint64_t clients; /* gauges */
    uint64_t ops;
};

extern struct hapax__keeper_counts hapax__keeper_counts;

static inline void hapax__keeper_count(uint64_t *word, uint64_t n)
{
    (void)__atomic_fetch_add(word, n, __ATOMIC_RELAXED);
}

/* ---- requests in hand (request.c) ---------------------------------------------------- */

/* The i-th request in hand, or, behind the last one, that which is next. */
static inline struct hapax__keeper_request *
hapax__request_in_hand(struct hapax__keeper_connection *c, uint32_t i)
{
    return &c->request[(c->first + i) % HAPAX__IN_HAND_MAX];
}

/* The request that is next, with room for so many ops. The caller fills it in, and counts it as in
 * hand. NULL: no memory. */
struct hapax__keeper_request *hapax__request_new(struct hapax__keeper_connection *c,
                                                 uint32_t count);

/* Frees what a request has; none of its ops is in the lane. */
void hapax__request_free(struct hapax__keeper_server *server, struct hapax__keeper_request *r);

/* A job that asks the store for its advice. Called in the lane's thread. What keeps the store from
 * answering is a danger. */
void hapax__request_look(struct hapax_store *store, struct hapax__job *job);

/* Advances the requests in hand. True: something changed. */
bool hapax__requests_run(struct hapax__keeper_connection *c);

#endif
