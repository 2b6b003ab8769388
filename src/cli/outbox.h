/* SPDX-License-Identifier: Apache-2.0
 *
 * The outbox's part of two commands: hapax list --outbox, and hapax redrive --from postgres://...
 */
#ifndef HAPAX_CLI_OUTBOX_H
#define HAPAX_CLI_OUTBOX_H

#include "cli.h"

/* Lists the messages that were put aside; `limit` at most. */
enum cli_exit outbox_list(const struct cli_args *args, const char *uri, int64_t limit);

/* Lets them be published after all: all of them, or those of a key. Prints how many, also where it
 * fails behind the first ones; "at least" so many where an answer was lost. */
enum cli_exit outbox_put_back(const struct cli_args *args, const char *uri, const char *key);

#endif
