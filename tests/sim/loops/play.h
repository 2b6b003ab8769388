/* SPDX-License-Identifier: Apache-2.0
 *
 * What a schedule of simulated processes goes through: all begin, and faults happen to them; then
 * comes the calm, in which all must come to its end; last, all are told to stop, and must end.
 */
#ifndef HAPAX_TESTS_SIM_LOOPS_PLAY_H
#define HAPAX_TESTS_SIM_LOOPS_PLAY_H

#include "threads.h"

#include <hapax/hapax.h>

#include <stddef.h>

struct play {
    int procs_count;
    int64_t calm_us; /* when it begins */
    int64_t rest_us; /* from the calm on, until all is at its end */
    int64_t drain_us; /* of one that was told to stop */
    void (*begin)(int proc); /* calls process_begin() */
    void (*happens)(int proc); /* something, or nothing */
    void (*calm)(void); /* nothing fails any more */
    void (*watch)(void); /* NULL, or called twice a second */
    bool (*is_over)(void);
    void (*not_over)(void); /* says what is not at its end */
};

/* What tells a process to stop. */
struct stop {
    int fd; /* an eventfd that the process has made; 0: none */
    int64_t at_us; /* when it was told; 0: it was not */
};
extern struct stop stops[PROCS];
extern bool play_calm, play_stopping;

/* A rate: one seed in five has everything, the others have each thing, or not. */
unsigned play_rate(bool all, unsigned most);

/* Draws a policy whose times suit a seed. */
void play_policy(struct hapax_policy *out);

/* Kills a process, at this rate: at once, or in one of its next calls. */
void play_kill(int proc, unsigned rate);

/* Tells a process to stop. False: it is not there yet, or was told. */
bool play_stop(int proc);

/* Whether a process that is over has ended as it was told to, before all are. */
bool play_stopped(int proc, bool killed);
bool play_is_told_to_stop(int proc);
void play_wait_for_stop(int proc);

/* Connects to `path`, says these bytes, and stands still until the server hangs up, or in the calm
 * should have: 3 s after its patience. Whether the server served all the while, and has hung up
 * when its patience was over. *came: whether there was a connection. */
bool play_stranger(bool *came, const char *path, const void *says, size_t size,
                   int64_t patience_us);

/* A process is over, and begins anew unless all stop: for process_over. */
void play_over(int proc);

void play_run(const struct play *play);

#endif
