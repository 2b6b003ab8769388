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
    /* Name or number of the group whose members may connect; the socket's mode is 0660 then. NULL:
     * none, and 0600. */
    const char *group;
    const struct hapax__scopes *scopes; /* policies (scopes.h); lent */
    struct hapax__door_stats *stats; /* zeroed; lent until h is closed */
    bool now; /* where a client's process has died, its claims are given up at once */
    bool last; /* no other door follows at this path */
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
