/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP/1.1 between the runtime and the Runtime API: where messages end, however their bytes arrive,
 * and which messages are refused.
 */
#include "door/lambda/wire.h"

#include "../cases.h"
#include "../must.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What the other side sends: at once, or byte by byte. */
struct peer {
    int fd;
    const char *text;
    bool slowly;
    pthread_t thread;
};

static void *speak(void *arg)
{
    struct peer *peer = arg;
    size_t len = strlen(peer->text), step = peer->slowly ? 1 : len;

    for (size_t at = 0; at < len; at += step)
        if (send(peer->fd, peer->text + at, step, MSG_NOSIGNAL) < 0)
            break;
    close(peer->fd);
    return NULL;
}

static void begin(struct hapax__wire *wire, struct peer *peer, const char *text, bool slowly)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_true(hapax__wire_open(wire, fds[0]));
    *peer = (struct peer){.fd = fds[1], .text = text, .slowly = slowly};
    must(pthread_create(&peer->thread, NULL, speak, peer) == 0);
}

static void end(struct hapax__wire *wire, struct peer *peer)
{
    hapax__wire_close(wire);
    must(pthread_join(peer->thread, NULL) == 0);
}

#define assert_body(wire, text)                                                                    \
    do {                                                                                           \
        uint8_t *body_;                                                                            \
        size_t len_;                                                                               \
        assert_true(hapax__wire_body(wire, &body_, &len_, 1000));                                  \
        assert_int_equal(len_, strlen(text));                                                      \
        assert_memory_equal(body_, text, len_);                                                    \
        free(body_);                                                                               \
    } while (0)

/* Two requests in a row: the second is not lost in the first one's buffer. */
CASE(requests_follow_each_other)
{
    static const char text[] = "POST /a HTTP/1.1\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello"
                               "GET /b?c HTTP/1.1\r\nConnection: close\r\n\r\n";
    struct hapax__wire wire;
    struct hapax__head head;
    struct peer peer;

    for (int slowly = 0; slowly < 2; slowly++) {
        begin(&wire, &peer, text, slowly);
        assert_int_equal(hapax__wire_request(&wire, &head), HAPAX__WIRE_GOOD);
        assert_int_equal(head.method.len, 4);
        assert_true(head.keep_alive);
        assert_int_equal(hapax__head_line(&head, "x-a").len, 1);
        assert_body(&wire, "hello");
        hapax__head_release(&head);
        assert_int_equal(hapax__wire_request(&wire, &head), HAPAX__WIRE_GOOD);
        assert_int_equal(head.target.len, 4);
        assert_false(head.keep_alive);
        assert_body(&wire, "");
        hapax__head_release(&head);
        assert_int_equal(hapax__wire_request(&wire, &head), HAPAX__WIRE_OVER);
        end(&wire, &peer);
    }
}

CASE(chunks_are_joined_and_their_trailers_kept)
{
    static const char text[] = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "5;x=y\r\nhello\r\n00A\r\n, 10 bytes\r\n0\r\nX-Error: a\r\n\r\n";
    struct hapax__wire wire;
    struct hapax__head head;
    struct peer peer;

    for (int slowly = 0; slowly < 2; slowly++) {
        begin(&wire, &peer, text, slowly);
        assert_int_equal(hapax__wire_request(&wire, &head), HAPAX__WIRE_GOOD);
        assert_true(head.chunked);
        assert_body(&wire, "hello, 10 bytes");
        assert_string_equal(wire.trailers, "X-Error: a\r\n");
        hapax__head_release(&head);
        end(&wire, &peer);
    }
}

/* Responses behind a "100 Continue", and responses without any length. */
CASE(responses_end_with_their_connection_where_nothing_else_says_so)
{
    static const char text[] =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\nall of it";
    struct hapax__wire wire;
    struct hapax__head head;
    struct peer peer;

    begin(&wire, &peer, text, true);
    assert_int_equal(hapax__wire_response(&wire, &head), HAPAX__WIRE_GOOD);
    assert_int_equal(head.status, 202);
    assert_false(head.keep_alive);
    assert_body(&wire, "all of it");
    hapax__head_release(&head);
    end(&wire, &peer);
}

/* Two ends of one message, lengths that readers read differently, and what is no HTTP. */
CASE(what_has_no_certain_end_is_refused)
{
    static const char *const heads[] = {
        "POST /a HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length: 5x\r\n\r\n",
        "POST /a HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "POST /a HTTP/2\r\n\r\n",
        "POST /a\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length : 5\r\n\r\n",
        "POST /a HTTP/1.1\r\nX: a\r\n Content-Length: 5\r\n\r\n",
        "POST /a HTTP/1.1\r\nX: a\nContent-Length: 5\r\n\r\n",
        "POST /a HTTP/1.1\r\nX: a\rContent-Length: 5\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length\r\n\r\n",
        "GET /a\nX:b HTTP/1.1\r\n\r\n",
        "\r\n\r\n",
        "POST /a HTTP/1.1\r\nX: ",
    };
    struct hapax__wire wire;
    struct hapax__head head;
    struct peer peer;

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        begin(&wire, &peer, heads[i], false);
        if (hapax__wire_request(&wire, &head) != HAPAX__WIRE_BROKEN)
            fail_msg("taken: %s", heads[i]);
        end(&wire, &peer);
    }
}

/* A body that ends early is refused, and not as one over the limit. */
CASE(a_body_is_whole_or_none)
{
    static const char *const bodies[] = {
        "Content-Length: 9\r\n\r\nshort",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX",
        "Transfer-Encoding: chunked\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nz\r\n",
        "Transfer-Encoding: chunked\r\n\r\n2;\nx\r\n45\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\n\nGET /\r\n\r\n",
        "Content-Length: 2000\r\n\r\n",
    };
    struct hapax__wire wire;
    struct hapax__head head;
    struct peer peer;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        char text[200];
        uint8_t *body;
        size_t len;

        (void)snprintf(text, sizeof(text), "POST /a HTTP/1.1\r\n%s", bodies[i]);
        begin(&wire, &peer, text, false);
        assert_int_equal(hapax__wire_request(&wire, &head), HAPAX__WIRE_GOOD);
        errno = EMSGSIZE; /* of an earlier message */
        if (hapax__wire_body(&wire, &body, &len, 1000))
            fail_msg("whole: %s", bodies[i]);
        assert_int_equal(errno, EPROTO);
        assert_null(body);
        hapax__head_release(&head);
        end(&wire, &peer);
    }
}

/* Many short lines are mostly line ends, which count too. */
CASE(trailers_have_the_limit_of_a_head)
{
    static const char begins[] = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
    static const size_t lines[] = {HAPAX__HEAD_MAX / 4, HAPAX__HEAD_MAX / 4 + 1};

    for (size_t i = 0; i < 2; i++) {
        char *text = malloc(sizeof(begins) + 4 * lines[i] + 2);
        struct hapax__wire wire;
        struct hapax__head head;
        struct hapax_span piece;
        struct peer peer;

        assert_non_null(text);
        memcpy(text, begins, sizeof(begins));
        for (size_t n = 0; n < lines[i]; n++)
            memcpy(text + sizeof(begins) - 1 + 4 * n, "a:\r\n", 4);
        memcpy(text + sizeof(begins) - 1 + 4 * lines[i], "\r\n", 3);
        begin(&wire, &peer, text, false);
        assert_int_equal(hapax__wire_request(&wire, &head), HAPAX__WIRE_GOOD);
        assert_int_equal(hapax__wire_piece(&wire, &piece), i == 0);
        assert_true(i == 0 ? wire.trailers_len == HAPAX__HEAD_MAX : errno == EMSGSIZE);
        hapax__head_release(&head);
        end(&wire, &peer);
        free(text);
    }
}

/* A read that waits for an event can be stopped. */
CASE(reading_is_stopped_by_its_descriptor)
{
    struct hapax__wire wire;
    struct hapax__head head;
    int fds[2], stop[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(pipe(stop), 0);
    assert_true(hapax__wire_open(&wire, fds[0]));
    wire.stop_fd = stop[0];
    wire.stop_events = POLLIN;
    assert_int_equal(write(stop[1], "x", 1), 1);
    assert_int_equal(hapax__wire_response(&wire, &head), HAPAX__WIRE_BROKEN);
    assert_int_equal(errno, ECANCELED);
    hapax__wire_close(&wire);
    close(fds[1]);
    close(stop[0]);
    close(stop[1]);
}

/* A message that has begun is read to its end: it may be an event, which would be lost
 * otherwise. */
CASE(a_message_that_has_begun_is_read_to_its_end)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "5\r\nhello\r\n0\r\nX-A: b\r\n\r\n";
    struct pollfd first;
    struct hapax__wire wire;
    struct hapax__head head;
    struct peer peer;
    int stop[2];

    assert_int_equal(pipe(stop), 0);
    assert_int_equal(write(stop[1], "x", 1), 1);
    begin(&wire, &peer, text, true);
    first = (struct pollfd){.fd = wire.fd, .events = POLLIN};
    assert_int_equal(poll(&first, 1, -1), 1);
    wire.stop_fd = stop[0];
    wire.stop_events = POLLIN;
    assert_int_equal(hapax__wire_response(&wire, &head), HAPAX__WIRE_GOOD);
    assert_body(&wire, "hello");
    assert_string_equal(wire.trailers, "X-A: b\r\n");
    hapax__head_release(&head);
    end(&wire, &peer);
    close(stop[0]);
    close(stop[1]);
}
