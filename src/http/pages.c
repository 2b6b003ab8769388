/* SPDX-License-Identifier: Apache-2.0
 *
 * Two HTTP pages of a long-running command: its counters for Prometheus, and its health for a
 * supervisor that restarts it. libmicrohttpd serves them in a thread of its own, which only reads.
 * So a scrape never waits for the loop, and is answered while broker and store are away.
 *
 * The socket is made here: libmicrohttpd cannot report why a socket failed, or which port it got.
 */
#include "pages.h"
#include "traces.h"

#include "base/fail.h"

#include <assert.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOST_MAX         255u
#define BACKLOG          16
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

/* ---- the socket ------------------------------------------------------------------------- */

/* Splits HOST:PORT or [IPV6]:PORT. */
static bool split(char host[HOST_MAX + 1], char port[6], const char *address)
{
    const char *colon = strrchr(address, ':');
    const char *from = address;
    size_t len = colon ? (size_t)(colon - address) : 0;

    if (len >= 2 && address[0] == '[' && address[len - 1] == ']') {
        from++;
        len -= 2;
    } else if (memchr(address, ':', len)) {
        return false;
    }
    if (len == 0 || len > HOST_MAX)
        return false;
    memcpy(host, from, len);
    host[len] = '\0';
    len = strspn(colon + 1, "0123456789");
    if (len == 0 || len > 5 || colon[1 + len] != '\0' || strtoul(colon + 1, NULL, 10) > 65535)
        return false;
    memcpy(port, colon + 1, len + 1);
    return true;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof(at);
    char port[6] = "0";

    if (getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        (void)getnameinfo((struct sockaddr *)&at, len, NULL, 0, port, sizeof(port), NI_NUMERICSERV);
    return (uint16_t)strtoul(port, NULL, 10);
}

/* Opens a listening socket at the first address that works. -1: none does, and errno says why. */
static int listen_at(const struct addrinfo *at)
{
    static const int on = 1;
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    int error;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

static bool is_own(const struct sockaddr *at)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)at;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)at;

    if (at->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    return at->sa_family == AF_INET && ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static enum hapax_error open_socket(int *fd, const struct hapax__page_place *place,
                                    char text[HAPAX_TEXT_MAX])
{
    const char *address = place->address;
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char host[HOST_MAX + 1];
    char port[6];
    int error;

    *fd = -1;
    if (!split(host, port, address))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "metrics: \"%.100s\" is not HOST:PORT, as 127.0.0.1:9464", address);
    error = getaddrinfo(host, port, &want, &found);
    if (error != 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "metrics: cannot find \"%.100s\": %s", host,
                           gai_strerror(error));
    if (!place->anywhere && !is_own(found->ai_addr)) {
        freeaddrinfo(found);
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "metrics: other machines can reach \"%.100s\", and nobody is asked for "
                           "a password there; --metrics-public allows it",
                           host);
    }
    *fd = listen_at(found);
    error = errno;
    freeaddrinfo(found);
    if (*fd >= 0)
        return HAPAX_ERR_NONE;
    return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "metrics: cannot listen on \"%.100s\": %s",
                       address, strerror(error));
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
    error = open_socket(&fd, place, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    *port = port_of(fd);
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
