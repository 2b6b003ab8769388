/* SPDX-License-Identifier: Apache-2.0
 *
 * The relay's statements to the database; the relay decides when each is sent.
 *
 * The invariant: every statement may be sent twice. If its answer was lost, the relay sends it
 * again, whether the first one took effect or not. A row that has ended (published, or put aside)
 * is not changed by that, and a lease that this relay already has is granted to it once more.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "relay.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum hapax_error hapax__outbox_open(struct hapax__outbox *outbox, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    memset(outbox, 0, sizeof(*outbox));
    if (getrandom(outbox->relay, sizeof(outbox->relay), 0) != sizeof(outbox->relay))
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot get random bytes");
    error = hapax__pg_uri(&outbox->link.uri, uri, text);
    if (error == HAPAX_ERR_NONE)
        (void)snprintf(outbox->link.at, sizeof(outbox->link.at), "postgres");
    return error;
}

void hapax__outbox_close(struct hapax__outbox *outbox)
{
    hapax__pg_drop(&outbox->link);
    hapax__pg_uri_release(&outbox->link.uri);
    free(outbox->out.bytes);
}

/* Runs a statement, and again where its answer is lost, it was rolled back for the sake of others,
 * or the host takes no writes any more, until its time is over: statements can be repeated. */
static enum hapax_error ask(struct hapax__outbox *outbox, const char *sql, PGresult **rows)
{
    int64_t deadline_us = hapax__monotonic_us() + outbox->link.uri.timeout_ms * US_PER_MS;
    struct hapax__pg_params params;
    enum hapax_error error;
    unsigned left = 0;
    bool again;

    outbox->lost = false;
    if (!hapax__pg_out_params(&outbox->out, &params)) {
        (void)hapax__fail(outbox->link.text, HAPAX_ERR_NOMEM, "postgres: out of memory");
        return HAPAX_ERR_NOMEM;
    }
    do {
        enum hapax__pg_end end;

        error = hapax__pg_connect(&outbox->link, deadline_us, true);
        if (error != HAPAX_ERR_NONE)
            break;
        end = hapax__pg_exec(&outbox->link, sql, &params, deadline_us, rows);
        if (end == HAPAX__PG_DONE)
            return HAPAX_ERR_NONE;
        outbox->lost |= end != HAPAX__PG_ROLLED_BACK;
        error = hapax__pg_error_of(outbox->link.sqlstate);
        again = end == HAPAX__PG_ROLLED_BACK ? hapax__pg_transient(outbox->link.sqlstate) ||
                                                   hapax__pg_leave_host(&outbox->link, &left)
                                             : end != HAPAX__PG_LATE;
    } while (again && hapax__monotonic_us() < deadline_us);
    return outbox->lost ? HAPAX_ERR_INDETERMINATE : error;
}

/* The database's functions are of another version, although they name ours: one takes other
 * arguments, or a row makes no sense. */
static enum hapax_error nonsense(struct hapax__outbox *outbox)
{
    return hapax__fail(outbox->link.text, HAPAX_ERR_UNSUPPORTED,
                       "%.100s: the outbox's functions are not those of this Hapax (run \"hapax "
                       "init\")",
                       outbox->link.at);
}

/* ---- leases ------------------------------------------------------------------------------ */

enum hapax_error hapax__outbox_lease(struct hapax__outbox *outbox, int64_t lease_ms,
                                     int16_t parts[HAPAX__RELAY_PARTS], size_t *n)
{
    static const char sql[] = "SELECT unnest(hapax.outbox_lease($1, $2))";
    const struct hapax_span relay = {outbox->relay, sizeof(outbox->relay)};
    struct hapax__pg_in in = {0};
    enum hapax_error error;
    PGresult *rows;

    hapax__pg_out_reset(&outbox->out);
    hapax__pg_put_value_bytes(&outbox->out, HAPAX__PG_UUID, relay);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT8, lease_ms);
    error = ask(outbox, sql, &rows);
    if (error != HAPAX_ERR_NONE)
        return error;
    in.rows = rows;
    *n = 0;
    for (; in.row < PQntuples(rows) && *n < HAPAX__RELAY_PARTS; in.row++)
        parts[(*n)++] = (int16_t)hapax__pg_get_int(&in, 0, HAPAX__PG_INT2);
    PQclear(rows);
    return in.bad ? nonsense(outbox) : HAPAX_ERR_NONE;
}

/* ---- turns ------------------------------------------------------------------------------- */

/* Which rows have ended and how, and of which message each was: its topic and key. */
static void put_ends(struct hapax__outbox *outbox, const struct hapax__outbox_end *ends, size_t n)
{
    hapax__pg_begin_array(&outbox->out, HAPAX__PG_INT8, n);
    for (size_t i = 0; i < n; i++)
        hapax__pg_put_int(&outbox->out, HAPAX__PG_INT8, ends[i].row->seq);
    hapax__pg_begin_array(&outbox->out, HAPAX__PG_TEXT, n);
    for (size_t i = 0; i < n; i++) {
        if (ends[i].error)
            hapax__pg_put_bytes(&outbox->out, hapax_str(ends[i].error));
        else
            hapax__pg_put_null(&outbox->out);
    }
    hapax__pg_begin_array(&outbox->out, HAPAX__PG_TEXT, n);
    for (size_t i = 0; i < n; i++)
        hapax__pg_put_bytes(&outbox->out, ends[i].row->topic);
    hapax__pg_begin_array(&outbox->out, HAPAX__PG_TEXT, n);
    for (size_t i = 0; i < n; i++)
        hapax__pg_put_bytes(&outbox->out, ends[i].row->key);
}

static void put_take(struct hapax__outbox *outbox, const struct hapax__outbox_take *take)
{
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT8, take->retry_ms);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT4, take->tries_max);
    hapax__pg_begin_array(&outbox->out, HAPAX__PG_INT2, take->part_count);
    for (size_t i = 0; i < take->part_count; i++)
        hapax__pg_put_int(&outbox->out, HAPAX__PG_INT2, take->parts[i]);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT8, take->floor);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT4, take->limit);
}

static struct hapax__outbox_row row_of(struct hapax__pg_in *in)
{
    return (struct hapax__outbox_row){
        .seq = hapax__pg_get_int(in, 0, HAPAX__PG_INT8),
        .topic = hapax__pg_get_bytes(in, 1),
        .aggregate = hapax__pg_get_bytes(in, 2),
        .key = hapax__pg_get_bytes(in, 3),
        .content_type = hapax__pg_get_bytes(in, 4),
        .headers = hapax__pg_get_bytes(in, 5),
        .payload = hapax__pg_get_bytes(in, 6),
    };
}

enum hapax_error hapax__outbox_turn(struct hapax__outbox *outbox,
                                    const struct hapax__outbox_end *ends, size_t n,
                                    const struct hapax__outbox_take *take, PGresult **rows,
                                    struct hapax__outbox_row out[HAPAX__RELAY_BATCH_MAX],
                                    size_t *count)
{
    static const char sql[] = "SELECT * FROM hapax.outbox_next($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    struct hapax__pg_in in = {0};
    enum hapax_error error;

    assert(n <= HAPAX__RELAY_BATCH_MAX && take->limit <= HAPAX__RELAY_BATCH_MAX);
    hapax__pg_out_reset(&outbox->out);
    put_ends(outbox, ends, n);
    put_take(outbox, take);
    error = ask(outbox, sql, rows);
    if (error == HAPAX_ERR_UNSUPPORTED && strcmp(outbox->link.sqlstate, "42883") == 0)
        return nonsense(outbox);
    if (error != HAPAX_ERR_NONE)
        return error;
    in.rows = *rows;
    *count = 0;
    in.bad = PQntuples(*rows) > (int)take->limit || PQnfields(*rows) != 7;
    for (; !in.bad && in.row < PQntuples(*rows); in.row++)
        out[(*count)++] = row_of(&in);
    if (!in.bad)
        return HAPAX_ERR_NONE;
    PQclear(*rows);
    return nonsense(outbox);
}

/* ---- lag and sweep ----------------------------------------------------------------------- */

enum hapax_error hapax__outbox_lag(struct hapax__outbox *outbox, int64_t *pending, int64_t *age_us,
                                   int64_t *aside)
{
    struct hapax__pg_in in = {0};
    enum hapax_error error;
    PGresult *rows;

    hapax__pg_out_reset(&outbox->out);
    error = ask(outbox, "SELECT * FROM hapax.outbox_lag()", &rows);
    if (error != HAPAX_ERR_NONE)
        return error;
    in.rows = rows;
    in.bad = PQntuples(rows) != 1 || PQnfields(rows) != 3;
    if (!in.bad) {
        *pending = hapax__pg_get_int(&in, 0, HAPAX__PG_INT8);
        *age_us = hapax__pg_get_int(&in, 1, HAPAX__PG_INT8);
        *aside = hapax__pg_get_int(&in, 2, HAPAX__PG_INT8);
    }
    PQclear(rows);
    return in.bad ? nonsense(outbox) : HAPAX_ERR_NONE;
}

enum hapax_error hapax__outbox_sweep(struct hapax__outbox *outbox, int64_t keep_ms, int64_t *after,
                                     int64_t *swept)
{
    struct hapax__pg_in in = {0};
    enum hapax_error error;
    PGresult *rows;

    hapax__pg_out_reset(&outbox->out);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT8, keep_ms);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT8, *after);
    error = ask(outbox, "SELECT * FROM hapax.outbox_sweep($1, $2)", &rows);
    if (error != HAPAX_ERR_NONE)
        return error;
    in.rows = rows;
    in.bad = PQntuples(rows) != 1 || PQnfields(rows) != 3;
    if (!in.bad) {
        *swept = hapax__pg_get_int(&in, 0, HAPAX__PG_INT4);
        *after = hapax__pg_get_int(&in, 2, HAPAX__PG_BOOL)
                     ? hapax__pg_get_int(&in, 1, HAPAX__PG_INT8)
                     : 0;
    }
    PQclear(rows);
    return in.bad ? nonsense(outbox) : HAPAX_ERR_NONE;
}

/* ---- what was put aside ------------------------------------------------------------------ */

enum hapax_error hapax__outbox_aside(struct hapax__outbox *outbox, int64_t *after, PGresult **rows,
                                     struct hapax__outbox_aside out[HAPAX__RELAY_BATCH_MAX],
                                     size_t *count)
{
    static const char sql[] =
        "SELECT seq, topic, aggregate, error, tries, created_us, ended_us, size"
        " FROM hapax.outbox_aside($1, $2)";
    struct hapax__pg_in in = {0};
    enum hapax_error error;

    hapax__pg_out_reset(&outbox->out);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT8, *after);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT4, HAPAX__RELAY_BATCH_MAX);
    error = ask(outbox, sql, rows);
    if (error != HAPAX_ERR_NONE)
        return error;
    in.rows = *rows;
    *count = 0;
    in.bad = PQnfields(*rows) != 8 || PQntuples(*rows) > (int)HAPAX__RELAY_BATCH_MAX;
    for (; !in.bad && in.row < PQntuples(*rows); in.row++)
        out[(*count)++] = (struct hapax__outbox_aside){
            .seq = hapax__pg_get_int(&in, 0, HAPAX__PG_INT8),
            .topic = hapax__pg_get_bytes(&in, 1),
            .aggregate = hapax__pg_get_bytes(&in, 2),
            .error = hapax__pg_get_bytes(&in, 3),
            .tries = hapax__pg_get_int(&in, 4, HAPAX__PG_INT4),
            .created_us = hapax__pg_get_int(&in, 5, HAPAX__PG_INT8),
            .ended_us = hapax__pg_get_int(&in, 6, HAPAX__PG_INT8),
            .size = hapax__pg_get_int(&in, 7, HAPAX__PG_INT4),
        };
    if (in.bad) {
        PQclear(*rows);
        return nonsense(outbox);
    }
    *after = *count == HAPAX__RELAY_BATCH_MAX ? out[*count - 1].seq : 0;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__outbox_put_back(struct hapax__outbox *outbox, const char *key,
                                        int64_t *after, int64_t *count)
{
    struct hapax__pg_in in = {0};
    enum hapax_error error;
    PGresult *rows;

    hapax__pg_out_reset(&outbox->out);
    if (key)
        hapax__pg_put_value_bytes(&outbox->out, HAPAX__PG_TEXT, hapax_str(key));
    else
        hapax__pg_put_none(&outbox->out, HAPAX__PG_TEXT);
    hapax__pg_put_value_int(&outbox->out, HAPAX__PG_INT8, *after);
    error = ask(outbox, "SELECT * FROM hapax.outbox_put_back($1, $2)", &rows);
    if (error != HAPAX_ERR_NONE)
        return error;
    in.rows = rows;
    in.bad = PQntuples(rows) != 1 || PQnfields(rows) != 2;
    if (!in.bad) {
        *count = hapax__pg_get_int(&in, 0, HAPAX__PG_INT4);
        *after = *count == HAPAX__RELAY_BATCH_MAX ? hapax__pg_get_int(&in, 1, HAPAX__PG_INT8) : 0;
    }
    PQclear(rows);
    return in.bad ? nonsense(outbox) : HAPAX_ERR_NONE;
}
