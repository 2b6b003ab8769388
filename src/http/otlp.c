/* SPDX-License-Identifier: Apache-2.0
 *
 * The messages are those of opentelemetry-proto (trace.proto, common.proto, trace_service.proto),
 * written by hand. No number of the places that one operation needs is checked while it is written:
 * there is room for the longest.
 *
 * A length takes two bytes also where one would do: so there is room for it before what it counts
 * is there. Protobuf allows that.
 *
 * Rejected: OTLP in its JSON form, which was here before. It is names and digits for the most part:
 * a request that was told of cost the gate's worker 16,500 instructions more, and 9,500 with this.
 * Rejected: the SDK of OpenTelemetry, which is C++, with its protobuf or gRPC.
 */
#include "otlp.h"

#include "base/span.h"
#include "base/time.h"

#include <assert.h>

/* How a field is written, and the fields of the messages that are. */
enum wire { VARINT, FIXED64, BYTES };
enum request { RESOURCE_SPANS = 1 };
enum resource_spans { RESOURCE = 1, SCOPE_SPANS = 2 };
enum resource { RESOURCE_ATTRIBUTES = 1 };
enum scope_spans { SCOPE = 1, SPANS = 2 };
enum scope { SCOPE_NAME = 1, SCOPE_VERSION = 2 };
enum span {
    TRACE_ID = 1,
    SPAN_ID = 2,
    PARENT_SPAN_ID = 4,
    NAME = 5,
    KIND = 6,
    START = 7,
    END = 8,
    ATTRIBUTES = 9,
    LINKS = 13,
    STATUS = 15
};
enum status { STATUS_CODE = 3 };
enum attribute { KEY = 1, VALUE = 2 };
enum value { TEXT = 1, INTEGER = 3 };
enum kind { INTERNAL = 1, SERVER = 2, PRODUCER = 4, CONSUMER = 5 };

#define ERROR      2u /* a status */
#define LEN        3u /* a tag and a length */
#define LONG_LEN   4u
#define WORD(text) text, sizeof(text) - 1

static const struct {
    const char *span; /* before the scope */
    enum kind kind;
} doors[] = {
    [HAPAX__TRACED_HTTP] = {"request ", SERVER},
    [HAPAX__TRACED_MESSAGE] = {"process ", CONSUMER},
    [HAPAX__TRACED_LAMBDA] = {"invoke ", SERVER},
    [HAPAX__TRACED_SOCKET] = {"call ", INTERNAL},
    [HAPAX__TRACED_COMMAND] = {"command ", INTERNAL},
    [HAPAX__TRACED_RELAY] = {"publish ", PRODUCER},
};

/* ---- protobuf ------------------------------------------------------------------------ */

static inline uint8_t *put(uint8_t *at, const void *bytes, size_t len)
{
    return (uint8_t *)memcpy(at, bytes, len) + len;
}

static inline uint8_t *put_tag(uint8_t *at, unsigned field, enum wire wire)
{
    *at++ = (uint8_t)(field << 3 | wire);
    return at;
}

static uint8_t *put_varint(uint8_t *at, uint64_t value)
{
    for (; value > 127; value >>= 7)
        *at++ = (uint8_t)(value | 128);
    *at++ = (uint8_t)value;
    return at;
}

/* Of what follows: under 16 KiB. */
static inline uint8_t *put_len(uint8_t *at, unsigned field, size_t len)
{
    at = put_tag(at, field, BYTES);
    *at++ = (uint8_t)(len | 128);
    *at++ = (uint8_t)(len >> 7);
    return at;
}

/* Under 2 MiB. */
static uint8_t *put_long_len(uint8_t *at, unsigned field, size_t len)
{
    at = put_tag(at, field, BYTES);
    *at++ = (uint8_t)(len | 128);
    *at++ = (uint8_t)(len >> 7 | 128);
    *at++ = (uint8_t)(len >> 14);
    return at;
}

/* An id, or another text whose length is known here. */
static inline uint8_t *put_short(uint8_t *at, unsigned field, const void *bytes, size_t len)
{
    at = put_tag(at, field, BYTES);
    *at++ = (uint8_t)len;
    return put(at, bytes, len);
}

static inline uint8_t *put_time(uint8_t *at, unsigned field, int64_t us)
{
    uint64_t ns = htole64((uint64_t)us * 1000);

    return put(put_tag(at, field, FIXED64), &ns, sizeof(ns));
}

/* An attribute as far as its value, which takes so many bytes. */
static inline uint8_t *put_key(uint8_t *at, unsigned field, const char *key, size_t key_len,
                               size_t value_len)
{
    at = put_len(at, field, 2 + key_len + LEN + value_len);
    at = put_short(at, KEY, key, key_len);
    return put_len(at, VALUE, value_len);
}

static inline uint8_t *put_text(uint8_t *at, const char *key, size_t key_len, const void *text,
                                size_t len)
{
    at = put_key(at, ATTRIBUTES, key, key_len, LEN + len);
    return put(put_len(at, TEXT, len), text, len);
}

static inline uint8_t *put_count(uint8_t *at, const char *key, size_t key_len, uint64_t value)
{
    uint8_t digits[10];
    size_t len = (size_t)(put_varint(digits, value) - digits);

    at = put_key(at, ATTRIBUTES, key, key_len, 1 + len);
    return put(put_tag(at, INTEGER, VARINT), digits, len);
}

/* ---- spans --------------------------------------------------------------------------- */

/* All of a span but its length, its name and its attributes. */
static uint8_t *put_span(uint8_t *at, const struct hapax__told *told, enum hapax__part part,
                         enum kind kind, int64_t begun_us, int64_t ended_us)
{
    const struct hapax__traced *traced = &told->at;
    struct hapax__trace self = hapax__part_of(traced, part);
    static const uint8_t none[sizeof(self.span)];
    const uint8_t *parent = part == HAPAX__PART_OPERATION ? traced->parent.span : traced->self.span;

    at = put_short(at + LEN, TRACE_ID, self.trace, sizeof(self.trace));
    at = put_short(at, SPAN_ID, self.span, sizeof(self.span));
    if (memcmp(parent, none, sizeof(none)) != 0)
        at = put_short(at, PARENT_SPAN_ID, parent, sizeof(none));
    at = put_tag(at, KIND, VARINT);
    *at++ = (uint8_t)kind;
    at = put_time(at, START, begun_us);
    return put_time(at, END, hapax__most(ended_us, begun_us));
}

static uint8_t *end_span(uint8_t *from, uint8_t *at)
{
    (void)put_len(from, SPANS, (size_t)(at - from) - LEN);
    return at;
}

static inline uint8_t *put_part(uint8_t *from, const struct hapax__told *told,
                                enum hapax__part part, const char *name, size_t len,
                                int64_t begun_us, int64_t ended_us)
{
    uint8_t *at = put_span(from, told, part, INTERNAL, begun_us, ended_us);

    return end_span(from, put_short(at, NAME, name, len));
}

static uint8_t *put_attributes(uint8_t *at, const struct hapax__told *told, struct hapax_span scope,
                               enum hapax__traced_door door)
{
    const char *answer = hapax_answer_name(told->answer);
    char id[2 * sizeof(told->id)];

    at = put_text(at, WORD("hapax.answer"), answer, strlen(answer));
    if (told->keyed) {
        hapax__hex(id, told->id.bytes, sizeof(told->id));
        at = put_text(at, WORD("hapax.id"), id, sizeof(id));
        at = put_text(at, WORD("hapax.scope"), scope.ptr, scope.len);
    }
    if (told->what_len > 0)
        at = put_text(at, WORD("hapax.what"), told->what, told->what_len);
    if (told->attempt > 0)
        at = put_count(at, WORD("hapax.attempt"), told->attempt);
    if (told->fence > 0)
        at = put_count(at, WORD("hapax.fence"), told->fence);
    if (told->cls) {
        const char *name = hapax__class_name(told->cls);

        at = put_text(at, WORD("hapax.class"), name, strlen(name));
    }
    if (told->status > 0 && door == HAPAX__TRACED_COMMAND)
        at = put_count(at, WORD("process.exit.code"), (uint64_t)told->status);
    else if (told->status >= 100)
        at = put_count(at, WORD("http.response.status_code"), (uint64_t)told->status);
    return at;
}

static uint8_t *put_link(uint8_t *at, const char *text)
{
    struct hapax__trace link;

    if (!hapax__trace_read(&link, hapax_str(text)))
        return at;
    at = put_len(at, LINKS, 2 + sizeof(link.trace) + 2 + sizeof(link.span));
    at = put_short(at, TRACE_ID, link.trace, sizeof(link.trace));
    return put_short(at, SPAN_ID, link.span, sizeof(link.span));
}

static bool is_failure(const struct hapax__told *told)
{
    return told->answer == HAPAX_ANSWER_STORE_DOWN || told->answer == HAPAX_ANSWER_UNKNOWN ||
           told->answer == HAPAX_ANSWER_FAILED || told->cls == HAPAX_CLASS_FAILED ||
           told->cls == HAPAX_CLASS_UNKNOWN;
}

/* The span of the whole operation, or of a publication. */
static uint8_t *put_operation(uint8_t *from, const struct hapax__told *told,
                              struct hapax_span scope, enum hapax__traced_door door,
                              int64_t ahead_us)
{
    bool publication = door == HAPAX__TRACED_RELAY;
    size_t verb_len = strlen(doors[door].span), door_len = strlen(hapax__traced_name(door));
    uint8_t *at = put_span(from, told, HAPAX__PART_OPERATION, doors[door].kind,
                           told->begun_us + ahead_us, told->ended_us + ahead_us);

    at = put_len(at, NAME, verb_len + scope.len);
    at = put(at, doors[door].span, verb_len);
    at = put(at, scope.ptr, scope.len);
    at = put_text(at, WORD("hapax.door"), hapax__traced_name(door), door_len);
    if (publication) {
        at = put_text(at, WORD("messaging.operation.type"), WORD("send"));
        at = put_text(at, WORD("messaging.destination.name"), scope.ptr, scope.len);
    } else {
        at = put_attributes(at, told, scope, door);
    }
    at = put_link(at, told->link);
    if (is_failure(told)) {
        at = put_len(at, STATUS, 2);
        at = put_tag(at, STATUS_CODE, VARINT);
        *at++ = ERROR;
    }
    return end_span(from, at);
}

uint8_t *hapax__otlp_spans(uint8_t *at, const struct hapax__told *told, struct hapax_span scope,
                           enum hapax__traced_door door, int64_t ahead_us)
{
    int64_t begun_us = told->begun_us + ahead_us, ended_us = told->ended_us + ahead_us,
            run_us = told->run_us ? told->run_us + ahead_us : ended_us,
            wait_us = told->wait_us ? told->wait_us + ahead_us : run_us,
            handled_us = told->handled_us + ahead_us;

    at = put_operation(at, told, scope, door, ahead_us);
    if (door == HAPAX__TRACED_RELAY)
        return at;
    if (told->keyed && told->link[0] && !told->wait_us)
        at = put_part(at, told, HAPAX__PART_CLAIM, WORD("replay"), begun_us, wait_us);
    else if (told->keyed)
        at = put_part(at, told, HAPAX__PART_CLAIM, WORD("claim"), begun_us, wait_us);
    if (told->wait_us > 0)
        at = put_part(at, told, HAPAX__PART_WAIT, WORD("wait"), wait_us, run_us);
    if (told->cls)
        at = put_part(at, told, HAPAX__PART_RUN, WORD("handler"), run_us, handled_us);
    if (told->cls && told->keyed)
        at = put_part(at, told, HAPAX__PART_COMPLETE, WORD("complete"), handled_us, ended_us);
    return at;
}

/* ---- a request ----------------------------------------------------------------------- */

uint8_t *hapax__otlp_head(uint8_t *spans, size_t spans_len, struct hapax_span service)
{
    uint8_t head[HAPAX__OTLP_HEAD_MAX], *at = head;
    size_t service_len = LEN + 2 + sizeof("service.name") - 1 + LEN + LEN + service.len,
           scope_len = 2 + sizeof("hapax") - 1 + 2 + sizeof(HAPAX_VERSION) - 1,
           all_len = LEN + scope_len + spans_len;

    assert(service.len <= HAPAX_WHAT_MAX && spans_len <= HAPAX__OTLP_MAX);
    at = put_long_len(at, RESOURCE_SPANS, LEN + service_len + LONG_LEN + all_len);
    at = put_len(at, RESOURCE, service_len);
    at = put_key(at, RESOURCE_ATTRIBUTES, WORD("service.name"), LEN + service.len);
    at = put(put_len(at, TEXT, service.len), service.ptr, service.len);
    at = put_long_len(at, SCOPE_SPANS, all_len);
    at = put_len(at, SCOPE, scope_len);
    at = put_short(at, SCOPE_NAME, WORD("hapax"));
    at = put_short(at, SCOPE_VERSION, WORD(HAPAX_VERSION));
    return (uint8_t *)memcpy(spans - (at - head), head, (size_t)(at - head));
}
