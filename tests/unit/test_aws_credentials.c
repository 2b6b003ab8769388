/* SPDX-License-Identifier: Apache-2.0
 *
 * Where keys come from: the environment and shared files, which of them goes before which, and what
 * is wrong with them. How the rest is asked over HTTP is in tests/e2e/test_aws.py.
 */
#include "aws/credentials.h"
#include "aws/profile.h"

#include "../cases.h"
#include "../must.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ftw.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char folder[64];
static int64_t now_s, slow_s; /* the clock, and how far it goes on after it is read next */

static int64_t clock_s(void *arg)
{
    int64_t read_s = now_s;

    (void)arg;
    now_s += slow_s;
    slow_s = 0;
    return read_s;
}

static const char *path_of(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* An environment without settings of the user, but for a HOME of its own. */
static int setup(void **state)
{
    static const char *const names[] = {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_STS",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
    snprintf(folder, sizeof(folder), "/tmp/hapax-aws-XXXXXX");
    if (!mkdtemp(folder) || mkdir(path_of(".aws"), 0700) != 0)
        return -1;
    setenv("HOME", folder, 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    now_s = 1000;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static int teardown(void **state)
{
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct hapax__aws_source *open_source(const char *profile)
{
    struct hapax__aws_source_options options = {
        .profile = profile, .region = "eu-central-1", .wall_s = clock_s};
    struct hapax__aws_source *source;
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax__aws_source_open(&source, &options, text), HAPAX_ERR_NONE);
    return source;
}

/* Opens, asks once, and closes. id: of the keys, or "". */
static enum hapax_error look(const char *profile, char id[64], char text[HAPAX_TEXT_MAX])
{
    struct hapax__aws_source *source = open_source(profile);
    const struct hapax__aws_keys *keys;
    uint64_t generation;
    enum hapax_error error = hapax__aws_source_keys(source, &keys, &generation, text);

    id[0] = '\0';
    if (error == HAPAX_ERR_NONE)
        snprintf(id, 64, "%.20s%s%.20s", keys->id, keys->token[0] ? "+" : "", keys->token);
    assert_null(strstr(text, "geheim"));
    hapax__aws_source_close(source);
    return error;
}

static void gives(const char *profile, const char *wanted)
{
    char id[64], text[HAPAX_TEXT_MAX] = "";

    if (look(profile, id, text) != HAPAX_ERR_NONE || strcmp(id, wanted) != 0)
        fail_msg("\"%s\" for \"%s\": %s", id, wanted, text);
}

static void fails(const char *profile, enum hapax_error wanted, const char *word)
{
    char id[64], text[HAPAX_TEXT_MAX] = "";
    enum hapax_error error = look(profile, id, text);

    if (error != wanted || !strstr(text, word))
        fail_msg("%s: %s", hapax_error_name(error), text);
}

/* ---- the order ------------------------------------------------------------------------- */

CASE_WITH(the_environment_goes_before_files, setup, teardown)
{
    write_file(".aws/credentials",
               "[default]\naws_access_key_id=FILE\naws_secret_access_key=geheim\n"
               "[p]\naws_access_key_id=P\naws_secret_access_key=geheim\n");
    gives(NULL, "FILE");
    setenv("AWS_PROFILE", "p", 1);
    gives(NULL, "P");
    setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "geheim", 1);
    gives(NULL, "ENV");
    setenv("AWS_SESSION_TOKEN", "T", 1);
    gives(NULL, "ENV+T");
    gives("default", "FILE"); /* a profile that the caller names */
    unsetenv("AWS_SESSION_TOKEN");
}

/* Half of a place is not passed over for the next one, which may be another account's. */
CASE_WITH(what_is_configured_wrongly_is_said, setup, teardown)
{
    write_file(".aws/credentials",
               "[default]\naws_access_key_id=FILE\naws_secret_access_key=geheim\n");
    setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
    fails(NULL, HAPAX_ERR_REFUSED, "AWS_SECRET_ACCESS_KEY is not");
    setenv("AWS_SECRET_ACCESS_KEY", "geheim\n", 1);
    fails(NULL, HAPAX_ERR_REFUSED, "other signs");
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent", 1);
    fails(NULL, HAPAX_ERR_REFUSED, "AWS_ROLE_ARN is not");
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
    fails(NULL, HAPAX_ERR_REFUSED, "No such file");
    unsetenv("AWS_WEB_IDENTITY_TOKEN_FILE");
    setenv("AWS_PROFILE", "nobody", 1);
    fails(NULL, HAPAX_ERR_REFUSED, "there is no profile \"nobody\"");
}

CASE_WITH(without_any_it_says_where_it_looked, setup, teardown)
{
    fails(NULL, HAPAX_ERR_REFUSED, "no AWS keys: none in the environment");
    fails(NULL, HAPAX_ERR_REFUSED, ".aws/credentials");
    fails(NULL, HAPAX_ERR_REFUSED, "metadata is off");
    write_file(".aws/config", "[default]\nregion = eu-west-1\n");
    fails(NULL, HAPAX_ERR_REFUSED, "no AWS keys: none in the environment");
    fails("default", HAPAX_ERR_REFUSED, "profile \"default\" has no AWS keys");
    unsetenv("HOME");
    fails(NULL, HAPAX_ERR_REFUSED, "no HOME");
}

/* ---- files ----------------------------------------------------------------------------- */

CASE_WITH(both_files_are_read, setup, teardown)
{
    write_file(".aws/config",
               "[profile p]\naws_access_key_id=CONFIG\naws_secret_access_key=geheim\n"
               "[q]\naws_access_key_id=Q\naws_secret_access_key=geheim\n");
    gives("p", "CONFIG");
    fails("q", HAPAX_ERR_REFUSED, "there is no profile"); /* without its "profile" */
    write_file(".aws/credentials",
               "[p]\naws_access_key_id=CREDENTIALS\naws_secret_access_key=geheim\n");
    gives("p", "CREDENTIALS");
    write_file("other", "[p]\naws_access_key_id=OTHER\naws_secret_access_key=geheim\n");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path_of("other"), 1);
    gives("p", "OTHER");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
    gives("p", "CONFIG");
    setenv("AWS_SHARED_CREDENTIALS_FILE", folder, 1);
    fails("p", HAPAX_ERR_REFUSED, "Is a directory");
}

CASE_WITH(settings_that_need_more_are_named, setup, teardown)
{
    static const char *const cases[][2] = {
        {"sso_session = s", "sso_session"},
        {"sso_start_url = https://s", "sso_start_url"},
        {"credential_process = /bin/geheim", "credential_process"},
        {"role_arn = arn:aws:iam::1:role/r\nsource_profile = p\nmfa_serial = m", "mfa_serial"},
        {"role_arn = arn:aws:iam::1:role/r\ncredential_source = Moon", "credential_source"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char file[256];

        snprintf(file, sizeof(file), "[profile p]\n%s\n", cases[i][0]);
        write_file(".aws/config", file);
        fails("p", HAPAX_ERR_UNSUPPORTED, cases[i][1]);
    }
    write_file(".aws/config", "[profile p]\nrole_arn = arn:aws:iam::1:role/r\n");
    fails("p", HAPAX_ERR_REFUSED, "role_arn");
    write_file(".aws/config", "[profile p]\nrole_arn=a\nsource_profile=q\n"
                              "[profile q]\nrole_arn=a\nsource_profile=p\n");
    fails("p", HAPAX_ERR_REFUSED, "more than 5 profiles");
}

/* A line that sets a key to more than fits is told of, and so is a file that is no file of
 * settings. */
CASE_WITH(long_and_large_files_are_refused, setup, teardown)
{
    static char file[(1 << 20) + 64];

    snprintf(file, sizeof(file),
             "[default]\naws_access_key_id=%0200d\naws_secret_access_key=geheim\n", 0);
    write_file(".aws/credentials", file);
    fails(NULL, HAPAX_ERR_REFUSED, "too long");
    memset(file, '#', sizeof(file) - 1);
    write_file(".aws/credentials", file);
    fails(NULL, HAPAX_ERR_REFUSED, "File too large");
    setenv("AWS_PROFILE", "default", 1);
    write_file(".aws/credentials", "[default]\naws_access_key_id=A\n");
    fails(NULL, HAPAX_ERR_REFUSED, "no aws_secret_access_key");
}

/* A FIFO in place of a file does not hold the program up. */
CASE_WITH(a_fifo_is_an_empty_file, setup, teardown)
{
    assert_int_equal(mkfifo(path_of(".aws/credentials"), 0600), 0);
    fails(NULL, HAPAX_ERR_REFUSED, "no AWS keys");
}

CASE_WITH(lines_are_read_as_the_table_says, setup, teardown)
{
    static const char file[] = "\xef\xbb\xbf"
                               "a = nobody's\n"
                               "# a = comment\r\n"
                               " [default]\n"
                               "[default]\r\n"
                               "; a = comment\n"
                               "A=first\n"
                               "a  =  second value # comment\n"
                               "  a = below another\n"
                               "hash = a#b;c\n"
                               "empty =\n"
                               "only = # comment\n"
                               "no equals\n"
                               "= no name\n"
                               "s3 =\n"
                               "  region = below\n"
                               "[profile default]\n"
                               "b = prefixed\n"
                               "[profile  \"a b\" ]\n"
                               "b = quoted\n"
                               "[profile default\n"
                               "[default]\n"
                               "b = plain\n"
                               "last = end";
    static const struct {
        const char *profile;
        const char *name;
        const char *value; /* NULL: none */
    } cases[] = {
        {"default", "a", "second value"},
        {"default", "hash", "a#b;c"},
        {"default", "empty", NULL},
        {"default", "only", NULL},
        {"default", "", NULL},
        {"default", "region", NULL},
        {"default", "b", "prefixed"},
        {"a b", "b", "quoted"},
        {"default", "last", "end"},
        {"b", "b", NULL},
        {"default", "c", NULL},
    };
    char out[32];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum hapax__aws_found found = hapax__aws_profile_value(
            out, sizeof(out), hapax_str(file), HAPAX__AWS_CONFIG, cases[i].profile, cases[i].name);

        if (cases[i].name[0] && (found == HAPAX__AWS_FOUND) != (cases[i].value != NULL))
            fail_msg("%s: %d \"%s\"", cases[i].name, (int)found, out);
        if (cases[i].value)
            assert_string_equal(out, cases[i].value);
    }
    assert_int_equal(
        hapax__aws_profile_value(out, 12, hapax_str(file), HAPAX__AWS_CONFIG, "default", "a"),
        HAPAX__AWS_TOO_LONG);
    assert_string_equal(out, "");
    assert_false(hapax__aws_profile_exists(hapax_str(file), HAPAX__AWS_CREDENTIALS, "a b"));
}

/* ---- renewal --------------------------------------------------------------------------- */

static const char *id_of(struct hapax__aws_source *source, uint64_t *generation)
{
    const struct hapax__aws_keys *keys;
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax__aws_source_keys(source, &keys, generation, text), HAPAX_ERR_NONE);
    return keys->id;
}

/* Keys without an end are read again only when a service refuses them, and then not at each
 * refusal. */
CASE_WITH(files_are_read_again_when_keys_are_refused, setup, teardown)
{
    struct hapax__aws_source *source;
    uint64_t first, generation;

    write_file(".aws/credentials",
               "[default]\naws_access_key_id=A\naws_secret_access_key=geheim\n");
    source = open_source(NULL);
    assert_string_equal(id_of(source, &first), "A");
    write_file(".aws/credentials",
               "[default]\naws_access_key_id=B\naws_secret_access_key=geheim\n");
    now_s += 1000000;
    assert_string_equal(id_of(source, &generation), "A");
    hapax__aws_source_doubt(source, generation);
    assert_string_equal(id_of(source, &generation), "B");
    assert_int_equal(generation, first + 1);
    write_file(".aws/credentials",
               "[default]\naws_access_key_id=C\naws_secret_access_key=geheim\n");
    hapax__aws_source_doubt(source, first); /* of keys that are gone already */
    assert_string_equal(id_of(source, &generation), "B");
    hapax__aws_source_doubt(source, generation);
    assert_string_equal(id_of(source, &generation), "B");
    now_s += 5;
    hapax__aws_source_doubt(source, generation);
    assert_string_equal(id_of(source, &generation), "C");
    unlink(path_of(".aws/credentials")); /* what is asked in vain leaves the old ones */
    now_s += 5;
    hapax__aws_source_doubt(source, generation);
    assert_string_equal(id_of(source, &generation), "C");
    hapax__aws_source_close(source);
}

/* Whoever is slow to say no is left alone for a second, too: else each call of many would wait for
 * that anew. */
CASE_WITH(a_source_that_is_slow_is_not_asked_by_each_call, setup, teardown)
{
    struct hapax__aws_source *source = open_source(NULL);
    const struct hapax__aws_keys *keys;
    char text[HAPAX_TEXT_MAX];
    uint64_t generation;

    slow_s = 5;
    assert_int_equal(hapax__aws_source_keys(source, &keys, &generation, text), HAPAX_ERR_REFUSED);
    write_file(".aws/credentials",
               "[default]\naws_access_key_id=A\naws_secret_access_key=geheim\n");
    assert_int_equal(hapax__aws_source_keys(source, &keys, &generation, text), HAPAX_ERR_REFUSED);
    now_s += 1;
    assert_string_equal(id_of(source, &generation), "A");
    hapax__aws_source_close(source);
}

/* Keys that were not there are found when they are, a second later. */
CASE_WITH(keys_that_come_later_are_found, setup, teardown)
{
    struct hapax__aws_source *source = open_source(NULL);
    const struct hapax__aws_keys *keys;
    char text[HAPAX_TEXT_MAX];
    uint64_t generation;

    assert_int_equal(hapax__aws_source_keys(source, &keys, &generation, text), HAPAX_ERR_REFUSED);
    write_file(".aws/credentials",
               "[default]\naws_access_key_id=A\naws_secret_access_key=geheim\n");
    assert_int_equal(hapax__aws_source_keys(source, &keys, &generation, text), HAPAX_ERR_REFUSED);
    now_s += 1;
    assert_string_equal(id_of(source, &generation), "A");
    hapax__aws_source_close(source);
}

/* ---- an agent that gives temporary keys -------------------------------------------------- */

static struct agent {
    pthread_t thread;
    int listener;
    atomic_int asked;
    atomic_int status;
    atomic_llong expires_s;
} agent;

/* The n-th keys are called K<n>. */
static void answer_one(int fd)
{
    char request[2048] = "", body[512], when[32];
    size_t len = 0;
    time_t expires = (time_t)atomic_load(&agent.expires_s);
    struct tm tm;
    ssize_t n;

    while (!strstr(request, "\r\n\r\n") &&
           (n = read(fd, request + len, sizeof(request) - 1 - len)) > 0)
        request[len += (size_t)n] = '\0';
    must(strncmp(request, "GET /keys HTTP/1.1\r\n", 20) == 0);
    gmtime_r(&expires, &tm);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
    snprintf(body, sizeof(body),
             "{\"AccessKeyId\":\"K%d\",\"SecretAccessKey\":\"geheim\",\"Token\":\"geheim\","
             "\"Expiration\":\"%s\"}",
             atomic_fetch_add(&agent.asked, 1) + 1, when);
    must(dprintf(fd, "HTTP/1.1 %d x\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                 atomic_load(&agent.status), strlen(body), body) > 0);
}

static void *serve(void *arg)
{
    int fd;

    (void)arg;
    while ((fd = accept(agent.listener, NULL, NULL)) >= 0) {
        answer_one(fd);
        close(fd);
    }
    return NULL;
}

static struct hapax__aws_source *open_agent(int64_t expires_s)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    char url[64];

    atomic_store(&agent.asked, 0);
    atomic_store(&agent.status, 200);
    atomic_store(&agent.expires_s, expires_s);
    agent.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(bind(agent.listener, (struct sockaddr *)&address, len) == 0);
    must(listen(agent.listener, 8) == 0);
    must(getsockname(agent.listener, (struct sockaddr *)&address, &len) == 0);
    must(pthread_create(&agent.thread, NULL, serve, NULL) == 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/keys", (unsigned)ntohs(address.sin_port));
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url, 1);
    return open_source(NULL);
}

static void close_agent(struct hapax__aws_source *source)
{
    hapax__aws_source_close(source);
    shutdown(agent.listener, SHUT_RDWR); /* ends accept() */
    pthread_join(agent.thread, NULL);
    close(agent.listener);
}

/* Not before five minutes are left, and then before any call is refused. */
CASE_WITH(keys_are_renewed_before_they_expire, setup, teardown)
{
    struct hapax__aws_source *source = open_agent(now_s + 3600);
    uint64_t generation;

    assert_string_equal(id_of(source, &generation), "K1");
    now_s += 3600 - 301;
    assert_string_equal(id_of(source, &generation), "K1");
    assert_int_equal(atomic_load(&agent.asked), 1);
    atomic_store(&agent.expires_s, now_s + 7200);
    now_s += 1;
    assert_string_equal(id_of(source, &generation), "K2");
    assert_int_equal(generation, 2);
    close_agent(source);
}

/* What fails leaves the old keys, until they are over, and is not asked all the time. */
CASE_WITH(a_renewal_in_vain_leaves_what_there_is, setup, teardown)
{
    struct hapax__aws_source *source = open_agent(now_s + 400);
    const struct hapax__aws_keys *keys;
    char text[HAPAX_TEXT_MAX];
    uint64_t generation;

    assert_string_equal(id_of(source, &generation), "K1");
    atomic_store(&agent.status, 500);
    now_s += 100;
    for (int i = 0; i < 30; i++, now_s++)
        assert_string_equal(id_of(source, &generation), "K1");
    assert_int_equal(atomic_load(&agent.asked), 1 + 2); /* two tries */
    assert_string_equal(id_of(source, &generation), "K1");
    assert_int_equal(atomic_load(&agent.asked), 1 + 4);
    now_s += 269;
    assert_string_equal(id_of(source, &generation), "K1");
    now_s += 1;
    assert_int_equal(hapax__aws_source_keys(source, &keys, &generation, text),
                     HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(text, "answered 500"));
    atomic_store(&agent.status, 200); /* keys that are over already are none */
    now_s += 1;
    assert_int_equal(hapax__aws_source_keys(source, &keys, &generation, text),
                     HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(text, "expired"));
    atomic_store(&agent.expires_s, now_s + 3600);
    now_s += 1;
    assert_int_equal(hapax__aws_source_keys(source, &keys, &generation, text), HAPAX_ERR_NONE);
    close_agent(source);
}

/* ---- the region ------------------------------------------------------------------------ */

CASE_WITH(the_region_is_found, setup, teardown)
{
    struct hapax__aws_source_options options = {.wall_s = clock_s};
    static const char *const names[] = {"AWS_DEFAULT_REGION", "AWS_REGION"};
    static const char *const wanted[] = {"eu-west-1", "eu-west-2", "eu-west-3"};
    struct hapax__aws_source *source;
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax__aws_source_open(&source, &options, text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "no region"));
    write_file(".aws/config", "[default]\nregion = eu-west-1\n");
    for (size_t i = 0; i < 3; i++) {
        if (i > 0)
            setenv(names[i - 1], wanted[i], 1);
        assert_int_equal(hapax__aws_source_open(&source, &options, text), HAPAX_ERR_NONE);
        assert_string_equal(hapax__aws_source_region(source), wanted[i]);
        hapax__aws_source_close(source);
    }
    options.region = "No Region";
    assert_int_equal(hapax__aws_source_open(&source, &options, text), HAPAX_ERR_INVALID);
}
