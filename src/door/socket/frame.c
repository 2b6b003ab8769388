/* SPDX-License-Identifier: Apache-2.0 */
#include "frame.h"

#include "base/bytes.h"

#define LENGTH_SIZE 4u
#define LEAST       (HAPAX__DOOR_HEAD - LENGTH_SIZE)

int64_t hapax__door_frame_read(struct hapax__door_frame *frame, struct hapax_span in,
                               uint32_t length_max, size_t *size, const char **why)
{
    struct hapax__reader r = {in.ptr, in.len, false};
    uint32_t length, meta_len;

    *size = 0;
    if (in.len < LENGTH_SIZE)
        return 0;
    length = hapax__take_u32(&r);
    *why = length < LEAST ? "a frame's length is below 9" : "a frame's length is over its limit";
    if (length < LEAST || length > length_max)
        return -1;
    *size = LENGTH_SIZE + length;
    if (in.len < HAPAX__DOOR_HEAD)
        return 0;
    frame->kind = hapax__take_u8(&r);
    frame->op = hapax__take_u32(&r);
    meta_len = hapax__take_u32(&r);
    *why = "a frame's meta_len is over its limit";
    if (meta_len > length - LEAST || meta_len > HAPAX__DOOR_META_MAX)
        return -1;
    if (in.len < *size)
        return 0;
    frame->meta = hapax__take(&r, meta_len);
    frame->body = hapax__take(&r, length - LEAST - meta_len);
    return (int64_t)*size;
}

void hapax__door_frame_head(uint8_t out[HAPAX__DOOR_HEAD], enum hapax__door_kind kind, uint32_t op,
                            size_t meta_len, size_t body_len)
{
    struct hapax__writer w = {out, HAPAX__DOOR_HEAD};

    assert(LEAST + meta_len + body_len <= UINT32_MAX);
    hapax__put_number(&w, LEAST + meta_len + body_len, 4);
    hapax__put_number(&w, (uint64_t)kind, 1);
    hapax__put_number(&w, op, 4);
    hapax__put_number(&w, meta_len, 4);
}
