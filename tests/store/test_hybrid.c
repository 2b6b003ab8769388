/* SPDX-License-Identifier: Apache-2.0
 *
 * The hybrid store and a Redis that lies: test_hybrid URI, of a hybrid store over one Redis or
 * several. Each case has ids of its own. It writes into the hints behind the store's back whatever
 * a Redis may hold: locks of dead attempts, outdated copies, copies of other ids, damaged values,
 * dumps of yesterday. The answer must be PostgreSQL's.
 */
#include "../cases.h"
#include "base/clock.h"
#include "core/id.h"
#include "faulty.h"
#include "store/hybrid/hybrid.h"
#include "store/rotation/rotation.h"
#include "store/types.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define AGAIN_US    INT64_C(1000000) /* before a copy is asked for again */
#define PATIENCE_MS 60000
#define VALUE_MAX   4096u

static const char *hybrid_uri;
static char postgres_uri[512];
static redisContext *nodes[9];
static size_t node_count;
static struct hapax__plan plan; /* of all that is sent to PostgreSQL */

struct bed {
    struct hapax_store *store; /* the hybrid */
    struct hapax_store *other; /* another handle of it */
    struct hapax_store *postgres; /* the same records, past the hints */
    struct hapax_id id;
    struct hapax_arena arena;
};

static struct hapax_store *open_uri(const char *uri)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        fail_msg("%s", text);
    return store;
}

static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof(*bed));

    assert_non_null(bed);
    bed->store = open_uri(hybrid_uri);
    bed->other = open_uri(hybrid_uri);
    bed->postgres = open_uri(postgres_uri);
    assert_int_equal(getrandom(bed->id.bytes, sizeof(bed->id.bytes), 0), sizeof(bed->id.bytes));
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;

    hapax_store_close(bed->store);
    hapax_store_close(bed->other);
    hapax_store_close(bed->postgres);
    hapax__arena_release(&bed->arena);
    free(bed);
    return 0;
}

/* ---- ops ----------------------------------------------------------------------------- */

static struct hapax_op op_of(const struct bed *bed, enum hapax_op_kind kind, char who)
{
    struct hapax_op op = {.kind = kind,
                          .id = bed->id,
                          .scope = hapax_str("hybrid"),
                          .lease_ms = 30000,
                          .retention_ms = 3600000,
                          .on_expired = HAPAX_EXPIRED_RERUN};

    memset(op.token.bytes, who, sizeof(op.token.bytes));
    op.outcome = (struct hapax_outcome){200, true, hapax_str("A: b\r\n"), hapax_str("first")};
    return op;
}

static struct hapax_op run(struct hapax_store *store, struct hapax_op op)
{
    if (hapax_store_run(store, &op, 1) != HAPAX_ERR_NONE)
        fail_msg("op %d: %s", (int)op.kind, hapax_store_text(store));
    return op;
}

static struct hapax_op claim(const struct bed *bed, struct hapax_store *store, char who)
{
    return run(store, op_of(bed, HAPAX_OP_CLAIM, who));
}

static void expect(struct hapax_op op, enum hapax_verdict verdict)
{
    assert_string_equal(hapax_verdict_name(op.verdict), hapax_verdict_name(verdict));
}

static void complete_first(const struct bed *bed)
{
    expect(claim(bed, bed->store, '1'), HAPAX_CLAIMED);
    expect(run(bed->store, op_of(bed, HAPAX_OP_COMPLETE, '1')), HAPAX_OK);
}

/* ---- what stands in Redis ------------------------------------------------------------ */

static redisReply *ask_node(size_t i, const char *format, ...)
{
    redisReply *reply;
    va_list args;

    va_start(args, format);
    reply = redisvCommand(nodes[i], format, args);
    va_end(args);
    assert_non_null(reply);
    if (reply->type == REDIS_REPLY_ERROR)
        fail_msg("%s", reply->str);
    return reply;
}

static void on_all(const char *command)
{
    for (size_t i = 0; i < node_count; i++)
        freeReplyObject(ask_node(i, command));
}

static void key_of(char out[96], const struct hapax_id *id)
{
    size_t len = (size_t)snprintf(out, 96, "hapax:hint:");

    for (size_t i = 0; i < sizeof(id->bytes); i++)
        len += (size_t)snprintf(out + len, 96 - len, "%02x", id->bytes[i]);
}

/* Reads what node 0 has under the id; returns its length, 0: nothing. */
static size_t get_hint(const struct hapax_id *id, uint8_t out[VALUE_MAX])
{
    char key[96];
    redisReply *reply;
    size_t len = 0;

    key_of(key, id);
    reply = ask_node(0, "GET %s", key);
    if (reply->type == REDIS_REPLY_STRING) {
        assert_true(reply->len <= VALUE_MAX);
        memcpy(out, reply->str, reply->len);
        len = reply->len;
    }
    freeReplyObject(reply);
    return len;
}

/* Writes to all nodes, without an end. */
static void set_hint(const struct hapax_id *id, struct hapax_span value)
{
    char key[96];

    assert_non_null(value.ptr);
    key_of(key, id);
    for (size_t i = 0; i < node_count; i++)
        freeReplyObject(ask_node(i, "SET %s %b", key, value.ptr, value.len));
}

/* Waits until the store's own hint of that kind stands there. */
static size_t await_hint(const struct hapax_id *id, char kind, uint8_t out[VALUE_MAX])
{
    int64_t deadline_us = hapax__boot_us() + PATIENCE_MS * INT64_C(1000);
    size_t len;

    do {
        len = get_hint(id, out);
        assert_true(hapax__boot_us() < deadline_us);
    } while (len < HAPAX__HINT_HEAD || out[20] != (uint8_t)kind);
    return len;
}

/* Waits until the operation's copy stands there. A copy is left out where a process stood still and
 * the epoch grew old: the answer to one more CLAIM makes the copy again. 0: its record expired. */
static size_t copy_of(const struct bed *bed, uint8_t out[VALUE_MAX])
{
    int64_t deadline_us = hapax__boot_us() + PATIENCE_MS * INT64_C(1000), again_us = 0;
    struct hapax_op op;
    size_t len;

    while ((len = get_hint(&bed->id, out)) < HAPAX__HINT_HEAD || out[20] != '2') {
        assert_true(hapax__boot_us() < deadline_us);
        if (again_us == 0)
            again_us = hapax__boot_us() + AGAIN_US;
        if (hapax__boot_us() < again_us)
            continue;
        op = claim(bed, bed->store, '7');
        if (op.verdict == HAPAX_CLAIMED)
            return 0;
        expect(op, HAPAX_COMPLETED);
        again_us = 0;
    }
    return len;
}

static size_t await_copy(const struct bed *bed, uint8_t out[VALUE_MAX])
{
    size_t len = copy_of(bed, out);

    assert_true(len > 0);
    return len;
}

/* ---- what hints are for -------------------------------------------------------------- */

static enum hapax__fault of_claims(void *arg, uint64_t number, const struct hapax_op *op)
{
    (void)number;
    return op->kind == HAPAX_OP_CLAIM ? *(enum hapax__fault *)arg : HAPAX__NO_FAULT;
}

/* Sends a CLAIM that surely does not reach PostgreSQL. A node that does not answer in time is left
 * out for a second, and then there may be no lookup. */
static struct hapax_op claim_without_postgres(const struct bed *bed, char who)
{
    int64_t deadline_us = hapax__boot_us() + PATIENCE_MS * INT64_C(1000);
    enum hapax__fault fault = HAPAX__FAIL_BEFORE;
    struct hapax_op op;

    hapax__plan_decide(&plan, of_claims, &fault);
    do {
        op = op_of(bed, HAPAX_OP_CLAIM, who);
        (void)hapax_store_run(bed->other, &op, 1);
    } while (op.error == HAPAX_ERR_UNAVAILABLE && hapax__boot_us() < deadline_us);
    hapax__plan_set(&plan, HAPAX__NO_FAULT, 0, 0);
    return op;
}

/* A live lock refuses a caller with the same request, and PostgreSQL is not asked. */
CASE_WITH(a_lock_turns_contention_away, set_up, tear_down)
{
    struct bed *bed = *state;
    uint8_t value[VALUE_MAX];
    struct hapax_op first = claim(bed, bed->store, '1'), op;

    expect(first, HAPAX_CLAIMED);
    (void)await_hint(&bed->id, '0', value);
    op = claim(bed, bed->other, '2');
    expect(op, HAPAX_IN_FLIGHT);
    assert_true(op.now_us < op.record.lease_until_us);
    assert_true(op.record.lease_until_us <= first.record.lease_until_us);
    first = run(bed->store, op_of(bed, HAPAX_OP_RENEW, '1'));
    expect(first, HAPAX_OK);
    (void)await_hint(&bed->id, '1', value);
    expect(claim(bed, bed->other, '2'), HAPAX_IN_FLIGHT);
    op = claim_without_postgres(bed, '2');
    expect(op, HAPAX_IN_FLIGHT);
    assert_int_equal(op.record.attempt, 1);
    assert_int_equal(op.record.fence, first.record.fence);
    assert_int_equal(op.record.lease_until_us, first.record.lease_until_us);
    assert_true(op.now_us > 0 && op.now_us < op.record.lease_until_us);
}

/* 422 beats 409: PostgreSQL judges a request that does not fit a lock or a copy. */
CASE_WITH(another_request_is_a_mismatch, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op op = op_of(bed, HAPAX_OP_CLAIM, '2');
    uint8_t value[VALUE_MAX];

    expect(claim(bed, bed->store, '1'), HAPAX_CLAIMED);
    (void)await_hint(&bed->id, '0', value);
    op.fingerprint.bytes[0] = 1;
    expect(run(bed->other, op), HAPAX_MISMATCH);
    expect(run(bed->store, op_of(bed, HAPAX_OP_COMPLETE, '1')), HAPAX_OK);
    (void)await_copy(bed, value);
    op = run(bed->other, op);
    expect(op, HAPAX_MISMATCH);
    assert_int_equal(op.differs, HAPAX_DIFFERS_FINGERPRINT);
    op = op_of(bed, HAPAX_OP_CLAIM, '2');
    op.caller.bytes[0] = 1;
    op = run(bed->other, op);
    expect(op, HAPAX_MISMATCH);
    assert_int_equal(op.differs, HAPAX_DIFFERS_CALLER);
    assert_int_equal(op.record.outcome.body.len, 0);
}

/* A completion is replayed from its copy, byte for byte, and PostgreSQL is not asked. */
CASE_WITH(a_copy_answers_replays, set_up, tear_down)
{
    struct bed *bed = *state;
    uint8_t value[VALUE_MAX];
    struct hapax_op op;

    complete_first(bed);
    (void)await_hint(&bed->id, '2', value);
    expect(claim(bed, bed->other, '2'), HAPAX_COMPLETED);
    {
        struct hapax_op read = run(bed->postgres, op_of(bed, HAPAX_OP_READ, '2'));
        struct hapax__known known = {0};
        struct hapax__hint hint;
        struct hapax_record record;
        size_t len = get_hint(&bed->id, value);

        /* What PostgreSQL has never said, under today's epoch: a copy that is believed. */
        assert_true(hapax__hint_read(&hint, &bed->id, (struct hapax_span){value, len}, NULL));
        assert_int_equal(hapax__known_ask(&known, bed->postgres), HAPAX_ERR_NONE);
        assert_int_equal(hint.epoch, known.epoch);
        assert_int_equal(hint.record.fence, read.record.fence);
        record = hint.record;
        record.outcome.body = hapax_str("from the copy");
        set_hint(&bed->id, hapax__hint_copy(&bed->arena, &record, known.epoch, NULL));
    }
    op = claim(bed, bed->other, '2');
    expect(op, HAPAX_COMPLETED);
    assert_int_equal(op.record.outcome.body.len, strlen("from the copy"));
    assert_memory_equal(op.record.outcome.headers.ptr, "A: b\r\n", 6);
}

/* A repeat of the record's own claim is CLAIMED again, whoever's lock stands in Redis. */
CASE_WITH(a_repeat_is_the_same_claim, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op first = claim(bed, bed->store, '1'), again;

    expect(first, HAPAX_CLAIMED);
    again = claim(bed, bed->other, '1');
    expect(again, HAPAX_CLAIMED);
    assert_int_equal(again.record.fence, first.record.fence);
}

/* ---- doubts -------------------------------------------------------------------------- */

/* Sends a CLAIM that meets the fault on its way to PostgreSQL. */
static struct hapax_op claim_with(struct hapax_store *store, struct hapax_op op,
                                  enum hapax__fault fault)
{
    hapax__plan_decide(&plan, of_claims, &fault);
    (void)hapax_store_run(store, &op, 1);
    hapax__plan_set(&plan, HAPAX__NO_FAULT, 0, 0);
    assert_int_equal(op.verdict, HAPAX_NO_VERDICT);
    return op;
}

/* The lock of another claim, which PostgreSQL has not seen, stands now. */
static void lock_by_another(struct bed *bed)
{
    struct hapax_op op = op_of(bed, HAPAX_OP_CLAIM, '2');
    struct hapax_mark mark = {{'x'}};
    int64_t now_us = run(bed->postgres, op_of(bed, HAPAX_OP_READ, '2')).now_us;

    set_hint(&bed->id, hapax__hint_bare(&bed->arena, &op, &mark, now_us + 20000000));
}

/* A repeat that surely was not applied says nothing about the first try: that has its lock still,
 * and no other's lock hides it. */
CASE_WITH(a_refused_repeat_leaves_the_doubt, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op first = op_of(bed, HAPAX_OP_CLAIM, '1');

    (void)claim_with(bed->store, first, HAPAX__LOSE_REPLY);
    (void)claim_with(bed->store, first, HAPAX__FAIL_BEFORE);
    expect(claim(bed, bed->other, '2'), HAPAX_IN_FLIGHT);
    lock_by_another(bed);
    expect(run(bed->store, first), HAPAX_CLAIMED);
}

/* Both halves of a rotation are claimed with one token: what is known of one says nothing about the
 * other. */
CASE_WITH(a_doubt_is_about_one_id, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op first = op_of(bed, HAPAX_OP_CLAIM, '1'), half = first;

    half.id.bytes[0] ^= 1;
    (void)claim_with(bed->store, first, HAPAX__LOSE_REPLY);
    expect(run(bed->store, half), HAPAX_CLAIMED);
    lock_by_another(bed);
    expect(run(bed->store, first), HAPAX_CLAIMED);
}

/* A fault of the CLAIMs of one id. */
struct one {
    struct hapax_id id;
    enum hapax__fault fault;
};

static enum hapax__fault of_one(void *arg, uint64_t number, const struct hapax_op *op)
{
    const struct one *one = arg;
    bool meets = op->kind == HAPAX_OP_CLAIM && memcmp(&op->id, &one->id, sizeof(op->id)) == 0;

    (void)number;
    return meets ? one->fault : HAPAX__NO_FAULT;
}

/* The old half of a rotation has granted a claim, and the new half did not answer. Another's lock
 * does not hide that claim from its repeat. For a third token the lock is the answer. */
CASE_WITH(a_lock_hides_no_half_of_a_claim, set_up, tear_down)
{
    static const enum hapax__fault faults[] = {HAPAX__LOSE_OP, HAPAX__LOSE_REPLY};
    struct bed *bed = *state;

    assert_int_equal(hapax__rotation_over(&bed->store), HAPAX_ERR_NONE);
    for (size_t i = 0; i < 2; i++) {
        const struct hapax_identity old = {.id = bed->id};
        struct hapax_op ops[] = {op_of(bed, HAPAX_OP_CLAIM, '1'), op_of(bed, HAPAX_OP_CLAIM, '3')};
        struct one new = {bed->id, faults[i]};
        struct hapax_op first;

        new.id.bytes[0] ^= 1;
        ops[0].id = ops[1].id = new.id;
        ops[0].old = ops[1].old = &old;
        first = ops[0];
        hapax__plan_decide(&plan, of_one, &new);
        assert_int_equal(hapax_store_run(bed->store, &first, 1), HAPAX_ERR_INDETERMINATE);
        hapax__plan_set(&plan, HAPAX__NO_FAULT, 0, 0);
        lock_by_another(bed);
        expect(run(bed->store, ops[1]), HAPAX_IN_FLIGHT);
        expect(run(bed->store, ops[0]), HAPAX_CLAIMED);
        bed->id.bytes[1] ^= 1;
    }
}

/* No number of doubts has the first one forgotten. These are kept in the same places. */
CASE_WITH(doubts_in_one_place_are_kept, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op first = op_of(bed, HAPAX_OP_CLAIM, '1'), more = first;
    struct hapax_mark here, mark;
    int doubts = 0;

    hapax__mark(&here, &first.token);
    (void)claim_with(bed->store, first, HAPAX__LOSE_REPLY);
    for (uint32_t i = 1; doubts < 20; i++) {
        memcpy(more.token.bytes, &i, sizeof(i));
        hapax__mark(&mark, &more.token);
        if (memcmp(&mark, &here, 2) != 0)
            continue;
        more.id.bytes[0]++;
        (void)claim_with(bed->store, more, HAPAX__LOSE_REPLY);
        doubts++;
    }
    lock_by_another(bed);
    expect(run(bed->store, first), HAPAX_CLAIMED);
}

/* A failed operation may run again at once: its lock is gone. */
CASE_WITH(a_failure_releases_the_lock, set_up, tear_down)
{
    struct bed *bed = *state;
    uint8_t value[VALUE_MAX];
    struct hapax_op op;

    expect(claim(bed, bed->store, '1'), HAPAX_CLAIMED);
    (void)await_hint(&bed->id, '0', value);
    expect(run(bed->store, op_of(bed, HAPAX_OP_FAIL, '1')), HAPAX_OK);
    op = claim(bed, bed->store, '2');
    expect(op, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 2);
}

/* A handle that met no other for long takes no locks, and takes them again after one IN_FLIGHT. It
 * always makes copies. */
CASE_WITH(a_calm_handle_takes_no_locks, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op ops[HAPAX__HYBRID_BATCH_MAX];
    struct bed next = *bed;
    uint8_t value[VALUE_MAX];

    for (unsigned round = 0; round < 3; round++) {
        for (size_t i = 0; i < HAPAX__HYBRID_BATCH_MAX; i++) {
            ops[i] = op_of(bed, HAPAX_OP_CLAIM, '1');
            ops[i].id.bytes[0] ^= (uint8_t)(i + 1);
            ops[i].id.bytes[1] ^= (uint8_t)(round + 1);
        }
        assert_int_equal(hapax_store_run(bed->store, ops, HAPAX__HYBRID_BATCH_MAX), HAPAX_ERR_NONE);
    }
    (void)await_hint(&ops[0].id, '0', value);
    expect(claim(bed, bed->store, '1'), HAPAX_CLAIMED);
    expect(run(bed->store, op_of(bed, HAPAX_OP_RENEW, '1')), HAPAX_OK);
    (void)await_hint(&bed->id, '1', value); /* what the claim might have told came before */
    next.id.bytes[2] ^= 1;
    expect(claim(&next, bed->store, '1'), HAPAX_CLAIMED);
    assert_int_equal(get_hint(&next.id, value), 0);
    expect(claim(&next, bed->other, '2'), HAPAX_IN_FLIGHT);
    expect(run(bed->store, op_of(&next, HAPAX_OP_COMPLETE, '1')), HAPAX_OK);
    (void)await_hint(&next.id, '2', value);
    expect(claim(bed, bed->store, '2'), HAPAX_IN_FLIGHT);
    next.id.bytes[2] ^= 2;
    expect(claim(&next, bed->store, '1'), HAPAX_CLAIMED);
    (void)await_hint(&next.id, '0', value);
}

/* Batches of large copies are answered rightly, also with more bytes than one lookup takes. */
CASE_WITH(large_copies_are_replayed, set_up, tear_down)
{
    enum { COUNT = 40, SIZE = 200000 };
    struct bed *bed = *state;
    struct hapax_op ops[COUNT];
    uint8_t *body = malloc(SIZE);

    assert_non_null(body);
    memset(body, 'l', SIZE);
    for (unsigned round = 0; round < 4; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            struct bed each = *bed;

            each.id.bytes[0] ^= (uint8_t)(i + 1);
            ops[i] = op_of(&each, HAPAX_OP_CLAIM, round == 0 ? '1' : '2');
        }
        assert_int_equal(hapax_store_run(bed->store, ops, COUNT), HAPAX_ERR_NONE);
        for (size_t i = 0; i < COUNT; i++) {
            expect(ops[i], round == 0 ? HAPAX_CLAIMED : HAPAX_COMPLETED);
            if (round == 0) {
                ops[i].kind = HAPAX_OP_COMPLETE;
                body[0] = (uint8_t)i;
                ops[i].outcome = (struct hapax_outcome){200, true, hapax_str(NULL), {body, SIZE}};
                expect(run(bed->store, ops[i]), HAPAX_OK);
                continue;
            }
            assert_int_equal(ops[i].record.outcome.body.len, SIZE);
            assert_int_equal(ops[i].record.outcome.body.ptr[0], i);
        }
    }
    free(body);
}

/* ---- lies ---------------------------------------------------------------------------- */

/* What an older claim still tells replaces no hint of a later one. */
CASE_WITH(a_hint_of_a_later_claim_stays, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_mark mark = {{'x'}};
    struct hapax_op first = claim(bed, bed->store, '1');
    struct bed next = *bed;
    uint8_t value[VALUE_MAX];
    struct hapax__hint hint;
    size_t len;

    expect(first, HAPAX_CLAIMED);
    first.record.fence++;
    set_hint(&bed->id, hapax__hint_lock(&bed->arena, &first.record, &mark));
    expect(run(bed->store, op_of(bed, HAPAX_OP_RENEW, '1')), HAPAX_OK);
    next.id.bytes[0] ^= 1;
    expect(claim(&next, bed->store, '1'), HAPAX_CLAIMED);
    expect(run(bed->store, op_of(&next, HAPAX_OP_RENEW, '1')), HAPAX_OK);
    (void)await_hint(&next.id, '1', value); /* what was told before came before */
    len = get_hint(&bed->id, value);
    assert_true(hapax__hint_read(&hint, &bed->id, (struct hapax_span){value, len}, NULL));
    assert_int_equal(hint.record.fence, first.record.fence);
}

/* The lock of an attempt that is over by PostgreSQL's clock, though Redis keeps it for ever. */
CASE_WITH(a_lock_of_the_dead_ends_with_its_lease, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_mark mark = {{'x'}};
    struct hapax_op op = op_of(bed, HAPAX_OP_CLAIM, '1');
    struct hapax_record record;

    op.lease_ms = 300;
    op = run(bed->postgres, op);
    expect(op, HAPAX_CLAIMED);
    record = op.record;
    set_hint(&bed->id, hapax__hint_lock(&bed->arena, &record, &mark));
    do
        op = claim(bed, bed->other, '2');
    while (op.verdict == HAPAX_IN_FLIGHT && op.now_us < record.lease_until_us);
    expect(op, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 2);
}

/* A bare lock with a longer time than any of ours is not believed. */
CASE_WITH(a_bare_lock_for_ever_is_not_believed, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_mark mark = {{'x'}};
    struct hapax_op op = op_of(bed, HAPAX_OP_CLAIM, '1');

    set_hint(&bed->id, hapax__hint_bare(&bed->arena, &op, &mark, INT64_MAX));
    expect(claim(bed, bed->other, '2'), HAPAX_CLAIMED);
}

static struct hapax_digest seal_key(const char *secret)
{
    const struct hapax_span label = hapax_str("copies");
    struct hapax_digest key;

    hapax__mac(&key, hapax_str(secret), &label, 1);
    return key;
}

/* Completes an operation under a new id, and puts in place of its copy one with another body,
 * sealed with this key. Returns what another handle then answers. */
static struct hapax_op claim_forged(struct bed *bed, const struct hapax_digest *own,
                                    const struct hapax_digest *forger)
{
    struct hapax__hint hint;
    uint8_t value[VALUE_MAX];
    size_t len;

    bed->id.bytes[31]++;
    complete_first(bed);
    len = await_copy(bed, value);
    assert_true(hapax__hint_read(&hint, &bed->id, (struct hapax_span){value, len}, own));
    hint.record.outcome.body = hapax_str("forged");
    set_hint(&bed->id, hapax__hint_copy(&bed->arena, &hint.record, hint.epoch, forger));
    return claim(bed, bed->other, '2');
}

/* Handles that know the store's secret believe no copy of one who does not. */
CASE_WITH(a_forged_copy_is_not_believed_under_a_secret, set_up, tear_down)
{
    struct bed *bed = *state;
    const struct hapax_digest key = seal_key("ours"), theirs = seal_key("theirs");
    const struct hapax_digest *const forgers[] = {NULL, &theirs};
    struct hapax_op op;

    bed->store->type->bound(bed->store, hapax_str("ours"));
    bed->other->type->bound(bed->other, hapax_str("ours"));
    for (size_t i = 0; i < 2; i++) {
        op = claim_forged(bed, &key, forgers[i]);
        expect(op, HAPAX_COMPLETED);
        assert_int_equal(op.record.outcome.body.len, strlen("first"));
    }
    /* A forger who knows the secret is believed: so the copies were looked at. */
    op = claim_forged(bed, &key, &key);
    expect(op, HAPAX_COMPLETED);
    assert_int_equal(op.record.outcome.body.len, strlen("forged"));
}

/* The seal covers the id, the rank with the epoch in it, and every byte of the record. */
CASE_WITH(a_seal_is_broken_by_any_change, set_up, tear_down)
{
    struct bed *bed = *state;
    const struct hapax_digest key = seal_key("ours");
    struct hapax_record record = {.id = bed->id,
                                  .state = HAPAX_STATE_COMPLETED,
                                  .attempt = 1,
                                  .fence = 1000,
                                  .scope = hapax_str("hybrid")};
    struct hapax_span value = hapax__hint_copy(&bed->arena, &record, 77, &key);
    struct hapax_id other = bed->id;
    struct hapax__hint hint;
    uint8_t copy[VALUE_MAX];

    assert_true(hapax__hint_read(&hint, &bed->id, value, &key));
    other.bytes[0] ^= 1;
    assert_false(hapax__hint_read(&hint, &other, value, &key));
    for (size_t i = 0; i < value.len; i++) {
        memcpy(copy, value.ptr, value.len);
        copy[i] ^= 1;
        assert_false(hapax__hint_read(&hint, &bed->id, (struct hapax_span){copy, value.len}, &key));
    }
}

/* A hint with flipped or cut bytes, of another id, or that is none: PostgreSQL is asked, and its
 * answer replaces the hint. */
CASE_WITH(a_damaged_copy_is_none, set_up, tear_down)
{
    struct bed *bed = *state;
    uint8_t value[VALUE_MAX], bad[VALUE_MAX];
    struct bed elsewhere = *bed;
    size_t len;

    complete_first(bed);
    len = await_copy(bed, value);
    elsewhere.id.bytes[0] ^= 1;
    set_hint(&elsewhere.id, (struct hapax_span){value, len});
    expect(claim(&elsewhere, bed->other, '2'), HAPAX_CLAIMED);
    for (size_t at = 0; at < len; at += 7) {
        struct hapax_op op;

        memcpy(bad, value, len);
        bad[at] ^= 0x11;
        set_hint(&bed->id, (struct hapax_span){bad, len});
        op = claim(bed, bed->other, '2');
        expect(op, HAPAX_COMPLETED);
        assert_int_equal(op.record.outcome.body.len, 5);
        assert_memory_equal(op.record.outcome.body.ptr, "first", 5);
        set_hint(&bed->id, (struct hapax_span){value, at});
        expect(claim(bed, bed->other, '2'), HAPAX_COMPLETED);
    }
    {
        char key[96];

        key_of(key, &bed->id);
        for (size_t i = 0; i < node_count; i++) {
            freeReplyObject(ask_node(i, "DEL %s", key));
            freeReplyObject(ask_node(i, "RPUSH %s no string", key));
        }
        expect(claim(bed, bed->other, '2'), HAPAX_COMPLETED);
        (void)await_copy(bed, value);
    }
}

/* After a RESOLVE through the hybrid no caller gets the earlier outcome, even if Redis is put back
 * to where it was. */
CASE_WITH(a_copy_from_before_a_resolve_is_not_served, set_up, tear_down)
{
    struct bed *bed = *state;
    uint8_t value[VALUE_MAX];
    struct hapax_op op;
    size_t len;

    complete_first(bed);
    len = await_copy(bed, value);
    expect(claim(bed, bed->other, '2'), HAPAX_COMPLETED); /* it knows the epoch, and is fresh */
    op = op_of(bed, HAPAX_OP_RESOLVE, '9');
    op.resolve = HAPAX_RESOLVE_COMPLETE;
    op.force = true;
    op.outcome.body = hapax_str("the operator's");
    expect(run(bed->store, op), HAPAX_OK);
    set_hint(&bed->id, (struct hapax_span){value, len});
    op = claim(bed, bed->other, '2');
    expect(op, HAPAX_COMPLETED);
    assert_int_equal(op.record.outcome.body.len, strlen("the operator's"));
    op = op_of(bed, HAPAX_OP_RESOLVE, '8');
    op.resolve = HAPAX_RESOLVE_FORGET;
    op.force = true;
    expect(run(bed->store, op), HAPAX_OK);
    set_hint(&bed->id, (struct hapax_span){value, len});
    op = claim(bed, bed->other, '2');
    expect(op, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 1);
}

/* The same where the RESOLVE did not come through the hybrid: the epoch rises in PostgreSQL. The
 * RESOLVE does not wait for it then. */
CASE_WITH(a_resolve_past_the_hybrid_raises_the_epoch, set_up, tear_down)
{
    struct bed *bed = *state;
    int64_t deadline_us = hapax__boot_us() + PATIENCE_MS * INT64_C(1000);
    struct hapax__known before = {0}, after = {0};
    uint8_t value[VALUE_MAX];
    struct hapax_op op;

    complete_first(bed);
    (void)await_copy(bed, value);
    assert_int_equal(hapax__known_ask(&before, bed->postgres), HAPAX_ERR_NONE);
    op = op_of(bed, HAPAX_OP_RESOLVE, '9');
    op.resolve = HAPAX_RESOLVE_FORGET;
    op.force = true;
    expect(run(bed->postgres, op), HAPAX_OK);
    assert_int_equal(hapax__known_ask(&after, bed->postgres), HAPAX_ERR_NONE);
    assert_true(after.epoch > before.epoch);
    do {
        op = claim(bed, bed->other, '2');
        assert_true(hapax__boot_us() < deadline_us);
    } while (op.verdict == HAPAX_COMPLETED);
    expect(op, HAPAX_CLAIMED);
}

/* A RESOLVE without force changes no completed record: copies stay. */
CASE_WITH(an_unforced_resolve_keeps_the_epoch, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax__known before = {0}, after = {0};
    struct hapax_op op = op_of(bed, HAPAX_OP_RESOLVE, '9');

    assert_int_equal(hapax__known_ask(&before, bed->postgres), HAPAX_ERR_NONE);
    expect(claim(bed, bed->store, '1'), HAPAX_CLAIMED);
    expect(run(bed->store, op_of(bed, HAPAX_OP_FAIL, '1')), HAPAX_OK);
    op.resolve = HAPAX_RESOLVE_FAIL;
    expect(run(bed->store, op), HAPAX_OK);
    assert_int_equal(hapax__known_ask(&after, bed->postgres), HAPAX_ERR_NONE);
    assert_int_equal(after.epoch, before.epoch);
    assert_true(before.epoch > 0);
}

/* A copy ends with its retention by PostgreSQL's clock, however long Redis keeps it. */
CASE_WITH(a_copy_ends_with_its_retention, set_up, tear_down)
{
    struct bed *bed = *state;
    uint8_t value[VALUE_MAX];
    struct hapax_op op;
    int64_t expires_us;
    size_t len;

    /* Its copy is to be seen before it ends. */
    for (int64_t retention_ms = 2000;; retention_ms *= 4) {
        bed->id.bytes[1]++;
        op = op_of(bed, HAPAX_OP_CLAIM, '1');
        op.retention_ms = retention_ms;
        op.lease_ms = 1000;
        expect(run(bed->store, op), HAPAX_CLAIMED);
        op = run(bed->store, op_of(bed, HAPAX_OP_COMPLETE, '1'));
        expires_us = op.record.expires_us;
        len = op.verdict == HAPAX_OK ? copy_of(bed, value) : 0;
        if (len > 0)
            break;
    }
    set_hint(&bed->id, (struct hapax_span){value, len});
    do {
        op = claim(bed, bed->other, '2');
        assert_true(op.verdict == HAPAX_CLAIMED || op.now_us < expires_us);
    } while (op.verdict == HAPAX_COMPLETED);
    expect(op, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 1);
}

/* A completed operation that may run again is never copied. */
CASE_WITH(a_read_that_reruns_has_no_copy, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op op = op_of(bed, HAPAX_OP_CLAIM, '1');

    op.rerun_completed = true;
    expect(run(bed->store, op), HAPAX_CLAIMED);
    expect(run(bed->store, op_of(bed, HAPAX_OP_COMPLETE, '1')), HAPAX_OK);
    op = op_of(bed, HAPAX_OP_CLAIM, '2');
    op.rerun_completed = true;
    op = run(bed->store, op);
    expect(op, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 2);
}

/* FLUSHALL: answers are PostgreSQL's, and the copy comes back with the first of them. */
CASE_WITH(a_wiped_redis_forgets_nothing, set_up, tear_down)
{
    struct bed *bed = *state;
    uint8_t value[VALUE_MAX];
    struct bed running = *bed;

    complete_first(bed);
    running.id.bytes[1] ^= 1;
    expect(claim(&running, bed->store, '1'), HAPAX_CLAIMED);
    on_all("FLUSHALL");
    expect(claim(&running, bed->other, '2'), HAPAX_IN_FLIGHT);
    expect(claim(bed, bed->other, '2'), HAPAX_COMPLETED);
    (void)await_copy(bed, value);
    expect(run(bed->store, op_of(&running, HAPAX_OP_RENEW, '1')), HAPAX_OK);
    (void)await_hint(&running.id, '1', value); /* a renewal brings the lock back */
    expect(run(bed->store, op_of(&running, HAPAX_OP_COMPLETE, '1')), HAPAX_OK);
    expect(claim(&running, bed->other, '2'), HAPAX_COMPLETED);
}

/* A late hint of an earlier attempt does not replace that of a later one. */
CASE_WITH(the_higher_fence_wins, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax__redlock *lock = NULL;
    struct hapax__refresh late = {.what = HAPAX__REFRESH_PUT, .id = &bed->id, .ttl_ms = 60000};
    struct hapax_mark mark = {{'x'}};
    uint8_t value[VALUE_MAX];
    struct hapax_op first = op_of(bed, HAPAX_OP_CLAIM, '1');
    char uri[64], text[HAPAX_TEXT_MAX];
    const char *uris[] = {uri};

    first.lease_ms = 1;
    first = run(bed->postgres, first);
    expect(first, HAPAX_CLAIMED);
    while (claim(bed, bed->store, '2').verdict != HAPAX_CLAIMED)
        ;
    expect(run(bed->store, op_of(bed, HAPAX_OP_COMPLETE, '2')), HAPAX_OK);
    (void)await_copy(bed, value);
    late.mark = &mark;
    late.value = hapax__hint_lock(&bed->arena, &first.record, &mark);
    (void)snprintf(uri, sizeof(uri), "redis://127.0.0.1:%d", nodes[0]->tcp.port);
    assert_int_equal(hapax__redlock_open(&lock, uris, 1, text), HAPAX_ERR_NONE);
    hapax__hints_refresh(lock, &bed->arena, &late, 1);
    {
        struct hapax_span time = hapax_str("TIME");
        struct hapax__redlock_call call = {&time, 1};
        struct hapax__resp *reply;

        /* What was told before was carried out before. */
        assert_int_equal(
            hapax__redlock_ask(lock, &call, 1, PATIENCE_MS * INT64_C(1000), &reply, text), 1);
    }
    (void)await_copy(bed, value);
    hapax__redlock_close(lock);
    expect(claim(bed, bed->other, '8'), HAPAX_COMPLETED);
}

/* ---- URIs ---------------------------------------------------------------------------- */

/* The text says what is wrong with a URI, without its passwords. */
CASE(a_wrong_uri_is_refused)
{
    static const char *const uris[] = {
        "hybrid:",
        "hybrid:redis://h",
        "hybrid:postgres://h/d",
        "hybrid:redis://h+postgres",
        "hybrid:redis://h1,redis://h2+postgres://h/d", /* an even number */
        "hybrid:redis://h1,redis://h1,redis://h2+postgres://h/d",
        "hybrid:redis+cluster://h+postgres://h/d",
        "hybrid:redis://h?wait=1+postgres://h/d",
        "hybrid:redis://:secret@h,h2+postgres://h/d",
        "hybrid:redis://:secret@h+postgres://u:secret@h/d?stale_replay=maybe",
        "hybrid:redis://:secret@h+postgres://u:secret@h/d?stale_replay=on&stale_replay=on",
        "hybrid:redis://:secret@h+postgres://u:secret@h/d?nonsense=1",
        "hybrid:memory:+postgres://h/d"};

    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        struct hapax_store *store;
        char text[HAPAX_TEXT_MAX];

        assert_int_equal(hapax_store_open(&store, uris[i], text), HAPAX_ERR_INVALID);
        assert_null(store);
        assert_true(text[0] != '\0');
        assert_null(strstr(text, "secret"));
    }
}

/* Sentinels have commas of their own; parameters of each half stay with it; passwords are not
 * shown. */
CASE(a_uri_is_cut_in_the_right_places)
{
    static const char *const uris[] = {
        "hybrid:redis+sentinel://redis1:1,redis2:2/m?prefix=a:+postgres://u:p@h/d",
        ("hybrid:redis://:secret@a,rediss://:secret@b,redis://:secret@c:6380/1"
         "+postgresql://u:secret@h/d?stale_replay=on"),
        "hybrid:redis://a+postgres://h/d?timeout=1s&stale_replay=off&sslmode=disable",
        "hybrid:redis://a+postgres://h/d?stale_replay=on&timeout=1s"};
    char shown[HAPAX_TEXT_MAX];

    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++)
        hapax_store_close(open_uri(uris[i]));
    hapax_store_shown(shown, uris[1]);
    assert_null(strstr(shown, "secret"));
}

/* ---- main ---------------------------------------------------------------------------- */

/* "postgresql://" by its other name, and with the plan. */
static enum hapax_error lossy_open(struct hapax_store **out, const char *uri,
                                   char text[HAPAX_TEXT_MAX])
{
    char other[8192];
    struct hapax_store *inner;
    enum hapax_error error;

    (void)snprintf(other, sizeof(other), "postgres%s", uri + strlen("postgresql"));
    error = hapax_store_open(&inner, other, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    assert_int_equal(hapax__faulty_wrap(out, inner, &plan), HAPAX_ERR_NONE);
    free((*out)->arena); /* hapax_store_open() gives one */
    return HAPAX_ERR_NONE;
}

static const struct hapax_store_type lossy = {.scheme = "postgresql", .open = lossy_open};

static void connect_nodes(void)
{
    const char *end = strstr(hybrid_uri, "+postgres");

    for (const char *at = strstr(hybrid_uri, "127.0.0.1:"); at && at < end;
         at = strstr(at + 1, "127.0.0.1:"))
        nodes[node_count++] = redisConnect("127.0.0.1", (int)strtol(at + 10, NULL, 10));
    for (size_t i = 0; i < node_count; i++)
        if (!nodes[i] || nodes[i]->err)
            exit(2);
    (void)snprintf(postgres_uri, sizeof(postgres_uri), "%s", end + 1);
}

int main(int argc, char **argv)
{
    int failed;

    if (argc != 2)
        return 2;
    hybrid_uri = argv[1];
    connect_nodes();
    hapax__plan_init(&plan);
    hapax__store_add(&lossy);
    failed = cases_run(NULL, NULL);
    for (size_t i = 0; i < node_count; i++)
        redisFree(nodes[i]);
    return failed;
}
