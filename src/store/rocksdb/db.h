/* SPDX-License-Identifier: Apache-2.0
 *
 * The database under the store `rocksdb:`: the one object per path that all handles of this process
 * share. Internal to libhapax-rocksdb and its tests.
 */
#ifndef HAPAX_STORE_ROCKSDB_DB_H
#define HAPAX_STORE_ROCKSDB_DB_H

#include "files.h"

#define HAPAX__SETTINGS_MAX 128

struct hapax__database;
struct hapax__opened; /* opened.h */

struct hapax__database_options {
    const char *path; /* a folder; absolute, without links */
    bool sync; /* each write is on disk before it is answered */
    bool any_files; /* the kind of file system is not looked at */
    const char *group; /* of the keeper's socket; NULL: none */
    unsigned mode; /* of the keeper's socket; 0: 0600 */
    bool inherited; /* sync, group and mode are of the holder before */
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

/* The sync, group and mode with which the store at this path is open, or was when its process was
 * killed, as options of a URI. False: it is not, or its lock cannot be read. */
bool hapax__database_settings(const char *path, char out[HAPAX__SETTINGS_MAX]);

/* The last user to leave stops the keeper, syncs and closes the database. */
void hapax__database_leave(struct hapax__database *database);

/* From enter to exit the caller alone reads, judges and writes. A database that failed a write is
 * closed and opened again first, once there is room. Returns the files, whose db is NULL where
 * nothing can be read; *now_us: the store's clock. */
struct hapax__files *hapax__database_enter(struct hapax__database *database, int64_t *now_us);
void hapax__database_exit(struct hapax__database *database);

/* Between enter and exit: whether a write can be tried, and why not. */
bool hapax__database_writable(const struct hapax__database *database);
const char *hapax__database_why(const struct hapax__database *database);

/* Between enter and exit: the entries of `open` that are not written. */
struct hapax__opened *hapax__database_opened(struct hapax__database *database);

/* Between enter and exit: writes the batch with the plan of `opened` and the clock's mark, and does
 * not sync. NONE: *number is to be waited for. INDETERMINATE: it may be written, and nothing more
 * is until the database has been opened again. */
enum hapax_error hapax__database_write(struct hapax__database *database,
                                       rocksdb_writebatch_t *batch, uint64_t *number);

/* Between enter and exit: remembers that this write changed the record of this id (NULL: of any).
 */
void hapax__database_changed(struct hapax__database *database, const struct hapax_id *id,
                             uint64_t number);

/* Between enter and exit: *number is the write on which an answer rests that shows this id (NULL:
 * any id); 0: all of it is on disk. False: a sync failed, and nobody knows what is there. */
bool hapax__database_rests(struct hapax__database *database, const struct hapax_id *id,
                           uint64_t *number);

/* Waits until a write is on disk; write 0 always is. Not between enter and exit. INDETERMINATE:
 * nobody knows; text says why. */
enum hapax_error hapax__database_sync(struct hapax__database *database, uint64_t number,
                                      char text[HAPAX_TEXT_MAX]);

/* Between enter and exit: answers a PURGE that scrubs. The first one begins a scrub (scrub.h), and
 * those that follow look whether it is over. */
enum hapax_error hapax__database_scrub(struct hapax_store *store, struct hapax__database *database,
                                       struct hapax_op *op, int64_t now_us);

const char *hapax__database_path(const struct hapax__database *database);
bool hapax__database_synced(const struct hapax__database *database);

#endif
