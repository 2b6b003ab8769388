/* SPDX-License-Identifier: Apache-2.0
 *
 * The class of a response, by rules.
 *
 * A rule has at most one condition, and there is no "not": rules are tried in order, so "only with
 * Retry-After" is `503+retry-after` with one class, and behind it `503` with another. Values are
 * compared as a whole, in any case. Rejected: expressions, which nobody reads right at first sight.
 *
 * There are two built-in tables. Under `rerun` a status that usually means "nothing was done" is
 * believed. Under `hold` and `reconcile` no effect may happen twice, so a status is believed only
 * where nobody but the service itself can have said it. Rejected: one table and a flow that
 * mistrusts "not run" under `hold`: the flow sees no headers, and doors know what was not sent.
 */
#include "class.h"

#include <assert.h>
#include <string.h>

/* A service that says "try again" says that it did nothing. 409 and 423 alone are verdicts. */
static const struct hapax__class_rule trusting[] = {
    {401, 401, HAPAX_CLASS_NOT_RUN, "", ""},
    {403, 403, HAPAX_CLASS_NOT_RUN, "", ""},
    {408, 408, HAPAX_CLASS_NOT_RUN, "", ""},
    {409, 409, HAPAX_CLASS_NOT_RUN, "retry-after", ""},
    {409, 409, HAPAX_CLASS_NOT_RUN, "stripe-should-retry", "true"},
    {423, 423, HAPAX_CLASS_NOT_RUN, "retry-after", ""},
    {423, 423, HAPAX_CLASS_NOT_RUN, "stripe-should-retry", "true"},
    {425, 425, HAPAX_CLASS_NOT_RUN, "", ""},
    {429, 429, HAPAX_CLASS_NOT_RUN, "", ""},
    {503, 503, HAPAX_CLASS_NOT_RUN, "", ""},
    {502, 502, HAPAX_CLASS_UNKNOWN, "", ""},
    {504, 504, HAPAX_CLASS_UNKNOWN, "", ""},
    {500, 599, HAPAX_CLASS_FAILED, "", ""},
};

/* A proxy answers 408 and 503 also when it lost the service after the request was sent, and then
 * without Retry-After. No proxy answers 409 or 423. */
static const struct hapax__class_rule strict[] = {
    {401, 401, HAPAX_CLASS_NOT_RUN, "", ""},
    {403, 403, HAPAX_CLASS_NOT_RUN, "", ""},
    {408, 408, HAPAX_CLASS_NOT_RUN, "retry-after", ""},
    {408, 408, HAPAX_CLASS_UNKNOWN, "", ""},
    {409, 409, HAPAX_CLASS_NOT_RUN, "retry-after", ""},
    {409, 409, HAPAX_CLASS_NOT_RUN, "stripe-should-retry", "true"},
    {423, 423, HAPAX_CLASS_NOT_RUN, "retry-after", ""},
    {423, 423, HAPAX_CLASS_NOT_RUN, "stripe-should-retry", "true"},
    {425, 425, HAPAX_CLASS_NOT_RUN, "", ""},
    {429, 429, HAPAX_CLASS_NOT_RUN, "", ""},
    {503, 503, HAPAX_CLASS_NOT_RUN, "retry-after", ""},
    {503, 503, HAPAX_CLASS_UNKNOWN, "", ""},
    {502, 502, HAPAX_CLASS_UNKNOWN, "", ""},
    {504, 504, HAPAX_CLASS_UNKNOWN, "", ""},
    {500, 599, HAPAX_CLASS_FAILED, "", ""},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static char lower(uint8_t byte)
{
    return (char)(byte >= 'A' && byte <= 'Z' ? byte - 'A' + 'a' : byte);
}

/* ---- reading ----------------------------------------------------------------------- */

static bool is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

static bool read_statuses(struct hapax__class_rule *rule, struct hapax_span text)
{
    if (text.len != 3 || text.ptr[0] < '2' || text.ptr[0] > '5')
        return false;
    rule->first = (uint16_t)(100 * (text.ptr[0] - '0'));
    if (memcmp(text.ptr + 1, "xx", 2) == 0) {
        rule->last = (uint16_t)(rule->first + 99);
        return true;
    }
    if (!is_digit(text.ptr[1]) || !is_digit(text.ptr[2]))
        return false;
    rule->first = (uint16_t)(rule->first + 10 * (text.ptr[1] - '0') + text.ptr[2] - '0');
    rule->last = rule->first;
    return true;
}

/* Copies 1 to HAPAX__CLASS_TEXT_MAX visible characters in lower case. */
static bool read_text(char out[HAPAX__CLASS_TEXT_MAX + 1], struct hapax_span text)
{
    if (text.len == 0 || text.len > HAPAX__CLASS_TEXT_MAX)
        return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.ptr[i] <= ' ' || text.ptr[i] >= 0x7f)
            return false;
        out[i] = lower(text.ptr[i]);
    }
    out[text.len] = '\0';
    return true;
}

/* Splits text at the first such byte. False: there is none, and *head is all of it. */
static bool split(struct hapax_span *head, struct hapax_span *tail, struct hapax_span text,
                  char byte)
{
    const uint8_t *at = text.len > 0 ? memchr(text.ptr, byte, text.len) : NULL;

    *head = text;
    if (!at)
        return false;
    head->len = (size_t)(at - text.ptr);
    *tail = (struct hapax_span){at + 1, text.len - head->len - 1};
    return true;
}

bool hapax__class_rule_parse(struct hapax__class_rule *rule, struct hapax_span text,
                             const char **why)
{
    struct hapax_span status, condition, name, value;

    *why = "statuses from 200 to 599, or 2xx to 5xx; each may have a condition, as "
           "409+retry-after or 409+stripe-should-retry=true";
    memset(rule, 0, sizeof(*rule));
    if (split(&status, &condition, text, '+')) {
        if (split(&name, &value, condition, '=') && !read_text(rule->value, value))
            return false;
        if (!read_text(rule->header, name) ||
            rule->header[strspn(rule->header, "abcdefghijklmnopqrstuvwxyz0123456789-_")] != '\0')
            return false;
    }
    if (!read_statuses(rule, status))
        return false;
    *why = NULL;
    return true;
}

/* ---- judging ----------------------------------------------------------------------- */

static bool has_value(struct hapax_span found, const char *value)
{
    size_t len = strlen(value);

    if (len == 0)
        return true;
    if (found.len != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (lower(found.ptr[i]) != value[i])
            return false;
    return true;
}

static bool fits(const struct hapax__class_rule *rule, int status, hapax__header_finder *find,
                 void *response)
{
    struct hapax_span found;

    if (status < rule->first || status > rule->last)
        return false;
    if (rule->header[0] == '\0')
        return true;
    if (!find)
        return false;
    found = find(response, rule->header);
    return found.ptr && has_value(found, rule->value);
}

enum hapax_class hapax__class_by(const struct hapax__class_rule *rules, size_t n, int status,
                                 hapax__header_finder *find, void *response)
{
    for (size_t i = 0; i < n; i++)
        if (fits(&rules[i], status, find, response))
            return rules[i].cls;
    return (enum hapax_class)0;
}

enum hapax_class hapax__class_of(const struct hapax_policy *policy, int status, bool by_close,
                                 hapax__header_finder *find, void *response)
{
    bool trusts = policy->on_expired == HAPAX_EXPIRED_RERUN;
    const struct hapax__class_rule *rules = trusts ? trusting : strict;
    size_t n = trusts ? COUNT(trusting) : COUNT(strict);
    enum hapax_class cls = hapax__class_by(rules, n, status, find, response);

    if (cls)
        return cls;
    /* 204 and 304 have no body that could be cut off. */
    return by_close && !trusts && status != 204 && status != 304 ? HAPAX_CLASS_UNKNOWN
                                                                 : HAPAX_CLASS_FINAL;
}

enum hapax_on_failed hapax__on_failed(const struct hapax_policy *policy)
{
    if (policy->on_failed)
        return policy->on_failed;
    return policy->on_expired == HAPAX_EXPIRED_RERUN ? HAPAX_FAILED_RETRY : HAPAX_FAILED_HOLD;
}

/* ---- lines ------------------------------------------------------------------------- */

static bool is_name(struct hapax_span name, const char *wanted)
{
    return name.len == strlen(wanted) && has_value(name, wanted);
}

/* Without the blanks around it; ptr is not NULL even if nothing is left. */
static struct hapax_span trim(struct hapax_span value)
{
    while (value.len > 0 && (value.ptr[0] == ' ' || value.ptr[0] == '\t')) {
        value.ptr++;
        value.len--;
    }
    while (value.len > 0 && memchr(" \t\r", value.ptr[value.len - 1], 3))
        value.len--;
    return value;
}

static struct hapax_span find_line(void *response, const char *name)
{
    struct hapax_span rest = *(const struct hapax_span *)response;
    struct hapax_span line, head, value;

    while (split(&line, &rest, rest, '\n'))
        if (split(&head, &value, line, ':') && is_name(head, name))
            return trim(value);
    return (struct hapax_span){NULL, 0};
}

enum hapax_class hapax_class_of_response(const struct hapax_policy *policy, int status,
                                         struct hapax_span headers)
{
    return hapax__class_of(policy, status, false, find_line, &headers);
}
