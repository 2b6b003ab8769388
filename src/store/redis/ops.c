/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops as arguments of lua/machine.lua, and its replies as answers: the C side of that script's head
 * comment. Without state and without I/O.
 *
 * Every length and range of a reply is checked before an op is answered with it. A reply that the
 * script cannot have made answers nothing, and the op's result stays unknown. A record that the
 * script cannot read is CORRUPT or UNSUPPORTED, and never "absent".
 */
#include "redis.h"

#include "base/bytes.h"
#include "base/fail.h"
#include "base/span.h"
#include "core/id.h"
#include "core/machine.h"
#include "core/record.h"
#include "store/types.h"

#include <inttypes.h>

#define HEAD_REPLY 2u /* elements before those of the first op */

/* What the script adds to a verdict, and the numbers that it answers in place of one. */
enum {
    VERDICT_MASK = 15,
    DIFFERS_SHIFT = 4,
    SHOWN = 64,
    OWN = 128,
    REPLICATED = 256,
    CODE_MAX = 511
};
enum { SAID_REFUSED = -1, SAID_CORRUPT = -2, SAID_UNSUPPORTED = -3, SAID_LATER = -4 };

enum { KIND_LOOKUP = HAPAX_OP_LIST }; /* a lookup of one record, for LIST */

/* ---- keys ---------------------------------------------------------------------------- */

size_t hapax__redis_key(uint8_t out[HAPAX__REDIS_KEY_MAX], const char *prefix,
                        const struct hapax_id *id)
{
    size_t len = strlen(prefix);

    assert(len <= HAPAX__REDIS_PREFIX_MAX);
    memcpy(out, prefix, len);
    hapax__hex((char *)out + len, id->bytes, sizeof(id->bytes));
    return len + 2 * sizeof(id->bytes);
}

/* The key of a tombstone is PREFIX and, in braces, the record's key. */
static void put_keys(struct hapax__redis_args *out, const char *prefix, const struct hapax_id *id)
{
    struct hapax__writer w = {out->grave, sizeof(out->grave)};

    out->key_len = hapax__redis_key(out->key, prefix, id);
    hapax__put(&w, prefix, strlen(prefix));
    hapax__put_number(&w, '{', 1);
    hapax__put(&w, out->key, out->key_len);
    hapax__put_number(&w, '}', 1);
    out->grave_len = sizeof(out->grave) - w.left;
}

bool hapax__redis_id(struct hapax_id *out, bool *grave, const char *prefix, struct hapax_span key)
{
    size_t len = strlen(prefix);

    *grave = key.len > len + 2 && key.ptr[len] == '{' && key.ptr[key.len - 1] == '}';
    if (*grave)
        key = (struct hapax_span){key.ptr + len + 1, key.len - len - 2};
    return key.len == len + 2 * sizeof(out->bytes) && memcmp(key.ptr, prefix, len) == 0 &&
           hapax__unhex(out->bytes, key.ptr + len, sizeof(out->bytes));
}

/* ---- arguments ----------------------------------------------------------------------- */

/* In a record 0 means "for ever", so that Lua holds each number of a record exactly. */
static uint64_t stored_retention(int64_t retention_ms)
{
    return retention_ms == HAPAX_FOREVER_MS ? 0 : (uint64_t)retention_ms;
}

/* The record as it is stored, from behind its mark up to its headers. */
static void put_import(struct hapax__writer *w, const struct hapax_op *op)
{
    struct hapax_record in;
    enum hapax_error error = hapax__record_decode(&in, &op->id, op->import);
    size_t owner_len = hapax__owned(&in.owner) ? sizeof(in.owner.bytes) : 0;

    assert(error == HAPAX_ERR_NONE);
    (void)error;
    hapax__put_number(w, (uint64_t)in.state, 1);
    hapax__put_number(w, in.hold, 1);
    hapax__put_number(w, in.stale, 1);
    hapax__put_number(w, in.ran, 1);
    hapax__put_number(w, in.reruns, 1);
    hapax__put_number(w, op->outcome.body_kept, 1);
    hapax__put_number(w, (uint64_t)op->outcome.status, 2);
    hapax__put_number(w, in.attempt, 4);
    hapax__put_number(w, in.spent, 4);
    hapax__put_number(w, in.fence, 8);
    hapax__put_number(w, (uint64_t)in.created_us, 8);
    hapax__put_number(w, (uint64_t)in.updated_us, 8);
    hapax__put_number(w, (uint64_t)in.lease_until_us, 8);
    hapax__put_number(w, (uint64_t)in.expires_us, 8);
    hapax__put_number(w, stored_retention(in.retention_ms), 8);
    hapax__put_number(w, (uint64_t)in.resolved_us, 8);
    hapax__put_number(w, op->outcome.headers.len, 4);
    hapax__put_number(w, op->outcome.body.len, 4);
    hapax__put_number(w, in.scope.len, 1);
    hapax__put_number(w, in.resolved_by.len, 1);
    hapax__put_number(w, owner_len, 1);
    hapax__put_number(w, in.what.len, 1);
    hapax__put_number(w, (uint64_t)in.replaced_state, 1);
    hapax__put_number(w, (uint64_t)in.replaced_status, 2);
    hapax__put(w, in.fingerprint.bytes, sizeof(in.fingerprint.bytes));
    hapax__put(w, in.caller.bytes, sizeof(in.caller.bytes));
    hapax__put(w, in.owner.bytes, owner_len);
    hapax__put(w, in.scope.ptr, in.scope.len);
    hapax__put(w, in.what.ptr, in.what.len);
    hapax__put(w, in.resolved_by.ptr, in.resolved_by.len);
}

static void put_fields(struct hapax__writer *w, const struct hapax_op *op)
{
    bool owned = hapax__owned(&op->owner);

    switch (op->kind) {
    case HAPAX_OP_CLAIM:
        hapax__put_number(w, (uint64_t)op->on_expired, 1);
        hapax__put_number(w, op->rerun_completed, 1);
        hapax__put_number(w, op->attempts_max, 4);
        hapax__put_number(w, (uint64_t)op->lease_ms, 8);
        hapax__put_number(w, stored_retention(op->retention_ms), 8);
        hapax__put_number(w, owned ? sizeof(op->owner.bytes) : 0, 1);
        hapax__put_number(w, op->scope.len, 1);
        hapax__put(w, op->fingerprint.bytes, sizeof(op->fingerprint.bytes));
        hapax__put(w, op->caller.bytes, sizeof(op->caller.bytes));
        hapax__put(w, op->owner.bytes, owned ? sizeof(op->owner.bytes) : 0);
        hapax__put(w, op->scope.ptr, op->scope.len);
        hapax__put(w, op->what.ptr, op->what.len);
        return;
    case HAPAX_OP_RENEW:
        hapax__put_number(w, op->reconciled, 1);
        hapax__put_number(w, op->if_attempt, 4);
        hapax__put_number(w, (uint64_t)op->lease_ms, 8);
        return;
    case HAPAX_OP_READ:
        return;
    case HAPAX_OP_IMPORT:
        put_import(w, op);
        return;
    default:
        assert(op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL ||
               op->kind == HAPAX_OP_RESOLVE);
    }
    hapax__put_number(w, op->outcome.body_kept, 1);
    hapax__put_number(w, (uint64_t)op->outcome.status, 2);
    if (op->kind == HAPAX_OP_FAIL) {
        hapax__put_number(w, op->ran, 1);
        hapax__put_number(w, op->as_unknown, 1);
        hapax__put_number(w, op->died, 1);
        hapax__put_number(w, (uint64_t)op->kept_ms, 8);
    } else if (op->kind == HAPAX_OP_COMPLETE) {
        hapax__put_number(w, (uint64_t)op->kept_ms, 8);
        hapax__put_number(w, (uint64_t)op->tombstone_ms, 8);
    } else if (op->kind == HAPAX_OP_RESOLVE) {
        hapax__put_number(w, (uint64_t)op->resolve, 1);
        hapax__put_number(w, op->force, 1);
        hapax__put_number(w, op->if_attempt, 4);
        hapax__put_number(w, (uint64_t)op->if_updated_us, 8);
        hapax__put(w, op->by.ptr, op->by.len);
    }
}

static void end_fixed(struct hapax__redis_args *out, const struct hapax__writer *w)
{
    out->args[0] = (struct hapax_span){out->fixed, sizeof(out->fixed) - w->left};
    out->count = 1;
}

void hapax__redis_pack(struct hapax__redis_args *out, const struct hapax_op *op, const char *prefix)
{
    struct hapax__writer w = {out->fixed, sizeof(out->fixed)};
    struct hapax_mark mark = {0};

    if (op->kind != HAPAX_OP_READ && op->kind != HAPAX_OP_IMPORT)
        hapax__mark(&mark, &op->token);
    put_keys(out, prefix, &op->id);
    hapax__put_number(&w, (uint64_t)op->kind, 1);
    hapax__put(&w, mark.bytes, sizeof(mark.bytes));
    put_fields(&w, op);
    end_fixed(out, &w);
    if (op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL ||
        op->kind == HAPAX_OP_RESOLVE || op->kind == HAPAX_OP_IMPORT) {
        out->args[1] = op->outcome.headers;
        out->args[2] = op->outcome.body;
        out->count = 3;
    }
}

void hapax__redis_pack_lookup(struct hapax__redis_args *out, const struct hapax_id *id,
                              const char *prefix, unsigned states)
{
    struct hapax__writer w = {out->fixed, sizeof(out->fixed)};

    put_keys(out, prefix, id);
    hapax__put_number(&w, KIND_LOOKUP, 1);
    if (states != 0 && states != HAPAX_STATES_ALL)
        for (unsigned state = HAPAX_STATE_STARTED; state <= HAPAX_STATE_UNKNOWN; state++)
            hapax__put_number(&w, (states & 1u << state) != 0, 1);
    end_fixed(out, &w);
}

size_t hapax__redis_argc(const struct hapax__redis_args *const *ops, size_t n)
{
    size_t count = 3;

    for (size_t i = 0; i < n; i++)
        count += 2 + ops[i]->count;
    return count;
}

static struct hapax_span number(char *out, size_t size, size_t value)
{
    int len = snprintf(out, size, "%zu", value);

    assert(len > 0 && (size_t)len < size);
    return (struct hapax_span){(const uint8_t *)out, (size_t)len};
}

void hapax__redis_fill(struct hapax_span *spans, struct hapax__redis_numbers *numbers,
                       const struct hapax__redis_args *const *ops, size_t n, size_t reply_max,
                       bool waits, bool cluster)
{
    *spans++ = number(numbers->keys, sizeof(numbers->keys), 2 * n);
    for (size_t i = 0; i < n; i++) {
        const struct hapax_span key = {ops[i]->key, ops[i]->key_len};
        const struct hapax_span grave = {ops[i]->grave, ops[i]->grave_len};

        *spans++ = key;
        *spans++ = cluster ? key : grave;
    }
    *spans++ = number(numbers->bytes, sizeof(numbers->bytes), reply_max);
    *spans++ = hapax_str(waits ? "1" : "0");
    for (size_t i = 0; i < n; i++)
        for (size_t a = 0; a < ops[i]->count; a++)
            *spans++ = ops[i]->args[a];
}

/* ---- records ------------------------------------------------------------------------- */

static bool take_bit(struct hapax__reader *r)
{
    unsigned bit = hapax__take_u8(r);

    r->bad |= bit > 1;
    return bit == 1;
}

static int64_t take_time(struct hapax__reader *r)
{
    uint64_t value = hapax__take_u64(r);

    r->bad |= value > INT64_MAX;
    return (int64_t)value;
}

static void take_fields(struct hapax__reader *r, struct hapax_record *out)
{
    out->state = (enum hapax_state)hapax__take_u8(r);
    out->hold = take_bit(r);
    out->stale = take_bit(r);
    out->ran = take_bit(r);
    out->reruns = take_bit(r);
    out->outcome.body_kept = take_bit(r);
    out->outcome.status = hapax__take_u16(r);
    out->attempt = hapax__take_u32(r);
    out->spent = hapax__take_u32(r);
    out->fence = hapax__take_u64(r);
    out->created_us = take_time(r);
    out->updated_us = take_time(r);
    out->lease_until_us = take_time(r);
    out->expires_us = take_time(r);
    out->retention_ms = take_time(r);
    if (out->retention_ms == 0)
        out->retention_ms = HAPAX_FOREVER_MS;
    out->resolved_us = take_time(r);
}

/* Reads the record that a reply shows, without its token. False: the script makes no such reply. */
static bool take_record(struct hapax_record *out, struct hapax_span bytes, bool whole)
{
    struct hapax__reader r = {bytes.ptr, bytes.len, false};
    size_t scope_len, by_len, owner_len, what_len, headers_len, body_len;

    take_fields(&r, out);
    headers_len = hapax__take_u32(&r);
    body_len = hapax__take_u32(&r);
    scope_len = hapax__take_u8(&r);
    by_len = hapax__take_u8(&r);
    owner_len = hapax__take_u8(&r);
    what_len = hapax__take_u8(&r);
    out->replaced_state = (enum hapax_state)hapax__take_u8(&r);
    out->replaced_status = hapax__take_u16(&r);
    hapax__take_into(&r, out->fingerprint.bytes, sizeof(out->fingerprint.bytes));
    hapax__take_into(&r, out->caller.bytes, sizeof(out->caller.bytes));
    if (owner_len > 0)
        hapax__take_into(&r, out->owner.bytes, sizeof(out->owner.bytes));
    out->scope = hapax__take(&r, scope_len);
    out->what = hapax__take(&r, what_len);
    out->resolved_by = hapax__take(&r, by_len);
    if (whole) {
        out->outcome.headers = hapax__take(&r, headers_len);
        out->outcome.body = hapax__take(&r, body_len);
    }
    return !r.bad && r.left == 0 && out->state >= HAPAX_STATE_STARTED &&
           out->state <= HAPAX_STATE_UNKNOWN && out->outcome.status <= 999 &&
           (owner_len == 0 || owner_len == sizeof(out->owner.bytes)) &&
           out->replaced_state <= HAPAX_STATE_UNKNOWN && out->replaced_status <= 999 &&
           by_len <= HAPAX_BY_MAX && headers_len <= HAPAX_HEADERS_MAX &&
           body_len <= HAPAX_BODY_MAX && out->attempt < UINT32_MAX && out->fence < UINT64_MAX;
}

enum hapax_error hapax__redis_unreadable(char text[HAPAX_TEXT_MAX], const struct hapax_id *id,
                                         enum hapax_error error)
{
    uint8_t hex[HAPAX__REDIS_KEY_MAX];
    size_t len = hapax__redis_key(hex, "", id);

    return hapax__fail(text, error, "cannot read record \"%.*s\": %s", (int)len, (const char *)hex,
                       error == HAPAX_ERR_CORRUPT ? "it is damaged"
                                                  : "a newer version of hapax wrote it");
}

/* ---- answers ------------------------------------------------------------------------- */

static struct hapax_span bytes_of(const struct hapax__resp *reply)
{
    if (reply->type == HAPAX__RESP_STRING)
        return (struct hapax_span){(const uint8_t *)reply->str, reply->len};
    return (struct hapax_span){NULL, 0};
}

/* Reads a number of digits alone. False: it is none, or over the limit. */
static bool read_number(int64_t *out, const struct hapax__resp *reply, int64_t max)
{
    struct hapax_span digits = bytes_of(reply);
    int64_t value = 0;

    for (size_t i = 0; i < digits.len; i++) {
        if (digits.ptr[i] < '0' || digits.ptr[i] > '9' || value > (max - 9) / 10)
            return false;
        value = value * 10 + (digits.ptr[i] - '0');
    }
    *out = value;
    return digits.len > 0;
}

static bool read_time(int64_t *now_us, const struct hapax__resp *reply)
{
    int64_t seconds, us;

    if (!read_number(&seconds, reply->element[0], INT64_C(1) << 32) ||
        !read_number(&us, reply->element[1], 1000009) || us > 999999)
        return false;
    *now_us = seconds * 1000000 + us;
    return *now_us > 0;
}

static enum hapax__redis_answer answer_error(struct hapax_op *op, enum hapax_error error)
{
    op->verdict = HAPAX_NO_VERDICT;
    op->error = error;
    return HAPAX__REDIS_ANSWERED;
}

/* Whether the error is a missing permission: no repeat can mend that. */
static bool not_allowed(const char *words, size_t len)
{
    return (len >= 6 && memcmp(words, "NOPERM", 6) == 0) || memmem(words, len, "ACL failure", 11) ||
           memmem(words, len, "user executing the script", 25);
}

static enum hapax__redis_answer answer_refused(struct hapax_op *op, const struct hapax__resp *why,
                                               char text[HAPAX_TEXT_MAX])
{
    struct hapax_span words = bytes_of(why);
    int len = words.len < 160 ? (int)words.len : 160;
    bool refused;

    if (!words.ptr || words.len == 0)
        return HAPAX__REDIS_NONSENSE;
    refused = not_allowed((const char *)words.ptr, words.len);
    return answer_error(op, hapax__fail(text, refused ? HAPAX_ERR_REFUSED : HAPAX_ERR_UNAVAILABLE,
                                        "redis refused it: %.*s", len, (const char *)words.ptr));
}

static enum hapax__redis_answer no_verdict(struct hapax_op *op, long long code,
                                           const struct hapax__resp *why, size_t *need,
                                           char text[HAPAX_TEXT_MAX])
{
    int64_t bytes;

    switch (code) {
    case SAID_REFUSED:
        return answer_refused(op, why, text);
    case SAID_CORRUPT:
        return answer_error(op, hapax__redis_unreadable(text, &op->id, HAPAX_ERR_CORRUPT));
    case SAID_UNSUPPORTED:
        return answer_error(op, hapax__redis_unreadable(text, &op->id, HAPAX_ERR_UNSUPPORTED));
    case SAID_LATER:
        if (!read_number(&bytes, why, INT64_C(1) << 40))
            return HAPAX__REDIS_NONSENSE;
        *need = (size_t)bytes;
        return HAPAX__REDIS_LATER;
    default:
        return HAPAX__REDIS_NONSENSE;
    }
}

/* Whether the verdict is one of this kind of op: LIST looks up each record as READ does. */
static unsigned sayable(const struct hapax_op *op)
{
    assert(op->kind != HAPAX_OP_PURGE);
    return hapax__verdicts_of(op->kind == HAPAX_OP_LIST ? HAPAX_OP_READ : op->kind);
}

/* Whether an answer may come without a record: an absent record has none, and neither has one
 * that was forgotten although it could not be read. */
static bool may_lack_record(const struct hapax_op *op, enum hapax_verdict verdict)
{
    return verdict == HAPAX_ABSENT ||
           (verdict == HAPAX_LOST && op->kind != HAPAX_OP_CLAIM && op->kind != HAPAX_OP_RESOLVE) ||
           (verdict == HAPAX_OK && op->kind == HAPAX_OP_RESOLVE &&
            op->resolve == HAPAX_RESOLVE_FORGET && op->force);
}

/* Whether a record in this state can be what the verdict shows. */
static bool state_fits(enum hapax_verdict verdict, enum hapax_state state)
{
    switch (verdict) {
    case HAPAX_CLAIMED:
    case HAPAX_IN_FLIGHT:
        return state == HAPAX_STATE_STARTED;
    case HAPAX_COMPLETED:
        return state == HAPAX_STATE_COMPLETED;
    case HAPAX_FAILED:
        return state == HAPAX_STATE_FAILED;
    case HAPAX_UNKNOWN:
        return state == HAPAX_STATE_UNKNOWN;
    default:
        return true;
    }
}

static enum hapax__redis_answer verdict_of(struct hapax_op *op, long long code,
                                           const struct hapax__resp *shown)
{
    enum hapax_verdict verdict = (enum hapax_verdict)(code & VERDICT_MASK);
    unsigned differs = (unsigned)(code >> DIFFERS_SHIFT) & 3;
    struct hapax_record record = {.id = op->id};

    if (!(sayable(op) & 1u << verdict) || (code & SHOWN && code & OWN) ||
        (differs != 0) != (verdict == HAPAX_MISMATCH) || differs > HAPAX_DIFFERS_CALLER)
        return HAPAX__REDIS_NONSENSE;
    if (shown->type == HAPAX__RESP_NIL) {
        if (!may_lack_record(op, verdict))
            return HAPAX__REDIS_NONSENSE;
    } else if (shown->type != HAPAX__RESP_STRING || verdict == HAPAX_ABSENT) {
        return HAPAX__REDIS_NONSENSE;
    } else {
        if (!take_record(&record, bytes_of(shown), code & SHOWN) ||
            !state_fits(verdict, record.state))
            return HAPAX__REDIS_NONSENSE;
        if (code & OWN)
            record.outcome = op->outcome;
        else if (!(code & SHOWN) && op->kind != HAPAX_OP_LIST)
            record.outcome = (struct hapax_outcome){0};
    }
    op->verdict = verdict;
    op->error = HAPAX_ERR_NONE;
    op->differs = (enum hapax_differs)differs;
    op->record = record;
    return HAPAX__REDIS_ANSWERED;
}

enum hapax__redis_answer hapax__redis_answer(struct hapax_op *op, const struct hapax__resp *reply,
                                             size_t i, bool *if_replicated, size_t *need,
                                             char text[HAPAX_TEXT_MAX])
{
    const struct hapax__resp *said, *shown;
    int64_t now_us;
    enum hapax__redis_answer result;

    *if_replicated = false;
    *need = 0;
    if (reply->type != HAPAX__RESP_ARRAY || reply->elements < HEAD_REPLY ||
        reply->elements % 2 != 0 || !read_time(&now_us, reply))
        return HAPAX__REDIS_NONSENSE;
    if (HEAD_REPLY + 2 * i >= reply->elements)
        return HAPAX__REDIS_LATER;
    said = reply->element[HEAD_REPLY + 2 * i];
    shown = reply->element[HEAD_REPLY + 2 * i + 1];
    if (said->type != HAPAX__RESP_INTEGER || said->integer > CODE_MAX)
        return HAPAX__REDIS_NONSENSE;
    if (said->integer <= 0)
        return no_verdict(op, said->integer, shown, need, text);
    result = verdict_of(op, said->integer, shown);
    if (result == HAPAX__REDIS_ANSWERED && op->error == HAPAX_ERR_NONE) {
        op->now_us = now_us;
        *if_replicated = said->integer & REPLICATED;
    }
    return result;
}
