/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds of hints over the nodes of a Redlock. A look is one script on all nodes at the same time; what follows from
 * PostgreSQL's answers is told to them, and nobody waits for it.
 *
 * The invariant: a claim is turned away by a lock only where a majority of all nodes has it, so that of many who ask at
 * once at least one goes on to PostgreSQL, however their locks are scattered. A copy says itself whether it may be
 * believed, so one node is enough. Whatever was looked at and stands as a bare lock is settled afterwards, on
 * nodes that did not answer too. Rejected: taking these locks by hapax__redlock_take(), which gives up a
 * whole round trip to release what did not reach a majority, and whose time nothing here depends on.
 */
#include "hybrid.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NODES_MAX   9u
#define PATIENCE_US INT64_C(50000) /* of a look; a node that hangs is then left out for a second */
#define BARE_MIN_MS 100 /* in Redis: for as long as PostgreSQL may take to judge */
#define TOLD_BYTES  ((size_t)4 << 20) /* of values told at once; the rest is dropped */
#define HINT        "hint:"
#define NUMBER_SIZE 21u

extern const char hapax__hybrid_look_lua[], hapax__hybrid_settle_lua[]; /* lua/ */

/* A script call in the making. */
struct call {
    struct hapax_span *args;
    size_t argc;
    char (*numbers)[NUMBER_SIZE]; /* a number of each key; the first: how many keys */
};

static bool begin_call(struct call *call, struct hapax_arena *arena, const char *script, size_t n)
{
    call->args = hapax__arena_alloc(arena, (3 + 3 * n) * sizeof(*call->args));
    call->numbers = hapax__arena_alloc(arena, (n + 1) * sizeof(*call->numbers));
    if (!call->args || !call->numbers)
        return false;
    (void)snprintf(call->numbers[0], NUMBER_SIZE, "%zu", n);
    call->args[0] = hapax_str("EVAL");
    call->args[1] = hapax_str(script);
    call->args[2] = hapax_str(call->numbers[0]);
    call->argc = 3;
    return true;
}

static void add(struct call *call, struct hapax_span span)
{
    call->args[call->argc++] = span;
}

static struct hapax_span number(struct call *call, size_t i, int64_t value)
{
    (void)snprintf(call->numbers[i + 1], NUMBER_SIZE, "%" PRId64, value);
    return hapax_str(call->numbers[i + 1]);
}

/* PREFIX, "hint:" and the id in hex. False: out of memory. */
static bool add_key(struct call *call, struct hapax_arena *arena, struct hapax_span prefix,
                    const struct hapax_id *id)
{
    static const char digits[] = "0123456789abcdef";
    size_t head = prefix.len + strlen(HINT), size = head + 2 * sizeof(id->bytes);
    uint8_t *key = hapax__arena_alloc(arena, size);

    if (!key)
        return false;
    if (prefix.len > 0)
        memcpy(key, prefix.ptr, prefix.len);
    memcpy(key + prefix.len, HINT, strlen(HINT));
    for (size_t i = 0; i < sizeof(id->bytes); i++) {
        key[head + 2 * i] = (uint8_t)digits[id->bytes[i] >> 4];
        key[head + 2 * i + 1] = (uint8_t)digits[id->bytes[i] & 15];
    }
    add(call, (struct hapax_span){key, size});
    return true;
}

/* ---- looking ------------------------------------------------------------------------- */

static bool make_look(struct call *call, struct hapax_arena *arena, struct hapax_span prefix,
                      struct hapax__look *looks, size_t n, int64_t now_us)
{
    if (!begin_call(call, arena, hapax__hybrid_look_lua, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!add_key(call, arena, prefix, &looks[i].op->id))
            return false;
    for (size_t i = 0; i < n; i++) {
        struct hapax__look *look = &looks[i];
        int64_t lease_ms = look->op->lease_ms;
        struct hapax_span bare;

        lease_ms = lease_ms < HAPAX__HINT_BARE_MS ? lease_ms : HAPAX__HINT_BARE_MS;
        look->until_us = now_us + lease_ms * 1000;
        bare = hapax__hint_bare(arena, look->op, &look->mark, look->until_us);
        if (!bare.ptr)
            return false;
        add(call, bare);
        add(call, number(call, i, lease_ms > BARE_MIN_MS ? lease_ms : BARE_MIN_MS));
    }
    return true;
}

/* What node j says of look i; NULL: nothing. */
static const redisReply *said_of(redisReply *const *replies, size_t j, size_t n, size_t i)
{
    const redisReply *reply = replies[j];

    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != n)
        return NULL;
    return reply->element[i];
}

static void keep_copy(struct hapax__look *look, const struct hapax__hint *hint)
{
    const struct hapax__hint *best = &look->copy;

    if (!look->copied || hint->record.fence > best->record.fence ||
        (hint->record.fence == best->record.fence && hint->epoch > best->epoch))
        look->copy = *hint;
    look->copied = true;
}

static bool fuller(const struct hapax__hint *a, const struct hapax__hint *b)
{
    return a->kind != b->kind ? a->kind > b->kind
                              : a->record.lease_until_us > b->record.lease_until_us;
}

/* The fullest of the locks of the one mark that a majority has. */
static void keep_lock(struct hapax__look *look, const struct hapax__hint *locks, size_t count,
                      size_t majority)
{
    for (size_t i = 0; i < count && !look->locked; i++) {
        size_t votes = 0;

        look->lock = locks[i];
        for (size_t j = 0; j < count; j++) {
            if (memcmp(&locks[j].mark, &locks[i].mark, sizeof(locks[i].mark)) != 0)
                continue;
            votes++;
            if (fuller(&locks[j], &look->lock))
                look->lock = locks[j];
        }
        look->locked = votes >= majority;
    }
}

static void judge_look(struct hapax__look *look, redisReply *const *replies, size_t nodes, size_t n,
                       size_t i)
{
    struct hapax__hint locks[NODES_MAX];
    size_t count = 0, taken = 0;

    for (size_t j = 0; j < nodes; j++) {
        const redisReply *said = said_of(replies, j, n, i);
        struct hapax__hint hint;

        taken += said && said->type == REDIS_REPLY_INTEGER;
        if (!said || said->type != REDIS_REPLY_STRING) {
            look->placed = true;
            continue;
        }
        if (!hapax__hint_read(&hint, &look->op->id,
                              (struct hapax_span){(const uint8_t *)said->str, said->len}))
            continue;
        if (hint.kind == HAPAX__HINT_COPY)
            keep_copy(look, &hint);
        else
            locks[count++] = hint;
    }
    look->taken = taken >= hapax__redlock_majority(nodes);
    keep_lock(look, locks, count, hapax__redlock_majority(nodes));
}

bool hapax__hints_look(struct hapax__redlock *lock, struct hapax_arena *arena,
                       struct hapax__look *looks, size_t n, int64_t now_us)
{
    size_t nodes = hapax__redlock_nodes(lock);
    redisReply *replies[NODES_MAX];
    char text[HAPAX_TEXT_MAX];
    struct call call;

    assert(n > 0 && n <= HAPAX__HYBRID_BATCH_MAX && nodes <= NODES_MAX);
    if (!make_look(&call, arena, hapax__redlock_prefix(lock), looks, n, now_us))
        return false;
    (void)hapax__redlock_ask(lock, call.args, call.argc, PATIENCE_US, replies, text);
    for (size_t i = 0; i < n; i++)
        judge_look(&looks[i], replies, nodes, n, i);
    return true;
}

/* ---- settling ------------------------------------------------------------------------ */

static void add_settling(struct call *call, const struct hapax__settling *settling, size_t i,
                         size_t *room)
{
    bool put = settling->what == HAPAX__SETTLE_PUT && settling->value.len <= *room;

    if (put) {
        *room -= settling->value.len;
        add(call, number(call, i, settling->ttl_ms));
        add(call, settling->value);
        return;
    }
    add(call, hapax_str(settling->what == HAPAX__SETTLE_FORGET ? "forget" : "drop"));
    add(call, (struct hapax_span){settling->mark->bytes, sizeof(settling->mark->bytes)});
}

void hapax__hints_settle(struct hapax__redlock *lock, struct hapax_arena *arena,
                         const struct hapax__settling *settlings, size_t n)
{
    struct hapax_span prefix = hapax__redlock_prefix(lock);
    size_t room = TOLD_BYTES;
    struct call call;

    if (n == 0 || !begin_call(&call, arena, hapax__hybrid_settle_lua, n))
        return;
    for (size_t i = 0; i < n; i++)
        if (!add_key(&call, arena, prefix, settlings[i].id))
            return;
    for (size_t i = 0; i < n; i++)
        add_settling(&call, &settlings[i], i, &room);
    hapax__redlock_tell(lock, call.args, call.argc, PATIENCE_US);
}
