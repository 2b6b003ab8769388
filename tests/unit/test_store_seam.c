/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam: what hapax_store_run() promises to callers whatever a store does, and to stores
 * whatever a caller asks. The store here is a probe: it notes what it was given and answers as the
 * test says. The checks of the ops are tested over the memory store, so that "the rest runs" is
 * seen.
 */
#include <hapax/store.h>

#include "../cases.h"
#include "../store/faulty.h"
#include "base/fail.h"
#include "core/record.h"
#include "store/types.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the probe ----------------------------------------------------------------------- */

#define BATCHES_MAX 64

struct probe {
    struct hapax_store base;
    struct hapax_store_type type;
    enum hapax_error returned; /* by run */
    size_t answers; /* how many ops of a batch it answers; the rest are left */
    int unavailable; /* an op with this id is answered so; -1: none */
    size_t batches;
    size_t sizes[BATCHES_MAX];
    uint8_t seen[BATCHES_MAX]; /* first bytes of ids, in order */
    size_t seen_count;
    bool clean; /* no op came with anything of an earlier answer */
};

static void probe_op(struct probe *probe, struct hapax_op *op)
{
    uint8_t *memory;

    probe->clean &= op->verdict == HAPAX_NO_VERDICT && op->error == HAPAX_ERR_INDETERMINATE &&
                    !op->records && op->count == 0 && op->record.scope.len == 0 && op->now_us == 0;
    if (probe->seen_count < BATCHES_MAX)
        probe->seen[probe->seen_count++] = op->id.bytes[0];
    if (op->id.bytes[0] == probe->unavailable) {
        op->error = HAPAX_ERR_UNAVAILABLE;
        return;
    }
    memory = hapax_store_memory(&probe->base, 1);
    assert_non_null(memory);
    *memory = op->id.bytes[0];
    op->record.scope = (struct hapax_span){memory, 1};
    op->verdict = HAPAX_FOUND;
}

static enum hapax_error probe_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct probe *probe = (struct probe *)store;

    assert_true(probe->batches < BATCHES_MAX);
    assert_true(n >= 1 && n <= probe->type.batch_max);
    probe->sizes[probe->batches++] = n;
    for (size_t i = 0; i < n && i < probe->answers; i++)
        probe_op(probe, &ops[i]);
    return probe->returned;
}

static enum hapax_error probe_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    (void)store;
    say(arg, false, "fine");
    return HAPAX_ERR_NONE;
}

static void probe_close(struct hapax_store *store)
{
    free(store);
}

static enum hapax_error probe_open(struct hapax_store **out, const char *uri,
                                   char text[HAPAX_TEXT_MAX])
{
    struct probe *probe = calloc(1, sizeof(*probe));

    if (strcmp(uri, "probe:") != 0 || !probe) {
        free(probe);
        return hapax__fail(text, HAPAX_ERR_REFUSED, "store \"%s\": no", uri);
    }
    probe->type = (struct hapax_store_type){.scheme = "probe",
                                            .batch_max = HAPAX_BATCH_MAX,
                                            .body_max = 100,
                                            .serial = true,
                                            .open = probe_open,
                                            .run = probe_run,
                                            .check = probe_check,
                                            .close = probe_close};
    probe->base.type = &probe->type;
    probe->answers = SIZE_MAX;
    probe->unavailable = -1;
    probe->clean = true;
    *out = &probe->base;
    return HAPAX_ERR_NONE;
}

static const struct hapax_store_type probe_type = {.scheme = "probe", .open = probe_open};

static struct hapax_store *open_store(const char *uri)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    hapax__store_add(&probe_type);
    assert_int_equal(hapax_store_open(&store, uri, text), HAPAX_ERR_NONE);
    return store;
}

static struct hapax_op new_op(enum hapax_op_kind kind, uint8_t number)
{
    struct hapax_op op;

    memset(&op, 0, sizeof(op));
    op.kind = kind;
    op.id.bytes[0] = number;
    op.token.bytes[0] = 1;
    op.scope = hapax_str("orders");
    op.lease_ms = 30000;
    op.retention_ms = 60000;
    op.on_expired = HAPAX_EXPIRED_RERUN;
    op.resolve = HAPAX_RESOLVE_FAIL;
    return op;
}

/* ---- the checks ---------------------------------------------------------------------- */

static uint8_t bytes[HAPAX_HEADERS_MAX + 1];

static struct hapax_span of_len(size_t len)
{
    return (struct hapax_span){bytes, len};
}

struct limit {
    const char *field; /* what the text names */
    enum hapax_op_kind kind;
    enum hapax_error error;
    void (*set)(struct hapax_op *op, bool over); /* else: just at the limit */
};

static void set_kind(struct hapax_op *op, bool over)
{
    op->kind = over ? (enum hapax_op_kind)(HAPAX_OP_IMPORT + 1) : HAPAX_OP_CLAIM;
}

static void set_no_kind(struct hapax_op *op, bool over)
{
    op->kind = over ? (enum hapax_op_kind)0 : HAPAX_OP_CLAIM;
}

static void set_token(struct hapax_op *op, bool over)
{
    op->token.bytes[0] = 0;
    op->token.bytes[15] = !over;
}

static void set_scope(struct hapax_op *op, bool over)
{
    op->scope = of_len(HAPAX_SCOPE_MAX + over);
}

static void set_scope_empty(struct hapax_op *op, bool over)
{
    op->scope = of_len(!over);
}

static void set_expired(struct hapax_op *op, bool over)
{
    op->on_expired = (enum hapax_on_expired)(HAPAX_EXPIRED_RECONCILE + over);
}

static void set_by(struct hapax_op *op, bool over)
{
    op->by = of_len(HAPAX_BY_MAX + over);
}

static void set_resolve(struct hapax_op *op, bool over)
{
    op->resolve = over ? (enum hapax_resolve)0 : HAPAX_RESOLVE_COMPLETE;
}

static void set_status(struct hapax_op *op, bool over)
{
    op->outcome.status = 999 + over;
}

static void set_status_below(struct hapax_op *op, bool over)
{
    op->outcome.status = -over;
}

static void set_died(struct hapax_op *op, bool over)
{
    op->died = op->as_unknown = true;
    op->ran = !over;
}

static void set_died_known(struct hapax_op *op, bool over)
{
    op->died = op->ran = true;
    op->as_unknown = !over;
}

static void set_limit(struct hapax_op *op, bool over)
{
    op->limit = HAPAX_LIST_MAX + over;
}

static void set_states(struct hapax_op *op, bool over)
{
    op->states = over ? 1u : HAPAX_STATES_ALL;
}

static void set_lease(struct hapax_op *op, bool over)
{
    op->lease_ms = HAPAX_DURATION_MAX_MS + over;
}

static void set_lease_below(struct hapax_op *op, bool over)
{
    op->lease_ms = !over;
}

static void set_retention(struct hapax_op *op, bool over)
{
    op->retention_ms = over ? HAPAX_FOREVER_MS - 1 : HAPAX_FOREVER_MS;
}

static void set_retention_below(struct hapax_op *op, bool over)
{
    op->retention_ms = !over;
}

static void set_older(struct hapax_op *op, bool over)
{
    op->older_ms = HAPAX_DURATION_MAX_MS + over;
}

static void set_older_below(struct hapax_op *op, bool over)
{
    op->older_ms = -over;
}

static void set_fingerprint(struct hapax_op *op, bool over)
{
    memset(&op->fingerprint, HAPAX_ANY_BYTE, sizeof(op->fingerprint));
    op->fingerprint.bytes[31] -= !over;
}

static void set_caller(struct hapax_op *op, bool over)
{
    memset(&op->caller, HAPAX_ANY_BYTE, sizeof(op->caller));
    op->caller.bytes[0] -= !over;
}

static void set_headers(struct hapax_op *op, bool over)
{
    op->outcome.headers = of_len(HAPAX_HEADERS_MAX + over);
}

/* A record at its limits, but for one field. */
static void set_import(struct hapax_op *op, struct hapax_record other)
{
    static uint8_t encoded[256];
    struct hapax_record record = {.id = op->id,
                                  .state = HAPAX_STATE_STARTED,
                                  .attempt = 1,
                                  .fence = 1,
                                  .scope = hapax_str("s"),
                                  .created_us = 1,
                                  .updated_us = 2,
                                  .lease_until_us = 3,
                                  .expires_us = 2,
                                  .retention_ms = HAPAX_DURATION_MAX_MS};

    record.outcome = other.outcome;
    record.attempt -= other.attempt;
    record.spent = other.spent;
    record.fence -= other.fence;
    record.created_us -= other.created_us;
    record.updated_us -= other.updated_us;
    record.expires_us -= other.expires_us;
    record.lease_until_us -= other.lease_until_us;
    record.retention_ms += other.retention_ms;
    record.scope.len -= other.scope.len;
    record.state += other.state;
    op->import = (struct hapax_span){encoded, hapax__record_size(&record)};
    assert_true(op->import.len <= sizeof(encoded));
    hapax__record_encode(encoded, &record);
}

static void set_import_bytes(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){0});
    op->import.len -= over;
}

static void set_import_outcome(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.outcome.body = hapax_str(over ? "x" : "")});
}

static void set_import_attempt(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.attempt = over});
}

static void set_import_fence(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.fence = over});
}

static void set_import_created(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.created_us = over});
}

static void set_import_updated(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.updated_us = over ? 2 : 0});
}

static void set_import_scope(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.scope.len = over});
}

static void set_import_lease(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.state = (enum hapax_state)over});
}

static void set_import_expires(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.expires_us = over});
}

static void set_import_retention(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.retention_ms = over});
}

static void set_import_forever(struct hapax_op *op, bool over)
{
    set_import(
        op, (struct hapax_record){.retention_ms = HAPAX_FOREVER_MS - HAPAX_DURATION_MAX_MS - over});
}

static void set_import_not_kept(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.retention_ms = !over - HAPAX_DURATION_MAX_MS});
}

/* What is completed and kept for ever does not expire. */
static void set_import_no_end(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){
                       .state = (enum hapax_state)1,
                       .lease_until_us = 3,
                       .retention_ms = HAPAX_FOREVER_MS - HAPAX_DURATION_MAX_MS,
                       .expires_us = over ? 0 : 2,
                   });
}

static void set_import_attempts(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.attempt = 1u - ((uint32_t)INT32_MAX + over)});
}

static void set_import_spent(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.spent = (uint32_t)INT32_MAX + over});
}

static void set_import_last_fence(struct hapax_op *op, bool over)
{
    set_import(op, (struct hapax_record){.fence = 1u - ((uint64_t)INT64_MAX - 2 + over)});
}

static const struct limit limits[] = {
    {"kind", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_kind},
    {"kind", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_no_kind},
    {"token", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_token},
    {"token", HAPAX_OP_RENEW, HAPAX_ERR_INVALID, set_token},
    {"token", HAPAX_OP_COMPLETE, HAPAX_ERR_INVALID, set_token},
    {"token", HAPAX_OP_FAIL, HAPAX_ERR_INVALID, set_token},
    {"token", HAPAX_OP_RESOLVE, HAPAX_ERR_INVALID, set_token},
    {"scope", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_scope},
    {"scope", HAPAX_OP_LIST, HAPAX_ERR_INVALID, set_scope},
    {"scope", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_scope_empty},
    {"on_expired", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_expired},
    {"operator's name", HAPAX_OP_RESOLVE, HAPAX_ERR_INVALID, set_by},
    {"resolve", HAPAX_OP_RESOLVE, HAPAX_ERR_INVALID, set_resolve},
    {"status", HAPAX_OP_COMPLETE, HAPAX_ERR_INVALID, set_status},
    {"status", HAPAX_OP_FAIL, HAPAX_ERR_INVALID, set_status_below},
    {"died", HAPAX_OP_FAIL, HAPAX_ERR_INVALID, set_died},
    {"died", HAPAX_OP_FAIL, HAPAX_ERR_INVALID, set_died_known},
    {"limit", HAPAX_OP_LIST, HAPAX_ERR_INVALID, set_limit},
    {"limit", HAPAX_OP_PURGE, HAPAX_ERR_INVALID, set_limit},
    {"states", HAPAX_OP_LIST, HAPAX_ERR_INVALID, set_states},
    {"lease", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_lease},
    {"lease", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_lease_below},
    {"lease", HAPAX_OP_RENEW, HAPAX_ERR_INVALID, set_lease_below},
    {"retention", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_retention},
    {"retention", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_retention_below},
    {"older", HAPAX_OP_LIST, HAPAX_ERR_INVALID, set_older},
    {"older", HAPAX_OP_LIST, HAPAX_ERR_INVALID, set_older_below},
    {"not of any", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_fingerprint},
    {"not of any", HAPAX_OP_CLAIM, HAPAX_ERR_INVALID, set_caller},
    {"headers", HAPAX_OP_COMPLETE, HAPAX_ERR_TOO_BIG, set_headers},
    {"cannot be read", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_bytes},
    {"outcome", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_outcome},
    {"never claimed", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_attempt},
    {"never claimed", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_fence},
    {"never claimed", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_created},
    {"never claimed", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_updated},
    {"never claimed", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_scope},
    {"lease", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_lease},
    {"expires", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_expires},
    {"ten years", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_retention},
    {"ten years", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_forever},
    {"1 ms", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_not_kept},
    {"for ever, and expires", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_no_end},
    {"no store reaches", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_attempts},
    {"no store reaches", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_spent},
    {"no store reaches", HAPAX_OP_IMPORT, HAPAX_ERR_INVALID, set_import_last_fence},
};

#define LIMITS (sizeof(limits) / sizeof(limits[0]))

/* One bad op among good ones is refused, its text names the field, and the store never gets it. */
CASE(an_op_over_a_limit_is_refused_by_name_and_the_rest_runs)
{
    for (size_t i = 0; i < LIMITS; i++) {
        struct hapax_store *inner = open_store("memory:"), *store;
        struct hapax_op ops[] = {new_op(HAPAX_OP_CLAIM, 1), new_op(limits[i].kind, 2),
                                 new_op(HAPAX_OP_CLAIM, 3)};
        struct hapax__plan plan;

        hapax__plan_init(&plan);
        assert_int_equal(hapax__faulty_wrap(&store, inner, &plan), HAPAX_ERR_NONE);
        limits[i].set(&ops[1], true);
        assert_int_equal(hapax_store_run(store, ops, 3), limits[i].error);
        assert_int_equal(ops[0].verdict, HAPAX_CLAIMED);
        assert_int_equal(ops[1].verdict, HAPAX_NO_VERDICT);
        assert_int_equal(ops[1].error, limits[i].error);
        assert_int_equal(ops[2].verdict, HAPAX_CLAIMED);
        assert_non_null(strstr(hapax_store_text(store), limits[i].field));
        assert_int_equal(hapax__plan_counts(&plan).ops, 2);
        hapax_store_close(store);
        hapax__plan_release(&plan);
    }
}

/* The limit itself is within. */
CASE(an_op_at_each_limit_is_taken)
{
    struct hapax_store *store = open_store("memory:");

    for (size_t i = 0; i < LIMITS; i++) {
        struct hapax_op op = new_op(limits[i].kind, (uint8_t)i);

        limits[i].set(&op, false);
        assert_int_equal(hapax_store_run(store, &op, 1), HAPAX_ERR_NONE);
        assert_int_not_equal(op.verdict, HAPAX_NO_VERDICT);
        assert_string_equal(hapax_store_text(store), "");
    }
    hapax_store_close(store);
}

/* Each store has its own limit of bodies, and never sees one over it. */
CASE(a_body_over_the_stores_limit_is_too_big)
{
    struct hapax_store *store = open_store("probe:");
    struct hapax_op op = new_op(HAPAX_OP_COMPLETE, 1);

    op.outcome.body = of_len(101);
    assert_int_equal(hapax_store_run(store, &op, 1), HAPAX_ERR_TOO_BIG);
    assert_int_equal(op.error, HAPAX_ERR_TOO_BIG);
    assert_non_null(strstr(hapax_store_text(store), "101"));
    assert_int_equal(((struct probe *)store)->batches, 0);
    op.outcome.body = of_len(100);
    assert_int_equal(hapax_store_run(store, &op, 1), HAPAX_ERR_NONE);
    hapax_store_close(store);
}

/* ---- what stores leave open ---------------------------------------------------------- */

/* Silence is never read as "not applied". */
CASE(a_store_that_answers_nothing_leaves_indeterminate)
{
    struct hapax_store *store = open_store("probe:");
    struct probe *probe = (struct probe *)store;
    struct hapax_op ops[3];

    for (uint8_t i = 0; i < 3; i++)
        ops[i] = new_op(HAPAX_OP_CLAIM, i);
    probe->answers = 0;
    probe->returned = HAPAX_ERR_UNAVAILABLE; /* even if it says this of the batch */
    assert_int_equal(hapax_store_run(store, ops, 3), HAPAX_ERR_INDETERMINATE);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(ops[i].verdict, HAPAX_NO_VERDICT);
        assert_int_equal(ops[i].error, HAPAX_ERR_INDETERMINATE);
    }
    hapax_store_close(store);
}

/* What it answered before it died stands. */
CASE(a_store_that_dies_half_way_leaves_the_rest_indeterminate)
{
    struct hapax_store *store = open_store("probe:");
    struct probe *probe = (struct probe *)store;
    struct hapax_op ops[5];

    for (uint8_t i = 0; i < 5; i++)
        ops[i] = new_op(HAPAX_OP_CLAIM, i);
    probe->answers = 3;
    probe->unavailable = 1;
    probe->returned = HAPAX_ERR_INDETERMINATE;
    assert_int_equal(hapax_store_run(store, ops, 5), HAPAX_ERR_UNAVAILABLE); /* the first */
    assert_int_equal(ops[0].verdict, HAPAX_FOUND);
    assert_int_equal(ops[0].error, HAPAX_ERR_NONE);
    assert_int_equal(ops[1].error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(ops[2].verdict, HAPAX_FOUND);
    assert_int_equal(ops[3].error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(ops[4].error, HAPAX_ERR_INDETERMINATE);
    hapax_store_close(store);
}

/* A store that calls a batch done and left an op out is a bug, not a verdict. */
CASE(a_store_that_forgets_an_op_aborts)
{
    struct hapax_store *store = open_store("probe:");
    struct hapax_op ops[] = {new_op(HAPAX_OP_READ, 1), new_op(HAPAX_OP_READ, 2)};
    int status;
    pid_t child;

    ((struct probe *)store)->answers = 1;
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

        signal(SIGABRT, SIG_DFL);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        hapax_store_run(store, ops, 2);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    hapax_store_close(store);
}

/* An op may be run again as it came back: a store sees nothing of its earlier answer. */
CASE(nothing_of_an_earlier_answer_reaches_a_store)
{
    struct hapax_store *store = open_store("probe:");
    struct hapax_op op = new_op(HAPAX_OP_READ, 1);

    for (int i = 0; i < 2; i++) {
        op.now_us = 7;
        op.count = 3;
        op.records = &op.record;
        assert_int_equal(hapax_store_run(store, &op, 1), HAPAX_ERR_NONE);
        assert_int_equal(op.verdict, HAPAX_FOUND);
    }
    assert_true(((struct probe *)store)->clean);
    hapax_store_close(store);
}

/* ---- batches ------------------------------------------------------------------------- */

/* A store is never given more than it takes; what the first rounds answered is not overwritten. */
CASE(a_batch_is_split_by_what_the_store_takes)
{
    struct hapax_store *store = open_store("probe:");
    struct probe *probe = (struct probe *)store;
    struct hapax_op ops[10];

    probe->type.batch_max = 4;
    for (uint8_t i = 0; i < 10; i++)
        ops[i] = new_op(HAPAX_OP_READ, i);
    assert_int_equal(hapax_store_run(store, ops, 10), HAPAX_ERR_NONE);
    assert_int_equal(probe->batches, 3);
    assert_int_equal(probe->sizes[0], 4);
    assert_int_equal(probe->sizes[1], 4);
    assert_int_equal(probe->sizes[2], 2);
    for (uint8_t i = 0; i < 10; i++) {
        assert_int_equal(probe->seen[i], i);
        assert_int_equal(*ops[i].record.scope.ptr, i);
    }
    assert_int_equal(hapax_store_run(store, ops, 0), HAPAX_ERR_NONE);
    assert_int_equal(probe->batches, 3);
    hapax_store_close(store);
}

/* One that dies in a later round keeps the verdicts of the rounds before. */
CASE(a_round_that_fails_leaves_the_others)
{
    struct hapax_store *store = open_store("probe:");
    struct probe *probe = (struct probe *)store;
    struct hapax_op ops[6];

    probe->type.batch_max = 2;
    probe->unavailable = 3;
    probe->returned = HAPAX_ERR_UNAVAILABLE;
    for (uint8_t i = 0; i < 6; i++)
        ops[i] = new_op(HAPAX_OP_READ, i);
    assert_int_equal(hapax_store_run(store, ops, 6), HAPAX_ERR_UNAVAILABLE);
    for (uint8_t i = 0; i < 6; i++)
        assert_int_equal(ops[i].verdict, i == 3 ? HAPAX_NO_VERDICT : HAPAX_FOUND);
    hapax_store_close(store);
}

static size_t run_ids(struct probe *probe, const char *ids)
{
    struct hapax_op ops[16];
    size_t n = strlen(ids);

    assert_true(n <= 16);
    for (size_t i = 0; i < n; i++) {
        enum hapax_op_kind kind = ids[i] == 'l'   ? HAPAX_OP_LIST
                                  : ids[i] == 'p' ? HAPAX_OP_PURGE
                                                  : HAPAX_OP_RENEW;

        ops[i] = new_op(kind, (uint8_t)ids[i]);
    }
    probe->batches = 0;
    probe->seen_count = 0;
    assert_int_equal(hapax_store_run(&probe->base, ops, n), HAPAX_ERR_NONE);
    assert_int_equal(probe->seen_count, n);
    return probe->batches;
}

/* No batch of the last run held one id twice. */
static void no_id_twice(const struct probe *probe)
{
    const uint8_t *at = probe->seen;

    for (size_t b = 0; b < probe->batches; b++) {
        for (size_t i = 0; i < probe->sizes[b]; i++)
            for (size_t j = 0; j < i; j++)
                assert_true(at[i] != at[j] || at[i] == 'l' || at[i] == 'p');
        at += probe->sizes[b];
    }
    assert_ptr_equal(at, probe->seen + probe->seen_count);
}

/* A store that judges in parallel could judge two ops on one id in either order. */
CASE(a_parallel_store_never_sees_an_id_twice_in_a_batch)
{
    struct hapax_store *store = open_store("probe:");
    struct probe *probe = (struct probe *)store;

    probe->type.serial = false;
    assert_int_equal(run_ids(probe, "ABCDE"), 1);
    assert_true(run_ids(probe, "ABAAC") >= 3);
    no_id_twice(probe);
    assert_int_equal(run_ids(probe, "AAAA"), 4);
    no_id_twice(probe);
    assert_int_equal(run_ids(probe, "lplpA"), 5); /* a LIST or PURGE comes alone */
    probe->type.batch_max = 2;
    run_ids(probe, "ABBAABCCAB");
    no_id_twice(probe);
    hapax_store_close(store);
}

/* One hot id costs rounds of its own, and no round of the others'. Each op keeps its own answer. */
CASE(a_hot_id_does_not_make_a_round_of_each_op)
{
    struct hapax_store *store = open_store("probe:");
    struct probe *probe = (struct probe *)store;
    struct hapax_op ops[7];

    probe->type.serial = false;
    assert_int_equal(run_ids(probe, "ABACADA"), 4);
    assert_int_equal(probe->sizes[0], 4);
    no_id_twice(probe);
    for (size_t i = 0; i < 7; i++)
        ops[i] = new_op(HAPAX_OP_READ, (uint8_t) "ABACADA"[i]);
    assert_int_equal(hapax_store_run(store, ops, 7), HAPAX_ERR_NONE);
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(ops[i].id.bytes[0], "ABACADA"[i]);
        assert_int_equal(ops[i].record.scope.ptr[0], "ABACADA"[i]);
    }
    hapax_store_close(store);
}

/* One that judges in order takes them together: that is what batches are for. */
CASE(a_serial_store_takes_an_id_many_times)
{
    struct hapax_store *store = open_store("probe:");

    assert_int_equal(run_ids((struct probe *)store, "ABAAC"), 1);
    hapax_store_close(store);
}

/* Over a parallel store, the ops on one id still act in the order in which they were given. */
CASE(order_per_id_is_kept_over_a_parallel_store)
{
    struct hapax_store *store = open_store("memory:");
    struct hapax_store_type parallel = *store->type;
    struct hapax_op ops[] = {new_op(HAPAX_OP_CLAIM, 1), new_op(HAPAX_OP_CLAIM, 2),
                             new_op(HAPAX_OP_COMPLETE, 1), new_op(HAPAX_OP_READ, 1),
                             new_op(HAPAX_OP_READ, 2)};

    parallel.serial = false;
    store->type = &parallel;
    assert_int_equal(hapax_store_run(store, ops, 5), HAPAX_ERR_NONE);
    assert_int_equal(ops[2].verdict, HAPAX_OK);
    assert_int_equal(ops[3].record.state, HAPAX_STATE_COMPLETED);
    assert_int_equal(ops[4].record.state, HAPAX_STATE_STARTED);
    hapax_store_close(store);
}

/* ---- open, check ---------------------------------------------------------------------- */

/* Whatever cannot be opened says why, and leaves nothing. */
CASE(what_cannot_be_opened_says_why)
{
    static const struct {
        const char *uri;
        enum hapax_error error;
        const char *text;
    } cases[] = {
        {NULL, HAPAX_ERR_INVALID, "URI"},
        {"", HAPAX_ERR_INVALID, "URI"},
        {"memory", HAPAX_ERR_INVALID, "\"memory\""},
        {":", HAPAX_ERR_UNSUPPORTED, "scheme"},
        {"mem:", HAPAX_ERR_UNSUPPORTED, "\"mem:\""},
        {"memoryx:", HAPAX_ERR_UNSUPPORTED, "\"memoryx:\""},
        {"rocksdb:/tmp/hapax-none", HAPAX_ERR_UNAVAILABLE, "nobody serves it"},
        {"memory:x", HAPAX_ERR_INVALID, "\"memory:x\""},
        {"probe:x", HAPAX_ERR_REFUSED, "\"probe:x\""},
    };

    hapax__store_add(&probe_type);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hapax_store *store = (struct hapax_store *)&cases;
        char text[HAPAX_TEXT_MAX];

        assert_int_equal(hapax_store_open(&store, cases[i].uri, text), cases[i].error);
        assert_null(store);
        assert_non_null(strstr(text, cases[i].text));
    }
    hapax_store_close(NULL);
}

static void note_say(void *arg, bool danger, const char *line)
{
    assert_int_not_equal(line[0], '\0');
    *(int *)arg += danger ? 10 : 1;
}

/* Advice is passed on, and what endangers outcomes is marked. */
CASE(check_passes_the_advice_on)
{
    struct hapax_store *store = open_store("probe:");
    int said = 0;

    assert_int_equal(hapax_store_check(store, note_say, &said), HAPAX_ERR_NONE);
    assert_int_equal(said, 1);
    hapax_store_close(store);
    store = open_store("memory:");
    said = 0;
    assert_int_equal(hapax_store_check(store, note_say, &said), HAPAX_ERR_NONE);
    assert_int_equal(said, 10);
    hapax_store_close(store);
}

/* ---- bind ---------------------------------------------------------------------------- */

/* A store is for the secret it was first used with, and for no other: none included. */
CASE(a_store_is_for_one_secret)
{
    const struct hapax_span secrets[] = {
        {NULL, 0}, hapax_str("one"), hapax_str("two"), hapax_str("one\n")};

    for (size_t first = 0; first < 4; first++) {
        struct hapax_store *store = open_store("memory:");

        assert_int_equal(hapax_store_bind(store, secrets[first]), HAPAX_ERR_NONE);
        for (size_t i = 0; i < 4; i++) {
            enum hapax_error error = hapax_store_bind(store, secrets[i]);

            assert_int_equal(error, i == first ? HAPAX_ERR_NONE : HAPAX_ERR_REFUSED);
            if (i != first)
                assert_non_null(strstr(hapax_store_text(store), "secret"));
        }
        hapax_store_close(store);
    }
}

/* ---- the switch ------------------------------------------------------------------------ */

static enum hapax__switch switch_of(struct hapax_store *store, const char *scope)
{
    struct hapax_op read = hapax__switch_read(hapax_str(scope));

    assert_int_equal(hapax_store_run(store, &read, 1), HAPAX_ERR_NONE);
    return hapax__switch_said(&read);
}

/* Each word takes the place of the one before, and each scope has its own; no word is ON. */
CASE(a_switch_is_what_was_said_last)
{
    struct hapax_store *store = open_store("memory:");
    const struct hapax_span keys = hapax_str(
        "k 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\nsealed-only\n");

    assert_int_equal(hapax_store_keys(store, keys), HAPAX_ERR_NONE); /* it is sealed nowhere */
    assert_int_equal(switch_of(store, NULL), HAPAX__SWITCH_ON);
    for (int i = 0; i < 6; i++) {
        enum hapax__switch word = (enum hapax__switch)(1 + i % 3);

        assert_int_equal(hapax__switch_set(store, hapax_str(NULL), word, hapax_str("zoe")),
                         HAPAX_ERR_NONE);
        assert_int_equal(switch_of(store, NULL), word);
        assert_int_equal(switch_of(store, "s"), HAPAX__SWITCH_ON);
    }
    assert_int_equal(hapax__switch_set(store, hapax_str("s"), HAPAX__SWITCH_OFF, hapax_str("zoe")),
                     HAPAX_ERR_NONE);
    assert_int_equal(switch_of(store, "s"), HAPAX__SWITCH_OFF);
    assert_int_equal(switch_of(store, NULL), HAPAX__SWITCH_ON);
    hapax_store_close(store);
}

static void set_switch(struct hapax_store *store, enum hapax__switch word)
{
    assert_int_equal(hapax__switch_set(store, hapax_str(NULL), word, hapax_str("zoe")),
                     HAPAX_ERR_NONE);
    assert_int_equal(switch_of(store, NULL), word);
}

static enum hapax__fault then_it_is_gone(void *arg, uint64_t number, const struct hapax_op *op)
{
    const enum hapax__fault *first = arg;

    (void)op;
    return number == 1 ? *first : HAPAX__FAIL_BEFORE;
}

/* With its reply lost, or with the reply and then the store: the word may stand, and does. */
CASE(a_word_that_may_have_been_heard_is_not_called_unheard)
{
    static const enum hapax__fault firsts[] = {HAPAX__LOSE_REPLY, HAPAX__NO_FAULT};

    for (size_t i = 0; i < 2; i++) {
        struct hapax_store *inner = open_store("memory:"), *store;
        enum hapax__fault first = firsts[i];
        struct hapax__plan plan;

        hapax__plan_init(&plan);
        assert_int_equal(hapax__faulty_wrap(&store, inner, &plan), HAPAX_ERR_NONE);
        set_switch(store, HAPAX__SWITCH_ON);
        hapax__plan_decide(&plan, then_it_is_gone, &first);
        assert_int_equal(
            hapax__switch_set(store, hapax_str(NULL), HAPAX__SWITCH_OFF, hapax_str("zoe")),
            HAPAX_ERR_INDETERMINATE);
        hapax__plan_set(&plan, HAPAX__NO_FAULT, 0, 0);
        assert_int_equal(switch_of(store, NULL), HAPAX__SWITCH_OFF);
        hapax_store_close(store);
        hapax__plan_release(&plan);
    }
}

/* What a door with plain rights can do with a switch's id: claim it, and complete it. */
static struct hapax_op claim_switch(uint8_t token)
{
    struct hapax_op op = hapax__switch_read(hapax_str(NULL));

    op.kind = HAPAX_OP_CLAIM;
    op.token.bytes[0] = token;
    op.lease_ms = 10000;
    op.retention_ms = HAPAX_FOREVER_MS;
    op.on_expired = HAPAX_EXPIRED_RERUN;
    return op;
}

static void claim_and_say(struct hapax_store *store, struct hapax_op *op, enum hapax__switch word)
{
    assert_int_equal(hapax_store_run(store, op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op->verdict, HAPAX_CLAIMED);
    op->kind = HAPAX_OP_COMPLETE;
    op->outcome.status = (int)word;
    assert_int_equal(hapax_store_run(store, op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op->verdict, HAPAX_OK);
}

/* A door may claim the record, and complete it with a word. No operator has said that word. */
CASE(only_an_operators_word_counts)
{
    struct hapax_store *store = open_store("memory:");
    struct hapax_op op = claim_switch(1);

    claim_and_say(store, &op, HAPAX__SWITCH_OFF);
    assert_int_equal(switch_of(store, NULL), HAPAX__SWITCH_ON);
    set_switch(store, HAPAX__SWITCH_SHADOW);
    hapax_store_close(store);
}

/* Returns in another microsecond: what is written in the same one counts as the operator's. */
static void resolve_switch(struct hapax_store *store, enum hapax_resolve as)
{
    struct hapax_op op = claim_switch(9), read = hapax__switch_read(hapax_str(NULL));

    op.kind = HAPAX_OP_RESOLVE;
    op.resolve = as;
    op.force = true;
    op.by = hapax_str("zoe");
    op.outcome.status = HAPAX__SWITCH_ON;
    assert_int_equal(hapax_store_run(store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_OK);
    do
        assert_int_equal(hapax_store_run(store, &read, 1), HAPAX_ERR_NONE);
    while (read.now_us <= op.now_us);
}

static void forget_switch(struct hapax_store *store)
{
    resolve_switch(store, HAPAX_RESOLVE_FORGET);
    assert_int_equal(switch_of(store, NULL), HAPAX__SWITCH_ON);
}

/* A claim after an operator's RESOLVE leaves in the record who that was. The door's word is not
 * that operator's, whether the claim was granted after a failure or by rerun_completed. Once the
 * word was said by its own command no claim is granted. */
CASE(a_claim_after_an_operators_word_says_nothing)
{
    struct hapax_store *store = open_store("memory:");
    struct hapax_op op = claim_switch(1);

    claim_and_say(store, &op, HAPAX__SWITCH_ON);
    resolve_switch(store, HAPAX_RESOLVE_FAIL);
    op = claim_switch(2);
    claim_and_say(store, &op, HAPAX__SWITCH_OFF);
    assert_int_equal(switch_of(store, NULL), HAPAX__SWITCH_ON);

    forget_switch(store);
    for (uint8_t token = 3; token < 5; token++) {
        op = claim_switch(token);
        op.rerun_completed = true;
        claim_and_say(store, &op, HAPAX__SWITCH_OFF);
        assert_int_equal(switch_of(store, NULL), HAPAX__SWITCH_ON);
        resolve_switch(store, HAPAX_RESOLVE_COMPLETE);
    }
    set_switch(store, HAPAX__SWITCH_SHADOW);
    op = claim_switch(5);
    op.rerun_completed = true;
    assert_int_equal(hapax_store_run(store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_int_equal(switch_of(store, NULL), HAPAX__SWITCH_SHADOW);
    hapax_store_close(store);
}

/* A record of another kind that a door has put under the id is replaced when a word is said: one
 * that a READ of the gates would not see, that could be claimed again, or that would expire. */
CASE(a_word_takes_the_place_of_another_record)
{
    for (int which = 0; which < 7; which++) {
        struct hapax_store *store = open_store("memory:");
        struct hapax_op op = claim_switch(1), read = hapax__switch_read(hapax_str(NULL));

        op.fingerprint.bytes[0] ^= which == 0;
        op.caller.bytes[0] ^= which == 1;
        op.rerun_completed = which == 2;
        op.retention_ms = which == 3 ? 1000 : HAPAX_FOREVER_MS;
        op.owner.bytes[0] = which == 4;
        op.scope = which == 5 ? hapax_str("shop") : op.scope;
        claim_and_say(store, &op, HAPAX__SWITCH_OFF);
        resolve_switch(store, HAPAX_RESOLVE_COMPLETE);
        set_switch(store, HAPAX__SWITCH_OFF);
        assert_int_equal(hapax_store_run(store, &read, 1), HAPAX_ERR_NONE);
        assert_true(hapax__is_switch(&read.record));
        assert_false(read.record.reruns);
        assert_int_equal(read.record.expires_us, 0);
        assert_int_equal(read.record.attempt, 1);
        hapax_store_close(store);
    }
}

/* The check value is an ordinary record, completed, that never expires. */
CASE(a_check_value_is_kept_for_ever)
{
    struct hapax_store *store = open_store("memory:");
    struct hapax_op list = new_op(HAPAX_OP_LIST, 0);

    assert_int_equal(hapax_store_bind(store, hapax_str("one")), HAPAX_ERR_NONE);
    list.scope = hapax_str("hapax");
    assert_int_equal(hapax_store_run(store, &list, 1), HAPAX_ERR_NONE);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.records[0].state, HAPAX_STATE_COMPLETED);
    assert_int_equal(list.records[0].expires_us, 0);
    hapax_store_close(store);
}

/* Whichever op of it fails: it is an error, a repeat succeeds, and no other secret slips in. */
CASE(a_failure_while_binding_lets_no_other_secret_in)
{
    static const enum hapax__fault faults[] = {HAPAX__FAIL_BEFORE, HAPAX__LOSE_OP,
                                               HAPAX__LOSE_REPLY};

    for (size_t i = 0; i < 3; i++)
        for (uint64_t n = 1; n <= 2; n++) {
            struct hapax_store *inner = open_store("memory:"), *store;
            struct hapax__plan plan;
            enum hapax_error error;

            hapax__plan_init(&plan);
            assert_int_equal(hapax__faulty_wrap(&store, inner, &plan), HAPAX_ERR_NONE);
            hapax__plan_set(&plan, faults[i], n, 1);
            error = hapax_store_bind(store, hapax_str("one"));
            assert_int_equal(error, i == 0 ? HAPAX_ERR_UNAVAILABLE : HAPAX_ERR_INDETERMINATE);
            assert_string_not_equal(hapax_store_text(store), "");
            assert_int_equal(hapax_store_bind(store, hapax_str("one")), HAPAX_ERR_NONE);
            assert_int_equal(hapax_store_bind(store, hapax_str("two")), HAPAX_ERR_REFUSED);
            hapax_store_close(store);
            hapax__plan_release(&plan);
        }
}
