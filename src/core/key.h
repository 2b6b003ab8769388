/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys that are made or written by us: the key that an event brings, and a key as it is handed on.
 * A CloudEvent is named by its source and id; a second delivery has the same two. The HTTP gate and
 * the message door make the key here, so an event that comes in by both is one operation.
 */
#ifndef HAPAX_CORE_KEY_H
#define HAPAX_CORE_KEY_H

#include <hapax/hapax.h>

#define HAPAX__EVENT_NAME_MAX 4096u /* bytes of a source, and of an id */

/* Writes the key of the event `id` of `source`, both without the transport's own encoding. The key
 * is `SOURCE ID`, with one space, if that has at most 255 printable ASCII characters and the source
 * has no space (a URI has none). Otherwise it is `sha256-` and the hex hapax_digest() of source and
 * id. So two events never share a key, and a key can always be quoted as an Idempotency-Key.
 * HAPAX_ERR_INVALID: source or id is empty or over its limit; out and *len are as they were. */
HAPAX__SHARED enum hapax_error hapax__key_of_event(uint8_t out[HAPAX_KEY_MAX], size_t *len,
                                                   struct hapax_span source, struct hapax_span id);

/* Writes the key that stands for a digest, for example of several values: `sha256-` and the hex.
 * Returns its length, HAPAX__KEY_DIGEST_LEN. */
#define HAPAX__KEY_DIGEST_LEN 71u
size_t hapax__key_of_digest(uint8_t out[HAPAX_KEY_MAX], const uint8_t digest[32]);

/* Writes the key of bytes that are not a header: the bytes, up to HAPAX_KEY_MAX of them; otherwise
 * their SHA-256, as above. Nothing is cut off. Returns the key's length; 0: there are no bytes. */
size_t hapax__key_of_bytes(uint8_t out[HAPAX_KEY_MAX], struct hapax_span bytes);

/* Writes the key as an RFC 8941 String, which hapax_key_parse() reads back. False: the key is
 * empty, over HAPAX_KEY_MAX or not all printable ASCII; out and *len are as they were. */
#define HAPAX__KEY_QUOTED_MAX (2 * HAPAX_KEY_MAX + 2)
HAPAX__SHARED bool hapax__key_quote(uint8_t out[HAPAX__KEY_QUOTED_MAX], size_t *len,
                                    struct hapax_span key);

/* When the key says that it was made, in Unix milliseconds: a UUID of version 7 (RFC 9562), or
 * `t`, ten digits (Unix seconds), `-` and more. 0: the key says nothing of that kind. */
int64_t hapax__key_made_ms(struct hapax_span key);

#endif
