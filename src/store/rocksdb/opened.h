/* SPDX-License-Identifier: Apache-2.0
 *
 * The entries of `open` that are not written yet. Most operations are completed milliseconds after
 * their CLAIM, and such an entry need never be written. It is in memory alone; its id stands in a
 * note of `meta`, which one write has for all the ids that it opens. When memory or notes run out,
 * the entries of the oldest note that are still there are written to `open`, and the note goes.
 *
 * The invariant: each record that is not completed has its entry in `open`, or here and its id in a
 * note. After a crash the notes say which records to look at. A note may name ids that need no
 * entry any more.
 *
 * The database's mutex guards it. A write is one plan: begin, change for each record, note, then
 * the write itself, then end.
 */
#ifndef HAPAX_STORE_ROCKSDB_OPENED_H
#define HAPAX_STORE_ROCKSDB_OPENED_H

#include "files.h"

#define HAPAX__OPENED_MAX 16384u /* entries */
#define HAPAX__NOTES      1024u

struct hapax__opened_entry {
    struct hapax_id id;
    int64_t updated_us;
    enum hapax_state state; /* ABSENT: it is gone */
    uint16_t next; /* index of the next one with this hash, plus 1 */
};

/* NULL: out of memory. */
struct hapax__opened *hapax__opened_new(void);
/* NULL is fine. */
void hapax__opened_free(struct hapax__opened *opened);

/* Begins a plan in which at most `fresh` records, up to HAPAX_BATCH_MAX, may be new. Puts entries
 * for which there is no room then into writes. */
void hapax__opened_begin(struct hapax__opened *opened, struct hapax__files *files,
                         rocksdb_writebatch_t *writes, size_t fresh);

/* Plans that the record of this id goes from state `had` (ABSENT: there was none) to that of
 * record (NULL: it goes). Each id once in a plan, at most HAPAX_BATCH_MAX of them. */
void hapax__opened_change(struct hapax__opened *opened, struct hapax__files *files,
                          rocksdb_writebatch_t *writes, const struct hapax_id *id,
                          enum hapax_state had, const struct hapax_record *record);

/* Puts the note of the plan into writes. */
void hapax__opened_note(struct hapax__opened *opened, struct hapax__files *files,
                        rocksdb_writebatch_t *writes);

/* Carries the plan out, if writes were written. */
void hapax__opened_end(struct hapax__opened *opened, bool written);

/* The entries whose ids are above `after`, in order. *sorted is valid until the next call. */
size_t hapax__opened_after(struct hapax__opened *opened, const struct hapax_id *after,
                           const struct hapax__opened_entry *const **sorted);

/* Forgets all entries, and puts those that the notes on disk name into writes, and the end of the
 * notes. Error: the notes cannot be read. */
enum hapax_error hapax__opened_recover(struct hapax__opened *opened, struct hapax__files *files,
                                       rocksdb_writebatch_t *writes, char text[HAPAX_TEXT_MAX]);

#endif
