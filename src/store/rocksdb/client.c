/* SPDX-License-Identifier: Apache-2.0
 *
 * `rocksdb:PATH` in a program that opens no database itself: the process that has the database open
 * serves it at PATH/keeper.sock. So nginx, or a program on Redis, reaches an embedded store without
 * loading RocksDB. hapax_rocksdb_use() puts the store that opens databases before this one.
 */
#include "base/fail.h"
#include "store/keeper/keeper.h"
#include "store/types.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

static enum hapax_error client_open(struct hapax_store **out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    const char *path = uri + strlen("rocksdb:");
    int len = (int)strcspn(path, "?"); /* the rest is for the process that opens it */
    char name[sizeof(((struct sockaddr_un *)0)->sun_path)];
    char why[HAPAX_TEXT_MAX];
    enum hapax_error error;

    *out = NULL;
    if (snprintf(name, sizeof(name), "%.*s/keeper.sock", len, path) >= (int)sizeof(name))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "store \"%.100s\": its path with /keeper.sock is over %zu bytes", uri,
                           sizeof(name) - 1);
    error = hapax__keeper_connect(out, name, why);
    if (error == HAPAX_ERR_NONE)
        return error;
    return hapax__fail(text, error,
                       "cannot open store \"%.80s\": nobody serves it, and this program opens no "
                       "database itself: %.80s",
                       uri, why);
}

/* Its handles have the keeper's type, so no other function of this type is ever called. */
const struct hapax_store_type hapax__rocksdb_client = {
    .scheme = "rocksdb",
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .open = client_open,
};
