/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads SQS URIs. An unknown parameter is refused, and a parameter given twice.
 *
 * The invariant: no text shows a value. Such a URI needs no secret, but people may write one into
 * it: an endpoint with "user:password@" is refused without being shown.
 *
 * Rejected: the queue's URL as SQS's console shows it. It names the endpoint, the account and the
 * queue at once. For a stand-in or a private endpoint it is not the URL that can be reached.
 */
#include "uri.h"

#include "base/fail.h"
#include "base/uri.h"
#include "core/policy.h"

#include <assert.h>
#include <string.h>

#define WAIT_S       20
#define VISIBILITY_S 30

enum parameter { ENDPOINT, ACCOUNT, PROFILE, WAIT, VISIBILITY, PARAMETERS };

static const char *const names[PARAMETERS] = {"endpoint", "account", "profile", "wait",
                                              "visibility"};

static enum hapax_error bad(char text[HAPAX_TEXT_MAX], const char *why)
{
    return hapax__fail(text, HAPAX_ERR_INVALID, "the SQS URI is wrong: %s", why);
}

static bool made_of(const char *s, const char *also, bool upper)
{
    for (; *s != '\0'; s++)
        if (!(*s >= 'a' && *s <= 'z') && !(*s >= '0' && *s <= '9') &&
            !(upper && *s >= 'A' && *s <= 'Z') && !strchr(also, *s))
            return false;
    return true;
}

bool hapax__sqs_is_fifo(const char *name)
{
    size_t len = strlen(name), end = strlen(HAPAX__SQS_FIFO);

    return len > end && strcmp(name + len - end, HAPAX__SQS_FIFO) == 0;
}

bool hapax__sqs_name_check(const char *name, const char **why)
{
    char stem[HAPAX__SQS_QUEUE_MAX + 1];
    size_t len = strlen(name);

    *why = "a queue's name has 1 to 80 bytes, its .fifo included";
    if (len == 0 || len > HAPAX__SQS_QUEUE_MAX)
        return false;
    memcpy(stem, name, len + 1);
    if (hapax__sqs_is_fifo(stem))
        stem[len - strlen(HAPAX__SQS_FIFO)] = '\0';
    *why = "a queue's name is of letters, digits, '-' and '_', and may end in .fifo";
    return made_of(stem, "-_", true);
}

/* ---- parameters ------------------------------------------------------------------------ */

static enum hapax_error set_endpoint(struct hapax__sqs_uri *out, const char *value,
                                     char text[HAPAX_TEXT_MAX])
{
    const char *host = strstr(value, "://");
    size_t len = strlen(value);

    if ((strncmp(value, "http://", 7) != 0 && strncmp(value, "https://", 8) != 0) || !host ||
        host[3] == '\0')
        return bad(text, "\"endpoint\" is no http:// or https:// URL");
    if (len >= sizeof(out->endpoint))
        return bad(text, "\"endpoint\" is over 255 bytes");
    if (strpbrk(host + 3, "@?#") || (strchr(host + 3, '/') && strchr(host + 3, '/')[1] != '\0'))
        return bad(text, "\"endpoint\" has more than scheme, host and port");
    memcpy(out->endpoint, value, len + 1);
    if (out->endpoint[len - 1] == '/')
        out->endpoint[len - 1] = '\0';
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_seconds(int *out, const char *value, int least, int most,
                                    const char *wrong, char text[HAPAX_TEXT_MAX])
{
    const char *why;
    int64_t ms;

    if (!hapax__duration_parse(&ms, value, &why) || ms % 1000 != 0 || ms / 1000 < least ||
        ms / 1000 > most)
        return bad(text, wrong);
    *out = (int)(ms / 1000);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_parameter(struct hapax__sqs_uri *out, enum parameter which,
                                      const char *value, char text[HAPAX_TEXT_MAX])
{
    size_t len = strlen(value);

    switch (which) {
    case ENDPOINT:
        return set_endpoint(out, value, text);
    case ACCOUNT:
        if (len != 12 || strspn(value, "0123456789") != 12)
            return bad(text, "\"account\" is not the 12 digits of an account");
        memcpy(out->account, value, len + 1);
        return HAPAX_ERR_NONE;
    case PROFILE:
        if (len == 0 || len >= sizeof(out->profile))
            return bad(text, "\"profile\" is not a name of 1 to 128 bytes");
        memcpy(out->profile, value, len + 1);
        return HAPAX_ERR_NONE;
    case WAIT:
        return set_seconds(&out->wait_s, value, 0, 20, "\"wait\" is not whole seconds, 0s to 20s",
                           text);
    default:
        assert(which == VISIBILITY);
        return set_seconds(&out->visibility_s, value, 2, HAPAX__SQS_VISIBILITY_MAX_S,
                           "\"visibility\" is not whole seconds, 2s to 12h", text);
    }
}

static const char *parameter_name(size_t i)
{
    return i < PARAMETERS ? names[i] : NULL;
}

static enum hapax_error read_query(struct hapax__sqs_uri *out, const char *query,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__uri_reading reading = {.what = "SQS", .text = text};
    struct hapax__uri_parameter given;
    enum hapax_error error = HAPAX_ERR_NONE;
    char value[512];
    size_t i;

    while (error == HAPAX_ERR_NONE && hapax__uri_parameter(&given, &query)) {
        error = hapax__uri_named(&i, value, sizeof(value), &reading, &given, parameter_name);
        if (error == HAPAX_ERR_NONE)
            error = set_parameter(out, (enum parameter)i, value, text);
    }
    return error;
}

/* ---- the whole ------------------------------------------------------------------------- */

static enum hapax_error read_place(struct hapax__sqs_uri *out, const char *at, size_t region_len,
                                   size_t path_len, char text[HAPAX_TEXT_MAX])
{
    const char *path = at + region_len + (path_len > 0), *why;
    size_t len = path_len - (path_len > 0);

    if (memchr(at, '@', region_len + path_len))
        return bad(text, "there is a '@' in it; credentials come from the environment, a profile "
                         "or the machine");
    if (region_len == 0 || region_len >= sizeof(out->region))
        return bad(text, "the region is not 1 to 63 bytes, as sqs://eu-central-1/orders");
    memcpy(out->region, at, region_len);
    if (!made_of(out->region, "-", false))
        return bad(text, "the region is not of a-z, 0-9 and '-', as eu-central-1");
    if (len == 0)
        return HAPAX_ERR_NONE;
    if (len > HAPAX__SQS_QUEUE_MAX)
        return bad(text, "a queue's name has 1 to 80 bytes, its .fifo included");
    memcpy(out->queue, path, len);
    return hapax__sqs_name_check(out->queue, &why) ? HAPAX_ERR_NONE : bad(text, why);
}

enum hapax_error hapax__sqs_uri(struct hapax__sqs_uri *out, const char *uri,
                                char text[HAPAX_TEXT_MAX])
{
    size_t region_len, path_len;
    enum hapax_error error;
    const char *at, *query;

    assert(out && uri && text);
    memset(out, 0, sizeof(*out));
    out->wait_s = WAIT_S;
    out->visibility_s = VISIBILITY_S;
    if (strncmp(uri, "sqs://", 6) != 0)
        return bad(text, "it does not begin with sqs://");
    at = uri + 6;
    region_len = strcspn(at, "/?");
    path_len = strcspn(at + region_len, "?");
    query = at + region_len + path_len;
    error = read_place(out, at, region_len, path_len, text);
    if (error == HAPAX_ERR_NONE)
        error = read_query(out, query + (*query == '?'), text);
    if (error != HAPAX_ERR_NONE)
        memset(out, 0, sizeof(*out));
    return error;
}
