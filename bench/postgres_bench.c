/* SPDX-License-Identifier: Apache-2.0
 *
 * What the machine costs on PostgreSQL. A cycle is a CLAIM and a COMPLETE with 300 bytes of
 * outcome. Each key is used once, with 64 cycles in a batch. Three contenders run on one server:
 *
 *     store   as everybody uses it: a new statement each time, since a pooler in between knows no
 *             prepared statements
 *     bare    the array statements of somebody who knows PostgreSQL and needs only claims and
 *             completions. They have the same columns, look up by key, check expiry, lease, token
 *             and fingerprint, and decide races by ON CONFLICT. They are prepared, with a plan
 *             pinned in its session. What Hapax adds is left out: nobody waits for another's open
 *             transaction; what happens to a dead claim (hold, reconcile, attempts_max, failed,
 *             unknown); fences; a scope that is kept; the server's own list of what is stuck;
 *             repeats that get the first answer
 *     single  the usual way: the bare table, one row a statement, prepared, each committed
 *
 * They take turns of a quarter second, so that other users of the machine hit all alike. Rates are
 * medians over rounds. Beside the rates stand the instructions of the server's process for a cycle,
 * the kernel's included: the lower quartile of all batches. These are judged, since others do not
 * change them. Instructions cannot be counted everywhere (perf_event_open(), for which one may have
 * to be root). Then processor time stands there, and the better of processor time and rates is
 * judged. Half of a rate is the client's, and a rate swings. Processor time grows where others keep
 * the caches cold, and the longer code of hapax.run() suffers more. The test's server has
 * fsync = off; with the disk's time in it, store and bare would be closer. Then come replays, and
 * callers that race for one key.
 *
 *     postgres_bench [--seconds S] [--million] URI
 *
 * Exits 1 if bare costs less than RATIO_MIN of what the store does, with 1 connection or with 4.
 * docs/performance.md has what was measured. --million: fills the table with a million operations
 * that expire, sweeps them, and prints the table's size before and after.
 */
#include <hapax/store.h>

#include "bench.h"
#include "store/postgres/postgres.h"

#include <inttypes.h>
#include <pthread.h>

#define BATCH        64u
#define THREADS_MAX  16u
#define CALLERS      1000u
#define TURN_NS      250000000
#define RATIO_MIN    0.72 /* 0.8, less a tenth: one run on a machine of two processors varies */
#define LEASE_MS     30000
#define RETENTION_MS 3600000
#define COSTS_MAX    16384u
#define TURNS_MAX    128u
#define MILLION      1000000u
#define KNOWN        (UINT64_C(1) << 54) /* the keys that are replayed */
#define KNOWN_COUNT  1024u

enum contender { STORE, BARE, SINGLE, REPLAY, CONTENDERS };
static const char *const names[] = {"store", "bare", "single", "replay"};

/* What the server's process used for cycles of a contender, each over a batch. */
struct costs {
    double cycle[COSTS_MAX];
    unsigned n;
};

static struct worker {
    pthread_t thread;
    struct hapax_store *store;
    PGconn *conn;
    struct hapax__pg_out out; /* of a statement on conn */
    uint64_t next; /* key */
    uint64_t cycles;
    struct costs costs[BARE + 1];
    int counters[BARE + 1]; /* of instructions of the server's process; 0: none */
    enum contender contender;
    unsigned number;
} workers[THREADS_MAX];

static const char *uri;
static int64_t retention_ms = RETENTION_MS; /* of the store's operations */
static int64_t turn_end_ns;
static uint64_t salt; /* so that a database may be used again */
static uint8_t body[300];

/* Random, as ids are: they come in no order. */
static void make_id(uint8_t out[32], uint64_t worker, uint64_t n)
{
    atomic_ullong counter = (worker << 56 ^ n) + salt;

    draw(&counter, out, 32);
}

static PGresult *check_rows(PGconn *conn, PGresult *rows)
{
    if (PQresultStatus(rows) != PGRES_TUPLES_OK && PQresultStatus(rows) != PGRES_COMMAND_OK)
        die("statement", PQerrorMessage(conn));
    return rows;
}

static void sql(PGconn *conn, const char *statement)
{
    PQclear(check_rows(conn, PQexec(conn, statement)));
}

/* ---- the store --------------------------------------------------------------------- */

static void make_op(struct hapax_op *op, enum hapax_op_kind kind, unsigned worker, uint64_t n)
{
    *op = (struct hapax_op){.kind = kind,
                            .scope = hapax_str("bench"),
                            .lease_ms = LEASE_MS,
                            .retention_ms = retention_ms,
                            .on_expired = HAPAX_EXPIRED_RERUN};
    make_id(op->id.bytes, worker, n);
    memset(op->token.bytes, 1, sizeof(op->token.bytes));
    op->outcome = (struct hapax_outcome){200, true, {NULL, 0}, {body, sizeof(body)}};
}

/* The server's process that works for it. */
static int store_pid(const struct worker *w)
{
    return PQbackendPID(((const struct hapax__pg *)w->store)->link.conn);
}

static void run_ops(struct worker *w, enum hapax_op_kind kind, uint64_t first,
                    enum hapax_verdict verdict, uint8_t token)
{
    struct hapax_op ops[BATCH];

    for (unsigned i = 0; i < BATCH; i++) {
        make_op(&ops[i], kind, w->number, first + i);
        memset(ops[i].token.bytes, token, sizeof(ops[i].token.bytes));
    }
    if (hapax_store_run(w->store, ops, BATCH) != HAPAX_ERR_NONE)
        die("run", hapax_store_text(w->store));
    for (unsigned i = 0; i < BATCH; i++)
        if (ops[i].verdict != verdict)
            die("verdict", hapax_verdict_name(ops[i].verdict));
}

static void cycle_store(struct worker *w)
{
    run_ops(w, HAPAX_OP_CLAIM, w->next, HAPAX_CLAIMED, 1);
    run_ops(w, HAPAX_OP_COMPLETE, w->next, HAPAX_OK, 1);
    w->next += BATCH;
    w->cycles += BATCH;
}

static void cycle_replay(struct worker *w)
{
    run_ops(w, HAPAX_OP_CLAIM, KNOWN + w->cycles % KNOWN_COUNT, HAPAX_COMPLETED, 2);
    w->cycles += BATCH;
}

/* ---- bare and single --------------------------------------------------------------- */

static const char bare_table[] =
    "CREATE TABLE bare (LIKE hapax.operations INCLUDING DEFAULTS)"
    " WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,"
    " autovacuum_vacuum_cost_delay = 0); ALTER TABLE bare ADD PRIMARY KEY (id);"
    " CREATE TABLE single (LIKE bare INCLUDING ALL)";

#define NOW_US "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
/* verdicts: 1 claimed, 2 in flight, 3 completed, 6 mismatch */
static const char bare_claim[] =
    "WITH now AS MATERIALIZED (SELECT " NOW_US " AS us), cur AS MATERIALIZED ("
    "  SELECT i.id, i.token, i.fingerprint, r.state, r.attempt, r.lease_until_us, r.status,"
    " r.headers, r.body,"
    "    r.fingerprint <> i.fingerprint AS differs,"
    "    r.id IS NULL OR r.expires_us <= now.us OR r.state = 1 AND r.fingerprint = i.fingerprint"
    "      AND (r.lease_until_us <= now.us OR r.token = i.token) AS free"
    "  FROM now, unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS i(id, token, fingerprint)"
    "  LEFT JOIN LATERAL (SELECT * FROM bare b WHERE b.id = i.id OFFSET 0) r ON true),"
    " won AS ("
    "  INSERT INTO bare AS b SELECT now.us, now.us, now.us + $4::bigint * 1000, now.us +"
    " $5::bigint * 1000, $5, 0,"
    "    1, 1, 0, 1, 0, false, false, false, false, false, id, token, fingerprint, $6, $7, '',"
    " '', ''"
    "  FROM now, cur WHERE free ORDER BY id"
    "  ON CONFLICT (id) DO UPDATE SET state = 1, token = excluded.token, fingerprint ="
    " excluded.fingerprint,"
    "    attempt = CASE WHEN b.token = excluded.token AND b.state = 1 THEN b.attempt ELSE"
    " b.attempt + 1 END,"
    "    updated_us = excluded.updated_us, lease_until_us = excluded.lease_until_us,"
    "    expires_us = excluded.expires_us, headers = '', body = ''"
    "  WHERE b.expires_us <= excluded.updated_us OR b.state = 1 AND b.fingerprint ="
    " excluded.fingerprint"
    "    AND (b.lease_until_us <= excluded.updated_us OR b.token = excluded.token)"
    "  RETURNING id, attempt, lease_until_us)"
    " SELECT id, 1, attempt, lease_until_us, NULL::smallint, NULL::bytea, NULL::bytea FROM won"
    " UNION ALL"
    " SELECT id, CASE WHEN differs THEN 6 WHEN state = 1 THEN 2 ELSE 3 END, attempt,"
    " lease_until_us, status, headers, body"
    " FROM cur WHERE NOT free";

static const char bare_complete[] =
    "WITH now AS MATERIALIZED (SELECT " NOW_US " AS us)"
    " UPDATE bare b SET state = 2, status = $4::int, headers = '', body = i.body, body_kept ="
    " true, updated_us = now.us,"
    "   lease_until_us = 0, expires_us = now.us + b.retention_ms * 1000"
    " FROM now, unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS i(id, token, body)"
    " WHERE b.id = i.id AND b.token = i.token AND b.state = 1 AND b.expires_us > now.us"
    " RETURNING b.id";

static const char single_claim[] =
    "INSERT INTO single AS b SELECT now.us, now.us, now.us + $4::bigint * 1000, now.us +"
    " $5::bigint * 1000, $5, 0,"
    "   1, 1, 0, 1, 0, false, false, false, false, false, $1, $2, $3, $6, $7, '', '', ''"
    " FROM (SELECT " NOW_US " AS us) now"
    " ON CONFLICT (id) DO UPDATE SET state = 1, attempt = b.attempt + 1, token = excluded.token,"
    "   updated_us = excluded.updated_us, lease_until_us = excluded.lease_until_us, expires_us ="
    " excluded.expires_us"
    " WHERE b.expires_us <= excluded.updated_us OR b.state = 1 AND b.fingerprint ="
    " excluded.fingerprint"
    "   AND (b.lease_until_us <= excluded.updated_us OR b.token = excluded.token)"
    " RETURNING id, attempt, lease_until_us";

static const char single_complete[] =
    "UPDATE single SET state = 2, status = $4::int, body = $3, body_kept = true,"
    "  updated_us = " NOW_US ","
    "  lease_until_us = 0, expires_us = " NOW_US " + retention_ms * 1000"
    " WHERE id = $1 AND token = $2 AND state = 1 RETURNING id";

static void prepare(PGconn *conn)
{
    sql(conn, "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET"
              " jit = off;"
              " SET plan_cache_mode = force_generic_plan");
    PQclear(check_rows(conn, PQprepare(conn, "bare_claim", bare_claim, 0, NULL)));
    PQclear(check_rows(conn, PQprepare(conn, "bare_complete", bare_complete, 0, NULL)));
    PQclear(check_rows(conn, PQprepare(conn, "single_claim", single_claim, 0, NULL)));
    PQclear(check_rows(conn, PQprepare(conn, "single_complete", single_complete, 0, NULL)));
}

/* Writes what is the same for all ops of a statement, from the fourth parameter on: a claim's
 * lease, retention, caller and scope, or a completion's status. */
static void put_rest(struct hapax__pg_out *out, bool claim)
{
    if (!claim) {
        hapax__pg_put_value_int(out, HAPAX__PG_INT4, 200);
        return;
    }
    hapax__pg_put_value_int(out, HAPAX__PG_INT8, LEASE_MS);
    hapax__pg_put_value_int(out, HAPAX__PG_INT8, RETENTION_MS);
    hapax__pg_put_value_bytes(out, HAPAX__PG_BYTEA, (struct hapax_span){body, 32});
    hapax__pg_put_value_bytes(out, HAPAX__PG_BYTEA, hapax_str("bench"));
}

/* A prepared statement over n ops from w->next on. */
static void run_prepared(struct worker *w, const char *name, unsigned n, bool claim)
{
    static const int binary[HAPAX__PG_PARAMS_MAX] = {1, 1, 1, 1, 1, 1, 1};
    static const uint8_t token[16] = {1};
    struct hapax_span columns[3] = {
        {NULL, 32}, {token, sizeof(token)}, {body, claim ? 32 : sizeof(body)}};
    struct hapax__pg_params params;
    PGresult *rows;
    uint8_t id[32];

    hapax__pg_out_reset(&w->out);
    columns[0].ptr = id;
    for (unsigned column = 0; column < 3; column++) {
        if (n > 1)
            hapax__pg_begin_array(&w->out, HAPAX__PG_BYTEA, n);
        for (unsigned i = 0; i < n; i++) {
            if (column == 0)
                make_id(id, w->number, w->next + i);
            if (n > 1)
                hapax__pg_put_bytes(&w->out, columns[column]);
            else
                hapax__pg_put_value_bytes(&w->out, HAPAX__PG_BYTEA, columns[column]);
        }
    }
    put_rest(&w->out, claim);
    if (!hapax__pg_out_params(&w->out, &params))
        die(name, "out of memory");
    rows = check_rows(
        w->conn, PQexecPrepared(w->conn, name, params.n, params.values, params.lengths, binary, 1));
    if (PQntuples(rows) != (int)n)
        die(name, "not all rows");
    PQclear(rows);
}

static void cycle_bare(struct worker *w)
{
    run_prepared(w, "bare_claim", BATCH, true);
    run_prepared(w, "bare_complete", BATCH, false);
    w->next += BATCH;
    w->cycles += BATCH;
}

static void cycle_single(struct worker *w)
{
    run_prepared(w, "single_claim", 1, true);
    run_prepared(w, "single_complete", 1, false);
    w->next++;
    w->cycles++;
}

/* ---- turns ------------------------------------------------------------------------- */

/* What a process of this machine has used so far: instructions, or nanoseconds of a processor where
 * there is no counter; 0: there is no such process. */
static int64_t used(int pid, int counter)
{
    char path[64], text[64] = "";
    FILE *file;

    if (counter > 0)
        return counted(counter);
    (void)snprintf(path, sizeof(path), "/proc/%d/schedstat", pid);
    file = fopen(path, "r");
    if (!file)
        return 0;
    if (!fgets(text, sizeof(text), file))
        text[0] = '\0';
    (void)fclose(file);
    return (int64_t)strtoull(text, NULL, 10);
}

static void count_cost(struct worker *w, int64_t count)
{
    struct costs *costs = &w->costs[w->contender];

    if (costs->n < COSTS_MAX)
        costs->cycle[costs->n++] = (double)count / 1e3 / BATCH;
}

static void *work(void *arg)
{
    static void (*const cycles[CONTENDERS])(struct worker *) = {
        [STORE] = cycle_store,
        [BARE] = cycle_bare,
        [SINGLE] = cycle_single,
        [REPLAY] = cycle_replay,
    };
    struct worker *w = arg;
    bool judged = w->contender <= BARE;
    int pid = w->contender == BARE ? PQbackendPID(w->conn) : store_pid(w);
    int counter = judged ? w->counters[w->contender] : 0;

    while (now_ns() < turn_end_ns) {
        int64_t before = judged ? used(pid, counter) : 0;

        cycles[w->contender](w);
        if (judged)
            count_cost(w, used(pid, counter) - before);
    }
    return NULL;
}

/* A turn of n connections; how many cycles a second. */
static double take_turn(enum contender contender, unsigned n)
{
    static uint64_t base; /* no key comes twice, whoever's turn it is */
    int64_t begin_ns = now_ns();
    uint64_t cycles = 0;

    base += UINT64_C(1) << 32;
    turn_end_ns = begin_ns + TURN_NS;
    for (unsigned i = 0; i < n; i++) {
        workers[i].contender = contender;
        workers[i].next = base;
        workers[i].cycles = 0;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            die("pthread_create", "failed");
    }
    for (unsigned i = 0; i < n; i++) {
        pthread_join(workers[i].thread, NULL);
        cycles += workers[i].cycles;
    }
    return (double)cycles * 1e9 / (double)(now_ns() - begin_ns);
}

static double median(const double *numbers, unsigned n)
{
    double sorted[TURNS_MAX];

    memcpy(sorted, numbers, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_value);
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* The lower quartile of what a cycle cost: what others do to a processor only adds to it. */
static double cost(enum contender contender, unsigned connections)
{
    static double all[4 * COSTS_MAX];
    unsigned n = 0;

    for (unsigned i = 0; i < connections; i++) {
        struct costs *costs = &workers[i].costs[contender];

        memcpy(all + n, costs->cycle, costs->n * sizeof(*all));
        n += costs->n;
        costs->n = 0;
    }
    qsort(all, n, sizeof(*all), by_value);
    return n > 0 ? all[n / 4] : 0;
}

/* The part of the store's cost that bare has as well: by instructions, or the better of processor
 * time and rates where these cannot be counted. */
static double compare(unsigned connections, unsigned rounds)
{
    double rates[CONTENDERS][TURNS_MAX], of_bare[TURNS_MAX], of_single[TURNS_MAX];
    double store, bare;
    bool exact = workers[0].counters[STORE] > 0 && workers[0].counters[BARE] > 0;

    for (enum contender c = STORE; c <= BARE; c++)
        (void)cost(c, connections); /* forgets what was before */
    for (unsigned i = 0; i < rounds; i++) {
        for (unsigned c = 0; c <= SINGLE; c++) { /* none is always first */
            enum contender contender = (enum contender)((c + i) % (SINGLE + 1));

            rates[contender][i] = take_turn(contender, connections);
        }
        of_bare[i] = rates[STORE][i] / rates[BARE][i];
        of_single[i] = rates[STORE][i] / rates[SINGLE][i];
    }
    store = cost(STORE, connections);
    bare = cost(BARE, connections);
    printf(
        "%u connection%s, batches of %u, cycles/s: store %.0f, bare %.0f (%.2f of it), one row a "
        "statement %.0f (%.1f times)\n",
        connections, connections > 1 ? "s" : "", BATCH, median(rates[STORE], rounds),
        median(rates[BARE], rounds), median(of_bare, rounds), median(rates[SINGLE], rounds),
        median(of_single, rounds));
    printf("    the server's %s for a cycle: store %.1f, bare %.1f (%.2f of it)\n",
           exact ? "thousands of instructions" : "us of processor time", store, bare, bare / store);
    /* Others on the machine change no count of instructions. */
    if (store > 0 && (exact || bare / store > median(of_bare, rounds)))
        return bare / store;
    return median(of_bare, rounds);
}

static void complete_known(void)
{
    for (unsigned i = 0; i < 4; i++) {
        workers[i].next = KNOWN;
        while (workers[i].next < KNOWN + KNOWN_COUNT)
            cycle_store(&workers[i]);
    }
}

static void replay(unsigned connections, unsigned turns)
{
    double rates[TURNS_MAX];

    for (unsigned turn = 0; turn < turns; turn++)
        rates[turn] = take_turn(REPLAY, connections);
    printf("%u connection%s: %s %.0f a second\n", connections, connections > 1 ? "s" : "",
           names[REPLAY], median(rates, turns));
}

/* ---- one key, many callers --------------------------------------------------------- */

static struct race {
    atomic_uint next;
    atomic_uint claimed, in_flight, completed, busy;
    int64_t took_ns[CALLERS];
} race;

/* A caller asks until it has the outcome; who has the claim completes it. */
static void call(struct worker *w, unsigned caller)
{
    int64_t begin_ns = now_ns();
    struct hapax_op op = {.kind = 0};

    for (bool over = false; !over;) {
        make_op(&op, HAPAX_OP_CLAIM, 255, 0);
        memcpy(op.token.bytes, &caller, sizeof(caller));
        (void)hapax_store_run(w->store, &op, 1);
        if (op.verdict == HAPAX_CLAIMED) {
            op.kind = HAPAX_OP_COMPLETE;
            while (hapax_store_run(w->store, &op, 1) != HAPAX_ERR_NONE)
                race.busy++;
            race.claimed++;
        }
        over = op.verdict == HAPAX_COMPLETED || op.verdict == HAPAX_OK;
        race.in_flight += op.verdict == HAPAX_IN_FLIGHT;
        race.busy += op.verdict == HAPAX_NO_VERDICT;
    }
    race.completed++;
    race.took_ns[caller] = now_ns() - begin_ns;
}

static void *race_main(void *arg)
{
    unsigned caller;

    while ((caller = atomic_fetch_add(&race.next, 1)) < CALLERS)
        call(arg, caller);
    return NULL;
}

static void race_for_one_key(PGconn *monitor)
{
    unsigned samples = 0, waits = 0;
    struct hapax_op op;

    for (unsigned i = 0; i < THREADS_MAX; i++) { /* so that all are connected */
        make_op(&op, HAPAX_OP_READ, 255, 0);
        if (hapax_store_run(workers[i].store, &op, 1) != HAPAX_ERR_NONE)
            die("read", hapax_store_text(workers[i].store));
    }

    for (unsigned i = 0; i < THREADS_MAX; i++)
        if (pthread_create(&workers[i].thread, NULL, race_main, &workers[i]) != 0)
            die("pthread_create", "failed");
    while (atomic_load(&race.completed) < CALLERS) {
        PGresult *rows = check_rows(monitor, PQexec(monitor, "SELECT count(*) FROM pg_stat_activity"
                                                             " WHERE wait_event_type = 'Lock'"));

        waits += (unsigned)strtoul(PQgetvalue(rows, 0, 0), NULL, 10);
        samples++;
        PQclear(rows);
    }
    for (unsigned i = 0; i < THREADS_MAX; i++)
        pthread_join(workers[i].thread, NULL);
    qsort(race.took_ns, CALLERS, sizeof(race.took_ns[0]), by_size);
    printf("one key, %u callers on %u connections: %u claimed it, p50 %.2f ms, p99 %.2f ms; %u"
           " times in "
           "flight, %u busy, %u lock waits in %u samples\n",
           CALLERS, THREADS_MAX, race.claimed, (double)race.took_ns[CALLERS / 2] / 1e6,
           (double)race.took_ns[CALLERS * 99 / 100] / 1e6, race.in_flight, race.busy, waits,
           samples);
}

/* ---- a million --------------------------------------------------------------------- */

static void print_size(PGconn *conn, const char *when)
{
    PGresult *rows =
        check_rows(conn, PQexec(conn, "SELECT pg_size_pretty(pg_table_size('hapax.operations')),"
                                      " pg_size_pretty(pg_indexes_size('hapax.operations')),"
                                      " (SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid ="
                                      " 'hapax.operations'::regclass)"));

    printf("%s: table %s, indexes %s, %s dead rows\n", when, PQgetvalue(rows, 0, 0),
           PQgetvalue(rows, 0, 1), PQgetvalue(rows, 0, 2));
    PQclear(rows);
}

static void fill_and_sweep(PGconn *conn)
{
    struct hapax_op op = {.kind = HAPAX_OP_PURGE};
    int64_t begin_ns = now_ns();
    uint64_t purged = 0;

    print_size(conn, "before");
    retention_ms = 1; /* all have expired by the time they are swept */
    workers[0].next = UINT64_C(1) << 50;
    for (unsigned i = 0; i < MILLION; i += BATCH)
        cycle_store(&workers[0]);
    printf("a million operations in %.1f s\n", (double)(now_ns() - begin_ns) / 1e9);
    sql(conn, "VACUUM hapax.operations");
    print_size(conn, "after a million operations, vacuumed");
    begin_ns = now_ns();
    do {
        if (hapax_store_run(workers[0].store, &op, 1) != HAPAX_ERR_NONE)
            die("purge", hapax_store_text(workers[0].store));
        purged += op.purged;
        op.cursor = op.next_cursor;
    } while (op.more);
    printf("swept %" PRIu64 " in %.1f s\n", purged, (double)(now_ns() - begin_ns) / 1e9);
    sql(conn, "VACUUM hapax.operations");
    print_size(conn, "swept and vacuumed");
    for (unsigned i = 0; i < MILLION / 10; i += BATCH)
        cycle_store(&workers[0]);
    print_size(conn, "after a hundred thousand more");
}

/* ------------------------------------------------------------------------------------ */

static PGconn *connect_bare(void)
{
    PGconn *conn;
    char plain[512];

    (void)snprintf(plain, sizeof(plain), "%.*s", (int)strcspn(uri, "?"), uri);
    conn = PQconnectdb(plain);
    if (PQstatus(conn) != CONNECTION_OK)
        die("connect", PQerrorMessage(conn));
    sql(conn, "SET client_min_messages = error");
    return conn;
}

static void open_all(void)
{
    PGconn *conn = connect_bare();
    char text[HAPAX_TEXT_MAX];

    sql(conn, "DROP TABLE IF EXISTS bare, single");
    sql(conn, bare_table);
    PQfinish(conn);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        workers[i].number = i;
        if (hapax_store_open(&workers[i].store, uri, text) != HAPAX_ERR_NONE)
            die("open", text);
        workers[i].conn = connect_bare();
        prepare(workers[i].conn);
    }
}

int main(int argc, char **argv)
{
    unsigned seconds = 12;
    bool million = false, slow = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = (unsigned)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--million") == 0)
            million = true;
        else
            uri = argv[i];
    }
    if (!uri || seconds < 3 || seconds > 96) {
        fprintf(stderr, "usage: postgres_bench [--seconds 3-96] [--million] URI\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    salt = (uint64_t)time(NULL) * 0x9e3779b97f4a7c15u;
    open_all();
    (void)take_turn(STORE, 4);
    (void)take_turn(BARE, 4);
    for (unsigned i = 0; i < 4; i++) {
        workers[i].counters[STORE] = count_instructions(store_pid(&workers[i]));
        workers[i].counters[BARE] = count_instructions(PQbackendPID(workers[i].conn));
    }
    for (unsigned connections = 1; connections <= 4; connections *= 4)
        slow |= compare(connections, seconds * 2 / 3) < RATIO_MIN;
    complete_known();
    replay(1, 4);
    replay(4, 4);
    race_for_one_key(workers[0].conn);
    if (million)
        fill_and_sweep(workers[0].conn);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        hapax_store_close(workers[i].store);
        PQfinish(workers[i].conn);
        free(workers[i].out.bytes);
    }
    if (slow)
        fprintf(stderr, "postgres_bench: less than %.2f of the bare statement\n", RATIO_MIN);
    return slow;
}
