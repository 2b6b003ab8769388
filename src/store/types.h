/* SPDX-License-Identifier: Apache-2.0
 *
 * The stores of this library, and what they share. A program adds the stores of other libraries
 * (hapax_rocksdb_use()) or of its tests with hapax__store_add(), before it opens any.
 */
#ifndef HAPAX_STORE_TYPES_H
#define HAPAX_STORE_TYPES_H

#include <hapax/store.h>

extern const struct hapax_store_type hapax__memory;
extern HAPAX__SHARED const struct hapax_store_type hapax__keeper; /* unix:PATH */
extern const struct hapax_store_type hapax__postgres; /* postgres://… */
extern const struct hapax_store_type hapax__postgresql; /* the same, by its other name */
extern const struct hapax_store_type hapax__redis_node; /* redis://… */
extern const struct hapax_store_type hapax__redis_node_tls; /* rediss://… */
extern const struct hapax_store_type hapax__redis_sentinel; /* redis+sentinel://… */
extern const struct hapax_store_type hapax__redis_sentinel_tls; /* rediss+sentinel://… */
extern const struct hapax_store_type hapax__redis_cluster; /* redis+cluster://… */
extern const struct hapax_store_type hapax__redis_cluster_tls; /* rediss+cluster://… */
extern const struct hapax_store_type hapax__dynamodb; /* dynamodb://… */
extern const struct hapax_store_type hapax__hybrid; /* hybrid:redis://…+postgres://… */
extern const struct hapax_store_type hapax__move; /* move:OLD+NEW */
extern const struct hapax_store_type hapax__rocksdb_client; /* rocksdb:PATH, opened elsewhere */

/* `remains` of stores that are kept by others, too. */
#define HAPAX__ROCKSDB_REMAINS "backups and snapshots of its folder"
#define HAPAX__POSTGRES_REMAINS                                                                    \
    "its table until VACUUM, the write-ahead log and its archive, replicas until they have "       \
    "followed, and backups"

/* Adds a type, once. A type with the scheme of a built-in one stands before it. Safe from any
 * thread. */
HAPAX__SHARED void hapax__store_add(const struct hapax_store_type *type);

/* Whether the URI begins with the scheme of a type. */
bool hapax__store_known(const char *uri);

/* Copies what an answered op shows (record, records) into the store's memory. False: out of memory,
 * and the op has become INDETERMINATE. */
HAPAX__SHARED bool hapax__store_keep(struct hapax_store *store, struct hapax_op *op);

/* Asks again for an op that has got INDETERMINATE, a few times. It stays INDETERMINATE unless a
 * repeat tells what became of the first try: no error of a repeat does, nor does a RESOLVE that
 * meets the record as another one has left it since. A RESOLVE that forgets is not repeated: it
 * takes its token away with the record, and could forget a newer one. */
void hapax__ask_again(struct hapax_store *store, struct hapax_op *op);

/* Gives an op the answer that it has before a store is asked: none, and INDETERMINATE. */
void hapax__op_preset(struct hapax_op *op);

/* Checks an op's fields against their limits, as hapax_store_run() does. False: op->error is
 * INVALID or TOO_BIG, and text names the field. */
bool hapax__op_check(struct hapax_op *op, size_t body_max, char text[HAPAX_TEXT_MAX]);

/* The verdicts that an op of this kind can get, as bits: to check answers that others sent. */
unsigned hapax__verdicts_of(enum hapax_op_kind kind);

/* The id of a record of the library's own. */
void hapax__own_id(struct hapax_id *id, struct hapax_span what);

/* What doors that follow a store's switch do at most (`hapax switch`), in this order: of two words
 * the lower one goes. ON takes nothing away from a door's own settings. */
enum hapax__switch { HAPAX__SWITCH_OFF = 1, HAPAX__SWITCH_SHADOW, HAPAX__SWITCH_ON };

const char *hapax__switch_name(enum hapax__switch word);

/* The READ of a switch: of a scope's, or with an empty scope of the store's. A door may ask it. */
struct hapax_op hapax__switch_read(struct hapax_span scope);

/* The word that an answered READ shows. ON: nobody has said one. */
enum hapax__switch hapax__switch_said(const struct hapax_op *read);

/* Sets a switch, as the operator `by`. Blocks. Errors are those of hapax_store_run(). */
enum hapax_error hapax__switch_set(struct hapax_store *store, struct hapax_span scope,
                                   enum hapax__switch word, struct hapax_span by);

/* Whether the record is one of a switch. */
bool hapax__is_switch(const struct hapax_record *record);

/* The id of the record with the check value of a store's secret (hapax_store_bind()), and the check
 * value, which is that record's fingerprint. */
HAPAX__SHARED void hapax__bind_check(struct hapax_id *id, struct hapax_digest *check,
                                     struct hapax_span secret);

/* The id of the hybrid store's epoch, which is of its own PostgreSQL alone. */
void hapax__epoch_id(struct hapax_id *id);

/* hapax_store_bind() in parts, for who runs ops without blocking: makes the first op. UNAVAILABLE:
 * no random bytes; text says so. */
enum hapax_error hapax__bind_begin(struct hapax_op *op, struct hapax_span secret,
                                   char text[HAPAX_TEXT_MAX]);

/* Takes the op with its verdict. *more: it has become the next one to run; otherwise the store is
 * bound. REFUSED: the store was first used with another secret; text says so. */
enum hapax_error hapax__bind_told(struct hapax_op *op, struct hapax_span secret, bool *more,
                                  char text[HAPAX_TEXT_MAX]);

/* *secret: whether the store was bound to a secret. Errors are those of a READ. A door may not READ
 * the record of a secret that it does not have: that it is REFUSED says that there is one. */
enum hapax_error hapax__bind_has_secret(struct hapax_store *store, bool *secret);

/* Sets the clock of a memory store: for tests that own time. */
void hapax__memory_clock(struct hapax_store *store, int64_t (*clock_us)(void *arg), void *arg);

#endif
