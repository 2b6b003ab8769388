/* SPDX-License-Identifier: Apache-2.0
 *
 * One batch on the embedded store: reads its records together, judges its ops in order, and writes
 * the changes in one write. Who gave the batch waits for the sync.
 *
 * Ops on one id see each other through the batch's entries. An entry is the record as the ops so
 * far have left it, and is written once, however many ops changed it. A verdict that rests on an
 * unwritten entry is given only after the write: if the write fails, the op that changed the entry
 * and the ops that saw the change become INDETERMINATE together. Ops that changed nothing and saw
 * no change keep their verdicts, and a batch of such ops syncs nothing.
 *
 * Rejected: RocksDB's transactions, which lock per key what one mutex already orders.
 */
#include "batch.h"

#include "core/machine.h"
#include "core/record.h"
#include "opened.h"
#include "store/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS        2048u /* a power of two, twice the ops */
#define BYTES_MAX    (32u << 20) /* of outcomes in one write */
#define SCRATCH_KEPT (1u << 20) /* bytes of a buffer kept between batches */

_Static_assert(SLOTS >= 2 * HAPAX_BATCH_MAX, "the table of entries must not fill up");

struct entry {
    const struct hapax_id *id;
    /* The record's spans point into it, unless an op changed the record. */
    rocksdb_pinnableslice_t *value;
    struct hapax_record record;
    enum hapax_state stored; /* the state in the database; ABSENT: none there */
    enum hapax_error error; /* it could not be read */
    uint64_t rests; /* the write to wait for before this record is shown */
    bool exists;
    bool changed;
};

struct hapax__batch {
    size_t count; /* of entries */
    uint16_t slots[SLOTS]; /* index of an entry, plus 1 */
    uint16_t entry_of[HAPAX_BATCH_MAX]; /* index of an op's entry */
    bool rests[HAPAX_BATCH_MAX]; /* the op's verdict rests on a change */
    const char *keys[HAPAX_BATCH_MAX];
    size_t key_sizes[HAPAX_BATCH_MAX];
    rocksdb_pinnableslice_t *values[HAPAX_BATCH_MAX];
    char *failures[HAPAX_BATCH_MAX];
    rocksdb_readoptions_t *read_options;
    rocksdb_writebatch_t *writes;
    size_t written; /* bytes in writes */
    uint8_t *scratch;
    size_t scratch_size;
    struct entry entries[HAPAX_BATCH_MAX];
};

struct hapax__batch *hapax__batch_new(void)
{
    struct hapax__batch *batch = calloc(1, sizeof(*batch));

    if (!batch)
        return NULL;
    batch->read_options = rocksdb_readoptions_create();
    batch->writes = rocksdb_writebatch_create();
    for (size_t i = 0; i < HAPAX_BATCH_MAX; i++)
        batch->key_sizes[i] = sizeof(struct hapax_id);
    return batch;
}

void hapax__batch_free(struct hapax__batch *batch)
{
    if (!batch)
        return;
    rocksdb_readoptions_destroy(batch->read_options);
    rocksdb_writebatch_destroy(batch->writes);
    free(batch->scratch);
    free(batch);
}

/* ---- reading ------------------------------------------------------------------------- */

/* The index of the id's entry, which is added where there is none. */
static uint16_t entry_for(struct hapax__batch *batch, const struct hapax_id *id)
{
    uint32_t hash;
    size_t at;

    memcpy(&hash, id->bytes, sizeof(hash));
    for (at = hash & (SLOTS - 1); batch->slots[at]; at = (at + 1) & (SLOTS - 1)) {
        size_t index = batch->slots[at] - 1u;

        if (memcmp(batch->entries[index].id, id, sizeof(*id)) == 0)
            return (uint16_t)index;
    }
    assert(batch->count < HAPAX_BATCH_MAX);
    batch->entries[batch->count].id = id;
    batch->keys[batch->count] = (const char *)id->bytes;
    batch->slots[at] = (uint16_t)++batch->count;
    return (uint16_t)(batch->count - 1);
}

static void take_value(struct hapax_store *store, struct hapax__database *database,
                       struct hapax__files *files, struct entry *entry,
                       rocksdb_pinnableslice_t *value, char *failure)
{
    struct hapax_span bytes;

    entry->value = value;
    entry->stored = HAPAX_STATE_ABSENT;
    entry->error = HAPAX_ERR_NONE;
    entry->rests = 0;
    entry->exists = false;
    entry->changed = false;
    if (failure) {
        entry->error = hapax__files_unread(store, files, entry->id, failure);
        return;
    }
    if (!hapax__database_rests(database, entry->id, &entry->rests)) {
        entry->error = hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "cannot read: %s",
                                        hapax__database_why(database));
        return;
    }
    if (!value)
        return;
    bytes.ptr = (const uint8_t *)rocksdb_pinnableslice_value(value, &bytes.len);
    entry->error = hapax__record_decode(&entry->record, entry->id, bytes);
    if (entry->error != HAPAX_ERR_NONE) {
        hapax__files_unreadable(store, files, entry->id, entry->error);
        return;
    }
    entry->exists = true;
    entry->stored = entry->record.state;
}

static void load(struct hapax__batch *batch, struct hapax_store *store,
                 struct hapax__database *database, struct hapax__files *files,
                 const struct hapax_op *ops, size_t n)
{
    batch->count = 0;
    memset(batch->slots, 0, sizeof(batch->slots));
    for (size_t i = 0; i < n; i++)
        batch->entry_of[i] = entry_for(batch, &ops[i].id);
    rocksdb_batched_multi_get_cf(files->db, batch->read_options, files->family[HAPAX__RECORDS],
                                 batch->count, batch->keys, batch->key_sizes, batch->values,
                                 batch->failures, false);
    for (size_t i = 0; i < batch->count; i++)
        take_value(store, database, files, &batch->entries[i], batch->values[i],
                   batch->failures[i]);
}

static void unload(struct hapax__batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        if (batch->entries[i].value)
            rocksdb_pinnableslice_destroy(batch->entries[i].value);
    if (batch->written > SCRATCH_KEPT) {
        rocksdb_writebatch_destroy(batch->writes);
        batch->writes = rocksdb_writebatch_create();
    }
    if (batch->scratch_size > SCRATCH_KEPT) {
        free(batch->scratch);
        batch->scratch = NULL;
        batch->scratch_size = 0;
    }
}

/* ---- judging ------------------------------------------------------------------------- */

static void refuse(struct hapax_op *op, enum hapax_error error)
{
    op->verdict = HAPAX_NO_VERDICT;
    op->error = error;
}

/* An operator may forget a damaged record: no other op can do anything with it. */
static bool forgets_damage(const struct entry *entry, const struct hapax_op *op)
{
    return entry->error == HAPAX_ERR_CORRUPT && op->kind == HAPAX_OP_RESOLVE && op->force &&
           op->resolve == HAPAX_RESOLVE_FORGET;
}

static void forget_damage(struct entry *entry, struct hapax_op *op, int64_t now_us)
{
    entry->error = HAPAX_ERR_NONE;
    entry->stored = HAPAX_STATE_STARTED; /* it may have been: so `open` is cleared as well */
    entry->changed = true;
    entry->exists = false;
    op->verdict = HAPAX_OK;
    op->error = HAPAX_ERR_NONE;
    op->now_us = now_us;
    op->record.id = op->id;
}

/* Answers one op. Returns whether the verdict rests on a change. The answer is copied before the
 * entry changes, since the answer may point into the entry. */
static bool judge(struct hapax_store *store, const struct hapax__database *database,
                  struct entry *entry, struct hapax_op *op, int64_t now_us)
{
    struct hapax_record next;
    enum hapax__write write;
    bool rests = entry->changed;

    if (forgets_damage(entry, op) && hapax__database_writable(database)) {
        forget_damage(entry, op, now_us);
        return true;
    }
    if (entry->error != HAPAX_ERR_NONE) {
        refuse(op, entry->error);
        return false;
    }
    write = hapax__machine(entry->exists ? &entry->record : NULL, op, now_us, &next);
    if (write != HAPAX__KEEP && !hapax__database_writable(database)) {
        refuse(op, hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "cannot write: %s",
                                    hapax__database_why(database)));
        return false;
    }
    if (!hapax__store_keep(store, op)) {
        refuse(op, HAPAX_ERR_NOMEM);
        return false;
    }
    if (write == HAPAX__KEEP)
        return rests;
    entry->changed = true;
    entry->exists = write == HAPAX__WRITE;
    if (entry->exists)
        entry->record = next;
    return true;
}

/* ---- writing ------------------------------------------------------------------------- */

static bool make_scratch(struct hapax__batch *batch, size_t size)
{
    uint8_t *scratch;

    if (size <= batch->scratch_size)
        return true;
    scratch = realloc(batch->scratch, size);
    if (!scratch)
        return false;
    batch->scratch = scratch;
    batch->scratch_size = size;
    return true;
}

static bool put(struct hapax__batch *batch, struct hapax__opened *opened,
                struct hapax__files *files, const struct entry *entry)
{
    const char *key = (const char *)entry->id->bytes;
    size_t size;

    hapax__opened_change(opened, files, batch->writes, entry->id, entry->stored,
                         entry->exists ? &entry->record : NULL);
    if (!entry->exists) {
        rocksdb_writebatch_delete_cf(batch->writes, files->family[HAPAX__RECORDS], key,
                                     sizeof(*entry->id));
        return true;
    }
    size = hapax__record_size(&entry->record);
    if (!make_scratch(batch, size))
        return false;
    hapax__record_encode(batch->scratch, &entry->record);
    rocksdb_writebatch_put_cf(batch->writes, files->family[HAPAX__RECORDS], key, sizeof(*entry->id),
                              (const char *)batch->scratch, size);
    batch->written += size;
    return true;
}

/* *number: the write to wait for; 0: nothing changed. */
static enum hapax_error write_changes(struct hapax__batch *batch, struct hapax_store *store,
                                      struct hapax__database *database, struct hapax__files *files,
                                      uint64_t *number)
{
    struct hapax__opened *opened = hapax__database_opened(database);
    size_t changes = 0;

    *number = 0;
    for (size_t i = 0; i < batch->count; i++)
        changes += batch->entries[i].changed;
    rocksdb_writebatch_clear(batch->writes);
    batch->written = 0;
    if (changes == 0)
        return HAPAX_ERR_NONE;
    hapax__opened_begin(opened, files, batch->writes, changes);
    for (size_t i = 0; i < batch->count; i++) {
        if (!batch->entries[i].changed || put(batch, opened, files, &batch->entries[i]))
            continue;
        hapax__opened_end(opened, false);
        return hapax_store_fail(store, HAPAX_ERR_NOMEM, "out of memory for a record");
    }
    if (hapax__database_write(database, batch->writes, number) != HAPAX_ERR_NONE)
        return hapax_store_fail(store, HAPAX_ERR_INDETERMINATE, "cannot write: %s",
                                hapax__database_why(database));
    for (size_t i = 0; i < batch->count; i++)
        if (batch->entries[i].changed)
            hapax__database_changed(database, batch->entries[i].id, *number);
    return HAPAX_ERR_NONE;
}

/* ---- the batch ----------------------------------------------------------------------- */

static enum hapax_error run_write(struct hapax__batch *batch, struct hapax_store *store,
                                  struct hapax__database *database, struct hapax__files *files,
                                  struct hapax_op *ops, size_t n, int64_t now_us, uint64_t *rests)
{
    enum hapax_error error;
    uint64_t number;

    load(batch, store, database, files, ops, n);
    for (size_t i = 0; i < n; i++)
        batch->rests[i] =
            judge(store, database, &batch->entries[batch->entry_of[i]], &ops[i], now_us);
    error = write_changes(batch, store, database, files, &number);
    for (size_t i = 0; i < n; i++) {
        if (batch->rests[i] && error != HAPAX_ERR_NONE)
            refuse(&ops[i], error);
        rests[i] = batch->rests[i] ? number : batch->entries[batch->entry_of[i]].rests;
        if (ops[i].verdict == HAPAX_NO_VERDICT)
            rests[i] = 0;
    }
    unload(batch);
    return error;
}

/* How many ops, from the first on, go into one write. */
static size_t ops_together(const struct hapax_op *ops, size_t n)
{
    size_t bytes = 0;
    size_t len;

    for (len = 0; len < n; len++) {
        bytes += ops[len].outcome.headers.len + ops[len].outcome.body.len;
        if (bytes > BYTES_MAX && len > 0)
            break;
    }
    return len;
}

enum hapax_error hapax__batch_run(struct hapax__batch *batch, struct hapax_store *store,
                                  struct hapax__database *database, struct hapax__files *files,
                                  struct hapax_op *ops, size_t n, int64_t now_us, uint64_t *rests)
{
    enum hapax_error first = HAPAX_ERR_NONE;

    assert(n > 0 && n <= HAPAX_BATCH_MAX);
    for (size_t at = 0, len; at < n; at += len) {
        enum hapax_error error;

        len = ops_together(ops + at, n - at);
        error = run_write(batch, store, database, files, ops + at, len, now_us, rests + at);
        first = first == HAPAX_ERR_NONE ? error : first;
    }
    return first;
}
