/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax config: which options are in force for a command, and where each comes from. It reads them
 * as the command does, by the same functions, and starts nothing. Passwords are printed as ***.
 */
#include "cli.h"

#include "print.h"

#include "base/span.h"
#include "base/uri.h"
#include "broker/source.h"
#include "core/policy.h"

#include <stdlib.h>
#include <string.h>

#define VALUE_MAX 1024u
#define WHERE_MAX (PATH_MAX + 32u)

/* Variables that are no option, and hold or name a secret or a login. Those that are set are
 * printed. */
static const char *const logins[] = {
    "HAPAX_SECRET_FILE",    "HAPAX_SECRET_OLD_FILE", "HAPAX_KEYS_FILE",     "HAPAX_REDIS_USERNAME",
    "HAPAX_REDIS_PASSWORD", "HAPAX_AMQP_USER",       "HAPAX_AMQP_PASSWORD", "HAPAX_KAFKA_USER",
    "HAPAX_KAFKA_PASSWORD", "HAPAX_TO_USER",         "HAPAX_TO_PASSWORD",   "HAPAX_CORE_DUMPS",
};

static void put(const struct cli_args *args, const char *name, const char *value, const char *from,
                const char *where)
{
    struct json json;

    if (!args->json) {
        printf("%-20s ", name);
        print_text(stdout, hapax_str(value), false, 0);
        printf("  (%s)\n", where);
        return;
    }
    json_begin(&json);
    json_text(&json, "option", name);
    json_bytes(&json, "value", hapax_str(value));
    json_text(&json, "from", from);
    json_bytes(&json, "where", hapax_str(where));
    json_end(&json);
}

/* The value as the help says it, of an option that is not given; false: it says none. */
static bool by_default(char out[VALUE_MAX], const struct cli_option *option)
{
    const char *at = strstr(option->about, "(default");

    if (!at)
        return false;
    at += strlen("(default");
    at += strspn(at, ": ");
    (void)snprintf(out, VALUE_MAX, "%.*s", (int)strcspn(at, at[0] == '"' ? ")" : ",;)"), at);
    return true;
}

static void put_default(const struct cli_args *args, const struct cli_args *of,
                        const struct cli_option *option, const char *profile)
{
    const char *value = profile ? hapax__policy_profile(profile, option->name) : NULL;
    char text[VALUE_MAX];

    if (strcmp(option->name, "store") == 0)
        put(args, option->name, of->shown, "default", "default");
    else if (value)
        put(args, option->name, value, "profile", "--profile");
    else if (by_default(text, option))
        put(args, option->name, text, "default", "default");
}

/* A URI without what may be a secret in it; or a broker's, a space and another one. */
static void show(char out[VALUE_MAX], const char *uri)
{
    const char *space = strchr(uri, ' ');
    char first[VALUE_MAX], shown[HAPAX_TEXT_MAX];
    size_t len = 0;

    while (space && !hapax__source_type_of(space + 1)) /* it is of a password */
        space = strchr(space + 1, ' ');
    if (space) {
        (void)snprintf(first, sizeof(first), "%.*s", (int)(space - uri), uri);
        hapax__uri_shown(shown, first);
        len = (size_t)snprintf(out, VALUE_MAX, "%s ", shown);
        uri = space + 1;
    }
    if (hapax__source_type_of(uri) || hapax__text_begins(uri, "http"))
        hapax__uri_shown(shown, uri);
    else
        hapax_store_shown(shown, uri);
    (void)snprintf(out + len, VALUE_MAX - len, "%s", shown);
}

static void put_given(const struct cli_args *args, const struct cli_args *of,
                      const struct cli_option *option, const struct cli_given *given)
{
    static const char *const names[] = {
        [CLI_FROM_LINE] = "line", [CLI_FROM_ENVIRONMENT] = "environment", [CLI_FROM_FILE] = "file"};
    const char *value = given->value ? given->value : "on";
    const struct cli_texts one = {{value}, 1};
    const struct cli_texts *texts =
        option->kind == CLI_TEXTS ? (const void *)((const char *)of + option->at) : &one;
    char where[WHERE_MAX], path[PATH_MAX], shown[VALUE_MAX], variable[CLI_VARIABLE_MAX];

    cli_variable(variable, option);
    if (given->from == CLI_FROM_FILE) {
        cli_config_path(path, of->config);
        (void)snprintf(where, sizeof(where), "%s:%u", path, given->line);
    } else {
        (void)snprintf(where, sizeof(where), "%s%s", given->from == CLI_FROM_LINE ? "--" : "",
                       given->from == CLI_FROM_LINE ? option->name : variable);
    }
    for (size_t i = 0; i < texts->n; i++) {
        value = texts->items[i];
        if (strstr(value, "://")) {
            show(shown, value);
            value = shown;
        }
        put(args, option->name, value, names[given->from], where);
    }
}

static const char *profile_of(const struct cli_args *of)
{
    const struct cli_option *option;

    for (size_t place = 0; (option = cli_option_at(of->command, place)); place++)
        if (strcmp(option->name, "profile") == 0)
            return of->given[place].value;
    return NULL;
}

static void put_all(const struct cli_args *args, const struct cli_args *of)
{
    const struct cli_option *option;

    for (size_t place = 0; (option = cli_option_at(of->command, place)); place++)
        if (of->given[place].from)
            put_given(args, of, option, &of->given[place]);
        else
            put_default(args, of, option, profile_of(of));
    for (size_t i = 0; i < sizeof(logins) / sizeof(logins[0]); i++) {
        const char *value = getenv(logins[i]);

        if (value && *value)
            put(args, logins[i], strstr(logins[i], "_PASSWORD") ? "***" : value, "environment",
                logins[i]);
    }
}

static enum cli_exit run(struct cli_args *args)
{
    const char *name = args->words ? args->words[0] : NULL;
    const struct cli_command *command = name ? cli_command_find(name) : NULL;
    struct cli_args *of;
    enum cli_exit exit;
    char advice[128];
    int words = 1;

    if (!command) {
        cli_command_advice(advice, name ? name : "");
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "no command \"%s\"%s", name ? name : "",
                        advice);
    }
    of = cli_args_new(command);
    if (!of)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    while (args->words[words])
        words++;
    exit = cli_parse(of, words - 1, args->words + 1);
    if (exit == CLI_DONE && !command->no_store)
        exit = cli_store_name(of);
    if (exit == CLI_DONE)
        put_all(args, of);
    cli_args_free(of);
    return exit;
}

const struct cli_command cli_config = {
    .name = "config",
    .summary = "print which options are in force, and where from",
    .synopsis = {"[--json] COMMAND [OPTION]..."},
    .prose = "Prints the options of a command as the command would take them, each with where it "
             "comes from: the command line, the environment, a file, a profile or the default. "
             "Options without a value are left out. Passwords are ***, and of the URLs of brokers "
             "and handlers most parameters are left out. Nothing is started.\n\n"
             "What the command line has beats the environment, which beats the file. Each option "
             "of a command that runs on, and of \"hapax run\", can be set by a variable: "
             "HAPAX_ON_EXPIRED=hold is --on-expired hold. An empty variable sets nothing. A flag "
             "is on or off. An option that may be given several times has one value in the "
             "environment, and any number of lines in a file.\n\n"
             "--config NAME reads /etc/hapax/NAME.conf; with a slash it is the file itself. The "
             "file has lines NAME = VALUE, with names as on the command line, and comments after "
             "# at the beginning of a line. A name that the command does not have is an error. "
             "Commands that look at a store, or change one by hand, take --store and --json "
             "alone from there, so they can be given a service's file.",
    .rest = true,
    .no_store = true,
    .examples = {{"hapax config serve --config payments",
                  "What a gate with /etc/hapax/payments.conf would do."},
                 {"HAPAX_ON_EXPIRED=hold hapax config run", "What a job would do."}},
    .args_size = sizeof(struct cli_args),
    .run = run,
};
