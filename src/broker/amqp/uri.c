/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads AMQP URIs. Three things are refused: an unknown parameter, a parameter given twice, and a
 * URI that could be read in two ways.
 *
 * The invariant: no error text shows a password. A password that is not percent-encoded may look
 * like something else: in "amqp://u:a/b@h" the password is "a/b", but it reads like a host "u:a"
 * and a vhost "b@h". So where a '@' follows, host, vhost and parameters are not shown. Elsewhere
 * the name of a parameter is shown, and never its value.
 *
 * Rejected: amqp_parse_url(). It knows no parameters, writes into its input, and invents a port.
 */
#include "uri.h"

#include "base/uri.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PORT        5672u
#define PORT_TLS    5671u
#define HEARTBEAT_S 10
#define TIMEOUT_MS  5000
#define FIELD(name) HAPAX__URI_FIELD(struct hapax__amqp_uri, name)

static const struct hapax__uri_option uri_options[] = {
    {"queue", HAPAX__URI_TEXT, FIELD(queue), 1, HAPAX__AMQP_QUEUE_MAX,
     "\"queue\" is not a name of 1 to 240 bytes"},
    {"type", HAPAX__URI_SWITCH, FIELD(classic), .words = {"quorum", "classic"}},
    {"declare", HAPAX__URI_SWITCH, FIELD(declare)},
    {"prefetch", HAPAX__URI_NUMBER, FIELD(prefetch), 1, UINT16_MAX,
     "\"prefetch\" is not a number of messages, 1 to 65535"},
    {"heartbeat", HAPAX__URI_SECONDS, FIELD(heartbeat_s), 1, 600,
     "\"heartbeat\" is not whole seconds, 1s to 10m"},
    {"timeout", HAPAX__URI_DURATION, FIELD(timeout_ms), 100, 60000,
     "\"timeout\" is not a duration of 100ms to 1m, as 5s"},
    HAPAX__URI_TLS_OPTIONS(struct hapax__amqp_uri),
};

/* ---- who, where ------------------------------------------------------------------------ */

static enum hapax_error read_authority(const struct hapax__uri_reading *r, bool *password,
                                       const char *at, size_t len)
{
    struct hapax__amqp_uri *out = r->out;
    const char *sign = memrchr(at, '@', len);

    *password = sign && memchr(at, ':', (size_t)(sign - at));
    if (sign) {
        enum hapax_error error = hapax__uri_login(out->user, out->password, sizeof(out->user), r,
                                                  at, (size_t)(sign - at));

        if (error != HAPAX_ERR_NONE)
            return error;
        len -= (size_t)(sign + 1 - at);
        at = sign + 1;
    }
    return hapax__uri_host(out->host, sizeof(out->host), &out->port, r, "the", at, len);
}

static enum hapax_error read_vhost(const struct hapax__uri_reading *r, const char *at, size_t len)
{
    struct hapax__amqp_uri *out = r->out;

    if (memchr(at, '@', len))
        return hapax__uri_wrong(r, "there is a '@' in its vhost; a '/' of a password is written "
                                   "%%2F, and a '@' of a vhost %%40");
    if (memchr(at, '/', len))
        return hapax__uri_wrong(r, "there is a '/' in its vhost; it is written %%2F");
    if (!hapax__uri_decode(out->vhost, sizeof(out->vhost), at, len))
        return hapax__uri_wrong(
            r, "the vhost is over 255 bytes, or has a '%%' without two hex digits");
    if (out->vhost[0] == '\0')
        memcpy(out->vhost, "/", sizeof("/"));
    return HAPAX_ERR_NONE;
}

/* Fills in what the URI leaves open. User and password are both guest or neither is, so that no
 * other user gets guest's password. in_uri: the URI has a password. */
static enum hapax_error read_environment(const struct hapax__uri_reading *r, bool in_uri)
{
    struct hapax__amqp_uri *out = r->out;
    const char *user = out->user[0] == '\0' ? getenv("HAPAX_AMQP_USER") : NULL;
    const char *password = in_uri ? NULL : getenv("HAPAX_AMQP_PASSWORD");

    if (user && strlen(user) > HAPAX__AMQP_NAME_MAX)
        return hapax__uri_wrong(r, "HAPAX_AMQP_USER is over 255 bytes");
    if (password && strlen(password) > HAPAX__AMQP_NAME_MAX)
        return hapax__uri_wrong(r, "HAPAX_AMQP_PASSWORD is over 255 bytes");
    if (user)
        memcpy(out->user, user, strlen(user) + 1);
    if (password)
        memcpy(out->password, password, strlen(password) + 1);
    if (out->user[0] == '\0' && (in_uri || password))
        return hapax__uri_wrong(r, "there is a password but no user");
    if (out->user[0] != '\0' && !in_uri && !password)
        return hapax__uri_wrong(
            r, "there is a user but no password (it may stand in HAPAX_AMQP_PASSWORD)");
    if (out->user[0] == '\0') {
        memcpy(out->user, "guest", sizeof("guest"));
        memcpy(out->password, "guest", sizeof("guest"));
    }
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__amqp_uri(struct hapax__amqp_uri *out, const char *uri,
                                 char text[HAPAX_TEXT_MAX])
{
    struct hapax__uri_reading r = {.what = "AMQP",
                                   .text = text,
                                   .out = out,
                                   .options = uri_options,
                                   .option_count = sizeof(uri_options) / sizeof(uri_options[0])};
    struct hapax__uri_split split;
    enum hapax_error error;
    bool password;

    assert(out && uri && text);
    memset(out, 0, sizeof(*out));
    out->tls_verify = true;
    out->timeout_ms = TIMEOUT_MS;
    out->heartbeat_s = HEARTBEAT_S;
    out->tls = strncmp(uri, "amqps://", 8) == 0;
    out->port = out->tls ? PORT_TLS : PORT;
    if (!out->tls && strncmp(uri, "amqp://", 7) != 0)
        return hapax__uri_wrong(&r, "it begins with none of amqp://, amqps://");
    if (strchr(uri, '#'))
        return hapax__uri_wrong(&r, "there is a '#' in it; one of a password is written %%23");
    hapax__uri_split(&split, &r, uri + (out->tls ? 8 : 7));
    error = read_authority(&r, &password, split.hosts, split.hosts_len);
    if (error == HAPAX_ERR_NONE)
        error = read_vhost(&r, split.path, split.path_len);
    if (error == HAPAX_ERR_NONE)
        error = hapax__uri_query(&r, split.query);
    if (error == HAPAX_ERR_NONE)
        error = hapax__uri_tls_check(&r, out->tls, "amqps");
    if (error == HAPAX_ERR_NONE)
        error = read_environment(&r, password);
    if (error != HAPAX_ERR_NONE)
        explicit_bzero(out, sizeof(*out));
    return error;
}
