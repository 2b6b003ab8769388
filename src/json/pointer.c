/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON Pointers: their grammar, following them along a walk, and the two uses made of what
 * they find: fingerprints and keys.
 *
 * The invariant: a fingerprint is over what was found, each find behind the pointer that found it,
 * so that a value moved from one selected field to another, or from nothing to null, is another
 * request. All pointers are followed in one walk. Rejected: a tree to look pointers up in, which
 * costs many times the body in memory for a request not yet admitted.
 */
#include "walk.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- grammar (RFC 6901, section 3) ------------------------------------------------- */

bool hapax__json_pointer_check(struct hapax_span pointer, const char **why)
{
    *why = NULL;
    if (pointer.len > HAPAX__JSON_POINTER_LEN_MAX)
        *why = "a pointer may have 1024 bytes";
    else if (pointer.len > 0 && pointer.ptr[0] != '/')
        *why = "a pointer is empty or begins with '/'";
    for (size_t i = 0; i < pointer.len && !*why; i++) {
        if (pointer.ptr[i] != '~')
            continue;
        if (i + 1 == pointer.len || (pointer.ptr[i + 1] != '0' && pointer.ptr[i + 1] != '1'))
            *why = "in a pointer '~' stands before 0 or 1";
    }
    return !*why;
}

/* ---- following --------------------------------------------------------------------- */

static void split(struct hapax__selection *selection, size_t p)
{
    struct hapax_span pointer = selection->pointers[p];
    uint16_t *begin = selection->state[p].begin;
    size_t tokens = 0;

    for (size_t i = 0; i < pointer.len; i++) {
        if (pointer.ptr[i] != '/')
            continue;
        if (tokens == HAPAX__JSON_DEPTH_MAX) {
            selection->state[p].tokens = HAPAX__JSON_TOKENS_OVER;
            return;
        }
        begin[tokens++] = (uint16_t)(i + 1);
    }
    begin[tokens] = (uint16_t)(pointer.len + 1);
    selection->state[p].tokens = (uint8_t)tokens;
}

void hapax__selection_begin(struct hapax__selection *selection)
{
    const char *why;

    assert(selection->n <= HAPAX__JSON_POINTERS_MAX);
    for (size_t p = 0; p < selection->n; p++) {
        bool valid = hapax__json_pointer_check(selection->pointers[p], &why);

        assert(valid);
        selection->state[p].matched = 0;
        split(selection, p);
    }
}

/* Whether pointer p has led to this container and goes on inside it; then *token is how. */
static bool goes_on(const struct hapax__selection *selection, size_t p, size_t depth,
                    struct hapax_span *token)
{
    const uint16_t *begin = selection->state[p].begin;
    uint8_t tokens = selection->state[p].tokens;

    assert(depth >= 1 && depth <= HAPAX__JSON_DEPTH_MAX);
    if (selection->state[p].matched != depth - 1 || tokens < depth ||
        tokens == HAPAX__JSON_TOKENS_OVER)
        return false;
    token->ptr = selection->pointers[p].ptr + begin[depth - 1];
    token->len = (size_t)begin[depth] - begin[depth - 1] - 1;
    return true;
}

static bool same_name(struct hapax_span token, struct hapax_span name)
{
    size_t n = 0;

    for (size_t i = 0; i < token.len; i++, n++) {
        uint8_t c = token.ptr[i];

        if (c == '~')
            c = token.ptr[++i] == '0' ? '~' : '/';
        if (n == name.len || name.ptr[n] != c)
            return false;
    }
    return n == name.len;
}

static bool same_index(struct hapax_span token, size_t index)
{
    size_t i = token.len;

    do {
        if (i == 0 || token.ptr[--i] != '0' + index % 10)
            return false;
        index /= 10;
    } while (index > 0);
    return i == 0;
}

void hapax__selection_name(struct hapax__selection *selection, size_t depth, struct hapax_span name)
{
    struct hapax_span token;

    for (size_t p = 0; p < selection->n; p++)
        if (goes_on(selection, p, depth, &token) && same_name(token, name))
            selection->state[p].matched = (uint8_t)depth;
}

void hapax__selection_index(struct hapax__selection *selection, size_t depth, size_t index)
{
    struct hapax_span token;

    for (size_t p = 0; p < selection->n; p++)
        if (goes_on(selection, p, depth, &token) && same_index(token, index))
            selection->state[p].matched = (uint8_t)depth;
}

bool hapax__selection_leave(struct hapax__selection *selection, size_t depth,
                            const struct hapax__json_value *value)
{
    bool found = false;

    for (size_t p = 0; p < selection->n; p++) {
        if (selection->state[p].matched != depth)
            continue;
        if (selection->state[p].tokens == depth) {
            found = true;
            if (selection->found)
                selection->found(selection->arg, p, value);
        }
        if (depth > 0)
            selection->state[p].matched = (uint8_t)(depth - 1);
    }
    return found && selection->drop;
}

/* ---- fingerprints ------------------------------------------------------------------ */

struct finds {
    bool found[HAPAX__JSON_POINTERS_MAX];
    struct hapax_digest digest[HAPAX__JSON_POINTERS_MAX];
};

static void keep_digest(void *arg, size_t pointer, const struct hapax__json_value *value)
{
    struct finds *finds = arg;

    finds->found[pointer] = true;
    hapax_digest(&finds->digest[pointer], &value->canonical, 1);
}

/* A first part with a second after it can never be the one part that a body's bytes are. */
static void digest_whole(struct hapax_digest *out, struct hapax_span canonical)
{
    struct hapax_span parts[2] = {hapax_str("json"), canonical};

    hapax_digest(out, parts, 2);
}

static void digest_finds(struct hapax_digest *out, const struct finds *finds,
                         const struct hapax_span *pointers, size_t n)
{
    struct hapax_span parts[1 + 2 * HAPAX__JSON_POINTERS_MAX];
    size_t used = 0;

    parts[used++] = hapax_str("json include");
    for (size_t p = 0; p < n; p++) {
        const struct hapax_digest *digest = &finds->digest[p];

        parts[used++] = pointers[p];
        parts[used++] =
            (struct hapax_span){digest->bytes, finds->found[p] ? sizeof(digest->bytes) : 0};
    }
    hapax_digest(out, parts, used);
}

enum hapax__json_result hapax__json_fingerprint(struct hapax_digest *out, struct hapax_span body,
                                                enum hapax__json_select select,
                                                const struct hapax_span *pointers, size_t n)
{
    struct finds finds = {0};
    struct hapax__selection selection = {.pointers = pointers, .n = n};
    enum hapax__json_result result;
    uint8_t *canonical;
    size_t len;

    assert(select == HAPAX__JSON_INCLUDE || select == HAPAX__JSON_EXCLUDE);
    if (select == HAPAX__JSON_INCLUDE) {
        selection.found = keep_digest;
        selection.arg = &finds;
    }
    selection.drop = select == HAPAX__JSON_EXCLUDE;
    result = hapax__json_walk(&canonical, &len, body, &selection);
    if (result == HAPAX__JSON_NOT_CANONICAL)
        hapax_digest(out, &body, 1);
    if (result != HAPAX__JSON_OK)
        return result;
    if (select == HAPAX__JSON_INCLUDE && n > 0)
        digest_finds(out, &finds, pointers, n);
    else
        digest_whole(out, (struct hapax_span){canonical, len});
    free(canonical);
    return HAPAX__JSON_OK;
}

/* ---- keys -------------------------------------------------------------------------- */

struct scalar {
    uint8_t *out;
    size_t size;
    size_t len;
    enum hapax__json_result result;
};

static void keep_scalar(void *arg, size_t pointer, const struct hapax__json_value *value)
{
    struct scalar *scalar = arg;
    struct hapax_span text = value->canonical;

    assert(pointer == 0);
    if (value->type == HAPAX__JSON_NULL)
        return;
    if (value->type == HAPAX__JSON_CONTAINER) {
        scalar->result = HAPAX__JSON_NOT_SCALAR;
        return;
    }
    if (value->type == HAPAX__JSON_STRING)
        text = value->text;
    if (text.len > scalar->size) {
        scalar->result = HAPAX__JSON_TOO_LONG;
        return;
    }
    if (text.len > 0)
        memcpy(scalar->out, text.ptr, text.len);
    scalar->len = text.len;
    scalar->result = HAPAX__JSON_OK;
}

enum hapax__json_result hapax__json_scalar(uint8_t *out, size_t size, size_t *len,
                                           struct hapax_span body, struct hapax_span pointer)
{
    struct scalar scalar = {out, size, 0, HAPAX__JSON_ABSENT};
    struct hapax__selection selection = {
        .pointers = &pointer, .n = 1, .found = keep_scalar, .arg = &scalar};
    enum hapax__json_result result;
    uint8_t *canonical;
    size_t canonical_len;

    result = hapax__json_walk(&canonical, &canonical_len, body, &selection);
    if (result != HAPAX__JSON_OK)
        return result;
    free(canonical);
    *len = scalar.len;
    return scalar.result;
}
