/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB's C interface does not tell how a merge of all files ended. So what is believed is the
 * folder: RocksDB numbers its files upwards, and a scrub is done when no file is left with a number
 * from before it.
 *
 * Rejected: merging only around the ids that were removed. Ids are digests, so those of an owner
 * are in every file of a store that has many.
 */
#include "scrub.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"
#include "base/time.h"

#include <assert.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define KEPT_US   (30 * US_PER_S) /* for RocksDB to remove the files that it has written anew */
#define LOOK_MS   20
#define OPTIMIZED 3 /* of rocksdb_compactoptions: also the last level, but nothing of it twice */

/* The numbers of a folder's files with this ending that have any bytes: the lowest and the highest;
 * 0: there is none. RocksDB goes on with an empty log. False: the folder cannot be read. */
static bool numbers_of(uint64_t of[2], const char *folder, const char *ending)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    of[0] = of[1] = 0;
    if (!dir)
        return false;
    while ((entry = readdir(dir)) != NULL) {
        struct stat st;
        char *end;
        uint64_t number = strtoull(entry->d_name, &end, 10);

        if (end == entry->d_name || strcmp(end, ending) != 0 ||
            fstatat(dirfd(dir), entry->d_name, &st, 0) != 0 || st.st_size == 0)
            continue;
        of[0] = of[0] == 0 || number < of[0] ? number : of[0];
        of[1] = number > of[1] ? number : of[1];
    }
    closedir(dir);
    return true;
}

static enum hapax_error flush(struct hapax__scrub *scrub)
{
    rocksdb_flushoptions_t *options = rocksdb_flushoptions_create();
    enum hapax_error error = HAPAX_ERR_NONE;

    rocksdb_flushoptions_set_wait(options, 1);
    for (int i = 0; i < HAPAX__FAMILIES && error == HAPAX_ERR_NONE; i++) {
        char *failure = NULL;

        rocksdb_flush_cf(scrub->files->db, options, scrub->files->family[i], &failure);
        if (failure)
            error = hapax__files_error(failure, scrub->why);
    }
    rocksdb_flushoptions_destroy(options);
    return error;
}

/* Others may be merged meanwhile, or writes would soon have to wait. */
static void merge(struct hapax__scrub *scrub)
{
    rocksdb_compactoptions_t *options = rocksdb_compactoptions_create();

    rocksdb_compactoptions_set_exclusive_manual_compaction(options, 0);
    rocksdb_compactoptions_set_bottommost_level_compaction(options, OPTIMIZED);
    for (int i = 0; i < HAPAX__FAMILIES && !atomic_load(&scrub->stop); i++)
        rocksdb_compact_range_cf_opt(scrub->files->db, scrub->files->family[i], options, NULL, 0,
                                     NULL, 0);
    rocksdb_compactoptions_destroy(options);
}

/* Whether a table of the database has a number up to this. */
static bool has_old(struct hapax__scrub *scrub, uint64_t number)
{
    const rocksdb_livefiles_t *files = rocksdb_livefiles(scrub->files->db);
    bool old = false;

    for (int i = 0; i < rocksdb_livefiles_count(files) && !old; i++) {
        const char *name = rocksdb_livefiles_name(files, i);

        old = strtoull(name + strspn(name, "/"), NULL, 10) <= number;
    }
    rocksdb_livefiles_destroy(files);
    return old;
}

static enum hapax_error run(struct hapax__scrub *scrub)
{
    const struct timespec pause = {0, LOOK_MS * 1000000};
    uint64_t logs[2], tables[2], left[2];
    bool seen = numbers_of(logs, scrub->folder, ".log");
    int64_t until_us;
    enum hapax_error error = flush(scrub);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (!seen || !numbers_of(tables, scrub->folder, ".sst"))
        return hapax__fail(scrub->why, HAPAX_ERR_UNAVAILABLE, "cannot read its folder");
    merge(scrub);
    if (has_old(scrub, tables[1])) /* a table that came from the buffer alone is moved first */
        merge(scrub);
    for (until_us = hapax__monotonic_us() + KEPT_US; hapax__monotonic_us() < until_us;) {
        if (atomic_load(&scrub->stop))
            break;
        if (numbers_of(left, scrub->folder, ".log") && (left[0] == 0 || left[0] > logs[1]) &&
            numbers_of(left, scrub->folder, ".sst") && (left[0] == 0 || left[0] > tables[1]))
            return HAPAX_ERR_NONE;
        (void)nanosleep(&pause, NULL);
    }
    return hapax__fail(scrub->why, HAPAX_ERR_UNAVAILABLE,
                       "RocksDB did not write all of its files anew (is there room for them?)");
}

static void *scrub_main(void *arg)
{
    struct hapax__scrub *scrub = arg;

    pthread_setname_np(pthread_self(), "hapax-scrub");
    scrub->error = run(scrub);
    atomic_store(&scrub->over, true);
    return NULL;
}

static void join(struct hapax__scrub *scrub)
{
    if (!scrub->runs)
        return;
    pthread_join(scrub->thread, NULL);
    scrub->runs = false;
    if (scrub->error == HAPAX_ERR_NONE)
        scrub->done = scrub->number;
}

bool hapax__scrub_begin(struct hapax__scrub *scrub, struct hapax__files *files, const char *folder)
{
    assert(!scrub->runs && strlen(folder) < sizeof(scrub->folder));
    scrub->files = files;
    memcpy(scrub->folder, folder, strlen(folder) + 1);
    scrub->why[0] = '\0';
    atomic_store(&scrub->over, false);
    atomic_store(&scrub->stop, false);
    scrub->runs = hapax__thread_start(&scrub->thread, scrub_main, scrub);
    scrub->number += scrub->runs;
    return scrub->runs;
}

bool hapax__scrub_over(struct hapax__scrub *scrub)
{
    if (scrub->runs && !atomic_load(&scrub->over))
        return false;
    join(scrub);
    return true;
}

void hapax__scrub_stop(struct hapax__scrub *scrub)
{
    if (hapax__scrub_over(scrub))
        return;
    atomic_store(&scrub->stop, true);
    rocksdb_disable_manual_compaction(scrub->files->db);
    join(scrub);
}
