/* SPDX-License-Identifier: Apache-2.0
 *
 * A file of settings (--config). The input is a command's name, the end of the line, and the file.
 * Claims: a file is taken, or refused with a reason. What was taken stands on a line of the file,
 * and is taken again from a file that says no more than that.
 */
#include "fuzz_cli.h"

static struct cli_args *parse(const struct cli_command *command, char *path, enum cli_exit *exit)
{
    char word[] = "--config", *argv[] = {word, path, NULL};
    struct cli_args *args = cli_args_new(command);
    struct fuzz_said said;

    assert(args);
    fuzz_said_begin(&said);
    *exit = cli_parse(args, 2, argv);
    fuzz_said_end(&said);
    assert(*exit == CLI_DONE || *exit == CLI_USAGE);
    assert((*exit == CLI_DONE) == (said.len == 0));
    free(said.text);
    return args;
}

static size_t lines_of(struct hapax_span text)
{
    size_t n = 1;

    for (size_t i = 0; i < text.len; i++)
        n += text.ptr[i] == '\n';
    return n;
}

/* Writes down what was taken from the file. */
static void put_settings(FILE *out, const struct cli_args *args, size_t lines)
{
    const struct cli_option *option;

    for (size_t place = 0; (option = cli_option_at(args->command, place)); place++) {
        const struct cli_given *given = &args->given[place];
        const struct cli_texts one = {{given->value}, 1};
        const struct cli_texts *texts = &one;

        if (given->from != CLI_FROM_FILE)
            continue;
        assert(given->value && given->line >= 1 && given->line <= lines);
        if (option->kind == CLI_TEXTS)
            texts = (const void *)((const char *)args + option->at);
        for (size_t i = 0; i < texts->n; i++)
            (void)fprintf(out, "%s=%s\n", option->name, texts->items[i]);
    }
}

static char *settings_of(const struct cli_args *args, size_t lines)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    assert(out);
    put_settings(out, args, lines);
    (void)fclose(out);
    assert(text);
    return text;
}

static void take_again(const struct cli_command *command, const char *text)
{
    char path[64];
    int fd = fuzz_file(path, hapax_str(text));
    enum cli_exit exit;
    struct cli_args *args = parse(command, path, &exit);
    char *again = settings_of(args, lines_of(hapax_str(text)));

    assert(exit == CLI_DONE);
    assert(strcmp(again, text) == 0);
    free(again);
    cli_args_free(args);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hapax_span rest = {data, size};
    char *name = fuzz_copy(fuzz_line(&rest)), *text;
    const struct cli_command *command = cli_command_find(name);
    char path[64];
    int fd = fuzz_file(path, rest);
    enum cli_exit exit;
    struct cli_args *args;

    free(name);
    if (!command)
        command = &cli_consume;
    args = parse(command, path, &exit);
    if (exit == CLI_DONE) {
        text = settings_of(args, lines_of(rest));
        take_again(command, text);
        free(text);
    }
    cli_args_free(args);
    close(fd);
    return 0;
}
