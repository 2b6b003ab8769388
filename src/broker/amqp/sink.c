/* SPDX-License-Identifier: Apache-2.0
 *
 * Letters to RabbitMQ queues, by way of the default exchange. Channel 1 publishes, with confirms and `mandatory`; channel
 * 2 asks for queues and makes them, so that a refusal there takes no letters with it.
 *
 * The invariant: a letter is in exactly one of the lists, waiting → unconfirmed → done. It is OK only where the broker
 * acknowledged it and did not return it; whatever was sent when the channel ended is LOST. A letter that comes back is
 * told by a number among its headers: a return says no other.
 *
 * A delay is a queue of its own, NAME.retry.SECONDS, whose messages all live equally long and then go to NAME: RabbitMQ
 * looks for what is over at a queue's head only, so that one queue of different delays would hold the short ones up. Of
 * type quorum, the move is confirmed (at-least-once dead-lettering), so that a broker that dies in the midst of it loses
 * nothing; classic queues cannot promise that, which is why quorum is the default.
 *
 * Rejected: the delayed-message plugin, which is in no RabbitMQ as it comes; an expiration per message.
 */
#include "link.h"
#include "message.h"

#include "base/clock.h"
#include "base/fail.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLISHING     1 /* channels */
#define MAKING         2
#define LETTERS_MAX    1024u /* sent and not reaped */
#define QUEUES_MAX     256u /* that are known by name */
#define DELAY_MAX_S    (UINT32_C(1) << 17)
#define READS_MAX      10000 /* frames within one pump() */
#define AROUND_BYTES   1024u /* of a letter's method, properties and usual headers */
#define FRAME_OVERHEAD 8u
#define PART_MIN       1024u /* of a body that is sent in parts */
#define ASK_AGAIN_US   5000000 /* a queue that was refused */
#define HUNG_US        60000000 /* one that held the channel up */
#define CONFIRM_US     30000000 /* within which the broker confirms the oldest letter */
#define REOPEN_US                                                                                  \
    1000000 /* a channel that lived shorter is opened with the pause of a new connection */

struct queue {
    char name[256];
    enum { UNKNOWN, ASKED, MAKE, MADE, READY, REFUSED } state; /* MADE: asked to be */
    bool makes; /* where it is not there */
    uint32_t delay_s; /* 0: no retry queue */
    const struct queue *target; /* a retry queue's */
    int64_t refused_until_us;
};

struct slot {
    struct slot *before, *behind;
    struct hapax__letter letter;
    struct queue *queue; /* that it goes to; NULL: it is only hoped to be there */
    uint64_t number; /* of its publishing on this channel */
    int64_t sent_us;
    size_t sent; /* bytes of its body */
    enum hapax__sent result;
    bool returned;
};

struct list {
    struct slot *first, *last;
};

enum channel { CHANNEL_CLOSED, CHANNEL_ASKED, CHANNEL_OPEN };

struct sink {
    struct hapax__sink base;
    struct hapax__amqp_uri uri;
    struct hapax__amqp_link link;

    enum channel channel; /* PUBLISHING */
    int64_t opened_us;
    uint64_t numbers; /* of the letters published on it */
    bool returning; /* a returned letter's header comes next */

    bool making_open; /* MAKING */
    struct queue *asking; /* what the answer there is about */

    struct list free, waiting, unconfirmed, done;
    struct slot *sending; /* the first of waiting, whose body is half sent */
    struct slot slots[LETTERS_MAX];
    struct queue *queues[QUEUES_MAX];
    size_t queue_count;
    amqp_table_entry_t entries[HAPAX__AMQP_ENTRIES_MAX];
    amqp_pool_t pool; /* of the letter that is begun */
};

static struct sink *of(struct hapax__sink *sink)
{
    return (struct sink *)sink;
}

/* ---- lists ----------------------------------------------------------------------------- */

/* Where it is published to. */
static const char *name_of(const struct slot *slot)
{
    return slot->queue ? slot->queue->name : slot->letter.to;
}

static void push(struct list *list, struct slot *slot)
{
    slot->before = list->last;
    slot->behind = NULL;
    if (list->last)
        list->last->behind = slot;
    else
        list->first = slot;
    list->last = slot;
}

static void unlink_slot(struct list *list, struct slot *slot)
{
    if (slot->before)
        slot->before->behind = slot->behind;
    else
        list->first = slot->behind;
    if (slot->behind)
        slot->behind->before = slot->before;
    else
        list->last = slot->before;
}

static void finish(struct sink *sink, struct list *from, struct slot *slot, enum hapax__sent result)
{
    unlink_slot(from, slot);
    slot->result = result;
    push(&sink->done, slot);
    if (slot == sink->sending)
        sink->sending = NULL;
}

/* ---- opening --------------------------------------------------------------------------- */

static enum hapax_error sink_open(struct hapax__sink **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    struct sink *sink = calloc(1, sizeof(*sink));
    enum hapax_error error;

    *out = NULL;
    if (!sink)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot publish: out of memory");
    error = hapax__amqp_uri(&sink->uri, uri, text);
    if (error != HAPAX_ERR_NONE) {
        free(sink);
        return error;
    }
    init_amqp_pool(&sink->pool, 4096);
    sink->base.type = &hapax__sink_amqp;
    sink->base.name = sink->uri.queue;
    hapax__amqp_link_init(&sink->link, &sink->uri, sink->base.text);
    for (size_t i = 0; i < LETTERS_MAX; i++)
        push(&sink->free, &sink->slots[i]);
    *out = &sink->base;
    return HAPAX_ERR_NONE;
}

/* ---- queues ---------------------------------------------------------------------------- */

/* NULL: too many, or out of memory; text says so. */
static struct queue *queue_of(struct sink *sink, const char *name)
{
    struct queue *queue;

    for (size_t i = 0; i < sink->queue_count; i++)
        if (strcmp(sink->queues[i]->name, name) == 0)
            return sink->queues[i];
    queue = sink->queue_count < QUEUES_MAX ? calloc(1, sizeof(*queue)) : NULL;
    if (!queue || strlen(name) >= sizeof(queue->name)) {
        (void)hapax__fail(
            sink->base.text, HAPAX_ERR_INVALID, "cannot publish to \"%.100s\": %s", name,
            queue ? "its name is over 255 bytes" : "more than 256 queues, or out of memory");
        free(queue);
        return NULL;
    }
    memcpy(queue->name, name, strlen(name) + 1);
    sink->queues[sink->queue_count++] = queue;
    return queue;
}

static uint32_t round_delay(int64_t delay_ms)
{
    uint32_t s = 1;

    while (s < DELAY_MAX_S && (int64_t)s * 1000 < delay_ms)
        s *= 2;
    return s;
}

/* The queue that holds letters to `to` back. NULL: as queue_of(). */
static struct queue *retry_queue(struct sink *sink, const char *to, int64_t delay_ms)
{
    uint32_t delay_s = round_delay(delay_ms);
    struct queue *target = queue_of(sink, to), *queue;
    char name[512];

    if (!target)
        return NULL;
    (void)snprintf(name, sizeof(name), "%s.retry.%u", target->name, delay_s);
    queue = queue_of(sink, name);
    if (queue) {
        queue->makes = true;
        queue->delay_s = delay_s;
        queue->target = target;
    }
    return queue;
}

static bool is_refused(const struct queue *queue)
{
    return queue && (queue->state == REFUSED || is_refused(queue->target));
}

static bool is_ready(const struct queue *queue)
{
    return !queue || (queue->state == READY && is_ready(queue->target));
}

static void refuse(struct sink *sink, struct queue *queue, const char *why)
{
    queue->state = REFUSED;
    queue->refused_until_us = hapax__monotonic_us() + ASK_AGAIN_US;
    (void)hapax__fail(sink->base.text, HAPAX_ERR_REFUSED, "cannot use queue \"%.100s\": %.120s",
                      queue->name, why);
}

static void make_arguments(struct sink *sink, const struct queue *queue,
                           struct hapax__amqp_arguments *out)
{
    hapax__amqp_arguments(out, &sink->link);
    if (queue->delay_s == 0)
        return;
    hapax__amqp_argument_number(out, "x-message-ttl", (int64_t)queue->delay_s * 1000);
    hapax__amqp_argument_text(out, "x-dead-letter-exchange", "");
    hapax__amqp_argument_text(out, "x-dead-letter-routing-key", queue->target->name);
    if (sink->uri.classic)
        return;
    hapax__amqp_argument_text(out, "x-dead-letter-strategy", "at-least-once");
    hapax__amqp_argument_text(out, "x-overflow", "reject-publish"); /* the strategy asks for it */
}

/* Asks for the next queue that is not known yet, one at a time. A queue that is there already is taken as it is, but
 * for one that has to delay. */
static void ask_queues(struct sink *sink)
{
    struct queue *queue = NULL;
    amqp_channel_open_t open = {0};
    struct hapax__amqp_arguments arguments;

    if (sink->asking || sink->channel != CHANNEL_OPEN)
        return;
    for (size_t i = 0; i < sink->queue_count && !queue; i++)
        if (sink->queues[i]->state == UNKNOWN || sink->queues[i]->state == MAKE)
            queue = sink->queues[i];
    if (!queue)
        return;
    if (!sink->making_open)
        (void)hapax__amqp_link_method(&sink->link, MAKING, AMQP_CHANNEL_OPEN_METHOD, &open);
    sink->making_open = true;
    sink->asking = queue;
    if (queue->state == MAKE || queue->delay_s > 0) {
        make_arguments(sink, queue, &arguments);
        queue->state = MADE;
        (void)hapax__amqp_declare(&sink->link, MAKING, queue->name, &arguments);
    } else {
        queue->state = ASKED;
        (void)hapax__amqp_declare(&sink->link, MAKING, queue->name, NULL);
    }
}

static void take_declared(struct sink *sink)
{
    if (sink->asking)
        sink->asking->state = READY;
    sink->asking = NULL;
}

static void take_making_close(struct sink *sink, int code, const char *why)
{
    struct queue *queue = sink->asking;
    char text[HAPAX_TEXT_MAX];

    sink->making_open = false;
    sink->asking = NULL;
    if (!queue)
        return;
    if (code == AMQP_NOT_FOUND && queue->state == ASKED && queue->makes &&
        !strstr(why, "is down or inaccessible")) {
        queue->state = MAKE;
    } else if (code == AMQP_PRECONDITION_FAILED && strstr(why, "inequivalent")) {
        (void)snprintf(text, sizeof(text),
                       "it is there with other arguments; delete it once it is "
                       "empty, or see `type` (%.60s)",
                       why);
        refuse(sink, queue, text);
    } else {
        refuse(sink, queue, why);
    }
}

static void sink_make(struct hapax__sink *base, const char *name)
{
    struct queue *queue = queue_of(of(base), name);

    if (!queue)
        return;
    queue->makes = true;
    if (queue->state == REFUSED)
        queue->state = UNKNOWN;
}

/* ---- publishing ------------------------------------------------------------------------ */

static bool sink_send(struct hapax__sink *base, const struct hapax__letter *letter)
{
    struct sink *sink = of(base);
    struct slot *slot = sink->free.first;
    bool known = false;

    assert(letter->to && letter->delay_ms >= 0);
    if (!slot)
        return false;
    unlink_slot(&sink->free, slot);
    memset(slot, 0, sizeof(*slot));
    slot->letter = *letter;
    push(&sink->waiting, slot);
    if (letter->delay_ms > 0) {
        slot->queue = retry_queue(sink, letter->to, letter->delay_ms);
        if (!slot->queue)
            finish(sink, &sink->waiting, slot, HAPAX__SENT_REFUSED);
        return true;
    }
    for (size_t i = 0; i < sink->queue_count && !known; i++) {
        known = strcmp(sink->queues[i]->name, letter->to) == 0;
        slot->queue = known ? sink->queues[i] : NULL;
    }
    return true;
}

/* Its method and properties. False: it was refused, or the connection is lost. */
static bool begin_letter(struct sink *sink, struct slot *slot)
{
    const char *to = name_of(slot);
    amqp_basic_publish_t publish = {.routing_key = amqp_cstring_bytes(to), .mandatory = true};
    amqp_basic_properties_t properties;
    amqp_frame_t frame = {.frame_type = AMQP_FRAME_HEADER, .channel = PUBLISHING};

    if (strlen(to) > 255 || !hapax__amqp_properties(&properties, sink->entries, &slot->letter,
                                                    sink->numbers + 1, &sink->pool)) {
        (void)hapax__fail(sink->base.text, HAPAX_ERR_TOO_BIG,
                          "a letter to \"%.100s\" has a name, a property or headers over what AMQP "
                          "can carry",
                          to);
        finish(sink, &sink->waiting, slot, HAPAX__SENT_REFUSED);
        return false;
    }
    slot->number = ++sink->numbers;
    sink->sending = slot;
    frame.payload.properties.class_id = AMQP_BASIC_CLASS;
    frame.payload.properties.body_size = slot->letter.body.len;
    frame.payload.properties.decoded = &properties;
    return hapax__amqp_link_method(&sink->link, PUBLISHING, AMQP_BASIC_PUBLISH_METHOD, &publish) &&
           hapax__amqp_link_frame(&sink->link, &frame);
}

/* As much of its body as there is room for; what is left of that. */
static size_t send_body(struct sink *sink, struct slot *slot, size_t room)
{
    struct hapax_span body = slot->letter.body;
    amqp_frame_t frame = {.frame_type = AMQP_FRAME_BODY, .channel = PUBLISHING};

    while (slot->sent < body.len) {
        size_t part = body.len - slot->sent, most = HAPAX__AMQP_FRAME_MAX - FRAME_OVERHEAD;

        if (sink->link.state &&
            most > (size_t)amqp_get_frame_max(sink->link.state) - FRAME_OVERHEAD)
            most = (size_t)amqp_get_frame_max(sink->link.state) - FRAME_OVERHEAD;
        if (part > room && room < PART_MIN)
            return 0;
        if (part > room)
            part = room;
        if (part > most)
            part = most;
        frame.payload.body_fragment =
            (amqp_bytes_t){.len = part, .bytes = (void *)(uintptr_t)(body.ptr + slot->sent)};
        if (!hapax__amqp_link_frame(&sink->link, &frame))
            return 0;
        slot->sent += part;
        room -= part < room ? part : room;
    }
    unlink_slot(&sink->waiting, slot);
    push(&sink->unconfirmed, slot);
    slot->sent_us = hapax__monotonic_us();
    sink->sending = NULL;
    return room > AROUND_BYTES ? room - AROUND_BYTES : 0;
}

static bool may_publish(const struct sink *sink)
{
    return sink->link.state && sink->channel == CHANNEL_OPEN && !sink->link.blocked;
}

/* Of a name the letters go in their order: they share its queue's state. */
static void publish(struct sink *sink)
{
    struct slot *slot, *behind;
    size_t room = may_publish(sink) ? hapax__amqp_link_room(&sink->link) : 0;

    if (sink->sending)
        room = send_body(sink, sink->sending, room);
    for (slot = sink->sending ? NULL : sink->waiting.first; slot; slot = behind) {
        behind = slot->behind;
        if (is_refused(slot->queue)) {
            finish(sink, &sink->waiting, slot, HAPAX__SENT_REFUSED);
            continue;
        }
        if (!may_publish(sink) || !is_ready(slot->queue))
            continue;
        if (room < AROUND_BYTES)
            room = hapax__amqp_link_room(&sink->link);
        if (room == 0)
            break;
        if (!begin_letter(sink, slot))
            continue;
        room = send_body(sink, slot, room);
        if (sink->sending)
            break;
    }
}

/* ---- what becomes of it ---------------------------------------------------------------- */

static void take_confirm(struct sink *sink, uint64_t number, bool multiple, enum hapax__sent result)
{
    struct slot *slot, *behind;

    for (slot = sink->unconfirmed.first; slot && slot->number <= number; slot = behind) {
        behind = slot->behind;
        if (!multiple && slot->number != number)
            continue;
        if (result == HAPAX__SENT_REFUSED)
            (void)hapax__fail(sink->base.text, HAPAX_ERR_REFUSED,
                              "RabbitMQ took no letter to \"%.150s\" (is the queue full?)",
                              name_of(slot));
        finish(sink, &sink->unconfirmed, slot, slot->returned ? HAPAX__SENT_REFUSED : result);
    }
}

static void mark_returned(struct sink *sink, const amqp_basic_properties_t *properties)
{
    const amqp_table_t *table = &properties->headers;
    struct slot *slot = sink->unconfirmed.first;
    uint64_t number = 0;

    for (int i = 0; i < table->num_entries; i++)
        if (table->entries[i].key.len == strlen(HAPAX__AMQP_LETTER) &&
            memcmp(table->entries[i].key.bytes, HAPAX__AMQP_LETTER, strlen(HAPAX__AMQP_LETTER)) ==
                0)
            number = table->entries[i].value.value.u64;
    while (slot && slot->number != number)
        slot = slot->behind;
    if (!slot)
        return;
    slot->returned = true;
    (void)hapax__fail(sink->base.text, HAPAX_ERR_REFUSED, "there is no queue \"%.150s\"",
                      name_of(slot));
    if (slot->queue && slot->queue->state == READY)
        slot->queue->state = UNKNOWN; /* it was deleted: the next letter has it made again */
}

/* All that was sent and not confirmed. */
static void end_sent(struct sink *sink, enum hapax__sent result)
{
    if (sink->sending)
        finish(sink, &sink->waiting, sink->sending, result);
    while (sink->unconfirmed.first)
        finish(sink, &sink->unconfirmed, sink->unconfirmed.first, result);
    sink->channel = CHANNEL_CLOSED;
    sink->base.connected = false;
    sink->numbers = 0;
    sink->returning = false;
}

static void forget(struct sink *sink)
{
    end_sent(sink, HAPAX__SENT_LOST);
    sink->making_open = false;
    sink->asking = NULL;
    for (size_t i = 0; i < sink->queue_count; i++)
        if (sink->queues[i]->state != REFUSED)
            sink->queues[i]->state = UNKNOWN;
}

/* The largest are what "larger than" is about: those it does not help to send again. */
static void refuse_largest(struct sink *sink)
{
    struct slot *slot, *behind;
    size_t most = sink->sending ? sink->sending->letter.body.len : 0;

    for (slot = sink->unconfirmed.first; slot; slot = slot->behind)
        if (slot->letter.body.len > most)
            most = slot->letter.body.len;
    for (slot = sink->unconfirmed.first; slot; slot = behind) {
        behind = slot->behind;
        if (slot->letter.body.len == most)
            finish(sink, &sink->unconfirmed, slot, HAPAX__SENT_REFUSED);
    }
    if (sink->sending && sink->sending->letter.body.len == most)
        finish(sink, &sink->waiting, sink->sending, HAPAX__SENT_REFUSED);
}

static void open_channel(struct sink *sink)
{
    amqp_channel_open_t open = {0};
    amqp_confirm_select_t select = {0};

    sink->channel = CHANNEL_ASKED;
    sink->opened_us = hapax__monotonic_us();
    (void)hapax__amqp_link_method(&sink->link, PUBLISHING, AMQP_CHANNEL_OPEN_METHOD, &open);
    (void)hapax__amqp_link_method(&sink->link, PUBLISHING, AMQP_CONFIRM_SELECT_METHOD, &select);
}

static void take_close(struct sink *sink, amqp_channel_t channel, const amqp_channel_close_t *close)
{
    amqp_channel_close_ok_t ok = {0};
    int code = close->reply_code;
    char why[200];

    hapax__amqp_text(why, sizeof(why), close->reply_text);
    if (!hapax__amqp_link_method(&sink->link, channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok))
        return;
    if (channel == MAKING) {
        take_making_close(sink, code, why);
        return;
    }
    if (code == AMQP_PRECONDITION_FAILED && strstr(why, "larger than"))
        refuse_largest(sink);
    /* Without leave to write to the default exchange all fail alike. */
    end_sent(sink, code == AMQP_ACCESS_REFUSED ? HAPAX__SENT_REFUSED : HAPAX__SENT_LOST);
    (void)hapax__fail(sink->base.text, HAPAX_ERR_REFUSED, "RabbitMQ closed the channel: %.200s",
                      why);
    if (hapax__monotonic_us() - sink->opened_us > REOPEN_US)
        open_channel(sink);
    else
        hapax__amqp_link_lose(&sink->link, "RabbitMQ closed the channel: %.200s", why);
}

static void take_method(struct sink *sink, const amqp_frame_t *frame)
{
    const amqp_method_t *method = &frame->payload.method;
    const amqp_basic_ack_t *ack = method->decoded;
    const amqp_basic_nack_t *nack = method->decoded;

    switch (method->id) {
    case AMQP_BASIC_ACK_METHOD:
        take_confirm(sink, ack->delivery_tag, ack->multiple, HAPAX__SENT_OK);
        break;
    case AMQP_BASIC_NACK_METHOD:
        take_confirm(sink, nack->delivery_tag, nack->multiple, HAPAX__SENT_REFUSED);
        break;
    case AMQP_BASIC_RETURN_METHOD:
        sink->returning = true;
        break;
    case AMQP_CONFIRM_SELECT_OK_METHOD:
        sink->channel = CHANNEL_OPEN;
        sink->base.connected = true;
        hapax__amqp_link_works(&sink->link);
        break;
    case AMQP_QUEUE_DECLARE_OK_METHOD:
        take_declared(sink);
        break;
    case AMQP_CHANNEL_CLOSE_METHOD:
        take_close(sink, frame->channel, method->decoded);
        break;
    default: /* answers to what cannot fail */
        break;
    }
}

static void read_frames(struct sink *sink)
{
    for (int i = 0; i < READS_MAX; i++) {
        const amqp_frame_t *frame = hapax__amqp_link_read(&sink->link);

        if (!frame)
            break;
        if (frame->frame_type == AMQP_FRAME_METHOD)
            take_method(sink, frame);
        else if (frame->frame_type == AMQP_FRAME_HEADER && sink->returning) {
            mark_returned(sink, frame->payload.properties.decoded);
            sink->returning = false;
        }
    }
}

/* ---- the loop's calls ------------------------------------------------------------------ */

static size_t sink_watch(struct hapax__sink *base, struct pollfd *fds, int64_t *due_us)
{
    struct sink *sink = of(base);
    bool writes = false;

    for (const struct slot *slot = sink->waiting.first; slot && !writes; slot = slot->behind)
        writes = may_publish(sink) && is_ready(slot->queue);
    return hapax__amqp_link_watch(&sink->link, writes, fds, due_us);
}

static void forgive(struct sink *sink)
{
    int64_t now_us = hapax__monotonic_us();

    for (size_t i = 0; i < sink->queue_count; i++) {
        struct queue *queue = sink->queues[i];

        if (queue->state == REFUSED && now_us >= queue->refused_until_us)
            queue->state = UNKNOWN;
    }
}

/* The broker's channel hangs where a letter goes to a quorum queue that has no leader, and confirms nothing meanwhile, of
 * no queue. Seen at retry queues, after a kill of RabbitMQ 3.10: so those are left alone for a while. */
static void check_confirms(struct sink *sink)
{
    const struct slot *oldest = sink->unconfirmed.first, *slot = oldest;

    if (!oldest || !sink->link.state || sink->link.blocked ||
        hapax__monotonic_us() - oldest->sent_us < CONFIRM_US)
        return;
    while (slot && !(slot->queue && slot->queue->delay_s > 0))
        slot = slot->behind;
    hapax__amqp_link_lose(&sink->link, "RabbitMQ did not confirm a letter to \"%.150s\" for 30 s",
                          name_of(slot ? slot : oldest));
    if (slot) {
        slot->queue->state = REFUSED;
        slot->queue->refused_until_us = hapax__monotonic_us() + HUNG_US;
    }
}

static void sink_pump(struct hapax__sink *base)
{
    struct sink *sink = of(base);

    if (!sink->link.state) {
        forget(sink);
        if (hapax__monotonic_us() < sink->link.next_us ||
            hapax__amqp_link_connect(&sink->link) != HAPAX_ERR_NONE)
            return;
        open_channel(sink);
    }
    hapax__amqp_link_cork(&sink->link, true);
    read_frames(sink);
    check_confirms(sink);
    forgive(sink);
    ask_queues(sink);
    publish(sink);
    hapax__amqp_link_cork(&sink->link, false);
    if (!sink->link.state)
        forget(sink);
}

static enum hapax__sent sink_reap(struct hapax__sink *base, void **tag)
{
    struct sink *sink = of(base);
    struct slot *slot = sink->done.first;

    *tag = NULL;
    if (!slot)
        return HAPAX__SENT_NOTHING;
    unlink_slot(&sink->done, slot);
    push(&sink->free, slot);
    *tag = slot->letter.tag;
    return slot->result;
}

static void sink_close(struct hapax__sink *base)
{
    struct sink *sink = of(base);

    hapax__amqp_link_release(&sink->link);
    for (size_t i = 0; i < sink->queue_count; i++)
        free(sink->queues[i]);
    empty_amqp_pool(&sink->pool);
    explicit_bzero(&sink->uri, sizeof(sink->uri));
    free(sink);
}

const struct hapax__sink_type hapax__sink_amqp = {
    .schemes = {"amqp", "amqps"},
    .open = sink_open,
    .make = sink_make,
    .watch = sink_watch,
    .pump = sink_pump,
    .send = sink_send,
    .reap = sink_reap,
    .close = sink_close,
};
