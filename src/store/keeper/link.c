/* SPDX-License-Identifier: Apache-2.0
 *
 * The link. It sends what waits as one frame and takes the answers. Where the connection is lost
 * meanwhile, it connects anew and repeats the unanswered ops with the same tokens.
 *
 * The invariant: an op is UNAVAILABLE only if no frame with it was ever handed to the kernel as a
 * whole, since the server acts on whole frames only. After that, anything but a verdict is
 * INDETERMINATE, even an "unavailable" that the server answers to the repeat: that answer is about
 * the repeat alone. After any failure the connection is dropped, so that a late reply cannot be
 * taken for the answer to a later frame.
 *
 * A few frames may be under way: the keeper judges what comes while it syncs what came before. The
 * more frames are out, the more ops must wait to make another one. Frames are written, answered and
 * repeated in the order in which their ops were put, so ops on one id keep their order. Rejected:
 * two frames and no more. The second is then the first 8 ops that come after a reply, the others
 * wait for a sync more, and each sync is for few. Rejected, too: another client for nginx beside
 * one that blocks. The rules for what may have been applied would then stand twice.
 */
#include "link.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/socket.h"
#include "base/span.h"
#include "base/time.h"
#include "keeper.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TIMEOUT_MS   10000 /* for a reply, all repeats included */
#define CONNECT_MS   2000 /* to connect and be greeted */
#define PAUSE_MIN_MS 5
#define WAIT_MS      60000 /* of one poll() */
#define PAUSE_MAX_MS 100
#define REPEATS_MAX  16 /* of one frame, over as many connections */
/* So many ops must wait, for each request that is under way, to make another request. */
#define BATCH_LEAST  8u
#define OUT_KEPT_MAX (1u << 20) /* the memory of a longer request is freed after it */

/* How a step on the connection ended. The last three end the connection. */
enum result {
    WELL,
    AGAIN, /* nothing more can be done now */
    LOST, /* closed or reset: another connection may succeed */
    BROKEN, /* the server sent a FAULT or nonsense, or there is no memory */
    LATE /* the time is over */
};

static enum result result_with(struct hapax__link *link, enum result result, const char *why)
{
    hapax__fail(link->text, HAPAX_ERR_INDETERMINATE, "keeper \"unix:%s\": %s",
                link->address.sun_path, why);
    return result;
}

static void disconnect(struct hapax__link *link)
{
    if (link->fd >= 0) {
        if (link->closing)
            link->closing(link);
        close(link->fd);
    }
    link->fd = -1;
    link->phase = HAPAX__LINK_DOWN;
    link->kind = 0;
    link->in_at = 0;
    link->in_end = 0;
    link->out_at = 0;
    link->out_len = 0;
    link->writing = NULL;
    link->paused = false;
    for (uint32_t i = 0; i < HAPAX__LINK_GROUPS; i++)
        link->group[i].in_frame = 0;
}

/* The i-th group, or, behind the last one, that which is next. */
static struct hapax__group *group_at(struct hapax__link *link, uint32_t i)
{
    return &link->group[(link->first + i) % HAPAX__LINK_GROUPS];
}

static void end_group(struct hapax__link *link)
{
    assert(link->groups > 0 && STAILQ_EMPTY(&group_at(link, 0)->askings));
    link->first = (link->first + 1) % HAPAX__LINK_GROUPS;
    link->groups--;
}

/* Whether an op that was sent has no answer. */
static bool any_sent(const struct hapax__link *link)
{
    for (uint32_t i = 0; i < link->groups; i++)
        if (link->group[(link->first + i) % HAPAX__LINK_GROUPS].sent)
            return true;
    return false;
}

/* ---- ops ----------------------------------------------------------------------------- */

void hapax__link_put(struct hapax__link *link, struct hapax__asking *asking)
{
    STAILQ_INSERT_TAIL(&link->waiting, asking, next);
    link->queued++;
}

struct hapax__asking *hapax__link_take(struct hapax__link *link)
{
    struct hapax__asking *asking = STAILQ_FIRST(&link->done);

    if (asking)
        STAILQ_REMOVE_HEAD(&link->done, next);
    return asking;
}

/* Takes the first op out of a list: it has its answer. */
static void answered(struct hapax__link *link, struct hapax__askings *list)
{
    struct hapax__asking *asking = STAILQ_FIRST(list);

    STAILQ_REMOVE_HEAD(list, next);
    STAILQ_INSERT_TAIL(&link->done, asking, next);
    assert(link->queued > 0);
    link->queued--;
}

/* The first op that waits is not sent. */
static void unavailable(struct hapax__link *link)
{
    struct hapax_op *op = STAILQ_FIRST(&link->waiting)->op;

    if (op)
        op->error = HAPAX_ERR_UNAVAILABLE;
    answered(link, &link->waiting);
}

/* The first op of a group has its answer. */
static void answered_of(struct hapax__link *link, struct hapax__group *group)
{
    answered(link, &group->askings);
    group->count--;
    link->grouped--;
}

/* Ends the groups, whose ops without an answer get none. The ops that wait are not tried one after
 * the other. */
static void give_up(struct hapax__link *link)
{
    disconnect(link);
    link->wanted = false;
    while (link->groups > 0) {
        struct hapax__group *group = group_at(link, 0);

        while (!STAILQ_EMPTY(&group->askings)) {
            if (!group->sent && STAILQ_FIRST(&group->askings)->op)
                STAILQ_FIRST(&group->askings)->op->error = HAPAX_ERR_UNAVAILABLE;
            answered_of(link, group);
        }
        end_group(link);
    }
    while (!STAILQ_EMPTY(&link->waiting))
        unavailable(link);
}

/* Makes the ops that wait a group, as many as fit in a frame. An INFO is asked for alone. */
static void gather(struct hapax__link *link, int64_t now_us)
{
    uint32_t frame_max = link->server.frame_max ? link->server.frame_max : HAPAX__FRAME_LEAST;
    size_t room = frame_max - HAPAX__FRAME_HEAD - HAPAX__FRAME_REQUEST_SIZE;
    struct hapax__group *group = group_at(link, link->groups);
    struct hapax__asking *asking;

    assert(link->groups < HAPAX__LINK_GROUPS);
    *group = (struct hapax__group){.deadline_us = now_us + link->timeout_ms * US_PER_MS};
    STAILQ_INIT(&group->askings);
    while ((asking = STAILQ_FIRST(&link->waiting)) && group->count < HAPAX_BATCH_MAX) {
        size_t size = asking->op ? hapax__frame_op_size(asking->op) : room;

        if (asking->deadline_us > 0 && now_us >= asking->deadline_us) {
            unavailable(link);
            continue;
        }
        if (group->count > 0 && (!asking->op || size > room))
            break;
        room -= size;
        STAILQ_REMOVE_HEAD(&link->waiting, next);
        STAILQ_INSERT_TAIL(&group->askings, asking, next);
        group->count++;
        if (!asking->op)
            break;
    }
    link->grouped += group->count;
    link->groups += group->count > 0;
}

/* A FORGET takes its token along: the repeat of an applied one would meet the record that came
 * after it. So it stays INDETERMINATE. */
static bool no_repeat(const struct hapax__link *link, const struct hapax_op *op)
{
    (void)link;
    return op->kind == HAPAX_OP_RESOLVE && op->resolve == HAPAX_RESOLVE_FORGET;
}

static bool too_new(const struct hapax__link *link, const struct hapax_op *op)
{
    return hapax__frame_op_version(op) > link->server.version;
}

/* Takes such ops out of a group that is to be sent. Of one that was sent before, to another keeper,
 * nobody knows whether it was applied. */
static void leave_out(struct hapax__link *link, struct hapax__group *group,
                      bool (*such)(const struct hapax__link *link, const struct hapax_op *op))
{
    uint32_t count = group->count;

    for (uint32_t i = 0; i < count; i++) {
        struct hapax__asking *asking = STAILQ_FIRST(&group->askings);

        if (asking->op && such(link, asking->op)) {
            asking->op->error = group->sent ? HAPAX_ERR_INDETERMINATE : HAPAX_ERR_UNSUPPORTED;
            answered_of(link, group);
        } else {
            STAILQ_REMOVE_HEAD(&group->askings, next);
            STAILQ_INSERT_TAIL(&group->askings, asking, next);
        }
    }
}

/* Ends the groups at the front that have no op left. */
static void end_empty(struct hapax__link *link)
{
    while (link->groups > 0 && group_at(link, 0)->count == 0)
        end_group(link);
}

/* ---- connecting ---------------------------------------------------------------------- */

/* The connection could not be made. A result that is open waits for a keeper that starts anew. For
 * other ops the caller knows best how long to try. */
static void no_keeper(struct hapax__link *link, enum hapax_error error, const char *why,
                      int64_t now_us)
{
    if (why)
        hapax__fail(link->text, error, "cannot reach keeper \"unix:%s\": %s",
                    link->address.sun_path, why);
    link->error = error;
    if (error != HAPAX_ERR_UNAVAILABLE || !any_sent(link) ||
        now_us + link->pause_ms * US_PER_MS >= link->connect_us) {
        give_up(link);
        return;
    }
    disconnect(link);
    link->again_us = now_us + link->pause_ms * US_PER_MS;
    link->pause_ms = hapax__least(link->pause_ms * 2, PAUSE_MAX_MS);
}

/* Begins to connect, from now on and for CONNECT_MS at most. */
static void begin_connecting(struct hapax__link *link, int64_t now_us)
{
    link->again_us = now_us;
    link->pause_ms = PAUSE_MIN_MS;
    link->connect_us = now_us + hapax__least(CONNECT_MS, link->timeout_ms) * US_PER_MS;
    if (link->groups > 0)
        link->connect_us = hapax__least(link->connect_us, group_at(link, 0)->deadline_us);
}

void hapax__link_connect(struct hapax__link *link, int64_t now_us)
{
    if (link->phase == HAPAX__LINK_UP || link->wanted)
        return;
    link->wanted = true;
    if (link->phase == HAPAX__LINK_DOWN)
        begin_connecting(link, now_us);
}

static bool reserve(struct hapax__link *link, size_t size)
{
    uint8_t *out;

    assert(link->out_at == link->out_len);
    link->out_at = 0;
    link->out_len = 0;
    if (size <= link->out_cap)
        return true;
    out = realloc(link->out, size);
    if (!out)
        return false;
    link->out = out;
    link->out_cap = size;
    return true;
}

static void dial(struct hapax__link *link, int64_t now_us)
{
    struct hapax__hello hello = {.version = HAPAX__FRAME_VERSION, .frame_max = HAPAX__FRAME_MAX};
    struct hapax__writer w;
    int error;

    if (now_us < link->again_us)
        return;
    link->error = HAPAX_ERR_UNAVAILABLE;
    link->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0 || !reserve(link, HAPAX__FRAME_HEAD + HAPAX__FRAME_HELLO_SIZE)) {
        no_keeper(link, HAPAX_ERR_NOMEM, "no memory or descriptor for a connection", now_us);
        return;
    }
    if (connect(link->fd, (struct sockaddr *)&link->address, sizeof(link->address)) == 0) {
        w = (struct hapax__writer){link->out, link->out_cap};
        hapax__frame_put_hello(&w, &hello);
        link->out_len = (size_t)(w.at - link->out);
        link->phase = HAPAX__LINK_GREETING;
        return;
    }
    error = errno;
    /* EAGAIN: the backlog is full. Unix sockets have no EINPROGRESS. */
    if ((error == EAGAIN || error == EINTR) && now_us < link->connect_us) {
        disconnect(link);
        link->again_us = now_us + PAUSE_MIN_MS * US_PER_MS;
        return;
    }
    no_keeper(link, error == EACCES ? HAPAX_ERR_REFUSED : HAPAX_ERR_UNAVAILABLE,
              hapax__socket_reason(error), now_us);
}

/* The first frame of a connection came. */
static void greeted(struct hapax__link *link, int64_t now_us)
{
    struct hapax_span payload = {link->payload, link->payload_len};
    char why[128];
    bool older;

    if (!hapax__frame_take_welcome(payload, &link->server)) {
        no_keeper(link, HAPAX_ERR_UNAVAILABLE, "its greeting is malformed", now_us);
        return;
    }
    older = link->server.version < HAPAX__FRAME_OLDEST;
    if (older || link->server.version > HAPAX__FRAME_VERSION) {
        (void)snprintf(why, sizeof(why),
                       "it speaks another version, %u, and this program %u and %u (%s)",
                       link->server.version, HAPAX__FRAME_OLDEST, HAPAX__FRAME_VERSION,
                       older ? "restart the keeper with a newer Hapax" : "use a newer Hapax");
        no_keeper(link, HAPAX_ERR_UNSUPPORTED, why, now_us);
        return;
    }
    if (link->server.frame_max > HAPAX__FRAME_MAX)
        link->server.frame_max = HAPAX__FRAME_MAX;
    link->phase = HAPAX__LINK_UP;
    link->wanted = false;
    link->error = HAPAX_ERR_NONE;
}

/* ---- sending ------------------------------------------------------------------------- */

/* How many ops of the group fit in one frame of this server, and their bytes. */
static uint32_t fit(const struct hapax__link *link, const struct hapax__group *group, size_t *size)
{
    size_t room = link->server.frame_max - HAPAX__FRAME_HEAD - HAPAX__FRAME_REQUEST_SIZE;
    const struct hapax__asking *asking;
    uint32_t count = 0;

    *size = 0;
    STAILQ_FOREACH (asking, &group->askings, next) {
        size_t one = hapax__frame_op_size(asking->op);

        if (count == link->server.batch_max || one > room - *size)
            break;
        *size += one;
        count++;
    }
    assert(count > 0);
    return count;
}

/* The group whose frame is written next; NULL: none. No group overtakes another. */
static struct hapax__group *unwritten(struct hapax__link *link)
{
    for (uint32_t i = 0; i < link->groups; i++) {
        struct hapax__group *group = group_at(link, i);

        if (group->in_frame == 0 && group->count > 0)
            return group;
        if (group->in_frame - group->place < group->count)
            break;
    }
    return NULL;
}

/* Makes the group's next frame. */
static enum result make_frame(struct hapax__link *link, struct hapax__group *group, int64_t now_us)
{
    int64_t left_ms = (group->deadline_us - now_us) / US_PER_MS;
    struct hapax__request request = {.seq = ++link->seq};
    const struct hapax__asking *asking = STAILQ_FIRST(&group->askings);
    struct hapax__writer w;
    size_t size = 0;
    uint32_t n = 1;

    if (asking->op)
        n = fit(link, group, &size);
    if (!reserve(link, HAPAX__FRAME_HEAD + HAPAX__FRAME_REQUEST_SIZE + size))
        return result_with(link, BROKEN, "out of memory for a request");
    group->repeated = group->sent;
    group->seq = link->seq;
    group->in_frame = n;
    group->place = 0;
    link->writing = group;
    w = (struct hapax__writer){link->out, link->out_cap};
    if (asking->op) {
        request.count = (uint16_t)n;
        request.wait_ms = left_ms < 1 ? 1 : (uint32_t)hapax__least(left_ms, UINT32_MAX);
        hapax__frame_put_request(&w, &request, size);
        for (uint32_t i = 0; i < n; i++, asking = STAILQ_NEXT(asking, next))
            hapax__frame_put_op(&w, asking->op);
    } else {
        hapax__frame_put_ask(&w, link->seq);
    }
    link->out_len = (size_t)(w.at - link->out);
    return WELL;
}

static enum result flush(struct hapax__link *link)
{
    while (link->out_at < link->out_len) {
        ssize_t sent =
            send(link->fd, link->out + link->out_at, link->out_len - link->out_at, MSG_NOSIGNAL);

        if (sent >= 0)
            link->out_at += (size_t)sent;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return AGAIN;
        else if (errno != EINTR)
            break;
    }
    /* A server that turns us away sends a FAULT and closes without reading: so read, whatever
     * became of the HELLO. */
    if (link->out_at < link->out_len && link->phase == HAPAX__LINK_UP)
        return result_with(link, LOST, hapax__socket_reason(errno));
    link->out_at = link->out_len;
    if (link->writing)
        link->writing->sent = true;
    link->writing = NULL;
    if (link->out_cap > OUT_KEPT_MAX) {
        free(link->out);
        link->out = NULL;
        link->out_cap = 0;
        link->out_at = 0;
        link->out_len = 0;
    }
    return WELL;
}

/* ---- receiving ----------------------------------------------------------------------- */

/* The error of a repeat says nothing of the frame before it. */
static void judge_error(struct hapax__link *link, bool repeated, struct hapax_op *op,
                        const char *text)
{
    if (op->error == HAPAX_ERR_NONE)
        return;
    if (repeated && op->error != HAPAX_ERR_CORRUPT)
        op->error = HAPAX_ERR_INDETERMINATE;
    result_with(link, WELL, text);
}

static enum result take_reply(struct hapax__link *link)
{
    struct hapax__reader r = {link->payload, link->payload_len, false};
    struct hapax__group *group = group_at(link, 0);
    struct hapax__frame_reply reply;
    char text[HAPAX_TEXT_MAX];

    if (!hapax__frame_take_reply(&r, &reply) || reply.seq != group->seq ||
        reply.first != group->place || reply.count > group->in_frame - group->place)
        return result_with(link, BROKEN, "it sent a reply to something else");
    for (uint16_t i = 0; i < reply.count; i++) {
        struct hapax_op *op = STAILQ_FIRST(&group->askings)->op;
        enum hapax__taken taken = hapax__frame_take_answer(&r, op, link->arena, text);

        if (taken != HAPAX__TAKEN)
            return result_with(link, BROKEN,
                               taken == HAPAX__TAKEN_NOMEM ? "out of memory for its answer"
                                                           : "it sent a malformed answer");
        judge_error(link, group->repeated, op, text);
        answered_of(link, group);
        group->place++;
    }
    if (group->place == group->in_frame)
        group->in_frame = 0;
    end_empty(link);
    return r.left == 0 ? WELL : result_with(link, BROKEN, "it sent a malformed reply");
}

static enum result take_info(struct hapax__link *link)
{
    struct hapax__group *group = group_at(link, 0);
    struct hapax__info *info = STAILQ_FIRST(&group->askings)->info;
    struct hapax_span payload = {link->payload, link->payload_len};

    if (!hapax__frame_take_info(payload, info) || info->seq != group->seq)
        return result_with(link, BROKEN, "it sent a malformed reply");
    group->in_frame = 0;
    answered_of(link, group);
    end_empty(link);
    return WELL;
}

static enum result take_fault(struct hapax__link *link)
{
    struct hapax_span payload = {link->payload, link->payload_len};
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (!hapax__frame_take_fault(payload, &error, text))
        return result_with(link, BROKEN, "it sent a malformed fault");
    if (link->phase == HAPAX__LINK_GREETING)
        link->error = error;
    return result_with(link, BROKEN, text);
}

/* The kind of frame that is awaited; 0: none. */
static uint8_t awaited(struct hapax__link *link)
{
    const struct hapax__group *group = group_at(link, 0);

    if (link->phase == HAPAX__LINK_GREETING)
        return HAPAX__FRAME_WELCOME;
    if (link->groups == 0 || group->in_frame == 0 || group == link->writing)
        return 0;
    return STAILQ_FIRST(&group->askings)->op ? HAPAX__FRAME_REPLY : HAPAX__FRAME_INFO;
}

/* Reads the head of a frame, and finds memory for the rest. */
static enum result take_head(struct hapax__link *link)
{
    struct hapax__reader r = {link->in + link->in_at, link->in_end - link->in_at, false};
    size_t len = hapax__take_u32(&r);
    uint8_t kind = hapax__take_u8(&r);

    if (r.bad)
        return AGAIN;
    if (len < 1 || len > HAPAX__FRAME_MAX)
        return result_with(link, BROKEN, "it sent a malformed frame");
    link->in_at += HAPAX__FRAME_HEAD;
    link->payload = link->small;
    link->payload_len = len - 1;
    link->payload_at = 0;
    if (kind == awaited(link) && kind != HAPAX__FRAME_WELCOME)
        link->payload = hapax__arena_alloc(link->arena, link->payload_len);
    else if (kind == awaited(link) && link->payload_len != HAPAX__FRAME_WELCOME_SIZE)
        return result_with(link, BROKEN, "its greeting is malformed");
    else if (kind != awaited(link) &&
             (kind != HAPAX__FRAME_FAULT || link->payload_len > sizeof(link->small)))
        return result_with(link, BROKEN, "it sent a frame out of turn");
    if (!link->payload)
        return result_with(link, BROKEN, "out of memory for its answer");
    link->kind = kind;
    return WELL;
}

/* Takes the next frame, as far as it was received. */
static enum result take_frame(struct hapax__link *link, int64_t now_us)
{
    size_t part, left;
    uint8_t kind;

    if (link->kind == 0) {
        enum result result = take_head(link);

        if (result != WELL)
            return result;
    }
    part = link->in_end - link->in_at;
    left = link->payload_len - link->payload_at;
    if (part > left)
        part = left;
    memcpy(link->payload + link->payload_at, link->in + link->in_at, part);
    link->in_at += part;
    link->payload_at += part;
    if (part < left)
        return AGAIN;
    kind = link->kind;
    link->kind = 0;
    switch (kind) {
    case HAPAX__FRAME_WELCOME:
        greeted(link, now_us);
        return WELL;
    case HAPAX__FRAME_REPLY:
        return take_reply(link);
    case HAPAX__FRAME_INFO:
        return take_info(link);
    default:
        return take_fault(link);
    }
}

/* Calls recv() once: a long rest of a frame is received straight into its place. */
static enum result receive(struct hapax__link *link)
{
    size_t left = link->kind != 0 ? link->payload_len - link->payload_at : 0;
    bool straight = left >= sizeof(link->in);
    ssize_t got;

    memmove(link->in, link->in + link->in_at, link->in_end - link->in_at);
    link->in_end -= link->in_at;
    link->in_at = 0;
    do {
        got = straight
                  ? recv(link->fd, link->payload + link->payload_at, left, 0)
                  : recv(link->fd, link->in + link->in_end, sizeof(link->in) - link->in_end, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return AGAIN;
    if (got < 0)
        return result_with(link, LOST, hapax__socket_reason(errno));
    if (got == 0)
        return result_with(link, LOST, "it closed the connection");
    if (straight)
        link->payload_at += (size_t)got;
    else
        link->in_end += (size_t)got;
    return WELL;
}

/* ---- turns --------------------------------------------------------------------------- */

/* A step on the connection failed. */
static void failed(struct hapax__link *link, enum result result, int64_t now_us)
{
    if (link->phase == HAPAX__LINK_GREETING) {
        if (result == LATE)
            no_keeper(link, HAPAX_ERR_UNAVAILABLE,
                      link->out_at < link->out_len ? "it takes no greeting" : "it does not greet",
                      now_us);
        else
            no_keeper(link, link->error, NULL, now_us);
        return;
    }
    disconnect(link);
    if (link->groups == 0)
        return;
    if (result != LOST || group_at(link, 0)->losses >= REPEATS_MAX) {
        give_up(link);
        return;
    }
    for (uint32_t i = 0; i < link->groups; i++) {
        struct hapax__group *group = group_at(link, i);

        group->losses++;
        if (group->sent)
            leave_out(link, group, no_repeat);
    }
    end_empty(link);
    begin_connecting(link, now_us);
}

/* Up to the last answer of a group. */
static void read_some(struct hapax__link *link, int64_t now_us, bool readable)
{
    uint32_t groups = link->groups;
    enum result result = WELL;

    link->paused = false;
    while (result == WELL && link->fd >= 0 && link->groups == groups) {
        result = take_frame(link, now_us);
        if (result == AGAIN && readable) {
            result = receive(link);
            readable = false;
        }
    }
    if (result > AGAIN)
        failed(link, result, now_us);
    else
        link->paused = link->groups < groups && link->in_at < link->in_end;
}

static bool closed(const struct hapax__link *link)
{
    uint8_t byte;
    ssize_t got;

    do {
        got = recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

/* An older keeper would take an op that it does not know for a malformed one, and hang up. But the
 * older keeper may be gone, and a newer one in its place. A link whose ops are all refused sends
 * nothing and waits for nothing. So it has to look whether the connection was closed. */
static enum result leave_out_newer(struct hapax__link *link, struct hapax__group *group)
{
    uint32_t count = group->count;
    char why[128];

    if (link->server.version == HAPAX__FRAME_VERSION)
        return WELL;
    if (closed(link))
        return result_with(link, LOST, "it closed the connection");
    leave_out(link, group, too_new);
    if (group->count == count)
        return WELL;
    (void)snprintf(why, sizeof(why),
                   "it speaks version %u, in which this cannot be asked: restart the keeper with "
                   "this Hapax",
                   link->server.version);
    return result_with(link, WELL, why);
}

static void write_some(struct hapax__link *link, int64_t now_us)
{
    struct hapax__group *group;
    enum result result = flush(link);

    while (result == WELL && link->phase == HAPAX__LINK_UP && (group = unwritten(link))) {
        result = leave_out_newer(link, group);
        if (result != WELL || group->count == 0)
            continue;
        result = make_frame(link, group, now_us);
        if (result == WELL)
            result = flush(link);
    }
    end_empty(link);
    if (result > AGAIN)
        failed(link, result, now_us);
}

/* What is due is late. */
static void look_at_time(struct hapax__link *link, int64_t now_us)
{
    if (link->phase == HAPAX__LINK_GREETING && now_us >= link->connect_us) {
        failed(link, LATE, now_us);
    } else if (link->groups > 0 && now_us >= group_at(link, 0)->deadline_us) {
        result_with(link, LATE, "no answer in time");
        give_up(link);
    }
}

/* Whether the ops that wait are to be sent. Requests beside another are made only on a connection
 * that stands, so that no more is open after a loss than was sent. */
static bool gathers(const struct hapax__link *link)
{
    uint32_t waiting = link->queued - link->grouped;

    if (link->groups == 0)
        return waiting > 0;
    return link->groups < HAPAX__LINK_GROUPS && link->phase == HAPAX__LINK_UP &&
           waiting >= BATCH_LEAST * link->groups;
}

void hapax__link_turn(struct hapax__link *link, int64_t now_us, bool readable)
{
    if ((readable || link->paused) && link->fd >= 0)
        read_some(link, now_us, readable);
    look_at_time(link, now_us);
    while (gathers(link)) {
        if (link->phase == HAPAX__LINK_DOWN)
            begin_connecting(link, now_us);
        gather(link, now_us);
    }
    if (link->phase == HAPAX__LINK_DOWN && (link->wanted || link->groups > 0))
        dial(link, now_us);
    if (link->fd >= 0)
        write_some(link, now_us);
}

bool hapax__link_writes(const struct hapax__link *link)
{
    return link->out_at < link->out_len;
}

struct pollfd hapax__link_poll(const struct hapax__link *link)
{
    short events = hapax__link_writes(link) ? POLLIN | POLLOUT : POLLIN;

    return (struct pollfd){.fd = link->fd, .events = events};
}

bool hapax__link_halfway(const struct hapax__link *link)
{
    return link->kind != 0 && link->payload != link->small;
}

int64_t hapax__link_wake_us(const struct hapax__link *link)
{
    bool group = link->groups > 0;
    int64_t deadline_us = link->group[link->first].deadline_us;

    if (link->paused || (!group && !STAILQ_EMPTY(&link->waiting)))
        return 0;
    if (!group && !link->wanted)
        return INT64_MAX;
    switch (link->phase) {
    case HAPAX__LINK_DOWN:
        return group ? hapax__least(link->again_us, deadline_us) : link->again_us;
    case HAPAX__LINK_GREETING:
        return link->connect_us;
    default:
        return deadline_us;
    }
}

int hapax__link_wait_ms(const struct hapax__link *link, int64_t now_us)
{
    int64_t wake_us = hapax__link_wake_us(link);

    if (wake_us <= now_us)
        return 0;
    return (int)hapax__least((wake_us - now_us - 1) / US_PER_MS + 1, WAIT_MS);
}

void hapax__link_run(struct hapax__link *link)
{
    bool readable = false;

    for (;;) {
        int64_t now_us = hapax__boot_us();
        struct pollfd fd;
        int wait_ms;

        hapax__link_turn(link, now_us, readable);
        if (link->queued == 0 && !link->wanted)
            return;
        fd = hapax__link_poll(link);
        wait_ms = hapax__link_wait_ms(link, now_us);
        readable = wait_ms > 0 && poll(&fd, 1, wait_ms) > 0 && (fd.revents & ~POLLOUT) != 0;
    }
}

/* ---- init, release ------------------------------------------------------------------- */

enum hapax_error hapax__link_init(struct hapax__link *link, const char *path, int64_t timeout_ms,
                                  char text[HAPAX_TEXT_MAX])
{
    memset(link, 0, sizeof(*link));
    link->fd = -1;
    link->timeout_ms = timeout_ms > 0 ? timeout_ms : TIMEOUT_MS;
    STAILQ_INIT(&link->waiting);
    STAILQ_INIT(&link->done);
    return hapax__socket_address(&link->address, path, text);
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

enum hapax_error hapax__link_init_uri(struct hapax__link *link, const char *uri,
                                      char text[HAPAX_TEXT_MAX])
{
    bool database = hapax__text_begins(uri, "rocksdb:");
    const char *path = strchr(uri, ':') + 1;
    size_t len = strcspn(path, "?");
    char name[sizeof(link->address.sun_path) + 1];
    int64_t timeout_ms = 0;
    enum hapax_error error;

    link->fd = -1; /* so that it can be released */
    if (path[len] == '?' && !database) { /* a database's options are for whoever opens it */
        error = take_timeout(path + len + 1, &timeout_ms, text);
        if (error != HAPAX_ERR_NONE)
            return error;
    }
    /* A path that is cut here is over the limit, and named so. */
    snprintf(name, sizeof(name), "%.*s%s", (int)len, path, database ? "/keeper.sock" : "");
    return hapax__link_init(link, name, timeout_ms, text);
}

void hapax__link_release(struct hapax__link *link)
{
    assert(link->queued == 0);
    disconnect(link);
    free(link->out);
    link->out = NULL;
    link->out_cap = 0;
}
