/* SPDX-License-Identifier: Apache-2.0
 *
 * Durations and sizes as people write them, in policies and on the command line.
 */
#ifndef HAPAX_CORE_POLICY_H
#define HAPAX_CORE_POLICY_H

#include <hapax/hapax.h>

/* Reads `500ms`, `30s`, `5m`, `24h`, `7d` or `0`: whole numbers, no sign, no space, at most
 * HAPAX_DURATION_MAX_MS. False: *ms is as it was and *why, a static text, says what is allowed. */
HAPAX__SHARED bool hapax__duration_parse(int64_t *ms, const char *value, const char **why);

/* Reads `64k`, `1m`, `1g` (times 1024) or bare bytes, at most SIZE_MAX. False: as above. */
bool hapax__size_parse(size_t *size, const char *value, const char **why);

#endif
