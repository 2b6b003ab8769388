/* SPDX-License-Identifier: Apache-2.0
 *
 * A lane: one store handle, one queue before it and one list of answers behind it.
 *
 * Two things are done, each by one thread at a time: batches are judged, and answers are synced,
 * which is to wait until the writes on which they rest are on disk. A lane has two threads that do
 * either, whichever is next. So a job alone goes through one thread, and under load one judges
 * while the other waits for the disk. A lane that is judged "here" has one thread, which syncs;
 * over a store that answers when all is durable a lane has one thread, too, which judges.
 *
 * The invariant: jobs go to the store in the order in which they were submitted, and come back each
 * exactly once. The mutex is free while the store works and during system calls. The eventfd is
 * written after answers were listed, and cleared before answers are taken. So it may be readable
 * with nothing to reap. With answers to reap it is readable, but for the time of one write. Answers
 * that were judged here are told of by hapax__lane_turn() alone.
 *
 * Answers point into the store's memory, which is valid until its next run. So they are copied into
 * one block per job. What the op itself has already (its scope, the outcome it stored) is borrowed
 * from the op, so a claim that is granted costs no allocation. Rejected: a pool of threads over one
 * handle. A store judges a batch for less than it judges the ops one by one.
 */
#include "lane.h"

#include "base/clock.h"
#include "base/thread.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A batch ends with the op that passes this many bytes of outcomes, since a store may build a whole
 * batch in memory before it writes. */
#define BATCH_BYTES_MAX ((size_t)32 << 20)

/* So many jobs are worth a batch of their own while the log is synced, and as many for each batch
 * that is under way; fewer wait for others. */
#define BATCH_LEAST 8u

struct jobs {
    struct hapax__job *first;
    struct hapax__job **end; /* where the next one is linked in */
};

/* A batch that was sent, to a store that is asked in halves. */
struct sent {
    struct hapax__job *jobs;
    struct hapax_op *ops; /* of those that were begun */
    size_t count;
    int64_t now_us; /* when that was decided */
};

struct hapax__lane {
    struct hapax_store *store; /* of whoever judges; `sync` and `end` are for any thread */
    struct hapax__lane_counts *counts; /* NULL: nowhere */
    /* Of whoever judges: a batch, side by side. */
    struct hapax_op *ops;
    uint64_t *rests;
    uint32_t batch_max;
    uint32_t queue_max;
    bool here; /* judged by whoever calls hapax__lane_turn() */
    int fd;
    unsigned threads;
    pthread_t thread[2];

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool closing;
    bool judging; /* or beginning */
    bool syncing; /* or ending */
    uint32_t waiting;
    uint32_t under_way;
    struct jobs queue;
    struct jobs judged; /* they wait for `last` */
    uint64_t last;
    struct sent sent[HAPAX_BEGUN_MAX]; /* a ring */
    uint32_t first;
    uint32_t begun_n;
    struct jobs done;
    char text[HAPAX_TEXT_MAX];
};

static void jobs_init(struct jobs *jobs)
{
    jobs->first = NULL;
    jobs->end = &jobs->first;
}

static void jobs_add(struct jobs *jobs, struct hapax__job *job)
{
    job->next = NULL;
    *jobs->end = job;
    jobs->end = &job->next;
}

static struct hapax__job *jobs_take(struct jobs *jobs)
{
    struct hapax__job *first = jobs->first;

    jobs_init(jobs);
    return first;
}

/* ---- answers ------------------------------------------------------------------------- */

static void answer_error(struct hapax_op *op, enum hapax_error error)
{
    op->verdict = HAPAX_NO_VERDICT;
    op->error = error;
    memset(&op->record, 0, sizeof(op->record));
    op->records = NULL;
    op->count = 0;
}

/* The bytes the op itself holds, where they are the same. */
static void borrow(struct hapax_span *answered, struct hapax_span asked)
{
    if (answered->len > 0 && answered->len == asked.len &&
        memcmp(answered->ptr, asked.ptr, asked.len) == 0)
        *answered = asked;
}

static size_t size_of(const struct hapax_span *answered, struct hapax_span asked)
{
    return answered->ptr == asked.ptr ? 0 : answered->len;
}

static void move(uint8_t **at, struct hapax_span *answered, struct hapax_span asked)
{
    if (size_of(answered, asked) == 0)
        return;
    memcpy(*at, answered->ptr, answered->len);
    answered->ptr = *at;
    *at += answered->len;
}

/* What of a record an op holds already. */
struct asked {
    struct hapax_span scope, what, by, headers, body;
};

static void borrow_record(struct hapax_record *record, const struct asked *asked)
{
    borrow(&record->scope, asked->scope);
    borrow(&record->what, asked->what);
    borrow(&record->resolved_by, asked->by);
    borrow(&record->outcome.headers, asked->headers);
    borrow(&record->outcome.body, asked->body);
}

static size_t size_of_record(const struct hapax_record *record, const struct asked *asked)
{
    return size_of(&record->scope, asked->scope) + size_of(&record->what, asked->what) +
           size_of(&record->resolved_by, asked->by) +
           size_of(&record->outcome.headers, asked->headers) +
           size_of(&record->outcome.body, asked->body);
}

static void move_record(uint8_t **at, struct hapax_record *record, const struct asked *asked)
{
    move(at, &record->scope, asked->scope);
    move(at, &record->what, asked->what);
    move(at, &record->resolved_by, asked->by);
    move(at, &record->outcome.headers, asked->headers);
    move(at, &record->outcome.body, asked->body);
}

/* Copies what an answer points to from the store's memory into the job. False: out of memory. */
static bool keep(struct hapax__job *job)
{
    struct hapax_op *op = &job->op;
    struct asked asked = {op->scope, op->what, op->by, op->outcome.headers, op->outcome.body};
    size_t head = op->count * sizeof(*op->records);
    size_t size = head;
    uint8_t *at;

    assert(op->count <= HAPAX_LIST_MAX && (op->count == 0 || op->records));
    borrow_record(&op->record, &asked);
    size += size_of_record(&op->record, &asked);
    for (uint32_t i = 0; i < op->count; i++) {
        borrow_record(&op->records[i], &asked);
        size += size_of_record(&op->records[i], &asked);
    }
    if (op->count == 0)
        op->records = NULL;
    if (size == 0)
        return true;
    job->memory = malloc(size);
    if (!job->memory)
        return false;
    at = (uint8_t *)job->memory + head;
    move_record(&at, &op->record, &asked);
    for (uint32_t i = 0; i < op->count; i++)
        move_record(&at, &op->records[i], &asked);
    if (op->count > 0)
        op->records = memcpy(job->memory, op->records, head);
    assert(at == (uint8_t *)job->memory + size);
    return true;
}

/* ---- the thread ---------------------------------------------------------------------- */

/* By an instruction that is locked, once a batch: another lane may count here, too. */
static void add(uint64_t *word, uint64_t n)
{
    (void)__atomic_fetch_add(word, n, __ATOMIC_RELAXED);
}

static void count_batch(struct hapax__lane *lane, uint32_t ops)
{
    unsigned bits = ops > 1 ? 32u - (unsigned)__builtin_clz(ops - 1) : 0;

    static_assert(HAPAX_BATCH_MAX <= 1u << (HAPAX__SIZES - 1), "each batch has a bucket");
    if (!lane->counts)
        return;
    add(&lane->counts->sizes[bits], 1);
    add(&lane->counts->ops, ops);
}

static void count_sync(struct hapax__lane *lane, int64_t us)
{
    add(&lane->counts->sync.n[hapax__time_at(us)], 1);
    add(&lane->counts->sync.us, (uint64_t)us);
}

/* Under the lock: moves the next batch out of the queue. */
static struct hapax__job *take_batch(struct hapax__lane *lane)
{
    struct hapax__job *first = lane->queue.first;
    struct hapax__job *last = first;
    uint32_t count = 1;
    size_t bytes;

    assert(lane->waiting > 0);
    bytes = first->op.outcome.headers.len + first->op.outcome.body.len;
    while (last->next && !first->look && !last->next->look && count < lane->batch_max &&
           bytes < BATCH_BYTES_MAX) {
        last = last->next;
        bytes += last->op.outcome.headers.len + last->op.outcome.body.len;
        count++;
    }
    lane->queue.first = last->next;
    if (!last->next)
        lane->queue.end = &lane->queue.first;
    last->next = NULL;
    assert(count <= lane->waiting);
    lane->waiting -= count;
    lane->under_way += count;
    count_batch(lane, count);
    return first;
}

/* Begun or not is decided once for a batch, before any of it is sent. */
static bool begun(const struct hapax__job *job, int64_t now_us)
{
    return job->deadline_us == 0 || now_us < job->deadline_us;
}

static void note_text(struct hapax__lane *lane, const char *text)
{
    pthread_mutex_lock(&lane->lock);
    snprintf(lane->text, sizeof(lane->text), "%s", text);
    pthread_mutex_unlock(&lane->lock);
}

/* Takes the answer over. An op that got no verdict keeps what it asked, and so can be repeated. */
static void finish(struct hapax__lane *lane, struct hapax__job *job,
                   const struct hapax_op *answered)
{
    enum hapax_error error = answered->error;

    job->op = *answered;
    if (answered->verdict != HAPAX_NO_VERDICT) {
        if (keep(job))
            return;
        error = HAPAX_ERR_INDETERMINATE;
        note_text(lane, "out of memory for an answer");
    }
    answer_error(&job->op, error);
}

/* Copies the ops that are begun side by side; returns how many. */
static size_t take_ops(struct hapax_op *ops, struct hapax__job *batch, int64_t now_us)
{
    size_t n = 0;

    for (struct hapax__job *job = batch; job; job = job->next) {
        if (job->unless && atomic_load(job->unless))
            job->deadline_us = now_us; /* for finish_batch(), too: the flag may be set meanwhile */
        if (begun(job, now_us))
            ops[n++] = job->op;
    }
    return n;
}

/* Takes the answers over. Returns the last write on which one rests; 0: none does. rests is NULL
 * where none can. */
static uint64_t finish_batch(struct hapax__lane *lane, struct hapax__job *batch,
                             const struct hapax_op *ops, const uint64_t *rests, int64_t now_us)
{
    uint64_t last = 0;
    size_t i = 0;

    for (struct hapax__job *job = batch; job; job = job->next) {
        job->rests = 0;
        if (!begun(job, now_us)) {
            answer_error(&job->op, HAPAX_ERR_UNAVAILABLE);
            continue;
        }
        job->rests = rests ? rests[i] : 0;
        last = job->rests > last ? job->rests : last;
        finish(lane, job, &ops[i++]);
    }
    return last;
}

/* Returns the last write on which an answer rests; 0: none does. */
static uint64_t run_batch(struct hapax__lane *lane, struct hapax__job *batch)
{
    int64_t now_us = hapax__boot_us();
    size_t n;

    if (batch->look) { /* it is alone */
        batch->look(lane->store, batch);
        batch->op.verdict = HAPAX_OK;
        batch->rests = 0;
        return 0;
    }
    n = take_ops(lane->ops, batch, now_us);
    if (n > 0 && hapax_store_judge(lane->store, lane->ops, n, lane->rests) != HAPAX_ERR_NONE)
        note_text(lane, hapax_store_text(lane->store));
    return finish_batch(lane, batch, lane->ops, lane->rests, now_us);
}

/* Sends a batch. False: it has to be run. */
static bool begin_batch(struct hapax__lane *lane, struct sent *sent, struct hapax__job *batch)
{
    if (batch->look)
        return false;
    sent->jobs = batch;
    sent->now_us = hapax__boot_us();
    sent->count = take_ops(sent->ops, batch, sent->now_us);
    return sent->count > 0 && hapax_store_begin(lane->store, sent->ops, sent->count);
}

/* Under the lock, as what follows. Returns whether there was nothing to reap before, and is now. */
static bool give_back(struct hapax__lane *lane, struct hapax__job *batch)
{
    bool first = !lane->done.first;

    while (batch) {
        struct hapax__job *next = batch->next;

        assert((batch->op.verdict == HAPAX_NO_VERDICT) == (batch->op.error != HAPAX_ERR_NONE));
        assert(lane->under_way > 0);
        lane->under_way -= batch->rests == 0;
        jobs_add(batch->rests ? &lane->judged : &lane->done, batch);
        batch = next;
    }
    return first && lane->done.first;
}

/* While the log is synced, or batches are under way, a few jobs wait for more: each batch is a
 * write. */
static bool can_judge(const struct hapax__lane *lane)
{
    bool few =
        lane->waiting < BATCH_LEAST * (lane->begun_n > 0 ? lane->begun_n : 1) && !lane->closing;
    bool busy = lane->syncing || lane->begun_n > 0;

    return lane->queue.first && !lane->judging && !(busy && few) && lane->begun_n < HAPAX_BEGUN_MAX;
}

static bool can_sync(const struct hapax__lane *lane)
{
    return (lane->judged.first || lane->begun_n > 0) && !lane->syncing;
}

/* Waits for the answers to the batch that was begun first. */
static bool end_begun(struct hapax__lane *lane)
{
    struct sent *sent = &lane->sent[lane->first];
    char text[HAPAX_TEXT_MAX];

    lane->syncing = true;
    if (can_judge(lane))
        pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lane->lock);
    if (hapax_store_end(lane->store, sent->ops, sent->count, text) != HAPAX_ERR_NONE)
        note_text(lane, text);
    (void)finish_batch(lane, sent->jobs, sent->ops, NULL, sent->now_us);
    pthread_mutex_lock(&lane->lock);
    lane->syncing = false;
    lane->first = (lane->first + 1) % HAPAX_BEGUN_MAX;
    lane->begun_n--;
    if (lane->judging) /* it may wait for this */
        pthread_cond_broadcast(&lane->wake);
    return give_back(lane, sent->jobs);
}

static void tell(struct hapax__lane *lane)
{
    uint64_t one = 1;
    ssize_t written = write(lane->fd, &one, sizeof(one));

    assert(written == (ssize_t)sizeof(one));
}

/* Waits until nothing is begun, and tells of each batch: the next may take long. */
static void end_all(struct hapax__lane *lane)
{
    while (lane->begun_n > 0)
        if (lane->syncing)
            pthread_cond_wait(&lane->wake, &lane->lock);
        else if (end_begun(lane))
            tell(lane);
}

static bool judge(struct hapax__lane *lane)
{
    struct hapax__job *batch = take_batch(lane);
    struct sent *sent = &lane->sent[(lane->first + lane->begun_n) % HAPAX_BEGUN_MAX];
    uint64_t last;

    lane->judging = true;
    if (can_sync(lane))
        pthread_cond_signal(&lane->wake);
    if (lane->store->type->begin) {
        bool halves;

        pthread_mutex_unlock(&lane->lock);
        halves = begin_batch(lane, sent, batch);
        pthread_mutex_lock(&lane->lock);
        if (halves) {
            lane->judging = false;
            lane->begun_n++;
            return false;
        }
        end_all(lane);
    }
    pthread_mutex_unlock(&lane->lock);
    last = run_batch(lane, batch);
    pthread_mutex_lock(&lane->lock);
    lane->judging = false;
    if (last > lane->last)
        lane->last = last;
    return give_back(lane, batch);
}

/* After a failed sync the store may have come back between two batches. So each write is asked for:
 * that the last one is on disk says nothing of those before. Only the first question waits. */
static bool sync_judged(struct hapax__lane *lane)
{
    struct hapax__job *batch = jobs_take(&lane->judged);
    uint64_t asked = lane->last;
    int64_t since_us = lane->counts ? hapax__boot_us() : 0;
    char text[HAPAX_TEXT_MAX] = "";
    enum hapax_error error;

    lane->syncing = true;
    if (can_judge(lane))
        pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lane->lock);
    error = hapax_store_sync(lane->store, asked, text);
    if (lane->counts)
        count_sync(lane, hapax__boot_us() - since_us);
    for (struct hapax__job *job = batch; job; job = job->next) {
        if (job->rests != asked)
            error = hapax_store_sync(lane->store, asked = job->rests, text);
        job->rests = 0;
        if (error == HAPAX_ERR_NONE)
            continue;
        note_text(lane, text);
        free(job->memory);
        job->memory = NULL;
        answer_error(&job->op, error);
    }
    pthread_mutex_lock(&lane->lock);
    lane->syncing = false;
    return give_back(lane, batch);
}

static bool is_over(const struct hapax__lane *lane)
{
    return lane->closing && !lane->queue.first && !lane->judging && !lane->judged.first &&
           !lane->syncing && lane->begun_n == 0;
}

static void *lane_main(void *arg)
{
    struct hapax__lane *lane = arg;

    pthread_setname_np(pthread_self(), "hapax-lane");
    pthread_mutex_lock(&lane->lock);
    while (!is_over(lane)) {
        bool first = false;

        if (can_judge(lane) && (!lane->here || lane->closing))
            first = judge(lane);
        else if (can_sync(lane))
            first = lane->begun_n > 0 ? end_begun(lane) : sync_judged(lane);
        else
            pthread_cond_wait(&lane->wake, &lane->lock);
        if (!first)
            continue;
        pthread_mutex_unlock(&lane->lock);
        tell(lane);
        pthread_mutex_lock(&lane->lock);
    }
    pthread_cond_broadcast(&lane->wake);
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

bool hapax__lane_turn(struct hapax__lane *lane)
{
    bool done;

    if (!lane->here)
        return false;
    pthread_mutex_lock(&lane->lock);
    while (can_judge(lane))
        judge(lane);
    if (can_sync(lane))
        pthread_cond_signal(&lane->wake);
    done = lane->done.first;
    pthread_mutex_unlock(&lane->lock);
    return done;
}

/* ---- the lane ------------------------------------------------------------------------ */

static void lane_free(struct hapax__lane *lane)
{
    if (lane->fd >= 0)
        close(lane->fd);
    pthread_cond_destroy(&lane->wake);
    pthread_mutex_destroy(&lane->lock);
    for (size_t i = 0; i < HAPAX_BEGUN_MAX; i++)
        free(lane->sent[i].ops);
    free(lane->rests);
    free(lane->ops);
    free(lane);
}

static void end_threads(struct hapax__lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    lane->closing = true;
    pthread_cond_broadcast(&lane->wake);
    pthread_mutex_unlock(&lane->lock);
    while (lane->threads > 0)
        pthread_join(lane->thread[--lane->threads], NULL);
}

/* On failure no thread is left. */
static bool start(struct hapax__lane *lane)
{
    const struct hapax_store_type *type = lane->store->type;
    unsigned wanted = (type->judge && !lane->here) || type->begin ? 2 : 1;

    while (lane->threads < wanted &&
           hapax__thread_start(&lane->thread[lane->threads], lane_main, lane))
        lane->threads++;
    if (lane->threads == wanted)
        return true;
    end_threads(lane);
    return false;
}

static enum hapax_error open_lane(struct hapax__lane **out, struct hapax_store *store,
                                  uint32_t queue_max, bool here)
{
    struct hapax__lane *lane = calloc(1, sizeof(*lane));
    bool begun = true;

    assert(queue_max > 0);
    assert(store->type->batch_max >= 1 && store->type->batch_max <= HAPAX_BATCH_MAX);
    *out = NULL;
    if (!lane)
        return HAPAX_ERR_NOMEM;
    lane->store = store;
    lane->batch_max = store->type->batch_max;
    lane->queue_max = queue_max;
    jobs_init(&lane->queue);
    jobs_init(&lane->judged);
    jobs_init(&lane->done);
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->wake, NULL);
    lane->ops = malloc(lane->batch_max * sizeof(*lane->ops));
    lane->rests = malloc(lane->batch_max * sizeof(*lane->rests));
    lane->here = here && store->type->judge;
    lane->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (size_t i = 0; i < HAPAX_BEGUN_MAX && store->type->begin; i++)
        begun &= (lane->sent[i].ops = malloc(lane->batch_max * sizeof(*lane->ops))) != NULL;
    if (!lane->ops || !lane->rests || !begun || lane->fd < 0 || !start(lane)) {
        lane_free(lane);
        return HAPAX_ERR_NOMEM;
    }
    *out = lane;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__lane_open(struct hapax__lane **out, struct hapax_store *store,
                                  uint32_t queue_max)
{
    return open_lane(out, store, queue_max, false);
}

enum hapax_error hapax__lane_open_here(struct hapax__lane **out, struct hapax_store *store,
                                       uint32_t queue_max)
{
    return open_lane(out, store, queue_max, true);
}

void hapax__lane_count(struct hapax__lane *lane, struct hapax__lane_counts *counts)
{
    lane->counts = counts;
}

int hapax__lane_fd(const struct hapax__lane *lane)
{
    return lane->fd;
}

struct hapax__job *hapax__lane_submit_all(struct hapax__lane *lane, struct hapax__job *jobs)
{
    bool taken = false;

    pthread_mutex_lock(&lane->lock);
    while (jobs && !lane->closing && lane->waiting < lane->queue_max) {
        struct hapax__job *next = jobs->next;

        jobs->memory = NULL;
        jobs_add(&lane->queue, jobs);
        lane->waiting++;
        taken = true;
        jobs = next;
    }
    if (taken && !lane->here && can_judge(lane))
        pthread_cond_signal(&lane->wake); /* after the lock, the lane may be gone */
    pthread_mutex_unlock(&lane->lock);
    for (struct hapax__job *job = jobs; job; job = job->next) {
        job->memory = NULL;
        answer_error(&job->op, HAPAX_ERR_UNAVAILABLE);
    }
    return jobs;
}

bool hapax__lane_submit(struct hapax__lane *lane, struct hapax__job *job)
{
    job->next = NULL;
    return !hapax__lane_submit_all(lane, job);
}

struct hapax__job *hapax__lane_reap(struct hapax__lane *lane)
{
    struct hapax__job *done;
    uint64_t count;

    /* Cleared first: an answer that comes after this is told of again. */
    if (read(lane->fd, &count, sizeof(count)) < 0)
        assert(errno == EAGAIN);
    pthread_mutex_lock(&lane->lock);
    done = jobs_take(&lane->done);
    pthread_mutex_unlock(&lane->lock);
    return done;
}

uint32_t hapax__lane_queued(struct hapax__lane *lane)
{
    uint32_t count;

    pthread_mutex_lock(&lane->lock);
    count = lane->waiting + lane->under_way;
    pthread_mutex_unlock(&lane->lock);
    return count;
}

void hapax__lane_text(struct hapax__lane *lane, char out[HAPAX_TEXT_MAX])
{
    pthread_mutex_lock(&lane->lock);
    memcpy(out, lane->text, sizeof(lane->text));
    pthread_mutex_unlock(&lane->lock);
}

struct hapax__job *hapax__lane_close(struct hapax__lane *lane)
{
    struct hapax__job *done;

    assert(!lane->closing);
    end_threads(lane);
    assert(lane->waiting == 0 && lane->under_way == 0);
    hapax_store_close(lane->store);
    done = jobs_take(&lane->done);
    lane_free(lane);
    return done;
}
