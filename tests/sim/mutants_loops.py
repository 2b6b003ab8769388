# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes in loops, played by mutants.py --loops: name, file, text, the mistake, what comes of it."""

DECIDE, DELIVERIES = "src/door/consume/decide.c", "src/door/consume/deliveries.c"
LOOP, HANDS, INHAND = "src/door/consume/loop.c", "src/door/consume/hands.c", "src/door/consume/inhand.c"
PULSE, LANE = "src/door/pulse.c", "src/lane/lane.c"

# Of the consumer (tests/sim/loops/consume.c).
CONSUME = [
    ("what_is_not_stored_is_acknowledged", DECIDE,
     "        if (r->ended->cls != HAPAX_CLASS_UNKNOWN && !r->ended->recorded)\n"
     "            return wait_shortly(r, HAPAX__WAIT_STORE);\n        return by_class(r);",
     "        return by_class(r);",
     "a message is gone, and its outcome with its process"),
    ("a_duplicate_in_flight_is_acknowledged", DECIDE,
     "    case HAPAX_ANSWER_IN_FLIGHT:\n        return in_flight(r);",
     "    case HAPAX_ANSWER_IN_FLIGHT:\n        return (struct hapax__decision){.act = HAPAX__ACT_ACK};",
     "the other attempt dies, and nobody runs the message"),
    ("a_lost_letter_is_taken_for_confirmed", DELIVERIES,
     "    if (sent == HAPAX__SENT_OK) {\n        count_letter",
     "    if (sent != HAPAX__SENT_REFUSED) {\n        count_letter",
     "a dead letter is nowhere"),
    ("a_refused_letter_is_given_up", DELIVERIES,
     "    if (sent == HAPAX__SENT_OK) {\n        count_letter",
     "    if (sent != HAPAX__SENT_LOST) {\n        count_letter",
     "a message is lost where its dead letters are not taken"),
    ("a_confirmed_letter_is_not_acknowledged", DELIVERIES,
     "        release(d, entry, HAPAX__RELEASE_ACK);\n        return;\n    }\n"
     "    entry->phase = HAPAX__PHASE_RESEND;",
     "        release(d, entry, HAPAX__RELEASE_RETURN);\n        return;\n    }\n"
     "    entry->phase = HAPAX__PHASE_RESEND;",
     "each delivery makes one more dead letter"),
    ("a_voided_delivery_is_sent_as_a_letter", DELIVERIES,
     "        if (entry->delivered->voided) {\n            pop(&d->to_send);",
     "        if (false) {\n            pop(&d->to_send);",
     "who has the message now handles it as well"),
    ("a_voided_delivery_is_released_twice", DELIVERIES,
     "        release(d, entry, HAPAX__RELEASE_RETURN);\n    else\n        act(d, entry, &decision);",
     "        release(d, entry, HAPAX__RELEASE_RETURN);\n    act(d, entry, &decision);",
     "the source frees it twice"),
    ("no_line_for_an_order", INHAND,
     "    if (entry->delivered->order.len > 0)\n        line_up", "    if (false)\n        line_up",
     "messages of an order run at once"),
    ("those_behind_a_returned_one_stay", DELIVERIES,
     "    bool back = how == HAPAX__RELEASE_RETURN && keeps_order;",
     "    bool back = how == HAPAX__RELEASE_RETURN && false;",
     "the message behind a postponed one runs before it"),
    ("taken_while_draining", DELIVERIES,
     "    return !d->draining && !d->store_away && !d->nobody;", "    return !d->store_away && !d->nobody;",
     "a drain takes work, and may not end"),
    ("taken_without_room", DELIVERIES,
     "    return takes(d) ? d->inhand.max - d->inhand.count : 0;", "    return takes(d) ? d->inhand.max : 0;",
     "more in hand than there are entries"),
    ("taken_though_the_broker_was_told_of_no_room", LOOP,
     "left = loop->had_room ? hapax__deliveries_room(&loop->deliveries) : 0; left > 0;",
     "left = hapax__deliveries_room(&loop->deliveries); left > 0;",
     "the source is asked for what it does not fetch"),
    ("deliveries_are_not_extended", LOOP,
     "#define EXTEND_US     (5000 * US_PER_MS)", "#define EXTEND_US     (50000 * US_PER_MS)",
     "a queue gives a message that is in hand to somebody else"),
    ("a_drain_leaves_what_waits", DELIVERIES,
     "    d->draining = true;\n    give_back_all(d, false);", "    d->draining = true;",
     "the end comes while a message waits"),
    ("what_waits_is_kept_while_draining", DELIVERIES,
     "    if (d->draining) {\n        release(d, entry, HAPAX__RELEASE_RETURN);\n        return;\n    }\n"
     "    if (entry->before.wait != why)",
     "    if (entry->before.wait != why)",
     "the end comes while a message waits"),
    ("a_drain_does_not_wait_for_handlers", LOOP,
     "    if (!loop->deliveries.draining || loop->deliveries.running > 0)", "    if (!loop->deliveries.draining)",
     "the memory of a message is freed while its handler runs"),
    ("given_up_one_attempt_early", DECIDE,
     "    if (used_up(r, attempts))", "    if (used_up(r, attempts + 1))",
     "a dead letter that had an attempt left"),
    ("an_unknown_message_is_acknowledged", DECIDE,
     "static struct hapax__decision unknown(const struct rule *r)\n{",
     "static struct hapax__decision unknown(const struct rule *r)\n{\n"
     "    return (struct hapax__decision){.act = HAPAX__ACT_ACK};",
     "nobody looks at what became of it"),
    ("parked_is_dead", DECIDE,
     "HAPAX_UNKNOWN_PARK ? HAPAX__ACT_PARK : HAPAX__ACT_DEAD",
     "HAPAX_UNKNOWN_PARK ? HAPAX__ACT_DEAD : HAPAX__ACT_PARK",
     "a redrive of dead letters runs what may have run"),
    ("a_mismatch_is_acknowledged", DECIDE,
     "        return give_up(HAPAX__ACT_DEAD, HAPAX__REASON_MISMATCH);",
     "        return (struct hapax__decision){.act = HAPAX__ACT_ACK};",
     "a message that reuses a key is lost"),
    ("a_refusal_is_believed_under_hold", DECIDE,
     "    if (is_unknown_now(r, hapax__on_failed(&r->consumer->policy) == HAPAX_FAILED_HOLD))\n"
     "        return result_unknown(r);\n    if (r->ended->refused)",
     "    if (r->ended->refused)",
     "a dead letter says failed, and the record is unknown"),
    ("a_lease_that_is_over_is_asked_for_at_once", DECIDE,
     "r->ended->retry_after_ms <= 0 ? lease_ms", "r->ended->retry_after_ms < 0 ? lease_ms",
     "while the store is away, each duplicate asks a thousand times a second"),
    ("answers_wake_the_loop_once", HANDS,
     "    if (none_done && !STAILQ_EMPTY(&hands->done))\n        wake_loop(hands);",
     "    if (none_done && STAILQ_EMPTY(&hands->done))\n        wake_loop(hands);",
     "the loop sleeps on answers"),
    ("a_hand_that_woke_is_still_being_woken", HANDS, "    hands->waking = false;\n", "",
     "no other hand is woken"),
    ("answers_are_told_of_before_they_are_taken", HANDS,
     "    if (read(hands->done_fd, &count, sizeof(count)) < 0)\n        assert(errno == EAGAIN);\n"
     "    pthread_mutex_lock(&hands->lock);\n    STAILQ_CONCAT(back, &hands->done);\n"
     "    pthread_mutex_unlock(&hands->lock);\n",
     "    pthread_mutex_lock(&hands->lock);\n    STAILQ_CONCAT(back, &hands->done);\n"
     "    pthread_mutex_unlock(&hands->lock);\n"
     "    if (read(hands->done_fd, &count, sizeof(count)) < 0)\n        assert(errno == EAGAIN);\n",
     "an answer that comes between the two is never seen"),
    ("the_inbox_is_cleared_after_it_was_read", PULSE,
     "    if (read(pulse->inbox_fd, &count, sizeof(count)) < 0)\n        assert(errno == EAGAIN);\n"
     "    pthread_mutex_lock(&pulse->lock);\n    call = STAILQ_FIRST(&pulse->inbox);",
     "    pthread_mutex_lock(&pulse->lock);\n    call = STAILQ_FIRST(&pulse->inbox);\n"
     "    pthread_mutex_unlock(&pulse->lock);\n"
     "    if (read(pulse->inbox_fd, &count, sizeof(count)) < 0)\n        assert(errno == EAGAIN);\n"
     "    pthread_mutex_lock(&pulse->lock);",
     "a call that begins between the two is dropped"),
    ("an_end_does_not_wake_the_pulse", PULSE,
     "    STAILQ_INSERT_TAIL(&pulse->inbox, call, next);\n    pthread_mutex_unlock(&pulse->lock);\n    if (first)",
     "    STAILQ_INSERT_TAIL(&pulse->inbox, call, next);\n    pthread_mutex_unlock(&pulse->lock);\n    if (!first)",
     "an outcome is stored when something else happens"),
    ("the_lane_does_not_wake_for_a_job", LANE,
     "    if (taken && !lane->here && can_judge(lane))\n", "    if (taken && !lane->here && false)\n",
     "an op is never judged"),
]

# By the program of tests/sim/loops that plays them.
LOOPS = {"consume": CONSUME}
