/* SPDX-License-Identifier: Apache-2.0
 *
 * The door's thread: epoll over the listening socket, the clients, and the mailbox in which the
 * pulse puts calls with a new state. The thread waits for nothing else.
 *
 * Invariant: a connection is freed only between two rounds of events, when its last operation is
 * over. Each round writes once to each connection that it has something for.
 *
 * Rejected: a thread per connection. The claims of a thousand clients are then a thousand wakes,
 * and no batch of the store.
 */
#include "connection.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"
#include "base/time.h"
#include "scopes.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS_MAX 1024u
#define TICK_MS     1000
#define EVENTS_MAX  64
#define ACCEPTS_MAX 64 /* in a round */
#define BEAT_MIN_MS 100
#define BEAT_MAX_MS 10000

/* ---- who comes ----------------------------------------------------------------------- */

/* Sends a FAULT to a client that is turned away. A new socket takes it without waiting. */
static void turn_away(struct hapax__door *door, int fd, enum hapax_error error, const char *text)
{
    struct hapax__door_connection c = {.door = door, .fd = fd, .touched = true};

    hapax__door_fault(&c, 0, 0, error, text);
    while (send(fd, c.out.bytes, c.out.len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR)
        ;
    free(c.out.bytes);
    close(fd);
}

static void welcome(struct hapax__door *door, int fd)
{
    char text[HAPAX_TEXT_MAX];
    uid_t uid;

    if (hapax__socket_right(&door->socket, fd, &uid) == HAPAX__RIGHT_NONE) {
        hapax__fail(text, HAPAX_ERR_REFUSED, "not permitted for uid %ld", (long)uid);
        turn_away(door, fd, HAPAX_ERR_REFUSED, text);
    } else if (door->clients >= CLIENTS_MAX) {
        hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "it serves %u clients already, its limit",
                    door->clients);
        turn_away(door, fd, HAPAX_ERR_UNAVAILABLE, text);
    } else if (!hapax__door_connection_open(door, fd)) {
        turn_away(door, fd, HAPAX_ERR_NOMEM, "out of memory for a client");
    }
}

static void listen_for(struct hapax__door *door, bool listening)
{
    struct epoll_event event = {.events = listening ? EPOLLIN : 0, .data.ptr = &door->socket};

    epoll_ctl(door->epoll_fd, EPOLL_CTL_MOD, door->socket.fd, &event);
    door->deaf = !listening;
}

static void accept_clients(struct hapax__door *door)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(door->socket.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            welcome(door, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            listen_for(door, false);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

/* ---- a round ------------------------------------------------------------------------- */

static void take_mail(struct hapax__door *door)
{
    struct hapax__door_calls calls = STAILQ_HEAD_INITIALIZER(calls);
    struct hapax__door_lost lost = STAILQ_HEAD_INITIALIZER(lost);
    struct hapax__door_op *op;
    struct hapax__call *call;
    uint64_t n;

    if (read(door->told_fd, &n, sizeof(n)) < 0)
        assert(errno == EAGAIN);
    pthread_mutex_lock(&door->lock);
    STAILQ_CONCAT(&calls, &door->calls);
    STAILQ_CONCAT(&lost, &door->lost);
    pthread_mutex_unlock(&door->lock);
    /* LOST first: an operation that has its answer is freed. */
    while ((op = STAILQ_FIRST(&lost))) {
        STAILQ_REMOVE_HEAD(&lost, lost);
        hapax__door_op_lost(op);
    }
    while ((call = STAILQ_FIRST(&calls))) {
        op = call->data;
        STAILQ_REMOVE_HEAD(&calls, next);
        hapax__door_op_told(call);
        hapax__door_connection_touch(op->c);
    }
}

/* A connection that is flushed touches none: what it puts goes out in the same flush. */
static void flush(struct hapax__door *door)
{
    struct hapax__door_connection *c;

    while ((c = STAILQ_FIRST(&door->touched))) {
        hapax__door_connection_flush(c);
        STAILQ_REMOVE_HEAD(&door->touched, touched_next);
        c->touched = false;
    }
}

static void tick(struct hapax__door *door)
{
    struct hapax__door_connection *c, *next;
    int64_t now_us = hapax__monotonic_us();

    for (c = TAILQ_FIRST(&door->connections); c; c = next) {
        next = TAILQ_NEXT(c, all);
        hapax__door_connection_tick(c, now_us);
    }
    if (door->deaf && !door->stopping)
        listen_for(door, true);
}

static void bury(struct hapax__door *door)
{
    struct hapax__door_connection *c, *next;

    if (door->gone == 0)
        return;
    for (c = TAILQ_FIRST(&door->connections); c; c = next) {
        next = TAILQ_NEXT(c, all);
        if (c->phase == HAPAX__DOOR_GONE && c->op_count == 0 && !c->touched)
            hapax__door_connection_bury(c);
    }
}

static bool take_events(struct hapax__door *door, struct epoll_event *events, int n)
{
    bool stop = false;

    for (int i = 0; i < n; i++) {
        void *whose = events[i].data.ptr;

        if (whose == &door->socket)
            accept_clients(door);
        else if (whose == &door->told_fd)
            take_mail(door);
        else if (whose == &door->stop_fd)
            stop = true;
        else
            hapax__door_connection_event(whose, events[i].events);
    }
    flush(door);
    return stop;
}

static void begin_stop(struct hapax__door *door)
{
    struct epoll_event none = {0};
    uint64_t one;
    ssize_t got = read(door->stop_fd, &one, sizeof(one)); /* what stands before the write is seen */

    assert(got == (ssize_t)sizeof(one));
    epoll_ctl(door->epoll_fd, EPOLL_CTL_DEL, door->stop_fd, &none);
    door->stopping = true;
    if (!door->options.last)
        hapax__claims_leave(door->options.h);
    hapax__socket_close(&door->socket);
}

/* Whether a client is still to be answered, or to read its answer. */
static bool is_busy(const struct hapax__door *door)
{
    const struct hapax__door_connection *c;

    TAILQ_FOREACH (c, &door->connections, all)
        if (c->op_count > 0 || c->out.at < c->out.len)
            return true;
    return false;
}

static void *door_main(void *arg)
{
    struct hapax__door *door = arg;
    struct epoll_event events[EVENTS_MAX];
    int64_t ticked_us = 0, end_us = 0;

    pthread_setname_np(pthread_self(), "hapax-door");
    while (!door->stopping || (is_busy(door) && ticked_us < end_us)) {
        int n = epoll_wait(door->epoll_fd, events, EVENTS_MAX, door->stopping ? 10 : TICK_MS);
        int64_t now_us = hapax__monotonic_us();

        assert(n >= 0 || errno == EINTR);
        if (take_events(door, events, n > 0 ? n : 0)) {
            begin_stop(door);
            end_us = now_us + door->drain_ms * US_PER_MS;
        }
        if (door->stopping || now_us - ticked_us >= TICK_MS * US_PER_MS) {
            ticked_us = now_us;
            tick(door);
            flush(door);
        }
        bury(door);
    }
    flush(door);
    return NULL;
}

/* ---- open and close ------------------------------------------------------------------ */

static bool add(struct hapax__door *door, int fd, void *whose)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = whose};

    return fd >= 0 && epoll_ctl(door->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void door_free(struct hapax__door *door)
{
    if (door->socket.fd >= 0)
        hapax__socket_close(&door->socket);
    close_fd(door->epoll_fd);
    close_fd(door->stop_fd);
    close_fd(door->told_fd);
    pthread_mutex_destroy(&door->lock);
    hapax__arena_release(&door->arena);
    hapax__json_free(&door->json);
    free(door->nonces.rows);
    free(door);
}

static int64_t beat_of(const struct hapax_policy *policy)
{
    return hapax__most(BEAT_MIN_MS, hapax__least(BEAT_MAX_MS, policy->lease_ms / 3));
}

static struct hapax__door *door_new(const struct hapax__door_options *options)
{
    struct hapax__door *door = calloc(1, sizeof(*door));

    if (!door)
        return NULL;
    door->options = *options;
    door->socket.fd = -1;
    door->beat_ms = beat_of(&options->scopes->policy);
    TAILQ_INIT(&door->connections);
    STAILQ_INIT(&door->touched);
    STAILQ_INIT(&door->calls);
    STAILQ_INIT(&door->lost);
    pthread_mutex_init(&door->lock, NULL);
    door->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    door->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    door->told_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    door->nonces.rows = calloc(HAPAX__NONCES_ROWS, sizeof(struct hapax__nonces_row));
    if (door->epoll_fd >= 0 && door->nonces.rows && add(door, door->stop_fd, &door->stop_fd) &&
        add(door, door->told_fd, &door->told_fd))
        return door;
    door_free(door);
    return NULL;
}

enum hapax_error hapax__door_open(struct hapax__door **out,
                                  const struct hapax__door_options *options,
                                  char text[HAPAX_TEXT_MAX])
{
    const struct hapax__socket_options place = {
        .path = options->path, .group = options->group, .server = "door"};
    struct hapax__door *door = door_new(options);
    enum hapax_error error;

    *out = NULL;
    if (!door)
        return hapax__fail(text, HAPAX_ERR_NOMEM,
                           "cannot start a door: out of memory or "
                           "descriptors");
    error = hapax__socket_open(&door->socket, &place, text);
    if (error == HAPAX_ERR_NONE && (!add(door, door->socket.fd, &door->socket) ||
                                    !hapax__thread_start(&door->thread, door_main, door)))
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot start a door: no thread");
    if (error != HAPAX_ERR_NONE) {
        door_free(door);
        return error;
    }
    *out = door;
    return HAPAX_ERR_NONE;
}

uint32_t hapax__door_close(struct hapax__door *door, int64_t drain_ms)
{
    struct hapax__door_connection *c;
    uint64_t one = 1;
    ssize_t written;

    if (!door)
        return 0;
    door->drain_ms = drain_ms;
    written = write(door->stop_fd, &one, sizeof(one));
    assert(written == (ssize_t)sizeof(one));
    pthread_join(door->thread, NULL);
    if (door->op_count > 0)
        return door->op_count;
    while ((c = TAILQ_FIRST(&door->connections))) {
        hapax__door_connection_hang_up(c);
        c->touched = false;
        hapax__door_connection_bury(c);
    }
    door_free(door);
    return 0;
}
