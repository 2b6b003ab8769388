/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper's client and server together: a store behind a keeper answers as the store itself
 * does, to clients of both versions, to many at once, to the keeper's end, and whichever allocation
 * fails. /
 */
#include "keeper_bed.h"

#include "../cases.h"
#include "../unit/oom.h"
#include "../unit/record_diff.h"
#include "store/keeper/connection.h"
#include "store/types.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* The version that the clients greet with. */
static uint16_t spoken = HAPAX__FRAME_VERSION;

void __real_hapax__frame_put_hello(struct hapax__writer *w, const struct hapax__hello *hello);
void __wrap_hapax__frame_put_hello(struct hapax__writer *w, const struct hapax__hello *hello);

void __wrap_hapax__frame_put_hello(struct hapax__writer *w, const struct hapax__hello *hello)
{
    struct hapax__hello of_version = *hello;

    of_version.version = spoken;
    __real_hapax__frame_put_hello(w, &of_version);
}

/* Of all connections. */
static atomic_uint events_taken;

void __real_hapax__connection_event(struct hapax__keeper_connection *c, uint32_t events);
void __wrap_hapax__connection_event(struct hapax__keeper_connection *c, uint32_t events);

void __wrap_hapax__connection_event(struct hapax__keeper_connection *c, uint32_t events)
{
    __real_hapax__connection_event(c, events);
    atomic_fetch_add(&events_taken, 1);
}

static enum hapax_error run_one(struct hapax_store *store, struct hapax_op *op)
{
    return hapax_store_run(store, op, 1);
}

static struct hapax_op outcome_op(enum hapax_op_kind kind, unsigned n, unsigned who,
                                  struct hapax_span body)
{
    struct hapax_op op = bed_op(kind, n, who);

    op.outcome = (struct hapax_outcome){201, true, hapax_str("A: b\r\n"), body};
    return op;
}

/* ---- the same answers ---------------------------------------------------------------- */

static atomic_int_fast64_t clock_us = 1000000;

static int64_t read_clock(void *arg)
{
    (void)arg;
    return clock_us;
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static struct hapax_op random_op(uint64_t *seed)
{
    static const char *const scopes[] = {"a", "orders", "a scope that is somewhat longer"};
    static const uint8_t bytes[5000];
    enum hapax_op_kind kind = (enum hapax_op_kind)(1 + next(seed) % HAPAX_OP_RESOLVE);
    struct hapax_op op = bed_op(kind, (unsigned)(next(seed) % 12), 1 + (unsigned)(next(seed) % 4));

    op.fingerprint.bytes[3] = next(seed) % 8 == 0;
    op.caller.bytes[3] = next(seed) % 8 == 0;
    op.lease_ms = 1 + (int64_t)(next(seed) % 40);
    op.retention_ms = next(seed) % 5 == 0 ? HAPAX_FOREVER_MS : 1 + (int64_t)(next(seed) % 400);
    op.on_expired = (enum hapax_on_expired)(1 + next(seed) % 3);
    op.attempts_max = (uint32_t)(next(seed) % 4);
    op.rerun_completed = next(seed) % 4 == 0;
    op.reconciled = next(seed) % 2;
    op.ran = next(seed) % 2;
    op.as_unknown = next(seed) % 3 == 0;
    op.died = op.ran && op.as_unknown && next(seed) % 2;
    op.force = next(seed) % 2;
    op.kept_ms = next(seed) % 4 == 0 ? 1 + (int64_t)(next(seed) % 400) : 0;
    op.tombstone_ms = next(seed) % 4 == 0 ? 1 + (int64_t)(next(seed) % 400) : 0;
    op.says_kept = next(seed) % 4 == 0;
    op.resolve = (enum hapax_resolve)(1 + next(seed) % 3);
    op.if_attempt = (uint32_t)(next(seed) % 3);
    op.if_updated_us = next(seed) % 4 == 0;
    op.by = hapax_str(next(seed) % 2 ? "ada" : "");
    op.outcome.status = (int)(next(seed) % 1000);
    op.outcome.body_kept = next(seed) % 2;
    op.outcome.headers = hapax_str(next(seed) % 2 ? "A: b\r\n" : "");
    op.outcome.body = (struct hapax_span){bytes, next(seed) % sizeof(bytes)};
    op.states = (uint32_t)(next(seed) % 16) << 1;
    op.older_ms = (int64_t)(next(seed) % 20);
    op.limit = (uint32_t)(next(seed) % 6);
    op.cursor.bytes[0] = (uint8_t)(next(seed) % 12);
    op.scope = hapax_str(scopes[next(seed) % 3]);
    if (kind == HAPAX_OP_LIST && next(seed) % 2)
        op.scope.len = 0;
    return op;
}

static void same_answer(const struct hapax_op *a, const struct hapax_op *b)
{
    assert_int_equal(a->verdict, b->verdict);
    assert_int_equal(a->error, b->error);
    assert_int_equal(a->differs, b->differs);
    assert_int_equal(a->now_us, b->now_us);
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->purged, b->purged);
    assert_int_equal(a->expired_claims, b->expired_claims);
    assert_int_equal(a->more, b->more);
    assert_memory_equal(&a->next_cursor, &b->next_cursor, sizeof(a->next_cursor));
    if (record_diff(&a->record, &b->record))
        fail_msg("%s of a record differs", record_diff(&a->record, &b->record));
    for (uint32_t i = 0; i < a->count; i++)
        if (record_diff(&a->records[i], &b->records[i]))
            fail_msg("%s of a listed record differs", record_diff(&a->records[i], &b->records[i]));
}

/* Runs ops here and directly. What cannot be asked in the client's version is not run. */
static void run_both(struct hapax_store *client, struct hapax_store *model, struct hapax_op *ops,
                     size_t n, unsigned seen[HAPAX_ABSENT + 1])
{
    static struct hapax_op direct[HAPAX_BATCH_MAX];
    size_t known = 0;

    for (size_t i = 0; i < n; i++)
        if (hapax__frame_op_version(&ops[i]) <= spoken)
            direct[known++] = ops[i];
    assert_int_equal(hapax_store_run(client, ops, n),
                     known == n ? HAPAX_ERR_NONE : HAPAX_ERR_UNSUPPORTED);
    assert_true(known == 0 || hapax_store_run(model, direct, known) == HAPAX_ERR_NONE);
    known = 0;
    for (size_t i = 0; i < n; i++) {
        if (hapax__frame_op_version(&ops[i]) <= spoken)
            same_answer(&ops[i], &direct[known++]);
        else
            assert_int_equal(ops[i].error, HAPAX_ERR_UNSUPPORTED);
        seen[ops[i].verdict]++;
    }
}

/* Random histories, in batches: every answered field is what the store gives without a keeper. */
static void answer_as_the_store(uint16_t version)
{
    enum { ROUNDS = 1500, OPS = 40 };
    static struct hapax_op ops[OPS];
    struct hapax_store *model, *client;
    char text[HAPAX_TEXT_MAX];
    unsigned seen[HAPAX_ABSENT + 1] = {0};
    uint64_t seed = 7;
    struct bed bed;

    spoken = version;
    bed_open(&bed, NULL);
    assert_int_equal(hapax_store_open(&model, "memory:", text), HAPAX_ERR_NONE);
    hapax__memory_clock(model, read_clock, NULL);
    hapax__memory_clock(bed.kept, read_clock, NULL);
    client = bed_client(&bed, "");
    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t n = 1 + next(&seed) % OPS;

        clock_us += (int64_t)(next(&seed) % 30000);
        for (size_t i = 0; i < n; i++)
            ops[i] = random_op(&seed);
        run_both(client, model, ops, n, seen);
    }
    assert_int_equal(seen[HAPAX_NO_VERDICT] > 0, version < HAPAX__FRAME_VERSION);
    for (unsigned verdict = HAPAX_CLAIMED; verdict <= HAPAX_ABSENT; verdict++)
        assert_true(seen[verdict] > 0);
    hapax_store_close(client);
    hapax_store_close(model);
    bed_close(&bed);
    spoken = HAPAX__FRAME_VERSION;
}

CASE(every_op_answers_as_the_store_that_is_held)
{
    answer_as_the_store(HAPAX__FRAME_VERSION);
}

/* A client of the version before is served as well. */
CASE(a_client_of_the_version_before_is_answered_as_well) /* promise 31 */
{
    answer_as_the_store(HAPAX__FRAME_OLDEST);
}

/* A batch whose requests, and then whose answers, are longer than any frame. */
CASE(bodies_of_any_size_go_both_ways)
{
    enum { BODIES = 4, SMALL = 2000 };
    static struct hapax_op ops[SMALL + BODIES];
    uint8_t *body = malloc(HAPAX_BODY_MAX);
    struct hapax_store *client;
    struct bed bed;

    assert_non_null(body);
    for (size_t i = 0; i < HAPAX_BODY_MAX; i++)
        body[i] = (uint8_t)(i * 2654435761u >> 13);
    bed_open(&bed, NULL);
    client = bed_client(&bed, "?timeout=30s");
    for (unsigned i = 0; i < SMALL + BODIES; i++)
        ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
    assert_int_equal(hapax_store_run(client, ops, SMALL + BODIES), HAPAX_ERR_NONE);
    for (unsigned i = 0; i < BODIES; i++)
        ops[i] = outcome_op(HAPAX_OP_COMPLETE, i, 1, (struct hapax_span){body, HAPAX_BODY_MAX - i});
    assert_int_equal(hapax_store_run(client, ops, BODIES), HAPAX_ERR_NONE);
    for (unsigned i = 0; i < SMALL + BODIES; i++)
        ops[i] = bed_op(HAPAX_OP_READ, i, 1);
    assert_int_equal(hapax_store_run(client, ops, SMALL + BODIES), HAPAX_ERR_NONE);
    for (unsigned i = 0; i < SMALL + BODIES; i++) {
        assert_int_equal(ops[i].verdict, HAPAX_FOUND);
        assert_int_equal(ops[i].record.outcome.body.len, i < BODIES ? HAPAX_BODY_MAX - i : 0);
        assert_memory_equal(&ops[i].record.id, &ops[i].id, sizeof(ops[i].id));
    }
    for (unsigned i = 0; i < BODIES; i++)
        assert_int_equal(memcmp(ops[i].record.outcome.body.ptr, body, HAPAX_BODY_MAX - i), 0);
    hapax_store_close(client);
    free(body);
    bed_close(&bed);
}

/* What the store refuses is refused with its error and its words; the ops around it are
 * answered. */
CASE(a_stores_own_errors_come_through)
{
    struct hapax_op ops[3];
    struct hapax_store *client;
    struct bed bed;

    bed_open(&bed, NULL);
    client = bed_client(&bed, "");
    for (unsigned i = 0; i < 3; i++)
        ops[i] = bed_op(HAPAX_OP_CLAIM, i, 1);
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 2, 1);
    assert_int_equal(hapax_store_run(client, ops, 3), HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(ops[0].verdict, HAPAX_CLAIMED);
    assert_int_equal(ops[1].error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(ops[2].verdict, HAPAX_CLAIMED);
    assert_non_null(strstr(hapax_store_text(client), bed.uri));
    hapax__plan_set(&bed.plan, HAPAX__LOSE_REPLY, 1, 1);
    assert_int_equal(run_one(client, &ops[1]), HAPAX_ERR_INDETERMINATE);
    assert_int_equal(run_one(client, &ops[1]), HAPAX_ERR_NONE);
    assert_int_equal(ops[1].verdict, HAPAX_CLAIMED);
    assert_int_equal(ops[1].record.attempt, 1);
    hapax_store_close(client);
    bed_close(&bed);
}

struct advice {
    unsigned lines, dangers;
    char text[1024];
};

static void note(void *arg, bool danger, const char *line)
{
    struct advice *advice = arg;
    size_t len = strlen(advice->text);

    advice->lines++;
    advice->dangers += danger;
    snprintf(advice->text + len, sizeof(advice->text) - len, "%s\n", line);
}

/* Who asks a keeper for advice hears who it is, and the advice of the store it holds. */
CASE(a_check_says_who_serves_what)
{
    struct advice advice = {0};
    struct hapax_store *client;
    struct bed bed;
    char pid[64];

    bed_open(&bed, NULL);
    client = bed_client(&bed, "");
    assert_int_equal(hapax_store_check(client, note, &advice), HAPAX_ERR_NONE);
    snprintf(pid, sizeof(pid), "keeper of process %ld serves a ", (long)getpid());
    assert_non_null(strstr(advice.text, pid));
    assert_non_null(strstr(advice.text, "protocol 4, 1 clients, 0 ops in hand"));
    assert_non_null(strstr(advice.text, "a memory store is gone with its process"));
    assert_true(advice.dangers >= 1);
    hapax__keeper_stop(bed.server);
    bed_serve(&bed, NULL);
    assert_int_equal(hapax_store_check(client, note, &advice), HAPAX_ERR_NONE);
    hapax__keeper_stop(bed.server);
    bed.server = NULL;
    assert_int_equal(hapax_store_check(client, note, &advice), HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(hapax_store_text(client), "there is no such file"));
    hapax_store_close(client);
    bed_close(&bed);
}

/* Who asks in the version before is told which program is to be exchanged. */
CASE(a_check_tells_of_an_older_keeper)
{
    struct advice advice = {0};
    struct hapax_store *client;
    struct bed bed;

    bed_open(&bed, NULL);
    spoken = HAPAX__FRAME_OLDEST;
    client = bed_client(&bed, "");
    spoken = HAPAX__FRAME_VERSION;
    assert_int_equal(hapax_store_check(client, note, &advice), HAPAX_ERR_NONE);
    assert_non_null(strstr(advice.text, "protocol 3, 1 clients"));
    assert_non_null(strstr(advice.text, "this program speaks protocol 4, too: restart the keeper"));
    hapax_store_close(client);
    bed_close(&bed);
}

/* A program that opens no database itself reaches whoever holds it, by the same URI. */
CASE(a_held_path_leads_to_its_keeper)
{
    struct hapax__keeper_options options = {0};
    struct hapax_store *client;
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    char text[HAPAX_TEXT_MAX], uri[64];
    struct bed bed;

    bed_open(&bed, &options);
    snprintf(uri, sizeof(uri), "rocksdb:%s?sync=off", bed.folder);
    must(hapax_store_open(&client, uri, text) == HAPAX_ERR_NONE);
    must(hapax_store_run(client, &op, 1) == HAPAX_ERR_NONE && op.verdict == HAPAX_CLAIMED);
    hapax_store_close(client);
    bed_close(&bed);
}

/* A URI says no more than it may. */
CASE(a_wrong_uri_is_refused)
{
    static const char *const wrong[] = {"unix:", "unix:/tmp/x?mode=1",
                                        "unix:/tmp/x?timeout=", "unix:/tmp/x?timeout=0",
                                        "unix:/tmp/x?timeout=3parsecs"};
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(hapax_store_open(&store, wrong[i], text), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_store_open(&store, "unix:/tmp/hapax-nobody-here?timeout=1s", text),
                     HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(text, "there is no such file"));
}

/* ---- the end of a keeper ------------------------------------------------------------- */

static void *stop_main(void *arg)
{
    hapax__keeper_stop(arg);
    return NULL;
}

struct caller {
    const struct bed *bed;
    unsigned who;
    unsigned won;
    struct hapax_op op;
    pthread_t thread;
};

static void *call_main(void *arg)
{
    struct caller *caller = arg;
    struct hapax_store *client = bed_client(caller->bed, "");

    run_one(client, &caller->op);
    hapax_store_close(client);
    return NULL;
}

/* Who asked before the end is answered; who asks after it finds nobody. */
CASE(stop_answers_what_is_in_hand)
{
    struct caller caller = {.op = bed_op(HAPAX_OP_CLAIM, 1, 1)};
    struct bed bed;
    pthread_t stopper;

    bed_open(&bed, NULL);
    caller.bed = &bed;
    hapax__plan_set(&bed.plan, HAPAX__DELAY, 1, 1);
    assert_int_equal(pthread_create(&caller.thread, NULL, call_main, &caller), 0);
    assert_true(hapax__plan_wait(&bed.plan, 1, WAIT_MS));
    assert_int_equal(pthread_create(&stopper, NULL, stop_main, bed.server), 0);
    AWAIT(access(bed.path, F_OK) != 0);
    hapax__plan_go(&bed.plan);
    pthread_join(caller.thread, NULL);
    pthread_join(stopper, NULL);
    bed.server = NULL;
    assert_int_equal(caller.op.verdict, HAPAX_CLAIMED);
    bed_close(&bed);
}

/* A client sends on while its op is in hand and the keeper stops: the op is answered, and what
 * comes after the end is not read. */
CASE(stop_reads_nothing_more)
{
    static const uint8_t body[100000];
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, 1, 1);
    struct hapax_op late =
        outcome_op(HAPAX_OP_COMPLETE, 1, 1, (struct hapax_span){body, sizeof(body)});
    struct hapax_span first = peer_request(1, &op, 1), second = peer_request(2, &late, 1);
    struct peer_frame *frames = NULL;
    struct bed bed;
    pthread_t stopper;
    unsigned taken;
    int fd;

    bed_open(&bed, NULL);
    hapax__plan_set(&bed.plan, HAPAX__DELAY, 1, 1);
    fd = peer_greet(bed.path);
    assert_true(peer_send(fd, first.ptr, first.len));
    assert_true(hapax__plan_wait(&bed.plan, 1, WAIT_MS));
    assert_int_equal(pthread_create(&stopper, NULL, stop_main, bed.server), 0);
    AWAIT(access(bed.path, F_OK) != 0);
    taken = atomic_load(&events_taken);
    assert_true(peer_send(fd, second.ptr, second.len));
    AWAIT(atomic_load(&events_taken) > taken);
    hapax__plan_go(&bed.plan);
    assert_true(peer_answers(fd, 1, &op, 1, &frames));
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    peer_ends(fd);
    pthread_join(stopper, NULL);
    bed.server = NULL;
    peer_free(frames);
    free((void *)(uintptr_t)first.ptr);
    free((void *)(uintptr_t)second.ptr);
    bed_close(&bed);
}

/* ---- many ---------------------------------------------------------------------------- */

static void *race_main(void *arg)
{
    struct caller *caller = arg;
    struct hapax_store *client = bed_client(caller->bed, "");

    for (unsigned key = 0; key < 200; key++) {
        struct hapax_op op = bed_op(HAPAX_OP_CLAIM, key, caller->who);

        must(run_one(client, &op) == HAPAX_ERR_NONE);
        must(op.verdict == HAPAX_CLAIMED || op.verdict == HAPAX_IN_FLIGHT ||
             op.verdict == HAPAX_COMPLETED);
        if (op.verdict != HAPAX_CLAIMED)
            continue;
        caller->won++;
        op = outcome_op(HAPAX_OP_COMPLETE, key, caller->who, hapax_str("once"));
        must(run_one(client, &op) == HAPAX_ERR_NONE && op.verdict == HAPAX_OK);
    }
    hapax_store_close(client);
    return NULL;
}

/* Clients with a connection each race on every key: each has one winner. */
CASE(every_key_has_one_winner)
{
    enum { CALLERS = 32 };
    static struct caller callers[CALLERS];
    unsigned won = 0;
    struct bed bed;

    bed_open(&bed, NULL);
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.bed = &bed, .who = i + 1};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, race_main, &callers[i]), 0);
    }
    for (unsigned i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        won += callers[i].won;
    }
    assert_int_equal(won, 200);
    bed_close(&bed);
}

/* ---- out of memory ------------------------------------------------------------------- */

/* One operation from the first connect to the end, with the n-th allocation failing. */
static void one_operation(struct bed *bed, unsigned n)
{
    struct hapax__keeper_options options = {.path = bed->path};
    char text[HAPAX_TEXT_MAX];
    struct hapax_op op = bed_op(HAPAX_OP_CLAIM, n, 1), list = bed_op(HAPAX_OP_LIST, 0, 0);
    struct hapax__keeper_server *server;
    struct hapax_store *held = NULL, *client = NULL;
    uint8_t body[100000] = {0};

    if (hapax_store_open(&held, "memory:", text) != HAPAX_ERR_NONE)
        return;
    if (hapax__keeper_serve(&server, held, &options, text) != HAPAX_ERR_NONE) {
        hapax_store_close(held);
        return;
    }
    if (hapax_store_open(&client, bed->uri, text) == HAPAX_ERR_NONE) {
        run_one(client, &op);
        if (op.verdict == HAPAX_NO_VERDICT)
            while (run_one(client, &op) != HAPAX_ERR_NONE)
                must(op.error != HAPAX_ERR_INVALID && op.error != HAPAX_ERR_CORRUPT);
        must(op.verdict == HAPAX_CLAIMED && op.record.attempt == 1);
        op = outcome_op(HAPAX_OP_COMPLETE, n, 1, (struct hapax_span){body, sizeof(body)});
        while (run_one(client, &op) != HAPAX_ERR_NONE)
            must(op.error != HAPAX_ERR_INVALID && op.error != HAPAX_ERR_CORRUPT);
        must(op.verdict == HAPAX_OK && op.record.outcome.body.len == sizeof(body));
        while (run_one(client, &list) != HAPAX_ERR_NONE)
            must(list.error != HAPAX_ERR_INVALID && list.error != HAPAX_ERR_CORRUPT);
        must(list.verdict == HAPAX_FOUND && list.count == 1);
        hapax_store_close(client);
    }
    hapax__keeper_stop(server);
}

/* Whichever allocation fails, on whichever side: an op is repeated until it is answered, and the
 * answer is the one it had without the failure. */
CASE(no_failed_allocation_changes_an_answer)
{
    struct bed bed;
    unsigned n;

    bed_open(&bed, NULL);
    hapax__keeper_stop(bed.server);
    bed.server = NULL;
    for (n = 1;; n++) {
        int64_t live;

        oom_fail_at(0, false);
        live = oom_live();
        oom_fail_at(n, false);
        one_operation(&bed, n);
        if (oom_count() < n)
            break;
        assert_int_equal(oom_live(), live);
    }
    oom_fail_at(0, false);
    assert_true(n > 15);
    bed_close(&bed);
}
