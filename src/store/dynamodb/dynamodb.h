/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the DynamoDB store: its URI (uri.c), JSON (json.c), items (item.c), what this handle
 * wrote (recent.c), calls (call.c), one op (op.c), batches (store.c), LIST (list.c), the table
 * (init.c) and advice about the table (check.c). docs/dynamodb.md is the page for users.
 */
#ifndef HAPAX_STORE_DYNAMODB_DYNAMODB_H
#define HAPAX_STORE_DYNAMODB_DYNAMODB_H

#include <hapax/store.h>

#include "aws/aws.h"
#include "base/arena.h"
#include "json/raw.h"
#include "json/write.h"

#define HAPAX__DDB_BATCH_MAX  256u
#define HAPAX__DDB_V_LEN      16u
#define HAPAX__DDB_SET_LEN    16u
#define HAPAX__DDB_ITEM_MAX   390000u /* bytes of a record in its item, which has at most 409600 */
#define HAPAX__DDB_CHUNK      (350u << 10) /* bytes of a body in one item beside its record */
#define HAPAX__DDB_CHUNKS_MAX ((HAPAX_BODY_MAX + HAPAX__DDB_CHUNK - 1) / HAPAX__DDB_CHUNK)
#define HAPAX__DDB_SLACK_S    3600 /* from a record's end until the TTL may remove it */

/* ---- the URI (uri.c) ------------------------------------------------------------------- */

/* dynamodb://REGION/TABLE[?endpoint=URL&timeout=2s&skew=1s&connections=32&body_max=16m
 *     &inline_max=380k&profile=NAME] */
struct hapax__ddb_uri {
    char region[64];
    char table[256]; /* 3 to 255 of a-z A-Z 0-9 _ . - */
    char endpoint[256]; /* ""; the region's own */
    char profile[129]; /* ""; AWS_PROFILE, else "default" */
    int64_t timeout_ms; /* one run; 10ms to 1m */
    int64_t skew_ms; /* by which leases are lengthened; 0 to 1m */
    uint32_t connections; /* 1 to 256 */
    size_t body_max; /* 1k to HAPAX_BODY_MAX */
    size_t inline_max; /* bytes of a body in its record's item, if it fits; 0 to 380k */
};

/* INVALID: text names the part that is wrong, and its limit. */
enum hapax_error hapax__ddb_uri(struct hapax__ddb_uri *out, const char *uri,
                                char text[HAPAX_TEXT_MAX]);

/* Opens the AWS client for it. Errors as hapax__aws_open(). */
enum hapax_error hapax__ddb_client(struct hapax__aws **out, const struct hapax__ddb_uri *uri,
                                   char text[HAPAX_TEXT_MAX]);

/* ---- JSON (json.c) --------------------------------------------------------------------- */

/* Put "NAME":{"B":"…"} and "NAME":{"N":"…"}, with a ',' before them unless they come first behind
 * a '{'. */
void hapax__ddb_put_binary(struct hapax__json_out *out, const char *name, struct hapax_span bytes);
void hapax__ddb_put_numeric(struct hapax__json_out *out, const char *name, int64_t value);

/* Whether a reply is one JSON object, and nothing else. */
bool hapax__ddb_is_reply(struct hapax_span reply);

/* Checks a reply, and finds a member as hapax__raw_member() does. */
bool hapax__ddb_find(struct hapax_span *out, struct hapax_span reply, const char *path);

/* What a reader saw. */
enum hapax__ddb_seen {
    HAPAX__DDB_FOUND,
    HAPAX__DDB_NONE, /* the reply has no item */
    /* An item that is not one of ours; out->has_v may be set. Of a value: it is not of its type. */
    HAPAX__DDB_DAMAGED,
    HAPAX__DDB_NONSENSE, /* no reply of such a server */
    HAPAX__DDB_NOMEM
};

/* Decodes a string of base64; the bytes are in the arena. FOUND, DAMAGED or NOMEM. */
enum hapax__ddb_seen hapax__ddb_bytes(struct hapax_span *out, struct hapax_arena *arena,
                                      struct hapax_span value);

/* ---- items (item.c) -------------------------------------------------------------------- */

/* A body that is kept beside its record. */
struct hapax__ddb_chunks {
    uint8_t set[HAPAX__DDB_SET_LEN];
    uint16_t count; /* 0: there are none */
    uint32_t len; /* of the body */
    uint64_t sum;
};

/* What stands in the table under an id. */
struct hapax__ddb_item {
    uint8_t v[HAPAX__DDB_V_LEN]; /* changes with each write */
    bool has_v;
    struct hapax_span r; /* the encoded record */
    struct hapax__ddb_chunks chunks;
};

/* Lays out a body in chunks of the caller's new set, and sums it up. */
void hapax__ddb_chunks_of(struct hapax__ddb_chunks *out, const struct hapax_id *id,
                          const uint8_t set[HAPAX__DDB_SET_LEN], struct hapax_span body);
bool hapax__ddb_chunks_hold(const struct hapax__ddb_chunks *chunks, const struct hapax_id *id,
                            struct hapax_span body);

/* The bytes of chunk i. */
size_t hapax__ddb_chunk_len(const struct hapax__ddb_chunks *chunks, size_t i);

/* Whether the record may have its body in its item, and fits there. */
bool hapax__ddb_fits(const struct hapax_record *record, size_t inline_max);

/* The TTL of a record's item; 0: none. */
int64_t hapax__ddb_ttl(int64_t until_us);

/* Requests. The condition of a write is that the item has version v; v NULL: that there is no item.
 * ask_put writes the record, which is encoded in item->r, with the item's new version. */
void hapax__ddb_ask_put(struct hapax__json_out *out, const char *table,
                        const struct hapax_record *record, const struct hapax__ddb_item *item,
                        const uint8_t *v);
void hapax__ddb_ask_get(struct hapax__json_out *out, const char *table, const struct hapax_id *id);
/* v NULL: the item is damaged and has no version. */
void hapax__ddb_ask_delete(struct hapax__json_out *out, const char *table,
                           const struct hapax_id *id, const uint8_t *v);
void hapax__ddb_ask_put_chunk(struct hapax__json_out *out, const char *table,
                              const struct hapax_id *id, const struct hapax__ddb_chunks *chunks,
                              size_t i, struct hapax_span body, int64_t ttl_s);
void hapax__ddb_ask_get_chunk(struct hapax__json_out *out, const char *table,
                              const struct hapax_id *id, const struct hapax__ddb_chunks *chunks,
                              size_t i);
void hapax__ddb_ask_delete_chunk(struct hapax__json_out *out, const char *table,
                                 const struct hapax_id *id, const struct hapax__ddb_chunks *chunks,
                                 size_t i);

/* A page of the scan of a LIST, from behind `from`; zeroed: from the start. */
void hapax__ddb_ask_scan(struct hapax__json_out *out, const char *table, const struct hapax_op *op,
                         const struct hapax_id *from, uint32_t limit, int64_t until_us);

/* Replies. FOUND sets *out, whose spans are in the arena or the reply. */
enum hapax__ddb_seen hapax__ddb_take_item(struct hapax__ddb_item *out, struct hapax_arena *arena,
                                          struct hapax_span reply);
/* Whether the item of a reply has this version. */
bool hapax__ddb_shows(struct hapax_span reply, const uint8_t v[HAPAX__DDB_V_LEN]);
/* Reads the text of an item. */
enum hapax__ddb_seen hapax__ddb_read_item(struct hapax__ddb_item *out, struct hapax_arena *arena,
                                          struct hapax_span item);
/* Reads id and r of an item of a scan. */
enum hapax__ddb_seen hapax__ddb_read_listed(struct hapax_id *id, struct hapax_span *r,
                                            struct hapax_arena *arena, struct hapax_span item);
/* The bytes of a chunk. */
enum hapax__ddb_seen hapax__ddb_take_chunk(struct hapax_span *out, struct hapax_arena *arena,
                                           struct hapax_span reply);

/* ---- what this handle wrote (recent.c) ------------------------------------------------- */

/* The records that this handle left `started`, as far as there is room. A later write on one of
 * them reads nothing first: its condition finds out whether the record is still the same. */
struct hapax__ddb_recent;

struct hapax__ddb_recent *hapax__ddb_recent_new(void); /* NULL: out of memory */
void hapax__ddb_recent_free(struct hapax__ddb_recent *recent);
/* Copies into the arena. False: the record is not there, or out of memory. */
bool hapax__ddb_recent_get(const struct hapax__ddb_recent *recent, struct hapax__ddb_item *out,
                           const struct hapax_id *id, struct hapax_arena *arena);
void hapax__ddb_recent_put(struct hapax__ddb_recent *recent, const struct hapax_id *id,
                           const struct hapax__ddb_item *item);
void hapax__ddb_recent_drop(struct hapax__ddb_recent *recent, const struct hapax_id *id);
/* Drops the record if another version is in the table. */
void hapax__ddb_recent_seen(struct hapax__ddb_recent *recent, const struct hapax_id *id,
                            const struct hapax__ddb_item *item);

/* ---- the store (store.c) --------------------------------------------------------------- */

struct hapax__ddb {
    struct hapax_store base;
    struct hapax__ddb_uri uri;
    struct hapax__aws *aws;
    struct hapax__ddb_recent *recent;
    size_t kept; /* bytes of the answers of this run */
    struct hapax_vitals vitals; /* of `measured_us`, by the monotonic clock; 0: none yet */
    int64_t measured_us;
};

/* ---- calls (call.c) -------------------------------------------------------------------- */

/* Makes one call by itself, to its end, with this body. The reply is the call's. */
void hapax__ddb_ask(struct hapax__aws *aws, struct hapax__aws_call *call, const char *operation,
                    const struct hapax__json_out *body, int64_t deadline_us);

/* The error that the end of a failed call means; sets the handle's text. */
enum hapax_error hapax__ddb_error(struct hapax__ddb *ddb, const struct hapax__aws_call *call);

/* The same without a handle. */
enum hapax_error hapax__ddb_error_text(const struct hapax__aws *aws, const char *table,
                                       const struct hapax__aws_call *call,
                                       char text[HAPAX_TEXT_MAX]);

/* Sets the handle's text for a record that cannot be read; returns error. why NULL: the error's own
 * reason. */
enum hapax_error hapax__ddb_unreadable(struct hapax__ddb *ddb, const struct hapax_id *id,
                                       enum hapax_error error, const char *why);

/* Sets the handle's text for a reply that no such server gives; returns UNAVAILABLE. */
enum hapax_error hapax__ddb_nonsense(struct hapax__ddb *ddb);

/* ---- one op (op.c) --------------------------------------------------------------------- */

struct hapax__ddb_op;

/* Begins an op, which may be over at once. Its calls come back from hapax__aws_reap(). NULL: out of
 * memory, and op is not touched. */
struct hapax__ddb_op *hapax__ddb_op_new(struct hapax__ddb *ddb, struct hapax_op *op,
                                        int64_t deadline_us);
/* Takes a reaped call; returns the op to which the call belongs. */
struct hapax__ddb_op *hapax__ddb_op_take(struct hapax__aws_call *call);
/* Whether the op is answered and no call of it is under way. */
bool hapax__ddb_op_over(const struct hapax__ddb_op *work);
/* Only for an op that is over. */
void hapax__ddb_op_free(struct hapax__ddb_op *work);

/* ---- LIST, init, check ----------------------------------------------------------------- */

enum hapax_error hapax__ddb_list(struct hapax__ddb *ddb, struct hapax_op *op, int64_t deadline_us);
enum hapax_error hapax__ddb_init(const char *uri, bool print, hapax_say *say, void *arg,
                                 char text[HAPAX_TEXT_MAX]);
enum hapax_error hapax__ddb_check(struct hapax_store *store, hapax_say *say, void *arg);

/* `measure` of the type. Asks the table once a minute, and otherwise repeats what it knew. */
enum hapax_error hapax__ddb_measure(struct hapax_store *store, struct hapax_vitals *out);

/* `rights` of the type (rights.c): says an object of JSON with a policy of IAM for each use. */
enum hapax_error hapax__ddb_rights(const char *uri, const char *use, const char *role, bool print,
                                   hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX]);

/* Whether a reply of DescribeTable shows the key that this store needs. */
bool hapax__ddb_keyed(struct hapax_span reply);

#endif
