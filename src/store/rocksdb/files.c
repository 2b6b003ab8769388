/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of the embedded store: RocksDB's settings, opening and closing, what both batches and
 * walks write and say of them, and the filter that drops expired records when files are merged.
 *
 * After any crash, what was synced must be read again, or the database must not open. Hence the
 * recovery mode: the last record of a log may be torn, as a crash leaves it, and any other damage
 * is an error. RocksDB's default mode stops at the first damaged record and silently forgets the
 * acknowledged records behind it. The mode excludes recycled log files, whose tail is old data and
 * looks like damage; RocksDB 7.8 recycles no log with its default mode either, whatever the option
 * says.
 *
 * RocksDB is C++, and ends the process where it gets no memory. The store survives that crash.
 */
#include "files.h"

#include "base/bytes.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"
#include "core/machine.h"
#include "core/record.h"

#include <assert.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MIB            (UINT64_C(1) << 20)
#define OPEN_FILES_MAX 4096

/* The lowest level of lines in RocksDB's own log. Debian builds RocksDB 7.8 with its asserts. One
 * of these ends the process at the second line that a full disk refuses, so 7.8 must write no line:
 * 6 is above all levels. As level 6 has no name, RocksDB does not finish its OPTIONS file, which
 * nobody reads. Later versions do not open without that file; they get the highest level, 5. */
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

/* Makes the value of a tombstone that still has its outcome. RocksDB copies it. */
static bool bury(const char *key, struct hapax_span value, int64_t now_us, char **out,
                 size_t *out_len)
{
    static _Thread_local uint8_t room[1024];
    struct hapax_record record, next;
    struct hapax_id id;

    memcpy(&id, key, sizeof(id));
    if (hapax__record_decode(&record, &id, value) != HAPAX_ERR_NONE ||
        hapax__swept(&record, now_us, &next) != HAPAX__WRITE ||
        next.state != HAPAX_STATE_COMPLETED || hapax__record_size(&next) > sizeof(room))
        return false;
    hapax__record_encode(room, &next);
    *out = (char *)room;
    *out_len = hapax__record_size(&next);
    return true;
}

static unsigned char drop_expired(void *state, int level, const char *key, size_t key_len,
                                  const char *value, size_t value_len, char **new_value,
                                  size_t *new_len, unsigned char *changed)
{
    const struct hapax__files *files = state;
    struct hapax_span bytes = {(const uint8_t *)value, value_len};
    int64_t now_us = atomic_load(&files->judged_us);
    struct hapax_record record;

    (void)level;
    *changed = 0;
    if (!hapax__record_peek(&record, bytes))
        return 0;
    if (record.expires_us > 0 && record.expires_us <= now_us)
        return 1;
    if (now_us > 0 && record.updated_us >= 0 && record.retention_ms >= 0 && /* it may be damaged */
        hapax__tombstone(&record, now_us) && key_len == sizeof(struct hapax_id))
        *changed = bury(key, bytes, now_us, new_value, new_len);
    return 0;
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

/* A file that is not open is opened for each read, with its filter and index: at 100,000,000
 * records that took half of the rate. Others have the other half of the process's descriptors. */
static int open_files_max(void)
{
    struct rlimit limit = {.rlim_cur = 1024};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return (int)hapax__least((int64_t)(limit.rlim_cur / 2), OPEN_FILES_MAX);
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
    rocksdb_options_set_max_open_files(options, open_files_max());
    rocksdb_options_set_max_background_jobs(options, 2);
    rocksdb_options_set_allow_concurrent_memtable_write(options, 0); /* as hash tables need */
    rocksdb_options_set_bytes_per_sync(options, MIB); /* no long stall when a file is finished */
    /* Files that a merge replaced during a walk are deleted by RocksDB's threads, not by the one
     * that ends the walk. */
    rocksdb_options_set_avoid_unnecessary_blocking_io(options, 1);
    rocksdb_options_set_max_manifest_file_size(options, 64 * MIB);
    rocksdb_options_set_info_log_level(options, LOG_LEVEL);
    rocksdb_options_set_keep_log_file_num(options, 1);
    rocksdb_options_set_stats_dump_period_sec(options, 0);
    rocksdb_options_set_stats_persist_period_sec(options, 0);
}

/* What names the bucket of a key in the buffer of `records`. A shorter key, which is no
 * id, is its own prefix. */
static char *prefix_of(void *state, const char *key, size_t len, size_t *prefix_len)
{
    (void)state;
    *prefix_len = len < HAPAX__PREFIX_SIZE ? len : HAPAX__PREFIX_SIZE;
    return (char *)(uintptr_t)key;
}

static unsigned char has_prefix(void *state, const char *key, size_t len)
{
    (void)state;
    (void)key;
    (void)len;
    return 1;
}

static const char *prefix_name(void *state)
{
    (void)state;
    return "hapax.prefix";
}

/* Records are written and read by id, so their buffer is a hash table: an insert into it
 * costs less than one into RocksDB's skip list (docs/performance.md). RocksDB sorts a hash table
 * before a walk; walk.c bounds that. `open` is small, and each of its entries is deleted
 * soon. In a small buffer a deletion soon meets its entry; otherwise a LIST would step over many
 * such pairs. */
static void set_family(rocksdb_options_t *options, enum hapax__family family)
{
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    rocksdb_options_set_max_write_buffer_number(options, 4);
    rocksdb_options_set_write_buffer_size(options, family == HAPAX__RECORDS ? 64 * MIB : 8 * MIB);
    if (family == HAPAX__RECORDS) {
        rocksdb_options_set_prefix_extractor(
            options, rocksdb_slicetransform_create(NULL, keep_state, prefix_of, has_prefix,
                                                   has_prefix, prefix_name));
        rocksdb_options_set_hash_link_list_rep(options, HAPAX__PREFIXES);
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

void hapax__files_note_damage(struct hapax__files *files, const char *text)
{
    if (files->damage[0] == '\0')
        hapax__fail(files->damage, HAPAX_ERR_CORRUPT, "%s", text);
}

static enum hapax_error fail_record(struct hapax_store *store, struct hapax__files *files,
                                    const struct hapax_id *id, enum hapax_error error,
                                    const char *why)
{
    uint8_t hex[2 * sizeof(id->bytes)];
    struct hapax__writer w = {hex, sizeof(hex)};

    hapax__put_hex(&w, id->bytes, sizeof(id->bytes));
    hapax_store_fail(store, error, "cannot read record \"%.*s\": %.140s", (int)sizeof(hex),
                     (const char *)hex, why);
    if (error == HAPAX_ERR_CORRUPT)
        hapax__files_note_damage(files, hapax_store_text(store));
    return error;
}

enum hapax_error hapax__files_unread(struct hapax_store *store, struct hapax__files *files,
                                     const struct hapax_id *id, char *rocksdb_text)
{
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error = hapax__files_error(rocksdb_text, text);

    if (error != HAPAX_ERR_CORRUPT)
        error = HAPAX_ERR_UNAVAILABLE;
    if (id)
        return fail_record(store, files, id, error, text);
    if (error == HAPAX_ERR_CORRUPT)
        hapax__files_note_damage(files, text);
    return hapax_store_fail(store, error, "cannot read: %s", text);
}

enum hapax_error hapax__files_unreadable(struct hapax_store *store, struct hapax__files *files,
                                         const struct hapax_id *id, enum hapax_error error)
{
    return fail_record(store, files, id, error,
                       error == HAPAX_ERR_CORRUPT ? "it is damaged"
                                                  : "a newer version of hapax wrote it");
}

void hapax__files_put_open(struct hapax__files *files, rocksdb_writebatch_t *writes,
                           const struct hapax_id *id, enum hapax_state state, int64_t updated_us)
{
    uint8_t bytes[HAPAX__OPEN_SIZE];
    struct hapax__writer w = {bytes, sizeof(bytes)};

    hapax__put_number(&w, (uint64_t)state, 1);
    hapax__put_number(&w, (uint64_t)updated_us, 8);
    assert(w.left == 0);
    rocksdb_writebatch_put_cf(writes, files->family[HAPAX__OPEN], (const char *)id->bytes,
                              sizeof(*id), (const char *)bytes, sizeof(bytes));
}

/* RocksDB leaves an unfinished OPTIONS file at each opening. */
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
    for (int i = 0; i < HAPAX__FAMILIES; i++)
        rocksdb_options_set_disable_auto_compactions(files->options[i], files->unmerged);
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
