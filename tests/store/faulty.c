/* SPDX-License-Identifier: Apache-2.0
 *
 * The store that fails on purpose. It hands a batch on in pieces: the ops that meet no fault go
 * together, so that the store inside still judges batches, and each op that meets one goes alone,
 * in its place in the order. The invariant: what is answered UNAVAILABLE was never handed on.
 *
 * Answers are copied out of the memory of the store inside, which every piece resets. A wrapper
 * around hapax_store_run() itself was not taken: faults would pass by what that promises.
 */
#include "faulty.h"

#include "base/arena.h"
#include "base/fail.h"
#include "store/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct faulty {
    struct hapax_store base;
    struct hapax_store_type type; /* as base.type: the limits are those of inner */
    struct hapax_store *inner;
    struct hapax__plan *plan;
};

/* ---- the plan ------------------------------------------------------------------------ */

void hapax__plan_init(struct hapax__plan *plan)
{
    pthread_condattr_t attr;

    memset(plan, 0, sizeof(*plan));
    pthread_mutex_init(&plan->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&plan->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void hapax__plan_release(struct hapax__plan *plan)
{
    assert(plan->held == 0);
    pthread_cond_destroy(&plan->changed);
    pthread_mutex_destroy(&plan->lock);
}

void hapax__plan_set(struct hapax__plan *plan, enum hapax__fault fault, uint64_t at, uint64_t times)
{
    pthread_mutex_lock(&plan->lock);
    plan->decide = NULL;
    plan->fault = fault;
    plan->at = at;
    plan->times = times;
    plan->number = 0;
    pthread_mutex_unlock(&plan->lock);
}

void hapax__plan_decide(struct hapax__plan *plan, hapax__decide *decide, void *arg)
{
    pthread_mutex_lock(&plan->lock);
    plan->decide = decide;
    plan->arg = arg;
    plan->number = 0;
    pthread_mutex_unlock(&plan->lock);
}

void hapax__plan_crash(struct hapax__plan *plan, void (*crash)(void *arg), void *arg)
{
    pthread_mutex_lock(&plan->lock);
    plan->crash = crash;
    plan->crash_arg = arg;
    pthread_mutex_unlock(&plan->lock);
}

static struct timespec deadline_of(int64_t timeout_ms)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += timeout_ms / 1000;
    at.tv_nsec += timeout_ms % 1000 * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

bool hapax__plan_wait(struct hapax__plan *plan, uint32_t n, int64_t timeout_ms)
{
    struct timespec deadline = deadline_of(timeout_ms);
    int failed = 0;
    bool held;

    pthread_mutex_lock(&plan->lock);
    while (plan->held < n && failed == 0)
        failed = pthread_cond_timedwait(&plan->changed, &plan->lock, &deadline);
    held = plan->held >= n;
    pthread_mutex_unlock(&plan->lock);
    return held;
}

void hapax__plan_go(struct hapax__plan *plan)
{
    pthread_mutex_lock(&plan->lock);
    plan->releases++;
    plan->held = 0;
    pthread_cond_broadcast(&plan->changed);
    pthread_mutex_unlock(&plan->lock);
}

struct hapax__plan_counts hapax__plan_counts(struct hapax__plan *plan)
{
    struct hapax__plan_counts counts;

    pthread_mutex_lock(&plan->lock);
    counts.ops = plan->ops;
    counts.applied = plan->applied;
    counts.runs = plan->runs;
    counts.longest = plan->longest;
    pthread_mutex_unlock(&plan->lock);
    return counts;
}

static void note_run(struct hapax__plan *plan, size_t n)
{
    pthread_mutex_lock(&plan->lock);
    plan->runs++;
    if (n > plan->longest)
        plan->longest = n;
    pthread_mutex_unlock(&plan->lock);
}

static void note_applied(struct hapax__plan *plan, size_t n)
{
    pthread_mutex_lock(&plan->lock);
    plan->applied += n;
    pthread_mutex_unlock(&plan->lock);
}

static enum hapax__fault fault_of(struct hapax__plan *plan, const struct hapax_op *op)
{
    enum hapax__fault fault = HAPAX__NO_FAULT;

    pthread_mutex_lock(&plan->lock);
    plan->ops++;
    plan->number++;
    if (plan->decide)
        fault = plan->decide(plan->arg, plan->number, op);
    else if (plan->at > 0 && plan->number >= plan->at && plan->number - plan->at < plan->times)
        fault = plan->fault;
    pthread_mutex_unlock(&plan->lock);
    return fault;
}

static void hold(struct hapax__plan *plan)
{
    uint64_t releases;

    pthread_mutex_lock(&plan->lock);
    releases = plan->releases;
    plan->held++;
    pthread_cond_broadcast(&plan->changed);
    while (plan->releases == releases)
        pthread_cond_wait(&plan->changed, &plan->lock);
    pthread_mutex_unlock(&plan->lock);
}

static void crash(struct hapax__plan *plan)
{
    void (*hook)(void *arg);
    void *arg;

    pthread_mutex_lock(&plan->lock);
    hook = plan->crash;
    arg = plan->crash_arg;
    pthread_mutex_unlock(&plan->lock);
    assert(hook);
    hook(arg);
}

/* ---- run ----------------------------------------------------------------------------- */

/* Into the memory of this handle. False: out of memory. */
static bool keep(struct faulty *faulty, struct hapax_op *op)
{
    if (op->count > 0) {
        size_t size = op->count * sizeof(*op->records);
        struct hapax_record *records = hapax_store_memory(&faulty->base, size);

        if (!records)
            return false;
        op->records = memcpy(records, op->records, size);
    }
    return hapax__store_keep(&faulty->base, op);
}

static void apply(struct faulty *faulty, struct hapax_op *ops, size_t n)
{
    enum hapax_error error;

    if (n == 0)
        return;
    note_applied(faulty->plan, n);
    error = hapax_store_run(faulty->inner, ops, n);
    if (error != HAPAX_ERR_NONE)
        hapax_store_fail(&faulty->base, error, "%s", hapax_store_text(faulty->inner));
    for (size_t i = 0; i < n; i++)
        if (ops[i].verdict != HAPAX_NO_VERDICT && !keep(faulty, &ops[i])) {
            ops[i].verdict = HAPAX_NO_VERDICT;
            ops[i].error = HAPAX_ERR_INDETERMINATE;
            hapax_store_fail(&faulty->base, HAPAX_ERR_INDETERMINATE, "out of memory for an answer");
        }
}

/* As if nothing had come back: the op is as it was asked. */
static void apply_and_lose(struct faulty *faulty, struct hapax_op *op)
{
    struct hapax_op asked = *op;

    apply(faulty, op, 1);
    *op = asked;
    hapax_store_fail(&faulty->base, HAPAX_ERR_INDETERMINATE, "no reply came: lost on purpose");
}

/* False: the store died with this op. */
static bool meet(struct faulty *faulty, struct hapax_op *op, enum hapax__fault fault)
{
    struct hapax_op first = *op;

    switch (fault) {
    case HAPAX__FAIL_BEFORE:
        op->error = hapax_store_fail(&faulty->base, HAPAX_ERR_UNAVAILABLE,
                                     "cannot reach the store: refused on purpose");
        return true;
    case HAPAX__LOSE_OP:
        hapax_store_fail(&faulty->base, HAPAX_ERR_INDETERMINATE, "no reply came: not sent");
        return true;
    case HAPAX__LOSE_REPLY:
        apply_and_lose(faulty, op);
        return true;
    case HAPAX__DELAY:
        hold(faulty->plan);
        apply(faulty, op, 1);
        return true;
    case HAPAX__DELAY_REPLY:
        apply(faulty, op, 1);
        hold(faulty->plan);
        return true;
    case HAPAX__DUPLICATE:
        apply(faulty, &first, 1);
        apply(faulty, op, 1);
        return true;
    default:
        assert(fault == HAPAX__CRASH_BEFORE || fault == HAPAX__CRASH_AFTER);
        if (fault == HAPAX__CRASH_AFTER)
            apply_and_lose(faulty, op);
        crash(faulty->plan);
        hapax_store_fail(&faulty->base, HAPAX_ERR_INDETERMINATE, "no reply came: crashed");
        return false;
    }
}

static enum hapax_error first_error(const struct hapax_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ops[i].verdict == HAPAX_NO_VERDICT)
            return ops[i].error;
    return HAPAX_ERR_NONE;
}

static enum hapax_error faulty_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct faulty *faulty = (struct faulty *)store;
    size_t from = 0;
    bool alive = true;

    note_run(faulty->plan, n);
    for (size_t i = 0; i < n && alive; i++) {
        enum hapax__fault fault = fault_of(faulty->plan, &ops[i]);

        if (fault == HAPAX__NO_FAULT)
            continue;
        apply(faulty, ops + from, i - from);
        from = i + 1;
        alive = meet(faulty, &ops[i], fault);
    }
    if (alive)
        apply(faulty, ops + from, n - from);
    return first_error(ops, n);
}

/* ---- the others ---------------------------------------------------------------------- */

static enum hapax_error faulty_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct faulty *faulty = (struct faulty *)store;
    enum hapax_error error = hapax_store_check(faulty->inner, say, arg);

    say(arg, true, "a faulty store fails on purpose: for tests only");
    if (error != HAPAX_ERR_NONE)
        hapax_store_fail(store, error, "%s", hapax_store_text(faulty->inner));
    return error;
}

static void faulty_close(struct hapax_store *store)
{
    struct faulty *faulty = (struct faulty *)store;

    hapax_store_close(faulty->inner);
    free(faulty);
}

static struct faulty *faulty_new(struct hapax_store *inner, struct hapax__plan *plan)
{
    struct faulty *faulty = calloc(1, sizeof(*faulty));

    if (!faulty)
        return NULL;
    faulty->type = *inner->type;
    faulty->type.scheme = "faulty";
    faulty->type.open = NULL;
    faulty->type.run = faulty_run;
    faulty->type.check = faulty_check;
    faulty->type.close = faulty_close;
    faulty->base.type = &faulty->type;
    faulty->inner = inner;
    faulty->plan = plan;
    return faulty;
}

enum hapax_error hapax__faulty_wrap(struct hapax_store **out, struct hapax_store *inner,
                                    struct hapax__plan *plan)
{
    struct faulty *faulty = faulty_new(inner, plan);

    *out = NULL;
    if (!faulty)
        return HAPAX_ERR_NOMEM;
    /* As hapax_store_open() does and hapax_store_close() undoes. */
    faulty->base.arena = calloc(1, sizeof(*faulty->base.arena));
    if (!faulty->base.arena) {
        free(faulty);
        return HAPAX_ERR_NOMEM;
    }
    *out = &faulty->base;
    return HAPAX_ERR_NONE;
}

static pthread_mutex_t used_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hapax__plan *used;

static enum hapax_error faulty_open(struct hapax_store **out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    struct hapax_store *inner;
    struct hapax__plan *plan;
    struct faulty *faulty;
    enum hapax_error error = hapax_store_open(&inner, uri + strlen("faulty:"), text);

    if (error != HAPAX_ERR_NONE)
        return error;
    pthread_mutex_lock(&used_lock);
    plan = used;
    pthread_mutex_unlock(&used_lock);
    faulty = faulty_new(inner, plan);
    if (!faulty) {
        hapax_store_close(inner);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store \"%.200s\": out of memory",
                           uri);
    }
    *out = &faulty->base;
    return HAPAX_ERR_NONE;
}

/* What finds it by its scheme; each handle has a type of its own. */
static const struct hapax_store_type opener = {
    .scheme = "faulty",
    .batch_max = 1,
    .open = faulty_open,
};

void hapax__faulty_use(struct hapax__plan *plan)
{
    pthread_mutex_lock(&used_lock);
    used = plan;
    pthread_mutex_unlock(&used_lock);
    hapax__store_add(&opener);
}
