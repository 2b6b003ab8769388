/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the primary is, by the sentinels that the URI names. Their answer is a hint: each new link
 * is used for writes only after its process has answered ROLE with "master". A sentinel that is cut
 * off from the others may name the former primary. Such a sentinel goes to the end of the order, as
 * does one that does not answer, and one whose primary's replicas did not acknowledge what `wait`
 * asks for: both may be on the wrong side of a cut.
 *
 * Rejected: learning of sentinels that the URI does not name (SENTINEL SENTINELS). A deployment's
 * list is short and known, and what one sentinel answers about others can be wrong, too. Rejected:
 * following the sentinels' pub/sub, since a link that dies, or a node that is no primary any more,
 * is seen as soon. /
 */
#include "sentinel.h"

#include "base/clock.h"
#include "base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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

/* Sends one command on a connection of its own. The caller frees the reply. */
static enum hapax_error ask(struct hapax__redis_node *sentinel, const struct hapax_span *args,
                            size_t argc, struct hapax__resp **reply, int64_t deadline_us,
                            char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    *reply = NULL;
    error = hapax__redis_node_connect(sentinel, deadline_us, text);
    if (error == HAPAX_ERR_NONE)
        error = hapax__redis_node_ask(sentinel, args, argc, reply, deadline_us, text);
    hapax__redis_node_close(sentinel);
    return error;
}

/* Asks one sentinel for the primary's address. *answered becomes true where it answers. */
static enum hapax_error find(const struct hapax__redis_sentinels *sentinels,
                             struct hapax__redis_node *sentinel, struct hapax__redis_address *out,
                             bool *answered, int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span args[] = {hapax_str("SENTINEL"), hapax_str("GET-MASTER-ADDR-BY-NAME"),
                                      hapax_str(sentinels->master)};
    struct hapax__resp *reply;
    enum hapax_error error = ask(sentinel, args, 3, &reply, deadline_us, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (read_address(out, reply)) {
        *answered = true;
    } else if (reply->type == HAPAX__RESP_NIL || reply->type == HAPAX__RESP_ARRAY) {
        *answered = true;
        error = hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                            "the sentinel \"%.80s\" knows no master \"%.80s\"", sentinel->name,
                            sentinels->master);
    } else {
        char quoted[100];

        hapax__redis_quote(quoted, sizeof(quoted), reply);
        error = reply->type == HAPAX__RESP_ERROR ? hapax__redis_node_refusal(reply)
                                                 : HAPAX_ERR_UNAVAILABLE;
        hapax__fail(text, error, "the sentinel \"%.80s\" answered: %s", sentinel->name, quoted);
    }
    hapax__resp_free(reply);
    return error;
}

/* Asks the node that a sentinel named whether it is a primary; otherwise closes its link. */
static enum hapax_error confirm(struct hapax__redis_node *node,
                                const struct hapax__redis_node *sentinel, int64_t deadline_us,
                                char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span role = hapax_str("ROLE");
    struct hapax__resp *reply;
    enum hapax_error error = hapax__redis_node_ask(node, &role, 1, &reply, deadline_us, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (reply->type == HAPAX__RESP_ERROR) {
        char quoted[100];

        hapax__redis_quote(quoted, sizeof(quoted), reply);
        error = hapax__fail(text, hapax__redis_node_refusal(reply),
                            "\"%.80s\" answered ROLE with: %s", node->name, quoted);
    } else if (reply->type != HAPAX__RESP_ARRAY || reply->elements == 0 ||
               !hapax__resp_is(reply->element[0], "master")) {
        error = hapax__fail(text, HAPAX_ERR_UNAVAILABLE,
                            "\"%.80s\", named by the sentinel \"%.80s\", is no primary", node->name,
                            sentinel->name);
    }
    hapax__resp_free(reply);
    if (error != HAPAX_ERR_NONE)
        hapax__redis_node_lose(node);
    return error;
}

/* Connects `primary` to the node that one sentinel names. */
static enum hapax_error follow(const struct hapax__redis_sentinels *sentinels,
                               struct hapax__redis_node *sentinel,
                               struct hapax__redis_node *primary, bool *answered,
                               int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    struct hapax__redis_address address = {.port = 0};
    enum hapax_error error = find(sentinels, sentinel, &address, answered, deadline_us, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (!primary->listed || !hapax__redis_node_is_at(primary, &address))
        hapax__redis_node_move(primary, &address);
    primary->listed = true;
    error = hapax__redis_node_connect(primary, deadline_us, text);
    return error == HAPAX_ERR_NONE ? confirm(primary, sentinel, deadline_us, text) : error;
}

void hapax__redis_sentinel_doubt(struct hapax__redis_sentinels *sentinels)
{
    struct hapax__redis_node *first = sentinels->at[0];

    assert(sentinels->count > 0);
    memmove(sentinels->at, sentinels->at + 1, (sentinels->count - 1) * sizeof(sentinels->at[0]));
    sentinels->at[sentinels->count - 1] = first;
}

enum hapax_error hapax__redis_sentinel_connect(struct hapax__redis_sentinels *sentinels,
                                               struct hapax__redis_node *primary, bool *answered,
                                               int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_UNAVAILABLE;
    bool late = false;

    assert(!primary->link);
    *answered = false;
    for (size_t left = sentinels->count; left > 0 && !late; left--) {
        char why[HAPAX_TEXT_MAX] = "";

        error = follow(sentinels, sentinels->at[0], primary, answered,
                       hapax__redis_share(deadline_us, left), why);
        late = hapax__monotonic_us() >= deadline_us;
        /* An answer from before says more than a question that the deadline cut short. */
        if (!late || text[0] == '\0')
            memcpy(text, why, sizeof(why));
        if (error == HAPAX_ERR_NONE || error == HAPAX_ERR_NOMEM)
            break;
        hapax__redis_sentinel_doubt(sentinels);
    }
    assert((error == HAPAX_ERR_NONE) == (primary->link != NULL));
    return error;
}

enum hapax_error hapax__redis_sentinel_master(struct hapax__redis_sentinels *sentinels, size_t k,
                                              struct hapax__resp **reply, int64_t deadline_us,
                                              char text[HAPAX_TEXT_MAX])
{
    const struct hapax_span args[] = {hapax_str("SENTINEL"), hapax_str("MASTER"),
                                      hapax_str(sentinels->master)};

    assert(k < sentinels->count);
    return ask(sentinels->at[k], args, 3, reply, hapax__redis_share(deadline_us, sentinels->count),
               text);
}
