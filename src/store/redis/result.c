/* SPDX-License-Identifier: Apache-2.0
 *
 * What a reply, or its loss, means for a call: ended, given up, or once more.
 *
 * The invariant: UNAVAILABLE only where no try of the call can have been carried out. Redis refuses a
 * command before it begins with a word of its own (MOVED, LOADING, OOM, …), and those inside a script
 * before its first write; every other error of a script may have come after a write, so that its result is
 * not known. Errors are told apart by their first word alone: the rest of a text is for people.
 */
#include "route_parts.h"

#include "base/clock.h"
#include "base/fail.h"
#include "store/types.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define REDIRECTED_MAX   16
#define REDIRECTED_QUICK 3 /* then with a rest before each: who has the slot is being agreed on */
#define LOST_MAX         3
#define SAID_MAX         140

/* What an error reply says of its command. */
enum result {
    RESULT_ERROR, /* it was carried out, or began to be */
    RESULT_MOVED,
    RESULT_ASK,
    RESULT_SCRIPT, /* the script is not there */
    RESULT_AGAIN, /* the same node will take it */
    RESULT_ELSEWHERE, /* this is not the primary, or not yet */
    RESULT_UNAVAILABLE, /* the node takes nothing of the kind now */
    RESULT_REFUSED
};

static const struct {
    const char *word;
    enum result result;
} results[] = {
    {"MOVED", RESULT_MOVED},           {"ASK", RESULT_ASK},
    {"NOSCRIPT", RESULT_SCRIPT},       {"TRYAGAIN", RESULT_AGAIN},
    {"CLUSTERDOWN", RESULT_ELSEWHERE}, {"LOADING", RESULT_ELSEWHERE},
    {"READONLY", RESULT_ELSEWHERE},    {"MASTERDOWN", RESULT_ELSEWHERE},
    {"BUSY", RESULT_UNAVAILABLE},      {"OOM", RESULT_UNAVAILABLE},
    {"MISCONF", RESULT_UNAVAILABLE},   {"NOREPLICAS", RESULT_UNAVAILABLE},
    {"NOAUTH", RESULT_REFUSED},        {"WRONGPASS", RESULT_REFUSED},
    {"NOPERM", RESULT_REFUSED},        {"DENIED", RESULT_REFUSED},
};

static bool begins(const struct hapax__resp *reply, const char *with)
{
    size_t len = strlen(with);

    return reply->len >= len && memcmp(reply->str, with, len) == 0;
}

static enum result result_of(const struct hapax__resp *reply, bool script)
{
    const char *space = memchr(reply->str, ' ', reply->len);
    size_t len = space ? (size_t)(space - reply->str) : reply->len;

    /* Too many clients: said instead of a greeting, before anything is read. */
    if (begins(reply, "ERR max number of clients"))
        return RESULT_UNAVAILABLE;
    for (size_t k = 0; k < sizeof(results) / sizeof(results[0]); k++) {
        if (strlen(results[k].word) != len || memcmp(results[k].word, reply->str, len) != 0)
            continue;
        /* A permission that is missing half-way through a script comes after its writes. */
        if (script && results[k].result == RESULT_REFUSED && strstr(reply->str, "script"))
            return RESULT_ERROR;
        return results[k].result;
    }
    return RESULT_ERROR;
}

void hapax__redis_quote(char *out, size_t size, const struct hapax__resp *reply)
{
    bool text = reply->type == HAPAX__RESP_ERROR || reply->type == HAPAX__RESP_STATUS;
    size_t n = 0;

    assert(size > 16);
    if (!text) {
        snprintf(out, size, "a reply of type %d", reply->type);
        return;
    }
    for (size_t i = 0; i < reply->len && n + 1 < size; i++)
        out[n++] = isprint((unsigned char)reply->str[i]) ? reply->str[i] : ' ';
    out[n] = '\0';
    /* What Redis repeats of a command is none of a log's business. */
    char *arguments = strstr(out, ", with args");

    if (arguments)
        *arguments = '\0';
    for (n = strlen(out); n > 0 && out[n - 1] == ' '; n--)
        out[n - 1] = '\0';
}

/* ---- how a call ends ----------------------------------------------------------------- */

static void end(struct hapax__redis_run *run, size_t i)
{
    struct hapax__redis_track *track = &run->route->tracks[i];

    assert(!track->done && run->pending > 0);
    track->done = true;
    run->pending--;
}

void hapax__redis_give_up(struct hapax__redis_run *run, size_t i, enum hapax_error error)
{
    assert(error != HAPAX_ERR_NONE && !run->calls[i].reply);
    run->calls[i].error = run->route->tracks[i].maybe ? HAPAX_ERR_INDETERMINATE : error;
    end(run, i);
}

/* The node surely did not carry it out: once more, unless it has had its chances. */
static void again(struct hapax__redis_run *run, size_t i, bool chance)
{
    run->route->tracks[i].error = HAPAX_ERR_UNAVAILABLE;
    if (!chance)
        hapax__redis_give_up(run, i, HAPAX_ERR_UNAVAILABLE);
}

void hapax__redis_lost(struct hapax__redis_run *run, size_t i, enum hapax_error error, bool sent,
                       bool reused)
{
    struct hapax__redis_track *track = &run->route->tracks[i];
    bool node = run->route->uri.kind == HAPAX__REDIS_NODE;
    bool chance;

    track->maybe = track->maybe || sent;
    track->error = error;
    track->to = HAPAX__REDIS_NOWHERE;
    track->lost++;
    chance = error != HAPAX_ERR_NOMEM && track->lost <= LOST_MAX && (reused || !node) &&
             !(track->maybe && run->calls[i].once);
    run->route->look = true;
    if (!chance)
        hapax__redis_give_up(run, i, error);
    else if (!reused)
        run->rest = true;
}

/* ---- error replies ------------------------------------------------------------------- */

static bool in_cluster(const struct hapax__redis_run *run, size_t i)
{
    return run->route->uri.kind == HAPAX__REDIS_CLUSTER && run->calls[i].key.len > 0;
}

static void redirected(struct hapax__redis_run *run, const struct hapax__redis_node *node, size_t i,
                       const char *said, bool ask)
{
    struct hapax__redis_route *route = run->route;
    struct hapax__redis_track *track = &route->tracks[i];
    uint16_t at = HAPAX__REDIS_NOWHERE;

    if (in_cluster(run, i))
        at = hapax__redis_cluster_target(route, node, said, track->slot);
    else
        hapax__fail(run->text, HAPAX_ERR_UNAVAILABLE,
                    "\"%.100s\" is a node of a cluster (use redis+cluster://)", node->name);
    if (at != HAPAX__REDIS_NOWHERE && ask) {
        track->to = at;
    } else if (at != HAPAX__REDIS_NOWHERE) {
        route->slots[track->slot] = at;
        route->look = true;
    }
    track->redirected++;
    if (track->redirected > REDIRECTED_QUICK)
        run->rest = true;
    again(run, i, at != HAPAX__REDIS_NOWHERE && track->redirected < REDIRECTED_MAX);
}

static void elsewhere(struct hapax__redis_run *run, struct hapax__redis_node *node, size_t i)
{
    enum hapax__redis_kind kind = run->route->uri.kind;

    run->route->look = true;
    run->rest = true;
    node->demoted = true;
    if (node->away_us == 0)
        node->away_us = hapax__monotonic_us();
    again(run, i,
          kind == HAPAX__REDIS_SENTINEL ||
              (kind == HAPAX__REDIS_CLUSTER && !hapax__redis_long_ago(run, node->away_us)));
}

/* False: the reply is the caller's to read. */
static bool refused(struct hapax__redis_run *run, struct hapax__redis_node *node, size_t i,
                    const struct hapax__resp *reply)
{
    struct hapax__redis_track *track = &run->route->tracks[i];
    enum result result = result_of(reply, run->calls[i].script != NULL);
    char said[SAID_MAX];

    if (result == RESULT_ERROR && !run->calls[i].script)
        return false;
    hapax__redis_quote(said, sizeof(said), reply);
    hapax__fail(run->text, HAPAX_ERR_UNAVAILABLE, "\"%.100s\" answered: %s", node->name, said);
    track->to = HAPAX__REDIS_NOWHERE;
    switch (result) {
    case RESULT_MOVED:
    case RESULT_ASK:
        redirected(run, node, i, reply->str, result == RESULT_ASK);
        return true;
    case RESULT_SCRIPT:
        track->unscripted++;
        again(run, i, run->calls[i].script && track->unscripted <= 2);
        return true;
    case RESULT_AGAIN:
        run->rest = true;
        again(run, i, in_cluster(run, i));
        return true;
    case RESULT_ELSEWHERE:
        elsewhere(run, node, i);
        return true;
    case RESULT_UNAVAILABLE:
        if (begins(reply, "NOREPLICAS"))
            hapax__redis_doubt(run, node);
        hapax__redis_give_up(run, i, HAPAX_ERR_UNAVAILABLE);
        return true;
    case RESULT_REFUSED:
        hapax__redis_give_up(run, i, HAPAX_ERR_REFUSED);
        return true;
    case RESULT_ERROR:
        break;
    }
    hapax__redis_give_up(run, i, HAPAX_ERR_INDETERMINATE);
    return true;
}

void hapax__redis_reply(struct hapax__redis_run *run, struct hapax__redis_node *node, size_t i,
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
    run->calls[i].held = route->uri.wait == 0;
    run->calls[i].again = route->tracks[i].maybe;
    node->away_us = 0;
    end(run, i);
}
