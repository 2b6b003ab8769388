/* SPDX-License-Identifier: Apache-2.0
 *
 * Letters to SQS queues, ten in a call. The invariant: a letter is in exactly one of the lists, waiting → sent → done; it is
 * OK only where SQS named it among the successful ones. Of a FIFO queue's group one letter is under way at a time, since SQS
 * may refuse one of a batch and take those behind it.
 *
 * What is lost on the way is sent again, by the call itself or by who sent it; a FIFO queue knows it by its deduplication id
 * (sqs_message.c), and others show the same `message-id` twice. Queues that are made keep letters for 14 days, which is the
 * longest that SQS has.
 *
 * Rejected: SendMessage per letter; a queue's URL put together from its name.
 */
#include "link.h"

#include "base/clock.h"
#include "base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define LETTERS_MAX  1024u /* sent and not reaped */
#define QUEUES_MAX   256u /* that are known by name */
#define CALLS_MAX    8u /* batches at once */
#define SEND_MS      30000
#define SEND_TRY_MS  10000
#define MAKE_MS      10000
#define REFUSED_US   5000000 /* before a queue that was refused is asked for again */
#define PAUSE_US     500000 /* before what failed is */
#define CHANCE_BYTES 16u

struct queue {
    char name[HAPAX__SQS_QUEUE_MAX + 1];
    char url[HAPAX__SQS_URL_MAX];
    enum { UNKNOWN, ASKED, MAKE, MADE, READY, REFUSED } state; /* MADE: asked to be */
    bool makes; /* where it is not there */
    bool fifo;
    size_t sending; /* calls under way */
    int64_t again_us; /* UNKNOWN, MAKE, REFUSED: nothing before */
};

struct slot {
    struct slot *before, *behind;
    struct hapax__letter letter;
    struct queue *queue;
    uint8_t chance[CHANCE_BYTES]; /* what it is known by where it has no id */
    enum hapax__sent result;
};

struct list {
    struct slot *first, *last;
};

struct sink {
    struct hapax__sink base;
    struct hapax__sqs_link link;
    struct hapax__sqs_call ask;
    struct queue *asking; /* what the answer is about */
    struct hapax__sqs_call calls[CALLS_MAX];
    struct list free, waiting, sent, done;
    struct slot slots[LETTERS_MAX];
    struct queue *queues[QUEUES_MAX];
    size_t queue_count;
    int64_t now_us;
    int64_t gate_us; /* nothing is sent before */
};

static struct sink *of(struct hapax__sink *sink)
{
    return (struct sink *)sink;
}

/* ---- lists ----------------------------------------------------------------------------- */

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
    error = hapax__sqs_link_open(&sink->link, uri, CALLS_MAX + 1, text);
    if (error != HAPAX_ERR_NONE) {
        free(sink);
        return error;
    }
    sink->base.type = &hapax__sink_sqs;
    sink->base.name = sink->link.uri.queue;
    sink->base.connected =
        true; /* until a call says otherwise: there is no connection to speak of */
    for (size_t i = 0; i < LETTERS_MAX; i++)
        push(&sink->free, &sink->slots[i]);
    *out = &sink->base;
    return HAPAX_ERR_NONE;
}

/* ---- queues ---------------------------------------------------------------------------- */

/* NULL: too many, no memory, or no name of a queue; text says so. */
static struct queue *queue_of(struct sink *sink, const char *name)
{
    const char *why = "more than 256 queues, or out of memory";
    struct queue *queue = NULL;

    for (size_t i = 0; i < sink->queue_count; i++)
        if (strcmp(sink->queues[i]->name, name) == 0)
            return sink->queues[i];
    if (hapax__sqs_name_check(name, &why)) {
        why = "more than 256 queues, or out of memory";
        queue = sink->queue_count < QUEUES_MAX ? calloc(1, sizeof(*queue)) : NULL;
    }
    if (!queue) {
        (void)hapax__fail(sink->base.text, HAPAX_ERR_INVALID, "cannot publish to \"%.80s\": %s",
                          name, why);
        return NULL;
    }
    memcpy(queue->name, name, strlen(name) + 1);
    queue->fifo = hapax__sqs_is_fifo(name);
    sink->queues[sink->queue_count++] = queue;
    return queue;
}

static void sink_make(struct hapax__sink *base, const char *name)
{
    struct queue *queue = queue_of(of(base), name);

    if (queue)
        queue->makes = true;
}

static void refuse(struct sink *sink, struct queue *queue, const char *why)
{
    queue->state = REFUSED;
    queue->again_us = sink->now_us + REFUSED_US;
    (void)hapax__fail(sink->base.text, HAPAX_ERR_REFUSED, "cannot use queue \"%s\": %.150s",
                      queue->name, why);
}

static void works(struct sink *sink)
{
    sink->base.connected = true;
}

static void lose(struct sink *sink, const char *why)
{
    sink->base.connected = false;
    sink->gate_us = sink->now_us + PAUSE_US;
    (void)hapax__fail(sink->base.text, HAPAX_ERR_NONE, "cannot publish to SQS: %.200s", why);
}

static bool ask_make(struct sink *sink, const struct queue *queue)
{
    struct hapax__sqs_text *body = hapax__sqs_begin(&sink->ask);

    hapax__sqs_put(body, "{\"QueueName\":");
    hapax__sqs_put_string(body, hapax_str(queue->name));
    hapax__sqs_put(body, ",\"Attributes\":{\"MessageRetentionPeriod\":\"1209600\"");
    hapax__sqs_put(body, queue->fifo ? ",\"FifoQueue\":\"true\"}}" : "}}");
    return hapax__sqs_submit(&sink->link, &sink->ask, "CreateQueue", MAKE_MS, 0, false);
}

/* The next queue that has to be asked for, one at a time. */
static struct queue *next_unknown(const struct sink *sink)
{
    for (size_t i = 0; i < sink->queue_count; i++)
        if ((sink->queues[i]->state == UNKNOWN || sink->queues[i]->state == MAKE) &&
            sink->queues[i]->again_us <= sink->now_us)
            return sink->queues[i];
    return NULL;
}

static void ask_queues(struct sink *sink)
{
    struct queue *queue = sink->ask.busy ? NULL : next_unknown(sink);
    bool makes, asked;

    if (!queue)
        return;
    makes = queue->state == MAKE;
    asked =
        makes ? ask_make(sink, queue) : hapax__sqs_ask_url(&sink->link, &sink->ask, queue->name);
    if (!asked) {
        queue->again_us = sink->now_us + PAUSE_US;
        return;
    }
    queue->state = makes ? MADE : ASKED;
    sink->asking = queue;
}

static void take_queue(struct sink *sink, const struct hapax__sqs_call *call)
{
    struct queue *queue = sink->asking;
    bool made = queue->state == MADE;
    enum hapax__sqs_refusal refusal = hapax__sqs_refusal(call);

    sink->asking = NULL;
    queue->state = UNKNOWN;
    queue->again_us = sink->now_us + PAUSE_US;
    if (call->call.fate == HAPAX__AWS_OK && hapax__sqs_url(queue->url, call)) {
        queue->state = READY;
        works(sink);
    } else if (call->call.fate != HAPAX__AWS_REFUSED) {
        lose(sink, call->call.text);
    } else if (made && strcmp(call->call.error, "QueueNameExists") == 0) {
        return; /* somebody was faster: it is asked for again */
    } else if (!made && refusal == HAPAX__SQS_GONE && queue->makes &&
               sink->link.uri.account[0] == '\0') {
        queue->state = MAKE;
        queue->again_us = 0;
    } else {
        refuse(sink, queue,
               refusal == HAPAX__SQS_GONE ? "there is no such queue" : call->call.text);
    }
}

/* ---- publishing ------------------------------------------------------------------------ */

static bool sink_send(struct hapax__sink *base, const struct hapax__letter *letter)
{
    struct sink *sink = of(base);
    struct slot *slot = sink->free.first;

    assert(letter->to && letter->delay_ms >= 0);
    if (!slot)
        return false;
    unlink_slot(&sink->free, slot);
    memset(slot, 0, sizeof(*slot));
    slot->letter = *letter;
    push(&sink->waiting, slot);
    slot->queue = queue_of(sink, letter->to);
    if (!slot->queue || getrandom(slot->chance, CHANCE_BYTES, 0) != (ssize_t)CHANCE_BYTES)
        finish(sink, &sink->waiting, slot, HAPAX__SENT_REFUSED);
    return true;
}

static bool same_group(const struct slot *a, const struct slot *b)
{
    struct hapax_span x = a->letter.key, y = b->letter.key;

    return a->queue == b->queue && x.len == y.len && memcmp(x.ptr, y.ptr, x.len) == 0;
}

/* Whether one of its group is under way. */
static bool has_to_wait(const struct sink *sink, const struct slot *slot)
{
    if (!slot->queue->fifo || slot->letter.key.len == 0)
        return false;
    for (const struct slot *sent = sink->sent.first; sent; sent = sent->behind)
        if (same_group(sent, slot))
            return true;
    return false;
}

/* Adds a letter to the call's batch, or ends it as refused. False: the batch has no room for it. */
static bool add_entry(struct sink *sink, struct hapax__sqs_call *call, struct slot *slot,
                      size_t *total)
{
    size_t from = call->body.len, size;
    const char *why;
    enum hapax_error error;

    if (call->count > 0)
        hapax__sqs_put(&call->body, ",");
    error =
        hapax__sqs_entry(&call->body, &size, &slot->letter, (unsigned)call->count,
                         slot->queue->fifo, (struct hapax_span){slot->chance, CHANCE_BYTES}, &why);
    if (error == HAPAX_ERR_NONE && *total + size <= HAPAX__SQS_MESSAGE_MAX) {
        *total += size;
        call->of[call->count++] = slot;
        unlink_slot(&sink->waiting, slot);
        push(&sink->sent, slot);
        return true;
    }
    call->body.len = from;
    if (error == HAPAX_ERR_NONE || error == HAPAX_ERR_NOMEM)
        return false;
    (void)hapax__fail(sink->base.text, error, "SQS cannot carry a letter to \"%s\": %s",
                      slot->letter.to, why);
    finish(sink, &sink->waiting, slot, HAPAX__SENT_REFUSED);
    return true;
}

static void gather(struct sink *sink, struct hapax__sqs_call *call, const struct queue *queue)
{
    struct hapax__sqs_text *body = hapax__sqs_begin(call);
    struct slot *slot, *behind;
    size_t total = 0;

    call->count = 0;
    hapax__sqs_put(body, "{\"QueueUrl\":");
    hapax__sqs_put_string(body, hapax_str(queue->url));
    hapax__sqs_put(body, ",\"Entries\":[");
    for (slot = sink->waiting.first; slot && call->count < HAPAX__SQS_BATCH_MAX; slot = behind) {
        behind = slot->behind;
        if (slot->queue == queue && !has_to_wait(sink, slot) &&
            !add_entry(sink, call, slot, &total))
            break;
    }
    hapax__sqs_put(body, "]}");
}

static void end_batch(struct sink *sink, struct hapax__sqs_call *call, enum hapax__sent result)
{
    for (size_t i = 0; i < call->count; i++)
        finish(sink, &sink->sent, call->of[i], result);
    call->count = 0;
}

/* Enough for a batch, or nothing under way to wait for. */
static bool is_worth_it(const struct sink *sink, const struct queue *queue)
{
    size_t n = 0;

    if (queue->sending == 0)
        return true;
    for (const struct slot *slot = sink->waiting.first; slot && n < HAPAX__SQS_BATCH_MAX;
         slot = slot->behind)
        n += slot->queue == queue && !has_to_wait(sink, slot);
    return n == HAPAX__SQS_BATCH_MAX;
}

static struct hapax__sqs_call *free_call(struct sink *sink)
{
    for (size_t i = 0; i < CALLS_MAX; i++)
        if (!sink->calls[i].busy)
            return &sink->calls[i];
    return NULL;
}

static bool publish_some(struct sink *sink, struct queue *queue)
{
    struct hapax__sqs_call *call = free_call(sink);

    if (!call || !is_worth_it(sink, queue))
        return false;
    gather(sink, call, queue);
    if (call->count == 0) {
        if (call->body.failed)
            lose(sink, "out of memory");
        return false;
    }
    if (!hapax__sqs_submit(&sink->link, call, "SendMessageBatch", SEND_MS, SEND_TRY_MS, false)) {
        end_batch(sink, call, HAPAX__SENT_LOST);
        return false;
    }
    queue->sending++;
    return true;
}

static void publish(struct sink *sink)
{
    struct slot *slot, *behind;

    for (slot = sink->waiting.first; slot; slot = behind) {
        behind = slot->behind;
        if (slot->queue->state == REFUSED)
            finish(sink, &sink->waiting, slot, HAPAX__SENT_REFUSED);
    }
    if (!sink->waiting.first || sink->now_us < sink->gate_us)
        return;
    for (size_t i = 0; i < sink->queue_count; i++)
        while (sink->queues[i]->state == READY && publish_some(sink, sink->queues[i]))
            ;
}

/* ---- what becomes of it ---------------------------------------------------------------- */

static void take_refusal(struct sink *sink, struct hapax__sqs_call *call, struct queue *queue)
{
    if (hapax__sqs_refusal(call) == HAPAX__SQS_GONE) {
        queue->state =
            UNKNOWN; /* deleted, or not quite there yet: it is asked for, or made, again */
        queue->again_us = sink->now_us + PAUSE_US;
        end_batch(sink, call, HAPAX__SENT_LOST);
        return;
    }
    if (hapax__sqs_refusal(call) == HAPAX__SQS_DENIED)
        refuse(sink, queue, call->call.text);
    else
        (void)hapax__fail(sink->base.text, HAPAX_ERR_REFUSED,
                          "SQS took no letter to \"%s\": %.150s", queue->name, call->call.text);
    end_batch(sink, call, HAPAX__SENT_REFUSED);
}

static void take_batch(struct sink *sink, struct hapax__sqs_call *call)
{
    struct hapax__sqs_result results[HAPAX__SQS_BATCH_MAX];
    struct slot *first = call->of[0];
    struct queue *queue = first->queue;

    queue->sending--;
    if (call->call.fate == HAPAX__AWS_REFUSED) {
        take_refusal(sink, call, queue);
        return;
    }
    if (call->call.fate != HAPAX__AWS_OK) {
        lose(sink, call->call.text);
        end_batch(sink, call, HAPAX__SENT_LOST);
        return;
    }
    works(sink);
    (void)hapax__sqs_batch(results, call->count, call->call.reply);
    for (size_t i = 0; i < call->count; i++) {
        if (results[i].fate == HAPAX__SQS_NEVER)
            (void)hapax__fail(sink->base.text, HAPAX_ERR_REFUSED,
                              "SQS took no letter to \"%s\": %s", queue->name, results[i].code);
        finish(sink, &sink->sent, call->of[i],
               results[i].fate == HAPAX__SQS_DONE    ? HAPAX__SENT_OK
               : results[i].fate == HAPAX__SQS_NEVER ? HAPAX__SENT_REFUSED
                                                     : HAPAX__SENT_LOST);
    }
    call->count = 0;
}

/* ---- the loop's calls ------------------------------------------------------------------ */

static size_t sink_watch(struct hapax__sink *base, struct pollfd *fds, int64_t *due_us)
{
    struct sink *sink = of(base);

    fds[0] = (struct pollfd){.fd = hapax__aws_fd(sink->link.aws), .events = POLLIN};
    *due_us = hapax__aws_due(sink->link.aws);
    for (size_t i = 0; i < sink->queue_count; i++) {
        const struct queue *queue = sink->queues[i];
        bool asks = (queue->state == UNKNOWN || queue->state == MAKE) && !sink->ask.busy;

        if ((asks || queue->state == REFUSED) && queue->again_us < *due_us)
            *due_us = queue->again_us;
    }
    if (sink->waiting.first && sink->gate_us > sink->now_us && sink->gate_us < *due_us)
        *due_us = sink->gate_us;
    return 1;
}

static void forgive(struct sink *sink)
{
    for (size_t i = 0; i < sink->queue_count; i++)
        if (sink->queues[i]->state == REFUSED && sink->now_us >= sink->queues[i]->again_us)
            sink->queues[i]->state = UNKNOWN;
}

static void sink_pump(struct hapax__sink *base)
{
    struct sink *sink = of(base);
    struct hapax__sqs_call *call;

    sink->now_us = hapax__monotonic_us();
    hapax__aws_pump(sink->link.aws);
    while ((call = hapax__sqs_reap(&sink->link))) {
        if (call == &sink->ask)
            take_queue(sink, call);
        else
            take_batch(sink, call);
        hapax__sqs_done(call);
    }
    forgive(sink);
    ask_queues(sink);
    publish(sink);
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

    hapax__sqs_call_release(&sink->link, &sink->ask);
    for (size_t i = 0; i < CALLS_MAX; i++)
        hapax__sqs_call_release(&sink->link, &sink->calls[i]);
    hapax__sqs_link_close(&sink->link);
    for (size_t i = 0; i < sink->queue_count; i++)
        free(sink->queues[i]);
    free(sink);
}

const struct hapax__sink_type hapax__sink_sqs = {
    .schemes = {"sqs"},
    .open = sink_open,
    .make = sink_make,
    .name_check = hapax__sqs_name_check,
    .watch = sink_watch,
    .pump = sink_pump,
    .send = sink_send,
    .reap = sink_reap,
    .close = sink_close,
};
