/* SPDX-License-Identifier: Apache-2.0
 *
 * Encryption at rest: outcomes are sealed before an op goes to a store, and opened in its answer.
 * So a store, its copies and its backups hold a sealed outcome like any other, and no store knows
 * of it. A sealed outcome has the length of its body; its headers are, most significant byte first:
 *
 *   0 u8 · form 1 u8 · key's id u8+bytes · check of the key 4 · attempt u32 · fence u64
 *   nonce 12 · tag 16 · the headers, sealed
 *
 * Headers and body are one text to AES-256-GCM. What is bound to it: all before the nonce, the
 * operation's id, the request's fingerprint and caller where there is a fence, the status, whether
 * the body was kept, and the length of the headers. No headers begin with a zero byte, so an
 * outcome that is not sealed is told from one that is.
 *
 * Each operation has two keys of its own: HKDF-Expand (RFC 5869) of the key in the file, over the
 * id, which is of owner, scope and key. One seals. With the other the nonce is made: an HMAC of all
 * that is sealed and bound. So the same outcome is the same bytes, and the repeat of a FAIL is seen
 * as one; and another outcome of the same attempt has another nonce, which GCM must have.
 *
 * Rejected: a random nonce, with which a repeat would not be known as one. A nonce of id and fence,
 * which two ends of one attempt would share. AES-SIV (RFC 5297), which needs no nonce: OpenSSL 3.0
 * looks up two algorithms by name for each use of it. A key for each owner alone: COMPLETE does not
 * name the owner, and whoever has the file has all keys.
 */
#ifndef HAPAX_STORE_SEAL_H
#define HAPAX_STORE_SEAL_H

#include <hapax/store.h>

struct hapax_arena;

#define HAPAX__KEYS_MAX   16u
#define HAPAX__KEY_ID_MAX 32u
#define HAPAX__KEYS_TEXT  4096u /* bytes of a keys file */

/* What sealing adds to the headers, at most. */
#define HAPAX__SEAL_MAX (3u + HAPAX__KEY_ID_MAX + 4u + 4u + 8u + 12u + 16u)

struct hapax__key {
    char id[HAPAX__KEY_ID_MAX + 1];
    uint8_t bytes[32];
    uint8_t check[4]; /* tells another key of the same id from a changed outcome */
};

struct hapax__keys {
    uint32_t n; /* 0: nothing is sealed, and nothing sealed can be opened */
    bool required; /* an outcome that is not sealed is an error, too */
    struct hapax__key key[HAPAX__KEYS_MAX]; /* the first one seals */
};

/* Reads the text of a keys file: lines `ID HEX`, with 64 hex digits; the line `sealed-only`; empty
 * lines, and lines that begin with '#'. An empty text has no keys. INVALID: why names the line, and
 * nothing of the key in it. */
enum hapax_error hapax__keys_read(struct hapax__keys *out, struct hapax_span text,
                                  char why[HAPAX_TEXT_MAX]);

/* Seals the outcome of an op that has been checked, if the op has one to be stored: op->outcome is
 * then the sealed one, until hapax__unseal(). Does nothing without keys. On failure the op is as it
 * was, but for its error: NOMEM, TOO_BIG (its headers have no room for the seal) or INVALID (they
 * begin with a zero byte); text says so. */
enum hapax_error hapax__seal(const struct hapax__keys *keys, struct hapax_op *op,
                             char text[HAPAX_TEXT_MAX]);

/* Undoes hapax__seal() in an op that a store has answered, or that was never asked, and opens the
 * outcome that the answer shows, into the arena. An op whose outcome cannot be opened loses its
 * verdict for the error SEALED, or UNSUPPORTED for a form of a later version; text names the key.
 * Its record stays, without the outcome. A RESOLVE has its verdict all the same, without that
 * outcome: it is about the state. */
void hapax__unseal(const struct hapax__keys *keys, struct hapax_op *op, struct hapax_arena *arena,
                   char text[HAPAX_TEXT_MAX]);

/* As hapax_store_keys(), with keys that were read; NULL: none. */
enum hapax_error hapax__store_keys(struct hapax_store *store, const struct hapax__keys *keys);

/* What a handle has that seals, or opens. */
struct hapax__sealing {
    struct hapax__keys keys;
    struct hapax_arena *ended; /* opened outcomes of the last hapax_store_end() */
};

void hapax__sealing_free(struct hapax__sealing *sealing); /* NULL is fine */

#endif
