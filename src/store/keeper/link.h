/* SPDX-License-Identifier: Apache-2.0
 *
 * The client's side of a keeper's protocol, without blocking: one connection, a queue of ops before
 * it, and the rules by which ops are sent and repeated. Two drive a link: the store `unix:`
 * (client.c), which waits for it by poll(), and a worker of nginx, from its own events.
 */
#ifndef HAPAX_STORE_KEEPER_LINK_H
#define HAPAX_STORE_KEEPER_LINK_H

#include "frame.h"

#include <sys/queue.h>
#include <sys/un.h>

struct pollfd;

#define HAPAX__LINK_SCRATCH 65536u /* replies shorter than this take one recv() */
#define HAPAX__LINK_GROUPS  4u /* so many requests may be under way */

/* One op on its way, or one question to the keeper itself. The caller's: it stays where it is, with
 * all that the op borrows, from put until it is taken. */
struct hapax__asking {
    struct hapax_op *op; /* NULL: the keeper is asked for `info` */
    struct hapax__info *info;
    /* By hapax__boot_us(); 0: none. An op that no request was begun with by then is UNAVAILABLE,
     * and never sent. */
    int64_t deadline_us;
    STAILQ_ENTRY(hapax__asking) next; /* the link's, until it is taken */
};

STAILQ_HEAD(hapax__askings, hapax__asking);

enum hapax__link_phase {
    HAPAX__LINK_DOWN, /* no connection; the next try is due at again_us, if anything is wanted */
    HAPAX__LINK_GREETING, /* a HELLO is being sent, or its WELCOME is awaited */
    HAPAX__LINK_UP
};

/* Ops that are sent together; an answered one leaves. They are one frame, but for what does not fit
 * into a frame of a keeper that has changed meanwhile. */
struct hapax__group {
    struct hapax__askings askings;
    uint32_t count;
    bool sent; /* a frame with them left as a whole */
    bool repeated; /* and the one that is under way is a repeat */
    int64_t deadline_us;
    unsigned losses;
    uint32_t seq;
    uint32_t in_frame; /* of the ops, answered ones included; 0: no frame was made */
    uint32_t place; /* how many of the frame's are answered */
};

struct hapax__link {
    /* The owner's, set after init. */
    struct hapax_arena *arena; /* where answers are put; the link never resets it */
    void (*closing)(struct hapax__link *link); /* NULL, or called before fd is closed */
    void *owner;

    /* To be read by the owner. */
    int fd; /* -1: not connected */
    enum hapax__link_phase phase;
    uint32_t queued; /* ops that have no answer */
    bool paused; /* more has come behind the last answer of a group: turn at once */
    enum hapax_error error; /* why the last connection was not made */
    char text[HAPAX_TEXT_MAX]; /* of the last failure */
    struct hapax__hello server; /* of the last connection */
    struct sockaddr_un address;

    /* The link's own. */
    int64_t timeout_ms;
    bool wanted; /* a connection, even where nothing is to be sent */
    int64_t again_us;
    int64_t pause_ms;
    int64_t connect_us; /* when connecting, or waiting for a greeting, is given up */
    struct hapax__askings waiting;
    struct hapax__askings done;

    struct hapax__group group[HAPAX__LINK_GROUPS]; /* a ring */
    uint32_t first;
    uint32_t groups;
    uint32_t grouped; /* ops in groups */
    uint32_t seq;
    struct hapax__group *writing; /* whose frame is in `out` */

    uint8_t *out;
    size_t out_cap;
    size_t out_at;
    size_t out_len;

    /* The frame that is being received. */
    uint8_t kind; /* 0: its head has not come */
    uint8_t *payload;
    size_t payload_len;
    size_t payload_at;
    uint8_t small[HAPAX__FRAME_FAULT_MAX];

    size_t in_at; /* where the unused bytes of `in` begin */
    size_t in_end;
    uint8_t in[HAPAX__LINK_SCRATCH];
};

/* Sets up a link to the keeper at `path`; connects to nobody. INVALID: no path for a socket.
 * timeout_ms: for the answers to a request, repeats included; 0: 10 s. */
enum hapax_error hapax__link_init(struct hapax__link *link, const char *path, int64_t timeout_ms,
                                  char text[HAPAX_TEXT_MAX]);

/* The same from the URI of a store that a keeper serves: `unix:PATH[?timeout=DURATION]`, or
 * `rocksdb:PATH` for the keeper at PATH/keeper.sock. INVALID: also another option, or no such
 * duration. */
enum hapax_error hapax__link_init_uri(struct hapax__link *link, const char *uri,
                                      char text[HAPAX_TEXT_MAX]);

/* Frees what the link has, and closes the connection. Nothing may be queued. May follow an init
 * that failed. */
void hapax__link_release(struct hapax__link *link);

/* Puts an op behind the others. The op has passed hapax__op_check(), and has an empty answer with
 * the error INDETERMINATE (hapax__op_preset()). Nothing is sent before the next turn. */
void hapax__link_put(struct hapax__link *link, struct hapax__asking *asking);

/* Has the next turns make a connection, even where no op waits for one. No connection was
 * made if `wanted` is unset afterwards and `error` is not NONE. */
void hapax__link_connect(struct hapax__link *link, int64_t now_us);

/* Does all that can be done now without waiting. `readable`: the descriptor is, by poll() or its
 * kin; otherwise no answer is taken. Takes the answers of one group at most, so that the owner can
 * reset the arena between two. Afterwards wait until the descriptor is readable (or writable, if
 * hapax__link_writes()), or until hapax__link_wake_us(); 0: turn at once, as if readable. */
void hapax__link_turn(struct hapax__link *link, int64_t now_us, bool readable);
bool hapax__link_writes(const struct hapax__link *link);
struct pollfd hapax__link_poll(const struct hapax__link *link); /* the same, for poll() */
int64_t hapax__link_wake_us(const struct hapax__link *link);
int hapax__link_wait_ms(const struct hapax__link *link, int64_t now_us); /* a minute at most */

/* Takes the next op that was answered; NULL: none. UNAVAILABLE: the op surely was not sent. What
 * the answer points to is in the arena. */
struct hapax__asking *hapax__link_take(struct hapax__link *link);

/* Whether the arena holds a part of a frame that has not come as a whole. */
bool hapax__link_halfway(const struct hapax__link *link);

/* Turns, and blocks in between, until all that was put is answered, and a connection that was
 * wanted is made, or could not be made. */
void hapax__link_run(struct hapax__link *link);

#endif
