/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference store: records in a hash table, judged by the machine. `memory:` is private to
 * its handle and gone with it. What it answers is by definition right.
 */
#include "base/fail.h"
#include "types.h"

#include "base/arena.h"
#include "base/clock.h"
#include "core/machine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *next;
    struct hapax_record record; /* spans point behind it */
    uint8_t bytes[];
};

struct memory {
    struct hapax_store base;
    struct hapax__clock clock;
    int64_t (*clock_us)(void *arg);
    void *clock_arg;
    struct entry **buckets;
    size_t size; /* of buckets, a power of two */
    size_t count;
};

static int64_t own_clock_us(void *arg)
{
    return hapax__clock_at(&((struct memory *)arg)->clock, hapax__boot_us());
}

void hapax__memory_clock(struct hapax_store *store, int64_t (*clock_us)(void *arg), void *arg)
{
    struct memory *memory = (struct memory *)store;

    assert(store->type == &hapax__memory);
    memory->clock_us = clock_us;
    memory->clock_arg = arg;
}

static struct entry **slot_of(struct memory *memory, const struct hapax_id *id)
{
    struct entry **slot;
    size_t hash;

    memcpy(&hash, id->bytes, sizeof(hash));
    slot = &memory->buckets[hash & (memory->size - 1)];
    while (*slot && memcmp(&(*slot)->record.id, id, sizeof(*id)) != 0)
        slot = &(*slot)->next;
    return slot;
}

static bool grow(struct memory *memory)
{
    struct entry **old = memory->buckets;
    size_t old_size = memory->size;
    struct entry **buckets = calloc(old_size * 2, sizeof(*buckets));

    if (!buckets)
        return false;
    memory->buckets = buckets;
    memory->size = old_size * 2;
    for (size_t i = 0; i < old_size; i++) {
        struct entry *entry = old[i];

        while (entry) {
            struct entry *next = entry->next;
            struct entry **slot = slot_of(memory, &entry->record.id);

            entry->next = NULL;
            *slot = entry;
            entry = next;
        }
    }
    free(old);
    return true;
}

static struct hapax_span keep(uint8_t **at, struct hapax_span span)
{
    struct hapax_span kept = {*at, span.len};

    if (span.len > 0)
        memcpy(*at, span.ptr, span.len);
    *at += span.len;
    return kept;
}

static struct entry *entry_new(const struct hapax_record *record)
{
    size_t len = record->scope.len + record->what.len + record->resolved_by.len +
                 record->outcome.headers.len + record->outcome.body.len;
    struct entry *entry = malloc(sizeof(*entry) + len);
    uint8_t *at;

    if (!entry)
        return NULL;
    at = entry->bytes;
    entry->next = NULL;
    entry->record = *record;
    entry->record.scope = keep(&at, record->scope);
    entry->record.what = keep(&at, record->what);
    entry->record.resolved_by = keep(&at, record->resolved_by);
    entry->record.outcome.headers = keep(&at, record->outcome.headers);
    entry->record.outcome.body = keep(&at, record->outcome.body);
    return entry;
}

static void drop(struct memory *memory, struct entry **slot)
{
    struct entry *entry = *slot;

    *slot = entry->next;
    memory->count--;
    free(entry);
}

/* Not applied: the judgement is thrown away with its verdict. */
static bool refuse_for_memory(struct memory *memory, struct hapax_op *op)
{
    op->verdict = HAPAX_NO_VERDICT;
    op->error = hapax_store_fail(&memory->base, HAPAX_ERR_NOMEM, "out of memory for a record");
    return false;
}

/* The answer is copied before the record it may point into is replaced. */
static bool judge(struct memory *memory, struct hapax_op *op, int64_t now_us)
{
    struct entry **slot = slot_of(memory, &op->id);
    struct hapax_record next;
    enum hapax__write write = hapax__machine(*slot ? &(*slot)->record : NULL, op, now_us, &next);
    struct entry *entry = NULL;

    if (write == HAPAX__WRITE) {
        entry = entry_new(&next);
        if (!entry)
            return refuse_for_memory(memory, op);
    }
    if (!hapax__store_keep(&memory->base, op)) {
        free(entry);
        op->error = HAPAX_ERR_NOMEM;
        return false;
    }
    if (write == HAPAX__KEEP)
        return true;
    if (*slot)
        drop(memory, slot);
    if (write == HAPAX__WRITE) {
        entry->next = *slot;
        *slot = entry;
        memory->count++;
    }
    return true;
}

/* ---- LIST, PURGE --------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const struct hapax_record *const *x = a, *const *y = b;

    return memcmp(&(*x)->id, &(*y)->id, sizeof((*x)->id));
}

static bool wanted(const struct hapax_record *record, const struct hapax_op *op, int64_t now_us)
{
    struct hapax_record next;

    if (memcmp(&record->id, &op->cursor, sizeof(op->cursor)) <= 0)
        return false;
    return op->kind == HAPAX_OP_PURGE ? hapax__swept(record, now_us, &next) != HAPAX__KEEP
                                      : hapax__listed(record, op, now_us);
}

/* Every wanted record, in the order of ids. Yours to free. NULL: out of memory. */
static const struct hapax_record **collect(struct memory *memory, const struct hapax_op *op,
                                           int64_t now_us, size_t *count)
{
    const struct hapax_record **found = malloc((memory->count + 1) * sizeof(*found));

    *count = 0;
    if (!found)
        return NULL;
    for (size_t i = 0; i < memory->size; i++)
        for (struct entry *entry = memory->buckets[i]; entry; entry = entry->next)
            if (wanted(&entry->record, op, now_us))
                found[(*count)++] = &entry->record;
    qsort(found, *count, sizeof(*found), by_id);
    return found;
}

static bool fill_list(struct memory *memory, struct hapax_op *op, const struct hapax_record **found)
{
    op->records = hapax_store_memory(&memory->base, op->count * sizeof(*op->records) + 1);
    if (!op->records)
        return refuse_for_memory(memory, op);
    for (uint32_t i = 0; i < op->count; i++) {
        op->records[i] = *found[i];
        memset(&op->records[i].mark, 0, sizeof(op->records[i].mark));
        op->records[i].outcome.headers.len = 0;
        op->records[i].outcome.body.len = 0;
    }
    op->verdict = HAPAX_FOUND;
    return hapax__store_keep(&memory->base, op);
}

static void fill_purge(struct memory *memory, struct hapax_op *op,
                       const struct hapax_record **found, int64_t now_us)
{
    for (uint32_t i = 0; i < op->count; i++) {
        struct entry **slot = slot_of(memory, &found[i]->id);
        struct hapax_record *record = &(*slot)->record;

        if (hapax__swept(record, now_us, record) == HAPAX__DELETE) {
            drop(memory, slot);
            op->purged++;
        } else if (record->state == HAPAX_STATE_COMPLETED) {
            op->purged++;
        } else {
            op->expired_claims++;
        }
    }
    op->count = 0;
    op->verdict = HAPAX_OK;
}

static bool scan(struct memory *memory, struct hapax_op *op, int64_t now_us)
{
    uint32_t limit = op->limit > 0 ? op->limit : HAPAX_LIST_MAX;
    size_t count;
    const struct hapax_record **found = collect(memory, op, now_us, &count);
    bool done = true;

    if (!found)
        return refuse_for_memory(memory, op);
    op->now_us = now_us;
    op->more = count > limit;
    op->count = op->more ? limit : (uint32_t)count;
    if (op->count > 0)
        op->next_cursor = found[op->count - 1]->id;
    if (op->kind == HAPAX_OP_LIST)
        done = fill_list(memory, op, found);
    else
        fill_purge(memory, op, found, now_us);
    free(found);
    return done;
}

/* ---- the four functions -------------------------------------------------------------- */

static enum hapax_error memory_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct memory *memory = (struct memory *)store;
    int64_t now_us = memory->clock_us(memory->clock_arg);
    enum hapax_error error = HAPAX_ERR_NONE;

    for (size_t i = 0; i < n; i++) {
        bool done;

        if (memory->count >= memory->size)
            grow(memory); /* a full table is slow, not wrong */
        if (ops[i].kind == HAPAX_OP_LIST || ops[i].kind == HAPAX_OP_PURGE)
            done = scan(memory, &ops[i], now_us);
        else
            done = judge(memory, &ops[i], now_us);
        if (!done)
            error = HAPAX_ERR_NOMEM;
    }
    return error;
}

static enum hapax_error memory_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    (void)store;
    say(arg, true, "a memory store is gone with its process: for tests only");
    return HAPAX_ERR_NONE;
}

static enum hapax_error memory_open(struct hapax_store **out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    struct hapax__clock_mark now = hapax__clock_machine();
    struct memory *memory;

    if (strcmp(uri, "memory:") != 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "store \"%.200s\": memory: takes no path", uri);
    memory = calloc(1, sizeof(*memory));
    if (memory) {
        memory->size = 64;
        memory->buckets = calloc(memory->size, sizeof(struct entry *));
    }
    if (!memory || !memory->buckets) {
        free(memory);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store \"memory:\": out of memory");
    }
    hapax__clock_start(&memory->clock, NULL, &now, now.clock_us);
    memory->clock_us = own_clock_us;
    memory->clock_arg = memory;
    *out = &memory->base;
    return HAPAX_ERR_NONE;
}

static void memory_close(struct hapax_store *store)
{
    struct memory *memory = (struct memory *)store;

    for (size_t i = 0; i < memory->size; i++)
        while (memory->buckets[i])
            drop(memory, &memory->buckets[i]);
    free(memory->buckets);
    free(memory);
}

const struct hapax_store_type hapax__memory = {
    .scheme = "memory",
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .remains = "nothing but the memory of its process",
    .open = memory_open,
    .run = memory_run,
    .check = memory_check,
    .close = memory_close,
};
