/* SPDX-License-Identifier: Apache-2.0
 *
 * What Redis in front of PostgreSQL is worth, and what it costs. The hybrid store and its own
 * PostgreSQL alone take turns at three works:
 *
 *     hot      1,000 callers ask at once for one key that is in flight, over 16 handles. Measured
 *              is the time from the beginning to each answer
 *     replay   95 of 100 operations repeat one of 1,000 that are completed; the others are new
 *     unique   batches of 64 operations under new keys, claimed and completed, over 4 handles
 *
 * Beside each stand the transactions that PostgreSQL has counted. Before a work begins each handle
 * is calm (docs/design.md, section 6). Exits 1 if the hybrid's hot p99 is over 0.3 of PostgreSQL's,
 * or if unique keys are under 0.75 of its throughput. TOLERANCE of either is allowed, for a machine
 * that does other work at the same time.
 *
 *     hybrid_bench URI [--seconds S]          (with.py hybrid build/bench/hybrid_bench '{uri}')
 */
#include <hapax/store.h>

#include "bench.h"

#include <libpq-fe.h>
#include <pthread.h>
#include <unistd.h>

#define HANDLES    16u
#define CALLERS    1000u
#define HOT_ROUNDS 4u /* in a turn */
#define TURNS      8u
#define REPLAYS    1000u
#define LANES      4u /* of processes that gather what many callers ask */
#define BATCH      64u
#define BODY_SIZE  300u
#define TIMES_MAX  400000u
#define WARM                                                                                       \
    5u /* batches of unique keys before a work: more than CALM_CLAIMS of src/store/hybrid/store.c */
#define HOT_MAX    0.3
#define UNIQUE_MIN 0.75
#define TOLERANCE  0.05

enum work { HOT, REPLAY, UNIQUE, WORKS };

struct side {
    const char *name;
    const char *uri;
    struct hapax_store *stores[HANDLES];
    struct result {
        int64_t *times;
        atomic_uint count;
        int64_t us;
        int64_t p99s[HOT_ROUNDS * TURNS]; /* HOT: of each round */
        unsigned rounds;
        double rates[TURNS]; /* of each turn */
        unsigned turns;
        long long statements;
    } results[WORKS];
};

struct turn {
    struct side *side;
    enum work work;
    int64_t begin_us, end_us;
    struct hapax_id hot;
    atomic_uint next;
};

struct worker {
    struct turn *turn;
    unsigned handle;
};

static const char *postgres_uri;
static atomic_ullong counter;
static uint8_t body[BODY_SIZE];
static struct hapax_id completed[REPLAYS];

static struct hapax_op claim_of(const struct hapax_id *id)
{
    struct hapax_op op = {.kind = HAPAX_OP_CLAIM,
                          .id = *id,
                          .scope = hapax_str("bench"),
                          .lease_ms = 30000,
                          .retention_ms = 3600000,
                          .on_expired = HAPAX_EXPIRED_RERUN};

    draw(&counter, op.token.bytes, sizeof(op.token.bytes));
    return op;
}

static void to_complete(struct hapax_op *op)
{
    op->kind = HAPAX_OP_COMPLETE;
    op->outcome = (struct hapax_outcome){200, true, {NULL, 0}, {body, BODY_SIZE}};
}

static void run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    if (hapax_store_run(store, ops, n) != HAPAX_ERR_NONE)
        die("run", hapax_store_text(store));
}

static void expect(const struct hapax_op *op, enum hapax_verdict verdict)
{
    if (op->verdict != verdict)
        die("verdict", hapax_verdict_name(op->verdict));
}

static void note(struct turn *turn, int64_t us)
{
    struct result *result = &turn->side->results[turn->work];
    unsigned at = atomic_fetch_add(&result->count, 1);

    if (at < TIMES_MAX)
        result->times[at] = us;
}

/* ---- the works --------------------------------------------------------------------- */

/* Each caller has waited since the beginning. */
static void work_hot(struct turn *turn, struct hapax_store *store)
{
    while (atomic_fetch_add(&turn->next, 1) < CALLERS) {
        struct hapax_op op = claim_of(&turn->hot);

        run(store, &op, 1);
        expect(&op, HAPAX_IN_FLIGHT);
        note(turn, now_us() - turn->begin_us);
    }
}

static void run_unique(struct hapax_store *store, size_t n)
{
    struct hapax_op ops[BATCH];
    struct hapax_id id;

    for (size_t i = 0; i < n; i++) {
        draw(&counter, id.bytes, sizeof(id.bytes));
        ops[i] = claim_of(&id);
    }
    run(store, ops, n);
    for (size_t i = 0; i < n; i++) {
        expect(&ops[i], HAPAX_CLAIMED);
        to_complete(&ops[i]);
    }
    run(store, ops, n);
}

static void work_replay(struct turn *turn, struct hapax_store *store)
{
    while (now_us() < turn->end_us) {
        int64_t begin_us = now_us();

        if (random_number(&counter) % 100 < 95) {
            struct hapax_op op = claim_of(&completed[random_number(&counter) % REPLAYS]);

            run(store, &op, 1);
            expect(&op, HAPAX_COMPLETED);
        } else {
            run_unique(store, 1);
        }
        note(turn, now_us() - begin_us);
    }
}

static void work_unique(struct turn *turn, struct hapax_store *store)
{
    while (now_us() < turn->end_us) {
        int64_t begin_us = now_us();

        run_unique(store, BATCH);
        note(turn, now_us() - begin_us);
    }
}

static void *work(void *arg)
{
    static void (*const works[WORKS])(struct turn *, struct hapax_store *) = {work_hot, work_replay,
                                                                              work_unique};
    struct worker *worker = arg;

    works[worker->turn->work](worker->turn, worker->turn->side->stores[worker->handle]);
    return NULL;
}

/* ---- turns ------------------------------------------------------------------------- */

static long long number_of(const char *statement)
{
    PGconn *conn = PQconnectdb(postgres_uri);
    PGresult *rows = PQexec(conn, statement);
    long long number;

    if (PQntuples(rows) != 1)
        die(statement, PQerrorMessage(conn));
    number = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
    PQclear(rows);
    PQfinish(conn);
    return number;
}

/* What PostgreSQL has committed in this database. Backends tell it when they end, at the latest. */
static long long transactions(void)
{
    while (number_of("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                     "AND pid <> pg_backend_pid()") > 0)
        usleep(5000);
    return number_of("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()");
}

static void run_threads(struct turn *turn, unsigned handles)
{
    pthread_t threads[HANDLES];
    struct worker workers[HANDLES];

    turn->begin_us = now_us();
    for (unsigned i = 0; i < handles; i++) {
        workers[i] = (struct worker){turn, i};
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            die("thread", "not started");
    }
    for (unsigned i = 0; i < handles; i++)
        pthread_join(threads[i], NULL);
    turn->side->results[turn->work].us += now_us() - turn->begin_us;
}

/* The last CALLERS times are those of the round that has just ended. */
static void note_round(struct result *result)
{
    int64_t *times = result->times + result->count - CALLERS;

    qsort(times, CALLERS, sizeof(*times), by_size);
    result->p99s[result->rounds++] = times[CALLERS * 99 / 100];
}

/* Of all rounds the median: what else runs on the machine does not count. */
static double hot_p99(struct side *side)
{
    struct result *result = &side->results[HOT];

    qsort(result->p99s, result->rounds, sizeof(result->p99s[0]), by_size);
    return (double)result->p99s[result->rounds / 2] / 1000;
}

static void open_handles(struct side *side)
{
    char text[HAPAX_TEXT_MAX];

    for (unsigned i = 0; i < HANDLES; i++) {
        if (hapax_store_open(&side->stores[i], side->uri, text) != HAPAX_ERR_NONE)
            die("open", text);
        for (unsigned warm = 0; warm < WARM; warm++)
            run_unique(side->stores[i], BATCH);
    }
}

static void close_handles(struct side *side)
{
    for (unsigned i = 0; i < HANDLES; i++)
        hapax_store_close(side->stores[i]);
}

/* Some of the counted transactions are not the work's: one or two of each handle of a hybrid, the
 * winner's of each hot key, a few of this program's own. Those of the warm-up are not counted. */
static void take_turn(struct side *side, enum work work_kind, double seconds)
{
    struct turn turn = {.side = side, .work = work_kind};
    struct result *result = &side->results[work_kind];
    unsigned count = result->count;
    int64_t us = result->us;
    long long before = transactions();

    open_handles(side);
    turn.end_us = now_us() + (int64_t)(seconds * 1e6);
    for (unsigned round = 0; round < (work_kind == HOT ? HOT_ROUNDS : 1); round++) {
        struct hapax_op op;

        if (work_kind == HOT) {
            draw(&counter, turn.hot.bytes, sizeof(turn.hot.bytes));
            op = claim_of(&turn.hot);
            run(side->stores[0], &op, 1);
            expect(&op, HAPAX_CLAIMED);
            atomic_store(&turn.next, 0);
        }
        run_threads(&turn, work_kind == UNIQUE ? LANES : HANDLES);
        if (work_kind == HOT)
            note_round(result);
    }
    result->rates[result->turns++] = (double)(result->count - count) / (double)(result->us - us);
    close_handles(side);
    result->statements += transactions() - before - (long long)(2 * WARM * HANDLES);
}

/* Servers of tests do not wait for the disk, and nobody runs one like that. */
static void sync_disk(void)
{
    PGconn *conn = PQconnectdb(postgres_uri);

    PQclear(PQexec(conn, "ALTER SYSTEM SET fsync = on"));
    PQclear(PQexec(conn, "SELECT pg_reload_conf()"));
    PQfinish(conn);
    usleep(200000);
    if (number_of("SELECT (current_setting('fsync') = 'on')::int") != 1)
        die("fsync", "it stays off");
}

static void complete_replays(struct side *hybrid)
{
    open_handles(hybrid);
    for (unsigned i = 0; i < REPLAYS; i++) {
        struct hapax_op op;

        draw(&counter, completed[i].bytes, sizeof(completed[i].bytes));
        op = claim_of(&completed[i]);
        run(hybrid->stores[0], &op, 1);
        to_complete(&op);
        run(hybrid->stores[0], &op, 1);
    }
    close_handles(hybrid);
}

/* ---- the comparison ---------------------------------------------------------------- */

static double at(const struct result *result, double part)
{
    unsigned count = result->count < TIMES_MAX ? result->count : TIMES_MAX;

    return count > 0 ? (double)result->times[(unsigned)((double)(count - 1) * part)] / 1000 : 0;
}

static double per_second(const struct result *result)
{
    return (double)result->count * 1e6 / (double)result->us;
}

static void print(struct side *side)
{
    static const char *const names[WORKS] = {"hot", "replay", "unique"};

    for (enum work w = 0; w < WORKS; w++) {
        struct result *result = &side->results[w];
        unsigned count = result->count < TIMES_MAX ? result->count : TIMES_MAX;

        qsort(result->times, count, sizeof(*result->times), by_size);
        printf("%-6s %-8s %8.0f /s  p50 %7.2f ms  p99 %7.2f ms  %7lld transactions for %u\n",
               names[w], side->name, per_second(result) * (w == UNIQUE ? BATCH : 1),
               at(result, 0.5), at(result, 0.99), result->statements,
               (unsigned)result->count * (w == UNIQUE ? BATCH : 1));
    }
}

/* Of turns that follow each other, and of these the median. */
static double unique_ratio(const struct side *postgres, const struct side *hybrid)
{
    double ratios[TURNS];

    for (unsigned i = 0; i < TURNS; i++)
        ratios[i] = hybrid->results[UNIQUE].rates[i] / postgres->results[UNIQUE].rates[i];
    qsort(ratios, TURNS, sizeof(ratios[0]), by_value);
    return ratios[TURNS / 2];
}

int main(int argc, char **argv)
{
    double seconds = argc == 4 && strcmp(argv[2], "--seconds") == 0 ? strtod(argv[3], NULL) : 12;
    struct side sides[] = {{.name = "postgres"}, {.name = "hybrid"}};
    double hot, unique;

    if (argc < 2 || !strstr(argv[1], "+postgres"))
        die("usage", "hybrid_bench hybrid:… [--seconds S]");
    counter = (uint64_t)now_us();
    draw(&counter, body, 296);
    postgres_uri = strstr(argv[1], "+postgres") + 1;
    sides[0].uri = postgres_uri;
    sides[1].uri = argv[1];
    for (unsigned s = 0; s < 2; s++)
        for (enum work w = 0; w < WORKS; w++)
            if (!(sides[s].results[w].times = malloc(TIMES_MAX * sizeof(int64_t))))
                die("memory", "none");
    sync_disk();
    complete_replays(&sides[1]);
    for (unsigned turn = 0; turn < TURNS; turn++)
        for (enum work w = 0; w < WORKS; w++)
            for (unsigned s = 0; s < 2; s++)
                take_turn(&sides[s], w, seconds / (4 * TURNS));
    for (unsigned s = 0; s < 2; s++)
        print(&sides[s]);
    hot = hot_p99(&sides[1]) / hot_p99(&sides[0]);
    unique = unique_ratio(&sides[0], &sides[1]);
    printf("hot p99 of a round, %.2f and %.2f ms: hybrid/postgres %.2f (at most %.2f); "
           "unique keys %.2f (at least %.2f); tolerance %.2f\n",
           hot_p99(&sides[0]), hot_p99(&sides[1]), hot, HOT_MAX, unique, UNIQUE_MIN, TOLERANCE);
    return hot > HOT_MAX + TOLERANCE || unique < UNIQUE_MIN - TOLERANCE;
}
