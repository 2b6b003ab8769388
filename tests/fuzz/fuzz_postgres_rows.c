/* SPDX-License-Identifier: Apache-2.0
 *
 * What a PostgreSQL, or a server in its place, may answer to a batch of four ops. The first byte
 * is the kind of the ops. Each row follows behind its length, two bytes.
 * Claims: each op has a verdict or an error, never both. What is shown is a copy: the rows are
 * freed before it is looked at.
 */
#include "fuzz.h"

#include "store/postgres/postgres.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OPS 4

static unsigned sum;

static void touch(struct hapax_span span, size_t max)
{
    assert(span.len <= max && (span.len == 0 || span.ptr));
    for (size_t i = 0; i < span.len; i++)
        sum += span.ptr[i];
}

static PGresult *rows_of(struct hapax_span bytes)
{
    PGresult *rows = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    PGresAttDesc column = {.name = (char[]){"run"}, .format = 1};

    assert(rows && PQsetResultAttrs(rows, 1, &column));
    for (int row = 0; bytes.len >= 2; row++) {
        size_t len = (size_t)bytes.ptr[0] << 8 | bytes.ptr[1];

        bytes = (struct hapax_span){bytes.ptr + 2, bytes.len - 2};
        if (len > bytes.len)
            len = bytes.len;
        assert(PQsetvalue(rows, row, 0, (char *)(uintptr_t)bytes.ptr, (int)len));
        bytes = (struct hapax_span){bytes.ptr + len, bytes.len - len};
    }
    return rows;
}

static void look_at(const struct hapax_op *op)
{
    const struct hapax_record *record = &op->record;

    if (op->verdict == HAPAX_NO_VERDICT) {
        assert(op->error != HAPAX_ERR_NONE);
        return;
    }
    assert(op->error == HAPAX_ERR_NONE && op->verdict <= HAPAX_ABSENT && op->now_us > 0);
    assert(record->state <= HAPAX_STATE_UNKNOWN && record->outcome.status <= 999);
    assert(record->created_us >= 0 && record->lease_until_us >= 0 && record->expires_us >= 0);
    touch(record->scope, HAPAX_SCOPE_MAX);
    touch(record->what, HAPAX_WHAT_MAX);
    touch(record->resolved_by, HAPAX_BY_MAX);
    touch(record->outcome.headers, HAPAX_HEADERS_MAX);
    touch(record->outcome.body, HAPAX_BODY_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum hapax_op_kind kinds[] = {HAPAX_OP_CLAIM, HAPAX_OP_RENEW, HAPAX_OP_COMPLETE,
                                               HAPAX_OP_FAIL,  HAPAX_OP_READ,  HAPAX_OP_RESOLVE};
    struct hapax_op op[OPS], *ops[OPS];
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    PGresult *rows;

    if (size == 0)
        return 0;
    for (size_t i = 0; i < OPS; i++) {
        op[i] = (struct hapax_op){.kind = kinds[data[0] % (sizeof(kinds) / sizeof(kinds[0]))],
                                  .id = {{(uint8_t)i}},
                                  .error = HAPAX_ERR_INDETERMINATE,
                                  .scope = hapax_str("default"),
                                  .on_expired = HAPAX_EXPIRED_RERUN,
                                  .resolve = HAPAX_RESOLVE_COMPLETE,
                                  .lease_ms = 1000,
                                  .retention_ms = 60000};
        op[i].outcome.body = hapax_str("done");
        ops[i] = &op[i];
    }
    error = hapax_store_open(&store, "memory:", text);
    assert(error == HAPAX_ERR_NONE);
    rows = rows_of((struct hapax_span){data + 1, size - 1});
    error = hapax__pg_take_ops(store, ops, OPS, rows);
    PQclear(rows);
    for (size_t i = 0; i < OPS; i++)
        look_at(&op[i]);
    assert(error == HAPAX_ERR_NONE || error == HAPAX_ERR_CORRUPT);
    hapax_store_close(store);
    return 0;
}
