/* SPDX-License-Identifier: Apache-2.0
 *
 * `rocksdb:PATH` in a program that does not open databases itself: whoever holds the path serves it
 * at PATH/keeper.sock. hapax_rocksdb_use() puts the store that does before this one. So nginx, or a
 * program on Redis, reaches an embedded store without loading RocksDB.
 */
#include "base/fail.h"
#include "store/keeper/keeper.h"
#include "store/types.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

static enum hapax_error held_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    const char *path = uri + strlen("rocksdb:");
    int len = (int)strcspn(path, "?"); /* what follows is for the holder */
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

/* What it opens is a handle of the keeper's type, so no other function is ever called. */
const struct hapax_store_type hapax__held = {
    .scheme = "rocksdb",
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .open = held_open,
};
