/* SPDX-License-Identifier: Apache-2.0
 *
 * The Redis processes that a route talks to: one link to each, opened at its first use and kept
 * between runs. /
 */
#ifndef HAPAX_STORE_REDIS_NODE_H
#define HAPAX_STORE_REDIS_NODE_H

#include "link.h"
#include "reader.h"

#define HAPAX__REDIS_NODES   1024u /* of one route, with seeds and the targets of redirections */
#define HAPAX__REDIS_NOWHERE UINT16_MAX /* the index of no node */
#define HAPAX__REDIS_NO_CALL SIZE_MAX /* the index of no call */

/* How nodes of one kind are connected to. The route owns what is pointed to. */
struct hapax__redis_access {
    const struct hapax__redis_login *login;
    uint32_t db;
    struct hapax__redis_tls *tls; /* NULL: plain */
    /* In a cluster: a node whose connection failed is left alone for twice the time of that
     * attempt. So a dead machine takes a part of the time of calls on other nodes, and not most of
     * it. */
    bool many;
};

struct hapax__redis_node {
    struct hapax__redis_address address;
    char name[HAPAX__REDIS_NAME_MAX + 9]; /* host:port, [host]:port */
    const struct hapax__redis_access *access;
    struct hapax__redis_link *link; /* NULL: none is open */
    bool fresh; /* the link has not carried a round yet */
    bool seed; /* named by the URI: never freed before the route */
    bool listed; /* CLUSTER: a primary of the map; SENTINEL: a sentinel has named it */
    int64_t lost_us; /* when its last link died; 0: never */
    int64_t failed_us; /* when connecting failed last; 0: the last attempt succeeded */
    int64_t down_us; /* since when every attempt to connect failed; 0: the last one succeeded */
    int64_t cost_us; /* how long the last failed attempt took */
    int64_t away_us; /* since when it turns calls away and answers none; 0: it answers */
    enum hapax_error failed;
    char why[HAPAX_TEXT_MAX];

    /* Of the round under way. Its calls are a list by index: first, then each track's `next`. */
    size_t first; /* HAPAX__REDIS_NO_CALL: none */
    size_t last;
    size_t loads; /* scripts sent before the calls */
    bool sent;
    bool demoted; /* it is no primary, or is doubted: its link is closed after the round */
};

/* The nodes of a route. A node keeps its index for as long as it lives. */
struct hapax__redis_nodes {
    struct hapax__redis_node *at[HAPAX__REDIS_NODES]; /* NULL: the index is free */
    size_t count; /* indexes in use now or earlier */
    struct hapax__redis_access access;
};

/* A node without a link. access is borrowed for the node's life. NULL: out of memory. */
struct hapax__redis_node *hapax__redis_node_new(const struct hapax__redis_address *address,
                                                const struct hapax__redis_access *access);
void hapax__redis_node_free(struct hapax__redis_node *node);

/* Gives a node without a link another address. */
void hapax__redis_node_move(struct hapax__redis_node *node,
                            const struct hapax__redis_address *address);

bool hapax__redis_node_is_at(const struct hapax__redis_node *node,
                             const struct hapax__redis_address *address);

/* Closes the link, if there is one. */
void hapax__redis_node_close(struct hapax__redis_node *node);

/* Closes a link that died, and notes the time. */
void hapax__redis_node_lose(struct hapax__redis_node *node);

/* Whether there is a usable link. Closes one that the other side has closed. */
bool hapax__redis_node_linked(struct hapax__redis_node *node);

/* Connects to the node's address. After a failed attempt the node is left alone for a moment:
 * meanwhile the same error comes back. Errors as hapax__redis_link_open(). */
enum hapax_error hapax__redis_node_connect(struct hapax__redis_node *node, int64_t deadline_us,
                                           char text[HAPAX_TEXT_MAX]);

/* Sends one command and waits for its reply, which the caller frees. On failure the link is closed:
 * NOMEM, or UNAVAILABLE, whether or not the command was carried out. */
enum hapax_error hapax__redis_node_ask(struct hapax__redis_node *node,
                                       const struct hapax_span *args, size_t argc,
                                       struct hapax__resp **out, int64_t deadline_us,
                                       char text[HAPAX_TEXT_MAX]);

/* The error of a reply that refuses such a command: REFUSED where the login or a permission is
 * missing, otherwise UNAVAILABLE. */
enum hapax_error hapax__redis_node_refusal(const struct hapax__resp *reply);

/* Copies Redis's words of an error or status for a text: printable, one line, without arguments. */
void hapax__redis_quote(char *out, size_t size, const struct hapax__resp *reply);

/* The deadline of one of `parts` attempts that share the time left until deadline_us. An attempt
 * has 50 ms at least, where so much is left: a shorter one would fail on a node that is well. */
int64_t hapax__redis_share(int64_t deadline_us, size_t parts);

#endif
