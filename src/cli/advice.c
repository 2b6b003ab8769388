/* SPDX-License-Identifier: Apache-2.0
 *
 * Promises and dangers of a door's settings. Nothing is asked here but the settings; what a store
 * knows about itself, hapax_store_check() says.
 */
#include "advice.h"

#include "base/span.h"
#include "base/uri.h"
#include "core/class.h"
#include "print.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define RETENTION_MIN_MS (INT64_C(24) * 3600 * 1000)

void cli_advise(const struct cli_advice *to, enum cli_level level, const char *format, ...)
{
    char line[CLI_PROMISE_MAX];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(line, sizeof(line), format, list);
    va_end(list);
    to->say(to->arg, level, line);
}

void cli_log_danger(void *arg, enum cli_level level, const char *line)
{
    char text[CLI_PROMISE_MAX + 16];

    if (level != CLI_DANGER)
        return;
    (void)snprintf(text, sizeof(text), "danger: %s", line);
    cli_log(arg, text);
}

/* Whether a value of nginx's has a variable whose name begins with one of these. */
static bool has_variable(const char *value, const char *const *names, size_t n)
{
    for (const char *at = strchr(value, '$'); at; at = strchr(at + 1, '$'))
        for (size_t i = 0; i < n; i++)
            if (hapax__text_begins(at + 1 + (at[1] == '{'), names[i]))
                return true;
    return false;
}

/* Whether an owner changes with a token, a key or a cookie. */
static bool is_credential(const char *owner)
{
    static const char *const names[] = {
        "http_authorization",  "http_x_api_key", "http_api_key", "http_x_auth_token",
        "http_x_access_token", "http_cookie",    "cookie_"};

    return owner && has_variable(owner, names, sizeof(names) / sizeof(names[0]));
}

/* ---- the promise ------------------------------------------------------------------------- */

/* *level is WARNING where an effect may happen twice, otherwise OK. */
static const char *promise_of_effects(enum cli_level *level, const struct cli_door *door)
{
    const struct hapax_policy *policy = door->policy;

    *level = CLI_WARNING;
    if (policy->on_store_error == HAPAX_STORE_OPEN)
        return "an effect may happen twice: without the store requests run unprotected";
    if (policy->rerun_completed)
        return "an effect may happen again once it is done: rerun-completed is on";
    if (policy->on_expired == HAPAX_EXPIRED_RERUN)
        return "an effect may happen twice: after a crash, a cut connection, a 500 or a 503 the "
               "next request runs again (on-expired hold prevents that)";
    if (hapax__on_failed(policy) == HAPAX_FAILED_RETRY)
        return "an effect may happen twice where a 500 follows it: on-failed is retry";
    if (is_credential(door->owner))
        return "an effect may happen twice: a new token begins new keys, so a repeat with it runs "
               "again";
    *level = CLI_OK;
    if (policy->on_expired == HAPAX_EXPIRED_RECONCILE)
        return "no effect happens twice: after a crash, a cut connection or a 500 the hook is "
               "asked";
    return "no effect happens twice: after a crash, a cut connection or a 500 an operator decides "
           "(hapax list --state unknown)";
}

static bool is_none(const char *caller)
{
    return caller && strcmp(caller, "none") == 0;
}

static void tell_apart(char *out, size_t size, const struct cli_door *door)
{
    if (door->owner)
        (void)snprintf(out, size, "each owner (%.200s) has keys of its own", door->owner);
    else if (is_none(door->caller))
        (void)snprintf(out, size, "whoever has a key is given its answer");
    else if (door->caller)
        (void)snprintf(out, size, "callers are told apart by %.200s", door->caller);
    else
        (void)snprintf(out, size, "%s", door->apart);
}

enum cli_level cli_promise(char out[CLI_PROMISE_MAX], const struct cli_door *door)
{
    const struct hapax_policy *policy = door->policy;
    char apart[256], age[PRINT_AGE_MAX] = "ever";
    enum cli_level level;
    const char *effects = promise_of_effects(&level, door);
    char begin[128] = "";
    const char *others = !door->mode                         ? ""
                         : strcmp(door->mode, "shadow") == 0 ? "only counted"
                                                             : "passed on";

    if (door->mode && door->on_percent == 0) {
        (void)snprintf(out, CLI_PROMISE_MAX, "nothing is guarded: requests are %s (mode is %s)",
                       others, door->mode);
        return CLI_WARNING;
    }
    if (door->mode) {
        level = CLI_WARNING;
        (void)snprintf(begin, sizeof(begin),
                       "of 100 keys %d are guarded, the others are %s: ", (int)door->on_percent,
                       others);
    }
    tell_apart(apart, sizeof(apart), door);
    if (policy->retention_ms != HAPAX_FOREVER_MS)
        print_age(age, policy->retention_ms * 1000);
    (void)snprintf(out, CLI_PROMISE_MAX,
                   "%s%s%s; %s; an answer is kept for %s; requests without a key %s", begin,
                   effects, door->differs ? ", unless --class or --location differ" : "", apart,
                   age, policy->key == HAPAX_KEY_REQUIRED ? "are refused" : "are not protected");
    return level;
}

/* ---- dangers ----------------------------------------------------------------------------- */

static void advise_policy(const struct cli_advice *to, const struct hapax_policy *policy)
{
    bool holds = policy->on_expired != HAPAX_EXPIRED_RERUN;
    char age[PRINT_AGE_MAX];

    if (policy->on_store_error == HAPAX_STORE_OPEN)
        cli_advise(to, CLI_DANGER,
                   "on-store-error is open: while the store is away every repeat runs; leave it "
                   "closed where an effect must not happen twice");
    if (policy->rerun_completed)
        cli_advise(to, CLI_DANGER,
                   "rerun-completed is on: what is done runs again; it is for reads only");
    if (holds && hapax__on_failed(policy) == HAPAX_FAILED_RETRY)
        cli_advise(to, CLI_DANGER,
                   "on-failed is retry: a 500 that comes after the effect runs again; leave it "
                   "out, and it is hold");
    if (policy->retention_ms < RETENTION_MIN_MS) {
        print_age(age, policy->retention_ms * 1000);
        cli_advise(to, CLI_WARNING,
                   "retention is %s: a client or a broker that repeats later than that runs again; "
                   "set it above the longest retry, as 24h or 7d",
                   age);
    }
}

/* The statuses that a proxy may answer after the request was sent, and that say nothing of it
 * without a header. */
static bool may_follow_effect(const struct hapax__class_rule *rule)
{
    static const uint16_t statuses[] = {408, 500, 502, 503, 504};

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        if (!rule->header[0] && rule->first <= statuses[i] && statuses[i] <= rule->last)
            return true;
    return false;
}

static void advise_class(const struct cli_advice *to, const char *text)
{
    static const char not_run[] = "not_run";
    size_t len = strlen(text);

    while (len > 0 && text[len - 1] == ' ')
        len--;
    if (len < sizeof(not_run) || strncmp(text + len - strlen(not_run), not_run, 7) != 0)
        return;
    for (const char *at = text; at < text + len;) {
        struct hapax_span word = {(const uint8_t *)at, strcspn(at, " ")};
        struct hapax__class_rule rule;
        const char *why;

        if (word.len > 0 && hapax__class_rule_parse(&rule, word, &why) && may_follow_effect(&rule))
            cli_advise(to, CLI_DANGER,
                       "--class \"%.100s\": a proxy answers %.*s after the request was sent, too, "
                       "and it then runs again; let the service add Retry-After, and say %.*s"
                       "+retry-after",
                       text, (int)word.len, at, (int)word.len, at);
        at += word.len + 1;
    }
}

/* Whether a value of nginx's is what a client writes as it likes. A credential is not: only its
 * owner knows it. */
static bool is_clients(const char *value)
{
    static const char *const free[] = {"http_", "arg_",        "cookie_",      "args",        "uri",
                                       "host",  "request_uri", "document_uri", "query_string"};
    static const char *const known[] = {"$http_authorization", "${http_authorization}",
                                        "$http_x_api_key", "${http_x_api_key}"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(value, known[i]) == 0)
            return false;
    return has_variable(value, free, sizeof(free) / sizeof(free[0]));
}

static void advise_who(const struct cli_advice *to, const struct cli_door *door)
{
    if (door->owner && is_clients(door->owner))
        cli_advise(to, CLI_DANGER,
                   "--owner \"%.100s\": clients write that themselves, and so take and read keys "
                   "of others; take what was verified, as auth:NAME or $ssl_client_s_dn",
                   door->owner);
    if (is_credential(door->owner))
        cli_advise(to, CLI_WARNING,
                   "--owner \"%.100s\": a new token begins new keys: a repeat with it runs again; "
                   "take what stays the same, as auth:NAME or $ssl_client_s_dn",
                   door->owner);
    if (door->owner)
        return;
    if (is_none(door->caller))
        cli_advise(to, CLI_DANGER,
                   "--caller is none, and there is no --owner: whoever guesses a key is given its "
                   "answer; name an owner");
    else if (!door->caller && door->risk)
        cli_advise(to, CLI_WARNING, "%s", door->risk);
    if (door->scope && is_clients(door->scope))
        cli_advise(to, CLI_WARNING,
                   "--scope \"%.100s\": clients write that themselves, so it is no boundary "
                   "between them; name an owner",
                   door->scope);
}

void cli_advise_door(const struct cli_advice *to, const struct cli_door *door)
{
    bool holds = door->policy->on_expired != HAPAX_EXPIRED_RERUN;
    char promise[CLI_PROMISE_MAX];
    enum cli_level level = cli_promise(promise, door);

    cli_advise(to, level, "%s", promise);
    advise_policy(to, door->policy);
    for (size_t i = 0; holds && door->classes && i < door->classes->n; i++)
        advise_class(to, door->classes->items[i]);
    advise_who(to, door);
}

/* ---- the way to other machines ------------------------------------------------------------- */

/* The first host that is another machine, of [LOGIN@]HOST[:PORT][,…]. NULL: there is none. */
static const char *find_far(const char *at, size_t *len)
{
    size_t hosts = strcspn(at, "/?");
    const char *login = memchr(at, '@', hosts);
    const char *end = at + hosts;

    at = login ? login + 1 : at;
    while (at < end) {
        bool v6 = *at == '[';
        size_t whole = strcspn(at, ",/?");

        *len = v6 ? strcspn(at + 1, "]") : strcspn(at, ":,/?");
        if (!hapax__host_is_near(at + v6, *len))
            return at + v6;
        at += whole + 1;
    }
    return NULL;
}

static bool is_plain(const char *url)
{
    const char *protocol = strstr(url, "security.protocol=");
    const char *user = getenv("HAPAX_KAFKA_USER");

    if (hapax__text_begins(url, "http://") || hapax__text_begins(url, "amqp://"))
        return true;
    if (!hapax__text_begins(url, "kafka://"))
        return false;
    if (protocol) /* ssl or sasl_ssl, and not plaintext or sasl_plaintext */
        return !memmem(protocol, strcspn(protocol, "&"), "ssl", 3);
    return !strstr(url, "sasl.username=") && (!user || !*user); /* a login alone is sasl_ssl */
}

static bool trusts_anybody(const char *url)
{
    return strstr(url, "tls_verify=off") || strstr(url, "ssl.certificate.verification=false") ||
           strstr(url, "ssl.endpoint.identification.algorithm=none");
}

void cli_advise_wire(const struct cli_advice *to, enum cli_level level, const char *option,
                     const char *url)
{
    const char *endpoint = url ? strstr(url, "endpoint=http://") : NULL; /* of SQS */
    const char *hosts = url ? strstr(url, "://") : NULL;
    const char *far;
    size_t len;

    if (!hosts)
        return;
    if (trusts_anybody(url))
        cli_advise(to, CLI_DANGER,
                   "--%s does not verify whom it talks to: whoever stands between can read and "
                   "change all; name the authority of the certificates instead",
                   option);
    if (!is_plain(url) && !endpoint)
        return;
    far = find_far(endpoint ? endpoint + strlen("endpoint=http://") : hosts + 3, &len);
    if (far)
        cli_advise(to, level,
                   "--%s is not encrypted on the way to \"%.*s\": whoever can listen there reads "
                   "keys, bodies and passwords; use %s",
                   option, (int)(len < 255 ? len : 255), far,
                   hapax__text_begins(url, "amqp")    ? "amqps"
                   : hapax__text_begins(url, "kafka") ? "security.protocol=ssl or sasl_ssl"
                                                      : "https");
}
