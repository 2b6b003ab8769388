/* SPDX-License-Identifier: Apache-2.0
 *
 * What a relay shows of itself at /metrics and /health.
 */
#ifndef HAPAX_RELAY_METRICS_H
#define HAPAX_RELAY_METRICS_H

#include "http/pages.h"
#include "relay.h"

/* Serves them until hapax__pages_close(); stats stay until then. As hapax__pages_open(). */
enum hapax_error hapax__relay_metrics(struct hapax__pages **out, const char *address,
                                      const struct hapax__relay_stats *stats, uint16_t *port,
                                      char text[HAPAX_TEXT_MAX]);

#endif
