/* SPDX-License-Identifier: Apache-2.0
 *
 * AMQP headers that are no texts: what is shown of them, what is kept, and what a letter has of it.
 */
#include "../cases.h"
#include "broker/amqp/message.h"

#include <stdlib.h>
#include <string.h>

/* ---- the bed ------------------------------------------------------------------------- */

/* A message's headers, its delivery, and the letter made of the delivery. */
struct bed {
    amqp_table_entry_t headers[2 * HAPAX__HEADERS_READ_MAX];
    amqp_basic_properties_t properties;
    struct hapax__amqp_delivery *delivery;
    amqp_table_entry_t entries[HAPAX__AMQP_ENTRIES_MAX];
    amqp_basic_properties_t letter;
    amqp_pool_t pool;
};

static amqp_field_value_t *add(struct bed *bed, const char *name, uint8_t kind)
{
    amqp_table_t *table = &bed->properties.headers;
    amqp_table_entry_t *entry = &bed->headers[table->num_entries++];

    table->entries = bed->headers;
    bed->properties._flags = AMQP_BASIC_HEADERS_FLAG;
    entry->key = amqp_cstring_bytes(name);
    entry->value.kind = kind;
    return &entry->value;
}

static bool go(struct bed *bed, const struct hapax_message_header *own, size_t own_count)
{
    const struct hapax__amqp_coming coming = {.tag = 1};
    struct hapax__letter letter = {.to = "q", .own = own, .own_count = own_count};

    bed->delivery = hapax__amqp_delivery(&coming, &bed->properties, 0, hapax_str("q"));
    assert_non_null(bed->delivery);
    letter.headers = bed->delivery->shown.message.headers;
    letter.header_count = bed->delivery->shown.message.header_count;
    letter.kept = bed->delivery->shown.kept;
    init_amqp_pool(&bed->pool, 4096);
    return hapax__amqp_properties(&bed->letter, bed->entries, &letter, 1, &bed->pool);
}

static const amqp_field_value_t *sent(const struct bed *bed, const char *name)
{
    const amqp_table_t *table = &bed->letter.headers;

    for (int i = 0; i < table->num_entries; i++)
        if (table->entries[i].key.len == strlen(name) &&
            memcmp(table->entries[i].key.bytes, name, strlen(name)) == 0)
            return &table->entries[i].value;
    return NULL;
}

static void end(struct bed *bed)
{
    free(bed->delivery);
    empty_amqp_pool(&bed->pool);
    memset(bed, 0, sizeof(*bed));
}

/* ---- the cases ------------------------------------------------------------------------- */

/* Each kind of AMQP value is the same in the letter, and only texts are shown. */
CASE(each_kind_is_what_it_was)
{
    static const uint8_t kinds[] = {
        AMQP_FIELD_KIND_BOOLEAN,   AMQP_FIELD_KIND_I8,    AMQP_FIELD_KIND_U8,
        AMQP_FIELD_KIND_I16,       AMQP_FIELD_KIND_U16,   AMQP_FIELD_KIND_I32,
        AMQP_FIELD_KIND_U32,       AMQP_FIELD_KIND_I64,   AMQP_FIELD_KIND_U64,
        AMQP_FIELD_KIND_F32,       AMQP_FIELD_KIND_F64,   AMQP_FIELD_KIND_DECIMAL,
        AMQP_FIELD_KIND_UTF8,      AMQP_FIELD_KIND_BYTES, AMQP_FIELD_KIND_VOID,
        AMQP_FIELD_KIND_TIMESTAMP,
    };
    struct bed bed = {0};

    for (size_t i = 0; i < sizeof(kinds); i++) {
        amqp_field_value_t *value = add(&bed, "h", kinds[i]);
        bool is_bytes = kinds[i] == AMQP_FIELD_KIND_UTF8 || kinds[i] == AMQP_FIELD_KIND_BYTES;
        bool is_text = kinds[i] != AMQP_FIELD_KIND_DECIMAL && kinds[i] != AMQP_FIELD_KIND_VOID;

        value->value.u64 = 0;
        if (kinds[i] == AMQP_FIELD_KIND_DECIMAL)
            value->value.decimal = (amqp_decimal_t){.decimals = 2, .value = 150};
        else if (kinds[i] == AMQP_FIELD_KIND_F32)
            value->value.f32 = 1.5f;
        else if (kinds[i] == AMQP_FIELD_KIND_F64)
            value->value.f64 = 2.5;
        else if (is_bytes)
            value->value.bytes = amqp_cstring_bytes("text");
        else if (kinds[i] != AMQP_FIELD_KIND_VOID)
            value->value.u8 = 1;
        assert_true(go(&bed, NULL, 0));
        assert_int_equal(bed.delivery->shown.message.header_count, is_text);
        assert_int_equal(bed.delivery->shown.unread_count, !is_text);
        assert_int_equal(bed.letter.headers.num_entries, 2);
        assert_int_equal(sent(&bed, "h")->kind, kinds[i]);
        if (is_bytes)
            assert_memory_equal(sent(&bed, "h")->value.bytes.bytes, "text", 4);
        else if (kinds[i] == AMQP_FIELD_KIND_DECIMAL)
            assert_int_equal(sent(&bed, "h")->value.decimal.value, 150);
        else if (kinds[i] == AMQP_FIELD_KIND_F32)
            assert_true(sent(&bed, "h")->value.f32 == 1.5f);
        else if (kinds[i] == AMQP_FIELD_KIND_F64)
            assert_true(sent(&bed, "h")->value.f64 == 2.5);
        else if (kinds[i] != AMQP_FIELD_KIND_VOID)
            assert_int_equal(sent(&bed, "h")->value.u8, 1);
        end(&bed);
    }
}

/* Headers on which the broker would act, headers that it wrote, and our own are in a letter only as
 * text. */
CASE(the_brokers_own_are_not_kept)
{
    static const char *const names[] = {"CC", "BCC", "x-death", "x-received-from", "hapax-reason"};
    const struct hapax_message_header own = {hapax_str("hapax-base"), hapax_str("7")};
    struct bed bed = {0};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        add(&bed, names[i], AMQP_FIELD_KIND_ARRAY)->value.array = (amqp_array_t){0, NULL};
    add(&bed, "hapax-base", AMQP_FIELD_KIND_I32)->value.i32 = 3;
    add(&bed, "x-delivery-count", AMQP_FIELD_KIND_I64)->value.i64 = 4;
    add(&bed, "mine", AMQP_FIELD_KIND_ARRAY)->value.array = (amqp_array_t){0, NULL};
    assert_true(go(&bed, &own, 1));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_null(sent(&bed, names[i]));
    assert_int_equal(bed.delivery->shown.unread_count, 6);
    assert_memory_equal(sent(&bed, "hapax-base")->value.bytes.bytes, "7", 1);
    assert_int_equal(sent(&bed, "x-delivery-count")->kind, AMQP_FIELD_KIND_UTF8);
    assert_int_equal(sent(&bed, "mine")->kind, AMQP_FIELD_KIND_ARRAY);
    end(&bed);
}

/* As producers of other protocols send them. RabbitMQ closes the channel over such texts. */
CASE(what_closes_the_channel_is_left_out)
{
    static const char *const names[] = {"CC", "BCC", "amqp-reply-to"};
    struct bed bed = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        add(&bed, names[i], AMQP_FIELD_KIND_UTF8)->value.bytes =
            amqp_cstring_bytes("amq.rabbitmq.reply-to");
    assert_true(go(&bed, NULL, 0));
    assert_null(sent(&bed, "CC"));
    assert_null(sent(&bed, "BCC"));
    assert_non_null(sent(&bed, "amqp-reply-to"));
    assert_false(bed.letter._flags & AMQP_BASIC_REPLY_TO_FLAG);
    end(&bed);
}

/* Nested tables are kept to a depth. A deeper header is left out whole. */
CASE(what_is_nested_too_deep_is_left_out)
{
    amqp_table_entry_t nest[40];
    struct bed bed = {0};

    for (int i = 0; i < 40; i++) {
        nest[i] = (amqp_table_entry_t){.key = amqp_cstring_bytes("k")};
        nest[i].value.kind = i == 0 ? AMQP_FIELD_KIND_VOID : AMQP_FIELD_KIND_TABLE;
        if (i > 0)
            nest[i].value.value.table = (amqp_table_t){1, &nest[i - 1]};
    }
    *add(&bed, "deepest", 0) = nest[32].value;
    *add(&bed, "too deep", 0) = nest[33].value;
    assert_true(go(&bed, NULL, 0));
    assert_non_null(sent(&bed, "deepest"));
    assert_null(sent(&bed, "too deep"));
    assert_int_equal(bed.delivery->shown.unread_count, 2);
    end(&bed);
}

/* A letter whose tables alone are too large is sent without them: otherwise it would be refused for
 * ever. */
CASE(tables_that_do_not_fit_are_left_out)
{
    static uint8_t bytes[HAPAX__AMQP_HEADERS_MAX - 3000];
    const amqp_bytes_t large = {.len = sizeof(bytes), .bytes = bytes};
    amqp_table_entry_t inner = {.key = amqp_cstring_bytes("k")};
    struct bed bed = {0};

    inner.value.kind = AMQP_FIELD_KIND_BYTES;
    inner.value.value.bytes = large;
    add(&bed, "table", AMQP_FIELD_KIND_TABLE)->value.table = (amqp_table_t){1, &inner};
    add(&bed, "number", AMQP_FIELD_KIND_I64)->value.i64 = 5;
    add(&bed, "text", AMQP_FIELD_KIND_UTF8)->value.bytes = (amqp_bytes_t){5000, bytes};
    assert_true(go(&bed, NULL, 0));
    assert_null(sent(&bed, "table"));
    assert_int_equal(sent(&bed, "text")->value.bytes.len, 5000);
    assert_int_equal(sent(&bed, "number")->kind, AMQP_FIELD_KIND_I64);
    end(&bed);
}

/* A letter of a message with as many headers as there may be comes back with all of them, behind
 * our own. The last one may be the key. */
CASE(a_letter_of_a_full_message_loses_none)
{
    static const char *const own[] = {
        "hapax-attempts", "hapax-base", "hapax-reason", "hapax-error",    "hapax-from",
        "hapax-scope",    "hapax-time", "hapax-id",     "hapax-position", "hapax-redrive"};
    size_t own_count = sizeof(own) / sizeof(own[0]),
           last = own_count + HAPAX_MESSAGE_HEADERS_MAX - 1;
    const struct hapax_message *message;
    struct bed bed = {0};

    for (size_t i = 0; i <= last; i++)
        add(&bed, i < own_count ? own[i] : (i == last ? "key" : "n"), AMQP_FIELD_KIND_UTF8)
            ->value.bytes = amqp_cstring_bytes("v");
    assert_true(go(&bed, NULL, 0));
    assert_null(bed.delivery->shown.damaged);
    message = &bed.delivery->shown.message;
    assert_int_equal(message->header_count, last + 1);
    assert_memory_equal(message->headers[last].name.ptr, "key", 3);
    end(&bed);
}

/* Both limits hold: as many as allowed pass, and one more is too many. */
CASE(there_are_limits_to_both)
{
    struct bed *bed = calloc(1, sizeof(*bed));

    for (size_t i = 0; i < HAPAX__HEADERS_READ_MAX; i++) {
        (void)add(bed, "v", AMQP_FIELD_KIND_VOID);
        add(bed, "n", AMQP_FIELD_KIND_I8)->value.i8 = 1;
    }
    assert_true(go(bed, NULL, 0));
    assert_false(bed->delivery->shown.damaged);
    assert_int_equal(bed->letter.headers.num_entries, 1 + 2 * HAPAX__HEADERS_READ_MAX);
    free(bed->delivery);
    empty_amqp_pool(&bed->pool);
    bed->headers[1].value.kind = AMQP_FIELD_KIND_VOID;
    assert_true(go(bed, NULL, 0));
    assert_true(bed->delivery->shown.damaged);
    end(bed);
    free(bed);
}
