/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies: their defaults, their texts, their limits.
 *
 * Each policy is one row of a table, which has its name, kind, offset and limits. So
 * hapax_policy_check() checks whatever a door can set, and no policy has a second name. The
 * invariant: a policy is changed by a whole valid value or not at all.
 *
 * A value's own limits are judged by hapax_policy_check() and not while it is set, since some
 * depend on another (a retention on the lease) and the order of settings must not matter.
 * A profile is a list of such settings under one name, and is set by hapax_policy_set(), too: what
 * is set after it differs from it.
 * The tables hold characters and no pointers, so that they need no relocation.
 */
#include "policy.h"

#include "base/units.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define SECOND_MS    INT64_C(1000)
#define MINUTE_MS    (60 * SECOND_MS)
#define HOUR_MS      (60 * MINUTE_MS)
#define DAY_MS       (24 * HOUR_MS)
#define TEN_YEARS_MS HAPAX_DURATION_MAX_MS
#define WORDS_MAX    3
#define SHOWN_BYTES  40 /* of a foreign name or value, in a text */

enum kind { DURATION, RETENTION, SIZE, NUMBER, WORD, SWITCH };

struct row {
    char name[20];
    enum kind kind;
    size_t at; /* in struct hapax_policy */
    int64_t min_ms; /* of a WORD: 0 where no word is a value, too */
    int64_t max_ms; /* of a NUMBER: the largest */
    char limits[32];
    char words[WORDS_MAX][12]; /* of the enum's values 1, 2, …; of false and true */
};

#define AT(field) offsetof(struct hapax_policy, field)

static const struct row rows[] = {
    {"lease", DURATION, AT(lease_ms), 10, DAY_MS, "10ms to 24h", {""}},
    {"run_max", DURATION, AT(run_max_ms), 10, TEN_YEARS_MS, "10ms to 3650d", {""}},
    {"retention", RETENTION, AT(retention_ms), 10, TEN_YEARS_MS, "10ms to 3650d, or forever", {""}},
    {"retention_4xx", DURATION, AT(retention_4xx_ms), 0, TEN_YEARS_MS, "0 to 3650d", {""}},
    {"retention_failed", DURATION, AT(retention_failed_ms), 0, TEN_YEARS_MS, "0 to 3650d", {""}},
    {"tombstone", DURATION, AT(tombstone_ms), 0, TEN_YEARS_MS, "0 to 3650d", {""}},
    {"wait", DURATION, AT(wait_ms), 0, HOUR_MS, "0 to 1h", {""}},
    {"timeout", DURATION, AT(timeout_ms), 10, HOUR_MS, "10ms to 1h", {""}},
    {"save_wait", DURATION, AT(save_wait_ms), 0, HOUR_MS, "0 to 1h", {""}},
    {"on_expired", WORD, AT(on_expired), 1, 0, "", {"rerun", "hold", "reconcile"}},
    {"on_failed", WORD, AT(on_failed), 0, 0, "", {"retry", "replay", "hold"}},
    {"on_store_error", WORD, AT(on_store_error), 1, 0, "", {"closed", "open"}},
    {"key", WORD, AT(key), 1, 0, "", {"optional", "required"}},
    {"key_min", NUMBER, AT(key_min), 0, HAPAX_KEY_MAX, "0 to 255", {""}},
    {"owner_required", SWITCH, AT(owner_required), 0, 0, "", {"off", "on"}},
    {"key_expires", SWITCH, AT(key_expires), 0, 0, "", {"off", "on"}},
    {"attempts_max", NUMBER, AT(attempts_max), 0, UINT32_MAX, "0 to 4294967295", {""}},
    {"max_request", SIZE, AT(max_request), 0, 0, "0 to 16m", {""}},
    {"max_response", SIZE, AT(max_response), 0, 0, "0 to 16m", {""}},
    {"rerun_completed", SWITCH, AT(rerun_completed), 0, 0, "", {"off", "on"}},
    {"pass_token", SWITCH, AT(pass_token), 0, 0, "", {"off", "on"}},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* What profiles set. The settings of one profile stand together. */
static const struct {
    char profile[12];
    char name[16];
    char value[12];
} profiles[] = {
    {"payments", "on_expired", "hold"}, {"payments", "key", "required"},
    {"payments", "key_min", "16"},      {"payments", "owner_required", "on"},
    {"payments", "retention", "7d"},
};

/* The words of all enums are read and written as one type of number. */
static_assert(sizeof(enum hapax_on_expired) == sizeof(uint32_t), "enums are 32 bits");
static_assert(sizeof(enum hapax_on_failed) == sizeof(uint32_t), "enums are 32 bits");
static_assert(sizeof(enum hapax_on_store_error) == sizeof(uint32_t), "enums are 32 bits");
static_assert(sizeof(enum hapax_key_policy) == sizeof(uint32_t), "enums are 32 bits");
static_assert(HAPAX_BODY_MAX == 16u << 20, "the texts say 16m");
static_assert(HAPAX_KEY_MAX == 255, "the texts say 255");
static_assert(HAPAX_DURATION_MAX_MS == 3650 * DAY_MS, "the texts say 3650d");

void hapax_policy_init(struct hapax_policy *policy)
{
    *policy = (struct hapax_policy){
        .lease_ms = 30 * SECOND_MS,
        .run_max_ms = HOUR_MS,
        .retention_ms = DAY_MS,
        .retention_4xx_ms = 0,
        .retention_failed_ms = 0,
        .tombstone_ms = 0,
        .wait_ms = 0,
        .timeout_ms = 2 * SECOND_MS,
        .save_wait_ms = 2 * SECOND_MS,
        .on_expired = HAPAX_EXPIRED_RERUN,
        .on_failed = (enum hapax_on_failed)0,
        .on_store_error = HAPAX_STORE_CLOSED,
        .key = HAPAX_KEY_OPTIONAL,
        .key_min = 0,
        .owner_required = false,
        .key_expires = false,
        .attempts_max = 0,
        .max_request = 1u << 20,
        .max_response = 1u << 20,
        .rerun_completed = false,
        .pass_token = false,
    };
}

/* ---- values ------------------------------------------------------------------------ */

/* The word's index in its row; -1: the row does not have it. */
static int find_word(const struct row *row, const char *value)
{
    for (int i = 0; i < WORDS_MAX && row->words[i][0] != '\0'; i++)
        if (strcmp(row->words[i], value) == 0)
            return i;
    return -1;
}

static uint32_t words_of(const struct row *row)
{
    uint32_t n = 0;

    while (n < WORDS_MAX && row->words[n][0] != '\0')
        n++;
    return n;
}

/* ---- setting ----------------------------------------------------------------------- */

/* '-' reads as '_', so that flags need no other names. */
static bool same_name(const char *name, const char *given)
{
    for (; *name != '\0' && *name == (*given == '-' ? '_' : *given); name++)
        given++;
    return *name == '\0' && *given == '\0';
}

static const struct row *find_row(const char *name)
{
    for (size_t i = 0; i < ROWS; i++)
        if (same_name(rows[i].name, name))
            return &rows[i];
    return NULL;
}

static bool set_duration(uint8_t *field, const struct row *row, const char *value, const char **why)
{
    int64_t ms;

    if (row->kind == RETENTION && strcmp(value, "forever") == 0)
        ms = HAPAX_FOREVER_MS;
    else if (!hapax__duration_parse(&ms, value, why))
        return false;
    memcpy(field, &ms, sizeof(ms));
    return true;
}

static bool set_size(uint8_t *field, const char *value, const char **why)
{
    size_t size;

    if (!hapax__size_parse(&size, value, why))
        return false;
    memcpy(field, &size, sizeof(size));
    return true;
}

static bool set_number(uint8_t *field, const char *value, const char **why)
{
    uint64_t wide;
    uint32_t number;

    *why = "not a whole number from 0 to 4294967295";
    if (!hapax__number_parse(&wide, value, strlen(value), UINT32_MAX))
        return false;
    number = (uint32_t)wide;
    memcpy(field, &number, sizeof(number));
    return true;
}

static bool set_word(uint8_t *field, const struct row *row, const char *value, const char **why)
{
    int word = find_word(row, value);
    uint32_t number = (uint32_t)word + 1;
    bool on = word == 1;

    *why = NULL; /* the text is made of the row's words */
    if (word < 0)
        return false;
    if (row->kind == SWITCH)
        memcpy(field, &on, sizeof(on));
    else
        memcpy(field, &number, sizeof(number));
    return true;
}

static void say_words(char text[HAPAX_TEXT_MAX], const struct row *row, const char *value)
{
    if (words_of(row) == 3)
        snprintf(text, HAPAX_TEXT_MAX, "cannot set \"%s\" to \"%.*s\": must be %s, %s or %s",
                 row->name, SHOWN_BYTES, value, row->words[0], row->words[1], row->words[2]);
    else
        snprintf(text, HAPAX_TEXT_MAX, "cannot set \"%s\" to \"%.*s\": must be %s or %s", row->name,
                 SHOWN_BYTES, value, row->words[0], row->words[1]);
}

static enum hapax_error set_profile(struct hapax_policy *policy, const char *value,
                                    char text[HAPAX_TEXT_MAX])
{
    bool found = false;

    for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++) {
        enum hapax_error error;

        if (strcmp(profiles[i].profile, value) != 0)
            continue;
        found = true;
        error = hapax_policy_set(policy, profiles[i].name, profiles[i].value, text);
        assert(error == HAPAX_ERR_NONE);
    }
    if (found)
        return HAPAX_ERR_NONE;
    snprintf(text, HAPAX_TEXT_MAX, "cannot set \"profile\" to \"%.*s\": must be payments",
             SHOWN_BYTES, value);
    return HAPAX_ERR_INVALID;
}

const char *hapax__policy_profile(const char *profile, const char *name)
{
    const struct row *row = find_row(name);

    for (size_t i = 0; row && i < sizeof(profiles) / sizeof(profiles[0]); i++)
        if (strcmp(profiles[i].profile, profile) == 0 && strcmp(profiles[i].name, row->name) == 0)
            return profiles[i].value;
    return NULL;
}

enum hapax_error hapax_policy_set(struct hapax_policy *policy, const char *name, const char *value,
                                  char text[HAPAX_TEXT_MAX])
{
    const struct row *row = find_row(name);
    const char *why = NULL;
    uint8_t *field;
    bool set;

    if (strcmp(name, "profile") == 0)
        return set_profile(policy, value, text);
    if (!row) {
        snprintf(text, HAPAX_TEXT_MAX, "no policy is named \"%.*s\"", SHOWN_BYTES, name);
        return HAPAX_ERR_UNSUPPORTED;
    }
    field = (uint8_t *)policy + row->at;
    if (row->kind == DURATION || row->kind == RETENTION)
        set = set_duration(field, row, value, &why);
    else if (row->kind == SIZE)
        set = set_size(field, value, &why);
    else if (row->kind == NUMBER)
        set = set_number(field, value, &why);
    else
        set = set_word(field, row, value, &why);
    if (set)
        return HAPAX_ERR_NONE;
    if (why)
        snprintf(text, HAPAX_TEXT_MAX, "cannot set \"%s\" to \"%.*s\": %s%s", row->name,
                 SHOWN_BYTES, value, why, row->kind == RETENTION ? "; or forever" : "");
    else
        say_words(text, row, value);
    return HAPAX_ERR_INVALID;
}

/* ---- checking ---------------------------------------------------------------------- */

static bool in_limits(const struct row *row, const struct hapax_policy *policy)
{
    const uint8_t *field = (const uint8_t *)policy + row->at;
    int64_t ms;
    size_t size;
    uint32_t number;

    if (row->kind == DURATION || row->kind == RETENTION) {
        memcpy(&ms, field, sizeof(ms));
        return (ms >= row->min_ms && ms <= row->max_ms) ||
               (row->kind == RETENTION && ms == HAPAX_FOREVER_MS);
    }
    if (row->kind == SIZE) {
        memcpy(&size, field, sizeof(size));
        return size <= HAPAX_BODY_MAX;
    }
    if (row->kind == WORD) {
        memcpy(&number, field, sizeof(number));
        return number >= (uint32_t)row->min_ms && number <= words_of(row);
    }
    if (row->kind == NUMBER) {
        memcpy(&number, field, sizeof(number));
        return number <= (uint32_t)row->max_ms;
    }
    assert(row->kind == SWITCH); /* every value of a switch is one */
    return true;
}

enum hapax_error hapax_policy_check(const struct hapax_policy *policy, char text[HAPAX_TEXT_MAX])
{
    for (size_t i = 0; i < ROWS; i++) {
        if (in_limits(&rows[i], policy))
            continue;
        if (rows[i].kind == WORD)
            snprintf(text, HAPAX_TEXT_MAX, "policy \"%s\" is none of its words", rows[i].name);
        else
            snprintf(text, HAPAX_TEXT_MAX, "policy \"%s\" is out of its limits, %s", rows[i].name,
                     rows[i].limits);
        return HAPAX_ERR_INVALID;
    }
    if (policy->run_max_ms < policy->lease_ms) {
        snprintf(text, HAPAX_TEXT_MAX, "policy \"run_max\" is shorter than \"lease\"");
        return HAPAX_ERR_INVALID;
    }
    if (policy->retention_ms < policy->lease_ms) {
        snprintf(text, HAPAX_TEXT_MAX, "policy \"retention\" is shorter than \"lease\"");
        return HAPAX_ERR_INVALID;
    }
    return HAPAX_ERR_NONE;
}
