/* SPDX-License-Identifier: Apache-2.0
 *
 * What disks, kills and want of memory do to the embedded store: nothing that was acknowledged is
 * lost, reads go on, and it recovers by itself when the fault ends.
 *
 *     test_rocksdb_crash [KILLS [CASE]]    2000 for a soak
 */
#include "rocksdb_fixture.h"

#include "../cases.h"
#include "failing_io.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define RECOVER_US INT64_C(60000000)

static const char *self;
static unsigned kills = 200;

/* ---- faults of the disk -------------------------------------------------------------- */

#define ROUND_OPS 8u /* operations of one round */

struct books {
    uint64_t next; /* the number of the next operation */
    uint64_t *acked; /* those whose completion was acknowledged */
    size_t count;
    unsigned refused; /* ops that were UNAVAILABLE */
    unsigned uncertain; /* ops that were INDETERMINATE */
};

static void note_error(struct books *books, const struct hapax_op *op)
{
    if (op->verdict != HAPAX_NO_VERDICT)
        return;
    assert_true(op->error == HAPAX_ERR_UNAVAILABLE || op->error == HAPAX_ERR_INDETERMINATE);
    books->refused += op->error == HAPAX_ERR_UNAVAILABLE;
    books->uncertain += op->error == HAPAX_ERR_INDETERMINATE;
}

/* Claims and completes some operations, each step in one batch; the disk may fail meanwhile. */
static void work(struct fixture *f, struct books *books)
{
    uint8_t bodies[ROUND_OPS][BODY_SIZE];
    struct hapax_op claims[ROUND_OPS], completes[ROUND_OPS];

    for (size_t i = 0; i < ROUND_OPS; i++) {
        claims[i] = claim_of(books->next + i, 1);
        completes[i] = complete_of(books->next + i, 1, body_of(bodies[i], books->next + i));
    }
    hapax_store_run(f->store, claims, ROUND_OPS);
    hapax_store_run(f->store, completes, ROUND_OPS);
    for (size_t i = 0; i < ROUND_OPS; i++) {
        note_error(books, &claims[i]);
        note_error(books, &completes[i]);
        assert_true(claims[i].verdict == HAPAX_CLAIMED || claims[i].verdict == HAPAX_NO_VERDICT);
        if (completes[i].verdict != HAPAX_OK)
            continue;
        books->acked[books->count++] = books->next + i;
    }
    books->next += ROUND_OPS;
}

static void all_are_there(struct fixture *f, const struct books *books, size_t from)
{
    for (size_t i = from; i < books->count; i++)
        if (!is_completed(f->store, books->acked[i]))
            fail_msg("acknowledged completion %zu of %zu is gone: %s", i, books->count,
                     hapax_store_text(f->store));
}

/* Repeats an op with its token until it has a definite verdict. */
static enum hapax_verdict insist(struct fixture *f, uint64_t n,
                                 enum hapax_verdict (*ask)(struct hapax_store *, uint64_t, uint8_t))
{
    int64_t deadline_us = monotonic_us() + RECOVER_US;
    enum hapax_verdict verdict;

    while ((verdict = ask(f->store, n, 1)) == HAPAX_NO_VERDICT) {
        if (monotonic_us() > deadline_us)
            fail_msg("does not recover: %s", hapax_store_text(f->store));
        usleep(1000);
    }
    return verdict;
}

/* The ops of the last round get definite verdicts once the disk works, and so does a new one. */
static void recovers(struct fixture *f, struct books *books)
{
    for (uint64_t n = books->next++ - ROUND_OPS; n < books->next; n++) {
        enum hapax_verdict verdict = insist(f, n, claim);

        assert_true(verdict == HAPAX_CLAIMED || verdict == HAPAX_COMPLETED);
        assert_int_equal(insist(f, n, complete), HAPAX_OK);
        assert_true(is_completed(f->store, n));
    }
}

/* One fault at the nth call; with `ever` for three more rounds. Returns whether an op met it. */
static bool one_fault(struct fixture *f, struct books *books, long nth, bool ever, int error)
{
    size_t before = books->count;
    unsigned failed = books->refused + books->uncertain;

    failing_io_arm(f->path, nth, ever, error);
    for (int i = 0; i < 4; i++) {
        work(f, books);
        if (ever)
            all_are_there(f, books, before > 8 ? before - 8 : 0);
    }
    failing_io_disarm();
    recovers(f, books);
    all_are_there(f, books, before);
    return books->refused + books->uncertain > failed;
}

/* Where no op met the fault, RocksDB's merging of files may have, which the next write would learn:
 * it would fail, and the database be opened again, in the midst of the next fault, which the test
 * means to come upon a database that works. So that it does, the store is closed, which waits for
 * the merging. */
static void fault_at_every_call(void **state, bool ever, int error)
{
    struct fixture *f = *state;
    struct books books = {.next = 1, .acked = calloc(100000, sizeof(*books.acked))};

    assert_non_null(books.acked);
    for (long nth = 1; nth <= 48; nth++) {
        bool met = one_fault(f, &books, nth, ever, error);

        if (!met || nth % 6 == 0) {
            reopen_store(f);
            all_are_there(f, &books, 0);
        }
    }
    assert_true(books.uncertain > 0);
    assert_true(books.count > 0);
    print_message("# %zu acknowledged, %u refused, %u uncertain\n", books.count, books.refused,
                  books.uncertain);
    free(books.acked);
}

/* The disk is full from the nth call on, for every n: no acknowledgement, reads go on, and writes
 * work again when there is room, without anybody opening the store again. */
CASE_WITH(a_full_disk_loses_nothing, make_store, drop_store) /* promise 20 */
{
    fault_at_every_call(state, true, ENOSPC);
}

/* The nth call alone finds no room. */
CASE_WITH(a_moment_without_room_loses_nothing, make_store, drop_store)
{
    fault_at_every_call(state, false, ENOSPC);
}

/* The disk fails from the nth call on, and comes back. */
CASE_WITH(a_failing_disk_loses_nothing, make_store, drop_store)
{
    fault_at_every_call(state, true, EIO);
}

/* The nth call alone fails, a sync among them: what it was to make durable is not believed. */
CASE_WITH(a_moment_of_failure_loses_nothing, make_store, drop_store)
{
    fault_at_every_call(state, false, EIO);
}

/* A write fails, and then the nth call of coming back from that, for every n. */
CASE_WITH(a_fault_while_coming_back_loses_nothing, make_store, drop_store)
{
    static const int errors[] = {ENOSPC, EIO};
    struct fixture *f = *state;
    struct books books = {.next = 1, .acked = calloc(100000, sizeof(*books.acked))};

    assert_non_null(books.acked);
    for (long nth = 1; nth <= 80; nth++) {
        size_t before = books.count;

        work(f, &books);
        failing_io_arm(f->path, 1, false, ENOSPC);
        work(f, &books);
        failing_io_arm(f->path, nth, nth % 4 < 2, errors[nth % 2]);
        for (int i = 0; i < 2; i++)
            work(f, &books);
        failing_io_disarm();
        recovers(f, &books);
        all_are_there(f, &books, before);
    }
    all_are_there(f, &books, 0);
    print_message("# %zu acknowledged, %u refused, %u uncertain\n", books.count, books.refused,
                  books.uncertain);
    free(books.acked);
}

/* Whichever call of coming back fails, what is unfinished to be written down again among them: the
 * error has its reason behind the last colon. */
CASE_WITH(a_failure_to_come_back_says_why, make_store, drop_store)
{
    struct fixture *f = *state;
    const char *text = hapax_store_text(f->store);
    uint64_t n = 1;

    for (long round = 0; round < 72; round++) {
        assert_int_equal(insist(f, n++, claim), HAPAX_CLAIMED);
        failing_io_arm(f->path, 1, false, EIO);
        (void)claim(f->store, n, 1);
        failing_io_arm(f->path, 1 + round % 48, false, EIO);
        for (int i = 0; i < 4 && claim(f->store, n, 1) == HAPAX_NO_VERDICT; i++) {
            assert_true(strlen(text) > 2);
            assert_string_not_equal(text + strlen(text) - 2, ": ");
        }
        failing_io_disarm();
        n++;
    }
}

/* While nothing can be written, ops that write nothing are answered and the others are surely not
 * applied; nothing is synced for them. */
CASE_WITH(reads_go_on_while_the_disk_is_full, make_store, drop_store)
{
    struct fixture *f = *state;
    struct hapax_op ops[4];
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = HAPAX_STATES_OPEN};

    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(complete(f->store, 1, 1), HAPAX_OK);
    assert_int_equal(claim(f->store, 2, 1), HAPAX_CLAIMED);
    failing_io_arm(f->path, 1, true, ENOSPC);
    assert_int_equal(claim(f->store, 3, 1), HAPAX_NO_VERDICT);
    for (int i = 0; i < 3; i++) {
        ops[0] = claim_of(1, 2);
        ops[1] = claim_of(2, 2);
        ops[2] = claim_of(4, 2);
        ops[3] = read_of(4);
        hapax_store_run(f->store, ops, 4);
        assert_int_equal(ops[0].verdict, HAPAX_COMPLETED);
        assert_int_equal(ops[1].verdict, HAPAX_IN_FLIGHT);
        assert_int_equal(ops[2].error, HAPAX_ERR_UNAVAILABLE);
        assert_int_equal(ops[3].verdict, HAPAX_ABSENT);
        assert_non_null(strstr(hapax_store_text(f->store), "No space left"));
        assert_int_equal(run_one(f->store, &list), HAPAX_FOUND);
        assert_int_equal(list.count, 1);
    }
    failing_io_disarm();
}

/* A write failed, and nothing came after it that would have opened the files again. */
CASE_WITH(a_store_may_be_closed_on_a_full_disk, make_folder, drop_store)
{
    static const char *const options[] = {"", "?sync=off"};
    struct fixture *f = *state;

    for (uint64_t i = 0; i < 2; i++) {
        open_store(f, options[i]);
        assert_int_equal(claim(f->store, 2 * i, 1), HAPAX_CLAIMED);
        failing_io_arm(f->path, 1, true, ENOSPC);
        assert_int_equal(claim(f->store, 2 * i + 1, 1), HAPAX_NO_VERDICT);
        close_store(f);
        failing_io_disarm();
        open_store(f, options[i]);
        assert_int_equal(claim(f->store, 2 * i, 2), HAPAX_IN_FLIGHT);
        close_store(f);
    }
}

/* A batch that changes nothing costs the disk nothing. */
CASE_WITH(a_replay_syncs_nothing, make_store, drop_store)
{
    struct fixture *f = *state;
    struct hapax_op ops[2] = {claim_of(1, 2), read_of(1)};

    assert_int_equal(claim(f->store, 1, 1), HAPAX_CLAIMED);
    assert_int_equal(complete(f->store, 1, 1), HAPAX_OK);
    failing_io_arm(f->path, 0, false, EIO);
    assert_int_equal(hapax_store_run(f->store, ops, 2), HAPAX_ERR_NONE);
    assert_int_equal(failing_io_disarm(), 0);
    failing_io_arm(f->path, 0, false, EIO);
    assert_int_equal(claim(f->store, 2, 1), HAPAX_CLAIMED);
    assert_true(failing_io_disarm() >= 2);
}

/* Opening fails at its nth call, for every n: it says so, and the store opens whole afterwards. */
CASE_WITH(a_fault_while_opening_loses_nothing, make_store, drop_store)
{
    static const int errors[] = {ENOSPC, EIO};
    struct fixture *f = *state;
    struct books books = {.next = 1, .acked = calloc(10000, sizeof(*books.acked))};
    unsigned failed = 0;

    assert_non_null(books.acked);
    for (long nth = 1; nth <= 80; nth++) {
        work(f, &books);
        close_store(f);
        failing_io_arm(f->path, nth, nth % 4 < 2, errors[nth % 2]);
        if (hapax_store_open(&f->store, f->uri, f->text) != HAPAX_ERR_NONE) {
            failed++;
            assert_null(f->store);
            assert_true(strlen(f->text) > 0);
        }
        failing_io_disarm();
        close_store(f);
        open_store(f, "");
        all_are_there(f, &books, 0);
    }
    assert_true(failed > 10);
    print_message("# %u of 80 openings failed\n", failed);
    free(books.acked);
}

/* ---- want of memory ------------------------------------------------------------------ */

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);

static atomic_long allocations; /* left until one fails; 0: none will */

static bool starved(void)
{
    return atomic_load(&allocations) > 0 && atomic_fetch_sub(&allocations, 1) == 1;
}

void *__wrap_malloc(size_t size)
{
    return starved() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return starved() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return starved() ? NULL : __real_realloc(p, size);
}

/* Our nth allocation fails, for every n (RocksDB's own do not): what gets no memory is not applied,
 * and what is answered is right. */
CASE_WITH(want_of_memory_applies_nothing, make_folder, drop_store)
{
    struct fixture *f = *state;
    uint8_t body[BODY_SIZE];
    long nth;

    open_store(f, "");
    for (nth = 1; nth <= 400; nth++) {
        uint64_t n = (uint64_t)nth;
        struct hapax_op ops[3] = {claim_of(n, 1),
                                  complete_of(n, 1, body_of(body, n)),
                                  {.kind = HAPAX_OP_LIST, .limit = 4}};
        bool done, open;

        close_store(f);
        atomic_store(&allocations, nth);
        open = hapax_store_open(&f->store, f->uri, f->text) == HAPAX_ERR_NONE;
        if (open)
            hapax_store_run(f->store, ops, 3);
        done = atomic_exchange(&allocations, 0) > 0;
        if (!open) {
            open_store(f, "");
            continue;
        }
        for (size_t i = 0; i < 3; i++)
            assert_true(ops[i].verdict != HAPAX_NO_VERDICT || ops[i].error == HAPAX_ERR_NOMEM);
        if (ops[0].verdict == HAPAX_NO_VERDICT)
            assert_int_equal(claim(f->store, n, 2), HAPAX_CLAIMED);
        else if (ops[1].verdict == HAPAX_NO_VERDICT)
            assert_int_equal(claim(f->store, n, 2), HAPAX_IN_FLIGHT);
        else
            assert_true(is_completed(f->store, n));
        if (done)
            break;
    }
    assert_in_range(nth, 5, 399);
    print_message("# %ld allocations\n", nth);
}

/* A sweep that gets no memory changes nothing, and the next one does it all. */
CASE_WITH(a_sweep_in_want_of_memory_changes_nothing, make_store, drop_store)
{
    struct fixture *f = *state;
    struct hapax_op op = claim_of(1, 1), purge;
    int64_t until_us;
    long nth = 0;

    op.lease_ms = 1;
    op.on_expired = HAPAX_EXPIRED_HOLD;
    assert_int_equal(run_one(f->store, &op), HAPAX_CLAIMED);
    until_us = op.record.lease_until_us;
    do {
        op = read_of(1);
        run_one(f->store, &op);
    } while (op.now_us < until_us);
    do {
        op = read_of(1);
        assert_int_equal(run_one(f->store, &op), HAPAX_FOUND);
        assert_int_equal(op.record.state, HAPAX_STATE_STARTED);
        purge = (struct hapax_op){.kind = HAPAX_OP_PURGE};
        atomic_store(&allocations, ++nth);
        hapax_store_run(f->store, &purge, 1);
        atomic_store(&allocations, 0);
        assert_true(purge.error == HAPAX_ERR_NONE || purge.error == HAPAX_ERR_NOMEM);
        assert_int_equal(purge.expired_claims, purge.error == HAPAX_ERR_NONE);
    } while (purge.error != HAPAX_ERR_NONE);
    assert_true(nth > 1);
    op = read_of(1);
    assert_int_equal(run_one(f->store, &op), HAPAX_FOUND);
    assert_int_equal(op.record.state, HAPAX_STATE_UNKNOWN);
}

/* ---- kill -9 ------------------------------------------------------------------------- */

#define WORK_OPS 4u

/* Claims and completes for ever. Tells its parent `b` before each batch, and the number of each
 * operation whose completion was acknowledged. */
static int work_until_killed(const char *uri, uint64_t from)
{
    struct hapax_store *store = NULL;
    char text[HAPAX_TEXT_MAX];

    hapax_rocksdb_use();
    if (hapax_store_open(&store, uri, text) != HAPAX_ERR_NONE) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    for (uint64_t n = from;; n += WORK_OPS) {
        uint8_t bodies[WORK_OPS][BODY_SIZE];
        struct hapax_op ops[2 * WORK_OPS];
        uint64_t told[1 + WORK_OPS] = {0};

        if (write(STDOUT_FILENO, told, sizeof(*told)) != sizeof(*told))
            return 1;
        for (size_t i = 0; i < WORK_OPS; i++) {
            ops[i] = claim_of(n + i, 1);
            ops[WORK_OPS + i] = complete_of(n + i, 1, body_of(bodies[i], n + i));
            told[1 + i] = n + i;
        }
        if (hapax_store_run(store, ops, WORK_OPS) != HAPAX_ERR_NONE ||
            hapax_store_run(store, ops + WORK_OPS, WORK_OPS) != HAPAX_ERR_NONE)
            return 1;
        if (write(STDOUT_FILENO, told + 1, WORK_OPS * sizeof(*told)) !=
            (ssize_t)(WORK_OPS * sizeof(*told)))
            return 1;
    }
}

static pid_t start_worker(const struct fixture *f, uint64_t from, int *in)
{
    char number[32];
    int out[2];
    pid_t pid;

    assert_int_equal(pipe(out), 0);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)from);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        close(out[1]);
        execl(self, self, "work", f->uri, number, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    close(out[1]);
    *in = out[0];
    return pid;
}

/* Reads what the worker tells until `stop` acknowledgements, or its end. True: its last word was
 * `b`. */
static bool listen_to(int in, struct books *books, size_t stop)
{
    bool inside = false;
    uint64_t word;

    while (books->count < stop && read(in, &word, sizeof(word)) == (ssize_t)sizeof(word)) {
        inside = word == 0;
        if (inside)
            continue;
        books->acked[books->count++] = word;
        books->next = word + 1 > books->next ? word + 1 : books->next;
    }
    return inside;
}

/* Starts a worker, kills it at a moment of its own, opens the store and looks for everything. */
static bool one_kill(struct fixture *f, struct books *books, uint64_t seed)
{
    size_t before = books->count;
    int in, status;
    pid_t pid = start_worker(f, books->next, &in);
    struct timespec moment = {0, (long)(mix(seed) % 2000000)};
    bool inside;

    listen_to(in, books, before + 1 + mix(seed + 1) % 40);
    nanosleep(&moment, NULL);
    assert_int_equal(kill(pid, SIGKILL), 0);
    inside = listen_to(in, books, SIZE_MAX);
    close(in);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_true(books->count > before);
    open_store(f, strchr(f->uri, '?') ? "?sync=off" : "");
    all_are_there(f, books, before);
    close_store(f);
    /* Operations under way at the kill have numbers above: the next worker takes others. */
    books->next += 10 * WORK_OPS;
    return inside;
}

static void kill_in_a_loop(void **state, const char *options, unsigned n)
{
    struct fixture *f = *state;
    struct books books = {.next = 1, .acked = calloc(n * 100 + 100000, sizeof(*books.acked))};
    unsigned inside = 0;

    assert_non_null(books.acked);
    snprintf(f->uri, sizeof(f->uri), "rocksdb:%s%s", f->path, options);
    for (unsigned i = 0; i < n; i++)
        inside += one_kill(f, &books, i * 10);
    open_store(f, options);
    all_are_there(f, &books, 0);
    print_message("# %u kills, %u inside an op, %zu acknowledged\n", n, inside, books.count);
    assert_true(inside * 10 >= n);
    free(books.acked);
}

/* A process killed at any moment loses no completion it was told of. */
CASE_WITH(kills_lose_nothing, make_folder, drop_store) /* promise 20 */
{
    kill_in_a_loop(state, "", kills);
}

/* Nor does it with sync off: that is for power cuts. */
CASE_WITH(kills_lose_nothing_without_sync, make_folder, drop_store) /* promise 21 */
{
    kill_in_a_loop(state, "?sync=off", kills / 5 + 1);
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 4 && strcmp(argv[1], "work") == 0)
        return work_until_killed(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 3)
        cmocka_set_test_filter(argv[2]);
    if (argc >= 2)
        kills = (unsigned)strtoul(argv[1], NULL, 10);
    hapax_rocksdb_use();
    return cases_run(NULL, NULL);
}
