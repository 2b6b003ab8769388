/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax: finds the command, reads its options, runs it. Every command ends here, so that what could
 * not be printed is noticed once, for all of them.
 */
#include "cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static enum cli_exit run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_args *args = cli_args_new(command);
    enum cli_exit exit;

    if (!args) {
        (void)fputs("hapax: out of memory\n", stderr);
        return CLI_UNREACHED;
    }
    exit = cli_parse(args, argc, argv);
    if (exit == CLI_DONE && args->help)
        cli_page(command, CLI_FORM_TEXT);
    else if (exit == CLI_DONE && !command->no_store)
        exit = cli_store_name(args);
    if (exit != CLI_DONE && command->wrong)
        exit = (enum cli_exit)command->wrong;
    if (exit == CLI_DONE && !args->help)
        exit = command->run(args);
    cli_args_free(args);
    return exit;
}

static enum cli_exit dispatch(int argc, char **argv)
{
    const struct cli_command *command;
    char advice[128];

    if (argc < 2) {
        cli_page(NULL, CLI_FORM_TEXT);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("hapax " HAPAX_VERSION);
        return CLI_DONE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        cli_page(NULL, CLI_FORM_TEXT);
        return CLI_DONE;
    }
    command = cli_command_find(argv[1]);
    if (command)
        return run(command, argc - 2, argv + 2);
    if (argv[1][0] == '-') {
        struct cli_nearest nearest = {.word = argv[1], .len = strlen(argv[1])};

        cli_nearest_look(&nearest, "--version");
        cli_nearest_look(&nearest, "--help");
        (void)fprintf(stderr, "hapax: no option \"%s\"%s%s%s\n", argv[1],
                      nearest.name ? ": did you mean \"" : "; options come after the command",
                      nearest.name ? nearest.name : "", nearest.name ? "\"?" : "");
        return CLI_USAGE;
    }
    cli_command_advice(advice, argv[1]);
    (void)fprintf(stderr, "hapax: no command \"%s\"%s\n", argv[1], advice);
    return CLI_USAGE;
}

/* A core would hold secrets, tokens and bodies. nginx, which serve starts, inherits the limit.
 * Rejected: PR_SET_DUMPABLE, which also keeps debuggers and the leak checker out. */
static void forbid_core(void)
{
    const struct rlimit none = {0, 0};
    const char *wanted = getenv("HAPAX_CORE_DUMPS");

    if (!wanted || strcmp(wanted, "on") != 0)
        (void)setrlimit(RLIMIT_CORE, &none);
}

/* A closed stdin, stdout or stderr would give its number to the next socket or file, and text for
 * people would be written there. The root folder takes the number instead: it can be neither read
 * nor written. */
static void take_closed_files(void)
{
    int fd;

    do
        fd = open("/", O_RDONLY | O_DIRECTORY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    enum cli_exit exit;

    take_closed_files();
    forbid_core();
    exit = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("hapax: cannot print");
        return CLI_UNREACHED;
    }
    return (int)exit;
}
