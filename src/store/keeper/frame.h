/* SPDX-License-Identifier: Apache-2.0
 *
 * The frames of the keeper's protocol (docs/keeper.md has the byte tables). Encoding is sized
 * beforehand and cannot fail. Decoding takes foreign bytes, reads none beyond their end, and copies
 * none: spans borrow from the frame.
 *
 *   frame   length u32, of all that follows · kind u8 · payload
 */
#ifndef HAPAX_STORE_KEEPER_FRAME_H
#define HAPAX_STORE_KEEPER_FRAME_H

#include "base/bytes.h"

#include <hapax/store.h>

#define HAPAX__FRAME_VERSION   4u
#define HAPAX__FRAME_OLDEST    3u /* a peer of this version is spoken to as well, in its own */
#define HAPAX__FRAME_HEAD      5u /* length and kind */
#define HAPAX__FRAME_MAX       (20u << 20) /* what a length may say */
#define HAPAX__FRAME_LEAST     (17u << 20) /* what either side must take: one op with a full body */
#define HAPAX__FRAME_HELLO_MAX 64u /* nothing longer before the greeting */
#define HAPAX__FRAME_LINES_MAX 16u /* lines of advice in an INFO */

enum hapax__frame_kind {
    HAPAX__FRAME_HELLO = 1, /* client: version, frame_max */
    HAPAX__FRAME_WELCOME, /* server: version, frame_max, batch_max, body_max, pid */
    HAPAX__FRAME_REQUEST, /* client: seq, wait_ms, count, ops */
    HAPAX__FRAME_REPLY, /* server: seq, first, count, answers */
    HAPAX__FRAME_ASK, /* client: seq */
    HAPAX__FRAME_INFO, /* server: seq, pid, queued, clients, scheme, lines */
    HAPAX__FRAME_FAULT /* server: error, text; then it closes */
};

/* The head of a frame in the making: its payload has `size` bytes. */
void hapax__frame_begin(struct hapax__writer *w, enum hapax__frame_kind kind, size_t size);

/* ---- greeting ------------------------------------------------------------------------ */

struct hapax__hello {
    uint16_t version; /* HELLO: the highest the client speaks; WELCOME: the one spoken */
    uint32_t frame_max; /* the longest frame the sender takes */
    uint16_t batch_max; /* WELCOME only, as what follows: ops in one REQUEST */
    uint32_t body_max;
    uint32_t pid;
};

#define HAPAX__FRAME_HELLO_SIZE   (4u + 2 + 4)
#define HAPAX__FRAME_WELCOME_SIZE (4u + 2 + 4 + 2 + 4 + 4)

/* Write a whole frame: HAPAX__FRAME_HEAD and the SIZE. */
void hapax__frame_put_hello(struct hapax__writer *w, const struct hapax__hello *hello);
void hapax__frame_put_welcome(struct hapax__writer *w, const struct hapax__hello *hello);

/* Read a payload. False: not one, or limits that cannot be. Any version is read. */
bool hapax__frame_take_hello(struct hapax_span payload, struct hapax__hello *out);
bool hapax__frame_take_welcome(struct hapax_span payload, struct hapax__hello *out);

/* ---- requests ------------------------------------------------------------------------ */

struct hapax__request {
    uint32_t seq;
    uint32_t
        /* How long the client waits: an op that has not begun by then need not begin; 0: for
         * ever. */
        wait_ms;
    uint16_t count;
};

#define HAPAX__FRAME_REQUEST_SIZE (4u + 4 + 2) /* the payload before its ops */

/* Write a REQUEST's head, for ops of `size` bytes together, and each op. The op passes
 * hapax__op_check(). */
void hapax__frame_put_request(struct hapax__writer *w, const struct hapax__request *request,
                              size_t size);
size_t hapax__frame_op_size(const struct hapax_op *op);
void hapax__frame_put_op(struct hapax__writer *w, const struct hapax_op *op);

/* The oldest version in which the op can be sent. In each version from there on its bytes are the
 * same, and so is the form of its answer. A CLAIM needs what its end may need: otherwise the
 * outcome could not be kept as it was to be, once the handler has run. */
unsigned hapax__frame_op_version(const struct hapax_op *op);

/* Read what comes before the ops. False: malformed, or no op, or more than HAPAX_BATCH_MAX. */
bool hapax__frame_take_request(struct hapax__reader *r, struct hapax__request *out);

/* Reads one op; fields that its kind does not use are zero. Values may still be out of range:
 * hapax__op_check() finds that. A kind that this build does not know has its number in op->kind
 * and UNSUPPORTED in op->error, otherwise NONE. False: malformed, and nothing after the op can
 * be read. */
bool hapax__frame_take_op(struct hapax__reader *r, struct hapax_op *op);

/* ---- replies ------------------------------------------------------------------------- */

struct hapax__frame_reply {
    uint32_t seq;
    uint16_t first; /* the index in the REQUEST of the first op answered here */
    uint16_t count;
};

#define HAPAX__FRAME_REPLY_SIZE (4u + 2 + 2)

void hapax__frame_put_reply(struct hapax__writer *w, const struct hapax__frame_reply *reply,
                            size_t size);
bool hapax__frame_take_reply(struct hapax__reader *r, struct hapax__frame_reply *out);

/* Cuts the answer of a LIST to the records that fit in `max` bytes, with more to come. Any other
 * answer fits in HAPAX__FRAME_LEAST. */
void hapax__frame_fit_answer(struct hapax_op *op, size_t max);

/* An answered op; `text` says why it has an error, cut to 255 bytes. */
size_t hapax__frame_answer_size(const struct hapax_op *op, const char *text);
void hapax__frame_put_answer(struct hapax__writer *w, const struct hapax_op *op, const char *text);

/* Reads the answer to `op` into its answer fields. `records` come from the arena; all other
 * spans borrow from the frame. text is written where the answer is an error. MALFORMED, NOMEM:
 * the op is unanswered as before. */
enum hapax__taken { HAPAX__TAKEN, HAPAX__TAKEN_MALFORMED, HAPAX__TAKEN_NOMEM };
enum hapax__taken hapax__frame_take_answer(struct hapax__reader *r, struct hapax_op *op,
                                           struct hapax_arena *arena, char text[HAPAX_TEXT_MAX]);

/* ---- info, fault --------------------------------------------------------------------- */

struct hapax__info_line {
    bool danger;
    struct hapax_span text; /* at most HAPAX_TEXT_MAX bytes */
};

struct hapax__info {
    uint32_t seq;
    uint32_t pid;
    uint32_t queued;
    uint32_t clients;
    struct hapax_span scheme; /* of the shared store; at most 255 bytes */
    uint8_t lines;
    struct hapax__info_line line[HAPAX__FRAME_LINES_MAX]; /* the store's own advice */
};

/* Whole frames. */
size_t hapax__frame_info_size(const struct hapax__info *info);
void hapax__frame_put_info(struct hapax__writer *w, const struct hapax__info *info);
bool hapax__frame_take_info(struct hapax_span payload, struct hapax__info *out);

#define HAPAX__FRAME_ASK_SIZE 4u
void hapax__frame_put_ask(struct hapax__writer *w, uint32_t seq);
bool hapax__frame_take_ask(struct hapax_span payload, uint32_t *seq);

#define HAPAX__FRAME_FAULT_MAX (HAPAX__FRAME_HEAD + 1 + 1 + 255u)
void hapax__frame_put_fault(struct hapax__writer *w, enum hapax_error error, const char *text);
bool hapax__frame_take_fault(struct hapax_span payload, enum hapax_error *error,
                             char text[HAPAX_TEXT_MAX]);

#endif
