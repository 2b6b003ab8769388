/* SPDX-License-Identifier: Apache-2.0
 *
 * The Kafka sink: an idempotent producer. librdkafka sends a letter again by itself, without
 * doubling or reordering letters, until message.timeout.ms is over. What librdkafka reports in the
 * end is the letter's result.
 *
 * The invariant: each letter taken is reaped once, or forgotten by close(). REFUSED means that the
 * broker surely does not have the letter and would refuse it again. LOST means that the broker may
 * have it; the caller sends it again. After a fatal error the old client first reports all its
 * letters; then there is a new client.
 *
 * A letter to NAME that is delayed goes to the topic NAME.retry, with a header that says when the
 * source may hand it out. The sink makes that topic with the first such letter.
 *
 * Rejected: lending librdkafka the letter's bytes instead of copying them. When its queue is
 * purged, librdkafka reports a message although a socket may still be sending its bytes.
 */
#include "broker/slots.h"
#include "kafka.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AGAIN           (1000 * US_PER_MS) /* before another try */
#define TICK            (1000 * US_PER_MS)
#define OUTSTANDING_MAX 10000u
#define MAKES_MAX       16u /* topics */
#define MAKE_TIMEOUT_MS 10000
#define LOOK_MS         2000
#define CLOSE_WAIT      (5000 * US_PER_MS)
#define HEADERS_MAX     (HAPAX_MESSAGE_HEADERS_MAX + 32u)

struct sink {
    struct hapax__sink base; /* the first member: the loop uses it */
    struct hapax__kafka_uri uri;
    int wake; /* eventfd */
    rd_kafka_t *rk; /* NULL: to be made at make_us */
    rd_kafka_queue_t *common, *replies;
    int64_t make_us;
    bool broken; /* a fatal error */
    bool had_client;
    struct hapax__slots slots; /* its queues are the topics to be made */
};

static struct sink *of(struct hapax__sink *sink)
{
    return (struct sink *)sink;
}

static void say(struct sink *s, const char *what, const char *why)
{
    snprintf(s->base.text, sizeof(s->base.text), "%.100s: %s", what, why);
}

/* ---- reports --------------------------------------------------------------------------------- */

/* Whether the letter would be refused again. */
static bool lasting(rd_kafka_resp_err_t error)
{
    switch (error) {
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_INVALID_RECORD:
    case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
    case RD_KAFKA_RESP_ERR_INVALID_CONFIG:
        return true;
    default:
        return false;
    }
}

static void delivered_cb(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque)
{
    struct sink *s = opaque;
    struct hapax__slot *slot = message->_private;

    (void)rk;
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
        s->base.connected = true;
        s->base.text[0] = '\0';
        hapax__slots_finish(&s->slots, slot, HAPAX__SENT_OK);
        return;
    }
    say(s, rd_kafka_topic_name(message->rkt), rd_kafka_err2str(message->err));
    if (rd_kafka_message_status(message) == RD_KAFKA_MSG_STATUS_NOT_PERSISTED &&
        lasting(message->err))
        hapax__slots_refuse(&s->slots, slot, "%s", s->base.text);
    else
        hapax__slots_finish(&s->slots, slot, HAPAX__SENT_LOST);
}

static bool is_login(int error)
{
    return error == RD_KAFKA_RESP_ERR__AUTHENTICATION ||
           error == RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED;
}

static void error_cb(rd_kafka_t *rk, int error, const char *why, void *opaque)
{
    struct sink *s = opaque;
    char fatal[HAPAX_TEXT_MAX] = "";

    if (error == RD_KAFKA_RESP_ERR__FATAL) {
        s->broken = rd_kafka_fatal_error(rk, fatal, sizeof(fatal)) != RD_KAFKA_RESP_ERR_NO_ERROR;
        say(s, "the Kafka client gave up, and is started anew", fatal);
        return;
    }
    if (is_login(error) && rd_kafka_controllerid(rk, 0) < 0) { /* no broker has told it anything */
        s->base.refused = true;
        say(s, "cannot publish", hapax__kafka_login_refused(s->uri.conf));
    }
    if (error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
        s->base.connected = false;
    else if (!s->base.refused)
        say(s, rd_kafka_err2name((rd_kafka_resp_err_t)error), why);
}

/* ---- topics ----------------------------------------------------------------------------- */

static void ask_for_topic(struct sink *s, struct hapax__sink_queue *topic)
{
    char why[HAPAX_TEXT_MAX] = "";
    rd_kafka_NewTopic_t *wanted =
        rd_kafka_NewTopic_new(topic->name, s->uri.partitions, -1, why, sizeof(why));
    rd_kafka_AdminOptions_t *options;

    if (!wanted) { /* a bad name: its letters are refused when they are sent */
        say(s, topic->name, why);
        topic->state = HAPAX__QUEUE_READY;
        return;
    }
    options = rd_kafka_AdminOptions_new(s->rk, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    (void)rd_kafka_AdminOptions_set_request_timeout(options, MAKE_TIMEOUT_MS, why, sizeof(why));
    rd_kafka_AdminOptions_set_opaque(options, topic);
    rd_kafka_CreateTopics(s->rk, &wanted, 1, options, s->replies);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_NewTopic_destroy(wanted);
    topic->state = HAPAX__QUEUE_ASKED;
}

/* A topic that we may not make may exist all the same: its letters will show. */
static void topic_made(struct sink *s, const rd_kafka_event_t *event)
{
    struct hapax__sink_queue *topic = rd_kafka_event_opaque((rd_kafka_event_t *)event);
    const rd_kafka_CreateTopics_result_t *result =
        rd_kafka_event_CreateTopics_result((rd_kafka_event_t *)event);
    size_t n = 0;
    const rd_kafka_topic_result_t **topics =
        result ? rd_kafka_CreateTopics_result_topics(result, &n) : NULL;
    rd_kafka_resp_err_t error = n == 1 ? rd_kafka_topic_result_error(topics[0])
                                       : rd_kafka_event_error((rd_kafka_event_t *)event);

    if (error == RD_KAFKA_RESP_ERR_NO_ERROR || error == RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS) {
        s->base.connected = true;
        topic->state = HAPAX__QUEUE_READY;
        return;
    }
    say(s, topic->name, rd_kafka_err2str(error));
    switch (error) {
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR:
    case RD_KAFKA_RESP_ERR_INVALID_PARTITIONS:
    case RD_KAFKA_RESP_ERR_INVALID_CONFIG:
    case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
    case RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION:
    case RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE:
        topic->state = HAPAX__QUEUE_READY;
        return;
    default:
        topic->state = HAPAX__QUEUE_UNKNOWN;
        topic->again_us = hapax__monotonic_us() + AGAIN;
    }
}

static void see_topics(struct sink *s, int64_t now_us)
{
    struct hapax__sink_queue *topic;
    rd_kafka_event_t *event;

    while ((event = rd_kafka_queue_poll(s->replies, 0))) {
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_CREATETOPICS_RESULT)
            topic_made(s, event);
        rd_kafka_event_destroy(event);
    }
    while ((topic = hapax__slots_unknown(&s->slots, now_us)))
        ask_for_topic(s, topic);
}

/* ---- the client ------------------------------------------------------------------------------ */

static void make_client(struct sink *s, int64_t now_us)
{
    static const uint64_t one = 1;
    char why[HAPAX_TEXT_MAX] = "";
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(s->uri.conf);

    rd_kafka_conf_set_opaque(conf, s);
    rd_kafka_conf_set_dr_msg_cb(conf, delivered_cb);
    rd_kafka_conf_set_error_cb(conf, error_cb);
    rd_kafka_conf_set_log_cb(conf, NULL);
    s->make_us = now_us + AGAIN;
    s->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
    if (!s->rk) {
        /* Where there was a client before, its files are being changed. */
        s->base.refused = !s->had_client && rd_kafka_last_error() == RD_KAFKA_RESP_ERR__INVALID_ARG;
        rd_kafka_conf_destroy(conf);
        say(s, "cannot start the Kafka client", why);
        return;
    }
    s->base.refused = false;
    s->had_client = true;
    s->common = rd_kafka_queue_get_main(s->rk);
    s->replies = rd_kafka_queue_new(s->rk);
    rd_kafka_queue_io_event_enable(s->common, s->wake, &one, sizeof(one));
    rd_kafka_queue_io_event_enable(s->replies, s->wake, &one, sizeof(one));
    s->broken = false;
}

/* Reports all letters under way, as lost if they may have arrived, and ends the client. */
static void unmake_client(struct sink *s, int64_t until_us)
{
    struct hapax__sink_queue *topic;

    (void)rd_kafka_purge(s->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    while (rd_kafka_outq_len(s->rk) > 0 && hapax__monotonic_us() < until_us)
        rd_kafka_poll(s->rk, 10);
    rd_kafka_queue_io_event_enable(s->common, -1, NULL, 0);
    rd_kafka_queue_io_event_enable(s->replies, -1, NULL, 0);
    rd_kafka_queue_destroy(s->common);
    rd_kafka_queue_destroy(s->replies);
    rd_kafka_destroy(s->rk);
    s->rk = NULL;
    s->base.connected = false;
    TAILQ_FOREACH (topic, &s->slots.queues, link)
        if (topic->state == HAPAX__QUEUE_ASKED)
            topic->state = HAPAX__QUEUE_UNKNOWN;
}

static void sink_pump(struct hapax__sink *sink)
{
    struct sink *s = of(sink);
    int64_t now_us = hapax__monotonic_us();
    uint64_t count;

    while (read(s->wake, &count, sizeof(count)) < 0 && errno == EINTR)
        continue;
    if (!s->rk && now_us >= s->make_us)
        make_client(s, now_us);
    if (!s->rk)
        return;
    rd_kafka_poll(s->rk, 0);
    see_topics(s, now_us);
    if (s->broken)
        unmake_client(s, now_us + CLOSE_WAIT);
}

static size_t sink_watch(struct hapax__sink *sink, struct pollfd *fds, int64_t *due_us)
{
    struct sink *s = of(sink);
    int64_t topics_us;

    fds[0] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    *due_us = s->rk ? hapax__monotonic_us() + TICK : s->make_us;
    topics_us = s->rk ? hapax__slots_due(&s->slots, true) : INT64_MAX;
    if (topics_us < *due_us)
        *due_us = topics_us;
    return 1;
}

/* ---- letters ---------------------------------------------------------------------------- */

static bool has(const struct hapax_message_header *headers, size_t count, struct hapax_span name)
{
    for (size_t i = 0; i < count; i++)
        if (hapax__same(headers[i].name, name))
            return true;
    return false;
}

static bool add(rd_kafka_headers_t *headers, struct hapax_span name, struct hapax_span value)
{
    return rd_kafka_header_add(headers, (const char *)name.ptr, (ssize_t)name.len, value.ptr,
                               (ssize_t)value.len) == RD_KAFKA_RESP_ERR_NO_ERROR;
}

static bool add_missing(rd_kafka_headers_t *headers, const struct hapax__letter *letter,
                        const char *name, struct hapax_span value)
{
    return value.len == 0 || has(letter->headers, letter->header_count, hapax_str(name)) ||
           add(headers, hapax_str(name), value);
}

/* Adds the time from which on a delayed letter may be handed out. An older such header is not
 * copied. */
static bool add_due(rd_kafka_headers_t *headers, int64_t delay_ms)
{
    char text[32];

    if (delay_ms <= 0)
        return true;
    snprintf(text, sizeof(text), "%" PRId64, hapax__wall_us() / US_PER_MS + delay_ms);
    return add(headers, hapax_str(HAPAX__KAFKA_DUE), hapax_str(text));
}

/* NULL: out of memory. */
static rd_kafka_headers_t *headers_of(const struct hapax__letter *letter)
{
    rd_kafka_headers_t *headers =
        rd_kafka_headers_new(letter->header_count + letter->own_count + 3);
    bool ok = headers != NULL;

    for (size_t i = 0; ok && i < letter->own_count; i++)
        ok = add(headers, letter->own[i].name, letter->own[i].value);
    for (size_t i = 0; ok && i < letter->header_count; i++) {
        struct hapax_span name = letter->headers[i].name;
        bool ours = name.len >= 6 && memcmp(name.ptr, "hapax-", 6) == 0;

        if (hapax__same(name, hapax_str(HAPAX__KAFKA_DUE)) ||
            (ours && has(letter->own, letter->own_count, name)))
            continue;
        ok = add(headers, name, letter->headers[i].value);
    }
    ok = ok && add_missing(headers, letter, "content-type", letter->content_type) &&
         add_missing(headers, letter, "message-id", letter->id) &&
         add_missing(headers, letter, "message-type", letter->type) &&
         add_due(headers, letter->delay_ms);
    if (!ok && headers)
        rd_kafka_headers_destroy(headers);
    return ok ? headers : NULL;
}

/* Writes the topic that a letter goes to. False: its name is too long. */
static bool topic_of(char out[HAPAX__KAFKA_TOPIC_MAX + 1], const struct hapax__letter *letter)
{
    int len = snprintf(out, HAPAX__KAFKA_TOPIC_MAX + 1, "%s%s", letter->to,
                       letter->delay_ms > 0 ? HAPAX__KAFKA_RETRY : "");

    return len > 0 && (size_t)len <= HAPAX__KAFKA_TOPIC_MAX;
}

/* Hands a letter to librdkafka and returns the error. A key, body or header value with a NULL
 * pointer is NULL in Kafka, too. */
static rd_kafka_resp_err_t produce(struct sink *s, const char *topic, struct hapax__slot *slot)
{
    const struct hapax__letter *letter = &slot->letter;
    rd_kafka_headers_t *headers = headers_of(letter);
    rd_kafka_resp_err_t error;

    if (!headers)
        return RD_KAFKA_RESP_ERR__QUEUE_FULL;
    error =
        rd_kafka_producev(s->rk, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                          RD_KAFKA_V_VALUE((void *)(uintptr_t)letter->body.ptr, letter->body.len),
                          RD_KAFKA_V_KEY(letter->key.ptr, letter->key.len),
                          RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_OPAQUE(slot), RD_KAFKA_V_END);
    if (error)
        rd_kafka_headers_destroy(headers);
    return error;
}

static bool sink_send(struct hapax__sink *sink, const struct hapax__letter *letter)
{
    char name[HAPAX__KAFKA_TOPIC_MAX + 1];
    struct sink *s = of(sink);
    bool named = topic_of(name, letter);
    const struct hapax__sink_queue *topic = NULL;
    rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION;
    struct hapax__slot *slot;

    /* The topic for delayed letters is made with the first of them. */
    if (named && letter->delay_ms > 0)
        topic = hapax__slots_make(&s->slots, name);
    else if (named)
        topic = hapax__slots_find(&s->slots, name);
    if (!s->rk || s->broken || (topic && topic->state != HAPAX__QUEUE_READY))
        return false;
    slot = hapax__slots_take(&s->slots, letter);
    if (!slot)
        return false;
    hapax__slots_sent(&s->slots, slot);
    if (named)
        error = produce(s, name, slot);
    if (error == RD_KAFKA_RESP_ERR__QUEUE_FULL || error == RD_KAFKA_RESP_ERR__FATAL) {
        hapax__slots_untake(&s->slots, slot);
        return false;
    }
    if (error && lasting(error))
        hapax__slots_refuse(&s->slots, slot, "%.100s: %s", letter->to, rd_kafka_err2str(error));
    else if (error)
        hapax__slots_finish(&s->slots, slot, HAPAX__SENT_LOST);
    return true;
}

static enum hapax__sent sink_reap(struct hapax__sink *sink, void **tag)
{
    return hapax__slots_reap(&of(sink)->slots, tag);
}

/* ---- opening and closing ---------------------------------------------------------------- */

static void sink_make(struct hapax__sink *sink, const char *name)
{
    if (strlen(name) <= HAPAX__KAFKA_TOPIC_MAX)
        (void)hapax__slots_make(&of(sink)->slots, name);
}

static enum hapax__sent sink_look(struct hapax__sink *sink)
{
    const struct rd_kafka_metadata *found = NULL;
    struct sink *s = of(sink);
    rd_kafka_topic_t *topic = s->rk ? rd_kafka_topic_new(s->rk, sink->name, NULL) : NULL;
    rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR__STATE;

    if (!s->rk && sink->refused) {
        (void)snprintf(sink->why, HAPAX_TEXT_MAX, "%s", sink->text);
        return HAPAX__SENT_REFUSED;
    }
    if (topic)
        error = rd_kafka_metadata(s->rk, 0, topic, &found, LOOK_MS);
    if (!error && found->topic_cnt == 1)
        error = found->topics[0].err;
    if (found)
        rd_kafka_metadata_destroy(found);
    if (topic)
        rd_kafka_topic_destroy(topic);
    if (error && !lasting(error))
        return HAPAX__SENT_NOTHING;
    if (error)
        (void)snprintf(sink->why, HAPAX_TEXT_MAX, "%.100s: %s", sink->name,
                       rd_kafka_err2str(error));
    return error ? HAPAX__SENT_REFUSED : HAPAX__SENT_OK;
}

static void sink_close(struct hapax__sink *sink)
{
    struct sink *s = of(sink);

    if (s->rk)
        unmake_client(s, hapax__monotonic_us() + CLOSE_WAIT);
    hapax__slots_release(&s->slots);
    rd_kafka_conf_destroy(s->uri.conf);
    close(s->wake);
    free(s);
}

/* Makes a client and ends it: only then librdkafka judges some properties together. This client has
 * no broker and no login, so it connects to nobody and reads no file. */
static enum hapax_error try_client(const rd_kafka_conf_t *settings, char text[HAPAX_TEXT_MAX])
{
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(settings);
    enum hapax_error error = HAPAX_ERR_NONE;
    char why[HAPAX_TEXT_MAX] = "";
    rd_kafka_t *rk;

    (void)rd_kafka_conf_set(conf, "bootstrap.servers", NULL, why, sizeof(why));
    (void)rd_kafka_conf_set(conf, "security.protocol", "plaintext", why, sizeof(why));
    rd_kafka_conf_set_log_cb(conf, NULL);
    rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
    if (rk) {
        rd_kafka_destroy(rk);
        return HAPAX_ERR_NONE;
    }
    if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__INVALID_ARG)
        error = hapax__fail(text, HAPAX_ERR_INVALID, "the Kafka URI is wrong: %s", why);
    rd_kafka_conf_destroy(conf);
    return error;
}

static enum hapax_error sink_open(struct hapax__sink **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    struct sink *s = calloc(1, sizeof(*s));
    enum hapax_error error;

    if (!s || !hapax__slots_init(&s->slots, &s->base, sizeof(struct hapax__slot), OUTSTANDING_MAX,
                                 sizeof(struct hapax__sink_queue), MAKES_MAX)) {
        free(s);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    }
    error = hapax__kafka_begin(&s->uri, &s->wake, uri, HAPAX__KAFKA_SINK, text);
    if (error != HAPAX_ERR_NONE) {
        hapax__slots_release(&s->slots);
        free(s);
        return error;
    }
    error = try_client(s->uri.conf, text);
    if (error != HAPAX_ERR_NONE) {
        sink_close(&s->base);
        return error;
    }
    s->base.type = &hapax__sink_kafka;
    s->base.name = s->uri.topic;
    *out = &s->base;
    return HAPAX_ERR_NONE;
}

const struct hapax__sink_type hapax__sink_kafka = {
    .schemes = {"kafka"},
    .open = sink_open,
    .make = sink_make,
    .look = sink_look,
    .watch = sink_watch,
    .pump = sink_pump,
    .send = sink_send,
    .reap = sink_reap,
    .close = sink_close,
};
