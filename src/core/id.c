/* SPDX-License-Identifier: Apache-2.0
 *
 * Identity: ids, digests, marks of tokens, HMACs, and keys derived for a step; and the names of the
 * public enums.
 *
 * The invariant: no two different inputs are hashed as the same bytes. Every part goes in behind
 * its length, so that moving a byte from one part to the next gives another hash. A step holds no
 * ':', so that `KEY:step` splits in one way only.
 *
 * SHA-256 is libcrypto's low-level one, which keeps its state in the caller's frame. Rejected:
 * EVP, whose contexts are allocated: the core would then have an out-of-memory case, in the
 * middle of functions that cannot fail. HMAC is therefore spelled out (RFC 2104).
 *
 * Rejected: to keep the two hash states of a secret, and not to hash its blocks each time. That is
 * 0.09 µs of an HMAC's 0.19, measured (0.26 of 0.54 without the processor's SHA instructions),
 * three times for an operation. It would make of each secret a thing to prepare, at every door.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "id.h"

#include "base/bytes.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#define BLOCK_SIZE SHA256_CBLOCK

static_assert(sizeof(struct hapax_id) == SHA256_DIGEST_LENGTH, "an id is a SHA-256");
static_assert(sizeof(struct hapax_digest) == SHA256_DIGEST_LENGTH, "a digest is a SHA-256");

/* A failed hash must not be used. These functions fail only on a broken context. */
static void begin(SHA256_CTX *ctx)
{
    int done = SHA256_Init(ctx);

    assert(done == 1);
}

static void add(SHA256_CTX *ctx, const void *bytes, size_t len)
{
    int done = len == 0 ? 1 : SHA256_Update(ctx, bytes, len);

    assert(done == 1);
}

static void end(uint8_t out[SHA256_DIGEST_LENGTH], SHA256_CTX *ctx)
{
    int done = SHA256_Final(out, ctx);

    assert(done == 1);
    OPENSSL_cleanse(ctx, sizeof(*ctx));
}

static void add_part(SHA256_CTX *ctx, struct hapax_span part, size_t width)
{
    uint8_t length[8];
    struct hapax__writer w = {length, sizeof(length)};

    assert(width <= sizeof(length));
    hapax__put_number(&w, part.len, width);
    add(ctx, length, width);
    add(ctx, part.ptr, part.len);
}

/* The secret as HMAC takes it: one block, hashed first where it is longer, each byte xor pad. */
static void begin_padded(SHA256_CTX *ctx, struct hapax_span secret, uint8_t pad)
{
    uint8_t block[BLOCK_SIZE] = {0};

    if (secret.len > sizeof(block)) {
        begin(ctx);
        add(ctx, secret.ptr, secret.len);
        end(block, ctx);
    } else {
        memcpy(block, secret.ptr, secret.len);
    }
    for (size_t i = 0; i < sizeof(block); i++)
        block[i] ^= pad;
    begin(ctx);
    add(ctx, block, sizeof(block));
    OPENSSL_cleanse(block, sizeof(block));
}

/* Ends a hash that began with the secret padded. */
static void end_padded(uint8_t out[SHA256_DIGEST_LENGTH], SHA256_CTX *ctx, struct hapax_span secret)
{
    uint8_t inner[SHA256_DIGEST_LENGTH];

    end(inner, ctx);
    begin_padded(ctx, secret, 0x5c);
    add(ctx, inner, sizeof(inner));
    end(out, ctx);
}

struct hapax_span hapax_str(const char *s)
{
    return (struct hapax_span){(const uint8_t *)s, s ? strlen(s) : 0};
}

/* ---- ids ------------------------------------------------------------------------- */

static bool step_valid(struct hapax_span step)
{
    return step.len == 0 || (step.len <= HAPAX_STEP_MAX && memchr(step.ptr, ':', step.len) == NULL);
}

/* Parts of an owner, a scope, a key and a step, as far as they are not empty. The empty part before
 * an owner is what no scope is. */
struct names {
    struct hapax_span owner, scope, key, step;
};

static void add_names(SHA256_CTX *ctx, const struct names *names)
{
    const struct hapax_span parts[] = {names->scope, names->key, names->step};

    if (names->owner.len > 0) {
        add_part(ctx, (struct hapax_span){NULL, 0}, 4);
        add_part(ctx, names->owner, 4);
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i].len > 0)
            add_part(ctx, parts[i], 4);
}

static void hash_names(uint8_t out[SHA256_DIGEST_LENGTH], const struct names *names,
                       struct hapax_span secret)
{
    SHA256_CTX ctx;

    if (secret.len == 0) {
        begin(&ctx);
        add_names(&ctx, names);
        end(out, &ctx);
        return;
    }
    begin_padded(&ctx, secret, 0x36);
    add_names(&ctx, names);
    end_padded(out, &ctx, secret);
}

enum hapax_error hapax_owned_id(struct hapax_id *out, struct hapax_span owner,
                                struct hapax_span scope, struct hapax_span key,
                                struct hapax_span step, struct hapax_span secret)
{
    const struct names names = {owner, scope, key, step};

    if (owner.len > HAPAX_OWNER_MAX)
        return HAPAX_ERR_INVALID;
    if (scope.len == 0 || scope.len > HAPAX_SCOPE_MAX)
        return HAPAX_ERR_INVALID;
    if (key.len == 0 || key.len > HAPAX_KEY_MAX)
        return HAPAX_ERR_INVALID;
    if (!step_valid(step))
        return HAPAX_ERR_INVALID;
    hash_names(out->bytes, &names, secret);
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax_id(struct hapax_id *out, struct hapax_span scope, struct hapax_span key,
                          struct hapax_span step, struct hapax_span secret)
{
    const struct hapax_span nobody = {NULL, 0};

    return hapax_owned_id(out, nobody, scope, key, step, secret);
}

enum hapax_error hapax_owner(struct hapax_digest *out, struct hapax_span owner,
                             struct hapax_span secret)
{
    const struct names names = {.owner = owner};

    if (owner.len == 0 || owner.len > HAPAX_OWNER_MAX)
        return HAPAX_ERR_INVALID;
    hash_names(out->bytes, &names, secret);
    return HAPAX_ERR_NONE;
}

void hapax_digest(struct hapax_digest *out, const struct hapax_span *parts, size_t n)
{
    SHA256_CTX ctx;

    begin(&ctx);
    for (size_t i = 0; i < n; i++)
        add_part(&ctx, parts[i], 8);
    end(out->bytes, &ctx);
}

/* ---- what a record keeps ---------------------------------------------------------- */

void hapax__mark(struct hapax_mark *out, const struct hapax_token *token)
{
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA256_CTX ctx;

    begin(&ctx);
    add(&ctx, token->bytes, sizeof(token->bytes));
    end(hash, &ctx);
    memcpy(out->bytes, hash, sizeof(out->bytes));
}

void hapax__mac(struct hapax_digest *out, struct hapax_span secret, const struct hapax_span *parts,
                size_t n)
{
    SHA256_CTX ctx;

    begin_padded(&ctx, secret, 0x36);
    for (size_t i = 0; i < n; i++)
        add(&ctx, parts[i].ptr, parts[i].len);
    end_padded(out->bytes, &ctx, secret);
}

/* ---- derived keys ---------------------------------------------------------------- */

enum hapax_error hapax_key_derive(uint8_t out[HAPAX_KEY_MAX], size_t *len, struct hapax_span key,
                                  struct hapax_span step)
{
    struct hapax__writer w = {out, HAPAX_KEY_MAX};
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA256_CTX ctx;

    if (key.len == 0 || key.len > HAPAX_KEY_MAX || step.len == 0 || !step_valid(step))
        return HAPAX_ERR_INVALID;
    if (key.len + 1 + step.len <= HAPAX_KEY_MAX) {
        hapax__put(&w, key.ptr, key.len);
        hapax__put(&w, ":", 1);
        hapax__put(&w, step.ptr, step.len);
    } else {
        begin(&ctx);
        add(&ctx, key.ptr, key.len);
        add(&ctx, ":", 1);
        add(&ctx, step.ptr, step.len);
        end(hash, &ctx);
        hapax__put(&w, "sha256-", 7);
        hapax__put_hex(&w, hash, sizeof(hash));
    }
    *len = HAPAX_KEY_MAX - w.left;
    assert(*len > 0);
    return HAPAX_ERR_NONE;
}

/* ---- names ----------------------------------------------------------------------- */

/* Characters and no pointers, so that nothing here has to be relocated. */
#define NAME_SIZE 14

const char *hapax_error_name(enum hapax_error error)
{
    static const char names[][NAME_SIZE] = {
        "none",          "invalid", "nomem",       "too_big", "unavailable",
        "indeterminate", "corrupt", "unsupported", "refused", "sealed"};
    long at = -(long)error;

    return at >= 0 && at < (long)(sizeof(names) / sizeof(names[0])) ? names[at] : "?";
}

const char *hapax_answer_name(enum hapax_answer_kind kind)
{
    static const char names[][NAME_SIZE] = {
        "?",         "fresh",         "replay",   "failed", "missing_key", "bad_key",
        "in_flight", "unknown",       "mismatch", "gone",   "too_large",   "store_down",
        "bypass",    "missing_owner", "limited",  "expired"};

    return (size_t)kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "?";
}

const char *hapax_state_name(enum hapax_state state)
{
    static const char names[][NAME_SIZE] = {"absent", "started", "completed", "failed", "unknown"};

    return (size_t)state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

const char *hapax_verdict_name(enum hapax_verdict verdict)
{
    static const char names[][NAME_SIZE] = {"none",   "claimed", "in_flight", "completed",
                                            "failed", "unknown", "mismatch",  "ok",
                                            "lost",   "found",   "absent"};

    return (size_t)verdict < sizeof(names) / sizeof(names[0]) ? names[verdict] : "?";
}

bool hapax__owned(const struct hapax_digest *owner)
{
    static const struct hapax_digest none;

    return memcmp(owner, &none, sizeof(none)) != 0;
}
