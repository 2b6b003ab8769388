/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds of hints over the nodes of a Redlock. A lookup asks all nodes at the same time. What
 * follows from PostgreSQL's answers is sent to the nodes, and nobody waits for it.
 *
 * The invariant: a lock turns a claim away only where a majority of all nodes has the lock. So of
 * many claims at once at least one goes on to PostgreSQL, however their locks are scattered. A copy
 * says itself whether it may be believed, so one node is enough. A bare lock that a lookup left is
 * refreshed afterwards, on nodes that did not answer too.
 *
 * A lookup that takes locks is one SET … NX GET per id; a lookup that takes none is one MGET; the
 * copy of a completion is one SET. A script costs a node three times as much. Scripts are for what
 * a command cannot do: compare ranks, and bound the answer of a lookup that meets large copies.
 * Rejected: taking these locks by hapax__redlock_take(), which spends a whole round trip on
 * releasing locks that did not reach a majority, and whose time nothing here depends on.
 */
#include "hybrid.h"

#include "base/span.h"

#include <assert.h>
#include <string.h>

#define NODES_MAX     HAPAX__REDLOCK_NODES_MAX
#define PATIENCE_US   INT64_C(50000) /* of a lookup; a node that hangs is left out for a second */
#define BARE_MIN_MS   100 /* in Redis: for as long as PostgreSQL may take to judge */
#define SENT_BYTES    ((size_t)4 << 20) /* of values sent at once; the rest is dropped */
#define LARGE_BYTES   ((size_t)1 << 20) /* of the values in a node's answer */
#define LARGE_LOOKUPS 256u /* so many lookups after that are bounded */
#define LOOKUP_ARGS   7u
#define COPY_ARGS     5u
#define HINT          "hint:"
#define NUMBER_SIZE   20u /* digits */

extern const char hapax__hybrid_lookup_lua[], hapax__hybrid_refresh_lua[]; /* lua/ */

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

/* ptr NULL: out of memory. (Called twice per op: printf would take a tenth of the time.) */
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

/* ---- lookups ------------------------------------------------------------------------- */

/* What a lookup sends for each id: its key, a lock and the lock's time. */
struct sent {
    struct hapax_span key, bare, ttl_ms;
};

static bool prepare(struct sent *out, struct hapax_arena *arena, struct hapax_span prefix,
                    struct hapax__lookup *lookup, int64_t now_us, bool take)
{
    int64_t lease_ms = lookup->op->lease_ms;

    out->key = key_of(arena, prefix, &lookup->op->id);
    if (!out->key.ptr || !take)
        return out->key.ptr != NULL;
    lease_ms = lease_ms < HAPAX__HINT_BARE_MS ? lease_ms : HAPAX__HINT_BARE_MS;
    lookup->until_us = now_us + lease_ms * 1000;
    out->bare = hapax__hint_bare(arena, lookup->op, &lookup->mark, lookup->until_us);
    out->ttl_ms = number_of(arena, lease_ms > BARE_MIN_MS ? lease_ms : BARE_MIN_MS);
    return out->bare.ptr && out->ttl_ms.ptr;
}

/* Takes locks, with one bounded command for all. */
static bool lookup_by_script(struct hapax__redlock_call *call, struct hapax_arena *arena,
                             const struct sent *sent, size_t n)
{
    struct hapax_span *args = begin_script(arena, hapax__hybrid_lookup_lua, n);

    if (!args)
        return false;
    for (size_t i = 0; i < n; i++) {
        args[3 + i] = sent[i].key;
        args[3 + n + 2 * i] = sent[i].bare;
        args[3 + n + 2 * i + 1] = sent[i].ttl_ms;
    }
    *call = (struct hapax__redlock_call){args, 3 + 3 * n};
    return true;
}

/* Takes no locks, with one command for all. */
static bool lookup_only(struct hapax__redlock_call *call, struct hapax_arena *arena,
                        const struct sent *sent, size_t n)
{
    struct hapax_span *args = hapax__arena_alloc(arena, (1 + n) * sizeof(*args));

    if (!args)
        return false;
    args[0] = hapax_str("MGET");
    for (size_t i = 0; i < n; i++)
        args[1 + i] = sent[i].key;
    *call = (struct hapax__redlock_call){args, 1 + n};
    return true;
}

/* Takes locks, with a command for each. */
static bool lookup_each(struct hapax__redlock_call *calls, struct hapax_arena *arena,
                        const struct sent *sent, size_t n)
{
    struct hapax_span *args = hapax__arena_alloc(arena, n * LOOKUP_ARGS * sizeof(*args));

    if (!args)
        return false;
    for (size_t i = 0; i < n; i++, args += LOOKUP_ARGS) {
        args[0] = hapax_str("SET");
        args[1] = sent[i].key;
        args[2] = sent[i].bare;
        args[3] = hapax_str("NX");
        args[4] = hapax_str("GET");
        args[5] = hapax_str("PX");
        args[6] = sent[i].ttl_ms;
        calls[i] = (struct hapax__redlock_call){args, LOOKUP_ARGS};
    }
    return true;
}

/* The nodes' replies. */
struct replies {
    struct hapax__resp *of[NODES_MAX * HAPAX__HYBRID_BATCH_MAX];
    size_t n; /* lookups */
    bool take; /* free locks were taken */
    bool each; /* a reply for each lookup; false: one for all of them */
};

/* The reply of node j to lookup i; NULL: none. */
static const struct hapax__resp *reply_of(const struct replies *replies, size_t j, size_t i)
{
    const struct hapax__resp *reply;

    if (replies->each)
        return replies->of[j * replies->n + i];
    reply = replies->of[j];
    if (!reply || reply->type != HAPAX__RESP_ARRAY || reply->elements != replies->n)
        return NULL;
    return reply->element[i];
}

static void keep_copy(struct hapax__lookup *lookup, const struct hapax__hint *hint)
{
    const struct hapax__hint *best = &lookup->copy;

    if (!lookup->copied || hint->record.fence > best->record.fence ||
        (hint->record.fence == best->record.fence && hint->epoch > best->epoch))
        lookup->copy = *hint;
    lookup->copied = true;
}

static bool fuller(const struct hapax__hint *a, const struct hapax__hint *b)
{
    return a->kind != b->kind ? a->kind > b->kind
                              : a->record.lease_until_us > b->record.lease_until_us;
}

/* Keeps the fullest lock of the mark that a majority of the nodes has, if there is such a mark. */
static void keep_lock(struct hapax__lookup *lookup, const struct hapax__hint *locks, size_t count,
                      size_t majority)
{
    for (size_t i = 0; i < count && !lookup->locked; i++) {
        size_t votes = 0;

        lookup->lock = locks[i];
        for (size_t j = 0; j < count; j++) {
            if (memcmp(&locks[j].mark, &locks[i].mark, sizeof(locks[i].mark)) != 0)
                continue;
            votes++;
            if (fuller(&locks[j], &lookup->lock))
                lookup->lock = locks[j];
        }
        lookup->locked = votes >= majority;
    }
}

/* Whether a lock was taken: the script answers 1, SET answers nil. */
static bool took(const struct replies *replies, const struct hapax__resp *reply)
{
    return replies->take && reply &&
           (replies->each ? reply->type == HAPAX__RESP_NIL
                          : reply->type == HAPAX__RESP_INTEGER && reply->integer == 1);
}

static void judge_lookup(struct hapax__lookup *lookup, const struct replies *replies, size_t nodes,
                         size_t i, const struct hapax_digest *key)
{
    struct hapax__hint locks[NODES_MAX];
    size_t count = 0, taken = 0;

    for (size_t j = 0; j < nodes; j++) {
        const struct hapax__resp *reply = reply_of(replies, j, i);
        struct hapax__hint hint;

        taken += took(replies, reply);
        if (!reply || reply->type != HAPAX__RESP_STRING) {
            lookup->placed = lookup->placed || replies->take;
            continue;
        }
        if (!hapax__hint_read(&hint, &lookup->op->id,
                              (struct hapax_span){(const uint8_t *)reply->str, reply->len}, key))
            continue;
        if (hint.kind == HAPAX__HINT_COPY) {
            keep_copy(lookup, &hint);
        } else if (memcmp(&hint.mark, &lookup->mark, sizeof(hint.mark)) == 0) {
            lookup->placed = true;
            taken++;
            if (hint.record.lease_until_us > lookup->until_us)
                lookup->until_us = hint.record.lease_until_us;
        } else {
            locks[count++] = hint;
        }
    }
    lookup->taken = taken >= hapax__redlock_majority(nodes);
    keep_lock(lookup, locks, count, hapax__redlock_majority(nodes));
}

/* The bytes of values in the longest answer of a node. */
static size_t bytes_of(const struct replies *replies, size_t nodes)
{
    size_t most = 0;

    for (size_t j = 0; j < nodes; j++) {
        size_t bytes = 0;

        for (size_t i = 0; i < replies->n; i++) {
            const struct hapax__resp *reply = reply_of(replies, j, i);

            bytes += reply && reply->type == HAPAX__RESP_STRING ? reply->len : 0;
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

bool hapax__hints_lookup(struct hapax__redlock *lock, struct hapax_arena *arena,
                         struct hapax__lookup *lookups, size_t n, int64_t now_us, bool take,
                         unsigned *large, const struct hapax_digest *key)
{
    struct hapax_span prefix = hapax__redlock_prefix(lock);
    size_t nodes = hapax__redlock_nodes(lock);
    struct hapax__redlock_call calls[HAPAX__HYBRID_BATCH_MAX];
    struct sent sent[HAPAX__HYBRID_BATCH_MAX];
    struct replies replies = {.n = n, .take = take || *large > 0, .each = take && *large == 0};
    char text[HAPAX_TEXT_MAX];
    bool made;

    assert(n > 0 && n <= HAPAX__HYBRID_BATCH_MAX && nodes <= NODES_MAX);
    for (size_t i = 0; i < n; i++)
        if (!prepare(&sent[i], arena, prefix, &lookups[i], now_us, replies.take))
            return false;
    made = replies.each   ? lookup_each(calls, arena, sent, n)
           : replies.take ? lookup_by_script(calls, arena, sent, n)
                          : lookup_only(calls, arena, sent, n);
    if (!made)
        return false;
    (void)hapax__redlock_ask(lock, calls, replies.each ? n : 1, PATIENCE_US, replies.of, text);
    for (size_t i = 0; i < n; i++)
        judge_lookup(&lookups[i], &replies, nodes, i, key);
    if (bytes_of(&replies, nodes) > LARGE_BYTES)
        *large = LARGE_LOOKUPS;
    else if (*large > 0)
        --*large;
    return true;
}

/* ---- refreshing ---------------------------------------------------------------------- */

/* A SET that replaces anything. False: out of memory. */
static bool send_copy(struct hapax__redlock_call *call, struct hapax_arena *arena,
                      struct hapax_span prefix, const struct hapax__refresh *refresh)
{
    struct hapax_span *args = hapax__arena_alloc(arena, COPY_ARGS * sizeof(*args));

    if (!args)
        return false;
    args[0] = hapax_str("SET");
    args[1] = key_of(arena, prefix, refresh->id);
    args[2] = refresh->value;
    args[3] = hapax_str("PX");
    args[4] = number_of(arena, refresh->ttl_ms);
    *call = (struct hapax__redlock_call){args, COPY_ARGS};
    return args[1].ptr && args[4].ptr;
}

/* One command for the other refreshes. False: out of memory. */
static bool send_rest(struct hapax__redlock_call *call, struct hapax_arena *arena,
                      struct hapax_span prefix, const struct hapax__refresh *const *rest, size_t n)
{
    struct hapax_span *args = begin_script(arena, hapax__hybrid_refresh_lua, n), *words;

    if (!args)
        return false;
    words = args + 3 + n;
    for (size_t i = 0; i < n; i++, words += 2) {
        const struct hapax__refresh *refresh = rest[i];
        bool put = refresh->what == HAPAX__REFRESH_PUT;

        args[3 + i] = key_of(arena, prefix, refresh->id);
        words[0] = put ? number_of(arena, refresh->ttl_ms)
                       : hapax_str(refresh->what == HAPAX__REFRESH_FORGET ? "forget" : "drop");
        words[1] = put ? refresh->value
                       : (struct hapax_span){refresh->mark->bytes, sizeof(refresh->mark->bytes)};
        if (!args[3 + i].ptr || !words[0].ptr)
            return false;
    }
    *call = (struct hapax__redlock_call){args, 3 + 3 * n};
    return true;
}

void hapax__hints_refresh(struct hapax__redlock *lock, struct hapax_arena *arena,
                          struct hapax__refresh *refreshes, size_t n)
{
    struct hapax_span prefix = hapax__redlock_prefix(lock);
    struct hapax__redlock_call calls[HAPAX__HYBRID_BATCH_MAX + 1];
    const struct hapax__refresh *rest[HAPAX__HYBRID_BATCH_MAX];
    size_t room = SENT_BYTES, count = 0, more = 0;

    assert(n <= HAPAX__HYBRID_BATCH_MAX);
    for (size_t i = 0; i < n; i++) {
        struct hapax__refresh *refresh = &refreshes[i];

        if (refresh->value.len > room)
            *refresh = (struct hapax__refresh){
                .what = HAPAX__REFRESH_DROP, .id = refresh->id, .mark = refresh->mark};
        room -= refresh->value.len;
        if (refresh->what != HAPAX__REFRESH_COPY)
            rest[more++] = refresh;
        else if (!send_copy(&calls[count++], arena, prefix, refresh))
            return;
    }
    if (more > 0 && !send_rest(&calls[count++], arena, prefix, rest, more))
        return;
    if (count > 0)
        hapax__redlock_tell(lock, calls, count, PATIENCE_US);
}
