/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages that were received and not released, and released messages that SQS does not know of
 * yet.
 *
 * The invariant: a delivery is in one list at most, and in no list while a call is about it. So two
 * calls about a delivery cannot overtake each other. The lists: kept (hidden, to be hidden longer
 * when due), urgent (hiding it longer failed), acked (to be deleted), changed (to be visible
 * again). A message is hidden longer at a third of its visibility, so two such calls may fail. If
 * its time is over all the same, or SQS says that the receipt is not valid any more, another
 * consumer may have the message. It is then voided.
 *
 * If SQS refuses a deletion, the message comes again, and its record says that it is done.
 * Rejected: a heartbeat per message, ten times the calls.
 */
#include "source.h"

#include "base/clock.h"
#include "base/time.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN_S    30 /* before the 12 hours are over */
#define TELL_MIN_MS 100
#define TELL_MS     5000
#define AGAIN_US    (US_PER_S / 5) /* before a failed call is repeated */
/* Deliveries due within a twelfth of the visibility go into the same call. */
#define TOGETHER 12
/* At once. The other calls are left for visibility. */
#define DELETES 8u

int hapax__sqs_longer(int64_t received_us, int64_t now_us, int visibility_s)
{
    int64_t left_s =
        HAPAX__SQS_VISIBILITY_MAX_S - MARGIN_S - (now_us - received_us + US_PER_S - 1) / US_PER_S;

    if (left_s <= 0)
        return 0;
    return left_s < visibility_s ? (int)left_s : visibility_s;
}

/* ---- lists ----------------------------------------------------------------------------- */

/* Puts a delivery into a list. The kept list is sorted by due time, which is mostly the order of
 * arrival. */
static void push(struct hapax__sqs_source *s, enum hapax__sqs_list which,
                 struct hapax__sqs_delivery *d)
{
    struct hapax__sqs_deliveries *list = &s->lists[which];
    struct hapax__sqs_delivery *before = TAILQ_LAST(list, hapax__sqs_deliveries);

    assert(d->list == HAPAX__SQS_NO_LIST && !d->busy);
    while (which == HAPAX__SQS_KEPT && before && before->extend_us > d->extend_us)
        before = TAILQ_PREV(before, hapax__sqs_deliveries, link);
    if (before)
        TAILQ_INSERT_AFTER(list, before, d, link);
    else
        TAILQ_INSERT_HEAD(list, d, link);
    d->list = which;
    s->counts[which]++;
}

static void leave(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d)
{
    if (d->list == HAPAX__SQS_NO_LIST)
        return;
    TAILQ_REMOVE(&s->lists[d->list], d, link);
    s->counts[d->list]--;
    d->list = HAPAX__SQS_NO_LIST;
}

void hapax__sqs_unready(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d)
{
    if (!d->ready)
        return;
    TAILQ_REMOVE(&s->ready, d, ready_link);
    s->ready_count--;
    d->ready = false;
}

void hapax__sqs_drop(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d)
{
    leave(s, d);
    d->over = true;
    if (!d->busy)
        free(d);
}

/* Voids a delivery: other consumers may have it. */
static void make_void(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d)
{
    leave(s, d);
    if (d->ready) {
        hapax__sqs_unready(s, d);
        hapax__sqs_drop(s, d);
        return;
    }
    d->shown.voided = true;
    s->base.voided++;
}

static void keep(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d, int64_t from_us,
                 int seconds)
{
    d->until_us = from_us + seconds * US_PER_S;
    d->extend_us = from_us + seconds * US_PER_S / 3;
    push(s, HAPAX__SQS_KEPT, d);
}

void hapax__sqs_keep(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d)
{
    d->received_us = s->now_us;
    keep(s, d, s->now_us, s->link.uri.visibility_s);
}

/* Puts the delivery into its next list now, or when the call about it has ended. */
static void tell_next(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d,
                      enum hapax__sqs_list which)
{
    leave(s, d);
    if (d->busy)
        d->then = which;
    else
        push(s, which, d);
}

void hapax__sqs_delete(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d)
{
    tell_next(s, d, HAPAX__SQS_ACKED);
}

void hapax__sqs_give_back(struct hapax__sqs_source *s, struct hapax__sqs_delivery *d, int seconds)
{
    hapax__sqs_unready(s, d);
    d->later = seconds;
    tell_next(s, d, HAPAX__SQS_CHANGED);
}

/* ---- telling --------------------------------------------------------------------------- */

static struct hapax__sqs_call *free_call(struct hapax__sqs_source *s)
{
    for (size_t i = 0; i < HAPAX__SQS_TELLS_MAX; i++)
        if (!s->tells[i].busy)
            return &s->tells[i];
    return NULL;
}

/* Puts up to ten of a list into the call. */
static void gather(struct hapax__sqs_source *s, struct hapax__sqs_call *call,
                   enum hapax__sqs_list which, int64_t due_us)
{
    struct hapax__sqs_delivery *d, *next;

    for (d = TAILQ_FIRST(&s->lists[which]); d && call->count < HAPAX__SQS_BATCH_MAX; d = next) {
        next = TAILQ_NEXT(d, link);
        if (which == HAPAX__SQS_KEPT && d->extend_us > due_us)
            return;
        leave(s, d);
        d->seconds = d->later;
        if (which == HAPAX__SQS_KEPT || which == HAPAX__SQS_URGENT) {
            d->seconds = s->now_us < d->until_us ? hapax__sqs_longer(d->received_us, s->now_us,
                                                                     s->link.uri.visibility_s)
                                                 : 0;
            if (d->seconds == 0) {
                make_void(s, d);
                continue;
            }
        }
        d->busy = true;
        call->of[call->count++] = d;
    }
}

static enum hapax__sqs_list list_of(int what)
{
    return what == HAPAX__SQS_DELETE ? HAPAX__SQS_ACKED : HAPAX__SQS_CHANGED;
}

/* Ends a delivery's part in a call. A failed call is repeated as long as it makes sense. */
static void end_one(struct hapax__sqs_source *s, int what, struct hapax__sqs_delivery *d,
                    enum hapax__sqs_kind kind, int64_t asked_us)
{
    d->busy = false;
    if (d->over) {
        free(d);
    } else if (what != HAPAX__SQS_EXTEND) {
        if (kind == HAPAX__SQS_AGAIN && s->now_us < d->until_us)
            push(s, list_of(what), d);
        else
            free(d);
    } else if (d->then != HAPAX__SQS_NO_LIST) {
        push(s, d->then, d);
    } else if (kind == HAPAX__SQS_DONE) {
        keep(s, d, asked_us, d->seconds);
    } else if (kind == HAPAX__SQS_NEVER || s->now_us >= d->until_us) {
        make_void(s, d);
    } else {
        push(s, HAPAX__SQS_URGENT, d);
    }
}

static void end_all(struct hapax__sqs_source *s, struct hapax__sqs_call *call,
                    const struct hapax__sqs_result *results)
{
    for (size_t i = 0; i < call->count; i++) {
        enum hapax__sqs_kind kind = results ? results[i].kind : HAPAX__SQS_AGAIN;

        if (kind == HAPAX__SQS_AGAIN)
            s->tell_gate_us = s->now_us + AGAIN_US;
        end_one(s, call->what, call->of[i], kind, call->begun_us);
    }
    call->count = 0;
}

/* How long the call may take: a message that is visible by then cannot be hidden longer. */
static int64_t within_ms(const struct hapax__sqs_source *s, const struct hapax__sqs_call *call)
{
    int64_t ms = TELL_MS;

    for (size_t i = 0; call->what == HAPAX__SQS_EXTEND && i < call->count; i++) {
        const struct hapax__sqs_delivery *d = call->of[i];
        int64_t left_ms = (d->until_us - s->now_us) / 1000;

        ms = left_ms < ms ? left_ms : ms;
    }
    return ms > TELL_MIN_MS ? ms : TELL_MIN_MS;
}

/* False: there was no memory for the call. No other call is sent in this turn. */
static bool send(struct hapax__sqs_source *s, struct hapax__sqs_call *call)
{
    struct hapax__json_out *body = hapax__sqs_begin(call);

    hapax__json_put(body, "{\"QueueUrl\":");
    hapax__json_put_string(body, hapax_str(s->url));
    hapax__json_put(body, ",\"Entries\":[");
    for (size_t i = 0; i < call->count; i++) {
        const struct hapax__sqs_delivery *d = call->of[i];

        hapax__json_put(body, i > 0 ? ",{\"Id\":\"" : "{\"Id\":\"");
        hapax__json_put_number(body, (int64_t)i);
        hapax__json_put(body, "\",\"ReceiptHandle\":");
        hapax__json_put_string(body, d->receipt);
        if (call->what != HAPAX__SQS_DELETE) {
            hapax__json_put(body, ",\"VisibilityTimeout\":");
            hapax__json_put_number(body, d->seconds);
        }
        hapax__json_put(body, "}");
    }
    hapax__json_put(body, "]}");
    if (!hapax__sqs_submit(&s->link, call,
                           call->what == HAPAX__SQS_DELETE ? "DeleteMessageBatch"
                                                           : "ChangeMessageVisibilityBatch",
                           within_ms(s, call), 0, false)) {
        end_all(s, call, NULL);
        return false;
    }
    s->telling[call->what]++;
    return true;
}

/* Sends one batch of a list. False: the list has nothing to send now, or all calls are under
 * way. */
static bool tell_some(struct hapax__sqs_source *s, enum hapax__sqs_what what,
                      enum hapax__sqs_list which, int64_t due_us)
{
    struct hapax__sqs_call *call = free_call(s);

    if (!call)
        return false;
    call->what = (int)what;
    call->count = 0;
    gather(s, call, which, due_us);
    if (call->count == 0)
        return false;
    return send(s, call);
}

/* Sends full batches at once. Sends a part of a batch if no other is under way, so that batches
 * fill meanwhile. */
static void tell_full(struct hapax__sqs_source *s, enum hapax__sqs_what what, size_t most)
{
    enum hapax__sqs_list which = list_of((int)what);

    while (s->counts[which] > 0 && s->telling[what] < most &&
           (s->telling[what] == 0 || s->counts[which] >= HAPAX__SQS_BATCH_MAX))
        if (!tell_some(s, what, which, 0))
            return;
}

void hapax__sqs_tell(struct hapax__sqs_source *s)
{
    const struct hapax__sqs_delivery *kept;
    int64_t along_us = s->link.uri.visibility_s * US_PER_S / TOGETHER;

    if (s->now_us < s->tell_gate_us || s->now_us < s->gate_us || s->url[0] == '\0')
        return;
    while (s->counts[HAPAX__SQS_URGENT] > 0)
        if (!tell_some(s, HAPAX__SQS_EXTEND, HAPAX__SQS_URGENT, 0))
            break;
    while ((kept = TAILQ_FIRST(&s->lists[HAPAX__SQS_KEPT])) && kept->extend_us <= s->now_us)
        if (!tell_some(s, HAPAX__SQS_EXTEND, HAPAX__SQS_KEPT, s->now_us + along_us))
            break;
    tell_full(s, HAPAX__SQS_CHANGE, HAPAX__SQS_TELLS_MAX);
    tell_full(s, HAPAX__SQS_DELETE, DELETES);
}

bool hapax__sqs_told(struct hapax__sqs_source *s, struct hapax__sqs_call *call)
{
    struct hapax__sqs_result results[HAPAX__SQS_BATCH_MAX];
    bool answered = call->call.result == HAPAX__AWS_OK;

    s->telling[call->what]--;
    if (answered)
        (void)hapax__sqs_batch(results, call->count, call->call.reply);
    end_all(s, call, answered ? results : NULL);
    return answered;
}

/* ---- when ------------------------------------------------------------------------------ */

int64_t hapax__sqs_tell_due(const struct hapax__sqs_source *s)
{
    const struct hapax__sqs_delivery *kept = TAILQ_FIRST(&s->lists[HAPAX__SQS_KEPT]);
    int64_t gate_us = s->gate_us > s->tell_gate_us ? s->gate_us : s->tell_gate_us;
    int64_t due_us = INT64_MAX;
    size_t under_way = 0;

    for (int what = HAPAX__SQS_DELETE; what <= HAPAX__SQS_EXTEND; what++)
        under_way += s->telling[what];
    if (under_way == HAPAX__SQS_TELLS_MAX)
        return INT64_MAX;
    if (s->counts[HAPAX__SQS_URGENT] > 0 ||
        (s->counts[HAPAX__SQS_ACKED] > 0 && s->telling[HAPAX__SQS_DELETE] == 0) ||
        (s->counts[HAPAX__SQS_CHANGED] > 0 && s->telling[HAPAX__SQS_CHANGE] == 0))
        due_us = 0;
    else if (kept)
        due_us = kept->extend_us;
    return due_us < gate_us ? gate_us : due_us;
}

bool hapax__sqs_all_told(const struct hapax__sqs_source *s)
{
    return s->counts[HAPAX__SQS_ACKED] == 0 && s->counts[HAPAX__SQS_CHANGED] == 0 &&
           s->telling[HAPAX__SQS_DELETE] == 0 && s->telling[HAPAX__SQS_CHANGE] == 0 &&
           s->telling[HAPAX__SQS_EXTEND] == 0;
}

void hapax__sqs_forget(struct hapax__sqs_source *s)
{
    struct hapax__sqs_delivery *d;

    for (size_t i = 0; i < HAPAX__SQS_TELLS_MAX; i++)
        for (size_t j = 0; s->tells[i].busy && j < s->tells[i].count; j++) {
            d = s->tells[i].of[j];
            leave(s, d);
            hapax__sqs_unready(s, d);
            free(d);
        }
    for (int which = HAPAX__SQS_KEPT; which < HAPAX__SQS_LISTS; which++)
        while ((d = TAILQ_FIRST(&s->lists[which]))) {
            hapax__sqs_unready(s, d);
            leave(s, d);
            free(d);
        }
    assert(TAILQ_EMPTY(&s->ready));
}
