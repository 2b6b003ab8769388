/* SPDX-License-Identifier: Apache-2.0
 *
 * The pages: help for the terminal, man pages, and docs/cli.md, all printed from the same struct
 * cli_command, so that none can say what another does not. A page is built from few
 * shapes (title, paragraph, term with text, example), and each form knows how to print those.
 */
#include "cli.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>

#define WIDTH  80
#define INDENT 2

/* ---- text, wrapped ------------------------------------------------------------------- */

/* The words of text at column `left` on, the first line being at column `at` already. */
static void put_wrapped(const char *text, size_t len, int left, int at)
{
    size_t i = 0;

    for (;;) {
        size_t word;

        while (i < len && (text[i] == ' ' || text[i] == '\n'))
            i++;
        if (i == len)
            break;
        for (word = 0; i + word < len && text[i + word] != ' ' && text[i + word] != '\n'; word++)
            ;
        if (at > left && at + 1 + (int)word > WIDTH) {
            putchar('\n');
            at = 0;
        }
        if (at < left)
            at += printf("%*s", left - at, "");
        else if (at > left)
            at += printf(" ");
        at += printf("%.*s", (int)word, text + i);
        i += word;
    }
    putchar('\n');
}

static void text_paragraph(const char *text, size_t len)
{
    put_wrapped(text, len, INDENT, 0);
}

static void text_term(const char *term, const char *about)
{
    int at = printf("  %s", term);

    if (at > 23) {
        putchar('\n');
        at = 0;
    }
    put_wrapped(about, strlen(about), 24, at);
}

/* ---- roff ---------------------------------------------------------------------------- */

static void put_roff(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (i == 0 && (text[i] == '.' || text[i] == '\''))
            fputs("\\&", stdout);
        if (text[i] == '-')
            fputs("\\-", stdout);
        else if (text[i] == '\\')
            fputs("\\e", stdout);
        else if (text[i] == '\'')
            fputs("\\(aq", stdout);
        else if (text[i] == '"')
            fputs("\\(dq", stdout);
        else if (text[i] == '\n')
            putchar(' ');
        else
            putchar(text[i]);
    }
    putchar('\n');
}

static void man_paragraph(const char *text, size_t len)
{
    puts(".PP");
    put_roff(text, len);
}

static void man_term(const char *term, const char *about)
{
    puts(".TP");
    fputs("\\fB", stdout);
    for (const char *c = term; *c; c++)
        fputs(*c == '-' ? "\\-" : (char[]){*c, '\0'}, stdout);
    puts("\\fR");
    put_roff(about, strlen(about));
}

/* ---- markdown ------------------------------------------------------------------------ */

/* Words that markdown would take for markup are few in the pages: <, * and _. */
static void put_markdown(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '<' || text[i] == '*' || text[i] == '_')
            putchar('\\');
        putchar(text[i] == '\n' ? ' ' : text[i]);
    }
    putchar('\n');
}

static void markdown_paragraph(const char *text, size_t len)
{
    putchar('\n');
    put_markdown(text, len);
}

static void markdown_term(const char *term, const char *about)
{
    printf("- `%s`: ", term);
    put_markdown(about, strlen(about));
}

/* ---- shapes -------------------------------------------------------------------------- */

static void put_title(enum cli_form form, const char *title)
{
    switch (form) {
    case CLI_FORM_TEXT:
        printf("\n%s\n", title);
        break;
    case CLI_FORM_MAN:
        fputs(".SH ", stdout);
        for (const char *c = title; *c; c++)
            putchar(toupper((unsigned char)*c));
        putchar('\n');
        break;
    case CLI_FORM_MARKDOWN:
        printf("\n### %s\n", title);
        break;
    }
}

static void put_prose(enum cli_form form, const char *prose)
{
    void (*paragraph)(const char *, size_t) = form == CLI_FORM_TEXT  ? text_paragraph
                                              : form == CLI_FORM_MAN ? man_paragraph
                                                                     : markdown_paragraph;

    for (bool first = true; *prose; first = false) {
        const char *end = strstr(prose, "\n\n");
        size_t len = end ? (size_t)(end - prose) : strlen(prose);

        if (form == CLI_FORM_TEXT && !first)
            putchar('\n');
        paragraph(prose, len);
        prose += len + (end ? 2 : 0);
    }
}

static void put_term(enum cli_form form, const char *term, const char *about)
{
    void (*put)(const char *, const char *) = form == CLI_FORM_TEXT  ? text_term
                                              : form == CLI_FORM_MAN ? man_term
                                                                     : markdown_term;

    put(term, about);
}

static void put_option(enum cli_form form, const struct cli_option *option)
{
    char term[64];

    (void)snprintf(term, sizeof(term), "--%s%s%s", option->name, option->value ? " " : "",
                   option->value ? option->value : "");
    put_term(form, term, option->about);
}

static void put_example(enum cli_form form, const struct cli_example *example)
{
    switch (form) {
    case CLI_FORM_TEXT:
        printf("  %s\n", example->line);
        put_wrapped(example->about, strlen(example->about), 6, 0);
        break;
    case CLI_FORM_MAN:
        puts(".PP\n.nf\n.RS");
        put_roff(example->line, strlen(example->line));
        puts(".RE\n.fi\n.PP");
        put_roff(example->about, strlen(example->about));
        break;
    case CLI_FORM_MARKDOWN:
        printf("- `%s`  \n  ", example->line);
        put_markdown(example->about, strlen(example->about));
        break;
    }
}

/* ---- the page of a command ----------------------------------------------------------- */

static void put_synopsis(enum cli_form form, const char *name, const char *const *lines)
{
    bool text = form == CLI_FORM_TEXT;

    if (form == CLI_FORM_MARKDOWN)
        puts("\n```");
    for (size_t i = 0; i < 4 && lines[i]; i++) {
        if (form == CLI_FORM_MAN) {
            char line[256];

            (void)snprintf(line, sizeof(line), "hapax %s %s", name, lines[i]);
            puts(i > 0 ? ".br" : ".nh");
            put_roff(line, strlen(line));
        } else {
            printf("%shapax %s %s\n", !text ? "" : i > 0 ? "       " : "usage: ", name, lines[i]);
        }
    }
    if (form == CLI_FORM_MAN)
        puts(".hy");
    if (form == CLI_FORM_MARKDOWN)
        puts("```");
}

static void put_man_head(const char *name)
{
    fputs(".TH HAPAX\\-", stdout);
    for (const char *c = name; *c; c++)
        putchar(toupper((unsigned char)*c));
    printf(" 1 \"\" \"hapax %s\" \"hapax\"\n", HAPAX_VERSION);
}

static void put_head(const struct cli_command *command, enum cli_form form)
{
    switch (form) {
    case CLI_FORM_TEXT:
        put_synopsis(form, command->name, command->synopsis);
        putchar('\n');
        put_prose(form, command->prose);
        break;
    case CLI_FORM_MAN:
        put_man_head(command->name);
        put_title(form, "Name");
        printf("hapax\\-%s \\- ", command->name);
        put_roff(command->summary, strlen(command->summary));
        put_title(form, "Synopsis");
        put_synopsis(form, command->name, command->synopsis);
        put_title(form, "Description");
        put_prose(form, command->prose);
        break;
    case CLI_FORM_MARKDOWN:
        printf("\n## hapax %s\n\n", command->name);
        put_markdown(command->summary, strlen(command->summary));
        put_synopsis(form, command->name, command->synopsis);
        put_prose(form, command->prose);
        break;
    }
}

/* The title of the group that begins with this option; NULL: none does. */
static const char *group_of(const struct cli_command *command, const struct cli_option *option)
{
    for (size_t i = 0; i < sizeof(command->groups) / sizeof(command->groups[0]); i++)
        if (command->groups[i].first && strcmp(command->groups[i].first, option->name) == 0)
            return command->groups[i].title;
    return NULL;
}

static void put_options(const struct cli_command *command, enum cli_form form)
{
    bool grouped = command->groups[0].first != NULL;
    const struct cli_option *option;
    const char *title;

    if (command->no_shared)
        return;
    if (!grouped)
        put_title(form, "Options");
    for (size_t i = 0; i < command->option_count; i++) {
        title = group_of(command, &command->options[i]);
        assert(title || !grouped || i > 0);
        if (title)
            put_title(form, title);
        put_option(form, &command->options[i]);
    }
    if (grouped)
        put_title(form, "Options of every command");
    if (form == CLI_FORM_MARKDOWN)
        printf("- %s`--json`, `--config NAME|FILE`, `--help`%s\n",
               command->no_store ? "" : "`--store URI`, ", grouped ? "" : ": as every command");
    else
        for (size_t i = 0; (option = cli_shared_option(command, i)); i++)
            if (form != CLI_FORM_TEXT ||
                strcmp(option->name, "help") != 0) /* who reads it, knows */
                put_option(form, option);
}

static void put_command(const struct cli_command *command, enum cli_form form)
{
    put_head(command, form);
    put_options(command, form);
    if (!command->examples[0].line)
        return;
    put_title(form, "Examples");
    for (size_t i = 0; i < 4 && command->examples[i].line; i++)
        put_example(form, &command->examples[i]);
    if (form == CLI_FORM_MAN)
        puts(".SH SEE ALSO\n.BR hapax (1)");
}

/* ---- the page of hapax itself -------------------------------------------------------- */

static const char overview[] =
    "Hapax runs each logical request once and gives every repeat the first answer. These commands "
    "look after the store where it keeps one record for each operation.";

static const char stores[] =
    "rocksdb:PATH is the embedded store, a folder. One process holds it, and serves it to the "
    "others of the machine. unix:PATH is the socket of a process that holds one. "
    "redis://HOST, redis+sentinel://HOST,HOST/MASTER and redis+cluster://HOST,HOST are a Redis for "
    "many machines, rediss:// and so on the same encrypted. postgres://HOST/DB is a PostgreSQL "
    "database, where \"hapax init\" was run; hybrid:REDIS-URI+POSTGRES-URI the same with Redis in "
    "front of it. dynamodb://REGION/TABLE is a table of DynamoDB, where \"hapax init\" was run. "
    "memory: is for tests; it ends with the process. move:OLD-URI+NEW-URI is two stores, while the "
    "doors go from one to the other. "
    "docs/stores.md has their settings.\n\n"
    "Without --store it is $HAPAX_STORE, else the embedded store in $XDG_STATE_HOME/hapax or "
    "~/.local/state/hapax.";

static const struct {
    const char *term, *about;
} exits[] = {
    {"0", "Done"},
    {"1", "The answer is no: there is no such operation, it may not be resolved, the store is "
          "not safe"},
    {"2", "The command line is wrong, or names something that is"},
    {"3", "The store cannot be reached, or it failed"},
};

static const struct {
    const char *term, *about;
} variables[] = {
    {"HAPAX_STORE", "The store where --store is not given"},
    {"HAPAX_REDIS_USERNAME, HAPAX_REDIS_PASSWORD", "The login of a Redis whose URI has none"},
    {"HAPAX_CORE_DUMPS",
     "on: a crash may write a core, which holds secrets and bodies. Otherwise none is written"},
    {"HAPAX_SECRET_FILE",
     "A file with the secret of the store, for stores whose keys are hashed with one. At most "
     "4096 bytes, a newline at the end not counted; others must not be able to read it"},
    {"HAPAX_SECRET_OLD_FILE",
     "While the secret is being changed: the file with the one before, or none if there was none "
     "(docs/rotation.md)"},
    {"HAPAX_KEYS_FILE",
     "A file with keys, by the first of which outcomes are sealed (docs/encryption.md); others "
     "must not be able to read it"},
    {"HAPAX_AUDIT_FILE", "Where \"hapax resolve\" adds lines about its acts, without --audit"},
};

static const char formats[] =
    "Durations are whole numbers with ms, s, m, h or d, as 500ms or 24h. Sizes are bytes, or with "
    "k, m or g, as 64k. With --json a failure is the object {\"error\": \"unavailable\", "
    "\"text\": \"...\"}; times end in _us, microseconds since 1970; what is no text stands in "
    "base64 under a name that ends in _base64.";

static void put_overview_head(enum cli_form form)
{
    if (form == CLI_FORM_TEXT) {
        puts("usage: hapax COMMAND [OPTION]...\n       hapax help COMMAND\n       hapax "
             "--version\n");
        put_prose(form, overview);
    } else if (form == CLI_FORM_MAN) {
        printf(".TH HAPAX 1 \"\" \"hapax %s\" \"hapax\"\n", HAPAX_VERSION);
        puts(".SH NAME\nhapax \\- run each logical request once\n.SH SYNOPSIS\n"
             "hapax COMMAND [OPTION]...\n.br\nhapax help COMMAND\n.br\nhapax \\-\\-version\n"
             ".SH DESCRIPTION");
        put_prose(form, overview);
    } else {
        puts("# The command line\n\n<!-- Printed by `hapax help --markdown`; change it in src/cli. "
             "-->");
        put_prose(form, overview);
    }
}

static void put_overview(enum cli_form form)
{
    put_overview_head(form);
    put_title(form, "Commands");
    for (size_t i = 0; cli_commands[i]; i++)
        put_term(form, cli_commands[i]->name, cli_commands[i]->summary);
    put_title(form, "Stores");
    put_prose(form, stores);
    put_title(form, "Formats");
    put_prose(form, formats);
    put_title(form, "Environment");
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        put_term(form, variables[i].term, variables[i].about);
    put_title(form, "Exit status");
    for (size_t i = 0; i < sizeof(exits) / sizeof(exits[0]); i++)
        put_term(form, exits[i].term, exits[i].about);
}

void cli_page(const struct cli_command *command, enum cli_form form)
{
    assert(form >= CLI_FORM_TEXT && form <= CLI_FORM_MARKDOWN);
    if (command) {
        put_command(command, form);
        return;
    }
    put_overview(form);
    for (size_t i = 0; form == CLI_FORM_MARKDOWN && cli_commands[i]; i++)
        put_command(cli_commands[i], form);
}
