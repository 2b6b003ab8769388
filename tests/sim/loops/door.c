/* SPDX-License-Identifier: Apache-2.0
 *
 * `hapax door` and its clients, simulated: hapax__door_open() with its loop, its connections, the
 * calls, the pulse and the lane, in one or two processes, of which one has the socket; one to three
 * others are clients. The doors run as they are (threads.h). Played are the sockets (fds.h), the
 * store's machine (store.h), and the clients, by the law of docs/door.md: each has one connection,
 * operations, requests of HTTP or messages, with and without steps, handlers and hooks, and goes on
 * at the next door. The policy is that of the door, of the scope or of each BEGIN.
 *
 * At first everything may fail. Doors and clients are killed in any call, stopped, told to stop and
 * begun anew; a child holds the sockets of a dead process; reads and writes are short or
 * interrupted; connections are cut at any byte, closed in one direction or in both; backlogs and
 * sockets are full; descriptors, memory and calls run out; clients do not beat, give up, cancel,
 * and leave their steps; strangers connect and stand still; the store is away, loses, repeats and
 * delays. Then comes the calm, and every operation must come to its end. Last, all processes are
 * told to stop, and must end.
 *
 * The rules:
 *   - effects.h, for operations and for their steps (promise 42)
 *   - a repeat gets the outcome that was stored first
 *   - a client is told to run once, of a claim of its own; what it is told of an operation ends
 *     with one ANSWER or FAULT, which comes after its own END and after all steps, and says whose
 *     the outcome is, and how the handler ended
 *   - a message is done with once its outcome is stored, and no sooner
 *   - a request of HTTP is answered a response: what its handler gave, with the marks of the door;
 *     what was stored first, as it was; or a problem. A response has its class by the table.
 *     Another caller is told nothing of an outcome; a request that is too large does not run
 *   - an end is stored as the policy of its operation says, also at the next door
 *   - of a BEGIN that is refused nothing is in the store, then or later
 *   - while nobody else was granted the operation, an END counts, also at the next door
 *     (promise 43)
 *   - a claim that is another's is told to be lost; one of a silent process is not renewed
 *   - once nothing fails, each client finds a door, operations are answered in time, and a door has
 *     in hand what its clients have; who stands still is hung up on
 *   - a door that was told to stop takes no new client, ends in time, and leaves no thread and no
 *     descriptor
 *
 *     sim_door [--first N] [--schedules N] [--seconds N] [--twice] [--marks]
 *     sim_door --seed N                         one, with what happens
 */
#include "door/socket/door.h"

#include "core/class.h"
#include "door/socket/frame.h"
#include "door/socket/scopes.h"
#include "door/socket/stats.h"
#include "effects.h"
#include "fds.h"
#include "play.h"
#include "seeds.h"
#include "store.h"
#include "threads.h"
#include "json/raw.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DOORS        2 /* at most; these processes are the first ones */
#define STEPS        2 /* of an operation */
#define STEPPED      3 /* operations with steps */
#define ASKED        16 /* operations and steps in hand of a client */
#define IN_SIZE      (ROOM_MAX)
#define BODY_MAX     ((size_t)100 << 10) /* of a BEGIN */
#define REQUEST_MAX  ((size_t)20 << 10) /* of HTTP, by its policy */
#define CALM_US      (8 * SECOND)
#define CALM_WAIT_US (4 * SECOND) /* until what came late is over */
#define PATIENCE_US  (30 * SECOND) /* a door's, with one that says nothing */
#define STANDS_US    (33 * SECOND) /* so long such a one may stay */
#define ANSWER_US    (60 * SECOND) /* in the calm */
#define SAVE_US      (200 * MS) /* a store that is there takes less for an outcome */
#define LATE_US      (3 * SECOND) /* what a store judges when nobody waits for it any more */
#define REST_US      (600 * SECOND)
#define DRAIN_US     (20 * SECOND)
#define CONNECT_US   (15 * SECOND) /* so long no door may be there in the calm */
#define LEAVES_US    (1 * SECOND) /* so long a door that ends may still let somebody in */
#define CALLS_MAX    64 /* enough for what all clients have in hand at once */
#define EVEN_US      (10 * SECOND) /* so long a door may have in hand what nobody asks for */
#define REFUSED      256
#define NEVER        INT64_MAX
#define PATH         "/sim/door.sock"

#define MARKS(X)                                                                                   \
    X(killed)                                                                                      \
    X(door_killed)                                                                                 \
    X(told_to_stop)                                                                                \
    X(stopped)                                                                                     \
    X(cut)                                                                                         \
    X(half_closed)                                                                                 \
    X(closed)                                                                                      \
    X(inherited)                                                                                   \
    X(interrupted)                                                                                 \
    X(read_in_part)                                                                                \
    X(written_in_part)                                                                             \
    X(socket_full)                                                                                 \
    X(backlog_full)                                                                                \
    X(reset)                                                                                       \
    X(second_door)                                                                                 \
    X(left_in_hand)                                                                                \
    X(stranger)                                                                                    \
    X(stranger_hung_up)                                                                            \
    X(turned_away)                                                                                 \
    X(run)                                                                                         \
    X(reconcile)                                                                                   \
    X(step_run)                                                                                    \
    X(step_replayed)                                                                               \
    X(left_a_step)                                                                                 \
    X(resumed)                                                                                     \
    X(result_after_resume)                                                                         \
    X(begun_again)                                                                                 \
    X(lost)                                                                                        \
    X(cancelled)                                                                                   \
    X(given_up)                                                                                    \
    X(refused)                                                                                     \
    X(long_begin)                                                                                  \
    X(bypass)                                                                                      \
    X(replayed)                                                                                    \
    X(in_flight)                                                                                   \
    X(store_down)                                                                                  \
    X(unknown)                                                                                     \
    X(second_effect)                                                                               \
    X(no_memory)                                                                                   \
    X(policy_of_scope)                                                                             \
    X(policy_of_begin)                                                                             \
    X(message_done)                                                                                \
    X(message_again)                                                                               \
    X(message_aside)                                                                               \
    X(response_own)                                                                                \
    X(response_resumed)                                                                            \
    X(response_stored)                                                                             \
    X(response_none)                                                                               \
    X(problem)                                                                                     \
    X(too_large)                                                                                   \
    X(other_caller)

SEEDS_MARKS(MARKS)

/* An operation or a step, as a client has it in hand. */
struct asked {
    uint32_t number; /* 0: the place is free */
    uint64_t order; /* in which they began */
    int key; /* of effects.keys; -1: none */
    struct asked *outer; /* of a step */
    int step;
    struct hapax_token nonce;
    int64_t begun_us;
    int64_t claimed_us; /* its claim is at most this old */
    bool in_calm;
    unsigned sent; /* BEGINs */
    size_t body_len; /* of each of them */
    bool other_caller; /* than whoever has had the outcome stored */
    bool resumed, cancelled, over; /* over: nothing more comes; the handler is left */
    int64_t cancel_us;

    /* Once it was told to run. */
    bool told, reconciling, lost, ended, ignores;
    char ticket[2048];
    struct run *run; /* NULL: of a hook */
    uint64_t fence;
    unsigned grants; /* of its key, with its own claim; 0: not known */
    uint64_t granted; /* the fence of that claim: a late copy may be granted after its RUN */
    int64_t lost_us, effect_us, end_us;
    int64_t refused_us; /* the store said that its claim is another's; 0: it did not */
    enum hapax_class cls;
    char body[32];
    int status; /* of HTTP; 0: there is no response */
    bool advises; /* it says when to come again */
    /* Of an operation with steps. */
    int steps, steps_done;
    bool hasty; /* its handler does not wait for the last step */
    bool step_unknown;
};

/* One process that asks. */
struct client {
    int proc;
    int fd; /* -1: none */
    bool greeted;
    bool broken; /* the connection, as far as it knows */
    bool shut; /* it sends nothing more */
    int door; /* which has let it in, and in which life */
    uint32_t door_life;
    bool beats, halves, closes; /* its connection is to be closed: its own direction, or both */
    int64_t alone_us; /* when it was without a connection first */
    int64_t dial_us, dialed_us, connected_us, beat_us, beat_at_us, begin_us, heard_us;
    int64_t leaves_us; /* it was told to stop, and waits for its handlers until then */
    uint32_t last;
    uint32_t floor; /* numbers up to it may still be told of: a RESUME was refused, and its END */
    uint64_t order;
    size_t in_len;
    uint8_t in[IN_SIZE];
    struct asked asked[ASKED];
};

static struct world {
    struct play play;
    int doors_count, keys_count;
    int64_t connect_us; /* a client gives up after this */
    int64_t drain_ms;
    struct hapax_policy policy;
    enum { BY_DOOR = 0, BY_SCOPE, BY_BEGIN } policy_is; /* the door's own is another then */
    struct hapax_options options;
    enum { AS_CALL, AS_HTTP, AS_MESSAGE } as; /* all operations */
    bool now, reuses, comes_late, few_calls, credentials;
    int steps[KEYS]; /* the first key of their steps; 0: none */
    uint64_t told[DOORS]; /* to stop: a bit for each life */
    int64_t told_us[DOORS]; /* the last one */
    int64_t told_stopped_us[DOORS]; /* how long it had been stopped then */
    uint32_t calm_life[DOORS]; /* when the calm began */
    bool leaves[DOORS]; /* it ends by itself, with operations in hand */
    int64_t quiet_us; /* since when clients begin nothing new; 0: they do */
    struct hapax__door_stats stats[DOORS];
    int64_t even_us[DOORS]; /* when it had no more in hand than its clients */
    struct {
        char body[32];
        int status;
    } stored[KEYS_MAX]; /* the outcome that was stored first */
    bool ended[KEYS]; /* a call that began in the calm had its last word */
    struct hapax_token refused[REFUSED]; /* nonces; a ring */
    uint64_t refused_n;
    uint32_t outcomes;
    unsigned no_memory, kills, stops, ends, cuts, slow, ignores, hook_unsure, jumps, outages,
        cancels, closes, half_closes, hasty, mute, keyless, long_begins, strangers, others;
} w;

static struct client clients[PROCS];
static uint8_t body_bytes[BODY_MAX];

static bool is_door(int proc)
{
    return proc < w.doors_count;
}

/* ---- what the store says ----------------------------------------------------------------- */

static struct asked *asked_with(const struct hapax_token *nonce, struct client **whose)
{
    for (int p = w.doors_count; p < w.play.procs_count; p++)
        for (int i = 0; i < ASKED; i++)
            if (clients[p].asked[i].number > 0 &&
                memcmp(&clients[p].asked[i].nonce, nonce, sizeof(*nonce)) == 0) {
                *whose = &clients[p];
                return &clients[p].asked[i];
            }
    return NULL;
}

static int64_t silence_us(void)
{
    int64_t beat_ms = w.policy.lease_ms / 3;
    int64_t beats_ms = 3 * (beat_ms < 100 ? 100 : beat_ms);

    return (beats_ms > w.policy.lease_ms ? beats_ms : w.policy.lease_ms) * MS;
}

/* A door may have read late what was sent in time. */
static bool is_silent(const struct client *c)
{
    for (int p = 0; p < w.doors_count; p++)
        if (sim_procs[p].stopped_us > 0)
            return false;
    return sim_sockets.room == 0 &&
           sim_now_us - c->heard_us > silence_us() + (w.comes_late ? LATE_US : 200 * MS);
}

/* Of an operation or a step; -1: of the list of an operation's steps. */
static int key_of(const struct hapax_id *id)
{
    for (int i = 0; i < effects.keys_count; i++)
        if (memcmp(&effects.keys[i].id, id, sizeof(*id)) == 0)
            return i;
    return -1;
}

/* What a handler has left behind, by the policy of its operation. */
static void check_fail(const struct hapax_op *op, int key)
{
    bool holds = hapax__on_failed(&w.policy) == HAPAX_FAILED_HOLD;
    bool may_hold = holds || w.policy.on_expired != HAPAX_EXPIRED_RERUN;

    if (op->ran && !op->died && (op->as_unknown ? !may_hold : holds))
        violate("the end of key %d is %s, and its policy says otherwise", key,
                op->as_unknown ? "held" : "to be tried again");
}

static void judged(const struct hapax_op *op)
{
    int key = key_of(&op->id);
    struct client *c = NULL;
    struct asked *asked = asked_with(&op->token, &c);

    effects_judged(op);
    for (uint64_t i = 0; i < REFUSED && i < w.refused_n; i++)
        if (op->kind == HAPAX_OP_CLAIM && memcmp(&w.refused[i], &op->token, sizeof(op->token)) == 0)
            violate("the claim of a BEGIN that was refused comes to the store");
    if (asked && op->kind == HAPAX_OP_RENEW && op->verdict != HAPAX_OK && asked->refused_us == 0)
        asked->refused_us = sim_now_us;
    if (asked && op->verdict == HAPAX_CLAIMED) {
        asked->claimed_us = sim_now_us;
        asked->grants = effects.keys[asked->key].grants;
        asked->granted = op->record.fence;
    }
    if (asked && op->kind == HAPAX_OP_RENEW && op->verdict == HAPAX_OK && asked->told &&
        !asked->ended && is_silent(c))
        violate("the claim of p%d is renewed, which was heard %lld ms ago", c->proc,
                (long long)((sim_now_us - c->heard_us) / MS));
    if (op->kind == HAPAX_OP_FAIL && key >= 0)
        check_fail(op, key);
    if (op->kind != HAPAX_OP_COMPLETE || op->verdict != HAPAX_OK || key < 0 ||
        w.stored[key].body[0] != '\0')
        return;
    snprintf(w.stored[key].body, sizeof(w.stored[key].body), "%.*s", (int)op->outcome.body.len,
             (const char *)op->outcome.body.ptr);
    w.stored[key].status = op->outcome.status;
}

/* ---- frames ------------------------------------------------------------------------------ */

static void send_all(struct client *c, const void *bytes, size_t size)
{
    struct pollfd one = {.fd = c->fd, .events = POLLOUT};
    const uint8_t *at = bytes;

    while (size > 0 && !c->broken) {
        ssize_t sent = send(c->fd, at, size, MSG_NOSIGNAL);

        if (sent > 0) {
            at += sent;
            size -= (size_t)sent;
        } else if (errno == EAGAIN) {
            (void)poll(&one, 1, 100);
        } else if (errno != EINTR) {
            c->broken = true;
        }
    }
}

/* Whether all of it was sent. */
static bool put(struct client *c, enum hapax__door_kind kind, uint32_t number, const char *meta,
                struct hapax_span body)
{
    uint8_t head[HAPAX__DOOR_HEAD];

    if ((!c->greeted && kind != HAPAX__DOOR_HELLO) || c->broken || c->shut)
        return false;
    hapax__door_frame_head(head, kind, number, strlen(meta), body.len);
    send_all(c, head, sizeof(head));
    send_all(c, meta, strlen(meta));
    send_all(c, body.ptr, body.len);
    c->heard_us = sim_now_us;
    return !c->broken;
}

static bool is_http(const struct asked *asked)
{
    return w.as == AS_HTTP && asked->step < 0;
}

static bool is_message(const struct asked *asked)
{
    return w.as == AS_MESSAGE && asked->step < 0 && asked->key >= 0;
}

static const char *form_of(const struct asked *asked)
{
    return is_http(asked) ? ",\"as\":\"http\"" : is_message(asked) ? ",\"as\":\"message\"" : "";
}

static bool is_too_large(const struct asked *asked)
{
    return is_http(asked) && asked->key >= 0 && asked->body_len > REQUEST_MAX;
}

/* The request of an operation. Who sends it stands in all its credentials, in any order; keys are
 * spelled as strings or bare. */
static int request_member(char *out, size_t size, const struct asked *asked)
{
    bool bare = asked->nonce.bytes[0] & 1, turned = asked->nonce.bytes[0] & 2;
    const char *who = asked->other_caller ? "b" : "a";
    char key[64] = "", token[64] = "", cookie[64] = "";

    if (asked->key >= 0)
        snprintf(key, sizeof(key),
                 bare ? "[\"idempotency-key\",\"op-%d\"]"
                      : "[\"Idempotency-Key\",\"\\\"op-%d\\\"\"]",
                 asked->key);
    if (w.credentials || asked->other_caller) {
        snprintf(token, sizeof(token), "[\"Authorization\",\"Bearer %s\"]", who);
        snprintf(cookie, sizeof(cookie), "[\"Cookie\",\"who=%s\"]", who);
    }
    return snprintf(out, size,
                    ",\"request\":{\"method\":\"POST\",\"uri\":\"/%d\",\"headers\":[%s%s%s%s%s]}",
                    asked->key, turned ? cookie : token, *token ? "," : "", turned ? token : cookie,
                    *token && *key ? "," : "", key);
}

static int policy_member(char *out, size_t size)
{
    static const char *const names[] = {
        [HAPAX_EXPIRED_RERUN] = "rerun",
        [HAPAX_EXPIRED_HOLD] = "hold",
        [HAPAX_EXPIRED_RECONCILE] = "reconcile",
    };

    mark(MARK_policy_of_begin);
    return snprintf(out, size, ",\"policy\":{\"on_expired\":\"%s\",\"attempts_max\":%u}",
                    names[w.policy.on_expired], w.policy.attempts_max);
}

static void put_begin(struct client *c, struct asked *asked)
{
    struct hapax_span body = {body_bytes, asked->body_len};
    char meta[768], nonce[2 * sizeof(asked->nonce) + 1];
    int n;

    for (size_t i = 0; i < sizeof(asked->nonce); i++)
        snprintf(nonce + 2 * i, 3, "%02x", asked->nonce.bytes[i]);
    n = snprintf(meta, sizeof(meta), "{\"nonce\":\"%s\",\"body\":\"off\"", nonce);
    if (asked->outer)
        n += snprintf(meta + n, sizeof(meta) - (size_t)n, ",\"in\":%u,\"step\":\"s%d\"",
                      asked->outer->number, asked->step);
    else
        n += snprintf(meta + n, sizeof(meta) - (size_t)n, ",\"scope\":\"D\"");
    if (is_http(asked))
        n += request_member(meta + n, sizeof(meta) - (size_t)n, asked);
    else if (!asked->outer && asked->key >= 0)
        n += snprintf(meta + n, sizeof(meta) - (size_t)n, ",\"key\":\"op-%d\"", asked->key);
    if (!asked->outer && w.policy_is == BY_BEGIN)
        n += policy_member(meta + n, sizeof(meta) - (size_t)n);
    snprintf(meta + n, sizeof(meta) - (size_t)n, "%s,\"reconciles\":%s}", form_of(asked),
             w.policy.on_expired == HAPAX_EXPIRED_RECONCILE ? "true" : "false");
    say("BEGIN %u, key %d", asked->number, asked->key);
    if (!put(c, HAPAX__DOOR_BEGIN, asked->number, meta, body))
        return;
    if (body.len > ROOM_MAX)
        mark(MARK_long_begin);
    if (asked->sent++ > 0)
        mark(MARK_begun_again);
}

/* A response has no class. It may have marks of its service's own door, and a cookie. */
static void put_end(struct client *c, const struct asked *asked)
{
    static const char *const names[] = {"", "final", "not_run", "failed", "unknown"};
    char meta[256], cls[32] = "";

    if (!is_http(asked) || asked->reconciling || asked->status == 0)
        snprintf(cls, sizeof(cls), "\"class\":\"%s\"", names[asked->cls]);
    if (is_http(asked) && asked->status > 0)
        snprintf(meta, sizeof(meta),
                 "{%s%s\"status\":%d,\"headers\":[[\"X-Run\",\"%s\"],[\"Set-Cookie\",\"s=1\"],"
                 "[\"Idempotency-Replayed\",\"maybe\"]%s]}",
                 cls, *cls ? "," : "", asked->status, asked->body,
                 asked->advises ? ",[\"Retry-After\",\"1\"]" : "");
    else
        snprintf(meta, sizeof(meta), "{%s%s}", cls, is_http(asked) ? "" : ",\"status\":200");
    (void)put(c, HAPAX__DOOR_END, asked->number, meta, hapax_str(asked->body));
}

static void put_resume(struct client *c, struct asked *asked)
{
    char meta[sizeof(asked->ticket) + 128], in[32] = "";

    if (asked->outer)
        snprintf(in, sizeof(in), ",\"in\":%u", asked->outer->number);
    snprintf(meta, sizeof(meta), "{\"ticket\":\"%s\",\"reconciles\":%s%s%s}", asked->ticket,
             w.policy.on_expired == HAPAX_EXPIRED_RECONCILE ? "true" : "false", in, form_of(asked));
    say("RESUME %u, key %d", asked->number, asked->key);
    asked->resumed = true;
    asked->lost_us = 0; /* the next door may say so again */
    if (put(c, HAPAX__DOOR_RESUME, asked->number, meta, hapax_str(NULL)))
        mark(MARK_resumed);
}

/* ---- what is in hand --------------------------------------------------------------------- */

static struct asked *find(struct client *c, uint32_t number)
{
    for (int i = 0; i < ASKED; i++)
        if (number > 0 && c->asked[i].number == number)
            return &c->asked[i];
    return NULL;
}

static int in_hand(const struct client *c)
{
    int n = 0;

    for (int i = 0; i < ASKED; i++)
        n += c->asked[i].number > 0;
    return n;
}

/* The step of this operation that is in hand. */
static struct asked *step_of(struct client *c, const struct asked *outer)
{
    for (int i = 0; i < ASKED; i++)
        if (c->asked[i].number > 0 && c->asked[i].outer == outer)
            return &c->asked[i];
    return NULL;
}

/* NULL: all places are taken. */
static struct asked *new_asked(struct client *c, int key, struct asked *outer, int step)
{
    struct asked *asked = c->asked;
    uint32_t number = w.reuses ? c->floor + 1 : c->last + 1;

    while (asked < c->asked + ASKED && asked->number > 0)
        asked++;
    if (asked == c->asked + ASKED)
        return NULL;
    while (find(c, number))
        number++;
    c->last = number;
    *asked = (struct asked){.number = number,
                            .order = ++c->order,
                            .key = key,
                            .outer = outer,
                            .step = step,
                            .begun_us = sim_now_us,
                            .claimed_us = sim_now_us,
                            .in_calm = play_calm,
                            .cancel_us = NEVER};
    if (sim_sockets.room == 0 && chance(w.long_begins))
        asked->body_len = (size_t)between(1, BODY_MAX);
    for (size_t i = 0; i < sizeof(asked->nonce); i++)
        asked->nonce.bytes[i] = (uint8_t)draw();
    return asked;
}

/* Who waits for it goes on. */
static void is_over(struct client *c, struct asked *asked, enum hapax_answer_kind kind,
                    enum hapax_class cls)
{
    struct asked *outer = asked->outer;
    struct asked *step = step_of(c, asked);

    if (asked->run && !asked->ended) { /* nobody asks for its result any more */
        asked->run->ended = true;
        asked->run->cls = HAPAX_CLASS_UNKNOWN;
    }
    if (step)
        step->outer = NULL;
    asked->number = 0;
    if (!outer || outer->ended)
        return;
    if ((kind == HAPAX_ANSWER_FRESH && cls == HAPAX_CLASS_FINAL) || kind == HAPAX_ANSWER_REPLAY) {
        outer->steps_done++;
        return;
    }
    outer->step_unknown |= kind == HAPAX_ANSWER_UNKNOWN || kind == HAPAX_ANSWER_FAILED;
    outer->steps_done = outer->steps;
    outer->cls = HAPAX_CLASS_FAILED;
}

/* ---- handlers and hooks ------------------------------------------------------------------ */

/* A response of this class, by the table of docs/design.md. */
static void draw_response(struct asked *asked)
{
    static const struct {
        enum hapax_class cls;
        int status;
        bool advises;
        bool trusting, strict; /* under rerun, and under the others */
    } rows[] = {
        {HAPAX_CLASS_FINAL, 200, false, true, true},
        {HAPAX_CLASS_FINAL, 404, false, true, true},
        {HAPAX_CLASS_FINAL, 409, false, true, true},
        {HAPAX_CLASS_NOT_RUN, 401, false, true, true},
        {HAPAX_CLASS_NOT_RUN, 409, true, true, true},
        {HAPAX_CLASS_NOT_RUN, 503, true, true, true},
        {HAPAX_CLASS_NOT_RUN, 503, false, true, false},
        {HAPAX_CLASS_FAILED, 500, false, true, true},
        {HAPAX_CLASS_FAILED, 501, true, true, true},
        {HAPAX_CLASS_UNKNOWN, 502, false, true, true},
        {HAPAX_CLASS_UNKNOWN, 504, true, true, true},
        {HAPAX_CLASS_UNKNOWN, 503, false, false, true},
    };
    const size_t n = sizeof(rows) / sizeof(rows[0]);
    bool trusts = w.policy.on_expired == HAPAX_EXPIRED_RERUN;
    size_t i = (size_t)between(0, (int64_t)n - 1);

    while (rows[i].cls != asked->cls || !(trusts ? rows[i].trusting : rows[i].strict))
        i = (i + 1) % n;
    asked->status = rows[i].status;
    asked->advises = rows[i].advises;
}

static void end(struct client *c, struct asked *asked, enum hapax_class cls)
{
    bool outcome = cls == HAPAX_CLASS_FINAL || cls == HAPAX_CLASS_FAILED;

    asked->ended = true;
    asked->cls = cls;
    asked->end_us = sim_now_us;
    if (outcome && asked->reconciling)
        snprintf(asked->body, sizeof(asked->body), "done");
    else if (outcome)
        snprintf(asked->body, sizeof(asked->body), "outcome %u", ++w.outcomes);
    if (is_http(asked) && asked->reconciling)
        asked->status = outcome ? 200 : 0;
    else if (is_http(asked) && asked->run)
        draw_response(asked);
    if (asked->run) {
        asked->run->ended = true;
        asked->run->cls = cls;
    }
    say("END of %u, key %d: class %d", asked->number, asked->key, (int)cls);
    if (step_of(c, asked))
        mark(MARK_left_a_step);
    if (asked->over)
        is_over(c, asked, HAPAX_ANSWER_UNKNOWN, 0);
    else
        put_end(c, asked);
}

static void run(struct asked *asked)
{
    int64_t lease_us = w.policy.lease_ms * MS;
    int64_t long_us = chance(w.slow) ? between(0, 6 * lease_us) : between(0, lease_us / 8);
    struct key *key = &effects.keys[asked->key >= 0 ? asked->key : 0];

    mark(asked->outer ? MARK_step_run : MARK_run);
    asked->run = effects_run(asked->key, asked->fence);
    asked->run->begun_us = asked->claimed_us; /* RUN may have stood in the socket */
    asked->cls = asked->key >= 0 ? effects_class(key) : HAPAX_CLASS_FINAL;
    if (asked->key >= 0 && asked->fence == 0)
        violate("key %d runs without a claim", asked->key);
    asked->ignores = chance(w.ignores);
    asked->effect_us = sim_now_us + long_us / 2;
    asked->end_us = sim_now_us + long_us;
    asked->body[0] = '\0';
    asked->steps_done = asked->steps = 0;
    if (!asked->outer && asked->key >= 0 && w.steps[asked->key] > 0 &&
        asked->cls != HAPAX_CLASS_NOT_RUN)
        asked->steps = (int)between(1, STEPS);
    asked->hasty = chance(w.hasty);
}

static void begin_step(struct client *c, struct asked *outer)
{
    struct asked *step =
        new_asked(c, w.steps[outer->key] + outer->steps_done, outer, outer->steps_done);

    if (step && c->greeted)
        put_begin(c, step);
}

static void work_hook(struct client *c, struct asked *asked)
{
    if (sim_now_us < asked->end_us)
        return;
    if (!play_calm && chance(w.hook_unsure))
        end(c, asked, HAPAX_CLASS_UNKNOWN);
    else
        end(c, asked, effects_found(&effects.keys[asked->key], asked->fence));
}

/* What a handler does until now. */
static void work(struct client *c, struct asked *asked)
{
    struct key *key = &effects.keys[asked->key >= 0 ? asked->key : 0];
    bool effects_now = asked->cls == HAPAX_CLASS_FINAL ||
                       (asked->cls == HAPAX_CLASS_UNKNOWN && key->effects_before_unknown);

    if (asked->lost && !asked->ignores) {
        end(c, asked, HAPAX_CLASS_UNKNOWN);
    } else if (asked->reconciling) {
        work_hook(c, asked);
    } else if (asked->steps_done < asked->steps) {
        if (asked->over || (step_of(c, asked) && asked->hasty))
            end(c, asked, HAPAX_CLASS_FAILED);
        else if (!step_of(c, asked))
            begin_step(c, asked);
    } else if (sim_now_us >= asked->effect_us) {
        asked->effect_us = NEVER;
        if (effects_now)
            effects_effect(asked->run);
    } else if (sim_now_us >= asked->end_us) {
        end(c, asked, asked->cls);
    }
}

/* When something is to be done for it. */
static int64_t due_us(struct client *c, const struct asked *asked)
{
    bool waits = asked->steps_done < asked->steps && step_of(c, asked);
    bool begins = asked->steps_done < asked->steps && !waits;

    if (!asked->told)
        return asked->cancel_us;
    if (asked->ended)
        return NEVER;
    if ((asked->lost && !asked->ignores) || begins || (waits && (asked->hasty || asked->over)))
        return sim_now_us;
    if (waits)
        return NEVER;
    return !asked->reconciling && asked->effect_us < asked->end_us ? asked->effect_us
                                                                   : asked->end_us;
}

/* ---- the connection ---------------------------------------------------------------------- */

static int64_t number_in(struct hapax_span meta, const char *name)
{
    struct hapax_span value;
    int64_t number = 0;

    if (!hapax__raw_member(&value, meta, name) || !hapax__raw_number(&number, value))
        return 0;
    return number;
}

static void hang_up(struct client *c)
{
    say("HANGS UP");
    close(c->fd);
    c->fd = -1;
    if (c->greeted)
        c->alone_us = sim_now_us;
    c->greeted = c->broken = c->shut = false;
    c->dial_us = sim_now_us + between(0, 50 * MS);
}

static void dial(struct client *c)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = PATH};

    c->dial_us = sim_now_us + 50 * MS;
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return;
    if (connect(c->fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        close(c->fd);
        c->fd = -1;
        return;
    }
    c->door = sockets_peer(c->fd, &c->door_life);
    c->dialed_us = sim_now_us;
    c->in_len = 0;
    (void)put(c, HAPAX__DOOR_HELLO, 0, "{\"hapax\":1,\"client\":\"sim\"}", hapax_str(NULL));
    c->broken = false; /* it may have been turned away, and then it is told why */
}

/* One bit of so many; the others are of lives that are long over. */
static uint64_t bit_of(uint32_t life)
{
    return UINT64_C(1) << life % 64;
}

/* Whether the door that has let this client in was told to stop long before the client came. */
static bool came_too_late(const struct client *c)
{
    const struct process *door = &sim_procs[c->door];

    return (w.told[c->door] & bit_of(c->door_life)) != 0 && door->life == c->door_life &&
           door->stopped_us == w.told_stopped_us[c->door] &&
           c->dialed_us > w.told_us[c->door] + LEAVES_US;
}

/* The next one in the order of their begin. */
static struct asked *behind(struct client *c, uint64_t order)
{
    struct asked *next = NULL;

    for (int i = 0; i < ASKED; i++)
        if (c->asked[i].number > 0 && c->asked[i].order > order &&
            (!next || c->asked[i].order < next->order))
            next = &c->asked[i];
    return next;
}

/* Tells a door of what is in hand. */
static void go_on(struct client *c, struct asked *asked)
{
    bool alone = asked->step >= 0 && (!asked->outer || asked->outer->over);

    if (asked->over)
        return;
    if (asked->told && (alone || !asked->ticket[0])) { /* its result is its own */
        asked->over = true;
        if (asked->ended)
            is_over(c, asked, HAPAX_ANSWER_BYPASS, asked->cls);
    } else if (alone) {
        is_over(c, asked, HAPAX_ANSWER_STORE_DOWN, 0);
    } else if (asked->told) {
        put_resume(c, asked);
        if (asked->ended && !step_of(c, asked))
            put_end(c, asked);
    } else if (asked->cancelled) {
        is_over(c, asked, HAPAX_ANSWER_IN_FLIGHT, 0);
    } else {
        put_begin(c, asked);
    }
}

static void greeted(struct client *c, struct hapax_span meta)
{
    c->greeted = true;
    say("WELCOME of p%d", c->door);
    c->connected_us = sim_now_us;
    c->beat_us = number_in(meta, "beat_ms") * MS;
    c->beat_at_us = sim_now_us + c->beat_us;
    if (came_too_late(c))
        violate("p%d is let in by p%d, which was told to stop %lld ms before p%d came", c->proc,
                c->door, (long long)((c->dialed_us - w.told_us[c->door]) / MS), c->proc);
    if (c->beat_us <= 0 || number_in(meta, "lease_ms") != w.policy.lease_ms)
        violate("a client is welcomed with another lease, or without beats");
    if (!w.reuses && chance(300))
        for (int i = 0; i < ASKED; i++)
            c->asked[i].number = c->asked[i].number > 0 ? ++c->last : 0;
    for (struct asked *asked = behind(c, 0); asked; asked = behind(c, asked->order))
        go_on(c, asked);
    for (int i = 0; i < ASKED; i++) /* the steps were told of before */
        if (c->asked[i].number > 0 && c->asked[i].ended && step_of(c, &c->asked[i]))
            put_end(c, &c->asked[i]);
    c->closes |= !play_calm && chance(w.closes); /* before the door has taken that */
}

/* No door is found in time: handlers are told as by LOST, and nobody knows the results. */
static void give_up(struct client *c)
{
    if (play_calm)
        violate("p%d finds no door for %lld s", c->proc, (long long)(w.connect_us / SECOND));
    mark(MARK_given_up);
    say("GIVES UP");
    for (int i = 0; i < ASKED; i++) {
        struct asked *asked = &c->asked[i];

        if (asked->number == 0 || asked->over)
            continue;
        if (asked->told && !asked->ended) {
            asked->over = asked->lost = true;
            continue;
        }
        if (asked->run)
            asked->run->cls = HAPAX_CLASS_UNKNOWN;
        is_over(c, asked, HAPAX_ANSWER_STORE_DOWN, 0);
    }
}

/* ---- what a door says -------------------------------------------------------------------- */

static bool says(struct hapax_span meta, const char *name, const char *text)
{
    struct hapax_span value;

    return hapax__raw_member(&value, meta, name) && hapax__raw_says(value, text);
}

static bool is_true(struct hapax_span meta, const char *name)
{
    struct hapax_span value;

    return hapax__raw_member(&value, meta, name) && value.len > 0 && value.ptr[0] == 't';
}

static void take_run(struct client *c, struct asked *asked, struct hapax_span meta, bool reconcile)
{
    struct hapax_span ticket;

    if (asked->told && !(asked->reconciling && asked->ended && !reconcile))
        violate("key %d is told to run again", asked->key);
    if (asked->other_caller || is_too_large(asked))
        violate("key %d is told to run, for another caller or a request that is too large",
                asked->key);
    if (asked->outer && asked->outer->lost && !asked->outer->resumed &&
        asked->begun_us > asked->outer->lost_us)
        violate("a step of key %d runs, and its operation was lost before it began",
                asked->outer->key);
    asked->told = true;
    asked->reconciling = reconcile;
    asked->lost = asked->ended = false;
    asked->lost_us = 0;
    asked->fence = (uint64_t)number_in(meta, "fence");
    asked->refused_us = 0;
    asked->ticket[0] = '\0';
    asked->status = 0;
    if (hapax__raw_member(&ticket, meta, "ticket") &&
        !hapax__raw_copy(asked->ticket, sizeof(asked->ticket), ticket))
        violate("a ticket is too long");
    if ((asked->fence > 0) != (asked->ticket[0] != '\0'))
        violate("key %d has a claim and no ticket, or a ticket and no claim", asked->key);
    say("%s %u, key %d, fence %llu", reconcile ? "RECONCILE" : "RUN", asked->number, asked->key,
        (unsigned long long)asked->fence);
    if (reconcile) {
        mark(MARK_reconcile);
        asked->run = NULL;
        asked->steps_done = asked->steps = 0;
        asked->end_us = sim_now_us + between(0, 50 * MS);
    }
    if (asked->cancelled)
        end(c, asked, reconcile ? HAPAX_CLASS_UNKNOWN : HAPAX_CLASS_NOT_RUN);
    else if (!reconcile)
        run(asked);
}

static enum hapax_answer_kind kind_of(struct hapax_span meta)
{
    for (int kind = HAPAX_ANSWER_FRESH; kind <= HAPAX_ANSWER_EXPIRED; kind++)
        if (says(meta, "answer", hapax_answer_name((enum hapax_answer_kind)kind)))
            return (enum hapax_answer_kind)kind;
    return 0;
}

static enum hapax_class class_in(struct hapax_span meta)
{
    static const char *const names[] = {"", "final", "not_run", "failed", "unknown"};

    for (int cls = HAPAX_CLASS_FINAL; cls <= HAPAX_CLASS_UNKNOWN; cls++)
        if (says(meta, "class", names[cls]))
            return (enum hapax_class)cls;
    return 0;
}

static bool is_last_word(const struct asked *asked, enum hapax_answer_kind kind,
                         enum hapax_class cls, bool recorded)
{
    switch (kind) {
    case HAPAX_ANSWER_FRESH:
        return (recorded && cls == HAPAX_CLASS_FINAL) || asked->step_unknown;
    case HAPAX_ANSWER_REPLAY:
        return recorded;
    case HAPAX_ANSWER_FAILED:
        return true;
    case HAPAX_ANSWER_UNKNOWN:
        return asked->step_unknown || (w.policy.on_expired != HAPAX_EXPIRED_RECONCILE &&
                                       effects.keys[asked->key].was_unknown);
    default:
        return false;
    }
}

/* What an answer with an outcome says of it. */
static void check_outcome(const struct asked *asked, enum hapax_answer_kind kind, bool own,
                          struct hapax_span body)
{
    const char *stored = w.stored[asked->key].body;
    struct hapax_span shown = own ? hapax_str(asked->body) : body;

    if (shown.len != strlen(stored) || memcmp(shown.ptr, stored, shown.len) != 0)
        violate("key %d is answered %s '%.*s', and '%s' was stored first", asked->key,
                hapax_answer_name(kind), (int)shown.len, (const char *)shown.ptr, stored);
}

static void check_kind(const struct asked *asked, enum hapax_answer_kind kind)
{
    bool refuses_others = kind == HAPAX_ANSWER_MISMATCH || kind == HAPAX_ANSWER_TOO_LARGE ||
                          kind == HAPAX_ANSWER_STORE_DOWN || kind == HAPAX_ANSWER_IN_FLIGHT;

    if (is_too_large(asked) != (kind == HAPAX_ANSWER_TOO_LARGE))
        violate("key %d, with a body of %zu bytes, is answered %s", asked->key, asked->body_len,
                hapax_answer_name(kind));
    if (asked->other_caller ? !refuses_others : kind == HAPAX_ANSWER_MISMATCH)
        violate("key %d is answered %s, and its caller is%s another", asked->key,
                hapax_answer_name(kind), asked->other_caller ? "" : " not");
    switch (kind) {
    case HAPAX_ANSWER_TOO_LARGE:
        mark(MARK_too_large);
        break;
    case HAPAX_ANSWER_MISMATCH:
        mark(MARK_other_caller);
        break;
    case HAPAX_ANSWER_FRESH:
        break;
    case HAPAX_ANSWER_REPLAY:
        mark(asked->outer ? MARK_step_replayed : MARK_replayed);
        break;
    case HAPAX_ANSWER_IN_FLIGHT:
        mark(MARK_in_flight);
        break;
    case HAPAX_ANSWER_STORE_DOWN:
        mark(MARK_store_down);
        break;
    case HAPAX_ANSWER_UNKNOWN:
        mark(MARK_unknown);
        break;
    case HAPAX_ANSWER_BYPASS:
        mark(MARK_bypass);
        if (asked->key < 0)
            break;
        /* fall through */
    default:
        if (kind != HAPAX_ANSWER_FAILED)
            violate("key %d is answered %d", asked->key, (int)kind);
    }
}

/* An END with an outcome counts, while nobody else was granted the operation. A resumed one may be
 * stored already. Then its RENEW is LOST. Where that was known before its END, it is STORE_DOWN if
 * the store says no more. */
static void check_end(const struct asked *asked, enum hapax_answer_kind kind, bool recorded)
{
    bool alone = asked->grants == effects.keys[asked->key].grants && asked->granted == asked->fence;
    bool in_time = play_calm && asked->end_us > CALM_US + SIM_STORE_SLOW_US &&
                   w.policy.save_wait_ms * MS >= SAVE_US;
    bool untold = asked->resumed && kind == HAPAX_ANSWER_STORE_DOWN && !in_time;

    if (kind == HAPAX_ANSWER_FRESH && recorded && asked->resumed)
        mark(MARK_result_after_resume);
    if (alone && kind != HAPAX_ANSWER_FRESH && !untold && w.policy.attempts_max == 0)
        violate("key %d has run, and is answered %s, though nobody else was granted it", asked->key,
                hapax_answer_name(kind));
    if (alone && kind == HAPAX_ANSWER_FRESH && !recorded && in_time)
        violate("key %d has run, and its outcome is not recorded", asked->key);
}

/* What becomes of a message: it is done with once its outcome is stored, and no sooner. */
static void check_do(const struct asked *asked, struct hapax_span meta, bool done)
{
    struct hapax_span value;

    if (is_message(asked) != hapax__raw_member(&value, meta, "do"))
        violate("key %d is a message and its answer says nothing of it, or it is none", asked->key);
    if (!is_message(asked))
        return;
    if (says(meta, "do", "ack") != done)
        violate("the message of key %d is to be '%.*s'", asked->key, (int)value.len,
                (const char *)value.ptr);
    if (says(meta, "do", "retry") != (number_in(meta, "after_ms") > 0))
        violate("key %d is to be delivered again at no time, or not again at some", asked->key);
    mark(done                        ? MARK_message_done
         : says(meta, "do", "retry") ? MARK_message_again
                                     : MARK_message_aside);
}

/* How many headers of this name an answer has; *out: the last one's value. */
static int header_in(char out[64], struct hapax_span meta, const char *name)
{
    struct hapax_span headers, none, pair, part;
    struct hapax__raw_walk walk, parts;
    int n = 0;

    out[0] = '\0';
    (void)hapax__raw_member(&headers, meta, "headers");
    hapax__raw_begin(&walk, headers);
    while (hapax__raw_next(&walk, &none, &pair)) {
        hapax__raw_begin(&parts, pair);
        if (!hapax__raw_next(&parts, &none, &part) || !hapax__raw_says(part, name))
            continue;
        n++;
        if (!hapax__raw_next(&parts, &none, &part) || !hapax__raw_copy(out, 64, part))
            violate("a header has no value");
    }
    return n;
}

/* NULL: there is to be no such header. */
static void check_header(const struct asked *asked, struct hapax_span meta, const char *name,
                         const char *value)
{
    char found[64];
    int n = header_in(found, meta, name);

    if (n != (value ? 1 : 0) || (value && strcmp(found, value) != 0))
        violate("the response to key %d has %d headers %s, the last '%s', and '%s' was due",
                asked->key, n, name, found, value ? value : "none");
}

static void check_problem(const struct asked *asked, enum hapax_answer_kind kind,
                          struct hapax_span meta, struct hapax_span body)
{
    static const int statuses[HAPAX_ANSWER_EXPIRED + 1] = {
        [HAPAX_ANSWER_FAILED] = 500,    [HAPAX_ANSWER_IN_FLIGHT] = 409,
        [HAPAX_ANSWER_UNKNOWN] = 409,   [HAPAX_ANSWER_MISMATCH] = 422,
        [HAPAX_ANSWER_TOO_LARGE] = 413, [HAPAX_ANSWER_STORE_DOWN] = 503,
    };
    struct hapax_span page, value;
    char text[64];

    mark(MARK_problem);
    if (number_in(meta, "status") != statuses[kind] || !hapax__raw_check(&page, body) ||
        number_in(page, "status") != statuses[kind])
        violate("key %d is answered %s, and its response says %lld", asked->key,
                hapax_answer_name(kind), (long long)number_in(meta, "status"));
    check_header(asked, meta, "Content-Type", "application/problem+json");
    check_header(asked, meta, "X-Run", NULL);
    if ((header_in(text, meta, "Retry-After") == 1) !=
        hapax__raw_member(&value, meta, "retry_after_ms"))
        violate("the response to key %d says when to come again, and its answer does not, or not "
                "at all",
                asked->key);
}

/* What an HTTP client is given: its handler's response, what is stored, or a problem. */
static void check_response(const struct asked *asked, enum hapax_answer_kind kind, bool own,
                           bool recorded, struct hapax_span meta, struct hapax_span body)
{
    bool fresh = kind == HAPAX_ANSWER_FRESH, replay = kind == HAPAX_ANSWER_REPLAY;
    int64_t status = number_in(meta, "status");
    int shown; /* of a hook, where it is not recorded */
    struct hapax_span value;
    char text[64];

    if (!hapax__raw_member(&value, meta, "status") || !hapax__raw_member(&value, meta, "headers"))
        violate("key %d is answered no response", asked->key);
    if (own) {
        mark(asked->status == 0 ? MARK_response_none
             : asked->resumed   ? MARK_response_resumed
                                : MARK_response_own);
        if (status != asked->status || body.len > 0)
            violate("key %d was answered %d, and the door says %lld", asked->key, asked->status,
                    (long long)status);
        check_header(asked, meta, "Idempotency-Replayed", fresh ? "false" : NULL);
        check_header(asked, meta, "Idempotency-Recorded", fresh && !recorded ? "false" : NULL);
    } else if (replay || (kind == HAPAX_ANSWER_FAILED && header_in(text, meta, "X-Run") > 0)) {
        mark(MARK_response_stored);
        shown = recorded ? w.stored[asked->key].status : asked->status;
        if (replay ? status != shown : status != 500 && status != 501)
            violate("key %d is answered %s with status %lld, and not %d", asked->key,
                    hapax_answer_name(kind), (long long)status, shown);
        snprintf(text, sizeof(text), "%.*s", (int)body.len, (const char *)body.ptr);
        check_header(asked, meta, "X-Run", text);
        check_header(asked, meta, "Idempotency-Replayed", "true");
        check_header(asked, meta, "Set-Cookie", NULL);
    } else {
        check_problem(asked, kind, meta, body);
    }
}

static void take_answer(struct client *c, struct asked *asked, struct hapax_span meta,
                        struct hapax_span body)
{
    enum hapax_answer_kind kind = kind_of(meta);
    enum hapax_class cls = class_in(meta);
    bool own = is_true(meta, "own"), recorded = is_true(meta, "recorded");
    bool has_run = asked->told && !asked->reconciling;
    const struct asked *step;

    say("ANSWER to %u, key %d: %d, class %d, recorded %d", asked->number, asked->key, (int)kind,
        (int)cls, recorded);
    check_kind(asked, kind);
    if (is_http(asked))
        check_response(asked, kind, own, recorded, meta, body);
    check_do(asked, meta,
             recorded && (kind == HAPAX_ANSWER_REPLAY ||
                          (kind == HAPAX_ANSWER_FRESH && cls == HAPAX_CLASS_FINAL)));
    if (asked->told && !asked->ended)
        violate("key %d is answered while its handler runs", asked->key);
    step = step_of(c, asked);
    if (step && !step->over) /* it is over, and its handler may run, once its RESUME was refused */
        violate("key %d is answered before its step", asked->key);
    if (has_run ? cls != asked->cls : cls != 0 && !asked->told)
        violate("key %d ended with class %d, and its answer says %d", asked->key,
                asked->told ? (int)asked->cls : 0, (int)cls);
    if (own && !has_run)
        violate("key %d did not run, and is answered its own outcome", asked->key);
    if (asked->key >= 0 && recorded &&
        (kind == HAPAX_ANSWER_REPLAY || (kind == HAPAX_ANSWER_FRESH && cls == HAPAX_CLASS_FINAL)))
        check_outcome(asked, kind, own, body);
    if (has_run && asked->key >= 0 && cls == HAPAX_CLASS_FINAL)
        check_end(asked, kind, recorded);
    if (asked->in_calm && !asked->outer && asked->key >= 0 &&
        is_last_word(asked, kind, cls, recorded))
        w.ended[asked->key] = true;
    is_over(c, asked, kind, cls);
}

static bool is_short_of_calls(struct hapax_span meta)
{
    return memmem(meta.ptr, meta.len, "calls_max", strlen("calls_max"));
}

/* Whether the door of this client has a reason to refuse that. */
static bool may_refuse(const struct client *c, const struct asked *asked, struct hapax_span meta)
{
    if (says(meta, "error", "nomem") && is_short_of_calls(meta))
        return w.few_calls && (!play_calm || c->door_life <= w.calm_life[c->door]);
    if (says(meta, "error", "nomem"))
        return w.no_memory > 0 && (!play_calm || sim_now_us < CALM_US + CALM_WAIT_US);
    if (asked->step >= 0) /* its operation was refused, or has ended as one that was */
        return says(meta, "error", "invalid") && (!asked->outer || asked->outer->over);
    return says(meta, "error", "unavailable") && !asked->told &&
           (w.told[c->door] & bit_of(c->door_life)) != 0;
}

static void take_fault(struct client *c, struct asked *asked, struct hapax_span meta)
{
    mark(MARK_refused);
    say("FAULT for %u, key %d: %.*s", asked->number, asked->key, (int)meta.len,
        (const char *)meta.ptr);
    if (!may_refuse(c, asked, meta))
        violate("key %d is refused: %.*s", asked->key, (int)meta.len, (const char *)meta.ptr);
    if (!asked->told && !asked->outer && asked->sent == 1 &&
        (says(meta, "error", "unavailable") || is_short_of_calls(meta))) {
        if (asked->grants > 0)
            violate("a BEGIN is refused, and its claim is in the store");
        w.refused[w.refused_n++ % REFUSED] = asked->nonce;
    }
    if (asked->resumed && asked->number > c->floor)
        c->floor = asked->number;
    if (asked->told && !asked->ended) { /* its handler still runs */
        asked->over = asked->lost = true;
        return;
    }
    if (asked->run)
        asked->run->cls = HAPAX_CLASS_UNKNOWN;
    is_over(c, asked, HAPAX_ANSWER_STORE_DOWN, 0);
}

static void cancel(struct client *c, struct asked *asked)
{
    asked->cancelled = true;
    asked->cancel_us = NEVER;
    if (!c->greeted)
        is_over(c, asked, HAPAX_ANSWER_IN_FLIGHT, 0);
    else if (put(c, HAPAX__DOOR_CANCEL, asked->number, "", hapax_str(NULL)))
        mark(MARK_cancelled);
}

static void take_frame(struct client *c, const struct hapax__door_frame *frame)
{
    struct asked *asked = find(c, frame->op);

    if (frame->kind == HAPAX__DOOR_FAULT && frame->op == 0) {
        say("FAULT: %.*s", (int)frame->meta.len, (const char *)frame->meta.ptr);
        if (!c->greeted)
            mark(MARK_turned_away);
        else
            violate("the door ends a connection: %.*s", (int)frame->meta.len,
                    (const char *)frame->meta.ptr);
        c->broken = true;
        return;
    }
    if (frame->kind == HAPAX__DOOR_WELCOME && !c->greeted) {
        greeted(c, frame->meta);
        return;
    }
    if (!asked && frame->kind == HAPAX__DOOR_FAULT && frame->op <= c->floor)
        return;
    if (!asked || asked->over) {
        violate("a frame of kind %u comes for op %u, which is over", frame->kind, frame->op);
        return;
    }
    switch (frame->kind) {
    case HAPAX__DOOR_RUN:
    case HAPAX__DOOR_RECONCILE:
        if (!asked->told && !asked->cancelled && chance(w.cancels)) /* the two cross */
            cancel(c, asked);
        take_run(c, asked, frame->meta, frame->kind == HAPAX__DOOR_RECONCILE);
        break;
    case HAPAX__DOOR_LOST:
        mark(MARK_lost);
        say("LOST %u, key %d", asked->number, asked->key);
        if (!asked->told || asked->lost_us > 0)
            violate("key %d is told to be lost, and does not run, or was told before", asked->key);
        asked->lost = true;
        asked->lost_us = sim_now_us;
        break;
    case HAPAX__DOOR_ANSWER:
        take_answer(c, asked, frame->meta, frame->body);
        break;
    case HAPAX__DOOR_FAULT:
        take_fault(c, asked, frame->meta);
        break;
    default:
        violate("a frame of kind %u comes", frame->kind);
    }
}

/* Reads what has come. */
static void take(struct client *c)
{
    struct hapax__door_frame frame;
    const char *why = "";
    size_t whole, at = 0;
    int64_t size;
    ssize_t got = recv(c->fd, c->in + c->in_len, sizeof(c->in) - c->in_len, 0);

    if (got > 0)
        c->in_len += (size_t)got;
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
        c->broken = true;
    while ((size = hapax__door_frame_read(&frame, (struct hapax_span){c->in + at, c->in_len - at},
                                          HAPAX__DOOR_FRAME_MAX, &whole, &why)) > 0) {
        at += (size_t)size;
        take_frame(c, &frame);
    }
    if (size < 0)
        violate("a door sends what is no frame: %s", why);
    memmove(c->in, c->in + at, c->in_len - at);
    c->in_len -= at;
}

/* ---- clients ----------------------------------------------------------------------------- */

/* An operation that is still to be asked for; -1: one without a key; -2: none. */
static int draw_key(void)
{
    int key = (int)between(0, w.keys_count - 1);

    if (chance(w.keyless))
        return -1;
    for (int i = 0; play_calm && w.ended[key]; i++) {
        if (i == w.keys_count)
            return -2;
        key = (key + 1) % w.keys_count;
    }
    return key;
}

static void begin_some(struct client *c)
{
    struct asked *asked;
    int key, operations = 0;

    if (sim_now_us < c->begin_us || play_is_told_to_stop(c->proc) || w.quiet_us > 0)
        return;
    c->begin_us = sim_now_us + between(0, chance(300) ? 5 * MS : 500 * MS);
    for (int i = 0; i < ASKED; i++)
        operations += c->asked[i].number > 0 && !c->asked[i].outer;
    key = draw_key();
    if (key == -2 || operations >= ASKED / 4)
        return;
    if (in_hand(c) == 0)
        c->alone_us = sim_now_us;
    asked = new_asked(c, key, NULL, -1);
    if (!asked)
        return;
    asked->other_caller =
        is_http(asked) && key >= 0 && effects.keys[key].completed && chance(w.others);
    if (chance(w.cancels))
        asked->cancel_us = sim_now_us + between(0, 300 * MS);
    if (c->greeted)
        put_begin(c, asked);
}

static void close_some(struct client *c)
{
    if (c->greeted && c->halves) {
        mark(MARK_half_closed);
        shutdown(c->fd, SHUT_WR);
        c->shut = true;
    } else if (c->greeted && c->closes) {
        mark(MARK_closed);
        c->broken = true;
    }
    c->halves = c->closes = false;
}

/* All that a client does by itself. */
static void do_what_is_due(struct client *c)
{
    close_some(c);
    if (c->fd >= 0 && c->broken)
        hang_up(c);
    begin_some(c);
    if (c->fd < 0 && in_hand(c) > 0 && sim_now_us >= c->dial_us)
        dial(c);
    if (!c->greeted && in_hand(c) > 0 && sim_now_us - c->alone_us > w.connect_us) {
        give_up(c);
        c->alone_us = sim_now_us;
    }
    for (struct asked *asked = behind(c, 0); asked; asked = behind(c, asked->order)) {
        if (!asked->told && sim_now_us >= asked->cancel_us)
            cancel(c, asked);
        else if (asked->told && !asked->ended && sim_now_us >= due_us(c, asked))
            work(c, asked);
    }
    if (c->greeted && sim_now_us >= c->beat_at_us) {
        c->beat_at_us = sim_now_us + c->beat_us;
        if (in_hand(c) > 0 && c->beats)
            (void)put(c, HAPAX__DOOR_BEAT, 0, "", hapax_str(NULL));
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void wait_for_more(struct client *c)
{
    struct pollfd fds[] = {{.fd = stops[c->proc].fd, .events = POLLIN},
                           {.fd = c->fd, .events = POLLIN}};
    bool stopping = play_is_told_to_stop(c->proc);
    int64_t begin_us = w.quiet_us > 0 ? NEVER : c->begin_us;
    int64_t until_us = least(stopping ? c->leaves_us : begin_us, sim_now_us + SECOND);

    if (c->greeted)
        until_us = least(until_us, c->beat_at_us);
    if (c->fd < 0 && in_hand(c) > 0)
        until_us = least(until_us, c->dial_us);
    for (int i = 0; i < ASKED; i++)
        if (c->asked[i].number > 0)
            until_us = least(until_us, due_us(c, &c->asked[i]));
    if (until_us > sim_now_us)
        (void)poll(fds + stopping, stopping ? 1 : 2, (int)((until_us - sim_now_us) / MS) + 1);
    if (c->fd >= 0)
        take(c);
    if (play_is_told_to_stop(c->proc) && !stopping)
        c->leaves_us = sim_now_us + (chance(700) ? 10 * SECOND : 0);
}

static void ask(int proc)
{
    struct client *c = &clients[proc];

    memset(c, 0, sizeof(*c));
    c->proc = proc;
    c->fd = -1;
    c->beats = !chance(w.mute);
    c->alone_us = sim_now_us;
    while (!play_is_told_to_stop(proc) || (in_hand(c) > 0 && sim_now_us < c->leaves_us)) {
        do_what_is_due(c);
        wait_for_more(c);
    }
    for (int i = 0; i < ASKED; i++) {
        if (c->asked[i].number > 0 && c->asked[i].run)
            c->asked[i].run->died = true; /* with the process */
        c->asked[i].number = 0;
    }
    if (c->fd >= 0)
        close(c->fd);
}

static void *stranger_main(void *arg)
{
    int proc = process_now();

    (void)arg;
    while (!play_is_told_to_stop(proc)) {
        uint8_t says_so[] = {0, 0, 0, 28, HAPAX__DOOR_HELLO, 0, 0, 0, 0, 0, 0, 0, 19, '{', '"'};

        bool came;

        pass_us(between(0, 2 * SECOND));
        if (chance(200))
            says_so[between(0, sizeof(says_so) - 1)] = (uint8_t)draw();
        if (play_stranger(&came, PATH, says_so, (size_t)between(1, sizeof(says_so)), PATIENCE_US))
            mark(MARK_stranger_hung_up);
        if (came)
            mark(MARK_stranger);
    }
    return NULL;
}

static void client_main(int proc)
{
    bool comes = chance(w.strangers);
    pthread_t stranger;

    stops[proc].fd = eventfd(0, 0);
    if (comes && pthread_create(&stranger, NULL, stranger_main, NULL) != 0)
        violate("no thread");
    ask(proc);
    if (comes)
        pthread_join(stranger, NULL);
    close(stops[proc].fd);
}

/* ---- doors ------------------------------------------------------------------------------- */

/* As hapax door does at its end. */
static void close_door(int proc, struct hapax *h, struct hapax__door *door)
{
    int64_t begun_us = sim_now_us;
    uint32_t left = hapax__door_close(door, w.drain_ms);

    if (left > 0) {
        mark(MARK_left_in_hand);
        if (play_stopping)
            violate("p%d leaves %u operations in hand, and its clients had none", proc, left);
        if (sim_now_us - begun_us < w.drain_ms * MS)
            violate("a door leaves what is in hand after %lld of %lld ms",
                    (long long)((sim_now_us - begun_us) / MS), (long long)w.drain_ms);
        w.leaves[proc] = true;
        sim_procs[proc].dies_in = 1;
        step();
    }
    (void)hapax_close(h, w.policy.save_wait_ms);
}

static void door_main(int proc)
{
    struct hapax__scope scope = {.name = "D", .name_len = 1, .policy = w.policy};
    struct hapax__scopes scopes = {.policy = w.policy, .named = &scope};
    struct hapax__door_stats *stats = &w.stats[proc];
    struct hapax_options options = w.options;
    struct hapax__door_options how = {
        .path = PATH, .scopes = &scopes, .stats = stats, .now = w.now};
    struct hapax__door *door = NULL;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (w.policy_is != BY_DOOR) {
        scopes.policy.on_expired = w.policy.on_expired % HAPAX_EXPIRED_RECONCILE + 1;
        scopes.policy.attempts_max = w.policy.attempts_max > 0 ? 0 : 1;
        scopes.n = w.policy_is == BY_SCOPE;
    }
    if (w.policy_is == BY_SCOPE)
        mark(MARK_policy_of_scope);
    memset(stats, 0, sizeof(*stats));
    w.leaves[proc] = false;
    w.told[proc] &= ~bit_of(sim_procs[proc].life);
    stops[proc].fd = eventfd(0, 0);
    while ((error = hapax_open(&how.h, "sim:", &options, text)) != HAPAX_ERR_NONE &&
           !play_is_told_to_stop(proc))
        pass_us(between(10 * MS, 500 * MS)); /* a store that is away is waited for */
    stats->h = how.h;
    if (how.h)
        error = hapax__door_open(&door, &how, text);
    if (error == HAPAX_ERR_REFUSED)
        mark(MARK_second_door);
    else if (error != HAPAX_ERR_NONE && error != HAPAX_ERR_NOMEM && error != HAPAX_ERR_UNAVAILABLE)
        violate("a door does not begin: %.100s", text);
    if (door) {
        say("DOOR serves");
        sim_procs[proc].no_memory = play_calm ? 0 : w.no_memory;
        play_wait_for_stop(proc);
        w.told[proc] |= bit_of(sim_procs[proc].life);
        w.told_us[proc] = sim_now_us;
        w.told_stopped_us[proc] = sim_procs[proc].stopped_us;
    }
    close_door(proc, how.h, door);
    close(stops[proc].fd);
}

/* ---- the world --------------------------------------------------------------------------- */

static void begin(int proc)
{
    process_begin(proc, is_door(proc) ? door_main : client_main);
}

static void over(int proc, bool killed)
{
    effects_over(proc, killed);
    if (!is_door(proc))
        for (int i = 0; i < ASKED; i++)
            clients[proc].asked[i].number = 0;
    if (killed && !is_door(proc))
        mark(MARK_killed);
    else if (killed && !w.leaves[proc])
        mark(MARK_door_killed);
    play_over(proc);
}

static void happens(int proc)
{
    play_kill(proc, w.kills);
    if (chance(w.stops) && sim_procs[proc].alive) {
        mark(MARK_stopped);
        process_stop(proc, between(10 * MS, 4 * w.policy.lease_ms * MS));
    }
    if (chance(w.ends) && play_stop(proc))
        mark(MARK_told_to_stop);
    if (chance(w.cuts))
        sockets_cut((int)between(0, w.play.procs_count - 1));
    if (!is_door(proc)) {
        clients[proc].halves |= chance(w.half_closes);
        clients[proc].closes |= chance(w.closes);
    }
    if (chance(w.outages))
        sim_store.down_until_us = sim_now_us + between(0, 2 * SECOND);
    if (chance(w.jumps))
        sim_store.jump_us += between(0, 2 * w.policy.lease_ms * MS);
}

/* Those with more calls take the place of those that run out of them. */
static void exchange_doors(void *arg)
{
    (void)arg;
    for (int p = 0; p < w.doors_count; p++)
        (void)play_stop(p);
}

static void calm(void)
{
    marks[MARK_no_memory] += sim_no_memory;
    marks[MARK_cut] += sim_sockets.cuts;
    marks[MARK_interrupted] += sim_sockets.interruptions;
    marks[MARK_read_in_part] += sim_sockets.short_reads;
    marks[MARK_written_in_part] += sim_sockets.short_writes;
    marks[MARK_socket_full] += sim_sockets.full;
    marks[MARK_backlog_full] += sim_sockets.refusals;
    marks[MARK_reset] += sim_sockets.resets;
    marks[MARK_inherited] += sim_sockets.inheritances;
    sim_sockets.interrupted = sim_sockets.in_part = sim_sockets.backlog_full =
        sim_sockets.no_descriptor = 0;
    sim_store.request_lost = sim_store.reply_lost = sim_store.late = sim_store.twice =
        sim_store.refused = sim_store.slow = 0;
    sim_store.down_until_us = 0;
    w.cancels = 0;
    w.connect_us = CONNECT_US;
    w.options.calls_max = CALLS_MAX;
    for (int p = 0; p < w.doors_count; p++)
        w.calm_life[p] = sim_procs[p].life;
    if (w.few_calls)
        world_thread(exchange_doors, NULL);
    for (int p = w.doors_count; p < w.play.procs_count; p++) {
        clients[p].beats = true;
        clients[p].alone_us = sim_now_us;
    }
    w.mute = 0;
}

/* Of an operation or a step in hand. */
static void look_at(const struct client *c, const struct asked *asked)
{
    int64_t since_us = asked->begun_us;

    if (play_calm && !play_stopping) {
        since_us = since_us > CALM_US + CALM_WAIT_US ? since_us : CALM_US + CALM_WAIT_US;
        if (sim_now_us - since_us > ANSWER_US)
            violate("p%d's operation %u, key %d, is not answered for %lld s", c->proc,
                    asked->number, asked->key, (long long)(ANSWER_US / SECOND));
    }
    /* A door that knows the nonce has claimed what runs with a token of its own. */
    if (!play_calm || !asked->told || asked->ended || asked->lost || asked->refused_us == 0 ||
        asked->granted != asked->fence || !c->greeted || c->broken || !sim_procs[c->door].alive ||
        sim_procs[c->door].life != c->door_life)
        return;
    since_us = asked->refused_us > c->connected_us ? asked->refused_us : c->connected_us;
    since_us = since_us > CALM_US ? since_us : CALM_US;
    if (sim_now_us - since_us > w.policy.lease_ms * MS + SECOND)
        violate("the claim of key %d was lost %lld ms ago, and p%d is not told", asked->key,
                (long long)((sim_now_us - since_us) / MS), c->proc);
}

/* Once nothing fails, what a dead client has left is over soon. */
static void look_at_door(int proc, int asked)
{
    int in_hand_of_it = (int)atomic_load(&w.stats[proc].in_hand);

    if (!play_calm || !sim_procs[proc].alive || in_hand_of_it <= asked)
        w.even_us[proc] = sim_now_us;
    else if (sim_now_us - w.even_us[proc] > EVEN_US)
        violate("p%d has %d operations in hand for %lld s, and its clients have %d", proc,
                in_hand_of_it, (long long)(EVEN_US / SECOND), asked);
}

static int in_hand_of_all(void)
{
    int n = 0;

    for (int p = w.doors_count; p < w.play.procs_count; p++)
        n += sim_procs[p].alive ? in_hand(&clients[p]) : 0;
    return n;
}

static bool all_ended(void)
{
    for (int i = 0; i < w.keys_count; i++)
        if (!w.ended[i])
            return false;
    return true;
}

static void watch(void)
{
    int asked = in_hand_of_all();

    if (play_calm && w.quiet_us == 0 && all_ended() &&
        sim_now_us >= CALM_US + CALM_WAIT_US + (w.strangers > 0 ? STANDS_US : EVEN_US))
        w.quiet_us = sim_now_us;
    for (int p = 0; p < w.doors_count; p++)
        look_at_door(p, asked);
    for (int p = w.doors_count; p < w.play.procs_count; p++)
        for (int i = 0; sim_procs[p].alive && i < ASKED; i++)
            if (clients[p].asked[i].number > 0)
                look_at(&clients[p], &clients[p].asked[i]);
}

/* How long that may take, look_at() and look_at_door() say. */
static bool is_at_rest(void)
{
    for (int p = 0; p < w.doors_count; p++)
        if (sim_procs[p].alive && atomic_load(&w.stats[p].in_hand) > 0)
            return false;
    return w.quiet_us > 0 && in_hand_of_all() == 0;
}

static void not_over(void)
{
    for (int i = 0; i < w.keys_count; i++)
        if (!w.ended[i])
            violate("key %d is not at its end %lld s after the faults", i,
                    (long long)(REST_US / SECOND));
    violate("what was asked is not answered");
}

static void draw_faults(void)
{
    bool all = chance(200);

    w.no_memory = chance(200) ? (unsigned)between(1, chance(300) ? 150 : 30) : 0;
    w.kills = play_rate(all, 300);
    w.stops = play_rate(all, 150);
    w.ends = play_rate(all, 100);
    w.cuts = play_rate(all, 300);
    w.slow = play_rate(all, 400);
    w.ignores = play_rate(all, 1000);
    w.hook_unsure = play_rate(all, 500);
    w.jumps = play_rate(all, 100);
    w.outages = play_rate(all, 100);
    w.cancels = play_rate(all, 200);
    w.closes = play_rate(all, 100);
    w.half_closes = play_rate(all, 100);
    w.hasty = play_rate(all, 500);
    w.mute = play_rate(all, 300);
    w.keyless = play_rate(all, 100);
    w.long_begins = play_rate(all, 50);
    w.strangers = chance(200) ? 500 : 0;
    w.others = play_rate(all, 300);
    sim_sockets.inherited = play_rate(all, 500);
    sockets_draw(all);
    sim_sockets.room = chance(300) ? (size_t)between(16, 2000) : 0;
    sim_store_draw(all);
    sim_store.slow = play_rate(all, 400);
}

static void draw_keys(void)
{
    w.keys_count = (int)between(1, KEYS);
    effects_draw(&w.policy, w.keys_count, "D");
    for (int i = 0; i < w.keys_count && i < STEPPED; i++)
        if (chance(500)) {
            w.steps[i] = effects_add("D", i, "s0");
            (void)effects_add("D", i, "s1");
        }
    for (int i = 0; i < effects.keys_count; i++)
        effects.keys[i].refuses = false; /* only messages are */
}

static void draw_world(void)
{
    memset(&w, 0, sizeof(w));
    memset(clients, 0, sizeof(clients));
    w.doors_count = (int)between(1, DOORS);
    w.play = (struct play){.procs_count = w.doors_count + (int)between(1, PROCS - DOORS),
                           .calm_us = CALM_US,
                           .rest_us = REST_US,
                           .drain_us = DRAIN_US,
                           .begin = begin,
                           .happens = happens,
                           .calm = calm,
                           .watch = watch,
                           .is_over = is_at_rest,
                           .not_over = not_over};
    play_policy(&w.policy);
    draw_faults();
    draw_keys();
    w.comes_late = sim_store.late > 0 || sim_store.twice > 0 || sim_store.slow > 0;
    w.now = chance(400);
    w.as = between(AS_CALL, AS_MESSAGE);
    w.credentials = chance(500);
    if (w.as == AS_HTTP)
        w.policy.max_request = REQUEST_MAX;
    w.policy_is = between(BY_DOOR, BY_BEGIN);
    w.reuses = chance(500);
    w.drain_ms = between(0, 5000);
    w.connect_us = chance(300) ? between(200 * MS, 2 * SECOND) : CONNECT_US;
    w.few_calls = chance(200);
    w.options.calls_max = w.few_calls ? (uint32_t)between(6, 12) : CALLS_MAX;
}

static void schedule(uint64_t seed)
{
    threads_reset(seed);
    sim_store_reset();
    draw_world();
    process_over = over;
    sim_store_judged = judged;
    play_run(&w.play);
    marks[MARK_second_effect] += effects.again;
}

int main(int argc, char **argv)
{
    return seeds_main(argc, argv, schedule, marks, mark_names, MARKS_COUNT);
}
