/* SPDX-License-Identifier: Apache-2.0
 *
 * How far the change of a store's secret is (docs/rotation.md), for hapax rotate and hapax check.
 */
#ifndef HAPAX_CLI_ROTATE_H
#define HAPAX_CLI_ROTATE_H

#include "progress.h"
#include "store/rotation/rotation.h"

/* seen: false where nobody could look, and the line says why. */
typedef void rotate_tell(void *arg, bool seen, const char *line);

/* Says in a line how far it is, and what comes next, where HAPAX_SECRET_OLD_FILE is set. Otherwise
 * does nothing. Begins nothing. */
enum cli_exit rotate_say(const struct cli_args *args, struct hapax_store *store,
                         struct progress *progress, rotate_tell *tell, void *arg);

#endif
