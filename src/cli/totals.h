/* SPDX-License-Identifier: Apache-2.0
 *
 * How many operations are unfinished, by state, and which of each wait longest: what `hapax list
 * --totals`, `hapax top` and `hapax web` show first.
 */
#ifndef HAPAX_CLI_TOTALS_H
#define HAPAX_CLI_TOTALS_H

#include "cli.h"

#define TOTALS_OLDEST_MAX 10u

enum totals_kind { TOTALS_UNKNOWN, TOTALS_OVER, TOTALS_STARTED, TOTALS_FAILED, TOTALS_KINDS };

struct totals {
    /* OVER: started, and the lease is over. */
    struct {
        int64_t count;
        int64_t oldest_us; /* how long ago it was last written */
    } kinds[TOTALS_KINDS];
    /* The oldest that are unknown or over, the oldest first. */
    struct totals_oldest {
        struct hapax_record record;
        uint8_t scope[HAPAX_SCOPE_MAX], what[HAPAX_WHAT_MAX], by[HAPAX_BY_MAX];
    } oldest[TOTALS_OLDEST_MAX];
    uint32_t oldest_n;
    int64_t now_us; /* by the store's clock */
    /* The walk has ended at a limit, or passed over damage: there may be more of each, and older
     * ones. */
    bool more;
};

/* Walks the unfinished operations, up to 10000 or for a second. */
enum hapax_error totals_read(struct totals *out, struct hapax_store *store);

struct json;

/* The members of an object: totals, oldest, more, now_us. */
void totals_members(struct json *json, const struct totals *totals);

/* A table for people. */
void totals_table(const struct totals *totals);

/* Prints them, as `hapax list --totals`. */
enum cli_exit totals_list(const struct cli_args *args, struct hapax_store *store);

#endif
