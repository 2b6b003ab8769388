/* SPDX-License-Identifier: Apache-2.0
 *
 * The map of a cluster: which of a route's nodes serves which slot.
 */
#ifndef HAPAX_STORE_REDIS_CLUSTER_H
#define HAPAX_STORE_REDIS_CLUSTER_H

#include "node.h"

#define HAPAX__REDIS_SLOTS     16384u
#define HAPAX__REDIS_PRIMARIES 1000u

struct hapax__redis_map {
    uint16_t slots[HAPAX__REDIS_SLOTS]; /* the index of a slot's node, or HAPAX__REDIS_NOWHERE */
    uint16_t
        primaries[HAPAX__REDIS_PRIMARIES]; /* by their lowest slot: a failover keeps the order */
    size_t primary_count; /* 0: no node was asked yet */
    bool unswept; /* nodes came or went since the last sweep */
    bool old; /* known to be out of date */
    int64_t gaps_us; /* since when slots have no node; 0: all have one */
    int64_t read_us;
    size_t first; /* index of the node that was asked first; it changes each time */
};

/* Empties a map. */
void hapax__redis_map_init(struct hapax__redis_map *map);

/* Asks the nodes for the map, where there is none or the map is old and not just read. Errors only
 * where there is none. */
enum hapax_error hapax__redis_map_read(struct hapax__redis_map *map,
                                       struct hapax__redis_nodes *nodes, int64_t deadline_us,
                                       char text[HAPAX_TEXT_MAX]);

/* Frees the nodes that the map does not name. Only between runs. */
void hapax__redis_map_sweep(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes);

/* The index of the node that a redirection for a key of `slot` names: words is "MOVED slot
 * host:port" or "ASK slot host:port", as `node` answered. A node that is new is added.
 * HAPAX__REDIS_NOWHERE: the words make no sense, or there is no room or no memory. */
uint16_t hapax__redis_map_target(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes,
                                 const struct hapax__redis_node *node, const char *words,
                                 uint16_t slot);

/* The slot of a key: CRC16 of it, or of the bytes between its first `{` and the next `}` (Redis
 * Cluster specification, "Key distribution model"). */
uint16_t hapax__redis_slot(struct hapax_span key);

#endif
