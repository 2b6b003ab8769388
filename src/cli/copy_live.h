/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax copy --live: while doors work with both stores (move:), the new store gets to know all that
 * the old one knew before them. What these doors do themselves is in both.
 */
#ifndef HAPAX_CLI_COPY_LIVE_H
#define HAPAX_CLI_COPY_LIVE_H

#include "moving.h"

struct copy_live {
    struct hapax_store *from;
    struct moving *moving; /* to the new store */
    struct progress *progress;
    int signals;
    int64_t since_us; /* by the old store's clock: from then on move: doors alone write to it */
    int64_t until_us; /* monotonic: how long to wait for what runs */
};

/* Whether the record needs no look: doors with both stores have begun it. */
bool copy_live_skips(const struct copy_live *live, const struct hapax_record *record);

/* Brings n records, read by answered READs of the old store, to the new one, and reads them again
 * until it has them or the time is over. What it has then not is counted. */
enum cli_exit copy_live_chunk(struct copy_live *live, struct hapax_op *reads, size_t n);

#endif
