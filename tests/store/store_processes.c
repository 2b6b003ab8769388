/* SPDX-License-Identifier: Apache-2.0
 *
 * Many processes on one store: they race for keys, die with kill -9 and are stopped. Each opens a
 * handle of its own after the fork; what they must agree on stands in memory they share, where it
 * is compared with what the store tells them. A process that waits does so for an event, with a
 * deadline.
 */
#include "../unit/record_diff.h"
#include "storm.h"

#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define KEYS          200u
#define CHUNK         20u
#define CHILDREN_MAX  64u
#define WAIT_MS       120000 /* no event of a case takes longer, on any machine */
#define WINDOW        64u
#define KILL_EVERY_MS 15

struct shared {
    atomic_uint ready;
    atomic_uint winners[KEYS];
    atomic_uint winner[KEYS]; /* child + 1 */
    atomic_uint outcomes; /* seen, by all children */
    struct storm storm;
};

static struct shared *share(void)
{
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(shared != MAP_FAILED, "mmap");
    return shared;
}

static pid_t start_child(const struct suite *suite, struct shared *shared, unsigned me,
                         void (*work)(const struct suite *, struct shared *, unsigned))
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
        work(suite, shared, me);
        fflush(stdout);
        _exit(0);
    }
    return pid;
}

/* The group is ended with the case, so a child that hangs is found by the case's own timeout. */
static void expect_end(pid_t pid)
{
    int status;

    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(status == 0, "child %d ended with %d", (int)pid, status);
}

static void wait_for_count(const atomic_uint *count, unsigned n)
{
    int64_t deadline_ms = monotonic_ms() + WAIT_MS;

    while (atomic_load(count) < n) {
        CHECK(monotonic_ms() < deadline_ms, "only %u of %u came", atomic_load(count), n);
        sched_yield();
    }
}

/* ---- the race ------------------------------------------------------------------------ */

/* The outcome is the winner's, byte for byte. */
static void check_outcome(struct shared *shared, const struct hapax_op *op, unsigned key)
{
    unsigned winner = atomic_load(&shared->winner[key]);
    char text[BODY_MAX];

    CHECK(winner > 0, "key %u is completed, but nobody claimed it", key);
    CHECK(same_bytes(op->record.outcome.body, body_of(text, winner - 1, key)),
          "key %u: not the winner's bytes", key);
    CHECK(op->record.outcome.status == (int)(200 + winner), "key %u: status", key);
    atomic_fetch_add(&shared->outcomes, 1);
}

static void win(struct hapax_store *store, const struct suite *suite, struct shared *shared,
                unsigned me, unsigned key)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_COMPLETE, key, me + 1);
    char text[BODY_MAX];

    CHECK(atomic_fetch_add(&shared->winners[key], 1) == 0, "key %u was claimed twice", key);
    atomic_store(&shared->winner[key], me + 1);
    op.outcome.status = (int)(200 + me + 1);
    op.outcome.body = body_of(text, me, key);
    run_op(store, &op);
    CHECK(op.verdict == HAPAX_OK, "key %u: COMPLETE: %s", key, hapax_verdict_name(op.verdict));
    atomic_fetch_add(&shared->outcomes, 1);
}

static bool take(struct hapax_store *store, const struct suite *suite, struct shared *shared,
                 unsigned me, unsigned key, const struct hapax_op *claim)
{
    CHECK(claim->error == HAPAX_ERR_NONE, "key %u: %s", key, hapax_error_name(claim->error));
    if (claim->verdict == HAPAX_IN_FLIGHT)
        return false;
    if (claim->verdict == HAPAX_CLAIMED) {
        CHECK(claim->record.attempt == 1, "key %u: attempt %u", key, claim->record.attempt);
        win(store, suite, shared, me, key);
        return true;
    }
    CHECK(claim->verdict == HAPAX_COMPLETED, "key %u: %s", key, hapax_verdict_name(claim->verdict));
    check_outcome(shared, claim, key);
    return true;
}

/* Claims singly or in chunks, by the child's number; then asks until each key has an outcome. */
static void race(const struct suite *suite, struct shared *shared, unsigned me)
{
    struct hapax_store *store = open_store(suite);
    int64_t deadline_ms;
    bool done[KEYS] = {false};
    unsigned left = KEYS;
    unsigned chunk = me % 2 ? CHUNK : 1;

    atomic_fetch_add(&shared->ready, 1);
    wait_for_count(&shared->ready, suite->children);
    deadline_ms = monotonic_ms() + WAIT_MS;
    while (left > 0) {
        for (unsigned key = 0; key < KEYS; key += chunk) {
            struct hapax_op ops[CHUNK];
            unsigned keys[CHUNK], n = 0;

            for (unsigned i = key; i < key + chunk; i++)
                if (!done[i]) {
                    ops[n] = op_of(suite, HAPAX_OP_CLAIM, i, me + 1);
                    keys[n++] = i;
                }
            hapax_store_run(store, ops, n);
            for (unsigned i = 0; i < n; i++) { /* an answer's bytes end with the next call */
                if (ops[i].verdict == HAPAX_COMPLETED)
                    done[keys[i]] = take(store, suite, shared, me, keys[i], &ops[i]);
                left -= done[keys[i]];
            }
            for (unsigned i = 0; i < n; i++) {
                if (done[keys[i]])
                    continue;
                done[keys[i]] = take(store, suite, shared, me, keys[i], &ops[i]);
                left -= done[keys[i]];
            }
        }
        CHECK(monotonic_ms() < deadline_ms, "child %u: %u keys have no outcome", me, left);
    }
    hapax_store_close(store);
}

/* Every key has one winner, and every process gets the winner's bytes. */
static void each_key_has_one_winner(const struct suite *suite) /* promise 1 */
{
    struct shared *shared = share();
    pid_t pids[CHILDREN_MAX];
    unsigned most = 0;
    unsigned won[CHILDREN_MAX] = {0};

    for (unsigned i = 0; i < suite->children; i++)
        pids[i] = start_child(suite, shared, i, race);
    for (unsigned i = 0; i < suite->children; i++)
        expect_end(pids[i]);
    for (unsigned key = 0; key < KEYS; key++) {
        CHECK(atomic_load(&shared->winners[key]) == 1, "key %u has %u winners", key,
              atomic_load(&shared->winners[key]));
        won[atomic_load(&shared->winner[key]) - 1]++;
    }
    CHECK(atomic_load(&shared->outcomes) == KEYS * suite->children, "%u outcomes were seen",
          atomic_load(&shared->outcomes));
    for (unsigned i = 0; i < suite->children; i++)
        most = won[i] > most ? won[i] : most;
    printf("# the luckiest of %u processes won %u of %u keys\n", suite->children, most, KEYS);
}

/* ---- one that dies, one that stops --------------------------------------------------- */

static void claim_and_stay(const struct suite *suite, struct shared *shared,
                           enum hapax_on_expired on_expired)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = op_of(suite, HAPAX_OP_CLAIM, 1, 1);

    op.lease_ms = 300;
    op.on_expired = on_expired;
    run_op(store, &op);
    CHECK(op.verdict == HAPAX_CLAIMED, "%s", hapax_verdict_name(op.verdict));
    atomic_fetch_add(&shared->ready, 1);
    for (;;)
        pause();
}

static void claim_rerun_and_stay(const struct suite *suite, struct shared *shared, unsigned me)
{
    (void)me;
    claim_and_stay(suite, shared, HAPAX_EXPIRED_RERUN);
}

static void claim_hold_and_stay(const struct suite *suite, struct shared *shared, unsigned me)
{
    (void)me;
    claim_and_stay(suite, shared, HAPAX_EXPIRED_HOLD);
}

/* Kills the holder of a claim, and asks until its lease is over. */
static struct hapax_op outlive(const struct suite *suite,
                               void (*work)(const struct suite *, struct shared *, unsigned))
{
    struct shared *shared = share();
    pid_t pid = start_child(suite, shared, 0, work);
    int64_t deadline_ms = monotonic_ms() + WAIT_MS;
    struct hapax_store *store;
    struct hapax_op op;
    unsigned in_flight = 0;

    wait_for_count(&shared->ready, 1);
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid, "kill");
    store = open_store(suite);
    for (;;) {
        op = op_of(suite, HAPAX_OP_CLAIM, 1, 2);
        run_op(store, &op);
        if (op.verdict != HAPAX_IN_FLIGHT)
            break;
        CHECK(op.now_us < op.record.lease_until_us, "in flight though its lease is over");
        CHECK(monotonic_ms() < deadline_ms, "in flight for ever");
        in_flight++;
    }
    printf("# asked %u times in vain\n", in_flight);
    hapax_store_close(store);
    return op;
}

/* kill -9 of the holder: after the lease the next one gets the claim, and it is stale. */
static void a_killed_holder_is_taken_over_under_rerun(const struct suite *suite) /* promise 6 */
{
    struct hapax_op op = outlive(suite, claim_rerun_and_stay);

    CHECK(op.verdict == HAPAX_CLAIMED, "%s", hapax_verdict_name(op.verdict));
    CHECK(op.record.attempt == 2 && op.record.stale, "attempt %u", op.record.attempt);
}

/* kill -9 of the holder under hold: nobody gets the claim. */
static void a_killed_holder_leaves_unknown_under_hold(const struct suite *suite) /* promise 5 */
{
    struct hapax_op op = outlive(suite, claim_hold_and_stay);

    CHECK(op.verdict == HAPAX_UNKNOWN, "%s", hapax_verdict_name(op.verdict));
    CHECK(op.record.attempt == 1, "attempt %u", op.record.attempt);
}

static void claim_and_be_stopped(const struct suite *suite, struct shared *shared, unsigned me)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = op_of(suite, HAPAX_OP_CLAIM, 1, 1);

    (void)shared;
    (void)me;
    op.lease_ms = 100;
    run_op(store, &op);
    CHECK(op.verdict == HAPAX_CLAIMED, "%s", hapax_verdict_name(op.verdict));
    raise(SIGSTOP);
    op = op_of(suite, HAPAX_OP_RENEW, 1, 1);
    run_op(store, &op);
    CHECK(op.verdict == HAPAX_LOST, "RENEW: %s", hapax_verdict_name(op.verdict));
    op = op_of(suite, HAPAX_OP_COMPLETE, 1, 1);
    op.outcome.status = 299;
    run_op(store, &op);
    CHECK(op.verdict == HAPAX_LOST, "COMPLETE: %s", hapax_verdict_name(op.verdict));
    CHECK(op.record.outcome.status == 201, "it does not learn what stands");
    hapax_store_close(store);
}

/* Stopped for longer than its lease and woken: LOST, and what the other one stored stands. */
static void a_stopped_holder_wakes_up_lost(const struct suite *suite) /* promise 2 */
{
    pid_t pid = start_child(suite, share(), 0, claim_and_be_stopped);
    struct hapax_store *store;
    struct hapax_op op;
    int status;

    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "it did not stop");
    store = open_store(suite);
    do {
        op = op_of(suite, HAPAX_OP_CLAIM, 1, 2);
        run_op(store, &op);
    } while (op.verdict == HAPAX_IN_FLIGHT);
    CHECK(op.verdict == HAPAX_CLAIMED, "%s", hapax_verdict_name(op.verdict));
    op = op_of(suite, HAPAX_OP_COMPLETE, 1, 2);
    op.outcome.status = 201;
    run_op(store, &op);
    CHECK(op.verdict == HAPAX_OK, "%s", hapax_verdict_name(op.verdict));
    CHECK(kill(pid, SIGCONT) == 0, "kill");
    expect_end(pid);
    op = op_of(suite, HAPAX_OP_READ, 1, 0);
    run_op(store, &op);
    CHECK(op.record.outcome.status == 201, "the woken process changed the outcome");
    hapax_store_close(store);
}

/* ---- the storm ----------------------------------------------------------------------- */

static void run_storm_op(const struct storm_client *client, struct hapax_op *op)
{
    run_op(client->store, op);
}

static void storm(const struct suite *suite, struct shared *shared, unsigned me)
{
    struct storm_client client = {.suite = suite,
                                  .storm = &shared->storm,
                                  .store = open_store(suite),
                                  .slot = me,
                                  .random = suite->seed * 100 + (uint64_t)getpid(),
                                  .reads_max = 256,
                                  .run = run_storm_op};

    storm_run(&client);
    hapax_store_close(client.store);
}

static void look_back(const struct suite *suite, struct shared *shared)
{
    struct storm_client client = {
        .suite = suite, .storm = &shared->storm, .store = open_store(suite), .run = run_storm_op};

    storm_look_back(&client);
    hapax_store_close(client.store);
}

/* Whether a storm has met what it is for. Where processes take long to begin, few come to do
 * anything before they are killed. */
static bool has_happened(const struct storm *seen, unsigned kills)
{
    unsigned acknowledged = atomic_load(&seen->acknowledged);

    return kills > 0 && acknowledged > 0 &&
           (kills < 50 || acknowledged < 100 ||
            (atomic_load(&seen->taken_over) && atomic_load(&seen->unknown)));
}

/* Processes claim, complete and are killed at any moment: under hold no effect happens twice, no
 * two answers differ, no acknowledged completion is lost, no key is stranded. It goes on, with
 * fewer kills, until all that was to happen has. */
static void a_storm_of_kills_loses_nothing(const struct suite *suite) /* promise 3 */
{
    struct shared *shared = share();
    struct storm *seen = &shared->storm;
    struct timespec pause = {0, KILL_EVERY_MS * 1000000};
    int64_t start_ms = monotonic_ms();
    int64_t all_ms = 1000 * (int64_t)suite->seconds;
    unsigned keys = all_ms / 4 < STORM_KEYS - WINDOW ? (unsigned)(all_ms / 4) : STORM_KEYS - WINDOW;
    uint64_t random = suite->seed;
    unsigned kills = 0, inside = 0;
    bool happened;
    pid_t pids[CHILDREN_MAX];

    seen->window = WINDOW;
    for (unsigned i = 0; i < suite->children; i++)
        pids[i] = start_child(suite, shared, i, storm);
    while (monotonic_ms() < start_ms + all_ms ||
           (!has_happened(seen, kills) && monotonic_ms() < start_ms + all_ms + WAIT_MS)) {
        int64_t passed_ms = monotonic_ms() - start_ms;
        unsigned first = (unsigned)(keys * passed_ms / all_ms);
        unsigned i = (unsigned)(next_random(&random) % suite->children);
        int status;

        atomic_store(&seen->first, first < STORM_KEYS - WINDOW ? first : STORM_KEYS - WINDOW);
        if (passed_ms > all_ms)
            pause.tv_nsec = 4 * KILL_EVERY_MS * 1000000;
        nanosleep(&pause, NULL); /* the rate of kills; nothing is awaited here */
        CHECK(kill(pids[i], SIGKILL) == 0 && waitpid(pids[i], &status, 0) == pids[i], "kill");
        CHECK(WIFSIGNALED(status), "child %u had ended with %d", i, status);
        inside += atomic_exchange(&seen->in_op[i], 0) != 0;
        kills++;
        pids[i] = start_child(suite, shared, i, storm);
    }
    happened = has_happened(seen, kills); /* what is done meanwhile may ask for more of it */
    atomic_store(&seen->over, true);
    for (unsigned i = 0; i < suite->children; i++)
        expect_end(pids[i]);
    printf("# %u kills, %u inside an op; %u ops, %u completed, %u replayed, %u taken over, "
           "%u times unknown\n",
           kills, inside, atomic_load(&seen->ops), atomic_load(&seen->acknowledged),
           atomic_load(&seen->replayed), atomic_load(&seen->taken_over),
           atomic_load(&seen->unknown));
    look_back(suite, shared);
    CHECK(happened, "nothing happened, or no kill left a claim behind");
}

const struct test_case process_cases[] = {
    {"each_key_has_one_winner", each_key_has_one_winner, true, false},
    {"a_killed_holder_is_taken_over_under_rerun", a_killed_holder_is_taken_over_under_rerun, true,
     false},
    {"a_killed_holder_leaves_unknown_under_hold", a_killed_holder_leaves_unknown_under_hold, true,
     false},
    {"a_stopped_holder_wakes_up_lost", a_stopped_holder_wakes_up_lost, true, false},
    {"a_storm_of_kills_loses_nothing", a_storm_of_kills_loses_nothing, true, false},
    {NULL, NULL, false, false},
};
