/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax purge: removes expired records, and makes operations unknown that were left unfinished
 * under `hold`. It works in batches, so that no batch keeps the store busy for long. With --every
 * it goes on until a signal, also while the store is away. A store that forgets by itself is not
 * asked.
 */
#include "cli.h"

#include "print.h"
#include "progress.h"
#include "report.h"

#include <inttypes.h>
#include <sys/random.h>
#include <unistd.h>

struct purge_args {
    struct cli_args args;
    int64_t every_ms; /* 0: once */
};

static const struct cli_option options[] = {
    {"every", "TIME", CLI_DURATION, offsetof(struct purge_args, every_ms), 1000,
     HAPAX_DURATION_MAX_MS,
     "Again and again, with about this long between, until Ctrl-C or SIGTERM"},
};

/* text: printed instead of the numbers, and beside them in JSON; NULL: none. */
static void say_done(const struct cli_args *args, uint64_t purged, uint64_t expired_claims,
                     const char *text)
{
    struct json json;

    if (args->json) {
        json_begin(&json);
        json_unsigned(&json, "purged", purged);
        json_unsigned(&json, "settled", expired_claims);
        if (text)
            json_text(&json, "text", text);
        json_end(&json);
    } else if (text) {
        puts(text);
    } else {
        printf("removed %" PRIu64 " expired record%s", purged, purged == 1 ? "" : "s");
        if (expired_claims > 0)
            printf(", %" PRIu64 " left unfinished %s now unknown", expired_claims,
                   expired_claims == 1 ? "is" : "are");
        putchar('\n');
    }
    (void)fflush(stdout);
}

/* *stop is set where a signal ended the sweep: it is read only once. */
static enum cli_exit purge_all(const struct cli_args *args, struct hapax_store *store, int signals,
                               bool *stop)
{
    struct hapax_op op = {.kind = HAPAX_OP_PURGE};
    struct report_damage damage = {0};
    uint64_t purged = 0, expired_claims = 0;
    struct progress progress;
    enum hapax_error error;

    progress_begin(&progress, args);
    do {
        error = hapax_store_run(store, &op, 1);
        if (error != HAPAX_ERR_NONE)
            break;
        if (op.damaged)
            progress_end(&progress);
        report_damage(&damage, "purge", &op);
        purged += op.purged;
        expired_claims += op.expired_claims;
        op.cursor = op.next_cursor;
        if (op.more)
            progress_tell(&progress, progress_share(store, &op.cursor), purged, "removed");
        *stop = op.more && signals >= 0 && cli_signals_wait(signals, 0) != 0;
    } while (op.more && !*stop);
    progress_end(&progress);
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, hapax_store_text(store));
    say_done(args, purged, expired_claims, NULL);
    if (damage.places > 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_CORRUPT,
                        "%u damaged places were passed over (\"hapax check\" says more)",
                        damage.places);
    return CLI_DONE;
}

/* A tenth more or less, so that purges that began together do not stay together. */
static int64_t about(int64_t ms)
{
    uint32_t random;

    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
        return ms;
    return ms - ms / 10 + (int64_t)(random % 1024) * (ms / 5) / 1024;
}

static enum cli_exit purge_store(const struct purge_args *purge, struct hapax_store *store,
                                 int signals)
{
    enum cli_exit exit;
    bool stop = false;

    if (store->type->forgets) {
        say_done(&purge->args, 0, 0,
                 "nothing to remove: this store drops expired records by itself");
        return CLI_DONE;
    }
    exit = purge_all(&purge->args, store, signals, &stop);
    if (signals < 0)
        return exit;
    while (!stop && cli_signals_wait(signals, about(purge->every_ms)) == 0)
        (void)purge_all(&purge->args, store, signals, &stop);
    return CLI_DONE;
}

static enum cli_exit run(struct cli_args *args)
{
    const struct purge_args *purge = (const struct purge_args *)args;
    struct hapax_store *store;
    int signals = purge->every_ms > 0 ? cli_signals_begin() : -1;
    enum cli_exit exit = cli_open(&store, args, CLI_EXISTING);

    if (exit != CLI_DONE)
        return exit;
    exit = purge_store(purge, store, signals);
    if (signals >= 0)
        close(signals);
    hapax_store_close(store);
    return exit;
}

const struct cli_command cli_purge = {
    .name = "purge",
    .summary = "remove expired records, settle abandoned ones",
    .synopsis = {"[--every TIME]"},
    .prose =
        "Removes records whose retention is over. They are never shown or used after that, "
        "so this is about room only; an embedded store also drops them by itself in time, "
        "and Redis does at once, so that there is nothing to do. "
        "Operations that run, or that wait for an operator, are never removed.\n\n"
        "What was left unfinished under `hold`, its lease over, becomes `unknown`, as it would "
        "when it is next asked for; `hapax list --state unknown` then shows it. Redis is not "
        "walked through: there `hapax list --state started --older 5m` finds it.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax purge", "Once."}, {"hapax purge --every 60s", "Until it is stopped."}},
    .settings = true,
    .args_size = sizeof(struct purge_args),
    .run = run,
};
