/* SPDX-License-Identifier: Apache-2.0
 *
 * Small worlds, whole: two clients ask for one operation, and every order of what can happen is
 * played. Where the simulator draws, this program chooses: which event comes next, what becomes of
 * a message, what the handler says. It goes through the choices depth first. Each sequence is
 * played from its beginning, by the same flows and machine, and before the same checkers.
 *
 * A sequence has so many steps, and so many faults among them. Then comes the calm, in the order of
 * time. No event waits for its time: one that comes after a later one was slow to arrive, and the
 * clock goes on to the time of each. Only the timers of one process come in their order.
 *
 * Many sequences meet in the same state. What follows a state is played once for each number of
 * steps and faults that are left. Two states are the same if their memory is: the world is in one
 * place, so even its pointers compare. What differs without need costs time and leaves nothing out.
 */
#include "sim.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES_MAX 128
#define MOVES_MAX   256

/* What may differ between two worlds. */
static const struct scope {
    const char *name;
    enum hapax_on_expired on_expired;
    int procs;
    int variant; /* of the second client's request */
} scopes[] = {
    {"rerun, two processes", HAPAX_EXPIRED_RERUN, 2, 0},
    {"rerun, one process", HAPAX_EXPIRED_RERUN, 1, 0},
    {"hold, two processes", HAPAX_EXPIRED_HOLD, 2, 0},
    {"hold, one process", HAPAX_EXPIRED_HOLD, 1, 0},
    {"reconcile, two processes", HAPAX_EXPIRED_RECONCILE, 2, 0},
    {"reconcile, one process", HAPAX_EXPIRED_RECONCILE, 1, 0},
    {"rerun, another request", HAPAX_EXPIRED_RERUN, 2, 1},
    {"hold, another request", HAPAX_EXPIRED_HOLD, 2, 1},
};

enum how { AS_IT_IS, LOST, TWICE, CRASH, LEASE_OVER, OUTAGE };

struct move {
    enum how how;
    unsigned event; /* in the heap */
    int who;
};

static struct sim sim;
static const struct scope *scope;
static unsigned faults_left;
static struct {
    unsigned char chosen[CHOICES_MAX], of[CHOICES_MAX];
    unsigned at, count;
} path;

#define STATES_MAX (UINT64_C(1) << 24) /* a power of 2 */
static uint64_t *states; /* hashes; 0: free */
static uint64_t states_count;

/* The next of the choices; a new one begins with 0. */
static unsigned choose(unsigned of)
{
    assert(of > 0 && of <= MOVES_MAX && path.at < CHOICES_MAX);
    if (path.at == path.count) {
        path.chosen[path.count] = 0;
        path.of[path.count++] = (unsigned char)(of - 1);
    }
    assert(path.of[path.at] == of - 1); /* the same choices lead to the same world */
    return path.chosen[path.at++];
}

static bool next_path(void)
{
    while (path.count > 0 && path.chosen[path.count - 1] == path.of[path.count - 1])
        path.count--;
    if (path.count == 0)
        return false;
    path.chosen[path.count - 1]++;
    return true;
}

/* ---- states ------------------------------------------------------------------------ */

static uint64_t hash_of(uint64_t hash, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    uint64_t word;

    for (; len >= sizeof(word); len -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    for (; len > 0; len--)
        hash = (hash ^ *at++) * UINT64_C(0x100000001b3);
    return hash;
}

/* Events are a set, and a message is what it says, wherever it is kept. */
static uint64_t hash_of_event(const struct sim *s, const struct event *event)
{
    uint64_t hash = hash_of(event->kind, &event->at_us, sizeof(event->at_us));

    if (event->kind == EVENT_REQUEST || event->kind == EVENT_REPLY) {
        const struct message *msg = &s->msgs[event->who];

        hash = hash_of(hash, &msg->op, sizeof(msg->op));
        hash = hash_of(hash, &msg->call, sizeof(msg->call));
        hash = hash_of(hash, &msg->ask, sizeof(msg->ask));
        return hash_of(hash, &msg->net_epoch, sizeof(msg->net_epoch));
    }
    hash = hash_of(hash, &event->who, sizeof(event->who));
    return hash_of(hash, &event->stamp, sizeof(event->stamp));
}

static uint64_t hash_of_world(const struct sim *s, unsigned step)
{
    uint64_t hash = hash_of(step, &faults_left, sizeof(faults_left)), events = 0;

    for (unsigned i = 0; i < s->heap_count; i++)
        events += hash_of_event(s, &s->heap[i]);
    hash = hash_of(hash, &events, sizeof(events));
    hash = hash_of(hash, &s->now_us, sizeof(s->now_us));
    hash = hash_of(hash, s->procs, sizeof(s->procs[0]) * (size_t)s->procs_count);
    hash = hash_of(hash, s->calls, sizeof(s->calls[0]) * (size_t)s->calls_count);
    hash = hash_of(hash, s->execs, sizeof(s->execs[0]) * (size_t)s->execs_count);
    hash = hash_of(hash, s->results, sizeof(s->results[0]) * (size_t)s->results_count);
    hash = hash_of(hash, &s->store, sizeof(s->store));
    hash = hash_of(hash, s->shadows, sizeof(s->shadows));
    return hash_of(hash, s->upstream_fence, sizeof(s->upstream_fence)) | 1;
}

/* Whether the state is new. */
static bool is_new(uint64_t hash)
{
    uint64_t at = hash >> 20 & (STATES_MAX - 1);

    assert(states_count < STATES_MAX * 7 / 8);
    for (; states[at] != 0; at = (at + 1) & (STATES_MAX - 1))
        if (states[at] == hash)
            return false;
    states[at] = hash;
    states_count++;
    return true;
}

/* ---- what draw.c draws elsewhere --------------------------------------------------- */

int draw_call(struct sim *s, int id, bool last)
{
    int n = s->calls_count++;
    struct call *call = &s->calls[n];

    assert(n < CALLS_MAX);
    memset((char *)call + sizeof(call->flow), 0, sizeof(*call) - sizeof(call->flow));
    call->state = CALL_PLANNED;
    call->exec = -1;
    call->id = id;
    call->proc = n % s->procs_count;
    call->variant = n == 1 ? scope->variant : 0;
    call->policy = s->policies[0];
    call->reconciles = true;
    if (last) {
        call->policy.wait_ms = 60000;
        call->policy.timeout_ms = 5000;
    }
    return n;
}

void draw_exec(struct sim *s, struct exec *exec, const struct hapax_policy *policy)
{
    static const struct {
        struct said said;
        bool has_effect;
        bool dies;
    } ends[] = {
        {{200, NULL, NULL}, true, false}, {{0, NULL, NULL}, true, false},
        {{0, NULL, NULL}, false, false},  {{0, NULL, NULL}, true, true},
        {{500, NULL, NULL}, true, false}, {{503, "retry-after", "1"}, false, false},
    };
    unsigned end = s->calm || faults_left == 0 ? 0 : choose(sizeof(ends) / sizeof(ends[0]));

    faults_left -= end > 0;
    s->faults_count += end > 0;
    exec->said_by_it = &ends[end].said;
    exec->turned_away = end == 5;
    exec->cls = class_of(policy, exec->said_by_it);
    exec->has_effect = ends[end].has_effect;
    exec->dies = ends[end].dies;
    exec->remote = !exec->dies;
    exec->result = exec->self_result = new_result(s, exec->id, exec->said_by_it->status);
    if (exec->has_effect)
        sim_at(s, s->now_us + MS, EVENT_EFFECT, (int)(exec - s->execs), 0);
    sim_at(s, s->now_us + 2 * MS, EVENT_END, (int)(exec - s->execs), exec->stamp);
}

void draw_world(struct sim *s)
{
    s->steady = true;
    s->procs_count = scope->procs;
    s->ids_count = 1;
    s->lease_ms = 1000;
    s->reply_wait_us = 50 * MS;
    s->calm_us = 1000 * MINUTE;
    s->store.body_max = HAPAX_BODY_MAX;
    for (int i = 0; i < s->procs_count; i++) {
        memset(&s->procs[i], 0, sizeof(s->procs[i]));
        hapax__waiters_init(&s->procs[i].waiters, s->procs[i].buckets, BUCKETS);
        watch_start(&s->procs[i]);
    }
    hapax_policy_init(&s->policies[0]);
    s->policies[0].lease_ms = s->lease_ms;
    s->policies[0].run_max_ms = 5 * s->lease_ms;
    s->policies[0].retention_ms = 3600000;
    s->policies[0].wait_ms = 3000;
    s->policies[0].timeout_ms = 400;
    s->policies[0].save_wait_ms = 200;
    s->policies[0].on_expired = scope->on_expired;
}

/* ---- what can happen next ---------------------------------------------------------- */

/* Whether the event still means anything. */
static bool is_live(const struct sim *s, const struct event *event)
{
    const struct call *call = &s->calls[event->who < CALLS_MAX ? event->who : 0];

    switch ((enum event_kind)event->kind) {
    case EVENT_WAKE:
        return call->state == CALL_LIVE && call->wake_stamp == event->stamp;
    case EVENT_TIMEOUT:
        return call->state == CALL_LIVE && call->asking && call->ask == event->stamp;
    case EVENT_REPLY: {
        const struct message *msg = &s->msgs[event->who];

        call = &s->calls[msg->call];
        return call->state == CALL_LIVE && call->asking && call->ask == msg->ask;
    }
    case EVENT_END:
        return s->execs[event->who].running && s->execs[event->who].stamp == event->stamp;
    case EVENT_EFFECT:
        return !s->execs[event->who].cancelled &&
               (s->execs[event->who].remote ||
                s->calls[s->execs[event->who].call].state != CALL_DEAD);
    default:
        return true;
    }
}

static void forget(struct sim *s, unsigned n)
{
    if (s->heap[n].kind == EVENT_REPLY || s->heap[n].kind == EVENT_REQUEST)
        s->msgs[s->heap[n].who].used = false;
    s->heap[n] = s->heap[--s->heap_count];
}

static bool is_timer(const struct event *event)
{
    return event->kind == EVENT_WAKE || event->kind == EVENT_TIMEOUT;
}

static bool may_come(const struct sim *s, const struct event *event)
{
    for (unsigned i = 0; i < s->heap_count; i++) {
        const struct event *other = &s->heap[i];

        /* Timers of a process come in their order. */
        if (is_timer(event) && is_timer(other) &&
            s->calls[other->who].proc == s->calls[event->who].proc && other->at_us < event->at_us)
            return false;
        /* Only a handler whose connection broke may have its effect after its end. */
        if (event->kind == EVENT_END && other->kind == EVENT_EFFECT && other->who == event->who &&
            s->execs[event->who].cls != HAPAX_CLASS_UNKNOWN)
            return false;
        if (event->kind == EVENT_END && other->kind == EVENT_EFFECT && other->who == event->who &&
            s->execs[event->who].dies)
            return false;
    }
    return true;
}

static unsigned find_moves(struct sim *s, struct move moves[MOVES_MAX])
{
    unsigned count = 0;

    for (unsigned i = 0; i < s->heap_count; i++)
        if (!is_live(s, &s->heap[i]))
            forget(s, i--);
    for (unsigned i = 0; i < s->heap_count; i++)
        if (may_come(s, &s->heap[i]))
            moves[count++] = (struct move){AS_IT_IS, i, 0};
    if (faults_left == 0)
        return count;
    for (unsigned i = 0; i < s->heap_count; i++) {
        /* That a store refuses its connections, the door itself says. */
        if (s->heap[i].kind == EVENT_REQUEST ||
            (s->heap[i].kind == EVENT_REPLY &&
             s->msgs[s->heap[i].who].op.verdict != HAPAX_NO_VERDICT))
            moves[count++] = (struct move){LOST, i, 0};
        if (s->heap[i].kind == EVENT_REQUEST)
            moves[count++] = (struct move){TWICE, i, 0};
    }
    for (int p = 0; p < s->procs_count; p++)
        for (int i = 0; i < s->calls_count; i++)
            if (s->calls[i].state == CALL_LIVE && s->calls[i].proc == p) {
                moves[count++] = (struct move){CRASH, 0, p};
                break;
            }
    if (shadow_live(s, &s->shadows[0]))
        moves[count++] = (struct move){LEASE_OVER, 0, 0};
    if (!s->store.down)
        moves[count++] = (struct move){OUTAGE, 0, 0};
    return count;
}

/* ---- one sequence ------------------------------------------------------------------ */

static void come(struct sim *s, unsigned n, bool twice)
{
    struct event event = s->heap[n];

    s->heap[n] = s->heap[--s->heap_count];
    if (twice)
        network_copy(s, event.who);
    if (s->now_us < event.at_us)
        s->now_us = event.at_us;
    sim_handle(s, &event);
}

static void play_move(struct sim *s, const struct move *move)
{
    struct event event = {.at_us = s->now_us, .who = (uint16_t)move->who};

    faults_left -= move->how != AS_IT_IS;
    s->faults_count += move->how != AS_IT_IS;
    switch (move->how) {
    case TWICE:
        TRACE(s, "        net: twice");
        come(s, move->event, true);
        return;
    case LOST:
        TRACE(s, "        net: lost");
        forget(s, move->event);
        return;
    case LEASE_OVER:
        TRACE(s, "        LEASE OVER");
        s->now_us += s->lease_ms * MS + MS;
        return;
    case CRASH:
    case OUTAGE:
        event.kind = move->how == CRASH ? EVENT_CRASH : EVENT_OUTAGE;
        sim_handle(s, &event);
        return;
    default:
        come(s, move->event, false);
    }
}

/* The heap's array was used as a set: puts its order back. */
static void sort(struct sim *s)
{
    static struct event events[EVENTS_MAX];
    unsigned count = s->heap_count;

    memcpy(events, s->heap, count * sizeof(events[0]));
    s->heap_count = 0;
    for (unsigned i = 0; i < count; i++)
        sim_at(s, events[i].at_us, (enum event_kind)events[i].kind, events[i].who, events[i].stamp);
}

/* False if the sequence led to where another one has been. */
static bool play(struct sim *s, unsigned steps, unsigned faults, FILE *trace)
{
    static struct move moves[MOVES_MAX];
    unsigned count;

    path.at = 0;
    faults_left = faults;
    sim_begin(s, 1, trace);
    /* The clients are alike but for the second one's request: the first to begin is number 0. */
    sim_at(s, 0, EVENT_CALL, draw_call(s, 0, false), 0);
    come(s, 0, false);
    sim_at(s, 0, EVENT_CALL, draw_call(s, 0, false), 0);
    for (unsigned step = 1; step < steps && !s->failed; step++) {
        count = find_moves(s, moves);
        if (count == 0)
            break;
        if (!trace && path.at == path.count && !is_new(hash_of_world(s, step)))
            return false;
        play_move(s, &moves[choose(count)]);
    }
    (void)find_moves(s, moves); /* forgets what means nothing any more */
    if (!s->failed && !trace && !is_new(hash_of_world(s, steps)))
        return false;
    sort(s);
    s->calm_us = s->now_us;
    if (s->store.down)
        sim_handle(s, &(struct event){.kind = EVENT_OUTAGE, .stamp = 1});
    sim_at(s, s->calm_us, EVENT_CALM, 0, 0);
    if (!s->failed)
        sim_rest(s);
    if (!s->failed)
        sim_heal(s);
    return true;
}

static bool search(unsigned steps, unsigned faults)
{
    uint64_t sequences = 0;

    path.count = 0;
    states_count = 0;
    memset(states, 0, STATES_MAX * sizeof(*states));
    do {
        sequences += play(&sim, steps, faults, NULL);
        if (sim.failed) {
            play(&sim, steps, faults, stdout);
            printf("violation: rule \"%s\": %s\n", sim.rule, sim.text);
            return false;
        }
    } while (next_path());
    printf("%s: %" PRIu64 " states, %" PRIu64 " sequences of %u steps with at most %u faults\n",
           scope->name, states_count, sequences, steps, faults);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv)
{
    unsigned steps = argc == 3 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    bool right = true;

    states = malloc(STATES_MAX * sizeof(*states));
    if (steps == 0 || !states) {
        fprintf(stderr, "usage: small STEPS FAULTS\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof(scopes) / sizeof(scopes[0]) && right; i++) {
        scope = &scopes[i];
        right = search(steps, (unsigned)strtoul(argv[2], NULL, 10));
    }
    return !right;
}
