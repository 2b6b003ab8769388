/* SPDX-License-Identifier: Apache-2.0
 *
 * The route of a store, and its runs. The calls of a run go out in rounds. In a round each node
 * gets one pipeline, and all pipelines are sent before the first reply is taken. A call that was
 * redirected, or whose script is not there, goes into the next round.
 *
 * Two calls on one key are never under way together: the later one waits until the earlier one is
 * answered. Rejected: one pipeline for both, since a node can turn away a single call of it (ASK,
 * NOSCRIPT, LOADING), and the calls behind would overtake that one.
 *
 * Every round ends a call, uses up one of its few second chances, or rests until the deployment has
 * changed. Rests end with the deadline: so a run ends, whatever the nodes answer.
 *
 * The invariant of an error: UNAVAILABLE only where no try of the call can have been carried out. /
 */
#include "route.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"
#include "cluster.h"
#include "result.h"
#include "sentinel.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOADS_MAX        8u /* scripts loaded ahead of one pipeline; more go with their text */
#define GRACE_US         (2 * US_PER_MS) /* past the deadline, for what has arrived already */
#define GRACE_MAX_US     (50 * US_PER_MS)
#define REST_US          (20 * US_PER_MS) /* before a deployment that changes is asked again */
#define WAIT_LATE_MS     150
#define REDIRECTED_MAX   16
#define REDIRECTED_QUICK 3 /* then a rest before each: the nodes are agreeing on the slot's owner */
#define LOST_MAX         3
#define QUOTE_MAX        140
#define BUCKETS          512u
#define NO_CALL          HAPAX__REDIS_NO_CALL
#define NOWHERE          HAPAX__REDIS_NOWHERE

/* What a run knows of one of its calls. */
struct track {
    size_t next; /* the next call on its node, in this round */
    size_t before; /* the call before it with the same key; NO_CALL: none */
    uint16_t slot; /* of its key */
    uint16_t to; /* ASK: the index of the node to try once; otherwise NOWHERE */
    bool done;
    bool maybe; /* it may have been carried out, and its reply was lost */
    bool asking; /* ASKING was sent before it */
    uint8_t redirected, unscripted, lost; /* times */
    enum hapax_error error; /* of its last try */
};

struct hapax__redis_route {
    struct hapax__redis_uri uri;
    struct hapax__redis_tls *tls;
    struct hapax__redis_nodes nodes; /* NODE, SENTINEL: one */
    struct hapax__redis_sentinels sentinels; /* SENTINEL */
    struct hapax__redis_map map; /* CLUSTER */

    /* Of a run. */
    struct track *tracks;
    struct hapax__resp **replies; /* of the last run, reply_count of them */
    size_t reply_count;
    size_t capacity; /* of tracks and replies */
    struct hapax_span *words;
    size_t word_capacity;
};

struct run {
    struct hapax__redis_route *route;
    struct hapax__redis_call *calls;
    size_t n;
    size_t pending;
    bool wait;
    bool rest; /* the deployment has to change before the next round is of use */
    int64_t deadline_us;
    char *text;
};

/* ---- the route ----------------------------------------------------------------------- */

static void free_replies(struct hapax__redis_route *route)
{
    for (size_t i = 0; i < route->reply_count; i++)
        hapax__resp_free(route->replies[i]);
    route->reply_count = 0;
}

/* SENTINEL: the one node has no address until a sentinel names one. */
static bool add_hosts(struct hapax__redis_route *route)
{
    const struct hapax__redis_uri *uri = &route->uri;
    bool sentinel = uri->kind == HAPAX__REDIS_SENTINEL;
    struct hapax__redis_node **into = sentinel ? route->sentinels.at : route->nodes.at;

    route->nodes.access = (struct hapax__redis_access){&uri->login, uri->db, route->tls,
                                                       uri->kind == HAPAX__REDIS_CLUSTER};
    route->nodes.count = sentinel ? 1 : uri->host_count;
    route->sentinels.access =
        (struct hapax__redis_access){&uri->sentinel_login, 0, route->tls, false};
    route->sentinels.master = uri->master;
    route->sentinels.count = uri->host_count;
    for (size_t i = 0; i < uri->host_count; i++) {
        into[i] = hapax__redis_node_new(&uri->hosts[i],
                                        sentinel ? &route->sentinels.access : &route->nodes.access);
        if (!into[i])
            return false;
        into[i]->seed = true;
    }
    if (sentinel)
        route->nodes.at[0] = hapax__redis_node_new(&uri->hosts[0], &route->nodes.access);
    return route->nodes.at[0] != NULL;
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
    if (uri->kind == HAPAX__REDIS_CLUSTER)
        hapax__redis_map_init(&route->map);
    *out = route;
    return HAPAX_ERR_NONE;
}

void hapax__redis_route_close(struct hapax__redis_route *route)
{
    if (!route)
        return;
    free_replies(route);
    for (size_t i = 0; i < HAPAX__REDIS_NODES; i++)
        hapax__redis_node_free(route->nodes.at[i]);
    for (size_t i = 0; i < HAPAX__REDIS_HOSTS_MAX; i++)
        hapax__redis_node_free(route->sentinels.at[i]);
    hapax__redis_tls_close(route->tls);
    free(route->tracks);
    free(route->replies);
    free(route->words);
    explicit_bzero(route, sizeof(*route)); /* the URI holds passwords */
    free(route);
}

void hapax__redis_route_doubt(struct hapax__redis_route *route)
{
    route->map.old = true;
    /* Demoted: WAIT was short, too, and has turned the sentinels in this round. With two of them a
     * second turn would undo the first. */
    if (route->uri.kind != HAPAX__REDIS_SENTINEL || route->nodes.at[0]->demoted)
        return;
    hapax__redis_sentinel_doubt(&route->sentinels);
    hapax__redis_node_close(route->nodes.at[0]);
}

size_t hapax__redis_route_nodes(struct hapax__redis_route *route, enum hapax_error *error,
                                char text[HAPAX_TEXT_MAX])
{
    *error = HAPAX_ERR_NONE;
    if (route->uri.kind != HAPAX__REDIS_CLUSTER)
        return 1;
    hapax__redis_map_sweep(&route->map, &route->nodes);
    *error = hapax__redis_map_read(&route->map, &route->nodes,
                                   hapax__monotonic_us() + route->uri.timeout_ms * 1000, text);
    return *error == HAPAX_ERR_NONE ? route->map.primary_count : 0;
}

enum hapax_error hapax__redis_route_sentinel(struct hapax__redis_route *route, size_t k,
                                             struct hapax__resp **reply, const char **name,
                                             char text[HAPAX_TEXT_MAX])
{
    assert(route->uri.kind == HAPAX__REDIS_SENTINEL && k < route->sentinels.count);
    *name = route->sentinels.at[k]->name;
    return hapax__redis_sentinel_master(&route->sentinels, k, reply,
                                        hapax__monotonic_us() + route->uri.timeout_ms * 1000, text);
}

const char *hapax__redis_route_name(const struct hapax__redis_route *route, size_t node)
{
    switch (route->uri.kind) {
    case HAPAX__REDIS_NODE:
        return route->nodes.at[0]->name;
    case HAPAX__REDIS_SENTINEL:
        return route->nodes.at[0]->listed ? route->nodes.at[0]->name : route->uri.master;
    case HAPAX__REDIS_CLUSTER:
        break;
    }
    return node < route->map.primary_count ? route->nodes.at[route->map.primaries[node]]->name
                                           : "?";
}

void hapax__redis_route_ends(const struct hapax__redis_route *route, int64_t *server_us,
                             int64_t *client_us)
{
    for (size_t i = 0; i < route->nodes.count; i++)
        if (route->nodes.at[i] && route->nodes.at[i]->link)
            hapax__redis_link_ends(route->nodes.at[i]->link, server_us, client_us);
    for (size_t i = 0; i < route->sentinels.count; i++)
        if (route->sentinels.at[i] && route->sentinels.at[i]->link)
            hapax__redis_link_ends(route->sentinels.at[i]->link, server_us, client_us);
}

/* ---- beginning and end of a run ------------------------------------------------------ */

static bool reserve(struct hapax__redis_route *route, size_t n)
{
    struct track *tracks;
    struct hapax__resp **replies;

    if (n <= route->capacity)
        return true;
    assert(n <= SIZE_MAX / sizeof(*tracks));
    tracks = realloc(route->tracks, n * sizeof(*tracks));
    if (tracks)
        route->tracks = tracks;
    replies = realloc(route->replies, n * sizeof(*replies));
    if (replies)
        route->replies = replies;
    if (!tracks || !replies)
        return false;
    route->capacity = n;
    return true;
}

/* Finds for each call the one before it on the same key, by a table of the last call in each
 * bucket. */
static void chain_keys(struct run *run)
{
    struct track *tracks = run->route->tracks;
    size_t heads[BUCKETS];

    for (size_t b = 0; b < BUCKETS; b++)
        heads[b] = NO_CALL;
    for (size_t i = 0; i < run->n; i++) {
        const struct hapax_span key = run->calls[i].key;
        size_t *head, j;

        tracks[i] = (struct track){
            .next = NO_CALL, .before = NO_CALL, .to = NOWHERE, .error = HAPAX_ERR_UNAVAILABLE};
        if (key.len == 0)
            continue;
        tracks[i].slot = hapax__redis_slot(key);
        head = &heads[tracks[i].slot % BUCKETS];
        for (j = *head; j != NO_CALL; j = tracks[j].next)
            if (hapax__same(run->calls[j].key, key))
                break;
        tracks[i].before = j;
        tracks[i].next = *head;
        *head = i;
    }
}

/* ---- how a call ends ----------------------------------------------------------------- */

/* Whether something has been away for longer than a run lasts (0: it is not away). A run waits for
 * a failover while there is one; later it must not delay the calls on other nodes any more. */
static bool long_ago(const struct run *run, int64_t since_us)
{
    return since_us != 0 && hapax__monotonic_us() - since_us >= run->route->uri.timeout_ms * 1000;
}

/* A primary that its replicas do not follow may be a former one, cut off with this process: who is
 * the primary now is asked before the next run. */
static void doubt(struct run *run, struct hapax__redis_node *node)
{
    run->route->map.old = true;
    if (run->route->uri.kind != HAPAX__REDIS_SENTINEL || node->demoted)
        return; /* a single node still gives replays by this link */
    node->demoted = true;
    hapax__redis_sentinel_doubt(&run->route->sentinels);
}

static void end(struct run *run, size_t i)
{
    struct track *track = &run->route->tracks[i];

    assert(!track->done && run->pending > 0);
    track->done = true;
    run->pending--;
}

/* Ends a call without a reply: with error, or INDETERMINATE where an earlier try may have been
 * carried out. */
static void give_up(struct run *run, size_t i, enum hapax_error error)
{
    assert(error != HAPAX_ERR_NONE && !run->calls[i].reply);
    run->calls[i].error = run->route->tracks[i].maybe ? HAPAX_ERR_INDETERMINATE : error;
    end(run, i);
}

/* The node surely did not carry the call out: the next round tries again, where there is a
 * chance. */
static void again(struct run *run, size_t i, bool chance)
{
    run->route->tracks[i].error = HAPAX_ERR_UNAVAILABLE;
    if (!chance)
        give_up(run, i, HAPAX_ERR_UNAVAILABLE);
}

/* The reply of a call did not come. sent: its bytes may have been carried out. reused: the link had
 * worked before, so that a new link may serve the call better. */
static void lost(struct run *run, size_t i, enum hapax_error error, bool sent, bool reused)
{
    struct track *track = &run->route->tracks[i];
    bool node = run->route->uri.kind == HAPAX__REDIS_NODE;
    bool chance;

    track->maybe = track->maybe || sent;
    track->error = error;
    track->to = NOWHERE;
    track->lost++;
    chance = error != HAPAX_ERR_NOMEM && track->lost <= LOST_MAX && (reused || !node) &&
             !(track->maybe && run->calls[i].once);
    run->route->map.old = true;
    if (!chance)
        give_up(run, i, error);
    else if (!reused)
        run->rest = true;
}

/* ---- error replies ------------------------------------------------------------------- */

static bool in_cluster(const struct run *run, size_t i)
{
    return run->route->uri.kind == HAPAX__REDIS_CLUSTER && run->calls[i].key.len > 0;
}

static void redirected(struct run *run, const struct hapax__redis_node *node, size_t i,
                       const char *words, bool ask)
{
    struct hapax__redis_route *route = run->route;
    struct track *track = &route->tracks[i];
    uint16_t at = NOWHERE;

    if (in_cluster(run, i))
        at = hapax__redis_map_target(&route->map, &route->nodes, node, words, track->slot);
    else
        hapax__fail(run->text, HAPAX_ERR_UNAVAILABLE,
                    "\"%.100s\" is a node of a cluster (use redis+cluster://)", node->name);
    if (at != NOWHERE && ask) {
        track->to = at;
    } else if (at != NOWHERE) {
        route->map.slots[track->slot] = at;
        route->map.old = true;
    }
    track->redirected++;
    if (track->redirected > REDIRECTED_QUICK)
        run->rest = true;
    again(run, i, at != NOWHERE && track->redirected < REDIRECTED_MAX);
}

static void elsewhere(struct run *run, struct hapax__redis_node *node, size_t i)
{
    enum hapax__redis_kind kind = run->route->uri.kind;

    run->route->map.old = true;
    run->rest = true;
    node->demoted = true;
    if (node->away_us == 0)
        node->away_us = hapax__monotonic_us();
    again(run, i,
          kind == HAPAX__REDIS_SENTINEL ||
              (kind == HAPAX__REDIS_CLUSTER && !long_ago(run, node->away_us)));
}

/* Judges an error reply. False: the caller of the run reads it, as a plain command's own error. */
static bool refused(struct run *run, struct hapax__redis_node *node, size_t i,
                    const struct hapax__resp *reply)
{
    struct track *track = &run->route->tracks[i];
    enum hapax__redis_result result = hapax__redis_result(reply, run->calls[i].script != NULL);
    char quoted[QUOTE_MAX];

    if (result == HAPAX__REDIS_RESULT_ERROR && !run->calls[i].script)
        return false;
    hapax__redis_quote(quoted, sizeof(quoted), reply);
    hapax__fail(run->text, HAPAX_ERR_UNAVAILABLE, "\"%.100s\" answered: %s", node->name, quoted);
    track->to = NOWHERE;
    switch (result) {
    case HAPAX__REDIS_RESULT_MOVED:
    case HAPAX__REDIS_RESULT_ASK:
        redirected(run, node, i, reply->str, result == HAPAX__REDIS_RESULT_ASK);
        return true;
    case HAPAX__REDIS_RESULT_SCRIPT:
        track->unscripted++;
        again(run, i, run->calls[i].script && track->unscripted <= 2);
        return true;
    case HAPAX__REDIS_RESULT_AGAIN:
        run->rest = true;
        again(run, i, in_cluster(run, i));
        return true;
    case HAPAX__REDIS_RESULT_ELSEWHERE:
        elsewhere(run, node, i);
        return true;
    case HAPAX__REDIS_RESULT_UNAVAILABLE:
        if (hapax__text_begins(reply->str, "NOREPLICAS"))
            doubt(run, node);
        give_up(run, i, HAPAX_ERR_UNAVAILABLE);
        return true;
    case HAPAX__REDIS_RESULT_REFUSED:
        give_up(run, i, HAPAX_ERR_REFUSED);
        return true;
    case HAPAX__REDIS_RESULT_ERROR:
        break;
    }
    give_up(run, i, HAPAX_ERR_INDETERMINATE);
    return true;
}

/* Takes the reply of call i: ends the call, or leaves it pending for the next round. The route owns
 * the reply then. */
static void take_reply(struct run *run, struct hapax__redis_node *node, size_t i,
                       struct hapax__resp *reply)
{
    struct hapax__redis_route *route = run->route;

    assert(reply && !route->tracks[i].done);
    if (reply->type == HAPAX__RESP_ERROR && refused(run, node, i, reply)) {
        hapax__resp_free(reply);
        return;
    }
    assert(route->reply_count < route->capacity);
    route->replies[route->reply_count++] = reply;
    run->calls[i].reply = reply;
    run->calls[i].error = HAPAX_ERR_NONE;
    run->calls[i].replicated = route->uri.wait == 0;
    run->calls[i].again = route->tracks[i].maybe;
    node->away_us = 0;
    end(run, i);
}

static void give_up_pending(struct run *run, enum hapax_error error)
{
    for (size_t i = 0; i < run->n; i++)
        if (!run->route->tracks[i].done)
            give_up(run, i, error != HAPAX_ERR_NONE ? error : run->route->tracks[i].error);
}

static enum hapax_error first_error(const struct run *run)
{
    enum hapax_error first = HAPAX_ERR_NONE;
    bool replicated = true;

    assert(run->pending == 0);
    for (size_t i = 0; i < run->n; i++) {
        const struct hapax__redis_call *call = &run->calls[i];

        assert((call->error == HAPAX_ERR_NONE) == (call->reply != NULL));
        if (first == HAPAX_ERR_NONE)
            first = call->error;
        replicated = replicated && (call->replicated || !run->wait);
    }
    /* A failure whose second try went well is not reported. */
    if (first == HAPAX_ERR_NONE && replicated)
        run->text[0] = '\0';
    return first;
}

/* ---- a round: which calls go where --------------------------------------------------- */

/* The index of the node that a call goes to. NOWHERE: there is none. */
static uint16_t index_of(const struct run *run, size_t i)
{
    const struct hapax__redis_route *route = run->route;
    const struct hapax__redis_call *call = &run->calls[i];

    if (route->uri.kind != HAPAX__REDIS_CLUSTER) {
        assert(call->key.len > 0 || call->node == 0);
        return 0;
    }
    if (route->tracks[i].to != NOWHERE)
        return route->tracks[i].to;
    if (call->key.len > 0)
        return route->map.slots[route->tracks[i].slot];
    return call->node < route->map.primary_count ? route->map.primaries[call->node] : NOWHERE;
}

static void nowhere(struct run *run, size_t i)
{
    const struct hapax__redis_call *call = &run->calls[i];

    if (call->key.len == 0) {
        hapax__fail(run->text, HAPAX_ERR_UNAVAILABLE, "the cluster has no primary %zu any more",
                    call->node);
        give_up(run, i, HAPAX_ERR_UNAVAILABLE);
        return;
    }
    run->route->tracks[i].error =
        hapax__fail(run->text, HAPAX_ERR_UNAVAILABLE, "no node of the cluster serves slot %u",
                    (unsigned)run->route->tracks[i].slot);
    run->route->map.old = true;
    if (long_ago(run, run->route->map.gaps_us))
        give_up(run, i, HAPAX_ERR_UNAVAILABLE);
    else
        run->rest = true;
}

/* Whether a call may be sent now. A call behind one that failed on its key is given up: the earlier
 * one may still be on its way. */
static bool its_turn(struct run *run, size_t i)
{
    struct track *tracks = run->route->tracks;
    size_t before = tracks[i].before;

    if (tracks[i].done)
        return false;
    if (before == NO_CALL)
        return true;
    if (!tracks[before].done)
        return false;
    if (run->calls[before].error == HAPAX_ERR_NONE)
        return true;
    give_up(run, i, HAPAX_ERR_UNAVAILABLE);
    return false;
}

static void gather(struct run *run)
{
    struct hapax__redis_route *route = run->route;

    for (size_t i = 0; i < run->n; i++) {
        struct track *track = &route->tracks[i];
        struct hapax__redis_node *node;
        uint16_t at;

        if (!its_turn(run, i))
            continue;
        at = index_of(run, i);
        if (at == NOWHERE) {
            nowhere(run, i);
            continue;
        }
        node = route->nodes.at[at];
        assert(at < route->nodes.count && node);
        track->asking = track->to != NOWHERE;
        track->next = NO_CALL;
        node->demoted = false;
        if (node->first == NO_CALL)
            node->first = i;
        else
            route->tracks[node->last].next = i;
        node->last = i;
        node->sent = false;
    }
}

/* ---- a round: sending ---------------------------------------------------------------- */

static bool put_words(struct hapax__redis_node *node, const char *const *words, size_t count)
{
    struct hapax_span args[3];

    assert(count <= 3);
    for (size_t i = 0; i < count; i++)
        args[i] = hapax_str(words[i]);
    return hapax__redis_link_put(node->link, args, count);
}

static bool put_call(struct run *run, struct hapax__redis_node *node, size_t i)
{
    const struct hapax__redis_call *call = &run->calls[i];
    const struct track *track = &run->route->tracks[i];
    struct hapax__redis_route *route = run->route;

    if (track->asking && !put_words(node, (const char *const[]){"ASKING"}, 1))
        return false;
    if (!call->script)
        return hapax__redis_link_put(node->link, call->args, call->argc);
    if (call->argc + 2 > route->word_capacity) {
        struct hapax_span *words =
            realloc(route->words, (call->argc + 2) * 2 * sizeof(*route->words));

        if (!words)
            return false;
        route->words = words;
        route->word_capacity = (call->argc + 2) * 2;
    }
    route->words[0] = hapax_str(track->unscripted < 2 ? "EVALSHA" : "EVAL");
    route->words[1] = hapax_str(track->unscripted < 2 ? call->script->sha : call->script->text);
    if (call->argc > 0)
        memcpy(route->words + 2, call->args, call->argc * sizeof(*call->args));
    return hapax__redis_link_put(node->link, route->words, call->argc + 2);
}

/* Puts the scripts that the node did not know ahead of the calls that need them. */
static bool put_scripts(struct run *run, struct hapax__redis_node *node)
{
    const struct hapax__redis_script *loaded[LOADS_MAX];

    node->loads = 0;
    for (size_t i = node->first; i != NO_CALL; i = run->route->tracks[i].next) {
        const struct hapax__redis_script *script = run->calls[i].script;
        size_t k = 0;

        if (!script || run->route->tracks[i].unscripted != 1)
            continue;
        while (k < node->loads && loaded[k] != script)
            k++;
        if (k < node->loads || k == LOADS_MAX)
            continue;
        if (!put_words(node, (const char *const[]){"SCRIPT", "LOAD", script->text}, 3))
            return false;
        loaded[node->loads++] = script;
    }
    return true;
}

/* The time left for WAIT's reply to come in: an idle Redis sees a time limit up to 100 ms late. */
static int64_t wait_margin_ms(int64_t left_ms)
{
    int64_t margin_ms = left_ms / 10 > WAIT_LATE_MS ? left_ms / 10 : WAIT_LATE_MS;

    return margin_ms < left_ms / 2 ? margin_ms : left_ms / 2 + 1;
}

/* Puts WAIT, where the run asks for it. Its limit is at least 1 ms, since WAIT 0 waits for ever. */
static bool put_wait(struct run *run, struct hapax__redis_node *node)
{
    int64_t left_ms = (run->deadline_us - hapax__monotonic_us()) / 1000;
    char replicas[12], limit[24];

    if (!run->wait || run->route->uri.wait == 0)
        return true;
    left_ms -= wait_margin_ms(left_ms);
    snprintf(replicas, sizeof(replicas), "%" PRIu32, run->route->uri.wait);
    snprintf(limit, sizeof(limit), "%" PRId64, left_ms > 0 ? left_ms : 1);
    return put_words(node, (const char *const[]){"WAIT", replicas, limit}, 3);
}

/* The calls of this node from i on have lost their link. */
static void lose_from(struct run *run, struct hapax__redis_node *node, size_t i,
                      enum hapax_error error, bool sent)
{
    bool reused = !node->fresh;

    hapax__redis_node_lose(node);
    while (i != NO_CALL) {
        size_t next = run->route->tracks[i].next;

        lost(run, i, error, sent, reused);
        i = next;
    }
}

static void send_round(struct run *run, struct hapax__redis_node *node)
{
    enum hapax_error error = HAPAX_ERR_NOMEM;
    bool put = put_scripts(run, node);

    for (size_t i = node->first; put && i != NO_CALL; i = run->route->tracks[i].next)
        put = put_call(run, node, i);
    put = put && put_wait(run, node);
    if (put)
        error = hapax__redis_link_send(node->link, run->deadline_us, run->text);
    else
        hapax__fail(run->text, error, "cannot ask \"%.100s\": out of memory", node->name);
    node->sent = error == HAPAX_ERR_NONE;
    if (node->sent)
        return;
    lose_from(run, node, node->first, error, put && error != HAPAX_ERR_UNAVAILABLE);
    node->first = NO_CALL;
}

/* ---- a round: replies ---------------------------------------------------------------- */

/* The deadline of one reply. A slow node may use up the time in which others have answered already:
 * their replies are still taken. */
static int64_t patience(const struct run *run)
{
    int64_t late_us = hapax__monotonic_us() + GRACE_US;

    if (late_us <= run->deadline_us)
        return run->deadline_us;
    return late_us < run->deadline_us + GRACE_MAX_US ? late_us : run->deadline_us + GRACE_MAX_US;
}

static bool take_one(struct run *run, struct hapax__redis_node *node, struct hapax__resp **reply)
{
    return hapax__redis_link_get(node->link, reply, patience(run), run->text) == HAPAX_ERR_NONE;
}

static bool skip_one(struct run *run, struct hapax__redis_node *node)
{
    struct hapax__resp *reply;

    if (!take_one(run, node, &reply))
        return false;
    hapax__resp_free(reply);
    return true;
}

static bool any_answered(const struct run *run, const struct hapax__redis_node *node)
{
    for (size_t i = node->first; i != NO_CALL; i = run->route->tracks[i].next)
        if (run->calls[i].reply)
            return true;
    return false;
}

/* No call was carried out: the reply of WAIT is of no use, and must not delay the next round. */
static void drop_wait(struct run *run, struct hapax__redis_node *node)
{
    int64_t soon_us = hapax__monotonic_us() + REST_US;
    struct hapax__resp *reply;

    if (soon_us > run->deadline_us)
        soon_us = run->deadline_us;
    if (!hapax__redis_link_ready(node->link, soon_us))
        hapax__redis_node_close(node);
    else if (hapax__redis_link_get(node->link, &reply, soon_us, run->text) == HAPAX_ERR_NONE)
        hapax__resp_free(reply);
    else
        hapax__redis_node_lose(node);
}

/* The reply of WAIT counts for all calls answered before it. */
static void take_wait(struct run *run, struct hapax__redis_node *node)
{
    uint32_t wanted = run->route->uri.wait;
    struct hapax__resp *reply;
    bool replicated;

    if (!run->wait || wanted == 0)
        return;
    if (!any_answered(run, node)) {
        drop_wait(run, node);
        return;
    }
    if (!take_one(run, node, &reply)) {
        lose_from(run, node, NO_CALL, HAPAX_ERR_INDETERMINATE, true);
        return;
    }
    replicated = reply->type == HAPAX__RESP_INTEGER && reply->integer >= (long long)wanted;
    if (!replicated && reply->type == HAPAX__RESP_INTEGER) {
        hapax__fail(run->text, HAPAX_ERR_INDETERMINATE,
                    "\"%.100s\": %lld of %u replicas acknowledged in time", node->name,
                    reply->integer, (unsigned)wanted);
    } else if (!replicated) {
        char quoted[100];

        hapax__redis_quote(quoted, sizeof(quoted), reply);
        hapax__fail(run->text, HAPAX_ERR_INDETERMINATE, "\"%.100s\" cannot wait: %s", node->name,
                    quoted);
    }
    hapax__resp_free(reply);
    if (!replicated)
        doubt(run, node);
    for (size_t i = node->first; replicated && i != NO_CALL; i = run->route->tracks[i].next)
        if (run->route->tracks[i].done && run->calls[i].reply)
            run->calls[i].replicated = true;
}

static void take_round(struct run *run, struct hapax__redis_node *node)
{
    struct track *tracks = run->route->tracks;
    size_t i = node->first, loads = node->loads;
    struct hapax__resp *reply;

    while (loads > 0 && skip_one(run, node))
        loads--;
    while (loads == 0 && i != NO_CALL) {
        if (tracks[i].asking && !skip_one(run, node))
            break;
        if (!take_one(run, node, &reply))
            break;
        take_reply(run, node, i, reply);
        i = tracks[i].next;
    }
    if (i != NO_CALL) {
        lose_from(run, node, i, HAPAX_ERR_INDETERMINATE, true);
        return;
    }
    node->fresh = false;
    take_wait(run, node);
}

/* ---- a round: all nodes -------------------------------------------------------------- */

/* *answered: SENTINEL: whether a sentinel answered. */
static enum hapax_error reach(struct run *run, struct hapax__redis_node *node, bool *answered)
{
    struct hapax__redis_route *route = run->route;

    if (route->uri.kind == HAPAX__REDIS_SENTINEL)
        return hapax__redis_sentinel_connect(&route->sentinels, node, answered, run->deadline_us,
                                             run->text);
    return hapax__redis_node_connect(node,
                                     route->uri.kind == HAPAX__REDIS_CLUSTER
                                         ? hapax__redis_share(run->deadline_us, 4)
                                         : run->deadline_us,
                                     run->text);
}

/* Whether a later attempt in this run may reach the node. */
static bool hopeful(const struct run *run, const struct hapax__redis_node *node,
                    enum hapax_error error, bool answered)
{
    enum hapax__redis_kind kind = run->route->uri.kind;

    if (error != HAPAX_ERR_UNAVAILABLE)
        return false;
    if (kind == HAPAX__REDIS_SENTINEL)
        return answered;
    return kind == HAPAX__REDIS_CLUSTER && !long_ago(run, node->down_us);
}

static void unreached(struct run *run, struct hapax__redis_node *node, enum hapax_error error,
                      bool answered)
{
    bool again = hopeful(run, node, error, answered);

    run->route->map.old = true;
    run->rest = run->rest || again;
    for (size_t i = node->first; i != NO_CALL; i = run->route->tracks[i].next) {
        run->route->tracks[i].error = error;
        run->route->tracks[i].to = NOWHERE;
        if (!again)
            give_up(run, i, error);
    }
    node->first = NO_CALL;
}

static void serve(struct run *run, bool connected)
{
    struct hapax__redis_route *route = run->route;

    for (size_t k = 0; k < route->nodes.count; k++) {
        struct hapax__redis_node *node = route->nodes.at[k];
        enum hapax_error error = HAPAX_ERR_NONE;
        bool answered = false;

        if (!node || node->first == NO_CALL || (connected && !hapax__redis_node_linked(node)))
            continue;
        if (!connected)
            error = reach(run, node, &answered);
        if (error == HAPAX_ERR_NONE)
            send_round(run, node);
        else
            unreached(run, node, error, answered);
    }
    for (size_t k = 0; k < route->nodes.count; k++) {
        struct hapax__redis_node *node = route->nodes.at[k];

        if (!node || node->first == NO_CALL || !node->sent)
            continue;
        take_round(run, node);
        node->first = NO_CALL;
        /* The next primary is found by asking a sentinel, or under the same name, which may lead to
         * another node by now; and not by this link. */
        if (node->demoted && route->uri.kind != HAPAX__REDIS_CLUSTER)
            hapax__redis_node_close(node);
    }
}

static void rest(const struct run *run)
{
    int64_t left_us = run->deadline_us - hapax__monotonic_us();
    int64_t rest_us = left_us < REST_US ? left_us : REST_US;

    if (rest_us > 0)
        poll(NULL, 0, (int)(rest_us / 1000) + 1);
}

/* Plays one round. Nodes with a link are served before others are connected to, so that a node that
 * does not answer delays only its own calls. False: no further round is of use. */
static bool round_of(struct run *run)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    run->rest = false;
    if (run->route->uri.kind == HAPAX__REDIS_CLUSTER)
        error = hapax__redis_map_read(&run->route->map, &run->route->nodes, run->deadline_us,
                                      run->text);
    if (error != HAPAX_ERR_NONE) {
        give_up_pending(run, error);
        return false;
    }
    gather(run);
    serve(run, true);
    serve(run, false);
    if (run->pending == 0)
        return false;
    if (run->rest)
        rest(run);
    if (hapax__monotonic_us() < run->deadline_us)
        return true;
    give_up_pending(run, HAPAX_ERR_NONE);
    return false;
}

enum hapax_error hapax__redis_route_run(struct hapax__redis_route *route,
                                        struct hapax__redis_call *calls, size_t n, bool wait,
                                        char text[HAPAX_TEXT_MAX])
{
    int64_t deadline_us = hapax__monotonic_us() + route->uri.timeout_ms * 1000;

    return hapax__redis_route_run_by(route, calls, n, wait, deadline_us, text);
}

enum hapax_error hapax__redis_route_run_by(struct hapax__redis_route *route,
                                           struct hapax__redis_call *calls, size_t n, bool wait,
                                           int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    struct run run = {route, calls, n, n, wait, false, deadline_us, text};

    text[0] = '\0';
    free_replies(route);
    for (size_t i = 0; i < n; i++) {
        assert(calls[i].script || calls[i].argc > 0);
        calls[i].reply = NULL;
        calls[i].replicated = false;
        calls[i].again = false;
        calls[i].error = HAPAX_ERR_NOMEM;
    }
    if (n == 0)
        return HAPAX_ERR_NONE;
    if (!reserve(route, n))
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    chain_keys(&run);
    if (route->uri.kind == HAPAX__REDIS_CLUSTER)
        hapax__redis_map_sweep(&route->map, &route->nodes);
    while (round_of(&run))
        ;
    return first_error(&run);
}
