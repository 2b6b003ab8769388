#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes: each must be caught by the simulator.

One mistake at a time is written into a copy of one source, which is compiled and linked with the
rest, and the simulator runs until a rule is broken. A mistake that survives, or whose text is no
longer in the source exactly once, fails the test: then the simulator has a gap, or the list is
out of date. So does one whose seed breaks a rule without it, too. A change that no schedule could
tell from the original does not belong here. --small plays them in the small worlds instead, and
only says how many are caught: two clients without limits, operators and purges do not meet all of
them. --move plays those of a move from store to store (move.c), --rotation those of a change of
the secret, --loops those of the loops in simulated processes (loops), which are linked with the
libraries of a build.

    mutants.py SOURCE_ROOT [--only NAME] [--schedules N] [--jobs N] [--texts]
    mutants.py SOURCE_ROOT --small "STEPS FAULTS" [--only NAME] [--jobs N]
    mutants.py SOURCE_ROOT --move|--rotation [--only NAME] [--schedules N] [--jobs N]
    mutants.py SOURCE_ROOT --loops BUILD [--only NAME] [--schedules N] [--jobs N]
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

from mutants_loops import LOOPS, SCHEDULES

CORE = ["breaker", "class", "drive", "flow", "limit", "waiters", "trace", "machine", "record", "policy",
        "id", "../base/units"]
WORLD = ["events", "results", "store", "network", "door", "world", "checker", "checker_breaker", "checker_door"]
SIM = [*WORLD, "draw", "main"]
SMALL = [*WORLD, "small"]

MOVE = ["move", "../../src/store/move/pair"]

PAIR = "src/store/move/pair.c"
MACHINE, WAITERS = "src/core/machine.c", "src/core/waiters.c"
FLOW, STORE = "src/core/flow.c", "tests/sim/store.c"
CLASS, BREAKER = "src/core/class.c", "src/core/breaker.c"


def class_rows():
    """A mistake for each row of the two tables of classes: the row is missing, or believes what it must not."""
    refusals = [f'{{{status}, {status}, HAPAX_CLASS_NOT_RUN, "", ""}},' for status in (401, 403, 425, 429)]
    refusals += [f'{{{status}, {status}, HAPAX_CLASS_NOT_RUN, {header}}},' for status in (409, 423)
                 for header in ('"retry-after", ""', '"stripe-should-retry", "true"')]
    of_one = {"trusting": ['{408, 408, HAPAX_CLASS_NOT_RUN, "", ""},', '{503, 503, HAPAX_CLASS_NOT_RUN, "", ""},'],
              "strict": ['{408, 408, HAPAX_CLASS_NOT_RUN, "retry-after", ""},',
                         '{503, 503, HAPAX_CLASS_NOT_RUN, "retry-after", ""},']}
    for table, own in of_one.items():
        for row in refusals + own:
            yield (f"{table}_without_{row[1:4]}_{row.split(chr(34))[1] or 'alone'}", CLASS, f"{table}[] =…{row}", "",
                   "who was turned away is not served again")
    for status in ("408, 408", "503, 503", "502, 502", "504, 504"):
        row = f'{{{status}, HAPAX_CLASS_UNKNOWN, "", ""}},'
        yield (f"strict_believes_{status[:3]}", CLASS, f"strict[] =…{row}", row.replace("UNKNOWN", "NOT_RUN"),
               "a proxy that lost the service is taken for the service")
    row = '{500, 599, HAPAX_CLASS_FAILED, "", ""},'
    yield ("strict_believes_500", CLASS, f"strict[] =…{row}", row.replace("FAILED", "NOT_RUN"),
           "a failure half-way is repeated")
    for status in (409, 423):
        row = f'{{{status}, {status}, HAPAX_CLASS_NOT_RUN, "retry-after", ""}},'
        yield (f"strict_believes_{status}_alone", CLASS, f"strict[] =…{row}", row.replace("retry-after", ""),
               "a verdict is taken for a refusal")

MUTANTS = [
    # ---- keys that carry their time
    ("an_old_key_begins_anew_once_its_record_is_gone", FLOW,
     "    if (outlived(f) && hapax__flow_is_new(f) && !f->policy->rerun_completed) {",
     "    if (false) {",
     "what ran long ago runs again"),
    ("an_old_key_runs_unprotected", FLOW, "repeatable(error) && !outlived(f)) {", "repeatable(error)) {",
     "during an outage what ran long ago runs again"),

    # ---- what can be asked for again, once all is healed
    ("unknown_kept_from_its_hook", MACHINE,
     "        if (op->on_expired == HAPAX_EXPIRED_RECONCILE)\n"
     "            return take_over(op, next, now_us);\n        return say(op, HAPAX_UNKNOWN",
     "        return say(op, HAPAX_UNKNOWN",
     "an operation whose hook could tell waits for an operator"),
    # ---- tombstones, and retention by class
    ("a_completion_leaves_no_tombstone", MACHINE,
     "kept_ms = next->retention_ms + op->tombstone_ms;", "kept_ms = next->retention_ms;",
     "a key that is to be refused is new"),
    ("a_tombstone_is_replayed", FLOW, "    if (hapax__tombstone(&f->op.record, f->op.now_us)) {", "    if (false) {",
     "an outcome that is gone is answered as one that is there"),
    ("an_outcome_is_buried_with_its_completion", MACHINE,
     "record->expires_us != 0 &&\n           now_us >= retained_until(record);", "record->expires_us != 0;",
     "a sweep takes what is to be replayed"),
    ("a_failure_is_kept_as_long_as_a_success", MACHINE,
     "op->kept_ms > 0 ? op->kept_ms : next->retention_ms,", "next->retention_ms,",
     "a failure outlasts its retention"),

    # ---- limits
    ("a_refused_claim_is_kept", FLOW,
     "    else\n        release(f, now_us);",
     "    else {\n        promote(f, now_us);\n        enter(f, HAPAX__FLOW_OVER, INT64_MAX);\n"
     "        f->ask = HAPAX__ASK_NONE;\n    }",
     "an owner at its limit blocks the operation for a lease"),
    ("an_unprotected_refusal_forgets_its_claim", FLOW,
     "    if (unprotected)\n        chase(f, now_us);\n    else",
     "    if (unprotected) {\n        f->ghost = false;\n        if (f->ask != HAPAX__ASK_OUT)\n"
     "            chase(f, now_us);\n        else\n            enter(f, HAPAX__FLOW_OVER, INT64_MAX);\n    } else",
     "a claim that landed late is left to its lease"),
    # ---- the machine
    ("renew_without_token_compare", MACHINE,
     "    if (!same_token(record, op))\n        return say(op, HAPAX_LOST, record);\n    return by",
     "    if (op->kind != HAPAX_OP_RENEW && !same_token(record, op))\n"
     "        return say(op, HAPAX_LOST, record);\n    return by",
     "a zombie keeps another's claim alive and believes it its own"),
    ("complete_without_token_compare", MACHINE,
     "    if (!same_token(record, op))\n        return say(op, HAPAX_LOST, record);\n    return by",
     "    if (op->kind != HAPAX_OP_COMPLETE && !same_token(record, op))\n"
     "        return say(op, HAPAX_LOST, record);\n    return by",
     "a zombie's outcome is stored while another attempt runs"),
    ("fail_without_token_compare", MACHINE,
     "    if (!same_token(record, op))\n        return say(op, HAPAX_LOST, record);\n    return by",
     "    if (op->kind != HAPAX_OP_FAIL && !same_token(record, op))\n"
     "        return say(op, HAPAX_LOST, record);\n    return by",
     "a zombie fails the claim of a live attempt"),
    ("token_kept_as_it_is", "src/core/id.c",
     "    memcpy(out->bytes, hash, sizeof(out->bytes));",
     "    memcpy(out->bytes, token->bytes, sizeof(out->bytes));",
     "who reads the store can complete an operation"),
    ("stale_lost_on_a_repeated_claim", MACHINE,
     "    case HAPAX_STATE_STARTED:\n        return say(op, HAPAX_CLAIMED, record);",
     "    case HAPAX_STATE_STARTED:\n        say(op, HAPAX_CLAIMED, record);\n"
     "        op->record.stale = false;\n        return HAPAX__KEEP;",
     "after a lost reply the handler runs without asking what happened before"),
    ("hold_undone_by_another_door", MACHINE,
     "    if (next->hold || strict(op))\n        return to_unknown(op, next, now_us);",
     "    if (strict(op))\n        return to_unknown(op, next, now_us);",
     "a door with rerun repeats what another promised to hold"),
    ("hold_forgotten_by_a_later_claim", MACHINE,
     "next->hold |= strict(op);", "next->hold = strict(op);",
     "the last door decides, not the stricter"),
    ("rerun_under_hold", MACHINE,
     "    if (next->hold || strict(op))\n        return to_unknown(op, next, now_us);",
     "",
     "hold takes over like rerun"),
    ("unknown_granted_without_a_hook", MACHINE,
     "        if (op->on_expired == HAPAX_EXPIRED_RECONCILE)\n"
     "            return take_over(op, next, now_us);\n        return say(op, HAPAX_UNKNOWN",
     "        if (op->on_expired != HAPAX_EXPIRED_HOLD)\n"
     "            return take_over(op, next, now_us);\n        return say(op, HAPAX_UNKNOWN",
     "what waits for an operator runs again"),
    ("unknown_forgotten_through_a_fail", MACHINE,
     "    if (next->stale && (next->hold || strict(op)) && op->on_expired != "
     "HAPAX_EXPIRED_RECONCILE)\n        return to_unknown(op, next, now_us);",
     "",
     "a FAIL of nothing run hides that an earlier attempt's result is unknown"),
    ("an_attempt_that_nobody_asked_about_expires", MACHINE,
     "        is_unanswered(next) || kept_ms", "        kept_ms",
     "once a claim under reconcile was given back, its key runs again a day later unasked"),
    ("mismatch_not_checked", MACHINE,
     "        if (!hapax__unbound(record))\n            return say(op, HAPAX_MISMATCH, record);",
     "",
     "another request gets this one's outcome"),
    ("mismatch_after_in_flight", MACHINE,
     "    if (op->differs != HAPAX_DIFFERS_NOT) {\n        if (!hapax__unbound",
     "    if (lease_live(record, now_us))\n        return say(op, HAPAX_IN_FLIGHT, record);\n"
     "    if (op->differs != HAPAX_DIFFERS_NOT) {\n        if (!hapax__unbound",
     "409 hides the client's mistake for as long as the attempt runs"),
    ("mismatch_shows_the_outcome", MACHINE,
     "verdict == HAPAX_FOUND || verdict == HAPAX_FAILED ||",
     "verdict == HAPAX_FOUND || verdict == HAPAX_FAILED || verdict == HAPAX_MISMATCH ||",
     "a stolen key yields another caller's outcome"),
    ("caller_not_compared", MACHINE,
     "    if (!same_digest(&record->caller, &op->caller) && !hapax__any(&record->caller))\n"
     "        return HAPAX_DIFFERS_CALLER;\n",
     "",
     "a stolen key yields another caller's outcome"),
    ("fingerprint_compared_before_the_caller", MACHINE,
     "    if (!same_digest(&record->caller, &op->caller) && !hapax__any(&record->caller))\n",
     "    if (!same_digest(&record->caller, &op->caller) &&\n"
     "        same_digest(&record->fingerprint, &op->fingerprint))\n",
     "another caller learns whether a guessed request is the right one"),
    ("fence_not_raised_on_takeover", MACHINE,
     "    next->fence = next_fence(next->fence, now_us);\n    hapax__mark(&next->mark, &op->token);",
     "    if (next->attempt == 1)\n        next->fence = next_fence(next->fence, now_us);\n"
     "    hapax__mark(&next->mark, &op->token);",
     "what the handler writes to cannot refuse the zombie"),
    ("attempt_reset_by_fail", MACHINE,
     "    next->ran = op->ran;\n    /* Where",
     "    next->ran = op->ran;\n    next->attempt = 0;\n    /* Where",
     "a failed record looks as if nothing was ever tried"),
    ("lease_judged_shorter_than_given", MACHINE,
     "now_us < record->lease_until_us;", "now_us + 5000 < record->lease_until_us;",
     "a live attempt is taken over"),
    ("complete_overwrites_the_stored_outcome", MACHINE,
     "    if (record->state == HAPAX_STATE_COMPLETED)\n        return say(op, HAPAX_OK, record);\n"
     "    if (record->state == HAPAX_STATE_FAILED)",
     "    if (record->state == HAPAX_STATE_FAILED)",
     "two clients see two outcomes"),
    ("completed_granted_again", MACHINE,
     "if (!record->reruns || !op->rerun_completed)", "if (!op->rerun_completed)",
     "a door for reads runs again what another completed for good"),
    ("hooks_no_leaves_stale", MACHINE,
     "    if (op->reconciled)\n        next->stale = false;", "",
     "the hook is asked for ever and the handler never runs"),
    ("attempts_max_forgets_deaths", MACHINE,
     "    next->stale = true;\n    next->spent++;\n    return grant(op, next, now_us);",
     "    next->stale = true;\n    return grant(op, next, now_us);",
     "a request that kills its handlers does so for ever"),
    ("death_undoes_hold", MACHINE, "    bool passes_on = op->died && !record->hold;",
     "    bool passes_on = op->died;",
     "what died under hold runs again"),
    ("death_waits_for_an_operator", MACHINE, "    bool passes_on = op->died && !record->hold;",
     "    bool passes_on = false;",
     "under rerun a crash is not repeated"),
    ("death_forgotten", MACHINE, "        next->stale |= passes_on;\n", "",
     "a hook is not asked about an attempt that died"),
    ("refusal_forgotten_at_once", MACHINE,
     "        kept_ms = hapax__least(kept_ms, HAPAX__REFUSED_KEPT_MS);",
     "        kept_ms = 0;",
     "a late copy of a CLAIM that was given back is granted, and nobody runs for it"),
    ("refusal_kept_for_its_retention", MACHINE,
     "        kept_ms = hapax__least(kept_ms, HAPAX__REFUSED_KEPT_MS);", "        ;",
     "requests that ran nothing fill the store"),
    ("refusal_stores_its_outcome", MACHINE,
     "next->outcome = op->ran || op->as_unknown ? op->outcome : (struct hapax_outcome){0};",
     "next->outcome = (struct hapax_outcome){.status = 500};",
     "what no answer shows fills the store"),
    ("failure_forgotten_as_a_refusal", MACHINE,
     "    return record->state == HAPAX_STATE_FAILED && !record->ran && record->spent == 0 &&\n",
     "    return record->state == HAPAX_STATE_FAILED && !record->ran &&\n",
     "a minute after a refusal an earlier attempt, which may have run, is forgotten"),
    # ---- stores
    ("purge_of_a_live_claim", STORE,
     "        write = hapax__swept(record, now_us, record);",
     "        write = now_us < record->created_us + record->retention_ms * MS ? HAPAX__KEEP : HAPAX__DELETE;",
     "retention counted from the beginning ends under a running handler"),
    ("expiry_of_what_is_unknown", MACHINE,
     "    if (next->state == HAPAX_STATE_UNKNOWN || (next->state == HAPAX_STATE_STARTED && "
     "next->hold) ||\n        is_unanswered(next) ||",
     "    if (is_unanswered(next) ||",
     "what an operator has to decide is forgotten and runs again"),
    ("sweep_of_a_live_claim", MACHINE,
     "!record->hold || lease_live(record, now_us))", "!record->hold)",
     "a claim under hold is unknown while its handler runs"),
    ("sweep_without_hold", MACHINE,
     "        (record->state != HAPAX_STATE_STARTED || !record->hold || lease_live",
     "        (record->state != HAPAX_STATE_STARTED || lease_live",
     "what was to run again waits for an operator"),
    # ---- the flow
    ("answer_before_storing", FLOW,
     "    ask_at(f, now_us);\n    if (f->answer.unprotected && !answered(f)) {",
     "    ask_at(f, now_us);\n    if (!answered(f) && !f->lost) {\n"
     "        f->answer.recorded = true;\n        f->answer.outcome = f->outcome;\n"
     "        give(f, f->end.answer);\n    }\n"
     "    if (f->answer.unprotected && !answered(f)) {",
     "a client sees what a retry contradicts"),
    ("timeout_of_a_save_read_as_done", FLOW,
     "    if (f->op.verdict == HAPAX_OK) {\n        told_saved_ok(f, now_us);",
     "    if (f->op.verdict == HAPAX_OK || f->op.error == HAPAX_ERR_INDETERMINATE) {\n"
     "        told_saved_ok(f, now_us);",
     "no reply is taken for yes"),
    ("timeout_read_as_a_lasting_error", FLOW,
     "    return error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_INDETERMINATE ||",
     "    return error == HAPAX_ERR_UNAVAILABLE ||",
     "an op without a reply is given up"),
    ("timeout_of_a_claim_read_as_absent", FLOW,
     "    f->ghost |= may_have_landed(f);\n    f->answer.error = error;",
     "    f->answer.error = error;",
     "a claim without a reply is forgotten"),
    ("ghost_claim_left_behind", FLOW,
     "        release(f, now_us);\n    } else",
     "        over(f, now_us);\n    } else",
     "a claim that landed after it was given up blocks its operation"),
    ("release_without_a_reply_given_up", FLOW,
     "    else if (passes(f))\n        save_again(f, now_us);\n"
     "    else\n        over",
     "    else\n        over",
     "the ghost's release is tried once"),
    ("zombies_own_answer_sent", FLOW,
     "    } else if (f->op.verdict == HAPAX_LOST) {\n        count_lost(f);\n"
     "        answer_from_record(f, now_us);\n"
     "    } else if (f->op.error == HAPAX_ERR_TOO_BIG",
     "    } else if (f->op.verdict == HAPAX_LOST) {\n        pass_on(f, now_us);\n"
     "    } else if (f->op.error == HAPAX_ERR_TOO_BIG",
     "two clients see two outcomes"),
    ("zombies_answer_sent_when_the_store_is_late", FLOW,
     "    if (f->lost) {\n        give_store_down",
     "    if (false) {\n        give_store_down",
     "who knows that the claim is lost still answers for it"),
    ("zombie_shown_another_requests_outcome", FLOW,
     "    enum hapax_state state = state_for(f, record);",
     "    enum hapax_state state = record->state;",
     "a forgotten record's id, used by another caller, yields that one's outcome"),
    ("waiter_stranded_by_a_fail", FLOW,
     "    ask_at(next, now_us);\n    hapax__waiters_wake(first);", "    (void)now_us;",
     "after a FAIL nobody of those who waited runs"),
    ("promoted_mate_never_asks", FLOW,
     "    ask_at(next, now_us);\n    hapax__waiters_wake(first);",
     "    hapax__waiters_wake(first);",
     "the next head is woken with nothing to do"),
    ("handler_on_a_lease_that_is_over", FLOW,
     "    if (now_us >= f->lease_us + lease_of(f) / 2) {", "    if (false) {",
     "a late reply starts a handler beside another"),
    ("handler_started_on_unknown", FLOW,
     "lost || (f->op.verdict == HAPAX_OK && f->op.record.state == HAPAX_STATE_UNKNOWN)",
     "lost",
     "a handler starts without a lease, where a hook may grant the next one at once"),
    ("hooks_no_for_any_attempt", FLOW,
     "    f->op.if_attempt = f->reconciled ? f->attempt : 0;\n", "",
     "a late RENEW clears `stale` of an attempt that the hook was not asked about"),
    ("attempt_not_compared_by_renew", MACHINE,
     "        return say(op, HAPAX_LOST, record);\n"
     "    if (op->if_attempt != 0 && op->if_attempt != record->attempt)\n"
     "        return say(op, HAPAX_LOST, record);\n    *next = *record;\n    if (op->reconciled)",
     "        return say(op, HAPAX_LOST, record);\n    *next = *record;\n    if (op->reconciled)",
     "the same, though the RENEW says which attempt it is of"),
    ("old_fence_after_a_late_grant", FLOW,
     "        take_record(f);\n        renewed(f);",
     "        f->op.record.fence = f->fence;\n        take_record(f);\n        renewed(f);",
     "the handler of a later attempt writes with an earlier one's fence"),
    ("hook_not_asked", FLOW,
     "    if (f->stale && on_expired(f) == HAPAX_EXPIRED_RECONCILE) {",
     "    if (false) {",
     "reconcile runs like rerun"),
    ("unsure_hook_runs_anyway", FLOW,
     "    } else if (cls == HAPAX_CLASS_NOT_RUN) {\n        f->reconciled = true;",
     "    } else if (cls != HAPAX_CLASS_FINAL) {\n        f->reconciled = true;",
     "who cannot tell is taken for no"),
    ("hooks_no_not_stored", FLOW,
     "    f->op.reconciled = f->reconciled;\n", "",
     "the hook is asked for ever"),
    ("unknown_class_stored_as_final", FLOW,
     "        if (f->died || on_expired(f) == HAPAX_EXPIRED_HOLD)\n"
     "            save_as(f, HAPAX_OP_FAIL, true, true, now_us);",
     "        if (true)\n            save_as(f, HAPAX_OP_COMPLETE, false, false, now_us);",
     "a timeout becomes the outcome of every repeat"),
    ("death_left_to_its_lease", FLOW,
     "        if (f->died || on_expired(f) == HAPAX_EXPIRED_HOLD)", "        if (on_expired(f) == HAPAX_EXPIRED_HOLD)",
     "the next caller waits for a process that is known to be dead"),
    ("unknown_taken_for_a_death", FLOW,
     "    f->op.died = f->died;", "    f->op.died = f->end.as_unknown;",
     "another attempt runs beside a handler that may still be writing"),
    ("failure_stored_as_not_run", FLOW,
     "            save_as(f, HAPAX_OP_FAIL, true, hapax__on_failed(f->policy) == HAPAX_FAILED_HOLD,\n"
     "                    now_us);",
     "            save_as(f, HAPAX_OP_FAIL, false, false, now_us);",
     "attempts_max never counts it, hold never holds it"),
    ("open_although_another_runs", FLOW,
     "OPEN && !hapax__flow_of(f->waiter.head)->seen &&\n        repeatable(error)",
     "OPEN && repeatable(error)",
     "a handler runs unprotected beside one that is known to run"),
    ("open_for_any_error", FLOW,
     "OPEN && !hapax__flow_of(f->waiter.head)->seen &&\n        repeatable(error)",
     "OPEN && !hapax__flow_of(f->waiter.head)->seen",
     "a damaged record runs the handler unprotected"),
    ("late_result_given_up", FLOW,
     "    f->answer.outcome = f->outcome;\n    give(f, f->end.answer);\n}",
     "    f->answer.outcome = f->outcome;\n    give(f, f->end.answer);\n"
     "    over(f, now_us);\n}",
     "what the client was given is never stored"),
    # ---- classes
    *class_rows(),
    ("hold_believes_all", CLASS, "bool trusts = policy->on_expired == HAPAX_EXPIRED_RERUN;",
     "bool trusts = policy->on_expired != HAPAX_EXPIRED_RECONCILE;",
     "hold has the rules of rerun"),
    ("reconcile_believes_all", CLASS, "bool trusts = policy->on_expired == HAPAX_EXPIRED_RERUN;",
     "bool trusts = policy->on_expired != HAPAX_EXPIRED_HOLD;",
     "reconcile has the rules of rerun"),
    ("failure_repeated_under_hold", CLASS, "HAPAX_EXPIRED_RERUN ? HAPAX_FAILED_RETRY",
     "HAPAX_EXPIRED_RERUN || policy->on_expired == HAPAX_EXPIRED_HOLD ? HAPAX_FAILED_RETRY",
     "a 500 after the effect is followed by another"),
    ("failure_repeated_under_reconcile", CLASS, "HAPAX_EXPIRED_RERUN ? HAPAX_FAILED_RETRY",
     "HAPAX_EXPIRED_RERUN || policy->on_expired == HAPAX_EXPIRED_RECONCILE ? HAPAX_FAILED_RETRY",
     "the hook is not asked after a 500"),
    ("header_not_asked_for", CLASS, "    return found.ptr && has_value(found, rule->value);",
     "    return !found.ptr || has_value(found, rule->value);",
     "a condition is taken for met"),
    # ---- the breaker
    ("breaker_never_closes", BREAKER, "    breaker->open = false;\n", "",
     "a store that is back is not asked"),
    ("breaker_opens_after_one", BREAKER, "++breaker->vain < 2", "++breaker->vain < 1",
     "one claim without an answer turns others away"),
    ("breaker_never_opens", BREAKER, "    breaker->open = true;\n", "",
     "each request waits for a dead store"),
    ("breaker_takes_slow_for_dead", BREAKER, "    if (breaker->heard_us >= begun_us)\n        return;\n", "",
     "a store that answers others meanwhile is not asked"),
    ("breaker_believes_for_ever", BREAKER,
     "    return breaker->open ? breaker->failed_us + HAPAX__DEAD_US : 0;", "    return breaker->open ? INT64_MAX : 0;",
     "after a quiet night the first requests are turned away by a store that lives"),
    ("every_claim_is_a_probe", BREAKER, "    if (now_us < breaker->probe_us)\n        return false;\n", "",
     "each request waits for a dead store, half a second"),
    ("prober_not_replaced", BREAKER, "now_us + HAPAX__PROBE_US;", "INT64_MAX;",
     "when the probe's client leaves nobody asks any more"),
    ("mate_waits_for_the_probe", FLOW,
     "    if (head != f || !hapax__breaker_probes(breaker, now_us))\n        return true;",
     "    if (head != f)\n        return false;\n    if (!hapax__breaker_probes(breaker, now_us))\n"
     "        return true;",
     "who asks what the probe asks waits with it"),
    ("breaker_eats_a_complete", FLOW,
     "    enter(f, HAPAX__FLOW_SAVING, answer_by(f, now_us));\n    ask_at(f, now_us);",
     "    enter(f, HAPAX__FLOW_SAVING, answer_by(f, now_us));\n    if (f->waiter.table->breaker.open) {\n"
     "        f->answer.outcome = f->outcome;\n        end_with(f, HAPAX_ANSWER_FRESH, now_us);\n"
     "        return;\n    }\n    ask_at(f, now_us);",
     "what ran while the store was dead is never stored"),
    ("breaker_ends_the_chase", FLOW,
     "    if (f->ask != HAPAX__ASK_OUT && !f->ghost) {\n        over(f, now_us);",
     "    if (f->ask != HAPAX__ASK_OUT && (!f->ghost || f->waiter.table->breaker.open)) {\n"
     "        over(f, now_us);",
     "a claim that landed as the store died is not given back"),
    ("unprotected_claim_that_landed_is_forgotten", FLOW,
     "    if (f->answer.unprotected && !f->ghost) {", "    if (f->answer.unprotected) {",
     "the operation runs again after its unprotected run, though its claim had landed"),
    ("unprotected_claim_that_lands_late_is_forgotten", FLOW,
     "        f->ghost |= f->op.kind == HAPAX_OP_CLAIM && f->op.error != HAPAX_ERR_UNAVAILABLE;\n",
     "        ;\n",
     "the same, where the claim's answer comes while the handler runs"),
    # ---- the waiters
    ("mates_of_another_request", WAITERS,
     "           memcmp(&x->fingerprint, &y->fingerprint, sizeof(x->fingerprint)) == 0 &&\n", "",
     "another request gets the head's answer"),
    ("mates_forgotten_by_the_next_head", WAITERS,
     "    TAILQ_CONCAT(&next->mates, &waiter->mates, mate);\n", "",
     "only one of those who waited is ever answered"),
]

# Of a move from store to store (tests/sim/move.c). tests/unit/test_pair.c has what needs several losses at once.
MOVES = [
    ("what_a_clock_ahead_wrote_is_not_listed", MACHINE,
     "    return op->older_ms > 0 ? now_us - op->older_ms * US_PER_MS : INT64_MAX;",
     "    return now_us - op->older_ms * US_PER_MS;",
     "a copy ends with 0, and the new store lacks an outcome"),
    ("claims_in_the_new_store_alone", PAIR,
     "        ask(p, HAPAX__HALF_OLD, HAPAX_OP_CLAIM, told_old_claim);",
     "        ask(p, HAPAX__HALF_NEW, HAPAX_OP_CLAIM, told_new_claim);",
     "a door with the old store runs the same"),
    ("claims_in_the_old_store_alone", PAIR,
     "        ask(p, HAPAX__HALF_NEW, HAPAX_OP_CLAIM, told_new_claim);\n    } else if",
     "        end(p, HAPAX_CLAIMED, &p->old);\n    } else if",
     "a door with the new store runs the same"),
    ("completed_in_the_old_store_is_shown", PAIR,
     "        begin_mirror(p);\n    } else if (p->sub.verdict == HAPAX_NO_VERDICT) {\n"
     "        end_error(p, p->sub.error, p->ours);",
     "        end(p, HAPAX_COMPLETED, &p->old);\n    } else if (p->sub.verdict == HAPAX_NO_VERDICT) {\n"
     "        end_error(p, p->sub.error, p->ours);",
     "an outcome is shown that the new store does not have"),
    ("a_death_is_not_mirrored_over", PAIR,
     "    p->sub.on_expired = on_expired;", "    p->sub.on_expired = HAPAX_EXPIRED_HOLD;",
     "an outcome that is known stays unknown in the new store"),
    ("stored_is_stored_in_one", PAIR,
     "        ask(p, HAPAX__HALF_NEW, HAPAX_OP_COMPLETE, told_new_completion);",
     "        end(p, HAPAX_OK, &p->old);\n        return;",
     "a completion is confirmed that the new store does not have"),
    ("no_reply_of_the_new_store_is_read_as_done", PAIR,
     "    if (p->sub.verdict == HAPAX_NO_VERDICT)\n        end_error(p, p->sub.error, true);\n"
     "    else if (p->sub.verdict == HAPAX_OK)\n        end(p, HAPAX_OK, &p->new);",
     "    if (p->sub.verdict == HAPAX_NO_VERDICT)\n        end(p, HAPAX_OK, &p->old);\n"
     "    else if (p->sub.verdict == HAPAX_OK)\n        end(p, HAPAX_OK, &p->new);",
     "a completion is confirmed that the new store may not have"),
    ("renews_in_the_old_store_alone", PAIR,
     "        ask(p, HAPAX__HALF_NEW, HAPAX_OP_RENEW, told_new_renewal);",
     "        end(p, HAPAX_OK, &p->old);\n        return;",
     "a door with the new store takes over from an attempt that runs"),
    ("lost_in_the_new_store_is_renewed", PAIR,
     "    } else if (p->sub.verdict == HAPAX_LOST) {\n        end(p, HAPAX_LOST, &p->new);\n    } else {",
     "    } else {",
     "an attempt goes on beside the one that took over"),
    ("stale_as_the_new_store_knows_it", PAIR, "    r->stale |= old->stale;\n", "",
     "a death under a door with the old store is not asked about"),
    ("copy_takes_any_record_for_the_same", PAIR,
     "    if (old->record.state == HAPAX_STATE_ABSENT || completed(new) ||",
     "    if (old->record.state == HAPAX_STATE_ABSENT || new->record.state != HAPAX_STATE_ABSENT ||",
     "what a door with the old store left is not known in the new one"),
    ("copy_does_not_look_at_the_past", PAIR,
     "    return (new->hold || !old->hold) && (new->stale || !old->stale) && new->spent >= old->spent &&\n"
     "           (new->resolved_us || !old->resolved_us) &&\n"
     "           (hapax__unbound(old) || (!hapax__unbound(new) && begun_with(old_shown, new_shown)));",
     "    return (old || new);",
     "a death that the old store knows of is forgotten"),
    ("copy_takes_any_claim_for_a_move_s", PAIR,
     "        return old->record.fence > (uint64_t)since_us && covers_past(old, new);",
     "        return covers_past(old, new);",
     "the claim of a door that was killed with the old store is not known in the new one"),
    ("copy_leaves_what_is_unknown", PAIR,
     "        return new->record.state == HAPAX_STATE_UNKNOWN;", "        return true;",
     "what waits for an operator runs in the new store"),
    ("a_claim_of_an_operator_s_is_a_word", PAIR,
     "           (p->op->resolve != HAPAX_RESOLVE_COMPLETE || completed(&p->new));", "           true;",
     "what an operator has completed, the new store does not have"),
    ("a_repeated_word_is_about_what_is_there", PAIR,
     "    } else if (repeats && !p->later && !begun_after(&p->new, &p->old, p->op->if_updated_us)) {",
     "    } else if (repeats) {",
     "an attempt is resolved that an operator has not seen"),
    ("a_repeated_word_is_about_what_began_before_it", PAIR,
     "    } else if (repeats && !p->later && !begun_after(&p->new, &p->old, p->op->if_updated_us)) {",
     "    } else if (repeats && !p->later) {",
     "an attempt is resolved that began after the operator had looked"),
    ("what_began_later_in_the_other_store_is_not_shown", PAIR,
     "    if (!live(best) && !completed(best) && begun_after", "    if (false && begun_after",
     "an attempt is resolved that began after the operator had looked"),
    ("a_word_is_lost_where_nothing_is_left_to_resolve", PAIR,
     "    else if (p->sub.verdict == HAPAX_OK || p->sub.verdict == HAPAX_ABSENT ||\n             p->op->resolve",
     "    else if (p->sub.verdict == HAPAX_OK ||\n             p->op->resolve",
     "an operator is told that a word is lost which stands"),
    ("what_a_copy_puts_late_is_a_later_attempt", PAIR,
     "    else if (!p->later || may_be_put(&p->old.record, &p->new.record))", "    else if (!p->later)",
     "an operator is told that a word is lost which stands"),
    ("a_repeated_outcome_is_lost", PAIR,
     "    else if (p->sub.verdict == HAPAX_OK || p->sub.verdict == HAPAX_ABSENT ||\n"
     "             p->op->resolve == HAPAX_RESOLVE_COMPLETE)\n        told_new_resolve",
     "    else if (p->sub.verdict == HAPAX_OK || p->sub.verdict == HAPAX_ABSENT)\n        told_new_resolve",
     "an operator is told that an outcome is lost which stands"),
    ("a_word_that_a_copy_has_put_is_lost", PAIR,
     "    else if (same_version(&p->old.record, &p->new.record))\n        end(p, HAPAX_OK, &p->new);\n", "",
     "an operator is told that a word is lost which stands"),
    ("copy_looks_once", PAIR,
     "    return old->state == HAPAX_STATE_ABSENT || old->created_us != put->created_us ||\n"
     "           old->resolved_us != put->resolved_us;",
     "    return old == put;",
     "what an operator has resolved is unknown in the new store"),
    ("copy_sees_no_forget", PAIR,
     "    return old->state == HAPAX_STATE_ABSENT || old->created_us != put->created_us ||\n"
     "           old->resolved_us",
     "    return old->resolved_us",
     "what an operator has forgotten is unknown in the new store"),
]

# Of a change of the secret: the same halves in one store, and no copy (tests/sim/move.c --rotation).
ROTATIONS = [
    ("asks_the_old_half_by_the_new_id", PAIR, "        p->sub.id = p->op->old->id;\n", "",
     "what a door with the old secret runs is not seen"),
    ("compares_the_old_half_with_the_new_request", PAIR,
     "        p->sub.fingerprint = p->op->old->fingerprint;\n", "",
     "a client of the old secret is told that it asks for something else"),
    ("shows_the_request_of_the_old_half", PAIR,
     "    rename_as(&record->fingerprint, &op->old->fingerprint, &op->fingerprint);\n", "",
     "an outcome of the old half is taken for another request's, and not brought over"),
    ("claims_under_the_new_secret_alone", PAIR,
     "        ask(p, HAPAX__HALF_OLD, HAPAX_OP_CLAIM, told_old_claim);",
     "        ask(p, HAPAX__HALF_NEW, HAPAX_OP_CLAIM, told_new_claim);",
     "a door with the old secret runs the same"),
    ("completes_under_the_old_secret_alone", PAIR,
     "        ask(p, HAPAX__HALF_NEW, HAPAX_OP_COMPLETE, told_new_completion);",
     "        end(p, HAPAX_OK, &p->old);\n        return;",
     "a door with the new secret runs it again"),
    ("a_look_brings_an_outcome_over", FLOW,
     "    make_read(f);\n    memset(&f->op.token, 0, sizeof(f->op.token));\n", "    make_read(f);\n",
     "what it claimed to bring an outcome over is run, and kept for as long as that outcome was"),
    ("nothing_is_left_while_something_waits", PAIR,
     "    if (hapax__expired(record, now_us))\n        return false;",
     "    if (record->expires_us <= now_us)\n        return false;",
     "what waits for an operator runs again"),
    ("nothing_is_left_that_was_written_since", PAIR,
     "    return record->created_us <= since_us + hapax__pair_together_us ||",
     "    return record->updated_us <= since_us + hapax__pair_together_us ||",
     "what a door with the old secret began, and one with both went on with, is known by half"),
    ("nothing_is_ever_left", PAIR,
     "    return record->created_us <= since_us + hapax__pair_together_us ||", "    return false &&",
     "a door with the new secret runs what one with the old secret has run"),
]

WORLD = ["effects", "fds", "play", "seeds", "store", "threads"]  # of the loops
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-O1", "-fno-strict-aliasing", "-w"]


def object_of(work, source):
    return f"{work}/{os.path.realpath(source)[1:-2].replace('/', '-')}.o"


def compile_source(root, source, output, include_dir, *flags):
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run(
        [*compiler, *FLAGS, "-include", f"{root}/src/base/poison.h", "-I", f"{root}/include",
         "-I", f"{root}/src", "-I", "/usr/include/postgresql", "-I", include_dir, *flags, "-c", source, "-o", output],
        check=True)


LIBRARIES = ["-lcrypto"]


def link(objects, output, libraries):
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run([*compiler, *objects, *libraries, "-o", output], check=True)


def loop_libraries(root, build, loop):
    """What a loop is linked with beside its own objects, which stand before."""
    packages = ["libcrypto", "libssl", "libpq", "libcurl", "librabbitmq", "rdkafka", "libmicrohttpd"]
    libraries = subprocess.run(["pkg-config", "--libs", *packages], stdout=subprocess.PIPE, text=True, check=True)
    wraps = [f"{root}/tests/sim/loops/wraps", f"{root}/tests/sim/loops/wraps_{loop}"]
    return [*[f"{build}/libhapax{name}.a" for name in ("-door", "-consume", "-lambda", "")],
            *libraries.stdout.split(), "-pthread", *[f"-Wl,@{wrap}" for wrap in wraps if os.path.exists(wrap)]]


def run_sim(sim, arguments):
    result = subprocess.run([sim, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            timeout=300, check=False)
    return re.search(r'^violation: (?:seed (\d+) )?rule "([^"]*)"', result.stdout, re.M)


def plant(text, old, new):
    """The text with the mistake. `TABLE…ROW`: the row of that table, of several that have it."""
    table, _, old = old.rpartition("…")
    begin = text.index(table) if text.count(table) == 1 or not table else len(text)
    end = text.find("\n}", begin) if table else len(text)
    part = text[begin:end]
    if part.count(old) != 1:
        raise ValueError(f"its text is there {part.count(old)} times, not once")
    return text[:begin] + part.replace(old, new) + text[end:]


def planted(root, mutant):
    """The source with the mistake, and why there is none."""
    _name, path, old, new, _why = mutant
    with open(f"{root}/{path}", encoding="utf-8") as file:
        text = file.read()
    try:
        return plant(text, old, new), None
    except ValueError as error:
        return None, f"{path}: {error}"


def try_mutant(root, work, objects, mutant, arguments, libraries):
    name, path = mutant[:2]
    source = f"{work}/{name}.c"
    mistaken, why_not = planted(root, mutant)
    if why_not:
        return name, None, why_not
    with open(source, "w", encoding="utf-8") as file:
        file.write(mistaken)
    compile_source(root, source, f"{work}/{name}.o", os.path.dirname(f"{root}/{path}"), "-O0")
    changed = object_of(work, f"{root}/{path}")
    link([o for o in objects if o != changed] + [f"{work}/{name}.o"], f"{work}/{name}.sim", libraries)
    try:
        found = run_sim(f"{work}/{name}.sim", arguments)
    except subprocess.TimeoutExpired:
        return name, None, "hangs; the simulator should have said so"
    if not found:
        return name, None, "no rule was broken"
    alone = [word for word in arguments if word == "--rotation"] + ["--first", found[1], "--schedules", "1"]
    if found[1] and run_sim(f"{work}/sim", alone):
        return name, None, f"seed {found[1]} breaks a rule without it, too"
    return name, (found[1], found[2]), None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--only")
    parser.add_argument("--schedules", type=int, default=2000000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--small")
    parser.add_argument("--move", action="store_true")
    parser.add_argument("--rotation", action="store_true")
    parser.add_argument("--loops", metavar="BUILD")
    parser.add_argument("--texts", action="store_true", help="only look whether each text is there once")
    args = parser.parse_args()
    if args.texts:
        every = sum(LOOPS.values(), MUTANTS + MOVES + ROTATIONS)
        sys.exit("\n".join(f"{m[0]}: {why}" for m in every if (why := planted(args.root, m)[1])) or None)
    core = [f"{args.root}/src/core/{n}.c" for n in CORE]
    here = f"{args.root}/tests/sim"
    if args.loops:
        plays = [([f"{here}/loops/{n}.c" for n in (name, *WORLD)], mutants,
                  ["--schedules", str(min(args.schedules, SCHEDULES[name]))], ["--schedules", "100"],
                  loop_libraries(args.root, args.loops, name)) for name, mutants in LOOPS.items()]
    elif args.small:
        plays = [(core + [f"{here}/{n}.c" for n in SMALL], MUTANTS, args.small.split(), args.small.split(), LIBRARIES)]
    elif args.move:
        plays = [(core + [f"{here}/{n}.c" for n in MOVE], MOVES, ["--schedules", str(args.schedules)],
                  ["--schedules", "2000"], LIBRARIES)]
    elif args.rotation:
        plays = [(core + [f"{here}/{n}.c" for n in MOVE], ROTATIONS,
                  ["--rotation", "--schedules", str(args.schedules)], ["--rotation", "--schedules", "2000"], LIBRARIES)]
    else:
        plays = [(core + [f"{here}/{n}.c" for n in SIM], MUTANTS, ["--schedules", str(args.schedules), "--jobs", "1"],
                  ["--schedules", "2000"], LIBRARIES)]
    chosen = survivors = 0
    for sources, mutants, arguments, few, libraries in plays:
        mutants = [m for m in mutants if args.only in (None, m[0])]
        chosen += len(mutants)
        survivors += play(args, sources, mutants, arguments, few, libraries) if mutants else 0
    print(f"{chosen - survivors} of {chosen} planted mistakes caught")
    return 1 if (survivors and not args.small) or not chosen else 0


def play(args, sources, mutants, arguments, few, libraries):
    """Plays each of the mistakes with one simulator; few: what finds nothing in the sources as they are."""
    survivors = 0
    with tempfile.TemporaryDirectory() as work, \
            concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        objects = [object_of(work, source) for source in sources]
        list(pool.map(lambda pair: compile_source(args.root, *pair, f"{args.root}/tests/sim"),
                      zip(sources, objects)))
        link(objects, f"{work}/sim", libraries)
        if run_sim(f"{work}/sim", few):
            sys.exit("the simulator finds a violation in the sources as they are")
        jobs = [pool.submit(try_mutant, args.root, work, objects, m, arguments, libraries)
                for m in mutants]
        for job in jobs:
            name, caught, why_not = job.result()
            if caught:
                print(f"caught   {name}: seed {caught[0]}, \"{caught[1]}\"", flush=True)
            else:
                survivors += 1
                print(f"SURVIVED {name}: {why_not}", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main())
