/* SPDX-License-Identifier: Apache-2.0
 *
 * The stored form of a record: what goes in comes out, its bytes do not change unseen (a golden
 * vector), and nothing that is damaged is ever read as a record, nor as "absent". Bytes are
 * judged in blocks of exactly their size, so that a sanitizer sees a read beyond the end.
 */
#include "core/id.h"
#include "core/record.h"
#include "record_diff.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SPAN_AT 149 /* where the scope's length stands: behind all that is of fixed size */

static uint64_t random_state;

static uint64_t random_number(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void random_bytes(uint8_t *out, size_t len)
{
    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)(random_number() >> 24);
}

static struct hapax_span random_span(uint8_t *bytes, size_t max)
{
    size_t len = random_number() % 4 == 0 ? max : random_number() % (max + 1);

    random_bytes(bytes, len);
    return (struct hapax_span){bytes, len};
}

static int64_t random_time(void)
{
    return random_number() % 4 == 0 ? 0 : (int64_t)(random_number() >> 1);
}

static uint8_t scratch[5][300];

static struct hapax_record random_record(void)
{
    struct hapax_record record;

    memset(&record, 0, sizeof(record));
    random_bytes(record.id.bytes, sizeof(record.id));
    random_bytes(record.mark.bytes, sizeof(record.mark));
    random_bytes(record.fingerprint.bytes, sizeof(record.fingerprint));
    random_bytes(record.caller.bytes, sizeof(record.caller));
    record.state = (enum hapax_state)(HAPAX_STATE_STARTED + random_number() % 4);
    record.hold = random_number() & 1;
    record.stale = random_number() & 1;
    record.ran = random_number() & 1;
    record.reruns = random_number() & 1;
    record.attempt = (uint32_t)random_number();
    record.spent = (uint32_t)random_number();
    record.fence = random_number();
    record.created_us = random_time();
    record.updated_us = random_time();
    record.lease_until_us = random_time();
    record.expires_us = random_time();
    record.retention_ms = random_time();
    record.resolved_us = random_time();
    if (random_number() & 1) {
        record.replaced_state = (enum hapax_state)(HAPAX_STATE_STARTED + random_number() % 4);
        record.replaced_status = (int)(random_number() % 1000);
    }
    if (random_number() & 1)
        random_bytes(record.owner.bytes, sizeof(record.owner));
    record.outcome.status = (int)(random_number() % 1000);
    record.outcome.body_kept = random_number() & 1;
    record.what = random_span(scratch[4], HAPAX_WHAT_MAX);
    record.scope = random_span(scratch[0], HAPAX_SCOPE_MAX);
    record.resolved_by = random_span(scratch[1], HAPAX_BY_MAX);
    record.outcome.headers = random_span(scratch[2], 300);
    record.outcome.body = random_span(scratch[3], 300);
    return record;
}

/* The record's bytes, in a block of exactly their size. Yours to free. */
static struct hapax_span encoded(const struct hapax_record *record)
{
    size_t size = hapax__record_size(record);
    uint8_t *bytes = malloc(size);

    assert_non_null(bytes);
    hapax__record_encode(bytes, record);
    return (struct hapax_span){bytes, size};
}

static enum hapax_error decode_copy(const struct hapax_id *id, const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len ? len : 1);
    struct hapax_record record;
    enum hapax_error error;

    assert_non_null(copy);
    if (len > 0)
        memcpy(copy, bytes, len);
    error = hapax__record_decode(&record, id, (struct hapax_span){copy, len});
    free(copy);
    return error;
}

/* Any record there can be comes out as it went in. */
static void what_goes_in_comes_out(void **state)
{
    random_state = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 5000; i++) {
        struct hapax_record record = random_record();
        struct hapax_span bytes = encoded(&record);
        struct hapax_record out, peeked;

        assert_int_equal(hapax__record_decode(&out, &record.id, bytes), HAPAX_ERR_NONE);
        if (record_diff(&out, &record))
            fail_msg("record %d: %s differs", i, record_diff(&out, &record));
        assert_true(hapax__record_peek(&peeked, bytes));
        peeked.id = record.id;
        if (record_diff(&peeked, &record))
            fail_msg("record %d: %s differs in a peek", i, record_diff(&peeked, &record));
        free((void *)(uintptr_t)bytes.ptr);
    }
}

static struct hapax_record golden_record(void)
{
    struct hapax_record record = {.state = HAPAX_STATE_COMPLETED, .hold = true, .ran = true};

    for (uint8_t i = 0; i < 32; i++) {
        record.id.bytes[i] = i;
        record.fingerprint.bytes[i] = (uint8_t)(0x40 + i);
        record.caller.bytes[i] = (uint8_t)(0x80 + i);
    }
    for (uint8_t i = 0; i < 16; i++)
        record.mark.bytes[i] = (uint8_t)(0x20 + i);
    record.attempt = 0x01020304;
    record.spent = 5;
    record.fence = 0x1112131415161718;
    record.created_us = 0x0001000000000001;
    record.updated_us = 0x0002000000000002;
    record.lease_until_us = 0x0003000000000003;
    record.expires_us = 0x0004000000000004;
    record.retention_ms = 0x0005000000000005;
    record.resolved_us = 0x0006000000000006;
    record.scope = hapax_str("pay");
    record.resolved_by = hapax_str("ann");
    record.what = hapax_str("POST /pay");
    memset(record.owner.bytes, 0x6f, sizeof(record.owner));
    record.replaced_state = HAPAX_STATE_UNKNOWN;
    record.replaced_status = 502;
    record.outcome.status = 201;
    record.outcome.body_kept = true;
    record.outcome.headers = hapax_str("A: b\r\n");
    record.outcome.body = hapax_str("ok");
    return record;
}

/* As version 1 wrote it. */
static const char golden_1[] =
    "01021500c9010203040000000511121314151617180001000000000001000200000000000200030000000000030004"
    "00000000000400050000000000050006000000000006202122232425262728292a2b2c2d2e2f404142434445464748"
    "494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f808182838485868788898a8b8c8d8e8f9091929394959697"
    "98999a9b9c9d9e9f0370617903616e6e00000006413a20620d0a000000026f6b"
    "7fa76257668ecb2e";

static const char golden[] =
    "02027500c9010203040000000511121314151617180001000000000001000200000000000200030000000000030004"
    "00000000000400050000000000050006000000000006202122232425262728292a2b2c2d2e2f404142434445464748"
    "494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f808182838485868788898a8b8c8d8e8f9091929394959697"
    "98999a9b9c9d9e9f0370617903616e6e09504f5354202f7061796f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f"
    "6f6f6f6f6f6f6f6f6f6f6f0401f600000006413a20620d0a000000026f6b8be04aad49b19877";

/* What a version before wrote is read: it has no owner, does not say what it is, and an operator's
 * decision does not say what it replaced. It has the token itself, in place of the mark. */
static void a_record_of_version_1_is_read(void **state)
{
    struct hapax_record record = golden_record(), out;
    struct hapax_token token;
    uint8_t bytes[256];
    size_t len = strlen(golden_1) / 2;
    struct hapax_record peeked;

    for (size_t i = 0; i < len; i++) {
        char pair[3] = {golden_1[2 * i], golden_1[2 * i + 1], '\0'};

        bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    memcpy(token.bytes, record.mark.bytes, sizeof(token.bytes));
    hapax__mark(&record.mark, &token);
    record.what.len = 0;
    memset(&record.owner, 0, sizeof(record.owner));
    record.replaced_state = HAPAX_STATE_ABSENT;
    record.replaced_status = 0;
    assert_int_equal(hapax__record_decode(&out, &record.id, (struct hapax_span){bytes, len}),
                     HAPAX_ERR_NONE);
    if (record_diff(&out, &record))
        fail_msg("%s differs", record_diff(&out, &record));
    memset(&peeked, 0xff, sizeof(peeked));
    assert_true(hapax__record_peek(&peeked, (struct hapax_span){bytes, len}));
    assert_int_equal(peeked.expires_us, record.expires_us);
    assert_int_equal(peeked.what.len, 0);
    for (size_t short_len = 0; short_len < len; short_len++)
        assert_int_equal(decode_copy(&record.id, bytes, short_len), HAPAX_ERR_CORRUPT);
}

/* Records outlive the programs that wrote them: whoever changes the layout meets this, and gives it
 * another version. */
static void the_layout_does_not_change_unseen(void **state)
{
    struct hapax_record record = golden_record();
    struct hapax_span bytes = encoded(&record);
    char hex[2 * 256 + 1];

    assert_in_range(bytes.len, 1, 256);
    for (size_t i = 0; i < bytes.len; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes.ptr[i]);
    assert_string_equal(hex, golden);
    free((void *)(uintptr_t)bytes.ptr);
}

/* No bytes at all, any beginning of a record, and a byte too many are CORRUPT. */
static void a_truncated_record_is_corrupt(void **state)
{
    struct hapax_record record = golden_record();
    struct hapax_span bytes = encoded(&record);
    uint8_t longer[300];

    for (size_t len = 0; len < bytes.len; len++)
        assert_int_equal(decode_copy(&record.id, bytes.ptr, len), HAPAX_ERR_CORRUPT);
    assert_in_range(bytes.len, 1, sizeof(longer) - 1);
    memcpy(longer, bytes.ptr, bytes.len);
    longer[bytes.len] = 0;
    assert_int_equal(decode_copy(&record.id, longer, bytes.len + 1), HAPAX_ERR_CORRUPT);
    assert_int_equal(hapax__record_decode(&record, &record.id, (struct hapax_span){NULL, 0}),
                     HAPAX_ERR_CORRUPT);
    free((void *)(uintptr_t)bytes.ptr);
}

/* Whichever bit flips, what is left is no record. In the version it is UNSUPPORTED. */
static void a_flipped_bit_is_never_a_record(void **state)
{
    random_state = 1;
    for (int round = 0; round < 20; round++) {
        struct hapax_record record = round == 0 ? golden_record() : random_record();
        struct hapax_span bytes = encoded(&record);
        uint8_t *copy = malloc(bytes.len);

        assert_non_null(copy);
        for (size_t bit = 0; bit < 8 * bytes.len; bit++) {
            memcpy(copy, bytes.ptr, bytes.len);
            copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(decode_copy(&record.id, copy, bytes.len),
                             bit < 8 ? HAPAX_ERR_UNSUPPORTED : HAPAX_ERR_CORRUPT);
        }
        free(copy);
        free((void *)(uintptr_t)bytes.ptr);
    }
}

/* A whole record under another id is not that operation's. */
static void a_record_under_another_id_is_corrupt(void **state)
{
    struct hapax_record record = golden_record();
    struct hapax_span bytes = encoded(&record);

    for (size_t bit = 0; bit < 8 * sizeof(record.id); bit++) {
        struct hapax_id id = record.id;

        id.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(decode_copy(&id, bytes.ptr, bytes.len), HAPAX_ERR_CORRUPT);
    }
    free((void *)(uintptr_t)bytes.ptr);
}

/* Gives bytes the checksum they would have had from an encoder that wrote them. */
static void seal(uint8_t *bytes, size_t len, const struct hapax_id *id)
{
    uint64_t sum = XXH3_64bits_withSeed(bytes, len - 8, XXH3_64bits(id, sizeof(*id)));

    for (size_t i = 0; i < 8; i++)
        bytes[len - 1 - i] = (uint8_t)(sum >> 8 * i);
}

static enum hapax_error decode_with(size_t at, uint8_t value)
{
    struct hapax_record record = golden_record();
    struct hapax_span bytes = encoded(&record);
    uint8_t *changed = (uint8_t *)(uintptr_t)bytes.ptr;
    enum hapax_error error;

    changed[at] = value;
    seal(changed, bytes.len, &record.id);
    error = decode_copy(&record.id, changed, bytes.len);
    free(changed);
    return error;
}

static enum hapax_error decode_wide(size_t at, uint16_t value)
{
    struct hapax_record record = golden_record();
    struct hapax_span bytes = encoded(&record);
    uint8_t *changed = (uint8_t *)(uintptr_t)bytes.ptr;
    enum hapax_error error;

    changed[at] = (uint8_t)(value >> 8);
    changed[at + 1] = (uint8_t)value;
    seal(changed, bytes.len, &record.id);
    error = decode_copy(&record.id, changed, bytes.len);
    free(changed);
    return error;
}

/* The checksum fits, but no encoder of this version wrote such a value. */
static void a_value_out_of_range_is_corrupt(void **state)
{
    /* Behind what was replaced: headers, body and checksum. */
    size_t replaced = strlen(golden) / 2 - (4 + 6) - (4 + 2) - 8 - 3;

    assert_int_equal(decode_with(1, HAPAX_STATE_FAILED), HAPAX_ERR_NONE);
    assert_int_equal(decode_with(0, 0), HAPAX_ERR_UNSUPPORTED);
    assert_int_equal(decode_with(0, 3), HAPAX_ERR_UNSUPPORTED);
    assert_int_equal(decode_with(1, HAPAX_STATE_ABSENT), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_with(1, HAPAX_STATE_UNKNOWN + 1), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_with(2, 0x95), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_with(3, 0x04), HAPAX_ERR_CORRUPT);
    for (size_t at = 21; at < 21 + 6 * 8; at += 8)
        assert_int_equal(decode_with(at, 0x80), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_with(replaced, HAPAX_STATE_FAILED), HAPAX_ERR_NONE);
    assert_int_equal(decode_with(replaced, HAPAX_STATE_ABSENT), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_with(replaced, HAPAX_STATE_UNKNOWN + 1), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_with(replaced + 1, 0x04), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_wide(replaced + 1, 999), HAPAX_ERR_NONE);
    assert_int_equal(decode_wide(replaced + 1, 1000), HAPAX_ERR_CORRUPT);
}

/* The record with another version and other bits, without the bytes from `from` to `to`. */
static enum hapax_error decode_as(struct hapax_record *record, uint8_t version, uint8_t bits,
                                  size_t from, size_t to)
{
    struct hapax_span bytes = encoded(record);
    uint8_t *changed = (uint8_t *)(uintptr_t)bytes.ptr;
    enum hapax_error error;

    changed[0] = version;
    changed[2] = bits;
    memmove(changed + from, changed + to, bytes.len - to);
    bytes.len -= to - from;
    seal(changed, bytes.len, &record->id);
    error = decode_copy(&record->id, changed, bytes.len);
    free(changed);
    return error;
}

/* A bit that this version does not know says of the bytes behind it what nobody here can read. */
static void an_unknown_bit_is_corrupt(void **state)
{
    struct hapax_record record = {.id = {{1}}, .state = HAPAX_STATE_STARTED};

    assert_int_equal(decode_as(&record, HAPAX__RECORD_VERSION, 0, 0, 0), HAPAX_ERR_NONE);
    assert_int_equal(decode_as(&record, HAPAX__RECORD_VERSION, 0x80, 0, 0), HAPAX_ERR_CORRUPT);
    /* Version 1 has no length of `what`, and no owner. */
    assert_int_equal(decode_as(&record, 1, 0, SPAN_AT + 2, SPAN_AT + 3), HAPAX_ERR_NONE);
    record.owner.bytes[31] = 1;
    assert_int_equal(decode_as(&record, 1, 0x20, SPAN_AT + 2, SPAN_AT + 3), HAPAX_ERR_CORRUPT);
}

/* 999 is the largest status, and one more is none. What is not in the bytes is zero afterwards. */
static void a_status_over_999_is_corrupt(void **state)
{
    struct hapax_record record = {.id = {{1}}, .state = HAPAX_STATE_COMPLETED}, out;
    static const struct hapax_digest nobody;
    struct hapax_span bytes;
    uint8_t *changed;

    for (int status = 999; status <= 1000; status++) {
        record.outcome.status = status - 0x300; /* its upper byte follows */
        bytes = encoded(&record);
        changed = (uint8_t *)(uintptr_t)bytes.ptr;
        changed[3] = 3;
        seal(changed, bytes.len, &record.id);
        memset(&out, 0xff, sizeof(out));
        assert_int_equal(hapax__record_decode(&out, &record.id, bytes),
                         status == 999 ? HAPAX_ERR_NONE : HAPAX_ERR_CORRUPT);
        if (status == 999)
            assert_memory_equal(&out.owner, &nobody, sizeof(nobody));
        free(changed);
    }
}

/* An owner of zeros is none: its keys would be everybody's. */
static void an_owner_of_zeros_is_corrupt(void **state)
{
    struct hapax_record record = {.id = {{1}}, .state = HAPAX_STATE_STARTED};
    struct hapax_span bytes;
    uint8_t *changed;

    record.owner.bytes[0] = 1;
    bytes = encoded(&record);
    changed = (uint8_t *)(uintptr_t)bytes.ptr;
    assert_int_equal(decode_copy(&record.id, bytes.ptr, bytes.len), HAPAX_ERR_NONE);
    changed[SPAN_AT + 3] = 0;
    seal(changed, bytes.len, &record.id);
    assert_int_equal(decode_copy(&record.id, bytes.ptr, bytes.len), HAPAX_ERR_CORRUPT);
    free(changed);
}

/* Counters at their end could not be raised by the next claim. */
static void a_counter_at_its_end_is_corrupt(void **state)
{
    struct hapax_record record = golden_record();
    struct hapax_span bytes;

    for (int i = 0; i < 3; i++) {
        record.attempt = i == 1 ? UINT32_MAX : UINT32_MAX - 1;
        record.fence = i == 2 ? UINT64_MAX : UINT64_MAX - 1;
        bytes = encoded(&record);
        assert_int_equal(decode_copy(&record.id, bytes.ptr, bytes.len),
                         i == 0 ? HAPAX_ERR_NONE : HAPAX_ERR_CORRUPT);
        free((void *)(uintptr_t)bytes.ptr);
    }
}

/* Builds a record whose last three spans have these lengths, sealed, and decodes it. */
static enum hapax_error decode_sized(size_t by, size_t headers, size_t body)
{
    struct hapax_record record = golden_record();
    struct hapax_span bytes;
    size_t len = SPAN_AT + 1 + 1 + by + 1 + 4 + headers + 4 + body + 8;
    uint8_t *built = calloc(1, len);
    size_t at = SPAN_AT + 1;
    enum hapax_error error;

    memset(&record.owner, 0, sizeof(record.owner));
    record.replaced_state = HAPAX_STATE_ABSENT;
    bytes = encoded(&record);

    assert_non_null(built);
    memcpy(built, bytes.ptr, SPAN_AT);
    built[at++] = (uint8_t)by;
    at += by + 1;
    for (size_t i = 0; i < 4; i++)
        built[at++] = (uint8_t)(headers >> 8 * (3 - i));
    at += headers;
    for (size_t i = 0; i < 4; i++)
        built[at++] = (uint8_t)(body >> 8 * (3 - i));
    seal(built, len, &record.id);
    error = decode_copy(&record.id, built, len);
    free(built);
    free((void *)(uintptr_t)bytes.ptr);
    return error;
}

/* Spans at their limits are read, one byte more is CORRUPT. */
static void a_span_over_its_limit_is_corrupt(void **state)
{
    assert_int_equal(decode_sized(HAPAX_BY_MAX, HAPAX_HEADERS_MAX, HAPAX_BODY_MAX), HAPAX_ERR_NONE);
    assert_int_equal(decode_sized(HAPAX_BY_MAX + 1, 0, 0), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_sized(0, HAPAX_HEADERS_MAX + 1, 0), HAPAX_ERR_CORRUPT);
    assert_int_equal(decode_sized(0, 0, HAPAX_BODY_MAX + 1), HAPAX_ERR_CORRUPT);
}

/* A peek needs neither id nor checksum, but every field: what is cut short is not peeked at. */
static void a_peek_sees_whole_records_of_this_version_only(void **state)
{
    struct hapax_record record = golden_record();
    struct hapax_span bytes = encoded(&record);
    uint8_t *changed = (uint8_t *)(uintptr_t)bytes.ptr;
    struct hapax_record peeked;

    for (size_t len = 0; len < bytes.len - 8; len++)
        assert_false(hapax__record_peek(&peeked, (struct hapax_span){bytes.ptr, len}));
    changed[bytes.len - 1] ^= 1;
    assert_true(hapax__record_peek(&peeked, bytes));
    assert_int_equal(peeked.state, HAPAX_STATE_COMPLETED);
    assert_int_equal(peeked.expires_us, record.expires_us);
    changed[0]++;
    assert_false(hapax__record_peek(&peeked, bytes));
    free(changed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_in_comes_out),
        cmocka_unit_test(the_layout_does_not_change_unseen),
        cmocka_unit_test(a_record_of_version_1_is_read),
        cmocka_unit_test(a_truncated_record_is_corrupt),
        cmocka_unit_test(a_flipped_bit_is_never_a_record),
        cmocka_unit_test(a_record_under_another_id_is_corrupt),
        cmocka_unit_test(a_value_out_of_range_is_corrupt),
        cmocka_unit_test(an_unknown_bit_is_corrupt),
        cmocka_unit_test(a_status_over_999_is_corrupt),
        cmocka_unit_test(an_owner_of_zeros_is_corrupt),
        cmocka_unit_test(a_counter_at_its_end_is_corrupt),
        cmocka_unit_test(a_span_over_its_limit_is_corrupt),
        cmocka_unit_test(a_peek_sees_whole_records_of_this_version_only),
    };

    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
