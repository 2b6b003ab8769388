/* SPDX-License-Identifier: Apache-2.0
 *
 * An attempt that has ended, as a line of JSON (docs/traces.md).
 */
#ifndef HAPAX_HTTP_EVENT_H
#define HAPAX_HTTP_EVENT_H

#include "told.h"

#include <time.h>

#define HAPAX__EVENT_MAX 2048u /* two names of 255 bytes, all quotes, and numbers */

/* The text of a second, kept for the next event. Zeroed: none. */
struct hapax__second {
    time_t second;
    char text[24];
};

/* Appends a line. scope: by hapax_what(). ahead_us: of the wall clock, before the door's. */
char *hapax__event(char *at, const struct hapax__told *told, struct hapax_span scope,
                   enum hapax__traced_door door, int64_t ahead_us, struct hapax__second *kept);

#endif
