/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops on the embedded store, inside hapax__database_enter(): batches of ops by id (batch.c), and
 * the walks of LIST and PURGE (walk.c).
 */
#ifndef HAPAX_STORE_ROCKSDB_BATCH_H
#define HAPAX_STORE_ROCKSDB_BATCH_H

#include "db.h"

/* The memory in which one handle judges its batches. */
struct hapax__batch;

/* NULL: out of memory. */
struct hapax__batch *hapax__batch_new(void);
/* NULL is fine. */
void hapax__batch_free(struct hapax__batch *batch);

/* Answers ops by id, at most HAPAX_BATCH_MAX of them; answer i is to wait for the write rests[i]
 * (0: for none). Returns the first error of a write; ops that cannot be read have errors of their
 * own. */
enum hapax_error hapax__batch_run(struct hapax__batch *batch, struct hapax_store *store,
                                  struct hapax__database *database, struct hapax__files *files,
                                  struct hapax_op *ops, size_t n, int64_t now_us, uint64_t *rests);

/* Answer a LIST and a PURGE, as above; return the op's error. */
enum hapax_error hapax__walk_list(struct hapax_store *store, struct hapax__database *database,
                                  struct hapax__files *files, struct hapax_op *op, int64_t now_us,
                                  uint64_t *rests);
enum hapax_error hapax__walk_purge(struct hapax_store *store, struct hapax__database *database,
                                   struct hapax__files *files, struct hapax_op *op, int64_t now_us,
                                   uint64_t *rests);

/* Counts the records that LIST would show, the store's own one excepted. False: there are too many
 * to count while others wait, or the walk broke off; *records is RocksDB's estimate then. */
bool hapax__walk_count(struct hapax__files *files, int64_t now_us, uint64_t *records);

#endif
