/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the primary is, by the sentinels that the URI names. Their word is a hint: only a process that
 * says by ROLE that it is a primary is written to, on each new link. A sentinel that was cut off from the
 * others may name the primary of before; it goes to the end of the order, as one that does not answer. So it
 * does where the replicas that `wait` asks for did not acknowledge: both may be on the wrong side of a cut.
 *
 * Sentinels that the URI does not name are not learnt (SENTINEL SENTINELS): a deployment's list is
 * short and known, and what one sentinel says about others is one more thing to be wrong about. Nor is
 * their pub/sub followed: a link that dies, or a primary that is none any more, says it as soon.
 */
#include "route_parts.h"

#include "base/clock.h"
#include "base/fail.h"
#include "store/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool is_text(const struct hapax__resp *reply, const char *text)
{
    return (reply->type == HAPAX__RESP_STRING || reply->type == HAPAX__RESP_STATUS) &&
           reply->len == strlen(text) && memcmp(reply->str, text, reply->len) == 0;
}

static bool read_address(struct hapax__redis_address *out, const struct hapax__resp *reply)
{
    const struct hapax__resp *host, *port;
    char *end;
    unsigned long number;

    if (reply->type != HAPAX__RESP_ARRAY || reply->elements != 2)
        return false;
    host = reply->element[0];
    port = reply->element[1];
    if (host->type != HAPAX__RESP_STRING || port->type != HAPAX__RESP_STRING || host->len == 0 ||
        host->len > HAPAX__REDIS_NAME_MAX || memchr(host->str, '\0', host->len))
        return false;
    number = strtoul(port->str, &end, 10);
    if (port->len == 0 || port->len > 5 || *end != '\0' || number == 0 || number > UINT16_MAX)
        return false;
    memcpy(out->host, host->str, host->len);
    out->host[host->len] = '\0';
    out->port = (uint16_t)number;
    return true;
}

/* One command on a connection of its own. The reply is the caller's. */
static enum hapax_error ask(struct hapax__redis_route *route, struct hapax__redis_node *sentinel,
                            const struct hapax_span *args, size_t argc, struct hapax__resp **reply,
                            int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    *reply = NULL;
    error = hapax__redis_node_connect(route, sentinel, &route->uri.sentinel_login, 0, deadline_us,
                                      text);
    if (error != HAPAX_ERR_NONE)
        return error;
    error = hapax__redis_node_ask(sentinel, args, argc, reply, deadline_us, text);
    hapax__redis_node_close(sentinel);
    if (error == HAPAX_ERR_NONE || error == HAPAX_ERR_NOMEM)
        return error;
    return HAPAX_ERR_UNAVAILABLE;
}

/* Which address this sentinel gives. */
static enum hapax_error find(struct hapax__redis_route *route, struct hapax__redis_node *sentinel,
                             struct hapax__redis_address *out, bool *heard, int64_t deadline_us,
                             char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span args[] = {hapax_str("SENTINEL"), hapax_str("GET-MASTER-ADDR-BY-NAME"),
                                      hapax_str(route->uri.master)};
    struct hapax__resp *reply;
    enum hapax_error error = ask(route, sentinel, args, 3, &reply, deadline_us, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (read_address(out, reply)) {
        *heard = true;
    } else if (reply->type == HAPAX__RESP_NIL || reply->type == HAPAX__RESP_ARRAY) {
        *heard = true;
        error = hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                            "the sentinel \"%.80s\" knows no master \"%.80s\"", sentinel->name,
                            route->uri.master);
    } else {
        char said[100];

        hapax__redis_quote(said, sizeof(said), reply);
        error = hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "the sentinel \"%.80s\" answered: %s",
                            sentinel->name, said);
        if (reply->type == HAPAX__RESP_ERROR &&
            (strncmp(reply->str, "NOAUTH", 6) == 0 || strncmp(reply->str, "NOPERM", 6) == 0))
            error = HAPAX_ERR_REFUSED;
    }
    hapax__resp_free(reply);
    return error;
}

static enum hapax_error confirm(struct hapax__redis_node *node,
                                const struct hapax__redis_node *sentinel, int64_t deadline_us,
                                char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span role = hapax_str("ROLE");
    enum hapax_error error;
    struct hapax__resp *reply;
    bool primary;

    error = hapax__redis_node_ask(node, &role, 1, &reply, deadline_us, text);
    if (error == HAPAX_ERR_NOMEM)
        return error;
    if (error != HAPAX_ERR_NONE)
        return HAPAX_ERR_UNAVAILABLE;
    primary = reply->type == HAPAX__RESP_ARRAY && reply->elements > 0 &&
              is_text(reply->element[0], "master");
    if (!primary && reply->type == HAPAX__RESP_ERROR) {
        char said[100];

        hapax__redis_quote(said, sizeof(said), reply);
        error = hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "\"%.80s\" answered ROLE with: %s",
                            node->name, said);
        if (strncmp(reply->str, "NOAUTH", 6) == 0 || strncmp(reply->str, "NOPERM", 6) == 0)
            error = HAPAX_ERR_REFUSED;
    } else if (!primary) {
        error = hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                            "\"%.80s\", named by the sentinel \"%.80s\", is no primary", node->name,
                            sentinel->name);
    }
    hapax__resp_free(reply);
    if (error != HAPAX_ERR_NONE)
        hapax__redis_node_lose(node);
    return error;
}

/* One sentinel's word, followed to its end. */
static enum hapax_error follow(struct hapax__redis_route *route, struct hapax__redis_node *sentinel,
                               bool *heard, int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    struct hapax__redis_node *node = route->nodes[0];
    struct hapax__redis_address address = {.port = 0};
    enum hapax_error error = find(route, sentinel, &address, heard, deadline_us, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (!node->listed || node->address.port != address.port ||
        strcmp(node->address.host, address.host) != 0)
        hapax__redis_node_move(node, &address);
    node->listed = true;
    error =
        hapax__redis_node_connect(route, node, &route->uri.login, route->uri.db, deadline_us, text);
    return error == HAPAX_ERR_NONE ? confirm(node, sentinel, deadline_us, text) : error;
}

void hapax__redis_sentinel_doubt(struct hapax__redis_route *route)
{
    size_t count = route->uri.host_count;
    struct hapax__redis_node *first = route->sentinels[0];

    assert(route->uri.kind == HAPAX__REDIS_SENTINEL && count > 0);
    memmove(route->sentinels, route->sentinels + 1, (count - 1) * sizeof(route->sentinels[0]));
    route->sentinels[count - 1] = first;
}

enum hapax_error hapax__redis_sentinel_connect(struct hapax__redis_route *route,
                                               int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    size_t count = route->uri.host_count;
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;
    bool heard = false;

    assert(route->uri.kind == HAPAX__REDIS_SENTINEL && !route->nodes[0]->link);
    for (size_t k = 0; k < count; k++) {
        char said[HAPAX_TEXT_MAX] = "";
        bool late;

        error = follow(route, route->sentinels[0], &heard,
                       hapax__redis_share(deadline_us, count - k), said);
        late = hapax__monotonic_us() >= deadline_us;
        /* A question that the deadline cut short says less than an answer before it. */
        if (!late || text[0] == '\0')
            memcpy(text, said, sizeof(said));
        if (error == HAPAX_ERR_NONE || error == HAPAX_ERR_NOMEM)
            break;
        hapax__redis_sentinel_doubt(route);
        if (late)
            break;
    }
    route->nodes[0]->heard = heard;
    assert((error == HAPAX_ERR_NONE) == (route->nodes[0]->link != NULL));
    return error;
}

enum hapax_error hapax__redis_route_sentinel(struct hapax__redis_route *route, size_t k,
                                             struct hapax__resp **reply, const char **name,
                                             char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span args[] = {hapax_str("SENTINEL"), hapax_str("MASTER"),
                                      hapax_str(route->uri.master)};
    int64_t deadline_us = hapax__monotonic_us() + route->uri.timeout_ms * 1000;

    assert(route->uri.kind == HAPAX__REDIS_SENTINEL && k < route->uri.host_count);
    *name = route->sentinels[k]->name;
    return ask(route, route->sentinels[k], args, 3, reply,
               hapax__redis_share(deadline_us, route->uri.host_count), text);
}
