/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line without RocksDB: it reaches an embedded store through unix:PATH only.
 */
#include "cli.h"

bool cli_embedded_use(void)
{
    return false;
}

pid_t cli_embedded_holder(const char *path)
{
    (void)path;
    return 0;
}
