/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors of simulated processes: eventfds, Unix stream sockets, epoll, and the names of
 * sockets, which are under /sim/. Sockets are as Linux has them: what was sent stays readable when
 * the sender has died, and who leaves bytes unread resets the connection. A cut is harsher. It
 * loses bytes of both directions, as if both ends had died and were there again.
 */
#ifndef HAPAX_TESTS_SIM_FDS_H
#define HAPAX_TESTS_SIM_FDS_H

#include "threads.h"

#include <stddef.h>
#include <stdint.h>

#define ROOM_MAX ((size_t)64 << 10)

/* Zeroed with the threads. */
struct sim_sockets {
    /* 1000ths of calls. */
    unsigned interrupted, in_part, backlog_full, no_descriptor;
    size_t room; /* of one direction, at most ROOM_MAX; 0: that */
    unsigned inherited; /* 1000ths of kills: a child has the sockets, for a while */
    /* How often it came to that. */
    unsigned interruptions, short_reads, short_writes, full, refusals, resets, cuts, inheritances;
    unsigned joined[PROCS + 1]; /* by process: it read at once what was sent by several calls */
};
extern struct sim_sockets sim_sockets;

/* Cuts a connection of this process, if it has one, at any byte. */
void sockets_cut(int proc);

/* Draws the faults that all sockets may have (play.h). */
void sockets_draw(bool all);

/* Which process has let in this connection, and in which of its lives. */
int sockets_peer(int fd, uint32_t *life);

#endif
