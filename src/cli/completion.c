/* SPDX-License-Identifier: Apache-2.0
 *
 * Completions for shells, printed from the same struct cli_command as the pages.
 */
#include "cli.h"

static void bash(void)
{
    const struct cli_option *option;

    fputs("# Completion of hapax for bash.\n"
          "_hapax() {\n"
          "    local options word=${COMP_WORDS[COMP_CWORD]}\n"
          "    case $COMP_CWORD:${COMP_WORDS[1]} in\n"
          "    1:*) options='",
          stdout);
    for (size_t i = 0; cli_commands[i]; i++)
        printf("%s%s", i > 0 ? " " : "", cli_commands[i]->name);
    puts("' ;;");
    for (size_t i = 0; cli_commands[i]; i++) {
        printf("    *:%s) options='--help", cli_commands[i]->name);
        for (size_t k = 0; (option = cli_option_at(cli_commands[i], k)) != NULL; k++)
            printf(" --%s", option->name);
        puts("' ;;");
    }
    fputs("    esac\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
          "}\n"
          "complete -o default -F _hapax hapax\n",
          stdout);
}

/* Within '…' and […]. */
static void put_zsh(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
        } else {
            if (*text == '[' || *text == ']' || *text == ':' || *text == '\\')
                putchar('\\');
            putchar(*text);
        }
    }
}

static void zsh(void)
{
    const struct cli_option *option;

    puts("#compdef hapax\n"
         "if (( CURRENT == 2 )); then\n"
         "    _values 'command' \\");
    for (size_t i = 0; cli_commands[i]; i++) {
        printf("        '%s[", cli_commands[i]->name);
        put_zsh(cli_commands[i]->summary);
        printf("]'%s\n", cli_commands[i + 1] ? " \\" : "");
    }
    puts("    return\nfi\ncase $words[2] in");
    for (size_t i = 0; cli_commands[i]; i++) {
        printf("%s)\n    _arguments '--help[print the page]'", cli_commands[i]->name);
        for (size_t k = 0; (option = cli_option_at(cli_commands[i], k)) != NULL; k++) {
            printf(" \\\n        '%s--%s%s[", option->kind == CLI_TEXTS ? "*" : "", option->name,
                   option->kind == CLI_FLAG ? "" : "=");
            put_zsh(option->about);
            putchar(']');
            if (option->value) {
                putchar(':');
                put_zsh(option->value);
                fputs(":_files", stdout);
            }
            putchar('\'');
        }
        puts(" \\\n        '*::word:_files' ;;");
    }
    puts("esac");
}

void cli_completion(bool for_zsh)
{
    for_zsh ? zsh() : bash();
}
