/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedded store: `rocksdb:PATH[?sync=off][&group=G][&mode=0660]`. PATH holds
 *
 *   hapax.lock    locked (flock) by the process that has the store open, with its pid in it,
 *                 and its sync, mode and group for the process that takes over
 *   keeper.sock   where that process serves the store to other processes of this machine
 *   db/           the database, readable by its owner alone; beside it hapax.mark, the number of
 *                 the last acknowledged write
 *
 * All handles of one process share one database. Where another process has the database open, that
 * process's keeper serves the handle; when that process ends, one of its clients takes over, with
 * the same sync, mode and group.
 */
#ifndef HAPAX_STORE_ROCKSDB_ROCKSDB_H
#define HAPAX_STORE_ROCKSDB_ROCKSDB_H

#include <hapax/store.h>
#include <sys/types.h>

extern const struct hapax_store_type hapax__rocksdb;

/* The pid of the process that has the store at this path (no URI) open; it may be this process. 0:
 * no process has, there is no store, or the lock may not be read. */
pid_t hapax__rocksdb_holder(const char *path);

#endif
