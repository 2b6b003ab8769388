/* SPDX-License-Identifier: Apache-2.0
 *
 * What all sinks share: a slot for each letter that was taken and is not reaped yet, and the
 * broker's queues that letters go to. A slot stands in one of three lists: waiting to be sent, sent
 * and not confirmed, done and waiting to be reaped. Sending a letter and reading its result is each
 * sink's own.
 *
 * The invariant: a slot taken is in exactly one list until it is reaped, and keeps its own text of
 * a refusal. Rejected: one such text per sink. A caller reads the text when it reaps a letter, and
 * by then the broker may have refused another one.
 */
#include "slots.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hapax__slots_init(struct hapax__slots *slots, struct hapax__sink *sink, size_t slot_size,
                       size_t slots_max, size_t queue_size, size_t queues_max)
{
    assert(slot_size >= sizeof(struct hapax__slot) &&
           queue_size >= sizeof(struct hapax__sink_queue));
    *slots = (struct hapax__slots){.sink = sink,
                                   .slot_size = slot_size,
                                   .slots_max = slots_max,
                                   .queue_size = queue_size,
                                   .queues_max = queues_max};
    TAILQ_INIT(&slots->free);
    TAILQ_INIT(&slots->waiting);
    TAILQ_INIT(&slots->sent);
    TAILQ_INIT(&slots->done);
    TAILQ_INIT(&slots->queues);
    slots->memory = calloc(slots_max, slot_size);
    return slots->memory != NULL;
}

static void release_list(struct hapax__slot_list *list)
{
    struct hapax__slot *slot;

    while ((slot = TAILQ_FIRST(list))) {
        TAILQ_REMOVE(list, slot, link);
        free(slot->why); /* NOLINT(clang-analyzer-unix.Malloc): another one each time */
    }
}

void hapax__slots_release(struct hapax__slots *slots)
{
    struct hapax__sink_queue *queue;

    release_list(&slots->waiting);
    release_list(&slots->sent);
    release_list(&slots->done);
    free(slots->memory);
    slots->memory = NULL;
    while ((queue = TAILQ_FIRST(&slots->queues))) {
        TAILQ_REMOVE(&slots->queues, queue, link);
        free(queue);
    }
}

/* ---- letters ------------------------------------------------------------------------- */

static void put(struct hapax__slot_list *list, struct hapax__slot *slot)
{
    if (slot->list)
        TAILQ_REMOVE(slot->list, slot, link);
    slot->list = list;
    TAILQ_INSERT_TAIL(list, slot, link);
}

struct hapax__slot *hapax__slots_take(struct hapax__slots *slots,
                                      const struct hapax__letter *letter)
{
    struct hapax__slot *slot = TAILQ_FIRST(&slots->free);

    assert(letter->to && letter->delay_ms >= 0);
    if (slot) {
        TAILQ_REMOVE(&slots->free, slot, link);
    } else if (slots->slot_count < slots->slots_max) {
        slot = (struct hapax__slot *)(slots->memory + slots->slot_count++ * slots->slot_size);
    } else {
        return NULL;
    }
    memset(slot, 0, slots->slot_size);
    slot->letter = *letter;
    put(&slots->waiting, slot);
    return slot;
}

void hapax__slots_untake(struct hapax__slots *slots, struct hapax__slot *slot)
{
    put(&slots->free, slot);
}

struct hapax__slot *hapax__slots_waiting(const struct hapax__slots *slots, const void *tag)
{
    struct hapax__slot *slot;

    TAILQ_FOREACH (slot, &slots->waiting, link)
        if (slot->letter.tag == tag)
            break;
    return slot;
}

void hapax__slots_sent(struct hapax__slots *slots, struct hapax__slot *slot)
{
    assert(slot->list == &slots->waiting);
    put(&slots->sent, slot);
}

__attribute__((format(printf, 2, 0))) static void explain(struct hapax__slot *slot,
                                                          const char *format, va_list args)
{
    free(slot->why);
    slot->why = malloc(HAPAX_TEXT_MAX);
    if (slot->why)
        (void)vsnprintf(slot->why, HAPAX_TEXT_MAX, format, args);
}

void hapax__slot_explain(struct hapax__slot *slot, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    explain(slot, format, args);
    va_end(args);
}

void hapax__slots_finish(struct hapax__slots *slots, struct hapax__slot *slot,
                         enum hapax__sent result)
{
    assert(slot->list == &slots->waiting || slot->list == &slots->sent);
    slot->result = result;
    put(&slots->done, slot);
}

void hapax__slots_refuse(struct hapax__slots *slots, struct hapax__slot *slot, const char *format,
                         ...)
{
    va_list args;

    va_start(args, format);
    explain(slot, format, args);
    va_end(args);
    hapax__slots_finish(slots, slot, HAPAX__SENT_REFUSED);
}

enum hapax__sent hapax__slots_reap(struct hapax__slots *slots, void **tag)
{
    struct hapax__slot *slot = TAILQ_FIRST(&slots->done);

    *tag = NULL;
    if (!slot)
        return HAPAX__SENT_NOTHING;
    *tag = slot->letter.tag;
    (void)snprintf(slots->sink->why, HAPAX_TEXT_MAX, "%s",
                   slot->result == HAPAX__SENT_REFUSED && slot->why ? slot->why : "");
    free(slot->why);
    slot->why = NULL;
    put(&slots->free, slot);
    return slot->result;
}

/* ---- queues -------------------------------------------------------------------------- */

struct hapax__sink_queue *hapax__slots_find(const struct hapax__slots *slots, const char *name)
{
    struct hapax__sink_queue *queue;

    TAILQ_FOREACH (queue, &slots->queues, link)
        if (strcmp(queue->name, name) == 0)
            break;
    return queue;
}

struct hapax__sink_queue *hapax__slots_queue(struct hapax__slots *slots, const char *name,
                                             const char **why)
{
    struct hapax__sink_queue *queue = hapax__slots_find(slots, name);

    if (queue)
        return queue;
    *why = "its name is over 255 bytes";
    if (strlen(name) > HAPAX__SINK_NAME_MAX)
        return NULL;
    *why = "too many queues, or out of memory";
    queue = slots->queue_count < slots->queues_max ? calloc(1, slots->queue_size) : NULL;
    if (!queue)
        return NULL;
    memcpy(queue->name, name, strlen(name) + 1);
    TAILQ_INSERT_TAIL(&slots->queues, queue, link);
    slots->queue_count++;
    return queue;
}

struct hapax__sink_queue *hapax__slots_make(struct hapax__slots *slots, const char *name)
{
    const char *why;
    struct hapax__sink_queue *queue = hapax__slots_queue(slots, name, &why);

    if (!queue)
        return NULL;
    queue->makes = true;
    if (queue->state == HAPAX__QUEUE_REFUSED) {
        queue->state = HAPAX__QUEUE_UNKNOWN;
        queue->again_us = 0;
    }
    return queue;
}

enum hapax__sent hapax__slots_look(struct hapax__slots *slots)
{
    const char *why = "";
    const struct hapax__sink_queue *queue = hapax__slots_queue(slots, slots->sink->name, &why);

    if (queue && queue->state == HAPAX__QUEUE_READY)
        return HAPAX__SENT_OK;
    if (queue && queue->state != HAPAX__QUEUE_REFUSED)
        return HAPAX__SENT_NOTHING;
    (void)snprintf(slots->sink->why, HAPAX_TEXT_MAX, "%s", queue ? queue->why : why);
    return HAPAX__SENT_REFUSED;
}

void hapax__slots_refuse_queue(struct hapax__slots *slots, struct hapax__sink_queue *queue,
                               int64_t until_us, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(queue->why, sizeof(queue->why), format, args);
    va_end(args);
    (void)snprintf(slots->sink->text, HAPAX_TEXT_MAX, "%s", queue->why);
    queue->state = HAPAX__QUEUE_REFUSED;
    queue->again_us = until_us;
}

void hapax__slots_forgive(struct hapax__slots *slots, int64_t now_us)
{
    struct hapax__sink_queue *queue;

    TAILQ_FOREACH (queue, &slots->queues, link)
        if (queue->state == HAPAX__QUEUE_REFUSED && now_us >= queue->again_us)
            queue->state = HAPAX__QUEUE_UNKNOWN;
}

static bool is_to_ask(const struct hapax__sink_queue *queue)
{
    return queue->state == HAPAX__QUEUE_UNKNOWN || queue->state == HAPAX__QUEUE_MAKE;
}

struct hapax__sink_queue *hapax__slots_unknown(const struct hapax__slots *slots, int64_t now_us)
{
    struct hapax__sink_queue *queue;

    TAILQ_FOREACH (queue, &slots->queues, link)
        if (is_to_ask(queue) && queue->again_us <= now_us)
            break;
    return queue;
}

int64_t hapax__slots_due(const struct hapax__slots *slots, bool asks)
{
    const struct hapax__sink_queue *queue;
    int64_t due_us = INT64_MAX;

    TAILQ_FOREACH (queue, &slots->queues, link)
        if (((asks && is_to_ask(queue)) || queue->state == HAPAX__QUEUE_REFUSED) &&
            queue->again_us < due_us)
            due_us = queue->again_us;
    return due_us;
}
