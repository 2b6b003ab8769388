/* SPDX-License-Identifier: Apache-2.0 */
#include "heap.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum hapax_error hapax__heap_init(struct hapax__heap *heap, size_t max)
{
    *heap = (struct hapax__heap){.timers = calloc(max + 1, sizeof(*heap->timers)), .max = max};
    return heap->timers ? HAPAX_ERR_NONE : HAPAX_ERR_NOMEM;
}

void hapax__heap_release(struct hapax__heap *heap)
{
    free(heap->timers);
    memset(heap, 0, sizeof(*heap));
}

static void put(struct hapax__heap *heap, size_t index, struct hapax__timer *timer)
{
    heap->timers[index] = timer;
    timer->index = index;
}

static void rise(struct hapax__heap *heap, struct hapax__timer *timer)
{
    size_t index = timer->index;

    for (; index > 1 && heap->timers[index / 2]->due_us > timer->due_us; index /= 2)
        put(heap, index, heap->timers[index / 2]);
    put(heap, index, timer);
}

static void sink(struct hapax__heap *heap, struct hapax__timer *timer)
{
    size_t index = timer->index;

    for (;;) {
        size_t child = index * 2;

        if (child < heap->count && heap->timers[child + 1]->due_us < heap->timers[child]->due_us)
            child++;
        if (child > heap->count || heap->timers[child]->due_us >= timer->due_us)
            break;
        put(heap, index, heap->timers[child]);
        index = child;
    }
    put(heap, index, timer);
}

void hapax__heap_clear(struct hapax__heap *heap, struct hapax__timer *timer)
{
    struct hapax__timer *last;

    if (timer->index == 0)
        return;
    assert(heap->timers[timer->index] == timer);
    last = heap->timers[heap->count--];
    if (last != timer) {
        put(heap, timer->index, last);
        rise(heap, last);
        sink(heap, last);
    }
    timer->index = 0;
}

void hapax__heap_set(struct hapax__heap *heap, struct hapax__timer *timer, int64_t due_us)
{
    hapax__heap_clear(heap, timer);
    if (due_us == INT64_MAX)
        return;
    assert(heap->count < heap->max);
    timer->due_us = due_us;
    put(heap, ++heap->count, timer);
    rise(heap, timer);
}

int64_t hapax__heap_due_us(const struct hapax__heap *heap)
{
    return heap->count > 0 ? heap->timers[1]->due_us : INT64_MAX;
}

struct hapax__timer *hapax__heap_take(struct hapax__heap *heap, int64_t now_us)
{
    struct hapax__timer *timer = heap->count > 0 ? heap->timers[1] : NULL;

    if (!timer || timer->due_us > now_us)
        return NULL;
    hapax__heap_clear(heap, timer);
    return timer;
}
