/* SPDX-License-Identifier: Apache-2.0
 *
 * The Kafka source. Each partition has a queue, from which messages are taken as there is room.
 * librdkafka stops fetching a partition whose queue is long enough. So no partition is ever paused.
 * The common queue, with rebalances and errors, is polled at every pump, which keeps
 * max.poll.interval.ms. A partition is not read while its window is full or its next message is not
 * due.
 *
 * The invariant: a message that was taken is in its partition's window until it is released as ACK.
 * Only then may an offset behind it be committed. A returned message stays in memory and is handed
 * out again: no other consumer could get it while the partition is ours.
 *
 * Rejected: rd_kafka_pause_partitions(), which drops what was fetched (a resume costs up to a
 * second) and cannot report its state; one queue for all partitions, in which a rebalance stands
 * behind thousands of messages; seeking back for a returned message, which also fetches all
 * messages behind it again.
 */
#include "source.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define AGAIN (1000 * US_PER_MS) /* before another try */
/* The longest wait for the messages of a revoked partition. */
#define LEAVE_MAX (10000 * US_PER_MS)
/* Messages of one partition before those of the next. */
#define TURN 64u
/* The question whether a topic exists. */
#define LOOK_MAX_MS   2000
#define CLOSE_TICK_MS 20
#define END_PAUSE     (3000 * US_PER_MS)

static struct hapax__kafka_source *of(struct hapax__source *source)
{
    return (struct hapax__kafka_source *)source;
}

static void say(struct hapax__kafka_source *s, const char *what, const char *why)
{
    snprintf(s->base.text, sizeof(s->base.text), "%s: %s", what, why);
}

static void refuse(struct hapax__kafka_source *s, const char *why)
{
    s->refused = true;
    snprintf(s->base.text, sizeof(s->base.text),
             "cannot read topic \"%.80s\" as group \"%.60s\": %s", s->uri.topic, s->uri.group, why);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void fatal(struct hapax__kafka_source *s)
{
    char why[HAPAX_TEXT_MAX] = "";
    rd_kafka_resp_err_t error = rd_kafka_fatal_error(s->rk, why, sizeof(why));

    if (error == RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID) {
        refuse(s, "another consumer has the same group.instance.id");
        return;
    }
    say(s, "the Kafka client gave up, and is started anew", why);
    s->broken = true;
}

/* topic: the topic that the error is about; NULL: none. */
static void see_error(struct hapax__kafka_source *s, rd_kafka_resp_err_t error, const char *why,
                      const char *topic)
{
    switch (error) {
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
        /* A retry topic is made with the first message that is to be tried later. If it was made
         * just now, some brokers do not know it yet. So the error counts only when a second
         * question ends the same way. */
        if (topic && strcmp(topic, s->uri.topic) == 0 && s->missing_us == 0)
            s->missing_us = hapax__monotonic_us() + AGAIN;
        return;
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET:
        refuse(s, rd_kafka_err2str(error));
        return;
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
    case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
        if (!s->seen)
            refuse(s, hapax__kafka_login_refused(s->uri.conf));
        return;
    case RD_KAFKA_RESP_ERR__FATAL:
        fatal(s);
        return;
    case RD_KAFKA_RESP_ERR__TRANSPORT:
    case RD_KAFKA_RESP_ERR__RESOLVE:
        say(s, "no broker answers", why);
        hapax__kafka_doubt(s);
        return;
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN: /* the text says which */
        hapax__kafka_doubt(s);
        return;
    default:
        say(s, rd_kafka_err2name(error), why);
    }
}

static void error_cb(rd_kafka_t *rk, int error, const char *why, void *opaque)
{
    (void)rk;
    see_error(opaque, (rd_kafka_resp_err_t)error, why, NULL);
}

/* Writes librdkafka's log only where `debug` asks for it. Errors worth a line come by
 * error_cb(). */
static void log_cb(const rd_kafka_t *rk, int level, const char *facility, const char *what)
{
    const struct hapax__kafka_source *s = rd_kafka_opaque(rk);
    void (*log)(void *arg, const char *line) = __atomic_load_n(&s->log, __ATOMIC_RELAXED);
    char line[1024];

    if (!log || (level > LOG_CRIT && level != LOG_DEBUG))
        return;
    snprintf(line, sizeof(line), "librdkafka: %s: %s", facility, what);
    log(s->log_arg, line);
}

/* Asks whether the topic exists. Blocks; if the answer is no, the consumer ends. */
static void look_for_topic(struct hapax__kafka_source *s)
{
    const struct rd_kafka_metadata *found = NULL;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(s->rk, s->uri.topic, NULL);
    rd_kafka_resp_err_t error =
        topic ? rd_kafka_metadata(s->rk, 0, topic, &found, LOOK_MAX_MS) : rd_kafka_last_error();

    s->missing_us = error ? hapax__monotonic_us() + AGAIN : 0;
    assert(error || found);
    if (!error && found->topic_cnt == 1) {
        if (found->topics[0].err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            refuse(s, "there is no such topic");
        else if (found->topics[0].err != RD_KAFKA_RESP_ERR_NO_ERROR)
            s->missing_us = hapax__monotonic_us() + AGAIN;
    }
    if (found)
        rd_kafka_metadata_destroy(found);
    if (topic)
        rd_kafka_topic_destroy(topic);
}

/* ---- the client ------------------------------------------------------------------------------ */

static void make_queues(struct hapax__kafka_source *s)
{
    static const uint64_t one = 1;

    rd_kafka_poll_set_consumer(s->rk);
    s->common = rd_kafka_queue_get_consumer(s->rk);
    s->replies = rd_kafka_queue_new(s->rk);
    rd_kafka_queue_io_event_enable(s->common, s->wake, &one, sizeof(one));
    rd_kafka_queue_io_event_enable(s->replies, s->wake, &one, sizeof(one));
}

/* Has the retry topic begin at its beginning, whatever the URI says of the own topic: its first
 * letters are older than its assignment, and their messages are acknowledged. librdkafka keeps the
 * settings of a topic for as long as the topic is held. Rejected: an offset in the assignment. It
 * takes what the group has committed, which only the broker knows. */
static rd_kafka_resp_err_t hold_retry(struct hapax__kafka_source *s)
{
    rd_kafka_topic_conf_t *conf = rd_kafka_default_topic_conf_dup(s->rk);
    char why[HAPAX_TEXT_MAX];
    rd_kafka_conf_res_t result =
        rd_kafka_topic_conf_set(conf, "auto.offset.reset", "earliest", why, sizeof(why));

    assert(result == RD_KAFKA_CONF_OK);
    s->held = rd_kafka_topic_new(s->rk, s->retry, conf);
    return s->held ? RD_KAFKA_RESP_ERR_NO_ERROR : rd_kafka_last_error();
}

static void subscribe(struct hapax__kafka_source *s)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(2);
    rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_NO_ERROR;

    rd_kafka_topic_partition_list_add(list, s->uri.topic, RD_KAFKA_PARTITION_UA);
    if (s->retry[0] != '\0') {
        rd_kafka_topic_partition_list_add(list, s->retry, RD_KAFKA_PARTITION_UA);
        error = hold_retry(s);
    }
    if (!error)
        error = rd_kafka_subscribe(s->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    if (error)
        refuse(s, rd_kafka_err2str(error));
}

/* If librdkafka cannot make a client (the CA file is missing, for example), it frees the
 * interceptors. What remains of the conf must not be destroyed: that would free them again. The
 * conf stays in a static variable, where a leak checker sees it. */
static void leave_behind(rd_kafka_conf_t *conf)
{
    static _Atomic(rd_kafka_conf_t *) left;

    atomic_store(&left, conf);
}

static void make(struct hapax__kafka_source *s, int64_t now_us)
{
    char why[HAPAX_TEXT_MAX] = "";
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(s->uri.conf);

    rd_kafka_conf_set_opaque(conf, s);
    rd_kafka_conf_set_rebalance_cb(conf, hapax__kafka_rebalanced);
    rd_kafka_conf_set_error_cb(conf, error_cb);
    rd_kafka_conf_set_log_cb(conf, log_cb);
    hapax__kafka_group_listen(s, conf);
    s->assigned = s->stillborn = false;
    s->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, why, sizeof(why));
    if (!s->rk) {
        leave_behind(conf);
        s->make_us = now_us + AGAIN;
        if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__INVALID_ARG)
            refuse(s, why);
        else
            say(s, "cannot start the Kafka client", why);
        return;
    }
    make_queues(s);
    s->committing = s->broken = false;
    s->commit_us = s->missing_us = 0;
    s->ask_us = now_us + AGAIN;
    subscribe(s);
}

/* Destroys the client, after its messages, queues and topic: rd_kafka_destroy() waits for ever for
 * each of them. */
static void unmake(struct hapax__kafka_source *s)
{
    assert(s->lent == 0);
    hapax__kafka_void_all(s);
    rd_kafka_queue_io_event_enable(s->common, -1, NULL, 0);
    rd_kafka_queue_io_event_enable(s->replies, -1, NULL, 0);
    rd_kafka_queue_destroy(s->common);
    rd_kafka_queue_destroy(s->replies);
    if (s->held)
        rd_kafka_topic_destroy(s->held);
    if (s->stillborn)
        s->kept = true;
    else
        rd_kafka_destroy_flags(s->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    s->rk = NULL;
    s->common = s->replies = NULL;
    s->held = NULL;
}

static void mend(struct hapax__kafka_source *s, int64_t now_us)
{
    hapax__kafka_void_all(s);
    hapax__kafka_seen(s, false);
    if (s->lent > 0)
        return;
    hapax__kafka_group_stillborn(s);
    unmake(s);
    s->make_us = now_us + AGAIN;
}

/* ---- pumping -----------------------------------------------------------------------------------
 */

/* Serves errors. A message comes here only if memory ran out for its partition; it is not
 * committed. */
static void serve(struct hapax__kafka_source *s)
{
    rd_kafka_message_t *message;

    while (!s->broken && (message = rd_kafka_consumer_poll(s->rk, 0))) {
        if (message->err)
            see_error(s, message->err, rd_kafka_message_errstr(message),
                      message->rkt ? rd_kafka_topic_name(message->rkt) : NULL);
        rd_kafka_message_destroy(message);
    }
}

static void drain_wake(struct hapax__kafka_source *s)
{
    uint64_t count;

    while (read(s->wake, &count, sizeof(count)) < 0 && errno == EINTR)
        continue;
}

static enum hapax_error source_pump(struct hapax__source *source, size_t room)
{
    struct hapax__kafka_source *s = of(source);
    int64_t now_us = hapax__monotonic_us();

    s->room = room;
    drain_wake(s);
    if (!s->rk && now_us >= s->make_us && !s->refused)
        make(s, now_us);
    if (s->rk && !s->broken) {
        serve(s);
        hapax__kafka_group_pump(s, now_us);
    }
    if (s->rk && s->missing_us != 0 && now_us >= s->missing_us && !s->refused)
        look_for_topic(s);
    if (s->rk && s->broken)
        mend(s, now_us);
    return s->refused ? HAPAX_ERR_REFUSED : HAPAX_ERR_NONE;
}

/* A topic that was made anew, or was cut off at its end, has offsets below what is done or
 * committed. */
static bool goes_back(const struct hapax__kafka_part *part, int64_t offset)
{
    return offset < hapax__kafka_window_least(&part->window) || offset < part->committed;
}

/* Nothing from before may be in hand, or about to be committed. */
static bool may_go_back(const struct hapax__kafka_source *s, const struct hapax__kafka_part *part)
{
    return part->window.head == part->window.tail && !s->committing;
}

static void go_back(struct hapax__kafka_part *part)
{
    part->window.next = part->committed = -1;
}

static bool must_wait(const struct hapax__kafka_source *s, const struct hapax__kafka_part *part)
{
    return goes_back(part, part->first->raw->offset) && !may_go_back(s, part);
}

static int64_t part_due(const struct hapax__kafka_source *s, const struct hapax__kafka_part *part)
{
    int64_t due_us = INT64_MAX;

    if (part->leaving)
        return due_us;
    if (part->again)
        due_us = part->again->due_us;
    if (part->first && part->first->due_us < due_us && hapax__kafka_window_open(&part->window) &&
        !must_wait(s, part))
        due_us = part->first->due_us;
    return due_us;
}

static size_t source_watch(struct hapax__source *source, struct pollfd *fds, int64_t *due_us)
{
    struct hapax__kafka_source *s = of(source);

    fds[0] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    if (!s->rk) {
        *due_us = s->refused ? INT64_MAX : s->make_us;
        return 1;
    }
    /* A broken client is mended at once, or with the release of the last message that is lent. */
    if (s->broken) {
        *due_us = s->parts || s->lent == 0 ? 0 : INT64_MAX;
        return 1;
    }
    *due_us = hapax__kafka_group_due(s);
    if (s->missing_us != 0 && s->missing_us < *due_us)
        *due_us = s->missing_us;
    for (const struct hapax__kafka_part *part = s->parts; part && s->room > 0;
         part = part->after_it) {
        int64_t part_us = part_due(s, part);

        *due_us = part_us < *due_us ? part_us : *due_us;
    }
    return 1;
}

/* ---- taking ----------------------------------------------------------------------------- */

/* Reads both clocks together: with an older monotonic time the message would come too soon. */
static void set_due(const struct hapax__kafka_source *s, struct hapax__kafka_item *item)
{
    int64_t wait_ms = hapax__kafka_item_due(item) - hapax__wall_us() / US_PER_MS;

    if (wait_ms > s->wait_max_ms)
        wait_ms = s->wait_max_ms;
    item->due_us = wait_ms > 0 ? hapax__monotonic_us() + wait_ms * US_PER_MS : 0;
}

/* All messages before the end were taken. The commit has no haste: each commit while members come
 * and go may meet a join (group.c). */
static void see_end(struct hapax__kafka_source *s, struct hapax__kafka_part *part, int64_t end,
                    int64_t now_us)
{
    bool other = hapax__kafka_uncommitted(s);

    if (goes_back(part, end) && may_go_back(s, part))
        go_back(part);
    hapax__kafka_window_end(&part->window, end);
    if (!other && hapax__kafka_uncommitted(s) && s->commit_us < now_us + END_PAUSE)
        s->commit_us = now_us + END_PAUSE;
}

/* Takes what the queue has beside messages: an error, or the end. */
static void see_sign(struct hapax__kafka_source *s, struct hapax__kafka_part *part,
                     const rd_kafka_message_t *sign, int64_t now_us)
{
    if (sign->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
        see_end(s, part, sign->offset, now_us);
    else
        see_error(s, sign->err, rd_kafka_message_errstr(sign), hapax__kafka_topic_of(s, part));
}

/* Fetches the next message of the partition's queue. NULL: none, or no memory now. */
static struct hapax__kafka_item *fetch(struct hapax__kafka_source *s,
                                       struct hapax__kafka_part *part, int64_t now_us)
{
    struct hapax__kafka_item *item;

    while (!part->raw) {
        part->raw = rd_kafka_consume_queue(part->queue, 0);
        if (!part->raw)
            return NULL;
        if (part->raw->err) {
            see_sign(s, part, part->raw, now_us);
            rd_kafka_message_destroy(part->raw);
            part->raw = NULL;
        }
    }
    if (!s->base.connected)
        hapax__kafka_seen(s, true);
    item = hapax__kafka_item_new(s, part, part->raw);
    if (!item)
        return NULL;
    part->raw = NULL;
    if (part->retry)
        set_due(s, item);
    return item;
}

static struct hapax__kafka_item *take_again(struct hapax__kafka_part *part)
{
    struct hapax__kafka_item *item = part->again;

    part->again = item->next;
    if (!part->again)
        part->again_end = &part->again;
    item->next = NULL;
    return item;
}

/* The partition's next message that may be handed out. */
static struct hapax__kafka_item *next_of(struct hapax__kafka_source *s,
                                         struct hapax__kafka_part *part, int64_t now_us)
{
    struct hapax__kafka_item *item;

    if (part->leaving)
        return NULL;
    if (part->again && part->again->due_us <= now_us)
        return take_again(part);
    if (!hapax__kafka_window_open(&part->window))
        return NULL;
    if (!part->first)
        part->first = fetch(s, part, now_us);
    item = part->first;
    if (!item || item->due_us > now_us || must_wait(s, part))
        return NULL;
    if (goes_back(part, item->raw->offset))
        go_back(part);
    if (!hapax__kafka_window_add(&part->window, item->raw->offset, item, &item->index))
        return NULL;
    part->first = NULL;
    return item;
}

/* Notes whether messages are here that cannot be handed out now. */
static void note_more(struct hapax__kafka_source *s)
{
    for (const struct hapax__kafka_part *part = s->parts; part; part = part->after_it)
        if (!part->leaving &&
            (part->raw || part->first || part->again || !hapax__kafka_window_open(&part->window)))
            s->base.more = true;
}

static void turn_to(struct hapax__kafka_source *s, struct hapax__kafka_part *part)
{
    s->turn = part ? part : s->parts;
    s->turn_left = TURN;
}

static struct hapax__delivered *lend(struct hapax__kafka_source *s, struct hapax__kafka_item *item)
{
    s->turn_left--;
    s->lent++;
    item->part->lent++;
    item->lent = true;
    return &item->delivered;
}

/* Takes a few messages of each partition in turn, so that none starves another. */
static struct hapax__delivered *source_take(struct hapax__source *source)
{
    struct hapax__kafka_source *s = of(source);
    int64_t now_us = hapax__monotonic_us();
    struct hapax__kafka_part *first;

    s->base.more = false;
    if (!s->parts)
        return NULL;
    if (!s->turn || s->turn_left == 0)
        turn_to(s, s->turn ? s->turn->after_it : NULL);
    first = s->turn;
    do {
        struct hapax__kafka_item *item = next_of(s, s->turn, now_us);

        if (item)
            return lend(s, item);
        turn_to(s, s->turn->after_it);
    } while (s->turn != first);
    note_more(s);
    return NULL;
}

/* ---- releasing -------------------------------------------------------------------------- */

static void give_back(struct hapax__kafka_item *item)
{
    struct hapax__kafka_part *part = item->part;

    item->delivered.message.redelivered = true;
    item->delivered.loop = NULL;
    item->due_us = 0;
    *part->again_end = item;
    part->again_end = &item->next;
}

static void source_release(struct hapax__source *source, struct hapax__delivered *delivered,
                           enum hapax__release how)
{
    struct hapax__kafka_source *s = of(source);
    struct hapax__kafka_item *item = (struct hapax__kafka_item *)delivered;
    struct hapax__kafka_part *part = item->part;

    assert(item->lent && s->lent > 0 && how != HAPAX__RELEASE_REJECT);
    item->lent = false;
    s->lent--;
    if (!part) {
        hapax__kafka_item_free(item);
        return;
    }
    assert(part->lent > 0);
    part->lent--;
    if (how == HAPAX__RELEASE_RETURN) {
        give_back(item);
    } else {
        hapax__kafka_window_done(&part->window, item->index);
        hapax__kafka_item_free(item);
    }
    if (part->leaving && part->lent == 0)
        s->commit_us = 0;
}

/* ---- closing ---------------------------------------------------------------------------- */

static void release(struct hapax__kafka_source *s)
{
    rd_kafka_conf_destroy(s->uri.conf);
    close(s->wake);
    if (!s->kept)
        free(s);
}

/* Commits all that is done. A rebalance may be going on, and must end first. */
static void commit_all(struct hapax__kafka_source *s, int64_t until_us)
{
    while ((s->committing || hapax__kafka_uncommitted(s)) && hapax__monotonic_us() < until_us &&
           !s->broken && !rd_kafka_assignment_lost(s->rk)) {
        serve(s);
        hapax__kafka_group_pump(s, hapax__monotonic_us());
        hapax__kafka_replies(s, CLOSE_TICK_MS);
    }
}

static void *unmake_apart(void *arg)
{
    struct hapax__kafka_source *s = arg;

    unmake(s);
    release(s);
    return NULL;
}

/* Destroying a client may never end: if it was not closed, or (librdkafka 2.0.2) if its topic was
 * deleted and made anew. So another thread destroys it, and is waited for until then. */
static void destroy(struct hapax__kafka_source *s, int64_t until_us)
{
    const struct timespec until = hapax__timespec(until_us);
    pthread_t thread;

    __atomic_store_n(&s->log, NULL, __ATOMIC_RELAXED);
    if (pthread_create(&thread, NULL, unmake_apart, s) == 0 &&
        pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) != 0)
        (void)pthread_detach(thread);
}

static void source_close(struct hapax__source *source, int64_t wait_ms)
{
    struct hapax__kafka_source *s = of(source);
    int64_t until_us = hapax__monotonic_us() + wait_ms * US_PER_MS;

    assert(s->lent == 0 && wait_ms >= 0);
    if (s->rk && !s->broken) {
        s->commit_us = 0;
        commit_all(s, until_us);
        (void)hapax__kafka_group_leave(s, until_us);
    } else if (s->rk) {
        hapax__kafka_group_stillborn(s);
    }
    if (s->rk)
        destroy(s, until_us);
    else
        release(s);
}

/* ---- opening ---------------------------------------------------------------------------- */

static void set_limits(struct hapax__kafka_source *s, const struct hapax_consumer *consumer)
{
    char value[32] = "";
    size_t size = sizeof(value);
    int64_t poll_ms = 0;

    if (rd_kafka_conf_get(s->uri.conf, "max.poll.interval.ms", value, &size) == RD_KAFKA_CONF_OK)
        poll_ms = strtoll(value, NULL, 10);
    s->leave_max_us = poll_ms * US_PER_MS / 4 < LEAVE_MAX ? poll_ms * US_PER_MS / 4 : LEAVE_MAX;
    s->wait_max_ms = consumer->retry_max_ms;
    s->order = consumer->order == HAPAX_ORDER_DEFAULT ? HAPAX_ORDER_KEY : consumer->order;
}

static enum hapax_error source_open(struct hapax__source **out,
                                    const struct hapax_consumer *consumer,
                                    char text[HAPAX_TEXT_MAX])
{
    struct hapax__kafka_source *s = calloc(1, sizeof(*s));
    enum hapax_error error;

    if (!s)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    error = hapax__kafka_begin(&s->uri, &s->wake, consumer->from, HAPAX__KAFKA_SOURCE, text);
    if (error != HAPAX_ERR_NONE) {
        free(s);
        return error;
    }
    set_limits(s, consumer);
    snprintf(s->name, sizeof(s->name), "%.*s.%.*s", (int)strlen(s->uri.topic), s->uri.topic,
             (int)strlen(s->uri.group), s->uri.group);
    if (s->order == HAPAX_ORDER_NONE)
        snprintf(s->retry, sizeof(s->retry), "%.*s%s", (int)strlen(s->name), s->name,
                 HAPAX__KAFKA_RETRY);
    s->log = consumer->log;
    s->log_arg = consumer->log_arg;
    s->base.type = &hapax__source_kafka;
    s->base.lag = -1;
    s->base.name = s->name;
    s->base.group = s->uri.group;
    *out = &s->base;
    return HAPAX_ERR_NONE;
}

const struct hapax__source_type hapax__source_kafka = {
    .schemes = {"kafka"},
    .delays = true, /* with order NONE */
    .positions = true,
    .orders = HAPAX_ORDER_KEY,
    .open = source_open,
    .watch = source_watch,
    .pump = source_pump,
    .take = source_take,
    .release = source_release,
    .close = source_close,
};
