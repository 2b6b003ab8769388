/* SPDX-License-Identifier: Apache-2.0
 *
 * /metrics (Prometheus text 0.0.4) and /health (200; or 503 with a line that names what is away),
 * served over HTTP by a thread of their own.
 */
#ifndef HAPAX_HTTP_PAGES_H
#define HAPAX_HTTP_PAGES_H

#include "prometheus.h"

/* The thread of the pages calls both functions. */
struct hapax__page_source {
    void (*metrics)(FILE *out, const void *arg);
    const char *(*away)(const void *arg); /* a static line; NULL: all is well */
    const void *arg;
};

struct hapax__pages;

/* Where to serve. The pages show what a business does, and nobody is asked for a password. So an
 * address that other machines reach has to be asked for by name. */
struct hapax__page_place {
    const char *address; /* HOST:PORT; port 0 takes any */
    bool anywhere; /* not only on this machine's own addresses */
};

/* Opens the pages. *port is the port in use. INVALID (also an address that is not this machine's
 * own, unless `anywhere`), UNAVAILABLE (the port is taken), NOMEM. */
enum hapax_error hapax__pages_open(struct hapax__pages **out, const struct hapax__page_place *place,
                                   const struct hapax__page_source *from, uint16_t *port,
                                   char text[HAPAX_TEXT_MAX]);
void hapax__pages_close(struct hapax__pages *pages); /* NULL: does nothing */

#endif
