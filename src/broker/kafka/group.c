/* SPDX-License-Identifier: Apache-2.0
 *
 * The source as a member of its group: which partitions it owns, what it commits of them, and how
 * it gives them up.
 *
 * The invariant: a commit names only partitions that are ours, and only offsets below which every
 * message is done. A revoked partition is given up in three steps. First, no more of its messages
 * are handed out. Then there is a limited time in which messages in hand are released and
 * committed. In the end the messages that are left are voided (the broker gives them to the next
 * owner), and the partition is given up. A lost partition has another owner already: its messages
 * are voided at once, and nothing is committed.
 *
 * librdkafka reports a rebalance by a callback. The callback only notes a revocation; the pump
 * calls unassign later. Until then librdkafka waits, and heartbeats go on. Rejected: librdkafka's
 * event API. It would make every message an event, and tell nothing more. Rejected: waiting inside
 * the callback. That stops the loop, which must run for the handlers to end.
 *
 * Commits are sent here, one at a time, with their offsets. Rejected: rd_kafka_offsets_store() and
 * the automatic commit. They commit at times of their own, and after a partition was given up.
 *
 * No commit is sent while the group is being joined. The broker answers the requests of a
 * connection in order, so the commit would arrive behind the join, when the group has a new
 * generation. The broker would refuse it, and librdkafka would take all partitions for lost. Only
 * the requests show that a join begins: with the cooperative protocol no callback reports it.
 */
#include "source.h"

#include "base/clock.h"
#include "base/time.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define COMMIT_EVERY (1000 * US_PER_MS)
#define COMMIT_AGAIN (200 * US_PER_MS) /* after a refused commit */
/* How long to wait for commits of a partition that is given up. */
#define COMMIT_WAIT (5000 * US_PER_MS)
#define ASK_EVERY   (1000 * US_PER_MS) /* while the broker is away */
/* How long to wait for an answer after a connection was lost. */
#define DOUBT        (1000 * US_PER_MS)
#define LAG_EVERY    (1000 * US_PER_MS)
#define LEARN_MAX_MS 2000
/* The longest time that commits wait for the group to be joined. */
#define JOIN_MAX  (60000 * US_PER_MS)
#define SYNC_MAX  (2000 * US_PER_MS)
#define JOIN_SOON (20 * US_PER_MS) /* where a join may follow at once */

#define MENDED 0x02030000 /* librdkafka 2.3 */

/* The numbers of requests in Kafka's protocol. */
#define JOIN_GROUP 11
#define HEARTBEAT  12
#define SYNC_GROUP 14

void hapax__kafka_seen(struct hapax__kafka_source *s, bool connected)
{
    if (connected && !s->base.connected) {
        s->base.reconnects += s->seen;
        s->seen = true;
        s->base.text[0] = '\0';
    }
    s->doubt_us = 0;
    s->base.connected = connected;
}

/* A connection also breaks if one of several brokers goes down, and nothing of ours is lost. Only
 * the coordinator's answer decides. */
void hapax__kafka_doubt(struct hapax__kafka_source *s)
{
    if (!s->base.connected || s->doubt_us != 0)
        return;
    s->doubt_us = hapax__monotonic_us() + DOUBT;
    s->ask_us = 0;
}

/* ---- partitions -------------------------------------------------------------------------- */

static struct hapax__kafka_part *find(const struct hapax__kafka_source *s,
                                      const rd_kafka_topic_partition_t *named)
{
    for (struct hapax__kafka_part *part = s->parts; part; part = part->after_it)
        if (part->number == named->partition &&
            strcmp(hapax__kafka_topic_of(s, part), named->topic) == 0)
            return part;
    return NULL;
}

static void part_new(struct hapax__kafka_source *s, const rd_kafka_topic_partition_t *named)
{
    static const uint64_t one = 1;
    struct hapax__kafka_part *part = find(s, named);

    assert(!part);
    part = calloc(1, sizeof(*part));
    if (!part)
        return; /* another member fetches it, and sees its lag */
    part->number = named->partition;
    part->retry = strcmp(named->topic, s->uri.topic) != 0;
    part->committed = part->window.next = -1;
    part->again_end = &part->again;
    /* Messages stay in the partition's own queue and are taken as there is room. Its end and errors
     * stay behind them in that queue. This is set before the assignment, so that no message goes to
     * the common queue. */
    part->queue = rd_kafka_queue_get_partition(s->rk, named->topic, named->partition);
    assert(part->queue);
    rd_kafka_queue_forward(part->queue, NULL);
    rd_kafka_queue_io_event_enable(part->queue, s->wake, &one, sizeof(one));
    part->after_it = s->parts;
    s->parts = part;
}

/* Voids the messages that are lent, which the loop must still release. Frees the others. */
static void part_void(struct hapax__kafka_source *s, struct hapax__kafka_part *part)
{
    struct hapax__kafka_part **link = &s->parts;
    struct hapax__kafka_item *item;
    uint64_t index = 0;

    while ((item = hapax__kafka_window_item(&part->window, &index))) {
        item->part = NULL;
        if (item->lent) {
            item->delivered.voided = true;
            s->base.voided++;
        } else {
            hapax__kafka_item_free(item);
        }
    }
    if (part->first)
        hapax__kafka_item_free(part->first);
    if (part->raw)
        rd_kafka_message_destroy(part->raw);
    hapax__kafka_window_release(&part->window);
    rd_kafka_queue_io_event_enable(part->queue, -1, NULL, 0);
    rd_kafka_queue_destroy(part->queue);
    while (*link != part)
        link = &(*link)->after_it;
    *link = part->after_it;
    s->turn = NULL;
    free(part);
}

void hapax__kafka_void_all(struct hapax__kafka_source *s)
{
    while (s->parts)
        part_void(s, s->parts);
    if (s->leaving)
        rd_kafka_topic_partition_list_destroy(s->leaving);
    s->leaving = NULL;
}

/* ---- joining ------------------------------------------------------------------------------- */

static void may_join(struct hapax__kafka_source *s)
{
    int64_t join_us = atomic_load(&s->join_us), soon_us = hapax__monotonic_us() + JOIN_SOON;

    while (join_us < soon_us && !atomic_compare_exchange_weak(&s->join_us, &join_us, soon_us))
        continue;
}

static rd_kafka_resp_err_t on_request(rd_kafka_t *rk, int fd, const char *name, int32_t id,
                                      int16_t request, int16_t version, int32_t number, size_t size,
                                      void *opaque)
{
    struct hapax__kafka_source *s = opaque;

    (void)rk, (void)fd, (void)name, (void)id, (void)version, (void)number, (void)size;
    if (request == JOIN_GROUP)
        atomic_store(&s->join_us, hapax__monotonic_us() + JOIN_MAX);
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t on_response(rd_kafka_t *rk, int fd, const char *name, int32_t id,
                                       int16_t request, int16_t version, int32_t number,
                                       size_t size, int64_t took_us, rd_kafka_resp_err_t error,
                                       void *opaque)
{
    struct hapax__kafka_source *s = opaque;

    (void)rk, (void)fd, (void)name, (void)id, (void)version, (void)number, (void)size;
    (void)took_us;
    if (request == SYNC_GROUP || (request == JOIN_GROUP && error))
        atomic_store(&s->join_us, hapax__monotonic_us() + JOIN_SOON);
    else if (request == JOIN_GROUP) /* SYNC_GROUP follows the answer, unless we leave */
        atomic_store(&s->join_us, hapax__monotonic_us() + SYNC_MAX);
    else if (request == HEARTBEAT)
        may_join(s);
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t on_new(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *opaque,
                                  char *why, size_t size)
{
    (void)conf, (void)why, (void)size;
    (void)rd_kafka_interceptor_add_on_request_sent(rk, "hapax", on_request, opaque);
    (void)rd_kafka_interceptor_add_on_response_received(rk, "hapax", on_response, opaque);
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

void hapax__kafka_group_listen(struct hapax__kafka_source *s, rd_kafka_conf_t *conf)
{
    atomic_store(&s->join_us, 0);
    (void)rd_kafka_conf_interceptor_add_on_new(conf, "hapax", on_new, s);
}

/* ---- commits ------------------------------------------------------------------------------- */

static bool uncommitted(const struct hapax__kafka_part *part)
{
    return part->window.next > part->committed;
}

bool hapax__kafka_uncommitted(const struct hapax__kafka_source *s)
{
    for (const struct hapax__kafka_part *part = s->parts; part; part = part->after_it)
        if (uncommitted(part))
            return true;
    return false;
}

static bool may_commit(struct hapax__kafka_source *s, int64_t now_us)
{
    return !s->committing && now_us >= atomic_load(&s->join_us) && !rd_kafka_assignment_lost(s->rk);
}

static void commit_list(struct hapax__kafka_source *s, bool all)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(16);

    for (const struct hapax__kafka_part *part = s->parts; part; part = part->after_it) {
        int64_t offset = uncommitted(part) ? part->window.next : part->committed;

        if (offset >= 0 && (all || uncommitted(part)))
            rd_kafka_topic_partition_list_add(list, hapax__kafka_topic_of(s, part), part->number)
                ->offset = offset;
    }
    s->committing = list->cnt > 0 && rd_kafka_commit_queue(s->rk, list, s->replies, NULL, NULL) ==
                                         RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_topic_partition_list_destroy(list);
}

void hapax__kafka_commit(struct hapax__kafka_source *s, int64_t now_us)
{
    if (!may_commit(s, now_us))
        return;
    s->commit_us = now_us + COMMIT_EVERY;
    commit_list(s, false);
}

/* Takes a commit's answer. It is true of a partition that is no longer ours, or is ours again,
 * too. */
static void committed(struct hapax__kafka_source *s, rd_kafka_event_t *event)
{
    const rd_kafka_topic_partition_list_t *list = rd_kafka_event_topic_partition_list(event);
    bool refused = rd_kafka_event_error(event) != RD_KAFKA_RESP_ERR_NO_ERROR;

    s->committing = false;
    for (int i = 0; list && !refused && i < list->cnt; i++) {
        struct hapax__kafka_part *part = find(s, &list->elems[i]);

        if (list->elems[i].err != RD_KAFKA_RESP_ERR_NO_ERROR)
            refused = true;
        else if (part && part->committed < list->elems[i].offset)
            part->committed = list->elems[i].offset;
    }
    if (refused) {
        s->not_committed++;
        s->commit_us = hapax__monotonic_us() + COMMIT_AGAIN;
    } else {
        hapax__kafka_seen(s, true);
    }
}

/* ---- what the broker knows ------------------------------------------------------------------- */

/* Asks what the group has committed of new partitions. The lag needs it. */
static void learn(struct hapax__kafka_source *s, const rd_kafka_topic_partition_list_t *from)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_copy(from);

    if (list->cnt > 0 && !rd_kafka_committed(s->rk, list, LEARN_MAX_MS)) {
        for (int i = 0; i < list->cnt; i++) {
            struct hapax__kafka_part *part = find(s, &list->elems[i]);

            if (part && !list->elems[i].err && part->committed < list->elems[i].offset)
                part->committed = list->elems[i].offset;
        }
    }
    rd_kafka_topic_partition_list_destroy(list);
}

/* Closing sends rebalances here, too. librdkafka waits for ever until each is answered. */
void hapax__kafka_replies(struct hapax__kafka_source *s, int wait_ms)
{
    rd_kafka_event_t *event;

    while ((event = rd_kafka_queue_poll(s->replies, wait_ms))) {
        wait_ms = 0;
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_OFFSET_COMMIT)
            committed(s, event);
        else if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_REBALANCE)
            hapax__kafka_rebalanced(s->rk, rd_kafka_event_error(event),
                                    rd_kafka_event_topic_partition_list(event), s);
        rd_kafka_event_destroy(event);
    }
}

/* The messages that wait in a partition. Before the first commit, auto.offset.reset decides whether
 * all of them wait or none; all are counted. */
static int64_t lag_of(const struct hapax__kafka_source *s, const struct hapax__kafka_part *part)
{
    int64_t low = -1, high = -1;
    int64_t from = part->window.next > part->committed ? part->window.next : part->committed;

    if (rd_kafka_get_watermark_offsets(s->rk, hapax__kafka_topic_of(s, part), part->number, &low,
                                       &high) != RD_KAFKA_RESP_ERR_NO_ERROR ||
        high < 0)
        return -1;
    if (from < low)
        from = low > 0 ? low : 0;
    return high > from ? high - from : 0;
}

static void count_lag(struct hapax__kafka_source *s, int64_t now_us)
{
    int64_t sum = 0;

    if (now_us < s->lag_us)
        return;
    s->lag_us = now_us + LAG_EVERY;
    for (const struct hapax__kafka_part *part = s->parts; part && sum >= 0; part = part->after_it) {
        int64_t lag = lag_of(s, part);

        sum = lag < 0 ? -1 : sum + lag;
    }
    s->base.lag = s->base.connected ? sum : -1;
}

/* ---- rebalancing ----------------------------------------------------------------------------- */

static void say_error(struct hapax__kafka_source *s, rd_kafka_error_t *error)
{
    if (!error)
        return;
    snprintf(s->base.text, sizeof(s->base.text), "the group's rebalance failed: %s",
             rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
}

static void give_up(struct hapax__kafka_source *s, const rd_kafka_topic_partition_list_t *list)
{
    for (int i = 0; i < list->cnt; i++) {
        struct hapax__kafka_part *part = find(s, &list->elems[i]);

        if (part)
            part_void(s, part);
    }
    may_join(s);
    say_error(s, rd_kafka_incremental_unassign(s->rk, list));
}

static void give_up_leaving(struct hapax__kafka_source *s)
{
    rd_kafka_topic_partition_list_t *list = s->leaving;

    if (!list)
        return;
    s->leaving = NULL;
    give_up(s, list);
    rd_kafka_topic_partition_list_destroy(list);
}

static void revoked(struct hapax__kafka_source *s, const rd_kafka_topic_partition_list_t *list)
{
    give_up_leaving(s);
    if (s->closing || s->broken || rd_kafka_assignment_lost(s->rk)) {
        give_up(s, list);
        return;
    }
    for (int i = 0; i < list->cnt; i++) {
        struct hapax__kafka_part *part = find(s, &list->elems[i]);

        if (part)
            part->leaving = true;
    }
    s->leaving = rd_kafka_topic_partition_list_copy(list);
    s->leave_until_us = hapax__monotonic_us() + s->leave_max_us;
    s->commit_us = 0;
}

void hapax__kafka_rebalanced(rd_kafka_t *rk, rd_kafka_resp_err_t why,
                             rd_kafka_topic_partition_list_t *list, void *opaque)
{
    struct hapax__kafka_source *s = opaque;

    if (why == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
        s->assigned = true;
        for (int i = 0; !s->closing && i < list->cnt; i++)
            part_new(s, &list->elems[i]);
        may_join(s);
        say_error(s, rd_kafka_incremental_assign(rk, list));
        hapax__kafka_seen(s, true);
        if (!s->closing)
            learn(s, list);
    } else if (why == RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS) {
        revoked(s, list);
    } else {
        snprintf(s->base.text, sizeof(s->base.text), "the group's rebalance failed: %s",
                 rd_kafka_err2str(why));
        hapax__kafka_void_all(s);
        (void)rd_kafka_assign(rk, NULL);
    }
}

/* Looks at the revoked partitions: is a message in hand, or done and not committed? */
static void look_at_leaving(const struct hapax__kafka_source *s, bool *in_hand, bool *dirty)
{
    *in_hand = *dirty = false;
    for (const struct hapax__kafka_part *part = s->parts; part; part = part->after_it) {
        *in_hand = *in_hand || (part->leaving && part->lent > 0);
        *dirty = *dirty || (part->leaving && uncommitted(part));
    }
}

static void leave(struct hapax__kafka_source *s, int64_t now_us)
{
    bool in_hand, dirty;

    if (!s->leaving)
        return;
    look_at_leaving(s, &in_hand, &dirty);
    if (!rd_kafka_assignment_lost(s->rk)) {
        if (in_hand && now_us < s->leave_until_us)
            return;
        if ((dirty || s->committing) && now_us < s->leave_until_us + COMMIT_WAIT)
            return;
    }
    give_up_leaving(s);
}

/* ---- leaving --------------------------------------------------------------------------------- */

/* Sets s->stillborn. librdkafka before 2.3 ends the process (an assertion in the sticky assignor,
 * its issue 4312) if a client is destroyed that joined the group and never had an assignment. */
void hapax__kafka_group_stillborn(struct hapax__kafka_source *s)
{
    s->stillborn = !s->assigned && rd_kafka_version() < MENDED &&
                   strcmp(rd_kafka_rebalance_protocol(s->rk), "NONE") != 0;
}

static bool owns(struct hapax__kafka_source *s)
{
    rd_kafka_topic_partition_list_t *list = NULL;
    bool some = rd_kafka_assignment(s->rk, &list) == RD_KAFKA_RESP_ERR_NO_ERROR && list->cnt > 0;

    if (list)
        rd_kafka_topic_partition_list_destroy(list);
    return some;
}

static bool is_static(const struct hapax__kafka_source *s)
{
    char id[HAPAX_TEXT_MAX];
    size_t size = sizeof(id);

    return rd_kafka_conf_get(s->uri.conf, "group.instance.id", id, &size) == RD_KAFKA_CONF_OK &&
           size > 1;
}

static int wait_of(int64_t until_us)
{
    int64_t left_us = until_us - hapax__monotonic_us();

    return left_us > 0 ? (int)(left_us / US_PER_MS < 100 ? left_us / US_PER_MS + 1 : 100) : 0;
}

/* Unsubscribes before closing. librdkafka leaves the group in every state only after an
 * unsubscribe, which it delays until a join has ended. Otherwise a member that closes during a
 * join, without a partition, leaves without a word, and the group waits until its session ends. A
 * static member does not unsubscribe: its partitions must be kept. */
static void unsubscribe(struct hapax__kafka_source *s, int64_t until_us)
{
    int wait_ms = 0;

    if (is_static(s))
        return;
    (void)rd_kafka_unsubscribe(s->rk);
    do {
        rd_kafka_message_t *message = rd_kafka_consumer_poll(s->rk, wait_ms);

        if (message)
            rd_kafka_message_destroy(message);
        wait_ms = wait_of(until_us);
    } while (wait_ms > 0 && (owns(s) || hapax__monotonic_us() < atomic_load(&s->join_us)));
}

bool hapax__kafka_group_leave(struct hapax__kafka_source *s, int64_t until_us)
{
    rd_kafka_error_t *error;

    s->closing = true;
    give_up_leaving(s);
    hapax__kafka_void_all(s);
    unsubscribe(s, until_us);
    hapax__kafka_group_stillborn(s);
    error = rd_kafka_consumer_close_queue(s->rk, s->replies);
    if (error) {
        rd_kafka_error_destroy(error);
        return true;
    }
    while (!rd_kafka_consumer_closed(s->rk) && hapax__monotonic_us() < until_us)
        hapax__kafka_replies(s, wait_of(until_us));
    return rd_kafka_consumer_closed(s->rk) != 0;
}

/* ---- the pump -------------------------------------------------------------------------------- */

void hapax__kafka_group_pump(struct hapax__kafka_source *s, int64_t now_us)
{
    hapax__kafka_replies(s, 0);
    if (now_us >= s->commit_us && hapax__kafka_uncommitted(s))
        hapax__kafka_commit(s, now_us);
    leave(s, now_us);
    if (now_us >= s->ask_us && (!s->base.connected || s->doubt_us != 0)) {
        s->ask_us = now_us + ASK_EVERY;
        /* The same offsets once more, to see whether the broker answers. */
        if (may_commit(s, now_us))
            commit_list(s, true);
    }
    if (s->doubt_us != 0 && now_us >= s->doubt_us)
        hapax__kafka_seen(s, false);
    count_lag(s, now_us);
}

int64_t hapax__kafka_group_due(const struct hapax__kafka_source *s)
{
    int64_t due_us = s->lag_us, join_us = atomic_load(&s->join_us);
    int64_t commit_us = s->commit_us > join_us ? s->commit_us : join_us;

    if (!s->committing && hapax__kafka_uncommitted(s) && commit_us < due_us)
        due_us = commit_us;
    if ((!s->base.connected || s->doubt_us != 0) && s->ask_us < due_us)
        due_us = s->ask_us;
    if (s->doubt_us != 0 && s->doubt_us < due_us)
        due_us = s->doubt_us;
    return due_us;
}
