/* SPDX-License-Identifier: Apache-2.0
 *
 * Header lines of an outcome, `Name: value\r\n`, taken apart.
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

/* Reads what are lines; spans into them. What is over HAPAX__LINES_MAX is left out. replayed: without those that are never
 * replayed. */
void hapax__lines_read(struct hapax__lines *lines, struct hapax_span headers, bool replayed);

/* One more; name and value stay where they are. Nothing happens where there is no room. */
void hapax__lines_add(struct hapax__lines *lines, const char *name, const char *value);

bool hapax__line_is(const struct hapax__line *line,
                    struct hapax_span name); /* case does not count */

/* The first line of this name. */
size_t hapax__lines_first(const struct hapax__lines *lines, struct hapax_span name);

/* Whether a header of this name is kept: not what belongs to one connection, one client or one moment. */
bool hapax__line_is_kept(struct hapax_span name);

/* Whether it is one of the headers by which a door marks a response. */
bool hapax__line_is_mark(struct hapax_span name);

#endif
