/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules by which messages are decided. Invariant: a message is acknowledged only when its
 * outcome is stored, or when the user has asked by name to run without a store. A message that is
 * neither done nor surely hopeless is tried again, and never dropped.
 *
 * Where another attempt is in flight, the message asks again after pauses that grow up to the rest
 * of that lease. Rejected: one question when the lease is over. The other attempt mostly ends long
 * before, and a message that waits takes room in hand.
 *
 * Rejected: a literal table of answer, class and settings. Most of its rows would say the same, and
 * the exhaustive test (tests/unit/test_consumer_decide.c) walks them anyway.
 */
#include "decide.h"

#include "base/time.h"
#include "core/class.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* The first pause of what may be over soon, or retry_min_ms where that is less. */
#define ASK_MIN_MS   100
#define STORE_MAX_MS 5000
/* How often in a row a handler may turn a message away before others get its place. */
#define TURNED_AWAY 3

int64_t hapax__pause_ms(int64_t least_ms, int64_t most_ms, unsigned n, uint32_t random)
{
    int64_t pause_ms = least_ms;

    assert(least_ms > 0 && most_ms >= least_ms);
    while (n-- > 0 && pause_ms < most_ms)
        pause_ms *= 2;
    pause_ms = hapax__least(pause_ms, most_ms);
    /* Of 1000: 800 to 1200. Small ones are not rounded to nothing. */
    pause_ms = pause_ms * (800 + (int64_t)(random % 401)) / 1000;
    return pause_ms > 0 ? pause_ms : 1;
}

/* What the rules look at. */
struct rule {
    const struct hapax_consumer *consumer;
    const struct hapax__ended *ended;
    const struct hapax__before *before;
    uint32_t random;
};

/* How often in a row the message has waited for this. */
static unsigned waits(const struct rule *r, enum hapax__wait why)
{
    return r->before->wait == why ? r->before->waits : 0;
}

static int64_t ask_min_ms(const struct rule *r)
{
    return hapax__least(ASK_MIN_MS, r->consumer->retry_min_ms);
}

static bool used_up(const struct rule *r, unsigned spent)
{
    return r->consumer->policy.attempts_max > 0 && spent >= r->consumer->policy.attempts_max;
}

/* ---- decisions ------------------------------------------------------------- */

static struct hapax__decision wait_for(enum hapax__wait why, int64_t after_ms)
{
    return (struct hapax__decision){
        .act = HAPAX__ACT_WAIT, .wait = why, .after_ms = after_ms > 0 ? after_ms : 1};
}

static struct hapax__decision give_up(enum hapax__act act, enum hapax__reason reason)
{
    return (struct hapax__decision){.act = act, .reason = reason};
}

static struct hapax__decision wait_growing(const struct rule *r, enum hapax__wait why)
{
    return wait_for(why, hapax__pause_ms(r->consumer->retry_min_ms, r->consumer->retry_max_ms,
                                         waits(r, why), r->random));
}

static struct hapax__decision wait_shortly(const struct rule *r, enum hapax__wait why)
{
    return wait_for(why, hapax__pause_ms(ask_min_ms(r), STORE_MAX_MS, waits(r, why), r->random));
}

/* For an operator. */
static struct hapax__decision set_aside(const struct rule *r, enum hapax__reason reason)
{
    return give_up(r->consumer->unknown == HAPAX_UNKNOWN_PARK ? HAPAX__ACT_PARK : HAPAX__ACT_DEAD,
                   reason);
}

static struct hapax__decision result_unknown(const struct rule *r)
{
    return set_aside(r, HAPAX__REASON_UNKNOWN);
}

/* ---- answers ------------------------------------------------------------------------- */

/* Under `hold` an end without a certain outcome makes the record `unknown`, and another question
 * would be answered so. But where there is a hook, the hook may still tell. An unprotected attempt
 * leaves no record, and no hook is asked about it: its message would run again. */
static bool is_unknown_now(const struct rule *r, bool under_hold)
{
    return under_hold && (r->ended->kind == HAPAX_ANSWER_BYPASS ||
                          r->consumer->policy.on_expired != HAPAX_EXPIRED_RECONCILE);
}

static struct hapax__decision failed(const struct rule *r)
{
    uint32_t attempts = r->before->attempts + 1;

    /* This precedes `refused`: a refused letter that is put back would find the record unknown. */
    if (is_unknown_now(r, hapax__on_failed(&r->consumer->policy) == HAPAX_FAILED_HOLD))
        return result_unknown(r);
    if (r->ended->refused)
        return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_REFUSED);
    if (used_up(r, attempts))
        return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_FAILED);
    return (struct hapax__decision){.act = HAPAX__ACT_RETRY,
                                    .wait = HAPAX__WAIT_FAILED,
                                    .after_ms = hapax__pause_ms(r->consumer->retry_min_ms,
                                                                r->consumer->retry_max_ms,
                                                                attempts - 1, r->random)};
}

/* Nobody can tell what this attempt did. The record counts it once the lease is over, and answers
 * FAILED when all attempts are used up. Without a record, or where a hook decides, the message's
 * own count decides. */
static struct hapax__decision lost_sight(const struct rule *r)
{
    enum hapax_on_expired on_expired = r->consumer->policy.on_expired;
    bool bypassed = r->ended->kind == HAPAX_ANSWER_BYPASS;
    bool by_record = !bypassed && on_expired != HAPAX_EXPIRED_RECONCILE;

    if (is_unknown_now(r, bypassed ? on_expired != HAPAX_EXPIRED_RERUN
                                   : r->ended->recorded && on_expired == HAPAX_EXPIRED_HOLD))
        return result_unknown(r);
    if (!by_record && used_up(r, r->before->attempts + 1))
        return result_unknown(r);
    return wait_for(HAPAX__WAIT_LEASE, r->consumer->policy.lease_ms);
}

/* For how long the handler wants to be left alone, within the limits of pauses. Up to 20 % more, so
 * that messages that were told the same do not come together. */
static int64_t told_ms(const struct rule *r)
{
    int64_t told_ms = hapax__most(r->ended->retry_after_ms, r->consumer->retry_min_ms);

    told_ms = hapax__least(told_ms, r->consumer->retry_max_ms);
    return told_ms + told_ms * (int64_t)(r->random % 201) / 1000;
}

/* Where nobody listens (status 0) every message has to wait, and going round by the broker would
 * not help. A message that a status turned away may be the only one that is not wanted. */
static struct hapax__decision not_run(const struct rule *r)
{
    struct hapax__decision decision = wait_growing(r, HAPAX__WAIT_AWAY);

    decision.told = r->ended->retry_after_ms > 0;
    if (decision.told)
        decision.after_ms = told_ms(r);
    if (r->ended->status == 0 || waits(r, HAPAX__WAIT_AWAY) < TURNED_AWAY)
        return decision;
    decision.act = HAPAX__ACT_RETRY;
    if (!decision.told)
        decision.after_ms =
            hapax__pause_ms(r->consumer->retry_max_ms, r->consumer->retry_max_ms, 0, r->random);
    return decision;
}

static struct hapax__decision by_class(const struct rule *r)
{
    switch (r->ended->cls) {
    case HAPAX_CLASS_FINAL:
        return (struct hapax__decision){.act = HAPAX__ACT_ACK};
    case HAPAX_CLASS_NOT_RUN:
        return not_run(r);
    case HAPAX_CLASS_FAILED:
        return failed(r);
    default:
        assert(r->ended->cls == HAPAX_CLASS_UNKNOWN);
        return lost_sight(r);
    }
}

/* Where the lease is over, or not known, the pauses alone count: the other attempt may be waiting
 * for the store to take its outcome, for as long as the store is away. */
static struct hapax__decision in_flight(const struct rule *r)
{
    int64_t lease_ms = r->consumer->policy.lease_ms;
    int64_t after_ms = r->ended->retry_after_ms <= 0 ? lease_ms : r->ended->retry_after_ms + 1;
    struct hapax__decision decision;

    after_ms = hapax__least(hapax__least(after_ms, lease_ms),
                            hapax__pause_ms(hapax__least(ask_min_ms(r), lease_ms), lease_ms,
                                            waits(r, HAPAX__WAIT_DUPLICATE), r->random));
    if (r->consumer->in_flight != HAPAX_IN_FLIGHT_REQUEUE)
        return wait_for(HAPAX__WAIT_DUPLICATE, after_ms);
    decision = wait_for(HAPAX__WAIT_RETURN, hapax__least(after_ms, r->consumer->retry_min_ms));
    decision.act = HAPAX__ACT_RETURN;
    return decision;
}

/* Under `reconcile` the hook could not tell now, and may tell later. It is asked as often as an
 * attempt may run. */
static struct hapax__decision unknown(const struct rule *r)
{
    if (r->ended->retry_after_ms < 0 || used_up(r, waits(r, HAPAX__WAIT_HOOK) + 1))
        return result_unknown(r);
    return wait_growing(r, HAPAX__WAIT_HOOK);
}

static struct hapax__decision missing_key(const struct rule *r)
{
    if (r->consumer->no_key == HAPAX_NO_KEY_REJECT)
        return (struct hapax__decision){.act = HAPAX__ACT_REJECT};
    return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_NO_KEY);
}

/* A damaged record stays damaged, and says nothing about its operation. */
static struct hapax__decision store_down(const struct rule *r)
{
    if (r->ended->error == HAPAX_ERR_CORRUPT)
        return set_aside(r, HAPAX__REASON_CORRUPT);
    return wait_shortly(r, HAPAX__WAIT_STORE);
}

/* Where a hook says what became of a failed attempt, the record never gives up, and the hook may
 * let the handler run again each time. The message's own count ends this, whether the outcome is
 * stored or not. */
static bool fails_for_good(const struct rule *r)
{
    const struct hapax_policy *policy = &r->consumer->policy;

    return r->ended->cls == HAPAX_CLASS_FAILED && policy->on_expired == HAPAX_EXPIRED_RECONCILE &&
           hapax__on_failed(policy) == HAPAX_FAILED_HOLD &&
           (r->ended->refused || used_up(r, r->before->attempts + 1));
}

static struct hapax__decision act_on(const struct rule *r)
{
    switch (r->ended->kind) {
    case HAPAX_ANSWER_FRESH:
        if (fails_for_good(r))
            return failed(r);
        /* An end of class UNKNOWN is recorded only under `hold`. */
        if (r->ended->cls != HAPAX_CLASS_UNKNOWN && !r->ended->recorded)
            return wait_shortly(r, HAPAX__WAIT_STORE);
        return by_class(r);
    case HAPAX_ANSWER_BYPASS:
        return by_class(r);
    case HAPAX_ANSWER_REPLAY:
    case HAPAX_ANSWER_GONE:
        if (!r->ended->recorded)
            return wait_shortly(r, HAPAX__WAIT_STORE);
        return (struct hapax__decision){.act = HAPAX__ACT_ACK};
    case HAPAX_ANSWER_IN_FLIGHT:
        return in_flight(r);
    case HAPAX_ANSWER_UNKNOWN:
        return unknown(r);
    case HAPAX_ANSWER_FAILED:
        return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_FAILED);
    case HAPAX_ANSWER_MISMATCH:
        return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_MISMATCH);
    case HAPAX_ANSWER_EXPIRED:
        if (r->ended->recorded) /* it was done: a late repeat, as a REPLAY is one */
            return (struct hapax__decision){.act = HAPAX__ACT_ACK};
        return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_BAD_KEY);
    case HAPAX_ANSWER_BAD_KEY:
    case HAPAX_ANSWER_MISSING_OWNER:
        return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_BAD_KEY);
    case HAPAX_ANSWER_TOO_LARGE:
        return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_TOO_LARGE);
    case HAPAX_ANSWER_MISSING_KEY:
        return missing_key(r);
    case HAPAX_ANSWER_STORE_DOWN:
        return store_down(r);
    case HAPAX_ANSWER_LIMITED: /* only the HTTP door has limits */
        break;
    }
    /* There was no memory to ask with. */
    assert(r->ended->kind == 0);
    return wait_shortly(r, HAPAX__WAIT_MEMORY);
}

/* A damaged record, or an outcome too big for one, says nothing about other messages. */
enum hapax__store_seen hapax__store_of(const struct hapax__ended *ended)
{
    bool of_record = ended->error == HAPAX_ERR_CORRUPT || ended->error == HAPAX_ERR_TOO_BIG;

    if (ended->error == HAPAX_ERR_SEALED) /* the store has shown what cannot be opened */
        return HAPAX__STORE_UP;
    switch (ended->kind) {
    case HAPAX_ANSWER_STORE_DOWN:
        return of_record ? HAPAX__STORE_NOT_SEEN : HAPAX__STORE_AWAY;
    case HAPAX_ANSWER_FRESH:
    case HAPAX_ANSWER_REPLAY:
    case HAPAX_ANSWER_GONE:
        if (ended->recorded)
            return HAPAX__STORE_UP;
        if (of_record || (ended->cls == HAPAX_CLASS_UNKNOWN && ended->error == HAPAX_ERR_NONE))
            return HAPAX__STORE_NOT_SEEN;
        return HAPAX__STORE_AWAY;
    case HAPAX_ANSWER_BYPASS:
        return ended->unprotected ? HAPAX__STORE_AWAY : HAPAX__STORE_NOT_SEEN;
    case HAPAX_ANSWER_FAILED:
    case HAPAX_ANSWER_IN_FLIGHT:
    case HAPAX_ANSWER_UNKNOWN:
    case HAPAX_ANSWER_MISMATCH:
    case HAPAX_ANSWER_EXPIRED:
        return HAPAX__STORE_UP;
    default:
        return HAPAX__STORE_NOT_SEEN;
    }
}

struct hapax__decision hapax__decide(const struct hapax_consumer *consumer,
                                     const struct hapax__ended *ended,
                                     const struct hapax__before *before, uint32_t random)
{
    const struct rule rule = {consumer, ended, before, random};
    struct hapax__decision decision = act_on(&rule);

    decision.ran = ended->cls != 0 && ended->cls != HAPAX_CLASS_NOT_RUN;
    decision.store = hapax__store_of(ended);
    return decision;
}

/* ---- reasons ------------------------------------------------------------------------- */

static const char *line_of(enum hapax__reason reason, const struct hapax__ended *ended)
{
    switch (reason) {
    case HAPAX__REASON_CORRUPT:
        return "its record is damaged";
    case HAPAX__REASON_MISMATCH:
        return ended->differs == HAPAX_DIFFERS_CALLER ? "the key was used by another caller"
                                                      : "the key was used for another message";
    case HAPAX__REASON_UNKNOWN:
        return "it is not known what became of an earlier attempt";
    case HAPAX__REASON_NO_KEY:
        return "the message has no key";
    case HAPAX__REASON_FAILED:
        return "all attempts failed, or died";
    default:
        return ended->why ? ended->why : "";
    }
}

void hapax__reason_line(char line[HAPAX_TEXT_MAX], enum hapax__reason reason,
                        const struct hapax__ended *ended, const char *refused)
{
    if (reason == HAPAX__REASON_FAILED && ended->status > 0)
        snprintf(line, HAPAX_TEXT_MAX, "all attempts failed, the last with status %d",
                 ended->status);
    else if (ended->key_min > 0)
        snprintf(line, HAPAX_TEXT_MAX, "its key has fewer than %" PRIu32 " bytes", ended->key_min);
    else if (ended->kind == HAPAX_ANSWER_EXPIRED)
        snprintf(line, HAPAX_TEXT_MAX, "its key is older than the retention, and has no record");
    else
        snprintf(line, HAPAX_TEXT_MAX, "%s", ended->refused ? refused : line_of(reason, ended));
}
