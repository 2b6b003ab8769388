/* SPDX-License-Identifier: Apache-2.0
 *
 * The hashes that hapax.h and store.h do not have: the mark of a token, and HMAC.
 */
#ifndef HAPAX_CORE_ID_H
#define HAPAX_CORE_ID_H

#include <hapax/store.h>

/* Makes what a record keeps of a token. A plain hash is enough: a token is 16 random bytes. */
void hapax__mark(struct hapax_mark *out, const struct hapax_token *token);

/* HMAC-SHA-256 over the parts, one behind the other. The secret is not empty. out may be a part. */
void hapax__mac(struct hapax_digest *out, struct hapax_span secret, const struct hapax_span *parts,
                size_t n);

#endif
