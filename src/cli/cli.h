/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: what every command shares. Each command is one file with one
 * struct cli_command, which is both how it is run and the one source of its help and man page.
 */
#ifndef HAPAX_CLI_CLI_H
#define HAPAX_CLI_CLI_H

#include "core/question.h"
#include "http/traces.h"
#include <hapax/store.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define CLI_TEXTS_MAX   64u
#define CLI_SECRET_MAX  4096u
#define CLI_OPTIONS_MAX 96u

enum cli_exit {
    CLI_DONE = 0,
    CLI_NO = 1, /* the answer is no: no such operation, refused, danger */
    CLI_USAGE = 2, /* the command line, or what it names, is wrong */
    CLI_UNREACHED = 3 /* the store cannot be reached, or it failed */
};

/* ---- commands ------------------------------------------------------------------------ */

enum cli_kind {
    CLI_FLAG = 1, /* bool */
    CLI_TEXT, /* const char * */
    CLI_TEXTS, /* struct cli_texts: may be given several times */
    CLI_NUMBER, /* int64_t, from min to max */
    CLI_DURATION, /* int64_t in ms, from min to max */
    CLI_SIZE /* int64_t in bytes, from min to max */
};

struct cli_texts {
    const char *items[CLI_TEXTS_MAX];
    size_t n;
};

struct cli_option {
    const char *name; /* without the dashes */
    const char *value; /* what stands for its value in the help; NULL for a flag */
    enum cli_kind kind;
    size_t at; /* of its field in the command's struct */
    int64_t min;
    int64_t max;
    const char *about; /* a sentence without a full stop */
};

/* A row of a command's table of options, for a `const char *` of its struct; NULL: not given. */
#define CLI_TEXT_OPTION(type, field, option, placeholder, text)                                    \
    {                                                                                              \
        .name = option, .value = placeholder, .kind = CLI_TEXT, .at = offsetof(type, field),       \
        .about = text                                                                              \
    }

enum cli_from { CLI_FROM_DEFAULT = 0, CLI_FROM_LINE, CLI_FROM_ENVIRONMENT, CLI_FROM_FILE };

/* Where an option's value comes from. */
struct cli_given {
    enum cli_from from;
    unsigned line; /* of the file; counted from 1 */
    const char *value; /* as it was given, the last one where there are several; NULL: by default */
};

/* What every command is given: the first member of the command's own struct. The other fields of
 * that struct begin as zero, unless the command's defaults() sets them. */
struct cli_args {
    const struct cli_command *command;
    const char *operand; /* NULL: none */
    char **words; /* of a command that takes them: those after "--"; ends with NULL */
    const char *config; /* NULL: no file of settings */
    const char *store; /* the URI; set even where --store is not given */
    bool by_default; /* neither --store nor HAPAX_STORE named it */
    bool json;
    bool help;
    struct cli_given given[CLI_OPTIONS_MAX]; /* by the option's place (cli_option_at) */
    char *file; /* the text of the file of settings, into which values point; NULL: none */
    size_t file_size;
    FILE *out; /* of JSON; NULL: stdout */
    struct hapax_store *lent; /* the store, open; NULL: the command opens it */
    int ending; /* can be read once the command is to end; 0: it looks for signals by itself */
    const char *shown; /* store as it was named, without passwords */
    char uri[PATH_MAX + 64]; /* what store points to by default, or with a login */
    char shown_uri[HAPAX_TEXT_MAX]; /* what shown points to, where there may be a password */
};

struct cli_advice;

struct cli_command {
    const char *name;
    const char *summary; /* a line without a full stop */
    const char *synopsis[4]; /* one or more lines, without "hapax NAME" */
    const char *prose; /* paragraphs, an empty line between two */
    const struct cli_option *options;
    size_t option_count;
    /* Where there are many options: the titles of their groups, by the first option of each. */
    struct cli_group {
        const char *title;
        const char *first;
    } groups[6];
    const char *operand; /* of the synopsis; NULL: takes none */
    bool words; /* takes all that stands after "--" */
    bool rest; /* takes all from the first word on that is no option of its own */
    /* Takes its options from the environment and from a file, too. A command without this takes
     * --store, --json and --config alone from there: an act stands on its own line. */
    bool settings;
    int wrong; /* exit status of a wrong command line; 0: CLI_USAGE */
    bool no_store; /* knows no --store */
    bool no_shared; /* knows none of the shared options */
    struct cli_example {
        const char *line;
        const char *about;
    } examples[4];
    size_t args_size;
    void (*defaults)(struct cli_args *args); /* NULL: all zero */
    enum cli_exit (*run)(struct cli_args *args);
    /* Of a door: reads the settings, starts nothing, and says what is to be said of them
     * (advice.h). NULL: the command is no door. */
    enum cli_exit (*advise)(struct cli_args *args, const struct cli_advice *to);
};

extern const struct cli_command cli_bench, cli_check, cli_config, cli_consume, cli_copy, cli_door,
    cli_erase, cli_help, cli_rotate, cli_import, cli_init, cli_keep, cli_lambda, cli_list,
    cli_purge, cli_redrive, cli_relay, cli_resolve, cli_run, cli_serve, cli_show, cli_switch,
    cli_top, cli_web;

/* All of them, in the order of the help; ends with NULL. */
extern const struct cli_command *const cli_commands[];

/* NULL: none of that name. */
const struct cli_command *cli_command_find(const char *name);

/* Which name was meant by a word that is none. Set word and len, and look at each name. */
struct cli_nearest {
    const char *word;
    size_t len;
    const char *name; /* the nearest so far; NULL: none is near */
    unsigned far; /* letters that differ */
};
void cli_nearest_look(struct cli_nearest *nearest, const char *name);

/* What to say of a word that is no command: what was meant, or where all stand. */
void cli_command_advice(char out[128], const char *word);

/* One of the shared options that this command knows, counted from 0; NULL: there is none. */
const struct cli_option *cli_shared_option(const struct cli_command *command, size_t index);

/* One of a command's options, its own and then the shared ones. NULL: past the last. */
const struct cli_option *cli_option_at(const struct cli_command *command, size_t place);

/* Reads the words after the command's name into args, then what the environment sets, then the file
 * that --config names: the first that sets an option wins. What is wrong is printed, and CLI_USAGE
 * is returned. */
enum cli_exit cli_parse(struct cli_args *args, int argc, char **argv);

/* Makes args for a command, with its defaults. NULL: out of memory. */
struct cli_args *cli_args_new(const struct cli_command *command);
void cli_args_free(struct cli_args *args); /* NULL is allowed */

#define CLI_VARIABLE_MAX 64u

/* The variable that sets an option: HAPAX_ON_EXPIRED of on-expired. */
void cli_variable(char out[CLI_VARIABLE_MAX], const struct cli_option *option);

/* The file that --config names: NAME is /etc/hapax/NAME.conf, and what has a slash is itself. */
void cli_config_path(char out[PATH_MAX], const char *config);

/* Which of the words, after which comes NULL, the value of an option is: counted from 1; 0: the
 * value is NULL. Another value is printed, and CLI_USAGE is returned. */
enum cli_exit cli_word(unsigned *out, const struct cli_args *args, const char *option,
                       const char *value, const char *const *words);

/* Sets one of the command's own options, as a word of the command line would. A flag has no
 * value. */
enum cli_exit cli_give(struct cli_args *args, const char *name, const char *value);

/* ---- pages --------------------------------------------------------------------------- */

enum cli_form { CLI_FORM_TEXT = 1, CLI_FORM_MAN, CLI_FORM_MARKDOWN };

/* Prints a command's page, or with NULL the page of hapax itself. */
void cli_page(const struct cli_command *command, enum cli_form form);

/* Prints the completion of all commands for zsh, or for bash. */
void cli_completion(bool for_zsh);

/* ---- failures ------------------------------------------------------------------------ */

/* Prints why the command failed: on stderr, or with --json as an object on stdout. Returns exit. */
enum cli_exit cli_fail(const struct cli_args *args, enum cli_exit exit, enum hapax_error error,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The same for a failure of the store. Returns the exit status that the error has. */
enum cli_exit cli_store_failed(const struct cli_args *args, enum hapax_error error,
                               const char *text);

/* Prints a line of a command that runs on: on stderr, or with --json as an object on stdout. Lines
 * of several threads do not mix. */
void cli_log(const struct cli_args *args, const char *line);

/* ---- the store ----------------------------------------------------------------------- */

/* Sets args->shown and, where --store was not given, args->store. A Redis without a login gets the
 * environment's. */
enum cli_exit cli_store_name(struct cli_args *args);

enum cli_opening {
    CLI_EXISTING = 1, /* an embedded store that was never made is an error */
    CLI_CREATE
};

/* Prepares to open args->store: makes RocksDB known where the store needs it, and the folders above
 * the default store. */
enum cli_exit cli_prepare(const struct cli_args *args, enum cli_opening opening);

/* Opens args->store; on CLI_DONE cli_close() closes *out. A failure is printed. */
enum cli_exit cli_open(struct hapax_store **out, const struct cli_args *args,
                       enum cli_opening opening);

/* Closes what cli_open() gave, but not a store that was lent. */
void cli_close(const struct cli_args *args, struct hapax_store *store);

/* The folder of an embedded store. False: the URI is of another store, or its path is too long. */
bool cli_embedded_path(char path[PATH_MAX], const char *uri);

/* Whether there is a store in the folder, or may be one where the folder is not readable. */
bool cli_embedded_made(const char *path);

struct cli_secret {
    uint8_t bytes[CLI_SECRET_MAX + 2];
    size_t len; /* 0: none */
    const char *file; /* its name, where len is not 0 */
    const char *variable; /* which names it */
};

/* Whether HAPAX_SECRET_FILE names a file. */
bool cli_secret_given(void);

/* Whether HAPAX_SECRET_OLD_FILE is set: the secret is being changed. */
bool cli_rotates(void);

/* Reads the file that HAPAX_SECRET_FILE names. */
enum cli_exit cli_secret_read(struct cli_secret *secret, const struct cli_args *args);

/* While the secret is being changed (docs/rotation.md): both. */
struct cli_secrets {
    struct cli_secret now;
    struct cli_secret old; /* len 0: there was none, or the secret is not being changed */
    bool rotates; /* the secret is being changed */
};

/* Reads the files that HAPAX_SECRET_FILE and HAPAX_SECRET_OLD_FILE name. The latter may be "none":
 * there was no secret. */
enum cli_exit cli_secrets_read(struct cli_secrets *secrets, const struct cli_args *args);

/* The same, borrowed. */
struct hapax__secrets cli_secrets_of(const struct cli_secrets *secrets);

/* Reads the file that HAPAX_KEYS_FILE names, and checks that it is one. */
enum cli_exit cli_keys_read(struct cli_secret *keys, const struct cli_args *args);

/* Opens args->store for a door that runs on, and makes it where that is needed. Waits for a store
 * that is away, and says so once, until a signal ends that: then *out stays NULL. Whose words were
 * not run by then ends as the signal would have ended them. */
enum cli_exit cli_open_door(struct hapax **out, const struct cli_args *args,
                            const struct cli_secrets *secrets, uint32_t calls_max, int signals);

/* How an operation is named: by its key, with owner, scope and step, or by its id. */
struct cli_operation {
    const char *owner;
    const char *scope;
    const char *step;
    const char *id;
    char unquoted[HAPAX_KEY_MAX + 1]; /* where KEY is quoted as in a header */
};

/* Rows of a command's table of options, for its field of struct cli_operation. */
#define CLI_OPERATION_OPTIONS(type, field)                                                         \
    CLI_TEXT_OPTION(type, field.owner, "owner", "O",                                               \
                    "The owner of KEY, where the service has owners"),                             \
        CLI_TEXT_OPTION(type, field.scope, "scope", "S",                                           \
                        "The scope of KEY (default \"default\")"),                                 \
        CLI_TEXT_OPTION(type, field.step, "step", "NAME",                                          \
                        "A step of the operation, not the operation itself"),                      \
        CLI_TEXT_OPTION(type, field.id, "id", "HEX",                                               \
                        "The operation by its id, or a problem's instance, not by KEY")

/* An id as 64 hex digits, or as a problem's instance. */
bool cli_id_read(struct hapax_id *id, const char *hex);

/* The names of an operation in its store: under the secret, and while that is being changed under
 * the old one, too. */
struct cli_names {
    struct hapax_id id;
    struct hapax_digest owner; /* zeroed: it has none, or the id was given */
    bool has_old;
    struct hapax_identity old;
};

/* Has the op be about the operation; borrows the names. */
void cli_name(struct hapax_op *op, const struct cli_names *names);

/* Makes the names and opens the store; on CLI_DONE cli_close() closes *out. Where the names are
 * made from a key, the secret is compared with the store's. A store that has no check value of a
 * secret gets none. Where the store has no such operation, and KEY is quoted as in a header, the
 * operation is that of the key within the quotes, and args->operand becomes that key. */
enum cli_exit cli_open_operation(struct hapax_store **out, struct cli_names *names,
                                 struct cli_args *args, struct cli_operation *operation);

#define CLI_OWNERS_MAX 2u

/* The digests of an owner: under the secret, which is compared with the store's as above, and while
 * that is being changed under the old one, too. */
enum cli_exit cli_owners(struct hapax_digest out[CLI_OWNERS_MAX], size_t *n,
                         const struct cli_args *args, struct hapax_store *store, const char *owner);

/* The names of an operation's steps, after cli_open_operation() by the operation's key. */
enum cli_exit cli_step_names(struct cli_names *names, const struct hapax_span *steps, size_t n,
                             const struct cli_args *args, const struct cli_operation *operation);

/* The operator's name: as given or, for NULL, the login name, which is put into out. */
const char *cli_by(char out[HAPAX_BY_MAX + 1], const char *given);

/* The bits of a LIST for the names of states. A wrong name is printed. */
enum cli_exit cli_states(uint32_t *bits, const struct cli_args *args,
                         const struct cli_texts *states);

/* Whether a record is the library's own: the check value of the store's secret, the epoch of a
 * hybrid store, a switch, or a list of an operation's steps. */
bool cli_is_own(const struct hapax_record *record);

/* Whether a record is a list of an operation's steps, and so goes with the operation. */
bool cli_is_step_list(const struct hapax_record *record);

/* ---- the embedded store, where it is built in ------------------------------------------ */

/* Makes rocksdb: URIs open the database. False: this hapax was built without it. */
bool cli_embedded_use(void);

/* The process that has the folder's database open; 0: none, or not known. */
pid_t cli_embedded_holder(const char *path);

/* ---- traces and events --------------------------------------------------------------- */

struct cli_telling {
    const char *traces;
    const char *events;
};

/* Rows of a table of options, for its field of struct cli_telling. */
#define CLI_TELLING_OPTIONS(type, field)                                                           \
    CLI_TEXT_OPTION(type, field.traces, "traces", "URL",                                           \
                    "Send spans there, by OTLP (default: by OTEL_*)"),                             \
        CLI_TEXT_OPTION(type, field.events, "events", "FILE",                                      \
                        "Append a line of JSON per attempt; -: stdout")

/* Opens what the options or the environment name. *out NULL: nothing is. */
enum cli_exit cli_traces_open(struct hapax__traces **out, const struct cli_args *args,
                              const struct cli_telling *telling, enum hapax__traced_door door);

/* ---- signals ------------------------------------------------------------------------- */

/* Blocks SIGINT and SIGTERM, and returns a descriptor that one of them makes readable. Call it
 * before any thread is started. Negative: no descriptor is left. */
int cli_signals_begin(void);

/* The same for more signals besides those two. */
int cli_signals_begin_with(const int *more, size_t n);

/* The same for who runs a command: for what is passed on to the command, and for its end. */
int cli_signals_begin_parent(void);

/* Whether a signal was ignored at our start (`nohup`). It then tells us nothing, and only what
 * handles it in a command of ours is to have it. */
bool cli_signal_ignored(int number);

/* Waits for a signal, at most timeout_ms (negative: no limit). Returns the signal; 0: none came.
 * Feeds the service manager's watchdog meanwhile. */
int cli_signals_wait(int fd, int64_t timeout_ms);

/* ---- the service manager ------------------------------------------------------------- */

/* Tells the service manager that started this process, where there is one, what has changed:
 * "READY=1". See sd_notify(3). */
void cli_notify(const char *state);

/* Half of the time within which the service manager wants to hear "WATCHDOG=1" again; negative: it
 * does not. */
int64_t cli_watchdog_ms(void);

#endif
