/* SPDX-License-Identifier: Apache-2.0
 *
 * A store is for one secret: with another, every key would hash to another id, and each operation
 * would run again. So the first user leaves a check value, as an ordinary record that
 * is completed and never expires; the machine's MISMATCH does the comparing, in every
 * store alike. Rejected: a field of each store's own, which each would have to race for.
 */
#include "types.h"

#include "base/fail.h"

#include <string.h>
#include <sys/random.h>

#define BIND_LEASE_MS 10000

static void bind_op(struct hapax_op *op, enum hapax_op_kind kind, const struct hapax_id *id,
                    const struct hapax_token *token)
{
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    op->id = *id;
    op->token = *token;
    op->scope = hapax_str("hapax");
    op->lease_ms = BIND_LEASE_MS;
    op->retention_ms = HAPAX_FOREVER_MS;
    op->on_expired = HAPAX_EXPIRED_RERUN;
}

/* Such an id is hashed otherwise than an operation's, so that no scope and key can name it. */
void hapax__own_id(struct hapax_id *id, struct hapax_span what)
{
    const struct hapax_span names[] = {hapax_str("hapax"), what};
    struct hapax_digest name;

    hapax_digest(&name, names, 2);
    memcpy(id->bytes, name.bytes, sizeof(id->bytes));
}

/* The value is what the scope and key "hapax" and "secret" would be under the secret. */
void hapax__bind_check(struct hapax_id *id, struct hapax_digest *check, struct hapax_span secret)
{
    struct hapax_id value;

    hapax__own_id(id, hapax_str("secret"));
    hapax_id(&value, hapax_str("hapax"), hapax_str("secret"), (struct hapax_span){NULL, 0}, secret);
    memcpy(check->bytes, value.bytes, sizeof(check->bytes));
}

void hapax__epoch_id(struct hapax_id *id)
{
    hapax__own_id(id, hapax_str("epoch"));
}

enum hapax_error hapax__bind_begin(struct hapax_op *op, struct hapax_span secret,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax_token token;
    struct hapax_digest check;
    struct hapax_id id;

    if (getrandom(token.bytes, sizeof(token.bytes), 0) != sizeof(token.bytes))
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "cannot get random bytes");
    hapax__bind_check(&id, &check, secret);
    bind_op(op, HAPAX_OP_CLAIM, &id, &token);
    op->fingerprint = check;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__bind_told(struct hapax_op *op, struct hapax_span secret, bool *more,
                                  char text[HAPAX_TEXT_MAX])
{
    struct hapax_token token = op->token;
    struct hapax_id id = op->id;

    *more = false;
    if (op->verdict == HAPAX_MISMATCH)
        return hapax__fail(text, HAPAX_ERR_REFUSED, "the store was first used with %s",
                           secret.len > 0 ? "another secret, or with none"
                                          : "a secret, and none is given");
    if (op->kind == HAPAX_OP_COMPLETE && op->verdict == HAPAX_LOST)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                           "the secret of the store is being changed: try again");
    if (op->verdict == HAPAX_CLAIMED) {
        bind_op(op, HAPAX_OP_COMPLETE, &id, &token);
        *more = true;
    }
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax_store_bind(struct hapax_store *store, struct hapax_span secret)
{
    struct hapax_op op;
    enum hapax_error error = hapax__bind_begin(&op, secret, store->text);
    bool more = true;

    if (secret.len > 0 && store->type->bound)
        store->type->bound(store, secret);
    while (error == HAPAX_ERR_NONE && more) {
        error = hapax_store_run(store, &op, 1);
        if (error == HAPAX_ERR_NONE)
            error = hapax__bind_told(&op, secret, &more, store->text);
    }
    return error;
}

enum hapax_error hapax__bind_has_secret(struct hapax_store *store, bool *secret)
{
    struct hapax_op op = {.kind = HAPAX_OP_READ};
    enum hapax_error error;

    hapax__bind_check(&op.id, &op.fingerprint, (struct hapax_span){NULL, 0});
    error = hapax_store_run(store, &op, 1);
    *secret = error == HAPAX_ERR_REFUSED ||
              (op.verdict == HAPAX_FOUND &&
               memcmp(&op.record.fingerprint, &op.fingerprint, sizeof(op.fingerprint)) != 0);
    return *secret ? HAPAX_ERR_NONE : error;
}
