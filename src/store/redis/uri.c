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
#include "base/units.h"
#include "base/uri.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PORT          6379u
#define SENTINEL_PORT 26379u
#define TIMEOUT_MS    2000
#define DB_MAX        99999u /* `databases` of redis.conf has no limit of its own */

#define FIELD(name) HAPAX__URI_FIELD(struct hapax__redis_uri, name)

static enum hapax_error set_password(struct hapax__uri_reading *r,
                                     const struct hapax__uri_option *option, const char *path);

/* No braces, which choose the slot in a cluster; nothing that means something to SCAN's MATCH. */
static bool is_prefix(const char *value)
{
    return hapax__uri_graphic(value, "{}*?[]\\^\"'");
}

static const struct hapax__uri_option uri_options[] = {
    {"prefix", HAPAX__URI_TEXT, FIELD(prefix), 1, HAPAX__REDIS_PREFIX_MAX,
     "\"prefix\" is not 1 to 64 letters, digits or signs other than { } * ? [ ] \\ ^ \" '",
     .allows = is_prefix},
    {"wait", HAPAX__URI_NUMBER, FIELD(wait), 0, HAPAX__REDIS_WAIT_MAX,
     "\"wait\" is not a number of replicas, 0 to 16"},
    {"timeout", HAPAX__URI_DURATION, FIELD(timeout_ms), 10, 60000,
     "\"timeout\" is not a duration of 10ms to 1m, as 2s"},
    {"password_file", HAPAX__URI_OWN, FIELD(login.password), .set = set_password},
    {"sentinel_user", HAPAX__URI_TEXT, FIELD(sentinel_login.user), 1, HAPAX__REDIS_NAME_MAX,
     "\"sentinel_user\" is empty, or over 255 bytes"},
    {"sentinel_password_file", HAPAX__URI_OWN, FIELD(sentinel_login.password), .set = set_password},
    HAPAX__URI_TLS_OPTIONS(struct hapax__redis_uri),
};

/* ---- passwords in files ---------------------------------------------------------------- */

static enum hapax_error file_fail(const struct hapax__uri_reading *r, enum hapax_error error,
                                  const char *name, const char *path, const char *why)
{
    return hapax__fail(r->text, error, "cannot use %s \"%.120s\": %s", name, path, why);
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

static enum hapax_error read_password(const struct hapax__uri_reading *r, char *out, int fd,
                                      const char *name, const char *path)
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

static enum hapax_error set_password(struct hapax__uri_reading *r,
                                     const struct hapax__uri_option *option, const char *path)
{
    struct hapax__redis_uri *uri = r->out;
    char *out = (char *)uri + option->at;
    enum hapax_error error;
    struct stat st;
    int fd;

    if (out == uri->login.password && *out != '\0')
        return hapax__uri_wrong(r, "there is a password in it and a \"password_file\"");
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us up */
    if (fd < 0)
        return file_fail(r, errno == EACCES ? HAPAX_ERR_REFUSED : HAPAX_ERR_INVALID, option->name,
                         path, path[0] == '\0' ? "it names no file" : strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        error = file_fail(r, HAPAX_ERR_INVALID, option->name, path, "it is not a file");
    else if (st.st_mode & S_IROTH)
        error = file_fail(r, HAPAX_ERR_REFUSED, option->name, path,
                          "everybody can read it; chmod o-r it");
    else
        error = read_password(r, out, fd, option->name, path);
    close(fd);
    return error;
}

/* ---- who, where, what ------------------------------------------------------------------ */

static enum hapax_error read_login(const struct hapax__uri_reading *r, const char *at, size_t len)
{
    struct hapax__redis_uri *out = r->out;
    struct hapax__redis_login *login = &out->login;

    if (memchr(at, ',', len) && !memchr(at, '@', len))
        return hapax__uri_wrong(r, "user and password stand once, in front of the first host");
    return hapax__uri_login(login->user, login->password, sizeof(login->user), r, at, len);
}

static enum hapax_error read_hosts(const struct hapax__uri_reading *r, const char *at, size_t len)
{
    struct hapax__redis_uri *out = r->out;
    const char *sign = memrchr(at, '@', len), *comma;
    enum hapax_error error = HAPAX_ERR_NONE;

    if (sign) {
        error = read_login(r, at, (size_t)(sign - at));
        len -= (size_t)(sign + 1 - at);
        at = sign + 1;
    }
    do {
        struct hapax__redis_address *address = &out->hosts[out->host_count];
        size_t host_len;

        if (error != HAPAX_ERR_NONE)
            return error;
        if (out->host_count == HAPAX__REDIS_HOSTS_MAX)
            return hapax__uri_wrong(r, "there are more than 16 hosts");
        comma = memchr(at, ',', len);
        host_len = comma ? (size_t)(comma - at) : len;
        address->port = out->kind == HAPAX__REDIS_SENTINEL ? SENTINEL_PORT : PORT;
        error = hapax__uri_host(address->host, sizeof(address->host), &address->port, r, "a", at,
                                host_len);
        out->host_count++;
        at += host_len + 1;
        len -= comma ? host_len + 1 : len;
    } while (comma);
    if (error == HAPAX_ERR_NONE && out->kind == HAPAX__REDIS_NODE && out->host_count > 1)
        return hapax__uri_wrong(
            r, "it has several hosts, which are for redis+sentinel and redis+cluster");
    return error;
}

static enum hapax_error read_path(const struct hapax__uri_reading *r, const char *at, size_t len)
{
    struct hapax__redis_uri *out = r->out;
    uint64_t db = 0;

    if (memchr(at, '@', len))
        return hapax__uri_wrong(r, "there is a '@' in its path; a '/' of a password is written "
                                   "%%2F");
    if (out->kind == HAPAX__REDIS_CLUSTER && len > 0)
        return hapax__uri_wrong(r, "a cluster has no databases to choose from");
    if (out->kind == HAPAX__REDIS_SENTINEL) {
        const char *slash = memchr(at, '/', len);
        size_t master_len = slash ? (size_t)(slash - at) : len;

        if (master_len == 0)
            return hapax__uri_wrong(r, "it names no master (redis+sentinel://HOST/MASTER)");
        if (!hapax__uri_decode(out->master, sizeof(out->master), at, master_len) ||
            !hapax__uri_graphic(out->master, ""))
            return hapax__uri_wrong(
                r, "the master's name is over 255 bytes or has spaces or control characters");
        if (!slash)
            return HAPAX_ERR_NONE;
        at = slash + 1;
        len -= master_len + 1;
    }
    if (len > 0 && !hapax__number_parse(&db, at, len, DB_MAX))
        return hapax__uri_wrong(r, "the database is not a number up to 99999");
    out->db = (uint32_t)db;
    return HAPAX_ERR_NONE;
}

static enum hapax_error check_options(const struct hapax__uri_reading *r)
{
    const struct hapax__redis_uri *out = r->out;
    enum hapax_error error = hapax__uri_tls_check(r, out->tls, "rediss");

    if (error != HAPAX_ERR_NONE)
        return error;
    if (hapax__uri_given(r, "sentinel_") && out->kind != HAPAX__REDIS_SENTINEL)
        return hapax__uri_wrong(
            r, "it has sentinel_ parameters, but its scheme is not redis+sentinel");
    if (out->login.user[0] != '\0' && out->login.password[0] == '\0')
        return hapax__uri_wrong(r, "there is a user but no password");
    if (out->sentinel_login.user[0] != '\0' && out->sentinel_login.password[0] == '\0')
        return hapax__uri_wrong(r,
                                "there is a \"sentinel_user\" but no \"sentinel_password_file\"");
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

const struct hapax__redis_address *hapax__redis_far(const struct hapax__redis_uri *uri)
{
    for (size_t i = 0; i < uri->host_count; i++)
        if (!hapax__host_is_near(uri->hosts[i].host, strlen(uri->hosts[i].host)))
            return &uri->hosts[i];
    return NULL;
}

bool hapax__redis_login(const struct hapax__redis_uri *uri)
{
    return uri->login.password[0] != '\0' || uri->tls_cert[0] != '\0';
}

enum hapax_error hapax__redis_uri(struct hapax__redis_uri *out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    struct hapax__uri_reading r = {.what = "Redis",
                                   .text = text,
                                   .out = out,
                                   .options = uri_options,
                                   .option_count = sizeof(uri_options) / sizeof(uri_options[0])};
    struct hapax__uri_split split;
    enum hapax_error error;
    const char *at;

    assert(out && uri && text);
    memset(out, 0, sizeof(*out));
    memcpy(out->prefix, "hapax:", sizeof("hapax:"));
    out->tls_verify = true;
    out->timeout_ms = TIMEOUT_MS;
    at = read_scheme(out, uri);
    if (!at)
        return hapax__uri_wrong(&r, "it begins with none of redis://, rediss://, "
                                    "redis[s]+sentinel://, redis[s]+cluster://");
    if (strchr(at, '#'))
        return hapax__uri_wrong(&r, "there is a '#' in it; one of a password is written %%23");
    hapax__uri_split(&split, &r, at);
    error = read_hosts(&r, split.hosts, split.hosts_len);
    if (error == HAPAX_ERR_NONE)
        error = read_path(&r, split.path, split.path_len);
    if (error == HAPAX_ERR_NONE)
        error = hapax__uri_query(&r, split.query);
    if (error == HAPAX_ERR_NONE)
        error = check_options(&r);
    if (error != HAPAX_ERR_NONE)
        explicit_bzero(out, sizeof(*out));
    assert(error != HAPAX_ERR_NONE || out->host_count > 0);
    return error;
}
