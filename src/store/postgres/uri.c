/* SPDX-License-Identifier: Apache-2.0
 *
 * What a PostgreSQL URI says. It is libpq's own, with all its parameters, and ours among them:
 * those are taken out first, for libpq refuses what it does not know. Parameters are looked at
 * before libpq sees the URI, because its complaints can quote the whole of it, password and all.
 */
#include "link.h"

#include "base/fail.h"
#include "base/uri.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS     2000
#define TIMEOUT_MIN_MS 10
#define TIMEOUT_MAX_MS 60000
#define NAME_MAX_LEN   63u

static enum hapax_error fail(char text[HAPAX_TEXT_MAX], const char *uri, const char *format,
                             const char *what)
{
    char shown[HAPAX_TEXT_MAX];
    char why[HAPAX_TEXT_MAX];

    hapax_store_shown(shown, uri);
    (void)hapax__fail(why, HAPAX_ERR_INVALID, "%s%s", format, what);
    return hapax__fail(text, HAPAX_ERR_INVALID, "cannot use store \"%.100s\": %.120s", shown, why);
}

/* Where libpq begins to read parameters: a '?' in front of the '@' belongs to a password. */
static char *query_of(char *uri)
{
    size_t login;
    char *at;

    assert(uri);
    at = strstr(uri, "://");
    if (!at)
        return NULL;
    at += 3;
    login = strcspn(at, "@/");
    if (at[login] == '@')
        at += login + 1;
    return strchr(at, '?');
}

static bool known(const PQconninfoOption *defaults, const char *name)
{
    if (strcmp(name, "ssl") == 0) /* libpq's other spelling of sslmode=require */
        return true;
    for (; defaults->keyword; defaults++)
        if (strcmp(defaults->keyword, name) == 0 && defaults->dispchar[0] != 'D')
            return true;
    return false;
}

static enum hapax_error take_timeout(struct hapax__pg_uri *out, const char *uri, const char *value,
                                     char text[HAPAX_TEXT_MAX])
{
    struct hapax_policy policy;
    char why[HAPAX_TEXT_MAX];

    hapax_policy_init(&policy);
    if (hapax_policy_set(&policy, "timeout", value, why) != HAPAX_ERR_NONE ||
        policy.timeout_ms < TIMEOUT_MIN_MS || policy.timeout_ms > TIMEOUT_MAX_MS)
        return fail(text, uri, "", "timeout is not between 10ms and 1m");
    out->timeout_ms = policy.timeout_ms;
    return HAPAX_ERR_NONE;
}

/* Looks at each parameter, and moves those that are libpq's together. */
static enum hapax_error take_parameters(struct hapax__pg_uri *out, const char *uri, char *query,
                                        const PQconninfoOption *defaults, char text[HAPAX_TEXT_MAX])
{
    struct hapax__uri_parameter parameter;
    const char *rest = query;
    enum hapax_error error = HAPAX_ERR_NONE;
    char *to = query;

    while (error == HAPAX_ERR_NONE && hapax__uri_parameter(&parameter, &rest)) {
        size_t len = (size_t)(parameter.value + parameter.value_len - parameter.name);
        char name[NAME_MAX_LEN + 1], value[NAME_MAX_LEN + 1];

        if (!hapax__uri_decode(name, sizeof(name), parameter.name, parameter.name_len))
            return fail(text, uri, "", "the name of a parameter is malformed");
        if (strcmp(name, "timeout") == 0) {
            if (!hapax__uri_decode(value, sizeof(value), parameter.value, parameter.value_len))
                return fail(text, uri, "", "timeout is not between 10ms and 1m");
            error = take_timeout(out, uri, value, text);
            continue;
        }
        if (!known(defaults, name))
            return fail(text, uri, "no parameter of PostgreSQL or of Hapax is named ", name);
        memmove(to, parameter.name, len);
        to += len;
        if (*rest != '\0')
            *to++ = '&';
    }
    if (to > query && to[-1] == '&')
        to--;
    if (to == query) /* not even the '?' is left */
        to--;
    *to = '\0';
    return error;
}

/* How many a list has. 0: it is empty. */
static size_t count(const char *list)
{
    size_t n = list && *list ? 1 : 0;

    for (; list && *list; list++)
        n += *list == ',';
    return n;
}

static const char *value_of(const PQconninfoOption *option, const char *name)
{
    for (; option->keyword; option++)
        if (strcmp(option->keyword, name) == 0)
            return option->val;
    return NULL;
}

static enum hapax_error count_hosts(struct hapax__pg_uri *out, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    size_t names = count(value_of(out->options, "host"));
    size_t addresses = count(value_of(out->options, "hostaddr"));
    size_t ports = count(value_of(out->options, "port"));

    out->hosts = addresses > 0 ? addresses : names > 0 ? names : 1;
    if (out->hosts > HAPAX__PG_HOSTS_MAX)
        return fail(text, uri, "", "it names over 16 hosts");
    if (names > 0 && addresses > 0 && names != addresses)
        return fail(text, uri, "", "it has not as many of host as of hostaddr");
    if (ports > 1 && ports != out->hosts)
        return fail(text, uri, "", "it has not as many ports as hosts");
    return HAPAX_ERR_NONE;
}

/* libpq's complaint, as far as it cannot quote a password: that comes behind a colon. */
static enum hapax_error parse(struct hapax__pg_uri *out, const char *uri, const char *stripped,
                              char text[HAPAX_TEXT_MAX])
{
    char *message = NULL;
    char why[HAPAX_TEXT_MAX];

    out->options = PQconninfoParse(stripped, &message);
    if (out->options)
        return count_hosts(out, uri, text);
    if (!message)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    (void)hapax__fail(why, HAPAX_ERR_INVALID, "%.*s", (int)strcspn(message, ":\n"), message);
    PQfreemem(message);
    return fail(text, uri, why, "");
}

enum hapax_error hapax__pg_uri(struct hapax__pg_uri *out, const char *uri,
                               char text[HAPAX_TEXT_MAX])
{
    PQconninfoOption *defaults = PQconndefaults();
    char *stripped = strdup(uri);
    enum hapax_error error = HAPAX_ERR_NONE;
    char *query;

    memset(out, 0, sizeof(*out));
    out->timeout_ms = TIMEOUT_MS;
    if (!defaults || !stripped)
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    else if (strncmp(uri + strcspn(uri, ":"), "://", 3) != 0)
        error = fail(text, uri, "", "it does not begin with postgres://");
    query = error == HAPAX_ERR_NONE ? query_of(stripped) : NULL;
    if (query)
        error = take_parameters(out, uri, query + 1, defaults, text);
    if (error == HAPAX_ERR_NONE)
        error = parse(out, uri, stripped, text);
    if (stripped)
        explicit_bzero(stripped, strlen(stripped));
    free(stripped);
    PQconninfoFree(defaults);
    if (error != HAPAX_ERR_NONE)
        hapax__pg_uri_release(out);
    return error;
}

void hapax__pg_uri_release(struct hapax__pg_uri *uri)
{
    PQconninfoFree(uri->options);
    uri->options = NULL;
}
