/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds of hints over the nodes of a Redlock. A look asks all nodes at the same time; what follows from
 * PostgreSQL's answers is told to them, and nobody waits for it.
 *
 * The invariant: a claim is turned away by a lock only where a majority of all nodes has it, so that of many who ask at
 * once at least one goes on to PostgreSQL, however their locks are scattered. A copy says itself whether it may be
 * believed, so one node is enough. Whatever was looked at and stands as a bare lock is settled afterwards, on
 * nodes that did not answer too.
 *
 * A look that takes locks is one SET … NX GET per id, one that does not is one MGET, and a completion's copy is one SET: a
 * script costs a node three times as much. Scripts are for what a command cannot do: compare ranks, and bound the
 * answer of a look that meets large copies.
 * Rejected: taking these locks by hapax__redlock_take(), which gives up a whole round trip to release what did not
 * reach a majority, and whose time nothing here depends on.
 */
#include "hybrid.h"

#include "base/span.h"

#include <assert.h>
#include <string.h>

#define NODES_MAX   HAPAX__REDLOCK_NODES_MAX
#define PATIENCE_US INT64_C(50000) /* of a look; a node that hangs is then left out for a second */
#define BARE_MIN_MS 100 /* in Redis: for as long as PostgreSQL may take to judge */
#define TOLD_BYTES  ((size_t)4 << 20) /* of values told at once; the rest is dropped */
#define LARGE_BYTES ((size_t)1 << 20) /* of the values a node answers at once */
#define LARGE_LOOKS 256u /* after so many bytes, by a script */
#define LOOK_ARGS   7u
#define COPY_ARGS   5u
#define HINT        "hint:"
#define NUMBER_SIZE 20u /* digits */

extern const char hapax__hybrid_look_lua[], hapax__hybrid_settle_lua[]; /* lua/ */

/* PREFIX, "hint:" and the id in hex. ptr NULL: out of memory. */
static struct hapax_span key_of(struct hapax_arena *arena, struct hapax_span prefix,
                                const struct hapax_id *id)
{
    size_t head = prefix.len + strlen(HINT), size = head + 2 * sizeof(id->bytes);
    uint8_t *key = hapax__arena_alloc(arena, size);

    if (!key)
        return (struct hapax_span){NULL, 0};
    if (prefix.len > 0)
        memcpy(key, prefix.ptr, prefix.len);
    memcpy(key + prefix.len, HINT, strlen(HINT));
    hapax__hex((char *)key + head, id->bytes, sizeof(id->bytes));
    return (struct hapax_span){key, size};
}

/* ptr NULL: out of memory. (Two for each operation: printf would be a tenth of what a handle does.) */
static struct hapax_span number_of(struct hapax_arena *arena, int64_t value)
{
    uint8_t *end = hapax__arena_alloc(arena, NUMBER_SIZE), *at;

    assert(value >= 0);
    if (!end)
        return (struct hapax_span){NULL, 0};
    end += NUMBER_SIZE;
    at = end;
    do {
        *--at = (uint8_t)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    return (struct hapax_span){at, (size_t)(end - at)};
}

/* EVAL, a script and how many keys, with room for 3 more of each. NULL: out of memory. */
static struct hapax_span *begin_script(struct hapax_arena *arena, const char *script, size_t n)
{
    struct hapax_span *args = hapax__arena_alloc(arena, (3 + 3 * n) * sizeof(*args));
    struct hapax_span count = number_of(arena, (int64_t)n);

    if (!args || !count.ptr)
        return NULL;
    args[0] = hapax_str("EVAL");
    args[1] = hapax_str(script);
    args[2] = count;
    return args;
}

/* ---- looking ------------------------------------------------------------------------- */

/* What a look brings: of each id its key, a lock and the lock's time. */
struct brought {
    struct hapax_span key, bare, ttl_ms;
};

static bool bring(struct brought *out, struct hapax_arena *arena, struct hapax_span prefix,
                  struct hapax__look *look, int64_t now_us, bool take)
{
    int64_t lease_ms = look->op->lease_ms;

    out->key = key_of(arena, prefix, &look->op->id);
    if (!out->key.ptr || !take)
        return out->key.ptr != NULL;
    lease_ms = lease_ms < HAPAX__HINT_BARE_MS ? lease_ms : HAPAX__HINT_BARE_MS;
    look->until_us = now_us + lease_ms * 1000;
    out->bare = hapax__hint_bare(arena, look->op, &look->mark, look->until_us);
    out->ttl_ms = number_of(arena, lease_ms > BARE_MIN_MS ? lease_ms : BARE_MIN_MS);
    return out->bare.ptr && out->ttl_ms.ptr;
}

/* One command for all; its answer is bounded. */
static bool look_by_script(struct hapax__redlock_call *call, struct hapax_arena *arena,
                           const struct brought *brought, size_t n)
{
    struct hapax_span *args = begin_script(arena, hapax__hybrid_look_lua, n);

    if (!args)
        return false;
    for (size_t i = 0; i < n; i++) {
        args[3 + i] = brought[i].key;
        args[3 + n + 2 * i] = brought[i].bare;
        args[3 + n + 2 * i + 1] = brought[i].ttl_ms;
    }
    *call = (struct hapax__redlock_call){args, 3 + 3 * n};
    return true;
}

/* One command for all; nothing is taken. */
static bool look_only(struct hapax__redlock_call *call, struct hapax_arena *arena,
                      const struct brought *brought, size_t n)
{
    struct hapax_span *args = hapax__arena_alloc(arena, (1 + n) * sizeof(*args));

    if (!args)
        return false;
    args[0] = hapax_str("MGET");
    for (size_t i = 0; i < n; i++)
        args[1 + i] = brought[i].key;
    *call = (struct hapax__redlock_call){args, 1 + n};
    return true;
}

/* A command for each. */
static bool look_one_by_one(struct hapax__redlock_call *calls, struct hapax_arena *arena,
                            const struct brought *brought, size_t n)
{
    struct hapax_span *args = hapax__arena_alloc(arena, n * LOOK_ARGS * sizeof(*args));

    if (!args)
        return false;
    for (size_t i = 0; i < n; i++, args += LOOK_ARGS) {
        args[0] = hapax_str("SET");
        args[1] = brought[i].key;
        args[2] = brought[i].bare;
        args[3] = hapax_str("NX");
        args[4] = hapax_str("GET");
        args[5] = hapax_str("PX");
        args[6] = brought[i].ttl_ms;
        calls[i] = (struct hapax__redlock_call){args, LOOK_ARGS};
    }
    return true;
}

/* What the nodes say. */
struct said {
    struct hapax__resp *replies[NODES_MAX * HAPAX__HYBRID_BATCH_MAX];
    size_t n; /* looks */
    bool take; /* locks that are free were taken */
    bool each; /* a reply for each look, and not one with all of them */
};

/* What node j says of look i; NULL: nothing. */
static const struct hapax__resp *said_of(const struct said *said, size_t j, size_t i)
{
    const struct hapax__resp *reply;

    if (said->each)
        return said->replies[j * said->n + i];
    reply = said->replies[j];
    if (!reply || reply->type != HAPAX__RESP_ARRAY || reply->elements != said->n)
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

/* A lock that was taken: 1 says the script, nil says SET. */
static bool took(const struct said *said, const struct hapax__resp *reply)
{
    return said->take && reply &&
           (said->each ? reply->type == HAPAX__RESP_NIL
                       : reply->type == HAPAX__RESP_INTEGER && reply->integer == 1);
}

static void judge_look(struct hapax__look *look, const struct said *said, size_t nodes, size_t i)
{
    struct hapax__hint locks[NODES_MAX];
    size_t count = 0, taken = 0;

    for (size_t j = 0; j < nodes; j++) {
        const struct hapax__resp *reply = said_of(said, j, i);
        struct hapax__hint hint;

        taken += took(said, reply);
        if (!reply || reply->type != HAPAX__RESP_STRING) {
            look->placed = look->placed || said->take;
            continue;
        }
        if (!hapax__hint_read(&hint, &look->op->id,
                              (struct hapax_span){(const uint8_t *)reply->str, reply->len}))
            continue;
        if (hint.kind == HAPAX__HINT_COPY) {
            keep_copy(look, &hint);
        } else if (memcmp(&hint.mark, &look->mark, sizeof(hint.mark)) == 0) {
            look->placed = true;
            taken++;
            if (hint.record.lease_until_us > look->until_us)
                look->until_us = hint.record.lease_until_us;
        } else {
            locks[count++] = hint;
        }
    }
    look->taken = taken >= hapax__redlock_majority(nodes);
    keep_lock(look, locks, count, hapax__redlock_majority(nodes));
}

/* Of the node that answers most. */
static size_t bytes_of(const struct said *said, size_t nodes)
{
    size_t most = 0;

    for (size_t j = 0; j < nodes; j++) {
        size_t bytes = 0;

        for (size_t i = 0; i < said->n; i++) {
            const struct hapax__resp *reply = said_of(said, j, i);

            bytes += reply && reply->type == HAPAX__RESP_STRING ? reply->len : 0;
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

bool hapax__hints_look(struct hapax__redlock *lock, struct hapax_arena *arena,
                       struct hapax__look *looks, size_t n, int64_t now_us, bool take,
                       unsigned *large)
{
    struct hapax_span prefix = hapax__redlock_prefix(lock);
    size_t nodes = hapax__redlock_nodes(lock);
    struct hapax__redlock_call calls[HAPAX__HYBRID_BATCH_MAX];
    struct brought brought[HAPAX__HYBRID_BATCH_MAX];
    struct said said = {.n = n, .take = take || *large > 0, .each = take && *large == 0};
    char text[HAPAX_TEXT_MAX];
    bool made;

    assert(n > 0 && n <= HAPAX__HYBRID_BATCH_MAX && nodes <= NODES_MAX);
    for (size_t i = 0; i < n; i++)
        if (!bring(&brought[i], arena, prefix, &looks[i], now_us, said.take))
            return false;
    made = said.each   ? look_one_by_one(calls, arena, brought, n)
           : said.take ? look_by_script(calls, arena, brought, n)
                       : look_only(calls, arena, brought, n);
    if (!made)
        return false;
    (void)hapax__redlock_ask(lock, calls, said.each ? n : 1, PATIENCE_US, said.replies, text);
    for (size_t i = 0; i < n; i++)
        judge_look(&looks[i], &said, nodes, i);
    if (bytes_of(&said, nodes) > LARGE_BYTES)
        *large = LARGE_LOOKS;
    else if (*large > 0)
        --*large;
    return true;
}

/* ---- settling ------------------------------------------------------------------------ */

/* SET, whatever stands there. False: out of memory. */
static bool tell_copy(struct hapax__redlock_call *call, struct hapax_arena *arena,
                      struct hapax_span prefix, const struct hapax__settling *settling)
{
    struct hapax_span *args = hapax__arena_alloc(arena, COPY_ARGS * sizeof(*args));

    if (!args)
        return false;
    args[0] = hapax_str("SET");
    args[1] = key_of(arena, prefix, settling->id);
    args[2] = settling->value;
    args[3] = hapax_str("PX");
    args[4] = number_of(arena, settling->ttl_ms);
    *call = (struct hapax__redlock_call){args, COPY_ARGS};
    return args[1].ptr && args[4].ptr;
}

/* One command for all of them. */
static bool tell_rest(struct hapax__redlock_call *call, struct hapax_arena *arena,
                      struct hapax_span prefix, const struct hapax__settling *const *rest, size_t n)
{
    struct hapax_span *args = begin_script(arena, hapax__hybrid_settle_lua, n), *words;

    if (!args)
        return false;
    words = args + 3 + n;
    for (size_t i = 0; i < n; i++, words += 2) {
        const struct hapax__settling *settling = rest[i];
        bool put = settling->what == HAPAX__SETTLE_PUT;

        args[3 + i] = key_of(arena, prefix, settling->id);
        words[0] = put ? number_of(arena, settling->ttl_ms)
                       : hapax_str(settling->what == HAPAX__SETTLE_FORGET ? "forget" : "drop");
        words[1] = put ? settling->value
                       : (struct hapax_span){settling->mark->bytes, sizeof(settling->mark->bytes)};
        if (!args[3 + i].ptr || !words[0].ptr)
            return false;
    }
    *call = (struct hapax__redlock_call){args, 3 + 3 * n};
    return true;
}

void hapax__hints_settle(struct hapax__redlock *lock, struct hapax_arena *arena,
                         struct hapax__settling *settlings, size_t n)
{
    struct hapax_span prefix = hapax__redlock_prefix(lock);
    struct hapax__redlock_call calls[HAPAX__HYBRID_BATCH_MAX + 1];
    const struct hapax__settling *rest[HAPAX__HYBRID_BATCH_MAX];
    size_t room = TOLD_BYTES, count = 0, more = 0;

    assert(n <= HAPAX__HYBRID_BATCH_MAX);
    for (size_t i = 0; i < n; i++) {
        struct hapax__settling *settling = &settlings[i];

        if (settling->value.len > room)
            *settling = (struct hapax__settling){
                .what = HAPAX__SETTLE_DROP, .id = settling->id, .mark = settling->mark};
        room -= settling->value.len;
        if (settling->what != HAPAX__SETTLE_COPY)
            rest[more++] = settling;
        else if (!tell_copy(&calls[count++], arena, prefix, settling))
            return;
    }
    if (more > 0 && !tell_rest(&calls[count++], arena, prefix, rest, more))
        return;
    if (count > 0)
        hapax__redlock_tell(lock, calls, count, PATIENCE_US);
}
