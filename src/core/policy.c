/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies: their defaults, their texts, their limits; and the class of a status.
 *
 * Each policy is one row of a table, which has its name, kind, offset and limits. So
 * hapax_policy_check() checks whatever a door can set, and no policy has a second name. The
 * invariant: a policy is changed by a whole valid value or not at all.
 *
 * A value's own limits are judged by hapax_policy_check() and not while it is set, since some
 * depend on another (a retention on the lease) and the order of settings must not matter.
 * The table holds characters and no pointers, so that it needs no relocation. Rejected:
 * fractions (`1.5s`), which people round differently.
 */
#include "policy.h"

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
    char name[16];
    enum kind kind;
    size_t at; /* in struct hapax_policy */
    int64_t min_ms;
    int64_t max_ms;
    char limits[32];
    char words[WORDS_MAX][12]; /* of the enum's values 1, 2, …; of false and true */
};

#define AT(field) offsetof(struct hapax_policy, field)

static const struct row rows[] = {
    {"lease", DURATION, AT(lease_ms), 10, DAY_MS, "10ms to 24h", {""}},
    {"run_max", DURATION, AT(run_max_ms), 10, TEN_YEARS_MS, "10ms to 3650d", {""}},
    {"retention", RETENTION, AT(retention_ms), 10, TEN_YEARS_MS, "10ms to 3650d, or forever", {""}},
    {"wait", DURATION, AT(wait_ms), 0, HOUR_MS, "0 to 1h", {""}},
    {"timeout", DURATION, AT(timeout_ms), 10, HOUR_MS, "10ms to 1h", {""}},
    {"save_wait", DURATION, AT(save_wait_ms), 0, HOUR_MS, "0 to 1h", {""}},
    {"on_expired", WORD, AT(on_expired), 0, 0, "", {"rerun", "hold", "reconcile"}},
    {"on_failed", WORD, AT(on_failed), 0, 0, "", {"retry", "replay", "hold"}},
    {"on_store_error", WORD, AT(on_store_error), 0, 0, "", {"closed", "open"}},
    {"key", WORD, AT(key), 0, 0, "", {"optional", "required"}},
    {"attempts_max", NUMBER, AT(attempts_max), 0, 0, "", {""}},
    {"max_request", SIZE, AT(max_request), 0, 0, "0 to 16m", {""}},
    {"max_response", SIZE, AT(max_response), 0, 0, "0 to 16m", {""}},
    {"rerun_completed", SWITCH, AT(rerun_completed), 0, 0, "", {"off", "on"}},
    {"pass_token", SWITCH, AT(pass_token), 0, 0, "", {"off", "on"}},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* The words of all enums are read and written as one type of number. */
static_assert(sizeof(enum hapax_on_expired) == sizeof(uint32_t), "enums are 32 bits");
static_assert(sizeof(enum hapax_on_failed) == sizeof(uint32_t), "enums are 32 bits");
static_assert(sizeof(enum hapax_on_store_error) == sizeof(uint32_t), "enums are 32 bits");
static_assert(sizeof(enum hapax_key_policy) == sizeof(uint32_t), "enums are 32 bits");
static_assert(HAPAX_BODY_MAX == 16u << 20, "the texts say 16m");
static_assert(HAPAX_DURATION_MAX_MS == 3650 * DAY_MS, "the texts say 3650d");

void hapax_policy_init(struct hapax_policy *policy)
{
    *policy = (struct hapax_policy){
        .lease_ms = 30 * SECOND_MS,
        .run_max_ms = HOUR_MS,
        .retention_ms = DAY_MS,
        .wait_ms = 0,
        .timeout_ms = 2 * SECOND_MS,
        .save_wait_ms = 2 * SECOND_MS,
        .on_expired = HAPAX_EXPIRED_RERUN,
        .on_failed = HAPAX_FAILED_RETRY,
        .on_store_error = HAPAX_STORE_CLOSED,
        .key = HAPAX_KEY_OPTIONAL,
        .attempts_max = 0,
        .max_request = 1u << 20,
        .max_response = 1u << 20,
        .rerun_completed = false,
        .pass_token = false,
    };
}

/* ---- values ------------------------------------------------------------------------ */

/* Reads the digits value begins with, one at least, up to max. *rest: what follows them. */
static bool parse_number(uint64_t *number, const char *value, uint64_t max, const char **rest)
{
    uint64_t n = 0;
    const char *at = value;

    for (; *at >= '0' && *at <= '9'; at++) {
        unsigned digit = (unsigned)(*at - '0');

        if (n > (max - digit) / 10)
            return false;
        n = n * 10 + digit;
    }
    *number = n;
    *rest = at;
    return at != value;
}

/* How many ms the unit has; 0: no unit of ours. */
static uint64_t unit_ms(const char *unit)
{
    if (strcmp(unit, "ms") == 0)
        return 1;
    if (strcmp(unit, "s") == 0)
        return SECOND_MS;
    if (strcmp(unit, "m") == 0)
        return MINUTE_MS;
    if (strcmp(unit, "h") == 0)
        return HOUR_MS;
    return strcmp(unit, "d") == 0 ? DAY_MS : 0;
}

bool hapax__duration_parse(int64_t *ms, const char *value, const char **why)
{
    uint64_t number;
    uint64_t unit;
    const char *rest;

    *why = "not a duration: 0, or a whole number with ms, s, m, h or d, as 30s; at most 3650d";
    if (!parse_number(&number, value, HAPAX_DURATION_MAX_MS, &rest))
        return false;
    unit = *rest == '\0' && number == 0 ? 1 : unit_ms(rest);
    if (unit == 0 || number > HAPAX_DURATION_MAX_MS / unit)
        return false;
    *ms = (int64_t)(number * unit);
    *why = NULL;
    assert(*ms >= 0 && *ms <= HAPAX_DURATION_MAX_MS);
    return true;
}

/* How many bytes the unit has; 0: no unit of ours. */
static uint64_t unit_bytes(const char *unit)
{
    if (*unit == '\0')
        return 1;
    if (strcmp(unit, "k") == 0)
        return 1u << 10;
    if (strcmp(unit, "m") == 0)
        return 1u << 20;
    return strcmp(unit, "g") == 0 ? 1u << 30 : 0;
}

bool hapax__size_parse(size_t *size, const char *value, const char **why)
{
    uint64_t number;
    uint64_t unit;
    const char *rest;

    *why = "not a size: a whole number of bytes, or one with k, m or g, as 64k";
    if (!parse_number(&number, value, SIZE_MAX, &rest))
        return false;
    unit = unit_bytes(rest);
    if (unit == 0 || number > SIZE_MAX / unit)
        return false;
    *size = (size_t)(number * unit);
    *why = NULL;
    return true;
}

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
    const char *rest;

    *why = "not a whole number from 0 to 4294967295";
    if (!parse_number(&wide, value, UINT32_MAX, &rest) || *rest != '\0')
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

enum hapax_error hapax_policy_set(struct hapax_policy *policy, const char *name, const char *value,
                                  char text[HAPAX_TEXT_MAX])
{
    const struct row *row = find_row(name);
    const char *why = NULL;
    uint8_t *field;
    bool set;

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
        return number >= 1 && number <= words_of(row);
    }
    assert(row->kind == NUMBER || row->kind == SWITCH); /* every value of those is one */
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

/* ---- classes ----------------------------------------------------------------------- */

enum hapax_class hapax_class_of_status(int status)
{
    switch (status) {
    case 401:
    case 403:
    case 408:
    case 425:
    case 429:
    case 503:
        return HAPAX_CLASS_NOT_RUN;
    case 502:
    case 504:
        return HAPAX_CLASS_UNKNOWN;
    default:
        return status >= 500 && status <= 599 ? HAPAX_CLASS_FAILED : HAPAX_CLASS_FINAL;
    }
}
