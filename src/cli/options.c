/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a command's options, driven by its table, so that what the help says is what is taken. An
 * option is taken whole or not at all; one that is given twice is an error, since
 * either value may be the one that was meant. An option that the line does not have is that of the
 * environment (HAPAX_ON_EXPIRED), else that of a file (--config), by the same table.
 *
 * A file has lines NAME = VALUE. A variable that no option has is none of ours, so it is passed
 * over; a name in a file is a mistake.
 *
 * Not getopt_long: it takes any unambiguous beginning of a name (--for would force a resolve),
 * prints its own messages, and knows no types.
 */
#include "cli.h"

#include "base/units.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX  (64u << 10)
#define FOLDER    "/etc/hapax"
#define AT_MAX    (PATH_MAX + 32u)
#define LABEL_MAX (AT_MAX + 256u)

static const struct cli_option shared[] = {
    {"store", "URI", CLI_TEXT, offsetof(struct cli_args, store), 0, 0,
     "Which store; \"hapax help\" tells which it is without"},
    {"json", NULL, CLI_FLAG, offsetof(struct cli_args, json), 0, 0,
     "Print JSON: one object, or one on each line"},
    {"config", "NAME|FILE", CLI_TEXT, offsetof(struct cli_args, config), 0, 0,
     "More options, of " FOLDER "/NAME.conf or a file"},
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

/* label: what the option is called where the value stands: --drain, HAPAX_DRAIN, or a line of a
 * file. */
static enum cli_exit set_amount(const struct cli_args *args, const struct cli_option *option,
                                const char *label, int64_t *field, const char *value)
{
    const char *why = "not a whole number";
    char range[80];
    uint64_t number = 0;
    size_t size = 0;
    bool good;

    assert(value);
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
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "%s \"%s\" is %s", label, value, why);
    if (*field >= option->min && *field <= option->max)
        return CLI_DONE;
    range_text(range, sizeof(range), option);
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "%s \"%s\" is not within %s", label, value,
                    range);
}

static enum cli_exit add_text(const struct cli_args *args, const char *label,
                              struct cli_texts *texts, const char *value)
{
    if (texts->n == CLI_TEXTS_MAX)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "%s is given more than %u times", label,
                        CLI_TEXTS_MAX);
    texts->items[texts->n++] = value;
    return CLI_DONE;
}

/* The value is NULL for a flag of the line. */
static enum cli_exit set(struct cli_args *args, int place, const struct cli_given *given,
                         const char *label)
{
    const struct cli_option *option = cli_option_at(args->command, (size_t)place);
    void *field = (char *)args + option->at;
    bool on;

    args->given[place] = *given;
    switch (option->kind) {
    case CLI_FLAG:
        on = !given->value || strcmp(given->value, "on") == 0;
        *(bool *)field = on;
        if (on || strcmp(given->value, "off") == 0)
            return CLI_DONE;
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "%s \"%s\" is not on or off", label,
                        given->value);
    case CLI_TEXT:
        *(const char **)field = given->value;
        return CLI_DONE;
    case CLI_TEXTS:
        return add_text(args, label, field, given->value);
    case CLI_NUMBER:
    case CLI_DURATION:
    case CLI_SIZE:
        return set_amount(args, option, label, field, given->value);
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

enum cli_exit cli_give(struct cli_args *args, const char *name, const char *value)
{
    const struct cli_given given = {.from = CLI_FROM_LINE, .value = value};
    int place = find(args->command, name, strlen(name));
    char label[LABEL_MAX];

    assert(place >= 0);
    assert(value || cli_option_at(args->command, (size_t)place)->kind == CLI_FLAG);
    (void)snprintf(label, sizeof(label), "--%s", name);
    return set(args, place, &given, label);
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
static enum cli_exit take_option(struct cli_args *args, int argc, char **argv, int *at)
{
    const char *name = argv[*at] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    int place = find(args->command, name, len);
    const struct cli_option *option;
    char label[LABEL_MAX];

    if (place < 0)
        return no_option(args, name, len);
    assert(place < (int)CLI_OPTIONS_MAX);
    option = cli_option_at(args->command, (size_t)place);
    if (option->kind == CLI_FLAG && value)
        return usage(args, "--%s takes no value, and has \"%s\"", option->name, value);
    if (option->kind != CLI_FLAG && !value) {
        if (*at + 1 >= argc)
            return usage(args, "--%s needs a value: %s", option->name, option->value);
        value = argv[++*at];
    }
    if (option->kind != CLI_TEXTS && args->given[place].from)
        return usage(args, "--%s is given twice", option->name);
    (void)snprintf(label, sizeof(label), "--%s", option->name);
    return set(args, place, &(struct cli_given){.from = CLI_FROM_LINE, .value = value}, label);
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

static enum cli_exit take_line(struct cli_args *args, int argc, char **argv)
{
    enum cli_exit exit = CLI_DONE;
    bool words_only = false;

    for (int i = 0; i < argc && exit == CLI_DONE; i++) {
        if ((args->command->words && strcmp(argv[i], "--") == 0) ||
            (args->command->rest && argv[i][0] != '-')) {
            args->words = &argv[argv[i][0] == '-' ? i + 1 : i];
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
            exit = take_option(args, argc, argv, &i);
    }
    return exit;
}

/* ---- settings ------------------------------------------------------------------------- */

void cli_variable(char out[CLI_VARIABLE_MAX], const struct cli_option *option)
{
    size_t len = (size_t)snprintf(out, CLI_VARIABLE_MAX, "HAPAX_");

    assert(len + strlen(option->name) < CLI_VARIABLE_MAX);
    for (const char *at = option->name; *at != '\0'; at++)
        out[len++] = *at == '-' ? '_' : (char)(*at & ~0x20);
    out[len] = '\0';
}

/* Whether this option of the command is taken from elsewhere than the line. */
static bool is_setting(const struct cli_command *command, const struct cli_option *option)
{
    bool own = option >= command->options && option < command->options + command->option_count;

    return own ? command->settings : strcmp(option->name, "help") != 0;
}

/* What the environment sets; NULL: nothing. HAPAX_KEY of a command that hapax run has started is
 * the operation's key, which is told by what else it has. */
static const char *from_environment(const char *variable)
{
    const char *value = getenv(variable);

    if (!value || *value == '\0' || (strcmp(variable, "HAPAX_KEY") == 0 && getenv("HAPAX_ATTEMPT")))
        return NULL;
    return value;
}

static enum cli_exit take_environment(struct cli_args *args)
{
    const struct cli_option *option;
    enum cli_exit exit = CLI_DONE;

    for (int place = 0; exit == CLI_DONE; place++) {
        struct cli_given given = {.from = CLI_FROM_ENVIRONMENT};
        char variable[CLI_VARIABLE_MAX];

        option = cli_option_at(args->command, (size_t)place);
        if (!option)
            break;
        if (args->given[place].from || !is_setting(args->command, option))
            continue;
        cli_variable(variable, option);
        given.value = from_environment(variable);
        if (given.value)
            exit = set(args, place, &given, variable);
    }
    return exit;
}

void cli_config_path(char out[PATH_MAX], const char *config)
{
    if (strchr(config, '/'))
        (void)snprintf(out, PATH_MAX, "%s", config);
    else
        (void)snprintf(out, PATH_MAX, FOLDER "/%s.conf", config);
}

static enum cli_exit read_file(struct cli_args *args, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat stat;
    ssize_t n = -1;

    if (fd >= 0 && fstat(fd, &stat) == 0 && !S_ISREG(stat.st_mode))
        errno = EINVAL;
    else if (fd >= 0 && (args->file = calloc(1, FILE_MAX + 2)) != NULL)
        n = read(fd, args->file, FILE_MAX + 1);
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "cannot read the settings \"%s\": %s",
                        path, strerror(errno));
    args->file_size = (size_t)n;
    if (n > (ssize_t)FILE_MAX || memchr(args->file, '\0', (size_t)n))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "the settings \"%s\" are no text of at most %u bytes", path, FILE_MAX);
    return CLI_DONE;
}

/* A name that is no setting of this command. A command that acts takes few settings, and the file
 * may be a service's, so it passes over what any command has. */
static enum cli_exit no_setting(const struct cli_args *args, const char *at, const char *name)
{
    struct cli_nearest nearest = {.word = name, .len = strlen(name)};
    const struct cli_option *option;

    for (size_t i = 0; !args->command->settings && cli_commands[i]; i++)
        if (find(cli_commands[i], name, strlen(name)) >= 0)
            return CLI_DONE;
    for (size_t place = 0; (option = cli_option_at(args->command, place)); place++)
        if (is_setting(args->command, option))
            cli_nearest_look(&nearest, option->name);
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "%s: no setting \"%.100s\"%s%s%s", at, name,
                    nearest.name ? ": did you mean \"" : "", nearest.name ? nearest.name : "",
                    nearest.name ? "\"?" : "");
}

static char *trimmed(char *text)
{
    size_t len;

    text += strspn(text, " \t");
    len = strlen(text);
    while (len > 0 && strchr(" \t\r", text[len - 1]))
        len--;
    text[len] = '\0';
    return text;
}

/* text: line number `number` of the file, which is cut into words. at: where that is. */
static enum cli_exit take_setting(struct cli_args *args, char *text, unsigned number,
                                  const char *at)
{
    struct cli_given given = {.from = CLI_FROM_FILE, .line = number};
    const struct cli_option *option;
    char *name = trimmed(text), *equals = strchr(name, '=');
    char label[LABEL_MAX];
    int place;

    if (*name == '\0' || *name == '#')
        return CLI_DONE;
    if (!equals)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "%s: not of the form NAME = VALUE", at);
    *equals = '\0';
    name = trimmed(name);
    given.value = trimmed(equals + 1);
    place = find(args->command, name, strlen(name));
    option = place < 0 ? NULL : cli_option_at(args->command, (size_t)place);
    if (!option || !is_setting(args->command, option) ||
        option->at == offsetof(struct cli_args, config))
        return no_setting(args, at, name);
    if (args->given[place].from == CLI_FROM_FILE && option->kind != CLI_TEXTS)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "%s: %s stands on line %u, too", at,
                        name, args->given[place].line);
    if (args->given[place].from && args->given[place].from != CLI_FROM_FILE)
        return CLI_DONE;
    (void)snprintf(label, sizeof(label), "%.*s: %s", (int)AT_MAX, at, option->name);
    return set(args, place, &given, label);
}

static enum cli_exit take_file(struct cli_args *args)
{
    char path[PATH_MAX], at[AT_MAX];
    enum cli_exit exit;
    char *line, *next;

    if (!args->config)
        return CLI_DONE;
    cli_config_path(path, args->config);
    exit = read_file(args, path);
    next = args->file;
    for (unsigned number = 1; exit == CLI_DONE && next; number++) {
        line = next;
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        (void)snprintf(at, sizeof(at), "line %u of %s", number, path);
        exit = take_setting(args, line, number, at);
    }
    return exit;
}

/* ---- all of it -------------------------------------------------------------------------- */

enum cli_exit cli_parse(struct cli_args *args, int argc, char **argv)
{
    enum cli_exit exit;

    args->json = asks_json(args->command, argc, argv);
    exit = take_line(args, argc, argv);
    if (exit == CLI_DONE && !args->help)
        exit = take_environment(args);
    return exit == CLI_DONE && !args->help ? take_file(args) : exit;
}

struct cli_args *cli_args_new(const struct cli_command *command)
{
    struct cli_args *args = calloc(1, command->args_size);

    if (!args)
        return NULL;
    args->command = command;
    if (command->defaults)
        command->defaults(args);
    return args;
}

void cli_args_free(struct cli_args *args)
{
    if (!args)
        return;
    if (args->file) /* may have passwords */
        explicit_bzero(args->file, args->file_size);
    free(args->file);
    free(args);
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
