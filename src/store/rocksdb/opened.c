/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries stand in a ring in the order in which they came, so that those of one note are side by
 * side, and are found by a hash of their id. One that is gone keeps its place in the ring until its
 * note ends. Notes are a ring, too. One that ends goes from the disk, since opening would look at
 * all that it names.
 *
 * Rejected: the whole index in memory, rebuilt at opening, which would then read every record.
 * Rejected: `open` in a hash table, which each LIST would have to sort with all that was deleted
 * from it.
 */
#include "opened.h"

#include "core/record.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS  HAPAX__OPENED_MAX
#define KEY_SIZE (sizeof(note_name) - 1 + 2)

_Static_assert(HAPAX__OPENED_MAX >= HAPAX_BATCH_MAX && HAPAX__OPENED_MAX < UINT16_MAX &&
                   (BUCKETS & (BUCKETS - 1)) == 0,
               "a batch finds room, and an index plus 1 fits");

static const char note_name[] = "opened";

struct planned {
    uint16_t at; /* index of the entry, plus 1; 0: a new one, the next of `noted` */
    enum hapax_state state;
    int64_t updated_us;
};

struct hapax__opened {
    /* Entries have numbers, counted from 0; entry n is entries[n % HAPAX__OPENED_MAX]. */
    uint64_t first, end;
    /* Notes, too. The ids of note n are the entries before note_end_at[n % HAPAX__NOTES]. */
    uint64_t first_note, end_note;
    uint64_t note_end_at[HAPAX__NOTES];
    uint16_t buckets[BUCKETS]; /* index of the first entry, plus 1 */
    struct hapax__opened_entry entries[HAPAX__OPENED_MAX];

    /* The plan. */
    uint64_t plan_first, plan_first_note; /* the entries and notes before them end */
    size_t count, fresh;
    struct planned planned[HAPAX_BATCH_MAX];
    struct hapax_id noted[HAPAX_BATCH_MAX];

    const struct hapax__opened_entry *sorted[HAPAX__OPENED_MAX];
};

struct hapax__opened *hapax__opened_new(void)
{
    return calloc(1, sizeof(struct hapax__opened));
}

void hapax__opened_free(struct hapax__opened *opened)
{
    free(opened);
}

static struct hapax__opened_entry *entry_at(struct hapax__opened *opened, uint64_t number)
{
    return &opened->entries[number % HAPAX__OPENED_MAX];
}

/* ---- by id --------------------------------------------------------------------------- */

static uint16_t *bucket_of(struct hapax__opened *opened, const struct hapax_id *id)
{
    uint32_t hash;

    memcpy(&hash, id->bytes, sizeof(hash));
    return &opened->buckets[hash & (BUCKETS - 1)];
}

static void remove_entry(struct hapax__opened *opened, struct hapax__opened_entry *entry)
{
    uint16_t *at = bucket_of(opened, &entry->id);

    while (*at != entry - opened->entries + 1) {
        assert(*at != 0);
        at = &opened->entries[*at - 1].next;
    }
    *at = entry->next;
    entry->state = HAPAX_STATE_ABSENT;
}

/* Index of the id's entry, plus 1; 0: there is none, or the plan puts it into `open`. */
static uint16_t find(struct hapax__opened *opened, const struct hapax_id *id)
{
    uint16_t at = *bucket_of(opened, id);
    uint64_t number;

    while (at && memcmp(&opened->entries[at - 1].id, id, sizeof(*id)) != 0)
        at = opened->entries[at - 1].next;
    if (!at)
        return 0;
    number = opened->first + (at - 1u - opened->first) % HAPAX__OPENED_MAX;
    return number < opened->plan_first ? 0 : at;
}

/* ---- a plan -------------------------------------------------------------------------- */

static void put_note_key(char key[KEY_SIZE], uint64_t number)
{
    memcpy(key, note_name, sizeof(note_name) - 1);
    key[KEY_SIZE - 2] = (char)(number % HAPAX__NOTES >> 8);
    key[KEY_SIZE - 1] = (char)(number % HAPAX__NOTES);
}

void hapax__opened_begin(struct hapax__opened *opened, struct hapax__files *files,
                         rocksdb_writebatch_t *writes, size_t fresh)
{
    assert(fresh <= HAPAX_BATCH_MAX && opened->count == 0 && opened->fresh == 0);
    opened->plan_first = opened->first;
    opened->plan_first_note = opened->first_note;
    while (opened->end - opened->plan_first + fresh > HAPAX__OPENED_MAX ||
           opened->end_note - opened->plan_first_note == HAPAX__NOTES) {
        uint64_t end = opened->note_end_at[opened->plan_first_note % HAPAX__NOTES];
        char key[KEY_SIZE];

        put_note_key(key, opened->plan_first_note++);
        rocksdb_writebatch_delete_cf(writes, files->family[HAPAX__META], key, sizeof(key));
        for (; opened->plan_first < end; opened->plan_first++) {
            const struct hapax__opened_entry *entry = entry_at(opened, opened->plan_first);

            if (entry->state != HAPAX_STATE_ABSENT)
                hapax__files_put_open(files, writes, &entry->id, entry->state, entry->updated_us);
        }
    }
}

static void plan(struct hapax__opened *opened, uint16_t at, const struct hapax_id *id,
                 enum hapax_state state, int64_t updated_us)
{
    assert(opened->count < HAPAX_BATCH_MAX);
    opened->planned[opened->count++] = (struct planned){at, state, updated_us};
    if (!at)
        opened->noted[opened->fresh++] = *id;
}

static enum hapax_state open_state(enum hapax_state state)
{
    return state == HAPAX_STATE_COMPLETED ? HAPAX_STATE_ABSENT : state;
}

/* A RENEW keeps the state, and so leaves the entry alone. */
void hapax__opened_change(struct hapax__opened *opened, struct hapax__files *files,
                          rocksdb_writebatch_t *writes, const struct hapax_id *id,
                          enum hapax_state had, const struct hapax_record *record)
{
    enum hapax_state has = record ? open_state(record->state) : HAPAX_STATE_ABSENT;
    int64_t updated_us = record ? record->updated_us : 0;
    uint16_t at;

    had = open_state(had);
    if (has == had)
        return;
    at = find(opened, id);
    if (at || had == HAPAX_STATE_ABSENT)
        plan(opened, at, id, has, updated_us);
    else if (has != HAPAX_STATE_ABSENT)
        hapax__files_put_open(files, writes, id, has, updated_us);
    else
        rocksdb_writebatch_delete_cf(writes, files->family[HAPAX__OPEN], (const char *)id->bytes,
                                     sizeof(*id));
}

void hapax__opened_note(struct hapax__opened *opened, struct hapax__files *files,
                        rocksdb_writebatch_t *writes)
{
    char key[KEY_SIZE];

    if (opened->fresh == 0)
        return;
    put_note_key(key, opened->end_note);
    rocksdb_writebatch_put_cf(writes, files->family[HAPAX__META], key, sizeof(key),
                              (const char *)opened->noted, opened->fresh * sizeof(*opened->noted));
}

static void add_entry(struct hapax__opened *opened, const struct hapax_id *id,
                      const struct planned *planned)
{
    struct hapax__opened_entry *entry = entry_at(opened, opened->end++);
    uint16_t *bucket = bucket_of(opened, id);

    *entry = (struct hapax__opened_entry){*id, planned->updated_us, planned->state, *bucket};
    *bucket = (uint16_t)(entry - opened->entries + 1);
}

static void change_entry(struct hapax__opened *opened, struct hapax__opened_entry *entry,
                         const struct planned *planned)
{
    if (planned->state == HAPAX_STATE_ABSENT)
        remove_entry(opened, entry);
    entry->state = planned->state;
    entry->updated_us = planned->updated_us;
}

static void carry_out(struct hapax__opened *opened)
{
    const struct hapax_id *id = opened->noted;

    for (; opened->first < opened->plan_first; opened->first++)
        if (entry_at(opened, opened->first)->state != HAPAX_STATE_ABSENT)
            remove_entry(opened, entry_at(opened, opened->first));
    opened->first_note = opened->plan_first_note;
    for (const struct planned *p = opened->planned; p < opened->planned + opened->count; p++) {
        if (p->at)
            change_entry(opened, &opened->entries[p->at - 1], p);
        else
            add_entry(opened, id++, p);
    }
    assert(opened->end - opened->first <= HAPAX__OPENED_MAX);
    if (opened->fresh > 0)
        opened->note_end_at[opened->end_note++ % HAPAX__NOTES] = opened->end;
}

void hapax__opened_end(struct hapax__opened *opened, bool written)
{
    if (written)
        carry_out(opened);
    opened->plan_first = opened->first;
    opened->plan_first_note = opened->first_note;
    opened->count = opened->fresh = 0;
}

/* ---- LIST ---------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const struct hapax__opened_entry *const *x = a, *const *y = b;

    return memcmp(&(*x)->id, &(*y)->id, sizeof((*x)->id));
}

size_t hapax__opened_after(struct hapax__opened *opened, const struct hapax_id *after,
                           const struct hapax__opened_entry *const **sorted)
{
    size_t n = 0;

    for (uint64_t number = opened->first; number < opened->end; number++) {
        const struct hapax__opened_entry *entry = entry_at(opened, number);

        if (entry->state != HAPAX_STATE_ABSENT && memcmp(&entry->id, after, sizeof(entry->id)) > 0)
            opened->sorted[n++] = entry;
    }
    qsort(opened->sorted, n, sizeof(opened->sorted[0]), by_id);
    *sorted = opened->sorted;
    return n;
}

/* ---- after a crash ------------------------------------------------------------------- */

/* A record that cannot be read has an entry, too: a LIST then says so. */
static void recover_one(struct hapax__files *files, rocksdb_writebatch_t *writes,
                        const rocksdb_readoptions_t *options, const struct hapax_id *id)
{
    struct hapax_record record = {.state = HAPAX_STATE_STARTED};
    char *failure = NULL;
    rocksdb_pinnableslice_t *value =
        rocksdb_get_pinned_cf(files->db, options, files->family[HAPAX__RECORDS],
                              (const char *)id->bytes, sizeof(*id), &failure);

    if (value) {
        struct hapax_span bytes;

        bytes.ptr = (const uint8_t *)rocksdb_pinnableslice_value(value, &bytes.len);
        if (hapax__record_decode(&record, id, bytes) != HAPAX_ERR_NONE)
            record = (struct hapax_record){.state = HAPAX_STATE_STARTED};
    }
    if ((value || failure) && record.state != HAPAX_STATE_COMPLETED)
        hapax__files_put_open(files, writes, id, record.state, record.updated_us);
    rocksdb_pinnableslice_destroy(value);
    rocksdb_free(failure);
}

static void recover_note(struct hapax__files *files, rocksdb_writebatch_t *writes,
                         const rocksdb_readoptions_t *options, const char *ids, size_t size)
{
    struct hapax_id id;

    for (; size >= sizeof(id); size -= sizeof(id), ids += sizeof(id)) {
        memcpy(&id, ids, sizeof(id));
        recover_one(files, writes, options, &id);
    }
}

enum hapax_error hapax__opened_recover(struct hapax__opened *opened, struct hapax__files *files,
                                       rocksdb_writebatch_t *writes, char text[HAPAX_TEXT_MAX])
{
    rocksdb_readoptions_t *options = rocksdb_readoptions_create();
    rocksdb_iterator_t *it =
        rocksdb_create_iterator_cf(files->db, options, files->family[HAPAX__META]);
    char *failure = NULL;

    memset(opened, 0, sizeof(*opened));
    rocksdb_iter_seek(it, note_name, sizeof(note_name) - 1);
    for (; rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
        size_t key_len, len;
        const char *key = rocksdb_iter_key(it, &key_len);
        const char *ids = rocksdb_iter_value(it, &len);

        if (key_len != KEY_SIZE || memcmp(key, note_name, sizeof(note_name) - 1) != 0)
            break;
        recover_note(files, writes, options, ids, len);
        rocksdb_writebatch_delete_cf(writes, files->family[HAPAX__META], key, key_len);
    }
    rocksdb_iter_get_error(it, &failure);
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(options);
    return failure ? hapax__files_error(failure, text) : HAPAX_ERR_NONE;
}
