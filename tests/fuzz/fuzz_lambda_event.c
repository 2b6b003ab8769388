/* SPDX-License-Identifier: Apache-2.0
 *
 * Events, responses and reports. The input is the setting `key` in the first line ("-": not set),
 * the event up to an empty line, then the function's response.
 * Claims: a walk stays within the text, and each part that it gives is JSON. An event gives the
 * same key each time it is asked. An invocation is run or answered. What is posted is JSON where
 * the response was. A batch is JSON still after records were cut out.
 */
#include "fuzz.h"

#include "door/lambda/invocation.h"
#include "json/raw.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define INPUTS_MAX 1000u /* the records of so many are kept */

static bool is_json(struct hapax_span text)
{
    struct hapax_span value;

    return hapax__raw_check(&value, text);
}

static void walk(struct hapax_span value, unsigned depth)
{
    struct hapax__raw_walk at;
    struct hapax_span name, child;

    hapax__raw_begin(&at, value);
    while (hapax__raw_next(&at, &name, &child)) {
        assert(child.ptr > value.ptr && child.ptr + child.len < value.ptr + value.len);
        assert(is_json(child) && (name.len == 0 || is_json(name)));
        if (depth < 3)
            walk(child, depth + 1);
    }
    if (hapax__raw_is_string(value)) {
        uint8_t *bytes = malloc(value.len);

        assert(bytes && hapax__raw_unescape(bytes, value) <= value.len);
        free(bytes);
    }
}

static void ask_twice(const struct hapax__ask *ask, const struct hapax_policy *policy,
                      struct hapax_span event)
{
    struct hapax__asked first, second;
    struct hapax_span root = {NULL, 0};
    enum hapax_lambda_kind kind;

    if (hapax__raw_check(&root, event))
        walk(root, 0);
    kind = hapax__event_kind(root);
    assert(hapax__event_ask(&first, ask, policy, kind, root, hapax_str("r")));
    assert(hapax__event_ask(&second, ask, policy, kind, root, hapax_str("r")));
    assert(first.refused == second.refused && first.request.key.len == second.request.key.len);
    assert(first.request.key.len <= HAPAX_KEY_MAX);
    assert(memcmp(first.memory, second.memory, first.request.key.len) == 0);
    assert(memcmp(&first.request.fingerprint, &second.request.fingerprint,
                  sizeof(first.request.fingerprint)) == 0);
}

static void invoke(struct hapax__function *function, struct hapax_span event,
                   struct hapax_span response)
{
    struct hapax__got got = {.body = malloc(event.len + 1), .len = event.len};
    struct hapax__invocation *invocation;
    struct hapax__lambda_reply reply;
    bool run = false, odd = !is_json(response);

    assert(got.body);
    memcpy(got.body, event.ptr, event.len);
    invocation = hapax__invocation_begin(function, &got, &run, &reply);
    assert(invocation);
    if (run) {
        assert(!invocation->cut || is_json(hapax__invocation_event(invocation)));
        assert(hapax__invocation_end(invocation, false, (struct hapax_span){NULL, 0}, response,
                                     &reply));
    }
    assert(reply.text && (odd || is_json((struct hapax_span){(uint8_t *)reply.text, reply.len})));
    hapax__reply_release(&reply);
    hapax__invocation_free(invocation);
}

/* One for many inputs, as it takes three threads: each input has a scope of its own. NULL: out of
 * memory. */
static struct hapax *open_for(char scope[16])
{
    static struct hapax *h;
    static unsigned inputs;
    char text[HAPAX_TEXT_MAX];

    if (inputs++ % INPUTS_MAX == 0) {
        if (h)
            hapax_close(h, 0);
        h = NULL;
        (void)hapax_open(&h, "memory:", NULL, text);
    }
    (void)snprintf(scope, 16, "%u", inputs);
    return h;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *newline = size > 0 ? memchr(data, '\n', size) : NULL, *rest, *gap;
    struct hapax_lambda_stats stats = {0};
    struct hapax__ask ask;
    struct hapax_lambda lambda;
    struct hapax_span event, response;
    char key[512], scope[16], text[HAPAX_TEXT_MAX];
    struct hapax *h;

    if (!newline || (size_t)(newline - data) >= sizeof(key))
        return 0;
    memcpy(key, data, (size_t)(newline - data));
    key[newline - data] = '\0';
    rest = newline + 1;
    gap = memmem(rest, size - (size_t)(rest - data), "\n\n", 2);
    event = (struct hapax_span){rest, (size_t)((gap ? gap : data + size) - rest)};
    response = gap ? (struct hapax_span){gap + 2, (size_t)(data + size - gap - 2)} : hapax_str("");
    hapax_lambda_init(&lambda);
    lambda.key = strcmp(key, "-") == 0 ? NULL : key;
    h = open_for(scope);
    lambda.scope = scope;
    if (hapax__event_ask_read(&ask, &lambda, text) != HAPAX_ERR_NONE)
        return 0;
    ask_twice(&ask, &lambda.policy, event);
    if (h) {
        struct hapax__function function = {.lambda = &lambda, .ask = &ask, .stats = &stats};

        atomic_store(&function.h, h);
        invoke(&function, event, response);
        invoke(&function, event, response);
    }
    return 0;
}
