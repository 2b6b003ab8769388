/* SPDX-License-Identifier: Apache-2.0
 *
 * The consumer whose store goes away: nothing is taken, run or acknowledged that must not be, and
 * it goes on by itself. And what its handler keeps there of its own: steps.
 */
#include "../cases.h"
#include "ahead.h"
#include "consume_bed.h"
#include "core/breaker.h"
#include "store/types.h"

/* Nothing is taken while the store is away, nothing runs, and it goes on by itself. */
CASE(a_store_that_is_away_stops_the_taking)
{
    struct hapax_consumer_stats stats;
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    bed.play.stop_when_done = true;
    bed.consumer.in_hand_max = 16;
    bed.consumer.policy.timeout_ms =
        1000; /* a claim that takes longer says once more that the store is away */
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    publish_many(&bed, 0, 4);
    bed_start(&bed);
    bed_wait_log(&bed, "the store is away");
    publish_many(&bed, 4, 50);
    /* Whether one of them asked no dead store is chance: on a slow machine each asks alone. */
    wait_until((stats = bed_stats(&bed), stats.store_dead) &&
               stats.answers[HAPAX_ANSWER_STORE_DOWN] >= 8);
    assert_false(stats.store_up);
    assert_int_equal(stats.taken, 4);
    assert_int_equal(script.runs, 0);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed_join(&bed);
    assert_int_equal(script.runs, 50);
    assert_int_equal(bed.stats.acknowledged, 50);
    assert_false(bed.stats.store_dead);
    /* An answer of before may come after one that went through, and say it once more. */
    assert_int_equal(log_count(&bed, "the store is away"), log_count(&bed, "the store is back"));
    assert_true(log_count(&bed, "the store is away") <= bed.consumer.concurrency);
    bed_close(&bed);
}

/* The second claim in vain says that it is dead, while nothing is taken since the first. */
CASE(a_store_that_dies_while_nothing_is_taken_is_told_of)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    bed.play.stop_when_done = true;
    bed.consumer.concurrency = 1;
    bed.consumer.policy.timeout_ms = 10;
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    publish_many(&bed, 0, 1);
    bed_start(&bed);
    wait_until(bed_stats(&bed).store_dead);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed_join(&bed);
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
}

/* Its last message went back to the broker: the gauge goes without an event. */
CASE(a_dead_store_that_nobody_asks_is_told_of_for_a_while)
{
    struct hapax_consumer_stats stats;
    struct play_message *message;
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    bed.consumer.policy.timeout_ms = 10;
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    message = play_publish(&bed.play, 0, "k", NULL, "body");
    bed_start(&bed);
    wait_until(bed_stats(&bed).store_dead);
    pthread_mutex_lock(&bed.play.lock);
    message->due_us = INT64_MAX;
    pthread_mutex_unlock(&bed.play.lock);
    play_cut(&bed.play);
    wait_until((stats = bed_stats(&bed), stats.voided) == 1 && stats.in_hand == 0);
    atomic_fetch_add(&ahead_us, HAPAX__DEAD_US);
    wait_until(!bed_stats(&bed).store_dead);
    play_stop(&bed.play);
    bed_join(&bed);
    bed_close(&bed);
}

/* A claim that went through says that the store is back, however long its handler then takes. */
CASE(a_store_that_is_back_is_seen_before_the_handler_ends)
{
    struct consume_bed bed;
    struct script script;

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
CASE(with_nobody_left_to_ask_the_store_taking_goes_on)
{
    struct consume_bed bed;
    struct script script;
    atomic_bool away = false;

    bed_script(&bed, &script, "F");
    script.gated = true;
    bed.play.stop_when_done = true;
    bed.consumer.policy.timeout_ms = 1000;
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

CASE(with_open_it_runs_unprotected_and_counts)
{
    struct consume_bed bed;
    struct script script;

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
CASE(what_is_not_recorded_is_not_acknowledged)
{
    struct consume_bed bed;
    struct script script;
    atomic_bool away = true;

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

/* ---- a record that cannot be opened ------------------------------------------------------ */

/* What `kept:` opens: a store in memory that outlives its handles. */
static struct hapax_store *kept;

static enum hapax_error kept_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    enum hapax_error error = hapax_store_run(kept, ops, n);

    for (size_t i = 0; i < n; i++)
        must(hapax__store_keep(store, &ops[i]));
    return error;
}

static void kept_close(struct hapax_store *store)
{
    free(store);
}

static enum hapax_error kept_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    (void)uri, (void)text;
    *out = calloc(1, sizeof(**out));
    return *out ? HAPAX_ERR_NONE : HAPAX_ERR_NOMEM;
}

static const struct hapax_store_type kept_type = {
    .scheme = "kept",
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .open = kept_open,
    .run = kept_run,
    .close = kept_close,
};

/* Another process with these keys goes on. */
static void open_kept(struct consume_bed *bed, const char *keys)
{
    const struct hapax_options options = {.keys = hapax_str(keys)};

    must(hapax_close(bed->h, WAIT_MS) == 0);
    must(hapax_open(&bed->h, "kept:", &options, bed->text) == HAPAX_ERR_NONE);
}

/* The outcome of one operation is sealed by a key that is gone: its message waits, and the store is
 * not away for all others. */
CASE(one_whose_outcome_cannot_be_opened_keeps_no_other_waiting)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    hapax__store_add(&kept_type);
    must(hapax_store_open(&kept, "memory:", bed.text) == HAPAX_ERR_NONE);
    open_kept(&bed, "old 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n");
    publish_many(&bed, 0, 1);
    bed_run(&bed);
    open_kept(&bed, "new fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210\n");
    publish_many(&bed, 0, 1);
    bed_start(&bed);
    wait_until(bed_stats(&bed).answers[HAPAX_ANSWER_STORE_DOWN] > 0);
    publish_many(&bed, 1, 50);
    wait_until(bed_stats(&bed).acknowledged == 49);
    assert_true(bed_stats(&bed).store_up);
    play_stop(&bed.play);
    bed_join(&bed);
    assert_int_equal(script.runs, 50);
    assert_int_equal(play_count(&bed.play, "Q"), 1);
    assert_int_equal(log_count(&bed, "the store is away"), 0);
    assert_true(log_count(&bed, "the keys do not open it: its message is kept") > 0);
    bed_close(&bed);
    hapax_store_close(kept);
}

/* ---- steps ------------------------------------------------------------------------------- */

#define ORDERS 8

struct orders {
    atomic_uint runs, charges, charged[ORDERS];
};

static enum hapax_class charge(struct hapax_attempt *attempt, void *arg)
{
    struct orders *orders = arg;
    struct hapax_span key = hapax_attempt_key(attempt);
    char expected[16];

    must(key.len > 1 && key.ptr[1] >= '0' && key.ptr[1] < '0' + ORDERS);
    snprintf(expected, sizeof(expected), "k%c:charge", key.ptr[1]);
    must(key.len == strlen(expected) && memcmp(key.ptr, expected, key.len) == 0);
    orders->charged[key.ptr[1] - '0']++;
    orders->charges++;
    must(hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str("receipt")) ==
         HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

static enum hapax_class charge_then_ship(struct hapax_attempt *attempt,
                                         struct hapax_delivery *delivery, void *arg)
{
    struct orders *orders = arg;
    bool first = hapax_attempt_number(attempt) == 1;
    char text[HAPAX_TEXT_MAX];
    struct hapax_answer answer;

    (void)delivery;
    orders->runs++;
    must(hapax_step(attempt, "charge", charge, orders, &answer, text) == HAPAX_ERR_NONE);
    must(answer.kind == (first ? HAPAX_ANSWER_FRESH : HAPAX_ANSWER_REPLAY));
    must(answer.outcome.status == 201 && answer.outcome.body.len == strlen("receipt"));
    hapax_answer_release(&answer);
    return first ? HAPAX_CLASS_FAILED : HAPAX_CLASS_FINAL;
}

/* The callback of a message that is tried again is given what the step came to before, under the
 * message's key. */
CASE(a_message_that_is_tried_again_goes_on_behind_its_step)
{
    struct orders orders = {0};
    struct consume_bed bed;

    bed_open(&bed, charge_then_ship, &orders);
    publish_many(&bed, 0, ORDERS);
    bed_run(&bed);
    assert_int_equal(orders.runs, 2 * ORDERS);
    assert_int_equal(orders.charges, ORDERS);
    for (size_t i = 0; i < ORDERS; i++)
        assert_int_equal(orders.charged[i], 1);
    assert_int_equal(bed.stats.acknowledged, ORDERS);
    bed_close(&bed);
}
