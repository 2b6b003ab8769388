/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8 as RFC 3629 has it: no surrogates, nothing above U+10FFFF, no longer spelling than needed.
 */
#ifndef HAPAX_BASE_UTF8_H
#define HAPAX_BASE_UTF8_H

#include <hapax/hapax.h>

/* Reads the character at `at`, where `left` bytes are left (at least 1). Returns its length in
 * bytes; 0: the bytes are not UTF-8, and *character is not written. */
HAPAX__SHARED size_t hapax__utf8_read(uint32_t *character, const uint8_t *at, size_t left);

/* Writes a character (at most U+10FFFF). Returns its length in bytes. */
size_t hapax__utf8_write(uint8_t out[4], uint32_t character);

HAPAX__SHARED bool hapax__is_utf8(struct hapax_span bytes);

#endif
