/* SPDX-License-Identifier: Apache-2.0
 *
 * Letters to SQS queues, ten in a call. A letter is OK only if SQS named it among the successful
 * ones. Of a FIFO queue's group one letter is under way at a time: SQS may refuse one letter of a
 * batch and take those behind it.
 *
 * A lost letter is sent again, by the call itself or by the caller. A FIFO queue recognises the
 * repeat by its deduplication id (message.c). Any other queue shows the same `message-id` twice.
 * Queues that are made keep letters for 14 days, the longest time that SQS offers.
 *
 * Rejected: SendMessage per letter; a queue's URL put together from its name.
 */
#include "link.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fail.h"
#include "broker/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define LETTERS_MAX  1024u /* sent and not reaped */
#define QUEUES_MAX   256u /* that are known by name */
#define CALLS_MAX    8u /* batches at once */
#define SEND_MS      30000
#define SEND_TRY_MS  10000
#define MAKE_MS      10000
#define REFUSED_US   5000000 /* before a refused queue is asked for again */
#define PAUSE_US     500000 /* before a failed call is repeated */
#define CHANCE_BYTES 16u

struct queue {
    struct hapax__sink_queue base; /* the first member: slots.c uses it */
    char url[HAPAX__SQS_URL_MAX];
    size_t sending; /* calls under way */
};

struct slot {
    struct hapax__slot base; /* the first member: slots.c uses it */
    /* The deduplication id of a letter without an id. */
    uint8_t chance[CHANCE_BYTES];
};

struct sink {
    struct hapax__sink base;
    struct hapax__sqs_link link;
    struct hapax__sqs_call ask;
    struct queue *asking; /* that the question under way is about */
    struct hapax__sqs_call calls[CALLS_MAX];
    struct hapax__slots slots;
    int64_t now_us;
    int64_t gate_us; /* nothing is sent before */
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
    error = hapax__sqs_link_open(&sink->link, uri, CALLS_MAX + 1, text);
    if (error != HAPAX_ERR_NONE) {
        hapax__slots_release(&sink->slots);
        free(sink);
        return error;
    }
    sink->base.type = &hapax__sink_sqs;
    sink->base.name = sink->link.uri.queue;
    /* Until a call fails: SQS has no connection. */
    sink->base.connected = true;
    *out = &sink->base;
    return HAPAX_ERR_NONE;
}

/* ---- queues ---------------------------------------------------------------------------- */

static void sink_make(struct hapax__sink *base, const char *name)
{
    const char *why;

    if (hapax__sqs_name_check(name, &why))
        (void)hapax__slots_make(&of(base)->slots, name);
}

static enum hapax__sent sink_look(struct hapax__sink *base)
{
    return hapax__slots_look(&of(base)->slots);
}

static void refuse(struct sink *sink, struct queue *queue, const char *why)
{
    hapax__slots_refuse_queue(&sink->slots, &queue->base, sink->now_us + REFUSED_US,
                              "cannot use queue \"%s\": %.150s", queue->base.name, why);
}

static void works(struct sink *sink)
{
    sink->base.connected = true;
    sink->base.text[0] = '\0';
}

static void lose(struct sink *sink, const char *why)
{
    sink->base.connected = false;
    sink->gate_us = sink->now_us + PAUSE_US;
    (void)hapax__fail(sink->base.text, HAPAX_ERR_NONE, "cannot publish to SQS: %.200s", why);
}

static bool ask_make(struct sink *sink, const struct queue *queue)
{
    struct hapax__json_out *body = hapax__sqs_begin(&sink->ask);

    hapax__json_put(body, "{\"QueueName\":");
    hapax__json_put_string(body, hapax_str(queue->base.name));
    hapax__json_put(body, ",\"Attributes\":{\"MessageRetentionPeriod\":\"1209600\"");
    hapax__json_put(body,
                    hapax__sqs_is_fifo(queue->base.name) ? ",\"FifoQueue\":\"true\"}}" : "}}");
    return hapax__sqs_submit(&sink->link, &sink->ask, "CreateQueue", MAKE_MS, 0, false);
}

/* Asks for the next unknown queue; one at a time. */
static void ask_queues(struct sink *sink)
{
    struct queue *queue = NULL;
    bool makes, asked;

    if (!sink->ask.busy)
        queue = (struct queue *)hapax__slots_unknown(&sink->slots, sink->now_us);
    if (!queue)
        return;
    makes = queue->base.state == HAPAX__QUEUE_MAKE;
    asked = makes ? ask_make(sink, queue)
                  : hapax__sqs_ask_url(&sink->link, &sink->ask, queue->base.name);
    if (!asked) {
        queue->base.again_us = sink->now_us + PAUSE_US;
        return;
    }
    queue->base.state = makes ? HAPAX__QUEUE_MADE : HAPAX__QUEUE_ASKED;
    sink->asking = queue;
}

static void take_queue(struct sink *sink, const struct hapax__sqs_call *call)
{
    struct queue *queue = sink->asking;
    bool made = queue->base.state == HAPAX__QUEUE_MADE;
    enum hapax__sqs_refusal refusal = hapax__sqs_refusal(call);

    sink->asking = NULL;
    queue->base.state = HAPAX__QUEUE_UNKNOWN;
    queue->base.again_us = sink->now_us + PAUSE_US;
    if (call->call.result == HAPAX__AWS_OK && hapax__sqs_url(queue->url, call)) {
        queue->base.state = HAPAX__QUEUE_READY;
        works(sink);
    } else if (call->call.result != HAPAX__AWS_REFUSED) {
        lose(sink, call->call.text);
    } else if (made && strcmp(call->call.error, "QueueNameExists") == 0) {
        return; /* another client was faster: ask for the queue again */
    } else if (!made && refusal == HAPAX__SQS_GONE && queue->base.makes &&
               sink->link.uri.account[0] == '\0') {
        queue->base.state = HAPAX__QUEUE_MAKE;
        queue->base.again_us = 0;
    } else {
        refuse(sink, queue,
               refusal == HAPAX__SQS_GONE ? "there is no such queue" : call->call.text);
    }
}

/* ---- publishing ------------------------------------------------------------------------ */

static bool sink_send(struct hapax__sink *base, const struct hapax__letter *letter)
{
    struct sink *sink = of(base);
    struct slot *slot = (struct slot *)hapax__slots_take(&sink->slots, letter);
    const char *why = "no random bytes";

    if (!slot)
        return false;
    if (hapax__sqs_name_check(letter->to, &why))
        slot->base.queue = hapax__slots_queue(&sink->slots, letter->to, &why);
    if (!slot->base.queue || getrandom(slot->chance, CHANCE_BYTES, 0) != (ssize_t)CHANCE_BYTES)
        hapax__slots_refuse(&sink->slots, &slot->base, "cannot publish to \"%.80s\": %s",
                            letter->to, why);
    return true;
}

/* Whether another letter of its group is under way. */
static bool has_to_wait(const struct sink *sink, const struct slot *slot)
{
    if (!hapax__sqs_is_fifo(slot->base.letter.to) || slot->base.letter.key.len == 0)
        return false;
    for (const struct slot *sent = first_of(&sink->slots.sent); sent; sent = next_of(sent))
        if (sent->base.queue == slot->base.queue &&
            hapax__same(sent->base.letter.key, slot->base.letter.key))
            return true;
    return false;
}

/* Adds a letter to the call's batch, or refuses the letter. False: the batch has no room for it. */
static bool add_entry(struct sink *sink, struct hapax__sqs_call *call, struct slot *slot,
                      size_t *total)
{
    size_t from = call->body.len, size;
    const char *why;
    enum hapax_error error;

    if (call->count > 0)
        hapax__json_put(&call->body, ",");
    error = hapax__sqs_entry(&call->body, &size, &slot->base.letter, (unsigned)call->count,
                             hapax__sqs_is_fifo(slot->base.letter.to),
                             (struct hapax_span){slot->chance, CHANCE_BYTES}, &why);
    if (error == HAPAX_ERR_NONE && *total + size <= HAPAX__SQS_MESSAGE_MAX) {
        *total += size;
        call->of[call->count++] = slot;
        hapax__slots_sent(&sink->slots, &slot->base);
        return true;
    }
    call->body.len = from;
    if (error == HAPAX_ERR_NONE || error == HAPAX_ERR_NOMEM)
        return false;
    hapax__slots_refuse(&sink->slots, &slot->base, "SQS cannot carry a letter to \"%s\": %s",
                        slot->base.letter.to, why);
    return true;
}

static void gather(struct sink *sink, struct hapax__sqs_call *call, const struct queue *queue)
{
    struct hapax__json_out *body = hapax__sqs_begin(call);
    struct slot *slot, *next;
    size_t total = 0;

    call->count = 0;
    hapax__json_put(body, "{\"QueueUrl\":");
    hapax__json_put_string(body, hapax_str(queue->url));
    hapax__json_put(body, ",\"Entries\":[");
    for (slot = first_of(&sink->slots.waiting); slot && call->count < HAPAX__SQS_BATCH_MAX;
         slot = next) {
        next = next_of(slot);
        if (queue_of(slot) == queue && !has_to_wait(sink, slot) &&
            !add_entry(sink, call, slot, &total))
            break;
    }
    hapax__json_put(body, "]}");
}

/* why: of REFUSED. */
static void end_batch(struct sink *sink, struct hapax__sqs_call *call, enum hapax__sent result,
                      const char *why)
{
    for (size_t i = 0; i < call->count; i++) {
        struct slot *slot = call->of[i];

        if (why)
            hapax__slot_explain(&slot->base, "%s", why);
        hapax__slots_finish(&sink->slots, &slot->base, result);
    }
    call->count = 0;
}

/* Whether the batch is full, or no batch is under way to wait for. */
static bool is_worth_it(const struct sink *sink, const struct queue *queue)
{
    size_t n = 0;

    if (queue->sending == 0)
        return true;
    for (const struct slot *slot = first_of(&sink->slots.waiting); slot && n < HAPAX__SQS_BATCH_MAX;
         slot = next_of(slot))
        n += queue_of(slot) == queue && !has_to_wait(sink, slot);
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
        end_batch(sink, call, HAPAX__SENT_LOST, NULL);
        return false;
    }
    queue->sending++;
    return true;
}

static void publish(struct sink *sink)
{
    struct hapax__sink_queue *queue;
    struct slot *slot, *next;

    for (slot = first_of(&sink->slots.waiting); slot; slot = next) {
        next = next_of(slot);
        if (slot->base.queue->state == HAPAX__QUEUE_REFUSED)
            hapax__slots_refuse(&sink->slots, &slot->base, "%s", slot->base.queue->why);
    }
    if (TAILQ_EMPTY(&sink->slots.waiting) || sink->now_us < sink->gate_us)
        return;
    TAILQ_FOREACH (queue, &sink->slots.queues, link)
        while (queue->state == HAPAX__QUEUE_READY && publish_some(sink, (struct queue *)queue))
            ;
}

/* ---- results --------------------------------------------------------------------------- */

static void take_refusal(struct sink *sink, struct hapax__sqs_call *call, struct queue *queue)
{
    char why[HAPAX_TEXT_MAX];

    switch (hapax__sqs_refusal(call)) {
    case HAPAX__SQS_GONE:
        /* Deleted, or not ready yet: the queue is asked for, or made, again. */
        queue->base.state = HAPAX__QUEUE_UNKNOWN;
        queue->base.again_us = sink->now_us + PAUSE_US;
        end_batch(sink, call, HAPAX__SENT_LOST, NULL);
        return;
    case HAPAX__SQS_DENIED:
        refuse(sink, queue, call->call.text);
        end_batch(sink, call, HAPAX__SENT_REFUSED, queue->base.why);
        return;
    default:
        (void)snprintf(why, sizeof(why), "SQS took no letter to \"%.80s\": %.140s",
                       queue->base.name, call->call.text);
        end_batch(sink, call, HAPAX__SENT_REFUSED, why);
    }
}

static void take_batch(struct sink *sink, struct hapax__sqs_call *call)
{
    struct hapax__sqs_result results[HAPAX__SQS_BATCH_MAX];
    struct slot *first = call->of[0];
    struct queue *queue = queue_of(first);

    queue->sending--;
    if (call->call.result == HAPAX__AWS_REFUSED) {
        take_refusal(sink, call, queue);
        return;
    }
    if (call->call.result != HAPAX__AWS_OK) {
        lose(sink, call->call.text);
        end_batch(sink, call, HAPAX__SENT_LOST, NULL);
        return;
    }
    works(sink);
    (void)hapax__sqs_batch(results, call->count, call->call.reply);
    for (size_t i = 0; i < call->count; i++) {
        struct slot *slot = call->of[i];

        if (results[i].kind == HAPAX__SQS_AGAIN)
            (void)hapax__fail(sink->base.text, HAPAX_ERR_NONE,
                              "SQS took no letter to \"%.80s\": %s", queue->base.name,
                              results[i].code[0] ? results[i].code : "its reply has no result");
        if (results[i].kind == HAPAX__SQS_NEVER)
            hapax__slots_refuse(&sink->slots, &slot->base, "SQS took no letter to \"%s\": %s",
                                queue->base.name, results[i].code);
        else
            hapax__slots_finish(&sink->slots, &slot->base,
                                results[i].kind == HAPAX__SQS_DONE ? HAPAX__SENT_OK
                                                                   : HAPAX__SENT_LOST);
    }
    call->count = 0;
}

/* ---- the loop's calls ------------------------------------------------------------------ */

static size_t sink_watch(struct hapax__sink *base, struct pollfd *fds, int64_t *due_us)
{
    struct sink *sink = of(base);
    int64_t queues_us;

    fds[0] = (struct pollfd){.fd = hapax__aws_fd(sink->link.aws), .events = POLLIN};
    *due_us = hapax__aws_due(sink->link.aws);
    queues_us = hapax__slots_due(&sink->slots, !sink->ask.busy);
    if (queues_us < *due_us)
        *due_us = queues_us;
    if (!TAILQ_EMPTY(&sink->slots.waiting) && sink->gate_us > sink->now_us &&
        sink->gate_us < *due_us)
        *due_us = sink->gate_us;
    return 1;
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
    hapax__slots_forgive(&sink->slots, sink->now_us);
    ask_queues(sink);
    publish(sink);
}

static bool sink_withdraw(struct hapax__sink *base, const void *tag)
{
    struct hapax__slots *slots = &of(base)->slots;
    struct hapax__slot *slot = hapax__slots_waiting(slots, tag);

    if (slot)
        hapax__slots_untake(slots, slot);
    return slot != NULL;
}

static enum hapax__sent sink_reap(struct hapax__sink *base, void **tag)
{
    return hapax__slots_reap(&of(base)->slots, tag);
}

static void sink_close(struct hapax__sink *base)
{
    struct sink *sink = of(base);

    hapax__sqs_call_release(&sink->link, &sink->ask);
    for (size_t i = 0; i < CALLS_MAX; i++)
        hapax__sqs_call_release(&sink->link, &sink->calls[i]);
    hapax__sqs_link_close(&sink->link);
    hapax__slots_release(&sink->slots);
    free(sink);
}

const struct hapax__sink_type hapax__sink_sqs = {
    .schemes = {"sqs"},
    .open = sink_open,
    .make = sink_make,
    .look = sink_look,
    .name_check = hapax__sqs_name_check,
    .watch = sink_watch,
    .pump = sink_pump,
    .send = sink_send,
    .withdraw = sink_withdraw,
    .reap = sink_reap,
    .close = sink_close,
};
