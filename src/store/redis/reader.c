/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads RESP2. Every length is compared with its limit before memory is allocated. A malformed
 * number is never taken for a value, since nil would read as "absent". A reply that was not asked
 * for breaks the stream: every later answer would belong to another question.
 *
 * A value is one allocation, with its bytes or its list of elements behind it. A large bulk string
 * is received straight into its value, without a copy.
 *
 * Rejected: hiredis' reader. It gives the length of a bulk string only when all of it is buffered,
 * copies it twice, and takes two allocations a value. Tests read the same bytes with it for
 * comparison.
 */
#include "reader.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_SIZE (2 * HAPAX__REDIS_LINE_MAX)
/* A bulk string of which so many bytes are still to come is received into its value. */
#define DIRECT_MIN (HAPAX__REDIS_LINE_MAX / 2)
#define BUFFER_LOW (HAPAX__REDIS_LINE_MAX / 8)

struct ready {
    struct hapax__resp *reply;
    size_t bytes;
};

struct open_array {
    struct hapax__resp *reply;
    size_t at; /* elements begun */
};

struct hapax__redis_reader {
    /* Received and not read yet: buffer[begin..end). No line ends before `searched`. */
    char buffer[BUFFER_SIZE];
    size_t begin, searched, end;

    /* The reply being read. */
    struct hapax__resp *root;
    struct open_array arrays[HAPAX__REDIS_DEPTH_MAX];
    size_t depth;
    struct hapax__resp *bulk; /* the bulk string whose bytes come now; part of root */
    size_t bulk_have; /* of bulk->len and "\r\n" */
    size_t elements;
    size_t bytes;

    /* Complete replies: ready[first..first+count). There is room for `wanted` more. */
    struct ready *ready;
    size_t first, count, wanted, size;
    size_t charged; /* bytes of all complete replies, and of root */

    const char *fault;
};

void hapax__resp_free(struct hapax__resp *reply)
{
    for (size_t i = 0; reply && i < reply->elements; i++)
        hapax__resp_free(reply->element[i]);
    free(reply);
}

struct hapax__redis_reader *hapax__redis_reader_open(void)
{
    struct hapax__redis_reader *reader = malloc(sizeof(*reader));

    if (!reader)
        return NULL;
    memset((char *)reader + sizeof(reader->buffer), 0, sizeof(*reader) - sizeof(reader->buffer));
    return reader;
}

void hapax__redis_reader_close(struct hapax__redis_reader *reader)
{
    struct hapax__resp *reply;

    if (!reader)
        return;
    while ((reply = hapax__redis_reader_next(reader)) != NULL)
        hapax__resp_free(reply);
    hapax__resp_free(reader->root);
    free(reader->ready);
    free(reader);
}

bool hapax__redis_reader_want(struct hapax__redis_reader *reader)
{
    size_t need = reader->count + reader->wanted + 1;

    if (reader->first > 0 && reader->first + need > reader->size) {
        memmove(reader->ready, reader->ready + reader->first,
                reader->count * sizeof(*reader->ready));
        reader->first = 0;
    }
    if (need > reader->size) {
        size_t size = reader->size > 0 ? 2 * reader->size : 16;
        struct ready *ready = realloc(reader->ready, size * sizeof(*ready));

        if (!ready)
            return false;
        reader->ready = ready;
        reader->size = size;
    }
    reader->wanted++;
    assert(reader->first + reader->count + reader->wanted <= reader->size);
    return true;
}

size_t hapax__redis_reader_wanted(const struct hapax__redis_reader *reader)
{
    return reader->count + reader->wanted;
}

size_t hapax__redis_reader_ready(const struct hapax__redis_reader *reader)
{
    return reader->count;
}

struct hapax__resp *hapax__redis_reader_next(struct hapax__redis_reader *reader)
{
    struct ready next;

    if (reader->count == 0)
        return NULL;
    next = reader->ready[reader->first++];
    reader->count--;
    assert(reader->charged >= next.bytes);
    reader->charged -= next.bytes;
    return next.reply;
}

void *hapax__redis_reader_room(struct hapax__redis_reader *reader, size_t *len)
{
    if (reader->bulk) {
        size_t left = reader->bulk->len + 2 - reader->bulk_have;

        assert(reader->begin == reader->end);
        if (left >= DIRECT_MIN) {
            *len = left;
            return reader->bulk->str + reader->bulk_have;
        }
    }
    if (reader->begin == reader->end) {
        reader->begin = reader->searched = reader->end = 0;
    } else if (reader->end + BUFFER_LOW > BUFFER_SIZE) {
        memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->searched -= reader->begin;
        reader->begin = 0;
    }
    *len = BUFFER_SIZE - reader->end;
    assert(*len > 0); /* the unread bytes are less than a line */
    return reader->buffer + reader->end;
}

/* ---- values ---------------------------------------------------------------------------- */

static const char over[] = "its reply is over the limit";
static const char nonsense[] = "its reply is not RESP";
static const char no_memory[] = "out of memory for its reply";

/* Reads a number that takes the whole line. */
static bool number(long long *out, const char *at, size_t len)
{
    bool minus = len > 0 && at[0] == '-';
    size_t i = minus;
    unsigned long long value = 0, max = minus ? 1ull << 63 : (1ull << 63) - 1;

    if (i == len)
        return false;
    for (; i < len; i++) {
        unsigned digit = (unsigned)(at[i] - '0');

        if (digit > 9 || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = minus ? (long long)(0 - value) : (long long)value;
    return true;
}

/* Adds a new value: at the root, or in the innermost array. It has room for `more` bytes behind
 * it. NULL: out of memory. */
static struct hapax__resp *add(struct hapax__redis_reader *reader, enum hapax__resp_type type,
                               size_t more)
{
    struct hapax__resp *reply = malloc(sizeof(*reply) + more);

    if (!reply)
        return NULL;
    *reply = (struct hapax__resp){.type = type};
    if (reader->depth == 0) {
        assert(!reader->root);
        reader->root = reply;
    } else {
        struct open_array *array = &reader->arrays[reader->depth - 1];

        assert(array->at < array->reply->elements);
        array->reply->element[array->at++] = reply;
    }
    return reply;
}

/* A value of `len` bytes with a NUL, or with room for the "\r\n" of a bulk string. */
static struct hapax__resp *add_text(struct hapax__redis_reader *reader, enum hapax__resp_type type,
                                    size_t len)
{
    struct hapax__resp *reply = add(reader, type, len + 2);

    if (!reply)
        return NULL;
    reply->str = (char *)(reply + 1);
    reply->len = len;
    reply->str[len] = '\0';
    return reply;
}

/* Counts memory of the reply being read. */
static bool charge(struct hapax__redis_reader *reader, size_t bytes)
{
    if (bytes > HAPAX__REDIS_REPLIES_MAX - reader->charged)
        return false;
    reader->charged += bytes;
    reader->bytes += bytes;
    return true;
}

/* Ends a value, and the arrays that it completes. */
static void complete(struct hapax__redis_reader *reader)
{
    while (reader->depth > 0) {
        const struct open_array *array = &reader->arrays[reader->depth - 1];

        if (array->at < array->reply->elements)
            return;
        reader->depth--;
    }
    assert(reader->root && reader->wanted > 0);
    reader->ready[reader->first + reader->count++] = (struct ready){reader->root, reader->bytes};
    reader->wanted--;
    reader->root = NULL;
    reader->elements = reader->bytes = 0;
}

/* A simple string holds no "\r", says RESP: the bytes are out of step then. */
static const char *read_line(struct hapax__redis_reader *reader, enum hapax__resp_type type,
                             const char *at, size_t len)
{
    struct hapax__resp *reply;

    if (memchr(at, '\r', len))
        return nonsense;
    if (!charge(reader, len))
        return over;
    reply = add_text(reader, type, len);
    if (!reply)
        return no_memory;
    memcpy(reply->str, at, len);
    complete(reader);
    return NULL;
}

static const char *read_integer(struct hapax__redis_reader *reader, const char *at, size_t len)
{
    struct hapax__resp *reply;
    long long value;

    if (!number(&value, at, len))
        return nonsense;
    reply = add(reader, HAPAX__RESP_INTEGER, 0);
    if (!reply)
        return no_memory;
    reply->integer = value;
    complete(reader);
    return NULL;
}

static const char *read_bulk(struct hapax__redis_reader *reader, long long len)
{
    if (len > (long long)HAPAX__REDIS_BULK_MAX || !charge(reader, (size_t)len))
        return over;
    reader->bulk = add_text(reader, HAPAX__RESP_STRING, (size_t)len);
    reader->bulk_have = 0;
    return reader->bulk ? NULL : no_memory;
}

static const char *read_array(struct hapax__redis_reader *reader, long long len)
{
    struct hapax__resp *reply;

    if (len > (long long)(HAPAX__REDIS_ELEMENTS_MAX - reader->elements) ||
        len > (long long)HAPAX__REDIS_ARRAY_MAX || reader->depth == HAPAX__REDIS_DEPTH_MAX)
        return over;
    reply = add(reader, HAPAX__RESP_ARRAY, (size_t)len * sizeof(*reply->element));
    if (!reply)
        return no_memory;
    reply->element = (struct hapax__resp **)(reply + 1);
    reply->elements = (size_t)len;
    memset(reply->element, 0, (size_t)len * sizeof(*reply->element));
    reader->elements += (size_t)len;
    reader->arrays[reader->depth++] = (struct open_array){reply, 0};
    complete(reader);
    return NULL;
}

/* Begins a value by its line, which has lost its "\r\n". */
static const char *read_value(struct hapax__redis_reader *reader, const char *at, size_t len)
{
    long long n;

    if (reader->depth == 0 && reader->wanted == 0)
        return "it sent a reply nobody asked for";
    if (len == 0)
        return nonsense;
    switch (at[0]) {
    case '+':
        return read_line(reader, HAPAX__RESP_STATUS, at + 1, len - 1);
    case '-':
        return read_line(reader, HAPAX__RESP_ERROR, at + 1, len - 1);
    case ':':
        return read_integer(reader, at + 1, len - 1);
    case '$':
    case '*':
        if (!number(&n, at + 1, len - 1) || n < -1)
            return nonsense;
        if (n >= 0)
            return at[0] == '$' ? read_bulk(reader, n) : read_array(reader, n);
        if (!add(reader, HAPAX__RESP_NIL, 0))
            return no_memory;
        complete(reader);
        return NULL;
    default:
        return nonsense;
    }
}

/* ---- bytes ----------------------------------------------------------------------------- */

/* Goes on with the bulk string, out of the buffer. False: more must come. */
static bool fill_bulk(struct hapax__redis_reader *reader, const char **fault)
{
    struct hapax__resp *bulk = reader->bulk;
    size_t left = bulk->len + 2 - reader->bulk_have;
    size_t have = reader->end - reader->begin;
    size_t n = have < left ? have : left;

    memcpy(bulk->str + reader->bulk_have, reader->buffer + reader->begin, n);
    reader->begin += n;
    reader->bulk_have += n;
    if (n < left)
        return false;
    if (memcmp(bulk->str + bulk->len, "\r\n", 2) != 0)
        *fault = nonsense;
    bulk->str[bulk->len] = '\0';
    reader->bulk = NULL;
    if (!*fault)
        complete(reader);
    return true;
}

/* Reads the next line, if all of it is there. */
static bool next_line(struct hapax__redis_reader *reader, const char **fault)
{
    const char *at = reader->buffer + reader->begin;
    const char *from = reader->searched > reader->begin ? reader->buffer + reader->searched : at;
    const char *end = memchr(from, '\n', (size_t)(reader->buffer + reader->end - from));
    size_t len;

    reader->searched = reader->end;
    if (!end) {
        if (reader->end - reader->begin > HAPAX__REDIS_LINE_MAX)
            *fault = over;
        return false;
    }
    len = (size_t)(end - at);
    if (len > HAPAX__REDIS_LINE_MAX)
        *fault = over;
    else if (len == 0 || at[len - 1] != '\r')
        *fault = nonsense;
    else
        *fault = read_value(reader, at, len - 1);
    reader->begin += len + 1;
    reader->searched = reader->begin;
    return true;
}

const char *hapax__redis_reader_took(struct hapax__redis_reader *reader, size_t len)
{
    bool more = true;

    if (reader->fault)
        return reader->fault;
    if (reader->bulk && reader->bulk->len + 2 - reader->bulk_have >= DIRECT_MIN) {
        assert(len <= reader->bulk->len + 2 - reader->bulk_have);
        reader->bulk_have += len; /* these bytes were received into the value */
    } else {
        assert(len <= BUFFER_SIZE - reader->end);
        reader->end += len;
    }
    while (more && !reader->fault)
        more = reader->bulk ? fill_bulk(reader, &reader->fault) : next_line(reader, &reader->fault);
    return reader->fault;
}
