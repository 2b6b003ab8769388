/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax check: can the store be reached, and is it set up safely? The store itself knows what to
 * look at, and a door knows about its settings; this prints it.
 */
#include "advice.h"

#include "print.h"
#include "progress.h"
#include "rotate.h"
#include "store/types.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN_MAX 10000 /* of those that wait for an operator so many are counted */

struct advice {
    const struct cli_args *args;
    bool danger;
};

static void say_at(void *arg, enum cli_level level, const char *line)
{
    static const char *const names[] = {
        [CLI_OK] = "ok", [CLI_WARNING] = "warning", [CLI_DANGER] = "danger"};
    struct advice *advice = arg;
    struct json json;

    advice->danger = advice->danger || level == CLI_DANGER;
    if (advice->args->json) {
        json_begin(&json);
        json_bool(&json, "danger", level == CLI_DANGER);
        json_text(&json, "level", names[level]);
        json_text(&json, "text", line);
        json_end(&json);
    } else {
        printf("%-8s", names[level]);
        print_text(stdout, hapax_str(line), false, 0);
        putchar('\n');
    }
}

static void say(void *arg, bool danger, const char *line)
{
    say_at(arg, danger ? CLI_DANGER : CLI_OK, line);
}

/* ---- the door -------------------------------------------------------------------------- */

/* Whether --store stands on the line. It is the first of the shared options. */
static bool names_store(const struct cli_args *args)
{
    return args->given[args->command->option_count].from == CLI_FROM_LINE;
}

/* Says what there is to say of the settings of the door that stands after "--". Its store is then
 * the one that is checked. */
static enum cli_exit advise_door(struct advice *advice, struct cli_args *args,
                                 struct cli_args **door)
{
    const struct cli_command *command = cli_command_find(args->words[0] ? args->words[0] : "");
    const struct cli_advice to = {say_at, advice};
    enum cli_exit exit;
    int words = 1;

    if (!command || !command->advise)
        return cli_fail(
            args, CLI_USAGE, HAPAX_ERR_INVALID,
            "after -- stands a door and its options: serve, consume, lambda, door or run");
    *door = cli_args_new(command);
    if (!*door)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    while (args->words[words])
        words++;
    exit = cli_parse(*door, words - 1, args->words + 1);
    if (exit == CLI_DONE && names_store(args) && !names_store(*door))
        (*door)->store = args->store;
    if (exit == CLI_DONE)
        exit = cli_store_name(*door);
    return exit == CLI_DONE ? command->advise(*door, &to) : exit;
}

/* ---- what no store and no door knows ------------------------------------------------------ */

static void say_secrets(struct advice *advice, struct hapax_store *store)
{
    const char *cores = getenv("HAPAX_CORE_DUMPS");
    bool secret;

    if (!cli_secret_given() && hapax__bind_has_secret(store, &secret) == HAPAX_ERR_NONE && !secret)
        say_at(advice, CLI_WARNING,
               "no secret: who reads the store, or a backup of it, can test guessed keys; set "
               "HAPAX_SECRET_FILE for all doors, before the store's first use");
    if (cores && strcmp(cores, "on") == 0)
        say_at(advice, CLI_WARNING,
               "HAPAX_CORE_DUMPS is on: a crash writes secrets, tokens and bodies to a file; unset "
               "it");
}

static void say_rotation(void *arg, bool seen, const char *line)
{
    say_at(arg, seen ? CLI_OK : CLI_WARNING, line);
}

/* Says how many operations wait for an operator. Not of a store that can only be walked from end to
 * end, which would take minutes. */
static void say_unknown(struct advice *advice, struct hapax_store *store, struct progress *progress)
{
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .states = 1u << HAPAX_STATE_UNKNOWN};
    char line[HAPAX_TEXT_MAX], age[PRINT_AGE_MAX];
    uint32_t n = 0;
    int64_t oldest_us = 0;

    if (store->type->forgets)
        return;
    do {
        double share = progress_share(store, &op.cursor), most = n / (double)UNKNOWN_MAX;

        progress_tell(progress, share > most ? share : most, n, "unknown");
        if (hapax_store_run(store, &op, 1) != HAPAX_ERR_NONE)
            break; /* what is wrong with the store was said */
        for (uint32_t i = 0; i < op.count; i++)
            if (op.now_us - op.records[i].updated_us > oldest_us)
                oldest_us = op.now_us - op.records[i].updated_us;
        n += op.count;
        op.cursor = op.next_cursor;
    } while (op.more && n < UNKNOWN_MAX);
    progress_end(progress);
    if (n == 0 || op.error != HAPAX_ERR_NONE)
        return;
    print_age(age, oldest_us);
    (void)snprintf(line, sizeof(line),
                   "%s%" PRIu32 " operation%s unknown, one for %s: an operator has to say what "
                   "happened (hapax list --state unknown)",
                   op.more ? "over " : "", n, n == 1 ? " is" : "s are", age);
    say_at(advice, CLI_WARNING, line);
}

static enum cli_exit run(struct cli_args *args)
{
    struct advice advice = {.args = args};
    struct cli_args *door = NULL;
    struct hapax_store *store = NULL;
    enum cli_exit exit = args->words ? advise_door(&advice, args, &door) : CLI_DONE;
    enum hapax_error error;
    struct progress progress;

    progress_begin(&progress, args);
    if (exit == CLI_DONE)
        exit = cli_open(&store, door ? door : args, CLI_EXISTING);
    if (exit == CLI_DONE) {
        error = hapax_store_check(store, say, &advice);
        if (error != HAPAX_ERR_NONE)
            exit = cli_store_failed(args, error, hapax_store_text(store));
    }
    if (exit == CLI_DONE) {
        say_unknown(&advice, store, &progress);
        say_secrets(&advice, store);
        exit = rotate_say(args, store, &progress, say_rotation, &advice);
    }
    if (exit == CLI_DONE && advice.danger)
        exit = CLI_NO;
    hapax_store_close(store);
    cli_args_free(door);
    return exit;
}

const struct cli_command cli_check = {
    .name = "check",
    .summary = "see whether a store can be reached and is safe",
    .synopsis = {"[--store URI] [-- serve|consume|lambda|door|run OPTION...]"},
    .words = true,
    .prose = "Asks the store whether it answers and is set up so that it keeps what it "
             "promises. \"danger\" marks a setting with which an answered operation can be lost, "
             "and so run twice, a right that only the owner should have, damage that was met, "
             "a disk that is nearly full, or a Redis of a hybrid store that is away, or in which "
             "others can forge answers: exit status 1. \"warning\" marks what is dangerous in some "
             "places only, and operations that wait for an operator.\n\n"
             "After -- write a door and its options, as you start the door. Then hapax check also "
             "says what these options promise, and which are dangerous. Nothing is started.",
    .examples = {{"hapax check --store rocksdb:/var/lib/shop/hapax",
                  "Before the service goes live."},
                 {"hapax check -- serve --upstream http://127.0.0.1:9000 --on-expired hold",
                  "What is promised, and what is dangerous."}},
    .args_size = sizeof(struct cli_args),
    .run = run,
};
