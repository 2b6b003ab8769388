/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax check: can the store be reached, and is it set up safely? The store itself knows what to
 * look at; this prints it.
 */
#include "cli.h"

#include "print.h"

struct advice {
    const struct cli_args *args;
    bool danger;
};

static void say(void *arg, bool danger, const char *line)
{
    struct advice *advice = arg;
    struct json json;

    advice->danger = advice->danger || danger;
    if (advice->args->json) {
        json_begin(&json);
        json_bool(&json, "danger", danger);
        json_text(&json, "text", line);
        json_end(&json);
    } else {
        printf("%-8s", danger ? "danger" : "ok");
        print_text(stdout, hapax_str(line), false, 0);
        putchar('\n');
    }
}

static enum cli_exit run(struct cli_args *args)
{
    struct advice advice = {.args = args};
    struct hapax_store *store;
    enum cli_exit exit = cli_open(&store, args, CLI_EXISTING);
    enum hapax_error error;

    if (exit != CLI_DONE)
        return exit;
    error = hapax_store_check(store, say, &advice);
    if (error != HAPAX_ERR_NONE)
        exit = cli_store_failed(args, error, hapax_store_text(store));
    else if (advice.danger)
        exit = CLI_NO;
    hapax_store_close(store);
    return exit;
}

const struct cli_command cli_check = {
    .name = "check",
    .summary = "see whether a store can be reached and is safe",
    .synopsis = {"[--store URI]"},
    .prose = "Asks the store whether it answers and is set up so that it keeps what it "
             "promises. \"danger\" marks a setting with which an answered operation can be lost, "
             "and so run twice: exit status 1.",
    .examples = {{"hapax check --store rocksdb:/var/lib/shop/hapax",
                  "Before the service goes live."}},
    .args_size = sizeof(struct cli_args),
    .run = run,
};
