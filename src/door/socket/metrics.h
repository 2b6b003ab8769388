/* SPDX-License-Identifier: Apache-2.0
 *
 * What a door shows of itself at /metrics and /health. No scope, no key and no owner is shown.
 */
#ifndef HAPAX_DOOR_SOCKET_METRICS_H
#define HAPAX_DOOR_SOCKET_METRICS_H

#include "http/pages.h"
#include "stats.h"

/* As hapax__pages_open(). stats must outlive the pages, and may get its store later. */
enum hapax_error hapax__door_metrics(struct hapax__pages **out,
                                     const struct hapax__page_place *place,
                                     const struct hapax__door_stats *stats, uint16_t *port,
                                     char text[HAPAX_TEXT_MAX]);

#endif
