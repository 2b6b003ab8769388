/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax switch: says to the gates of a store that they are to guard, only to watch, or to let pass;
 * or prints what is said. The gates look at it while they run (docs/trying.md).
 */
#include "audit.h"
#include "print.h"

#include "store/types.h"

#include <string.h>

struct switch_args {
    struct cli_args args;
    const char *scope;
    const char *by;
    const char *audit;
};

static const struct cli_option options[] = {
    CLI_TEXT_OPTION(struct switch_args, scope, "scope", "S",
                    "Of this scope alone, besides that of the whole store"),
    CLI_TEXT_OPTION(struct switch_args, by, "by", "NAME",
                    "Who switches, for the record (default: your login name)"),
    CLI_TEXT_OPTION(struct switch_args, audit, "audit", "FILE",
                    "Where the act leaves lines (default $HAPAX_AUDIT_FILE)"),
};

static const char *meaning(enum hapax__switch word)
{
    switch (word) {
    case HAPAX__SWITCH_OFF:
        return "requests pass, and nothing is guarded or counted";
    case HAPAX__SWITCH_SHADOW:
        return "requests pass, and it is counted what would have become of them";
    case HAPAX__SWITCH_ON:
        break;
    }
    return "gates do what their own settings say";
}

/* Reads what is said. *op has the record. */
static enum cli_exit look(const struct cli_args *args, struct hapax_store *store,
                          struct hapax_op *op, const char *scope)
{
    enum hapax_error error;

    *op = hapax__switch_read(hapax_str(scope));
    error = hapax_store_run(store, op, 1);
    return error == HAPAX_ERR_NONE ? CLI_DONE
                                   : cli_store_failed(args, error, hapax_store_text(store));
}

static void print_one(const struct hapax_op *op, const char *scope)
{
    enum hapax__switch word = hapax__switch_said(op);
    char age[PRINT_AGE_MAX];

    printf("%s%s%s: %s", scope ? scope : "", scope ? ": " : "", hapax__switch_name(word),
           meaning(word));
    if (op->verdict == HAPAX_FOUND && op->record.resolved_us > 0) {
        print_age(age, op->now_us - op->record.resolved_us);
        (void)fputs(" (by ", stdout);
        print_text(stdout, op->record.resolved_by, false, 0);
        printf(", %s ago)", age);
    }
    (void)putchar('\n');
}

static void json_one(const struct hapax_op *op, const char *scope)
{
    struct json json;

    json_begin(&json);
    json_text(&json, "switch", hapax__switch_name(hapax__switch_said(op)));
    if (scope)
        json_bytes(&json, "scope", hapax_str(scope));
    if (op->verdict == HAPAX_FOUND && op->record.resolved_us > 0) {
        json_bytes(&json, "by", op->record.resolved_by);
        json_number(&json, "since_us", op->record.resolved_us);
    }
    json_end(&json);
}

static enum cli_exit show(const struct cli_args *args, struct hapax_store *store, const char *scope)
{
    const char *const scopes[] = {NULL, scope};
    enum cli_exit exit = CLI_DONE;
    struct hapax_op op;

    for (size_t i = 0; i < (scope ? 2u : 1u) && exit == CLI_DONE; i++) {
        exit = look(args, store, &op, scopes[i]);
        if (exit == CLI_DONE && args->json)
            json_one(&op, scopes[i]);
        else if (exit == CLI_DONE)
            print_one(&op, scopes[i]);
    }
    return exit;
}

static enum cli_exit set(const struct switch_args *given, struct hapax_store *store,
                         enum hapax__switch word)
{
    const struct cli_args *args = &given->args;
    char login[HAPAX_BY_MAX + 1];
    struct audit_switched act = {
        .scope = given->scope, .by = cli_by(login, given->by), .to = hapax__switch_name(word)};
    enum hapax_error error;
    struct audit audit;
    struct hapax_op op;
    enum cli_exit exit = look(args, store, &op, given->scope);

    if (exit == CLI_DONE)
        exit = audit_begin(&audit, args, given->audit);
    if (exit != CLI_DONE)
        return exit;
    act.was = hapax__switch_name(hapax__switch_said(&op));
    exit = audit_switch(&audit, &act, NULL);
    if (exit == CLI_DONE) {
        error = hapax__switch_set(store, hapax_str(given->scope), word, hapax_str(act.by));
        exit = error == HAPAX_ERR_NONE ? CLI_DONE
                                       : cli_store_failed(args, error, hapax_store_text(store));
        (void)audit_switch(&audit, &act, error == HAPAX_ERR_NONE ? "ok" : hapax_error_name(error));
    }
    audit_end(&audit, exit);
    return exit == CLI_DONE ? show(args, store, given->scope) : exit;
}

static enum cli_exit run(struct cli_args *args)
{
    static const char *const words[] = {"off", "shadow", "on", NULL};
    const struct switch_args *given = (const struct switch_args *)args;
    struct hapax_store *store;
    enum cli_exit exit;
    size_t word = 0;

    while (args->operand && words[word] && strcmp(args->operand, words[word]) != 0)
        word++;
    if (!words[word])
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "\"%.64s\" is not off, shadow or on",
                        args->operand);
    if (given->scope && (!*given->scope || strlen(given->scope) > HAPAX_SCOPE_MAX))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--scope is not of 1 to %u bytes",
                        HAPAX_SCOPE_MAX);
    if (given->by && (!*given->by || strlen(given->by) > HAPAX_BY_MAX))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--by is not of 1 to %u bytes",
                        HAPAX_BY_MAX);
    exit = cli_open(&store, args, CLI_EXISTING);
    if (exit != CLI_DONE)
        return exit;
    exit = args->operand ? set(given, store, (enum hapax__switch)(HAPAX__SWITCH_OFF + word))
                         : show(args, store, given->scope);
    cli_close(args, store);
    return exit;
}

const struct cli_command cli_switch = {
    .name = "switch",
    .summary = "let the gates of a store guard, watch or pass, while they run",
    .synopsis = {"[off|shadow|on] [--scope S]"},
    .prose =
        "Gates (hapax serve, and the nginx module) look at the word in their store once a second, "
        "without a reload. The word can only take away from what their own settings say. off: "
        "requests pass as if there were no gate. shadow: they pass, and it is counted what would "
        "have become of them. on: gates do what their own settings say, as without a word. With "
        "--scope the word is for one scope; where the store has a word, too, the lower one "
        "goes. What has begun goes on as it began. Without a word: prints what is said.\n\n"
        "A gate that cannot reach its store keeps to the last word that it knew. Other doors do "
        "not look at it: stop a consumer, and its messages wait. See docs/trying.md. The act "
        "leaves two lines in the system's log (authpriv), and in --audit FILE.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .operand = "WORD",
    .examples = {{"hapax switch shadow --store redis://cache",
                  "All gates of this store only watch."},
                 {"hapax switch off --scope payments", "Those of one scope let all pass."},
                 {"hapax switch", "What is said."}},
    .args_size = sizeof(struct switch_args),
    .run = run,
};
