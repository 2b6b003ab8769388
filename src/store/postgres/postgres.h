/* SPDX-License-Identifier: Apache-2.0
 *
 * The PostgreSQL store's own parts: ops as arrays for hapax.run(), its rows as answers (ops.c), the
 * arrays' bytes (wire.c), the schema (init.c) and what to report of a server (check.c). The machine
 * itself is in sql/.
 */
#ifndef HAPAX_STORE_POSTGRES_POSTGRES_H
#define HAPAX_STORE_POSTGRES_POSTGRES_H

#include "link.h"
#include <hapax/hapax.h>

/* Each write takes an advisory lock until its commit; a batch takes a small part of all locks. */
#define HAPAX__PG_BATCH_MAX 128u
#define HAPAX__PG_OUT_MAX   ((size_t)32 << 20) /* bytes of one statement's parameters */

/* ---- bytes (wire.c) ---------------------------------------------------------------- */

/* Parameters that are being made. `failed` stays set after one did not fit, or memory was out. */
struct hapax__pg_out {
    uint8_t *bytes; /* the user's, with cap; free() */
    size_t len;
    size_t cap;
    bool failed;
    size_t starts[HAPAX__PG_PARAMS_MAX];
    Oid types[HAPAX__PG_PARAMS_MAX];
    bool nulls[HAPAX__PG_PARAMS_MAX];
    int n;
    const char *values[HAPAX__PG_PARAMS_MAX];
    int lengths[HAPAX__PG_PARAMS_MAX];
};

enum hapax__pg_type {
    HAPAX__PG_BOOL,
    HAPAX__PG_BYTEA,
    HAPAX__PG_INT2,
    HAPAX__PG_INT4,
    HAPAX__PG_INT8,
    HAPAX__PG_TEXT,
    HAPAX__PG_UUID /* 16 bytes */
};

/* Empties out, and keeps its memory. */
HAPAX__SHARED void hapax__pg_out_reset(struct hapax__pg_out *out);

/* Begins the next parameter, an array of n elements. The calls for elements below add them. Of 0
 * elements: it is NULL. */
HAPAX__SHARED void hapax__pg_begin_array(struct hapax__pg_out *out, enum hapax__pg_type type,
                                         size_t n);

/* Add a whole parameter: one value. */
HAPAX__SHARED void hapax__pg_put_value_int(struct hapax__pg_out *out, enum hapax__pg_type type,
                                           int64_t value);
HAPAX__SHARED void hapax__pg_put_value_bytes(struct hapax__pg_out *out, enum hapax__pg_type type,
                                             struct hapax_span bytes);

/* Adds a whole parameter: NULL instead of a value. */
HAPAX__SHARED void hapax__pg_put_none(struct hapax__pg_out *out, enum hapax__pg_type type);

/* Add an element of an array. */
HAPAX__SHARED void hapax__pg_put_int(struct hapax__pg_out *out, enum hapax__pg_type type,
                                     int64_t value);
HAPAX__SHARED void hapax__pg_put_bytes(struct hapax__pg_out *out, struct hapax_span bytes);
HAPAX__SHARED void hapax__pg_put_null(struct hapax__pg_out *out);

/* Gives the finished parameters; they borrow from out. False: `failed` is set. */
HAPAX__SHARED bool hapax__pg_out_params(struct hapax__pg_out *out, struct hapax__pg_params *params);

/* Reads values of a row. A value that does not have the length of its type sets `bad`. NULL reads
 * as 0 and as an empty span. */
struct hapax__pg_in {
    const PGresult *rows;
    int row;
    bool bad;
    /* Of the row's one value, by hapax__pg_split(). NULL: the row has columns. */
    const struct hapax_span *fields;
};

/* Splits a row of one composite value. Its n fields, which borrow from the row, are the columns
 * from now on; a NULL has no ptr. False: the value is no such one. */
bool hapax__pg_split(struct hapax__pg_in *in, struct hapax_span *fields, size_t n);

/* The signed number of size bytes, the most significant first. */
int64_t hapax__pg_number(const uint8_t *bytes, size_t size);

bool hapax__pg_is_null(const struct hapax__pg_in *in, int column);
HAPAX__SHARED int64_t hapax__pg_get_int(struct hapax__pg_in *in, int column,
                                        enum hapax__pg_type type);
HAPAX__SHARED struct hapax_span hapax__pg_get_bytes(const struct hapax__pg_in *in, int column);

/* ---- ops (ops.c) ------------------------------------------------------------------- */

extern const char hapax__pg_run_sql[]; /* for an operator */
extern const char hapax__pg_door_sql[]; /* for a door: the same arguments and rows */
extern const char hapax__pg_list_sql[];
extern const char hapax__pg_purge_sql[];
extern const char hapax__pg_import_sql[]; /* import.c */

/* About how many bytes an op adds to a statement, and never fewer. */
size_t hapax__pg_op_size(const struct hapax_op *op);

/* door: for hapax__pg_door_sql, to which each op names its request. */
void hapax__pg_put_ops(struct hapax__pg_out *out, struct hapax_op *const *ops, size_t n, bool door);
void hapax__pg_put_list(struct hapax__pg_out *out, const struct hapax_op *op);
void hapax__pg_put_purge(struct hapax__pg_out *out, const struct hapax_op *op);

/* Takes the answers; each row is one composite value. An op without a row, or whose row makes no
 * sense, stays as it is. An op that another transaction keeps from being judged gets UNAVAILABLE, a
 * READ that a door may not see REFUSED.
 * NOMEM: an op stays as it is for lack of memory. CORRUPT: rows made no sense. */
enum hapax_error hapax__pg_take_ops(struct hapax_store *store, struct hapax_op **ops, size_t n,
                                    const PGresult *rows);
enum hapax_error hapax__pg_take_list(struct hapax_store *store, struct hapax_op *op,
                                     const PGresult *rows);
enum hapax_error hapax__pg_take_purge(struct hapax_op *op, const PGresult *rows);

/* The same for IMPORTs (import.c). False: out of memory. */
bool hapax__pg_put_import(struct hapax_store *store, struct hapax__pg_out *out,
                          struct hapax_op *const *ops, size_t n);
enum hapax_error hapax__pg_take_import(struct hapax_op **ops, size_t n, const PGresult *rows);

/* ---- the store --------------------------------------------------------------------- */

struct hapax__pg {
    struct hapax_store base;
    struct hapax__pg_link link;
    struct hapax__pg_out out;
    struct hapax_op *pending[HAPAX__PG_BATCH_MAX];
};

/* `init` (init.c) and `check` (check.c) of the type. */
enum hapax_error hapax__pg_init(const char *uri, bool print, hapax_say *say, void *arg,
                                char text[HAPAX_TEXT_MAX]);
enum hapax_error hapax__pg_check(struct hapax_store *store, hapax_say *say, void *arg);

/* `measure` of the type (check.c). */
enum hapax_error hapax__pg_measure(struct hapax_store *store, struct hapax_vitals *out);

/* `rights` of the type (rights.c). */
enum hapax_error hapax__pg_rights(const char *uri, const char *use, const char *role, bool print,
                                  hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX]);

/* Asks who has rights on the schema that only its owner should have (rights.c). On success *out has
 * a row of text each, 20 at most: who it is; which right, and what to do; "t" where the script
 * takes that back or refuses to run, "f" where it leaves that alone. The caller frees it. On
 * failure link->text says why. */
enum hapax_error hapax__pg_strangers(struct hapax__pg_link *link, int64_t deadline_us,
                                     PGresult **out);

/* sql/, in order: from nothing, or an older version, to HAPAX__PG_VERSION. */
extern const char hapax__postgres_sql[];

/* Whether the comment of a schema says that its functions are those of hapax__postgres_sql. */
bool hapax__pg_ours(const char *comment);

#endif
