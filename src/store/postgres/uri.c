/* SPDX-License-Identifier: Apache-2.0
 *
 * What a PostgreSQL URI says. It is libpq's own, with all its parameters, and ours among them. Ours
 * are taken out first, since libpq refuses what it does not know. All names are checked before
 * libpq sees the URI, because its complaints can quote the whole URI, with the password.
 */
#include "link.h"

#include "base/fail.h"
#include "base/uri.h"

#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS   2000
#define NAME_MAX_LEN 63u

struct reading {
    struct hapax__uri_reading uri; /* first */
    const PQconninfoOption *defaults; /* libpq's parameters */
};

static bool known(const PQconninfoOption *defaults, const char *name)
{
    if (strcmp(name, "ssl") == 0) /* libpq's other spelling of sslmode=require */
        return true;
    for (; defaults->keyword; defaults++)
        if (strcmp(defaults->keyword, name) == 0 && defaults->dispchar[0] != 'D')
            return true;
    return false;
}

static const struct hapax__uri_option uri_options[] = {
    {"timeout", HAPAX__URI_DURATION, HAPAX__URI_FIELD(struct hapax__pg_uri, timeout_ms), 10, 60000,
     "timeout is not between 10ms and 1m"}};

/* Refuses a parameter that libpq does not know, since libpq's complaint would show the URI. */
static enum hapax_error check_other(struct hapax__uri_reading *r,
                                    const struct hapax__uri_parameter *given)
{
    char name[NAME_MAX_LEN + 1];

    if (!hapax__uri_decode(name, sizeof(name), given->name, given->name_len))
        return hapax__uri_wrong(r, "the name of a parameter is malformed");
    if (!known(((const struct reading *)r)->defaults, name))
        return hapax__uri_wrong(r, "no parameter of PostgreSQL or of Hapax is named %s", name);
    return HAPAX_ERR_NONE;
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

static enum hapax_error count_hosts(const struct hapax__uri_reading *r)
{
    struct hapax__pg_uri *out = r->out;
    size_t names = count(value_of(out->options, "host"));
    size_t addresses = count(value_of(out->options, "hostaddr"));
    size_t ports = count(value_of(out->options, "port"));

    out->hosts = addresses > 0 ? addresses : names > 0 ? names : 1;
    if (out->hosts > HAPAX__PG_HOSTS_MAX)
        return hapax__uri_wrong(r, "it names over 16 hosts");
    if (names > 0 && addresses > 0 && names != addresses)
        return hapax__uri_wrong(r, "it has not as many of host as of hostaddr");
    if (ports > 1 && ports != out->hosts)
        return hapax__uri_wrong(r, "it has not as many ports as hosts");
    return HAPAX_ERR_NONE;
}

/* Shows libpq's complaint up to its colon: a password may stand behind the colon. */
static enum hapax_error parse(const struct hapax__uri_reading *r, const char *stripped)
{
    struct hapax__pg_uri *out = r->out;
    char *message = NULL;
    enum hapax_error error;

    out->options = PQconninfoParse(stripped, &message);
    if (out->options)
        return count_hosts(r);
    if (!message)
        return hapax__fail(r->text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    error = hapax__uri_wrong(r, "%.*s", (int)strcspn(message, ":\n"), message);
    PQfreemem(message);
    return error;
}

enum hapax_error hapax__pg_uri(struct hapax__pg_uri *out, const char *uri,
                               char text[HAPAX_TEXT_MAX])
{
    PQconninfoOption *defaults = PQconndefaults();
    struct reading r = {.uri = {.what = "PostgreSQL",
                                .text = text,
                                .out = out,
                                .options = uri_options,
                                .option_count = sizeof(uri_options) / sizeof(uri_options[0]),
                                .other = check_other},
                        .defaults = defaults};
    char *stripped = strdup(uri);
    enum hapax_error error;

    memset(out, 0, sizeof(*out));
    out->timeout_ms = TIMEOUT_MS;
    if (!defaults || !stripped)
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    else if (strncmp(uri + strcspn(uri, ":"), "://", 3) != 0)
        error = hapax__uri_wrong(&r.uri, "it does not begin with postgres://");
    else
        error = hapax__uri_strip(&r.uri, stripped);
    if (error == HAPAX_ERR_NONE)
        error = parse(&r.uri, stripped);
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
