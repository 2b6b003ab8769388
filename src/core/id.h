/* SPDX-License-Identifier: Apache-2.0
 *
 * What hapax.h and store.h do not have of hashes: the mark of a token, HMAC, and the owner of none.
 */
#ifndef HAPAX_CORE_ID_H
#define HAPAX_CORE_ID_H

#include <hapax/store.h>

/* Makes what a record keeps of a token. A plain hash is enough: a token is 16 random bytes. */
void hapax__mark(struct hapax_mark *out, const struct hapax_token *token);

/* HMAC-SHA-256 over the parts, one behind the other. The secret is not empty. out may be a part. */
void hapax__mac(struct hapax_digest *out, struct hapax_span secret, const struct hapax_span *parts,
                size_t n);

/* Whether the digest is an owner's, and not that of none. */
bool hapax__owned(const struct hapax_digest *owner);

#endif
