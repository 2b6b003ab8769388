/* SPDX-License-Identifier: Apache-2.0
 *
 * A socket to one Redis process that never blocks and raises no signal. It counts the bytes that
 * have left this process: only this count decides whether a command may have been carried out.
 *
 * Every address of a name is tried, each for its share of the time left, so that an address that
 * swallows packets does not block the next one. The system's resolver looks the name up, and it has
 * no deadline (`options timeout:` of resolv.conf bounds it). Rejected: a lookup in a thread that is
 * left behind at the deadline, since a library should leave no threads behind.
 *
 * TCP_USER_TIMEOUT is not set: each request has a deadline, and an idle link is checked before its
 * use.
 */
#include "wire.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEEPALIVE_IDLE_S  60
#define KEEPALIVE_EVERY_S 15
#define KEEPALIVE_COUNT   4

void hapax__redis_wire_lost(struct hapax__redis_wire *wire, int error)
{
    const char *why = NULL;

    switch (error) {
    case 0:
        why = "it closed the connection";
        break;
    case ECONNREFUSED:
        why = "nobody listens there";
        break;
    case ECONNRESET:
    case EPIPE:
        why = "the connection was lost";
        break;
    case ETIMEDOUT:
        why = "no answer in time";
        break;
    default:
        break;
    }
    (void)snprintf(wire->why, sizeof(wire->why), "%s", why ? why : strerror(error));
}

bool hapax__redis_wire_wait(const struct hapax__redis_wire *wire, short events, int64_t deadline_us)
{
    struct pollfd fd = {.fd = wire->fd, .events = events};

    assert(events != 0);
    for (;;) {
        int64_t left_us = deadline_us - hapax__monotonic_us();
        int64_t left_ms = left_us > 0 ? left_us / 1000 + 1 : 0;

        if (poll(&fd, 1, left_ms < INT_MAX ? (int)left_ms : INT_MAX) > 0)
            return true;
        if (left_us <= 0) /* bytes that came by the deadline count */
            return false;
    }
}

/* ---- bytes ----------------------------------------------------------------------------- */

ssize_t hapax__redis_wire_send(struct hapax__redis_wire *wire, const void *data, size_t len)
{
    ssize_t n;

    do
        n = send(wire->fd, data, len, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        wire->sent += (uint64_t)n;
    return n;
}

ssize_t hapax__redis_wire_recv(struct hapax__redis_wire *wire, void *out, size_t size)
{
    ssize_t n;

    do
        n = recv(wire->fd, out, size, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

static ssize_t plain_read(struct hapax__redis_wire *wire, void *out, size_t size)
{
    ssize_t n = hapax__redis_wire_recv(wire, out, size);

    if (n > 0)
        return n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    hapax__redis_wire_lost(wire, n < 0 ? errno : 0);
    return -1;
}

static ssize_t plain_write(struct hapax__redis_wire *wire, const void *data, size_t len)
{
    ssize_t n = hapax__redis_wire_send(wire, data, len);

    if (n >= 0)
        return n;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return 0;
    hapax__redis_wire_lost(wire, errno);
    return -1;
}

static const struct hapax__redis_io plain = {plain_read, plain_write, NULL};

ssize_t hapax__redis_wire_read(struct hapax__redis_wire *wire, void *out, size_t size)
{
    assert(wire->fd >= 0 && size > 0);
    return wire->io->read(wire, out, size);
}

ssize_t hapax__redis_wire_write(struct hapax__redis_wire *wire, const void *data, size_t len)
{
    assert(wire->fd >= 0 && len > 0);
    return wire->io->write(wire, data, len);
}

/* ---- connecting ------------------------------------------------------------------------ */

static void set_options(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
                   {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S},
                   {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT}};

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof(options[i].value));
}

static enum hapax_error connect_to(struct hapax__redis_wire *wire, const struct addrinfo *to,
                                   int64_t deadline_us)
{
    int error = 0;
    socklen_t len = sizeof(error);

    wire->fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (wire->fd < 0) {
        bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;

        hapax__redis_wire_lost(wire, errno);
        return full ? HAPAX_ERR_NOMEM : HAPAX_ERR_UNAVAILABLE;
    }
    set_options(wire->fd);
    if (connect(wire->fd, to->ai_addr, to->ai_addrlen) == 0)
        return HAPAX_ERR_NONE;
    if (errno != EINPROGRESS && errno != EINTR)
        error = errno;
    else if (!hapax__redis_wire_wait(wire, POLLOUT, deadline_us))
        error = ETIMEDOUT;
    else if (getsockopt(wire->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    if (error == 0)
        return HAPAX_ERR_NONE;
    hapax__redis_wire_lost(wire, error);
    (void)close(wire->fd);
    wire->fd = -1;
    return HAPAX_ERR_UNAVAILABLE;
}

static enum hapax_error connect_any(struct hapax__redis_wire *wire, const struct addrinfo *list,
                                    int64_t deadline_us)
{
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;
    int64_t count = 0;

    for (const struct addrinfo *to = list; to; to = to->ai_next)
        count++;
    for (const struct addrinfo *to = list; to && error == HAPAX_ERR_UNAVAILABLE; to = to->ai_next) {
        int64_t now_us = hapax__monotonic_us();

        error = connect_to(wire, to, now_us + (deadline_us - now_us) / count--);
    }
    return error;
}

static enum hapax_error look_up(struct addrinfo **list, struct hapax__redis_wire *wire,
                                const struct hapax__redis_address *address)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char port[8];
    int failed;

    (void)snprintf(port, sizeof(port), "%u", (unsigned)address->port);
    failed = getaddrinfo(address->host, port, &hints, list);
    if (failed == 0)
        return HAPAX_ERR_NONE;
    (void)snprintf(wire->why, sizeof(wire->why), "its address was not found (%s)",
                   failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed));
    return failed == EAI_MEMORY ? HAPAX_ERR_NOMEM : HAPAX_ERR_UNAVAILABLE;
}

enum hapax_error hapax__redis_wire_open(struct hapax__redis_wire *wire,
                                        const struct hapax__redis_address *address,
                                        int64_t deadline_us)
{
    struct addrinfo *list = NULL;
    enum hapax_error error;

    *wire = (struct hapax__redis_wire){
        .fd = -1, .io = &plain, .read_wants = POLLIN, .write_wants = POLLOUT};
    error = look_up(&list, wire, address);
    if (error == HAPAX_ERR_NONE)
        error = connect_any(wire, list, deadline_us);
    if (list)
        freeaddrinfo(list);
    return error;
}

void hapax__redis_wire_close(struct hapax__redis_wire *wire)
{
    if (wire->layer)
        wire->io->close(wire);
    wire->layer = NULL;
    if (wire->fd >= 0)
        (void)close(wire->fd);
    wire->fd = -1;
}
