/* SPDX-License-Identifier: Apache-2.0
 *
 * The network: it carries ops to the store and answers back. It may lose either, deliver a request
 * twice, deliver it long after the door stopped waiting, and change the order. A door that gets no
 * reply in time reads INDETERMINATE. Only a store that refuses the connection is UNAVAILABLE.
 */
#include "sim.h"

#include <assert.h>
#include <string.h>

static int64_t delay_us(struct sim *s)
{
    if (!sim_chance(s, s->faults.slow))
        return sim_between(s, 100, 2 * MS);
    s->faults_count++;
    return sim_between(s, MS, 2 * s->reply_wait_us);
}

static struct message *new_message(struct sim *s, const struct hapax_op *op, int call, uint32_t ask)
{
    for (int i = 0; i < MSGS_MAX; i++) {
        struct message *msg = &s->msgs[i];

        if (msg->used)
            continue;
        msg->used = true;
        msg->op = *op;
        msg->call = call;
        msg->ask = ask;
        msg->net_epoch = s->store.net_epoch;
        return msg;
    }
    sim_fail(s, "d bounded", "more than %d messages at once", MSGS_MAX);
    return NULL;
}

void network_copy(struct sim *s, int n)
{
    const struct message *msg = &s->msgs[n];
    struct message *copy = new_message(s, &msg->op, msg->call, msg->ask);

    if (copy)
        sim_at(s, s->now_us, EVENT_REQUEST, (int)(copy - s->msgs), 0);
}

static void deliver(struct sim *s, const struct hapax_op *op, int call, uint32_t ask,
                    int64_t after_us)
{
    struct message *msg = new_message(s, op, call, ask);

    if (msg)
        sim_at(s, s->now_us + after_us, EVENT_REQUEST, (int)(msg - s->msgs), 0);
}

/* Answers an op that the store has not seen. */
static void refuse(struct sim *s, const struct hapax_op *op, int call, uint32_t ask,
                   enum hapax_error error)
{
    struct message *msg = new_message(s, op, call, ask);

    if (!msg)
        return;
    msg->op.verdict = HAPAX_NO_VERDICT;
    msg->op.error = error;
    sim_at(s, s->now_us + sim_between(s, 50, MS), EVENT_REPLY, (int)(msg - s->msgs), 0);
}

static void carry(struct sim *s, const struct hapax_op *op, int call, uint32_t ask)
{
    if (sim_chance(s, s->faults.request_lost)) {
        sim_fault(s, MARK_request_lost);
        TRACE(s, "        net: request of c%d lost", call);
        return;
    }
    if (sim_chance(s, s->faults.late)) {
        sim_fault(s, MARK_request_late);
        deliver(s, op, call, ask, s->reply_wait_us + sim_between(s, 0, 3 * s->lease_ms * MS));
        return;
    }
    deliver(s, op, call, ask, delay_us(s));
    if (sim_chance(s, s->faults.twice)) {
        sim_fault(s, MARK_request_twice);
        deliver(s, op, call, ask,
                sim_chance(s, 500) ? delay_us(s) : sim_between(s, 0, 3 * s->lease_ms * MS));
    }
}

void network_ask(struct sim *s, int n)
{
    struct call *call = &s->calls[n];
    const struct hapax_op *op = &call->flow.op;

    assert(!call->asking);
    call->ask++;
    call->asks++;
    call->asking = true;
    if (s->store.down) {
        refuse(s, op, n, call->ask, HAPAX_ERR_UNAVAILABLE);
        return;
    }
    if (sim_chance(s, s->faults.hard)) {
        sim_fault(s, MARK_hard_error);
        refuse(s, op, n, call->ask, HAPAX_ERR_CORRUPT);
        return;
    }
    carry(s, op, n, call->ask);
    sim_at(s, s->now_us + s->reply_wait_us, EVENT_TIMEOUT, n, call->ask);
}

void network_send(struct sim *s, const struct hapax_op *op)
{
    if (!s->store.down)
        carry(s, op, -1, 0);
}

void network_request(struct sim *s, int n)
{
    struct message *msg = &s->msgs[n];

    /* The store has stopped since: what its connections carried is gone. */
    if (s->store.down || msg->net_epoch != s->store.net_epoch) {
        msg->used = false;
        return;
    }
    store_judge(s, &msg->op, msg->call, msg->ask);
    if (msg->call >= 0 && sim_chance(s, s->faults.reply_lost)) {
        sim_fault(s, MARK_reply_lost);
        TRACE(s, "        net: reply to c%d lost", msg->call);
        msg->call = -1;
    }
    if (msg->call < 0) {
        msg->used = false;
        return;
    }
    sim_at(s, s->now_us + delay_us(s), EVENT_REPLY, n, 0);
}

static void borrow(struct message *msg, struct hapax_span *span, size_t at)
{
    assert(span->len <= TEXT_LEN);
    if (span->len > 0)
        memcpy(msg->bytes + at, span->ptr, span->len);
    span->ptr = msg->bytes + at;
}

void network_reply(struct sim *s, int n)
{
    struct message *msg = &s->msgs[n];
    struct call *call = &s->calls[msg->call];

    if (call->state == CALL_LIVE && call->asking && call->ask == msg->ask) {
        call->flow.op = msg->op;
        borrow(msg, &call->flow.op.record.outcome.headers, 0);
        borrow(msg, &call->flow.op.record.outcome.body, TEXT_LEN);
        door_told(s, msg->call);
        /* Spoils the answer's memory: a flow that still reads it reads this. */
        memset(msg->bytes, 0xee, sizeof(msg->bytes));
    }
    msg->used = false;
}
