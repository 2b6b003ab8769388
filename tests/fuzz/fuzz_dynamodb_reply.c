/* SPDX-License-Identifier: Apache-2.0
 *
 * What a hostile or broken DynamoDB may send: as an item, a chunk, a page of a scan and a table's
 * description. Claims: no reader leaves the reply. What it gives lies in the reply or the arena.
 * The same bytes are read alike twice.
 */
#include "fuzz.h"

#include "store/dynamodb/dynamodb.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Sums the bytes, so that a sanitizer sees each of them read. */
static unsigned touch(struct hapax_span span)
{
    unsigned sum = 0;

    for (size_t i = 0; i < span.len; i++)
        sum += span.ptr[i];
    return sum;
}

static unsigned read_items(struct hapax_span reply, struct hapax_arena *arena)
{
    struct hapax__ddb_item item;
    struct hapax_span bytes;
    enum hapax__ddb_seen seen = hapax__ddb_take_item(&item, arena, reply);
    unsigned sum = (unsigned)seen;

    if (seen == HAPAX__DDB_FOUND) {
        assert(item.has_v && item.r.len <= reply.len);
        assert(item.chunks.count <= HAPAX__DDB_CHUNKS_MAX && item.chunks.len <= HAPAX_BODY_MAX);
        sum += touch(item.r);
        for (size_t i = 0; i < item.chunks.count; i++)
            assert(hapax__ddb_chunk_len(&item.chunks, i) <= HAPAX__DDB_CHUNK);
    }
    seen = hapax__ddb_take_chunk(&bytes, arena, reply);
    sum = sum * 31 + (unsigned)seen;
    return seen == HAPAX__DDB_FOUND ? sum + touch(bytes) : sum;
}

static unsigned read_page(struct hapax_span reply, struct hapax_arena *arena)
{
    struct hapax__raw_walk walk;
    struct hapax_span items, name, item, r;
    struct hapax_id id;
    unsigned sum = 0;

    if (!hapax__ddb_find(&items, reply, "Items"))
        return 1;
    hapax__raw_begin(&walk, items);
    while (hapax__raw_next(&walk, &name, &item)) {
        assert(item.ptr >= reply.ptr && item.ptr + item.len <= reply.ptr + reply.len);
        sum = sum * 31 + (unsigned)hapax__ddb_read_listed(&id, &r, arena, item);
    }
    return sum;
}

static unsigned read_all(struct hapax_span reply)
{
    struct hapax_arena arena = {NULL};
    struct hapax_span value;
    char text[32];
    int64_t number = 0;
    unsigned sum = read_items(reply, &arena) * 31 + read_page(reply, &arena);

    sum += hapax__ddb_keyed(reply);
    if (hapax__ddb_find(&value, reply, "Table.TableStatus") &&
        hapax__raw_copy(text, sizeof(text), value))
        sum += (unsigned)strlen(text);
    if (hapax__ddb_find(&value, reply, "Table.ItemCount") && hapax__raw_number(&number, value))
        sum += (unsigned)number;
    hapax__arena_release(&arena);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1); /* of its own, so that a sanitizer knows where it ends */
    struct hapax_span reply = {copy, size};

    assert(copy);
    if (size > 0)
        memcpy(copy, data, size);
    assert(read_all(reply) == read_all(reply));
    free(copy);
    return 0;
}
