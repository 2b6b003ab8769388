/* SPDX-License-Identifier: Apache-2.0
 *
 * Random histories on the store and on a model, op by op. The store judges by its own clock; the
 * model is a memory store whose clock is set, for each op, to the very moment the store says it
 * judged at. So every field of every answer must be equal, times and fences included. Ids and
 * tokens come from small pools and leases are tiny, so that ops meet. Rejected: checking
 * properties alone, which an answer that is merely plausible passes.
 */
#include "store_test.h"

#include "../unit/record_diff.h"
#include "base/clock.h"
#include "store/types.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#define IDS       6u
#define TOKENS    3u
#define BATCH_MAX 12u
#define BATCHES   250u
#define PAGES_MAX 10000u
#define LOG_LINES 256u

struct history {
    const struct suite *suite;
    uint64_t random;
    struct hapax_store *store;
    struct hapax_store *model;
    int64_t model_us;
    int64_t last_us; /* the latest time seen */
    char scopes[2][64];
    bool alone; /* no records but this history's are in the store */
    uint8_t body[64];
    char log[LOG_LINES][120]; /* the last answers, for whoever has to find out why */
    unsigned logged;
    unsigned seen[HAPAX_ABSENT + 1]; /* verdicts */
    unsigned expired_claims; /* made unknown by sweeps */
    uint32_t resolves; /* made */
};

static int64_t model_clock(void *arg)
{
    return ((struct history *)arg)->model_us;
}

static uint64_t pick(struct history *h, uint64_t n)
{
    return next_random(&h->random) % n;
}

static bool once_in(struct history *h, uint64_t n)
{
    return pick(h, n) == 0;
}

static void begin(struct history *h, const struct suite *suite, unsigned round)
{
    char text[HAPAX_TEXT_MAX];

    memset(h, 0, sizeof(*h));
    h->suite = suite;
    h->random = suite->seed * 1000 + round;
    for (size_t i = 0; i < 2; i++)
        snprintf(h->scopes[i], sizeof(h->scopes[i]), "%s%u%c", suite->scope, round,
                 (char)('a' + i));
    h->alone = suite->single || (suite->fresh && round == 0);
    memset(h->body, 'b', sizeof(h->body));
    h->store = open_store(suite);
    CHECK(hapax_store_open(&h->model, "memory:", text) == HAPAX_ERR_NONE, "%s", text);
    hapax__memory_clock(h->model, model_clock, h);
}

static void end(struct history *h)
{
    hapax_store_close(h->store);
    hapax_store_close(h->model);
}

/* ---- ops ----------------------------------------------------------------------------- */

static void make_claim(struct history *h, struct hapax_op *op)
{
    static const int64_t leases[] = {1, 2, 5, 20, 10000};
    static const int64_t retentions[] = {1, 5, 30, 3600000, 3600000, HAPAX_FOREVER_MS};
    static const char *const whats[] = {"", "POST /pay", "orders \xc3\xa9"};

    op->scope = hapax_str(h->scopes[pick(h, 2)]);
    op->owner.bytes[5] = (uint8_t)pick(h, 3);
    op->what = hapax_str(whats[pick(h, 3)]);
    op->lease_ms = leases[pick(h, 5)];
    op->retention_ms = retentions[pick(h, 6)];
    op->on_expired = once_in(h, 2) ? HAPAX_EXPIRED_RERUN
                                   : (enum hapax_on_expired)(HAPAX_EXPIRED_HOLD + pick(h, 2));
    op->attempts_max = (uint32_t)pick(h, 4);
    op->rerun_completed = once_in(h, 2);
    op->fingerprint.bytes[0] ^= once_in(h, 6);
    op->caller.bytes[0] ^= once_in(h, 6);
    if (!h->suite->hinted)
        return;
    /* A token is one request's: a lock says whose it is before PostgreSQL says whom it belongs to.
     * So the last token's is another request, and the others share one, or nothing would be taken
     * over or be in flight. */
    op->fingerprint.bytes[0] = op->token.bytes[0] == TOKENS && op->id.bytes[0] % 2 == 0;
    op->caller.bytes[0] = op->token.bytes[0] == TOKENS && op->id.bytes[0] % 2 == 1;
}

static void make_op(struct history *h, struct hapax_op *op, unsigned round)
{
    static const enum hapax_op_kind kinds[] = {HAPAX_OP_CLAIM,    HAPAX_OP_CLAIM,  HAPAX_OP_CLAIM,
                                               HAPAX_OP_CLAIM,    HAPAX_OP_CLAIM,  HAPAX_OP_RENEW,
                                               HAPAX_OP_COMPLETE, HAPAX_OP_FAIL,   HAPAX_OP_FAIL,
                                               HAPAX_OP_READ,     HAPAX_OP_RESOLVE};
    static const int64_t ends[] = {1, 4, 20, 3600000};
    unsigned n = round * IDS + (unsigned)pick(h, IDS);

    *op = op_of(h->suite, kinds[pick(h, 11)], n, 1 + (unsigned)pick(h, TOKENS));
    /* A claim of the operator's own token would pass for an earlier try of its RESOLVE in one half,
     * and that of another attempt stay live in the other. Another word of that token would pass for
     * this one. No program uses a token twice. */
    if (h->suite->halves && op->kind == HAPAX_OP_RESOLVE) {
        op->token.bytes[0] += TOKENS;
        memcpy(&op->token.bytes[1], &h->resolves, sizeof(h->resolves));
        h->resolves++;
    }
    op->lease_ms = 1 + (int64_t)pick(h, 30);
    if (op->kind == HAPAX_OP_CLAIM)
        make_claim(h, op);
    op->reconciled = once_in(h, 2);
    op->ran = once_in(h, 2);
    op->as_unknown = once_in(h, 3);
    op->kept_ms = once_in(h, 2) ? 0 : ends[pick(h, 4)];
    op->tombstone_ms = once_in(h, 2) ? 0 : ends[pick(h, 4)];
    op->died = op->ran && op->as_unknown && once_in(h, 2);
    op->force = once_in(h, 2);
    op->resolve = (enum hapax_resolve)(HAPAX_RESOLVE_COMPLETE + pick(h, 3));
    op->if_attempt = once_in(h, 2) ? 0 : (uint32_t)(1 + pick(h, 3));
    op->if_updated_us = once_in(h, 8); /* a time at which nothing was written */
    op->by = once_in(h, 2) ? hapax_str("ann") : hapax_str("bob the second");
    op->outcome.status = (int)(200 + pick(h, 2));
    op->outcome.body_kept = !once_in(h, 4);
    op->outcome.headers = once_in(h, 2) ? hapax_str("A: b\r\n") : hapax_str(NULL);
    op->outcome.body = (struct hapax_span){h->body, pick(h, sizeof(h->body) + 1)};
}

/* ---- comparing ----------------------------------------------------------------------- */

static void note(struct history *h, const struct hapax_op *op)
{
    char *line = h->log[h->logged++ % LOG_LINES];

    snprintf(line, sizeof(h->log[0]),
             "%" PRId64
             " id %02x%02x token %02x op %d expired %d max %u rc %d ran %d unk %d died %d: %s",
             op->now_us, op->id.bytes[0], op->id.bytes[1], op->token.bytes[0], (int)op->kind,
             (int)op->on_expired, op->attempts_max, op->rerun_completed, op->ran, op->as_unknown,
             op->died, hapax_verdict_name(op->verdict));
}

static void tell(struct history *h)
{
    unsigned from = h->logged > LOG_LINES ? h->logged - LOG_LINES : 0;

    for (unsigned i = from; i < h->logged; i++)
        printf("# %s\n", h->log[i % LOG_LINES]);
}

static void differs(struct history *h, const struct hapax_op *op, const struct hapax_op *model,
                    const char *what)
{
    tell(h);
    CHECK(!what, "op %u of kind %d: %s: the store says %s, the model %s", h->logged, (int)op->kind,
          what, hapax_verdict_name(op->verdict), hapax_verdict_name(model->verdict));
}

/* A lock that was taken before its claim was granted turns others away and knows no more than the
 * request, and a time within the lease. */
static void borrow_unsaid(const struct hapax_record *lock, struct hapax_record *model)
{
    struct hapax_record said = *lock;

    CHECK(lock->lease_until_us <= model->lease_until_us, "a lock outlasts its lease");
    said.fingerprint = model->fingerprint;
    said.caller = model->caller;
    CHECK(!record_diff(&said, lock), "the lock is another request's");
    *model = *lock;
}

static void compare(struct history *h, const struct hapax_op *op, struct hapax_op *model)
{
    const char *what;

    if (op->verdict != model->verdict)
        differs(h, op, model, "verdict");
    if (op->error != model->error)
        differs(h, op, model, "error");
    if (op->differs != model->differs)
        differs(h, op, model, "differs");
    if (model->record.state == HAPAX_STATE_ABSENT)
        model->record.id = op->record.id;
    if (h->suite->hinted && op->verdict == HAPAX_IN_FLIGHT && op->record.attempt == 0)
        borrow_unsaid(&op->record, &model->record);
    what = record_diff(&op->record, &model->record);
    if (what)
        differs(h, op, model, what);
    if (op->now_us <= 0)
        differs(h, op, model, "now_us");
}

/* The same ops on the model, each at its own moment, as asked before the store answered them. */
static void follow(struct history *h, const struct hapax_op *answered, struct hapax_op *asked,
                   size_t n)
{
    for (size_t i = 0; i < n; i++) {
        h->model_us = answered[i].now_us;
        if (h->model_us > h->last_us)
            h->last_us = h->model_us;
        note(h, &answered[i]);
        CHECK(h->model_us > 0, "op %zu of a batch has no time", i);
        CHECK(hapax_store_run(h->model, &asked[i], 1) == HAPAX_ERR_NONE, "%s",
              hapax_store_text(h->model));
        compare(h, &answered[i], &asked[i]);
        h->seen[answered[i].verdict]++;
    }
}

static void run_batch(struct history *h, const struct hapax_op *ops, size_t n)
{
    struct hapax_op asked[BATCH_MAX], answered[BATCH_MAX];
    int64_t last_us = h->last_us;

    memcpy(asked, ops, n * sizeof(*ops));
    memcpy(answered, ops, n * sizeof(*ops));
    CHECK(hapax_store_run(h->store, answered, n) == HAPAX_ERR_NONE, "%s",
          hapax_store_text(h->store));
    for (size_t i = 0; i < n; i++)
        CHECK(answered[i].now_us >= last_us, "the store's clock went back");
    follow(h, answered, asked, n);
}

/* ---- LIST, PURGE --------------------------------------------------------------------- */

static void make_list(struct history *h, struct hapax_op *op)
{
    static const int64_t ages[] = {0, 0, 1, 5, 1000};
    static const uint32_t limits[] = {0, 1, 2, 3};

    *op = (struct hapax_op){.kind = HAPAX_OP_LIST};
    op->states = once_in(h, 3) ? 0 : (uint32_t)pick(h, 16) << 1;
    op->older_ms = ages[pick(h, 5)];
    op->limit = limits[pick(h, 4)];
    if (!h->alone || once_in(h, 2))
        op->scope = hapax_str(h->scopes[pick(h, 2)]);
    op->owner.bytes[5] = (uint8_t)pick(h, 3);
}

/* A page of the store's is the model's, or the beginning of it with more to come. */
static void compare_page(struct history *h, const struct hapax_op *op, struct hapax_op *model)
{
    uint32_t limit = op->limit ? op->limit : HAPAX_LIST_MAX;

    h->model_us = op->now_us;
    CHECK(hapax_store_run(h->model, model, 1) == HAPAX_ERR_NONE, "model");
    CHECK(op->verdict == HAPAX_FOUND && op->count <= limit, "%u records of %u", op->count, limit);
    CHECK(op->more ? op->count <= model->count : op->count == model->count,
          "%u records, the model has %u (states %#x older %" PRId64 " more %d)", op->count,
          model->count, op->states, op->older_ms, op->more);
    CHECK(op->more || !model->more, "the list ends too soon");
    for (uint32_t i = 0; i < op->count; i++) {
        const char *what = record_diff(&op->records[i], &model->records[i]);

        if (what)
            tell(h);
        CHECK(!what, "record %u: %s", i, what);
    }
}

static void compare_in_order(struct history *h, struct hapax_op op)
{
    struct hapax_op model;
    unsigned pages = 0;

    do {
        model = op;
        CHECK(hapax_store_run(h->store, &op, 1) == HAPAX_ERR_NONE, "%s",
              hapax_store_text(h->store));
        CHECK(op.now_us >= h->last_us, "the store's clock went back");
        h->last_us = op.now_us;
        compare_page(h, &op, &model);
        CHECK(!op.more || memcmp(&op.next_cursor, &op.cursor, sizeof(op.cursor)) > 0,
              "the cursor stands still");
        CHECK(++pages < PAGES_MAX, "the list does not end");
        op.cursor = op.next_cursor;
    } while (op.more);
}

/* All the model lists at a time. */
static struct hapax_op model_list(struct history *h, const struct hapax_op *asked, int64_t at_us)
{
    struct hapax_op model = *asked;

    memset(&model.cursor, 0, sizeof(model.cursor));
    model.limit = 0;
    h->model_us = at_us;
    CHECK(hapax_store_run(h->model, &model, 1) == HAPAX_ERR_NONE, "model");
    CHECK(!model.more, "the model's list is too long for this test");
    return model;
}

static const struct hapax_record *find(const struct hapax_record *records, uint32_t count,
                                       const struct hapax_id *id)
{
    for (uint32_t i = 0; i < count; i++)
        if (memcmp(&records[i].id, id, sizeof(*id)) == 0)
            return &records[i];
    return NULL;
}

/* Whatever a page shows the model lists at that time, and just so. */
static void compare_any_page(struct history *h, const struct hapax_op *op)
{
    uint32_t limit = op->limit ? op->limit : HAPAX_LIST_MAX;
    struct hapax_op model = model_list(h, op, op->now_us);

    CHECK(op->verdict == HAPAX_FOUND && op->count <= limit, "%u records of %u", op->count, limit);
    for (uint32_t i = 0; i < op->count; i++) {
        const struct hapax_record *record = find(model.records, model.count, &op->records[i].id);
        const char *what = record ? record_diff(&op->records[i], record) : "not listed at all";

        if (what)
            tell(h);
        CHECK(!what, "record %u: %s", i, what);
    }
}

static int64_t now_of(struct history *h)
{
    struct hapax_op op = op_of(h->suite, HAPAX_OP_READ, 999999, 0);

    run_op(h->store, &op);
    CHECK(op.now_us >= h->last_us, "the store's clock went back");
    h->last_us = op.now_us;
    return op.now_us;
}

/* A list in no order, which may show a record twice: all that is to be listed both when it begins
 * and when it has ended is shown. */
static void compare_in_any_order(struct history *h, struct hapax_op op)
{
    static struct hapax_id first[HAPAX_LIST_MAX];
    static bool shown[HAPAX_LIST_MAX];
    struct hapax_op model = model_list(h, &op, now_of(h));
    uint32_t count = model.count;
    unsigned pages = 0;

    for (uint32_t i = 0; i < count; i++) {
        first[i] = model.records[i].id;
        shown[i] = false;
    }
    do {
        CHECK(hapax_store_run(h->store, &op, 1) == HAPAX_ERR_NONE, "%s",
              hapax_store_text(h->store));
        CHECK(op.now_us >= h->last_us, "the store's clock went back");
        h->last_us = op.now_us;
        compare_any_page(h, &op);
        for (uint32_t i = 0; i < count; i++)
            shown[i] |= find(op.records, op.count, &first[i]) != NULL;
        CHECK(++pages < PAGES_MAX, "the list does not end");
        op.cursor = op.next_cursor;
    } while (op.more);
    model = model_list(h, &op, now_of(h));
    for (uint32_t i = 0; i < count; i++)
        CHECK(shown[i] || !find(model.records, model.count, &first[i]),
              "a record is not shown (%u to be shown, in %u pages)", count, pages);
}

static void compare_list(struct history *h)
{
    struct hapax_op op;

    make_list(h, &op);
    (h->suite->unordered ? compare_in_any_order : compare_in_order)(h, op);
}

/* The model sweeps this one record, which the store has swept at that time. */
static void follow_expired(struct history *h, const struct hapax_id *id, int64_t at_us)
{
    struct hapax_op op = {.kind = HAPAX_OP_PURGE, .limit = 1, .cursor = *id};

    for (size_t i = sizeof(id->bytes); i > 0 && op.cursor.bytes[i - 1]-- == 0; i--)
        ;
    h->model_us = at_us;
    CHECK(hapax_store_run(h->model, &op, 1) == HAPAX_ERR_NONE, "model");
    CHECK(op.expired_claims == 1 && memcmp(&op.next_cursor, id, sizeof(*id)) == 0,
          "id %02x%02x was swept to unknown, and should not have been", id->bytes[0], id->bytes[1]);
}

/* How many of the ids from n on a page of a sweep has made unknown; each must be one that the model
 * has to make unknown at that time. */
static unsigned compare_expired(struct history *h, unsigned n, unsigned count, int64_t at_us)
{
    unsigned found = 0;

    for (unsigned i = n; i < n + count; i++) {
        struct hapax_op op = op_of(h->suite, HAPAX_OP_READ, i, 0), model = op;

        h->model_us = at_us;
        CHECK(hapax_store_run(h->model, &model, 1) == HAPAX_ERR_NONE, "model");
        if (model.record.state != HAPAX_STATE_STARTED && model.record.state != HAPAX_STATE_FAILED)
            continue;
        run_op(h->store, &op);
        if (op.record.state != HAPAX_STATE_UNKNOWN)
            continue;
        follow_expired(h, &op.id, at_us);
        found++;
    }
    return found;
}

/* Sweeps the store to its end, page by page, and the model with it; what is absent stays absent.
 * The ids of this history are those from n on. */
static void compare_purge(struct history *h, unsigned n, unsigned count)
{
    struct hapax_op op = {.kind = HAPAX_OP_PURGE, .limit = 1 + (uint32_t)pick(h, 3)};
    bool walks = !h->store->type->forgets;
    unsigned pages = 0, expired;
    int64_t first_us = 0;

    do {
        run_op(h->store, &op);
        CHECK(op.verdict == HAPAX_OK && op.purged + op.expired_claims <= op.limit,
              "%u purged, %u expired claims", op.purged, op.expired_claims);
        CHECK(walks || op.purged + op.expired_claims == 0, "a store that forgets has swept");
        CHECK(++pages < PAGES_MAX, "the purge does not end");
        h->last_us = op.now_us;
        first_us = first_us == 0 ? op.now_us : first_us;
        expired = op.expired_claims > 0 ? compare_expired(h, n, count, op.now_us) : 0;
        CHECK(!h->alone || expired == op.expired_claims, "%u expired claims, %u found",
              op.expired_claims, expired);
        h->expired_claims += expired;
        op.cursor = op.next_cursor;
    } while (op.more);
    if (!walks)
        return;
    /* What was dead when the sweep began was met on its way. */
    h->model_us = first_us;
    op = (struct hapax_op){.kind = HAPAX_OP_PURGE};
    CHECK(hapax_store_run(h->model, &op, 1) == HAPAX_ERR_NONE, "model");
    CHECK(op.expired_claims == 0, "%u dead claims under hold were passed over", op.expired_claims);
}

/* ---- the cases ----------------------------------------------------------------------- */

static void read_all(struct history *h, unsigned round)
{
    struct hapax_op ops[IDS];

    for (unsigned i = 0; i < IDS; i++)
        ops[i] = op_of(h->suite, HAPAX_OP_READ, round * IDS + i, 0);
    run_batch(h, ops, IDS);
}

/* Whether a verdict was never given. Where the clock is real, chance decides which records outlive
 * their retention; rounds are added until each was seen, where they are not few from the start. */
static bool lacks_verdict(const struct suite *suite, const unsigned *seen)
{
    if (suite->rounds < (suite->hinted ? 20 : 4))
        return false;
    for (size_t v = HAPAX_CLAIMED; v <= HAPAX_ABSENT; v++)
        if (seen[v] == 0)
            return true;
    return false;
}

/* Whatever is asked, the store answers what the model answers. */
static void a_random_history_is_the_models(const struct suite *suite) /* promises 7, 13 */
{
    unsigned seen[HAPAX_ABSENT + 1] = {0}, swept = 0;
    unsigned rounds_max = 20 * suite->rounds;
    static struct history h;

    for (unsigned round = 0;
         round < suite->rounds || (round < rounds_max && lacks_verdict(suite, seen)); round++) {
        begin(&h, suite, round);
        for (unsigned b = 0; b < BATCHES; b++) {
            struct hapax_op ops[BATCH_MAX];
            size_t n = once_in(&h, 2) ? 1 : 1 + pick(&h, BATCH_MAX);

            for (size_t i = 0; i < n; i++)
                make_op(&h, &ops[i], round);
            for (uint64_t times = once_in(&h, 4) ? 2 + pick(&h, 2) : 1; times > 0; times--)
                run_batch(&h, ops, n);
            if (once_in(&h, 10))
                wait_until(h.store, suite, h.last_us + (1 + (int64_t)pick(&h, 6)) * 1000);
            if (once_in(&h, 12))
                compare_list(&h);
            if (once_in(&h, 30))
                compare_purge(&h, round * IDS, IDS);
        }
        read_all(&h, round);
        for (size_t v = 0; v <= HAPAX_ABSENT; v++)
            seen[v] += h.seen[v];
        swept += h.expired_claims;
        end(&h);
    }
    printf("# answers:");
    for (size_t v = HAPAX_CLAIMED; v <= HAPAX_ABSENT; v++)
        printf(" %s %u", hapax_verdict_name((enum hapax_verdict)v), seen[v]);
    printf(", claims expired by sweeps %u\n", swept);
    CHECK(!lacks_verdict(suite, seen), "a verdict was never given");
}

static bool finished(const struct hapax_op *op)
{
    return op->verdict != HAPAX_IN_FLIGHT &&
           !(op->kind == HAPAX_OP_RESOLVE && op->resolve == HAPAX_RESOLVE_FORGET);
}

/* A lease ends between these times, by the clock of this process. */
struct lease_end {
    struct hapax_id id;
    int64_t from_us, to_us;
};

/* Runs the op, and adds the lease for which it may have claimed. */
static void run_until(struct history *h, struct hapax_op *op, struct lease_end *ends, unsigned *n)
{
    int64_t from_us = hapax__monotonic_us() + op->lease_ms * 1000;

    run_op(h->store, op);
    if (op->kind == HAPAX_OP_CLAIM || op->kind == HAPAX_OP_RENEW)
        ends[(*n)++] =
            (struct lease_end){op->id, from_us, hapax__monotonic_us() + op->lease_ms * 1000};
}

static bool has_ended(const struct lease_end *ends, unsigned n, const struct hapax_id *id,
                      int64_t since_us)
{
    int64_t now_us = hapax__monotonic_us();

    for (unsigned i = 0; i < n; i++) {
        if (memcmp(&ends[i].id, id, sizeof(*id)) == 0 && ends[i].from_us <= now_us &&
            ends[i].to_us >= since_us)
            return true;
    }
    return false;
}

/* Replies are lost: each op is sent up to three times, and says the same each time, as long as no
 * claim dies meanwhile. An answer that another attempt is in flight may change, and what was
 * forgotten is gone. */
static void an_op_may_be_repeated_until_its_reply_comes(const struct suite *suite) /* promise 10 */
{
    static struct history h;
    struct lease_end *ends = calloc(3 * 40 * suite->rounds, sizeof(*ends));
    unsigned ends_n = 0, compared = 0;

    CHECK(ends, "out of memory");
    begin(&h, suite, 1000);
    for (unsigned i = 0; i < 40 * suite->rounds; i++) {
        int64_t before_us = hapax__monotonic_us();
        struct hapax_op op, first;

        make_op(&h, &op, 1000);
        op.retention_ms = 3600000;
        op.kept_ms = op.kept_ms > 0 ? 3600000 : 0;
        first = op;
        run_until(&h, &first, ends, &ends_n);
        for (uint64_t times = pick(&h, 3); times > 0 && finished(&first); times--) {
            struct hapax_op again = op;
            struct hapax_record record = first.record;

            run_until(&h, &again, ends, &ends_n);
            if (has_ended(ends, ends_n, &op.id, before_us))
                break;
            if (suite->halves && op.kind == HAPAX_OP_CLAIM && first.verdict != HAPAX_CLAIMED &&
                again.verdict == HAPAX_LOST)
                break; /* one half had granted it, and it was given back */
            compared++;
            CHECK(again.verdict == first.verdict, "op %u of kind %d: first %s, then %s", i,
                  (int)op.kind, hapax_verdict_name(first.verdict),
                  hapax_verdict_name(again.verdict));
            CHECK(again.record.attempt == record.attempt && again.record.fence == record.fence &&
                      again.record.stale == record.stale && again.record.state == record.state &&
                      again.record.outcome.status == record.outcome.status &&
                      again.record.outcome.body.len == record.outcome.body.len,
                  "op %u of kind %d: %s differs when repeated", i, (int)op.kind,
                  hapax_verdict_name(first.verdict));
        }
    }
    printf("# %u repeats compared\n", compared);
    end(&h);
    free(ends);
}

/* Three hundred records of two scopes: whole lists, in pages of every size, purges between. */
static void long_lists_come_in_pages(const struct suite *suite)
{
    static struct history h;

    begin(&h, suite, 2000);
    for (unsigned i = 0; i < 300; i++) {
        struct hapax_op op = op_of(suite, HAPAX_OP_CLAIM, 5000 + i, 1);

        op.scope = hapax_str(h.scopes[i % 2]);
        op.retention_ms = i % 5 ? 3600000 : 1;
        op.lease_ms = i % 3 ? 3600000 : 1;
        op.on_expired = i % 7 ? HAPAX_EXPIRED_RERUN : HAPAX_EXPIRED_HOLD;
        run_batch(&h, &op, 1);
        if (i % 4 == 0) {
            op = op_of(suite, HAPAX_OP_COMPLETE, 5000 + i, 1);
            run_batch(&h, &op, 1);
        }
    }
    wait_until(h.store, suite, h.last_us + 1000); /* a fast store is done before a lease is over */
    for (unsigned i = 0; i < 24; i++) {
        compare_list(&h);
        if (i % 8 == 7)
            compare_purge(&h, 5000, 300);
    }
    CHECK(h.expired_claims > 0 || h.store->type->forgets, "no sweep had a dead claim to end");
    end(&h);
}

/* PURGE takes what has expired, never a live claim, and says how many. */
static void a_purge_takes_the_expired_alone(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op;
    int64_t end_us = 0;
    unsigned purged = 0;

    for (unsigned i = 0; i < 40; i++) {
        op = op_of(suite, HAPAX_OP_CLAIM, i, 1);
        op.retention_ms = 1;
        op.lease_ms = i < 20 ? 5 : 60000;
        run_op(store, &op);
        if (i < 20)
            end_us = op.record.expires_us;
    }
    wait_until(store, suite, end_us);
    op = (struct hapax_op){.kind = HAPAX_OP_PURGE, .limit = 7};
    do {
        run_op(store, &op);
        purged += op.purged;
        op.cursor = op.next_cursor;
    } while (op.more);
    CHECK(!suite->fresh || purged == (store->type->forgets ? 0 : 20), "%u purged", purged);
    for (unsigned i = 0; i < 40; i++) {
        op = op_of(suite, HAPAX_OP_READ, i, 0);
        run_op(store, &op);
        CHECK((op.verdict == HAPAX_FOUND) == (i >= 20), "record %u: %s", i,
              hapax_verdict_name(op.verdict));
    }
    hapax_store_close(store);
}

const struct test_case history_cases[] = {
    {"a_random_history_is_the_models", a_random_history_is_the_models, false, false},
    {"an_op_may_be_repeated_until_its_reply_comes", an_op_may_be_repeated_until_its_reply_comes,
     false, false},
    {"long_lists_come_in_pages", long_lists_come_in_pages, false, false},
    {"a_purge_takes_the_expired_alone", a_purge_takes_the_expired_alone, false, false},
    {NULL, NULL, false, false},
};
