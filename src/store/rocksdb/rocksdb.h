/* SPDX-License-Identifier: Apache-2.0
 *
 * The embedded store: `rocksdb:PATH[?sync=off][&group=G][&mode=0660]`. PATH holds
 *
 *   hapax.lock    locked (flock) by the process that holds the store, with its pid in it
 *   keeper.sock   where that process serves the store to others of this machine
 *   db/           the database, readable by its owner alone
 *
 * All handles of one process share one database. A handle on a path that another process holds is
 * served by that process's keeper; when that process ends, one of those it served takes its place.
 */
#ifndef HAPAX_STORE_ROCKSDB_ROCKSDB_H
#define HAPAX_STORE_ROCKSDB_ROCKSDB_H

#include <hapax/store.h>
#include <sys/types.h>

extern const struct hapax_store_type hapax__rocksdb;

/* The pid of the process that holds the store at this path (no URI): this one's too. 0: none does,
 * there is no store, or the lock may not be read. */
pid_t hapax__rocksdb_holder(const char *path);

#endif
