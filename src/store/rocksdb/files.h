/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of the database under the store `rocksdb:`. Internal to libhapax-rocksdb and its tests.
 *
 * Three column families, numbers most significant byte first:
 *   records ("default")  id → record (hapax__record_encode)
 *   open                 id → state u8, updated_us u64: an entry for each record that is not
 *                        completed, but for those in notes; updated_us is of the write that made
 *                        the state
 *   meta                 "format" → u32; "clock" → clock_us u64, boot_us u64, boot_id 16;
 *                        "opened" n u16 → ids: a note (opened.h)
 */
#ifndef HAPAX_STORE_ROCKSDB_FILES_H
#define HAPAX_STORE_ROCKSDB_FILES_H

#include <hapax/store.h>
#include <rocksdb/c.h>
#include <stdatomic.h>

#define HAPAX__ROCKSDB_FORMAT 1u
#define HAPAX__OPEN_SIZE      9u /* bytes of an entry of `open` */
#define HAPAX__CLOCK_SIZE     32u /* bytes of the clock's mark */
#define HAPAX__PREFIX_SIZE    2u /* bytes of an id by which the buffer of `records` hashes */
#define HAPAX__PREFIXES       65536u

enum hapax__family { HAPAX__RECORDS, HAPAX__OPEN, HAPAX__META, HAPAX__FAMILIES };

struct hapax__files {
    rocksdb_t *db; /* NULL: not open */
    rocksdb_column_family_handle_t *family[HAPAX__FAMILIES];
    rocksdb_options_t *options[HAPAX__FAMILIES];
    rocksdb_cache_t *cache;
    rocksdb_compactionfilter_t *filter;
    /* The time of the last judgement; 0: there was none. Records whose retention ended by then may
     * be dropped: so no record goes before the judge's own clock has passed its end. */
    _Atomic int64_t judged_us;
    /* What was met first that is damaged, since the files were first opened; "": nothing was. */
    char damage[HAPAX_TEXT_MAX];
    /* RocksDB met damage while it merged files, and would again: it merges no more. */
    bool unmerged;
};

/* Makes the settings, and opens nothing. */
void hapax__files_init(struct hapax__files *files);
void hapax__files_release(struct hapax__files *files);

/* Opens the database in a folder, and makes it where there is none. Errors: UNAVAILABLE, CORRUPT,
 * REFUSED, UNSUPPORTED, with RocksDB's own text. */
enum hapax_error hapax__files_open(struct hapax__files *files, const char *folder,
                                   char text[HAPAX_TEXT_MAX]);
/* Closes the database; files that are not open are fine. */
void hapax__files_close(struct hapax__files *files);

/* Says what RocksDB's error text means for a reader: CORRUPT, REFUSED, UNSUPPORTED or UNAVAILABLE.
 * Writes its beginning to text, and frees it. */
enum hapax_error hapax__files_error(char *rocksdb_text, char text[HAPAX_TEXT_MAX]);

/* As hapax__files_error(), for a failed read of the record of this id (NULL: of some record):
 * CORRUPT or UNAVAILABLE. Sets the store's text, and notes damage. */
enum hapax_error hapax__files_unread(struct hapax_store *store, struct hapax__files *files,
                                     const struct hapax_id *id, char *rocksdb_text);

/* The same for a record that was read and cannot be decoded; returns error. */
enum hapax_error hapax__files_unreadable(struct hapax_store *store, struct hapax__files *files,
                                         const struct hapax_id *id, enum hapax_error error);

/* Remembers damage, if it is the first. */
void hapax__files_note_damage(struct hapax__files *files, const char *text);

/* Puts an entry of `open` into writes, for a record that is not completed. */
void hapax__files_put_open(struct hapax__files *files, rocksdb_writebatch_t *writes,
                           const struct hapax_id *id, enum hapax_state state, int64_t updated_us);

#endif
