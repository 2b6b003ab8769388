/* SPDX-License-Identifier: Apache-2.0 */
#include "limit.h"

#include "base/time.h"
#include "base/units.h"

#include <string.h>

#define HOUR_US        (3600 * US_PER_S)
#define RETRY_AFTER_US (1000 * US_PER_MS) /* nobody knows when an operation ends */
#define NUMBER_MAX     UINT64_C(1000000000000)
#define PARTS          HAPAX__WINDOW_PARTS

/* ---- as people write them ------------------------------------------------------------ */

static const struct limit {
    const char *name;
    const char *per; /* follows the number */
} names[] = {
    [HAPAX__LIMIT_IN_FLIGHT] = {"in_flight", ""},
    [HAPAX__LIMIT_KEYS] = {"keys", "/h"},
    [HAPAX__LIMIT_BYTES] = {"bytes", NULL}, /* a size */
    [HAPAX__LIMIT_UNKNOWN] = {"unknown", ""},
};

const char *hapax__limit_name(enum hapax__limit limit)
{
    return names[limit].name;
}

static bool parse_number(uint64_t *number, const char *value, const char *per)
{
    size_t len = strspn(value, "0123456789");

    return strcmp(value + len, per) == 0 && hapax__number_parse(number, value, len, NUMBER_MAX);
}

static bool parse_bytes(uint64_t *number, const char *value)
{
    const char *why;
    size_t size;

    if (!hapax__size_parse(&size, value, &why))
        return false;
    *number = size;
    return true;
}

bool hapax__limit_parse(struct hapax__limits *limits, const char *word, const char **why)
{
    *why = "in_flight=N, keys=N/h, bytes=SIZE and unknown=N, each once, and 1 at least";
    for (size_t i = HAPAX__LIMIT_IN_FLIGHT; i < HAPAX__LIMITS; i++) {
        const struct limit *limit = &names[i];
        size_t len = strlen(limit->name);
        uint64_t number = 0;

        if (strncmp(word, limit->name, len) != 0 || word[len] != '=' || limits->max[i])
            continue;
        word += len + 1;
        if (!(limit->per ? parse_number(&number, word, limit->per) : parse_bytes(&number, word)))
            return false;
        limits->max[i] = number;
        return number > 0;
    }
    return false;
}

/* ---- windows ------------------------------------------------------------------------- */

static uint64_t *part_at(struct hapax__window *window, int64_t part)
{
    return &window->parts[(uint64_t)part % PARTS];
}

/* The parts that ended too long ago no longer count. Where the length of parts is another now, all
 * counts as if it were of this moment. */
static void move_on(struct hapax__window *window, int64_t length_us, int64_t now_us)
{
    int64_t part_us = length_us ? length_us / (PARTS - 1) + 1 : 0;
    int64_t part = part_us ? now_us / part_us : 0;

    if (window->part_us != part_us) {
        *window = (struct hapax__window){.part_us = part_us, .part = part, .total = window->total};
        *part_at(window, part) = window->total;
        return;
    }
    while (window->part < part && window->total > 0) {
        uint64_t *oldest = part_at(window, ++window->part);

        window->total -= *oldest;
        *oldest = 0;
    }
    window->part = hapax__most(window->part, part);
}

static void count(struct hapax__window *window, uint64_t n)
{
    window->total += n;
    *part_at(window, window->part) += n;
}

/* When less than max will be left, INT64_MAX: never. max: from 1 to what is there now. */
static int64_t free_us(struct hapax__window *window, uint64_t max)
{
    uint64_t left = window->total;
    int64_t part = window->part + 1;

    if (window->part_us == 0)
        return INT64_MAX;
    for (;; part++) {
        left -= *part_at(window, part);
        if (left < max)
            return part * window->part_us;
    }
}

static struct hapax__window *window_of(struct hapax__usage *usage,
                                       const struct hapax__limits *limits, size_t limit,
                                       int64_t now_us)
{
    struct hapax__window *window = &usage->windows[limit - HAPAX__LIMIT_KEYS];

    move_on(window, limit == HAPAX__LIMIT_KEYS ? HOUR_US : limits->kept_us, now_us);
    return window;
}

/* ---- usage --------------------------------------------------------------------------- */

struct hapax__over hapax__usage_judge(struct hapax__usage *usage,
                                      const struct hapax__limits *limits, bool is_new,
                                      int64_t now_us)
{
    enum hapax__limit limit = HAPAX__LIMIT_NONE;
    int64_t until_us = 0;

    if (limits->max[HAPAX__LIMIT_IN_FLIGHT] &&
        usage->in_flight >= limits->max[HAPAX__LIMIT_IN_FLIGHT]) {
        limit = HAPAX__LIMIT_IN_FLIGHT;
        until_us = now_us + RETRY_AFTER_US;
    }
    for (size_t i = HAPAX__LIMIT_KEYS; is_new && i < HAPAX__LIMITS; i++) {
        struct hapax__window *window = window_of(usage, limits, i, now_us);
        int64_t then_us;

        if (!limits->max[i] || window->total < limits->max[i])
            continue;
        then_us = free_us(window, limits->max[i]);
        if (then_us <= until_us)
            continue;
        limit = (enum hapax__limit)i;
        until_us = then_us;
    }
    if (limit == HAPAX__LIMIT_NONE)
        return (struct hapax__over){HAPAX__LIMIT_NONE, 0};
    if (until_us == INT64_MAX)
        return (struct hapax__over){limit, -1};
    return (struct hapax__over){limit, (until_us - now_us + US_PER_MS - 1) / US_PER_MS};
}

void hapax__usage_begin(struct hapax__usage *usage, const struct hapax__limits *limits, bool is_new,
                        int64_t now_us)
{
    usage->in_flight++;
    count(window_of(usage, limits, HAPAX__LIMIT_KEYS, now_us), is_new);
}

void hapax__usage_end(struct hapax__usage *usage)
{
    usage->in_flight--;
}

void hapax__usage_stored(struct hapax__usage *usage, const struct hapax__limits *limits,
                         const struct hapax_op *op, int64_t now_us)
{
    if (op->verdict != HAPAX_OK || (op->kind != HAPAX_OP_COMPLETE && op->kind != HAPAX_OP_FAIL))
        return;
    count(window_of(usage, limits, HAPAX__LIMIT_BYTES, now_us),
          op->outcome.headers.len + op->outcome.body.len);
    count(window_of(usage, limits, HAPAX__LIMIT_UNKNOWN, now_us), op->as_unknown);
}

bool hapax__usage_is_empty(struct hapax__usage *usage, const struct hapax__limits *limits,
                           int64_t now_us)
{
    uint64_t sum = usage->in_flight;

    for (size_t i = HAPAX__LIMIT_KEYS; i < HAPAX__LIMITS; i++)
        sum += window_of(usage, limits, i, now_us)->total;
    return sum == 0;
}
