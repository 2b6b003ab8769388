/* SPDX-License-Identifier: Apache-2.0
 *
 * The hybrid store's URI: hybrid:REDIS-URI[,REDIS-URI…]+POSTGRES-URI. It is cut at the last
 * `+postgres://`, and what stands before that at each comma with a Redis scheme behind it, for
 * sentinels have commas of their own.
 *
 * The invariant: each half is read by its own store and by nobody else; here nothing is known of
 * a half but where it ends. Rejected: a separator that no URI can contain, which nobody would
 * remember.
 */
#include "base/uri.h"
#include "base/fail.h"
#include "base/span.h"
#include "hybrid.h"

#include <stdlib.h>
#include <string.h>

#define URI_MAX 4096u

void hapax__hybrid_parts_release(struct hapax__hybrid_parts *parts)
{
    if (parts->copy)
        explicit_bzero(parts->copy, parts->size); /* there are passwords in it */
    free(parts->copy);
}

static bool begins_redis(const char *at)
{
    static const char *const schemes[] = {"redis://",           "rediss://",
                                          "redis+sentinel://",  "redis+cluster://",
                                          "rediss+sentinel://", "rediss+cluster://"};

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (hapax__text_begins(at, schemes[i]))
            return true;
    return false;
}

static char *find_postgres(char *uri)
{
    char *found = NULL;

    for (char *at = strchr(uri, '+'); at; at = strchr(at + 1, '+'))
        if (strncmp(at, "+postgres://", 12) == 0 || strncmp(at, "+postgresql://", 14) == 0)
            found = at;
    return found;
}

static enum hapax_error wrong(char text[HAPAX_TEXT_MAX], const char *what)
{
    return hapax__fail(text, HAPAX_ERR_INVALID, "the hybrid URI is wrong: %s", what);
}

/* Takes stale_replay out of PostgreSQL's parameters. */
static enum hapax_error take_parameters(struct hapax__hybrid_parts *parts,
                                        char text[HAPAX_TEXT_MAX])
{
    char *host = strstr(parts->postgres, "://") + 3, *query, *to;
    struct hapax__uri_parameter given;
    const char *rest;
    bool seen = false;

    if (host[strcspn(host, "@/")] == '@')
        host += strcspn(host, "@/");
    query = strchr(host, '?');
    if (!query)
        return HAPAX_ERR_NONE;
    rest = to = query + 1;
    while (hapax__uri_parameter(&given, &rest)) {
        size_t len = (size_t)(given.value + given.value_len - given.name);

        if (given.name_len != 12 || memcmp(given.name, "stale_replay", 12) != 0) {
            memmove(to, given.name, len);
            to += len;
            if (*rest != '\0')
                *to++ = '&';
            continue;
        }
        parts->stale_replay = given.value_len == 2 && memcmp(given.value, "on", 2) == 0;
        if (seen ||
            (!parts->stale_replay && (given.value_len != 3 || memcmp(given.value, "off", 3) != 0)))
            return wrong(text, "\"stale_replay\" is not on or off, once");
        seen = true;
    }
    if (to > query + 1 && to[-1] == '&')
        to--;
    *(to == query + 1 ? query : to) = '\0';
    return HAPAX_ERR_NONE;
}

static enum hapax_error split_redis(struct hapax__hybrid_parts *parts, char *at,
                                    char text[HAPAX_TEXT_MAX])
{
    if (!begins_redis(at))
        return wrong(text, "it is not hybrid:REDIS-URI[,REDIS-URI…]+POSTGRES-URI");
    while (at) {
        char *next = strchr(at, ',');

        while (next && !begins_redis(next + 1))
            next = strchr(next + 1, ',');
        if (next)
            *next = '\0';
        if (parts->redis_count == HAPAX__REDLOCK_NODES_MAX)
            return wrong(text, "it has more than 9 Redis nodes");
        parts->redis[parts->redis_count++] = at;
        at = next ? next + 1 : NULL;
    }
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__hybrid_parts(struct hapax__hybrid_parts *parts, const char *uri,
                                     char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;
    char *postgres;

    memset(parts, 0, sizeof(*parts));
    if (strlen(uri) > URI_MAX)
        return wrong(text, "it is over 4096 bytes");
    parts->copy = strdup(uri + strcspn(uri, ":") + 1);
    if (!parts->copy)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    parts->size = strlen(parts->copy);
    postgres = find_postgres(parts->copy);
    if (!postgres)
        return wrong(text, "no +postgres://… follows its Redis");
    *postgres = '\0';
    parts->postgres = postgres + 1;
    error = split_redis(parts, parts->copy, text);
    return error == HAPAX_ERR_NONE ? take_parameters(parts, text) : error;
}
