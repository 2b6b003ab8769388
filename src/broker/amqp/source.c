/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages from a RabbitMQ queue. Channel 1 consumes; channel 2 asks how many messages wait.
 * Methods are sent without waiting for their answers, so only the login blocks.
 *
 * The invariant: `deliveries` has this channel's deliveries that are not released, by tag.
 * `untold` has the released deliveries that the broker does not know of yet. So an acknowledgement
 * of "all up to" a tag below the oldest never includes a message in hand. Both lists end with the
 * channel: the broker delivers those messages again. A tag of an old channel is never sent on a new
 * channel.
 *
 * The broker closes the channel if a message is in hand for longer than its consumer_timeout (30
 * min by default); AMQP cannot extend that time. The channel is opened again. When the message
 * comes back, the loop finds its record in flight.
 *
 * Rejected: acknowledging each message by itself (a frame and a lookup in the broker each); to stop
 * reading while the loop has no room (heartbeats would be missed, and the prefetch limits what
 * comes); a prefetch of the whole channel, which could grow (quorum queues have none).
 */
#include "link.h"
#include "message.h"

#include "base/clock.h"
#include "base/fail.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONSUMING    1 /* channels */
#define COUNTING     2
#define CONSUMER_TAG "hapax" /* of its channel: other channels have the same */
#define STEP         64 /* the prefetch of each consumer, where the driver says at_once */
#define BODY_MAX     (UINT64_C(512) << 20) /* the most that RabbitMQ can be set to take */
/* Between two questions how many messages wait. SOON: where the driver takes them step by step. */
#define COUNT_US      5000000
#define COUNT_SOON_US 1000000
#define RELEASE_BYTES 32u /* of a frame that reports a release */
#define READS_MAX     10000 /* frames within one pump() */
/* A channel that lived shorter is opened again with the pause of a new connection. */
#define REOPEN_US 1000000

struct untold {
    uint64_t tag;
    enum hapax__release how;
};

enum channel { CHANNEL_CLOSED, CHANNEL_ASKED, CHANNEL_OPEN };

struct source {
    struct hapax__source base;
    struct hapax__amqp_uri uri;
    struct hapax__amqp_link link;
    uint16_t prefetch;
    uint32_t asked_for; /* the prefetches of the channel's consumers, together */

    enum channel channel; /* OPEN: messages come */
    int64_t opened_us;
    /* The queue does not exist: the next try makes it. */
    bool declare;
    /* The broker said that the queue is gone. */
    bool cancelled;
    bool was_open;

    enum { NOTHING, HEADER, BODY } awaits; /* of the incoming delivery */
    struct hapax__amqp_coming coming;
    struct hapax__amqp_delivery *filling;

    /* Complete and not released, by tag. */
    TAILQ_HEAD(deliveries, hapax__amqp_delivery) deliveries;
    /* The first that is not taken. All newer ones are not taken either. */
    struct hapax__amqp_delivery *next;
    struct untold *untold;
    size_t untold_count, untold_max;

    enum channel counting; /* OPEN: a question may be asked */
    bool counts; /* a question was asked */
    int64_t count_us;
};

static struct source *of(struct hapax__source *source)
{
    return (struct source *)source;
}

/* ---- opening --------------------------------------------------------------------------- */

static uint16_t prefetch_of(const struct hapax_consumer *consumer, uint16_t most)
{
    uint32_t n = consumer->in_hand_max != 0 ? consumer->in_hand_max : consumer->concurrency * 4;

    if (n > HAPAX_IN_HAND_MAX)
        n = HAPAX_IN_HAND_MAX;
    if (most != 0 && n > most)
        n = most;
    return n > 0 ? (uint16_t)n : 1;
}

static enum hapax_error source_open(struct hapax__source **out,
                                    const struct hapax_consumer *consumer,
                                    char text[HAPAX_TEXT_MAX])
{
    struct source *source = calloc(1, sizeof(*source));
    enum hapax_error error;

    *out = NULL;
    if (!source)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot consume: out of memory");
    error = hapax__amqp_uri(&source->uri, consumer->from, text);
    if (error == HAPAX_ERR_NONE && source->uri.queue[0] == '\0')
        error = hapax__fail(text, HAPAX_ERR_INVALID,
                            "the AMQP URI is wrong: it names no queue (?queue=NAME)");
    if (error == HAPAX_ERR_NONE) {
        source->prefetch = prefetch_of(consumer, source->uri.prefetch);
        source->untold_max = source->prefetch;
        source->untold = calloc(source->untold_max, sizeof(*source->untold));
        if (!source->untold)
            error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot consume: out of memory");
    }
    if (error != HAPAX_ERR_NONE) {
        explicit_bzero(&source->uri, sizeof(source->uri));
        free(source);
        return error;
    }
    TAILQ_INIT(&source->deliveries);
    source->base.type = &hapax__source_amqp;
    source->base.lag = -1;
    source->base.name = source->base.group = source->uri.queue;
    hapax__amqp_link_init(&source->link, &source->uri, source->base.text);
    *out = &source->base;
    return HAPAX_ERR_NONE;
}

/* ---- deliveries ------------------------------------------------------------------------ */

/* Notes whether a message came and was not taken, or is coming in. */
static void note_more(struct source *source)
{
    source->base.more = source->next || source->awaits != NOTHING;
}

/* The channel is gone: the broker delivers its messages again. */
static void void_all(struct source *source)
{
    struct hapax__amqp_delivery *delivery;
    bool taken = true;

    while ((delivery = TAILQ_FIRST(&source->deliveries))) {
        TAILQ_REMOVE(&source->deliveries, delivery, link);
        taken &= delivery != source->next;
        if (taken) {
            delivery->shown.voided = true;
            source->base.voided++;
        } else {
            free(delivery);
        }
    }
    free(source->filling);
    source->filling = NULL;
    source->awaits = NOTHING;
    source->next = NULL;
    source->untold_count = 0;
    source->asked_for = 0;
    source->channel = CHANNEL_CLOSED;
    source->base.connected = false;
}

/* Forgets all that ended with the connection. */
static void forget(struct source *source)
{
    void_all(source);
    source->counting = CHANNEL_CLOSED;
    source->counts = false;
    source->base.lag = -1;
}

static void begin_delivery(struct source *source, const amqp_basic_deliver_t *deliver)
{
    struct hapax__amqp_coming *coming = &source->coming;

    coming->tag = deliver->delivery_tag;
    coming->redelivered = deliver->redelivered;
    coming->key_len = deliver->routing_key.len;
    assert(coming->key_len <= sizeof(coming->key)); /* a short string */
    if (coming->key_len > 0)
        memcpy(coming->key, deliver->routing_key.bytes, coming->key_len);
    source->awaits = HEADER;
}

static void complete(struct source *source)
{
    struct hapax__amqp_delivery *filled = source->filling;
    const struct hapax__amqp_delivery *newest = TAILQ_LAST(&source->deliveries, deliveries);

    if (filled->body_got < filled->body_len)
        return;
    assert(!newest || newest->tag < filled->tag);
    TAILQ_INSERT_TAIL(&source->deliveries, filled, link);
    if (!source->next)
        source->next = filled;
    source->filling = NULL;
    source->awaits = NOTHING;
}

static void take_content(struct source *source, const amqp_frame_t *frame)
{
    if (frame->frame_type == AMQP_FRAME_HEADER && source->awaits == HEADER) {
        uint64_t len = frame->payload.properties.body_size;

        if (len > BODY_MAX) {
            hapax__amqp_link_lose(&source->link, "a message is over 512 MiB");
            return;
        }
        source->filling = hapax__amqp_delivery(&source->coming, frame->payload.properties.decoded,
                                               (size_t)len, hapax_str(source->uri.queue));
        if (!source->filling) {
            hapax__amqp_link_lose(&source->link, "no memory for a message of %zu bytes",
                                  (size_t)len);
            return;
        }
        source->awaits = BODY;
        complete(source);
    } else if (frame->frame_type == AMQP_FRAME_BODY && source->awaits == BODY) {
        struct hapax__amqp_delivery *filling = source->filling;
        amqp_bytes_t part = frame->payload.body_fragment;

        if (part.len > filling->body_len - filling->body_got) {
            hapax__amqp_link_lose(&source->link, "RabbitMQ sent more of a message than it said");
            return;
        }
        memcpy(filling->body + filling->body_got, part.bytes, part.len);
        filling->body_got += part.len;
        complete(source);
    }
}

/* ---- the channels ---------------------------------------------------------------------- */

static void consume(struct source *source, amqp_bytes_t tag)
{
    amqp_basic_consume_t start = {.queue = amqp_cstring_bytes(source->uri.queue),
                                  .consumer_tag = tag};

    (void)hapax__amqp_link_method(&source->link, CONSUMING, AMQP_BASIC_CONSUME_METHOD, &start);
}

/* Whether messages come step by step, as at_once grows. A prefetch in the URI is one step. */
static bool by_steps(const struct source *source)
{
    return source->base.at_once != 0 && source->uri.prefetch == 0;
}

static bool may_ask(const struct source *source)
{
    return source->asked_for < source->prefetch &&
           (!by_steps(source) || source->asked_for < source->base.at_once);
}

/* Lets as many messages come as there may be. The prefetch of a consumer does not grow, so each
 * step has a consumer of its own. */
static void consume_more(struct source *source)
{
    uint32_t step = by_steps(source) ? STEP : source->prefetch;
    char tag[24] = CONSUMER_TAG;

    while (may_ask(source)) {
        uint32_t left = source->prefetch - source->asked_for;
        amqp_basic_qos_t qos = {.prefetch_count = (uint16_t)(left < step ? left : step)};

        if (source->asked_for > 0)
            (void)snprintf(tag, sizeof(tag), "%s-%u", CONSUMER_TAG, source->asked_for);
        (void)hapax__amqp_link_method(&source->link, CONSUMING, AMQP_BASIC_QOS_METHOD, &qos);
        consume(source, amqp_cstring_bytes(tag));
        source->asked_for += qos.prefetch_count;
    }
}

static void open_channel(struct source *source)
{
    amqp_channel_open_t open = {0};

    assert(TAILQ_EMPTY(&source->deliveries) && source->untold_count == 0);
    source->channel = CHANNEL_ASKED;
    source->opened_us = hapax__monotonic_us();
    (void)hapax__amqp_link_method(&source->link, CONSUMING, AMQP_CHANNEL_OPEN_METHOD, &open);
    if (source->declare) {
        struct hapax__amqp_arguments arguments;

        hapax__amqp_arguments(&arguments, &source->link);
        (void)hapax__amqp_declare(&source->link, CONSUMING, source->uri.queue, &arguments);
    }
    consume_more(source);
}

/* Asks how many messages wait. A channel of its own: a refusal closes it, and would void all
 * messages in hand. */
static void ask_count(struct source *source)
{
    int64_t now_us = hapax__monotonic_us();
    amqp_channel_open_t open = {0};

    if (source->channel != CHANNEL_OPEN || now_us < source->count_us || source->counts)
        return;
    source->count_us = now_us + (by_steps(source) ? COUNT_SOON_US : COUNT_US);
    if (source->counting == CHANNEL_CLOSED)
        (void)hapax__amqp_link_method(&source->link, COUNTING, AMQP_CHANNEL_OPEN_METHOD, &open);
    source->counting = CHANNEL_OPEN;
    source->counts = hapax__amqp_declare(&source->link, COUNTING, source->uri.queue, NULL);
}

/* Judges why the channel was closed. REFUSED, or NONE if trying again may help. */
static enum hapax_error judge_close(struct source *source, int code, const char *why, bool was_open)
{
    const char *queue = source->uri.queue;
    int64_t lived_us = hapax__monotonic_us() - source->opened_us;

    /* A queue whose node is down is NOT_FOUND too, and comes back. */
    if (code == AMQP_NOT_FOUND && !strstr(why, "is down or inaccessible")) {
        if (source->uri.declare && !source->declare) {
            source->declare = true;
            open_channel(source);
            return HAPAX_ERR_NONE;
        }
        hapax__amqp_link_lose(&source->link, "queue \"%.140s\" %s (declare=on would make it)",
                              queue, source->cancelled ? "was deleted" : "does not exist");
        return HAPAX_ERR_REFUSED;
    }
    if (code == AMQP_ACCESS_REFUSED) {
        hapax__amqp_link_lose(&source->link, "queue \"%.100s\" may not be read: %.120s", queue,
                              why);
        return HAPAX_ERR_REFUSED;
    }
    if (was_open && lived_us > REOPEN_US) {
        (void)hapax__fail(source->base.text, HAPAX_ERR_NONE, "RabbitMQ closed the channel: %.200s",
                          why);
        source->base.reconnects++;
        open_channel(source);
        return HAPAX_ERR_NONE;
    }
    hapax__amqp_link_lose(&source->link, "cannot consume from \"%.100s\": %.120s", queue, why);
    return HAPAX_ERR_NONE;
}

static enum hapax_error take_close(struct source *source, amqp_channel_t channel,
                                   const amqp_channel_close_t *close)
{
    amqp_channel_close_ok_t ok = {0};
    bool was_open = source->channel == CHANNEL_OPEN;
    int code = close->reply_code;
    char why[200];

    hapax__amqp_text(why, sizeof(why), close->reply_text);
    if (channel == COUNTING) {
        source->counting = CHANNEL_CLOSED;
        source->counts = false;
        source->base.lag = -1;
        (void)hapax__amqp_link_method(&source->link, channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok);
        return HAPAX_ERR_NONE;
    }
    void_all(source);
    if (!hapax__amqp_link_method(&source->link, channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok))
        return HAPAX_ERR_NONE;
    return judge_close(source, code, why, was_open);
}

static void take_consumed(struct source *source)
{
    source->channel = CHANNEL_OPEN;
    source->base.connected = true;
    source->declare = source->cancelled = false;
    source->was_open = true;
    hapax__amqp_link_works(&source->link);
}

/* The broker ended the consumer, but not the channel: the queue is gone, or moves to another node.
 * Asking again tells which. */
static void take_cancel(struct source *source, const amqp_basic_cancel_t *cancel)
{
    amqp_basic_cancel_ok_t ok = {.consumer_tag = cancel->consumer_tag};

    if (!cancel->nowait)
        (void)hapax__amqp_link_method(&source->link, CONSUMING, AMQP_BASIC_CANCEL_OK_METHOD, &ok);
    source->cancelled = true;
    source->channel = CHANNEL_ASKED;
    source->base.connected = false;
    consume(source, cancel->consumer_tag);
}

static enum hapax_error take_method(struct source *source, const amqp_frame_t *frame)
{
    const amqp_method_t *method = &frame->payload.method;

    switch (method->id) {
    case AMQP_BASIC_DELIVER_METHOD:
        begin_delivery(source, method->decoded);
        break;
    case AMQP_BASIC_CONSUME_OK_METHOD:
        take_consumed(source);
        break;
    case AMQP_BASIC_CANCEL_METHOD:
        take_cancel(source, method->decoded);
        break;
    case AMQP_QUEUE_DECLARE_OK_METHOD:
        if (frame->channel != COUNTING)
            break;
        source->base.lag = ((const amqp_queue_declare_ok_t *)method->decoded)->message_count;
        source->counts = false;
        break;
    case AMQP_CHANNEL_CLOSE_METHOD:
        return take_close(source, frame->channel, method->decoded);
    default: /* answers to methods that cannot fail */
        break;
    }
    return HAPAX_ERR_NONE;
}

/* ---- releasing ------------------------------------------------------------------------- */

static bool tell(struct source *source, const struct untold *untold)
{
    amqp_basic_ack_t ack = {.delivery_tag = untold->tag};
    amqp_basic_nack_t nack = {.delivery_tag = untold->tag,
                              .requeue = untold->how == HAPAX__RELEASE_RETURN};

    return untold->how == HAPAX__RELEASE_ACK
               ? hapax__amqp_link_method(&source->link, CONSUMING, AMQP_BASIC_ACK_METHOD, &ack)
               : hapax__amqp_link_method(&source->link, CONSUMING, AMQP_BASIC_NACK_METHOD, &nack);
}

/* Reports the releases of one kind, as many as there is room for, and drops them. */
static size_t tell_each(struct source *source, enum hapax__release how, size_t room)
{
    size_t kept = 0;

    for (size_t i = 0; i < source->untold_count; i++) {
        const struct untold *untold = &source->untold[i];

        if (untold->how == how && room > 0 && tell(source, untold))
            room--;
        else
            source->untold[kept++] = *untold;
    }
    source->untold_count = kept;
    return room;
}

/* Sends one acknowledgement for all messages below the oldest one in hand, and below the oldest one
 * that is released otherwise. */
static void tell_below(struct source *source)
{
    const struct hapax__amqp_delivery *oldest = TAILQ_FIRST(&source->deliveries);
    uint64_t limit = oldest ? oldest->tag : UINT64_MAX, last = 0;
    amqp_basic_ack_t ack = {.multiple = true};
    size_t kept = 0;

    for (size_t i = 0; i < source->untold_count; i++)
        if (source->untold[i].how != HAPAX__RELEASE_ACK && source->untold[i].tag < limit)
            limit = source->untold[i].tag;
    for (size_t i = 0; i < source->untold_count; i++)
        if (source->untold[i].tag < limit && source->untold[i].tag > last)
            last = source->untold[i].tag;
    ack.delivery_tag = last; /* 0 would mean all messages */
    if (last == 0 ||
        !hapax__amqp_link_method(&source->link, CONSUMING, AMQP_BASIC_ACK_METHOD, &ack))
        return;
    for (size_t i = 0; i < source->untold_count; i++)
        if (source->untold[i].tag > last)
            source->untold[kept++] = source->untold[i];
    source->untold_count = kept;
}

/* closing: no return is reported. The end of the channel returns all those messages at once. A
 * classic queue that takes returns one by one needs a time that grows with the square of their
 * number. */
static void flush(struct source *source, bool closing)
{
    size_t room;

    if (source->untold_count == 0)
        return;
    room = hapax__amqp_link_room(&source->link) / RELEASE_BYTES;
    if (!closing)
        room = tell_each(source, HAPAX__RELEASE_RETURN, room);
    room = tell_each(source, HAPAX__RELEASE_REJECT, room);
    if (room == 0)
        return;
    tell_below(source);
    (void)tell_each(source, HAPAX__RELEASE_ACK, room - 1);
}

/* Whether only returns are left to report. */
static bool told_all(const struct source *source)
{
    for (size_t i = 0; i < source->untold_count; i++)
        if (source->untold[i].how != HAPAX__RELEASE_RETURN)
            return false;
    return true;
}

static void source_release(struct hapax__source *base, struct hapax__delivered *delivered,
                           enum hapax__release how)
{
    struct source *source = of(base);
    struct hapax__amqp_delivery *delivery = (struct hapax__amqp_delivery *)delivered;

    if (!delivered->voided)
        TAILQ_REMOVE(&source->deliveries, delivery, link);
    if (!delivered->voided && source->link.state) {
        if (source->untold_count == source->untold_max)
            hapax__amqp_link_lose(&source->link,
                                  "RabbitMQ sent more messages than it was asked for");
        else
            source->untold[source->untold_count++] = (struct untold){delivery->tag, how};
    }
    free(delivery);
}

/* ---- the loop's calls ------------------------------------------------------------------ */

static size_t source_watch(struct hapax__source *base, struct pollfd *fds, int64_t *due_us)
{
    struct source *source = of(base);
    size_t n = hapax__amqp_link_watch(&source->link, source->untold_count > 0, fds, due_us);

    if (source->channel == CHANNEL_OPEN && !source->counts && source->count_us < *due_us)
        *due_us = source->count_us;
    if (source->channel == CHANNEL_OPEN && may_ask(source))
        *due_us = 0;
    return n;
}

static enum hapax_error connect_source(struct source *source)
{
    enum hapax_error error;

    if (hapax__monotonic_us() < source->link.next_us)
        return HAPAX_ERR_NONE;
    error = hapax__amqp_link_connect(&source->link);
    if (error == HAPAX_ERR_UNAVAILABLE)
        return HAPAX_ERR_NONE;
    if (error != HAPAX_ERR_NONE)
        return error;
    source->base.reconnects += source->was_open;
    source->count_us = 0;
    open_channel(source);
    return HAPAX_ERR_NONE;
}

static enum hapax_error read_frames(struct source *source)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    for (int i = 0; i < READS_MAX && error == HAPAX_ERR_NONE; i++) {
        const amqp_frame_t *frame = hapax__amqp_link_read(&source->link);

        if (!frame)
            break;
        if (frame->frame_type == AMQP_FRAME_METHOD)
            error = take_method(source, frame);
        else
            take_content(source, frame);
    }
    return error;
}

static enum hapax_error source_pump(struct hapax__source *base, size_t room)
{
    struct source *source = of(base);
    enum hapax_error error = HAPAX_ERR_NONE;

    (void)room; /* the prefetch limits what comes */
    if (!source->link.state) {
        forget(source);
        error = connect_source(source);
        if (error != HAPAX_ERR_NONE)
            return error;
    }
    if (source->link.state) {
        hapax__amqp_link_cork(&source->link, true);
        flush(source, false);
        error = read_frames(source);
        if (source->channel == CHANNEL_OPEN)
            consume_more(source);
        ask_count(source);
        hapax__amqp_link_cork(&source->link, false);
    }
    if (!source->link.state)
        forget(source);
    note_more(source);
    return error;
}

static struct hapax__delivered *source_take(struct hapax__source *base)
{
    struct source *source = of(base);
    struct hapax__amqp_delivery *delivery = source->next;

    if (!delivery)
        return NULL;
    source->next = TAILQ_NEXT(delivery, link);
    note_more(source);
    return &delivery->shown;
}

/* Reads what came. *consumes: the broker has not confirmed the consumer's end yet. Returns whether
 * the broker closed the channel as it was asked to, after all that was sent before. */
static bool read_goodbye(struct source *source, bool *consumes)
{
    const amqp_frame_t *frame;

    while ((frame = hapax__amqp_link_read(&source->link)) != NULL) {
        amqp_method_number_t id =
            frame->frame_type == AMQP_FRAME_METHOD ? frame->payload.method.id : 0;

        if (id == AMQP_BASIC_CANCEL_OK_METHOD)
            *consumes = false;
        else if (id == AMQP_CHANNEL_CLOSE_OK_METHOD)
            return true;
    }
    return !source->link.state;
}

/* Ends the consumer, and closes the channel only after the broker's answer. A quorum queue has 32
 * acknowledgements of a channel under way; more are kept in the channel, and a close drops them.
 * The end of the consumer is a command of the queue: when it is answered, so are all before it, and
 * the channel has sent what it kept. */
static void say_goodbye(struct source *source, int64_t wait_ms)
{
    int64_t deadline_us = hapax__monotonic_us() + wait_ms * 1000, left_us;
    amqp_basic_cancel_t cancel = {.consumer_tag = amqp_cstring_bytes(CONSUMER_TAG)};
    amqp_channel_close_t close = {.reply_code = AMQP_REPLY_SUCCESS};
    bool cancelling = false, consumes = true, closing = false, done = false;

    while (!done && source->link.state && (left_us = deadline_us - hapax__monotonic_us()) > 0) {
        struct pollfd fd = {.events = (short)(POLLIN | (cancelling ? 0 : POLLOUT))};

        fd.fd = amqp_get_sockfd(source->link.state);
        (void)poll(&fd, 1, left_us < 1000000 ? (int)(left_us / 1000) + 1 : 1000);
        if (!cancelling)
            flush(source, true);
        if (!cancelling && told_all(source) && hapax__amqp_link_room(&source->link) > 0)
            cancelling = hapax__amqp_link_method(&source->link, CONSUMING, AMQP_BASIC_CANCEL_METHOD,
                                                 &cancel);
        done = read_goodbye(source, &consumes);
        if (!consumes && !closing)
            closing = hapax__amqp_link_method(&source->link, CONSUMING, AMQP_CHANNEL_CLOSE_METHOD,
                                              &close);
    }
}

static void source_close(struct hapax__source *base, int64_t wait_ms)
{
    struct source *source = of(base);

    assert(TAILQ_FIRST(&source->deliveries) == source->next); /* all that was taken is released */
    if (source->channel == CHANNEL_OPEN)
        say_goodbye(source, wait_ms);
    hapax__amqp_link_release(&source->link);
    void_all(source);
    free(source->untold);
    explicit_bzero(&source->uri, sizeof(source->uri));
    free(source);
}

const struct hapax__source_type hapax__source_amqp = {
    .schemes = {"amqp", "amqps"},
    .delays = true,
    .rejects = true,
    .orders = HAPAX_ORDER_NONE,
    .open = source_open,
    .watch = source_watch,
    .pump = source_pump,
    .take = source_take,
    .release = source_release,
    .close = source_close,
};
