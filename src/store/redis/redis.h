/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the Redis store share: ops as arguments of lua/machine.lua and its replies as
 * answers (ops.c), LIST and PURGE (list.c), and check (check.c).
 */
#ifndef HAPAX_STORE_REDIS_REDIS_H
#define HAPAX_STORE_REDIS_REDIS_H

#include "route.h"

#define HAPAX__REDIS_BATCH_MAX 256u
#define HAPAX__REDIS_KEY_MAX   (HAPAX__REDIS_PREFIX_MAX + 64u)
#define HAPAX__REDIS_GRAVE_MAX (2 * HAPAX__REDIS_PREFIX_MAX + 66u)
#define HAPAX__REDIS_ARG_MAX   776u
#define HAPAX__REDIS_ARGS_MAX  3u /* of one op */
/* Bytes of records in one reply; the last record may pass the limit. */
#define HAPAX__REDIS_REPLY_MAX (16u << 20)

/* An op as the script takes it. */
struct hapax__redis_args {
    uint8_t key[HAPAX__REDIS_KEY_MAX];
    size_t key_len;
    uint8_t grave[HAPAX__REDIS_GRAVE_MAX]; /* the key of its tombstone */
    size_t grave_len;
    uint8_t fixed[HAPAX__REDIS_ARG_MAX];
    struct hapax_span args[HAPAX__REDIS_ARGS_MAX]; /* into `fixed`, and borrowed from the op */
    size_t count;
};

struct hapax__redis {
    struct hapax_store base;
    struct hapax__redis_uri uri;
    struct hapax__redis_route *route;
    struct hapax__redis_script machine; /* lua/machine.lua */
    struct hapax__redis_args packed[HAPAX__REDIS_BATCH_MAX];
    char text[HAPAX_TEXT_MAX]; /* of the route */
};

/* ---- ops and answers (ops.c) --------------------------------------------------------- */

/* PREFIX and the id in hex. Returns its length. */
size_t hapax__redis_key(uint8_t out[HAPAX__REDIS_KEY_MAX], const char *prefix,
                        const struct hapax_id *id);

/* Reads the id of such a key, or of a tombstone's (*grave). False: it is no key of ours. */
bool hapax__redis_id(struct hapax_id *out, bool *grave, const char *prefix, struct hapax_span key);

/* Packs an op on one id. */
void hapax__redis_pack(struct hapax__redis_args *out, const struct hapax_op *op,
                       const char *prefix);

/* Packs a lookup of a record for LIST: the record is FOUND without the headers and body of its
 * outcome. A record of another state than `states` (as in the op) may be ABSENT. */
void hapax__redis_pack_lookup(struct hapax__redis_args *out, const struct hapax_id *id,
                              const char *prefix, unsigned states);

/* The arguments of a call of the script. `spans` has room for hapax__redis_argc() of them;
 * `numbers` has the digits of some, and must live as long. cluster: the record's key is also its
 * tombstone's. */
struct hapax__redis_numbers {
    char keys[16];
    char bytes[24];
};
size_t hapax__redis_argc(const struct hapax__redis_args *const *ops, size_t n);
void hapax__redis_fill(struct hapax_span *spans, struct hapax__redis_numbers *numbers,
                       const struct hapax__redis_args *const *ops, size_t n, size_t reply_max,
                       bool waits, bool cluster);

enum hapax__redis_answer {
    /* the op has a verdict or an error of its own: UNAVAILABLE, REFUSED, CORRUPT, … */
    HAPAX__REDIS_ANSWERED,
    HAPAX__REDIS_LATER, /* the op was not judged: the reply is full */
    HAPAX__REDIS_NONSENSE /* the script makes no such reply */
};

/* Reads what a reply of the script says of its i-th op and answers it; spans borrow from the reply.
 *   if_replicated   out: the answer counts only once the replicas have the write
 *   need            out, LATER: bytes of the record
 *   text            what failed, where an error was answered */
enum hapax__redis_answer hapax__redis_answer(struct hapax_op *op, const struct hapax__resp *reply,
                                             size_t i, bool *if_replicated, size_t *need,
                                             char text[HAPAX_TEXT_MAX]);

/* Sets text to why a record cannot be read; returns error. */
enum hapax_error hapax__redis_unreadable(char text[HAPAX_TEXT_MAX], const struct hapax_id *id,
                                         enum hapax_error error);

/* ---- LIST, PURGE (list.c) ------------------------------------------------------------ */

/* For `run`: answer op, or return the error and set the text of the handle. */
enum hapax_error hapax__redis_list(struct hapax__redis *redis, struct hapax_op *op);
enum hapax_error hapax__redis_purge(struct hapax__redis *redis, struct hapax_op *op);

/* ---- check (check.c) ----------------------------------------------------------------- */

enum hapax_error hapax__redis_check(struct hapax_store *store, hapax_say *say, void *arg);

/* `measure` of the types. */
enum hapax_error hapax__redis_measure(struct hapax_store *store, struct hapax_vitals *out);

/* ---- rights (rights.c) --------------------------------------------------------------- */

/* `rights` of the type: says a line of ACL SETUSER for each use. */
enum hapax_error hapax__redis_rights(const char *uri, const char *use, const char *role, bool print,
                                     hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX]);

#endif
