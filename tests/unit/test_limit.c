/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits: as people write them, what counts and for how long, and the table of owners in memory
 * that workers share.
 */
#include "../cases.h"
#include "base/time.h"
#include "core/owners.h"

#include <stdlib.h>
#include <string.h>

#define HOUR_US (3600 * US_PER_S)
#define DAY_US  (24 * HOUR_US)
#define NOW_US  (1000 * HOUR_US) /* of a clock that has run for a while */
#define MEMORY  ((size_t)64 * 1024)
#define WORKER  7u

/* ---- as people write them ---------------------------------------------------------------- */

/* Each limit has its form, and names itself so. */
CASE(a_limit_is_a_name_and_a_number)
{
    static const char *const words[] = {"in_flight=100", "keys=10000/h", "bytes=1g", "unknown=3"};
    static const uint64_t max[] = {100, 10000, 1u << 30, 3};
    struct hapax__limits limits = {0};
    const char *why;

    for (size_t i = 0; i < 4; i++) {
        enum hapax__limit limit = (enum hapax__limit)(i + 1);
        const char *name = hapax__limit_name(limit);

        assert_true(hapax__limit_parse(&limits, words[i], &why));
        assert_int_equal(limits.max[limit], max[i]);
        assert_memory_equal(words[i], name, strlen(name));
        assert_false(hapax__limit_parse(&limits, words[i], &why)); /* stands twice */
    }
    limits = (struct hapax__limits){0};
    assert_true(hapax__limit_parse(&limits, "unknown=1", &why));
}

/* What is no limit is refused with what would be one, and nothing is set. */
CASE(what_is_no_limit_is_refused)
{
    static const char *const words[] = {
        "",          "keys",     "keys=",     "keys=5",        "keys=5/m",
        "keys=/h",   "bytes=",   "bytes=-1",  "unknown=0",     "in_flight=1x",
        "bytes=0",   "keys=0/h", "keyss=1/h", "in_flight = 1", "in_flight=10000000000000",
        "bytes=5/h", "kays=5/h", "unknowm=1",
    };
    struct hapax__limits limits = {0};
    const struct hapax__limits none = {0};
    const char *why;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        why = NULL;
        assert_false(hapax__limit_parse(&limits, words[i], &why));
        assert_string_equal(why, "in_flight=N, keys=N/h, bytes=SIZE and unknown=N, each once, and "
                                 "1 at least");
        assert_memory_equal(&limits, &none, sizeof(none));
    }
}

/* ---- what counts ------------------------------------------------------------------------- */

static struct hapax__limits limits_of(enum hapax__limit limit, uint64_t max)
{
    struct hapax__limits limits = {.kept_us = DAY_US};

    limits.max[limit] = max;
    return limits;
}

static void expect_over(struct hapax__usage *usage, const struct hapax__limits *limits,
                        int64_t now_us, enum hapax__limit limit, int64_t retry_after_ms)
{
    struct hapax__over over = hapax__usage_judge(usage, limits, true, now_us);

    assert_int_equal(over.limit, limit);
    assert_int_equal(over.retry_after_ms, retry_after_ms);
}

/* In flight counts what began and did not end; it stands against what is known, too. */
CASE(in_flight_is_what_did_not_end)
{
    struct hapax__limits limits = limits_of(HAPAX__LIMIT_IN_FLIGHT, 2);
    struct hapax__usage usage = {0};

    expect_over(&usage, &limits, NOW_US, HAPAX__LIMIT_NONE, 0);
    hapax__usage_begin(&usage, &limits, true, NOW_US);
    expect_over(&usage, &limits, NOW_US, HAPAX__LIMIT_NONE, 0);
    assert_false(hapax__usage_is_empty(&usage, &limits, NOW_US));
    hapax__usage_begin(&usage, &limits, false, NOW_US);
    expect_over(&usage, &limits, NOW_US + DAY_US, HAPAX__LIMIT_IN_FLIGHT, 1000);
    assert_int_equal(hapax__usage_judge(&usage, &limits, false, NOW_US).limit,
                     HAPAX__LIMIT_IN_FLIGHT);
    assert_false(hapax__usage_is_empty(&usage, &limits, NOW_US + 2 * DAY_US));
    hapax__usage_end(&usage);
    expect_over(&usage, &limits, NOW_US, HAPAX__LIMIT_NONE, 0);
}

/* Whatever the hour in which they came: never more new keys within an hour than the limit, and
 * after Retry-After, and not before, there is room. */
CASE(new_keys_count_for_an_hour)
{
    struct hapax__limits limits = limits_of(HAPAX__LIMIT_KEYS, 10);

    for (int64_t begin_us = NOW_US; begin_us < NOW_US + HOUR_US; begin_us += 97 * US_PER_S) {
        struct hapax__usage usage = {0};
        int64_t now_us = begin_us, first_us = begin_us;
        struct hapax__over over;

        for (int i = 0; i < 10; i++, now_us += 60 * US_PER_S) {
            expect_over(&usage, &limits, now_us, HAPAX__LIMIT_NONE, 0);
            hapax__usage_begin(&usage, &limits, true, now_us);
        }
        over = hapax__usage_judge(&usage, &limits, true, now_us);
        assert_int_equal(over.limit, HAPAX__LIMIT_KEYS);
        now_us += over.retry_after_ms * US_PER_MS;
        assert_in_range(now_us - first_us, HOUR_US, HOUR_US + HOUR_US / 15 + 2 * US_PER_S);
        assert_int_equal(hapax__usage_judge(&usage, &limits, true, now_us - US_PER_MS).limit,
                         HAPAX__LIMIT_KEYS);
        expect_over(&usage, &limits, now_us, HAPAX__LIMIT_NONE, 0);
        assert_int_equal(hapax__usage_judge(&usage, &limits, false, now_us - US_PER_MS).limit,
                         HAPAX__LIMIT_NONE); /* one that is known */
    }
}

/* An hour is an hour to its last microsecond, whatever the length of the parts it is counted in. */
CASE(a_key_counts_for_its_whole_hour)
{
    struct hapax__limits limits = limits_of(HAPAX__LIMIT_KEYS, 1);

    for (int64_t part_us = HOUR_US / 15 - 3; part_us <= HOUR_US / 15 + 3; part_us++) {
        struct hapax__usage usage = {0};
        int64_t last_us = 1000 * part_us - 1;

        hapax__usage_begin(&usage, &limits, true, last_us);
        for (int64_t us = 1; us <= 1000; us++) {
            int64_t now_us = last_us + HOUR_US - us;
            struct hapax__usage then = usage;
            struct hapax__over over = hapax__usage_judge(&then, &limits, true, now_us);

            assert_int_equal(over.limit, HAPAX__LIMIT_KEYS);
            assert_in_range(over.retry_after_ms, 1, HOUR_US / 15 / US_PER_MS + 1);
            now_us += over.retry_after_ms * US_PER_MS;
            expect_over(&then, &limits, now_us, HAPAX__LIMIT_NONE, 0);
        }
    }
}

/* A usage whose operations have ended is empty once all has left its windows. */
CASE(what_is_over_no_longer_counts)
{
    struct hapax__limits limits = limits_of(HAPAX__LIMIT_KEYS, 1);
    struct hapax__usage usage = {0};

    assert_true(hapax__usage_is_empty(&usage, &limits, NOW_US));
    hapax__usage_begin(&usage, &limits, true, NOW_US);
    hapax__usage_end(&usage);
    assert_false(hapax__usage_is_empty(&usage, &limits, NOW_US + HOUR_US));
    assert_true(hapax__usage_is_empty(&usage, &limits, NOW_US + 2 * HOUR_US));
    hapax__usage_begin(&usage, &limits, true, NOW_US + 10 * HOUR_US);
    assert_int_equal(hapax__usage_judge(&usage, &limits, true, NOW_US + 10 * HOUR_US).limit,
                     HAPAX__LIMIT_KEYS);
}

static void store(struct hapax__usage *usage, const struct hapax__limits *limits,
                  enum hapax_op_kind kind, enum hapax_verdict verdict, bool as_unknown,
                  int64_t now_us)
{
    struct hapax_op op = {.kind = kind, .verdict = verdict, .as_unknown = as_unknown};

    op.outcome.headers = hapax_str("A: b\r\n");
    op.outcome.body = hapax_str("body");
    hapax__usage_stored(usage, limits, &op, now_us);
}

/* Bytes are headers and body of what was stored: by COMPLETE and FAIL, and only where it was. */
CASE(bytes_are_what_was_stored)
{
    struct hapax__limits limits = limits_of(HAPAX__LIMIT_BYTES, 20);
    struct hapax__usage usage = {0};

    store(&usage, &limits, HAPAX_OP_COMPLETE, HAPAX_OK, false, NOW_US);
    store(&usage, &limits, HAPAX_OP_COMPLETE, HAPAX_LOST, false, NOW_US);
    store(&usage, &limits, HAPAX_OP_RENEW, HAPAX_OK, false, NOW_US);
    expect_over(&usage, &limits, NOW_US, HAPAX__LIMIT_NONE, 0);
    store(&usage, &limits, HAPAX_OP_FAIL, HAPAX_OK, false, NOW_US);
    assert_int_equal(hapax__usage_judge(&usage, &limits, true, NOW_US + DAY_US).limit,
                     HAPAX__LIMIT_BYTES);
    expect_over(&usage, &limits, NOW_US + 2 * DAY_US, HAPAX__LIMIT_NONE, 0);
}

/* Unknown operations count as they are made; where nothing is forgotten no time helps. */
CASE(unknowns_of_ever_end_never)
{
    struct hapax__limits limits = limits_of(HAPAX__LIMIT_UNKNOWN, 1);
    struct hapax__usage usage = {0};

    limits.kept_us = 0;
    store(&usage, &limits, HAPAX_OP_FAIL, HAPAX_OK, false, NOW_US);
    expect_over(&usage, &limits, NOW_US, HAPAX__LIMIT_NONE, 0);
    store(&usage, &limits, HAPAX_OP_FAIL, HAPAX_OK, true, NOW_US);
    expect_over(&usage, &limits, NOW_US + 1000 * DAY_US, HAPAX__LIMIT_UNKNOWN, -1);
}

/* Of several limits the one that lasts longest is told. */
CASE(of_several_limits_the_longest_is_told)
{
    struct hapax__limits limits = {.max = {0, 1, 1, 1, 1}, .kept_us = DAY_US};
    struct hapax__usage usage = {0};

    hapax__usage_begin(&usage, &limits, true, NOW_US);
    assert_int_equal(hapax__usage_judge(&usage, &limits, true, NOW_US).limit, HAPAX__LIMIT_KEYS);
    store(&usage, &limits, HAPAX_OP_FAIL, HAPAX_OK, true, NOW_US);
    assert_int_equal(hapax__usage_judge(&usage, &limits, true, NOW_US).limit, HAPAX__LIMIT_BYTES);
    assert_int_equal(hapax__usage_judge(&usage, &limits, false, NOW_US).limit,
                     HAPAX__LIMIT_IN_FLIGHT);
}

/* With another retention nothing that counted is lost: it counts as if it were of this moment. */
CASE(another_retention_forgets_nothing)
{
    struct hapax__limits limits = limits_of(HAPAX__LIMIT_BYTES, 10);
    struct hapax__usage usage = {0};

    store(&usage, &limits, HAPAX_OP_COMPLETE, HAPAX_OK, false, NOW_US);
    limits.kept_us = 7 * DAY_US;
    assert_int_equal(hapax__usage_judge(&usage, &limits, true, NOW_US).limit, HAPAX__LIMIT_BYTES);
    assert_int_equal(hapax__usage_judge(&usage, &limits, true, NOW_US + 7 * DAY_US).limit,
                     HAPAX__LIMIT_BYTES);
    expect_over(&usage, &limits, NOW_US + 8 * DAY_US, HAPAX__LIMIT_NONE, 0);
}

/* ---- owners ------------------------------------------------------------------------------ */

static struct hapax_digest digest_of(unsigned n)
{
    struct hapax_digest digest = {{0}};

    memcpy(digest.bytes, &n, sizeof(n)); /* by its first bytes it has its place */
    return digest;
}

struct table {
    void *memory;
    struct hapax__owners *owners;
    struct hapax__limits limits;
    unsigned size; /* how many owners it holds */
};

static struct hapax__usage *get(struct table *t, unsigned n)
{
    struct hapax_digest digest = digest_of(n);

    return hapax__owners_get(t->owners, &t->limits, &digest, NOW_US);
}

static struct hapax__usage *find(struct table *t, unsigned n)
{
    struct hapax_digest digest = digest_of(n);

    return hapax__owners_find(t->owners, &digest);
}

static struct hapax__owners_run *run(struct table *t, unsigned n, uint32_t worker)
{
    return hapax__owners_begin(t->owners, get(t, n), &t->limits, true, worker, NOW_US);
}

static void open_table(struct table *t, size_t len)
{
    *t = (struct table){.limits = limits_of(HAPAX__LIMIT_IN_FLIGHT, 1)};
    t->memory = malloc(len);
    assert_non_null(t->memory);
    t->owners = hapax__owners_init(t->memory, len);
    assert_non_null(t->owners);
    while (hapax__owners_known(t->owners) == t->size)
        assert_non_null(get(t, t->size++));
    t->size--; /* the last took the place of another */
    t->owners = hapax__owners_init(t->memory, len);
}

/* Memory for not even one owner is no table. */
CASE(too_little_memory_is_no_table)
{
    static max_align_t memory[64];

    assert_null(hapax__owners_init(memory, 8));
    assert_null(hapax__owners_init(memory, 200));
}

/* Each owner has a usage of its own, which stays where it is; owners of one bucket, too. */
CASE(each_owner_has_its_own_usage)
{
    struct table table, *t = &table;

    open_table(t, MEMORY);
    assert_true(t->size > 50);
    assert_null(find(t, 1));
    for (unsigned i = 0; i < 3; i++)
        get(t, i * t->size)->in_flight = i + 1; /* of one bucket */
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(find(t, i * t->size)->in_flight, i + 1);
        assert_ptr_equal(get(t, i * t->size), find(t, i * t->size));
    }
    assert_int_equal(hapax__owners_known(t->owners), 3);
    free(t->memory);
}

/* A full table forgets who was looked at least recently, and says when that mattered. */
CASE(a_full_table_forgets_the_oldest)
{
    struct table table, *t = &table;

    open_table(t, MEMORY);
    for (unsigned i = 0; i < t->size; i++)
        (void)get(t, i);
    assert_non_null(find(t, 0));
    assert_non_null(get(t, t->size));
    assert_null(find(t, 1));
    assert_non_null(find(t, 0));
    assert_int_equal(hapax__owners_known(t->owners), t->size);
    assert_int_equal(hapax__owners_forgotten(t->owners), 0);
    hapax__owners_end(t->owners, run(t, 2, WORKER));
    for (unsigned i = 1; i < t->size; i++)
        assert_non_null(get(t, 1000 + i));
    assert_non_null(find(t, 2));
    assert_non_null(get(t, 2000));
    assert_non_null(get(t, 2001));
    assert_non_null(get(t, 2002));
    assert_int_equal(hapax__owners_forgotten(t->owners), 0);
    for (unsigned i = 0; i < t->size; i++)
        assert_non_null(get(t, 3000 + i));
    assert_null(find(t, 2));
    assert_int_equal(hapax__owners_forgotten(t->owners), 1);
    for (unsigned i = 0; i < t->size; i++) /* and nobody has what it had used */
        assert_true(hapax__usage_is_empty(find(t, 3000 + i), &t->limits, NOW_US));
    free(t->memory);
}

/* A table of one owner knows the last one. */
CASE(the_smallest_table_has_one_owner)
{
    struct table table, *t = &table;

    open_table(t, 1024);
    assert_int_equal(t->size, 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_non_null(get(t, i));
        assert_non_null(find(t, i));
    }
    assert_int_equal(hapax__owners_known(t->owners), 1);
    free(t->memory);
}

/* Who has operations in flight is not forgotten: a new owner finds no room, until one ends. */
CASE(who_has_operations_in_flight_is_not_forgotten)
{
    struct table table, *t = &table;
    struct hapax__owners_run *runs[256];

    open_table(t, MEMORY);
    assert_in_range(t->size, 65, 256); /* more than are looked at */
    for (unsigned i = 0; i < t->size; i++)
        runs[i] = run(t, i, WORKER);
    assert_null(get(t, 1000));
    hapax__owners_end(t->owners, runs[70]);
    assert_non_null(get(t, 1000));
    assert_null(find(t, 70));
    assert_int_equal(find(t, 69)->in_flight, 1);
    free(t->memory);
}

/* Operations have a limit of their own. What one begins counts for its owner until it ends. */
CASE(operations_in_flight_have_a_limit)
{
    struct table table, *t = &table;
    struct hapax__owners_run *first, *next;
    unsigned n = 1;

    open_table(t, MEMORY);
    first = run(t, 1, WORKER);
    assert_ptr_equal(hapax__owners_usage(first), find(t, 1));
    while ((next = run(t, 1, WORKER)))
        n++;
    assert_int_equal(n, 2 * t->size);
    assert_int_equal(find(t, 1)->in_flight, n);
    hapax__owners_end(t->owners, first);
    assert_int_equal(find(t, 1)->in_flight, n - 1);
    assert_non_null(run(t, 1, WORKER));
    free(t->memory);
}

/* What a worker had in flight ends with it; what others have stays. */
CASE(a_dead_worker_has_nothing_in_flight)
{
    struct table table, *t = &table;

    open_table(t, MEMORY);
    for (unsigned i = 0; i < 10; i++)
        assert_non_null(run(t, i % 2, i < 7 ? WORKER : WORKER + 1));
    hapax__owners_end_all(t->owners, WORKER);
    assert_int_equal(find(t, 0)->in_flight + find(t, 1)->in_flight, 3);
    hapax__owners_end_all(t->owners, WORKER);
    assert_int_equal(find(t, 0)->in_flight + find(t, 1)->in_flight, 3);
    hapax__owners_end_all(t->owners, WORKER + 1);
    assert_int_equal(find(t, 0)->in_flight + find(t, 1)->in_flight, 0);
    free(t->memory);
}
