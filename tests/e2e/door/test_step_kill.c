/* SPDX-License-Identifier: Apache-2.0
 *
 * test_step_kill [ROUNDS [URI]]: kill -9 between and inside the steps of an operation
 * (promise 42).
 *
 * In a round one operation of three steps is executed by one process after another. Each kills
 * itself at a point drawn for it, the last one at none. The callee of a step is a folder: an
 * effect is a file named by the key it was given, made once (an idempotent callee); each call
 * adds a byte to another file. With `rerun` each effect is there once, and a step was called
 * again only where a process died within it, after the call; nobody ever calls a step whose
 * outcome was stored. With `hold` no step is called twice, whoever died where. Half of the
 * rounds reach the store through a keeper, which stays; in the others each process holds it
 * itself, and takes it along. With a URI all use that store.
 */
#include <hapax/store.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS_DEFAULT 20
#define STEPS          3
#define DEATHS_MAX     2
#define LEASE_MS       250
#define PATIENCE_MS    60000

/* Where a process dies: before a step, in it before or after its call, or after the last one. */
enum where { BEFORE, WITHIN, CALLED };
#define POINTS (STEPS * 3 + 1)

#define must(claim)                                                                                \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "%s:%d: round %u of seed %u: not so: %s\n", __FILE__, __LINE__,        \
                    bed.round, bed.seed, #claim);                                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct {
    char path[64];
    char uri[512];
    unsigned seed;
    unsigned round;
    pid_t test;
    pid_t keeper;
} bed;

static const char *const names[STEPS] = {"charge", "reserve", "mail"};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- in a child ---------------------------------------------------------------------------- */

struct child {
    char key[32];
    bool hold;
    int dies_at; /* a point, or POINTS: nowhere */
    int step;
    int folder;
};

static void pass(const struct child *child, int step, enum where where)
{
    if (child->dies_at == step * 3 + (int)where)
        kill(getpid(), SIGKILL);
}

/* The callee: a call is a byte in KEY.calls, its effect is KEY itself. */
static enum hapax_class call(struct hapax_attempt *attempt, void *arg)
{
    const struct child *child = arg;
    struct hapax_span key = hapax_attempt_key(attempt);
    char name[300];
    int fd;

    pass(child, child->step, WITHIN);
    snprintf(name, sizeof(name), "%.*s.calls", (int)key.len, (const char *)key.ptr);
    fd = openat(child->folder, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    must(fd >= 0 && write(fd, "c", 1) == 1 && close(fd) == 0);
    snprintf(name, sizeof(name), "%.*s", (int)key.len, (const char *)key.ptr);
    fd = openat(child->folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    must(fd >= 0 || errno == EEXIST);
    if (fd >= 0)
        close(fd);
    pass(child, child->step, CALLED);
    must(hapax_attempt_outcome(attempt, 201, hapax_str(NULL), key) == HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

static enum hapax_class handle(struct hapax_attempt *attempt, void *arg)
{
    struct child *child = arg;

    for (child->step = 0; child->step < STEPS; child->step++) {
        struct hapax_answer answer;
        char text[HAPAX_TEXT_MAX];
        bool done;

        pass(child, child->step, BEFORE);
        must(hapax_step(attempt, names[child->step], call, child, &answer, text) == HAPAX_ERR_NONE);
        done = answer.kind == HAPAX_ANSWER_FRESH || answer.kind == HAPAX_ANSWER_REPLAY;
        must(!done || answer.outcome.status == 201);
        hapax_answer_release(&answer);
        if (!done)
            return HAPAX_CLASS_FAILED;
    }
    pass(child, STEPS, BEFORE);
    must(hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str("ordered")) ==
         HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

/* Exit status: the answer's kind, and 0x40 where it says that all is done. */
static int execute(struct child *child)
{
    struct hapax_request request = {.scope = hapax_str("kill"), .key = hapax_str(child->key)};
    struct hapax_policy policy;
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;
    int status;

    hapax_policy_init(&policy);
    policy.lease_ms = LEASE_MS;
    policy.wait_ms = PATIENCE_MS;
    policy.timeout_ms = PATIENCE_MS;
    policy.save_wait_ms = PATIENCE_MS;
    policy.on_expired = child->hold ? HAPAX_EXPIRED_HOLD : HAPAX_EXPIRED_RERUN;
    must(hapax_open(&h, bed.uri, NULL, text) == HAPAX_ERR_NONE);
    must(hapax_execute(h, &policy, &request, handle, NULL, child, &answer, text) == HAPAX_ERR_NONE);
    status = (int)answer.kind | (answer.outcome.status == 201 ? 0x40 : 0);
    hapax_answer_release(&answer);
    must(hapax_close(h, PATIENCE_MS) == 0);
    return status;
}

static pid_t begin_child(void)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != bed.test)
            _exit(1);
    }
    return pid;
}

/* ---- in the test ----------------------------------------------------------------------- */

/* The exit status; -1: it was killed. */
static int run_child(const struct child *as)
{
    pid_t pid = begin_child();
    int status;

    if (pid == 0) {
        struct child child = *as;

        _exit(execute(&child));
    }
    must(waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status)) {
        must(WTERMSIG(status) == SIGKILL);
        return -1;
    }
    must(WEXITSTATUS(status) != 1);
    return WEXITSTATUS(status);
}

static void start_keeper(void)
{
    int ready[2];
    char byte;

    must(pipe2(ready, O_CLOEXEC) == 0);
    bed.keeper = begin_child();
    if (bed.keeper == 0) {
        struct hapax_store *store;
        char text[HAPAX_TEXT_MAX];

        must(hapax_store_open(&store, bed.uri, text) == HAPAX_ERR_NONE);
        must(write(ready[1], "r", 1) == 1);
        for (;;)
            pause();
    }
    close(ready[1]);
    must(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
}

static void stop_keeper(void)
{
    if (bed.keeper <= 0)
        return;
    kill(bed.keeper, SIGKILL);
    waitpid(bed.keeper, NULL, 0);
    bed.keeper = 0;
}

static void count_calls(const struct child *child, size_t step, off_t *calls, bool *effect)
{
    struct stat stat;
    char name[100];

    snprintf(name, sizeof(name), "%s:%s.calls", child->key, names[step]);
    *calls = fstatat(child->folder, name, &stat, 0) == 0 ? stat.st_size : 0;
    snprintf(name, sizeof(name), "%s:%s", child->key, names[step]);
    *effect = fstatat(child->folder, name, &stat, 0) == 0;
}

static void round_with_rerun(struct child *child, const int *points, size_t deaths)
{
    off_t again[STEPS] = {0};

    for (size_t i = 0; i < deaths; i++) {
        int status;

        child->dies_at = points[i];
        /* A point within what was done already is not passed again. */
        status = run_child(child);
        must(status == -1 || (status & 0x40));
        if (status == -1 && points[i] % 3 == CALLED)
            again[points[i] / 3]++;
    }
    child->dies_at = POINTS;
    must(run_child(child) & 0x40);
    must(run_child(child) == (0x40 | HAPAX_ANSWER_REPLAY));
    for (size_t step = 0; step < STEPS; step++) {
        off_t calls;
        bool effect;

        count_calls(child, step, &calls, &effect);
        must(effect && calls == 1 + again[step]);
    }
}

/* A call after a death is answered UNKNOWN, and is left to an operator. */
static void round_with_hold(struct child *child, int point)
{
    child->dies_at = point;
    must(run_child(child) == -1);
    child->dies_at = POINTS;
    must(run_child(child) == HAPAX_ANSWER_UNKNOWN);
    for (size_t step = 0; step < STEPS; step++) {
        off_t calls;
        bool effect;

        count_calls(child, step, &calls, &effect);
        must(calls == (point >= (int)step * 3 + CALLED) && effect == (calls == 1));
    }
}

static int draw(int n)
{
    static unsigned long long state;

    if (state == 0)
        state = bed.seed * 2862933555777941757ull + 3037000493ull;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((state >> 33) % (unsigned)n);
}

static void play_round(int folder, bool own_store)
{
    struct child child = {.folder = folder};
    int points[DEATHS_MAX];
    size_t deaths = 1 + (size_t)draw(DEATHS_MAX);

    snprintf(child.key, sizeof(child.key), "k%u", bed.round);
    for (size_t i = 0; i < deaths; i++)
        points[i] = draw(POINTS);
    child.hold = bed.round % 5 == 4;
    if (own_store && bed.round % 2 == 0)
        start_keeper();
    if (child.hold)
        round_with_hold(&child, points[0]);
    else
        round_with_rerun(&child, points, deaths);
    stop_keeper();
}

static int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *ftw)
{
    (void)stat;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void clean_up(void)
{
    if (getpid() != bed.test)
        return;
    stop_keeper();
    if (bed.path[0])
        nftw(bed.path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : ROUNDS_DEFAULT;
    const char *seed = getenv("HAPAX_TEST_SEED");
    int64_t begun_ms = now_ms();
    int folder;

    bed.test = getpid();
    bed.seed = seed ? (unsigned)strtoul(seed, NULL, 10) : (unsigned)time(NULL);
    hapax_rocksdb_use();
    snprintf(bed.path, sizeof(bed.path), "/tmp/hapax-step-XXXXXX");
    must(mkdtemp(bed.path));
    (void)atexit(clean_up);
    if (argc > 2)
        snprintf(bed.uri, sizeof(bed.uri), "%s", argv[2]);
    else
        snprintf(bed.uri, sizeof(bed.uri), "rocksdb:%s/store", bed.path);
    folder = open(bed.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(folder >= 0);
    printf("1..1\n# seed %u\n", bed.seed);
    for (bed.round = 0; bed.round < rounds; bed.round++)
        play_round(folder, argc <= 2);
    close(folder);
    printf("ok 1 - each_step_takes_effect_once # %lu rounds in %lld ms\n", rounds,
           (long long)(now_ms() - begun_ms));
    return 0;
}
