/* SPDX-License-Identifier: Apache-2.0
 *
 * A runtime's connection: what is answered, and what passes through as it is. Header lines about a
 * connection (a length, whether it is kept) are made anew on each side. All other lines are passed
 * on as they came.
 */
#include "connection.h"

#include "base/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- what passes through --------------------------------------------------------------------- */

static bool is_hop(struct hapax_span name)
{
    static const char *const hops[] = {
        "Connection", "Content-Length",    "Expect", "Host", "Keep-Alive",
        "TE",         "Transfer-Encoding", "Upgrade"};
    struct hapax__line line = {.name = name};

    for (size_t i = 0; i < sizeof(hops) / sizeof(hops[0]); i++)
        if (hapax__line_is(&line, hapax_str(hops[i])))
            return true;
    return false;
}

void hapax__put_lines(FILE *out, const struct hapax__head *head)
{
    for (size_t i = 0; i < head->lines.n; i++) {
        const struct hapax__line *line = &head->lines.at[i];

        if (is_hop(line->name))
            continue;
        (void)fwrite(line->name.ptr, 1, line->name.len, out);
        (void)fputs(": ", out);
        (void)fwrite(line->value.ptr, 1, line->value.len, out);
        (void)fputs("\r\n", out);
    }
}

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 202:
        return "Accepted";
    case 400:
        return "Bad Request";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 413:
        return "Payload Too Large";
    case 500:
        return "Internal Server Error";
    case 502:
        return "Bad Gateway";
    default:
        return status < 300 ? "OK" : "Error";
    }
}

bool hapax__respond(struct hapax__runtime_connection *c, int status,
                    const struct hapax__head *lines, struct hapax_span body)
{
    struct hapax_span parts[2] = {{NULL, 0}, body};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    bool good;

    if (!out)
        return false;
    (void)fprintf(out, "HTTP/1.1 %d %s\r\n", status, reason(status));
    if (lines)
        hapax__put_lines(out, lines);
    (void)fprintf(out, "Content-Length: %zu\r\n%s\r\n", body.len,
                  c->head.keep_alive ? "" : "Connection: close\r\n");
    good = fclose(out) == 0;
    parts[0] = (struct hapax_span){(uint8_t *)text, len};
    if (hapax__same(c->head.method, hapax_str("HEAD")))
        parts[1].len = 0;
    good = good && hapax__wire_send(&c->wire, parts, 2);
    free(text);
    return good;
}

bool hapax__relay(struct hapax__runtime_connection *c, struct hapax__got *got)
{
    bool good =
        hapax__respond(c, got->head.status, &got->head, (struct hapax_span){got->body, got->len});

    hapax__got_release(got);
    return good;
}

bool hapax__respond_error(struct hapax__runtime_connection *c, int status, const char *type,
                          const char *message)
{
    char body[256];

    (void)snprintf(body, sizeof(body), "{\"errorType\":\"Hapax.%s\",\"errorMessage\":\"%s\"}", type,
                   message);
    return hapax__respond(c, status, NULL, hapax_str(body));
}

bool hapax__gone(struct hapax__runtime_connection *c)
{
    hapax__say(c->lambda, "the Runtime API cannot be reached", errno);
    return false;
}

bool hapax__let_send(struct hapax__runtime_connection *c)
{
    struct hapax_span go_on = hapax_str("HTTP/1.1 100 Continue\r\n\r\n");

    return !c->head.expects || c->wire.framing == HAPAX__BODY_OVER ||
           hapax__wire_send(&c->wire, &go_on, 1);
}

bool hapax__read_body(struct hapax__runtime_connection *c, uint8_t **body, size_t *len)
{
    *body = NULL;
    return hapax__let_send(c) && hapax__wire_body(&c->wire, body, len, HAPAX__BODY_MAX);
}

bool hapax__ask_as(struct hapax__got *got, struct hapax__runtime_connection *c,
                   struct hapax_span target, struct hapax_span body)
{
    char *lines = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&lines, &len);
    bool good = out != NULL;
    int error = ENOMEM;

    if (out) {
        hapax__put_lines(out, &c->head);
        good = fclose(out) == 0;
    }
    if (good) {
        good = hapax__upstream_ask(got, c->upstream, c->head.method, target,
                                   (struct hapax_span){(uint8_t *)lines, len}, body);
        error = errno;
    }
    free(lines);
    errno = error;
    return good;
}

bool hapax__pass(struct hapax__runtime_connection *c, struct hapax_span body)
{
    struct hapax__got got;

    return hapax__ask_as(&got, c, c->head.target, body) ? hapax__relay(c, &got) : hapax__gone(c);
}

bool hapax__post_end(struct hapax__got *got, struct hapax__runtime_connection *c,
                     const struct hapax__invocation *invocation,
                     const struct hapax__lambda_reply *reply)
{
    struct hapax_span text = {(uint8_t *)reply->text, reply->len};

    return reply->own ? hapax__ask_as(got, c, c->head.target, text)
                      : hapax__upstream_post(got, c->upstream, invocation->id, reply);
}
