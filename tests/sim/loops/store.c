/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include "base/fail.h"
#include "core/machine.h"
#include "play.h"
#include "store/types.h"
#include "threads.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS   128
#define BYTES     512
#define EPOCH_US  INT64_C(1700000000000000)
#define REPLY_US  (40 * MS) /* how long a handle waits for a reply */
#define LATE_US   (2 * SECOND)
#define BATCH_MAX 16
#define UNDOS     256 /* writes that are not synced */
#define LOSSES    1024

struct kept {
    bool used, present;
    uint64_t number; /* of the write that made it so */
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
void (*sim_disk_lost)(uint64_t from);

static struct kept kept[RECORDS];

/* What a write that is not synced has replaced. */
struct undo {
    uint64_t number;
    struct kept *kept;
    struct kept before;
};

/* Writes from `from` to `to` are gone. */
struct loss {
    uint64_t from, to;
};

static struct disk {
    bool open;
    int proc;
    uint64_t number, durable; /* writes */
    size_t undo_n, loss_n;
    struct undo undo[UNDOS];
    struct loss loss[LOSSES];
} disk;

void sim_store_reset(void)
{
    memset(&sim_store, 0, sizeof(sim_store));
    memset(kept, 0, sizeof(kept));
    disk.open = false;
    disk.number = disk.durable = 0;
    disk.undo_n = disk.loss_n = 0;
}

void sim_store_draw(bool all)
{
    sim_store.request_lost = play_rate(all, 150);
    sim_store.reply_lost = play_rate(all, 150);
    sim_store.late = play_rate(all, 100);
    sim_store.twice = play_rate(all, 150);
    sim_store.refused = play_rate(all, 150);
    sim_store.drift = (int)between(-8, 8);
}

static struct kept *find(const struct hapax_id *id)
{
    int i = 0;

    while (i < RECORDS && kept[i].used && memcmp(&kept[i].record.id, id, sizeof(*id)) != 0)
        i++;
    assert(i < RECORDS);
    kept[i].used = true;
    kept[i].record.id = *id;
    return &kept[i];
}

const struct hapax_record *sim_store_record(const struct hapax_id *id)
{
    const struct kept *one = find(id);

    return one->present ? &one->record : NULL;
}

uint64_t sim_store_number(const struct hapax_id *id)
{
    return find(id)->number;
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

/* What the spans of a record point to is beside it. */
static void restore(struct kept *to, const struct kept *from)
{
    *to = *from;
    keep(&to->record.scope, to->bytes[0]);
    keep(&to->record.what, to->bytes[1]);
    keep(&to->record.resolved_by, to->bytes[2]);
    keep(&to->record.outcome.headers, to->bytes[3]);
    keep(&to->record.outcome.body, to->bytes[4]);
}

static void remember(struct kept *one)
{
    struct undo *undo;

    if (!disk.open)
        return;
    assert(disk.undo_n < UNDOS);
    undo = &disk.undo[disk.undo_n++];
    undo->number = ++disk.number;
    undo->kept = one;
    restore(&undo->before, one);
    one->number = undo->number;
}

static void judge(struct hapax_op *op)
{
    struct kept *one = find(&op->id);
    struct hapax_record next;
    enum hapax__write write =
        hapax__machine(one->present ? &one->record : NULL, op, clock_us(), &next);

    if (write != HAPAX__KEEP)
        remember(one);
    if (write == HAPAX__WRITE) {
        one->record = next;
        keep(&one->record.scope, one->bytes[0]);
        keep(&one->record.what, one->bytes[1]);
        keep(&one->record.resolved_by, one->bytes[2]);
        keep(&one->record.outcome.headers, one->bytes[3]);
        keep(&one->record.outcome.body, one->bytes[4]);
    }
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
    int64_t wait_us = chance(sim_store.slow) ? between(0, SIM_STORE_SLOW_US) : between(50, 3 * MS);

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
    (void)to, (void)arg;
    pass_us(between(50, 3 * MS));
    return is_down() || chance(sim_store.refused)
               ? hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "it cannot be asked")
               : HAPAX_ERR_NONE;
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

/* ---- the disk ---------------------------------------------------------------------------- */

static void synced(uint64_t number)
{
    size_t n = 0;

    while (n < disk.undo_n && disk.undo[n].number <= number)
        n++;
    for (size_t i = n; i < disk.undo_n; i++) {
        disk.undo[i - n].number = disk.undo[i].number;
        disk.undo[i - n].kept = disk.undo[i].kept;
        restore(&disk.undo[i - n].before, &disk.undo[i].before);
    }
    disk.undo_n -= n;
    if (number > disk.durable)
        disk.durable = number;
}

/* Of the writes that are not synced the last ones are lost, some or all. */
static unsigned lose(void)
{
    size_t stay = disk.undo_n > 0 ? (size_t)between(0, (int64_t)disk.undo_n - 1) : 0;
    unsigned n = (unsigned)(disk.undo_n - stay);

    if (n == 0)
        return 0;
    say("        DISK: %u writes are lost", n);
    if (sim_disk_lost)
        sim_disk_lost(disk.undo[stay].number);
    assert(disk.loss_n < LOSSES);
    disk.loss[disk.loss_n++] = (struct loss){disk.undo[stay].number, disk.number};
    while (disk.undo_n > stay) {
        const struct undo *undo = &disk.undo[--disk.undo_n];

        restore(undo->kept, &undo->before);
    }
    synced(disk.number);
    return n;
}

int sim_disk_of(void)
{
    return disk.open ? disk.proc : -1;
}

bool sim_disk_waits(void)
{
    return disk.number > disk.durable;
}

unsigned sim_disk_dead(bool power)
{
    unsigned n = power ? lose() : 0;

    synced(disk.number);
    disk.open = false;
    return n;
}

static enum hapax_error disk_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    step();
    if (disk.open)
        return hapax__fail(text, HAPAX_ERR_REFUSED, "another process has it");
    disk.open = true;
    disk.proc = process_now();
    pass_us(between(0, 200 * MS)); /* its log is read */
    error = chance(sim_store.refused)
                ? hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "its log cannot be read")
                : store_open(out, uri, text);
    disk.open = error == HAPAX_ERR_NONE;
    return error;
}

static enum hapax_error disk_judge(struct hapax_store *store, struct hapax_op *ops, size_t n,
                                   uint64_t *rests)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    sim_store.batches++;
    pass_us(chance(sim_store.judge_slow) ? between(0, SECOND / 2) : between(0, MS / 2));
    if (chance(sim_store.refused) || disk.undo_n + n > UNDOS)
        return fail(store, ops, n, HAPAX_ERR_UNAVAILABLE);
    for (size_t i = 0; i < n; i++) {
        const struct kept *one;

        judge(&ops[i]);
        one = find(&ops[i].id);
        rests[i] = one->number > disk.durable ? one->number : 0;
        if (!hapax__store_keep(store, &ops[i]))
            error = HAPAX_ERR_INDETERMINATE;
    }
    pass_us(between(0, 100));
    if (!chance(sim_store.reply_lost))
        return error;
    for (size_t i = 0; i < n; i++)
        hapax__op_preset(&ops[i]);
    return fail(store, ops, n, HAPAX_ERR_INDETERMINATE);
}

static bool is_lost(uint64_t number)
{
    for (size_t i = 0; i < disk.loss_n; i++)
        if (number >= disk.loss[i].from && number <= disk.loss[i].to)
            return true;
    return false;
}

static enum hapax_error disk_sync(struct hapax_store *store, uint64_t number,
                                  char text[HAPAX_TEXT_MAX])
{
    uint64_t until = disk.number;

    (void)store;
    if (number > disk.durable) {
        pass_us(chance(sim_store.sync_slow) ? between(0, 3 * SECOND) : between(0, 5 * MS));
        if (chance(sim_store.sync_failed)) {
            sim_store.syncs_failed++;
            (void)lose();
        } else {
            synced(until);
        }
    }
    if (is_lost(number))
        return hapax__fail(text, HAPAX_ERR_INDETERMINATE, "the disk failed");
    return HAPAX_ERR_NONE;
}

static enum hapax_error disk_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    uint64_t rests[BATCH_MAX];
    enum hapax_error error = disk_judge(store, ops, n, rests);

    synced(disk.number);
    return error;
}

static void disk_close(struct hapax_store *store)
{
    pass_us(between(0, 50 * MS));
    synced(disk.number);
    disk.open = false;
    free(store);
}

static const struct hapax_store_type disk_type = {
    .scheme = "disk",
    .batch_max = BATCH_MAX,
    .body_max = BYTES,
    .serial = true,
    .open = disk_open,
    .run = disk_run,
    .judge = disk_judge,
    .sync = disk_sync,
    .check = check,
    .close = disk_close,
};

__attribute__((constructor)) static void use(void)
{
    hapax__store_add(&type);
    hapax__store_add(&disk_type);
}
