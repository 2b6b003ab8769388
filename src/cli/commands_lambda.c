/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of the hapax in a Lambda layer. Each new sandbox waits until all libraries are
 * loaded, so this hapax has neither the brokers' libraries nor RocksDB.
 */
#include "cli.h"

const struct cli_command *const cli_commands[] = {&cli_lambda, &cli_help, NULL};
