/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors of simulated processes: eventfds, Unix stream sockets, epoll, and the names of
 * sockets, which are under /sim/. Sockets are as Linux has them: what was sent stays readable when
 * the sender has died, and who leaves bytes unread resets the connection. A cut is harsher. It
 * loses bytes of both directions, as if both ends had died and were there again.
 */
#ifndef HAPAX_TESTS_SIM_FDS_H
#define HAPAX_TESTS_SIM_FDS_H

#include <stddef.h>
#include <stdint.h>

#define ROOM_MAX ((size_t)64 << 10)

/* Zeroed with the threads. */
struct sim_sockets {
    /* 1000ths of calls. */
    unsigned interrupted, in_part, backlog_full, no_descriptor;
    size_t room; /* of one direction, at most ROOM_MAX; 0: that */
    /* How often it came to that. */
    unsigned interruptions, short_reads, short_writes, full, refusals, resets, cuts;
};
extern struct sim_sockets sim_sockets;

/* Cuts a connection of this process, if it has one, at any byte. */
void sockets_cut(int proc);

#endif
