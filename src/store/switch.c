/* SPDX-License-Identifier: Apache-2.0
 *
 * The switch of a store: a word of an operator's that doors look at while they run. It is an
 * ordinary record that is completed and never expires; its outcome is the word, as a status, and
 * has no bytes, so that it is never sealed. Doors READ it with the rights that they have.
 *
 * The invariant: only what an operator has RESOLVED counts, and nobody has written since. A door
 * may claim any id, and complete it; it may not RESOLVE, where a store tells the two apart.
 * Rejected: a field of each store's own.
 */
#include "types.h"

#include "base/fail.h"
#include "base/span.h"
#include "core/id.h"

#include <string.h>
#include <sys/random.h>

#define SWITCH_LEASE_MS 10000

/* The same for every switch, by which its record is known; it is also the caller. */
static struct hapax_digest fingerprint(void)
{
    const struct hapax_span name = hapax_str("hapax.switch");
    struct hapax_digest out;

    hapax_digest(&out, &name, 1);
    return out;
}

static struct hapax_op switch_op(enum hapax_op_kind kind, struct hapax_span scope)
{
    struct hapax_op op = {.kind = kind, .scope = hapax_str("hapax")};
    char name[sizeof("switch/") + HAPAX_SCOPE_MAX] = "switch";
    size_t len = strlen(name);

    if (scope.len > 0) {
        name[len++] = '/';
        memcpy(name + len, scope.ptr, scope.len);
        len += scope.len;
    }
    hapax__own_id(&op.id, (struct hapax_span){(const uint8_t *)name, len});
    op.fingerprint = op.caller = fingerprint();
    op.lease_ms = SWITCH_LEASE_MS;
    op.retention_ms = HAPAX_FOREVER_MS;
    op.on_expired = HAPAX_EXPIRED_RERUN;
    return op;
}

const char *hapax__switch_name(enum hapax__switch word)
{
    static const char *const names[] = {NULL, "off", "shadow", "on"};

    return names[word];
}

struct hapax_op hapax__switch_read(struct hapax_span scope)
{
    return switch_op(HAPAX_OP_READ, scope);
}

bool hapax__is_switch(const struct hapax_record *record)
{
    const struct hapax_digest ours = fingerprint();

    return memcmp(&record->fingerprint, &ours, sizeof(ours)) == 0 &&
           memcmp(&record->caller, &ours, sizeof(ours)) == 0 && !hapax__owned(&record->owner) &&
           hapax__same(record->scope, hapax_str("hapax"));
}

/* Whether it is as make() makes it: a door can neither claim it again, nor have it expire. */
static bool is_kept(const struct hapax_op *read)
{
    const struct hapax_record *record = &read->record;

    return read->verdict == HAPAX_FOUND && hapax__is_switch(record) &&
           record->state == HAPAX_STATE_COMPLETED && !record->reruns && record->expires_us == 0;
}

/* A claim after the RESOLVE leaves resolved_us as it is, and is an update; but within the same
 * microsecond nothing tells. No claim is granted after a word that was said by hapax__switch_set().
 */
static bool is_word(const struct hapax_op *read)
{
    const struct hapax_record *record = &read->record;
    int word = record->outcome.status;

    return is_kept(read) && record->resolved_us != 0 && record->resolved_us == record->updated_us &&
           word >= HAPAX__SWITCH_OFF && word <= HAPAX__SWITCH_ON;
}

enum hapax__switch hapax__switch_said(const struct hapax_op *read)
{
    return is_word(read) ? (enum hapax__switch)read->record.outcome.status : HAPAX__SWITCH_ON;
}

static enum hapax_error ask(struct hapax_store *store, struct hapax_op *op)
{
    (void)hapax_store_run(store, op, 1);
    hapax__ask_again(store, op);
    return op->error;
}

/* Makes the record. Where there is another one meanwhile, its CLAIM has done nothing. */
static enum hapax_error make(struct hapax_store *store, struct hapax_span scope,
                             const struct hapax_token *token)
{
    struct hapax_op op = switch_op(HAPAX_OP_CLAIM, scope);
    enum hapax_error error;

    op.token = *token;
    op.what = hapax_str("switch");
    error = ask(store, &op);
    if (error != HAPAX_ERR_NONE || op.verdict != HAPAX_CLAIMED)
        return error;
    op = switch_op(HAPAX_OP_COMPLETE, scope);
    op.token = *token;
    op.outcome.status = HAPAX__SWITCH_ON;
    return ask(store, &op);
}

/* RESOLVEs the record that is there, if one is. *said: the word counts. Where that cannot be seen,
 * the word may stand. */
static enum hapax_error say(struct hapax_store *store, struct hapax_span scope, struct hapax_op *op,
                            bool *said)
{
    struct hapax_op read = hapax__switch_read(scope);
    enum hapax_error error = ask(store, op);

    if (error == HAPAX_ERR_NONE && op->verdict == HAPAX_OK &&
        hapax_store_run(store, &read, 1) != HAPAX_ERR_NONE)
        error = HAPAX_ERR_INDETERMINATE;
    *said = error == HAPAX_ERR_NONE && is_word(&read);
    return error;
}

/* What another has put there under this id goes: doors may be refused a READ of it, or claim it. A
 * move brings a word of its old store to the new one as an outcome that nobody there has RESOLVED:
 * then the word is said once more, by another token, since of the same it would be a repeat. */
enum hapax_error hapax__switch_set(struct hapax_store *store, struct hapax_span scope,
                                   enum hapax__switch word, struct hapax_span by)
{
    struct hapax_op op = switch_op(HAPAX_OP_RESOLVE, scope), forget = op;
    struct hapax_token tokens[4];
    enum hapax_error error;
    bool said;
    bool heard; /* a word has changed what was there */

    if (getrandom(tokens, sizeof(tokens), 0) != sizeof(tokens))
        return hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE, "cannot get random bytes");
    op.token = tokens[0];
    op.resolve = HAPAX_RESOLVE_COMPLETE;
    op.force = forget.force = true;
    op.by = forget.by = by;
    op.outcome.status = (int)word;
    forget.token = tokens[2];
    forget.resolve = HAPAX_RESOLVE_FORGET;
    error = say(store, scope, &op, &said);
    heard = error == HAPAX_ERR_NONE && op.verdict == HAPAX_OK;
    if (heard && !said) {
        op.token = tokens[3];
        error = say(store, scope, &op, &said);
    }
    if (error == HAPAX_ERR_NONE && !said) {
        if (op.verdict == HAPAX_OK)
            error = ask(store, &forget);
        if (error == HAPAX_ERR_NONE)
            error = make(store, scope, &tokens[1]);
        if (error == HAPAX_ERR_NONE)
            error = say(store, scope, &op, &said);
        if (error == HAPAX_ERR_NONE && !said)
            error = hapax_store_fail(store, HAPAX_ERR_UNAVAILABLE,
                                     "another put a record under the switch's id, or removed it");
    }
    return error != HAPAX_ERR_NONE && heard ? HAPAX_ERR_INDETERMINATE : error;
}
