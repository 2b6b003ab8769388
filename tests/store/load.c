/* SPDX-License-Identifier: Apache-2.0
 *
 * load URI WORKERS PAUSE_US [LEASE_MS]: processes that race for operations of one store while a
 * test breaks the store. They count what went wrong; the test judges.
 *
 * The ledger is memory that the processes share, so it outlives every store. An effect is noted
 * there the moment its claim is granted, an outcome once its completion was acknowledged or seen.
 * Leases and retention outlast any run, since old keys are asked for to its end. So no take-over
 * and no forgetting is right. A second effect of a key is a claim that the store forgot; a key that
 * was seen completed, and is not completed later, is a completion that the store forgot. With
 * LEASE_MS the claim of a worker that stood still may lapse under `hold`: UNKNOWN is right from a
 * lease after the key was first asked for. An op is repeated with its token until it has a verdict,
 * so no worker ever gives an operation up.
 *
 * Commands on stdin, a line of JSON for each: `report`; `look N` reads back the last N keys first;
 * end of file ends the workers, reads back, and reports a last time.
 */
#include <errno.h>
#include <hapax/store.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEYS        4194304u
#define WINDOW      64u /* keys that are raced for at a time */
#define BEHIND      2048u /* keys before the window that are asked for again */
#define WORKERS_MAX 32u
#define SLOW_MAX    4096u
#define SLOW_US     200000 /* an op that took longer is reported with its times */
#define BATCH       64u
#define LEASE_MS    86400000
#define RETAIN_MS   86400000
#define BODY_MAX    64u

struct slow {
    _Atomic int64_t began_us, ended_us;
};

struct ledger {
    atomic_bool over;
    atomic_uint next; /* keys below were begun */
    atomic_uint effects[KEYS];
    _Atomic int64_t asked_us[KEYS]; /* when the first claim of it began; 0: none did */
    atomic_ulong outcome[KEYS]; /* hash of what was acknowledged or seen; 0: nothing */
    _Atomic int64_t told_us[KEYS]; /* when the outcome, or else the claim, was told */
    atomic_bool ending[KEYS]; /* who has the claim has begun to complete it */
    atomic_ulong ops, claimed, acknowledged, replayed, in_flight, lost_claims, lapsed;
    atomic_ulong doubles; /* effects after the first, of one key */
    atomic_ulong forgotten; /* live claims: second effects before the first began to end */
    atomic_ulong lost; /* outcomes that the store no longer has */
    /* When the earliest was told of what was found forgotten since the last report; 0: nothing. */
    _Atomic int64_t lost_since_us;
    atomic_ulong changed; /* keys with two outcomes */
    atomic_ulong wrong; /* verdicts that no history explains */
    atomic_ulong unavailable, indeterminate, refused; /* tries, not ops */
    _Atomic int64_t longest_run_us; /* one call of hapax_store_run() */
    _Atomic int64_t began_us[WORKERS_MAX]; /* the op under way; 0: none */
    atomic_uint slow_count;
    struct slow slow[SLOW_MAX];
};

static struct ledger *ledger;
static const char *uri;
static unsigned pause_us;
static int64_t lease_ms = LEASE_MS;

static int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

static void sleep_us(unsigned us)
{
    struct timespec pause = {us / 1000000, (long)(us % 1000000) * 1000};

    nanosleep(&pause, NULL);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static unsigned long hash_of(struct hapax_span body)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < body.len; i++)
        hash = (hash ^ body.ptr[i]) * UINT64_C(1099511628211);
    return (unsigned long)hash | 1;
}

/* ---- ops -------------------------------------------------------------------------- */

static struct hapax_op op_of(enum hapax_op_kind kind, unsigned key, uint64_t *random)
{
    struct hapax_op op = {.kind = kind,
                          .scope = hapax_str("load"),
                          .lease_ms = lease_ms,
                          .retention_ms = RETAIN_MS,
                          .on_expired = HAPAX_EXPIRED_HOLD};
    char name[16];

    snprintf(name, sizeof(name), "k%u", key);
    (void)hapax_id(&op.id, op.scope, hapax_str(name), hapax_str(NULL), hapax_str(NULL));
    for (size_t i = 0; random && i < sizeof(op.token.bytes); i += 8) {
        uint64_t word = next_random(random);

        memcpy(op.token.bytes + i, &word, 8);
    }
    return op;
}

static void count_error(enum hapax_error error)
{
    if (error == HAPAX_ERR_UNAVAILABLE)
        ledger->unavailable++;
    else if (error == HAPAX_ERR_INDETERMINATE)
        ledger->indeterminate++;
    else
        ledger->refused++;
}

static void note_slow(int64_t began_us, int64_t ended_us)
{
    unsigned at;

    if (ended_us - began_us < SLOW_US)
        return;
    at = atomic_fetch_add(&ledger->slow_count, 1) % SLOW_MAX;
    ledger->slow[at].began_us = began_us;
    ledger->slow[at].ended_us = ended_us;
}

static void run_once(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    int64_t began_us = now_us(), took_us, longest_us;

    (void)hapax_store_run(store, ops, n);
    took_us = now_us() - began_us;
    longest_us = ledger->longest_run_us;
    while (took_us > longest_us &&
           !atomic_compare_exchange_weak(&ledger->longest_run_us, &longest_us, took_us))
        ;
}

/* Until it has a verdict. */
static void run_op(struct hapax_store *store, struct hapax_op *op, unsigned worker)
{
    int64_t began_us = now_us();

    ledger->began_us[worker] = began_us;
    for (;;) {
        run_once(store, op, 1);
        if (op->error == HAPAX_ERR_NONE)
            break;
        count_error(op->error);
        sleep_us(5000);
    }
    ledger->began_us[worker] = 0;
    ledger->ops++;
    note_slow(began_us, now_us());
}

/* ---- a worker ---------------------------------------------------------------------- */

/* What was told of this key, an outcome or a claim, is forgotten. */
static void note_lost(unsigned key)
{
    int64_t told_us = ledger->told_us[key], since_us = ledger->lost_since_us;

    while ((since_us == 0 || told_us < since_us) &&
           !atomic_compare_exchange_weak(&ledger->lost_since_us, &since_us, told_us))
        ;
}

/* An outcome was acknowledged or seen: the first that anyone saw of a key is its only one. */
static void saw(unsigned key, struct hapax_span body)
{
    unsigned long hash = hash_of(body), none = 0;

    if (ledger->outcome[key] == 0)
        ledger->told_us[key] = now_us();
    if (!atomic_compare_exchange_strong(&ledger->outcome[key], &none, hash) && none != hash) {
        ledger->changed++;
        ledger->outcome[key] = hash;
    }
}

/* A claim was granted: whatever was there before is forgotten. */
static void granted(unsigned key)
{
    bool again = atomic_fetch_add(&ledger->effects[key], 1) != 0;

    ledger->claimed++;
    if (atomic_exchange(&ledger->outcome[key], 0) != 0) {
        ledger->lost++;
        note_lost(key);
    }
    if (again) {
        ledger->doubles++;
        if (!ledger->ending[key]) {
            ledger->forgotten++;
            note_lost(key);
        }
    }
    ledger->ending[key] = false;
    ledger->told_us[key] = now_us();
}

static void complete(struct hapax_store *store, struct hapax_op *claim, unsigned key,
                     unsigned worker, uint64_t *random)
{
    struct hapax_op op = op_of(HAPAX_OP_COMPLETE, key, NULL);
    char body[BODY_MAX];

    snprintf(body, sizeof(body), "%u by %u: %016" PRIx64, key, worker, next_random(random));
    op.token = claim->token;
    op.outcome = (struct hapax_outcome){200, true, hapax_str(NULL), hapax_str(body)};
    ledger->ending[key] = true;
    run_op(store, &op, worker);
    if (op.verdict == HAPAX_OK) {
        if (op.record.outcome.body.len != strlen(body) ||
            memcmp(op.record.outcome.body.ptr, body, strlen(body)) != 0)
            ledger->wrong++;
        ledger->acknowledged++;
        saw(key, op.record.outcome.body);
    } else if (op.verdict == HAPAX_LOST) {
        ledger->lost_claims++;
        if (op.record.state == HAPAX_STATE_COMPLETED)
            saw(key, op.record.outcome.body);
    } else {
        ledger->wrong++;
    }
}

static void take(struct hapax_store *store, unsigned key, unsigned worker, uint64_t *random)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, key, random);
    int64_t none = 0;

    (void)atomic_compare_exchange_strong(&ledger->asked_us[key], &none, now_us());
    run_op(store, &op, worker);
    if (op.verdict == HAPAX_COMPLETED) {
        ledger->replayed++;
        saw(key, op.record.outcome.body);
    } else if (op.verdict == HAPAX_IN_FLIGHT) {
        ledger->in_flight++;
    } else if (op.verdict == HAPAX_UNKNOWN &&
               now_us() - ledger->asked_us[key] >= lease_ms * INT64_C(1000)) {
        ledger->lapsed++;
    } else if (op.verdict == HAPAX_CLAIMED) {
        granted(key);
        if (op.record.attempt != 1 || op.record.stale)
            ledger->wrong++;
        sleep_us((unsigned)(next_random(random) % 2000));
        complete(store, &op, key, worker, random);
    } else {
        ledger->wrong++;
    }
}

/* Mostly the newest keys, so that they are raced for; else one of those before. */
static unsigned choose(uint64_t *random)
{
    unsigned next = ledger->next, back = (unsigned)(next_random(random) % BEHIND);

    if (next < KEYS && next_random(random) % 4 == 0)
        return atomic_fetch_add(&ledger->next, 1) % KEYS;
    if (next_random(random) % 2 == 0)
        back %= WINDOW;
    return next > back + 1 ? (next < KEYS ? next : KEYS) - 1 - back : 0;
}

static void open_store(struct hapax_store **store)
{
    char text[HAPAX_TEXT_MAX];

    if (hapax_store_open(store, uri, text) != HAPAX_ERR_NONE) {
        fprintf(stderr, "%s\n", text);
        exit(1);
    }
}

static int work(unsigned worker)
{
    uint64_t random = (uint64_t)now_us() * 2654435761u + worker + 1;
    struct hapax_store *store;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_store(&store);
    while (!ledger->over) {
        take(store, choose(&random), worker, &random);
        if (pause_us > 0)
            sleep_us((unsigned)(next_random(&random) % (2 * pause_us)));
    }
    hapax_store_close(store);
    return 0;
}

/* ---- reading back and reporting ------------------------------------------------------- */

static void look_at(const struct hapax_op *op, unsigned key, unsigned long seen)
{
    const struct hapax_record *record = &op->record;
    bool completed = op->verdict == HAPAX_FOUND && record->state == HAPAX_STATE_COMPLETED;

    if (seen == 0)
        return;
    if (!completed && atomic_compare_exchange_strong(&ledger->outcome[key], &seen, 0)) {
        ledger->lost++;
        note_lost(key);
    } else if (completed && hash_of(record->outcome.body) != seen && ledger->outcome[key] == seen) {
        ledger->changed++;
    }
}

/* Reads the last n keys; those that were seen completed must be so still. */
static void look_back(struct hapax_store *store, unsigned n)
{
    unsigned next = ledger->next < KEYS ? ledger->next : KEYS;
    unsigned key = next > n ? next - n : 0;

    while (key < next) {
        struct hapax_op ops[BATCH];
        unsigned long seen[BATCH];
        unsigned count = 0;
        bool all = true;

        for (; count < BATCH && key + count < next; count++) {
            seen[count] = ledger->outcome[key + count];
            ops[count] = op_of(HAPAX_OP_READ, key + count, NULL);
        }
        run_once(store, ops, count);
        for (unsigned i = 0; i < count; i++)
            all = all && ops[i].error == HAPAX_ERR_NONE;
        if (!all) {
            sleep_us(20000);
            continue;
        }
        for (unsigned i = 0; i < count; i++)
            look_at(&ops[i], key + i, seen[i]);
        key += count;
    }
}

static void report(unsigned workers)
{
    unsigned count = ledger->slow_count < SLOW_MAX ? ledger->slow_count : SLOW_MAX;
    int64_t now = now_us(), oldest = now;

    for (unsigned i = 0; i < workers; i++)
        if (ledger->began_us[i] != 0 && ledger->began_us[i] < oldest)
            oldest = ledger->began_us[i];
    printf("{\"ops\":%lu,\"keys\":%u,\"claimed\":%lu,\"acknowledged\":%lu,\"replayed\":%lu,"
           "\"in_flight\":%lu,\"lost_claims\":%lu,\"lapsed\":%lu,",
           ledger->ops, ledger->next, ledger->claimed, ledger->acknowledged, ledger->replayed,
           ledger->in_flight, ledger->lost_claims, ledger->lapsed);
    printf("\"doubles\":%lu,\"forgotten\":%lu,\"lost\":%lu,\"lost_since_us\":%" PRId64
           ",\"changed\":%lu,\"wrong\":%lu,\"unavailable\":%lu,\"indeterminate\":%lu,"
           "\"refused\":%lu,",
           ledger->doubles, ledger->forgotten, ledger->lost,
           atomic_exchange(&ledger->lost_since_us, 0), ledger->changed, ledger->wrong,
           ledger->unavailable, ledger->indeterminate, ledger->refused);
    printf("\"longest_run_us\":%" PRId64 ",\"oldest_op_us\":%" PRId64 ",\"now_us\":%" PRId64
           ",\"slow\":[",
           ledger->longest_run_us, now - oldest, now);
    for (unsigned i = 0; i < count; i++)
        printf("%s[%" PRId64 ",%" PRId64 "]", i ? "," : "", ledger->slow[i].began_us,
               ledger->slow[i].ended_us);
    printf("]}\n");
    fflush(stdout);
    ledger->slow_count = 0;
}

static bool end_workers(const pid_t *pids, unsigned workers)
{
    bool ok = true;

    ledger->over = true;
    for (unsigned i = 0; i < workers; i++) {
        int status = 0;

        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
            ;
        ok = ok && status == 0;
    }
    return ok;
}

int main(int argc, char **argv)
{
    pid_t pids[WORKERS_MAX];
    struct hapax_store *store;
    unsigned workers;
    char line[64];
    bool ok;

    if (argc != 4 && argc != 5)
        return 2;
    if (argc == 5)
        lease_ms = strtol(argv[4], NULL, 10);
    uri = argv[1];
    workers = (unsigned)strtoul(argv[2], NULL, 10);
    pause_us = (unsigned)strtoul(argv[3], NULL, 10);
    if (workers < 1 || workers > WORKERS_MAX || pause_us > 1000000)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    ledger = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ledger == MAP_FAILED)
        return 1;
    for (unsigned i = 0; i < workers; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            return 1;
        if (pids[i] == 0)
            _exit(work(i));
    }
    open_store(&store);
    while (fgets(line, sizeof(line), stdin)) {
        if (strncmp(line, "look ", 5) == 0)
            look_back(store, (unsigned)strtoul(line + 5, NULL, 10));
        report(workers);
    }
    ok = end_workers(pids, workers);
    look_back(store, 100000);
    report(workers);
    hapax_store_close(store);
    munmap(ledger, sizeof(*ledger));
    return !ok;
}
