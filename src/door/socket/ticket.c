/* SPDX-License-Identifier: Apache-2.0
 *
 * version u8 · bits u8 · token 16 · attempt u32 · spent u32 · fence u64 · created_us u64
 * · fingerprint 32 · caller 32 · policies · scope, key, step, owner, what: u8+bytes each
 * · trace: u8+bytes, in version 2. Where there is no trace the ticket is of version 1, which older
 * doors read.
 */
#include "ticket.h"

#include "base/base64.h"
#include "base/bytes.h"
#include "base/fail.h"

#define VERSION 3u
/* What has a fixed length is below 300 bytes. A name has 255 bytes at most, and its length. */
#define SIZE_MAX_OF_TICKET (300u + 5u * 256u)

enum { STALE = 1, RESOLVED = 2, RECONCILING = 4, RECONCILES = 8 };
enum { OWNER_REQUIRED = 1, RERUN_COMPLETED = 2, PASS_TOKEN = 4, KEY_EXPIRES = 8 };

static void put_policy(struct hapax__writer *w, const struct hapax_policy *p)
{
    const int64_t times[] = {p->lease_ms, p->run_max_ms, p->retention_ms,
                             p->wait_ms,  p->timeout_ms, p->save_wait_ms};

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        hapax__put_number(w, (uint64_t)times[i], 8);
    hapax__put_number(w, (uint64_t)p->on_expired, 1);
    hapax__put_number(w, (uint64_t)p->on_failed, 1);
    hapax__put_number(w, (uint64_t)p->on_store_error, 1);
    hapax__put_number(w, (uint64_t)p->key, 1);
    hapax__put_number(w, p->key_min, 4);
    hapax__put_number(w, p->attempts_max, 4);
    hapax__put_number(w, p->max_request, 8);
    hapax__put_number(w, p->max_response, 8);
    hapax__put_number(w,
                      (p->owner_required ? OWNER_REQUIRED : 0u) |
                          (p->rerun_completed ? RERUN_COMPLETED : 0u) |
                          (p->pass_token ? PASS_TOKEN : 0u) | (p->key_expires ? KEY_EXPIRES : 0u),
                      1);
}

static void take_policy(struct hapax_policy *p, struct hapax__reader *r)
{
    uint8_t bits;

    p->lease_ms = (int64_t)hapax__take_u64(r);
    p->run_max_ms = (int64_t)hapax__take_u64(r);
    p->retention_ms = (int64_t)hapax__take_u64(r);
    p->wait_ms = (int64_t)hapax__take_u64(r);
    p->timeout_ms = (int64_t)hapax__take_u64(r);
    p->save_wait_ms = (int64_t)hapax__take_u64(r);
    p->on_expired = (enum hapax_on_expired)hapax__take_u8(r);
    p->on_failed = (enum hapax_on_failed)hapax__take_u8(r);
    p->on_store_error = (enum hapax_on_store_error)hapax__take_u8(r);
    p->key = (enum hapax_key_policy)hapax__take_u8(r);
    p->key_min = hapax__take_u32(r);
    p->attempts_max = hapax__take_u32(r);
    p->max_request = hapax__take_u64(r);
    p->max_response = hapax__take_u64(r);
    bits = hapax__take_u8(r);
    p->owner_required = bits & OWNER_REQUIRED;
    p->rerun_completed = bits & RERUN_COMPLETED;
    p->pass_token = bits & PASS_TOKEN;
    p->key_expires = bits & KEY_EXPIRES;
}

/* Whether the policy sets what tickets know from version 3 on. */
static bool keeps_by_class(const struct hapax_policy *p)
{
    return p->retention_4xx_ms > 0 || p->retention_failed_ms > 0 || p->tombstone_ms > 0;
}

static void put_name(struct hapax__writer *w, struct hapax_span name)
{
    assert(name.len <= UINT8_MAX);
    hapax__put_number(w, name.len, 1);
    hapax__put(w, name.ptr, name.len);
}

static struct hapax_span take_name(struct hapax__reader *r)
{
    return hapax__take(r, hapax__take_u8(r));
}

void hapax__ticket_put(struct hapax__json_out *out, const struct hapax__ticket *t)
{
    uint8_t bytes[SIZE_MAX_OF_TICKET];
    struct hapax__writer w = {bytes, sizeof(bytes)};

    bool by_class = keeps_by_class(&t->policy);

    hapax__put_number(&w, by_class ? VERSION : t->request.trace.len > 0 ? 2 : 1, 1);
    hapax__put_number(&w,
                      (t->claim.stale ? STALE : 0u) | (t->claim.resolved ? RESOLVED : 0u) |
                          (t->claim.reconciling ? RECONCILING : 0u) |
                          (t->reconciles ? RECONCILES : 0u),
                      1);
    hapax__put(&w, t->token.bytes, sizeof(t->token.bytes));
    hapax__put_number(&w, t->claim.attempt, 4);
    hapax__put_number(&w, t->claim.spent, 4);
    hapax__put_number(&w, t->claim.fence, 8);
    hapax__put_number(&w, (uint64_t)t->claim.created_us, 8);
    hapax__put(&w, t->request.fingerprint.bytes, sizeof(t->request.fingerprint.bytes));
    hapax__put(&w, t->request.caller.bytes, sizeof(t->request.caller.bytes));
    put_policy(&w, &t->policy);
    put_name(&w, t->request.scope);
    put_name(&w, t->request.key);
    put_name(&w, t->request.step);
    put_name(&w, t->request.owner);
    put_name(&w, t->request.what);
    if (by_class || t->request.trace.len > 0)
        put_name(&w, t->request.trace);
    if (by_class) {
        hapax__put_number(&w, (uint64_t)t->policy.retention_4xx_ms, 8);
        hapax__put_number(&w, (uint64_t)t->policy.retention_failed_ms, 8);
        hapax__put_number(&w, (uint64_t)t->policy.tombstone_ms, 8);
    }
    hapax__json_put_base64(out, (struct hapax_span){bytes, (size_t)(w.at - bytes)});
    explicit_bzero(bytes, sizeof(bytes));
}

enum hapax_error hapax__ticket_read(struct hapax__ticket *t, struct hapax_arena *arena,
                                    struct hapax_span in, char text[HAPAX_TEXT_MAX])
{
    uint8_t *bytes = hapax__arena_alloc(arena, in.len + 1);
    struct hapax__reader r;
    uint8_t version, bits;
    size_t len;

    if (!bytes)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    if (in.len == 0 || !hapax__base64_decode(bytes, &len, in))
        return hapax__fail(text, HAPAX_ERR_INVALID, "member \"ticket\" is missing, or is none");
    memset(t, 0, sizeof(*t));
    r = (struct hapax__reader){bytes, len, false};
    version = hapax__take_u8(&r);
    if (!r.bad && (version < 1 || version > VERSION))
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                           "the ticket is of version %u, and this door reads %u", version, VERSION);
    bits = hapax__take_u8(&r);
    t->claim.stale = bits & STALE;
    t->claim.resolved = bits & RESOLVED;
    t->claim.reconciling = bits & RECONCILING;
    t->reconciles = bits & RECONCILES;
    hapax__take_into(&r, t->token.bytes, sizeof(t->token.bytes));
    t->claim.attempt = hapax__take_u32(&r);
    t->claim.spent = hapax__take_u32(&r);
    t->claim.fence = hapax__take_u64(&r);
    t->claim.created_us = (int64_t)hapax__take_u64(&r);
    hapax__take_into(&r, t->request.fingerprint.bytes, sizeof(t->request.fingerprint.bytes));
    hapax__take_into(&r, t->request.caller.bytes, sizeof(t->request.caller.bytes));
    take_policy(&t->policy, &r);
    t->request.scope = take_name(&r);
    t->request.key = take_name(&r);
    t->request.step = take_name(&r);
    t->request.owner = take_name(&r);
    t->request.what = take_name(&r);
    if (version > 1)
        t->request.trace = take_name(&r);
    if (version > 2) {
        t->policy.retention_4xx_ms = (int64_t)hapax__take_u64(&r);
        t->policy.retention_failed_ms = (int64_t)hapax__take_u64(&r);
        t->policy.tombstone_ms = (int64_t)hapax__take_u64(&r);
    }
    if (r.bad || r.left > 0 || t->request.key.len == 0 || t->claim.fence == 0 ||
        t->claim.created_us < 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "member \"ticket\" is missing, or is none");
    return HAPAX_ERR_NONE;
}
