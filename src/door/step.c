/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps: named parts of an operation. Each step has a record of its own, so what a handler did
 * before it failed or died is not done again. A step is a call inside the operation's handler
 * (attempt.h), with the same flow and the same rules. This file has what makes such a call a step.
 *
 * Invariant: a step begins only while the claim of its operation is live. Where the operation is so
 * old that a step's record may have come and gone, a step without a record is not run. Before a
 * step runs, its name is in the operation's list.
 *
 * The list: stores have no index from an operation to its steps. So completed records under the
 * steps ".1", ".2", … have the name of one step each as their body. They are found by their ids,
 * written by the same flow, and expire with the rest. All have the same fingerprint, by which
 * `hapax list` leaves them out. Rejected: names in the operation's own record, which would need an
 * op that changes a live claim in every store. A store's index by key, which would have to keep
 * keys.
 */
#include "step.h"

#include "attempt.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define WAIT_MORE_MS 2000 /* a store asked again at growing pauses is a second late */
#define WAIT_MAX_MS  INT64_C(3600000) /* what a policy may say at most */

struct step {
    struct hapax_attempt *outer;
    struct hapax_span name;
    hapax_handler *fn;
    void *arg;
    /* Why fn was not called: one of the two. */
    enum hapax_answer_kind refused;
    enum hapax_error error;
    enum hapax_error store_error;
    char text[HAPAX_TEXT_MAX];
};

/* ---- how long ------------------------------------------------------------------------ */

/* No record goes before its retention is over. Rejected: records of steps that are kept longer.
 * They would still be there when the operation's record is not, and would be taken for those of the
 * next operation under its key. */
bool hapax__step_forgotten(const struct hapax_attempt *attempt, const struct hapax_attempt *outer)
{
    int64_t kept_ms = attempt->policy->retention_ms;
    int64_t between_us = attempt->created_us - outer->created_us;

    if (outer->number == 1 || outer->created_us == 0 || attempt->created_us == 0 ||
        attempt->resolved)
        return false;
    return kept_ms != HAPAX_FOREVER_MS && !attempt->policy->rerun_completed &&
           between_us / US_PER_MS >= kept_ms;
}

void hapax__step_policy(struct hapax_policy *policy, const struct hapax_policy *operation)
{
    int64_t lease_ms = operation->lease_ms + WAIT_MORE_MS;

    *policy = *operation;
    /* A step is kept as long as its operation, whatever it ended with, and no longer. */
    policy->retention_4xx_ms = policy->retention_failed_ms = policy->tombstone_ms = 0;
    if (policy->wait_ms < lease_ms)
        policy->wait_ms = lease_ms < WAIT_MAX_MS ? lease_ms : WAIT_MAX_MS;
    if (policy->on_expired == HAPAX_EXPIRED_RECONCILE)
        policy->on_expired = HAPAX_EXPIRED_HOLD;
}

/* ---- the list of steps --------------------------------------------------------------- */

void hapax__steps_fingerprint(struct hapax_digest *out)
{
    const struct hapax_span parts[] = {hapax_str("hapax"), hapax_str("step")};

    hapax_digest(out, parts, 2);
}

void hapax__step_index(char out[HAPAX__STEP_INDEX_SIZE], unsigned index)
{
    assert(index > 0 && index <= HAPAX_STEPS_MAX);
    snprintf(out, HAPAX__STEP_INDEX_SIZE, ".%u", index);
}

/* The policy of a record of the list. A record keeps its first name for ever. The search does not
 * wait for a record that another attempt is writing, or that is lost: it goes on to the next. */
static void entry_policy(struct hapax_policy *policy, const struct hapax_policy *step)
{
    *policy = *step;
    policy->wait_ms = 0;
    policy->on_expired = HAPAX_EXPIRED_RERUN;
    policy->on_failed = HAPAX_FAILED_RETRY;
    policy->on_store_error = HAPAX_STORE_CLOSED;
    policy->attempts_max = 0;
    policy->max_response = HAPAX_STEP_MAX;
    policy->rerun_completed = false;
    policy->pass_token = false;
}

void hapax__step_entry_init(struct hapax__step_entry *entry, const struct hapax_attempt *outer,
                            unsigned index)
{
    struct hapax_policy step;

    hapax__step_policy(&step, outer->policy);
    entry_policy(&entry->policy, &step);
    hapax__step_index(entry->name, index);
    entry->request = *outer->request;
    entry->request.step = hapax_str(entry->name);
    hapax__steps_fingerprint(&entry->request.fingerprint);
    memset(&entry->request.caller, 0, sizeof(entry->request.caller));
}

enum hapax_class hapax__step_entry_run(struct hapax_attempt *attempt, struct hapax_span name)
{
    if (hapax_attempt_outcome(attempt, 0, hapax_str(NULL), name) != HAPAX_ERR_NONE)
        return HAPAX_CLASS_NOT_RUN;
    return HAPAX_CLASS_FINAL;
}

enum hapax__entry_is hapax__step_entry_of(const struct hapax_answer *answer, struct hapax_span name)
{
    switch (answer->kind) {
    case HAPAX_ANSWER_STORE_DOWN:
        return HAPAX__ENTRY_NOT_REACHED;
    case HAPAX_ANSWER_FRESH:
        if (answer->cls != HAPAX_CLASS_FINAL)
            return HAPAX__ENTRY_NOMEM;
        break;
    case HAPAX_ANSWER_REPLAY:
        break;
    default:
        return HAPAX__ENTRY_TAKEN;
    }
    return hapax__same(answer->outcome.body, name) ? HAPAX__ENTRY_OURS : HAPAX__ENTRY_TAKEN;
}

unsigned hapax__step_list_from(const struct hapax_attempt *outer, uint32_t number)
{
    return number == 1 ? atomic_load(&outer->listed) : 0;
}

void hapax__step_listed(struct hapax_attempt *outer, unsigned at)
{
    for (unsigned seen = atomic_load(&outer->listed); seen < at;)
        if (atomic_compare_exchange_weak(&outer->listed, &seen, at))
            break;
}

static enum hapax_class put_name(struct hapax_attempt *attempt, void *arg)
{
    const struct step *step = arg;

    return hapax__step_entry_run(attempt, step->name);
}

/* Writes the step's name to a record of the list, unless the record has a name already. NOMEM: so
 * says step->error; NOT_REACHED: step->error or step->store_error says why. */
static enum hapax__entry_is take_entry(struct step *step, unsigned index)
{
    const struct hapax_attempt *outer = step->outer;
    struct hapax__step_entry made;
    enum hapax__entry_is entry;
    struct hapax_answer answer;

    hapax__step_entry_init(&made, outer, index);
    memset(&answer, 0, sizeof(answer));
    step->error = outer->execute_inner(outer, &made.policy, &made.request, put_name, step, &answer,
                                       step->text);
    if (step->error != HAPAX_ERR_NONE)
        return HAPAX__ENTRY_NOT_REACHED;
    entry = hapax__step_entry_of(&answer, step->name);
    if (entry == HAPAX__ENTRY_NOT_REACHED)
        step->store_error = answer.error;
    else if (entry == HAPAX__ENTRY_NOMEM)
        step->error = hapax__fail(step->text, HAPAX_ERR_NOMEM, "out of memory for a step's name");
    hapax_answer_release(&answer);
    return entry;
}

/* Puts the step's name in the list, where it is not yet there. False: the list cannot be reached. A
 * full list (HAPAX_STEPS_MAX) leaves the name out. */
static bool put_in_list(struct step *step, uint32_t number)
{
    unsigned at = hapax__step_list_from(step->outer, number);
    enum hapax__entry_is entry = HAPAX__ENTRY_TAKEN;

    while (entry == HAPAX__ENTRY_TAKEN && at < HAPAX_STEPS_MAX)
        entry = take_entry(step, ++at);
    if (entry == HAPAX__ENTRY_NOT_REACHED || entry == HAPAX__ENTRY_NOMEM)
        return false;
    hapax__step_listed(step->outer, at);
    return true;
}

/* ---- the step ------------------------------------------------------------------------ */

static enum hapax_class run(struct hapax_attempt *attempt, void *arg)
{
    struct step *step = arg;
    bool claimed = attempt->fence > 0;

    step->refused = 0;
    if (hapax__step_forgotten(attempt, step->outer))
        step->refused = HAPAX_ANSWER_UNKNOWN;
    else if (claimed && !attempt->in_transaction && !put_in_list(step, attempt->number))
        step->refused = HAPAX_ANSWER_STORE_DOWN;
    else if (hapax_attempt_lost(attempt))
        step->refused = HAPAX_ANSWER_IN_FLIGHT;
    return step->refused ? HAPAX_CLASS_NOT_RUN : step->fn(attempt, step->arg);
}

static enum hapax_error refuse(struct step *step, struct hapax_answer *answer,
                               char text[HAPAX_TEXT_MAX])
{
    hapax_answer_release(answer);
    text[0] = '\0';
    if (step->refused == HAPAX_ANSWER_STORE_DOWN)
        snprintf(text, HAPAX_TEXT_MAX, "%s", step->text);
    if (step->error != HAPAX_ERR_NONE)
        return step->error;
    answer->kind = step->refused;
    answer->error = step->store_error;
    answer->retry_after_ms = answer->silent_ms = -1;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__step_check(const struct hapax_attempt *outer, struct hapax_span name,
                                   char text[HAPAX_TEXT_MAX])
{
    if (outer->outer || (outer->request->key.len > 0 && outer->request->step.len > 0))
        return hapax__fail(text, HAPAX_ERR_INVALID, "a step has no steps of its own");
    if (name.len == 0 || name.len > HAPAX_STEP_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "a step's name of %zu bytes is not of 1 to %u",
                           name.len, HAPAX_STEP_MAX);
    if (name.ptr[0] == '.' || memchr(name.ptr, ':', name.len))
        return hapax__fail(text, HAPAX_ERR_INVALID, "step \"%.*s\" %s", (int)name.len,
                           (const char *)name.ptr,
                           name.ptr[0] == '.' ? "begins with a '.'" : "holds a ':'");
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax_step(struct hapax_attempt *attempt, const char *name, hapax_handler *fn,
                            void *arg, struct hapax_answer *answer, char text[HAPAX_TEXT_MAX])
{
    struct step step = {.outer = attempt, .name = hapax_str(name), .fn = fn, .arg = arg};
    struct hapax_request request = *attempt->request;
    struct hapax_policy policy;
    enum hapax_error error;

    assert(fn);
    memset(answer, 0, sizeof(*answer));
    text[0] = '\0';
    error = hapax__step_check(attempt, step.name, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    if (hapax_attempt_lost(attempt)) {
        step.refused = HAPAX_ANSWER_IN_FLIGHT;
        return refuse(&step, answer, text);
    }
    hapax__step_policy(&policy, attempt->policy);
    request.step = step.name;
    error = attempt->execute_inner(attempt, &policy, &request, run, &step, answer, text);
    if (error == HAPAX_ERR_NONE && step.refused)
        return refuse(&step, answer, text);
    /* Where fn's rows go back to a savepoint, what was written within it would go along. */
    if (error == HAPAX_ERR_NONE && answer->cls && attempt->in_transaction && request.key.len > 0 &&
        !put_in_list(&step, answer->attempt) && step.error != HAPAX_ERR_NONE) {
        hapax_answer_release(answer);
        return hapax__fail(text, step.error, "%s", step.text);
    }
    return error;
}
