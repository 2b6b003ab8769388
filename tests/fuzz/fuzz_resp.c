/* SPDX-License-Identifier: Apache-2.0
 *
 * What a hostile Redis may send. The first byte says how many replies are expected, and the second
 * how the rest is cut into pieces.
 * Claims: the replies and the fault are the same, however the input is cut. No reply is over a
 * limit, only expected replies come, and each reply is RESP that reads as itself.
 *
 * The limit of a line, on which that of a copied string depends, is this file's, so that short
 * inputs meet it. test_redis_reader.c has the true ones.
 */
#include "fuzz.h"

#include "store/redis/reader.h"

#undef HAPAX__REDIS_LINE_MAX
#define HAPAX__REDIS_LINE_MAX (1u << 10)
#include "store/redis/reader.c"

#include <stdbool.h>

static size_t elements;

/* Writes a reply as RESP again, and looks at it on the way. */
static void put(FILE *out, const struct hapax__resp *reply, size_t depth)
{
    static const char types[] = {[HAPAX__RESP_STATUS] = '+', [HAPAX__RESP_ERROR] = '-'};

    assert(depth <= HAPAX__REDIS_DEPTH_MAX);
    switch (reply->type) {
    case HAPAX__RESP_STATUS:
    case HAPAX__RESP_ERROR:
        assert(reply->len <= HAPAX__REDIS_LINE_MAX && reply->str[reply->len] == '\0');
        assert(!memchr(reply->str, '\n', reply->len));
        fputc(types[reply->type], out);
        fwrite(reply->str, 1, reply->len, out);
        fputs("\r\n", out);
        break;
    case HAPAX__RESP_INTEGER:
        fprintf(out, ":%lld\r\n", reply->integer);
        break;
    case HAPAX__RESP_STRING:
        assert(reply->len <= HAPAX__REDIS_BULK_MAX && reply->str[reply->len] == '\0');
        fprintf(out, "$%zu\r\n", reply->len);
        fwrite(reply->str, 1, reply->len, out);
        fputs("\r\n", out);
        break;
    case HAPAX__RESP_NIL:
        assert(!reply->str && !reply->element);
        fputs("$-1\r\n", out);
        break;
    default:
        assert(reply->type == HAPAX__RESP_ARRAY && reply->elements <= HAPAX__REDIS_ARRAY_MAX);
        elements += reply->elements;
        assert(elements <= HAPAX__REDIS_ELEMENTS_MAX);
        fprintf(out, "*%zu\r\n", reply->elements);
        for (size_t i = 0; i < reply->elements; i++)
            put(out, reply->element[i], depth + 1);
    }
}

struct reading {
    char *bytes; /* all replies, as RESP */
    size_t len;
    size_t count;
    const char *fault;
};

/* step 0: all at once. */
static struct reading read_all(const uint8_t *data, size_t size, size_t wants, size_t step)
{
    struct hapax__redis_reader *reader = hapax__redis_reader_open();
    struct reading reading = {NULL, 0, 0, NULL};
    FILE *out = open_memstream(&reading.bytes, &reading.len);
    struct hapax__resp *reply;

    assert(reader && out);
    for (size_t i = 0; i < wants; i++)
        assert(hapax__redis_reader_want(reader));
    for (size_t at = 0; at < size && !reading.fault;) {
        size_t room, n = step > 0 && step < size - at ? step : size - at;
        void *to = hapax__redis_reader_room(reader, &room);

        assert(room > 0);
        n = n < room ? n : room;
        memcpy(to, data + at, n);
        reading.fault = hapax__redis_reader_took(reader, n);
        at += n;
    }
    while ((reply = hapax__redis_reader_next(reader)) != NULL) {
        elements = 0;
        put(out, reply, 0);
        hapax__resp_free(reply);
        reading.count++;
    }
    assert(reading.count + hapax__redis_reader_wanted(reader) == wants);
    fclose(out);
    hapax__redis_reader_close(reader);
    return reading;
}

static bool same(const struct reading *one, const struct reading *other)
{
    return one->fault == other->fault && one->count == other->count && one->len == other->len &&
           memcmp(one->bytes, other->bytes, one->len) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reading whole, pieces, again;
    size_t wants, step;

    if (size < 2)
        return 0;
    wants = data[0] % 32u;
    step = data[1] % 64u + 1;
    whole = read_all(data + 2, size - 2, wants, 0);
    pieces = read_all(data + 2, size - 2, wants, step);
    assert(same(&whole, &pieces));
    again = read_all((const uint8_t *)whole.bytes, whole.len, whole.count, step);
    assert(!again.fault && again.count == whole.count && again.len == whole.len &&
           memcmp(again.bytes, whole.bytes, whole.len) == 0);
    free(whole.bytes);
    free(pieces.bytes);
    free(again.bytes);
    return 0;
}
