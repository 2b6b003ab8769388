/* SPDX-License-Identifier: Apache-2.0
 *
 * The consumer whose store goes away: nothing is taken, run or acknowledged that must not be, and it goes on by itself.
 */
#include "consume_bed.h"

/* Nothing is taken while the store is away, nothing runs, and it goes on by itself. */
static void a_store_that_is_away_stops_the_taking(void **state)
{
    struct hapax_consumer_stats stats;
    struct consume_bed bed;
    struct script script;

    (void)state;
    bed_script(&bed, &script, "F");
    bed.play.stop_when_done = true;
    bed.consumer.in_hand_max = 16;
    bed.consumer.policy.timeout_ms = 10;
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    publish_many(&bed, 0, 4);
    bed_start(&bed);
    bed_wait_log(&bed, "the store is away");
    publish_many(&bed, 4, 50);
    wait_until(bed_stats(&bed).answers[HAPAX_ANSWER_STORE_DOWN] >= 8);
    stats = bed_stats(&bed);
    assert_false(stats.store_up);
    assert_int_equal(stats.taken, 4);
    assert_int_equal(script.runs, 0);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed_join(&bed);
    assert_int_equal(script.runs, 50);
    assert_int_equal(bed.stats.acknowledged, 50);
    /* An answer of before may come after one that went through, and say it once more. */
    assert_int_equal(log_count(&bed, "the store is away"), log_count(&bed, "the store is back"));
    assert_true(log_count(&bed, "the store is away") <= bed.consumer.concurrency);
    bed_close(&bed);
}

/* A claim that went through says that the store is back, however long its handler then takes. */
static void a_store_that_is_back_is_seen_before_the_handler_ends(void **state)
{
    struct consume_bed bed;
    struct script script;

    (void)state;
    bed_script(&bed, &script, "F");
    script.gated = true;
    bed.play.stop_when_done = true;
    bed.consumer.policy.timeout_ms = 10;
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    publish_many(&bed, 0, 1);
    bed_start(&bed);
    bed_wait_log(&bed, "the store is away");
    publish_many(&bed, 1, 2);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    wait_for(&script.entered);
    wait_for(&script.entered);
    sem_post(&script.go);
    sem_post(&script.go);
    bed_join(&bed);
    assert_int_equal(bed.stats.acknowledged, 2);
    bed_close(&bed);
}

static enum hapax__fault fail_claims(void *arg, uint64_t number, const struct hapax_op *op)
{
    atomic_bool *away = arg;

    (void)number;
    return op->kind == HAPAX_OP_CLAIM && atomic_load(away) ? HAPAX__FAIL_BEFORE : HAPAX__NO_FAULT;
}

/* Store and broker go together, and leave a long handler: taking does not wait for its end. */
static void with_nobody_left_to_ask_the_store_taking_goes_on(void **state)
{
    struct consume_bed bed;
    struct script script;
    atomic_bool away = false;

    (void)state;
    bed_script(&bed, &script, "F");
    script.gated = true;
    bed.play.stop_when_done = true;
    bed.consumer.policy.timeout_ms = 10;
    bed.consumer.retry_min_ms = bed.consumer.retry_max_ms = 10000;
    hapax__plan_decide(&bed.plan, fail_claims, &away);
    publish_many(&bed, 0, 1);
    bed_start(&bed);
    wait_for(&script.entered);
    atomic_store(&away, true);
    publish_many(&bed, 1, 2);
    wait_until(bed_stats(&bed).retried > 0);
    play_cut(&bed.play);
    bed_wait_log(&bed, "the broker is away");
    wait_until(bed_stats(&bed).voided == 2);
    atomic_store(&away, false);
    wait_for(&script.entered);
    sem_post(&script.go);
    sem_post(&script.go);
    bed_join(&bed);
    assert_int_equal(script.runs, 2);
    assert_int_equal(bed.stats.acknowledged, 2);
    bed_close(&bed);
}

static void with_open_it_runs_unprotected_and_counts(void **state)
{
    struct consume_bed bed;
    struct script script;

    (void)state;
    bed_script(&bed, &script, "F");
    bed.consumer.policy.timeout_ms = 10;
    bed.consumer.policy.on_store_error = HAPAX_STORE_OPEN;
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    publish_many(&bed, 0, 20);
    bed_run(&bed);
    assert_int_equal(script.runs, 20);
    assert_int_equal(bed.stats.unprotected, 20);
    assert_int_equal(bed.stats.acknowledged, 20);
    assert_false(bed.stats.store_up);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed_close(&bed);
}

static enum hapax__fault fail_completes(void *arg, uint64_t number, const struct hapax_op *op)
{
    atomic_bool *away = arg;

    (void)number;
    return op->kind == HAPAX_OP_COMPLETE && atomic_load(away) ? HAPAX__FAIL_BEFORE
                                                              : HAPAX__NO_FAULT;
}

/* An outcome that is not stored is not acknowledged; and the handler is not run again for it. */
static void what_is_not_recorded_is_not_acknowledged(void **state)
{
    struct consume_bed bed;
    struct script script;
    atomic_bool away = true;

    (void)state;
    bed_script(&bed, &script, "F");
    bed.play.stop_when_done = true;
    bed.consumer.policy.save_wait_ms = 10;
    hapax__plan_decide(&bed.plan, fail_completes, &away);
    publish_many(&bed, 0, 1);
    bed_start(&bed);
    wait_until(bed_stats(&bed).answers[HAPAX_ANSWER_IN_FLIGHT] > 0);
    assert_int_equal(bed_stats(&bed).acknowledged, 0);
    assert_int_equal(play_count(&bed.play, "Q"), 1);
    atomic_store(&away, false);
    bed_join(&bed);
    assert_int_equal(script.runs, 1);
    assert_int_equal(bed.stats.answers[HAPAX_ANSWER_REPLAY], 1);
    assert_int_equal(bed.stats.acknowledged, 1);
    bed_close(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_that_is_away_stops_the_taking),
        cmocka_unit_test(a_store_that_is_back_is_seen_before_the_handler_ends),
        cmocka_unit_test(with_nobody_left_to_ask_the_store_taking_goes_on),
        cmocka_unit_test(with_open_it_runs_unprotected_and_counts),
        cmocka_unit_test(what_is_not_recorded_is_not_acknowledged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
