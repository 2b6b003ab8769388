/* SPDX-License-Identifier: Apache-2.0
 *
 * The lock over real nodes that are killed, stopped, delayed and emptied.
 *
 *     test_redlock          over nodes of its own
 *     test_redlock URI      one node behind a URI that exists (TLS, sentinels)
 */
#include "redlock_bed.h"

#include "../unit/oom.h"
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_US INT64_C(60000000)
#define TTL_MS      60000
#define BATCH       256u

static const char *given_uri;
static int64_t jump_us; /* what the lock's clock gains between its first look and the next */
static bool jumped;

int64_t __wrap_hapax__boot_us(void);
int64_t __real_hapax__boot_us(void);

int64_t __wrap_hapax__boot_us(void)
{
    int64_t now_us = __real_hapax__boot_us() + (jumped ? jump_us : 0);

    jumped = jump_us > 0;
    return now_us;
}

static void names(char *out, size_t size)
{
    static unsigned count;

    (void)snprintf(out, size, "lock-%u", ++count);
}

/* One lock, one try. */
static bool take(struct hapax__redlock *lock, struct hapax__redlock_item *item,
                 enum hapax_error *error)
{
    char text[HAPAX_TEXT_MAX] = "";

    *error = hapax__redlock_take(lock, item, 1, text);
    assert_true(*error == HAPAX_ERR_NONE || *error == HAPAX_ERR_UNAVAILABLE);
    assert_true(*error == HAPAX_ERR_NONE || (!item->taken && text[0] != '\0'));
    assert_true(item->taken == (item->valid_ms > 0));
    assert_true(item->valid_ms <= item->ttl_ms - item->ttl_ms / 100 - 2);
    return item->taken;
}

static bool took(const char *name, const char *value, size_t nodes)
{
    struct hapax__redlock *lock = bed_lock(nodes);
    struct hapax__redlock_item item = bed_item(name, value, TTL_MS);
    enum hapax_error error;
    bool taken = take(lock, &item, &error);

    hapax__redlock_close(lock);
    return taken;
}

/* Waits until true(i) holds. */
static void wait_for(bool (*true_of)(size_t i), size_t i)
{
    int64_t deadline_us = hapax__monotonic_us() + PATIENCE_US;

    while (!true_of(i)) {
        assert_true(hapax__monotonic_us() < deadline_us);
        usleep(1000);
    }
}

/* ---- nodes that are away ------------------------------------------------------------- */

static void away(size_t nodes, size_t count, bool hung)
{
    char name[32];
    struct hapax__redlock *lock = bed_lock(nodes);
    struct hapax__redlock_item item;
    enum hapax_error error;
    bool majority = nodes - count > nodes / 2;
    int64_t begin_us;
    unsigned tries = 0;

    for (size_t i = 0; i < count; i++)
        if (hung)
            bed_stop(i);
        else
            bed_kill(i);
    /* a node of the majority may be slow, too; without a majority nothing is taken, not once */
    do {
        names(name, sizeof(name));
        item = bed_item(name, "mine", TTL_MS);
        begin_us = hapax__monotonic_us();
    } while (!take(lock, &item, &error) && majority && ++tries < 10);
    assert_true(item.taken == majority);
    assert_int_equal(error, majority ? HAPAX_ERR_NONE : HAPAX_ERR_UNAVAILABLE);
    assert_false(item.known);
    assert_true(hapax__monotonic_us() - begin_us < TTL_MS * 1000 / 4);
    for (size_t i = count; i < nodes; i++)
        assert_true(bed_has(i, name, majority ? "mine" : NULL));
    for (size_t i = 0; i < count && hung; i++)
        bed_cont(i);
    hapax__redlock_close(lock);
    bed_start();
}

/* Of 3 and of 5 nodes, 0 to all of them gone: a majority of answers is a lock, less is UNAVAILABLE
 * and leaves nothing behind. */
static void a_majority_is_a_lock_whoever_is_down(void **state)
{
    for (size_t nodes = 1; nodes <= BED_NODES; nodes += 2)
        for (size_t down = 0; down <= nodes; down++)
            away(nodes, down, false);
}

/* The same with nodes that accept and say nothing; and the time it costs is far under the
 * lock's. */
static void a_majority_is_a_lock_whoever_hangs(void **state)
{
    for (size_t nodes = 1; nodes <= BED_NODES; nodes += 2)
        for (size_t hung = 0; hung <= nodes; hung++)
            away(nodes, hung, true);
}

/* A node that hangs costs its patience once, not at every take. */
static void a_node_that_hangs_is_left_out_for_a_while(void **state)
{
    struct hapax__redlock *lock = bed_lock(3);
    int64_t least_us = INT64_MAX;
    enum hapax_error error;
    char name[32];

    bed_stop(0);
    for (unsigned i = 0; i < 6; i++) {
        int64_t begin_us = hapax__monotonic_us(), spent_us;
        struct hapax__redlock_item item;

        names(name, sizeof(name));
        item = bed_item(name, "mine", TTL_MS);
        assert_true(take(lock, &item, &error) || i == 0); /* it may have taken the others' time */
        spent_us = hapax__monotonic_us() - begin_us;
        least_us = spent_us < least_us ? spent_us : least_us;
    }
    bed_cont(0);
    hapax__redlock_close(lock);
    assert_true(least_us < 50000); /* where each had waited: 200 ms, or a node's share of it */
}

/* Nodes that accept and say nothing are connected to within one patience, however many they are. */
static void nodes_that_hang_share_one_patience(void **state)
{
    int64_t least_us = INT64_MAX;

    for (size_t i = 0; i < BED_NODES; i++)
        bed_stop(i);
    for (unsigned i = 0; i < 6; i++) {
        struct hapax__redlock *lock = bed_lock(BED_NODES);
        struct hapax__redlock_item item = bed_item("hung", "mine", TTL_MS);
        int64_t begin_us = hapax__monotonic_us(), spent_us;
        enum hapax_error error;

        assert_false(take(lock, &item, &error));
        spent_us = hapax__monotonic_us() - begin_us;
        least_us = spent_us < least_us ? spent_us : least_us;
        hapax__redlock_close(lock);
    }
    assert_true(least_us < 900000); /* where each had its own: 1 s */
}

/* Slow, but in time, counts. */
static void a_slow_node_counts(void **state)
{
    redisContext *context;
    char name[32];

    names(name, sizeof(name));
    bed_kill(0);
    context = bed_send(1, "DEBUG SLEEP 0.05");
    assert_true(took(name, "mine", 3));
    redisFree(context);
    bed_start();
}

static bool ran_three_scripts(size_t i)
{
    return bed_scripts(i) >= 3;
}

/* A node that had not answered in time carries the lock out later: the release comes behind it. */
static void what_a_node_carries_out_late_is_released(void **state)
{
    struct hapax__redlock *lock;
    struct hapax__redlock_item item;
    enum hapax_error error;
    char name[32], before[32];

    names(name, sizeof(name));
    bed_kill(2);
    bed_start(); /* its scripts are counted from 0 */
    assert_true(took(name, "another", 1)); /* on node 0 alone */
    lock = bed_lock(3);
    names(before, sizeof(before));
    item = bed_item(before, "mine", TTL_MS);
    assert_true(take(lock, &item, &error)); /* so that it is connected */
    bed_kill(1);
    bed_stop(2);
    item = bed_item(name, "mine", TTL_MS);
    assert_false(take(lock, &item, &error));
    assert_int_equal(error, HAPAX_ERR_UNAVAILABLE);
    bed_cont(2);
    wait_for(ran_three_scripts, 2);
    assert_true(bed_has(2, name, NULL));
    assert_true(bed_has(0, name, "another"));
    hapax__redlock_close(lock);
    bed_start();
}

/* ---- who holds it -------------------------------------------------------------------- */

/* Another's lock is not taken, is named, and stands; what was taken on the other nodes is given
 * back. */
static void a_value_of_another_is_told_and_stands(void **state)
{
    struct hapax__redlock *lock = bed_lock(5);
    struct hapax__redlock_item item;
    enum hapax_error error;
    char name[32];

    names(name, sizeof(name));
    assert_true(took(name, "another", 3)); /* on nodes 0 to 2 */
    item = bed_item(name, "mine", TTL_MS);
    assert_false(take(lock, &item, &error));
    assert_int_equal(error, HAPAX_ERR_NONE);
    assert_true(item.known);
    assert_int_equal(item.other.len, strlen("another"));
    assert_memory_equal(item.other.ptr, "another", item.other.len);
    for (size_t i = 0; i < 5; i++)
        assert_true(bed_has(i, name, i < 3 ? "another" : NULL));
    hapax__redlock_close(lock);
}

/* With a minority of nodes another has nothing. */
static void a_minority_of_another_is_outvoted(void **state)
{
    char name[32];

    names(name, sizeof(name));
    assert_true(took(name, "another", 1));
    assert_true(took(name, "mine", 3));
    assert_true(bed_has(0, name, "another"));
}

/* A take whose answer was lost is repeated: the lock is one's own, for the whole time again. */
static void a_repeat_with_the_same_value_takes_it_again(void **state)
{
    struct hapax__redlock *lock = bed_lock(3);
    struct hapax__redlock_item item;
    enum hapax_error error;
    char name[32];

    names(name, sizeof(name));
    item = bed_item(name, "mine", TTL_MS / 2);
    assert_true(take(lock, &item, &error));
    item.ttl_ms = TTL_MS;
    assert_true(take(lock, &item, &error));
    for (size_t i = 0; i < 3; i++) {
        redisReply *reply = bed_ask(i, "PTTL hapax:%s", name);

        assert_true(reply->integer > TTL_MS / 2);
        freeReplyObject(reply);
    }
    hapax__redlock_close(lock);
}

/* Nobody gets it before its holder's time is over, and somebody does after. */
static void it_runs_out_and_not_before(void **state)
{
    struct hapax__redlock *first = bed_lock(3), *second = bed_lock(3);
    int64_t begin_us = hapax__boot_us(), deadline_us = hapax__monotonic_us() + PATIENCE_US;
    struct hapax__redlock_item mine, theirs;
    enum hapax_error error;
    char name[32];

    names(name, sizeof(name));
    mine = bed_item(name, "mine", 3000);
    theirs = bed_item(name, "theirs", TTL_MS);
    assert_true(take(first, &mine, &error));
    while (!take(second, &theirs, &error))
        assert_true(hapax__monotonic_us() < deadline_us);
    assert_true(hapax__boot_us() - begin_us >= mine.valid_ms * 1000);
    hapax__redlock_close(first);
    hapax__redlock_close(second);
}

/* The process was stopped between asking and answer for as long as the lock lasts: not taken, and
 * the nodes, whose clocks may be slower, are told. */
static void a_late_majority_is_released(void **state)
{
    struct hapax__redlock *lock = bed_lock(3);
    struct hapax__redlock_item items[2];
    char text[HAPAX_TEXT_MAX], names_of[2][32];

    for (unsigned i = 0; i < 2; i++)
        names(names_of[i], sizeof(names_of[i]));
    items[0] = bed_item(names_of[0], "mine", TTL_MS);
    items[1] = bed_item(names_of[1], "mine", TTL_MS * 10); /* this one is still good */
    jump_us = TTL_MS * INT64_C(990);
    assert_int_equal(hapax__redlock_take(lock, items, 2, text), HAPAX_ERR_NONE);
    jump_us = 0;
    assert_false(items[0].taken);
    assert_int_equal(items[0].valid_ms, 0);
    assert_true(items[1].taken);
    assert_true(items[1].valid_ms < TTL_MS * 9);
    for (size_t i = 0; i < 3; i++) {
        assert_true(bed_has(i, names_of[0], NULL));
        assert_true(bed_has(i, names_of[1], "mine"));
    }
    hapax__redlock_close(lock);
}

/* Who comes late with a release does not free what another holds by now. */
static void a_release_deletes_only_its_own(void **state)
{
    struct hapax__redlock *lock = bed_lock(3);
    struct hapax__redlock_item items[2];
    char names_of[2][32];

    for (unsigned i = 0; i < 2; i++)
        names(names_of[i], sizeof(names_of[i]));
    assert_true(took(names_of[0], "another", 3));
    assert_true(took(names_of[1], "mine", 3));
    items[0] = bed_item(names_of[0], "mine", TTL_MS);
    items[1] = bed_item(names_of[1], "mine", TTL_MS);
    hapax__redlock_release(lock, items, 2);
    for (size_t i = 0; i < 3; i++) {
        assert_true(bed_has(i, names_of[0], "another"));
        assert_true(bed_has(i, names_of[1], NULL));
    }
    hapax__redlock_release(lock, items, 2); /* it may come twice */
    hapax__redlock_close(lock);
}

/* Each lock of a batch for itself, in one script per node. */
static void a_batch_of_256_is_one_question_to_each_node(void **state)
{
    static char names_of[BATCH][32];
    static struct hapax__redlock_item items[BATCH], odd[BATCH / 2];
    struct hapax__redlock *mine = bed_lock(3), *theirs = bed_lock(3);
    char text[HAPAX_TEXT_MAX];
    long long before;

    for (size_t i = 0; i < BATCH; i++) {
        names(names_of[i], sizeof(names_of[i]));
        items[i] = bed_item(names_of[i], "mine", TTL_MS);
        odd[i / 2] = bed_item(names_of[i], "theirs", TTL_MS); /* the odd ones stay */
    }
    assert_int_equal(hapax__redlock_take(theirs, odd, BATCH / 2, text), HAPAX_ERR_NONE);
    before = bed_scripts(0);
    assert_int_equal(hapax__redlock_take(mine, items, BATCH, text), HAPAX_ERR_NONE);
    assert_int_equal(bed_scripts(0), before + 1); /* nothing of ours stands there, so no release */
    for (size_t i = 0; i < BATCH; i++) {
        assert_true(items[i].taken == (i % 2 == 0));
        assert_true(items[i].known == (i % 2 == 1));
    }
    hapax__redlock_release(mine, items, BATCH);
    for (size_t i = 0; i < BATCH; i++)
        assert_true(bed_has(i % 3, names_of[i], i % 2 == 0 ? NULL : "theirs"));
    hapax__redlock_close(mine);
    hapax__redlock_close(theirs);
}

/* What is not promised (docs/stores.md, "Redlock"): a node that forgets, here one that restarts
 * without a log, gives its vote twice, and two hold the lock at once. */
static void a_node_that_forgets_makes_two_holders_possible(void **state)
{
    struct hapax__redlock *first = bed_lock(3), *second = bed_lock(3);
    struct hapax__redlock_item mine, theirs;
    enum hapax_error error;
    char name[32];

    names(name, sizeof(name));
    mine = bed_item(name, "mine", TTL_MS);
    theirs = bed_item(name, "theirs", TTL_MS);
    bed_kill(2);
    assert_true(take(first, &mine, &error)); /* on nodes 0 and 1 */
    bed_kill(1);
    bed_start();
    assert_true(take(second, &theirs, &error)); /* on nodes 1 and 2 */
    assert_true(bed_has(0, name, "mine"));
    hapax__redlock_close(first);
    hapax__redlock_close(second);
}

/* ---- nodes that say nonsense, memory, URIs ------------------------------------------- */

/* A key that is no lock is an error of that node alone. */
static void a_node_that_refuses_does_not_count(void **state)
{
    struct hapax__redlock *lock = bed_lock(3);
    struct hapax__redlock_item item;
    enum hapax_error error;
    char name[32];

    names(name, sizeof(name));
    freeReplyObject(bed_ask(0, "RPUSH hapax:%s x", name));
    item = bed_item(name, "mine", TTL_MS);
    assert_true(take(lock, &item, &error));
    freeReplyObject(bed_ask(1, "DEL hapax:%s", name));
    freeReplyObject(bed_ask(1, "RPUSH hapax:%s x", name));
    assert_false(take(lock, &item, &error));
    assert_int_equal(error, HAPAX_ERR_UNAVAILABLE);
    assert_true(bed_has(2, name, NULL));
    hapax__redlock_close(lock);
}

/* Whatever allocation fails: no crash, no leak (where a sanitizer looks), and nothing is taken
 * unless the caller is told so. */
static void without_memory_nothing_is_lost(void **state)
{
    for (uint64_t n = 1;; n++) {
        const char *uri = bed_nodes[0].uri;
        struct hapax__redlock *lock;
        struct hapax__redlock_item item;
        char text[HAPAX_TEXT_MAX], name[32];
        enum hapax_error error;

        names(name, sizeof(name));
        item = bed_item(name, "mine", TTL_MS);
        oom_fail_at(n, false);
        error = hapax__redlock_open(&lock, &uri, 1, text);
        if (error == HAPAX_ERR_NONE) {
            error = hapax__redlock_take(lock, &item, 1, text);
            assert_true(item.taken == (error == HAPAX_ERR_NONE));
            hapax__redlock_release(lock, &item, 1);
            hapax__redlock_close(lock);
        }
        if (oom_count() < n) {
            assert_int_equal(error, HAPAX_ERR_NONE);
            break;
        }
    }
    oom_fail_at(0, false);
}

/* What is no set of independent nodes is refused before anything is connected. */
static void uris_that_are_no_independent_nodes_are_refused(void **state)
{
    static const struct {
        const char *uris[3];
        size_t count;
        const char *why;
    } cases[] = {
        {{"redis://a"}, 0, "an odd number of nodes"},
        {{"redis://a", "redis://b"}, 2, "an odd number of nodes"},
        {{"redis://a", "redis://b", "redis://a:6379"}, 3, "nodes 1 and 3 of the lock are the same"},
        {{"redis://a", "redis://a/1", "redis://b"}, 3, "are the same"},
        {{"redis://a", "redis://b", "redis+cluster://c"}, 3, "node 3 of the lock is a cluster"},
        {{"redis://a", "redis://b?wait=1", "redis://c"}, 3, "node 2 of the lock has \"wait\""},
        {{"redis://a", "redis://b?prefix=x:", "redis://c"}, 3, "differ in \"prefix\""},
        {{"redis://a", "http://b", "redis://c"}, 3, ""},
        {{"redis+sentinel://a/m", "redis+sentinel://a/m", "redis://c"}, 3, "are the same"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[HAPAX_TEXT_MAX] = "";
        struct hapax__redlock *lock = (struct hapax__redlock *)text;

        assert_int_not_equal(hapax__redlock_open(&lock, cases[i].uris, cases[i].count, text),
                             HAPAX_ERR_NONE);
        assert_null(lock);
        assert_non_null(strstr(text, cases[i].why));
    }
}

/* ---- a URI that was given ------------------------------------------------------------ */

/* By TLS or by sentinels: taken, told, released. */
static void a_lock_behind_this_uri_works(void **state)
{
    struct hapax__redlock *first, *second;
    struct hapax__redlock_item mine = bed_item("a", "mine", TTL_MS);
    struct hapax__redlock_item theirs = bed_item("a", "theirs", TTL_MS);
    int64_t deadline_us = hapax__monotonic_us() + PATIENCE_US;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    assert_int_equal(hapax__redlock_open(&first, &given_uri, 1, text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__redlock_open(&second, &given_uri, 1, text), HAPAX_ERR_NONE);
    while (!take(first, &mine, &error)) /* connecting may pass its patience on a busy machine */
        assert_true(hapax__monotonic_us() < deadline_us);
    do {
        assert_false(take(second, &theirs, &error));
        assert_true(hapax__monotonic_us() < deadline_us);
    } while (error != HAPAX_ERR_NONE);
    assert_true(theirs.known);
    hapax__redlock_release(first, &mine, 1);
    while (!take(second, &theirs, &error))
        assert_true(hapax__monotonic_us() < deadline_us);
    hapax__redlock_close(first);
    hapax__redlock_close(second);
}

static int group_begin(void **state)
{
    bed_start();
    return 0;
}

/* Whatever the last case has left: each begins with all nodes running. */
static int case_begin(void **state)
{
    for (size_t i = 0; i < BED_NODES; i++)
        if (bed_nodes[i].pid > 0)
            bed_cont(i);
    bed_start();
    jump_us = 0;
    return 0;
}

static int group_end(void **state)
{
    bed_end();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest given[] = {cmocka_unit_test(a_lock_behind_this_uri_works)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_majority_is_a_lock_whoever_is_down, case_begin),
        cmocka_unit_test_setup(a_majority_is_a_lock_whoever_hangs, case_begin),
        cmocka_unit_test_setup(a_node_that_hangs_is_left_out_for_a_while, case_begin),
        cmocka_unit_test_setup(nodes_that_hang_share_one_patience, case_begin),
        cmocka_unit_test_setup(a_slow_node_counts, case_begin),
        cmocka_unit_test_setup(what_a_node_carries_out_late_is_released, case_begin),
        cmocka_unit_test_setup(a_value_of_another_is_told_and_stands, case_begin),
        cmocka_unit_test_setup(a_minority_of_another_is_outvoted, case_begin),
        cmocka_unit_test_setup(a_repeat_with_the_same_value_takes_it_again, case_begin),
        cmocka_unit_test_setup(it_runs_out_and_not_before, case_begin),
        cmocka_unit_test_setup(a_late_majority_is_released, case_begin),
        cmocka_unit_test_setup(a_release_deletes_only_its_own, case_begin),
        cmocka_unit_test_setup(a_batch_of_256_is_one_question_to_each_node, case_begin),
        cmocka_unit_test_setup(a_node_that_forgets_makes_two_holders_possible, case_begin),
        cmocka_unit_test_setup(a_node_that_refuses_does_not_count, case_begin),
        cmocka_unit_test_setup(without_memory_nothing_is_lost, case_begin),
        cmocka_unit_test_setup(uris_that_are_no_independent_nodes_are_refused, case_begin),
    };

    if (argc > 1) {
        given_uri = argv[1];
        return cmocka_run_group_tests(given, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, group_begin, group_end);
}
