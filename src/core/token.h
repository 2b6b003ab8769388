/* SPDX-License-Identifier: Apache-2.0
 *
 * What a handler needs to complete its record itself, as text: base64url (RFC 4648, section 5, no
 * padding) of the id's 32 bytes and the token's 16. The SQL functions and the header
 * Idempotency-Token take and carry this form.
 */
#ifndef HAPAX_CORE_TOKEN_H
#define HAPAX_CORE_TOKEN_H

#include <hapax/hapax.h>

#define HAPAX__TOKEN_TEXT 64u /* its length: 48 bytes leave nothing to pad */

/* Writes the text and a NUL. It is a secret, as the token is. */
void hapax__token_text(char out[HAPAX__TOKEN_TEXT + 1], const struct hapax_id *id,
                       const struct hapax_token *token);

#endif
