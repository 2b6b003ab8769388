/* SPDX-License-Identifier: Apache-2.0
 *
 * What canonical.c and pointer.c share: the walk over a document, and the selection of values by
 * pointers. The walk reports to the selection where it is, and the selection says which values its
 * pointers find. The path is never built: each pointer remembers how many of its tokens lead to
 * where the walk is.
 */
#ifndef HAPAX_JSON_WALK_H
#define HAPAX_JSON_WALK_H

#include "json.h"

enum hapax__json_type {
    HAPAX__JSON_NULL = 1,
    HAPAX__JSON_LITERAL, /* true, false, a number: its canonical form is its text */
    HAPAX__JSON_STRING,
    HAPAX__JSON_CONTAINER
};

/* A value that a pointer finds. Borrowed until found() returns. */
struct hapax__json_value {
    enum hapax__json_type type;
    struct hapax_span canonical;
    struct hapax_span text; /* of a string: its bytes, unescaped */
};

struct hapax__selection {
    const struct hapax_span *pointers;
    size_t n;
    /* Called at the end of each value that a pointer finds, for each such pointer. May be NULL. */
    void (*found)(void *arg, size_t pointer, const struct hapax__json_value *value);
    void *arg;
    bool drop; /* what is found is left out of the canonical form */

    /* the selection's own */
    struct {
        /* Where each token begins, after its '/'; behind the last, where one more would begin. */
        uint16_t begin[HAPAX__JSON_DEPTH_MAX + 1];
        uint8_t tokens; /* HAPAX__JSON_TOKENS_OVER: more than any document is deep */
        uint8_t matched;
    } state[HAPAX__JSON_POINTERS_MAX];
};

#define HAPAX__JSON_TOKENS_OVER 255u

/* Sets a selection to the start of a document. The pointers must have passed their check. */
void hapax__selection_begin(struct hapax__selection *selection);

/* The walk comes to a member or an element of the container at this depth (1: the outermost). */
void hapax__selection_name(struct hapax__selection *selection, size_t depth,
                           struct hapax_span name);
void hapax__selection_index(struct hapax__selection *selection, size_t depth, size_t index);

/* The walk leaves a value inside `depth` containers: calls found() for the pointers that find it.
 * Returns whether it is to be left out. */
bool hapax__selection_leave(struct hapax__selection *selection, size_t depth,
                            const struct hapax__json_value *value);

/* Walks over body. OK: *out, yours to free(), has *len bytes: the canonical form without what was
 * dropped. found() may have been called also where NOT_CANONICAL or NOMEM is returned. */
enum hapax__json_result hapax__json_walk(uint8_t **out, size_t *len, struct hapax_span body,
                                         struct hapax__selection *selection);

#endif
