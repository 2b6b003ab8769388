/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers, durations and sizes as people write them: in policies, URIs and on the command line.
 */
#ifndef HAPAX_BASE_UNITS_H
#define HAPAX_BASE_UNITS_H

#include <hapax/hapax.h>

/* Reads a whole number, up to max, that is all of in[0..len): digits only, 1 at least. False: it
 * is no such number; *number is as it was. */
HAPAX__SHARED bool hapax__number_parse(uint64_t *number, const char *in, size_t len, uint64_t max);

/* Reads `500ms`, `30s`, `5m`, `24h`, `7d` or `0`: whole numbers, no sign, no space, at most
 * HAPAX_DURATION_MAX_MS. False: *ms is as it was and *why, a static text, says what is allowed. */
bool hapax__duration_parse(int64_t *ms, const char *value, const char **why);

/* Reads `64k`, `1m`, `1g` (times 1024) or bare bytes, at most SIZE_MAX. False: as above. */
bool hapax__size_parse(size_t *size, const char *value, const char **why);

#endif
