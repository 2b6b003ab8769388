/* SPDX-License-Identifier: Apache-2.0
 *
 * What the three parts of the flow call of one another; the door sees flow.h alone. All of it is
 * called within an event. An event gives a flow one thing to do at most (set_due()) and has one op
 * due at most; what that op asks is decided by the phase the flow is in when next() makes it.
 */
#ifndef HAPAX_CORE_FLOW_PARTS_H
#define HAPAX_CORE_FLOW_PARTS_H

#include "flow.h"

#include "base/time.h"

#define CLAIM_PAUSE_MIN_US (10 * US_PER_MS)
#define SAVE_PAUSE_MIN_US  (20 * US_PER_MS)
#define SAVE_PAUSE_MAX_US  (5000 * US_PER_MS)
#define RETRY_AFTER_MS     1000

/* ---- flow.c: every part's ---- */

/* The pause before the next try: doubles with each, which it counts in tries; the phase stays. */
int64_t hapax__flow_pause_us(struct hapax__flow *flow, int64_t min_us, int64_t max_us);

/* Plans the phase's next op: next() will ASK at at_us. None may be out. */
void hapax__flow_ask_at(struct hapax__flow *flow, int64_t at_us);

/* Leaves it in this phase until limit_us, with no tries; an op that is due or out stays so. */
void hapax__flow_enter(struct hapax__flow *flow, enum hapax__flow_phase phase, int64_t limit_us);

/* Whether an op that met this error is to be repeated. */
bool hapax__flow_repeatable(enum hapax_error error);

/* What the policy does about an expired lease; where it would ask a hook but has none, it holds. */
enum hapax_on_expired hapax__flow_on_expired(const struct hapax__flow *flow);

/* Has next() return this before anything else; nothing else may be due. */
void hapax__flow_set_due(struct hapax__flow *flow, enum hapax__flow_do due);

/* Answers, once in a flow's life: ANSWER is due, the phase stays. */
void hapax__flow_give(struct hapax__flow *flow, enum hapax_answer_kind kind);

/* Leaves it OVER, with no op due (one may be out); others who waited for it go on without it. */
void hapax__flow_over(struct hapax__flow *flow, int64_t now_us);

/* Answers, unless it has, and leaves it OVER. */
void hapax__flow_end_with(struct hapax__flow *flow, enum hapax_answer_kind kind, int64_t now_us);

/* The error to blame where time ran out: the last one met, or that no reply came. */
enum hapax_error hapax__flow_why_late(const struct hapax__flow *flow);

/* ---- flow_claim.c: the others who ask the same ---- */

/* CLAIMING as head or mate, WAITING as mate, or answered IN_FLIGHT and OVER. */
void hapax__flow_join(struct hapax__flow *flow, int64_t now_us);

/* Takes it out of the waiters, in its phase; its first mate heads the others, and asks at once. */
void hapax__flow_promote(struct hapax__flow *flow, int64_t now_us);

/* Gives every mate the head's answer and leaves it OVER (none of them ran); the head stays. */
void hapax__flow_share(struct hapax__flow *head, enum hapax_answer_kind kind,
                       const struct hapax_outcome *outcome, int64_t now_us);

/* An attempt runs, the head's or another's: leaves CLAIMING mates WAITING, or answered and OVER. */
void hapax__flow_mates_see_in_flight(struct hapax__flow *head, int64_t now_us);

/* Answers IN_FLIGHT, to be retried when the lease ends; the phase stays. */
void hapax__flow_give_in_flight(struct hapax__flow *flow, uint32_t attempt, int64_t lease_end_us,
                                int64_t now_us);

/* ---- flow_claim.c: the claim ---- */

/* Answers STORE_DOWN; the phase stays. */
void hapax__flow_store_down(struct hapax__flow *flow, enum hapax_error error);

/* After the answer: CHASING if a CLAIM may have landed, else OVER; its mates go on without it. */
void hapax__flow_chase(struct hapax__flow *flow, int64_t now_us);

/* No verdict will come: RUNNING unprotected if the policy is open, else STORE_DOWN and chased. */
void hapax__flow_give_up_claim(struct hapax__flow *flow, enum hapax_error error, int64_t now_us);

/* told() while CLAIMING, WAITING: asks again, WAITING, claimed, given up, or answered and OVER. */
void hapax__flow_told_claim(struct hapax__flow *flow, int64_t now_us);

/* told() while CONFIRMING: starts, asks again, SAVING as cannot_tell(), or answered and OVER. */
void hapax__flow_told_confirm(struct hapax__flow *flow, int64_t now_us);

/* told() while CHASING: RELEASING what has landed, asks again, or OVER. */
void hapax__flow_told_chased(struct hapax__flow *flow, int64_t now_us);

/* told() while RELEASING: asks again, or OVER. */
void hapax__flow_told_released(struct hapax__flow *flow, int64_t now_us);

/* ---- flow_run.c: until the handler ends ---- */

/* Takes the grant that op shows, tells the mates, and starts. */
void hapax__flow_claimed(struct hapax__flow *flow, int64_t now_us);

/* RECONCILING or RUNNING, renewal planned; CONFIRMING if less than half of the lease is ahead. */
void hapax__flow_start(struct hapax__flow *flow, int64_t now_us);

/* The lease counts from when the RENEW was asked; the phase stays. */
void hapax__flow_renewed(struct hapax__flow *flow);

/* told() while RECONCILING, RUNNING: renews, asks again, abandons, or goes on if that ended. */
void hapax__flow_told_while_running(struct hapax__flow *flow, int64_t now_us);

/* ---- flow_run.c: saving and answering ---- */

/* SAVING as `unknown`, to be answered UNKNOWN: nobody knows whether it happened. */
void hapax__flow_cannot_tell(struct hapax__flow *flow, int64_t now_us);

/* Answers with the outcome that op shows, mates too unless they may rerun, and leaves it OVER. */
void hapax__flow_replay(struct hapax__flow *flow, int64_t now_us);

/* The token holds nothing, or the record says more than the handler: answers from it; OVER. */
void hapax__flow_answer_from_record(struct hapax__flow *flow, int64_t now_us);

/* The store says no more: answers its own end unrecorded, STORE_DOWN if the claim is lost; OVER. */
void hapax__flow_end_untold(struct hapax__flow *flow, int64_t now_us);

/* told() while READING: asks again, or answered and OVER. */
void hapax__flow_told_read(struct hapax__flow *flow, int64_t now_us);

/* told() while SAVING: asks again (without the body, if that was too big), or answered and OVER. */
void hapax__flow_told_saved(struct hapax__flow *flow, int64_t now_us);

#endif
