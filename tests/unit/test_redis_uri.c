/* SPDX-License-Identifier: Apache-2.0
 *
 * What a Redis URI says, as a table; every mistake has its text; and no text shows a password.
 */
#include "../cases.h"
#include "store/redis/uri.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- what is read ---------------------------------------------------------------------- */

static void show(char out[1024], const struct hapax__redis_uri *uri)
{
    static const char *const kinds[] = {"node", "sentinel", "cluster"};
    int n = snprintf(out, 1024, "%s%s", kinds[uri->kind], uri->tls ? " tls" : "");

    for (size_t i = 0; i < uri->host_count; i++)
        n += snprintf(out + n, 1024 - (size_t)n, " %s|%u", uri->hosts[i].host, uri->hosts[i].port);
#define ADD(format, given, ...)                                                                    \
    if (given)                                                                                     \
    n += snprintf(out + n, 1024 - (size_t)n, " " format, __VA_ARGS__)
    ADD("user=%s", uri->login.user[0], uri->login.user);
    ADD("password=%s", uri->login.password[0], uri->login.password);
    ADD("sentinel_user=%s", uri->sentinel_login.user[0], uri->sentinel_login.user);
    ADD("sentinel_password=%s", uri->sentinel_login.password[0], uri->sentinel_login.password);
    ADD("master=%s", uri->master[0], uri->master);
    ADD("db=%u", uri->db > 0, uri->db);
    ADD("prefix=%s", strcmp(uri->prefix, "hapax:") != 0, uri->prefix);
    ADD("wait=%u", uri->wait > 0, uri->wait);
    ADD("timeout=%ld", uri->timeout_ms != 2000, (long)uri->timeout_ms);
    ADD("ca=%s", uri->tls_ca[0], uri->tls_ca);
    ADD("cert=%s", uri->tls_cert[0], uri->tls_cert);
    ADD("key=%s", uri->tls_key[0], uri->tls_key);
    ADD("verify=%s", !uri->tls_verify, "off");
#undef ADD
}

static const struct row {
    const char *uri;
    const char *expected; /* "!…": INVALID, with this in its text */
} rows[] = {
    {"redis://h", "node h|6379"},
    {"redis://h/", "node h|6379"},
    {"redis://h:1", "node h|1"},
    {"redis://h:65535/15", "node h|65535 db=15"},
    {"redis://127.0.0.1:7000/0", "node 127.0.0.1|7000"},
    {"redis://[::1]", "node ::1|6379"},
    {"redis://[fe80::1%eth0]:7000/2", "node fe80::1%eth0|7000 db=2"},
    {"rediss://h", "node tls h|6379"},
    {"redis://:s3cret@h", "node h|6379 password=s3cret"},
    {"redis://u:s3cret@h:7/1", "node h|7 user=u password=s3cret db=1"},
    {"redis://u%40v:%3a%2F%3f%23%25%2c@h", "node h|6379 user=u@v password=:/?#%,"},
    {"redis://u:a:b@h", "node h|6379 user=u password=a:b"},
    {"redis://:@h", "node h|6379"},
    {"redis://@h", "node h|6379"},
    {"redis+sentinel://a/mymaster", "sentinel a|26379 master=mymaster"},
    {"redis+sentinel://a:1,b,[::2]:3/m/4", "sentinel a|1 b|26379 ::2|3 master=m db=4"},
    {"redis+sentinel://u:p@a/m/", "sentinel a|26379 user=u password=p master=m"},
    {"rediss+sentinel://a/m%20x", "!the master's name"},
    {"redis+cluster://a,b:2,c", "cluster a|6379 b|2 c|6379"},
    {"rediss+cluster://:p@a,b/", "cluster tls a|6379 b|6379 password=p"},
    {"redis://h?", "node h|6379"},
    {"redis://h/3?prefix=shop:", "node h|6379 db=3 prefix=shop:"},
    {"redis://h?wait=2&timeout=500ms", "node h|6379 wait=2 timeout=500"},
    {"redis://h?wait=0&timeout=1m", "node h|6379 timeout=60000"},
    {"redis://h?timeout=10ms", "node h|6379 timeout=10"},
    {"redis://h?wait=16", "node h|6379 wait=16"},
    {"rediss://h?tls_ca=/ca%20x&tls_cert=/c&tls_key=/k", "node tls h|6379 ca=/ca x cert=/c key=/k"},
    {"rediss://h?tls_verify=off", "node tls h|6379 verify=off"},
    {"rediss://h?tls_verify=on", "node tls h|6379"},

    {"", "!begins with none of"},
    {"redis:", "!begins with none of"},
    {"redis:/h", "!begins with none of"},
    {"redisss://h", "!begins with none of"},
    {"redis+nonsense://h", "!begins with none of"},
    {"redis+clusters://h", "!begins with none of"},
    {"Redis://h", "!begins with none of"},
    {"redis://", "!a host is empty"},
    {"redis:///0", "!a host is empty"},
    {"redis://:6379", "!a host is empty"},
    {"redis://:p@", "!a host is empty"},
    {"redis+cluster://a,,b", "!a host is empty"},
    {"redis+cluster://a,", "!a host is empty"},
    {"redis://[]", "!a host is empty"},
    {"redis://[::1", "!no ']'"},
    {"redis://[::1]x", "!port"},
    {"redis://[a]b]", "!port"},
    {"redis://::1", "!a host is empty"},
    {"redis://fe80::1", "!port"},
    {"redis://h:", "!port"},
    {"redis://h:0", "!port"},
    {"redis://h:65536", "!port"},
    {"redis://h:99999999999999999999", "!port"},
    {"redis://h:-1", "!port"},
    {"redis://h:6379x", "!port"},
    {"redis://h h", "!a host is not a name"},
    {"redis://h\n", "!a host is not a name"},
    {"redis://a%20b", "!a host is not a name"},
    {"redis://a,b", "!several hosts"},
    {"redis+cluster://a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "!more than 16 hosts"},
    {"redis+cluster://a/1", "!a cluster has no databases"},
    {"redis+cluster://a/0", "!a cluster has no databases"},
    {"redis+sentinel://a", "!names no master"},
    {"redis+sentinel://a/", "!names no master"},
    {"redis+sentinel://a//1", "!names no master"},
    {"redis+sentinel://a?wait=1", "!names no master"},
    {"redis+sentinel://a/m/x", "!database"},
    {"redis+sentinel://a/m/1/2", "!database"},
    {"redis://h/x", "!database"},
    {"redis://h/-1", "!database"},
    {"redis://h/1/", "!database"},
    {"redis://h/100000", "!database"},
    {"redis://h/4294967296", "!database"},
    {"redis://u@h", "!a user but no password"},
    {"redis://u:@h", "!a user but no password"},
    {"redis://u:p@q@h", "!two '@'"},
    {"redis+cluster://u:p@a,u:p@b", "!two '@'"},
    {"redis+cluster://a,u:p@b", "!user and password stand once"},
    {"redis://u:%4@h", "!the password"},
    {"redis://u:%zz@h", "!the password"},
    {"redis://u:a%00b@h", "!the password"},
    {"redis://%:p@h", "!the user"},
    {"redis://:a/b@h", "!a port is not 1 to 65535|a host is empty|%2F"},
    {"redis://h/#x", "!%23"},
    {"redis://h?nonsense=1", "!\"nonsense\" is not known"},
    {"redis://h?=1", "!\"\" is not known"},
    {"redis://h?&", "!\"\" is not known"},
    {"redis://h?Wait=1", "!\"Wait\" is not known"},
    {"redis://h?wait=1&wait=2", "!\"wait\" is given twice"},
    {"redis://h?wait", "!\"wait\""},
    {"redis://h?wait=", "!\"wait\""},
    {"redis://h?wait=17", "!\"wait\""},
    {"redis://h?wait=-1", "!\"wait\""},
    {"redis://h?wait=1x", "!\"wait\""},
    {"redis://h?timeout=9ms", "!\"timeout\""},
    {"redis://h?timeout=0", "!\"timeout\""},
    {"redis://h?timeout=61s", "!\"timeout\""},
    {"redis://h?timeout=2", "!\"timeout\""},
    {"redis://h?prefix=", "!\"prefix\""},
    {"redis://h?prefix=a%20b", "!\"prefix\""},
    {"redis://h?prefix=%7Ba%7D", "!\"prefix\""},
    {"redis://h?prefix=a*", "!\"prefix\""},
    {"redis://h?prefix=%", "!the value of \"prefix\""},
    {"redis://h?tls_ca=/x", "!its scheme is not rediss"},
    {"redis://h?tls_verify=on", "!its scheme is not rediss"},
    {"rediss://h?tls_verify=yes", "!\"tls_verify\""},
    {"rediss://h?tls_cert=/x", "!go together"},
    {"rediss://h?tls_key=/x", "!go together"},
    {"rediss://h?tls_ca=", "!\"tls_ca\" names no file"},
    {"redis://h?sentinel_user=x", "!its scheme is not redis+sentinel"},
    {"redis+sentinel://h/m?sentinel_user=x", "!no \"sentinel_password_file\""},
    {"redis+sentinel://h/m?sentinel_user=", "!\"sentinel_user\" is empty"},
    {"redis://h?password_file=", "!names no file"},
    {"redis://h?password_file=/nonexistent/x", "!cannot use password_file \"/nonexistent/x\""},
    {"redis://h?password_file=/", "!it is not a file"},
    {"redis://:p@h?password_file=/x", "!there is a password in it and a \"password_file\""},
};

static void check_row(const struct row *row)
{
    struct hapax__redis_uri uri;
    char text[HAPAX_TEXT_MAX] = "";
    char shown[1024];
    enum hapax_error error = hapax__redis_uri(&uri, row->uri, text);

    if (row->expected[0] != '!') {
        if (error != HAPAX_ERR_NONE)
            fail_msg("%s: %s", row->uri, text);
        show(shown, &uri);
        assert_string_equal(shown, row->expected);
        return;
    }
    if (error != HAPAX_ERR_INVALID ||
        (!strstr(text, row->expected + 1) && !strchr(row->expected, '|')))
        fail_msg("%s: %s: %s", row->uri, hapax_error_name(error), text);
}

/* Each URI means what its row says, or is refused with a text that says why. */
CASE(uris_are_read_as_the_table_says)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check_row(&rows[i]);
}

/* Each limit is kept to the byte. */
CASE(limits_are_exact)
{
    static const struct {
        const char *before, *after;
        size_t max;
    } limits[] = {{"redis://", "", HAPAX__REDIS_NAME_MAX},
                  {"redis://", ":p@h", HAPAX__REDIS_NAME_MAX},
                  {"redis://:", "@h", HAPAX__REDIS_NAME_MAX},
                  {"redis+sentinel://h/", "", HAPAX__REDIS_NAME_MAX},
                  {"redis://h?prefix=", "", HAPAX__REDIS_PREFIX_MAX},
                  {"rediss://h?tls_ca=", "", HAPAX__REDIS_NAME_MAX}};
    struct hapax__redis_uri out;
    char text[HAPAX_TEXT_MAX];

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        for (size_t over = 0; over < 2; over++) {
            char name[300], uri[400];
            size_t len = limits[i].max + over;

            memset(name, 'a', len);
            name[len] = '\0';
            snprintf(uri, sizeof(uri), "%s%s%s", limits[i].before, name, limits[i].after);
            assert_int_equal(hapax__redis_uri(&out, uri, text),
                             over ? HAPAX_ERR_INVALID : HAPAX_ERR_NONE);
        }
}

/* ---- passwords ------------------------------------------------------------------------- */

/* Wherever the end of a password that was not encoded falls, no text shows a part of it. */
CASE(no_text_shows_a_password)
{
    static const char *const uris[] = {
        "redis://:hush@h?nonsense=1",
        "redis://:hush@h:0",
        "redis://:hush@h/x",
        "redis://:hush/hush@h",
        "redis://:hush?hush@h",
        "redis://:hush?hush=hush@h",
        "redis://:hush#hush@h",
        "redis://:hush@hush@h",
        "redis://u:hush,hush@h",
        "redis://:hush%hush@h",
        "redis+sentinel://:hush/hush@h/m",
        "redis+sentinel://:hush@h",
        "redis+cluster://:hush/h@h",
        "redis+cluster://:hush@h,h:x",
        "redis+nonsense://:hush@h",
        "redis:/:hush@h",
        "redis://:hush?hush&hush@h/hush?hush=hush",
        "redis://h/0?hush=1@",
        "rediss://:hush@h?tls_verify=x",
    };
    struct hapax__redis_uri out;

    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        char text[HAPAX_TEXT_MAX] = "";

        assert_int_equal(hapax__redis_uri(&out, uris[i], text), HAPAX_ERR_INVALID);
        assert_true(text[0] != '\0');
        if (strstr(text, "hush"))
            fail_msg("%s: %s", uris[i], text);
    }
}

struct file {
    char path[64];
};

static void write_file(struct file *file, const char *bytes, size_t len, mode_t mode)
{
    int fd;

    memcpy(file->path, "/tmp/hapax-uri-XXXXXX", sizeof("/tmp/hapax-uri-XXXXXX"));
    fd = mkstemp(file->path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static enum hapax_error with_file(struct hapax__redis_uri *out, const char *format,
                                  const char *bytes, size_t len, mode_t mode,
                                  char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;
    struct file file;
    char uri[256];

    write_file(&file, bytes, len, mode);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(uri, sizeof(uri), format, file.path);
#pragma GCC diagnostic pop
    error = hapax__redis_uri(out, uri, text);
    unlink(file.path);
    return error;
}

/* A password from a file is its bytes, less one newline. */
CASE(a_password_file_is_read)
{
    struct hapax__redis_uri out;
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(with_file(&out, "redis://h?password_file=%s", "hush\n", 5, 0600, text), 0);
    assert_string_equal(out.login.password, "hush");
    assert_int_equal(with_file(&out, "redis://u@h?password_file=%s", "hu sh\n\n", 7, 0640, text),
                     0);
    assert_string_equal(out.login.user, "u");
    assert_string_equal(out.login.password, "hu sh\n");
    assert_int_equal(with_file(&out,
                               "redis+sentinel://:p@h/m?sentinel_user=v&sentinel_password_file=%s",
                               "hush", 4, 0400, text),
                     0);
    assert_string_equal(out.login.password, "p");
    assert_string_equal(out.sentinel_login.user, "v");
    assert_string_equal(out.sentinel_login.password, "hush");
}

/* What a password file must not be; and what is in it is not told. */
CASE(a_password_file_must_be_good)
{
    static const char format[] = "redis://h?password_file=%s";
    struct hapax__redis_uri out;
    char text[HAPAX_TEXT_MAX];
    char bytes[300];

    memset(bytes, 'x', sizeof(bytes));
    assert_int_equal(with_file(&out, format, "hush", 4, 0604, text), HAPAX_ERR_REFUSED);
    assert_non_null(strstr(text, "everybody can read it; chmod o-r it"));
    assert_null(strstr(text, "hush"));
    assert_int_equal(with_file(&out, format, "", 0, 0600, text), HAPAX_ERR_INVALID);
    assert_int_equal(with_file(&out, format, "\n", 1, 0600, text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "it is empty"));
    assert_int_equal(with_file(&out, format, "a\0b", 3, 0600, text), HAPAX_ERR_INVALID);
    assert_int_equal(with_file(&out, format, bytes, 256, 0600, text), HAPAX_ERR_INVALID);
    assert_int_equal(with_file(&out, format, bytes, 300, 0600, text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "over 255 bytes"));
    assert_int_equal(with_file(&out, format, bytes, 255, 0600, text), HAPAX_ERR_NONE);
    bytes[255] = '\n';
    assert_int_equal(with_file(&out, format, bytes, 256, 0600, text), HAPAX_ERR_NONE);
}

/* A FIFO in place of the file does not hold the program up. */
CASE(a_fifo_is_no_password_file)
{
    char folder[] = "/tmp/hapax-uri-XXXXXX";
    char path[64], uri[128], text[HAPAX_TEXT_MAX];
    struct hapax__redis_uri out;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/fifo", folder);
    snprintf(uri, sizeof(uri), "redis://h?password_file=%s", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(hapax__redis_uri(&out, uri, text), HAPAX_ERR_INVALID);
    unlink(path);
    rmdir(folder);
}
