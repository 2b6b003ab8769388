/* SPDX-License-Identifier: Apache-2.0
 *
 * Routes to Redis processes that the test plays itself: which commands go to which node, in which
 * order and how often, and the result of a call whose reply was lost.
 */
#include "redis_play.h"
#include "store/redis/cluster.h"
#include "store/redis/route.h"

#include "../cases.h"
#include "../unit/oom.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAYS   4u
#define CALLS   8u
#define LATE_US 20000000 /* more than any run here may be over its timeout, on a busy machine */

static const struct hapax__redis_script script = {"return 1",
                                                  "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"};
#define SHA "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db "

#define NOSCRIPT "-NOSCRIPT No matching script.\r\n"

struct bed {
    struct play plays[PLAYS];
    struct hapax__redis_uri uri;
    struct hapax__redis_route *route;
    struct hapax__redis_call calls[CALLS];
    struct hapax_span args[CALLS][4];
    char texts[16][400]; /* replies and redirections with ports in them */
    size_t text_count;
    char text[HAPAX_TEXT_MAX];
};

/* ---- the bed ------------------------------------------------------------------------- */

static void open_route(struct bed *bed)
{
    assert_int_equal(hapax__redis_route_open(&bed->route, &bed->uri, bed->text), HAPAX_ERR_NONE);
}

static int bed_close(void **state)
{
    struct bed *bed = *state;

    if (!bed)
        return 0;
    hapax__redis_route_close(bed->route);
    for (size_t k = 0; k < PLAYS; k++)
        play_close(&bed->plays[k]);
    free(bed);
    *state = NULL;
    return 0;
}

/* The hosts of the URI are the first plays. Closes the test's bed of before, if there is one. */
static struct bed *bed_open(void **state, enum hapax__redis_kind kind, size_t hosts)
{
    struct bed *bed = calloc(1, sizeof(*bed));

    bed_close(state);
    assert_non_null(bed);
    *state = bed;
    for (size_t k = 0; k < PLAYS; k++)
        play_open(&bed->plays[k]);
    bed->uri.kind = kind;
    bed->uri.timeout_ms = 30000;
    bed->uri.host_count = hosts;
    snprintf(bed->uri.master, sizeof(bed->uri.master), "mymaster");
    for (size_t k = 0; k < hosts; k++) {
        snprintf(bed->uri.hosts[k].host, sizeof(bed->uri.hosts[k].host), "127.0.0.1");
        bed->uri.hosts[k].port = bed->plays[k].port;
    }
    open_route(bed);
    return bed;
}

/* Opens the route again, with another timeout and another `wait`. */
static void reopen(struct bed *bed, int64_t timeout_ms, uint32_t wait)
{
    hapax__redis_route_close(bed->route);
    bed->uri.timeout_ms = timeout_ms;
    bed->uri.wait = wait;
    open_route(bed);
}

static void rule(struct bed *bed, size_t k, const char *command, const char *reply, int times)
{
    play_rule(&bed->plays[k], command, reply, times);
}

static const char *say(struct bed *bed, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static const char *say(struct bed *bed, const char *format, ...)
{
    char *text = bed->texts[bed->text_count++ % 16];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(bed->texts[0]), format, args);
    va_end(args);
    return text;
}

/* Call i: a script on a key, with the key and a word as its arguments. */
static void with_key(struct bed *bed, size_t i, const char *key, const char *word)
{
    bed->args[i][0] = hapax_str("1");
    bed->args[i][1] = (struct hapax_span){(const uint8_t *)key, strcspn(key, " ")};
    bed->args[i][2] = (struct hapax_span){(const uint8_t *)word, strcspn(word, ";")};
    bed->calls[i] = (struct hapax__redis_call){
        .script = &script, .args = bed->args[i], .argc = 3, .key = bed->args[i][1]};
}

/* The calls from 0 on: "KEY WORD;KEY WORD…". */
static void keys(struct bed *bed, const char *words)
{
    for (size_t i = 0; words; i++) {
        with_key(bed, i, words, strchr(words, ' ') + 1);
        words = strchr(words, ';');
        words = words ? words + 1 : NULL;
    }
}

static void plain(struct bed *bed, size_t i, const char *word, size_t node)
{
    bed->args[i][0] = hapax_str(word);
    bed->calls[i] = (struct hapax__redis_call){.args = bed->args[i], .argc = 1, .node = node};
}

static enum hapax_error run(struct bed *bed, size_t n, bool wait)
{
    int64_t before_us = hapax__monotonic_us();
    enum hapax_error error = hapax__redis_route_run(bed->route, bed->calls, n, wait, bed->text);

    assert_true(hapax__monotonic_us() - before_us < bed->uri.timeout_ms * 1000 + LATE_US);
    return error;
}

static void expect_log(struct bed *bed, size_t k, const char *expected)
{
    assert_string_equal(play_log(&bed->plays[k]), expected);
}

static void expect_reply(const struct bed *bed, size_t i, const char *status)
{
    assert_int_equal(bed->calls[i].error, HAPAX_ERR_NONE);
    assert_non_null(bed->calls[i].reply);
    assert_string_equal(bed->calls[i].reply->str, status);
}

static void expect_error(const struct bed *bed, size_t i, enum hapax_error error)
{
    assert_int_equal(bed->calls[i].error, error);
    assert_null(bed->calls[i].reply);
}

/* Runs as many calls as there are results: o (+OK), ? (INDETERMINATE), - (UNAVAILABLE), !
 * (REFUSED). The run's own error is the first of theirs. */
static void expect_run(struct bed *bed, const char *results)
{
    enum hapax_error error = run(bed, strlen(results), false), first = HAPAX_ERR_NONE;

    for (size_t i = 0; results[i]; i++) {
        enum hapax_error expected = results[i] == '?'   ? HAPAX_ERR_INDETERMINATE
                                    : results[i] == '-' ? HAPAX_ERR_UNAVAILABLE
                                    : results[i] == '!' ? HAPAX_ERR_REFUSED
                                                        : HAPAX_ERR_NONE;

        if (expected == HAPAX_ERR_NONE)
            expect_reply(bed, i, "OK");
        else
            expect_error(bed, i, expected);
        first = first == HAPAX_ERR_NONE ? expected : first;
    }
    assert_int_equal(error, first);
}

/* Primary `node` is plays[k]. */
static void expect_name(struct bed *bed, size_t node, size_t k)
{
    assert_string_equal(hapax__redis_route_name(bed->route, node),
                        say(bed, "127.0.0.1:%u", (unsigned)bed->plays[k].port));
}

/* A run that leaves a link which has worked. */
static void warm(struct bed *bed, const char *key)
{
    with_key(bed, 0, key, "warm");
    expect_run(bed, "o");
    for (size_t k = 0; k < PLAYS; k++)
        play_log(&bed->plays[k]);
}

static size_t count_of(const char *log, const char *word)
{
    size_t times = 0;

    for (; (log = strstr(log, word)) != NULL; log++)
        times++;
    return times;
}

/* ---- one node ------------------------------------------------------------------------ */

/* The slot is that of the cluster specification, hash tags included. */
CASE_WITH(slots_are_those_of_the_specification, NULL, bed_close)
{
    assert_int_equal(hapax__redis_slot(hapax_str("123456789")), 0x31C3);
    assert_int_equal(hapax__redis_slot(hapax_str("")), 0);
    assert_int_equal(hapax__redis_slot(hapax_str("foo")), 12182);
    assert_int_equal(hapax__redis_slot(hapax_str("bar")), 5061);
    assert_int_equal(hapax__redis_slot(hapax_str("{foo}.a")), 12182);
    assert_int_equal(hapax__redis_slot(hapax_str("x{foo}{bar}")), 12182);
    assert_int_equal(hapax__redis_slot(hapax_str("foo{}")), hapax__redis_slot(hapax_str("foo{}")));
    assert_int_not_equal(hapax__redis_slot(hapax_str("{}foo")), 12182);
    assert_int_equal(hapax__redis_slot(hapax_str("{{foo}}")), hapax__redis_slot(hapax_str("{foo")));
    assert_int_not_equal(hapax__redis_slot(hapax_str("foo}")), 12182);
}

/* A script that is missing is loaded once, ahead of all calls that need it. */
CASE_WITH(a_missing_script_is_loaded, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    rule(bed, 0, SHA, NOSCRIPT, 2);
    keys(bed, "a 1;b 2");
    expect_run(bed, "oo");
    assert_string_equal(bed->text, "");
    expect_log(bed, 0, SHA "1 a 1;" SHA "1 b 2;SCRIPT LOAD return 1;" SHA "1 a 1;" SHA "1 b 2;");
}

/* Where a login may not load scripts, the call goes with the script's text; and not for ever. */
CASE_WITH(a_script_that_cannot_be_loaded_goes_along, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    rule(bed, 0, SHA, NOSCRIPT, 0);
    rule(bed, 0, "SCRIPT", "-NOPERM no\r\n", 0);
    rule(bed, 0, "EVAL ", "+EVAL\r\n", 1);
    rule(bed, 0, "EVAL ", "-NOSCRIPT from within\r\n", 1);
    keys(bed, "a 1");
    assert_int_equal(run(bed, 1, false), HAPAX_ERR_NONE);
    expect_reply(bed, 0, "EVAL");
    expect_log(bed, 0, SHA "1 a 1;SCRIPT LOAD return 1;" SHA "1 a 1;EVAL return 1 1 a 1;");
    expect_run(bed, "-");
}

/* A server that was restarted between two runs costs nothing but a reconnection, `once` or not. */
CASE_WITH(a_link_that_went_stale_is_replaced_unseen, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    rule(bed, 0, SHA, "+OK\r\n" CUT, 1);
    keys(bed, "a 1");
    expect_run(bed, "o");
    play_wait_left(&bed->plays[0], 1);
    play_log(&bed->plays[0]);
    bed->calls[0].once = true;
    expect_run(bed, "o");
    expect_log(bed, 0, SHA "1 a 1;");
    assert_int_equal(play_met(&bed->plays[0]), 2);
}

/* A lost reply on a link that had worked before: repeated, but never where it says `once`. */
CASE_WITH(a_lost_reply_is_asked_for_again_unless_once, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    warm(bed, "a");
    rule(bed, 0, SHA, "$100\r\nhalf a re" CUT, 1);
    keys(bed, "a 1;b 2");
    bed->calls[1].once = true;
    expect_run(bed, "o?");
    assert_non_null(strstr(bed->text, "127.0.0.1:"));
    expect_log(bed, 0, SHA "1 a 1;" SHA "1 a 1;");
}

/* Wherever a pipeline breaks off: what was answered stays so, all behind it is not known. */
CASE_WITH(a_pipeline_may_break_off_anywhere, NULL, bed_close)
{
    static const char *const words[] = {SHA "1 a 1", SHA "1 b 2", SHA "1 c 3"};

    for (size_t cut = 0; cut < 3; cut++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

        rule(bed, 0, words[cut], CUT, 0);
        keys(bed, "a 1;b 2;c 3");
        assert_int_equal(run(bed, 3, false), HAPAX_ERR_INDETERMINATE);
        for (size_t i = 0; i < 3; i++) {
            if (i < cut)
                expect_reply(bed, i, "OK");
            else
                expect_error(bed, i, HAPAX_ERR_INDETERMINATE);
        }
        /* The link was new: a server that dies of a call is not fed it twice. */
        assert_int_equal(play_met(&bed->plays[0]), 1);
    }
}

/* Once a try may have been carried out, no later refusal says that it was not. */
CASE_WITH(a_refused_repeat_does_not_undo_the_first_try, NULL, bed_close)
{
    static const char *const refusals[] = {"-LOADING Redis is loading\r\n", "-OOM no\r\n",
                                           "-NOPERM no\r\n", "-MOVED 1 127.0.0.1:1\r\n"};

    for (size_t k = 0; k < sizeof(refusals) / sizeof(refusals[0]); k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

        warm(bed, "a");
        rule(bed, 0, SHA, CUT, 1);
        rule(bed, 0, SHA, refusals[k], 0);
        expect_run(bed, "?");
        expect_log(bed, 0, SHA "1 a warm;" SHA "1 a warm;");
    }
}

/* Nobody there: surely not carried out, and not asked again for a moment. */
CASE_WITH(nobody_there_is_unavailable, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);
    int64_t before_us;

    rule(bed, 0, "PING", CUT, 0);
    before_us = hapax__monotonic_us();
    keys(bed, "a 1");
    for (int k = 0; k < 50; k++) {
        expect_run(bed, "-");
        assert_non_null(strstr(bed->text, "127.0.0.1:"));
    }
    assert_true(play_met(&bed->plays[0]) <= 1 + (hapax__monotonic_us() - before_us) / 50000);
    play_die(&bed->plays[0]);
    expect_run(bed, "-");
}

/* No answer in time: not known, and the run ends with its timeout. */
CASE_WITH(no_answer_is_indeterminate_in_time, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    reopen(bed, 2000, 0); /* within which it is sent */
    rule(bed, 0, SHA, HANG, 0);
    keys(bed, "a 1");
    expect_run(bed, "?");
}

/* A command that Redis refuses before it begins was not carried out; an error from inside a
 * script may come after a write. The link is kept, but where another node may be the primary under
 * this name by now. */
CASE_WITH(error_replies_are_told_apart, NULL, bed_close)
{
    static const struct {
        const char *reply;
        enum hapax_error error;
        bool moved;
    } cases[] = {
        {"-OOM command not allowed when used memory > 'maxmemory'.\r\n", HAPAX_ERR_UNAVAILABLE,
         false},
        {"-LOADING Redis is loading the dataset in memory\r\n", HAPAX_ERR_UNAVAILABLE, true},
        {"-BUSY Redis is busy running a script.\r\n", HAPAX_ERR_UNAVAILABLE, false},
        {"-READONLY You can't write against a read only replica.\r\n", HAPAX_ERR_UNAVAILABLE, true},
        {"-MASTERDOWN Link with MASTER is down\r\n", HAPAX_ERR_UNAVAILABLE, true},
        {"-MISCONF Errors writing to the AOF file\r\n", HAPAX_ERR_UNAVAILABLE, false},
        {"-NOREPLICAS Not enough good replicas to write.\r\n", HAPAX_ERR_UNAVAILABLE, false},
        {"-CLUSTERDOWN Hash slot not served\r\n", HAPAX_ERR_UNAVAILABLE, true},
        {"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", HAPAX_ERR_UNAVAILABLE,
         false},
        {"-MOVED 1 127.0.0.1:1\r\n", HAPAX_ERR_UNAVAILABLE, false},
        {"-ERR max number of clients reached\r\n", HAPAX_ERR_UNAVAILABLE, false},
        {"-NOAUTH Authentication required.\r\n", HAPAX_ERR_REFUSED, false},
        {"-NOPERM this user has no permissions to run the 'evalsha' command\r\n", HAPAX_ERR_REFUSED,
         false},
        {"-NOPERM no permissions script: e0e1, on @user_script:1.\r\n", HAPAX_ERR_INDETERMINATE,
         false},
        {"-ERR user_script:1: no\r\n", HAPAX_ERR_INDETERMINATE, false},
        {"-LOADINGS of it\r\n", HAPAX_ERR_INDETERMINATE, false},
        {"-\r\n", HAPAX_ERR_INDETERMINATE, false},
    };

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

        rule(bed, 0, SHA, cases[k].reply, 1);
        keys(bed, "a 1");
        assert_int_equal(run(bed, 1, false), cases[k].error);
        expect_error(bed, 0, cases[k].error);
        expect_log(bed, 0, SHA "1 a 1;");
        expect_run(bed, "o");
        assert_int_equal(play_met(&bed->plays[0]), cases[k].moved ? 2 : 1);
    }
}

/* Redis' words are passed on, what it repeats of a command is not. */
CASE_WITH(a_text_repeats_no_arguments, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    rule(bed, 0, SHA, "-ERR unknown command 'EVALSHA', with args beginning with: 'secret'\r\n", 0);
    keys(bed, "a secret");
    expect_run(bed, "?");
    assert_non_null(strstr(bed->text, "ERR unknown command 'EVALSHA'"));
    assert_null(strstr(bed->text, "secret"));
}

/* A plain command's own errors are the caller's to read; those of the node's state are not. */
CASE_WITH(a_plain_command_s_own_error_is_its_reply, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    rule(bed, 0, "CONFIG", "-ERR unknown command\r\n", 0);
    rule(bed, 0, "INFO", "-NOPERM no\r\n", 0);
    plain(bed, 0, "CONFIG", 0);
    plain(bed, 1, "INFO", 0);
    assert_int_equal(run(bed, 2, false), HAPAX_ERR_REFUSED);
    assert_int_equal(bed->calls[0].error, HAPAX_ERR_NONE);
    assert_int_equal(bed->calls[0].reply->type, HAPAX__RESP_ERROR);
    expect_error(bed, 1, HAPAX_ERR_REFUSED);
}

/* A call on a key waits for the one before it, and is not sent where that one failed. */
CASE_WITH(calls_on_one_key_keep_their_order, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    rule(bed, 0, SHA "1 a 1", NOSCRIPT, 1);
    keys(bed, "a 1;a 2");
    expect_run(bed, "oo");
    expect_log(bed, 0, SHA "1 a 1;SCRIPT LOAD return 1;" SHA "1 a 1;" SHA "1 a 2;");
    play_forget(&bed->plays[0]);
    rule(bed, 0, SHA "1 a 1", "-OOM no\r\n", 1);
    with_key(bed, 2, "a", "3");
    assert_int_equal(run(bed, 3, false), HAPAX_ERR_UNAVAILABLE);
    expect_error(bed, 1, HAPAX_ERR_UNAVAILABLE);
    expect_error(bed, 2, HAPAX_ERR_UNAVAILABLE);
    expect_log(bed, 0, SHA "1 a 1;");
}

/* ---- replicas ------------------------------------------------------------------------ */

/* WAIT follows once, on the same link, within what is left; its answer counts for each call. */
CASE_WITH(wait_follows_the_calls, NULL, bed_close)
{
    static const struct {
        const char *reply;
        bool replicated;
    } cases[] = {{":2\r\n", true},
                 {":1\r\n", false},
                 {"-ERR WAIT cannot be used with replica instances\r\n", false},
                 {CUT, false}};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);
        const char *log;
        long limit;

        reopen(bed, 30000, 2);
        rule(bed, 0, "WAIT", cases[k].reply, 0);
        keys(bed, "a 1;b 2");
        assert_int_equal(run(bed, 2, true), HAPAX_ERR_NONE);
        for (size_t i = 0; i < 2; i++) {
            expect_reply(bed, i, "OK");
            assert_int_equal(bed->calls[i].replicated, cases[k].replicated);
        }
        assert_int_equal(bed->text[0] == '\0', cases[k].replicated);
        log = play_log(&bed->plays[0]);
        assert_memory_equal(log, SHA "1 a 1;" SHA "1 b 2;WAIT 2 ",
                            strlen(SHA "1 a 1;" SHA "1 b 2;WAIT 2 "));
        limit = strtol(strrchr(log, ' '), NULL, 10);
        assert_true(limit > 0 && limit < bed->uri.timeout_ms);
        /* Without wait nothing waits, and nothing is known to be replicated. */
        expect_run(bed, "o");
        assert_false(bed->calls[0].replicated);
        expect_log(bed, 0, SHA "1 a 1;");
    }
}

/* Where no call was carried out, WAIT has nothing to wait for: missing replicas delay no script. */
CASE_WITH(a_wait_for_nothing_holds_back_no_script, NULL, bed_close)
{
    int64_t before_us = hapax__monotonic_us();
    struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);

    reopen(bed, 30000, 1);
    rule(bed, 0, SHA, NOSCRIPT, 1);
    rule(bed, 0, "WAIT", HANG, 1);
    rule(bed, 0, "WAIT", ":0\r\n", 0);
    keys(bed, "a 1");
    bed->calls[0].once = true;
    assert_int_equal(run(bed, 1, true), HAPAX_ERR_NONE);
    assert_true(hapax__monotonic_us() - before_us < bed->uri.timeout_ms * 1000);
    expect_reply(bed, 0, "OK");
    assert_false(bed->calls[0].replicated);
    assert_int_equal(count_of(play_log(&bed->plays[0]), "SCRIPT LOAD"), 1);
    /* Where the answer is there at once, the link is kept. */
    play_forget(&bed->plays[0]);
    rule(bed, 0, SHA, NOSCRIPT, 1);
    rule(bed, 0, "WAIT", ":1\r\n", 0);
    assert_int_equal(run(bed, 1, true), HAPAX_ERR_NONE);
    assert_true(bed->calls[0].replicated);
    assert_string_equal(bed->text, "");
    assert_int_equal(play_met(&bed->plays[0]), 2);
}

/* Redis reads its clock ten times a second: the limit of WAIT leaves room for that, and for the
 * way back. */
CASE_WITH(a_wait_ends_before_the_run_does, NULL, bed_close)
{
    static const struct {
        int64_t timeout_ms;
        long limit_max;
    } cases[] = {{100, 50}, {500, 350}, {2000, 1800}, {30000, 27000}};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_NODE, 1);
        const char *word = NULL;
        long limit;

        reopen(bed, cases[k].timeout_ms, 1);
        keys(bed, "a 1");
        for (unsigned tries = 0; !word && tries < 500;
             tries++) { /* a run may be over before it comes to that */
            (void)run(bed, 1, true);
            word = strstr(play_log(&bed->plays[0]), "WAIT 1 ");
        }
        assert_non_null(word);
        limit = strtol(word + strlen("WAIT 1 "), NULL, 10);
        assert_in_range(limit, 1, cases[k].limit_max);
    }
}

/* ---- Sentinel ------------------------------------------------------------------------ */

/* plays[0] and [1] are sentinels, [2] and [3] Redis. */
#define FIND "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster;"
static const char primary_role[] = "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
static const char replica_role[] =
    "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:0\r\n";

static void names(struct bed *bed, size_t sentinel, size_t k, int times)
{
    char port[8];

    snprintf(port, sizeof(port), "%u", (unsigned)bed->plays[k].port);
    rule(bed, sentinel, "SENTINEL",
         say(bed, "*2\r\n$9\r\n127.0.0.1\r\n$%zu\r\n%s\r\n", strlen(port), port), times);
}

/* The primary that a sentinel names is asked what it is, once, and then used. */
CASE_WITH(a_sentinel_leads_to_the_primary, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_SENTINEL, 2);

    names(bed, 0, 2, 0);
    rule(bed, 2, "ROLE", primary_role, 0);
    assert_string_equal(hapax__redis_route_name(bed->route, 0), "mymaster");
    keys(bed, "a 1");
    expect_run(bed, "o");
    expect_run(bed, "o");
    expect_log(bed, 0, FIND);
    expect_log(bed, 1, "");
    expect_log(bed, 2, "ROLE;" SHA "1 a 1;" SHA "1 a 1;");
    expect_name(bed, 0, 2);
}

/* One that names a replica is not believed, nor asked first the next time. */
CASE_WITH(a_sentinel_that_lies_is_passed_over, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_SENTINEL, 2);

    names(bed, 0, 3, 0);
    names(bed, 1, 2, 0);
    rule(bed, 2, "ROLE", primary_role, 0);
    rule(bed, 3, "ROLE", replica_role, 0);
    rule(bed, 2, SHA "1 a 1", "+OK\r\n" CUT, 1);
    keys(bed, "a 1");
    expect_run(bed, "o");
    expect_log(bed, 0, FIND);
    expect_log(bed, 1, FIND);
    expect_log(bed, 3, "ROLE;");
    play_wait_left(&bed->plays[2], 1);
    expect_run(bed, "o");
    expect_log(bed, 0, "");
    expect_log(bed, 1, FIND);
}

/* Runs call 0 into its timeout until the text has these words: on a machine that stood still for
 * as long, no process has answered. The error is the same each time. */
static void run_until_told(struct bed *bed, enum hapax_error error, const char *says)
{
    for (unsigned tries = 0; tries == 0 || (tries < 10 && !strstr(bed->text, says)); tries++) {
        assert_int_equal(run(bed, 1, false), error);
        expect_error(bed, 0, error);
    }
    assert_non_null(strstr(bed->text, says));
}

/* A replica is never written to, whoever names it; the run ends with its timeout. */
CASE_WITH(a_replica_named_as_primary_is_refused, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_SENTINEL, 2);

    reopen(bed, 200, 0);
    names(bed, 0, 3, 0);
    names(bed, 1, 3, 0);
    rule(bed, 3, "ROLE", replica_role, 0);
    keys(bed, "a 1");
    run_until_told(bed, HAPAX_ERR_UNAVAILABLE, "is no primary");
    assert_null(strstr(play_log(&bed->plays[3]), "EVAL"));
}

/* Sentinels that are not there, or know no such master: unavailable, and the text says so. */
CASE_WITH(no_sentinel_knows, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_SENTINEL, 2);

    reopen(bed, 200, 0);
    rule(bed, 0, "SENTINEL", "*-1\r\n", 0);
    rule(bed, 1, "SENTINEL", "$-1\r\n", 0);
    keys(bed, "a 1");
    run_until_told(bed, HAPAX_ERR_UNAVAILABLE, "knows no master \"mymaster\"");
    play_die(&bed->plays[0]);
    play_die(&bed->plays[1]);
    reopen(bed, 30000, 0);
    expect_run(bed, "-");
}

/* Errors of a sentinel, and of the node that it names, are passed on: REFUSED where the login is
 * refused. */
CASE_WITH(what_is_no_answer_is_passed_on, NULL, bed_close)
{
    static const struct {
        const char *sentinel, *role; /* NULL: as it should be */
        const char *says;
        enum hapax_error error;
    } cases[] = {
        {"-NOAUTH Authentication required.\r\n", NULL, "NOAUTH", HAPAX_ERR_REFUSED},
        {"-NOPERM no\r\n", NULL, "NOPERM", HAPAX_ERR_REFUSED},
        {"-ERR what\r\n", NULL, "ERR what", HAPAX_ERR_UNAVAILABLE},
        {"*2\r\n$1\r\nh\r\n$1\r\n0\r\n", NULL, "knows no master", HAPAX_ERR_UNAVAILABLE},
        {":1\r\n", NULL, "a reply of type", HAPAX_ERR_UNAVAILABLE},
        {NULL, "-NOPERM no\r\n", "answered ROLE with: NOPERM", HAPAX_ERR_REFUSED},
        {NULL, "-ERR what\r\n", "answered ROLE with: ERR what", HAPAX_ERR_UNAVAILABLE},
        {NULL, "*0\r\n", "is no primary", HAPAX_ERR_UNAVAILABLE},
    };

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_SENTINEL, 1);

        reopen(bed, cases[k].error == HAPAX_ERR_REFUSED ? 30000 : 300, 0);
        if (cases[k].sentinel)
            rule(bed, 0, "SENTINEL", cases[k].sentinel, 0);
        else
            names(bed, 0, 2, 0);
        rule(bed, 2, "ROLE", cases[k].role ? cases[k].role : primary_role, 0);
        keys(bed, "a 1");
        run_until_told(bed, cases[k].error, cases[k].says);
        assert_null(strstr(play_log(&bed->plays[2]), "EVAL"));
    }
}

/* A demoted primary refuses the call, which surely did nothing there and goes to the new
 * primary. */
CASE_WITH(a_demoted_primary_sends_us_to_ask_again, NULL, bed_close)
{
    static const char *const words[] = {"-READONLY You can't write\r\n", "-LOADING it\r\n",
                                        "-MASTERDOWN Link\r\n"};

    for (size_t k = 0; k < 3; k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_SENTINEL, 2);

        names(bed, 0, 2, 1);
        names(bed, 0, 3, 0);
        rule(bed, 2, "ROLE", primary_role, 0);
        rule(bed, 3, "ROLE", primary_role, 0);
        rule(bed, 2, SHA, words[k], 0);
        keys(bed, "a 1");
        bed->calls[0].once = true;
        expect_run(bed, "o");
        expect_log(bed, 0, FIND FIND);
        expect_log(bed, 2, "ROLE;" SHA "1 a 1;");
        expect_log(bed, 3, "ROLE;" SHA "1 a 1;");
    }
}

/* A primary that is cut off from its replicas may have a successor: the next run asks anew,
 * another sentinel first. */
CASE_WITH(a_primary_without_its_replicas_is_doubted, NULL, bed_close)
{
    for (int k = 0; k < 2; k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_SENTINEL, 2);

        reopen(bed, 30000, 1);
        names(bed, 0, 2, 0);
        names(bed, 1, 3, 0);
        rule(bed, 2, "ROLE", primary_role, 0);
        rule(bed, 3, "ROLE", primary_role, 0);
        rule(bed, 3, "WAIT", ":1\r\n", 0);
        if (k == 0)
            rule(bed, 2, SHA, "-NOREPLICAS Not enough good replicas to write.\r\n", 0);
        rule(bed, 2, "WAIT", ":0\r\n", 0);
        keys(bed, "a 1");
        assert_int_equal(run(bed, 1, true), k == 0 ? HAPAX_ERR_UNAVAILABLE : HAPAX_ERR_NONE);
        assert_false(bed->calls[0].replicated);
        assert_int_equal(run(bed, 1, true), HAPAX_ERR_NONE);
        assert_true(bed->calls[0].replicated);
        expect_log(bed, 1, FIND);
        /* One that has them is not. */
        assert_int_equal(run(bed, 1, true), HAPAX_ERR_NONE);
        expect_log(bed, 0, FIND);
        expect_log(bed, 1, "");
    }
}

/* A primary that dies with a reply under way: repeated on its successor, unless `once`. */
CASE_WITH(a_failover_is_ridden_out, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_SENTINEL, 2);

    names(bed, 0, 2, 4);
    names(bed, 0, 3, 0);
    rule(bed, 2, "ROLE", primary_role, 1);
    rule(bed, 2, "ROLE", CUT, 0);
    rule(bed, 3, "ROLE", primary_role, 0);
    rule(bed, 2, SHA, CUT, 0);
    play_die(&bed->plays[1]);
    keys(bed, "a 1;b 2");
    bed->calls[1].once = true;
    expect_run(bed, "o?");
    expect_log(bed, 3, "ROLE;" SHA "1 a 1;");
}

/* ---- cluster ------------------------------------------------------------------------- */

/* "bar" is in the lower half of the slots (5061), "foo" in the upper one (12182). */
#define LOOK "CLUSTER SLOTS;"

static const char *map_of(struct bed *bed, size_t low, size_t high)
{
    return say(bed,
               "*2\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%u\r\n"
               "*4\r\n:0\r\n:8191\r\n*3\r\n$9\r\n127.0.0.1\r\n:%u\r\n$1\r\nx\r\n"
               "*2\r\n$9\r\n127.0.0.1\r\n:1\r\n",
               (unsigned)bed->plays[high].port, (unsigned)bed->plays[low].port);
}

/* Both halves, as plays[0] and [1] tell it. */
static void maps(struct bed *bed, size_t low, size_t high, int times)
{
    const char *map = map_of(bed, low, high);

    for (size_t k = 0; k < PLAYS; k++)
        rule(bed, k, "CLUSTER", map, times);
}

static struct bed *cluster_open(void **state)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

    maps(bed, 0, 1, 0);
    return bed;
}

static const char *redirection(struct bed *bed, const char *word, unsigned slot, size_t k)
{
    return say(bed, "-%s %u 127.0.0.1:%u\r\n", word, slot, (unsigned)bed->plays[k].port);
}

/* Calls go to the primaries of their slots, and each primary gets one pipeline. */
CASE_WITH(calls_go_to_their_slots, NULL, bed_close)
{
    enum hapax_error error;
    struct bed *bed = cluster_open(state);

    keys(bed, "foo 1;bar 2;{foo}2 3");
    expect_run(bed, "ooo");
    expect_log(bed, 0, LOOK SHA "1 bar 2;");
    expect_log(bed, 1, SHA "1 foo 1;" SHA "1 {foo}2 3;");
    /* Primaries are counted by their slots. */
    assert_int_equal(hapax__redis_route_nodes(bed->route, &error, bed->text), 2);
    plain(bed, 0, "DBSIZE", 1);
    expect_run(bed, "o");
    expect_log(bed, 0, "");
    expect_log(bed, 1, "DBSIZE;");
    expect_name(bed, 1, 1);
    plain(bed, 0, "DBSIZE", 2);
    expect_run(bed, "-");
}

/* MOVED corrects its slot at once, within the run; the map is read again after it. */
CASE_WITH(moved_is_followed_and_remembered, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

    maps(bed, 0, 1, 1);
    maps(bed, 2, 1, 0);
    rule(bed, 0, SHA, redirection(bed, "MOVED", 5061, 2), 0);
    keys(bed, "bar 1;foo 2");
    bed->calls[0].once = true;
    expect_run(bed, "oo");
    assert_string_equal(bed->text, "");
    expect_run(bed, "oo");
    expect_log(bed, 2, SHA "1 bar 1;" SHA "1 bar 1;");
    assert_non_null(strstr(play_log(&bed->plays[0]), LOOK SHA "1 bar 1;"));
}

/* ASK sends one call elsewhere, with ASKING before it, and changes no map. */
CASE_WITH(ask_is_followed_once, NULL, bed_close)
{
    struct bed *bed = cluster_open(state);

    rule(bed, 0, SHA, redirection(bed, "ASK", 5061, 1), 1);
    keys(bed, "bar 1");
    bed->calls[0].once = true;
    expect_run(bed, "o");
    expect_log(bed, 0, LOOK SHA "1 bar 1;");
    expect_log(bed, 1, "ASKING;" SHA "1 bar 1;");
    expect_run(bed, "o");
    expect_log(bed, 0, SHA "1 bar 1;");
    expect_log(bed, 1, "");
}

/* While a slot moves, a call never overtakes the one before it on its key. */
CASE_WITH(order_is_kept_under_ask, NULL, bed_close)
{
    struct bed *bed = cluster_open(state);

    rule(bed, 0, SHA "1 bar 1", redirection(bed, "ASK", 5061, 1), 0);
    rule(bed, 1, SHA "1 bar 1", "-TRYAGAIN moving\r\n", 1);
    keys(bed, "bar 1;bar 2;foo 3");
    expect_run(bed, "ooo");
    expect_log(bed, 0, LOOK SHA "1 bar 1;" SHA "1 bar 1;" SHA "1 bar 2;");
    expect_log(bed, 1, SHA "1 foo 3;ASKING;" SHA "1 bar 1;ASKING;" SHA "1 bar 1;");
}

/* A script that the target of an ASK lacks is loaded there, and the call asks anew. */
CASE_WITH(a_script_is_loaded_where_ask_led, NULL, bed_close)
{
    struct bed *bed = cluster_open(state);

    rule(bed, 0, SHA, redirection(bed, "ASK", 5061, 1), 0);
    rule(bed, 1, SHA, NOSCRIPT, 1);
    keys(bed, "bar 1");
    expect_run(bed, "o");
    expect_log(bed, 1, "ASKING;" SHA "1 bar 1;SCRIPT LOAD return 1;ASKING;" SHA "1 bar 1;");
}

/* Two nodes that send each call to the other end a run, not the process. */
CASE_WITH(redirections_are_bounded, NULL, bed_close)
{
    static const char *const words[] = {"MOVED", "ASK"};

    for (size_t k = 0; k < 2; k++) {
        struct bed *bed = cluster_open(state);
        size_t times = 0;

        rule(bed, 0, SHA, redirection(bed, words[k], 5061, 1), 0);
        rule(bed, 1, SHA, redirection(bed, words[k], 5061, 0), 0);
        keys(bed, "bar 1");
        expect_run(bed, "-");
        for (size_t i = 0; i < 2; i++)
            times += count_of(play_log(&bed->plays[i]), SHA);
        assert_int_equal(times, 16);
    }
}

/* Redirections that say nothing are not followed anywhere. */
CASE_WITH(nonsense_redirections_lead_nowhere, NULL, bed_close)
{
    static const char *const said[] = {"-MOVED\r\n",
                                       "-MOVED 5061\r\n",
                                       "-MOVED 5061 \r\n",
                                       "-MOVED 5062 127.0.0.1:1\r\n",
                                       "-MOVED x 127.0.0.1:1\r\n",
                                       "-MOVED 5061 127.0.0.1:\r\n",
                                       "-MOVED 5061 127.0.0.1:0\r\n",
                                       "-MOVED 5061 127.0.0.1:65536\r\n",
                                       "-MOVED 5061 127.0.0.1:-1\r\n",
                                       "-MOVED 5061 ?:1\r\n",
                                       "-ASK 5061 127.0.0.1:1x\r\n"};

    for (size_t k = 0; k < sizeof(said) / sizeof(said[0]); k++) {
        struct bed *bed = cluster_open(state);

        rule(bed, 0, SHA, said[k], 0);
        keys(bed, "bar 1");
        expect_run(bed, "-");
        expect_log(bed, 0, LOOK SHA "1 bar 1;");
    }
}

/* An address without a host, in a map or in MOVED, is on the host that said it. */
CASE_WITH(an_empty_host_is_the_one_that_was_asked, NULL, bed_close)
{
    static const char *const hosts[] = {"$0\r\n\r\n", "$-1\r\n"};

    for (size_t k = 0; k < 2; k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

        rule(bed, 0, "CLUSTER",
             say(bed, "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n%s:%u\r\n", hosts[k],
                 (unsigned)bed->plays[1].port),
             0);
        rule(bed, 1, SHA, say(bed, "-MOVED 5061 :%u\r\n", bed->plays[2].port), 0);
        keys(bed, "bar 1");
        expect_run(bed, "o");
        /* Where 20 ms have passed before MOVED is read, the map is read again: more calls come. */
        assert_int_equal(strncmp(play_log(&bed->plays[1]), SHA "1 bar 1;", strlen(SHA "1 bar 1;")),
                         0);
        expect_log(bed, 2, SHA "1 bar 1;");
    }
}

/* A map that cannot be one is not taken, and the next node is asked. */
CASE_WITH(nonsense_maps_are_refused, NULL, bed_close)
{
    static const char *const said[] = {"+OK\r\n",
                                       "*0\r\n",
                                       "$-1\r\n",
                                       "*1\r\n:1\r\n",
                                       "*1\r\n*2\r\n:0\r\n:1\r\n",
                                       "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:1\r\n",
                                       "*1\r\n*3\r\n:-1\r\n:5\r\n*2\r\n$1\r\nh\r\n:1\r\n",
                                       "*1\r\n*3\r\n:6\r\n:5\r\n*2\r\n$1\r\nh\r\n:1\r\n",
                                       "*1\r\n*3\r\n:0\r\n:5\r\n*1\r\n$1\r\nh\r\n",
                                       "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n:1\r\n:1\r\n",
                                       "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\nh\r\n:65536\r\n",
                                       "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$-1\r\n:0\r\n",
                                       "*1\r\n*3\r\n:0\r\n:5\r\n$1\r\nh\r\n",
                                       "-ERR This instance has cluster support disabled\r\n",
                                       "-LOADING it\r\n",
                                       CUT};

    for (size_t k = 0; k < sizeof(said) / sizeof(said[0]); k++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 2);
        enum hapax_error error;

        rule(bed, 0, "CLUSTER", said[k], 0);
        rule(bed, 1, "CLUSTER", said[k], 1);
        assert_int_equal(hapax__redis_route_nodes(bed->route, &error, bed->text), 0);
        assert_int_equal(error, HAPAX_ERR_UNAVAILABLE);
        assert_string_not_equal(bed->text, "");
        maps(bed, 0, 1, 0);
        keys(bed, "foo 1");
        expect_run(bed, "o");
    }
}

/* One primary's death is its own calls' concern. */
CASE_WITH(a_dead_primary_does_not_take_others_with_it, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

    reopen(bed, 2000, 0); /* within which the others answer */
    maps(bed, 0, 1, 0);
    keys(bed, "foo 1;bar 2;{foo}2 3");
    bed->calls[2].once = true;
    expect_run(bed, "ooo");
    rule(bed, 1, SHA, CUT, 1);
    rule(bed, 1, "PING", CUT, 0);
    expect_run(bed, "?o?");
    play_die(&bed->plays[1]);
    expect_run(bed, "-o-");
}

/* A replica takes over: its number stays, and what may be repeated goes there within the run. */
CASE_WITH(a_failover_in_a_cluster_is_ridden_out, NULL, bed_close)
{
    enum hapax_error error;
    struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

    maps(bed, 0, 1, 2);
    maps(bed, 0, 2, 0);
    keys(bed, "foo 1");
    expect_run(bed, "o");
    rule(bed, 1, SHA, CUT, 0);
    rule(bed, 1, "PING", CUT, 0);
    with_key(bed, 1, "bar", "2");
    with_key(bed, 2, "{foo}2", "3");
    bed->calls[2].once = true;
    expect_run(bed, "oo?");
    expect_log(bed, 2, SHA "1 foo 1;");
    assert_int_equal(hapax__redis_route_nodes(bed->route, &error, bed->text), 2);
    expect_name(bed, 1, 2);
}

/* A cluster that is electing says so; the call waits for it, within the run. */
CASE_WITH(an_election_is_waited_for, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

    rule(bed, 0, "CLUSTER",
         say(bed, "*1\r\n*3\r\n:0\r\n:100\r\n*2\r\n$0\r\n\r\n:%u\r\n", bed->plays[0].port), 2);
    maps(bed, 0, 1, 0);
    rule(bed, 0, SHA, "-CLUSTERDOWN The cluster is down\r\n", 2);
    keys(bed, "bar 1");
    bed->calls[0].once = true;
    expect_run(bed, "o");
}

/* A node that is away for longer than a run lasts is not waited for, so that other calls go on. */
CASE_WITH(what_stays_away_is_not_waited_for, NULL, bed_close)
{
    for (int away = 0; away < 3; away++) {
        struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

        reopen(bed, 1500, 0); /* within which the others answer */
        if (away == 0)
            rule(bed, 0, "CLUSTER",
                 say(bed, "*1\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$0\r\n\r\n:%u\r\n",
                     (unsigned)bed->plays[0].port),
                 0);
        maps(bed, 0, 1, 0);
        rule(bed, 1, SHA, "-CLUSTERDOWN The cluster is down\r\n", 0);
        if (away == 2)
            play_die(&bed->plays[1]);
        keys(bed, "foo 1;bar 2");
        for (int k = 0; k < 3; k++) {
            expect_run(bed, "-o");
            for (size_t i = 0; i < 2 && k < 2; i++)
                play_log(&bed->plays[i]);
        }
        /* One look for a change, one try, and no round beyond. */
        assert_true(count_of(play_log(&bed->plays[0]), LOOK) <= 1);
        assert_true(count_of(play_log(&bed->plays[1]), SHA) <= 1);
    }
}

/* A node that has left the cluster is not kept a link to. */
CASE_WITH(a_node_that_left_is_closed, NULL, bed_close)
{
    int64_t before_us = hapax__monotonic_us();
    const char *name;
    struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

    maps(bed, 0, 1, 1);
    maps(bed, 0, 2, 0);
    keys(bed, "foo 1");
    expect_run(bed, "o");
    rule(bed, 1, SHA, redirection(bed, "MOVED", 12182, 2), 0);
    expect_run(bed, "o");
    name = say(bed, "127.0.0.1:%u", (unsigned)bed->plays[2].port);
    while (strcmp(hapax__redis_route_name(bed->route, 1), name) != 0) {
        expect_run(bed, "o");
        play_log(&bed->plays[2]);
        assert_true(hapax__monotonic_us() - before_us < LATE_US);
    }
    expect_run(bed, "o");
    play_wait_left(&bed->plays[1], 1);
}

/* A node that never answers costs its own calls the timeout; others were answered meanwhile. */
CASE_WITH(a_silent_node_does_not_hide_others_replies, NULL, bed_close)
{
    struct bed *bed = bed_open(state, HAPAX__REDIS_CLUSTER, 1);

    reopen(bed, 2000, 0);
    maps(bed, 0, 1, 0);
    keys(bed, "bar 1;foo 2");
    expect_run(bed, "oo");
    rule(bed, 0, SHA, HANG, 0);
    expect_run(bed, "?o");
}

/* ---- memory -------------------------------------------------------------------------- */

/* Whichever allocation fails, alone or with all that follow: each call has a reply or an error, and
 * nothing is lost. Without any memory a run may last until its timeout, which is short then. */
CASE_WITH(every_allocation_may_fail, NULL, bed_close)
{
    bool last = false;
    struct bed *bed = cluster_open(state);
    int64_t live;

    rule(bed, 0, SHA "1 bar", redirection(bed, "ASK", 5061, 2), 0);
    rule(bed, 1, SHA "1 foo", NOSCRIPT, 0);
    hapax__redis_route_close(bed->route);
    live = oom_live();
    for (uint64_t n = 1; !last; n++) {
        enum hapax_error error;

        keys(bed, "bar 1;foo 2;bar 3");
        bed->uri.timeout_ms = n % 2 == 0 ? 500 : 30000;
        oom_fail_at(n, n % 2 == 0);
        error = hapax__redis_route_open(&bed->route, &bed->uri, bed->text);
        if (error == HAPAX_ERR_NONE) {
            error = hapax__redis_route_run(bed->route, bed->calls, 3, false, bed->text);
            for (size_t i = 0; i < 3; i++)
                assert_int_equal(bed->calls[i].error == HAPAX_ERR_NONE,
                                 bed->calls[i].reply != NULL);
            hapax__redis_route_close(bed->route);
        } else {
            assert_int_equal(error, HAPAX_ERR_NOMEM);
        }
        /* Without any memory the timeout may have been the end. */
        last = n % 2 != 0 && oom_count() < n;
        oom_fail_at(0, false);
        assert_int_equal(oom_live(), live);
        if (last)
            assert_int_equal(error, HAPAX_ERR_NONE);
        for (size_t k = 0; k < PLAYS; k++)
            play_log(&bed->plays[k]);
    }
    bed->route = NULL;
}
