/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of the nginx that hapax serve runs: read from the command line, checked,
 * written.
 *
 * Nothing that came from the command line reaches nginx unread: policies go through
 * hapax_policy_set() and _check(), addresses and paths through parsers of their own, and every
 * other value is written as one quoted word. What only nginx can judge (a variable's name, a list
 * of methods) it judges in `nginx -t`, before anything is served.
 */
#include "serve.h"

#include "base/span.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define WORD_MAX       1024u
#define FILES_MAX      65536u
#define CA_BUNDLE      "/etc/ssl/certs/ca-certificates.crt"
#define BODY_MAX_TEXT  "1g"
#define RESERVED_PATHS "/hapax-"

static enum cli_exit refuse(const struct serve_args *args, const char *option, const char *value,
                            const char *why)
{
    return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "--%s \"%.200s\": %s", option, value,
                    why);
}

/* ---- addresses and URLs ------------------------------------------------------------------ */

static bool parse_port(char port[6], const char *text)
{
    size_t len = strspn(text, "0123456789");
    unsigned number = 0;

    if (len == 0 || len > 5 || text[len] != '\0')
        return false;
    for (size_t i = 0; i < len; i++)
        number = number * 10 + (unsigned)(text[i] - '0');
    if (number == 0 || number > 65535)
        return false;
    (void)snprintf(port, 6, "%u", number);
    return true;
}

static bool is_host(const char *host)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";

    return *host && *host != '-' && strspn(host, letters) == strlen(host);
}

/* Reads HOST, HOST:PORT, [IPV6] or [IPV6]:PORT, of len bytes. */
static bool parse_address(struct serve_address *out, const char *text, size_t len,
                          const char *default_port)
{
    char copy[SERVE_NAME_MAX + 16];
    struct in6_addr address;
    char *host = copy;
    char *rest;

    if (len >= sizeof(copy))
        return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    out->v6 = copy[0] == '[';
    if (out->v6) {
        host++;
        rest = strchr(host, ']');
        if (!rest)
            return false;
        *rest++ = '\0';
        if (*rest != '\0' && *rest != ':')
            return false;
    } else {
        rest = copy + strcspn(copy, ":");
    }
    if (*rest == ':')
        *rest++ = '\0';
    else
        rest = NULL;
    if (strlen(host) > SERVE_NAME_MAX ||
        !(out->v6 ? inet_pton(AF_INET6, host, &address) == 1 : is_host(host)))
        return false;
    (void)snprintf(out->host, sizeof(out->host), "%s", host);
    return parse_port(out->port, rest ? rest : default_port);
}

void serve_address_text(char out[SERVE_NAME_MAX + 16], const struct serve_address *address)
{
    (void)snprintf(out, SERVE_NAME_MAX + 16, address->v6 ? "[%s]:%s" : "%s:%s", address->host,
                   address->port);
}

/* NULL, or why it is no URL of ours. */
static const char *parse_url(struct serve_url *out, const char *text)
{
    const char *at;
    size_t len;

    if (strncmp(text, "http://", 7) == 0) {
        out->tls = false;
        at = text + 7;
    } else if (strncmp(text, "https://", 8) == 0) {
        out->tls = true;
        at = text + 8;
    } else {
        return "not a URL: http://HOST[:PORT], or https://";
    }
    len = strcspn(at, "/?#");
    if (!parse_address(&out->at, at, len, out->tls ? "443" : "80"))
        return "no HOST or HOST:PORT in it, as http://127.0.0.1:9000";
    at += len;
    if (strlen(at) >= sizeof(out->path))
        return "its path is too long";
    for (const char *c = at; *c; c++)
        if (*c <= ' ' || *c > '~' || strchr("\"'\\;{}$#", *c))
            return "its path has what does not belong into a URL";
    (void)snprintf(out->path, sizeof(out->path), "%s", at);
    return NULL;
}

static enum cli_exit read_urls(struct serve_conf *conf, const struct serve_args *args)
{
    struct serve_url *question;
    const char *why;

    if (!args->upstream)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--upstream URL is missing: the API, as http://127.0.0.1:9000");
    why = parse_url(&conf->upstream, args->upstream);
    if (!why && conf->upstream.path[0] && strcmp(conf->upstream.path, "/") != 0)
        why = "it has a path; the path of each request is passed as it came";
    if (why)
        return refuse(args, "upstream", args->upstream, why);
    question = &conf->auth_request;
    if (args->auth_request && (why = parse_url(question, args->auth_request)))
        return refuse(args, "auth-request", args->auth_request, why);
    question = &conf->reconcile;
    if (args->reconcile && (why = parse_url(question, args->reconcile)))
        return refuse(args, "reconcile", args->reconcile, why);
    if (!parse_address(&conf->listen, args->listen, strlen(args->listen), "8080"))
        return refuse(args, "listen", args->listen, "not HOST:PORT, as 127.0.0.1:8080");
    return CLI_DONE;
}

/* ---- policies and locations ---------------------------------------------------------------- */

static const char *policy_name(size_t i)
{
    return serve_options[serve_option_count - SERVE_POLICIES + i].name;
}

/* The next word of a text, as "a b  c". False: there is none; or *word is empty, it is too long. */
static bool next_word(char word[WORD_MAX], const char **text)
{
    size_t len;

    *text += strspn(*text, " ");
    len = strcspn(*text, " ");
    if (len == 0)
        return false;
    (void)snprintf(word, WORD_MAX, "%.*s", len < WORD_MAX ? (int)len : 0, *text);
    *text += len;
    return true;
}

static enum cli_exit check_policy(const struct hapax_policy *policy, const struct serve_args *args,
                                  const char *where)
{
    char text[HAPAX_TEXT_MAX];

    if (hapax_policy_check(policy, text) != HAPAX_ERR_NONE)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "%.200s: %s", where, text);
    if (policy->on_expired == HAPAX_EXPIRED_RECONCILE && !args->reconcile)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "%.200s: on_expired is reconcile, and there is no --reconcile URL to ask",
                        where);
    return CLI_DONE;
}

static enum cli_exit read_policies(struct serve_conf *conf, const struct serve_args *args)
{
    enum cli_exit exit;

    hapax_policy_init(&conf->policy);
    exit = cli_policies_set(&conf->policy, &args->args,
                            &serve_options[serve_option_count - SERVE_POLICIES], args->policies,
                            SERVE_POLICIES);
    return exit == CLI_DONE ? check_policy(&conf->policy, args, "the policies") : exit;
}

static bool is_path(const char *path)
{
    for (const char *c = path; *c; c++)
        if (*c <= ' ' || *c > '~' || strchr("\"'\\;{}$", *c))
            return false;
    return path[0] == '/' && !hapax__text_begins(path, RESERVED_PATHS);
}

static bool is_broker(const char *word)
{
    static const char *const brokers[] = {"off", "dapr", "knative", "sns"};

    for (size_t i = 0; i < sizeof(brokers) / sizeof(brokers[0]); i++)
        if (strcmp(word, brokers[i]) == 0)
            return true;
    return false;
}

/* Checks `/path name=value off …`. *policy begins as the server's and ends as the location's. */
static enum cli_exit read_location(struct hapax_policy *policy, const struct serve_args *args,
                                   const char *text)
{
    const char *at = text;
    char word[WORD_MAX];
    char where[256];
    enum cli_exit exit = CLI_DONE;

    (void)snprintf(where, sizeof(where), "--location \"%.200s\"", text);
    if (!next_word(word, &at) || !is_path(word))
        return refuse(args, "location", text,
                      "does not begin with a path, as /v1/payments (/hapax-… are taken)");
    while (exit == CLI_DONE && next_word(word, &at)) {
        char *value = strchr(word, '=');

        if (strcmp(word, "off") == 0)
            continue;
        if (!value)
            return refuse(args, "location", text,
                          "after the path come POLICY=VALUE, scope=VALUE, "
                          "push=BROKER, or off");
        *value++ = '\0';
        if ((strcmp(word, "scope") == 0 && *value) ||
            (strcmp(word, "push") == 0 && is_broker(value)))
            continue;
        exit = cli_policy_set(policy, &args->args, where + 2, word, value);
    }
    return exit == CLI_DONE ? check_policy(policy, args, where) : exit;
}

/* Whatever is written as words must be that: no line may end in it. */
static enum cli_exit check_word(const struct serve_args *args, const char *name, const char *value)
{
    if (!value)
        return CLI_DONE;
    if (!value[0] && strcmp(name, "caller") == 0)
        return CLI_DONE; /* nobody, as messages have it */
    if (!value[0] || strlen(value) >= WORD_MAX)
        return refuse(args, name, value, "it is empty, or over 1023 bytes");
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            return refuse(args, name, value, "control characters in it");
    return CLI_DONE;
}

static enum cli_exit check_words(const struct serve_args *args)
{
    const struct {
        const char *name;
        const char *value;
    } words[] = {
        {"scope", args->scope},
        {"key-header", args->key_header},
        {"key-from", args->key_from},
        {"caller", args->caller},
        {"fingerprint", args->fingerprint},
        {"methods", args->methods},
        {"tls-cert", args->tls_cert},
        {"tls-key", args->tls_key},
        {"upstream-ca", args->upstream_ca},
        {"module", args->module},
    };

    enum cli_exit exit = CLI_DONE;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && exit == CLI_DONE; i++)
        exit = check_word(args, words[i].name, words[i].value);
    for (size_t i = 0; i < args->classes.n && exit == CLI_DONE; i++)
        exit = check_word(args, "class", args->classes.items[i]);
    return exit;
}

/* nginx looks for a relative path beside its configuration; the user means the current folder. */
static enum cli_exit read_file_name(char out[PATH_MAX], const struct serve_args *args,
                                    const char *option, const char *path)
{
    out[0] = '\0';
    if (!path || (realpath(path, out) && access(out, R_OK) == 0))
        return CLI_DONE;
    return refuse(args, option, path, strerror(errno));
}

static enum cli_exit read_files(struct serve_conf *conf, const struct serve_args *args)
{
    enum cli_exit exit;

    if (!args->tls_cert != !args->tls_key)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--tls-cert and --tls-key go together");
    exit = read_file_name(conf->tls_cert, args, "tls-cert", args->tls_cert);
    if (exit == CLI_DONE)
        exit = read_file_name(conf->tls_key, args, "tls-key", args->tls_key);
    if (exit == CLI_DONE)
        exit = read_file_name(conf->upstream_ca, args, "upstream-ca", args->upstream_ca);
    return exit;
}

enum cli_exit serve_conf_read(struct serve_conf *conf, const struct serve_args *args)
{
    enum cli_exit exit;
    bool asks;

    conf->args = args;
    exit = read_urls(conf, args);
    if (exit == CLI_DONE)
        exit = read_policies(conf, args);
    asks = conf->policy.on_expired == HAPAX_EXPIRED_RECONCILE;
    for (size_t i = 0; i < args->locations.n && exit == CLI_DONE; i++) {
        struct hapax_policy policy = conf->policy;

        exit = read_location(&policy, args, args->locations.items[i]);
        asks = asks || policy.on_expired == HAPAX_EXPIRED_RECONCILE;
    }
    if (exit == CLI_DONE && args->reconcile && !asks)
        exit =
            refuse(args, "reconcile", args->reconcile, "nobody asks: on_expired is not reconcile");
    if (exit == CLI_DONE && args->push && !is_broker(args->push))
        exit = refuse(args, "push", args->push, "not dapr, knative or sns, nor off");
    if (exit == CLI_DONE)
        exit = check_words(args);
    return exit == CLI_DONE ? read_files(conf, args) : exit;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A word of nginx's, whatever is in it; variables stay variables. */
static void put_word(FILE *out, const char *word)
{
    (void)fputs(" \"", out);
    for (const char *c = word; *c; c++) {
        if (*c == '"' || *c == '\\')
            (void)fputc('\\', out);
        (void)fputc(*c, out);
    }
    (void)fputc('"', out);
}

static void put_setting(FILE *out, const char *indent, const char *directive, const char *value)
{
    if (!value)
        return;
    (void)fprintf(out, "%s%s", indent, directive);
    put_word(out, value);
    (void)fputs(";\n", out);
}

static void put_list(FILE *out, const char *directive, const char *values)
{
    char word[WORD_MAX];

    if (!values)
        return;
    (void)fprintf(out, "    %s", directive);
    while (next_word(word, &values))
        put_word(out, word);
    (void)fputs(";\n", out);
}

static void put_policy(FILE *out, const char *indent, const char *name, const char *value)
{
    (void)fprintf(out, "%shapax_", indent);
    for (const char *c = name; *c; c++)
        (void)fputc(*c == '-' ? '_' : *c, out);
    (void)fprintf(out, " %s;\n", value);
}

/* nginx gives a handler as long as the gate keeps its claim alive. */
static void put_patience(FILE *out, const char *indent, const struct hapax_policy *policy)
{
    int64_t seconds = (policy->run_max_ms + 999) / 1000;

    (void)fprintf(out, "%sproxy_read_timeout %" PRId64 "s;\n%sproxy_send_timeout %" PRId64 "s;\n",
                  indent, seconds, indent, seconds);
}

/* nginx clears the environment of its workers, which open the store: what AWS's credentials come
 * from stays. */
static void put_environment(FILE *out, const struct serve_conf *conf)
{
    static const char *const names[] = {
        "HOME",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        "AWS_EC2_METADATA_DISABLED",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
        "AWS_CA_BUNDLE",
        "AWS_USE_FIPS_ENDPOINT",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_DYNAMODB",
        "AWS_ENDPOINT_URL_STS",
    };

    if (!hapax__text_begins(conf->store, "dynamodb:"))
        return;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)fprintf(out, "env %s;\n", names[i]);
}

static void put_process(FILE *out, const struct serve_conf *conf)
{
    struct rlimit files = {.rlim_max = 1024};
    unsigned long most;

    (void)getrlimit(RLIMIT_NOFILE, &files);
    most = files.rlim_max > FILES_MAX ? FILES_MAX : (unsigned long)files.rlim_max;
    put_setting(out, "", "load_module", conf->module);
    if (conf->folder) {
        if (conf->user)
            (void)fprintf(out, "user %s %s;\n", conf->user, conf->group);
        (void)fprintf(out,
                      "daemon off;\nmaster_process on;\npid \"%s/nginx.pid\";\n"
                      "error_log stderr warn;\n",
                      conf->folder);
    }
    if (conf->args->workers)
        (void)fprintf(out, "worker_processes %" PRId64 ";\n", conf->args->workers);
    else
        (void)fputs("worker_processes auto;\n", out);
    put_environment(out, conf);
    (void)fprintf(out,
                  "worker_rlimit_nofile %lu;\nworker_shutdown_timeout 30s;\n\n"
                  "events {\n    worker_connections %lu;\n}\n\n",
                  most, most / 4);
}

static void put_gate(FILE *out, const struct serve_conf *conf)
{
    const struct serve_args *args = conf->args;

    (void)fputs("    hapax on;\n", out);
    put_setting(out, "    ", "hapax_store", conf->store);
    put_setting(out, "    ", "hapax_secret", conf->secret);
    put_setting(out, "    ", "hapax_scope", args->scope);
    put_setting(out, "    ", "hapax_key_header", args->key_header);
    put_setting(out, "    ", "hapax_caller", args->caller);
    put_list(out, "hapax_key_from", args->key_from);
    put_list(out, "hapax_fingerprint", args->fingerprint);
    put_list(out, "hapax_methods", args->methods);
    put_setting(out, "    ", "hapax_push", args->push);
    for (size_t i = 0; i < args->classes.n; i++)
        put_list(out, "hapax_class", args->classes.items[i]);
    if (args->reconcile)
        (void)fputs("    hapax_reconcile /hapax-reconcile;\n", out);
    for (size_t i = 0; i < SERVE_POLICIES; i++)
        if (args->policies[i])
            put_policy(out, "    ", policy_name(i), args->policies[i]);
}

static void put_http(FILE *out, const struct serve_conf *conf)
{
    static const char *const kinds[] = {"client_body", "proxy", "fastcgi", "scgi", "uwsgi"};

    for (size_t i = 0; conf->folder && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        (void)fprintf(out, "    %s_temp_path \"%s/%s\";\n", kinds[i], conf->folder, kinds[i]);
    if (conf->args->access_log)
        (void)fputs(
            "    log_format hapax '$remote_addr \"$request\" $status $body_bytes_sent '\n"
            "                     '$hapax_answer $hapax_key_id $request_time $hapax_time';\n"
            "    access_log /dev/stderr hapax;\n",
            out);
    else
        (void)fputs("    access_log off;\n", out);
    (void)fputs("    server_tokens off;\n"
                "    underscores_in_headers on; # so that Idempotency_Key is seen, and refused\n"
                "    client_max_body_size " BODY_MAX_TEXT
                "; # what is too large for an operation, hapax refuses\n\n",
                out);
    put_gate(out, conf);
}

/* Connections are kept for less than the 5 s after which some servers close theirs. */
static void put_upstream(FILE *out, const struct serve_conf *conf)
{
    const struct serve_url *url = &conf->upstream;
    char address[SERVE_NAME_MAX + 16];

    serve_address_text(address, &url->at);
    (void)fprintf(out,
                  "\n    upstream hapax_upstream {\n        server %s;\n        keepalive 64;\n"
                  "        keepalive_timeout 4s;\n    }\n\n"
                  "    map $http_upgrade $hapax_connection {\n        default upgrade;\n"
                  "        '' '';\n    }\n\n",
                  address);
    (void)fputs("    proxy_http_version 1.1;\n"
                "    proxy_buffer_size 16k;\n"
                "    proxy_buffers 8 16k;\n"
                "    proxy_set_header Upgrade $http_upgrade;\n"
                "    proxy_set_header Connection $hapax_connection;\n"
                "    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n"
                "    proxy_set_header X-Forwarded-Host $http_host;\n"
                "    proxy_set_header X-Forwarded-Proto $scheme;\n",
                out);
    if (!url->tls) {
        (void)fputs("    proxy_set_header Host $http_host;\n", out);
    } else {
        const char *port = strcmp(url->at.port, "443") == 0 ? NULL : url->at.port;

        (void)fprintf(out,
                      url->at.v6 ? "    proxy_set_header Host [%s]%s%s;\n"
                                 : "    proxy_set_header Host %s%s%s;\n",
                      url->at.host, port ? ":" : "", port ? port : "");
        (void)fprintf(out, "    proxy_ssl_name %s;\n", url->at.host);
    }
    if (url->tls || conf->auth_request.tls || conf->reconcile.tls) {
        (void)fputs("    proxy_ssl_server_name on;\n    proxy_ssl_verify on;\n"
                    "    proxy_ssl_verify_depth 5;\n",
                    out);
        put_setting(out, "    ", "proxy_ssl_trusted_certificate",
                    conf->upstream_ca[0] ? conf->upstream_ca : CA_BUNDLE);
    }
    put_patience(out, "    ", &conf->policy);
}

static void put_listen(FILE *out, const struct serve_conf *conf)
{
    bool own_line = conf->version >= 1025001;
    char address[SERVE_NAME_MAX + 16];

    serve_address_text(address, &conf->listen);
    if (!conf->args->tls_cert) {
        (void)fprintf(out, "        listen %s;\n", address);
        return;
    }
    (void)fprintf(out, "        listen %s ssl%s;\n%s", address, own_line ? "" : " http2",
                  own_line ? "        http2 on;\n" : "");
    put_setting(out, "        ", "ssl_certificate", conf->tls_cert);
    put_setting(out, "        ", "ssl_certificate_key", conf->tls_key);
    (void)fputs("        ssl_protocols TLSv1.2 TLSv1.3;\n", out);
}

static void put_pass(FILE *out, const struct serve_conf *conf)
{
    (void)fprintf(out, "            proxy_pass %s://hapax_upstream;\n        }\n",
                  conf->upstream.tls ? "https" : "http");
}

/* Returns whether it is the location of all that has no other. */
static bool put_location(FILE *out, const struct serve_conf *conf, const char *text)
{
    struct hapax_policy policy = conf->policy;
    char ignored[HAPAX_TEXT_MAX];
    char word[WORD_MAX];
    bool root;

    if (!next_word(word, &text))
        return false;
    root = strcmp(word, "/") == 0;
    (void)fprintf(out, "\n        location %s {\n", word);
    while (next_word(word, &text)) {
        char *value = strchr(word, '=');

        if (!value) {
            (void)fputs("            hapax off;\n", out);
            continue;
        }
        *value++ = '\0';
        if (strcmp(word, "scope") == 0 || strcmp(word, "push") == 0) {
            put_setting(out, "            ", *word == 's' ? "hapax_scope" : "hapax_push", value);
            continue;
        }
        (void)hapax_policy_set(&policy, word, value, ignored);
        put_policy(out, "            ", word, value);
    }
    if (policy.run_max_ms != conf->policy.run_max_ms)
        put_patience(out, "            ", &policy);
    put_pass(out, conf);
    return root;
}

/* A location that only nginx itself asks, with a GET that has the headers of the request. */
static void put_question(FILE *out, const char *path, const char *text, const struct serve_url *url)
{
    if (!text)
        return;
    (void)fprintf(out,
                  "\n        location = %s {\n            internal;\n            hapax off;\n"
                  "            proxy_method GET;\n            proxy_pass_request_body off;\n"
                  "            proxy_set_header Content-Length \"\";\n"
                  "            proxy_set_header Connection \"\";\n"
                  "            proxy_set_header X-Original-URI $request_uri;\n"
                  "            proxy_set_header X-Original-Method $request_method;\n"
                  "            proxy_ssl_name %s;\n            proxy_pass %s;\n        }\n",
                  path, url->at.host, text);
}

static void put_status(FILE *out, const struct serve_conf *conf)
{
    struct in_addr v4;
    const char *host = conf->listen.host;
    bool own = conf->listen.v6 || inet_pton(AF_INET, host, &v4) == 1;

    (void)fprintf(out,
                  "\n        location = /hapax-status {\n            hapax off;\n%s"
                  "            access_log off;\n            allow 127.0.0.0/8;\n"
                  "            allow ::1;\n",
                  conf->args->auth_request ? "            auth_request off;\n" : "");
    if (own && strcmp(host, "0.0.0.0") != 0 && strncmp(host, "127.", 4) != 0 && host[0] != ':')
        (void)fprintf(out, "            allow %s;\n", host);
    (void)fputs("            deny all;\n            hapax_status;\n        }\n", out);
}

void serve_conf_write(FILE *out, const struct serve_conf *conf)
{
    const struct serve_args *args = conf->args;
    bool root = false;

    (void)fputs("# Written by hapax serve; docs/nginx.md tells what each hapax_ directive means.\n",
                out);
    put_process(out, conf);
    (void)fputs("http {\n", out);
    put_http(out, conf);
    put_upstream(out, conf);
    (void)fputs("\n    server {\n", out);
    put_listen(out, conf);
    if (args->auth_request)
        (void)fputs("        auth_request /hapax-auth;\n", out);
    for (size_t i = 0; i < args->locations.n; i++)
        root |= put_location(out, conf, args->locations.items[i]);
    if (!root) {
        (void)fputs("\n        location / {\n", out);
        put_pass(out, conf);
    }
    put_question(out, "/hapax-auth", args->auth_request, &conf->auth_request);
    put_question(out, "/hapax-reconcile", args->reconcile, &conf->reconcile);
    put_status(out, conf);
    (void)fputs("    }\n}\n", out);
}
