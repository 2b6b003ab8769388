/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers, durations and sizes as people write them. The core's library contains this file, since
 * policies are read with it; so it calls what the core may call (tests/unit/pure.sh).
 *
 * Rejected: fractions (`1.5s`), which people round differently.
 */
#include "units.h"

#include <assert.h>
#include <string.h>

struct unit {
    char name[3];
    uint64_t times;
};

static const struct unit durations[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}, {"d", 24 * 3600 * 1000}};
static const struct unit sizes[] = {{"", 1}, {"k", 1u << 10}, {"m", 1u << 20}, {"g", 1u << 30}};

bool hapax__number_parse(uint64_t *number, const char *in, size_t len, uint64_t max)
{
    uint64_t n = 0;

    for (size_t i = 0; i < len; i++) {
        unsigned digit = (unsigned)(in[i] - '0');

        if (digit > 9 || digit > max || n > (max - digit) / 10)
            return false;
        n = n * 10 + digit;
    }
    if (len == 0)
        return false;
    *number = n;
    return true;
}

/* Reads a number with one of `count` units; the product is at most max. */
static bool parse(uint64_t *out, const char *value, const struct unit *units, size_t count,
                  uint64_t max)
{
    size_t len = strspn(value, "0123456789");
    uint64_t number;

    if (!hapax__number_parse(&number, value, len, max))
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(value + len, units[i].name) == 0 && number <= max / units[i].times) {
            *out = number * units[i].times;
            return true;
        }
    return false;
}

bool hapax__duration_parse(int64_t *ms, const char *value, const char **why)
{
    uint64_t number = 0;

    *why = "not a duration: 0, or a whole number with ms, s, m, h or d, as 30s; at most 3650d";
    if (!parse(&number, value, durations, sizeof(durations) / sizeof(durations[0]),
               HAPAX_DURATION_MAX_MS) &&
        !hapax__number_parse(&number, value, strlen(value), 0))
        return false;
    *ms = (int64_t)number;
    *why = NULL;
    assert(*ms >= 0 && *ms <= HAPAX_DURATION_MAX_MS);
    return true;
}

bool hapax__size_parse(size_t *size, const char *value, const char **why)
{
    uint64_t number;

    *why = "not a size: a whole number of bytes, or one with k, m or g, as 64k";
    if (!parse(&number, value, sizes, sizeof(sizes) / sizeof(sizes[0]), SIZE_MAX))
        return false;
    *size = (size_t)number;
    *why = NULL;
    return true;
}
