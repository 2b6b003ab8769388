/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys as they come and go: the key that an event brings along, and how a key is written where it is handed on. A
 * CloudEvent is named by its source and id, and whoever delivers it twice delivers the same two. The HTTP gate and
 * the message door make the key here, so that an event that comes in by both is one operation.
 */
#ifndef HAPAX_CORE_KEY_H
#define HAPAX_CORE_KEY_H

#include <hapax/hapax.h>

#define HAPAX__EVENT_NAME_MAX 4096u /* bytes of a source, and of an id */

/* Writes the key of the event `id` of `source`, as they are once the transport's own encoding is taken off:
 * `SOURCE ID`, with one space, where that is of 255 printable ASCII characters at most and the source
 * has no space in it, as no URI has; else `sha256-` and the hex hapax_digest() of source and id. So no
 * two events have the same key, and it can always be quoted as an Idempotency-Key.
 * HAPAX_ERR_INVALID: one of them is empty or over its limit; out and *len are as they were. */
enum hapax_error hapax__key_of_event(uint8_t out[HAPAX_KEY_MAX], size_t *len,
                                     struct hapax_span source, struct hapax_span id);

/* Writes what a key is where it is a digest of 32 bytes, as where several values make one: `sha256-` and its hex. Returns its
 * length, HAPAX__KEY_DIGEST_LEN. */
#define HAPAX__KEY_DIGEST_LEN 71u
size_t hapax__key_of_digest(uint8_t out[HAPAX_KEY_MAX], const uint8_t digest[32]);

/* Writes the key of bytes that are no header: themselves up to HAPAX_KEY_MAX of them, else their SHA-256 as above; nothing is
 * cut. Returns its length; 0: there are none. */
size_t hapax__key_of_bytes(uint8_t out[HAPAX_KEY_MAX], struct hapax_span bytes);

/* Writes the key as an RFC 8941 String, which hapax_key_parse() reads back. False: it cannot be one, for it is empty, over
 * HAPAX_KEY_MAX or not of printable ASCII alone; out and *len are as they were. */
#define HAPAX__KEY_QUOTED_MAX (2 * HAPAX_KEY_MAX + 2)
bool hapax__key_quote(uint8_t out[HAPAX__KEY_QUOTED_MAX], size_t *len, struct hapax_span key);

#endif
