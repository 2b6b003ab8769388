/* SPDX-License-Identifier: Apache-2.0
 *
 * The store `unix:`, whose ops another process runs: a link (link.h) that is waited for. A batch is
 * put as a whole, so it goes as one frame, as far as it fits into one.
 */
#include "keeper.h"

#include "base/clock.h"
#include "base/fail.h"
#include "link.h"
#include "store/types.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct keeper {
    struct hapax_store base;
    struct hapax__link link;
    struct hapax__asking askings[HAPAX_BATCH_MAX];
};

/* Blocks until the link has no more to do. The text of a failure becomes the store's. */
static void run(struct keeper *k)
{
    k->link.text[0] = '\0';
    k->link.arena = k->base.arena;
    hapax__link_run(&k->link);
    while (hapax__link_take(&k->link))
        ;
    if (k->link.text[0] != '\0')
        memcpy(k->base.text, k->link.text, sizeof(k->base.text));
}

static enum hapax_error keeper_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct keeper *k = (struct keeper *)store;

    assert(n >= 1 && n <= HAPAX_BATCH_MAX);
    for (size_t i = 0; i < n; i++) {
        k->askings[i] = (struct hapax__asking){.op = &ops[i]};
        hapax__link_put(&k->link, &k->askings[i]);
    }
    run(k);
    for (size_t i = 0; i < n; i++)
        if (ops[i].verdict == HAPAX_NO_VERDICT)
            return ops[i].error;
    return HAPAX_ERR_NONE;
}

/* Says whom the file lets connect; the keeper itself asks the kernel who comes. */
static void check_socket(const struct keeper *k, hapax_say *say, void *arg)
{
    const char *path = k->link.address.sun_path;
    char line[HAPAX_TEXT_MAX];
    struct stat st;

    if (stat(path, &st) != 0 || !(st.st_mode & (S_IWGRP | S_IWOTH)))
        return;
    if (st.st_mode & S_IWOTH)
        hapax__fail(line, HAPAX_ERR_NONE,
                    "\"%.108s\" is open to each user of this machine; its keeper turns away all "
                    "but root, its own user and its --group",
                    path);
    else
        hapax__fail(line, HAPAX_ERR_NONE,
                    "\"%.108s\" is open to the group %u, whose processes may run operations, and "
                    "see none of others",
                    path, (unsigned)st.st_gid);
    say(arg, false, line);
}

static enum hapax_error keeper_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct keeper *k = (struct keeper *)store;
    struct hapax__info info = {0};
    struct hapax__asking asking = {.info = &info};
    char line[HAPAX_TEXT_MAX];

    hapax__link_put(&k->link, &asking);
    run(k);
    if (info.pid == 0)
        return k->link.error != HAPAX_ERR_NONE ? k->link.error : HAPAX_ERR_UNAVAILABLE;
    hapax__fail(line, HAPAX_ERR_NONE,
                "keeper of process %u serves a %.*s store: protocol %u, %u clients, %u ops in hand",
                info.pid, (int)info.scheme.len, (const char *)info.scheme.ptr,
                k->link.server.version, info.clients, info.queued);
    say(arg, false, line);
    check_socket(k, say, arg);
    for (uint8_t i = 0; i < info.lines; i++) {
        hapax__fail(line, HAPAX_ERR_NONE, "%.*s", (int)info.line[i].text.len,
                    (const char *)info.line[i].text.ptr);
        say(arg, info.line[i].danger, line);
    }
    return HAPAX_ERR_NONE;
}

/* ---- open, close --------------------------------------------------------------------- */

static void keeper_close(struct hapax_store *store)
{
    struct keeper *k = (struct keeper *)store;

    hapax__link_release(&k->link);
    free(k);
}

/* Connects at once: an address where nobody serves is an error of `open`. */
static enum hapax_error connect_by(struct hapax_store **out, struct keeper *k,
                                   enum hapax_error error, char text[HAPAX_TEXT_MAX])
{
    if (error == HAPAX_ERR_NONE) {
        hapax__link_connect(&k->link, hapax__boot_us());
        hapax__link_run(&k->link);
        error = k->link.error;
        hapax__fail(text, error, "%s", k->link.text);
    }
    if (error != HAPAX_ERR_NONE) {
        keeper_close(&k->base);
        return error;
    }
    k->base.type = &hapax__keeper;
    *out = &k->base;
    return HAPAX_ERR_NONE;
}

static struct keeper *keeper_new(struct hapax_store **out, char text[HAPAX_TEXT_MAX])
{
    struct keeper *k = calloc(1, sizeof(*k));

    *out = NULL;
    if (!k)
        hapax__fail(text, HAPAX_ERR_NOMEM, "cannot reach a keeper: out of memory");
    return k;
}

enum hapax_error hapax__keeper_connect(struct hapax_store **out, const char *path,
                                       char text[HAPAX_TEXT_MAX])
{
    struct keeper *k = keeper_new(out, text);

    if (!k)
        return HAPAX_ERR_NOMEM;
    return connect_by(out, k, hapax__link_init(&k->link, path, 0, text), text);
}

static enum hapax_error keeper_open(struct hapax_store **out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    struct keeper *k = keeper_new(out, text);

    if (!k)
        return HAPAX_ERR_NOMEM;
    return connect_by(out, k, hapax__link_init_uri(&k->link, uri, text), text);
}

const struct hapax_store_type hapax__keeper = {
    .scheme = "unix",
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .open = keeper_open,
    .run = keeper_run,
    .check = keeper_check,
    .close = keeper_close,
};
