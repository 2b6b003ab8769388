/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax door: the door of programs in any language (docs/door.md). With `-- COMMAND` it is the
 * parent of the program that it serves: it starts the program once it listens, passes signals on,
 * and ends with the program's status.
 *
 * A store that is away at the start is waited for. A store that goes away later is the policy's.
 */
#include "advice.h"
#include "child.h"
#include "policies.h"

#include "base/fail.h"
#include "base/span.h"
#include "door/call.h"
#include "door/socket/door.h"
#include "door/socket/metrics.h"
#include "door/socket/scopes.h"
#include "lane/census.h"
#include "metrics.h"
#include "print.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTEN    "unix:/run/hapax/door.sock"
#define CALLS_MAX 65536u
#define DRAIN_MS  10000
#define FILE_MAX  (1u << 20)

struct door_args {
    struct cli_args args;
    const char *listen;
    const char *group;
    const char *policy;
    const char *no_key;
    const char *on_disconnect;
    struct cli_metrics metrics;
    struct cli_telling telling;
    int64_t drain_ms; /* -1: the default */
    const char *policies[CLI_POLICIES];
};

#define TEXT(option, placeholder, field, text)                                                     \
    CLI_TEXT_OPTION(struct door_args, field, option, placeholder, text)

/* The policies come last. */
static const struct cli_option options[] = {
    TEXT("listen", "unix:PATH", listen, "Serve there (default " LISTEN ")"),
    TEXT("group", "G", group, "Let the members of this group connect"),
    TEXT("policy", "FILE", policy,
         "Policies by scope, as {\"refunds\": {\"on_expired\": \"hold\"}}"),
    TEXT("no-key", "WHAT", no_key, "An operation without a key: run or refuse (default run)"),
    TEXT("on-disconnect", "WHAT", on_disconnect,
         "A client died: wait for the lease, or go on now (default lease)"),
    {"drain", "TIME", CLI_DURATION, offsetof(struct door_args, drain_ms), 0, 3600000,
     "At the end, how long handlers may go on (default 10s)"},
    CLI_METRICS_OPTIONS(struct door_args, metrics),
    CLI_TELLING_OPTIONS(struct door_args, telling),
    CLI_POLICY_OPTIONS(struct door_args, policies, "1h", "0: not at all",
                       "It failed: retry, replay or hold (default: by --on-expired)",
                       "After so many the last failure is the answer (default 0: never)"),
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

struct serving {
    const struct door_args *args;
    struct hapax__scopes scopes;
    struct hapax__door_stats stats;
    struct hapax__pages *pages;
    uint16_t port; /* of the metrics */
    struct cli_secrets secrets;
    struct hapax__traces *traces;
    struct hapax *h;
    struct hapax__door *door;
    int signals;
    struct cli_child child; /* where there are words */
    char folder[64]; /* of the socket, where it is ours; otherwise "" */
    char listen[PATH_MAX + 8]; /* unix:PATH */
};

static void defaults(struct cli_args *args)
{
    ((struct door_args *)args)->drain_ms = DRAIN_MS;
}

/* ---- settings ---------------------------------------------------------------------------- */

static enum cli_exit read_scopes(struct serving *serving)
{
    const char *name = serving->args->policy;
    char text[HAPAX_TEXT_MAX], *bytes;
    enum hapax_error error;
    ssize_t len;
    int fd;

    if (!name)
        return CLI_DONE;
    fd = open(name, O_RDONLY | O_CLOEXEC);
    bytes = malloc(FILE_MAX + 1);
    len = fd >= 0 && bytes ? read(fd, bytes, FILE_MAX + 1) : -1;
    if (len < 0)
        error = hapax__fail(text, HAPAX_ERR_INVALID, "cannot read it: %s",
                            bytes ? strerror(errno) : "out of memory");
    else if (len > (ssize_t)FILE_MAX)
        error = hapax__fail(text, HAPAX_ERR_INVALID, "it has over %u bytes", FILE_MAX);
    else
        error = hapax__scopes_read(&serving->scopes,
                                   (struct hapax_span){(uint8_t *)bytes, (size_t)len}, text);
    if (fd >= 0)
        close(fd);
    free(bytes);
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    return cli_fail(&serving->args->args, CLI_USAGE, error, "--policy %.100s: %s", name, text);
}

static enum cli_exit read_settings(struct serving *serving, bool *now)
{
    static const char *const no_keys[] = {"run", "refuse", NULL};
    static const char *const disconnects[] = {"now", "lease", NULL};
    const struct door_args *args = serving->args;
    struct hapax_policy *policy = &serving->scopes.policy;
    char text[HAPAX_TEXT_MAX];
    unsigned key, died = 0;
    enum cli_exit exit = cli_word(&key, &args->args, "no-key", args->no_key, no_keys);

    if (exit == CLI_DONE)
        exit = cli_word(&died, &args->args, "on-disconnect", args->on_disconnect, disconnects);
    *now = died == 1;
    if (exit == CLI_DONE)
        exit = cli_policies_set(policy, &args->args, options + (OPTIONS - CLI_POLICIES),
                                args->policies, CLI_POLICIES);
    if (exit != CLI_DONE)
        return exit;
    if (key > 0)
        policy->key = key == 1 ? HAPAX_KEY_OPTIONAL : HAPAX_KEY_REQUIRED;
    if (hapax_policy_check(policy, text) != HAPAX_ERR_NONE)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "%s", text);
    if (args->listen && (!hapax__text_begins(args->listen, "unix:") || !args->listen[5]))
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--listen \"%.100s\" is not unix:PATH", args->listen);
    return read_scopes(serving);
}

/* ---- opening ----------------------------------------------------------------------------- */

/* Where to listen. With a command and no --listen: in a folder of our own. The command is told by
 * the environment, which is set here: no other thread runs yet. */
static enum cli_exit place(struct serving *serving)
{
    const struct door_args *args = serving->args;

    (void)snprintf(serving->listen, sizeof(serving->listen), "%s",
                   args->listen ? args->listen : LISTEN);
    if (!args->args.words)
        return CLI_DONE;
    if (!args->listen) {
        (void)snprintf(serving->folder, sizeof(serving->folder), "/tmp/hapax-door-XXXXXX");
        if (!mkdtemp(serving->folder)) {
            serving->folder[0] = '\0';
            return cli_fail(&args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                            "cannot make a folder in /tmp: %s", strerror(errno));
        }
        (void)snprintf(serving->listen, sizeof(serving->listen), "unix:%s/door.sock",
                       serving->folder);
    }
    if (setenv("HAPAX_DOOR", serving->listen, 1) == 0)
        return CLI_DONE;
    return cli_fail(&args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
}

/* Before the store, which may be away: a supervisor that looks at the port must not end a door that
 * waits for its store. */
static enum cli_exit open_metrics(struct serving *serving)
{
    const struct hapax__page_place place = cli_metrics_place(&serving->args->metrics);
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (!place.address)
        return CLI_DONE;
    error = hapax__door_metrics(&serving->pages, &place, &serving->stats, &serving->port, text);
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    return cli_metrics_failed(&serving->args->args, error, text);
}

static enum cli_exit open_door(struct serving *serving, bool now)
{
    const struct cli_args *args = &serving->args->args;
    const struct hapax__door_options how = {
        .h = serving->h,
        .path = serving->listen + strlen("unix:"),
        .group = serving->args->group,
        .scopes = &serving->scopes,
        .stats = &serving->stats,
        .now = now,
        .last = serving->folder[0] != '\0',
    };
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    hapax__use_traces(serving->h, serving->traces);
    atomic_store(&serving->stats.h, serving->h);
    atomic_store(&serving->stats.store_up, true);
    if (serving->pages)
        atomic_store(&serving->stats.census, cli_census_open(args->store));
    error = hapax__door_open(&serving->door, &how, text);
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    return cli_fail(args, error == HAPAX_ERR_INVALID ? CLI_USAGE : CLI_UNREACHED, error, "%s",
                    text);
}

static void say_ready(const struct serving *serving)
{
    const struct cli_args *args = &serving->args->args;
    struct json json;

    if (args->json) {
        json_begin(&json);
        json_text(&json, "listen", serving->listen);
        json_text(&json, "store", args->shown);
        if (serving->pages)
            json_number(&json, "metrics_port", serving->port);
        json_number(&json, "pid", getpid());
        json_end(&json);
    } else {
        printf("hapax door: serving %s at %s (pid %ld)", args->shown, serving->listen,
               (long)getpid());
        if (serving->pages)
            printf("; metrics at port %u", serving->port);
        printf("\n");
    }
    (void)fflush(stdout);
}

/* ---- the child --------------------------------------------------------------------------- */

static enum cli_exit start_child(struct serving *serving)
{
    const struct cli_args *args = &serving->args->args;
    int error, status;

    if (!args->words)
        return CLI_DONE;
    error = cli_child_start(&serving->child,
                            &(struct cli_child_how){args->words, environ, 0, false}, &status);
    if (error == 0)
        return CLI_DONE;
    (void)cli_fail(args, CLI_UNREACHED, HAPAX_ERR_INVALID, "cannot start \"%.100s\": %s",
                   args->words[0], strerror(error));
    return status ? (enum cli_exit)status : CLI_UNREACHED;
}

/* Until a signal; with a command, until its end. Returns the exit status. */
static int watch(struct serving *serving)
{
    bool killed;

    for (;;) {
        int signal = cli_signals_wait(serving->signals, -1);

        if (!serving->args->args.words && (signal == SIGTERM || signal == SIGINT))
            return CLI_DONE;
        if (serving->args->args.words && signal != SIGCHLD && signal != 0)
            cli_child_signal(&serving->child, signal);
        if (serving->args->args.words && cli_child_ended(&serving->child))
            return cli_child_reap(&serving->child, &killed);
    }
}

/* ---- the command ------------------------------------------------------------------------- */

static enum cli_exit serve(struct serving *serving)
{
    enum cli_exit exit;

    say_ready(serving);
    cli_notify("READY=1");
    exit = start_child(serving);
    return exit == CLI_DONE ? (enum cli_exit)watch(serving) : exit;
}

/* With operations left in hand, which go on at the next door, the store is left to the process's
 * end. */
static enum cli_exit close_all(struct serving *serving, enum cli_exit exit)
{
    const struct cli_args *args = &serving->args->args;
    uint32_t left = hapax__door_close(serving->door, serving->args->drain_ms), unsaved = 0;

    hapax__pages_close(serving->pages);
    hapax__census_close(serving->stats.census);
    if (serving->folder[0])
        (void)rmdir(serving->folder);
    if (left > 0) { /* as kill -9, which is what the clients go on after */
        (void)fflush(stdout);
        _exit((int)exit);
    }
    unsaved = hapax_close(serving->h, serving->scopes.policy.save_wait_ms);
    hapax__traces_close(serving->traces);
    explicit_bzero(&serving->secrets, sizeof(serving->secrets));
    if (exit != CLI_DONE)
        return exit;
    hapax__scopes_release(&serving->scopes);
    if (unsaved > 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                        "%u outcomes could not be stored", unsaved);
    return CLI_DONE;
}

static enum cli_exit run(struct cli_args *args)
{
    /* The door's thread may use all this until the process ends. */
    static struct serving standing;
    struct serving *serving = &standing;
    enum cli_exit exit;
    bool now;

    serving->args = (const struct door_args *)args;
    hapax_policy_init(&serving->scopes.policy);
    if (args->words && !args->words[0])
        args->words = NULL;
    serving->signals = args->words ? cli_signals_begin_parent() : cli_signals_begin();
    if (serving->signals < 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    exit = read_settings(serving, &now);
    if (exit == CLI_DONE)
        exit = cli_secrets_read(&serving->secrets, args);
    if (exit == CLI_DONE)
        exit =
            cli_traces_open(&serving->traces, args, &serving->args->telling, HAPAX__TRACED_SOCKET);
    if (exit == CLI_DONE)
        exit = place(serving);
    if (exit == CLI_DONE)
        exit = open_metrics(serving);
    if (exit == CLI_DONE)
        exit = cli_open_door(&serving->h, args, &serving->secrets, CALLS_MAX, serving->signals);
    if (exit == CLI_DONE && serving->h)
        exit = open_door(serving, now);
    if (exit == CLI_DONE && serving->h)
        exit = serve(serving);
    return close_all(serving, exit);
}

static enum cli_exit advise(struct cli_args *args, const struct cli_advice *to)
{
    struct serving serving = {.args = (const struct door_args *)args};
    struct cli_door door = {
        .apart = "owner and caller are what each program says",
        .differs = serving.args->policy != NULL,
    };
    enum cli_exit exit;
    bool now;

    hapax_policy_init(&serving.scopes.policy);
    exit = read_settings(&serving, &now);
    door.policy = &serving.scopes.policy;
    if (exit == CLI_DONE)
        cli_advise_door(to, &door);
    hapax__scopes_release(&serving.scopes);
    return exit;
}

const struct cli_command cli_door = {
    .name = "door",
    .summary = "run operations for the programs of this machine, in any language",
    .synopsis = {"[--listen unix:PATH] [--policy FILE] [--POLICY VALUE]...",
                 "[OPTION]... -- COMMAND..."},
    .prose =
        "Runs functions, jobs and steps of other programs once: an SDK connects to the socket and "
        "says what to run, and this process does all else. Any store will do; with rocksdb: it "
        "is the one that holds the database. A client that dies is seen at once. Where this "
        "process dies, the clients connect again, and no result is lost.\n\n"
        "With -- COMMAND it is the command's parent: HAPAX_DOOR tells the command where the "
        "socket is, signals are passed on, and the exit status is the command's. Without one it "
        "runs until SIGTERM or Ctrl-C; handlers may then go on for --drain, and after that at the "
        "next door. Only processes of your own user, of root and of --group may connect. "
        "docs/door.md has the protocol.",
    .options = options,
    .option_count = OPTIONS,
    .groups = {{"The socket", "listen"},
               {"Operations", "policy"},
               {"The process", "drain"},
               {"Policies", "profile"}},
    .words = true,
    .examples = {{"hapax door --store redis://localhost -- ./worker",
                  "The worker finds the door by HAPAX_DOOR."},
                 {"hapax door --store rocksdb:/var/lib/shop/hapax --group www-data",
                  "For the processes of the group www-data."}},
    .settings = true,
    .args_size = sizeof(struct door_args),
    .defaults = defaults,
    .run = run,
    .advise = advise,
};
