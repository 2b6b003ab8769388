/* SPDX-License-Identifier: Apache-2.0
 *
 * See failing_io.h. Every call is counted, and failed, at the boundary where a disk would fail it:
 * behind every buffer of the program. Counting the calls and then failing each in turn is
 * what reaches the paths nobody thought of.
 */
#include "failing_io.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[4096];
static size_t folder_len; /* 0: not armed */
static long fail_at;
static long calls;
static bool fail_ever;
static int fail_error;

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
    const char *text = getenv("FAILING_IO");
    char path[1024], how[8], error[8];
    long nth;

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
    is = folder_len > 0;
    pthread_mutex_unlock(&lock);
    return is;
}

static int fault_of(int fd)
{
    char name[64], path[4096];
    ssize_t len;
    int saved = errno;

    if (!armed())
        return 0;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    len = readlink(name, path, sizeof(path) - 1);
    errno = saved;
    if (len < 0)
        return 0;
    path[len] = '\0';
    return fault_at(path);
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

FAILING int fdatasync(int fd)
{
    FAIL_OR_CALL(fdatasync, fault_of(fd), fd);
}

FAILING int fsync(int fd)
{
    FAIL_OR_CALL(fsync, fault_of(fd), fd);
}

FAILING int sync_file_range(int fd, off64_t from, off64_t len, unsigned flags)
{
    /* Without flags the call only asks. */
    FAIL_OR_CALL(sync_file_range, flags ? fault_of(fd) : 0, fd, from, len, flags);
}

FAILING int rename(const char *from, const char *to)
{
    FAIL_OR_CALL(rename, fault_at(to), from, to);
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
