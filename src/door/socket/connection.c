/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection's bytes. Frames are taken where they were received, so a body is copied once at
 * most. What is bounded: a frame; the output, beyond which answers wait and nothing is read; and
 * what long frames and outcomes take together, over all connections.
 */
#include "connection.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BUFFER_SIZE ((size_t)64 << 10) /* a connection's own, one in and one out */
#define CHARGED_MAX ((size_t)256 << 20)
#define OUT_MAX     ((size_t)1 << 20) /* with more to write, answers wait */
#define PATIENCE_US (30 * US_PER_S) /* for half a frame, or a frame that nobody reads */
#define DEATH_MS    1000 /* how long a process may take from its socket's end to its own */

/* events: 0: none, not even the socket's end, which epoll always tells of a socket that it has. */
static void watch(struct hapax__door_connection *c, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    int how = !events ? EPOLL_CTL_DEL : !c->events ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;

    if (c->events == events)
        return;
    if (epoll_ctl(c->door->epoll_fd, how, c->fd, &event) == 0) {
        c->events = events;
    } else {
        assert(how == EPOLL_CTL_ADD); /* the others take no memory */
        c->waits = true;
    }
}

void hapax__door_connection_touch(struct hapax__door_connection *c)
{
    if (c->touched)
        return;
    c->touched = true;
    STAILQ_INSERT_TAIL(&c->door->touched, c, touched_next);
}

/* ---- its life ------------------------------------------------------------------------ */

/* A descriptor of the peer's process; -1: the process is not known, or gone. */
static int open_process(int fd)
{
#ifdef SYS_pidfd_open
    pid_t pid = hapax__socket_peer(fd);

    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
#else
    (void)fd;
    return -1;
#endif
}

bool hapax__door_connection_open(struct hapax__door *door, int fd)
{
    struct hapax__door_connection *c = calloc(1, sizeof(*c));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};

    if (!c || epoll_ctl(door->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        return false;
    }
    c->door = door;
    c->fd = fd;
    c->pidfd = door->options.now ? open_process(fd) : -1;
    if (c->pidfd >= 0 && epoll_ctl(door->epoll_fd, EPOLL_CTL_ADD, c->pidfd, &event) != 0) {
        close(c->pidfd);
        c->pidfd = -1;
    }
    c->events = EPOLLIN;
    c->since_us = hapax__monotonic_us();
    atomic_init(&c->heard_us, hapax__boot_us());
    TAILQ_INIT(&c->ops);
    STAILQ_INIT(&c->answered);
    TAILQ_INSERT_TAIL(&door->connections, c, all);
    door->clients++;
    atomic_fetch_add(&door->options.stats->connections, 1);
    return true;
}

static void bytes_free(struct hapax__door_connection *c, struct hapax__door_bytes *b)
{
    if (b->size > BUFFER_SIZE && b == &c->in)
        c->door->charged -= b->size;
    free(b->bytes);
    *b = (struct hapax__door_bytes){NULL, 0, 0, 0};
}

/* Whether the kernel says that the peer's process is dead. */
static bool is_dead(const struct hapax__door_connection *c)
{
    struct pollfd process = {.fd = c->pidfd, .events = POLLIN};

    return c->pidfd >= 0 && poll(&process, 1, 0) > 0;
}

/* False: nothing is to be waited for. A process that is killed ends its sockets a moment before it
 * ends itself. */
static bool wait_for_death(struct hapax__door_connection *c)
{
    if (c->pidfd < 0 || is_dead(c))
        return false;
    if (!c->dying)
        c->since_us = hapax__monotonic_us();
    c->dying = true;
    return hapax__monotonic_us() - c->since_us < DEATH_MS * US_PER_MS;
}

void hapax__door_connection_hang_up(struct hapax__door_connection *c)
{
    struct epoll_event none = {0};

    if (c->phase == HAPAX__DOOR_GONE)
        return;
    /* Not left to close(): where a process was forked meanwhile, the socket lives on there. */
    watch(c, 0);
    shutdown(c->fd, SHUT_RDWR);
    close(c->fd);
    c->fd = -1;
    c->phase = HAPAX__DOOR_GONE;
    bytes_free(c, &c->in);
    bytes_free(c, &c->out);
    hapax__door_ops_desert(c, is_dead(c));
    if (c->pidfd >= 0) {
        epoll_ctl(c->door->epoll_fd, EPOLL_CTL_DEL, c->pidfd, &none);
        close(c->pidfd);
    }
    c->pidfd = -1;
    atomic_fetch_sub(&c->door->options.stats->connections, 1);
    c->door->clients--;
    c->door->gone++;
}

void hapax__door_connection_bury(struct hapax__door_connection *c)
{
    assert(c->phase == HAPAX__DOOR_GONE && c->op_count == 0 && !c->touched);
    TAILQ_REMOVE(&c->door->connections, c, all);
    c->door->gone--;
    free(c);
}

/* ---- output -------------------------------------------------------------------------- */

/* Room for `size` bytes more behind what is there. False: no memory. */
static bool reserve(struct hapax__door_bytes *b, size_t size)
{
    size_t wanted = b->len - b->at + size, grown = b->size ? b->size : BUFFER_SIZE;
    uint8_t *bytes;

    if (b->at > 0 && b->len + size > b->size) {
        memmove(b->bytes, b->bytes + b->at, b->len - b->at);
        b->len -= b->at;
        b->at = 0;
    }
    if (wanted <= b->size)
        return true;
    while (grown < wanted)
        grown *= 2;
    bytes = realloc(b->bytes, grown);
    if (!bytes)
        return false;
    b->bytes = bytes;
    b->size = grown;
    return true;
}

static void put(struct hapax__door_bytes *b, const void *bytes, size_t len)
{
    if (len > 0)
        memcpy(b->bytes + b->len, bytes, len);
    b->len += len;
}

void hapax__door_put(struct hapax__door_connection *c, enum hapax__door_kind kind, uint32_t op,
                     struct hapax_span body)
{
    const struct hapax__json_out *json = &c->door->json;
    struct hapax__door_bytes *out = &c->out;
    uint8_t head[HAPAX__DOOR_HEAD];

    if (c->phase == HAPAX__DOOR_GONE || c->unread || c->ending)
        return;
    if (out->at == out->len)
        c->since_us = hapax__monotonic_us();
    if (json->failed || !reserve(out, sizeof(head) + json->len + body.len)) {
        c->ending = true; /* its operations may be in hand of the caller: the end comes later */
        hapax__door_connection_touch(c);
        return;
    }
    hapax__door_frame_head(head, kind, op, json->len, body.len);
    put(out, head, sizeof(head));
    put(out, json->bytes, json->len);
    put(out, body.ptr, body.len);
    hapax__door_connection_touch(c);
}

void hapax__door_fault(struct hapax__door_connection *c, uint32_t op, unsigned kind,
                       enum hapax_error error, const char *text)
{
    struct hapax__json_out *json = &c->door->json;

    atomic_fetch_add(&c->door->options.stats->faults, 1);
    hapax__json_clear(json);
    hapax__json_put(json, "{\"error\":");
    hapax__json_put_string(json, hapax_str(hapax_error_name(error)));
    hapax__json_put(json, ",\"text\":");
    hapax__json_put_shown(json, hapax_str(text));
    if (kind > 0) {
        hapax__json_put(json, ",\"kind\":");
        hapax__json_put_number(json, kind);
    }
    hapax__json_put(json, "}");
    hapax__door_put(c, HAPAX__DOOR_FAULT, op, (struct hapax_span){NULL, 0});
}

/* Ends the connection with a FAULT. */
static void end_with(struct hapax__door_connection *c, unsigned kind, enum hapax_error error,
                     const char *text)
{
    hapax__door_fault(c, 0, kind, error, text);
    if (c->phase != HAPAX__DOOR_GONE)
        c->phase = HAPAX__DOOR_CLOSING;
}

/* Puts the answers for which there is room. */
static void put_answers(struct hapax__door_connection *c)
{
    struct hapax__door_op *op;

    while (c->out.len - c->out.at < OUT_MAX && (op = STAILQ_FIRST(&c->answered))) {
        STAILQ_REMOVE_HEAD(&c->answered, answered);
        hapax__door_op_answer(op);
    }
}

/* Writes what the socket takes. False: it takes no more. What nobody reads is dropped. */
static bool write_out(struct hapax__door_connection *c)
{
    struct hapax__door_bytes *out = &c->out;

    while (out->at < out->len && !c->unread && !c->ending) {
        ssize_t sent = send(c->fd, out->bytes + out->at, out->len - out->at, MSG_NOSIGNAL);

        if (sent >= 0) {
            out->at += (size_t)sent;
            c->since_us = hapax__monotonic_us();
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return false;
        } else if (errno != EINTR) {
            c->unread = true; /* what the process has sent is still to be read */
        }
    }
    out->at = 0;
    out->len = 0;
    if (out->size > BUFFER_SIZE)
        bytes_free(c, out);
    return true;
}

/* ---- input --------------------------------------------------------------------------- */

static void welcome(struct hapax__door_connection *c, const struct hapax__door_frame *frame)
{
    struct hapax__door *door = c->door;
    const struct hapax_policy *policy = &door->options.scopes->policy;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    int64_t version;

    error = hapax__meta_hello_read(&version, &door->arena, frame->meta, text);
    hapax__arena_reset(&door->arena);
    if (error != HAPAX_ERR_NONE) {
        end_with(c, frame->kind, error, text);
        return;
    }
    c->phase = HAPAX__DOOR_OPEN;
    hapax__json_clear(&door->json);
    hapax__json_put(&door->json,
                    "{\"version\":1,\"server\":\"hapax/" HAPAX_VERSION "\",\"beat_ms\":");
    hapax__json_put_number(&door->json, door->beat_ms);
    hapax__json_put(&door->json, ",\"lease_ms\":");
    hapax__json_put_number(&door->json, policy->lease_ms);
    hapax__json_put(&door->json, ",\"body_max\":");
    hapax__json_put_number(&door->json, HAPAX_BODY_MAX);
    hapax__json_put(&door->json, ",\"frame_max\":");
    hapax__json_put_number(&door->json, HAPAX__DOOR_FRAME_MAX);
    hapax__json_put(&door->json, ",\"ops_max\":");
    hapax__json_put_number(&door->json, HAPAX__DOOR_OPS_MAX);
    hapax__json_put(&door->json, "}");
    hapax__door_put(c, HAPAX__DOOR_WELCOME, 0, (struct hapax_span){NULL, 0});
}

static bool is_ours(uint8_t kind)
{
    return kind == HAPAX__DOOR_WELCOME || kind == HAPAX__DOOR_RUN ||
           kind == HAPAX__DOOR_RECONCILE || kind == HAPAX__DOOR_ANSWER ||
           kind == HAPAX__DOOR_LOST || kind == HAPAX__DOOR_FAULT;
}

/* Takes a frame. False: it waits for a new state of its operation. A BEGIN is dropped where nobody
 * would read that it may run. */
static bool take(struct hapax__door_connection *c, const struct hapax__door_frame *frame)
{
    atomic_store(&c->heard_us, hapax__boot_us());
    if (c->phase == HAPAX__DOOR_GREETING && frame->kind == HAPAX__DOOR_HELLO)
        welcome(c, frame);
    else if (c->phase == HAPAX__DOOR_GREETING)
        end_with(c, frame->kind, HAPAX_ERR_INVALID, "the first frame is no HELLO");
    else if (frame->kind == HAPAX__DOOR_HELLO)
        end_with(c, frame->kind, HAPAX_ERR_INVALID, "a second HELLO");
    else if (is_ours(frame->kind))
        end_with(c, frame->kind, HAPAX_ERR_INVALID, "a frame of a kind that only a door sends");
    else if (frame->kind == HAPAX__DOOR_BEAT ||
             (frame->kind == HAPAX__DOOR_BEGIN && (c->unread || c->ending)))
        return true;
    else if (frame->op == 0)
        end_with(c, frame->kind, HAPAX_ERR_INVALID, "a frame for no operation, whose op is 0");
    else
        return hapax__door_op_take(c, frame);
    return true;
}

/* Room for a frame of this size, or for some more bytes. False: there is none, and reading waits;
 * or there is no memory, and the connection ends. */
static bool make_room(struct hapax__door_connection *c, size_t size)
{
    struct hapax__door_bytes *in = &c->in;
    size_t before = in->size > BUFFER_SIZE ? in->size : 0;
    size_t wanted = size > BUFFER_SIZE ? size : 0;
    size_t charged = c->door->charged + (size_t)atomic_load(&c->door->options.stats->saving);

    if (wanted > before && charged > 0 && charged + wanted > CHARGED_MAX)
        return false;
    c->door->charged -= before;
    if (!reserve(in, size > in->len - in->at ? size - (in->len - in->at) : 1))
        c->ending = true;
    c->door->charged += in->size > BUFFER_SIZE ? in->size : 0;
    return !c->ending;
}

/* Takes the frames that were read, as far as they can be taken now. True: there is too much output
 * to take more. */
static bool advance(struct hapax__door_connection *c)
{
    struct hapax__door_bytes *in = &c->in;
    const char *why;

    c->held = false;
    while (c->phase < HAPAX__DOOR_CLOSING && c->out.len - c->out.at < OUT_MAX) {
        struct hapax__door_frame frame;
        size_t size;
        int64_t taken = hapax__door_frame_read(
            &frame, (struct hapax_span){in->bytes + in->at, in->len - in->at},
            c->phase == HAPAX__DOOR_GREETING ? HAPAX__DOOR_GREETING_MAX : HAPAX__DOOR_FRAME_MAX,
            &size, &why);

        if (taken < 0) {
            end_with(c, 0, HAPAX_ERR_INVALID, why);
            break;
        }
        c->held = taken > 0 && !take(c, &frame);
        if (taken == 0 || c->held)
            break;
        c->waits = false;
        in->at += (size_t)taken;
        c->since_us = hapax__monotonic_us();
    }
    if (in->at == in->len && in->size > BUFFER_SIZE)
        bytes_free(c, in);
    if (in->at == in->len)
        in->at = in->len = 0;
    return c->out.len - c->out.at >= OUT_MAX;
}

/* How many bytes the buffer shall have room for: the frame that has begun, or a buffer full. */
static size_t wanted(struct hapax__door_connection *c)
{
    const struct hapax__door_bytes *in = &c->in;
    struct hapax__door_frame frame;
    const char *why;
    size_t size;

    (void)hapax__door_frame_read(&frame, (struct hapax_span){in->bytes + in->at, in->len - in->at},
                                 HAPAX__DOOR_FRAME_MAX, &size, &why);
    return size > BUFFER_SIZE ? size : BUFFER_SIZE;
}

/* Reads once. False: nothing came. Of a process that is dead nothing more will come then, even
 * where a child that it has forked holds the socket. */
static bool receive(struct hapax__door_connection *c)
{
    struct hapax__door_bytes *in = &c->in;
    size_t size = wanted(c);
    ssize_t got;

    if (c->ending)
        return false;
    /* Where frames wait, or memory is used up, the client waits by our fault. */
    if (in->len - in->at >= size || !make_room(c, size)) {
        c->waits = true;
        return false;
    }
    if (in->at == in->len)
        c->since_us = hapax__monotonic_us();
    do
        got = recv(c->fd, in->bytes + in->len, in->size - in->len, 0);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        in->len += (size_t)got;
    else if (got == 0 || c->dead || (errno != EAGAIN && errno != EWOULDBLOCK))
        c->ending = true;
    return got > 0;
}

/* ---- a round ------------------------------------------------------------------------- */

void hapax__door_connection_flush(struct hapax__door_connection *c)
{
    bool full, written = true;

    if (c->phase == HAPAX__DOOR_GONE) {
        put_answers(c); /* frees the operations; nobody is told */
        return;
    }
    do {
        full = advance(c);
        put_answers(c);
        written = write_out(c);
    } while (written && (full || !STAILQ_EMPTY(&c->answered) || (c->dead && receive(c))));
    if (c->ending) {
        watch(c, 0);
        if (!c->held && !wait_for_death(c))
            hapax__door_connection_hang_up(c);
    } else if (written && c->phase == HAPAX__DOOR_CLOSING) {
        hapax__door_connection_hang_up(c);
    } else {
        bool reads = !c->waits && c->phase != HAPAX__DOOR_CLOSING && !full;

        watch(c, (written ? 0 : (uint32_t)EPOLLOUT) | (reads ? (uint32_t)EPOLLIN : 0));
    }
}

void hapax__door_connection_event(struct hapax__door_connection *c, uint32_t events)
{
    struct epoll_event none = {0};

    if (c->phase == HAPAX__DOOR_GONE)
        return;
    if (!c->dead && is_dead(c)) {
        epoll_ctl(c->door->epoll_fd, EPOLL_CTL_DEL, c->pidfd, &none);
        c->dead = true;
        c->unread = true;
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        (void)receive(c);
    hapax__door_connection_touch(c);
}

/* Whether the client may still send: neither its process nor its end of the socket is gone. */
static bool may_live(const struct hapax__door_connection *c)
{
    struct pollfd end = {.fd = c->fd, .events = 0};

    return !c->dead && poll(&end, 1, 0) == 0;
}

void hapax__door_connection_tick(struct hapax__door_connection *c, int64_t now_us)
{
    bool waits_for_client = c->phase == HAPAX__DOOR_GREETING || c->phase == HAPAX__DOOR_CLOSING ||
                            (c->in.at < c->in.len && !c->held) || c->out.at < c->out.len;

    if (c->phase == HAPAX__DOOR_GONE)
        return;
    if (c->ending) {
        hapax__door_connection_touch(c);
    } else if (c->waits) { /* there may be memory by now */
        if (may_live(c))
            atomic_store(&c->heard_us, hapax__boot_us());
        c->since_us = now_us;
        c->waits = false;
        hapax__door_connection_touch(c);
    } else if (waits_for_client && now_us - c->since_us > PATIENCE_US) {
        hapax__door_connection_hang_up(c);
    }
}
