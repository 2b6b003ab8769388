/* SPDX-License-Identifier: Apache-2.0
 *
 * The one reader of JSON (RFC 8259). It says where in a text the values are, and copies nothing: so
 * an event is looked into, and a record cut out of it, while every other byte stays what it was.
 *
 * hapax__raw_read() checks a text token by token, and hapax__raw_check() the whole of it. All other
 * functions take spans of a text that was checked, and cannot fail.
 * The bytes of strings are checked for escapes and control characters, not for UTF-8.
 */
#ifndef HAPAX_JSON_RAW_H
#define HAPAX_JSON_RAW_H

#include "base/arena.h"

#include <hapax/hapax.h>

#define HAPAX__RAW_DEPTH_MAX 256u /* containers in one another */

/* ---- checking ------------------------------------------------------------------------ */

enum hapax__raw_token {
    HAPAX__RAW_BAD = 0, /* not JSON, or too deep; also every time after that */
    HAPAX__RAW_OBJECT,
    HAPAX__RAW_OBJECT_END,
    HAPAX__RAW_ARRAY,
    HAPAX__RAW_ARRAY_END,
    HAPAX__RAW_NAME, /* of a member; with its quotes */
    HAPAX__RAW_STRING, /* with its quotes */
    HAPAX__RAW_NUMBER,
    HAPAX__RAW_WORD, /* true, false or null */
    HAPAX__RAW_END /* the text was one value */
};

struct hapax__raw_reader {
    /* Up to where the text is read, and where it ends. */
    const uint8_t *at, *end;
    /* The containers that are open, each as the byte that closes it. */
    uint8_t closers[HAPAX__RAW_DEPTH_MAX];
    uint32_t depth;
    enum { HAPAX__RAW_VALUE, HAPAX__RAW_FIRST, HAPAX__RAW_AFTER, HAPAX__RAW_BROKEN } next;
};

void hapax__raw_open(struct hapax__raw_reader *reader, struct hapax_span text);

/* The next token; *text is where it stands. */
enum hapax__raw_token hapax__raw_read(struct hapax__raw_reader *reader, struct hapax_span *text);

/* Whether text is one JSON value. Only if it is, *value is set: the value without the space around
 * it. */
HAPAX__SHARED bool hapax__raw_check(struct hapax_span *value, struct hapax_span text);

/* ---- values -------------------------------------------------------------------------- */

static inline bool hapax__raw_is_object(struct hapax_span value)
{
    return value.len > 0 && value.ptr[0] == '{';
}

static inline bool hapax__raw_is_array(struct hapax_span value)
{
    return value.len > 0 && value.ptr[0] == '[';
}

static inline bool hapax__raw_is_string(struct hapax_span value)
{
    return value.len > 0 && value.ptr[0] == '"';
}

/* Also of an empty span, which is no value. */
static inline bool hapax__raw_is_null(struct hapax_span value)
{
    return value.len == 0 || value.ptr[0] == 'n';
}

/* A walk over the members of an object, or the elements of an array; over anything else it ends at
 * once. */
struct hapax__raw_walk {
    const uint8_t *at, *end;
    bool named;
};

HAPAX__SHARED void hapax__raw_begin(struct hapax__raw_walk *walk, struct hapax_span container);

/* False: the walk is over. name: with its quotes; empty in an array. */
HAPAX__SHARED bool hapax__raw_next(struct hapax__raw_walk *walk, struct hapax_span *name,
                                   struct hapax_span *value);

/* Finds a member by its name; of several the last, as most readers have it. `path` is names parted
 * by '.', each at most 63 bytes. False: there is none, and *out is empty. */
HAPAX__SHARED bool hapax__raw_member(struct hapax_span *out, struct hapax_span object,
                                     const char *path);

/* Whether a value is the string `text`, which has at most 64 bytes if it is spelled with
 * escapes. */
HAPAX__SHARED bool hapax__raw_says(struct hapax_span value, const char *text);

/* Reads the escape at `at`, in a string that ends at `end`: *character is what the escape stands
 * for, half a surrogate pair if the other half is missing. Returns its length in bytes. */
size_t hapax__raw_escape(uint32_t *character, const uint8_t *at, const uint8_t *end);

/* Writes the bytes of a string, without quotes and escapes: at most string.len of them. Half a
 * surrogate pair becomes U+FFFD. Returns how many bytes. */
HAPAX__SHARED size_t hapax__raw_unescape(uint8_t *out, struct hapax_span string);

/* The bytes that a string stands for, in the text or, where it has escapes, in the arena; empty
 * where the value is no string. False: out of memory. */
HAPAX__SHARED bool hapax__raw_text(struct hapax_span *out, struct hapax_arena *arena,
                                   struct hapax_span value);

/* Copies what a string stands for, ended by a NUL. False, and out is "": the value is no string,
 * holds a NUL, or does not fit. */
HAPAX__SHARED bool hapax__raw_copy(char *out, size_t size, struct hapax_span value);

/* Reads a whole number of at most 18 characters. False: the value is none. */
HAPAX__SHARED bool hapax__raw_number(int64_t *out, struct hapax_span value);

#endif
