/* SPDX-License-Identifier: Apache-2.0
 *
 * What no breaker may do: turn a claim away while the store may live, ask a dead store more often
 * than by one claim each half second, or less often, and let a claim wait for another that does.
 * The checker judges by what the process was told, with times of its own, and never reads the
 * breaker.
 */
#include "sim.h"

#define PROBE_US (500 * MS)
#define DEAD_US  (5 * SECOND)

static struct proc *proc_of(struct sim *s, const struct call *call)
{
    return &s->procs[call->proc];
}

static bool undecided(const struct call *call)
{
    return call->flow.phase == HAPAX__FLOW_LOOKING || call->flow.phase == HAPAX__FLOW_CLAIMING;
}

void watch_start(struct proc *proc)
{
    proc->watch = (struct watch){.heard_us = -1};
}

void watch_begins(struct sim *s, struct call *call)
{
    const struct watch *watch = &proc_of(s, call)->watch;
    int64_t now_us = local_us(s, proc_of(s, call));

    call->beginning = true;
    call->began_local_us = now_us;
    call->dead = watch->vain == 2 && now_us < watch->failed_us + DEAD_US;
    if (watch->vain == 2 && !call->dead)
        sim_mark(s, MARK_dead_store_doubted);
}

void watch_told(struct sim *s, const struct call *call)
{
    struct watch *watch = &proc_of(s, call)->watch;
    const struct hapax_op *op = &call->flow.op;
    bool claiming = undecided(call) || call->flow.phase == HAPAX__FLOW_WAITING;

    if (op->verdict == HAPAX_NO_VERDICT && !(claiming && op->error == HAPAX_ERR_CORRUPT))
        return;
    if (watch->vain == 2)
        sim_mark(s, MARK_dead_store_back);
    watch->vain = 0;
    watch->heard_us = local_us(s, proc_of(s, call));
}

void watch_asks(struct sim *s, const struct call *call)
{
    struct watch *watch = &proc_of(s, call)->watch;
    int64_t now_us = local_us(s, proc_of(s, call));

    if (!call->beginning || call->asks > 0 || !call->dead)
        return;
    if (now_us < watch->probe_us)
        sim_fail(s, "g one claim asks a dead store each half second", "call %d asks it, too",
                 (int)(call - s->calls));
    watch->probe_us = now_us + PROBE_US;
    sim_mark(s, MARK_dead_store_probed);
}

/* Whether another call asks the same, and waits for the store. */
static bool joins(const struct sim *s, const struct call *call)
{
    for (int i = 0; i < s->calls_count; i++) {
        const struct call *other = &s->calls[i];

        if (other != call && other->state == CALL_LIVE && same_question(call, other) &&
            (undecided(other) || other->flow.phase == HAPAX__FLOW_WAITING))
            return true;
    }
    return false;
}

bool refused_unasked(const struct call *call)
{
    return call->beginning && call->asks == 0 && !call->stopped;
}

void watch_gives_up(struct sim *s, const struct call *call)
{
    struct watch *watch = &proc_of(s, call)->watch;
    int64_t now_us = local_us(s, proc_of(s, call));

    if (refused_unasked(call)) {
        if (!call->dead)
            sim_fail(s, "g only a dead store is not asked", "call %d", (int)(call - s->calls));
        else if (now_us >= watch->probe_us && !joins(s, call))
            sim_fail(s, "g one claim asks a dead store each half second",
                     "call %d is to, and does not", (int)(call - s->calls));
        sim_mark(s, MARK_dead_store_refused);
        return;
    }
    if (call->stopped || watch->heard_us >= call->began_local_us)
        return;
    watch->failed_us = now_us;
    if (watch->vain < 2 && ++watch->vain == 2)
        watch->probe_us = now_us;
}

void watch_begun(struct sim *s, struct call *call)
{
    call->beginning = false;
    if (call->dead && call->state == CALL_LIVE && call->asks == 0 && undecided(call))
        sim_fail(s, "g nobody waits for a dead store", "call %d", (int)(call - s->calls));
}
