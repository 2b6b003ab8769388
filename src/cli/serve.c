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
#include "base/span.h"
#include "print.h"
#include "store/keeper/keeper.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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
    TEXT("upstream-ca", "FILE", upstream_ca,
         "Authorities to trust for https (default: the system's)"),
    TEXT("listen", "HOST:PORT", listen, "Address, or port alone (default 127.0.0.1:8080)"),
    TEXT("tls-cert", "FILE", tls_cert, "Serve https, with this certificate (PEM)"),
    TEXT("tls-key", "FILE", tls_key, "The key of --tls-cert (PEM)"),
    TEXT("client-ca", "FILE", client_ca, "Clients need a certificate of these authorities"),
    TEXT("auth-request", "URL", auth_request, "Asked before each request; 2xx lets it in"),
    {"cors", "ORIGIN", CLI_TEXTS, offsetof(struct serve_args, cors), 0, 0,
     "Whose pages may read answers, as https://shop.example"},
    TEXT("status", "HOST:PORT", status, "The status page there (default: beside the API)"),
    CLI_METRICS_OPTIONS(struct serve_args, metrics),
    TEXT("key-header", "NAME", key_header, "The key's header; off: none (default Idempotency-Key)"),
    TEXT("key-from", "POINTERS", key_from, "Where the key is in a JSON body, as \"/order/id\""),
    TEXT("methods", "METHODS", methods, "Methods that may have a key (default \"POST PATCH\")"),
    TEXT("scope", "VALUE", scope, "The keys' space, as $http_x_tenant (default \"default\")"),
    TEXT("owner", "VALUE", owner, "Whose: auth:NAME (of --auth-request) or $ssl_client_s_dn"),
    TEXT("caller", "VALUE", caller, "Who asks, as $cookie_session (default: all credentials)"),
    TEXT("fingerprint", "PARTS", fingerprint,
         "What repeats compare (default \"method host uri body\")"),
    TEXT("push", "BROKER", push, "A broker pushes the requests: dapr, knative or sns"),
    TEXT("mode", "MODE", mode, "on, shadow (only count) or off (default on)"),
    {"on-percent", "N", CLI_NUMBER, offsetof(struct serve_args, on_percent), 1, 99,
     "Of 100 keys so many are on, the others as --mode"},
    {"location", "RULE", CLI_TEXTS, offsetof(struct serve_args, locations), 0, 0,
     "\"/path POLICY=VALUE...\" or \"/path off\": differs there"},
    {"class", "RULE", CLI_TEXTS, offsetof(struct serve_args, classes), 0, 0,
     "What statuses mean, as \"409 425 not_run\""},
    TEXT("reconcile", "URL", reconcile, "Asked by --on-expired reconcile: has it happened?"),
    TEXT("problem-template", "F", problem_template,
         "Shape of problems: stripe, or a file (default rfc9457)"),
    TEXT("problem-base", "URI", problem_base,
         "Begins the types of problems (default /hapax-problems/)"),
    {"max-body", "SIZE", CLI_SIZE, offsetof(struct serve_args, max_body), 1, INT64_C(1) << 40,
     "A larger body is refused (default: largest max-request)"},
    TEXT("limit", "LIMITS", limit, "Of each owner, as \"keys=99/h\" (default: none)"),
    {"limit-requests", "N", CLI_NUMBER, offsetof(struct serve_args, limit_requests), 1, 1000000,
     "Requests per second and address (default: no limit)"},
    {"limit-connections", "N", CLI_NUMBER, offsetof(struct serve_args, limit_connections), 1, 65535,
     "Requests at a time, per address (default: no limit)"},
    {"workers", "N", CLI_NUMBER, offsetof(struct serve_args, workers), 1, 256,
     "Processes of nginx (default: one per processor)"},
    TEXT("user", "NAME", user, "As root: whom they run as (default www-data or nobody)"),
    {"drain", "TIME", CLI_DURATION, offsetof(struct serve_args, drain_ms), 0, 3600000,
     "At the end, how long requests may go on (default 30s)"},
    TEXT("access-log", "FORM", access_log, "Log each request on stderr, as text or json"),
    CLI_TELLING_OPTIONS(struct serve_args, telling),
    TEXT("nginx", "FILE", nginx, "The program (default: in PATH or /usr/sbin)"),
    TEXT("module", "FILE", module, "The module (default: beside hapax, or nginx's)"),
    {"config-only", NULL, CLI_FLAG, offsetof(struct serve_args, config_only), 0, 0,
     "Print a configuration for your own nginx"},
    CLI_POLICY_OPTIONS(struct serve_args, policies, "5m", "5s",
                       "A 5xx: retry, replay or hold (default: by --on-expired)",
                       "After so many the last failure stands (default 0: none)"),
    TEXT("key", "WHAT", policies[CLI_POLICIES], "required: 400 without one (default optional)"),
};
const size_t serve_option_count = sizeof(serve_options) / sizeof(serve_options[0]);

/* Two policies are set to what clients over HTTP need. A repeat that is answered at once, while the
 * first request runs, mostly uses up its client's retries. Nobody waits an hour for a response.
 * 5 s is more than most handlers take, and less than the shortest time-out that is common among
 * clients, 10 s: whoever waits still reads an answer. */
static void defaults(struct cli_args *args)
{
    struct serve_args *serve = (struct serve_args *)args;

    serve->listen = "127.0.0.1:8080";
    serve->mode = "on";
    serve->drain_ms = 30000;
    serve->max_body = -1;
    serve->policies[CLI_POLICY_WAIT] = "5s";
    serve->policies[CLI_POLICY_RUN_MAX] = "5m";
}

struct serving {
    const struct serve_args *args;
    struct serve_conf conf;
    struct serve_nginx nginx;
    struct cli_secrets secrets;
    struct cli_secret keys;
    char keys_file[PATH_MAX];
    char old_file[PATH_MAX];
    char secret_file[PATH_MAX]; /* absolute: nginx has another folder */
    char folder[FOLDER_MAX];
    char user[64];
    char group[64];
    char path[PATH_MAX]; /* of an embedded store, absolute; empty: another store */
    struct hapax_store *store; /* NULL: another process has it open */
    struct hapax__keeper_server *keeper; /* NULL: the same */
    struct serve_metrics *metrics; /* NULL without --metrics */
    struct serve_taken taken; /* until nginx listens */
    int signals;
};

/* ---- the folder ---------------------------------------------------------------------------
 *
 * While this process or its nginx lives, one of them has the folder's lock: nginx inherits it. A
 * folder whose lock is free was left behind by kill -9. Its nginx.conf has the store's password, so
 * the next hapax serve removes it. The lock gets its name after it is taken, so a folder that is
 * being made is never seen with a free lock. A folder without a lock after a minute was being made
 * when its process was killed. */

#define FOLDER_PREFIX "hapax-serve-"
#define MAKING_S      60

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)where;
    (void)(type == FTW_DP ? rmdir(path) : unlink(path));
    return 0;
}

static void remove_all(const char *folder)
{
    (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static void remove_folder(struct serving *serving)
{
    if (serving->folder[0])
        remove_all(serving->folder);
    serving->folder[0] = '\0';
}

/* False: errno says why. The descriptor stays open until this process and its nginx have ended. */
static bool lock_folder(const struct serving *serving)
{
    char made[PATH_MAX], named[PATH_MAX];
    int fd;

    (void)snprintf(made, sizeof(made), "%s/lock.new", serving->folder);
    (void)snprintf(named, sizeof(named), "%s/lock", serving->folder);
    /* Without O_CLOEXEC, for nginx. */
    fd = open(made, O_RDWR | O_CREAT | O_EXCL, 0600);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && rename(made, named) == 0;
}

static void remove_if_left(const char *base, const char *name)
{
    char folder[PATH_MAX], lock[PATH_MAX + sizeof("/lock")];
    struct stat st;
    int fd;

    (void)snprintf(folder, sizeof(folder), "%s/%s", base, name);
    (void)snprintf(lock, sizeof(lock), "%s/lock", folder);
    if (lstat(folder, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
        return;
    fd = open(lock, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 ? flock(fd, LOCK_EX | LOCK_NB) == 0
                : errno == ENOENT && hapax__wall_us() / 1000000 - st.st_mtime > MAKING_S)
        remove_all(folder);
    if (fd >= 0)
        close(fd);
}

static void remove_left(const char *base)
{
    DIR *dir = opendir(base);
    const struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        if (hapax__text_begins(entry->d_name, FOLDER_PREFIX))
            remove_if_left(base, entry->d_name);
    if (dir)
        closedir(dir);
}

/* Finds the user and the group of the workers that root starts. */
static enum cli_exit find_workers(struct serving *serving, gid_t *gid)
{
    static const char *const usual[] = {"www-data", "nobody"};
    const char *named = serving->args->user;
    const struct passwd *user = named ? getpwnam(named) : NULL;
    const struct group *group;

    for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]) && !named && !user; i++)
        user = getpwnam(usual[i]);
    group = user ? getgrgid(user->pw_gid) : NULL;
    if (named && user && user->pw_uid == 0)
        return cli_fail(&serving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--user \"%s\": the workers would have every right on the store", named);
    if (named && !group)
        return cli_fail(&serving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--user \"%.64s\": there is no such user, or its group has no name", named);
    if (!group)
        return cli_fail(&serving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "cannot serve as root: there is no user www-data or nobody for the "
                        "workers (--user names another)");
    (void)snprintf(serving->user, sizeof(serving->user), "%s", user->pw_name);
    (void)snprintf(serving->group, sizeof(serving->group), "%s", group->gr_name);
    serving->conf.user = serving->user;
    serving->conf.group = serving->group;
    *gid = group->gr_gid;
    return CLI_DONE;
}

/* The workers' group may pass through the folder, but not list it. */
static enum cli_exit open_to_workers(struct serving *serving)
{
    gid_t gid = 0;
    enum cli_exit exit = find_workers(serving, &gid);

    if (exit != CLI_DONE)
        return exit;
    if (chown(serving->folder, 0, gid) == 0 && chmod(serving->folder, 0710) == 0)
        return CLI_DONE;
    return cli_fail(&serving->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                    "cannot open \"%s\" to the workers: %s", serving->folder, strerror(errno));
}

static enum cli_exit make_folder(struct serving *serving)
{
    const char *base = geteuid() == 0 ? NULL : getenv("XDG_RUNTIME_DIR");
    static const char name[] = FOLDER_PREFIX "XXXXXX";

    if (serving->args->user && geteuid() != 0)
        return cli_fail(&serving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--user \"%.64s\": only root can start workers as another user",
                        serving->args->user);
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
    if (!lock_folder(serving))
        return cli_fail(&serving->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                        "cannot lock \"%s\": %s", serving->folder, strerror(errno));
    remove_left(base);
    return geteuid() == 0 ? open_to_workers(serving) : CLI_DONE;
}

/* on_trial: for nginx -t alone, which opens what it is to listen at and closes it again. A client
 * must not meet the port before the gate stands behind it. */
static enum cli_exit write_conf(struct serving *serving, bool on_trial)
{
    char path[PATH_MAX];
    FILE *out;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/nginx.conf", serving->folder);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    out = fd < 0 ? NULL : fdopen(fd, "w");
    if (out) {
        bool good;

        serving->conf.on_trial = on_trial;
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

/* Whether the workers open the store by themselves, from a URI that they can be given. */
static bool is_remote(const struct serving *serving)
{
    const char *uri = serving->args->args.store;

    return !serving->path[0] && !hapax__text_begins(uri, "memory:") &&
           !hapax__text_begins(uri, "unix:");
}

/* What is wrong with the URI is said here, in the words of every command. No server is asked. */
static enum cli_exit check_remote(const struct cli_args *args)
{
    struct hapax_store *store;
    enum cli_exit exit = cli_open(&store, args, CLI_CREATE);

    hapax_store_close(store);
    return exit;
}

/* The name that nginx is given for a file that was read. */
static enum cli_exit name_file(const char **out, char path[PATH_MAX],
                               const struct cli_secret *secret, const struct cli_args *args)
{
    *out = secret->len > 0 && serve_file_name(path, secret->file) ? path : NULL;
    if (secret->len == 0 || *out)
        return CLI_DONE;
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                    "cannot use %s \"%s\": nginx must find the file again: %s", secret->variable,
                    secret->file, strerror(errno));
}

/* How nginx reaches a store that this process does not serve. */
static enum cli_exit name_store(struct serving *serving)
{
    const struct cli_args *args = &serving->args->args;
    char given[PATH_MAX];
    char path[PATH_MAX] = "";
    bool named = true;
    enum cli_exit exit = CLI_DONE;

    (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "%.*s",
                   (int)sizeof(serving->conf.store) - 1, args->store);
    if (cli_embedded_path(given, args->store)) {
        named = serve_absolute(serving->path, given);
        (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "unix:%s/keeper.sock",
                       serving->path);
    } else if (strncmp(args->store, "unix:", 5) == 0) {
        named = serve_absolute(path, args->store + 5);
        (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "unix:%s", path);
    }
    if (!named)
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--store \"%.200s\" has no usable path",
                        args->store);
    else if (strlen(args->store) >= sizeof(serving->conf.store))
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--store is too long");
    return exit == CLI_DONE && is_remote(serving) ? check_remote(args) : exit;
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
    enum cli_exit exit;

    if (is_remote(serving))
        return CLI_DONE;
    exit = cli_open(&serving->store, args, CLI_CREATE);
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
    char local[SERVE_NAME_MAX + 16];
    bool memory = hapax__text_begins(args->args.store, "memory:");
    const char *store = serving->path[0] ? serving->path
                        : memory         ? serving->conf.store
                                         : args->args.shown;
    char promise[CLI_PROMISE_MAX];
    struct cli_door door;
    const struct serve_address *status =
        args->status ? &serving->conf.status : &serving->conf.listen;
    const char *status_scheme = args->status ? "http" : scheme;
    struct json json;

    serve_door(&door, &serving->conf);
    (void)cli_promise(promise, &door);
    serve_address_text(at, &serving->conf.listen);
    if (strcmp(status->host, "0.0.0.0") == 0)
        (void)snprintf(local, sizeof(local), "127.0.0.1:%s", status->port);
    else
        serve_address_text(local, status);
    if (args->args.json) {
        char url[SERVE_NAME_MAX + 64];

        json_begin(&json);
        (void)snprintf(url, sizeof(url), "%s://%s", scheme, at);
        json_text(&json, "serving", url);
        json_text(&json, "upstream", args->upstream);
        (void)snprintf(url, sizeof(url), "%s://%s/hapax-status", status_scheme, local);
        json_text(&json, "status", url);
        if (serving->metrics)
            json_number(&json, "metrics_port", serve_metrics_port(serving->metrics));
        json_text(&json, "store", args->args.shown);
        json_number(&json, "pid", getpid());
        json_text(&json, "promise", promise);
        json_end(&json);
    } else {
        char metrics[32] = "";

        if (serving->metrics)
            (void)snprintf(metrics, sizeof(metrics), "; metrics at port %u",
                           serve_metrics_port(serving->metrics));
        printf("hapax serve: %s://%s stands before %s (pid %ld); status: %s://%s/hapax-status%s; "
               "operations: hapax list --store '%s%s'%s\n",
               scheme, at, args->upstream, (long)getpid(), status_scheme, local, metrics,
               serving->path[0] ? "rocksdb:" : "", store,
               memory ? " (while this process runs)" : "");
        printf("hapax serve: %s\n", promise);
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

/* Until when nginx may finish its requests. nginx's own limit holds for reloads, too, where the old
 * workers must have as long as their handlers may take. */
struct ending {
    bool begun;
    int64_t deadline_us; /* INT64_MAX: nginx was told to end at once */
};

/* The signal that nginx is sent for one that this process got (0: none, or time is over); 0: none.
 * A first request to end lets nginx finish its requests, a second one does not. */
static int forwarded(int signal, struct ending *ending, int64_t drain_ms)
{
    bool asked = signal == SIGTERM || signal == SIGINT || signal == SIGQUIT;
    int64_t now_us = hapax__monotonic_us();

    if (asked && !ending->begun) {
        *ending = (struct ending){.begun = true, .deadline_us = now_us + drain_ms * 1000};
        return SIGQUIT;
    }
    if (ending->begun && (asked || now_us >= ending->deadline_us)) {
        ending->deadline_us = INT64_MAX;
        return SIGTERM;
    }
    return signal == SIGHUP ? SIGHUP : 0;
}

/* How long to wait for a signal; -1: for ever. */
static int64_t pause_ms(bool ready, const struct ending *ending)
{
    int64_t left_us;

    if (!ending->begun)
        return ready ? -1 : PAUSE_MS;
    if (ending->deadline_us == INT64_MAX)
        return -1;
    left_us = ending->deadline_us - hapax__monotonic_us();
    return left_us > 0 ? (left_us + 999) / 1000 : 0;
}

static enum cli_exit watch(struct serving *serving)
{
    int64_t deadline = hapax__monotonic_us() + READY_US;
    struct ending ending = {.begun = false};
    bool ready = false;
    int status = 0;

    while (!serve_nginx_ended(&serving->nginx, &status)) {
        int signal = cli_signals_wait(serving->signals, pause_ms(ready, &ending));
        int number = forwarded(signal, &ending, serving->args->drain_ms);

        if (number && (ready || ending.begun)) /* until then it is no nginx that could reload */
            (void)kill(serving->nginx.master, number);
        if (ready || ending.begun)
            continue;
        ready = serve_address_accepts(&serving->conf.listen);
        if (ready) {
            serve_address_release(&serving->taken);
            say_ready(serving);
            cli_notify("READY=1");
            serve_advise(&(struct cli_advice){cli_log_danger, (void *)&serving->args->args},
                         &serving->conf);
        } else if (hapax__monotonic_us() > deadline) {
            (void)kill(serving->nginx.master, SIGTERM);
        }
    }
    return ending.begun ? CLI_DONE : nginx_failed(serving, ready, status);
}

static enum cli_exit start(struct serving *serving)
{
    static const int watched[] = {SIGHUP, SIGQUIT, SIGCHLD};
    const struct serve_args *args = serving->args;
    enum cli_exit exit = serve_address_take(&serving->taken, args, &serving->conf.listen);

    if (exit == CLI_DONE && args->status)
        exit = serve_address_take(&serving->taken, args, &serving->conf.status);
    if (exit != CLI_DONE)
        return exit;
    serving->signals = cli_signals_begin_with(watched, sizeof(watched) / sizeof(watched[0]));
    if (serving->signals < 0)
        return cli_fail(&args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    exit = make_folder(serving);
    if (exit == CLI_DONE)
        exit = write_conf(serving, true);
    if (exit == CLI_DONE)
        exit = serve_nginx_try(&serving->nginx, args, serving->folder);
    if (exit == CLI_DONE)
        exit = hold_store(serving);
    if (exit == CLI_DONE)
        exit = serve_metrics_open(&serving->metrics, &serving->conf, serving->keeper != NULL);
    if (exit == CLI_DONE)
        exit = write_conf(serving, false);
    if (exit == CLI_DONE)
        exit = serve_nginx_start(&serving->nginx, args, serving->folder);
    if (exit == CLI_DONE)
        exit = watch(serving);
    return exit;
}

static enum cli_exit print_conf(struct serving *serving)
{
    gid_t gid;

    if (serve_nginx_find(&serving->nginx, serving->args) != CLI_DONE)
        return CLI_USAGE;
    serving->conf.module = serving->nginx.module;
    serving->conf.version = serving->nginx.version;
    if (serving->args->user && find_workers(serving, &gid) != CLI_DONE)
        return CLI_USAGE;
    if (serving->path[0] && !serving->conf.user)
        serving->conf.user = serving->conf.group = "www-data";
    if (serving->path[0])
        printf("# Keep the store open for it: hapax keep --store 'rocksdb:%s' --group %s\n",
               serving->path, serving->conf.group);
    if (!serving->path[0] && strstr(serving->conf.store, "://")) {
        printf("# Passwords are left out. Name one by password_file=PATH, which the workers can "
               "read.\n");
        (void)snprintf(serving->conf.store, sizeof(serving->conf.store), "%s",
                       serving->args->args.shown);
    }
    serve_conf_write(stdout, &serving->conf);
    return CLI_DONE;
}

static enum cli_exit advise(struct cli_args *args, const struct cli_advice *to)
{
    struct serve_conf *conf = calloc(1, sizeof(*conf));
    enum cli_exit exit;

    if (!conf)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    exit = serve_conf_read(conf, (const struct serve_args *)args);
    if (exit == CLI_DONE)
        serve_advise(to, conf);
    free(conf);
    return exit;
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
        exit = cli_secrets_read(&serving->secrets, args);
    if (exit == CLI_DONE)
        exit = cli_keys_read(&serving->keys, args);
    if (exit == CLI_DONE)
        exit = name_file(&serving->conf.secret, serving->secret_file, &serving->secrets.now, args);
    if (exit == CLI_DONE)
        exit = name_file(&serving->conf.secret_old, serving->old_file, &serving->secrets.old, args);
    if (exit == CLI_DONE && serving->secrets.rotates && !serving->conf.secret_old)
        serving->conf.secret_old = "none";
    if (exit == CLI_DONE)
        exit = name_file(&serving->conf.keys, serving->keys_file, &serving->keys, args);
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
    serve_metrics_close(serving->metrics);
    hapax__keeper_stop(serving->keeper);
    hapax_store_close(serving->store);
    serve_address_release(&serving->taken);
    remove_folder(serving);
    if (serving->signals >= 0)
        close(serving->signals);
    explicit_bzero(&serving->secrets, sizeof(serving->secrets));
    explicit_bzero(&serving->keys, sizeof(serving->keys));
    free(serving);
    return exit;
}

const struct cli_command cli_serve = {
    .name = "serve",
    .summary = "stand before an HTTP API and let each request with a key run once",
    .synopsis = {"--upstream URL [--listen HOST:PORT] [--POLICY VALUE]..."},
    .prose = "Runs nginx. SIGTERM lets requests finish, SIGHUP loads certificates anew.",
    .options = serve_options,
    .option_count = sizeof(serve_options) / sizeof(serve_options[0]),
    .groups = {{"Connections", "upstream"},
               {"Requests and answers", "key-header"},
               {"Limits, and the process", "max-body"},
               {"Policies", "profile"}},
    .settings = true,
    .args_size = sizeof(struct serve_args),
    .defaults = defaults,
    .run = run,
    .advise = advise,
};
