/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper's frames as bytes: what docs/keeper.md shows (argument 1 is its path) is what is sent,
 * what a program of version 3 sent (argument 2) is read and sent as it was, and whatever is cut off
 * or made longer is not taken for something else. /
 */
#include "../unit/record_diff.h"
#include "base/arena.h"
#include "core/machine.h"
#include "store/keeper/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define NOW_US INT64_C(1750000000000000)

static const char *page, *before;

static struct hapax_op example_op(void)
{
    struct hapax_op op = {.kind = HAPAX_OP_CLAIM};

    for (unsigned i = 0; i < 32; i++)
        op.id.bytes[i] = (uint8_t)i;
    for (unsigned i = 0; i < 16; i++)
        op.token.bytes[i] = (uint8_t)(0xa0 + i);
    memset(op.fingerprint.bytes, 0xf1, sizeof(op.fingerprint.bytes));
    memset(op.caller.bytes, 0xca, sizeof(op.caller.bytes));
    op.scope = hapax_str("orders");
    op.what = hapax_str("POST /orders");
    op.lease_ms = 30000;
    op.retention_ms = 86400000;
    op.on_expired = HAPAX_EXPIRED_RERUN;
    return op;
}

/* ---- the page ------------------------------------------------------------------------ */

/* The bytes of the page's block ```hex NAME: pairs of digits up to a `;` on each line. */
static size_t example(const char *name, uint8_t *out, size_t room)
{
    FILE *file = fopen(page, "r");
    char line[512], start[64];
    size_t len = 0;
    bool inside = false;

    assert_non_null(file);
    snprintf(start, sizeof(start), "```hex %s\n", name);
    while (fgets(line, sizeof(line), file)) {
        if (!inside) {
            inside = strcmp(line, start) == 0;
            continue;
        }
        if (strncmp(line, "```", 3) == 0)
            break;
        line[strcspn(line, ";")] = '\0';
        for (const char *at = line; *at; at++) {
            char pair[3] = {at[0], at[1], '\0'}, *end;

            if (*at == ' ' || *at == '\n')
                continue;
            assert_true(len < room);
            out[len++] = (uint8_t)strtoul(pair, &end, 16);
            assert_ptr_equal(end, pair + 2);
            at++;
        }
    }
    fclose(file);
    if (!inside)
        fail_msg("the page has no example \"%s\"", name);
    return len;
}

static void is_example(const char *name, const uint8_t *bytes, const struct hapax__writer *w)
{
    uint8_t shown[1024];
    size_t len = (size_t)(w->at - bytes);

    assert_int_equal(example(name, shown, sizeof(shown)), len);
    assert_memory_equal(shown, bytes, len);
}

/* Whoever writes a client by the page speaks with this server. */
static void the_page_shows_what_is_sent(void **state)
{
    struct hapax__hello hello = {.version = HAPAX__FRAME_VERSION, .frame_max = HAPAX__FRAME_MAX};
    struct hapax__request request = {.seq = 1, .wait_ms = 10000, .count = 1};
    struct hapax__frame_reply reply = {.seq = 1, .first = 0, .count = 1};
    struct hapax_op op = example_op();
    struct hapax_record next;
    uint8_t bytes[1024];
    struct hapax__writer w = {bytes, sizeof(bytes)};

    hapax__frame_put_hello(&w, &hello);
    is_example("HELLO", bytes, &w);
    hello.batch_max = HAPAX_BATCH_MAX;
    hello.body_max = HAPAX_BODY_MAX;
    hello.pid = 812;
    w = (struct hapax__writer){bytes, sizeof(bytes)};
    hapax__frame_put_welcome(&w, &hello);
    is_example("WELCOME", bytes, &w);
    w = (struct hapax__writer){bytes, sizeof(bytes)};
    hapax__frame_put_request(&w, &request, hapax__frame_op_size(&op));
    hapax__frame_put_op(&w, &op);
    is_example("REQUEST", bytes, &w);
    assert_int_equal(hapax__machine(NULL, &op, NOW_US, &next), HAPAX__WRITE);
    w = (struct hapax__writer){bytes, sizeof(bytes)};
    hapax__frame_put_reply(&w, &reply, hapax__frame_answer_size(&op, ""));
    hapax__frame_put_answer(&w, &op, "");
    is_example("REPLY", bytes, &w);
    w = (struct hapax__writer){bytes, sizeof(bytes)};
    hapax__frame_put_fault(&w, HAPAX_ERR_REFUSED, "not permitted for uid 33");
    is_example("FAULT", bytes, &w);
}

/* ---- ops, answers -------------------------------------------------------------------- */

static struct hapax_op full_op(enum hapax_op_kind kind)
{
    struct hapax_op op = example_op();

    op.kind = kind;
    memset(op.owner.bytes, 0x0e, sizeof(op.owner.bytes));
    op.attempts_max = 7;
    op.rerun_completed = op.reconciled = op.ran = op.as_unknown = op.died = op.force = true;
    op.scrub = op.says_kept = true;
    op.kept_ms = 1000;
    op.tombstone_ms = 2000;
    op.resolve = HAPAX_RESOLVE_FAIL;
    op.if_attempt = 3;
    op.if_updated_us = NOW_US;
    op.by = hapax_str("ada");
    op.import = hapax_str("a record");
    op.outcome = (struct hapax_outcome){418, true, hapax_str("A: b\r\n"), hapax_str("tea")};
    op.states = HAPAX_STATES_OPEN;
    op.older_ms = 5000;
    op.limit = HAPAX_LIST_MAX;
    memset(op.cursor.bytes, 0xcc, sizeof(op.cursor.bytes));
    return op;
}

/* Every kind of op is the same after its way, and no part of it is an op. */
static void an_op_is_whole_or_nothing(void **state)
{
    for (unsigned kind = HAPAX_OP_CLAIM; kind <= HAPAX_OP_IMPORT; kind++) {
        struct hapax_op op = full_op((enum hapax_op_kind)kind), taken;
        uint8_t bytes[512], again[512];
        struct hapax__writer w = {bytes, sizeof(bytes)};
        struct hapax__reader r;
        size_t len;

        hapax__frame_put_op(&w, &op);
        len = (size_t)(w.at - bytes);
        assert_int_equal(len, hapax__frame_op_size(&op));
        r = (struct hapax__reader){bytes, len, false};
        assert_true(hapax__frame_take_op(&r, &taken));
        assert_int_equal(r.left, 0);
        w = (struct hapax__writer){again, sizeof(again)};
        hapax__frame_put_op(&w, &taken);
        assert_int_equal((size_t)(w.at - again), len);
        assert_memory_equal(bytes, again, len);
        for (size_t cut = 0; cut < len; cut++) {
            r = (struct hapax__reader){bytes, cut, false};
            assert_false(hapax__frame_take_op(&r, &taken));
        }
        bytes[3]++; /* its length says one byte more than its kind has */
        r = (struct hapax__reader){bytes, len + 1, false};
        assert_false(hapax__frame_take_op(&r, &taken));
    }
}

/* The version before: its bytes are read, and the same are made of what was read. The file has a
 * byte of the fuzzer's, a HELLO, and a REQUEST with each kind of op twice: with nothing, and with
 * all that version 3 had. The Hapax before version 4, commit 2c3754b, wrote them. */
static void frames_of_the_version_before_are_the_same(void **state)
{
    FILE *file = fopen(before, "rb");
    uint8_t bytes[8192], again[1024];
    struct hapax__reader r = {bytes + 1, 0, false};
    struct hapax__request request;
    struct hapax__hello hello;
    struct hapax_span payload;

    assert_non_null(file);
    r.left = fread(bytes, 1, sizeof(bytes), file) - 1;
    fclose(file);
    payload = hapax__take(&r, hapax__take_u32(&r));
    assert_int_equal(payload.ptr[0], HAPAX__FRAME_HELLO);
    assert_true(
        hapax__frame_take_hello((struct hapax_span){payload.ptr + 1, payload.len - 1}, &hello));
    assert_int_equal(hello.version, 3);
    payload.len = hapax__take_u32(&r);
    assert_int_equal(payload.len, r.left);
    assert_int_equal(hapax__take_u8(&r), HAPAX__FRAME_REQUEST);
    assert_true(hapax__frame_take_request(&r, &request));
    assert_int_equal(request.count, 2 * HAPAX_OP_IMPORT);
    for (unsigned i = 0; i < request.count; i++) {
        const uint8_t *at = r.at;
        struct hapax__writer w = {again, sizeof(again)};
        struct hapax_op op;

        assert_true(hapax__frame_take_op(&r, &op));
        assert_int_equal(op.kind, HAPAX_OP_CLAIM + i / 2);
        assert_int_equal(hapax__frame_op_version(&op), op.kind == HAPAX_OP_IMPORT ? 4 : 3);
        hapax__frame_put_op(&w, &op);
        assert_int_equal((size_t)(w.at - again), (size_t)(r.at - at));
        assert_memory_equal(again, at, (size_t)(r.at - at));
    }
    assert_int_equal(r.left, 0);
}

/* Flags that a later version may have are not read as nothing. */
static void unknown_flags_are_refused(void **state)
{
    struct hapax_op op = full_op(HAPAX_OP_RENEW), taken;
    uint8_t bytes[512];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    struct hapax__reader r;

    hapax__frame_put_op(&w, &op);
    w.at[-5] = 3; /* if_attempt comes last */
    r = (struct hapax__reader){bytes, (size_t)(w.at - bytes), false};
    assert_false(hapax__frame_take_op(&r, &taken));
}

/* An end says nothing, or a time: an op has one form alone. */
static void an_end_that_is_kept_for_no_time_is_refused(void **state)
{
    struct hapax_op op = full_op(HAPAX_OP_COMPLETE), taken;
    uint8_t bytes[512];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    struct hapax__reader r;

    hapax__frame_put_op(&w, &op);
    memset(w.at - 16, 0, 16);
    r = (struct hapax__reader){bytes, (size_t)(w.at - bytes), false};
    assert_false(hapax__frame_take_op(&r, &taken));
}

static enum hapax__taken take(const uint8_t *bytes, size_t len, struct hapax_op *op)
{
    struct hapax__reader r = {bytes, len, false};
    struct hapax_arena arena = {0};
    char text[HAPAX_TEXT_MAX];
    enum hapax__taken taken = hapax__frame_take_answer(&r, op, &arena, text);

    hapax__arena_release(&arena);
    return taken;
}

/* An answer to another op, or one that no store gives, is malformed; the op stays unanswered. */
static void an_answer_fits_its_op(void **state)
{
    struct hapax_op op = example_op(), other = example_op();
    struct hapax_record next;
    uint8_t bytes[1024];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    size_t len;

    hapax__machine(NULL, &op, NOW_US, &next);
    hapax__frame_put_answer(&w, &op, "");
    len = (size_t)(w.at - bytes);
    for (size_t cut = 0; cut < len; cut++)
        assert_int_equal(take(bytes, cut, &other), HAPAX__TAKEN_MALFORMED);
    other.id.bytes[0]++;
    assert_int_equal(take(bytes, len, &other), HAPAX__TAKEN_MALFORMED);
    other = example_op();
    other.kind = HAPAX_OP_LIST;
    assert_int_equal(take(bytes, len, &other), HAPAX__TAKEN_MALFORMED);
    for (unsigned at = 4; at < len; at++) {
        bytes[at] ^= 0x40; /* verdict, error, differs, parts, or a byte under the checksum */
        other = example_op();
        if (at < 8 || at >= 16) {
            assert_int_equal(take(bytes, len, &other), HAPAX__TAKEN_MALFORMED);
            assert_int_equal(other.verdict, HAPAX_NO_VERDICT);
        }
        bytes[at] ^= 0x40;
    }
    other = example_op();
    assert_int_equal(take(bytes, len, &other), HAPAX__TAKEN);
    assert_null(record_diff(&other.record, &op.record));
    assert_int_equal(other.now_us, NOW_US);
}

/* A verdict that no op of its kind can get is malformed: a flow would take it for a bug, and
 * abort. */
static void a_verdict_fits_the_kind_of_its_op(void **state)
{
    static const struct {
        enum hapax_op_kind kind;
        const char *fits; /* 1: this verdict, from CLAIMED on, with a record */
    } rows[] = {
        {HAPAX_OP_CLAIM, "1111110100"},    {HAPAX_OP_RENEW, "0000001100"},
        {HAPAX_OP_COMPLETE, "0000001100"}, {HAPAX_OP_FAIL, "0000001100"},
        {HAPAX_OP_READ, "0000000010"},     {HAPAX_OP_RESOLVE, "0110001100"},
        {HAPAX_OP_IMPORT, "0000001010"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (unsigned v = HAPAX_CLAIMED; v <= HAPAX_ABSENT; v++) {
            struct hapax_op op = example_op(), asked = full_op(rows[i].kind);
            struct hapax_record next;
            uint8_t bytes[1024];
            struct hapax__writer w = {bytes, sizeof(bytes)};
            bool fits = rows[i].fits[v - HAPAX_CLAIMED] == '1';

            hapax__machine(NULL, &op, NOW_US, &next);
            op.verdict = (enum hapax_verdict)v;
            asked.id = op.id;
            hapax__frame_put_answer(&w, &op, "");
            assert_int_equal(take(bytes, (size_t)(w.at - bytes), &asked),
                             fits ? HAPAX__TAKEN : HAPAX__TAKEN_MALFORMED);
        }
    }
}

/* What was asked to be stored, and is, need not come back. */
static void a_stored_body_is_not_sent_back(void **state)
{
    struct hapax_op op = example_op(), other;
    struct hapax_record record, next;
    struct hapax_span body = {(const uint8_t *)"a body that is stored", 21};
    uint8_t bytes[1024];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    size_t echoed;

    hapax__machine(NULL, &op, NOW_US, &record);
    op = example_op();
    op.kind = HAPAX_OP_COMPLETE;
    op.outcome = (struct hapax_outcome){200, true, {NULL, 0}, body};
    other = op;
    hapax__machine(&record, &op, NOW_US, &next);
    hapax__frame_put_answer(&w, &op, "");
    echoed = (size_t)(w.at - bytes);
    assert_int_equal(take(bytes, echoed, &other), HAPAX__TAKEN);
    assert_null(record_diff(&other.record, &op.record));
    op.outcome.body = hapax_str("another body, not put"); /* as long, but not what is stored */
    assert_int_equal(hapax__frame_answer_size(&op, ""), echoed + body.len);
}

/* A list longer than a frame ends earlier, where the next one goes on. */
static void a_long_list_is_cut_where_the_next_goes_on(void **state)
{
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .verdict = HAPAX_FOUND, .count = 100};
    struct hapax_record records[100] = {{.state = HAPAX_STATE_STARTED}};
    size_t whole, part;

    for (unsigned i = 0; i < 100; i++) {
        records[i].state = HAPAX_STATE_STARTED;
        records[i].id.bytes[31] = (uint8_t)(i + 1);
    }
    op.records = records;
    whole = hapax__frame_answer_size(&op, "");
    hapax__frame_fit_answer(&op, whole);
    assert_int_equal(op.count, 100);
    assert_false(op.more);
    hapax__frame_fit_answer(&op, whole - 1);
    assert_int_equal(op.count, 99);
    assert_true(op.more);
    assert_int_equal(op.next_cursor.bytes[31], 99);
    part = hapax__frame_answer_size(&op, "");
    hapax__frame_fit_answer(&op, part / 2);
    assert_true(op.count > 40 && op.count < 50);
    assert_true(hapax__frame_answer_size(&op, "") <= part / 2);
    assert_int_equal(op.next_cursor.bytes[31], op.count);
}

/* Foreign text may end up on a terminal. */
static void foreign_text_is_made_printable(void **state)
{
    uint8_t bytes[HAPAX__FRAME_FAULT_MAX];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    hapax__frame_put_fault(&w, HAPAX_ERR_REFUSED, "red \033[31m\n");
    assert_true(hapax__frame_take_fault((struct hapax_span){bytes + 5, (size_t)(w.at - bytes) - 5},
                                        &error, text));
    assert_int_equal(error, HAPAX_ERR_REFUSED);
    assert_string_equal(text, "red ?[31m?");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_shows_what_is_sent),
        cmocka_unit_test(an_op_is_whole_or_nothing),
        cmocka_unit_test(frames_of_the_version_before_are_the_same),
        cmocka_unit_test(unknown_flags_are_refused),
        cmocka_unit_test(an_end_that_is_kept_for_no_time_is_refused),
        cmocka_unit_test(an_answer_fits_its_op),
        cmocka_unit_test(a_verdict_fits_the_kind_of_its_op),
        cmocka_unit_test(a_stored_body_is_not_sent_back),
        cmocka_unit_test(a_long_list_is_cut_where_the_next_goes_on),
        cmocka_unit_test(foreign_text_is_made_printable),
    };

    if (argc != 3) {
        fprintf(stderr, "usage: test_frame docs/keeper.md tests/fuzz/corpus/frame/version-3\n");
        return 2;
    }
    page = argv[1];
    before = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
