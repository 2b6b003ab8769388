/* SPDX-License-Identifier: Apache-2.0
 *
 * Redlock over links of its own, one per node. A take connects where it must, notes the time, sends one
 * script to every node, and only then waits for the answers, so that N nodes cost one round trip.
 *
 * The invariant: a lock is `taken` only if a majority answered that it has this value, and its time left,
 * counted from before the first byte was sent and less the drift, is more than 0 when take returns.
 * Whatever may stand on a node and is not taken has a release sent after it, also to a node that said
 * nothing: its answer may only be late.
 *
 * A node that lets others wait is not asked again for a while, so that one that hangs costs its patience
 * once a second and not at each take. Rejected: a thread per node (the caller's is enough where
 * nobody waits before all is sent), and the routes of the Redis store, which wait for one node after
 * the other. A route only looks up whom the sentinels name.
 */
#include "redlock.h"

#include "base/arena.h"
#include "clock.h"
#include "redis_link.h"
#include "redis_route.h"
#include "types.h"

#include <assert.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX       9u
#define US_PER_MS       INT64_C(1000)
#define DRIFT_US        (2 * US_PER_MS)
#define PATIENCE_MIN_US (5 * US_PER_MS)
#define PATIENCE_MAX_US (200 * US_PER_MS)
#define GRACE_US        US_PER_MS /* to take up what has arrived while another node was waited for */
#define PAUSE_US        (1000 * US_PER_MS)
#define SENTINEL_MIN_MS 10
#define TOLD_MAX        4096u /* commands a node may be told without an answer */
#define NUMBER_SIZE     21u

extern const char hapax__redlock_lock[], hapax__redlock_unlock[]; /* lua/lock.lua, lua/unlock.lua */

struct node {
    struct hapax__redis_uri uri;
    struct hapax__redis_tls *tls;
    struct hapax__redis_link *link; /* NULL: not connected */
    int64_t pause_until_us; /* not asked before */
    bool waits; /* sent to, its reply is to come */
    size_t owed; /* replies that did not come in time, and are still to come on this link */
    size_t told; /* replies that nobody waits for, in front of the next one that somebody does */
    bool asked; /* the take under way may have reached it */
    redisReply *reply; /* of the last take, where it was one */
};

struct hapax__redlock {
    struct hapax_arena arena;
    size_t count;
    char why[HAPAX_TEXT_MAX]; /* what failed last, on any node */
    struct node nodes[NODES_MAX];
};

/* What one call sends, made before its first byte, so that no memory is asked for in between. */
struct batch {
    const struct hapax__redlock_item *items;
    size_t n;
    struct hapax_span *keys; /* of each item */
    char (*ttls)[NUMBER_SIZE]; /* of each item */
    char count[NUMBER_SIZE];
    struct hapax_span *args;
    size_t *chosen; /* the items that a release is for */
    bool *placed; /* per item: it may stand on a node, and no release was sent yet */
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

/* Well under the shortest time to live, so that a node that hangs does not use up the lock. */
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
    if (count == 0 || count > NODES_MAX || count % 2 == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "a lock takes an odd number of nodes, 1 to %u, and not %zu", NODES_MAX,
                           count);
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

static void drop_link(struct node *node)
{
    hapax__redis_link_close(node->link);
    node->link = NULL;
    node->owed = node->told = 0;
}

static void drop_reply(struct node *node)
{
    if (node->reply)
        freeReplyObject(node->reply);
    node->reply = NULL;
}

void hapax__redlock_close(struct hapax__redlock *lock)
{
    if (!lock)
        return;
    for (size_t i = 0; i < lock->count; i++) {
        drop_reply(&lock->nodes[i]);
        if (lock->nodes[i].link)
            drop_link(&lock->nodes[i]);
        if (lock->nodes[i].tls)
            hapax__redis_tls_close(lock->nodes[i].tls);
    }
    hapax__arena_release(&lock->arena);
    OPENSSL_cleanse(lock, sizeof(*lock)); /* the URIs hold passwords */
    free(lock);
}

/* ---- connections --------------------------------------------------------------------- */

/* From the name a route gives: "host:port", "[host]:port". */
static bool address_from(struct hapax__redis_address *out, const char *name)
{
    const char *colon = strrchr(name, ':');
    size_t len = colon ? (size_t)(colon - name) : 0;
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;

    if (len > 2 && name[0] == '[' && name[len - 1] == ']') {
        name++;
        len -= 2;
    }
    if (len == 0 || len >= sizeof(out->host) || port == 0 || port > UINT16_MAX)
        return false;
    memcpy(out->host, name, len);
    out->host[len] = '\0';
    out->port = (uint16_t)port;
    return true;
}

/* Whom the sentinels name now. A route is asked anew each time, for one that is kept believes in
 * the primary it knows until a call of its own fails. */
static bool find_primary(struct hapax__redis_address *out, const struct node *node,
                         int64_t patience_us, char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span ping = hapax_str("PING");
    struct hapax__redis_call call = {.args = &ping, .argc = 1};
    struct hapax__redis_uri uri = node->uri;
    struct hapax__redis_route *route;
    bool found;

    uri.timeout_ms = patience_us / US_PER_MS;
    if (uri.timeout_ms < SENTINEL_MIN_MS)
        uri.timeout_ms = SENTINEL_MIN_MS;
    if (hapax__redis_route_open(&route, &uri, text) != HAPAX_ERR_NONE)
        return false;
    found = hapax__redis_route_run(route, &call, 1, false, text) == HAPAX_ERR_NONE &&
            address_from(out, hapax__redis_route_name(route, 0));
    hapax__redis_route_close(route);
    return found;
}

/* It let us wait in vain: the next takes do without it. A node that refused at once costs nothing, and
 * may be back at once. */
static void blame(struct node *node, int64_t since_us, int64_t patience_us)
{
    int64_t now_us = hapax__monotonic_us();

    if (now_us - since_us >= patience_us / 2)
        node->pause_until_us = now_us + PAUSE_US;
}

static void connect_node(struct hapax__redlock *lock, struct node *node, int64_t patience_us)
{
    int64_t begin_us = hapax__monotonic_us();
    struct hapax__redis_address primary;
    const struct hapax__redis_address *address = &node->uri.hosts[0];

    if (node->uri.kind == HAPAX__REDIS_SENTINEL) {
        if (!find_primary(&primary, node, patience_us, lock->why)) {
            blame(node, begin_us, patience_us);
            return;
        }
        address = &primary;
    }
    if (hapax__redis_link_open(&node->link, address, &node->uri, &node->uri.login, node->uri.db,
                               node->tls, hapax__monotonic_us() + patience_us,
                               lock->why) != HAPAX_ERR_NONE) {
        node->link = NULL;
        blame(node, begin_us, patience_us);
    }
}

/* Drops what has come of replies that nobody waits for. */
static void collect_told(struct hapax__redlock *lock, struct node *node)
{
    redisReply *reply;
    bool refused = false;

    while (node->told > 0 && !refused && hapax__redis_link_ready(node->link, 0)) {
        if (hapax__redis_link_get(node->link, &reply, 0, lock->why) != HAPAX_ERR_NONE) {
            drop_link(node);
            return;
        }
        refused = reply->type == REDIS_REPLY_ERROR;
        freeReplyObject(reply);
        node->told--;
    }
    if (refused) /* what stands at its other end may have changed */
        drop_link(node);
}

/* Takes what has come too late. */
static void collect_owed(struct hapax__redlock *lock, struct node *node)
{
    redisReply *reply;

    while (node->owed > 0 && hapax__redis_link_ready(node->link, 0)) {
        if (hapax__redis_link_get(node->link, &reply, 0, lock->why) != HAPAX_ERR_NONE) {
            drop_link(node);
            return;
        }
        freeReplyObject(reply);
        node->owed--;
    }
    if (node->owed == 0)
        node->pause_until_us = 0;
}

static void connect_all(struct hapax__redlock *lock, int64_t patience_us)
{
    for (size_t i = 0; i < lock->count; i++) {
        struct node *node = &lock->nodes[i];

        if (node->owed > 0)
            collect_owed(lock, node);
        else if (node->told > 0)
            collect_told(lock, node);
        if (node->link && node->owed + node->told == 0 && hapax__redis_link_stale(node->link))
            drop_link(node);
        if ((node->link && node->owed == 0) || hapax__monotonic_us() < node->pause_until_us)
            continue;
        if (node->link)
            drop_link(node);
        connect_node(lock, node, patience_us);
    }
}

/* ---- one round over the nodes -------------------------------------------------------- */

static int64_t no_earlier(int64_t deadline_us)
{
    int64_t grace_us = hapax__monotonic_us() + GRACE_US;

    return deadline_us < grace_us ? grace_us : deadline_us;
}

static void send_to(struct hapax__redlock *lock, struct node *node, const struct hapax_span *args,
                    size_t argc, int64_t deadline_us)
{
    enum hapax_error error;

    if (!hapax__redis_link_put(node->link, args, argc)) {
        hapax__fail(lock->why, HAPAX_ERR_NOMEM, "out of memory for a command");
        drop_link(node);
        return;
    }
    error = hapax__redis_link_send(node->link, no_earlier(deadline_us), lock->why);
    node->waits = error == HAPAX_ERR_NONE;
    node->asked = node->asked || error != HAPAX_ERR_UNAVAILABLE;
    if (error != HAPAX_ERR_NONE)
        drop_link(node);
}

/* NULL: no reply in time, which may come yet; or an error, and then the link is gone, for what stands at its
 * other end may have changed. */
static redisReply *take_reply(struct hapax__redlock *lock, struct node *node, int64_t begin_us,
                              int64_t patience_us)
{
    redisReply *reply = NULL;

    node->waits = false;
    for (node->told++; node->told > 0; node->told--) {
        if (reply)
            freeReplyObject(reply);
        reply = NULL;
        if (!hapax__redis_link_ready(node->link, no_earlier(begin_us + patience_us))) {
            hapax__fail(lock->why, HAPAX_ERR_UNAVAILABLE, "node \"%s:%u\": no answer in time",
                        node->uri.hosts[0].host, node->uri.hosts[0].port);
            node->owed += node->told;
            node->told = 0;
            blame(node, begin_us, patience_us);
            return NULL;
        }
        if (hapax__redis_link_get(node->link, &reply, 0, lock->why) != HAPAX_ERR_NONE) {
            drop_link(node);
            return NULL;
        }
    }
    if (reply->type == REDIS_REPLY_ERROR) {
        hapax__fail(lock->why, HAPAX_ERR_UNAVAILABLE, "node \"%s:%u\": %.*s",
                    node->uri.hosts[0].host, node->uri.hosts[0].port, (int)reply->len, reply->str);
        freeReplyObject(reply);
        drop_link(node);
        return NULL;
    }
    return reply;
}

/* Whether it is an answer of lua/lock.lua to n locks. */
static bool is_answer(const redisReply *reply, size_t n)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (reply->element[i]->type != REDIS_REPLY_STRING &&
            !(reply->element[i]->type == REDIS_REPLY_INTEGER && reply->element[i]->integer == 1))
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

/* The script goes with each batch, and not by its name: a release must work at once on a node that has
 * forgotten it, and whose answer nobody waits for. */
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

/* The chosen ones, on each node that is connected. One that owes answers gets it too, behind what it
 * was asked before, and is not waited for. */
static void release_chosen(struct hapax__redlock *lock, struct batch *batch, size_t chosen)
{
    size_t argc = put_unlock(batch, chosen);
    int64_t begin_us = hapax__monotonic_us();

    for (size_t i = 0; i < lock->count; i++)
        if (lock->nodes[i].link)
            send_to(lock, &lock->nodes[i], batch->args, argc, begin_us + batch->patience_us);
    for (size_t i = 0; i < lock->count; i++) {
        struct node *node = &lock->nodes[i];
        redisReply *reply = NULL;

        if (node->waits && node->owed > 0) {
            node->waits = false;
            node->owed++;
        } else if (node->waits) {
            reply = take_reply(lock, node, begin_us, batch->patience_us);
        }
        if (reply)
            freeReplyObject(reply);
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
    connect_all(lock, batch.patience_us);
    release_chosen(lock, &batch, n);
}

/* ---- take ---------------------------------------------------------------------------- */

/* How many nodes answered. */
static size_t ask_all(struct hapax__redlock *lock, struct batch *batch)
{
    size_t argc = put_lock(batch), answered = 0;
    int64_t begin_us = hapax__monotonic_us();

    for (size_t i = 0; i < lock->count; i++)
        if (lock->nodes[i].link && lock->nodes[i].owed == 0)
            send_to(lock, &lock->nodes[i], batch->args, argc, begin_us + batch->patience_us);
    for (size_t i = 0; i < lock->count; i++) {
        struct node *node = &lock->nodes[i];

        if (!node->waits)
            continue;
        node->reply = take_reply(lock, node, begin_us, batch->patience_us);
        if (node->reply && !is_answer(node->reply, batch->n)) {
            hapax__fail(lock->why, HAPAX_ERR_UNAVAILABLE, "node \"%s:%u\": its reply is nonsense",
                        node->uri.hosts[0].host, node->uri.hosts[0].port);
            drop_reply(node);
            drop_link(node);
        }
        answered += node->reply ? 1 : 0;
    }
    return answered;
}

/* Sets what the nodes say of one lock. */
static void count_votes(const struct hapax__redlock *lock, struct batch *batch,
                        struct hapax__redlock_item *item, size_t i)
{
    size_t votes = 0;
    bool silent = false;

    for (size_t j = 0; j < lock->count; j++) {
        const struct node *node = &lock->nodes[j];
        const redisReply *said = node->reply ? node->reply->element[i] : NULL;

        silent = silent || (node->asked && !said);
        if (said && said->type == REDIS_REPLY_INTEGER)
            votes++;
        else if (said && !item->known) {
            item->known = true;
            item->other = (struct hapax_span){(const uint8_t *)said->str, (size_t)said->len};
        }
    }
    item->taken = votes >= hapax__redlock_majority(lock->count);
    batch->placed[i] = votes > 0 || silent;
}

/* Chooses what must be released: what may stand somewhere and is not taken, or not any more. */
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

/* A node that was asked and is not connected any more may yet carry out what was sent, or has: it is
 * connected again for the release, pause or not. */
static void reconnect_asked(struct hapax__redlock *lock, int64_t patience_us)
{
    for (size_t i = 0; i < lock->count; i++)
        if (lock->nodes[i].asked && !lock->nodes[i].link)
            connect_node(lock, &lock->nodes[i], patience_us);
}

static void forget_last(struct hapax__redlock *lock, struct hapax__redlock_item *items, size_t n)
{
    lock->why[0] = '\0';
    for (size_t i = 0; i < lock->count; i++) {
        drop_reply(&lock->nodes[i]);
        lock->nodes[i].asked = false;
    }
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
    connect_all(lock, batch.patience_us);
    begin_us = hapax__boot_us(); /* goes on while the machine sleeps, as the nodes' clocks do */
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
    /* A release takes time, in which others can run out. */
    while ((chosen = choose(&batch, items, hapax__boot_us() - begin_us)) > 0) {
        reconnect_asked(lock, batch.patience_us);
        release_chosen(lock, &batch, chosen);
    }
    return error;
}

/* ---- other commands ------------------------------------------------------------------ */

size_t hapax__redlock_nodes(const struct hapax__redlock *lock)
{
    return lock->count;
}

struct hapax_span hapax__redlock_prefix(const struct hapax__redlock *lock)
{
    return hapax_str(lock->nodes[0].uri.prefix);
}

size_t hapax__redlock_ask(struct hapax__redlock *lock, const struct hapax_span *args, size_t argc,
                          int64_t patience_us, redisReply **replies, char text[HAPAX_TEXT_MAX])
{
    size_t answered = 0;
    int64_t begin_us;

    assert(argc > 0 && patience_us > 0);
    forget_last(lock, NULL, 0);
    connect_all(lock, patience_us);
    begin_us = hapax__monotonic_us();
    for (size_t i = 0; i < lock->count; i++)
        if (lock->nodes[i].link && lock->nodes[i].owed == 0)
            send_to(lock, &lock->nodes[i], args, argc, begin_us + patience_us);
    for (size_t i = 0; i < lock->count; i++) {
        struct node *node = &lock->nodes[i];

        if (node->waits)
            node->reply = take_reply(lock, node, begin_us, patience_us);
        replies[i] = node->reply;
        answered += node->reply ? 1 : 0;
    }
    (void)hapax__fail(text, HAPAX_ERR_NONE, "%s", lock->why);
    return answered;
}

void hapax__redlock_tell(struct hapax__redlock *lock, const struct hapax_span *args, size_t argc,
                         int64_t patience_us)
{
    int64_t begin_us;

    assert(argc > 0 && patience_us > 0);
    connect_all(lock, patience_us);
    begin_us = hapax__monotonic_us();
    for (size_t i = 0; i < lock->count; i++) {
        struct node *node = &lock->nodes[i];

        if (node->link && node->owed + node->told >= TOLD_MAX)
            drop_link(node);
        if (!node->link)
            continue;
        send_to(lock, node, args, argc, begin_us + patience_us);
        if (!node->waits) {
            blame(node, begin_us, patience_us);
            continue;
        }
        node->waits = false;
        *(node->owed > 0 ? &node->owed : &node->told) += 1;
    }
}
