/* SPDX-License-Identifier: Apache-2.0
 *
 * What a client sends to the socket's door. The first byte says what the rest is: a stream of
 * frames, the members of a BEGIN, of an END, of an END with a response, of a HELLO, a ticket, or a
 * file of policies.
 * Claims: a frame is the same, however much of the stream is there. What is read lies within its
 * limits, and a refusal has a text. A ticket that is read is written again as it was.
 */
#include "fuzz_frames.h"

#include "base/span.h"
#include "door/socket/frame.h"
#include "door/socket/meta.h"
#include "door/socket/scopes.h"
#include "door/socket/ticket.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void frames(struct hapax_span in)
{
    while (in.len > 0) {
        struct hapax__door_frame frame, again;
        const char *why = NULL;
        size_t size, size_again;
        int64_t taken = hapax__door_frame_read(&frame, in, HAPAX__DOOR_FRAME_MAX, &size, &why);

        if (taken <= 0) {
            assert(taken == 0 || why);
            return;
        }
        assert((size_t)taken == size && size <= in.len);
        assert(frame.meta.len + frame.body.len + HAPAX__DOOR_HEAD == size);
        for (size_t cut = 0; cut<size; cut += size> 64 ? size / 64 : 1)
            assert(hapax__door_frame_read(&again, (struct hapax_span){in.ptr, cut},
                                          HAPAX__DOOR_FRAME_MAX, &size_again, &why) == 0);
        in.ptr += size;
        in.len -= size;
    }
}

static void begin(struct hapax_span in, struct hapax_arena *arena)
{
    struct hapax__meta_begin begin;
    struct hapax_policy policy;
    char text[HAPAX_TEXT_MAX] = "";

    if (hapax__meta_begin_read(&begin, arena, in, text) != HAPAX_ERR_NONE) {
        assert(text[0] && strlen(text) < sizeof(text));
        return;
    }
    assert(begin.caller.n <= HAPAX__META_PARTS_MAX && begin.fingerprint.n <= HAPAX__META_PARTS_MAX);
    assert(!begin.headers || begin.headers->n <= HAPAX__LINES_MAX);
    assert(!begin.nonce.is || begin.nonce.bytes.len == sizeof(struct hapax_token));
    hapax_policy_init(&policy);
    if (begin.policy.len > 0 &&
        hapax__meta_policy_set(&policy, begin.policy, text) != HAPAX_ERR_NONE)
        assert(text[0]);
}

static void end(struct hapax_span in, struct hapax_arena *arena, bool http)
{
    struct hapax__meta_end end;
    char text[HAPAX_TEXT_MAX] = "";

    if (hapax__meta_end_read(&end, arena, in, http, text) != HAPAX_ERR_NONE) {
        assert(text[0]);
        return;
    }
    assert(end.status >= -1 && end.status <= 999 && end.headers.len <= HAPAX_HEADERS_MAX);
    assert(end.headers.len == 0 || memcmp(end.headers.ptr + end.headers.len - 2, "\r\n", 2) == 0);
}

static void ticket(struct hapax_span in, struct hapax_arena *arena)
{
    struct hapax__json_out out = {0};
    struct hapax__ticket ticket;
    char text[HAPAX_TEXT_MAX] = "";

    if (hapax__ticket_read(&ticket, arena, in, text) != HAPAX_ERR_NONE) {
        assert(text[0]);
        return;
    }
    hapax__ticket_put(&out, &ticket);
    /* Bits that mean nothing, and base64 without its padding, are not written again. */
    assert(out.failed || out.len <= 4096 + 2);
    assert(out.failed || (out.len >= in.len + 2 && out.len <= in.len + 2 + 2));
    hapax__json_free(&out);
}

static void scopes(struct hapax_span in)
{
    struct hapax__scopes scopes;
    char text[HAPAX_TEXT_MAX] = "";

    hapax_policy_init(&scopes.policy);
    if (hapax__scopes_read(&scopes, in, text) != HAPAX_ERR_NONE) {
        assert(text[0] && scopes.n == 0);
        return;
    }
    for (size_t i = 0; i < scopes.n; i++) {
        struct hapax_span name = {scopes.named[i].name, scopes.named[i].name_len};

        assert(hapax__scopes_find(&scopes, name) == &scopes.named[i].policy);
        assert(hapax_policy_check(&scopes.named[i].policy, text) == HAPAX_ERR_NONE);
    }
    hapax__scopes_release(&scopes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax_arena arena = {0};
    struct hapax_span in;
    char text[HAPAX_TEXT_MAX];
    int64_t version;

    if (size == 0)
        return 0;
    in = (struct hapax_span){data + 1, size - 1};
    switch (data[0]) {
    case 'f':
        frames(in);
        break;
    case 'b':
        begin(in, &arena);
        break;
    case 'e':
    case 'h':
        end(in, &arena, data[0] == 'h');
        break;
    case 'w':
        (void)hapax__meta_hello_read(&version, &arena, in, text);
        break;
    case 't':
        ticket(in, &arena);
        break;
    default:
        scopes(in);
    }
    hapax__arena_release(&arena);
    return 0;
}

/* ---- changes ------------------------------------------------------------------------- */

/* The members end where the frame does, or before. */
static void make_true(uint8_t *frame, size_t len)
{
    const size_t head = HAPAX__DOOR_HEAD - 4;

    if (len >= head && fuzz_u32(frame + 5) > len - head)
        fuzz_put_u32(frame + 5, len - head);
}

/* Puts a member into an object: one that is there already, or a known name with a value. */
static size_t put_member(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    static const char *const members[] = {
        "\"key\":\"k\",",       "\"owner\":{\"base64\":\"YQ==\"},", "\"scope\":\"s\",",
        "\"as\":\"http\",",     "\"headers\":[[\"a\",\"b\"]],",     "\"class\":\"failed\",",
        "\"status\":201,",      "\"policy\":{\"lease\":\"10s\"},",  "\"caller\":[\"a\",null],",
        "\"body_kept\":false,", "\"again\":{\"waits\":3},",         "\"profile\":\"payments\",",
    };
    const char *member = members[seed / 8 % (sizeof(members) / sizeof(members[0]))];
    size_t len = strlen(member);
    uint8_t *brace = memchr(data, '{', size);

    if (!brace || size + len > max)
        return LLVMFuzzerMutate(data, size, max);
    memmove(brace + 1 + len, brace + 1, size - (size_t)(brace + 1 - data));
    memcpy(brace + 1, member, len);
    return size + len;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    if (size > 5 && data[0] == 'f')
        return 1 + fuzz_change_frames(data + 1, size - 1, max - 1, seed, make_true);
    if (size > 1 && seed % 4 == 1)
        return 1 + put_member(data + 1, size - 1, max - 1, seed);
    return LLVMFuzzerMutate(data, size, max);
}
