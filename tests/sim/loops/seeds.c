/* SPDX-License-Identifier: Apache-2.0 */
#include "seeds.h"

#include "threads.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct arguments {
    uint64_t first, count;
    double seconds; /* 0: until count */
    bool one, twice, marks, hash;
};

static uint64_t seed_now;

/* An assertion of the product is a rule, too. */
static void died(int signal_number)
{
    char line[96];
    int len = snprintf(line, sizeof(line), "violation: seed %" PRIu64 " rule \"signal %d\"\n",
                       seed_now, signal_number);

    fflush(stdout);
    (void)!write(STDOUT_FILENO, line, (size_t)len);
    _exit(1);
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static bool read_arguments(struct arguments *args, int argc, char **argv)
{
    *args = (struct arguments){.first = 1, .count = 1000};
    for (int i = 1; i < argc; i++) {
        const char *more = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--twice") == 0)
            args->twice = true;
        else if (strcmp(argv[i], "--marks") == 0)
            args->marks = true;
        else if (strcmp(argv[i], "--hash") == 0)
            args->hash = true;
        else if (!more)
            return false;
        else if (strcmp(argv[i], "--seed") == 0)
            args->one = (args->first = strtoull(argv[++i], NULL, 10)) + 1;
        else if (strcmp(argv[i], "--first") == 0)
            args->first = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--schedules") == 0)
            args->count = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            args->seconds = strtod(argv[++i], NULL), args->count = UINT64_MAX;
        else
            return false;
    }
    return args->count > 0;
}

/* The hash of a seed's turns in a process that plays no other. */
static uint64_t hash_alone(uint64_t seed)
{
    char program[256], command[320];
    ssize_t len = readlink("/proc/self/exe", program, sizeof(program) - 1);
    uint64_t hash = 0;
    FILE *out;

    program[len > 0 ? len : 0] = '\0';
    snprintf(command, sizeof(command), "'%s' --first %" PRIu64 " --schedules 1 --hash", program,
             seed);
    out = popen(command, "r");
    if (!out || fscanf(out, "%" SCNx64, &hash) != 1)
        violate("the seed cannot be played by another process");
    if (out)
        pclose(out);
    return hash;
}

static bool play(uint64_t seed, bool twice, void (*schedule)(uint64_t seed))
{
    seed_now = seed;
    schedule(seed);
    if (!sim_failed && twice && hash_alone(seed) != sim_hash)
        violate("the seed is another schedule in a process that plays no other");
    if (sim_failed)
        printf("violation: seed %" PRIu64 " rule \"%s\"\n", seed, sim_rule);
    return !sim_failed;
}

int seeds_main(int argc, char **argv, void (*schedule)(uint64_t seed), const uint64_t *marks,
               const char *const *mark_names, int marks_count)
{
    double begun = seconds_now();
    struct arguments args;
    uint64_t n = 0;
    bool failed = false;

    if (!read_arguments(&args, argc, argv)) {
        fprintf(stderr,
                "usage: %s [--first N] [--schedules N | --seconds N] [--twice] [--marks]\n"
                "       %s --seed N\n",
                argv[0], argv[0]);
        return 2;
    }
    sim_trace = args.one;
    signal(SIGABRT, died);
    signal(SIGSEGV, died);
    while (!failed && n < (args.one ? 1 : args.count)) {
        if (args.seconds > 0 && seconds_now() - begun > args.seconds)
            break;
        failed = !play(args.first + n++, args.twice, schedule);
    }
    if (args.hash)
        printf("%" PRIx64 "\n", sim_hash);
    if (args.one || args.hash)
        return failed;
    printf("%" PRIu64 " schedules in %.1f s\n", n, seconds_now() - begun);
    for (int i = 0; i < marks_count; i++) {
        printf("%12" PRIu64 " %s\n", marks[i], mark_names[i]);
        if (args.marks && !failed && marks[i] == 0) {
            printf("never met: %s\n", mark_names[i]);
            failed = true;
        }
    }
    return failed;
}
