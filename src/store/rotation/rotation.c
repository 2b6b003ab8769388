/* SPDX-License-Identifier: Apache-2.0
 *
 * How far a rotation is (rotation.h), in records that are completed and never expire. The machine's
 * MISMATCH does the comparing, as in bind.c.
 *
 * A step forgets the record and makes it anew, in one batch. Only an embedded store, a keeper and
 * a Redis Cluster judge that batch as one. At any other store a door may make the record between
 * the two, by any value that it would accept. Then the step finds that value, and begins again.
 * Rejected: to resolve the record in its place. No op changes a fingerprint that has run.
 *
 * In the gap of the last step that value may be the old secret's. Who came in by it is not known:
 * one with both secrets leaves the same value, and one with the old secret alone is let in by it.
 * So the step goes back to BOTH, and is refused. Rejected: to have doors look for the second record
 * before they believe in a beginning. Doors of versions before would not.
 */
#include "rotation.h"

#include "base/fail.h"
#include "base/span.h"
#include "core/id.h"
#include "store/types.h"

#include <string.h>
#include <sys/random.h>

#define STEP_TRIES 8

const char *hapax__rotation_name(enum hapax__rotation at)
{
    static const char *const names[] = {"begun", "both", "ended"};

    return names[at];
}

/* ---- the records ----------------------------------------------------------------------- */

/* What the caller of the second record is, by which it is known. */
static struct hapax_digest mark(void)
{
    const struct hapax_span name = hapax_str("hapax.rotation");
    struct hapax_digest out;

    hapax_digest(&out, &name, 1);
    return out;
}

bool hapax__is_rotation(const struct hapax_record *record)
{
    const struct hapax_digest ours = mark();

    return memcmp(&record->caller, &ours, sizeof(ours)) == 0 && !hapax__owned(&record->owner) &&
           hapax__same(record->scope, hapax_str("hapax"));
}

static struct hapax_digest value_of(const struct hapax__secrets *secrets, enum hapax__rotation at)
{
    struct hapax_digest value, old;
    struct hapax_id id;

    hapax__bind_check(&id, &value, secrets->now);
    if (at == HAPAX__ROTATION_ENDED)
        return value;
    hapax__bind_check(&id, &old, secrets->old);
    if (at == HAPAX__ROTATION_BEGUN)
        return old;
    hapax__mac(&value, secrets->now,
               (const struct hapax_span[]){hapax_str("rotation"), {old.bytes, sizeof(old.bytes)}},
               2);
    return value;
}

bool hapax__rotation_is(const struct hapax_digest *value, const struct hapax__secrets *secrets)
{
    int at = secrets->old.ptr ? HAPAX__ROTATION_BEGUN : HAPAX__ROTATION_ENDED;

    for (; at <= HAPAX__ROTATION_ENDED; at++) {
        const struct hapax_digest ours = value_of(secrets, (enum hapax__rotation)at);

        if (memcmp(value, &ours, sizeof(ours)) == 0)
            return true;
    }
    return false;
}

static struct hapax_id second_id(const struct hapax__secrets *secrets)
{
    const struct hapax_digest old = value_of(secrets, HAPAX__ROTATION_BEGUN);
    const struct hapax_span parts[] = {
        hapax_str("hapax"), hapax_str("rotation"), {old.bytes, sizeof(old.bytes)}};
    struct hapax_digest name;
    struct hapax_id id;

    hapax_digest(&name, parts, 3);
    memcpy(id.bytes, name.bytes, sizeof(id.bytes));
    return id;
}

/* ---- binding --------------------------------------------------------------------------- */

/* Leaves a value in a record, or compares. *other: another one stands there. */
static enum hapax_error leave(struct hapax_store *store, struct hapax_op *op, bool *other)
{
    enum hapax_error error = hapax_store_run(store, op, 1);
    bool more;

    if (error != HAPAX_ERR_NONE)
        return error;
    *other = op->verdict == HAPAX_MISMATCH;
    if (*other)
        return HAPAX_ERR_NONE;
    error = hapax__bind_told(op, hapax_str(NULL), &more, store->text);
    if (error == HAPAX_ERR_NONE && more)
        error = hapax_store_run(store, op, 1);
    *other = error == HAPAX_ERR_NONE && op->verdict == HAPAX_LOST;
    return error;
}

static enum hapax_error leave_value(struct hapax_store *store, const struct hapax__secrets *secrets,
                                    enum hapax__rotation at, bool *other)
{
    struct hapax_op op;
    enum hapax_error error = hapax__bind_begin(&op, secrets->now, store->text);

    if (error != HAPAX_ERR_NONE)
        return error;
    op.fingerprint = value_of(secrets, at);
    return leave(store, &op, other);
}

static enum hapax_error leave_second(struct hapax_store *store,
                                     const struct hapax__secrets *secrets)
{
    struct hapax_op op;
    bool other = false;
    enum hapax_error error = hapax__bind_begin(&op, secrets->now, store->text);

    if (error != HAPAX_ERR_NONE)
        return error;
    op.id = second_id(secrets);
    op.caller = mark();
    op.what = hapax_str("rotation");
    error = leave(store, &op, &other);
    if (error == HAPAX_ERR_NONE && other)
        return hapax_store_fail(store, HAPAX_ERR_REFUSED,
                                "the secret of the store is being changed to another one than the "
                                "new secret that is given");
    return error;
}

static enum hapax_error neither(struct hapax_store *store)
{
    return hapax_store_fail(store, HAPAX_ERR_REFUSED,
                            "the store was first used with neither of the two secrets");
}

static bool secrets_valid(struct hapax_store *store, const struct hapax__secrets *secrets)
{
    if (secrets->now.len > 0 && !hapax__same(secrets->now, secrets->old))
        return true;
    (void)hapax_store_fail(store, HAPAX_ERR_INVALID,
                           secrets->now.len > 0 ? "the old secret and the new one are the same"
                                                : "there is an old secret, and no new one");
    return false;
}

enum hapax_error hapax__rotation_bind(struct hapax_store *store,
                                      const struct hapax__secrets *secrets,
                                      enum hapax__rotation *at)
{
    enum hapax_error error = HAPAX_ERR_NONE;
    bool other = true;
    int i;

    if (!secrets_valid(store, secrets))
        return HAPAX_ERR_INVALID;
    if (store->type->bound)
        store->type->bound(store, secrets->now);
    for (i = HAPAX__ROTATION_BEGUN; i <= HAPAX__ROTATION_ENDED; i++) {
        error = leave_value(store, secrets, (enum hapax__rotation)i, &other);
        if (error != HAPAX_ERR_NONE || !other)
            break;
    }
    if (error != HAPAX_ERR_NONE)
        return error;
    if (other)
        return neither(store);
    *at = (enum hapax__rotation)i;
    return *at == HAPAX__ROTATION_BEGUN ? leave_second(store, secrets) : HAPAX_ERR_NONE;
}

enum hapax_error hapax__rotation_read(struct hapax_store *store,
                                      const struct hapax__secrets *secrets,
                                      enum hapax__rotation *at, int64_t *since_us)
{
    struct hapax_op op = {.kind = HAPAX_OP_READ};
    struct hapax_digest value;
    enum hapax_error error;

    *at = HAPAX__ROTATION_BEGUN;
    *since_us = 0;
    if (!secrets_valid(store, secrets))
        return HAPAX_ERR_INVALID;
    hapax__bind_check(&op.id, &value, secrets->now);
    error = hapax_store_run(store, &op, 1);
    if (error != HAPAX_ERR_NONE || op.verdict == HAPAX_ABSENT)
        return error;
    if (!hapax__rotation_is(&op.record.fingerprint, secrets))
        return neither(store);
    *since_us = op.record.created_us;
    for (; *at < HAPAX__ROTATION_ENDED; (*at)++) {
        value = value_of(secrets, *at);
        if (memcmp(&op.record.fingerprint, &value, sizeof(value)) == 0)
            break;
    }
    return HAPAX_ERR_NONE;
}

/* ---- going on -------------------------------------------------------------------------- */

static enum hapax_error is_at(struct hapax_store *store, enum hapax__rotation at)
{
    return hapax_store_fail(store, HAPAX_ERR_REFUSED, "the change of the secret is at \"%s\"",
                            hapax__rotation_name(at));
}

static enum hapax_error make_forget(struct hapax_op *op, struct hapax_store *store,
                                    const struct hapax_id *id)
{
    *op = (struct hapax_op){
        .kind = HAPAX_OP_RESOLVE, .resolve = HAPAX_RESOLVE_FORGET, .id = *id, .force = true};
    if (getrandom(op->token.bytes, sizeof(op->token.bytes), 0) != sizeof(op->token.bytes))
        return hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "cannot get random bytes");
    return HAPAX_ERR_NONE;
}

static enum hapax_error forget_second(struct hapax_store *store,
                                      const struct hapax__secrets *secrets)
{
    const struct hapax_id second = second_id(secrets);
    struct hapax_op op;
    enum hapax_error error = make_forget(&op, store, &second);

    return error == HAPAX_ERR_NONE ? hapax_store_run(store, &op, 1) : error;
}

/* Puts the value of `to` in the place of that of `from`. What comes there meanwhile stays: a copy
 * of the FORGET may be late. */
static enum hapax_error replace_value(struct hapax_store *store,
                                      const struct hapax__secrets *secrets,
                                      enum hapax__rotation from, enum hapax__rotation to)
{
    const struct hapax_digest value = value_of(secrets, from);
    struct hapax_op read = {.kind = HAPAX_OP_READ}, ops[3];
    enum hapax_error error = hapax__bind_begin(&ops[1], secrets->now, store->text);

    if (error == HAPAX_ERR_NONE)
        error = make_forget(&ops[0], store, &ops[1].id);
    read.id = ops[1].id;
    if (error == HAPAX_ERR_NONE)
        error = hapax_store_run(store, &read, 1);
    if (error != HAPAX_ERR_NONE || read.verdict == HAPAX_ABSENT ||
        memcmp(&read.record.fingerprint, &value, sizeof(value)) != 0)
        return error;
    ops[0].if_updated_us = read.record.updated_us;
    ops[1].fingerprint = value_of(secrets, to);
    ops[2] = ops[1];
    ops[2].kind = HAPAX_OP_COMPLETE;
    return hapax_store_run(store, ops, 3);
}

enum hapax_error hapax__rotation_back(struct hapax_store *store,
                                      const struct hapax__secrets *secrets)
{
    enum hapax__rotation at;
    int64_t since_us;
    enum hapax_error error = hapax__rotation_read(store, secrets, &at, &since_us);

    if (error != HAPAX_ERR_NONE)
        return error;
    return at == HAPAX__ROTATION_BEGUN ? forget_second(store, secrets) : is_at(store, at);
}

enum hapax_error hapax__rotation_step(struct hapax_store *store,
                                      const struct hapax__secrets *secrets, enum hapax__rotation to)
{
    enum hapax__rotation at = HAPAX__ROTATION_BEGUN;
    const char *came = NULL; /* who came in by the gap of a step, and is to be ended */
    enum hapax_error error;

    for (int i = 0; i < STEP_TRIES; i++) {
        error = hapax__rotation_bind(store, secrets, &at);
        if (error != HAPAX_ERR_NONE)
            return error;
        if (i > 0 && to == HAPAX__ROTATION_ENDED && at != to) {
            to = HAPAX__ROTATION_BOTH;
            came = "a program with one secret alone may have opened the store: end it, then wait "
                   "again";
        }
        if (at == to && came)
            return hapax_store_fail(store, HAPAX_ERR_REFUSED, "%s", came);
        if (at == to)
            return to == HAPAX__ROTATION_ENDED ? forget_second(store, secrets) : HAPAX_ERR_NONE;
        /* What is elsewhere only from the second try on, a door has put into the gap. */
        if (i == 0 && at + 1 != to)
            return is_at(store, at);
        if (at == HAPAX__ROTATION_ENDED && !came)
            came = "a program with the new secret alone has opened the store: end it";
        error = replace_value(store, secrets, at, to);
        if (error != HAPAX_ERR_NONE)
            return error;
    }
    return hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE,
                            "programs that open the store are in the way: try again");
}

/* ---- a handle -------------------------------------------------------------------------- */

enum hapax_error hapax__store_bind(struct hapax_store **store, const struct hapax__secrets *secrets)
{
    enum hapax__rotation at;
    enum hapax_error error;

    if (!secrets->old.ptr)
        return hapax_store_bind(*store, secrets->now);
    if ((*store)->type->unlisted)
        return hapax_store_fail(*store, HAPAX_ERR_UNSUPPORTED,
                                "the secret of a move: store cannot be changed: end the move "
                                "before");
    error = hapax__rotation_bind(*store, secrets, &at);
    return error == HAPAX_ERR_NONE ? hapax__rotation_over(store) : error;
}
