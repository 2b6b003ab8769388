/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of hapax_step() share: an order, whose handler does its steps in turn until one
 * cannot be done, and notes how each was answered.
 */
#ifndef HAPAX_TESTS_STEP_BED_H
#define HAPAX_TESTS_STEP_BED_H

#include "execute_bed.h"

#define STEPS 3

/* ---- an order: steps in turn, until one cannot be done ------------------------------------ */

struct order {
    struct bed *bed;
    const char *names[STEPS];
    struct script steps[STEPS];
    enum hapax_answer_kind kinds[STEPS]; /* of the last run; 0: not asked */
    char bodies[STEPS][32];
    int64_t silent_ms; /* of the last answer */
    size_t n;
    unsigned runs;
    enum hapax_class ends; /* how the handler ends when all steps are done */
};

static inline void order_init(struct order *order, struct bed *bed)
{
    static const char *const names[STEPS] = {"charge", "reserve", "mail"};
    static const char *const bodies[STEPS] = {"charged", "reserved", "mailed"};

    memset(order, 0, sizeof(*order));
    order->bed = bed;
    order->n = STEPS;
    order->ends = HAPAX_CLASS_FINAL;
    for (size_t i = 0; i < STEPS; i++) {
        order->names[i] = names[i];
        script_init(&order->steps[i], HAPAX_CLASS_FINAL, 200, bodies[i]);
    }
}

/* True: it is done, and the handler goes on. */
static inline bool do_step(struct order *order, size_t i, struct hapax_attempt *attempt)
{
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    bool done;

    if (hapax_step(attempt, order->names[i], play, &order->steps[i], &answer, text) !=
        HAPAX_ERR_NONE)
        return false;
    order->kinds[i] = answer.kind;
    order->silent_ms = answer.silent_ms;
    snprintf(order->bodies[i], sizeof(order->bodies[i]), "%.*s", (int)answer.outcome.body.len,
             answer.outcome.body.len > 0 ? (const char *)answer.outcome.body.ptr : "");
    done = answer.outcome.status == 200;
    hapax_answer_release(&answer);
    return done;
}

static inline enum hapax_class handle_order(struct hapax_attempt *attempt, void *arg)
{
    struct order *order = arg;

    order->runs++;
    memset(order->kinds, 0, sizeof(order->kinds));
    for (size_t i = 0; i < order->n; i++)
        if (!do_step(order, i, attempt))
            return HAPAX_CLASS_FAILED;
    must(hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str("ordered")) ==
         HAPAX_ERR_NONE);
    return order->ends;
}

static inline enum hapax_answer_kind run_order(struct order *order, const char *key)
{
    struct hapax_request request = request_of(key);
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_answer_kind kind;

    must(hapax_execute(order->bed->h, &order->bed->policy, &request, handle_order, NULL, order,
                       &answer, text) == HAPAX_ERR_NONE);
    kind = answer.kind;
    hapax_answer_release(&answer);
    return kind;
}

#endif
