/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the consumer share: a consumer with quick pauses, on a played broker and a
 * memory store that fails on purpose, run in a thread of its own; and a handler that does as it is
 * told.
 */
#ifndef HAPAX_TESTS_CONSUME_BED_H
#define HAPAX_TESTS_CONSUME_BED_H

#include "consume_play.h"

#include "../store/faulty.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../must.h"

#define WAIT_MS 60000 /* no event of a test takes longer, on any machine */

struct consume_bed {
    struct hapax__plan plan;
    struct hapax *h;
    struct play play;
    struct hapax_consumer consumer;
    struct hapax_consumer_stats stats;
    hapax_message_handler *handler, *reconcile; /* the latter: none, unless a test sets it */
    void *arg;
    pthread_t thread;
    enum hapax_error error;
    char text[HAPAX_TEXT_MAX];
    pthread_mutex_t log_lock;
    pthread_cond_t logged;
    char log[4096]; /* lines */
};

static inline void bed_log(void *arg, const char *line)
{
    struct consume_bed *bed = arg;
    size_t used;

    pthread_mutex_lock(&bed->log_lock);
    used = strlen(bed->log);
    snprintf(bed->log + used, sizeof(bed->log) - used, "%s\n", line);
    pthread_cond_broadcast(&bed->logged);
    pthread_mutex_unlock(&bed->log_lock);
}

static inline void bed_open(struct consume_bed *bed, hapax_message_handler *handler, void *arg)
{
    char text[HAPAX_TEXT_MAX];

    memset(bed, 0, sizeof(*bed));
    hapax__plan_init(&bed->plan);
    hapax__faulty_use(&bed->plan);
    must(hapax_open(&bed->h, "faulty:memory:", NULL, text) == HAPAX_ERR_NONE);
    play_open(&bed->play, 1);
    pthread_mutex_init(&bed->log_lock, NULL);
    pthread_cond_init(&bed->logged, NULL);
    hapax_consumer_init(&bed->consumer);
    bed->consumer.from = "played:Q";
    bed->consumer.retry_min_ms = 1;
    bed->consumer.retry_max_ms = 4;
    bed->consumer.policy.attempts_max = 3;
    bed->consumer.policy.timeout_ms = bed->consumer.policy.save_wait_ms = WAIT_MS;
    bed->consumer.concurrency = 4;
    bed->consumer.drain_ms = WAIT_MS;
    bed->consumer.stop_fd = bed->play.stop_fd;
    bed->consumer.log = bed_log;
    bed->consumer.log_arg = bed;
    bed->handler = handler;
    bed->arg = arg;
}

static inline void bed_close(struct consume_bed *bed)
{
    must(hapax_close(bed->h, WAIT_MS) == 0);
    hapax__plan_release(&bed->plan);
    play_close(&bed->play);
    pthread_cond_destroy(&bed->logged);
    pthread_mutex_destroy(&bed->log_lock);
}

static inline void *bed_main(void *arg)
{
    struct consume_bed *bed = arg;

    bed->error = hapax_consumer_run(bed->h, &bed->consumer, bed->handler, bed->reconcile, bed->arg,
                                    &bed->stats, bed->text);
    return NULL;
}

static inline void bed_start(struct consume_bed *bed)
{
    must(pthread_create(&bed->thread, NULL, bed_main, bed) == 0);
}

/* Nothing may be in hand, and source and sink be closed. */
static inline void bed_join(struct consume_bed *bed)
{
    struct hapax_consumer_stats stats;

    must(pthread_join(bed->thread, NULL) == 0);
    hapax_consumer_read(&stats, &bed->stats);
    must(stats.in_hand == 0 && stats.running == 0 && !stats.connected);
    must(bed->play.closed == 2 && bed->play.out_count == 0);
    bed->play.closed = 0;
}

/* Runs until every message of the queue is acknowledged or rejected. */
static inline void bed_run(struct consume_bed *bed)
{
    uint64_t count;

    bed->play.stop_when_done = true;
    bed_start(bed);
    bed_join(bed);
    must(bed->error == HAPAX_ERR_NONE);
    must(read(bed->play.stop_fd, &count, sizeof(count)) == (ssize_t)sizeof(count));
    bed->play.stop_when_done = false;
}

static inline void bed_run_one(struct consume_bed *bed)
{
    play_publish(&bed->play, 1, "k", NULL, "body");
    bed_run(bed);
}

static inline void bed_wait_log(struct consume_bed *bed, const char *part)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&bed->log_lock);
    while (!strstr(bed->log, part))
        must(pthread_cond_timedwait(&bed->logged, &bed->log_lock, &until) == 0);
    pthread_mutex_unlock(&bed->log_lock);
}

static inline unsigned log_count(struct consume_bed *bed, const char *part)
{
    unsigned count = 0;

    for (const char *at = bed->log; (at = strstr(at, part)); at++)
        count++;
    return count;
}

static inline void publish_many(struct consume_bed *bed, int from, int to)
{
    char key[16];

    for (int i = from; i < to; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        play_publish(&bed->play, i, key, NULL, "body");
    }
}

/* What no descriptor tells of. */
#define wait_until(claim)                                                                          \
    for (time_t end = time(NULL) + WAIT_MS / 1000; !(claim); sched_yield())                        \
    must(time(NULL) <= end)

static inline struct hapax_consumer_stats bed_stats(struct consume_bed *bed)
{
    struct hapax_consumer_stats stats;

    hapax_consumer_read(&stats, &bed->stats);
    return stats;
}

static inline void wait_for(sem_t *sem)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    while (sem_timedwait(sem, &until) != 0)
        must(errno == EINTR);
}

/* ---- the handler ----------------------------------------------------------------------- */

struct script {
    /* The class of each run: F final, f failed, n not run, u unknown, r refused. The last letter is
     * for all runs that follow. */
    const char *classes;
    int status;
    atomic_uint runs;
    bool gated; /* posts entered, then waits for go */
    sem_t entered, go;
    bool hurries; /* waits until it is told to hurry */
};

static inline void script_init(struct script *script, const char *classes)
{
    memset(script, 0, sizeof(*script));
    script->classes = classes;
    sem_init(&script->entered, 0, 0);
    sem_init(&script->go, 0, 0);
}

static inline enum hapax_class class_of(char c)
{
    return c == 'F'   ? HAPAX_CLASS_FINAL
           : c == 'n' ? HAPAX_CLASS_NOT_RUN
           : c == 'u' ? HAPAX_CLASS_UNKNOWN
                      : HAPAX_CLASS_FAILED;
}

static inline enum hapax_class play_script(struct hapax_attempt *attempt,
                                           struct hapax_delivery *delivery, void *arg)
{
    struct script *script = arg;
    unsigned run = atomic_fetch_add(&script->runs, 1);
    size_t last = strlen(script->classes) - 1;
    char c = script->classes[run < last ? run : last];

    if (script->gated) {
        sem_post(&script->entered);
        wait_for(&script->go);
    }
    wait_until(!script->hurries || hapax_delivery_hurry(delivery));
    must(hapax_attempt_outcome(attempt, script->status, hapax_str(NULL), hapax_str("done")) ==
         HAPAX_ERR_NONE);
    if (c == 'r')
        hapax_delivery_refuse(delivery, "no such customer");
    return class_of(c);
}

/* A bed with a script for its handler. */
static inline void bed_script(struct consume_bed *bed, struct script *script, const char *classes)
{
    script_init(script, classes);
    bed_open(bed, play_script, script);
}

#endif
