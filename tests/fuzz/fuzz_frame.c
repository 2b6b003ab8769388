/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper's frames. The first byte chooses how the rest is read. 0: a stream of frames, as the
 * server reads it; 1 to 8: the payload of a REPLY to an op of that kind; otherwise: the payload of
 * a frame that is no request.
 * Claims: what is read lies within the input, and what passes its checks is written as it was read;
 * an op that has nothing of the newest version is one of the version before.
 */
#include "fuzz_frames.h"

#include "base/arena.h"
#include "store/keeper/frame.h"
#include "store/types.h"

#include <assert.h>
#include <stdlib.h>

static void within(struct hapax_span span, const uint8_t *data, size_t size)
{
    assert(span.len == 0 || (span.ptr >= data && span.ptr + span.len <= data + size));
}

/* Whether the op is written as these bytes. */
static bool is_written(const struct hapax_op *op, struct hapax_span bytes)
{
    struct hapax__writer w;
    uint8_t *again;
    bool same;

    if (hapax__frame_op_size(op) != bytes.len)
        return false;
    again = malloc(bytes.len);
    assert(again);
    w = (struct hapax__writer){again, bytes.len};
    hapax__frame_put_op(&w, op);
    same = w.left == 0 && memcmp(again, bytes.ptr, bytes.len) == 0;
    free(again);
    return same;
}

static void try_op(struct hapax_op *op, struct hapax_span bytes)
{
    char text[HAPAX_TEXT_MAX];
    bool older;

    within(op->scope, bytes.ptr, bytes.len);
    within(op->by, bytes.ptr, bytes.len);
    within(op->outcome.headers, bytes.ptr, bytes.len);
    within(op->outcome.body, bytes.ptr, bytes.len);
    if (op->error != HAPAX_ERR_NONE) {
        assert(op->error == HAPAX_ERR_UNSUPPORTED);
        return;
    }
    if (!hapax__op_check(op, HAPAX_BODY_MAX, text))
        return;
    assert(is_written(op, bytes));
    older = hapax__frame_op_version(op) == 3;
    op->says_kept = false;
    op->kept_ms = op->tombstone_ms = op->if_updated_us = 0;
    assert(op->kind == HAPAX_OP_IMPORT || is_written(op, bytes) == older);
}

static void try_request(struct hapax_span payload)
{
    struct hapax__reader r = {payload.ptr, payload.len, false};
    struct hapax__request request;
    struct hapax_op op;

    if (!hapax__frame_take_request(&r, &request))
        return;
    assert(request.count >= 1 && request.count <= HAPAX_BATCH_MAX);
    for (uint16_t i = 0; i < request.count; i++) {
        const uint8_t *at = r.at;

        if (!hapax__frame_take_op(&r, &op))
            return;
        try_op(&op, (struct hapax_span){at, (size_t)(r.at - at)});
    }
}

static void try_stream(struct hapax_span input)
{
    struct hapax__reader r = {input.ptr, input.len, false};

    while (r.left > 0) {
        struct hapax_span frame = hapax__take(&r, hapax__take_u32(&r));
        struct hapax__hello hello;
        uint32_t seq;

        if (r.bad || frame.len == 0)
            return;
        frame.ptr++;
        frame.len--;
        if (frame.ptr[-1] == HAPAX__FRAME_REQUEST)
            try_request(frame);
        else if (frame.ptr[-1] == HAPAX__FRAME_HELLO && hapax__frame_take_hello(frame, &hello))
            assert(hello.version > 0 && hello.frame_max >= HAPAX__FRAME_LEAST);
        else if (frame.ptr[-1] == HAPAX__FRAME_ASK && hapax__frame_take_ask(frame, &seq))
            assert(frame.len == 4);
    }
}

static void try_answer(const struct hapax_op *op, struct hapax_span bytes)
{
    struct hapax__writer w;
    uint8_t *again;

    assert((op->verdict == HAPAX_NO_VERDICT) == (op->error != HAPAX_ERR_NONE));
    assert(op->count <= HAPAX_LIST_MAX && op->purged + op->expired_claims <= HAPAX_LIST_MAX);
    within(op->record.scope, bytes.ptr, bytes.len);
    within(op->record.what, bytes.ptr, bytes.len);
    within(op->record.resolved_by, bytes.ptr, bytes.len);
    for (uint32_t i = 0; i < op->count; i++)
        within(op->records[i].scope, bytes.ptr, bytes.len);
    /* Text is cleaned, and an echo left out, so only other answers are the same again. */
    if (op->error != HAPAX_ERR_NONE || bytes.ptr[7] & 16)
        return;
    assert(hapax__frame_answer_size(op, "") == bytes.len);
    again = malloc(bytes.len);
    assert(again);
    w = (struct hapax__writer){again, bytes.len};
    hapax__frame_put_answer(&w, op, "");
    assert(w.left == 0 && memcmp(again, bytes.ptr, bytes.len) == 0);
    free(again);
}

static void try_reply(enum hapax_op_kind kind, struct hapax_span payload)
{
    struct hapax__reader r = {payload.ptr, payload.len, false};
    struct hapax_arena arena = {0};
    struct hapax__frame_reply reply;

    if (hapax__frame_take_reply(&r, &reply)) {
        for (uint16_t i = 0; i < reply.count; i++) {
            struct hapax_op op = {.kind = kind, .id = {{1, 2, 3}}};
            char text[HAPAX_TEXT_MAX];
            const uint8_t *at = r.at;

            op.outcome.body = hapax_str("asked");
            if (hapax__frame_take_answer(&r, &op, &arena, text) != HAPAX__TAKEN)
                break;
            try_answer(&op, (struct hapax_span){at, (size_t)(r.at - at)});
        }
    }
    hapax__arena_release(&arena);
}

static void try_session(struct hapax_span payload)
{
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    struct hapax__hello hello;
    struct hapax__info info;
    struct hapax__writer w;
    uint8_t *again;

    if (hapax__frame_take_welcome(payload, &hello))
        assert(hello.batch_max >= 1 && hello.batch_max <= HAPAX_BATCH_MAX);
    if (hapax__frame_take_fault(payload, &error, text))
        assert(strlen(text) <= payload.len);
    if (!hapax__frame_take_info(payload, &info))
        return;
    within(info.scheme, payload.ptr, payload.len);
    assert(hapax__frame_info_size(&info) == HAPAX__FRAME_HEAD + payload.len);
    again = malloc(HAPAX__FRAME_HEAD + payload.len);
    assert(again);
    w = (struct hapax__writer){again, HAPAX__FRAME_HEAD + payload.len};
    hapax__frame_put_info(&w, &info);
    assert(memcmp(again + HAPAX__FRAME_HEAD, payload.ptr, payload.len) == 0);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax_span rest;

    if (size == 0)
        return 0;
    rest = (struct hapax_span){data + 1, size - 1};
    if (data[0] == 0)
        try_stream(rest);
    else if (data[0] <= HAPAX_OP_IMPORT)
        try_reply((enum hapax_op_kind)data[0], rest);
    else
        try_session(rest);
    return 0;
}

/* ---- changes ------------------------------------------------------------------------- */

/* Of a REQUEST: each op has its length before it. The last one ends where the frame does. */
static void make_true(uint8_t *frame, size_t len)
{
    const size_t head = 1 + HAPAX__FRAME_REQUEST_SIZE;
    size_t at = head, ops = 0;

    if (len < head || frame[0] != HAPAX__FRAME_REQUEST)
        return;
    while (len - at >= 5) {
        size_t one = fuzz_u32(frame + at);

        if (one > len - at - 4)
            one = len - at - 4;
        fuzz_put_u32(frame + at, one);
        at += 4 + one;
        ops++;
    }
    frame[head - 2] = (uint8_t)(ops >> 8);
    frame[head - 1] = (uint8_t)ops;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    if (size < 5 || data[0] != 0)
        return LLVMFuzzerMutate(data, size, max);
    return 1 + fuzz_change_frames(data + 1, size - 1, max - 1, seed, make_true);
}
