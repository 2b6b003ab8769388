/* SPDX-License-Identifier: Apache-2.0
 *
 * /metrics (Prometheus text 0.0.4) and /health (200; or 503 with a line that names what is away),
 * served over HTTP by a thread of their own.
 */
#ifndef HAPAX_HTTP_PAGES_H
#define HAPAX_HTTP_PAGES_H

#include <hapax/hapax.h>
#include <stdio.h>

/* The thread of the pages calls both functions. */
struct hapax__page_source {
    void (*metrics)(FILE *out, const void *arg);
    const char *(*away)(const void *arg); /* a static line; NULL: all is well */
    const void *arg;
};

struct hapax__pages;

/* Opens the pages at HOST:PORT. *port is the port in use; port 0 takes any. INVALID, UNAVAILABLE
 * (the port is taken), NOMEM. */
enum hapax_error hapax__pages_open(struct hapax__pages **out, const char *address,
                                   const struct hapax__page_source *from, uint16_t *port,
                                   char text[HAPAX_TEXT_MAX]);
void hapax__pages_close(struct hapax__pages *pages); /* NULL: does nothing */

/* Helpers for `metrics`. They write the two lines before a metric; whole metrics without labels,
 * leaving out unknown (negative) values; and a label's value, without its quotes. */
struct hapax__page_number {
    const char *name;
    int64_t value;
    const char *about;
};
void hapax__page_head(FILE *out, const char *name, const char *type, const char *about);
void hapax__page_numbers(FILE *out, const char *type, const struct hapax__page_number *numbers,
                         size_t n);
void hapax__page_label(FILE *out, const char *value);

#endif
