/* SPDX-License-Identifier: Apache-2.0
 *
 * Items of the table, the requests about them, and the replies. A table's key is `id` (32 bytes)
 * and `part`: a zero byte for the record; 1, the 16 random bytes of the set and the number for a
 * chunk.
 *
 *   r  the record as hapax__record_encode() has it, without its body where that is in chunks
 *   v  16 random bytes, new with each write: what conditions compare
 *   s  its state, u when it was last written (µs): for the filter of LIST
 *   x  when the table's TTL may remove it (s); none on what does not expire
 *   c  the chunks of its body: set, count u16, length u32, XXH3-64 of the body u64
 *   d  a chunk's bytes
 *
 * The invariant: a record is judged only as a whole. Its encoding has a checksum, and `c` has one
 * for a body in chunks. Nothing else in an item is ever read, so others can use its attributes.
 * Rejected: a record's fields as attributes, and the machine in condition expressions: three
 * expressions for each op, which say only nearly what the machine says; and a condition can compare
 * no more than the stored value with a given one.
 */
#include "dynamodb.h"

#include "base/bytes.h"
#include "base/span.h"
#include "base/time.h"
#include "core/record.h"

#include <inttypes.h>

#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include <xxhash.h>

#define PART_CHUNK 1u
#define PART_LEN   (1 + HAPAX__DDB_SET_LEN + 2)
#define CHUNKS_LEN (HAPAX__DDB_SET_LEN + 2 + 4 + 8)

static const uint8_t record_part[1] = {0};
static const uint8_t last_part[1] = {0xff}; /* sorts behind all parts of an id */

/* ---- chunks ---------------------------------------------------------------------------- */

static uint64_t sum_of(const struct hapax__ddb_chunks *chunks, const struct hapax_id *id,
                       struct hapax_span body)
{
    uint8_t of[sizeof(id->bytes) + HAPAX__DDB_SET_LEN];

    memcpy(of, id->bytes, sizeof(id->bytes));
    memcpy(of + sizeof(id->bytes), chunks->set, HAPAX__DDB_SET_LEN);
    return XXH3_64bits_withSeed(body.ptr, body.len, XXH3_64bits(of, sizeof(of)));
}

void hapax__ddb_chunks_of(struct hapax__ddb_chunks *out, const struct hapax_id *id,
                          const uint8_t set[HAPAX__DDB_SET_LEN], struct hapax_span body)
{
    assert(body.len > 0 && body.len <= HAPAX_BODY_MAX);
    memcpy(out->set, set, HAPAX__DDB_SET_LEN);
    out->count = (uint16_t)((body.len + HAPAX__DDB_CHUNK - 1) / HAPAX__DDB_CHUNK);
    out->len = (uint32_t)body.len;
    out->sum = sum_of(out, id, body);
}

bool hapax__ddb_chunks_hold(const struct hapax__ddb_chunks *chunks, const struct hapax_id *id,
                            struct hapax_span body)
{
    return body.len == chunks->len && chunks->sum == sum_of(chunks, id, body);
}

size_t hapax__ddb_chunk_len(const struct hapax__ddb_chunks *chunks, size_t i)
{
    assert(i < chunks->count);
    return i + 1 < chunks->count ? HAPAX__DDB_CHUNK : chunks->len - i * HAPAX__DDB_CHUNK;
}

bool hapax__ddb_fits(const struct hapax_record *record, size_t inline_max)
{
    return record->outcome.body.len <= inline_max &&
           hapax__record_size(record) <= HAPAX__DDB_ITEM_MAX;
}

int64_t hapax__ddb_ttl(int64_t until_us)
{
    return until_us == 0 ? 0 : until_us / US_PER_S + 1 + HAPAX__DDB_SLACK_S;
}

static void put_chunks(struct hapax__json_out *out, const struct hapax__ddb_chunks *chunks)
{
    uint8_t bytes[CHUNKS_LEN];
    struct hapax__writer w = {bytes, sizeof(bytes)};

    hapax__put(&w, chunks->set, sizeof(chunks->set));
    hapax__put_number(&w, chunks->count, 2);
    hapax__put_number(&w, chunks->len, 4);
    hapax__put_number(&w, chunks->sum, 8);
    hapax__ddb_put_binary(out, "c", (struct hapax_span){bytes, sizeof(bytes)});
}

static bool take_chunks(struct hapax__ddb_chunks *out, struct hapax_span bytes)
{
    struct hapax__reader r = {bytes.ptr, bytes.len, false};

    hapax__take_into(&r, out->set, sizeof(out->set));
    out->count = hapax__take_u16(&r);
    out->len = hapax__take_u32(&r);
    out->sum = hapax__take_u64(&r);
    return !r.bad && r.left == 0 && out->len > 0 && out->len <= HAPAX_BODY_MAX &&
           out->count == (out->len + HAPAX__DDB_CHUNK - 1) / HAPAX__DDB_CHUNK;
}

/* ---- requests -------------------------------------------------------------------------- */

static void begin(struct hapax__json_out *out, const char *table)
{
    out->len = 0;
    out->failed = false;
    hapax__json_put(out, "{\"TableName\":\"");
    hapax__json_put(out, table);
    hapax__json_put(out, "\",");
}

/* "NAME":{"id":…,"part":… and leaves the brace open. */
static void put_key(struct hapax__json_out *out, const char *name, const struct hapax_id *id,
                    struct hapax_span part)
{
    hapax__json_put(out, "\"");
    hapax__json_put(out, name);
    hapax__json_put(out, "\":{");
    hapax__ddb_put_binary(out, "id", (struct hapax_span){id->bytes, sizeof(id->bytes)});
    hapax__ddb_put_binary(out, "part", part);
}

static struct hapax_span part_of(uint8_t bytes[PART_LEN], const struct hapax__ddb_chunks *chunks,
                                 size_t i)
{
    struct hapax__writer w = {bytes, PART_LEN};

    assert(i < chunks->count);
    hapax__put_number(&w, PART_CHUNK, 1);
    hapax__put(&w, chunks->set, sizeof(chunks->set));
    hapax__put_number(&w, i, 2);
    return (struct hapax_span){bytes, PART_LEN};
}

static struct hapax_span the_record(void)
{
    return (struct hapax_span){record_part, sizeof(record_part)};
}

/* A failed condition brings the old item back, where the server supports it. */
static void put_condition(struct hapax__json_out *out, const uint8_t *v)
{
    if (v) {
        hapax__json_put(out, ",\"ConditionExpression\":\"v = :v\","
                             "\"ExpressionAttributeValues\":{");
        hapax__ddb_put_binary(out, ":v", (struct hapax_span){v, HAPAX__DDB_V_LEN});
        hapax__json_put(out, "}");
    } else {
        hapax__json_put(out, ",\"ConditionExpression\":\"attribute_not_exists(id)\"");
    }
    hapax__json_put(out, ",\"ReturnValuesOnConditionCheckFailure\":\"ALL_OLD\"}");
}

/* The condition that take_attribute() finds no version. An absent item has none, either. */
static void put_no_version(struct hapax__json_out *out)
{
    hapax__json_put(out, ",\"ConditionExpression\":\"NOT attribute_type(v, :b) OR size(v) <> :n\","
                         "\"ExpressionAttributeValues\":{\":b\":{\"S\":\"B\"}");
    hapax__ddb_put_numeric(out, ":n", HAPAX__DDB_V_LEN);
    hapax__json_put(out, "},\"ReturnValuesOnConditionCheckFailure\":\"ALL_OLD\"}");
}

void hapax__ddb_ask_put(struct hapax__json_out *out, const char *table,
                        const struct hapax_record *record, const struct hapax__ddb_item *item,
                        const uint8_t *v)
{
    int64_t ttl_s = hapax__ddb_ttl(record->expires_us);

    begin(out, table);
    put_key(out, "Item", &record->id, the_record());
    hapax__ddb_put_binary(out, "r", item->r);
    hapax__ddb_put_binary(out, "v", (struct hapax_span){item->v, sizeof(item->v)});
    hapax__ddb_put_numeric(out, "s", record->state);
    hapax__ddb_put_numeric(out, "u", record->updated_us);
    if (ttl_s > 0)
        hapax__ddb_put_numeric(out, "x", ttl_s);
    if (item->chunks.count > 0)
        put_chunks(out, &item->chunks);
    hapax__json_put(out, "}");
    put_condition(out, v);
}

void hapax__ddb_ask_get(struct hapax__json_out *out, const char *table, const struct hapax_id *id)
{
    begin(out, table);
    put_key(out, "Key", id, the_record());
    hapax__json_put(out, "},\"ConsistentRead\":true}");
}

void hapax__ddb_ask_delete(struct hapax__json_out *out, const char *table,
                           const struct hapax_id *id, const uint8_t *v)
{
    begin(out, table);
    put_key(out, "Key", id, the_record());
    hapax__json_put(out, "}");
    if (v)
        put_condition(out, v);
    else
        put_no_version(out);
}

void hapax__ddb_ask_put_chunk(struct hapax__json_out *out, const char *table,
                              const struct hapax_id *id, const struct hapax__ddb_chunks *chunks,
                              size_t i, struct hapax_span body, int64_t ttl_s)
{
    uint8_t part[PART_LEN];

    begin(out, table);
    put_key(out, "Item", id, part_of(part, chunks, i));
    hapax__ddb_put_binary(
        out, "d",
        (struct hapax_span){body.ptr + i * HAPAX__DDB_CHUNK, hapax__ddb_chunk_len(chunks, i)});
    if (ttl_s > 0)
        hapax__ddb_put_numeric(out, "x", ttl_s);
    hapax__json_put(out, "}}");
}

void hapax__ddb_ask_get_chunk(struct hapax__json_out *out, const char *table,
                              const struct hapax_id *id, const struct hapax__ddb_chunks *chunks,
                              size_t i)
{
    uint8_t part[PART_LEN];

    begin(out, table);
    put_key(out, "Key", id, part_of(part, chunks, i));
    hapax__json_put(out, "},\"ConsistentRead\":true}");
}

void hapax__ddb_ask_delete_chunk(struct hapax__json_out *out, const char *table,
                                 const struct hapax_id *id, const struct hapax__ddb_chunks *chunks,
                                 size_t i)
{
    uint8_t part[PART_LEN];

    begin(out, table);
    put_key(out, "Key", id, part_of(part, chunks, i));
    hapax__json_put(out, "}}");
}

/* Chunks have no `s`, so that a filter on it leaves them out. */
static void put_filter(struct hapax__json_out *out, uint32_t states)
{
    char name[4] = ":a";
    bool first = true;

    hapax__json_put(out, ",\"FilterExpression\":\"u <= :u AND s IN (");
    for (uint32_t s = HAPAX_STATE_STARTED; s <= HAPAX_STATE_UNKNOWN; s++) {
        if (!(states & 1u << s))
            continue;
        name[1] = (char)('a' + s);
        hapax__json_put(out, first ? "" : ",");
        hapax__json_put(out, name);
        first = false;
    }
    hapax__json_put(out, ")\",\"ExpressionAttributeValues\":{");
    for (uint32_t s = HAPAX_STATE_STARTED; s <= HAPAX_STATE_UNKNOWN; s++) {
        name[1] = (char)('a' + s);
        if (states & 1u << s)
            hapax__ddb_put_numeric(out, name, s);
    }
}

void hapax__ddb_ask_scan(struct hapax__json_out *out, const char *table, const struct hapax_op *op,
                         const struct hapax_id *from, uint32_t limit, int64_t until_us)
{
    static const struct hapax_id start;

    begin(out, table);
    hapax__json_put(out, "\"ConsistentRead\":true,\"ProjectionExpression\":\"id,r\",\"Limit\":");
    hapax__json_put_number(out, limit);
    put_filter(out, op->states ? op->states : HAPAX_STATES_ALL);
    hapax__ddb_put_numeric(out, ":u", until_us);
    hapax__json_put(out, "}");
    if (memcmp(from, &start, sizeof(start)) != 0) {
        hapax__json_put(out, ",");
        put_key(out, "ExclusiveStartKey", from, (struct hapax_span){last_part, sizeof(last_part)});
        hapax__json_put(out, "}");
    }
    hapax__json_put(out, "}");
}

/* ---- replies --------------------------------------------------------------------------- */

/* The bytes of {"B":"…"}. */
static enum hapax__ddb_seen take_binary(struct hapax_span *out, struct hapax_arena *arena,
                                        struct hapax_span value)
{
    struct hapax_span text;

    if (!hapax__raw_member(&text, value, "B"))
        return HAPAX__DDB_DAMAGED;
    return hapax__ddb_bytes(out, arena, text);
}

/* One of the attributes that are ours. */
static enum hapax__ddb_seen take_attribute(struct hapax__ddb_item *out, struct hapax_arena *arena,
                                           struct hapax_span name, struct hapax_span value)
{
    bool r = hapax__raw_says(name, "r"), v = hapax__raw_says(name, "v"),
         c = hapax__raw_says(name, "c");
    enum hapax__ddb_seen seen;
    struct hapax_span bytes;

    if (!r && !v && !c)
        return HAPAX__DDB_FOUND;
    seen = take_binary(&bytes, arena, value);
    if (seen != HAPAX__DDB_FOUND)
        return seen;
    if (r)
        out->r = bytes;
    out->has_v |= v && bytes.len == sizeof(out->v);
    if (v && out->has_v)
        memcpy(out->v, bytes.ptr, sizeof(out->v));
    return c && !take_chunks(&out->chunks, bytes) ? HAPAX__DDB_DAMAGED : HAPAX__DDB_FOUND;
}

enum hapax__ddb_seen hapax__ddb_read_item(struct hapax__ddb_item *out, struct hapax_arena *arena,
                                          struct hapax_span item)
{
    struct hapax__raw_walk walk;
    struct hapax_span name, value;
    enum hapax__ddb_seen seen = HAPAX__DDB_FOUND;

    memset(out, 0, sizeof(*out));
    if (!hapax__raw_is_object(item))
        return HAPAX__DDB_NONSENSE;
    hapax__raw_begin(&walk, item);
    while (hapax__raw_next(&walk, &name, &value)) {
        enum hapax__ddb_seen one = take_attribute(out, arena, name, value);

        if (seen != HAPAX__DDB_NOMEM && one != HAPAX__DDB_FOUND)
            seen = one;
    }
    if (seen == HAPAX__DDB_FOUND && (out->r.len == 0 || !out->has_v))
        seen = HAPAX__DDB_DAMAGED;
    if (seen != HAPAX__DDB_FOUND) /* nobody is to follow what it says */
        memset(&out->chunks, 0, sizeof(out->chunks));
    return seen;
}

/* The item of a reply; *nonsense: it is no reply. */
static bool item_of(struct hapax_span *item, struct hapax_span reply, bool *nonsense)
{
    struct hapax_span root;

    *nonsense = !hapax__raw_check(&root, reply) || !hapax__raw_is_object(root);
    return !*nonsense && hapax__raw_member(item, root, "Item");
}

enum hapax__ddb_seen hapax__ddb_take_item(struct hapax__ddb_item *out, struct hapax_arena *arena,
                                          struct hapax_span reply)
{
    struct hapax_span item;
    bool nonsense;

    memset(out, 0, sizeof(*out));
    if (item_of(&item, reply, &nonsense))
        return hapax__ddb_read_item(out, arena, item);
    return nonsense ? HAPAX__DDB_NONSENSE : HAPAX__DDB_NONE;
}

bool hapax__ddb_shows(struct hapax_span reply, const uint8_t v[HAPAX__DDB_V_LEN])
{
    struct hapax_arena scratch = {NULL};
    struct hapax_span value, bytes;
    bool same = hapax__ddb_find(&value, reply, "Item.v.B") &&
                hapax__ddb_bytes(&bytes, &scratch, value) == HAPAX__DDB_FOUND &&
                bytes.len == HAPAX__DDB_V_LEN && memcmp(bytes.ptr, v, bytes.len) == 0;

    hapax__arena_release(&scratch);
    return same;
}

enum hapax__ddb_seen hapax__ddb_take_chunk(struct hapax_span *out, struct hapax_arena *arena,
                                           struct hapax_span reply)
{
    struct hapax_span item, value;
    bool nonsense;

    if (!item_of(&item, reply, &nonsense))
        return nonsense ? HAPAX__DDB_NONSENSE : HAPAX__DDB_NONE;
    if (!hapax__raw_member(&value, item, "d"))
        return HAPAX__DDB_DAMAGED;
    return take_binary(out, arena, value);
}

enum hapax__ddb_seen hapax__ddb_read_listed(struct hapax_id *id, struct hapax_span *r,
                                            struct hapax_arena *arena, struct hapax_span item)
{
    enum hapax__ddb_seen seen = HAPAX__DDB_NONSENSE;
    struct hapax_span value, bytes;

    if (hapax__raw_member(&value, item, "id"))
        seen = take_binary(&bytes, arena, value);
    if (seen == HAPAX__DDB_NOMEM)
        return seen;
    if (seen != HAPAX__DDB_FOUND || bytes.len != sizeof(id->bytes))
        return HAPAX__DDB_NONSENSE;
    memcpy(id->bytes, bytes.ptr, sizeof(id->bytes));
    if (!hapax__raw_member(&value, item, "r"))
        return HAPAX__DDB_DAMAGED;
    return take_binary(r, arena, value);
}
