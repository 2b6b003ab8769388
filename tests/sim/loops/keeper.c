/* SPDX-License-Identifier: Apache-2.0
 *
 * Keepers and their clients, simulated: hapax__keeper_serve() with its loop, its connections and
 * its lane, in one or two processes, of which one has the store; and the store `unix:` in one to
 * three others, under hapax_execute() and by itself. They run as they are (threads.h). Played are
 * the sockets (fds.h), the disk (store.h), and handlers.
 *
 * At first everything may fail. Processes are killed in any call, stopped, told to stop, and begun
 * anew; reads and writes are short or interrupted; connections are cut at any byte; backlogs and
 * sockets are full; descriptors and memory run out; strangers connect and stand still; syncs are
 * slow, or fail; the power goes, and writes that were not synced with it. Then comes the calm, and
 * every operation must come to its end. Last, all processes are told to stop, and must end.
 *
 * The rules:
 *   - an answer is what the store said of this very op, since it was asked
 *   - "surely not applied" is not said of what the store has judged (promise 10)
 *   - what was told is not lost, whatever becomes of keeper and disk (promise 22)
 *   - ops of one client on one id are judged in their order
 *   - effects.h; a repeat gets the outcome that was stored first
 *   - a call ends in time, and so does a process that was told to stop
 *   - once nothing fails, ops are answered; who stands still is hung up on
 *
 *     sim_keeper [--first N] [--schedules N] [--seconds N] [--twice] [--marks]
 *     sim_keeper --seed N                       one, with what happens
 */
#include "store/keeper/keeper.h"

#include "base/time.h"
#include "effects.h"
#include "fds.h"
#include "inner.h"
#include "lane/lane.h"
#include "play.h"
#include "seeds.h"
#include "store.h"
#include "store/keeper/link.h"
#include "threads.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEEPERS        2 /* at most; these processes are the first ones */
#define IDS            4 /* that ops are sent about, one by one */
#define CALLERS        4
#define BATCH          12
#define LANE_OPS       48
#define LONG_BATCH     330 /* READs that are longer together than a keeper's buffer */
#define CALM_US        (8 * SECOND)
#define CALM_WAIT_US   (3500 * MS) /* so long it takes until all is well: a slow sync ends */
#define CALM_LEAST_US  (6 * SECOND)
#define REST_US        (600 * SECOND)
#define DRAIN_US       (60 * SECOND)
#define SLACK_US       (300 * MS)
#define OPEN_MS        2000 /* for a keeper that does not greet */
#define HOOK_MS        50
#define LANE_MS        300 /* of who takes answers back */
#define HANDLER_LEASES 3
#define JUDGED         8192
#define PUTS           1024
#define UNSURE         4096
#define UNDONE         256
#define PATH           "/sim/keeper.sock"

#define MARKS(X)                                                                                   \
    X(killed)                                                                                      \
    X(keeper_killed)                                                                               \
    X(told_to_stop)                                                                                \
    X(stopped)                                                                                     \
    X(cut)                                                                                         \
    X(interrupted)                                                                                 \
    X(read_in_part)                                                                                \
    X(written_in_part)                                                                             \
    X(socket_full)                                                                                 \
    X(backlog_full)                                                                                \
    X(reset)                                                                                       \
    X(power_lost)                                                                                  \
    X(sync_failed)                                                                                 \
    X(second_keeper)                                                                               \
    X(stranger)                                                                                    \
    X(stranger_hung_up)                                                                            \
    X(lane)                                                                                        \
    X(requests_at_once)                                                                            \
    X(long_request)                                                                                \
    X(informed)                                                                                    \
    X(verdict)                                                                                     \
    X(unavailable)                                                                                 \
    X(indeterminate)                                                                               \
    X(judged_twice)                                                                                \
    X(forgotten)                                                                                   \
    X(replayed)                                                                                    \
    X(in_flight)                                                                                   \
    X(store_down)                                                                                  \
    X(second_effect)                                                                               \
    X(hook)                                                                                        \
    X(no_memory)

SEEDS_MARKS(MARKS)

/* What tells one op from all others, but for its repeats. What is drawn at random does. */
struct name {
    enum hapax_op_kind kind;
    struct hapax_id id;
    struct hapax_token token;
    struct hapax_digest fingerprint;
    int64_t retention_ms;
};

/* What the store said of an op, as far as it is compared. */
struct said {
    enum hapax_verdict verdict;
    enum hapax_differs differs;
    int64_t now_us;
    enum hapax_state state;
    uint32_t attempt, spent;
    uint64_t fence;
    int64_t lease_until_us, updated_us;
    int status;
    char body[32];
};

struct judged {
    struct name name;
    struct said said;
    uint64_t number; /* the write on which it rests */
    int64_t at_us;
    bool told, lost;
};

/* An op that a client has put, and has no answer to. */
struct put {
    const struct hapax__asking *asking; /* NULL: the place is free */
    const struct hapax__link *link;
    int proc;
    int64_t at_us;
    uint64_t number;
    /* The last judgement that its link was told of, of the ops on this id that were put before. */
    uint64_t told;
    struct name name;
};

static struct world {
    struct play play;
    int keepers_count;
    char uri[64];
    int64_t timeout_ms;
    struct hapax__keeper_options options;
    struct hapax_policy policy;
    struct hapax_id ids[IDS];
    struct judged judged[JUDGED]; /* a ring */
    uint64_t judged_n;
    struct put puts[PUTS];
    int puts_most; /* places that were used */
    uint64_t puts_n;
    struct name unsure[UNSURE]; /* that may change a record, and whose answer was not had */
    int unsure_n;
    struct name undone[UNDONE]; /* told to be surely not applied, and not asked again; a ring */
    uint64_t undone_n;
    char stored[KEYS][32]; /* the outcome that was stored first */
    bool ended[KEYS]; /* a call that began in the calm had its last word */
    uint32_t served[KEEPERS]; /* the life in which each began to serve */
    unsigned no_memory, kills, stops, ends, cuts, slow, ignores, hook_unsure, jumps, powers;
    uint32_t outcomes;
    bool cut_in_calm;
} w;

/* ---- what the store said, and what clients are told -------------------------------------- */

/* A READ is sent without a token. */
static struct name name_of(const struct hapax_op *op)
{
    struct name name;

    memset(&name, 0, sizeof(name)); /* it is compared as a whole */
    name.kind = op->kind;
    name.id = op->id;
    name.fingerprint = op->fingerprint;
    if (op->kind == HAPAX_OP_CLAIM)
        name.retention_ms = op->retention_ms;
    if (op->kind != HAPAX_OP_READ)
        name.token = op->token;
    return name;
}

static bool is_named(const struct name *name, const struct hapax_op *op)
{
    const struct name other = name_of(op);

    return memcmp(name, &other, sizeof(other)) == 0;
}

static struct said said_of(const struct hapax_op *op)
{
    const struct hapax_record *record = &op->record;
    struct said said;

    memset(&said, 0, sizeof(said)); /* it is compared as a whole */
    said.verdict = op->verdict;
    said.differs = op->differs;
    said.now_us = op->now_us;
    said.state = record->state;
    said.attempt = record->attempt;
    said.spent = record->spent;
    said.fence = record->fence;
    said.lease_until_us = record->lease_until_us;
    said.updated_us = record->updated_us;
    said.status = record->outcome.status;
    snprintf(said.body, sizeof(said.body), "%.*s", (int)record->outcome.body.len,
             (const char *)record->outcome.body.ptr);
    return said;
}

static struct name *undone(const struct hapax_op *op)
{
    for (uint64_t i = 0; i < UNDONE && i < w.undone_n; i++)
        if (is_named(&w.undone[i], op))
            return &w.undone[i];
    return NULL;
}

static int key_of(const struct hapax_id *id)
{
    for (int i = 0; i < effects.keys_count; i++)
        if (memcmp(&effects.keys[i].id, id, sizeof(*id)) == 0)
            return i;
    return -1;
}

static void judged(const struct hapax_op *op)
{
    struct judged *one = &w.judged[w.judged_n++ % JUDGED];
    bool forgets = op->kind == HAPAX_OP_RESOLVE && op->resolve == HAPAX_RESOLVE_FORGET;
    uint64_t back = forgets ? JUDGED - 1 : 16;
    int key = key_of(&op->id);

    for (uint64_t i = 1; i <= back && i < w.judged_n; i++)
        if (is_named(&w.judged[(w.judged_n - 1 - i) % JUDGED].name, op)) {
            mark(MARK_judged_twice);
            if (forgets)
                violate("a record is forgotten again by the same op");
            break;
        }
    if (undone(op))
        violate("op %d of id %02x was told to be surely not applied, and is judged after that",
                (int)op->kind, op->id.bytes[0]);
    *one = (struct judged){.name = name_of(op), .said = said_of(op), .at_us = sim_now_us};
    one->number = sim_store_number(&op->id);
    effects_judged(op);
    if (key >= 0 && op->kind == HAPAX_OP_COMPLETE && op->verdict == HAPAX_OK &&
        w.stored[key][0] == '\0')
        memcpy(w.stored[key], one->said.body, sizeof(one->said.body));
}

/* The store judges anew what it has lost. */
static void lost(uint64_t from)
{
    for (uint64_t i = w.judged_n > JUDGED ? w.judged_n - JUDGED : 0; i < w.judged_n; i++) {
        struct judged *one = &w.judged[i % JUDGED];

        if (one->number < from || one->lost)
            continue;
        one->lost = true;
        if (one->told)
            violate("op %d of id %02x was told %s, which is lost", (int)one->name.kind,
                    one->name.id.bytes[0], hapax_verdict_name(one->said.verdict));
        if (one->name.kind == HAPAX_OP_COMPLETE && key_of(&one->name.id) >= 0) {
            effects.keys[key_of(&one->name.id)].completed = false;
            w.stored[key_of(&one->name.id)][0] = '\0';
        }
    }
}

static bool was_unsure(const struct hapax_op *op)
{
    for (int i = 0; i < w.unsure_n; i++)
        if (is_named(&w.unsure[i], op))
            return true;
    return false;
}

/* The first judgement of an op that was put, as it is told (NULL: any). */
static struct judged *judgement(const struct put *put, const struct said *said, uint64_t *number)
{
    uint64_t oldest = w.judged_n > JUDGED ? w.judged_n - JUDGED : 0, i = w.judged_n;

    while (i > oldest && i > put->told && w.judged[(i - 1) % JUDGED].at_us >= put->at_us)
        i--;
    for (; i < w.judged_n; i++) {
        struct judged *one = &w.judged[i % JUDGED];

        *number = i + 1;
        if (memcmp(&one->name, &put->name, sizeof(put->name)) == 0 &&
            (!said || (!one->lost && memcmp(&one->said, said, sizeof(*said)) == 0)))
            return one;
    }
    return NULL;
}

/* Ops of one link on one id are judged, and answered, in the order in which they were put. */
static void keep_order(const struct put *put, uint64_t number)
{
    for (int i = 0; i < w.puts_most; i++) {
        struct put *other = &w.puts[i];

        if (!other->asking || other->link != put->link || other == put ||
            memcmp(&other->name.id, &put->name.id, sizeof(put->name.id)) != 0)
            continue;
        if (other->number < put->number)
            violate("an op of id %02x overtakes another of its client", put->name.id.bytes[0]);
        other->told = number;
    }
}

static void told(const struct put *put, const struct hapax_op *op)
{
    struct said said = said_of(op);
    struct judged *one;
    uint64_t number;

    if (op->verdict != HAPAX_NO_VERDICT) {
        mark(MARK_verdict);
        one = judgement(put, &said, &number);
        if (!one)
            violate("op %d of id %02x is told %s, which the store did not say", (int)op->kind,
                    op->id.bytes[0], hapax_verdict_name(op->verdict));
        else
            one->told = true;
        keep_order(put, number);
        return;
    }
    if (op->error == HAPAX_ERR_UNAVAILABLE) {
        mark(MARK_unavailable);
        if (op->kind == HAPAX_OP_READ || was_unsure(op))
            return;
        if (judgement(put, NULL, &number))
            violate("op %d of id %02x was judged, and is told to be surely not applied",
                    (int)op->kind, op->id.bytes[0]);
        w.undone[w.undone_n++ % UNDONE] = name_of(op);
        return;
    }
    if (op->error != HAPAX_ERR_INDETERMINATE)
        violate("op %d of id %02x is told %s", (int)op->kind, op->id.bytes[0],
                hapax_error_name(op->error));
    mark(MARK_indeterminate);
    if (op->kind == HAPAX_OP_READ)
        return;
    if (w.unsure_n == UNSURE)
        violate("over %d ops without an answer", UNSURE);
    else if (!was_unsure(op))
        w.unsure[w.unsure_n++] = name_of(op);
}

WRAPPED(void, hapax__link_put, struct hapax__link *link, struct hapax__asking *asking)
{
    struct name *again = asking->op ? undone(asking->op) : NULL;
    int i = 0;

    if (again)
        memset(again, 0, sizeof(*again));
    while (i < w.puts_most && w.puts[i].asking)
        i++;
    assert(i < PUTS);
    w.puts_most = i < w.puts_most ? w.puts_most : i + 1;
    if (asking->op)
        w.puts[i] = (struct put){.asking = asking,
                                 .link = link,
                                 .proc = process_now(),
                                 .at_us = sim_now_us,
                                 .number = ++w.puts_n,
                                 .name = name_of(asking->op)};
    __real_hapax__link_put(link, asking);
}

WRAPPED(struct hapax__asking *, hapax__link_take, struct hapax__link *link)
{
    struct hapax__asking *asking = __real_hapax__link_take(link);
    int i = 0;

    if (!asking || !asking->op)
        return asking;
    while (i < w.puts_most && w.puts[i].asking != asking)
        i++;
    if (i == w.puts_most)
        violate("an op is answered that was not put");
    else
        told(&w.puts[i], asking->op);
    w.puts[i < w.puts_most ? i : 0].asking = NULL;
    return asking;
}

/* ---- time -------------------------------------------------------------------------------- */

/* When a call of the product began. */
struct since {
    int64_t at_us, stopped_us;
};

static struct since since_now(void)
{
    return (struct since){sim_now_us, sim_procs[process_now()].stopped_us};
}

static void check_time(const struct since *since, int64_t most_ms, const char *what)
{
    int64_t stopped_us = sim_procs[process_now()].stopped_us - since->stopped_us;

    if (sim_now_us - since->at_us > most_ms * MS + SLACK_US + stopped_us)
        violate("%s takes %lld ms", what, (long long)((sim_now_us - since->at_us) / MS));
}

/* ---- handlers ---------------------------------------------------------------------------- */

/* Until this time, or until the handler sees that its claim is lost. */
static bool works(const struct hapax_attempt *attempt, int64_t us, bool ignores)
{
    int64_t until_us = sim_now_us + us;

    while (sim_now_us < until_us) {
        int64_t left_us = until_us - sim_now_us;

        pass_us(left_us < 20 * MS ? left_us : 20 * MS);
        if (!ignores && hapax_attempt_lost(attempt))
            return false;
    }
    return true;
}

static enum hapax_class handle(struct hapax_attempt *attempt, void *arg)
{
    struct key *key = arg;
    struct run *run = effects_run((int)(key - effects.keys), hapax_attempt_fence(attempt));
    int64_t lease_us = w.policy.lease_ms * MS;
    int64_t long_us =
        chance(w.slow) ? between(0, HANDLER_LEASES * lease_us) : between(0, lease_us / 8);
    enum hapax_class cls = effects_class(key);
    bool ignores = chance(w.ignores);
    char body[32];

    say("RUN of key %d, attempt %u fence %llu", run->key, hapax_attempt_number(attempt),
        (unsigned long long)run->fence);
    if (run->fence == 0)
        violate("key %d runs without a claim", run->key);
    if (!works(attempt, long_us / 2, ignores)) {
        cls = HAPAX_CLASS_UNKNOWN;
    } else if (cls == HAPAX_CLASS_FINAL ||
               (cls == HAPAX_CLASS_UNKNOWN && key->effects_before_unknown)) {
        effects_effect(run);
        if (!works(attempt, long_us / 2, ignores))
            cls = HAPAX_CLASS_UNKNOWN;
    }
    snprintf(body, sizeof(body), "outcome %u", ++w.outcomes);
    if ((cls == HAPAX_CLASS_FINAL || cls == HAPAX_CLASS_FAILED) &&
        hapax_attempt_outcome(attempt, cls == HAPAX_CLASS_FINAL ? 200 : 500, hapax_str(NULL),
                              hapax_str(body)) != HAPAX_ERR_NONE)
        cls = HAPAX_CLASS_UNKNOWN;
    run->ended = true;
    run->cls = cls;
    say("END of key %d: class %d", run->key, (int)cls);
    return cls;
}

static enum hapax_class hook(struct hapax_attempt *attempt, void *arg)
{
    mark(MARK_hook);
    pass_us(between(0, HOOK_MS * MS));
    if (!play_calm && chance(w.hook_unsure))
        return HAPAX_CLASS_UNKNOWN;
    return effects_hook(arg, attempt);
}

/* ---- calls ------------------------------------------------------------------------------- */

static bool is_last_word(const struct hapax_answer *answer, const struct key *key)
{
    switch (answer->kind) {
    case HAPAX_ANSWER_FRESH:
        return answer->recorded && answer->cls == HAPAX_CLASS_FINAL;
    case HAPAX_ANSWER_REPLAY:
        return answer->recorded;
    case HAPAX_ANSWER_FAILED:
        return true;
    case HAPAX_ANSWER_UNKNOWN:
        return w.policy.on_expired != HAPAX_EXPIRED_RECONCILE && key->was_unknown;
    default:
        return false;
    }
}

static void check_answer(const struct hapax_answer *answer, int key)
{
    const char *stored = w.stored[key];
    bool shows = answer->recorded &&
                 (answer->kind == HAPAX_ANSWER_REPLAY ||
                  (answer->kind == HAPAX_ANSWER_FRESH && answer->cls == HAPAX_CLASS_FINAL));

    if (answer->kind == HAPAX_ANSWER_REPLAY)
        mark(MARK_replayed);
    if (answer->kind == HAPAX_ANSWER_IN_FLIGHT)
        mark(MARK_in_flight);
    if (answer->kind == HAPAX_ANSWER_STORE_DOWN)
        mark(MARK_store_down);
    if (shows && (answer->outcome.body.len != strlen(stored) ||
                  memcmp(answer->outcome.body.ptr, stored, strlen(stored)) != 0))
        violate("key %d is answered '%.*s', and '%s' was stored first", key,
                (int)answer->outcome.body.len, (const char *)answer->outcome.body.ptr, stored);
    if (answer->kind == HAPAX_ANSWER_BYPASS || answer->kind == HAPAX_ANSWER_MISMATCH ||
        answer->kind == HAPAX_ANSWER_GONE || answer->kind == HAPAX_ANSWER_BAD_KEY)
        violate("key %d is answered %d", key, (int)answer->kind);
}

/* Who calls waits for another caller, for the store before and after, and for handler and hook. */
static int64_t call_most_ms(void)
{
    return w.policy.wait_ms + w.policy.timeout_ms + w.policy.save_wait_ms +
           2 * HANDLER_LEASES * w.policy.lease_ms + HOOK_MS;
}

static void call(struct hapax *h, int key)
{
    char name[16], text[HAPAX_TEXT_MAX];
    struct hapax_request request = {.scope = hapax_str("Q")};
    struct hapax_answer answer;
    bool in_calm = play_calm;
    struct since since = since_now();
    enum hapax_error error;

    snprintf(name, sizeof(name), "op-%d", key);
    request.key = hapax_str(name);
    error = hapax_execute(h, &w.policy, &request, handle, hook, &effects.keys[key], &answer, text);
    check_time(&since, call_most_ms(), "a call");
    if (error == HAPAX_ERR_NOMEM)
        return;
    if (error != HAPAX_ERR_NONE)
        violate("a call fails: %.100s", text);
    say("ANSWER of key %d: %d, class %d, recorded %d", key, (int)answer.kind, (int)answer.cls,
        answer.recorded);
    check_answer(&answer, key);
    if (in_calm && is_last_word(&answer, &effects.keys[key]))
        w.ended[key] = true;
    hapax_answer_release(&answer);
}

struct calls {
    struct hapax *h;
    pthread_t thread[CALLERS];
    int n;
};

static void *caller_main(void *arg)
{
    const struct calls *calls = arg;
    int proc = process_now();

    while (!play_is_told_to_stop(proc)) {
        pass_us(between(0, chance(500) ? 5 * MS : 300 * MS));
        if (!play_is_told_to_stop(proc))
            call(calls->h, (int)between(0, effects.keys_count - 1));
    }
    return NULL;
}

static void *calls_main(void *arg)
{
    struct hapax_options options = {.calls_max = 16};
    struct calls *calls = arg;
    char text[HAPAX_TEXT_MAX];
    int proc = process_now();
    enum hapax_error error;

    while ((error = hapax_open(&calls->h, w.uri, &options, text)) != HAPAX_ERR_NONE) {
        if (error != HAPAX_ERR_UNAVAILABLE && error != HAPAX_ERR_NOMEM)
            violate("a client does not begin: %.100s", text);
        pass_us(between(10 * MS, 500 * MS));
        if (play_is_told_to_stop(proc))
            return NULL;
    }
    sim_procs[proc].no_memory = play_calm ? 0 : w.no_memory;
    for (int i = 0; i < calls->n; i++)
        if (pthread_create(&calls->thread[i], NULL, caller_main, calls) != 0)
            violate("no thread");
    for (int i = 0; i < calls->n; i++)
        pthread_join(calls->thread[i], NULL);
    (void)hapax_close(calls->h, 1000);
    return NULL;
}

/* ---- ops --------------------------------------------------------------------------------- */

/* What one thread that sends ops knows of its claims. */
struct claims {
    struct hapax_token token[IDS];
    struct hapax_digest fingerprint;
};

static void draw_bytes(void *to, size_t size)
{
    uint8_t *at = to;

    for (size_t i = 0; i < size; i++)
        at[i] = (uint8_t)draw();
}

static struct hapax_outcome new_outcome(char body[32])
{
    snprintf(body, 32, "outcome %u", ++w.outcomes);
    return (struct hapax_outcome){.status = 200, .body_kept = true, .body = hapax_str(body)};
}

static void draw_resolve(struct hapax_op *op, char body[32])
{
    draw_bytes(&op->token, sizeof(op->token));
    op->resolve = (enum hapax_resolve)between(HAPAX_RESOLVE_COMPLETE, HAPAX_RESOLVE_FORGET);
    op->force = chance(500);
    op->by = hapax_str("sim");
    if (op->resolve != HAPAX_RESOLVE_FORGET)
        op->outcome = new_outcome(body);
}

static struct hapax_op draw_op(struct claims *claims, char body[32])
{
    int id = (int)between(0, IDS - 1);
    struct hapax_op op = {.id = w.ids[id]};

    draw_bytes(&op.fingerprint, sizeof(op.fingerprint)); /* that of a claim alone is looked at */
    switch (between(0, 9)) {
    case 0:
    case 1:
        draw_bytes(&claims->token[id], sizeof(claims->token[id]));
        /* fall through */
    case 2:
        op.kind = HAPAX_OP_CLAIM;
        op.fingerprint = claims->fingerprint;
        op.scope = hapax_str("ops");
        op.lease_ms = between(10, 2000);
        op.retention_ms = between(HAPAX_DURATION_MAX_MS / 2, HAPAX_DURATION_MAX_MS);
        op.on_expired = chance(500) ? HAPAX_EXPIRED_RERUN : HAPAX_EXPIRED_HOLD;
        break;
    case 3:
    case 4:
        op.kind = HAPAX_OP_COMPLETE;
        op.outcome = new_outcome(body);
        break;
    case 5:
        op.kind = HAPAX_OP_FAIL;
        op.ran = chance(500);
        op.as_unknown = chance(200);
        op.outcome = new_outcome(body);
        break;
    case 6:
        op.kind = HAPAX_OP_RENEW;
        op.lease_ms = between(10, 2000);
        break;
    case 7:
        op.kind = HAPAX_OP_RESOLVE;
        op.fingerprint = (struct hapax_digest){{0}};
        draw_resolve(&op, body);
        return op;
    default:
        op.kind = HAPAX_OP_READ;
        return op;
    }
    op.token = claims->token[id];
    return op;
}

/* A keeper that serves all the time, and nothing fails: who has it so, and of which life. */
static uint32_t serves(void)
{
    int proc = sim_disk_of();
    bool well = play_calm && !play_stopping && sim_now_us > CALM_US + CALM_WAIT_US;

    return well && proc >= 0 && w.served[proc] == sim_procs[proc].life && w.options.clients_max == 0
               ? sim_procs[proc].life
               : 0;
}

/* Where connections are cut, an op may be told that it was not sent, and a FORGET is not
 * repeated. */
static void check_served(const struct hapax_store *store, const struct hapax_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool forgets = ops[i].kind == HAPAX_OP_RESOLVE && ops[i].resolve == HAPAX_RESOLVE_FORGET;
        bool may = ops[i].error == HAPAX_ERR_UNAVAILABLE || forgets;

        if (ops[i].verdict == HAPAX_NO_VERDICT && !(w.cut_in_calm && may))
            violate("op %d is not answered though a keeper serves: %.80s", (int)ops[i].kind,
                    store ? hapax_store_text(store) : "its lane ends");
    }
}

static void run_ops(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct since since = since_now();
    uint32_t served = serves();

    (void)hapax_store_run(store, ops, n);
    if (served > 0 && served == serves())
        check_served(store, ops, n);
    check_time(&since, w.timeout_ms, "a batch");
    for (size_t i = 0; i < n; i++)
        if (ops[i].kind == HAPAX_OP_RESOLVE && ops[i].resolve == HAPAX_RESOLVE_FORGET &&
            ops[i].verdict == HAPAX_OK)
            mark(MARK_forgotten);
}

static void run_many(struct hapax_store *store)
{
    struct hapax_op *ops = calloc(LONG_BATCH, sizeof(*ops));

    if (!ops)
        return;
    mark(MARK_long_request);
    for (int i = 0; i < LONG_BATCH; i++) {
        ops[i].kind = HAPAX_OP_READ;
        ops[i].id = w.ids[i % IDS];
        draw_bytes(&ops[i].fingerprint, sizeof(ops[i].fingerprint));
    }
    run_ops(store, ops, LONG_BATCH);
    free(ops);
}

/* What a check tells. */
static void line(void *arg, bool danger, const char *text)
{
    bool *open = arg;

    (void)danger;
    say("INFO %s", text);
    mark(MARK_informed);
    *open |= strstr(text, "is open to ") != NULL;
}

static void run_check(struct hapax_store *store)
{
    struct since since = since_now();
    uint32_t served = serves();
    bool open = false;
    enum hapax_error error = hapax_store_check(store, line, &open);

    check_time(&since, w.timeout_ms, "a check");
    if (error != HAPAX_ERR_NONE)
        say("INFO is not had: %s", hapax_store_text(store));
    if (served == 0 || served != serves())
        return;
    if (error != HAPAX_ERR_NONE && !w.cut_in_calm)
        violate("a check fails though a keeper serves: %.80s", hapax_store_text(store));
    if (error == HAPAX_ERR_NONE && open != ((w.options.mode & 022) != 0))
        violate("the socket's mode is %o, and a check says %s", w.options.mode,
                open ? "that others may connect" : "nothing");
}

static void run_some(struct hapax_store *store, struct claims *claims)
{
    struct hapax_op ops[BATCH];
    char bodies[BATCH][32];
    size_t n = chance(300) ? 1 : (size_t)between(1, BATCH);

    if (chance(5)) {
        run_many(store);
        return;
    }
    if (chance(50)) {
        run_check(store);
        return;
    }
    for (size_t i = 0; i < n; i++)
        ops[i] = draw_op(claims, bodies[i]);
    run_ops(store, ops, n);
}

struct lane_op {
    struct hapax__job job; /* first */
    bool busy;
    uint32_t served;
    struct since since;
    char body[32];
};

/* A job waits for those that its lane has begun, each for a timeout at most: for the requests under
 * way, and for those that wait for them. */
static void take_back(struct hapax__job *job, const struct hapax_store *store)
{
    while (job) {
        struct lane_op *one = (struct lane_op *)job;

        job = job->next;
        if (one->served > 0 && one->served == serves())
            check_served(store, &one->job.op, 1);
        check_time(&one->since, 3 * w.timeout_ms + LANE_MS, "an op of a lane");
        free(one->job.memory);
        one->busy = false;
    }
}

static void submit_some(struct hapax__lane *lane, struct lane_op *ops, struct claims *claims)
{
    struct hapax__job *first = NULL, *refused;

    for (int64_t i = 0, n = between(1, LANE_OPS); i < n; i++) {
        if (ops[i].busy)
            continue;
        memset(&ops[i], 0, sizeof(ops[i]));
        ops[i].job.op = draw_op(claims, ops[i].body);
        ops[i].busy = true;
        ops[i].served = serves();
        ops[i].since = since_now();
        ops[i].job.next = first;
        first = &ops[i].job;
    }
    if (!first)
        return;
    mark(MARK_lane);
    refused = hapax__lane_submit_all(lane, first);
    for (; refused; refused = refused->next)
        ((struct lane_op *)refused)->busy = false;
}

/* Sends ops by a lane, as those do that have many: several requests are under way at once. */
static void run_lane(struct hapax_store *store, struct claims *claims)
{
    struct lane_op *ops = calloc(LANE_OPS, sizeof(*ops));
    struct hapax__lane *lane;
    struct pollfd one;

    if (!ops || hapax__lane_open(&lane, store, LANE_OPS) != HAPAX_ERR_NONE) {
        free(ops);
        hapax_store_close(store);
        return;
    }
    for (int64_t i = between(1, 200); i > 0 && !play_is_told_to_stop(process_now()); i--) {
        submit_some(lane, ops, claims);
        if (chance(200)) { /* a request behind it, before the keeper reads either */
            pass_us(between(0, MS));
            submit_some(lane, ops, claims);
        }
        one = (struct pollfd){.fd = hapax__lane_fd(lane), .events = POLLIN};
        (void)poll(&one, 1, (int)between(0, 100));
        take_back(hapax__lane_reap(lane), store);
        pass_us(between(0, 50 * MS));
    }
    take_back(hapax__lane_close(lane), NULL);
    free(ops);
}

static void *ops_main(void *arg)
{
    struct claims claims;
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    int proc = process_now();
    enum hapax_error error;
    struct since since;

    (void)arg;
    draw_bytes(&claims, sizeof(claims));
    while (!play_is_told_to_stop(proc)) {
        pass_us(between(0, 200 * MS));
        since = since_now();
        error = hapax_store_open(&store, w.uri, text);
        check_time(&since, hapax__least(OPEN_MS, w.timeout_ms), "an open");
        if (error != HAPAX_ERR_NONE) {
            pass_us(between(0, SECOND));
            continue;
        }
        if (chance(500)) {
            run_lane(store, &claims);
            continue;
        }
        for (int64_t i = between(1, 200); i > 0 && !play_is_told_to_stop(proc); i--) {
            pass_us(between(0, 100 * MS));
            run_some(store, &claims);
        }
        hapax_store_close(store);
    }
    return NULL;
}

/* ---- strangers --------------------------------------------------------------------------- */

/* Says a part of a greeting, or what is none. */
static void *stranger_main(void *arg)
{
    int64_t patience_ms = w.options.patience_ms > 0 ? w.options.patience_ms : 30000;
    int proc = process_now();

    (void)arg;
    while (!play_is_told_to_stop(proc)) {
        uint8_t says[16] = {11, 0, 0, 0, HAPAX__FRAME_HELLO};
        bool came;

        pass_us(between(0, 2 * SECOND));
        if (chance(200))
            draw_bytes(says, sizeof(says));
        if (play_stranger(&came, PATH, says,
                          (size_t)between(1, HAPAX__FRAME_HEAD + HAPAX__FRAME_HELLO_SIZE - 1),
                          patience_ms * MS))
            mark(MARK_stranger_hung_up);
        if (came)
            mark(MARK_stranger);
    }
    return NULL;
}

/* ---- processes --------------------------------------------------------------------------- */

static void keeper_main(int proc)
{
    struct hapax__keeper_server *server;
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    stops[proc].fd = eventfd(0, 0);
    while ((error = hapax_store_open(&store, "disk:", text)) != HAPAX_ERR_NONE &&
           !play_is_told_to_stop(proc)) {
        if (error == HAPAX_ERR_REFUSED)
            mark(MARK_second_keeper);
        pass_us(between(1 * MS, 100 * MS));
    }
    if (error == HAPAX_ERR_NONE) {
        error = hapax__keeper_serve(&server, store, &w.options, text);
        say("KEEPER %s", error == HAPAX_ERR_NONE ? "serves" : text);
        if (error == HAPAX_ERR_NONE) {
            w.served[proc] = sim_procs[proc].life;
            sim_procs[proc].no_memory = play_calm ? 0 : w.no_memory;
            play_wait_for_stop(proc);
            hapax__keeper_stop(server);
        } else {
            if (error != HAPAX_ERR_NOMEM && error != HAPAX_ERR_UNAVAILABLE)
                violate("a keeper does not begin: %.100s", text);
            hapax_store_close(store);
        }
    }
    close(stops[proc].fd);
}

static void client_main(int proc)
{
    void *(*const mains[])(void *) = {calls_main, ops_main, ops_main, stranger_main};
    struct calls calls = {.n = (int)between(1, CALLERS)};
    pthread_t thread[4];
    bool begun[4];

    stops[proc].fd = eventfd(0, 0);
    for (int i = 0; i < 4; i++) {
        begun[i] = i == 0 || chance(300);
        if (begun[i] && pthread_create(&thread[i], NULL, mains[i], &calls) != 0)
            violate("no thread");
    }
    for (int i = 0; i < 4; i++)
        if (begun[i])
            pthread_join(thread[i], NULL);
    close(stops[proc].fd);
}

static bool is_keeper(int proc)
{
    return proc < w.keepers_count;
}

static void begin(int proc)
{
    process_begin(proc, is_keeper(proc) ? keeper_main : client_main);
}

static void over(int proc, bool killed)
{
    effects_over(proc, killed);
    for (int i = 0; i < w.puts_most; i++)
        if (w.puts[i].proc == proc)
            w.puts[i].asking = NULL;
    if (killed) {
        mark(MARK_killed);
        if (is_keeper(proc) && sim_disk_of() == proc) {
            mark(MARK_keeper_killed);
            if (sim_disk_dead(chance(w.powers)) > 0)
                mark(MARK_power_lost);
        }
    }
    play_over(proc);
}

/* ---- the world --------------------------------------------------------------------------- */

static void happens(int proc)
{
    play_kill(proc, w.kills);
    if (sim_disk_waits() && sim_disk_of() >= 0 && chance(w.powers))
        process_kill(sim_disk_of()); /* by chance alone power is rarely cut just then */
    if (chance(w.stops) && sim_procs[proc].alive) {
        mark(MARK_stopped);
        process_stop(proc, between(10 * MS, 4 * w.policy.lease_ms * MS));
    }
    if (chance(w.ends) && play_stop(proc))
        mark(MARK_told_to_stop);
    for (int i = 0; i < 4 && chance(w.cuts); i++)
        sockets_cut((int)between(0, w.play.procs_count - 1));
    if (chance(w.jumps))
        sim_store.jump_us += between(0, 2 * w.policy.lease_ms * MS);
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
    marks[MARK_sync_failed] += sim_store.syncs_failed;
    sim_sockets.interrupted = sim_sockets.in_part = sim_sockets.backlog_full =
        sim_sockets.no_descriptor = 0;
    sim_store.refused = sim_store.reply_lost = sim_store.sync_failed = sim_store.sync_slow =
        sim_store.judge_slow = 0;
}

static bool is_over(void)
{
    for (int i = 0; i < effects.keys_count; i++)
        if (!w.ended[i])
            return false;
    return sim_now_us >= CALM_US + CALM_LEAST_US;
}

static void not_over(void)
{
    for (int i = 0; i < effects.keys_count; i++)
        if (!w.ended[i])
            violate("key %d is not at its end %lld s after the faults", i,
                    (long long)(REST_US / SECOND));
}

static void cutter(void *arg)
{
    (void)arg;
    while (!play_stopping) {
        pass_us(between(50 * MS, 600 * MS));
        if (play_calm)
            sockets_cut((int)between(w.keepers_count, w.play.procs_count - 1));
    }
}

static void draw_faults(void)
{
    bool all = chance(200);

    w.no_memory = chance(150) ? (unsigned)between(1, 30) : 0;
    w.kills = play_rate(all, 300);
    w.stops = play_rate(all, 150);
    w.ends = play_rate(all, 60);
    w.cuts = play_rate(all, 500);
    w.slow = play_rate(all, 400);
    w.ignores = play_rate(all, 1000);
    w.hook_unsure = play_rate(all, 500);
    w.jumps = play_rate(all, 100);
    w.powers = play_rate(all, 1000);
    sockets_draw(all);
    sim_sockets.room = chance(500) ? (size_t)between(16, 2000) : 0;
    sim_store.refused = play_rate(all, 50);
    sim_store.reply_lost = play_rate(all, 50);
    sim_store.sync_failed = play_rate(all, 100);
    sim_store.sync_slow = play_rate(all, 10);
    sim_store.judge_slow = play_rate(all, 20);
    sim_store.drift = (int)between(-8, 8);
}

static void draw_world(void)
{
    static const unsigned modes[] = {0, 0600, 0660, 0666};

    memset(&w, 0, sizeof(w));
    w.keepers_count = (int)between(1, KEEPERS);
    w.play = (struct play){.procs_count = w.keepers_count + (int)between(1, PROCS - KEEPERS),
                           .calm_us = CALM_US,
                           .rest_us = REST_US,
                           .drain_us = DRAIN_US,
                           .begin = begin,
                           .happens = happens,
                           .calm = calm,
                           .is_over = is_over,
                           .not_over = not_over};
    play_policy(&w.policy);
    draw_faults();
    effects_draw(&w.policy, (int)between(1, KEYS), "Q");
    for (int i = 0; i < effects.keys_count; i++)
        effects.keys[i].refuses = false; /* only messages are */
    w.timeout_ms = chance(300) ? between(200, 1000) : between(1000, 10000);
    snprintf(w.uri, sizeof(w.uri), "unix:" PATH "?timeout=%lldms", (long long)w.timeout_ms);
    w.options =
        (struct hapax__keeper_options){.path = PATH,
                                       .mode = modes[between(0, 3)],
                                       .clients_max = chance(200) ? (uint32_t)between(2, 6) : 0,
                                       .patience_ms = chance(300) ? between(200, 2000) : 0};
    w.cut_in_calm = chance(300);
    draw_bytes(w.ids, sizeof(w.ids));
}

static void schedule(uint64_t seed)
{
    threads_reset(seed);
    sim_store_reset();
    draw_world();
    process_over = over;
    sim_store_judged = judged;
    sim_disk_lost = lost;
    if (w.cut_in_calm)
        world_thread(cutter, NULL);
    play_run(&w.play);
    marks[MARK_second_effect] += effects.again;
    for (int p = 0; p < w.keepers_count; p++)
        marks[MARK_requests_at_once] += sim_sockets.joined[p];
}

int main(int argc, char **argv)
{
    return seeds_main(argc, argv, schedule, marks, mark_names, MARKS_COUNT);
}
