/* SPDX-License-Identifier: Apache-2.0
 *
 * One exchange over HTTP that the caller waits for, and what all that use libcurl share.
 */
#ifndef HAPAX_AWS_FETCH_H
#define HAPAX_AWS_FETCH_H

#include <hapax/hapax.h>

#include <signal.h>

#define HAPAX__AWS_FETCH_MAX (64u << 10) /* bytes of a reply */

/* Sets libcurl up, once in a process. */
void hapax__aws_curl_init(void);

/* Blocks SIGPIPE in this thread between begin and end, and takes back one that came meanwhile.
 * OpenSSL may raise it when it writes to a peer that is gone; libcurl's own way to suppress it
 * holds for the whole process. Pairs may be nested. */
struct hapax__aws_quiet {
    sigset_t before;
    bool pending;
};

void hapax__aws_quiet_begin(struct hapax__aws_quiet *quiet);
void hapax__aws_quiet_end(const struct hapax__aws_quiet *quiet);

struct hapax__aws_fetch {
    const char *method; /* "GET", "PUT", "POST" */
    const char *url;
    const char *const *lines; /* "Name: value" */
    size_t lines_n;
    const char *body; /* NULL: none */
    long connect_ms;
    long total_ms;
    bool proxy; /* may go by way of a proxy that the environment names */
    const char *ca; /* a file; NULL: the system's */

    /* answered */
    int status; /* 0: there was no whole answer, `why` says what happened */
    char *reply; /* with a NUL; wiped and freed by release */
    size_t len;
    char why[128];
};

/* Follows no redirect. False: no status. */
bool hapax__aws_fetch_run(struct hapax__aws_fetch *fetch);

void hapax__aws_fetch_release(struct hapax__aws_fetch *fetch);

#endif
