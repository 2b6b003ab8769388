/* SPDX-License-Identifier: Apache-2.0
 *
 * One client's connection: a phase, at most one request in hand, and the buffers for both. While a
 * request is in hand nothing more is read, so that a client that sends faster than it reads is
 * slowed down by its own socket.
 *
 * A request is decoded where it was received. Its ops borrow from `in` until the last of them has
 * come back from the lane, even where the client is gone by then. No op of a request runs before
 * the whole request was decoded. In steady state a request costs no allocation.
 *
 * Two things are bounded. Memory for long requests: GROWN_MAX over all connections; a request that
 * finds none waits with only its head read. Answers that wait for their reply: ANSWERS_MAX per
 * connection; the number of ops that may give so much is guessed from earlier answers.
 */
#include "connection.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "store/types.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER_SIZE  ((size_t)32 << 10) /* each connection's own buffer, one in and one out */
#define GROWN_MAX    ((size_t)256 << 20)
#define ANSWERS_MAX  ((size_t)64 << 20)
#define ANSWER_GUESS ((size_t)512 << 10) /* the guessed length of an answer, before any was seen */
/* Answers of this length together do not wait for the others. */
#define REPLY_SIZE    ((size_t)1 << 20)
#define WORK_KEPT_MAX 256u
#define LENGTH_SIZE   4u

static void watch(struct hapax__keeper_connection *c, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    int failed;

    if (c->events == events)
        return;
    failed = epoll_ctl(c->server->epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
    assert(!failed); /* changing the watched events takes no memory */
    c->events = events;
}

/* ---- its life ------------------------------------------------------------------------ */

bool hapax__connection_open(struct hapax__keeper_server *server, int fd, bool door)
{
    struct hapax__keeper_connection *c = calloc(1, sizeof(*c));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};

    if (!c || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        return false;
    }
    c->server = server;
    c->fd = fd;
    c->door = door;
    c->phase = HAPAX__GREETING;
    c->events = EPOLLIN;
    c->frame_max = HAPAX__FRAME_LEAST;
    c->answer_max = ANSWER_GUESS;
    c->since_us = hapax__monotonic_us();
    c->next = server->connections;
    if (c->next)
        c->next->prev = c;
    server->connections = c;
    server->clients++;
    return true;
}

void hapax__connection_hang_up(struct hapax__keeper_connection *c)
{
    struct epoll_event none = {0};

    if (c->phase == HAPAX__GONE)
        return;
    /* Not left to close(): if a process was forked meanwhile, the socket lives on there, and its
     * events would come for a freed connection. Nor would the client see the end. */
    epoll_ctl(c->server->epoll_fd, EPOLL_CTL_DEL, c->fd, &none);
    shutdown(c->fd, SHUT_RDWR);
    close(c->fd);
    c->fd = -1;
    c->phase = HAPAX__GONE;
    c->server->graves = true;
}

static void free_in(struct hapax__keeper_connection *c)
{
    if (c->in_cap > BUFFER_SIZE) {
        assert(c->server->grown >= c->in_cap);
        c->server->grown -= c->in_cap;
        c->server->released = true;
    }
    free(c->in);
    c->in = NULL;
    c->in_cap = 0;
}

static void free_out(struct hapax__keeper_connection *c)
{
    free(c->out);
    c->out = NULL;
    c->out_cap = 0;
}

static void free_work(struct hapax__keeper_connection *c)
{
    free(c->work);
    c->work = NULL;
    c->work_cap = 0;
}

void hapax__connection_bury(struct hapax__keeper_connection *c)
{
    assert(c->phase == HAPAX__GONE && c->in_lane == 0 && !c->touched);
    for (uint32_t i = c->replied; i < c->submitted; i++)
        free(c->work[i].job.memory);
    *(c->prev ? &c->prev->next : &c->server->connections) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    assert(c->server->clients > 0);
    c->server->clients--;
    free_in(c);
    free_out(c);
    free_work(c);
    free(c);
}

bool hapax__connection_overdue(const struct hapax__keeper_connection *c, int64_t now_us)
{
    bool waits_for_client = c->phase == HAPAX__GREETING || c->phase == HAPAX__CLOSING ||
                            (c->phase == HAPAX__READING && c->in_len > 0) ||
                            (c->phase == HAPAX__RUNNING && c->out_at < c->out_len);

    return waits_for_client && now_us - c->since_us > c->server->patience_ms * US_PER_MS;
}

/* ---- output -------------------------------------------------------------------------- */

static bool reserve_out(struct hapax__keeper_connection *c, size_t size)
{
    assert(c->out_at == c->out_len);
    c->out_at = 0;
    c->out_len = 0;
    if (size <= c->out_cap)
        return true;
    free_out(c);
    if (size < BUFFER_SIZE)
        size = BUFFER_SIZE;
    c->out = malloc(size);
    if (c->out)
        c->out_cap = size;
    return c->out != NULL;
}

/* Writes as much as it can. True: all output is written. False: not yet, or the client is gone. */
static bool flush(struct hapax__keeper_connection *c)
{
    while (c->out_at < c->out_len) {
        ssize_t sent = send(c->fd, c->out + c->out_at, c->out_len - c->out_at, MSG_NOSIGNAL);

        if (sent >= 0) {
            c->out_at += (size_t)sent;
            c->since_us = hapax__monotonic_us();
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            watch(c, EPOLLOUT);
            return false;
        } else if (errno != EINTR) {
            hapax__connection_hang_up(c);
            return false;
        }
    }
    if (c->events == EPOLLOUT)
        watch(c, EPOLLIN);
    if (c->out_cap > BUFFER_SIZE)
        free_out(c);
    c->out_at = 0;
    c->out_len = 0;
    return true;
}

/* Sends a FAULT; the connection ends with it. */
static void fault(struct hapax__keeper_connection *c, enum hapax_error error, const char *text)
{
    struct hapax__writer w;

    if (!reserve_out(c, HAPAX__FRAME_FAULT_MAX)) {
        hapax__connection_hang_up(c);
        return;
    }
    w = (struct hapax__writer){c->out, c->out_cap};
    hapax__frame_put_fault(&w, error, text);
    c->out_len = (size_t)(w.at - c->out);
    c->phase = HAPAX__CLOSING;
    c->since_us = hapax__monotonic_us();
}

/* ---- a door's rights ----------------------------------------------------------------- */

/* A door claims, and ends what it claimed. Of other records it learns what it must, to serve its
 * own request: so a record is shown only where it is of the fingerprint and caller that the op
 * names. These two prove nothing if an answer gives them away, hence MISMATCH comes without. */
static bool door_may(const struct hapax_op *op)
{
    return op->kind != HAPAX_OP_LIST && op->kind != HAPAX_OP_PURGE && op->kind != HAPAX_OP_RESOLVE;
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
    struct hapax_op again;

    text[0] = '\0';
    if (op->error == HAPAX_ERR_NONE)
        return text;
    again = *op;
    if (op->kind < HAPAX_OP_CLAIM || op->kind > HAPAX_OP_RESOLVE)
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

/* Counts the answered ops from the first on. */
static bool gather(struct hapax__keeper_connection *c)
{
    uint32_t before = c->ready;

    for (; c->ready < c->submitted && c->work[c->ready].done; c->ready++) {
        struct hapax_op *op = &c->work[c->ready].job.op;
        size_t size;

        if (c->door)
            conceal(op);
        hapax__frame_fit_answer(op, answers_room(c));
        size = answer_bound(op);
        assert(size <= answers_room(c));
        c->ready_size += size;
        if (size > c->answer_max)
            c->answer_max = size;
    }
    return c->ready > before;
}

/* The number of ops in the next reply: as many as are ready and fit in a frame. */
static uint32_t reply_end(const struct hapax__keeper_connection *c, size_t *size)
{
    uint32_t to;

    *size = 0;
    for (to = c->replied; to < c->ready; to++) {
        size_t one = answer_bound(&c->work[to].job.op);

        if (one > answers_room(c) - *size)
            break;
        *size += one;
    }
    assert(to > c->replied);
    return to;
}

/* Puts the next reply into the output. False: no memory, and the connection is given up. Its ops
 * then stay without an answer, as after any lost connection. */
static bool reply(struct hapax__keeper_connection *c)
{
    struct hapax__frame_reply head = {.seq = c->seq, .first = (uint16_t)c->replied};
    struct hapax__writer w, head_w;
    char text[HAPAX_TEXT_MAX];
    size_t size;
    uint32_t to = reply_end(c, &size);
    const size_t head_size = HAPAX__FRAME_HEAD + HAPAX__FRAME_REPLY_SIZE;

    if (!reserve_out(c, head_size + size)) {
        hapax__connection_hang_up(c);
        return false;
    }
    w = (struct hapax__writer){c->out + head_size, c->out_cap - head_size};
    head.count = (uint16_t)(to - c->replied);
    for (; c->replied < to; c->replied++) {
        struct hapax__job *job = &c->work[c->replied].job;

        c->ready_size -= answer_bound(&job->op);
        hapax__frame_put_answer(&w, &job->op, text_of(c, &job->op, text));
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

/* In the lane's thread. What keeps the store from answering is a danger. */
static void look(struct hapax_store *store, struct hapax__job *job)
{
    struct advice *advice = calloc(1, sizeof(*advice));

    job->memory = advice;
    if (advice && hapax_store_check(store, note_line, advice) != HAPAX_ERR_NONE)
        note_line(advice, true, hapax_store_text(store));
}

/* Puts the advice into the output. False: no memory, and the connection is given up. */
static bool inform(struct hapax__keeper_connection *c)
{
    struct hapax__job *job = &c->work[0].job;
    struct hapax__info info = {0};
    struct hapax__writer w;

    if (job->memory) {
        info = ((struct advice *)job->memory)->info;
    } else {
        info.line[0].danger = true;
        info.line[0].text = hapax_str("the store was not asked: its queue is full, or memory is");
        info.lines = 1;
    }
    info.seq = c->seq;
    info.pid = c->server->pid;
    info.scheme = c->server->scheme;
    info.queued = hapax__lane_queued(c->server->lane);
    info.clients = c->server->clients;
    if (!reserve_out(c, hapax__frame_info_size(&info))) {
        hapax__connection_hang_up(c);
        return false;
    }
    w = (struct hapax__writer){c->out, c->out_cap};
    hapax__frame_put_info(&w, &info);
    c->out_len = (size_t)(w.at - c->out);
    c->since_us = hapax__monotonic_us();
    free(job->memory);
    job->memory = NULL;
    c->ready_size = 0;
    c->replied = 1;
    return true;
}

/* ---- a request ----------------------------------------------------------------------- */

/* How many ops may be without an answer at a time: their answers stay within ANSWERS_MAX. */
static uint32_t window(const struct hapax__keeper_connection *c)
{
    size_t ops = ANSWERS_MAX / (c->answer_max > 0 ? c->answer_max : 1);

    if (ops > HAPAX_BATCH_MAX)
        ops = HAPAX_BATCH_MAX;
    return ops > 0 ? (uint32_t)ops : 1;
}

/* Gives one op to the lane. An op that is refused here costs its own answer and nothing else. */
static void submit_one(struct hapax__keeper_connection *c, struct hapax__keeper_work *work)
{
    char text[HAPAX_TEXT_MAX];

    if (c->door && work->job.op.error == HAPAX_ERR_NONE && !door_may(&work->job.op))
        work->job.op.error = HAPAX_ERR_REFUSED;
    work->done = work->job.op.error != HAPAX_ERR_NONE ||
                 !hapax__op_check(&work->job.op, c->server->body_max, text) ||
                 !hapax__lane_submit(c->server->lane, &work->job);
    if (!work->done)
        c->in_lane++;
}

static bool submit(struct hapax__keeper_connection *c)
{
    uint32_t before = c->submitted;

    while (c->submitted < c->count && c->submitted - c->ready < window(c) &&
           c->ready_size < REPLY_SIZE)
        submit_one(c, &c->work[c->submitted++]);
    return c->submitted > before;
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

/* Frees the memory of the frame in hand, and moves the bytes behind it to the front. */
static void consume(struct hapax__keeper_connection *c)
{
    size_t rest = c->in_len - c->frame_len;

    assert(c->frame_len > 0 && c->in_len >= c->frame_len && c->in_lane == 0);
    if (rest > 0)
        memmove(c->in, c->in + c->frame_len, rest);
    c->in_len = rest;
    c->frame_len = 0;
    if (c->in_cap > BUFFER_SIZE) {
        assert(rest == 0); /* the buffer was made for this frame */
        free_in(c);
    }
    if (c->work_cap > WORK_KEPT_MAX)
        free_work(c);
    if (c->count > 0)
        c->answer_max /= 2; /* one long answer need not be followed by others */
    c->count = c->submitted = c->ready = c->replied = 0;
    c->since_us = hapax__monotonic_us();
}

/* Advances the request in hand. True: something changed. */
static bool run(struct hapax__keeper_connection *c)
{
    bool moved = submit(c);

    moved |= gather(c);
    if (moved)
        return true;
    if (!flush(c))
        return false;
    if (c->ready > c->replied && (c->ready == c->count || c->ready_size >= REPLY_SIZE))
        return c->work[0].job.look ? inform(c) : reply(c);
    if (c->replied < c->count)
        return false;
    consume(c);
    c->phase = HAPAX__READING;
    return true;
}

static bool reserve_work(struct hapax__keeper_connection *c, uint32_t count)
{
    if (count <= c->work_cap)
        return true;
    free_work(c);
    c->work = malloc(count * sizeof(*c->work));
    if (c->work)
        c->work_cap = count;
    return c->work != NULL;
}

static void take_request(struct hapax__keeper_connection *c, struct hapax_span payload)
{
    struct hapax__reader r = {payload.ptr, payload.len, false};
    struct hapax__request request;
    char text[HAPAX_TEXT_MAX];
    int64_t until_us;

    if (!hapax__frame_take_request(&r, &request)) {
        hapax__fail(text, HAPAX_ERR_INVALID, "a request is malformed, or has not 1 to %u ops",
                    HAPAX_BATCH_MAX);
        fault(c, HAPAX_ERR_INVALID, text);
        return;
    }
    if (!reserve_work(c, request.count)) {
        fault(c, HAPAX_ERR_NOMEM, "out of memory for a request");
        return;
    }
    until_us = hapax__boot_us() + request.wait_ms * US_PER_MS;
    for (uint16_t i = 0; i < request.count; i++) {
        struct hapax__keeper_work *work = &c->work[i];

        if (!hapax__frame_take_op(&r, &work->job.op)) {
            hapax__fail(text, HAPAX_ERR_INVALID, "op %u of a request is malformed", i + 1u);
            fault(c, HAPAX_ERR_INVALID, text);
            return;
        }
        work->job.look = NULL;
        work->job.deadline_us = request.wait_ms > 0 ? until_us : 0;
        work->job.memory = NULL;
        work->connection = c;
        work->done = false;
    }
    if (r.left > 0) {
        fault(c, HAPAX_ERR_INVALID, "a request has bytes behind its last op");
        return;
    }
    c->seq = request.seq;
    c->count = request.count;
    c->phase = HAPAX__RUNNING;
}

/* ---- the other frames ---------------------------------------------------------------- */

static void take_hello(struct hapax__keeper_connection *c, struct hapax_span payload)
{
    struct hapax__hello hello, welcome = {.version = HAPAX__FRAME_VERSION,
                                          .frame_max = HAPAX__FRAME_MAX,
                                          .batch_max = HAPAX_BATCH_MAX,
                                          .body_max = (uint32_t)c->server->body_max,
                                          .pid = (uint32_t)getpid()};
    struct hapax__writer w;

    if (!hapax__frame_take_hello(payload, &hello)) {
        fault(c, HAPAX_ERR_UNSUPPORTED, "the greeting is not of this protocol");
        return;
    }
    if (!reserve_out(c, HAPAX__FRAME_HEAD + HAPAX__FRAME_WELCOME_SIZE)) {
        hapax__connection_hang_up(c);
        return;
    }
    c->frame_max = hello.frame_max < HAPAX__FRAME_MAX ? hello.frame_max : HAPAX__FRAME_MAX;
    w = (struct hapax__writer){c->out, c->out_cap};
    hapax__frame_put_welcome(&w, &welcome);
    c->out_len = (size_t)(w.at - c->out);
    c->phase = HAPAX__RUNNING;
}

/* The lane is asked like for an op, so the advice is of now and comes in turn. */
static void take_ask(struct hapax__keeper_connection *c, struct hapax_span payload)
{
    if (!hapax__frame_take_ask(payload, &c->seq)) {
        fault(c, HAPAX_ERR_INVALID, "a question is malformed");
        return;
    }
    if (!reserve_work(c, 1)) {
        fault(c, HAPAX_ERR_NOMEM, "out of memory for a question");
        return;
    }
    c->work[0] = (struct hapax__keeper_work){.job.look = look, .connection = c};
    c->work[0].done = !hapax__lane_submit(c->server->lane, &c->work[0].job);
    c->in_lane += !c->work[0].done;
    c->count = c->submitted = 1;
    c->phase = HAPAX__RUNNING;
}

static void take_frame(struct hapax__keeper_connection *c)
{
    struct hapax_span payload = {c->in + HAPAX__FRAME_HEAD, c->frame_len - HAPAX__FRAME_HEAD};
    uint8_t kind = c->in[LENGTH_SIZE];
    char text[HAPAX_TEXT_MAX];

    if (c->phase == HAPAX__GREETING && kind == HAPAX__FRAME_HELLO) {
        take_hello(c, payload);
    } else if (c->phase == HAPAX__READING && kind == HAPAX__FRAME_REQUEST) {
        take_request(c, payload);
    } else if (c->phase == HAPAX__READING && kind == HAPAX__FRAME_ASK) {
        take_ask(c, payload);
    } else {
        hapax__fail(text, HAPAX_ERR_INVALID, "a frame of kind %u has no place here", kind);
        fault(c, HAPAX_ERR_INVALID, text);
    }
}

/* ---- input --------------------------------------------------------------------------- */

/* The length of the frame at the start of `in`, with its head. */
static size_t frame_size(const struct hapax__keeper_connection *c)
{
    struct hapax__reader r = {c->in, c->in_len, false};

    return LENGTH_SIZE + (size_t)hapax__take_u32(&r);
}

/* Takes the next frame, if the whole frame is there. */
static bool next_frame(struct hapax__keeper_connection *c)
{
    uint32_t max = c->phase == HAPAX__GREETING ? HAPAX__FRAME_HELLO_MAX : HAPAX__FRAME_MAX;
    char text[HAPAX_TEXT_MAX];
    size_t size;

    assert(c->frame_len == 0);
    if (c->server->stopping) {
        hapax__connection_hang_up(c);
        return false;
    }
    if (c->in_len >= LENGTH_SIZE) {
        size = frame_size(c);
        if (size < HAPAX__FRAME_HEAD || size > LENGTH_SIZE + max) {
            hapax__fail(text, HAPAX_ERR_INVALID, "a frame of %zu bytes is not within 1 to %u here",
                        size - LENGTH_SIZE, max);
            fault(c, HAPAX_ERR_INVALID, text);
            return true;
        }
        if (size <= c->in_len) {
            c->frame_len = size;
            take_frame(c);
            return true;
        }
        if (size > c->in_cap) {
            c->phase = HAPAX__ADMISSION;
            return true;
        }
    }
    watch(c, EPOLLIN);
    return false;
}

static bool admit(struct hapax__keeper_connection *c)
{
    size_t size = frame_size(c);
    uint8_t *in;

    assert(size > BUFFER_SIZE && c->in_cap == BUFFER_SIZE);
    if (size > GROWN_MAX - c->server->grown) {
        watch(c, 0);
        return false;
    }
    in = realloc(c->in, size);
    if (!in) {
        fault(c, HAPAX_ERR_NOMEM, "out of memory for a request");
        return true;
    }
    c->in = in;
    c->in_cap = size;
    c->server->grown += size;
    c->phase = HAPAX__READING;
    c->since_us = hapax__monotonic_us();
    return true;
}

void hapax__connection_advance(struct hapax__keeper_connection *c)
{
    bool moved = true;

    while (moved) {
        switch (c->phase) {
        case HAPAX__GREETING:
        case HAPAX__READING:
            moved = next_frame(c);
            break;
        case HAPAX__ADMISSION:
            moved = admit(c);
            break;
        case HAPAX__RUNNING:
            moved = run(c);
            break;
        case HAPAX__CLOSING:
            if (flush(c))
                hapax__connection_hang_up(c);
            moved = false;
            break;
        case HAPAX__GONE:
            moved = false;
        }
    }
}

void hapax__connection_receive(struct hapax__keeper_connection *c)
{
    ssize_t got;

    assert(c->phase == HAPAX__GREETING || c->phase == HAPAX__READING);
    if (!c->in) {
        assert(c->in_len == 0);
        c->in = malloc(BUFFER_SIZE);
        if (!c->in) {
            hapax__connection_hang_up(c);
            return;
        }
        c->in_cap = BUFFER_SIZE;
    }
    assert(c->in_len < c->in_cap);
    do
        got = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (got <= 0) {
        hapax__connection_hang_up(c);
        return;
    }
    if (c->in_len == 0 && c->phase == HAPAX__READING)
        c->since_us = hapax__monotonic_us();
    c->in_len += (size_t)got;
    hapax__connection_advance(c);
}

void hapax__connection_event(struct hapax__keeper_connection *c, uint32_t events)
{
    switch (c->phase) {
    case HAPAX__GREETING:
    case HAPAX__READING:
        hapax__connection_receive(c);
        return;
    case HAPAX__ADMISSION:
    case HAPAX__RUNNING:
        if (events & (EPOLLERR | EPOLLHUP))
            hapax__connection_hang_up(c);
        else if (events & EPOLLOUT)
            hapax__connection_advance(c);
        else
            watch(c, 0); /* the client sends more before it has its answers */
        return;
    case HAPAX__CLOSING:
        hapax__connection_advance(c);
        return;
    case HAPAX__GONE:
        return;
    }
}
