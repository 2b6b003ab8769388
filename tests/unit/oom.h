/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the N-th allocation of a program fail, for every N. For tests linked with oom_link_args
 * (tests/unit/meson.build): malloc, calloc, realloc, strdup and strndup called by our own code and
 * by our static libraries come by here; what shared libraries allocate for themselves does not.
 *
 *     for (n = 1;; n++) {
 *         oom_fail_at(n, forever);
 *         … what is tested …
 *         if (oom_count() < n)     none was left to fail: done
 *             break;
 *     }
 *     oom_fail_at(0, false);
 *
 * Counts every thread's, so that with threads the N-th is not always the same one.
 */
#ifndef HAPAX_TESTS_OOM_H
#define HAPAX_TESTS_OOM_H

#include <stdbool.h>
#include <stdint.h>

/* Fails the n-th allocation from now on, and with `forever` every one after it. 0: none fails. */
void oom_fail_at(uint64_t n, bool forever);

/* Allocations asked for since the last oom_fail_at(), the failed ones included. */
uint64_t oom_count(void);

/* Blocks allocated and not freed, since the program began: the same before and after what
 * leaks nothing and takes nothing over from the C library. */
int64_t oom_live(void);

#endif
