/* SPDX-License-Identifier: Apache-2.0
 *
 * The one writer of Prometheus' text, version 0.0.4: names, types, help and labels of what doors,
 * lanes and stores count (core/counts.h). docs/metrics.md lists all of it.
 *
 * A label has a value of a fixed list, a name that the operator gave, or a version: never a scope,
 * an owner or a key.
 */
#ifndef HAPAX_HTTP_PROMETHEUS_H
#define HAPAX_HTTP_PROMETHEUS_H

#include "core/counts.h"

#include <stdio.h>

/* ---- what every door has ------------------------------------------------------------- */

/* A zone of a gate, or all of another door. */
struct hapax__page_zone {
    const char *name; /* of the label `zone`; "": no label */
    const struct hapax__counts *counts;
};

/* Which door of which version serves the page. */
HAPAX__SHARED void hapax__page_build(FILE *out, const char *door);

/* Answers of flows; for a door that has no count of its own. */
void hapax__page_answers(FILE *out, const struct hapax__page_zone *zones, size_t n);

/* What would have become of requests, of a door that can watch them only. */
void hapax__page_shadows(FILE *out, const struct hapax__page_zone *zones, size_t n);

/* The name of enum hapax__would, as the page has it; 0: an empty one. */
const char *hapax__would_name(unsigned would);

/* Calls take(arg, name, value, number) for each counter of what flows count, but for answers.
 * value: of its label; NULL: it has none. */
HAPAX__SHARED void hapax__counts_each(const struct hapax__counts *counts,
                                      void (*take)(void *arg, const char *name, const char *value,
                                                   uint64_t number),
                                      void *arg);

/* All else that flows count. */
void hapax__page_flows(FILE *out, const struct hapax__page_zone *zones, size_t n);

void hapax__page_lane(FILE *out, const struct hapax__lane_counts *counts);

void hapax__page_census(FILE *out, const struct hapax__census_found *found);

/* What is known of them. */
void hapax__page_vitals(FILE *out, const struct hapax_vitals *vitals);

/* The time until a certificate ends (µs since 1970), negative when that is over; `of` is the value
 * of a label, or NULL. HAPAX_NOT_KNOWN: writes nothing. */
void hapax__page_certificate(FILE *out, const char *name, const char *of, int64_t end_us);

/* ---- for what one door has ----------------------------------------------------------- */

struct hapax__page_number {
    const char *name;
    int64_t value; /* negative: not known, and left out */
    const char *about;
};

/* The two lines before a metric. */
HAPAX__SHARED void hapax__page_head(FILE *out, const char *name, const char *type,
                                    const char *about);

/* Whole metrics without labels. */
HAPAX__SHARED void hapax__page_numbers(FILE *out, const char *type,
                                       const struct hapax__page_number *numbers, size_t n);

/* A histogram without labels, of times in seconds. */
HAPAX__SHARED void hapax__page_times(FILE *out, const char *name, const char *about,
                                     const struct hapax__times *times);

/* A label's value, without its quotes. */
HAPAX__SHARED void hapax__page_label(FILE *out, const char *value);

#endif
