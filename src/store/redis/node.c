/* SPDX-License-Identifier: Apache-2.0
 *
 * One Redis process and its link.
 *
 * A node whose connection failed is left alone for a moment by every run, so that a server that
 * comes up again meets no storm of connections. How long a run waits altogether is decided by the
 * run (route.c). Rejected: a limit of the node's own for each attempt, since such limits add up. /
 */
#include "node.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GAP_US       (50 * US_PER_MS) /* so long a node that was not reached is left alone */
#define SHARE_MIN_US (50 * US_PER_MS)

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

struct hapax__redis_node *hapax__redis_node_new(const struct hapax__redis_address *address,
                                                const struct hapax__redis_access *access)
{
    struct hapax__redis_node *node = calloc(1, sizeof(*node));

    if (!node)
        return NULL;
    node->access = access;
    node->first = HAPAX__REDIS_NO_CALL;
    hapax__redis_node_move(node, address);
    return node;
}

void hapax__redis_node_free(struct hapax__redis_node *node)
{
    if (!node)
        return;
    hapax__redis_node_close(node);
    free(node);
}

bool hapax__redis_node_is_at(const struct hapax__redis_node *node,
                             const struct hapax__redis_address *address)
{
    return node->address.port == address->port && strcmp(node->address.host, address->host) == 0;
}

void hapax__redis_node_close(struct hapax__redis_node *node)
{
    hapax__redis_link_close(node->link);
    node->link = NULL;
}

void hapax__redis_node_lose(struct hapax__redis_node *node)
{
    hapax__redis_node_close(node);
    node->lost_us = hapax__monotonic_us();
}

bool hapax__redis_node_linked(struct hapax__redis_node *node)
{
    if (node->link && hapax__redis_link_stale(node->link))
        hapax__redis_node_close(node);
    return node->link != NULL;
}

enum hapax_error hapax__redis_node_connect(struct hapax__redis_node *node, int64_t deadline_us,
                                           char text[HAPAX_TEXT_MAX])
{
    const struct hapax__redis_access *access = node->access;
    int64_t gap_us = access->many ? hapax__most(GAP_US, node->cost_us * 2) : GAP_US;
    int64_t now_us = hapax__monotonic_us();

    assert(!node->link);
    if (node->failed_us != 0 && now_us - node->failed_us < gap_us)
        return hapax__fail(text, node->failed, "%s", node->why);
    node->failed = hapax__redis_link_open(&node->link, &node->address, access->login, access->db,
                                          access->tls, deadline_us, node->why);
    assert((node->failed == HAPAX_ERR_NONE) == (node->link != NULL));
    if (node->link) {
        node->fresh = true;
        node->failed_us = 0;
        node->down_us = 0;
        return HAPAX_ERR_NONE;
    }
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
    if (error == HAPAX_ERR_NONE)
        return error;
    hapax__redis_node_lose(node);
    return error == HAPAX_ERR_NOMEM ? error : HAPAX_ERR_UNAVAILABLE;
}

enum hapax_error hapax__redis_node_refusal(const struct hapax__resp *reply)
{
    return hapax__text_begins(reply->str, "NOAUTH") || hapax__text_begins(reply->str, "NOPERM")
               ? HAPAX_ERR_REFUSED
               : HAPAX_ERR_UNAVAILABLE;
}

void hapax__redis_quote(char *out, size_t size, const struct hapax__resp *reply)
{
    bool text = reply->type == HAPAX__RESP_ERROR || reply->type == HAPAX__RESP_STATUS;
    char *arguments;
    size_t n = 0;

    assert(size > 16);
    if (!text) {
        snprintf(out, size, "a reply of type %d", reply->type);
        return;
    }
    for (size_t i = 0; i < reply->len && n + 1 < size; i++)
        out[n++] = isprint((unsigned char)reply->str[i]) ? reply->str[i] : ' ';
    out[n] = '\0';
    arguments = strstr(out, ", with args");
    if (arguments) /* Redis repeats the command's arguments: they do not belong into a log */
        *arguments = '\0';
    for (n = strlen(out); n > 0 && out[n - 1] == ' '; n--)
        out[n - 1] = '\0';
}

int64_t hapax__redis_share(int64_t deadline_us, size_t parts)
{
    int64_t now_us = hapax__monotonic_us();
    int64_t left_us = hapax__most(deadline_us - now_us, 0);

    assert(parts > 0);
    return now_us + hapax__most(left_us / (int64_t)parts, hapax__least(left_us, SHARE_MIN_US));
}
