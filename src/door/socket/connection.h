/* SPDX-License-Identifier: Apache-2.0
 *
 * One client's connection to a door, and its operations in hand. All of it belongs to the door's
 * thread, but for the calls, which the pulse has until it tells of them.
 *
 * A connection that is closed lives on until its last operation is over: the calls point into it.
 */
#ifndef HAPAX_DOOR_SOCKET_CONNECTION_H
#define HAPAX_DOOR_SOCKET_CONNECTION_H

#include "base/arena.h"
#include "base/socket.h"
#include "door.h"
#include "door/call.h"
#include "door/step.h"
#include "frame.h"
#include "meta.h"
#include "nonces.h"
#include "scopes.h"
#include "json/write.h"

#include <pthread.h>
#include <sys/queue.h>

#define HAPAX__DOOR_BUCKETS 256u
#define HAPAX__DOOR_OPS_MAX 4096u /* in hand of a connection */

enum hapax__door_phase {
    HAPAX__DOOR_GREETING, /* a HELLO is awaited */
    HAPAX__DOOR_OPEN,
    HAPAX__DOOR_CLOSING, /* a FAULT is being written */
    HAPAX__DOOR_GONE /* closed; operations may still be in hand */
};

enum hapax__door_op_phase {
    HAPAX__OP_ASKED, /* the call has not been told to run yet, or saves an end */
    HAPAX__OP_LISTING, /* a step that may run: its name is put into the list of steps */
    HAPAX__OP_RUNNING, /* the client runs handler or hook */
    HAPAX__OP_ENDING, /* it has ended, and waits for its steps to end */
    HAPAX__OP_ANSWERED /* the answer waits for room in the output */
};

/* A step before it runs. */
struct hapax__door_listing {
    unsigned at; /* the record of the list in hand */
    struct hapax__call *call; /* puts the name there */
    struct hapax__step_entry entry;
    enum hapax_answer_kind refused; /* the step was not run, and is answered so; 0: it was */
    enum hapax_error error; /* of the store, where `refused` is STORE_DOWN */
    bool no_memory;
    char text[HAPAX_TEXT_MAX];
};

/* An operation, or a step, in hand. */
struct hapax__door_op {
    struct hapax__door_connection *c;
    uint32_t number; /* the client's */
    LIST_ENTRY(hapax__door_op) bucket;
    TAILQ_ENTRY(hapax__door_op) all; /* of the connection */
    STAILQ_ENTRY(hapax__door_op) lost; /* in the door's mailbox */
    STAILQ_ENTRY(hapax__door_op) answered; /* of the connection */

    enum hapax__door_op_phase phase;
    bool given_up; /* by CANCEL, or with the connection: it does not run any more */
    bool withdrawn; /* the door takes the claim back, or its question to the hook */
    bool told_lost;
    bool silent; /* the client is told nothing more of it */
    bool resumed; /* RESUME: the client was told to run it already */
    bool died; /* the handler's process */
    bool reconciling; /* RECONCILE was sent, not RUN */
    bool reconciles; /* the client has a hook */
    enum hapax__as as;
    enum hapax_class cls; /* ENDING: how */
    struct hapax__door_op *outer; /* of a step */
    uint32_t steps; /* in hand */
    struct hapax__door_listing *listing; /* of a step */

    struct hapax__call *call;
    struct hapax_policy policy;
    struct hapax_request request; /* points into `names` */
    struct {
        uint8_t scope[HAPAX_SCOPE_MAX], key[HAPAX_KEY_MAX], owner[HAPAX_OWNER_MAX],
            step[HAPAX_STEP_MAX], what[HAPAX_WHAT_MAX];
    } names;
    const char *why; /* of BAD_KEY and MISSING_OWNER: static; NULL: none */
    struct hapax__meta_message message;
    bool refused; /* by END, as a message */
    size_t charged; /* bytes of the outcome that count for all connections */

    struct hapax_answer answer; /* ANSWERED */
    char text[HAPAX_TEXT_MAX]; /* of the answer; or what END refused */
};

STAILQ_HEAD(hapax__door_calls, hapax__call);
STAILQ_HEAD(hapax__door_lost, hapax__door_op);

struct hapax__door_bytes {
    uint8_t *bytes;
    size_t at, len, size; /* what is left is from at to len */
};

struct hapax__door_connection {
    struct hapax__door *door;
    TAILQ_ENTRY(hapax__door_connection) all;
    enum hapax__door_phase phase;
    int fd;
    int pidfd; /* of the peer's process, where the door asks whether it lives; otherwise -1 */
    uint32_t events; /* what epoll watches for */
    bool dead; /* the peer's process */
    bool unread; /* nobody reads what the door writes: that is dropped */
    bool held; /* a frame that was read waits for a new state of its operation */
    /* Nothing more comes: all was read, or there was no memory for a frame. */
    bool ending;
    bool dying; /* `ending`, and whether the process dies is to be seen */
    bool waits; /* it is not read, until there is memory or a new state */
    bool touched; /* has output to write */
    STAILQ_ENTRY(hapax__door_connection) touched_next;
    atomic_int_fast64_t heard_us; /* the last frame */
    int64_t since_us; /* when a half frame began, or when output moved last */
    struct hapax__door_bytes in, out;
    LIST_HEAD(hapax__door_bucket, hapax__door_op) buckets[HAPAX__DOOR_BUCKETS];
    TAILQ_HEAD(hapax__door_ops, hapax__door_op) ops;
    STAILQ_HEAD(hapax__door_answers, hapax__door_op) answered;
    uint32_t op_count;
};

struct hapax__door {
    struct hapax__door_options options;
    struct hapax__socket socket;
    pthread_t thread;
    int epoll_fd, stop_fd, told_fd;
    int64_t drain_ms; /* set before stop_fd */
    int64_t beat_ms;

    TAILQ_HEAD(, hapax__door_connection) connections;
    STAILQ_HEAD(hapax__door_touched, hapax__door_connection) touched;
    uint32_t clients;
    uint32_t gone; /* connections that are to be freed */
    uint32_t op_count;
    size_t charged; /* bytes of long frames, and of `held` */
    size_t held; /* of outcomes in hand, and of answers that wait */
    bool deaf; /* no descriptors to accept with, until the next tick */
    bool stopping;
    struct hapax_arena arena; /* of the frame in hand */
    struct hapax__json_out json; /* of the frame that is written */
    struct hapax__nonces nonces;

    pthread_mutex_t lock; /* of the mailbox, which is the two fields below */
    struct hapax__door_calls calls; /* have a new state */
    struct hapax__door_lost lost; /* lost their claim while they run */
};

/* ---- the connection (connection.c) -------------------------------------------------------- */

/* Makes a connection that owns fd. False: no memory or descriptor; the caller still owns fd. */
bool hapax__door_connection_open(struct hapax__door *door, int fd);

/* Takes the events of epoll. */
void hapax__door_connection_event(struct hapax__door_connection *c, uint32_t events);

/* Has the connection flushed at the end of the round. */
void hapax__door_connection_touch(struct hapax__door_connection *c);

/* Takes the frames that were read, as far as they can be taken now, and writes what there is to
 * write. */
void hapax__door_connection_flush(struct hapax__door_connection *c);

/* What is due by the time. */
void hapax__door_connection_tick(struct hapax__door_connection *c, int64_t now_us);

/* Ends the connection at once. Its operations end as those of a client that is gone. */
void hapax__door_connection_hang_up(struct hapax__door_connection *c);

/* Frees a connection that is GONE and has no operations. */
void hapax__door_connection_bury(struct hapax__door_connection *c);

/* Puts a frame into the output: door->json, and a body. A connection that has no memory for it is
 * ended. */
void hapax__door_put(struct hapax__door_connection *c, enum hapax__door_kind kind, uint32_t op,
                     struct hapax_span body);

/* Puts a FAULT. kind: of the frame that was refused; 0: none. */
void hapax__door_fault(struct hapax__door_connection *c, uint32_t op, unsigned kind,
                       enum hapax_error error, const char *text);

/* ---- its operations (op.c, steps.c) --------------------------------------------------------- */

/* Takes a frame. False: the frame waits until the operation has a new state. */
bool hapax__door_op_take(struct hapax__door_connection *c, const struct hapax__door_frame *frame);

/* The pulse has told of a call. */
void hapax__door_op_told(struct hapax__call *call);
void hapax__door_op_lost(struct hapax__door_op *op);

/* Writes the answer of an operation in the state ANSWERED, and frees the operation. */
void hapax__door_op_answer(struct hapax__door_op *op);

/* All operations of a connection that is gone: those that were not told to run are given up, and
 * handlers end as unknown. died: their process is dead. */
void hapax__door_ops_desert(struct hapax__door_connection *c, bool died);

/* told() and abandoned() of the door's calls. */
void hapax__door_told(struct hapax__call *calls);
void hapax__door_abandoned(struct hapax__call *call);

/* Begins what precedes a step's run. */
void hapax__door_step_may_run(struct hapax__door_op *op);
/* The call that puts the step's name into the list has a new state. */
void hapax__door_step_told(struct hapax__door_op *op);
/* The operation may run: tells its client. */
void hapax__door_op_run(struct hapax__door_op *op);

/* ---- what they are asked for (request.c) ----------------------------------------------------- */

/* Makes the request and the policy of an operation. op->why says of a key that it is none.
 * INVALID, NOMEM. */
enum hapax_error hapax__door_request_take(struct hapax__door_op *op,
                                          const struct hapax__meta_begin *begin,
                                          struct hapax_span body, char text[HAPAX_TEXT_MAX]);

/* Copies the names of a request, which were checked. What the operation is may be cut. */
void hapax__door_request_keep(struct hapax__door_op *op, const struct hapax_request *request);

/* Whether an owner or a caller is named and says nothing. */
bool hapax__door_request_is_unowned(const struct hapax__meta_begin *begin);

/* ---- what the door writes (reply.c) -------------------------------------------------------- */

/* RUN or RECONCILE. */
void hapax__door_put_run(struct hapax__door_op *op);
/* ANSWER. */
void hapax__door_put_answer(struct hapax__door_op *op);

#endif
