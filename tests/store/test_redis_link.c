/* SPDX-License-Identifier: Apache-2.0
 *
 * A link to a Redis process that does what it likes: a server of our own plays a part per test, in
 * a thread, and the link must say UNAVAILABLE only where nothing has left it. /
 */
#include "store/redis/link.h"

#include "../cases.h"
#include "../must.h"
#include "../unit/oom.h"
#include "base/clock.h"
#include "store/redis/reader.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_US (60 * INT64_C(1000000))
#define MARGIN_US   (20 * INT64_C(1000000)) /* two cores, many tests */
#define MEGABYTE    (1u << 20)

/* ---- the server ------------------------------------------------------------------------ */

struct server {
    int listener;
    struct hapax__redis_address address;
    void (*play)(struct server *server, int fd); /* each connection's part */
    int stop[2]; /* readable when the test is over */
    int times; /* connections to serve */
    pthread_t thread;
    char seen[4096]; /* commands, words parted by ' ', each ended by '\n' */
    size_t seen_len;
};

static bool take(int fd, char *out, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = recv(fd, out + at, len - at, 0);

        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static bool take_number(int fd, char type, size_t *out)
{
    char line[32];
    size_t len = 0;

    do
        if (len == sizeof(line) - 1 || !take(fd, line + len, 1))
            return false;
    while (line[len++] != '\n');
    line[len] = '\0';
    must(line[0] == type);
    *out = strtoul(line + 1, NULL, 10);
    return true;
}

/* One command off the socket, noted where there is room. */
static bool take_command(struct server *server, int fd)
{
    size_t argc, len;

    if (!take_number(fd, '*', &argc))
        return false;
    for (size_t i = 0; i < argc; i++) {
        static char word[5 * MEGABYTE];

        if (!take_number(fd, '$', &len))
            return false;
        must(len + 2 <= sizeof(word));
        if (!take(fd, word, len + 2))
            return false;
        if (server->seen_len + len + 1 < sizeof(server->seen)) {
            memcpy(server->seen + server->seen_len, word, len);
            server->seen_len += len;
            server->seen[server->seen_len++] = i + 1 < argc ? ' ' : '\n';
        }
    }
    return true;
}

static bool tell(int fd, const char *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, bytes + at, len - at, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static bool say(int fd, const char *text)
{
    return tell(fd, text, strlen(text));
}

/* The login of a URI without password and database. */
static bool greet(struct server *server, int fd)
{
    return take_command(server, fd) && take_command(server, fd) && say(fd, "+OK\r\n+PONG\r\n");
}

static void reset(int fd)
{
    const struct linger linger = {1, 0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}

/* Until the test is over, or the other side has left. */
static void wait_for_end(struct server *server, int fd)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLRDHUP},
                            {.fd = server->stop[0], .events = POLLIN}};

    poll(fds, 2, (int)(PATIENCE_US / 1000));
}

static void *serve(void *arg)
{
    struct server *server = arg;

    for (int i = 0; i < server->times; i++) {
        struct pollfd fds[2] = {{.fd = server->listener, .events = POLLIN},
                                {.fd = server->stop[0], .events = POLLIN}};
        int one = 1, fd;

        while (poll(fds, 2, -1) < 0)
            ;
        if (fds[1].revents)
            break;
        fd = accept(server->listener, NULL, NULL);
        must(fd >= 0);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        server->play(server, fd);
        close(fd);
    }
    return NULL;
}

static void listen_at(struct server *server, int backlog)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);

    memset(server, 0, sizeof(*server));
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(server->listener >= 0);
    must(bind(server->listener, (struct sockaddr *)&at, sizeof(at)) == 0);
    must(listen(server->listener, backlog) == 0);
    must(getsockname(server->listener, (struct sockaddr *)&at, &len) == 0);
    memcpy(server->address.host, "127.0.0.1", sizeof("127.0.0.1"));
    server->address.port = ntohs(at.sin_port);
}

static void server_begin(struct server *server, void (*play)(struct server *, int), int times)
{
    listen_at(server, 16);
    server->play = play;
    server->times = times;
    must(pipe(server->stop) == 0);
    must(pthread_create(&server->thread, NULL, serve, server) == 0);
}

static void server_end(struct server *server)
{
    must(write(server->stop[1], "x", 1) == 1);
    must(pthread_join(server->thread, NULL) == 0);
    close(server->listener);
    close(server->stop[0]);
    close(server->stop[1]);
}

/* ---- the other side -------------------------------------------------------------------- */

static const struct hapax__redis_login nobody;

static int64_t in(int64_t us)
{
    return hapax__monotonic_us() + us;
}

static enum hapax_error try_open(struct hapax__redis_link **out, const struct server *server,
                                 const struct hapax__redis_login *login, uint32_t db,
                                 int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    return hapax__redis_link_open(out, &server->address, login, db, NULL, deadline_us, text);
}

static struct hapax__redis_link *must_open(const struct server *server)
{
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error = try_open(&link, server, &nobody, 0, in(PATIENCE_US), text);

    if (error != HAPAX_ERR_NONE)
        fail_msg("%s", text);
    return link;
}

static void put(struct hapax__redis_link *link, const char *word)
{
    const struct hapax_span arg = hapax_str(word);

    assert_true(hapax__redis_link_put(link, &arg, 1));
}

/* ---- login ----------------------------------------------------------------------------- */

static void accept_all(struct server *server, int fd)
{
    while (take_command(server, fd))
        if (!say(fd, "+OK\r\n"))
            return;
}

/* A login sends what the URI has of user, password and database, and nothing else. */
CASE(login_is_what_the_uri_says)
{
    static const struct {
        struct hapax__redis_login login;
        uint32_t db;
        const char *expected;
    } rows[] = {{{"", ""}, 0, "CLIENT SETNAME hapax\nPING\n"},
                {{"", "hush"}, 0, "AUTH hush\nCLIENT SETNAME hapax\nPING\n"},
                {{"me", "hush"}, 0, "AUTH me hush\nCLIENT SETNAME hapax\nPING\n"},
                {{"me", "hu\nsh"}, 12, "AUTH me hu\nsh\nSELECT 12\nCLIENT SETNAME hapax\nPING\n"},
                {{"", ""}, 1, "SELECT 1\nCLIENT SETNAME hapax\nPING\n"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hapax__redis_link *link;
        char text[HAPAX_TEXT_MAX];
        struct server server;

        server_begin(&server, accept_all, 1);
        assert_int_equal(
            try_open(&link, &server, &rows[i].login, rows[i].db, in(PATIENCE_US), text), 0);
        hapax__redis_link_close(link);
        server_end(&server);
        server.seen[server.seen_len] = '\0';
        assert_string_equal(server.seen, rows[i].expected);
    }
}

static const char *answer; /* to a whole login, of the server below */
static int login_commands;

static void answer_login(struct server *server, int fd)
{
    for (int i = 0; i < login_commands; i++)
        if (!take_command(server, fd))
            return;
    say(fd, answer);
    wait_for_end(server, fd);
}

#define ECHOED                                                                                     \
    "-ERR unknown command `AUTH`, with args beginning with: `me`, `hush`, \r\n+OK\r\n+OK\r\n+OK\r\n"

/* Whether a refusal at the login is one to wait for or one to tell an operator of; no text shows
 * the password, not even where the server says it. */
CASE(a_refused_login_is_not_an_absent_server)
{
    static const struct {
        const char *password, *answer;
        enum hapax_error error;
        const char *said;
    } rows[] = {
        {"hush", "+OK\r\n+OK\r\n+OK\r\n+PONG\r\n", HAPAX_ERR_NONE, ""},
        {"hush", "+OK\r\n+OK\r\n-ERR no\r\n-NOPERM no\r\n", HAPAX_ERR_NONE, ""},
        {"hush", "-WRONGPASS invalid\r\n", HAPAX_ERR_REFUSED, "\"WRONGPASS invalid\""},
        {"hush", "-ERR invalid password\r\n", HAPAX_ERR_REFUSED, "ERR invalid password"},
        {"hush", "-NOPERM this user\r\n", HAPAX_ERR_REFUSED, "NOPERM"},
        {"hush", "+OK\r\n-ERR DB index is out of range\r\n", HAPAX_ERR_REFUSED, "DB index"},
        {"hush", "+OK\r\n-NOPERM no select\r\n", HAPAX_ERR_REFUSED, "NOPERM no select"},
        {"hush", "+OK\r\n+OK\r\n+OK\r\n-LOADING wait\r\n", HAPAX_ERR_UNAVAILABLE, "LOADING"},
        {"hush", "+OK\r\n+OK\r\n+OK\r\n-MASTERDOWN x\r\n", HAPAX_ERR_UNAVAILABLE, "MASTERDOWN"},
        {"hush", "+OK\r\n-BUSY script\r\n", HAPAX_ERR_UNAVAILABLE, "BUSY"},
        {"hush", "-ERR max number of clients reached\r\n", HAPAX_ERR_UNAVAILABLE, "max number"},
        {"hush", ECHOED, HAPAX_ERR_REFUSED, "\"ERR\""},
        {"hush", "-hush is wrong\r\n", HAPAX_ERR_REFUSED, "\"an error\""},
        {"hush", "-ERR \x01\xff\r\n", HAPAX_ERR_REFUSED,
         "\"ERR ?"
         "?\""},
        {"hush", "-\r\n", HAPAX_ERR_REFUSED, "\"\""},
        {"", "-NOAUTH Authentication required.\r\n", HAPAX_ERR_REFUSED, "NOAUTH"},
        {"", "-DENIED protected mode\r\n", HAPAX_ERR_REFUSED, "DENIED"},
        {"", "+OK\r\n-NOPERM no ping\r\n", HAPAX_ERR_NONE, ""},
        {"", "HTTP/1.1 400 Bad Request\r\n", HAPAX_ERR_UNAVAILABLE, "not RESP"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool with = rows[i].password[0] != '\0';
        struct hapax__redis_login login = {.user = ""};
        char text[HAPAX_TEXT_MAX] = "";
        struct hapax__redis_link *link;
        struct server server;

        snprintf(login.user, sizeof(login.user), "%s", with ? "me" : "");
        snprintf(login.password, sizeof(login.password), "%s", rows[i].password);
        answer = rows[i].answer;
        login_commands = with ? 4 : 2;
        server_begin(&server, answer_login, 1);
        assert_int_equal(try_open(&link, &server, &login, with, in(PATIENCE_US), text),
                         rows[i].error);
        assert_int_equal(link != NULL, rows[i].error == HAPAX_ERR_NONE);
        assert_null(strstr(text, "hush"));
        if (!strstr(text, rows[i].said))
            fail_msg("row %zu: %s", i, text);
        hapax__redis_link_close(link);
        server_end(&server);
    }
}

/* ---- replies --------------------------------------------------------------------------- */

static const char *reply;
static bool then_reset;

static void drip_reply(struct server *server, int fd)
{
    if (!greet(server, fd) || !take_command(server, fd))
        return;
    for (size_t i = 0; reply[i] != '\0'; i++)
        tell(fd, reply + i, 1);
    wait_for_end(server, fd);
}

/* A reply that comes byte by byte is the same reply. */
CASE(a_reply_may_come_byte_by_byte)
{
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX];
    struct server server;
    struct hapax__resp *got;

    reply = "*3\r\n$5\r\nhello\r\n:-12\r\n*1\r\n$-1\r\n";
    server_begin(&server, drip_reply, 1);
    link = must_open(&server);
    put(link, "ASK");
    assert_int_equal(hapax__redis_link_send(link, in(PATIENCE_US), text), 0);
    assert_int_equal(hapax__redis_link_get(link, &got, in(PATIENCE_US), text), 0);
    assert_int_equal(got->elements, 3);
    assert_string_equal(got->element[0]->str, "hello");
    assert_int_equal(got->element[1]->integer, -12);
    assert_int_equal(got->element[2]->element[0]->type, HAPAX__RESP_NIL);
    hapax__resp_free(got);
    hapax__redis_link_close(link);
    server_end(&server);
}

static void break_reply(struct server *server, int fd)
{
    if (!greet(server, fd) || !take_command(server, fd))
        return;
    say(fd, reply);
    if (then_reset)
        reset(fd);
}

/* A reply that is cut, garbage or over a limit leaves the command's result unknown, and the link
 * dead; a reply before it still counts. */
CASE(a_broken_reply_is_indeterminate)
{
    static const struct {
        const char *reply;
        bool reset;
        const char *why;
    } rows[] = {{"", false, "closed the connection"},
                {"", true, "the connection was lost"},
                {"*2\r\n:1\r\n$100\r\nabc", false, "closed the connection"},
                {"*2\r\n:1\r\n$100\r\nabc", true, ""},
                {"$3\r\nabcd\r\n", false, "is not RESP"},
                {"SSH-2.0-x\r\n", false, "is not RESP"},
                {"*16385\r\n", false, "over the limit"},
                {"$67108865\r\n", false, "over the limit"},
                {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", false, "over the limit"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hapax__redis_link *link;
        char text[HAPAX_TEXT_MAX];
        struct server server;
        struct hapax__resp *got;

        reply = rows[i].reply;
        then_reset = rows[i].reset;
        server_begin(&server, break_reply, 1);
        link = must_open(&server);
        put(link, "ASK");
        assert_int_equal(hapax__redis_link_send(link, in(PATIENCE_US), text), 0);
        assert_int_equal(hapax__redis_link_get(link, &got, in(PATIENCE_US), text),
                         HAPAX_ERR_INDETERMINATE);
        assert_null(got);
        if (!strstr(text, rows[i].why))
            fail_msg("row %zu: %s", i, text);
        assert_true(hapax__redis_link_stale(link));
        assert_int_equal(hapax__redis_link_get(link, &got, in(PATIENCE_US), text),
                         HAPAX_ERR_INDETERMINATE);
        hapax__redis_link_close(link);
        server_end(&server);
    }
}

/* ---- time ------------------------------------------------------------------------------ */

static void greet_and_hang(struct server *server, int fd)
{
    if (greet(server, fd))
        wait_for_end(server, fd);
}

static void hang(struct server *server, int fd)
{
    wait_for_end(server, fd);
}

static void within(int64_t begun_us, int64_t at_least_us)
{
    int64_t took_us = hapax__monotonic_us() - begun_us;

    assert_true(took_us >= at_least_us);
    assert_true(took_us < at_least_us + MARGIN_US);
}

/* A server that accepts and says nothing keeps no one longer than the deadline; nothing of ours was
 * carried out. */
CASE(a_silent_server_is_unavailable_in_time)
{
    int64_t begun_us = hapax__monotonic_us();
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX];
    struct server server;

    server_begin(&server, hang, 1);
    assert_int_equal(try_open(&link, &server, &nobody, 0, begun_us + 1000000, text),
                     HAPAX_ERR_UNAVAILABLE);
    within(begun_us, 1000000);
    assert_non_null(strstr(text, "no answer in time"));
    server_end(&server);
}

/* Packets that are swallowed do not, either: a backlog that is full drops what comes. */
CASE(a_black_hole_is_unavailable_in_time)
{
    struct hapax__redis_link *link;
    int fds[8];
    size_t n = 0;
    char text[HAPAX_TEXT_MAX];
    struct server server;
    int64_t begun_us;

    listen_at(&server, 0);
    for (; n < sizeof(fds) / sizeof(fds[0]); n++) {
        struct sockaddr_in to = {.sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                 .sin_port = htons(server.address.port)};

        fds[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        assert_true(fds[n] >= 0);
        (void)connect(fds[n], (struct sockaddr *)&to, sizeof(to));
    }
    begun_us = hapax__monotonic_us();
    assert_int_equal(try_open(&link, &server, &nobody, 0, begun_us + 100000, text),
                     HAPAX_ERR_UNAVAILABLE);
    within(begun_us, 100000);
    assert_non_null(strstr(text, "no answer in time"));
    while (n > 0)
        close(fds[--n]);
    close(server.listener);
}

/* A server that goes silent after the command leaves its result unknown, at the deadline. */
CASE(a_half_open_link_is_indeterminate_in_time)
{
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX];
    struct server server;
    struct hapax__resp *got;
    int64_t begun_us;

    server_begin(&server, greet_and_hang, 1);
    link = must_open(&server);
    put(link, "ASK");
    assert_int_equal(hapax__redis_link_send(link, in(PATIENCE_US), text), 0);
    begun_us = hapax__monotonic_us();
    assert_int_equal(hapax__redis_link_get(link, &got, begun_us + 100000, text),
                     HAPAX_ERR_INDETERMINATE);
    within(begun_us, 100000);
    assert_non_null(strstr(text, "no answer in time"));
    hapax__redis_link_close(link);
    server_end(&server);
}

static void drip_for_ever(struct server *server, int fd)
{
    if (!greet(server, fd) || !take_command(server, fd) || !say(fd, "$60000000\r\n"))
        return;
    while (say(fd, "a"))
        ;
}

/* One that sends for ever, and never a whole reply, does not stretch the deadline. */
CASE(a_reply_without_end_is_indeterminate_in_time)
{
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX];
    struct server server;
    struct hapax__resp *got;
    int64_t begun_us;

    server_begin(&server, drip_for_ever, 1);
    link = must_open(&server);
    put(link, "ASK");
    assert_int_equal(hapax__redis_link_send(link, in(PATIENCE_US), text), 0);
    begun_us = hapax__monotonic_us();
    assert_int_equal(hapax__redis_link_get(link, &got, begun_us + 100000, text),
                     HAPAX_ERR_INDETERMINATE);
    within(begun_us, 100000);
    hapax__redis_link_close(link);
    server_end(&server);
}

static void put_large(struct hapax__redis_link *link, const char *body, size_t len)
{
    const struct hapax_span args[] = {hapax_str("PUT"), {(const uint8_t *)body, len}};

    assert_true(hapax__redis_link_put(link, args, 2));
}

/* A server that does not read: some has left, so nobody knows; and at the deadline it ends. */
CASE(a_server_that_does_not_read_is_indeterminate_in_time)
{
    struct hapax__redis_link *link;
    char *body = calloc(16, MEGABYTE);
    char text[HAPAX_TEXT_MAX];
    struct server server;
    int64_t begun_us;

    assert_non_null(body);
    server_begin(&server, greet_and_hang, 1);
    link = must_open(&server);
    put_large(link, body, 16 * MEGABYTE);
    begun_us = hapax__monotonic_us();
    assert_int_equal(hapax__redis_link_send(link, begun_us + 1000000, text),
                     HAPAX_ERR_INDETERMINATE);
    within(begun_us, 1000000);
    hapax__redis_link_close(link);
    server_end(&server);
    free(body);
}

/* ---- both ways ------------------------------------------------------------------------- */

#define LARGE (4 * MEGABYTE)
#define MANY  6

/* As Redis does where its output is not taken: it reads the next command when its reply is gone. */
static void echo_large(struct server *server, int fd)
{
    static char body[LARGE];

    if (!greet(server, fd))
        return;
    memset(body, 'r', sizeof(body));
    for (int i = 0; i < MANY; i++)
        if (!take_command(server, fd) || !say(fd, "$4194304\r\n") ||
            !tell(fd, body, sizeof(body)) || !say(fd, "\r\n"))
            return;
    wait_for_end(server, fd);
}

/* Large requests against large replies: neither side waits for the other for ever. */
CASE(a_large_pipeline_does_not_lock_up)
{
    struct hapax__redis_link *link;
    char *body = malloc(LARGE);
    char text[HAPAX_TEXT_MAX];
    struct server server;

    assert_non_null(body);
    memset(body, 'q', LARGE);
    server_begin(&server, echo_large, 1);
    link = must_open(&server);
    for (int i = 0; i < MANY; i++)
        put_large(link, body, LARGE);
    if (hapax__redis_link_send(link, in(PATIENCE_US), text) != HAPAX_ERR_NONE)
        fail_msg("%s", text);
    for (int i = 0; i < MANY; i++) {
        struct hapax__resp *got;

        assert_int_equal(hapax__redis_link_get(link, &got, in(PATIENCE_US), text), 0);
        assert_int_equal(got->len, LARGE);
        assert_int_equal(got->str[0], 'r');
        assert_int_equal(got->str[LARGE - 1], 'r');
        hapax__resp_free(got);
    }
    assert_false(hapax__redis_link_stale(link));
    hapax__redis_link_close(link);
    server_end(&server);
    free(body);
}

/* ---- what has left --------------------------------------------------------------------- */

static void greet_and_reset(struct server *server, int fd)
{
    if (greet(server, fd))
        reset(fd);
}

static void greet_and_close(struct server *server, int fd)
{
    (void)greet(server, fd);
}

static void greet_and_chatter(struct server *server, int fd)
{
    if (greet(server, fd) && say(fd, "+what nobody asked for\r\n"))
        wait_for_end(server, fd);
}

/* Waits until the link notices; a test that never sees it fails by its time. */
static void until_stale(struct hapax__redis_link *link)
{
    int64_t deadline_us = in(PATIENCE_US);

    while (!hapax__redis_link_stale(link))
        assert_true(hapax__monotonic_us() < deadline_us);
}

/* A link that was cut while it was idle: nothing has left, so nothing was carried out. No signal
 * ends the process. */
CASE(a_command_that_never_left_is_unavailable)
{
    static void (*const plays[])(struct server *, int) = {greet_and_reset, greet_and_close,
                                                          greet_and_chatter};

    for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++) {
        const struct hapax_span arg = hapax_str("ASK");
        struct hapax__redis_link *link;
        char text[HAPAX_TEXT_MAX];
        struct server server;

        server_begin(&server, plays[i], 1);
        link = must_open(&server);
        until_stale(link);
        assert_true(hapax__redis_link_stale(link));
        assert_false(hapax__redis_link_put(link, &arg, 1));
        assert_int_equal(hapax__redis_link_send(link, in(PATIENCE_US), text),
                         HAPAX_ERR_UNAVAILABLE);
        hapax__redis_link_close(link);
        server_end(&server);
    }
}

/* The same where it is noticed only by sending. */
CASE(a_reset_before_the_first_byte_is_unavailable)
{
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX];
    struct server server;

    server_begin(&server, greet_and_reset, 1);
    link = must_open(&server);
    server_end(&server); /* the reset is on its way, and this machine's own is there at once */
    put(link, "ASK");
    assert_int_equal(hapax__redis_link_send(link, in(PATIENCE_US), text), HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(text, "cannot send to \"127.0.0.1:"));
    hapax__redis_link_close(link);
}

static void take_one_and_reset(struct server *server, int fd)
{
    if (greet(server, fd) && take_command(server, fd))
        reset(fd);
}

/* A link that is cut while it sends: the part that left may have been carried out. */
CASE(a_command_half_sent_is_indeterminate)
{
    char *body = calloc(4, MEGABYTE);
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX];
    struct server server;

    assert_non_null(body);
    server_begin(&server, take_one_and_reset, 1);
    link = must_open(&server);
    put(link, "ASK");
    for (int i = 0; i < 16; i++)
        put_large(link, body, 4 * MEGABYTE);
    assert_int_equal(hapax__redis_link_send(link, in(PATIENCE_US), text), HAPAX_ERR_INDETERMINATE);
    hapax__redis_link_close(link);
    server_end(&server);
    free(body);
}

/* Nobody there: said at once, with the address and why. */
CASE(nobody_there_is_unavailable)
{
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX], expected[HAPAX_TEXT_MAX];
    struct server server;

    listen_at(&server, 1);
    close(server.listener);
    assert_int_equal(try_open(&link, &server, &nobody, 0, in(PATIENCE_US), text),
                     HAPAX_ERR_UNAVAILABLE);
    snprintf(expected, sizeof(expected), "cannot connect to \"127.0.0.1:%u\": nobody listens there",
             server.address.port);
    assert_string_equal(text, expected);
    memcpy(server.address.host, "::1%nonsense", sizeof("::1%nonsense"));
    assert_int_equal(try_open(&link, &server, &nobody, 0, in(PATIENCE_US), text),
                     HAPAX_ERR_UNAVAILABLE);
    assert_non_null(strstr(text, "cannot connect to \"[::1%nonsense]:"));
    assert_non_null(strstr(text, "its address was not found"));
}

/* A name with several addresses: the one where somebody listens. */
CASE(each_address_of_a_name_is_tried)
{
    struct hapax__redis_link *link;
    struct server server;

    server_begin(&server, greet_and_hang, 1);
    memcpy(server.address.host, "localhost", sizeof("localhost")); /* and nobody at ::1 */
    link = must_open(&server);
    assert_false(hapax__redis_link_stale(link));
    hapax__redis_link_close(link);
    server_end(&server);
}

/* ---- memory ---------------------------------------------------------------------------- */

static void answer_all(struct server *server, int fd)
{
    if (!greet(server, fd))
        return;
    while (take_command(server, fd))
        if (!say(fd, "*3\r\n$5\r\nhello\r\n+s\r\n*2\r\n$-1\r\n:1\r\n"))
            return;
}

static void use_once(const struct server *server)
{
    struct hapax__redis_link *link;
    char text[HAPAX_TEXT_MAX];
    struct hapax__resp *got;
    enum hapax_error error = try_open(&link, server, &nobody, 0, in(PATIENCE_US), text);
    const struct hapax_span arg = hapax_str("ASK");
    bool good = error == HAPAX_ERR_NONE;

    must(good || error == HAPAX_ERR_NOMEM || error == HAPAX_ERR_UNAVAILABLE);
    must(good == (link != NULL));
    for (int i = 0; i < 20 && good; i++)
        good = hapax__redis_link_put(link, &arg, 1);
    if (good)
        must(hapax__redis_link_send(link, in(PATIENCE_US), text) == HAPAX_ERR_NONE);
    for (int i = 0; i < 20 && good; i++) {
        error = hapax__redis_link_get(link, &got, in(PATIENCE_US), text);
        good = error == HAPAX_ERR_NONE;
        must(good || error == HAPAX_ERR_INDETERMINATE);
        if (good)
            hapax__resp_free(got);
    }
    hapax__redis_link_close(link);
}

/* Each allocation of a link's life fails once: nothing leaks, nothing crashes, each call says
 * so. */
CASE(every_allocation_may_fail)
{
    struct server server;
    uint64_t n;

    server_begin(&server, answer_all, 1000);
    use_once(&server);
    for (n = 1; n < 1000; n++) {
        int64_t live = oom_live();

        oom_fail_at(n, n % 2 == 0);
        use_once(&server);
        if (oom_count() < n)
            break;
        oom_fail_at(0, false);
        assert_true(oom_live() == live);
    }
    oom_fail_at(0, false);
    assert_in_range(n, 100, 999);
    server_end(&server);
}
