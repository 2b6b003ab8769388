/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of a keeper: a store whose ops another process runs. It sends a batch as one frame and
 * waits for the answers. Where the connection is lost meanwhile, it connects anew and repeats the
 * unanswered ops with the same tokens.
 *
 * The invariant: an op is UNAVAILABLE only if no frame with it was ever handed to the kernel as a
 * whole, since the server acts on whole frames only. After that, anything but a verdict is
 * INDETERMINATE, even an "unavailable" that the server answers to the repeat: that answer is about
 * the repeat alone. After any failure the connection is dropped, so that a late reply cannot be
 * taken for the answer to a later frame.
 *
 * Frames go one at a time. The lane before this handle gathers the next batch meanwhile: a second
 * frame under way would gain little, and repeats would lose their order.
 */
#include "keeper.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "frame.h"
#include "socket.h"
#include "store/types.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TIMEOUT_MS   10000 /* for a reply, all repeats included */
#define CONNECT_MS   2000 /* to connect and be greeted */
#define PAUSE_MIN_MS 5
#define PAUSE_MAX_MS 100
#define REPEATS_MAX  16 /* of one frame, over as many connections */
#define SCRATCH_SIZE 65536u /* replies shorter than this take one recv() */
#define OUT_KEPT_MAX (1u << 20) /* the memory of a longer request is freed after it */

struct keeper {
    struct hapax_store base;
    int fd; /* -1: not connected */
    uint32_t seq;
    int64_t timeout_ms;
    struct hapax__hello server; /* of the last connection */
    struct sockaddr_un address;
    uint8_t *out;
    size_t out_cap;
    size_t in_at; /* where the unused bytes of `in` begin */
    size_t in_end;
    uint8_t in[SCRATCH_SIZE];
    struct hapax_op *pending[HAPAX_BATCH_MAX];
};

/* How a step on the connection ended. All but WELL end the connection. */
enum result {
    WELL,
    LOST, /* closed or reset: another connection may succeed */
    LATE, /* the time is over */
    BROKEN, /* the server sent a FAULT or nonsense, or there is no memory */
};

/* Ops that are sent together; an answered op leaves the group. */
struct group {
    struct hapax_op **ops;
    size_t n;
    int64_t deadline_us;
    bool sent; /* a frame with them left as a whole */
};

static enum result result_with(struct keeper *k, enum result result, const char *why)
{
    hapax_store_fail(&k->base, HAPAX_ERR_INDETERMINATE, "keeper \"unix:%s\": %s",
                     k->address.sun_path, why);
    return result;
}

static void disconnect(struct keeper *k)
{
    if (k->fd >= 0)
        close(k->fd);
    k->fd = -1;
    k->in_at = 0;
    k->in_end = 0;
}

/* ---- bytes --------------------------------------------------------------------------- */

static enum result wait_for(struct keeper *k, short events, int64_t deadline_us)
{
    for (;;) {
        struct pollfd fd = {.fd = k->fd, .events = events};
        int64_t left_ms = (deadline_us - hapax__monotonic_us() + US_PER_MS - 1) / US_PER_MS;
        int ready;

        if (left_ms <= 0)
            return result_with(k, LATE, "no answer in time");
        ready = poll(&fd, 1, (int)hapax__least(left_ms, 60000));
        if (ready > 0)
            return WELL;
        if (ready < 0 && errno != EINTR)
            return result_with(k, LOST, hapax__socket_reason(errno));
    }
}

/* After a system call that failed: waits, and returns WELL once another try is of use. */
static enum result failed(struct keeper *k, short events, int64_t deadline_us)
{
    if (errno == EINTR)
        return WELL;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return wait_for(k, events, deadline_us);
    return result_with(k, LOST, hapax__socket_reason(errno));
}

static enum result send_all(struct keeper *k, const uint8_t *bytes, size_t len, int64_t deadline_us)
{
    enum result result = WELL;

    while (len > 0 && result == WELL) {
        ssize_t sent = send(k->fd, bytes, len, MSG_NOSIGNAL);

        if (sent < 0) {
            result = failed(k, POLLOUT, deadline_us);
            continue;
        }
        bytes += sent;
        len -= (size_t)sent;
    }
    return result;
}

/* Receives some bytes by one recv(). */
static enum result receive_some(struct keeper *k, uint8_t *out, size_t room, size_t *len,
                                int64_t deadline_us)
{
    enum result result = WELL;

    while (result == WELL) {
        ssize_t got = recv(k->fd, out, room, 0);

        if (got > 0) {
            *len = (size_t)got;
            return WELL;
        }
        if (got == 0)
            return result_with(k, LOST, "it closed the connection");
        result = failed(k, POLLIN, deadline_us);
    }
    return result;
}

/* Takes exactly len bytes: first those that were read ahead, then from the connection. A long
 * rest is received straight into its place. */
static enum result receive(struct keeper *k, uint8_t *out, size_t len, int64_t deadline_us)
{
    while (len > 0) {
        size_t ready = k->in_end - k->in_at;
        size_t part = ready < len ? ready : len;
        enum result result;

        memcpy(out, k->in + k->in_at, part);
        k->in_at += part;
        out += part;
        len -= part;
        if (len == 0)
            break;
        if (len >= SCRATCH_SIZE) {
            result = receive_some(k, out, len, &part, deadline_us);
            if (result != WELL)
                return result;
            out += part;
            len -= part;
            continue;
        }
        k->in_at = 0;
        k->in_end = 0;
        result = receive_some(k, k->in, SCRATCH_SIZE, &k->in_end, deadline_us);
        if (result != WELL)
            return result;
    }
    return WELL;
}

struct head {
    uint8_t kind;
    size_t len; /* of the payload */
};

static enum result receive_head(struct keeper *k, struct head *head, int64_t deadline_us)
{
    uint8_t bytes[HAPAX__FRAME_HEAD];
    struct hapax__reader r = {bytes, sizeof(bytes), false};
    enum result result = receive(k, bytes, sizeof(bytes), deadline_us);

    if (result != WELL)
        return result;
    head->len = hapax__take_u32(&r);
    head->kind = hapax__take_u8(&r);
    if (head->len < 1 || head->len > HAPAX__FRAME_MAX)
        return result_with(k, BROKEN, "it sent a malformed frame");
    head->len--;
    return WELL;
}

/* Reads a FAULT that came in place of the awaited frame. */
static enum result receive_fault(struct keeper *k, const struct head *head, enum hapax_error *error,
                                 int64_t deadline_us)
{
    uint8_t bytes[HAPAX__FRAME_FAULT_MAX];
    char text[HAPAX_TEXT_MAX];
    enum result result;

    if (head->kind != HAPAX__FRAME_FAULT || head->len > sizeof(bytes))
        return result_with(k, BROKEN, "it sent a frame out of turn");
    result = receive(k, bytes, head->len, deadline_us);
    if (result != WELL)
        return result;
    if (!hapax__frame_take_fault((struct hapax_span){bytes, head->len}, error, text))
        return result_with(k, BROKEN, "it sent a malformed fault");
    return result_with(k, BROKEN, text);
}

/* Receives the payload of a frame of this kind into the store's memory for answers. */
static enum result receive_frame(struct keeper *k, enum hapax__frame_kind kind,
                                 struct hapax_span *payload, int64_t deadline_us)
{
    enum hapax_error ignored;
    struct head head;
    uint8_t *bytes;
    enum result result = receive_head(k, &head, deadline_us);

    if (result != WELL)
        return result;
    if (head.kind != (uint8_t)kind)
        return receive_fault(k, &head, &ignored, deadline_us);
    bytes = hapax_store_memory(&k->base, head.len);
    if (!bytes)
        return result_with(k, BROKEN, "out of memory for its answer");
    *payload = (struct hapax_span){bytes, head.len};
    return receive(k, bytes, head.len, deadline_us);
}

/* ---- connecting ---------------------------------------------------------------------- */

static enum hapax_error no_keeper(struct keeper *k, enum hapax_error error, const char *why)
{
    return hapax_store_fail(&k->base, error, "cannot reach keeper \"unix:%s\": %s",
                            k->address.sun_path, why);
}

static enum hapax_error dial(struct keeper *k, int64_t deadline_us)
{
    int error;

    k->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (k->fd < 0)
        return no_keeper(k, HAPAX_ERR_NOMEM, hapax__socket_reason(errno));
    for (;;) {
        if (connect(k->fd, (struct sockaddr *)&k->address, sizeof(k->address)) == 0)
            return HAPAX_ERR_NONE;
        error = errno;
        /* EAGAIN: the backlog is full. Unix sockets have no EINPROGRESS. */
        if ((error != EAGAIN && error != EINTR) || hapax__monotonic_us() >= deadline_us)
            break;
        poll(NULL, 0, PAUSE_MIN_MS);
    }
    return no_keeper(k, error == EACCES ? HAPAX_ERR_REFUSED : HAPAX_ERR_UNAVAILABLE,
                     hapax__socket_reason(error));
}

static enum hapax_error greet(struct keeper *k, int64_t deadline_us)
{
    struct hapax__hello hello = {.version = HAPAX__FRAME_VERSION, .frame_max = HAPAX__FRAME_MAX};
    uint8_t bytes[HAPAX__FRAME_HEAD + HAPAX__FRAME_HELLO_MAX];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;
    struct head head;
    enum result result;

    hapax__frame_put_hello(&w, &hello);
    /* A server that turns us away sends a FAULT and closes without reading: so read, whatever
     * became of the HELLO. */
    if (send_all(k, bytes, (size_t)(w.at - bytes), deadline_us) == LATE)
        return no_keeper(k, error, "it takes no greeting");
    result = receive_head(k, &head, deadline_us);
    if (result == WELL && head.kind != HAPAX__FRAME_WELCOME)
        result = receive_fault(k, &head, &error, deadline_us);
    else if (result == WELL && head.len != HAPAX__FRAME_WELCOME_SIZE)
        result = result_with(k, BROKEN, "its greeting is malformed");
    else if (result == WELL)
        result = receive(k, bytes, head.len, deadline_us);
    if (result == LATE)
        return no_keeper(k, error, "it does not greet");
    if (result != WELL)
        return error; /* the text says why */
    if (!hapax__frame_take_welcome((struct hapax_span){bytes, head.len}, &k->server))
        return no_keeper(k, error, "its greeting is malformed");
    if (k->server.version != HAPAX__FRAME_VERSION)
        return no_keeper(k, HAPAX_ERR_UNSUPPORTED, "it speaks another version");
    if (k->server.frame_max > HAPAX__FRAME_MAX)
        k->server.frame_max = HAPAX__FRAME_MAX;
    return HAPAX_ERR_NONE;
}

static enum hapax_error connect_once(struct keeper *k, int64_t deadline_us)
{
    enum hapax_error error;

    disconnect(k);
    deadline_us = hapax__least(deadline_us, hapax__monotonic_us() + CONNECT_MS * US_PER_MS);
    error = dial(k, deadline_us);
    if (error == HAPAX_ERR_NONE)
        error = greet(k, deadline_us);
    if (error != HAPAX_ERR_NONE)
        disconnect(k);
    return error;
}

/* Connects, if there is no connection. patient: the result of an op is open, so wait for a
 * keeper that starts anew. For other ops the caller knows best how long to try. */
static enum hapax_error ensure_connected(struct keeper *k, int64_t deadline_us, bool patient)
{
    int64_t until_us = hapax__least(deadline_us, hapax__monotonic_us() + CONNECT_MS * US_PER_MS);
    int pause_ms = PAUSE_MIN_MS;

    while (k->fd < 0) {
        enum hapax_error error = connect_once(k, deadline_us);

        if (error == HAPAX_ERR_NONE)
            break;
        if (!patient || error != HAPAX_ERR_UNAVAILABLE ||
            hapax__monotonic_us() + pause_ms * US_PER_MS >= until_us)
            return error;
        poll(NULL, 0, pause_ms);
        pause_ms = (int)hapax__least(pause_ms * 2, PAUSE_MAX_MS);
    }
    return HAPAX_ERR_NONE;
}

/* ---- requests ------------------------------------------------------------------------ */

/* How many of the ops fit in one frame, and their bytes. */
static size_t fit(const struct keeper *k, struct hapax_op *const *ops, size_t n, size_t *size)
{
    size_t room = k->server.frame_max - HAPAX__FRAME_HEAD - HAPAX__FRAME_REQUEST_SIZE;
    size_t count;

    *size = 0;
    for (count = 0; count < n && count < k->server.batch_max; count++) {
        size_t one = hapax__frame_op_size(ops[count]);

        if (one > room - *size)
            break;
        *size += one;
    }
    assert(count > 0);
    return count;
}

static bool reserve(struct keeper *k, size_t size)
{
    uint8_t *out;

    if (size <= k->out_cap)
        return true;
    out = realloc(k->out, size);
    if (!out)
        return false;
    k->out = out;
    k->out_cap = size;
    return true;
}

static void free_out(struct keeper *k)
{
    free(k->out);
    k->out = NULL;
    k->out_cap = 0;
}

static enum result send_ops(struct keeper *k, struct group *group, size_t *count)
{
    int64_t left_ms = (group->deadline_us - hapax__monotonic_us()) / US_PER_MS;
    struct hapax__request request = {.seq = ++k->seq};
    struct hapax__writer w;
    enum result result;
    size_t size;

    *count = fit(k, group->ops, group->n, &size);
    request.count = (uint16_t)*count;
    request.wait_ms = left_ms < 1 ? 1 : (uint32_t)hapax__least(left_ms, UINT32_MAX);
    if (!reserve(k, HAPAX__FRAME_HEAD + HAPAX__FRAME_REQUEST_SIZE + size))
        return result_with(k, BROKEN, "out of memory for a request");
    w = (struct hapax__writer){k->out, k->out_cap};
    hapax__frame_put_request(&w, &request, size);
    for (size_t i = 0; i < *count; i++)
        hapax__frame_put_op(&w, group->ops[i]);
    result = send_all(k, k->out, (size_t)(w.at - k->out), group->deadline_us);
    if (result == WELL)
        group->sent = true;
    if (k->out_cap > OUT_KEPT_MAX)
        free_out(k);
    return result;
}

/* The error of a repeat says nothing of the frame before it. */
static void judge_error(struct keeper *k, struct hapax_op *op, bool repeated, const char *text)
{
    if (op->error == HAPAX_ERR_NONE)
        return;
    if (repeated && op->error != HAPAX_ERR_CORRUPT)
        op->error = HAPAX_ERR_INDETERMINATE;
    result_with(k, WELL, text);
}

/* Takes the answers of one REPLY; *place moves on. */
static enum result take_reply(struct keeper *k, struct hapax_op **ops, size_t n, bool repeated,
                              struct hapax_span payload, size_t *place)
{
    struct hapax__reader r = {payload.ptr, payload.len, false};
    struct hapax__frame_reply reply;
    char text[HAPAX_TEXT_MAX];

    if (!hapax__frame_take_reply(&r, &reply) || reply.seq != k->seq || reply.first != *place ||
        reply.count > n - *place)
        return result_with(k, BROKEN, "it sent a reply to something else");
    for (uint16_t i = 0; i < reply.count; i++) {
        struct hapax_op *op = ops[*place];
        enum hapax__taken taken = hapax__frame_take_answer(&r, op, k->base.arena, text);

        if (taken != HAPAX__TAKEN)
            return result_with(k, BROKEN,
                               taken == HAPAX__TAKEN_NOMEM ? "out of memory for its answer"
                                                           : "it sent a malformed answer");
        judge_error(k, op, repeated, text);
        ++*place;
    }
    return r.left == 0 ? WELL : result_with(k, BROKEN, "it sent a malformed reply");
}

/* Sends one frame and takes its answers. An answered op leaves the group. */
static enum result exchange(struct keeper *k, struct group *group)
{
    bool repeated = group->sent;
    size_t count, place = 0;
    enum result result = send_ops(k, group, &count);

    while (result == WELL && place < count) {
        struct hapax_span payload;

        result = receive_frame(k, HAPAX__FRAME_REPLY, &payload, group->deadline_us);
        if (result == WELL)
            result = take_reply(k, group->ops, count, repeated, payload, &place);
    }
    group->ops += place;
    group->n -= place;
    return result;
}

/* Takes the FORGETs out of a group that is to be repeated. A FORGET takes its token along: the
 * repeat of an applied one would meet the record that came after it. So it stays INDETERMINATE. */
static void leave_out_forgets(struct group *group)
{
    size_t kept = 0;

    for (size_t i = 0; i < group->n; i++) {
        struct hapax_op *op = group->ops[i];

        if (op->kind != HAPAX_OP_RESOLVE || op->resolve != HAPAX_RESOLVE_FORGET)
            group->ops[kept++] = op;
    }
    group->n = kept;
}

/* Answers the ops of a group as far as it can. The others are UNAVAILABLE if they were never
 * sent, otherwise INDETERMINATE. */
static enum hapax_error run_group(struct keeper *k, struct group *group)
{
    enum hapax_error error = HAPAX_ERR_NONE;
    unsigned losses = 0;

    while (group->n > 0 && losses <= REPEATS_MAX) {
        enum result result;

        error = ensure_connected(k, group->deadline_us, group->sent);
        if (error != HAPAX_ERR_NONE)
            break;
        result = exchange(k, group);
        if (result == WELL)
            continue;
        disconnect(k);
        error = HAPAX_ERR_UNAVAILABLE;
        if (result != LOST)
            break;
        losses++;
        if (group->sent)
            leave_out_forgets(group);
    }
    if (group->n == 0)
        return error;
    if (group->sent)
        return HAPAX_ERR_INDETERMINATE;
    for (size_t i = 0; i < group->n; i++)
        group->ops[i]->error = HAPAX_ERR_UNAVAILABLE;
    return error;
}

static enum hapax_error first_error(const struct hapax_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ops[i].verdict == HAPAX_NO_VERDICT)
            return ops[i].error;
    return HAPAX_ERR_NONE;
}

static enum hapax_error keeper_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct keeper *k = (struct keeper *)store;
    enum hapax_error error = HAPAX_ERR_NONE;
    size_t from = 0;

    assert(n >= 1 && n <= HAPAX_BATCH_MAX);
    for (size_t i = 0; i < n; i++)
        k->pending[i] = &ops[i];
    while (from < n && error == HAPAX_ERR_NONE) {
        size_t size;
        size_t count = fit(k, k->pending + from, n - from, &size);
        struct group group = {.ops = k->pending + from, .n = count};

        group.deadline_us = hapax__monotonic_us() + k->timeout_ms * US_PER_MS;
        error = run_group(k, &group);
        from += count;
    }
    for (; from < n; from++) /* the keeper is gone: the ops that follow are not tried one by one */
        ops[from].error = HAPAX_ERR_UNAVAILABLE;
    return first_error(ops, n);
}

/* ---- check --------------------------------------------------------------------------- */

static enum result ask(struct keeper *k, struct hapax__info *info, int64_t deadline_us)
{
    uint8_t bytes[HAPAX__FRAME_HEAD + HAPAX__FRAME_ASK_SIZE];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    struct hapax_span payload;
    enum result result;

    hapax__frame_put_ask(&w, ++k->seq);
    result = send_all(k, bytes, sizeof(bytes), deadline_us);
    if (result == WELL)
        result = receive_frame(k, HAPAX__FRAME_INFO, &payload, deadline_us);
    if (result == WELL && (!hapax__frame_take_info(payload, info) || info->seq != k->seq))
        result = result_with(k, BROKEN, "it sent a malformed reply");
    return result;
}

static enum hapax_error keeper_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct keeper *k = (struct keeper *)store;
    int64_t deadline_us = hapax__monotonic_us() + k->timeout_ms * US_PER_MS;
    char line[HAPAX_TEXT_MAX];
    struct hapax__info info;
    enum result result = LOST;

    for (int tries = 0; tries < 2 && result == LOST;
         tries++) { /* the first try may meet a restarted keeper */
        enum hapax_error error = ensure_connected(k, deadline_us, false);

        if (error != HAPAX_ERR_NONE)
            return error;
        result = ask(k, &info, deadline_us);
        if (result != WELL)
            disconnect(k);
    }
    if (result != WELL)
        return HAPAX_ERR_UNAVAILABLE;
    hapax__fail(line, HAPAX_ERR_NONE,
                "keeper of process %u serves a %.*s store: protocol %u, %u clients, %u ops in hand",
                info.pid, (int)info.scheme.len, (const char *)info.scheme.ptr, k->server.version,
                info.clients, info.queued);
    say(arg, false, line);
    for (uint8_t i = 0; i < info.lines; i++) {
        hapax__fail(line, HAPAX_ERR_NONE, "%.*s", (int)info.line[i].text.len,
                    (const char *)info.line[i].text.ptr);
        say(arg, info.line[i].danger, line);
    }
    return HAPAX_ERR_NONE;
}

/* ---- open, close --------------------------------------------------------------------- */

static void keeper_close(struct hapax_store *store)
{
    struct keeper *k = (struct keeper *)store;

    disconnect(k);
    free_out(k);
    free(k);
}

static enum hapax_error open_at(struct hapax_store **out, const char *path, int64_t timeout_ms,
                                char text[HAPAX_TEXT_MAX])
{
    struct keeper *k = calloc(1, sizeof(*k));
    enum hapax_error error;

    *out = NULL;
    if (!k)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot reach a keeper: out of memory");
    k->fd = -1;
    k->timeout_ms = timeout_ms;
    error = hapax__socket_address(&k->address, path, text);
    if (error == HAPAX_ERR_NONE) {
        error = connect_once(k, hapax__monotonic_us() + timeout_ms * US_PER_MS);
        hapax__fail(text, error, "%s", k->base.text);
    }
    if (error != HAPAX_ERR_NONE) {
        keeper_close(&k->base);
        return error;
    }
    k->base.type = &hapax__keeper;
    k->base.text[0] = '\0';
    *out = &k->base;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__keeper_connect(struct hapax_store **out, const char *path,
                                       char text[HAPAX_TEXT_MAX])
{
    return open_at(out, path, TIMEOUT_MS, text);
}

static enum hapax_error take_timeout(const char *query, int64_t *out, char text[HAPAX_TEXT_MAX])
{
    static const char name[] = "timeout=";
    struct hapax_policy policy;
    enum hapax_error error;

    if (strncmp(query, name, sizeof(name) - 1) != 0)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "unix: takes no \"?%.60s\" (only ?timeout=DURATION)", query);
    hapax_policy_init(&policy);
    error = hapax_policy_set(&policy, "timeout", query + sizeof(name) - 1, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    if (policy.timeout_ms < 1)
        return hapax__fail(text, HAPAX_ERR_INVALID, "the timeout of a keeper is not 1 ms or more");
    *out = policy.timeout_ms;
    return HAPAX_ERR_NONE;
}

static enum hapax_error keeper_open(struct hapax_store **out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    const char *path = uri + strlen("unix:");
    size_t len = strcspn(path, "?");
    int64_t timeout_ms = TIMEOUT_MS;
    enum hapax_error error;
    char *copy;

    if (path[len] == '?') {
        error = take_timeout(path + len + 1, &timeout_ms, text);
        if (error != HAPAX_ERR_NONE)
            return error;
    }
    copy = strndup(path, len);
    if (!copy)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot reach a keeper: out of memory");
    error = open_at(out, copy, timeout_ms, text);
    free(copy);
    return error;
}

const struct hapax_store_type hapax__keeper = {
    .scheme = "unix",
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .open = keeper_open,
    .run = keeper_run,
    .check = keeper_check,
    .close = keeper_close,
};
