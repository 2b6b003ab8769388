/* SPDX-License-Identifier: Apache-2.0
 *
 * A table of owners and of their operations in flight, in memory of a fixed size that several
 * workers share. When the memory is used up, the table forgets the owner whose last look is the
 * oldest. An owner with operations in flight is not forgotten. An operation says which worker has
 * it, so that those of a worker that died are not counted for ever.
 *
 * The table has pointers into itself: all workers have the memory at one address. One at a time.
 * Rejected: a count of each worker for each owner. Its memory grows with both.
 */
#ifndef HAPAX_CORE_OWNERS_H
#define HAPAX_CORE_OWNERS_H

#include "limit.h"

struct hapax__owners;

/* An operation in flight. */
struct hapax__owners_run;

/* Lays an empty table out in the memory, which is aligned as malloc()'s is. NULL: it is too
 * little for one owner. */
struct hapax__owners *hapax__owners_init(void *memory, size_t len);

/* What an owner uses; NULL: nothing. */
struct hapax__usage *hapax__owners_find(struct hapax__owners *owners,
                                        const struct hapax_digest *owner);

/* The same, and makes room for an owner that is not there. NULL: there is none, since the others
 * have operations in flight. */
struct hapax__usage *hapax__owners_get(struct hapax__owners *owners,
                                       const struct hapax__limits *limits,
                                       const struct hapax_digest *owner, int64_t now_us);

/* Begins an operation for a usage of this table, and counts it. NULL: there is no room for one
 * more; nothing is counted. */
struct hapax__owners_run *hapax__owners_begin(struct hapax__owners *owners,
                                              struct hapax__usage *usage,
                                              const struct hapax__limits *limits, bool is_new,
                                              uint32_t worker, int64_t now_us);

/* What the owner of an operation uses. */
struct hapax__usage *hapax__owners_usage(struct hapax__owners_run *run);

/* Ends an operation. The handle is no longer valid. */
void hapax__owners_end(struct hapax__owners *owners, struct hapax__owners_run *run);

/* Ends all operations of a worker that is gone. */
void hapax__owners_end_all(struct hapax__owners *owners, uint32_t worker);

/* How many owners are in the table, and how many were forgotten while something of them counted. */
uint64_t hapax__owners_known(const struct hapax__owners *owners);
uint64_t hapax__owners_forgotten(const struct hapax__owners *owners);

#endif
