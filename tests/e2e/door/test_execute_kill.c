/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that die, or are stopped, while they run a handler: kill -9 and SIGSTOP against
 * hapax_execute() over one RocksDB store. Each process is a child of the test and tells through
 * a pipe what it is doing; it goes on at a byte through another. The test itself opens no store.
 */
#include "../../cases.h"

#include <hapax/store.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS       30000
#define LEASE_MS      600
#define PROCESSES_MAX 8

enum handler { RUNS_THROUGH, WAITS_TO_GO_ON, RUNS_UNTIL_LOST };
enum event { OPENED = 1, RUNNING, ANSWERED };

struct report {
    enum event event;
    enum hapax_answer_kind kind;
    bool recorded;
    bool stale;
    uint32_t attempt;
    uint64_t fence;
    char body[64];
};

struct process {
    pid_t pid;
    int from;
    int to;
};

static struct bed {
    char path[64];
    char uri[128];
    struct process processes[PROCESSES_MAX];
    size_t count;
} bed;

/* ---- in a child ---------------------------------------------------------------------- */

#define must(claim)                                                                                \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #claim);                    \
            _exit(9);                                                                              \
        }                                                                                          \
    } while (0)

struct child {
    const char *body;
    enum handler handler;
    enum hapax_on_expired on_expired;
    int in;
    int out;
};

static void tell(const struct child *child, const struct report *report)
{
    must(write(child->out, report, sizeof(*report)) == (ssize_t)sizeof(*report));
}

static void await(const struct child *child)
{
    char byte;

    must(read(child->in, &byte, 1) == 1);
}

static void await_loss(struct hapax_attempt *attempt)
{
    const struct timespec moment = {0, 1000000};

    for (int i = 0; !hapax_attempt_lost(attempt); i++) {
        must(i < WAIT_MS);
        nanosleep(&moment, NULL);
    }
}

static enum hapax_class handle(struct hapax_attempt *attempt, void *arg)
{
    const struct child *child = arg;
    struct report report = {.event = RUNNING};

    report.attempt = hapax_attempt_number(attempt);
    report.fence = hapax_attempt_fence(attempt);
    report.stale = hapax_attempt_stale(attempt);
    tell(child, &report);
    if (child->handler == WAITS_TO_GO_ON)
        await(child);
    else if (child->handler == RUNS_UNTIL_LOST)
        await_loss(attempt);
    must(hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str(child->body)) ==
         HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

static void call(struct child *child)
{
    struct hapax_request request = {.key = hapax_str("k")};
    struct report report = {.event = OPENED};
    struct hapax_policy policy;
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;

    hapax_policy_init(&policy);
    policy.lease_ms = LEASE_MS;
    policy.wait_ms = WAIT_MS;
    policy.timeout_ms = WAIT_MS;
    policy.on_expired = child->on_expired;
    must(hapax_open(&h, bed.uri, NULL, text) == HAPAX_ERR_NONE);
    tell(child, &report);
    await(child);
    must(hapax_execute(h, &policy, &request, handle, NULL, child, &answer, text) == HAPAX_ERR_NONE);
    report.event = ANSWERED;
    report.kind = answer.kind;
    report.recorded = answer.recorded;
    report.attempt = answer.attempt;
    report.fence = answer.fence;
    snprintf(report.body, sizeof(report.body), "%.*s", (int)answer.outcome.body.len,
             answer.outcome.body.len > 0 ? (const char *)answer.outcome.body.ptr : "");
    hapax_answer_release(&answer);
    tell(child, &report);
    await(child);
    must(hapax_close(h, WAIT_MS) == 0);
}

/* Holds the store, and so serves it to the others. */
static void hold(struct child *child)
{
    struct report report = {.event = OPENED};
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];

    must(hapax_store_open(&store, bed.uri, text) == HAPAX_ERR_NONE);
    tell(child, &report);
    await(child);
    hapax_store_close(store);
}

/* ---- in the test --------------------------------------------------------------------- */

static struct process *start(void (*role)(struct child *child), const struct child *as)
{
    struct process *process = &bed.processes[bed.count];
    int in[2], out[2];

    assert_true(bed.count < PROCESSES_MAX);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    fflush(NULL);
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) {
        struct child child = *as;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(in[1]);
        close(out[0]);
        child.in = in[0];
        child.out = out[1];
        hapax_rocksdb_use();
        role(&child);
        _exit(0);
    }
    bed.count++;
    close(in[0]);
    close(out[1]);
    process->to = in[1];
    process->from = out[0];
    return process;
}

static struct report expect(struct process *process, enum event event)
{
    struct pollfd fd = {.fd = process->from, .events = POLLIN};
    struct report report;

    assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
    assert_int_equal(read(process->from, &report, sizeof(report)), sizeof(report));
    assert_int_equal(report.event, event);
    return report;
}

static void go_on(struct process *process)
{
    assert_int_equal(write(process->to, "g", 1), 1);
}

static struct process *holder(void)
{
    const struct child as = {.body = ""};
    struct process *process = start(hold, &as);

    expect(process, OPENED);
    return process;
}

/* One that has opened the store and will call when told to go on. */
static struct process *caller(const char *body, enum handler handler,
                              enum hapax_on_expired on_expired)
{
    const struct child as = {body, handler, on_expired, -1, -1};
    struct process *process = start(call, &as);

    expect(process, OPENED);
    return process;
}

static void stop(struct process *process, int signal)
{
    int status;

    assert_int_equal(kill(process->pid, signal), 0);
    assert_int_equal(waitpid(process->pid, &status, WUNTRACED), process->pid);
    assert_true(signal == SIGSTOP ? WIFSTOPPED(status) : WIFSIGNALED(status));
    if (signal != SIGSTOP)
        process->pid = -1;
}

/* It ends well by itself. */
static void finish(struct process *process)
{
    int status;

    go_on(process);
    assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
    process->pid = -1;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int set_up(void **state)
{
    memset(&bed, 0, sizeof(bed));
    snprintf(bed.path, sizeof(bed.path), "/tmp/hapax-kill-XXXXXX");
    if (!mkdtemp(bed.path))
        return -1;
    snprintf(bed.uri, sizeof(bed.uri), "rocksdb:%s/store", bed.path);
    return 0;
}

static int remove_one(const char *path, const struct stat *stat, int flag, struct FTW *ftw)
{
    (void)stat;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static int tear_down(void **state)
{
    for (size_t i = 0; i < bed.count; i++) {
        if (bed.processes[i].pid > 0) {
            kill(bed.processes[i].pid, SIGKILL);
            waitpid(bed.processes[i].pid, NULL, 0);
        }
        close(bed.processes[i].from);
        close(bed.processes[i].to);
    }
    return nftw(bed.path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- killed -------------------------------------------------------------------------- */

/* With `rerun` the next caller waits for the lease to end, and then runs as the next attempt. */
CASE_WITH(a_killed_runner_is_followed_after_its_lease, set_up, tear_down)
{
    struct process *keeper = holder();
    struct process *first = caller("of the dead", WAITS_TO_GO_ON, HAPAX_EXPIRED_RERUN);
    struct process *second = caller("of the next", RUNS_THROUGH, HAPAX_EXPIRED_RERUN);
    struct report before, after;
    int64_t begun_ms = now_ms();

    go_on(first);
    before = expect(first, RUNNING);
    stop(first, SIGKILL);
    go_on(second);
    after = expect(second, RUNNING);
    assert_true(now_ms() - begun_ms >= LEASE_MS);
    assert_int_equal(before.attempt, 1);
    assert_false(before.stale);
    assert_int_equal(after.attempt, 2);
    assert_true(after.stale && after.fence > before.fence);
    after = expect(second, ANSWERED);
    assert_int_equal(after.kind, HAPAX_ANSWER_FRESH);
    assert_true(after.recorded);
    assert_string_equal(after.body, "of the next");
    finish(second);
    finish(keeper);
}

/* With `hold` nobody runs again: an operator has to find out what happened. */
CASE_WITH(a_killed_runner_under_hold_is_unknown, set_up, tear_down)
{
    struct process *keeper = holder();
    struct process *first = caller("of the dead", WAITS_TO_GO_ON, HAPAX_EXPIRED_HOLD);
    /* The stricter of record and caller wins. */
    struct process *second = caller("of the next", RUNS_THROUGH, HAPAX_EXPIRED_RERUN);
    struct report report;

    go_on(first);
    expect(first, RUNNING);
    stop(first, SIGKILL);
    go_on(second);
    report = expect(second, ANSWERED);
    assert_int_equal(report.kind, HAPAX_ANSWER_UNKNOWN);
    assert_string_equal(report.body, "");
    finish(second);
    finish(keeper);
}

/* The claim is on disk, so it outlives the process that also held the store. */
CASE_WITH(a_killed_holder_leaves_its_claim_to_the_next, set_up, tear_down)
{
    struct process *first = caller("of the dead", WAITS_TO_GO_ON, HAPAX_EXPIRED_RERUN);
    struct process *client = caller("of the client", RUNS_THROUGH, HAPAX_EXPIRED_RERUN);
    struct process *keeper;
    struct report report;
    int64_t begun_ms = now_ms();

    go_on(first);
    expect(first, RUNNING);
    go_on(client); /* waits, by way of the keeper that dies next */
    stop(first, SIGKILL);
    keeper = holder();
    report = expect(client, RUNNING);
    assert_true(now_ms() - begun_ms >= LEASE_MS);
    assert_int_equal(report.attempt, 2);
    assert_true(report.stale);
    report = expect(client, ANSWERED);
    assert_int_equal(report.kind, HAPAX_ANSWER_FRESH);
    assert_true(report.recorded);
    finish(client);
    finish(keeper);
}

/* What was answered was stored before: it is replayed after everybody was killed. */
CASE_WITH(an_answer_given_is_replayed_after_a_kill, set_up, tear_down)
{
    struct process *first = caller("of the dead", RUNS_THROUGH, HAPAX_EXPIRED_RERUN);
    struct process *second;
    struct report report;

    go_on(first);
    expect(first, RUNNING);
    report = expect(first, ANSWERED);
    assert_int_equal(report.kind, HAPAX_ANSWER_FRESH);
    assert_true(report.recorded);
    stop(first, SIGKILL);
    second = caller("of the next", RUNS_THROUGH, HAPAX_EXPIRED_RERUN);
    go_on(second);
    report = expect(second, ANSWERED);
    assert_int_equal(report.kind, HAPAX_ANSWER_REPLAY);
    assert_string_equal(report.body, "of the dead");
    finish(second);
}

/* ---- stopped ------------------------------------------------------------------------- */

/* One that slept through its lease, and what it gives when woken: the other's outcome. */
static void wake_a_zombie(enum handler handler)
{
    struct process *keeper = holder();
    struct process *zombie = caller("of the zombie", handler, HAPAX_EXPIRED_RERUN);
    struct process *other = caller("of the other", RUNS_THROUGH, HAPAX_EXPIRED_RERUN);
    struct process *third = caller("of the third", RUNS_THROUGH, HAPAX_EXPIRED_RERUN);
    struct report report;

    go_on(zombie);
    expect(zombie, RUNNING);
    stop(zombie, SIGSTOP);
    go_on(other);
    report = expect(other, RUNNING);
    assert_int_equal(report.attempt, 2);
    report = expect(other, ANSWERED);
    assert_int_equal(report.kind, HAPAX_ANSWER_FRESH);
    if (handler == WAITS_TO_GO_ON)
        go_on(zombie);
    assert_int_equal(kill(zombie->pid, SIGCONT), 0);
    report = expect(zombie, ANSWERED);
    assert_int_equal(report.kind, HAPAX_ANSWER_REPLAY);
    assert_int_equal(report.attempt, 2);
    assert_string_equal(report.body, "of the other");
    go_on(third);
    report = expect(third, ANSWERED);
    assert_int_equal(report.kind, HAPAX_ANSWER_REPLAY);
    assert_string_equal(report.body, "of the other");
    finish(zombie);
    finish(other);
    finish(third);
    finish(keeper);
}

/* The handler that looks is told that its claim is lost. */
CASE_WITH(a_zombie_that_looks_is_told, set_up, tear_down)
{
    wake_a_zombie(RUNS_UNTIL_LOST);
}

/* The handler that does not look ends as if nothing had been, and changes nothing. */
CASE_WITH(a_zombie_that_does_not_look_changes_nothing, set_up, tear_down)
{
    wake_a_zombie(WAITS_TO_GO_ON);
}
