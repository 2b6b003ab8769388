/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax show: one operation's record.
 */
#include "cli.h"

#include "print.h"
#include "report.h"

struct show_args {
    struct cli_args args;
    struct cli_operation operation;
};

static const struct cli_option options[] = {
    CLI_OPERATION_OPTIONS(struct show_args, operation),
};

static enum cli_exit say_absent(const struct cli_args *args, const struct hapax_id *id)
{
    struct json json;

    if (!args->json) {
        (void)fprintf(stderr, "hapax show: no such operation in \"%s\"\n", args->store);
        return CLI_NO;
    }
    json_begin(&json);
    json_hex(&json, "id", id->bytes);
    json_text(&json, "state", hapax_state_name(HAPAX_STATE_ABSENT));
    json_end(&json);
    return CLI_NO;
}

static enum cli_exit run(struct cli_args *args)
{
    const struct show_args *show = (const struct show_args *)args;
    struct hapax_op op = {.kind = HAPAX_OP_READ};
    struct hapax_store *store;
    enum cli_exit exit;
    enum hapax_error error;

    exit = cli_open_operation(&store, &op.id, args, &show->operation);
    if (exit != CLI_DONE)
        return exit;
    error = hapax_store_run(store, &op, 1);
    if (error != HAPAX_ERR_NONE)
        exit = cli_store_failed(args, error, hapax_store_text(store));
    else if (op.verdict == HAPAX_ABSENT)
        exit = say_absent(args, &op.id);
    else if (args->json)
        report_record_json(&op.record, false);
    else
        report_record(&op.record, op.now_us);
    hapax_store_close(store);
    return exit;
}

const struct cli_command cli_show = {
    .name = "show",
    .summary = "print what is known of an operation",
    .synopsis = {"[--scope S] [--step NAME] KEY", "--id HEX"},
    .prose = "Prints the record of one operation: its state, its attempts, its times, and the "
             "outcome that repeats are answered with.\n\n"
             "KEY is the key as the client sends it, without quotes. Keys are not stored, only "
             "what they hash to, so the scope has to be the same as in the service. Exit status "
             "1: there is no such operation.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .operand = "KEY",
    .examples = {{"hapax show --scope cards order-1", "The operation order-1 of the scope cards."},
                 {"hapax show --json order-1 | jq -r .body", "The answer that was stored."}},
    .args_size = sizeof(struct show_args),
    .run = run,
};
