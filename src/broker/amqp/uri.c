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
#include "core/policy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PORT            5672u
#define PORT_TLS        5671u
#define HEARTBEAT_S     10
#define HEARTBEAT_S_MAX 600
#define TIMEOUT_MS      5000
#define TIMEOUT_MIN     100
#define TIMEOUT_MAX     60000

struct reading {
    struct hapax__amqp_uri *out;
    struct hapax__uri_reading uri;
    bool password; /* the URI has one */
};

struct parameter {
    const char *name;
    enum hapax_error (*set)(struct reading *r, const struct parameter *p, const char *value);
    /* Of struct hapax__amqp_uri, for parameters that set one field. */
    size_t field;
    const char *words[2]; /* false and true */
};

#define FIELD(name) offsetof(struct hapax__amqp_uri, name)

static enum hapax_error set_duration(struct reading *r, const struct parameter *p,
                                     const char *value);
static enum hapax_error set_path(struct reading *r, const struct parameter *p, const char *value);
static enum hapax_error set_prefetch(struct reading *r, const struct parameter *p,
                                     const char *value);
static enum hapax_error set_queue(struct reading *r, const struct parameter *p, const char *value);
static enum hapax_error set_word(struct reading *r, const struct parameter *p, const char *value);

static const struct parameter parameters[] = {
    {"queue", set_queue, 0, {NULL, NULL}},
    {"type", set_word, FIELD(classic), {"quorum", "classic"}},
    {"declare", set_word, FIELD(declare), {"off", "on"}},
    {"prefetch", set_prefetch, 0, {NULL, NULL}},
    {"heartbeat", set_duration, FIELD(heartbeat_s), {NULL, NULL}},
    {"timeout", set_duration, FIELD(timeout_ms), {NULL, NULL}},
    {"tls_ca", set_path, FIELD(tls_ca), {NULL, NULL}},
    {"tls_cert", set_path, FIELD(tls_cert), {NULL, NULL}},
    {"tls_key", set_path, FIELD(tls_key), {NULL, NULL}},
    {"tls_verify", set_word, FIELD(tls_verify), {"off", "on"}},
};

#define PARAMETERS (sizeof(parameters) / sizeof(parameters[0]))

static enum hapax_error bad(struct reading *r, const char *why)
{
    return hapax__uri_wrong(&r->uri, "%s", why);
}

/* ---- the parameters -------------------------------------------------------------------- */

static enum hapax_error set_duration(struct reading *r, const struct parameter *p,
                                     const char *value)
{
    const char *why;
    int64_t ms;
    bool read = hapax__duration_parse(&ms, value, &why);

    if (p->field == FIELD(timeout_ms)) {
        if (!read || ms < TIMEOUT_MIN || ms > TIMEOUT_MAX)
            return bad(r, "\"timeout\" is not a duration of 100ms to 1m, as 5s");
        r->out->timeout_ms = ms;
        return HAPAX_ERR_NONE;
    }
    if (!read || ms < 1000 || ms > HEARTBEAT_S_MAX * 1000 || ms % 1000 != 0)
        return bad(r, "\"heartbeat\" is not whole seconds, 1s to 10m");
    r->out->heartbeat_s = (uint16_t)(ms / 1000);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_path(struct reading *r, const struct parameter *p, const char *value)
{
    if (value[0] == '\0')
        return hapax__uri_wrong(&r->uri, "\"%s\" names no file", p->name);
    memcpy((char *)r->out + p->field, value, strlen(value) + 1);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_prefetch(struct reading *r, const struct parameter *p,
                                     const char *value)
{
    uint32_t n;

    (void)p;
    if (!hapax__uri_number(&n, value, strlen(value), UINT16_MAX) || n == 0)
        return bad(r, "\"prefetch\" is not a number of messages, 1 to 65535");
    r->out->prefetch = (uint16_t)n;
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_queue(struct reading *r, const struct parameter *p, const char *value)
{
    size_t len = strlen(value);

    (void)p;
    if (len == 0 || len > HAPAX__AMQP_QUEUE_MAX)
        return bad(r, "\"queue\" is not a name of 1 to 240 bytes");
    memcpy(r->out->queue, value, len + 1);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_word(struct reading *r, const struct parameter *p, const char *value)
{
    bool *out = (bool *)((char *)r->out + p->field);

    *out = strcmp(value, p->words[1]) == 0;
    if (!*out && strcmp(value, p->words[0]) != 0)
        return hapax__uri_wrong(&r->uri, "\"%s\" is not %s or %s", p->name, p->words[1],
                                p->words[0]);
    return HAPAX_ERR_NONE;
}

/* ---- the query ------------------------------------------------------------------------- */

static const char *parameter_name(size_t i)
{
    return i < PARAMETERS ? parameters[i].name : NULL;
}

static enum hapax_error set_parameter(struct reading *r, const struct hapax__uri_parameter *given)
{
    char value[HAPAX__AMQP_NAME_MAX + 1];
    size_t i;
    enum hapax_error error =
        hapax__uri_named(&i, value, sizeof(value), &r->uri, given, parameter_name);

    return error == HAPAX_ERR_NONE ? parameters[i].set(r, &parameters[i], value) : error;
}

static enum hapax_error read_query(struct reading *r, const char *query)
{
    struct hapax__uri_parameter given;
    bool any_tls = false;

    while (hapax__uri_parameter(&given, &query)) {
        enum hapax_error error = set_parameter(r, &given);

        if (error != HAPAX_ERR_NONE)
            return error;
    }
    for (size_t i = 0; i < PARAMETERS; i++)
        any_tls |= (r->uri.seen & 1u << i) != 0 && strncmp(parameters[i].name, "tls_", 4) == 0;
    if (any_tls && !r->out->tls)
        return bad(r, "it has tls_ parameters, but its scheme is not amqps");
    if ((r->out->tls_cert[0] == '\0') != (r->out->tls_key[0] == '\0'))
        return bad(r, "\"tls_cert\" and \"tls_key\" go together");
    return HAPAX_ERR_NONE;
}

/* ---- who, where ------------------------------------------------------------------------ */

/* HOST[:PORT]; an IPv6 host in [ ]. */
static enum hapax_error read_host(struct reading *r, const char *at, size_t len)
{
    struct hapax__amqp_uri *out = r->out;
    bool six = len > 0 && at[0] == '[';
    const char *end = six ? memchr(at, ']', len) : memchr(at, ':', len);
    const char *host = at + six;
    size_t host_len, used;
    uint32_t port = out->port;

    if (six && !end)
        return bad(r, "a '[' has no ']'");
    host_len = (size_t)((end ? end : at + len) - host);
    used = host_len + (six ? 2 : 0);
    if (host_len == 0 || host_len > HAPAX__AMQP_NAME_MAX)
        return bad(r, "the host is empty or over 255 bytes");
    if (used < len &&
        (at[used] != ':' || !hapax__uri_number(&port, at + used + 1, len - used - 1, UINT16_MAX) ||
         port == 0))
        return bad(r, "the port is not 1 to 65535 (an IPv6 host stands in [ ])");
    out->port = (uint16_t)port;
    memcpy(out->host, host, host_len);
    out->host[host_len] = '\0';
    if (!hapax__uri_graphic(out->host, six ? "[]@/?#," : "[]@/?#,:%"))
        return bad(r, "the host is not a name or an address");
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_authority(struct reading *r, const char *at, size_t len)
{
    const char *sign = memrchr(at, '@', len);

    if (sign) {
        size_t login_len = (size_t)(sign - at);
        enum hapax_error error = hapax__uri_login(r->out->user, r->out->password,
                                                  sizeof(r->out->user), &r->uri, at, login_len);

        r->password = memchr(at, ':', login_len) != NULL;
        if (error != HAPAX_ERR_NONE)
            return error;
        len -= (size_t)(sign + 1 - at);
        at = sign + 1;
    }
    return read_host(r, at, len);
}

static enum hapax_error read_vhost(struct reading *r, const char *at, size_t len)
{
    if (memchr(at, '@', len))
        return bad(r, "there is a '@' in its vhost; a '/' of a password is written %2F, and a '@' "
                      "of a vhost %40");
    if (memchr(at, '/', len))
        return bad(r, "there is a '/' in its vhost; it is written %2F");
    if (!hapax__uri_decode(r->out->vhost, sizeof(r->out->vhost), at, len))
        return bad(r, "the vhost is over 255 bytes, or has a '%' without two hex digits");
    if (r->out->vhost[0] == '\0')
        memcpy(r->out->vhost, "/", sizeof("/"));
    return HAPAX_ERR_NONE;
}

/* Fills in what the URI leaves open. User and password are both guest or neither is, so that no
 * other user gets guest's password. */
static enum hapax_error read_environment(struct reading *r)
{
    struct hapax__amqp_uri *out = r->out;
    const char *user = out->user[0] == '\0' ? getenv("HAPAX_AMQP_USER") : NULL;
    const char *password = r->password ? NULL : getenv("HAPAX_AMQP_PASSWORD");

    if (user && strlen(user) > HAPAX__AMQP_NAME_MAX)
        return bad(r, "HAPAX_AMQP_USER is over 255 bytes");
    if (password && strlen(password) > HAPAX__AMQP_NAME_MAX)
        return bad(r, "HAPAX_AMQP_PASSWORD is over 255 bytes");
    if (user)
        memcpy(out->user, user, strlen(user) + 1);
    if (password)
        memcpy(out->password, password, strlen(password) + 1);
    if (out->user[0] == '\0' && (r->password || password))
        return bad(r, "there is a password but no user");
    if (out->user[0] != '\0' && !r->password && !password)
        return bad(r, "there is a user but no password (it may stand in HAPAX_AMQP_PASSWORD)");
    if (out->user[0] == '\0') {
        memcpy(out->user, "guest", sizeof("guest"));
        memcpy(out->password, "guest", sizeof("guest"));
    }
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__amqp_uri(struct hapax__amqp_uri *out, const char *uri,
                                 char text[HAPAX_TEXT_MAX])
{
    struct reading r = {.out = out, .uri = {.what = "AMQP", .text = text}};
    enum hapax_error error;
    const char *at, *query;
    size_t host_len, path_len;

    assert(out && uri && text);
    memset(out, 0, sizeof(*out));
    out->tls_verify = true;
    out->timeout_ms = TIMEOUT_MS;
    out->heartbeat_s = HEARTBEAT_S;
    out->tls = strncmp(uri, "amqps://", 8) == 0;
    out->port = out->tls ? PORT_TLS : PORT;
    if (!out->tls && strncmp(uri, "amqp://", 7) != 0)
        return bad(&r, "it begins with none of amqp://, amqps://");
    at = uri + (out->tls ? 8 : 7);
    if (strchr(at, '#'))
        return bad(&r, "there is a '#' in it; one of a password is written %23");
    host_len = strcspn(at, "/?");
    path_len = strcspn(at + host_len, "?");
    query = at + host_len + path_len;
    r.uri.secretive = strchr(at + host_len, '@') != NULL;
    error = read_authority(&r, at, host_len);
    if (error == HAPAX_ERR_NONE)
        error = read_vhost(&r, at + host_len + (path_len > 0), path_len - (path_len > 0));
    if (error == HAPAX_ERR_NONE)
        error = read_query(&r, query + (*query == '?'));
    if (error == HAPAX_ERR_NONE)
        error = read_environment(&r);
    if (error != HAPAX_ERR_NONE)
        explicit_bzero(out, sizeof(*out));
    return error;
}
