/* SPDX-License-Identifier: Apache-2.0
 *
 * The database under the store `rocksdb:`: its files (files.c), and the one object per path that
 * all handles of this process share (db.c). Internal to libhapax-rocksdb and its tests.
 *
 * Three column families, numbers most significant byte first:
 *   records ("default")  id → record (hapax__record_encode)
 *   open                 id → state u8, updated_us u64: an entry exactly for each record that is
 *                        not completed; updated_us is of the write that made the state
 *   meta                 "format" → u32; "clock" → clock_us u64, boot_us u64, boot_id 16
 */
#ifndef HAPAX_STORE_ROCKSDB_DB_H
#define HAPAX_STORE_ROCKSDB_DB_H

#include <hapax/store.h>
#include <rocksdb/c.h>
#include <stdatomic.h>

#define HAPAX__ROCKSDB_FORMAT 1u
#define HAPAX__OPEN_SIZE      9u /* bytes of an entry of `open` */
#define HAPAX__CLOCK_SIZE     32u /* bytes of the clock's mark */

enum hapax__family { HAPAX__RECORDS, HAPAX__OPEN, HAPAX__META, HAPAX__FAMILIES };

/* ---- the files ------------------------------------------------------------------- */

struct hapax__files {
    rocksdb_t *db; /* NULL: not open */
    rocksdb_column_family_handle_t *family[HAPAX__FAMILIES];
    rocksdb_options_t *options[HAPAX__FAMILIES];
    rocksdb_cache_t *cache;
    rocksdb_compactionfilter_t *filter;
    /* The time of the last judgement; 0: there was none. Records whose retention ended by then may
     * be dropped: so no record goes before the judge's own clock has passed its end. */
    _Atomic int64_t judged_us;
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

/* As hapax__files_error(), for a failed read of a record: CORRUPT or UNAVAILABLE, and sets the
 * store's text. */
enum hapax_error hapax__files_unread(struct hapax_store *store, char *rocksdb_text);

/* Sets the store's text for a record that was read and cannot be decoded; returns error. */
enum hapax_error hapax__files_unreadable(struct hapax_store *store, const struct hapax_id *id,
                                         enum hapax_error error);

/* Writes the entry of `open` for a record that is not completed. */
void hapax__files_put_open(struct hapax__files *files, rocksdb_writebatch_t *writes,
                           const struct hapax_record *record);

/* ---- the database ---------------------------------------------------------------- */

struct hapax__database;

struct hapax__database_options {
    const char *path; /* a folder; absolute, without links */
    bool sync; /* each write is on disk before it is answered */
    const char *group; /* of the keeper's socket; NULL: none */
    unsigned mode; /* of the keeper's socket; 0: 0600 */
    /* Makes the keeper's handle on the database, which does not count as a user. NULL: out of
     * memory. Is itself NULL where no keeper is to serve. */
    struct hapax_store *(*make_handle)(struct hapax__database *database);
};

/* Joins this process's database of that path. Where there is none, locks and opens it and starts to
 * serve its keeper. REFUSED with *holder ≥ 0: another process has it open (0: of unknown pid).
 * Other errors are those of hapax_store_open(), with *holder -1. */
enum hapax_error hapax__database_join(struct hapax__database **out,
                                      const struct hapax__database_options *options, pid_t *holder,
                                      char text[HAPAX_TEXT_MAX]);

/* The last user to leave stops the keeper, syncs and closes the database. */
void hapax__database_leave(struct hapax__database *database);

/* From enter to exit the caller alone reads, judges and writes, so that no verdict rests on a write
 * that is not durable yet. A database that failed a write is closed and opened again first, once
 * there is room. Returns the files, whose db is NULL where nothing can be read; *now_us: the
 * store's clock. */
struct hapax__files *hapax__database_enter(struct hapax__database *database, int64_t *now_us);
void hapax__database_exit(struct hapax__database *database);

/* Between enter and exit: whether a write can be tried, and why not. */
bool hapax__database_writable(const struct hapax__database *database);
const char *hapax__database_why(const struct hapax__database *database);

/* Between enter and exit: writes the batch with the clock's mark; synced unless the store was
 * opened with sync off. NONE: it is durable. INDETERMINATE: it may be, and nothing more is written
 * until the database has been opened again. */
enum hapax_error hapax__database_write(struct hapax__database *database,
                                       rocksdb_writebatch_t *batch);

const char *hapax__database_path(const struct hapax__database *database);
bool hapax__database_synced(const struct hapax__database *database);

#endif
