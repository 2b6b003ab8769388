/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages from an SQS queue, by long polls. The invariant: a message in hand is hidden from other
 * consumers (visibility.c). A message that was received, but cannot be taken any more, is returned
 * at once.
 *
 * Polls ask for no more messages than there is room for. One poll waits while the queue is empty.
 * While polls bring messages, more polls are sent at once. SQS has no connection. The source counts
 * as connected from its first answered poll, which does not wait. The source counts as away when a
 * call fails after all its tries. That voids no message in hand: each stays hidden until its time
 * is over.
 *
 * A poll that is given up may still be answered. Its messages are then hidden for a while, but not
 * lost. So the end waits for polls as long as it may. If the process dies, such messages come again
 * when their visibility is over.
 *
 * Rejected: short polls, which find only a part of the messages and are paid for each; a thread per
 * poll.
 */
#include "source.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"
#include "base/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define COUNT_US        (5 * US_PER_S) /* between two questions how many messages wait */
#define COUNT_SOON_US   (US_PER_S / 2) /* the same, where none came and some should */
#define COUNT_DENIED_US (60 * US_PER_S)
#define COUNT_MS        5000
#define OVER_LIMIT_US   (5 * US_PER_S)
#define REFUSED_US      US_PER_S
#define PAUSE_MIN_US    (US_PER_S / 10)
#define PAUSE_MAX_US    (2 * US_PER_S)
#define POLL_TRY_MS     8000 /* plus the time that a poll waits */
#define POLL_WORTH      10u /* messages of one poll */

static struct hapax__sqs_source *of(struct hapax__source *source)
{
    return (struct hapax__sqs_source *)source;
}

/* ---- opening --------------------------------------------------------------------------- */

static enum hapax_error check_order(const struct hapax__sqs_source *s,
                                    const struct hapax_consumer *consumer,
                                    char text[HAPAX_TEXT_MAX])
{
    if (consumer->order == HAPAX_ORDER_PARTITION)
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED, "order: SQS has no partitions");
    if (consumer->order == HAPAX_ORDER_KEY && !hapax__sqs_is_fifo(s->link.uri.queue))
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                           "order: only queues whose names end in .fifo have one to keep");
    return HAPAX_ERR_NONE;
}

static enum hapax_error source_open(struct hapax__source **out,
                                    const struct hapax_consumer *consumer,
                                    char text[HAPAX_TEXT_MAX])
{
    struct hapax__sqs_source *s = calloc(1, sizeof(*s));
    uint32_t in_hand_max =
        consumer->in_hand_max > 0 ? consumer->in_hand_max : consumer->concurrency * 4;
    uint32_t spare = in_hand_max > consumer->concurrency ? in_hand_max - consumer->concurrency : 0;
    enum hapax_error error;

    *out = NULL;
    if (!s)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot consume: out of memory");
    TAILQ_INIT(&s->ready);
    for (int i = 0; i < HAPAX__SQS_LISTS; i++)
        TAILQ_INIT(&s->lists[i]);
    error = hapax__sqs_link_open(&s->link, consumer->from,
                                 HAPAX__SQS_POLLS_MAX + HAPAX__SQS_TELLS_MAX + 1, text);
    if (error == HAPAX_ERR_NONE && s->link.uri.queue[0] == '\0')
        error = hapax__fail(text, HAPAX_ERR_INVALID,
                            "the SQS URI is wrong: it names no queue, as "
                            "sqs://eu-central-1/orders");
    if (error == HAPAX_ERR_NONE)
        error = check_order(s, consumer, text);
    if (error != HAPAX_ERR_NONE) {
        hapax__sqs_link_close(&s->link);
        free(s);
        return error;
    }
    s->base.type = &hapax__source_sqs;
    s->base.lag = -1;
    s->base.name = s->base.group = s->link.uri.queue;
    s->ordered = consumer->order != HAPAX_ORDER_NONE && hapax__sqs_is_fifo(s->link.uri.queue);
    s->worth = spare / 2 + 1 < POLL_WORTH ? spare / 2 + 1 : POLL_WORTH;
    s->wanted = 1;
    *out = &s->base;
    return HAPAX_ERR_NONE;
}

/* Names NAME-dead, and NAME-dead.fifo for NAME.fifo: SQS takes no other dots. */
static void name_letters(const struct hapax__source *source, char *out, size_t size,
                         const char *what)
{
    const char *name = source->name;
    bool fifo = hapax__sqs_is_fifo(name);

    (void)snprintf(out, size, "%.*s-%s%s",
                   (int)(strlen(name) - (fifo ? strlen(HAPAX__SQS_FIFO) : 0)), name, what,
                   fifo ? HAPAX__SQS_FIFO : "");
}

/* ---- whether it works ------------------------------------------------------------------- */

static void lose(struct hapax__sqs_source *s, const char *why)
{
    int64_t pause_us = PAUSE_MIN_US;

    for (unsigned i = 0; i < s->failures && pause_us < PAUSE_MAX_US; i++)
        pause_us *= 2;
    s->failures++;
    s->gate_us = s->now_us + (pause_us < PAUSE_MAX_US ? pause_us : PAUSE_MAX_US);
    s->base.connected = false;
    (void)hapax__fail(s->base.text, HAPAX_ERR_NONE, "cannot take from queue \"%s\": %.150s",
                      s->link.uri.queue, why);
}

static void works(struct hapax__sqs_source *s)
{
    s->failures = 0;
    s->gate_us = 0;
    if (s->base.connected)
        return;
    s->base.connected = true;
    s->base.reconnects += s->was_connected;
    s->was_connected = true;
}

static void refuse(struct hapax__sqs_source *s, const struct hapax__sqs_call *call)
{
    const char *queue = s->link.uri.queue;

    s->base.connected = false;
    s->error = HAPAX_ERR_REFUSED;
    s->gate_us = s->now_us + REFUSED_US;
    s->url[0] = '\0';
    if (hapax__sqs_refusal(call) == HAPAX__SQS_GONE)
        (void)hapax__fail(s->base.text, HAPAX_ERR_NONE, "queue \"%s\" %s in %s", queue,
                          s->was_connected ? "is no longer" : "does not exist", s->link.uri.region);
    else
        (void)hapax__fail(s->base.text, HAPAX_ERR_NONE, "queue \"%s\" may not be used: %s: %.120s",
                          queue, call->call.operation, call->call.text);
}

/* A call failed without which no message can be taken. What is wrong from the beginning does not
 * mend by itself. */
static void failed(struct hapax__sqs_source *s, const struct hapax__sqs_call *call)
{
    bool refused = call->call.result == HAPAX__AWS_REFUSED;

    if (refused && strcmp(call->call.error, "OverLimit") == 0) {
        s->poll_gate_us = s->now_us + OVER_LIMIT_US;
        s->wanted = 1;
        s->base.connected = false;
        (void)hapax__fail(s->base.text, HAPAX_ERR_NONE,
                          "queue \"%s\" has as many messages in flight as SQS allows (OverLimit): "
                          "fewer --in-hand-max, or fewer consumers",
                          s->link.uri.queue);
    } else if (hapax__sqs_refusal(call) != HAPAX__SQS_OTHER || (refused && !s->was_connected)) {
        refuse(s, call);
    } else {
        lose(s, call->call.text);
    }
}

/* ---- asking ---------------------------------------------------------------------------- */

static void ask_url(struct hapax__sqs_source *s)
{
    if (s->ask.busy)
        return;
    s->ask.what = HAPAX__SQS_ASK_URL;
    if (!hapax__sqs_ask_url(&s->link, &s->ask, s->link.uri.queue))
        lose(s, "out of memory");
}

static void take_url(struct hapax__sqs_source *s, const struct hapax__sqs_call *call)
{
    if (call->call.result != HAPAX__AWS_OK)
        failed(s, call);
    else if (!hapax__sqs_url(s->url, call))
        lose(s, "its URL cannot be read");
}

static void ask_count(struct hapax__sqs_source *s)
{
    struct hapax__json_out *body;

    if (s->ask.busy || s->closing || s->now_us < s->count_us || !s->was_connected)
        return;
    s->count_us = s->now_us + COUNT_US;
    s->ask.what = HAPAX__SQS_COUNT;
    body = hapax__sqs_begin(&s->ask);
    hapax__json_put(body, "{\"QueueUrl\":");
    hapax__json_put_string(body, hapax_str(s->url));
    hapax__json_put(body, ",\"AttributeNames\":[\"ApproximateNumberOfMessages\"]}");
    (void)hapax__sqs_submit(&s->link, &s->ask, "GetQueueAttributes", COUNT_MS, 0, false);
}

/* Takes the count of waiting messages. The call also shows, while a poll waits, that SQS is away or
 * back. But a missing right to count harms nobody. */
static void take_count(struct hapax__sqs_source *s, const struct hapax__sqs_call *call)
{
    struct hapax_span root, value;
    char text[16];
    uint64_t lag;

    s->base.lag = -1;
    if (call->call.result == HAPAX__AWS_REFUSED) {
        s->count_us = s->now_us + COUNT_DENIED_US;
        return;
    }
    if (call->call.result != HAPAX__AWS_OK) {
        lose(s, call->call.text);
        return;
    }
    if (hapax__sqs_read(&root, call->call.reply) &&
        hapax__raw_member(&value, root, "Attributes.ApproximateNumberOfMessages") &&
        hapax__raw_copy(text, sizeof(text), value) &&
        hapax__number_parse(&lag, text, strlen(text), UINT32_MAX))
        s->base.lag = (int64_t)lag;
    if (s->now_us >= s->poll_gate_us)
        works(s);
}

/* ---- polling --------------------------------------------------------------------------- */

static bool may_poll(const struct hapax__sqs_source *s)
{
    size_t expected = s->asked + s->ready_count, most = s->base.connected ? s->wanted : 1;

    return !s->closing && s->polling < most && s->room >= expected + s->worth;
}

static struct hapax__sqs_call *free_poll(struct hapax__sqs_source *s)
{
    for (size_t i = 0; i < HAPAX__SQS_POLLS_MAX; i++)
        if (!s->polls[i].busy)
            return &s->polls[i];
    return NULL;
}

/* With the same attempt id a FIFO queue gives the messages of a lost answer again. Otherwise their
 * groups would wait until the messages are visible. */
static void put_attempt(struct hapax__json_out *body)
{
    uint8_t random[16];
    char text[2 * sizeof(random) + 1];

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return;
    *hapax__hex(text, random, sizeof(random)) = '\0';
    hapax__json_put(body, ",\"ReceiveRequestAttemptId\":");
    hapax__json_put_string(body, hapax_str(text));
}

static bool poll_once(struct hapax__sqs_source *s)
{
    struct hapax__sqs_call *call = free_poll(s);
    size_t left = s->room - s->asked - s->ready_count;
    size_t n = left < HAPAX__SQS_BATCH_MAX ? left : HAPAX__SQS_BATCH_MAX;
    int wait_s = s->base.connected ? s->link.uri.wait_s : 0;
    bool fifo = hapax__sqs_is_fifo(s->link.uri.queue);
    struct hapax__json_out *body = hapax__sqs_begin(call);

    hapax__json_put(body, "{\"QueueUrl\":");
    hapax__json_put_string(body, hapax_str(s->url));
    hapax__json_put(body, ",\"MaxNumberOfMessages\":");
    hapax__json_put_number(body, (int64_t)n);
    hapax__json_put(body, ",\"WaitTimeSeconds\":");
    hapax__json_put_number(body, wait_s);
    hapax__json_put(body, ",\"VisibilityTimeout\":");
    hapax__json_put_number(body, s->link.uri.visibility_s);
    hapax__json_put(body, ",\"MessageAttributeNames\":[\"All\"],\"MessageSystemAttributeNames\":["
                          "\"SentTimestamp\",\"ApproximateReceiveCount\",\"MessageGroupId\","
                          "\"MessageDeduplicationId\"]");
    if (fifo)
        put_attempt(body);
    hapax__json_put(body, "}");
    call->what = HAPAX__SQS_POLL;
    call->count = n;
    if (!hapax__sqs_submit(&s->link, call, "ReceiveMessage", wait_s * 1000 + POLL_TRY_MS,
                           wait_s * 1000 + POLL_TRY_MS, !fifo)) {
        lose(s, "out of memory");
        return false;
    }
    s->polling++;
    s->asked += n;
    return true;
}

/* Returns how many messages there were. If memory runs out, the rest comes again, with the messages
 * behind them in their order. */
static size_t take_messages(struct hapax__sqs_source *s, struct hapax_span list,
                            struct hapax_arena *arena)
{
    struct hapax_span none, one;
    struct hapax__raw_walk walk;
    size_t n = 0;

    hapax__raw_begin(&walk, list);
    while (hapax__raw_next(&walk, &none, &one)) {
        struct hapax__sqs_delivery *d =
            hapax__sqs_delivery(one, arena, hapax_str(s->link.uri.queue), s->ordered);

        if (!d && s->ordered)
            break;
        if (!d)
            continue;
        n++;
        hapax__sqs_keep(s, d);
        d->ready = true;
        TAILQ_INSERT_TAIL(&s->ready, d, ready_link);
        s->ready_count++;
        if (s->room == 0 || s->closing)
            hapax__sqs_give_back(s, d, 0);
    }
    return n;
}

static void take_poll(struct hapax__sqs_source *s, struct hapax__sqs_call *call)
{
    struct hapax_arena arena = {NULL};
    struct hapax_span root, list;
    size_t asked = call->count, n;

    s->polling--;
    s->asked -= asked;
    call->count = 0;
    if (call->call.result != HAPAX__AWS_OK) {
        failed(s, call);
        return;
    }
    if (!hapax__sqs_read(&root, call->call.reply)) {
        lose(s, "what it answered is no JSON, or there is no memory for it");
    } else {
        s->poll_gate_us = 0;
        works(s);
        (void)hapax__raw_member(&list, root, "Messages");
        n = take_messages(s, list, &arena);
        if (n == 0)
            s->wanted = 1;
        else
            s->wanted = n < asked ? s->wanted + 1 : s->wanted * 2;
        if (s->wanted > HAPAX__SQS_POLLS_MAX)
            s->wanted = HAPAX__SQS_POLLS_MAX;
        if (n == 0 && s->base.lag > 0 && s->count_us > s->now_us + COUNT_SOON_US)
            s->count_us = s->now_us + COUNT_SOON_US;
    }
    hapax__arena_release(&arena);
}

/* ---- the loop's calls ------------------------------------------------------------------- */

static void take_calls(struct hapax__sqs_source *s)
{
    struct hapax__sqs_call *call;

    hapax__aws_pump(s->link.aws);
    while ((call = hapax__sqs_reap(&s->link))) {
        s->now_us = hapax__monotonic_us();
        switch (call->what) {
        case HAPAX__SQS_ASK_URL:
            take_url(s, call);
            break;
        case HAPAX__SQS_COUNT:
            take_count(s, call);
            break;
        case HAPAX__SQS_POLL:
            take_poll(s, call);
            break;
        default:
            if (hapax__sqs_told(s, call))
                break;
            if (hapax__sqs_refusal(call) != HAPAX__SQS_OTHER)
                refuse(s, call);
            else
                lose(s, call->call.text);
        }
        hapax__sqs_done(call);
    }
}

static void ask_all(struct hapax__sqs_source *s)
{
    s->now_us = hapax__monotonic_us();
    if (s->now_us < s->gate_us)
        return;
    if (s->url[0] == '\0') {
        ask_url(s);
        return;
    }
    hapax__sqs_tell(s);
    ask_count(s);
    while (may_poll(s) && s->now_us >= s->poll_gate_us && poll_once(s))
        ;
}

/* No poll is sent where the room is less than a poll is worth. */
static void note_more(struct hapax__sqs_source *s)
{
    s->base.more = s->ready_count > 0 || s->room < s->worth;
}

static enum hapax_error source_pump(struct hapax__source *base, size_t room)
{
    struct hapax__sqs_source *s = of(base);
    enum hapax_error error;

    s->room = room;
    s->now_us = hapax__monotonic_us();
    take_calls(s);
    error = s->error;
    s->error = HAPAX_ERR_NONE;
    if (error == HAPAX_ERR_NONE)
        ask_all(s);
    note_more(s);
    return error;
}

static size_t source_watch(struct hapax__source *base, struct pollfd *fds, int64_t *due_us)
{
    struct hapax__sqs_source *s = of(base);

    fds[0] = (struct pollfd){.fd = hapax__aws_fd(s->link.aws), .events = POLLIN};
    *due_us = hapax__aws_due(s->link.aws);
    if (s->error != HAPAX_ERR_NONE)
        *due_us = 0;
    if (s->url[0] == '\0') {
        if (!s->ask.busy)
            *due_us = hapax__least(*due_us, s->gate_us);
        return 1;
    }
    *due_us = hapax__least(*due_us, hapax__sqs_tell_due(s));
    if (!s->ask.busy && s->was_connected)
        *due_us = hapax__least(*due_us, hapax__most(s->count_us, s->gate_us));
    if (may_poll(s))
        *due_us = hapax__least(*due_us, hapax__most(s->poll_gate_us, s->gate_us));
    return 1;
}

static struct hapax__delivered *source_take(struct hapax__source *base)
{
    struct hapax__sqs_source *s = of(base);
    struct hapax__sqs_delivery *d = TAILQ_FIRST(&s->ready);

    if (!d)
        return NULL;
    hapax__sqs_unready(s, d);
    note_more(s);
    return &d->shown;
}

static void source_release(struct hapax__source *base, struct hapax__delivered *delivered,
                           enum hapax__release how)
{
    struct hapax__sqs_delivery *d = (struct hapax__sqs_delivery *)delivered;

    if (delivered->voided)
        hapax__sqs_drop(of(base), d);
    else if (how == HAPAX__RELEASE_ACK)
        hapax__sqs_delete(of(base), d);
    else
        hapax__sqs_give_back(of(base), d, 0);
}

static void source_postpone(struct hapax__source *base, struct hapax__delivered *delivered,
                            int64_t delay_ms)
{
    struct hapax__sqs_source *s = of(base);
    struct hapax__sqs_delivery *d = (struct hapax__sqs_delivery *)delivered;
    int64_t seconds = (delay_ms + 999) / 1000;

    if (seconds > HAPAX__SQS_VISIBILITY_MAX_S)
        seconds = HAPAX__SQS_VISIBILITY_MAX_S;
    if (delivered->voided)
        hapax__sqs_drop(s, d);
    else
        hapax__sqs_give_back(
            s, d, hapax__sqs_longer(d->received_us, hapax__monotonic_us(), (int)seconds));
}

/* ---- the end ----------------------------------------------------------------------------- */

static void say_goodbye(struct hapax__sqs_source *s, int64_t wait_ms)
{
    int64_t deadline_us = hapax__monotonic_us() + wait_ms * 1000;

    s->closing = true;
    s->room = 0;
    while (!TAILQ_EMPTY(&s->ready))
        hapax__sqs_give_back(s, TAILQ_FIRST(&s->ready), 0);
    ask_all(s);
    while (s->url[0] != '\0' && (s->polling > 0 || !hapax__sqs_all_told(s)) &&
           s->now_us < deadline_us) {
        struct pollfd fd;
        int64_t due_us, left_us;

        (void)source_watch(&s->base, &fd, &due_us);
        left_us = hapax__least(due_us, deadline_us) - hapax__monotonic_us();
        (void)poll(&fd, 1, left_us > 0 ? (int)((left_us + 999) / 1000) : 0);
        take_calls(s);
        ask_all(s);
    }
}

static void source_close(struct hapax__source *base, int64_t wait_ms)
{
    struct hapax__sqs_source *s = of(base);

    if (wait_ms > 0 && s->was_connected)
        say_goodbye(s, wait_ms);
    hapax__sqs_forget(s);
    hapax__sqs_call_release(&s->link, &s->ask);
    for (size_t i = 0; i < HAPAX__SQS_POLLS_MAX; i++)
        hapax__sqs_call_release(&s->link, &s->polls[i]);
    for (size_t i = 0; i < HAPAX__SQS_TELLS_MAX; i++)
        hapax__sqs_call_release(&s->link, &s->tells[i]);
    hapax__sqs_link_close(&s->link);
    free(s);
}

const struct hapax__source_type hapax__source_sqs = {
    .schemes = {"sqs"},
    .estimates = true,
    .orders = HAPAX_ORDER_DEFAULT,
    .open = source_open,
    .watch = source_watch,
    .pump = source_pump,
    .take = source_take,
    .release = source_release,
    .postpone = source_postpone,
    .name_letters = name_letters,
    .close = source_close,
};
