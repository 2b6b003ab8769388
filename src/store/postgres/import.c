/* SPDX-License-Identifier: Apache-2.0
 *
 * IMPORTs as the arguments of hapax.import(), and its rows as answers: one row for each op, in
 * order. The columns are those of sql/125_import.sql.
 */
#include "postgres.h"

#include "core/machine.h"
#include "core/record.h"

#include <assert.h>

const char hapax__pg_import_sql[] =
    "SELECT * FROM hapax.import($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17)";

enum column {
    VERDICT,
    ERROR,
    NOW_US,
    STATE,
    ATTEMPT,
    FENCE,
    CREATED_US,
    UPDATED_US,
    LEASE_UNTIL_US,
    COLUMNS
};

static int64_t bits_of(const struct hapax_record *in, const struct hapax_outcome *outcome)
{
    return (int64_t)in->state | (in->hold ? 8 : 0) | (in->stale ? 16 : 0) | (in->ran ? 32 : 0) |
           (in->reruns ? 64 : 0) | (outcome->body_kept ? 128 : 0) |
           (int64_t)in->replaced_state << 8 | (int64_t)outcome->status << 16 |
           (int64_t)in->replaced_status << 32;
}

static void put_ints(struct hapax__pg_out *out, const struct hapax_record *in, size_t n,
                     int64_t (*of)(const struct hapax_record *))
{
    hapax__pg_begin_array(out, HAPAX__PG_INT8, n);
    for (size_t i = 0; i < n; i++)
        hapax__pg_put_int(out, HAPAX__PG_INT8, of(&in[i]));
}

static void put_spans(struct hapax__pg_out *out, const struct hapax_record *in, size_t n,
                      struct hapax_span (*of)(const struct hapax_record *))
{
    hapax__pg_begin_array(out, HAPAX__PG_BYTEA, n);
    for (size_t i = 0; i < n; i++)
        hapax__pg_put_bytes(out, of(&in[i]));
}

#define FIELD(kind, name, value)                                                                   \
    static kind name(const struct hapax_record *in)                                                \
    {                                                                                              \
        return value;                                                                              \
    }

FIELD(int64_t, created, in->created_us)
FIELD(int64_t, updated, in->updated_us)
FIELD(int64_t, lease_until, in->lease_until_us)
FIELD(int64_t, expires, in->expires_us)
FIELD(int64_t, retention, in->retention_ms)
FIELD(int64_t, resolved, in->resolved_us)
FIELD(int64_t, fence, (int64_t)in->fence)
FIELD(int64_t, numbers, (int64_t)((uint64_t)in->attempt << 32 | in->spent))
FIELD(int64_t, bits, bits_of(in, &in->outcome))
FIELD(struct hapax_span, id, ((struct hapax_span){in->id.bytes, sizeof(in->id.bytes)}))
FIELD(struct hapax_span, scope, in->scope)
FIELD(struct hapax_span, what, in->what)
FIELD(struct hapax_span, by, in->resolved_by)
FIELD(struct hapax_span, headers, in->outcome.headers)
FIELD(struct hapax_span, body, in->outcome.body)
FIELD(struct hapax_span, owner,
      hapax__owned(&in->owner) ? ((struct hapax_span){in->owner.bytes, sizeof(in->owner.bytes)})
                               : ((struct hapax_span){NULL, 0}))

static void put_requests(struct hapax__pg_out *out, const struct hapax_record *in, size_t n)
{
    uint8_t both[sizeof(in->fingerprint.bytes) + sizeof(in->caller.bytes)];

    hapax__pg_begin_array(out, HAPAX__PG_BYTEA, n);
    for (size_t i = 0; i < n; i++) {
        memcpy(both, in[i].fingerprint.bytes, sizeof(in->fingerprint.bytes));
        memcpy(both + sizeof(in->fingerprint.bytes), in[i].caller.bytes, sizeof(in->caller.bytes));
        hapax__pg_put_bytes(out, (struct hapax_span){both, sizeof(both)});
    }
}

bool hapax__pg_put_import(struct hapax_store *store, struct hapax__pg_out *out,
                          struct hapax_op *const *ops, size_t n)
{
    struct hapax_record *in = hapax_store_memory(store, n * sizeof(*in));

    if (!in)
        return false;
    for (size_t i = 0; i < n; i++) {
        enum hapax_error error = hapax__record_decode(&in[i], &ops[i]->id, ops[i]->import);

        assert(error == HAPAX_ERR_NONE);
        (void)error;
        in[i].outcome = ops[i]->outcome;
    }
    hapax__pg_out_reset(out);
    put_spans(out, in, n, id);
    put_ints(out, in, n, created);
    put_ints(out, in, n, updated);
    put_ints(out, in, n, lease_until);
    put_ints(out, in, n, expires);
    put_ints(out, in, n, retention);
    put_ints(out, in, n, resolved);
    put_ints(out, in, n, fence);
    put_ints(out, in, n, numbers);
    put_ints(out, in, n, bits);
    put_requests(out, in, n);
    put_spans(out, in, n, owner);
    put_spans(out, in, n, scope);
    put_spans(out, in, n, what);
    put_spans(out, in, n, by);
    put_spans(out, in, n, headers);
    put_spans(out, in, n, body);
    return true;
}

/* False: the row makes no sense, and the op stays as it is. */
static bool take_row(struct hapax_op *op, struct hapax__pg_in *in)
{
    int64_t verdict = hapax__pg_get_int(in, VERDICT, HAPAX__PG_INT2);
    int64_t error = hapax__pg_get_int(in, ERROR, HAPAX__PG_INT2);
    int64_t now_us = hapax__pg_get_int(in, NOW_US, HAPAX__PG_INT8);
    int64_t state = hapax__pg_get_int(in, STATE, HAPAX__PG_INT2);
    struct hapax_record record = {
        .id = op->id,
        .state = (enum hapax_state)state,
        .attempt = (uint32_t)hapax__pg_get_int(in, ATTEMPT, HAPAX__PG_INT4),
        .fence = (uint64_t)hapax__pg_get_int(in, FENCE, HAPAX__PG_INT8),
        .created_us = hapax__pg_get_int(in, CREATED_US, HAPAX__PG_INT8),
        .updated_us = hapax__pg_get_int(in, UPDATED_US, HAPAX__PG_INT8),
        .lease_until_us = hapax__pg_get_int(in, LEASE_UNTIL_US, HAPAX__PG_INT8),
    };

    if (!in->bad && verdict == HAPAX_NO_VERDICT && error == HAPAX_ERR_UNAVAILABLE) {
        op->error = HAPAX_ERR_UNAVAILABLE;
        return true;
    }
    if (in->bad || error != 0 || (verdict != HAPAX_OK && verdict != HAPAX_FOUND) || now_us <= 0 ||
        state < HAPAX_STATE_ABSENT || state > HAPAX_STATE_UNKNOWN || record.created_us < 0 ||
        record.updated_us < 0 || record.lease_until_us < 0)
        return false;
    op->record = record;
    op->now_us = now_us;
    op->verdict = (enum hapax_verdict)verdict;
    op->error = HAPAX_ERR_NONE;
    return true;
}

enum hapax_error hapax__pg_take_import(struct hapax_op **ops, size_t n, const PGresult *rows)
{
    bool good = PQnfields(rows) == COLUMNS && PQntuples(rows) == (int)n;

    for (size_t i = 0; i < n && good; i++) {
        struct hapax__pg_in in = {.rows = rows, .row = (int)i};

        good = take_row(ops[i], &in);
    }
    return good ? HAPAX_ERR_NONE : HAPAX_ERR_CORRUPT;
}
