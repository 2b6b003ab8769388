/* SPDX-License-Identifier: Apache-2.0
 *
 * The keeper: shares a store of this process with other processes of this machine over a Unix
 * socket. The client side is the store type hapax__keeper (`unix:PATH`). Protocol: docs/keeper.md.
 */
#ifndef HAPAX_STORE_KEEPER_KEEPER_H
#define HAPAX_STORE_KEEPER_KEEPER_H

#include <hapax/store.h>
#include <stdio.h>
#include <sys/types.h>

struct hapax__keeper_server;

struct hapax__keeper_options {
    const char *path; /* of the socket */
    unsigned mode; /* of the socket; 0: 0600, with a group 0660 */
    const char
        /* Name or number of the group that owns the socket; its members may connect. NULL: none. */
        *group;
    uint32_t clients_max; /* 0: 1024 */
    int64_t patience_ms; /* for half a frame, or a reply nobody reads; 0: 30 s */
};

/* Listens on a Unix socket, in a thread of its own, with a lane over `store`. A stale socket
 * file is replaced. Peers of this process's user, of root and of `group` are served; others are
 * turned away. On success the server owns the store and closes it; on failure the caller still
 * owns it. REFUSED: another keeper answers there; text has its pid. INVALID: the path is too
 * long, or is no socket; there is no such group. UNAVAILABLE: cannot listen there; text says
 * why. */
HAPAX__SHARED enum hapax_error hapax__keeper_serve(struct hapax__keeper_server **out,
                                                   struct hapax_store *store,
                                                   const struct hapax__keeper_options *options,
                                                   char text[HAPAX_TEXT_MAX]);

/* What the keepers of this process count together, written as metrics. Safe from any thread. */
void hapax__keeper_page(FILE *out);

/* Takes no more requests, answers those in hand, removes the socket and closes the store.
 * Blocks. NULL is allowed. */
HAPAX__SHARED void hapax__keeper_stop(struct hapax__keeper_server *server);

/* Connects as a client, for a store whose files another process has open. As the `open` of a
 * store type; the handle has type hapax__keeper. */
HAPAX__SHARED enum hapax_error hapax__keeper_connect(struct hapax_store **out, const char *path,
                                                     char text[HAPAX_TEXT_MAX]);

#endif
