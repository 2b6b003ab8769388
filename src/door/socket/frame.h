/* SPDX-License-Identifier: Apache-2.0
 *
 * The door's frames as bytes (docs/door.md): length, kind, op, the length of the members, the
 * members as a JSON object, and the body.
 */
#ifndef HAPAX_DOOR_SOCKET_FRAME_H
#define HAPAX_DOOR_SOCKET_FRAME_H

#include <hapax/hapax.h>

#define HAPAX__DOOR_HEAD         13u /* length u32, kind u8, op u32, meta_len u32 */
#define HAPAX__DOOR_FRAME_MAX    (17u << 20) /* by the length field */
#define HAPAX__DOOR_GREETING_MAX 4096u /* the same, of a HELLO */
#define HAPAX__DOOR_META_MAX     (1u << 20)

enum hapax__door_kind {
    HAPAX__DOOR_HELLO = 1,
    HAPAX__DOOR_WELCOME,
    HAPAX__DOOR_BEGIN,
    HAPAX__DOOR_RESUME,
    HAPAX__DOOR_RUN,
    HAPAX__DOOR_RECONCILE,
    HAPAX__DOOR_END,
    HAPAX__DOOR_ANSWER,
    HAPAX__DOOR_BEAT,
    HAPAX__DOOR_LOST,
    HAPAX__DOOR_CANCEL,
    HAPAX__DOOR_FAULT
};

struct hapax__door_frame {
    uint8_t kind;
    uint32_t op;
    struct hapax_span meta, body; /* of the bytes that were read */
};

/* Whether a frame is at the start of `in`. Positive: its size in bytes. 0: not yet all of it. -1:
 * these bytes are no frame, and *why, a static text, says so. Before the whole frame is there,
 * *size is how many bytes it will have; 0: not known. */
int64_t hapax__door_frame_read(struct hapax__door_frame *frame, struct hapax_span in,
                               uint32_t length_max, size_t *size, const char **why);

/* Writes the head of a frame. */
void hapax__door_frame_head(uint8_t out[HAPAX__DOOR_HEAD], enum hapax__door_kind kind, uint32_t op,
                            size_t meta_len, size_t body_len);

#endif
