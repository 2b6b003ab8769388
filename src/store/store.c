/* SPDX-License-Identifier: Apache-2.0
 *
 * The one way to a store. Checks every op, splits the ops into batches that the store takes,
 * presets each op to INDETERMINATE, and asserts afterwards that the store answered it. A store that
 * judges its batch in parallel never sees an id twice in a batch: the second op on an id goes into
 * a second round, with the second ops on all other ids, and so on. Rejected: cutting the batch at
 * the first repeated id, which makes a round of each op where one key is hot.
 */
#include "base/fail.h"
#include "core/record.h"
#include "seal.h"
#include "types.h"

#include "base/arena.h"
#include "core/machine.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TYPES_MAX      24
#define ASKS_AGAIN_MAX 2

static pthread_mutex_t types_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct hapax_store_type *types[TYPES_MAX] = {&hapax__memory,
                                                          &hapax__keeper,
                                                          &hapax__rocksdb_client,
                                                          &hapax__postgres,
                                                          &hapax__postgresql,
                                                          &hapax__redis_node,
                                                          &hapax__redis_node_tls,
                                                          &hapax__redis_sentinel,
                                                          &hapax__redis_sentinel_tls,
                                                          &hapax__redis_cluster,
                                                          &hapax__redis_cluster_tls,
                                                          &hapax__dynamodb,
                                                          &hapax__hybrid,
                                                          &hapax__move};

void hapax__store_add(const struct hapax_store_type *type)
{
    size_t i;

    pthread_mutex_lock(&types_lock);
    for (i = 0; i < TYPES_MAX && types[i] && types[i] != type; i++)
        ;
    assert(i < TYPES_MAX);
    if (!types[i]) {
        memmove(types + 1, types, i * sizeof(types[0]));
        types[0] = type;
    }
    pthread_mutex_unlock(&types_lock);
}

static const struct hapax_store_type *type_of(const char *uri)
{
    const struct hapax_store_type *found = NULL;
    size_t len = strcspn(uri, ":");

    pthread_mutex_lock(&types_lock);
    for (size_t i = 0; i < TYPES_MAX && types[i] && !found; i++)
        if (strlen(types[i]->scheme) == len && memcmp(types[i]->scheme, uri, len) == 0)
            found = types[i];
    pthread_mutex_unlock(&types_lock);
    return found;
}

bool hapax__store_known(const char *uri)
{
    return strchr(uri, ':') && type_of(uri);
}

enum hapax_error hapax_store_fail(struct hapax_store *store, enum hapax_error error,
                                  const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(store->text, sizeof(store->text), format, args);
    va_end(args);
    return error;
}

const char *hapax_store_text(const struct hapax_store *store)
{
    return store->text;
}

void *hapax_store_memory(struct hapax_store *store, size_t size)
{
    return hapax__arena_alloc(store->arena, size);
}

/* The type of the URI's scheme. NULL: error and text say why. */
static const struct hapax_store_type *find_type(const char *uri, enum hapax_error *error,
                                                char text[HAPAX_TEXT_MAX])
{
    const struct hapax_store_type *type = NULL;
    char shown[HAPAX_TEXT_MAX];

    if (!uri || !strchr(uri, ':')) {
        *error =
            hapax__fail(text, HAPAX_ERR_INVALID,
                        "store \"%s\" is not a URI (try rocksdb:PATH, unix:PATH, "
                        "redis://HOST, postgres://HOST/DB, dynamodb://REGION/TABLE or memory:)",
                        uri ? uri : "");
    } else if (!(type = type_of(uri))) {
        hapax_store_shown(shown, uri);
        *error = hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                             "store \"%.150s\" is of no known scheme (rocksdb:, unix:, redis://, "
                             "postgres://, hybrid:, dynamodb://, memory:)",
                             shown);
    }
    return type;
}

enum hapax_error hapax_store_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    const struct hapax_store_type *type;
    struct hapax_arena *arena;
    enum hapax_error error;

    *out = NULL;
    text[0] = '\0';
    type = find_type(uri, &error, text);
    if (!type)
        return error;
    arena = calloc(1, sizeof(*arena));
    if (!arena)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    error = type->open(out, uri, text);
    if (error != HAPAX_ERR_NONE) {
        assert(*out == NULL && text[0] != '\0');
        free(arena);
        return error;
    }
    if (!(*out)->type) /* a path that another process has open gives the keeper's type */
        (*out)->type = type;
    (*out)->arena = arena;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax_store_init(const char *uri, bool print, hapax_say *say, void *arg,
                                  char text[HAPAX_TEXT_MAX])
{
    const struct hapax_store_type *type = uri ? type_of(uri) : NULL;
    struct hapax_store *store;
    enum hapax_error error;

    text[0] = '\0';
    if (type && type->init)
        return type->init(uri, print, say, arg, text);
    error = hapax_store_open(&store, uri, text); /* a wrong URI is an error, too */
    hapax_store_close(store);
    return error;
}

enum hapax_error hapax_store_rights(const char *uri, const char *use, const char *role, bool print,
                                    hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX])
{
    const struct hapax_store_type *type;
    char shown[HAPAX_TEXT_MAX];
    enum hapax_error error;

    text[0] = '\0';
    type = find_type(uri, &error, text);
    if (!type)
        return error;
    if (type->rights)
        return type->rights(uri, use, role, print, say, arg, text);
    hapax_store_shown(shown, uri);
    return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                       "store \"%.100s\" has no users of its own (the socket of a keeper tells "
                       "doors from operators)",
                       shown);
}

void hapax_store_close(struct hapax_store *store)
{
    struct hapax__sealing *sealing;
    struct hapax_arena *arena;

    if (!store)
        return;
    arena = store->arena;
    sealing = store->sealing;
    store->type->close(store);
    hapax__sealing_free(sealing);
    hapax__arena_release(arena);
    free(arena);
}

enum hapax_error hapax_store_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    store->text[0] = '\0';
    hapax__arena_reset(store->arena);
    return store->type->check(store, say, arg);
}

enum hapax_error hapax_store_measure(struct hapax_store *store, struct hapax_vitals *out)
{
    store->text[0] = '\0';
    hapax__arena_reset(store->arena);
    *out = (struct hapax_vitals)HAPAX_VITALS_INIT;
    return store->type->measure ? store->type->measure(store, out) : HAPAX_ERR_NONE;
}

/* ---- the checks ---------------------------------------------------------------------- */

static const char *fault_of_times(const struct hapax_op *op)
{
    bool claim = op->kind == HAPAX_OP_CLAIM;
    bool ends = op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL;

    if ((claim || op->kind == HAPAX_OP_RENEW) &&
        (op->lease_ms < 1 || op->lease_ms > HAPAX_DURATION_MAX_MS))
        return "lease is not between 1 ms and ten years";
    if (claim && op->retention_ms != HAPAX_FOREVER_MS &&
        (op->retention_ms < 1 || op->retention_ms > HAPAX_DURATION_MAX_MS))
        return "retention is not between 1 ms and ten years";
    if (ends && (op->kept_ms < 0 || op->kept_ms > HAPAX_DURATION_MAX_MS))
        return "the retention of an end is not between 0 and ten years";
    if (ends && (op->tombstone_ms < 0 || op->tombstone_ms > HAPAX_DURATION_MAX_MS))
        return "the time of a tombstone is not between 0 and ten years";
    if (op->kind == HAPAX_OP_LIST && (op->older_ms < 0 || op->older_ms > HAPAX_DURATION_MAX_MS))
        return "older is not between 0 and ten years";
    return NULL;
}

/* What no store could have written, or not all can keep: the numbers of PostgreSQL are signed, and
 * a fence must be able to rise. */
static const char *fault_of_import(const struct hapax_op *op)
{
    struct hapax_record in;

    if (hapax__record_decode(&in, &op->id, op->import) != HAPAX_ERR_NONE)
        return "the record to import cannot be read, or is of another id";
    if (in.outcome.headers.len + in.outcome.body.len > 0)
        return "the record to import has its outcome in it";
    if (in.attempt == 0 || in.fence == 0 || in.created_us == 0 || in.updated_us == 0 ||
        in.scope.len == 0)
        return "the record to import was never claimed";
    if (in.attempt > INT32_MAX || in.spent > INT32_MAX || in.fence > INT64_MAX - 2)
        return "the record to import has a number that no store reaches";
    if (in.state != HAPAX_STATE_STARTED && in.lease_until_us != 0)
        return "the record to import has a lease, and is not started";
    if (in.expires_us != 0 && in.expires_us < in.updated_us)
        return "the record to import expires before it was written";
    if (in.retention_ms != HAPAX_FOREVER_MS &&
        (in.retention_ms < 1 || in.retention_ms > HAPAX_DURATION_MAX_MS))
        return "the record to import is not kept for between 1 ms and ten years";
    if (in.state == HAPAX_STATE_COMPLETED && in.retention_ms == HAPAX_FOREVER_MS &&
        in.expires_us != 0)
        return "the record to import is kept for ever, and expires";
    return NULL;
}

static bool token_is_zero(const struct hapax_token *token)
{
    static const struct hapax_token zero;

    return memcmp(token, &zero, sizeof(zero)) == 0;
}

static const char *fault_of(const struct hapax_op *op)
{
    bool writes = op->kind == HAPAX_OP_CLAIM || op->kind == HAPAX_OP_RENEW ||
                  op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL ||
                  op->kind == HAPAX_OP_RESOLVE;

    if (op->kind < HAPAX_OP_CLAIM || op->kind > HAPAX_OP_IMPORT)
        return "the kind of op is not known";
    if (writes && token_is_zero(&op->token))
        return "the token is all zero";
    if (op->scope.len > HAPAX_SCOPE_MAX)
        return "scope is over 255 bytes";
    if (op->what.len > HAPAX_WHAT_MAX)
        return "what the operation is has over 255 bytes";
    if (op->kind == HAPAX_OP_CLAIM && op->scope.len == 0)
        return "scope is empty";
    if (op->kind == HAPAX_OP_CLAIM && (hapax__any(&op->fingerprint) || hapax__any(&op->caller)))
        return "a claim is of one fingerprint and one caller, not of any";
    if (op->kind == HAPAX_OP_CLAIM &&
        (op->on_expired < HAPAX_EXPIRED_RERUN || op->on_expired > HAPAX_EXPIRED_RECONCILE))
        return "on_expired is not rerun, hold or reconcile";
    if (op->kind == HAPAX_OP_FAIL && op->died && !(op->ran && op->as_unknown))
        return "an attempt that died is not one that ran to an unknown result";
    if (op->by.len > HAPAX_BY_MAX)
        return "the operator's name is over 64 bytes";
    if (op->kind == HAPAX_OP_RESOLVE &&
        (op->resolve < HAPAX_RESOLVE_COMPLETE || op->resolve > HAPAX_RESOLVE_FORGET))
        return "resolve is not complete, fail or forget";
    if (op->if_updated_us < 0)
        return "if_updated_us is below 0";
    if (op->outcome.status < 0 || op->outcome.status > 999)
        return "status is not between 0 and 999";
    if (op->limit > HAPAX_LIST_MAX)
        return "limit is over 1000";
    if (op->states & ~HAPAX_STATES_ALL)
        return "states has unknown bits";
    if (op->kind == HAPAX_OP_IMPORT)
        return fault_of_import(op);
    return fault_of_times(op);
}

bool hapax__op_check(struct hapax_op *op, size_t body_max, char text[HAPAX_TEXT_MAX])
{
    const char *fault = fault_of(op);

    enum hapax_error error = HAPAX_ERR_NONE;

    if (fault)
        error = hapax__fail(text, HAPAX_ERR_INVALID, "%s", fault);
    else if (op->outcome.headers.len > HAPAX_HEADERS_MAX)
        error = hapax__fail(text, HAPAX_ERR_TOO_BIG, "headers of %zu bytes are over %u",
                            op->outcome.headers.len, HAPAX_HEADERS_MAX);
    else if (op->outcome.body.len > body_max)
        error = hapax__fail(text, HAPAX_ERR_TOO_BIG, "a body of %zu bytes is over %zu",
                            op->outcome.body.len, body_max);
    if (error == HAPAX_ERR_NONE)
        return true;
    op->verdict = HAPAX_NO_VERDICT;
    op->error = error;
    return false;
}

unsigned hapax__verdicts_of(enum hapax_op_kind kind)
{
    switch (kind) {
    case HAPAX_OP_CLAIM:
        return 1u << HAPAX_CLAIMED | 1u << HAPAX_IN_FLIGHT | 1u << HAPAX_COMPLETED |
               1u << HAPAX_FAILED | 1u << HAPAX_UNKNOWN | 1u << HAPAX_MISMATCH | 1u << HAPAX_LOST;
    case HAPAX_OP_READ:
        return 1u << HAPAX_FOUND | 1u << HAPAX_ABSENT;
    case HAPAX_OP_LIST:
        return 1u << HAPAX_FOUND;
    case HAPAX_OP_PURGE:
        return 1u << HAPAX_OK;
    case HAPAX_OP_IMPORT:
        return 1u << HAPAX_OK | 1u << HAPAX_FOUND;
    case HAPAX_OP_RESOLVE:
        return 1u << HAPAX_OK | 1u << HAPAX_LOST | 1u << HAPAX_IN_FLIGHT | 1u << HAPAX_COMPLETED |
               1u << HAPAX_ABSENT;
    default:
        return 1u << HAPAX_OK | 1u << HAPAX_LOST;
    }
}

/* ---- run ----------------------------------------------------------------------------- */

void hapax__op_preset(struct hapax_op *op)
{
    op->verdict = HAPAX_NO_VERDICT;
    op->error = HAPAX_ERR_INDETERMINATE;
    op->differs = HAPAX_DIFFERS_NOT;
    memset(&op->record, 0, sizeof(op->record));
    op->now_us = 0;
    op->records = NULL;
    op->count = 0;
    op->purged = 0;
    op->expired_claims = 0;
    op->more = false;
    memset(&op->next_cursor, 0, sizeof(op->next_cursor));
    op->damaged = false;
}

static bool by_id(const struct hapax_op *op)
{
    return op->kind != HAPAX_OP_LIST && op->kind != HAPAX_OP_PURGE;
}

/* Once its retention is over an outcome is shown to nobody, though it may not be removed yet. */
static void hide(const struct hapax_op *op, struct hapax_record *record)
{
    if (hapax__tombstone(record, op->now_us))
        hapax__bury(record);
}

/* Takes what the store left in an op after a call that returned `result`. An op without a verdict
 * answers nothing but its error. */
static void finish(struct hapax_op *op, enum hapax_error result)
{
    enum hapax_error error = op->error;

    if (op->verdict != HAPAX_NO_VERDICT) {
        op->error = HAPAX_ERR_NONE;
        hide(op, &op->record);
        for (uint32_t i = 0; i < op->count; i++)
            hide(op, &op->records[i]);
        return;
    }
    assert(error != HAPAX_ERR_NONE);
    /* A store that returned NONE has answered every op (promise 10). */
    assert(result != HAPAX_ERR_NONE || error != HAPAX_ERR_INDETERMINATE);
    hapax__op_preset(op);
    op->error = error;
}

/* One call of the store, with valid ops that it takes in one batch. rests is NULL where the answers
 * are to be durable. */
static void run_round(struct hapax_store *store, struct hapax_op *ops, size_t n, uint64_t *rests)
{
    enum hapax_error result;

    assert(n == 1 || by_id(&ops[0]));
    if (ops[0].kind == HAPAX_OP_PURGE && ops[0].scrub && !store->type->scrubs) {
        ops[0].verdict = HAPAX_OK;
        ops[0].error = HAPAX_ERR_NONE;
        if (rests)
            rests[0] = 0;
        return;
    }
    result = rests ? store->type->judge(store, ops, n, rests) : store->type->run(store, ops, n);
    for (size_t i = 0; i < n; i++)
        finish(&ops[i], result);
}

/* How many ops, from the first on, go together: a LIST or PURGE goes alone. */
static size_t round_of(const struct hapax_store *store, const struct hapax_op *ops, size_t n)
{
    size_t max = by_id(&ops[0]) ? store->type->batch_max : 1;
    size_t len;

    for (len = 1; len < n && len < max && by_id(&ops[len]); len++)
        ;
    return len;
}

static void run_rounds(struct hapax_store *store, struct hapax_op *ops, size_t n, uint64_t *rests)
{
    while (n > 0) {
        size_t len = round_of(store, ops, n);

        run_round(store, ops, len, rests);
        rests = rests ? rests + len : NULL;
        ops += len;
        n -= len;
    }
}

/* An op's index in its batch, and its round: the number of ops before it on its id. */
struct turn {
    const struct hapax_id *id;
    size_t index;
    size_t round;
};

static int by_id_then_index(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;
    int order = memcmp(x->id, y->id, sizeof(*x->id));

    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

static int by_round_then_index(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;

    if (x->round != y->round)
        return x->round > y->round ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Sorts the turns by round. Returns how many rounds there are. */
static size_t plan(struct turn *turns, const struct hapax_op *ops, size_t n)
{
    size_t rounds = 1;

    for (size_t i = 0; i < n; i++)
        turns[i] = (struct turn){&ops[i].id, i, 0};
    qsort(turns, n, sizeof(*turns), by_id_then_index);
    for (size_t i = 1; i < n; i++) {
        if (memcmp(turns[i].id, turns[i - 1].id, sizeof(*turns[i].id)) == 0)
            turns[i].round = turns[i - 1].round + 1;
        if (turns[i].round >= rounds)
            rounds = turns[i].round + 1;
    }
    if (rounds > 1)
        qsort(turns, n, sizeof(*turns), by_round_then_index);
    return rounds;
}

/* Runs ops by id on a store that judges in parallel. */
static void run_parallel(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct turn *turns = malloc(n * sizeof(*turns));
    size_t rounds = turns ? plan(turns, ops, n) : n;
    struct hapax_op *sorted = rounds > 1 && turns ? malloc(n * sizeof(*sorted)) : NULL;

    if (rounds == 1) {
        run_rounds(store, ops, n, NULL);
    } else if (!sorted) { /* out of memory: one at a time is as right */
        for (size_t i = 0; i < n; i++)
            run_round(store, &ops[i], 1, NULL);
    } else {
        for (size_t i = 0; i < n; i++)
            sorted[i] = ops[turns[i].index];
        for (size_t i = 0, len; i < n; i += len) {
            for (len = 1; i + len < n && turns[i + len].round == turns[i].round; len++)
                ;
            run_rounds(store, sorted + i, len, NULL);
        }
        for (size_t i = 0; i < n; i++)
            ops[turns[i].index] = sorted[i];
    }
    free(sorted);
    free(turns);
}

static void run_valid(struct hapax_store *store, struct hapax_op *ops, size_t n, uint64_t *rests)
{
    while (n > 0) {
        size_t len = 1;

        while (len < n && by_id(&ops[len - 1]) && by_id(&ops[len]))
            len++;
        if (store->type->serial || len == 1)
            run_rounds(store, ops, len, rests);
        else
            run_parallel(store, ops, len);
        rests = rests ? rests + len : NULL;
        ops += len;
        n -= len;
    }
}

/* Checks an op, and seals its outcome where the handle does so. False: op->error says why not. */
static bool ready(struct hapax_store *store, struct hapax_op *op, char text[HAPAX_TEXT_MAX])
{
    return hapax__op_check(op, store->type->body_max, text) &&
           (!store->sealing || hapax__seal(&store->sealing->keys, op, text) == HAPAX_ERR_NONE);
}

static enum hapax_error run_all(struct hapax_store *store, struct hapax_op *ops, size_t n,
                                uint64_t *rests)
{
    enum hapax_error first = HAPAX_ERR_NONE;
    size_t from = 0;

    store->text[0] = '\0';
    hapax__arena_reset(store->arena);
    for (size_t i = 0; i < n; i++)
        hapax__op_preset(&ops[i]);
    for (size_t i = 0; i <= n; i++) {
        if (i < n && ready(store, &ops[i], store->text))
            continue;
        run_valid(store, ops + from, i - from, rests ? rests + from : NULL);
        from = i + 1;
    }
    for (size_t i = 0; store->sealing && i < n; i++)
        hapax__unseal(&store->sealing->keys, &ops[i], store->arena, store->text);
    for (size_t i = 0; i < n && first == HAPAX_ERR_NONE; i++)
        first = ops[i].error;
    return first;
}

enum hapax_error hapax_store_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    return run_all(store, ops, n, NULL);
}

void hapax__ask_again(struct hapax_store *store, struct hapax_op *op)
{
    bool resolves = op->kind == HAPAX_OP_RESOLVE;
    int asks = resolves && op->resolve == HAPAX_RESOLVE_FORGET ? 0 : ASKS_AGAIN_MAX;

    for (; asks > 0 && op->error == HAPAX_ERR_INDETERMINATE; asks--)
        if (hapax_store_run(store, op, 1) != HAPAX_ERR_NONE)
            op->error = HAPAX_ERR_INDETERMINATE;
        else if (resolves && op->verdict != HAPAX_OK)
            op->error = hapax_store_fail(store, HAPAX_ERR_INDETERMINATE,
                                         "by now it is as another one has left it");
}

enum hapax_error hapax_store_judge(struct hapax_store *store, struct hapax_op *ops, size_t n,
                                   uint64_t *rests)
{
    memset(rests, 0, n * sizeof(*rests));
    return run_all(store, ops, n, store->type->judge ? rests : NULL);
}

enum hapax_error hapax_store_sync(struct hapax_store *store, uint64_t number,
                                  char text[HAPAX_TEXT_MAX])
{
    return number > 0 ? store->type->sync(store, number, text) : HAPAX_ERR_NONE;
}

bool hapax_store_begin(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    char text[HAPAX_TEXT_MAX];
    size_t i;

    if (!store->type->begin || n > store->type->batch_max)
        return false;
    for (i = 0; i < n; i++) {
        hapax__op_preset(&ops[i]);
        if (!by_id(&ops[i]) || !ready(store, &ops[i], text))
            break;
    }
    if (i == n) {
        store->type->begin(store, ops, n);
        return true;
    }
    while (store->sealing && i-- > 0)
        hapax__unseal(&store->sealing->keys, &ops[i], NULL, text);
    return false;
}

enum hapax_error hapax_store_end(struct hapax_store *store, struct hapax_op *ops, size_t n,
                                 char text[HAPAX_TEXT_MAX])
{
    enum hapax_error first = HAPAX_ERR_NONE;
    enum hapax_error result;

    text[0] = '\0';
    result = store->type->end(store, ops, n, text);
    if (store->sealing)
        hapax__arena_reset(store->sealing->ended);
    for (size_t i = 0; i < n; i++) {
        finish(&ops[i], result);
        if (store->sealing)
            hapax__unseal(&store->sealing->keys, &ops[i], store->sealing->ended, text);
        first = first == HAPAX_ERR_NONE ? ops[i].error : first;
    }
    return first;
}

/* ---- memory for answers -------------------------------------------------------------- */

static bool keep_span(struct hapax_store *store, struct hapax_span *span)
{
    *span = hapax__arena_copy(store->arena, *span);
    return span->len == 0 || span->ptr;
}

static bool keep_record(struct hapax_store *store, struct hapax_record *record)
{
    return keep_span(store, &record->scope) && keep_span(store, &record->what) &&
           keep_span(store, &record->resolved_by) && keep_span(store, &record->outcome.headers) &&
           keep_span(store, &record->outcome.body);
}

/* Copies a span, unless it is what the caller lent: that outlives the answer. */
static bool keep_unless(struct hapax_store *store, struct hapax_span *span, struct hapax_span lent)
{
    return (span->ptr == lent.ptr && span->len == lent.len) || keep_span(store, span);
}

bool hapax__store_keep(struct hapax_store *store, struct hapax_op *op)
{
    struct hapax_record *record = &op->record;
    bool kept = keep_unless(store, &record->scope, op->scope) &&
                keep_unless(store, &record->what, op->what) &&
                keep_unless(store, &record->resolved_by, op->by) &&
                keep_unless(store, &record->outcome.headers, op->outcome.headers) &&
                keep_unless(store, &record->outcome.body, op->outcome.body);

    for (uint32_t i = 0; i < op->count && kept; i++)
        kept = keep_record(store, &op->records[i]);
    if (!kept) {
        op->verdict = HAPAX_NO_VERDICT;
        op->error = HAPAX_ERR_INDETERMINATE;
        op->count = 0;
        hapax_store_fail(store, HAPAX_ERR_INDETERMINATE, "out of memory for an answer");
    }
    return kept;
}
