/* SPDX-License-Identifier: Apache-2.0
 *
 * Random schedules: a broker that loses connections and letters, a store that loses ops and
 * replies, handlers that are away, fail and refuse; with or without an order to keep. Whatever
 * happens, each operation has its effect once, each message ends done or as a letter that is
 * confirmed, and none overtakes another of its order.
 *
 * HAPAX_TEST_SCHEDULES sets how many, HAPAX_TEST_SEED the first; a schedule that breaks says its
 * seed.
 */
#include "../cases.h"
#include "consume_bed.h"

#include <signal.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SCHEDULES_DEFAULT 200
#else
#define SCHEDULES_DEFAULT 1000
#endif

#define MESSAGES_MAX 24
#define OPS_MAX      12
#define ORDERS       3
#define SCHEDULE_S   60 /* none takes longer */

static uint64_t seed_now;

static void say_seed(int signal_number)
{
    char line[64];
    int len = snprintf(line, sizeof(line), "HAPAX_TEST_SEED=%llu\n", (unsigned long long)seed_now);

    (void)!write(STDERR_FILENO, line, (size_t)len);
    signal(SIGABRT, SIG_DFL);
    if (signal_number == SIGALRM)
        abort();
}

struct op {
    unsigned away, failing; /* so many runs first */
    bool refused; /* for ever */
    bool lost; /* its result is unknown, for ever */
    atomic_uint runs, effects;
    atomic_bool running;
};

struct schedule {
    struct consume_bed bed;
    unsigned messages, ops;
    bool ordered, bad_store;
    int op_of[MESSAGES_MAX];
    int order_of[MESSAGES_MAX];
    struct op op[OPS_MAX];
    atomic_bool given_up[MESSAGES_MAX]; /* a dead or parked letter is published */
    atomic_bool in_order[ORDERS]; /* one of it runs */
};

/* ---- the handler ----------------------------------------------------------------------- */

static int number_of(const struct hapax_message *message)
{
    char text[16];

    must(message->body.len < sizeof(text));
    memcpy(text, message->body.ptr, message->body.len);
    text[message->body.len] = '\0';
    return (int)strtol(text, NULL, 10);
}

/* The message behind the delivery: its header `number` (bodies are one operation's, and alike). */
static int message_of(const struct hapax_message *message)
{
    for (size_t i = 0; i < message->header_count; i++)
        if (message->headers[i].name.len == 6 &&
            memcmp(message->headers[i].name.ptr, "number", 6) == 0)
            return (int)strtol((const char *)message->headers[i].value.ptr, NULL, 10);
    abort();
}

/* All before it in its order have had their effect, or were given up. */
static void check_order(struct schedule *s, int number)
{
    for (int i = 0; i < number; i++)
        if (s->order_of[i] == s->order_of[number])
            must(atomic_load(&s->op[s->op_of[i]].effects) > 0 || atomic_load(&s->given_up[i]));
}

static enum hapax_class end_of(struct op *op, struct hapax_delivery *delivery)
{
    unsigned run = atomic_fetch_add(&op->runs, 1);

    if (run < op->away)
        return HAPAX_CLASS_NOT_RUN;
    if (op->lost)
        return HAPAX_CLASS_UNKNOWN;
    if (op->refused)
        hapax_delivery_refuse(delivery, "never");
    if (op->refused || run < op->away + op->failing)
        return HAPAX_CLASS_FAILED;
    must(atomic_fetch_add(&op->effects, 1) == 0);
    return HAPAX_CLASS_FINAL;
}

static enum hapax_class handle(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                               void *arg)
{
    const struct hapax_message *message = hapax_delivery_message(delivery);
    struct schedule *s = arg;
    struct op *op = &s->op[number_of(message)];
    int number = message_of(message);
    enum hapax_class cls;

    (void)attempt;
    must(!atomic_exchange(&op->running, true));
    if (s->ordered) {
        must(!atomic_exchange(&s->in_order[s->order_of[number]], true));
        check_order(s, number);
    }
    sched_yield();
    cls = end_of(op, delivery);
    if (s->ordered)
        atomic_store(&s->in_order[s->order_of[number]], false);
    atomic_store(&op->running, false);
    return cls;
}

static void see_letter(void *arg, const struct play_message *letter)
{
    struct schedule *s = arg;

    if (strcmp(letter->to, "Q") != 0)
        atomic_store(&s->given_up[letter->number], true);
}

/* ---- a schedule ------------------------------------------------------------------------ */

static enum hapax__fault fail_some(void *arg, uint64_t number, const struct hapax_op *op)
{
    static const enum hapax__fault faults[] = {HAPAX__FAIL_BEFORE, HAPAX__LOSE_OP,
                                               HAPAX__LOSE_REPLY, HAPAX__DUPLICATE};
    struct play *random = arg; /* under the plan's lock */

    (void)number, (void)op;
    return play_random(random, 100) < 10 ? faults[play_random(random, 4)] : HAPAX__NO_FAULT;
}

static void make_ops(struct schedule *s)
{
    struct play *play = &s->bed.play;

    s->ops = 1 + play_random(play, OPS_MAX);
    for (unsigned i = 0; i < s->ops; i++) {
        struct op *op = &s->op[i];

        op->away = play_random(play, 4) == 0 ? play_random(play, 3) : 0;
        op->failing = play_random(play, 3) == 0 ? play_random(play, 5) : 0;
        op->refused = play_random(play, 10) == 0;
        op->lost = play_random(play, 10) == 0;
    }
}

static void publish_all(struct schedule *s)
{
    struct play *play = &s->bed.play;

    s->messages = 1 + play_random(play, MESSAGES_MAX);
    for (unsigned i = 0; i < s->messages; i++) {
        char key[16], order[16], body[16];

        s->op_of[i] = (int)play_random(play, s->ops);
        s->order_of[i] = (int)play_random(play, ORDERS);
        snprintf(key, sizeof(key), "op-%d", s->op_of[i]);
        snprintf(order, sizeof(order), "order-%d", s->order_of[i]);
        snprintf(body, sizeof(body), "%d", s->op_of[i]);
        play_publish(play, (int)i, key, s->ordered ? order : NULL, body);
    }
}

static void choose(struct schedule *s)
{
    struct hapax_consumer *consumer = &s->bed.consumer;
    struct play *play = &s->bed.play;

    s->ordered = play_random(play, 2) == 0;
    s->bad_store = play_random(play, 8) == 0;
    play->type.delays = !s->ordered && play_random(play, 4) > 0;
    play->type.orders = s->ordered ? HAPAX_ORDER_KEY : HAPAX_ORDER_NONE;
    play->chances = (struct play_chances){
        .cut = play_random(play, 3) == 0 ? play_random(play, 200) : 0,
        .refused = play_random(play, 200),
        .lost = play_random(play, 200),
        .lost_published = play_random(play, 200),
        .late = play_random(play, 500),
        .full = play_random(play, 500),
    };
    consumer->policy.attempts_max = 1 + play_random(play, 4);
    consumer->policy.on_expired = HAPAX_EXPIRED_HOLD;
    consumer->policy.on_failed = HAPAX_FAILED_RETRY;
    consumer->policy.wait_ms = 1 + play_random(play, 20);
    consumer->in_flight = (enum hapax_in_flight)(1 + play_random(play, s->ordered ? 2 : 3));
    consumer->concurrency = 1 + play_random(play, 4);
    consumer->in_hand_max = consumer->concurrency + play_random(play, 12);
    if (s->bad_store)
        consumer->policy.timeout_ms = consumer->policy.save_wait_ms = 10 + play_random(play, 100);
}

static void check(struct schedule *s)
{
    unsigned attempts_max = s->bed.consumer.policy.attempts_max;

    for (unsigned i = 0; i < s->messages; i++) {
        struct op *op = &s->op[s->op_of[i]];
        bool hopeless = op->refused || op->lost || op->failing >= attempts_max;

        must(atomic_load(&op->effects) == (hopeless ? 0 : 1));
        must(atomic_load(&s->given_up[i]) == hopeless);
    }
}

static void run_schedule(struct schedule *s, uint64_t seed)
{
    struct play random = {.random = ~seed};

    memset(s, 0, sizeof(*s));
    seed_now = seed;
    alarm(SCHEDULE_S);
    bed_open(&s->bed, handle, s);
    s->bed.play.random = seed;
    play_random(&s->bed.play, 1);
    s->bed.play.seen = see_letter;
    s->bed.play.seen_arg = s;
    choose(s);
    make_ops(s);
    publish_all(s);
    if (s->bad_store)
        hapax__plan_decide(&s->bed.plan, fail_some, &random);
    bed_run(&s->bed);
    check(s);
    hapax__plan_set(&s->bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed_close(&s->bed);
    alarm(0);
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *given = getenv(name);

    return given ? strtoull(given, NULL, 10) : otherwise;
}

CASE(nothing_is_lost_repeated_or_overtaken)
{
    static struct schedule schedule;
    uint64_t count = number_from("HAPAX_TEST_SCHEDULES", SCHEDULES_DEFAULT);
    uint64_t first = number_from("HAPAX_TEST_SEED", 1);

    if (getenv("HAPAX_TEST_SEED") && !getenv("HAPAX_TEST_SCHEDULES"))
        count = 1;
    for (uint64_t i = 0; i < count; i++)
        run_schedule(&schedule, first + i);
}

int main(void)
{
    signal(SIGABRT, say_seed);
    signal(SIGALRM, say_seed);
    return cases_run(NULL, NULL);
}
