/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax relay: publishes the outbox of a PostgreSQL database (src/relay/relay.h) until a signal
 * comes. Then it ends the rows in hand and gives its parts back.
 */
#include "cli.h"

#include "base/uri.h"
#include "metrics.h"
#include "print.h"
#include "relay/metrics.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct relay_args {
    struct cli_args args;
    const char *from;
    const char *to;
    struct cli_metrics metrics;
    struct cli_telling telling;
    int64_t batch;
    int64_t poll_ms;
    int64_t lease_ms;
    int64_t retry_ms;
    int64_t attempts_max;
    int64_t keep_ms;
    int64_t drain_ms;
};

#define AT(field) offsetof(struct relay_args, field)
#define DAY_MS    (INT64_C(24) * 3600 * 1000)

static const struct cli_option options[] = {
    {"from", "URI", CLI_TEXT, AT(from), 0, 0, "The database, as postgres://localhost/shop"},
    {"to", "URI", CLI_TEXT, AT(to), 0, 0,
     "The broker, as amqp://localhost, kafka://localhost or sqs://REGION"},
    {"batch", "N", CLI_NUMBER, AT(batch), 1, HAPAX__RELAY_BATCH_MAX,
     "Messages in hand (default 500)"},
    {"poll", "TIME", CLI_DURATION, AT(poll_ms), 10, 60000,
     "How often to look without a notification (default 500ms)"},
    {"lease", "TIME", CLI_DURATION, AT(lease_ms), 1000, 3600000,
     "A relay silent for this long is dead (default 10s)"},
    {"retry", "TIME", CLI_DURATION, AT(retry_ms), 1, 3600000,
     "The first pause of a message that was refused (default 1s)"},
    {"attempts-max", "N", CLI_NUMBER, AT(attempts_max), 1, 1000000,
     "After so many tries a message is put aside (default 16)"},
    {"keep", "TIME", CLI_DURATION, AT(keep_ms), 0, HAPAX_DURATION_MAX_MS,
     "How long published messages stay (default 24h)"},
    {"drain", "TIME", CLI_DURATION, AT(drain_ms), 0, 3600000,
     "At the end, how long to wait for the broker (default 10s)"},
    CLI_METRICS_OPTIONS(struct relay_args, metrics),
    CLI_TELLING_OPTIONS(struct relay_args, telling),
};

static void defaults(struct cli_args *args)
{
    struct relay_args *relay = (struct relay_args *)args;
    struct hapax__relay how;

    hapax__relay_init(&how);
    relay->batch = how.batch;
    relay->poll_ms = how.poll_ms;
    relay->lease_ms = how.lease_ms;
    relay->retry_ms = how.retry_ms;
    relay->attempts_max = how.attempts_max;
    relay->keep_ms = how.keep_ms;
    relay->drain_ms = how.drain_ms;
}

static void say(void *arg, const char *line)
{
    cli_log(arg, line);
}

static void beat(void)
{
    cli_notify("WATCHDOG=1");
}

static void say_ready(const struct relay_args *args, uint16_t port)
{
    char from[HAPAX_TEXT_MAX], to[HAPAX_TEXT_MAX];
    struct json json;

    hapax_store_shown(from, args->from);
    hapax__uri_shown(to, args->to);
    if (args->args.json) {
        json_begin(&json);
        json_text(&json, "relaying", from);
        json_text(&json, "to", to);
        if (args->metrics.address)
            json_number(&json, "metrics_port", port);
        json_number(&json, "pid", getpid());
        json_end(&json);
    } else {
        printf("hapax relay: publishes the outbox of %s to %s (pid %ld)", from, to, (long)getpid());
        if (args->metrics.address)
            printf("; metrics at port %u", port);
        (void)putchar('\n');
    }
    (void)fflush(stdout);
}

static enum cli_exit relay(const struct relay_args *args, int signals)
{
    struct hapax__relay_stats stats = {0};
    struct hapax__relay how;
    struct hapax__pages *pages = NULL;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    uint16_t port = 0;

    hapax__relay_init(&how);
    if (cli_traces_open(&how.traces, &args->args, &args->telling, HAPAX__TRACED_RELAY) != CLI_DONE)
        return CLI_USAGE;
    how.from = args->from;
    how.to = args->to;
    how.batch = (uint32_t)args->batch;
    how.poll_ms = args->poll_ms;
    how.lease_ms = args->lease_ms;
    how.retry_ms = args->retry_ms;
    how.attempts_max = (uint32_t)args->attempts_max;
    how.keep_ms = args->keep_ms;
    how.drain_ms = args->drain_ms;
    how.stop_fd = signals;
    how.log = say;
    how.log_arg = (void *)(uintptr_t)&args->args;
    how.beat_ms = cli_watchdog_ms();
    how.beat = how.beat_ms > 0 ? beat : NULL;
    error = hapax__relay_check(&how, text);
    if (error == HAPAX_ERR_NONE && args->metrics.address) {
        const struct hapax__page_place place = cli_metrics_place(&args->metrics);

        error = hapax__relay_metrics(&pages, &place, &stats, &port, text);
        if (error != HAPAX_ERR_NONE)
            return cli_metrics_failed(&args->args, error, text);
    }
    if (error == HAPAX_ERR_NONE) {
        say_ready(args, port);
        cli_notify("READY=1");
        error = hapax__relay_run(&how, &stats, text);
    }
    hapax__pages_close(pages);
    hapax__traces_close(how.traces);
    switch (error) {
    case HAPAX_ERR_NONE:
        return CLI_DONE;
    case HAPAX_ERR_REFUSED: /* by the broker, as in hapax consume; or by the database */
        return cli_fail(&args->args, stats.database_up ? CLI_NO : CLI_USAGE, error, "%s", text);
    case HAPAX_ERR_INVALID:
    case HAPAX_ERR_UNSUPPORTED:
        return cli_fail(&args->args, CLI_USAGE, error, "%s", text);
    default:
        return cli_fail(&args->args, CLI_UNREACHED, error, "%s", text);
    }
}

static enum cli_exit run(struct cli_args *args)
{
    const struct relay_args *relay_args = (const struct relay_args *)args;
    enum cli_exit exit;
    int signals;

    if (!relay_args->from)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--from URI is missing: the database, as postgres://localhost/shop");
    if (!relay_args->to)
        return cli_fail(
            args, CLI_USAGE, HAPAX_ERR_INVALID,
            "--to URI is missing: the broker, as amqp://localhost, kafka://localhost or "
            "sqs://eu-central-1");
    signals = cli_signals_begin();
    if (signals < 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    exit = relay(relay_args, signals);
    close(signals);
    return exit;
}

const struct cli_command cli_relay = {
    .name = "relay",
    .summary = "publish the outbox of a PostgreSQL database",
    .synopsis =
        {"--from postgres://... --to amqp://...|kafka://...|sqs://... [--batch N] [--poll TIME]"},
    .prose =
        "Publishes what hapax.publish() wrote in transactions that committed. Each message is "
        "published at least once, and with one key each time. The messages of an aggregate are "
        "published in the order of their commits, however many relays run. A message that the "
        "broker refuses keeps back the later ones of its aggregate, and of no other. It is "
        "tried again with growing pauses, and put aside after --attempts-max tries. \"hapax list "
        "--outbox\" shows such messages, \"hapax redrive --from postgres://...\" puts them back. "
        "Published messages are removed after --keep.\n\n"
        "The relay waits for a database or a broker that is away. NOTIFY calls the relay, and "
        "it also polls, which is enough behind PgBouncer. On SIGTERM and Ctrl-C the relay "
        "finishes what is in hand and ends. See docs/sagas.md.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .no_store = true,
    .examples = {{"hapax relay --from postgres://localhost/shop --to amqp://localhost",
                  "A message's topic is the queue it goes to."}},
    .settings = true,
    .args_size = sizeof(struct relay_args),
    .defaults = defaults,
    .run = run,
};
