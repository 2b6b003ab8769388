/* SPDX-License-Identifier: Apache-2.0
 *
 * Many operations resolved in one way: hapax resolve --state.
 *
 * The records are listed page by page, and each page is resolved before the next one is asked
 * for. A record that changed since it was listed is passed over: each RESOLVE names the attempt
 * that was listed, and none is forced.
 */
#ifndef HAPAX_CLI_BULK_H
#define HAPAX_CLI_BULK_H

#include "audit.h"

struct bulk {
    const struct cli_args *args;
    /* A LIST that chooses the records, without an owner. */
    struct hapax_op list;
    /* Of one of these owners; zeroed: of all. */
    const struct hapax_digest *owners;
    size_t owners_n;
    /* A RESOLVE without id, token and attempt. */
    struct hapax_op act;
    /* At most so many operations. */
    int64_t limit;
    /* Print them, and leave them all. */
    bool dry_run;
    const struct audit *audit; /* not for a dry run */
};

enum cli_exit bulk_resolve(const struct bulk *bulk, struct hapax_store *store);

#endif
