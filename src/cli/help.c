/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax help: the pages for people. --man, --markdown and --completion print them for the build,
 * which makes the man pages, docs/cli.md and the shells' completions of them; `hapax` there names
 * the page of hapax itself.
 */
#include "cli.h"

#include <string.h>

struct help_args {
    struct cli_args args;
    bool man;
    bool markdown;
    const char *completion;
};

/* For the build; the page leaves them out. */
static const struct cli_option options[] = {
    {"man", NULL, CLI_FLAG, offsetof(struct help_args, man), 0, 0, "Print the page as roff"},
    {"markdown", NULL, CLI_FLAG, offsetof(struct help_args, markdown), 0, 0,
     "Print all pages as markdown"},
    CLI_TEXT_OPTION(struct help_args, completion, "completion", "SHELL",
                    "Print the completion for bash or zsh"),
};

static enum cli_exit run(struct cli_args *args)
{
    const struct help_args *help = (const struct help_args *)args;
    const struct cli_command *command = NULL;
    enum cli_form form = help->man        ? CLI_FORM_MAN
                         : help->markdown ? CLI_FORM_MARKDOWN
                                          : CLI_FORM_TEXT;
    char advice[128];

    if (args->operand && strcmp(args->operand, "hapax") != 0) {
        command = cli_command_find(args->operand);
        if (!command) {
            cli_command_advice(advice, args->operand);
            return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "no command \"%s\"%s",
                            args->operand, advice);
        }
    }
    if (!help->completion)
        cli_page(command, form);
    else if (strcmp(help->completion, "bash") == 0 || strcmp(help->completion, "zsh") == 0)
        cli_completion(help->completion[0] == 'z');
    else
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--completion is bash or zsh");
    return CLI_DONE;
}

const struct cli_command cli_help = {
    .name = "help",
    .summary = "print what a command does and takes",
    .synopsis = {"[COMMAND]"},
    .prose = "Prints the page of a command, the same as \"hapax COMMAND --help\". Without a "
             "command, what there is.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .operand = "COMMAND",
    .no_store = true,
    .no_shared = true,
    .examples = {{"hapax help resolve", "How to settle an operation by hand."}},
    .args_size = sizeof(struct help_args),
    .run = run,
};
