/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of hapax, in the order of the help.
 */
#include "cli.h"

const struct cli_command *const cli_commands[] = {
    &cli_serve, &cli_consume, &cli_relay, &cli_redrive, &cli_lambda, &cli_door,   &cli_run,
    &cli_keep,  &cli_init,    &cli_check, &cli_config,  &cli_show,   &cli_list,   &cli_resolve,
    &cli_erase, &cli_purge,   &cli_copy,  &cli_import,  &cli_rotate, &cli_switch, &cli_top,
    &cli_web,   &cli_bench,   &cli_help,  NULL,
};
