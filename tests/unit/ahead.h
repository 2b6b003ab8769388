/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock of doors, and of stores in memory, which a case may put forward: ahead_us. For a
 * program that is linked with -Wl,--wrap=hapax__boot_us.
 */
#ifndef HAPAX_TESTS_AHEAD_H
#define HAPAX_TESTS_AHEAD_H

#include <stdatomic.h>
#include <stdint.h>

static atomic_int_fast64_t ahead_us;

int64_t __real_hapax__boot_us(void);
int64_t __wrap_hapax__boot_us(void);

int64_t __wrap_hapax__boot_us(void)
{
    return __real_hapax__boot_us() + atomic_load(&ahead_us);
}

#endif
