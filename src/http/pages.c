/* SPDX-License-Identifier: Apache-2.0
 *
 * Two HTTP pages of a long-running command: its counters for Prometheus, and its health for a
 * supervisor that restarts it. libmicrohttpd serves them in a thread of its own, which only reads.
 * So a scrape never waits for the loop, and is answered while broker and store are away.
 */
#include "pages.h"
#include "traces.h"

#include "base/fail.h"
#include "listen.h"

#include <assert.h>
#include <microhttpd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECTIONS      8u /* another one waits until one of them ends */
#define CONNECTION_BYTES (16u << 10)
#define IDLE_S           10u

struct hapax__pages {
    struct hapax__page_source from;
    struct MHD_Daemon *daemon;
};

/* ---- pages ------------------------------------------------------------------------------ */

static enum MHD_Result send_page(struct MHD_Connection *connection, unsigned status,
                                 const char *type, const void *body, size_t len)
{
    /* libmicrohttpd copies the text, although its parameter has no const. */
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result result;

    if (!response)
        return MHD_NO;
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_line(struct MHD_Connection *connection, unsigned status,
                                 const char *line)
{
    return send_page(connection, status, "text/plain; charset=utf-8", line, strlen(line));
}

static enum MHD_Result send_metrics(struct MHD_Connection *connection,
                                    const struct hapax__page_source *from)
{
    enum MHD_Result result = MHD_NO;
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    if (!out)
        return MHD_NO;
    from->metrics(out, from->arg);
    hapax__traces_metrics(out);
    if (fclose(out) == 0)
        result = send_page(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                           text, len);
    free(text);
    return result;
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_len, void **state)
{
    struct hapax__pages *pages = arg;
    const char *away;

    (void)version;
    (void)upload;
    if (!*state) { /* only the head has come: a body may follow */
        *state = pages;
        return MHD_YES;
    }
    if (*upload_len > 0) {
        *upload_len = 0;
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET it\n");
    if (strcmp(url, "/metrics") == 0)
        return send_metrics(connection, &pages->from);
    if (strcmp(url, "/health") != 0)
        return send_line(connection, MHD_HTTP_NOT_FOUND, "there are /metrics and /health\n");
    away = pages->from.away(pages->from.arg);
    return send_line(connection, away ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
                     away ? away : "ok\n");
}

/* ---- opening and closing ---------------------------------------------------------------- */

static void be_silent(void *arg, const char *format, va_list list)
{
    (void)arg;
    (void)format;
    (void)list;
}

enum hapax_error hapax__pages_open(struct hapax__pages **out, const struct hapax__page_place *place,
                                   const struct hapax__page_source *from, uint16_t *port,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__pages *pages;
    enum hapax_error error;
    int fd;

    *out = NULL;
    error =
        hapax__http_listen(&fd, port,
                           &(struct hapax__http_place){place->address, "metrics", place->anywhere,
                                                       "--metrics-public allows it"},
                           text);
    if (error != HAPAX_ERR_NONE)
        return error;
    pages = calloc(1, sizeof(*pages));
    if (pages) {
        pages->from = *from;
        pages->daemon = MHD_start_daemon(
            MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ERROR_LOG, 0, NULL, NULL,
            answer, pages, MHD_OPTION_EXTERNAL_LOGGER, be_silent, NULL, MHD_OPTION_LISTEN_SOCKET,
            fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
            (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_END);
    }
    if (!pages || !pages->daemon) {
        free(pages);
        close(fd);
        return hapax__fail(text, HAPAX_ERR_NOMEM,
                           "metrics: no memory, thread or descriptor is left");
    }
    *out = pages;
    return HAPAX_ERR_NONE;
}

void hapax__pages_close(struct hapax__pages *pages)
{
    if (!pages)
        return;
    MHD_stop_daemon(pages->daemon);
    free(pages);
}
