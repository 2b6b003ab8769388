/* SPDX-License-Identifier: Apache-2.0
 *
 * What all readers of URIs share: percent-decoding, options by a table, hosts, and a copy of a URI
 * for logs, without its passwords. A password stands between ':' and '@' of an authority, or in a
 * parameter whose name ends with "password". A password that is not encoded may have no clear end;
 * then the copy hides more than the password.
 */
#include "uri.h"

#include "fail.h"
#include "span.h"
#include "units.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define VALUE_MAX 511u /* bytes of an option's value */

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool hapax__uri_decode(char *out, size_t size, const char *in, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        char c = in[i];

        if (c == '%') {
            int high = i + 1 < len ? digit(in[i + 1]) : -1;
            int low = i + 2 < len ? digit(in[i + 2]) : -1;

            if (high < 0 || low < 0)
                return false;
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (c == '\0' || n + 1 >= size)
            return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return true;
}

bool hapax__uri_parameter(struct hapax__uri_parameter *out, const char **query)
{
    const char *at = *query;
    size_t len = strcspn(at, "&");
    const char *equals = memchr(at, '=', len);

    if (*at == '\0')
        return false;
    out->name = at;
    out->name_len = equals ? (size_t)(equals - at) : len;
    out->value = equals ? equals + 1 : at + len;
    out->value_len = (size_t)(at + len - out->value);
    *query = at + len + (at[len] == '&');
    return true;
}

/* ---- reading one ----------------------------------------------------------------------- */

enum hapax_error hapax__uri_wrong(const struct hapax__uri_reading *reading, const char *format, ...)
{
    char why[HAPAX_TEXT_MAX - 64];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    return hapax__fail(reading->text, HAPAX_ERR_INVALID, "the %.32s URI is wrong: %s",
                       reading->what, why);
}

void hapax__uri_split(struct hapax__uri_split *out, struct hapax__uri_reading *reading,
                      const char *at)
{
    const char *path = at + strcspn(at, "/?");
    const char *query = path + strcspn(path, "?");

    out->hosts = at;
    out->hosts_len = (size_t)(path - at);
    out->path = path + (*path == '/');
    out->path_len = (size_t)(query - out->path);
    out->query = query + (*query == '?');
    reading->secretive = strchr(path, '@') != NULL;
}

/* ---- options --------------------------------------------------------------------------- */

static bool read_amount(uint64_t *out, const struct hapax__uri_option *option, const char *value)
{
    const char *why;
    int64_t ms = 0;
    size_t size = 0;
    bool good;

    if (option->kind == HAPAX__URI_NUMBER) {
        good = hapax__number_parse(out, value, strlen(value), option->max);
    } else if (option->kind == HAPAX__URI_SIZE) {
        good = hapax__size_parse(&size, value, &why);
        *out = size;
    } else {
        good = hapax__duration_parse(&ms, value, &why) &&
               (option->kind == HAPAX__URI_DURATION || ms % 1000 == 0);
        *out = (uint64_t)(option->kind == HAPAX__URI_SECONDS ? ms / 1000 : ms);
    }
    return good && *out >= option->min && *out <= option->max;
}

static bool set_amount(void *field, const struct hapax__uri_option *option, const char *value)
{
    uint64_t amount;

    if (!read_amount(&amount, option, value))
        return false;
    if (option->width == sizeof(uint16_t))
        *(uint16_t *)field = (uint16_t)amount;
    else if (option->width == sizeof(uint32_t))
        *(uint32_t *)field = (uint32_t)amount;
    else
        memcpy(field, &amount, option->width);
    return true;
}

static enum hapax_error set_switch(struct hapax__uri_reading *reading, bool *field,
                                   const struct hapax__uri_option *option, const char *value)
{
    const char *off = option->words[0] ? option->words[0] : "off";
    const char *on = option->words[1] ? option->words[1] : "on";

    *field = strcmp(value, on) == 0;
    if (*field || strcmp(value, off) == 0)
        return HAPAX_ERR_NONE;
    return hapax__uri_wrong(reading, "\"%s\" is not %s or %s", option->name, on, off);
}

static enum hapax_error set_option(struct hapax__uri_reading *reading,
                                   const struct hapax__uri_option *option, const char *value)
{
    void *field = (char *)reading->out + option->at;
    size_t len = strlen(value);
    bool good;

    switch (option->kind) {
    case HAPAX__URI_OWN:
        return option->set(reading, option, value);
    case HAPAX__URI_SWITCH:
        return set_switch(reading, field, option, value);
    case HAPAX__URI_FILE:
        if (len == 0)
            return hapax__uri_wrong(reading, "\"%s\" names no file", option->name);
        if (len >= option->width)
            return hapax__uri_wrong(reading, "\"%s\" is over %zu bytes", option->name,
                                    option->width - 1);
        good = true;
        break;
    case HAPAX__URI_TEXT:
        assert(option->max < option->width);
        good =
            len >= option->min && len <= option->max && (!option->allows || option->allows(value));
        break;
    default:
        return set_amount(field, option, value) ? HAPAX_ERR_NONE
                                                : hapax__uri_wrong(reading, "%s", option->wrong);
    }
    if (!good)
        return hapax__uri_wrong(reading, "%s", option->wrong);
    memcpy(field, value, len + 1);
    return HAPAX_ERR_NONE;
}

/* The option's index; option_count: there is none of this name. */
static size_t find_option(const struct hapax__uri_reading *reading,
                          const struct hapax__uri_parameter *given)
{
    char name[32];
    size_t i = 0;

    if (!hapax__uri_decode(name, sizeof(name), given->name, given->name_len))
        return reading->option_count;
    while (i < reading->option_count && strcmp(name, reading->options[i].name) != 0)
        i++;
    return i;
}

static enum hapax_error take(struct hapax__uri_reading *reading, size_t i,
                             const struct hapax__uri_parameter *given)
{
    const struct hapax__uri_option *option = &reading->options[i];
    char value[VALUE_MAX + 1];

    assert(i < 32);
    if (reading->seen & 1u << i)
        return hapax__uri_wrong(reading, "\"%s\" is given twice", option->name);
    reading->seen |= 1u << i;
    if (!hapax__uri_decode(value, sizeof(value), given->value, given->value_len))
        return hapax__uri_wrong(reading,
                                "the value of \"%s\" is over %u bytes, or has a '%%' without two "
                                "hex digits",
                                option->name, VALUE_MAX);
    return set_option(reading, option, value);
}

enum hapax_error hapax__uri_query(struct hapax__uri_reading *reading, const char *query)
{
    struct hapax__uri_parameter given;
    enum hapax_error error = HAPAX_ERR_NONE;

    while (error == HAPAX_ERR_NONE && hapax__uri_parameter(&given, &query)) {
        size_t i = find_option(reading, &given);

        if (i < reading->option_count)
            error = take(reading, i, &given);
        else if (reading->other)
            error = reading->other(reading, &given);
        else if (reading->secretive)
            error = hapax__uri_wrong(reading, "a parameter is not known, or a '?' of the password "
                                              "is not written %%3F");
        else
            error = hapax__uri_wrong(reading, "parameter \"%.*s\" is not known",
                                     (int)(given.name_len < 40 ? given.name_len : 40), given.name);
    }
    return error;
}

enum hapax_error hapax__uri_strip(struct hapax__uri_reading *reading, char *uri)
{
    char *at = strstr(uri, "://"), *query, *to;
    struct hapax__uri_parameter given;
    const char *rest;

    at = at ? at + 3 : uri;
    if (at[strcspn(at, "@/")] == '@') /* for libpq a '?' in front of it is a password's */
        at += strcspn(at, "@/");
    query = to = strchr(at, '?');
    for (rest = query ? query + 1 : ""; hapax__uri_parameter(&given, &rest);) {
        size_t i = find_option(reading, &given);
        size_t len = (size_t)(given.value + given.value_len - given.name);
        enum hapax_error error = HAPAX_ERR_NONE;

        if (i < reading->option_count)
            error = take(reading, i, &given);
        else if (reading->other)
            error = reading->other(reading, &given);
        if (error != HAPAX_ERR_NONE)
            return error;
        if (i < reading->option_count)
            continue;
        *to = to == query ? '?' : '&';
        memmove(to + 1, given.name, len);
        to += len + 1;
    }
    if (to)
        *to = '\0';
    return HAPAX_ERR_NONE;
}

bool hapax__uri_given(const struct hapax__uri_reading *reading, const char *begin)
{
    for (size_t i = 0; i < reading->option_count; i++)
        if (reading->seen & 1u << i && hapax__text_begins(reading->options[i].name, begin))
            return true;
    return false;
}

enum hapax_error hapax__uri_tls_check(const struct hapax__uri_reading *reading, bool tls,
                                      const char *scheme)
{
    if (!tls && hapax__uri_given(reading, "tls_"))
        return hapax__uri_wrong(reading, "it has tls_ parameters, but its scheme is not %s",
                                scheme);
    if (hapax__uri_given(reading, "tls_cert") != hapax__uri_given(reading, "tls_key"))
        return hapax__uri_wrong(reading, "\"tls_cert\" and \"tls_key\" go together");
    return HAPAX_ERR_NONE;
}

/* ---- logins and hosts ------------------------------------------------------------------ */

enum hapax_error hapax__uri_login(char *user, char *password, size_t size,
                                  const struct hapax__uri_reading *reading, const char *in,
                                  size_t len)
{
    const char *colon = memchr(in, ':', len);
    size_t user_len = colon ? (size_t)(colon - in) : len;

    if (memchr(in, '@', len))
        return hapax__uri_wrong(reading, "there are two '@' in it; one of a user or password is "
                                         "written %%40");
    if (!hapax__uri_decode(user, size, in, user_len))
        return hapax__uri_wrong(
            reading, "the user is over %zu bytes, or has a '%%' without two hex digits", size - 1);
    if (colon && !hapax__uri_decode(password, size, colon + 1, len - user_len - 1))
        return hapax__uri_wrong(
            reading, "the password is over %zu bytes, or has a '%%' without two hex digits",
            size - 1);
    return HAPAX_ERR_NONE;
}

bool hapax__uri_graphic(const char *s, const char *except)
{
    for (; *s != '\0'; s++)
        if (*s <= ' ' || *s > '~' || strchr(except, *s))
            return false;
    return true;
}

bool hapax__uri_plain(const char *s, const char *also)
{
    for (; *s != '\0'; s++)
        if (!(*s >= 'a' && *s <= 'z') && !(*s >= '0' && *s <= '9') && !strchr(also, *s))
            return false;
    return true;
}

enum hapax_error hapax__uri_host(char *host, size_t size, uint16_t *port,
                                 const struct hapax__uri_reading *reading, const char *article,
                                 const char *at, size_t len)
{
    bool six = len > 0 && at[0] == '[';
    const char *end = six ? memchr(at, ']', len) : memchr(at, ':', len);
    size_t host_len = (size_t)((end ? end : at + len) - at) - six;
    size_t used = host_len + (six ? 2 : 0);
    uint64_t number = *port;

    if (six && !end)
        return hapax__uri_wrong(reading, "a '[' has no ']'");
    if (host_len == 0)
        return hapax__uri_wrong(reading, "%s host is empty", article);
    if (host_len >= size)
        return hapax__uri_wrong(reading, "%s host is over %zu bytes", article, size - 1);
    if (used < len &&
        (at[used] != ':' ||
         !hapax__number_parse(&number, at + used + 1, len - used - 1, UINT16_MAX) || number == 0))
        return hapax__uri_wrong(reading, "%s port is not 1 to 65535 (an IPv6 host stands in [ ])",
                                article);
    memcpy(host, at + six, host_len);
    host[host_len] = '\0';
    *port = (uint16_t)number;
    if (!hapax__uri_graphic(host, six ? "[]@/?#," : "[]@/?#,:%"))
        return hapax__uri_wrong(reading, "%s host is not a name or an address", article);
    return HAPAX_ERR_NONE;
}

/* ---- showing --------------------------------------------------------------------------- */

bool hapax__uri_is_redis(const char *at)
{
    static const char *const schemes[] = {"redis://",           "rediss://",
                                          "redis+sentinel://",  "redis+cluster://",
                                          "rediss+sentinel://", "rediss+cluster://"};

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (hapax__text_begins(at, schemes[i]))
            return true;
    return false;
}

bool hapax__uri_begins(const char *at)
{
    return hapax__uri_is_redis(at) || hapax__text_begins(at, "postgres://") ||
           hapax__text_begins(at, "postgresql://");
}

/* Whether only a path follows, in which a '@' means nothing. */
static bool is_local(const char *uri)
{
    return strncmp(uri, "rocksdb:", 8) == 0 || strncmp(uri, "unix:", 5) == 0;
}

/* The password of the URI at `at`, in front of the next one of its list. NULL: there is none. */
static const char *find_password(const char *at, const char **end)
{
    const char *next = at + 1, *slashes, *colon, *sign;
    bool lone;

    while (*next != '\0' && !((next[-1] == ',' || next[-1] == '+') && hapax__uri_begins(next)))
        next++;
    slashes = memmem(at, (size_t)(next - at), "://", 3);
    lone = slashes && (memmem(at, (size_t)(slashes - at), "redis", 5) ||
                       memmem(at, (size_t)(slashes - at), "http", 4));
    if (slashes)
        at = slashes + 3;
    colon = memchr(at, ':', (size_t)(next - at));
    sign = memrchr(at, '@', (size_t)(next - at));
    *end = sign;
    if (sign && colon && colon < sign)
        return colon + 1;
    return sign && lone ? at : NULL; /* redis-cli takes a lone word for the password */
}

/* Whether the value of a parameter that is a password begins here. */
static bool begins_value(const char *uri, const char *at)
{
    static const char name[] = "password=";
    size_t len = strlen(name);

    return (size_t)(at - uri) >= len && strncasecmp(at - len, name, len) == 0;
}

void hapax_store_shown(char out[HAPAX_TEXT_MAX], const char *uri)
{
    const char *password = NULL, *end = NULL, *hidden = uri; /* all in front of `hidden` is */
    bool local = is_local(uri);
    size_t n = 0;

    for (const char *at = uri; *at != '\0' && n + 4 < HAPAX_TEXT_MAX; at++) {
        const char *from = hidden;

        if (!local && (at == uri || ((at[-1] == ',' || at[-1] == '+') && hapax__uri_begins(at))))
            password = find_password(at, &end);
        if (at == password && end > hidden)
            hidden = end;
        if (begins_value(uri, at) && at + strcspn(at, "&") > hidden)
            hidden = at + strcspn(at, "&");
        if (at >= hidden)
            out[n++] = *at;
        else if (at >= from) { /* what was hidden before has its stars */
            memcpy(out + n, "***", 3);
            n += 3;
        }
    }
    out[n] = '\0';
}

/* Hides first and cuts then, since a password may have a '?' in it. Another parameter may be a
 * secret, as Kafka's properties are, or a token of a handler's. */
void hapax__uri_shown(char out[HAPAX_TEXT_MAX], const char *uri)
{
    const char *query = strchr(uri, '?'), *sign = strrchr(uri, '@');
    struct hapax__uri_parameter parameter;
    size_t len = strcspn(uri, ":/?@");
    char by = '?';

    if (!query || !sign || sign < query)
        hapax_store_shown(out, uri);
    else
        (void)snprintf(out, HAPAX_TEXT_MAX, "%.*s***",
                       hapax__text_begins(uri + len, "://") ? (int)len + 3 : 0, uri);
    len = strcspn(out, "?&"); /* the '?' may be hidden */
    out[len] = '\0';
    query = query ? query + 1 : "";
    while (hapax__uri_parameter(&parameter, &query)) {
        if (parameter.name_len != 5 ||
            (memcmp(parameter.name, "queue", 5) != 0 && memcmp(parameter.name, "group", 5) != 0))
            continue;
        (void)snprintf(out + len, HAPAX_TEXT_MAX - len, "%c%.5s=%.*s", by, parameter.name,
                       (int)parameter.value_len, parameter.value);
        len = strlen(out);
        by = '&';
    }
}

bool hapax__host_is_near(const char *host, size_t len)
{
    return (len == 9 && memcmp(host, "localhost", 9) == 0) ||
           (len > 4 && memcmp(host, "127.", 4) == 0) || (len == 3 && memcmp(host, "::1", 3) == 0);
}
