/* SPDX-License-Identifier: Apache-2.0
 *
 * Which process of a Redis deployment a command goes to: the one node; the primary that the sentinels
 * name; in a cluster, the primary of the key's slot. It connects, follows redirections and failovers,
 * loads scripts where they are missing, asks for replicas' acknowledgement, and says of each call
 * whether it was carried out. It knows no ops: src/store/redis/store.c makes the calls and reads the replies.
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
    /* The reply is the route's, until its next run; an error reply only to a plain command, and only
     * where it is that command's own (ERR, WRONGTYPE, …). */
    struct hapax__resp *reply;
    /* NONE exactly when there is a reply. UNAVAILABLE, NOMEM: surely not carried out, whatever was
     * tried; REFUSED: nor then, by login or permission; else INDETERMINATE, and so is any error reply of
     * a script that may have begun. */
    enum hapax_error error;
    bool held; /* the replicas asked for hold all that the node had written when it answered */
    bool again; /* the reply is that of a repeat: an earlier try may have been carried out, too */
};

/* Connects to nobody yet. The URI is copied. INVALID: a file that its TLS needs cannot be used. */
enum hapax_error hapax__redis_route_open(struct hapax__redis_route **out,
                                         const struct hapax__redis_uri *uri,
                                         char text[HAPAX_TEXT_MAX]);
void hapax__redis_route_close(struct hapax__redis_route *route);

/* Carries out the calls, all by the URI's timeout. Those on one key go in order, each after the one
 * before it was answered; where one fails, those behind it on its key are not sent (UNAVAILABLE). A
 * reply that was lost is asked for again, unless `once`: where the link had worked before, or the primary is
 * another one now. A failover, a cluster that is electing and a slot that is being moved are waited
 * for, and no longer than a run after they began; a single node that is away is not.
 * With hold, WAIT follows on each link used and sets `held` (always true where the URI has no wait).
 * text: what failed last; "" where nothing did. Returns NONE when every call has a reply. */
enum hapax_error hapax__redis_route_run(struct hapax__redis_route *route,
                                        struct hapax__redis_call *calls, size_t n, bool hold,
                                        char text[HAPAX_TEXT_MAX]);

/* The same by a deadline of the caller's (µs of hapax__monotonic_us()), for who makes several runs within one
 * timeout. */
enum hapax_error hapax__redis_route_run_by(struct hapax__redis_route *route,
                                           struct hapax__redis_call *calls, size_t n, bool hold,
                                           int64_t deadline_us, char text[HAPAX_TEXT_MAX]);

/* Some primary turned writes away for want of replicas: it may be one of before, cut off with us. Who it is now
 * is asked anew, before the next run. */
void hapax__redis_route_doubt(struct hapax__redis_route *route);

/* How many primaries there are, connecting to ask where that is not known: at least 1, or 0 and error.
 * They are counted by their lowest slot, so that who replaces one in a failover has its number. A
 * number that is none any more when it is used: UNAVAILABLE. */
size_t hapax__redis_route_nodes(struct hapax__redis_route *route, enum hapax_error *error,
                                char text[HAPAX_TEXT_MAX]);

/* The address of primary `node`, for texts ("host:port"; the master's name while no sentinel was
 * asked). Valid until the next run. */
const char *hapax__redis_route_name(const struct hapax__redis_route *route, size_t node);

/* SENTINEL: what one of them, k below the URI's host_count, says of the master (SENTINEL MASTER). The reply is
 * the caller's; name is valid until the next run. */
enum hapax_error hapax__redis_route_sentinel(struct hapax__redis_route *route, size_t k,
                                             struct hapax__resp **reply, const char **name,
                                             char text[HAPAX_TEXT_MAX]);

#endif
