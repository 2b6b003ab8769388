/* SPDX-License-Identifier: Apache-2.0
 *
 * The PostgreSQL store as far as it needs no server: URIs, the bytes of a statement, what an
 * SQLSTATE means, and rows that make no sense. What needs one is in
 * tests/store/test_postgres_store.py and in store_test.
 */
#include "../unit/oom.h"
#include "store/postgres/postgres.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* ---- URIs ------------------------------------------------------------------------------ */

static void good_uris_open_without_a_server(void **state)
{
    static const struct {
        const char *uri;
        size_t hosts;
        int64_t timeout_ms;
    } uris[] = {
        {"postgres://", 1, 2000},
        {"postgresql://db", 1, 2000},
        {"postgres://ann:secret@db:5433/shop?timeout=500ms", 1, 500},
        {"postgres://a,b:5433,[::1]/shop?timeout=1m&target_session_attrs=read-write", 3, 60000},
        {"postgres:///shop?host=/run/postgresql&timeout=10ms&user=ann", 1, 10},
        {"postgres:///shop?service=shop&timeout=10ms", 1, 10},
        {"postgres://ann:a?timeout=1h@db/shop?sslmode=verify-full&sslrootcert=/ca.pem", 1, 2000},
        {"postgres://db/shop?tim%65out=3s", 1, 3000},
        {"postgres://db/shop?ssl=true", 1, 2000},
        {"postgres://db/shop?", 1, 2000},
    };

    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        struct hapax__pg_uri uri;
        struct hapax_store *store;
        char text[HAPAX_TEXT_MAX] = "";

        if (hapax__pg_uri(&uri, uris[i].uri, text) != HAPAX_ERR_NONE)
            fail_msg("%s: %s", uris[i].uri, text);
        assert_int_equal(uri.hosts, uris[i].hosts);
        assert_int_equal(uri.timeout_ms, uris[i].timeout_ms);
        hapax__pg_uri_release(&uri);
        assert_int_equal(hapax_store_open(&store, uris[i].uri, text), HAPAX_ERR_NONE);
        hapax_store_close(store);
    }
}

/* Each is refused at once, with a text that names what is wrong and never the password. */
static void bad_uris_are_refused_without_their_password(void **state)
{
    static const struct {
        const char *uri, *why;
    } uris[] = {
        {"postgres:db", "does not begin with postgres://"},
        {"postgres://ann:secret@db/shop?tmeout=2s", "tmeout"},
        {"postgres://ann:secret@db/shop?timeout=2", "timeout is not between 10ms and 1m"},
        {"postgres://ann:secret@db/shop?timeout=2m", "timeout is not between"},
        {"postgres://ann:secret@db/shop?timeout=0", "timeout is not between"},
        {"postgres://ann:secret@db/shop?timeout", "timeout is not between"},
        {"postgres://ann:secret@db/shop?password=secret&replication=true", "replication"},
        {"postgres://ann:secret@db/shop?%zz=1", "malformed"},
        {"postgres://ann:secret%zz@db/shop", "percent"},
        {"postgres://ann:secret@[::1/shop", "matching"},
        {"postgres://ann:secret@[::1]x/shop", "unexpected character"},
        {"postgres://db/shop?password=secret&host=a=b", "="},
        {"postgres://ann:secret@a,b:1,c:2/shop?port=1,2", "as many ports"},
        {"postgres://ann:secret@a,b/shop?hostaddr=127.0.0.1", "as many"},
        {"postgres://ann:secret@a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q/shop", "over 16 hosts"},
    };

    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        struct hapax_store *store;
        char text[HAPAX_TEXT_MAX] = "";

        if (hapax_store_open(&store, uris[i].uri, text) != HAPAX_ERR_INVALID || store)
            fail_msg("%s: taken", uris[i].uri);
        if (!strstr(text, uris[i].why) || strstr(text, "secret"))
            fail_msg("%s: %s", uris[i].uri, text);
    }
}

/* Out of memory at any allocation: an error, and nothing is left behind. */
static void opening_survives_want_of_memory(void **state)
{
    static const char uri[] = "postgres://ann:secret@a,b/shop?timeout=1s";
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    int64_t before;

    assert_int_equal(hapax_store_open(&store, uri, text), HAPAX_ERR_NONE);
    hapax_store_close(store);
    before = oom_live();
    for (uint64_t n = 1;; n++) {
        enum hapax_error error;

        oom_fail_at(n, false);
        error = hapax_store_open(&store, uri, text);
        hapax_store_close(store);
        if (oom_count() < n) {
            assert_int_equal(error, HAPAX_ERR_NONE);
            break;
        }
        assert_int_equal(error, HAPAX_ERR_NOMEM);
    }
    oom_fail_at(0, false);
    assert_int_equal(oom_live(), before);
}

/* ---- bytes ----------------------------------------------------------------------------- */

/* An array is what PostgreSQL's documentation says, byte for byte. */
static void an_array_has_its_head_and_elements(void **state)
{
    static const uint8_t wanted[] = {
        0, 0,  0, 1, 0,    0,    0,    1,    0,    0,
        0, 17, 0, 0, 0,    2,    0,    0,    0,    1, /* the head: bytea, 2 */
        0, 0,  0, 2, 'h',  'i',  0xff, 0xff, 0xff, 0xff, /* "hi", NULL */
        0, 0,  0, 1, 0,    0,    0,    1,    0,    0,
        0, 21, 0, 0, 0,    1,    0,    0,    0,    1, /* smallint, 1 */
        0, 0,  0, 2, 0xff, 0xfe, /* -2 */
        1, /* true */
    };
    struct hapax__pg_out out = {0};
    struct hapax__pg_params params;

    hapax__pg_out_reset(&out);
    hapax__pg_begin_array(&out, HAPAX__PG_BYTEA, 2);
    hapax__pg_put_bytes(&out, hapax_str("hi"));
    hapax__pg_put_null(&out);
    hapax__pg_begin_array(&out, HAPAX__PG_INT2, 1);
    hapax__pg_put_int(&out, HAPAX__PG_INT2, -2);
    hapax__pg_put_value_int(&out, HAPAX__PG_BOOL, 1);
    hapax__pg_begin_array(&out, HAPAX__PG_INT8, 0);
    assert_true(hapax__pg_out_params(&out, &params));
    assert_int_equal(params.n, 4);
    assert_int_equal(out.len, sizeof(wanted));
    assert_memory_equal(out.bytes, wanted, sizeof(wanted));
    assert_int_equal(params.lengths[0], 30);
    assert_int_equal(params.lengths[1], 26);
    assert_int_equal(params.lengths[2], 1);
    assert_int_equal(params.types[0], 1001);
    assert_int_equal(params.types[1], 1005);
    assert_int_equal(params.types[2], 16);
    assert_non_null(params.values[2]);
    assert_int_equal(params.types[3], 1016);
    assert_null(params.values[3]);
    free(out.bytes);
}

/* What does not fit is never sent in part; and the next statement is not spoilt by it. */
static void a_statement_over_its_limit_is_not_made(void **state)
{
    struct hapax_span body = {calloc(1, HAPAX_BODY_MAX), HAPAX_BODY_MAX};
    struct hapax__pg_out out = {0};
    struct hapax__pg_params params;

    assert_non_null(body.ptr);
    hapax__pg_out_reset(&out);
    hapax__pg_begin_array(&out, HAPAX__PG_BYTEA, 2);
    hapax__pg_put_bytes(&out, body);
    hapax__pg_put_bytes(&out, body);
    assert_false(hapax__pg_out_params(&out, &params));
    assert_true(out.cap <= 2 * HAPAX__PG_OUT_MAX);
    hapax__pg_out_reset(&out);
    hapax__pg_begin_array(&out, HAPAX__PG_BYTEA, 1);
    hapax__pg_put_bytes(&out, body);
    assert_true(hapax__pg_out_params(&out, &params));
    assert_int_equal(params.lengths[0], 20 + 4 + HAPAX_BODY_MAX);
    free(out.bytes);
    free((void *)(uintptr_t)body.ptr);
}

static void a_statement_survives_want_of_memory(void **state)
{
    struct hapax_op op = {.kind = HAPAX_OP_COMPLETE, .outcome.body = hapax_str("done")};
    struct hapax_op *ops[1] = {&op};

    for (uint64_t n = 1;; n++) {
        struct hapax__pg_out out = {0};
        struct hapax__pg_params params;
        bool made;

        oom_fail_at(n, true);
        hapax__pg_put_ops(&out, ops, 1, false);
        made = hapax__pg_out_params(&out, &params);
        free(out.bytes);
        assert_int_equal(made, oom_count() < n);
        if (made)
            break;
    }
    oom_fail_at(0, false);
}

/* ---- errors ---------------------------------------------------------------------------- */

static void each_sqlstate_means_what_a_caller_can_do(void **state)
{
    static const struct {
        const char *sqlstate;
        enum hapax_error error;
    } table[] = {
        {"25006", HAPAX_ERR_UNAVAILABLE}, {"57P01", HAPAX_ERR_UNAVAILABLE},
        {"57P03", HAPAX_ERR_UNAVAILABLE}, {"53300", HAPAX_ERR_UNAVAILABLE},
        {"53100", HAPAX_ERR_UNAVAILABLE}, {"55P03", HAPAX_ERR_UNAVAILABLE},
        {"57014", HAPAX_ERR_UNAVAILABLE}, {"40001", HAPAX_ERR_UNAVAILABLE},
        {"40P01", HAPAX_ERR_UNAVAILABLE}, {"XX000", HAPAX_ERR_UNAVAILABLE},
        {"28P01", HAPAX_ERR_REFUSED},     {"28000", HAPAX_ERR_REFUSED},
        {"42501", HAPAX_ERR_REFUSED},     {"3D000", HAPAX_ERR_REFUSED},
        {"3F000", HAPAX_ERR_UNSUPPORTED}, {"42883", HAPAX_ERR_UNSUPPORTED},
        {"42P01", HAPAX_ERR_UNSUPPORTED}, {"HX003", HAPAX_ERR_UNSUPPORTED},
        {"XX001", HAPAX_ERR_CORRUPT},     {"23514", HAPAX_ERR_CORRUPT},
        {"22P02", HAPAX_ERR_CORRUPT},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (hapax__pg_error_of(table[i].sqlstate) != table[i].error)
            fail_msg("%s: %s", table[i].sqlstate,
                     hapax_error_name(hapax__pg_error_of(table[i].sqlstate)));
    assert_true(hapax__pg_transient("40001") && hapax__pg_transient("40P01"));
    assert_false(hapax__pg_transient("55P03"));
}

/* ---- rows that make no sense ----------------------------------------------------------- */

#define COLUMNS 32

struct answer {
    int64_t ints[COLUMNS];
    bool null[COLUMNS];
    int columns;
    int rows;
    int wrong; /* the column that has a byte too many; -1: none */
};

static const size_t sizes[COLUMNS] = {4, 2, 2, 2, 8, 2, 1, 1, 1, 1, 4, 4, 8, 0, 0, 0,
                                      0, 0, 8, 8, 8, 8, 8, 8, 0, 2, 2, 2, 4, 1, 0, 0};

static struct answer good_answer(void)
{
    struct answer answer = {.columns = COLUMNS, .rows = 1, .wrong = -1};

    answer.ints[0] = 1;
    answer.ints[1] = HAPAX_CLAIMED;
    answer.ints[4] = 1700000000000000;
    answer.ints[5] = HAPAX_STATE_STARTED;
    answer.ints[10] = 1;
    for (int i = 13; i <= 17; i++)
        answer.null[i] = true;
    return answer;
}

/* Bytes in the making: of a composite value, or of what stands in one. */
struct bytes {
    uint8_t at[200000];
    size_t len;
};

static void put(struct bytes *out, int64_t value, size_t size)
{
    for (size_t b = 0; b < size; b++)
        out->at[out->len++] = (uint8_t)((uint64_t)value >> 8 * (size - 1 - b));
}

/* Rows of one composite value each; the last column's bytes are `body`, if there are any. */
static PGresult *rows_with(const struct answer *answer, struct hapax_span body)
{
    PGresult *rows = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    PGresAttDesc column = {.name = "run", .format = 1};
    struct bytes *out = calloc(1, sizeof(*out));

    assert_non_null(out);
    assert_true(PQsetResultAttrs(rows, 1, &column));
    put(out, answer->columns, 4);
    for (int i = 0; i < answer->columns; i++) {
        size_t more = i == answer->wrong, len = i == COLUMNS - 1 ? body.len : sizes[i] + more;

        put(out, 0, 4); /* the type */
        put(out, answer->null[i] ? -1 : (int64_t)len, 4);
        if (answer->null[i])
            continue;
        put(out, answer->ints[i], sizes[i]);
        put(out, 0, more);
        if (i == COLUMNS - 1 && body.len > 0) {
            memcpy(out->at + out->len, body.ptr, body.len);
            out->len += body.len;
        }
    }
    for (int row = 0; row < answer->rows; row++)
        assert_true(PQsetvalue(rows, row, 0, (char *)out->at, (int)out->len));
    free(out);
    return rows;
}

static PGresult *rows_of(const struct answer *answer)
{
    return rows_with(answer, (struct hapax_span){NULL, 0});
}

static enum hapax_error take(const struct answer *answer, struct hapax_op *op)
{
    struct hapax_op *ops[1] = {op};
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    PGresult *rows = rows_of(answer);
    enum hapax_error error;

    assert_int_equal(hapax_store_open(&store, "postgres://", text), HAPAX_ERR_NONE);
    *op = (struct hapax_op){.kind = HAPAX_OP_CLAIM, .error = HAPAX_ERR_INDETERMINATE};
    op->scope = hapax_str("s");
    error = hapax__pg_take_ops(store, ops, 1, rows);
    PQclear(rows);
    hapax_store_close(store);
    return error;
}

static void a_whole_row_is_taken(void **state)
{
    struct answer answer = good_answer();
    struct hapax_op op;

    assert_int_equal(take(&answer, &op), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 1);
    assert_ptr_equal(op.record.scope.ptr, op.scope.ptr);
}

/* A row with any value out of range, of the wrong size or in the wrong place gives no verdict. */
static void a_row_that_makes_no_sense_gives_no_verdict(void **state)
{
    static const struct {
        int column;
        int64_t value;
    } bad[] = {
        {0, 0},   {0, 2},   {0, -1},  {1, 0},     {1, HAPAX_ABSENT + 1},
        {1, -1},  {2, -6},  {3, 3},   {4, 0},     {4, -1},
        {5, 5},   {6, 2},   {10, -1}, {11, -1},   {12, -1},
        {18, -1}, {20, -1}, {22, -1}, {27, 3},    {27, -1},
        {25, 5},  {25, -1}, {26, -1}, {26, 1000},
    };
    struct answer answer;
    struct hapax_op op;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        answer = good_answer();
        answer.ints[bad[i].column] = bad[i].value;
        if (take(&answer, &op) == HAPAX_ERR_NONE || op.verdict != HAPAX_NO_VERDICT)
            fail_msg("column %d: %lld is taken", bad[i].column, (long long)bad[i].value);
        assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    }
    for (int i = 0; i < COLUMNS; i++) {
        if (sizes[i] == 0 || (i > 27 && i < 30))
            continue;
        answer = good_answer();
        answer.wrong = i;
        if (take(&answer, &op) == HAPAX_ERR_NONE || op.verdict != HAPAX_NO_VERDICT)
            fail_msg("column %d: any size is taken", i);
    }
    answer = good_answer();
    answer.null[13] = false; /* a fingerprint of no bytes */
    assert_int_equal(take(&answer, &op), HAPAX_ERR_CORRUPT);
    answer = good_answer();
    answer.rows = 2;
    assert_int_equal(take(&answer, &op), HAPAX_ERR_CORRUPT);
    answer.rows = 0;
    assert_int_equal(take(&answer, &op), HAPAX_ERR_CORRUPT);
    answer = good_answer();
    answer.columns = COLUMNS - 1;
    assert_int_equal(take(&answer, &op), HAPAX_ERR_CORRUPT);
    assert_int_equal(op.verdict, HAPAX_NO_VERDICT);
}

/* A caller's transaction that is still open has no lease to show, and whoever waits for it must not
 * ask without a pause. */
static void a_callers_transaction_is_in_flight_with_a_lease(void **state)
{
    struct answer answer = good_answer();
    struct hapax_op op;

    answer.ints[1] = HAPAX_IN_FLIGHT;
    answer.ints[5] = HAPAX_STATE_ABSENT;
    answer.ints[10] = 0;
    assert_int_equal(take(&answer, &op), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(op.record.state, HAPAX_STATE_STARTED);
    assert_true(op.record.lease_until_us > op.now_us);
    assert_true(op.record.lease_until_us <= op.now_us + 1000000);
}

/* Without memory for it, an answer is not given in part: the op was committed, and can be asked
 * again. */
static void a_row_survives_want_of_memory(void **state)
{
    static const uint8_t body[100000];
    struct hapax_op op = {.kind = HAPAX_OP_CLAIM, .error = HAPAX_ERR_INDETERMINATE};
    struct hapax_op *ops[1] = {&op};
    struct answer answer = good_answer();
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    PGresult *rows;

    answer.ints[1] = HAPAX_COMPLETED;
    answer.ints[5] = HAPAX_STATE_COMPLETED;
    answer.ints[27] = 1;
    rows = rows_with(&answer, (struct hapax_span){body, sizeof(body)});
    assert_int_equal(hapax_store_open(&store, "postgres://", text), HAPAX_ERR_NONE);
    oom_fail_at(1, true);
    assert_int_equal(hapax__pg_take_ops(store, ops, 1, rows), HAPAX_ERR_NOMEM);
    oom_fail_at(0, false);
    assert_int_equal(op.verdict, HAPAX_NO_VERDICT);
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(hapax__pg_take_ops(store, ops, 1, rows), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_int_equal(op.record.outcome.body.len, sizeof(body));
    hapax_store_close(store);
    PQclear(rows);
}

/* What another transaction holds is surely not applied, and nothing else is said so. */
static void a_busy_row_is_unavailable(void **state)
{
    struct answer answer = good_answer();
    struct hapax_op op;

    answer.ints[1] = HAPAX_NO_VERDICT;
    answer.ints[2] = HAPAX_ERR_UNAVAILABLE;
    assert_int_equal(take(&answer, &op), HAPAX_ERR_NONE);
    assert_int_equal(op.error, HAPAX_ERR_UNAVAILABLE);
    answer.ints[1] = HAPAX_CLAIMED; /* both a verdict and an error */
    assert_int_equal(take(&answer, &op), HAPAX_ERR_CORRUPT);
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
}

/* ---- rows for several ops ---------------------------------------------------------------- */

#define NOW_US INT64_C(1700000000000000)

static struct answer packed_answer(enum hapax_verdict verdict)
{
    struct answer answer = {.columns = COLUMNS, .rows = 1, .wrong = -1};

    for (int i = 0; i < COLUMNS; i++)
        answer.null[i] = i != 1 && i != 4 && i != COLUMNS - 1;
    answer.ints[1] = verdict;
    answer.ints[4] = NOW_US;
    return answer;
}

/* An array of ords, as array_send() writes it. */
static void put_ords(struct bytes *out, int64_t first, int64_t second)
{
    static const int64_t head[] = {1, 0, 23, 2, 1};

    for (size_t i = 0; i < sizeof(head) / sizeof(head[0]); i++)
        put(out, head[i], 4);
    put(out, 4, 4);
    put(out, first, 4);
    put(out, 4, 4);
    put(out, second, 4);
}

/* Of a record with an owner where there is a scope. */
static void put_done(struct bytes *out, int64_t ord, const char *scope, const char *what)
{
    size_t owner_len = scope[0] ? 32 : 0;

    put(out, ord, 4);
    put(out, NOW_US - 9, 8); /* created */
    put(out, NOW_US - 7, 8); /* fence */
    put(out, 1000, 8); /* retention */
    put(out, 3, 4); /* attempt */
    put(out, 2, 4); /* spent */
    put(out,
        1 | 2 | (owner_len ? 8 : 0) | (int64_t)strlen(scope) << 8 | (int64_t)strlen(what) << 16,
        4); /* hold, ran, owned */
    memset(out->at + out->len, 'f', 32);
    memset(out->at + out->len + 32, 'c', 32);
    memset(out->at + out->len + 64, 'o', owner_len);
    out->len += 64 + owner_len;
    memcpy(out->at + out->len, scope, strlen(scope));
    memcpy(out->at + out->len + strlen(scope), what, strlen(what));
    out->len += strlen(scope) + strlen(what);
}

/* Two ops of a kind, against one such row. */
static enum hapax_error take_packed(enum hapax_op_kind kind, const struct answer *answer,
                                    const struct bytes *body, struct hapax_op op[2],
                                    struct hapax_store **store)
{
    struct hapax_op *ops[2] = {&op[0], &op[1]};
    char text[HAPAX_TEXT_MAX];
    PGresult *rows = rows_with(answer, (struct hapax_span){body->at, body->len});
    enum hapax_error error;

    assert_int_equal(hapax_store_open(store, "postgres://", text), HAPAX_ERR_NONE);
    for (int i = 0; i < 2; i++)
        op[i] = (struct hapax_op){.kind = kind,
                                  .error = HAPAX_ERR_INDETERMINATE,
                                  .scope = hapax_str("own"),
                                  .lease_ms = 5,
                                  .retention_ms = 1000,
                                  .on_expired = HAPAX_EXPIRED_RERUN,
                                  .outcome = {201, true, {NULL, 0}, hapax_str("done")}};
    error = hapax__pg_take_ops(*store, ops, 2, rows);
    PQclear(rows);
    return error;
}

/* One row answers several ops, and what it does not say follows from them. */
static void a_row_for_several_ops_is_taken(void **state)
{
    struct answer granted = packed_answer(HAPAX_CLAIMED), done = packed_answer(HAPAX_OK);
    static struct bytes body;
    struct hapax_store *store;
    struct hapax_op op[2];

    body.len = 0;
    put_ords(&body, 2, 1);
    assert_int_equal(take_packed(HAPAX_OP_CLAIM, &granted, &body, op, &store), HAPAX_ERR_NONE);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(op[i].verdict, HAPAX_CLAIMED);
        assert_int_equal(op[i].error, HAPAX_ERR_NONE);
        assert_int_equal(op[i].record.fence, NOW_US);
        assert_int_equal(op[i].record.lease_until_us, NOW_US + 5000);
        assert_int_equal(op[i].record.expires_us, NOW_US + 1000000);
        assert_ptr_equal(op[i].record.scope.ptr, op[i].scope.ptr);
    }
    hapax_store_close(store);
    body.len = 0;
    put_done(&body, 2, "theirs", "POST /pay");
    put_done(&body, 1, "", "");
    assert_int_equal(take_packed(HAPAX_OP_COMPLETE, &done, &body, op, &store), HAPAX_ERR_NONE);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(op[i].verdict, HAPAX_OK);
        assert_int_equal(op[i].record.state, HAPAX_STATE_COMPLETED);
        assert_int_equal(op[i].record.fence, NOW_US - 7);
        assert_int_equal(op[i].record.created_us, NOW_US - 9);
        assert_int_equal(op[i].record.updated_us, NOW_US);
        assert_int_equal(op[i].record.expires_us, NOW_US + 1000000);
        assert_true(op[i].record.attempt == 3 && op[i].record.spent == 2);
        assert_true(op[i].record.hold && op[i].record.ran && !op[i].record.reruns);
        assert_true(op[i].record.fingerprint.bytes[31] == 'f' &&
                    op[i].record.caller.bytes[0] == 'c');
        assert_ptr_equal(op[i].record.outcome.body.ptr, op[i].outcome.body.ptr);
    }
    assert_int_equal(op[0].record.scope.len, 0);
    assert_memory_equal(op[1].record.scope.ptr, "theirs", 6);
    assert_int_equal(op[0].record.what.len, 0);
    assert_int_equal(op[0].record.owner.bytes[31], 0);
    assert_memory_equal(op[1].record.what.ptr, "POST /pay", 9);
    assert_int_equal(op[1].record.owner.bytes[31], 'o');
    hapax_store_close(store);
}

/* One that is cut, speaks of an op twice or of one that is not there, or of another kind, gives no
 * op a verdict. */
static void a_row_for_several_ops_that_makes_no_sense_gives_no_verdict(void **state)
{
    static const int64_t ords[][2] = {{1, 1}, {1, 3}, {0, 1}, {-1, 2}};
    struct answer granted = packed_answer(HAPAX_CLAIMED), done = packed_answer(HAPAX_OK);
    static struct bytes whole, body;
    struct hapax_op op[2];
    struct hapax_store *store;

#define REFUSED(kind, answer)                                                                      \
    do {                                                                                           \
        assert_int_equal(take_packed(kind, answer, &body, op, &store), HAPAX_ERR_CORRUPT);         \
        assert_true(op[0].verdict == HAPAX_NO_VERDICT && op[1].verdict == HAPAX_NO_VERDICT);       \
        assert_int_equal(op[0].error, HAPAX_ERR_INDETERMINATE);                                    \
        hapax_store_close(store);                                                                  \
    } while (0)

    for (size_t i = 0; i < sizeof(ords) / sizeof(ords[0]); i++) {
        body.len = 0;
        put_ords(&body, ords[i][0], ords[i][1]);
        REFUSED(HAPAX_OP_CLAIM, &granted);
        body.len = 0;
        put_done(&body, ords[i][0], "s", "");
        put_done(&body, ords[i][1], "s", "");
        REFUSED(HAPAX_OP_COMPLETE, &done);
    }
    whole.len = 0;
    put_ords(&whole, 1, 2);
    for (body = whole; body.len-- > 0;)
        REFUSED(HAPAX_OP_CLAIM, &granted);
    body = whole;
    REFUSED(HAPAX_OP_COMPLETE, &granted);
    REFUSED(HAPAX_OP_COMPLETE, &done);
    granted.ints[4] = 0; /* at no time */
    REFUSED(HAPAX_OP_CLAIM, &granted);
    whole.len = 0;
    put_done(&whole, 1, "some", "");
    put_done(&whole, 2, "thing", "");
    for (body = whole; body.len-- > 0;)
        REFUSED(HAPAX_OP_COMPLETE, &done);
    body = whole;
    REFUSED(HAPAX_OP_CLAIM, &done);
    body.at[38] = 2; /* a scope of more than is there, and than may be */
    REFUSED(HAPAX_OP_COMPLETE, &done);
    done.ints[1] = HAPAX_LOST;
    body = whole;
    REFUSED(HAPAX_OP_COMPLETE, &done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_for_several_ops_is_taken),
        cmocka_unit_test(a_row_for_several_ops_that_makes_no_sense_gives_no_verdict),
        cmocka_unit_test(good_uris_open_without_a_server),
        cmocka_unit_test(bad_uris_are_refused_without_their_password),
        cmocka_unit_test(opening_survives_want_of_memory),
        cmocka_unit_test(an_array_has_its_head_and_elements),
        cmocka_unit_test(a_statement_over_its_limit_is_not_made),
        cmocka_unit_test(a_statement_survives_want_of_memory),
        cmocka_unit_test(each_sqlstate_means_what_a_caller_can_do),
        cmocka_unit_test(a_whole_row_is_taken),
        cmocka_unit_test(a_row_that_makes_no_sense_gives_no_verdict),
        cmocka_unit_test(a_callers_transaction_is_in_flight_with_a_lease),
        cmocka_unit_test(a_row_survives_want_of_memory),
        cmocka_unit_test(a_busy_row_is_unavailable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
