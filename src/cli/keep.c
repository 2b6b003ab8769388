/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax keep: keeps an embedded store open for the processes of this machine, so that no
 * application has to stay up for the others. Each process that opens an embedded store serves it at
 * PATH/keeper.sock; --listen adds a second socket, over a second handle.
 */
#include "cli.h"

#include "lane/census.h"
#include "metrics.h"
#include "print.h"
#include "store/keeper/keeper.h"

#include <inttypes.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define URI_MAX     (PATH_MAX + 256)
#define WATCH_MS    60000
#define DANGERS_MAX 16u

struct keep_args {
    struct cli_args args;
    const char *listen;
    const char *group;
    const char *mode;
    struct cli_metrics metrics;
};

static const struct cli_option options[] = {
    {"listen", "unix:PATH", CLI_TEXT, offsetof(struct keep_args, listen), 0, 0,
     "Serve at this socket too"},
    {"group", "G", CLI_TEXT, offsetof(struct keep_args, group), 0, 0,
     "Let the members of this group connect, as doors"},
    {"mode", "MODE", CLI_TEXT, offsetof(struct keep_args, mode), 0, 0,
     "Mode of the sockets, in octal (default 0600, and 0660 with --group)"},
    CLI_METRICS_OPTIONS(struct keep_args, metrics),
};

struct keeping {
    char uri[URI_MAX]; /* with group and mode */
    char path[PATH_MAX];
    struct hapax_store *store;
    struct hapax__keeper_server *second; /* NULL without --listen */
    struct hapax__census *census; /* NULL without --metrics, as the next */
    struct hapax__pages *pages;
    uint16_t port; /* of the pages */
};

static enum cli_exit parse_mode(unsigned *mode, const struct keep_args *keep)
{
    *mode = 0;
    if (!keep->mode)
        return CLI_DONE;
    for (const char *c = keep->mode; *c; c++) {
        if (*c < '0' || *c > '7' || *mode > 0777u / 8)
            *mode = 01000;
        else
            *mode = *mode * 8 + (unsigned)(*c - '0');
        if (*mode > 0777)
            break;
    }
    if ((*mode & 0600) == 0600 && *mode <= 0777)
        return CLI_DONE;
    return cli_fail(&keep->args, CLI_USAGE, HAPAX_ERR_INVALID,
                    "--mode \"%s\" is not octal from 0600 to 0777, its owner's 6 included, as 0660",
                    keep->mode);
}

/* Adds a parameter to the URI. */
static bool add(char uri[URI_MAX], const char *name, const char *value)
{
    size_t len = strlen(uri);
    int more =
        snprintf(uri + len, URI_MAX - len, "%c%s=%s", strchr(uri, '?') ? '&' : '?', name, value);

    return more > 0 && (size_t)more < URI_MAX - len;
}

static enum cli_exit make_uri(struct keeping *keeping, const struct keep_args *keep)
{
    const struct cli_args *args = &keep->args;
    char mode[16];
    unsigned bits;
    enum cli_exit exit = parse_mode(&bits, keep);

    if (exit != CLI_DONE)
        return exit;
    if (!cli_embedded_path(keeping->path, args->store) || strlen(args->store) >= URI_MAX)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "cannot keep \"%s\": only an embedded store, rocksdb:PATH, has to be kept",
                        args->shown);
    if (keep->group && (!*keep->group || strpbrk(keep->group, "&?=")))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--group \"%s\" is no name of a group",
                        keep->group);
    (void)snprintf(keeping->uri, sizeof(keeping->uri), "%s", args->store);
    (void)snprintf(mode, sizeof(mode), "0%o", bits);
    if ((keep->group && !add(keeping->uri, "group", keep->group)) ||
        (bits != 0 && !add(keeping->uri, "mode", mode)))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--store or --group is too long");
    return CLI_DONE;
}

/* Opens one more handle of the store. Refuses where another process has the store open, since that
 * process serves it already. */
static enum cli_exit open_here(struct hapax_store **out, const struct cli_args *args,
                               const struct keeping *keeping)
{
    enum cli_exit exit = cli_open(out, args, CLI_CREATE);
    pid_t holder = cli_embedded_holder(keeping->path);
    char who[32] = "another process";

    if (exit != CLI_DONE || holder == getpid())
        return exit;
    hapax_store_close(*out);
    *out = NULL;
    if (holder > 0)
        (void)snprintf(who, sizeof(who), "process %ld", (long)holder);
    return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_REFUSED,
                    "cannot keep \"%s\": %s holds it and serves it at unix:%s/keeper.sock",
                    keeping->uri, who, keeping->path);
}

static enum cli_exit serve_second(struct keeping *keeping, const struct keep_args *keep,
                                  const struct cli_args *args)
{
    struct hapax__keeper_options how = {.group = keep->group};
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    enum cli_exit exit;

    if (!keep->listen)
        return CLI_DONE;
    if (strncmp(keep->listen, "unix:", 5) != 0 || !keep->listen[5])
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--listen \"%s\" is not unix:PATH",
                        keep->listen);
    exit = parse_mode(&how.mode, keep);
    if (exit == CLI_DONE)
        exit = open_here(&store, args, keeping);
    if (exit != CLI_DONE)
        return exit;
    how.path = keep->listen + 5;
    error = hapax__keeper_serve(&keeping->second, store, &how, text);
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    hapax_store_close(store);
    return cli_store_failed(args, error, text);
}

static void put_metrics(FILE *out, const void *arg)
{
    const struct keeping *keeping = arg;

    hapax__page_build(out, "keep");
    hapax__keeper_page(out);
    hapax__census_page(out, keeping->census);
}

/* The process is healthy while it answers; what the store lacks is said on stderr. */
static const char *what_is_away(const void *arg)
{
    (void)arg;
    return NULL;
}

static enum cli_exit open_metrics(struct keeping *keeping, const struct keep_args *keep)
{
    const struct hapax__page_source from = {put_metrics, what_is_away, keeping};
    const struct hapax__page_place place = cli_metrics_place(&keep->metrics);
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (!place.address)
        return CLI_DONE;
    keeping->census = cli_census_open(keeping->uri);
    error = hapax__pages_open(&keeping->pages, &place, &from, &keeping->port, text);
    return error == HAPAX_ERR_NONE ? CLI_DONE : cli_metrics_failed(&keep->args, error, text);
}

static void say_ready(const struct keep_args *keep, const struct keeping *keeping)
{
    char socket[PATH_MAX + 32];
    struct json json;

    (void)snprintf(socket, sizeof(socket), "unix:%s/keeper.sock", keeping->path);
    if (keep->args.json) {
        json_begin(&json);
        json_text(&json, "holding", keep->args.store);
        json_array_begin(&json, "serving");
        json_item(&json, hapax_str(socket));
        if (keep->listen)
            json_item(&json, hapax_str(keep->listen));
        json_array_end(&json);
        if (keeping->pages)
            json_number(&json, "metrics_port", keeping->port);
        json_number(&json, "pid", getpid());
        json_end(&json);
    } else {
        printf("hapax keep: holding %s, serving %s%s%s (pid %ld)", keep->args.store, socket,
               keep->listen ? " and " : "", keep->listen ? keep->listen : "", (long)getpid());
        if (keeping->pages)
            printf("; metrics at port %u", keeping->port);
        (void)putchar('\n');
    }
    (void)fflush(stdout);
}

struct dangers {
    char line[DANGERS_MAX][HAPAX_TEXT_MAX];
    unsigned n;
};

static void take_danger(void *arg, bool danger, const char *line)
{
    struct dangers *dangers = arg;

    if (danger && dangers->n < DANGERS_MAX)
        (void)snprintf(dangers->line[dangers->n++], HAPAX_TEXT_MAX, "%s", line);
}

/* Until a signal: asks the store now and then, and prints its dangers where there are more of them
 * than before. */
static void watch(const struct keeping *keeping, int signals)
{
    unsigned told = 0;

    do {
        struct dangers dangers = {.n = 0};

        (void)hapax_store_check(keeping->store, take_danger, &dangers);
        for (unsigned i = 0; i < dangers.n && dangers.n > told; i++)
            (void)fprintf(stderr, "hapax keep: danger: %s\n", dangers.line[i]);
        told = dangers.n;
    } while (cli_signals_wait(signals, WATCH_MS) == 0);
}

static enum cli_exit run(struct cli_args *args)
{
    const struct keep_args *keep = (const struct keep_args *)args;
    struct cli_args with_uri = *args;
    struct keeping keeping = {.store = NULL};
    enum cli_exit exit = make_uri(&keeping, keep);
    int signals;

    if (exit != CLI_DONE)
        return exit;
    with_uri.store = keeping.uri;
    signals = cli_signals_begin();
    if (signals < 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    exit = open_here(&keeping.store, &with_uri, &keeping);
    if (exit == CLI_DONE)
        exit = serve_second(&keeping, keep, &with_uri);
    if (exit == CLI_DONE)
        exit = open_metrics(&keeping, keep);
    if (exit == CLI_DONE) {
        say_ready(keep, &keeping);
        cli_notify("READY=1");
        watch(&keeping, signals);
    }
    hapax__pages_close(keeping.pages);
    hapax__census_close(keeping.census);
    hapax__keeper_stop(keeping.second);
    hapax_store_close(keeping.store);
    close(signals);
    return exit;
}

const struct cli_command cli_keep = {
    .name = "keep",
    .summary = "hold an embedded store open for the processes of this machine",
    .synopsis = {"[--listen unix:PATH] [--group G] [--mode MODE]"},
    .prose =
        "One process holds an embedded store; the others reach it through that process. This "
        "one does nothing else, so the store stays up while applications come and go. They "
        "use the same rocksdb:PATH, or unix:PATH/keeper.sock.\n\n"
        "Prints one line when it is ready, and runs until SIGTERM or Ctrl-C; then it answers "
        "what is in hand and ends. Only processes of your own user and of root may connect. The "
        "members of --group may connect too, with the rights of a door: they run operations, and "
        "list, show, resolve and purge none. If another process holds the store: exit status "
        "3.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax keep --store rocksdb:/var/lib/shop/hapax --group www-data",
                  "For the processes of the group www-data too."}},
    .settings = true,
    .args_size = sizeof(struct keep_args),
    .run = run,
};
