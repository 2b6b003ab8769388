/* SPDX-License-Identifier: Apache-2.0
 *
 * The PostgreSQL store: a batch of ops is one statement, a call of hapax.run() with arrays, in a
 * transaction of its own. The machine runs there (sql/), under the server's clock. This file
 * decides what to send again.
 *
 * The invariant: an op is UNAVAILABLE, or refused, only if every statement with it was surely not
 * committed. After a lost statement its ops are sent again with the same tokens on a new
 * connection. Ops without an answer by then are INDETERMINATE: an error that answers a repeat
 * proves nothing about the first try. A RESOLVE that forgets removes its token, so it is sent once
 * only.
 *
 * hapax.run() waits for no other transaction. An op on an id that another transaction is writing
 * comes back as busy, and is sent again a moment later. The wait is short, since other ops are in
 * the same batch; an op that stays busy is UNAVAILABLE.
 */
#include "postgres.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "store/types.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_BYTES  ((size_t)20 << 20) /* of one statement; a single op always fits */
#define REPEATS_MAX  3u /* of a statement that was lost */
#define BUSY_MAX     7u /* repeats for busy ops: 1 to 64 ms apart, 127 ms in all */
#define OUT_KEPT_MAX ((size_t)1 << 20) /* a longer statement's memory is given back */

_Static_assert(BATCH_BYTES + HAPAX_BODY_MAX / 4 < HAPAX__PG_OUT_MAX, "a batch fits a statement");

/* Ops that are sent together and not answered yet. */
struct group {
    struct hapax_op **ops;
    size_t n;
    int64_t deadline_us;
    unsigned lost; /* statements with them whose result is not known */
    unsigned busy; /* times that some of them waited for others */
    unsigned left; /* hosts that took no writes any more */
};

static bool imports(const struct hapax_op *op)
{
    return op->kind == HAPAX_OP_IMPORT;
}

/* ---- statements ---------------------------------------------------------------------- */

static enum hapax_error say_no(struct hapax__pg *pg, enum hapax_error error)
{
    assert(error != HAPAX_ERR_NONE);
    return hapax_store_fail(&pg->base, error, "%s", pg->link.text);
}

static bool make_params(struct hapax__pg *pg, struct hapax__pg_params *params)
{
    if (hapax__pg_out_params(&pg->out, params))
        return true;
    hapax__fail(pg->link.text, HAPAX_ERR_NOMEM, "postgres: out of memory for a statement");
    return false;
}

static void trim(struct hapax__pg *pg)
{
    if (pg->out.cap <= OUT_KEPT_MAX)
        return;
    free(pg->out.bytes);
    memset(&pg->out, 0, sizeof(pg->out));
}

/* Pauses for ms/2 to ms, so that two clients that met do not meet again. */
static void pause_about(struct hapax__pg *pg, unsigned ms, int64_t deadline_us)
{
    int64_t left_ms = (deadline_us - hapax__monotonic_us()) / US_PER_MS;
    unsigned part;

    pg->link.random = pg->link.random * 0x5851f42d4c957f2du + 0x14057b7ef767814fu;
    part = ms / 2 + (unsigned)((pg->link.random >> 40) % (ms / 2 + 1));
    if (left_ms > 0)
        poll(NULL, 0, (int)(part < left_ms ? part : left_ms));
}

/* Keeps the ops without an answer. Returns whether there was one that was refused. */
static bool leave_answered(struct group *group)
{
    size_t kept = 0;
    bool refused = false;

    for (size_t i = 0; i < group->n; i++) {
        struct hapax_op *op = group->ops[i];

        refused |= op->error == HAPAX_ERR_REFUSED;
        if (op->verdict == HAPAX_NO_VERDICT && op->error != HAPAX_ERR_REFUSED)
            group->ops[kept++] = op;
    }
    group->n = kept;
    return refused;
}

static void leave_forgets(struct group *group)
{
    size_t kept = 0;

    for (size_t i = 0; i < group->n; i++) {
        struct hapax_op *op = group->ops[i];

        if (op->kind != HAPAX_OP_RESOLVE || op->resolve != HAPAX_RESOLVE_FORGET)
            group->ops[kept++] = op;
        else
            op->error = HAPAX_ERR_INDETERMINATE;
    }
    group->n = kept;
}

/* Pauses for the transactions that write the ops' ids. False: no more tries. */
static bool wait_for_others(struct hapax__pg *pg, struct group *group)
{
    if (group->busy >= BUSY_MAX || hapax__monotonic_us() >= group->deadline_us)
        return false;
    pause_about(pg, 1u << group->busy++, group->deadline_us);
    return hapax__monotonic_us() < group->deadline_us;
}

/* Takes the rows of a committed statement. NONE: the ops left are busy, and worth another try. */
static enum hapax_error take_rows(struct hapax__pg *pg, struct group *group, PGresult *rows)
{
    enum hapax_error error = imports(group->ops[0])
                                 ? hapax__pg_take_import(group->ops, group->n, rows)
                                 : hapax__pg_take_ops(&pg->base, group->ops, group->n, rows);

    PQclear(rows);
    if (leave_answered(group))
        hapax__fail(pg->link.text, HAPAX_ERR_REFUSED,
                    "%.100s: this role has the rights of a door, and reads no operations of others "
                    "(an operator's role has EXECUTE on hapax.run)",
                    pg->link.at);
    if (error != HAPAX_ERR_NONE) {
        group->lost++; /* ops without an answer are committed, too */
        hapax__fail(pg->link.text, error, "%.100s: %s", pg->link.at,
                    error == HAPAX_ERR_NOMEM ? "out of memory for its answers"
                                             : "its answers make no sense");
        return HAPAX_ERR_INDETERMINATE;
    }
    if (group->n == 0 || wait_for_others(pg, group))
        return HAPAX_ERR_NONE;
    hapax__fail(pg->link.text, HAPAX_ERR_UNAVAILABLE,
                "%.100s: another transaction holds the operation", pg->link.at);
    return HAPAX_ERR_UNAVAILABLE;
}

/* Takes the error of a statement that was rolled back. NONE: the statement is worth another try. */
static enum hapax_error take_refusal(struct hapax__pg *pg, struct group *group)
{
    struct hapax__pg_link *link = &pg->link;
    enum hapax_error error = hapax__pg_error_of(link->sqlstate);

    if (hapax__pg_transient(link->sqlstate) && wait_for_others(pg, group))
        return HAPAX_ERR_NONE;
    if (hapax__pg_leave_host(link, &group->left))
        return HAPAX_ERR_NONE;
    if (error == HAPAX_ERR_UNSUPPORTED) /* the next connect asks for the version first */
        hapax__pg_drop(link);
    return error;
}

/* Sends one statement with the group's ops. NONE: go on with the ops left. */
static enum hapax_error exchange(struct hapax__pg *pg, struct group *group)
{
    const char *sql = pg->link.door ? hapax__pg_door_sql : hapax__pg_run_sql;
    struct hapax__pg_params params;
    PGresult *rows;

    if (!imports(group->ops[0]))
        hapax__pg_put_ops(&pg->out, group->ops, group->n, pg->link.door);
    else if (hapax__pg_put_import(&pg->base, &pg->out, group->ops, group->n))
        sql = hapax__pg_import_sql;
    else
        pg->out.failed = true;
    if (!make_params(pg, &params))
        return HAPAX_ERR_NOMEM;
    switch (hapax__pg_exec(&pg->link, sql, &params, group->deadline_us, &rows)) {
    case HAPAX__PG_DONE:
        return take_rows(pg, group, rows);
    case HAPAX__PG_ROLLED_BACK:
        return take_refusal(pg, group);
    case HAPAX__PG_LATE:
        group->lost++;
        return HAPAX_ERR_INDETERMINATE;
    default:
        group->lost++;
        leave_forgets(group);
        return group->lost > REPEATS_MAX ? HAPAX_ERR_INDETERMINATE : HAPAX_ERR_NONE;
    }
}

/* Answers the group's ops. Ops without an answer get the error that it returns. */
static enum hapax_error run_group(struct hapax__pg *pg, struct group *group)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    while (group->n > 0 && error == HAPAX_ERR_NONE) {
        error = hapax__pg_connect(&pg->link, group->deadline_us, group->lost > 0);
        if (error == HAPAX_ERR_NONE)
            error = exchange(pg, group);
    }
    if (error != HAPAX_ERR_NONE && group->lost > 0)
        error = HAPAX_ERR_INDETERMINATE;
    for (size_t i = 0; i < group->n; i++)
        group->ops[i]->error = error;
    return error;
}

/* ---- run ----------------------------------------------------------------------------- */

/* How many of the ops go into one statement: IMPORTs have one of their own. */
static size_t fit(struct hapax_op *const *ops, size_t n)
{
    size_t size = hapax__pg_op_size(ops[0]), count = 1;

    while (count < n && imports(ops[count]) == imports(ops[0]) &&
           size + hapax__pg_op_size(ops[count]) <= BATCH_BYTES)
        size += hapax__pg_op_size(ops[count++]);
    return count;
}

static enum hapax_error first_error(const struct hapax_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ops[i].verdict == HAPAX_NO_VERDICT)
            return ops[i].error;
    return HAPAX_ERR_NONE;
}

static enum hapax_error run_ops(struct hapax__pg *pg, struct hapax_op *ops, size_t n,
                                int64_t deadline_us)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    for (size_t i = 0; i < n; i++)
        pg->pending[i] = &ops[i];
    for (size_t from = 0, count; from < n; from += count) {
        struct group group = {.ops = pg->pending + from, .deadline_us = deadline_us};

        count = fit(pg->pending + from, n - from);
        group.n = count;
        if (error == HAPAX_ERR_NONE) {
            error = run_group(pg, &group);
            if (error == HAPAX_ERR_UNAVAILABLE && group.busy >= BUSY_MAX)
                error = HAPAX_ERR_NONE; /* busy ops keep no others from being sent */
            continue;
        }
        for (size_t i = 0; i < count; i++) /* none of them was sent */
            group.ops[i]->error = HAPAX_ERR_UNAVAILABLE;
    }
    error = first_error(ops, n);
    return error == HAPAX_ERR_NONE ? error : say_no(pg, error);
}

static enum hapax_error take_walk(struct hapax__pg *pg, struct hapax_op *op, PGresult *rows)
{
    enum hapax_error error = op->kind == HAPAX_OP_LIST ? hapax__pg_take_list(&pg->base, op, rows)
                                                       : hapax__pg_take_purge(op, rows);

    PQclear(rows);
    if (error != HAPAX_ERR_NONE)
        hapax__fail(pg->link.text, error, "%.100s: %s", pg->link.at,
                    error == HAPAX_ERR_NOMEM ? "out of memory for its answer"
                                             : "its answer makes no sense");
    return error;
}

/* Runs a LIST or a PURGE. Both may be repeated, whatever became of the first try. */
static enum hapax_error run_walk(struct hapax__pg *pg, struct hapax_op *op, int64_t deadline_us)
{
    const char *sql = op->kind == HAPAX_OP_LIST ? hapax__pg_list_sql : hapax__pg_purge_sql;
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax__pg_params params;
    unsigned left = 0;
    PGresult *rows;

    if (op->kind == HAPAX_OP_LIST)
        hapax__pg_put_list(&pg->out, op);
    else
        hapax__pg_put_purge(&pg->out, op);
    if (!make_params(pg, &params))
        error = HAPAX_ERR_NOMEM;
    for (unsigned tries = 0; error == HAPAX_ERR_NONE && op->verdict == HAPAX_NO_VERDICT; tries++) {
        enum hapax__pg_end end;

        error = hapax__pg_connect(&pg->link, deadline_us, tries > 0);
        if (error != HAPAX_ERR_NONE)
            break;
        end = hapax__pg_exec(&pg->link, sql, &params, deadline_us, &rows);
        if (end == HAPAX__PG_DONE)
            error = take_walk(pg, op, rows);
        else if (end == HAPAX__PG_ROLLED_BACK && hapax__pg_leave_host(&pg->link, &left))
            continue;
        else if (end == HAPAX__PG_ROLLED_BACK)
            error = hapax__pg_error_of(pg->link.sqlstate);
        else if (end == HAPAX__PG_LATE || tries >= REPEATS_MAX)
            error = HAPAX_ERR_INDETERMINATE;
    }
    if (error == HAPAX_ERR_NONE)
        return error;
    op->error = error;
    return say_no(pg, error);
}

static enum hapax_error pg_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct hapax__pg *pg = (struct hapax__pg *)store;
    int64_t deadline_us = hapax__monotonic_us() + pg->link.uri.timeout_ms * US_PER_MS;
    enum hapax_error error;

    assert(n >= 1 && n <= HAPAX__PG_BATCH_MAX);
    if (ops[0].kind == HAPAX_OP_LIST || ops[0].kind == HAPAX_OP_PURGE)
        error = run_walk(pg, &ops[0], deadline_us);
    else
        error = run_ops(pg, ops, n, deadline_us);
    trim(pg);
    return error;
}

/* ---- open, close --------------------------------------------------------------------- */

static void pg_close(struct hapax_store *store)
{
    struct hapax__pg *pg = (struct hapax__pg *)store;

    hapax__pg_drop(&pg->link);
    hapax__pg_uri_release(&pg->link.uri);
    free(pg->out.bytes);
    free(pg);
}

static enum hapax_error pg_open(struct hapax_store **out, const char *uri,
                                char text[HAPAX_TEXT_MAX])
{
    struct hapax__pg *pg = calloc(1, sizeof(*pg));
    enum hapax_error error;

    *out = NULL;
    if (!pg)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    error = hapax__pg_uri(&pg->link.uri, uri, text);
    if (error != HAPAX_ERR_NONE) {
        free(pg);
        return error;
    }
    *out = &pg->base;
    return HAPAX_ERR_NONE;
}

#define POSTGRES(name)                                                                             \
    {                                                                                              \
        .scheme = (name), .batch_max = HAPAX__PG_BATCH_MAX, .body_max = HAPAX_BODY_MAX,            \
        .remains = HAPAX__POSTGRES_REMAINS, .open = pg_open, .run = pg_run,                        \
        .init = hapax__pg_init, .rights = hapax__pg_rights, .check = hapax__pg_check,              \
        .close = pg_close, .measure = hapax__pg_measure                                            \
    }

const struct hapax_store_type hapax__postgres = POSTGRES("postgres");
const struct hapax_store_type hapax__postgresql = POSTGRES("postgresql");
