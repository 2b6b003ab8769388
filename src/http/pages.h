/* SPDX-License-Identifier: Apache-2.0
 *
 * /metrics (Prometheus text 0.0.4) and /health (200, or 503 with a line that says what is away),
 * over HTTP from a thread of their own.
 */
#ifndef HAPAX_HTTP_PAGES_H
#define HAPAX_HTTP_PAGES_H

#include <hapax/hapax.h>
#include <stdio.h>

/* Both are called from the thread of the pages. */
struct hapax__page_source {
    void (*metrics)(FILE *out, const void *arg);
    const char *(*away)(const void *arg); /* a line, static; NULL: all is well */
    const void *arg;
};

struct hapax__pages;

/* address: HOST:PORT; port 0: any, *port says which. INVALID, UNAVAILABLE (taken), NOMEM. */
enum hapax_error hapax__pages_open(struct hapax__pages **out, const char *address,
                                   const struct hapax__page_source *from, uint16_t *port,
                                   char text[HAPAX_TEXT_MAX]);
void hapax__pages_close(struct hapax__pages *pages); /* NULL is fine */

/* For `metrics`: the two lines before a metric; whole metrics without labels, of those whose value
 * is known (not negative); and a label's value, without its quotes. */
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
