/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the product under the simulator's clock and chance. The product's code is linked as it
 * is. The linker sends its calls of pthread_*(), sem_*(), eventfd(), read(), write(), poll(),
 * clock_gettime(), getrandom() and malloc() here and to fds.c (--wrap). Each thread is a coroutine,
 * and one runs at a time; each such call may give the turn to another. No time passes while code
 * runs, but for what a change of turns draws. So one seed is one schedule.
 *
 * A process is its threads, its memory, its descriptors and its clocks. It may be killed in any
 * such call, stopped for a while, and begun anew.
 */
#ifndef HAPAX_TESTS_SIM_THREADS_H
#define HAPAX_TESTS_SIM_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#define PROCS     5
#define THE_WORLD PROCS /* whose threads are the test's own: nothing kills them */
#define MS        INT64_C(1000)
#define SECOND    (1000 * MS)

/* ---- chance ---- */

/* The generator's state, which is all that a schedule is drawn from. */
extern uint64_t sim_random;

uint64_t draw(void);
int64_t between(int64_t low, int64_t high);
bool chance(unsigned thousandths);

/* ---- time and rules ---- */

extern int64_t sim_now_us; /* the world's own clock */
extern bool sim_failed;
extern char sim_rule[200];
extern bool sim_trace;
extern uint64_t sim_hash; /* of all turns */

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says that a rule was broken. The first one counts, and ends the schedule. */
void violate(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- processes ---- */

struct process {
    int64_t offset_us; /* of its clock */
    int64_t stopped_until_us; /* SIGSTOP */
    int64_t stopped_us; /* for how long it was stopped since it began */
    int64_t sleeps_since_us; /* its machine sleeps; 0: it does not */
    int64_t slept_us; /* CLOCK_MONOTONIC is behind by so much */
    int64_t dies_in; /* calls; 0: it does not */
    unsigned no_memory; /* 1000ths of its allocations */
    uint32_t life; /* how often it has begun */
    bool alive;
};
extern struct process sim_procs[PROCS + 1];
extern unsigned sim_no_memory; /* how often memory ran out */

/* Begins a process with one thread; it ends with that thread. */
void process_begin(int proc, void (*run)(int proc));
void process_kill(int proc);
/* Stops it for this time, and perhaps its machine with it. */
void process_stop(int proc, int64_t us);
/* The process whose thread runs now. */
int process_now(void);
/* Called when a process has died or ended. */
extern void (*process_over)(int proc, bool killed);

/* A thread of the world. */
void world_thread(void (*run)(void *arg), void *arg);

/* Lets time pass for the running thread. */
void pass_us(int64_t us);

/* For stand-ins: a call in which the process may die, and the turn may change. */
void step(void);

/* Bytes went through a socket: whoever calls is not a loop that turns for ever, so far. */
void bytes_moved(void);

/* Runs all threads until none can go on, a rule is broken, or it is this time. */
void threads_run(int64_t until_us);
void threads_reset(uint64_t seed);

#endif
