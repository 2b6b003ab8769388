/* SPDX-License-Identifier: Apache-2.0
 *
 * The offsets of a partition that are in hand. Handlers end in any order, but Kafka keeps one
 * number per partition. So only offsets without a gap before them may be committed: `next` never
 * passes an offset that is not done.
 *
 * Offsets have gaps of their own (compaction, transactions), so an index of the ring is not an
 * offset. Only the end of the partition shows the gap behind the last message. Without it a group
 * would never finish a transaction, whose last record is no message. Rejected: a list of done
 * offsets in the commit's metadata, as others keep it. The store knows them better, and answers a
 * repeated message with its outcome.
 */
#include "kafka.h"

#include <assert.h>
#include <stdlib.h>

#define SIZE_FIRST 64u

bool hapax__kafka_window_open(const struct hapax__kafka_window *window)
{
    return window->tail - window->head < HAPAX__KAFKA_WINDOW_MAX;
}

static struct hapax__kafka_slot *slot_at(const struct hapax__kafka_window *window, uint64_t index)
{
    return &window->slots[index & (window->size - 1)];
}

int64_t hapax__kafka_window_least(const struct hapax__kafka_window *window)
{
    return window->tail == window->head ? window->next
                                        : slot_at(window, window->tail - 1)->offset + 1;
}

static bool grow(struct hapax__kafka_window *window)
{
    struct hapax__kafka_window bigger = *window;

    bigger.size = window->size == 0 ? SIZE_FIRST : window->size * 2;
    bigger.slots = malloc(bigger.size * sizeof(*bigger.slots));
    if (!bigger.slots)
        return false;
    for (uint64_t at = window->head; at < window->tail; at++)
        *slot_at(&bigger, at) = *slot_at(window, at);
    free(window->slots);
    *window = bigger;
    return true;
}

bool hapax__kafka_window_add(struct hapax__kafka_window *window, int64_t offset, void *item,
                             uint64_t *index)
{
    assert(item && hapax__kafka_window_open(window) && offset >= hapax__kafka_window_least(window));
    if (window->tail - window->head == window->size && !grow(window))
        return false;
    *index = window->tail++;
    *slot_at(window, *index) = (struct hapax__kafka_slot){offset, item};
    return true;
}

void hapax__kafka_window_done(struct hapax__kafka_window *window, uint64_t index)
{
    assert(index >= window->head && index < window->tail && slot_at(window, index)->item);
    slot_at(window, index)->item = NULL;
    while (window->head < window->tail && !slot_at(window, window->head)->item)
        window->next = slot_at(window, window->head++)->offset + 1;
}

void hapax__kafka_window_end(struct hapax__kafka_window *window, int64_t end)
{
    if (end <= hapax__kafka_window_least(window))
        return;
    if (window->tail == window->head) {
        window->next = end;
        return;
    }
    if (window->tail - window->head + 1 >= HAPAX__KAFKA_WINDOW_MAX ||
        (window->tail - window->head == window->size && !grow(window)))
        return;
    *slot_at(window, window->tail++) = (struct hapax__kafka_slot){end - 1, NULL};
}

void *hapax__kafka_window_item(const struct hapax__kafka_window *window, uint64_t *index)
{
    if (*index < window->head)
        *index = window->head;
    while (*index < window->tail) {
        void *item = slot_at(window, (*index)++)->item;

        if (item)
            return item;
    }
    return NULL;
}

void hapax__kafka_window_release(struct hapax__kafka_window *window)
{
    free(window->slots);
    *window = (struct hapax__kafka_window){.next = -1};
}
