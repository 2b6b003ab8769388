/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a command's options, driven by its table, so that what the help says is what is taken. An
 * option is taken whole or not at all; one that is given twice is an error, since
 * either value may be the one that was meant.
 *
 * Not getopt_long: it takes any unambiguous beginning of a name (--for would force a resolve),
 * prints its own messages, and knows no types.
 */
#include "cli.h"

#include "base/units.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option shared[] = {
    {"store", "URI", CLI_TEXT, offsetof(struct cli_args, store), 0, 0,
     "Which store; \"hapax help\" tells which it is without"},
    {"json", NULL, CLI_FLAG, offsetof(struct cli_args, json), 0, 0,
     "Print JSON: one object, or one on each line"},
    {"help", NULL, CLI_FLAG, offsetof(struct cli_args, help), 0, 0, "Print this page"},
};

const struct cli_option *cli_shared_option(const struct cli_command *command, size_t index)
{
    if (command->no_shared)
        return NULL;
    if (command->no_store)
        index++; /* --store is the first */
    return index < sizeof(shared) / sizeof(shared[0]) ? &shared[index] : NULL;
}

__attribute__((format(printf, 2, 3))) static enum cli_exit usage(const struct cli_args *args,
                                                                 const char *format, ...)
{
    char text[512];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "%s; see \"hapax %s --help\"", text,
                    args->command->name);
}

/* ---- values -------------------------------------------------------------------------- */

static void range_text(char *out, size_t size, const struct cli_option *option)
{
    const char *unit = option->kind == CLI_DURATION ? " ms"
                       : option->kind == CLI_SIZE   ? " bytes"
                                                    : "";

    (void)snprintf(out, size, "%" PRId64 " to %" PRId64 "%s", option->min, option->max, unit);
}

static enum cli_exit set_amount(const struct cli_args *args, const struct cli_option *option,
                                int64_t *field, const char *value)
{
    const char *why = "not a whole number";
    char range[80];
    uint64_t number = 0;
    size_t size = 0;
    bool good;

    if (option->kind == CLI_DURATION) {
        good = hapax__duration_parse(field, value, &why);
    } else if (option->kind == CLI_SIZE) {
        good = hapax__size_parse(&size, value, &why);
        if (size > INT64_MAX)
            size = INT64_MAX;
        *field = (int64_t)size;
    } else {
        good = hapax__number_parse(&number, value, strlen(value), INT64_MAX);
        *field = (int64_t)number;
    }
    if (!good)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--%s \"%s\" is %s", option->name,
                        value, why);
    if (*field >= option->min && *field <= option->max)
        return CLI_DONE;
    range_text(range, sizeof(range), option);
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--%s \"%s\" is not within %s",
                    option->name, value, range);
}

static enum cli_exit add_text(const struct cli_args *args, const struct cli_option *option,
                              struct cli_texts *texts, const char *value)
{
    if (texts->n == CLI_TEXTS_MAX)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--%s is given more than %u times",
                        option->name, CLI_TEXTS_MAX);
    texts->items[texts->n++] = value;
    return CLI_DONE;
}

static enum cli_exit set(struct cli_args *args, const struct cli_option *option, const char *value)
{
    void *field = (char *)args + option->at;

    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)field = true;
        return CLI_DONE;
    case CLI_TEXT:
        *(const char **)field = value;
        return CLI_DONE;
    case CLI_TEXTS:
        return add_text(args, option, field, value);
    case CLI_NUMBER:
    case CLI_DURATION:
    case CLI_SIZE:
        return set_amount(args, option, field, value);
    }
    assert(0 && "an option of no kind");
    return CLI_USAGE;
}

/* ---- words --------------------------------------------------------------------------- */

const struct cli_option *cli_option_at(const struct cli_command *command, size_t place)
{
    if (place < command->option_count)
        return &command->options[place];
    return cli_shared_option(command, place - command->option_count);
}

/* The place of the option of this name, which ends at len; -1: there is none. */
static int find(const struct cli_command *command, const char *name, size_t len)
{
    const struct cli_option *option;

    for (int place = 0; (option = cli_option_at(command, (size_t)place)); place++)
        if (strlen(option->name) == len && memcmp(option->name, name, len) == 0)
            return place;
    return -1;
}

/* name: without its dashes, of len bytes. What it was given is not shown: it may be a secret. */
static enum cli_exit no_option(const struct cli_args *args, const char *name, size_t len)
{
    struct cli_nearest nearest = {.word = name, .len = len};
    const struct cli_option *option;

    for (size_t place = 0; (option = cli_option_at(args->command, place)); place++)
        cli_nearest_look(&nearest, option->name);
    if (!nearest.name)
        return usage(args, "no option \"--%.*s\"", (int)(len < 200 ? len : 200), name);
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                    "no option \"--%.*s\": did you mean \"--%s\"?", (int)len, name, nearest.name);
}

/* Takes the option at argv[*at] and, where it has one, its value from the next word. */
static enum cli_exit take_option(struct cli_args *args, int argc, char **argv, int *at,
                                 uint64_t *given)
{
    const char *name = argv[*at] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    int place = find(args->command, name, len);
    const struct cli_option *option;

    if (place < 0)
        return no_option(args, name, len);
    assert(place < 64);
    option = cli_option_at(args->command, (size_t)place);
    if (option->kind == CLI_FLAG && value)
        return usage(args, "--%s takes no value, and has \"%s\"", option->name, value);
    if (option->kind != CLI_FLAG && !value) {
        if (*at + 1 >= argc)
            return usage(args, "--%s needs a value: %s", option->name, option->value);
        value = argv[++*at];
    }
    if (option->kind != CLI_TEXTS && (*given & UINT64_C(1) << place))
        return usage(args, "--%s is given twice", option->name);
    *given |= UINT64_C(1) << place;
    return set(args, option, value);
}

static enum cli_exit take_operand(struct cli_args *args, const char *word)
{
    if (!args->command->operand)
        return usage(args, "\"%s\" is too much: \"hapax %s\" takes options only", word,
                     args->command->name);
    if (args->operand)
        return usage(args, "\"%s\" is too much: one %s is enough", word, args->command->operand);
    args->operand = word;
    return CLI_DONE;
}

/* Errors are printed as --json asks, wherever it stands on the line. */
static bool asks_json(const struct cli_command *command, int argc, char **argv)
{
    if (command->no_shared)
        return false;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

enum cli_exit cli_parse(struct cli_args *args, int argc, char **argv)
{
    enum cli_exit exit = CLI_DONE;
    uint64_t given = 0;
    bool words_only = false;

    args->json = asks_json(args->command, argc, argv);
    for (int i = 0; i < argc && exit == CLI_DONE; i++) {
        if (args->command->words && strcmp(argv[i], "--") == 0) {
            args->words = &argv[i + 1];
            return CLI_DONE;
        }
        if (words_only || argv[i][0] != '-' || argv[i][1] == '\0')
            exit = take_operand(args, argv[i]);
        else if (strcmp(argv[i], "--") == 0)
            words_only = true;
        else if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            args->help = true;
        else if (argv[i][1] != '-')
            exit = usage(args, "no option \"%s\"; options begin with \"--\"", argv[i]);
        else
            exit = take_option(args, argc, argv, &i, &given);
    }
    return exit;
}

enum cli_exit cli_word(unsigned *out, const struct cli_args *args, const char *option,
                       const char *value, const char *const *words)
{
    char list[128] = "";
    size_t len = 0;

    *out = 0;
    for (unsigned i = 0; value && words[i]; i++) {
        if (strcmp(words[i], value) == 0)
            *out = i + 1;
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s",
                                i == 0         ? ""
                                : words[i + 1] ? ", "
                                               : " or ",
                                words[i]);
        assert(len < sizeof(list));
    }
    if (!value || *out > 0)
        return CLI_DONE;
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--%s \"%.100s\" is not %s", option, value,
                    list);
}
