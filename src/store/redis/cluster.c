/* SPDX-License-Identifier: Apache-2.0
 *
 * The map of a cluster: which primary serves which slot, by CLUSTER SLOTS of any node.
 *
 * A map is a guess and may be wrong: a node turns away the keys that are not its own (MOVED, ASK),
 * so that an old map costs a round trip and never a wrong answer. The map is read anew after a
 * loss, and now and then after a MOVED, which by itself corrects its one slot at once. Nodes that
 * were lost or not reached lately are asked last, and the first node to be asked changes each time:
 * a node that was cut off from the others describes the former cluster.
 *
 * Primaries are counted by their lowest slot, and not in the order in which they were met: a node
 * that replaces another in a failover gets its number, so that a scan over all primaries skips
 * none. /
 */
#include "cluster.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE       HAPAX__REDIS_NOWHERE
#define SLOTS         HAPAX__REDIS_SLOTS
#define SHUNNED_US    (5 * US_PER_S) /* for so long a lost node is asked last */
#define READ_EVERY_US (20 * US_PER_MS) /* at most */

/* ---- slots of keys ------------------------------------------------------------------- */

/* CRC-16/XMODEM: polynomial 0x1021, from 0, most significant bit first. Four bits at a time: the
 * polynomial's ones are four or more bits apart, so that the remainder of four bits is a plain
 * product. */
static uint16_t crc16(const uint8_t *ptr, size_t len)
{
    uint32_t crc = 0;

    for (size_t i = 0; i < len; i++) {
        crc = (crc << 4 ^ (crc >> 12 ^ ptr[i] >> 4) * 0x1021u) & 0xffffu;
        crc = (crc << 4 ^ (crc >> 12 ^ (ptr[i] & 15u)) * 0x1021u) & 0xffffu;
    }
    return (uint16_t)crc;
}

uint16_t hapax__redis_slot(struct hapax_span key)
{
    const uint8_t *open = key.len > 0 ? memchr(key.ptr, '{', key.len) : NULL;

    if (open) {
        size_t rest = key.len - (size_t)(open + 1 - key.ptr);
        const uint8_t *close = rest > 0 ? memchr(open + 1, '}', rest) : NULL;

        if (close && close > open + 1) {
            key.ptr = open + 1;
            key.len = (size_t)(close - key.ptr);
        }
    }
    return crc16(key.ptr, key.len) % SLOTS;
}

/* ---- nodes --------------------------------------------------------------------------- */

/* The index of the node at an address. A node that is new is added. NOWHERE: no room, or no
 * memory. */
static uint16_t index_of(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes,
                         const struct hapax__redis_address *address)
{
    size_t at = nodes->count;

    for (size_t k = nodes->count; k-- > 0;) {
        if (!nodes->at[k])
            at = k;
        else if (hapax__redis_node_is_at(nodes->at[k], address))
            return (uint16_t)k;
    }
    if (at == HAPAX__REDIS_NODES)
        return NOWHERE;
    nodes->at[at] = hapax__redis_node_new(address, &nodes->access);
    if (!nodes->at[at])
        return NOWHERE;
    if (at == nodes->count)
        nodes->count++;
    map->unswept = true;
    return (uint16_t)at;
}

void hapax__redis_map_init(struct hapax__redis_map *map)
{
    memset(map, 0, sizeof(*map));
    for (size_t slot = 0; slot < SLOTS; slot++)
        map->slots[slot] = NOWHERE;
}

void hapax__redis_map_sweep(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes)
{
    bool used[HAPAX__REDIS_NODES] = {false};

    if (!map->unswept)
        return;
    map->unswept = false;
    for (size_t slot = 0; slot < SLOTS; slot++)
        if (map->slots[slot] != NOWHERE)
            used[map->slots[slot]] = true;
    for (size_t k = 0; k < nodes->count; k++) {
        struct hapax__redis_node *node = nodes->at[k];

        if (!node || used[k] || node->listed)
            continue;
        hapax__redis_node_close(node);
        if (node->seed)
            continue;
        hapax__redis_node_free(node);
        nodes->at[k] = NULL;
    }
}

/* ---- redirections -------------------------------------------------------------------- */

/* An address without a host is on the host of the node that answered it. */
static bool read_address(struct hapax__redis_address *out, const struct hapax__redis_node *node,
                         const char *host, size_t host_len, unsigned long port)
{
    if (port == 0 || port > UINT16_MAX || host_len > HAPAX__REDIS_NAME_MAX ||
        memchr(host, '\0', host_len) || (host_len == 1 && host[0] == '?'))
        return false;
    *out = node->address;
    if (host_len > 0) {
        memcpy(out->host, host, host_len);
        out->host[host_len] = '\0';
    }
    out->port = (uint16_t)port;
    return true;
}

uint16_t hapax__redis_map_target(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes,
                                 const struct hapax__redis_node *node, const char *words,
                                 uint16_t slot)
{
    const char *number = strchr(words, ' ');
    const char *host, *colon;
    char *end;
    unsigned long port;
    struct hapax__redis_address address;

    if (!number || strtoul(number + 1, &end, 10) != slot || end == number + 1 || *end != ' ')
        return NOWHERE;
    host = end + 1;
    colon = strrchr(host, ':');
    if (!colon || colon[1] < '0' || colon[1] > '9')
        return NOWHERE;
    port = strtoul(colon + 1, &end, 10);
    if (*end != '\0' || !read_address(&address, node, host, (size_t)(colon - host), port))
        return NOWHERE;
    return index_of(map, nodes, &address);
}

/* ---- the map ------------------------------------------------------------------------- */

/* One range: [first, last, [host, port, …], replicas…]. */
static bool read_range(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes,
                       const struct hapax__redis_node *node, const struct hapax__resp *range,
                       uint16_t *slots)
{
    const struct hapax__resp *primary, *host;
    struct hapax__redis_address address;
    long long first, last;
    uint16_t at = NOWHERE;

    if (range->type != HAPAX__RESP_ARRAY || range->elements < 3 ||
        range->element[0]->type != HAPAX__RESP_INTEGER ||
        range->element[1]->type != HAPAX__RESP_INTEGER)
        return false;
    first = range->element[0]->integer;
    last = range->element[1]->integer;
    primary = range->element[2];
    if (first < 0 || first > last || last >= (long long)SLOTS ||
        primary->type != HAPAX__RESP_ARRAY || primary->elements < 2 ||
        primary->element[1]->type != HAPAX__RESP_INTEGER)
        return false;
    host = primary->element[0];
    if (host->type == HAPAX__RESP_NIL) {
        if (primary->element[1]->integer <= 0 ||
            !read_address(&address, node, "", 0, (unsigned long)primary->element[1]->integer))
            return false;
        at = index_of(map, nodes, &address);
    } else if (host->type != HAPAX__RESP_STRING) {
        return false;
    } else if (primary->element[1]->integer > 0 &&
               read_address(&address, node, host->str, host->len,
                            (unsigned long)primary->element[1]->integer)) {
        at = index_of(map, nodes, &address);
    }
    for (long long slot = first; slot <= last; slot++)
        slots[slot] = at;
    return true;
}

/* Takes a map over as a whole, or not at all. */
static bool take_map(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes,
                     const struct hapax__redis_node *node, const struct hapax__resp *reply)
{
    uint16_t slots[SLOTS];
    bool counted[HAPAX__REDIS_NODES] = {false};
    uint16_t primaries[HAPAX__REDIS_PRIMARIES];
    size_t count = 0;
    bool gaps = false;

    if (reply->type != HAPAX__RESP_ARRAY || reply->elements == 0 || reply->elements > SLOTS)
        return false;
    for (size_t slot = 0; slot < SLOTS; slot++)
        slots[slot] = NOWHERE;
    for (size_t k = 0; k < reply->elements; k++)
        if (!read_range(map, nodes, node, reply->element[k], slots))
            return false;
    for (size_t slot = 0; slot < SLOTS; slot++) {
        uint16_t at = slots[slot];

        gaps = gaps || at == NOWHERE;
        if (at == NOWHERE || counted[at])
            continue;
        if (count == HAPAX__REDIS_PRIMARIES)
            return false;
        counted[at] = true;
        primaries[count++] = at;
    }
    if (count == 0)
        return false;
    memcpy(map->slots, slots, sizeof(slots));
    memcpy(map->primaries, primaries, count * sizeof(primaries[0]));
    map->primary_count = count;
    if (!gaps)
        map->gaps_us = 0;
    else if (map->gaps_us == 0)
        map->gaps_us = hapax__monotonic_us();
    map->unswept = true;
    for (size_t k = 0; k < nodes->count; k++)
        if (nodes->at[k])
            nodes->at[k]->listed = counted[k];
    return true;
}

static enum hapax_error ask(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes,
                            struct hapax__redis_node *node, int64_t deadline_us,
                            char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span args[] = {hapax_str("CLUSTER"), hapax_str("SLOTS")};
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax__resp *reply;

    if (!hapax__redis_node_linked(node))
        error = hapax__redis_node_connect(node, deadline_us, text);
    if (error == HAPAX_ERR_NONE)
        error = hapax__redis_node_ask(node, args, 2, &reply, deadline_us, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    if (reply->type == HAPAX__RESP_ERROR) {
        char quoted[100];

        hapax__redis_quote(quoted, sizeof(quoted), reply);
        error = hapax__fail(text, hapax__redis_node_refusal(reply),
                            "cannot read the map of the cluster: \"%.100s\" answered: %s",
                            node->name, quoted);
    } else if (!take_map(map, nodes, node, reply)) {
        error = hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                            "cannot read the map of the cluster: \"%.100s\" knows of no slots",
                            node->name);
    }
    hapax__resp_free(reply);
    return error;
}

/* A node that was lost or not reached lately. */
static bool shunned(const struct hapax__redis_node *node, int64_t now_us)
{
    int64_t last_us = hapax__most(node->lost_us, node->failed_us);

    return last_us != 0 && now_us - last_us < SHUNNED_US;
}

/* Asks the nodes that are, or are not, shunned, until one has the map. True: ask no other. */
static bool ask_all(struct hapax__redis_map *map, struct hapax__redis_nodes *nodes, bool bad,
                    int64_t deadline_us, enum hapax_error *error, char text[HAPAX_TEXT_MAX])
{
    size_t count = nodes->count;

    for (size_t k = 0; k < count; k++) {
        struct hapax__redis_node *node = nodes->at[(map->first + k) % count];
        int64_t now_us = hapax__monotonic_us();

        if (!node || shunned(node, now_us) != bad)
            continue;
        if (now_us >= deadline_us)
            return true;
        *error = ask(map, nodes, node, hapax__redis_share(deadline_us, 4), text);
        if (*error == HAPAX_ERR_NONE || *error == HAPAX_ERR_NOMEM)
            return true;
    }
    return false;
}

enum hapax_error hapax__redis_map_read(struct hapax__redis_map *map,
                                       struct hapax__redis_nodes *nodes, int64_t deadline_us,
                                       char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;
    bool known = map->primary_count > 0;

    assert(nodes->count > 0);
    if (known && (!map->old || hapax__monotonic_us() - map->read_us < READ_EVERY_US))
        return HAPAX_ERR_NONE;
    map->first = (map->first + 1) % nodes->count;
    if (!ask_all(map, nodes, false, deadline_us, &error, text))
        ask_all(map, nodes, true, deadline_us, &error, text);
    map->read_us = hapax__monotonic_us();
    map->old = map->old && error != HAPAX_ERR_NONE;
    return known ? HAPAX_ERR_NONE : error;
}
