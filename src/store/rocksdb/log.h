/* SPDX-License-Identifier: Apache-2.0
 *
 * Which writes of a database are on disk. Writes have numbers, counted from 1. A write goes to the
 * log unsynced, and whoever is to answer what rests on it waits for its number: one of those who
 * wait syncs the log for all, while the next batch is judged.
 *
 * After a failed sync nobody knows what the log contains, and what the kernel holds of it may never
 * reach the disk. So no later sync counts: all that was not synced by then is lost, and so is what
 * is written afterwards, until the database has been opened again.
 *
 * No sync begins while a write is under way. Otherwise a sync could meet a log whose write has just
 * failed, and there an assertion of RocksDB (7.8, as Debian builds it) ends the process. A write
 * may begin during a sync.
 */
#ifndef HAPAX_STORE_ROCKSDB_LOG_H
#define HAPAX_STORE_ROCKSDB_LOG_H

#include <hapax/store.h>
#include <pthread.h>

struct hapax__log {
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t change;
    uint64_t written; /* the number of the last write */
    uint64_t mark; /* of the last write, for `sync` */
    uint64_t synced; /* all writes up to this one are on disk */
    uint64_t lost; /* of the writes up to this one nobody knows, but for those known as synced */
    bool writing;
    bool wanted; /* somebody waits for the write's end, to sync: the next write begins later */
    bool syncing;
    bool failed;
    char why[HAPAX_TEXT_MAX];

    /* Syncs the log; mark is of the last write. False: it failed, and why says why. Called outside
     * the mutex, by one thread at a time. */
    bool (*sync)(void *arg, uint64_t mark, char why[HAPAX_TEXT_MAX]);
    void *arg;
};

/* False: out of memory. */
bool hapax__log_init(struct hapax__log *log,
                     bool (*sync)(void *arg, uint64_t mark, char why[HAPAX_TEXT_MAX]), void *arg);
void hapax__log_release(struct hapax__log *log);

/* A write begins. Ended by hapax__log_wrote() or hapax__log_fail(). One thread at a time. */
void hapax__log_write(struct hapax__log *log);

/* A write has been written. durable: it needs no sync. Returns its number. */
uint64_t hapax__log_wrote(struct hapax__log *log, uint64_t mark, bool durable);

/* The number if it must be waited for; 0: it is on disk. */
uint64_t hapax__log_unsynced(struct hapax__log *log, uint64_t number);

/* Waits until the write of this number is on disk; write 0 always is. INDETERMINATE: nobody knows.
 * Any thread. */
enum hapax_error hapax__log_wait(struct hapax__log *log, uint64_t number,
                                 char text[HAPAX_TEXT_MAX]);

/* The number of the last write. */
uint64_t hapax__log_last(struct hapax__log *log);

/* A write failed, or what it led to: no sync counts any more. Waits for the sync that is under
 * way. */
void hapax__log_fail(struct hapax__log *log, const char *why);

/* Whether a write or a sync failed; then why has the reason. */
bool hapax__log_failed(struct hapax__log *log, char why[HAPAX_TEXT_MAX]);

/* The database was opened again: what it holds is on disk. */
void hapax__log_begin_again(struct hapax__log *log);

#endif
