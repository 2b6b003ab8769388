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

#include "base/uri.h"

#include <assert.h>
#include <string.h>

#define WAIT_S       20
#define VISIBILITY_S 30

#define FIELD(name) HAPAX__URI_FIELD(struct hapax__sqs_uri, name)

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
    return hapax__uri_plain(stem, "-_ABCDEFGHIJKLMNOPQRSTUVWXYZ");
}

static bool is_account(const char *value)
{
    return strspn(value, "0123456789") == strlen(value);
}

static enum hapax_error set_endpoint(struct hapax__uri_reading *r,
                                     const struct hapax__uri_option *option, const char *value)
{
    const char *host = strstr(value, "://");
    size_t len = strlen(value);
    char *out = (char *)r->out + option->at;

    if ((strncmp(value, "http://", 7) != 0 && strncmp(value, "https://", 8) != 0) || !host ||
        host[3] == '\0')
        return hapax__uri_wrong(r, "\"endpoint\" is no http:// or https:// URL");
    if (len >= option->width)
        return hapax__uri_wrong(r, "\"endpoint\" is over 255 bytes");
    if (strpbrk(host + 3, "@?#") || (strchr(host + 3, '/') && strchr(host + 3, '/')[1] != '\0'))
        return hapax__uri_wrong(r, "\"endpoint\" has more than scheme, host and port");
    memcpy(out, value, len + 1);
    if (out[len - 1] == '/')
        out[len - 1] = '\0';
    return HAPAX_ERR_NONE;
}

static const struct hapax__uri_option uri_options[] = {
    {"endpoint", HAPAX__URI_OWN, FIELD(endpoint), .set = set_endpoint},
    {"account", HAPAX__URI_TEXT, FIELD(account), 12, 12,
     "\"account\" is not the 12 digits of an account", .allows = is_account},
    {"profile", HAPAX__URI_TEXT, FIELD(profile), 1, 128,
     "\"profile\" is not a name of 1 to 128 bytes"},
    {"wait", HAPAX__URI_SECONDS, FIELD(wait_s), 0, 20, "\"wait\" is not whole seconds, 0s to 20s"},
    {"visibility", HAPAX__URI_SECONDS, FIELD(visibility_s), 2, HAPAX__SQS_VISIBILITY_MAX_S,
     "\"visibility\" is not whole seconds, 2s to 12h"},
};

static enum hapax_error read_place(const struct hapax__uri_reading *r,
                                   const struct hapax__uri_split *split)
{
    struct hapax__sqs_uri *out = r->out;
    const char *why;

    if (split->hosts[strcspn(split->hosts, "@?")] == '@')
        return hapax__uri_wrong(r, "there is a '@' in it; credentials come from the environment, "
                                   "a profile or the machine");
    if (split->hosts_len == 0 || split->hosts_len >= sizeof(out->region))
        return hapax__uri_wrong(r, "the region is not 1 to 63 bytes, as sqs://eu-central-1/orders");
    memcpy(out->region, split->hosts, split->hosts_len);
    if (!hapax__uri_plain(out->region, "-"))
        return hapax__uri_wrong(r, "the region is not of a-z, 0-9 and '-', as eu-central-1");
    if (split->path_len == 0)
        return HAPAX_ERR_NONE;
    if (split->path_len > HAPAX__SQS_QUEUE_MAX)
        return hapax__uri_wrong(r, "a queue's name has 1 to 80 bytes, its .fifo included");
    memcpy(out->queue, split->path, split->path_len);
    return hapax__sqs_name_check(out->queue, &why) ? HAPAX_ERR_NONE
                                                   : hapax__uri_wrong(r, "%s", why);
}

enum hapax_error hapax__sqs_uri(struct hapax__sqs_uri *out, const char *uri,
                                char text[HAPAX_TEXT_MAX])
{
    struct hapax__uri_reading r = {.what = "SQS",
                                   .text = text,
                                   .out = out,
                                   .options = uri_options,
                                   .option_count = sizeof(uri_options) / sizeof(uri_options[0])};
    struct hapax__uri_split split;
    enum hapax_error error;

    assert(out && uri && text);
    memset(out, 0, sizeof(*out));
    out->wait_s = WAIT_S;
    out->visibility_s = VISIBILITY_S;
    if (strncmp(uri, "sqs://", 6) != 0)
        return hapax__uri_wrong(&r, "it does not begin with sqs://");
    hapax__uri_split(&split, &r, uri + 6);
    error = read_place(&r, &split);
    if (error == HAPAX_ERR_NONE)
        error = hapax__uri_query(&r, split.query);
    if (error != HAPAX_ERR_NONE)
        memset(out, 0, sizeof(*out));
    return error;
}
