/* SPDX-License-Identifier: Apache-2.0
 *
 * A small HTTP server for the pages of `hapax web`: 32 connections, bodies of 64 KiB, four threads.
 * Who goes on sending past 1 MiB is cut off.
 */
#ifndef HAPAX_HTTP_SITE_H
#define HAPAX_HTTP_SITE_H

#include <hapax/hapax.h>

#define HAPAX__SITE_BODY_MAX (64u << 10)

struct hapax__site_request {
    const char *method;
    const char *path; /* without the query */
    struct hapax_span body;
    void *connection;
};

/* A header of a request, by its name in any case; NULL: not sent. Of several, the first. */
const char *hapax__site_header(const struct hapax__site_request *request, const char *name);

/* How often a header was sent. */
unsigned hapax__site_header_count(const struct hapax__site_request *request, const char *name);

struct hapax__site_reply {
    unsigned status;
    const char *type; /* of the body */
    const char *body;
    size_t len;
    char *owned; /* freed when the reply was sent; NULL: the body is static */
    const char *challenge; /* WWW-Authenticate; NULL: none */
};

/* Each of the site's threads calls `answer`, several at once. Every reply gets the headers, which
 * are pairs of a name and a value; ends with NULL. */
struct hapax__site_pages {
    void (*answer)(struct hapax__site_reply *reply, const struct hapax__site_request *request,
                   void *arg);
    void *arg;
    const char *const (*headers)[2];
};

struct hapax__site;

/* Serves the pages on a listening socket (listen.h), which is the site's from then on. pages must
 * outlive the site. NOMEM: the socket is still the caller's. */
enum hapax_error hapax__site_open(struct hapax__site **out, int fd,
                                  const struct hapax__site_pages *pages, char text[HAPAX_TEXT_MAX]);
void hapax__site_close(struct hapax__site *site); /* NULL: does nothing */

#endif
