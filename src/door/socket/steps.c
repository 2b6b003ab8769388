/* SPDX-License-Identifier: Apache-2.0
 *
 * What precedes a step's run (door/step.c has the rules): whether an earlier record of the step may
 * have been forgotten, and the step's name in the list of its operation. The list is written by
 * calls of its own, one record after the other.
 */
#include "connection.h"

#include <assert.h>
#include <stdio.h>

static struct hapax_attempt *outer_of(struct hapax__door_op *op)
{
    return &op->outer->call->attempt;
}

/* The step is not run; `refused` or `no_memory` says what is answered. */
static void refuse(struct hapax__door_op *op, enum hapax_answer_kind kind)
{
    op->listing->refused = kind;
    op->phase = HAPAX__OP_ASKED;
    hapax__call_withdraw(op->call);
}

static void go(struct hapax__door_op *op)
{
    if (op->given_up)
        refuse(op, HAPAX_ANSWER_IN_FLIGHT);
    else if (hapax_attempt_lost(&op->call->attempt))
        refuse(op, HAPAX_ANSWER_IN_FLIGHT);
    else
        hapax__door_op_run(op);
}

/* Asks for the next record of the list. */
static void ask(struct hapax__door_op *op)
{
    struct hapax__door_listing *listing = op->listing;

    hapax__step_entry_init(&listing->entry, outer_of(op), ++listing->at);
    listing->call = hapax__call_new(op->c->door->options.h, &listing->entry.policy,
                                    &listing->entry.request, outer_of(op), false, listing->text);
    if (listing->call) {
        listing->call->told = hapax__door_told;
        listing->call->owner = op->c->door;
        listing->call->data = op;
        if (hapax__call_begin(listing->call, listing->text) == HAPAX_ERR_NONE)
            return;
        listing->call = NULL;
    }
    listing->no_memory = true;
    refuse(op, HAPAX_ANSWER_STORE_DOWN);
}

void hapax__door_step_may_run(struct hapax__door_op *op)
{
    struct hapax_attempt *attempt = &op->call->attempt;

    if (hapax__step_forgotten(attempt, outer_of(op))) {
        refuse(op, HAPAX_ANSWER_UNKNOWN);
        return;
    }
    op->listing->at = hapax__step_list_from(outer_of(op), attempt->number);
    if (attempt->fence == 0 || op->listing->at >= HAPAX_STEPS_MAX) {
        go(op);
        return;
    }
    op->phase = HAPAX__OP_LISTING;
    ask(op);
}

/* The record of the list was tried. */
static void listed(struct hapax__door_op *op, enum hapax__entry_is entry)
{
    struct hapax__door_listing *listing = op->listing;

    switch (entry) {
    case HAPAX__ENTRY_TAKEN:
        if (listing->at < HAPAX_STEPS_MAX && !op->given_up) {
            ask(op);
            return;
        }
        break;
    case HAPAX__ENTRY_OURS:
        break;
    case HAPAX__ENTRY_NOMEM:
        listing->no_memory = true;
        (void)snprintf(listing->text, sizeof(listing->text), "out of memory for a step's name");
        refuse(op, HAPAX_ANSWER_STORE_DOWN);
        return;
    case HAPAX__ENTRY_NOT_REACHED:
        refuse(op, HAPAX_ANSWER_STORE_DOWN);
        return;
    }
    hapax__step_listed(outer_of(op), listing->at);
    go(op);
}

void hapax__door_step_told(struct hapax__door_op *op)
{
    struct hapax__door_listing *listing = op->listing;
    struct hapax_answer answer;
    enum hapax__entry_is entry;

    if (listing->call->state == HAPAX__FLOW_RUN) {
        hapax__call_ended(listing->call,
                          hapax__step_entry_run(&listing->call->attempt, op->request.step));
        return;
    }
    assert(listing->call->state == HAPAX__FLOW_ANSWER);
    if (hapax__call_leave(listing->call, &answer, listing->text) == HAPAX_ERR_NONE) {
        entry = hapax__step_entry_of(&answer, op->request.step);
        listing->error = answer.error;
        hapax_answer_release(&answer);
    } else {
        entry = HAPAX__ENTRY_NOMEM;
    }
    listing->call = NULL;
    listed(op, entry);
}
