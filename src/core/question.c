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

enum hapax_error hapax__identify(struct hapax__flow_request *to, struct hapax_span owner,
                                 struct hapax_span key, struct hapax_span step,
                                 struct hapax_span secret)
{
    enum hapax_error error = hapax_owned_id(&to->id, owner, to->scope, key, step, secret);

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
