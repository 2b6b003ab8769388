/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of a move: two stores, the old one and the new one, for doors that are there while
 * others still have the old one alone, or already the new one (docs/moving.md).
 */
#ifndef HAPAX_STORE_MOVE_MOVE_H
#define HAPAX_STORE_MOVE_MOVE_H

#include "pair.h"

/* The two URIs. */
struct hapax__move_uris {
    const char *of[2]; /* by enum hapax__half; in copy */
    char *copy;
    size_t size;
};

/* Cuts move:OLD+NEW at the `+` behind which a scheme stands that is known, but for the one within a
 * hybrid: URI. INVALID or NOMEM: text says why; release in any case. */
enum hapax_error hapax__move_uris(struct hapax__move_uris *out, const char *uri,
                                  char text[HAPAX_TEXT_MAX]);
void hapax__move_uris_release(struct hapax__move_uris *uris);

#endif
