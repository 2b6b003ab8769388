/* SPDX-License-Identifier: Apache-2.0
 *
 * What a Redis URI says. A URI that could mean two things is refused instead of read in one way:
 * a parameter given twice, a password in it and in a file, a parameter of another kind of
 * deployment.
 *
 * The invariant: no text shows a password. A password that was not percent-encoded may put its
 * end into the hosts, the path or the parameters ("redis://:a/b@h"), so that nothing of those is
 * shown by value where a '@' comes later; else a name is shown, and a value only of parameters
 * that hold no secret.
 *
 * Rejected: libcurl's or another library's URI parser; none knows lists of hosts, and a
 * dependency for this weighs more than the file.
 */
#include "uri.h"

#include "base/fail.h"
#include "base/span.h"
#include "base/uri.h"
#include "core/policy.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PORT          6379u
#define SENTINEL_PORT 26379u
#define TIMEOUT_MS    2000
#define TIMEOUT_MIN   10
#define TIMEOUT_MAX   60000
#define DB_MAX        99999u /* `databases` of redis.conf has no limit of its own */

struct reading {
    struct hapax__redis_uri *out;
    struct hapax__uri_reading uri;
    bool password; /* one stands in the URI */
    bool sentinel_user;
};

struct parameter {
    const char *name;
    enum hapax_error (*set)(struct reading *r, const struct parameter *p, const char *value);
    size_t field; /* of struct hapax__redis_uri, for those that are one field */
};

#define FIELD(name) offsetof(struct hapax__redis_uri, name)

static enum hapax_error set_path(struct reading *r, const struct parameter *p, const char *value);
static enum hapax_error set_password(struct reading *r, const struct parameter *p,
                                     const char *value);
static enum hapax_error set_prefix(struct reading *r, const struct parameter *p, const char *value);
static enum hapax_error set_sentinel_user(struct reading *r, const struct parameter *p,
                                          const char *value);
static enum hapax_error set_timeout(struct reading *r, const struct parameter *p,
                                    const char *value);
static enum hapax_error set_verify(struct reading *r, const struct parameter *p, const char *value);
static enum hapax_error set_wait(struct reading *r, const struct parameter *p, const char *value);

static const struct parameter parameters[] = {
    {"prefix", set_prefix, 0},
    {"wait", set_wait, 0},
    {"timeout", set_timeout, 0},
    {"password_file", set_password, FIELD(login.password)},
    {"sentinel_user", set_sentinel_user, 0},
    {"sentinel_password_file", set_password, FIELD(sentinel_login.password)},
    {"tls_ca", set_path, FIELD(tls_ca)},
    {"tls_cert", set_path, FIELD(tls_cert)},
    {"tls_key", set_path, FIELD(tls_key)},
    {"tls_verify", set_verify, 0},
};

#define PARAMETERS (sizeof(parameters) / sizeof(parameters[0]))

static enum hapax_error bad(struct reading *r, const char *why)
{
    return hapax__uri_wrong(&r->uri, "%s", why);
}

/* ---- the parameters -------------------------------------------------------------------- */

static enum hapax_error set_path(struct reading *r, const struct parameter *p, const char *value)
{
    if (value[0] == '\0')
        return hapax__uri_wrong(&r->uri, "\"%s\" names no file", p->name);
    memcpy((char *)r->out + p->field, value, strlen(value) + 1);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_prefix(struct reading *r, const struct parameter *p, const char *value)
{
    size_t len = strlen(value);

    (void)p;
    /* No braces, which choose the slot in a cluster; nothing that means something to SCAN's
     * MATCH. */
    if (len == 0 || len > HAPAX__REDIS_PREFIX_MAX || !hapax__uri_graphic(value, "{}*?[]\\^\"'"))
        return bad(r, "\"prefix\" is not 1 to 64 letters, digits or signs other than "
                      "{ } * ? [ ] \\ ^ \" '");
    memcpy(r->out->prefix, value, len + 1);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_sentinel_user(struct reading *r, const struct parameter *p,
                                          const char *value)
{
    (void)p;
    if (value[0] == '\0')
        return bad(r, "\"sentinel_user\" is empty");
    r->sentinel_user = true;
    memcpy(r->out->sentinel_login.user, value, strlen(value) + 1);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_timeout(struct reading *r, const struct parameter *p, const char *value)
{
    const char *why;
    int64_t ms;

    (void)p;
    if (!hapax__duration_parse(&ms, value, &why) || ms < TIMEOUT_MIN || ms > TIMEOUT_MAX)
        return bad(r, "\"timeout\" is not a duration of 10ms to 1m, as 2s");
    r->out->timeout_ms = ms;
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_verify(struct reading *r, const struct parameter *p, const char *value)
{
    (void)p;
    r->out->tls_verify = strcmp(value, "on") == 0;
    if (!r->out->tls_verify && strcmp(value, "off") != 0)
        return bad(r, "\"tls_verify\" is not on or off");
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_wait(struct reading *r, const struct parameter *p, const char *value)
{
    (void)p;
    if (!hapax__uri_number(&r->out->wait, value, strlen(value), HAPAX__REDIS_WAIT_MAX))
        return bad(r, "\"wait\" is not a number of replicas, 0 to 16");
    return HAPAX_ERR_NONE;
}

/* ---- passwords in files ---------------------------------------------------------------- */

static enum hapax_error file_fail(struct reading *r, enum hapax_error error, const char *name,
                                  const char *path, const char *why)
{
    return hapax__fail(r->uri.text, error, "cannot use %s \"%.120s\": %s", name, path, why);
}

/* Reads up to the end, or until the buffer is full. False: errno is set. */
static bool read_all(int fd, char *out, size_t size, size_t *len)
{
    ssize_t got = 1;

    for (*len = 0; *len < size && got != 0; *len += got > 0 ? (size_t)got : 0) {
        got = read(fd, out + *len, size - *len);
        if (got < 0 && errno != EINTR)
            return false;
    }
    return true;
}

static enum hapax_error read_password(struct reading *r, char *out, int fd, const char *name,
                                      const char *path)
{
    char buffer[HAPAX__REDIS_NAME_MAX + 2]; /* a newline, which is dropped */
    enum hapax_error error = HAPAX_ERR_INVALID;
    size_t len = 0;

    if (!read_all(fd, buffer, sizeof(buffer), &len)) {
        file_fail(r, error, name, path, strerror(errno));
    } else {
        if (len > 0 && buffer[len - 1] == '\n')
            len--;
        if (len == 0)
            file_fail(r, error, name, path, "it is empty");
        else if (len > HAPAX__REDIS_NAME_MAX)
            file_fail(r, error, name, path, "it is over 255 bytes");
        else if (memchr(buffer, '\0', len))
            file_fail(r, error, name, path, "there is a zero byte in it");
        else
            error = HAPAX_ERR_NONE;
    }
    if (error == HAPAX_ERR_NONE) {
        memcpy(out, buffer, len);
        out[len] = '\0';
    }
    explicit_bzero(buffer, sizeof(buffer));
    return error;
}

static enum hapax_error set_password(struct reading *r, const struct parameter *p,
                                     const char *value)
{
    char *out = (char *)r->out + p->field;
    enum hapax_error error;
    struct stat st;
    int fd;

    if (out == r->out->login.password && r->password)
        return bad(r, "there is a password in it and a \"password_file\"");
    fd = open(value, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us up */
    if (fd < 0)
        return file_fail(r, errno == EACCES ? HAPAX_ERR_REFUSED : HAPAX_ERR_INVALID, p->name, value,
                         value[0] == '\0' ? "it names no file" : strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        error = file_fail(r, HAPAX_ERR_INVALID, p->name, value, "it is not a file");
    else if (st.st_mode & S_IROTH)
        error =
            file_fail(r, HAPAX_ERR_REFUSED, p->name, value, "everybody can read it; chmod o-r it");
    else
        error = read_password(r, out, fd, p->name, value);
    close(fd);
    return error;
}

/* ---- the query ------------------------------------------------------------------------- */

static const char *parameter_name(size_t i)
{
    return i < PARAMETERS ? parameters[i].name : NULL;
}

static enum hapax_error set_parameter(struct reading *r, const struct hapax__uri_parameter *given)
{
    char value[HAPAX__REDIS_NAME_MAX + 1];
    size_t i;
    enum hapax_error error =
        hapax__uri_named(&i, value, sizeof(value), &r->uri, given, parameter_name);

    return error == HAPAX_ERR_NONE ? parameters[i].set(r, &parameters[i], value) : error;
}

static enum hapax_error check_parameters(struct reading *r)
{
    struct hapax__redis_uri *out = r->out;
    bool any_tls = false, any_sentinel = false;

    for (size_t i = 0; i < PARAMETERS; i++) {
        bool given = (r->uri.seen & 1u << i) != 0;

        any_tls |= given && strncmp(parameters[i].name, "tls_", 4) == 0;
        any_sentinel |= given && strncmp(parameters[i].name, "sentinel_", 9) == 0;
    }
    if (any_tls && !out->tls)
        return bad(r, "it has tls_ parameters, but its scheme is not rediss");
    if (any_sentinel && out->kind != HAPAX__REDIS_SENTINEL)
        return bad(r, "it has sentinel_ parameters, but its scheme is not redis+sentinel");
    if ((out->tls_cert[0] == '\0') != (out->tls_key[0] == '\0'))
        return bad(r, "\"tls_cert\" and \"tls_key\" go together");
    if (out->login.user[0] != '\0' && out->login.password[0] == '\0')
        return bad(r, "there is a user but no password");
    if (r->sentinel_user && out->sentinel_login.password[0] == '\0')
        return bad(r, "there is a \"sentinel_user\" but no \"sentinel_password_file\"");
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_query(struct reading *r, const char *query)
{
    struct hapax__uri_parameter given;

    while (hapax__uri_parameter(&given, &query)) {
        enum hapax_error error = set_parameter(r, &given);

        if (error != HAPAX_ERR_NONE)
            return error;
    }
    return check_parameters(r);
}

/* ---- who, where, what ------------------------------------------------------------------ */

static enum hapax_error read_login(struct reading *r, const char *at, size_t len)
{
    struct hapax__redis_login *login = &r->out->login;
    enum hapax_error error;

    if (memchr(at, ',', len) && !memchr(at, '@', len))
        return bad(r, "user and password stand once, in front of the first host");
    error = hapax__uri_login(login->user, login->password, sizeof(login->user), &r->uri, at, len);
    r->password = login->password[0] != '\0';
    return error;
}

/* HOST[:PORT]; an IPv6 host in [ ]. */
static enum hapax_error read_host(struct reading *r, const char *at, size_t len)
{
    struct hapax__redis_uri *out = r->out;
    struct hapax__redis_address *address;
    bool six = len > 0 && at[0] == '[';
    const char *end = six ? memchr(at, ']', len) : memchr(at, ':', len);
    const char *host = at + six;
    uint32_t port = out->kind == HAPAX__REDIS_SENTINEL ? SENTINEL_PORT : PORT;
    size_t host_len, used;

    if (six && !end)
        return bad(r, "a '[' has no ']'");
    host_len = (size_t)((end ? end : at + len) - host);
    used = host_len + (six ? 2 : 0);
    if (host_len == 0)
        return bad(r, "a host is empty");
    if (host_len > HAPAX__REDIS_NAME_MAX)
        return bad(r, "a host is over 255 bytes");
    if (out->host_count == HAPAX__REDIS_HOSTS_MAX)
        return bad(r, "there are more than 16 hosts");
    if (used < len &&
        (at[used] != ':' || !hapax__uri_number(&port, at + used + 1, len - used - 1, 65535) ||
         port == 0))
        return bad(r, "a port is not 1 to 65535 (an IPv6 host stands in [ ])");
    address = &out->hosts[out->host_count++];
    memcpy(address->host, host, host_len);
    address->port = (uint16_t)port;
    if (!hapax__uri_graphic(address->host, six ? "[]@/?#," : "[]@/?#,:%"))
        return bad(r, "a host is not a name or an address");
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_hosts(struct reading *r, const char *at, size_t len)
{
    const char *sign = memrchr(at, '@', len);
    enum hapax_error error;

    if (sign) {
        error = read_login(r, at, (size_t)(sign - at));
        if (error != HAPAX_ERR_NONE)
            return error;
        len -= (size_t)(sign + 1 - at);
        at = sign + 1;
    }
    for (;;) {
        const char *comma = memchr(at, ',', len);
        size_t host_len = comma ? (size_t)(comma - at) : len;

        error = read_host(r, at, host_len);
        if (error != HAPAX_ERR_NONE || !comma)
            break;
        at += host_len + 1;
        len -= host_len + 1;
    }
    if (error == HAPAX_ERR_NONE && r->out->kind == HAPAX__REDIS_NODE && r->out->host_count > 1)
        return bad(r, "it has several hosts, which are for redis+sentinel and redis+cluster");
    return error;
}

/* What stands behind the hosts, without its first '/'. */
static enum hapax_error read_path(struct reading *r, const char *at, size_t len)
{
    struct hapax__redis_uri *out = r->out;

    if (memchr(at, '@', len))
        return bad(r, "there is a '@' in its path; a '/' of a password is written %2F");
    if (out->kind == HAPAX__REDIS_CLUSTER)
        return len == 0 ? HAPAX_ERR_NONE : bad(r, "a cluster has no databases to choose from");
    if (out->kind == HAPAX__REDIS_SENTINEL) {
        const char *slash = memchr(at, '/', len);
        size_t master_len = slash ? (size_t)(slash - at) : len;

        if (master_len == 0)
            return bad(r, "it names no master (redis+sentinel://HOST/MASTER)");
        if (!hapax__uri_decode(out->master, sizeof(out->master), at, master_len) ||
            !hapax__uri_graphic(out->master, ""))
            return bad(r,
                       "the master's name is over 255 bytes or has spaces or control characters");
        if (!slash)
            return HAPAX_ERR_NONE;
        at = slash + 1;
        len -= master_len + 1;
    }
    if (len > 0 && !hapax__uri_number(&out->db, at, len, DB_MAX))
        return bad(r, "the database is not a number up to 99999");
    return HAPAX_ERR_NONE;
}

static const char *read_scheme(struct hapax__redis_uri *out, const char *uri)
{
    static const struct {
        const char *name;
        enum hapax__redis_kind kind;
    } schemes[] = {{"://", HAPAX__REDIS_NODE},
                   {"+sentinel://", HAPAX__REDIS_SENTINEL},
                   {"+cluster://", HAPAX__REDIS_CLUSTER}};

    if (strncmp(uri, "redis", 5) != 0)
        return NULL;
    uri += 5;
    out->tls = *uri == 's';
    uri += out->tls;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (!hapax__text_begins(uri, schemes[i].name))
            continue;
        out->kind = schemes[i].kind;
        return uri + strlen(schemes[i].name);
    }
    return NULL;
}

enum hapax_error hapax__redis_uri(struct hapax__redis_uri *out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    struct reading r = {.out = out, .uri = {.what = "Redis", .text = text}};
    enum hapax_error error;
    const char *at, *query;
    size_t hosts_len, path_len;

    assert(out && uri && text);
    memset(out, 0, sizeof(*out));
    memcpy(out->prefix, "hapax:", sizeof("hapax:"));
    out->tls_verify = true;
    out->timeout_ms = TIMEOUT_MS;
    at = read_scheme(out, uri);
    if (!at)
        return bad(&r, "it begins with none of redis://, rediss://, redis[s]+sentinel://, "
                       "redis[s]+cluster://");
    if (strchr(at, '#'))
        return bad(&r, "there is a '#' in it; one of a password is written %23");
    hosts_len = strcspn(at, "/?");
    path_len = strcspn(at + hosts_len, "?");
    query = at + hosts_len + path_len;
    r.uri.secretive = strchr(at + hosts_len, '@') != NULL;
    error = read_hosts(&r, at, hosts_len);
    if (error == HAPAX_ERR_NONE && path_len > 1)
        error = read_path(&r, at + hosts_len + 1, path_len - 1);
    else if (error == HAPAX_ERR_NONE && out->kind == HAPAX__REDIS_SENTINEL)
        error = read_path(&r, "", 0);
    if (error == HAPAX_ERR_NONE)
        error = read_query(&r, query + (*query == '?'));
    if (error != HAPAX_ERR_NONE)
        explicit_bzero(out, sizeof(*out));
    assert(error != HAPAX_ERR_NONE || out->host_count > 0);
    return error;
}
