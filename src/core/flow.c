/* SPDX-License-Identifier: Apache-2.0
 *
 * The flow as a table: what each phase asks the store, and what each event does in it. Three rules
 * shape every line of it:
 *   - stored first, sent second: no answer that a retry could contradict leaves before told();
 *   - no reply is no news: an op without a reply is repeated with the same token, never taken
 *     for "absent" or "not done", and a CLAIM given up on is chased until it can do no harm;
 *   - LOST after the handler ran means that somebody else's answer stands, or will stand.
 * One op is under way at a time, so a verdict always belongs to the last ASK. An event gives a flow
 * one thing to do at most (set_due()), and plans one op at most (ask_at()).
 *
 * A CLAIM given up on is repeated until its result is known. Rejected: to FAIL it at once. A FAIL
 * that overtakes the CLAIM finds nothing to release, and the operation is then blocked for a lease.
 */
#include "flow.h"

#include "base/time.h"
#include "class.h"
#include "machine.h"
#include "trace.h"

#include <assert.h>
#include <string.h>

#define CLAIM_PAUSE_MIN_US (10 * US_PER_MS)
#define CLAIM_PAUSE_MAX_US (500 * US_PER_MS)
#define WAIT_PAUSE_MIN_US  (25 * US_PER_MS)
#define WAIT_PAUSE_MAX_US  (1000 * US_PER_MS)
#define SAVE_PAUSE_MIN_US  (20 * US_PER_MS)
#define SAVE_PAUSE_MAX_US  (5000 * US_PER_MS)
#define RETRY_AFTER_MS     1000

/* ---- the table ----------------------------------------------------------------------- */

typedef void op_maker(struct hapax__flow *f);
typedef void event(struct hapax__flow *f, int64_t now_us);

static op_maker make_look, make_claim, make_renewal, make_read, make_end, make_release;
static event told_look, told_claim, told_confirm, told_running, told_completed, told_read,
    told_saved, told_chased, told_released;
static event claim_late, waited_enough, confirm_late, renewed_enough, end_untold, save_late;
static event hook_ended, run_ended, bypass_ended, stop_claiming, stop_if_answered;

/* NULL: the event does nothing in this phase, or cannot come. */
static const struct phase {
    op_maker *make; /* fills in what the phase asks */
    event *told; /* the store answered */
    event *late; /* limit_us is reached */
    event *ended; /* handler or hook ended, and no RENEW is out */
    event *stop; /* the client is gone, or the door closes */
} phases[] = {
    /* clang-format off */
    [HAPAX__FLOW_LOOKING]     = {make_look, told_look, claim_late, NULL, stop_claiming},
    [HAPAX__FLOW_CLAIMING]    = {make_claim, told_claim, claim_late, NULL, stop_claiming},
    [HAPAX__FLOW_WAITING]     = {make_claim, told_claim, waited_enough, NULL, waited_enough},
    [HAPAX__FLOW_CONFIRMING]  = {make_renewal, told_confirm, confirm_late, NULL, confirm_late},
    [HAPAX__FLOW_RECONCILING] = {make_renewal, told_running, renewed_enough, hook_ended, NULL},
    [HAPAX__FLOW_RUNNING]     = {make_renewal, told_running, renewed_enough, run_ended, NULL},
    [HAPAX__FLOW_READING]     = {make_read, told_read, end_untold, NULL, NULL},
    [HAPAX__FLOW_SAVING]      = {make_end, told_saved, save_late, NULL, stop_if_answered},
    [HAPAX__FLOW_CHASING]     = {make_claim, told_chased, NULL, NULL, stop_if_answered},
    [HAPAX__FLOW_RELEASING]   = {make_release, told_released, NULL, NULL, stop_if_answered},
    [HAPAX__FLOW_BYPASSING]   = {NULL, NULL, NULL, bypass_ended, NULL},
    [HAPAX__FLOW_OVER]        = {NULL, NULL, NULL, NULL, NULL},
    /* clang-format on */
};

/* ---- what every phase uses ----------------------------------------------------------- */

static int64_t lease_of(const struct hapax__flow *f)
{
    return f->policy->lease_ms * US_PER_MS;
}

/* Goes on in this phase until limit_us, with no tries; an op that is due or out stays so. */
static void enter(struct hapax__flow *f, enum hapax__flow_phase phase, int64_t limit_us)
{
    f->phase = phase;
    f->limit_us = limit_us;
    f->tries = 0;
}

/* Plans the phase's next op: next() returns ASK at at_us. No op may be out. */
static void ask_at(struct hapax__flow *f, int64_t at_us)
{
    assert(f->ask != HAPAX__ASK_OUT);
    f->ask = HAPAX__ASK_DUE;
    f->ask_at_us = at_us;
}

/* The pause before the next try. It doubles with each try; up to half is taken off by the token's
 * bytes, so that equal flows do not march in step. */
static int64_t pause_us(struct hapax__flow *f, int64_t min_us, int64_t max_us)
{
    int64_t pause = min_us << (f->tries < 16 ? f->tries : 16);
    uint8_t spread = f->request.token.bytes[f->tries % sizeof(f->request.token.bytes)];

    f->tries++;
    pause = hapax__least(pause, max_us);
    return pause - pause * spread / 512;
}

static void save_again(struct hapax__flow *f, int64_t now_us)
{
    ask_at(f, now_us + pause_us(f, SAVE_PAUSE_MIN_US, SAVE_PAUSE_MAX_US));
}

/* Whether an op that met this error is to be repeated. */
static bool repeatable(enum hapax_error error)
{
    return error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_INDETERMINATE ||
           error == HAPAX_ERR_NOMEM;
}

/* Whether the op met an error and is to be repeated. */
static bool to_repeat(const struct hapax__flow *f)
{
    return f->op.verdict == HAPAX_NO_VERDICT && repeatable(f->op.error);
}

/* The same of an op by the token of a claim that was granted. A refusal of it passes, too: a
 * password or keys are being changed. */
static bool passes(const struct hapax__flow *f)
{
    return f->op.verdict == HAPAX_NO_VERDICT &&
           (repeatable(f->op.error) || f->op.error == HAPAX_ERR_REFUSED);
}

/* The error to name when time ran out: the last one met, or that no reply came. */
static enum hapax_error why_late(const struct hapax__flow *f)
{
    return f->answer.error != HAPAX_ERR_NONE ? f->answer.error : HAPAX_ERR_INDETERMINATE;
}

/* What the policy does about an expired lease; where it would ask a hook but has none, it holds. */
static enum hapax_on_expired on_expired(const struct hapax__flow *f)
{
    if (f->policy->on_expired == HAPAX_EXPIRED_RECONCILE && !f->request.reconciles)
        return HAPAX_EXPIRED_HOLD;
    return f->policy->on_expired;
}

/* Has next() return this before anything else; nothing else may be due. */
static void set_due(struct hapax__flow *f, enum hapax__flow_do due)
{
    assert(f->due == HAPAX__FLOW_PAUSE);
    f->due = due;
}

static void take_record(struct hapax__flow *f)
{
    f->attempt = f->op.record.attempt;
    f->spent = f->op.record.spent;
    f->fence = f->op.record.fence;
    f->stale = f->op.record.stale;
}

static bool answered(const struct hapax__flow *f)
{
    return f->answer.kind != 0;
}

/* Whether its record may be gone already, by what the key says of itself. */
static bool outlived(const struct hapax__flow *f)
{
    return f->policy->key_expires && f->request.key_age_ms > f->policy->retention_ms;
}

/* ---- counting ------------------------------------------------------------------------ */

static void count_due(struct hapax__flow *f, enum hapax__flow_do due, int64_t now_us)
{
    const struct hapax_answer *answer = &f->answer;
    struct hapax__counts *counts = f->counts;

    if (due != HAPAX__FLOW_ANSWER)
        return;
    if (f->shadow)
        return;
    hapax__count_time(&counts->waiting, now_us - f->begun_us - f->ran_us);
    hapax__count(&counts->answers[answer->kind], 1);
    /* An unknown end leaves nothing to be stored: the claim runs out with its lease. */
    if (answer->kind == HAPAX_ANSWER_FRESH && !answer->recorded &&
        answer->cls != HAPAX_CLASS_UNKNOWN)
        hapax__count(&counts->unrecorded, 1);
    if (answer->unasked)
        hapax__count(&counts->unasked, 1);
}

/* What comes first says what a client would have met: a run, the hook, or an answer. */
static void see_shadow(struct hapax__flow *f, enum hapax__flow_do due)
{
    if (f->would != 0)
        return;
    assert(due != HAPAX__FLOW_ABANDON); /* which comes after a run */
    if (due == HAPAX__FLOW_ANSWER)
        f->would = f->answer.kind;
    else if (due == HAPAX__FLOW_RECONCILE)
        f->would = HAPAX__WOULD_ASK;
    else if (f->fence == 0) /* no claim: no key, or no store under `open` */
        f->would = HAPAX_ANSWER_BYPASS;
    else if (f->attempt > 1)
        f->would = HAPAX__WOULD_RUN_AGAIN;
    else
        f->would = HAPAX_ANSWER_FRESH;
    if (f->counts)
        hapax__count(&f->counts->would[f->would], 1);
}

static void count_told(const struct hapax__flow *f, int64_t now_us)
{
    struct hapax__counts *counts = f->counts;

    hapax__count(&counts->ops[f->op.kind], 1);
    hapax__count_time(&counts->op, now_us - f->asked_us);
    if (f->op.verdict == HAPAX_NO_VERDICT)
        hapax__count(&counts->errors[-f->op.error], 1);
}

/* Handler or hook has ended. */
static void count_end(const struct hapax__flow *f, uint64_t classes[], int64_t now_us)
{
    hapax__count(&classes[f->answer.cls], 1);
    hapax__count_time(&f->counts->handler, now_us - f->run_us);
}

static void count_lost(const struct hapax__flow *f)
{
    if (f->counts && !f->shadow && !f->lost && !f->answer.unprotected)
        hapax__count(&f->counts->lost, 1);
}

/* What the record's count will be: FAIL adds to it, and so does the takeover of a dead claim. */
static uint32_t spent_of(const struct hapax__flow *f, enum hapax_answer_kind kind)
{
    bool ran = f->answer.cls == HAPAX_CLASS_FAILED || f->answer.cls == HAPAX_CLASS_UNKNOWN;

    switch (kind) {
    case HAPAX_ANSWER_FRESH:
        return f->spent + ran;
    case HAPAX_ANSWER_FAILED:
    case HAPAX_ANSWER_UNKNOWN:
        return f->spent;
    default:
        return 0;
    }
}

/* Answers, once in a flow's life, with the outcome that was set: ANSWER is due, the phase stays. */
static void give(struct hapax__flow *f, enum hapax_answer_kind kind)
{
    assert(!answered(f));
    f->answer.kind = kind;
    f->answer.attempt = f->attempt;
    f->answer.spent = spent_of(f, kind);
    f->answer.fence = f->fence;
    hapax__trace_take(f->answer.trace, &f->answer.outcome.headers);
    set_due(f, HAPAX__FLOW_ANSWER);
}

/* Takes the flow out of the waiters; its first mate heads the others, and asks at once. */
static void promote(struct hapax__flow *f, int64_t now_us)
{
    struct hapax__waiter *first = hapax__waiters_leave(&f->waiter);
    struct hapax__flow *next;

    if (!first)
        return;
    next = hapax__flow_of(first);
    next->seen |= f->seen;
    ask_at(next, now_us);
    hapax__waiters_wake(first);
}

/* The flow ends with no op due, though one may be out; its mates go on without it. */
static void over(struct hapax__flow *f, int64_t now_us)
{
    promote(f, now_us);
    enter(f, HAPAX__FLOW_OVER, INT64_MAX);
    if (f->ask == HAPAX__ASK_DUE)
        f->ask = HAPAX__ASK_NONE;
}

/* Answers, unless that was done, and ends. */
static void end_with(struct hapax__flow *f, enum hapax_answer_kind kind, int64_t now_us)
{
    if (!answered(f))
        give(f, kind);
    over(f, now_us);
}

static void give_in_flight(struct hapax__flow *f, uint32_t attempt, int64_t lease_end_us,
                           int64_t now_us)
{
    int64_t left_us = lease_end_us > now_us ? lease_end_us - now_us : 0;

    f->attempt = attempt;
    f->fence = 0;
    f->answer.retry_after_ms = (left_us + US_PER_MS - 1) / US_PER_MS;
    if (left_us > 0 && left_us <= lease_of(f))
        f->answer.silent_ms = (lease_of(f) - left_us) / US_PER_MS;
    give(f, HAPAX_ANSWER_IN_FLIGHT);
}

static void give_store_down(struct hapax__flow *f, enum hapax_error error)
{
    f->answer.error = error;
    f->answer.retry_after_ms = repeatable(error) ? RETRY_AFTER_MS : -1;
    give(f, HAPAX_ANSWER_STORE_DOWN);
}

/* ---- the others who ask the same ----------------------------------------------------- */

static bool waits(const struct hapax__flow *f)
{
    return f->policy->wait_ms > 0;
}

static void wait_for(struct hapax__flow *f)
{
    enter(f, HAPAX__FLOW_WAITING, f->begun_us + f->policy->wait_ms * US_PER_MS);
}

/* Whether it has not been said yet that another attempt runs. */
static bool undecided(const struct hapax__flow *f)
{
    return f->phase == HAPAX__FLOW_LOOKING || f->phase == HAPAX__FLOW_CLAIMING;
}

/* An attempt runs, the head's or another's: undecided mates wait for it or are answered. */
static void mates_see_in_flight(struct hapax__flow *head, int64_t now_us)
{
    struct hapax__waiter *next;

    for (struct hapax__waiter *w = hapax__waiters_mate(&head->waiter); w; w = next) {
        struct hapax__flow *mate = hapax__flow_of(w);

        next = TAILQ_NEXT(w, mate);
        if (!undecided(mate))
            continue;
        hapax__waiters_wake(w);
        if (waits(mate)) {
            wait_for(mate);
            continue;
        }
        give_in_flight(mate, head->attempt, head->lease_end_us, now_us);
        over(mate, now_us);
    }
}

static bool is_stored(enum hapax_answer_kind kind)
{
    return kind == HAPAX_ANSWER_REPLAY || kind == HAPAX_ANSWER_GONE || kind == HAPAX_ANSWER_FAILED;
}

/* Gives every mate the head's answer and ends the mate: its handler has not run. */
static void share(struct hapax__flow *head, enum hapax_answer_kind kind,
                  const struct hapax_outcome *outcome, int64_t now_us)
{
    struct hapax__waiter *first;

    while ((first = hapax__waiters_mate(&head->waiter))) {
        struct hapax__flow *mate = hapax__flow_of(first);

        mate->attempt = head->attempt;
        mate->spent = head->spent;
        mate->fence = head->fence;
        mate->limited = head->limited;
        mate->answer.differs = head->answer.differs;
        mate->answer.retry_after_ms = head->answer.retry_after_ms;
        mate->answer.age_ms = head->answer.age_ms;
        mate->answer.kept_ms = head->answer.kept_ms;
        mate->answer.recorded = is_stored(kind) || head->answer.recorded;
        mate->answer.outcome = *outcome;
        give(mate, kind);
        over(mate, now_us);
        hapax__waiters_wake(first);
    }
}

/* ---- begin --------------------------------------------------------------------------- */

/* Whether the store is dead, so that a new claim is turned away. A claim that is a probe asks, and
 * gets a probe's time. A claim that joins another is no probe, since the other one asks. */
static bool store_dead(struct hapax__flow *f, const struct hapax__flow *head, int64_t now_us)
{
    struct hapax__breaker *breaker = &f->waiter.table->breaker;

    if (!undecided(f) || !hapax__breaker_refuses(breaker, now_us))
        return false;
    if (head != f || !hapax__breaker_probes(breaker, now_us))
        return true;
    f->limit_us = hapax__least(f->limit_us, now_us + HAPAX__PROBE_WAIT_US);
    return false;
}

static event turn_away;

static void join(struct hapax__flow *f, int64_t now_us)
{
    struct hapax__waiter *first = hapax__waiters_head(&f->waiter);
    struct hapax__flow *head = hapax__flow_of(first);

    if (!undecided(head) && head->phase != HAPAX__FLOW_WAITING) {
        if (!waits(f)) {
            give_in_flight(f, head->attempt, head->lease_end_us, now_us);
            over(f, now_us);
            return;
        }
        wait_for(f);
    }
    if (head != f)
        hapax__waiters_follow(&f->waiter, first);
    if (store_dead(f, head, now_us)) {
        turn_away(f, now_us);
    } else if (head == f) {
        ask_at(f, now_us);
    } else if (head->phase == HAPAX__FLOW_WAITING && head->ask != HAPAX__ASK_OUT) {
        ask_at(head, now_us); /* what the head knows may be a second old */
        hapax__waiters_wake(first);
    }
}

static void init(struct hapax__flow *f, const struct hapax_policy *policy,
                 struct hapax__waiters *table, const struct hapax__flow_request *request,
                 int64_t now_us)
{
    struct hapax__counts *counts = f->counts;
    bool shadow = f->shadow;
    void *door = f->door;

    assert(now_us >= 0);
    memset(f, 0, sizeof(*f));
    f->door = door;
    f->counts = counts;
    f->shadow = shadow;
    f->policy = policy;
    f->request = *request;
    f->waiter.table = table;
    f->waiter.question = (struct hapax__question){
        .id = request->id,
        .fingerprint = request->fingerprint,
        .caller = request->caller,
        .reconciles = request->reconciles,
        .rerun_completed = policy->rerun_completed,
        .on_expired = policy->on_expired,
        .attempts_max = policy->attempts_max,
    };
    f->begun_us = now_us;
    f->answer.retry_after_ms = -1;
    f->answer.silent_ms = -1;
    f->end.answer = HAPAX_ANSWER_FRESH;
}

void hapax__flow_begin(struct hapax__flow *f, const struct hapax_policy *policy,
                       struct hapax__waiters *table, const struct hapax__flow_request *request,
                       int64_t now_us)
{
    init(f, policy, table, request, now_us);
    enter(f, request->over.limit || outlived(f) ? HAPAX__FLOW_LOOKING : HAPAX__FLOW_CLAIMING,
          now_us + policy->timeout_ms * US_PER_MS);
    if (request->key == HAPAX__KEY_BAD) {
        end_with(f, HAPAX_ANSWER_BAD_KEY, now_us);
    } else if (request->key == HAPAX__KEY_UNOWNED) {
        end_with(f, HAPAX_ANSWER_MISSING_OWNER, now_us);
    } else if (request->key == HAPAX__KEY_NONE && policy->key == HAPAX_KEY_REQUIRED) {
        end_with(f, HAPAX_ANSWER_MISSING_KEY, now_us);
    } else if (request->key == HAPAX__KEY_NONE) {
        enter(f, HAPAX__FLOW_BYPASSING, INT64_MAX);
        set_due(f, HAPAX__FLOW_RUN);
    } else if (request->too_large) {
        end_with(f, HAPAX_ANSWER_TOO_LARGE, now_us);
    } else if (request->key_len < policy->key_min) {
        f->answer.key_min = policy->key_min;
        end_with(f, HAPAX_ANSWER_BAD_KEY, now_us);
    } else if (policy->owner_required && !hapax__owned(&request->owner)) {
        end_with(f, HAPAX_ANSWER_MISSING_OWNER, now_us);
    } else {
        join(f, now_us);
    }
}

void hapax__flow_resume(struct hapax__flow *f, const struct hapax_policy *policy,
                        struct hapax__waiters *table, const struct hapax__flow_request *request,
                        const struct hapax__flow_claim *claim, int64_t now_us)
{
    assert(request->key == HAPAX__KEY_GIVEN && claim->fence > 0);
    init(f, policy, table, request, now_us);
    f->attempt = claim->attempt;
    f->spent = claim->spent;
    f->fence = claim->fence;
    f->stale = claim->stale;
    f->resolved = claim->resolved;
    f->created_us = claim->created_us;
    f->seen = true;
    f->lease_end_us = now_us + lease_of(f);
    f->run_until_us = now_us + policy->run_max_ms * US_PER_MS;
    enter(f, claim->reconciling ? HAPAX__FLOW_RECONCILING : HAPAX__FLOW_RUNNING, f->run_until_us);
    set_due(f, claim->reconciling ? HAPAX__FLOW_RECONCILE : HAPAX__FLOW_RUN);
    ask_at(f, now_us);
    /* Whoever asks the same waits for it. But where others do so already, they go on by
     * themselves: the store answers them IN_FLIGHT. */
    (void)hapax__waiters_head(&f->waiter);
}

/* ---- what to ask --------------------------------------------------------------------- */

static void make_claim(struct hapax__flow *f)
{
    f->op.kind = HAPAX_OP_CLAIM;
    f->op.scope = f->request.scope;
    f->op.what = f->request.what;
    f->op.lease_ms = f->policy->lease_ms;
    f->op.retention_ms = f->policy->retention_ms;
    f->op.on_expired = on_expired(f);
    f->op.attempts_max = f->policy->attempts_max;
    f->op.rerun_completed = f->policy->rerun_completed;
    f->op.says_kept = f->policy->retention_4xx_ms > 0 || f->policy->retention_failed_ms > 0 ||
                      f->policy->tombstone_ms > 0;
}

static void make_renewal(struct hapax__flow *f)
{
    f->op.kind = HAPAX_OP_RENEW;
    f->op.lease_ms = f->policy->lease_ms;
    f->op.reconciled = f->reconciled;
    /* A hook's "no" speaks of the attempts before this one, and of no later one. */
    f->op.if_attempt = f->reconciled ? f->attempt : 0;
    f->op.attempt = f->attempt;
    f->op.fence = f->fence;
}

static void make_read(struct hapax__flow *f)
{
    f->op.kind = HAPAX_OP_READ;
}

/* In a move a READ with a token brings an outcome to the new store, by a claim of that token. It
 * would be taken for the flow's own claim later, and is kept for what the outcome had left. */
static void make_look(struct hapax__flow *f)
{
    make_read(f);
    memset(&f->op.token, 0, sizeof(f->op.token));
}

/* The retention of this end, where it is not the claim's; otherwise 0. */
static int64_t kept_for(const struct hapax__flow *f)
{
    if (f->answer.cls == HAPAX_CLASS_FAILED)
        return f->policy->retention_failed_ms;
    return f->outcome.status / 100 == 4 ? f->policy->retention_4xx_ms : 0;
}

static void make_end(struct hapax__flow *f)
{
    const struct hapax_outcome *outcome = &f->outcome;

    f->op.kind = f->end.kind;
    f->op.ran = f->end.ran;
    f->op.as_unknown = f->end.as_unknown;
    f->op.died = f->died;
    f->op.kept_ms = kept_for(f);
    if (f->op.kind == HAPAX_OP_COMPLETE)
        f->op.tombstone_ms = f->policy->tombstone_ms;
    if (!f->lost) { /* the token may have a later claim by now */
        f->op.attempt = f->attempt;
        f->op.fence = f->fence;
    }
    if (f->op.kind == HAPAX_OP_FAIL && !f->op.ran)
        return; /* no store would keep the outcome */
    f->op.outcome = *outcome;
    if (!outcome->body_kept || f->bodiless || outcome->body.len > f->policy->max_response) {
        f->op.outcome.body_kept = false;
        f->op.outcome.body = (struct hapax_span){NULL, 0};
    }
    if (f->bare)
        f->op.outcome.headers = (struct hapax_span){NULL, 0};
}

static void make_release(struct hapax__flow *f)
{
    f->op.kind = HAPAX_OP_FAIL;
}

/* ---- events -------------------------------------------------------------------------- */

/* Whatever led to it, the door may run the handler, or give the answer. */
static void check_due(const struct hapax__flow *f, enum hapax__flow_do due)
{
    bool runs = due == HAPAX__FLOW_RUN && f->phase == HAPAX__FLOW_RUNNING;
    bool says_stored = due == HAPAX__FLOW_ANSWER && f->answer.recorded;

    /* promise 1 */
    assert(!runs || f->answer.unprotected || f->fence > 0);
    /* promise 11 */
    assert(!runs || !f->answer.unprotected || f->policy->on_store_error == HAPAX_STORE_OPEN);
    /* promise 4 */
    assert(!says_stored || f->answer.kind != HAPAX_ANSWER_FRESH || f->op.verdict == HAPAX_OK);
}

static void happens(event *what, struct hapax__flow *f, int64_t now_us)
{
    if (what)
        what(f, now_us);
}

enum hapax__flow_do hapax__flow_next(struct hapax__flow *f, int64_t now_us)
{
    if (f->due == HAPAX__FLOW_PAUSE && now_us >= f->limit_us)
        phases[f->phase].late(f, now_us);
    if (f->phase == HAPAX__FLOW_WAITING && f->wait_us == 0)
        f->wait_us = now_us;
    if (f->due != HAPAX__FLOW_PAUSE) {
        enum hapax__flow_do due = f->due;

        if (due == HAPAX__FLOW_RUN || due == HAPAX__FLOW_RECONCILE)
            f->run_us = now_us;
        f->due = HAPAX__FLOW_PAUSE;
        check_due(f, due);
        if (f->counts)
            count_due(f, due, now_us);
        if (f->shadow)
            see_shadow(f, due);
        return due;
    }
    if (f->ask == HAPAX__ASK_DUE && now_us >= f->ask_at_us) {
        memset(&f->op, 0, sizeof(f->op));
        f->op.id = f->request.id;
        f->op.token = f->request.token;
        f->op.fingerprint = f->request.fingerprint;
        f->op.caller = f->request.caller;
        f->op.owner = f->request.owner;
        f->op.old = f->request.has_old ? &f->request.old : NULL;
        phases[f->phase].make(f);
        f->ask = HAPAX__ASK_OUT;
        f->asked_us = now_us;
        return HAPAX__FLOW_ASK;
    }
    if (f->phase == HAPAX__FLOW_OVER && f->ask != HAPAX__ASK_OUT) {
        assert(answered(f) && !f->waiter.head && !f->waiter.is_ready);
        return HAPAX__FLOW_END;
    }
    f->wake_us = f->limit_us;
    if (f->ask == HAPAX__ASK_DUE)
        f->wake_us = hapax__least(f->wake_us, f->ask_at_us);
    return HAPAX__FLOW_PAUSE;
}

void hapax__flow_told(struct hapax__flow *f, int64_t now_us)
{
    assert(f->ask == HAPAX__ASK_OUT);
    assert((f->op.verdict == HAPAX_NO_VERDICT) == (f->op.error != HAPAX_ERR_NONE));
    f->ask = HAPAX__ASK_NONE;
    if (f->counts)
        count_told(f, now_us);
    if (f->op.verdict != HAPAX_NO_VERDICT) {
        hapax__breaker_heard(&f->waiter.table->breaker, now_us);
        if (!f->answer.unprotected)
            f->answer.error = HAPAX_ERR_NONE; /* the repeat was answered */
    }
    happens(phases[f->phase].told, f, now_us);
}

/* An end waits for the RENEW that is out. That RENEW may find the claim lost: then the
 * answer is the record's. */
static void ended(struct hapax__flow *f, int64_t now_us)
{
    if (f->ask != HAPAX__ASK_OUT)
        phases[f->phase].ended(f, now_us);
}

static void take_end(struct hapax__flow *f, enum hapax_class cls,
                     const struct hapax_outcome *outcome, int64_t now_us)
{
    assert(f->answer.cls == 0 && cls >= HAPAX_CLASS_FINAL && cls <= HAPAX_CLASS_UNKNOWN);
    f->answer.cls = cls;
    f->outcome = *outcome;
    f->ran_us += now_us - f->run_us;
}

void hapax__flow_handled(struct hapax__flow *f, enum hapax_class cls,
                         const struct hapax_outcome *outcome, int64_t now_us)
{
    assert(f->phase == HAPAX__FLOW_RUNNING || f->phase == HAPAX__FLOW_BYPASSING);
    take_end(f, cls, outcome, now_us);
    f->handled_us = now_us;
    if (f->counts && !f->shadow && f->phase == HAPAX__FLOW_RUNNING)
        count_end(f, f->counts->attempts, now_us);
    /* The CLAIM has no verdict yet, so the answer does not wait. The outcome is saved if the
     * CLAIM turns out to have landed. */
    if (f->answer.unprotected && f->ask == HAPAX__ASK_OUT) {
        f->answer.outcome = *outcome;
        give(f, HAPAX_ANSWER_BYPASS);
    }
    ended(f, now_us);
}

void hapax__flow_reconciled(struct hapax__flow *f, enum hapax_class cls,
                            const struct hapax_outcome *outcome, int64_t now_us)
{
    assert(f->phase == HAPAX__FLOW_RECONCILING);
    take_end(f, cls, outcome, now_us);
    if (f->counts && !f->shadow)
        count_end(f, f->counts->reconciles, now_us);
    ended(f, now_us);
}

void hapax__flow_died(struct hapax__flow *f, int64_t now_us)
{
    const struct hapax_outcome none = {0};

    if (f->phase == HAPAX__FLOW_RECONCILING) {
        hapax__flow_reconciled(f, HAPAX_CLASS_UNKNOWN, &none, now_us);
        return;
    }
    f->died = true;
    hapax__flow_handled(f, HAPAX_CLASS_UNKNOWN, &none, now_us);
}

void hapax__flow_stop(struct hapax__flow *f, int64_t now_us)
{
    happens(phases[f->phase].stop, f, now_us);
}

void hapax__flow_leave(struct hapax__flow *f, int64_t now_us)
{
    assert(f->ask == HAPAX__ASK_OUT);
    f->ask = HAPAX__ASK_NONE;
    if (!answered(f))
        give_in_flight(f, f->attempt, f->lease_end_us, now_us);
    over(f, now_us);
}

static void stop_if_answered(struct hapax__flow *f, int64_t now_us)
{
    if (answered(f))
        over(f, now_us);
}

/* ---- LOOKING, CLAIMING and WAITING --------------------------------------------------- */

/* After the answer: a CLAIM that may have landed is followed up; the mates go on without it. */
static void chase(struct hapax__flow *f, int64_t now_us)
{
    promote(f, now_us);
    if (f->ask != HAPAX__ASK_OUT && !f->ghost) {
        over(f, now_us);
        return;
    }
    enter(f, HAPAX__FLOW_CHASING, INT64_MAX);
    if (f->ask != HAPAX__ASK_OUT)
        save_again(f, now_us);
}

/* No verdict will come: the handler runs unprotected if the policy is open, else STORE_DOWN. */
static void give_up_claim(struct hapax__flow *f, enum hapax_error error, int64_t now_us)
{
    if (f->policy->on_store_error == HAPAX_STORE_OPEN && !hapax__flow_of(f->waiter.head)->seen &&
        repeatable(error) && !outlived(f)) {
        promote(f, now_us);
        f->answer.unprotected = true;
        f->answer.error = error;
        f->end.answer = HAPAX_ANSWER_BYPASS;
        enter(f, HAPAX__FLOW_RUNNING, INT64_MAX);
        if (f->ask == HAPAX__ASK_DUE)
            f->ask = HAPAX__ASK_NONE;
        set_due(f, HAPAX__FLOW_RUN);
        return;
    }
    give_store_down(f, error);
    chase(f, now_us);
}

static void claim_late(struct hapax__flow *f, int64_t now_us)
{
    hapax__breaker_failed(&f->waiter.table->breaker, f->begun_us, now_us);
    give_up_claim(f, why_late(f), now_us);
}

/* The store is dead: it is not asked, so surely nothing of this claim lands. */
static void turn_away(struct hapax__flow *f, int64_t now_us)
{
    f->answer.unasked = true;
    give_up_claim(f, HAPAX_ERR_UNAVAILABLE, now_us);
}

static void stop_claiming(struct hapax__flow *f, int64_t now_us)
{
    give_store_down(f, why_late(f));
    chase(f, now_us);
}

static void waited_enough(struct hapax__flow *f, int64_t now_us)
{
    const struct hapax__flow *head = hapax__flow_of(f->waiter.head);

    give_in_flight(f, head->attempt, head->lease_end_us, now_us);
    chase(f, now_us);
}

static bool may_have_landed(const struct hapax__flow *f)
{
    return f->op.kind == HAPAX_OP_CLAIM && f->op.error == HAPAX_ERR_INDETERMINATE;
}

static void claim_failed(struct hapax__flow *f, int64_t now_us)
{
    bool waiting = f->phase == HAPAX__FLOW_WAITING;
    enum hapax_error error = f->op.error;

    f->ghost |= may_have_landed(f);
    f->answer.error = error;
    if (repeatable(error)) {
        ask_at(f, now_us + pause_us(f, waiting ? WAIT_PAUSE_MIN_US : CLAIM_PAUSE_MIN_US,
                                    waiting ? WAIT_PAUSE_MAX_US : CLAIM_PAUSE_MAX_US));
        return;
    }
    hapax__breaker_heard(&f->waiter.table->breaker, now_us); /* it refuses, so it lives */
    give_up_claim(f, error, now_us);
}

/* The owner is over a limit: the flow and its mates end, and none of them has run. */
static void give_limited(struct hapax__flow *f, struct hapax__over over, int64_t now_us)
{
    const struct hapax_outcome none = {0};

    f->fence = 0;
    f->limited = over.limit;
    f->answer.error = HAPAX_ERR_NONE;
    f->answer.retry_after_ms = over.retry_after_ms;
    share(f, HAPAX_ANSWER_LIMITED, &none, now_us);
    give(f, HAPAX_ANSWER_LIMITED);
}

/* The key is too old, and nothing is known of it: what it named may have run. */
static void give_expired(struct hapax__flow *f, int64_t now_us)
{
    const struct hapax_outcome none = {0};

    f->fence = 0;
    share(f, HAPAX_ANSWER_EXPIRED, &none, now_us);
    give(f, HAPAX_ANSWER_EXPIRED);
}

/* What is known has begun before, and may go on. So does a READ that the store refuses, since it
 * found another request's record: the CLAIM then says of it what a door may know. */
static void told_look(struct hapax__flow *f, int64_t now_us)
{
    bool known = f->op.error == HAPAX_ERR_REFUSED;

    if (f->op.verdict == HAPAX_NO_VERDICT && !known) {
        claim_failed(f, now_us);
        return;
    }
    f->seen = true;
    if (!known && (f->op.verdict == HAPAX_ABSENT || hapax__unbound(&f->op.record))) {
        if (outlived(f))
            give_expired(f, now_us);
        else
            give_limited(f, f->request.over, now_us);
        over(f, now_us);
        return;
    }
    enter(f, HAPAX__FLOW_CLAIMING, f->limit_us);
    ask_at(f, now_us);
}

static void told_in_flight(struct hapax__flow *f, int64_t now_us)
{
    int64_t left_us = f->op.record.lease_until_us - f->op.now_us;
    int64_t again_us;

    f->attempt = f->op.record.attempt;
    f->lease_end_us = left_us > 0 ? now_us + left_us : now_us;
    mates_see_in_flight(f, now_us);
    if (!waits(f)) {
        give_in_flight(f, f->attempt, f->lease_end_us, now_us);
        over(f, now_us);
        return;
    }
    if (f->phase != HAPAX__FLOW_WAITING)
        wait_for(f);
    again_us = pause_us(f, WAIT_PAUSE_MIN_US, WAIT_PAUSE_MAX_US);
    if (left_us > 0) /* otherwise nobody knows when the lease ends */
        again_us = hapax__least(again_us, left_us + US_PER_MS);
    ask_at(f, now_us + again_us);
}

/* How old the outcome is that op shows, and how long it is kept. */
static void take_times(struct hapax__flow *f)
{
    const struct hapax_record *record = &f->op.record;
    int64_t age_us = f->op.now_us - record->updated_us;
    int64_t left_us = hapax__shown_until(record) - f->op.now_us;

    if (record->updated_us > 0 && age_us > 0)
        f->answer.age_ms = age_us / US_PER_MS;
    f->answer.kept_ms = left_us > 0 ? left_us / US_PER_MS : 0; /* 0: for ever */
}

static void share_and_end(struct hapax__flow *f, enum hapax_answer_kind kind, int64_t now_us)
{
    const struct hapax_outcome *outcome = &f->op.record.outcome;

    if (kind != HAPAX_ANSWER_MISMATCH) /* then the record is another request's */
        take_record(f);
    if (is_stored(kind))
        take_times(f);
    f->answer.recorded = is_stored(kind);
    f->answer.outcome = *outcome;
    share(f, kind, outcome, now_us);
    end_with(f, kind, now_us);
}

static event claimed, replay, answer_from_record;

static void told_claim(struct hapax__flow *f, int64_t now_us)
{
    if (f->op.verdict == HAPAX_NO_VERDICT) {
        claim_failed(f, now_us);
        return;
    }
    f->ghost = false;
    f->seen = true;
    f->answer.differs = f->op.differs;
    switch (f->op.verdict) {
    case HAPAX_CLAIMED:
        claimed(f, now_us);
        return;
    case HAPAX_IN_FLIGHT:
        told_in_flight(f, now_us);
        return;
    case HAPAX_COMPLETED:
        replay(f, now_us);
        return;
    case HAPAX_FAILED:
        share_and_end(f, HAPAX_ANSWER_FAILED, now_us);
        return;
    case HAPAX_MISMATCH:
        share_and_end(f, HAPAX_ANSWER_MISMATCH, now_us);
        return;
    case HAPAX_UNKNOWN:
        share_and_end(f, HAPAX_ANSWER_UNKNOWN, now_us);
        return;
    default:
        assert(f->op.verdict == HAPAX_LOST);
        answer_from_record(f, now_us);
    }
}

/* ---- CHASING and RELEASING ----------------------------------------------------------- */

/* Gives the claim back; the mates go on without it. */
static void release(struct hapax__flow *f, int64_t now_us)
{
    promote(f, now_us);
    enter(f, HAPAX__FLOW_RELEASING, INT64_MAX);
    if (f->ask != HAPAX__ASK_OUT)
        ask_at(f, now_us);
}

static void told_chased(struct hapax__flow *f, int64_t now_us)
{
    f->ghost |= may_have_landed(f);
    if (f->op.verdict == HAPAX_CLAIMED) {
        release(f, now_us);
    } else if (passes(f) && f->ghost) {
        save_again(f, now_us);
    } else {
        over(f, now_us);
    }
}

bool hapax__flow_is_new(const struct hapax__flow *f)
{
    return f->spent == 0 && !f->stale && !f->resolved;
}

void hapax__flow_refused(struct hapax__flow *f, struct hapax__over over, int64_t now_us)
{
    bool unprotected = f->answer.unprotected;

    assert((f->phase == HAPAX__FLOW_RUNNING || f->phase == HAPAX__FLOW_RECONCILING) &&
           f->answer.cls == 0);
    f->answer.unprotected = f->answer.unasked = false;
    give_limited(f, over, now_us);
    if (unprotected)
        chase(f, now_us);
    else
        release(f, now_us);
}

static void told_released(struct hapax__flow *f, int64_t now_us)
{
    if (f->op.kind != HAPAX_OP_FAIL)
        ask_at(f, now_us); /* what was under way when the claim was given up */
    else if (passes(f))
        save_again(f, now_us);
    else
        over(f, now_us);
}

/* ---- CONFIRMING, and on to RECONCILING or RUNNING ------------------------------------ */

static void plan_renewal(struct hapax__flow *f)
{
    int64_t at_us = f->lease_us + lease_of(f) / 3;

    if (at_us < f->run_until_us)
        ask_at(f, at_us);
}

/* The handler may start only while half of its lease is still ahead. */
static void start(struct hapax__flow *f, int64_t now_us)
{
    /* The record that was seen has expired meanwhile; or it was completed, and is to run again. */
    if (outlived(f) && hapax__flow_is_new(f) && !f->policy->rerun_completed) {
        give_expired(f, now_us);
        release(f, now_us);
        return;
    }
    if (now_us >= f->lease_us + lease_of(f) / 2) {
        f->phase = HAPAX__FLOW_CONFIRMING;
        ask_at(f, now_us);
        return;
    }
    if (f->stale && on_expired(f) == HAPAX_EXPIRED_RECONCILE) {
        enter(f, HAPAX__FLOW_RECONCILING, f->run_until_us);
        set_due(f, HAPAX__FLOW_RECONCILE);
    } else {
        enter(f, HAPAX__FLOW_RUNNING, f->run_until_us);
        set_due(f, HAPAX__FLOW_RUN);
    }
    plan_renewal(f);
}

/* A repeated CLAIM is answered with the lease of whichever copy of it was the first to land. */
static void claimed(struct hapax__flow *f, int64_t now_us)
{
    f->lease_end_us = f->asked_us + f->op.record.lease_until_us - f->op.now_us;
    f->lease_us = f->lease_end_us - lease_of(f);
    take_record(f);
    if (f->counts && f->stale && !f->shadow)
        hapax__count(&f->counts->takeovers, 1);
    f->created_us = f->op.record.created_us;
    f->resolved = f->op.record.resolved_us > 0;
    f->run_until_us = now_us + f->policy->run_max_ms * US_PER_MS;
    f->limit_us = now_us + f->policy->timeout_ms * US_PER_MS;
    mates_see_in_flight(f, now_us);
    start(f, now_us);
}

/* The lease counts from when the RENEW was asked. */
static void renewed(struct hapax__flow *f)
{
    f->lease_us = f->asked_us;
    f->lease_end_us = f->lease_us + lease_of(f);
}

static void confirm_late(struct hapax__flow *f, int64_t now_us)
{
    give_store_down(f, why_late(f));
    release(f, now_us);
}

static event cannot_tell;

static void told_confirm(struct hapax__flow *f, int64_t now_us)
{
    bool lost = f->op.verdict == HAPAX_LOST;

    if (lost && f->reconciled && f->op.record.state == HAPAX_STATE_STARTED) {
        /* Another attempt runs: the hook's "no" was about the attempts before. */
        cannot_tell(f, now_us);
    } else if (lost || (f->op.verdict == HAPAX_OK && f->op.record.state == HAPAX_STATE_UNKNOWN)) {
        /* `unknown` has no lease: another door's hook may take it over while we would run. */
        answer_from_record(f, now_us);
    } else if (f->op.verdict == HAPAX_OK) {
        take_record(f);
        renewed(f);
        start(f, now_us);
    } else if (repeatable(f->op.error)) {
        f->answer.error = f->op.error;
        ask_at(f, now_us + pause_us(f, CLAIM_PAUSE_MIN_US, CLAIM_PAUSE_MAX_US));
    } else {
        give_store_down(f, f->op.error);
        release(f, now_us);
    }
}

/* ---- RECONCILING and RUNNING --------------------------------------------------------- */

/* Renewing ends here, and so does what others can expect of this attempt. */
static void renewed_enough(struct hapax__flow *f, int64_t now_us)
{
    f->limit_us = INT64_MAX;
    promote(f, now_us);
}

static void told_renewal(struct hapax__flow *f, int64_t now_us)
{
    /* Another fence: the claim was lost, others came and went, and then a late copy of the CLAIM
     * landed. The token has the record again, but for another attempt than this flow's. */
    if (f->op.verdict == HAPAX_OK && f->op.record.fence == f->fence) {
        f->tries = 0;
        renewed(f);
        plan_renewal(f);
    } else if (f->op.verdict != HAPAX_NO_VERDICT) {
        count_lost(f);
        f->lost = true;
        promote(f, now_us); /* the attempt that the mates wait for is somewhere else now */
        if (f->answer.cls == 0)
            set_due(f, HAPAX__FLOW_ABANDON);
    } else if (now_us < f->run_until_us) {
        ask_at(f, now_us + pause_us(f, CLAIM_PAUSE_MIN_US, lease_of(f) / 3));
        if (now_us >= f->lease_end_us)
            promote(f, now_us); /* the claim may be another's by now: the mates ask themselves */
    }
}

static enum hapax_state state_for(const struct hapax__flow *f, const struct hapax_record *record);

static void told_running(struct hapax__flow *f, int64_t now_us)
{
    bool renewal = !f->answer.unprotected;

    /* Unprotected, it was the CLAIM that was given up: COMPLETE will tell whether it landed. */
    if (renewal)
        told_renewal(f, now_us);
    else
        f->ghost |= f->op.kind == HAPAX_OP_CLAIM && f->op.error != HAPAX_ERR_UNAVAILABLE;
    if (f->answer.cls == 0)
        return;
    ended(f, now_us);
    if (renewal && f->op.verdict == HAPAX_LOST &&
        state_for(f, &f->op.record) == HAPAX_STATE_COMPLETED)
        told_completed(f, now_us);
}

/* ---- handler or hook has ended ------------------------------------------------------- */

/* A flow that lost its claim has no answer of its own: it waits for the store's as a claim does. */
static int64_t answer_by(const struct hapax__flow *f, int64_t now_us)
{
    return now_us + (f->lost ? f->policy->timeout_ms : f->policy->save_wait_ms) * US_PER_MS;
}

static void save_as(struct hapax__flow *f, enum hapax_op_kind kind, bool ran, bool as_unknown,
                    int64_t now_us)
{
    f->end.kind = kind;
    f->end.ran = ran;
    f->end.as_unknown = as_unknown;
    enter(f, HAPAX__FLOW_SAVING, answer_by(f, now_us));
    ask_at(f, now_us);
    if (f->answer.unprotected && !answered(f)) {
        f->answer.outcome = f->outcome;
        give(f, HAPAX_ANSWER_BYPASS);
    }
}

static void read_first(struct hapax__flow *f, int64_t now_us)
{
    enter(f, HAPAX__FLOW_READING, answer_by(f, now_us));
    ask_at(f, now_us);
}

/* Answers with the flow's own end, which is not stored, and is marked so. */
static void pass_on(struct hapax__flow *f, int64_t now_us)
{
    f->answer.outcome = f->outcome;
    end_with(f, f->end.answer, now_us);
}

static void bypass_ended(struct hapax__flow *f, int64_t now_us)
{
    f->end.answer = HAPAX_ANSWER_BYPASS;
    pass_on(f, now_us);
}

static void run_ended(struct hapax__flow *f, int64_t now_us)
{
    if (f->answer.unprotected && !f->ghost) { /* surely no CLAIM landed */
        pass_on(f, now_us);
        return;
    }
    switch (f->answer.cls) {
    case HAPAX_CLASS_FINAL:
        save_as(f, HAPAX_OP_COMPLETE, false, false, now_us);
        return;
    case HAPAX_CLASS_NOT_RUN:
        save_as(f, HAPAX_OP_FAIL, false, false, now_us);
        return;
    case HAPAX_CLASS_FAILED:
        if (hapax__on_failed(f->policy) == HAPAX_FAILED_REPLAY)
            save_as(f, HAPAX_OP_COMPLETE, false, false, now_us);
        else
            save_as(f, HAPAX_OP_FAIL, true, hapax__on_failed(f->policy) == HAPAX_FAILED_HOLD,
                    now_us);
        return;
    default:
        assert(f->answer.cls == HAPAX_CLASS_UNKNOWN);
        /* What the handler did is not known: the lease runs out, unless the record knows more. The
         * lease is there for a handler that may still be writing. */
        if (f->died || on_expired(f) == HAPAX_EXPIRED_HOLD)
            save_as(f, HAPAX_OP_FAIL, true, true, now_us);
        else if (f->lost || (f->policy->pass_token && !f->answer.unprotected))
            read_first(f, now_us);
        else
            pass_on(f, now_us);
    }
}

/* Nobody knows whether it happened: stored as `unknown`, and answered UNKNOWN. */
static void cannot_tell(struct hapax__flow *f, int64_t now_us)
{
    f->outcome = (struct hapax_outcome){0};
    save_as(f, HAPAX_OP_FAIL, true, true, now_us);
    f->end.answer = HAPAX_ANSWER_UNKNOWN;
    f->answer.retry_after_ms = RETRY_AFTER_MS;
}

static enum hapax_answer_kind replay_of(const struct hapax_outcome *outcome)
{
    return outcome->body_kept ? HAPAX_ANSWER_REPLAY : HAPAX_ANSWER_GONE;
}

static void hook_ended(struct hapax__flow *f, int64_t now_us)
{
    enum hapax_class cls = f->answer.cls;

    f->answer.cls = (enum hapax_class)0; /* the hook ended, the handler has not begun */
    if (f->lost) {
        read_first(f, now_us);
    } else if (cls == HAPAX_CLASS_FINAL) {
        save_as(f, HAPAX_OP_COMPLETE, false, false, now_us);
        f->end.answer = replay_of(&f->outcome);
    } else if (cls == HAPAX_CLASS_NOT_RUN) {
        f->reconciled = true;
        enter(f, HAPAX__FLOW_CONFIRMING, now_us + f->policy->timeout_ms * US_PER_MS);
        ask_at(f, now_us);
    } else {
        cannot_tell(f, now_us);
    }
}

/* ---- answering from the record ------------------------------------------------------- */

/* Answers that the outcome is gone, the mates too unless they may rerun, and ends. */
static void end_expired(struct hapax__flow *f, int64_t now_us)
{
    const struct hapax_outcome none = {0};

    f->fence = 0;
    f->answer.recorded = true;
    if (!f->policy->rerun_completed)
        share(f, HAPAX_ANSWER_EXPIRED, &none, now_us);
    end_with(f, HAPAX_ANSWER_EXPIRED, now_us);
}

/* Answers with the outcome that op shows, the mates too unless they may rerun, and ends. */
static void replay(struct hapax__flow *f, int64_t now_us)
{
    struct hapax_outcome *outcome = &f->op.record.outcome;

    if (hapax__tombstone(&f->op.record, f->op.now_us)) {
        end_expired(f, now_us);
        return;
    }
    take_record(f);
    if (!answered(f))
        take_times(f);
    f->answer.recorded = true;
    f->answer.retry_after_ms = -1;
    if (!f->policy->rerun_completed)
        share(f, replay_of(outcome), outcome, now_us);
    if (!answered(f))
        f->answer.outcome = *outcome;
    end_with(f, replay_of(outcome), now_us);
}

/* Once its record was forgotten, another request may have taken the id. That request's outcome is
 * not for this one to see, and for this one the record is gone. */
static enum hapax_state state_for(const struct hapax__flow *f, const struct hapax_record *record)
{
    const struct hapax__flow_request *r = &f->request;

    if (memcmp(&record->fingerprint, &r->fingerprint, sizeof(r->fingerprint)) != 0 ||
        memcmp(&record->caller, &r->caller, sizeof(r->caller)) != 0)
        return HAPAX_STATE_ABSENT;
    return record->state;
}

/* The token has no claim, or the record knows more than the handler: answers from it, and ends. */
static void answer_from_record(struct hapax__flow *f, int64_t now_us)
{
    const struct hapax_record *record = &f->op.record;
    enum hapax_state state = state_for(f, record);
    int64_t left_us = record->lease_until_us - f->op.now_us;

    if (state == HAPAX_STATE_COMPLETED) {
        replay(f, now_us);
    } else if (answered(f)) {
        over(f, now_us);
    } else if (state == HAPAX_STATE_UNKNOWN) {
        if (on_expired(f) == HAPAX_EXPIRED_RECONCILE)
            f->answer.retry_after_ms = RETRY_AFTER_MS;
        end_with(f, HAPAX_ANSWER_UNKNOWN, now_us);
    } else if (state == HAPAX_STATE_ABSENT && f->answer.cls != 0) {
        pass_on(f, now_us);
    } else {
        give_in_flight(f, record->attempt, now_us + left_us, now_us);
        over(f, now_us);
    }
}

/* The store says no more. A flow that lost its claim has no answer of its own to pass on. */
static void end_untold(struct hapax__flow *f, int64_t now_us)
{
    if (f->lost) {
        give_store_down(f, why_late(f));
        over(f, now_us);
    } else {
        pass_on(f, now_us);
    }
}

/* ---- READING and SAVING -------------------------------------------------------------- */

/* A READ that the store refuses has found another request's record: for this one it is gone. It may
 * as well be the store's rights that have changed, so the answer has the error. */
static void told_read(struct hapax__flow *f, int64_t now_us)
{
    bool gone = f->op.error == HAPAX_ERR_REFUSED && f->answer.cls != 0;

    f->answer.error = f->op.error;
    if (to_repeat(f))
        save_again(f, now_us);
    else if (f->op.verdict == HAPAX_NO_VERDICT && !gone)
        end_untold(f, now_us);
    else if (f->lost || f->op.record.state == HAPAX_STATE_COMPLETED)
        answer_from_record(f, now_us);
    else
        pass_on(f, now_us);
}

static void save_late(struct hapax__flow *f, int64_t now_us)
{
    f->limit_us = INT64_MAX;
    if (answered(f))
        return;
    if (f->lost) {
        end_untold(f, now_us);
        return;
    }
    f->answer.error = why_late(f);
    f->answer.outcome = f->outcome;
    give(f, f->end.answer);
}

/* If the stored end is this flow's own, the answer is the handler's outcome, which is whole. */
static void told_saved_ok(struct hapax__flow *f, int64_t now_us)
{
    bool completed = f->op.kind == HAPAX_OP_COMPLETE;
    const struct hapax_outcome *stored = &f->op.record.outcome;
    bool ours = !completed || hapax__outcome_same(stored, &f->op.outcome);
    int64_t kept_ms = f->op.kept_ms > 0 ? f->op.kept_ms : f->policy->retention_ms;

    if (completed && hapax__tombstone(&f->op.record, f->op.now_us)) {
        pass_on(f, now_us); /* it was saved longer ago than it is kept */
        return;
    }
    if (completed && !answered(f) && !f->policy->rerun_completed && kept_ms != HAPAX_FOREVER_MS &&
        f->op.outcome.body_kept)
        f->answer.kept_ms = kept_ms; /* from this write on */
    if (completed && !f->policy->rerun_completed)
        share(f, replay_of(stored), stored, now_us);
    if (!answered(f)) {
        f->answer.recorded = true;
        f->answer.outcome = ours ? f->outcome : *stored;
    }
    end_with(f, ours ? f->end.answer : replay_of(stored), now_us);
}

/* A RENEW was LOST since the operation is completed, and the end of this attempt is known. What the
 * next op would be told is known, too: the record that RENEW has brought. */
static void told_completed(struct hapax__flow *f, int64_t now_us)
{
    if (f->end.kind != HAPAX_OP_COMPLETE || f->op.record.fence != f->fence) {
        replay(f, now_us);
        return;
    }
    /* An earlier door may have stored this end, or less of it, for its size. */
    make_end(f);
    if (!hapax__outcome_same(&f->op.record.outcome, &f->op.outcome))
        return;
    f->op.verdict = HAPAX_OK;
    told_saved_ok(f, now_us);
}

static void told_saved(struct hapax__flow *f, int64_t now_us)
{
    if (f->op.verdict == HAPAX_OK) {
        told_saved_ok(f, now_us);
    } else if (f->op.verdict == HAPAX_LOST) {
        count_lost(f);
        answer_from_record(f, now_us);
    } else if (f->op.error == HAPAX_ERR_TOO_BIG &&
               f->op.outcome.body.len + f->op.outcome.headers.len > 0) {
        f->bare = f->op.outcome.body.len == 0;
        f->bodiless = true;
        ask_at(f, now_us);
    } else if (passes(f)) {
        /* The op is repeated at least every third of the lease, so the flow needs no RENEW. */
        f->answer.error = f->op.error;
        ask_at(f, now_us + pause_us(f, SAVE_PAUSE_MIN_US,
                                    hapax__least(SAVE_PAUSE_MAX_US, lease_of(f) / 3)));
    } else {
        f->answer.error = f->op.error;
        end_untold(f, now_us);
    }
}
