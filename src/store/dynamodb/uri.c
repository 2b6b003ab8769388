/* SPDX-License-Identifier: Apache-2.0
 *
 * What a DynamoDB URI says. No credentials: those come from where AWS's own tools take them, so
 * that none stands in a command line or a log, and a URI that has some is refused. A URI that
 * could mean two things is refused as well.
 */
#include "dynamodb.h"

#include "base/span.h"
#include "base/uri.h"

#include <string.h>

#define TIMEOUT_MS  2000
#define SKEW_MS     1000
#define CONNECTIONS 32u
#define INLINE_MAX  (380u << 10)
#define FIELD(name) HAPAX__URI_FIELD(struct hapax__ddb_uri, name)

static enum hapax_error set_endpoint(struct hapax__uri_reading *r,
                                     const struct hapax__uri_option *option, const char *value)
{
    if (strncmp(value, "http://", 7) != 0 && strncmp(value, "https://", 8) != 0)
        return hapax__uri_wrong(r, "\"endpoint\" does not begin with http:// or https://");
    if (strchr(value, '@'))
        return hapax__uri_wrong(r, "\"endpoint\" has a '@': credentials do not stand in it");
    if (strlen(value) >= option->width)
        return hapax__uri_wrong(r, "\"endpoint\" is over 255 bytes");
    memcpy((char *)r->out + option->at, value, strlen(value) + 1);
    return HAPAX_ERR_NONE;
}

static const struct hapax__uri_option uri_options[] = {
    {"endpoint", HAPAX__URI_OWN, FIELD(endpoint), .set = set_endpoint},
    {"timeout", HAPAX__URI_DURATION, FIELD(timeout_ms), 10, 60000,
     "\"timeout\" is not a duration of 10ms to 1m, as 2s"},
    {"skew", HAPAX__URI_DURATION, FIELD(skew_ms), 0, 60000,
     "\"skew\" is not a duration of 0 to 1m, as 1s"},
    {"connections", HAPAX__URI_NUMBER, FIELD(connections), 1, 256,
     "\"connections\" is not a number of 1 to 256"},
    {"body_max", HAPAX__URI_SIZE, FIELD(body_max), 1024, HAPAX_BODY_MAX,
     "\"body_max\" is not a size of 1k to 16m, as 350k"},
    {"inline_max", HAPAX__URI_SIZE, FIELD(inline_max), 0, INLINE_MAX,
     "\"inline_max\" is not a size of 0 to 380k, as 4k"},
    {"profile", HAPAX__URI_TEXT, FIELD(profile), 1, 128,
     "\"profile\" is not a name of 1 to 128 bytes"},
};

static enum hapax_error read_place(const struct hapax__uri_reading *r,
                                   const struct hapax__uri_split *split)
{
    struct hapax__ddb_uri *out = r->out;

    if (split->hosts[strcspn(split->hosts, "@?")] == '@')
        return hapax__uri_wrong(
            r, "there is a '@' in it: credentials come from the environment or a profile");
    if (split->hosts_len > 0 && split->hosts_len < sizeof(out->region))
        memcpy(out->region, split->hosts, split->hosts_len);
    if (out->region[0] == '\0' || !hapax__uri_plain(out->region, "-"))
        return hapax__uri_wrong(r,
                                "the region is not 1 to 63 of a-z, 0-9 and '-', as eu-central-1");
    if (split->path_len >= 3 && split->path_len < sizeof(out->table))
        memcpy(out->table, split->path, split->path_len);
    if (out->table[0] == '\0' || !hapax__uri_plain(out->table, "_.-ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
        return hapax__uri_wrong(r, "the table is not 3 to 255 of a-z, A-Z, 0-9, '_', '.' and '-'");
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__ddb_uri(struct hapax__ddb_uri *out, const char *uri,
                                char text[HAPAX_TEXT_MAX])
{
    static const char scheme[] = "dynamodb://";
    struct hapax__uri_reading r = {.what = "DynamoDB",
                                   .text = text,
                                   .out = out,
                                   .options = uri_options,
                                   .option_count = sizeof(uri_options) / sizeof(uri_options[0])};
    struct hapax__uri_split split;
    enum hapax_error error;

    memset(out, 0, sizeof(*out));
    out->timeout_ms = TIMEOUT_MS;
    out->skew_ms = SKEW_MS;
    out->connections = CONNECTIONS;
    out->body_max = HAPAX_BODY_MAX;
    out->inline_max = INLINE_MAX;
    if (!hapax__text_begins(uri, scheme))
        return hapax__uri_wrong(&r, "it does not begin with dynamodb://");
    if (strchr(uri, '#'))
        return hapax__uri_wrong(&r, "there is a '#' in it");
    hapax__uri_split(&split, &r, uri + strlen(scheme));
    error = read_place(&r, &split);
    return error == HAPAX_ERR_NONE ? hapax__uri_query(&r, split.query) : error;
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
