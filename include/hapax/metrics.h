/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.h: what a handle has counted, for a program that serves its own /metrics.
 */
#ifndef HAPAX_METRICS_H
#define HAPAX_METRICS_H

#include <hapax/hapax.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the metrics of a handle's operations, of its queue and of its store, as Prometheus' text
 * (docs/metrics.md). Two handles of one process have the same names: write one of them, or each to
 * a page of its own. Takes no lock and asks no store. Safe from any thread; h is not closed
 * meanwhile. */
HAPAX_API void hapax_metrics(FILE *out, const struct hapax *h);

#ifdef __cplusplus
}
#endif
#endif
