/* SPDX-License-Identifier: Apache-2.0
 *
 * What a message asks. The input is the settings key, fingerprint and step, one a line ("-": not
 * set), then the message-id and the content type, headers `name:value`, one a line, an empty line,
 * and the body. Claims: settings are taken, or refused with a reason. A message has a key within
 * its limits, or a reason why it has none. Both are the same when the message is asked again, and
 * when its headers come in another order.
 */
#include "fuzz.h"

#include "door/consume/ask.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADERS_MAX 260
#define SETTING_MAX 512

struct input {
    char key[SETTING_MAX];
    char fingerprint[SETTING_MAX];
    char step[SETTING_MAX];
    struct hapax_message_header headers[HEADERS_MAX];
    struct hapax__delivered delivered;
};

static struct hapax_span take_line(struct hapax_span *rest)
{
    const uint8_t *newline = rest->len > 0 ? memchr(rest->ptr, '\n', rest->len) : NULL;
    struct hapax_span line = *rest;

    if (newline) {
        line.len = (size_t)(newline - rest->ptr);
        *rest = (struct hapax_span){newline + 1, rest->len - line.len - 1};
    } else {
        rest->ptr += rest->len;
        rest->len = 0;
    }
    return line;
}

static const char *take_setting(char setting[SETTING_MAX], struct hapax_span *rest)
{
    struct hapax_span line = take_line(rest);

    if (line.len == 1 && line.ptr[0] == '-')
        return NULL;
    snprintf(setting, SETTING_MAX, "%.*s", (int)line.len, (const char *)line.ptr);
    return setting;
}

static void take_header(struct hapax_message *message, struct hapax_message_header *header,
                        struct hapax_span line)
{
    const uint8_t *colon = memchr(line.ptr, ':', line.len);
    size_t len = colon ? (size_t)(colon - line.ptr) : line.len;

    /* `cloudEvents:id` has one in its name */
    if (len == 11 && memcmp(line.ptr, "cloudEvents", 11) == 0 && line.len > 12) {
        colon = memchr(line.ptr + 12, ':', line.len - 12);
        len = colon ? (size_t)(colon - line.ptr) : line.len;
    }
    header->name = (struct hapax_span){line.ptr, len};
    header->value = (struct hapax_span){NULL, 0};
    if (colon)
        header->value = (struct hapax_span){colon + 1, line.len - len - 1};
    message->header_count++;
}

static void read_message(struct input *input, struct hapax_span rest)
{
    struct hapax_message *message = &input->delivered.message;
    struct hapax_span line;

    message->headers = input->headers;
    message->id = take_line(&rest);
    message->content_type = take_line(&rest);
    message->position = hapax_str("t/0/1");
    while (message->header_count < HEADERS_MAX && (line = take_line(&rest)).len > 0)
        take_header(message, &input->headers[message->header_count], line);
    message->body = rest;
}

static bool same(struct hapax_span a, struct hapax_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static void same_asked(const struct hapax__asked *a, const struct hapax__asked *b)
{
    assert(a->refused == b->refused);
    assert(same(a->request.key, b->request.key));
    assert(memcmp(&a->request.fingerprint, &b->request.fingerprint, sizeof(struct hapax_digest)) ==
           0);
}

static void turn_headers(struct input *input)
{
    size_t n = input->delivered.message.header_count;

    for (size_t i = 0; i < n / 2; i++) {
        struct hapax_message_header header = input->headers[i];

        input->headers[i] = input->headers[n - 1 - i];
        input->headers[n - 1 - i] = header;
    }
}

static void ask_about(struct input *input, const struct hapax__ask *ask)
{
    struct hapax__asked asked, again;
    struct hapax_policy policy;
    enum hapax_error error;

    hapax_policy_init(&policy);
    policy.max_request = 4096;
    error = hapax__message_ask(&asked, ask, &policy, &input->delivered);
    assert(error == HAPAX_ERR_NONE);
    assert(asked.request.scope.len > 0);
    if (asked.refused) {
        assert(asked.refused == HAPAX_ANSWER_MISSING_KEY || asked.refused == HAPAX_ANSWER_BAD_KEY ||
               asked.refused == HAPAX_ANSWER_TOO_LARGE);
        assert(asked.why && *asked.why && asked.request.key.len == 0);
    } else {
        assert(asked.request.key.len >= 1 && asked.request.key.len <= HAPAX_KEY_MAX);
        assert(asked.request.key.ptr == asked.memory);
    }
    error = hapax__message_ask(&again, ask, &policy, &input->delivered);
    assert(error == HAPAX_ERR_NONE);
    same_asked(&asked, &again);
    turn_headers(input);
    error = hapax__message_ask(&again, ask, &policy, &input->delivered);
    assert(error == HAPAX_ERR_NONE);
    same_asked(&asked, &again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hapax__source_type type = {.schemes = {"kafka"}, .positions = true};
    static const struct hapax__source source = {.type = &type, .name = "t.g", .group = "g"};
    struct input *input = calloc(1, sizeof(*input));
    struct hapax_span rest = {data, size};
    struct hapax_consumer consumer = {.scope = NULL};
    char text[HAPAX_TEXT_MAX] = "";
    struct hapax__ask ask;
    enum hapax_error error;

    if (!input)
        abort();
    consumer.key = take_setting(input->key, &rest);
    consumer.fingerprint = take_setting(input->fingerprint, &rest);
    consumer.step = take_setting(input->step, &rest);
    error = hapax__message_ask_read(&ask, &consumer, &source, text);
    assert(error == HAPAX_ERR_NONE || error == HAPAX_ERR_INVALID);
    if (error == HAPAX_ERR_NONE) {
        read_message(input, rest);
        ask_about(input, &ask);
    } else {
        assert(*text);
    }
    free(input);
    return 0;
}
