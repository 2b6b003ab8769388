/* SPDX-License-Identifier: Apache-2.0
 *
 * Letters to RabbitMQ queues, through the default exchange. Channel 1 publishes, with confirms and
 * `mandatory`. Channel 2 asks for queues and makes them, so that a refusal there takes no letters
 * with it.
 *
 * The invariant (slots.h): a letter is OK only if the broker acknowledged it and did not return it.
 * Every letter that was sent when the channel ended is LOST. A returned letter is known by a number
 * among its headers: AMQP's return carries no other.
 *
 * RabbitMQ closes the channel over one letter that it cannot take (406), and does not say which.
 * Then every letter that was under way is a suspect. When it is sent again, it is sent alone: no
 * other letter is under way. A suspect that is confirmed is none any more. A letter that closes the
 * channel alone is REFUSED. So one bad letter holds up no other. Rejected: to know bad letters
 * beforehand. What a broker takes depends on its version, settings and plugins.
 *
 * A delay is a queue of its own, NAME.retry.SECONDS. Its messages all live equally long and then go
 * to NAME. RabbitMQ looks for expired messages at a queue's head only, so in one queue of different
 * delays the long ones would keep the short ones back. In a quorum queue the move is confirmed
 * (at-least-once dead-lettering): a broker that dies during the move loses nothing. Classic queues
 * cannot promise that, and quorum is therefore the default.
 *
 * Rejected: the delayed-message plugin, which RabbitMQ does not come with; an expiration per
 * message.
 */
#include "link.h"
#include "message.h"

#include "base/clock.h"
#include "base/fail.h"
#include "broker/slots.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLISHING  1 /* channels */
#define MAKING      2
#define LETTERS_MAX 1024u /* sent and not reaped */
#define QUEUES_MAX  256u /* that are known by name */
#define DELAY_MAX_S (UINT32_C(1) << 17)
#define READS_MAX   10000 /* frames within one pump() */
/* Bytes of a letter's method, properties and usual headers. */
#define AROUND_BYTES   1024u
#define FRAME_OVERHEAD 8u
#define PART_MIN       1024u /* of a body that is sent in parts */
#define ASK_AGAIN_US   5000000 /* for a queue that was refused */
#define HUNG_US        60000000 /* for a queue that held the channel up */
/* The broker confirms the oldest letter within this time. */
#define CONFIRM_US 30000000
/* A channel that lived shorter is opened with the pause of a new connection. */
#define REOPEN_US 1000000

struct queue {
    struct hapax__sink_queue base; /* the first member: slots.c uses it */
    uint32_t delay_s; /* 0: no retry queue */
    struct queue *target; /* of a retry queue */
};

struct slot {
    struct hapax__slot base; /* the first member: slots.c uses it */
    uint64_t number; /* of its publishing on this channel */
    int64_t sent_us;
    size_t sent; /* bytes of its body */
    bool returned;
};

enum channel { CHANNEL_CLOSED, CHANNEL_ASKED, CHANNEL_OPEN };

struct sink {
    struct hapax__sink base;
    struct hapax__amqp_uri uri;
    struct hapax__amqp_link link;

    enum channel channel;
    int64_t opened_us;
    uint64_t numbers; /* of the letters published on it */
    bool returning; /* a returned letter's header comes next */

    bool making_open;
    /* The queue that the answer on channel MAKING is about. */
    struct queue *asking;

    struct hapax__slots slots;
    /* The first that waits, if a part of its body is sent. */
    struct slot *sending;
    /* The tags of letters under way when the channel was closed over one of them. */
    void *suspects[LETTERS_MAX];
    size_t suspect_count;
    amqp_table_entry_t entries[HAPAX__AMQP_ENTRIES_MAX];
    amqp_pool_t pool; /* of the letter that is begun */
};

static struct sink *of(struct hapax__sink *sink)
{
    return (struct sink *)sink;
}

static struct slot *first_of(const struct hapax__slot_list *list)
{
    return (struct slot *)TAILQ_FIRST(list);
}

static struct slot *next_of(const struct slot *slot)
{
    return (struct slot *)TAILQ_NEXT(&slot->base, link);
}

static struct queue *queue_of(const struct slot *slot)
{
    return (struct queue *)slot->base.queue;
}

/* The queue that the letter is published to. */
static const char *name_of(const struct slot *slot)
{
    return slot->base.queue ? slot->base.queue->name : slot->base.letter.to;
}

static void finish(struct sink *sink, struct slot *slot, enum hapax__sent result)
{
    if (slot == sink->sending)
        sink->sending = NULL;
    hapax__slots_finish(&sink->slots, &slot->base, result);
}

/* ---- suspects -------------------------------------------------------------------------- */

/* Its place in `suspects`; suspect_count: it is none. A tag may be another letter's by now, which
 * is then sent alone, once. */
static size_t suspect_at(const struct sink *sink, const struct slot *slot)
{
    size_t at = 0;

    while (at < sink->suspect_count && sink->suspects[at] != slot->base.letter.tag)
        at++;
    return at;
}

static bool is_suspect(const struct sink *sink, const struct slot *slot)
{
    return suspect_at(sink, slot) < sink->suspect_count;
}

/* Suspects that were refused and never sent again fill the list in the end. They are forgotten
 * then, and with them suspects that wait: these become suspects anew if they close the channel
 * again. */
static void suspect(struct sink *sink, const struct slot *slot)
{
    if (is_suspect(sink, slot))
        return;
    if (sink->suspect_count == LETTERS_MAX)
        sink->suspect_count = 0;
    sink->suspects[sink->suspect_count++] = slot->base.letter.tag;
}

static void acquit(struct sink *sink, const struct slot *slot)
{
    size_t at = suspect_at(sink, slot);

    if (at < sink->suspect_count)
        sink->suspects[at] = sink->suspects[--sink->suspect_count];
}

/* ---- opening --------------------------------------------------------------------------- */

static enum hapax_error sink_open(struct hapax__sink **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    struct sink *sink = calloc(1, sizeof(*sink));
    enum hapax_error error;

    *out = NULL;
    if (!sink || !hapax__slots_init(&sink->slots, &sink->base, sizeof(struct slot), LETTERS_MAX,
                                    sizeof(struct queue), QUEUES_MAX)) {
        free(sink);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot publish: out of memory");
    }
    error = hapax__amqp_uri(&sink->uri, uri, text);
    if (error != HAPAX_ERR_NONE) {
        hapax__slots_release(&sink->slots);
        free(sink);
        return error;
    }
    init_amqp_pool(&sink->pool, 4096);
    sink->base.type = &hapax__sink_amqp;
    sink->base.name = sink->uri.queue;
    hapax__amqp_link_init(&sink->link, &sink->uri, sink->base.text);
    *out = &sink->base;
    return HAPAX_ERR_NONE;
}

/* ---- queues ---------------------------------------------------------------------------- */

static uint32_t round_delay(int64_t delay_ms)
{
    uint32_t s = 1;

    while (s < DELAY_MAX_S && (int64_t)s * 1000 < delay_ms)
        s *= 2;
    return s;
}

/* The queue that delays letters to `to`. NULL: *why says why there is none. */
static struct queue *retry_queue(struct sink *sink, const char *to, int64_t delay_ms,
                                 const char **why)
{
    uint32_t delay_s = round_delay(delay_ms);
    struct queue *target = (struct queue *)hapax__slots_queue(&sink->slots, to, why), *queue;
    char name[512];

    if (!target)
        return NULL;
    (void)snprintf(name, sizeof(name), "%s.retry.%u", to, delay_s);
    queue = (struct queue *)hapax__slots_queue(&sink->slots, name, why);
    if (queue) {
        queue->base.makes = true;
        queue->delay_s = delay_s;
        queue->target = target;
    }
    return queue;
}

/* The queue or its target, whichever is REFUSED. NULL: neither is. */
static const struct queue *refused_of(const struct queue *queue)
{
    while (queue && queue->base.state != HAPAX__QUEUE_REFUSED)
        queue = queue->target;
    return queue;
}

static bool is_ready(const struct queue *queue)
{
    while (queue && queue->base.state == HAPAX__QUEUE_READY)
        queue = queue->target;
    return !queue;
}

static void refuse(struct sink *sink, struct queue *queue, const char *why)
{
    hapax__slots_refuse_queue(&sink->slots, &queue->base, hapax__monotonic_us() + ASK_AGAIN_US,
                              "cannot use queue \"%.100s\": %.120s", queue->base.name, why);
}

static void make_arguments(struct sink *sink, const struct queue *queue,
                           struct hapax__amqp_arguments *out)
{
    hapax__amqp_arguments(out, &sink->link);
    if (queue->delay_s == 0)
        return;
    hapax__amqp_argument_number(out, "x-message-ttl", (int64_t)queue->delay_s * 1000);
    hapax__amqp_argument_text(out, "x-dead-letter-exchange", "");
    hapax__amqp_argument_text(out, "x-dead-letter-routing-key", queue->target->base.name);
    if (sink->uri.classic)
        return;
    hapax__amqp_argument_text(out, "x-dead-letter-strategy", "at-least-once");
    hapax__amqp_argument_text(out, "x-overflow", "reject-publish"); /* demanded by the strategy */
}

/* Asks for the next unknown queue; one at a time. An existing queue is used as it is. A retry queue
 * must have the arguments of its delay. */
static void ask_queues(struct sink *sink)
{
    struct queue *queue;
    amqp_channel_open_t open = {0};
    struct hapax__amqp_arguments arguments;
    bool makes;

    if (sink->asking || sink->channel != CHANNEL_OPEN)
        return;
    queue = (struct queue *)hapax__slots_unknown(&sink->slots, INT64_MAX);
    if (!queue)
        return;
    if (!sink->making_open)
        (void)hapax__amqp_link_method(&sink->link, MAKING, AMQP_CHANNEL_OPEN_METHOD, &open);
    sink->making_open = true;
    sink->asking = queue;
    makes = queue->base.state == HAPAX__QUEUE_MAKE || queue->delay_s > 0;
    if (makes)
        make_arguments(sink, queue, &arguments);
    queue->base.state = makes ? HAPAX__QUEUE_MADE : HAPAX__QUEUE_ASKED;
    (void)hapax__amqp_declare(&sink->link, MAKING, queue->base.name, makes ? &arguments : NULL);
}

static void take_making_close(struct sink *sink, int code, const char *why)
{
    struct queue *queue = sink->asking;
    char text[HAPAX_TEXT_MAX];

    sink->making_open = false;
    sink->asking = NULL;
    if (!queue)
        return;
    if (code == AMQP_NOT_FOUND && queue->base.state == HAPAX__QUEUE_ASKED && queue->base.makes &&
        !strstr(why, "is down or inaccessible")) {
        queue->base.state = HAPAX__QUEUE_MAKE;
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
    (void)hapax__slots_make(&of(base)->slots, name);
}

/* ---- publishing ------------------------------------------------------------------------ */

static bool sink_send(struct hapax__sink *base, const struct hapax__letter *letter)
{
    struct sink *sink = of(base);
    struct hapax__slot *slot = hapax__slots_take(&sink->slots, letter);
    const char *why;

    if (!slot)
        return false;
    if (letter->delay_ms == 0) {
        slot->queue = hapax__slots_find(&sink->slots, letter->to);
        return true;
    }
    slot->queue = (struct hapax__sink_queue *)retry_queue(sink, letter->to, letter->delay_ms, &why);
    if (!slot->queue)
        hapax__slots_refuse(&sink->slots, slot, "cannot publish to \"%.100s\": %s", letter->to,
                            why);
    return true;
}

/* Sends the letter's method and properties. False: the letter was refused, or the connection was
 * lost. */
static bool begin_letter(struct sink *sink, struct slot *slot)
{
    const char *to = name_of(slot);
    amqp_basic_publish_t publish = {.routing_key = amqp_cstring_bytes(to), .mandatory = true};
    amqp_basic_properties_t properties;
    amqp_frame_t frame = {.frame_type = AMQP_FRAME_HEADER, .channel = PUBLISHING};

    if (strlen(to) > 255 || !hapax__amqp_properties(&properties, sink->entries, &slot->base.letter,
                                                    sink->numbers + 1, &sink->pool)) {
        hapax__slots_refuse(
            &sink->slots, &slot->base,
            "a letter to \"%.100s\" has a name, a property or headers over what AMQP can carry",
            to);
        return false;
    }
    slot->number = ++sink->numbers;
    sink->sending = slot;
    frame.payload.properties.class_id = AMQP_BASIC_CLASS;
    frame.payload.properties.body_size = slot->base.letter.body.len;
    frame.payload.properties.decoded = &properties;
    return hapax__amqp_link_method(&sink->link, PUBLISHING, AMQP_BASIC_PUBLISH_METHOD, &publish) &&
           hapax__amqp_link_frame(&sink->link, &frame);
}

/* Sends as much of the body as there is room for. Returns the room that is left. */
static size_t send_body(struct sink *sink, struct slot *slot, size_t room)
{
    struct hapax_span body = slot->base.letter.body;
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
    hapax__slots_sent(&sink->slots, &slot->base);
    slot->sent_us = hapax__monotonic_us();
    sink->sending = NULL;
    return room > AROUND_BYTES ? room - AROUND_BYTES : 0;
}

static bool may_publish(const struct sink *sink)
{
    return sink->link.state && sink->channel == CHANNEL_OPEN && !sink->link.blocked;
}

/* Whether the letter may be sent after those that are under way. */
static bool may_follow(const struct sink *sink, const struct slot *slot)
{
    const struct slot *before = first_of(&sink->slots.sent);

    return !before || sink->suspect_count == 0 ||
           !(is_suspect(sink, slot) || is_suspect(sink, before));
}

/* Letters to one name keep their order: they share the state of one queue. */
static void publish(struct sink *sink)
{
    struct slot *slot, *next;
    size_t room = may_publish(sink) ? hapax__amqp_link_room(&sink->link) : 0;

    if (sink->sending)
        room = send_body(sink, sink->sending, room);
    for (slot = sink->sending ? NULL : first_of(&sink->slots.waiting); slot; slot = next) {
        const struct queue *refused = refused_of(queue_of(slot));

        next = next_of(slot);
        if (refused) {
            hapax__slots_refuse(&sink->slots, &slot->base, "%s", refused->base.why);
            continue;
        }
        if (!may_publish(sink) || !is_ready(queue_of(slot)))
            continue;
        if (!may_follow(sink, slot))
            break;
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

/* ---- results --------------------------------------------------------------------------- */

static void take_confirm(struct sink *sink, uint64_t number, bool multiple, enum hapax__sent result)
{
    struct slot *slot, *next;

    for (slot = first_of(&sink->slots.sent); slot && slot->number <= number; slot = next) {
        next = next_of(slot);
        if (!multiple && slot->number != number)
            continue;
        if (result == HAPAX__SENT_REFUSED && !slot->returned)
            hapax__slot_explain(&slot->base,
                                "RabbitMQ took no letter to \"%.150s\" (is the queue full?)",
                                name_of(slot));
        acquit(sink, slot);
        finish(sink, slot, slot->returned ? HAPAX__SENT_REFUSED : result);
    }
}

static void mark_returned(struct sink *sink, const amqp_basic_properties_t *properties)
{
    const amqp_table_t *table = &properties->headers;
    struct slot *slot = first_of(&sink->slots.sent);
    uint64_t number = 0;

    for (int i = 0; i < table->num_entries; i++)
        if (table->entries[i].key.len == strlen(HAPAX__AMQP_LETTER) &&
            memcmp(table->entries[i].key.bytes, HAPAX__AMQP_LETTER, strlen(HAPAX__AMQP_LETTER)) ==
                0)
            number = table->entries[i].value.value.u64;
    while (slot && slot->number != number)
        slot = next_of(slot);
    if (!slot)
        return;
    slot->returned = true;
    hapax__slot_explain(&slot->base, "there is no queue \"%.150s\"", name_of(slot));
    if (slot->base.queue && slot->base.queue->state == HAPAX__QUEUE_READY)
        /* deleted: the next letter has the queue made again */
        slot->base.queue->state = HAPAX__QUEUE_UNKNOWN;
}

/* Ends all letters that were sent, whole or in part, and are not confirmed. */
static void end_sent(struct sink *sink, enum hapax__sent result, const char *why)
{
    struct slot *slot;

    while ((slot = sink->sending ? sink->sending : first_of(&sink->slots.sent))) {
        if (why)
            hapax__slot_explain(&slot->base, "%s", why);
        finish(sink, slot, result);
    }
    sink->channel = CHANNEL_CLOSED;
    sink->base.connected = false;
    sink->numbers = 0;
    sink->returning = false;
}

static void forget(struct sink *sink)
{
    struct hapax__sink_queue *queue;

    end_sent(sink, HAPAX__SENT_LOST, NULL);
    sink->making_open = false;
    sink->asking = NULL;
    TAILQ_FOREACH (queue, &sink->slots.queues, link)
        if (queue->state != HAPAX__QUEUE_REFUSED)
            queue->state = HAPAX__QUEUE_UNKNOWN;
}

/* RabbitMQ closed the channel over a letter that it cannot take. Whether it was the only one under
 * way: it stays a suspect, since it may be tried again. */
static bool suspect_sent(struct sink *sink)
{
    const struct slot *slot = first_of(&sink->slots.sent);
    bool alone = slot ? !next_of(slot) && !sink->sending : sink->sending != NULL;

    for (; slot; slot = next_of(slot))
        suspect(sink, slot);
    if (sink->sending)
        suspect(sink, sink->sending);
    return alone;
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
    bool over_one = code == AMQP_PRECONDITION_FAILED;
    char why[200];

    hapax__amqp_text(why, sizeof(why), close->reply_text);
    if (!hapax__amqp_link_method(&sink->link, channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok))
        return;
    if (channel == MAKING) {
        take_making_close(sink, code, why);
        return;
    }
    (void)hapax__fail(sink->base.text, HAPAX_ERR_REFUSED, "RabbitMQ closed the channel: %.200s",
                      why);
    /* Without the right to write to the default exchange, every letter fails. */
    if (code == AMQP_ACCESS_REFUSED || (over_one && suspect_sent(sink)))
        end_sent(sink, HAPAX__SENT_REFUSED, sink->base.text);
    else
        end_sent(sink, HAPAX__SENT_LOST, sink->base.text);
    sink->base.connected = over_one; /* a letter is at fault, and the broker is there */
    if (over_one || hapax__monotonic_us() - sink->opened_us > REOPEN_US)
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
        if (sink->asking)
            sink->asking->base.state = HAPAX__QUEUE_READY;
        sink->asking = NULL;
        break;
    case AMQP_CHANNEL_CLOSE_METHOD:
        take_close(sink, frame->channel, method->decoded);
        break;
    default: /* answers to methods that cannot fail */
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

    for (const struct slot *slot = first_of(&sink->slots.waiting); slot && may_publish(sink);
         slot = next_of(slot))
        if (is_ready(queue_of(slot))) {
            writes = may_follow(sink, slot); /* otherwise a confirm is waited for */
            break;
        }
    return hapax__amqp_link_watch(&sink->link, writes, fds, due_us);
}

/* A letter to a quorum queue without a leader hangs the broker's channel: no letter to any queue is
 * confirmed. Seen at retry queues after a kill of RabbitMQ 3.10. So the retry queue is not used for
 * a while. */
static void check_confirms(struct sink *sink)
{
    const struct slot *oldest = first_of(&sink->slots.sent), *slot = oldest;
    int64_t since_us = oldest ? oldest->sent_us : 0;

    if (since_us < sink->link.turned_us)
        since_us = sink->link.turned_us; /* in an alarm no letter is confirmed */
    if (!oldest || !sink->link.state || sink->link.blocked ||
        hapax__monotonic_us() - since_us < CONFIRM_US)
        return;
    while (slot && !(queue_of(slot) && queue_of(slot)->delay_s > 0))
        slot = next_of(slot);
    hapax__amqp_link_lose(&sink->link, "RabbitMQ did not confirm a letter to \"%.150s\" for 30 s",
                          name_of(slot ? slot : oldest));
    if (slot)
        hapax__slots_refuse_queue(&sink->slots, slot->base.queue, hapax__monotonic_us() + HUNG_US,
                                  "RabbitMQ did not confirm a letter to \"%.150s\" for 30 s",
                                  slot->base.queue->name);
}

static void sink_pump(struct hapax__sink *base)
{
    struct sink *sink = of(base);
    enum hapax_error error;

    if (!sink->link.state) {
        forget(sink);
        if (hapax__monotonic_us() < sink->link.next_us)
            return;
        error = hapax__amqp_link_connect(&sink->link);
        sink->base.refused = error == HAPAX_ERR_REFUSED;
        if (error != HAPAX_ERR_NONE)
            return;
        open_channel(sink);
    }
    hapax__amqp_link_cork(&sink->link, true);
    read_frames(sink);
    check_confirms(sink);
    hapax__slots_forgive(&sink->slots, hapax__monotonic_us());
    ask_queues(sink);
    publish(sink);
    hapax__amqp_link_cork(&sink->link, false);
    if (!sink->link.state)
        forget(sink);
}

/* Of the letter that is being sent, the broker may have all but the last bytes. */
static bool sink_withdraw(struct hapax__sink *base, const void *tag)
{
    struct sink *sink = of(base);
    struct slot *slot = (struct slot *)hapax__slots_waiting(&sink->slots, tag);

    if (!slot || slot == sink->sending)
        return false;
    acquit(sink, slot);
    hapax__slots_untake(&sink->slots, &slot->base);
    return true;
}

static enum hapax__sent sink_reap(struct hapax__sink *base, void **tag)
{
    return hapax__slots_reap(&of(base)->slots, tag);
}

static enum hapax__sent sink_look(struct hapax__sink *base)
{
    return hapax__slots_look(&of(base)->slots);
}

static void sink_close(struct hapax__sink *base)
{
    struct sink *sink = of(base);

    hapax__amqp_link_release(&sink->link);
    hapax__slots_release(&sink->slots);
    empty_amqp_pool(&sink->pool);
    explicit_bzero(&sink->uri, sizeof(sink->uri));
    free(sink);
}

const struct hapax__sink_type hapax__sink_amqp = {
    .schemes = {"amqp", "amqps"},
    .open = sink_open,
    .make = sink_make,
    .look = sink_look,
    .watch = sink_watch,
    .pump = sink_pump,
    .send = sink_send,
    .withdraw = sink_withdraw,
    .reap = sink_reap,
    .close = sink_close,
};
