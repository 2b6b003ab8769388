/* SPDX-License-Identifier: Apache-2.0
 *
 * What threads.c and fds.c have in common: how a call of the product comes here, and how a thread
 * waits for descriptors.
 */
#ifndef HAPAX_TESTS_SIM_LOOPS_INNER_H
#define HAPAX_TESTS_SIM_LOOPS_INNER_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/* The linker's names, which no header declares. */
#define WRAPPED(type, name, ...)                                                                   \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

/* Whether a simulated thread runs. */
bool ours(void);

/* Waits until one of these changes, or it is this time. */
void wait_for_fds(struct pollfd *all, nfds_t n, int64_t until_us);
void wake_who_polls(int fd);

void fds_reset(void);

/* How many descriptors the process has. */
int fds_of(int proc);

/* The process is over: its descriptors are closed. */
void fds_forget(int proc);

#endif
