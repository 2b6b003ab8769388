/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of settling. The invariant: nothing is acknowledged unless its outcome is stored, or the user asked by
 * name for running without a store; and what is neither done nor surely hopeless is tried again, never dropped.
 *
 * A claim that is in flight elsewhere is asked for with pauses that grow up to the rest of its lease, rather than
 * once when that is over: the other attempt mostly ends long before, and a message that waits fills the hand.
 * Rejected: a literal table of answer × class × settings. Most of its rows would say the same, and the
 * exhaustive test (tests/unit/test_consumer_settle.c) walks them anyway.
 */
#include "settle.h"

#include "base/time.h"

#include <assert.h>

#define ASK_MIN_MS                                                                                 \
    100 /* the first pause of what may be over soon, or retry_min_ms where that is less */
#define STORE_MAX_MS 5000
#define TURNED_AWAY                                                                                \
    3 /* times in a row; then it is this message that is not wanted, and others may have its place */

int64_t hapax__settle_pause_ms(int64_t least_ms, int64_t most_ms, unsigned n, uint32_t random)
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

struct rule { /* what the rules look at, in one hand */
    const struct hapax_consumer *consumer;
    const struct hapax__ended *ended;
    const struct hapax__before *before;
    uint32_t random;
};

/* How often in a row it was held for this already. */
static unsigned holds(const struct rule *r, enum hapax__hold hold)
{
    return r->before->hold == hold ? r->before->holds : 0;
}

static int64_t ask_min_ms(const struct rule *r)
{
    return hapax__least(ASK_MIN_MS, r->consumer->retry_min_ms);
}

static bool used_up(const struct rule *r, unsigned spent)
{
    return r->consumer->policy.attempts_max > 0 && spent >= r->consumer->policy.attempts_max;
}

/* ---- what there is to do ------------------------------------------------------------- */

static struct hapax__settling hold(enum hapax__hold why, int64_t after_ms)
{
    return (struct hapax__settling){
        .act = HAPAX__ACT_HOLD, .hold = why, .after_ms = after_ms > 0 ? after_ms : 1};
}

static struct hapax__settling give_up(enum hapax__act act, const char *reason)
{
    return (struct hapax__settling){.act = act, .reason = reason};
}

static struct hapax__settling hold_growing(const struct rule *r, enum hapax__hold why)
{
    return hold(why, hapax__settle_pause_ms(r->consumer->retry_min_ms, r->consumer->retry_max_ms,
                                            holds(r, why), r->random));
}

static struct hapax__settling hold_shortly(const struct rule *r, enum hapax__hold why)
{
    return hold(why, hapax__settle_pause_ms(ask_min_ms(r), STORE_MAX_MS, holds(r, why), r->random));
}

/* For an operator. */
static struct hapax__settling set_aside(const struct rule *r, const char *reason)
{
    return give_up(r->consumer->unknown == HAPAX_UNKNOWN_PARK ? HAPAX__ACT_PARK : HAPAX__ACT_DEAD,
                   reason);
}

static struct hapax__settling fate_unknown(const struct rule *r)
{
    return set_aside(r, "unknown");
}

/* ---- answers ------------------------------------------------------------------------- */

/* Under `hold` an end without a certain outcome made the record `unknown`, and asking again would say so. A hook
 * may still tell more. */
static bool is_unknown_now(const struct rule *r, bool held)
{
    return held && r->ended->kind == HAPAX_ANSWER_FRESH &&
           r->consumer->policy.on_expired != HAPAX_EXPIRED_RECONCILE;
}

static struct hapax__settling failed(const struct rule *r)
{
    uint32_t attempts = r->before->attempts + 1;

    /* Before `refused`: whoever put that back would find the record unknown. */
    if (is_unknown_now(r, r->consumer->policy.on_failed == HAPAX_FAILED_HOLD))
        return fate_unknown(r);
    if (r->ended->refused)
        return give_up(HAPAX__ACT_DEAD, "refused");
    if (used_up(r, attempts))
        return give_up(HAPAX__ACT_DEAD, "failed");
    return (struct hapax__settling){.act = HAPAX__ACT_RETRY,
                                    .hold = HAPAX__HOLD_FAILED,
                                    .after_ms = hapax__settle_pause_ms(r->consumer->retry_min_ms,
                                                                       r->consumer->retry_max_ms,
                                                                       attempts - 1, r->random)};
}

/* Nobody can tell what this attempt did. Its record counts it once the lease is over, and says FAILED when they are
 * used up; without a record, or where a hook decides instead, that is counted here. */
static struct hapax__settling lost_sight(const struct rule *r)
{
    bool by_record = r->ended->kind == HAPAX_ANSWER_FRESH &&
                     r->consumer->policy.on_expired != HAPAX_EXPIRED_RECONCILE;

    if (is_unknown_now(r,
                       r->ended->recorded && r->consumer->policy.on_expired == HAPAX_EXPIRED_HOLD))
        return fate_unknown(r);
    if (!by_record && used_up(r, r->before->attempts + 1))
        return fate_unknown(r);
    return hold(HAPAX__HOLD_LEASE, r->consumer->policy.lease_ms);
}

/* Where nobody listens every message has to wait, and none is sent round for that. Who is turned away by a status may be
 * the only one. */
static struct hapax__settling not_run(const struct rule *r)
{
    struct hapax__settling settling = hold_growing(r, HAPAX__HOLD_AWAY);

    if (r->ended->status == 0 || holds(r, HAPAX__HOLD_AWAY) < TURNED_AWAY)
        return settling;
    settling.act = HAPAX__ACT_RETRY;
    settling.after_ms =
        hapax__settle_pause_ms(r->consumer->retry_max_ms, r->consumer->retry_max_ms, 0, r->random);
    return settling;
}

static struct hapax__settling by_class(const struct rule *r)
{
    switch (r->ended->cls) {
    case HAPAX_CLASS_FINAL:
        return (struct hapax__settling){.act = HAPAX__ACT_ACK};
    case HAPAX_CLASS_NOT_RUN:
        return not_run(r);
    case HAPAX_CLASS_FAILED:
        return failed(r);
    default:
        assert(r->ended->cls == HAPAX_CLASS_UNKNOWN);
        return lost_sight(r);
    }
}

static struct hapax__settling in_flight(const struct rule *r)
{
    int64_t lease_ms = r->consumer->policy.lease_ms;
    int64_t after_ms = r->ended->retry_after_ms < 0 ? lease_ms : r->ended->retry_after_ms + 1;
    struct hapax__settling settling;

    after_ms = hapax__least(hapax__least(after_ms, lease_ms),
                            hapax__settle_pause_ms(hapax__least(ask_min_ms(r), lease_ms), lease_ms,
                                                   holds(r, HAPAX__HOLD_TWIN), r->random));
    if (r->consumer->in_flight != HAPAX_IN_FLIGHT_REQUEUE)
        return hold(HAPAX__HOLD_TWIN, after_ms);
    settling = hold(HAPAX__HOLD_RETURN, hapax__least(after_ms, r->consumer->retry_min_ms));
    settling.act = HAPAX__ACT_RETURN;
    return settling;
}

/* With `reconcile` the hook could not tell now, but may later: as often as an attempt may run. */
static struct hapax__settling unknown(const struct rule *r)
{
    if (r->ended->retry_after_ms < 0 || used_up(r, holds(r, HAPAX__HOLD_HOOK) + 1))
        return fate_unknown(r);
    return hold_growing(r, HAPAX__HOLD_HOOK);
}

static struct hapax__settling missing_key(const struct rule *r)
{
    if (r->consumer->no_key == HAPAX_NO_KEY_REJECT)
        return (struct hapax__settling){.act = HAPAX__ACT_REJECT};
    return give_up(HAPAX__ACT_DEAD, "no_key");
}

/* A damaged record does not mend by itself, and says nothing of its operation. */
static struct hapax__settling store_down(const struct rule *r)
{
    if (r->ended->error == HAPAX_ERR_CORRUPT)
        return set_aside(r, "corrupt");
    return hold_shortly(r, HAPAX__HOLD_STORE);
}

static struct hapax__settling act_on(const struct rule *r)
{
    switch (r->ended->kind) {
    case HAPAX_ANSWER_FRESH:
        /* What is unknown is never recorded, but under `hold`. */
        if (r->ended->cls != HAPAX_CLASS_UNKNOWN && !r->ended->recorded)
            return hold_shortly(r, HAPAX__HOLD_STORE);
        return by_class(r);
    case HAPAX_ANSWER_BYPASS:
        return by_class(r);
    case HAPAX_ANSWER_REPLAY:
    case HAPAX_ANSWER_GONE:
        if (!r->ended->recorded)
            return hold_shortly(r, HAPAX__HOLD_STORE);
        return (struct hapax__settling){.act = HAPAX__ACT_ACK};
    case HAPAX_ANSWER_IN_FLIGHT:
        return in_flight(r);
    case HAPAX_ANSWER_UNKNOWN:
        return unknown(r);
    case HAPAX_ANSWER_FAILED:
        return give_up(HAPAX__ACT_DEAD, "failed");
    case HAPAX_ANSWER_MISMATCH:
        return give_up(HAPAX__ACT_DEAD, "mismatch");
    case HAPAX_ANSWER_BAD_KEY:
        return give_up(HAPAX__ACT_DEAD, "bad_key");
    case HAPAX_ANSWER_TOO_LARGE:
        return give_up(HAPAX__ACT_DEAD, "too_large");
    case HAPAX_ANSWER_MISSING_KEY:
        return missing_key(r);
    case HAPAX_ANSWER_STORE_DOWN:
        return store_down(r);
    }
    /* There was no memory to ask with. */
    assert(r->ended->kind == 0);
    return hold_shortly(r, HAPAX__HOLD_MEMORY);
}

/* A record that is damaged, or an outcome that it cannot hold, says nothing about other messages. */
static enum hapax__store_seen store_of(const struct hapax__ended *ended)
{
    bool of_record = ended->error == HAPAX_ERR_CORRUPT || ended->error == HAPAX_ERR_TOO_BIG;

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
        return HAPAX__STORE_UP;
    default:
        return HAPAX__STORE_NOT_SEEN;
    }
}

struct hapax__settling hapax__settle_rule(const struct hapax_consumer *consumer,
                                          const struct hapax__ended *ended,
                                          const struct hapax__before *before, uint32_t random)
{
    const struct rule rule = {consumer, ended, before, random};
    struct hapax__settling settling = act_on(&rule);

    settling.ran = ended->cls != 0 && ended->cls != HAPAX_CLASS_NOT_RUN;
    settling.store = store_of(ended);
    return settling;
}
