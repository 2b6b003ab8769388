/* SPDX-License-Identifier: Apache-2.0
 *
 * A machine that was suspended, played: CLOCK_BOOTTIME is ahead by as many seconds as the file
 * HAPAX_SUSPENDED has bytes. No test can suspend the machine that it runs on.
 */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now)
{
    const char *file = getenv("HAPAX_SUSPENDED");
    struct stat st;
    int result = (int)syscall(SYS_clock_gettime, id, now);

    if (result == 0 && id == CLOCK_BOOTTIME && file && stat(file, &st) == 0)
        now->tv_sec += st.st_size;
    return result;
}
