/* SPDX-License-Identifier: Apache-2.0
 *
 * What a DynamoDB URI says. No credentials: those come from where AWS's own tools take them, so
 * that none stands in a command line or a log, and a URI that has some is refused. A URI that
 * could mean two things is refused as well.
 */
#include "dynamodb.h"

#include "base/span.h"
#include "base/uri.h"
#include "core/policy.h"

#include <assert.h>
#include <string.h>

#define TIMEOUT_MS      2000
#define TIMEOUT_MIN_MS  10
#define TIMEOUT_MAX_MS  60000
#define SKEW_MS         1000
#define SKEW_MAX_MS     60000
#define CONNECTIONS     32u
#define CONNECTIONS_MAX 256u
#define BODY_MIN        1024u
#define INLINE_MAX      (380u << 10)

struct reading {
    struct hapax__ddb_uri *out;
    struct hapax__uri_reading uri;
};

static enum hapax_error bad(const struct reading *r, const char *why)
{
    return hapax__uri_wrong(&r->uri, "%s", why);
}

/* Whether all of s is letters, digits or one of `more`. */
static bool made_of(const char *s, bool upper, const char *more)
{
    for (; *s != '\0'; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9') ||
              (upper && *s >= 'A' && *s <= 'Z') || strchr(more, *s)))
            return false;
    return true;
}

/* ---- the parameters -------------------------------------------------------------------- */

static enum hapax_error set_endpoint(struct reading *r, const char *value)
{
    if (strncmp(value, "http://", 7) != 0 && strncmp(value, "https://", 8) != 0)
        return bad(r, "\"endpoint\" does not begin with http:// or https://");
    if (strchr(value, '@'))
        return bad(r, "\"endpoint\" has a '@': credentials do not stand in it");
    memcpy(r->out->endpoint, value, strlen(value) + 1);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_timeout(struct reading *r, const char *value)
{
    const char *why;
    int64_t ms;

    if (!hapax__duration_parse(&ms, value, &why) || ms < TIMEOUT_MIN_MS || ms > TIMEOUT_MAX_MS)
        return bad(r, "\"timeout\" is not a duration of 10ms to 1m, as 2s");
    r->out->timeout_ms = ms;
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_skew(struct reading *r, const char *value)
{
    const char *why;
    int64_t ms;

    if (!hapax__duration_parse(&ms, value, &why) || ms > SKEW_MAX_MS)
        return bad(r, "\"skew\" is not a duration of 0 to 1m, as 1s");
    r->out->skew_ms = ms;
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_connections(struct reading *r, const char *value)
{
    size_t number;
    const char *why;

    if (!hapax__size_parse(&number, value, &why) || number < 1 || number > CONNECTIONS_MAX)
        return bad(r, "\"connections\" is not a number of 1 to 256");
    r->out->connections = (uint32_t)number;
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_body_max(struct reading *r, const char *value)
{
    size_t size;
    const char *why;

    if (!hapax__size_parse(&size, value, &why) || size < BODY_MIN || size > HAPAX_BODY_MAX)
        return bad(r, "\"body_max\" is not a size of 1k to 16m, as 350k");
    r->out->body_max = size;
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_inline_max(struct reading *r, const char *value)
{
    size_t size;
    const char *why;

    if (!hapax__size_parse(&size, value, &why) || size > INLINE_MAX)
        return bad(r, "\"inline_max\" is not a size of 0 to 380k, as 4k");
    r->out->inline_max = size;
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_profile(struct reading *r, const char *value)
{
    size_t len = strlen(value);

    if (len < 1 || len >= sizeof(r->out->profile))
        return bad(r, "\"profile\" is not a name of 1 to 128 bytes");
    memcpy(r->out->profile, value, len + 1);
    return HAPAX_ERR_NONE;
}

static const struct {
    const char *name;
    enum hapax_error (*set)(struct reading *r, const char *value);
} parameters[] = {
    {"endpoint", set_endpoint},       {"timeout", set_timeout},   {"skew", set_skew},
    {"connections", set_connections}, {"body_max", set_body_max}, {"inline_max", set_inline_max},
    {"profile", set_profile},
};

#define PARAMETERS (sizeof(parameters) / sizeof(parameters[0]))

static const char *parameter_name(size_t i)
{
    return i < PARAMETERS ? parameters[i].name : NULL;
}

static enum hapax_error set_parameter(struct reading *r, const struct hapax__uri_parameter *given)
{
    char value[sizeof(r->out->endpoint)];
    size_t i;
    enum hapax_error error =
        hapax__uri_named(&i, value, sizeof(value), &r->uri, given, parameter_name);

    return error == HAPAX_ERR_NONE ? parameters[i].set(r, value) : error;
}

/* ---- where ----------------------------------------------------------------------------- */

static enum hapax_error read_place(struct reading *r, const char *at, size_t len)
{
    struct hapax__ddb_uri *out = r->out;
    const char *slash = memchr(at, '/', len);
    size_t region_len = slash ? (size_t)(slash - at) : len;
    size_t table_len = slash ? len - region_len - 1 : 0;

    if (memchr(at, '@', len))
        return bad(r, "there is a '@' in it: credentials come from the environment or a profile");
    if (region_len < 1 || region_len >= sizeof(out->region))
        return bad(r, "the region is not 1 to 63 of a-z, 0-9 and '-', as eu-central-1");
    memcpy(out->region, at, region_len);
    if (!made_of(out->region, false, "-"))
        return bad(r, "the region is not 1 to 63 of a-z, 0-9 and '-', as eu-central-1");
    if (table_len < 3 || table_len >= sizeof(out->table))
        return bad(r, "the table is not 3 to 255 of a-z, A-Z, 0-9, '_', '.' and '-'");
    memcpy(out->table, slash + 1, table_len);
    if (!made_of(out->table, true, "_.-"))
        return bad(r, "the table is not 3 to 255 of a-z, A-Z, 0-9, '_', '.' and '-'");
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__ddb_uri(struct hapax__ddb_uri *out, const char *uri,
                                char text[HAPAX_TEXT_MAX])
{
    static const char scheme[] = "dynamodb://";
    struct reading r = {.out = out, .uri = {.what = "DynamoDB", .text = text}};
    struct hapax__uri_parameter given;
    enum hapax_error error;
    const char *at, *query;
    size_t len;

    memset(out, 0, sizeof(*out));
    out->timeout_ms = TIMEOUT_MS;
    out->skew_ms = SKEW_MS;
    out->connections = CONNECTIONS;
    out->body_max = HAPAX_BODY_MAX;
    out->inline_max = INLINE_MAX;
    if (!hapax__text_begins(uri, scheme))
        return bad(&r, "it does not begin with dynamodb://");
    at = uri + strlen(scheme);
    if (strchr(at, '#'))
        return bad(&r, "there is a '#' in it");
    len = strcspn(at, "?");
    query = at + len + (at[len] == '?');
    error = read_place(&r, at, len);
    while (error == HAPAX_ERR_NONE && hapax__uri_parameter(&given, &query))
        error = set_parameter(&r, &given);
    return error;
}

enum hapax_error hapax__ddb_client(struct hapax__aws **out, const struct hapax__ddb_uri *uri,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__aws_options options = {
        .service = "dynamodb",
        .target = "DynamoDB_20120810",
        .region = uri->region,
        .endpoint = uri->endpoint[0] ? uri->endpoint : NULL,
        .profile = uri->profile[0] ? uri->profile : NULL,
        .connections_max = uri->connections,
        .connect_ms = uri->timeout_ms,
        .try_ms = uri->timeout_ms,
    };

    /* So that a try that is lost leaves time for another. */
    options.try_ms = uri->timeout_ms > 300 ? uri->timeout_ms * 2 / 3 : uri->timeout_ms;
    options.connect_ms = uri->timeout_ms > 300 ? uri->timeout_ms / 2 : uri->timeout_ms;
    return hapax__aws_open(out, &options, text);
}
