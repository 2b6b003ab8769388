/* SPDX-License-Identifier: Apache-2.0
 *
 * The DynamoDB store's parts that need no server: its URI as a table, where every mistake has its
 * text; items as they are written and as they come back; JSON that others write; what a handle
 * remembers.
 */
#include "store/dynamodb/dynamodb.h"

#include "../cases.h"
#include "core/record.h"
#include "oom.h"
#include "record_diff.h"

#include <stdlib.h>

/* ---- the URI --------------------------------------------------------------------------- */

static const struct row {
    const char *uri;
    const char *expected; /* "!…": INVALID, with this in its text */
} rows[] = {
    {"dynamodb://eu-central-1/shop", "eu-central-1 shop 2000 1000 32 16777216"},
    {"dynamodb://r/a.B_9-c?", "r a.B_9-c 2000 1000 32 16777216"},
    {"dynamodb://r/abc?endpoint=http://127.0.0.1:8000",
     "r abc 2000 1000 32 16777216 endpoint=http://127.0.0.1:8000"},
    {"dynamodb://r/abc?endpoint=https%3A%2F%2Fh&profile=shop%20two",
     "r abc 2000 1000 32 16777216 endpoint=https://h profile=shop two"},
    {"dynamodb://r/abc?timeout=10ms&skew=0&connections=1&body_max=1k&inline_max=0",
     "r abc 10 0 1 1024"},
    {"dynamodb://r/abc?timeout=1m&skew=1m&connections=256&body_max=16m",
     "r abc 60000 60000 256 16777216"},

    {"dynamodb:r/abc", "!does not begin with dynamodb://"},
    {"dynamodb://", "!the region is not"},
    {"dynamodb:///abc", "!the region is not"},
    {"dynamodb://EU/abc", "!the region is not"},
    {"dynamodb://r", "!the table is not"},
    {"dynamodb://r/ab", "!the table is not"},
    {"dynamodb://r/a b", "!the table is not"},
    {"dynamodb://r/abc/d", "!the table is not"},
    {"dynamodb://r/abc%20", "!the table is not"},
    {"dynamodb://AKID:s3cret@r/abc", "!credentials come from"},
    {"dynamodb://r/abc#x", "!'#'"},
    {"dynamodb://r/abc?endpoint=h:8000", "!\"endpoint\" does not begin"},
    {"dynamodb://r/abc?endpoint=http://u:s3cret@h", "!\"endpoint\" has a '@'"},
    {"dynamodb://r/abc?timeout=9ms", "!\"timeout\" is not a duration of 10ms to 1m"},
    {"dynamodb://r/abc?timeout=61s", "!\"timeout\" is not a duration of 10ms to 1m"},
    {"dynamodb://r/abc?skew=-1s", "!\"skew\" is not a duration of 0 to 1m"},
    {"dynamodb://r/abc?skew=61s", "!\"skew\" is not a duration of 0 to 1m"},
    {"dynamodb://r/abc?connections=0", "!\"connections\" is not a number of 1 to 256"},
    {"dynamodb://r/abc?connections=257", "!\"connections\" is not a number of 1 to 256"},
    {"dynamodb://r/abc?body_max=1023", "!\"body_max\" is not a size of 1k to 16m"},
    {"dynamodb://r/abc?body_max=17m", "!\"body_max\" is not a size of 1k to 16m"},
    {"dynamodb://r/abc?inline_max=381k", "!\"inline_max\" is not a size of 0 to 380k"},
    {"dynamodb://r/abc?profile=", "!\"profile\" is not a name of 1 to 128"},
    {"dynamodb://r/abc?skew=1s&skew=2s", "!\"skew\" is given twice"},
    {"dynamodb://r/abc?wait=1", "!parameter \"wait\" is not known"},
    {"dynamodb://r/abc?timeout=%zz", "!has a '%' without two hex digits"},
};

CASE(a_uri_says_what_it_says)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[HAPAX_TEXT_MAX] = "", got[1024];
        struct hapax__ddb_uri uri;
        enum hapax_error error = hapax__ddb_uri(&uri, rows[i].uri, text);

        assert_null(strstr(text, "s3cret"));
        if (rows[i].expected[0] == '!') {
            if (error != HAPAX_ERR_INVALID || !strstr(text, rows[i].expected + 1))
                fail_msg("%s: %d \"%s\"", rows[i].uri, error, text);
            continue;
        }
        snprintf(got, sizeof(got), "%s %s %d %d %u %zu%s%s%s%s", uri.region, uri.table,
                 (int)uri.timeout_ms, (int)uri.skew_ms, uri.connections, uri.body_max,
                 uri.endpoint[0] ? " endpoint=" : "", uri.endpoint,
                 uri.profile[0] ? " profile=" : "", uri.profile);
        if (error != HAPAX_ERR_NONE)
            fail_msg("%s: %s", rows[i].uri, text);
        assert_string_equal(got, rows[i].expected);
    }
}

/* Names at their limits, and one byte over. */
CASE(names_have_their_limits)
{
    char text[HAPAX_TEXT_MAX], uri[1024], name[400];
    struct hapax__ddb_uri out;

    memset(name, 'a', sizeof(name));
    snprintf(uri, sizeof(uri), "dynamodb://%.63s/%.255s?profile=%.128s", name, name, name);
    assert_int_equal(hapax__ddb_uri(&out, uri, text), HAPAX_ERR_NONE);
    snprintf(uri, sizeof(uri), "dynamodb://%.64s/abc", name);
    assert_int_equal(hapax__ddb_uri(&out, uri, text), HAPAX_ERR_INVALID);
    snprintf(uri, sizeof(uri), "dynamodb://r/%.256s", name);
    assert_int_equal(hapax__ddb_uri(&out, uri, text), HAPAX_ERR_INVALID);
    snprintf(uri, sizeof(uri), "dynamodb://r/abc?profile=%.129s", name);
    assert_int_equal(hapax__ddb_uri(&out, uri, text), HAPAX_ERR_INVALID);
    snprintf(uri, sizeof(uri), "dynamodb://r/abc?endpoint=http://%.249s", name);
    assert_int_equal(hapax__ddb_uri(&out, uri, text), HAPAX_ERR_INVALID);
}

/* ---- items ----------------------------------------------------------------------------- */

static struct hapax_record a_record(void)
{
    struct hapax_record record = {.state = HAPAX_STATE_COMPLETED, .attempt = 2, .fence = 1000};

    memset(&record.id, 0xd1, sizeof(record.id));
    memset(&record.mark, 7, sizeof(record.mark));
    record.scope = hapax_str("shop");
    record.created_us = 1;
    record.updated_us = INT64_C(1700000000000000);
    record.expires_us = INT64_C(1700086400000000);
    record.retention_ms = 86400000;
    record.outcome.status = 201;
    record.outcome.body_kept = true;
    record.outcome.headers = hapax_str("A: b\r\n");
    record.outcome.body = hapax_str("a \"body\" \\ and more");
    return record;
}

static struct hapax__ddb_item item_of(const struct hapax_record *record)
{
    struct hapax__ddb_item item = {.has_v = true};
    uint8_t *bytes = malloc(hapax__record_size(record));

    assert_non_null(bytes);
    hapax__record_encode(bytes, record);
    memset(item.v, 0x5e, sizeof(item.v));
    item.r = (struct hapax_span){bytes, hapax__record_size(record)};
    return item;
}

static struct hapax_span span_of(const struct hapax__json_out *out)
{
    assert_false(out->failed);
    return (struct hapax_span){(const uint8_t *)out->bytes, out->len};
}

static bool says(const struct hapax__json_out *out, const char *text)
{
    return memmem(out->bytes, out->len, text, strlen(text)) != NULL;
}

/* What is put under "Item" comes back under "Item". */
CASE(an_item_comes_back_as_it_was_put)
{
    struct hapax_record record = a_record(), back;
    struct hapax__ddb_item item = item_of(&record), seen;
    struct hapax__json_out out = {0};
    struct hapax_arena arena = {NULL};
    uint8_t set[HAPAX__DDB_SET_LEN] = {9};

    hapax__ddb_chunks_of(&item.chunks, &record.id, set, record.outcome.body);
    hapax__ddb_ask_put(&out, "shop", &record, &item, NULL);
    assert_true(says(&out, "\"TableName\":\"shop\""));
    assert_true(says(&out, "\"ConditionExpression\":\"attribute_not_exists(id)\""));
    assert_true(says(&out, "\"s\":{\"N\":\"2\"},\"u\":{\"N\":\"1700000000000000\"},"
                           "\"x\":{\"N\":\"1700090001\"}"));
    assert_int_equal(hapax__ddb_take_item(&seen, &arena, span_of(&out)), HAPAX__DDB_FOUND);
    assert_memory_equal(seen.v, item.v, sizeof(item.v));
    assert_memory_equal(seen.chunks.set, set, sizeof(set));
    assert_int_equal(seen.chunks.count, 1);
    assert_true(hapax__ddb_chunks_hold(&seen.chunks, &record.id, record.outcome.body));
    assert_int_equal(hapax__record_decode(&back, &record.id, seen.r), HAPAX_ERR_NONE);
    assert_null(record_diff(&back, &record));

    hapax__ddb_ask_put(&out, "shop", &record, &item, item.v);
    assert_true(says(&out, "\"ConditionExpression\":\"v = :v\""));
    record.expires_us = 0;
    hapax__ddb_ask_put(&out, "shop", &record, &item, item.v);
    assert_false(says(&out, "\"x\":"));
    free((void *)(uintptr_t)item.r.ptr);
    free(out.bytes);
    hapax__arena_release(&arena);
}

/* A body is laid out whole, and one with a byte changed, or under another id, is not it. */
CASE(a_body_in_chunks_is_known_by_its_sum)
{
    size_t sizes[] = {1, HAPAX__DDB_CHUNK - 1, HAPAX__DDB_CHUNK, HAPAX__DDB_CHUNK + 1,
                      HAPAX_BODY_MAX};
    uint8_t *bytes = calloc(1, HAPAX_BODY_MAX), set[HAPAX__DDB_SET_LEN] = {1};
    struct hapax_id id = {{1}}, other = {{2}};
    struct hapax__ddb_chunks chunks;

    assert_non_null(bytes);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct hapax_span body = {bytes, sizes[i]};
        size_t len = 0;

        hapax__ddb_chunks_of(&chunks, &id, set, body);
        for (size_t c = 0; c < chunks.count; c++) {
            assert_true(hapax__ddb_chunk_len(&chunks, c) <= HAPAX__DDB_CHUNK);
            len += hapax__ddb_chunk_len(&chunks, c);
        }
        assert_int_equal(len, sizes[i]);
        assert_true(chunks.count <= HAPAX__DDB_CHUNKS_MAX);
        assert_true(hapax__ddb_chunks_hold(&chunks, &id, body));
        assert_false(hapax__ddb_chunks_hold(&chunks, &other, body));
        bytes[sizes[i] / 2] ^= 1;
        assert_false(hapax__ddb_chunks_hold(&chunks, &id, body));
        bytes[sizes[i] / 2] ^= 1;
        body.len--;
        assert_false(hapax__ddb_chunks_hold(&chunks, &id, body));
    }
    free(bytes);
}

/* The largest record that is kept in one item, and all it can have beside its body, are within
 * DynamoDB's 400 KB. */
CASE(what_fits_is_within_the_limit_of_an_item)
{
    static uint8_t bytes[HAPAX__DDB_ITEM_MAX];
    struct hapax_record record = a_record();
    struct hapax__ddb_item item;
    size_t item_bytes;

    record.outcome.headers = (struct hapax_span){bytes, HAPAX_HEADERS_MAX};
    record.outcome.body = (struct hapax_span){bytes, 0};
    record.outcome.body.len = HAPAX__DDB_ITEM_MAX - hapax__record_size(&record);
    assert_true(hapax__ddb_fits(&record, SIZE_MAX));
    item = item_of(&record);
    /* Names and values: id, part, r, v, c, and three numbers of at most 21 bytes each. */
    item_bytes = 2 + 32 + 4 + 1 + 1 + item.r.len + 1 + 16 + 1 + 30 + 3 * (1 + 21);
    assert_true(item_bytes <= 400 * 1024);
    assert_false(hapax__ddb_fits(&record, record.outcome.body.len - 1));
    record.outcome.body.len++;
    assert_false(hapax__ddb_fits(&record, SIZE_MAX));
    free((void *)(uintptr_t)item.r.ptr);
}

static const struct {
    const char *reply;
    enum hapax__ddb_seen seen;
} replies[] = {
    {"{}", HAPAX__DDB_NONE},
    {" { \"ConsumedCapacity\" : {\"Units\": 1.5, \"a\":[null,true,-1e3]} } ", HAPAX__DDB_NONE},
    {"{\"Item\":{\"r\":{\"B\":\"AQ==\"},\"v\":{\"B\":\"AAAAAAAAAAAAAAAAAAAAAA==\"}}}",
     HAPAX__DDB_FOUND},
    {"{\"Item\":{\"v\":{\"B\":\"AAAAAAAAAAAAAAAAAAAAAA==\"},\"r\":{\"B\":\"\\u0041Q=\\u003d\"}}}",
     HAPAX__DDB_FOUND},
    {"{\"Item\":{\"r\":{\"B\":\"\\/\\/8=\"},"
     "\"v\":{\"B\":\"AAAAAAAAAAAAAAAAAAAAAA==\"},\"o\":{\"S\":\"x\"}}}",
     HAPAX__DDB_FOUND},
    {"{\"Item\":{}}", HAPAX__DDB_DAMAGED},
    {"{\"Item\":{\"r\":{\"S\":\"AQ==\"},\"v\":{\"B\":\"AAAAAAAAAAAAAAAAAAAAAA==\"}}}",
     HAPAX__DDB_DAMAGED},
    {"{\"Item\":{\"r\":{\"B\":\"AQ=\"},\"v\":{\"B\":\"AAAAAAAAAAAAAAAAAAAAAA==\"}}}",
     HAPAX__DDB_DAMAGED},
    {"{\"Item\":{\"r\":{\"B\":\"A!==\"},\"v\":{\"B\":\"AAAAAAAAAAAAAAAAAAAAAA==\"}}}",
     HAPAX__DDB_DAMAGED},
    {"{\"Item\":{\"r\":{\"B\":\"AQ==\"},\"v\":{\"B\":\"AAAA\"}}}", HAPAX__DDB_DAMAGED},
    {"{\"Item\":{\"r\":{\"B\":\"AQ==\"}}}", HAPAX__DDB_DAMAGED},
    {"{\"Item\":{\"r\":{\"B\":\"AQ==\"},\"v\":{\"B\":\"AAAAAAAAAAAAAAAAAAAAAA==\"},"
     "\"c\":{\"B\":\"AAAA\"}}}",
     HAPAX__DDB_DAMAGED},
    {"", HAPAX__DDB_NONSENSE},
    {"[]", HAPAX__DDB_NONSENSE},
    {"null", HAPAX__DDB_NONSENSE},
    {"<html>", HAPAX__DDB_NONSENSE},
    {"{\"Item\":{\"r\":{\"B\":\"AQ==\"}", HAPAX__DDB_NONSENSE},
    {"{\"Item\":{\"r\":{\"B\":\"AQ==\"]}}", HAPAX__DDB_NONSENSE},
    {"{\"Item\" {}}", HAPAX__DDB_NONSENSE},
    {"{\"Item\":}", HAPAX__DDB_NONSENSE},
    {"{\"a\":1 \"Item\":{}}", HAPAX__DDB_NONSENSE},
    {"{\"a\":\"\\", HAPAX__DDB_NONSENSE},
};

/* An item that is not ours is refused, and bytes that are no reply never count as "absent". */
CASE(a_reply_is_what_it_is)
{
    for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
        struct hapax_arena arena = {NULL};
        struct hapax__ddb_item item;
        enum hapax__ddb_seen seen =
            hapax__ddb_take_item(&item, &arena, hapax_str(replies[i].reply));

        if (seen != replies[i].seen)
            fail_msg("%s: %d", replies[i].reply, (int)seen);
        hapax__arena_release(&arena);
    }
}

/* Without memory for it an item is not damaged: an operator's force would remove it. */
CASE(no_memory_is_no_damage)
{
    const char *reply =
        "{\"Item\":{\"r\":{\"B\":\"\\/\\/8=\"},\"v\":{\"B\":\"AAAAAAAAAAAAAAAAAAAAAA==\"}}}";
    int64_t live = oom_live();
    uint64_t at;

    for (at = 1;; at++) {
        struct hapax_arena arena = {NULL};
        struct hapax__ddb_item item;
        enum hapax__ddb_seen seen;

        oom_fail_at(at, at % 2);
        seen = hapax__ddb_take_item(&item, &arena, hapax_str(reply));
        hapax__arena_release(&arena);
        assert_true(oom_live() == live);
        if (oom_count() < at)
            break;
        assert_int_equal(seen, HAPAX__DDB_NOMEM);
    }
    oom_fail_at(0, false);
    assert_true(at > 1);
}

/* Documents that are deep beyond reason end, and so do numbers. */
CASE(a_reply_is_one_object_and_nothing_else)
{
    static const char *const good[] = {"{}", " {\"a\":[1,{}]} \r\n"};
    static const char *const bad[] = {"",    " ",     "null",        "[]",    "{",
                                      "{}}", "{} {}", "{\"a\":[}]}", "<html>"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(hapax__ddb_is_reply(hapax_str(good[i])));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (hapax__ddb_is_reply(hapax_str(bad[i])))
            fail_msg("\"%s\" is taken for a reply", bad[i]);
    assert_false(hapax__ddb_is_reply((struct hapax_span){NULL, 0}));
}

CASE(json_has_limits)
{
    char deep[1024] = "{\"a\":";
    struct hapax_span value;
    int64_t number;

    memset(deep + 5, '[', HAPAX__RAW_DEPTH_MAX);
    memset(deep + 5 + HAPAX__RAW_DEPTH_MAX, ']', HAPAX__RAW_DEPTH_MAX);
    deep[5 + 2 * HAPAX__RAW_DEPTH_MAX] = '}';
    assert_false(hapax__ddb_find(&value, hapax_str(deep), "a"));
    assert_true(hapax__ddb_find(&value, hapax_str("{\"a\":{\"b\":{\"c\":5}}}"), "a.b.c"));
    assert_true(hapax__raw_number(&number, value) && number == 5);
    assert_false(hapax__ddb_find(&value, hapax_str("{\"a\":{\"b\":1}}"), "a.c"));
    assert_false(hapax__ddb_find(&value, hapax_str("{\"a\":1}"), "a.b"));
    assert_true(hapax__raw_number(&number, hapax_str("-17")) && number == -17);
    assert_false(hapax__raw_number(&number, hapax_str("1234567890123456789")));
    assert_false(hapax__raw_number(&number, hapax_str("\"\"")));
    assert_false(hapax__raw_number(&number, hapax_str("-")));
    assert_false(hapax__raw_number(&number, hapax_str("1.5")));
}

/* ---- requests -------------------------------------------------------------------------- */

/* A read that is not consistent may show what was there before an answered write. */
CASE(each_read_is_consistent)
{
    const struct hapax_op op = {.kind = HAPAX_OP_LIST};
    const struct hapax__ddb_chunks chunks = {.count = 1, .len = 5};
    const struct hapax_id id = {{1}};
    struct hapax__json_out out = {0};
    const char *read = "\"ConsistentRead\":true";

    hapax__ddb_ask_get(&out, "shop", &id);
    assert_true(says(&out, read));
    hapax__ddb_ask_get_chunk(&out, "shop", &id, &chunks, 0);
    assert_true(says(&out, read));
    hapax__ddb_ask_scan(&out, "shop", &op, &id, 10, 77);
    assert_true(says(&out, read));
    free(out.bytes);
}

/* A LIST asks for the states it shows, and goes on behind all parts of the last id. */
CASE(a_scan_asks_for_what_is_listed)
{
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .states = 1u << HAPAX_STATE_UNKNOWN};
    struct hapax__json_out out = {0};
    struct hapax_id start = {{0}}, from = {{1}};
    struct hapax_span value;

    hapax__ddb_ask_scan(&out, "shop", &op, &start, 10, 77);
    assert_true(says(&out, "\"FilterExpression\":\"u <= :u AND s IN (:e)\""));
    assert_true(says(&out, "{\":e\":{\"N\":\"4\"},\":u\":{\"N\":\"77\"}}"));
    assert_false(says(&out, "ExclusiveStartKey"));
    op.states = 0;
    hapax__ddb_ask_scan(&out, "shop", &op, &from, 10, 77);
    assert_true(says(&out, "s IN (:b,:c,:d,:e)"));
    assert_true(hapax__ddb_find(&value, span_of(&out), "ExclusiveStartKey.part.B"));
    assert_true(hapax__raw_says(value, "/w=="));
    free(out.bytes);
}

/* ---- what a handle remembers ----------------------------------------------------------- */

CASE(a_handle_remembers_what_it_wrote_last)
{
    struct hapax__ddb_recent *recent = hapax__ddb_recent_new();
    struct hapax_arena arena = {NULL};
    uint8_t one[] = {1}, two[] = {2, 2};
    struct hapax__ddb_item item = {.v = {5}, .has_v = true, .r = {one, sizeof(one)}}, got;
    struct hapax_id id = {{3}}, same_place = {{3}}, other = {{4}};

    same_place.bytes[31] = 1;
    assert_non_null(recent);
    assert_false(hapax__ddb_recent_get(recent, &got, &id, &arena));
    hapax__ddb_recent_put(recent, &id, &item);
    assert_true(hapax__ddb_recent_get(recent, &got, &id, &arena));
    assert_true(got.has_v && got.v[0] == 5 && got.r.len == 1 && got.r.ptr[0] == 1);
    assert_false(hapax__ddb_recent_get(recent, &got, &same_place, &arena));
    assert_false(hapax__ddb_recent_get(recent, &got, &other, &arena));
    hapax__ddb_recent_drop(recent, &same_place);
    assert_true(hapax__ddb_recent_get(recent, &got, &id, &arena));
    item.r = (struct hapax_span){two, sizeof(two)};
    hapax__ddb_recent_put(recent, &same_place, &item);
    assert_false(hapax__ddb_recent_get(recent, &got, &id, &arena));
    assert_true(hapax__ddb_recent_get(recent, &got, &same_place, &arena) && got.r.len == 2);
    hapax__ddb_recent_seen(recent, &same_place, &item);
    assert_true(hapax__ddb_recent_get(recent, &got, &same_place, &arena));
    item.v[0]++;
    hapax__ddb_recent_seen(recent, &same_place, &item);
    assert_false(hapax__ddb_recent_get(recent, &got, &same_place, &arena));
    hapax__arena_release(&arena);
    hapax__ddb_recent_free(recent);
}
