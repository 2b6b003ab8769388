/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame codec. The invariant: whatever bytes come in, what is taken from them lies inside them;
 * and bytes that are put are taken again as the same values. An op and an answer each begin with
 * their length, so that an unknown kind of op costs that op and not the connection.
 *
 * Records go out in their stored form (core/record.h) with their checksum: there is one codec to
 * fuzz, and a record that was damaged on its way is found. Rejected: a general serialiser. It would
 * bring a library, a schema and allocations for nine fixed layouts.
 *
 * A peer of another version must still be told so in words: HELLO and FAULT keep their layout in
 * every version, and a HELLO may be longer than this version knows. The version before is spoken,
 * too. Its frames are those of this one without what is new, so there is one decoder; a client that
 * speaks it leaves out the ops that need more. Rejected: two decoders, of which the older one
 * would be met in an upgrade alone.
 */
#include "frame.h"

#include "base/arena.h"
#include "core/machine.h"
#include "core/record.h"
#include "store/types.h"

enum {
    FLAG_RERUN_COMPLETED = 1, /* CLAIM */
    FLAG_OWNED = 2, /* CLAIM, LIST: the owner's digest follows */
    FLAG_SAYS_KEPT = 4, /* CLAIM */
    FLAG_RECONCILED = 1, /* RENEW */
    FLAG_RAN = 1, /* FAIL */
    FLAG_AS_UNKNOWN = 2,
    FLAG_DIED = 4,
    FLAG_FORCE = 1, /* RESOLVE */
    FLAG_IF_UPDATED = 2, /* a time follows */
    FLAG_SCRUB = 1 /* PURGE */
};

enum {
    HAS_RECORD = 1, /* of an answer */
    HAS_RECORDS = 2, /* LIST */
    HAS_PURGED = 4,
    HAS_MORE = 8,
    HAS_ECHO = 16, /* the record's headers and body are those of the op, and left out */
    HAS_DAMAGE = 32, /* LIST, PURGE: ids that were passed over, from and to */
    HAS_ALL = 63
};

#define MAGIC      "hpxk"
#define MAGIC_SIZE 4u
#define ID_SIZE    sizeof(((struct hapax_id *)NULL)->bytes)
#define TOKEN_SIZE sizeof(((struct hapax_token *)NULL)->bytes)
/* Who asks by a token: id, token, fingerprint, caller. */
#define HOLDER_SIZE (ID_SIZE + TOKEN_SIZE + 2 * DIGEST_SIZE)
#define DIGEST_SIZE sizeof(((struct hapax_digest *)NULL)->bytes)

static void put_span(struct hapax__writer *w, struct hapax_span span, size_t width)
{
    hapax__put_number(w, span.len, width);
    hapax__put(w, span.ptr, span.len);
}

static struct hapax_span take_span(struct hapax__reader *r, size_t width)
{
    return hapax__take(r, (size_t)hapax__take_number(r, width));
}

static bool whole(const struct hapax__reader *r)
{
    return !r->bad && r->left == 0;
}

static struct hapax__reader reader_of(struct hapax_span span)
{
    return (struct hapax__reader){span.ptr, span.len, false};
}

static unsigned take_flags(struct hapax__reader *r, unsigned known)
{
    unsigned flags = hapax__take_u8(r);

    r->bad |= (flags & ~known) != 0;
    return flags;
}

static struct hapax_span text_span(const char *text)
{
    struct hapax_span span = hapax_str(text);

    if (span.len > UINT8_MAX)
        span.len = UINT8_MAX;
    return span;
}

/* Takes foreign text for a terminal or a log: each byte that is no printable ASCII becomes '?'. */
static void take_text(struct hapax__reader *r, char text[HAPAX_TEXT_MAX])
{
    struct hapax_span span = take_span(r, 1);

    for (size_t i = 0; i < span.len; i++)
        text[i] = span.ptr[i] >= 0x20 && span.ptr[i] < 0x7f ? (char)span.ptr[i] : '?';
    text[span.len] = '\0';
}

/* Takes a part that has its length before it. */
static struct hapax__reader take_part(struct hapax__reader *r)
{
    struct hapax_span span = take_span(r, 4);

    return (struct hapax__reader){span.ptr, span.len, r->bad};
}

void hapax__frame_begin(struct hapax__writer *w, enum hapax__frame_kind kind, size_t size)
{
    assert(kind >= HAPAX__FRAME_HELLO && kind <= HAPAX__FRAME_FAULT);
    assert(size < HAPAX__FRAME_MAX);
    hapax__put_number(w, size + 1, 4);
    hapax__put_number(w, (uint64_t)kind, 1);
}

/* ---- greeting ------------------------------------------------------------------------ */

static void put_greeting(struct hapax__writer *w, const struct hapax__hello *hello)
{
    assert(hello->frame_max >= HAPAX__FRAME_LEAST);
    hapax__put(w, MAGIC, MAGIC_SIZE);
    hapax__put_number(w, hello->version, 2);
    hapax__put_number(w, hello->frame_max, 4);
}

void hapax__frame_put_hello(struct hapax__writer *w, const struct hapax__hello *hello)
{
    hapax__frame_begin(w, HAPAX__FRAME_HELLO, HAPAX__FRAME_HELLO_SIZE);
    put_greeting(w, hello);
}

void hapax__frame_put_welcome(struct hapax__writer *w, const struct hapax__hello *hello)
{
    assert(hello->batch_max >= 1 && hello->batch_max <= HAPAX_BATCH_MAX);
    hapax__frame_begin(w, HAPAX__FRAME_WELCOME, HAPAX__FRAME_WELCOME_SIZE);
    put_greeting(w, hello);
    hapax__put_number(w, hello->batch_max, 2);
    hapax__put_number(w, hello->body_max, 4);
    hapax__put_number(w, hello->pid, 4);
}

static bool take_greeting(struct hapax__reader *r, struct hapax__hello *out)
{
    struct hapax_span magic = hapax__take(r, MAGIC_SIZE);

    if (r->bad || memcmp(magic.ptr, MAGIC, MAGIC_SIZE) != 0)
        return false;
    out->version = hapax__take_u16(r);
    out->frame_max = hapax__take_u32(r);
    return out->version > 0 && out->frame_max >= HAPAX__FRAME_LEAST;
}

/* The HELLO of a later version may be longer: the bytes behind are ignored. */
bool hapax__frame_take_hello(struct hapax_span payload, struct hapax__hello *out)
{
    struct hapax__reader r = reader_of(payload);

    memset(out, 0, sizeof(*out));
    return take_greeting(&r, out) && !r.bad;
}

bool hapax__frame_take_welcome(struct hapax_span payload, struct hapax__hello *out)
{
    struct hapax__reader r = reader_of(payload);

    memset(out, 0, sizeof(*out));
    if (!take_greeting(&r, out))
        return false;
    out->batch_max = hapax__take_u16(&r);
    out->body_max = hapax__take_u32(&r);
    out->pid = hapax__take_u32(&r);
    return whole(&r) && out->batch_max >= 1 && out->batch_max <= HAPAX_BATCH_MAX;
}

/* ---- requests ------------------------------------------------------------------------ */

void hapax__frame_put_request(struct hapax__writer *w, const struct hapax__request *request,
                              size_t size)
{
    assert(request->count >= 1 && request->count <= HAPAX_BATCH_MAX);
    hapax__frame_begin(w, HAPAX__FRAME_REQUEST, HAPAX__FRAME_REQUEST_SIZE + size);
    hapax__put_number(w, request->seq, 4);
    hapax__put_number(w, request->wait_ms, 4);
    hapax__put_number(w, request->count, 2);
}

bool hapax__frame_take_request(struct hapax__reader *r, struct hapax__request *out)
{
    out->seq = hapax__take_u32(r);
    out->wait_ms = hapax__take_u32(r);
    out->count = hapax__take_u16(r);
    return !r->bad && out->count >= 1 && out->count <= HAPAX_BATCH_MAX;
}

static size_t outcome_size(const struct hapax_outcome *outcome)
{
    return 2 + 1 + 4 + outcome->headers.len + 4 + outcome->body.len;
}

static void put_outcome(struct hapax__writer *w, const struct hapax_outcome *outcome)
{
    assert(outcome->status >= 0 && outcome->status <= 999);
    hapax__put_number(w, (uint64_t)outcome->status, 2);
    hapax__put_number(w, outcome->body_kept, 1);
    put_span(w, outcome->headers, 4);
    put_span(w, outcome->body, 4);
}

static void take_outcome(struct hapax__reader *r, struct hapax_outcome *out)
{
    out->status = hapax__take_u16(r);
    out->body_kept = take_flags(r, 1);
    out->headers = take_span(r, 4);
    out->body = take_span(r, 4);
}

/* The flags of a CLAIM or LIST, and the owner's digest where there is one. */
static size_t owner_size(const struct hapax_op *op)
{
    return 1 + (hapax__owned(&op->owner) ? DIGEST_SIZE : 0);
}

static void put_owner(struct hapax__writer *w, const struct hapax_op *op, unsigned flags)
{
    bool owned = hapax__owned(&op->owner);

    hapax__put_number(w, flags | (owned ? FLAG_OWNED : 0u), 1);
    if (owned)
        hapax__put(w, op->owner.bytes, DIGEST_SIZE);
}

static unsigned take_owner(struct hapax__reader *r, struct hapax_op *op, unsigned known)
{
    unsigned flags = take_flags(r, known | FLAG_OWNED);

    if (flags & FLAG_OWNED)
        hapax__take_into(r, op->owner.bytes, DIGEST_SIZE);
    r->bad |= flags & FLAG_OWNED && !hapax__owned(&op->owner);
    return flags;
}

/* Times that an end sets stand behind its outcome, where it sets some. */
static size_t kept_size(const struct hapax_op *op)
{
    return op->kept_ms > 0 || op->tombstone_ms > 0 ? 2 * 8 : 0;
}

static void put_kept(struct hapax__writer *w, const struct hapax_op *op)
{
    if (kept_size(op) == 0)
        return;
    hapax__put_number(w, (uint64_t)op->kept_ms, 8);
    hapax__put_number(w, (uint64_t)op->tombstone_ms, 8);
}

static void take_kept(struct hapax__reader *r, struct hapax_op *op)
{
    if (r->left == 0)
        return;
    op->kept_ms = (int64_t)hapax__take_u64(r);
    op->tombstone_ms = (int64_t)hapax__take_u64(r);
    r->bad |= kept_size(op) == 0;
}

/* How many bytes an op has behind its kind. */
static size_t asked_size(const struct hapax_op *op)
{
    switch (op->kind) {
    case HAPAX_OP_CLAIM:
        return HOLDER_SIZE + 8 + 8 + 1 + 4 + owner_size(op) + 1 + op->scope.len + 1 + op->what.len;
    case HAPAX_OP_RENEW:
        return HOLDER_SIZE + 8 + 1 + 4;
    case HAPAX_OP_COMPLETE:
        return HOLDER_SIZE + outcome_size(&op->outcome) + kept_size(op);
    case HAPAX_OP_FAIL:
        return HOLDER_SIZE + 1 + outcome_size(&op->outcome) + kept_size(op);
    case HAPAX_OP_READ:
        return ID_SIZE + 2 * DIGEST_SIZE;
    case HAPAX_OP_LIST:
        return 1 + 8 + 2 + ID_SIZE + owner_size(op) + 1 + op->scope.len;
    case HAPAX_OP_PURGE:
        return 2 + ID_SIZE + op->scrub;
    case HAPAX_OP_IMPORT:
        return ID_SIZE + 2 + op->import.len + outcome_size(&op->outcome);
    default:
        assert(op->kind == HAPAX_OP_RESOLVE);
        return ID_SIZE + TOKEN_SIZE + 1 + 1 + 4 + (op->if_updated_us ? 8 : 0) + 1 + op->by.len +
               outcome_size(&op->outcome);
    }
}

size_t hapax__frame_op_size(const struct hapax_op *op)
{
    return 4 + 1 + asked_size(op);
}

unsigned hapax__frame_op_version(const struct hapax_op *op)
{
    bool newer;

    switch (op->kind) {
    case HAPAX_OP_CLAIM:
        newer = op->says_kept;
        break;
    case HAPAX_OP_COMPLETE:
    case HAPAX_OP_FAIL:
        newer = kept_size(op) > 0;
        break;
    case HAPAX_OP_RESOLVE:
        newer = op->if_updated_us != 0;
        break;
    default:
        newer = op->kind == HAPAX_OP_IMPORT; /* the bytes are old, the judgement is not */
    }
    return newer ? 4 : HAPAX__FRAME_OLDEST;
}

static void put_request(struct hapax__writer *w, const struct hapax_op *op)
{
    hapax__put(w, op->fingerprint.bytes, DIGEST_SIZE);
    hapax__put(w, op->caller.bytes, DIGEST_SIZE);
}

static void put_holder(struct hapax__writer *w, const struct hapax_op *op)
{
    hapax__put(w, op->id.bytes, ID_SIZE);
    hapax__put(w, op->token.bytes, TOKEN_SIZE);
    put_request(w, op);
}

static void put_claim(struct hapax__writer *w, const struct hapax_op *op)
{
    assert(op->scope.len <= HAPAX_SCOPE_MAX && op->what.len <= HAPAX_WHAT_MAX);
    put_holder(w, op);
    hapax__put_number(w, (uint64_t)op->lease_ms, 8);
    hapax__put_number(w, (uint64_t)op->retention_ms, 8);
    hapax__put_number(w, (uint64_t)op->on_expired, 1);
    hapax__put_number(w, op->attempts_max, 4);
    put_owner(w, op,
              (op->rerun_completed ? FLAG_RERUN_COMPLETED : 0u) |
                  (op->says_kept ? FLAG_SAYS_KEPT : 0u));
    put_span(w, op->scope, 1);
    put_span(w, op->what, 1);
}

static void put_resolve(struct hapax__writer *w, const struct hapax_op *op)
{
    assert(op->by.len <= HAPAX_BY_MAX);
    hapax__put(w, op->id.bytes, ID_SIZE);
    hapax__put(w, op->token.bytes, TOKEN_SIZE);
    hapax__put_number(w, (uint64_t)op->resolve, 1);
    hapax__put_number(w, (op->force ? FLAG_FORCE : 0u) | (op->if_updated_us ? FLAG_IF_UPDATED : 0u),
                      1);
    hapax__put_number(w, op->if_attempt, 4);
    if (op->if_updated_us)
        hapax__put_number(w, (uint64_t)op->if_updated_us, 8);
    put_span(w, op->by, 1);
    put_outcome(w, &op->outcome);
}

void hapax__frame_put_op(struct hapax__writer *w, const struct hapax_op *op)
{
    unsigned failed = (op->ran ? FLAG_RAN : 0u) | (op->as_unknown ? FLAG_AS_UNKNOWN : 0u) |
                      (op->died ? FLAG_DIED : 0u);

    hapax__put_number(w, 1 + asked_size(op), 4);
    hapax__put_number(w, (uint64_t)op->kind, 1);
    switch (op->kind) {
    case HAPAX_OP_CLAIM:
        put_claim(w, op);
        return;
    case HAPAX_OP_RENEW:
        put_holder(w, op);
        hapax__put_number(w, (uint64_t)op->lease_ms, 8);
        hapax__put_number(w, op->reconciled ? FLAG_RECONCILED : 0, 1);
        hapax__put_number(w, op->if_attempt, 4);
        return;
    case HAPAX_OP_COMPLETE:
        put_holder(w, op);
        put_outcome(w, &op->outcome);
        put_kept(w, op);
        return;
    case HAPAX_OP_FAIL:
        put_holder(w, op);
        hapax__put_number(w, failed, 1);
        put_outcome(w, &op->outcome);
        put_kept(w, op);
        return;
    case HAPAX_OP_READ:
        hapax__put(w, op->id.bytes, ID_SIZE);
        put_request(w, op);
        return;
    case HAPAX_OP_LIST:
        hapax__put_number(w, op->states, 1);
        hapax__put_number(w, (uint64_t)op->older_ms, 8);
        hapax__put_number(w, op->limit, 2);
        hapax__put(w, op->cursor.bytes, ID_SIZE);
        put_owner(w, op, 0);
        put_span(w, op->scope, 1);
        return;
    case HAPAX_OP_PURGE:
        hapax__put_number(w, op->limit, 2);
        hapax__put(w, op->cursor.bytes, ID_SIZE);
        if (op->scrub)
            hapax__put_number(w, FLAG_SCRUB, 1);
        return;
    case HAPAX_OP_IMPORT:
        hapax__put(w, op->id.bytes, ID_SIZE);
        put_span(w, op->import, 2);
        put_outcome(w, &op->outcome);
        return;
    default:
        put_resolve(w, op);
    }
}

static void take_request(struct hapax__reader *r, struct hapax_op *op)
{
    hapax__take_into(r, op->fingerprint.bytes, DIGEST_SIZE);
    hapax__take_into(r, op->caller.bytes, DIGEST_SIZE);
}

static void take_holder(struct hapax__reader *r, struct hapax_op *op)
{
    hapax__take_into(r, op->id.bytes, ID_SIZE);
    hapax__take_into(r, op->token.bytes, TOKEN_SIZE);
    take_request(r, op);
}

static void take_claim(struct hapax__reader *r, struct hapax_op *op)
{
    unsigned flags;

    take_holder(r, op);
    op->lease_ms = (int64_t)hapax__take_u64(r);
    op->retention_ms = (int64_t)hapax__take_u64(r);
    op->on_expired = (enum hapax_on_expired)hapax__take_u8(r);
    op->attempts_max = hapax__take_u32(r);
    flags = take_owner(r, op, FLAG_RERUN_COMPLETED | FLAG_SAYS_KEPT);
    op->rerun_completed = flags & FLAG_RERUN_COMPLETED;
    op->says_kept = flags & FLAG_SAYS_KEPT;
    op->scope = take_span(r, 1);
    op->what = take_span(r, 1);
}

static void take_fail(struct hapax__reader *r, struct hapax_op *op)
{
    unsigned flags;

    take_holder(r, op);
    flags = take_flags(r, FLAG_RAN | FLAG_AS_UNKNOWN | FLAG_DIED);
    op->ran = flags & FLAG_RAN;
    op->as_unknown = flags & FLAG_AS_UNKNOWN;
    op->died = flags & FLAG_DIED;
    take_outcome(r, &op->outcome);
    take_kept(r, op);
}

static void take_resolve(struct hapax__reader *r, struct hapax_op *op)
{
    unsigned flags;

    hapax__take_into(r, op->id.bytes, ID_SIZE);
    hapax__take_into(r, op->token.bytes, TOKEN_SIZE);
    op->resolve = (enum hapax_resolve)hapax__take_u8(r);
    flags = take_flags(r, FLAG_FORCE | FLAG_IF_UPDATED);
    op->force = flags & FLAG_FORCE;
    op->if_attempt = hapax__take_u32(r);
    if (flags & FLAG_IF_UPDATED) {
        op->if_updated_us = (int64_t)hapax__take_u64(r);
        r->bad |= op->if_updated_us <= 0;
    }
    op->by = take_span(r, 1);
    take_outcome(r, &op->outcome);
}

/* False: no kind of op has this number. */
static bool take_asked(struct hapax__reader *r, struct hapax_op *op)
{
    switch (op->kind) {
    case HAPAX_OP_CLAIM:
        take_claim(r, op);
        return true;
    case HAPAX_OP_RENEW:
        take_holder(r, op);
        op->lease_ms = (int64_t)hapax__take_u64(r);
        op->reconciled = take_flags(r, FLAG_RECONCILED);
        op->if_attempt = hapax__take_u32(r);
        return true;
    case HAPAX_OP_COMPLETE:
        take_holder(r, op);
        take_outcome(r, &op->outcome);
        take_kept(r, op);
        return true;
    case HAPAX_OP_FAIL:
        take_fail(r, op);
        return true;
    case HAPAX_OP_READ:
        hapax__take_into(r, op->id.bytes, ID_SIZE);
        take_request(r, op);
        return true;
    case HAPAX_OP_LIST:
        op->states = hapax__take_u8(r);
        op->older_ms = (int64_t)hapax__take_u64(r);
        op->limit = hapax__take_u16(r);
        hapax__take_into(r, op->cursor.bytes, ID_SIZE);
        (void)take_owner(r, op, 0);
        op->scope = take_span(r, 1);
        return true;
    case HAPAX_OP_PURGE:
        op->limit = hapax__take_u16(r);
        hapax__take_into(r, op->cursor.bytes, ID_SIZE);
        op->scrub = r->left > 0;
        r->bad |= op->scrub && hapax__take_u8(r) != FLAG_SCRUB;
        return true;
    case HAPAX_OP_RESOLVE:
        take_resolve(r, op);
        return true;
    case HAPAX_OP_IMPORT:
        hapax__take_into(r, op->id.bytes, ID_SIZE);
        op->import = take_span(r, 2);
        take_outcome(r, &op->outcome);
        return true;
    default:
        return false;
    }
}

bool hapax__frame_take_op(struct hapax__reader *r, struct hapax_op *op)
{
    struct hapax__reader part = take_part(r);

    memset(op, 0, sizeof(*op));
    op->kind = (enum hapax_op_kind)hapax__take_u8(&part);
    if (part.bad)
        return false;
    if (!take_asked(&part, op)) {
        op->error = HAPAX_ERR_UNSUPPORTED;
        return true;
    }
    return whole(&part);
}

/* ---- replies ------------------------------------------------------------------------- */

void hapax__frame_put_reply(struct hapax__writer *w, const struct hapax__frame_reply *reply,
                            size_t size)
{
    assert(reply->count >= 1 && reply->first + reply->count <= (int)HAPAX_BATCH_MAX);
    hapax__frame_begin(w, HAPAX__FRAME_REPLY, HAPAX__FRAME_REPLY_SIZE + size);
    hapax__put_number(w, reply->seq, 4);
    hapax__put_number(w, reply->first, 2);
    hapax__put_number(w, reply->count, 2);
}

bool hapax__frame_take_reply(struct hapax__reader *r, struct hapax__frame_reply *out)
{
    out->seq = hapax__take_u32(r);
    out->first = hapax__take_u16(r);
    out->count = hapax__take_u16(r);
    return !r->bad && out->count >= 1 && (uint32_t)out->first + out->count <= HAPAX_BATCH_MAX;
}

static bool same_place(struct hapax_span a, struct hapax_span b)
{
    return a.len == b.len && (a.len == 0 || a.ptr == b.ptr);
}

/* Whether the answer shows the very bytes that the op asked to store; a lane makes it so. */
static bool echoes(const struct hapax_op *op)
{
    const struct hapax_outcome *shown = &op->record.outcome;

    return (op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_RESOLVE) &&
           shown->headers.len + shown->body.len > 0 &&
           same_place(shown->headers, op->outcome.headers) &&
           same_place(shown->body, op->outcome.body);
}

/* Which parts an answer has. ABSENT, and LOST because of absence, show no record. */
static unsigned parts_of(const struct hapax_op *op)
{
    if (op->verdict == HAPAX_NO_VERDICT)
        return 0;
    if (op->kind == HAPAX_OP_LIST)
        return HAS_RECORDS | (op->more ? HAS_MORE : 0u) | (op->damaged ? HAS_DAMAGE : 0u);
    if (op->kind == HAPAX_OP_PURGE)
        return HAS_PURGED | (op->more ? HAS_MORE : 0u) | (op->damaged ? HAS_DAMAGE : 0u);
    if (op->record.state == HAPAX_STATE_ABSENT)
        return 0;
    return HAS_RECORD | (echoes(op) ? HAS_ECHO : 0u);
}

static size_t record_size(const struct hapax_record *record)
{
    return ID_SIZE + 4 + hapax__record_size(record);
}

static void put_record(struct hapax__writer *w, const struct hapax_record *record)
{
    size_t size = hapax__record_size(record);

    hapax__put(w, record->id.bytes, ID_SIZE);
    hapax__put_number(w, size, 4);
    assert(size <= w->left);
    hapax__record_encode(w->at, record);
    w->at += size;
    w->left -= size;
}

/* The record without the bytes that the op itself has. */
static void put_echo(struct hapax__writer *w, const struct hapax_record *shown)
{
    struct hapax_record record = *shown;

    record.outcome.headers.len = 0;
    record.outcome.body.len = 0;
    put_record(w, &record);
}

/* length · verdict · error · differs · parts · now_us */
#define ANSWER_FIXED (4u + 1 + 1 + 1 + 1 + 8)
#define LIST_FIXED   (ID_SIZE + 2)
#define DAMAGE_SIZE  (2 * ID_SIZE)

void hapax__frame_fit_answer(struct hapax_op *op, size_t max)
{
    size_t size = ANSWER_FIXED + LIST_FIXED + (op->damaged ? DAMAGE_SIZE : 0);
    uint32_t fit;

    if (op->kind != HAPAX_OP_LIST || op->verdict == HAPAX_NO_VERDICT)
        return;
    for (fit = 0; fit < op->count; fit++) {
        size += record_size(&op->records[fit]);
        if (size > max)
            break;
    }
    if (fit == op->count)
        return;
    assert(fit > 0);
    op->count = fit;
    op->next_cursor = op->records[fit - 1].id;
    op->more = true;
    op->damaged = false; /* it lies behind, and will be met again */
}

size_t hapax__frame_answer_size(const struct hapax_op *op, const char *text)
{
    unsigned parts = parts_of(op);
    size_t size = ANSWER_FIXED;

    if (op->error != HAPAX_ERR_NONE)
        size += 1 + text_span(text).len;
    if (parts & HAS_RECORD)
        size += record_size(&op->record);
    if (parts & HAS_ECHO)
        size -= op->record.outcome.headers.len + op->record.outcome.body.len;
    if (parts & HAS_PURGED)
        size += LIST_FIXED + 2;
    if (parts & HAS_DAMAGE)
        size += DAMAGE_SIZE;
    if (parts & HAS_RECORDS) {
        size += LIST_FIXED;
        for (uint32_t i = 0; i < op->count; i++)
            size += record_size(&op->records[i]);
    }
    return size;
}

void hapax__frame_put_answer(struct hapax__writer *w, const struct hapax_op *op, const char *text)
{
    unsigned parts = parts_of(op);
    struct hapax__writer length = {w->at, 4};

    assert((op->verdict == HAPAX_NO_VERDICT) == (op->error != HAPAX_ERR_NONE));
    hapax__put_number(w, 0, 4); /* the length, which is known at the end */
    hapax__put_number(w, (uint64_t)op->verdict, 1);
    hapax__put_number(w, (uint64_t)-op->error, 1);
    hapax__put_number(w, (uint64_t)op->differs, 1);
    hapax__put_number(w, parts, 1);
    hapax__put_number(w, (uint64_t)op->now_us, 8);
    if (op->error != HAPAX_ERR_NONE)
        put_span(w, text_span(text), 1);
    if (parts & HAS_ECHO)
        put_echo(w, &op->record);
    else if (parts & HAS_RECORD)
        put_record(w, &op->record);
    if (parts & (HAS_RECORDS | HAS_PURGED)) {
        assert(op->count <= HAPAX_LIST_MAX && op->purged + op->expired_claims <= HAPAX_LIST_MAX);
        hapax__put(w, op->next_cursor.bytes, ID_SIZE);
        hapax__put_number(w, parts & HAS_RECORDS ? op->count : op->purged, 2);
    }
    if (parts & HAS_PURGED)
        hapax__put_number(w, op->expired_claims, 2);
    if (parts & HAS_RECORDS)
        for (uint32_t i = 0; i < op->count; i++)
            put_record(w, &op->records[i]);
    if (parts & HAS_DAMAGE) {
        hapax__put(w, op->damaged_from.bytes, ID_SIZE);
        hapax__put(w, op->damaged_to.bytes, ID_SIZE);
    }
    hapax__put_number(&length, (uint64_t)(w->at - length.at) - 4, 4);
}

static bool take_record(struct hapax__reader *r, struct hapax_record *out)
{
    struct hapax_id id;
    struct hapax_span bytes;

    hapax__take_into(r, id.bytes, ID_SIZE);
    bytes = take_span(r, 4);
    return !r->bad && bytes.len > 0 && bytes.ptr[0] == HAPAX__RECORD_VERSION &&
           hapax__record_decode(out, &id, bytes) == HAPAX_ERR_NONE;
}

static enum hapax__taken take_records(struct hapax__reader *r, struct hapax_op *op,
                                      struct hapax_arena *arena)
{
    hapax__take_into(r, op->next_cursor.bytes, ID_SIZE);
    op->count = hapax__take_u16(r);
    if (r->bad || op->count > HAPAX_LIST_MAX)
        return HAPAX__TAKEN_MALFORMED;
    op->records = hapax__arena_alloc(arena, op->count * sizeof(*op->records) + 1);
    if (!op->records)
        return HAPAX__TAKEN_NOMEM;
    for (uint32_t i = 0; i < op->count; i++)
        if (!take_record(r, &op->records[i]))
            return HAPAX__TAKEN_MALFORMED;
    return HAPAX__TAKEN;
}

/* Whether the answer may be that a damaged record is gone: there is none to show. */
static bool forgets(const struct hapax_op *op)
{
    return op->kind == HAPAX_OP_RESOLVE && op->resolve == HAPAX_RESOLVE_FORGET && op->force &&
           op->verdict == HAPAX_OK;
}

/* Whether an op of this kind can have this answer: a flow takes a verdict of another kind for a
 * bug. */
static bool plausible(const struct hapax_op *op, unsigned parts)
{
    unsigned scan = parts & (HAS_RECORDS | HAS_PURGED);
    unsigned shows = parts & (HAS_RECORD | HAS_ECHO);

    if (op->verdict > HAPAX_ABSENT || op->error < HAPAX_ERR_REFUSED ||
        op->differs > HAPAX_DIFFERS_CALLER || op->now_us < 0)
        return false;
    if ((op->verdict == HAPAX_NO_VERDICT) != (op->error != HAPAX_ERR_NONE))
        return false;
    if (op->verdict == HAPAX_NO_VERDICT)
        return parts == 0;
    if (!(hapax__verdicts_of(op->kind) & 1u << op->verdict))
        return false;
    if (op->kind == HAPAX_OP_LIST)
        return scan == HAS_RECORDS && !shows;
    if (op->kind == HAPAX_OP_PURGE)
        return scan == HAS_PURGED && !shows;
    if (parts & HAS_RECORD)
        return parts == shows && op->verdict != HAPAX_ABSENT;
    return parts == 0 && (op->verdict == HAPAX_LOST || op->verdict == HAPAX_ABSENT || forgets(op));
}

/* Takes the record of the op's id, and puts back what was left out. */
static bool take_own_record(struct hapax__reader *r, struct hapax_op *op, unsigned parts)
{
    if (!take_record(r, &op->record) || memcmp(&op->record.id, &op->id, sizeof(op->id)) != 0)
        return false;
    if (!(parts & HAS_ECHO))
        return true;
    if (op->record.outcome.headers.len + op->record.outcome.body.len > 0)
        return false;
    op->record.outcome.headers = op->outcome.headers;
    op->record.outcome.body = op->outcome.body;
    return op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_RESOLVE;
}

static enum hapax__taken take_parts(struct hapax__reader *r, struct hapax_op *op, unsigned parts,
                                    struct hapax_arena *arena)
{
    enum hapax__taken taken = HAPAX__TAKEN;

    if (parts & HAS_RECORD)
        return take_own_record(r, op, parts) ? HAPAX__TAKEN : HAPAX__TAKEN_MALFORMED;
    if (op->verdict == HAPAX_LOST)
        op->record.id = op->id;
    op->more = parts & HAS_MORE;
    if (parts & HAS_RECORDS)
        taken = take_records(r, op, arena);
    if (parts & HAS_PURGED) {
        hapax__take_into(r, op->next_cursor.bytes, ID_SIZE);
        op->purged = hapax__take_u16(r);
        op->expired_claims = hapax__take_u16(r);
        r->bad |= op->purged + op->expired_claims > HAPAX_LIST_MAX;
    }
    op->damaged = parts & HAS_DAMAGE;
    if (op->damaged) {
        hapax__take_into(r, op->damaged_from.bytes, ID_SIZE);
        hapax__take_into(r, op->damaged_to.bytes, ID_SIZE);
    }
    return taken;
}

enum hapax__taken hapax__frame_take_answer(struct hapax__reader *r, struct hapax_op *op,
                                           struct hapax_arena *arena, char text[HAPAX_TEXT_MAX])
{
    struct hapax__reader part = take_part(r);
    struct hapax_op answered = *op;
    enum hapax__taken taken;
    unsigned parts;

    answered.verdict = (enum hapax_verdict)hapax__take_u8(&part);
    answered.error = (enum hapax_error) - (int)hapax__take_u8(&part);
    answered.differs = (enum hapax_differs)hapax__take_u8(&part);
    parts = take_flags(&part, HAS_ALL);
    answered.now_us = (int64_t)hapax__take_u64(&part);
    if (part.bad || !plausible(&answered, parts))
        return HAPAX__TAKEN_MALFORMED;
    if (answered.error != HAPAX_ERR_NONE)
        take_text(&part, text);
    taken = take_parts(&part, &answered, parts, arena);
    if (taken == HAPAX__TAKEN && !whole(&part))
        taken = HAPAX__TAKEN_MALFORMED;
    if (taken == HAPAX__TAKEN)
        *op = answered;
    return taken;
}

/* ---- info, fault --------------------------------------------------------------------- */

size_t hapax__frame_info_size(const struct hapax__info *info)
{
    size_t size = HAPAX__FRAME_HEAD + 4 * 4 + 1 + info->scheme.len + 1;

    for (uint8_t i = 0; i < info->lines; i++)
        size += 1 + 2 + info->line[i].text.len;
    return size;
}

void hapax__frame_put_info(struct hapax__writer *w, const struct hapax__info *info)
{
    assert(info->lines <= HAPAX__FRAME_LINES_MAX && info->scheme.len <= UINT8_MAX);
    hapax__frame_begin(w, HAPAX__FRAME_INFO, hapax__frame_info_size(info) - HAPAX__FRAME_HEAD);
    hapax__put_number(w, info->seq, 4);
    hapax__put_number(w, info->pid, 4);
    hapax__put_number(w, info->queued, 4);
    hapax__put_number(w, info->clients, 4);
    put_span(w, info->scheme, 1);
    hapax__put_number(w, info->lines, 1);
    for (uint8_t i = 0; i < info->lines; i++) {
        assert(info->line[i].text.len <= HAPAX_TEXT_MAX);
        hapax__put_number(w, info->line[i].danger, 1);
        put_span(w, info->line[i].text, 2);
    }
}

bool hapax__frame_take_info(struct hapax_span payload, struct hapax__info *out)
{
    struct hapax__reader r = reader_of(payload);

    memset(out, 0, sizeof(*out));
    out->seq = hapax__take_u32(&r);
    out->pid = hapax__take_u32(&r);
    out->queued = hapax__take_u32(&r);
    out->clients = hapax__take_u32(&r);
    out->scheme = take_span(&r, 1);
    out->lines = hapax__take_u8(&r);
    if (r.bad || out->lines > HAPAX__FRAME_LINES_MAX)
        return false;
    for (uint8_t i = 0; i < out->lines; i++) {
        out->line[i].danger = take_flags(&r, 1);
        out->line[i].text = take_span(&r, 2);
        r.bad |= out->line[i].text.len > HAPAX_TEXT_MAX;
    }
    return whole(&r);
}

void hapax__frame_put_ask(struct hapax__writer *w, uint32_t seq)
{
    hapax__frame_begin(w, HAPAX__FRAME_ASK, HAPAX__FRAME_ASK_SIZE);
    hapax__put_number(w, seq, 4);
}

bool hapax__frame_take_ask(struct hapax_span payload, uint32_t *seq)
{
    struct hapax__reader r = reader_of(payload);

    *seq = hapax__take_u32(&r);
    return whole(&r);
}

void hapax__frame_put_fault(struct hapax__writer *w, enum hapax_error error, const char *text)
{
    struct hapax_span span = text_span(text);

    assert(error < HAPAX_ERR_NONE && error >= HAPAX_ERR_REFUSED);
    hapax__frame_begin(w, HAPAX__FRAME_FAULT, 1 + 1 + span.len);
    hapax__put_number(w, (uint64_t)-error, 1);
    put_span(w, span, 1);
}

bool hapax__frame_take_fault(struct hapax_span payload, enum hapax_error *error,
                             char text[HAPAX_TEXT_MAX])
{
    struct hapax__reader r = reader_of(payload);

    *error = (enum hapax_error) - (int)hapax__take_u8(&r);
    take_text(&r, text);
    return whole(&r) && *error < HAPAX_ERR_NONE && *error >= HAPAX_ERR_REFUSED;
}
