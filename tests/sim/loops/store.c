/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "base/fail.h"
#include "core/machine.h"
#include "store/types.h"
#include "threads.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS   64
#define BYTES     512
#define EPOCH_US  INT64_C(1700000000000000)
#define REPLY_US  (40 * MS) /* how long a handle waits for a reply */
#define LATE_US   (2 * SECOND)
#define BATCH_MAX 16

struct kept {
    bool used, present;
    struct hapax_record record;
    uint8_t bytes[5][BYTES]; /* what its spans point to */
};

/* A batch that comes (again) when nobody waits for it any more. */
struct late {
    struct hapax_op ops[BATCH_MAX];
    uint8_t bytes[BATCH_MAX][5][BYTES];
    size_t n;
    int64_t after_us;
};

struct sim_store sim_store;
void (*sim_store_judged)(const struct hapax_op *op);

static struct kept kept[RECORDS];

void sim_store_reset(void)
{
    memset(&sim_store, 0, sizeof(sim_store));
    memset(kept, 0, sizeof(kept));
}

static struct kept *find(const struct hapax_id *id)
{
    int i = 0;

    while (i < RECORDS && kept[i].used && memcmp(&kept[i].record.id, id, sizeof(*id)) != 0)
        i++;
    assert(i < RECORDS);
    return &kept[i];
}

const struct hapax_record *sim_store_record(const struct hapax_id *id)
{
    const struct kept *one = find(id);

    return one->used && one->present ? &one->record : NULL;
}

static int64_t clock_us(void)
{
    return EPOCH_US + sim_now_us + sim_now_us * sim_store.drift / 1024 + sim_store.jump_us;
}

static void keep(struct hapax_span *span, uint8_t to[BYTES])
{
    assert(span->len <= BYTES);
    if (span->len > 0 && span->ptr != to)
        memmove(to, span->ptr, span->len);
    span->ptr = to;
}

static void judge(struct hapax_op *op)
{
    struct kept *one = find(&op->id);
    struct hapax_record next;
    enum hapax__write write =
        hapax__machine(one->present ? &one->record : NULL, op, clock_us(), &next);

    if (write == HAPAX__WRITE) {
        one->record = next;
        keep(&one->record.scope, one->bytes[0]);
        keep(&one->record.what, one->bytes[1]);
        keep(&one->record.resolved_by, one->bytes[2]);
        keep(&one->record.outcome.headers, one->bytes[3]);
        keep(&one->record.outcome.body, one->bytes[4]);
    }
    if (!one->used)
        one->record.id = op->id;
    one->used = true;
    one->present = write == HAPAX__WRITE || (one->present && write == HAPAX__KEEP);
    say("        store: op %d of id %02x: %s, attempt %u spent %u %s", (int)op->kind,
        op->id.bytes[0], hapax_verdict_name(op->verdict), one->record.attempt, one->record.spent,
        one->present ? hapax_state_name(one->record.state) : "absent");
    if (sim_store_judged)
        sim_store_judged(op);
}

static void judge_late(void *arg)
{
    struct late *late = arg;

    pass_us(late->after_us);
    for (size_t i = 0; i < late->n; i++)
        judge(&late->ops[i]);
    free(late);
}

/* Its memory is the C library's: the batch outlives its process. */
static void come_late(const struct hapax_op *ops, size_t n)
{
    struct late *late = aligned_alloc(64, (sizeof(*late) + 63) / 64 * 64);

    assert(late && n <= BATCH_MAX);
    late->n = n;
    late->after_us = between(0, LATE_US);
    for (size_t i = 0; i < n; i++) {
        struct hapax_op *op = &late->ops[i];

        *op = ops[i];
        keep(&op->scope, late->bytes[i][0]);
        keep(&op->what, late->bytes[i][1]);
        keep(&op->by, late->bytes[i][2]);
        keep(&op->outcome.headers, late->bytes[i][3]);
        keep(&op->outcome.body, late->bytes[i][4]);
    }
    world_thread(judge_late, late);
}

/* ---- the type ---------------------------------------------------------------------------- */

static enum hapax_error fail(struct hapax_store *store, struct hapax_op *ops, size_t n,
                             enum hapax_error error)
{
    for (size_t i = 0; i < n; i++)
        ops[i].error = error;
    return hapax_store_fail(store, error, "the network failed");
}

static bool is_down(void)
{
    return sim_now_us < sim_store.down_until_us;
}

static enum hapax_error run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    int64_t wait_us = between(50, 3 * MS);

    sim_store.batches++;
    if (is_down() || chance(sim_store.refused)) {
        pass_us(wait_us);
        return fail(store, ops, n, HAPAX_ERR_UNAVAILABLE);
    }
    if (chance(sim_store.late)) {
        come_late(ops, n);
        pass_us(REPLY_US);
        return fail(store, ops, n, HAPAX_ERR_INDETERMINATE);
    }
    if (chance(sim_store.twice))
        come_late(ops, n);
    pass_us(wait_us);
    if (is_down() || chance(sim_store.request_lost)) {
        pass_us(REPLY_US);
        return fail(store, ops, n, HAPAX_ERR_INDETERMINATE);
    }
    for (size_t i = 0; i < n; i++)
        judge(&ops[i]);
    for (size_t i = 0; i < n; i++)
        (void)hapax__store_keep(store, &ops[i]);
    if (chance(sim_store.reply_lost)) {
        for (size_t i = 0; i < n; i++)
            hapax__op_preset(&ops[i]);
        pass_us(REPLY_US);
        return fail(store, ops, n, HAPAX_ERR_INDETERMINATE);
    }
    pass_us(between(50, 3 * MS));
    return HAPAX_ERR_NONE;
}

static enum hapax_error store_open(struct hapax_store **out, const char *uri,
                                   char text[HAPAX_TEXT_MAX])
{
    (void)uri;
    *out = calloc(1, sizeof(**out));
    return *out ? HAPAX_ERR_NONE : hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
}

static enum hapax_error check(struct hapax_store *store, hapax_say *to, void *arg)
{
    (void)store, (void)to, (void)arg;
    return HAPAX_ERR_NONE;
}

static void store_close(struct hapax_store *store)
{
    free(store);
}

static const struct hapax_store_type type = {
    .scheme = "sim",
    .batch_max = BATCH_MAX,
    .body_max = 64,
    .serial = true,
    .open = store_open,
    .run = run,
    .check = check,
    .close = store_close,
};

__attribute__((constructor)) static void use(void)
{
    hapax__store_add(&type);
}
