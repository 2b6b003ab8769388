/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax consume: the message door. Reads the settings, opens the store, and lets
 * hapax_consumer_run() hand each message to an HTTP service.
 *
 * All options are checked before anything is connected to. A store or a broker that is away is then
 * waited for, with one line about it, since a consumer is often started before them. Only a failure
 * that does not pass by itself ends the consumer.
 *
 * The consumer runs in a thread. This one waits for signals (the first drains, the second hurries),
 * for the first connection, at which it prints the ready line, and for the end.
 */
#include "advice.h"
#include "policies.h"

#include "base/span.h"
#include "base/units.h"
#include "base/uri.h"
#include "broker/seam.h"
#include "broker/source.h"
#include "door/call.h"
#include "door/consume/metrics.h"
#include "door/consume/post.h"
#include "lane/census.h"
#include "metrics.h"
#include "print.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CALLS_MIN 4096u

struct consume_args {
    struct cli_args args;
    const char *from;
    const char *to;
    const char *scope;
    const char *key;
    const char *owner;
    const char *no_key;
    const char *fingerprint;
    const char *step;
    const char *in_flight;
    const char *unknown;
    const char *retry;
    const char *order;
    const char *dead_letters;
    const char *parked;
    const char *reconcile;
    const char *ca;
    struct cli_metrics metrics;
    struct cli_telling telling;
    struct cli_texts pass_headers;
    int64_t concurrency; /* 0: the default */
    int64_t in_hand_max;
    int64_t drain_ms; /* -1: the default */
    const char *policies[CLI_POLICIES];
};

#define TEXT(option, placeholder, field, text)                                                     \
    CLI_TEXT_OPTION(struct consume_args, field, option, placeholder, text)

/* The policies come last. */
static const struct cli_option options[] = {
    TEXT("from", "URI", from,
         "amqp://HOST/VHOST?queue=Q, kafka://HOST/TOPIC?group=G or sqs://REGION/QUEUE"),
    TEXT("to", "URL", to, "The handler: each message is POSTed to it"),
    TEXT("ca", "FILE", ca, "Authorities to trust for https (default: the system's)"),
    {"pass-header", "NAME", CLI_TEXTS, offsetof(struct consume_args, pass_headers), 0, 0,
     "A header of messages that keeps its name; others are Hapax-Header-NAME"},
    TEXT("key", "SOURCES", key, "Headers, JSON Pointers, payload or position"),
    TEXT("owner", "SOURCE", owner, "Whose key it is: a header, or JSON Pointers"),
    TEXT("no-key", "WHAT", no_key, "dead-letter, reject or run (default dead-letter)"),
    TEXT("fingerprint", "PARTS", fingerprint,
         "What is compared in a repeat, as \"json -/sent_at\" (default body)"),
    TEXT("scope", "NAME", scope, "Space of the keys (default: the queue, or the group)"),
    TEXT("step", "NAME", step, "A part of the operation that the key names"),
    TEXT("in-flight", "WHAT", in_flight,
         "While another runs it: delay, wait or requeue (default delay)"),
    TEXT("unknown", "WHAT", unknown, "Where nobody knows: park or dead-letter (default park)"),
    TEXT("retry", "MIN..MAX", retry, "Pauses between attempts (default 1s..5m)"),
    TEXT("order", "WHAT", order,
         "Of Kafka: key, partition or none; of a FIFO queue: key or none (default key)"),
    TEXT("dead-letters", "NAME", dead_letters,
         "Where they go (default QUEUE.dead, TOPIC.GROUP.dead, or QUEUE-dead at SQS)"),
    TEXT("parked", "NAME", parked,
         "Where they wait (default QUEUE.parked, TOPIC.GROUP.parked, or QUEUE-parked)"),
    TEXT("reconcile", "URL", reconcile, "Asked by --on-expired reconcile: has it happened?"),
    {"concurrency", "N", CLI_NUMBER, offsetof(struct consume_args, concurrency), 1,
     HAPAX_CONCURRENCY_MAX, "Handlers at once (default 16)"},
    {"in-hand-max", "N", CLI_NUMBER, offsetof(struct consume_args, in_hand_max), 1,
     HAPAX_IN_HAND_MAX, "Messages taken and not settled (default 4 a handler)"},
    {"drain", "TIME", CLI_DURATION, offsetof(struct consume_args, drain_ms), 0, 3600000,
     "At the end, how long handlers may go on (default 30s)"},
    CLI_METRICS_OPTIONS(struct consume_args, metrics),
    CLI_TELLING_OPTIONS(struct consume_args, telling),
    CLI_POLICY_OPTIONS(struct consume_args, policies, "1h", "0: not at all",
                       "A 5xx: retry or hold (default: by --on-expired)",
                       "After so many, a dead letter (default 8; 0: never)"),
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

static void defaults(struct cli_args *args)
{
    ((struct consume_args *)args)->drain_ms = -1;
}

struct consuming {
    const struct consume_args *args;
    struct hapax_consumer consumer;
    struct hapax_consumer_stats stats;
    struct hapax__post *post;
    struct hapax__metrics *metrics;
    struct hapax__census *census;
    uint16_t port; /* of the metrics */
    struct cli_secrets secrets;
    struct hapax__traces *traces;
    struct hapax *h;
    int signals;
    int stop; /* an eventfd, as the next three */
    int hurry;
    int ready; /* readable once it is connected */
    int ended; /* readable once error and text are set */
    enum hapax_error error; /* of hapax_consumer_run() */
    char text[HAPAX_TEXT_MAX];
    char from[HAPAX_TEXT_MAX]; /* without passwords, as the next */
    char to[HAPAX_TEXT_MAX];
};

/* ---- lines ------------------------------------------------------------------------------- */

/* Called from any thread. */
static void say(void *arg, const char *line)
{
    const struct consuming *consuming = arg;

    cli_log(&consuming->args->args, line);
}

/* ---- settings ---------------------------------------------------------------------------- */

static enum cli_exit invalid(const struct consume_args *args, const char *text)
{
    return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "%s", text);
}

/* A text of the library begins with a setting's name, which is an option here. */
static enum cli_exit refused(const struct consume_args *args, enum hapax_error error,
                             const char *text)
{
    enum cli_exit exit = error == HAPAX_ERR_NOMEM ? CLI_UNREACHED : CLI_USAGE;
    size_t len = strcspn(text, " :=");

    for (size_t i = 0; i < OPTIONS; i++) {
        const char *name = options[i].name;
        size_t at = 0;

        while (at < len && name[at] == (text[at] == '_' ? '-' : text[at]))
            at++;
        if (at == len && len > 0 && name[at] == '\0')
            return cli_fail(&args->args, exit, error, "--%s%s", name, text + len);
    }
    return cli_fail(&args->args, exit, error, "%s", text);
}

static enum cli_exit read_words(struct hapax_consumer *consumer, const struct consume_args *args)
{
    static const char *const no_keys[] = {"dead-letter", "reject", "run", NULL};
    static const char *const in_flights[] = {"delay", "wait", "requeue", NULL};
    static const char *const unknowns[] = {"park", "dead-letter", NULL};
    static const char *const orders[] = {"key", "partition", "none", NULL};
    enum cli_exit exit;
    unsigned word;

    static_assert(HAPAX_NO_KEY_RUN == 3 && HAPAX_IN_FLIGHT_REQUEUE == 3 &&
                      HAPAX_UNKNOWN_DEAD_LETTER == 2 && HAPAX_ORDER_NONE == 3,
                  "the words stand in the order of their enums");
    exit = cli_word(&word, &args->args, "no-key", args->no_key, no_keys);
    if (word)
        consumer->no_key = (enum hapax_no_key)word;
    if (exit == CLI_DONE)
        exit = cli_word(&word, &args->args, "in-flight", args->in_flight, in_flights);
    if (exit == CLI_DONE && word)
        consumer->in_flight = (enum hapax_in_flight)word;
    if (exit == CLI_DONE)
        exit = cli_word(&word, &args->args, "unknown", args->unknown, unknowns);
    if (exit == CLI_DONE && word)
        consumer->unknown = (enum hapax_unknown)word;
    if (exit == CLI_DONE)
        exit = cli_word(&word, &args->args, "order", args->order, orders);
    if (exit == CLI_DONE && word)
        consumer->order = (enum hapax_order)word;
    return exit;
}

/* MIN..MAX, two durations. */
static enum cli_exit read_retry(struct hapax_consumer *consumer, const struct consume_args *args)
{
    const char *dots = args->retry ? strstr(args->retry, "..") : NULL;
    const char *why = "not MIN..MAX, as 1s..5m";
    char first[32];

    if (!args->retry)
        return CLI_DONE;
    if (dots && (size_t)(dots - args->retry) < sizeof(first)) {
        (void)snprintf(first, sizeof(first), "%.*s", (int)(dots - args->retry), args->retry);
        if (hapax__duration_parse(&consumer->retry_min_ms, first, &why) &&
            hapax__duration_parse(&consumer->retry_max_ms, dots + 2, &why))
            return CLI_DONE;
    }
    return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "--retry \"%.100s\" is %s",
                    args->retry, why);
}

static void read_plain(struct hapax_consumer *consumer, const struct consume_args *args)
{
    consumer->from = args->from;
    consumer->scope = args->scope;
    consumer->key = args->key;
    consumer->owner = args->owner;
    consumer->fingerprint = args->fingerprint;
    consumer->step = args->step;
    consumer->dead_letters = args->dead_letters;
    consumer->parked = args->parked;
    if (args->concurrency > 0)
        consumer->concurrency = (uint32_t)args->concurrency;
    if (args->in_hand_max > 0)
        consumer->in_hand_max = (uint32_t)args->in_hand_max;
    if (args->drain_ms >= 0)
        consumer->drain_ms = args->drain_ms;
}

static enum cli_exit open_post(struct consuming *consuming)
{
    const struct consume_args *args = consuming->args;
    const struct hapax_consumer *consumer = &consuming->consumer;
    struct hapax__post_options how = {
        .to = args->to,
        .reconcile = args->reconcile,
        .user = getenv("HAPAX_TO_USER"), /* a command line can be read by other users */
        .password = getenv("HAPAX_TO_PASSWORD"),
        .ca = args->ca,
        .broker = hapax__source_type_of(args->from)->schemes[0],
        .pass_headers = args->pass_headers.items,
        .pass_header_count = args->pass_headers.n,
        .timeout_ms = consumer->policy.run_max_ms,
        .body_max = consumer->policy.max_response,
        .concurrency = consumer->concurrency,
        .log = say,
        .log_arg = consuming,
    };
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (consumer->policy.on_expired == HAPAX_EXPIRED_RECONCILE && !args->reconcile)
        return invalid(args, "--on-expired is reconcile, and there is no --reconcile URL to ask");
    if (consumer->policy.on_expired != HAPAX_EXPIRED_RECONCILE && args->reconcile)
        return invalid(args,
                       "--reconcile is given, and nobody asks: --on-expired is not reconcile");
    if (!how.user != !how.password)
        return invalid(args, "of HAPAX_TO_USER and HAPAX_TO_PASSWORD one is set alone");
    error = hapax__post_open(&consuming->post, &how, text);
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    return refused(args, error, text);
}

/* Reads and checks all options. */
static enum cli_exit read_settings(struct consuming *consuming)
{
    const struct consume_args *args = consuming->args;
    struct hapax_consumer *consumer = &consuming->consumer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    enum cli_exit exit;

    if (!args->from)
        return invalid(args,
                       "--from URI is missing: the queue or topic, as "
                       "amqp://localhost/?queue=orders, kafka://localhost/orders?group=billing or "
                       "sqs://eu-central-1/orders");
    if (!args->to)
        return invalid(args, "--to URL is missing: the handler, as http://127.0.0.1:9000/orders");
    read_plain(consumer, args);
    exit = read_words(consumer, args);
    if (exit == CLI_DONE)
        exit = read_retry(consumer, args);
    if (exit == CLI_DONE)
        exit = cli_policies_set(&consumer->policy, &args->args, &options[OPTIONS - CLI_POLICIES],
                                args->policies, CLI_POLICIES);
    if (exit != CLI_DONE)
        return exit;
    error = hapax_consumer_check(consumer, text);
    if (error != HAPAX_ERR_NONE)
        return refused(args, error, text);
    hapax__uri_shown(consuming->from, args->from);
    hapax__uri_shown(consuming->to, args->to);
    return open_post(consuming);
}

/* ---- ready ------------------------------------------------------------------------------- */

/* http://HOST:PORT/metrics, with the port that was taken; empty: none. */
static void metrics_url(char *out, size_t size, const struct consuming *consuming)
{
    const char *address = consuming->args->metrics.address;

    out[0] = '\0';
    if (consuming->metrics)
        (void)snprintf(out, size, "http://%.*s:%u/metrics", (int)(strrchr(address, ':') - address),
                       address, consuming->port);
}

static void consume_door(struct cli_door *door, const struct consuming *consuming)
{
    *door = (struct cli_door){
        .policy = &consuming->consumer.policy,
        .owner = consuming->args->owner,
        .apart = "all who publish there share the keys",
        .risk = "no --owner: where the messages of several tenants are in one queue, two of them "
                "may have one key, and one counts as a repeat of the other; name the header, or "
                "the pointer, that says whose key it is",
    };
}

static void advise_settings(const struct cli_advice *to, const struct consuming *consuming)
{
    struct cli_door door;

    consume_door(&door, consuming);
    cli_advise_door(to, &door);
    cli_advise_wire(to, CLI_DANGER, "from", consuming->args->from);
    cli_advise_wire(to, CLI_WARNING, "to", consuming->args->to);
    cli_advise_wire(to, CLI_WARNING, "reconcile", consuming->args->reconcile);
}

static void say_ready(const struct consuming *consuming)
{
    const struct cli_args *args = &consuming->args->args;
    char metrics[320], promise[CLI_PROMISE_MAX];
    struct cli_door door;
    struct json json;

    consume_door(&door, consuming);
    (void)cli_promise(promise, &door);
    metrics_url(metrics, sizeof(metrics), consuming);
    flockfile(stdout);
    if (args->json) {
        json_begin(&json);
        json_text(&json, "consuming", consuming->from);
        json_text(&json, "to", consuming->to);
        json_text(&json, "store", args->shown);
        if (metrics[0])
            json_text(&json, "metrics", metrics);
        json_number(&json, "pid", getpid());
        json_text(&json, "promise", promise);
        json_end(&json);
    } else {
        printf("hapax consume: takes messages from %s for %s (pid %ld)%s%s; operations: ",
               consuming->from, consuming->to, (long)getpid(), metrics[0] ? "; metrics: " : "",
               metrics);
        if (hapax__text_begins(args->store, "memory:"))
            puts("in the memory of this process, where no other can look at them");
        else
            printf("hapax list --store '%s'\n", args->shown);
        printf("hapax consume: %s\n", promise);
    }
    (void)fflush(stdout);
    funlockfile(stdout);
}

/* ---- opening ----------------------------------------------------------------------------- */

static enum cli_exit open_metrics(struct consuming *consuming)
{
    const struct consume_args *args = consuming->args;
    struct hapax__page_place place;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (!args->metrics.address)
        return CLI_DONE;
    place = cli_metrics_place(&args->metrics);
    error = hapax__metrics_open(&consuming->metrics, &place, &consuming->stats, consuming->from,
                                &consuming->port, text);
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    return cli_metrics_failed(&args->args, error, text);
}

/* From here on the page shows what the store's handle counts, too. */
static void show_store(struct consuming *consuming)
{
    if (!consuming->metrics)
        return;
    consuming->census = cli_census_open(consuming->args->args.store);
    hapax__metrics_show(consuming->metrics, consuming->h, consuming->census);
}

static uint32_t calls_of(const struct hapax_consumer *consumer)
{
    uint32_t calls = 2 * consumer->in_hand_max;

    return calls > CALLS_MIN ? calls : CALLS_MIN;
}

static enum cli_exit open_events(struct consuming *consuming)
{
    consuming->signals = cli_signals_begin();
    consuming->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    consuming->hurry = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    consuming->ready = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    consuming->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (consuming->signals < 0 || consuming->stop < 0 || consuming->hurry < 0 ||
        consuming->ready < 0 || consuming->ended < 0)
        return cli_fail(&consuming->args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM,
                        "no descriptor is left");
    consuming->consumer.stop_fd = consuming->stop;
    consuming->consumer.hurry_fd = consuming->hurry;
    consuming->consumer.ready_fd = consuming->ready;
    consuming->consumer.log = say;
    consuming->consumer.log_arg = consuming;
    return CLI_DONE;
}

/* ---- running ----------------------------------------------------------------------------- */

static void *consume(void *arg)
{
    struct consuming *consuming = arg;

    consuming->error = hapax_consumer_run(consuming->h, &consuming->consumer, hapax__post_handler,
                                          consuming->args->reconcile ? hapax__post_reconcile : NULL,
                                          consuming->post, &consuming->stats, consuming->text);
    (void)eventfd_write(consuming->ended, 1);
    return NULL;
}

/* Until the consumer has ended. */
static void watch(const struct consuming *consuming)
{
    struct pollfd fds[3] = {{.fd = consuming->ready, .events = POLLIN},
                            {.fd = consuming->ended, .events = POLLIN},
                            {.fd = consuming->signals, .events = POLLIN}};
    int64_t beat_ms = cli_watchdog_ms();
    unsigned signals = 0;

    for (;;) {
        (void)poll(fds, 3, beat_ms > 0 && beat_ms < INT_MAX ? (int)beat_ms : -1);
        if (fds[0].revents & POLLIN) { /* before the end, where both are due */
            fds[0].fd = -1;
            say_ready(consuming);
            cli_notify("READY=1");
            advise_settings(&(struct cli_advice){cli_log_danger, (void *)&consuming->args->args},
                            consuming);
        }
        if (fds[1].revents & POLLIN)
            return;
        if (cli_signals_wait(consuming->signals, 0) != 0 && signals < 2)
            (void)eventfd_write(++signals == 1 ? consuming->stop : consuming->hurry, 1);
    }
}

static enum cli_exit run_consumer(struct consuming *consuming)
{
    const struct cli_args *args = &consuming->args->args;
    pthread_t thread;

    if (pthread_create(&thread, NULL, consume, consuming) != 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no thread is left");
    watch(consuming);
    (void)pthread_join(thread, NULL);
    switch (consuming->error) {
    case HAPAX_ERR_NONE:
        return CLI_DONE;
    case HAPAX_ERR_REFUSED:
        return cli_fail(args, CLI_NO, consuming->error, "%s", consuming->text);
    case HAPAX_ERR_INVALID:
    case HAPAX_ERR_UNSUPPORTED:
        return cli_fail(args, CLI_USAGE, consuming->error, "%s", consuming->text);
    default:
        return cli_fail(args, CLI_UNREACHED, consuming->error, "%s", consuming->text);
    }
}

/* A message whose outcome was not stored was not acknowledged, so it is delivered and runs again.
 * Outcomes are therefore saved for as long as handlers may go on: if the process that has the store
 * open ends together with this one, another opens it a moment later. */
static enum cli_exit close_store(struct consuming *consuming, enum cli_exit exit)
{
    const struct hapax_consumer *consumer = &consuming->consumer;
    int64_t wait_ms = consumer->policy.save_wait_ms > consumer->drain_ms
                          ? consumer->policy.save_wait_ms
                          : consumer->drain_ms;
    uint32_t lost;

    if (consuming->metrics)
        hapax__metrics_show(consuming->metrics, NULL, NULL);
    hapax__census_close(consuming->census);
    lost = hapax_close(consuming->h, wait_ms);
    if (lost == 0 || exit != CLI_DONE)
        return exit;
    return cli_fail(&consuming->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                    "%u outcomes could not be stored; their messages are delivered again", lost);
}

static void release(struct consuming *consuming)
{
    const int fds[] = {consuming->signals, consuming->stop, consuming->hurry, consuming->ready,
                       consuming->ended};

    hapax__metrics_close(consuming->metrics);
    hapax__traces_close(consuming->traces);
    hapax__post_close(consuming->post);
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    explicit_bzero(&consuming->secrets, sizeof(consuming->secrets));
    free(consuming);
}

/* NULL: out of memory, which is printed. */
static struct consuming *consuming_new(struct cli_args *args)
{
    struct consuming *consuming = calloc(1, sizeof(*consuming));

    if (!consuming) {
        (void)cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
        return NULL;
    }
    consuming->args = (const struct consume_args *)args;
    consuming->signals = consuming->stop = consuming->hurry = -1;
    consuming->ready = consuming->ended = -1;
    consuming->stats.lag = -1;
    hapax_consumer_init(&consuming->consumer);
    return consuming;
}

static enum cli_exit advise(struct cli_args *args, const struct cli_advice *to)
{
    struct consuming *consuming = consuming_new(args);
    enum cli_exit exit;

    if (!consuming)
        return CLI_UNREACHED;
    exit = read_settings(consuming);
    if (exit == CLI_DONE)
        advise_settings(to, consuming);
    release(consuming);
    return exit;
}

static enum cli_exit run(struct cli_args *args)
{
    struct consuming *consuming = consuming_new(args);
    enum cli_exit exit;

    if (!consuming)
        return CLI_UNREACHED;
    exit = open_events(consuming); /* first: threads inherit what signals are blocked */
    if (exit == CLI_DONE)
        exit = read_settings(consuming);
    if (exit == CLI_DONE)
        exit = cli_secrets_read(&consuming->secrets, args);
    if (exit == CLI_DONE)
        exit = cli_traces_open(&consuming->traces, args, &consuming->args->telling,
                               HAPAX__TRACED_MESSAGE);
    if (exit == CLI_DONE)
        exit = open_metrics(consuming);
    if (exit == CLI_DONE)
        exit = cli_open_door(&consuming->h, &consuming->args->args, &consuming->secrets,
                             calls_of(&consuming->consumer), consuming->signals);
    if (exit == CLI_DONE && consuming->h) {
        hapax__use_traces(consuming->h, consuming->traces);
        show_store(consuming);
        exit = run_consumer(consuming);
    }
    if (consuming->h)
        exit = close_store(consuming, exit);
    release(consuming);
    return exit;
}

const struct cli_command cli_consume = {
    .name = "consume",
    .summary = "take messages from a broker and let a handler run once for each",
    .synopsis = {"--from URI --to URL [--key SOURCES] [--POLICY VALUE]..."},
    .prose =
        "Takes messages from RabbitMQ, Kafka or SQS and POSTs each to a handler, once, though "
        "brokers deliver twice, producers send twice and consumers die half-way. A message leaves "
        "the broker once its outcome is stored: 2xx is done, 401, 403, 408, 425, 429, 503 and no "
        "connection are tried again, other 5xx too, --attempts-max times; then, and at once for "
        "another 4xx, it is a dead letter, which \"hapax redrive\" puts back.\n\n"
        "A store or a broker that is away is waited for. Prints a line once it is connected. "
        "SIGTERM and Ctrl-C let handlers finish within --drain, a second one does not; what is not "
        "finished is delivered again. A queue or topic that is not there: exit status 1. "
        "docs/consume.md tells more.",
    .options = options,
    .option_count = OPTIONS,
    .groups = {{"From and to", "from"},
               {"Operations", "key"},
               {"What becomes of a message", "in-flight"},
               {"The process", "concurrency"},
               {"Policies", "profile"}},
    .examples =
        {{"hapax consume --from 'amqp://localhost/?queue=orders' --to "
          "http://127.0.0.1:9000/orders",
          "Keys are in the usual headers, or are the messages' ids."},
         {"hapax consume --from 'kafka://localhost/orders?group=billing' --to "
          "http://127.0.0.1:9000/orders --key /order/id --on-expired hold",
          "The key is in the payload; what died half-way waits for an operator."},
         {"hapax consume --from sqs://eu-central-1/orders --to http://127.0.0.1:9000/orders",
          "Credentials as for every AWS program."}},
    .settings = true,
    .args_size = sizeof(struct consume_args),
    .defaults = defaults,
    .run = run,
    .advise = advise,
};
