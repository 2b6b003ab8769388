/* SPDX-License-Identifier: Apache-2.0
 *
 * The pages of a consumer.
 */
#ifndef HAPAX_DOOR_CONSUME_METRICS_H
#define HAPAX_DOOR_CONSUME_METRICS_H

#include "http/pages.h"

#include <hapax/consume.h>

struct hapax__census;
struct hapax__metrics;

/* Serves http://ADDRESS/metrics (Prometheus text 0.0.4) and /health from a thread of its own.
 * /health is 200, or 503 with a line that says what is away. Fails as
 * hapax__pages_open() does. */
enum hapax_error hapax__metrics_open(struct hapax__metrics **out,
                                     const struct hapax__page_place *place,
                                     const struct hapax_consumer_stats *stats, const char *source,
                                     uint16_t *port, char text[HAPAX_TEXT_MAX]);

/* Shows what the store's handle counts, too, and its census; both are lent until the next call, or
 * the close. NULL: none. */
void hapax__metrics_show(struct hapax__metrics *metrics, const struct hapax *h,
                         struct hapax__census *census);
void hapax__metrics_close(struct hapax__metrics *metrics);

#endif
