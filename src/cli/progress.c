/* SPDX-License-Identifier: Apache-2.0
 *
 * The estimate is the time so far, by the share that is done. A walk through ids has no better one:
 * what lies before it costs as much as what lies behind.
 */
#include "progress.h"

#include "base/clock.h"
#include "base/time.h"
#include "print.h"

#include <inttypes.h>
#include <unistd.h>

#define FIRST_US (2 * US_PER_S)
#define AGAIN_US (US_PER_S / 2)
#define WIPE     "\033[K" /* to the end of the line */

void progress_begin(struct progress *progress, const struct cli_args *args)
{
    progress->command = args->command->name;
    progress->begun_us = hapax__monotonic_us();
    progress->next_us = progress->begun_us + FIRST_US;
    progress->on = !args->json && isatty(STDERR_FILENO);
    progress->shown = false;
}

void progress_tell(struct progress *progress, double share, uint64_t n, const char *what)
{
    int64_t now_us = progress->on ? hapax__monotonic_us() : 0;
    char left[PRINT_AGE_MAX];

    if (!progress->on || now_us < progress->next_us)
        return;
    progress->next_us = now_us + AGAIN_US;
    progress->shown = true;
    (void)fprintf(stderr, "hapax %s: %" PRIu64 " %s", progress->command, n, what);
    if (share > 0 && share <= 1) {
        print_age(left, (int64_t)((double)(now_us - progress->begun_us) * (1 - share) / share));
        (void)fprintf(stderr, ", %.0f %%, about %s left", 100 * share, left);
    }
    (void)fputs(WIPE "\r", stderr); /* what else is printed begins over it */
}

void progress_end(struct progress *progress)
{
    if (progress->shown)
        (void)fputs(WIPE, stderr);
    progress->shown = false;
}

double progress_share(const struct hapax_store *store, const struct hapax_id *cursor)
{
    if (store->type->forgets) /* its cursor is no id */
        return 0;
    return (cursor->bytes[0] * 256 + cursor->bytes[1]) / 65536.0;
}
