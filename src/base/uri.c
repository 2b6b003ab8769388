/* SPDX-License-Identifier: Apache-2.0
 *
 * What all readers of URIs share: percent-decoding, parameters, and a copy of a URI for logs,
 * without its passwords. A password stands between ':' and '@' of an authority, or in a parameter
 * whose name ends with "password". A password that is not encoded may have no clear end; then the
 * copy hides more than the password.
 */
#include "uri.h"

#include "fail.h"
#include "span.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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

enum hapax_error hapax__uri_named(size_t *at, char *value, size_t size,
                                  struct hapax__uri_reading *reading,
                                  const struct hapax__uri_parameter *given,
                                  const char *(*name_of)(size_t i))
{
    const char *name;
    size_t i = 0;

    while ((name = name_of(i)) &&
           (strlen(name) != given->name_len || memcmp(name, given->name, given->name_len) != 0))
        i++;
    if (!name && reading->secretive)
        return hapax__uri_wrong(reading, "a parameter is not known, or a '?' of the password is "
                                         "not written %%3F");
    if (!name)
        return hapax__uri_wrong(reading, "parameter \"%.*s\" is not known",
                                (int)(given->name_len < 40 ? given->name_len : 40), given->name);
    assert(i < 32);
    if (reading->seen & 1u << i)
        return hapax__uri_wrong(reading, "\"%s\" is given twice", name);
    reading->seen |= 1u << i;
    *at = i;
    if (!hapax__uri_decode(value, size, given->value, given->value_len))
        return hapax__uri_wrong(reading,
                                "the value of \"%s\" is over %zu bytes, or has a '%%' without two "
                                "hex digits",
                                name, size - 1);
    return HAPAX_ERR_NONE;
}

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

bool hapax__uri_number(uint32_t *out, const char *in, size_t len, uint32_t max)
{
    uint32_t value = 0;

    if (len == 0 || len > 9)
        return false;
    for (size_t i = 0; i < len; i++) {
        if (in[i] < '0' || in[i] > '9')
            return false;
        value = value * 10 + (uint32_t)(in[i] - '0');
    }
    *out = value;
    return value <= max;
}

/* ---- showing --------------------------------------------------------------------------- */

/* Whether a URI of a list begins here, behind its ',' or '+'. */
static bool begins_uri(const char *at)
{
    static const char *const schemes[] = {
        "redis://",           "rediss://",         "redis+sentinel://", "redis+cluster://",
        "rediss+sentinel://", "rediss+cluster://", "postgres://",       "postgresql://"};

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (hapax__text_begins(at, schemes[i]))
            return true;
    return false;
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
    bool redis;

    while (*next != '\0' && !((next[-1] == ',' || next[-1] == '+') && begins_uri(next)))
        next++;
    slashes = memmem(at, (size_t)(next - at), "://", 3);
    redis = slashes && memmem(at, (size_t)(slashes - at), "redis", 5);
    if (slashes)
        at = slashes + 3;
    colon = memchr(at, ':', (size_t)(next - at));
    sign = memrchr(at, '@', (size_t)(next - at));
    *end = sign;
    if (sign && colon && colon < sign)
        return colon + 1;
    return sign && redis ? at : NULL; /* redis-cli takes a lone word for the password */
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

        if (!local && (at == uri || ((at[-1] == ',' || at[-1] == '+') && begins_uri(at))))
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
