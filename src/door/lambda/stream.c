/* SPDX-License-Identifier: Apache-2.0
 *
 * Streamed responses: passed on piece by piece, with their trailers. The operation is completed,
 * without a body, before the first byte leaves. So no retry can contradict what a client has seen.
 */
#include "base/base64.h"
#include "connection.h"
#include "json/raw.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PRELUDE_MAX (1u << 20)
static const uint8_t prelude_end[8] = {0};

/* A streamed HTTP response begins with a prelude: JSON, and eight zeros. */
struct prelude {
    uint8_t *bytes; /* and what has come behind them */
    size_t len;
    size_t json_len; /* 0: there is none */
};

static bool read_prelude(struct hapax__runtime_connection *c, struct prelude *prelude)
{
    static const char type[] = "application/vnd.awslambda.http-integration-response";
    struct hapax_span piece, its = hapax__head_line(&c->head, "Content-Type");

    memset(prelude, 0, sizeof(*prelude));
    if (its.len < strlen(type) || strncasecmp((const char *)its.ptr, type, strlen(type)) != 0)
        return true;
    while (prelude->len < PRELUDE_MAX) {
        const uint8_t *end;
        uint8_t *more;

        if (!hapax__wire_piece(&c->wire, &piece))
            return false;
        if (piece.len == 0)
            return true;
        more = realloc(prelude->bytes, prelude->len + piece.len);
        if (!more)
            return false;
        prelude->bytes = more;
        memcpy(more + prelude->len, piece.ptr, piece.len);
        prelude->len += piece.len;
        end = memmem(prelude->bytes, prelude->len, prelude_end, sizeof(prelude_end));
        if (end) {
            prelude->json_len = (size_t)(end - prelude->bytes);
            return true;
        }
    }
    return true;
}

static bool send_chunk(struct hapax__wire *wire, struct hapax_span a, struct hapax_span b)
{
    char size[32];
    struct hapax_span parts[4] = {{NULL, 0}, a, b, hapax_str("\r\n")};

    if (a.len + b.len == 0)
        return true;
    (void)snprintf(size, sizeof(size), "%zx\r\n", a.len + b.len);
    parts[0] = hapax_str(size);
    return hapax__wire_send(wire, parts, 4);
}

static bool send_stream_head(struct hapax__runtime_connection *c, struct hapax__wire *to)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct hapax_span part;
    bool good;

    if (!out)
        return false;
    hapax__upstream_begin(out, c->upstream, c->head.method, c->head.target);
    hapax__put_lines(out, &c->head);
    (void)fputs("Transfer-Encoding: chunked\r\n\r\n", out);
    good = fclose(out) == 0;
    part = (struct hapax_span){(uint8_t *)text, len};
    good = good && hapax__wire_send(to, &part, 1);
    free(text);
    return good;
}

/* Passes the stream on piece by piece. *whole: the runtime sent all of it. False: a connection
 * broke. */
static bool stream(struct hapax__runtime_connection *c, struct hapax__wire *to, bool *whole)
{
    struct hapax_span piece, parts[3] = {hapax_str("0\r\n"), {NULL, 0}, hapax_str("\r\n")};
    bool sent = true;

    for (*whole = false; !*whole;) {
        if (!hapax__wire_piece(&c->wire, &piece))
            return false;
        *whole = piece.len == 0 && c->wire.framing == HAPAX__BODY_OVER;
        sent = sent && send_chunk(to, piece, (struct hapax_span){NULL, 0});
    }
    parts[1] = (struct hapax_span){(uint8_t *)c->wire.trailers, c->wire.trailers_len};
    return sent && hapax__wire_send(to, parts, 3);
}

/* The Runtime API may answer before the stream is over, to refuse it. */
static bool pass_stream(struct hapax__runtime_connection *c, const struct prelude *prelude,
                        const struct hapax__lambda_reply *reply)
{
    struct hapax_span head = {(uint8_t *)reply->text, reply->len};
    struct hapax_span rest = {NULL, 0};
    struct hapax__got got = {.len = 0};
    bool used, whole = false, good;
    struct hapax__wire *to = hapax__upstream_take(c->upstream, true, &used);

    if (!to)
        return hapax__gone(c);
    if (prelude->json_len > 0)
        rest = (struct hapax_span){prelude->bytes + prelude->json_len,
                                   prelude->len - prelude->json_len};
    else
        head = (struct hapax_span){prelude->bytes, prelude->len};
    (void)(send_stream_head(c, to) && send_chunk(to, head, rest));
    (void)stream(c, to, &whole);
    good = whole && hapax__wire_response(to, &got.head) == HAPAX__WIRE_GOOD &&
           hapax__wire_body(to, &got.body, &got.len, HAPAX__BODY_MAX);
    hapax__upstream_give(c->upstream, to, good && got.head.keep_alive);
    if (good)
        return hapax__relay(c, &got);
    hapax__got_release(&got);
    return whole ? hapax__gone(c) : false;
}

bool hapax__stream_failed(const struct hapax__runtime_connection *c, struct hapax_span *type,
                          struct hapax_span *body)
{
    struct hapax__head trailers;
    struct hapax_span text;

    hapax__lines_read(&trailers.lines,
                      (struct hapax_span){(uint8_t *)c->wire.trailers, c->wire.trailers_len},
                      false);
    *type = hapax__head_line(&trailers, "Lambda-Runtime-Function-Error-Type");
    if (type->len == 0)
        return false;
    text = hapax__head_line(&trailers, "Lambda-Runtime-Function-Error-Body");
    if (!hapax__base64_decode((uint8_t *)(uintptr_t)text.ptr, &text.len, text))
        text.len = 0;
    *body = text;
    return true;
}

/* Reads a stream that is not passed on to its end, so that the connection can be kept. */
static bool drain(struct hapax__wire *wire)
{
    struct hapax_span piece;

    while (wire->framing != HAPAX__BODY_OVER)
        if (!hapax__wire_piece(wire, &piece))
            return false;
    return true;
}

bool hapax__serve_stream(struct hapax__runtime_connection *c, struct hapax__invocation *invocation,
                         bool *over)
{
    struct hapax__lambda_reply reply = {.text = NULL};
    struct hapax__got got;
    struct prelude prelude = {.bytes = NULL};
    bool good, own = true;

    *over = hapax__let_send(c) && read_prelude(c, &prelude);
    if (!*over) {
        free(prelude.bytes);
        return false;
    }
    good = hapax__invocation_end_stream(
        invocation, (struct hapax_span){prelude.bytes, prelude.json_len}, &own, &reply);
    if (good && own) {
        good = pass_stream(c, &prelude, &reply);
    } else if (good) { /* also the answer to another post, until it is posted */
        invocation->reply = reply;
        reply = (struct hapax__lambda_reply){.text = NULL};
        invocation->ended = true;
        (void)drain(&c->wire); /* it is posted, too, where the stream broke off */
        *over = hapax__post_end(&got, c, invocation, &invocation->reply);
        good = *over ? hapax__relay(c, &got) : hapax__gone(c);
    }
    free(prelude.bytes);
    hapax__reply_release(&reply);
    if (*over)
        hapax__invocation_free(invocation);
    return good;
}
