/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_SIZE ((size_t)32 << 10)
#define ALIGNMENT  _Alignof(max_align_t)

struct hapax__block {
    struct hapax__block *next;
    size_t size;
    size_t used;
    _Alignas(max_align_t) uint8_t bytes[];
};

static struct hapax__block *block_new(size_t size)
{
    struct hapax__block *block;

    if (size < BLOCK_SIZE)
        size = BLOCK_SIZE;
    if (size > SIZE_MAX - sizeof(*block))
        return NULL;
    block = malloc(sizeof(*block) + size);
    if (!block)
        return NULL;
    block->next = NULL;
    block->size = size;
    block->used = 0;
    return block;
}

void *hapax__arena_alloc(struct hapax_arena *arena, size_t size)
{
    struct hapax__block *block = arena->blocks;
    void *memory;

    if (size > SIZE_MAX - ALIGNMENT)
        return NULL;
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!block || size > block->size - block->used) {
        block = block_new(size);
        if (!block)
            return NULL;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    memory = block->bytes + block->used;
    block->used += size;
    return memory;
}

struct hapax_span hapax__arena_copy(struct hapax_arena *arena, struct hapax_span span)
{
    uint8_t *copy;

    if (span.len == 0)
        return (struct hapax_span){NULL, 0};
    copy = hapax__arena_alloc(arena, span.len);
    if (copy)
        memcpy(copy, span.ptr, span.len);
    return (struct hapax_span){copy, span.len};
}

void hapax__arena_reset(struct hapax_arena *arena)
{
    struct hapax__block *kept = NULL;

    while (arena->blocks) {
        struct hapax__block *block = arena->blocks;

        arena->blocks = block->next;
        if (!kept && block->size == BLOCK_SIZE) {
            kept = block;
            kept->next = NULL;
            kept->used = 0;
        } else {
            free(block);
        }
    }
    arena->blocks = kept;
}

void hapax__arena_release(struct hapax_arena *arena)
{
    while (arena->blocks) {
        struct hapax__block *block = arena->blocks;

        arena->blocks = block->next;
        free(block);
    }
}
