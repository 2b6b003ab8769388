/* SPDX-License-Identifier: Apache-2.0
 *
 * A handler over HTTP against a server that answers as its path says, well or badly: what it is
 * told, what its answers mean, and how often it is asked. The environment names a proxy that is not
 * there; none of the cases would pass if it were asked.
 */
#include "door/consume/post.h"

#include "door/attempt.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../../cases.h"
#include "../../must.h"

#define WAIT_MS   60000 /* no event of a test takes longer, on any machine */
#define PEERS_MAX 1024

/* ---- the server ------------------------------------------------------------------------ */

/* One request as it came; the last one is kept. */
static struct server {
    int fd;
    uint16_t port;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned requests; /* read whole */
    unsigned closed; /* connections that ended */
    unsigned peer_count;
    int peers[PEERS_MAX];
    pthread_t threads[PEERS_MAX];
    char head[65536];
    char body[4096];
} server;

struct request {
    char head[65536];
    size_t head_len;
    size_t body_len;
    char body[4096];
    unsigned number; /* of its connection */
};

static void say(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool send_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        bytes += n;
        len -= (size_t)n;
    }
    return true;
}

static void say(int fd, const char *format, ...)
{
    char text[1024];
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    must(len >= 0 && (size_t)len < sizeof(text));
    send_all(fd, text, (size_t)len);
}

static const char *header_in(const char *head, const char *name)
{
    const char *at = strchr(head, '\n');

    for (; at && at[1] && at[1] != '\r'; at = strchr(at + 1, '\n')) {
        if (strncasecmp(at + 1, name, strlen(name)) == 0 && at[1 + strlen(name)] == ':')
            return at + 1 + strlen(name) + 1 + strspn(at + 1 + strlen(name) + 1, " ");
    }
    return NULL;
}

static bool read_request(int fd, struct request *r)
{
    const char *length;

    r->head_len = 0;
    r->head[0] = '\0';
    while (r->head_len < 4 || memcmp(r->head + r->head_len - 4, "\r\n\r\n", 4) != 0) {
        if (r->head_len == sizeof(r->head) - 1 || recv(fd, r->head + r->head_len, 1, 0) != 1)
            return false;
        r->head[++r->head_len] = '\0';
    }
    length = header_in(r->head, "content-length");
    r->body_len = length ? strtoul(length, NULL, 10) : 0;
    must(r->body_len < sizeof(r->body));
    for (size_t at = 0; at < r->body_len; at++) {
        if (recv(fd, r->body + at, 1, 0) != 1)
            return false;
    }
    r->body[r->body_len] = '\0';
    r->number++;
    pthread_mutex_lock(&server.mutex);
    server.requests++;
    memcpy(server.head, r->head, r->head_len + 1);
    memcpy(server.body, r->body, r->body_len + 1);
    pthread_cond_broadcast(&server.changed);
    pthread_mutex_unlock(&server.mutex);
    return true;
}

static void say_much(int fd, size_t len, bool chunked)
{
    static const char block[4096];

    while (len > 0) {
        size_t n = len < sizeof(block) ? len : sizeof(block);

        if (chunked)
            say(fd, "%zx\r\n", n);
        if (!send_all(fd, block, n) || (chunked && !send_all(fd, "\r\n", 2)))
            return;
        len -= n;
    }
}

/* Until the peer has closed. */
static void wait_for_end(int fd)
{
    char byte;

    while (recv(fd, &byte, 1, 0) > 0)
        ;
}

static void say_slowly(int fd)
{
    const struct timespec pause = {0, 5000000};
    const char *answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow";

    for (; *answer; answer++) {
        send_all(fd, answer, 1);
        nanosleep(&pause, NULL);
    }
}

static void say_headers(int fd, unsigned count)
{
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n");
    for (unsigned i = 0; i < count; i++)
        say(fd, "X-Filler-%u: %0500d\r\n", i, 0);
    say(fd, "\r\nok");
}

#define OK "HTTP/1.1 200 OK\r\n"

/* Answers that leave the connection as it is. */
static bool answer_whole(int fd, const struct request *r, const char *path)
{
    unsigned n;

    if (sscanf(path, "/status/%u", &n) == 1)
        say(fd, "HTTP/1.1 %u Because\r\nContent-Length: 2\r\n\r\nno", n);
    else if (sscanf(path, "/huge/%u", &n) == 1)
        say(fd, OK "Content-Length: %u\r\n\r\n", n), say_much(fd, n, false);
    else if (sscanf(path, "/headers/%u", &n) == 1)
        say_headers(fd, n);
    else if (strncmp(path, "/echo ", 6) == 0)
        say(fd,
            OK "Content-Type: text/x\r\nX-Foo: bar\r\nSet-Cookie: a=b\r\nDate: now\r\n"
               "Keep-Alive: timeout=9\r\nContent-Length: %zu\r\n\r\n%s",
            r->body_len, r->body);
    else if (strncmp(path, "/later ", 7) == 0)
        say(fd, "HTTP/1.1 409 Conflict\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n");
    else if (strncmp(path, "/busy ", 6) == 0)
        say(fd, "HTTP/1.1 503 Busy\r\nRetry-After: %.*s\r\nContent-Length: 0\r\n\r\n",
            (int)r->body_len, r->body);
    else if (strncmp(path, "/redirect ", 10) == 0)
        say(fd, "HTTP/1.1 307 Away\r\nLocation: /echo\r\nContent-Length: 0\r\n\r\n");
    else if (strncmp(path, "/early ", 7) == 0)
        say(fd, "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" OK
                "X-Final: 1\r\nContent-Length: 2\r\n\r\nok");
    else if (strncmp(path, "/trailer ", 9) == 0)
        say(fd, OK "Transfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n"
                   "2\r\nok\r\n0\r\nX-Late: 1\r\n\r\n");
    else if (strncmp(path, "/slow ", 6) == 0)
        say_slowly(fd);
    else
        return false;
    return true;
}

/* And those after which there is none. */
static void answer_broken(int fd, const struct request *r, const char *path)
{
    const struct linger now = {1, 0};

    if (strncmp(path, "/garbage ", 9) == 0)
        say(fd, "220 smtp.example ESMTP\r\n\r\n");
    else if (strncmp(path, "/half ", 6) == 0)
        say(fd, OK "Content-Length: 100\r\n\r\nhalf of it");
    else if (strncmp(path, "/half-chunk ", 12) == 0)
        say(fd, OK "Transfer-Encoding: chunked\r\n\r\n64\r\nhalf of it");
    else if (strncmp(path, "/half-head ", 11) == 0)
        say(fd, OK "Content-Len");
    else if (strncmp(path, "/half-lines ", 12) == 0)
        say(fd, OK "X-Foo: bar\r\n");
    else if (strncmp(path, "/bare ", 6) == 0)
        say(fd, "HTTP/1.1 204 Because\r\n\r\n");
    else if (strncmp(path, "/old ", 5) == 0)
        say(fd, "HTTP/1.0 200 OK\r\n\r\nuntil it ends");
    else if (strncmp(path, "/switch ", 8) == 0)
        say(fd, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n");
    else if (strncmp(path, "/number ", 8) == 0)
        say(fd, "HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n");
    else if (strncmp(path, "/endless ", 9) == 0)
        say(fd, OK "Transfer-Encoding: chunked\r\n\r\n"), say_much(fd, SIZE_MAX, true);
    else if (strncmp(path, "/bye ", 5) == 0 || (strncmp(path, "/once ", 6) == 0 && r->number == 1))
        say(fd, OK "Content-Length: 2\r\n\r\nok");
    else if (strncmp(path, "/reset ", 7) == 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    else if (strncmp(path, "/never ", 7) == 0)
        wait_for_end(fd);
    else
        must(strncmp(path, "/none ", 6) == 0 || strncmp(path, "/once ", 6) == 0);
}

static void *serve(void *arg)
{
    int fd = *(int *)arg;
    struct request *r = calloc(1, sizeof(*r));
    bool more = true;

    must(r);
    while (more && read_request(fd, r)) {
        const char *path = strchr(r->head, ' ') + 1;

        more = answer_whole(fd, r, path);
        if (!more) {
            answer_broken(fd, r, path);
            more = strncmp(path, "/once ", 6) == 0 && r->number == 1;
        }
    }
    free(r);
    pthread_mutex_lock(&server.mutex);
    close(fd);
    *(int *)arg = -1;
    server.closed++;
    pthread_cond_broadcast(&server.changed);
    pthread_mutex_unlock(&server.mutex);
    return NULL;
}

static void *accept_all(void *arg)
{
    int fd;

    (void)arg;
    while ((fd = accept(server.fd, NULL, NULL)) >= 0) {
        pthread_mutex_lock(&server.mutex);
        must(server.peer_count < PEERS_MAX);
        server.peers[server.peer_count] = fd;
        must(pthread_create(&server.threads[server.peer_count], NULL, serve,
                            &server.peers[server.peer_count]) == 0);
        server.peer_count++;
        pthread_mutex_unlock(&server.mutex);
    }
    return NULL;
}

static int server_open(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);

    pthread_mutex_init(&server.mutex, NULL);
    pthread_cond_init(&server.changed, NULL);
    server.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(server.fd >= 0 && bind(server.fd, (struct sockaddr *)&at, len) == 0 &&
         listen(server.fd, 64) == 0 && getsockname(server.fd, (struct sockaddr *)&at, &len) == 0);
    server.port = ntohs(at.sin_port);
    must(pthread_create(&server.thread, NULL, accept_all, NULL) == 0);
    return 0;
}

static int server_close(void **state)
{
    shutdown(server.fd, SHUT_RDWR);
    pthread_join(server.thread, NULL);
    close(server.fd);
    pthread_mutex_lock(&server.mutex);
    for (unsigned i = 0; i < server.peer_count; i++) {
        if (server.peers[i] >= 0)
            shutdown(server.peers[i], SHUT_RDWR);
    }
    pthread_mutex_unlock(&server.mutex);
    for (unsigned i = 0; i < server.peer_count; i++)
        pthread_join(server.threads[i], NULL);
    return 0;
}

static unsigned count(const unsigned *counter)
{
    unsigned n;

    pthread_mutex_lock(&server.mutex);
    n = *counter;
    pthread_mutex_unlock(&server.mutex);
    return n;
}

static void wait_until(const unsigned *counter, unsigned n)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&server.mutex);
    while (*counter < n)
        must(pthread_cond_timedwait(&server.changed, &server.mutex, &until) == 0);
    pthread_mutex_unlock(&server.mutex);
}

/* ---- the door ---------------------------------------------------------------------------- */

/* What the loop keeps of a delivery, as far as a handler can see it. */
struct hapax_delivery {
    struct hapax_message message;
    atomic_bool hurry;
    atomic_bool lost; /* asked for by the case: the claim is lost once the server has the request */
    unsigned before; /* requests when it began */
    int64_t retry_after_ms;
    char refused[HAPAX_TEXT_MAX];
};

const struct hapax_message *hapax_delivery_message(const struct hapax_delivery *delivery)
{
    return &delivery->message;
}

void hapax_delivery_refuse(struct hapax_delivery *delivery, const char *why)
{
    snprintf(delivery->refused, sizeof(delivery->refused), "%s", why);
}

void hapax_delivery_retry_after(struct hapax_delivery *delivery, int64_t after_ms)
{
    delivery->retry_after_ms = after_ms;
}

bool hapax_delivery_hurry(const struct hapax_delivery *delivery)
{
    return atomic_load(&delivery->hurry);
}

struct bed {
    struct hapax *h;
    struct hapax__post *post;
    struct hapax_policy policy;
    struct hapax_delivery delivery;
    struct hapax_message_header headers[80];
    struct hapax_answer answer;
    bool reconciles;
    unsigned calls;
    unsigned logged;
    char log[HAPAX_TEXT_MAX];
};

static void keep_line(void *arg, const char *line)
{
    struct bed *bed = arg;

    bed->logged++;
    snprintf(bed->log, sizeof(bed->log), "%s", line);
}

static void bed_open_at(struct bed *bed, const char *to, int64_t timeout_ms)
{
    static const char *const passed[] = {"x-shop", "X-Tenant"};
    char text[HAPAX_TEXT_MAX];
    struct hapax__post_options options = {.to = to,
                                          .reconcile = to,
                                          .broker = "amqp",
                                          .pass_headers = passed,
                                          .pass_header_count = 2,
                                          .timeout_ms = timeout_ms,
                                          .body_max = 4096,
                                          .concurrency = 8,
                                          .log = keep_line,
                                          .log_arg = bed};

    memset(bed, 0, sizeof(*bed));
    hapax_policy_init(&bed->policy);
    bed->policy.max_response = options.body_max;
    bed->policy.timeout_ms = bed->policy.save_wait_ms = WAIT_MS;
    if (hapax__post_open(&bed->post, &options, text) != HAPAX_ERR_NONE)
        fail_msg("%s", text);
    assert_int_equal(hapax_open(&bed->h, "memory:", NULL, text), HAPAX_ERR_NONE);
    bed->delivery.message.body = hapax_str("body");
    bed->delivery.message.from = hapax_str("orders");
    bed->delivery.message.headers = bed->headers;
}

static void bed_open(struct bed *bed, const char *path)
{
    char url[128];

    snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", server.port, path);
    bed_open_at(bed, url, WAIT_MS);
}

static void bed_close(struct bed *bed)
{
    hapax_answer_release(&bed->answer);
    hapax__post_close(bed->post);
    assert_int_equal(hapax_close(bed->h, WAIT_MS), 0);
}

static enum hapax_class call(struct hapax_attempt *attempt, void *arg)
{
    struct bed *bed = arg;

    if (bed->reconciles)
        return hapax__post_reconcile(attempt, &bed->delivery, bed->post);
    return hapax__post_handler(attempt, &bed->delivery, bed->post);
}

/* A new operation each time; its class. */
static enum hapax_class run_as(struct bed *bed, const char *key)
{
    const struct hapax_request request = {.scope = hapax_str("orders"), .key = hapax_str(key)};
    char text[HAPAX_TEXT_MAX];

    hapax_answer_release(&bed->answer);
    if (hapax_execute(bed->h, &bed->policy, &request, call, NULL, bed, &bed->answer, text) !=
        HAPAX_ERR_NONE)
        fail_msg("%s", text);
    return bed->answer.cls;
}

static enum hapax_class run(struct bed *bed)
{
    char key[16];

    snprintf(key, sizeof(key), "k%u", bed->calls++);
    return run_as(bed, key);
}

static enum hapax_class class_at(const char *path)
{
    enum hapax_class cls;
    struct bed bed;

    bed_open(&bed, path);
    cls = run(&bed);
    bed_close(&bed);
    return cls;
}

static void assert_outcome(const struct bed *bed, int status, const char *body)
{
    assert_int_equal(bed->answer.outcome.status, status);
    assert_int_equal(bed->answer.outcome.body.len, strlen(body));
    assert_memory_equal(bed->answer.outcome.body.ptr, body, strlen(body));
}

static void assert_header(const char *name, const char *expected)
{
    const char *value = header_in(server.head, name);

    if (!expected) {
        if (value)
            fail_msg("%s is there: %.60s", name, value);
        return;
    }
    if (!value || strncmp(value, expected, strlen(expected)) != 0 ||
        value[strlen(expected)] != '\r')
        fail_msg("%s: %s is not in\n%s", name, expected, server.head);
}

static void add_header(struct bed *bed, const char *name, const char *value)
{
    assert_true(bed->delivery.message.header_count < 80);
    bed->headers[bed->delivery.message.header_count++] =
        (struct hapax_message_header){hapax_str(name), hapax_str(value)};
}

/* ---- what the handler is told ------------------------------------------------------------- */

/* A message that is no event becomes one. */
CASE(a_message_is_posted_as_a_cloud_event)
{
    struct bed bed;

    bed_open(&bed, "/echo");
    bed.policy.pass_token = true;
    bed.delivery.message.content_type = hapax_str("application/json");
    bed.delivery.message.id = hapax_str("m 1");
    bed.delivery.message.type = hapax_str("order.\"new\"");
    bed.delivery.message.key = hapax_str("caf\xc3\xa9");
    bed.delivery.message.from = hapax_str("eu/or ders");
    bed.delivery.message.time_us = 1700000000000001;
    assert_int_equal(run_as(&bed, "a\"b\\"), HAPAX_CLASS_FINAL);
    assert_memory_equal(server.head, "POST /echo HTTP/1.1\r\n", 21);
    assert_string_equal(server.body, "body");
    assert_header("ce-specversion", "1.0");
    assert_header("ce-id", "m%201");
    assert_header("ce-source", "/amqp/eu/or%2520ders");
    assert_header("ce-type", "order.%22new%22");
    assert_header("ce-time", "2023-11-14T22:13:20.000001Z");
    assert_header("ce-partitionkey", "caf%C3%A9");
    assert_header("Content-Type", "application/json");
    assert_header("Idempotency-Key", "\"a\\\"b\\\\\"");
    assert_header("Idempotency-Attempt", "1");
    assert_non_null(header_in(server.head, "Idempotency-Fence"));
    assert_int_equal(strcspn(header_in(server.head, "Idempotency-Token"), "\r"), 64);
    assert_header("Hapax-Key", "a%22b\\");
    assert_header("Expect", NULL);
    assert_header("User-Agent", "hapax/" HAPAX_VERSION);
    bed_close(&bed);
}

/* A body that is NULL comes as an empty one that is marked; no message can mark itself. */
CASE(a_tombstone_is_told_from_an_empty_value)
{
    struct bed bed;

    bed_open(&bed, "/echo");
    add_header(&bed, "hapax-tombstone", "spoofed");
    bed.delivery.message.body = (struct hapax_span){(const uint8_t *)"", 0};
    assert_int_equal(run_as(&bed, "empty"), HAPAX_CLASS_FINAL);
    assert_string_equal(server.body, "");
    assert_header("Hapax-Tombstone", NULL);
    bed.delivery.message.body = (struct hapax_span){NULL, 0};
    assert_int_equal(run_as(&bed, "tombstone"), HAPAX_CLASS_FINAL);
    assert_string_equal(server.body, "");
    assert_header("Hapax-Tombstone", "true");
    bed_close(&bed);
}

/* Whoever is told the token is told the key that it is of, too, whatever bytes that has. */
CASE(the_key_itself_goes_with_the_token)
{
    static const char *const keys[][2] = {{"k", "k"},
                                          {"h\xc3\xa9llo", "h%C3%A9llo"},
                                          {"100% \"\\", "100%25%20%22\\"},
                                          {"a%20b", "a%2520b"},
                                          {"\xff\r\nX-Injected: 1", "%FF%0D%0AX-Injected:%201"}};
    char longest[HAPAX_KEY_MAX + 1], encoded[3 * HAPAX_KEY_MAX + 1];
    struct bed bed;

    bed_open(&bed, "/echo");
    bed.policy.pass_token = true;
    add_header(&bed, "hapax-key", "spoofed");
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        assert_int_equal(run_as(&bed, keys[i][0]), HAPAX_CLASS_FINAL);
        assert_header("Hapax-Key", keys[i][1]);
        assert_header("X-Injected", NULL);
    }
    for (size_t i = 0; i < HAPAX_KEY_MAX; i++) {
        longest[i] = '\x80';
        memcpy(encoded + 3 * i, "%80", 3);
    }
    longest[HAPAX_KEY_MAX] = encoded[3 * HAPAX_KEY_MAX] = '\0';
    assert_int_equal(run_as(&bed, longest), HAPAX_CLASS_FINAL);
    assert_header("Hapax-Key", encoded);
    bed.policy.pass_token = false;
    assert_int_equal(run_as(&bed, "another"), HAPAX_CLASS_FINAL);
    assert_header("Hapax-Key", NULL);
    bed_close(&bed);
}

/* Its own attributes stand, in whichever spelling they came. */
CASE(an_event_keeps_its_attributes)
{
    struct bed bed;

    bed_open(&bed, "/echo");
    add_header(&bed, "ce_specversion", "1.0");
    add_header(&bed, "ce_id", "e 1");
    add_header(&bed, "ce_source", "/shop");
    add_header(&bed, "cloudEvents:type", "t");
    add_header(&bed, "ce-subject", "a%20b");
    add_header(&bed, "ce_subject", "late");
    add_header(&bed, "ce_dataContentType", "text/plain");
    add_header(&bed, "ce_bad-name", "x");
    bed.delivery.message.id = hapax_str("m");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_header("ce-id", "e%201");
    assert_header("ce-source", "/shop");
    assert_header("ce-type", "t");
    assert_header("ce-subject", "a%20b");
    assert_header("Content-Type", "text/plain");
    assert_header("ce-datacontenttype", NULL);
    assert_header("ce-bad-name", NULL);
    assert_header("Idempotency-Token", NULL);
    bed_close(&bed);
}

/* An event in structured mode is in the body. */
CASE(a_structured_event_is_passed_on_as_it_is)
{
    struct bed bed;

    bed_open(&bed, "/echo");
    bed.delivery.message.content_type = hapax_str("application/cloudevents+json");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_header("Content-Type", "application/cloudevents+json");
    assert_header("ce-id", NULL);
    assert_header("ce-specversion", NULL);
    assert_header("Idempotency-Key", "\"k0\"");
    bed_close(&bed);
}

/* Whoever may publish cannot say what a handler believes of its own proxy: a header keeps its name
 * only where the settings name it, in whichever case, and not with '_' for '-'. */
CASE(a_producer_is_nobody_to_the_handler)
{
    static const char *const names[] = {"Remote-User",
                                        "X-Remote-User",
                                        "X-User-Id",
                                        "X-Auth-Request-User",
                                        "X-Goog-Authenticated-User-Email",
                                        "X-Amzn-Oidc-Identity",
                                        "X-Client-Cert",
                                        "SSL_CLIENT_S_DN",
                                        "X-Api-Key",
                                        "X_Tenant",
                                        "True-Client-IP",
                                        "X-Client-IP",
                                        "X-Rewrite-Url"};
    char prefixed[64];
    struct bed bed;

    bed_open(&bed, "/echo");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        add_header(&bed, names[i], "admin");
    add_header(&bed, "x-tenant", "7");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(prefixed, sizeof(prefixed), "Hapax-Header-%s", names[i]);
        assert_header(names[i], NULL);
        assert_header(prefixed, "admin");
    }
    assert_header("x-tenant", "7");
    assert_header("Hapax-Header-x-tenant", NULL);
    assert_header("Hapax-Left-Out", NULL);
    bed_close(&bed);
}

/* No header of a message says what is the gate's, the connection's or the handler's to say. */
CASE(headers_that_mean_something_are_not_passed_on)
{
    static const char *const names[] = {"hapax-attempts",
                                        "Hapax_Redrive",
                                        "Idempotency-Fence",
                                        "Idempotency_Token",
                                        "idempotency-key",
                                        "Host",
                                        "Connection",
                                        "Transfer-Encoding",
                                        "Content-Length",
                                        "Authorization",
                                        "Cookie",
                                        "Proxy-Authorization",
                                        "X-Forwarded-For",
                                        "X_Forwarded_For",
                                        "TE",
                                        "Upgrade",
                                        "Expect",
                                        "If-None-Match",
                                        "Range",
                                        "Proxy",
                                        "X-HTTP-Method",
                                        "X_Method_Override"};
    struct bed bed;

    bed_open(&bed, "/echo");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        add_header(&bed, names[i], "spoofed");
    add_header(&bed, "x-shop", "42");
    add_header(&bed, "Content-Encoding", "identity");
    add_header(&bed, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    add_header(&bed, "x-empty", "");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_null(strstr(server.head, "spoofed"));
    assert_header("x-shop", "42");
    assert_header("Hapax-Header-x-empty", "");
    assert_header("Content-Encoding", "identity");
    assert_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_header("Hapax-Left-Out", NULL);
    assert_header("Idempotency-Attempt", "1");
    bed_close(&bed);
}

/* A line end in a name or a value makes no line of its own. */
CASE(a_header_ends_no_line)
{
    struct bed bed;

    bed_open(&bed, "/echo");
    add_header(&bed, "x-a", "1\r\nX-Injected: 1");
    add_header(&bed, "x-b", "1\nX-Injected: 1");
    add_header(&bed, "x-c\r\nX-Injected", "1");
    add_header(&bed, "ce_x", "1\r\nX-Injected: 1");
    add_header(&bed, "x d", "1");
    bed.delivery.message.content_type = hapax_str("text/plain\r\nX-Injected: 1");
    bed.delivery.message.id = hapax_str("m\r\nX-Injected: 1");
    bed.delivery.message.type = hapax_str("t\nX-Injected: 1");
    bed.delivery.message.key = hapax_str("k\nX-Injected: 1");
    bed.delivery.message.from = hapax_str("f\r\nX-Injected: 1");
    assert_int_equal(run_as(&bed, "key\r\nX-Injected: 1"), HAPAX_CLASS_FINAL);
    assert_header("X-Injected", NULL);
    assert_header("ce-x", "1%0D%0AX-Injected:%201");
    assert_header("Hapax-Left-Out", "5");
    assert_memory_equal(header_in(server.head, "Idempotency-Key"), "\"sha256-", 8);
    bed_close(&bed);
}

/* What does not fit is left out whole, and said to be; the trace is the last to go. */
CASE(headers_over_the_limits_are_left_out)
{
    static char values[70][8];
    static char large[4098];
    struct bed bed;

    bed_open(&bed, "/echo");
    for (int i = 0; i < 70; i++) {
        snprintf(values[i], sizeof(values[i]), "x-%d", i);
        add_header(&bed, values[i], "1");
    }
    add_header(&bed, "traceparent", "t");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_header("traceparent", "t");
    assert_header("Hapax-Header-x-62", "1");
    assert_header("Hapax-Header-x-63", NULL);
    assert_header("Hapax-Left-Out", "7");
    bed.delivery.message.header_count = 0;
    memset(large, 'v', 4097);
    add_header(&bed, "x-large", large);
    add_header(&bed, "ce_large", large);
    large[4097] = '\0';
    add_header(&bed, "x-small", "1");
    bed.delivery.message.key = hapax_str(large);
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_header("ce-partitionkey", NULL);
    assert_header("Hapax-Header-x-large", NULL);
    assert_header("ce-large", NULL);
    assert_header("Hapax-Header-x-small", "1");
    assert_header("Hapax-Left-Out", "3");
    bed_close(&bed);
}

/* ---- what its answers mean ------------------------------------------------------------------ */

/* The outcome is the answer, without what belongs to one connection or one moment. */
CASE(the_outcome_is_the_whole_answer)
{
    const char *headers = "Content-Type: text/x\r\nX-Foo: bar\r\n";
    struct bed bed;

    bed_open(&bed, "/echo");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_outcome(&bed, 200, "body");
    assert_true(bed.answer.outcome.body_kept && bed.answer.recorded);
    assert_int_equal(bed.answer.outcome.headers.len, strlen(headers));
    assert_memory_equal(bed.answer.outcome.headers.ptr, headers, strlen(headers));
    bed_close(&bed);
}

static void assert_status(int status, enum hapax_class cls, const char *refused)
{
    struct bed bed;
    char path[32];

    snprintf(path, sizeof(path), "/status/%d", status);
    bed_open(&bed, path);
    if (run(&bed) != cls)
        fail_msg("%d is of class %d", status, (int)bed.answer.cls);
    assert_string_equal(bed.delivery.refused, refused);
    bed_close(&bed);
}

/* The table of the issue: a wrong URL must not eat a queue, nor try it for ever. */
CASE(each_status_has_its_class)
{
    static const int not_run[] = {401, 403, 408, 425, 429, 503};

    for (size_t i = 0; i < sizeof(not_run) / sizeof(not_run[0]); i++)
        assert_status(not_run[i], HAPAX_CLASS_NOT_RUN, "");
    assert_status(200, HAPAX_CLASS_FINAL, "");
    assert_status(299, HAPAX_CLASS_FINAL, "");
    assert_status(500, HAPAX_CLASS_FAILED, "");
    assert_status(501, HAPAX_CLASS_FAILED, "");
    assert_status(502, HAPAX_CLASS_UNKNOWN, "");
    assert_status(504, HAPAX_CLASS_UNKNOWN, "");
    assert_status(400, HAPAX_CLASS_FAILED, "handler answered 400");
    assert_status(404, HAPAX_CLASS_FAILED, "handler answered 404");
    assert_status(409, HAPAX_CLASS_FAILED, "handler answered 409");
    assert_status(422, HAPAX_CLASS_FAILED, "handler answered 422");
    assert_int_equal(class_at("/later"), HAPAX_CLASS_NOT_RUN);
}

/* Seconds, or a date, which may be over or a day that never comes. Anything else says nothing. */
CASE(retry_after_is_told)
{
    static const struct {
        const char *value;
        int64_t least_ms, most_ms;
    } cases[] = {
        {"3", 3000, 3000},
        {"86401", 86400000, 86400000},
        {"99999999999999999999", 0, 86400000},
        {"Fri, 31 Dec 9999 23:59:59 GMT", 86400000, 86400000},
        {"Fri, 31 Dec 1999 23:59:59 GMT", 0, 0},
        {"0", 0, 0},
        {"-3", 0, 0},
        {"soon", 0, 0},
        {"", 0, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed bed;

        bed_open(&bed, "/busy");
        bed.delivery.message.body = hapax_str(cases[i].value);
        assert_int_equal(run(&bed), HAPAX_CLASS_NOT_RUN);
        assert_in_range(bed.delivery.retry_after_ms, cases[i].least_ms, cases[i].most_ms);
        bed_close(&bed);
    }
}

/* A redirect is an answer, and nobody is asked behind it. */
CASE(a_redirect_is_not_followed)
{
    unsigned before = count(&server.requests);
    struct bed bed;

    bed_open(&bed, "/redirect");
    assert_int_equal(run(&bed), HAPAX_CLASS_FAILED);
    assert_string_equal(bed.delivery.refused, "handler answered 307");
    assert_int_equal(count(&server.requests), before + 1);
    bed_close(&bed);
}

/* Interim answers are none, and trailers are no headers. */
CASE(only_the_final_answer_counts)
{
    struct bed bed;

    bed_open(&bed, "/early");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_outcome(&bed, 200, "ok");
    assert_int_equal(bed.answer.outcome.headers.len, strlen("X-Final: 1\r\n"));
    bed_close(&bed);
    bed_open(&bed, "/old");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_outcome(&bed, 200, "until it ends");
    bed_close(&bed);
    bed_open(&bed, "/trailer");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_outcome(&bed, 200, "ok");
    assert_int_equal(bed.answer.outcome.headers.len, 0);
    bed_close(&bed);
}

/* What is not a whole answer of HTTP tells nothing: the handler may have run. */
CASE(an_answer_that_is_not_whole_is_unknown)
{
    static const char *const paths[] = {"/garbage",    "/none",       "/reset",
                                        "/half",       "/half-chunk", "/half-head",
                                        "/half-lines", "/switch",     "/number"};

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct bed bed;

        bed_open(&bed, paths[i]);
        bed.policy.lease_ms = 10;
        if (run(&bed) != HAPAX_CLASS_UNKNOWN)
            fail_msg("%s is of class %d", paths[i], (int)bed.answer.cls);
        assert_int_equal(bed.answer.outcome.status, 0);
        bed_close(&bed);
    }
}

/* An answer of HTTP/1.0 without a length may be half of one. */
CASE(an_answer_that_ends_by_close_is_final_under_rerun_alone)
{
    struct bed bed;

    bed_open(&bed, "/old");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_outcome(&bed, 200, "until it ends");
    bed_close(&bed);
    bed_open(&bed, "/old");
    bed.policy.on_expired = HAPAX_EXPIRED_HOLD;
    assert_int_equal(run(&bed), HAPAX_CLASS_UNKNOWN);
    bed_close(&bed);
    bed_open(&bed, "/echo");
    bed.policy.on_expired = HAPAX_EXPIRED_HOLD;
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    bed_close(&bed);
    bed_open(&bed, "/trailer");
    bed.policy.on_expired = HAPAX_EXPIRED_HOLD;
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    bed_close(&bed);
}

/* An answer may take as long as it likes within the time, and comes in as many pieces. */
CASE(a_slow_answer_is_one)
{
    struct bed bed;

    bed_open(&bed, "/slow");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_outcome(&bed, 200, "slow");
    bed_close(&bed);
}

/* What is over the limit is read to its end, done, and not kept. */
CASE(a_large_answer_is_final_and_not_kept)
{
    struct bed bed;

    bed_open(&bed, "/huge/4096");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_true(bed.answer.outcome.body_kept);
    assert_int_equal(bed.answer.outcome.body.len, 4096);
    bed_close(&bed);
    bed_open(&bed, "/huge/4097");
    assert_int_equal(run_as(&bed, "large"), HAPAX_CLASS_FINAL);
    assert_false(bed.answer.outcome.body_kept);
    assert_int_equal(bed.answer.outcome.body.len, 0);
    run_as(&bed, "large");
    assert_int_equal(bed.answer.kind, HAPAX_ANSWER_GONE);
    assert_int_equal(bed.answer.outcome.status, 200);
    bed_close(&bed);
}

/* One that has no end is cut. */
CASE(an_endless_answer_is_cut)
{
    struct bed bed;

    bed_open(&bed, "/endless");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_false(bed.answer.outcome.body_kept);
    bed_close(&bed);
}

/* 64k of headers are kept; of more, none. */
CASE(headers_of_an_answer_have_a_limit)
{
    struct bed bed;

    bed_open(&bed, "/headers/120");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_true(bed.answer.outcome.body_kept && bed.answer.outcome.headers.len > 60000);
    bed_close(&bed);
    bed_open(&bed, "/headers/140");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_false(bed.answer.outcome.body_kept);
    assert_int_equal(bed.answer.outcome.headers.len, 0);
    bed_close(&bed);
}

/* ---- how often it is asked ------------------------------------------------------------------- */

/* A port nobody listens on, until it is closed. */
static int reserve(uint16_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t len = sizeof(at);

    must(fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 &&
         getsockname(fd, (struct sockaddr *)&at, &len) == 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* A message that was never sent did not run: refused, no such host, no handshake. It is logged
 * once. */
CASE(without_a_connection_nothing_ran)
{
    char url[128];
    uint16_t port;
    struct bed bed;
    int fd = reserve(&port);

    snprintf(url, sizeof(url), "http://127.0.0.1:%u/echo", port);
    bed_open_at(&bed, url, WAIT_MS);
    assert_int_equal(run(&bed), HAPAX_CLASS_NOT_RUN);
    assert_int_equal(run(&bed), HAPAX_CLASS_NOT_RUN);
    assert_int_equal(bed.logged, 1);
    assert_non_null(strstr(bed.log, "handler does not answer: "));
    bed_close(&bed);
    bed_open_at(&bed, "http://nowhere.invalid/", WAIT_MS);
    assert_int_equal(run(&bed), HAPAX_CLASS_NOT_RUN);
    bed_close(&bed);
    snprintf(url, sizeof(url), "https://127.0.0.1:%u/echo", server.port);
    bed_open_at(&bed, url, 300);
    assert_int_equal(run(&bed), HAPAX_CLASS_NOT_RUN);
    bed_close(&bed);
    close(fd);
}

/* A handler that never answers is left when its time is over. */
CASE(without_an_answer_in_time_it_is_unknown)
{
    unsigned before = count(&server.requests);
    char url[128];
    struct bed bed;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u/never", server.port);
    bed_open_at(&bed, url, 2000); /* within which it is sent */
    bed.policy.lease_ms = 10;
    assert_int_equal(run(&bed), HAPAX_CLASS_UNKNOWN);
    wait_until(&server.requests, before + 1);
    assert_int_equal(count(&server.requests), before + 1);
    bed_close(&bed);
}

struct cutter {
    atomic_bool *flag;
    unsigned before;
};

/* Sets a flag once the server has the request. */
static void *cut_off(void *arg)
{
    struct cutter *cutter = arg;

    wait_until(&server.requests, cutter->before + 1);
    atomic_store(cutter->flag, true);
    return NULL;
}

static enum hapax_class call_and_lose(struct hapax_attempt *attempt, void *arg)
{
    struct bed *bed = arg;
    struct cutter cutter = {&attempt->lost, bed->delivery.before};
    enum hapax_class cls;
    pthread_t thread;

    must(pthread_create(&thread, NULL, cut_off, &cutter) == 0);
    cls = hapax__post_handler(attempt, &bed->delivery, bed->post);
    pthread_join(thread, NULL);
    return cls;
}

/* Who is in a hurry, or has lost its claim, waits no longer; nobody can tell what became of it. */
CASE(a_hurry_ends_the_wait)
{
    const struct hapax_request request = {.key = hapax_str("lost")};
    char text[HAPAX_TEXT_MAX];
    struct cutter cutter;
    pthread_t thread;
    struct bed bed;

    bed_open(&bed, "/never");
    bed.policy.lease_ms = 100;
    cutter = (struct cutter){&bed.delivery.hurry, count(&server.requests)};
    assert_int_equal(pthread_create(&thread, NULL, cut_off, &cutter), 0);
    assert_int_equal(run(&bed), HAPAX_CLASS_UNKNOWN);
    pthread_join(thread, NULL);
    atomic_store(&bed.delivery.hurry, false);
    hapax_answer_release(&bed.answer);
    bed.delivery.before = count(&server.requests);
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, call_and_lose, NULL, &bed, &bed.answer, text),
        HAPAX_ERR_NONE);
    assert_int_equal(bed.answer.cls, HAPAX_CLASS_UNKNOWN);
    bed_close(&bed);
}

/* One connection serves call after call; one that the server closed meanwhile is not tried. */
CASE(connections_are_kept)
{
    unsigned peers, closed, requests;
    struct bed bed;

    bed_open(&bed, "/echo");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    peers = count(&server.peer_count); /* with those of other cases that were accepted late */
    for (int i = 0; i < 20; i++)
        assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_int_equal(count(&server.peer_count), peers);
    bed_close(&bed);
    wait_until(&server.closed, count(&server.peer_count)); /* not to be counted below */
    bed_open(&bed, "/bye");
    for (int i = 0; i < 3; i++) {
        closed = count(&server.closed);
        requests = count(&server.requests);
        assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
        assert_int_equal(count(&server.requests), requests + 1);
        wait_until(&server.closed, closed + 1);
    }
    bed_close(&bed);
}

/* libcurl would send it anew: the server has read it, and closed the connection that was kept. */
CASE(a_request_is_not_sent_anew)
{
    unsigned before = count(&server.requests);
    struct bed bed;

    bed_open(&bed, "/once");
    bed.policy.lease_ms = 10;
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_int_equal(run(&bed), HAPAX_CLASS_UNKNOWN);
    assert_int_equal(count(&server.requests), before + 2);
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    bed_close(&bed);
}

/* ---- the hook -------------------------------------------------------------------------------- */

/* 2xx: it happened, and this is its answer; 404: it did not; anything else: nobody can tell. */
CASE(the_hook_is_asked_as_the_gate_asks)
{
    struct bed bed;

    bed_open(&bed, "/status/201");
    bed.reconciles = true;
    bed.delivery.message.content_type = hapax_str("text/plain");
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    assert_outcome(&bed, 201, "no");
    assert_memory_equal(server.head, "GET /status/201 HTTP/1.1\r\n", 26);
    assert_header("Content-Type", NULL);
    assert_header("Content-Length", NULL);
    assert_header("Idempotency-Key", "\"k0\"");
    assert_header("ce-source", "/amqp/orders");
    bed_close(&bed);
    bed_open(&bed, "/bare"); /* no length, and no body to be cut */
    bed.reconciles = true;
    assert_int_equal(run(&bed), HAPAX_CLASS_FINAL);
    bed_close(&bed);
    bed_open(&bed, "/status/404");
    bed.reconciles = true;
    assert_int_equal(run(&bed), HAPAX_CLASS_NOT_RUN);
    assert_string_equal(bed.delivery.refused, "");
    bed_close(&bed);
    for (int i = 0; i < 5; i++) { /* what ends by its connection may be half of a "yes" */
        static const char *const paths[] = {"/status/503", "/status/400", "/half", "/redirect",
                                            "/old"};

        bed_open(&bed, paths[i]);
        bed.policy.lease_ms = 10;
        bed.reconciles = true;
        assert_int_equal(run(&bed), HAPAX_CLASS_UNKNOWN);
        bed_close(&bed);
    }
}

/* ---- many, and settings ---------------------------------------------------------------------- */

struct caller {
    struct bed bed; /* its own message; handle and post are shared */
    struct bed *shared;
    pthread_t thread;
};

static enum hapax_class call_shared(struct hapax_attempt *attempt, void *arg)
{
    struct caller *caller = arg;

    return hapax__post_handler(attempt, &caller->bed.delivery, caller->shared->post);
}

static void *call_often(void *arg)
{
    struct caller *caller = arg;
    char body[64], text[HAPAX_TEXT_MAX];

    for (int i = 0; i < 50; i++) {
        struct hapax_answer answer;
        struct hapax_request request = {.key = hapax_str(body)};

        snprintf(body, sizeof(body), "%p-%d", arg, i);
        request.key.len = strlen(body);
        caller->bed.delivery.message.body = hapax_str(body);
        must(hapax_execute(caller->shared->h, &caller->shared->policy, &request, call_shared, NULL,
                           caller, &answer, text) == HAPAX_ERR_NONE);
        must(answer.cls == HAPAX_CLASS_FINAL && answer.outcome.body.len == strlen(body) &&
             memcmp(answer.outcome.body.ptr, body, strlen(body)) == 0);
        hapax_answer_release(&answer);
    }
    return NULL;
}

/* Each caller gets its own answer, over as many connections as there are callers. */
CASE(calls_run_at_once)
{
    static struct caller callers[8];
    unsigned peers = count(&server.peer_count);
    struct bed bed;

    bed_open(&bed, "/echo");
    for (int i = 0; i < 8; i++) {
        callers[i].shared = &bed;
        callers[i].bed.delivery.message.from = hapax_str("orders");
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(callers[i].thread, NULL);
    assert_true(count(&server.peer_count) <= peers + 8);
    bed_close(&bed);
}

static void assert_refused(struct hapax__post_options options, const char *expected)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax__post *post;

    assert_int_equal(hapax__post_open(&post, &options, text), HAPAX_ERR_INVALID);
    assert_null(post);
    assert_string_equal(text, expected);
}

/* A setting that cannot be is named; its URL, which may hold a password, is not said. */
CASE(a_setting_that_cannot_be_is_named)
{
    struct hapax__post_options options = {
        .to = "http://127.0.0.1/", .timeout_ms = 1, .body_max = 0, .concurrency = 1};
    static const char *const names[] = {"",       "a b",   "x\r\ny",    "Host",
                                        "Cookie", "ce-id", "Hapax-Key", "X_Forwarded-For"};
    const char *to = "to is no http:// or https:// URL of at most 8192 bytes";

    options.to = "ftp://u:secret@host/";
    assert_refused(options, to);
    options.to = "http://";
    assert_refused(options, to);
    options.to = "localhost:80";
    assert_refused(options, to);
    options.to = NULL;
    assert_refused(options, to);
    options.to = "http://127.0.0.1/";
    options.reconcile = "/did-it";
    assert_refused(options, "reconcile is no http:// or https:// URL of at most 8192 bytes");
    options.reconcile = NULL;
    options.ca = "/nowhere/ca.pem";
    assert_refused(options, "ca \"/nowhere/ca.pem\" cannot be read");
    options.ca = NULL;
    options.pass_header_count = 1;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char text[HAPAX_TEXT_MAX];

        options.pass_headers = &names[i];
        snprintf(text, sizeof(text), "pass_header \"%s\" is no header that a message may set",
                 names[i]);
        assert_refused(options, text);
    }
    options.pass_header_count = 0;
    options.concurrency = 0;
    assert_refused(options, "concurrency of 0 is not 1 to 1024");
}

int main(void)
{
    setenv("http_proxy", "http://127.0.0.1:1/", 1);
    setenv("https_proxy", "http://127.0.0.1:1/", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1/", 1);
    return cases_run(server_open, server_close);
}
