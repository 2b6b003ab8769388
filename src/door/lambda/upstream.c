/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls to the Runtime API over connections that are kept. A kept connection may be gone when it is
 * used again, most often after a freeze. If no byte of an answer came, the call is made once more
 * over a new connection. That is safe: the Runtime API takes a response once, and refuses a second.
 */
#include "upstream.h"

#include "base/fail.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDLE_MAX 64u
#define HOST_MAX 255u

struct hapax__upstream {
    char host[HOST_MAX + 8]; /* the value of Host */
    struct addrinfo *at;
    int stop_fd;
    pthread_mutex_t lock;
    struct hapax__wire *idle[IDLE_MAX];
    size_t idle_count;
};

/* ---- opening and closing ---------------------------------------------------------------- */

static bool split(char host[HOST_MAX + 1], const char **port, const char *address)
{
    const char *colon = strrchr(address, ':');
    size_t len = colon ? (size_t)(colon - address) : 0;

    if (len >= 2 && address[0] == '[' && address[len - 1] == ']') {
        address++;
        len -= 2;
    }
    if (len == 0 || len > HOST_MAX || colon[1] == '\0' ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5)
        return false;
    memcpy(host, address, len);
    host[len] = '\0';
    *port = colon + 1;
    return true;
}

enum hapax_error hapax__upstream_open(struct hapax__upstream **out, const char *address,
                                      int stop_fd, char text[HAPAX_TEXT_MAX])
{
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct hapax__upstream *upstream;
    char host[HOST_MAX + 1];
    const char *port;
    int error;

    *out = NULL;
    if (!split(host, &port, address))
        return hapax__fail(text, HAPAX_ERR_INVALID, "runtime_api \"%.100s\" is not HOST:PORT",
                           address);
    upstream = calloc(1, sizeof(*upstream));
    if (!upstream)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    error = getaddrinfo(host, port, &want, &upstream->at);
    if (error != 0) {
        free(upstream);
        return hapax__fail(text, HAPAX_ERR_INVALID, "runtime_api \"%.100s\": %s", address,
                           gai_strerror(error));
    }
    (void)snprintf(upstream->host, sizeof(upstream->host), "%s", address);
    upstream->stop_fd = stop_fd;
    pthread_mutex_init(&upstream->lock, NULL);
    *out = upstream;
    return HAPAX_ERR_NONE;
}

static void wire_free(struct hapax__wire *wire)
{
    hapax__wire_close(wire);
    free(wire);
}

void hapax__upstream_close(struct hapax__upstream *upstream)
{
    if (!upstream)
        return;
    for (size_t i = 0; i < upstream->idle_count; i++)
        wire_free(upstream->idle[i]);
    freeaddrinfo(upstream->at);
    pthread_mutex_destroy(&upstream->lock);
    free(upstream);
}

/* ---- connections ------------------------------------------------------------------------ */

static struct hapax__wire *take_idle(struct hapax__upstream *upstream)
{
    struct hapax__wire *wire;

    do {
        pthread_mutex_lock(&upstream->lock);
        wire = upstream->idle_count > 0 ? upstream->idle[--upstream->idle_count] : NULL;
        pthread_mutex_unlock(&upstream->lock);
        if (!wire || hapax__wire_is_idle(wire))
            return wire;
        wire_free(wire);
    } while (true);
}

static struct hapax__wire *connect_new(const struct hapax__upstream *upstream)
{
    struct hapax__wire *wire;
    int fd = -1, error = ECONNREFUSED;

    for (const struct addrinfo *at = upstream->at; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, at->ai_protocol);
        if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
            error = errno;
            close(fd);
            fd = -1;
        }
    }
    errno = error;
    if (fd < 0)
        return NULL;
    wire = malloc(sizeof(*wire));
    if (wire && hapax__wire_open(wire, fd))
        return wire;
    if (!wire)
        close(fd);
    free(wire);
    errno = ENOMEM;
    return NULL;
}

struct hapax__wire *hapax__upstream_take(struct hapax__upstream *upstream, bool fresh, bool *used)
{
    struct hapax__wire *wire = fresh ? NULL : take_idle(upstream);

    *used = wire != NULL;
    return wire ? wire : connect_new(upstream);
}

void hapax__upstream_give(struct hapax__upstream *upstream, struct hapax__wire *wire, bool keep)
{
    if (keep) {
        pthread_mutex_lock(&upstream->lock);
        keep = upstream->idle_count < IDLE_MAX;
        if (keep)
            upstream->idle[upstream->idle_count++] = wire;
        pthread_mutex_unlock(&upstream->lock);
    }
    if (!keep)
        wire_free(wire);
}

/* ---- calls ----------------------------------------------------------------------------- */

void hapax__upstream_begin(FILE *out, const struct hapax__upstream *upstream,
                           struct hapax_span method, struct hapax_span target)
{
    (void)fwrite(method.ptr, 1, method.len, out);
    (void)fputc(' ', out);
    (void)fwrite(target.ptr, 1, target.len, out);
    (void)fprintf(out, " HTTP/1.1\r\nHost: %s\r\n", upstream->host);
}

void hapax__got_release(struct hapax__got *got)
{
    hapax__head_release(&got->head);
    free(got->body);
    got->body = NULL;
    got->len = 0;
}

/* Asks over one connection. *again: the connection was gone, and no byte of an answer came. */
static bool ask_over(struct hapax__got *got, struct hapax__wire *wire, struct hapax_span head,
                     struct hapax_span body, bool *again)
{
    struct hapax_span parts[2] = {head, body};
    bool sent = hapax__wire_send(wire, parts, 2);
    enum hapax__wire_end end;

    *again = false;
    end = hapax__wire_response(wire, &got->head); /* it may have been refused half-way */
    if (end != HAPAX__WIRE_GOOD) {
        *again = end == HAPAX__WIRE_OVER;
        if (end == HAPAX__WIRE_OVER)
            errno = ECONNRESET;
        return false;
    }
    if (!sent)
        got->head.keep_alive = false;
    if (head.len > 5 && memcmp(head.ptr, "HEAD ", 5) == 0)
        wire->framing = HAPAX__BODY_OVER;
    if (hapax__wire_body(wire, &got->body, &got->len, HAPAX__BODY_MAX))
        return true;
    hapax__head_release(&got->head);
    return false;
}

static bool make_head(char **text, size_t *len, const struct hapax__upstream *upstream,
                      struct hapax_span method, struct hapax_span target, struct hapax_span lines,
                      size_t body_len)
{
    FILE *out = open_memstream(text, len);

    if (!out)
        return false;
    hapax__upstream_begin(out, upstream, method, target);
    if (lines.len > 0)
        (void)fwrite(lines.ptr, 1, lines.len, out);
    if (body_len > 0 || method.len != 3)
        (void)fprintf(out, "Content-Length: %zu\r\n", body_len);
    (void)fputs("\r\n", out);
    return fclose(out) == 0;
}

/* A descriptor whose events, of poll(), end a question. */
struct stop {
    int fd;
    short events;
};

static bool ask(struct hapax__got *got, struct hapax__upstream *upstream, struct hapax_span head,
                struct hapax_span body, const struct stop *stop)
{
    bool again = true, good = false, used = false;

    for (int try = 0; try < 2 && !good && again; try++) {
        struct hapax__wire *wire = hapax__upstream_take(upstream, try > 0, &used);
        int error;

        if (!wire)
            return false;
        wire->stop_fd = stop->fd;
        wire->stop_events = stop->events;
        good = ask_over(got, wire, head, body, &again);
        error = errno;
        again = again && used;
        wire->stop_fd = -1;
        hapax__upstream_give(upstream, wire, good && got->head.keep_alive);
        errno = error;
    }
    return good;
}

static bool ask_stopped_by(struct hapax__got *got, struct hapax__upstream *upstream,
                           struct hapax_span method, struct hapax_span target,
                           struct hapax_span lines, struct hapax_span body, struct stop stop)
{
    char *head = NULL;
    size_t len = 0;
    bool good;
    int error;

    memset(got, 0, sizeof(*got));
    if (!make_head(&head, &len, upstream, method, target, lines, body.len)) {
        free(head);
        errno = ENOMEM;
        return false;
    }
    good = ask(got, upstream, (struct hapax_span){(uint8_t *)head, len}, body, &stop);
    error = errno;
    free(head);
    errno = error;
    return good;
}

bool hapax__upstream_ask(struct hapax__got *got, struct hapax__upstream *upstream,
                         struct hapax_span method, struct hapax_span target,
                         struct hapax_span lines, struct hapax_span body)
{
    return ask_stopped_by(got, upstream, method, target, lines, body, (struct stop){.fd = -1});
}

bool hapax__upstream_next(struct hapax__got *got, struct hapax__upstream *upstream, int for_fd)
{
    static const struct hapax_span none = {NULL, 0};
    struct stop stop = {upstream->stop_fd, POLLIN};

    if (for_fd >= 0)
        stop = (struct stop){for_fd, POLLRDHUP};
    if (!ask_stopped_by(got, upstream, hapax_str("GET"),
                        hapax_str(HAPAX__RUNTIME_PATH "invocation/next"), none, none, stop))
        return false;
    if (got->head.status != 200 ||
        hapax__head_line(&got->head, "Lambda-Runtime-Aws-Request-Id").len > 0)
        return true;
    hapax__got_release(got);
    errno = EPROTO;
    return false;
}

bool hapax__upstream_post(struct hapax__got *got, struct hapax__upstream *upstream,
                          struct hapax_span id, const struct hapax__lambda_reply *reply)
{
    char target[512], lines[512];

    if (id.len > 256) {
        errno = EMSGSIZE;
        return false;
    }
    if (id.len > 0)
        (void)snprintf(target, sizeof(target), HAPAX__RUNTIME_PATH "invocation/%.*s/%s",
                       (int)id.len, (const char *)id.ptr, reply->error ? "error" : "response");
    else
        (void)snprintf(target, sizeof(target), HAPAX__RUNTIME_PATH "init/error");
    (void)snprintf(lines, sizeof(lines), "Content-Type: application/json\r\n%s%s%s",
                   reply->error ? "Lambda-Runtime-Function-Error-Type: " : "",
                   reply->error ? reply->error_type : "", reply->error ? "\r\n" : "");
    return hapax__upstream_ask(got, upstream, hapax_str("POST"), hapax_str(target),
                               hapax_str(lines),
                               (struct hapax_span){(uint8_t *)reply->text, reply->len});
}
