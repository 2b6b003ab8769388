/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket's door: serves the operations of other processes of this machine over a Unix socket
 * (docs/door.md). One thread with epoll has the sockets; the pulse of the store's handle has the
 * flows. The door translates frames into calls (door/call.h), and holds no decisions.
 */
#ifndef HAPAX_DOOR_SOCKET_DOOR_H
#define HAPAX_DOOR_SOCKET_DOOR_H

#include "stats.h"
#include <hapax/hapax.h>

struct hapax__door;
struct hapax__scopes;

struct hapax__door_options {
    struct hapax *h; /* lent until hapax__door_close() */
    const char *path; /* of the socket */
    unsigned mode; /* of the socket; 0: 0600, with a group 0660 */
    const char *group; /* name or number of the group whose members may connect; NULL: none */
    const struct hapax__scopes *scopes; /* policies (scopes.h); lent */
    struct hapax__door_stats *stats; /* zeroed; lent */
    bool now; /* where a client's process has died, its claims are given up at once */
    int64_t patience_ms; /* for half a frame, or a frame that nobody reads; 0: 30 s */
    uint32_t clients_max; /* 0: 1024 */
    uint32_t ops_max; /* of a connection; 0: 4096 */
};

/* Listens, in a thread of its own. Errors as hapax__socket_open(), and NOMEM. */
enum hapax_error hapax__door_open(struct hapax__door **out,
                                  const struct hapax__door_options *options,
                                  char text[HAPAX_TEXT_MAX]);

/* Takes no connections and no new operations. Waits for those in hand, for drain_ms at most, and
 * closes. Returns how many operations were left in hand: then the door's memory is not freed, and h
 * must not be closed, since the clients go on with these at the next door. The process ends then.
 */
uint32_t hapax__door_close(struct hapax__door *door, int64_t drain_ms);

#endif
