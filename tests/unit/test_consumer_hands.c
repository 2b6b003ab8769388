/* SPDX-License-Identifier: Apache-2.0
 *
 * The consumer's hands: as many handlers run at once as were asked for, whatever the others wait
 * for; and nobody touches them once the run is over.
 */
#include "../cases.h"
#include "consume_bed.h"

#include <sys/eventfd.h>

#define HANDS 16u

CASE(as_many_run_at_once_as_there_are_hands)
{
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    script.gated = true;
    bed.play.stop_when_done = true;
    bed.consumer.concurrency = HANDS;
    publish_many(&bed, 0, 3 * HANDS);
    bed_start(&bed);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < HANDS; i++)
            wait_for(&script.entered);
        assert_int_equal(bed_stats(&bed).running, HANDS);
        assert_int_equal(script.runs, HANDS * (round + 1));
        for (unsigned i = 0; i < HANDS; i++)
            sem_post(&script.go);
    }
    bed_join(&bed);
    assert_int_equal(bed.stats.acknowledged, 3 * HANDS);
    bed_close(&bed);
}

struct sitting {
    atomic_uint runs; /* of the others */
    unsigned sitters;
    sem_t entered, go;
};

/* A message "sits" stays with its handler until it is told to go; the others run. */
static enum hapax_class sit_or_run(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                                   void *arg)
{
    struct sitting *sitting = arg;
    bool sits = hapax_delivery_message(delivery)->body.len == strlen("sits");

    (void)attempt;
    if (!sits) {
        sitting->runs++;
        return HAPAX_CLASS_FINAL;
    }
    sem_post(&sitting->entered);
    wait_for(&sitting->go);
    return HAPAX_CLASS_FINAL;
}

/* One hand is left, and it is enough for all the rest. */
CASE(handlers_that_sit_leave_the_others_a_hand)
{
    struct sitting sitting = {.sitters = HANDS - 1};
    struct consume_bed bed;
    char key[16];

    sem_init(&sitting.entered, 0, 0);
    sem_init(&sitting.go, 0, 0);
    bed_open(&bed, sit_or_run, &sitting);
    bed.play.stop_when_done = true;
    bed.consumer.concurrency = HANDS;
    for (unsigned i = 0; i < sitting.sitters; i++) {
        snprintf(key, sizeof(key), "s%u", i);
        play_publish(&bed.play, (int)i, key, NULL, "sits");
    }
    bed_start(&bed);
    for (unsigned i = 0; i < sitting.sitters; i++)
        wait_for(&sitting.entered);
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "r%d", i);
        play_publish(&bed.play, 100 + i, key, NULL, "runs on");
    }
    wait_until(bed_stats(&bed).acknowledged == 200);
    assert_int_equal(sitting.runs, 200);
    assert_int_equal(bed_stats(&bed).running, sitting.sitters);
    for (unsigned i = 0; i < sitting.sitters; i++)
        sem_post(&sitting.go);
    bed_join(&bed);
    assert_int_equal(bed.stats.acknowledged, 200 + sitting.sitters);
    sem_destroy(&sitting.entered);
    sem_destroy(&sitting.go);
    bed_close(&bed);
}

struct asked {
    struct script script; /* of the handler */
    enum hapax_class said; /* by the hook */
    unsigned hooks;
};

static enum hapax_class run_script(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                                   void *arg)
{
    struct asked *asked = arg;

    return play_script(attempt, delivery, &asked->script);
}

static enum hapax_class say(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                            void *arg)
{
    struct asked *asked = arg;

    must(hapax_attempt_stale(attempt));
    hapax_delivery_refuse(delivery, "what a hook says of this is not heard");
    asked->hooks++;
    return asked->said;
}

/* The first attempt's result is unknown. Returns how often the handler ran in all. */
static unsigned run_with_hook(enum hapax_class said, struct hapax_consumer_stats *stats)
{
    struct asked asked = {.said = said};
    struct consume_bed bed;
    unsigned runs;

    script_init(&asked.script, "uF");
    bed_open(&bed, run_script, &asked);
    bed.reconcile = say;
    bed.consumer.policy.on_expired = HAPAX_EXPIRED_RECONCILE;
    bed.consumer.policy.lease_ms = 50;
    bed_run_one(&bed);
    assert_int_equal(asked.hooks, 1);
    runs = asked.script.runs;
    *stats = bed.stats;
    bed_close(&bed);
    return runs;
}

CASE(a_hook_that_says_yes_spares_the_run)
{
    struct hapax_consumer_stats stats;

    assert_int_equal(run_with_hook(HAPAX_CLASS_FINAL, &stats), 1);
    assert_int_equal(stats.acknowledged, 1);
    assert_int_equal(stats.dead_lettered + stats.parked, 0);
}

CASE(after_a_hook_that_says_no_the_handler_runs)
{
    struct hapax_consumer_stats stats;

    assert_int_equal(run_with_hook(HAPAX_CLASS_NOT_RUN, &stats), 2);
    assert_int_equal(stats.acknowledged, 1);
    assert_int_equal(stats.dead_lettered + stats.parked, 0);
}

/* What is more than there are calls for is begun later. */
CASE(with_fewer_calls_than_hands_all_are_run)
{
    const struct hapax_options options = {.calls_max = 2};
    char text[HAPAX_TEXT_MAX];
    struct consume_bed bed;
    struct script script;

    bed_script(&bed, &script, "F");
    must(hapax_close(bed.h, 0) == 0);
    must(hapax_open(&bed.h, "faulty:memory:", &options, text) == HAPAX_ERR_NONE);
    script.gated = true;
    bed.play.stop_when_done = true;
    bed.consumer.concurrency = HANDS;
    publish_many(&bed, 0, HANDS);
    bed_start(&bed);
    for (unsigned i = 0; i < HANDS; i++) {
        wait_for(&script.entered);
        sem_post(&script.go);
    }
    bed_join(&bed);
    assert_int_equal(script.runs, HANDS);
    assert_int_equal(bed.stats.acknowledged, HANDS);
    bed_close(&bed);
}

static struct {
    atomic_bool armed;
    int stop_fd;
    sem_t returned;
} late;

ssize_t __real_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);

/* The pulse is late with telling of the last answer, and the consumer is stopped meanwhile: it must
 * not be over. */
ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
    char name[16] = "";
    struct timespec until;

    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    if (strcmp(name, "hapax-pulse") == 0 && atomic_exchange(&late.armed, false)) {
        must(eventfd_write(late.stop_fd, 1) == 0);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        must(sem_timedwait(&late.returned, &until) != 0 && errno == ETIMEDOUT);
    }
    return __real_write(fd, bytes, n);
}

static enum hapax_class arm(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                            void *arg)
{
    (void)attempt;
    (void)delivery;
    (void)arg;
    atomic_store(&late.armed, true);
    return HAPAX_CLASS_FINAL;
}

CASE(it_is_over_when_the_pulse_has_said_its_last)
{
    struct consume_bed bed;

    bed_open(&bed, arm, NULL);
    sem_init(&late.returned, 0, 0);
    late.stop_fd = bed.play.stop_fd;
    play_publish(&bed.play, 1, "k", NULL, "body");
    bed_start(&bed);
    bed_join(&bed);
    sem_post(&late.returned);
    assert_int_equal(bed.stats.acknowledged, 1);
    assert_false(atomic_load(&late.armed));
    bed_close(&bed);
    sem_destroy(&late.returned);
}
