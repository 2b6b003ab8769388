/* SPDX-License-Identifier: Apache-2.0
 *
 * SQS messages and letters without a service: what is written is read back, with any headers; what
 * the reply to a batch says of each entry; and how long a message may be hidden.
 */
#include "../cases.h"
#include "broker/letter.h"
#include "broker/sqs/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define US_PER_S INT64_C(1000000)

static struct hapax_span bytes(const char *at, size_t len)
{
    return (struct hapax_span){(const uint8_t *)at, len};
}

static bool is_text(struct hapax_span span, const char *text)
{
    return span.len == strlen(text) && memcmp(span.ptr, text, span.len) == 0;
}

static struct hapax_span header(const struct hapax_message *message, const char *name)
{
    for (size_t i = 0; i < message->header_count; i++)
        if (is_text(message->headers[i].name, name))
            return message->headers[i].value;
    return bytes(NULL, 0);
}

/* The letter as SQS would return it to a poll. */
struct trip {
    struct hapax__json_out entry;
    struct hapax__json_out message;
    struct hapax_arena arena;
    struct hapax_span sent;
    struct hapax__sqs_delivery *delivery;
};

static struct hapax_span text_of(struct trip *trip, const char *name)
{
    struct hapax_span value;

    (void)hapax__raw_member(&value, trip->sent, name);
    assert_true(hapax__raw_text(&value, &trip->arena, value));
    return value;
}

static size_t attributes_of(const struct trip *trip)
{
    struct hapax_span all, name, value;
    struct hapax__raw_walk walk;
    size_t n = 0;

    assert_true(hapax__raw_member(&all, trip->sent, "MessageAttributes"));
    hapax__raw_begin(&walk, all);
    while (hapax__raw_next(&walk, &name, &value))
        n++;
    return n;
}

static void go(struct trip *trip, const struct hapax__letter *letter, bool fifo)
{
    struct hapax_span message;
    const char *at, *why;
    size_t size;

    memset(trip, 0, sizeof(*trip));
    assert_int_equal(hapax__sqs_entry(&trip->entry, &size, letter, 3, fifo, hapax_str("c"), &why),
                     HAPAX_ERR_NONE);
    assert_true(hapax__sqs_read(&trip->sent, bytes(trip->entry.bytes, trip->entry.len)));
    assert_true(is_text(text_of(trip, "Id"), "3"));
    at = strstr(trip->entry.bytes, "\"MessageAttributes\":");
    hapax__json_put(&trip->message, "{\"MessageId\":\"new\",\"ReceiptHandle\":\"r\",\"Body\":");
    hapax__json_put_string(&trip->message, text_of(trip, "MessageBody"));
    hapax__json_put(&trip->message, ",\"Attributes\":{\"SentTimestamp\":\"7\"");
    if (fifo) {
        hapax__json_put(&trip->message, ",\"MessageDeduplicationId\":");
        hapax__json_put_string(&trip->message, text_of(trip, "MessageDeduplicationId"));
    }
    hapax__json_put(&trip->message, "},");
    hapax__json_put(&trip->message, at);
    assert_true(hapax__sqs_read(&message, bytes(trip->message.bytes, trip->message.len)));
    trip->delivery = hapax__sqs_delivery(message, &trip->arena, hapax_str("q"), false);
    assert_non_null(trip->delivery);
    assert_false(trip->delivery->shown.damaged);
}

static void end(struct trip *trip)
{
    free(trip->delivery);
    hapax__json_free(&trip->entry);
    hapax__json_free(&trip->message);
    hapax__arena_release(&trip->arena);
}

/* Any number of headers of all kinds takes ten attributes at most, and all of them come back. */
CASE(headers_come_back_however_many_there_are)
{
    static const struct {
        const char *value;
        size_t len;
    } values[] = {{"plain", 5},   {"", 0},         {"\xff\x00\x01", 3}, {"a \"b\"\\\n", 8},
                  {"\x01", 1},    {"\xc3\xa9", 2}, {"\xed\xa0\x80", 3}, {"\xf0\x9f\x98\x80", 4},
                  {"\xc0\xaf", 2}};
    static char names[HAPAX_MESSAGE_HEADERS_MAX][24];
    static struct hapax_message_header headers[HAPAX_MESSAGE_HEADERS_MAX];
    static const size_t counts[] = {0, 1, 2, 7, 8, 9, 10, 11, HAPAX_MESSAGE_HEADERS_MAX};
    struct hapax_message_header own[] = {{hapax_str("hapax-reason"), hapax_str("failed")},
                                         {hapax_str("hapax-error"), hapax_str("")},
                                         {hapax_str("hapax-base"), hapax_str("8")}};
    struct trip trip;

    for (size_t i = 0; i < HAPAX_MESSAGE_HEADERS_MAX; i++) {
        size_t which = i % (sizeof(values) / sizeof(values[0]));

        (void)snprintf(names[i], sizeof(names[i]), i % 5 == 4 ? "odd name %zu" : "n%zu", i);
        headers[i] = (struct hapax_message_header){hapax_str(names[i]),
                                                   bytes(values[which].value, values[which].len)};
    }
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (size_t own_count = 0; own_count <= 3; own_count++) {
            struct hapax__letter letter = {.to = "q",
                                           .body = hapax_str("body"),
                                           .id = hapax_str("first"),
                                           .content_type = hapax_str("text/plain"),
                                           .headers = headers,
                                           .header_count = counts[c],
                                           .own = own,
                                           .own_count = own_count};
            const struct hapax_message *message;

            go(&trip, &letter, false);
            message = &trip.delivery->shown.message;
            assert_true(attributes_of(&trip) <= HAPAX__SQS_ATTRIBUTES_MAX);
            assert_int_equal(message->header_count, counts[c] + own_count + 2);
            for (size_t i = 0; i < counts[c]; i++) {
                struct hapax_span value = header(message, names[i]);

                assert_int_equal(value.len, headers[i].value.len);
                if (value.len > 0)
                    assert_memory_equal(value.ptr, headers[i].value.ptr, value.len);
            }
            assert_true(own_count == 0 || is_text(header(message, "hapax-reason"), "failed"));
            assert_true(is_text(message->id, "first") && is_text(message->body, "body"));
            assert_true(is_text(message->content_type, "text/plain"));
            assert_int_equal(message->time_us, 7000);
            end(&trip);
        }
}

static struct hapax_span deduplication(struct trip *trip)
{
    return text_of(trip, "MessageDeduplicationId");
}

/* The same letter has the same id. After a redrive it has another. */
CASE(a_deduplication_id_is_of_one_life)
{
    struct hapax_message_header base = {hapax_str("hapax-base"), hapax_str("8")};
    struct hapax_message_header time[] = {base,
                                          {hapax_str("hapax-time"), hapax_str("1")},
                                          {hapax_str("hapax-attempts"), hapax_str("3")}};
    struct hapax_message_header run[] = {base, {hapax_str("hapax-redrive"), hapax_str("7")}};
    struct hapax__letter letter = {.to = "q.fifo",
                                   .body = hapax_str("body"),
                                   .id = hapax_str("m"),
                                   .key = hapax_str("group 1"),
                                   .own = &base,
                                   .own_count = 1};
    struct trip first, other;

    go(&first, &letter, true);
    assert_int_equal(deduplication(&first).len, 64);
    assert_int_equal(text_of(&first, "MessageGroupId").len, 64); /* a group's name has no blank */
    letter.own = time;
    letter.own_count = 3;
    letter.key = hapax_str("group-1");
    go(&other, &letter, true);
    assert_true(is_text(text_of(&other, "MessageGroupId"), "group-1"));
    assert_memory_equal(deduplication(&first).ptr, deduplication(&other).ptr, 64);
    end(&other);
    letter.own = run;
    letter.own_count = 2;
    go(&other, &letter, true);
    assert_memory_not_equal(deduplication(&first).ptr, deduplication(&other).ptr, 64);
    end(&other);
    letter.own_count = 1;
    letter.body = hapax_str("bodz");
    go(&other, &letter, true);
    assert_memory_not_equal(deduplication(&first).ptr, deduplication(&other).ptr, 64);
    end(&other);
    end(&first);
}

/* A message that was put back and is a dead letter again for the same reason is another letter. A
 * copy of the same delivery is the same letter. */
CASE(a_letter_put_back_has_another_life)
{
    static const char *const times[] = {NULL, "1", "2", "2"};
    char last[64] = "";

    for (int64_t i = 0; i < 4; i++) {
        struct hapax_message_header put_back[] = {
            {hapax_str("hapax-reason"), hapax_str("mismatch")},
            {hapax_str("hapax-time"), times[i] ? hapax_str(times[i]) : bytes(NULL, 0)}};
        struct hapax__delivered delivered = {.message = {.body = hapax_str("body"),
                                                         .id = hapax_str("m"),
                                                         .key = hapax_str("g"),
                                                         .from = hapax_str("q.fifo"),
                                                         .headers = put_back,
                                                         .header_count = times[i] ? 2 : 0}};
        struct hapax__letter *letter = hapax__letter_copy(
            &delivered, &(struct hapax__letter_args){.to = "q-dead.fifo",
                                                     .reason = HAPAX__REASON_MISMATCH,
                                                     .error = "",
                                                     .scope = "s",
                                                     .time_us = 100 + i});
        struct trip trip;

        go(&trip, letter, true);
        assert_int_equal(memcmp(last, deduplication(&trip).ptr, 64) == 0, i == 3);
        memcpy(last, deduplication(&trip).ptr, 64);
        /* The sink's own id names no operation: the copy would be another message. */
        assert_int_equal(header(&trip.delivery->shown.message, "MessageDeduplicationId").len, 0);
        assert_true(is_text(trip.delivery->shown.message.id, "m"));
        end(&trip);
        hapax__letter_free(letter);
    }
}

/* Messages that differ in a header are two, whatever the order of their headers: a header may say
 * whose key it is. */
CASE(letters_of_two_owners_have_two_deduplication_ids)
{
    struct hapax_message_header rows[][2] = {
        {{hapax_str("x-a"), hapax_str("1")}, {hapax_str("x-tenant"), hapax_str("ann")}},
        {{hapax_str("x-tenant"), hapax_str("ann")}, {hapax_str("x-a"), hapax_str("1")}},
        {{hapax_str("x-a"), hapax_str("1")}, {hapax_str("x-tenant"), hapax_str("bob")}},
        {{hapax_str("x-a"), hapax_str("1x-tenant")}, {hapax_str("x-b"), hapax_str("bob")}},
        {{hapax_str("x-a"), hapax_str("1")}, {hapax_str("hapax-id"), hapax_str("ann's")}},
        {{hapax_str("x-a"), hapax_str("1")}, {hapax_str("hapax-id"), hapax_str("bob's")}},
        {{hapax_str("x-a"), hapax_str("1")}, {hapax_str("hapax-attempts"), hapax_str("1")}},
        {{hapax_str("x-a"), hapax_str("1")}, {hapax_str("hapax-attempts"), hapax_str("2")}},
    };
    static const bool same[] = {false, true, false, false, false, false, false, true};
    char last[64] = "";

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hapax__letter letter = {.to = "q.fifo",
                                       .body = hapax_str("body"),
                                       .id = hapax_str("m"),
                                       .key = hapax_str("g"),
                                       .headers = rows[i],
                                       .header_count = 2};
        struct trip trip;

        go(&trip, &letter, true);
        assert_int_equal(memcmp(last, deduplication(&trip).ptr, 64) == 0, same[i]);
        memcpy(last, deduplication(&trip).ptr, 64);
        end(&trip);
    }
}

/* Names that SQS does not take are refused before any message is taken: letters to them would be
 * refused for ever. */
CASE(letters_need_names_that_sqs_takes)
{
    static const struct {
        const char *queue, *dead, *parked, *wrong;
    } rows[] = {
        {"orders", NULL, NULL, NULL},
        {"orders", "dead", "parked.fifo", NULL},
        {"orders", "orders.dead", NULL, "dead_letters: "},
        {"orders", NULL, "a/b", "parked: "},
        {"a2345678901234567890123456789012345678901234567890123456789012345678901234", NULL, NULL,
         "parked: "},
        {"a23456789012345678901234567890123456789012345678901234567890123456789012345", NULL, "p",
         NULL},
        {"a234567890123456789012345678901234567890123456789012345678901234567890123456", NULL, "p",
         "dead_letters: "},
        {"a2345678901234567890123456789012345678901234567890123456789012345678901.fifo", "d", "p",
         NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hapax_consumer consumer;
        char from[256], text[HAPAX_TEXT_MAX] = "";
        enum hapax_error error;

        hapax_consumer_init(&consumer);
        (void)snprintf(from, sizeof(from), "sqs://r/%s?endpoint=http://127.0.0.1:1", rows[i].queue);
        consumer.from = from;
        consumer.dead_letters = rows[i].dead;
        consumer.parked = rows[i].parked;
        error = hapax_consumer_check(&consumer, text);
        if (!rows[i].wrong)
            assert_string_equal(text, "");
        else
            assert_int_equal(strncmp(text, rows[i].wrong, strlen(rows[i].wrong)), 0);
        assert_int_equal(error, rows[i].wrong ? HAPAX_ERR_INVALID : HAPAX_ERR_NONE);
    }
}

/* A letter for which SQS would refuse a whole batch is refused alone, before. */
CASE(what_sqs_cannot_carry_is_told)
{
    char *large = malloc(HAPAX__SQS_MESSAGE_MAX + 1);
    struct hapax__letter letter = {.to = "q"};
    struct hapax__json_out text = {0};
    const char *why;
    size_t size;

    assert_non_null(large);
    memset(large, 'x', HAPAX__SQS_MESSAGE_MAX + 1);
    for (size_t i = 0; i < 3; i++) {
        static const char *const bodies[] = {"", "\x01", "\xff"};

        letter.body = hapax_str(bodies[i]);
        assert_int_equal(hapax__sqs_entry(&text, &size, &letter, 0, false, bytes(NULL, 0), &why),
                         HAPAX_ERR_INVALID);
        assert_non_null(strstr(why, "no text that SQS takes"));
    }
    letter.body = bytes(large, HAPAX__SQS_MESSAGE_MAX);
    assert_int_equal(hapax__sqs_entry(&text, &size, &letter, 0, false, bytes(NULL, 0), &why),
                     HAPAX_ERR_NONE);
    assert_int_equal(size, HAPAX__SQS_MESSAGE_MAX);
    letter.body.len++;
    assert_int_equal(hapax__sqs_entry(&text, &size, &letter, 0, false, bytes(NULL, 0), &why),
                     HAPAX_ERR_TOO_BIG);
    hapax__json_free(&text);
    free(large);
}

/* Each entry has its own result. An entry without a result is sent again, and so are all if the
 * reply cannot be read. */
CASE(each_entry_of_a_batch_has_its_own_result)
{
    struct hapax__sqs_result results[HAPAX__SQS_BATCH_MAX];

    assert_true(hapax__sqs_batch(
        results, 6,
        hapax_str("{\"Successful\":[{\"Id\":\"0\"},{\"Id\":\"9\"},{\"Id\":\"x\"}],\"Failed\":["
                  "{\"Id\":\"1\",\"SenderFault\":true,\"Code\":\"ReceiptHandleIsInvalid\"},"
                  "{\"Id\":\"2\",\"SenderFault\":false,\"Code\":\"InternalError\"},"
                  "{\"Id\":\"3\",\"SenderFault\":true,\"Code\":\"RequestThrottled\"},"
                  "{\"Id\":\"4\"}]}")));
    assert_int_equal(results[0].kind, HAPAX__SQS_DONE);
    assert_int_equal(results[1].kind, HAPAX__SQS_NEVER);
    assert_string_equal(results[1].code, "ReceiptHandleIsInvalid");
    for (size_t i = 2; i < 6; i++)
        assert_int_equal(results[i].kind, HAPAX__SQS_AGAIN);
    assert_string_equal(results[2].code, "InternalError");
    assert_false(hapax__sqs_batch(results, 1, hapax_str("{\"Successful\":[{\"Id\":\"0\"}")));
    assert_int_equal(results[0].kind, HAPAX__SQS_AGAIN);
}

/* Never beyond twelve hours after the message was received, and no longer just before. */
CASE(twelve_hours_are_the_limit)
{
    int64_t received_us = 5 * US_PER_S, limit_s = HAPAX__SQS_VISIBILITY_MAX_S;

    assert_int_equal(hapax__sqs_longer(received_us, received_us, 30), 30);
    assert_int_equal(hapax__sqs_longer(received_us, received_us + (limit_s - 60) * US_PER_S, 30),
                     30);
    assert_int_equal(hapax__sqs_longer(received_us, received_us + (limit_s - 50) * US_PER_S, 30),
                     20);
    assert_int_equal(hapax__sqs_longer(received_us, received_us + (limit_s - 30) * US_PER_S, 30),
                     0);
    assert_int_equal(hapax__sqs_longer(received_us, received_us + limit_s * US_PER_S, 30), 0);
    for (int64_t s = 0; s <= limit_s; s += 61)
        assert_true(s + hapax__sqs_longer(0, s * US_PER_S, HAPAX__SQS_VISIBILITY_MAX_S) <= limit_s);
}
