/* SPDX-License-Identifier: Apache-2.0
 *
 * The pages of a consumer.
 */
#ifndef HAPAX_DOOR_CONSUME_METRICS_H
#define HAPAX_DOOR_CONSUME_METRICS_H

#include <hapax/consume.h>

struct hapax__metrics;

/* Serves http://ADDRESS/metrics (Prometheus text 0.0.4) and /health from a thread of its own.
 * /health is 200, or 503 with a line that says what is away. address: HOST:PORT. Port 0 means any,
 * and *port says which. INVALID; UNAVAILABLE: the port is taken. */
enum hapax_error hapax__metrics_open(struct hapax__metrics **out, const char *address,
                                     const struct hapax_consumer_stats *stats, const char *source,
                                     uint16_t *port, char text[HAPAX_TEXT_MAX]);
void hapax__metrics_close(struct hapax__metrics *metrics);

#endif
