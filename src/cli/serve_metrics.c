/* SPDX-License-Identifier: Apache-2.0
 *
 * The page of hapax serve: one for all that it runs. The workers' counts are in nginx's memory, so
 * each scrape asks nginx for its own page, over a socket in the folder. A gate that does not answer
 * leaves the rest of the page, and hapax_gate_up says so.
 */
#include "serve.h"

#include "base/span.h"
#include "lane/census.h"
#include "store/keeper/keeper.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define GATE_MAX     ((size_t)4 << 20) /* bytes of the gate's page */
#define GATE_WAIT_S  2
#define GATE_REQUEST "GET /metrics HTTP/1.0\r\n\r\n"

struct serve_metrics {
    char socket[PATH_MAX];
    bool keeper;
    struct hapax__census *census; /* NULL: none */
    struct hapax__pages *pages;
    uint16_t port;
};

/* Connects to the gate's socket; -1: it is not there. */
static int dial(const char *path)
{
    const struct timeval patience = {.tv_sec = GATE_WAIT_S};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof(at.sun_path))
        return -1;
    (void)snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (connect(fd, (const struct sockaddr *)&at, sizeof(at)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Reads to the end. Returns how many bytes; 0: the answer did not end in time, or is too long. */
static size_t read_all(int fd, char *bytes)
{
    size_t len = 0;
    ssize_t got;

    while (len < GATE_MAX && (got = recv(fd, bytes + len, GATE_MAX - len, 0)) > 0)
        len += (size_t)got;
    return len < GATE_MAX && got == 0 ? len : 0;
}

/* The body of a whole answer of 200; NULL: it is none. */
static const char *body_of(const char *bytes, size_t len, size_t *body_len)
{
    static const char name[] = "\r\nContent-Length: ";
    const char *body = memmem(bytes, len, "\r\n\r\n", 4), *length;

    if (!body || memcmp(bytes + 8, " 200", 4) != 0)
        return NULL;
    length = memmem(bytes, (size_t)(body + 2 - bytes), name, sizeof(name) - 1);
    body += 4;
    *body_len = len - (size_t)(body - bytes);
    return length && strtoul(length + sizeof(name) - 1, NULL, 10) == *body_len ? body : NULL;
}

/* Writes the gate's page to out. False: it did not come. */
static bool put_gate(FILE *out, const char *path)
{
    static const char request[] = GATE_REQUEST;
    char *bytes = malloc(GATE_MAX);
    const char *body = NULL;
    size_t len = 0, body_len;
    int fd = bytes ? dial(path) : -1;

    if (fd >= 0 && send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) == sizeof(request) - 1)
        len = read_all(fd, bytes);
    if (fd >= 0)
        close(fd);
    if (len > 12)
        body = body_of(bytes, len, &body_len);
    if (body)
        (void)fwrite(body, 1, body_len, out);
    free(bytes);
    return body != NULL;
}

static void put_metrics(FILE *out, const void *arg)
{
    const struct serve_metrics *metrics = arg;
    const struct hapax__page_number up = {"hapax_gate_up", put_gate(out, metrics->socket),
                                          "Whether nginx answered with the gate's counts."};

    hapax__page_numbers(out, "gauge", &up, 1);
    if (metrics->keeper)
        hapax__keeper_page(out);
    hapax__census_page(out, metrics->census);
}

static const char *what_is_away(const void *arg)
{
    const struct serve_metrics *metrics = arg;
    int fd = dial(metrics->socket);

    if (fd < 0)
        return "nginx is away\n";
    close(fd);
    return NULL;
}

enum cli_exit serve_metrics_open(struct serve_metrics **out, const struct serve_conf *conf,
                                 bool keeper)
{
    const struct cli_args *args = &conf->args->args;
    const struct hapax__page_place place = cli_metrics_place(&conf->args->metrics);
    struct serve_metrics *metrics;
    struct hapax__page_source from = {put_metrics, what_is_away, NULL};
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    *out = NULL;
    if (!place.address)
        return CLI_DONE;
    metrics = calloc(1, sizeof(*metrics));
    if (!metrics)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    (void)snprintf(metrics->socket, sizeof(metrics->socket), "%s/metrics.sock", conf->folder);
    metrics->keeper = keeper;
    from.arg = metrics;
    /* A keeper's socket tells nothing of the disk, so a store that is here is asked itself. */
    metrics->census = cli_census_open(
        keeper && !hapax__text_begins(args->store, "memory:") ? args->store : conf->store);
    error = hapax__pages_open(&metrics->pages, &place, &from, &metrics->port, text);
    if (error == HAPAX_ERR_NONE) {
        *out = metrics;
        return CLI_DONE;
    }
    hapax__census_close(metrics->census);
    free(metrics);
    return cli_metrics_failed(args, error, text);
}

uint16_t serve_metrics_port(const struct serve_metrics *metrics)
{
    return metrics->port;
}

void serve_metrics_close(struct serve_metrics *metrics)
{
    if (!metrics)
        return;
    hapax__pages_close(metrics->pages);
    hapax__census_close(metrics->census);
    free(metrics);
}
