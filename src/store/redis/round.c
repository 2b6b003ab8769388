/* SPDX-License-Identifier: Apache-2.0
 *
 * One run: its calls go out in rounds. In a round each node gets one pipeline, all pipelines are sent before
 * the first reply is taken, and what was redirected, or needs its script, goes into the next round.
 *
 * Two calls on one key are never under way together: the later one waits until the earlier one is
 * answered. A pipeline alone would not keep their order, for any of them can be turned away alone (ASK,
 * NOSCRIPT, LOADING) and would then be overtaken by those behind it.
 *
 * Every round ends a call, uses up one of its few second chances, or rests until something out there
 * has changed, and rests end with the deadline: so a run ends, whatever is answered.
 */
#include "route_parts.h"

#include "base/clock.h"
#include "base/fail.h"
#include "store/types.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOADS_MAX    8u /* scripts loaded ahead of one pipeline; more go with their text */
#define GRACE_US     2000 /* past the deadline, for what has arrived already */
#define GRACE_MAX_US 50000
#define WAIT_LATE_MS 150
#define NO_CALL      HAPAX__REDIS_NO_CALL
#define NOWHERE      HAPAX__REDIS_NOWHERE

/* ---- beginning and end of a run ------------------------------------------------------ */

static bool reserve(struct hapax__redis_route *route, size_t n)
{
    struct hapax__redis_track *tracks;
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

/* Finds for each call the one before it on the same key, by a table of the last call in each bucket. */
static void chain_keys(struct hapax__redis_run *run)
{
    struct hapax__redis_track *tracks = run->route->tracks;
    size_t heads[512];

    for (size_t b = 0; b < 512; b++)
        heads[b] = NO_CALL;
    for (size_t i = 0; i < run->n; i++) {
        const struct hapax_span key = run->calls[i].key;
        size_t *head, j;

        tracks[i] = (struct hapax__redis_track){
            .next = NO_CALL, .before = NO_CALL, .to = NOWHERE, .error = HAPAX_ERR_UNAVAILABLE};
        if (key.len == 0)
            continue;
        tracks[i].slot = hapax__redis_slot(key);
        head = &heads[tracks[i].slot % 512];
        for (j = *head; j != NO_CALL; j = tracks[j].next)
            if (run->calls[j].key.len == key.len &&
                memcmp(run->calls[j].key.ptr, key.ptr, key.len) == 0)
                break;
        tracks[i].before = j;
        tracks[i].next = *head;
        *head = i;
    }
}

static void give_up_pending(struct hapax__redis_run *run, enum hapax_error error)
{
    for (size_t i = 0; i < run->n; i++)
        if (!run->route->tracks[i].done)
            hapax__redis_give_up(run, i,
                                 error != HAPAX_ERR_NONE ? error : run->route->tracks[i].error);
}

static enum hapax_error first_error(const struct hapax__redis_run *run)
{
    enum hapax_error first = HAPAX_ERR_NONE;
    bool held = true;

    assert(run->pending == 0);
    for (size_t i = 0; i < run->n; i++) {
        const struct hapax__redis_call *call = &run->calls[i];

        assert((call->error == HAPAX_ERR_NONE) == (call->reply != NULL));
        if (first == HAPAX_ERR_NONE)
            first = call->error;
        held = held && (call->held || !run->hold);
    }
    /* What failed and then went well on a second try is nobody's business. */
    if (first == HAPAX_ERR_NONE && held)
        run->text[0] = '\0';
    return first;
}

/* ---- a round: which calls go where --------------------------------------------------- */

static uint16_t place(const struct hapax__redis_run *run, size_t i)
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
        return route->slots[route->tracks[i].slot];
    return call->node < route->primary_count ? route->primaries[call->node] : NOWHERE;
}

bool hapax__redis_long_ago(const struct hapax__redis_run *run, int64_t since_us)
{
    return since_us != 0 && hapax__monotonic_us() - since_us >= run->route->uri.timeout_ms * 1000;
}

static void nowhere(struct hapax__redis_run *run, size_t i)
{
    const struct hapax__redis_call *call = &run->calls[i];

    if (call->key.len == 0) {
        hapax__fail(run->text, HAPAX_ERR_UNAVAILABLE, "the cluster has no primary %zu any more",
                    call->node);
        hapax__redis_give_up(run, i, HAPAX_ERR_UNAVAILABLE);
        return;
    }
    run->route->tracks[i].error =
        hapax__fail(run->text, HAPAX_ERR_UNAVAILABLE, "no node of the cluster serves slot %u",
                    (unsigned)run->route->tracks[i].slot);
    run->route->look = true;
    if (hapax__redis_long_ago(run, run->route->gaps_us))
        hapax__redis_give_up(run, i, HAPAX_ERR_UNAVAILABLE);
    else
        run->rest = true;
}

/* A call after one that failed is not sent: its predecessor may still be on its way. */
static bool its_turn(struct hapax__redis_run *run, size_t i)
{
    struct hapax__redis_track *tracks = run->route->tracks;
    size_t before = tracks[i].before;

    if (tracks[i].done)
        return false;
    if (before == NO_CALL)
        return true;
    if (!tracks[before].done)
        return false;
    if (run->calls[before].error == HAPAX_ERR_NONE)
        return true;
    hapax__redis_give_up(run, i, HAPAX_ERR_UNAVAILABLE);
    return false;
}

static void gather(struct hapax__redis_run *run)
{
    struct hapax__redis_route *route = run->route;

    for (size_t i = 0; i < run->n; i++) {
        struct hapax__redis_track *track = &route->tracks[i];
        struct hapax__redis_node *node;
        uint16_t at;

        if (!its_turn(run, i))
            continue;
        at = place(run, i);
        if (at == NOWHERE) {
            nowhere(run, i);
            continue;
        }
        node = route->nodes[at];
        assert(at < route->node_count && node);
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

static bool put_call(struct hapax__redis_run *run, struct hapax__redis_node *node, size_t i)
{
    const struct hapax__redis_call *call = &run->calls[i];
    const struct hapax__redis_track *track = &run->route->tracks[i];
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

/* Scripts that the node did not know go ahead of the calls that need them. */
static bool put_scripts(struct hapax__redis_run *run, struct hapax__redis_node *node)
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

/* What is left for WAIT's answer to come in: a Redis with nothing to do sees a limit up to 100 ms late. */
static int64_t wait_margin_ms(int64_t left_ms)
{
    int64_t margin_ms = left_ms / 10 > WAIT_LATE_MS ? left_ms / 10 : WAIT_LATE_MS;

    return margin_ms < left_ms / 2 ? margin_ms : left_ms / 2 + 1;
}

/* WAIT 0 would wait for ever. */
static bool put_wait(struct hapax__redis_run *run, struct hapax__redis_node *node)
{
    int64_t left_ms = (run->deadline_us - hapax__monotonic_us()) / 1000;
    char replicas[12], limit[24];

    if (!run->hold || run->route->uri.wait == 0)
        return true;
    left_ms -= wait_margin_ms(left_ms);
    snprintf(replicas, sizeof(replicas), "%" PRIu32, run->route->uri.wait);
    snprintf(limit, sizeof(limit), "%" PRId64, left_ms > 0 ? left_ms : 1);
    return put_words(node, (const char *const[]){"WAIT", replicas, limit}, 3);
}

/* Calls from i on, on this node, have lost their link. */
static void lose_from(struct hapax__redis_run *run, struct hapax__redis_node *node, size_t i,
                      enum hapax_error error, bool sent)
{
    bool reused = !node->fresh;

    hapax__redis_node_lose(node);
    while (i != NO_CALL) {
        size_t next = run->route->tracks[i].next;

        hapax__redis_lost(run, i, error, sent, reused);
        i = next;
    }
}

static void send_round(struct hapax__redis_run *run, struct hapax__redis_node *node)
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

/* A slow node uses up the time in which others have answered already. */
static int64_t patience(const struct hapax__redis_run *run)
{
    int64_t late_us = hapax__monotonic_us() + GRACE_US;

    if (late_us <= run->deadline_us)
        return run->deadline_us;
    return late_us < run->deadline_us + GRACE_MAX_US ? late_us : run->deadline_us + GRACE_MAX_US;
}

static bool take_one(struct hapax__redis_run *run, struct hapax__redis_node *node,
                     struct hapax__resp **reply)
{
    return hapax__redis_link_get(node->link, reply, patience(run), run->text) == HAPAX_ERR_NONE;
}

static bool skip_one(struct hapax__redis_run *run, struct hapax__redis_node *node)
{
    struct hapax__resp *reply;

    if (!take_one(run, node, &reply))
        return false;
    hapax__resp_free(reply);
    return true;
}

static bool any_answered(const struct hapax__redis_run *run, const struct hapax__redis_node *node)
{
    for (size_t i = node->first; i != NO_CALL; i = run->route->tracks[i].next)
        if (run->calls[i].reply)
            return true;
    return false;
}

/* Nothing was carried out: WAIT's reply is of no use, and must not hold up what the next round will do. */
static void drop_wait(struct hapax__redis_run *run, struct hapax__redis_node *node)
{
    int64_t soon_us = hapax__monotonic_us() + HAPAX__REDIS_REST_US;
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

void hapax__redis_doubt(struct hapax__redis_run *run, struct hapax__redis_node *node)
{
    run->route->look = true;
    node->demoted = true;
    if (run->route->uri.kind == HAPAX__REDIS_SENTINEL)
        hapax__redis_sentinel_doubt(run->route);
}

/* The reply of WAIT counts for all calls answered before it. */
static void take_wait(struct hapax__redis_run *run, struct hapax__redis_node *node)
{
    uint32_t wanted = run->route->uri.wait;
    struct hapax__resp *reply;
    bool held;

    if (!run->hold || wanted == 0)
        return;
    if (!any_answered(run, node)) {
        drop_wait(run, node);
        return;
    }
    if (!take_one(run, node, &reply)) {
        lose_from(run, node, NO_CALL, HAPAX_ERR_INDETERMINATE, true);
        return;
    }
    held = reply->type == HAPAX__RESP_INTEGER && reply->integer >= (long long)wanted;
    if (!held && reply->type == HAPAX__RESP_INTEGER) {
        hapax__fail(run->text, HAPAX_ERR_INDETERMINATE,
                    "\"%.100s\": %lld of %u replicas acknowledged in time", node->name,
                    reply->integer, (unsigned)wanted);
    } else if (!held) {
        char said[100];

        hapax__redis_quote(said, sizeof(said), reply);
        hapax__fail(run->text, HAPAX_ERR_INDETERMINATE, "\"%.100s\" cannot wait: %s", node->name,
                    said);
    }
    hapax__resp_free(reply);
    if (!held)
        hapax__redis_doubt(run, node);
    for (size_t i = node->first; held && i != NO_CALL; i = run->route->tracks[i].next)
        if (run->route->tracks[i].done && run->calls[i].reply)
            run->calls[i].held = true;
}

static void take_round(struct hapax__redis_run *run, struct hapax__redis_node *node)
{
    struct hapax__redis_track *tracks = run->route->tracks;
    size_t i = node->first, loads = node->loads;
    struct hapax__resp *reply;

    while (loads > 0 && skip_one(run, node))
        loads--;
    while (loads == 0 && i != NO_CALL) {
        if (tracks[i].asking && !skip_one(run, node))
            break;
        if (!take_one(run, node, &reply))
            break;
        hapax__redis_reply(run, node, i, reply);
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

static enum hapax_error reach(struct hapax__redis_run *run, struct hapax__redis_node *node)
{
    struct hapax__redis_route *route = run->route;

    switch (route->uri.kind) {
    case HAPAX__REDIS_NODE:
        return hapax__redis_node_connect(route, node, &route->uri.login, route->uri.db,
                                         run->deadline_us, run->text);
    case HAPAX__REDIS_SENTINEL:
        return hapax__redis_sentinel_connect(route, run->deadline_us, run->text);
    case HAPAX__REDIS_CLUSTER:
        break;
    }
    return hapax__redis_node_connect(route, node, &route->uri.login, 0,
                                     hapax__redis_share(run->deadline_us, 4), run->text);
}

static bool hopeful(const struct hapax__redis_run *run, const struct hapax__redis_node *node,
                    enum hapax_error error)
{
    const struct hapax__redis_uri *uri = &run->route->uri;

    if (error != HAPAX_ERR_UNAVAILABLE)
        return false;
    if (uri->kind == HAPAX__REDIS_SENTINEL)
        return node->heard;
    return uri->kind == HAPAX__REDIS_CLUSTER && !hapax__redis_long_ago(run, node->down_us);
}

static void unreached(struct hapax__redis_run *run, struct hapax__redis_node *node,
                      enum hapax_error error)
{
    bool again = hopeful(run, node, error);

    run->route->look = true;
    run->rest = run->rest || again;
    for (size_t i = node->first; i != NO_CALL; i = run->route->tracks[i].next) {
        run->route->tracks[i].error = error;
        run->route->tracks[i].to = NOWHERE;
        if (!again)
            hapax__redis_give_up(run, i, error);
    }
    node->first = NO_CALL;
}

static bool linked(struct hapax__redis_node *node)
{
    if (node->link && hapax__redis_link_stale(node->link))
        hapax__redis_node_close(node);
    return node->link != NULL;
}

static void serve(struct hapax__redis_run *run, bool connected)
{
    struct hapax__redis_route *route = run->route;

    for (size_t k = 0; k < route->node_count; k++) {
        struct hapax__redis_node *node = route->nodes[k];
        enum hapax_error error = HAPAX_ERR_NONE;

        if (!node || node->first == NO_CALL || (connected && !linked(node)))
            continue;
        if (!connected)
            error = reach(run, node);
        if (error == HAPAX_ERR_NONE)
            send_round(run, node);
        else
            unreached(run, node, error);
    }
    for (size_t k = 0; k < route->node_count; k++) {
        struct hapax__redis_node *node = route->nodes[k];

        if (!node || node->first == NO_CALL || !node->sent)
            continue;
        take_round(run, node);
        node->first = NO_CALL;
        /* The next one is found by asking, not by this link. */
        if (node->demoted && route->uri.kind == HAPAX__REDIS_SENTINEL)
            hapax__redis_node_close(node);
    }
}

static void rest(const struct hapax__redis_run *run)
{
    int64_t left_us = run->deadline_us - hapax__monotonic_us();
    int64_t rest_us = left_us < HAPAX__REDIS_REST_US ? left_us : HAPAX__REDIS_REST_US;

    if (rest_us > 0)
        poll(NULL, 0, (int)(rest_us / 1000) + 1);
}

/* False: no further round is of use. Nodes with a link are served before others are connected to,
 * so that one that does not answer holds up only its own calls. */
static bool round_of(struct hapax__redis_run *run)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    run->rest = false;
    if (run->route->uri.kind == HAPAX__REDIS_CLUSTER)
        error = hapax__redis_cluster_look(run->route, run->deadline_us, run->text);
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
                                        struct hapax__redis_call *calls, size_t n, bool hold,
                                        char text[HAPAX_TEXT_MAX])
{
    int64_t deadline_us = hapax__monotonic_us() + route->uri.timeout_ms * 1000;

    return hapax__redis_route_run_by(route, calls, n, hold, deadline_us, text);
}

enum hapax_error hapax__redis_route_run_by(struct hapax__redis_route *route,
                                           struct hapax__redis_call *calls, size_t n, bool hold,
                                           int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    struct hapax__redis_run run = {route, calls, n, n, hold, false, deadline_us, text};

    text[0] = '\0';
    hapax__redis_replies_free(route);
    for (size_t i = 0; i < n; i++) {
        assert(calls[i].script || calls[i].argc > 0);
        calls[i].reply = NULL;
        calls[i].held = false;
        calls[i].again = false;
        calls[i].error = HAPAX_ERR_NOMEM;
    }
    if (n == 0)
        return HAPAX_ERR_NONE;
    if (!reserve(route, n))
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    chain_keys(&run);
    if (route->uri.kind == HAPAX__REDIS_CLUSTER)
        hapax__redis_cluster_sweep(route);
    while (round_of(&run))
        ;
    return first_error(&run);
}
