/* SPDX-License-Identifier: Apache-2.0
 *
 * Canonical JSON, for fingerprints and keys: two documents that mean the same have the same
 * canonical form.
 *
 * A fingerprint is of the body's bytes by default. Canonical JSON is for routes whose clients spell
 * a repeat differently, or put a field in it that changes (a timestamp, a trace id).
 *   Counts for nothing: the order of names, white space, escapes ("\u00e9" is "é"), and how a
 *   number is spelled. 1, 1.0 and 10e-1 are one number; numbers are compared as exact decimals.
 *   Counts: the order of an array, the Unicode form of a string, and 1 against "1".
 *
 * A document is NOT_CANONICAL, which is no error, where two readers could understand it differently
 * or where it is over a limit: no JSON (RFC 8259), a name twice in one object, bytes that are not
 * UTF-8, half of a surrogate pair, a byte order mark, an exponent of more than 17 digits,
 * containers over HAPAX__JSON_DEPTH_MAX deep, more than HAPAX_BODY_MAX bytes.
 *
 * The canonical form has no white space. Names are sorted by the bytes of their canonical spelling.
 * Strings are UTF-8, in which only '"', '\' and characters below U+0020 are escaped: \", \\,
 * \u00xx. A whole number of at most 21 digits is its sign and digits. Any other number is its sign,
 * its digits without zeros at either end, 'e' and an exponent (1.50 is 15e-1). Zero has no sign.
 *
 * The form is JSON itself, and its own canonical form. Fingerprints in stores depend on the form: a
 * change of it makes every repeat of an older request a mismatch.
 *
 * Pointers are JSON Pointers (RFC 6901): "" is the document, "/a/0" the first element of what is
 * under "a", ~1 and ~0 are '/' and '~' in a name. In an array only "0" and numbers without a
 * leading zero name an element; "-" names none.
 *
 * All functions are safe from any thread and keep nothing.
 */
#ifndef HAPAX_JSON_JSON_H
#define HAPAX_JSON_JSON_H

#include <hapax/hapax.h>

#define HAPAX__JSON_DEPTH_MAX       64u /* containers in one another */
#define HAPAX__JSON_POINTERS_MAX    32u /* pointers in one list */
#define HAPAX__JSON_POINTER_LEN_MAX 1024u /* bytes of a pointer */

enum hapax__json_result {
    HAPAX__JSON_OK = 0,
    HAPAX__JSON_NOT_CANONICAL, /* see above; the bytes count instead */
    HAPAX__JSON_ABSENT, /* scalar: the pointer finds nothing, or null */
    HAPAX__JSON_NOT_SCALAR, /* scalar: the pointer finds an object or an array */
    HAPAX__JSON_TOO_LONG, /* scalar: its text is longer than `size` */
    HAPAX__JSON_NOMEM /* nothing is known; the request must not go on */
};

/* Whether text is a JSON Pointer within its limit. False: *why, a static text, says what is wrong.
 * Check each pointer once, while settings are read: the functions below abort on a pointer that
 * would not pass. */
bool hapax__json_pointer_check(struct hapax_span pointer, const char **why);

/* Gives the canonical form of body: *len bytes at *out, which is yours to free(). Returns OK or,
 * with *out NULL, NOT_CANONICAL or NOMEM. */
HAPAX__SHARED enum hapax__json_result hapax__json_canonical(uint8_t **out, size_t *len,
                                                            struct hapax_span body);

enum hapax__json_select {
    HAPAX__JSON_INCLUDE = 1, /* only what the pointers find counts */
    HAPAX__JSON_EXCLUDE /* all counts but what the pointers find */
};

/* The fingerprint of a body.
 *   OK             *out is of what was selected of the canonical form. A pointer of INCLUDE that
 *                  finds nothing differs from one that finds null. No pointers: the whole counts
 *   NOT_CANONICAL  *out is of all bytes: hapax_digest() of body as the one part. Count and log
 *                  this where pointers were given, since they had no effect
 *   NOMEM          *out is not written
 * The two kinds never hash the same bytes. Where a fingerprint has more parts, *out is one of them.
 * n is at most HAPAX__JSON_POINTERS_MAX. With INCLUDE the order of the pointers counts. */
HAPAX__SHARED enum hapax__json_result hapax__json_fingerprint(struct hapax_digest *out,
                                                              struct hapax_span body,
                                                              enum hapax__json_select select,
                                                              const struct hapax_span *pointers,
                                                              size_t n);

/* Gives the scalar that one pointer finds, as a key: the bytes of a string (unescaped; may be
 * empty), the canonical form of a number, "true" or "false". On OK *len bytes, at most size, are at
 * out. null is ABSENT: for many senders null and no field are the same, and neither names an
 * operation. NOT_CANONICAL: two readers could find two keys in the body, so it has none. */
HAPAX__SHARED enum hapax__json_result hapax__json_scalar(uint8_t *out, size_t size, size_t *len,
                                                         struct hapax_span body,
                                                         struct hapax_span pointer);

#endif
