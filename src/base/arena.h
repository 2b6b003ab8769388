/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is given back all at once. A reset keeps one block of moderate size, so that a
 * store in steady state does not allocate.
 */
#ifndef HAPAX_BASE_ARENA_H
#define HAPAX_BASE_ARENA_H

#include <hapax/hapax.h>

struct hapax_arena {
    struct hapax__block *blocks; /* the newest first */
};

/* Memory aligned for any type, not zeroed; valid until the reset. NULL: out of memory. */
HAPAX__SHARED void *hapax__arena_alloc(struct hapax_arena *arena, size_t size);

/* A copy of the span in the arena. len > 0 and ptr NULL: out of memory. */
struct hapax_span hapax__arena_copy(struct hapax_arena *arena, struct hapax_span span);

HAPAX__SHARED void hapax__arena_reset(struct hapax_arena *arena);
HAPAX__SHARED void hapax__arena_release(struct hapax_arena *arena);

#endif
