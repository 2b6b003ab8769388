/* SPDX-License-Identifier: Apache-2.0
 *
 * Putting records into a store by IMPORT, in batches, and what became of them: what hapax copy and
 * hapax import share.
 */
#ifndef HAPAX_CLI_MOVING_H
#define HAPAX_CLI_MOVING_H

#include "print.h"
#include "progress.h"
#include "report.h"

#define MOVING_BATCH 64u
#define MOVING_BARE  1024u /* the most bytes of a record without its outcome */

struct moving {
    const struct cli_args *args;
    struct hapax_store *to;
    struct hapax_op ops[MOVING_BATCH];
    enum hapax_state states[MOVING_BATCH];
    bool own[MOVING_BATCH]; /* the library's own, which is no operation */
    uint8_t bare[MOVING_BATCH][MOVING_BARE];
    size_t n;
    int64_t put[HAPAX_STATE_UNKNOWN + 1]; /* by state: what is in the store now, as it was given */
    int64_t otherwise; /* the store has something else, or the same further on */
    int64_t left; /* could not be put */
    int64_t live, expired; /* were not to be put */
};

/* Adds a record to the batch, which has room for MOVING_BATCH. Spans of its outcome are borrowed
 * until moving_put(). */
void moving_add(struct moving *moving, const struct hapax_record *record);

/* Puts the batch and counts what became of it. A failure of the store is printed. */
enum cli_exit moving_put(struct moving *moving, struct progress *progress);

/* Counts a record that is left, and says on stderr why. */
void moving_left(struct moving *moving, const struct hapax_id *id, const char *why,
                 struct progress *progress);

int64_t moving_sum(const struct moving *moving);

/* Prints what was done: "copied 12 operations (10 completed, 2 failed)", and what was left. */
void moving_report(const struct moving *moving, const char *done);

#endif
