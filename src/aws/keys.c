/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking for temporary keys.
 *
 * The invariant: keys travel only where nobody can overhear or change them: by TLS, within this
 * machine, or from the link-local addresses that AWS answers at. No text holds a secret, and our
 * memory is wiped of them.
 *
 * Rejected: version 1 of instance metadata. Whoever can make a server fetch a URL can read it.
 */
#include "keys.h"

#include "answer.h"
#include "fetch.h"
#include "profile.h"

#include "base/fail.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/crypto.h>

#define IDENTITY_MAX  20000u /* bytes of a web identity token, STS's own limit */
#define CONTAINER_MAX 8192u /* bytes of a container's token */
#define URL_MAX       2048u
#define TRIES         2

bool hapax__aws_keys_check(const struct hapax__aws_keys *keys)
{
    const char *const all[] = {keys->id, keys->secret, keys->token};

    for (size_t i = 0; i < 3; i++) {
        for (const char *c = all[i]; *c; c++) {
            if (*c < 0x21 || *c > 0x7e)
                return false;
        }
    }
    return keys->id[0] && keys->secret[0];
}

/* ---- asking -------------------------------------------------------------------------------- */

/* Asks again where no answer came or the service had trouble. */
static enum hapax_error ask(struct hapax__aws_fetch *fetch, int tries, const char *who,
                            char text[HAPAX_TEXT_MAX])
{
    for (int i = 0; i < tries; i++) {
        hapax__aws_fetch_release(fetch);
        if (hapax__aws_fetch_run(fetch) && fetch->status < 500 && fetch->status != 429)
            break;
    }
    if (fetch->status == 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "cannot ask %.150s for AWS keys: %.80s",
                           who, fetch->why);
    if (fetch->status >= 500 || fetch->status == 429)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                           "%.150s answered %d when asked for AWS keys", who, fetch->status);
    return HAPAX_ERR_NONE;
}

static enum hapax_error not_whole(const char *who, char text[HAPAX_TEXT_MAX])
{
    return hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                       "%.150s answered with no whole keys, or with longer ones than are known",
                       who);
}

/* The document of a container and of an instance. */
static enum hapax_error read_document(struct hapax__aws_temporary *out,
                                      const struct hapax__aws_fetch *fetch, const char *who,
                                      char text[HAPAX_TEXT_MAX])
{
    struct hapax_span json = {(const uint8_t *)fetch->reply, fetch->len};
    char code[64], expires[64];

    if (hapax__aws_json_string(code, sizeof(code), json, "Code") && strcmp(code, "Success") != 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "%.150s has no AWS keys now", who);
    if (!hapax__aws_json_string(out->keys.id, sizeof(out->keys.id), json, "AccessKeyId") ||
        !hapax__aws_json_string(out->keys.secret, sizeof(out->keys.secret), json,
                                "SecretAccessKey") ||
        !hapax__aws_json_string(out->keys.token, sizeof(out->keys.token), json, "Token") ||
        !hapax__aws_json_string(expires, sizeof(expires), json, "Expiration") ||
        !hapax__aws_keys_check(&out->keys))
        return not_whole(who, text);
    out->expires_s = hapax__aws_time(expires);
    return out->expires_s > 0 ? HAPAX_ERR_NONE : not_whole(who, text);
}

/* ---- STS ----------------------------------------------------------------------------------- */

struct form {
    char *bytes;
    size_t size;
    size_t len;
};

static void add(struct form *form, const char *name, const char *value)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

    if (!value)
        return;
    form->len += (size_t)snprintf(form->bytes + form->len, form->size - form->len,
                                  "%s%s=", form->len > 0 ? "&" : "", name);
    for (; *value; value++) {
        bool as_is = strchr(plain, *value) != NULL;

        form->len += (size_t)snprintf(form->bytes + form->len, form->size - form->len,
                                      as_is ? "%c" : "%%%02X", (unsigned char)*value);
    }
}

static size_t len_of(const char *text)
{
    return text ? strlen(text) : 0;
}

/* The form of a role; room for more bytes behind it. False: out of memory. */
static bool make_form(struct form *form, const char *action, const struct hapax__aws_role *role,
                      size_t more)
{
    char session[40];

    form->len = 0;
    form->size = 512 + 3 * (len_of(role->arn) + len_of(role->session) + len_of(role->external_id) +
                            len_of(role->duration_s) + more);
    form->bytes = malloc(form->size);
    if (!form->bytes)
        return false;
    snprintf(session, sizeof(session), "hapax-%ld", (long)getpid());
    add(form, "Action", action);
    add(form, "Version", "2011-06-15");
    add(form, "RoleArn", role->arn);
    add(form, "RoleSessionName", role->session ? role->session : session);
    add(form, "ExternalId", role->external_id);
    add(form, "DurationSeconds", role->duration_s);
    return true;
}

static void free_form(struct form *form)
{
    if (form->bytes)
        OPENSSL_cleanse(form->bytes, form->size);
    free(form->bytes);
}

static enum hapax_error read_sts(struct hapax__aws_temporary *out,
                                 const struct hapax__aws_fetch *fetch, const char *who,
                                 char text[HAPAX_TEXT_MAX])
{
    struct hapax_span xml = {(const uint8_t *)fetch->reply, fetch->len};
    char expires[64], code[64], name[64];

    if (fetch->status != 200) {
        hapax__aws_xml_text(code, sizeof(code), xml, "Code");
        hapax__aws_error_name(name, sizeof(name), code, (struct hapax_span){NULL, 0});
        return hapax__fail(
            text,
            strcmp(name, "Throttling") == 0 || strcmp(name, "IDPCommunicationError") == 0
                ? HAPAX_ERR_UNAVAILABLE
                : HAPAX_ERR_REFUSED,
            "\"%.100s\" gives no AWS keys for the role: %d %s", who, fetch->status, name);
    }
    if (!hapax__aws_xml_text(out->keys.id, sizeof(out->keys.id), xml, "AccessKeyId") ||
        !hapax__aws_xml_text(out->keys.secret, sizeof(out->keys.secret), xml, "SecretAccessKey") ||
        !hapax__aws_xml_text(out->keys.token, sizeof(out->keys.token), xml, "SessionToken") ||
        !hapax__aws_xml_text(expires, sizeof(expires), xml, "Expiration") ||
        !hapax__aws_keys_check(&out->keys))
        return not_whole(who, text);
    out->expires_s = hapax__aws_time(expires);
    return out->expires_s > 0 ? HAPAX_ERR_NONE : not_whole(who, text);
}

#define FORM_TYPE "application/x-www-form-urlencoded; charset=utf-8"

static enum hapax_error ask_sts(struct hapax__aws_temporary *out, const struct hapax__aws_sts *sts,
                                const struct form *form, const char *const *lines, size_t lines_n,
                                char text[HAPAX_TEXT_MAX])
{
    struct hapax__aws_fetch fetch = {.method = "POST",
                                     .url = sts->endpoint.url,
                                     .lines = lines,
                                     .lines_n = lines_n,
                                     .body = form->bytes,
                                     .connect_ms = 3000,
                                     .total_ms = 5000,
                                     .proxy = sts->endpoint.tls,
                                     .ca = sts->ca};
    enum hapax_error error = ask(&fetch, TRIES, sts->endpoint.host, text);

    if (error == HAPAX_ERR_NONE)
        error = read_sts(out, &fetch, sts->endpoint.host, text);
    hapax__aws_fetch_release(&fetch);
    return error;
}

/* A token of a file, less the newline at its end. */
static enum hapax_error read_token(struct hapax_span *out, const char *path, size_t max,
                                   const char *what, char text[HAPAX_TEXT_MAX])
{
    int error = hapax__aws_file_read(out, path, max);
    char *bytes = (char *)(uintptr_t)out->ptr;
    bool good;

    if (error != 0)
        return hapax__fail(text, error == ENOMEM ? HAPAX_ERR_NOMEM : HAPAX_ERR_REFUSED,
                           "cannot read %s \"%.120s\": %s", what, path, strerror(error));
    while (out->len > 0 && (bytes[out->len - 1] == '\n' || bytes[out->len - 1] == '\r'))
        bytes[--out->len] = '\0';
    good = out->len > 0;
    for (size_t i = 0; i < out->len; i++)
        good = good && bytes[i] >= 0x20 && bytes[i] <= 0x7e;
    if (good)
        return HAPAX_ERR_NONE;
    hapax__aws_file_free(out);
    return hapax__fail(text, HAPAX_ERR_REFUSED, "%s \"%.120s\" holds no token", what, path);
}

enum hapax_error hapax__aws_web_identity(struct hapax__aws_temporary *out,
                                         const struct hapax__aws_sts *sts,
                                         const struct hapax__aws_role *role, const char *token_file,
                                         char text[HAPAX_TEXT_MAX])
{
    static const char *const lines[] = {"Content-Type: " FORM_TYPE};
    struct hapax_span token;
    struct form form = {0};
    enum hapax_error error =
        read_token(&token, token_file, IDENTITY_MAX, "the web identity token", text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (make_form(&form, "AssumeRoleWithWebIdentity", role, token.len)) {
        add(&form, "WebIdentityToken", (const char *)token.ptr);
        error = ask_sts(out, sts, &form, lines, 1, text);
    } else {
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot ask for AWS keys: out of memory");
    }
    free_form(&form);
    hapax__aws_file_free(&token);
    return error;
}

enum hapax_error hapax__aws_assume_role(struct hapax__aws_temporary *out,
                                        const struct hapax__aws_sts *sts,
                                        const struct hapax__aws_role *role,
                                        const struct hapax__aws_keys *keys, int64_t now_s,
                                        char text[HAPAX_TEXT_MAX])
{
    static const struct hapax__aws_header type = {"content-type", FORM_TYPE};
    char authorization[HAPAX__AWS_AUTHORIZATION_MAX], date[HAPAX__AWS_DATE_SIZE];
    char stamp[64], signature[HAPAX__AWS_AUTHORIZATION_MAX + 32];
    size_t token_size = strlen(keys->token) + 32;
    char *token = malloc(token_size);
    const char *lines[4] = {"Content-Type: " FORM_TYPE, stamp, signature, token};
    struct hapax__aws_request request = {
        .method = "POST", .path = "/", .query = "", .headers = &type, .headers_n = 1};
    struct form form = {0};
    enum hapax_error error;

    if (token && make_form(&form, "AssumeRole", role, 0)) {
        request.host = sts->endpoint.host;
        request.body = (struct hapax_span){(const uint8_t *)form.bytes, form.len};
        hapax__aws_date(date, now_s);
        snprintf(stamp, sizeof(stamp), "X-Amz-Date: %s", date);
        snprintf(token, token_size, "X-Amz-Security-Token: %s", keys->token);
        if (hapax__aws_sign(authorization, &request, keys, "sts", sts->region, now_s)) {
            snprintf(signature, sizeof(signature), "Authorization: %s", authorization);
            error = ask_sts(out, sts, &form, lines, keys->token[0] ? 4 : 3, text);
            goto out;
        }
    }
    error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot ask for AWS keys: out of memory");
out:
    free_form(&form);
    if (token)
        OPENSSL_cleanse(token, token_size);
    free(token);
    return error;
}

/* ---- a container --------------------------------------------------------------------------- */

static bool is_near(const char *host)
{
    static const char *const near[] = {"localhost", "169.254.170.2", "169.254.170.23"};
    struct in_addr v4;
    struct in6_addr v6, agent;
    char bare[64];

    for (size_t i = 0; i < sizeof(near) / sizeof(near[0]); i++) {
        if (strcmp(host, near[i]) == 0)
            return true;
    }
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    if (host[0] != '[' || strlen(host) >= sizeof(bare))
        return false;
    snprintf(bare, sizeof(bare), "%.*s", (int)strcspn(host + 1, "]"), host + 1);
    return inet_pton(AF_INET6, bare, &v6) == 1 &&
           inet_pton(AF_INET6, "fd00:ec2::23", &agent) == 1 &&
           (IN6_IS_ADDR_LOOPBACK(&v6) || memcmp(&v6, &agent, sizeof(v6)) == 0);
}

bool hapax__aws_container_may(const char *url)
{
    CURLU *parsed = strlen(url) < URL_MAX ? curl_url() : NULL;
    char *scheme = NULL, *host = NULL;
    bool may = parsed && curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK &&
               curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
               curl_url_get(parsed, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
               (strcmp(scheme, "https") == 0 || (strcmp(scheme, "http") == 0 && is_near(host)));

    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(parsed);
    return may;
}

enum hapax_error hapax__aws_container(struct hapax__aws_temporary *out, const char *relative,
                                      const char *full, const char *token, const char *token_file,
                                      const char *ca, char text[HAPAX_TEXT_MAX])
{
    static const char who[] = "the container's agent";
    char url[URL_MAX], line[CONTAINER_MAX + 32];
    const char *lines[] = {line};
    struct hapax_span file = {NULL, 0};
    struct hapax__aws_fetch fetch = {.method = "GET",
                                     .url = url,
                                     .lines = lines,
                                     .connect_ms = 1000,
                                     .total_ms = 2000,
                                     .ca = ca};
    enum hapax_error error = HAPAX_ERR_NONE;
    int len = relative ? snprintf(url, sizeof(url), "http://169.254.170.2%s", relative)
                       : snprintf(url, sizeof(url), "%s", full);

    if (len < 0 || (size_t)len >= sizeof(url) || (relative && relative[0] != '/') ||
        (!relative && !hapax__aws_container_may(url)))
        return hapax__fail(text, HAPAX_ERR_REFUSED, "AWS_CONTAINER_CREDENTIALS_%s: it must be %s",
                           relative ? "RELATIVE_URI is not asked" : "FULL_URI is not asked",
                           relative ? "a path" : "https:, or of this machine or AWS's agents");
    if (token_file)
        error = read_token(&file, token_file, CONTAINER_MAX,
                           "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", text);
    if (error != HAPAX_ERR_NONE)
        return error;
    if (token_file)
        token = (const char *)file.ptr;
    if (token && (strlen(token) > CONTAINER_MAX || strpbrk(token, "\r\n"))) {
        error = hapax__fail(text, HAPAX_ERR_REFUSED,
                            "AWS_CONTAINER_AUTHORIZATION_TOKEN is over %u bytes or two lines",
                            CONTAINER_MAX);
    } else {
        snprintf(line, sizeof(line), "Authorization: %s", token ? token : "");
        fetch.lines_n = token ? 1 : 0;
        error = ask(&fetch, TRIES, who, text);
        if (error == HAPAX_ERR_NONE && fetch.status != 200)
            error = hapax__fail(text, HAPAX_ERR_REFUSED, "%s answered %d when asked for AWS keys",
                                who, fetch.status);
        if (error == HAPAX_ERR_NONE)
            error = read_document(out, &fetch, who, text);
    }
    hapax__aws_fetch_release(&fetch);
    hapax__aws_file_free(&file);
    OPENSSL_cleanse(line, sizeof(line));
    return error;
}

/* ---- an instance --------------------------------------------------------------------------- */

#define ROLES "latest/meta-data/iam/security-credentials/"

/* One question, a second at most. NONE: 200, and fetch holds the reply. */
static enum hapax_error ask_instance(struct hapax__aws_fetch *fetch, const char *method,
                                     const char *url, const char *line, char text[HAPAX_TEXT_MAX])
{
    static const char who[] = "instance metadata";
    enum hapax_error error;

    hapax__aws_fetch_release(fetch);
    *fetch = (struct hapax__aws_fetch){.method = method,
                                       .url = url,
                                       .lines = &line,
                                       .lines_n = 1,
                                       .connect_ms = 1000,
                                       .total_ms = 1000};
    error = ask(fetch, 1, who, text);
    fetch->lines = NULL;
    if (error == HAPAX_ERR_NONE && fetch->status != 200)
        return hapax__fail(text, HAPAX_ERR_REFUSED, "%s answered %d when asked for %s", who,
                           fetch->status,
                           fetch->status == 404 ? "the instance's role: it has none" : "AWS keys");
    return error;
}

/* What was answered, one word. */
static bool take_word(char *out, size_t size, const struct hapax__aws_fetch *fetch)
{
    size_t len = strcspn(fetch->reply, "\r\n");

    if (len == 0 || len >= size)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (fetch->reply[i] < 0x21 || fetch->reply[i] > 0x7e)
            return false;
    }
    memcpy(out, fetch->reply, len);
    out[len] = '\0';
    return true;
}

enum hapax_error hapax__aws_instance(struct hapax__aws_temporary *out, const char *endpoint,
                                     char text[HAPAX_TEXT_MAX])
{
    char base[URL_MAX], url[URL_MAX + 256], token[512], line[600], role[128];
    struct hapax__aws_fetch fetch = {0};
    enum hapax_error error;
    size_t len = strlen(endpoint);

    if (len >= sizeof(base))
        return hapax__fail(text, HAPAX_ERR_REFUSED,
                           "AWS_EC2_METADATA_SERVICE_ENDPOINT is over %u bytes", URL_MAX);
    while (len > 0 && endpoint[len - 1] == '/')
        len--;
    snprintf(base, sizeof(base), "%.*s", (int)len, endpoint);
    snprintf(url, sizeof(url), "%s/latest/api/token", base);
    error = ask_instance(&fetch, "PUT", url, "X-aws-ec2-metadata-token-ttl-seconds: 300", text);
    if (error == HAPAX_ERR_UNAVAILABLE && fetch.status == 0)
        error = HAPAX_ERR_REFUSED; /* no instance of EC2, most likely */
    if (error != HAPAX_ERR_NONE)
        goto out;
    if (!take_word(token, sizeof(token), &fetch)) {
        error = not_whole("instance metadata", text);
        goto out;
    }
    snprintf(line, sizeof(line), "X-aws-ec2-metadata-token: %s", token);
    snprintf(url, sizeof(url), "%s/" ROLES, base);
    error = ask_instance(&fetch, "GET", url, line, text);
    if (error == HAPAX_ERR_NONE && !take_word(role, sizeof(role), &fetch))
        error = not_whole("instance metadata", text);
    if (error != HAPAX_ERR_NONE)
        goto out;
    snprintf(url, sizeof(url), "%s/" ROLES "%s", base, role);
    error = ask_instance(&fetch, "GET", url, line, text);
    if (error == HAPAX_ERR_NONE)
        error = read_document(out, &fetch, "instance metadata", text);
out:
    hapax__aws_fetch_release(&fetch);
    OPENSSL_cleanse(token, sizeof(token));
    OPENSSL_cleanse(line, sizeof(line));
    return error;
}
