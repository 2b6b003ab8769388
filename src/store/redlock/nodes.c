/* SPDX-License-Identifier: Apache-2.0
 *
 * The nodes of a Redlock: a link to each, the commands that are sent to all, and their answers. All
 * commands are sent before any answer is waited for, so that N nodes cost one round trip.
 *
 * The invariant: an answer belongs to its question. Replies that did not come in time (owed), and
 * replies that nobody waits for (told), are counted and taken off the link before the next answer.
 * A link whose count is not known is dropped. A node that let a caller wait in vain is not asked
 * again for a while, so that a node that hangs costs its patience once a second and not each time.
 *
 * Rejected: a thread per node, since the caller's thread is enough where all is sent before any
 * wait. Rejected: the routes of the Redis store, which wait for one node after the other. A route
 * only looks up the primary that the sentinels name.
 */
#include "nodes.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "store/redis/route.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_US        US_PER_MS /* for replies that came while another node was waited for */
#define PAUSE_US        (1000 * US_PER_MS)
#define SENTINEL_MIN_MS 10
#define TOLD_MAX        16384u /* commands a node may be told without an answer */

void hapax__redlock_drop_link(struct hapax__redlock_node *node)
{
    hapax__redis_link_close(node->link);
    node->link = NULL;
    node->owed = node->told = 0;
}

void hapax__redlock_drop_replies(struct hapax__redlock_node *node)
{
    for (size_t i = 0; i < node->replied; i++)
        if (node->replies[i])
            hapax__resp_free(node->replies[i]);
    node->replied = 0;
}

/* ---- connections --------------------------------------------------------------------- */

/* Reads the name that a route gives: "host:port", "[host]:port". */
static bool address_from(struct hapax__redis_address *out, const char *name)
{
    const char *colon = strrchr(name, ':');
    size_t len = colon ? (size_t)(colon - name) : 0;
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;

    if (len > 2 && name[0] == '[' && name[len - 1] == ']') {
        name++;
        len -= 2;
    }
    if (len == 0 || len >= sizeof(out->host) || port == 0 || port > UINT16_MAX)
        return false;
    memcpy(out->host, name, len);
    out->host[len] = '\0';
    out->port = (uint16_t)port;
    return true;
}

/* Asks the sentinels for the primary of now, with a new route each time: an old route keeps the
 * primary that it knows until a call of its own fails. */
static bool find_primary(struct hapax__redis_address *out, const struct hapax__redlock_node *node,
                         int64_t patience_us, char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span ping = hapax_str("PING");
    struct hapax__redis_call call = {.args = &ping, .argc = 1};
    struct hapax__redis_uri uri = node->uri;
    struct hapax__redis_route *route;
    bool found;

    uri.timeout_ms = patience_us / US_PER_MS;
    if (uri.timeout_ms < SENTINEL_MIN_MS)
        uri.timeout_ms = SENTINEL_MIN_MS;
    if (hapax__redis_route_open(&route, &uri, text) != HAPAX_ERR_NONE)
        return false;
    found = hapax__redis_route_run(route, &call, 1, false, text) == HAPAX_ERR_NONE &&
            address_from(out, hapax__redis_route_name(route, 0));
    hapax__redis_route_close(route);
    return found;
}

/* Pauses a node that let us wait in vain: the next takes do without it. A node that refused at
 * once costs nothing, and may be well again at once. One that had little time left by others' fault
 * is not paused, either. */
static void blame(struct hapax__redlock_node *node, int64_t since_us, int64_t patience_us)
{
    int64_t now_us = hapax__monotonic_us();

    if (now_us - since_us >= patience_us / 2)
        node->pause_until_us = now_us + PAUSE_US;
}

void hapax__redlock_connect_node(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                                 int64_t deadline_us, int64_t patience_us)
{
    int64_t begin_us = hapax__monotonic_us(), left_us = deadline_us - begin_us;
    struct hapax__redis_address primary;
    const struct hapax__redis_address *address = &node->uri.hosts[0];

    if (node->uri.kind == HAPAX__REDIS_SENTINEL) {
        if (!find_primary(&primary, node, left_us, lock->why)) {
            blame(node, begin_us, patience_us);
            return;
        }
        address = &primary;
        deadline_us = hapax__monotonic_us() + left_us;
    }
    if (hapax__redis_link_open(&node->link, address, &node->uri.login, node->uri.db, node->tls,
                               deadline_us, lock->why) != HAPAX_ERR_NONE) {
        node->link = NULL;
        blame(node, begin_us, patience_us);
    }
}

/* Whether the error is about the node, and not about one command or its key. */
static bool of_node(const struct hapax__resp *reply)
{
    return reply->type == HAPAX__RESP_ERROR && strncmp(reply->str, "WRONGTYPE", 9) != 0 &&
           strncmp(reply->str, "OOM", 3) != 0;
}

/* Drops the replies that have come and nobody waits for. */
static void collect_told(struct hapax__redlock *lock, struct hapax__redlock_node *node)
{
    struct hapax__resp *reply;
    bool refused = false;

    while (node->told > 0 && !refused && hapax__redis_link_ready(node->link, 0)) {
        if (hapax__redis_link_get(node->link, &reply, 0, lock->why) != HAPAX_ERR_NONE) {
            hapax__redlock_drop_link(node);
            return;
        }
        refused = of_node(reply);
        hapax__resp_free(reply);
        node->told--;
    }
    if (refused) /* another process may be at its other end */
        hapax__redlock_drop_link(node);
}

/* Drops the replies that have come too late. */
static void collect_owed(struct hapax__redlock *lock, struct hapax__redlock_node *node)
{
    struct hapax__resp *reply;

    while (node->owed > 0 && hapax__redis_link_ready(node->link, 0)) {
        if (hapax__redis_link_get(node->link, &reply, 0, lock->why) != HAPAX_ERR_NONE) {
            hapax__redlock_drop_link(node);
            return;
        }
        hapax__resp_free(reply);
        node->owed--;
    }
    if (node->owed == 0)
        node->pause_until_us = 0;
}

void hapax__redlock_connect(struct hapax__redlock *lock, int64_t patience_us)
{
    int64_t deadline_us = hapax__monotonic_us() + patience_us;

    for (size_t i = 0; i < lock->count; i++) {
        struct hapax__redlock_node *node = &lock->nodes[i];

        if (node->owed > 0)
            collect_owed(lock, node);
        else if (node->told > 0)
            collect_told(lock, node);
        if (node->link && node->owed + node->told == 0 && hapax__redis_link_stale(node->link))
            hapax__redlock_drop_link(node);
        if ((node->link && node->owed == 0) || hapax__monotonic_us() < node->pause_until_us)
            continue;
        if (node->link)
            hapax__redlock_drop_link(node);
        if (hapax__monotonic_us() < deadline_us)
            hapax__redlock_connect_node(lock, node, deadline_us, patience_us);
    }
}

/* ---- one round over the nodes -------------------------------------------------------- */

static int64_t no_earlier(int64_t deadline_us)
{
    int64_t grace_us = hapax__monotonic_us() + GRACE_US;

    return deadline_us < grace_us ? grace_us : deadline_us;
}

void hapax__redlock_send(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                         const struct hapax__redlock_call *calls, size_t n, int64_t deadline_us)
{
    enum hapax_error error;

    assert(n > 0 && n <= HAPAX__REDLOCK_CALLS_MAX && node->link);
    for (size_t i = 0; i < n; i++)
        if (!hapax__redis_link_put(node->link, calls[i].args, calls[i].argc)) {
            hapax__fail(lock->why, HAPAX_ERR_NOMEM, "out of memory for a command");
            hapax__redlock_drop_link(node);
            return;
        }
    error = hapax__redis_link_send(node->link, no_earlier(deadline_us), lock->why);
    node->waits = error == HAPAX_ERR_NONE ? n : 0;
    node->asked = node->asked || error != HAPAX_ERR_UNAVAILABLE;
    if (error != HAPAX_ERR_NONE)
        hapax__redlock_drop_link(node);
}

/* The next reply of the link. NULL: none by the deadline, or an error; then the link may be
 * gone. */
static struct hapax__resp *next_reply(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                                      int64_t deadline_us)
{
    struct hapax__resp *reply;

    if (!hapax__redis_link_ready(node->link, deadline_us)) {
        hapax__fail(lock->why, HAPAX_ERR_UNAVAILABLE, "node \"%s:%u\": no answer in time",
                    node->uri.hosts[0].host, node->uri.hosts[0].port);
        return NULL;
    }
    if (hapax__redis_link_get(node->link, &reply, 0, lock->why) == HAPAX_ERR_NONE)
        return reply;
    hapax__redlock_drop_link(node);
    return NULL;
}

/* Takes the replies that nobody waits for, which come first. False: not all have come. */
static bool skip_told(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                      int64_t deadline_us)
{
    for (; node->told > 0; node->told--) {
        struct hapax__resp *reply = next_reply(lock, node, deadline_us);

        if (!reply)
            return false;
        hapax__resp_free(reply);
    }
    return true;
}

/* Takes one reply. False: it has not come, or it was the last one of this link. */
static bool receive_one(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                        struct hapax__resp **out, int64_t deadline_us)
{
    *out = next_reply(lock, node, deadline_us);
    if (!*out)
        return false;
    node->waits--;
    if ((*out)->type == HAPAX__RESP_ERROR) {
        hapax__fail(lock->why, HAPAX_ERR_UNAVAILABLE, "node \"%s:%u\": %.*s",
                    node->uri.hosts[0].host, node->uri.hosts[0].port, (int)(*out)->len,
                    (*out)->str);
        if (of_node(*out))
            hapax__redlock_drop_link(node);
        hapax__resp_free(*out);
        *out = NULL;
    }
    return node->link != NULL;
}

bool hapax__redlock_receive(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                            struct hapax__resp **out, int64_t begin_us, int64_t patience_us)
{
    int64_t deadline_us = no_earlier(begin_us + patience_us);
    size_t calls = node->waits;
    bool all;

    assert(calls > 0 && node->owed == 0);
    memset(out, 0, calls * sizeof(*out));
    if (skip_told(lock, node, deadline_us))
        while (node->waits > 0 && receive_one(lock, node, &out[calls - node->waits], deadline_us))
            ;
    if (node->waits > 0 && node->link) {
        node->owed = node->told + node->waits;
        node->told = 0;
        blame(node, begin_us, patience_us);
    }
    all = node->waits == 0 && node->link;
    node->waits = 0;
    return all;
}

/* ---- other commands ------------------------------------------------------------------ */

size_t hapax__redlock_nodes(const struct hapax__redlock *lock)
{
    return lock->count;
}

struct hapax_span hapax__redlock_prefix(const struct hapax__redlock *lock)
{
    return hapax_str(lock->nodes[0].uri.prefix);
}

void hapax__redlock_forget(struct hapax__redlock *lock)
{
    lock->why[0] = '\0';
    for (size_t i = 0; i < lock->count; i++) {
        hapax__redlock_drop_replies(&lock->nodes[i]);
        lock->nodes[i].asked = false;
    }
}

size_t hapax__redlock_ask(struct hapax__redlock *lock, const struct hapax__redlock_call *calls,
                          size_t n, int64_t patience_us, struct hapax__resp **replies,
                          char text[HAPAX_TEXT_MAX])
{
    size_t answered = 0;
    int64_t begin_us;

    assert(patience_us > 0);
    hapax__redlock_forget(lock);
    hapax__redlock_connect(lock, patience_us);
    begin_us = hapax__monotonic_us();
    for (size_t i = 0; i < lock->count; i++)
        if (lock->nodes[i].link && lock->nodes[i].owed == 0)
            hapax__redlock_send(lock, &lock->nodes[i], calls, n, begin_us + patience_us);
    for (size_t i = 0; i < lock->count; i++) {
        struct hapax__redlock_node *node = &lock->nodes[i];

        if (node->waits > 0) {
            node->replied = n;
            answered += hapax__redlock_receive(lock, node, node->replies, begin_us, patience_us);
        }
        for (size_t j = 0; j < n; j++)
            replies[i * n + j] = node->replied > 0 ? node->replies[j] : NULL;
    }
    (void)hapax__fail(text, HAPAX_ERR_NONE, "%s", lock->why);
    return answered;
}

void hapax__redlock_tell(struct hapax__redlock *lock, const struct hapax__redlock_call *calls,
                         size_t n, int64_t patience_us)
{
    int64_t begin_us;

    assert(patience_us > 0);
    hapax__redlock_connect(lock, patience_us);
    begin_us = hapax__monotonic_us();
    for (size_t i = 0; i < lock->count; i++) {
        struct hapax__redlock_node *node = &lock->nodes[i];

        if (node->link && node->owed + node->told + n > TOLD_MAX)
            hapax__redlock_drop_link(node);
        if (!node->link)
            continue;
        hapax__redlock_send(lock, node, calls, n, begin_us + patience_us);
        if (node->waits == 0) {
            blame(node, begin_us, patience_us);
            continue;
        }
        *(node->owed > 0 ? &node->owed : &node->told) += node->waits;
        node->waits = 0;
    }
}
