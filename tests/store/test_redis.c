/* SPDX-License-Identifier: Apache-2.0
 *
 * test_redis URI: the Redis store on a real server of its own that is damaged, full, a replica, or
 * without the replicas it was asked for. The store suite has what is in order; here is what is not.
 * The server is set back after each case. /
 */
#include "store/redis/redis.h"

#include <hiredis/hiredis.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RECORDS 40u

static const char *base_uri;

struct bed {
    struct hapax_store *store;
    redisContext *server; /* past the store */
    char prefix[16];
};

static unsigned case_number;

static struct hapax_store *open_with(const char *prefix, const char *more)
{
    struct hapax_store *store;
    char uri[300], text[HAPAX_TEXT_MAX];

    snprintf(uri, sizeof(uri), "%s%cprefix=%s%s%s", base_uri, strchr(base_uri, '?') ? '&' : '?',
             prefix, strstr(more, "timeout") ? "" : "&timeout=5s", more);
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE)
        fail_msg("%s", text);
    return store;
}

static struct bed begin(void)
{
    struct hapax__redis_uri uri;
    char text[HAPAX_TEXT_MAX];
    struct bed bed;

    snprintf(bed.prefix, sizeof(bed.prefix), "case%u:", ++case_number);
    bed.store = open_with(bed.prefix, "");
    assert_int_equal(hapax__redis_uri(&uri, base_uri, text), HAPAX_ERR_NONE);
    bed.server = redisConnect(uri.hosts[0].host, uri.hosts[0].port);
    assert_true(bed.server && !bed.server->err);
    return bed;
}

static void end(struct bed *bed)
{
    hapax_store_close(bed->store);
    redisFree(bed->server);
}

static void command(struct bed *bed, const char *format, ...)
{
    redisReply *reply;
    va_list args;

    va_start(args, format);
    reply = redisvCommand(bed->server, format, args);
    va_end(args);
    assert_non_null(reply);
    assert_int_not_equal(reply->type, REDIS_REPLY_ERROR);
    freeReplyObject(reply);
}

static struct hapax_op op_of(enum hapax_op_kind kind, unsigned n)
{
    struct hapax_op op = {.kind = kind, .lease_ms = 60000, .retention_ms = 3600000};

    memset(&op.id, (int)n, sizeof(op.id));
    op.id.bytes[0] = (uint8_t)(n >> 8);
    memset(&op.token, 7, sizeof(op.token));
    op.scope = hapax_str("scope");
    op.on_expired = HAPAX_EXPIRED_RERUN;
    op.outcome = (struct hapax_outcome){200, true, hapax_str("A: b\r\n"), hapax_str("body")};
    return op;
}

static void put(struct bed *bed, unsigned n)
{
    struct hapax_op ops[] = {op_of(HAPAX_OP_CLAIM, n), op_of(HAPAX_OP_COMPLETE, n)};

    assert_int_equal(hapax_store_run(bed->store, ops, 2), HAPAX_ERR_NONE);
    assert_int_equal(ops[1].verdict, HAPAX_OK);
}

static size_t key_of(const struct bed *bed, uint8_t key[HAPAX__REDIS_KEY_MAX], unsigned n)
{
    struct hapax_op op = op_of(HAPAX_OP_READ, n);

    return hapax__redis_key(key, bed->prefix, &op.id);
}

static void set(struct bed *bed, unsigned n, const char *value, size_t len)
{
    uint8_t key[HAPAX__REDIS_KEY_MAX];
    size_t key_len = key_of(bed, key, n);

    command(bed, "SET %b %b", key, key_len, value, len);
}

static redisReply *get(struct bed *bed, unsigned n)
{
    uint8_t key[HAPAX__REDIS_KEY_MAX];
    size_t key_len = key_of(bed, key, n);
    redisReply *reply = redisCommand(bed->server, "GET %b", key, key_len);

    assert_true(reply && reply->type == REDIS_REPLY_STRING);
    return reply;
}

static void expect_no_claim(struct bed *bed, unsigned n, enum hapax_error error)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, n);

    memset(&op.token, 9, sizeof(op.token));
    assert_int_equal(hapax_store_run(bed->store, &op, 1), error);
    assert_int_equal(op.verdict, HAPAX_NO_VERDICT);
}

/* ---- damage -------------------------------------------------------------------------- */

/* A value that is cut off anywhere, or longer than it says, is damaged; it is never absent. */
static void a_value_of_another_length_is_never_absent(void **state)
{
    struct bed bed = begin();
    redisReply *value;

    put(&bed, 1);
    value = get(&bed, 1);
    for (size_t len = 0; len < value->len; len++) {
        set(&bed, 1, value->str, len);
        expect_no_claim(&bed, 1, HAPAX_ERR_CORRUPT);
    }
    freeReplyObject(value);
    end(&bed);
}

/* Whatever byte is changed, the operation does not run again. */
static void a_changed_byte_never_grants_a_claim(void **state)
{
    struct bed bed = begin();
    unsigned unreadable = 0;
    redisReply *value;

    put(&bed, 1);
    value = get(&bed, 1);
    for (size_t i = 0; i < value->len; i++) {
        struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);

        if (i == 17) /* the state alone could only be told by a checksum */
            continue;
        memset(&op.token, 9, sizeof(op.token));
        value->str[i] ^= 0x55;
        set(&bed, 1, value->str, value->len);
        value->str[i] ^= 0x55;
        hapax_store_run(bed.store, &op, 1);
        assert_int_not_equal(op.verdict, HAPAX_CLAIMED);
        assert_int_not_equal(op.verdict, HAPAX_ABSENT);
        unreadable += op.verdict == HAPAX_NO_VERDICT;
    }
    assert_true(unreadable > 20);
    freeReplyObject(value);
    end(&bed);
}

/* A retention that no door can ask for is damage: its end would be no exact number, and what is
 * completed under it unreadable. */
static void a_retention_over_ten_years_is_damage(void **state)
{
    static const uint8_t too_long[8] = {0, 0, 0, 0x49, 0x6c, 0xeb, 0xb8, 0x01};
    const size_t at = 73; /* in the record */
    struct bed bed = begin();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);
    redisReply *value;

    op.retention_ms = HAPAX_DURATION_MAX_MS;
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    value = get(&bed, 1);
    op = op_of(HAPAX_OP_READ, 1);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.record.retention_ms, HAPAX_DURATION_MAX_MS);
    memcpy(value->str + at, too_long, sizeof(too_long));
    set(&bed, 1, value->str, value->len);
    op = op_of(HAPAX_OP_COMPLETE, 1);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_CORRUPT);
    freeReplyObject(value);
    end(&bed);
}

/* What version 1 wrote is read, judged and written anew, with no owner and no what of its own; a
 * claim on it says what it is. Its live claim stands until its lease is over, and no program of
 * this version can end it: it has a token, where the mark of one is looked for. */
static void a_record_of_version_1_is_read(void **state)
{
    static const char added[5] = {0};
    struct bed bed = begin();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);
    redisReply *value;

    put(&bed, 2);
    op.lease_ms = 1500;
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    for (unsigned n = 1; n <= 2; n++) {
        value = get(&bed, n);
        assert_true(value->len > 104 && value->str[0] == 2);
        assert_memory_equal(value->str + 99, added, sizeof(added));
        value->str[0] = 1;
        memcpy(value->str + 1, op.token.bytes, sizeof(op.token));
        memmove(value->str + 99, value->str + 104, value->len - 104);
        set(&bed, n, value->str, value->len - 5);
        freeReplyObject(value);
    }
    op = op_of(HAPAX_OP_CLAIM, 2); /* answered, and nothing written */
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_int_equal(op.record.outcome.body.len, 4);
    value = get(&bed, 2);
    assert_int_equal(value->str[0], 1);
    freeReplyObject(value);
    op = (struct hapax_op){.kind = HAPAX_OP_LIST};
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.count, 2);
    op = op_of(HAPAX_OP_FAIL, 1);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_LOST);
    do {
        usleep(10000);
        op = op_of(HAPAX_OP_CLAIM, 1);
        op.token.bytes[0] = 9;
        op.what = hapax_str("POST /pay");
        assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    } while (op.verdict == HAPAX_IN_FLIGHT);
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    assert_true(op.record.stale && op.now_us - op.record.created_us >= 1500000);
    op = op_of(HAPAX_OP_READ, 1);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.record.attempt, 2);
    assert_int_equal(op.record.what.len, 9);
    assert_int_equal(op.record.scope.len, 5);
    end(&bed);
}

/* Who reads Redis, a dump or a replica of it gets no token. */
static void no_token_stands_in_redis(void **state)
{
    struct bed bed = begin();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);
    redisReply *value;

    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    value = get(&bed, 1);
    assert_null(memmem(value->str, value->len, op.token.bytes, sizeof(op.token)));
    memcpy(op.token.bytes, value->str + 1, sizeof(op.token)); /* its mark */
    freeReplyObject(value);
    op.kind = HAPAX_OP_COMPLETE;
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_LOST);
    end(&bed);
}

/* A newer version, and a value of another type, are not ours to overwrite. */
static void a_foreign_value_is_left_alone(void **state) /* promise 31 */
{
    struct bed bed = begin();
    uint8_t key[HAPAX__REDIS_KEY_MAX];
    size_t len = key_of(&bed, key, 2);

    set(&bed, 1, "\3and more", 9);
    expect_no_claim(&bed, 1, HAPAX_ERR_UNSUPPORTED);
    command(&bed, "RPUSH %b a", key, len);
    expect_no_claim(&bed, 2, HAPAX_ERR_CORRUPT);
    assert_non_null(strstr(hapax_store_text(bed.store), "it is damaged"));
    end(&bed);
}

/* FORGET by force clears a damaged record; the others do not. */
static void an_operator_may_forget_what_is_damaged(void **state)
{
    struct bed bed = begin();
    struct hapax_op op = op_of(HAPAX_OP_RESOLVE, 1);

    set(&bed, 1, "\1damage", 7);
    op.resolve = HAPAX_RESOLVE_FORGET;
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_CORRUPT);
    op.force = true;
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_OK);
    op = op_of(HAPAX_OP_READ, 1);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_ABSENT);
    end(&bed);
}

/* A list shows what it can, then says which record is damaged; keys that are none of ours it passes
 * over. */
static void a_list_names_the_damaged_record(void **state)
{
    struct bed bed = begin();
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .limit = 3};
    enum hapax_error error;
    bool shown[RECORDS] = {false};
    unsigned count = 0;

    for (unsigned i = 1; i < RECORDS; i++)
        put(&bed, i);
    set(&bed, 5, "\1", 1);
    command(&bed, "SET %sother x", bed.prefix);
    do {
        error = hapax_store_run(bed.store, &op, 1);
        if (error == HAPAX_ERR_NONE)
            op.cursor = op.next_cursor;
    } while (error == HAPAX_ERR_NONE && op.more);
    assert_int_equal(error, HAPAX_ERR_CORRUPT);
    assert_non_null(strstr(hapax_store_text(bed.store), "00050505"));
    set(&bed, 5, "", 0);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_CORRUPT);
    set(&bed, 5, "\1", 1);
    op = op_of(HAPAX_OP_RESOLVE, 5);
    op.resolve = HAPAX_RESOLVE_FORGET;
    op.force = true;
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    op = (struct hapax_op){.kind = HAPAX_OP_LIST, .limit = 1};
    do {
        assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
        for (uint32_t i = 0; i < op.count; i++)
            shown[op.records[i].id.bytes[1]] = true;
        op.cursor = op.next_cursor;
    } while (op.more);
    for (unsigned i = 1; i < RECORDS; i++)
        count += shown[i];
    assert_int_equal(count, RECORDS - 2);
    end(&bed);
}

#define KINDS  (HAPAX_STATE_UNKNOWN + 1u)
#define EACH   12u /* records of a state */
#define BURIED 1u /* a tombstone */
#define GONE   2u /* expired */
#define TOP    (EACH * KINDS)

/* Brings a record, whose state follows from its number, where a list has to find it. */
static void put_in_state(struct bed *bed, unsigned n, enum hapax_state state)
{
    enum hapax_op_kind end = state == HAPAX_STATE_COMPLETED ? HAPAX_OP_COMPLETE : HAPAX_OP_FAIL;
    struct hapax_op ops[] = {op_of(HAPAX_OP_CLAIM, n), op_of(end, n)};
    size_t count = state == HAPAX_STATE_STARTED ? 1 : 2;

    ops[1].ran = true;
    ops[1].as_unknown = state == HAPAX_STATE_UNKNOWN;
    assert_int_equal(hapax_store_run(bed->store, ops, count), HAPAX_ERR_NONE);
    assert_int_equal(ops[count - 1].record.state, state);
}

/* Waits for the server to have forgotten a record, or all of it but its tombstone. */
static void await(struct bed *bed, unsigned n, bool (*over)(const struct hapax_op *))
{
    struct hapax_op op;

    for (unsigned i = 0; i < 60000; i++) {
        op = op_of(HAPAX_OP_READ, n);
        assert_int_equal(hapax_store_run(bed->store, &op, 1), HAPAX_ERR_NONE);
        if (over(&op))
            return;
        usleep(1000);
    }
    fail_msg("record %u is still there", n);
}

static bool is_absent(const struct hapax_op *op)
{
    return op->verdict == HAPAX_ABSENT;
}

static bool is_buried(const struct hapax_op *op)
{
    return op->verdict == HAPAX_FOUND && op->record.outcome.body.len == 0;
}

/* Lists records of these states to the end or to an error, and marks those that are shown. */
static enum hapax_error list_states(struct bed *bed, uint32_t states, bool shown[TOP])
{
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .states = states, .limit = 5};
    enum hapax_error error;

    memset(shown, 0, TOP * sizeof(*shown));
    do {
        error = hapax_store_run(bed->store, &op, 1);
        if (error != HAPAX_ERR_NONE)
            return error;
        for (uint32_t i = 0; i < op.count; i++) {
            assert_true(states & 1u << op.records[i].state);
            shown[op.records[i].id.bytes[1]] = true;
        }
        op.cursor = op.next_cursor;
    } while (op.more);
    return error;
}

/* For each choice of states a list shows the records of these states, and no other. What has
 * expired is not among them; a tombstone is. A damaged record is told of where its state is asked
 * for, or cannot be read. */
static void a_list_by_state_shows_those_alone(void **state)
{
    struct bed bed = begin();
    struct hapax_op ops[2];
    const uint32_t failed = 1u << HAPAX_STATE_FAILED;
    bool shown[TOP];
    redisReply *value;

    for (unsigned n = HAPAX_STATE_STARTED; n < TOP; n++)
        if (n % KINDS != HAPAX_STATE_ABSENT)
            put_in_state(&bed, n, (enum hapax_state)(n % KINDS));
    /* Some of the same states that are over: the completed one leaves a tombstone. */
    for (unsigned i = 0; i < 2; i++) {
        unsigned n = i == 0 ? KINDS * BURIED : KINDS * GONE;

        ops[0] = op_of(HAPAX_OP_CLAIM, n);
        ops[1] = op_of(HAPAX_OP_COMPLETE, n);
        ops[1].kept_ms = 1;
        ops[1].tombstone_ms = i == 0 ? 3600000 : 0;
        assert_int_equal(hapax_store_run(bed.store, ops, 2), HAPAX_ERR_NONE);
        await(&bed, n, i == 0 ? is_buried : is_absent);
    }
    for (uint32_t states = 2; states <= HAPAX_STATES_ALL; states += 2) {
        assert_int_equal(list_states(&bed, states, shown), HAPAX_ERR_NONE);
        for (unsigned n = 0; n < TOP; n++) {
            unsigned is = n == KINDS * BURIED ? HAPAX_STATE_COMPLETED : n % KINDS;

            assert_int_equal(shown[n], is != HAPAX_STATE_ABSENT && (states & 1u << is));
        }
    }
    /* Cut off behind its state, a failed one is in the way of who asks for failed ones alone. */
    value = get(&bed, HAPAX_STATE_FAILED);
    set(&bed, HAPAX_STATE_FAILED, value->str, value->len - 1);
    freeReplyObject(value);
    for (uint32_t states = 2; states <= HAPAX_STATES_ALL; states += 2)
        assert_int_equal(list_states(&bed, states, shown),
                         states & failed ? HAPAX_ERR_CORRUPT : HAPAX_ERR_NONE);
    assert_int_equal(list_states(&bed, failed, shown), HAPAX_ERR_CORRUPT);
    assert_non_null(strstr(hapax_store_text(bed.store), "00030303"));
    /* Cut off before its state it is in everybody's. */
    set(&bed, HAPAX_STATE_FAILED, "\1", 1);
    for (uint32_t states = 2; states <= HAPAX_STATES_ALL; states += 2)
        assert_int_equal(list_states(&bed, states, shown), HAPAX_ERR_CORRUPT);
    end(&bed);
}

/* ---- refusals ------------------------------------------------------------------------ */

/* -OOM: what would write is surely not applied, alone; what is stored is still replayed. */
static void a_full_server_refuses_writes_alone(void **state)
{
    struct bed bed = begin();
    struct hapax_op ops[3];

    put(&bed, 1);
    command(&bed, "CONFIG SET maxmemory 1");
    ops[0] = op_of(HAPAX_OP_CLAIM, 2);
    ops[1] = op_of(HAPAX_OP_CLAIM, 1);
    ops[2] = op_of(HAPAX_OP_CLAIM, 2);
    assert_int_equal(hapax_store_run(bed.store, ops, 3), HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(ops[0].error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(ops[1].verdict, HAPAX_COMPLETED);
    assert_int_equal(ops[2].error, HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(hapax_store_text(bed.store), "OOM"));
    command(&bed, "CONFIG SET maxmemory 0");
    ops[0] = op_of(HAPAX_OP_CLAIM, 2);
    assert_int_equal(hapax_store_run(bed.store, ops, 1), HAPAX_ERR_NONE);
    assert_int_equal(ops[0].verdict, HAPAX_CLAIMED);
    assert_int_equal(ops[0].record.attempt, 1);
    end(&bed);
}

/* A primary that became a replica answers nothing, not even what it still shows: it may be old. */
static void a_replica_answers_nothing(void **state)
{
    struct bed bed = begin();
    struct hapax_op op;

    hapax_store_close(bed.store);
    bed.store = open_with(bed.prefix, "");
    put(&bed, 1);
    command(&bed, "CONFIG SET repl-timeout 1");
    command(&bed, "REPLICAOF 127.0.0.1 1");
    for (int kind = HAPAX_OP_CLAIM; kind <= HAPAX_OP_READ; kind++) {
        op = op_of((enum hapax_op_kind)kind, 1);
        assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_UNAVAILABLE);
    }
    command(&bed, "REPLICAOF NO ONE");
    op = op_of(HAPAX_OP_READ, 1);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_FOUND);
    end(&bed);
}

/* wait=1 without a replica: what writes, or shows a completion, is INDETERMINATE, repeated or not;
 * the rest stands. */
static void a_shortfall_of_replicas_is_no_verdict(void **state)
{
    struct bed bed = begin();
    struct hapax_store *waiting = open_with(bed.prefix, "&wait=1");
    struct hapax_op ops[4];

    put(&bed, 1);
    for (unsigned i = 0; i < 2; i++) {
        ops[0] = op_of(HAPAX_OP_CLAIM, 1);
        memset(&ops[0].token, 9, sizeof(ops[0].token));
        ops[1] = op_of(HAPAX_OP_CLAIM, 2);
        ops[2] = op_of(HAPAX_OP_READ, 3);
        ops[3] = op_of(HAPAX_OP_RENEW, 1);
        memset(&ops[3].token, 8, sizeof(ops[3].token));
        assert_int_equal(hapax_store_run(waiting, ops, 3), HAPAX_ERR_INDETERMINATE);
        assert_int_equal(ops[0].error, HAPAX_ERR_INDETERMINATE);
        assert_int_equal(ops[1].error, HAPAX_ERR_INDETERMINATE);
        assert_int_equal(ops[2].verdict, HAPAX_ABSENT);
    }
    assert_int_equal(hapax_store_run(bed.store, &ops[1], 1), HAPAX_ERR_NONE);
    assert_int_equal(ops[1].verdict, HAPAX_CLAIMED); /* it was written all the same */
    hapax_store_close(waiting);
    end(&bed);
}

/* ---- bounds -------------------------------------------------------------------------- */

/* More than a request or a reply may hold goes in several, and comes back whole. */
static void a_batch_of_large_records_goes_in_rounds(void **state)
{
    static uint8_t body[3u << 20];
    struct bed bed = begin();
    struct hapax_op ops[RECORDS];

    for (size_t i = 0; i < sizeof(body); i++)
        body[i] = (uint8_t)(i * 31 >> 3);
    for (unsigned i = 0; i < RECORDS / 4; i++) {
        struct hapax_op pair[] = {op_of(HAPAX_OP_CLAIM, i), op_of(HAPAX_OP_COMPLETE, i)};

        pair[1].outcome.body = (struct hapax_span){body, sizeof(body) - i};
        assert_int_equal(hapax_store_run(bed.store, pair, 2), HAPAX_ERR_NONE);
    }
    for (unsigned i = 0; i < RECORDS; i++)
        ops[i] = op_of(HAPAX_OP_READ, i % (RECORDS / 4));
    assert_int_equal(hapax_store_run(bed.store, ops, RECORDS / 4), HAPAX_ERR_NONE);
    for (unsigned i = 0; i < RECORDS / 4; i++) {
        assert_int_equal(ops[i].record.outcome.body.len, sizeof(body) - i);
        assert_memory_equal(ops[i].record.outcome.body.ptr, body, sizeof(body) - i);
    }
    command(&bed, "FLUSHALL");
    end(&bed);
}

/* Nor may a batch of the largest records fill this process: over 256 MiB of answers the rest is
 * asked for again, and was surely not applied. */
static void the_answers_of_a_batch_are_bounded(void **state)
{
    struct bed bed = begin();
    struct hapax_op pair[] = {op_of(HAPAX_OP_CLAIM, 1), op_of(HAPAX_OP_COMPLETE, 1)};
    struct hapax_op ops[20];
    struct hapax_store *patient = open_with(bed.prefix, "&timeout=60s");
    uint8_t *body = calloc(1, HAPAX_BODY_MAX);
    unsigned found = 0;

    assert_non_null(body);
    pair[1].outcome.body = (struct hapax_span){body, HAPAX_BODY_MAX};
    assert_int_equal(hapax_store_run(patient, pair, 2), HAPAX_ERR_NONE);
    free(body);
    for (unsigned i = 0; i < 20; i++)
        ops[i] = op_of(HAPAX_OP_READ, 1);
    ops[19] = op_of(HAPAX_OP_CLAIM, 2);
    assert_int_equal(hapax_store_run(patient, ops, 20), HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(hapax_store_text(patient), "in one batch"));
    while (found < 20 && ops[found].verdict == HAPAX_FOUND)
        assert_int_equal(ops[found++].record.outcome.body.len, HAPAX_BODY_MAX);
    assert_in_range(found, 16, 18);
    for (unsigned i = found; i < 20; i++)
        assert_int_equal(ops[i].error, HAPAX_ERR_UNAVAILABLE);
    pair[0] = op_of(HAPAX_OP_READ, 2);
    assert_int_equal(hapax_store_run(patient, pair, 1), HAPAX_ERR_NONE);
    assert_int_equal(pair[0].verdict, HAPAX_ABSENT);
    command(&bed, "FLUSHALL");
    hapax_store_close(patient);
    end(&bed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_of_another_length_is_never_absent),
        cmocka_unit_test(a_changed_byte_never_grants_a_claim),
        cmocka_unit_test(a_retention_over_ten_years_is_damage),
        cmocka_unit_test(a_record_of_version_1_is_read),
        cmocka_unit_test(no_token_stands_in_redis),
        cmocka_unit_test(a_foreign_value_is_left_alone),
        cmocka_unit_test(an_operator_may_forget_what_is_damaged),
        cmocka_unit_test(a_list_names_the_damaged_record),
        cmocka_unit_test(a_list_by_state_shows_those_alone),
        cmocka_unit_test(a_full_server_refuses_writes_alone),
        cmocka_unit_test(a_replica_answers_nothing),
        cmocka_unit_test(a_shortfall_of_replicas_is_no_verdict),
        cmocka_unit_test(a_batch_of_large_records_goes_in_rounds),
        cmocka_unit_test(the_answers_of_a_batch_are_bounded),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: test_redis URI\n");
        return 2;
    }
    base_uri = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
