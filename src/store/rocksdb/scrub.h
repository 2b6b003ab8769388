/* SPDX-License-Identifier: Apache-2.0
 *
 * A scrub of the files of the embedded store: afterwards no file has bytes of a record that was
 * removed before it began.
 *
 * RocksDB leaves what was removed in its log and its files until files are merged. A scrub writes
 * the buffers to files, ends the log, and merges all files into new ones. That takes as long as to
 * write the whole store, so it runs in a thread of its own, beside the ops.
 */
#ifndef HAPAX_STORE_ROCKSDB_SCRUB_H
#define HAPAX_STORE_ROCKSDB_SCRUB_H

#include "files.h"

#include <limits.h>
#include <pthread.h>

struct hapax__scrub {
    uint64_t number; /* of the last one that began; 0: none has */
    uint64_t done; /* of the last one that did what it is for */
    bool runs; /* its thread is to be joined */
    atomic_bool over;
    atomic_bool stop;
    pthread_t thread;
    struct hapax__files *files;
    char folder[PATH_MAX];
    enum hapax_error error; /* of the thread, once it is over */
    char why[HAPAX_TEXT_MAX]; /* once it is over, and not done */
};

/* Begins a scrub of files that are open in this folder. They stay open until it is over, or was
 * stopped. The one before must be over. False: no thread. */
bool hapax__scrub_begin(struct hapax__scrub *scrub, struct hapax__files *files, const char *folder);

/* Whether the last one that began is over, whether done or not. */
bool hapax__scrub_over(struct hapax__scrub *scrub);

/* Ends a scrub that runs, before the files are closed. */
void hapax__scrub_stop(struct hapax__scrub *scrub);

#endif
