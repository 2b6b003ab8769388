/* SPDX-License-Identifier: Apache-2.0
 *
 * What a door counts. The door's thread writes, and the pulse lowers `saving`; any thread reads,
 * word by word.
 */
#ifndef HAPAX_DOOR_SOCKET_STATS_H
#define HAPAX_DOOR_SOCKET_STATS_H

#include <hapax/hapax.h>
#include <stdatomic.h>

struct hapax__census;

struct hapax__door_stats {
    _Atomic(const struct hapax *) h; /* whose store is looked at; NULL: it is not open yet */
    _Atomic(struct hapax__census *) census; /* of that store; NULL: none */
    atomic_uint_fast64_t run; /* handlers that were told to run */
    atomic_uint_fast64_t resumed; /* operations that went on after a door's end */
    atomic_uint_fast64_t deserted; /* handlers in hand when their connection ended */
    atomic_uint_fast64_t faults; /* frames refused */
    atomic_uint_fast64_t connections; /* gauge */
    atomic_uint_fast64_t in_hand; /* gauge: operations */
    atomic_uint_fast64_t running; /* gauge: handlers */
    atomic_uint_fast64_t saving; /* gauge: bytes of outcomes that the door left to be saved */
    atomic_bool store_up; /* as of the last answer that came from the store */
};

#endif
