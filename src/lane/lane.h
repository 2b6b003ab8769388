/* SPDX-License-Identifier: Apache-2.0
 *
 * A lane: it owns a store handle, and has a bounded queue before it. While one batch is
 * under way the next gathers, so that group commit comes by itself. Answers come back
 * through a list and an eventfd, in the order in which they were given.
 *
 * Where the store can judge without waiting for the disk, the next batch is judged while the one
 * before is synced. An answer that rests on a write comes back when that write is on disk; one that
 * rests on none may come back before others that were given earlier.
 *
 * A job is the caller's. It must stay where it is, with the memory that its op borrows, from submit
 * until it is reaped. A lane copies nothing going in; it copies the answer into the job.
 */
#ifndef HAPAX_LANE_LANE_H
#define HAPAX_LANE_LANE_H

#include "core/counts.h"

#include <hapax/store.h>

#include <stdatomic.h>

#define HAPAX__LANE_QUEUE_MAX 4096u

struct hapax__job {
    struct hapax_op op;
    /* By hapax__boot_us(); 0: none. A job not begun by then is UNAVAILABLE, and never sent. */
    int64_t deadline_us;
    const atomic_bool *unless; /* NULL: none. Not begun when it is set, the job ends so, too */
    /* NULL: the job is its op. Otherwise called with the store in the lane's thread, in the job's
     * turn and instead of the op, which then has the verdict OK. May set `memory`. */
    void (*look)(struct hapax_store *store, struct hapax__job *job);
    void *memory; /* what the answer points into; free() it once the answer is used */
    uint64_t rests; /* the lane's: the write for which the answer waits; 0: for none */
    struct hapax__job *next; /* the lane's, from submit until it is reaped */
};

struct hapax__lane;

/* Starts a lane over an open store. On success the store is the lane's, which closes it; on failure
 * (NOMEM) it is still yours and *out is NULL. queue_max: 1 or more. */
enum hapax_error hapax__lane_open(struct hapax__lane **out, struct hapax_store *store,
                                  uint32_t queue_max);

/* As hapax__lane_open(). But a store that can judge without waiting for the disk does so in the
 * thread that calls hapax__lane_turn(), which must be one. */
enum hapax_error hapax__lane_open_here(struct hapax__lane **out, struct hapax_store *store,
                                       uint32_t queue_max);

/* Counts batches and syncs there from now on. Before the first job. Several lanes may count in one
 * place, which must outlive them. */
void hapax__lane_count(struct hapax__lane *lane, struct hapax__lane_counts *counts);

/* Judges what is queued; but while the log is synced it may leave a few jobs for the turn after,
 * of which the eventfd tells. True: there may be answers to reap. Does nothing for other lanes. */
bool hapax__lane_turn(struct hapax__lane *lane);

/* Readable while there is something to reap, and now and then when there is not. The lane's; for
 * poll() and its kin. */
int hapax__lane_fd(const struct hapax__lane *lane);

/* Queues a job. False: the queue is full, or the lane is closing; the job is still the caller's and
 * its op is set to UNAVAILABLE. Safe from any thread, but a job is reaped by one. */
bool hapax__lane_submit(struct hapax__lane *lane, struct hapax__job *job);

/* Queues a list of jobs (linked by `next`) in its order, and wakes the lane once: so they are one
 * batch, as far as the store takes it. Returns the jobs that were refused, which are the end of the
 * list; each is left as hapax__lane_submit() leaves it. */
struct hapax__job *hapax__lane_submit_all(struct hapax__lane *lane, struct hapax__job *jobs);

/* Takes every job answered so far, a list by `next` in the order of answers; NULL: none. Clears the
 * eventfd. */
struct hapax__job *hapax__lane_reap(struct hapax__lane *lane);

/* Jobs queued, and under way. */
uint32_t hapax__lane_queued(struct hapax__lane *lane);

/* The text of the last failure of the lane's store, "" if there was none. Safe from any thread. */
void hapax__lane_text(struct hapax__lane *lane, char out[HAPAX_TEXT_MAX]);

/* Refuses new jobs, runs those that wait, syncs and closes the store, ends the thread. Blocks.
 * Returns the jobs not reaped yet, a list by `next`. The eventfd is gone. */
struct hapax__job *hapax__lane_close(struct hapax__lane *lane);

#endif
