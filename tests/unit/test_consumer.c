/* SPDX-License-Identifier: Apache-2.0
 *
 * The consumer on a played broker: what becomes of messages, of letters, and of both when broker,
 * sink or consumer stop in the midst. test_consumer_store.c has what becomes of them when the store
 * does.
 */
#include "../cases.h"
#include "consume_bed.h"

#include <sys/eventfd.h>

/* ---- done with ----------------------------------------------------------------------- */

/* The same key twice: one run, two acknowledgements. */
CASE(a_duplicate_is_acknowledged_and_not_run)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    for (int i = 0; i < 10; i++)
        play_publish(&bed.play, i, "same", NULL, "body");
    bed_run(&bed);
    assert_int_equal(script.runs, 1);
    assert_int_equal(bed.stats.acknowledged, 10);
    assert_int_equal(bed.stats.answers[HAPAX_ANSWER_FRESH], 1);
    assert_int_equal(bed.stats.answers[HAPAX_ANSWER_REPLAY], 9);
    assert_int_equal(bed.stats.run, 1);
    bed_close(&bed);
}

/* A message that waits for its duplicate asks again when the duplicate is done, not when the lease
 * is over. */
CASE(a_duplicate_in_flight_is_woken_when_the_other_is_done)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    script.gated = true;
    bed.play.stop_when_done = true;
    bed.consumer.policy.lease_ms = 60000;
    play_publish(&bed.play, 1, "same", NULL, "body");
    play_publish(&bed.play, 2, "same", NULL, "body");
    bed_start(&bed);
    wait_for(&script.entered);
    wait_until(bed_stats(&bed).answers[HAPAX_ANSWER_IN_FLIGHT] > 0);
    sem_post(&script.go);
    bed_join(&bed);
    assert_int_equal(script.runs, 1);
    assert_int_equal(bed.stats.acknowledged, 2);
    bed_close(&bed);
}

/* ---- failed -------------------------------------------------------------------------- */

static void expect_header(const struct play_message *letter, const char *name, const char *value)
{
    assert_string_equal(play_value(letter, name), value);
}

/* Two retries by way of the broker, with their count; then the dead letter says all of it. */
CASE(a_failed_message_goes_round_and_then_to_the_dead_letters)
{
    struct consume_bed bed;
    struct script script;
    struct play_message *letter;

    bed_script(&bed, &script, "f");
    script.status = 500;
    bed_run_one(&bed);
    assert_int_equal(script.runs, 3);
    expect_header(play_letter(&bed.play, "Q", 1), "hapax-attempts", "1");
    expect_header(play_letter(&bed.play, "Q", 2), "hapax-attempts", "2");
    expect_header(play_letter(&bed.play, "Q", 2), "hapax-base", "0");
    expect_header(play_letter(&bed.play, "Q", 2), "hapax-reason", "");
    assert_true(play_letter(&bed.play, "Q", 1)->delay_ms > 0);
    letter = play_letter(&bed.play, "Q.dead", 0);
    assert_non_null(letter);
    expect_header(letter, "hapax-attempts", "3");
    expect_header(letter, "hapax-base", "3");
    expect_header(letter, "hapax-reason", "failed");
    expect_header(letter, "hapax-error", "all attempts failed, the last with status 500");
    expect_header(letter, "hapax-from", "Q");
    expect_header(letter, "hapax-scope", "Q");
    expect_header(letter, "Idempotency-Key", "k");
    assert_true(strlen(play_value(letter, "hapax-time")) == 16);
    assert_string_equal(letter->body, "body");
    assert_int_equal(bed.stats.dead_lettered, 1);
    assert_int_equal(bed.stats.retried, 2);
    assert_int_equal(bed.stats.acknowledged, 0);
    bed_close(&bed);
}

/* Put back after a fix, it is no duplicate of the one that failed; nor after a second failure. */
CASE(a_dead_letter_put_back_runs_again)
{
    struct consume_bed bed;
    struct script script;
    struct play_message *letter;

    bed_script(&bed, &script, "fffffFf");
    bed.consumer.policy.attempts_max = 2;
    bed_run_one(&bed);
    assert_int_equal(script.runs, 2);
    letter = play_letter(&bed.play, "Q.dead", 0);
    play_put_back(&bed.play, letter);
    bed_run(&bed);
    assert_int_equal(script.runs, 4);
    letter = play_letter(&bed.play, "Q.dead", 0);
    expect_header(letter, "hapax-attempts", "2");
    expect_header(letter, "hapax-base", "4");
    play_put_back(&bed.play, letter);
    bed_run(&bed);
    assert_int_equal(script.runs, 6);
    assert_int_equal(bed.stats.acknowledged, 1);
    assert_int_equal(play_count(&bed.play, "Q.dead"), 0);
    bed_close(&bed);
}

/* The count in the headers is foreign bytes: what is none counts as none, and nothing is lost by
 * it. */
CASE(headers_that_hold_garbage_count_as_none)
{
    static const char *const garbage[] = {"-1",  "4294967297", "99999999999999999999",
                                          "1e3", "",           "\xff\xfe"};
    struct consume_bed bed;
    struct script script;

    for (size_t i = 0; i < sizeof(garbage) / sizeof(garbage[0]); i++) {
        struct play_message *message;

        bed_script(&bed, &script, "f");
        message = play_publish(&bed.play, 1, "k", NULL, "body");
        play_header(message, "hapax-attempts", garbage[i]);
        play_header(message, "hapax-base", garbage[i]);
        bed_run(&bed);
        assert_int_equal(script.runs, 3);
        expect_header(play_letter(&bed.play, "Q.dead", 0), "hapax-base", "3");
        bed_close(&bed);
    }
}

/* A handler's process that dies each time is counted by the record, which no header can do. */
CASE(attempts_that_died_are_counted_by_the_record)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "u");
    bed.consumer.policy.lease_ms = bed.consumer.policy.run_max_ms = 100;
    bed_run_one(&bed);
    assert_int_equal(script.runs, 3);
    expect_header(play_letter(&bed.play, "Q.dead", 0), "hapax-reason", "failed");
    bed_close(&bed);
}

/* What did not run is no part of hapax-base: put back, a message that kills its handlers is given
 * up as soon. */
CASE(a_dead_letter_put_back_has_the_attempts_of_a_new_one)
{
    struct consume_bed bed;
    struct script script;
    struct play_message *letter;

    bed_script(&bed, &script, "nnnnnnnnnnfffu");
    bed.consumer.policy.lease_ms = bed.consumer.policy.run_max_ms = 100;
    bed_run_one(&bed);
    assert_int_equal(script.runs, 13);
    letter = play_letter(&bed.play, "Q.dead", 0);
    expect_header(letter, "hapax-base", "3");
    play_put_back(&bed.play, letter);
    bed_run(&bed);
    assert_int_equal(script.runs, 16);
    expect_header(play_letter(&bed.play, "Q.dead", 0), "hapax-base", "6");
    expect_header(play_letter(&bed.play, "Q.dead", 0), "hapax-reason", "failed");
    bed_close(&bed);
}

CASE(a_refused_message_is_dead_at_once)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "r");
    bed_run_one(&bed);
    assert_int_equal(script.runs, 1);
    expect_header(play_letter(&bed.play, "Q.dead", 0), "hapax-reason", "refused");
    expect_header(play_letter(&bed.play, "Q.dead", 0), "hapax-error", "no such customer");
    expect_header(play_letter(&bed.play, "Q.dead", 0), "hapax-attempts", "1");
    bed_close(&bed);
}

/* With on_failed=hold its record is unknown, and a letter that says `refused` would be put back in
 * vain. */
CASE(a_refused_message_is_parked_under_hold)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "r");
    bed.consumer.policy.on_failed = HAPAX_FAILED_HOLD;
    bed_run_one(&bed);
    assert_int_equal(script.runs, 1);
    assert_int_equal(play_count(&bed.play, "Q.dead"), 0);
    expect_header(play_letter(&bed.play, "Q.parked", 0), "hapax-reason", "unknown");
    expect_header(play_letter(&bed.play, "Q.parked", 0), "hapax-error", "no such customer");
    bed_close(&bed);
}

/* ---- not asked for -------------------------------------------------------------------- */

CASE(what_cannot_be_asked_for_is_a_dead_letter)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    bed.consumer.concurrency = 1;
    play_publish(&bed.play, 1, "k", NULL, "body");
    play_publish(&bed.play, 2, "k", NULL, "another body");
    play_publish(&bed.play, 3, NULL, NULL, "body");
    play_publish(&bed.play, 4, "a,b", NULL, "body");
    bed_run(&bed);
    assert_int_equal(script.runs, 1);
    expect_header(play_letter(&bed.play, "Q.dead", 0), "hapax-reason", "mismatch");
    expect_header(play_letter(&bed.play, "Q.dead", 1), "hapax-reason", "no_key");
    expect_header(play_letter(&bed.play, "Q.dead", 2), "hapax-reason", "bad_key");
    assert_int_equal(bed.stats.dead_lettered, 3);
    bed_close(&bed);
}

CASE(no_key_may_be_rejected_or_run)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    bed.consumer.no_key = HAPAX_NO_KEY_REJECT;
    play_publish(&bed.play, 1, NULL, NULL, "body");
    bed_run(&bed);
    assert_int_equal(script.runs, 0);
    assert_int_equal(bed.play.rejected, 1);
    bed.consumer.no_key = HAPAX_NO_KEY_RUN;
    play_publish(&bed.play, 2, NULL, NULL, "body");
    bed_run(&bed);
    assert_int_equal(script.runs, 1);
    assert_int_equal(bed.stats.unprotected, 1);
    bed_close(&bed);
}

CASE(an_unknown_fate_is_parked)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "u");
    bed.consumer.policy.on_expired = HAPAX_EXPIRED_HOLD;
    bed_run_one(&bed);
    play_publish(&bed.play, 2, "k", NULL, "body");
    bed_run(&bed);
    assert_int_equal(script.runs, 1);
    assert_int_equal(play_count(&bed.play, "Q.parked"), 2);
    expect_header(play_letter(&bed.play, "Q.parked", 1), "hapax-reason", "unknown");
    bed_close(&bed);
}

/* ---- keys ---------------------------------------------------------------------------- */

/* key_min is about the key that the producer chose, and not about the longer one that a step makes
 * of it. */
CASE(a_short_key_is_refused_whatever_its_step)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    bed.consumer.policy.key_min = 8;
    bed.consumer.step = "process-payment";
    play_publish(&bed.play, 1, "1234567", NULL, "body");
    play_publish(&bed.play, 2, "12345678", NULL, "body");
    bed_run(&bed);
    assert_int_equal(script.runs, 1);
    assert_int_equal(bed.stats.answers[HAPAX_ANSWER_BAD_KEY], 1);
    assert_int_equal(log_count(&bed, "its key has fewer than 8 bytes"), 1);
    bed_close(&bed);
}

/* ---- nobody listens ------------------------------------------------------------------- */

struct listener { /* not there until told */
    struct script *script;
    atomic_bool there;
    atomic_uint asked;
};

static enum hapax_class listen(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                               void *arg)
{
    struct listener *listener = arg;

    (void)attempt, (void)delivery;
    atomic_fetch_add(&listener->asked, 1);
    return atomic_load(&listener->there) ? HAPAX_CLASS_FINAL : HAPAX_CLASS_NOT_RUN;
}

/* A handler that is away stops the taking, and the queue is not stirred: no letters, no
 * attempts. */
CASE(a_handler_that_is_away_stops_the_taking)
{
    struct listener listener = {0};
    struct consume_bed bed;

    bed_open(&bed, listen, &listener);
    bed.play.stop_when_done = true;
    bed.consumer.in_hand_max = 8;
    publish_many(&bed, 0, 5);
    bed_start(&bed);
    bed_wait_log(&bed, "takes no messages");
    publish_many(&bed, 5, 100);
    wait_until(atomic_load(&listener.asked) >= 100);
    assert_int_equal(bed_stats(&bed).taken, 5);
    assert_int_equal(play_count(&bed.play, "Q"), 100);
    atomic_store(&listener.there, true);
    bed_join(&bed);
    assert_int_equal(bed.stats.acknowledged, 100);
    assert_int_equal(bed.play.letters_most, 0);
    assert_int_equal(log_count(&bed, "takes no messages"), 1);
    assert_int_equal(log_count(&bed, "takes messages again"), 1);
    bed_close(&bed);
}

/* ---- order ------------------------------------------------------------------------------ */

struct trace {
    pthread_mutex_t lock;
    char text[256]; /* the bodies, as run */
    sem_t b_done;
};

static enum hapax_class trace_run(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                                  void *arg)
{
    const struct hapax_span body = hapax_delivery_message(delivery)->body;
    struct trace *trace = arg;
    size_t used;

    pthread_mutex_lock(&trace->lock);
    used = strlen(trace->text);
    snprintf(trace->text + used, sizeof(trace->text) - used, "%.*s ", (int)body.len,
             (const char *)body.ptr);
    pthread_mutex_unlock(&trace->lock);
    if (body.ptr[0] == 'b') {
        sem_post(&trace->b_done);
        return HAPAX_CLASS_FINAL;
    }
    if (body.ptr[1] == '1' && hapax_attempt_number(attempt) == 1)
        wait_for(&trace->b_done); /* another order goes on meanwhile */
    return body.ptr[1] == '1' && hapax_attempt_number(attempt) < 3 ? HAPAX_CLASS_FAILED
                                                                   : HAPAX_CLASS_FINAL;
}

/* Tried again, a message keeps those of its order behind it, and no others. */
CASE(retries_keep_the_order_of_a_key_and_let_others_go_on)
{
    struct trace trace = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct consume_bed bed;

    sem_init(&trace.b_done, 0, 0);
    bed_open(&bed, trace_run, &trace);
    bed.play.type.delays = false;
    bed.play.type.orders = HAPAX_ORDER_KEY;
    play_publish(&bed.play, 1, "k1", "a", "a1");
    play_publish(&bed.play, 2, "k2", "a", "a2");
    play_publish(&bed.play, 3, "k3", "a", "a3");
    play_publish(&bed.play, 4, "k4", "b", "b1");
    bed_run(&bed);
    assert_int_equal(bed.stats.acknowledged, 4);
    assert_non_null(strstr(trace.text, "a1 a1 a2 a3 "));
    assert_true(strstr(trace.text, "b1") < strstr(trace.text, "a2"));
    assert_int_equal(bed.play.letters_most, 0);
    bed_close(&bed);
}

/* ---- the broker takes back ------------------------------------------------------------------ */

/* What runs when the connection is lost is not run again; what has not begun is let go at once. */
CASE(a_lost_connection_repeats_nothing)
{
    struct consume_bed bed;
    struct script script;
    char key[16];

    bed_script(&bed, &script, "F");
    script.gated = true;
    bed.play.stop_when_done = true;
    bed.consumer.concurrency = 2;
    bed.consumer.in_hand_max = 8;
    for (int i = 0; i < 8; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        play_publish(&bed.play, i, key, NULL, "body");
    }
    bed_start(&bed);
    wait_for(&script.entered);
    wait_for(&script.entered);
    play_cut(&bed.play);
    bed_wait_log(&bed, "the broker is away");
    wait_until(bed_stats(&bed).taken >= 8 + 6);
    for (int i = 0; i < 8; i++)
        sem_post(&script.go);
    bed_join(&bed);
    assert_int_equal(script.runs, 8);
    assert_int_equal(bed.stats.voided, 8);
    assert_int_equal(bed.stats.acknowledged, 8);
    bed_close(&bed);
}

CASE(a_queue_that_is_gone_ends_the_run)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    bed.play.gone = true;
    bed_start(&bed);
    bed_join(&bed);
    assert_int_equal(bed.error, HAPAX_ERR_REFUSED);
    assert_string_equal(bed.text, "no queue \"Q\"");
    bed_close(&bed);
}

/* ---- letters -------------------------------------------------------------------------- */

/* Refused or lost, a letter is sent again and its message kept; the log says it once. */
CASE(a_letter_refused_or_lost_is_sent_again)
{
    struct consume_bed bed;
    struct script script;
    unsigned dead = 0;

    bed_script(&bed, &script, "r");
    bed.play.chances = (struct play_chances){.refused = 300, .lost = 200, .lost_published = 200};
    publish_many(&bed, 0, 10);
    bed_run(&bed);
    assert_int_equal(bed.stats.dead_lettered, 10);
    dead = play_count(&bed.play, "Q.dead");
    assert_true(dead >= 10);
    assert_int_equal(log_count(&bed, "are refused"), log_count(&bed, "are taken again"));
    bed_close(&bed);
}

/* ---- the end -------------------------------------------------------------------------- */

/* Stopped with a full hand: what runs ends and is acknowledged, what has not begun is given
 * back. */
CASE(stopped_it_drains_and_gives_the_rest_back)
{
    struct hapax_consumer_stats stats;
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    script.gated = true;
    bed.consumer.concurrency = 2;
    bed.consumer.in_hand_max = 8;
    publish_many(&bed, 0, 20);
    bed_start(&bed);
    wait_for(&script.entered);
    wait_for(&script.entered);
    play_stop(&bed.play);
    bed_wait_log(&bed, "stopping");
    wait_until(bed_stats(&bed).returned >= 6);
    stats = bed_stats(&bed);
    assert_true(stats.draining);
    assert_int_equal(stats.in_hand, 2);
    sem_post(&script.go);
    sem_post(&script.go);
    bed_join(&bed);
    assert_int_equal(bed.error, HAPAX_ERR_NONE);
    assert_int_equal(script.runs, 2);
    assert_int_equal(bed.stats.acknowledged, 2);
    assert_int_equal(bed.stats.returned, 6);
    assert_int_equal(play_count(&bed.play, "Q"), 18);
    bed_close(&bed);
}

/* What is held for a retry, or behind it in its order, does not delay the end. */
CASE(stopped_it_waits_for_no_pause)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "f");
    bed.play.type.delays = false;
    bed.play.type.orders = HAPAX_ORDER_KEY;
    bed.consumer.retry_min_ms = bed.consumer.retry_max_ms = 3600000;
    play_publish(&bed.play, 1, "a", "o", "body");
    play_publish(&bed.play, 2, "b", "o", "body");
    bed_start(&bed);
    wait_until(bed_stats(&bed).retried > 0);
    play_stop(&bed.play);
    bed_join(&bed);
    assert_int_equal(bed.stats.returned, 2);
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
}

/* Who waits for another's attempt holds the end up for drain_ms at most. */
CASE(stopped_it_waits_for_no_other_attempt)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "u");
    bed.consumer.policy.lease_ms = 3600000;
    bed.consumer.policy.wait_ms = 3600000;
    bed.consumer.in_flight = HAPAX_IN_FLIGHT_WAIT;
    bed.consumer.drain_ms = 1;
    play_publish(&bed.play, 1, "same", NULL, "body");
    bed_start(&bed);
    wait_until(bed_stats(&bed).answers[HAPAX_ANSWER_FRESH] > 0);
    play_publish(&bed.play, 2, "same", NULL, "body");
    wait_until(bed_stats(&bed).answers[HAPAX_ANSWER_IN_FLIGHT] > 0);
    play_stop(&bed.play);
    bed_join(&bed);
    assert_int_equal(script.runs, 1);
    assert_int_equal(play_count(&bed.play, "Q"), 2);
    bed_close(&bed);
}

CASE(after_the_drain_handlers_are_told_to_hurry)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    script.hurries = true;
    bed.consumer.drain_ms = 1;
    publish_many(&bed, 0, 1);
    bed_start(&bed);
    wait_until(atomic_load(&script.runs) > 0);
    play_stop(&bed.play);
    bed_join(&bed);
    assert_int_equal(bed.stats.acknowledged, 1);
    bed_close(&bed);
}

/* A sink that never tells keeps nobody for ever: the message stays with the broker. */
CASE(letters_never_confirmed_are_given_up_at_the_end)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "r");
    bed.play.chances.late = 1000;
    bed.consumer.drain_ms = 0;
    publish_many(&bed, 0, 3);
    bed_start(&bed);
    wait_until(bed_stats(&bed).answers[HAPAX_ANSWER_FRESH] >= 3);
    play_stop(&bed.play);
    bed_join(&bed);
    assert_int_equal(play_count(&bed.play, "Q"), 3);
    assert_int_equal(bed.stats.dead_lettered, 0);
    assert_int_equal(log_count(&bed, "3 letters not confirmed"), 1);
    bed_close(&bed);
}

/* ---- told from outside ---------------------------------------------------------------- */

/* However often it connects. */
CASE(the_first_connection_is_told_once)
{
    struct consume_bed bed;
    struct script script;
    uint64_t count = 0;

    bed_script(&bed, &script, "F");
    bed.consumer.ready_fd = eventfd(0, EFD_NONBLOCK);
    must(bed.consumer.ready_fd >= 0);
    bed_start(&bed);
    wait_until(bed_stats(&bed).connected);
    play_cut(&bed.play);
    bed_wait_log(&bed, "the broker is away");
    wait_until(bed_stats(&bed).connected);
    play_stop(&bed.play);
    bed_join(&bed);
    assert_int_equal(read(bed.consumer.ready_fd, &count, sizeof(count)), sizeof(count));
    assert_int_equal(count, 1);
    close(bed.consumer.ready_fd);
    bed_close(&bed);
}

CASE(requeue_warns_of_delivery_limits)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    bed_run_one(&bed);
    assert_int_equal(log_count(&bed, "delivery limit"), 0);
    bed.consumer.in_flight = HAPAX_IN_FLIGHT_REQUEUE;
    bed_run_one(&bed);
    assert_int_equal(log_count(&bed, "delivery limit"), 1);
    bed_close(&bed);
}

/* ---- settings ------------------------------------------------------------------------- */

static void refuse(const struct hapax_consumer *like, size_t at, int64_t value, size_t size,
                   enum hapax_error error, const char *part)
{
    struct hapax_consumer consumer = *like;
    char text[HAPAX_TEXT_MAX];

    memcpy((char *)&consumer + at, &value, size);
    assert_int_equal(hapax_consumer_check(&consumer, text), error);
    assert_non_null(strstr(text, part));
}

#define REFUSE(field, value, error, part)                                                          \
    refuse(&bed.consumer, offsetof(struct hapax_consumer, field), (int64_t)(value),                \
           sizeof(bed.consumer.field), error, part)

CASE(settings_that_cannot_be_are_named)
{
    struct consume_bed bed;
    char text[HAPAX_TEXT_MAX];

    bed_open(&bed, play_script, NULL);
    assert_int_equal(hapax_consumer_check(&bed.consumer, text), HAPAX_ERR_NONE);
    REFUSE(from, (intptr_t) "", HAPAX_ERR_INVALID, "from");
    REFUSE(from, (intptr_t) "smtp://h", HAPAX_ERR_UNSUPPORTED, "\"smtp\"");
    REFUSE(policy.on_failed, HAPAX_FAILED_REPLAY, HAPAX_ERR_INVALID, "on_failed");
    REFUSE(policy.lease_ms, 1, HAPAX_ERR_INVALID, "lease");
    REFUSE(no_key, 9, HAPAX_ERR_INVALID, "no_key");
    REFUSE(in_flight, 0, HAPAX_ERR_INVALID, "in_flight");
    REFUSE(in_flight, HAPAX_IN_FLIGHT_WAIT, HAPAX_ERR_INVALID, "wait");
    REFUSE(unknown, 7, HAPAX_ERR_INVALID, "unknown");
    REFUSE(order, 8, HAPAX_ERR_INVALID, "order");
    REFUSE(order, HAPAX_ORDER_KEY, HAPAX_ERR_UNSUPPORTED, "order");
    REFUSE(retry_min_ms, 0, HAPAX_ERR_INVALID, "retry");
    REFUSE(retry_max_ms, 0, HAPAX_ERR_INVALID, "retry");
    REFUSE(drain_ms, -1, HAPAX_ERR_INVALID, "drain");
    REFUSE(concurrency, 0, HAPAX_ERR_INVALID, "concurrency");
    REFUSE(concurrency, 1025, HAPAX_ERR_INVALID, "concurrency");
    REFUSE(in_hand_max, 3, HAPAX_ERR_INVALID, "in_hand_max");
    REFUSE(in_hand_max, 65536, HAPAX_ERR_INVALID, "in_hand_max");
    REFUSE(dead_letters, (intptr_t) "", HAPAX_ERR_INVALID, "dead_letters");
    REFUSE(dead_letters, (intptr_t) "Q", HAPAX_ERR_INVALID, "dead_letters");
    REFUSE(parked, (intptr_t) "Q", HAPAX_ERR_INVALID, "parked");
#ifndef __SANITIZE_THREAD__ /* it knows nothing of librdkafka's threads, which thrd_create() made */
    bed.consumer.from = "kafka://localhost/T?group=g";
    REFUSE(dead_letters, (intptr_t) "T", HAPAX_ERR_INVALID, "dead_letters");
    bed.consumer.from = "played:Q";
#endif
    bed.play.type.orders = HAPAX_ORDER_KEY;
    REFUSE(in_flight, HAPAX_IN_FLIGHT_REQUEUE, HAPAX_ERR_UNSUPPORTED, "overtake");
    bed.play.type.orders = HAPAX_ORDER_NONE;
    bed.play.type.rejects = false;
    REFUSE(no_key, HAPAX_NO_KEY_REJECT, HAPAX_ERR_UNSUPPORTED, "no_key");
    bed.consumer.policy.on_expired = HAPAX_EXPIRED_RECONCILE;
    assert_int_equal(hapax_consumer_run(bed.h, &bed.consumer, play_script, NULL, NULL, NULL, text),
                     HAPAX_ERR_INVALID);
    bed_close(&bed);
}
