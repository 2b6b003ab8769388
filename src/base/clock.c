/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"

#include "time.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec ts;
    int rc = clock_gettime(id, &ts);

    assert(rc == 0);
    (void)rc;
    return (int64_t)ts.tv_sec * US_PER_S + ts.tv_nsec / 1000;
}

int64_t hapax__wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

int64_t hapax__boot_us(void)
{
    return read_us(CLOCK_BOOTTIME);
}

int64_t hapax__monotonic_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

/* Where the kernel gives no boot id (no /proc), it stays zero, and the wall clock decides. */
struct hapax__clock_mark hapax__clock_machine(void)
{
    struct hapax__clock_mark now = {read_us(CLOCK_REALTIME), read_us(CLOCK_BOOTTIME), {0}};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    char text[37];
    size_t digits = 0;

    if (!file)
        return now;
    if (fgets(text, sizeof(text), file)) {
        for (const char *c = text; *c && digits < 32; c++) {
            const char *hex = "0123456789abcdef";
            const char *at = strchr(hex, *c);

            if (!at)
                continue;
            now.boot_id[digits / 2] = (uint8_t)(now.boot_id[digits / 2] << 4 | (at - hex));
            digits++;
        }
    }
    fclose(file);
    return now;
}

static bool same_boot(const struct hapax__clock_mark *last, const struct hapax__clock_mark *now)
{
    static const uint8_t none[16];

    return memcmp(now->boot_id, none, sizeof(none)) != 0 &&
           memcmp(last->boot_id, now->boot_id, sizeof(none)) == 0 && last->boot_us <= now->boot_us;
}

void hapax__clock_start(struct hapax__clock *clock, const struct hapax__clock_mark *last,
                        const struct hapax__clock_mark *now, int64_t wall_us)
{
    int64_t start_us = wall_us > 0 ? wall_us : 1;

    if (last && last->clock_us > 0) {
        if (same_boot(last, now))
            start_us = last->clock_us + (now->boot_us - last->boot_us);
        else if (start_us <= last->clock_us)
            start_us = last->clock_us + 1;
    }
    memcpy(clock->boot_id, now->boot_id, sizeof(clock->boot_id));
    clock->ahead_us = start_us - now->boot_us;
}

int64_t hapax__clock_at(const struct hapax__clock *clock, int64_t boot_us)
{
    return clock->ahead_us + boot_us;
}
