/* SPDX-License-Identifier: Apache-2.0
 *
 * LIST and PURGE on the embedded store. Both walk ids in order, and a bounded number of ids per op,
 * since a walk keeps every other op waiting. So an answer may show fewer than `limit` records, even
 * none, and still have `more`.
 *
 * A LIST that does not ask for completed records walks `open`, with the entries that are not
 * written yet (opened.h), and never sees the million records that are completed. PURGE walks both
 * families side by side: the filter that drops expired records from one leaves their entries in the
 * other. LIST passes over such entries. PURGE meets each record once, and judges then whether the
 * record has expired or is a dead claim under hold. Rejected: a second walk over `open` for dead
 * claims, which would look up each of them in the other family.
 *
 * The buffer of `records` is a hash table, which RocksDB sorts for an iterator over all ids. A
 * small buffer is sorted. A large one is walked bucket by bucket, each with a seek of its own. In a
 * small store most buckets are empty, so a walk counts these seeks too, and can end between ids.
 * Rejected: bucket by bucket in every large store (docs/performance.md).
 *
 * Damage is passed over and told. A record that cannot be decoded has an id. A damaged block of a
 * file has not: RocksDB reads nothing of it, and cannot say where it ends. Hence seeks, first ever
 * further and then halving, find the lowest id from which the walk can go on. Rejected: reading
 * without RocksDB's checksums, which could show an old version of a record, and PURGE would
 * believe that version.
 */
#include "batch.h"

#include "base/bytes.h"
#include "core/machine.h"
#include "core/record.h"
#include "opened.h"
#include "store/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LIST_STEPS_MAX  5000u
#define PURGE_STEPS_MAX 4000u
#define COUNT_STEPS_MAX 10000u
#define SAMPLE_LEAST    100u /* records, of which the rest is reckoned */
#define SEEKS_MAX       4000u /* of prefixes in the buffer */
#define SORTED_MAX      10000u /* writes in the buffer that are sorted for a walk */

/* Gives the op an error, and returns false. */
static bool fail_op(struct hapax_op *op, enum hapax_error error)
{
    op->verdict = HAPAX_NO_VERDICT;
    op->error = error;
    return false;
}

/* ---- a walk over one family ---------------------------------------------------------- */

struct walk {
    struct hapax__files *files;
    enum hapax__family family;
    rocksdb_readoptions_t *options;
    rocksdb_iterator_t *it;
    bool by_prefix; /* the iterator ends with each prefix */
    bool over; /* it broke off, and nothing behind can be read */
    uint32_t seeks_left; /* of prefixes */
    /* It has no seeks left, and stands on no id, but before all that are not less than `before`. */
    bool paused;
    struct hapax_id before;
};

static bool at_id(const struct walk *walk)
{
    return rocksdb_iter_valid(walk->it);
}

/* The id on which the walk stands. False: the key is of another length, so nothing of ours; *id is
 * its beginning. */
static bool id_at(const struct walk *walk, struct hapax_id *id)
{
    size_t len;
    const char *key = rocksdb_iter_key(walk->it, &len);

    memset(id, 0, sizeof(*id));
    memcpy(id, key, len < sizeof(*id) ? len : sizeof(*id));
    return len == sizeof(*id);
}

static struct hapax_span value_at(const struct walk *walk)
{
    struct hapax_span span;

    span.ptr = (const uint8_t *)rocksdb_iter_value(walk->it, &span.len);
    return span;
}

/* From the end of one prefix to the first id of a later one, as long as there are seeks left. */
static void pass_prefixes(struct walk *walk, const struct hapax_id *from)
{
    struct hapax_id id = *from;
    char *failure = NULL;

    while (walk->by_prefix && !at_id(walk) && (id.bytes[0] & id.bytes[1]) != UINT8_MAX) {
        rocksdb_iter_get_error(walk->it, &failure);
        if (failure)
            break;
        id.bytes[0] = (uint8_t)(id.bytes[0] + (id.bytes[1] == UINT8_MAX));
        id.bytes[1]++;
        memset(id.bytes + HAPAX__PREFIX_SIZE, 0, sizeof(id.bytes) - HAPAX__PREFIX_SIZE);
        if (walk->seeks_left-- == 0) {
            walk->paused = true;
            walk->before = id;
            break;
        }
        rocksdb_iter_seek(walk->it, (const char *)id.bytes, sizeof(id.bytes));
    }
    rocksdb_free(failure);
}

static void walk_seek(struct walk *walk, const struct hapax_id *id)
{
    if (walk->it)
        rocksdb_iter_destroy(walk->it);
    walk->it = rocksdb_create_iterator_cf(walk->files->db, walk->options,
                                          walk->files->family[walk->family]);
    rocksdb_iter_seek(walk->it, (const char *)id->bytes, sizeof(id->bytes));
    pass_prefixes(walk, id);
}

/* From an id to the next. */
static void walk_next(struct walk *walk, const struct hapax_id *id)
{
    rocksdb_iter_next(walk->it);
    pass_prefixes(walk, id);
}

/* How many writes of `records` are in no file yet. */
static uint64_t buffered(struct hapax__files *files)
{
    uint64_t now = 0, before = 0;

    rocksdb_property_int_cf(files->db, files->family[HAPAX__RECORDS],
                            "rocksdb.num-entries-active-mem-table", &now);
    rocksdb_property_int_cf(files->db, files->family[HAPAX__RECORDS],
                            "rocksdb.num-entries-imm-mem-tables", &before);
    return now + before;
}

static void walk_begin(struct walk *walk, struct hapax__files *files, enum hapax__family family,
                       const struct hapax_id *after, uint32_t seeks_max)
{
    static const struct hapax_id zero;
    struct hapax_id id;

    *walk = (struct walk){.files = files, .family = family};
    walk->by_prefix = family == HAPAX__RECORDS && buffered(files) > SORTED_MAX;
    walk->seeks_left = seeks_max;
    walk->options = rocksdb_readoptions_create();
    rocksdb_readoptions_set_fill_cache(walk->options, 0);
    rocksdb_readoptions_set_total_order_seek(walk->options, !walk->by_prefix);
    rocksdb_readoptions_set_prefix_same_as_start(walk->options, walk->by_prefix);
    walk_seek(walk, after);
    if (memcmp(after, &zero, sizeof(zero)) != 0 && at_id(walk) && id_at(walk, &id) &&
        memcmp(&id, after, sizeof(id)) == 0)
        walk_next(walk, &id);
}

static void walk_end(struct walk *walk)
{
    rocksdb_iter_destroy(walk->it);
    rocksdb_readoptions_destroy(walk->options);
}

/* Returns RocksDB's text of why the walk broke off, to be freed. NULL: it did not. A walk that
 * broke off looks like a walk at its end, and proves nothing. */
static char *broke_off(const struct walk *walk)
{
    char *failure = NULL;

    if (!walk->over && !at_id(walk))
        rocksdb_iter_get_error(walk->it, &failure);
    return failure;
}

/* ---- damage -------------------------------------------------------------------------- */

#define HEAD_SIZE 8u /* bytes of an id that tell records apart: ids are digests */

static uint64_t head_of(const struct hapax_id *id)
{
    struct hapax__reader r = {id->bytes, HEAD_SIZE, false};

    return hapax__take_u64(&r);
}

/* The id that begins so, and goes on with this byte. */
static struct hapax_id id_from(uint64_t head, int rest)
{
    struct hapax_id id;
    struct hapax__writer w = {id.bytes, HEAD_SIZE};

    memset(&id, rest, sizeof(id));
    hapax__put_number(&w, head, HEAD_SIZE);
    return id;
}

/* Whether the walk can stand at the first id from here on. Each try takes a new iterator: one that
 * has met damage may stay there. */
static bool seeks(struct walk *walk, uint64_t head)
{
    struct hapax_id id = id_from(head, 0);
    char *failure;

    walk->seeks_left = HAPAX__PREFIXES;
    walk_seek(walk, &id);
    failure = broke_off(walk);
    rocksdb_free(failure);
    return !failure;
}

/* Puts a walk that broke off behind the damage that it met after this id. Returns the last id that
 * the walk passes over: the next walk can begin with it, and no record has this id. */
static struct hapax_id pass_block(struct walk *walk, const struct hapax_id *after)
{
    uint64_t low, high = head_of(after), step = 1;

    do {
        low = high;
        high = step < UINT64_MAX - high ? high + step : UINT64_MAX;
        step *= 2;
        walk->over = low == high;
    } while (!walk->over && !seeks(walk, high));
    if (walk->over)
        return id_from(UINT64_MAX, 0xff);
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (seeks(walk, middle))
            high = middle;
        else
            low = middle;
    }
    (void)seeks(walk, high);
    return id_from(high, 0);
}

/* Notes in the answer that all behind `from` up to `to` could not be read; the same id twice: this
 * record. */
static void note_damage(struct hapax_op *op, const struct hapax_id *from, const struct hapax_id *to)
{
    if (op->damaged)
        return;
    op->damaged = true;
    op->damaged_from = *from;
    op->damaged_to = *to;
}

/* The walk broke off behind `last`. If at damage: passes over it, and moves *last to its end.
 * Otherwise the op fails, and false is returned. Takes failure. */
static bool pass_damage(struct hapax_store *store, struct walk *walk, struct hapax_op *op,
                        char *failure, struct hapax_id *last)
{
    struct hapax_id from = *last;
    enum hapax_error error = hapax__files_unread(store, walk->files, NULL, failure);

    if (error != HAPAX_ERR_CORRUPT)
        return fail_op(op, error);
    *last = pass_block(walk, &from);
    note_damage(op, &from, last);
    return true;
}

/* ---- LIST ---------------------------------------------------------------------------- */

struct list {
    struct hapax_store *store;
    struct hapax__files *files;
    struct hapax_op *op;
    int64_t now_us;
    uint32_t limit;
    uint32_t steps;
    /* The entries of `open` that are not written, in order. */
    const struct hapax__opened_entry *const *opened;
    size_t opened_left;
    struct hapax_id last; /* the last id that was met, and shown if wanted */
};

/* Meets an unreadable record. The list passes over a damaged one, and ends there, with `more`. If a
 * newer version wrote it, a list that has records already ends before it, with `more`; the next
 * LIST then begins with it, and fails. Returns false. */
static bool stop_unreadable(struct list *list, const struct hapax_id *id, enum hapax_error error)
{
    struct hapax_op *op = list->op;

    if (error == HAPAX_ERR_CORRUPT) {
        note_damage(op, id, id);
        list->last = *id;
        op->more = true;
        return false;
    }
    op->more = op->count > 0;
    return op->more ? false : fail_op(op, error);
}

/* Shows a record, if it is wanted. False: the list ends here, before this record. */
static bool show(struct list *list, const struct hapax_id *id, struct hapax_span bytes)
{
    struct hapax_op *op = list->op;
    struct hapax_op one = {0};
    enum hapax_error error = hapax__record_decode(&one.record, id, bytes);

    if (error != HAPAX_ERR_NONE)
        return stop_unreadable(list, id,
                               hapax__files_unreadable(list->store, list->files, id, error));
    if (!hapax__listed(&one.record, op, list->now_us))
        return true;
    op->more = op->count == list->limit;
    if (op->more)
        return false;
    memset(&one.record.mark, 0, sizeof(one.record.mark));
    one.record.outcome.headers.len = 0;
    one.record.outcome.body.len = 0;
    if (!hapax__store_keep(list->store, &one))
        return fail_op(op, HAPAX_ERR_NOMEM);
    op->records[op->count++] = one.record;
    return true;
}

/* The same for an entry of `open`. An entry without its record is passed over: see the head. */
static bool show_open(struct list *list, const struct hapax_id *id, enum hapax_state state,
                      int64_t updated_us)
{
    rocksdb_readoptions_t *options;
    rocksdb_pinnableslice_t *value;
    struct hapax_span bytes;
    char *failure = NULL;
    bool shown;

    if (!(list->op->states & 1u << state) ||
        updated_us > hapax__listed_until(list->op, list->now_us))
        return true;
    options = rocksdb_readoptions_create();
    value = rocksdb_get_pinned_cf(list->files->db, options, list->files->family[HAPAX__RECORDS],
                                  (const char *)id->bytes, sizeof(*id), &failure);
    rocksdb_readoptions_destroy(options);
    if (failure) {
        enum hapax_error error = hapax__files_unread(list->store, list->files, id, failure);

        return error == HAPAX_ERR_CORRUPT ? stop_unreadable(list, id, error)
                                          : fail_op(list->op, error);
    }
    if (!value)
        return true;
    bytes.ptr = (const uint8_t *)rocksdb_pinnableslice_value(value, &bytes.len);
    shown = show(list, id, bytes);
    rocksdb_pinnableslice_destroy(value);
    return shown;
}

static bool show_written(struct list *list, const struct hapax_id *id, struct hapax_span entry)
{
    struct hapax__reader r = {entry.ptr, entry.len, false};
    unsigned state = hapax__take_u8(&r);
    int64_t updated_us = (int64_t)hapax__take_u64(&r);

    if (r.bad || r.left != 0 || state > HAPAX_STATE_UNKNOWN)
        return stop_unreadable(
            list, id, hapax__files_unreadable(list->store, list->files, id, HAPAX_ERR_CORRUPT));
    return show_open(list, id, (enum hapax_state)state, updated_us);
}

/* False: the list ends here. */
static bool step(struct list *list)
{
    list->op->more = list->steps++ == LIST_STEPS_MAX;
    return !list->op->more;
}

/* Shows what is written of an id. But an entry of this id that is not written is newer: the filter
 * that dropped the record before left the written one. */
static bool show_newest(struct list *list, const struct hapax_id *id, struct hapax_span written)
{
    const struct hapax__opened_entry *entry = list->opened_left > 0 ? *list->opened : NULL;

    if (!entry || memcmp(&entry->id, id, sizeof(*id)) != 0)
        return show_written(list, id, written);
    list->opened++;
    list->opened_left--;
    return show_open(list, id, entry->state, entry->updated_us);
}

/* Shows the entries that are not written, up to this id (NULL: all), which is not among them. */
static bool show_opened(struct list *list, const struct hapax_id *before)
{
    for (; list->opened_left > 0; list->opened++, list->opened_left--) {
        const struct hapax__opened_entry *entry = *list->opened;

        if (before && memcmp(&entry->id, before, sizeof(*before)) >= 0)
            break;
        if (!step(list) || !show_open(list, &entry->id, entry->state, entry->updated_us))
            return false;
        list->last = entry->id;
    }
    return true;
}

/* True: the walk came to its end, or broke off. */
static bool walk_list(struct list *list, struct walk *walk, bool open)
{
    while (at_id(walk)) {
        struct hapax_id id;
        bool ours = id_at(walk, &id);

        if (!show_opened(list, &id) || !step(list))
            return false;
        if (!ours)
            return fail_op(list->op, hapax__files_unreadable(list->store, list->files, &id,
                                                             HAPAX_ERR_CORRUPT));
        if (!(open ? show_newest : show)(list, &id, value_at(walk)))
            return false;
        list->last = id;
        walk_next(walk, &id);
    }
    return true;
}

static enum hapax_error fail_broken(struct hapax_store *store, struct hapax__database *database,
                                    struct hapax_op *op)
{
    fail_op(op, hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "cannot read: %s",
                                 hapax__database_why(database)));
    return op->error;
}

enum hapax_error hapax__walk_list(struct hapax_store *store, struct hapax__database *database,
                                  struct hapax__files *files, struct hapax_op *op, int64_t now_us,
                                  uint64_t *rests)
{
    bool open = op->states != 0 && !(op->states & 1u << HAPAX_STATE_COMPLETED);
    struct list list = {.store = store,
                        .files = files,
                        .op = op,
                        .now_us = now_us,
                        .limit = op->limit > 0 ? op->limit : HAPAX_LIST_MAX,
                        .last = op->cursor};
    struct walk walk;
    char *failure;

    if (!hapax__database_rests(database, NULL, rests))
        return fail_broken(store, database, op);
    op->records = hapax_store_memory(store, list.limit * sizeof(*op->records));
    if (!op->records)
        return op->error = hapax_store_fail(store, HAPAX_ERR_NOMEM, "out of memory for a list");
    op->now_us = now_us;
    op->verdict = HAPAX_FOUND;
    op->error = HAPAX_ERR_NONE;
    if (open)
        list.opened_left =
            hapax__opened_after(hapax__database_opened(database), &op->cursor, &list.opened);
    walk_begin(&walk, files, open ? HAPAX__OPEN : HAPAX__RECORDS, &op->cursor, SEEKS_MAX);
    if (walk_list(&list, &walk, open)) {
        failure = broke_off(&walk);
        if (walk.paused) {
            op->more = true;
            list.last = walk.before;
        } else if (!failure) {
            show_opened(&list, NULL);
        } else if (pass_damage(store, &walk, op, failure, &list.last)) {
            op->more = at_id(&walk) || list.opened_left > 0;
        }
    }
    walk_end(&walk);
    op->next_cursor = list.last;
    return op->error;
}

/* ---- PURGE --------------------------------------------------------------------------- */

struct purge {
    struct hapax_store *store;
    struct hapax_op *op;
    struct hapax__files *files;
    struct hapax__opened *opened;
    rocksdb_writebatch_t *writes;
    int64_t now_us;
    uint32_t limit;
    enum hapax_state had; /* of the record that was judged last */
    struct hapax_id last;
};

static void delete_in(struct purge *purge, enum hapax__family family, const struct hapax_id *id)
{
    rocksdb_writebatch_delete_cf(purge->writes, purge->files->family[family],
                                 (const char *)id->bytes, sizeof(*id));
}

/* What PURGE does with the record on which the walk stands: unreadable ones stay. *next borrows
 * from the walk. */
static enum hapax__write judge(struct purge *purge, const struct hapax_id *id,
                               const struct walk *records, struct hapax_record *next)
{
    struct hapax_record record = {0};
    enum hapax_error error = hapax__record_decode(&record, id, value_at(records));

    if (error == HAPAX_ERR_CORRUPT) {
        hapax__files_unreadable(purge->store, purge->files, id, error);
        note_damage(purge->op, id, id);
        purge->op->more = true;
    }
    purge->had = record.state;
    return error == HAPAX_ERR_NONE ? hapax__swept(&record, purge->now_us, next) : HAPAX__KEEP;
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
    hapax__opened_change(purge->opened, purge->files, purge->writes, &next->id, purge->had, next);
    free(bytes);
    return true;
}

/* The lower of the ids on which the two walks stand, and which of them stand there. False: both
 * walks ended; or one stands on a key that is no id, or has paused before the id of the other, and
 * then the other proves nothing. */
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
    if (records->paused && (!*in_open || memcmp(&b, &records->before, sizeof(b)) >= 0))
        return false;
    return *in_records || *in_open;
}

/* Whether both walks stand or have ended. A damaged part of `open` is passed over: the records
 * tell enough. At a damaged part of the records PURGE ends, since nobody knows which entries of
 * `open` have a record there; the next PURGE goes on behind it. */
static bool sound(struct purge *purge, struct walk *records, struct walk *open)
{
    struct hapax_id behind = purge->last;
    char *failure = broke_off(open);

    if (failure && !pass_damage(purge->store, open, purge->op, failure, &behind))
        return false;
    failure = broke_off(records);
    if (failure && pass_damage(purge->store, records, purge->op, failure, &purge->last))
        purge->op->more = at_id(records) || at_id(open);
    return !failure;
}

static void walk_purge(struct purge *purge, struct walk *records, struct walk *open)
{
    struct hapax_id id;
    bool in_records, in_open;
    uint32_t steps = 0;

    while (sound(purge, records, open) && lower_id(records, open, &id, &in_records, &in_open)) {
        struct hapax_record next;
        enum hapax__write write = in_records ? judge(purge, &id, records, &next) : HAPAX__KEEP;
        bool full = purge->op->purged + purge->op->expired_claims == purge->limit;
        bool buries;

        if (steps++ == PURGE_STEPS_MAX || (full && write != HAPAX__KEEP)) {
            purge->op->more = true;
            return;
        }
        if (write == HAPAX__DELETE) {
            delete_in(purge, HAPAX__RECORDS, &id);
            hapax__opened_change(purge->opened, purge->files, purge->writes, &id, purge->had, NULL);
        }
        if (in_open && (write == HAPAX__DELETE || !in_records))
            delete_in(purge, HAPAX__OPEN, &id);
        if (write == HAPAX__WRITE && !replace(purge, &next))
            return;
        buries = write == HAPAX__WRITE && next.state == HAPAX_STATE_COMPLETED;
        purge->op->purged += write == HAPAX__DELETE || buries;
        purge->op->expired_claims += write == HAPAX__WRITE && !buries;
        purge->last = id;
        if (in_records)
            walk_next(records, &id);
        if (in_open)
            walk_next(open, &id);
        if (purge->op->more) /* it was damaged, and the answer names one */
            return;
    }
    if (records->paused && purge->op->error == HAPAX_ERR_NONE) {
        purge->op->more = true;
        purge->last = records->before;
    }
}

static void write_purge(struct hapax_store *store, struct hapax__database *database,
                        struct purge *purge, uint64_t *rests)
{
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;

    if (rocksdb_writebatch_count(purge->writes) == 0)
        return;
    if (hapax__database_writable(database))
        error = hapax__database_write(database, purge->writes, rests);
    if (error == HAPAX_ERR_NONE)
        hapax__database_changed(database, NULL, *rests);
    else
        fail_op(purge->op,
                hapax_store_fail(store, error, "cannot write: %s", hapax__database_why(database)));
}

enum hapax_error hapax__walk_purge(struct hapax_store *store, struct hapax__database *database,
                                   struct hapax__files *files, struct hapax_op *op, int64_t now_us,
                                   uint64_t *rests)
{
    struct purge purge = {.store = store,
                          .op = op,
                          .files = files,
                          .opened = hapax__database_opened(database),
                          .now_us = now_us,
                          .limit = op->limit > 0 ? op->limit : HAPAX_LIST_MAX,
                          .last = op->cursor};
    struct walk records, open;

    if (!hapax__database_rests(database, NULL, rests))
        return fail_broken(store, database, op);
    purge.writes = rocksdb_writebatch_create();
    op->now_us = now_us;
    op->verdict = HAPAX_OK;
    op->error = HAPAX_ERR_NONE;
    hapax__opened_begin(purge.opened, files, purge.writes, 0);
    walk_begin(&records, files, HAPAX__RECORDS, &op->cursor, SEEKS_MAX);
    walk_begin(&open, files, HAPAX__OPEN, &op->cursor, 0);
    walk_purge(&purge, &records, &open);
    walk_end(&records);
    walk_end(&open);
    if (op->error == HAPAX_ERR_NONE)
        write_purge(store, database, &purge, rests);
    hapax__opened_end(purge.opened, false); /* where nothing was written */
    op->next_cursor = purge.last;
    rocksdb_writebatch_destroy(purge.writes);
    return op->error;
}

/* ---- a count ------------------------------------------------------------------------- */

/* How many records RocksDB thinks there are. Those that were written twice may count twice. */
static uint64_t estimated(struct hapax__files *files)
{
    uint64_t records = 0;

    rocksdb_property_int_cf(files->db, files->family[HAPAX__RECORDS], "rocksdb.estimate-num-keys",
                            &records);
    return records;
}

/* A store of which the walk has seen `seen` records up to this id has this many. Ids are digests,
 * so they are spread evenly; but a few say little. */
static uint64_t extrapolate(struct hapax__files *files, uint64_t seen, const struct hapax_id *to)
{
    uint64_t most = estimated(files);
    double share = (double)head_of(to) / 0x1p64;

    if (seen >= SAMPLE_LEAST && (double)seen < (double)most * share)
        return (uint64_t)((double)seen / share);
    return most > seen ? most : seen;
}

bool hapax__walk_count(struct hapax__files *files, int64_t now_us, uint64_t *records)
{
    static const struct hapax_id start;
    struct hapax_id check, id = start;
    struct hapax_digest value;
    uint32_t steps = 0;
    struct walk walk;
    char *failure;
    bool whole;

    *records = 0;
    hapax__bind_check(&check, &value, (struct hapax_span){NULL, 0});
    walk_begin(&walk, files, HAPAX__RECORDS, &start, SEEKS_MAX);
    for (; at_id(&walk) && steps < COUNT_STEPS_MAX; walk_next(&walk, &id), steps++) {
        struct hapax_record record;

        if (!id_at(&walk, &id) || memcmp(&id, &check, sizeof(id)) == 0)
            continue;
        *records +=
            !hapax__record_peek(&record, value_at(&walk)) || !hapax__expired(&record, now_us);
    }
    failure = broke_off(&walk);
    whole = !failure && !walk.paused && !at_id(&walk);
    if (failure)
        *records = estimated(files);
    else if (!whole)
        *records = extrapolate(files, *records, walk.paused ? &walk.before : &id);
    rocksdb_free(failure);
    walk_end(&walk);
    return whole;
}
