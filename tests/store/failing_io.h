/* SPDX-License-Identifier: Apache-2.0
 *
 * A disk that fails: stands before libc's calls that write, sync or name files, and fails the N-th
 * of them on files under one folder. Linked before libc, or preloaded with
 * FAILING_IO=FOLDER:NTH:once|ever:ENOSPC|EIO in the environment. SLOW_IO=FOLDER:MS there makes each
 * sync of a file under the folder take so much longer.
 */
#ifndef FAILING_IO_H
#define FAILING_IO_H

#include <stdbool.h>

/* Fails the nth call (from 1) under the folder, and with `ever` each after it, with this errno. A
 * write that fails for want of room writes its first half. */
void failing_io_arm(const char *folder, long nth, bool ever, int error);

/* The fault ends. Returns the calls counted since it was armed. */
long failing_io_disarm(void);

/* Watches the files in a folder and below from now on, to know what of them is synced. before_sync
 * (may be NULL) is called before each sync of one of them, in the thread that syncs. NULL: ends. */
void failing_io_watch(const char *path, void (*before_sync)(void *arg), void *arg);

/* Copies the files of a watched folder as a power cut would leave them: each with as many bytes as
 * were synced; the mark, which nobody syncs, as it is. */
void failing_io_image(const char *from, const char *to);

#endif
