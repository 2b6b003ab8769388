/* SPDX-License-Identifier: Apache-2.0
 *
 * What a Redis says that lua/machine.lua said, for each kind of op. The input is a reply as it
 * comes over the wire, or, since few inputs get past the reply's lengths, a number and a string
 * that are put into a correct reply.
 * Claims: an answer is either a verdict that this kind can get or an error, never both. It shows no
 * token, and no byte that is not the reply's or the op's own.
 */
#include "fuzz.h"

#include "store/redis/reader.h"
#include "store/redis/redis.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const enum hapax_op_kind kinds[] = {HAPAX_OP_CLAIM,  HAPAX_OP_RENEW, HAPAX_OP_COMPLETE,
                                           HAPAX_OP_FAIL,   HAPAX_OP_READ,  HAPAX_OP_LIST,
                                           HAPAX_OP_RESOLVE};

/* Whether a span is one string of the reply, or part of one. */
static bool within(const struct hapax__resp *reply, struct hapax_span span)
{
    for (size_t i = 0; i < reply->elements; i++) {
        const struct hapax__resp *one = reply->element[i];

        if (one->type == HAPAX__RESP_STRING && span.ptr >= (const uint8_t *)one->str &&
            span.ptr + span.len <= (const uint8_t *)one->str + one->len)
            return true;
    }
    return false;
}

static void check_span(const struct hapax__resp *reply, struct hapax_span span,
                       struct hapax_span own)
{
    assert(span.len == 0 || (span.ptr == own.ptr && span.len == own.len) || within(reply, span));
}

static void check_verdict(const struct hapax_op *op, const struct hapax__resp *reply)
{
    static const struct hapax_mark none;
    const struct hapax_record *record = &op->record;

    assert(op->verdict > HAPAX_NO_VERDICT && op->verdict <= HAPAX_ABSENT && op->now_us > 0);
    assert((op->differs != HAPAX_DIFFERS_NOT) == (op->verdict == HAPAX_MISMATCH));
    assert(op->verdict != HAPAX_CLAIMED || op->kind == HAPAX_OP_CLAIM);
    assert(op->verdict != HAPAX_CLAIMED || record->state == HAPAX_STATE_STARTED);
    assert(op->verdict != HAPAX_COMPLETED || record->state == HAPAX_STATE_COMPLETED);
    assert(op->verdict != HAPAX_ABSENT || record->state == HAPAX_STATE_ABSENT);
    assert(memcmp(&record->id, &op->id, sizeof(op->id)) == 0);
    assert(memcmp(&record->mark, &none, sizeof(none)) == 0);
    assert(record->retention_ms >= 0 && record->expires_us >= 0 && record->lease_until_us >= 0);
    assert(record->outcome.body.len <= HAPAX_BODY_MAX && record->resolved_by.len <= HAPAX_BY_MAX);
    assert(record->replaced_state <= HAPAX_STATE_UNKNOWN);
    check_span(reply, record->scope, op->scope);
    check_span(reply, record->what, op->what);
    check_span(reply, record->resolved_by, op->by);
    check_span(reply, record->outcome.headers, op->outcome.headers);
    check_span(reply, record->outcome.body, op->outcome.body);
}

static void answer(const struct hapax__resp *reply, enum hapax_op_kind kind, size_t i, bool force)
{
    struct hapax_op op = {.kind = kind, .error = HAPAX_ERR_INDETERMINATE, .force = force};
    char text[HAPAX_TEXT_MAX] = "";
    size_t need;
    bool held;

    memset(&op.id, 5, sizeof(op.id));
    memset(&op.token, 7, sizeof(op.token));
    op.resolve = force ? HAPAX_RESOLVE_FORGET : HAPAX_RESOLVE_COMPLETE;
    op.outcome = (struct hapax_outcome){201, true, hapax_str("own: 1\r\n"), hapax_str("own")};
    switch (hapax__redis_answer(&op, reply, i, &held, &need, text)) {
    case HAPAX__REDIS_ANSWERED:
        break;
    case HAPAX__REDIS_LATER:
    case HAPAX__REDIS_NONSENSE:
        assert(op.error == HAPAX_ERR_INDETERMINATE && op.verdict == HAPAX_NO_VERDICT && !held);
        return;
    default:
        abort();
    }
    if (op.error == HAPAX_ERR_NONE) {
        check_verdict(&op, reply);
        return;
    }
    assert(op.verdict == HAPAX_NO_VERDICT && !held && text[0] != '\0');
    assert(op.error == HAPAX_ERR_UNAVAILABLE || op.error == HAPAX_ERR_REFUSED ||
           op.error == HAPAX_ERR_CORRUPT || op.error == HAPAX_ERR_UNSUPPORTED);
}

static void answer_all(const struct hapax__resp *reply)
{
    for (size_t k = 0; k < KINDS; k++)
        for (size_t i = 0; i < 3; i++)
            for (int force = 0; force < 2; force++)
                answer(reply, kinds[k], i, force);
}

static void from_the_wire(const uint8_t *data, size_t size)
{
    struct hapax__redis_reader *reader = hapax__redis_reader_open();
    struct hapax__resp *reply;
    const char *fault = NULL;

    assert(reader && hapax__redis_reader_want(reader));
    for (size_t at = 0, n; at < size && !fault; at += n) {
        void *to = hapax__redis_reader_room(reader, &n);

        n = n < size - at ? n : size - at;
        memcpy(to, data + at, n);
        fault = hapax__redis_reader_took(reader, n);
    }
    reply = hapax__redis_reader_next(reader);
    if (reply) {
        answer_all(reply);
        hapax__resp_free(reply);
    }
    hapax__redis_reader_close(reader);
}

/* Its bytes end where the data does, so that a sanitizer sees what is read past them. */
static void from_a_script(const uint8_t *data, size_t size)
{
    struct hapax__resp seconds = {
        .type = HAPAX__RESP_STRING, .str = (char[]){"1700000000"}, .len = 10};
    struct hapax__resp us = {.type = HAPAX__RESP_STRING, .str = (char[]){"7"}, .len = 1};
    struct hapax__resp said = {.type = HAPAX__RESP_INTEGER};
    struct hapax__resp shown = {.type = data[0] & 1 ? HAPAX__RESP_NIL : HAPAX__RESP_STRING};
    struct hapax__resp *elements[] = {&seconds, &us, &said, &shown};
    struct hapax__resp reply = {.type = HAPAX__RESP_ARRAY, .elements = 4, .element = elements};
    char *bytes = malloc(size);

    assert(bytes);
    said.integer = (int16_t)(data[1] << 8 | data[2]);
    shown.len = size - 3;
    memcpy(bytes, data + 3, size - 3);
    shown.str = bytes;
    answer_all(&reply);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    if (data[0] < 128)
        from_a_script(data, size);
    else
        from_the_wire(data + 1, size - 1);
    return 0;
}
