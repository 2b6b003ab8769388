/* SPDX-License-Identifier: Apache-2.0
 *
 * The route and its nodes: one link to each, opened when it is first needed and kept between runs.
 *
 * A node that could not be reached is left alone for a moment, whoever asks for it meanwhile: a server that
 * comes up again is not met by a storm of connections. How long a run waits altogether is the run's
 * (redis_round.c), never a node's: a limit for each attempt would add up.
 */
#include "route_parts.h"

#include "base/clock.h"
#include "base/fail.h"
#include "store/types.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- nodes --------------------------------------------------------------------------- */

void hapax__redis_node_move(struct hapax__redis_node *node,
                            const struct hapax__redis_address *address)
{
    bool v6 = strchr(address->host, ':') != NULL;

    assert(!node->link && address->port > 0);
    node->address = *address;
    snprintf(node->name, sizeof(node->name), v6 ? "[%s]:%u" : "%s:%u", address->host,
             (unsigned)address->port);
    node->failed_us = 0;
    node->down_us = 0;
    node->lost_us = 0;
    node->away_us = 0;
}

struct hapax__redis_node *hapax__redis_node_new(const struct hapax__redis_address *address)
{
    struct hapax__redis_node *node = calloc(1, sizeof(*node));

    if (!node)
        return NULL;
    node->first = HAPAX__REDIS_NO_CALL;
    hapax__redis_node_move(node, address);
    return node;
}

void hapax__redis_node_close(struct hapax__redis_node *node)
{
    if (node->link)
        hapax__redis_link_close(node->link);
    node->link = NULL;
}

void hapax__redis_node_lose(struct hapax__redis_node *node)
{
    hapax__redis_node_close(node);
    node->lost_us = hapax__monotonic_us();
}

void hapax__redis_node_free(struct hapax__redis_node *node)
{
    if (!node)
        return;
    hapax__redis_node_close(node);
    free(node);
}

int64_t hapax__redis_share(int64_t deadline_us, size_t parts)
{
    const int64_t least_us = 50000;
    int64_t now_us = hapax__monotonic_us();
    int64_t left_us = deadline_us > now_us ? deadline_us - now_us : 0;
    int64_t share_us = left_us / (int64_t)parts;

    assert(parts > 0);
    if (share_us < least_us)
        share_us = left_us < least_us ? left_us : least_us;
    return now_us + share_us;
}

/* In a cluster a dead machine costs those that talk to others a part of their time, not most of it. */
static bool left_alone(const struct hapax__redis_route *route, const struct hapax__redis_node *node,
                       int64_t now_us)
{
    int64_t gap_us = HAPAX__REDIS_GAP_US;

    if (route->uri.kind == HAPAX__REDIS_CLUSTER && node->cost_us * 2 > gap_us)
        gap_us = node->cost_us * 2;
    return node->failed_us != 0 && now_us - node->failed_us < gap_us;
}

enum hapax_error hapax__redis_node_connect(struct hapax__redis_route *route,
                                           struct hapax__redis_node *node,
                                           const struct hapax__redis_login *login, uint32_t db,
                                           int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    int64_t now_us = hapax__monotonic_us();

    assert(!node->link);
    if (left_alone(route, node, now_us))
        return hapax__fail(text, node->failed, "%s", node->why);
    node->failed = hapax__redis_link_open(&node->link, &node->address, &route->uri, login, db,
                                          route->tls, deadline_us, node->why);
    if (node->failed == HAPAX_ERR_NONE) {
        assert(node->link);
        node->fresh = true;
        node->failed_us = 0;
        node->down_us = 0;
        return HAPAX_ERR_NONE;
    }
    node->link = NULL;
    node->failed_us = hapax__monotonic_us();
    node->cost_us = node->failed_us - now_us;
    if (node->down_us == 0)
        node->down_us = now_us;
    return hapax__fail(text, node->failed, "%s", node->why);
}

enum hapax_error hapax__redis_node_ask(struct hapax__redis_node *node,
                                       const struct hapax_span *args, size_t argc,
                                       struct hapax__resp **out, int64_t deadline_us,
                                       char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_NOMEM;

    assert(node->link);
    *out = NULL;
    if (!hapax__redis_link_put(node->link, args, argc))
        hapax__fail(text, HAPAX_ERR_NOMEM, "cannot ask \"%.100s\": out of memory", node->name);
    else
        error = hapax__redis_link_send(node->link, deadline_us, text);
    if (error == HAPAX_ERR_NONE)
        error = hapax__redis_link_get(node->link, out, deadline_us, text);
    if (error != HAPAX_ERR_NONE)
        hapax__redis_node_lose(node);
    return error;
}

/* ---- the route ----------------------------------------------------------------------- */

void hapax__redis_replies_free(struct hapax__redis_route *route)
{
    for (size_t i = 0; i < route->reply_count; i++)
        hapax__resp_free(route->replies[i]);
    route->reply_count = 0;
}

/* SENTINEL: nodes[0] has no address until a sentinel names one. */
static bool add_hosts(struct hapax__redis_route *route)
{
    bool sentinel = route->uri.kind == HAPAX__REDIS_SENTINEL;
    struct hapax__redis_node **into = sentinel ? route->sentinels : route->nodes;

    for (size_t i = 0; i < route->uri.host_count; i++) {
        into[i] = hapax__redis_node_new(&route->uri.hosts[i]);
        if (!into[i])
            return false;
        into[i]->seed = true;
    }
    route->node_count = sentinel ? 1 : route->uri.host_count;
    if (sentinel)
        route->nodes[0] = hapax__redis_node_new(&route->uri.hosts[0]);
    if (route->uri.kind == HAPAX__REDIS_CLUSTER)
        route->slots = malloc(HAPAX__REDIS_SLOTS * sizeof(*route->slots));
    return route->nodes[0] && (route->uri.kind != HAPAX__REDIS_CLUSTER || route->slots);
}

enum hapax_error hapax__redis_route_open(struct hapax__redis_route **out,
                                         const struct hapax__redis_uri *uri,
                                         char text[HAPAX_TEXT_MAX])
{
    struct hapax__redis_route *route = calloc(1, sizeof(*route));
    enum hapax_error error;

    assert(uri->host_count > 0 && uri->host_count <= HAPAX__REDIS_HOSTS_MAX);
    assert(uri->kind != HAPAX__REDIS_NODE || uri->host_count == 1);
    assert(uri->timeout_ms > 0);
    *out = NULL;
    if (!route)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    route->uri = *uri;
    error = hapax__redis_tls_open(&route->tls, uri, text);
    if (error == HAPAX_ERR_NONE && !add_hosts(route))
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    if (error != HAPAX_ERR_NONE) {
        hapax__redis_route_close(route);
        return error;
    }
    if (route->slots)
        for (size_t slot = 0; slot < HAPAX__REDIS_SLOTS; slot++)
            route->slots[slot] = HAPAX__REDIS_NOWHERE;
    *out = route;
    return HAPAX_ERR_NONE;
}

void hapax__redis_route_close(struct hapax__redis_route *route)
{
    if (!route)
        return;
    hapax__redis_replies_free(route);
    for (size_t i = 0; i < HAPAX__REDIS_NODES; i++)
        hapax__redis_node_free(route->nodes[i]);
    for (size_t i = 0; i < HAPAX__REDIS_HOSTS_MAX; i++)
        hapax__redis_node_free(route->sentinels[i]);
    hapax__redis_tls_close(route->tls);
    free(route->slots);
    free(route->tracks);
    free(route->replies);
    free(route->words);
    explicit_bzero(route, sizeof(*route)); /* the URI holds passwords */
    free(route);
}

void hapax__redis_route_doubt(struct hapax__redis_route *route)
{
    route->look = true;
    if (route->uri.kind != HAPAX__REDIS_SENTINEL)
        return;
    hapax__redis_sentinel_doubt(route);
    hapax__redis_node_close(route->nodes[0]);
}

size_t hapax__redis_route_nodes(struct hapax__redis_route *route, enum hapax_error *error,
                                char text[HAPAX_TEXT_MAX])
{
    *error = HAPAX_ERR_NONE;
    if (route->uri.kind != HAPAX__REDIS_CLUSTER)
        return 1;
    hapax__redis_cluster_sweep(route);
    *error = hapax__redis_cluster_look(route, hapax__monotonic_us() + route->uri.timeout_ms * 1000,
                                       text);
    return *error == HAPAX_ERR_NONE ? route->primary_count : 0;
}

const char *hapax__redis_route_name(const struct hapax__redis_route *route, size_t node)
{
    switch (route->uri.kind) {
    case HAPAX__REDIS_NODE:
        return route->nodes[0]->name;
    case HAPAX__REDIS_SENTINEL:
        return route->nodes[0]->listed ? route->nodes[0]->name : route->uri.master;
    case HAPAX__REDIS_CLUSTER:
        break;
    }
    return node < route->primary_count ? route->nodes[route->primaries[node]]->name : "?";
}
