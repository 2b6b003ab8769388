/* SPDX-License-Identifier: Apache-2.0
 *
 * The one writer of JSON, but for the canonical form. It puts a text together piece by piece, in
 * memory or into a file. What is put is the caller's order: brackets, colons and commas are pieces.
 */
#ifndef HAPAX_JSON_WRITE_H
#define HAPAX_JSON_WRITE_H

#include <hapax/hapax.h>
#include <stdio.h>

/* A text in the making; zeroed it is empty. */
struct hapax__json_out {
    /* Where the text goes; NULL: into `bytes`. */
    FILE *to;
    /* Ends with a NUL that len does not count; NULL while nothing was put. hapax__json_free() frees
     * it. */
    char *bytes;
    size_t len, size;
    /* Memory ran out. Nothing more is put. */
    bool failed;
};

/* JSON as it is. */
HAPAX__SHARED void hapax__json_put(struct hapax__json_out *out, const char *json);
void hapax__json_put_span(struct hapax__json_out *out, struct hapax_span json);

/* A string, with quotes. The bytes are taken for UTF-8. */
HAPAX__SHARED void hapax__json_put_string(struct hapax__json_out *out, struct hapax_span bytes);

/* The same without quotes: a part of a string. */
void hapax__json_put_escaped(struct hapax__json_out *out, struct hapax_span bytes);

/* A string for terminals, with quotes: what acts on a terminal or turns the order of letters is
 * escaped, and each byte that is not UTF-8 becomes U+FFFD. */
void hapax__json_put_shown(struct hapax__json_out *out, struct hapax_span bytes);

/* Whether hapax__json_put_shown() escapes a character, apart from quotes and backslashes. */
bool hapax__json_acts(uint32_t character);

/* Bytes in base64, with quotes. */
HAPAX__SHARED void hapax__json_put_base64(struct hapax__json_out *out, struct hapax_span bytes);

HAPAX__SHARED void hapax__json_put_number(struct hapax__json_out *out, int64_t number);

/* Begins anew, and keeps the memory. */
HAPAX__SHARED void hapax__json_clear(struct hapax__json_out *out);
HAPAX__SHARED void hapax__json_free(struct hapax__json_out *out);

#endif
