/* SPDX-License-Identifier: Apache-2.0
 *
 * The database that all handles of one process on one path share: which process may open it, its
 * clock, and how it comes back after a failed write.
 *
 * The process that takes the lock on hapax.lock opens the database. The lock is taken before
 * RocksDB is opened, and goes with the process, however the process ends. Users are counted. The
 * keeper's handle is not counted, so the keeper ends with the last user.
 *
 * Batches are written to the log unsynced, and one after the other. What is answered waits until
 * the log is synced up to the write on which the answer rests (log.h): its own, or the last one
 * that changed what it shows. `changed` remembers that write for a hash of each id.
 *
 * After a failed write nobody knows what the log contains; after a failed sync the kernel may have
 * dropped what it could not write. RocksDB refuses to go on, and so does the store. Reads are still
 * answered from what was synced before. The next batch opens the database again, once a file can
 * be written beside it. Opening writes the records of the log to new, synced files, whatever was in
 * the page cache. If the disk fails just then, nothing can be read until the disk works again.
 * Rejected: asking RocksDB to resume, which its C interface does not offer, and which would trust
 * the old log. Rejected: opening the database read-only meanwhile, which would show what stands in
 * the log and is not durable.
 *
 * A damaged block ends the merging of files, and RocksDB refuses writes then. The database is
 * opened again without merging: writes go on, and check tells what is wrong. Otherwise each try to
 * merge would fail more writes.
 *
 * A log whose end is missing looks like a log that a crash has torn. So the number of the last
 * acknowledged write stands in a file of its own, the mark. It is written after each sync, and not
 * synced itself: a power cut may leave the mark behind a synced log, never ahead of it. A database
 * that ends before its mark has lost acknowledged writes.
 */
#include "db.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/socket.h"
#include "log.h"
#include "opened.h"
#include "rocksdb.h"
#include "scrub.h"
#include "store/keeper/keeper.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PAUSE_MIN_US INT64_C(50000)
#define PAUSE_MAX_US INT64_C(2000000)
#define ROOM_MIN     (UINT64_C(8) << 20) /* to open a database beside what its log holds */
#define CHANGED      4096u /* a power of two */
#define SOCKET_MAX   (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

static const char lock_name[] = "/hapax.lock";
static const char socket_name[] = "/keeper.sock";
static const char folder_name[] = "/db";
static const char probe_name[] = "/hapax.probe";
static const char mark_name[] = "/db/hapax.mark";

struct hapax__database {
    /* databases_lock guards next and users. */
    struct hapax__database *next;
    unsigned users;
    char path[PATH_MAX];
    dev_t device;
    ino_t inode;
    int lock_fd;
    int mark_fd;
    bool sync;
    bool inherited;
    struct hapax__keeper_server *keeper;
    struct hapax__log log;

    pthread_mutex_t mutex; /* guards what follows */
    struct hapax__files files;
    struct hapax__opened *opened;
    struct hapax__scrub scrub;
    uint64_t changed[CHANGED]; /* the last write that changed an id with this hash */
    bool whole; /* it was opened */
    bool recovering; /* what is written is nobody's op */
    /* Writes before the mark that are lost; 0 with sync, and once an op was written. */
    uint64_t missing;
    rocksdb_writeoptions_t *write_options;
    struct hapax__clock clock;
    /* A write failed; no write is tried until the files have been opened again. */
    bool broken;
    int64_t retry_boot_us;
    int64_t pause_us;
    char why[HAPAX_TEXT_MAX];
};

static pthread_mutex_t databases_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hapax__database *databases;

static void path_in(char out[PATH_MAX], const char *folder, const char *name)
{
    int len = snprintf(out, PATH_MAX, "%s%s", folder, name);

    assert(len > 0 && len < PATH_MAX); /* join() has checked the length */
    (void)len;
}

const char *hapax__database_path(const struct hapax__database *database)
{
    return database->path;
}

bool hapax__database_synced(const struct hapax__database *database)
{
    return database->sync;
}

/* ---- meta ---------------------------------------------------------------------------- */

/* Reads a value of `meta` that must have this size. *found false: there is none. */
static enum hapax_error read_meta(struct hapax__files *files, const char *key, uint8_t *out,
                                  size_t size, bool *found, char text[HAPAX_TEXT_MAX])
{
    rocksdb_readoptions_t *options = rocksdb_readoptions_create();
    char *failure = NULL;
    size_t len = 0;
    char *value = rocksdb_get_cf(files->db, options, files->family[HAPAX__META], key, strlen(key),
                                 &len, &failure);
    enum hapax_error error = HAPAX_ERR_NONE;

    rocksdb_readoptions_destroy(options);
    *found = value != NULL;
    if (failure)
        return hapax__files_error(failure, text);
    if (value && len != size)
        error = hapax__fail(text, HAPAX_ERR_CORRUPT, "its \"%s\" has %zu bytes, not %zu", key, len,
                            size);
    else if (value)
        memcpy(out, value, size);
    rocksdb_free(value);
    return error;
}

static bool has_records(struct hapax__files *files)
{
    rocksdb_readoptions_t *options = rocksdb_readoptions_create();
    rocksdb_iterator_t *it;
    bool has;

    rocksdb_readoptions_set_total_order_seek(options, 1);
    it = rocksdb_create_iterator_cf(files->db, options, files->family[HAPAX__RECORDS]);
    rocksdb_iter_seek_to_first(it);
    has = rocksdb_iter_valid(it);
    rocksdb_iter_destroy(it);
    rocksdb_readoptions_destroy(options);
    return has;
}

/* Writes and syncs. On failure nothing was written that counts. */
static enum hapax_error write_now(struct hapax__database *database, rocksdb_writebatch_t *batch,
                                  char text[HAPAX_TEXT_MAX])
{
    uint64_t number;
    enum hapax_error error = hapax__database_write(database, batch, &number);

    if (error != HAPAX_ERR_NONE)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "%s", database->why);
    return hapax__database_sync(database, number, text) == HAPAX_ERR_NONE ? HAPAX_ERR_NONE
                                                                          : HAPAX_ERR_UNAVAILABLE;
}

static enum hapax_error check_format(struct hapax__database *database, char text[HAPAX_TEXT_MAX])
{
    uint8_t bytes[4];
    struct hapax__reader r = {bytes, sizeof(bytes), false};
    struct hapax__writer w = {bytes, sizeof(bytes)};
    rocksdb_writebatch_t *batch;
    uint32_t format;
    bool found;
    enum hapax_error error =
        read_meta(&database->files, "format", bytes, sizeof(bytes), &found, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (found) {
        format = hapax__take_u32(&r);
        if (format == HAPAX__ROCKSDB_FORMAT)
            return HAPAX_ERR_NONE;
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                           "it is of format %u and this version of hapax knows format %u alone",
                           format, HAPAX__ROCKSDB_FORMAT);
    }
    if (has_records(&database->files))
        return hapax__fail(text, HAPAX_ERR_CORRUPT, "its database has records but no format");
    hapax__put_number(&w, HAPAX__ROCKSDB_FORMAT, sizeof(bytes));
    batch = rocksdb_writebatch_create();
    rocksdb_writebatch_put_cf(batch, database->files.family[HAPAX__META], "format", 6,
                              (const char *)bytes, sizeof(bytes));
    error = write_now(database, batch, text);
    rocksdb_writebatch_destroy(batch);
    return error;
}

/* ---- clock --------------------------------------------------------------------------- */

static int64_t now_of(const struct hapax__database *database)
{
    return hapax__clock_at(&database->clock, hapax__boot_us());
}

static void put_clock(struct hapax__database *database, rocksdb_writebatch_t *batch)
{
    uint8_t bytes[HAPAX__CLOCK_SIZE];
    struct hapax__writer w = {bytes, sizeof(bytes)};
    int64_t boot_us = hapax__boot_us();

    hapax__put_number(&w, (uint64_t)hapax__clock_at(&database->clock, boot_us), 8);
    hapax__put_number(&w, (uint64_t)boot_us, 8);
    hapax__put(&w, database->clock.boot_id, sizeof(database->clock.boot_id));
    assert(w.left == 0);
    rocksdb_writebatch_put_cf(batch, database->files.family[HAPAX__META], "clock", 5,
                              (const char *)bytes, sizeof(bytes));
}

static enum hapax_error start_clock(struct hapax__database *database, char text[HAPAX_TEXT_MAX])
{
    struct hapax__clock_mark now = hapax__clock_machine();
    struct hapax__clock_mark last = {0};
    uint8_t bytes[HAPAX__CLOCK_SIZE];
    struct hapax__reader r = {bytes, sizeof(bytes), false};
    bool found;
    enum hapax_error error =
        read_meta(&database->files, "clock", bytes, sizeof(bytes), &found, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (found) {
        last.clock_us = (int64_t)hapax__take_u64(&r);
        last.boot_us = (int64_t)hapax__take_u64(&r);
        hapax__take_into(&r, last.boot_id, sizeof(last.boot_id));
        if (last.clock_us <= 0 || last.boot_us < 0)
            return hapax__fail(text, HAPAX_ERR_CORRUPT, "its \"clock\" is damaged");
    }
    hapax__clock_start(&database->clock, found ? &last : NULL, &now, now.clock_us);
    return HAPAX_ERR_NONE;
}

/* ---- writing, and coming back -------------------------------------------------------- */

/* The bytes that opening will write: the log, which is in no other file yet. */
static uint64_t bytes_of_log(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    uint64_t bytes = 0;

    if (!dir)
        return 0;
    while ((entry = readdir(dir)) != NULL) {
        size_t len = strlen(entry->d_name);
        struct stat st;

        if (len > 4 && strcmp(entry->d_name + len - 4, ".log") == 0 &&
            fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 && st.st_size > 0)
            bytes += (uint64_t)st.st_size;
    }
    closedir(dir);
    return bytes;
}

static bool probe(const char *path)
{
    uint8_t page[4096] = {0};
    char name[PATH_MAX];
    bool works;
    int fd;

    path_in(name, path, probe_name);
    fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    works = write(fd, page, sizeof(page)) == (ssize_t)sizeof(page) && fdatasync(fd) == 0;
    close(fd);
    unlink(name);
    return works;
}

static bool has_room(const char *path)
{
    char folder[PATH_MAX];
    struct statvfs st;

    path_in(folder, path, folder_name);
    if (statvfs(folder, &st) == 0 &&
        (uint64_t)st.f_bavail * st.f_frsize < ROOM_MIN + bytes_of_log(folder))
        return false;
    return probe(path);
}

static void retry_later(struct hapax__database *database)
{
    database->pause_us = database->pause_us == 0 ? PAUSE_MIN_US : database->pause_us * 2;
    if (database->pause_us > PAUSE_MAX_US)
        database->pause_us = PAUSE_MAX_US;
    database->retry_boot_us = hapax__boot_us() + database->pause_us;
}

/* The mark holds the number of the last write, whether writes were synced, and the number again
 * with all bits turned: a mark that is damaged itself must not keep a whole database from being
 * opened. */
#define MARK_SIZE 17u

/* A failure costs no write: the mark then stays behind. */
static void put_mark(const struct hapax__database *database, uint64_t last)
{
    uint8_t bytes[MARK_SIZE];
    struct hapax__writer w = {bytes, sizeof(bytes)};

    hapax__put_number(&w, last, 8);
    hapax__put_number(&w, database->sync, 1);
    hapax__put_number(&w, ~last, 8);
    (void)!pwrite(database->mark_fd, bytes, sizeof(bytes), 0);
}

static enum hapax_error check_mark(struct hapax__database *database, char text[HAPAX_TEXT_MAX])
{
    uint8_t bytes[MARK_SIZE];
    struct hapax__reader r = {bytes, sizeof(bytes), false};
    ssize_t len = pread(database->mark_fd, bytes, sizeof(bytes), 0);
    uint64_t last = rocksdb_get_latest_sequence_number(database->files.db);
    uint64_t marked;
    bool synced;

    if (len < 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "cannot read \"%s\" in it: %s",
                           mark_name + 1, strerror(errno));
    if (len < (ssize_t)sizeof(bytes))
        return HAPAX_ERR_NONE;
    marked = hapax__take_u64(&r);
    synced = hapax__take_u8(&r);
    if (last >= marked || hapax__take_u64(&r) != ~marked)
        return HAPAX_ERR_NONE;
    if (synced)
        return hapax__fail(text, HAPAX_ERR_CORRUPT,
                           "its log is cut: it ends at write %llu, and %llu was acknowledged "
                           "(restore a backup, or remove \"%s\" to accept the loss)",
                           (unsigned long long)last, (unsigned long long)marked, mark_name + 1);
    /* A mark of this process that counted them would say that they were synced. */
    database->missing = database->sync ? 0 : marked - last;
    hapax__fail(text, HAPAX_ERR_CORRUPT, "the last %llu writes before it was opened are lost",
                (unsigned long long)(marked - last));
    hapax__files_note_damage(&database->files, text);
    return HAPAX_ERR_NONE;
}

/* Writes the entries of `open` that a crash left in notes. Without sync, a loss that the mark tells
 * of is told of afterwards, too. */
static enum hapax_error recover(struct hapax__database *database, char text[HAPAX_TEXT_MAX])
{
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    enum hapax_error error = hapax__opened_recover(database->opened, &database->files, batch, text);

    database->recovering = true;
    if (error == HAPAX_ERR_NONE && rocksdb_writebatch_count(batch) > 0)
        error = write_now(database, batch, text);
    database->recovering = false;
    rocksdb_writebatch_destroy(batch);
    return error;
}

/* Opens the files, if they hold all that was acknowledged. On failure they are closed. */
static enum hapax_error open_marked(struct hapax__database *database, char text[HAPAX_TEXT_MAX])
{
    char folder[PATH_MAX];
    enum hapax_error error;

    path_in(folder, database->path, folder_name);
    error = hapax__files_open(&database->files, folder, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    error = check_mark(database, text);
    if (error != HAPAX_ERR_NONE)
        hapax__files_close(&database->files);
    return error;
}

/* Opens a broken database again. The old files stay open for reads until there is room for new
 * ones. */
static void heal(struct hapax__database *database)
{
    char text[HAPAX_TEXT_MAX];

    if (hapax__boot_us() < database->retry_boot_us)
        return;
    if (database->files.db && !has_room(database->path)) {
        retry_later(database);
        return;
    }
    hapax__log_fail(&database->log, database->why);
    hapax__scrub_stop(&database->scrub);
    hapax__files_close(&database->files);
    if (open_marked(database, database->why) != HAPAX_ERR_NONE) {
        retry_later(database);
        return;
    }
    hapax__log_begin_again(&database->log);
    database->broken = false;
    if (recover(database, text) != HAPAX_ERR_NONE) {
        memcpy(database->why, text, sizeof(database->why));
        database->broken = true;
        hapax__log_fail(&database->log, database->why);
        hapax__files_close(&database->files);
        retry_later(database);
        return;
    }
    database->pause_us = 0;
    database->retry_boot_us = 0;
    database->why[0] = '\0';
}

struct hapax__files *hapax__database_enter(struct hapax__database *database, int64_t *now_us)
{
    pthread_mutex_lock(&database->mutex);
    if (!database->broken)
        database->broken = hapax__log_failed(&database->log, database->why);
    if (database->broken)
        heal(database);
    assert(database->files.db || database->broken);
    *now_us = now_of(database);
    assert(*now_us >= atomic_load(&database->files.judged_us));
    atomic_store(&database->files.judged_us, *now_us);
    return &database->files;
}

void hapax__database_exit(struct hapax__database *database)
{
    pthread_mutex_unlock(&database->mutex);
}

bool hapax__database_writable(const struct hapax__database *database)
{
    return !database->broken;
}

const char *hapax__database_why(const struct hapax__database *database)
{
    return database->why;
}

struct hapax__opened *hapax__database_opened(struct hapax__database *database)
{
    return database->opened;
}

enum hapax_error hapax__database_write(struct hapax__database *database,
                                       rocksdb_writebatch_t *batch, uint64_t *number)
{
    uint64_t last;
    char *failure = NULL;

    assert(database->files.db && !database->broken);
    hapax__opened_note(database->opened, &database->files, batch);
    put_clock(database, batch);
    hapax__log_write(&database->log);
    rocksdb_write(database->files.db, database->write_options, batch, &failure);
    hapax__opened_end(database->opened, !failure);
    if (failure) {
        if (hapax__files_error(failure, database->why) == HAPAX_ERR_CORRUPT) {
            hapax__files_note_damage(&database->files, database->why);
            database->files.unmerged = true;
        }
        database->broken = true;
        hapax__log_fail(&database->log, database->why);
        return HAPAX_ERR_INDETERMINATE;
    }
    if (!database->recovering)
        database->missing = 0;
    last = rocksdb_get_latest_sequence_number(database->files.db) + database->missing;
    if (!database->sync)
        put_mark(database, last);
    *number = hapax__log_wrote(&database->log, last, !database->sync);
    return HAPAX_ERR_NONE;
}

/* ---- what answers rest on ------------------------------------------------------------ */

static uint64_t *changed_of(struct hapax__database *database, const struct hapax_id *id)
{
    uint32_t hash;

    memcpy(&hash, id->bytes, sizeof(hash));
    return &database->changed[hash & (CHANGED - 1)];
}

void hapax__database_changed(struct hapax__database *database, const struct hapax_id *id,
                             uint64_t number)
{
    if (id)
        *changed_of(database, id) = number;
    for (size_t i = 0; !id && i < CHANGED; i++)
        database->changed[i] = number;
}

bool hapax__database_rests(struct hapax__database *database, const struct hapax_id *id,
                           uint64_t *number)
{
    *number = hapax__log_unsynced(&database->log,
                                  id ? *changed_of(database, id) : hapax__log_last(&database->log));
    return *number == 0 || !database->broken;
}

/* Called by hapax__log_wait(). The files stay open meanwhile: heal() ends the log first. */
static bool sync_log(void *arg, uint64_t last, char why[HAPAX_TEXT_MAX])
{
    struct hapax__database *database = arg;
    char *failure = NULL;

    rocksdb_flush_wal(database->files.db, 1, &failure);
    if (!failure)
        put_mark(database, last);
    else
        hapax__files_error(failure, why);
    return !failure;
}

enum hapax_error hapax__database_sync(struct hapax__database *database, uint64_t number,
                                      char text[HAPAX_TEXT_MAX])
{
    return hapax__log_wait(&database->log, number, text);
}

/* ---- a scrub ------------------------------------------------------------------------- */

static enum hapax_error begin_scrub(struct hapax_store *store, struct hapax__database *database)
{
    char folder[PATH_MAX];

    path_in(folder, database->path, folder_name);
    if (database->broken)
        return hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "cannot write: %s", database->why);
    /* To merge damaged files ends all writing. */
    if (database->files.damage[0])
        return hapax_store_fail(store, HAPAX_ERR_CORRUPT,
                                "its files are damaged, and are not written anew: %.160s",
                                database->files.damage);
    if (!hapax__scrub_begin(&database->scrub, &database->files, folder))
        return hapax_store_fail(store, HAPAX_ERR_NOMEM, "no thread to write its files anew");
    return HAPAX_ERR_NONE;
}

/* The cursor names a scrub, from whose begin on a later one is as good. One of a higher number was
 * of a process that had the database open before this one. */
enum hapax_error hapax__database_scrub(struct hapax_store *store, struct hapax__database *database,
                                       struct hapax_op *op, int64_t now_us)
{
    struct hapax__scrub *scrub = &database->scrub;
    struct hapax__reader r = {op->cursor.bytes, 8, false};
    struct hapax__writer w = {op->next_cursor.bytes, 8};
    bool over = hapax__scrub_over(scrub);
    uint64_t number = hapax__take_u64(&r);

    op->error = HAPAX_ERR_NONE;
    if (number > scrub->number)
        number = 0;
    if (number == 0 && over) {
        op->error = begin_scrub(store, database);
        number = scrub->number;
    } else if (number > scrub->done && over) {
        op->error = hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "cannot scrub: %s", scrub->why);
    }
    if (op->error != HAPAX_ERR_NONE)
        return op->error;
    op->verdict = HAPAX_OK;
    op->now_us = now_us;
    op->more = number == 0 || number > scrub->done;
    hapax__put_number(&w, number, 8);
    return HAPAX_ERR_NONE;
}

/* ---- the lock ------------------------------------------------------------------------ */

static pid_t read_pid(int fd)
{
    char text[16];
    ssize_t len = pread(fd, text, sizeof(text) - 1, 0);
    long pid;

    if (len <= 0)
        return 0;
    text[len] = '\0';
    pid = strtol(text, NULL, 10);
    return pid > 0 && pid <= INT_MAX ? (pid_t)pid : 0;
}

/* The lock of the store at this path, to be read; -1: there is none. */
static int open_lock(const char *path)
{
    char name[PATH_MAX];

    if (strlen(path) + sizeof(lock_name) > sizeof(name))
        return -1;
    path_in(name, path, lock_name);
    return open(name, O_RDONLY | O_CLOEXEC);
}

pid_t hapax__rocksdb_holder(const char *path)
{
    int fd = open_lock(path);
    pid_t pid = 0;

    if (fd < 0)
        return 0;
    if (flock(fd, LOCK_SH | LOCK_NB) != 0)
        pid = read_pid(fd);
    close(fd);
    return pid;
}

bool hapax__database_settings(const char *path, char out[HAPAX__SETTINGS_MAX])
{
    char text[HAPAX__SETTINGS_MAX];
    char *line, *end;
    int fd = open_lock(path);
    ssize_t len;

    if (fd < 0)
        return false;
    len = pread(fd, text, sizeof(text) - 1, 0);
    close(fd);
    text[len > 0 ? len : 0] = '\0';
    line = strchr(text, '\n');
    end = line ? strchr(line + 1, '\n') : NULL;
    if (!end)
        return false;
    *end = '\0';
    memcpy(out, line + 1, (size_t)(end - line));
    return true;
}

/* Elsewhere the lock may keep out the processes of this machine only, or nobody, and a sync may not
 * reach the disk. */
static enum hapax_error check_files(const char *path, char text[HAPAX_TEXT_MAX])
{
    static const struct {
        uint32_t magic; /* statfs(2); it names no constants for SMB's */
        const char *name;
    } foreign[] = {{0x6969, "NFS"}, {0xff534d42, "CIFS"}, {0xfe534d42, "SMB"},
                   {0x517b, "SMB"}, {0x65735546, "FUSE"}, {0x01021997, "9P"}};
    struct statfs files;

    if (statfs(path, &files) != 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "%s", strerror(errno));
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++) {
        if ((uint32_t)files.f_type == foreign[i].magic)
            return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                               "it is on %s, where two machines may open it at once: use a local "
                               "disk, or any_files=on if this machine alone has the folder",
                               foreign[i].name);
    }
    return HAPAX_ERR_NONE;
}

static enum hapax_error take_lock(struct hapax__database *database,
                                  const struct hapax__database_options *options, pid_t *holder,
                                  char text[HAPAX_TEXT_MAX])
{
    char name[PATH_MAX];
    int fd;

    path_in(name, database->path, lock_name);
    fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EACCES && access(name, F_OK) == 0) {
        *holder = 0; /* another user's store: its keeper may still let us in */
        return hapax__fail(text, HAPAX_ERR_REFUSED, "no permission for \"hapax.lock\" in it");
    }
    if (fd < 0)
        return hapax__fail(
            text, errno == EACCES || errno == EROFS ? HAPAX_ERR_REFUSED : HAPAX_ERR_UNAVAILABLE,
            "cannot write in it: %s", strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        *holder = read_pid(fd);
        close(fd);
        return hapax__fail(text, HAPAX_ERR_REFUSED, "held by process %d", (int)*holder);
    }
    database->lock_fd = fd;
    if (ftruncate(fd, 0) != 0 ||
        dprintf(fd, "%d\nsync=%s&mode=%04o%s%s\n", (int)getpid(), options->sync ? "on" : "off",
                hapax__socket_mode(options->mode, options->group), options->group ? "&group=" : "",
                options->group ? options->group : "") < 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "cannot write \"hapax.lock\": %s",
                           strerror(errno));
    return HAPAX_ERR_NONE;
}

/* ---- opening and closing ------------------------------------------------------------- */

/* Those who may use the socket must be able to reach it, and no more: db/ stays its owner's. */
static enum hapax_error let_in(const struct hapax__database_options *options,
                               char text[HAPAX_TEXT_MAX])
{
    unsigned asked = hapax__socket_mode(options->mode, options->group);
    mode_t mode = 0700;
    gid_t gid;

    if (options->group && !hapax__socket_group(options->group, &gid))
        return hapax__fail(text, HAPAX_ERR_INVALID, "there is no group \"%.64s\"", options->group);
    if (options->group && chown(options->path, (uid_t)-1, gid) != 0)
        return hapax__fail(text, HAPAX_ERR_REFUSED, "cannot give it to group \"%.64s\": %s",
                           options->group, strerror(errno));
    mode |= asked & 0070 ? 0010 : 0;
    mode |= asked & 0007 ? 0001 : 0;
    if (mode != 0700 && chmod(options->path, mode) != 0)
        return hapax__fail(text, HAPAX_ERR_REFUSED, "cannot change its mode: %s", strerror(errno));
    return HAPAX_ERR_NONE;
}

/* Where root looks at another user's store, the mark becomes that user's: RocksDB makes new files
 * at each opening, and the mark is kept. */
static enum hapax_error open_mark(struct hapax__database *database, char text[HAPAX_TEXT_MAX])
{
    char name[PATH_MAX];
    struct stat st;

    path_in(name, database->path, mark_name);
    database->mark_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (database->mark_fd < 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "cannot open \"%s\" in it: %s",
                           mark_name + 1, strerror(errno));
    path_in(name, database->path, folder_name);
    if (stat(name, &st) == 0)
        (void)!fchown(database->mark_fd, st.st_uid, (gid_t)-1);
    return HAPAX_ERR_NONE;
}

static enum hapax_error open_files(struct hapax__database *database, char text[HAPAX_TEXT_MAX])
{
    char name[PATH_MAX];
    enum hapax_error error;

    path_in(name, database->path, folder_name);
    if (mkdir(name, 0700) != 0 && errno != EEXIST)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "cannot make \"db\" in it: %s",
                           strerror(errno));
    error = open_mark(database, text);
    if (error == HAPAX_ERR_NONE)
        error = open_marked(database, text);
    if (error == HAPAX_ERR_NONE)
        error = check_format(database, text);
    if (error == HAPAX_ERR_NONE)
        error = start_clock(database, text);
    if (error == HAPAX_ERR_NONE)
        error = recover(database, text);
    database->whole = error == HAPAX_ERR_NONE;
    return error;
}

static enum hapax_error serve(struct hapax__database *database,
                              const struct hapax__database_options *options,
                              char text[HAPAX_TEXT_MAX])
{
    char name[PATH_MAX];
    char why[HAPAX_TEXT_MAX];
    struct hapax__keeper_options keeper = {
        .path = name, .mode = options->mode, .group = options->group};
    struct hapax_store *store;
    enum hapax_error error;

    if (!options->make_handle)
        return HAPAX_ERR_NONE;
    store = options->make_handle(database);
    if (!store)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    path_in(name, database->path, socket_name);
    error = hapax__keeper_serve(&database->keeper, store, &keeper, why);
    if (error == HAPAX_ERR_NONE)
        return error;
    database->keeper = NULL;
    hapax_store_close(store);
    return hapax__fail(text, error, "its keeper does not start: %.180s", why);
}

/* Undoes as much of an opening as was done. */
static void database_free(struct hapax__database *database)
{
    char text[HAPAX_TEXT_MAX];
    char *failure = NULL;

    hapax__keeper_stop(database->keeper);
    hapax__scrub_stop(&database->scrub);
    if (database->whole && !database->broken && !hapax__log_failed(&database->log, text))
        recover(database, text); /* so that the next opening finds no notes */
    /* Not after a write that failed: RocksDB before 9.10, built with its asserts as Debian 12's is,
     * ends the process there. */
    if (database->files.db && !database->sync && !database->broken) {
        rocksdb_flush_wal(database->files.db, 1, &failure);
        rocksdb_free(failure);
    }
    hapax__files_close(&database->files);
    hapax__files_release(&database->files);
    hapax__opened_free(database->opened);
    rocksdb_writeoptions_destroy(database->write_options);
    if (database->mark_fd >= 0)
        close(database->mark_fd);
    if (database->lock_fd >= 0) {
        (void)!ftruncate(database->lock_fd, 0);
        flock(database->lock_fd, LOCK_UN); /* a forked child may hold the file open */
        close(database->lock_fd);
    }
    pthread_mutex_destroy(&database->mutex);
    hapax__log_release(&database->log);
    free(database);
}

static enum hapax_error database_new(struct hapax__database **out,
                                     const struct hapax__database_options *options,
                                     const struct stat *st, pid_t *holder,
                                     char text[HAPAX_TEXT_MAX])
{
    struct hapax__database *database = calloc(1, sizeof(*database));
    enum hapax_error error;

    if (!database)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    if (!hapax__log_init(&database->log, sync_log, database)) {
        free(database);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    }
    if (pthread_mutex_init(&database->mutex, NULL) != 0) {
        hapax__log_release(&database->log);
        free(database);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    }
    path_in(database->path, options->path, "");
    database->device = st->st_dev;
    database->inode = st->st_ino;
    database->lock_fd = -1;
    database->mark_fd = -1;
    database->sync = options->sync;
    database->inherited = options->inherited;
    database->write_options = rocksdb_writeoptions_create();
    hapax__files_init(&database->files);
    database->opened = hapax__opened_new();
    error = database->opened ? HAPAX_ERR_NONE : hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    if (error == HAPAX_ERR_NONE && !options->any_files)
        error = check_files(options->path, text);
    if (error == HAPAX_ERR_NONE)
        error = take_lock(database, options, holder, text);
    if (error == HAPAX_ERR_NONE)
        error = let_in(options, text);
    if (error == HAPAX_ERR_NONE)
        error = open_files(database, text);
    if (error == HAPAX_ERR_NONE)
        error = serve(database, options, text);
    if (error == HAPAX_ERR_NONE)
        *out = database;
    else
        database_free(database);
    return error;
}

/* Runs under databases_lock: of two threads that open a path, one opens it and the other joins. */
static enum hapax_error join(struct hapax__database **out,
                             const struct hapax__database_options *options, pid_t *holder,
                             char text[HAPAX_TEXT_MAX])
{
    struct hapax__database *database = databases;
    struct stat st;
    enum hapax_error error;

    if (stat(options->path, &st) != 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "%s", strerror(errno));
    while (database && (database->device != st.st_dev || database->inode != st.st_ino))
        database = database->next;
    if (!database) {
        error = database_new(&database, options, &st, holder, text);
        if (error != HAPAX_ERR_NONE)
            return error;
        assert(database);
        database->next = databases;
        databases = database;
    } else if (database->sync != options->sync && !database->inherited && !options->inherited) {
        return hapax__fail(text, HAPAX_ERR_REFUSED, "this process has it open with sync=%s",
                           database->sync ? "on" : "off");
    }
    database->users++;
    *out = database;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__database_join(struct hapax__database **out,
                                      const struct hapax__database_options *options, pid_t *holder,
                                      char text[HAPAX_TEXT_MAX])
{
    size_t len = strlen(options->path) + strlen(socket_name);
    enum hapax_error error;

    *out = NULL;
    *holder = -1;
    if (len > SOCKET_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "the path of its keeper's socket has %zu bytes, over the limit of %zu "
                           "for a Unix socket: use a shorter path",
                           len, SOCKET_MAX);
    pthread_mutex_lock(&databases_lock);
    error = join(out, options, holder, text);
    pthread_mutex_unlock(&databases_lock);
    assert((error == HAPAX_ERR_NONE) == (*out != NULL));
    return error;
}

void hapax__database_leave(struct hapax__database *database)
{
    struct hapax__database **at = &databases;

    pthread_mutex_lock(&databases_lock);
    assert(database->users > 0);
    if (--database->users == 0) {
        while (*at != database)
            at = &(*at)->next;
        *at = database->next;
        database_free(database);
    }
    pthread_mutex_unlock(&databases_lock);
}
