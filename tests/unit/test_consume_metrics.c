/* SPDX-License-Identifier: Apache-2.0
 *
 * The consumer's pages, asked over real sockets.
 */
#include "../cases.h"
#include "door/consume/metrics.h"
#include "door/consume/stats.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAGE_MAX (64u << 10)

static struct hapax_consumer_stats stats;
static struct hapax__metrics *metrics;
static uint16_t port;
static char page[PAGE_MAX];

static int set_up(void **state)
{
    char text[HAPAX_TEXT_MAX];

    memset(&stats, 0, sizeof(stats));
    stats.connected = stats.store_up = true;
    stats.lag = -1;
    return hapax__metrics_open(&metrics, &(struct hapax__page_place){"127.0.0.1:0", false}, &stats,
                               "amqp://u:***@h/v?queue=\"q\"", &port, text) == HAPAX_ERR_NONE
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    hapax__metrics_close(metrics);
    return 0;
}

static int dial(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval patience = {.tv_sec = 30};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

static void say(int fd, const char *words)
{
    assert_int_equal(send(fd, words, strlen(words), MSG_NOSIGNAL), (ssize_t)strlen(words));
}

/* Reads the whole answer into `page`, and closes. Its status. */
static int hear(int fd)
{
    size_t len = 0;
    ssize_t got;

    while ((got = recv(fd, page + len, PAGE_MAX - 1 - len, 0)) > 0)
        len += (size_t)got;
    page[len] = '\0';
    close(fd);
    assert_memory_equal(page, "HTTP/1.1 ", 9);
    return (int)strtol(page + 9, NULL, 10);
}

static int ask(const char *method, const char *path)
{
    char words[200];
    int fd = dial();

    (void)snprintf(words, sizeof(words), "%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
                   method, path);
    say(fd, words);
    return hear(fd);
}

static void assert_has(const char *line)
{
    if (!strstr(page, line))
        fail_msg("no \"%s\" in:\n%s", line, page);
}

/* Each counter and gauge stands under its own name. */
CASE_WITH(counters_are_shown, set_up, tear_down)
{
    stats.answers[HAPAX_ANSWER_REPLAY] = 7;
    stats.taken = 11;
    stats.run = 12;
    stats.acknowledged = 13;
    stats.retried = 14;
    stats.dead_lettered = 15;
    stats.parked = 16;
    stats.returned = 17;
    stats.voided = 18;
    stats.unprotected = 19;
    stats.unasked = 25;
    stats.store_dead = true;
    stats.reconnects = 20;
    stats.in_hand = 21;
    stats.running = 22;
    stats.letters_refused = 24;
    stats.lag = 23;
    assert_int_equal(ask("GET", "/metrics"), 200);
    assert_has("Content-Type: text/plain; version=0.0.4");
    assert_has("# TYPE hapax_answers_total counter\nhapax_answers_total{answer=\"fresh\"} 0\n");
    assert_has("\nhapax_answers_total{answer=\"replay\"} 7\n");
    assert_has("\nhapax_answers_total{answer=\"bypass\"} 0\n");
    assert_has("\nhapax_answers_total{answer=\"missing_owner\"} 0\n");
    assert_has("\nhapax_consumer_taken_total 11\n");
    assert_has("\nhapax_consumer_run_total 12\n");
    assert_has("\nhapax_consumer_acknowledged_total 13\n");
    assert_has("\nhapax_consumer_retried_total 14\n");
    assert_has("\nhapax_consumer_dead_lettered_total 15\n");
    assert_has("\nhapax_consumer_parked_total 16\n");
    assert_has("\nhapax_consumer_returned_total 17\n");
    assert_has("\nhapax_consumer_voided_total 18\n");
    assert_has("\nhapax_consumer_unprotected_total 19\n");
    assert_has("\n# TYPE hapax_unasked_total counter\nhapax_unasked_total 25\n");
    assert_has("\n# TYPE hapax_store_dead gauge\nhapax_store_dead 1\n");
    assert_has("\nhapax_consumer_reconnects_total 20\n");
    assert_has("\nhapax_consumer_in_hand 21\n");
    assert_has("\nhapax_consumer_running 22\n");
    assert_has("\nhapax_consumer_letters_refused 24\n");
    assert_has("\n# TYPE hapax_consumer_lag gauge\nhapax_consumer_lag 23\n");
    assert_has("\nhapax_consumer_connected 1\n");
    assert_has("\nhapax_consumer_store_up 1\n");
    assert_has("\nhapax_consumer_handler_up 0\n");
    assert_has("\nhapax_consumer_draining 0\n");
}

/* A lag that nobody knows is left out: no number would be true. */
CASE_WITH(an_unknown_lag_is_left_out, set_up, tear_down)
{
    assert_int_equal(ask("GET", "/metrics"), 200);
    assert_null(strstr(page, "hapax_consumer_lag"));
}

/* The name of the source is one label, whatever is in it. */
CASE_WITH(the_source_is_escaped, set_up, tear_down)
{
    assert_int_equal(ask("GET", "/metrics"), 200);
    assert_has("hapax_consumer_info{from=\"amqp://u:***@h/v?queue=\\\"q\\\"\",version=\"");
}

/* Buckets are cumulative, in seconds, and a time stands in each bucket that is not below it. */
CASE_WITH(times_are_a_histogram, set_up, tear_down)
{
    hapax__stats_time(stats.handler_us, &stats.handler_us_sum, 3);
    hapax__stats_time(stats.handler_us, &stats.handler_us_sum, 1000);
    hapax__stats_time(stats.handler_us, &stats.handler_us_sum, 1500000);
    hapax__stats_time(stats.handler_us, &stats.handler_us_sum, INT64_C(2000000000));
    assert_int_equal(ask("GET", "/metrics"), 200);
    assert_has("# TYPE hapax_consumer_handler_seconds histogram\n"
               "hapax_consumer_handler_seconds_bucket{le=\"0.000064\"} 1\n");
    assert_has("hapax_consumer_handler_seconds_bucket{le=\"0.000512\"} 1\n");
    assert_has("hapax_consumer_handler_seconds_bucket{le=\"0.001024\"} 2\n");
    assert_has("hapax_consumer_handler_seconds_bucket{le=\"1.048576\"} 2\n");
    assert_has("hapax_consumer_handler_seconds_bucket{le=\"2.097152\"} 3\n");
    assert_has("hapax_consumer_handler_seconds_bucket{le=\"1073.741824\"} 3\n"
               "hapax_consumer_handler_seconds_bucket{le=\"+Inf\"} 4\n"
               "hapax_consumer_handler_seconds_sum 2001.501003\n"
               "hapax_consumer_handler_seconds_count 4\n");
    assert_has("hapax_consumer_message_seconds_count 0\n");
}

/* Health says what is away, and 503 as long as anything is. */
CASE_WITH(health_says_what_is_away, set_up, tear_down)
{
    const struct {
        bool connected, store_up, draining;
        int status;
        const char *line;
    } cases[] = {
        {true, true, false, 200, "\r\n\r\nok\n"},
        {false, true, false, 503, "\r\n\r\nthe broker is away\n"},
        {true, false, false, 503, "\r\n\r\nthe store is away\n"},
        {false, false, false, 503, "\r\n\r\nbroker and store are away\n"},
        {true, true, true, 503, "\r\n\r\nit is being stopped\n"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        stats.connected = cases[i].connected;
        stats.store_up = cases[i].store_up;
        stats.draining = cases[i].draining;
        assert_int_equal(ask("GET", "/health"), cases[i].status);
        assert_has(cases[i].line);
    }
}

/* Other pages, other methods and bodies are answered, and change nothing. */
CASE_WITH(the_rest_is_refused, set_up, tear_down)
{
    int fd;

    assert_int_equal(ask("GET", "/"), 404);
    assert_int_equal(ask("GET", "/metrics/"), 404);
    assert_int_equal(ask("DELETE", "/metrics"), 405);
    assert_has("Allow: GET, HEAD\r\n");
    fd = dial();
    say(fd,
        "POST /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
    assert_int_equal(hear(fd), 405);
    assert_int_equal(ask("HEAD", "/health"), 200);
    assert_int_equal(ask("GET", "/health"), 200);
}

/* Connections that say nothing take all places; who comes then is served once one of them goes. */
CASE_WITH(idle_connections_are_limited, set_up, tear_down)
{
    static const char words[] = "GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    int idle[8];
    struct timeval moment = {.tv_usec = 200000};
    char byte;
    int fd;

    for (size_t i = 0; i < 8; i++) {
        idle[i] = dial();
        say(idle[i], "G");
    }
    fd = dial();
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof(moment)), 0);
    say(fd, words);
    assert_int_equal(recv(fd, &byte, 1, MSG_PEEK), -1);
    moment.tv_sec = 30;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof(moment)), 0);
    for (size_t i = 0; i < 8; i++)
        close(idle[i]);
    assert_int_equal(hear(fd), 200);
}

/* What is no address is refused with a line that shows it. */
CASE_WITH(bad_addresses_are_named, set_up, tear_down)
{
    static const char *const bad[] = {
        "",          "9464",    "127.0.0.1", "127.0.0.1:", "127.0.0.1:x",
        ":9464",     "h:65536", "h:123456",  "::1:9464",   "127.0.0.1:9464/metrics",
        "[::1]9464", "[]:9464", "h:-1",
    };
    struct hapax__metrics *other;
    char text[HAPAX_TEXT_MAX];
    uint16_t at;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        text[0] = '\0';
        assert_int_equal(hapax__metrics_open(&other, &(struct hapax__page_place){bad[i], false},
                                             &stats, "", &at, text),
                         HAPAX_ERR_INVALID);
        assert_null(other);
        assert_non_null(strstr(text, "metrics: "));
        assert_non_null(strstr(text, "is not HOST:PORT"));
    }
}

/* An address that other machines reach has to be asked for. */
CASE_WITH(an_open_address_is_refused_unless_asked_for, set_up, tear_down)
{
    static const char *const open_to_all[] = {"0.0.0.0:0", "[::]:0", "192.0.2.1:9464"};
    static const char *const own[] = {"127.0.0.9:0", "localhost:0"};
    struct hapax__metrics *other;
    char text[HAPAX_TEXT_MAX];
    uint16_t at;

    for (size_t i = 0; i < sizeof(open_to_all) / sizeof(open_to_all[0]); i++) {
        assert_int_equal(hapax__metrics_open(&other,
                                             &(struct hapax__page_place){open_to_all[i], false},
                                             &stats, "", &at, text),
                         HAPAX_ERR_INVALID);
        assert_non_null(strstr(text, "--metrics-public"));
    }
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        assert_int_equal(hapax__metrics_open(&other, &(struct hapax__page_place){own[i], false},
                                             &stats, "", &at, text),
                         HAPAX_ERR_NONE);
        hapax__metrics_close(other);
    }
    assert_int_equal(hapax__metrics_open(&other, &(struct hapax__page_place){"0.0.0.0:0", true},
                                         &stats, "", &at, text),
                     HAPAX_ERR_NONE);
    hapax__metrics_close(other);
}

/* A port that is taken is another failure, and says so. */
CASE_WITH(a_taken_port_is_named, set_up, tear_down)
{
    struct hapax__metrics *other;
    char text[HAPAX_TEXT_MAX];
    char address[32];
    uint16_t at;

    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    assert_int_equal(hapax__metrics_open(&other, &(struct hapax__page_place){address, false},
                                         &stats, "", &at, text),
                     HAPAX_ERR_UNAVAILABLE);
    assert_null(other);
    assert_non_null(strstr(text, address));
    assert_non_null(strstr(text, "already in use"));
}

static void *count(void *arg)
{
    (void)arg;
    for (int i = 0; i < 200000; i++) {
        hapax__stats_add(&stats.taken, 1);
        hapax__stats_add(&stats.in_hand, 1);
        hapax__stats_time(stats.message_us, &stats.message_us_sum, i);
        hapax__stats_sub(&stats.in_hand, 1);
    }
    return NULL;
}

/* Scrapes while others count: each counter is right in the end. */
CASE_WITH(scrapes_and_counting_do_not_meet, set_up, tear_down)
{
    pthread_t thread[2];

    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, count, NULL), 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(ask("GET", "/metrics"), 200);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(ask("GET", "/metrics"), 200);
    assert_has("hapax_consumer_taken_total 400000\n");
    assert_has("hapax_consumer_message_seconds_count 400000\n");
    assert_has("hapax_consumer_in_hand 0\n");
}
