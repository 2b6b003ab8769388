/* SPDX-License-Identifier: Apache-2.0
 *
 * The breaker of one table of waiters: whether a dead store has to be asked at all. A claim waits
 * for its store until the policy's timeout. When two claims in a row did so in vain, the breaker is
 * open: a new claim is turned away at once, as if the store had been asked and not been reached.
 * One claim each half second is a probe: it asks the store as every claim does, but waits for a
 * fifth of that time only. The verdict of any op closes the breaker, however late it comes.
 *
 * Invariant: only claims of new flows are turned away. RENEW, COMPLETE, FAIL and the chase of a
 * claim that may have landed are always sent.
 *
 * A slow store is not a dead one. A claim that waited in vain does not count if the store answered
 * anybody meanwhile. And a breaker without a recent failure turns nobody away: after a pause, of
 * requests or of the machine, nobody knows how the store is.
 *
 * Rejected: to name one flow as the probe, and to wait for its end. Its client may leave, and then
 * another flow would have to take its place. Here the time alone decides who may probe next.
 * Rejected: to count errors of single ops. A store that fails over refuses connections for a second
 * or two, and claims repeat themselves meanwhile and succeed.
 */
#ifndef HAPAX_CORE_BREAKER_H
#define HAPAX_CORE_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

/* From the beginning of one probe to that of the next. */
#define HAPAX__PROBE_US INT64_C(500000)
/* How long a probe waits for its verdict. Were it as long as the pause, each request of a client
 * that sends one after the other would be a probe. */
#define HAPAX__PROBE_WAIT_US INT64_C(100000)
/* How long a failure shows that the store is dead. */
#define HAPAX__DEAD_US INT64_C(5000000)

struct hapax__breaker {
    bool open;
    unsigned vain; /* claims given up on since the store last answered; stops at 2 */
    int64_t heard_us; /* when the store last answered; -1: never */
    int64_t failed_us; /* the last claim was given up on */
    int64_t probe_us; /* the next probe may begin */
};

void hapax__breaker_init(struct hapax__breaker *breaker);

/* The store answered an op. */
void hapax__breaker_heard(struct hapax__breaker *breaker, int64_t now_us);

/* A claim that began at begun_us is given up on, since no verdict came in time. */
void hapax__breaker_failed(struct hapax__breaker *breaker, int64_t begun_us, int64_t now_us);

/* Until when the store is taken for dead, unless another claim fails; 0: it is not. For those who
 * say so elsewhere: this time passes though nobody asks. */
int64_t hapax__breaker_until(const struct hapax__breaker *breaker);

/* Whether new claims are turned away, unless they are probes. */
bool hapax__breaker_refuses(const struct hapax__breaker *breaker, int64_t now_us);

/* Whether a claim may be a probe now. If so, the claim is the probe of the next half second. */
bool hapax__breaker_probes(struct hapax__breaker *breaker, int64_t now_us);

#endif
