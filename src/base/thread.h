/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the library, in a program that is not ours.
 */
#ifndef HAPAX_BASE_THREAD_H
#define HAPAX_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

/* Starts a thread that takes no signals: they are the program's. False: there is no thread. */
static inline bool hapax__thread_start(pthread_t *out, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0;
}

/* Waits on this condition end by the monotonic clock. */
static inline void hapax__cond_init(pthread_cond_t *out)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(out, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

#endif
