/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax web: a page for operators, over the JSON that the commands print. The site's threads answer
 * (web_api.c) whom the guard admits (web_guard.c); one thread more reads the doors' metrics.
 *
 * The page reads on loopback without a login, like the commands of whoever may open the store. For
 * more, to resolve or to be reached from elsewhere, everybody has a name.
 */
#include "web.h"

#include "audit.h"

#include "base/time.h"
#include "base/uri.h"
#include "broker/sink.h"
#include "broker/source.h"
#include "http/listen.h"
#include "print.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define READ_MS 5000 /* between two readings of the doors */

struct web_args {
    struct cli_args args;
    const char *listen;
    struct cli_texts watch;
    struct cli_texts names;
    struct cli_texts dead;
    const char *allow;
    const char *password_file;
    const char *user_header;
};

static const struct cli_option options[] = {
    CLI_TEXT_OPTION(struct web_args, listen, "listen", "HOST:PORT",
                    "Where the page is (default 127.0.0.1:7500); port 0 takes any"),
    {"watch", "URL", CLI_TEXTS, offsetof(struct web_args, watch), 0, 0,
     "A door's page of metrics, as http://127.0.0.1:9464/metrics. May be given several times"},
    {"dead", "'URI URI'", CLI_TEXTS, offsetof(struct web_args, dead), 0, 0,
     "Dead letters, and where they are put back, as --from and --to of \"hapax redrive\". May be "
     "given several times"},
    CLI_TEXT_OPTION(struct web_args, allow, "allow", "resolve",
                    "Not only read: resolve operations, look at dead letters and put them back, "
                    "and messages of the outbox"),
    CLI_TEXT_OPTION(struct web_args, password_file, "password-file", "FILE",
                    "Who may log in, as htpasswd -B makes it: a line NAME:HASH for each"),
    CLI_TEXT_OPTION(struct web_args, user_header, "user-header", "NAME",
                    "The header in which a proxy says who it is, and which it removes from others' "
                    "requests. With --password-file the password is the proxy's"),
    {"name", "HOST", CLI_TEXTS, offsetof(struct web_args, names), 0, 0,
     "Answer to this Host too, besides localhost. May be given several times"},
};

static void defaults(struct cli_args *args)
{
    ((struct web_args *)args)->listen = "127.0.0.1:7500";
}

/* No script but our own runs, whatever a store holds, and no other site's page has ours within. */
static const char *const headers[][2] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
     "require-trusted-types-for 'script'; trusted-types 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-store"},
    {NULL, NULL},
};

/* ---- what is asked for -------------------------------------------------------------------- */

/* Acts without a trail are refused here, not found out later. */
static enum cli_exit check_trail(const struct cli_args *args)
{
    struct audit audit;
    enum cli_exit exit = audit_begin(&audit, args, NULL);
    bool kept = exit == CLI_DONE && audit_is_kept(&audit);

    if (exit != CLI_DONE)
        return exit;
    audit_end(&audit, exit);
    return kept ? CLI_DONE
                : cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                           "--allow needs a trail: name a file in HAPAX_AUDIT_FILE, since the "
                           "system has no log");
}

static enum cli_exit check(const struct web_args *asked)
{
    const struct cli_args *args = &asked->args;

    if (asked->allow && strcmp(asked->allow, "resolve") != 0)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--allow \"%s\" is not resolve",
                        asked->allow);
    if (asked->allow && !asked->password_file && !asked->user_header)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--allow needs to know who resolves: give --password-file or "
                        "--user-header");
    return asked->allow ? check_trail(args) : CLI_DONE;
}

/* Sets one pair of --dead. */
static enum cli_exit read_dead(struct web_letters *letters, const struct cli_args *args,
                               const char *words)
{
    char *space;

    if (snprintf(letters->uris, sizeof(letters->uris), "%s", words) >= (int)sizeof(letters->uris))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--dead is too long");
    space = strchr(letters->uris, ' ');
    if (!space || strchr(space + 1, ' '))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--dead is not two URIs with a space between");
    *space = '\0';
    letters->from = letters->uris;
    letters->to = space + 1;
    if (!hapax__source_type_of(letters->from) || !hapax__sink_type_of(letters->to))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_UNSUPPORTED,
                        "--dead has a URI of no scheme known here: amqp://, amqps://, kafka:// or "
                        "sqs://");
    hapax__uri_shown(letters->from_shown, letters->from);
    hapax__uri_shown(letters->to_shown, letters->to);
    return CLI_DONE;
}

/* On failure nothing has to be freed. */
static enum cli_exit read_letters(struct web *web, const struct cli_texts *dead)
{
    struct web_letters *letters;
    enum cli_exit exit = CLI_DONE;

    if (dead->n > WEB_LETTERS_MAX)
        return cli_fail(web->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--dead is given more than %u times", WEB_LETTERS_MAX);
    letters = calloc(dead->n + 1, sizeof(*letters));
    if (!letters)
        return cli_fail(web->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < dead->n && exit == CLI_DONE; i++)
        exit = read_dead(&letters[i], web->args, dead->items[i]);
    if (exit != CLI_DONE) {
        free(letters);
        return exit;
    }
    web->letters = letters;
    web->letters_n = dead->n;
    return CLI_DONE;
}

/* ---- running ------------------------------------------------------------------------------ */

/* Reads the doors until a signal. */
static void read_doors(struct web *web, int signals)
{
    do
        for (size_t i = 0; i < web->board->n; i++) {
            struct watch_page *page = watch_fetch(&web->board->watches[i]);

            pthread_mutex_lock(&web->doors);
            watch_take(&web->board->watches[i], page);
            pthread_mutex_unlock(&web->doors);
        }
    while (cli_signals_wait(signals, web->board->n > 0 ? READ_MS : -1) == 0);
}

static void say_ready(const struct web_args *asked, uint16_t port)
{
    const char *colon = strrchr(asked->listen, ':');
    struct json json;

    if (asked->args.json) {
        json_begin(&json);
        json_text(&json, "listen", asked->listen);
        json_number(&json, "port", port);
        json_text(&json, "store", asked->args.shown);
        json_bool(&json, "may_resolve", asked->allow != NULL);
        json_end(&json);
    } else {
        printf("hapax web: http://%.*s:%u/ %s %s\n", (int)(colon - asked->listen), asked->listen,
               port, asked->allow ? "reads and resolves" : "reads", asked->args.shown);
    }
    (void)fflush(stdout);
    cli_notify("READY=1");
}

static enum cli_exit serve(const struct web_args *asked, struct web *web, int signals)
{
    const struct hapax__site_pages pages = {web_answer, web, headers};
    const struct hapax__http_place place = {asked->listen, "--listen",
                                            asked->password_file || asked->user_header,
                                            "give --password-file or --user-header"};
    const struct cli_args *args = &asked->args;
    struct hapax__site *site;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    uint16_t port;
    int fd;

    error = hapax__http_listen(&fd, &port, &place, text);
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, text);
    error = hapax__site_open(&site, fd, &pages, text);
    if (error != HAPAX_ERR_NONE) {
        close(fd);
        return cli_store_failed(args, error, text);
    }
    say_ready(asked, port);
    read_doors(web, signals);
    (void)eventfd_write(web->ending, 1);
    hapax__site_close(site);
    return CLI_DONE;
}

/* A store that cannot be reached now may be later; what cannot be right is said at once. */
static enum cli_exit open_store(struct web *web)
{
    enum cli_exit exit = cli_open(&web->store, web->args, CLI_EXISTING);

    if (exit == CLI_UNREACHED) {
        web->board->error = HAPAX_ERR_UNAVAILABLE;
        (void)snprintf(web->board->text, sizeof(web->board->text), "it cannot be opened");
        return CLI_DONE;
    }
    return exit;
}

static enum cli_exit run(struct cli_args *args)
{
    const struct web_args *asked = (const struct web_args *)args;
    const struct web_rules rules = {asked->password_file, asked->user_header, &asked->names};
    struct board *board = calloc(1, sizeof(*board));
    struct web web = {.args = args,
                      .may_resolve = asked->allow != NULL,
                      .ending = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                      .board = board};
    enum cli_exit exit = check(asked);
    int signals = exit == CLI_DONE ? cli_signals_begin() : -1;

    (void)pthread_mutex_init(&web.one, NULL);
    (void)pthread_mutex_init(&web.doors, NULL);
    (void)pthread_mutex_init(&web.redriving, NULL);
    if (exit == CLI_DONE && (signals < 0 || web.ending < 0 || !board))
        exit = cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no memory or descriptor is left");
    if (exit == CLI_DONE)
        exit = read_letters(&web, &asked->dead);
    if (exit == CLI_DONE)
        exit = board_open(board, args, &asked->watch, true);
    if (exit == CLI_DONE)
        exit = web_guard_open(&web.guard, args, &rules);
    if (exit == CLI_DONE)
        exit = open_store(&web);
    if (exit == CLI_DONE)
        exit = serve(asked, &web, signals);
    web_guard_close(web.guard);
    hapax_store_close(web.store);
    if (board)
        board_close(board);
    free(board);
    free((void *)(uintptr_t)web.letters);
    if (web.ending >= 0)
        close(web.ending);
    (void)pthread_mutex_destroy(&web.redriving);
    (void)pthread_mutex_destroy(&web.doors);
    (void)pthread_mutex_destroy(&web.one);
    if (signals >= 0)
        close(signals);
    return exit;
}

const struct cli_command cli_web = {
    .name = "web",
    .summary = "a page for operators: what is stuck, why, and resolve it",
    .synopsis = {"[--watch URL]... [--listen HOST:PORT]",
                 "--allow resolve --password-file FILE | --user-header NAME ..."},
    .prose =
        "Serves a page over the store: what is stuck and how old it is, the operations, one "
        "operation with its times and what a repeat gets, the messages that a relay put aside, the "
        "dead letters of --dead, and what the doors of --watch do. It shows what the commands "
        "print with --json, never a body unasked.\n\n"
        "Without --allow it changes nothing. Without a login it listens on loopback only; reach it "
        "by ssh -L 7500:127.0.0.1:7500. Each act leaves the lines of \"hapax resolve\", with the "
        "name of the login, and needs HAPAX_AUDIT_FILE where the system has no log. "
        "Passwords need TLS: put a proxy in front. An embedded store is best "
        "held by a door or by \"hapax keep\" before the page is started: otherwise the page holds "
        "it. See docs/web.md.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax web --watch http://127.0.0.1:8080/hapax-status",
                  "Look, and change nothing."},
                 {"hapax web --allow resolve --password-file /etc/hapax/web.passwd",
                  "Resolve, too."}},
    .settings = true,
    .args_size = sizeof(struct web_args),
    .defaults = defaults,
    .run = run,
};
