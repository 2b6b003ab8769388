/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies of SQS, or of a server in its place. Claims: a message that is made of a reply is whole
 * and within its limits. A message that is sent on as a letter is read back as the same message.
 */
#include "fuzz.h"

#include "broker/sqs/message.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void check_message(const struct hapax_message *message)
{
    assert(message->header_count <= HAPAX__HEADERS_READ_MAX);
    for (size_t i = 0; i < message->header_count; i++) {
        assert(message->headers[i].name.len == 0 || message->headers[i].name.ptr);
        assert(message->headers[i].value.len == 0 || message->headers[i].value.ptr);
    }
    assert(message->time_us >= 0);
}

static bool same(struct hapax_span a, struct hapax_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static struct hapax_span text_of(struct hapax_span object, const char *name,
                                 struct hapax_arena *arena)
{
    struct hapax_span value;

    (void)hapax__raw_member(&value, object, name);
    assert(hapax__raw_text(&value, arena, value));
    return value;
}

/* The request of SendMessageBatch, as ReceiveMessage would answer with it. */
static void check_copy(const struct hapax__json_out *entry, const struct hapax_message *message)
{
    struct hapax_arena arena = {NULL};
    struct hapax_span text = {(const uint8_t *)entry->bytes, entry->len}, root;

    assert(hapax__sqs_read(&root, text));
    assert(same(text_of(root, "MessageBody", &arena), message->body));
    assert(text_of(root, "MessageGroupId", &arena).len <= 128);
    assert(text_of(root, "MessageDeduplicationId", &arena).len == 64);
    hapax__arena_release(&arena);
}

static void send_on(const struct hapax_message *message)
{
    static const struct hapax_message_header own[] = {
        {{(const uint8_t *)"hapax-reason", 12}, {(const uint8_t *)"failed", 6}},
        {{(const uint8_t *)"hapax-base", 10}, {(const uint8_t *)"1", 1}}};
    struct hapax__letter letter = {.to = "q",
                                   .body = message->body,
                                   .content_type = message->content_type,
                                   .id = message->id,
                                   .key = message->key,
                                   .headers = message->headers,
                                   .header_count = message->header_count,
                                   .own = own,
                                   .own_count = 2};
    struct hapax__json_out text = {0};
    const char *why;
    size_t size;

    if (hapax__sqs_entry(&text, &size, &letter, 9, true, hapax_str("chance"), &why) ==
        HAPAX_ERR_NONE)
        check_copy(&text, message);
    hapax__json_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax__sqs_result results[HAPAX__SQS_BATCH_MAX];
    struct hapax_span reply = {data, size};
    struct hapax_arena arena = {NULL};
    struct hapax_span root, list = {NULL, 0}, none, one;
    struct hapax__raw_walk walk;

    if (hapax__sqs_read(&root, reply))
        (void)hapax__raw_member(&list, root, "Messages");
    hapax__raw_begin(&walk, list);
    while (hapax__raw_next(&walk, &none, &one)) {
        struct hapax__sqs_delivery *delivery =
            hapax__sqs_delivery(one, &arena, hapax_str("q"), true);

        if (!delivery)
            continue;
        check_message(&delivery->shown.message);
        send_on(&delivery->shown.message);
        free(delivery);
    }
    hapax__arena_release(&arena);
    (void)hapax__sqs_batch(results, HAPAX__SQS_BATCH_MAX, reply);
    for (size_t i = 0; i < HAPAX__SQS_BATCH_MAX; i++)
        assert(memchr(results[i].code, '\0', sizeof(results[i].code)));
    return 0;
}
