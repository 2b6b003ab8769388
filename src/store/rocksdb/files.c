/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of the embedded store: RocksDB's settings, opening and closing, and the filter that
 * drops expired records when files are merged.
 *
 * What was synced must be read again after any crash, or the database must not open. Hence the
 * recovery mode that lets the last record of a log be torn, as a crash leaves it, and takes
 * any other damage for what it is; RocksDB's default stops at the first damaged record and
 * silently forgets the acknowledged ones behind it. That mode excludes recycled log files (the
 * tail of one is old data, which looks like damage); RocksDB 7.8 recycles none with its default
 * mode either, whatever it is told.
 *
 * RocksDB is C++ and ends the process where it gets no memory: a crash, which the store survives.
 */
#include "db.h"

#include "base/fail.h"
#include "base/span.h"
#include "core/record.h"

#include <assert.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

/* The level of RocksDB's own log from which on it writes. Debian builds RocksDB 7.8 with its asserts, and
 * one of them ends the process at the second line that a full disk refuses: so it is to write
 * none at all. As the level has no name, its OPTIONS file, which nobody reads, is not finished.
 * Later versions would not open without that; they get the highest level there is. */
#define LOG_LEVEL (HAPAX__ROCKSDB_MAJOR < 8 ? 6 : 5)

static const char *const family_names[HAPAX__FAMILIES] = {"default", "open", "meta"};

/* ---- expiry -------------------------------------------------------------------------- */

static void keep_state(void *state)
{
    (void)state;
}

static const char *filter_name(void *state)
{
    (void)state;
    return "hapax.expired";
}

static unsigned char drop_expired(void *state, int level, const char *key, size_t key_len,
                                  const char *value, size_t value_len, char **new_value,
                                  size_t *new_len, unsigned char *changed)
{
    const struct hapax__files *files = state;
    enum hapax_state record_state;
    int64_t expires_us;

    (void)level;
    (void)key;
    (void)key_len;
    (void)new_value;
    (void)new_len;
    *changed = 0;
    if (!hapax__record_peek((struct hapax_span){(const uint8_t *)value, value_len}, &record_state,
                            &expires_us))
        return 0;
    return expires_us > 0 && expires_us <= atomic_load(&files->judged_us);
}

/* ---- settings ------------------------------------------------------------------------ */

static void set_table(rocksdb_options_t *options, rocksdb_cache_t *cache)
{
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();

    rocksdb_block_based_options_set_filter_policy(table,
                                                  rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_block_based_options_set_block_cache(table, cache);
    rocksdb_options_set_block_based_table_factory(options, table);
    rocksdb_block_based_options_destroy(table);
}

static void set_database(rocksdb_options_t *options)
{
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_create_missing_column_families(options, 1);
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_wal_recovery_mode(options,
                                          rocksdb_tolerate_corrupted_tail_records_recovery);
    rocksdb_options_set_manual_wal_flush(options, 0); /* a killed process must lose nothing */
    rocksdb_options_set_max_total_wal_size(options, 256 * MIB);
    rocksdb_options_set_max_open_files(options, 512);
    rocksdb_options_set_max_background_jobs(options, 2);
    rocksdb_options_set_bytes_per_sync(options, MIB); /* no long stall when a file is finished */
    rocksdb_options_set_max_manifest_file_size(options, 64 * MIB);
    rocksdb_options_set_info_log_level(options, LOG_LEVEL);
    rocksdb_options_set_keep_log_file_num(options, 1);
    rocksdb_options_set_stats_dump_period_sec(options, 0);
    rocksdb_options_set_stats_persist_period_sec(options, 0);
}

/* `open` is small and each of its entries is deleted soon: a small buffer has the deletions meet
 * what they delete before a LIST has to step over many of them. */
static void set_family(rocksdb_options_t *options, enum hapax__family family)
{
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    rocksdb_options_set_max_write_buffer_number(options, 4);
    rocksdb_options_set_write_buffer_size(options, family == HAPAX__RECORDS ? 64 * MIB : 8 * MIB);
    /* Most CLAIMs ask for a record that is not there. */
    if (family == HAPAX__RECORDS) {
        rocksdb_options_set_memtable_prefix_bloom_size_ratio(options, 0.02);
        rocksdb_options_set_memtable_whole_key_filtering(options, 1);
    }
}

void hapax__files_init(struct hapax__files *files)
{
    memset(files, 0, sizeof(*files));
    files->cache = rocksdb_cache_create_lru(256 * MIB);
    files->filter = rocksdb_compactionfilter_create(files, keep_state, drop_expired, filter_name);
    rocksdb_compactionfilter_set_ignore_snapshots(files->filter, 1);
    for (int i = 0; i < HAPAX__FAMILIES; i++) {
        files->options[i] = rocksdb_options_create();
        set_database(files->options[i]);
        set_family(files->options[i], (enum hapax__family)i);
        set_table(files->options[i], files->cache);
    }
    rocksdb_options_set_compaction_filter(files->options[HAPAX__RECORDS], files->filter);
}

void hapax__files_release(struct hapax__files *files)
{
    assert(!files->db);
    for (int i = 0; i < HAPAX__FAMILIES; i++)
        rocksdb_options_destroy(files->options[i]);
    rocksdb_compactionfilter_destroy(files->filter);
    rocksdb_cache_destroy(files->cache);
}

/* ---- opening ------------------------------------------------------------------------- */

enum hapax_error hapax__files_error(char *rocksdb_text, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;

    if (hapax__text_begins(rocksdb_text, "Corruption"))
        error = HAPAX_ERR_CORRUPT;
    else if (strstr(rocksdb_text, "Permission denied") || strstr(rocksdb_text, "While lock file") ||
             strstr(rocksdb_text, "lock hold by"))
        error = HAPAX_ERR_REFUSED;
    else if (hapax__text_begins(rocksdb_text, "Invalid argument") ||
             hapax__text_begins(rocksdb_text, "Not implemented"))
        error = HAPAX_ERR_UNSUPPORTED;
    hapax__fail(text, error, "%.160s", rocksdb_text);
    rocksdb_free(rocksdb_text);
    return error;
}

/* RocksDB leaves one at each opening. */
static void remove_unfinished_options(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    if (!dir)
        return;
    while ((entry = readdir(dir)) != NULL)
        if (hapax__text_begins(entry->d_name, "OPTIONS-") && strstr(entry->d_name, ".dbtmp"))
            unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
}

enum hapax_error hapax__files_open(struct hapax__files *files, const char *folder,
                                   char text[HAPAX_TEXT_MAX])
{
    char *failure = NULL;

    assert(!files->db);
    files->db = rocksdb_open_column_families(
        files->options[HAPAX__RECORDS], folder, HAPAX__FAMILIES, family_names,
        (const rocksdb_options_t *const *)files->options, files->family, &failure);
    remove_unfinished_options(folder);
    if (!failure)
        return HAPAX_ERR_NONE;
    files->db = NULL;
    return hapax__files_error(failure, text);
}

void hapax__files_close(struct hapax__files *files)
{
    if (!files->db)
        return;
    for (int i = 0; i < HAPAX__FAMILIES; i++)
        rocksdb_column_family_handle_destroy(files->family[i]);
    rocksdb_close(files->db);
    files->db = NULL;
}
