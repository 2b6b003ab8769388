/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests that a connection has in hand: their ops go to the lane and come back answered, and
 * the answers go into replies. Requests, and the ops of each, are submitted and answered in the
 * order in which they came.
 *
 * Answers that wait for their reply are bounded over all requests: ANSWERS_MAX per connection. The
 * number of ops that may give so much is guessed from earlier answers.
 */
#include "connection.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "store/types.h"

#include <stdlib.h>
#include <string.h>

#define ANSWERS_MAX ((size_t)64 << 20)
/* Answers of this length together do not wait for the others. */
#define REPLY_SIZE    ((size_t)1 << 20)
#define WORK_KEPT_MAX 256u

/* ---- memory -------------------------------------------------------------------------- */

static void free_work(struct hapax__keeper_request *r)
{
    free(r->work);
    r->work = NULL;
    r->work_cap = 0;
}

struct hapax__keeper_request *hapax__request_new(struct hapax__keeper_connection *c, uint32_t count)
{
    struct hapax__keeper_request *r = hapax__request_in_hand(c, c->in_hand);

    assert(c->in_hand < HAPAX__IN_HAND_MAX);
    hapax__keeper_count(&hapax__keeper_counts.requests, 1);
    if (count <= r->work_cap)
        return r;
    free_work(r);
    r->work = malloc(count * sizeof(*r->work));
    if (!r->work)
        return NULL;
    r->work_cap = count;
    return r;
}

void hapax__request_free(struct hapax__keeper_server *server, struct hapax__keeper_request *r)
{
    for (uint32_t i = r->replied; i < r->submitted; i++)
        free(r->work[i].job.memory);
    hapax__buffer_free(server, &r->bytes, &r->cap);
    free_work(r);
}

/* ---- a door's rights ----------------------------------------------------------------- */

/* A door claims, and ends what it claimed. Of other records it learns what it must, to serve its
 * own request: so a record is shown only where it is of the fingerprint and caller that the op
 * names. These two prove nothing if an answer gives them away, hence MISMATCH comes without. */
static bool door_may(const struct hapax_op *op)
{
    return op->kind != HAPAX_OP_LIST && op->kind != HAPAX_OP_PURGE &&
           op->kind != HAPAX_OP_RESOLVE && op->kind != HAPAX_OP_IMPORT;
}

/* Takes out of an answer to a door what is another request's. */
static void conceal(struct hapax_op *op)
{
    struct hapax_record *record = &op->record;

    if (memcmp(&record->fingerprint, &op->fingerprint, sizeof(op->fingerprint)) == 0 &&
        memcmp(&record->caller, &op->caller, sizeof(op->caller)) == 0)
        return;
    if (op->verdict == HAPAX_FOUND) {
        op->verdict = HAPAX_NO_VERDICT;
        op->error = HAPAX_ERR_REFUSED;
    } else if (op->verdict == HAPAX_LOST) {
        *record = (struct hapax_record){.id = op->id}; /* for this request there is none */
    } else if (op->verdict == HAPAX_MISMATCH) {
        *record = (struct hapax_record){.id = op->id, .state = record->state};
    }
}

/* ---- replies ------------------------------------------------------------------------- */

/* The text of an op's error. */
static const char *text_of(const struct hapax__keeper_connection *c, const struct hapax_op *op,
                           char text[HAPAX_TEXT_MAX])
{
    struct hapax_op again = *op;

    text[0] = '\0';
    if (op->kind < HAPAX_OP_CLAIM || op->kind > HAPAX_OP_IMPORT)
        hapax__fail(text, op->error, "kind of op %d is not known", (int)op->kind);
    else if (c->door && op->error == HAPAX_ERR_REFUSED)
        hapax__fail(text, op->error,
                    "this user has the rights of a door: only the keeper's own user and root list, "
                    "show, resolve and purge");
    else if (hapax__op_check(&again, c->server->body_max, text))
        hapax__lane_text(c->server->lane, text);
    if (text[0] == '\0')
        hapax__fail(text, op->error, "the keeper answers %s", hapax_error_name(op->error));
    return text;
}

/* The most bytes of an answer. The text of an error is looked up when the answer is written. */
static size_t answer_bound(const struct hapax_op *op)
{
    return hapax__frame_answer_size(op, "") + (op->error != HAPAX_ERR_NONE ? UINT8_MAX : 0);
}

static size_t answers_room(const struct hapax__keeper_connection *c)
{
    return c->frame_max - HAPAX__FRAME_HEAD - HAPAX__FRAME_REPLY_SIZE;
}

/* Counts the answered ops of a request from its first on. */
static bool gather_one(struct hapax__keeper_connection *c, struct hapax__keeper_request *r)
{
    uint32_t before = r->ready;

    for (; r->ready < r->submitted && r->work[r->ready].done; r->ready++) {
        struct hapax_op *op = &r->work[r->ready].job.op;
        size_t size;

        if (c->door)
            conceal(op);
        hapax__frame_fit_answer(op, answers_room(c));
        size = r->work[r->ready].answer_size = answer_bound(op);
        assert(size <= answers_room(c));
        c->ready_size += size;
        if (size > c->answer_max)
            c->answer_max = size;
    }
    c->unready -= r->ready - before;
    return r->ready > before;
}

static bool gather(struct hapax__keeper_connection *c)
{
    bool moved = false;

    for (uint32_t i = 0; i < c->in_hand; i++)
        moved |= gather_one(c, hapax__request_in_hand(c, i));
    return moved;
}

/* The number of ops in the next reply: as many as are ready and fit in a frame. */
static uint32_t reply_end(const struct hapax__keeper_connection *c,
                          const struct hapax__keeper_request *r, size_t *size)
{
    uint32_t to;

    *size = 0;
    for (to = r->replied; to < r->ready; to++) {
        size_t one = r->work[to].answer_size;

        if (one > answers_room(c) - *size)
            break;
        *size += one;
    }
    assert(to > r->replied);
    return to;
}

/* Puts the next reply into the output. False: no memory, and the connection is given up. Its ops
 * then stay without an answer, as after any lost connection. */
static bool reply(struct hapax__keeper_connection *c, struct hapax__keeper_request *r)
{
    struct hapax__frame_reply head = {.seq = r->seq, .first = (uint16_t)r->replied};
    struct hapax__writer w, head_w;
    char text[HAPAX_TEXT_MAX];
    size_t size;
    uint32_t to = reply_end(c, r, &size);
    const size_t head_size = HAPAX__FRAME_HEAD + HAPAX__FRAME_REPLY_SIZE;

    if (!hapax__connection_reserve(c, head_size + size)) {
        hapax__connection_hang_up(c);
        return false;
    }
    w = (struct hapax__writer){c->out + head_size, c->out_cap - head_size};
    head.count = (uint16_t)(to - r->replied);
    for (; r->replied < to; r->replied++) {
        struct hapax__job *job = &r->work[r->replied].job;
        bool failed = job->op.error != HAPAX_ERR_NONE;

        c->ready_size -= r->work[r->replied].answer_size;
        hapax__frame_put_answer(&w, &job->op, failed ? text_of(c, &job->op, text) : "");
        free(job->memory);
        job->memory = NULL;
    }
    c->out_len = (size_t)(w.at - c->out);
    head_w = (struct hapax__writer){c->out, head_size};
    hapax__frame_put_reply(&head_w, &head, c->out_len - head_size);
    c->since_us = hapax__monotonic_us();
    return true;
}

/* ---- advice -------------------------------------------------------------------------- */

struct advice {
    struct hapax__info info;
    char text[HAPAX__FRAME_LINES_MAX][HAPAX_TEXT_MAX];
};

static void note_line(void *arg, bool danger, const char *line)
{
    struct advice *advice = arg;
    struct hapax__info *info = &advice->info;
    char *copy;

    if (info->lines == HAPAX__FRAME_LINES_MAX)
        return;
    copy = advice->text[info->lines];
    hapax__fail(copy, HAPAX_ERR_NONE, "%s", line);
    info->line[info->lines++] = (struct hapax__info_line){danger, hapax_str(copy)};
}

void hapax__request_look(struct hapax_store *store, struct hapax__job *job)
{
    struct advice *advice = calloc(1, sizeof(*advice));

    job->memory = advice;
    if (advice && hapax_store_check(store, note_line, advice) != HAPAX_ERR_NONE)
        note_line(advice, true, hapax_store_text(store));
}

/* Puts the advice into the output. False: no memory, and the connection is given up. */
static bool inform(struct hapax__keeper_connection *c, struct hapax__keeper_request *r)
{
    struct hapax__job *job = &r->work[0].job;
    struct hapax__info info = {0};
    struct hapax__writer w;

    if (job->memory) {
        info = ((struct advice *)job->memory)->info;
    } else {
        info.line[0].danger = true;
        info.line[0].text = hapax_str("the store was not asked: its queue is full, or memory is");
        info.lines = 1;
    }
    info.seq = r->seq;
    info.pid = c->server->pid;
    info.scheme = c->server->scheme;
    info.queued = hapax__lane_queued(c->server->lane);
    info.clients = c->server->clients;
    if (!hapax__connection_reserve(c, hapax__frame_info_size(&info))) {
        hapax__connection_hang_up(c);
        return false;
    }
    w = (struct hapax__writer){c->out, c->out_cap};
    hapax__frame_put_info(&w, &info);
    c->out_len = (size_t)(w.at - c->out);
    c->since_us = hapax__monotonic_us();
    free(job->memory);
    job->memory = NULL;
    c->ready_size -= r->work[0].answer_size;
    r->replied = 1;
    return true;
}

/* ---- running ------------------------------------------------------------------------- */

/* How many ops may be without an answer at a time: their answers stay within ANSWERS_MAX. */
static uint32_t window(const struct hapax__keeper_connection *c)
{
    size_t ops = ANSWERS_MAX / (c->answer_max > 0 ? c->answer_max : 1);

    if (ops > HAPAX_BATCH_MAX)
        ops = HAPAX_BATCH_MAX;
    return ops > 0 ? (uint32_t)ops : 1;
}

/* Whether an op goes to the lane. One that is refused here costs its own answer and nothing else;
 * what is wrong with its values the store says. */
static bool goes(const struct hapax__keeper_connection *c, struct hapax_op *op)
{
    if (c->door && op->error == HAPAX_ERR_NONE && !door_may(op))
        op->error = HAPAX_ERR_REFUSED;
    return op->error == HAPAX_ERR_NONE;
}

/* Gives the lane the ops of a request up to `to`, as one list. */
static void submit_to(struct hapax__keeper_connection *c, struct hapax__keeper_request *r,
                      uint32_t to)
{
    struct hapax__job *first = NULL, **end = &first, *refused;
    uint32_t count = 0;

    c->unready += to - r->submitted;
    for (; r->submitted < to; r->submitted++) {
        struct hapax__keeper_work *work = &r->work[r->submitted];

        work->done = !goes(c, &work->job.op);
        if (work->done)
            continue;
        *end = &work->job;
        end = &work->job.next;
        count++;
    }
    *end = NULL;
    if (count == 0)
        return;
    for (refused = hapax__lane_submit_all(c->server->lane, first); refused;
         refused = refused->next, count--)
        ((struct hapax__keeper_work *)refused)->done = true;
    c->in_lane += count;
    hapax__keeper_count(&hapax__keeper_counts.ops, count);
}

static bool submit(struct hapax__keeper_connection *c)
{
    bool moved = false;

    for (uint32_t i = 0; i < c->in_hand; i++) {
        struct hapax__keeper_request *r = hapax__request_in_hand(c, i);
        uint32_t left = r->count - r->submitted, free = window(c);

        free = c->ready_size < REPLY_SIZE && c->unready < free ? free - c->unready : 0;
        left = left < free ? left : free;
        if (left > 0)
            submit_to(c, r, r->submitted + left);
        moved |= left > 0;
        if (r->submitted < r->count)
            break;
    }
    return moved;
}

void hapax__connection_answered(struct hapax__keeper_work *work)
{
    struct hapax__keeper_connection *c = work->connection;

    assert(!work->done && c->in_lane > 0);
    work->done = true;
    c->in_lane--;
    if (c->phase == HAPAX__GONE)
        c->server->graves = true;
}

/* Ends the first request in hand, which is answered. */
static void end_request(struct hapax__keeper_connection *c, struct hapax__keeper_request *r)
{
    if (r->cap > HAPAX__BUFFER_SIZE)
        hapax__buffer_free(c->server, &r->bytes, &r->cap);
    if (r->work_cap > WORK_KEPT_MAX)
        free_work(r);
    c->answer_max /= 2; /* one long answer need not be followed by others */
    r->count = r->submitted = r->ready = r->replied = 0;
    c->in_hand--;
    /* A client with one request at a time uses one buffer for its requests. */
    c->first = c->in_hand > 0 ? (c->first + 1) % HAPAX__IN_HAND_MAX : 0;
    c->since_us = hapax__monotonic_us();
}

/* Advances the requests in hand. True: something changed. */
bool hapax__requests_run(struct hapax__keeper_connection *c)
{
    struct hapax__keeper_request *r = hapax__request_in_hand(c, 0);
    bool moved = submit(c);

    moved |= gather(c);
    if (moved)
        return true;
    if (!hapax__connection_flush(c) || c->in_hand == 0)
        return false;
    if (r->ready > r->replied && (r->ready == r->count || c->ready_size >= REPLY_SIZE))
        return r->work[0].job.look ? inform(c, r) : reply(c, r);
    if (r->replied < r->count)
        return false;
    end_request(c, r);
    return true;
}
