/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper's server: one thread with epoll over the listening socket, the clients, and the lane
 * over the store. It never waits for a client. What the requests of a round ask is judged in this
 * thread, where the store can judge without waiting for the disk; for no other store it waits.
 *
 * The invariant: a connection is freed only between two rounds of events, and only when no job in
 * the lane borrows from it. Every step that can fail is done before the lane takes the store over,
 * so that on failure the store is still the caller's. Rejected: a thread per connection, which
 * would cost each request two more switches, and each client a stack.
 */
#include "keeper.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"
#include "base/time.h"
#include "connection.h"
#include "http/prometheus.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS_MAX 1024u
#define PATIENCE_MS 30000
#define TICK_MS     1000
#define STOP_MS     5000 /* for the replies in hand */
#define RETRY_MS    10
#define EVENTS_MAX  64
#define ACCEPTS_MAX 64 /* in a round */

struct hapax__keeper_counts hapax__keeper_counts;

struct keeper {
    struct hapax__keeper_server server; /* first: the public handle points to it */
    pthread_t thread;
    sem_t go; /* the lane is there, or failed */
};

/* ---- who comes ----------------------------------------------------------------------- */

/* A new socket takes this much without waiting. */
static void turn_away(int fd, enum hapax_error error, const char *text)
{
    uint8_t bytes[HAPAX__FRAME_FAULT_MAX];
    struct hapax__writer w = {bytes, sizeof(bytes)};

    hapax__frame_put_fault(&w, error, text);
    while (send(fd, bytes, (size_t)(w.at - bytes), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
           errno == EINTR)
        ;
    close(fd);
}

static void welcome(struct hapax__keeper_server *server, int fd)
{
    char text[HAPAX_TEXT_MAX];
    uid_t uid;
    enum hapax__right right = hapax__socket_right(&server->socket, fd, &uid);

    if (right == HAPAX__RIGHT_NONE) {
        hapax__fail(text, HAPAX_ERR_REFUSED, "not permitted for uid %ld", (long)uid);
        turn_away(fd, HAPAX_ERR_REFUSED, text);
    } else if (server->clients >= server->clients_max) {
        hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "it serves %u clients already, its limit",
                    server->clients);
        turn_away(fd, HAPAX_ERR_UNAVAILABLE, text);
    } else if (!hapax__connection_open(server, fd, right == HAPAX__RIGHT_DOOR)) {
        turn_away(fd, HAPAX_ERR_NOMEM, "out of memory for a client");
    }
}

static void listen_for(struct hapax__keeper_server *server, bool listening)
{
    struct epoll_event event = {.events = listening ? EPOLLIN : 0, .data.ptr = &server->socket};

    epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, server->socket.fd, &event);
    server->deaf = !listening;
}

static void accept_clients(struct hapax__keeper_server *server)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(server->socket.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            welcome(server, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            listen_for(server, false);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

/* ---- a round ------------------------------------------------------------------------- */

/* Takes all answers of a round first, so that a connection replies to them in one write. */
static void reap(struct hapax__keeper_server *server)
{
    struct hapax__keeper_connection *touched = NULL;
    struct hapax__job *job = hapax__lane_reap(server->lane);
    uint64_t count = 0;

    for (; job; count++) {
        struct hapax__keeper_work *work = (struct hapax__keeper_work *)job;
        struct hapax__keeper_connection *c = work->connection;

        job = job->next;
        hapax__connection_answered(work);
        if (c->touched)
            continue;
        c->touched = true;
        c->next_touched = touched;
        touched = c;
    }
    hapax__keeper_count(&hapax__keeper_counts.ops, 0 - count);
    while (touched) {
        struct hapax__keeper_connection *c = touched;

        touched = c->next_touched;
        c->touched = false;
        hapax__connection_advance(c);
    }
}

/* Ends reading: what was sent before the end is still taken, and then only the requests in hand
 * go on. */
static void begin_stop(struct hapax__keeper_server *server)
{
    struct hapax__keeper_connection *next;

    for (struct hapax__keeper_connection *c = server->connections; c; c = c->next)
        if (c->phase == HAPAX__READING && hapax__connection_reads(c))
            hapax__connection_receive(c);
    server->stopping = true;
    hapax__socket_close(&server->socket);
    for (struct hapax__keeper_connection *c = server->connections; c; c = next) {
        next = c->next;
        if (c->phase != HAPAX__CLOSING && hapax__connection_idle(c))
            hapax__connection_hang_up(c);
    }
}

static void sweep(struct hapax__keeper_server *server)
{
    int64_t now_us = hapax__monotonic_us();
    struct hapax__keeper_connection *next;

    server->graves = false;
    for (struct hapax__keeper_connection *c = server->connections; c; c = next) {
        next = c->next;
        if (hapax__connection_overdue(c, now_us))
            hapax__connection_hang_up(c);
        if (c->phase == HAPAX__GONE && c->in_lane == 0)
            hapax__connection_bury(c);
    }
}

/* Memory was freed: the connections that wait for it try again, in any order. */
static void admit_waiting(struct hapax__keeper_server *server)
{
    server->released = false;
    for (struct hapax__keeper_connection *c = server->connections; c; c = c->next)
        if (c->phase == HAPAX__ADMISSION)
            hapax__connection_advance(c);
}

static void take_events(struct hapax__keeper_server *server, struct epoll_event *events, int n)
{
    bool stop = false;

    for (int i = 0; i < n; i++) {
        void *whose = events[i].data.ptr;

        if (whose == &server->socket)
            accept_clients(server);
        else if (whose == server->lane)
            reap(server);
        else if (whose == &server->stop_fd)
            stop = true;
        else
            hapax__connection_event(whose, events[i].events);
    }
    if (stop && !server->stopping)
        begin_stop(server);
    while (hapax__lane_turn(server->lane))
        reap(server);
}

static int64_t tick_ms(const struct hapax__keeper_server *server)
{
    int64_t half = server->patience_ms / 2 + 1;

    return half < TICK_MS ? half : TICK_MS;
}

static void serve_clients(struct hapax__keeper_server *server)
{
    struct epoll_event events[EVENTS_MAX];
    int64_t tick_us = tick_ms(server) * US_PER_MS;
    int64_t swept_us = 0, stop_us = 0;

    while (!server->stopping || (server->connections && swept_us < stop_us)) {
        bool idle = !server->connections && !server->deaf;
        int n = epoll_wait(server->epoll_fd, events, EVENTS_MAX, idle ? -1 : (int)tick_ms(server));
        int64_t now_us = hapax__monotonic_us();

        assert(n >= 0 || errno == EINTR);
        take_events(server, events, n);
        if (server->stopping && stop_us == 0) {
            struct epoll_event none = {0};

            stop_us = now_us + STOP_MS * US_PER_MS;
            epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, server->stop_fd, &none);
        }
        if (server->released)
            admit_waiting(server);
        if (server->graves || now_us - swept_us >= tick_us) {
            sweep(server);
            swept_us = now_us;
            if (server->deaf && !server->stopping)
                listen_for(server, true);
        }
    }
}

/* ---- the thread ---------------------------------------------------------------------- */

static bool add(struct hapax__keeper_server *server, int fd, void *whose)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = whose};

    return epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void *server_main(void *arg)
{
    struct keeper *keeper = arg;
    struct hapax__keeper_server *server = &keeper->server;
    struct pollfd stop = {.fd = server->stop_fd, .events = POLLIN};

    pthread_setname_np(pthread_self(), "hapax-keeper");
    while (sem_wait(&keeper->go) != 0) /* EINTR */
        ;
    if (!server->lane)
        return NULL;
    /* The one step that may fail for want of memory after the store was handed over. */
    while (!add(server, hapax__lane_fd(server->lane), server->lane))
        if (poll(&stop, 1, RETRY_MS) > 0)
            return NULL;
    serve_clients(server);
    return NULL;
}

static void keeper_free(struct keeper *keeper)
{
    if (keeper->server.socket.fd >= 0)
        hapax__socket_close(&keeper->server.socket);
    if (keeper->server.stop_fd >= 0)
        close(keeper->server.stop_fd);
    if (keeper->server.epoll_fd >= 0)
        close(keeper->server.epoll_fd);
    sem_destroy(&keeper->go);
    free(keeper);
}

static struct keeper *keeper_new(struct hapax_store *store,
                                 const struct hapax__keeper_options *options)
{
    struct keeper *keeper = calloc(1, sizeof(*keeper));
    struct hapax__keeper_server *server;

    if (!keeper)
        return NULL;
    server = &keeper->server;
    server->socket.fd = -1;
    server->body_max = store->type->body_max;
    server->clients_max = options->clients_max ? options->clients_max : CLIENTS_MAX;
    server->patience_ms = options->patience_ms > 0 ? options->patience_ms : PATIENCE_MS;
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->pid = (uint32_t)getpid();
    server->scheme = hapax_str(store->type->scheme);
    sem_init(&keeper->go, 0, 0);
    if (server->epoll_fd >= 0 && server->stop_fd >= 0 &&
        add(server, server->stop_fd, &server->stop_fd))
        return keeper;
    keeper_free(keeper);
    return NULL;
}

enum hapax_error hapax__keeper_serve(struct hapax__keeper_server **out, struct hapax_store *store,
                                     const struct hapax__keeper_options *options,
                                     char text[HAPAX_TEXT_MAX])
{
    struct keeper *keeper = keeper_new(store, options);
    enum hapax_error error = HAPAX_ERR_NOMEM;

    *out = NULL;
    if (!keeper)
        return hapax__fail(text, error, "cannot start a keeper: out of memory or descriptors");
    error = hapax__socket_open(
        &keeper->server.socket,
        &(struct hapax__socket_options){options->path, options->mode, options->group, "keeper"},
        text);
    if (error != HAPAX_ERR_NONE) {
        keeper_free(keeper);
        return error;
    }
    if (!add(&keeper->server, keeper->server.socket.fd, &keeper->server.socket) ||
        !hapax__thread_start(&keeper->thread, server_main, keeper)) {
        keeper_free(keeper);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot start a keeper: no thread");
    }
    error = hapax__lane_open_here(&keeper->server.lane, store, HAPAX__LANE_QUEUE_MAX);
    if (error == HAPAX_ERR_NONE)
        hapax__lane_count(keeper->server.lane, &hapax__keeper_counts.lane);
    sem_post(&keeper->go);
    if (error != HAPAX_ERR_NONE) {
        pthread_join(keeper->thread, NULL);
        keeper_free(keeper);
        return hapax__fail(text, error, "cannot start a keeper: no lane");
    }
    *out = &keeper->server;
    return HAPAX_ERR_NONE;
}

static int64_t count_of(const uint64_t *word)
{
    return (int64_t)__atomic_load_n(word, __ATOMIC_RELAXED);
}

void hapax__keeper_page(FILE *out)
{
    const struct hapax__page_number requests = {"hapax_keeper_requests_total",
                                                count_of(&hapax__keeper_counts.requests),
                                                "Requests of clients, each with one or more ops."};
    const struct hapax__page_number gauges[] = {
        {"hapax_keeper_clients", count_of(&hapax__keeper_counts.clients), "Clients connected."},
        {"hapax_keeper_queue", count_of(&hapax__keeper_counts.ops),
         "Ops that wait or are under way."},
    };

    hapax__page_numbers(out, "counter", &requests, 1);
    hapax__page_numbers(out, "gauge", gauges, sizeof(gauges) / sizeof(gauges[0]));
    hapax__page_lane(out, &hapax__keeper_counts.lane);
}

void hapax__keeper_stop(struct hapax__keeper_server *server)
{
    struct keeper *keeper = (struct keeper *)server;
    uint64_t one = 1;
    ssize_t written;

    if (!server)
        return;
    written = write(server->stop_fd, &one, sizeof(one));
    assert(written == (ssize_t)sizeof(one));
    pthread_join(keeper->thread, NULL);
    for (struct hapax__job *job = hapax__lane_close(server->lane); job; job = job->next) {
        hapax__connection_answered((struct hapax__keeper_work *)job);
        hapax__keeper_count(&hapax__keeper_counts.ops, UINT64_MAX);
    }
    while (server->connections) {
        struct hapax__keeper_connection *c = server->connections;

        hapax__connection_hang_up(c);
        hapax__connection_bury(c);
    }
    keeper_free(keeper);
}
