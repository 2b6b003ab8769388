/* SPDX-License-Identifier: Apache-2.0
 *
 * What the Redis store makes of replies that lua/machine.lua did not give: cut off, changed, of
 * other types. None crashes it, none is read as "absent", and none gets a verdict that its op
 * cannot have. /
 */
#include "store/redis/redis.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OWN        128
#define REPLICATED 256

/* completed, attempt 2, fence 7, scope "ab", what "w", by "me", headers "H", body "body" */
static const uint8_t record[] = {2, 0, 1,   0, 1,   1,   0,   200, /* state, bits, status */
                                 0, 0, 0,   2, 0,   0,   0,   1, /* attempt, spent */
                                 0, 0, 0,   0, 0,   0,   0,   7, /* fence */
                                 0, 0, 0,   0, 0,   0,   0,   1, /* created */
                                 0, 0, 0,   0, 0,   0,   0,   2, /* updated */
                                 0, 0, 0,   0, 0,   0,   0,   0, /* lease */
                                 0, 0, 0,   0, 0,   0,   0,   9, /* expires */
                                 0, 0, 0,   0, 0,   0,   0,   0, /* retention: for ever */
                                 0, 0, 0,   0, 0,   0,   0,   0, /* resolved */
                                 0, 0, 0,   1, 0,   0,   0,   4,   2,   2,   0,   1, /* lengths */
                                 4, 1, 246, /* replaced: unknown, 502 */
                                 1, 1, 1,   1, 1,   1,   1,   1,   1,   1,   1,   1,   1,   1,  1,
                                 1, 1, 1,   1, 1,   1,   1,   1,   1,   1,   1,   1,   1,   1,  1,
                                 1, 1, 2,   2, 2,   2,   2,   2,   2,   2,   2,   2,   2,   2,  2,
                                 2, 2, 2,   2, 2,   2,   2,   2,   2,   2,   2,   2,   2,   2,  2,
                                 2, 2, 2,   2, 'a', 'b', 'w', 'm', 'e', 'H', 'b', 'o', 'd', 'y'};

#define SHOWN 64

struct reply {
    struct hapax__resp top;
    struct hapax__resp *element[4];
    struct hapax__resp part[4];
    char bytes[sizeof(record)];
};

static void make(struct reply *r, long long code)
{
    static char seconds[] = "1700000000", us[] = "000123";

    memset(r, 0, sizeof(*r));
    memcpy(r->bytes, record, sizeof(record));
    for (size_t i = 0; i < 4; i++)
        r->element[i] = &r->part[i];
    r->top.type = HAPAX__RESP_ARRAY;
    r->top.elements = 4;
    r->top.element = r->element;
    r->part[0].type = r->part[1].type = r->part[3].type = HAPAX__RESP_STRING;
    r->part[0].str = seconds;
    r->part[0].len = strlen(seconds);
    r->part[1].str = us;
    r->part[1].len = strlen(us);
    r->part[2].type = HAPAX__RESP_INTEGER;
    r->part[2].integer = code;
    r->part[3].str = r->bytes;
    r->part[3].len = sizeof(record);
}

static enum hapax__redis_answer answer(struct hapax_op *op, const struct reply *r)
{
    char text[HAPAX_TEXT_MAX] = "";
    bool held;
    size_t need;
    enum hapax__redis_answer said = hapax__redis_answer(op, &r->top, 0, &held, &need, text);

    if (said == HAPAX__REDIS_ANSWERED) {
        assert_int_equal(op->error == HAPAX_ERR_NONE, op->verdict != HAPAX_NO_VERDICT);
        assert_int_equal(op->error == HAPAX_ERR_NONE, text[0] == '\0');
    }
    return said;
}

static struct hapax_op claim(void)
{
    return (struct hapax_op){.kind = HAPAX_OP_CLAIM};
}

/* What the script says arrives, field by field. */
static void a_reply_is_read_as_it_was_said(void **state)
{
    struct reply r;
    struct hapax_op op = claim();
    char text[HAPAX_TEXT_MAX];
    bool held;
    size_t need;

    make(&r, HAPAX_COMPLETED + SHOWN + REPLICATED);
    assert_int_equal(hapax__redis_answer(&op, &r.top, 0, &held, &need, text),
                     HAPAX__REDIS_ANSWERED);
    assert_true(held);
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_int_equal(op.now_us, INT64_C(1700000000000123));
    assert_int_equal(op.record.state, HAPAX_STATE_COMPLETED);
    assert_true(!op.record.hold && op.record.stale && !op.record.ran && op.record.reruns);
    assert_int_equal(op.record.attempt, 2);
    assert_int_equal(op.record.spent, 1);
    assert_int_equal(op.record.fence, 7);
    assert_int_equal(op.record.expires_us, 9);
    assert_true(op.record.retention_ms == HAPAX_FOREVER_MS);
    assert_int_equal(op.record.outcome.status, 200);
    assert_true(op.record.outcome.body_kept);
    assert_int_equal(op.record.scope.len, 2);
    assert_int_equal(op.record.what.len, 1);
    assert_memory_equal(op.record.what.ptr, "w", 1);
    assert_memory_equal(op.record.resolved_by.ptr, "me", 2);
    assert_int_equal(op.record.replaced_state, HAPAX_STATE_UNKNOWN);
    assert_int_equal(op.record.replaced_status, 502);
    assert_int_equal(op.record.outcome.headers.len, 1);
    assert_int_equal(op.record.outcome.body.len, 4);
    assert_memory_equal(op.record.outcome.body.ptr, "body", 4);
    assert_int_equal(hapax__redis_answer(&op, &r.top, 1, &held, &need, text), HAPAX__REDIS_LATER);
}

/* A record that is cut off, anywhere, or longer than it says, answers nothing. */
static void a_record_of_another_length_is_no_answer(void **state)
{
    char longer[sizeof(record) + 1] = {0};
    struct reply r;
    struct hapax_op op;

    for (size_t len = 0; len < sizeof(record); len++) {
        op = claim();
        make(&r, HAPAX_COMPLETED + SHOWN);
        r.part[3].str = malloc(len + 1); /* so that reading behind it is found */
        assert_non_null(r.part[3].str);
        memcpy(r.part[3].str, record, len);
        r.part[3].len = len;
        assert_int_equal(answer(&op, &r), HAPAX__REDIS_NONSENSE);
        free(r.part[3].str);
    }
    op = claim();
    make(&r, HAPAX_COMPLETED + SHOWN);
    memcpy(longer, record, sizeof(record));
    r.part[3].str = longer;
    r.part[3].len = sizeof(longer);
    assert_int_equal(answer(&op, &r), HAPAX__REDIS_NONSENSE);
}

/* Whatever bit is flipped, in the record or in the time, the answer is none or the verdict it
 * was. */
static void a_flipped_bit_never_makes_another_verdict(void **state)
{
    char seconds[] = "1700000000";
    unsigned refused = 0;

    for (size_t i = 0; i < 8 * (sizeof(record) + sizeof(seconds) - 1); i++) {
        struct hapax_op op = claim();
        struct reply r;

        make(&r, HAPAX_COMPLETED + SHOWN);
        memcpy(seconds, "1700000000", sizeof(seconds));
        r.part[0].str = seconds;
        if (i / 8 < sizeof(record))
            r.bytes[i / 8] = (char)(r.bytes[i / 8] ^ 1 << i % 8);
        else
            seconds[i / 8 - sizeof(record)] = (char)(seconds[i / 8 - sizeof(record)] ^ 1 << i % 8);
        if (answer(&op, &r) == HAPAX__REDIS_ANSWERED)
            assert_int_equal(op.verdict, HAPAX_COMPLETED);
        else
            refused++;
    }
    assert_true(refused > 150);
}

/* Every number the script might say, for every kind of op: a verdict that this kind cannot get, and
 * a missing record where there must be one, are no answer. */
static void a_code_that_does_not_fit_its_op_is_no_answer(void **state)
{
    unsigned answered = 0;

    for (int kind = HAPAX_OP_CLAIM; kind <= HAPAX_OP_IMPORT; kind++)
        for (long long code = -10; code < 1100 && kind != HAPAX_OP_PURGE; code++)
            for (int nil = 0; nil < 2; nil++) {
                struct hapax_op op = {.kind = (enum hapax_op_kind)kind};
                struct reply r;

                make(&r, code);
                if (nil)
                    r.part[3].type = HAPAX__RESP_NIL;
                if (answer(&op, &r) != HAPAX__REDIS_ANSWERED || op.error != HAPAX_ERR_NONE)
                    continue;
                answered++;
                assert_true(op.verdict >= HAPAX_CLAIMED && op.verdict <= HAPAX_ABSENT);
                assert_int_equal(op.verdict == HAPAX_MISMATCH, op.differs != HAPAX_DIFFERS_NOT);
                if (op.verdict == HAPAX_ABSENT)
                    assert_true(nil && op.kind != HAPAX_OP_CLAIM);
                if (op.record.state == HAPAX_STATE_ABSENT)
                    assert_true(op.verdict == HAPAX_ABSENT || op.verdict == HAPAX_LOST);
                if (!(code & OWN) && !(code & SHOWN))
                    assert_int_equal(op.record.outcome.body.len, 0);
            }
    assert_true(answered > 50);
}

/* Elements of the wrong type, and too few of them, are no answer. */
static void a_reply_of_another_shape_is_no_answer(void **state)
{
    static const enum hapax__resp_type types[] = {HAPAX__RESP_STRING,  HAPAX__RESP_ARRAY,
                                                  HAPAX__RESP_INTEGER, HAPAX__RESP_NIL,
                                                  HAPAX__RESP_STATUS,  HAPAX__RESP_ERROR};
    struct hapax_op op;
    struct reply r;

    for (size_t part = 0; part < 5; part++)
        for (size_t t = 0; t < 6; t++) {
            struct hapax__resp *changed;

            make(&r, HAPAX_COMPLETED + SHOWN);
            changed = part < 4 ? &r.part[part] : &r.top;
            if (changed->type == types[t])
                continue;
            changed->type = types[t];
            op = claim();
            assert_int_equal(answer(&op, &r), HAPAX__REDIS_NONSENSE);
        }
    for (size_t n = 0; n < 4; n++) {
        make(&r, HAPAX_COMPLETED + SHOWN);
        r.top.elements = n;
        op = claim();
        assert_int_equal(answer(&op, &r), n == 2 ? HAPAX__REDIS_LATER : HAPAX__REDIS_NONSENSE);
    }
}

/* Damage, a newer version and a refused write are errors of their own, with the words for them. */
static void what_is_no_verdict_is_an_error_with_a_text(void **state)
{
    static const struct {
        int code;
        const char *words;
        enum hapax_error error;
    } cases[] = {
        {-1, "OOM command not allowed", HAPAX_ERR_UNAVAILABLE},
        {-1, "NOPERM this user has no permissions", HAPAX_ERR_REFUSED},
        {-2, "", HAPAX_ERR_CORRUPT},
        {-3, "", HAPAX_ERR_UNSUPPORTED},
    };

    for (size_t i = 0; i < 4; i++) {
        struct hapax_op op = claim();
        char words[64];
        struct reply r;

        make(&r, cases[i].code);
        snprintf(words, sizeof(words), "%s", cases[i].words);
        r.part[3].str = words;
        r.part[3].len = strlen(words);
        assert_int_equal(answer(&op, &r), HAPAX__REDIS_ANSWERED);
        assert_int_equal(op.error, cases[i].error);
    }
}

/* A key names its id, and nothing else under the prefix is taken for one. */
static void only_a_key_of_ours_has_an_id(void **state)
{
    struct hapax_id id, back;
    uint8_t key[HAPAX__REDIS_KEY_MAX + 1], grave[HAPAX__REDIS_GRAVE_MAX];
    bool is_grave;
    size_t len;

    for (size_t i = 0; i < sizeof(id); i++)
        id.bytes[i] = (uint8_t)(i * 37);
    len = hapax__redis_key(key, "hapax:", &id);
    assert_int_equal(len, 70);
    assert_true(hapax__redis_id(&back, &is_grave, "hapax:", (struct hapax_span){key, len}));
    assert_memory_equal(&back, &id, sizeof(id));
    assert_false(is_grave);
    memcpy(grave, "hapax:{", 7);
    memcpy(grave + 7, key, len);
    grave[7 + len] = '}';
    memset(&back, 0, sizeof(back));
    assert_true(hapax__redis_id(&back, &is_grave, "hapax:", (struct hapax_span){grave, len + 8}));
    assert_memory_equal(&back, &id, sizeof(id));
    assert_true(is_grave);
    assert_false(hapax__redis_id(&back, &is_grave, "hapax:", (struct hapax_span){grave, len + 7}));
    assert_false(hapax__redis_id(&back, &is_grave, "hapax:", (struct hapax_span){key, len - 1}));
    assert_false(hapax__redis_id(&back, &is_grave, "hapax;", (struct hapax_span){key, len}));
    key[20] = 'A';
    assert_false(hapax__redis_id(&back, &is_grave, "hapax:", (struct hapax_span){key, len}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_is_read_as_it_was_said),
        cmocka_unit_test(a_record_of_another_length_is_no_answer),
        cmocka_unit_test(a_flipped_bit_never_makes_another_verdict),
        cmocka_unit_test(a_code_that_does_not_fit_its_op_is_no_answer),
        cmocka_unit_test(a_reply_of_another_shape_is_no_answer),
        cmocka_unit_test(what_is_no_verdict_is_an_error_with_a_text),
        cmocka_unit_test(only_a_key_of_ours_has_an_id),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
