/* SPDX-License-Identifier: Apache-2.0
 *
 * How far a command is that takes long: a line on stderr that is written over itself, from the
 * third second on. Only on a terminal, and not with --json: a log or a mail of cron has no use for
 * it.
 */
#ifndef HAPAX_CLI_PROGRESS_H
#define HAPAX_CLI_PROGRESS_H

#include "cli.h"

struct progress {
    const char *command;
    int64_t begun_us, next_us;
    bool on, shown;
};

void progress_begin(struct progress *progress, const struct cli_args *args);

/* Tells it, now and then: "1200 removed, 40 %, about 6s left". share: of all that is to be done;
 * 0: not known. */
void progress_tell(struct progress *progress, double share, uint64_t n, const char *what);

/* Before something else is printed, and at the end: wipes the line. */
void progress_end(struct progress *progress);

/* How much of a store a walk has seen, by where it goes on: ids are hashes, so they are spread
 * evenly; PostgreSQL's cursor of a purge begins with its share. 0 where it says nothing. */
double progress_share(const struct hapax_store *store, const struct hapax_id *cursor);

#endif
