/* SPDX-License-Identifier: Apache-2.0
 *
 * Redlock. A take notes the time, sends one script to every node, and only then waits for the
 * answers.
 *
 * The invariant: a lock is `taken` only if a majority answered that it has this value, and if its
 * time left is above 0 when take returns. The time left is counted from before the first byte was
 * sent, less the drift. A lock that may stand on a node and is not taken is released there, also on
 * a node that did not answer: its answer may only be late. Rejected: leaving a lock without a
 * majority to run out, since the next take would wait for it.
 */
#include "redlock.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"

#include <assert.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#define DRIFT_US        (2 * US_PER_MS)
#define PATIENCE_MIN_US (5 * US_PER_MS)
#define PATIENCE_MAX_US (200 * US_PER_MS)
#define NUMBER_SIZE     21u

extern const char hapax__redlock_lock[], hapax__redlock_unlock[]; /* lua/lock.lua, lua/unlock.lua */

/* What one call sends. It is made before the first byte is sent, so that no memory is needed in
 * between. */
struct batch {
    const struct hapax__redlock_item *items;
    size_t n;
    struct hapax_span *keys; /* of each item */
    char (*ttls)[NUMBER_SIZE]; /* of each item */
    char count[NUMBER_SIZE];
    struct hapax_span *args;
    size_t *chosen; /* indexes of the items to release */
    bool *placed; /* of each item: it may stand on a node, and no release was sent yet */
    int64_t patience_us; /* for one answer */
};

/* ---- arithmetic ---------------------------------------------------------------------- */

int64_t hapax__redlock_valid_us(int64_t ttl_ms, int64_t elapsed_us)
{
    assert(ttl_ms > 0 && ttl_ms <= HAPAX_DURATION_MAX_MS);
    assert(elapsed_us >= 0);
    return ttl_ms * US_PER_MS - elapsed_us - (ttl_ms * US_PER_MS / 100 + DRIFT_US);
}

size_t hapax__redlock_majority(size_t nodes)
{
    assert(nodes > 0);
    return nodes / 2 + 1;
}

/* How long one answer is waited for: well under the shortest time to live, so that a node that
 * hangs does not use up the lock. */
static int64_t patience_of(const struct hapax__redlock_item *items, size_t n)
{
    int64_t least_us = PATIENCE_MAX_US;

    for (size_t i = 0; i < n; i++)
        if (items[i].ttl_ms * US_PER_MS / 10 < least_us)
            least_us = items[i].ttl_ms * US_PER_MS / 10;
    return least_us < PATIENCE_MIN_US ? PATIENCE_MIN_US : least_us;
}

/* ---- open, close --------------------------------------------------------------------- */

static bool same_place(const struct hapax__redis_uri *a, const struct hapax__redis_uri *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == HAPAX__REDIS_SENTINEL && strcmp(a->master, b->master) != 0)
        return false;
    return a->hosts[0].port == b->hosts[0].port && strcmp(a->hosts[0].host, b->hosts[0].host) == 0;
}

static enum hapax_error look_at(const struct hapax__redlock *lock, size_t i,
                                char text[HAPAX_TEXT_MAX])
{
    const struct hapax__redis_uri *uri = &lock->nodes[i].uri;

    if (uri->kind == HAPAX__REDIS_CLUSTER)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "node %zu of the lock is a cluster: each must be one Redis of its own",
                           i + 1);
    if (uri->wait > 0)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "node %zu of the lock has \"wait\": a lock waits for no replicas",
                           i + 1);
    for (size_t j = 0; j < i; j++) {
        if (same_place(&lock->nodes[j].uri, uri))
            return hapax__fail(text, HAPAX_ERR_INVALID,
                               "nodes %zu and %zu of the lock are the same", j + 1, i + 1);
        if (strcmp(lock->nodes[j].uri.prefix, uri->prefix) != 0)
            return hapax__fail(text, HAPAX_ERR_INVALID,
                               "nodes %zu and %zu of the lock differ in \"prefix\"", j + 1, i + 1);
    }
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__redlock_open(struct hapax__redlock **out, const char *const *uris,
                                     size_t count, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax__redlock *lock;

    *out = NULL;
    if (count == 0 || count > HAPAX__REDLOCK_NODES_MAX || count % 2 == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "a lock takes an odd number of nodes, 1 to %u, and not %zu",
                           HAPAX__REDLOCK_NODES_MAX, count);
    lock = calloc(1, sizeof(*lock));
    if (!lock)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open a lock: out of memory");
    for (size_t i = 0; i < count && error == HAPAX_ERR_NONE; i++) {
        error = hapax__redis_uri(&lock->nodes[i].uri, uris[i], text);
        if (error == HAPAX_ERR_NONE)
            error = look_at(lock, i, text);
        if (error == HAPAX_ERR_NONE)
            error = hapax__redis_tls_open(&lock->nodes[i].tls, &lock->nodes[i].uri, text);
        lock->count = i + 1;
    }
    if (error != HAPAX_ERR_NONE) {
        hapax__redlock_close(lock);
        return error;
    }
    *out = lock;
    return HAPAX_ERR_NONE;
}

void hapax__redlock_close(struct hapax__redlock *lock)
{
    if (!lock)
        return;
    for (size_t i = 0; i < lock->count; i++) {
        hapax__redlock_drop_replies(&lock->nodes[i]);
        if (lock->nodes[i].link)
            hapax__redlock_drop_link(&lock->nodes[i]);
        if (lock->nodes[i].tls)
            hapax__redis_tls_close(lock->nodes[i].tls);
    }
    hapax__arena_release(&lock->arena);
    OPENSSL_cleanse(lock, sizeof(*lock)); /* the URIs hold passwords */
    free(lock);
}

/* Whether the reply is an answer of lua/lock.lua to n locks. */
static bool is_answer(const struct hapax__resp *reply, size_t n)
{
    if (reply->type != HAPAX__RESP_ARRAY || reply->elements != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (reply->element[i]->type != HAPAX__RESP_STRING &&
            !(reply->element[i]->type == HAPAX__RESP_INTEGER && reply->element[i]->integer == 1))
            return false;
    return true;
}

/* ---- a batch ------------------------------------------------------------------------- */

static bool batch_keys(struct hapax__redlock *lock, struct batch *batch)
{
    struct hapax_span prefix = hapax_str(lock->nodes[0].uri.prefix);

    for (size_t i = 0; i < batch->n; i++) {
        struct hapax_span name = batch->items[i].name;
        uint8_t *key = hapax__arena_alloc(&lock->arena, prefix.len + name.len);

        if (!key)
            return false;
        if (prefix.len > 0)
            memcpy(key, prefix.ptr, prefix.len);
        memcpy(key + prefix.len, name.ptr, name.len);
        batch->keys[i] = (struct hapax_span){key, prefix.len + name.len};
        (void)snprintf(batch->ttls[i], NUMBER_SIZE, "%" PRId64, batch->items[i].ttl_ms);
    }
    return true;
}

/* False: out of memory. */
static bool batch_init(struct hapax__redlock *lock, struct batch *batch,
                       const struct hapax__redlock_item *items, size_t n)
{
    struct hapax_arena *arena = &lock->arena;

    assert(n > 0 && n <= HAPAX_BATCH_MAX);
    for (size_t i = 0; i < n; i++) {
        assert(items[i].name.len > 0 && items[i].name.len <= HAPAX__REDIS_NAME_MAX);
        assert(items[i].value.len > 0 && items[i].value.len <= HAPAX__REDIS_NAME_MAX);
        assert(items[i].ttl_ms > 0 && items[i].ttl_ms <= HAPAX_DURATION_MAX_MS);
    }
    hapax__arena_reset(arena);
    batch->items = items;
    batch->n = n;
    batch->keys = hapax__arena_alloc(arena, n * sizeof(*batch->keys));
    batch->ttls = hapax__arena_alloc(arena, n * sizeof(*batch->ttls));
    batch->args = hapax__arena_alloc(arena, (3 + 3 * n) * sizeof(*batch->args));
    batch->chosen = hapax__arena_alloc(arena, n * sizeof(*batch->chosen));
    batch->placed = hapax__arena_alloc(arena, n * sizeof(*batch->placed));
    batch->patience_us = patience_of(items, n);
    return batch->keys && batch->ttls && batch->args && batch->chosen && batch->placed &&
           batch_keys(lock, batch);
}

/* The text of the script goes with each batch, and not its name: a release must work at once on
 * a node that has forgotten the script, and nobody waits for its answer. */
static struct hapax_span *put_head(struct batch *batch, const char *script, size_t keys)
{
    (void)snprintf(batch->count, sizeof(batch->count), "%zu", keys);
    batch->args[0] = hapax_str("EVAL");
    batch->args[1] = hapax_str(script);
    batch->args[2] = hapax_str(batch->count);
    return batch->args + 3;
}

static size_t put_lock(struct batch *batch)
{
    struct hapax_span *at = put_head(batch, hapax__redlock_lock, batch->n);

    for (size_t i = 0; i < batch->n; i++)
        *at++ = batch->keys[i];
    for (size_t i = 0; i < batch->n; i++) {
        *at++ = batch->items[i].value;
        *at++ = hapax_str(batch->ttls[i]);
    }
    return (size_t)(at - batch->args);
}

static size_t put_unlock(struct batch *batch, size_t chosen)
{
    struct hapax_span *at = put_head(batch, hapax__redlock_unlock, chosen);

    for (size_t i = 0; i < chosen; i++)
        *at++ = batch->keys[batch->chosen[i]];
    for (size_t i = 0; i < chosen; i++)
        *at++ = batch->items[batch->chosen[i]].value;
    return (size_t)(at - batch->args);
}

/* ---- release ------------------------------------------------------------------------- */

/* Releases the chosen items on each node that has a link. A node that owes replies gets the
 * release, too, behind its earlier commands, and is not waited for. */
static void release_chosen(struct hapax__redlock *lock, struct batch *batch, size_t chosen)
{
    struct hapax__redlock_call call = {batch->args, put_unlock(batch, chosen)};
    int64_t begin_us = hapax__monotonic_us();

    for (size_t i = 0; i < lock->count; i++)
        if (lock->nodes[i].link)
            hapax__redlock_send(lock, &lock->nodes[i], &call, 1, begin_us + batch->patience_us);
    for (size_t i = 0; i < lock->count; i++) {
        struct hapax__redlock_node *node = &lock->nodes[i];
        struct hapax__resp *reply = NULL;

        if (node->waits > 0 && node->owed > 0) {
            node->owed += node->waits;
            node->waits = 0;
        } else if (node->waits > 0) {
            (void)hapax__redlock_receive(lock, node, &reply, begin_us, batch->patience_us);
        }
        if (reply)
            hapax__resp_free(reply);
    }
}

void hapax__redlock_release(struct hapax__redlock *lock, const struct hapax__redlock_item *items,
                            size_t n)
{
    struct batch batch;

    if (n == 0 || !batch_init(lock, &batch, items, n))
        return;
    for (size_t i = 0; i < n; i++)
        batch.chosen[i] = i;
    hapax__redlock_connect(lock, batch.patience_us);
    release_chosen(lock, &batch, n);
}

/* ---- take ---------------------------------------------------------------------------- */

/* Sends the locks to all nodes. Returns how many answered. */
static size_t ask_all(struct hapax__redlock *lock, struct batch *batch)
{
    struct hapax__redlock_call call = {batch->args, put_lock(batch)};
    int64_t begin_us = hapax__monotonic_us();
    size_t answered = 0;

    for (size_t i = 0; i < lock->count; i++)
        if (lock->nodes[i].link && lock->nodes[i].owed == 0)
            hapax__redlock_send(lock, &lock->nodes[i], &call, 1, begin_us + batch->patience_us);
    for (size_t i = 0; i < lock->count; i++) {
        struct hapax__redlock_node *node = &lock->nodes[i];
        struct hapax__resp *reply = NULL;

        if (node->waits == 0)
            continue;
        (void)hapax__redlock_receive(lock, node, &reply, begin_us, batch->patience_us);
        if (!reply)
            continue;
        node->replies[node->replied++] = reply;
        if (is_answer(reply, batch->n)) {
            answered++;
            continue;
        }
        hapax__fail(lock->why, HAPAX_ERR_UNAVAILABLE, "node \"%s:%u\": its reply is nonsense",
                    node->uri.hosts[0].host, node->uri.hosts[0].port);
        hapax__redlock_drop_replies(node);
        hapax__redlock_drop_link(node);
    }
    return answered;
}

/* Sets the answers of the nodes about one lock. */
static void count_votes(const struct hapax__redlock *lock, struct batch *batch,
                        struct hapax__redlock_item *item, size_t i)
{
    size_t votes = 0;
    bool silent = false;

    for (size_t j = 0; j < lock->count; j++) {
        const struct hapax__redlock_node *node = &lock->nodes[j];
        const struct hapax__resp *said = node->replied > 0 ? node->replies[0]->element[i] : NULL;

        silent = silent || (node->asked && !said);
        if (said && said->type == HAPAX__RESP_INTEGER)
            votes++;
        else if (said && !item->known) {
            item->known = true;
            item->other = (struct hapax_span){(const uint8_t *)said->str, (size_t)said->len};
        }
    }
    item->taken = votes >= hapax__redlock_majority(lock->count);
    batch->placed[i] = votes > 0 || silent;
}

/* Chooses the items to release: those that may stand on a node and are not taken, or not any
 * more. */
static size_t choose(struct batch *batch, struct hapax__redlock_item *items, int64_t elapsed_us)
{
    size_t chosen = 0;

    for (size_t i = 0; i < batch->n; i++) {
        int64_t valid_us = hapax__redlock_valid_us(items[i].ttl_ms, elapsed_us);

        items[i].taken = items[i].taken && valid_us >= US_PER_MS;
        items[i].valid_ms = items[i].taken ? valid_us / US_PER_MS : 0;
        if (!items[i].taken && batch->placed[i]) {
            batch->chosen[chosen++] = i;
            batch->placed[i] = false;
        }
    }
    return chosen;
}

/* Connects each node again that was asked and has no link: it may still carry out what was sent,
 * or has done so. A pause does not count here. */
static void reconnect_asked(struct hapax__redlock *lock, int64_t patience_us)
{
    for (size_t i = 0; i < lock->count; i++)
        if (lock->nodes[i].asked && !lock->nodes[i].link)
            hapax__redlock_connect_node(lock, &lock->nodes[i], hapax__monotonic_us() + patience_us,
                                        patience_us);
}

static void forget_last(struct hapax__redlock *lock, struct hapax__redlock_item *items, size_t n)
{
    hapax__redlock_forget(lock);
    for (size_t i = 0; i < n; i++) {
        items[i].taken = items[i].known = false;
        items[i].valid_ms = 0;
        items[i].other = (struct hapax_span){NULL, 0};
    }
}

enum hapax_error hapax__redlock_take(struct hapax__redlock *lock, struct hapax__redlock_item *items,
                                     size_t n, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_NONE;
    struct batch batch;
    size_t answered, chosen;
    int64_t begin_us;

    forget_last(lock, items, n);
    if (n == 0)
        return HAPAX_ERR_NONE;
    if (!batch_init(lock, &batch, items, n))
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot take locks: out of memory");
    hapax__redlock_connect(lock, batch.patience_us);
    /* this clock goes on while the machine sleeps, as those of the nodes do */
    begin_us = hapax__boot_us();
    answered = ask_all(lock, &batch);
    for (size_t i = 0; i < n; i++)
        count_votes(lock, &batch, &items[i], i);
    if (answered < hapax__redlock_majority(lock->count)) {
        error = hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                            "cannot take locks: %zu of %zu nodes answered: %s", answered,
                            lock->count, lock->why[0] ? lock->why : "the others are left alone");
        for (size_t i = 0; i < n; i++)
            items[i].taken = false;
    }
    /* A release takes time, in which other locks can run out. */
    while ((chosen = choose(&batch, items, hapax__boot_us() - begin_us)) > 0) {
        reconnect_asked(lock, batch.patience_us);
        release_chosen(lock, &batch, chosen);
    }
    return error;
}
