/* SPDX-License-Identifier: Apache-2.0
 *
 * The chain of credentials sources, and the renewal of keys.
 *
 * The invariant: the first source that is configured is used, and text says what is wrong with it;
 * the next one is asked only where this one is not configured. A renewal that fails takes no good
 * keys away: they are used until they expire. The environment is read once, at open, so that no
 * thread races with one that changes it. Files are read each time, since their owners change them.
 *
 * Rejected: a thread that renews ahead. It would be one per handle, and would save a wait of some
 * milliseconds every few hours.
 */
#include "credentials.h"

#include "keys.h"
#include "profile.h"

#include "base/fail.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <openssl/crypto.h>

#define AHEAD_S      300 /* keys are renewed so long before they expire */
#define PAUSE_S      30 /* between renewals in vain while the old keys are valid */
#define PAUSE_NONE_S 1 /* and while there are none */
#define DOUBT_S      5 /* between renewals because a service refused the keys */
#define VALUE_MAX    HAPAX__AWS_TOKEN_MAX /* bytes of a variable */
#define PATH_MAX_LEN 1024u
#define PATH_SHOWN   40u /* bytes of its end, in an error */
#define WORD_MAX     2048u /* bytes of a setting in a file */
#define CHAIN_MAX    5 /* profiles in a chain of roles */

enum variable {
    ACCESS_KEY_ID,
    SECRET_ACCESS_KEY,
    SESSION_TOKEN,
    WEB_IDENTITY_TOKEN_FILE,
    ROLE_ARN,
    ROLE_SESSION_NAME,
    PROFILE,
    DEFAULT_PROFILE,
    REGION,
    DEFAULT_REGION,
    SHARED_CREDENTIALS_FILE,
    CONFIG_FILE,
    CONTAINER_RELATIVE,
    CONTAINER_FULL,
    CONTAINER_TOKEN,
    CONTAINER_TOKEN_FILE,
    METADATA_DISABLED,
    METADATA_ENDPOINT,
    METADATA_MODE,
    CA_BUNDLE,
    HOME,
    VARIABLES
};

static const char *const names[VARIABLES] = {
    [ACCESS_KEY_ID] = "AWS_ACCESS_KEY_ID",
    [SECRET_ACCESS_KEY] = "AWS_SECRET_ACCESS_KEY",
    [SESSION_TOKEN] = "AWS_SESSION_TOKEN",
    [WEB_IDENTITY_TOKEN_FILE] = "AWS_WEB_IDENTITY_TOKEN_FILE",
    [ROLE_ARN] = "AWS_ROLE_ARN",
    [ROLE_SESSION_NAME] = "AWS_ROLE_SESSION_NAME",
    [PROFILE] = "AWS_PROFILE",
    [DEFAULT_PROFILE] = "AWS_DEFAULT_PROFILE",
    [REGION] = "AWS_REGION",
    [DEFAULT_REGION] = "AWS_DEFAULT_REGION",
    [SHARED_CREDENTIALS_FILE] = "AWS_SHARED_CREDENTIALS_FILE",
    [CONFIG_FILE] = "AWS_CONFIG_FILE",
    [CONTAINER_RELATIVE] = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    [CONTAINER_FULL] = "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    [CONTAINER_TOKEN] = "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    [CONTAINER_TOKEN_FILE] = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    [METADATA_DISABLED] = "AWS_EC2_METADATA_DISABLED",
    [METADATA_ENDPOINT] = "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    [METADATA_MODE] = "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
    [CA_BUNDLE] = "AWS_CA_BUNDLE",
    [HOME] = "HOME",
};

struct hapax__aws_source {
    char *values[VARIABLES]; /* NULL: not set, or empty */
    char *profile; /* the option; NULL: none */
    char region[HAPAX__AWS_REGION_MAX + 1];
    struct hapax__aws_sts sts;
    int64_t (*wall_s)(void *arg);
    void *arg;

    struct hapax__aws_temporary given;
    struct hapax__aws_temporary fresh; /* being asked for */
    uint64_t generation; /* of given; 0: there are none */
    bool doubted;
    int64_t renewed_s; /* when the last renewal was, in vain or not */
    int64_t doubted_s; /* when the last was because of a doubt */
    enum hapax_error error; /* of a renewal that failed */
    char text[HAPAX_TEXT_MAX];
};

/* The shared files, for as long as one look at them takes. */
struct files {
    struct hapax_span credentials;
    struct hapax_span config;
};

static int64_t machine_s(void *arg)
{
    (void)arg;
    return time(NULL);
}

/* ---- files --------------------------------------------------------------------------------- */

static bool path_of(char out[PATH_MAX_LEN], const struct hapax__aws_source *source,
                    enum variable named, const char *below_home)
{
    const char *path = source->values[named], *home = source->values[HOME];
    int len = -1;

    out[0] = '\0';
    if (path)
        len = snprintf(out, PATH_MAX_LEN, "%s", path);
    else if (home)
        len = snprintf(out, PATH_MAX_LEN, "%s/%s", home, below_home);
    return len > 0 && (size_t)len < PATH_MAX_LEN;
}

/* A file that does not exist counts as empty, and so does one without permission that nobody
 * named. */
static enum hapax_error read_file(struct hapax_span *out, const struct hapax__aws_source *source,
                                  enum variable named, const char *below_home,
                                  char text[HAPAX_TEXT_MAX])
{
    char path[PATH_MAX_LEN];
    int error;

    *out = (struct hapax_span){NULL, 0};
    if (!path_of(path, source, named, below_home))
        return source->values[named] ? hapax__fail(text, HAPAX_ERR_REFUSED, "%s is over %u bytes",
                                                   names[named], PATH_MAX_LEN - 1)
                                     : HAPAX_ERR_NONE;
    error = hapax__aws_file_read(out, path, HAPAX__AWS_FILE_MAX);
    if (error == 0 || error == ENOENT || error == ENOTDIR ||
        (error == EACCES && !source->values[named]))
        return HAPAX_ERR_NONE;
    return hapax__fail(text, error == ENOMEM ? HAPAX_ERR_NOMEM : HAPAX_ERR_REFUSED,
                       "cannot read the shared AWS file \"%.150s\": %s", path, strerror(error));
}

static void close_files(struct files *files)
{
    hapax__aws_file_free(&files->credentials);
    hapax__aws_file_free(&files->config);
}

static enum hapax_error open_files(struct files *files, const struct hapax__aws_source *source,
                                   char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error =
        read_file(&files->credentials, source, SHARED_CREDENTIALS_FILE, ".aws/credentials", text);

    files->config = (struct hapax_span){NULL, 0};
    if (error == HAPAX_ERR_NONE)
        error = read_file(&files->config, source, CONFIG_FILE, ".aws/config", text);
    if (error != HAPAX_ERR_NONE)
        close_files(files);
    return error;
}

/* A setting of a profile, of the credentials file where both have it. */
static enum hapax__aws_found setting(char *out, size_t size, const struct files *files,
                                     const char *profile, const char *name)
{
    enum hapax__aws_found found = hapax__aws_profile_value(out, size, files->credentials,
                                                           HAPAX__AWS_CREDENTIALS, profile, name);

    return found != HAPAX__AWS_ABSENT ? found
                                      : hapax__aws_profile_value(out, size, files->config,
                                                                 HAPAX__AWS_CONFIG, profile, name);
}

static bool has(const struct files *files, const char *profile, const char *name)
{
    char out[4];

    return setting(out, sizeof(out), files, profile, name) != HAPAX__AWS_ABSENT;
}

static const char *profile_of(const struct hapax__aws_source *source)
{
    if (source->profile)
        return source->profile;
    if (source->values[PROFILE])
        return source->values[PROFILE];
    return source->values[DEFAULT_PROFILE] ? source->values[DEFAULT_PROFILE] : "default";
}

/* ---- open and close ------------------------------------------------------------------------ */

static enum hapax_error read_environment(struct hapax__aws_source *source,
                                         char text[HAPAX_TEXT_MAX])
{
    for (size_t i = 0; i < VARIABLES; i++) {
        const char *value = getenv(names[i]);

        if (!value || !value[0])
            continue;
        if (strlen(value) > VALUE_MAX)
            return hapax__fail(text, HAPAX_ERR_INVALID, "%s is over %u bytes", names[i], VALUE_MAX);
        source->values[i] = strdup(value);
        if (!source->values[i])
            return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot read AWS settings: out of memory");
    }
    return HAPAX_ERR_NONE;
}

static enum hapax_error find_region(struct hapax__aws_source *source, const char *region,
                                    char text[HAPAX_TEXT_MAX])
{
    char profiles[HAPAX__AWS_REGION_MAX + 1];
    struct files files;

    if (!region)
        region = source->values[REGION] ? source->values[REGION] : source->values[DEFAULT_REGION];
    if (!region && open_files(&files, source, text) == HAPAX_ERR_NONE) {
        if (setting(profiles, sizeof(profiles), &files, profile_of(source), "region") ==
            HAPAX__AWS_FOUND)
            region = profiles;
        close_files(&files);
    }
    if (!region)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "no region: none is given, AWS_REGION and AWS_DEFAULT_REGION are not "
                           "set, and profile \"%.64s\" has none",
                           profile_of(source));
    if (!hapax__aws_region_check(region))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "region \"%.64s\" is not 1 to %u of a-z, 0-9 and '-'", region,
                           HAPAX__AWS_REGION_MAX);
    memcpy(source->region, region, strlen(region) + 1);
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__aws_source_open(struct hapax__aws_source **out,
                                        const struct hapax__aws_source_options *options,
                                        char text[HAPAX_TEXT_MAX])
{
    struct hapax__aws_source *source = calloc(1, sizeof(*source));
    enum hapax_error error;

    *out = NULL;
    if (!source)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot read AWS settings: out of memory");
    source->wall_s = options->wall_s ? options->wall_s : machine_s;
    source->arg = options->arg;
    error = read_environment(source, text);
    if (error == HAPAX_ERR_NONE && options->profile &&
        !(source->profile = strdup(options->profile)))
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot read AWS settings: out of memory");
    if (error == HAPAX_ERR_NONE)
        error = find_region(source, options->region, text);
    if (error == HAPAX_ERR_NONE)
        error = hapax__aws_endpoint_find(&source->sts.endpoint, "sts", source->region, text);
    if (error != HAPAX_ERR_NONE) {
        hapax__aws_source_close(source);
        return error;
    }
    source->sts.region = source->region;
    source->sts.ca = source->values[CA_BUNDLE];
    *out = source;
    return HAPAX_ERR_NONE;
}

void hapax__aws_source_close(struct hapax__aws_source *source)
{
    if (!source)
        return;
    for (size_t i = 0; i < VARIABLES; i++) {
        if (source->values[i])
            OPENSSL_cleanse(source->values[i], strlen(source->values[i]));
        free(source->values[i]);
    }
    free(source->profile);
    OPENSSL_cleanse(source, sizeof(*source));
    free(source);
}

const char *hapax__aws_source_region(const struct hapax__aws_source *source)
{
    return source->region;
}

/* ---- the sources --------------------------------------------------------------------------- */

/* What a source of the chain answers. */
enum answer { NOT_HERE = 1, HERE, WRONG };

static bool take(char *out, size_t size, const char *value)
{
    size_t len = value ? strlen(value) : 0;

    if (len >= size)
        return false;
    memcpy(out, value ? value : "", len + 1);
    return true;
}

static enum answer wrong(struct hapax__aws_source *source, enum hapax_error error)
{
    source->error = error;
    return WRONG;
}

#define WRONG_OF(source, kind, ...)                                                                \
    wrong(source, hapax__fail((source)->text, HAPAX_ERR_##kind, __VA_ARGS__))

static enum answer from_environment(struct hapax__aws_source *source)
{
    struct hapax__aws_keys *keys = &source->fresh.keys;
    const char *id = source->values[ACCESS_KEY_ID], *secret = source->values[SECRET_ACCESS_KEY];

    if (!id && !secret)
        return NOT_HERE;
    if (!id || !secret)
        return WRONG_OF(source, REFUSED, "%s is set, but %s is not",
                        names[id ? ACCESS_KEY_ID : SECRET_ACCESS_KEY],
                        names[id ? SECRET_ACCESS_KEY : ACCESS_KEY_ID]);
    if (!take(keys->id, sizeof(keys->id), id) ||
        !take(keys->secret, sizeof(keys->secret), secret) ||
        !take(keys->token, sizeof(keys->token), source->values[SESSION_TOKEN]) ||
        !hapax__aws_keys_check(keys))
        return WRONG_OF(source, REFUSED,
                        "AWS keys in the environment are too long, or have spaces or other signs "
                        "in them that keys have not");
    return HERE;
}

static enum answer from_web_identity(struct hapax__aws_source *source)
{
    const struct hapax__aws_role role = {.arn = source->values[ROLE_ARN],
                                         .session = source->values[ROLE_SESSION_NAME]};

    if (!source->values[WEB_IDENTITY_TOKEN_FILE])
        return NOT_HERE;
    if (!role.arn)
        return WRONG_OF(source, REFUSED,
                        "AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not");
    source->error = hapax__aws_web_identity(&source->fresh, &source->sts, &role,
                                            source->values[WEB_IDENTITY_TOKEN_FILE], source->text);
    return source->error == HAPAX_ERR_NONE ? HERE : WRONG;
}

static enum answer from_container(struct hapax__aws_source *source)
{
    if (!source->values[CONTAINER_RELATIVE] && !source->values[CONTAINER_FULL])
        return NOT_HERE;
    source->error = hapax__aws_container(
        &source->fresh, source->values[CONTAINER_RELATIVE], source->values[CONTAINER_FULL],
        source->values[CONTAINER_TOKEN], source->values[CONTAINER_TOKEN_FILE],
        source->values[CA_BUNDLE], source->text);
    return source->error == HAPAX_ERR_NONE ? HERE : WRONG;
}

static bool metadata_is_off(const struct hapax__aws_source *source)
{
    return source->values[METADATA_DISABLED] &&
           strcasecmp(source->values[METADATA_DISABLED], "true") == 0;
}

static enum answer from_instance(struct hapax__aws_source *source)
{
    const char *endpoint = source->values[METADATA_ENDPOINT];

    if (metadata_is_off(source))
        return NOT_HERE;
    if (!endpoint)
        endpoint =
            source->values[METADATA_MODE] && strcasecmp(source->values[METADATA_MODE], "IPv6") == 0
                ? "http://[fd00:ec2::254]"
                : "http://169.254.169.254";
    source->error = hapax__aws_instance(&source->fresh, endpoint, source->text);
    return source->error == HAPAX_ERR_NONE ? HERE : WRONG;
}

/* ---- profiles ------------------------------------------------------------------------------ */

static enum answer from_profile(struct hapax__aws_source *source, const struct files *files,
                                const char *profile, unsigned depth);

static enum answer static_keys(struct hapax__aws_source *source, const struct files *files,
                               const char *profile)
{
    struct hapax__aws_keys *keys = &source->fresh.keys;
    enum hapax__aws_found id, secret, token;

    id = setting(keys->id, sizeof(keys->id), files, profile, "aws_access_key_id");
    secret = setting(keys->secret, sizeof(keys->secret), files, profile, "aws_secret_access_key");
    token = setting(keys->token, sizeof(keys->token), files, profile, "aws_session_token");
    if (id == HAPAX__AWS_ABSENT && secret == HAPAX__AWS_ABSENT)
        return NOT_HERE;
    if (id == HAPAX__AWS_ABSENT || secret == HAPAX__AWS_ABSENT)
        return WRONG_OF(source, REFUSED, "profile \"%.64s\" has %s, but no %s", profile,
                        id == HAPAX__AWS_ABSENT ? "aws_secret_access_key" : "aws_access_key_id",
                        id == HAPAX__AWS_ABSENT ? "aws_access_key_id" : "aws_secret_access_key");
    if (id != HAPAX__AWS_FOUND || secret != HAPAX__AWS_FOUND || token == HAPAX__AWS_TOO_LONG ||
        !hapax__aws_keys_check(keys))
        return WRONG_OF(source, REFUSED,
                        "the keys of profile \"%.64s\" are too long, or have spaces or other signs "
                        "in them that keys have not",
                        profile);
    source->fresh.expires_s = 0;
    return HERE;
}

static enum answer source_of_role(struct hapax__aws_source *source, const struct files *files,
                                  const char *profile, unsigned depth)
{
    char other[WORD_MAX];
    enum answer answer = NOT_HERE;

    if (setting(other, sizeof(other), files, profile, "source_profile") == HAPAX__AWS_FOUND) {
        if (depth + 1 >= CHAIN_MAX)
            return WRONG_OF(source, REFUSED,
                            "profile \"%.64s\": more than %d profiles in a chain of roles", profile,
                            CHAIN_MAX);
        /* One that names itself means its own keys. */
        answer = strcmp(other, profile) == 0 ? static_keys(source, files, profile)
                                             : from_profile(source, files, other, depth + 1);
    } else if (setting(other, sizeof(other), files, profile, "credential_source") ==
               HAPAX__AWS_FOUND) {
        if (strcasecmp(other, "Environment") == 0)
            answer = from_environment(source);
        else if (strcasecmp(other, "EcsContainer") == 0)
            answer = from_container(source);
        else if (strcasecmp(other, "Ec2InstanceMetadata") == 0)
            answer = from_instance(source);
        else
            return WRONG_OF(source, UNSUPPORTED,
                            "profile \"%.64s\": credential_source is none of Environment, "
                            "EcsContainer and Ec2InstanceMetadata",
                            profile);
    }
    if (answer == NOT_HERE)
        return WRONG_OF(source, REFUSED,
                        "profile \"%.64s\" has a role_arn, but where it says that keys for it come "
                        "from are none",
                        profile);
    return answer;
}

static enum answer assume_role(struct hapax__aws_source *source, const struct files *files,
                               const char *profile, unsigned depth)
{
    char arn[WORD_MAX], session[128], external[WORD_MAX], duration[16], token_file[WORD_MAX];
    struct hapax__aws_role role = {.arn = arn};
    struct hapax__aws_keys *by;
    enum answer answer;

    if (setting(arn, sizeof(arn), files, profile, "role_arn") != HAPAX__AWS_FOUND)
        return WRONG_OF(source, REFUSED, "the role_arn of profile \"%.64s\" is too long", profile);
    if (has(files, profile, "mfa_serial"))
        return WRONG_OF(source, UNSUPPORTED,
                        "profile \"%.64s\" has an mfa_serial, and nobody is here to be asked",
                        profile);
    if (setting(session, sizeof(session), files, profile, "role_session_name") == HAPAX__AWS_FOUND)
        role.session = session;
    if (setting(external, sizeof(external), files, profile, "external_id") == HAPAX__AWS_FOUND)
        role.external_id = external;
    if (setting(duration, sizeof(duration), files, profile, "duration_seconds") == HAPAX__AWS_FOUND)
        role.duration_s = duration;
    if (setting(token_file, sizeof(token_file), files, profile, "web_identity_token_file") ==
        HAPAX__AWS_FOUND) {
        role.external_id = role.duration_s = NULL;
        source->error =
            hapax__aws_web_identity(&source->fresh, &source->sts, &role, token_file, source->text);
        return source->error == HAPAX_ERR_NONE ? HERE : WRONG;
    }
    answer = source_of_role(source, files, profile, depth);
    if (answer != HERE)
        return answer;
    by = malloc(sizeof(*by));
    if (!by)
        return WRONG_OF(source, NOMEM, "cannot ask for AWS keys: out of memory");
    *by = source->fresh.keys;
    source->error = hapax__aws_assume_role(&source->fresh, &source->sts, &role, by,
                                           source->wall_s(source->arg), source->text);
    OPENSSL_cleanse(by, sizeof(*by));
    free(by);
    return source->error == HAPAX_ERR_NONE ? HERE : WRONG;
}

static enum answer from_profile(struct hapax__aws_source *source, const struct files *files,
                                const char *profile, unsigned depth)
{
    static const char *const unsupported[] = {"sso_session", "sso_start_url", "credential_process",
                                              "login_session"};
    enum answer answer;

    if (has(files, profile, "role_arn"))
        return assume_role(source, files, profile, depth);
    answer = static_keys(source, files, profile);
    for (size_t i = 0; answer == NOT_HERE && i < sizeof(unsupported) / sizeof(unsupported[0]);
         i++) {
        if (has(files, profile, unsupported[i]))
            return WRONG_OF(source, UNSUPPORTED,
                            "profile \"%.64s\" has %s, which is not supported: let `aws configure "
                            "export-credentials` put keys into the environment",
                            profile, unsupported[i]);
    }
    return answer;
}

static enum answer from_files(struct hapax__aws_source *source)
{
    const char *profile = profile_of(source);
    bool named = strcmp(profile, "default") != 0 || source->profile;
    enum answer answer;
    struct files files;

    source->error = open_files(&files, source, source->text);
    if (source->error != HAPAX_ERR_NONE)
        return WRONG;
    if (hapax__aws_profile_exists(files.credentials, HAPAX__AWS_CREDENTIALS, profile) ||
        hapax__aws_profile_exists(files.config, HAPAX__AWS_CONFIG, profile))
        answer = from_profile(source, &files, profile, 0);
    else if (named)
        answer = WRONG_OF(source, REFUSED, "there is no profile \"%.64s\" in the shared AWS files",
                          profile);
    else
        answer = NOT_HERE;
    close_files(&files);
    return answer;
}

/* ---- the chain ----------------------------------------------------------------------------- */

static enum answer nowhere(struct hapax__aws_source *source, const char *why)
{
    char path[PATH_MAX_LEN];
    size_t len;

    if (!path_of(path, source, SHARED_CREDENTIALS_FILE, ".aws/credentials"))
        snprintf(path, sizeof(path), "%s", "(no HOME)");
    len = strlen(path);
    return WRONG_OF(source, REFUSED,
                    "no AWS keys: none in the environment, no web identity, none of profile "
                    "\"%.24s\" in \"%s%s\", no container; %.90s",
                    profile_of(source), len > PATH_SHOWN ? "..." : "",
                    path + (len > PATH_SHOWN ? len - PATH_SHOWN : 0), why);
}

/* Asks for keys: error NONE, and fresh holds them; else text says what is wrong. */
static void ask(struct hapax__aws_source *source)
{
    static enum answer (*const chain[])(struct hapax__aws_source *) = {
        from_environment, from_web_identity, from_files, from_container};
    enum answer answer = NOT_HERE;
    char why[HAPAX_TEXT_MAX];

    source->error = HAPAX_ERR_NONE;
    memset(&source->fresh, 0, sizeof(source->fresh));
    if (source->profile) {
        answer = from_files(source);
        if (answer == NOT_HERE)
            answer =
                WRONG_OF(source, REFUSED, "profile \"%.64s\" has no AWS keys", source->profile);
    }
    for (size_t i = 0; answer == NOT_HERE && i < sizeof(chain) / sizeof(chain[0]); i++)
        answer = chain[i](source);
    if (answer != NOT_HERE)
        return;
    answer = from_instance(source);
    if (answer == NOT_HERE) {
        nowhere(source, "instance metadata is off");
    } else if (answer == WRONG && source->error == HAPAX_ERR_REFUSED) {
        memcpy(why, source->text, sizeof(why));
        nowhere(source, why);
    }
}

/* Returns the time after the renewal. Pauses begin then: otherwise each of many calls would wait
 * for a slow source. */
static int64_t renew(struct hapax__aws_source *source)
{
    int64_t now_s;

    ask(source);
    now_s = source->wall_s(source->arg);
    source->renewed_s = now_s;
    if (source->doubted)
        source->doubted_s = now_s;
    source->doubted = false;
    if (source->error == HAPAX_ERR_NONE && source->fresh.expires_s != 0 &&
        source->fresh.expires_s <= now_s)
        source->error = hapax__fail(source->text, HAPAX_ERR_UNAVAILABLE,
                                    "the AWS keys that were given have expired already");
    if (source->error == HAPAX_ERR_NONE) {
        source->given = source->fresh;
        source->generation++;
    } else if (source->generation > 0 && source->error == HAPAX_ERR_REFUSED) {
        source->error = HAPAX_ERR_UNAVAILABLE; /* there were keys: this passes, or is put right */
    }
    OPENSSL_cleanse(&source->fresh, sizeof(source->fresh));
    return now_s;
}

static bool is_valid(const struct hapax__aws_source *source, int64_t now_s)
{
    return source->generation > 0 &&
           (source->given.expires_s == 0 || now_s < source->given.expires_s);
}

/* A clock that was set back ends a pause. */
static bool is_within(int64_t now_s, int64_t since_s, int64_t pause_s)
{
    return now_s >= since_s && now_s - since_s < pause_s;
}

static bool is_due(const struct hapax__aws_source *source, int64_t now_s)
{
    if (source->doubted)
        return true;
    if (!is_valid(source, now_s))
        return source->error == HAPAX_ERR_NONE ||
               !is_within(now_s, source->renewed_s, PAUSE_NONE_S);
    return source->given.expires_s != 0 && now_s >= source->given.expires_s - AHEAD_S &&
           !is_within(now_s, source->renewed_s, PAUSE_S);
}

enum hapax_error hapax__aws_source_keys(struct hapax__aws_source *source,
                                        const struct hapax__aws_keys **keys, uint64_t *generation,
                                        char text[HAPAX_TEXT_MAX])
{
    int64_t now_s = source->wall_s(source->arg);

    if (is_due(source, now_s))
        now_s = renew(source);
    *keys = &source->given.keys;
    *generation = source->generation;
    if (is_valid(source, now_s))
        return HAPAX_ERR_NONE;
    assert(source->error != HAPAX_ERR_NONE);
    memcpy(text, source->text, sizeof(source->text));
    return source->error;
}

void hapax__aws_source_doubt(struct hapax__aws_source *source, uint64_t generation)
{
    if (generation == source->generation &&
        !is_within(source->wall_s(source->arg), source->doubted_s, DOUBT_S))
        source->doubted = true;
}
