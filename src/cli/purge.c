/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax purge: removes expired records, in batches, so that no batch holds the store up for long.
 * With --every it goes on until a signal, and a store that is away for a while ends nothing.
 */
#include "cli.h"

#include "print.h"

#include <inttypes.h>
#include <unistd.h>

struct purge_args {
    struct cli_args args;
    int64_t every_ms; /* 0: once */
};

static const struct cli_option options[] = {
    {"every", "TIME", CLI_DURATION, offsetof(struct purge_args, every_ms), 1000,
     HAPAX_DURATION_MAX_MS, "Again and again, with this long between, until Ctrl-C or SIGTERM"},
};

static enum cli_exit purge_all(const struct cli_args *args, struct hapax_store *store, int signals)
{
    struct hapax_op op = {.kind = HAPAX_OP_PURGE};
    uint64_t purged = 0;
    struct json json;

    do {
        enum hapax_error error = hapax_store_run(store, &op, 1);

        if (error != HAPAX_ERR_NONE)
            return cli_store_failed(args, error, hapax_store_text(store));
        purged += op.purged;
    } while (op.more && (signals < 0 || cli_signals_wait(signals, 0) == 0));
    if (args->json) {
        json_begin(&json);
        json_unsigned(&json, "purged", purged);
        json_end(&json);
    } else {
        printf("removed %" PRIu64 " expired record%s\n", purged, purged == 1 ? "" : "s");
    }
    (void)fflush(stdout);
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
    exit = purge_all(args, store, signals);
    if (signals >= 0) {
        while (cli_signals_wait(signals, purge->every_ms) == 0)
            (void)purge_all(args, store, signals);
        close(signals);
        exit = CLI_DONE;
    }
    hapax_store_close(store);
    return exit;
}

const struct cli_command cli_purge = {
    .name = "purge",
    .summary = "remove expired records",
    .synopsis = {"[--every TIME]"},
    .prose = "Removes records whose retention is over. They are never shown or used after that, "
             "so this is about room only; an embedded store also drops them by itself in time. "
             "Operations that run, or that wait for an operator, are never removed.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax purge", "Once."}, {"hapax purge --every 60s", "Until it is stopped."}},
    .args_size = sizeof(struct purge_args),
    .run = run,
};
