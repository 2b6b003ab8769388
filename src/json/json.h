/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON as a fingerprint and a key see it: two documents that say the same are the same bytes.
 *
 * Bytes are the default everywhere; this is for routes whose clients spell a repeat differently, or
 * put a field in it that changes (a timestamp, a trace id). What does not matter: the order of
 * names, white space, how a number is spelled (1, 1.0 and 10e-1 are one number, compared as exact
 * decimals), and escapes ("\u00e9" is "é"). What does: the order of an array, the Unicode form
 * of a string, and 1 against "1".
 *
 * A document is NOT_CANONICAL, which is no error, where readers could differ about what it says, or
 * where it is over a limit: no JSON (RFC 8259), a name twice in one object, bytes that are not
 * UTF-8, half of a surrogate pair, a byte order mark, an exponent of more than 17 digits,
 * containers over HAPAX__JSON_DEPTH_MAX deep, more than HAPAX_BODY_MAX bytes.
 *
 * Canonical form: no white space; names sorted by the bytes of their canonical spelling; strings in
 * UTF-8 with only '"', '\' and the characters below U+0020 escaped (\", \\, \u00xx); a number is
 * its sign and digits where it is whole and of at most 21 digits, else its digits, without zeros at
 * either end, with 'e' and an exponent (1.50 is 15e-1). Zero has no sign. The form is JSON itself,
 * and its own canonical form. It is part of fingerprints in stores: to change it is to make every
 * repeat of an older request a mismatch.
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
    HAPAX__JSON_NOT_CANONICAL, /* the bytes have to do; see above */
    HAPAX__JSON_ABSENT, /* scalar: the pointer finds nothing, or null */
    HAPAX__JSON_NOT_SCALAR, /* scalar: the pointer finds an object or an array */
    HAPAX__JSON_TOO_LONG, /* scalar: its text is longer than `size` */
    HAPAX__JSON_NOMEM /* nothing is known; the request must not go on */
};

/* Whether text is a JSON Pointer within its limit. False: *why, a static text, says what is wrong.
 * To be asked once, while settings are read: the functions below take only what passes, and
 * abort on anything else. */
bool hapax__json_pointer_check(struct hapax_span pointer, const char **why);

/* Gives the canonical form of body: *len bytes at *out, which is yours to free(). OK,
 * NOT_CANONICAL or NOMEM; but for OK *out is NULL. */
enum hapax__json_result hapax__json_canonical(uint8_t **out, size_t *len, struct hapax_span body);

enum hapax__json_select {
    HAPAX__JSON_INCLUDE = 1, /* only what the pointers find counts */
    HAPAX__JSON_EXCLUDE /* what they find does not count, nor whether it is there */
};

/* The fingerprint of a body.
 *   OK             *out is over what was selected of its canonical form. A pointer of INCLUDE that
 *                  finds nothing differs from one that finds null. No pointers: the whole counts
 *   NOT_CANONICAL  *out is over the bytes, all of them: hapax_digest() of body as the one part.
 *                  Count and log it where pointers were given: they had no effect
 *   NOMEM          *out is not written
 * The two kinds never hash the same bytes. Pass *out on as one part where a fingerprint has more.
 * n is at most HAPAX__JSON_POINTERS_MAX. INCLUDE depends on the order of its pointers. */
enum hapax__json_result hapax__json_fingerprint(struct hapax_digest *out, struct hapax_span body,
                                                enum hapax__json_select select,
                                                const struct hapax_span *pointers, size_t n);

/* Gives what one pointer finds as a key: the bytes of a string (unescaped; may be empty), the
 * canonical form of a number, "true" or "false". null counts as ABSENT: senders write null and
 * leave a field out alike, and neither names an operation. On OK *len bytes, at most size, are at
 * out. NOT_CANONICAL: what is in the body is not certain, so it holds no key to be relied on. */
enum hapax__json_result hapax__json_scalar(uint8_t *out, size_t size, size_t *len,
                                           struct hapax_span body, struct hapax_span pointer);

#endif
