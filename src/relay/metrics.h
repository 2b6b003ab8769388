/* SPDX-License-Identifier: Apache-2.0
 *
 * A relay's pages /metrics and /health.
 */
#ifndef HAPAX_RELAY_METRICS_H
#define HAPAX_RELAY_METRICS_H

#include "http/pages.h"
#include "relay.h"

/* Serves the pages until hapax__pages_close(); `stats` must stay until then. Fails as
 * hapax__pages_open() does. */
enum hapax_error hapax__relay_metrics(struct hapax__pages **out,
                                      const struct hapax__page_place *place,
                                      const struct hapax__relay_stats *stats, uint16_t *port,
                                      char text[HAPAX_TEXT_MAX]);

#endif
