/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a route share: route.c (the route and its nodes), round.c (one run), result.c (what a
 * reply means for its call), sentinel.c and cluster.c (which node).
 */
#ifndef HAPAX_STORE_REDIS_ROUTE_PARTS_H
#define HAPAX_STORE_REDIS_ROUTE_PARTS_H

#include "link.h"
#include "route.h"

#define HAPAX__REDIS_SLOTS     16384u
#define HAPAX__REDIS_PRIMARIES 1000u /* of a cluster */
#define HAPAX__REDIS_NODES     1024u /* with seeds and the targets of redirections */
#define HAPAX__REDIS_NOWHERE   UINT16_MAX
#define HAPAX__REDIS_NO_CALL   SIZE_MAX

#define HAPAX__REDIS_GAP_US  50000 /* a node that could not be reached is left alone for so long */
#define HAPAX__REDIS_REST_US 20000 /* between two looks at a deployment that changes */

struct hapax__redis_node {
    struct hapax__redis_address address;
    char name[HAPAX__REDIS_NAME_MAX + 9]; /* host:port, [host]:port */
    struct hapax__redis_link *link; /* NULL: none is open */
    bool fresh; /* the link has not carried a round yet */
    bool seed; /* named by the URI: never forgotten */
    bool listed; /* a primary of the map */
    bool heard; /* in the last attempt to reach it somebody answered: a later one may succeed */
    int64_t lost_us; /* when a link of it died last; 0: never */
    int64_t failed_us; /* when connecting failed last; 0: it succeeded since */
    int64_t down_us; /* since when connecting fails */
    int64_t cost_us; /* how long the last attempt took that failed */
    int64_t away_us; /* since when it has turned calls away and answered none; 0: it answers */
    enum hapax_error failed;
    char why[HAPAX_TEXT_MAX];

    /* in this round */
    size_t first; /* its calls, linked by track.next; HAPAX__REDIS_NO_CALL: none */
    size_t last;
    size_t loads; /* scripts sent before them */
    bool sent;
    bool demoted; /* it said that it is not the primary: its link is closed after the round */
};

/* What a run knows of one of its calls. */
struct hapax__redis_track {
    size_t next; /* on its node, in this round */
    size_t before; /* the call before it with the same key; HAPAX__REDIS_NO_CALL: none */
    uint16_t slot; /* of its key */
    uint16_t to; /* ASK: the node to try once; else HAPAX__REDIS_NOWHERE */
    bool done;
    bool maybe; /* it may have been carried out, and its reply was lost */
    bool asking; /* ASKING was sent before it */
    uint8_t redirected, unscripted, lost; /* times */
    enum hapax_error error; /* of its last try */
};

struct hapax__redis_route {
    struct hapax__redis_uri uri;
    struct hapax__redis_tls *tls;

    /* NODE, SENTINEL: nodes[0]. CLUSTER: nodes keep their place, and NULL are free places. */
    struct hapax__redis_node *nodes[HAPAX__REDIS_NODES];
    size_t node_count; /* places in use or used before */

    /* SENTINEL: in the order in which they are asked; one that was of no use goes to the end. */
    struct hapax__redis_node *sentinels[HAPAX__REDIS_HOSTS_MAX];

    /* CLUSTER */
    uint16_t *slots; /* slot → place in nodes, or HAPAX__REDIS_NOWHERE */
    uint16_t
        primaries[HAPAX__REDIS_PRIMARIES]; /* by their lowest slot: a failover keeps the order */
    size_t primary_count; /* 0: nobody was asked yet */
    bool unswept; /* nodes came or went since the last sweep */
    bool look; /* the map is known to be old */
    int64_t gaps_us; /* since when slots of the map have no node; 0: all have one */
    int64_t looked_us;
    size_t ask; /* the place in nodes that is asked first, so that no one node's view stays ours */

    /* of a run */
    struct hapax__redis_track *tracks;
    struct hapax__resp **replies; /* of the last run, reply_count of them */
    size_t reply_count;
    size_t capacity; /* of tracks and replies */
    struct hapax_span *words;
    size_t word_capacity;
};

struct hapax__redis_run {
    struct hapax__redis_route *route;
    struct hapax__redis_call *calls;
    size_t n;
    size_t pending;
    bool hold;
    bool rest; /* something has to change out there before the next round is of use */
    int64_t deadline_us;
    char *text;
};

/* ---- route.c ------------------------------------------------------------------------- */

/* A node that nobody has been connected to. NULL: out of memory. */
struct hapax__redis_node *hapax__redis_node_new(const struct hapax__redis_address *address);
void hapax__redis_node_free(struct hapax__redis_node *node);

/* Gives a node another address; its link must be closed. */
void hapax__redis_node_move(struct hapax__redis_node *node,
                            const struct hapax__redis_address *address);

/* Closes its link, if any. */
void hapax__redis_node_close(struct hapax__redis_node *node);

/* Closes a link that died. */
void hapax__redis_node_lose(struct hapax__redis_node *node);

/* Connects to the node's address, unless that failed less than a gap ago: then the same error
 * again. Errors as hapax__redis_link_open(). */
enum hapax_error hapax__redis_node_connect(struct hapax__redis_route *route,
                                           struct hapax__redis_node *node,
                                           const struct hapax__redis_login *login, uint32_t db,
                                           int64_t deadline_us, char text[HAPAX_TEXT_MAX]);

/* Sends one command and waits for its reply, which is the caller's. On failure the link is closed. */
enum hapax_error hapax__redis_node_ask(struct hapax__redis_node *node,
                                       const struct hapax_span *args, size_t argc,
                                       struct hapax__resp **out, int64_t deadline_us,
                                       char text[HAPAX_TEXT_MAX]);

/* Frees what the last run answered with. */
void hapax__redis_replies_free(struct hapax__redis_route *route);

/* `parts`-th share of what is left until a deadline, but not so little that nobody could answer. */
int64_t hapax__redis_share(int64_t deadline_us, size_t parts);

/* ---- round.c ------------------------------------------------------------------------- */

/* Whether something has been away for longer than a run lasts (0: it is not). Waiting for a failover is of
 * use while there is one; then it must not hold up the calls on other nodes any more. */
bool hapax__redis_long_ago(const struct hapax__redis_run *run, int64_t since_us);

/* A primary that its replicas do not follow may be one of before, cut off with us: who it is now is asked
 * anew, before the next run. */
void hapax__redis_doubt(struct hapax__redis_run *run, struct hapax__redis_node *node);

/* ---- result.c -------------------------------------------------------------------------- */

/* Takes the reply of call i from node: ends the call, or leaves it pending for the next round. The
 * reply is then the route's. */
void hapax__redis_reply(struct hapax__redis_run *run, struct hapax__redis_node *node, size_t i,
                        struct hapax__resp *reply);

/* Ends a call without a reply: with error, or INDETERMINATE where an earlier try may have been
 * carried out. */
void hapax__redis_give_up(struct hapax__redis_run *run, size_t i, enum hapax_error error);

/* Its reply did not come. sent: its bytes may have been carried out. reused: on a link that had
 * worked before, so that a fresh one may fare better. */
void hapax__redis_lost(struct hapax__redis_run *run, size_t i, enum hapax_error error, bool sent,
                       bool reused);

/* Copies what Redis said for a text: printable, one line, without arguments. */
void hapax__redis_quote(char *out, size_t size, const struct hapax__resp *reply);

/* ---- sentinel.c ---------------------------------------------------------------------- */

/* Connects nodes[0] to the primary: the node that a sentinel names, and that itself says it is one. Each
 * sentinel is asked once. On failure nodes[0]->heard says whether any sentinel answered. text says why.
 * It is "" or from earlier in this run before the call. A last question that the deadline cut short
 * changes text only where it is "". */
enum hapax_error hapax__redis_sentinel_connect(struct hapax__redis_route *route,
                                               int64_t deadline_us, char text[HAPAX_TEXT_MAX]);

/* The primary in use may be one of before: another sentinel than the one that named it is asked next. */
void hapax__redis_sentinel_doubt(struct hapax__redis_route *route);

/* ---- cluster.c ----------------------------------------------------------------------- */

/* The index of the node at an address. A node that is not known is added. HAPAX__REDIS_NOWHERE: no room,
 * or no memory. */
uint16_t hapax__redis_cluster_node(struct hapax__redis_route *route,
                                   const struct hapax__redis_address *address);

/* Asks the nodes for the map, where there is none or it is due. Errors only where there is none. */
enum hapax_error hapax__redis_cluster_look(struct hapax__redis_route *route, int64_t deadline_us,
                                           char text[HAPAX_TEXT_MAX]);

/* Frees the nodes that are in no map. Only between runs. */
void hapax__redis_cluster_sweep(struct hapax__redis_route *route);

/* The target of "MOVED slot host:port" or "ASK slot host:port" for a key of slot, as `node` answered.
 * HAPAX__REDIS_NOWHERE: nonsense, or no room. */
uint16_t hapax__redis_cluster_target(struct hapax__redis_route *route,
                                     const struct hapax__redis_node *node, const char *said,
                                     uint16_t slot);

#endif
