/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's side of an operation: (record or none, op, now) → verdict and next record. Pure.
 * docs/design.md has its tables; every store acts exactly like this function.
 */
#ifndef HAPAX_CORE_MACHINE_H
#define HAPAX_CORE_MACHINE_H

#include "id.h"

#include <hapax/store.h>

/* How long a record is kept for which nothing ever ran, at most: a late copy of its CLAIM must find
 * it, and be LOST. */
#define HAPAX__REFUSED_KEPT_MS INT64_C(60000)

enum hapax__write {
    HAPAX__KEEP, /* the record stays as it is */
    HAPAX__WRITE, /* *next replaces it */
    HAPAX__DELETE /* it is forgotten */
};

/* Judges a CLAIM, RENEW, COMPLETE, FAIL, READ, RESOLVE or IMPORT and fills in its verdict, differs,
 * record and now_us.
 *   record  what the store has under op->id, or NULL; expired ones may be passed as they are
 *   next    written when WRITE is returned; its spans borrow from record and op. May be record
 * op->record borrows from them as well: copy it before they go. It never holds a mark. */
HAPAX__SHARED enum hapax__write hapax__machine(const struct hapax_record *record,
                                               struct hapax_op *op, int64_t now_us,
                                               struct hapax_record *next);

/* Whether it stands for any caller, or any request: the record was imported from a table that did
 * not keep which. No digest has this value, and no CLAIM. */
bool hapax__any(const struct hapax_digest *digest);

/* Whether nothing ever ran for the record: then it is as good as absent, and binds no request. */
bool hapax__unbound(const struct hapax_record *record);

/* Whether two outcomes are the same, to the byte. */
bool hapax__outcome_same(const struct hapax_outcome *a, const struct hapax_outcome *b);

/* Whether the record's retention is over: then it is absent. */
HAPAX__SHARED bool hapax__expired(const struct hapax_record *record, int64_t now_us);

/* When the record's retention is over; 0: never. A tombstone may stay behind for longer. */
int64_t hapax__shown_until(const struct hapax_record *record);

/* Whether the record is a tombstone: it was completed, and its retention is over, but not the time
 * for which its COMPLETE asked beyond that. Expired ones are no question here. */
HAPAX__SHARED bool hapax__tombstone(const struct hapax_record *record, int64_t now_us);

/* Takes the outcome from a tombstone, but for its status. */
void hapax__bury(struct hapax_record *record);

/* What PURGE does with a record: DELETE an expired one; WRITE *next, which is `unknown`, for a
 * claim under hold whose lease is over, or that was given back before the hook was asked about the
 * attempts before it, as the next CLAIM would. The owner may still complete it by its token. WRITE
 * *next, which is `completed`, for a tombstone that has not been buried yet. KEEP all others.
 * next: as above. */
HAPAX__SHARED enum hapax__write hapax__swept(const struct hapax_record *record, int64_t now_us,
                                             struct hapax_record *next);

/* The latest time of a write that LIST with this op shows: any, where it asks for no age. A clock
 * ahead of the store's may have written. */
HAPAX__SHARED int64_t hapax__listed_until(const struct hapax_op *op, int64_t now_us);

/* Whether LIST with this op shows the record. Expired ones are not shown. */
HAPAX__SHARED bool hapax__listed(const struct hapax_record *record, const struct hapax_op *op,
                                 int64_t now_us);

#endif
