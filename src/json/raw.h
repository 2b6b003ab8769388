/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON as it stands: where in a text its values are, without taking it apart. So an event is looked into, and a record
 * cut out of it, while every other byte stays what it was.
 *
 * A text is checked once; what walks over it then takes only spans that came from a checked one, and cannot fail.
 */
#ifndef HAPAX_JSON_RAW_H
#define HAPAX_JSON_RAW_H

#include <hapax/hapax.h>
#include <stdio.h>

#define HAPAX__RAW_DEPTH_MAX 256u

/* Whether text is one JSON value (RFC 8259), at most HAPAX__RAW_DEPTH_MAX containers deep; *value is it without the space
 * around it. Bytes within strings are not looked at beyond escapes and control characters. */
bool hapax__raw_check(struct hapax_span *value, struct hapax_span text);

bool hapax__raw_is_object(struct hapax_span value);
bool hapax__raw_is_array(struct hapax_span value);
bool hapax__raw_is_string(struct hapax_span value);
bool hapax__raw_is_null(struct hapax_span value); /* also what is no value: an empty span */

/* A walk over the members of an object, or the elements of an array; over anything else it ends at once. */
struct hapax__raw_walk {
    const uint8_t *at, *end;
    bool named;
};

void hapax__raw_begin(struct hapax__raw_walk *walk, struct hapax_span container);

/* False: there is no more. name: with its quotes; empty in an array. */
bool hapax__raw_next(struct hapax__raw_walk *walk, struct hapax_span *name,
                     struct hapax_span *value);

/* The member of this name; of several the last, as most readers have it. False: none, and *out is empty. `path`: names parted
 * by '.', each but the last one an object's. */
bool hapax__raw_member(struct hapax_span *out, struct hapax_span object, const char *path);

/* Whether a string, quotes and all, says `text`. */
bool hapax__raw_says(struct hapax_span string, const char *text);

/* Writes the bytes of a string, without quotes and escapes: string.len of them at most. Half a surrogate pair is U+FFFD.
 * Returns how many. */
size_t hapax__raw_unescape(uint8_t *out, struct hapax_span string);

/* A whole number; false: it is none, or too long. */
bool hapax__raw_number(int64_t *out, struct hapax_span value);

/* Writes bytes as a string, quotes and all. They are taken for UTF-8; hapax__is_utf8() says whether they are. */
void hapax__raw_put_string(FILE *out, struct hapax_span bytes);

bool hapax__is_utf8(struct hapax_span bytes);

/* Base64 (RFC 4648, section 4). Decoding takes padding or none; out has room for in.len bytes. False: it is none. */
bool hapax__base64_decode(uint8_t *out, size_t *len, struct hapax_span in);
void hapax__base64_put(FILE *out, struct hapax_span bytes);

#endif
