/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator: the real core (machine, flow, waiters) in a small world under a virtual clock. One
 * seed is one schedule: 1 to 3 processes with clocks of their own, a store, a network between them,
 * clients, handlers, an operator, and faults drawn from the seed. While a schedule runs, nothing
 * here reads a clock or allocates. So the same seed is the same schedule on every machine.
 *
 *     draw.c      what a seed means: policies, handlers, faults
 *     results.c   what handlers say, and what doors make of it
 *     events.c    the heap of events, and the trace
 *     store.c     the store, its clock, PURGE; network.c carries ops to it
 *     door.c      the processes: flows, handlers, hooks
 *     world.c     the loop: faults, then calm, then quiescence
 *     checker.c   what no store may do; checker_door.c what no door may do; checker_breaker.c
 *                 what no breaker may do
 *     main.c      many seeds, totals, and the marks that prove the rare branches were met
 *     small.c     in the place of draw.c and main.c: every order of events of a small world
 */
#ifndef HAPAX_TESTS_SIM_H
#define HAPAX_TESTS_SIM_H

#include "core/class.h"
#include "core/flow.h"
#include "core/machine.h"

#include <stdint.h>
#include <stdio.h>

#define PROCS_MAX    3
#define IDS_MAX      3
#define CALLS_MAX    96
#define EXECS_MAX    96
#define OUTCOMES_MAX 288
#define MSGS_MAX     128
#define EVENTS_MAX   512
#define BUCKETS      4
#define RUN_LEASES   7 /* what a handler takes at most, and a hook */
#define OPS_MIN      20
#define TEXT_LEN     8
#define MS           INT64_C(1000)
#define SECOND       (1000 * MS)
#define MINUTE       (60 * SECOND)

/* The rare branches. A full run must meet each of them: a branch that is not met is not tested. */
/* clang-format off */
#define MARKS(X) \
    X(takeover) X(hold_to_unknown) X(mismatch_fingerprint) X(mismatch_caller) X(refingerprinted) \
    X(repeated_claim) X(repeated_stale_claim) X(zombie_replay) X(zombie_in_flight) \
    X(zombie_unknown) X(zombie_gone) X(lost_to_another_request) X(ghost_chased) \
    X(ghost_released) X(ghost_after_end) X(late_claim_confirmed) X(late_claim_lost) \
    X(late_claim_unknown) X(granted_anew_unrun) X(granted_anew_running) X(shared_question) \
    X(shared_answer) X(mate_promoted_after_fail) X(mate_asks_after_zombie) X(reconcile_yes) \
    X(reconcile_no) X(reconcile_unsure) X(reconcile_lost) X(attempts_used_up) \
    X(attempts_used_up_by_deaths) X(answered_before_saved) X(saved_late) X(open_unprotected) \
    X(open_saved) X(bypass) X(bodiless_gone) X(store_too_big) X(resolve_raced) \
    X(resolve_complete) X(resolve_fail) X(resolve_forget) X(resolve_forced) X(purged) \
    X(purge_met_live_claim) X(swept_to_unknown) X(clock_mattered) X(crash_before_effect) \
    X(crash_after_effect) X(pause_over_lease) X(left_started) X(failed_to_unknown) X(death_known) \
    X(self_completed) X(self_completed_first) X(read_found_completed) X(outlived_run_max) \
    X(rerun_completed) X(abandon_obeyed) X(abandon_ignored) X(second_effect) \
    X(effect_refused_by_fence) X(hard_error) X(stopped) X(request_lost) X(reply_lost) \
    X(request_twice) X(request_late) X(store_outage) X(store_restart) X(store_clock_jump) \
    X(turned_away) X(held_after_408) X(held_after_503) X(held_after_502) X(held_after_504) \
    X(held_after_500) X(held_after_cut) X(final_after_409) \
    X(expired) X(expired_and_known) X(expired_claim) \
    X(limited) X(limited_and_known) X(limited_claim) X(limited_unprotected) \
    X(refusal_gone) X(refusal_gone_to_its_fail) X(refused_claim_late) \
    X(refused_claim_granted_anew) X(dead_store_refused) X(dead_store_probed) X(dead_store_back) \
    X(tombstone_met) X(tombstone_buried) X(tombstone_shared) X(tombstone_lost_to) X(kept_by_class) \
    X(dead_store_doubted) \
    X(healed_run) X(healed_stored) X(healed_by_hook) X(healed_used_up) X(healed_unknown)
/* clang-format on */

enum mark {
#define MARK(name) MARK_##name,
    MARKS(MARK)
#undef MARK
        MARKS_COUNT
};

enum event_kind {
    EVENT_CALL, /* a client calls */
    EVENT_REQUEST, /* a message reaches the store */
    EVENT_REPLY, /* its answer reaches the door */
    EVENT_TIMEOUT, /* the door stops waiting for a reply */
    EVENT_WAKE, /* a flow's timer */
    EVENT_EFFECT, /* a handler has its effect */
    EVENT_END, /* a handler ends */
    EVENT_HOOK, /* a reconcile hook ends */
    EVENT_STOP, /* a client goes away */
    EVENT_PAUSE,
    EVENT_CRASH,
    EVENT_OUTAGE,
    EVENT_RESTART,
    EVENT_OPERATOR,
    EVENT_PURGE,
    EVENT_CALM
};

struct event {
    int64_t at_us;
    uint32_t seq;
    uint32_t stamp; /* tells a live event from one that was superseded */
    uint16_t kind;
    uint16_t who;
};

/* The outcome of a handler, a hook or an operator. Its headers are unique, so they identify it. */
struct result {
    uint8_t headers[TEXT_LEN];
    uint8_t body[TEXT_LEN];
    int status;
    int id;
    int life; /* of the record it completed */
    int variant; /* of the request it answers */
    bool completed;
};

struct message {
    struct hapax_op op;
    /* What the answer's outcome points to. It is overwritten when the message is freed. */
    uint8_t bytes[2 * TEXT_LEN];
    bool used;
    int call; /* -1: nobody waits */
    uint32_t ask; /* which question of the call */
    unsigned net_epoch; /* of the store's connections */
};

enum grant { GRANT_NEW, GRANT_TAKEOVER, GRANT_AFTER_FAIL, GRANT_RERUN };

/* What an upstream answers. */
struct said {
    int status; /* 0: the connection broke */
    const char *header; /* its one header; NULL: none */
    const char *value;
};

/* One run of a handler. */
struct exec {
    const struct said *said_by_it;
    bool turned_away; /* the service itself says that it did nothing, and tells the truth */
    int call;
    int id;
    int life;
    uint64_t fence; /* 0: unprotected */
    /* Runs elsewhere: it does not pause or die with the door's process. */
    bool remote;
    bool has_effect;
    bool effected;
    bool cancelled;
    bool obeys;
    bool dies; /* its process does, before it ends, and its door sees that */
    bool abandoned;
    bool running; /* the door has not seen its end */
    enum { SELF_NO, SELF_SENDS, SELF_COMMITS } self; /* completes the record itself */
    enum hapax_class cls;
    bool said; /* its FAIL is stored */
    bool retried; /* its FAIL is stored as `failed`, so a retry runs */
    uint32_t stamp;
    int result;
    int self_result;
    /* how its claim was granted */
    enum grant grant;
    bool held;
    bool stale;
};

enum call_state { CALL_UNUSED, CALL_PLANNED, CALL_LIVE, CALL_OVER, CALL_DEAD };

struct call {
    struct sim *sim;
    struct hapax__flow flow;
    struct hapax_policy policy;
    enum call_state state;
    int proc;
    int id;
    int variant; /* 1: another fingerprint, 2: another caller */
    bool reconciles;
    bool keyless;
    bool over; /* its owner is at a limit when it begins */
    bool old; /* its key is older than what the store keeps */
    bool refused; /* its owner is at a limit when it is to run */
    int again; /* times its client calls once more */
    bool beginning; /* in its first event */
    int64_t began_us;
    int64_t began_local_us; /* by its process's clock */
    int64_t jump_us; /* of the store's clock, when it began */
    uint32_t ask;
    bool asking;
    uint32_t asks;
    uint32_t wake_stamp;
    int64_t wake_us;
    /* what the checker knows of it */
    int exec; /* -1: nothing has run */
    bool was_mate;
    bool answered;
    bool stopped;
    /* The store returned an error that no repeat can cure. */
    bool hard;
    bool claimed; /* was told so */
    uint64_t claimed_fence;
    bool seen; /* was told anything */
    /* The result of its last CLAIM is not known. */
    bool claim_open;
    uint32_t claim_told; /* the last CLAIM that was answered */
    bool told_lost;
    enum hapax_state lost_to;
    bool end_told; /* its COMPLETE or FAIL was answered */
    bool confirmed; /* its claim was late */
    bool hook_no;
    bool chased;
    bool dead; /* the store was, for its process, when it began */
    bool healing; /* asks, alone, once all is healed */
    enum must { MUST_RUN, MUST_BE_STORED, MUST_ASK_HOOK, MUST_BE_USED_UP, MUST_WAIT } must;
    enum hapax_answer_kind kind;
};

/* What a process was told of the store, in its own time (checker_breaker.c). */
struct watch {
    int vain; /* calls without a verdict since the last one; 2 at most */
    int64_t heard_us;
    int64_t failed_us;
    int64_t probe_us;
};

struct proc {
    struct watch watch;
    struct hapax__waiters waiters;
    struct hapax__bucket buckets[BUCKETS];
    int64_t offset_us;
    int drift; /* in 1024ths */
    int64_t paused_until_us;
};

/* What the checker remembers of an operation, by rules of its own. */
struct shadow {
    bool present;
    int life;
    enum hapax_state state;
    struct hapax_token holder;
    uint32_t granted_ask;
    int64_t lease_until_us;
    int64_t expires_us;
    int64_t retention_ms;
    int64_t gone_us; /* of a completion: when its outcome goes, and a tombstone is left; 0: never */
    bool buried; /* an op has met a tombstone of this operation */
    bool hold;
    bool stale;
    bool ran;
    bool reruns;
    bool any_ran;
    /* By an operator. Then its request stays bound, although `spent` is 0 again. */
    bool resolved;
    uint32_t attempt;
    uint32_t spent;
    uint64_t fence;
    uint64_t fence_max; /* of all its lives */
    int variant;
    int result; /* of the completion */
    enum grant grant;
    bool held_before;
    bool stale_before;
    int64_t free_since_us; /* virtual time; 0: a claim is live */
};

struct store {
    struct hapax_record records[IDS_MAX];
    bool present[IDS_MAX];
    int drift;
    int64_t jump_us;
    bool down;
    size_t body_max;
    unsigned net_epoch;
};

/* What a schedule may have at all, each with its largest rate. Those of `faults` are of the network
 * and end with the calm; those of `events` are counts; the others are chances in 1000ths. */
#define NETWORK(X)                                                                                 \
    X(request_lost, 300)                                                                           \
    X(reply_lost, 300)                                                                             \
    X(twice, 400)                                                                                  \
    X(late, 400)                                                                                   \
    X(slow, 400)                                                                                   \
    X(hard, 60)
#define EVENTS(X)                                                                                  \
    X(crash, 3)                                                                                    \
    X(pause, 3)                                                                                    \
    X(outage, 3)                                                                                   \
    X(restart, 2)                                                                                  \
    X(operator_act, 5)                                                                             \
    X(purge, 8)
#define FEATURES(X)                                                                                \
    X(store_drifts, 1000)                                                                          \
    X(clocks_drift, 1000)                                                                          \
    X(clock_jumps, 700)                                                                            \
    X(small_store, 150)                                                                            \
    X(many_ids, 1000)                                                                              \
    X(two_doors, 1000)                                                                             \
    X(other_lease, 700)                                                                            \
    X(short_run_max, 700)                                                                          \
    X(short_retention, 600)                                                                        \
    X(tombstones, 700)                                                                             \
    X(kept_by_class, 500)                                                                          \
    X(impatient, 1000)                                                                             \
    X(slow_to_give_up, 1000)                                                                       \
    X(saves_not_waited_for, 300)                                                                   \
    X(opens, 600)                                                                                  \
    X(attempts_limited, 800)                                                                       \
    X(small_responses, 400)                                                                        \
    X(reruns, 250)                                                                                 \
    X(passes_token, 700)                                                                           \
    X(no_hook, 400)                                                                                \
    X(together, 1000)                                                                              \
    X(leaves, 120)                                                                                 \
    X(other_request, 300)                                                                          \
    X(keyless, 30)                                                                                 \
    X(over, 200)                                                                                   \
    X(refused, 150)                                                                                \
    X(old, 250)                                                                                    \
    X(turned_away, 350)                                                                            \
    X(broken, 350)                                                                                 \
    X(cut, 400)                                                                                    \
    X(slow_runs, 700)                                                                              \
    X(very_slow_runs, 400)                                                                         \
    X(remote, 1000)                                                                                \
    X(dies, 1000)                                                                                  \
    X(obeys, 1000)                                                                                 \
    X(late_effects, 600)                                                                           \
    X(completes_itself, 1000)                                                                      \
    X(hook_unsure, 400)

#define RATE(name, most) unsigned name;
struct swarm {
    struct faults {
        NETWORK(RATE)
    } faults;
    struct {
        EVENTS(RATE)
    } events;
    FEATURES(RATE)
};
#undef RATE

struct sim {
    uint64_t seed;
    uint64_t random;
    bool steady; /* nothing is drawn: each number is the least */
    FILE *trace;
    uint64_t hash;
    int64_t now_us;
    bool calm;
    bool healed; /* all has come to rest, and whoever failed works again */
    int64_t calm_us;
    bool failed;
    unsigned steps; /* of the flows, after the last event */
    char rule[48];
    char text[160];

    struct event heap[EVENTS_MAX];
    unsigned heap_count;
    uint32_t heap_seq;

    int procs_count, ids_count, calls_count, execs_count, results_count;
    struct proc procs[PROCS_MAX];
    struct call calls[CALLS_MAX];
    struct exec execs[EXECS_MAX];
    struct result results[OUTCOMES_MAX];
    struct message msgs[MSGS_MAX];
    struct store store;
    struct shadow shadows[IDS_MAX];
    uint64_t upstream_fence[IDS_MAX]; /* smaller ones are refused there */
    struct swarm swarm;
    struct faults faults; /* the swarm's, until the calm */
    int64_t lease_ms; /* the world's measure of time */
    int64_t reply_wait_us; /* how long a door waits for a reply */
    struct hapax_policy policies[2]; /* of the schedule's doors */
    bool reconciles[2];
    uint32_t resolves;
    uint32_t ops, faults_count;
    uint64_t marks[MARKS_COUNT];
};

/* ---- events.c ---------------------------------------------------------------------- */

uint64_t sim_random(struct sim *s);
uint32_t sim_below(struct sim *s, uint32_t limit);
int64_t sim_between(struct sim *s, int64_t low, int64_t high);
bool sim_chance(struct sim *s, unsigned thousandths);
void sim_at(struct sim *s, int64_t at_us, enum event_kind kind, int who, uint32_t stamp);
bool sim_take(struct sim *s, struct event *event);
void sim_trace(struct sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_fail(struct sim *s, const char *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void sim_mark(struct sim *s, enum mark mark);
void sim_fault(struct sim *s, enum mark mark);
void sim_mix(struct sim *s, uint64_t value);

/* Formats a line only if a trace is written. */
#define TRACE(s, ...)                                                                              \
    do {                                                                                           \
        if ((s)->trace)                                                                            \
            sim_trace(s, __VA_ARGS__);                                                             \
    } while (0)

/* ---- draw.c; of small worlds: small.c ---------------------------------------------- */

void draw_world(struct sim *s);
int draw_call(struct sim *s, int id, bool last);
void draw_exec(struct sim *s, struct exec *exec, const struct hapax_policy *policy);

/* ---- results.c --------------------------------------------------------------------- */

int new_result(struct sim *s, int id, int status);
struct hapax_outcome outcome_of(const struct sim *s, int result);
int result_of(const struct sim *s, const struct hapax_outcome *outcome); /* -1: not of this run */
enum hapax_class class_of(const struct hapax_policy *policy, const struct said *answer);

/* ---- store.c ----------------------------------------------------------------------- */

int64_t store_now_us(const struct sim *s);
void store_judge(struct sim *s, struct hapax_op *op, int call, uint32_t ask);
void store_purge(struct sim *s);

/* ---- network.c --------------------------------------------------------------------- */

void network_ask(struct sim *s, int call);
void network_send(struct sim *s, const struct hapax_op *op);
void network_request(struct sim *s, int msg);
void network_reply(struct sim *s, int msg);
void network_copy(struct sim *s, int msg); /* the same request once more */

/* ---- door.c ------------------------------------------------------------------------ */

int64_t local_us(const struct sim *s, const struct proc *proc);
void door_call(struct sim *s, int call);
void door_told(struct sim *s, int call);
void door_wake(struct sim *s, int call);
void door_stop(struct sim *s, int call);
void door_effect(struct sim *s, int exec);
void door_end(struct sim *s, int exec, uint32_t stamp);
void door_hook(struct sim *s, int call);
void door_crash(struct sim *s, int proc);
void operator_acts(struct sim *s);

/* ---- world.c ----------------------------------------------------------------------- */

void sim_run(struct sim *s, uint64_t seed, FILE *trace);

/* Its parts: the world before its first event; one event; all events to the last; from the calm to
 * the end. */
void sim_begin(struct sim *s, uint64_t seed, FILE *trace);
void sim_handle(struct sim *s, const struct event *event);
void sim_rest(struct sim *s);
void sim_heal(struct sim *s);

/* ---- checker.c, checker_door.c, checker_breaker.c ---------------------------------- */

void check_judged(struct sim *s, const struct hapax_op *op, int call, uint32_t ask);
void check_purged(struct sim *s, int id);
void check_swept(struct sim *s, int id); /* to unknown */
void check_buried(struct sim *s, int id);
void check_effect(struct sim *s, int exec);
int effect_of(const struct sim *s, int id, int life); /* a result, or -1 */

void check_ask(struct sim *s, const struct call *call);
void check_told(struct sim *s, struct call *call);
void check_run(struct sim *s, struct call *call);
void check_answer(struct sim *s, struct call *call);
void check_end(struct sim *s, struct call *call);
void check_claims_healed(struct sim *s, struct call *call);
void check_quiet(struct sim *s);
bool same_question(const struct call *a, const struct call *b);

void watch_start(struct proc *proc);
void watch_begins(struct sim *s, struct call *call);
void watch_begun(struct sim *s, struct call *call);
void watch_asks(struct sim *s, const struct call *call);
void watch_told(struct sim *s, const struct call *call);
void watch_gives_up(struct sim *s, const struct call *call); /* its claim, without a verdict */
bool refused_unasked(const struct call *call);

bool same_token(const struct hapax_token *a, const struct hapax_token *b);
bool shadow_live(const struct sim *s, const struct shadow *shadow);

#endif
