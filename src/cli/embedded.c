/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line with the embedded store built in; embedded_none.c is it without.
 */
#include "cli.h"

#include "store/rocksdb/rocksdb.h"

bool cli_embedded_use(void)
{
    hapax_rocksdb_use();
    return true;
}

pid_t cli_embedded_holder(const char *path)
{
    return hapax__rocksdb_holder(path);
}
