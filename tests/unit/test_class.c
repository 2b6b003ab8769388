/* SPDX-License-Identifier: Apache-2.0
 *
 * The class of a response: the built-in rules, and rules as people write them.
 */
#include "../cases.h"
#include "core/class.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct hapax_policy policy_of(enum hapax_on_expired on_expired)
{
    struct hapax_policy policy;

    hapax_policy_init(&policy);
    policy.on_expired = on_expired;
    return policy;
}

/* The design's table: the classes under `rerun`, under `hold`, and there with Retry-After. */
static const struct {
    int first;
    int last;
    enum hapax_class rerun, hold, later;
} table[] = {
    {401, 401, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_NOT_RUN},
    {403, 403, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_NOT_RUN},
    {408, 408, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_UNKNOWN, HAPAX_CLASS_NOT_RUN},
    {409, 409, HAPAX_CLASS_FINAL, HAPAX_CLASS_FINAL, HAPAX_CLASS_NOT_RUN},
    {423, 423, HAPAX_CLASS_FINAL, HAPAX_CLASS_FINAL, HAPAX_CLASS_NOT_RUN},
    {425, 425, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_NOT_RUN},
    {429, 429, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_NOT_RUN},
    {502, 502, HAPAX_CLASS_UNKNOWN, HAPAX_CLASS_UNKNOWN, HAPAX_CLASS_UNKNOWN},
    {503, 503, HAPAX_CLASS_NOT_RUN, HAPAX_CLASS_UNKNOWN, HAPAX_CLASS_NOT_RUN},
    {504, 504, HAPAX_CLASS_UNKNOWN, HAPAX_CLASS_UNKNOWN, HAPAX_CLASS_UNKNOWN},
    {500, 599, HAPAX_CLASS_FAILED, HAPAX_CLASS_FAILED, HAPAX_CLASS_FAILED},
    {0, 999, HAPAX_CLASS_FINAL, HAPAX_CLASS_FINAL, HAPAX_CLASS_FINAL},
};

/* Every status has the class of the design's table under each policy. */
CASE(every_status_has_its_class)
{
    const struct hapax_span later = hapax_str("Retry-After: 1\r\n");
    const struct hapax_span other = hapax_str("X-A: 1\r\nDate: x\r\n");
    struct hapax_policy rerun = policy_of(HAPAX_EXPIRED_RERUN);
    const struct hapax_policy strict[] = {policy_of(HAPAX_EXPIRED_HOLD),
                                          policy_of(HAPAX_EXPIRED_RECONCILE)};

    for (int status = 0; status < 1000; status++) {
        size_t row = 0;

        while (status < table[row].first || status > table[row].last)
            row++;
        assert_int_equal(hapax_class_of_response(&rerun, status, hapax_str("")), table[row].rerun);
        assert_int_equal(hapax_class_of_response(&rerun, status, other), table[row].rerun);
        for (size_t i = 0; i < COUNT(strict); i++) {
            assert_int_equal(hapax_class_of_response(&strict[i], status, other), table[row].hold);
            assert_int_equal(hapax_class_of_response(&strict[i], status, later), table[row].later);
        }
    }
}

/* A response that ended with its connection may have been cut off. Under `hold` and `reconcile` it
 * is not final, unless it has no body; all other statuses keep their class. */
CASE(an_end_by_close_is_final_under_rerun_alone)
{
    static const enum hapax_on_expired words[] = {HAPAX_EXPIRED_RERUN, HAPAX_EXPIRED_HOLD,
                                                  HAPAX_EXPIRED_RECONCILE};

    for (size_t i = 0; i < COUNT(words); i++) {
        const struct hapax_policy policy = policy_of(words[i]);

        for (int status = 200; status < 600; status++) {
            enum hapax_class whole = hapax__class_of(&policy, status, false, NULL, NULL);
            enum hapax_class by_close = hapax__class_of(&policy, status, true, NULL, NULL);

            if (i > 0 && whole == HAPAX_CLASS_FINAL && status != 204 && status != 304)
                whole = HAPAX_CLASS_UNKNOWN;
            assert_int_equal(by_close, whole);
        }
    }
}

/* Unless it is said what follows a failure, `rerun` runs again, and `hold` and `reconcile` hold. */
CASE(a_failure_is_held_where_effects_may_not_repeat)
{
    static const enum hapax_on_failed by_default[] = {
        [HAPAX_EXPIRED_RERUN] = HAPAX_FAILED_RETRY,
        [HAPAX_EXPIRED_HOLD] = HAPAX_FAILED_HOLD,
        [HAPAX_EXPIRED_RECONCILE] = HAPAX_FAILED_HOLD,
    };

    for (int i = HAPAX_EXPIRED_RERUN; i <= HAPAX_EXPIRED_RECONCILE; i++) {
        struct hapax_policy policy = policy_of((enum hapax_on_expired)i);
        char text[HAPAX_TEXT_MAX];

        assert_int_equal(hapax_policy_check(&policy, text), HAPAX_ERR_NONE);
        assert_int_equal(hapax__on_failed(&policy), by_default[i]);
        for (int said = HAPAX_FAILED_RETRY; said <= HAPAX_FAILED_HOLD; said++) {
            policy.on_failed = (enum hapax_on_failed)said;
            assert_int_equal(hapax__on_failed(&policy), said);
        }
    }
}

/* 409 and 423 that say "try again" are not run; the header's name and value count in any case. */
CASE(a_header_that_says_try_again_is_heeded)
{
    static const struct {
        const char *headers;
        bool again;
    } rows[] = {
        {"Retry-After: 3\r\n", true},
        {"X-A: 1\r\nretry-after:\r\n", true},
        {"RETRY-AFTER: Wed, 21 Oct 2015 07:28:00 GMT\r\nX-A: 1\r\n", true},
        {"Stripe-Should-Retry: true\r\n", true},
        {"X: y\r\nstripe-should-retry:  TRUE \r\n", true},
        {"Stripe-Should-Retry:\ttrue\t\r\n", true},
        {"Retry-After:\n", true},
        {"Retry-After:  \n", true},
        {"Retry-Aftex: 3\r\n", false},
        {"Xetry-After: 3\r\n", false},
        {"Stripe-Should-Retry: trux\r\n", false},
        {"Stripe-Should-Retry: false\r\n", false},
        {"Stripe-Should-Retry: true-ish\r\n", false},
        {"Stripe-Should-Retry:\r\n", false},
        {"X-Retry-After: 3\r\n", false},
        {"Retry-After-X: 3\r\n", false},
        {"X: Retry-After: 3\r\n", false},
        {"Retry-After: 3", false}, /* no whole line */
        {"Retry-After\r\n", false},
        {"\r\n", false},
    };

    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        const struct hapax_span headers = hapax_str(rows[i / 2].headers);
        enum hapax_class cls = rows[i / 2].again ? HAPAX_CLASS_NOT_RUN : HAPAX_CLASS_FINAL;
        struct hapax_policy policy = policy_of(i % 2 ? HAPAX_EXPIRED_HOLD : HAPAX_EXPIRED_RERUN);

        assert_int_equal(hapax_class_of_response(&policy, 409, headers), cls);
        assert_int_equal(hapax_class_of_response(&policy, 423, headers), cls);
        assert_int_equal(hapax_class_of_response(&policy, 429, headers), HAPAX_CLASS_NOT_RUN);
        assert_int_equal(hapax_class_of_response(&policy, 410, headers), HAPAX_CLASS_FINAL);
        assert_int_equal(hapax_class_of_response(&policy, 422, headers), HAPAX_CLASS_FINAL);
        assert_int_equal(hapax_class_of_response(&policy, 424, headers), HAPAX_CLASS_FINAL);
        assert_int_equal(hapax_class_of_response(&policy, 500, headers), HAPAX_CLASS_FAILED);
    }
}

static struct hapax_span one_header(void *response, const char *name)
{
    const char *const *header = response; /* its name and its value */

    return strcmp(header[0], name) == 0 ? hapax_str(header[1]) : (struct hapax_span){NULL, 0};
}

/* Of the rules that fit the first one counts; 0 where none does. */
CASE(rules_count_in_their_order)
{
    static const char *const texts[] = {"503+retry-after", "503", "4xx+X-Kind=Lock", "409", "2xx"};
    const char *later[] = {"retry-after", "1"};
    const char *lock[] = {"x-kind", "LOCK"};
    const char *other[] = {"x-kind", "lock2"};
    struct hapax__class_rule rules[COUNT(texts)];
    const char *why;

    for (size_t i = 0; i < COUNT(texts); i++) {
        assert_true(hapax__class_rule_parse(&rules[i], hapax_str(texts[i]), &why));
        rules[i].cls = i % 2 == 0 ? HAPAX_CLASS_NOT_RUN : HAPAX_CLASS_UNKNOWN;
    }
    assert_int_equal(hapax__class_by(rules, 5, 503, one_header, later), HAPAX_CLASS_NOT_RUN);
    assert_int_equal(hapax__class_by(rules, 5, 503, one_header, lock), HAPAX_CLASS_UNKNOWN);
    assert_int_equal(hapax__class_by(rules, 5, 503, NULL, NULL), HAPAX_CLASS_UNKNOWN);
    assert_int_equal(hapax__class_by(rules, 5, 409, one_header, lock), HAPAX_CLASS_NOT_RUN);
    assert_int_equal(hapax__class_by(rules, 5, 409, one_header, other), HAPAX_CLASS_UNKNOWN);
    assert_int_equal(hapax__class_by(rules, 5, 410, one_header, other), 0);
    assert_int_equal(hapax__class_by(rules, 5, 299, one_header, other), HAPAX_CLASS_NOT_RUN);
    assert_int_equal(hapax__class_by(rules, 5, 300, one_header, other), 0);
    assert_int_equal(hapax__class_by(rules, 0, 503, one_header, later), 0);
}

/* A rule has what its text says, whatever the rule was before. */
CASE(a_rule_is_what_its_text_says)
{
    static const struct {
        const char *text;
        uint16_t first, last;
        const char *header, *value;
    } rows[] = {
        {"200", 200, 200, "", ""},
        {"425", 425, 425, "", ""},
        {"599", 599, 599, "", ""},
        {"3xx", 300, 399, "", ""},
        {"409+Retry-After", 409, 409, "retry-after", ""},
        {"5xx+a=B", 500, 599, "a", "b"},
        {"5xx+A-Z=AZ", 500, 599, "a-z", "az"},
        {"409+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 409, 409,
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", ""},
    };
    struct hapax__class_rule rule;
    const char *why;

    for (size_t i = 0; i < COUNT(rows); i++) {
        memset(&rule, 0x7f, sizeof(rule));
        assert_true(hapax__class_rule_parse(&rule, hapax_str(rows[i].text), &why));
        assert_int_equal(rule.first, rows[i].first);
        assert_int_equal(rule.last, rows[i].last);
        assert_string_equal(rule.header, rows[i].header);
        assert_string_equal(rule.value, rows[i].value);
    }
}

/* A condition counts however short its name is, and a NUL ends no value. */
CASE(a_condition_is_met_by_its_header_alone)
{
    static const char with_nul[] = "Stripe-Should-Retry: true\0\r\n";
    struct hapax_policy policy = policy_of(HAPAX_EXPIRED_RERUN);
    const char *other[] = {"b", "1"}, *same[] = {"a", "1"};
    struct hapax__class_rule rule;
    const char *why;

    assert_true(hapax__class_rule_parse(&rule, hapax_str("409+a"), &why));
    rule.cls = HAPAX_CLASS_NOT_RUN;
    assert_int_equal(hapax__class_by(&rule, 1, 409, one_header, other), 0);
    assert_int_equal(hapax__class_by(&rule, 1, 409, one_header, same), HAPAX_CLASS_NOT_RUN);
    assert_int_equal(
        hapax_class_of_response(
            &policy, 409, (struct hapax_span){(const uint8_t *)with_nul, sizeof(with_nul) - 1}),
        HAPAX_CLASS_FINAL);
}

/* What is no rule is refused with what would be one. */
CASE(no_other_condition_is_taken)
{
    static const char *const texts[] = {
        "",          "40",
        "4090",      "4x9",
        "xx",        "199",
        "600",       "1xx",
        "6xx",       "+a",
        "409+",      "409+=a",
        "409+a=",    "409+a+b",
        "409+a b",   "409+a:1",
        "409+a=b c", "409 +a",
        "409-a",     "409+a=\x7f",
        "4-9",       "40x",
        "-09",       "409+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    };
    struct hapax__class_rule rule;
    const char *why;

    for (size_t i = 0; i < COUNT(texts); i++) {
        why = NULL;
        assert_false(hapax__class_rule_parse(&rule, hapax_str(texts[i]), &why));
        assert_non_null(strstr(why, "409+retry-after"));
    }
}
