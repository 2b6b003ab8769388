/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys files, and sealed outcomes as a store may give them back. 'k': the rest is a keys file.
 * 'o': the rest is the headers of a record, as they stand in a store, and their body. Otherwise a
 * body and headers are sealed, one bit of the result is changed (which one, the first bytes say),
 * and it is opened.
 * Claims: a file is taken whole, or refused with its line and without its keys. What is opened is
 * what was sealed; what was changed is not opened. An op that is not opened shows nothing of it.
 */
#include "fuzz.h"

#include "base/arena.h"
#include "store/seal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HEX "112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static void keys_file(struct hapax_span text)
{
    char why[HAPAX_TEXT_MAX] = "";
    struct hapax__keys keys;

    if (hapax__keys_read(&keys, text, why) != HAPAX_ERR_NONE) {
        assert(why[0] && strlen(why) < sizeof(why) && keys.n == 0);
        return;
    }
    assert(keys.n <= HAPAX__KEYS_MAX && (!keys.required || keys.n > 0));
    for (uint32_t i = 0; i < keys.n; i++) {
        size_t len = strlen(keys.key[i].id);

        assert(len > 0 && len <= HAPAX__KEY_ID_MAX);
        for (uint32_t j = 0; j < i; j++)
            assert(strcmp(keys.key[i].id, keys.key[j].id) != 0);
    }
}

static struct hapax__keys the_keys(void)
{
    char why[HAPAX_TEXT_MAX];
    struct hapax__keys keys;
    enum hapax_error error =
        hapax__keys_read(&keys, hapax_str("new 00" HEX "\nold ff" HEX "\n"), why);

    assert(error == HAPAX_ERR_NONE && keys.n == 2);
    return keys;
}

static void opened(const struct hapax__keys *keys, struct hapax_op *op, struct hapax_arena *arena)
{
    char text[HAPAX_TEXT_MAX] = "";

    hapax__unseal(keys, op, arena, text);
    assert((op->verdict == HAPAX_NO_VERDICT) == (op->error != HAPAX_ERR_NONE));
    if (op->error == HAPAX_ERR_NONE)
        return;
    assert(op->error == HAPAX_ERR_SEALED || op->error == HAPAX_ERR_UNSUPPORTED);
    assert(text[0] && !op->record.outcome.headers.ptr && !op->record.outcome.body.ptr);
}

/* As a store shows it. */
static void shown(struct hapax_span headers, struct hapax_span body)
{
    const struct hapax__keys keys = the_keys();
    struct hapax_op op = {.kind = HAPAX_OP_READ, .verdict = HAPAX_FOUND, .id = {{1}}};
    struct hapax_arena arena = {0};

    op.record = (struct hapax_record){.id = op.id, .state = HAPAX_STATE_COMPLETED, .fence = 1};
    op.record.outcome.headers = headers;
    op.record.outcome.body = body;
    opened(&keys, &op, &arena);
    assert(op.error != HAPAX_ERR_NONE || headers.len == 0 || headers.ptr[0] != 0);
    hapax__arena_release(&arena);
}

static struct hapax_span copy_of(struct hapax_span span)
{
    uint8_t *bytes = malloc(span.len + 1);

    assert(bytes);
    if (span.len > 0)
        memcpy(bytes, span.ptr, span.len);
    return (struct hapax_span){bytes, span.len};
}

static void flip(struct hapax_span headers, struct hapax_span body, const uint8_t where[3])
{
    size_t at = ((size_t)where[0] << 8 | where[1]) % (headers.len + body.len);
    const uint8_t *byte = at < headers.len ? headers.ptr + at : body.ptr + (at - headers.len);

    *(uint8_t *)(uintptr_t)byte ^= (uint8_t)(1u << (where[2] & 7));
}

static void sealed(const uint8_t *data, size_t size)
{
    const struct hapax__keys keys = the_keys();
    struct hapax_op op = {.kind = HAPAX_OP_COMPLETE, .fence = 5, .attempt = 1, .id = {{2}}};
    struct hapax_span headers, body, plain = {data + 4, size - 4};
    struct hapax_arena arena = {0};
    char text[HAPAX_TEXT_MAX];
    bool changed = data[3] & 1;

    op.outcome.headers = (struct hapax_span){plain.ptr, plain.len / 3};
    op.outcome.body = (struct hapax_span){plain.ptr + plain.len / 3, plain.len - plain.len / 3};
    if (hapax__seal(&keys, &op, text) != HAPAX_ERR_NONE) {
        assert(op.outcome.headers.ptr[0] == 0 || op.outcome.headers.len > HAPAX_HEADERS_MAX / 2);
        return;
    }
    headers = copy_of(op.outcome.headers);
    body = copy_of(op.outcome.body);
    op.verdict = HAPAX_OK;
    op.record = (struct hapax_record){.id = op.id, .state = HAPAX_STATE_COMPLETED};
    hapax__unseal(&keys, &op, &arena, text); /* its own: not looked at again */
    assert(plain.len == 0 || op.outcome.body.ptr == plain.ptr + plain.len / 3);

    op = (struct hapax_op){.kind = HAPAX_OP_READ, .verdict = HAPAX_FOUND, .id = {{2}}};
    op.record = (struct hapax_record){
        .id = op.id, .state = HAPAX_STATE_COMPLETED, .fence = 5, .attempt = 1};
    if (changed && headers.len + body.len > 0)
        flip(headers, body, data);
    op.record.outcome.headers = headers;
    op.record.outcome.body = body;
    opened(&keys, &op, &arena);
    if (changed && plain.len > 0) {
        /* The first byte says that it is sealed: without it these are any headers. */
        assert(op.error != HAPAX_ERR_NONE || headers.ptr[0] != 0);
    } else {
        assert(op.error == HAPAX_ERR_NONE && op.record.outcome.headers.len == plain.len / 3);
        assert(plain.len == 0 ||
               (memcmp(op.record.outcome.headers.ptr, plain.ptr, plain.len / 3) == 0 &&
                memcmp(op.record.outcome.body.ptr, plain.ptr + plain.len / 3,
                       op.record.outcome.body.len) == 0));
    }
    free((void *)(uintptr_t)headers.ptr);
    free((void *)(uintptr_t)body.ptr);
    hapax__arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == 'k')
        keys_file((struct hapax_span){data + 1, size - 1});
    else if (size > 1 && data[0] == 'o')
        shown((struct hapax_span){data + 2, (size - 2) * data[1] / 255},
              (struct hapax_span){data + 2, size - 2});
    else if (size >= 4)
        sealed(data, size);
    return 0;
}
