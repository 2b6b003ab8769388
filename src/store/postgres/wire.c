/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters and rows in PostgreSQL's binary format: numbers most significant byte first; an array
 * as a head of five words, and each element after its length. Binary, since text would escape each
 * byte of a body. Arrays, since one statement then carries a batch.
 *
 * The invariant: libpq gets parameters that are whole and within HAPAX__PG_OUT_MAX, or none at all.
 * Each array has as many elements as its head says.
 */
#include "postgres.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define OUT_MIN 4096u
#define WORD    4u /* the size of a length, and of the number of a type */

static const struct {
    Oid type, array;
    size_t size; /* 0: any */
} types[] = {
    [HAPAX__PG_BOOL] = {16, 1000, 1},   [HAPAX__PG_BYTEA] = {17, 1001, 0},
    [HAPAX__PG_INT2] = {21, 1005, 2},   [HAPAX__PG_INT4] = {23, 1007, 4},
    [HAPAX__PG_INT8] = {20, 1016, 8},   [HAPAX__PG_TEXT] = {25, 1009, 0},
    [HAPAX__PG_UUID] = {2950, 2951, 0},
};

/* ---- out ----------------------------------------------------------------------------- */

void hapax__pg_out_reset(struct hapax__pg_out *out)
{
    out->len = 0;
    out->n = 0;
    out->failed = false;
}

/* Room for size more bytes. NULL: there is none, and `failed` is set. */
static uint8_t *room(struct hapax__pg_out *out, size_t size)
{
    size_t cap = out->cap > 0 ? out->cap : OUT_MIN;
    uint8_t *bytes;

    if (out->failed || size > HAPAX__PG_OUT_MAX - out->len) {
        out->failed = true;
        return NULL;
    }
    while (cap < out->len + size)
        cap *= 2;
    if (cap > out->cap) {
        bytes = realloc(out->bytes, cap);
        if (!bytes) {
            out->failed = true;
            return NULL;
        }
        out->bytes = bytes;
        out->cap = cap;
    }
    bytes = out->bytes + out->len;
    out->len += size;
    return bytes;
}

static void put_number(struct hapax__pg_out *out, uint64_t value, size_t size)
{
    uint8_t *bytes = room(out, size);

    for (size_t i = 0; bytes && i < size; i++)
        bytes[i] = (uint8_t)(value >> 8 * (size - 1 - i));
}

static void put_int(struct hapax__pg_out *out, enum hapax__pg_type type, int64_t value)
{
    assert(types[type].size > 0);
    put_number(out, (uint64_t)value, types[type].size);
}

static void put_bytes(struct hapax__pg_out *out, struct hapax_span bytes)
{
    uint8_t *to = room(out, bytes.len);

    if (to && bytes.len > 0)
        memcpy(to, bytes.ptr, bytes.len);
}

static void begin_value(struct hapax__pg_out *out, enum hapax__pg_type type)
{
    assert(out->n < (int)HAPAX__PG_PARAMS_MAX);
    out->starts[out->n] = out->len;
    out->nulls[out->n] = false;
    out->types[out->n++] = types[type].type;
}

void hapax__pg_put_value_int(struct hapax__pg_out *out, enum hapax__pg_type type, int64_t value)
{
    begin_value(out, type);
    put_int(out, type, value);
}

void hapax__pg_put_value_bytes(struct hapax__pg_out *out, enum hapax__pg_type type,
                               struct hapax_span bytes)
{
    begin_value(out, type);
    put_bytes(out, bytes);
}

void hapax__pg_put_none(struct hapax__pg_out *out, enum hapax__pg_type type)
{
    begin_value(out, type);
    out->nulls[out->n - 1] = true;
}

void hapax__pg_begin_array(struct hapax__pg_out *out, enum hapax__pg_type type, size_t n)
{
    assert(n <= HAPAX_BATCH_MAX);
    begin_value(out, type);
    out->types[out->n - 1] = types[type].array;
    if (n == 0) {
        out->nulls[out->n - 1] = true;
        return;
    }
    put_number(out, 1, 4); /* dimensions */
    put_number(out, 1, 4); /* there may be NULLs */
    put_number(out, types[type].type, 4);
    put_number(out, n, 4);
    put_number(out, 1, 4); /* the first index */
}

void hapax__pg_put_int(struct hapax__pg_out *out, enum hapax__pg_type type, int64_t value)
{
    put_number(out, types[type].size, 4);
    put_int(out, type, value);
}

void hapax__pg_put_bytes(struct hapax__pg_out *out, struct hapax_span bytes)
{
    put_number(out, bytes.len, 4); /* room() refuses bytes over the limit */
    put_bytes(out, bytes);
}

void hapax__pg_put_null(struct hapax__pg_out *out)
{
    put_number(out, UINT32_MAX, 4);
}

bool hapax__pg_out_params(struct hapax__pg_out *out, struct hapax__pg_params *params)
{
    if (out->failed)
        return false;
    for (int i = 0; i < out->n; i++) {
        size_t end = i + 1 < out->n ? out->starts[i + 1] : out->len;

        out->values[i] = out->nulls[i] ? NULL : (const char *)out->bytes + out->starts[i];
        out->lengths[i] = (int)(end - out->starts[i]);
    }
    *params = (struct hapax__pg_params){out->n, out->types, out->values, out->lengths};
    return true;
}

/* ---- in ------------------------------------------------------------------------------ */

int64_t hapax__pg_number(const uint8_t *bytes, size_t size)
{
    uint64_t value = bytes[0] & 0x80 ? UINT64_MAX : 0; /* the sign goes on to the left */

    assert(size > 0 && size <= sizeof(value));
    for (size_t i = 0; i < size; i++)
        value = value << 8 | bytes[i];
    return (int64_t)value;
}

bool hapax__pg_split(struct hapax__pg_in *in, struct hapax_span *fields, size_t n)
{
    struct hapax_span rest = hapax__pg_get_bytes(in, 0);

    if (rest.len < WORD || hapax__pg_number(rest.ptr, WORD) != (int64_t)n)
        return false;
    rest = (struct hapax_span){rest.ptr + WORD, rest.len - WORD};
    for (size_t i = 0; i < n; i++) {
        int64_t len;

        if (rest.len < 2 * WORD) /* its type and its length */
            return false;
        len = hapax__pg_number(rest.ptr + WORD, WORD);
        rest = (struct hapax_span){rest.ptr + 2 * WORD, rest.len - 2 * WORD};
        fields[i] = (struct hapax_span){NULL, 0};
        if (len == -1)
            continue;
        if (len < 0 || (uint64_t)len > rest.len)
            return false;
        fields[i] = (struct hapax_span){rest.ptr, (size_t)len};
        rest = (struct hapax_span){rest.ptr + len, rest.len - (size_t)len};
    }
    in->fields = fields;
    return rest.len == 0;
}

struct hapax_span hapax__pg_get_bytes(const struct hapax__pg_in *in, int column)
{
    if (in->fields)
        return in->fields[column];
    if (PQgetisnull(in->rows, in->row, column))
        return (struct hapax_span){NULL, 0};
    return (struct hapax_span){(const uint8_t *)PQgetvalue(in->rows, in->row, column),
                               (size_t)PQgetlength(in->rows, in->row, column)};
}

bool hapax__pg_is_null(const struct hapax__pg_in *in, int column)
{
    return !hapax__pg_get_bytes(in, column).ptr;
}

int64_t hapax__pg_get_int(struct hapax__pg_in *in, int column, enum hapax__pg_type type)
{
    struct hapax_span bytes = hapax__pg_get_bytes(in, column);

    assert(types[type].size > 0);
    if (!bytes.ptr)
        return 0;
    if (bytes.len == types[type].size)
        return hapax__pg_number(bytes.ptr, bytes.len);
    in->bad = true;
    return 0;
}
