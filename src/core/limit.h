/* SPDX-License-Identifier: Apache-2.0
 *
 * What one owner may use of a door, and what it uses: operations in flight, new keys, bytes of
 * outcomes, operations whose outcome is unknown. At a limit nothing new begins; what has begun goes
 * on. Pure: a door keeps one usage for each owner (owners.h), and asks before an operation runs.
 *
 * All but what is in flight is counted in windows: 15 whole parts of the time and the part that
 * goes on. So a count lasts as long as it should, or up to a fifteenth longer, and never shorter.
 * Rejected: a bucket that leaks. It lets through twice its limit within the time that it names.
 */
#ifndef HAPAX_CORE_LIMIT_H
#define HAPAX_CORE_LIMIT_H

#include <hapax/store.h>

enum hapax__limit {
    HAPAX__LIMIT_NONE = 0,
    HAPAX__LIMIT_IN_FLIGHT, /* operations that run or are being saved */
    HAPAX__LIMIT_KEYS, /* new ones within an hour */
    HAPAX__LIMIT_BYTES, /* of outcomes stored within the retention */
    HAPAX__LIMIT_UNKNOWN, /* operations that became `unknown` within the retention */
    HAPAX__LIMITS
};

/* The name of a limit, as it is configured ("in_flight"). Static. */
const char *hapax__limit_name(enum hapax__limit limit);

struct hapax__limits {
    uint64_t max[HAPAX__LIMITS]; /* 0: no limit */
    int64_t kept_us; /* how long bytes and unknowns count; 0: for ever */
};

/* Reads one limit: `in_flight=100`, `keys=10000/h`, `bytes=1g` or `unknown=100`, and sets it.
 * False: nothing is set, and *why, a static text, says what is allowed. */
bool hapax__limit_parse(struct hapax__limits *limits, const char *word, const char **why);

#define HAPAX__WINDOW_PARTS 16

/* What was counted lately. Zeroed: nothing. */
struct hapax__window {
    int64_t part_us; /* how long a part is; 0: for ever */
    int64_t part; /* the number of the latest part, since the clock's beginning */
    uint64_t total; /* of all parts */
    uint64_t parts[HAPAX__WINDOW_PARTS]; /* by their number modulo their count */
};

/* What one owner uses. Zeroed: nothing. */
struct hapax__usage {
    uint64_t in_flight;
    struct hapax__window windows[HAPAX__LIMITS - HAPAX__LIMIT_KEYS]; /* KEYS and those behind */
};

/* A limit that was reached. NONE: none was. */
struct hapax__over {
    enum hapax__limit limit;
    int64_t retry_after_ms; /* until there may be room again; -1: nobody knows */
};

/* Which limit stands against one more operation: a new one, or another attempt of one that has run
 * before, against which only IN_FLIGHT stands. Of several, the one that lasts longest. */
struct hapax__over hapax__usage_judge(struct hapax__usage *usage,
                                      const struct hapax__limits *limits, bool is_new,
                                      int64_t now_us);

/* An operation begins, or ends. */
void hapax__usage_begin(struct hapax__usage *usage, const struct hapax__limits *limits, bool is_new,
                        int64_t now_us);
void hapax__usage_end(struct hapax__usage *usage);

/* Counts what an op has stored for its owner. Ops of all kinds may be given, with any answer. */
void hapax__usage_stored(struct hapax__usage *usage, const struct hapax__limits *limits,
                         const struct hapax_op *op, int64_t now_us);

/* Whether there is nothing that counts. */
bool hapax__usage_is_empty(struct hapax__usage *usage, const struct hapax__limits *limits,
                           int64_t now_us);

#endif
