/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of the hapax that stands in a Lambda layer: what a cold start loads is waited for by each new sandbox, so that it
 * has neither the brokers' libraries nor RocksDB.
 */
#include "cli.h"

const struct cli_command *const cli_commands[] = {&cli_lambda, &cli_help, NULL};
