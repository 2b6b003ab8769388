/* SPDX-License-Identifier: Apache-2.0
 *
 * LIST and PURGE on the embedded store. Both walk ids in order, and a bounded number of ids per op,
 * since a walk keeps every other op waiting. So an answer may show fewer than `limit` records, even
 * none, and still have `more`.
 *
 * A LIST that does not ask for completed records walks `open`, and never sees the million records
 * that are completed. PURGE walks both families side by side: the filter that drops expired records
 * from one leaves their entries in the other. LIST passes over such entries. PURGE meets each
 * record once, and judges then whether the record has expired or is a dead claim under hold.
 * Rejected: a second walk over `open` for dead claims, which would look up each of them in the
 * other family.
 */
#include "batch.h"

#include "base/bytes.h"
#include "base/time.h"
#include "core/machine.h"
#include "core/record.h"
#include "store/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LIST_STEPS_MAX  20000u
#define PURGE_STEPS_MAX 10000u

/* Gives the op an error, and returns false. */
static bool fail_op(struct hapax_op *op, enum hapax_error error)
{
    op->verdict = HAPAX_NO_VERDICT;
    op->error = error;
    return false;
}

/* ---- a walk over one family ---------------------------------------------------------- */

struct walk {
    rocksdb_readoptions_t *options;
    rocksdb_iterator_t *it;
};

static bool at_id(const struct walk *walk)
{
    return rocksdb_iter_valid(walk->it);
}

/* The id on which the walk stands. False: the key is of another length, so nothing of ours; *id is
 * zeroed. */
static bool id_at(const struct walk *walk, struct hapax_id *id)
{
    size_t len;
    const char *key = rocksdb_iter_key(walk->it, &len);

    memset(id, 0, sizeof(*id));
    if (len != sizeof(*id))
        return false;
    memcpy(id, key, sizeof(*id));
    return true;
}

static struct hapax_span value_at(const struct walk *walk)
{
    struct hapax_span span;

    span.ptr = (const uint8_t *)rocksdb_iter_value(walk->it, &span.len);
    return span;
}

static void walk_begin(struct walk *walk, struct hapax__files *files, enum hapax__family family,
                       const struct hapax_id *after)
{
    static const struct hapax_id zero;
    struct hapax_id id;

    walk->options = rocksdb_readoptions_create();
    rocksdb_readoptions_set_fill_cache(walk->options, 0);
    walk->it = rocksdb_create_iterator_cf(files->db, walk->options, files->family[family]);
    rocksdb_iter_seek(walk->it, (const char *)after->bytes, sizeof(after->bytes));
    if (memcmp(after, &zero, sizeof(zero)) != 0 && at_id(walk) && id_at(walk, &id) &&
        memcmp(&id, after, sizeof(id)) == 0)
        rocksdb_iter_next(walk->it);
}

/* Returns RocksDB's text of why the walk broke off, to be freed. NULL: it did not. */
static char *walk_end(struct walk *walk)
{
    char *failure = NULL;

    rocksdb_iter_get_error(walk->it, &failure);
    rocksdb_iter_destroy(walk->it);
    rocksdb_readoptions_destroy(walk->options);
    return failure;
}

/* ---- LIST ---------------------------------------------------------------------------- */

struct list {
    struct hapax_store *store;
    struct hapax__files *files;
    struct hapax_op *op;
    int64_t now_us;
    uint32_t limit;
    struct hapax_id last; /* the last id that was met, and shown if wanted */
};

/* Meets an unreadable record. A list that has records already ends before it, with `more`; the next
 * LIST then begins with it, and fails. A caller who sets the cursor to its id goes on behind it. */
static bool stop_unreadable(struct list *list, const struct hapax_id *id, enum hapax_error error)
{
    list->op->more = list->op->count > 0;
    if (list->op->more)
        return false;
    return fail_op(list->op, hapax__files_unreadable(list->store, id, error));
}

/* Shows a record, if it is wanted. False: the list ends here, before this record. */
static bool show(struct list *list, const struct hapax_id *id, struct hapax_span bytes)
{
    struct hapax_op *op = list->op;
    struct hapax_op one = {0};
    enum hapax_error error = hapax__record_decode(&one.record, id, bytes);

    if (error != HAPAX_ERR_NONE)
        return stop_unreadable(list, id, error);
    if (!hapax__listed(&one.record, op, list->now_us))
        return true;
    op->more = op->count == list->limit;
    if (op->more)
        return false;
    memset(&one.record.token, 0, sizeof(one.record.token));
    one.record.outcome.headers.len = 0;
    one.record.outcome.body.len = 0;
    if (!hapax__store_keep(list->store, &one))
        return fail_op(op, HAPAX_ERR_NOMEM);
    op->records[op->count++] = one.record;
    return true;
}

/* The same for an entry of `open`. An entry without its record is passed over: see the head. */
static bool show_open(struct list *list, const struct hapax_id *id, struct hapax_span entry)
{
    struct hapax__reader r = {entry.ptr, entry.len, false};
    unsigned state = hapax__take_u8(&r);
    int64_t updated_us = (int64_t)hapax__take_u64(&r);
    rocksdb_readoptions_t *options;
    rocksdb_pinnableslice_t *value;
    struct hapax_span bytes;
    char *failure = NULL;
    bool shown;

    if (r.bad || r.left != 0 || state > HAPAX_STATE_UNKNOWN)
        return stop_unreadable(list, id, HAPAX_ERR_CORRUPT);
    if (!(list->op->states & 1u << state) ||
        updated_us > list->now_us - list->op->older_ms * US_PER_MS)
        return true;
    options = rocksdb_readoptions_create();
    value = rocksdb_get_pinned_cf(list->files->db, options, list->files->family[HAPAX__RECORDS],
                                  (const char *)id->bytes, sizeof(*id), &failure);
    rocksdb_readoptions_destroy(options);
    if (failure)
        return fail_op(list->op, hapax__files_unread(list->store, failure));
    if (!value)
        return true;
    bytes.ptr = (const uint8_t *)rocksdb_pinnableslice_value(value, &bytes.len);
    shown = show(list, id, bytes);
    rocksdb_pinnableslice_destroy(value);
    return shown;
}

static void walk_list(struct list *list, struct walk *walk, bool open)
{
    uint32_t steps = 0;

    for (; at_id(walk); rocksdb_iter_next(walk->it)) {
        struct hapax_id id;

        if (steps++ == LIST_STEPS_MAX) {
            list->op->more = true;
            return;
        }
        if (!id_at(walk, &id)) {
            stop_unreadable(list, &id, HAPAX_ERR_CORRUPT);
            return;
        }
        if (!(open ? show_open : show)(list, &id, value_at(walk)))
            return;
        list->last = id;
    }
}

enum hapax_error hapax__walk_list(struct hapax_store *store, struct hapax__files *files,
                                  struct hapax_op *op, int64_t now_us)
{
    bool open = op->states != 0 && !(op->states & 1u << HAPAX_STATE_COMPLETED);
    struct list list = {store,     files, op, now_us, op->limit > 0 ? op->limit : HAPAX_LIST_MAX,
                        op->cursor};
    struct walk walk;
    char *failure;

    op->records = hapax_store_memory(store, list.limit * sizeof(*op->records));
    if (!op->records)
        return op->error = hapax_store_fail(store, HAPAX_ERR_NOMEM, "out of memory for a list");
    op->now_us = now_us;
    op->verdict = HAPAX_FOUND;
    op->error = HAPAX_ERR_NONE;
    walk_begin(&walk, files, open ? HAPAX__OPEN : HAPAX__RECORDS, &op->cursor);
    walk_list(&list, &walk, open);
    failure = walk_end(&walk);
    if (failure)
        fail_op(op, hapax__files_unread(store, failure));
    op->next_cursor = list.last;
    return op->error;
}

/* ---- PURGE --------------------------------------------------------------------------- */

struct purge {
    struct hapax_store *store;
    struct hapax_op *op;
    struct hapax__files *files;
    rocksdb_writebatch_t *writes;
    int64_t now_us;
    uint32_t limit;
    struct hapax_id last;
};

static void forget(struct purge *purge, const struct hapax_id *id)
{
    for (int i = HAPAX__RECORDS; i <= HAPAX__OPEN; i++)
        rocksdb_writebatch_delete_cf(purge->writes, purge->files->family[i],
                                     (const char *)id->bytes, sizeof(*id));
}

/* What PURGE does with the record on which the walk stands: unreadable ones stay. *next borrows
 * from the walk. */
static enum hapax__write judge(const struct purge *purge, const struct hapax_id *id,
                               const struct walk *records, struct hapax_record *next)
{
    struct hapax_record record;

    if (hapax__record_decode(&record, id, value_at(records)) != HAPAX_ERR_NONE)
        return HAPAX__KEEP;
    return hapax__swept(&record, purge->now_us, next);
}

static bool replace(struct purge *purge, const struct hapax_record *next)
{
    size_t size = hapax__record_size(next);
    uint8_t *bytes = malloc(size);

    if (!bytes)
        return fail_op(purge->op, hapax_store_fail(purge->store, HAPAX_ERR_NOMEM,
                                                   "out of memory for a record"));
    hapax__record_encode(bytes, next);
    rocksdb_writebatch_put_cf(purge->writes, purge->files->family[HAPAX__RECORDS],
                              (const char *)next->id.bytes, sizeof(next->id), (const char *)bytes,
                              size);
    hapax__files_put_open(purge->files, purge->writes, next);
    free(bytes);
    return true;
}

/* The lower of the ids on which the two walks stand, and which of them stand there. False: both
 * walks ended; or one stands on a key that is no id, and then the other proves nothing. */
static bool lower_id(const struct walk *records, const struct walk *open, struct hapax_id *id,
                     bool *in_records, bool *in_open)
{
    struct hapax_id a = {0}, b = {0};
    int order;

    *in_records = at_id(records);
    *in_open = at_id(open);
    if ((*in_records && !id_at(records, &a)) || (*in_open && !id_at(open, &b)))
        return false;
    if (*in_records && *in_open) {
        order = memcmp(&a, &b, sizeof(a));
        *in_records = order <= 0;
        *in_open = order >= 0;
    }
    *id = *in_records ? a : b;
    return *in_records || *in_open;
}

static void walk_purge(struct purge *purge, struct walk *records, struct walk *open)
{
    struct hapax_id id;
    bool in_records, in_open;
    uint32_t steps = 0;

    while (lower_id(records, open, &id, &in_records, &in_open)) {
        struct hapax_record next;
        enum hapax__write write = in_records ? judge(purge, &id, records, &next) : HAPAX__KEEP;
        bool full = purge->op->purged + purge->op->expired_claims == purge->limit;

        if (steps++ == PURGE_STEPS_MAX || (full && write != HAPAX__KEEP)) {
            purge->op->more = true;
            return;
        }
        if (write == HAPAX__DELETE || !in_records)
            forget(purge, &id);
        if (write == HAPAX__WRITE && !replace(purge, &next))
            return;
        purge->op->purged += write == HAPAX__DELETE;
        purge->op->expired_claims += write == HAPAX__WRITE;
        purge->last = id;
        if (in_records)
            rocksdb_iter_next(records->it);
        if (in_open)
            rocksdb_iter_next(open->it);
    }
}

static void write_purge(struct hapax_store *store, struct hapax__database *database,
                        struct purge *purge)
{
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;

    if (rocksdb_writebatch_count(purge->writes) == 0)
        return;
    if (hapax__database_writable(database))
        error = hapax__database_write(database, purge->writes);
    if (error != HAPAX_ERR_NONE)
        fail_op(purge->op,
                hapax_store_fail(store, error, "cannot write: %s", hapax__database_why(database)));
}

enum hapax_error hapax__walk_purge(struct hapax_store *store, struct hapax__database *database,
                                   struct hapax__files *files, struct hapax_op *op, int64_t now_us)
{
    struct purge purge = {.store = store,
                          .op = op,
                          .files = files,
                          .writes = rocksdb_writebatch_create(),
                          .now_us = now_us,
                          .limit = op->limit > 0 ? op->limit : HAPAX_LIST_MAX,
                          .last = op->cursor};
    struct walk records, open;
    char *failure, *other;

    op->now_us = now_us;
    op->verdict = HAPAX_OK;
    op->error = HAPAX_ERR_NONE;
    walk_begin(&records, files, HAPAX__RECORDS, &op->cursor);
    walk_begin(&open, files, HAPAX__OPEN, &op->cursor);
    walk_purge(&purge, &records, &open);
    failure = walk_end(&records);
    other = walk_end(&open);
    /* A walk that broke off looks like a walk at its end: it proves nothing. */
    if (failure || other)
        fail_op(op, hapax__files_unread(store, failure ? failure : other));
    else if (op->error == HAPAX_ERR_NONE)
        write_purge(store, database, &purge);
    op->next_cursor = purge.last;
    if (failure && other)
        rocksdb_free(other);
    rocksdb_writebatch_destroy(purge.writes);
    return op->error;
}
