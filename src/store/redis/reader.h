/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads RESP2 as it comes, in pieces of any size, into the replies that were asked for.
 */
#ifndef HAPAX_STORE_REDIS_READER_H
#define HAPAX_STORE_REDIS_READER_H

#include "base/span.h"

#include <hapax/store.h>

#define HAPAX__REDIS_BULK_MAX     (64u << 20) /* bytes of a bulk string */
#define HAPAX__REDIS_ARRAY_MAX    (HAPAX_BATCH_MAX * 16u) /* elements of one array */
#define HAPAX__REDIS_ELEMENTS_MAX (HAPAX_BATCH_MAX * 64u) /* of all arrays of one reply */
#define HAPAX__REDIS_DEPTH_MAX    7u /* arrays in arrays */
#define HAPAX__REDIS_LINE_MAX     (32u << 10) /* bytes of a status, an error, a length */
#define HAPAX__REDIS_REPLIES_MAX  (1u << 30) /* bytes of all replies not taken yet */

enum hapax__resp_type {
    HAPAX__RESP_NIL,
    HAPAX__RESP_STATUS,
    HAPAX__RESP_ERROR,
    HAPAX__RESP_INTEGER,
    HAPAX__RESP_STRING,
    HAPAX__RESP_ARRAY
};

/* One value: a reply, or an element of one. Fields that its type does not have are 0 and NULL. */
struct hapax__resp {
    enum hapax__resp_type type;
    long long integer;
    char *str; /* of a STATUS, ERROR or STRING; a NUL stands behind its `len` bytes */
    size_t len;
    struct hapax__resp **element; /* of an ARRAY */
    size_t elements;
};

/* Whether a STATUS or STRING is this word. */
static inline bool hapax__resp_is(const struct hapax__resp *reply, const char *word)
{
    return (reply->type == HAPAX__RESP_STRING || reply->type == HAPAX__RESP_STATUS) &&
           hapax__is((struct hapax_span){(const uint8_t *)reply->str, reply->len}, word);
}

/* Frees a reply with its elements. NULL is allowed. */
void hapax__resp_free(struct hapax__resp *reply);

struct hapax__redis_reader;

/* NULL: out of memory. */
struct hapax__redis_reader *hapax__redis_reader_open(void);
void hapax__redis_reader_close(struct hapax__redis_reader *reader);

/* Expects one more reply. False: out of memory. */
bool hapax__redis_reader_want(struct hapax__redis_reader *reader);

/* How many replies are expected and have not been taken, and how many of them are complete. */
size_t hapax__redis_reader_wanted(const struct hapax__redis_reader *reader);
size_t hapax__redis_reader_ready(const struct hapax__redis_reader *reader);

/* Where the next bytes go, and how many at most: never 0. */
void *hapax__redis_reader_room(struct hapax__redis_reader *reader, size_t *len);

/* Notes that `len` bytes were put there. NULL, or a static text of what is wrong with the bytes:
 * then only replies that were complete before can still be taken. */
const char *hapax__redis_reader_took(struct hapax__redis_reader *reader, size_t len);

/* The next complete reply, which the caller frees. NULL: there is none yet. */
struct hapax__resp *hapax__redis_reader_next(struct hapax__redis_reader *reader);

#endif
