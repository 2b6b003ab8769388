/* SPDX-License-Identifier: Apache-2.0
 *
 * Short texts that people or callers write. The first byte says which: 'd' a duration, 's' a size,
 * 'c' a class's rule, 'l' a limit, 'p' a policy's name and value, 't' a traceparent, 'h' an
 * outcome's headers with one, 'k' a key that may say when it was made, 'w' what an operation is,
 * '6' base64.
 * Claims: a text is taken, within its limits, or refused with a reason. What is written again is
 * read as the same.
 */
#include "fuzz.h"

#include "base/base64.h"
#include "base/units.h"
#include "base/utf8.h"
#include "core/class.h"
#include "core/key.h"
#include "core/limit.h"
#include "core/trace.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void duration(const char *text)
{
    const char *why = NULL;
    int64_t ms = -7;

    if (hapax__duration_parse(&ms, text, &why))
        assert(ms >= 0 && ms <= HAPAX_DURATION_MAX_MS);
    else
        assert(ms == -7 && why && *why);
}

static void size_of(const char *text)
{
    const char *why = NULL;
    size_t size = 7;

    if (!hapax__size_parse(&size, text, &why))
        assert(size == 7 && why && *why);
}

static void rule(struct hapax_span text)
{
    struct hapax__class_rule out;
    const char *why = "";

    if (!hapax__class_rule_parse(&out, text, &why)) {
        assert(why && *why);
        return;
    }
    assert(!why && out.first >= 200 && out.first <= out.last && out.last <= 599);
    assert(memchr(out.header, '\0', sizeof(out.header)) &&
           memchr(out.value, '\0', sizeof(out.value)));
    assert(out.header[0] || !out.value[0]);
}

static void limit(char *text)
{
    struct hapax__limits limits = {0};
    const struct hapax__limits none = {0};
    const char *why = NULL;
    unsigned set = 0;

    if (!hapax__limit_parse(&limits, text, &why)) {
        assert(why && memcmp(&limits, &none, sizeof(none)) == 0);
        return;
    }
    for (size_t i = 0; i < HAPAX__LIMITS; i++)
        set += limits.max[i] > 0;
    assert(set == 1);
    assert(!hapax__limit_parse(&limits, text, &why)); /* stands twice */
}

static void policy(char *text)
{
    char why[HAPAX_TEXT_MAX] = "", *value = strchr(text, '=');
    struct hapax_policy set, was;
    enum hapax_error error;

    if (!value)
        return;
    *value++ = '\0';
    memset(&set, 0, sizeof(set));
    hapax_policy_init(&set);
    was = set;
    error = hapax_policy_set(&set, text, value, why);
    if (error != HAPAX_ERR_NONE)
        assert(why[0] && strlen(why) < sizeof(why) && set.lease_ms == was.lease_ms &&
               set.on_expired == was.on_expired && set.retention_ms == was.retention_ms);
    else if (hapax_policy_check(&set, why) != HAPAX_ERR_NONE)
        assert(why[0]);
}

static void traceparent(struct hapax_span text)
{
    struct hapax__trace trace, again;
    char out[HAPAX_TRACE_MAX];

    if (!hapax__trace_read(&trace, text))
        return;
    hapax__trace_write(out, &trace);
    assert(hapax__trace_read(&again, hapax_str(out)));
    assert(memcmp(trace.trace, again.trace, 16) == 0 && memcmp(trace.span, again.span, 8) == 0 &&
           trace.flags == again.flags);
}

static void headers(struct hapax_span text)
{
    struct hapax_span left = text;
    char out[HAPAX_TRACE_MAX];

    hapax__trace_take(out, &left);
    assert(left.len <= text.len && memchr(out, '\0', sizeof(out)));
    assert(left.ptr + left.len == text.ptr + text.len);
    assert((out[0] != '\0') == (left.len < text.len));
}

static void key(struct hapax_span text)
{
    uint8_t quoted[HAPAX__KEY_QUOTED_MAX], parsed[HAPAX_KEY_MAX];
    int64_t made_ms = hapax__key_made_ms(text);
    size_t len, parsed_len;
    const char *why;

    assert(made_ms >= 0 && made_ms < INT64_C(1) << 48);
    if (!hapax__key_quote(quoted, &len, text))
        return;
    assert(hapax_key_parse(parsed, &parsed_len, (struct hapax_span){quoted, len}, &why) ==
           HAPAX_ERR_NONE);
    assert(parsed_len == text.len && memcmp(parsed, text.ptr, text.len) == 0);
}

static void what(struct hapax_span text)
{
    struct hapax_span parts[2] = {{text.ptr, text.len / 2},
                                  {text.ptr + text.len / 2, text.len - text.len / 2}};
    uint8_t out[HAPAX_WHAT_MAX];
    size_t len = hapax_what(out, parts, 2);

    assert(len <= sizeof(out) && hapax__is_utf8((struct hapax_span){out, len}));
    for (size_t i = 0; i < len; i++)
        assert(out[i] >= 0x20 && out[i] != 0x7f);
}

static void base64(struct hapax_span text)
{
    uint8_t *bytes = malloc(text.len + 1), *again = malloc(text.len + 5);
    char *digits = malloc(text.len + 5);
    size_t len, again_len;

    assert(bytes && again && digits);
    if (hapax__base64_decode(bytes, &len, text)) {
        assert(len <= text.len && HAPAX__BASE64_LEN(len) <= text.len + 3);
        hapax__base64_encode(digits, (struct hapax_span){bytes, len});
        assert(hapax__base64_decode(
            again, &again_len, (struct hapax_span){(uint8_t *)digits, HAPAX__BASE64_LEN(len)}));
        assert(again_len == len && memcmp(again, bytes, len) == 0);
    }
    free(bytes);
    free(again);
    free(digits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax_span text;
    char *string;

    if (size == 0)
        return 0;
    text = (struct hapax_span){data + 1, size - 1};
    string = malloc(size);
    assert(string);
    memcpy(string, text.ptr, text.len);
    string[text.len] = '\0';
    switch (data[0]) {
    case 'd':
        duration(string);
        break;
    case 's':
        size_of(string);
        break;
    case 'c':
        rule(text);
        break;
    case 'l':
        limit(string);
        break;
    case 'p':
        policy(string);
        break;
    case 't':
        traceparent(text);
        break;
    case 'h':
        headers(text);
        break;
    case 'k':
        key(text);
        break;
    case 'w':
        what(text);
        break;
    case '6':
        base64(text);
        break;
    }
    free(string);
    return 0;
}
