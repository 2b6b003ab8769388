/* SPDX-License-Identifier: Apache-2.0
 *
 * What a lane costs one caller alone. The baseline is the least that could do the lane's work: a
 * condition variable there, an eventfd back, nothing in between. Both take turns in one run, in
 * small rounds, once with caller and thread on one core and once on two cores. Left to the
 * scheduler, one of them may get a core that wakes at once and the other a core that sleeps, which
 * differ sixfold. The figure is the ratio of the medians of the rounds' medians.
 *
 *     lane_bench [--seconds N]   exit 1: a lane takes over 1.5 times as long on one core or on two
 */
#include "bench.h"
#include "lane/lane.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TRIPS      100 /* in a round */
#define ROUNDS_MAX 20000
#define RATIO_MAX  1.5

static int64_t median(int64_t *values, size_t n)
{
    qsort(values, n, sizeof(*values), by_size);
    return values[n / 2];
}

static void wait_for(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    if (poll(&poll_fd, 1, 10000) != 1)
        die("no answer within ten seconds", NULL);
}

/* ---- the lane ---------------------------------------------------------------------- */

static void lane_trip(struct hapax__lane *lane)
{
    struct hapax__job job;
    struct hapax__job *done;

    memset(&job, 0, sizeof(job));
    job.op.kind = HAPAX_OP_READ;
    job.op.id.bytes[0] = 1;
    if (!hapax__lane_submit(lane, &job))
        die("the lane is full", NULL);
    do {
        wait_for(hapax__lane_fd(lane));
        done = hapax__lane_reap(lane);
    } while (!done);
    if (done != &job || job.op.verdict != HAPAX_ABSENT)
        die("a wrong answer", NULL);
    free(job.memory);
}

static struct hapax__lane *lane_new(void)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;
    struct hapax__lane *lane;

    if (hapax_store_open(&store, "memory:", text) != HAPAX_ERR_NONE)
        die(text, NULL);
    if (hapax__lane_open(&lane, store, 1) != HAPAX_ERR_NONE)
        die("cannot open a lane", NULL);
    return lane;
}

/* ---- the bare ping-pong ------------------------------------------------------------ */

struct bare {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool asked;
    bool ending;
    int fd;
};

static void *bare_main(void *arg)
{
    struct bare *bare = arg;
    uint64_t one = 1;

    pthread_mutex_lock(&bare->lock);
    for (;;) {
        while (!bare->asked && !bare->ending)
            pthread_cond_wait(&bare->wake, &bare->lock);
        if (bare->ending)
            break;
        bare->asked = false;
        pthread_mutex_unlock(&bare->lock);
        if (write(bare->fd, &one, sizeof(one)) != (ssize_t)sizeof(one))
            die("cannot write to an eventfd", NULL);
        pthread_mutex_lock(&bare->lock);
    }
    pthread_mutex_unlock(&bare->lock);
    return NULL;
}

static void bare_ask(struct bare *bare, bool *what)
{
    pthread_mutex_lock(&bare->lock);
    *what = true;
    pthread_cond_signal(&bare->wake);
    pthread_mutex_unlock(&bare->lock);
}

static void bare_trip(struct bare *bare)
{
    uint64_t count;

    bare_ask(bare, &bare->asked);
    wait_for(bare->fd);
    if (read(bare->fd, &count, sizeof(count)) != (ssize_t)sizeof(count))
        die("cannot read an eventfd", NULL);
}

static void bare_open(struct bare *bare)
{
    memset(bare, 0, sizeof(*bare));
    pthread_mutex_init(&bare->lock, NULL);
    pthread_cond_init(&bare->wake, NULL);
    bare->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (bare->fd < 0 || pthread_create(&bare->thread, NULL, bare_main, bare) != 0)
        die("cannot start a thread", NULL);
}

static void bare_close(struct bare *bare)
{
    bare_ask(bare, &bare->ending);
    pthread_join(bare->thread, NULL);
    close(bare->fd);
    pthread_cond_destroy(&bare->wake);
    pthread_mutex_destroy(&bare->lock);
}

/* -------------------------------------------------------------------------------------- */

static int64_t lane_ns[ROUNDS_MAX], bare_ns[ROUNDS_MAX];

static size_t measure(struct hapax__lane *lane, struct bare *bare, int64_t seconds)
{
    int64_t end = now_ns() + seconds * 1000000000;
    int64_t trips[TRIPS];
    size_t rounds = 0;

    while (rounds < ROUNDS_MAX && (rounds == 0 || now_ns() < end)) {
        for (size_t i = 0; i < TRIPS; i++) {
            int64_t from = now_ns();

            lane_trip(lane);
            trips[i] = now_ns() - from;
        }
        lane_ns[rounds] = median(trips, TRIPS);
        for (size_t i = 0; i < TRIPS; i++) {
            int64_t from = now_ns();

            bare_trip(bare);
            trips[i] = now_ns() - from;
        }
        bare_ns[rounds++] = median(trips, TRIPS);
    }
    return rounds;
}

static int64_t seconds_of(int argc, char **argv)
{
    char *end;
    long seconds;

    if (argc == 1)
        return 3;
    if (argc != 3 || strcmp(argv[1], "--seconds") != 0)
        die("usage: lane_bench [--seconds N]", NULL);
    errno = 0;
    seconds = strtol(argv[2], &end, 10);
    if (errno != 0 || *end != '\0' || end == argv[2] || seconds < 1 || seconds > 600)
        die("--seconds takes 1 to 600", NULL);
    return seconds;
}

/* Threads begin on the core of the one that starts them, and stay there. */
static void move_to(size_t core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        die("cannot choose a core", NULL);
}

/* The first and the last core this process may use. */
static void cores(size_t *first, size_t *last)
{
    cpu_set_t set;

    *first = CPU_SETSIZE;
    *last = CPU_SETSIZE;
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        die("cannot read which cores there are", NULL);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set)) {
            *first = *first == CPU_SETSIZE ? i : *first;
            *last = i;
        }
}

/* Whether a lane is fast enough with its thread on one core and its caller on another. */
static bool compare(const char *name, size_t theirs, size_t ours, int64_t seconds)
{
    struct hapax__lane *lane;
    struct bare bare;
    double lane_us, bare_us;
    size_t rounds;

    move_to(theirs);
    lane = lane_new();
    bare_open(&bare);
    move_to(ours);
    rounds = measure(lane, &bare, seconds);
    bare_close(&bare);
    hapax__lane_close(lane);
    lane_us = (double)median(lane_ns, rounds) / 1000;
    bare_us = (double)median(bare_ns, rounds) / 1000;
    printf("%s: lane p50 %.2f us, bare p50 %.2f us, ratio %.2f (at most %.2f), %zu rounds of %d\n",
           name, lane_us, bare_us, lane_us / bare_us, RATIO_MAX, rounds, TRIPS);
    return lane_us <= bare_us * RATIO_MAX;
}

int main(int argc, char **argv)
{
    int64_t seconds = seconds_of(argc, argv);
    size_t first, last;
    bool fast;

    cores(&first, &last);
    fast = compare("one core", first, first, seconds);
    if (last != first)
        fast &= compare("two cores", first, last, seconds);
    return fast ? 0 : 1;
}
