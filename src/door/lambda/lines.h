/* SPDX-License-Identifier: Apache-2.0
 *
 * Header lines of an outcome, `Name: value\r\n`, as names and values.
 */
#ifndef HAPAX_DOOR_LAMBDA_LINES_H
#define HAPAX_DOOR_LAMBDA_LINES_H

#include <hapax/hapax.h>

#define HAPAX__LINES_MAX 256u

struct hapax__lines {
    size_t n;
    struct hapax__line {
        struct hapax_span name;
        struct hapax_span value;
    } at[HAPAX__LINES_MAX];
};

/* Reads header lines; the spans point into them. Lines over HAPAX__LINES_MAX, and what is no line,
 * are left out. replayed: so are lines that are never replayed. */
void hapax__lines_read(struct hapax__lines *lines, struct hapax_span headers, bool replayed);

/* Adds a line; name and value are borrowed. Does nothing if there is no room. */
void hapax__lines_add(struct hapax__lines *lines, const char *name, const char *value);

/* Whether a line has this name; case does not count. */
bool hapax__line_is(const struct hapax__line *line, struct hapax_span name);

/* The index of the first line of this name; lines->n: there is none. */
size_t hapax__lines_first(const struct hapax__lines *lines, struct hapax_span name);

/* Whether a header of this name is kept. Headers of one connection, one client or one moment are
 * not. */
bool hapax__line_is_kept(struct hapax_span name);

/* Whether a header of this name is a mark that a door puts on a response. */
bool hapax__line_is_mark(struct hapax_span name);

#endif
