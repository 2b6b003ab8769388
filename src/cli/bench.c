/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax bench: what a store does here, asked as a busy service asks it. Each client has one op
 * under way: it claims a new key and completes it, or repeats an earlier one; all share a lane, and
 * so their ops share batches. One thread drives them, since threads of clients would measure the
 * scheduler.
 *
 * The figures are of answered ops only. The first failure ends the run, for a rate with failures
 * in it says nothing.
 */
#include "cli.h"

#include "histogram.h"
#include "lane/lane.h"
#include "print.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define LEASE_MS   30000
#define RECENT_MAX 10000u /* repeats are of one of so many last keys: none has expired */

struct bench_args {
    struct cli_args args;
    int64_t clients;
    int64_t seconds;
    int64_t duplicates;
    int64_t size;
    int64_t retention_ms;
};

static const struct cli_option options[] = {
    {"clients", "N", CLI_NUMBER, offsetof(struct bench_args, clients), 1, HAPAX__LANE_QUEUE_MAX,
     "Clients, each with one op under way (default 64)"},
    {"seconds", "S", CLI_NUMBER, offsetof(struct bench_args, seconds), 1, 86400,
     "For so many seconds (default 5)"},
    {"duplicates", "PCT", CLI_NUMBER, offsetof(struct bench_args, duplicates), 0, 99,
     "Of 100 requests so many repeat an earlier key (default 10)"},
    {"size", "BYTES", CLI_SIZE, offsetof(struct bench_args, size), 0, HAPAX_BODY_MAX,
     "Size of the body of each outcome (default 256)"},
    {"retention", "DURATION", CLI_DURATION, offsetof(struct bench_args, retention_ms), LEASE_MS,
     INT64_MAX, "Keep the records so long (default 1m)"},
};

static void defaults(struct cli_args *args)
{
    struct bench_args *bench = (struct bench_args *)args;

    bench->clients = 64;
    bench->seconds = 5;
    bench->duplicates = 10;
    bench->size = 256;
    bench->retention_ms = 60000;
}

struct client {
    struct hapax__job job; /* first, so that a job is its client */
    int64_t asked_ns;
};

struct bench {
    const struct bench_args *args;
    struct hapax__lane *lane;
    struct client *clients;
    uint8_t *body;
    int signals;

    char run[24]; /* begins every key, so that runs do not meet */
    uint64_t random;
    uint64_t keys; /* so many were claimed for the first time */
    uint64_t tokens;
    int64_t begun_ns;
    int64_t ended_ns; /* of the last answer */
    int64_t until_ns;
    uint32_t under_way;
    enum hapax_error error;
    char text[HAPAX_TEXT_MAX];

    uint64_t ops, cycles, claimed, replayed, refused;
    struct histogram latency_ns;
};

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* xorshift64*: which key is repeated needs no better. */
static uint64_t next_random(struct bench *bench)
{
    bench->random ^= bench->random >> 12;
    bench->random ^= bench->random << 25;
    bench->random ^= bench->random >> 27;
    return bench->random * UINT64_C(0x2545f4914f6cdd1d);
}

/* ---- asking -------------------------------------------------------------------------- */

static void submit(struct bench *bench, struct client *client)
{
    client->asked_ns = now_ns();
    if (hapax__lane_submit(bench->lane, &client->job)) {
        bench->under_way++;
        return;
    }
    bench->error = HAPAX_ERR_UNAVAILABLE; /* the queue has room for all, so the lane has ended */
    hapax__lane_text(bench->lane, bench->text);
}

static void ask_claim(struct bench *bench, struct client *client)
{
    static const struct hapax_span none;
    struct hapax_op *op = &client->job.op;
    bool repeat = bench->keys > 0 && next_random(bench) % 100 < (uint64_t)bench->args->duplicates;
    uint64_t recent = bench->keys < RECENT_MAX ? bench->keys : RECENT_MAX;
    uint64_t number = repeat ? bench->keys - 1 - next_random(bench) % recent : bench->keys++;
    char key[64];

    (void)snprintf(key, sizeof(key), "%s-%" PRIu64, bench->run, number);
    memset(op, 0, sizeof(*op));
    op->kind = HAPAX_OP_CLAIM;
    op->scope = hapax_str("bench");
    (void)hapax_id(&op->id, op->scope, hapax_str(key), none, none);
    bench->tokens++;
    memcpy(op->token.bytes, bench->run, 8);
    memcpy(op->token.bytes + 8, &bench->tokens, sizeof(bench->tokens));
    op->lease_ms = LEASE_MS;
    op->retention_ms = bench->args->retention_ms;
    op->on_expired = HAPAX_EXPIRED_RERUN;
    submit(bench, client);
}

static void ask_complete(struct bench *bench, struct client *client)
{
    struct hapax_op *op = &client->job.op;
    struct hapax_id id = op->id;
    struct hapax_token token = op->token;

    memset(op, 0, sizeof(*op));
    op->kind = HAPAX_OP_COMPLETE;
    op->id = id;
    op->token = token;
    op->outcome.status = 200;
    op->outcome.body_kept = true;
    op->outcome.body = (struct hapax_span){bench->body, (size_t)bench->args->size};
    submit(bench, client);
}

/* ---- answers ------------------------------------------------------------------------- */

static void take_answer(struct bench *bench, struct client *client)
{
    struct hapax_op *op = &client->job.op;
    bool claim = op->kind == HAPAX_OP_CLAIM;

    bench->under_way--;
    free(client->job.memory);
    client->job.memory = NULL;
    bench->ended_ns = now_ns();
    if (op->error != HAPAX_ERR_NONE) {
        if (bench->error == HAPAX_ERR_NONE)
            hapax__lane_text(bench->lane, bench->text);
        bench->error = op->error;
        return;
    }
    histogram_add(&bench->latency_ns, (uint64_t)(bench->ended_ns - client->asked_ns));
    bench->ops++;
    if (claim && op->verdict == HAPAX_CLAIMED) {
        bench->claimed++;
        ask_complete(bench, client); /* past the end too: no claim is left behind */
        return;
    }
    if (claim && op->verdict == HAPAX_COMPLETED)
        bench->replayed++;
    else if (!claim && op->verdict == HAPAX_OK)
        bench->cycles++;
    else
        bench->refused++;
    if (bench->ended_ns < bench->until_ns && bench->error == HAPAX_ERR_NONE)
        ask_claim(bench, client);
}

static void take_answers(struct bench *bench)
{
    struct hapax__job *job = hapax__lane_reap(bench->lane);

    while (job) {
        struct hapax__job *next = job->next;

        take_answer(bench, (struct client *)job);
        job = next;
    }
}

/* ---- the run ------------------------------------------------------------------------- */

static void show_progress(const struct bench *bench, int64_t *shown_ns, uint64_t *shown_ops)
{
    int64_t now = now_ns();
    int64_t since = now - *shown_ns;

    if (since < 1000000000 || bench->args->args.json || !isatty(STDERR_FILENO))
        return;
    (void)fprintf(stderr, "\r%4" PRId64 " s  %9.0f ops/s  ", (now - bench->begun_ns) / 1000000000,
                  (double)(bench->ops - *shown_ops) * 1e9 / (double)since);
    *shown_ns = now;
    *shown_ops = bench->ops;
}

static void drive(struct bench *bench)
{
    struct pollfd ready[2] = {{.fd = hapax__lane_fd(bench->lane), .events = POLLIN},
                              {.fd = bench->signals, .events = POLLIN}};
    uint64_t shown_ops = 0;
    int64_t shown_ns;

    bench->begun_ns = shown_ns = now_ns();
    bench->until_ns = bench->begun_ns + bench->args->seconds * 1000000000;
    for (int64_t i = 0; i < bench->args->clients && bench->error == HAPAX_ERR_NONE; i++)
        ask_claim(bench, &bench->clients[i]);
    while (bench->under_way > 0) {
        if (poll(ready, 2, 1000) < 0 && errno != EINTR)
            break;
        if (ready[1].revents) /* Ctrl-C: what was measured so far is shown */
            bench->until_ns = 0;
        take_answers(bench);
        show_progress(bench, &shown_ns, &shown_ops);
    }
    if (shown_ops > 0)
        (void)fprintf(stderr, "\r%40s\r", "");
}

static double per_second(const struct bench *bench, uint64_t n)
{
    int64_t ns = bench->ended_ns - bench->begun_ns;

    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static void put_latency(const char *name, uint64_t ns)
{
    double us = (double)ns / 1e3;

    if (us < 1000)
        printf("  %s %.0f us", name, us);
    else
        printf("  %s %.*f ms", name, us < 100000 ? 1 : 0, us / 1e3);
}

static void report(const struct bench *bench)
{
    const struct bench_args *args = bench->args;

    printf("store     %s\n", args->args.shown);
    printf("load      %" PRId64 " clients for %.1f s, %" PRId64 " %% repeats, bodies of %" PRId64
           " bytes\n",
           args->clients, (double)(bench->ended_ns - bench->begun_ns) / 1e9, args->duplicates,
           args->size);
    printf("cycles/s  %.0f  (an operation claimed and completed)\n",
           per_second(bench, bench->cycles));
    printf("ops/s     %.0f  (each claim and each completion)\n", per_second(bench, bench->ops));
    printf("requests  %" PRIu64 " claimed, %" PRIu64 " replayed, %" PRIu64
           " refused as still under way\n",
           bench->claimed, bench->replayed, bench->refused);
    printf("one op  ");
    put_latency("p50", histogram_quantile(&bench->latency_ns, 500));
    put_latency("p99", histogram_quantile(&bench->latency_ns, 990));
    put_latency("p99.9", histogram_quantile(&bench->latency_ns, 999));
    put_latency("max", bench->latency_ns.max);
    puts("\nIts records are in the scope bench, and expire.");
}

static void report_json(const struct bench *bench)
{
    const struct bench_args *args = bench->args;
    struct json json;

    json_begin(&json);
    json_text(&json, "store", args->args.shown);
    json_number(&json, "clients", args->clients);
    json_number(&json, "elapsed_us", (bench->ended_ns - bench->begun_ns) / 1000);
    json_number(&json, "duplicates", args->duplicates);
    json_number(&json, "size", args->size);
    json_unsigned(&json, "cycles", bench->cycles);
    json_unsigned(&json, "ops", bench->ops);
    json_unsigned(&json, "cycles_per_second", (uint64_t)per_second(bench, bench->cycles));
    json_unsigned(&json, "ops_per_second", (uint64_t)per_second(bench, bench->ops));
    json_unsigned(&json, "claimed", bench->claimed);
    json_unsigned(&json, "replayed", bench->replayed);
    json_unsigned(&json, "refused", bench->refused);
    json_unsigned(&json, "p50_us", histogram_quantile(&bench->latency_ns, 500) / 1000);
    json_unsigned(&json, "p99_us", histogram_quantile(&bench->latency_ns, 990) / 1000);
    json_unsigned(&json, "p999_us", histogram_quantile(&bench->latency_ns, 999) / 1000);
    json_unsigned(&json, "max_us", bench->latency_ns.max / 1000);
    json_end(&json);
}

static bool prepare(struct bench *bench, const struct bench_args *args)
{
    bench->args = args;
    bench->clients = calloc((size_t)args->clients, sizeof(*bench->clients));
    bench->body = malloc((size_t)args->size + 1);
    if (!bench->clients || !bench->body ||
        getrandom(&bench->random, sizeof(bench->random), 0) != sizeof(bench->random))
        return false;
    memset(bench->body, 'x', (size_t)args->size);
    bench->random |= 1;
    (void)snprintf(bench->run, sizeof(bench->run), "%016" PRIx64, bench->random);
    return true;
}

static enum cli_exit measure(struct bench *bench)
{
    const struct cli_args *args = &bench->args->args;
    struct hapax_store *store;
    enum cli_exit exit = cli_open(&store, args, CLI_CREATE);

    if (exit != CLI_DONE)
        return exit;
    if (hapax__lane_open(&bench->lane, store, (uint32_t)bench->args->clients) != HAPAX_ERR_NONE) {
        hapax_store_close(store);
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no memory or thread for a lane");
    }
    drive(bench);
    (void)hapax__lane_close(bench->lane);
    if (bench->error != HAPAX_ERR_NONE)
        return cli_store_failed(args, bench->error, bench->text);
    if (args->json)
        report_json(bench);
    else
        report(bench);
    return CLI_DONE;
}

static enum cli_exit run(struct cli_args *args)
{
    struct bench *bench = calloc(1, sizeof(*bench));
    enum cli_exit exit = CLI_UNREACHED;

    if (bench && prepare(bench, (const struct bench_args *)args) &&
        (bench->signals = cli_signals_begin()) >= 0) {
        exit = measure(bench);
        close(bench->signals);
    } else {
        (void)cli_fail(args, exit, HAPAX_ERR_NOMEM, "out of memory");
    }
    if (bench) {
        free(bench->clients);
        free(bench->body);
    }
    free(bench);
    return exit;
}

const struct cli_command cli_bench = {
    .name = "bench",
    .summary = "measure a store",
    .synopsis = {"[--clients N] [--seconds S] [--duplicates PCT]",
                 "[--size BYTES] [--retention DURATION]"},
    .prose =
        "Claims operations and completes them, as fast as the store goes, and prints how many "
        "a second, and how long one op took. A cycle is an operation, claimed and completed: what "
        "a request with a new key costs. A repeat of a completed operation is replayed; of one "
        "under way, refused.\n\n"
        "It writes real records, in the scope bench, to the store; they expire after "
        "--retention. Operations of services are not touched, but they share the disk.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax bench --clients 1", "How long one request alone waits for the disk."},
                 {"hapax bench --clients 1000 --duplicates 50", "A storm of retries."}},
    .args_size = sizeof(struct bench_args),
    .defaults = defaults,
    .run = run,
};
