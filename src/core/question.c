/* SPDX-License-Identifier: Apache-2.0
 *
 * A question's identity. The invariant: with a secret, nothing that is stored of a request can be
 * found by trying what the request may have been. Rejected: to put the id into these HMACs, too. A
 * store would then not show which callers are equal. But a step that SQL begins has only the stored
 * form of its operation's fingerprint and caller.
 */
#include "question.h"

#include "id.h"

/* No id is hashed from the same bytes. The bytes of an id begin with the length of a scope, whose
 * first byte is zero. The bytes here begin with a letter. */
static void put_under(struct hapax_digest *digest, const char *label, struct hapax_span secret)
{
    const struct hapax_span parts[] = {hapax_str(label), {digest->bytes, sizeof(digest->bytes)}};

    if (secret.len > 0)
        hapax__mac(digest, secret, parts, 2);
}

/* fingerprint and caller: of the request, and then under the secret. */
static enum hapax_error identify(struct hapax_identity *to, struct hapax_span owner,
                                 struct hapax_span scope, struct hapax_span key,
                                 struct hapax_span step, struct hapax_span secret)
{
    enum hapax_error error = hapax_owned_id(&to->id, owner, scope, key, step, secret);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (owner.len > 0)
        (void)hapax_owner(&to->owner, owner, secret);
    if (step.len == 0 || step.ptr[0] != '.') {
        put_under(&to->fingerprint, "fingerprint", secret);
        put_under(&to->caller, "caller", secret);
    }
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__identify(struct hapax__flow_request *to, struct hapax_span owner,
                                 struct hapax_span key, struct hapax_span step,
                                 const struct hapax__secrets *secrets)
{
    struct hapax_identity now = {
        .owner = to->owner, .fingerprint = to->fingerprint, .caller = to->caller};
    struct hapax_identity old = now;
    enum hapax_error error = identify(&now, owner, to->scope, key, step, secrets->now);

    if (error != HAPAX_ERR_NONE)
        return error;
    to->id = now.id;
    to->owner = now.owner;
    to->fingerprint = now.fingerprint;
    to->caller = now.caller;
    to->has_old = secrets->old.ptr != NULL;
    if (to->has_old) {
        (void)identify(&old, owner, to->scope, key, step, secrets->old);
        to->old = old;
    }
    return HAPAX_ERR_NONE;
}
