/* SPDX-License-Identifier: Apache-2.0
 *
 * Which process of a Redis deployment a command goes to: the one node; the primary that the
 * sentinels name; in a cluster, the primary of the key's slot. A route connects, follows
 * redirections and failovers, loads missing scripts, asks for the acknowledgement of replicas, and
 * reports of each call whether it was carried out. A route knows no ops: store.c makes the calls
 * and reads the replies.
 */
#ifndef HAPAX_STORE_REDIS_ROUTE_H
#define HAPAX_STORE_REDIS_ROUTE_H

#include "uri.h"

#include "reader.h"

struct hapax__redis_route;

/* A script: constant, named on the wire by the SHA-1 of its text. */
struct hapax__redis_script {
    const char *text;
    char sha[41];
};

/* One command on one node. */
struct hapax__redis_call {
    const struct hapax__redis_script *script; /* sent as EVALSHA; NULL: args is a plain command */
    const struct hapax_span *args; /* script: `numkeys key … arg …`; borrowed */
    size_t argc;
    struct hapax_span key; /* decides the node in a cluster; len 0: `node` does */
    size_t node; /* below hapax__redis_route_nodes() */
    bool once; /* never send it again once it may have been carried out */

    /* answered */
    /* The route owns the reply, until its next run. An error reply comes only to a plain
     * command, and only where the error is the command's own (ERR, WRONGTYPE, …). */
    struct hapax__resp *reply;
    /* NONE exactly when there is a reply. UNAVAILABLE, NOMEM, REFUSED: no try was carried out;
     * REFUSED means that the login or a permission is missing. Otherwise INDETERMINATE, as for
     * every error reply of a script that may have begun. */
    enum hapax_error error;
    /* the replicas that `wait` asks for have all that the node had written at its answer */
    bool replicated;
    bool again; /* the reply is that of a repeat: an earlier try may have been carried out, too */
};

/* Opens a route without a connection. The URI is copied. INVALID: a file that TLS needs cannot
 * be used. NOMEM. */
enum hapax_error hapax__redis_route_open(struct hapax__redis_route **out,
                                         const struct hapax__redis_uri *uri,
                                         char text[HAPAX_TEXT_MAX]);
void hapax__redis_route_close(struct hapax__redis_route *route);

/* Carries out the calls within the URI's timeout. Returns NONE when every call has a reply,
 * otherwise the first call's error. text: what failed last; "" where nothing did.
 *
 * Calls on one key go in order, each after the answer to the one before. Where a call fails, those
 * behind it on its key are not sent (UNAVAILABLE). A call whose reply was lost is sent again,
 * unless `once`: where the link had worked before, or another node is the primary now. A run waits
 * for a failover, for a cluster that is electing, and for a slot that is being moved, while they
 * are younger than the timeout; it does not wait for a single node that is away. A single node that
 * is no primary is connected to anew by the next run: its name may lead to another one.
 *
 * With wait, WAIT follows on each link used, and sets `replicated` (always true where the URI has
 * no wait). */
enum hapax_error hapax__redis_route_run(struct hapax__redis_route *route,
                                        struct hapax__redis_call *calls, size_t n, bool wait,
                                        char text[HAPAX_TEXT_MAX]);

/* The same by a deadline (µs of hapax__monotonic_us()), for several runs within one timeout. */
enum hapax_error hapax__redis_route_run_by(struct hapax__redis_route *route,
                                           struct hapax__redis_call *calls, size_t n, bool wait,
                                           int64_t deadline_us, char text[HAPAX_TEXT_MAX]);

/* A primary refused writes because replicas are missing. It may be a former primary, cut off
 * with this process: before the next run the route asks sentinels which node is the primary now.
 * Where too few replicas acknowledged the same round the route does so already. */
void hapax__redis_route_doubt(struct hapax__redis_route *route);

/* How many primaries there are; connects to ask where this is not known. At least 1, or 0 and
 * *error. Primaries are numbered by their lowest slot, so that a node that replaces another in a
 * failover gets its number. A call on a number that is gone is UNAVAILABLE. */
size_t hapax__redis_route_nodes(struct hapax__redis_route *route, enum hapax_error *error,
                                char text[HAPAX_TEXT_MAX]);

/* The address of primary `node`, for texts: "host:port", or the name of the master until a
 * sentinel was asked. Valid until the next run. */
const char *hapax__redis_route_name(const struct hapax__redis_route *route, size_t node);

/* Takes note of when the certificates of all its connections end, as hapax__tls_ends(). */
void hapax__redis_route_ends(const struct hapax__redis_route *route, int64_t *server_us,
                             int64_t *client_us);

/* SENTINEL: asks sentinel k, below the URI's host_count, for all that it knows of the master
 * (SENTINEL MASTER). The caller frees the reply; *name is valid until the next run. */
enum hapax_error hapax__redis_route_sentinel(struct hapax__redis_route *route, size_t k,
                                             struct hapax__resp **reply, const char **name,
                                             char text[HAPAX_TEXT_MAX]);

#endif
