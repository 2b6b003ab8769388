/* SPDX-License-Identifier: Apache-2.0
 *
 * Plays many seeds in several processes, and adds up what they met. It fails if a rule was broken
 * or a rare branch was never met. A seed that fails is printed; `--seed N --trace` shows what
 * happened.
 */
#include "sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define JOBS_MAX 64

/* What one process has done. It is in shared memory, so that it survives the process's death. */
struct totals {
    uint64_t seed; /* the last that was begun */
    uint64_t schedules, ops, faults, calls;
    uint64_t marks[MARKS_COUNT];
    bool failed;
    bool finished;
    char rule[48];
    char text[160];
};

struct arguments {
    uint64_t first, count;
    double seconds; /* 0: until count */
    unsigned jobs;
    bool one, trace, twice, marks;
};

static const char *const mark_names[] = {
#define NAME(name) #name,
    MARKS(NAME)
#undef NAME
};

static struct sim sim;

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void run_seeds(struct totals *totals, const struct arguments *args, uint64_t first)
{
    double end = seconds_now() + args->seconds;

    for (uint64_t i = first; i < args->count && !totals->failed; i += args->jobs) {
        if (args->seconds > 0 && totals->schedules % 64 == 0 && seconds_now() >= end)
            break;
        totals->seed = args->first + i;
        sim_run(&sim, totals->seed, NULL);
        totals->schedules++;
        totals->ops += sim.ops;
        totals->faults += sim.faults_count;
        totals->calls += (uint64_t)sim.calls_count;
        if (sim.failed) {
            totals->failed = true;
            memcpy(totals->rule, sim.rule, sizeof(sim.rule));
            memcpy(totals->text, sim.text, sizeof(sim.text));
        }
        if (args->twice && !sim.failed) {
            uint64_t hash = sim.hash;

            sim_run(&sim, totals->seed, NULL);
            totals->failed = sim.hash != hash;
            snprintf(totals->rule, sizeof(totals->rule), "the same seed is the same schedule");
        }
    }
    memcpy(totals->marks, sim.marks, sizeof(sim.marks));
    totals->finished = true;
}

static int run_one(uint64_t seed, bool trace)
{
    sim_run(&sim, seed, trace ? stdout : NULL);
    printf("seed %" PRIu64 ": %u ops, %u faults, hash %016" PRIx64 "\n", seed, sim.ops,
           sim.faults_count, sim.hash);
    if (sim.failed)
        printf("violation: seed %" PRIu64 " rule \"%s\": %s\n", seed, sim.rule, sim.text);
    return sim.failed;
}

/* Prints the first seed that failed, by a rule or by the death of its process. */
static bool report_failures(const struct totals *totals, unsigned jobs)
{
    bool failed = false;

    for (unsigned j = 0; j < jobs; j++) {
        const struct totals *t = &totals[j];

        if (t->failed)
            printf("violation: seed %" PRIu64 " rule \"%s\": %s\n", t->seed, t->rule, t->text);
        else if (!t->finished)
            printf("violation: seed %" PRIu64 " rule \"assert\": the process died\n", t->seed);
        failed |= t->failed || !t->finished;
    }
    return failed;
}

static bool report_totals(const struct totals *totals, unsigned jobs, double seconds, bool marks)
{
    struct totals sum = {0};
    bool missing = false;

    for (unsigned j = 0; j < jobs; j++) {
        sum.schedules += totals[j].schedules;
        sum.ops += totals[j].ops;
        sum.faults += totals[j].faults;
        sum.calls += totals[j].calls;
        for (int m = 0; m < MARKS_COUNT; m++)
            sum.marks[m] += totals[j].marks[m];
    }
    printf("%" PRIu64 " schedules, %" PRIu64 " calls, %" PRIu64 " ops, %" PRIu64
           " faults in %.1f s: %.0f schedules/s\n",
           sum.schedules, sum.calls, sum.ops, sum.faults, seconds, (double)sum.schedules / seconds);
    for (int m = 0; m < MARKS_COUNT; m++) {
        printf("%12" PRIu64 " %s\n", sum.marks[m], mark_names[m]);
        if (marks && sum.marks[m] == 0) {
            printf("never met: %s\n", mark_names[m]);
            missing = true;
        }
    }
    return missing;
}

static int run_many(const struct arguments *args)
{
    struct totals *totals = mmap(NULL, JOBS_MAX * sizeof(*totals), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double begin = seconds_now();
    pid_t children[JOBS_MAX];
    bool failed;

    if (totals == MAP_FAILED)
        return 2;
    for (unsigned j = 0; j < args->jobs; j++) {
        children[j] = fork();
        if (children[j] == 0) {
            run_seeds(&totals[j], args, j);
            _exit(0);
        }
    }
    for (unsigned j = 0; j < args->jobs; j++)
        if (children[j] > 0)
            waitpid(children[j], NULL, 0);
    failed = report_totals(totals, args->jobs, seconds_now() - begin, args->marks);
    failed |= report_failures(totals, args->jobs);
    return failed;
}

int main(int argc, char **argv)
{
    struct arguments args = {.first = 1, .count = 10000, .jobs = 2};

    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;

        if (strcmp(argv[i], "--seed") == 0 && more) {
            args.one = true;
            args.first = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--first") == 0 && more) {
            args.first = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--schedules") == 0 && more) {
            args.count = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0 && more) {
            args.seconds = strtod(argv[++i], NULL);
            args.count = UINT64_MAX;
        } else if (strcmp(argv[i], "--jobs") == 0 && more) {
            args.jobs = (unsigned)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--trace") == 0) {
            args.trace = true;
        } else if (strcmp(argv[i], "--twice") == 0) {
            args.twice = true;
        } else if (strcmp(argv[i], "--marks") == 0) {
            args.marks = true;
        } else {
            args.jobs = 0;
        }
    }
    if (args.jobs == 0 || args.jobs > JOBS_MAX || args.count == 0) {
        fprintf(stderr, "usage: sim [--first N] [--schedules N | --seconds N] [--jobs N] [--marks] "
                        "[--twice]\n"
                        "       sim --seed N [--trace]\n");
        return 2;
    }
    return args.one ? run_one(args.first, args.trace) : run_many(&args);
}
