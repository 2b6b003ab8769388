/* SPDX-License-Identifier: Apache-2.0
 *
 * A move, simulated: real flows in processes that are given, one after the other, both stores in
 * place of the old one, and then the new one alone. Between the two steps a copy runs, while all of
 * them work. Each process is killed for each step, in whatever it is doing. Every op of a half goes
 * over a network of its own, which may lose a request or a reply, deliver a request twice or long
 * after the door has stopped waiting, and refuse it. The stores are the machine, with clocks that
 * differ and drift.
 *
 * The rules, of each operation: nothing runs twice at once, within its lease; nothing runs again
 * unless an attempt's result was not known and the policy asks for it then; nothing runs once an
 * outcome was shown; no two outcomes are shown, and once one was, no answer says that it is not
 * known; in the end, when all is well, each operation is answered, by the outcome that was shown if
 * one was. Hooks tell the truth, and keep earlier attempts from having their effect later.
 *
 * So does an operator, who resolves what is unknown, from the first process with both on. Once
 * this was confirmed, it stands: nobody is told in the end that the operation is unknown, unless
 * something has been claimed since.
 *
 * With --rotation the two stores are one: the records under the old secret, and those under the new
 * one. Nothing is copied. The last step begins when no record is left that was created before all
 * processes had both secrets. Here, what is kept ends: an outcome that was shown counts for its
 * retention, and so does an attempt.
 *
 *     sim_move [--rotation] [--first N] [--schedules N]     many seeds
 *     sim_move [--rotation] --seed N                        one, with what happens
 */
#include "core/drive.h"
#include "core/machine.h"
#include "core/record.h"
#include "store/move/pair.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROCS      3
#define IDS        2
#define CALLS_MAX  64
#define EXECS_MAX  128
#define MSGS_MAX   256
#define EVENTS_MAX 1024
#define RECORD_MAX 512
#define NAME_LEN   4
#define MS         INT64_C(1000)
#define EPOCH_US   INT64_C(1700000000000000)
#define LEASE_MS   200
#define REPLY_US   (60 * MS)
#define DRIFT_US   (10 * MS) /* of the clocks, within a lease */
#define BEHIND_US  (LEASE_MS * MS / 2) /* so much is the clock of the copy's LIST */
#define STEPS_MAX  200000
#define REST_US    (120 * 1000 * MS)
#define GIVE_UP_US (20 * 1000 * MS) /* when no operator has come */
#define LOOKS_MAX  30
#define SPREAD_US  (100 * MS) /* within which a door claims in both halves */
#define COPY_BYTE  0xee /* of the copy's token */
#define KEPT_MS    4000 /* in a rotation: the retention, which is longer than its first step */

enum kind { DOOR_OLD, DOOR_BOTH, DOOR_NEW };

enum event_kind {
    CALL,
    REQUEST,
    REPLY,
    TIMEOUT,
    WAKE,
    EFFECT,
    END,
    HOOK,
    ROLL,
    COPY,
    CRASH,
    CALM,
    LOOK
};

struct event {
    int64_t at_us;
    uint32_t seq, stamp;
    enum event_kind kind;
    int who;
};

struct message {
    bool used;
    struct hapax_op op;
    enum hapax__half half;
    int call;
    uint32_t ask;
    uint8_t name[NAME_LEN];
};

struct exec {
    int call, id;
    enum hapax_class cls;
    bool has_effect, effected, barred, running, ended;
    int64_t begun_us;
    uint8_t name[NAME_LEN]; /* of its outcome */
};

struct call {
    struct hapax__flow flow;
    struct hapax__pair pair;
    enum { UNUSED, LIVE, OVER, DEAD } state;
    bool operates; /* it is an operator's, who has both */
    int tries;
    struct hapax_op op; /* the operator's */
    int64_t looked_us; /* when the operator did */
    int64_t asked_us; /* the clock of the old half, when the operator's word was last given */
    struct hapax_identity old;
    enum kind kind; /* of its door */
    int proc, id, exec;
    bool asking, hook_no, last, answered;
    bool known; /* when it began, the outcome had been shown */
    uint32_t ask, wake_stamp;
    uint8_t kept[4][NAME_LEN]; /* what answers of the pair's ops point to */
    unsigned kept_count;
};

struct half {
    struct hapax_record records[IDS];
    bool present[IDS];
    int64_t skew_us;
    int drift; /* in 1024ths */
};

static struct world {
    uint64_t random;
    bool trace, failed, calm, rotation;
    char rule[160];
    int64_t now_us;
    struct event heap[EVENTS_MAX];
    unsigned heap_count;
    uint32_t seq;
    struct half half[2];
    enum kind kinds[PROCS];
    struct hapax__waiters waiters[PROCS];
    struct hapax__bucket buckets[PROCS][4];
    struct call calls[CALLS_MAX];
    struct exec execs[EXECS_MAX];
    struct message msgs[MSGS_MAX];
    int calls_count, execs_count;
    struct hapax_policy policy;
    bool hook;
    unsigned lost, late, twice, refused, broken; /* in 1000ths */
    unsigned over; /* the same: calls whose owner is over a limit */
    int rolled; /* processes that have made the present step */
    int copy_id; /* -1: no copy runs */
    enum { READ_LISTED, READ_NEW, READ_OLD, IMPORT, FORGET, TAKE_BACK } copy_step;
    bool copy_listed; /* what was read of the old half came with LIST, before the look */
    int64_t since_us;
    struct hapax__pair_shown copied[2];
    struct hapax_record put; /* the write that the copy has put there, or absent */
    int64_t put_us; /* when that was read */
    int64_t word_us[IDS]; /* the last write of an operator's, in either half */
    int64_t new_us[IDS]; /* the last write in the new half, but for what the copy puts there */
    int64_t said_us[IDS]; /* the same, of a word that was confirmed; 0: never */
    int64_t claimed_us[IDS]; /* the last grant in the new half, or read of what was put there */
    struct hapax__pair_shown gone;
    bool shown[IDS];
    int64_t decided_us[IDS]; /* the last time that a record of it was completed or failed */
    int64_t shown_by_us[IDS]; /* when the handler began whose outcome was shown */
    uint8_t shown_name[IDS][NAME_LEN];
    uint64_t marks[11];
} w;

enum {
    MARK_MIRRORED,
    MARK_GIVEN_BACK,
    MARK_FROM_NEW,
    MARK_COPIED,
    MARK_REPLACED,
    MARK_STALE,
    MARK_UNKNOWN,
    MARK_REPLAYED,
    MARK_RESOLVED,
    MARK_TAKEN_BACK,
    MARK_LEFT
};
static const char *const mark_names[] = {"an outcome of the old store brought to the new one",
                                         "a claim given back",
                                         "an outcome of the new store answered to one with both",
                                         "a record copied",
                                         "a record that gives way to a copy",
                                         "an attempt after a death",
                                         "an operation left unknown",
                                         "a replay",
                                         "an operation resolved by an operator",
                                         "a record taken back that an operator had resolved",
                                         "a look at what is left"};

/* ---- chance and time ------------------------------------------------------------------- */

static uint64_t next(void)
{
    uint64_t z = w.random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int64_t between(int64_t low, int64_t high)
{
    return low + (int64_t)(next() % (uint64_t)(high - low + 1));
}

static bool chance(unsigned thousandths)
{
    return thousandths > 0 && next() % 1000 < thousandths;
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;

    if (!w.trace)
        return;
    printf("%10.3f ms  ", (double)w.now_us / 1000);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static void violate(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void violate(const char *format, ...)
{
    va_list args;

    if (w.failed)
        return;
    w.failed = true;
    va_start(args, format);
    vsnprintf(w.rule, sizeof(w.rule), format, args);
    va_end(args);
    say("VIOLATION: %s", w.rule);
}

static bool earlier(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->seq < b->seq;
}

static void at(int64_t at_us, enum event_kind kind, int who, uint32_t stamp)
{
    struct event event = {at_us, w.seq++, stamp, kind, who};
    unsigned i = w.heap_count++;

    assert(i < EVENTS_MAX);
    for (; i > 0 && earlier(&event, &w.heap[(i - 1) / 2]); i = (i - 1) / 2)
        w.heap[i] = w.heap[(i - 1) / 2];
    w.heap[i] = event;
}

static bool take(struct event *event)
{
    struct event last;
    unsigned i = 0, child;

    if (w.heap_count == 0)
        return false;
    *event = w.heap[0];
    last = w.heap[--w.heap_count];
    while ((child = 2 * i + 1) < w.heap_count) {
        if (child + 1 < w.heap_count && earlier(&w.heap[child + 1], &w.heap[child]))
            child++;
        if (!earlier(&w.heap[child], &last))
            break;
        w.heap[i] = w.heap[child];
        i = child;
    }
    w.heap[i] = last;
    return true;
}

/* ---- the stores ------------------------------------------------------------------------ */

static int64_t clock_of(const struct half *half)
{
    half = w.rotation ? &w.half[0] : half;
    return EPOCH_US + w.now_us + half->skew_us + w.now_us * half->drift / 1024;
}

/* What an operation is called under the old secret. */
static struct hapax_identity old_identity(int id)
{
    struct hapax_identity old = {.id = {{0x01}}};

    old.id.bytes[31] = (uint8_t)(id + 1);
    memset(&old.owner, 0x02, sizeof(old.owner));
    memset(&old.fingerprint, 0xf2, sizeof(old.fingerprint));
    memset(&old.caller, 0xc2, sizeof(old.caller));
    return old;
}

static uint8_t *keep_name(struct hapax_span *span, uint8_t name[NAME_LEN])
{
    if (span->len == NAME_LEN) {
        memmove(name, span->ptr, NAME_LEN);
        span->ptr = name;
    }
    return name;
}

static bool is_copy(const struct hapax_op *op)
{
    return op->token.bytes[0] == COPY_BYTE && op->token.bytes[15] == COPY_BYTE;
}

static void judge(enum hapax__half which, struct hapax_op *op)
{
    static uint8_t stored[2][IDS][NAME_LEN];
    struct half *half = &w.half[which];
    int id = op->id.bytes[31] - 1;
    const struct hapax_identity named = old_identity(id);
    bool as_old = memcmp(&op->id, &named.id, sizeof(op->id)) == 0;
    struct hapax_record next, *record = &half->records[id];
    enum hapax__write write;

    if (as_old != (w.rotation && which == HAPAX__HALF_OLD)) {
        violate("id %d is asked for by the other secret", id);
        return;
    }
    write = hapax__machine(half->present[id] ? record : NULL, op, clock_of(half), &next);
    say("        %s: op%d of c%d: %s%s, attempt %u, %s%s", which ? "NEW" : "OLD", (int)op->kind,
        op->token.bytes[15] - 1, hapax_verdict_name(op->verdict),
        op->reconciled ? " reconciled" : "", op->record.attempt, hapax_state_name(op->record.state),
        op->record.stale ? " stale" : "");
    /* The outcome's name is the store's own from here on; the answer keeps what it shows. */
    if (write == HAPAX__WRITE) {
        *record = next;
        if (next.state == HAPAX_STATE_COMPLETED || next.state == HAPAX_STATE_FAILED)
            w.decided_us[id] = w.now_us;
        if (which == HAPAX__HALF_NEW && op->verdict == HAPAX_CLAIMED)
            w.claimed_us[id] = w.now_us;
        if (which == HAPAX__HALF_NEW && op->kind == HAPAX_OP_IMPORT)
            w.claimed_us[id] = w.put_us;
        (void)keep_name(&record->outcome.headers, stored[which][id]);
    }
    if (write != HAPAX__KEEP && op->kind == HAPAX_OP_RESOLVE && !is_copy(op))
        w.word_us[id] = w.now_us;
    if (write != HAPAX__KEEP && which == HAPAX__HALF_NEW && op->kind != HAPAX_OP_IMPORT &&
        !is_copy(op))
        w.new_us[id] = w.now_us;
    half->present[id] = write == HAPAX__WRITE || (half->present[id] && write == HAPAX__KEEP);
}

/* ---- the network ----------------------------------------------------------------------- */

static struct message *new_message(const struct hapax_op *op, enum hapax__half half, int call)
{
    for (int i = 0; i < MSGS_MAX; i++) {
        struct message *msg = &w.msgs[i];

        if (msg->used)
            continue;
        *msg = (struct message){true, *op, half, call, w.calls[call].ask, {0}};
        return msg;
    }
    abort();
}

static void deliver(const struct hapax_op *op, enum hapax__half half, int call, int64_t after_us)
{
    struct message *msg = new_message(op, half, call);

    /* What the op lends may go before a late copy arrives. */
    (void)keep_name(&msg->op.outcome.headers, msg->name);
    at(w.now_us + after_us, REQUEST, (int)(msg - w.msgs), 0);
}

static void answer_op(struct call *call, struct hapax_op *op);
static void told_operator(struct call *call);

static void send_op(int n, const struct hapax_op *op, enum hapax__half half)
{
    struct call *call = &w.calls[n];

    call->ask++;
    call->asking = true;
    at(w.now_us + REPLY_US, TIMEOUT, n, call->ask);
    if (chance(w.refused)) {
        struct message *msg = new_message(op, half, n);

        msg->op.verdict = HAPAX_NO_VERDICT;
        msg->op.error = HAPAX_ERR_UNAVAILABLE;
        at(w.now_us + MS / 2, REPLY, (int)(msg - w.msgs), 0);
        return;
    }
    if (chance(w.lost))
        return;
    if (chance(w.late)) {
        deliver(op, half, n, REPLY_US + between(0, 3 * LEASE_MS * MS));
        return;
    }
    deliver(op, half, n, between(100, 3 * MS));
    if (chance(w.twice))
        deliver(op, half, n, between(0, 3 * LEASE_MS * MS));
}

static void request(struct message *msg)
{
    uint8_t *name = msg->name;

    judge(msg->half, &msg->op);
    if (chance(w.lost) || (w.calls[msg->call].state != LIVE)) {
        msg->used = false;
        return;
    }
    (void)keep_name(&msg->op.record.outcome.headers, name);
    at(w.now_us + between(100, 3 * MS), REPLY, (int)(msg - w.msgs), 0);
}

static void reply(struct message *msg)
{
    struct call *call = &w.calls[msg->call];

    msg->used = false;
    if (call->state == LIVE && call->asking && call->ask == msg->ask)
        answer_op(call, &msg->op);
}

/* ---- doors ----------------------------------------------------------------------------- */

static const struct hapax_span scope_name = {(const uint8_t *)"default", 7};

static int64_t flow_now(const struct hapax__flow *flow)
{
    (void)flow;
    return w.now_us;
}

/* What began so long ago may be known to nobody any more: the store's clock may be fast. A claim
 * under hold is known. */
static bool forgotten(int64_t begun_us)
{
    return w.rotation && w.now_us >= begun_us + KEPT_MS * MS * 97 / 100;
}

/* Whether it is known that another attempt may run. */
static bool over_and_known(const struct exec *exec)
{
    if (forgotten(exec->begun_us) && (exec->ended || w.policy.on_expired == HAPAX_EXPIRED_RERUN ||
                                      exec->begun_us < w.decided_us[exec->id]))
        return true;
    if (exec->barred && !exec->effected)
        return true; /* a hook has said no */
    return exec->ended &&
           (exec->cls == HAPAX_CLASS_NOT_RUN ||
            (exec->cls == HAPAX_CLASS_FAILED && w.policy.on_expired == HAPAX_EXPIRED_RERUN));
}

/* Whether it runs, and its door may rely on its lease. Nothing comes of what is barred. */
static bool holds(const struct exec *exec)
{
    const struct call *call = &w.calls[exec->call];

    return exec->running && !exec->barred && call->state == LIVE && !call->flow.lost &&
           call->flow.lease_end_us - DRIFT_US > w.now_us;
}

static void run_handler(struct call *call)
{
    struct exec *exec = &w.execs[w.execs_count];
    int64_t last_us = chance(300) ? 3 * LEASE_MS * MS : 30 * MS, end_us = between(0, last_us);
    bool may_repeat =
        (call->flow.stale && w.policy.on_expired == HAPAX_EXPIRED_RERUN) || call->hook_no;

    say("c%d (%d) RUN id %d%s", (int)(call - w.calls), (int)call->kind, call->id,
        call->flow.stale ? " stale" : "");
    w.marks[MARK_STALE] += call->flow.stale;
    if (w.shown[call->id] && forgotten(w.shown_by_us[call->id]))
        w.shown[call->id] = false;
    if (w.shown[call->id])
        violate("id %d runs after its outcome was shown", call->id);
    for (int i = 0; i < w.execs_count; i++) {
        if (w.execs[i].id != call->id)
            continue;
        if (!may_repeat && !over_and_known(&w.execs[i]))
            violate("id %d runs again, for c%d after c%d", call->id, (int)(call - w.calls),
                    w.execs[i].call);
        if (holds(&w.execs[i]))
            violate("id %d runs for c%d while it runs for c%d", call->id, (int)(call - w.calls),
                    w.execs[i].call);
    }
    assert(w.execs_count < EXECS_MAX);
    call->exec = w.execs_count++;
    *exec = (struct exec){
        .call = (int)(call - w.calls), .id = call->id, .running = true, .begun_us = w.now_us};
    snprintf((char *)exec->name, sizeof(exec->name), "%03d", call->exec);
    exec->cls = HAPAX_CLASS_FINAL;
    exec->has_effect = true;
    if (!w.calm && chance(w.broken)) {
        exec->cls = (enum hapax_class)between(HAPAX_CLASS_FINAL + 1, HAPAX_CLASS_UNKNOWN);
        exec->has_effect = exec->cls != HAPAX_CLASS_NOT_RUN && chance(500);
    }
    if (exec->has_effect)
        at(w.now_us + between(0, end_us), EFFECT, call->exec, 0);
    at(w.now_us + end_us, END, call->exec, 0);
}

/* The answer shows an outcome that is to stand. */
static void show(const struct call *call, const struct hapax_outcome *outcome)
{
    int made = 0;

    if (outcome->headers.len != NAME_LEN) {
        violate("id %d: an outcome that nobody made", call->id);
        return;
    }
    if (w.shown[call->id] && !forgotten(w.shown_by_us[call->id]) &&
        memcmp(w.shown_name[call->id], outcome->headers.ptr, NAME_LEN) != 0)
        violate("id %d: outcome %.4s is shown, and %.4s was", call->id,
                (const char *)outcome->headers.ptr, (const char *)w.shown_name[call->id]);
    for (int i = 0; i < NAME_LEN - 1; i++)
        made = 10 * made + outcome->headers.ptr[i] - '0';
    w.shown[call->id] = true;
    w.shown_by_us[call->id] = w.execs[made].begun_us;
    memcpy(w.shown_name[call->id], outcome->headers.ptr, NAME_LEN);
}

/* Whether an operator has resolved the operation, and nothing came to the new half since, by a
 * claim or the copy. */
static bool resolved(int id)
{
    const struct half *old = &w.half[HAPAX__HALF_OLD];

    return w.said_us[id] > 0 && w.claimed_us[id] < w.said_us[id] &&
           (!old->present[id] || (old->records[id].state != HAPAX_STATE_UNKNOWN &&
                                  old->records[id].state != HAPAX_STATE_STARTED));
}

static void answered(struct call *call)
{
    const struct hapax_answer *a = &call->flow.answer;
    bool own, shown = w.shown[call->id] && !forgotten(w.shown_by_us[call->id]);

    say("c%d ANSWER %s %.4s%s", (int)(call - w.calls), hapax_answer_name(a->kind),
        a->outcome.headers.len ? (const char *)a->outcome.headers.ptr : "",
        a->recorded ? " recorded" : "");
    call->answered = true;
    if (a->kind == HAPAX_ANSWER_REPLAY || (a->kind == HAPAX_ANSWER_FRESH && a->recorded &&
                                           call->flow.end.kind == HAPAX_OP_COMPLETE)) {
        w.marks[MARK_REPLAYED] += a->kind == HAPAX_ANSWER_REPLAY;
        show(call, &a->outcome);
    }
    w.marks[MARK_UNKNOWN] += a->kind == HAPAX_ANSWER_UNKNOWN;
    /* A hook that could not tell speaks for itself. */
    if (call->known && shown && call->flow.end.kind == 0 &&
        (a->kind == HAPAX_ANSWER_UNKNOWN || a->kind == HAPAX_ANSWER_FAILED ||
         a->kind == HAPAX_ANSWER_MISMATCH || a->kind == HAPAX_ANSWER_GONE ||
         a->kind == HAPAX_ANSWER_LIMITED))
        violate("id %d: c%d is answered %s after an outcome was shown", call->id,
                (int)(call - w.calls), hapax_answer_name(a->kind));
    /* Its own may have been shown by a mate already. */
    own =
        call->exec >= 0 && memcmp(w.execs[call->exec].name, w.shown_name[call->id], NAME_LEN) == 0;
    if (call->last && shown && a->kind != HAPAX_ANSWER_REPLAY && !own)
        violate("id %d: in the end its outcome is gone: %s", call->id, hapax_answer_name(a->kind));
    if (call->last && a->kind == HAPAX_ANSWER_UNKNOWN && resolved(call->id))
        violate("id %d: in the end an operator's word is gone", call->id);
    if (call->last && a->kind == HAPAX_ANSWER_UNKNOWN && w.policy.on_expired == HAPAX_EXPIRED_RERUN)
        violate("id %d: in the end it is unknown, though it may run again", call->id);
    if (call->last && !shown && a->kind != HAPAX_ANSWER_UNKNOWN && a->kind != HAPAX_ANSWER_REPLAY &&
        a->kind != HAPAX_ANSWER_FRESH)
        violate("id %d: in the end it is answered %s", call->id, hapax_answer_name(a->kind));
}

static bool act(struct hapax__flow *flow, enum hapax__flow_do what, int64_t now_us)
{
    struct call *call = flow->door;
    int n = (int)(call - w.calls);

    (void)now_us;
    switch (what) {
    case HAPAX__FLOW_PAUSE:
        if (flow->wake_us < INT64_MAX)
            at(flow->wake_us > w.now_us ? flow->wake_us : w.now_us + 1, WAKE, n,
               ++call->wake_stamp);
        break;
    case HAPAX__FLOW_ASK:
        say("c%d (%d) ASK op%d", n, (int)call->kind, (int)flow->op.kind);
        if (call->kind != DOOR_BOTH) {
            send_op(n, &flow->op, call->kind == DOOR_OLD ? HAPAX__HALF_OLD : HAPAX__HALF_NEW);
            break;
        }
        call->kept_count = 0;
        hapax__pair_begin(&call->pair, &flow->op);
        send_op(n, &call->pair.sub, call->pair.half);
        break;
    case HAPAX__FLOW_RUN:
        run_handler(call);
        break;
    case HAPAX__FLOW_RECONCILE:
        say("c%d RECONCILE", n);
        at(w.now_us + between(0, 20 * MS), HOOK, n, 0);
        break;
    case HAPAX__FLOW_ANSWER:
        answered(call);
        break;
    case HAPAX__FLOW_END:
        say("c%d END", n);
        call->state = OVER;
        break;
    default:
        say("c%d ABANDON", n);
    }
    return !w.failed;
}

static void drive(struct call *call)
{
    static const struct hapax__flow_door door = {flow_now, act};

    (void)hapax__flow_drive(&call->flow, &door);
}

static void told(struct call *call)
{
    call->asking = false;
    say("c%d TOLD %s", (int)(call - w.calls), hapax_verdict_name(call->flow.op.verdict));
    hapax__flow_told(&call->flow, w.now_us);
    drive(call);
}

static void note_pair(const struct hapax__pair *pair, const struct hapax_op *asked)
{
    bool new = pair->half == HAPAX__HALF_NEW;

    w.marks[MARK_MIRRORED] += new && asked->kind == HAPAX_OP_COMPLETE &&
                              asked->verdict == HAPAX_OK && pair->op->kind != HAPAX_OP_COMPLETE;
    w.marks[MARK_GIVEN_BACK] += asked->kind == HAPAX_OP_FAIL && pair->op->kind == HAPAX_OP_CLAIM;
    w.marks[MARK_FROM_NEW] += new && asked->kind == HAPAX_OP_RENEW &&
                              asked->verdict == HAPAX_LOST &&
                              asked->record.state == HAPAX_STATE_COMPLETED;
}

/* ---- operators ------------------------------------------------------------------------- */

static void ask_for_operator(struct call *call, enum hapax_op_kind kind)
{
    call->op.kind = kind;
    call->kept_count = 0;
    call->asked_us = clock_of(&w.half[HAPAX__HALF_OLD]);
    hapax__pair_begin(&call->pair, &call->op);
    send_op((int)(call - w.calls), &call->pair.sub, call->pair.half);
}

/* Nothing of the operation takes effect after this. */
static void find_out(struct call *call)
{
    struct hapax_op *op = &call->op;

    op->resolve = chance(500) ? HAPAX_RESOLVE_FAIL : HAPAX_RESOLVE_FORGET;
    op->outcome = (struct hapax_outcome){0};
    for (int i = 0; i < w.execs_count; i++) {
        struct exec *exec = &w.execs[i];

        if (exec->id != call->id)
            continue;
        exec->barred = true;
        if (exec->effected) {
            op->resolve = HAPAX_RESOLVE_COMPLETE;
            op->outcome = (struct hapax_outcome){.status = 200, .body_kept = true};
            op->outcome.headers = (struct hapax_span){exec->name, NAME_LEN};
        }
    }
    op->if_updated_us = op->record.updated_us;
    for (int i = 0; i < 14; i++)
        op->token.bytes[i] = (uint8_t)next();
    op->token.bytes[15] = (uint8_t)(call - w.calls + 1);
    say("c%d FOUND OUT of id %d: %d", (int)(call - w.calls), call->id, (int)op->resolve);
}

static void operator_begins(struct call *call)
{
    if (w.policy.on_expired != HAPAX_EXPIRED_HOLD || w.rolled == 0)
        return; /* nothing is unknown, or nobody has both */
    call->kind = DOOR_BOTH;
    call->state = LIVE;
    call->operates = true;
    call->proc = -1;
    call->tries++;
    call->looked_us = w.now_us;
    call->op = (struct hapax_op){0};
    memset(&call->op.id, call->id + 1, sizeof(call->op.id));
    call->old = old_identity(call->id);
    call->op.old = w.rotation ? &call->old : NULL;
    ask_for_operator(call, HAPAX_OP_READ);
}

/* An operator was told that the word came too late. Then the old half does not have it, or the new
 * half was written since the operator looked. What was completed comes over in any case. A late
 * copy of what was sent before may land once the old half has said that it does not have it. */
static void check_lost(const struct call *call)
{
    const struct half *old = &w.half[HAPAX__HALF_OLD];
    struct hapax_mark mark;

    hapax__mark(&mark, &call->op.token);
    if (old->present[call->id] && memcmp(&old->records[call->id].mark, &mark, sizeof(mark)) == 0 &&
        old->records[call->id].resolved_us < call->asked_us &&
        (call->op.resolve == HAPAX_RESOLVE_COMPLETE || w.new_us[call->id] < call->looked_us))
        violate("id %d: c%d is told that a word is lost which stands", call->id,
                (int)(call - w.calls));
}

/* It waits for an operator's word: under `hold` a failure does, too, but one that an operator has
 * made of it. Of a claim whose lease is over nobody knows yet whether its door goes on. */
static bool is_open(const struct hapax_record *record)
{
    return record->state == HAPAX_STATE_UNKNOWN ||
           (record->state == HAPAX_STATE_FAILED && !hapax__unbound(record) &&
            record->resolved_us == 0);
}

static void told_operator(struct call *call)
{
    const struct hapax_op *op = &call->op;

    call->asking = false;
    say("c%d OPERATOR op%d: %s, %s", (int)(call - w.calls), (int)op->kind,
        hapax_verdict_name(op->verdict), hapax_state_name(op->record.state));
    if (op->kind == HAPAX_OP_READ && op->verdict == HAPAX_FOUND && is_open(&op->record)) {
        find_out(call);
        ask_for_operator(call, HAPAX_OP_RESOLVE);
        return;
    }
    if (op->kind == HAPAX_OP_RESOLVE && op->verdict == HAPAX_NO_VERDICT &&
        op->resolve != HAPAX_RESOLVE_FORGET && call->tries++ < LOOKS_MAX) {
        ask_for_operator(call, HAPAX_OP_RESOLVE);
        return;
    }
    call->state = OVER;
    call->answered = true;
    if (op->kind == HAPAX_OP_RESOLVE && op->verdict == HAPAX_LOST)
        check_lost(call);
    if (op->kind == HAPAX_OP_RESOLVE && op->verdict == HAPAX_OK) {
        w.marks[MARK_RESOLVED]++;
        w.said_us[call->id] = w.word_us[call->id];
        if (op->resolve == HAPAX_RESOLVE_COMPLETE)
            show(call, &op->outcome);
    } else if (!w.calm && call->tries < LOOKS_MAX) {
        at(w.now_us + between(MS, 100 * MS), LOOK, (int)(call - w.calls), 0);
    }
}

/* The store answered the op that is out: the flow's own, or one of its pair. */
static void answer_op(struct call *call, struct hapax_op *op)
{
    struct hapax__pair *pair = &call->pair;
    struct hapax_span *name;

    assert(call->kept_count < 64);
    if (call->kind != DOOR_BOTH) {
        call->flow.op = *op;
        told(call);
        return;
    }
    name = &op->record.outcome.headers;
    (void)keep_name(name, call->kept[call->kept_count++ % 4]);
    note_pair(pair, op);
    op->outcome = pair->sub.outcome; /* lent by the asker; the message's copy goes */
    pair->sub = *op;
    if (hapax__pair_told(pair))
        send_op((int)(call - w.calls), &pair->sub, pair->half);
    else if (call->operates)
        told_operator(call);
    else
        told(call);
}

static void timed_out(struct call *call, uint32_t ask)
{
    struct hapax_op op;

    if (call->state != LIVE || !call->asking || call->ask != ask)
        return;
    op = call->kind == DOOR_BOTH ? call->pair.sub : call->flow.op;
    op.verdict = HAPAX_NO_VERDICT;
    op.error = HAPAX_ERR_INDETERMINATE;
    answer_op(call, &op);
}

static void call_begins(struct call *call)
{
    struct hapax__flow_request request = {.key = HAPAX__KEY_GIVEN, .key_len = 20};

    call->proc = (int)between(0, PROCS - 1);
    call->kind = w.kinds[call->proc];
    call->state = LIVE;
    call->exec = -1;
    call->known = w.shown[call->id];
    request.scope = scope_name;
    request.reconciles = w.hook;
    memset(&request.id, call->id + 1, sizeof(request.id));
    memset(&request.owner, 0x03, sizeof(request.owner));
    memset(&request.fingerprint, 0xf1, sizeof(request.fingerprint));
    memset(&request.caller, 0xc1, sizeof(request.caller));
    if (w.rotation && call->kind == DOOR_OLD) {
        const struct hapax_identity old = old_identity(call->id);

        request.id = old.id;
        request.owner = old.owner;
        request.fingerprint = old.fingerprint;
        request.caller = old.caller;
    }
    if (!w.calm && chance(w.over))
        request.over = (struct hapax__over){HAPAX__LIMIT_KEYS, 1000};
    request.has_old = w.rotation && call->kind == DOOR_BOTH;
    request.old = old_identity(call->id);
    for (int i = 0; i < 14; i++)
        request.token.bytes[i] = (uint8_t)next();
    request.token.bytes[15] = (uint8_t)(call - w.calls + 1);
    call->flow.door = call;
    say("c%d BEGIN id %d at p%d (%d)", (int)(call - w.calls), call->id, call->proc,
        (int)call->kind);
    hapax__flow_begin(&call->flow, &w.policy, &w.waiters[call->proc], &request, w.now_us);
    drive(call);
}

static void effect(struct exec *exec)
{
    if (w.calls[exec->call].state == DEAD)
        return;
    if (exec->barred)
        exec->cls = HAPAX_CLASS_NOT_RUN;
    else
        exec->effected = true;
    say("EFFECT of c%d%s", exec->call, exec->barred ? ": refused" : "");
}

static void ended(struct exec *exec)
{
    struct call *call = &w.calls[exec->call];
    struct hapax_outcome outcome = {.status = 200, .body_kept = true};

    if (call->state != LIVE || !exec->running)
        return;
    exec->running = false;
    exec->ended = true;
    outcome.headers = (struct hapax_span){exec->name, NAME_LEN};
    say("c%d HANDLED class %d", exec->call, (int)exec->cls);
    hapax__flow_handled(&call->flow, exec->cls, &outcome, w.now_us);
    drive(call);
}

static void hook(struct call *call)
{
    struct hapax_outcome outcome = {.status = 200, .body_kept = true};
    enum hapax_class cls = HAPAX_CLASS_NOT_RUN;

    if (call->state != LIVE)
        return;
    for (int i = 0; i < w.execs_count; i++) {
        struct exec *exec = &w.execs[i];

        if (exec->id != call->id)
            continue;
        exec->barred = true;
        if (exec->effected) {
            cls = HAPAX_CLASS_FINAL;
            outcome.headers = (struct hapax_span){exec->name, NAME_LEN};
            break;
        }
    }
    if (!w.calm && chance(150))
        cls = HAPAX_CLASS_UNKNOWN;
    call->hook_no = cls == HAPAX_CLASS_NOT_RUN;
    say("c%d HOOK class %d", (int)(call - w.calls), (int)cls);
    hapax__flow_reconciled(&call->flow, cls, &outcome, w.now_us);
    drive(call);
}

static void kill_process(int proc)
{
    say("p%d KILLED", proc);
    for (int i = 0; i < w.calls_count; i++)
        if (w.calls[i].proc == proc && w.calls[i].state == LIVE)
            w.calls[i].state = DEAD;
    hapax__waiters_init(&w.waiters[proc], w.buckets[proc], 4);
}

/* ---- the move -------------------------------------------------------------------------- */

static void roll(void)
{
    int proc = w.rolled % PROCS;

    kill_process(proc);
    w.kinds[proc]++;
    w.rolled++;
    say("p%d HAS %s", proc, w.kinds[proc] == DOOR_BOTH ? "BOTH" : "NEW");
    if (w.rolled == PROCS) {
        w.since_us = clock_of(&w.half[HAPAX__HALF_OLD]);
        w.copy_id = w.rotation ? -1 : 0;
        w.copy_step = READ_LISTED;
        at(w.now_us + between(0, LEASE_MS * MS), COPY, 0, 0);
        /* An operator who is busy just then. */
        w.calls[w.calls_count].id = (int)between(0, IDS - 1);
        at(w.now_us + between(0, LEASE_MS * MS), LOOK, w.calls_count++, 0);
    } else if (w.rolled < 2 * PROCS) {
        at(w.now_us + between(0, 2 * LEASE_MS * MS), ROLL, 0, 0);
    } else {
        at(w.now_us + 2 * LEASE_MS * MS, CALM, 0, 0);
    }
}

static struct hapax_op copy_op(enum hapax__half half, enum hapax_op_kind kind)
{
    static uint8_t encoded[RECORD_MAX], names[2][NAME_LEN];
    struct hapax_op op = {.kind = kind};
    struct hapax_record bare = w.copied[HAPAX__HALF_OLD].record;

    memset(&op.id, w.copy_id + 1, sizeof(op.id));
    if (kind == HAPAX_OP_IMPORT) {
        op.outcome = bare.outcome;
        bare.outcome = (struct hapax_outcome){0};
        assert(hapax__record_size(&bare) <= RECORD_MAX);
        op.import = (struct hapax_span){encoded, hapax__record_size(&bare)};
        hapax__record_encode(encoded, &bare);
    }
    if (kind == HAPAX_OP_RESOLVE) {
        memset(&op.token, COPY_BYTE, sizeof(op.token));
        op.resolve = HAPAX_RESOLVE_FORGET;
        op.force = w.copy_step == TAKE_BACK;
        op.if_updated_us = w.copied[HAPAX__HALF_NEW].record.updated_us;
    }
    judge(half, &op);
    if (kind == HAPAX_OP_READ)
        (void)keep_name(&op.record.outcome.headers, names[half]);
    return op;
}

static bool is_live(const struct hapax__pair_shown *shown)
{
    return shown->record.state == HAPAX_STATE_STARTED &&
           shown->now_us < shown->record.lease_until_us;
}

static void copy_goes_on(void)
{
    w.copy_id++;
    w.copy_step = READ_LISTED;
    w.put = (struct hapax_record){0};
}

/* Both were read. */
static void compare(void)
{
    const struct hapax__pair_shown *old = &w.copied[HAPAX__HALF_OLD];
    bool covered = hapax__pair_covers(old, &w.copied[HAPAX__HALF_NEW], w.since_us);

    say("        COPY: id %d is %s", w.copy_id, covered ? "there" : "not there");
    if (w.put.state != HAPAX_STATE_ABSENT && hapax__pair_resolved(&w.put, &old->record) &&
        hapax__pair_has_put(&w.put, &w.copied[HAPAX__HALF_NEW].record))
        w.copy_step = TAKE_BACK;
    else if (covered)
        copy_goes_on();
    else
        w.copy_step = is_live(old) ? READ_NEW : IMPORT;
}

static struct hapax_op copy_reads(enum hapax__half half)
{
    struct hapax_op op = copy_op(half, HAPAX_OP_READ);

    w.copied[half] = (struct hapax__pair_shown){op.record, op.now_us};
    if (half == HAPAX__HALF_OLD)
        w.put_us = w.now_us;
    return op;
}

/* One op of the copy: READ in the old half, of what LIST shows there; READ in the new one, and
 * where something has begun there once more in the old one; IMPORT, and where there is another
 * record FORGET; then READs in the new half and in the old one, until all is there. What was put
 * before an operator's word is taken back. */
static void copy(void)
{
    const struct hapax_record *new = &w.copied[HAPAX__HALF_NEW].record;
    struct hapax_op op;

    switch (w.copy_step) {
    case READ_LISTED:
        op = copy_reads(HAPAX__HALF_OLD);
        w.copy_listed = true;
        w.copy_step = READ_NEW;
        if (op.verdict == HAPAX_FOUND &&
            !hapax__listed(&op.record, &(struct hapax_op){.kind = HAPAX_OP_LIST},
                           op.now_us - BEHIND_US))
            copy_goes_on();
        break;
    case READ_NEW:
        (void)copy_reads(HAPAX__HALF_NEW);
        w.copy_step = READ_OLD;
        if (w.copy_listed &&
            (new->state == HAPAX_STATE_ABSENT || new->state == HAPAX_STATE_COMPLETED))
            compare();
        w.copy_listed = false;
        break;
    case READ_OLD:
        (void)copy_reads(HAPAX__HALF_OLD);
        compare();
        break;
    case IMPORT:
        op = copy_op(HAPAX__HALF_NEW, HAPAX_OP_IMPORT);
        w.marks[MARK_COPIED] += op.verdict == HAPAX_OK;
        if (op.verdict == HAPAX_OK)
            w.put = w.copied[HAPAX__HALF_OLD].record;
        w.copy_step =
            op.verdict == HAPAX_FOUND && new->state != HAPAX_STATE_ABSENT ? FORGET : READ_NEW;
        break;
    case FORGET:
        op = copy_op(HAPAX__HALF_NEW, HAPAX_OP_RESOLVE);
        w.marks[MARK_REPLACED] += op.verdict == HAPAX_OK;
        w.copy_step = READ_NEW;
        break;
    case TAKE_BACK:
        op = copy_op(HAPAX__HALF_NEW, HAPAX_OP_RESOLVE);
        w.marks[MARK_TAKEN_BACK] += op.verdict == HAPAX_OK;
        w.copy_step = READ_NEW;
    }
    if (w.copy_id < IDS) {
        at(w.now_us + (chance(100) ? between(0, LEASE_MS * MS) : between(100, 3 * MS)), COPY, 0, 0);
    } else {
        say("        COPY: all is there");
        at(w.now_us + between(0, 2 * LEASE_MS * MS), ROLL, 0, 0);
    }
}

/* In a rotation: whether something is left that may be known in the old half alone. */
static void look(void)
{
    int64_t now_us = clock_of(&w.half[0]);
    bool left = false;

    w.marks[MARK_LEFT]++;
    for (int which = 0; which < 2; which++)
        for (int id = 0; id < IDS; id++) {
            const struct hapax_record *record = &w.half[which].records[id];

            left |= w.half[which].present[id] && hapax__pair_left(record, w.since_us, now_us);
        }
    say("        LOOK: %s", left ? "something is left" : "nothing is left");
    if (left && w.now_us < GIVE_UP_US)
        at(w.now_us + between(MS, LEASE_MS * MS), COPY, 0, 0);
    else if (left)
        at(w.now_us, CALM, 0, 0); /* it waits for an operator: the last step is not made */
    else
        at(w.now_us + between(0, 2 * LEASE_MS * MS), ROLL, 0, 0);
}

static void calm(void)
{
    say("CALM");
    w.calm = true;
    w.lost = w.late = w.twice = w.refused = w.broken = 0;
    w.policy.wait_ms = 60000;
    w.policy.timeout_ms = 30000;
    /* By then late copies of requests are over, and each lease, and no breaker is open. */
    for (int id = 0; id < IDS && w.calls_count < CALLS_MAX; id++) {
        w.calls[w.calls_count].id = id;
        w.calls[w.calls_count].last = true;
        at(w.now_us + 8 * LEASE_MS * MS + 6000 * MS, CALL, w.calls_count++, 0);
    }
}

/* ---- a schedule ------------------------------------------------------------------------ */

static void handle(const struct event *event)
{
    struct call *call = &w.calls[event->who < CALLS_MAX ? event->who : 0];

    switch (event->kind) {
    case CALL:
        call_begins(call);
        return;
    case REQUEST:
        request(&w.msgs[event->who]);
        return;
    case REPLY:
        reply(&w.msgs[event->who]);
        return;
    case TIMEOUT:
        timed_out(call, event->stamp);
        return;
    case WAKE:
        if (call->state == LIVE && call->wake_stamp == event->stamp)
            drive(call);
        return;
    case EFFECT:
        effect(&w.execs[event->who]);
        return;
    case END:
        ended(&w.execs[event->who]);
        return;
    case HOOK:
        hook(call);
        return;
    case ROLL:
        roll();
        return;
    case COPY:
        if (w.rotation)
            look();
        else
            copy();
        return;
    case CRASH:
        if (!w.calm)
            kill_process(event->who);
        return;
    case CALM:
        calm();
        return;
    case LOOK:
        operator_begins(call);
    }
}

static void draw(void)
{
    bool harsh = chance(700);

    hapax_policy_init(&w.policy);
    w.policy.lease_ms = LEASE_MS;
    w.policy.run_max_ms = 20 * LEASE_MS;
    w.policy.retention_ms = w.rotation ? KEPT_MS : 3600000;
    w.policy.timeout_ms = between(50, 2000);
    w.policy.save_wait_ms = between(5, 2000);
    w.policy.wait_ms = chance(600) ? between(20, 8 * LEASE_MS) : 0;
    w.policy.on_expired = (enum hapax_on_expired)between(1, 3);
    w.hook = w.policy.on_expired == HAPAX_EXPIRED_RECONCILE;
    w.over = w.rotation && chance(300) ? (unsigned)between(0, 1000) : 0;
    if (harsh) {
        w.lost = (unsigned)between(0, 200);
        w.late = (unsigned)between(0, 200);
        w.twice = (unsigned)between(0, 200);
        w.refused = (unsigned)between(0, 150);
        w.broken = (unsigned)between(0, 500);
    }
    for (int half = 0; half < 2; half++) {
        w.half[half].skew_us = chance(500) ? between(-3000 * MS, 3000 * MS) : 0;
        w.half[half].drift = chance(500) ? (int)between(-20, 20) : 0;
    }
    for (int i = 0; i < PROCS; i++)
        hapax__waiters_init(&w.waiters[i], w.buckets[i], 4);
    for (int64_t n = between(4, 24); n > 0; n--) {
        w.calls[w.calls_count].id = (int)between(0, IDS - 1);
        at(between(0, (w.rotation && chance(600) ? 60 : 16) * LEASE_MS * MS), CALL, w.calls_count++,
           0);
    }
    for (int64_t n = between(0, 3); n > 0; n--) {
        w.calls[w.calls_count].id = (int)between(0, IDS - 1);
        at(between(0, 20 * LEASE_MS * MS), LOOK, w.calls_count++, 0);
    }
    for (int64_t n = between(0, 2); n > 0; n--)
        at(between(0, 12 * LEASE_MS * MS), CRASH, (int)between(0, PROCS - 1), 0);
    at(between(0, 4 * LEASE_MS * MS), ROLL, 0, 0);
    w.copy_id = -1;
}

static void play(uint64_t seed, bool rotation, bool trace)
{
    uint64_t marks[sizeof(w.marks) / sizeof(w.marks[0])];
    struct event event;
    unsigned steps = 0;

    memcpy(marks, w.marks, sizeof(marks));
    memset(&w, 0, sizeof(w));
    memcpy(w.marks, marks, sizeof(marks));
    w.random = seed * UINT64_C(0xd1342543de82ef95) + 1;
    hapax__pair_together_us = SPREAD_US;
    w.rotation = rotation;
    w.trace = trace;
    draw();
    while (!w.failed && take(&event)) {
        if (w.now_us < event.at_us)
            w.now_us = event.at_us;
        handle(&event);
        if (++steps > STEPS_MAX || w.now_us > REST_US)
            violate("it does not come to rest");
    }
    for (int i = 0; i < w.calls_count && !w.failed; i++)
        if (w.calls[i].state == LIVE || (w.calls[i].state == OVER && !w.calls[i].answered))
            violate("c%d has no answer", i);
    if (!w.failed && !w.calm)
        violate("the move does not end");
}

int main(int argc, char **argv)
{
    uint64_t first = 1, count = 10000;
    bool rotation = argc > 1 && strcmp(argv[1], "--rotation") == 0;

    for (int i = 1 + rotation; i + 1 < argc; i += 2) {
        uint64_t value = strtoull(argv[i + 1], NULL, 10);

        if (strcmp(argv[i], "--seed") == 0) {
            play(value, rotation, true);
            return w.failed;
        }
        if (strcmp(argv[i], "--first") == 0)
            first = value;
        else if (strcmp(argv[i], "--schedules") == 0)
            count = value;
        else
            return 2;
    }
    for (uint64_t seed = first; seed < first + count; seed++) {
        play(seed, rotation, false);
        if (w.failed) {
            printf("violation: seed %" PRIu64 " rule \"%s\": %s\n", seed, "move", w.rule);
            return 1;
        }
    }
    printf("%" PRIu64 " %s\n", count, rotation ? "rotations" : "moves");
    for (size_t i = 0; i < sizeof(mark_names) / sizeof(mark_names[0]); i++) {
        bool here = rotation ? i != MARK_COPIED && i != MARK_REPLACED && i != MARK_TAKEN_BACK
                             : i != MARK_LEFT;

        if (here)
            printf("%12" PRIu64 " %s\n", w.marks[i], mark_names[i]);
        if (here && w.marks[i] == 0)
            return 1;
    }
    return 0;
}
