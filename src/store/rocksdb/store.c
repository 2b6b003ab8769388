/* SPDX-License-Identifier: Apache-2.0
 *
 * The store `rocksdb:PATH`: its URI, its handles, and the way to the process that has the database
 * open (the holder).
 *
 * A handle is a share in the process's database plus the memory to judge one batch. Where another
 * process is the holder, the handle has a client of the holder's keeper instead: so the same URI
 * works in every process of a machine. A holder that has just started may not listen yet, and one
 * that is closing may have stopped listening; open waits five seconds for either.
 *
 * When the holder ends, one of the processes that it served becomes the holder, at its next op, and
 * the others become its clients: a service must not depend on the life of the first process.
 */
#include "rocksdb.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "batch.h"
#include "store/keeper/keeper.h"
#include "store/types.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define HOLDER_WAIT_MS 5000
#define HOLDER_POLL_MS 20
#define GROUP_MAX      64u

struct handle {
    struct hapax_store base;
    /* NULL: another process has it open, and `client` is connected to that process. */
    struct hapax__database *database;
    struct hapax_store *client;
    struct hapax__batch *batch;
    struct folder *folder; /* NULL in the keeper's handle */
    bool keeper; /* the keeper's handle, which does not count as a user */
    bool doubt; /* the holder may be gone */
    uint64_t rests[HAPAX_BATCH_MAX]; /* of the answers of a run */
};

/* ---- the URI ------------------------------------------------------------------------- */

struct folder {
    char path[PATH_MAX];
    char group[GROUP_MAX + 1];
    unsigned mode;
    bool sync;
    bool any_files;
    bool inherited; /* sync, group and mode are the holder's, not the URI's */
};

static const char *set_option(struct folder *folder, const char *name, size_t name_len,
                              const char *value, size_t len)
{
    if (name_len == 4 && memcmp(name, "sync", 4) == 0) {
        folder->sync = len == 2 && memcmp(value, "on", 2) == 0;
        return folder->sync || (len == 3 && memcmp(value, "off", 3) == 0) ? NULL
                                                                          : "sync is not on or off";
    }
    if (name_len == 9 && memcmp(name, "any_files", 9) == 0) {
        folder->any_files = len == 2 && memcmp(value, "on", 2) == 0;
        return folder->any_files || (len == 3 && memcmp(value, "off", 3) == 0)
                   ? NULL
                   : "any_files is not on or off";
    }
    if (name_len == 5 && memcmp(name, "group", 5) == 0) {
        if (len == 0 || len > GROUP_MAX)
            return "group is not a name of 1 to 64 bytes";
        memcpy(folder->group, value, len);
        folder->group[len] = '\0';
        return NULL;
    }
    if (name_len == 4 && memcmp(name, "mode", 4) == 0) {
        folder->mode = 0;
        for (size_t i = 0; i < len && value[i] >= '0' && value[i] <= '7' && len <= 4; i++)
            folder->mode = folder->mode * 8 + (unsigned)(value[i] - '0');
        if (len < 3 || len > 4 || strspn(value, "01234567") < len || folder->mode > 0777 ||
            (folder->mode & 0600) != 0600)
            return "mode is not octal from 0600 to 0777, its owner's 6 included";
        return NULL;
    }
    return "";
}

static enum hapax_error parse_options(struct folder *folder, const char *at,
                                      char text[HAPAX_TEXT_MAX])
{
    for (;;) {
        size_t len = strcspn(at, "&");
        size_t name_len = strcspn(at, "=&");
        bool has_value = at[name_len] == '=';
        const char *fault =
            !has_value ? ""
                       : set_option(folder, at, name_len, at + name_len + 1, len - name_len - 1);

        if (fault && fault[0] == '\0')
            return hapax__fail(
                text, HAPAX_ERR_INVALID,
                "option \"%.*s\" is not known (sync=off, group=NAME, mode=0660, any_files=on)",
                (int)(len < 60 ? len : 60), at);
        if (fault)
            return hapax__fail(text, HAPAX_ERR_INVALID, "%s", fault);
        if (at[len] == '\0')
            return HAPAX_ERR_NONE;
        at += len + 1;
    }
}

static enum hapax_error parse_uri(struct folder *folder, const char *uri, char text[HAPAX_TEXT_MAX])
{
    const char *path = uri + strlen("rocksdb:");
    size_t len = strcspn(path, "?");

    assert(strncmp(uri, "rocksdb:", 8) == 0);
    memset(folder, 0, sizeof(*folder));
    folder->sync = true;
    if (len == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "it names no path (rocksdb:PATH)");
    if (len >= sizeof(folder->path))
        return hapax__fail(text, HAPAX_ERR_INVALID, "its path has %zu bytes, over the limit of %zu",
                           len, sizeof(folder->path) - 1);
    memcpy(folder->path, path, len);
    return path[len] == '?' ? parse_options(folder, path + len + 1, text) : HAPAX_ERR_NONE;
}

/* ---- the folder ---------------------------------------------------------------------- */

static enum hapax_error fail_folder(const struct folder *folder, const char *doing,
                                    char text[HAPAX_TEXT_MAX])
{
    switch (errno) {
    case ENOENT:
        return hapax__fail(text, HAPAX_ERR_INVALID, "the folder above it does not exist");
    case ENOTDIR:
        return hapax__fail(text, HAPAX_ERR_INVALID, "part of its path is not a folder");
    case EACCES:
    case EPERM:
    case EROFS:
        return hapax__fail(text, HAPAX_ERR_REFUSED, "cannot %s it: %s", doing, strerror(errno));
    case ENAMETOOLONG:
        return hapax__fail(text, HAPAX_ERR_INVALID, "its path of %zu bytes is too long",
                           strlen(folder->path));
    default:
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "cannot %s it: %s", doing, strerror(errno));
    }
}

/* Makes the folder where there is none, and makes its path absolute. */
static enum hapax_error make_folder(struct folder *folder, char text[HAPAX_TEXT_MAX])
{
    char full[PATH_MAX];
    struct stat st;

    if (mkdir(folder->path, 0700) != 0 && errno != EEXIST)
        return fail_folder(folder, "make", text);
    if (stat(folder->path, &st) != 0)
        return fail_folder(folder, "look at", text);
    if (!S_ISDIR(st.st_mode))
        return hapax__fail(text, HAPAX_ERR_INVALID, "it is not a folder");
    if (!realpath(folder->path, full))
        return fail_folder(folder, "resolve", text);
    memcpy(folder->path, full, sizeof(full));
    return HAPAX_ERR_NONE;
}

/* ---- opening ------------------------------------------------------------------------- */

static struct handle *handle_new(void)
{
    struct handle *handle = calloc(1, sizeof(*handle));

    if (!handle)
        return NULL;
    handle->batch = hapax__batch_new();
    if (!handle->batch) {
        free(handle);
        return NULL;
    }
    return handle;
}

static void handle_free(struct handle *handle)
{
    if (handle->database && !handle->keeper)
        hapax__database_leave(handle->database);
    hapax_store_close(handle->client);
    hapax__batch_free(handle->batch);
    free(handle->folder);
    free(handle);
}

static struct hapax_store *make_keeper_handle(struct hapax__database *database)
{
    struct handle *handle = handle_new();

    if (!handle)
        return NULL;
    handle->keeper = true;
    handle->database = database;
    handle->base.type = &hapax__rocksdb;
    handle->base.arena = calloc(1, sizeof(*handle->base.arena));
    if (!handle->base.arena) {
        handle_free(handle);
        return NULL;
    }
    return &handle->base;
}

static void pause_ms(long ms)
{
    struct timespec ts = {0, ms * 1000000};

    nanosleep(&ts, NULL);
}

static enum hapax_error connect_holder(struct handle *handle, char text[HAPAX_TEXT_MAX])
{
    char name[PATH_MAX + 16];
    struct hapax_arena *arena = calloc(1, sizeof(*arena));
    enum hapax_error error;

    if (!arena)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    snprintf(name, sizeof(name), "%s/keeper.sock", handle->folder->path);
    error = hapax__keeper_connect(&handle->client, name, text);
    if (error != HAPAX_ERR_NONE) {
        free(arena);
        return error;
    }
    handle->client->type = &hapax__keeper;
    handle->client->arena = arena;
    return HAPAX_ERR_NONE;
}

static enum hapax_error join(struct handle *handle, pid_t *holder, char text[HAPAX_TEXT_MAX])
{
    const struct folder *folder = handle->folder;
    struct hapax__database_options options = {.path = folder->path,
                                              .sync = folder->sync,
                                              .any_files = folder->any_files,
                                              .group = folder->group[0] ? folder->group : NULL,
                                              .mode = folder->mode,
                                              .inherited = folder->inherited,
                                              .make_handle = make_keeper_handle};

    return hapax__database_join(&handle->database, &options, holder, text);
}

/* Takes the settings of the last holder, for when this process takes over. Where they cannot be
 * read, as those of another version or of a holder that ended in good order, the handle keeps what
 * it has. */
static void inherit(struct handle *handle)
{
    char settings[HAPAX__SETTINGS_MAX], text[HAPAX_TEXT_MAX];
    struct folder theirs = *handle->folder;

    theirs.group[0] = '\0';
    theirs.inherited = true;
    if (hapax__database_settings(theirs.path, settings) &&
        parse_options(&theirs, settings, text) == HAPAX_ERR_NONE)
        *handle->folder = theirs;
}

/* Joins the database or connects to its holder, whichever succeeds first. A holder that refuses, or
 * speaks another version, would do so again, and is asked once only. */
static enum hapax_error find_database(struct handle *handle, char text[HAPAX_TEXT_MAX])
{
    int64_t deadline_ms = hapax__monotonic_us() / US_PER_MS + HOLDER_WAIT_MS;
    char why[HAPAX_TEXT_MAX] = "";
    char who[32] = "another process";
    pid_t holder = -1;

    for (;;) {
        enum hapax_error error = join(handle, &holder, text);

        if (error == HAPAX_ERR_NONE || holder < 0)
            return error;
        error = connect_holder(handle, why);
        if (error == HAPAX_ERR_NONE) {
            inherit(handle);
            return error;
        }
        if (error != HAPAX_ERR_UNAVAILABLE || hapax__monotonic_us() / US_PER_MS >= deadline_ms)
            break;
        pause_ms(HOLDER_POLL_MS);
    }
    if (holder > 0)
        snprintf(who, sizeof(who), "process %d", (int)holder);
    return hapax__fail(text, HAPAX_ERR_REFUSED, "held by %s, whose keeper does not answer (%.120s)",
                       who, why);
}

static enum hapax_error open_handle(struct handle *handle, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    handle->folder = malloc(sizeof(*handle->folder));
    if (!handle->folder)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    error = parse_uri(handle->folder, uri, text);
    if (error == HAPAX_ERR_NONE)
        error = make_folder(handle->folder, text);
    if (error == HAPAX_ERR_NONE)
        error = find_database(handle, text);
    return error;
}

static enum hapax_error rocksdb_store_open(struct hapax_store **out, const char *uri,
                                           char text[HAPAX_TEXT_MAX])
{
    struct handle *handle = handle_new();
    char why[HAPAX_TEXT_MAX] = "";
    enum hapax_error error;

    if (!handle)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store \"%.80s\": out of memory",
                           uri);
    error = open_handle(handle, uri, why);
    if (error == HAPAX_ERR_NONE) {
        assert(!handle->database != !handle->client);
        *out = &handle->base;
        return error;
    }
    handle_free(handle);
    return hapax__fail(text, error, "cannot open store \"%.80s\": %.200s", uri, why);
}

/* ---- the holder is gone -------------------------------------------------------------- */

/* Becomes the holder, if there is none, with the settings of the one before. The client stays until
 * the handle is closed, since the answers of this call may point into it. */
static bool take_over(struct handle *handle)
{
    char text[HAPAX_TEXT_MAX];
    pid_t holder;

    inherit(handle);
    return join(handle, &holder, text) == HAPAX_ERR_NONE;
}

static bool unanswered(const struct hapax_op *op)
{
    return op->error == HAPAX_ERR_UNAVAILABLE || op->error == HAPAX_ERR_INDETERMINATE;
}

/* A forget removes its token with the record: the repeat of a forget that was applied would meet a
 * record that came later. */
static bool may_repeat(const struct hapax_op *op)
{
    bool forgets = op->kind == HAPAX_OP_RESOLVE && op->resolve == HAPAX_RESOLVE_FORGET;

    return unanswered(op) && !(forgets && op->error == HAPAX_ERR_INDETERMINATE);
}

/* Answers ops on this process's own database; answer i is to wait for the write rests[i]. */
static enum hapax_error judge_here(struct handle *handle, struct hapax_op *ops, size_t n,
                                   uint64_t *rests)
{
    struct hapax__database *database = handle->database;
    struct hapax_store *store = &handle->base;
    int64_t now_us;
    struct hapax__files *files = hapax__database_enter(database, &now_us);
    enum hapax_error error;

    memset(rests, 0, n * sizeof(*rests));
    if (!files->db) {
        error =
            hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "the database does not open again: %s",
                             hapax__database_why(database));
        for (size_t i = 0; i < n; i++)
            ops[i].error = error;
    } else if (ops[0].kind == HAPAX_OP_LIST) {
        error = hapax__walk_list(store, database, files, &ops[0], now_us, rests);
    } else if (ops[0].kind == HAPAX_OP_PURGE && ops[0].scrub) {
        error = hapax__database_scrub(store, database, &ops[0], now_us);
    } else if (ops[0].kind == HAPAX_OP_PURGE) {
        error = hapax__walk_purge(store, database, files, &ops[0], now_us, rests);
    } else {
        error = hapax__batch_run(handle->batch, store, database, files, ops, n, now_us, rests);
    }
    hapax__database_exit(database);
    return error;
}

/* The same, and waits for the writes. */
static enum hapax_error run_here(struct handle *handle, struct hapax_op *ops, size_t n)
{
    enum hapax_error error = judge_here(handle, ops, n, handle->rests);
    char text[HAPAX_TEXT_MAX];
    uint64_t last = 0;

    for (size_t i = 0; i < n; i++)
        last = handle->rests[i] > last ? handle->rests[i] : last;
    if (hapax__database_sync(handle->database, last, text) == HAPAX_ERR_NONE)
        return error;
    for (size_t i = 0; i < n; i++) {
        if (handle->rests[i] == 0)
            continue;
        ops[i].verdict = HAPAX_NO_VERDICT;
        ops[i].error = HAPAX_ERR_INDETERMINATE;
    }
    return hapax_store_fail(&handle->base, HAPAX_ERR_INDETERMINATE, "%s", text);
}

/* Repeats, with their tokens, the ops without a reply, on the database that is this process's now.
 * The database shows whether the dead holder applied them, so a repeat's verdict is definite. The
 * error of a repeat is about the repeat alone. */
static enum hapax_error repeat_unanswered(struct handle *handle, struct hapax_op *ops, size_t n)
{
    enum hapax_error first = HAPAX_ERR_NONE;

    for (size_t i = 0; i < n; i++) {
        enum hapax_error error = ops[i].error;
        bool doubt = error == HAPAX_ERR_INDETERMINATE;

        if (may_repeat(&ops[i]))
            error = run_here(handle, &ops[i], 1);
        if (doubt && ops[i].verdict == HAPAX_NO_VERDICT && ops[i].error != HAPAX_ERR_CORRUPT)
            error = ops[i].error = HAPAX_ERR_INDETERMINATE;
        first = first == HAPAX_ERR_NONE ? error : first;
    }
    return first;
}

static enum hapax_error run_client(struct handle *handle, struct hapax_op *ops, size_t n)
{
    enum hapax_error error = hapax_store_run(handle->client, ops, n);

    handle->doubt = false;
    if (error == HAPAX_ERR_NONE)
        return error;
    hapax_store_fail(&handle->base, error, "%s", hapax_store_text(handle->client));
    for (size_t i = 0; i < n; i++)
        handle->doubt |= unanswered(&ops[i]);
    return handle->doubt && take_over(handle) ? repeat_unanswered(handle, ops, n) : error;
}

/* ---- the store ----------------------------------------------------------------------- */

static enum hapax_error rocksdb_store_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct handle *handle = (struct handle *)store;

    if (!handle->database && !(handle->doubt && take_over(handle)))
        return run_client(handle, ops, n);
    return run_here(handle, ops, n);
}

/* The answers of another process are durable when they come. */
static enum hapax_error rocksdb_store_judge(struct hapax_store *store, struct hapax_op *ops,
                                            size_t n, uint64_t *rests)
{
    struct handle *handle = (struct handle *)store;

    if (handle->database)
        return judge_here(handle, ops, n, rests);
    return rocksdb_store_run(store, ops, n);
}

static enum hapax_error rocksdb_store_sync(struct hapax_store *store, uint64_t number,
                                           char text[HAPAX_TEXT_MAX])
{
    return hapax__database_sync(((struct handle *)store)->database, number, text);
}

/* RocksDB merges files by writing them anew first, of up to a GiB or so together; so much has to be
 * free. Of a volume under 10 GiB a tenth is enough, for the store on it is small, too. */
static void say_room(const char *path, hapax_say *say, void *arg)
{
    char line[HAPAX_TEXT_MAX];
    struct statvfs st;
    uint64_t free_mib, all_mib;
    bool soon;

    if (statvfs(path, &st) != 0)
        return;
    free_mib = (uint64_t)st.f_bavail * st.f_frsize >> 20;
    all_mib = (uint64_t)st.f_blocks * st.f_frsize >> 20;
    soon = free_mib < 1024 && free_mib < all_mib / 10;
    snprintf(line, sizeof(line), "%llu MiB of %llu MiB are free on its disk%s",
             (unsigned long long)free_mib, (unsigned long long)all_mib,
             soon ? ": soon nothing more can be stored" : "");
    say(arg, soon, line);
}

/* Says what reads have met, and what RocksDB met when it merged or wrote files by itself. */
static void say_damage(struct hapax__files *files, hapax_say *say, void *arg)
{
    char line[HAPAX_TEXT_MAX];
    uint64_t errors = 0;

    if (files->damage[0]) {
        snprintf(line, sizeof(line), "its files are damaged (restore a backup): %.200s",
                 files->damage);
        say(arg, true, line);
    }
    if (files->unmerged)
        say(arg, true,
            "since a block is damaged, its files are no longer merged: expired records stay, and "
            "reads get slower");
    if (files->db && rocksdb_property_int(files->db, "rocksdb.background-errors", &errors) == 0 &&
        errors > 0)
        say(arg, true, "it cannot merge its files, or cannot write them: the next write fails");
}

static enum hapax_error check_client(struct handle *handle, hapax_say *say, void *arg)
{
    enum hapax_error error = hapax_store_check(handle->client, say, arg);

    if (error == HAPAX_ERR_NONE)
        return error;
    return hapax_store_fail(&handle->base, error, "%s", hapax_store_text(handle->client));
}

static enum hapax_error rocksdb_store_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct handle *handle = (struct handle *)store;
    char line[HAPAX_TEXT_MAX];
    uint64_t records = 0;
    int64_t now_us;
    struct hapax__files *files;
    bool writable, exact = true;

    if (!handle->database)
        return check_client(handle, say, arg);
    files = hapax__database_enter(handle->database, &now_us);
    writable = hapax__database_writable(handle->database);

    if (!writable)
        hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "cannot write: %s",
                         hapax__database_why(handle->database));
    if (files->db)
        exact = hapax__walk_count(files, now_us, &records);
    say_damage(files, say, arg);
    hapax__database_exit(handle->database);
    if (!hapax__database_synced(handle->database))
        say(arg, true, "sync is off: a power cut loses the outcomes of the last moments");
    snprintf(line, sizeof(line), "%s%llu record%s", exact ? "" : "about ",
             (unsigned long long)records, records == 1 ? "" : "s");
    say(arg, false, line);
    say_room(hapax__database_path(handle->database), say, arg);
    return writable ? HAPAX_ERR_NONE : HAPAX_ERR_UNAVAILABLE;
}

static enum hapax_error rocksdb_store_measure(struct hapax_store *store, struct hapax_vitals *out)
{
    struct handle *handle = (struct handle *)store;
    struct statvfs st;

    if (handle->database && statvfs(hapax__database_path(handle->database), &st) == 0) {
        out->disk_bytes = (int64_t)(st.f_blocks * st.f_frsize);
        out->disk_free_bytes = (int64_t)(st.f_bavail * st.f_frsize);
    }
    return HAPAX_ERR_NONE;
}

static void rocksdb_store_close(struct hapax_store *store)
{
    handle_free((struct handle *)store);
}

const struct hapax_store_type hapax__rocksdb = {
    .scheme = "rocksdb",
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .serial = true,
    .scrubs = true,
    .remains = HAPAX__ROCKSDB_REMAINS,
    .open = rocksdb_store_open,
    .run = rocksdb_store_run,
    .judge = rocksdb_store_judge,
    .sync = rocksdb_store_sync,
    .check = rocksdb_store_check,
    .close = rocksdb_store_close,
    .measure = rocksdb_store_measure,
};

void hapax_rocksdb_use(void)
{
    hapax__store_add(&hapax__rocksdb);
}
