/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax init: makes what a store needs before its first use. The embedded store needs its folder,
 * PostgreSQL a schema; with a secret the store is tied to it here, before a service with another
 * one comes.
 */
#include "cli.h"

#include "print.h"
#include "store/rotation/rotation.h"

#include <stdlib.h>
#include <string.h>

struct init_args {
    struct cli_args args;
    struct cli_texts roles;
    bool print;
    bool print_acl;
};

static const struct cli_option options[] = {
    {"print", NULL, CLI_FLAG, offsetof(struct init_args, print), 0, 0,
     "Say what would be made, or what SQL would be run, and make nothing"},
    {"role", "USE=NAME", CLI_TEXTS, offsetof(struct init_args, roles), 0, 0,
     "Give this role of PostgreSQL the rights of a door, an operator, ... (see below)"},
    {"print-acl", NULL, CLI_FLAG, offsetof(struct init_args, print_acl), 0, 0,
     "Print the users of Redis, or the policies of DynamoDB, and make nothing"},
};

static enum cli_exit report(const struct cli_args *args, const char *text, bool created)
{
    struct json json;

    if (!args->json) {
        puts(text);
        return CLI_DONE;
    }
    json_begin(&json);
    json_text(&json, "store", args->shown);
    json_bool(&json, "created", created);
    json_text(&json, "text", text);
    json_end(&json);
    return CLI_DONE;
}

static enum cli_exit bind_secret(const struct cli_args *args, struct hapax_store *store)
{
    struct cli_secrets secrets;
    struct hapax__secrets both;
    enum hapax__rotation at;
    enum hapax_error error;
    enum cli_exit exit = cli_secrets_read(&secrets, args);

    if (exit != CLI_DONE || secrets.now.len == 0)
        return exit;
    both = cli_secrets_of(&secrets);
    error = secrets.rotates ? hapax__rotation_bind(store, &both, &at)
                            : hapax_store_bind(store, both.now);
    explicit_bzero(&secrets, sizeof(secrets));
    return error == HAPAX_ERR_NONE ? CLI_DONE
                                   : cli_store_failed(args, error, hapax_store_text(store));
}

static enum cli_exit make(const struct cli_args *args, const char *path, bool made)
{
    struct hapax_store *store;
    enum cli_exit exit = cli_open(&store, args, CLI_CREATE);
    char text[PATH_MAX + 64];

    if (exit != CLI_DONE)
        return exit;
    exit = bind_secret(args, store);
    hapax_store_close(store);
    if (exit != CLI_DONE)
        return exit;
    (void)snprintf(text, sizeof(text),
                   made ? "there is a store in %s already" : "made a store in %s", path);
    return report(args, text, !made);
}

/* What a store says of what it makes, or would run: a line each, put together. */
static void take_line(void *arg, bool danger, const char *line)
{
    FILE *lines = arg;

    (void)danger;
    if (ftell(lines) > 0)
        (void)fputc('\n', lines);
    (void)fputs(line, lines);
}

static enum hapax_error give_rights(const struct init_args *init, FILE *lines,
                                    char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = HAPAX_ERR_NONE;

    for (size_t i = 0; i < init->roles.n && error == HAPAX_ERR_NONE; i++) {
        const char *item = init->roles.items[i], *equals = strchr(item, '=');
        char use[32];

        (void)snprintf(use, sizeof(use), "%.*s", equals ? (int)(equals - item) : 0, item);
        error = hapax_store_rights(init->args.store, use, equals ? equals + 1 : item, init->print,
                                   take_line, lines, text);
    }
    return error;
}

/* A store with a schema of its own, or one that needs nothing. */
static enum cli_exit make_elsewhere(const struct init_args *init, FILE *lines)
{
    const struct cli_args *args = &init->args;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    struct hapax_store *store;
    enum cli_exit exit;

    error = init->print_acl
                ? hapax_store_rights(args->store, NULL, NULL, true, take_line, lines, text)
                : hapax_store_init(args->store, init->print, take_line, lines, text);
    if (error == HAPAX_ERR_NONE)
        error = give_rights(init, lines, text);
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, text);
    if (init->print || init->print_acl)
        return CLI_DONE;
    exit = cli_open(&store, args, CLI_CREATE);
    if (exit == CLI_DONE)
        exit = bind_secret(args, store);
    hapax_store_close(store);
    return exit;
}

static enum cli_exit init_elsewhere(const struct init_args *init)
{
    const struct cli_args *args = &init->args;
    char *text = NULL;
    size_t len = 0;
    FILE *lines = open_memstream(&text, &len);
    enum cli_exit exit;

    if (!lines)
        return cli_store_failed(args, HAPAX_ERR_NOMEM, "out of memory");
    exit = make_elsewhere(init, lines);
    if (fclose(lines) != 0)
        exit = cli_store_failed(args, HAPAX_ERR_NOMEM, "out of memory");
    if (exit == CLI_DONE)
        exit = report(args, len > 0 ? text : "nothing had to be made",
                      len > 0 && !init->print && !init->print_acl);
    free(text);
    return exit;
}

static enum cli_exit run(struct cli_args *args)
{
    const struct init_args *init = (const struct init_args *)args;
    char text[PATH_MAX + 96];
    char path[PATH_MAX];
    bool made;

    if (!cli_embedded_path(path, args->store) || init->roles.n > 0 || init->print_acl)
        return init_elsewhere(init);
    made = cli_embedded_made(path);
    if (!init->print)
        return make(args, path, made);
    (void)snprintf(text, sizeof(text),
                   made ? "there is a store in %s already"
                        : "would make the folder %s, for you alone (mode 0700), and a "
                          "database in it",
                   path);
    return report(args, text, false);
}

const struct cli_command cli_init = {
    .name = "init",
    .summary = "make what a store needs before its first use",
    .synopsis = {"[--role USE=NAME]... [--print]", "--print-acl"},
    .prose = "Makes the folder and the database of an embedded store; services do so as well when "
             "they first open it. Redis needs nothing made. It may be run again at any time. Where "
             "HAPAX_SECRET_FILE is set, the store is tied to that secret.\n\n"
             "--role makes the role if it is missing, and gives it what one use of the schema "
             "needs: door (gates, consumers, programs with libhapax), operator (list, show, "
             "resolve, purge, redrive), caller (hapax.begin() and what follows it), executor "
             "(hapax_pg_execute()), publisher (hapax.publish()), relay (hapax relay). --print-acl "
             "prints the least rights of doors, operators and hapax check: lines of ACL SETUSER "
             "for Redis, in which PASSWORD is yours to put, or policies of IAM for DynamoDB.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax init --store rocksdb:/var/lib/shop/hapax", "A store in this folder."},
                 {"hapax init --store postgres://shop@db/shop", "The schema in this database."},
                 {"hapax init --store postgres://shop@db/shop --role door=gate",
                  "The same, with a door's rights for a role."},
                 {"hapax init --store dynamodb://eu-central-1/hapax", "The table, and its TTL."}},
    .args_size = sizeof(struct init_args),
    .run = run,
};
