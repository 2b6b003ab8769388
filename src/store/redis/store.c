/* SPDX-License-Identifier: Apache-2.0
 *
 * The Redis store: a batch of ops becomes calls of lua/machine.lua, and their replies become
 * answers. There is one key per operation and one value per key. The script judges, and Redis
 * forgets what has expired.
 *
 * On one node a batch is one call; in a cluster each id has a call of its own, with all its ops.
 * Either way the ops on one id are judged in order. A batch goes out in rounds with two bounds: the
 * bytes of the requests here, and the bytes of the answers in the script, which leaves the ops that
 * do not fit to the next round. All rounds have one deadline and one bound for their answers: the
 * ops behind that bound were not judged, and are asked for again.
 *
 * The invariant: an op gets a verdict only from a reply that has it, and under `wait` only when the
 * replicas have the write. Otherwise the op is UNAVAILABLE where surely nothing was applied, and
 * INDETERMINATE where this is not sure. Rejected: one call per op on one node, which took the
 * server 1.4 to 2.2 times as long.
 */
#include "redis.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "store/types.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define REQUEST_MAX (4u << 20) /* bytes of one round; one op more may pass it */
#define RECORD_MAX  (17u << 20) /* more than any record has */
#define ANSWER_MAX  (256u << 20) /* bytes of a batch's answers; one round more may pass it */
#define NOBODY      UINT16_MAX

extern const char hapax__redis_machine_lua[]; /* lua/machine.lua */

/* ---- a round ------------------------------------------------------------------------- */

/* An op of the batch. */
struct item {
    struct hapax_op *op;
    size_t need; /* bytes of its record, if the op was not judged because of them */
    uint16_t next; /* in its call */
    bool maybe; /* a try may have been carried out, and its reply was lost */
    bool done;
};

struct group { /* the ops of one call */
    uint16_t first;
    uint16_t last;
    uint16_t count;
    struct hapax__redis_numbers numbers;
};

struct batch {
    struct hapax__redis *redis;
    struct item items[HAPAX__REDIS_BATCH_MAX];
    size_t n;
    struct group groups[HAPAX__REDIS_BATCH_MAX];
    struct hapax__redis_call calls[HAPAX__REDIS_BATCH_MAX];
    size_t call_count;
    /* hash of an id → the index of its group, in this round */
    uint16_t by_id[2 * HAPAX__REDIS_BATCH_MAX];
    struct hapax_span spans[HAPAX__REDIS_BATCH_MAX * (5 + HAPAX__REDIS_ARGS_MAX)];
    size_t kept; /* bytes of its answers */
    bool short_of; /* the server answered that replicas are missing */
    enum hapax_error error; /* the first */
};

static bool forgets(const struct hapax_op *op)
{
    return op->kind == HAPAX_OP_RESOLVE && op->resolve == HAPAX_RESOLVE_FORGET;
}

static size_t bytes_of(const struct hapax__redis_args *args)
{
    size_t bytes = args->key_len + args->grave_len;

    for (size_t i = 0; i < args->count; i++)
        bytes += args->args[i].len;
    return bytes;
}

static bool same_id(const struct hapax_op *a, const struct hapax_op *b)
{
    return memcmp(&a->id, &b->id, sizeof(a->id)) == 0;
}

/* The group that an op goes to: a new one, or in a cluster the group of its id. */
static struct group *group_of(struct batch *batch, const struct hapax_op *op)
{
    bool cluster = batch->redis->uri.kind == HAPAX__REDIS_CLUSTER;
    size_t mask = 2 * HAPAX__REDIS_BATCH_MAX - 1, at = 0;
    struct group *group;

    if (!cluster && batch->call_count > 0)
        return &batch->groups[0];
    if (cluster) {
        memcpy(&at, op->id.bytes, sizeof(at));
        for (at &= mask; batch->by_id[at] != NOBODY; at = (at + 1) & mask) {
            group = &batch->groups[batch->by_id[at]];
            if (same_id(batch->items[group->first].op, op))
                return group;
        }
    }
    batch->by_id[at] = (uint16_t)batch->call_count;
    group = &batch->groups[batch->call_count++];
    group->count = 0;
    return group;
}

static void add(struct batch *batch, uint16_t i)
{
    struct group *group = group_of(batch, batch->items[i].op);

    batch->items[i].next = NOBODY;
    if (group->count++ == 0)
        group->first = i;
    else
        batch->items[group->last].next = i;
    group->last = i;
}

/* Takes ops into the round in their order, while they fit. On one node an op that may not be
 * sent twice goes alone, so that the other ops may be sent twice. */
static void gather(struct batch *batch)
{
    bool alone = batch->redis->uri.kind != HAPAX__REDIS_CLUSTER;
    size_t asked = 0, answered = 0, taken = 0;

    batch->call_count = 0;
    memset(batch->by_id, 0xff, sizeof(batch->by_id));
    for (size_t i = 0; i < batch->n; i++) {
        struct item *item = &batch->items[i];
        bool once = alone && forgets(item->op);

        if (item->done)
            continue;
        asked += bytes_of(&batch->redis->packed[i]);
        answered += item->need;
        if (taken > 0 && (once || asked > REQUEST_MAX || answered > HAPAX__REDIS_REPLY_MAX))
            return;
        add(batch, (uint16_t)i);
        taken++;
        if (once)
            return;
    }
}

/* How many bytes the replies of a group may have: its share, or what its first op is known to
 * need. The first group gets what any record needs, so that each round judges an op. */
static size_t reply_max(const struct batch *batch, size_t g)
{
    const struct item *first = &batch->items[batch->groups[g].first];
    size_t share = HAPAX__REDIS_REPLY_MAX / batch->call_count;

    if (g == 0)
        return share + RECORD_MAX;
    return first->need > share ? first->need : share;
}

static void make_calls(struct batch *batch)
{
    const struct hapax__redis_args *ops[HAPAX__REDIS_BATCH_MAX];
    struct hapax__redis *redis = batch->redis;
    struct hapax_span *spans = batch->spans;

    for (size_t g = 0; g < batch->call_count; g++) {
        struct group *group = &batch->groups[g];
        struct hapax__redis_call *call = &batch->calls[g];
        size_t n = 0;
        bool once = false;

        for (uint16_t i = group->first; i != NOBODY; i = batch->items[i].next) {
            once |= forgets(batch->items[i].op);
            ops[n++] = &redis->packed[i];
        }
        assert(n == group->count);
        *call = (struct hapax__redis_call){.script = &redis->machine,
                                           .args = spans,
                                           .argc = hapax__redis_argc(ops, n),
                                           .key = {ops[0]->key, ops[0]->key_len},
                                           .once = once};
        hapax__redis_fill(spans, &group->numbers, ops, n, reply_max(batch, g), redis->uri.wait > 0,
                          redis->uri.kind == HAPAX__REDIS_CLUSTER);
        spans += call->argc;
        assert(spans <= batch->spans + sizeof(batch->spans) / sizeof(batch->spans[0]));
    }
}

/* ---- answers ------------------------------------------------------------------------- */

static void note(struct batch *batch, enum hapax_error error)
{
    if (batch->error == HAPAX_ERR_NONE)
        batch->error = error;
}

/* The refusal of a repeat, or a repeat that was not judged, says nothing of the earlier try. */
static void fail_item(struct batch *batch, struct item *item, enum hapax_error error,
                      const char *text)
{
    if (item->maybe &&
        (error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_REFUSED || error == HAPAX_ERR_NOMEM))
        error = HAPAX_ERR_INDETERMINATE;
    item->done = true;
    item->op->verdict = HAPAX_NO_VERDICT;
    item->op->error = hapax_store_fail(&batch->redis->base, error, "%s", text);
    note(batch, error);
}

/* A verdict that the replicas may not have is no verdict. */
static void fail_unreplicated(struct batch *batch, struct item *item)
{
    char text[HAPAX_TEXT_MAX];

    hapax__fail(text, HAPAX_ERR_INDETERMINATE, "not replicated to wait=%u replicas in time%s%s",
                (unsigned)batch->redis->uri.wait, batch->redis->text[0] ? ": " : "",
                batch->redis->text);
    fail_item(batch, item, HAPAX_ERR_INDETERMINATE, text);
}

/* False: neither this op was judged, nor any behind it in its call. */
static bool take_answer(struct batch *batch, const struct hapax__redis_call *call,
                        struct item *item, size_t index)
{
    char text[HAPAX_TEXT_MAX];
    bool if_replicated;

    switch (hapax__redis_answer(item->op, call->reply, index, &if_replicated, &item->need, text)) {
    case HAPAX__REDIS_LATER:
        return false;
    case HAPAX__REDIS_NONSENSE:
        fail_item(batch, item, HAPAX_ERR_INDETERMINATE, "the reply is not one of this script");
        return true;
    default:
        assert(item->op->error != HAPAX_ERR_INDETERMINATE);
    }
    if (item->op->error != HAPAX_ERR_NONE) {
        batch->short_of |= strstr(text, ": NOREPLICAS") != NULL;
        fail_item(batch, item, item->op->error, text);
    } else if (if_replicated && !call->replicated) {
        fail_unreplicated(batch, item);
    } else {
        item->done = true;
        batch->kept += item->op->record.outcome.headers.len + item->op->record.outcome.body.len;
        if (!hapax__store_keep(&batch->redis->base, item->op))
            note(batch, item->op->error);
    }
    return true;
}

/* Returns how many ops the round has finished. */
static size_t take_answers(struct batch *batch)
{
    size_t finished = 0;

    for (size_t g = 0; g < batch->call_count; g++) {
        const struct hapax__redis_call *call = &batch->calls[g];
        size_t index = 0;

        for (uint16_t i = batch->groups[g].first; call->again && i != NOBODY;
             i = batch->items[i].next)
            batch->items[i].maybe = true;
        for (uint16_t i = batch->groups[g].first; i != NOBODY; i = batch->items[i].next) {
            if (call->error != HAPAX_ERR_NONE)
                fail_item(batch, &batch->items[i], call->error, batch->redis->text);
            else if (!take_answer(batch, call, &batch->items[i], index++))
                break;
            finished++;
        }
    }
    return finished;
}

static void fail_rest(struct batch *batch, enum hapax_error error, const char *text)
{
    for (size_t i = 0; i < batch->n; i++)
        if (!batch->items[i].done)
            fail_item(batch, &batch->items[i], error, text);
}

static void run_rounds(struct batch *batch)
{
    struct hapax__redis *redis = batch->redis;
    int64_t deadline_us = hapax__monotonic_us() + redis->uri.timeout_ms * 1000;
    size_t left = batch->n;

    while (left > 0) {
        size_t finished;

        gather(batch);
        assert(batch->call_count > 0);
        make_calls(batch);
        redis->text[0] = '\0';
        hapax__redis_route_run_by(redis->route, batch->calls, batch->call_count,
                                  redis->uri.wait > 0, deadline_us, redis->text);
        batch->short_of = false;
        finished = take_answers(batch);
        if (batch->short_of)
            hapax__redis_route_doubt(redis->route);
        assert(finished <= left);
        left -= finished;
        if (finished == 0) {
            fail_rest(batch, HAPAX_ERR_INDETERMINATE, "the reply is not one of this script");
            return;
        }
        if (left > 0 && hapax__monotonic_us() >= deadline_us) {
            fail_rest(batch, HAPAX_ERR_UNAVAILABLE, "the timeout was over before it was sent");
            return;
        }
        if (left > 0 && batch->kept >= ANSWER_MAX) {
            fail_rest(batch, HAPAX_ERR_UNAVAILABLE, "over 256 MiB of answers in one batch");
            return;
        }
    }
}

/* ---- the four functions -------------------------------------------------------------- */

static enum hapax_error redis_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct hapax__redis *redis = (struct hapax__redis *)store;
    struct batch *batch;
    enum hapax_error error;

    if (ops[0].kind == HAPAX_OP_LIST)
        return hapax__redis_list(redis, &ops[0]);
    if (ops[0].kind == HAPAX_OP_PURGE)
        return hapax__redis_purge(redis, &ops[0]);
    assert(n <= HAPAX__REDIS_BATCH_MAX);
    batch = malloc(sizeof(*batch));
    if (!batch) {
        for (size_t i = 0; i < n; i++)
            ops[i].error = HAPAX_ERR_NOMEM;
        return hapax_store_fail(store, HAPAX_ERR_NOMEM, "out of memory for a batch");
    }
    batch->redis = redis;
    batch->n = n;
    batch->kept = 0;
    batch->error = HAPAX_ERR_NONE;
    for (size_t i = 0; i < n; i++) {
        batch->items[i] = (struct item){.op = &ops[i]};
        hapax__redis_pack(&redis->packed[i], &ops[i], redis->uri.prefix);
    }
    run_rounds(batch);
    error = batch->error;
    free(batch);
    return error;
}

static void redis_close(struct hapax_store *store)
{
    struct hapax__redis *redis = (struct hapax__redis *)store;

    hapax__redis_route_close(redis->route);
    OPENSSL_cleanse(redis, sizeof(*redis)); /* the URI has passwords */
    free(redis);
}

static bool name_script(struct hapax__redis_script *script, const char *text)
{
    uint8_t digest[20];
    unsigned len = 0;

    script->text = text;
    if (EVP_Digest(text, strlen(text), digest, &len, EVP_sha1(), NULL) != 1)
        return false;
    assert(len == sizeof(digest));
    *hapax__hex(script->sha, digest, sizeof(digest)) = '\0';
    return true;
}

static enum hapax_error redis_open(struct hapax_store **out, const char *uri,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__redis *redis = calloc(1, sizeof(*redis));
    enum hapax_error error;

    if (!redis)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    error = hapax__redis_uri(&redis->uri, uri, text);
    if (error == HAPAX_ERR_NONE && !name_script(&redis->machine, hapax__redis_machine_lua))
        error =
            hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: no SHA-1 to name scripts by");
    if (error == HAPAX_ERR_NONE)
        error = hapax__redis_route_open(&redis->route, &redis->uri, text);
    if (error != HAPAX_ERR_NONE) {
        OPENSSL_cleanse(redis, sizeof(*redis));
        free(redis);
        return error;
    }
    *out = &redis->base;
    return HAPAX_ERR_NONE;
}

#define REDIS_TYPE(name, uri_scheme)                                                               \
    const struct hapax_store_type hapax__##name = {                                                \
        .scheme = uri_scheme,                                                                      \
        .batch_max = HAPAX__REDIS_BATCH_MAX,                                                       \
        .body_max = HAPAX_BODY_MAX,                                                                \
        .serial = true,                                                                            \
        .remains = "its append-only file until BGREWRITEAOF, its dump until the next BGSAVE, "     \
                   "replicas until they have followed, and backups",                               \
        .forgets = true,                                                                           \
        .open = redis_open,                                                                        \
        .run = redis_run,                                                                          \
        .rights = hapax__redis_rights,                                                             \
        .check = hapax__redis_check,                                                               \
        .close = redis_close,                                                                      \
        .measure = hapax__redis_measure,                                                           \
    }

REDIS_TYPE(redis_node, "redis");
REDIS_TYPE(redis_node_tls, "rediss");
REDIS_TYPE(redis_sentinel, "redis+sentinel");
REDIS_TYPE(redis_sentinel_tls, "rediss+sentinel");
REDIS_TYPE(redis_cluster, "redis+cluster");
REDIS_TYPE(redis_cluster_tls, "rediss+cluster");
