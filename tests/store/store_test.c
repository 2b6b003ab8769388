/* SPDX-License-Identifier: Apache-2.0
 *
 * store_test [--sealed] [--rotated] [--children N] [--seconds S] [--seed X] [--rounds R] URI:
 * one suite for every store.
 *
 * It holds each store to the machine: named rules, random histories compared op by op with a memory
 * store (store_histories.c), and processes that race, die and stop (store_processes.c). A path of
 * `@tmp` is a new folder for each case: `rocksdb:@tmp`; `unix:@tmp` has a keeper over memory. A
 * process that nobody kills holds a `rocksdb:` for those that race and die; test_kills.c kills
 * holders. Each case runs in a process and a process group of its own, which is ended with it.
 * Prints TAP and the seed; the same seed gives the same ops.
 */
#include "store_test.h"

#include "store/keeper/keeper.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- where the store is -------------------------------------------------------------- */

struct holder {
    pid_t pid; /* 0: none */
    int stop; /* closed: it ends */
};

/* Holds the store for other processes, until told to stop. */
static int hold(const struct suite *suite, int ready, int stop)
{
    bool keeper = strncmp(suite->uri, "unix:", 5) == 0;
    struct hapax__keeper_server *server = NULL;
    struct hapax_store *store;
    struct suite inner = *suite;
    char text[HAPAX_TEXT_MAX];
    char byte = 1;

    inner.sealed = inner.rotated = false; /* what others have sealed goes through */
    if (keeper)
        snprintf(inner.uri, sizeof(inner.uri), "memory:");
    store = open_store(&inner);
    if (keeper) {
        struct hapax__keeper_options options = {.path = suite->uri + 5};

        CHECK(hapax__keeper_serve(&server, store, &options, text) == HAPAX_ERR_NONE, "%s", text);
    }
    CHECK(write(ready, &byte, 1) == 1, "write");
    while (read(stop, &byte, 1) < 0 && errno == EINTR)
        ;
    if (keeper)
        hapax__keeper_stop(server);
    else
        hapax_store_close(store);
    return 0;
}

/* False: it did not get to hold the store. */
static bool start_holder(const struct suite *suite, struct holder *holder)
{
    int ready[2], stop[2];
    bool started;
    char byte;

    CHECK(pipe(ready) == 0 && pipe(stop) == 0, "pipe");
    fflush(stdout);
    holder->pid = fork();
    CHECK(holder->pid >= 0, "fork");
    if (holder->pid == 0) {
        close(ready[0]);
        close(stop[1]);
        exit(hold(suite, ready[1], stop[0]));
    }
    close(ready[1]);
    close(stop[0]);
    started = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    holder->stop = stop[1];
    return started;
}

static bool stop_holder(struct holder *holder)
{
    int status;

    if (holder->pid == 0)
        return true;
    close(holder->stop);
    status = wait_for(holder->pid, 20000, false);
    if (status != 0)
        printf("# the holder of the store ended with %d\n", status);
    return status == 0;
}

/* ---- running cases ------------------------------------------------------------------- */

/* Where an operation has two records, it is not walked or imported as one, and a record is that of
 * one of the two: its times, attempt and fence are not those that the claim of both had. */
static bool is_of_one_store(const struct test_case *test)
{
    static const char *const names[] = {
        "an_outcome_goes_with_its_claim",    "a_repeated_op_gives_the_same_answer",
        "a_renewed_claim_is_not_taken_over", "a_sweep_ends_what_was_left_under_hold",
        "a_tombstone_outlives_its_record",   "a_reopened_store_has_every_record",
        "an_imported_record_is_what_it_was", "an_imported_record_leaves_its_tombstone",
        "an_import_takes_nothing_away",      "an_imported_record_may_be_of_any_request",
        "a_random_history_is_the_models",    "long_lists_come_in_pages",
        "a_purge_takes_the_expired_alone",   "what_is_ahead_of_the_clock_is_listed",
        "an_open_question_does_not_expire"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], test->name) == 0)
            return true;
    return false;
}

/* A store that is private to its handle, and gone with it, has no case for many or for later. */
static bool applies(const struct suite *suite, const struct test_case *test)
{
    if (suite->halves && is_of_one_store(test))
        return false;
    return !suite->single || (!test->many && !test->durable);
}

static bool run_case(struct suite *suite, const struct test_case *test)
{
    bool keeper = strncmp(suite->asked, "unix:@tmp", 9) == 0;
    bool held = keeper || (test->many && strncmp(suite->asked, "rocksdb:", 8) == 0);
    struct holder holder = {0, -1};
    bool ok;

    make_folder(suite);
    ok = !held || start_holder(suite, &holder);
    ok = ok && run_alone(suite, test, holder.stop);
    ok = stop_holder(&holder) && ok;
    remove_folder(suite);
    return ok;
}

static int run_all(struct suite *suite)
{
    const struct test_case *const lists[] = {rule_cases, history_cases, process_cases};
    uint64_t seed = suite->seed;
    unsigned count = 0, failed = 0;

    for (size_t l = 0; l < sizeof(lists) / sizeof(lists[0]); l++)
        for (const struct test_case *test = lists[l]; test->name; test++) {
            bool ok;

            if (!applies(suite, test)) {
                printf("# not for this store: %s\n", test->name);
                continue;
            }
            count++;
            suite->seed = seed + count;
            if (suite->fresh)
                snprintf(suite->scope, sizeof(suite->scope), "t%u.", count);
            else
                snprintf(suite->scope, sizeof(suite->scope), "t%u.%d.%llx.", count, (int)getpid(),
                         (unsigned long long)time(NULL));
            ok = run_case(suite, test);
            printf("%s %u - %s\n", ok ? "ok" : "not ok", count, test->name);
            if (!ok)
                printf("# seed 0x%" PRIx64 ", store \"%s\"\n", seed, suite->asked);
            failed += !ok;
        }
    printf("1..%u\n", count);
    return failed > 0;
}

static bool read_number(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 0);
    return errno == 0 && end != text && *end == '\0';
}

static bool parse(struct suite *suite, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        uint64_t value;

        if (name[0] != '-') {
            if (suite->asked)
                return false;
            suite->asked = name;
            continue;
        }
        if (strcmp(name, "--sealed") == 0) {
            suite->sealed = true;
            continue;
        }
        if (strcmp(name, "--rotated") == 0) {
            suite->rotated = true;
            continue;
        }
        if (++i == argc || !read_number(argv[i], &value))
            return false;
        if (strcmp(name, "--seed") == 0)
            suite->seed = value;
        else if (value < 1 || value > 100000)
            return false;
        else if (strcmp(name, "--children") == 0)
            suite->children = (unsigned)value;
        else if (strcmp(name, "--seconds") == 0)
            suite->seconds = (unsigned)value;
        else if (strcmp(name, "--rounds") == 0)
            suite->rounds = (unsigned)value;
        else
            return false;
    }
    return suite->asked && strlen(suite->asked) < 440 && suite->children >= 2 &&
           suite->children <= 64;
}

int main(int argc, char **argv)
{
    struct suite suite = {.children = 8, .seconds = 2, .rounds = 12};

    suite.seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
    if (!parse(&suite, argc, argv)) {
        fprintf(stderr, "usage: store_test [--sealed] [--rotated] [--children 2-64] [--seconds S] "
                        "[--seed X] [--rounds R] URI\n");
        return 2;
    }
#ifdef HAPAX_TEST_ROCKSDB
    hapax_rocksdb_use();
#endif
    suite.single =
        strcmp(suite.asked, "memory:") == 0 || strcmp(suite.asked, "move:memory:+memory:") == 0;
    suite.unordered =
        strncmp(suite.asked, "redis", 5) == 0 || strncmp(suite.asked, "dynamodb", 8) == 0;
    suite.hinted = strncmp(suite.asked, "hybrid:", 7) == 0;
    suite.halves = suite.rotated || strncmp(suite.asked, "move:", 5) == 0;
    suite.fresh = suite.single || strstr(suite.asked, "@tmp");
    signal(SIGPIPE, SIG_IGN);
    printf("# store \"%s\", seed 0x%" PRIx64 "\n", suite.asked, suite.seed);
    return run_all(&suite);
}
