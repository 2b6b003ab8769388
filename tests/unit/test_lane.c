/* SPDX-License-Identifier: Apache-2.0
 *
 * The lane, over a memory store that fails on purpose. What is tested is what doors lean on: order,
 * the bound of the queue, deadlines, batches that gather by themselves, answers that outlive the
 * store's memory, an orderly end; and that each job gets one answer whatever fails.
 */
#include "base/clock.h"
#include "base/time.h"
#include "http/prometheus.h"
#include "lane/census.h"
#include "lane/lane.h"

#include "../cases.h"
#include "../store/faulty.h"
#include "oom.h"
#include "store/types.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 60000

struct bed {
    struct hapax__plan plan;
    struct hapax__lane *lane;
};

static void open_bed(struct bed *bed, uint32_t queue_max)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *inner, *store;

    hapax__plan_init(&bed->plan);
    assert_int_equal(hapax_store_open(&inner, "memory:", text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__faulty_wrap(&store, inner, &bed->plan), HAPAX_ERR_NONE);
    assert_int_equal(hapax__lane_open(&bed->lane, store, queue_max), HAPAX_ERR_NONE);
}

static void close_bed(struct bed *bed)
{
    assert_null(hapax__lane_close(bed->lane));
    hapax__plan_release(&bed->plan);
}

static struct hapax__job new_job(enum hapax_op_kind kind, unsigned number)
{
    struct hapax__job job;

    memset(&job, 0, sizeof(job));
    job.op.kind = kind;
    memcpy(job.op.id.bytes, &number, sizeof(number));
    job.op.id.bytes[31] = 1;
    memcpy(job.op.token.bytes, &number, sizeof(number));
    job.op.token.bytes[15] = 1;
    job.op.scope = hapax_str("orders");
    job.op.lease_ms = 30000;
    job.op.retention_ms = 60000;
    job.op.on_expired = HAPAX_EXPIRED_RERUN;
    return job;
}

static void submit(struct bed *bed, struct hapax__job *job)
{
    assert_true(hapax__lane_submit(bed->lane, job));
}

/* Waits for n answers; a list in their order. */
static struct hapax__job *collect(struct hapax__lane *lane, unsigned n)
{
    struct hapax__job *all = NULL, **end = &all;
    unsigned count = 0;

    while (count < n) {
        struct pollfd fd = {.fd = hapax__lane_fd(lane), .events = POLLIN};

        assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
        *end = hapax__lane_reap(lane);
        for (; *end; end = &(*end)->next)
            count++;
    }
    assert_int_equal(count, n);
    return all;
}

static void run_one(struct bed *bed, struct hapax__job *job)
{
    submit(bed, job);
    assert_ptr_equal(collect(bed->lane, 1), job);
}

/* Holds the lane in a first op, so that what is submitted next gathers. */
static void hold(struct bed *bed, struct hapax__job *first)
{
    hapax__plan_set(&bed->plan, HAPAX__DELAY, 1, 1);
    submit(bed, first);
    assert_true(hapax__plan_wait(&bed->plan, 1, WAIT_MS));
}

/* ---- the queue ----------------------------------------------------------------------- */

/* Ops on one id are judged, and all answers given, in the order of submission. */
CASE(answers_come_back_in_the_order_of_submission)
{
    static struct hapax__job jobs[300];
    struct hapax__job *job;
    struct bed bed;

    open_bed(&bed, 300);
    for (unsigned i = 0; i < 300; i += 3) {
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
        jobs[i + 1] = new_job(HAPAX_OP_COMPLETE, i);
        jobs[i + 2] = new_job(HAPAX_OP_CLAIM, i);
        jobs[i + 2].op.token.bytes[14] = 1;
    }
    for (unsigned i = 0; i < 300; i++)
        submit(&bed, &jobs[i]);
    job = collect(bed.lane, 300);
    for (unsigned i = 0; i < 300; i++, job = job->next) {
        static const enum hapax_verdict want[] = {HAPAX_CLAIMED, HAPAX_OK, HAPAX_COMPLETED};

        assert_ptr_equal(job, &jobs[i]);
        assert_int_equal(job->op.verdict, want[i % 3]);
        free(job->memory);
    }
    assert_int_equal(hapax__lane_queued(bed.lane), 0);
    close_bed(&bed);
}

/* A refused job is not touched by the lane any more, and may be submitted again. */
CASE(a_full_queue_refuses_and_leaves_the_job)
{
    struct hapax__job jobs[6];
    struct bed bed;

    open_bed(&bed, 4);
    for (unsigned i = 0; i < 6; i++)
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
    hold(&bed, &jobs[0]);
    for (unsigned i = 1; i < 5; i++)
        submit(&bed, &jobs[i]);
    assert_false(hapax__lane_submit(bed.lane, &jobs[5]));
    assert_int_equal(jobs[5].op.error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(jobs[5].op.verdict, HAPAX_NO_VERDICT);
    assert_int_equal(hapax__lane_queued(bed.lane), 5);
    hapax__plan_go(&bed.plan);
    collect(bed.lane, 5);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 5);
    run_one(&bed, &jobs[5]);
    assert_int_equal(jobs[5].op.verdict, HAPAX_CLAIMED);
    assert_int_equal(jobs[5].op.record.attempt, 1);
    close_bed(&bed);
}

/* A list goes in by one lock, in its order; what finds no room comes back as a list, refused,
 * and is not run. */
CASE(a_list_is_one_batch_and_its_rest_is_refused)
{
    struct hapax__job jobs[7], *rest;
    struct bed bed;

    open_bed(&bed, 4);
    for (unsigned i = 0; i < 7; i++)
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
    hold(&bed, &jobs[0]);
    for (unsigned i = 1; i < 7; i++)
        jobs[i].next = i < 6 ? &jobs[i + 1] : NULL;
    rest = hapax__lane_submit_all(bed.lane, &jobs[1]);
    assert_ptr_equal(rest, &jobs[5]);
    assert_ptr_equal(rest->next, &jobs[6]);
    assert_null(jobs[6].next);
    for (unsigned i = 5; i < 7; i++) {
        assert_int_equal(jobs[i].op.error, HAPAX_ERR_UNAVAILABLE);
        assert_int_equal(jobs[i].op.verdict, HAPAX_NO_VERDICT);
    }
    hapax__plan_go(&bed.plan);
    rest = collect(bed.lane, 5);
    for (unsigned i = 0; i < 5; i++, rest = rest->next)
        assert_ptr_equal(rest, &jobs[i]);
    assert_int_equal(hapax__plan_counts(&bed.plan).runs, 2);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 5);
    assert_null(hapax__lane_submit_all(bed.lane, NULL));
    close_bed(&bed);
}

/* UNAVAILABLE means surely not applied, and the jobs around it are not touched. */
CASE(a_job_past_its_deadline_never_reaches_the_store)
{
    struct hapax__job first = new_job(HAPAX_OP_CLAIM, 0);
    struct hapax__job jobs[3], *job;
    struct bed bed;

    open_bed(&bed, 8);
    hold(&bed, &first);
    for (unsigned i = 0; i < 3; i++) {
        jobs[i] = new_job(HAPAX_OP_CLAIM, i + 1);
        jobs[i].deadline_us = i == 1 ? 1 : i == 2 ? INT64_MAX : 0;
        submit(&bed, &jobs[i]);
    }
    hapax__plan_go(&bed.plan);
    job = collect(bed.lane, 4);
    assert_ptr_equal(job, &first);
    assert_ptr_equal(job->next, &jobs[0]);
    assert_ptr_equal(job->next->next, &jobs[1]);
    assert_ptr_equal(job->next->next->next, &jobs[2]);
    assert_int_equal(jobs[0].op.verdict, HAPAX_CLAIMED);
    assert_int_equal(jobs[1].op.verdict, HAPAX_NO_VERDICT);
    assert_int_equal(jobs[1].op.error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(jobs[2].op.verdict, HAPAX_CLAIMED);
    assert_memory_equal(&jobs[2].op.record.id, &jobs[2].op.id, sizeof(jobs[2].op.id));
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 3);
    jobs[1].deadline_us = 1;
    run_one(&bed, &jobs[1]); /* a batch of nothing else */
    assert_int_equal(jobs[1].op.error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(hapax__plan_counts(&bed.plan).runs, 2);
    close_bed(&bed);
}

/* The same of a job whose flag is set by then, or was set before the job was submitted. */
CASE(a_job_that_is_off_never_reaches_the_store)
{
    struct hapax__job first = new_job(HAPAX_OP_CLAIM, 0);
    struct hapax__job jobs[2];
    atomic_bool off[2] = {false, false};
    struct bed bed;

    open_bed(&bed, 8);
    hold(&bed, &first);
    for (unsigned i = 0; i < 2; i++) {
        jobs[i] = new_job(HAPAX_OP_CLAIM, i + 1);
        jobs[i].unless = &off[i];
        submit(&bed, &jobs[i]);
    }
    atomic_store(&off[0], true);
    hapax__plan_go(&bed.plan);
    collect(bed.lane, 3);
    assert_int_equal(jobs[0].op.error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(jobs[0].op.verdict, HAPAX_NO_VERDICT);
    assert_int_equal(jobs[1].op.verdict, HAPAX_CLAIMED);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 2);
    run_one(&bed, &jobs[0]);
    assert_int_equal(jobs[0].op.error, HAPAX_ERR_UNAVAILABLE);
    close_bed(&bed);
}

/* Group commit: what came while a batch was under way is the next batch. */
CASE(what_gathers_goes_as_one_batch)
{
    static struct hapax__job jobs[101];
    struct bed bed;

    open_bed(&bed, 100);
    for (unsigned i = 0; i < 101; i++)
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
    hold(&bed, &jobs[0]);
    for (unsigned i = 1; i < 101; i++)
        submit(&bed, &jobs[i]);
    hapax__plan_go(&bed.plan);
    collect(bed.lane, 101);
    assert_int_equal(hapax__plan_counts(&bed.plan).runs, 2);
    assert_int_equal(hapax__plan_counts(&bed.plan).longest, 100);
    close_bed(&bed);
}

/* A batch is never longer than the store takes. */
CASE(a_batch_stays_within_what_the_store_takes)
{
    static struct hapax__job jobs[1 + 2 * HAPAX_BATCH_MAX + 9];
    unsigned n = sizeof(jobs) / sizeof(jobs[0]);
    struct bed bed;

    open_bed(&bed, HAPAX__LANE_QUEUE_MAX);
    for (unsigned i = 0; i < n; i++)
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
    hold(&bed, &jobs[0]);
    for (unsigned i = 1; i < n; i++)
        submit(&bed, &jobs[i]);
    hapax__plan_go(&bed.plan);
    collect(bed.lane, n);
    assert_int_equal(hapax__plan_counts(&bed.plan).longest, HAPAX_BATCH_MAX);
    assert_int_equal(hapax__plan_counts(&bed.plan).runs, 1 + 3);
    close_bed(&bed);
}

/* A thousand large outcomes are not handed to a store in one piece: a batch ends at 32 MiB. */
CASE(large_outcomes_end_a_batch)
{
    static struct hapax__job first, jobs[5];
    uint8_t *body = calloc(1, HAPAX_BODY_MAX);
    struct bed bed;

    assert_non_null(body);
    open_bed(&bed, 8);
    first = new_job(HAPAX_OP_READ, 100);
    hold(&bed, &first);
    for (unsigned i = 0; i < 5; i++) {
        jobs[i] = new_job(HAPAX_OP_COMPLETE, i);
        jobs[i].op.outcome = (struct hapax_outcome){200, true, {NULL, 0}, {body, HAPAX_BODY_MAX}};
        submit(&bed, &jobs[i]);
    }
    hapax__plan_go(&bed.plan);
    collect(bed.lane, 6);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(jobs[i].op.verdict, HAPAX_LOST);
    assert_int_equal(hapax__plan_counts(&bed.plan).longest, 2);
    assert_int_equal(hapax__plan_counts(&bed.plan).runs, 1 + 3);
    close_bed(&bed);
    free(body);
}

/* ---- answers ------------------------------------------------------------------------- */

/* Records, and what they point to, are the job's: later batches write over the store's memory. */
CASE(a_list_outlives_the_stores_memory)
{
    static struct hapax__job jobs[40];
    struct hapax__job list = new_job(HAPAX_OP_LIST, 0);
    struct bed bed;

    open_bed(&bed, 64);
    for (unsigned i = 0; i < 40; i++) {
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
        jobs[i].op.scope = hapax_str(i % 2 ? "odd" : "even");
        if (i < 20)
            run_one(&bed, &jobs[i]);
    }
    list.op.id = (struct hapax_id){{0}};
    list.op.scope = (struct hapax_span){NULL, 0};
    run_one(&bed, &list);
    for (unsigned i = 20; i < 40; i++)
        run_one(&bed, &jobs[i]);
    assert_int_equal(list.op.verdict, HAPAX_FOUND);
    assert_int_equal(list.op.count, 20);
    assert_ptr_equal(list.op.records, list.memory);
    for (unsigned i = 0; i < 20; i++) {
        const struct hapax_record *record = &list.op.records[i];

        assert_memory_equal(&record->id, &jobs[i].op.id, sizeof(record->id));
        assert_int_equal(record->scope.len, i % 2 ? 3 : 4);
        assert_memory_equal(record->scope.ptr, i % 2 ? "odd" : "even", record->scope.len);
    }
    free(list.memory);
    close_bed(&bed);
}

/* A granted claim and a stored outcome cost no allocation; a READ, which says no scope, costs
 * one. */
CASE(an_answer_borrows_what_the_op_says_already)
{
    struct hapax__job claim = new_job(HAPAX_OP_CLAIM, 1);
    struct hapax__job complete = new_job(HAPAX_OP_COMPLETE, 1);
    struct hapax__job read = new_job(HAPAX_OP_READ, 1);
    struct hapax__job other = new_job(HAPAX_OP_CLAIM, 2);
    struct bed bed;

    open_bed(&bed, 4);
    run_one(&bed, &claim);
    assert_int_equal(claim.op.verdict, HAPAX_CLAIMED);
    assert_null(claim.memory);
    assert_ptr_equal(claim.op.record.scope.ptr, claim.op.scope.ptr);
    complete.op.outcome =
        (struct hapax_outcome){201, true, hapax_str("A: b\r\n"), hapax_str("made")};
    run_one(&bed, &complete);
    assert_int_equal(complete.op.verdict, HAPAX_OK);
    assert_null(complete.memory);
    assert_ptr_equal(complete.op.record.outcome.body.ptr, complete.op.outcome.body.ptr);
    read.op.scope = (struct hapax_span){NULL, 0};
    run_one(&bed, &read);
    run_one(&bed, &other);
    assert_int_equal(read.op.verdict, HAPAX_FOUND);
    assert_non_null(read.memory);
    assert_int_equal(read.op.record.scope.len, 6);
    assert_memory_equal(read.op.record.scope.ptr, "orders", 6);
    assert_int_equal(read.op.record.outcome.headers.len, 6);
    assert_memory_equal(read.op.record.outcome.headers.ptr, "A: b\r\n", 6);
    assert_int_equal(read.op.record.outcome.body.len, 4);
    assert_memory_equal(read.op.record.outcome.body.ptr, "made", 4);
    free(read.memory);
    close_bed(&bed);
}

/* Nothing is reaped twice, and the eventfd falls silent. */
CASE(what_was_reaped_is_gone)
{
    struct hapax__job job = new_job(HAPAX_OP_CLAIM, 1);
    struct pollfd fd;
    struct bed bed;

    open_bed(&bed, 4);
    assert_null(hapax__lane_reap(bed.lane));
    run_one(&bed, &job);
    assert_null(hapax__lane_reap(bed.lane));
    fd = (struct pollfd){.fd = hapax__lane_fd(bed.lane), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 0), 0);
    close_bed(&bed);
}

/* ---- the end ------------------------------------------------------------------------- */

/* A closing lane owes an answer to whoever it took a job from. */
CASE(close_runs_what_waits_and_gives_it_back)
{
    static struct hapax__job jobs[50];
    struct hapax__job *job;
    struct bed bed;

    open_bed(&bed, 64);
    for (unsigned i = 0; i < 50; i++) {
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
        submit(&bed, &jobs[i]);
    }
    job = hapax__lane_close(bed.lane);
    for (unsigned i = 0; i < 50; i++, job = job->next) {
        assert_ptr_equal(job, &jobs[i]);
        assert_int_equal(job->op.verdict, HAPAX_CLAIMED);
    }
    assert_null(job);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, 50);
    hapax__plan_release(&bed.plan);
}

/* A store whose close tries to submit once more, when its lane is closing. */
struct late {
    struct hapax_store base;
    struct hapax__lane *lane;
    struct hapax__job *job;
    bool *taken;
};

static enum hapax_error late_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    (void)ops;
    (void)n;
    return hapax_store_fail(store, HAPAX_ERR_INDETERMINATE, "no reply came");
}

static void late_close(struct hapax_store *store)
{
    struct late *late = (struct late *)store;

    *late->taken = hapax__lane_submit(late->lane, late->job);
    free(late);
}

static enum hapax_error late_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    (void)uri;
    (void)text;
    *out = calloc(1, sizeof(struct late));
    return HAPAX_ERR_NONE;
}

static const struct hapax_store_type late_type = {
    .scheme = "late",
    .batch_max = 1,
    .open = late_open,
    .run = late_run,
    .close = late_close,
};

/* A store with a log: a READ rests on no write, other ops on that of their batch. */
struct logged {
    struct hapax_store base;
    uint64_t writes;
    bool stands; /* a sync stands until it is let go */
    bool fails;
    uint64_t lost; /* a sync failed; these writes are lost, and later ones are not */
    sem_t come, go;
};

static enum hapax_error logged_judge(struct hapax_store *store, struct hapax_op *ops, size_t n,
                                     uint64_t *rests)
{
    struct logged *logged = (struct logged *)store;
    uint64_t write = ++logged->writes;

    for (size_t i = 0; i < n; i++) {
        ops[i].verdict = ops[i].kind == HAPAX_OP_READ ? HAPAX_ABSENT : HAPAX_OK;
        rests[i] = ops[i].kind == HAPAX_OP_READ ? 0 : write;
    }
    return HAPAX_ERR_NONE;
}

static void wait_for(sem_t *event)
{
    while (sem_wait(event) != 0) /* EINTR */
        ;
}

static enum hapax_error logged_sync(struct hapax_store *store, uint64_t number,
                                    char text[HAPAX_TEXT_MAX])
{
    struct logged *logged = (struct logged *)store;

    assert_true(number > 0);
    if (logged->stands) {
        sem_post(&logged->come);
        wait_for(&logged->go);
    }
    if (!logged->fails && number > logged->lost)
        return HAPAX_ERR_NONE;
    snprintf(text, HAPAX_TEXT_MAX, "the disk is gone");
    return HAPAX_ERR_INDETERMINATE;
}

static void logged_close(struct hapax_store *store)
{
    free(store);
}

static enum hapax_error logged_open(struct hapax_store **out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    struct logged *logged = calloc(1, sizeof(*logged));

    (void)uri;
    (void)text;
    if (!logged)
        return HAPAX_ERR_NOMEM;
    logged->stands = true;
    sem_init(&logged->come, 0, 0);
    sem_init(&logged->go, 0, 0);
    *out = &logged->base;
    return HAPAX_ERR_NONE;
}

static const struct hapax_store_type logged_type = {
    .scheme = "logged",
    .batch_max = 64,
    .serial = true,
    .open = logged_open,
    .run = late_run,
    .judge = logged_judge,
    .sync = logged_sync,
    .close = logged_close,
};

static struct logged *open_logged(void)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    hapax__store_add(&logged_type);
    assert_int_equal(hapax_store_open(&store, "logged:", text), HAPAX_ERR_NONE);
    return (struct logged *)store;
}

/* While one batch is synced the next is judged: what rests on no write comes back, what rests on
 * one waits for its own sync. Where that fails, the answer is INDETERMINATE, and no other is. */
CASE(a_batch_is_judged_while_another_is_synced)
{
    struct logged *logged = open_logged();
    struct hapax__job first = new_job(HAPAX_OP_COMPLETE, 1), jobs[16], *job;
    struct hapax__lane *lane;
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax__lane_open(&lane, &logged->base, 64), HAPAX_ERR_NONE);
    assert_true(hapax__lane_submit(lane, &first));
    wait_for(&logged->come);
    for (unsigned i = 0; i < 16; i++) {
        jobs[i] = new_job(i < 4 ? HAPAX_OP_COMPLETE : HAPAX_OP_READ, 10 + i);
        jobs[i].next = i < 15 ? &jobs[i + 1] : NULL;
    }
    assert_null(hapax__lane_submit_all(lane, jobs));
    for (job = collect(lane, 12); job; job = job->next)
        assert_int_equal(job->op.verdict, HAPAX_ABSENT);
    assert_int_equal(hapax__lane_queued(lane), 5);
    sem_post(&logged->go);
    assert_ptr_equal(collect(lane, 1), &first);
    assert_int_equal(first.op.verdict, HAPAX_OK);
    wait_for(&logged->come);
    logged->fails = true;
    sem_post(&logged->go);
    for (job = collect(lane, 4); job; job = job->next)
        assert_int_equal(job->op.error, HAPAX_ERR_INDETERMINATE);
    hapax__lane_text(lane, text);
    assert_string_equal(text, "the disk is gone");
    assert_null(hapax__lane_close(lane));
}

/* Gives the lane 8 jobs that write and one that does not, and waits until they are judged. */
static void judge_nine(struct hapax__lane *lane, struct hapax__job jobs[9], unsigned number)
{
    for (unsigned i = 0; i < 9; i++) {
        jobs[i] = new_job(i < 8 ? HAPAX_OP_COMPLETE : HAPAX_OP_READ, number + i);
        jobs[i].next = i < 8 ? &jobs[i + 1] : NULL;
    }
    assert_null(hapax__lane_submit_all(lane, jobs));
    assert_ptr_equal(collect(lane, 1), &jobs[8]);
}

/* A sync fails, and the store comes back before what was judged meanwhile is synced. That what was
 * written afterwards is on disk says nothing of what was written before. */
CASE(a_later_write_vouches_for_none_that_was_lost)
{
    struct logged *logged = open_logged();
    struct hapax__job first = new_job(HAPAX_OP_COMPLETE, 1), before[9], after[9];
    struct hapax__lane *lane;

    assert_int_equal(hapax__lane_open(&lane, &logged->base, 64), HAPAX_ERR_NONE);
    assert_true(hapax__lane_submit(lane, &first));
    wait_for(&logged->come);
    judge_nine(lane, before, 10);
    logged->lost = logged->writes;
    judge_nine(lane, after, 20);
    logged->stands = false;
    sem_post(&logged->go);
    collect(lane, 17);
    assert_int_equal(first.op.error, HAPAX_ERR_INDETERMINATE);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(before[i].op.error, HAPAX_ERR_INDETERMINATE);
        assert_int_equal(after[i].op.verdict, HAPAX_OK);
    }
    assert_null(hapax__lane_close(lane));
}

static sem_t looks, looked;

/* Stands in the lane until it is let go. */
static void stand(struct hapax_store *store, struct hapax__job *job)
{
    (void)store;
    (void)job;
    sem_post(&looks);
    wait_for(&looked);
}

/* However much there is to judge, what was judged is synced meanwhile. */
CASE(no_sync_waits_for_a_judgement)
{
    struct logged *logged = open_logged();
    struct hapax__job write = new_job(HAPAX_OP_COMPLETE, 1), stands[2] = {{.look = stand}};
    struct hapax__job *answered;
    struct hapax__lane *lane;

    sem_init(&looks, 0, 0);
    sem_init(&looked, 0, 0);
    stands[1] = stands[0];
    assert_int_equal(hapax__lane_open(&lane, &logged->base, 64), HAPAX_ERR_NONE);
    assert_true(hapax__lane_submit(lane, &stands[0]));
    wait_for(&looks);
    assert_true(hapax__lane_submit(lane, &write));
    assert_true(hapax__lane_submit(lane, &stands[1]));
    sem_post(&logged->go);
    sem_post(&looked);
    answered = collect(lane, 2);
    assert_ptr_equal(answered, &stands[0]);
    assert_ptr_equal(answered->next, &write);
    sem_post(&looked);
    assert_ptr_equal(collect(lane, 1), &stands[1]);
    assert_null(hapax__lane_close(lane));
}

/* A store that is asked in halves: what is begun waits until it is let go, in its order. */
struct halves {
    struct hapax_store base;
    sem_t begun, go;
    atomic_uint under_way, most, runs;
    bool failing;
};

static enum hapax_error halves_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct halves *halves = (struct halves *)store;

    assert_int_equal(halves->under_way, 0); /* the two are never mixed */
    halves->runs++;
    for (size_t i = 0; i < n; i++)
        ops[i].verdict = ops[i].kind == HAPAX_OP_LIST ? HAPAX_FOUND : HAPAX_OK;
    return HAPAX_ERR_NONE;
}

static void halves_begin(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct halves *halves = (struct halves *)store;
    unsigned now = ++halves->under_way;

    (void)ops;
    (void)n;
    if (now > halves->most)
        halves->most = now;
    sem_post(&halves->begun);
}

static enum hapax_error halves_end(struct hapax_store *store, struct hapax_op *ops, size_t n,
                                   char text[HAPAX_TEXT_MAX])
{
    struct halves *halves = (struct halves *)store;

    wait_for(&halves->go);
    halves->under_way--;
    for (size_t i = 0; i < n && !halves->failing; i++)
        ops[i].verdict = HAPAX_OK;
    if (!halves->failing)
        return HAPAX_ERR_NONE;
    snprintf(text, HAPAX_TEXT_MAX, "the line is dead");
    return HAPAX_ERR_INDETERMINATE;
}

static enum hapax_error halves_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    (void)say;
    (void)arg;
    assert_int_equal(((struct halves *)store)->under_way, 0);
    return HAPAX_ERR_NONE;
}

static enum hapax_error halves_open(struct hapax_store **out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    struct halves *halves = calloc(1, sizeof(*halves));

    (void)uri;
    (void)text;
    assert_non_null(halves);
    sem_init(&halves->begun, 0, 0);
    sem_init(&halves->go, 0, 0);
    *out = &halves->base;
    return HAPAX_ERR_NONE;
}

static const struct hapax_store_type halves_type = {
    .scheme = "halves",
    .batch_max = 64,
    .serial = true,
    .body_max = 64,
    .open = halves_open,
    .run = halves_run,
    .begin = halves_begin,
    .end = halves_end,
    .check = halves_check,
    .close = logged_close,
};

static struct hapax__lane *open_halves(struct halves **halves)
{
    struct hapax__lane *lane;
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    hapax__store_add(&halves_type);
    assert_int_equal(hapax_store_open(&store, "halves:", text), HAPAX_ERR_NONE);
    *halves = (struct halves *)store;
    assert_int_equal(hapax__lane_open(&lane, store, 256), HAPAX_ERR_NONE);
    return lane;
}

/* Submits n jobs from `number` on. */
static void submit_some(struct hapax__lane *lane, struct hapax__job *jobs, unsigned number,
                        unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        jobs[i] = new_job(HAPAX_OP_COMPLETE, number + i);
        jobs[i].next = i + 1 < n ? &jobs[i + 1] : NULL;
    }
    assert_null(hapax__lane_submit_all(lane, jobs));
}

/* Batches are begun while others are not ended, up to the store's limit; the more are under way,
 * the more jobs a batch needs. Jobs come back in their order. */
CASE(batches_are_begun_while_others_are_under_way)
{
    enum { ALL = 1 + 8 + 16 + 24 + 40 };
    struct halves *halves;
    struct hapax__lane *lane = open_halves(&halves);
    struct hapax__job jobs[ALL], *job;
    unsigned at = 0;

    for (unsigned n = 1; n <= 24; at += n, n = n == 1 ? 8 : n + 8) {
        submit_some(lane, &jobs[at], at, n);
        wait_for(&halves->begun);
    }
    submit_some(lane, &jobs[at], at, 40);
    assert_int_equal(hapax__lane_queued(lane), ALL);
    sem_post(&halves->go);
    job = collect(lane, 1);
    assert_ptr_equal(job, &jobs[0]);
    wait_for(&halves->begun); /* the fifth */
    for (unsigned i = 0; i < 4; i++)
        sem_post(&halves->go);
    job = collect(lane, ALL - 1);
    for (unsigned i = 1; i < ALL; i++, job = job->next) {
        assert_ptr_equal(job, &jobs[i]);
        assert_int_equal(job->op.verdict, HAPAX_OK);
    }
    assert_int_equal(halves->most, HAPAX_BEGUN_MAX);
    assert_int_equal(halves->runs, 0);
    assert_null(hapax__lane_close(lane));
}

static void look_at(struct hapax_store *store, struct hapax__job *job)
{
    (void)job;
    (void)hapax_store_check(store, NULL, NULL);
}

/* What no store takes in halves, and a look, wait until nothing is under way, and keep their turn:
 * a LIST, an op over its limits, a job that is too late. */
CASE(what_has_no_halves_waits_for_its_turn)
{
    struct halves *halves;
    struct hapax__lane *lane = open_halves(&halves);
    struct hapax__job jobs[9 + 3 * 8 + 1], *job;

    submit_some(lane, jobs, 0, 1);
    wait_for(&halves->begun);
    submit_some(lane, &jobs[1], 1, 8);
    wait_for(&halves->begun);
    for (unsigned i = 9; i < 33; i++) {
        jobs[i] = new_job(i % 8 == 1 ? HAPAX_OP_LIST : HAPAX_OP_COMPLETE, i);
        jobs[i].op.limit = i == 9 ? 1 : 0;
        jobs[i].op.outcome.body.len = i == 18 ? 65 : 0;
        jobs[i].deadline_us = i == 19 ? 1 : 0;
        jobs[i].next = i < 32 ? &jobs[i + 1] : NULL;
    }
    assert_null(hapax__lane_submit_all(lane, &jobs[9]));
    jobs[33] = new_job(HAPAX_OP_READ, 33);
    jobs[33].look = look_at;
    assert_true(hapax__lane_submit(lane, &jobs[33]));
    sem_post(&halves->go);
    sem_post(&halves->go);
    job = collect(lane, 34);
    for (unsigned i = 0; i < 34; i++, job = job->next) {
        enum hapax_error error = i == 18   ? HAPAX_ERR_TOO_BIG
                                 : i == 19 ? HAPAX_ERR_UNAVAILABLE
                                           : HAPAX_ERR_NONE;

        assert_ptr_equal(job, &jobs[i]);
        assert_int_equal(job->op.error, error);
    }
    assert_null(hapax__lane_close(lane));
}

/* A batch that fails is INDETERMINATE as the store leaves it, with the store's text; a lane that is
 * closed ends what was begun. */
CASE(a_closing_lane_ends_what_was_begun)
{
    struct halves *halves;
    struct hapax__lane *lane = open_halves(&halves);
    struct hapax__job jobs[9], *job;
    char text[HAPAX_TEXT_MAX];
    unsigned count = 0;

    halves->failing = true;
    submit_some(lane, jobs, 0, 1);
    wait_for(&halves->begun);
    sem_post(&halves->go);
    job = collect(lane, 1);
    assert_int_equal(job->op.error, HAPAX_ERR_INDETERMINATE);
    hapax__lane_text(lane, text);
    assert_string_equal(text, "the line is dead");
    submit_some(lane, jobs, 0, 1);
    wait_for(&halves->begun);
    submit_some(lane, &jobs[1], 1, 8);
    sem_post(&halves->go);
    sem_post(&halves->go);
    for (job = hapax__lane_close(lane); job; job = job->next)
        count++;
    assert_int_equal(count, 9);
}

/* A lane that is judged here judges in its turns alone, and at its end. */
CASE(a_turn_judges_here)
{
    struct logged *logged = open_logged();
    struct hapax__job read = new_job(HAPAX_OP_READ, 1), write = new_job(HAPAX_OP_COMPLETE, 2);
    struct hapax__job last = new_job(HAPAX_OP_COMPLETE, 3), later = new_job(HAPAX_OP_READ, 4);
    struct hapax__lane *lane;

    assert_int_equal(hapax__lane_open_here(&lane, &logged->base, 64), HAPAX_ERR_NONE);
    assert_false(hapax__lane_turn(lane));
    assert_true(hapax__lane_submit(lane, &read));
    assert_true(hapax__lane_submit(lane, &write));
    assert_true(hapax__lane_turn(lane));
    assert_ptr_equal(hapax__lane_reap(lane), &read);
    assert_null(read.next);
    wait_for(&logged->come);
    assert_true(hapax__lane_submit(lane, &later)); /* one job waits while the log is synced */
    assert_false(hapax__lane_turn(lane));
    sem_post(&logged->go);
    assert_ptr_equal(collect(lane, 1), &write);
    assert_true(hapax__lane_turn(lane));
    assert_ptr_equal(hapax__lane_reap(lane), &later);
    assert_true(hapax__lane_submit(lane, &last));
    logged->stands = false;
    assert_ptr_equal(hapax__lane_close(lane), &last);
    assert_int_equal(last.op.verdict, HAPAX_OK);
}

/* From the moment it closes, a lane takes nothing that nobody would answer. */
CASE(a_closing_lane_refuses)
{
    struct hapax__job job = new_job(HAPAX_OP_CLAIM, 1);
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;
    struct hapax__lane *lane;
    struct late *late;
    bool taken = true;

    hapax__store_add(&late_type);
    assert_int_equal(hapax_store_open(&store, "late:", text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__lane_open(&lane, store, 1), HAPAX_ERR_NONE);
    late = (struct late *)store;
    late->lane = lane;
    late->job = &job;
    late->taken = &taken;
    assert_null(hapax__lane_close(lane));
    assert_false(taken);
    assert_int_equal(job.op.error, HAPAX_ERR_UNAVAILABLE);
}

/* Where a lane cannot be had, the store is still the caller's. */
CASE(a_lane_that_cannot_open_leaves_the_store)
{
    struct hapax__job job = new_job(HAPAX_OP_CLAIM, 1);
    struct hapax__lane *lane = (struct hapax__lane *)&job;
    struct rlimit before, none;
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;
    enum hapax_error error;

    assert_int_equal(hapax_store_open(&store, "memory:", text), HAPAX_ERR_NONE);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    error = hapax__lane_open(&lane, store, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(error, HAPAX_ERR_NOMEM);
    assert_null(lane);
    assert_int_equal(hapax_store_run(store, &job.op, 1), HAPAX_ERR_NONE);
    hapax_store_close(store);
}

/* ---- threads ------------------------------------------------------------------------- */

#define THREADS    16
#define PER_THREAD 200

struct submitter {
    pthread_t thread;
    struct hapax__lane *lane;
    struct hapax__job *jobs;
    unsigned refused;
};

static void *submit_all(void *arg)
{
    struct submitter *me = arg;

    for (unsigned i = 0; i < PER_THREAD; i++)
        me->refused += !hapax__lane_submit(me->lane, &me->jobs[i]);
    return NULL;
}

/* Sixteen threads at once: each job is answered once, each thread's in its order. */
CASE(many_threads_may_submit)
{
    static struct hapax__job jobs[THREADS * PER_THREAD];
    struct submitter submitters[THREADS];
    unsigned seen[THREADS] = {0};
    struct bed bed;

    open_bed(&bed, THREADS * PER_THREAD);
    for (unsigned i = 0; i < THREADS * PER_THREAD; i++)
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
    for (unsigned i = 0; i < THREADS; i++) {
        submitters[i] = (struct submitter){.lane = bed.lane, .jobs = jobs + i * PER_THREAD};
        assert_int_equal(pthread_create(&submitters[i].thread, NULL, submit_all, &submitters[i]),
                         0);
    }
    for (struct hapax__job *job = collect(bed.lane, THREADS * PER_THREAD); job; job = job->next) {
        unsigned number = (unsigned)(job - jobs);

        assert_int_equal(number % PER_THREAD, seen[number / PER_THREAD]);
        seen[number / PER_THREAD]++;
        assert_int_equal(job->op.verdict, HAPAX_CLAIMED);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(submitters[i].thread, NULL);
        assert_int_equal(submitters[i].refused, 0);
        assert_int_equal(seen[i], PER_THREAD);
    }
    close_bed(&bed);
}

/* A signal sent to the process is the program's: the lane's thread does not take it. */
CASE(signals_are_left_to_the_program)
{
    struct timespec wait = {WAIT_MS / 1000, 0};
    struct hapax__job job = new_job(HAPAX_OP_CLAIM, 1);
    sigset_t usr1, before;
    struct bed bed;

    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    open_bed(&bed, 1);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &usr1, &before), 0);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    run_one(&bed, &job);
    assert_int_equal(sigtimedwait(&usr1, NULL, &wait), SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close_bed(&bed);
}

/* ---- failures ------------------------------------------------------------------------ */

/* The claim was granted, its reply was lost: the same token gets it again, nobody else does. */
CASE(a_lost_reply_does_not_strand_the_winner)
{
    struct hapax__job job = new_job(HAPAX_OP_CLAIM, 1);
    struct hapax__job read = new_job(HAPAX_OP_READ, 1);
    char text[HAPAX_TEXT_MAX];
    struct bed bed;

    open_bed(&bed, 1);
    hapax__lane_text(bed.lane, text);
    assert_string_equal(text, "");
    hapax__plan_set(&bed.plan, HAPAX__LOSE_REPLY, 1, 1);
    run_one(&bed, &job);
    assert_int_equal(job.op.verdict, HAPAX_NO_VERDICT);
    assert_int_equal(job.op.error, HAPAX_ERR_INDETERMINATE);
    hapax__lane_text(bed.lane, text);
    assert_string_not_equal(text, "");
    run_one(&bed, &read);
    assert_int_equal(read.op.record.state, HAPAX_STATE_STARTED);
    run_one(&bed, &job);
    assert_int_equal(job.op.verdict, HAPAX_CLAIMED);
    assert_int_equal(job.op.record.attempt, 1);
    assert_true(job.op.record.fence == read.op.record.fence);
    close_bed(&bed);
}

/* A LIST whose page was lost is asked again for the same page. */
CASE(a_lost_page_is_not_skipped)
{
    struct hapax__job list = new_job(HAPAX_OP_LIST, 0);
    struct hapax__job job;
    struct bed bed;

    open_bed(&bed, 1);
    for (unsigned i = 1; i <= 3; i++) {
        job = new_job(HAPAX_OP_CLAIM, i);
        run_one(&bed, &job);
    }
    list.op.id = (struct hapax_id){{0}};
    list.op.limit = 2;
    hapax__plan_set(&bed.plan, HAPAX__LOSE_REPLY, 1, 1);
    run_one(&bed, &list);
    assert_int_equal(list.op.error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(list.op.count, 0);
    run_one(&bed, &list);
    assert_int_equal(list.op.count, 2);
    assert_int_equal(list.op.records[0].id.bytes[0], 1);
    assert_true(list.op.more);
    free(list.memory);
    list.op.cursor = list.op.next_cursor;
    run_one(&bed, &list);
    assert_int_equal(list.op.count, 1);
    assert_int_equal(list.op.records[0].id.bytes[0], 3);
    assert_false(list.op.more);
    free(list.memory);
    close_bed(&bed);
}

static void fail_each(enum hapax__fault fault, enum hapax_error error, unsigned fails)
{
    enum { N = 9 };

    for (unsigned n = 1; n <= N; n++) {
        struct hapax__job first = new_job(HAPAX_OP_CLAIM, N), jobs[N];
        struct bed bed;

        open_bed(&bed, N);
        hold(&bed, &first);
        hapax__plan_set(&bed.plan, fault, n, fails);
        for (unsigned i = 0; i < N; i++) {
            jobs[i] = new_job(HAPAX_OP_CLAIM, i);
            submit(&bed, &jobs[i]);
        }
        hapax__plan_go(&bed.plan);
        collect(bed.lane, N + 1);
        for (unsigned i = 0; i < N; i++) {
            bool failed = i + 1 >= n && i + 1 - n < fails;

            assert_int_equal(jobs[i].op.verdict, failed ? HAPAX_NO_VERDICT : HAPAX_CLAIMED);
            assert_int_equal(jobs[i].op.error, failed ? error : HAPAX_ERR_NONE);
        }
        hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
        for (unsigned i = 0; i < N; i++) {
            run_one(&bed, &jobs[i]);
            assert_int_equal(jobs[i].op.verdict, HAPAX_CLAIMED);
            assert_int_equal(jobs[i].op.record.attempt, 1);
        }
        close_bed(&bed);
    }
}

/* Whichever op of a batch fails, and however: the others have their verdicts, and a repeat its
 * own. */
CASE(a_failure_at_any_op_touches_no_other)
{
    fail_each(HAPAX__FAIL_BEFORE, HAPAX_ERR_UNAVAILABLE, 1);
    fail_each(HAPAX__FAIL_BEFORE, HAPAX_ERR_UNAVAILABLE, 9);
    fail_each(HAPAX__LOSE_OP, HAPAX_ERR_INDETERMINATE, 1);
    fail_each(HAPAX__LOSE_REPLY, HAPAX_ERR_INDETERMINATE, 2);
    fail_each(HAPAX__DUPLICATE, HAPAX_ERR_NONE, 0);
}

static void count_crash(void *arg)
{
    ++*(unsigned *)arg;
}

/* A store that dies half-way: what it had answered stands, the rest is INDETERMINATE. */
CASE(a_store_that_dies_half_way_is_safe)
{
    struct hapax__job first = new_job(HAPAX_OP_CLAIM, 9), jobs[4];
    unsigned crashes = 0;
    struct bed bed;

    open_bed(&bed, 8);
    hapax__plan_crash(&bed.plan, count_crash, &crashes);
    hold(&bed, &first);
    hapax__plan_set(&bed.plan, HAPAX__CRASH_AFTER, 3, 1);
    for (unsigned i = 0; i < 4; i++) {
        jobs[i] = new_job(HAPAX_OP_CLAIM, i);
        submit(&bed, &jobs[i]);
    }
    hapax__plan_go(&bed.plan);
    collect(bed.lane, 5);
    assert_int_equal(crashes, 1);
    assert_int_equal(jobs[0].op.verdict, HAPAX_CLAIMED);
    assert_int_equal(jobs[1].op.verdict, HAPAX_CLAIMED);
    assert_int_equal(jobs[2].op.error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(jobs[3].op.error, HAPAX_ERR_INDETERMINATE);
    for (unsigned i = 0; i < 4; i++) {
        jobs[i].op.kind = HAPAX_OP_READ;
        run_one(&bed, &jobs[i]);
        assert_int_equal(jobs[i].op.verdict, i < 3 ? HAPAX_FOUND : HAPAX_ABSENT);
    }
    close_bed(&bed);
}

/* One round with the n-th allocation failing. What could not be had is refused, what was taken is
 * answered, and a claim that was answered CLAIMED is there. */
static void starve(uint64_t n, bool forever)
{
    static const enum hapax_op_kind kinds[] = {HAPAX_OP_CLAIM, HAPAX_OP_COMPLETE, HAPAX_OP_READ,
                                               HAPAX_OP_LIST, HAPAX_OP_PURGE};
    enum { N = sizeof(kinds) / sizeof(kinds[0]) };
    struct hapax__job jobs[N];
    struct hapax_store *inner = NULL, *store = NULL;
    struct hapax__lane *lane = NULL;
    struct hapax__plan plan;
    char text[HAPAX_TEXT_MAX];

    hapax__plan_init(&plan);
    for (unsigned i = 0; i < N; i++) {
        jobs[i] = new_job(kinds[i], 1);
        jobs[i].op.outcome.body = hapax_str("made");
        jobs[i].op.outcome.body_kept = true;
        if (kinds[i] == HAPAX_OP_READ || kinds[i] == HAPAX_OP_LIST)
            jobs[i].op.scope = (struct hapax_span){NULL, 0};
    }
    oom_fail_at(n, forever);
    if (hapax_store_open(&inner, "memory:", text) == HAPAX_ERR_NONE &&
        hapax__faulty_wrap(&store, inner, &plan) == HAPAX_ERR_NONE &&
        hapax__lane_open(&lane, store, N) == HAPAX_ERR_NONE) {
        for (unsigned i = 0; i < N; i++)
            assert_true(hapax__lane_submit(lane, &jobs[i]));
        collect(lane, N);
        assert_null(hapax__lane_close(lane));
    } else {
        hapax_store_close(store ? store : inner);
    }
    for (unsigned i = 0; i < N && lane; i++) {
        struct hapax_op *op = &jobs[i].op;

        if (op->verdict == HAPAX_NO_VERDICT) {
            assert_true(op->error == HAPAX_ERR_NOMEM || op->error == HAPAX_ERR_INDETERMINATE);
            assert_int_equal(op->cursor.bytes[0], 0); /* a repeat would skip what it was to give */
        } else {
            assert_int_equal(op->error, HAPAX_ERR_NONE);
        }
        if (op->verdict == HAPAX_FOUND && op->kind == HAPAX_OP_READ)
            assert_memory_equal(op->record.scope.ptr, "orders", 6);
        free(jobs[i].memory);
    }
    hapax__plan_release(&plan);
}

static void starve_at_every(bool forever)
{
    int64_t live = oom_live();
    uint64_t n = 0;
    uint64_t count;

    do {
        starve(++n, forever);
        count = oom_count();
        oom_fail_at(0, false);
        assert_true(oom_live() == live);
    } while (count >= n);
    assert_true(n > 8); /* it did allocate, and each of them failed once */
}

/* Whichever allocation fails, once: every job that was taken is answered, and nothing leaks. */
CASE(one_failed_allocation_costs_no_answer)
{
    starve_at_every(false);
}

/* The same, where there is no memory from some moment on. */
CASE(no_memory_from_some_moment_on_costs_no_answer)
{
    starve_at_every(true);
}

/* ---- the census ------------------------------------------------------------------------- */

/* Leaves a claim as it is, or fails it. */
static void leave(struct hapax_store *store, unsigned number, int64_t lease_ms, bool fails,
                  bool as_unknown)
{
    struct hapax__job claim = new_job(HAPAX_OP_CLAIM, number), fail = claim;

    claim.op.lease_ms = lease_ms;
    assert_int_equal(hapax_store_run(store, &claim.op, 1), HAPAX_ERR_NONE);
    fail.op.kind = HAPAX_OP_FAIL;
    fail.op.ran = true;
    fail.op.as_unknown = as_unknown;
    if (fails)
        assert_int_equal(hapax_store_run(store, &fail.op, 1), HAPAX_ERR_NONE);
}

/* The census's page once it has the text, or has it not; the caller frees it. */
static char *page_that(struct hapax__census *census, const char *line, bool has)
{
    struct pollfd none = {.fd = -1};
    char *text = NULL;
    size_t len;

    for (int i = 0; i < WAIT_MS; i++) {
        FILE *out = open_memstream(&text, &len);

        hapax__census_page(out, census);
        (void)fclose(out);
        if ((strstr(text, line) != NULL) == has)
            return text;
        free(text);
        (void)poll(&none, 1, 1);
    }
    fail_msg("%s page has %s", has ? "no" : "each", line);
    return NULL;
}

static char *page_with(struct hapax__census *census, const char *line)
{
    return page_that(census, line, true);
}

static char *page_without(struct hapax__census *census, const char *line)
{
    return page_that(census, line, false);
}

/* Each unfinished operation counts in its state, and a lease that is over is one of its own. */
CASE(a_census_counts_unfinished_operations_by_state)
{
    struct hapax__census *census;
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    char *page;

    assert_int_equal(hapax_store_open(&store, "memory:", text), HAPAX_ERR_NONE);
    assert_true(hapax__census_fits(store));
    leave(store, 1, 30000, false, false);
    leave(store, 2, 30000, false, false);
    leave(store, 3, 1, false, false);
    leave(store, 4, 30000, true, false);
    leave(store, 5, 30000, true, true);
    assert_int_equal(hapax__census_open(&census, store, NULL), HAPAX_ERR_NONE);
    page = page_with(census, "{state=\"started_over\"} 1\n");
    assert_non_null(strstr(page, "hapax_store_operations{state=\"started\"} 2\n"));
    assert_non_null(strstr(page, "hapax_store_operations{state=\"failed\"} 1\n"));
    assert_non_null(strstr(page, "hapax_store_operations{state=\"unknown\"} 1\n"));
    assert_non_null(strstr(page, "hapax_store_census_up 1\n"));
    assert_non_null(strstr(page, "hapax_store_census_whole 1\n"));
    free(page);
    hapax__census_close(census);
}

/* A store that could not be opened at first is opened later. */
CASE(a_census_opens_its_store)
{
    struct hapax__census *census;

    assert_int_equal(hapax__census_open(&census, NULL, "memory:"), HAPAX_ERR_NONE);
    free(page_with(census, "hapax_store_census_up 1\n"));
    hapax__census_close(census);
}

/* A long census earns a long pause; one that failed, 10 s at most. */
CASE(a_census_pauses_by_its_length)
{
    static const struct {
        bool up;
        int64_t us, pause_us;
    } plays[] = {
        {true, 5, US_PER_S},
        {true, 2 * US_PER_S, 200 * US_PER_S},
        {false, 5, US_PER_S},
        {false, 50 * US_PER_MS, 5 * US_PER_S},
        {false, 2 * US_PER_S, 10 * US_PER_S},
    };

    for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++) {
        const struct hapax__census_found found = {.up = plays[i].up, .us = plays[i].us};

        assert_int_equal(hapax__census_pause_us(&found), plays[i].pause_us);
    }
}

/* ---- vitals ------------------------------------------------------------------------------ */

static atomic_bool answers; /* whether the server of measured() does */

static enum hapax_error measure(struct hapax_store *store, struct hapax_vitals *out)
{
    if (!atomic_load(&answers))
        return hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "it is away");
    out->clock_ahead_us = -1500 * US_PER_MS;
    out->replicas = 2;
    out->server_cert_us = hapax__wall_us() - 3600 * US_PER_S;
    return HAPAX_ERR_NONE;
}

/* What a store knows of its servers is on the page, and nothing else. While it is away only the end
 * of its certificate is: that goes on to be true. */
CASE(a_census_asks_for_vitals)
{
    struct hapax_store_type type;
    struct hapax__census *census;
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    char *page;

    assert_int_equal(hapax_store_open(&store, "memory:", text), HAPAX_ERR_NONE);
    type = *store->type;
    type.measure = measure;
    type.forgets = true;
    store->type = &type;
    atomic_store(&answers, true);
    assert_int_equal(hapax__census_open(&census, store, NULL), HAPAX_ERR_NONE);
    page = page_with(census, "hapax_store_clock_ahead_seconds -1.500000\n");
    assert_non_null(strstr(page, "hapax_store_replicas 2\n"));
    assert_non_null(strstr(page, "hapax_store_certificate_seconds{of=\"server\"} -36"));
    assert_null(strstr(page, "{of=\"client\"}"));
    assert_null(strstr(page, "lag"));
    assert_null(strstr(page, "disk"));
    assert_null(strstr(page, "census")); /* this store cannot be counted */
    free(page);
    atomic_store(&answers, false);
    free(page_without(census, "hapax_store_replicas"));
    page = page_with(census, "hapax_store_certificate_seconds{of=\"server\"} -36");
    assert_null(strstr(page, "clock"));
    free(page);
    hapax__census_close(census);
}

/* A store that measures nothing shows nothing. */
CASE(a_store_without_servers_has_no_vitals)
{
    struct hapax_vitals vitals = {.replicas = 7};
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX], *page = NULL;
    size_t len;
    FILE *out;

    assert_int_equal(hapax_store_open(&store, "memory:", text), HAPAX_ERR_NONE);
    assert_int_equal(hapax_store_measure(store, &vitals), HAPAX_ERR_NONE);
    out = open_memstream(&page, &len);
    hapax__page_vitals(out, &vitals);
    (void)fclose(out);
    assert_string_equal(page, "");
    free(page);
    hapax_store_close(store);
}

/* Of more operations than it may look at it says that there are more. */
CASE(a_census_is_bounded)
{
    struct hapax__census *census;
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax_store_open(&store, "memory:", text), HAPAX_ERR_NONE);
    for (unsigned i = 1; i <= HAPAX__CENSUS_MAX + 1; i++)
        leave(store, i, 30000, false, false);
    assert_int_equal(hapax__census_open(&census, store, NULL), HAPAX_ERR_NONE);
    free(page_with(census, "hapax_store_census_whole 0\n"));
    free(page_with(census, "hapax_store_operations{state=\"started\"} 10000\n"));
    hapax__census_close(census);
}
