/* SPDX-License-Identifier: Apache-2.0
 *
 * Canonical JSON and pointers. The input is pointers, one a line, an empty line, and a document.
 * Claims: a canonical form is its own canonical form; document and canonical form have the same
 * fingerprints and scalars; what is not canonical has the fingerprint of its bytes and no scalar.
 */
#include "fuzz.h"

#include "json/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define POINTERS_MAX 4

static bool same(const struct hapax_digest *a, const struct hapax_digest *b)
{
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

/* Takes the pointers off the start of the input. Without an empty line there are none. */
static size_t take_pointers(struct hapax_span *input, struct hapax_span *pointers)
{
    struct hapax_span rest = *input;
    size_t n = 0;

    while (n < POINTERS_MAX && rest.len > 0) {
        const uint8_t *newline = memchr(rest.ptr, '\n', rest.len);
        struct hapax_span line;
        const char *why;

        if (!newline)
            return 0;
        line = (struct hapax_span){rest.ptr, (size_t)(newline - rest.ptr)};
        rest = (struct hapax_span){newline + 1, rest.len - line.len - 1};
        if (line.len == 0) {
            *input = rest;
            return n;
        }
        if (hapax__json_pointer_check(line, &why))
            pointers[n++] = line;
        else
            assert(why && *why);
    }
    return 0;
}

static void same_scalar(struct hapax_span body, struct hapax_span canonical,
                        struct hapax_span pointer)
{
    uint8_t a[64];
    uint8_t b[sizeof(a)];
    size_t a_len = 0;
    size_t b_len = 0;
    enum hapax__json_result result = hapax__json_scalar(a, sizeof(a), &a_len, body, pointer);

    assert(result != HAPAX__JSON_NOT_CANONICAL && result != HAPAX__JSON_NOMEM);
    assert(hapax__json_scalar(b, sizeof(b), &b_len, canonical, pointer) == result);
    assert(a_len == b_len && a_len <= sizeof(a) && memcmp(a, b, a_len) == 0);
}

static void same_fingerprint(struct hapax_span body, struct hapax_span canonical,
                             enum hapax__json_select select, const struct hapax_span *pointers,
                             size_t n)
{
    struct hapax_digest a;
    struct hapax_digest b;

    assert(hapax__json_fingerprint(&a, body, select, pointers, n) == HAPAX__JSON_OK);
    assert(hapax__json_fingerprint(&b, canonical, select, pointers, n) == HAPAX__JSON_OK);
    assert(same(&a, &b));
}

static void refused(struct hapax_span body)
{
    struct hapax_span whole = {NULL, 0};
    struct hapax_digest bytes;
    struct hapax_digest digest;
    uint8_t key[8];
    size_t len;

    hapax_digest(&bytes, &body, 1);
    assert(hapax__json_fingerprint(&digest, body, HAPAX__JSON_INCLUDE, &whole, 1) ==
           HAPAX__JSON_NOT_CANONICAL);
    assert(same(&bytes, &digest));
    assert(hapax__json_scalar(key, sizeof(key), &len, body, whole) == HAPAX__JSON_NOT_CANONICAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax_span pointers[POINTERS_MAX];
    struct hapax_span body = {data, size};
    size_t n = take_pointers(&body, pointers);
    struct hapax_span canonical;
    uint8_t *text;
    uint8_t *again;
    size_t len;
    size_t again_len;
    enum hapax__json_result result = hapax__json_canonical(&text, &len, body);

    assert(result == HAPAX__JSON_OK || result == HAPAX__JSON_NOT_CANONICAL);
    if (result != HAPAX__JSON_OK) {
        assert(!text);
        refused(body);
        return 0;
    }
    canonical = (struct hapax_span){text, len};
    assert(hapax__json_canonical(&again, &again_len, canonical) == HAPAX__JSON_OK);
    assert(again_len == len && memcmp(again, text, len) == 0);
    free(again);
    same_fingerprint(body, canonical, HAPAX__JSON_INCLUDE, pointers, n);
    same_fingerprint(body, canonical, HAPAX__JSON_EXCLUDE, pointers, n);
    for (size_t i = 0; i < n; i++)
        same_scalar(body, canonical, pointers[i]);
    free(text);
    return 0;
}
