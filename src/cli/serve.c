/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax serve: the HTTP door. Keeps the store open, and runs an nginx with the module as its child.
 *
 * This process opens an embedded store, and serves it to the workers at a socket of its own beside
 * the configuration. There the socket's path is short, and its permissions are the workers',
 * whatever those of the store's folder are. Where another process has the store open, this process
 * opens it when the other ends; nginx could not, since it has no RocksDB.
 *
 * All settings are checked before anything is started. The ready line is printed once the port
 * accepts connections. At the end nginx first finishes its requests, and then the store is closed:
 * an operation that is cut off would leave a claim whose outcome is unknown.
 */
#include "serve.h"

#include "base/clock.h"
#include "print.h"
#include "store/keeper/keeper.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_US   (INT64_C(30) * 1000 * 1000)
#define PAUSE_MS   10
#define FOLDER_MAX 80u /* the socket in it has a path that a socket can have */

#define TEXT(option, placeholder, field, text)                                                     \
    CLI_TEXT_OPTION(struct serve_args, field, option, placeholder, text)

const struct cli_option serve_options[] = {
    TEXT("upstream", "URL", upstream, "The API, as http://127.0.0.1:9000, or https"),
    TEXT("upstream-ca", "FILE", upstream_ca, "Whom https is trusted to; the system's"),
    TEXT("listen", "HOST:PORT", listen, "The default is 127.0.0.1:8080"),
    TEXT("scope", "VALUE", scope, "As $http_x_tenant, or a fixed word; default"),
    TEXT("key-header", "NAME", key_header, "The default is Idempotency-Key"),
    TEXT("key-from", "POINTERS", key_from, "To the key in a JSON body, as \"/order/id\""),
    TEXT("caller", "VALUE", caller, "Who asks, as $ssl_client_s_dn; Authorization"),
    TEXT("fingerprint", "PARTS", fingerprint, "As \"method uri json -/at\"; method uri body"),
    TEXT("methods", "METHODS", methods, "The default is \"POST PATCH\""),
    TEXT("push", "BROKER", push, "Before a push broker: dapr, knative or sns"),
    {"class", "RULE", CLI_TEXTS, offsetof(struct serve_args, classes), 0, 0,
     "What statuses mean, as \"409 425 not_run\""},
    {"location", "RULE", CLI_TEXTS, offsetof(struct serve_args, locations), 0, 0,
     "\"/path POLICY=VALUE...\": differs there; or off"},
    TEXT("auth-request", "URL", auth_request, "Asked before every request; 2xx lets it in"),
    TEXT("reconcile", "URL", reconcile, "Whom --on-expired reconcile asks: has it happened?"),
    TEXT("tls-cert", "FILE", tls_cert, "Serve https, with this certificate (PEM)"),
    TEXT("tls-key", "FILE", tls_key, "And its key"),
    {"workers", "N", CLI_NUMBER, offsetof(struct serve_args, workers), 1, 256,
     "Of nginx; one per processor"},
    {"access-log", NULL, CLI_FLAG, offsetof(struct serve_args, access_log), 0, 0,
     "Log each request on stderr"},
    TEXT("nginx", "FILE", nginx, "Not the one in PATH or /usr/sbin"),
    TEXT("module", "FILE", module, "Not the one beside hapax or nginx's"),
    {"config-only", NULL, CLI_FLAG, offsetof(struct serve_args, config_only), 0, 0,
     "Print a configuration for your own nginx"},
    CLI_POLICY_OPTIONS(struct serve_args, policies, "A 5xx: retry, replay or hold; retry",
                       "After so many, the last failure stands; 0: none"),
    TEXT("key", "WHAT", policies[CLI_POLICIES], "optional, or required: 400 without one; optional"),
};
const size_t serve_option_count = sizeof(serve_options) / sizeof(serve_options[0]);

static void defaults(struct cli_args *args)
{
    ((struct serve_args *)args)->listen = "127.0.0.1:8080";
}

struct serving {
    const struct serve_args *args;
    struct serve_conf conf;
    struct serve_nginx nginx;
    struct cli_secret secret;
    char secret_file[PATH_MAX]; /* absolute: nginx has another folder */
    char folder[FOLDER_MAX];
    char user[64];
    char group[64];
    char path[PATH_MAX]; /* of an embedded store, absolute; empty: another store */
    struct hapax_store *store; /* NULL: another process has it open */
    struct hapax__keeper_server *keeper; /* NULL: the same */
    int signals;
};

/* ---- the folder --------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)where;
    (void)(type == FTW_DP ? rmdir(path) : unlink(path));
    return 0;
}

static void remove_folder(struct serving *serving)
{
    if (serving->folder[0])
        (void)nftw(serving->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    serving->folder[0] = '\0';
}

/* nginx's workers do not run as root. Their group may pass through the folder, but not list it. */
static enum cli_exit open_to_workers(struct serving *serving)
{
    static const char *const names[] = {"www-data", "nobody"};
    const struct passwd *user = NULL;
    const struct group *group;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !user; i++)
        user = getpwnam(names[i]);
    group = user ? getgrgid(user->pw_gid) : NULL;
    if (!group)
        return cli_fail(&serving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "cannot serve as root: there is no user www-data or nobody for the "
                        "workers");
    (void)snprintf(serving->user, sizeof(serving->user), "%s", user->pw_name);
    (void)snprintf(serving->group, sizeof(serving->group), "%s", group->gr_name);
    serving->conf.user = serving->user;
    serving->conf.group = serving->group;
    if (chown(serving->folder, 0, group->gr_gid) == 0 && chmod(serving->folder, 0710) == 0)
        return CLI_DONE;
    return cli_fail(&serving->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                    "cannot open \"%s\" to the workers: %s", serving->folder, strerror(errno));
}

static enum cli_exit make_folder(struct serving *serving)
{
    const char *base = geteuid() == 0 ? NULL : getenv("XDG_RUNTIME_DIR");
    static const char name[] = "hapax-serve-XXXXXX";

    if (!base || base[0] != '/' || strlen(base) + sizeof(name) >= FOLDER_MAX ||
        strpbrk(base, "\"'\\;{}$"))
        base = "/tmp";
    (void)snprintf(serving->folder, sizeof(serving->folder), "%s/%s", base, name);
    if (!mkdtemp(serving->folder)) {
        serving->folder[0] = '\0';
        return cli_fail(&serving->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                        "cannot make a folder in \"%s\": %s", base, strerror(errno));
    }
    serving->conf.folder = serving->folder;
    return geteuid() == 0 ? open_to_workers(serving) : CLI_DONE;
}

static enum cli_exit write_conf(struct serving *serving)
{
    char path[PATH_MAX];
    FILE *out;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/nginx.conf", serving->folder);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    out = fd < 0 ? NULL : fdopen(fd, "w");
    if (out) {
        bool good;

        serve_conf_write(out, &serving->conf);
        good = !ferror(out);
        if (fclose(out) == 0 && good)
            return CLI_DONE;
    } else if (fd >= 0) {
        close(fd);
    }
    return cli_fail(&serving->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                    "cannot write \"%s\": %s", path, strerror(errno));
}

/* ---- the store ------------------------------------------------------------------------------ */

/* Makes a path absolute, for a process with another working folder. */
static enum cli_exit make_absolute(char out[PATH_MAX], const struct cli_args *args,
                                   const char *path, size_t len)
{
    char folder[PATH_MAX];
    int total = -1;

    if (len > 0 && path[0] == '/')
        total = snprintf(out, PATH_MAX, "%.*s", (int)len, path);
    else if (len > 0 && getcwd(folder, sizeof(folder)))
        total = snprintf(out, PATH_MAX, "%s/%.*s", folder, (int)len, path);
    if (total > 0 && total < PATH_MAX)
        return CLI_DONE;
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--store \"%.200s\" has no usable path",
                    args->store);
}

/* How nginx reaches a store that this process does not serve. */
static enum cli_exit name_store(struct serving *serving)
{
    const struct cli_args *args = &serving->args->args;
    char given[PATH_MAX];
    char path[PATH_MAX];
    enum cli_exit exit = CLI_DONE;

    (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "%.*s",
                   (int)sizeof(serving->conf.store) - 1, args->store);
    if (cli_embedded_path(given, args->store)) {
        exit = make_absolute(serving->path, args, given, strlen(given));
        (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "unix:%s/keeper.sock",
                       serving->path);
    } else if (strncmp(args->store, "unix:", 5) == 0) {
        exit = make_absolute(path, args, args->store + 5, strlen(args->store + 5));
        (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "unix:%s", path);
    }
    if (exit == CLI_DONE && strlen(args->store) >= sizeof(serving->conf.store))
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--store is too long");
    return exit;
}

/* Whether the workers may use the socket of another process's keeper. Without this check at the
 * start every request would get a 503. */
static enum cli_exit check_foreign_socket(const struct serving *serving)
{
    const struct serve_conf *conf = &serving->conf;
    const struct group *group;
    struct stat st;

    if (!conf->group || strncmp(conf->store, "unix:", 5) != 0 || stat(conf->store + 5, &st) != 0)
        return CLI_DONE;
    group = getgrnam(conf->group);
    if (group && st.st_gid == group->gr_gid && (st.st_mode & 0060) == 0060)
        return CLI_DONE;
    return cli_fail(&serving->args->args, CLI_USAGE, HAPAX_ERR_REFUSED,
                    "cannot use \"%s\": the workers run as %s, whom its keeper turns away; start "
                    "it with --group %s",
                    conf->store, conf->user, conf->group);
}

static enum cli_exit hold_store(struct serving *serving)
{
    const struct cli_args *args = &serving->args->args;
    struct hapax__keeper_options how = {.group = serving->conf.group};
    char socket[FOLDER_MAX + 16];
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    enum cli_exit exit = cli_open(&serving->store, args, CLI_CREATE);

    if (exit != CLI_DONE)
        return exit;
    if (!serving->path[0] && strncmp(args->store, "memory:", 7) != 0) {
        hapax_store_close(serving->store);
        serving->store = NULL;
        return check_foreign_socket(serving);
    }
    (void)snprintf(socket, sizeof(socket), "%s/keeper.sock", serving->folder);
    how.path = socket;
    error = hapax__keeper_serve(&serving->keeper, serving->store, &how, text);
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, text);
    serving->store = NULL; /* the keeper's from here on */
    (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "unix:%s", socket);
    return CLI_DONE;
}

/* ---- running ------------------------------------------------------------------------------- */

static void say_ready(const struct serving *serving)
{
    const struct serve_args *args = serving->args;
    const char *scheme = args->tls_cert ? "https" : "http";
    char at[SERVE_NAME_MAX + 16];
    char local[SERVE_NAME_MAX + 32];
    const char *store = serving->path[0] ? serving->path : args->args.shown;
    struct json json;

    serve_address_text(at, &serving->conf.listen);
    if (strcmp(serving->conf.listen.host, "0.0.0.0") == 0)
        (void)snprintf(local, sizeof(local), "127.0.0.1:%s", serving->conf.listen.port);
    else
        (void)snprintf(local, sizeof(local), "%s", at);
    if (args->args.json) {
        char url[SERVE_NAME_MAX + 64];

        json_begin(&json);
        (void)snprintf(url, sizeof(url), "%s://%s", scheme, at);
        json_text(&json, "serving", url);
        json_text(&json, "upstream", args->upstream);
        (void)snprintf(url, sizeof(url), "%s://%s/hapax-status", scheme, local);
        json_text(&json, "status", url);
        json_text(&json, "store", args->args.shown);
        json_number(&json, "pid", getpid());
        json_end(&json);
    } else {
        printf("hapax serve: %s://%s stands before %s (pid %ld); status: %s://%s/hapax-status; "
               "operations: hapax list --store '%s%s'\n",
               scheme, at, args->upstream, (long)getpid(), scheme, local,
               serving->path[0] ? "rocksdb:" : "", store);
    }
    (void)fflush(stdout);
}

static enum cli_exit nginx_failed(const struct serving *serving, bool ready, int status)
{
    bool killed = WIFSIGNALED(status);

    return cli_fail(&serving->args->args, ready ? CLI_UNREACHED : CLI_USAGE, HAPAX_ERR_UNAVAILABLE,
                    killed ? "nginx was ended by signal %d" : "nginx ended with status %d",
                    killed ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* The signal that nginx is sent for one that this process got; 0: none. A first request to end lets
 * nginx finish its requests, a second one does not. */
static int forwarded(int signal, bool *ending)
{
    bool again = *ending;

    if (signal == SIGHUP)
        return SIGHUP;
    if (signal != SIGTERM && signal != SIGINT && signal != SIGQUIT)
        return 0;
    *ending = true;
    return again ? SIGTERM : SIGQUIT;
}

static enum cli_exit watch(struct serving *serving)
{
    int64_t deadline = hapax__monotonic_us() + READY_US;
    bool ready = false;
    bool ending = false;
    int status = 0;

    while (!serve_nginx_ended(&serving->nginx, &status)) {
        int signal = cli_signals_wait(serving->signals, ready ? -1 : PAUSE_MS);
        int number = forwarded(signal, &ending);

        if (number && (ready || ending)) /* until then it is no nginx that could reload */
            (void)kill(serving->nginx.master, number);
        if (ready || ending)
            continue;
        ready = serve_address_accepts(&serving->conf.listen);
        if (ready)
            say_ready(serving);
        else if (hapax__monotonic_us() > deadline)
            (void)kill(serving->nginx.master, SIGTERM);
    }
    return ending ? CLI_DONE : nginx_failed(serving, ready, status);
}

static enum cli_exit start(struct serving *serving)
{
    static const int watched[] = {SIGHUP, SIGQUIT, SIGCHLD};
    const struct serve_args *args = serving->args;
    enum cli_exit exit = serve_address_try(args, &serving->conf.listen);

    if (exit != CLI_DONE)
        return exit;
    serving->signals = cli_signals_begin_with(watched, sizeof(watched) / sizeof(watched[0]));
    if (serving->signals < 0)
        return cli_fail(&args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    exit = make_folder(serving);
    if (exit == CLI_DONE)
        exit = write_conf(serving);
    if (exit == CLI_DONE)
        exit = serve_nginx_try(&serving->nginx, args, serving->folder);
    if (exit == CLI_DONE)
        exit = hold_store(serving);
    if (exit == CLI_DONE)
        exit = write_conf(serving);
    if (exit == CLI_DONE)
        exit = serve_nginx_start(&serving->nginx, args, serving->folder);
    if (exit == CLI_DONE)
        exit = watch(serving);
    return exit;
}

static enum cli_exit print_conf(struct serving *serving)
{
    if (serve_nginx_find(&serving->nginx, serving->args) != CLI_DONE)
        return CLI_USAGE;
    serving->conf.module = serving->nginx.module;
    serving->conf.version = serving->nginx.version;
    if (serving->path[0])
        printf("# Keep the store open for it: hapax keep --store 'rocksdb:%s' --group www-data\n",
               serving->path);
    if (!serving->path[0] && strstr(serving->conf.store, "://")) {
        printf("# Passwords are left out. Name one by password_file=PATH, which the workers can "
               "read.\n");
        (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "%s",
                       serving->args->args.shown);
    }
    serve_conf_write(stdout, &serving->conf);
    return CLI_DONE;
}

static enum cli_exit run(struct cli_args *args)
{
    struct serving *serving = calloc(1, sizeof(*serving));
    enum cli_exit exit;

    if (!serving)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    serving->args = (const struct serve_args *)args;
    serving->signals = -1;
    exit = serve_conf_read(&serving->conf, serving->args);
    if (exit == CLI_DONE)
        exit = name_store(serving);
    if (exit == CLI_DONE)
        exit = cli_secret_read(&serving->secret, args);
    if (exit == CLI_DONE && serving->secret.len > 0)
        serving->conf.secret = realpath(serving->secret.file, serving->secret_file);
    if (exit == CLI_DONE && serving->args->config_only) {
        exit = print_conf(serving);
    } else if (exit == CLI_DONE) {
        exit = serve_nginx_find(&serving->nginx, serving->args);
        serving->conf.module = serving->nginx.module;
        serving->conf.version = serving->nginx.version;
        if (exit == CLI_DONE)
            exit = start(serving);
    }
    assert(serving->nginx.master == 0);
    hapax__keeper_stop(serving->keeper);
    hapax_store_close(serving->store);
    remove_folder(serving);
    if (serving->signals >= 0)
        close(serving->signals);
    explicit_bzero(&serving->secret, sizeof(serving->secret));
    free(serving);
    return exit;
}

const struct cli_command cli_serve = {
    .name = "serve",
    .summary = "stand before an HTTP API and let each request with a key run once",
    .synopsis = {"--upstream URL [--listen HOST:PORT] [--POLICY VALUE]...",
                 "--upstream URL [--location '/v1 wait=5s']... [--config-only]"},
    .prose = "Runs nginx with the module of Hapax in it, holds the embedded store for it or uses "
             "--store, and prints a line when it is ready. SIGTERM and Ctrl-C let requests in hand "
             "finish, a second one does not; SIGHUP loads the certificate anew. Requests without "
             "a key pass. docs/nginx.md tells more.",
    .options = serve_options,
    .option_count = sizeof(serve_options) / sizeof(serve_options[0]),
    .args_size = sizeof(struct serve_args),
    .defaults = defaults,
    .run = run,
};
