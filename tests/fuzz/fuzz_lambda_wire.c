/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 as the Lambda door reads it. The input is:
 *   a letter, '@' with bits: 1 responses, 2 bodies piece by piece, 4 the connection is reset at its
 *   end;
 *   a byte that says where the text is cut in two;
 *   a byte that says how long the part between the first two '~' becomes by repetition (UNIT bytes
 *   for each, so that limits are reached);
 *   the text.
 * Claims: what is read is the same whether its bytes come at once, in two pieces or in small ones.
 * Nothing grows beyond its limit. A broken text gives a reason. What is reported of a head lies in
 * the head.
 *
 * recv() is this file's, since a socket chooses for itself in how many pieces bytes come. So is the
 * limit of a head: a text of 256 KiB that is read three times takes 20 ms, and 4 KiB meet the same
 * branches.
 */
#include "fuzz.h"

#include "door/lambda/wire.h"

#undef HAPAX__HEAD_MAX
#define HAPAX__HEAD_MAX (4u << 10)
#include "door/lambda/wire.c"

#define BODY_MAX  1024u
#define UNIT      64u
#define BYTES_MAX 256u /* of a text that is read byte by byte */

enum { RESPONSES = 1, PIECES = 2, RESET = 4 };

static struct {
    struct hapax_span text;
    size_t at, asked;
    size_t first, step; /* bytes of the first piece, and of each one after it */
    bool reset;
} peer;

ssize_t recv(int fd, void *bytes, size_t size, int flags)
{
    size_t n = peer.at < peer.first ? peer.first - peer.at : peer.step;

    assert(fd == -1 && flags == 0 && size > 0);
    peer.asked++;
    if (n > size)
        n = size;
    if (n > peer.text.len - peer.at)
        n = peer.text.len - peer.at;
    if (n == 0 && peer.reset) {
        errno = ECONNRESET;
        return -1;
    }
    memcpy(bytes, peer.text.ptr + peer.at, n);
    peer.at += n;
    return (ssize_t)n;
}

/* What is reported of a text. */
struct told {
    uint8_t *bytes;
    size_t len, size;
};

static void put_bytes(struct told *out, const void *bytes, size_t len)
{
    if (out->size - out->len < len) {
        out->size = 2 * out->size + len;
        out->bytes = realloc(out->bytes, out->size);
        assert(out->bytes);
    }
    if (len > 0)
        memcpy(out->bytes + out->len, bytes, len);
    out->len += len;
}

static void put_number(struct told *out, size_t number)
{
    put_bytes(out, &number, sizeof(number));
}

static void put(struct told *out, struct hapax_span span)
{
    put_number(out, span.len);
    put_bytes(out, span.ptr, span.len);
}

static void put_broken(struct told *out)
{
    assert(errno == EPROTO || errno == EMSGSIZE || (errno == ECONNRESET && peer.reset));
    put_number(out, (size_t)errno);
}

static void put_part(struct told *out, const struct hapax__head *head, struct hapax_span part)
{
    assert(part.len == 0 || (const char *)part.ptr >= head->memory);
    assert(part.len <= HAPAX__HEAD_MAX);
    for (size_t i = 0; i < part.len; i++)
        assert(part.ptr[i] != '\r' && part.ptr[i] != '\n');
    put(out, part);
}

static void put_head(struct told *out, const struct hapax__head *head, bool response)
{
    assert(head->lines.n < HAPAX__LINES_MAX);
    assert(!response || (head->status >= 200 && head->status <= 999));
    assert(response || (head->method.len > 0 && head->target.len > 0));
    put_number(out, (size_t)head->status);
    put_number(out, head->keep_alive * 4u + head->expects * 2u + head->chunked);
    put_part(out, head, head->method);
    put_part(out, head, head->target);
    for (size_t i = 0; i < head->lines.n; i++) {
        put_part(out, head, head->lines.at[i].name);
        put_part(out, head, head->lines.at[i].value);
    }
}

/* Pieces are joined, since no one promises where a piece ends. */
static bool put_pieces(struct told *out, struct hapax__wire *wire)
{
    struct hapax_span piece;

    do {
        errno = 0;
        if (!hapax__wire_piece(wire, &piece))
            return false;
        assert(piece.len <= HAPAX__HEAD_MAX);
        put_bytes(out, piece.ptr, piece.len);
    } while (piece.len > 0 || wire->framing != HAPAX__BODY_OVER);
    return true;
}

static bool put_body(struct told *out, struct hapax__wire *wire)
{
    uint8_t *body;
    size_t len;

    errno = 0;
    if (!hapax__wire_body(wire, &body, &len, BODY_MAX)) {
        assert(!body);
        return false;
    }
    assert(len <= BODY_MAX);
    put(out, (struct hapax_span){body, len});
    free(body);
    return true;
}

static bool put_message(struct told *out, struct hapax__wire *wire, uint8_t mode)
{
    bool response = (mode & RESPONSES) != 0, good;
    enum hapax__wire_end end;
    struct hapax__head head;

    errno = 0;
    end = response ? hapax__wire_response(wire, &head) : hapax__wire_request(wire, &head);
    if (end == HAPAX__WIRE_OVER)
        return false;
    if (end == HAPAX__WIRE_BROKEN) {
        put_broken(out);
        return false;
    }
    put_head(out, &head, response);
    hapax__head_release(&head);
    good = mode & PIECES ? put_pieces(out, wire) : put_body(out, wire);
    if (!good)
        put_broken(out);
    assert(wire->from <= wire->to && wire->to <= wire->size && wire->size <= HAPAX__HEAD_MAX);
    assert(wire->trailers_len <= HAPAX__HEAD_MAX);
    if (good && wire->trailers)
        put(out, (struct hapax_span){(uint8_t *)wire->trailers, wire->trailers_len});
    return good;
}

static struct told read_all(struct hapax_span text, size_t first, size_t step, uint8_t mode)
{
    struct hapax__wire wire;
    struct told told = {0};

    memset(&peer, 0, sizeof(peer));
    peer.text = text;
    peer.first = first;
    peer.step = step;
    peer.reset = (mode & RESET) != 0;
    assert(hapax__wire_open(&wire, -1));
    while (put_message(&told, &wire, mode))
        continue;
    hapax__wire_close(&wire);
    assert(peer.asked > 0);
    return told;
}

static void check_pieces(const struct told *told, struct hapax_span text, size_t first, size_t step,
                         uint8_t mode)
{
    struct told again = read_all(text, first, step, mode);

    assert(again.len == told->len);
    assert(told->len == 0 || memcmp(again.bytes, told->bytes, told->len) == 0);
    free(again.bytes);
}

/* The text, with the part between its first two marks repeated. */
static struct hapax_span stretch(struct hapax_span text, size_t least)
{
    const uint8_t *from = text.len > 0 ? memchr(text.ptr, '~', text.len) : NULL, *to;
    size_t before = from ? (size_t)(from - text.ptr) : text.len;
    size_t unit = 0, n = 1, rest = 0;
    uint8_t *bytes;

    to = from ? memchr(from + 1, '~', text.len - before - 1) : NULL;
    if (to) {
        unit = (size_t)(to - from) - 1;
        n = unit > 0 ? least / unit + 1 : 1;
        rest = text.len - before - unit - 2;
    } else {
        before = text.len;
    }
    bytes = malloc(before + unit * n + rest + 1);
    assert(bytes);
    if (before > 0)
        memcpy(bytes, text.ptr, before);
    for (size_t i = 0; i < n && unit > 0; i++)
        memcpy(bytes + before + i * unit, from + 1, unit);
    if (rest > 0)
        memcpy(bytes + before + unit * n, to + 1, rest);
    return (struct hapax_span){bytes, before + unit * n + rest};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax_span text;
    struct told told;
    size_t first;

    if (size < 3)
        return 0;
    text = stretch((struct hapax_span){data + 3, size - 3}, data[2] * UNIT);
    told = read_all(text, 0, text.len, data[0]);
    first = text.len * data[1] / 256;
    check_pieces(&told, text, first, text.len - first, data[0]);
    check_pieces(&told, text, 0, text.len <= BYTES_MAX ? 1 : 251, data[0]);
    free(told.bytes);
    free((void *)(uintptr_t)text.ptr);
    return 0;
}

/* ---- changes ------------------------------------------------------------------------- */

/* Puts a line behind one that is there. */
static size_t put_line(uint8_t *text, size_t size, size_t max, unsigned seed)
{
    static const char *const lines[] = {
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Connection: keep-alive\r\n",
        "Expect: 100-continue\r\n",
        "Content-Length: 05\r\n",
        "Transfer-Encoding: gzip\r\n",
        "a: b\r\n c\r\n",
        "\r\n",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "5;a=\"b\"\r\nhello\r\n",
        "HTTP/1.1 204 No Content\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "PUT /a HTTP/1.0\r\n",
    };
    const char *line = lines[seed / 16 % (sizeof(lines) / sizeof(lines[0]))];
    size_t len = strlen(line), at = seed / 512 % (size + 1);
    const uint8_t *end = memchr(text + at, '\n', size - at);

    if (size + len > max)
        return size;
    at = end ? (size_t)(end - text) + 1 : size;
    memmove(text + at + len, text + at, size - at);
    memcpy(text + at, line, len);
    return size + len;
}

/* Drops a line. */
static size_t drop_line(uint8_t *text, size_t size, unsigned seed)
{
    size_t from = seed / 16 % (size + 1), to;
    const uint8_t *end;

    while (from > 0 && text[from - 1] != '\n')
        from--;
    end = memchr(text + from, '\n', size - from);
    to = end ? (size_t)(end - text) + 1 : size;
    memmove(text + from, text + to, size - to);
    return size - (to - from);
}

/* Makes the first Content-Length that of the body. */
static void make_true(uint8_t *text, size_t size)
{
    static const char name[] = "Content-Length: ";
    const uint8_t *body = memmem(text, size, "\r\n\r\n", 4);
    uint8_t *at = memmem(text, size, name, strlen(name)), *end;
    char digits[24];
    size_t len;

    if (!body || !at || at > body)
        return;
    at += strlen(name);
    end = memchr(at, '\r', size - (size_t)(at - text));
    len = (size_t)snprintf(digits, sizeof(digits), "%zu", size - (size_t)(body - text) - 4);
    if (end && len <= (size_t)(end - at)) { /* with zeros before it: the text keeps its size */
        memset(at, '0', (size_t)(end - at));
        memcpy(end - len, digits, len);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    if (size < 3 || max < size)
        return LLVMFuzzerMutate(data, size, max);
    switch (seed % 8) {
    case 0:
    case 1:
        return 3 + put_line(data + 3, size - 3, max - 3, seed);
    case 2:
        return 3 + drop_line(data + 3, size - 3, seed);
    case 3:
        make_true(data + 3, size - 3);
        return size;
    default:
        return LLVMFuzzerMutate(data, size, max);
    }
}
