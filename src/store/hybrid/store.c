/* SPDX-License-Identifier: Apache-2.0
 *
 * The hybrid store: Redis in front of PostgreSQL. A batch looks up the hints of its CLAIMs in one
 * round over the Redis nodes. A lock that turns a CLAIM away, or a copy that answers it, ends the
 * CLAIM. The rest is one batch of the PostgreSQL store. Afterwards the hints are refreshed, and
 * nobody waits for that.
 *
 * The invariant: PostgreSQL alone grants claims and judges writes. A hint can answer IN_FLIGHT to
 * the same request while another's lock stands, which costs the caller a later question at worst.
 * Or it answers COMPLETED from a copy that is whole, within its retention, and of the epoch that
 * PostgreSQL had less than half a second ago (epoch.c). So a Redis that is down, slow, wiped, or
 * older than it was makes the store slower, never wrong. A Redis that others write to can do no
 * more where the store is bound to a secret: copies are sealed with it. Without a secret copies are
 * checked for damage alone, so whoever writes to Redis can forge a copy, and with it an answer. A
 * forged lock answers IN_FLIGHT, which runs nothing.
 *
 * A CLAIM whose result is not known is repeated without a lookup: its own first try may have the
 * claim, and another's lock must not hide that. Rejected: a store with rules of its own for what
 * Redis has and PostgreSQL has not; there is no such thing.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "core/id.h"
#include "core/machine.h"
#include "hybrid.h"
#include "store/types.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX      HAPAX__REDLOCK_NODES_MAX
#define DOUBTS         1024u
#define DOUBT_PLACES   4u /* where a doubt may stand */
#define CALM_CLAIMS    256u /* in a row without IN_FLIGHT; then no locks are taken until one */
#define COPY_MAX       ((size_t)256 << 10) /* bytes of a hint */
#define COPY_LIFE_MS   (INT64_C(24) * 3600 * 1000)
#define COPY_MIN_US    (1 * US_PER_S) /* of retention left: less is not worth a copy */
#define COPY_MARGIN_US (100 * US_PER_MS)
#define LOCK_MIN_US    (5 * US_PER_MS)
/* A bare lock that claims to stand longer was not written by a hybrid store. */
#define BARE_MAX_US     (HAPAX__HINT_BARE_MS * US_PER_MS + US_PER_S)
#define RESOLVE_WAIT_US (HAPAX__HYBRID_FRESH_US + 50 * US_PER_MS)
#define DOWN_US         (1 * US_PER_S) /* before PostgreSQL is asked again for the epoch */
#define SKEW_MAX_US     (1 * US_PER_S)

/* A CLAIM whose result is not known. Both halves of a rotation are claimed with one token. */
struct doubt {
    struct hapax_mark mark;
    struct hapax_id id;
    int64_t until_us; /* boot time: the lease that the CLAIM may have got; 0: no doubt */
};

struct hybrid {
    struct hapax_store base;
    struct hapax_store *postgres;
    struct hapax__redlock *lock;
    bool stale_replay;
    bool seals; /* the store is bound to a secret */
    struct hapax_digest key; /* of the seals */
    struct hapax_arena arena; /* of one run */
    struct hapax__known known;
    int64_t down_until_us; /* boot time; PostgreSQL failed to answer just before */
    /* By the first bytes of the mark. Where all places of a doubt are taken, the one that ends
     * first goes. Until its end no CLAIM is looked up. */
    struct doubt doubts[DOUBTS];
    int64_t blind_until_us; /* boot time */
    struct hapax_mark marks[HAPAX__HYBRID_BATCH_MAX]; /* of each op of the batch */
    struct hapax__lookup lookups[HAPAX__HYBRID_BATCH_MAX];
    size_t lookup_count;
    unsigned large; /* see hapax__hints_lookup() */
    size_t calm; /* CLAIMs since the last IN_FLIGHT, at most CALM_CLAIMS */
    bool take; /* this run's lookups take locks */
    size_t lookup_of[HAPAX__HYBRID_BATCH_MAX]; /* of each op: index of its lookup + 1; 0: none */
    /* The epoch that was known before PostgreSQL was asked; 0: none, so no copies are made. */
    uint64_t epoch;
    struct hapax__refresh refreshes[HAPAX__HYBRID_BATCH_MAX];
    size_t refresh_count;
    struct hapax_op asked[HAPAX__HYBRID_BATCH_MAX + 1];
    size_t from[HAPAX__HYBRID_BATCH_MAX];
};

/* The key of the seals; NULL: none. */
static const struct hapax_digest *key_of(const struct hybrid *h)
{
    return h->seals ? &h->key : NULL;
}

static void hybrid_bound(struct hapax_store *store, struct hapax_span secret)
{
    const struct hapax_span label = hapax_str("copies");
    struct hybrid *h = (struct hybrid *)store;

    hapax__mac(&h->key, secret, &label, 1);
    h->seals = true;
}

/* ---- doubts -------------------------------------------------------------------------- */

static bool same_mark(const struct hapax_mark *a, const struct hapax_mark *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static struct doubt *place_of(struct hybrid *h, const struct hapax_mark *mark, unsigned place)
{
    return &h->doubts[(((size_t)mark->bytes[0] << 8 | mark->bytes[1]) + place) % DOUBTS];
}

/* NULL: there is none. */
static struct doubt *doubt_of(struct hybrid *h, const struct hapax_op *op,
                              const struct hapax_mark *mark)
{
    for (unsigned i = 0; i < DOUBT_PLACES; i++) {
        struct doubt *doubt = place_of(h, mark, i);

        if (same_mark(&doubt->mark, mark) && memcmp(&doubt->id, &op->id, sizeof(op->id)) == 0)
            return doubt;
    }
    return NULL;
}

static bool doubtful(struct hybrid *h, const struct hapax_op *op, const struct hapax_mark *mark)
{
    return doubt_of(h, op, mark) || hapax__boot_us() < h->blind_until_us;
}

static struct doubt *make_room(struct hybrid *h, const struct hapax_mark *mark, int64_t boot_us)
{
    struct doubt *first = place_of(h, mark, 0);

    for (unsigned i = 1; i < DOUBT_PLACES; i++)
        if (place_of(h, mark, i)->until_us < first->until_us)
            first = place_of(h, mark, i);
    if (first->until_us > boot_us && first->until_us > h->blind_until_us)
        h->blind_until_us = first->until_us;
    return first;
}

/* An op that was not applied says nothing about the tries before it. */
static void note_result(struct hybrid *h, const struct hapax_op *op, const struct hapax_mark *mark)
{
    struct doubt *doubt = doubt_of(h, op, mark);

    if (op->error == HAPAX_ERR_INDETERMINATE) {
        int64_t boot_us = hapax__boot_us();

        doubt = doubt ? doubt : make_room(h, mark, boot_us);
        *doubt = (struct doubt){*mark, op->id, boot_us + op->lease_ms * US_PER_MS};
    } else if (op->verdict != HAPAX_NO_VERDICT && doubt) {
        *doubt = (struct doubt){0};
    }
}

/* ---- answers from hints -------------------------------------------------------------- */

static bool same_request(const struct hapax_op *op, const struct hapax_record *record)
{
    return memcmp(&op->fingerprint, &record->fingerprint, sizeof(op->fingerprint)) == 0 &&
           memcmp(&op->caller, &record->caller, sizeof(op->caller)) == 0;
}

/* False: out of memory, and the op is as it was. */
static bool answer(struct hybrid *h, struct hapax_op *op, enum hapax_verdict verdict,
                   const struct hapax_record *record, int64_t now_us)
{
    op->verdict = verdict;
    op->error = HAPAX_ERR_NONE;
    op->record = *record;
    op->now_us = now_us;
    return hapax__store_keep(&h->base, op);
}

/* Answers IN_FLIGHT where a live lock of another attempt at the same request stands. */
static bool turn_away(struct hybrid *h, struct hapax_op *op, struct hapax__lookup *lookup)
{
    struct hapax_record *record = &lookup->lock.record;
    int64_t boot_us = hapax__boot_us();
    int64_t low_us, high_us;

    if (!lookup->locked || !h->known.clock || !same_request(op, record))
        return false;
    low_us = hapax__known_low(&h->known, boot_us);
    high_us = hapax__known_high(&h->known, boot_us);
    if (high_us >= record->lease_until_us)
        return false;
    if (lookup->lock.kind == HAPAX__HINT_BARE) {
        if (record->lease_until_us - low_us > BARE_MAX_US)
            return false;
        record->scope = op->scope;
    }
    return answer(h, op, HAPAX_IN_FLIGHT, record, low_us);
}

/* Whether there is a copy that fits the request and whose retention is not over. */
static bool fits(const struct hybrid *h, const struct hapax_op *op,
                 const struct hapax__lookup *lookup)
{
    const struct hapax_record *record = &lookup->copy.record;
    int64_t now_us =
        h->known.clock ? hapax__known_high(&h->known, hapax__boot_us()) : hapax__wall_us();

    return lookup->copied && same_request(op, record) &&
           (record->expires_us == 0 || now_us + COPY_MARGIN_US < hapax__shown_until(record));
}

/* Answers COMPLETED from a copy. stale: without the epoch, since PostgreSQL cannot be asked and the
 * policy allows it. */
static bool replay(struct hybrid *h, struct hapax_op *op, const struct hapax__lookup *lookup,
                   bool stale)
{
    int64_t boot_us = hapax__boot_us();

    if (!fits(h, op, lookup))
        return false;
    if (!stale && (!h->known.clock || !hapax__known_fresh(&h->known, boot_us) ||
                   lookup->copy.epoch != h->known.epoch))
        return false;
    return answer(h, op, HAPAX_COMPLETED, &lookup->copy.record,
                  h->known.clock ? hapax__known_low(&h->known, boot_us) : hapax__wall_us());
}

/* ---- lookups ------------------------------------------------------------------------- */

static void choose_lookups(struct hybrid *h, const struct hapax_op *ops, size_t n)
{
    h->lookup_count = 0;
    for (size_t i = 0; i < n; i++) {
        h->lookup_of[i] = 0;
        hapax__mark(&h->marks[i], &ops[i].token);
        if (ops[i].kind != HAPAX_OP_CLAIM || doubtful(h, &ops[i], &h->marks[i]))
            continue;
        h->lookups[h->lookup_count++] = (struct hapax__lookup){.op = &ops[i], .mark = h->marks[i]};
        h->lookup_of[i] = h->lookup_count;
    }
}

/* Asks PostgreSQL for its clock and the epoch alone. False: PostgreSQL did not answer. */
static bool ask(struct hybrid *h, enum hapax_error *error)
{
    *error = hapax__known_ask(&h->known, h->postgres);
    if (*error == HAPAX_ERR_INDETERMINATE)
        *error = HAPAX_ERR_UNAVAILABLE; /* only a READ was sent */
    if (*error == HAPAX_ERR_UNAVAILABLE && h->stale_replay)
        h->down_until_us = hapax__boot_us() + DOWN_US;
    if (*error != HAPAX_ERR_NONE)
        (void)hapax_store_fail(&h->base, *error, "%s", hapax_store_text(h->postgres));
    return *error == HAPAX_ERR_NONE;
}

static bool any_copy(const struct hybrid *h)
{
    for (size_t i = 0; i < h->lookup_count; i++)
        if (fits(h, h->lookups[i].op, &h->lookups[i]))
            return true;
    return false;
}

/* Whether the handle must ask first, since it knows no clock yet, or no epoch. */
static bool ignorant(const struct hybrid *h, int64_t boot_us)
{
    return !h->known.clock ||
           (h->known.epoch == 0 && boot_us - h->known.asked_us >= HAPAX__HYBRID_FRESH_US);
}

/* Looks up the hints and answers what they can. An error: the handle had to ask PostgreSQL first,
 * and got no answer. */
static enum hapax_error look_up(struct hybrid *h, struct hapax_op *ops, size_t n)
{
    enum hapax_error error = HAPAX_ERR_NONE;
    bool down = hapax__boot_us() < h->down_until_us;

    choose_lookups(h, ops, n);
    h->take = h->calm < CALM_CLAIMS || h->large > 0;
    if (h->lookup_count == 0)
        return error;
    if (!down && ignorant(h, hapax__boot_us()))
        (void)ask(h, &error);
    if (error != HAPAX_ERR_NONE && !h->stale_replay)
        return error;
    if (!hapax__hints_lookup(h->lock, &h->arena, h->lookups, h->lookup_count,
                             h->known.clock ? hapax__known_low(&h->known, hapax__boot_us())
                                            : hapax__wall_us(),
                             h->take, &h->large, key_of(h)))
        return error;
    if (error == HAPAX_ERR_NONE && !down && any_copy(h) &&
        !hapax__known_fresh(&h->known, hapax__boot_us()))
        (void)ask(h, &error);
    for (size_t i = 0; i < n; i++) {
        struct hapax__lookup *found = h->lookup_of[i] > 0 ? &h->lookups[h->lookup_of[i] - 1] : NULL;

        if (found &&
            !replay(h, &ops[i], found, h->stale_replay && (down || error == HAPAX_ERR_UNAVAILABLE)))
            (void)turn_away(h, &ops[i], found);
    }
    return error;
}

/* ---- refreshing ---------------------------------------------------------------------- */

static int64_t ms_of(int64_t us)
{
    int64_t ms = us / US_PER_MS + 1;

    return ms < COPY_LIFE_MS ? ms : COPY_LIFE_MS;
}

static bool make_lock(struct hybrid *h, struct hapax__refresh *out,
                      const struct hapax_record *record)
{
    int64_t left_us = record->lease_until_us - hapax__known_high(&h->known, hapax__boot_us());

    if (left_us < LOCK_MIN_US)
        return false;
    out->value = hapax__hint_lock(&h->arena, record, out->mark);
    out->ttl_ms = ms_of(left_us);
    return out->value.ptr != NULL;
}

static bool make_copy(struct hybrid *h, struct hapax__refresh *out,
                      const struct hapax_record *record)
{
    int64_t left_us = record->expires_us == 0 ? COPY_LIFE_MS * US_PER_MS
                                              : hapax__shown_until(record) -
                                                    hapax__known_high(&h->known, hapax__boot_us());

    if (h->epoch == 0 || record->reruns || left_us < COPY_MIN_US ||
        record->outcome.headers.len + record->outcome.body.len > COPY_MAX)
        return false;
    out->value = hapax__hint_copy(&h->arena, record, h->epoch, key_of(h));
    out->ttl_ms = ms_of(left_us);
    return out->value.ptr != NULL;
}

/* Whether the bare lock of a granted claim is enough: it ends with the lease, or sooner. A RENEW
 * puts the record there; many operations end before a RENEW. */
static bool lock_will_do(const struct hybrid *h, const struct hapax_op *op, size_t i)
{
    const struct hapax__lookup *lookup =
        h->lookup_of[i] > 0 ? &h->lookups[h->lookup_of[i] - 1] : NULL;

    return op->verdict == HAPAX_CLAIMED && lookup && lookup->taken &&
           lookup->until_us <= op->record.lease_until_us;
}

/* Whether the op's answer shows a completed record with its outcome. */
static bool shows_completion(const struct hapax_op *op)
{
    return op->record.state == HAPAX_STATE_COMPLETED &&
           (op->kind == HAPAX_OP_COMPLETE ? op->verdict == HAPAX_OK || op->verdict == HAPAX_LOST
                                          : op->verdict == HAPAX_COMPLETED);
}

/* Whether the op's own lock may stand on a node. */
static bool left_lock(struct hybrid *h, const struct hapax_op *op, size_t i)
{
    if (op->kind != HAPAX_OP_CLAIM)
        return true;
    return h->lookup_of[i] > 0 ? h->lookups[h->lookup_of[i] - 1].placed
                               : doubtful(h, op, &h->marks[i]);
}

/* How to refresh the hint of an op that PostgreSQL was sent; sets the value in *out. 0: not. */
static enum hapax__refresh_kind kind_of(struct hybrid *h, struct hapax__refresh *out,
                                        const struct hapax_op *op, size_t i)
{
    bool granted = op->verdict == HAPAX_CLAIMED;
    bool started = op->record.state == HAPAX_STATE_STARTED &&
                   (granted || (op->kind == HAPAX_OP_RENEW && op->verdict == HAPAX_OK));

    if (op->kind == HAPAX_OP_READ || op->kind == HAPAX_OP_IMPORT ||
        op->error == HAPAX_ERR_INDETERMINATE)
        return 0;
    if (op->kind == HAPAX_OP_RESOLVE)
        return op->verdict == HAPAX_OK ? HAPAX__REFRESH_FORGET : 0;
    if (granted && (!h->take || lock_will_do(h, op, i)))
        return 0;
    if (h->known.clock && started && make_lock(h, out, &op->record))
        return HAPAX__REFRESH_PUT;
    if (h->known.clock && shows_completion(op) && make_copy(h, out, &op->record))
        return op->kind == HAPAX_OP_COMPLETE && op->verdict == HAPAX_OK ? HAPAX__REFRESH_COPY
                                                                        : HAPAX__REFRESH_PUT;
    if (op->verdict == HAPAX_NO_VERDICT &&
        (op->kind != HAPAX_OP_CLAIM || doubtful(h, op, &h->marks[i])))
        return 0; /* it was not applied: the attempt goes on, or an earlier try may have landed */
    return left_lock(h, op, i) ? HAPAX__REFRESH_DROP : 0;
}

/* Counts the CLAIMs since the last IN_FLIGHT. */
static void note_calm(struct hybrid *h, const struct hapax_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind == HAPAX_OP_CLAIM && ops[i].verdict != HAPAX_NO_VERDICT)
            h->calm++;
        if (ops[i].verdict == HAPAX_IN_FLIGHT && ops[i].kind == HAPAX_OP_CLAIM)
            h->calm = 0;
    }
    if (h->calm > CALM_CLAIMS)
        h->calm = CALM_CLAIMS;
}

static void refresh(struct hybrid *h, const struct hapax_op *ops, const bool *sent, size_t n)
{
    h->refresh_count = 0;
    for (size_t i = 0; i < n; i++) {
        struct hapax__refresh *out = &h->refreshes[h->refresh_count];

        *out = (struct hapax__refresh){.id = &ops[i].id, .mark = &h->marks[i]};
        if (sent[i])
            out->what = kind_of(h, out, &ops[i], i);
        else if (h->lookup_of[i] > 0 && left_lock(h, &ops[i], i))
            out->what = HAPAX__REFRESH_DROP;
        h->refresh_count += out->what != 0;
        if (sent[i] && ops[i].kind == HAPAX_OP_CLAIM)
            note_result(h, &ops[i], &h->marks[i]);
    }
    note_calm(h, ops, n);
    hapax__hints_refresh(h->lock, &h->arena, h->refreshes, h->refresh_count);
}

/* ---- run ----------------------------------------------------------------------------- */

/* Sends PostgreSQL the ops without an answer, and a READ of the epoch where it is getting old. */
static enum hapax_error run_rest(struct hybrid *h, struct hapax_op *ops, size_t n, bool *sent)
{
    int64_t sent_us = hapax__boot_us();
    enum hapax_error error;
    size_t count = 0, more = 0;

    h->epoch = h->known.epoch;
    for (size_t i = 0; i < n; i++) {
        sent[i] = ops[i].verdict == HAPAX_NO_VERDICT;
        if (!sent[i])
            continue;
        h->from[count] = i;
        h->asked[count++] = ops[i];
    }
    if (count == 0)
        return HAPAX_ERR_NONE;
    if (sent_us - h->known.epoch_us > HAPAX__HYBRID_FRESH_US / 2)
        h->asked[count + more++] = hapax__epoch_read();
    error = hapax_store_run(h->postgres, h->asked, count + more);
    hapax__known_clock(&h->known, h->asked, count + more, sent_us, hapax__boot_us());
    if (more > 0)
        hapax__known_epoch(&h->known, &h->asked[count], sent_us);
    for (size_t i = 0; i < count; i++) {
        ops[h->from[i]] = h->asked[i];
        if (h->asked[i].verdict != HAPAX_NO_VERDICT)
            (void)hapax__store_keep(&h->base, &ops[h->from[i]]);
    }
    if (error != HAPAX_ERR_NONE)
        (void)hapax_store_fail(&h->base, error, "%s", hapax_store_text(h->postgres));
    for (size_t i = 0; i < count; i++)
        if (ops[h->from[i]].error != HAPAX_ERR_NONE)
            return ops[h->from[i]].error;
    return HAPAX_ERR_NONE;
}

/* Ends the ops without an answer; none was sent to PostgreSQL. */
static void give_up(struct hapax_op *ops, size_t n, enum hapax_error error)
{
    for (size_t i = 0; i < n; i++)
        if (ops[i].verdict == HAPAX_NO_VERDICT)
            ops[i].error = error;
}

/* Waits until nobody can believe in the epoch before a forced RESOLVE: then it is the last word. */
static void outwait_copies(struct hybrid *h, const struct hapax_op *ops, size_t n)
{
    int64_t end_us = hapax__boot_us() + RESOLVE_WAIT_US;
    bool wait = false;

    for (size_t i = 0; i < n; i++)
        wait |= ops[i].kind == HAPAX_OP_RESOLVE && ops[i].force &&
                (ops[i].verdict == HAPAX_OK || ops[i].error == HAPAX_ERR_INDETERMINATE);
    if (!wait)
        return;
    h->known.epoch = 0;
    h->known.asked_us = 0;
    for (int64_t left_us = RESOLVE_WAIT_US; left_us > 0; left_us = end_us - hapax__boot_us())
        (void)poll(NULL, 0, (int)(left_us / US_PER_MS) + 1);
}

/* LIST and PURGE. Their answers are copied, since PostgreSQL's next answer replaces them. */
static enum hapax_error run_walk(struct hybrid *h, struct hapax_op *op)
{
    int64_t sent_us = hapax__boot_us();
    enum hapax_error error = hapax_store_run(h->postgres, op, 1);
    struct hapax_record *records = NULL;

    hapax__known_clock(&h->known, op, 1, sent_us, hapax__boot_us());
    if (error != HAPAX_ERR_NONE)
        return hapax_store_fail(&h->base, error, "%s", hapax_store_text(h->postgres));
    if (op->count > 0) {
        records = hapax_store_memory(&h->base, op->count * sizeof(*records));
        if (records)
            memcpy(records, op->records, op->count * sizeof(*records));
        op->records = records;
    }
    if ((op->count == 0 || records) && hapax__store_keep(&h->base, op))
        return HAPAX_ERR_NONE;
    op->verdict = HAPAX_NO_VERDICT;
    op->error = HAPAX_ERR_NOMEM;
    return hapax_store_fail(&h->base, HAPAX_ERR_NOMEM, "out of memory for a list");
}

static enum hapax_error hybrid_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct hybrid *h = (struct hybrid *)store;
    bool sent[HAPAX__HYBRID_BATCH_MAX] = {false};
    enum hapax_error error;

    assert(n >= 1 && n <= HAPAX__HYBRID_BATCH_MAX);
    if (ops[0].kind == HAPAX_OP_LIST || ops[0].kind == HAPAX_OP_PURGE)
        return run_walk(h, &ops[0]);
    hapax__arena_reset(&h->arena);
    error = look_up(h, ops, n);
    if (error == HAPAX_ERR_NONE)
        error = run_rest(h, ops, n, sent);
    else
        give_up(ops, n, error);
    refresh(h, ops, sent, n);
    outwait_copies(h, ops, n);
    return error;
}

/* ---- check --------------------------------------------------------------------------- */

struct clocks {
    hapax_say *say;
    void *arg;
    int64_t ahead_us; /* of PostgreSQL's clock before boot time */
};

#define tell(c, ...) hapax__tell((c)->say, (c)->arg, __VA_ARGS__)

/* A node's answer to TIME: seconds and µs. */
static void check_node(const struct clocks *clocks, size_t node, const struct hapax__resp *reply)
{
    int64_t clock_us, off_us;

    if (!reply || reply->type != HAPAX__RESP_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != HAPAX__RESP_STRING ||
        reply->element[1]->type != HAPAX__RESP_STRING) {
        tell(clocks, true, "redis node %zu does not answer", node + 1);
        return;
    }
    clock_us = strtoll(reply->element[0]->str, NULL, 10) * US_PER_S +
               strtoll(reply->element[1]->str, NULL, 10);
    off_us = clock_us - clocks->ahead_us - hapax__boot_us();
    if (off_us > SKEW_MAX_US || off_us < -SKEW_MAX_US)
        tell(clocks, false,
             "redis node %zu: its clock is %" PRId64 " s %s PostgreSQL's (nothing depends on it: "
             "what stands in Redis has a time to live, and PostgreSQL judges)",
             node + 1, (off_us > 0 ? off_us : -off_us) / US_PER_S,
             off_us > 0 ? "ahead of" : "behind");
    else
        tell(clocks, false, "redis node %zu answers; its clock agrees with PostgreSQL's", node + 1);
}

/* A Redis that is away is no failure of the store: PostgreSQL answers every op. */
static void check_redis(struct hybrid *h, const struct clocks *clocks)
{
    const struct hapax_span command = hapax_str("TIME");
    const struct hapax__redlock_call call = {&command, 1};
    size_t nodes = hapax__redlock_nodes(h->lock), answered;
    struct hapax__resp *replies[NODES_MAX];
    char text[HAPAX_TEXT_MAX];

    answered = hapax__redlock_ask(h->lock, &call, 1, US_PER_S, replies, text);
    for (size_t i = 0; i < nodes; i++)
        check_node(clocks, i, replies[i]);
    if (text[0])
        tell(clocks, true, "redis: %.200s", text);
    if (answered < hapax__redlock_majority(nodes))
        tell(clocks, true,
             "redis: %zu of %zu nodes answer, so every op goes to PostgreSQL: nothing is lost, but "
             "PostgreSQL has to bear the whole load",
             answered, nodes);
}

/* Whether others may write to a node: it is on another machine, or asks us for no login. */
static bool open_to_others(const struct hapax__redis_uri *uri)
{
    return hapax__redis_far(uri) || !hapax__redis_login(uri);
}

/* Without a secret nothing tells a forged copy from ours. The check value of a secret stands in the
 * store, so the secret itself need not be known here. */
static enum hapax_error check_forgers(struct hybrid *h, const struct clocks *clocks)
{
    bool secret, open = false;
    enum hapax_error error = hapax__bind_has_secret(h->postgres, &secret);

    if (error != HAPAX_ERR_NONE)
        return error;
    for (size_t i = 0; i < h->lock->count; i++)
        open |= open_to_others(&h->lock->nodes[i].uri);
    if (secret)
        tell(clocks, false, "copies are sealed with the store's secret");
    else if (open)
        tell(clocks, true,
             "the store has no secret, so whoever can write to its Redis can forge answers, and "
             "that Redis is on another machine or asks for no password (set HAPAX_SECRET_FILE "
             "before the store's first use)");
    return HAPAX_ERR_NONE;
}

static enum hapax_error hybrid_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct hybrid *h = (struct hybrid *)store;
    struct clocks clocks = {say, arg, 0};
    enum hapax_error error = hapax_store_check(h->postgres, say, arg);

    if (error == HAPAX_ERR_NONE)
        error = hapax__known_ask(&h->known, h->postgres);
    if (error != HAPAX_ERR_NONE)
        return hapax_store_fail(store, error, "%s", hapax_store_text(h->postgres));
    clocks.ahead_us = h->known.low_us - h->known.low_boot_us;
    error = check_forgers(h, &clocks);
    if (error != HAPAX_ERR_NONE)
        return hapax_store_fail(store, error, "%s", hapax_store_text(h->postgres));
    if (h->known.epoch == 0)
        tell(&clocks, false, "the epoch's record is not there yet: no copies are kept");
    if (h->stale_replay)
        tell(&clocks, false,
             "stale_replay is on: while PostgreSQL does not answer, what an operator resolved may "
             "be answered as it was before");
    check_redis(h, &clocks);
    return HAPAX_ERR_NONE;
}

/* PostgreSQL is what judges and what can be lost; Redis has copies. */
static enum hapax_error hybrid_measure(struct hapax_store *store, struct hapax_vitals *out)
{
    struct hybrid *h = (struct hybrid *)store;
    enum hapax_error error = hapax_store_measure(h->postgres, out);

    if (error == HAPAX_ERR_NONE)
        return error;
    return hapax_store_fail(store, error, "%s", hapax_store_text(h->postgres));
}

/* ---- open, close, init --------------------------------------------------------------- */

static void hybrid_close(struct hapax_store *store)
{
    struct hybrid *h = (struct hybrid *)store;

    hapax__redlock_close(h->lock);
    hapax_store_close(h->postgres);
    hapax__arena_release(&h->arena);
    explicit_bzero(&h->key, sizeof(h->key));
    free(h);
}

static enum hapax_error open_halves(struct hybrid *h, const struct hapax__hybrid_parts *parts,
                                    char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = hapax__redlock_open(&h->lock, parts->redis, parts->redis_count, text);

    h->stale_replay = parts->stale_replay;
    return error == HAPAX_ERR_NONE ? hapax_store_open(&h->postgres, parts->postgres, text) : error;
}

static enum hapax_error hybrid_open(struct hapax_store **out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    struct hybrid *h = calloc(1, sizeof(*h));
    struct hapax__hybrid_parts parts;
    enum hapax_error error;

    *out = NULL;
    if (!h)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    error = hapax__hybrid_parts(&parts, uri, text);
    if (error == HAPAX_ERR_NONE)
        error = open_halves(h, &parts, text);
    hapax__hybrid_parts_release(&parts);
    if (error != HAPAX_ERR_NONE) {
        hybrid_close(&h->base);
        return error;
    }
    *out = &h->base;
    return HAPAX_ERR_NONE;
}

static enum hapax_error hybrid_init(const char *uri, bool print, hapax_say *say, void *arg,
                                    char text[HAPAX_TEXT_MAX])
{
    struct hapax__hybrid_parts parts;
    enum hapax_error error = hapax__hybrid_parts(&parts, uri, text);

    if (error == HAPAX_ERR_NONE)
        error = hapax_store_init(parts.postgres, print, say, arg, text);
    hapax__hybrid_parts_release(&parts);
    return error;
}

/* Roles are PostgreSQL's. All who use the store need the one user of Redis of docs/stores.md. */
static enum hapax_error hybrid_rights(const char *uri, const char *use, const char *role,
                                      bool print, hapax_say *say, void *arg,
                                      char text[HAPAX_TEXT_MAX])
{
    struct hapax__hybrid_parts parts;
    enum hapax_error error = hapax__hybrid_parts(&parts, uri, text);

    if (error == HAPAX_ERR_NONE)
        error = hapax_store_rights(parts.postgres, use, role, print, say, arg, text);
    hapax__hybrid_parts_release(&parts);
    return error;
}

const struct hapax_store_type hapax__hybrid = {.scheme = "hybrid",
                                               .batch_max = HAPAX__HYBRID_BATCH_MAX,
                                               .body_max = HAPAX_BODY_MAX,
                                               .remains = HAPAX__POSTGRES_REMAINS
                                               "; what a dump or the append-only file of its "
                                               "Redis has, until that is written anew",
                                               .open = hybrid_open,
                                               .run = hybrid_run,
                                               .init = hybrid_init,
                                               .rights = hybrid_rights,
                                               .check = hybrid_check,
                                               .bound = hybrid_bound,
                                               .close = hybrid_close,
                                               .measure = hybrid_measure};
