/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties and headers of an AMQP message, as they come over the wire, its history, and the
 * letter that is made of it. What librabbitmq cannot decode is not looked at: that is another's
 * parser.
 * Claims: a delivery is within its limits, and the letter is, or there is none. Where no header
 * was too much, the letter is a delivery again, with the same key, type and body.
 */
#include "fuzz.h"

#include "base/span.h"
#include "broker/amqp/message.h"
#include "broker/letter.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void look_at(const struct hapax__amqp_delivery *delivery)
{
    const struct hapax_message *message = &delivery->shown.message;

    assert(message->header_count <= HAPAX__HEADERS_READ_MAX);
    for (size_t i = 0; i < message->header_count; i++) {
        assert(message->headers[i].name.len == 0 || message->headers[i].name.ptr);
        assert(message->headers[i].value.len == 0 || message->headers[i].value.ptr);
    }
}

static void letter_of(const struct hapax__amqp_delivery *delivery, enum hapax__reason reason)
{
    static amqp_table_entry_t entries[HAPAX__AMQP_ENTRIES_MAX];
    const struct hapax__amqp_coming coming = {.tag = 2};
    struct hapax__letter_args args = {.to = "q",
                                      .history = hapax__history_read(&delivery->shown.message),
                                      .reason = reason,
                                      .error = "why",
                                      .scope = "q",
                                      .time_us = 1};
    struct hapax__letter *letter = hapax__letter_copy(&delivery->shown, &args);
    struct hapax__amqp_delivery *again;
    amqp_basic_properties_t properties;
    amqp_pool_t pool;

    assert(letter && args.history.attempts <= HAPAX__COUNT_MAX);
    init_amqp_pool(&pool, 4096);
    if (hapax__amqp_properties(&properties, entries, letter, 1, &pool)) {
        assert(properties.headers.num_entries <= (int)HAPAX__AMQP_ENTRIES_MAX);
        again = hapax__amqp_delivery(&coming, &properties, 0, hapax_str("q"));
        assert(again);
        look_at(again);
        assert(
            hapax__same(again->shown.message.content_type, delivery->shown.message.content_type));
        assert(reason == HAPAX__REASON_NONE || hapax__reason_read(&again->shown.message) == reason);
        free(again);
    }
    hapax__letter_free(letter);
    empty_amqp_pool(&pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct hapax__amqp_coming coming = {.tag = 1};
    struct hapax__amqp_delivery *delivery;
    amqp_pool_t pool;
    void *decoded;

    if (size == 0)
        return 0;
    init_amqp_pool(&pool, 4096);
    if (amqp_decode_properties(AMQP_BASIC_CLASS, &pool,
                               (amqp_bytes_t){size - 1, (void *)(uintptr_t)(data + 1)},
                               &decoded) == AMQP_STATUS_OK) {
        delivery = hapax__amqp_delivery(&coming, decoded, 0, hapax_str("q"));
        assert(delivery);
        look_at(delivery);
        if (!delivery->shown.damaged)
            letter_of(delivery, (enum hapax__reason)(data[0] % HAPAX__REASONS));
        free(delivery);
    }
    empty_amqp_pool(&pool);
    return 0;
}
