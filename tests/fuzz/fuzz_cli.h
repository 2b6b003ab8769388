/* SPDX-License-Identifier: Apache-2.0
 *
 * What the targets of the command line share: files that are the input, and what a command prints.
 */
#ifndef HAPAX_TESTS_FUZZ_FUZZ_CLI_H
#define HAPAX_TESTS_FUZZ_FUZZ_CLI_H

#include "cli/cli.h"
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file in memory with these bytes, and its path, which names it as long as it is open. */
static inline int fuzz_file(char path[64], struct hapax_span bytes)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    assert(fd >= 0);
    for (size_t at = 0; at < bytes.len;) {
        ssize_t n = write(fd, bytes.ptr + at, bytes.len - at);

        assert(n > 0);
        at += (size_t)n;
    }
    assert(lseek(fd, 0, SEEK_SET) == 0);
    (void)snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* What a command prints, on stdout and stderr, between begin and end. */
struct fuzz_said {
    FILE *file, *out, *err;
    char *text; /* for free(), after the end */
    size_t len;
};

static inline void fuzz_said_begin(struct fuzz_said *said)
{
    *said = (struct fuzz_said){.out = stdout, .err = stderr};
    said->file = open_memstream(&said->text, &said->len);
    assert(said->file);
    stdout = stderr = said->file;
}

static inline void fuzz_said_end(struct fuzz_said *said)
{
    stdout = said->out;
    stderr = said->err;
    (void)fclose(said->file);
    assert(said->text);
}

static inline struct hapax_span fuzz_line(struct hapax_span *rest)
{
    const uint8_t *newline = rest->len > 0 ? memchr(rest->ptr, '\n', rest->len) : NULL;
    struct hapax_span line = {rest->ptr, newline ? (size_t)(newline - rest->ptr) : rest->len};
    size_t taken = line.len + (newline != NULL);

    if (taken > 0)
        *rest = (struct hapax_span){rest->ptr + taken, rest->len - taken};
    return line;
}

static inline char *fuzz_copy(struct hapax_span text)
{
    char *copy = malloc(text.len + 1);

    assert(copy);
    if (text.len > 0)
        memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    return copy;
}

#endif
