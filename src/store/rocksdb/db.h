/* SPDX-License-Identifier: Apache-2.0
 *
 * The database under the store `rocksdb:`: its files, and the one object per path that all handles of
 * this process share. Internal to libhapax-rocksdb and its tests.
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
    /* Records whose retention ended by then may be dropped: the time of the last judgement,
     * so that no record goes before the judge's own clock has passed its end. 0: none may. */
    _Atomic int64_t judged_us;
};

/* Makes the settings; nothing is opened. */
void hapax__files_init(struct hapax__files *files);
void hapax__files_release(struct hapax__files *files);

/* Opens the database in a folder, creating it where there is none. UNAVAILABLE, CORRUPT, REFUSED,
 * UNSUPPORTED: text is RocksDB's own. */
enum hapax_error hapax__files_open(struct hapax__files *files, const char *folder,
                                   char text[HAPAX_TEXT_MAX]);
/* Not being open is fine. */
void hapax__files_close(struct hapax__files *files);

/* What RocksDB's error text means for whoever read something; frees it. Writes its beginning to text. */
enum hapax_error hapax__files_error(char *rocksdb_text, char text[HAPAX_TEXT_MAX]);

/* ---- the database ---------------------------------------------------------------- */

struct hapax__database;

struct hapax__database_options {
    const char *path; /* a folder; absolute, without links */
    bool sync; /* each write is on disk before it is answered */
    const char *group; /* of the keeper's socket; NULL: none */
    unsigned mode; /* of the keeper's socket; 0: 0600 */
};

/* Joins this process's database of that path, or locks and opens it and begins to serve its keeper.
 * REFUSED with *holder ≥ 0: another process (0: of unknown pid) holds it. Other failures as
 * hapax_store_open(), with *holder -1. */
enum hapax_error hapax__database_join(struct hapax__database **out,
                                      const struct hapax__database_options *options, pid_t *holder,
                                      char text[HAPAX_TEXT_MAX]);

/* The last one to leave stops the keeper, syncs and closes the database. */
void hapax__database_leave(struct hapax__database *database);

/* A handle for the keeper, which does not keep the database open. rocksdb.c has it. NULL: no memory. */
struct hapax_store *hapax__rocksdb_handle(struct hapax__database *database);

/* From enter to leave the caller alone reads, judges and writes, so that no verdict rests on a write
 * that is not durable yet. A database that failed a write is closed and opened again first,
 * once there is room. now_us: the store's clock; files->db is NULL where nothing can be read. */
struct hapax__files *hapax__database_enter(struct hapax__database *database, int64_t *now_us);
void hapax__database_exit(struct hapax__database *database);

/* Between enter and exit: whether a write can be tried; why not, if not. */
bool hapax__database_writable(const struct hapax__database *database);
const char *hapax__database_why(const struct hapax__database *database);

/* Between enter and exit: writes the batch, with the clock's mark, synced unless the store was opened
 * otherwise. After NONE it is durable. INDETERMINATE: it may be. Nothing is written then until
 * the database has been opened again. */
enum hapax_error hapax__database_write(struct hapax__database *database,
                                       rocksdb_writebatch_t *batch);

/* ---- a batch --------------------------------------------------------------------- */

struct hapax__batch; /* what one handle needs to judge a batch; kept between batches */

/* NULL: out of memory. */
struct hapax__batch *hapax__batch_new(void);
void hapax__batch_free(struct hapax__batch *batch); /* NULL is fine */

/* The `run` of the store. n ≤ HAPAX_BATCH_MAX. */
enum hapax_error hapax__batch_run(struct hapax__batch *batch, struct hapax_store *store,
                                  struct hapax__database *database, struct hapax_op *ops, size_t n);

/* Sets the store's text for a record that cannot be read, and returns error. */
enum hapax_error hapax__batch_unreadable(struct hapax_store *store, const uint8_t id[32],
                                         enum hapax_error error);

/* Writes the entry of `open` for a record that is not completed. */
void hapax__batch_put_open(rocksdb_writebatch_t *writes, struct hapax__files *files,
                           const struct hapax_record *record);

/* LIST and PURGE, between enter and exit. False: op has an error. */
bool hapax__walk_list(struct hapax_store *store, struct hapax__files *files, struct hapax_op *op,
                      int64_t now_us);
bool hapax__walk_purge(struct hapax_store *store, struct hapax__database *database,
                       struct hapax__files *files, struct hapax_op *op, int64_t now_us);

/* ---------------------------------------------------------------------------------- */

const char *hapax__database_path(const struct hapax__database *database);
bool hapax__database_synced(const struct hapax__database *database);

#endif
