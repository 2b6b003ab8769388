/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1, read and written.
 *
 * The invariants: a message whose end is in doubt is refused. Bytes that were read too early are
 * kept for the next read. Nothing grows beyond its limit.
 *
 * Rejected: libcurl and libmicrohttpd, which the project has. To pass a streamed response from one
 * to the other piece by piece, with trailers, takes two threads and a pipe between their callbacks.
 * And each new sandbox pays for the libraries that a cold start loads. Both peers are on this
 * machine, and one of them is AWS's.
 */
#include "wire.h"

#include "base/bytes.h"
#include "base/span.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define BUFFER_SIZE (HAPAX__HEAD_MAX / 4)
#define PARTS_MAX   8u

/* ---- opening and closing ---------------------------------------------------------------- */

bool hapax__wire_open(struct hapax__wire *wire, int fd)
{
    static const int on = 1;

    memset(wire, 0, sizeof(*wire));
    wire->fd = fd;
    wire->stop_fd = -1;
    wire->size = BUFFER_SIZE;
    wire->buffer = malloc(wire->size);
    if (!wire->buffer) {
        hapax__wire_close(wire);
        return false;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return true;
}

void hapax__wire_close(struct hapax__wire *wire)
{
    if (wire->fd >= 0)
        close(wire->fd);
    free(wire->buffer);
    free(wire->trailers);
    memset(wire, 0, sizeof(*wire));
    wire->fd = -1;
}

bool hapax__wire_is_idle(const struct hapax__wire *wire)
{
    uint8_t byte;
    ssize_t n = recv(wire->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && wire->from == wire->to;
}

bool hapax__wire_is_closed(const struct hapax__wire *wire)
{
    uint8_t byte;
    ssize_t n = recv(wire->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* ---- bytes ----------------------------------------------------------------------------- */

static bool broken(int error)
{
    errno = error;
    return false;
}

static enum hapax__wire_end broken_end(int error)
{
    errno = error;
    return HAPAX__WIRE_BROKEN;
}

static bool wait_readable(const struct hapax__wire *wire)
{
    struct pollfd fds[2] = {{.fd = wire->fd, .events = POLLIN},
                            {.fd = wire->stop_fd, .events = wire->stop_events}};

    if (wire->stop_fd < 0 || wire->framing != HAPAX__BODY_OVER || wire->from != wire->to)
        return true;
    while (poll(fds, 2, -1) < 0)
        if (errno != EINTR)
            return false;
    return fds[0].revents || broken(ECANCELED);
}

/* Reads more bytes into the buffer. *end: the peer has closed. */
static bool fill(struct hapax__wire *wire, bool *end)
{
    ssize_t n;

    *end = false;
    if (wire->from == wire->to)
        wire->from = wire->to = 0;
    if (wire->to == wire->size && wire->from > 0) {
        memmove(wire->buffer, wire->buffer + wire->from, wire->to - wire->from);
        wire->to -= wire->from;
        wire->from = 0;
    }
    if (wire->to == wire->size) {
        uint8_t *more;

        if (wire->size >= HAPAX__HEAD_MAX)
            return broken(EMSGSIZE);
        assert(wire->size > 0);
        more = realloc(wire->buffer, wire->size * 2);
        if (!more)
            return broken(ENOMEM);
        wire->buffer = more;
        wire->size *= 2;
    }
    if (!wait_readable(wire))
        return false;
    do
        n = recv(wire->fd, wire->buffer + wire->to, wire->size - wire->to, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return false;
    *end = n == 0;
    wire->to += (size_t)n;
    return true;
}

/* Reads until `mark` is in the buffer. *len: the bytes up to its end. */
static enum hapax__wire_end take_until(struct hapax__wire *wire, const char *mark, size_t *len)
{
    size_t seen = 0;
    bool end;

    for (;;) {
        size_t have = wire->to - wire->from;
        const uint8_t *at =
            memmem(wire->buffer + wire->from + seen, have - seen, mark, strlen(mark));

        if (at) {
            *len = (size_t)(at - (wire->buffer + wire->from)) + strlen(mark);
            return HAPAX__WIRE_GOOD;
        }
        seen = have >= strlen(mark) ? have - strlen(mark) + 1 : 0;
        if (!fill(wire, &end)) {
            if (have > 0 || (errno != ECONNRESET && errno != EPIPE))
                return HAPAX__WIRE_BROKEN;
            end = true;
        }
        if (end && have == 0)
            return HAPAX__WIRE_OVER;
        if (end)
            return broken_end(EPROTO);
    }
}

bool hapax__wire_send(struct hapax__wire *wire, const struct hapax_span *parts, size_t n)
{
    struct iovec iov[PARTS_MAX];
    struct msghdr message = {.msg_iov = iov};

    assert(n <= PARTS_MAX);
    for (size_t i = 0; i < n; i++)
        if (parts[i].len > 0)
            iov[message.msg_iovlen++] =
                (struct iovec){(void *)(uintptr_t)parts[i].ptr, parts[i].len};
    while (message.msg_iovlen > 0) {
        ssize_t sent = sendmsg(wire->fd, &message, MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return false;
        while (message.msg_iovlen > 0 && (size_t)sent >= message.msg_iov->iov_len) {
            sent -= (ssize_t)message.msg_iov->iov_len;
            message.msg_iov++;
            message.msg_iovlen--;
        }
        if (message.msg_iovlen > 0) {
            message.msg_iov->iov_base = (uint8_t *)message.msg_iov->iov_base + sent;
            message.msg_iov->iov_len -= (size_t)sent;
        }
    }
    return true;
}

/* ---- heads ----------------------------------------------------------------------------- */

void hapax__head_release(struct hapax__head *head)
{
    free(head->memory);
    head->memory = NULL;
}

struct hapax_span hapax__head_line(const struct hapax__head *head, const char *name)
{
    size_t i = hapax__lines_first(&head->lines, hapax_str(name));

    return i < head->lines.n ? head->lines.at[i].value : (struct hapax_span){NULL, 0};
}

/* Digits only: "+5" and " 5" are lengths to some readers and none to others. */
static bool read_length(uint64_t *out, struct hapax_span value, unsigned base)
{
    uint64_t n = 0;

    if (value.len == 0 || value.len > 15)
        return false;
    for (size_t i = 0; i < value.len; i++) {
        uint8_t c = value.ptr[i] | 0x20;
        unsigned digit = 99;

        if (value.ptr[i] >= '0' && value.ptr[i] <= '9')
            digit = (unsigned)value.ptr[i] - '0';
        else if (c >= 'a' && c <= 'f')
            digit = (unsigned)c - 'a' + 10;

        if (digit >= base)
            return false;
        n = n * base + digit;
    }
    *out = n;
    return true;
}

/* Finds how the body ends. A head that says so in two ways, or twice, is refused. */
static bool read_framing(struct hapax__wire *wire, struct hapax__head *head, bool request)
{
    size_t lengths = 0, codings = 0;
    bool good = true;

    wire->framing = request || head->status == 204 || head->status == 304 ? HAPAX__BODY_OVER
                                                                          : HAPAX__BODY_CLOSE;
    for (size_t i = 0; i < head->lines.n; i++) {
        const struct hapax__line *line = &head->lines.at[i];

        if (hapax__line_is(line, hapax_str("Content-Length"))) {
            lengths++;
            good = good && read_length(&wire->left, line->value, 10);
        } else if (hapax__line_is(line, hapax_str("Transfer-Encoding"))) {
            codings++;
            good = good && hapax__name_is(line->value, "chunked");
        }
    }
    if (!good || lengths + codings > 1)
        return broken(EPROTO);
    head->chunked = codings > 0;
    if (codings > 0)
        wire->framing = HAPAX__BODY_CHUNKED;
    else if (lengths > 0)
        wire->framing = wire->left > 0 ? HAPAX__BODY_LENGTH : HAPAX__BODY_OVER;
    wire->begun = false;
    if (codings > 0)
        wire->left = 0;
    free(wire->trailers);
    wire->trailers = NULL;
    wire->trailers_len = 0;
    return true;
}

static bool take_part(struct hapax_span *part, struct hapax_span *line, bool last)
{
    const uint8_t *space = line->len > 0 ? memchr(line->ptr, ' ', line->len) : NULL;

    if (!space && !last)
        return false;
    *part = *line;
    if (space) {
        part->len = (size_t)(space - line->ptr);
        line->ptr = space + 1;
        line->len -= part->len + 1;
    }
    return part->len > 0;
}

static bool read_first(struct hapax__head *head, struct hapax_span line, bool request)
{
    struct hapax_span version, status;
    uint64_t number;

    if (request) {
        if (!take_part(&head->method, &line, false) || !take_part(&head->target, &line, false))
            return false;
        version = line;
    } else {
        if (!take_part(&version, &line, false) || !take_part(&status, &line, true) ||
            !read_length(&number, status, 10) || number < 100 || number > 999)
            return false;
        head->status = (int)number;
    }
    head->keep_alive = hapax__name_is(version, "HTTP/1.1");
    return head->keep_alive || hapax__name_is(version, "HTTP/1.0");
}

/* Lines end with CRLF, and hold no other control character than a tab. */
static bool is_text(struct hapax_span head)
{
    for (size_t i = 0; i < head.len; i++) {
        uint8_t byte = head.ptr[i];

        if (byte == '\r' && i + 1 < head.len && head.ptr[i + 1] == '\n')
            i++;
        else if ((byte < ' ' && byte != '\t') || byte == 0x7f)
            return false;
    }
    return true;
}

static size_t count_lines(struct hapax_span lines)
{
    size_t n = 0;

    for (size_t i = 0; i < lines.len; i++)
        n += lines.ptr[i] == '\n';
    return n;
}

/* A malformed line is refused, not left out: another reader may see a length in it. */
static bool read_lines(struct hapax__head *head, struct hapax_span lines, bool request)
{
    const uint8_t *eol = memchr(lines.ptr, '\r', lines.len);
    struct hapax_span first = {lines.ptr, (size_t)(eol - lines.ptr)};
    struct hapax_span rest = {eol + 2, lines.len - first.len - 4};
    struct hapax_span connection;
    size_t n;

    if (!is_text(lines) || !read_first(head, first, request))
        return broken(EPROTO);
    n = count_lines(rest);
    if (n >= HAPAX__LINES_MAX)
        return broken(EMSGSIZE);
    hapax__lines_read(&head->lines, rest, false);
    if (head->lines.n != n)
        return broken(EPROTO);
    connection = hapax__head_line(head, "Connection");
    if (hapax__name_is(connection, "close"))
        head->keep_alive = false;
    else if (hapax__name_is(connection, "keep-alive"))
        head->keep_alive = true;
    head->expects = hapax__name_is(hapax__head_line(head, "Expect"), "100-continue");
    return true;
}

static enum hapax__wire_end read_head(struct hapax__wire *wire, struct hapax__head *head,
                                      bool request)
{
    enum hapax__wire_end end;
    size_t len;

    memset(head, 0, sizeof(*head));
    assert(wire->framing == HAPAX__BODY_OVER);
    end = take_until(wire, "\r\n\r\n", &len);
    if (end != HAPAX__WIRE_GOOD)
        return end;
    head->memory = malloc(len);
    if (!head->memory)
        return broken_end(ENOMEM);
    memcpy(head->memory, wire->buffer + wire->from, len);
    wire->from += len;
    if (read_lines(head, (struct hapax_span){(uint8_t *)head->memory, len}, request) &&
        read_framing(wire, head, request)) {
        if (wire->framing == HAPAX__BODY_CLOSE)
            head->keep_alive = false;
        return HAPAX__WIRE_GOOD;
    }
    hapax__head_release(head);
    return HAPAX__WIRE_BROKEN;
}

enum hapax__wire_end hapax__wire_request(struct hapax__wire *wire, struct hapax__head *head)
{
    return read_head(wire, head, true);
}

enum hapax__wire_end hapax__wire_response(struct hapax__wire *wire, struct hapax__head *head)
{
    for (;;) {
        enum hapax__wire_end end = read_head(wire, head, false);

        if (end != HAPAX__WIRE_GOOD || head->status >= 200)
            return end;
        wire->framing = HAPAX__BODY_OVER; /* 100 Continue and its like */
        hapax__head_release(head);
    }
}

/* ---- bodies ---------------------------------------------------------------------------- */

static bool take_line(struct hapax__wire *wire, struct hapax_span *line)
{
    size_t len;
    enum hapax__wire_end end = take_until(wire, "\r\n", &len);

    if (end == HAPAX__WIRE_OVER)
        return broken(EPROTO);
    if (end != HAPAX__WIRE_GOOD)
        return false;
    *line = (struct hapax_span){wire->buffer + wire->from, len - 2};
    wire->from += len;
    return true;
}

static bool take_trailers(struct hapax__wire *wire)
{
    struct hapax_span line;
    FILE *out = open_memstream(&wire->trailers, &wire->trailers_len);
    size_t sum = 0;
    bool good;

    if (!out)
        return broken(ENOMEM);
    while ((good = take_line(wire, &line)) && line.len > 0) {
        if (!is_text(line)) {
            good = broken(EPROTO);
            break;
        }
        sum += line.len + 2;
        if (sum > HAPAX__HEAD_MAX) {
            good = broken(EMSGSIZE);
            break;
        }
        (void)fwrite(line.ptr, 1, line.len, out);
        (void)fputs("\r\n", out);
    }
    return fclose(out) == 0 && good;
}

/* Reads the size of the next chunk; behind the last chunk, the trailers. */
static bool next_chunk(struct hapax__wire *wire)
{
    struct hapax_span line;
    const uint8_t *extension;

    if (wire->begun && (!take_line(wire, &line) || line.len > 0))
        return broken(EPROTO);
    wire->begun = true;
    if (!take_line(wire, &line))
        return false;
    if (!is_text(line)) /* a lone newline ends the extension for other readers */
        return broken(EPROTO);
    extension = line.len > 0 ? memchr(line.ptr, ';', line.len) : NULL;
    if (extension)
        line.len = (size_t)(extension - line.ptr);
    while (line.len > 0 && line.ptr[line.len - 1] == ' ')
        line.len--;
    if (!read_length(&wire->left, line, 16))
        return broken(EPROTO);
    if (wire->left > 0)
        return true;
    if (!take_trailers(wire))
        return false;
    wire->framing = HAPAX__BODY_OVER;
    return true;
}

bool hapax__wire_piece(struct hapax__wire *wire, struct hapax_span *piece)
{
    bool end = false;
    size_t len;

    *piece = (struct hapax_span){NULL, 0};
    if (wire->framing == HAPAX__BODY_CHUNKED && wire->left == 0 && !next_chunk(wire))
        return false;
    if (wire->framing == HAPAX__BODY_OVER)
        return true;
    if (wire->from == wire->to && !fill(wire, &end))
        return false;
    if (end && wire->framing != HAPAX__BODY_CLOSE)
        return broken(EPROTO);
    len = wire->to - wire->from;
    if (wire->framing != HAPAX__BODY_CLOSE) {
        if (len > wire->left)
            len = (size_t)wire->left;
        wire->left -= len;
    }
    if (end || (wire->framing == HAPAX__BODY_LENGTH && wire->left == 0))
        wire->framing = HAPAX__BODY_OVER;
    *piece = (struct hapax_span){wire->buffer + wire->from, len};
    wire->from += len;
    return true;
}

static bool grow(uint8_t **body, size_t *size, size_t need, size_t max)
{
    uint8_t *more;

    if (need > max)
        return broken(EMSGSIZE);
    if (need <= *size)
        return true;
    while (*size < need)
        *size = *size > 0 ? *size * 2 : 4096;
    more = realloc(*body, *size);
    if (!more)
        return broken(ENOMEM);
    *body = more;
    return true;
}

bool hapax__wire_body(struct hapax__wire *wire, uint8_t **body, size_t *len, size_t max)
{
    size_t size =
        wire->framing == HAPAX__BODY_LENGTH && wire->left <= max ? (size_t)wire->left + 1 : 0;
    struct hapax_span piece;

    *len = 0;
    *body = size > 0 ? malloc(size) : NULL;
    if (size > 0 && !*body)
        return broken(ENOMEM);
    for (;;) {
        bool good = hapax__wire_piece(wire, &piece);

        if (good && piece.len == 0 && wire->framing == HAPAX__BODY_OVER) {
            /* one byte more, so that there is always something to point at */
            if (grow(body, &size, *len + 1, max + 1))
                return true;
            good = false;
        } else if (good) {
            good = grow(body, &size, *len + piece.len + 1, max + 1);
        }
        if (!good) {
            int error = errno;

            free(*body);
            *body = NULL;
            return broken(error);
        }
        assert(*body);
        memcpy(*body + *len, piece.ptr, piece.len);
        *len += piece.len;
    }
}
