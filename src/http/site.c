/* SPDX-License-Identifier: Apache-2.0
 *
 * libmicrohttpd with a thread for each connection, so that a page that takes long holds up no other
 * one: threads of its pool each poll connections of their own. The body of a request is gathered
 * before the page is asked for. A body that is too large is read and dropped: a client that still
 * sends would not see the refusal. Past 1 MiB the connection ends.
 */
#include "site.h"

#include "base/fail.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONNECTIONS      32u
#define CONNECTION_BYTES (32u << 10)
#define IDLE_S           30u
#define DROPPED_MAX      (1u << 20)

struct hapax__site {
    const struct hapax__site_pages *pages;
    struct MHD_Daemon *daemon;
};

/* The body of a request, while it comes. */
struct body {
    size_t len;
    size_t dropped; /* bytes that came too many; not 0: it is too large */
    uint8_t bytes[HAPAX__SITE_BODY_MAX];
};

struct counted {
    const char *name;
    unsigned n;
};

const char *hapax__site_header(const struct hapax__site_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

static enum MHD_Result count(void *arg, enum MHD_ValueKind kind, const char *name,
                             const char *value)
{
    struct counted *counted = arg;

    (void)kind;
    (void)value;
    counted->n += strcasecmp(name, counted->name) == 0;
    return MHD_YES;
}

unsigned hapax__site_header_count(const struct hapax__site_request *request, const char *name)
{
    struct counted counted = {.name = name};

    (void)MHD_get_connection_values(request->connection, MHD_HEADER_KIND, count, &counted);
    return counted.n;
}

static enum MHD_Result send_reply(struct MHD_Connection *connection, const struct hapax__site *site,
                                  const struct hapax__site_reply *reply)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        reply->len, (void *)(uintptr_t)(reply->owned ? reply->owned : reply->body),
        reply->owned ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    enum MHD_Result result;

    if (!response) {
        free(reply->owned);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply->type);
    if (reply->challenge)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, reply->challenge);
    for (size_t i = 0; site->pages->headers[i][0]; i++)
        (void)MHD_add_response_header(response, site->pages->headers[i][0],
                                      site->pages->headers[i][1]);
    result = MHD_queue_response(connection, reply->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_len, void **state)
{
    static const char too_large[] = "the request is too large\n";
    const struct hapax__site *site = arg;
    struct hapax__site_request request = {.method = method, .path = url, .connection = connection};
    struct hapax__site_reply reply = {.status = MHD_HTTP_CONTENT_TOO_LARGE,
                                      .type = "text/plain; charset=utf-8",
                                      .body = too_large,
                                      .len = sizeof(too_large) - 1};
    struct body *body = *state;

    (void)version;
    if (!body) { /* only the head has come */
        *state = calloc(1, sizeof(*body));
        return *state ? MHD_YES : MHD_NO;
    }
    if (*upload_len > 0) {
        if (body->dropped > 0 || *upload_len > sizeof(body->bytes) - body->len) {
            body->dropped += *upload_len;
        } else {
            memcpy(body->bytes + body->len, upload, *upload_len);
            body->len += *upload_len;
        }
        *upload_len = 0;
        return body->dropped <= DROPPED_MAX ? MHD_YES : MHD_NO;
    }
    request.body = (struct hapax_span){body->bytes, body->len};
    if (body->dropped == 0)
        site->pages->answer(&reply, &request, site->pages->arg);
    return send_reply(connection, site, &reply);
}

/* A body may hold a key. */
static void end_request(void *arg, struct MHD_Connection *connection, void **state,
                        enum MHD_RequestTerminationCode how)
{
    (void)arg;
    (void)connection;
    (void)how;
    if (*state)
        explicit_bzero(*state, sizeof(struct body));
    free(*state);
    *state = NULL;
}

static void be_silent(void *arg, const char *format, va_list list)
{
    (void)arg;
    (void)format;
    (void)list;
}

enum hapax_error hapax__site_open(struct hapax__site **out, int fd,
                                  const struct hapax__site_pages *pages, char text[HAPAX_TEXT_MAX])
{
    struct hapax__site *site = calloc(1, sizeof(*site));

    *out = NULL;
    if (site) {
        site->pages = pages;
        site->daemon =
            MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
                                 MHD_USE_POLL | MHD_USE_ERROR_LOG,
                             0, NULL, NULL, answer, site, MHD_OPTION_EXTERNAL_LOGGER, be_silent,
                             NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                             CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                             (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
                             MHD_OPTION_NOTIFY_COMPLETED, end_request, NULL, MHD_OPTION_END);
    }
    if (!site || !site->daemon) {
        free(site);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "no memory, thread or descriptor is left");
    }
    *out = site;
    return HAPAX_ERR_NONE;
}

void hapax__site_close(struct hapax__site *site)
{
    if (!site)
        return;
    MHD_stop_daemon(site->daemon);
    free(site);
}
