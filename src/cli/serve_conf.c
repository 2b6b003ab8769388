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
#include "base/time.h"
#include "http/problem.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define WORD_MAX       1024u
#define FILES_MAX      65536u
#define SEND_S         30
#define CA_BUNDLE      "/etc/ssl/certs/ca-certificates.crt"
#define RESERVED_PATHS "/hapax-"

static enum cli_exit refuse(const struct serve_args *args, const char *option, const char *value,
                            const char *why)
{
    return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "--%s \"%.200s\": %s", option, value,
                    why);
}

/* ---- addresses and URLs ------------------------------------------------------------------ */

static bool parse_port(char port[6], const char *text, unsigned least)
{
    size_t len = strspn(text, "0123456789");
    unsigned number = 0;

    if (len == 0 || len > 5 || text[len] != '\0')
        return false;
    for (size_t i = 0; i < len; i++)
        number = number * 10 + (unsigned)(text[i] - '0');
    if (number < least || number > 65535)
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

/* What an address has to look like. */
struct shape {
    const char *default_port;
    unsigned port_min;
    const char *wrong; /* what to say of a text that is no address */
    const char *wrong_port;
};

/* Reads HOST, HOST:PORT, [IPV6] or [IPV6]:PORT, of len bytes. NULL, or what is wrong. */
static const char *parse_address(struct serve_address *out, const char *text, size_t len,
                                 const struct shape *shape)
{
    char copy[SERVE_NAME_MAX + 16];
    struct in6_addr address;
    char *host = copy;
    char *rest;

    if (len >= sizeof(copy))
        return shape->wrong;
    memcpy(copy, text, len);
    copy[len] = '\0';
    out->v6 = copy[0] == '[';
    if (out->v6) {
        host++;
        rest = strchr(host, ']');
        if (!rest)
            return shape->wrong;
        *rest++ = '\0';
        if (*rest != '\0' && *rest != ':')
            return shape->wrong;
    } else {
        rest = copy + strcspn(copy, ":");
        if (inet_pton(AF_INET6, copy, &address) == 1)
            return "an IPv6 address stands in brackets, as [::1]:8080";
    }
    if (*rest == ':')
        *rest++ = '\0';
    else
        rest = NULL;
    if (strlen(host) > SERVE_NAME_MAX ||
        !(out->v6 ? inet_pton(AF_INET6, host, &address) == 1 : is_host(host)))
        return shape->wrong;
    (void)snprintf(out->host, sizeof(out->host), "%s", host);
    return parse_port(out->port, rest ? rest : shape->default_port, shape->port_min)
               ? NULL
               : shape->wrong_port;
}

/* A port alone is one of this machine. NULL, or what is wrong. */
static const char *parse_listen(struct serve_address *out, const struct serve_args *args,
                                const char *text, const char *default_port)
{
    const struct shape shape = {default_port, 0, "not HOST:PORT or PORT, as 127.0.0.1:8080",
                                "its port is not a number of 0 to 65535 (0: any free one)"};
    size_t digits = strspn(text, "0123456789");
    const char *why;

    if (*text == ':' && text[1] != ':')
        return "no HOST in it: 127.0.0.1 is this machine alone, 0.0.0.0 is every address";
    if (digits > 0 && text[digits] == '\0') {
        *out = (struct serve_address){.host = "127.0.0.1"};
        why = parse_port(out->port, text, 0) ? NULL : shape.wrong_port;
    } else {
        why = parse_address(out, text, strlen(text), &shape);
    }
    if (!why && args->config_only && strcmp(out->port, "0") == 0)
        why = "--config-only needs a port: nginx cannot choose one";
    return why;
}

void serve_address_text(char out[SERVE_NAME_MAX + 16], const struct serve_address *address)
{
    (void)snprintf(out, SERVE_NAME_MAX + 16, address->v6 ? "[%s]:%s" : "%s:%s", address->host,
                   address->port);
}

/* NULL, or why it is no URL of ours. */
static const char *parse_url(struct serve_url *out, const char *text)
{
    struct shape shape = {"80", 1, "no HOST or HOST:PORT in it, as http://127.0.0.1:9000",
                          "its port is not a number of 1 to 65535"};
    const char *at, *why;
    size_t len;

    if (strncmp(text, "http://", 7) == 0) {
        out->tls = false;
        at = text + 7;
    } else if (strncmp(text, "https://", 8) == 0) {
        out->tls = true;
        shape.default_port = "443";
        at = text + 8;
    } else {
        return "not a URL: http://HOST[:PORT], or https://";
    }
    len = strcspn(at, "/?#");
    why = parse_address(&out->at, at, len, &shape);
    if (why)
        return why;
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
    why = parse_listen(&conf->listen, args, args->listen, "8080");
    if (why)
        return refuse(args, "listen", args->listen, why);
    why = args->status ? parse_listen(&conf->status, args, args->status, "8081") : NULL;
    return why ? refuse(args, "status", args->status, why) : CLI_DONE;
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
    if (policy->owner_required && !args->owner)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "%.200s: --owner is missing, and owner_required is on, as profile=payments "
                        "sets it: name what says whose key it is",
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

static bool is_mode(const char *word)
{
    return strcmp(word, "off") == 0 || strcmp(word, "shadow") == 0 || strcmp(word, "on") == 0;
}

/* Keys are told apart by their header, before the gate sees them. */
static enum cli_exit check_mode(const struct serve_args *args)
{
    const char *header = args->key_header;

    if (!is_mode(args->mode))
        return refuse(args, "mode", args->mode, "not on, shadow or off");
    if (args->on_percent == 0)
        return CLI_DONE;
    if (strcmp(args->mode, "on") == 0)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--on-percent needs --mode shadow or --mode off, for the others");
    if (args->key_from || args->push || (header && strcmp(header, "off") == 0))
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--on-percent goes by the key's header: use it without --key-from, "
                        "--push and --key-header off");
    if (header && header[strspn(header, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                        "0123456789-")])
        return refuse(args, "key-header", header, "not the name of a header");
    return CLI_DONE;
}

/* Checks `/path name=value off …`. *policy begins as the server's and ends as the location's. */
static enum cli_exit read_location(struct hapax_policy *policy, const struct serve_args *args,
                                   const char *text)
{
    const char *at = text;
    char word[WORD_MAX];
    char where[256];
    bool first = true;
    enum cli_exit exit = CLI_DONE;

    (void)snprintf(where, sizeof(where), "--location \"%.200s\"", text);
    if (!next_word(word, &at) || !is_path(word))
        return refuse(args, "location", text,
                      "does not begin with a path, as /v1/payments (/hapax-… are taken)");
    while (exit == CLI_DONE && next_word(word, &at)) {
        char *value = strchr(word, '=');

        if (is_mode(word))
            continue;
        if (!value)
            return refuse(args, "location", text,
                          "after the path come POLICY=VALUE, scope=VALUE, "
                          "push=BROKER, or off, shadow or on");
        *value++ = '\0';
        if (strcmp(word, "profile") == 0 && !first)
            return refuse(args, "location", text,
                          "profile= comes first: the others differ from it");
        first = false;
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
    if (!value[0] || strlen(value) >= WORD_MAX)
        return refuse(args, name, value, "it is empty, or over 1023 bytes");
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            return refuse(args, name, value, "control characters in it");
    return CLI_DONE;
}

/* --owner auth:NAME, as the end of a variable's name: x_user for X-User. */
static enum cli_exit read_owner(struct serve_conf *conf, const struct serve_args *args)
{
    static const char prefix[] = "auth:";
    const char *name;
    size_t len;

    if (!args->owner || strncmp(args->owner, prefix, sizeof(prefix) - 1) != 0)
        return CLI_DONE;
    name = args->owner + sizeof(prefix) - 1;
    len = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
    if (len == 0 || name[len] || len >= sizeof(conf->owner_header))
        return refuse(args, "owner", args->owner,
                      "after auth: comes the name of a header, of 1 to 63 letters, digits and -");
    if (!args->auth_request)
        return refuse(args, "owner", args->owner,
                      "auth: is the answer to --auth-request, which is missing");
    for (size_t i = 0; i < len; i++)
        conf->owner_header[i] = name[i] == '-' ? '_' : (char)tolower((unsigned char)name[i]);
    conf->owner_header[len] = '\0';
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
        {"owner", args->owner},
        {"caller", args->caller},
        {"fingerprint", args->fingerprint},
        {"methods", args->methods},
        {"limit", args->limit},
        {"problem-template", args->problem_template},
        {"problem-base", args->problem_base},
        {"tls-cert", args->tls_cert},
        {"tls-key", args->tls_key},
        {"client-ca", args->client_ca},
        {"upstream-ca", args->upstream_ca},
        {"module", args->module},
        {"traces", args->telling.traces},
        {"events", args->telling.events},
    };

    enum cli_exit exit = CLI_DONE;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && exit == CLI_DONE; i++)
        exit = check_word(args, words[i].name, words[i].value);
    for (size_t i = 0; i < args->classes.n && exit == CLI_DONE; i++)
        exit = check_word(args, "class", args->classes.items[i]);
    for (size_t i = 0; i < args->locations.n && exit == CLI_DONE; i++)
        exit = check_word(args, "location", args->locations.items[i]);
    return exit;
}

/* Whether it is what browsers send as Origin, which apps do with schemes of their own. Not "null":
 * every sandboxed page sends that. */
static bool is_origin(const char *text)
{
    size_t scheme = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789.-");
    size_t host;

    if (strcmp(text, "*") == 0)
        return true;
    if (scheme == 0 || strncmp(text + scheme, "://", 3) != 0)
        return false;
    host = strspn(text + scheme + 3, "abcdefghijklmnopqrstuvwxyz0123456789.-_:[]");
    return host > 0 && text[scheme + 3 + host] == '\0';
}

static enum cli_exit check_origins(const struct serve_args *args)
{
    enum cli_exit exit = CLI_DONE;

    for (size_t i = 0; i < args->cors.n && exit == CLI_DONE; i++)
        if (!is_origin(args->cors.items[i]))
            exit = refuse(args, "cors", args->cors.items[i],
                          "not an origin, as https://shop.example, with no path; nor *");
    return exit;
}

/* What the workers will open. The file of the events is theirs to make. */
static enum cli_exit read_telling(struct serve_conf *conf, const struct serve_args *args)
{
    const char *events = args->telling.events;
    struct cli_telling spans = {.traces = args->telling.traces};
    struct hapax__traces *traces;
    enum cli_exit exit = cli_traces_open(&traces, &args->args, &spans, HAPAX__TRACED_HTTP);
    bool named = true;

    if (exit != CLI_DONE)
        return exit;
    hapax__traces_close(traces);
    if (args->access_log && strcmp(args->access_log, "text") != 0 &&
        strcmp(args->access_log, "json") != 0)
        return refuse(args, "access-log", args->access_log, "not text or json");
    if (!events)
        return CLI_DONE;
    if (strcmp(events, "-") == 0)
        (void)snprintf(conf->events, sizeof(conf->events), "-");
    else
        named = serve_absolute(conf->events, events);
    return named ? CLI_DONE : refuse(args, "events", events, strerror(errno));
}

bool serve_absolute(char out[PATH_MAX], const char *path)
{
    char folder[PATH_MAX] = "";
    int len;

    if (path[0] == '\0') {
        errno = ENOENT;
        return false;
    }
    if (path[0] != '/' && !getcwd(folder, sizeof(folder)))
        return false;
    len = snprintf(out, PATH_MAX, "%s%s%s", folder, folder[0] ? "/" : "", path);
    errno = ENAMETOOLONG;
    return len < PATH_MAX;
}

/* Of a pipe at /dev/fd, access() says that it is there, and realpath() that it has no path. */
bool serve_file_name(char out[PATH_MAX], const char *path)
{
    char target[PATH_MAX];

    if (!serve_absolute(out, path) || !realpath(out, target) || access(out, R_OK) != 0)
        return false;
    if (strncmp(out, "/dev/", 5) == 0 || strncmp(out, "/proc/", 6) == 0) /* our descriptor */
        (void)snprintf(out, PATH_MAX, "%s", target);
    return true;
}

/* nginx looks for a relative path beside its configuration; the user means the current folder. */
static enum cli_exit read_file_name(char out[PATH_MAX], const struct serve_args *args,
                                    const char *option, const char *path)
{
    out[0] = '\0';
    if (!path || serve_file_name(out, path))
        return CLI_DONE;
    return refuse(args, option, path, strerror(errno));
}

/* A template by its name, or a file that holds one. */
static enum cli_exit read_template(struct serve_conf *conf, const struct serve_args *args)
{
    char bytes[HAPAX__PROBLEM_TEMPLATE_MAX + 1], text[HAPAX_TEXT_MAX];
    const char *name = args->problem_template;
    struct hapax_span template;
    enum cli_exit exit;
    FILE *in;

    if (!name || hapax__problem_template_named(&conf->template, name)) {
        (void)snprintf(conf->problem_template, sizeof(conf->problem_template), "%s",
                       name ? name : "");
        return CLI_DONE;
    }
    exit = read_file_name(conf->problem_template, args, "problem-template", name);
    if (exit != CLI_DONE)
        return exit;
    in = fopen(conf->problem_template, "re");
    if (!in)
        return refuse(args, "problem-template", name, strerror(errno));
    template = (struct hapax_span){(uint8_t *)bytes, fread(bytes, 1, sizeof(bytes), in)};
    (void)fclose(in);
    if (hapax__problem_template_check(template, text) != HAPAX_ERR_NONE)
        return refuse(args, "problem-template", name, text);
    assert(template.len <= sizeof(conf->template_bytes));
    memcpy(conf->template_bytes, bytes, template.len);
    conf->template = (struct hapax_span){conf->template_bytes, template.len};
    return CLI_DONE;
}

static enum cli_exit read_files(struct serve_conf *conf, const struct serve_args *args)
{
    enum cli_exit exit;

    if (!args->tls_cert != !args->tls_key)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--tls-cert and --tls-key go together");
    if (args->client_ca && !args->tls_cert)
        return refuse(args, "client-ca", args->client_ca,
                      "clients show certificates over TLS: it needs --tls-cert");
    exit = read_file_name(conf->tls_cert, args, "tls-cert", args->tls_cert);
    if (exit == CLI_DONE)
        exit = read_file_name(conf->tls_key, args, "tls-key", args->tls_key);
    if (exit == CLI_DONE)
        exit = read_file_name(conf->client_ca, args, "client-ca", args->client_ca);
    if (exit == CLI_DONE)
        exit = read_file_name(conf->upstream_ca, args, "upstream-ca", args->upstream_ca);
    return exit == CLI_DONE ? read_template(conf, args) : exit;
}

/* What nginx itself must allow, so that every location can have what its policy says. */
static void note_limits(struct serve_conf *conf, const struct hapax_policy *policy)
{
    int64_t ms = policy->wait_ms + policy->timeout_ms + policy->run_max_ms + policy->save_wait_ms;
    /* A response whose claim was lost waits for timeout_ms. */
    int64_t answer_ms = hapax__most(policy->save_wait_ms, policy->timeout_ms);

    conf->longest_ms = hapax__most(conf->longest_ms, ms);
    conf->answer_wait_ms = hapax__most(conf->answer_wait_ms, answer_ms);
    if (conf->max_request < policy->max_request)
        conf->max_request = policy->max_request;
}

enum cli_exit serve_conf_read(struct serve_conf *conf, const struct serve_args *args)
{
    enum cli_exit exit;
    bool asks;

    conf->args = args;
    exit = read_urls(conf, args);
    if (exit == CLI_DONE)
        exit = read_policies(conf, args);
    note_limits(conf, &conf->policy);
    asks = conf->policy.on_expired == HAPAX_EXPIRED_RECONCILE;
    for (size_t i = 0; i < args->locations.n && exit == CLI_DONE; i++) {
        struct hapax_policy policy = conf->policy;

        exit = read_location(&policy, args, args->locations.items[i]);
        note_limits(conf, &policy);
        asks = asks || policy.on_expired == HAPAX_EXPIRED_RECONCILE;
    }
    if (exit == CLI_DONE && args->reconcile && !asks)
        exit =
            refuse(args, "reconcile", args->reconcile, "nobody asks: on_expired is not reconcile");
    if (exit == CLI_DONE && args->push && !is_broker(args->push))
        exit = refuse(args, "push", args->push, "not dapr, knative or sns, nor off");
    if (exit == CLI_DONE)
        exit = check_mode(args);
    if (exit == CLI_DONE)
        exit = check_words(args);
    if (exit == CLI_DONE)
        exit = read_owner(conf, args);
    if (exit == CLI_DONE)
        exit = check_origins(args);
    if (exit == CLI_DONE)
        exit = read_telling(conf, args);
    return exit == CLI_DONE ? read_files(conf, args) : exit;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The next line is made by this option; on trial, where nginx may refuse the line. */
static void put_mark(FILE *out, const struct serve_conf *conf, const char *option,
                     const char *value)
{
    if (conf->on_trial && value)
        (void)fprintf(out, SERVE_MARK "%s\t%s\n", option, value);
}

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

static void put_variables(FILE *out, const char *const names[], size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)fprintf(out, "env %s;\n", names[i]);
}

/* nginx clears the environment of its workers, which send spans and open the store: what says where
 * spans go stays, and what AWS's credentials come from. */
static void put_environment(FILE *out, const struct serve_conf *conf)
{
    static const char *const otel[] = {
        "OTEL_SDK_DISABLED",
        "OTEL_TRACES_EXPORTER",
        "OTEL_SERVICE_NAME",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    };
    static const char *const aws[] = {
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

    put_variables(out, otel, sizeof(otel) / sizeof(otel[0]));
    if (hapax__text_begins(conf->store, "dynamodb:"))
        put_variables(out, aws, sizeof(aws) / sizeof(aws[0]));
}

static void put_process(FILE *out, const struct serve_conf *conf)
{
    struct rlimit files = {.rlim_max = 1024};
    unsigned long most;

    (void)getrlimit(RLIMIT_NOFILE, &files);
    most = files.rlim_max > FILES_MAX ? FILES_MAX : (unsigned long)files.rlim_max;
    put_mark(out, conf, "module", conf->module);
    put_setting(out, "", "load_module", conf->module);
    if (conf->user)
        (void)fprintf(out, "user %s %s;\n", conf->user, conf->group);
    if (conf->folder)
        (void)fprintf(out,
                      "daemon off;\nmaster_process on;\npid \"%s/nginx.pid\";\n"
                      "error_log stderr warn;\n",
                      conf->folder);
    if (conf->args->workers)
        (void)fprintf(out, "worker_processes %" PRId64 ";\n", conf->args->workers);
    else
        (void)fputs("worker_processes auto;\n", out);
    put_environment(out, conf);
    (void)fprintf(out,
                  "worker_rlimit_nofile %lu;\n"
                  "worker_shutdown_timeout %" PRId64 "s; # of a reload\n\n"
                  "events {\n    worker_connections %lu;\n}\n\n",
                  most, (conf->longest_ms + 999) / 1000, most / 4);
}

/* A setting of nginx's that is an option's value. */
static void put_option(FILE *out, const struct serve_conf *conf, const char *directive,
                       const char *option, const char *value)
{
    put_mark(out, conf, option, value);
    put_setting(out, "    ", directive, value);
}

static void put_words(FILE *out, const struct serve_conf *conf, const char *directive,
                      const char *option, const char *value)
{
    put_mark(out, conf, option, value);
    put_list(out, directive, value);
}

/* Of 100 keys so many are on. `"k"`, `"k";a=1` and `k` are one key, so a quoted one goes by what
 * stands between its quotes: up to the first quote in it, which every spelling of that key has.
 * Requests without a key are told apart by chance: otherwise all of them would be on one side, and
 * be refused where a key is required. */
static void put_mode(FILE *out, const struct serve_args *args)
{
    const char *header = args->key_header ? args->key_header : "Idempotency-Key";
    char name[WORD_MAX];
    size_t len = 0;

    if (args->on_percent == 0) {
        (void)fprintf(out, "    hapax %s;\n", args->mode);
        return;
    }
    for (; len < sizeof(name) - 1 && header[len]; len++)
        name[len] = header[len] == '-' ? '_' : (char)tolower((unsigned char)header[len]);
    name[len] = '\0';
    (void)fprintf(out,
                  "    map $http_%s $hapax_serve_key {\n        '' $request_id;\n"
                  "        '~^\"(?<hapax_serve_bare>[^\"]+)' $hapax_serve_bare;\n"
                  "        default $http_%s;\n    }\n"
                  "    split_clients $hapax_serve_key $hapax_serve_mode {\n"
                  "        %" PRId64 "%% on;\n        * %s;\n    }\n"
                  "    hapax $hapax_serve_mode;\n",
                  name, name, args->on_percent, args->mode);
}

static void put_gate(FILE *out, const struct serve_conf *conf)
{
    const struct serve_args *args = conf->args;

    put_mode(out, args);
    put_mark(out, conf, "store", args->args.shown);
    put_setting(out, "    ", "hapax_store", conf->store);
    put_setting(out, "    ", "hapax_secret", conf->secret);
    put_setting(out, "    ", "hapax_secret_old", conf->secret_old);
    put_setting(out, "    ", "hapax_keys", conf->keys);
    put_option(out, conf, "hapax_scope", "scope", args->scope);
    put_option(out, conf, "hapax_key_header", "key-header", args->key_header);
    if (conf->owner_header[0])
        (void)fprintf(out,
                      "    auth_request_set $hapax_serve_owner $upstream_http_%s;\n"
                      "    hapax_owner $hapax_serve_owner;\n",
                      conf->owner_header);
    else
        put_option(out, conf, "hapax_owner", "owner", args->owner);
    put_option(out, conf, "hapax_caller", "caller", args->caller);
    put_words(out, conf, "hapax_key_from", "key-from", args->key_from);
    put_words(out, conf, "hapax_fingerprint", "fingerprint", args->fingerprint);
    put_words(out, conf, "hapax_methods", "methods", args->methods);
    put_words(out, conf, "hapax_limit", "limit", args->limit);
    put_option(out, conf, "hapax_push", "push", args->push);
    for (size_t i = 0; i < args->classes.n; i++)
        put_words(out, conf, "hapax_class", "class", args->classes.items[i]);
    if (args->reconcile)
        (void)fputs("    hapax_reconcile /hapax-reconcile;\n", out);
    put_option(out, conf, "hapax_problem_base", "problem-base",
               args->problem_base ? args->problem_base : HAPAX__PROBLEM_PATH);
    if (conf->problem_template[0])
        put_option(out, conf, "hapax_problem_template", "problem-template", conf->problem_template);
    for (size_t i = 0; i < SERVE_POLICIES; i++) {
        put_mark(out, conf, policy_name(i), args->policies[i]);
        if (args->policies[i])
            put_policy(out, "    ", policy_name(i), args->policies[i]);
    }
}

/* What one client may take. A body is limited by max_request unless --max-body says otherwise: what
 * is more than any operation may have would go into a file, for whoever sends it. */
static void put_limits(FILE *out, const struct serve_conf *conf)
{
    const struct serve_args *args = conf->args;
    int64_t body = args->max_body;
    int64_t send_s = (conf->answer_wait_ms + 999) / 1000 + 10;

    if (body < 0)
        body = conf->max_request ? (int64_t)conf->max_request : 1; /* 0: nginx has no limit */
    (void)fputs("    geo $hapax_dollar {\n        default $;\n    }\n", out);
    (void)fprintf(out,
                  "    client_max_body_size %" PRId64 ";\n"
                  "    client_header_timeout 15s;\n    client_body_timeout 30s;\n"
                  "    send_timeout %" PRId64 "s;\n    reset_timedout_connection on;\n",
                  body, send_s > SEND_S ? send_s : SEND_S);
    if (args->limit_requests)
        (void)fprintf(out,
                      "    limit_req_zone $binary_remote_addr zone=hapax_requests:10m "
                      "rate=%" PRId64 "r/s;\n    limit_req_status 429;\n"
                      "    limit_req_log_level notice;\n",
                      args->limit_requests);
    if (args->limit_connections)
        (void)fputs("    limit_conn_zone $binary_remote_addr zone=hapax_connections:10m;\n"
                    "    limit_conn_status 429;\n    limit_conn_log_level notice;\n",
                    out);
    if (args->limit_requests || args->limit_connections)
        (void)fputs("    map \"$limit_req_status $limit_conn_status\" $hapax_limit_over {\n"
                    "        ~REJECTED 1;\n        default '';\n    }\n"
                    "    add_header Retry-After $hapax_limit_over always;\n",
                    out);
}

/* The limits of --limit-… hold where requests of strangers come in. */
static void put_use_of_limits(FILE *out, const struct serve_args *args)
{
    if (args->limit_requests)
        (void)fprintf(out, "        limit_req zone=hapax_requests burst=%" PRId64 " nodelay;\n",
                      args->limit_requests);
    if (args->limit_connections)
        (void)fprintf(out, "        limit_conn hapax_connections %" PRId64 ";\n",
                      args->limit_connections);
}

/* As text, or as objects whose members are those of the events where both have them. The query is
 * left out of objects: it may hold secrets. */
static void put_log(FILE *out, const struct serve_conf *conf)
{
    static const char text[] =
        "    log_format hapax '$remote_addr \"$request\" $status $body_bytes_sent '\n"
        "                     '$hapax_answer $hapax_key_id $request_time $hapax_time%s';\n"
        "    access_log /dev/stderr hapax;\n";
    static const char json[] =
        "    log_format hapax escape=json '{\"event\":\"request\",\"time\":\"$time_iso8601\",'\n"
        "        '\"door\":\"http\",\"id\":\"$hapax_key_id\",\"answer\":\"$hapax_answer\",'\n"
        "        '\"attempt\":\"$hapax_attempt\",\"fence\":\"$hapax_fence\",\"status\":$status,'\n"
        "        '\"method\":\"$request_method\",\"path\":\"$uri\",\"client\":\"$remote_addr\",'\n"
        "        '\"bytes\":$body_bytes_sent,\"seconds\":$request_time,'\n"
        "        '\"waited_seconds\":\"$hapax_time\",\"trace\":\"$hapax_traceparent\"%s}';\n"
        "    access_log /dev/stderr hapax;\n";

    bool watches = strcmp(conf->args->mode, "on") != 0;

    if (!conf->args->access_log)
        (void)fputs("    access_log off;\n", out);
    else if (strcmp(conf->args->access_log, "json") == 0)
        (void)fprintf(out, json,
                      watches ? ",'\n        '\"shadow\":\"$hapax_shadow\","
                                "\"shadow_id\":\"$hapax_shadow_id\""
                              : "");
    else
        (void)fprintf(out, text, watches ? " $hapax_shadow $hapax_shadow_id" : "");
}

static void put_http(FILE *out, const struct serve_conf *conf)
{
    static const char *const kinds[] = {"client_body", "proxy", "fastcgi", "scgi", "uwsgi"};
    const struct serve_args *args = conf->args;

    for (size_t i = 0; conf->folder && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        (void)fprintf(out, "    %s_temp_path \"%s/%s\";\n", kinds[i], conf->folder, kinds[i]);
    put_log(out, conf);
    if (args->telling.traces)
        put_option(out, conf, "hapax_traces", "traces", args->telling.traces);
    else if (getenv("OTEL_EXPORTER_OTLP_ENDPOINT") || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
        (void)fputs("    hapax_traces env;\n", out);
    if (args->telling.events)
        put_option(out, conf, "hapax_events", "events", conf->events);
    (void)fputs("    server_tokens off;\n"
                "    underscores_in_headers on; # so that Idempotency_Key is seen, and refused\n",
                out);
    put_limits(out, conf);
    (void)fputc('\n', out);
    put_gate(out, conf);
}

/* What pages of other origins may read. An upstream that does CORS by itself goes first: its own
 * answers and their replays keep its headers, and all others get ours.
 *
 * Preflights of these origins are answered here. They carry no credentials, so --auth-request would
 * refuse them, and few upstreams allow the header Idempotency-Key. */
static void put_cors(FILE *out, const struct serve_conf *conf)
{
    const struct serve_args *args = conf->args;
    bool any = false;

    if (args->cors.n == 0)
        return;
    for (size_t i = 0; i < args->cors.n; i++)
        any = any || strcmp(args->cors.items[i], "*") == 0;
    (void)fputs("    map $http_origin $hapax_origin {\n        '' '';\n", out);
    for (size_t i = 0; i < args->cors.n && !any; i++) {
        put_mark(out, conf, "cors", args->cors.items[i]);
        (void)fprintf(out, "        %s $http_origin;\n", args->cors.items[i]);
    }
    (void)fprintf(out, "        default '%s';\n    }\n", any ? "*" : "");
    (void)fputs(
        "    map $sent_http_access_control_allow_origin $hapax_allow_origin {\n"
        "        '' $hapax_origin;\n        default '';\n    }\n"
        "    map $hapax_allow_origin $hapax_allow_credentials {\n"
        "        '' '';\n        '*' '';\n        default true;\n    }\n"
        "    map $hapax_origin $hapax_expose {\n        '' '';\n"
        "        default 'Idempotency-Replayed, Idempotency-Recorded, Idempotency-Protected, "
        "Idempotency-TTL, Age, Retry-After, Link';\n    }\n"
        "    map $http_access_control_request_method $hapax_asks {\n"
        "        '' '';\n        default $hapax_origin;\n    }\n"
        "    map $request_method $hapax_preflight {\n"
        "        OPTIONS $hapax_asks;\n        default '';\n    }\n"
        "    map $hapax_preflight $hapax_allow_methods {\n"
        "        '' '';\n        default $http_access_control_request_method;\n    }\n"
        "    map $hapax_preflight $hapax_allow_headers {\n"
        "        '' '';\n        default $http_access_control_request_headers;\n    }\n"
        "    map $hapax_preflight $hapax_max_age {\n        '' '';\n        default 600;\n    }\n"
        "    add_header Access-Control-Allow-Origin $hapax_allow_origin always;\n"
        "    add_header Access-Control-Allow-Credentials $hapax_allow_credentials always;\n"
        "    add_header Access-Control-Expose-Headers $hapax_expose always;\n"
        "    add_header Access-Control-Allow-Methods $hapax_allow_methods always;\n"
        "    add_header Access-Control-Allow-Headers $hapax_allow_headers always;\n"
        "    add_header Access-Control-Max-Age $hapax_max_age always;\n",
        out);
    if (!any)
        (void)fputs("    add_header Vary Origin always;\n", out);
    (void)fputc('\n', out);
}

/* What a server is told of the client, and nothing of that by the client itself. Of "X_…" a CGI or
 * WSGI server makes what it makes of "X-…", so no such name reaches it. */
static void put_client(FILE *out)
{
    static const char *const names[][2] = {
        {"Forwarded", "For"}, {"Forwarded", "Host"},  {"Forwarded", "Proto"},
        {"Original", "URI"},  {"Original", "Method"},
    };

    (void)fputs("    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n"
                "    proxy_set_header X-Forwarded-Host $http_host;\n"
                "    proxy_set_header X-Forwarded-Proto $scheme;\n",
                out);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)fprintf(out,
                      "    proxy_set_header X_%s-%s \"\";\n"
                      "    proxy_set_header X-%s_%s \"\";\n"
                      "    proxy_set_header X_%s_%s \"\";\n",
                      names[i][0], names[i][1], names[i][0], names[i][1], names[i][0], names[i][1]);
}

/* Connections are kept for less than the 5 s after which some servers close theirs. */
static void put_upstream(FILE *out, const struct serve_conf *conf)
{
    const struct serve_url *url = &conf->upstream;
    char address[SERVE_NAME_MAX + 16];

    serve_address_text(address, &url->at);
    (void)fputs("\n    upstream hapax_upstream {\n", out);
    put_mark(out, conf, "upstream", conf->args->upstream);
    (void)fprintf(out,
                  "        server %s;\n        keepalive 64;\n"
                  "        keepalive_timeout 4s;\n    }\n\n"
                  "    # a tunnel passes all checks: only WebSocket, and never an operation\n"
                  "    map \"$hapax_key_id $http_upgrade\" $hapax_upgrade {\n"
                  "        '~*^ websocket$' websocket;\n        default '';\n    }\n"
                  "    map $hapax_upgrade $hapax_connection {\n        '' '';\n"
                  "        default upgrade;\n    }\n\n"
                  "    # a response that is stored must suit whoever repeats the request\n"
                  "    map $hapax_key_id $hapax_encodings {\n        '' $http_accept_encoding;\n"
                  "        default '';\n    }\n\n",
                  address);
    (void)fputs("    proxy_http_version 1.1;\n"
                "    proxy_buffer_size 16k;\n"
                "    proxy_buffers 8 16k;\n"
                "    proxy_set_header Upgrade $hapax_upgrade;\n"
                "    proxy_set_header Connection $hapax_connection;\n"
                "    proxy_set_header Accept-Encoding $hapax_encodings;\n"
                "    proxy_set_header traceparent $hapax_traceparent;\n",
                out);
    put_client(out);
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
        put_mark(out, conf, "upstream-ca", conf->args->upstream_ca);
        put_setting(out, "    ", "proxy_ssl_trusted_certificate",
                    conf->upstream_ca[0] ? conf->upstream_ca : CA_BUNDLE);
    }
    put_patience(out, "    ", &conf->policy);
}

/* Where nginx listens. trial: the name of a socket in the folder, on trial. */
static void listen_text(char out[PATH_MAX], const struct serve_conf *conf,
                        const struct serve_address *address, const char *trial)
{
    if (conf->on_trial)
        (void)snprintf(out, PATH_MAX, "unix:%s/%s.sock", conf->folder, trial);
    else
        serve_address_text(out, address);
}

static void put_listen(FILE *out, const struct serve_conf *conf)
{
    bool own_line = conf->version >= 1025001;
    char address[PATH_MAX];

    listen_text(address, conf, &conf->listen, "trial");
    if (!conf->args->tls_cert) {
        (void)fprintf(out, "        listen %s;\n", address);
        return;
    }
    (void)fprintf(out, "        listen %s ssl%s;\n%s", address, own_line ? "" : " http2",
                  own_line ? "        http2 on;\n" : "");
    put_mark(out, conf, "tls-cert", conf->args->tls_cert);
    put_setting(out, "        ", "ssl_certificate", conf->tls_cert);
    put_mark(out, conf, "tls-key", conf->args->tls_key);
    put_setting(out, "        ", "ssl_certificate_key", conf->tls_key);
    (void)fputs("        ssl_protocols TLSv1.2 TLSv1.3;\n", out);
    if (conf->client_ca[0]) {
        put_mark(out, conf, "client-ca", conf->args->client_ca);
        put_setting(out, "        ", "ssl_client_certificate", conf->client_ca);
        (void)fputs("        ssl_verify_client on;\n        ssl_verify_depth 5;\n", out);
    }
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
    const char *rule = text;
    char ignored[HAPAX_TEXT_MAX];
    char word[WORD_MAX];
    bool root;

    if (!next_word(word, &text))
        return false;
    root = strcmp(word, "/") == 0;
    (void)fputc('\n', out);
    put_mark(out, conf, "location", rule);
    (void)fprintf(out, "        location %s {\n", word);
    while (next_word(word, &text)) {
        char *value = strchr(word, '=');

        put_mark(out, conf, "location", rule);
        if (!value) {
            (void)fprintf(out, "            hapax %s;\n", word);
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

/* A location that only nginx itself asks, with a GET that has the headers of the request. Left out
 * are those that ask for a part of a response, for none, or for a compressed one: the hook's is
 * stored, and must suit whoever repeats the request. */
static void put_question(FILE *out, const struct serve_conf *conf, const char *path,
                         const char *option, const char *text, const struct serve_url *url)
{
    static const char *const left_out[] = {
        "Accept-Encoding",     "Range",    "If-Match", "If-None-Match", "If-Modified-Since",
        "If-Unmodified-Since", "If-Range",
    };

    if (!text)
        return;
    (void)fprintf(out,
                  "\n        location = %s {\n            internal;\n            hapax off;\n"
                  "            proxy_method GET;\n            proxy_pass_request_body off;\n"
                  "            proxy_set_header Content-Length \"\";\n"
                  "            proxy_set_header Connection \"\";\n"
                  "            proxy_set_header X-Original-URI $request_uri;\n"
                  "            proxy_set_header X-Original-Method $request_method;\n"
                  "            proxy_ssl_name %s;\n",
                  path, url->at.host);
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
        (void)fprintf(out, "            proxy_set_header %s \"\";\n", left_out[i]);
    put_client(out);
    put_mark(out, conf, option, text);
    (void)fprintf(out, "            proxy_pass %s;\n        }\n", text);
}

/* At the address of the API it is for this machine. --status is for where that says nothing: behind
 * something else of this machine, which ends TLS, say. */
static void put_status(FILE *out, const struct serve_conf *conf)
{
    struct in_addr v4;
    const char *host = conf->listen.host;
    bool own = conf->listen.v6 || inet_pton(AF_INET, host, &v4) == 1;

    (void)fputs("\n        location = /hapax-status {\n            hapax off;\n", out);
    if (conf->args->status) {
        (void)fputs("            return 404;\n        }\n", out);
        return;
    }
    (void)fprintf(out,
                  "%s            access_log off;\n            allow 127.0.0.0/8;\n"
                  "            allow ::1;\n",
                  conf->args->auth_request ? "            auth_request off;\n" : "");
    if (own && strcmp(host, "0.0.0.0") != 0 && strncmp(host, "127.", 4) != 0 && host[0] != ':')
        (void)fprintf(out, "            allow %s;\n", host);
    (void)fputs("            deny all;\n            hapax_status;\n        }\n", out);
}

static void put_status_server(FILE *out, const struct serve_conf *conf)
{
    char address[PATH_MAX];

    if (!conf->args->status)
        return;
    listen_text(address, conf, &conf->status, "status");
    (void)fprintf(out,
                  "\n    server {\n        listen %s;\n        hapax off;\n"
                  "        access_log off;\n\n"
                  "        location / {\n            return 404;\n        }\n\n"
                  "        location = /hapax-status {\n            hapax_status;\n        }\n"
                  "    }\n",
                  address);
}

/* For this process's own page. Whoever may pass through the folder may read it. */
static void put_metrics_server(FILE *out, const struct serve_conf *conf)
{
    if (!conf->args->metrics.address || !conf->folder)
        return;
    (void)fprintf(out,
                  "\n    server {\n        listen unix:%s/%s.sock;\n        hapax off;\n"
                  "        access_log off;\n\n        location / {\n            hapax_status;\n"
                  "        }\n    }\n",
                  conf->folder, conf->on_trial ? "trial-metrics" : "metrics");
}

/* nginx refuses a body that is over --max-body before any phase, so before anybody is asked. The
 * answer is the problem that the gate has for an operation. */
static void put_too_large(FILE *out, const struct serve_conf *conf)
{
    const struct hapax_answer answer = {.kind = HAPAX_ANSWER_TOO_LARGE};
    struct hapax__problem_page page = hapax__problem_page_of(&answer, 0);
    const char *base = conf->args->problem_base;
    struct hapax__json_out body = {.to = NULL};

    page.base = hapax_str(base ? base : HAPAX__PROBLEM_PATH);
    hapax__problem_put(&body, conf->template, &page);
    (void)fprintf(out,
                  "\n        error_page 413 @hapax_too_large;\n"
                  "        location @hapax_too_large {\n            hapax off;\n"
                  "            default_type application/%s;\n            return 413 \"",
                  conf->template.len ? "json" : "problem+json");
    for (const char *c = body.bytes; c && *c; c++) {
        if (*c == '$') {
            (void)fputs("${hapax_dollar}", out); /* no variable of nginx's */
            continue;
        }
        if (*c == '"' || *c == '\\')
            (void)fputc('\\', out);
        (void)fputc(*c, out);
    }
    (void)fputs("\";\n        }\n", out);
    hapax__json_free(&body);
}

/* Everybody may read these. */
static void put_problems(FILE *out, const struct serve_conf *conf)
{
    (void)fprintf(out,
                  "\n        location " HAPAX__PROBLEM_PATH " {\n            hapax off;\n%s"
                  "            hapax_problems;\n        }\n",
                  conf->args->auth_request ? "            auth_request off;\n" : "");
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
    put_cors(out, conf);
    (void)fputs("\n    server {\n", out);
    put_listen(out, conf);
    put_use_of_limits(out, args);
    if (args->cors.n > 0)
        (void)fputs("        if ($hapax_preflight) {\n            return 204;\n        }\n", out);
    if (args->auth_request)
        (void)fputs("        auth_request /hapax-auth;\n", out);
    for (size_t i = 0; i < args->locations.n; i++)
        root |= put_location(out, conf, args->locations.items[i]);
    if (!root) {
        (void)fputs("\n        location / {\n", out);
        put_pass(out, conf);
    }
    put_question(out, conf, "/hapax-auth", "auth-request", args->auth_request, &conf->auth_request);
    put_question(out, conf, "/hapax-reconcile", "reconcile", args->reconcile, &conf->reconcile);
    put_status(out, conf);
    put_problems(out, conf);
    put_too_large(out, conf);
    (void)fputs("    }\n", out);
    put_status_server(out, conf);
    put_metrics_server(out, conf);
    (void)fputs("}\n", out);
}
