/* SPDX-License-Identifier: Apache-2.0
 *
 * Base64 (RFC 4648, section 4).
 */
#ifndef HAPAX_BASE_BASE64_H
#define HAPAX_BASE_BASE64_H

#include <hapax/hapax.h>

/* How many digits len bytes become, padding included. */
#define HAPAX__BASE64_LEN(len) (((len) + 2) / 3 * 4)

/* Writes the digits of bytes: HAPAX__BASE64_LEN(bytes.len) of them, without a NUL. */
void hapax__base64_encode(char *out, struct hapax_span bytes);

/* Reads digits, with padding or without, into out: *len bytes, fewer than in.len. out may be
 * in.ptr. False: `in` is not base64, and *len is not written. */
HAPAX__SHARED bool hapax__base64_decode(uint8_t *out, size_t *len, struct hapax_span in);

#endif
