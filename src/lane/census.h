/* SPDX-License-Identifier: Apache-2.0
 *
 * A census: counts the unfinished operations of a store now and then, and asks for its vitals, so
 * that a scrape costs the store nothing. It has a thread and a store handle of its own, and delays
 * no lane's queue. Of a store that cannot be counted it asks for the vitals alone.
 *
 * The bounds: one walk by state, which sees HAPAX__CENSUS_MAX operations at most; and a pause after
 * each census that is 100 times as long as the census was, and a second at least. So a census costs
 * the store at most a hundredth of what one busy client does. After one that failed the pause is
 * 10 s at most.
 */
#ifndef HAPAX_LANE_CENSUS_H
#define HAPAX_LANE_CENSUS_H

#include "core/counts.h"

#include <stdio.h>

#define HAPAX__CENSUS_MAX 10000u /* operations of one state */

struct hapax__census;

/* Whether a store can be counted: it finds unfinished operations without reading the others. A
 * store that hashes its keys, or that bills each read, is not. */
bool hapax__census_fits(const struct hapax_store *store);

/* Starts to count. On success the store is the census's, which closes it; on failure (NOMEM) the
 * store is still yours and *out is NULL. Where store is NULL the thread opens uri, as often as it
 * takes; uri must live as long as the census. Until then the page says that the store is down. */
enum hapax_error hapax__census_open(struct hapax__census **out, struct hapax_store *store,
                                    const char *uri);

/* How long to wait after a census. */
int64_t hapax__census_pause_us(const struct hapax__census_found *found);

/* Writes what the last census found (http/prometheus.h). NULL: nothing. */
HAPAX__SHARED void hapax__census_page(FILE *out, struct hapax__census *census);

/* Waits for the census under way. NULL: does nothing. */
void hapax__census_close(struct hapax__census *census);

#endif
