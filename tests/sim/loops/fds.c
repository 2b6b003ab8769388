/* SPDX-License-Identifier: Apache-2.0 */
#include "fds.h"

#include "inner.h"
#include "play.h"
#include "threads.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define FDS       192
#define FD_FIRST  5000
#define NEVER     INT64_MAX
#define BACKLOG   16
#define WATCHES   64
#define NAMES     4
#define FOLDER    "/sim"
#define FIRST_PID 1000

enum kind { UNUSED, EVENT, SOCKET, LISTENER, STREAM, EPOLL, DIRECTORY, PROCESS };

struct watch {
    int fd;
    struct epoll_event event;
};

struct descriptor {
    enum kind kind;
    int proc;
    /* Of an eventfd; of a directory: that it is locked; of a process: its pid. */
    uint64_t value;
    int backlog[BACKLOG]; /* of a listener: streams that nobody has accepted */
    int waiting;
    int peer; /* of a stream; -1: it is gone */
    pid_t peer_pid;
    size_t at, len; /* what can be read of it, in `bytes` */
    unsigned sends; /* that wrote this */
    bool ended; /* nothing more will come; the process is dead */
    bool reset;
    mode_t mode; /* of a socket, until it has a name */
    struct watch watches[WATCHES]; /* of an epoll */
    int watched;
};

struct name {
    char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    ino_t ino; /* 0: there is none */
    mode_t mode;
    int fd;
    uint32_t number; /* of the socket that was bound; another may have its fd now */
};

struct sim_sockets sim_sockets;

static struct descriptor fds[FDS];
static uint32_t numbers[FDS]; /* which descriptor of this fd it is */
static uint8_t bytes[FDS][ROOM_MAX];
static struct name names[NAMES];
static ino_t last_ino;

void fds_reset(void)
{
    memset(fds, 0, sizeof(fds));
    memset(numbers, 0, sizeof(numbers));
    memset(names, 0, sizeof(names));
    last_ino = 0;
    memset(&sim_sockets, 0, sizeof(sim_sockets));
}

static struct descriptor *descriptor_of(int fd)
{
    struct descriptor *one = &fds[fd - FD_FIRST];

    assert(fd >= FD_FIRST && fd < FD_FIRST + FDS && one->kind != UNUSED);
    return one;
}

static int fd_of(const struct descriptor *one)
{
    return (int)(one - fds) + FD_FIRST;
}

static bool is_ours(int fd)
{
    return ours() && fd >= FD_FIRST;
}

static struct descriptor *new_descriptor(enum kind kind, int proc)
{
    int i = 0;

    while (i < FDS && fds[i].kind != UNUSED)
        i++;
    assert(i < FDS);
    fds[i] = (struct descriptor){.kind = kind, .proc = proc, .peer = -1, .mode = 0755};
    numbers[i]++;
    return &fds[i];
}

/* Another one in each life. */
static pid_t pid_of(int proc)
{
    return FIRST_PID + (int)sim_procs[proc].life * (PROCS + 1) + proc;
}

int sockets_peer(int fd, uint32_t *life)
{
    int number = descriptor_of(fd)->peer_pid - FIRST_PID;

    *life = (uint32_t)(number / (PROCS + 1));
    return number % (PROCS + 1);
}

static int failed(int error)
{
    errno = error;
    return -1;
}

/* A signal comes now and then. */
static bool is_interrupted(void)
{
    if (!chance(sim_sockets.interrupted))
        return false;
    sim_sockets.interruptions++;
    return true;
}

static bool watches(const struct descriptor *epoll, int fd)
{
    for (int i = 0; i < epoll->watched; i++)
        if (epoll->watches[i].fd == fd)
            return true;
    return false;
}

/* Something has changed there. */
static void changed(const struct descriptor *one)
{
    wake_who_polls(fd_of(one));
    for (int i = 0; i < FDS; i++)
        if (fds[i].kind == EPOLL && watches(&fds[i], fd_of(one)))
            wake_who_polls(i + FD_FIRST);
}

/* ---- the ends of connections ------------------------------------------------------------- */

static size_t room_in(const struct descriptor *one)
{
    size_t room = sim_sockets.room > 0 ? sim_sockets.room : ROOM_MAX;

    return one->len < room ? room - one->len : 0;
}

/* The other end is gone. */
static void part(struct descriptor *one, bool reset)
{
    if (reset) {
        one->reset = true;
        sim_sockets.resets++;
    }
    one->ended = true;
    one->peer = -1;
    changed(one);
}

static void unwatch(struct descriptor *epoll, int fd)
{
    for (int i = 0; i < epoll->watched; i++)
        if (epoll->watches[i].fd == fd) {
            epoll->watches[i] = epoll->watches[--epoll->watched];
            return;
        }
}

static void end(struct descriptor *one)
{
    int fd = fd_of(one);

    if (one->kind == STREAM && one->peer >= 0)
        part(descriptor_of(one->peer), one->len > 0);
    for (int i = 0; one->kind == LISTENER && i < one->waiting; i++) {
        struct descriptor *stream = &fds[one->backlog[i] - FD_FIRST];

        if (stream->kind == STREAM && stream->peer >= 0)
            part(descriptor_of(stream->peer), true);
        stream->kind = UNUSED;
    }
    one->kind = UNUSED;
    for (int i = 0; i < FDS; i++)
        if (fds[i].kind == EPOLL)
            unwatch(&fds[i], fd);
}

int fds_of(int proc)
{
    int n = 0;

    for (int i = 0; i < FDS; i++)
        n += fds[i].kind != UNUSED && fds[i].proc == proc;
    return n;
}

/* A descriptor that may be another one by now. */
static struct descriptor *still(const void *arg, enum kind kind)
{
    uintptr_t which = (uintptr_t)arg;
    struct descriptor *one = &fds[which % FDS];

    return one->kind == kind && numbers[which % FDS] == which / FDS ? one : NULL;
}

static void *named(const struct descriptor *one)
{
    return (void *)((uintptr_t)numbers[one - fds] * FDS + (uintptr_t)(one - fds));
}

static void child_ends(void *arg)
{
    struct descriptor *one;

    pass_us(between(0, 5 * SECOND));
    one = still(arg, STREAM);
    if (one)
        end(one);
}

static void is_dead(void *arg)
{
    struct descriptor *one;

    pass_us(chance(500) ? 0 : between(0, 20 * MS));
    one = still(arg, PROCESS);
    if (!one)
        return;
    one->ended = true;
    changed(one);
}

/* A process that is killed ends its sockets a moment before it ends itself. */
void fds_forget(int proc)
{
    bool child = chance(sim_sockets.inherited);

    sim_sockets.inheritances += child;
    for (int i = 0; i < FDS; i++) {
        struct descriptor *one = &fds[i];

        if (one->kind == PROCESS && one->value == (uint64_t)pid_of(proc)) {
            world_thread(is_dead, named(one));
        } else if (one->kind == STREAM && one->proc == proc && child) {
            one->proc = THE_WORLD;
            world_thread(child_ends, named(one));
        } else if (one->kind != UNUSED && one->proc == proc) {
            end(one);
        }
    }
}

static void lose_some(struct descriptor *one)
{
    if (one->len > 0)
        one->len = (size_t)between(0, (int64_t)one->len);
}

void sockets_cut(int proc)
{
    int begin = (int)between(0, FDS - 1);

    for (int i = 0; i < FDS; i++) {
        struct descriptor *one = &fds[(begin + i) % FDS], *other;

        if (one->kind != STREAM || one->proc != proc || one->peer < 0)
            continue;
        say("        CUT of a connection of p%d", proc);
        sim_sockets.cuts++;
        other = descriptor_of(one->peer);
        lose_some(one);
        lose_some(other);
        part(one, chance(500));
        part(other, chance(500));
        return;
    }
}

void sockets_draw(bool all)
{
    sim_sockets.interrupted = play_rate(all, 50);
    sim_sockets.in_part = play_rate(all, 500);
    sim_sockets.backlog_full = play_rate(all, 300);
    sim_sockets.no_descriptor = chance(200) ? (unsigned)between(0, 100) : 0;
}

/* ---- eventfds ---------------------------------------------------------------------------- */

WRAPPED(int, eventfd, unsigned value, int flags)
{
    struct descriptor *one;

    if (!ours())
        return __real_eventfd(value, flags);
    one = new_descriptor(EVENT, process_now());
    one->value = value;
    return fd_of(one);
}

WRAPPED(int, close, int fd)
{
    if (!is_ours(fd))
        return __real_close(fd);
    end(descriptor_of(fd));
    return 0;
}

WRAPPED(ssize_t, read, int fd, void *to, size_t size)
{
    struct descriptor *one;

    if (!is_ours(fd))
        return __real_read(fd, to, size);
    step();
    one = descriptor_of(fd);
    assert(one->kind == EVENT && size == sizeof(one->value));
    if (one->value == 0)
        return failed(EAGAIN);
    memcpy(to, &one->value, sizeof(one->value));
    one->value = 0;
    return (ssize_t)sizeof(one->value);
}

WRAPPED(ssize_t, __read_chk, int fd, void *to, size_t size, size_t room)
{
    return is_ours(fd) ? __wrap_read(fd, to, size) : __real___read_chk(fd, to, size, room);
}

WRAPPED(ssize_t, write, int fd, const void *from, size_t size)
{
    struct descriptor *one;
    uint64_t more;

    if (!is_ours(fd))
        return __real_write(fd, from, size);
    one = descriptor_of(fd);
    assert(one->kind == EVENT && size == sizeof(more));
    memcpy(&more, from, sizeof(more));
    one->value += more;
    changed(one);
    step();
    return (ssize_t)size;
}

/* ---- streams ----------------------------------------------------------------------------- */

WRAPPED(int, socket, int domain, int type, int protocol)
{
    if (!ours())
        return __real_socket(domain, type, protocol);
    assert(domain == AF_UNIX && (type & SOCK_NONBLOCK));
    if (chance(sim_sockets.no_descriptor))
        return failed(EMFILE);
    return fd_of(new_descriptor(SOCKET, process_now()));
}

static struct name *name_of(const char *path)
{
    for (int i = 0; i < NAMES; i++)
        if (names[i].ino > 0 && strcmp(names[i].path, path) == 0)
            return &names[i];
    return NULL;
}

static struct descriptor *listener_of(const struct name *name)
{
    struct descriptor *one = &fds[name->fd - FD_FIRST];

    return one->kind == LISTENER && numbers[one - fds] == name->number ? one : NULL;
}

WRAPPED(int, connect, int fd, const struct sockaddr *address, socklen_t len)
{
    struct descriptor *listener, *one, *other;
    struct name *name;

    if (!is_ours(fd))
        return __real_connect(fd, address, len);
    step();
    if (is_interrupted())
        return failed(EINTR);
    name = name_of(((const struct sockaddr_un *)(const void *)address)->sun_path);
    if (!name)
        return failed(ENOENT);
    listener = listener_of(name);
    if (!listener)
        return failed(ECONNREFUSED);
    if (listener->waiting == BACKLOG || chance(sim_sockets.backlog_full)) {
        sim_sockets.refusals++;
        return failed(EAGAIN);
    }
    one = descriptor_of(fd);
    other = new_descriptor(STREAM, listener->proc);
    one->kind = STREAM;
    one->peer = fd_of(other);
    one->peer_pid = pid_of(other->proc);
    other->peer = fd;
    other->peer_pid = pid_of(one->proc);
    listener->backlog[listener->waiting++] = one->peer;
    changed(listener);
    return 0;
}

WRAPPED(int, bind, int fd, const struct sockaddr *address, socklen_t len)
{
    const char *path = ((const struct sockaddr_un *)(const void *)address)->sun_path;
    int i = 0;

    if (!is_ours(fd))
        return __real_bind(fd, address, len);
    step();
    if (name_of(path))
        return failed(EADDRINUSE);
    while (i < NAMES && names[i].ino > 0)
        i++;
    assert(i < NAMES);
    names[i] = (struct name){.ino = ++last_ino,
                             .mode = descriptor_of(fd)->mode,
                             .fd = fd,
                             .number = numbers[fd - FD_FIRST]};
    snprintf(names[i].path, sizeof(names[i].path), "%s", path);
    return 0;
}

WRAPPED(int, listen, int fd, int backlog)
{
    if (!is_ours(fd))
        return __real_listen(fd, backlog);
    step();
    descriptor_of(fd)->kind = LISTENER;
    return 0;
}

WRAPPED(int, accept4, int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    struct descriptor *one, *stream;

    if (!is_ours(fd))
        return __real_accept4(fd, address, len, flags);
    step();
    one = descriptor_of(fd);
    if (is_interrupted())
        return failed(EINTR);
    if (one->waiting == 0)
        return failed(EAGAIN);
    if (chance(sim_sockets.no_descriptor))
        return failed(EMFILE);
    stream = descriptor_of(one->backlog[0]);
    memmove(one->backlog, one->backlog + 1, (size_t)--one->waiting * sizeof(one->backlog[0]));
    return fd_of(stream);
}

WRAPPED(ssize_t, recv, int fd, void *to, size_t size, int flags)
{
    struct descriptor *one;
    size_t n;

    if (!is_ours(fd))
        return __real_recv(fd, to, size, flags);
    assert((flags & ~(MSG_PEEK | MSG_DONTWAIT)) == 0); /* none waits: the sockets are so */
    step();
    one = descriptor_of(fd);
    assert(one->kind == STREAM && size > 0);
    if (is_interrupted())
        return failed(EINTR);
    if (one->len == 0 && one->reset) {
        one->reset = false;
        return failed(ECONNRESET);
    }
    if (one->len == 0)
        return one->ended ? 0 : failed(EAGAIN);
    n = one->len < size ? one->len : size;
    if (n > 1 && chance(sim_sockets.in_part)) {
        n = (size_t)between(1, (int64_t)n - 1);
        sim_sockets.short_reads++;
    }
    memcpy(to, bytes[one - fds] + one->at, n);
    if (flags & MSG_PEEK)
        return (ssize_t)n;
    if (n == one->len) {
        sim_sockets.joined[one->proc] += one->sends > 1;
        one->sends = 0;
    }
    one->len -= n;
    one->at = one->len > 0 ? one->at + n : 0;
    if (one->peer >= 0)
        changed(descriptor_of(one->peer));
    return (ssize_t)n;
}

WRAPPED(ssize_t, __recv_chk, int fd, void *to, size_t size, size_t room, int flags)
{
    return is_ours(fd) ? __wrap_recv(fd, to, size, flags)
                       : __real___recv_chk(fd, to, size, room, flags);
}

static void append(struct descriptor *one, const void *from, size_t n)
{
    uint8_t *to = bytes[one - fds];

    if (one->at + one->len + n > ROOM_MAX) {
        memmove(to, to + one->at, one->len);
        one->at = 0;
    }
    memcpy(to + one->at + one->len, from, n);
    one->len += n;
    one->sends++;
    changed(one);
}

WRAPPED(ssize_t, send, int fd, const void *from, size_t size, int flags)
{
    struct descriptor *one, *other;
    size_t n;

    if (!is_ours(fd))
        return __real_send(fd, from, size, flags);
    step();
    one = descriptor_of(fd);
    assert(one->kind == STREAM && (flags & MSG_NOSIGNAL));
    if (size == 0) /* who is turned away, where there is no memory to say why */
        return 0;
    if (is_interrupted())
        return failed(EINTR);
    if (one->peer < 0)
        return failed(EPIPE);
    other = descriptor_of(one->peer);
    n = room_in(other) < size ? room_in(other) : size;
    if (n == 0) {
        sim_sockets.full++;
        return failed(EAGAIN);
    }
    if (n > 1 && chance(sim_sockets.in_part))
        n = (size_t)between(1, (int64_t)n - 1);
    sim_sockets.short_writes += n < size;
    append(other, from, n);
    bytes_moved();
    step();
    return (ssize_t)n;
}

WRAPPED(int, shutdown, int fd, int how)
{
    struct descriptor *one;

    if (!is_ours(fd))
        return __real_shutdown(fd, how);
    step();
    one = descriptor_of(fd);
    assert(how == SHUT_RDWR || how == SHUT_WR);
    if (one->peer < 0)
        return failed(ENOTCONN);
    descriptor_of(one->peer)->ended = true;
    changed(descriptor_of(one->peer));
    return 0;
}

WRAPPED(int, getsockopt, int fd, int level, int name, void *value, socklen_t *len)
{
    struct ucred *peer = value;

    if (!is_ours(fd))
        return __real_getsockopt(fd, level, name, value, len);
    assert(level == SOL_SOCKET && name == SO_PEERCRED && *len == sizeof(*peer));
    *peer = (struct ucred){descriptor_of(fd)->peer_pid, geteuid(), getegid()};
    return 0;
}

WRAPPED(pid_t, getpid, void)
{
    return ours() ? pid_of(process_now()) : __real_getpid();
}

/* Of all that goes by its number only descriptors of processes are played. */
WRAPPED(long, syscall, long number, ...)
{
    long args[6];
    va_list list;

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        args[i] = va_arg(list, long);
    va_end(list);
    if (!ours() || number != SYS_pidfd_open)
        return __real_syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
    step();
    for (int proc = 0; proc < PROCS; proc++)
        if (sim_procs[proc].alive && pid_of(proc) == (pid_t)args[0]) {
            struct descriptor *one = new_descriptor(PROCESS, process_now());

            one->value = (uint64_t)args[0];
            return fd_of(one);
        }
    return failed(ESRCH);
}

/* ---- names ------------------------------------------------------------------------------- */

static bool is_our_path(const char *path)
{
    return ours() && strncmp(path, FOLDER, sizeof(FOLDER) - 1) == 0;
}

static int look_at(const char *path, struct stat *out)
{
    const struct name *name;

    step();
    name = name_of(path);
    if (!name)
        return failed(ENOENT);
    *out = (struct stat){.st_dev = 1, .st_ino = name->ino, .st_mode = S_IFSOCK | name->mode};
    return 0;
}

WRAPPED(int, lstat64, const char *path, struct stat *out)
{
    return is_our_path(path) ? look_at(path, out) : __real_lstat64(path, out);
}

WRAPPED(int, stat64, const char *path, struct stat *out)
{
    return is_our_path(path) ? look_at(path, out) : __real_stat64(path, out);
}

WRAPPED(int, unlink, const char *path)
{
    struct name *name;

    if (!is_our_path(path))
        return __real_unlink(path);
    step();
    name = name_of(path);
    if (!name)
        return failed(ENOENT);
    name->ino = 0;
    return 0;
}

WRAPPED(int, chmod, const char *path, mode_t mode)
{
    struct name *name;

    if (!is_our_path(path))
        return __real_chmod(path, mode);
    step();
    name = name_of(path);
    if (!name)
        return failed(ENOENT);
    name->mode = mode;
    return 0;
}

WRAPPED(int, fchmod, int fd, mode_t mode)
{
    if (!is_ours(fd))
        return __real_fchmod(fd, mode);
    descriptor_of(fd)->mode = mode;
    return 0;
}

WRAPPED(int, open64, const char *path, int flags, ...)
{
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (!is_our_path(path))
        return __real_open64(path, flags, mode);
    assert(flags & O_DIRECTORY);
    return fd_of(new_descriptor(DIRECTORY, process_now()));
}

WRAPPED(int, flock, int fd, int how)
{
    if (!is_ours(fd))
        return __real_flock(fd, how);
    step();
    for (int i = 0; how != LOCK_UN && i < FDS; i++)
        if (fds[i].kind == DIRECTORY && fds[i].value > 0)
            return failed(EWOULDBLOCK);
    descriptor_of(fd)->value = how != LOCK_UN;
    return 0;
}

/* ---- poll and epoll ---------------------------------------------------------------------- */

static unsigned looked(const struct descriptor *one)
{
    unsigned ready = 0;

    switch (one->kind) {
    case EVENT:
        return one->value > 0 ? POLLIN | POLLOUT : POLLOUT;
    case LISTENER:
        return one->waiting > 0 ? POLLIN : 0;
    case STREAM:
        if (one->len > 0 || one->ended || one->reset)
            ready |= POLLIN;
        if (one->peer < 0 || room_in(descriptor_of(one->peer)) > 0)
            ready |= POLLOUT;
        return ready | (one->peer < 0 ? POLLHUP : 0) | (one->reset ? POLLERR : 0);
    case PROCESS:
        return one->ended ? POLLIN : 0;
    case EPOLL:
        for (int i = 0; i < one->watched; i++)
            if (looked(descriptor_of(one->watches[i].fd)) &
                (one->watches[i].event.events | POLLHUP | POLLERR))
                return POLLIN;
        return 0;
    default:
        return POLLHUP;
    }
}

/* Another thread may have closed it meanwhile. */
static bool is_open(int fd)
{
    const struct descriptor *one = &fds[fd - FD_FIRST];

    assert(fd >= FD_FIRST && fd < FD_FIRST + FDS);
    return one->kind != UNUSED && one->proc == process_now();
}

static int look(struct pollfd *all, nfds_t n)
{
    int ready = 0;

    for (nfds_t i = 0; i < n; i++) {
        all[i].revents = 0;
        if (all[i].fd >= 0 && !is_open(all[i].fd))
            all[i].revents = POLLNVAL;
        else if (all[i].fd >= 0)
            all[i].revents = (short)(looked(descriptor_of(all[i].fd)) &
                                     ((unsigned)all[i].events | POLLHUP | POLLERR));
        ready += all[i].revents != 0;
    }
    return ready;
}

static int poll_until(struct pollfd *all, nfds_t n, int64_t until_us)
{
    int ready;

    step();
    if (is_interrupted())
        return failed(EINTR);
    while ((ready = look(all, n)) == 0 && sim_now_us < until_us)
        wait_for_fds(all, n, until_us);
    return ready;
}

/* A process may be late for its timer. */
static int64_t timer(int64_t us)
{
    return us <= 0 ? sim_now_us : sim_now_us + us + between(0, 100);
}

WRAPPED(int, ppoll, struct pollfd *all, nfds_t n, const struct timespec *timeout,
        const sigset_t *mask)
{
    if (!ours())
        return __real_ppoll(all, n, timeout, mask);
    return poll_until(all, n,
                      timeout ? timer((int64_t)timeout->tv_sec * SECOND + timeout->tv_nsec / 1000)
                              : NEVER);
}

WRAPPED(int, __ppoll_chk, struct pollfd *all, nfds_t n, const struct timespec *timeout,
        const sigset_t *mask, size_t room)
{
    return ours() ? __wrap_ppoll(all, n, timeout, mask)
                  : __real___ppoll_chk(all, n, timeout, mask, room);
}

WRAPPED(int, poll, struct pollfd *all, nfds_t n, int timeout_ms)
{
    if (!ours())
        return __real_poll(all, n, timeout_ms);
    return poll_until(all, n, timeout_ms < 0 ? NEVER : timer(timeout_ms * MS));
}

WRAPPED(int, __poll_chk, struct pollfd *all, nfds_t n, int timeout_ms, size_t room)
{
    return ours() ? __wrap_poll(all, n, timeout_ms) : __real___poll_chk(all, n, timeout_ms, room);
}

WRAPPED(int, epoll_create1, int flags)
{
    return ours() ? fd_of(new_descriptor(EPOLL, process_now())) : __real_epoll_create1(flags);
}

WRAPPED(int, epoll_ctl, int epfd, int op, int fd, struct epoll_event *event)
{
    struct descriptor *epoll;
    int i = 0;

    if (!is_ours(epfd))
        return __real_epoll_ctl(epfd, op, fd, event);
    step();
    epoll = descriptor_of(epfd);
    (void)descriptor_of(fd);
    while (i < epoll->watched && epoll->watches[i].fd != fd)
        i++;
    if (op == EPOLL_CTL_DEL && i == epoll->watched)
        return failed(ENOENT);
    assert((op == EPOLL_CTL_ADD) == (i == epoll->watched));
    if (op == EPOLL_CTL_ADD && chance(sim_procs[process_now()].no_memory))
        return failed(ENOMEM);
    if (op == EPOLL_CTL_DEL) {
        unwatch(epoll, fd);
        return 0;
    }
    assert(i < WATCHES);
    epoll->watched += op == EPOLL_CTL_ADD;
    epoll->watches[i] = (struct watch){fd, *event};
    wake_who_polls(epfd);
    return 0;
}

/* It may tell of some of them now, and of the others in the next call. */
static int take_events(const struct descriptor *epoll, struct epoll_event *events, int max)
{
    int begin = epoll->watched > 0 ? (int)between(0, epoll->watched - 1) : 0, n = 0;

    if (max > 1 && chance(sim_sockets.in_part))
        max = (int)between(1, 3);
    for (int i = 0; i < epoll->watched && n < max; i++) {
        const struct watch *watch = &epoll->watches[(begin + i) % epoll->watched];
        unsigned ready = looked(descriptor_of(watch->fd)) &
                         (watch->event.events | (unsigned)POLLHUP | (unsigned)POLLERR);

        if (ready > 0)
            events[n++] = (struct epoll_event){ready, watch->event.data};
    }
    return n;
}

WRAPPED(int, epoll_wait, int epfd, struct epoll_event *events, int max, int timeout_ms)
{
    struct pollfd one = {.fd = epfd, .events = POLLIN};
    int ready;

    if (!is_ours(epfd))
        return __real_epoll_wait(epfd, events, max, timeout_ms);
    ready = poll_until(&one, 1, timeout_ms < 0 ? NEVER : timer(timeout_ms * MS));
    return ready > 0 ? take_events(descriptor_of(epfd), events, max) : ready;
}
