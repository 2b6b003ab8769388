/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies: durations, sizes and words as they are written, what is refused and with which text,
 * and limits on both sides.
 */
#include "../cases.h"
#include "base/units.h"
#include "core/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- durations and sizes ----------------------------------------------------------- */

/* Every unit, and the longest duration there is. */
CASE(a_duration_is_a_whole_number_with_a_unit)
{
    static const struct {
        const char *value;
        int64_t ms;
    } cases[] = {
        {"0", 0},
        {"00", 0},
        {"0s", 0},
        {"500ms", 500},
        {"30s", 30000},
        {"007s", 7000},
        {"5m", 300000},
        {"24h", 86400000},
        {"7d", 604800000},
        {"3650d", HAPAX_DURATION_MAX_MS},
        {"315360000000ms", HAPAX_DURATION_MAX_MS},
        {"87600h", HAPAX_DURATION_MAX_MS},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t ms = -1;
        const char *why = "";

        if (!hapax__duration_parse(&ms, cases[i].value, &why))
            fail_msg("%s: refused", cases[i].value);
        assert_null(why);
        assert_true(ms == cases[i].ms);
    }
}

/* Anything else, and anything longer, is refused with the units that are allowed. */
CASE(no_other_duration_is_taken)
{
    static const char *const values[] = {
        "",
        "1",
        "30",
        "-1s",
        "+1s",
        " 1s",
        "1s ",
        "1 s",
        "1.5s",
        "s",
        "ms",
        "1S",
        "1sec",
        "1w",
        "0x1s",
        "1s1s",
        "1e3s",
        "3651d",
        "forever",
        "315360000001ms",
        "87601h",
        "18446744073709551617ms",
        "99999999999999999999s",
        "-0",
    };

    for (size_t i = 0; i < COUNT(values); i++) {
        int64_t ms = 42;
        const char *why = NULL;

        if (hapax__duration_parse(&ms, values[i], &why))
            fail_msg("%s: taken", values[i]);
        assert_non_null(strstr(why, "ms, s, m, h or d"));
        assert_true(ms == 42);
    }
}

/* Bytes, and their multiples by 1024. */
CASE(a_size_is_a_whole_number_of_bytes_or_a_multiple)
{
    static const struct {
        const char *value;
        size_t size;
    } cases[] = {
        {"0", 0},
        {"1", 1},
        {"1500", 1500},
        {"64k", 65536},
        {"1m", 1048576},
        {"1g", 1073741824},
        {"0g", 0},
        {"18446744073709551615", SIZE_MAX},
        {"17179869183g", (size_t)17179869183 << 30},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t size = 42;
        const char *why = "";

        if (!hapax__size_parse(&size, cases[i].value, &why))
            fail_msg("%s: refused", cases[i].value);
        assert_null(why);
        assert_true(size == cases[i].size);
    }
}

/* Anything else, and what does not fit, is refused with the units that are allowed. */
CASE(no_other_size_is_taken)
{
    static const char *const values[] = {
        "",
        "k",
        "-1",
        "+1",
        "1K",
        "1kb",
        "1 k",
        "1.5m",
        "1t",
        "1ki",
        " 1k",
        "18446744073709551616",
        "17179869184g",
        "99999999999999999999k",
    };

    for (size_t i = 0; i < COUNT(values); i++) {
        size_t size = 42;
        const char *why = NULL;

        if (hapax__size_parse(&size, values[i], &why))
            fail_msg("%s: taken", values[i]);
        assert_non_null(strstr(why, "k, m or g"));
        assert_true(size == 42);
    }
}

/* ---- policies ---------------------------------------------------------------------- */

static struct hapax_policy defaults(void)
{
    struct hapax_policy policy;

    memset(&policy, 0xa5, sizeof(policy));
    hapax_policy_init(&policy);
    return policy;
}

static void assert_same_policy(const struct hapax_policy *a, const struct hapax_policy *b)
{
    assert_true(a->lease_ms == b->lease_ms);
    assert_true(a->run_max_ms == b->run_max_ms);
    assert_true(a->retention_ms == b->retention_ms);
    assert_true(a->retention_4xx_ms == b->retention_4xx_ms);
    assert_true(a->retention_failed_ms == b->retention_failed_ms);
    assert_true(a->tombstone_ms == b->tombstone_ms);
    assert_true(a->wait_ms == b->wait_ms);
    assert_true(a->timeout_ms == b->timeout_ms);
    assert_true(a->save_wait_ms == b->save_wait_ms);
    assert_true(a->on_expired == b->on_expired);
    assert_true(a->on_failed == b->on_failed);
    assert_true(a->on_store_error == b->on_store_error);
    assert_true(a->key == b->key);
    assert_true(a->key_min == b->key_min);
    assert_true(a->owner_required == b->owner_required);
    assert_true(a->key_expires == b->key_expires);
    assert_true(a->attempts_max == b->attempts_max);
    assert_true(a->max_request == b->max_request);
    assert_true(a->max_response == b->max_response);
    assert_true(a->rerun_completed == b->rerun_completed);
    assert_true(a->pass_token == b->pass_token);
}

/* The defaults are those of the design, and pass their own check. */
CASE(defaults_are_the_documented_ones)
{
    const struct hapax_policy documented = {
        .lease_ms = 30000,
        .run_max_ms = 3600000,
        .retention_ms = 86400000,
        .retention_4xx_ms = 0,
        .retention_failed_ms = 0,
        .tombstone_ms = 0,
        .wait_ms = 0,
        .timeout_ms = 2000,
        .save_wait_ms = 2000,
        .on_expired = HAPAX_EXPIRED_RERUN,
        .on_failed = (enum hapax_on_failed)0,
        .on_store_error = HAPAX_STORE_CLOSED,
        .key = HAPAX_KEY_OPTIONAL,
        .key_min = 0,
        .owner_required = false,
        .key_expires = false,
        .attempts_max = 0,
        .max_request = 1048576,
        .max_response = 1048576,
        .rerun_completed = false,
        .pass_token = false,
    };
    struct hapax_policy policy = defaults();
    char text[HAPAX_TEXT_MAX];

    assert_same_policy(&policy, &documented);
    assert_int_equal(hapax_policy_check(&policy, text), HAPAX_ERR_NONE);
}

static void set(struct hapax_policy *policy, const char *name, const char *value)
{
    char text[HAPAX_TEXT_MAX] = "";

    if (hapax_policy_set(policy, name, value, text) != HAPAX_ERR_NONE)
        fail_msg("%s", text);
}

/* Each name sets its own field and no other. */
CASE(every_policy_is_set_by_its_name)
{
    struct hapax_policy policy = defaults();
    struct hapax_policy expected = defaults();

#define SETS(name, value, field, number)                                                           \
    do {                                                                                           \
        set(&policy, name, value);                                                                 \
        expected.field = number;                                                                   \
        assert_same_policy(&policy, &expected);                                                    \
    } while (0)
    SETS("lease", "10s", lease_ms, 10000);
    SETS("run_max", "2h", run_max_ms, 7200000);
    SETS("retention", "7d", retention_ms, 604800000);
    SETS("retention", "forever", retention_ms, HAPAX_FOREVER_MS);
    SETS("wait", "5s", wait_ms, 5000);
    SETS("wait", "0", wait_ms, 0);
    SETS("timeout", "300ms", timeout_ms, 300);
    SETS("save_wait", "1m", save_wait_ms, 60000);
    SETS("on_expired", "hold", on_expired, HAPAX_EXPIRED_HOLD);
    SETS("on_expired", "reconcile", on_expired, HAPAX_EXPIRED_RECONCILE);
    SETS("on_expired", "rerun", on_expired, HAPAX_EXPIRED_RERUN);
    SETS("on_failed", "replay", on_failed, HAPAX_FAILED_REPLAY);
    SETS("on_failed", "hold", on_failed, HAPAX_FAILED_HOLD);
    SETS("on_failed", "retry", on_failed, HAPAX_FAILED_RETRY);
    SETS("on_store_error", "open", on_store_error, HAPAX_STORE_OPEN);
    SETS("on_store_error", "closed", on_store_error, HAPAX_STORE_CLOSED);
    SETS("key", "required", key, HAPAX_KEY_REQUIRED);
    SETS("key", "optional", key, HAPAX_KEY_OPTIONAL);
    SETS("key_min", "255", key_min, 255);
    SETS("key-min", "0", key_min, 0);
    SETS("owner_required", "on", owner_required, true);
    SETS("owner-required", "off", owner_required, false);
    SETS("key_expires", "on", key_expires, true);
    SETS("retention_4xx", "1h", retention_4xx_ms, 3600000);
    SETS("retention-failed", "10m", retention_failed_ms, 600000);
    SETS("tombstone", "30d", tombstone_ms, INT64_C(2592000000));
    SETS("attempts_max", "4294967295", attempts_max, UINT32_MAX);
    SETS("attempts_max", "0", attempts_max, 0);
    SETS("max_request", "64k", max_request, 65536);
    SETS("max_response", "16m", max_response, HAPAX_BODY_MAX);
    SETS("rerun_completed", "on", rerun_completed, true);
    SETS("rerun_completed", "off", rerun_completed, false);
    SETS("pass_token", "on", pass_token, true);
    SETS("pass-token", "off", pass_token, false);
    SETS("save-wait", "3s", save_wait_ms, 3000);
    SETS("on-store_error", "open", on_store_error, HAPAX_STORE_OPEN);
#undef SETS
}

/* A profile sets its rows and no others; what is set after it differs from it. */
CASE(a_profile_sets_several_policies)
{
    struct hapax_policy policy = defaults();
    struct hapax_policy expected = defaults();
    char text[HAPAX_TEXT_MAX];

    set(&policy, "wait", "5s");
    set(&policy, "retention", "1h");
    set(&policy, "profile", "payments");
    expected.wait_ms = 5000;
    expected.on_expired = HAPAX_EXPIRED_HOLD;
    expected.key = HAPAX_KEY_REQUIRED;
    expected.key_min = 16;
    expected.owner_required = true;
    expected.retention_ms = 604800000;
    assert_same_policy(&policy, &expected);
    assert_int_equal(hapax_policy_check(&policy, text), HAPAX_ERR_NONE);
    set(&policy, "key_min", "32");
    expected.key_min = 32;
    assert_same_policy(&policy, &expected);
    assert_string_equal(hapax__policy_profile("payments", "on-expired"), "hold");
    assert_null(hapax__policy_profile("payments", "lease"));
    assert_null(hapax__policy_profile("payments", "none"));
    assert_null(hapax__policy_profile("none", "on-expired"));
}

/* A value that does not fit its policy changes nothing and is told what would. */
CASE(a_bad_value_leaves_the_policy_as_it_was)
{
    static const struct {
        const char *name;
        const char *value;
        const char *text;
    } cases[] = {
        {"lease", "30", "cannot set \"lease\" to \"30\": not a duration: 0, or a whole number"},
        {"lease", "forever", "ms, s, m, h or d"},
        {"run_max", "-1s", "ms, s, m, h or d"},
        {"retention", "ever", "; or forever"},
        {"wait", "", "cannot set \"wait\" to \"\""},
        {"timeout", "1x", "ms, s, m, h or d"},
        {"save-wait", "1 s", "cannot set \"save_wait\""},
        {"on_expired", "Rerun", "to \"Rerun\": must be rerun, hold or reconcile"},
        {"on_expired", "", "must be rerun, hold or reconcile"},
        {"on_failed", "rerun", "must be retry, replay or hold"},
        {"on_store_error", "close", "must be closed or open"},
        {"on_store_error", "", "must be closed or open"},
        {"key", "require", "must be optional or required"},
        {"key_min", "-1", "0 to 4294967295"},
        {"owner_required", "required", "must be off or on"},
        {"profile", "", "cannot set \"profile\" to \"\": must be payments"},
        {"profile", "payment", "must be payments"},
        {"profile", "payments2", "must be payments"},
        {"attempts_max", "4294967296", "0 to 4294967295"},
        {"attempts_max", "-1", "0 to 4294967295"},
        {"attempts_max", "8x", "0 to 4294967295"},
        {"attempts_max", "", "0 to 4294967295"},
        {"max_request", "1t", "k, m or g"},
        {"max_response", "much", "k, m or g"},
        {"rerun_completed", "true", "must be off or on"},
        {"pass_token", "1", "must be off or on"},
    };
    struct hapax_policy policy = defaults();
    const struct hapax_policy before = defaults();

    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[HAPAX_TEXT_MAX] = "";

        assert_int_equal(hapax_policy_set(&policy, cases[i].name, cases[i].value, text),
                         HAPAX_ERR_INVALID);
        if (!strstr(text, cases[i].text))
            fail_msg("%s", text);
        assert_same_policy(&policy, &before);
    }
}

/* A name that is a policy's only in part is none, and a long one fits into the text. */
CASE(an_unknown_policy_is_refused_by_name)
{
    static const char *const names[] = {"",    "leases",   "leas", "LEASE",
                                        "on_", "lease_ms", "_",    "on expired"};
    struct hapax_policy policy = defaults();
    const struct hapax_policy before = defaults();
    char text[HAPAX_TEXT_MAX] = "";
    char name[1000];

    for (size_t i = 0; i < COUNT(names); i++)
        assert_int_equal(hapax_policy_set(&policy, names[i], "1s", text), HAPAX_ERR_UNSUPPORTED);
    assert_string_equal(text, "no policy is named \"on expired\"");
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(hapax_policy_set(&policy, name, "1s", text), HAPAX_ERR_UNSUPPORTED);
    assert_int_equal(hapax_policy_set(&policy, "lease", name, text), HAPAX_ERR_INVALID);
    assert_true(strlen(text) < HAPAX_TEXT_MAX - 1);
    assert_non_null(strstr(text, "at most 3650d"));
    assert_same_policy(&policy, &before);
}

static void assert_checked(const struct hapax_policy *policy, const char *text)
{
    char said[HAPAX_TEXT_MAX] = "";
    enum hapax_error error = hapax_policy_check(policy, said);

    assert_int_equal(error, text ? HAPAX_ERR_INVALID : HAPAX_ERR_NONE);
    assert_string_equal(said, text ? text : "");
}

/* The smallest and the largest value of each field pass, and the next one names its policy. */
CASE(every_limit_is_checked_on_both_sides)
{
    const int64_t hour = 3600000;
    const char *lease = "policy \"lease\" is out of its limits, 10ms to 24h";
    const char *run_max = "policy \"run_max\" is out of its limits, 10ms to 3650d";
    const char *retention = "policy \"retention\" is out of its limits, 10ms to 3650d, or forever";
    const char *timeout = "policy \"timeout\" is out of its limits, 10ms to 1h";
    struct hapax_policy policy;

#define CHECKS(field, value, text)                                                                 \
    do {                                                                                           \
        policy = defaults();                                                                       \
        policy.run_max_ms = 24 * hour;                                                             \
        policy.field = value;                                                                      \
        assert_checked(&policy, text);                                                             \
    } while (0)
    CHECKS(lease_ms, 10, NULL);
    CHECKS(lease_ms, 9, lease);
    CHECKS(lease_ms, 24 * hour, NULL);
    CHECKS(lease_ms, 24 * hour + 1, lease);
    CHECKS(run_max_ms, 30000, NULL);
    CHECKS(run_max_ms, 9, run_max);
    CHECKS(run_max_ms, HAPAX_DURATION_MAX_MS, NULL);
    CHECKS(run_max_ms, HAPAX_DURATION_MAX_MS + 1, run_max);
    CHECKS(run_max_ms, HAPAX_FOREVER_MS, run_max);
    CHECKS(run_max_ms, 29999, "policy \"run_max\" is shorter than \"lease\"");
    CHECKS(retention_ms, 30000, NULL);
    CHECKS(retention_ms, 9, retention);
    CHECKS(retention_ms, -1, retention);
    CHECKS(retention_ms, 29999, "policy \"retention\" is shorter than \"lease\"");
    CHECKS(retention_ms, HAPAX_DURATION_MAX_MS, NULL);
    CHECKS(retention_ms, HAPAX_DURATION_MAX_MS + 1, retention);
    CHECKS(retention_ms, HAPAX_FOREVER_MS, NULL);
    CHECKS(retention_4xx_ms, 1, NULL);
    CHECKS(retention_4xx_ms, -1, "policy \"retention_4xx\" is out of its limits, 0 to 3650d");
    CHECKS(retention_failed_ms, HAPAX_FOREVER_MS,
           "policy \"retention_failed\" is out of its limits, 0 to 3650d");
    CHECKS(tombstone_ms, HAPAX_DURATION_MAX_MS, NULL);
    CHECKS(tombstone_ms, HAPAX_DURATION_MAX_MS + 1,
           "policy \"tombstone\" is out of its limits, 0 to 3650d");
    CHECKS(wait_ms, 0, NULL);
    CHECKS(wait_ms, -1, "policy \"wait\" is out of its limits, 0 to 1h");
    CHECKS(wait_ms, hour, NULL);
    CHECKS(wait_ms, hour + 1, "policy \"wait\" is out of its limits, 0 to 1h");
    CHECKS(timeout_ms, 10, NULL);
    CHECKS(timeout_ms, 9, timeout);
    CHECKS(timeout_ms, hour, NULL);
    CHECKS(timeout_ms, hour + 1, timeout);
    CHECKS(save_wait_ms, 0, NULL);
    CHECKS(save_wait_ms, -1, "policy \"save_wait\" is out of its limits, 0 to 1h");
    CHECKS(save_wait_ms, hour, NULL);
    CHECKS(save_wait_ms, hour + 1, "policy \"save_wait\" is out of its limits, 0 to 1h");
    CHECKS(key_min, 255, NULL);
    CHECKS(key_min, 256, "policy \"key_min\" is out of its limits, 0 to 255");
    CHECKS(owner_required, true, NULL);
    CHECKS(key_expires, true, NULL);
    CHECKS(attempts_max, UINT32_MAX, NULL);
    CHECKS(max_request, 0, NULL);
    CHECKS(max_request, HAPAX_BODY_MAX, NULL);
    CHECKS(max_request, HAPAX_BODY_MAX + 1,
           "policy \"max_request\" is out of its limits, 0 to 16m");
    CHECKS(max_response, HAPAX_BODY_MAX, NULL);
    CHECKS(max_response, SIZE_MAX, "policy \"max_response\" is out of its limits, 0 to 16m");
    CHECKS(rerun_completed, true, NULL);
    CHECKS(pass_token, true, NULL);
#undef CHECKS
    policy = defaults();
    policy.lease_ms = policy.run_max_ms = policy.retention_ms = 10;
    assert_checked(&policy, NULL);
}

/* A field that holds no value of its enum is refused, below and above. */
CASE(a_policy_that_is_no_word_of_its_own_is_refused)
{
    struct hapax_policy policy;

#define NO_WORD(field, type, largest)                                                              \
    do {                                                                                           \
        policy = defaults();                                                                       \
        policy.field = (enum type)0;                                                               \
        assert_checked(&policy, "policy \"" #field "\" is none of its words");                     \
        policy.field = largest;                                                                    \
        assert_checked(&policy, NULL);                                                             \
        policy.field = (enum type)(largest + 1);                                                   \
        assert_checked(&policy, "policy \"" #field "\" is none of its words");                     \
    } while (0)
    NO_WORD(on_expired, hapax_on_expired, HAPAX_EXPIRED_RECONCILE);
    NO_WORD(on_store_error, hapax_on_store_error, HAPAX_STORE_OPEN);
    NO_WORD(key, hapax_key_policy, HAPAX_KEY_REQUIRED);
#undef NO_WORD
    policy = defaults();
    policy.on_failed = (enum hapax_on_failed)(HAPAX_FAILED_HOLD + 1);
    assert_checked(&policy, "policy \"on_failed\" is none of its words");
}
