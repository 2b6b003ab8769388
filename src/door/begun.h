/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax_execute() in parts, for a door whose handler is no function, or whose threads should not wait for a store: it begins
 * a call, is told to run it or what its answer is, and says later how it ended. One thread may have any number of calls
 * begun, so that the claims of a batch are one batch of the store's.
 */
#ifndef HAPAX_DOOR_BEGUN_H
#define HAPAX_DOOR_BEGUN_H

#include "pulse.h"

/* A call between begin and leave. It stays where it is. */
struct hapax__begun {
    struct hapax__call *call; /* its attempt is the handler's, while told RUN or RECONCILE */
    struct hapax__seat seat;
    struct hapax__origin origin;

    /* set by the caller */
    const struct hapax_attempt *outer; /* of the operation, where this is a step's */
    struct hapax__ear *ear; /* hears of it, by `seat`; NULL: hapax__begun_wait() */
};

/* Begins a call that hapax__call_check() passed; policy and request are borrowed until it is left. NOMEM: nothing was begun, and text
 * says why. With an ear the call may be anybody's by the time this returns; `h` must outlive this and hapax__begun_ended(), not only
 * the call. */
enum hapax_error hapax__begin(struct hapax__begun *begun, struct hapax *h,
                              const struct hapax_policy *policy,
                              const struct hapax_request *request, bool reconciles,
                              char text[HAPAX_TEXT_MAX]);

/* Waits for RUN, RECONCILE or ANSWER; or, with an ear, takes what was heard. After the first two comes hapax__begun_ended(),
 * from any thread, and then another word. */
enum hapax__flow_do hapax__begun_wait(struct hapax__begun *begun);
enum hapax__flow_do hapax__begun_heard(struct hapax__begun *begun);

void hapax__begun_ended(struct hapax__begun *begun, struct hapax *h, enum hapax_class cls);

/* After ANSWER: gives the answer, to be released, as hapax_execute() does; the call is gone. */
enum hapax_error hapax__begun_leave(struct hapax__begun *begun, struct hapax *h,
                                    struct hapax_answer *answer, char text[HAPAX_TEXT_MAX]);

#endif
