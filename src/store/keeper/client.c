/* SPDX-License-Identifier: Apache-2.0
 *
 * The store `unix:`, whose ops another process runs: a link (link.h) that is waited for. A batch is
 * put as a whole, so it goes as one frame, as far as it fits into one.
 *
 * A lane begins a batch while it waits for the answers to another, in two threads. The mutex is for
 * the link. Whoever ends a batch polls without it, and is woken where the other thread has changed
 * what is to be polled for: after a loss, or where the socket takes no more.
 */
#include "keeper.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fail.h"
#include "link.h"
#include "store/types.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

struct half {
    struct hapax__asking askings[HAPAX_BATCH_MAX];
    size_t count;
    size_t left; /* ops that have no answer */
};

struct keeper {
    struct hapax_store base;
    struct hapax__link link;

    pthread_mutex_t lock; /* of the link, and of what follows */
    int wake; /* an eventfd */
    bool polls; /* a thread that ends a batch, for this, and until then */
    struct pollfd polled;
    int64_t polled_until_us;
    struct half begun[HAPAX_BEGUN_MAX]; /* a ring; `run` uses the first */
    uint32_t first;
    uint32_t count;
};

/* Takes what was answered. */
static void take(struct keeper *k)
{
    struct hapax__asking *asking;

    while ((asking = hapax__link_take(&k->link)))
        for (uint32_t i = 0; i < HAPAX_BEGUN_MAX; i++)
            if (asking >= k->begun[i].askings && asking < k->begun[i].askings + HAPAX_BATCH_MAX)
                k->begun[i].left--;
}

/* Blocks until the link has no more to do. The text of a failure becomes the store's. */
static void run(struct keeper *k)
{
    k->link.text[0] = '\0';
    k->link.arena = k->base.arena;
    hapax__link_run(&k->link);
    take(k);
    if (k->link.text[0] != '\0')
        memcpy(k->base.text, k->link.text, sizeof(k->base.text));
}

static enum hapax_error first_error(const struct hapax_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ops[i].verdict == HAPAX_NO_VERDICT)
            return ops[i].error;
    return HAPAX_ERR_NONE;
}

static void put(struct keeper *k, struct half *batch, struct hapax_op *ops, size_t n)
{
    assert(n >= 1 && n <= HAPAX_BATCH_MAX);
    batch->count = batch->left = n;
    for (size_t i = 0; i < n; i++) {
        batch->askings[i] = (struct hapax__asking){.op = &ops[i]};
        hapax__link_put(&k->link, &batch->askings[i]);
    }
}

static enum hapax_error keeper_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct keeper *k = (struct keeper *)store;

    assert(k->count == 0);
    put(k, &k->begun[0], ops, n);
    run(k);
    return first_error(ops, n);
}

/* ---- in two halves ------------------------------------------------------------------- */

static void wake(struct keeper *k)
{
    uint64_t one = 1;
    ssize_t written = write(k->wake, &one, sizeof(one));

    assert(written == (ssize_t)sizeof(one));
}

static void keeper_begin(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct keeper *k = (struct keeper *)store;
    struct pollfd now;
    bool paused;

    pthread_mutex_lock(&k->lock);
    assert(k->count < HAPAX_BEGUN_MAX);
    put(k, &k->begun[(k->first + k->count++) % HAPAX_BEGUN_MAX], ops, n);
    /* Answers that have come are left to who ends their batch, and knows when the arena is free. */
    paused = k->link.paused;
    k->link.paused = false;
    hapax__link_turn(&k->link, hapax__boot_us(), false);
    k->link.paused = paused && k->link.fd >= 0;
    now = hapax__link_poll(&k->link);
    if (k->polls && (now.fd != k->polled.fd || now.events != k->polled.events ||
                     hapax__link_wake_us(&k->link) < k->polled_until_us))
        wake(k);
    pthread_mutex_unlock(&k->lock);
}

/* Under the lock, which is free meanwhile. Returns whether the connection is readable. */
static bool wait_for_link(struct keeper *k)
{
    struct pollfd fds[2] = {hapax__link_poll(&k->link), {.fd = k->wake, .events = POLLIN}};
    int timeout_ms = hapax__link_wait_ms(&k->link, hapax__boot_us());
    uint64_t count;

    if (timeout_ms == 0)
        return false;
    k->polls = true;
    k->polled = fds[0];
    k->polled_until_us = hapax__link_wake_us(&k->link);
    pthread_mutex_unlock(&k->lock);
    if (poll(fds, 2, timeout_ms) <= 0)
        fds[0].revents = fds[1].revents = 0;
    pthread_mutex_lock(&k->lock);
    k->polls = false;
    if (fds[1].revents && read(k->wake, &count, sizeof(count)) < 0)
        assert(errno == EAGAIN);
    return (fds[0].revents & ~POLLOUT) != 0;
}

static enum hapax_error keeper_end(struct hapax_store *store, struct hapax_op *ops, size_t n,
                                   char text[HAPAX_TEXT_MAX])
{
    struct keeper *k = (struct keeper *)store;
    struct half *batch;
    bool readable = false;

    pthread_mutex_lock(&k->lock);
    batch = &k->begun[k->first];
    assert(k->count > 0 && batch->count == n && batch->askings[0].op == ops);
    /* Answers of this batch may have come with those of the one before. */
    if (batch->left == batch->count && !hapax__link_halfway(&k->link))
        hapax__arena_reset(k->base.arena);
    k->link.arena = k->base.arena;
    while (batch->left > 0) {
        hapax__link_turn(&k->link, hapax__boot_us(), readable);
        take(k);
        readable = batch->left > 0 && wait_for_link(k);
    }
    memcpy(text, k->link.text, sizeof(k->link.text));
    k->link.text[0] = '\0';
    k->first = (k->first + 1) % HAPAX_BEGUN_MAX;
    k->count--;
    pthread_mutex_unlock(&k->lock);
    return first_error(ops, n);
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
    if (k->link.server.version < HAPAX__FRAME_VERSION) {
        hapax__fail(line, HAPAX_ERR_NONE,
                    "this program speaks protocol %u, too: restart the keeper with this Hapax; "
                    "what it does not know is refused until then",
                    HAPAX__FRAME_VERSION);
        say(arg, false, line);
    }
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
    pthread_mutex_destroy(&k->lock);
    if (k->wake >= 0)
        close(k->wake);
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
    if (!k || (k->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        free(k);
        hapax__fail(text, HAPAX_ERR_NOMEM, "cannot reach a keeper: out of memory or descriptors");
        return NULL;
    }
    pthread_mutex_init(&k->lock, NULL);
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
    .scrubs = true,
    .remains = HAPAX__ROCKSDB_REMAINS,
    .open = keeper_open,
    .run = keeper_run,
    .begin = keeper_begin,
    .end = keeper_end,
    .check = keeper_check,
    .close = keeper_close,
};
