/* SPDX-License-Identifier: Apache-2.0
 *
 * One client's connection: a phase of its input, a few requests in hand, and their buffers. The
 * next request is judged while the one before is synced. With all in hand nothing more is read, so
 * that a client that sends faster than it reads is slowed down by its own socket.
 *
 * A request is decoded where it was received, and takes that buffer along. Its ops borrow from it
 * until the last of them has come back from the lane, even where the client is gone by then. No op
 * of a request runs before the whole request was decoded. Ops run, and are answered, in the order
 * in which they came. In steady state a request costs no allocation.
 *
 * Memory for long requests is bounded: GROWN_MAX over all connections. A request that finds none
 * waits with only its head read.
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

#define GROWN_MAX    ((size_t)256 << 20)
#define ANSWER_GUESS ((size_t)512 << 10) /* the guessed length of an answer, before any was seen */
#define LENGTH_SIZE  4u

/* ---- what it waits for ----------------------------------------------------------------- */

static bool has_output(const struct hapax__keeper_connection *c)
{
    return c->out_at < c->out_len;
}

bool hapax__connection_reads(const struct hapax__keeper_connection *c)
{
    return (c->phase == HAPAX__GREETING || c->phase == HAPAX__READING) &&
           c->in_hand < HAPAX__IN_HAND_MAX && !c->server->stopping;
}

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

bool hapax__connection_idle(const struct hapax__keeper_connection *c)
{
    return c->in_hand == 0 && !has_output(c);
}

static uint32_t wanted(const struct hapax__keeper_connection *c)
{
    return (hapax__connection_reads(c) ? (uint32_t)EPOLLIN : 0) |
           (has_output(c) ? (uint32_t)EPOLLOUT : 0);
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
    hapax__keeper_count(&hapax__keeper_counts.clients, 1);
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

void hapax__buffer_free(struct hapax__keeper_server *server, uint8_t **bytes, size_t *cap)
{
    if (*cap > HAPAX__BUFFER_SIZE) {
        assert(server->grown >= *cap);
        server->grown -= *cap;
        server->released = true;
    }
    free(*bytes);
    *bytes = NULL;
    *cap = 0;
}

static void free_out(struct hapax__keeper_connection *c)
{
    free(c->out);
    c->out = NULL;
    c->out_cap = 0;
}

void hapax__connection_bury(struct hapax__keeper_connection *c)
{
    assert(c->phase == HAPAX__GONE && c->in_lane == 0 && !c->touched);
    *(c->prev ? &c->prev->next : &c->server->connections) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    assert(c->server->clients > 0);
    c->server->clients--;
    hapax__keeper_count(&hapax__keeper_counts.clients, UINT64_MAX);
    hapax__buffer_free(c->server, &c->in, &c->in_cap);
    free_out(c);
    for (uint32_t i = 0; i < HAPAX__IN_HAND_MAX; i++)
        hapax__request_free(c->server, &c->request[i]);
    free(c);
}

bool hapax__connection_overdue(const struct hapax__keeper_connection *c, int64_t now_us)
{
    bool waits_for_client = c->phase == HAPAX__GREETING || c->phase == HAPAX__CLOSING ||
                            (hapax__connection_reads(c) && c->in_len > 0) || has_output(c);

    return waits_for_client && now_us - c->since_us > c->server->patience_ms * US_PER_MS;
}

/* ---- output -------------------------------------------------------------------------- */

bool hapax__connection_reserve(struct hapax__keeper_connection *c, size_t size)
{
    assert(c->out_at == c->out_len);
    c->out_at = 0;
    c->out_len = 0;
    if (size <= c->out_cap)
        return true;
    free_out(c);
    if (size < HAPAX__BUFFER_SIZE)
        size = HAPAX__BUFFER_SIZE;
    c->out = malloc(size);
    if (c->out)
        c->out_cap = size;
    return c->out != NULL;
}

bool hapax__connection_flush(struct hapax__keeper_connection *c)
{
    while (has_output(c)) {
        ssize_t sent = send(c->fd, c->out + c->out_at, c->out_len - c->out_at, MSG_NOSIGNAL);

        if (sent >= 0) {
            c->out_at += (size_t)sent;
            c->since_us = hapax__monotonic_us();
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return false;
        } else if (errno != EINTR) {
            hapax__connection_hang_up(c);
            return false;
        }
    }
    if (c->out_cap > HAPAX__BUFFER_SIZE)
        free_out(c);
    c->out_at = 0;
    c->out_len = 0;
    return true;
}

/* Sends a FAULT; the connection ends with it. But what is in hand is answered first: then the frame
 * that is at fault is looked at again. */
static void fault(struct hapax__keeper_connection *c, enum hapax_error error, const char *text)
{
    struct hapax__writer w;

    if (!hapax__connection_idle(c)) {
        c->phase = HAPAX__WAITING;
        return;
    }
    if (!hapax__connection_reserve(c, HAPAX__FRAME_FAULT_MAX)) {
        hapax__connection_hang_up(c);
        return;
    }
    w = (struct hapax__writer){c->out, c->out_cap};
    hapax__frame_put_fault(&w, error, text);
    c->out_len = (size_t)(w.at - c->out);
    c->phase = HAPAX__CLOSING;
    c->since_us = hapax__monotonic_us();
}

/* ---- a request ----------------------------------------------------------------------- */

/* Gives the buffer with the frame at its start to the request, which keeps it. What came behind the
 * frame goes into the request's buffer before. False: no memory, and nothing has changed. */
static bool hand_over(struct hapax__keeper_connection *c, struct hapax__keeper_request *r,
                      size_t frame_len)
{
    size_t rest = c->in_len - frame_len;
    uint8_t *in = r->bytes;
    size_t cap = r->cap;

    if (rest > 0) {
        if (!in)
            in = malloc(cap = HAPAX__BUFFER_SIZE);
        if (!in)
            return false;
        assert(rest <= cap);
        memcpy(in, c->in + frame_len, rest);
        c->since_us = hapax__monotonic_us();
    }
    r->bytes = c->in;
    r->cap = c->in_cap;
    c->in = in;
    c->in_cap = in ? cap : 0;
    c->in_len = rest;
    return true;
}

/* Takes the frame out of the input: nothing borrows from it. */
static void drop(struct hapax__keeper_connection *c, size_t frame_len)
{
    c->in_len -= frame_len;
    memmove(c->in, c->in + frame_len, c->in_len);
    c->since_us = hapax__monotonic_us();
}

static void take_request(struct hapax__keeper_connection *c, struct hapax_span payload)
{
    struct hapax__reader r = {payload.ptr, payload.len, false};
    struct hapax__keeper_request *taken;
    struct hapax__request request;
    char text[HAPAX_TEXT_MAX];
    int64_t until_us;

    if (!hapax__frame_take_request(&r, &request)) {
        hapax__fail(text, HAPAX_ERR_INVALID, "a request is malformed, or has not 1 to %u ops",
                    HAPAX_BATCH_MAX);
        fault(c, HAPAX_ERR_INVALID, text);
        return;
    }
    taken = hapax__request_new(c, request.count);
    if (!taken) {
        fault(c, HAPAX_ERR_NOMEM, "out of memory for a request");
        return;
    }
    until_us = hapax__boot_us() + request.wait_ms * US_PER_MS;
    for (uint16_t i = 0; i < request.count; i++) {
        struct hapax__keeper_work *work = &taken->work[i];

        if (!hapax__frame_take_op(&r, &work->job.op)) {
            hapax__fail(text, HAPAX_ERR_INVALID, "op %u of a request is malformed", i + 1u);
            fault(c, HAPAX_ERR_INVALID, text);
            return;
        }
        work->job.look = NULL;
        work->job.unless = NULL;
        work->job.deadline_us = request.wait_ms > 0 ? until_us : 0;
        work->job.memory = NULL;
        work->connection = c;
        work->done = false;
    }
    if (r.left > 0) {
        fault(c, HAPAX_ERR_INVALID, "a request has bytes behind its last op");
        return;
    }
    if (!hand_over(c, taken, HAPAX__FRAME_HEAD + payload.len)) {
        fault(c, HAPAX_ERR_NOMEM, "out of memory for a request");
        return;
    }
    taken->seq = request.seq;
    taken->count = request.count;
    c->in_hand++;
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
    if (!hapax__connection_reserve(c, HAPAX__FRAME_HEAD + HAPAX__FRAME_WELCOME_SIZE)) {
        hapax__connection_hang_up(c);
        return;
    }
    if (hello.version >= HAPAX__FRAME_OLDEST && hello.version < HAPAX__FRAME_VERSION)
        welcome.version = hello.version;
    c->frame_max = hello.frame_max < HAPAX__FRAME_MAX ? hello.frame_max : HAPAX__FRAME_MAX;
    w = (struct hapax__writer){c->out, c->out_cap};
    hapax__frame_put_welcome(&w, &welcome);
    c->out_len = (size_t)(w.at - c->out);
    drop(c, HAPAX__FRAME_HEAD + payload.len);
    c->phase = HAPAX__READING;
}

/* The lane is asked like for an op, so the advice is of now and comes in turn. */
static void take_ask(struct hapax__keeper_connection *c, struct hapax_span payload)
{
    struct hapax__keeper_request *taken;
    uint32_t seq;

    if (!hapax__frame_take_ask(payload, &seq)) {
        fault(c, HAPAX_ERR_INVALID, "a question is malformed");
        return;
    }
    taken = hapax__request_new(c, 1);
    if (!taken) {
        fault(c, HAPAX_ERR_NOMEM, "out of memory for a question");
        return;
    }
    taken->work[0] = (struct hapax__keeper_work){.job.look = hapax__request_look, .connection = c};
    taken->seq = seq;
    taken->count = 1;
    c->in_hand++;
    drop(c, HAPAX__FRAME_HEAD + payload.len);
}

static void take_frame(struct hapax__keeper_connection *c, size_t size)
{
    struct hapax_span payload = {c->in + HAPAX__FRAME_HEAD, size - HAPAX__FRAME_HEAD};
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

    if (!hapax__connection_reads(c))
        return false;
    if (c->in_len >= LENGTH_SIZE) {
        size = frame_size(c);
        if (size < HAPAX__FRAME_HEAD || size > LENGTH_SIZE + max) {
            hapax__fail(text, HAPAX_ERR_INVALID, "a frame of %zu bytes is not within 1 to %u here",
                        size - LENGTH_SIZE, max);
            fault(c, HAPAX_ERR_INVALID, text);
            return true;
        }
        if (size <= c->in_len) {
            take_frame(c, size);
            return true;
        }
        if (size > c->in_cap) {
            c->phase = HAPAX__ADMISSION;
            return true;
        }
    }
    return false;
}

static bool admit(struct hapax__keeper_connection *c)
{
    size_t size = frame_size(c);
    uint8_t *in;

    assert(size > HAPAX__BUFFER_SIZE && c->in_cap == HAPAX__BUFFER_SIZE);
    if (size > GROWN_MAX - c->server->grown)
        return false;
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

/* Goes on with the input. True: something changed. */
static bool take_input(struct hapax__keeper_connection *c)
{
    switch (c->phase) {
    case HAPAX__GREETING:
    case HAPAX__READING:
        return next_frame(c);
    case HAPAX__ADMISSION:
        return admit(c);
    case HAPAX__WAITING:
        if (!hapax__connection_idle(c))
            return false;
        c->phase = HAPAX__READING;
        return true;
    case HAPAX__CLOSING:
        if (!has_output(c))
            hapax__connection_hang_up(c);
        return false;
    case HAPAX__GONE:
        break;
    }
    return false;
}

void hapax__connection_advance(struct hapax__keeper_connection *c)
{
    uint32_t events;
    bool moved = true;

    while (moved && c->phase != HAPAX__GONE) {
        moved = hapax__requests_run(c);
        if (c->server->stopping && c->phase != HAPAX__CLOSING && hapax__connection_idle(c))
            hapax__connection_hang_up(c);
        moved |= take_input(c);
    }
    if (c->phase == HAPAX__GONE)
        return;
    /* Input that nobody wants now is ignored when it comes: often it is wanted before. */
    events = wanted(c);
    if (events & ~c->events || (c->events & EPOLLOUT) != (events & EPOLLOUT))
        watch(c, events);
}

void hapax__connection_receive(struct hapax__keeper_connection *c)
{
    ssize_t got;

    assert(hapax__connection_reads(c));
    if (!c->in) {
        assert(c->in_len == 0);
        c->in = malloc(HAPAX__BUFFER_SIZE);
        if (!c->in) {
            hapax__connection_hang_up(c);
            return;
        }
        c->in_cap = HAPAX__BUFFER_SIZE;
    }
    assert(c->in_len < c->in_cap);
    do
        got = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (got == 0 && !hapax__connection_idle(c)) { /* who says no more may still listen */
        c->phase = HAPAX__WAITING;
        watch(c, wanted(c));
        return;
    }
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
    if (c->phase == HAPAX__GONE)
        return;
    if (hapax__connection_reads(c) && events & ~(uint32_t)EPOLLOUT)
        hapax__connection_receive(c);
    else if (events & (EPOLLERR | EPOLLHUP))
        hapax__connection_hang_up(c);
    else if (events & EPOLLOUT)
        hapax__connection_advance(c);
    else
        watch(c, wanted(c)); /* the client sends more than is taken now */
}
