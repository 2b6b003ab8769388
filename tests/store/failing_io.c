/* SPDX-License-Identifier: Apache-2.0
 *
 * See failing_io.h. Every call is counted, and failed, at the boundary where a disk would fail it:
 * behind every buffer of the program. Counting the calls and then failing each in turn is
 * what reaches the paths nobody thought of.
 */
#include "failing_io.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[4096];
static size_t folder_len; /* 0: not armed */
static long fail_at;
static long calls;
static bool fail_ever;
static int fail_error;

#define PATH_SIZE 4096
#define FILES_MAX 512

struct file {
    char path[PATH_SIZE];
    off64_t synced; /* bytes */
};

static char slow[1024];
static size_t slow_len; /* 0: no sync is slow */
static long slow_ms;
static char watched[PATH_SIZE];
static size_t watched_len; /* 0: nothing is watched */
static struct file files[FILES_MAX];
static size_t files_count;
static void (*before_sync)(void *arg);
static void *before_sync_arg;

void failing_io_arm(const char *path, long nth, bool ever, int error)
{
    pthread_mutex_lock(&lock);
    snprintf(folder, sizeof(folder), "%s", path);
    folder_len = strlen(folder);
    fail_at = nth;
    fail_ever = ever;
    fail_error = error;
    calls = 0;
    pthread_mutex_unlock(&lock);
}

long failing_io_disarm(void)
{
    long count;

    pthread_mutex_lock(&lock);
    folder_len = 0;
    count = calls;
    pthread_mutex_unlock(&lock);
    return count;
}

__attribute__((constructor)) static void arm_from_environment(void)
{
    const char *text = getenv("FAILING_IO"), *slowly = getenv("SLOW_IO");
    char path[1024], how[8], error[8];
    long nth;

    if (slowly && sscanf(slowly, "%1023[^:]:%ld", slow, &slow_ms) == 2)
        slow_len = strlen(slow);
    if (text && sscanf(text, "%1023[^:]:%ld:%7[^:]:%7s", path, &nth, how, error) == 4)
        failing_io_arm(path, nth, strcmp(how, "ever") == 0,
                       strcmp(error, "ENOSPC") == 0 ? ENOSPC : EIO);
}

/* 0, or the errno with which this call is to fail. */
static int fault_at(const char *path)
{
    int error = 0;

    pthread_mutex_lock(&lock);
    if (folder_len > 0 && strncmp(path, folder, folder_len) == 0) {
        calls++;
        if (calls == fail_at || (fail_ever && calls > fail_at))
            error = fail_error;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static bool armed(void)
{
    bool is;

    pthread_mutex_lock(&lock);
    is = folder_len > 0 || watched_len > 0 || slow_len > 0;
    pthread_mutex_unlock(&lock);
    return is;
}

static bool path_of(int fd, char path[PATH_SIZE])
{
    char name[64];
    ssize_t len;
    int saved = errno;

    if (!armed())
        return false;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    len = readlink(name, path, PATH_SIZE - 1);
    errno = saved;
    path[len < 0 ? 0 : len] = '\0';
    return len > 0;
}

static int fault_of(int fd)
{
    char path[PATH_SIZE];

    return path_of(fd, path) ? fault_at(path) : 0;
}

/* ---- what is synced ------------------------------------------------------------------ */

void failing_io_watch(const char *path, void (*call)(void *arg), void *arg)
{
    pthread_mutex_lock(&lock);
    snprintf(watched, sizeof(watched), "%s", path ? path : "");
    watched_len = strlen(watched);
    files_count = 0;
    before_sync = call;
    before_sync_arg = arg;
    pthread_mutex_unlock(&lock);
}

/* Under the lock. NULL: it is not known. */
static struct file *file_of(const char *path)
{
    for (size_t i = 0; i < files_count; i++)
        if (strcmp(files[i].path, path) == 0)
            return &files[i];
    return NULL;
}

static void note_synced(const char *path, off64_t size)
{
    struct file *file;

    pthread_mutex_lock(&lock);
    file = file_of(path);
    if (!file && watched_len > 0 && strncmp(path, watched, watched_len) == 0) {
        if (files_count == FILES_MAX)
            abort();
        file = &files[files_count++];
        snprintf(file->path, sizeof(file->path), "%s", path);
        file->synced = 0;
    }
    if (file && size > file->synced)
        file->synced = size;
    pthread_mutex_unlock(&lock);
}

static void copy(const char *from, const char *to, off64_t max)
{
    static char bytes[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    size_t len;

    if (!in || !out)
        abort();
    while (max > 0 && (len = fread(bytes, 1, sizeof(bytes), in)) > 0) {
        if ((off64_t)len > max)
            len = (size_t)max;
        if (fwrite(bytes, 1, len, out) != len)
            abort();
        max -= (off64_t)len;
    }
    fclose(in);
    if (fclose(out) != 0)
        abort();
}

void failing_io_image(const char *from, const char *to)
{
    struct dirent *entry;
    DIR *dir;

    pthread_mutex_lock(&lock);
    dir = opendir(from);
    while (dir && (entry = readdir(dir)) != NULL) {
        char source[PATH_SIZE], target[PATH_SIZE];
        const struct file *file;

        if (entry->d_type != DT_REG)
            continue;
        snprintf(source, sizeof(source), "%s/%s", from, entry->d_name);
        snprintf(target, sizeof(target), "%s/%s", to, entry->d_name);
        file = file_of(source);
        if (strcmp(entry->d_name, "hapax.mark") == 0)
            copy(source, target, INT64_MAX);
        else
            copy(source, target, file ? file->synced : 0);
    }
    if (dir)
        closedir(dir);
    pthread_mutex_unlock(&lock);
}

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

    if (!found)
        abort();
    return found;
}

static int fail(int error)
{
    errno = error;
    return -1;
}

/* ---- what stands before libc --------------------------------------------------------- */

#define FAILING __attribute__((visibility("default")))

FAILING ssize_t write(int fd, const void *bytes, size_t len)
{
    static ssize_t (*real)(int, const void *, size_t);
    int error = fault_of(fd);

    if (!real)
        real = (ssize_t(*)(int, const void *, size_t))next("write");
    if (error == ENOSPC && len > 1)
        (void)!real(fd, bytes, len / 2);
    return error ? fail(error) : real(fd, bytes, len);
}

/* The body of a call that fails with the fault, or does what the next library's call does. */
#define FAIL_OR_CALL(name, fault, ...)                                                             \
    do {                                                                                           \
        static __typeof__(name) *real;                                                             \
        int error = (fault);                                                                       \
                                                                                                   \
        if (!real)                                                                                 \
            real = (__typeof__(name) *)next(#name);                                                \
        return error ? fail(error) : real(__VA_ARGS__);                                            \
    } while (0)

FAILING ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at)
{
    FAIL_OR_CALL(pwrite64, fault_of(fd), fd, bytes, len, at);
}

FAILING ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at)
{
    return pwrite64(fd, bytes, len, at);
}

/* What is written while it syncs may be synced, or not. */
static int sync_with(const char *symbol, int fd)
{
    int (*real)(int) = (int (*)(int))next(symbol);
    char path[PATH_SIZE];
    struct stat st;
    int error, result;

    if (!path_of(fd, path))
        return real(fd);
    if (before_sync && strncmp(path, watched, watched_len) == 0)
        before_sync(before_sync_arg);
    error = fault_at(path);
    if (error)
        return fail(error);
    if (slow_len > 0 && strncmp(path, slow, slow_len) == 0)
        usleep((useconds_t)slow_ms * 1000);
    result = fstat(fd, &st) == 0 ? real(fd) : -1;
    if (result == 0)
        note_synced(path, st.st_size);
    return result;
}

FAILING int fdatasync(int fd)
{
    return sync_with("fdatasync", fd);
}

FAILING int fsync(int fd)
{
    return sync_with("fsync", fd);
}

FAILING int sync_file_range(int fd, off64_t from, off64_t len, unsigned flags)
{
    /* Without flags the call only asks. */
    FAIL_OR_CALL(sync_file_range, flags ? fault_of(fd) : 0, fd, from, len, flags);
}

static void note_renamed(const char *from, const char *to)
{
    struct file *file = file_of(from), *old = file_of(to);

    if (old)
        old->path[0] = '\0';
    if (file)
        snprintf(file->path, sizeof(file->path), "%s", to);
}

FAILING int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))next("rename");
    int error = fault_at(to), result;

    if (error)
        return fail(error);
    pthread_mutex_lock(&lock); /* not while an image is taken */
    result = real(from, to);
    if (result == 0)
        note_renamed(from, to);
    pthread_mutex_unlock(&lock);
    return result;
}

FAILING int unlink(const char *path)
{
    int (*real)(const char *) = (int (*)(const char *))next("unlink");
    struct file *file;
    int result;

    pthread_mutex_lock(&lock);
    result = real(path);
    file = file_of(path);
    if (result == 0 && file)
        file->path[0] = '\0';
    pthread_mutex_unlock(&lock);
    return result;
}

static int open_with(const char *symbol, const char *path, int flags, mode_t mode)
{
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))next(symbol);
    int error = flags & O_CREAT ? fault_at(path) : 0;

    return error ? fail(error) : real(path, flags, mode);
}

static mode_t mode_of(int flags, va_list args)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
}

FAILING int open(const char *path, int flags, ...)
{
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = mode_of(flags, args);
    va_end(args);
    return open_with("open", path, flags, mode);
}

FAILING int open64(const char *path, int flags, ...)
{
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = mode_of(flags, args);
    va_end(args);
    return open_with("open64", path, flags, mode);
}
