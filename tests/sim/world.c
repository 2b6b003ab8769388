/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop. At first everything may fail. From the calm on no network, store or process fails any
 * more: patient clients call each operation once more, and the world must come to rest. Then every
 * flow has ended, and every client has an answer, each within a bound. The calm is what finds the
 * stranded. Last, when each lease is over and handlers and hooks work again, too, one client asks
 * for each operation, alone. Its answer must be the one that the record asks for: an operation that
 * nobody can end any more is found here.
 */
#include "sim.h"

#include <string.h>

#define EVENTS_PER_SCHEDULE 50000
#define REST_WITHIN_US      (600 * SECOND)

static void pause_process(struct sim *s, int n)
{
    struct proc *proc = &s->procs[n];
    int64_t until_us = s->now_us + sim_between(s, s->lease_ms / 4, 6 * s->lease_ms) * MS;

    if (until_us > s->calm_us)
        until_us = s->calm_us;
    TRACE(s, "p%d PAUSE until %lld us", n, (long long)until_us);
    s->faults_count++;
    if (until_us - s->now_us > s->lease_ms * MS)
        sim_mark(s, MARK_pause_over_lease);
    if (until_us > proc->paused_until_us)
        proc->paused_until_us = until_us;
}

static void outage(struct sim *s, bool begins)
{
    int64_t until_us = s->now_us + sim_between(s, 10, 3 * s->lease_ms) * MS;

    if (!begins) {
        s->store.down = false;
        TRACE(s, "        STORE UP");
        return;
    }
    if (s->store.down)
        return;
    TRACE(s, "        STORE DOWN");
    s->store.down = true;
    s->store.net_epoch++;
    sim_fault(s, MARK_store_outage);
    sim_at(s, until_us < s->calm_us ? until_us : s->calm_us - 1, EVENT_OUTAGE, 0, 1);
}

static void restart_store(struct sim *s)
{
    TRACE(s, "        STORE RESTART");
    s->store.net_epoch++;
    sim_fault(s, MARK_store_restart);
    if (sim_chance(s, s->swarm.clock_jumps)) {
        /* Sometimes over the time for which a refusal is kept. */
        s->store.jump_us += sim_chance(s, 400) ? sim_between(s, 0, 2 * MINUTE)
                                               : sim_between(s, 1, 3 * s->lease_ms) * MS;
        sim_fault(s, MARK_store_clock_jump);
    }
}

static void begin_calm(struct sim *s)
{
    TRACE(s, "        CALM");
    s->calm = true;
    s->faults = (struct faults){0};
    for (int id = 0; id < s->ids_count; id++)
        for (int i = 0; i < 2; i++)
            sim_at(s, s->now_us + sim_between(s, 0, 30 * MS), EVENT_CALL, draw_call(s, id, true),
                   0);
}

/* The process in which an event happens; -1: in none. */
static int process_of(const struct sim *s, const struct event *event)
{
    switch ((enum event_kind)event->kind) {
    case EVENT_CALL:
    case EVENT_TIMEOUT:
    case EVENT_WAKE:
    case EVENT_HOOK:
    case EVENT_STOP:
        return s->calls[event->who].proc;
    case EVENT_REPLY:
        return s->calls[s->msgs[event->who].call].proc;
    case EVENT_END:
        return s->calls[s->execs[event->who].call].proc;
    case EVENT_EFFECT:
        return s->execs[event->who].remote ? -1 : s->calls[s->execs[event->who].call].proc;
    default:
        return -1;
    }
}

static void time_out(struct sim *s, int n, uint32_t ask)
{
    struct call *call = &s->calls[n];

    if (call->state != CALL_LIVE || !call->asking || call->ask != ask)
        return;
    call->flow.op.verdict = HAPAX_NO_VERDICT;
    call->flow.op.error = HAPAX_ERR_INDETERMINATE;
    door_told(s, n);
}

static void handle_door(struct sim *s, const struct event *event)
{
    int who = event->who;

    switch ((enum event_kind)event->kind) {
    case EVENT_CALL:
        door_call(s, who);
        return;
    case EVENT_REPLY:
        network_reply(s, who);
        return;
    case EVENT_TIMEOUT:
        time_out(s, who, event->stamp);
        return;
    case EVENT_WAKE:
        if (s->calls[who].state == CALL_LIVE && s->calls[who].wake_stamp == event->stamp)
            door_wake(s, who);
        return;
    case EVENT_EFFECT:
        door_effect(s, who);
        return;
    case EVENT_END:
        door_end(s, who, event->stamp);
        return;
    case EVENT_HOOK:
        door_hook(s, who);
        return;
    default:
        door_stop(s, who);
    }
}

void sim_handle(struct sim *s, const struct event *event)
{
    sim_mix(s, (uint64_t)event->at_us << 8 ^ event->kind);
    switch ((enum event_kind)event->kind) {
    case EVENT_REQUEST:
        network_request(s, event->who);
        return;
    case EVENT_PAUSE:
        pause_process(s, event->who);
        return;
    case EVENT_CRASH:
        door_crash(s, event->who);
        return;
    case EVENT_OUTAGE:
        outage(s, event->stamp == 0);
        return;
    case EVENT_RESTART:
        restart_store(s);
        return;
    case EVENT_OPERATOR:
        operator_acts(s);
        return;
    case EVENT_PURGE:
        store_purge(s);
        return;
    case EVENT_CALM:
        begin_calm(s);
        return;
    default:
        handle_door(s, event);
    }
}

void sim_rest(struct sim *s)
{
    struct event event;
    unsigned events = 0;

    while (!s->failed && sim_take(s, &event)) {
        int proc = process_of(s, &event);

        if (s->now_us < event.at_us)
            s->now_us = event.at_us;
        if (proc >= 0 && s->procs[proc].paused_until_us > s->now_us) {
            sim_at(s, s->procs[proc].paused_until_us, (enum event_kind)event.kind, event.who,
                   event.stamp);
            continue;
        }
        sim_handle(s, &event);
        if (++events > EVENTS_PER_SCHEDULE || s->now_us > s->calm_us + REST_WITHIN_US)
            sim_fail(s, "d quiescence", "no rest %lld ms after the faults",
                     (long long)((s->now_us - s->calm_us) / MS));
    }
}

/* All works again, and no lease is left. Each operation is asked for once, by its own request. */
void sim_heal(struct sim *s)
{
    TRACE(s, "        HEALED");
    s->healed = true;
    for (int id = 0; id < s->ids_count && s->calls_count < CALLS_MAX; id++) {
        struct call *call = &s->calls[draw_call(s, id, true)];

        call->healing = true;
        call->keyless = false;
        call->policy.wait_ms = 60000;
        call->variant = s->shadows[id].present ? s->shadows[id].variant : 0;
        sim_at(s, s->now_us + 3 * s->lease_ms * MS + 6 * SECOND, EVENT_CALL, (int)(call - s->calls),
               0);
    }
    sim_rest(s);
    if (!s->failed)
        check_quiet(s);
}

void sim_begin(struct sim *s, uint64_t seed, FILE *trace)
{
    memset(s, 0, offsetof(struct sim, heap));
    s->seed = seed;
    s->random = seed * UINT64_C(0xd1342543de82ef95) + 1;
    s->trace = trace;
    s->heap_count = 0;
    s->heap_seq = 0;
    s->calls_count = s->execs_count = s->results_count = 0;
    for (int i = 0; i < MSGS_MAX; i++)
        s->msgs[i].used = false;
    memset(&s->store, 0, offsetof(struct sim, marks) - offsetof(struct sim, store));
    draw_world(s);
}

void sim_run(struct sim *s, uint64_t seed, FILE *trace)
{
    sim_begin(s, seed, trace);
    sim_at(s, s->calm_us, EVENT_CALM, 0, 0);
    sim_rest(s);
    /* A schedule with few events is continued: its next request is lost. */
    while (!s->failed && (s->ops < OPS_MIN || s->faults_count == 0)) {
        if (s->calls_count == CALLS_MAX) {
            sim_fail(s, "every schedule has ops and a fault", "%u ops, %u faults", s->ops,
                     s->faults_count);
            return;
        }
        s->faults.request_lost = s->faults_count == 0 ? 500 : 0;
        sim_at(s, s->now_us + MS, EVENT_CALL, draw_call(s, 0, true), 0);
        sim_rest(s);
    }
    s->faults.request_lost = 0;
    if (!s->failed)
        sim_heal(s);
}
