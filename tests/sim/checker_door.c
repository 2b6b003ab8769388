/* SPDX-License-Identifier: Apache-2.0
 *
 * What no door may do:
 * - start a handler without a claim that is surely alive;
 * - store what the handler did not report;
 * - answer before the outcome is stored;
 * - answer with its own outcome once it knows that another's stands;
 * - leave a claim behind that nobody will finish;
 * - leave a client without an answer, or let one wait for longer than faults explain;
 * - leave an operation, once all is healed, that another call cannot end.
 * It also counts the rare branches that lie in a door.
 */
#include "sim.h"

#include <string.h>

#define STRANDED_US (8 * SECOND) /* the longest pause between two asks is a second */

static int number(const struct sim *s, const struct call *call)
{
    return (int)(call - s->calls);
}

static bool own(const struct sim *s, const struct call *call)
{
    const struct shadow *shadow = &s->shadows[call->id];

    return shadow->present && same_token(&shadow->holder, &call->flow.request.token);
}

/* ---- ops --------------------------------------------------------------------------- */

static void check_end_op(struct sim *s, const struct call *call)
{
    const struct hapax_op *op = &call->flow.op;
    enum hapax_class cls = call->exec < 0 ? HAPAX_CLASS_NOT_RUN : s->execs[call->exec].cls;
    enum hapax_on_failed failed = call->policy.on_failed;
    bool holds = failed == HAPAX_FAILED_HOLD ||
                 (failed == 0 && call->policy.on_expired != HAPAX_EXPIRED_RERUN);
    bool hooked = call->exec < 0 && call->flow.phase == HAPAX__FLOW_SAVING;
    bool right;

    if (hooked) /* the hook said what is stored, or that nobody can tell */
        right = op->kind == HAPAX_OP_COMPLETE || op->as_unknown;
    else if (op->kind == HAPAX_OP_COMPLETE)
        right = cls == HAPAX_CLASS_FINAL ||
                (cls == HAPAX_CLASS_FAILED && failed == HAPAX_FAILED_REPLAY);
    else if (cls == HAPAX_CLASS_NOT_RUN)
        right = !op->ran && !op->as_unknown;
    else if (cls == HAPAX_CLASS_FAILED)
        right = op->ran && op->as_unknown == holds && failed != HAPAX_FAILED_REPLAY;
    else
        right = cls == HAPAX_CLASS_UNKNOWN && op->as_unknown;
    if (!hooked && op->kind == HAPAX_OP_FAIL && call->exec >= 0)
        right &= op->died == s->execs[call->exec].dies;
    if (!right)
        sim_fail(s, "what is stored is what happened", "call %d sends op%d for class %d",
                 number(s, call), (int)op->kind, (int)cls);
}

void check_ask(struct sim *s, const struct call *call)
{
    const struct hapax_op *op = &call->flow.op;
    struct call *mine = &s->calls[number(s, call)];

    watch_asks(s, call);
    if (op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL)
        check_end_op(s, call);
    if (op->kind == HAPAX_OP_RENEW && call->flow.phase == HAPAX__FLOW_CONFIRMING && !call->hook_no)
        mine->confirmed = true;
    if (call->flow.phase == HAPAX__FLOW_CHASING && !call->chased) {
        mine->chased = true;
        sim_mark(s, MARK_ghost_chased);
    }
}

void check_told(struct sim *s, struct call *call)
{
    const struct hapax_op *op = &call->flow.op;
    bool lost = op->verdict == HAPAX_LOST;

    watch_told(s, call);
    if (op->verdict == HAPAX_NO_VERDICT) {
        call->hard |= op->error == HAPAX_ERR_CORRUPT;
        call->claim_open |= op->kind == HAPAX_OP_CLAIM && op->error == HAPAX_ERR_INDETERMINATE;
        return;
    }
    call->seen = true;
    if (call->over && op->kind == HAPAX_OP_CLAIM && call->flow.phase == HAPAX__FLOW_CLAIMING)
        sim_mark(s, MARK_limited_and_known);
    if (call->old && op->kind == HAPAX_OP_CLAIM && call->flow.phase == HAPAX__FLOW_CLAIMING)
        sim_mark(s, MARK_expired_and_known);
    if (op->kind == HAPAX_OP_CLAIM) {
        call->claim_open = false;
        call->claim_told = call->ask;
        if (op->verdict == HAPAX_CLAIMED) {
            call->claimed = true;
            call->claimed_fence = op->record.fence;
        }
    }
    if (lost && call->confirmed && call->exec < 0 && call->flow.phase == HAPAX__FLOW_CONFIRMING)
        sim_mark(s, MARK_late_claim_lost);
    if (op->kind == HAPAX_OP_RENEW && call->flow.phase == HAPAX__FLOW_CONFIRMING &&
        op->verdict == HAPAX_OK && op->record.state == HAPAX_STATE_UNKNOWN)
        sim_mark(s, MARK_late_claim_unknown);
    if (op->kind == HAPAX_OP_RENEW && op->verdict == HAPAX_OK &&
        op->record.fence != call->flow.fence)
        sim_mark(s, call->exec < 0 ? MARK_granted_anew_unrun : MARK_granted_anew_running);
    if (lost && call->flow.phase == HAPAX__FLOW_RECONCILING)
        sim_mark(s, MARK_reconcile_lost);
    call->told_lost |= lost;
    if (lost || op->kind == HAPAX_OP_READ) {
        const struct hapax__flow_request *r = &call->flow.request;
        bool other =
            op->record.state != HAPAX_STATE_ABSENT &&
            (memcmp(&op->record.fingerprint, &r->fingerprint, sizeof(r->fingerprint)) != 0 ||
             memcmp(&op->record.caller, &r->caller, sizeof(r->caller)) != 0);

        call->lost_to = other ? HAPAX_STATE_ABSENT : op->record.state;
        if (other)
            sim_mark(s, MARK_lost_to_another_request);
    }
    if (op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL) {
        call->end_told = true;
        if (call->answered && op->verdict == HAPAX_OK && call->exec >= 0 &&
            !call->flow.answer.unprotected)
            sim_mark(s, MARK_saved_late);
        if (op->verdict == HAPAX_OK && call->flow.answer.unprotected)
            sim_mark(s, MARK_open_saved);
    }
}

/* ---- handlers ---------------------------------------------------------------------- */

static void count_run(struct sim *s, const struct call *call)
{
    const struct shadow *shadow = &s->shadows[call->id];

    if (call->confirmed)
        sim_mark(s, MARK_late_claim_confirmed);
    if (call->was_mate && shadow->grant == GRANT_AFTER_FAIL)
        sim_mark(s, MARK_mate_promoted_after_fail);
    if (call->was_mate && shadow->grant == GRANT_TAKEOVER)
        sim_mark(s, MARK_mate_asks_after_zombie);
}

static void check_protected(struct sim *s, const struct call *call)
{
    const struct shadow *shadow = &s->shadows[call->id];
    bool mine = own(s, call) && shadow->fence == call->flow.fence;
    bool open = mine && shadow->state == HAPAX_STATE_STARTED;

    if (!call->claimed)
        sim_fail(s, "j no run without a claim", "call %d", number(s, call));
    if (mine && shadow->attempt != call->flow.attempt)
        sim_fail(s, "e handlers see their attempt", "call %d", number(s, call));
    if (open && shadow->stale != call->flow.stale)
        sim_fail(s, "a stale is known", "call %d runs with stale %d", number(s, call),
                 call->flow.stale);
    if (open && shadow->stale && call->reconciles &&
        call->policy.on_expired == HAPAX_EXPIRED_RECONCILE)
        sim_fail(s, "a the hook is asked first", "call %d runs unasked", number(s, call));
    /* An operator's force, or a store's clock that jumped, can end any lease. */
    if (s->resolves == 0 && call->jump_us == s->store.jump_us && (!mine || !shadow_live(s, shadow)))
        sim_fail(s, "j a run begins on a live lease", "call %d", number(s, call));
}

bool same_question(const struct call *a, const struct call *b)
{
    return a->proc == b->proc && a->id == b->id && a->variant == b->variant &&
           a->reconciles == b->reconciles && a->policy.on_expired == b->policy.on_expired &&
           a->policy.attempts_max == b->policy.attempts_max &&
           a->policy.rerun_completed == b->policy.rerun_completed;
}

static void check_open(struct sim *s, const struct call *call)
{
    if (call->policy.on_store_error != HAPAX_STORE_OPEN)
        sim_fail(s, "closed runs nothing", "call %d", number(s, call));
    if (call->seen || call->hard)
        sim_fail(s, "open is for an outage alone", "call %d", number(s, call));
    for (int i = 0; i < s->calls_count; i++) {
        const struct call *other = &s->calls[i];

        if (call->was_mate && other->state == CALL_LIVE && other->seen &&
            other->flow.phase == HAPAX__FLOW_WAITING && same_question(call, other))
            sim_fail(s, "open is for an outage alone", "call %d, while %d knows that another runs",
                     number(s, call), i);
    }
}

void check_run(struct sim *s, struct call *call)
{
    if (call->exec >= 0)
        sim_fail(s, "one run each", "call %d runs twice", number(s, call));
    if (call->answered && !call->flow.answer.unprotected)
        sim_fail(s, "d one answer", "call %d runs after its answer", number(s, call));
    if (call->keyless) {
        sim_mark(s, MARK_bypass);
        return;
    }
    if (call->old && !call->policy.rerun_completed &&
        (call->flow.answer.unprotected || hapax__flow_is_new(&call->flow)))
        sim_fail(s, "an old key begins nothing", "call %d runs", number(s, call));
    if (call->flow.answer.unprotected) {
        sim_mark(s, MARK_open_unprotected);
        check_open(s, call);
        watch_gives_up(s, call);
        return;
    }
    count_run(s, call);
    check_protected(s, call);
}

/* ---- answers ----------------------------------------------------------------------- */

static void check_fresh(struct sim *s, struct call *call, int result)
{
    const struct hapax_answer *a = &call->flow.answer;
    const struct exec *exec = call->exec < 0 ? NULL : &s->execs[call->exec];
    bool stores = a->cls == HAPAX_CLASS_FINAL ||
                  (a->cls == HAPAX_CLASS_FAILED && call->policy.on_failed == HAPAX_FAILED_REPLAY);

    if (!exec || exec->running || result != (exec->dies ? -1 : exec->result)) {
        sim_fail(s, "b fresh is one's own", "call %d", number(s, call));
        return;
    }
    if (a->cls != exec->cls)
        sim_fail(s, "b fresh is one's own", "call %d changes the class", number(s, call));
    if (a->recorded && stores && !s->results[result].completed)
        sim_fail(s, "stored first, sent second", "call %d", number(s, call));
    if (a->recorded && !stores && !exec->said)
        sim_fail(s, "stored first, sent second", "call %d says failed, the store does not",
                 number(s, call));
    if (!a->recorded && (stores || a->cls != HAPAX_CLASS_UNKNOWN) && !call->told_lost)
        sim_mark(s, MARK_answered_before_saved);
    if (!a->recorded && a->cls == HAPAX_CLASS_UNKNOWN)
        sim_mark(s, MARK_left_started);
    if (call->told_lost && call->lost_to == HAPAX_STATE_ABSENT)
        sim_mark(s, MARK_zombie_gone);
    if (call->told_lost && !a->recorded && call->lost_to != HAPAX_STATE_ABSENT)
        sim_fail(s, "k a zombie keeps its answer to itself", "call %d", number(s, call));
    if (a->outcome.body.len != (exec->dies ? 0 : TEXT_LEN))
        sim_fail(s, "b fresh is whole", "call %d", number(s, call));
}

static void check_replay(struct sim *s, const struct call *call, int result)
{
    const struct hapax_answer *a = &call->flow.answer;

    if (a->recorded &&
        (result < 0 || !s->results[result].completed || s->results[result].id != call->id))
        sim_fail(s, "b only what is stored is replayed", "call %d", number(s, call));
    else if (a->recorded && s->results[result].variant != call->variant)
        sim_fail(s, "h an outcome is for its request alone", "call %d", number(s, call));
    if (a->kind == HAPAX_ANSWER_GONE)
        sim_mark(s, MARK_bodiless_gone);
    if (call->told_lost && call->exec >= 0)
        sim_mark(s, MARK_zombie_replay);
    if (call->was_mate && call->asks == 0)
        sim_mark(s, MARK_shared_answer);
    if (call->exec >= 0 && !call->told_lost) {
        if (s->execs[call->exec].self == SELF_NO && call->flow.op.kind != HAPAX_OP_READ)
            sim_fail(s, "b fresh is one's own", "call %d replays itself", number(s, call));
        sim_mark(s, call->flow.op.kind == HAPAX_OP_READ ? MARK_read_found_completed
                                                        : MARK_self_completed_first);
    }
}

static void check_in_flight(struct sim *s, const struct call *call)
{
    const struct shadow *shadow = &s->shadows[call->id];
    int64_t since_us = shadow->free_since_us > s->calm_us ? shadow->free_since_us : s->calm_us;

    if (call->told_lost && call->exec >= 0)
        sim_mark(s, MARK_zombie_in_flight);
    if (since_us < call->began_us)
        since_us = call->began_us;
    if (s->calm && !call->stopped && call->exec < 0 && call->policy.wait_ms > 0 &&
        !shadow_live(s, shadow) && s->now_us - since_us > STRANDED_US)
        sim_fail(s, "d nobody is stranded", "call %d waited %lld ms for nothing", number(s, call),
                 (long long)((s->now_us - since_us) / MS));
}

/* Whoever is told of a limit has not run. Who asked nothing was answered with its head. */
static void check_limited(struct sim *s, const struct call *call)
{
    if (call->exec >= 0)
        sim_fail(s, "d a refusal runs nothing", "call %d ran", number(s, call));
    if (!call->over && !call->refused && call->asks > 0)
        sim_fail(s, "d a refusal has a reason", "call %d is over no limit", number(s, call));
    sim_mark(s, MARK_limited);
}

/* Nobody is told that it was done longer ago than outcomes are kept, unless it was. */
static void check_tombstone(struct sim *s, const struct call *call)
{
    if (!s->shadows[call->id].buried)
        sim_fail(s, "d a refusal has a reason", "call %d met no tombstone", number(s, call));
    if (call->exec >= 0 && !call->told_lost && call->flow.op.kind != HAPAX_OP_READ)
        sim_fail(s, "b fresh is one's own", "call %d ran, and is told of another", number(s, call));
    if (call->exec >= 0)
        sim_mark(s, MARK_tombstone_lost_to);
    if (call->was_mate && call->asks == 0)
        sim_mark(s, MARK_tombstone_shared);
}

/* The same of a key that is too old. A claim that was granted all the same is given back. */
static void check_expired(struct sim *s, const struct call *call)
{
    if (call->flow.answer.recorded) {
        check_tombstone(s, call);
        return;
    }
    if (call->exec >= 0)
        sim_fail(s, "d a refusal runs nothing", "call %d ran", number(s, call));
    if (!call->old && call->asks > 0)
        sim_fail(s, "d a refusal has a reason", "call %d has a young key", number(s, call));
    sim_mark(s, call->claimed ? MARK_expired_claim : MARK_expired);
}

/* Nothing fails any more: whoever asks waits for its patience, the hook, the handler and the save,
 * and each has its bound. */
static void check_in_time(struct sim *s, const struct call *call, int64_t more_us)
{
    const struct hapax_policy *policy = &call->policy;
    int64_t since_us = call->began_us > s->calm_us ? call->began_us : s->calm_us;
    int64_t bound_us = (policy->wait_ms + policy->timeout_ms + policy->save_wait_ms +
                        2 * RUN_LEASES * policy->lease_ms) *
                           MS +
                       2 * SECOND + more_us;

    bound_us += bound_us / 20; /* of clocks that run slower */
    if (s->calm && s->faults.request_lost == 0 && s->now_us - since_us > bound_us)
        sim_fail(s, "m in time once nothing fails", "call %d took %lld of %lld ms", number(s, call),
                 (long long)((s->now_us - since_us) / MS), (long long)(bound_us / MS));
}

/* What must become of an operation that somebody asks for when all is healed: what is left undone
 * is done, but for what waits for an operator, or has used up its attempts. */
void check_claims_healed(struct sim *s, struct call *call)
{
    const struct shadow *shadow = &s->shadows[call->id];
    const struct hapax_policy *policy = &call->policy;
    bool hook = policy->on_expired == HAPAX_EXPIRED_RECONCILE && call->reconciles;
    bool held = shadow->hold || policy->on_expired != HAPAX_EXPIRED_RERUN;
    enum hapax_state state = shadow->present ? shadow->state : HAPAX_STATE_ABSENT;
    bool died = state == HAPAX_STATE_STARTED, failed = state == HAPAX_STATE_FAILED;
    bool unknown = state == HAPAX_STATE_UNKNOWN;
    bool open = died || unknown || (failed && shadow->stale);
    bool asks = hook && (died || (failed && shadow->stale && shadow->hold));
    bool used_up = (died || failed) && !asks && policy->attempts_max > 0 &&
                   shadow->spent + died >= policy->attempts_max;

    if (died && shadow_live(s, shadow))
        sim_fail(s, "m leases end", "id %d is still claimed", call->id);
    if (state == HAPAX_STATE_COMPLETED)
        call->must = shadow->reruns && policy->rerun_completed ? MUST_RUN : MUST_BE_STORED;
    else if (open && (held || unknown) && !hook)
        call->must = MUST_WAIT;
    else if (used_up)
        call->must = MUST_BE_USED_UP;
    else
        call->must = open && hook ? MUST_ASK_HOOK : MUST_RUN;
}

static void check_healed(struct sim *s, const struct call *call)
{
    static const struct {
        enum mark mark;
        enum hapax_answer_kind kinds[3];
    } musts[] = {
        [MUST_RUN] = {MARK_healed_run, {HAPAX_ANSWER_FRESH}},
        [MUST_BE_STORED] = {MARK_healed_stored,
                            {HAPAX_ANSWER_REPLAY, HAPAX_ANSWER_GONE, HAPAX_ANSWER_EXPIRED}},
        [MUST_ASK_HOOK] = {MARK_healed_by_hook,
                           {HAPAX_ANSWER_REPLAY, HAPAX_ANSWER_GONE, HAPAX_ANSWER_FRESH}},
        [MUST_BE_USED_UP] = {MARK_healed_used_up, {HAPAX_ANSWER_FAILED}},
        [MUST_WAIT] = {MARK_healed_unknown, {HAPAX_ANSWER_UNKNOWN}},
    };
    const struct hapax_answer *a = &call->flow.answer;

    sim_mark(s, musts[call->must].mark);
    for (int i = 0; i < 3; i++)
        if (a->kind == musts[call->must].kinds[i] &&
            (a->kind != HAPAX_ANSWER_FRESH || a->cls == HAPAX_CLASS_FINAL))
            return;
    sim_fail(s, "m healed, each operation ends", "call %d on id %d is answered %s", number(s, call),
             call->id, hapax_answer_name(a->kind));
}

void check_answer(struct sim *s, struct call *call)
{
    const struct hapax_answer *a = &call->flow.answer;
    int result = result_of(s, &a->outcome);
    bool shows = a->outcome.status != 0 || a->outcome.headers.len > 0 || a->outcome.body.len > 0;

    if (call->answered)
        sim_fail(s, "d one answer", "call %d gets a second", number(s, call));
    call->answered = true;
    call->kind = a->kind;
    check_in_time(s, call, 0);
    if (call->healing)
        check_healed(s, call);
    if (shows && result < 0)
        sim_fail(s, "b outcomes are whole", "call %d shows bytes of nobody", number(s, call));
    switch (a->kind) {
    case HAPAX_ANSWER_FRESH:
        check_fresh(s, call, result);
        return;
    case HAPAX_ANSWER_REPLAY:
    case HAPAX_ANSWER_GONE:
        check_replay(s, call, result);
        return;
    case HAPAX_ANSWER_IN_FLIGHT:
        check_in_flight(s, call);
        break;
    case HAPAX_ANSWER_UNKNOWN:
        if (call->told_lost && call->exec >= 0)
            sim_mark(s, MARK_zombie_unknown);
        break;
    case HAPAX_ANSWER_LIMITED:
        check_limited(s, call);
        break;
    case HAPAX_ANSWER_EXPIRED:
        check_expired(s, call);
        break;
    case HAPAX_ANSWER_FAILED:
        return;
    case HAPAX_ANSWER_STORE_DOWN:
        watch_gives_up(s, call);
        break;
    default:
        break;
    }
    if (shows && a->kind != HAPAX_ANSWER_BYPASS)
        sim_fail(s, "h only outcomes show outcomes", "call %d shows one with %s", number(s, call),
                 hapax_answer_name(a->kind));
}

/* ---- ends -------------------------------------------------------------------------- */

/* Nothing ran, so no claim may be left that blocks others. */
static void check_nothing_left(struct sim *s, const struct call *call)
{
    const struct shadow *shadow = &s->shadows[call->id];

    if (call->claim_open)
        sim_fail(s, "f a claim is followed up", "call %d does not know its claim's result",
                 number(s, call));
    if (own(s, call) && shadow->state == HAPAX_STATE_STARTED) {
        /* A copy that lands after the flow's last op is left to its lease. */
        bool known = call->claimed && !call->end_told && shadow->fence == call->claimed_fence;

        if (known || shadow->granted_ask > call->claim_told)
            sim_fail(s, "f no ghost is left behind", "call %d still holds its claim",
                     number(s, call));
        else
            sim_mark(s, MARK_ghost_after_end);
    }
    if (call->chased && own(s, call) && shadow->state == HAPAX_STATE_FAILED)
        sim_mark(s, MARK_ghost_released);
}

void check_end(struct sim *s, struct call *call)
{
    const struct exec *exec = call->exec < 0 ? NULL : &s->execs[call->exec];
    /* Without protection there is something to save only where the claim may have landed. */
    bool to_save = !call->flow.answer.unprotected || call->claim_open || call->claim_told > 0;

    if (!call->answered)
        sim_fail(s, "d one answer", "call %d ends without", number(s, call));
    check_in_time(s, call, 10 * SECOND);
    if (call->healing && call->kind == HAPAX_ANSWER_FRESH &&
        s->shadows[call->id].state != HAPAX_STATE_COMPLETED)
        sim_fail(s, "m healed, each operation ends", "id %d is not completed", call->id);
    if (call->asking)
        sim_fail(s, "d ended", "call %d ends with an op out", number(s, call));
    if (call->stopped || call->hard || call->keyless)
        return;
    if (!exec && call->asks > 0 && !call->end_told)
        check_nothing_left(s, call);
    else if (!exec && call->chased)
        check_nothing_left(s, call);
    if (exec && to_save && !call->end_told && !call->told_lost && !call->flow.lost &&
        s->store.body_max == HAPAX_BODY_MAX &&
        (exec->cls == HAPAX_CLASS_FINAL || exec->cls == HAPAX_CLASS_NOT_RUN || exec->dies))
        sim_fail(s, "c a result is saved in the end", "call %d gave up", number(s, call));
}

void check_quiet(struct sim *s)
{
    for (int i = 0; i < s->calls_count; i++)
        if (s->calls[i].state == CALL_LIVE)
            sim_fail(s, "d every flow ends", "call %d never did", i);
}
