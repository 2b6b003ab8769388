/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a request is stored, made in one place for all doors: the id, the owner, and the
 * fingerprint and the caller under the secret.
 */
#ifndef HAPAX_CORE_QUESTION_H
#define HAPAX_CORE_QUESTION_H

#include "flow.h"

/* The secret of a store; and while it is being changed the one before (docs/rotation.md). */
struct hapax__secrets {
    struct hapax_span now; /* empty: none */
    struct hapax_span old; /* empty: none; ptr NULL: the secret is not being changed */
};

/* Makes a question's id and its owner's digest of the names; to->scope is one of them. With a
 * secret (secret.len > 0) it puts to->fingerprint and to->caller under it: HMAC over "fingerprint",
 * or "caller", and the digest. hapax.begin() (sql/) does the same. An entry of a list of steps,
 * whose step begins with a point, keeps its fingerprint: that is one constant, by which lists know
 * it. With an old secret it makes to->old of the same names, too. The owner and the step may be
 * empty. Errors are those of hapax_owned_id(); *to is then as it
 * was. */
enum hapax_error hapax__identify(struct hapax__flow_request *to, struct hapax_span owner,
                                 struct hapax_span key, struct hapax_span step,
                                 const struct hapax__secrets *secrets);

#endif
