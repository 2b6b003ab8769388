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

static const struct hapax__uri_option uri_options[] = {
    {"stale_replay", HAPAX__URI_SWITCH,
     HAPAX__URI_FIELD(struct hapax__hybrid_parts, stale_replay)}};

static enum hapax_error split_redis(struct hapax__hybrid_parts *parts, char *at,
                                    char text[HAPAX_TEXT_MAX])
{
    if (!hapax__uri_is_redis(at))
        return wrong(text, "it is not hybrid:REDIS-URI[,REDIS-URI…]+POSTGRES-URI");
    while (at) {
        char *next = strchr(at, ',');

        while (next && !hapax__uri_is_redis(next + 1))
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
    struct hapax__uri_reading r = {
        .what = "hybrid", .text = text, .out = parts, .options = uri_options, .option_count = 1};
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
    return error == HAPAX_ERR_NONE ? hapax__uri_strip(&r, parts->postgres) : error;
}
