/* SPDX-License-Identifier: Apache-2.0
 *
 * The API of hapax web is the command line's --json. A request is an object whose members are
 * options of a command; the command runs in this process, and prints its lines into the reply. So
 * the page can do nothing that a command cannot, and what a command refuses the page refuses in the
 * same words. Each route names the options that it takes: none that names a file, and no --force.
 *
 * Rejected: a process for each request. Its command line would show keys to other users.
 */
#include "web.h"

#include "audit.h"
#include "base/clock.h"
#include "base/span.h"
#include "base/time.h"
#include "print.h"
#include "json/raw.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_US     (5 * US_PER_S) /* totals are no older */
#define LIST_MAX    500
#define RESOLVE_MAX 1000
#define REDRIVE_MAX 1000
#define NAMES_MAX   14u

extern const char hapax__web_html[], hapax__web_css[], hapax__web_js[];

struct request {
    const struct web *web;
    struct hapax_span value; /* the object */
    char who[HAPAX_BY_MAX + 1];
    char *texts; /* what options point to, ended by NULs */
    size_t texts_len;
    char *reply;
    size_t reply_len;
    FILE *out;
};

struct route {
    const char *path;
    const struct cli_command *command; /* NULL: `answer` */
    enum cli_exit (*answer)(struct request *request);
    /* Sets what the request may not choose; its own options are set before. */
    enum cli_exit (*complete)(struct cli_args *args, const struct request *request);
    bool changes; /* needs --allow resolve */
    bool letters; /* asks a broker, and no store */
    unsigned no; /* the status for CLI_NO */
    const char *preset[3][2];
    const char *names[NAMES_MAX];
};

static enum cli_exit wrong(const struct request *request, const char *text)
{
    struct cli_args args = *request->web->args;

    args.out = request->out;
    args.json = true;
    return cli_fail(&args, CLI_USAGE, HAPAX_ERR_INVALID, "%s", text);
}

/* ---- now ---------------------------------------------------------------------------------- */

static enum cli_exit answer_now(struct request *request)
{
    struct web *web = (struct web *)(uintptr_t)request->web;
    struct hapax_span since;
    int64_t since_us = 0;

    if (hapax__raw_member(&since, request->value, "since_us"))
        (void)hapax__raw_number(&since_us, since);
    if (web->board->error != HAPAX_ERR_NONE || hapax__monotonic_us() - web->looked_us > LOOK_US ||
        web->looked_us == 0) {
        board_look(web->board, web->store);
        web->looked_us = hapax__monotonic_us();
    }
    pthread_mutex_lock(&web->doors);
    board_json(web->board, request->out, true, since_us);
    pthread_mutex_unlock(&web->doors);
    return CLI_DONE;
}

/* ---- commands ----------------------------------------------------------------------------- */

static bool has(const struct request *request, const char *name)
{
    struct hapax_span value;

    return hapax__raw_member(&value, request->value, name);
}

static bool is_within(const struct request *request, const char *name, int64_t max)
{
    struct hapax_span value;
    int64_t number;

    return !hapax__raw_member(&value, request->value, name) ||
           (hapax__raw_number(&number, value) && number >= 1 && number <= max);
}

static enum cli_exit complete_list(struct cli_args *args, const struct request *request)
{
    (void)args;
    return is_within(request, "limit", LIST_MAX) ? CLI_DONE
                                                 : wrong(request, "limit is not within 1 to 500");
}

static enum cli_exit complete_show(struct cli_args *args, const struct request *request)
{
    return has(request, "body") ? cli_give(args, "body-max", "64k") : CLI_DONE;
}

static enum cli_exit complete_resolve(struct cli_args *args, const struct request *request)
{
    if (!has(request, "state") && !(has(request, "if-attempt") && has(request, "if-updated")))
        return wrong(request, "if-attempt and if-updated are missing");
    if (has(request, "state") && !has(request, "dry-run"))
        return wrong(request, "dry-run is missing: resolve each that it lists");
    if (has(request, "state") && !has(request, "limit"))
        return wrong(request, "limit is missing");
    if (!is_within(request, "limit", RESOLVE_MAX))
        return wrong(request, "limit is not within 1 to 1000");
    return cli_give(args, "by", request->who);
}

static enum cli_exit complete_outbox(struct cli_args *args, const struct request *request)
{
    return cli_give(args, "from", request->web->args->store);
}

/* The pair of --dead that a request names by its place. NULL: it names none. */
static const struct web_letters *letters_of(const struct request *request)
{
    struct hapax_span value;
    int64_t place;

    if (!hapax__raw_member(&value, request->value, "queue") || !hapax__raw_number(&place, value) ||
        place < 0 || (uint64_t)place >= request->web->letters_n)
        return NULL;
    return &request->web->letters[place];
}

/* The URIs are the process's own, and not the request's. */
static enum cli_exit complete_letters(struct cli_args *args, const struct request *request)
{
    const struct web_letters *letters = letters_of(request);
    enum cli_exit exit;

    if (!letters)
        return wrong(request, "queue is none of --dead");
    if (!is_within(request, "limit", REDRIVE_MAX))
        return wrong(request, "limit is not within 1 to 1000");
    exit = cli_give(args, "from", letters->from);
    return exit == CLI_DONE ? cli_give(args, "to", letters->to) : exit;
}

static enum cli_exit complete_put_back(struct cli_args *args, const struct request *request)
{
    return has(request, "limit") ? complete_letters(args, request)
                                 : wrong(request, "limit is missing");
}

static const struct route routes[] = {
    {.path = "/api/now", .answer = answer_now, .names = {"since_us"}},
    {.path = "/api/list",
     .command = &cli_list,
     .complete = complete_list,
     .preset = {{"limit", "100"}, {"after", "start"}},
     .names = {"state", "owner", "scope", "older", "limit", "after"}},
    {.path = "/api/show",
     .command = &cli_show,
     .complete = complete_show,
     .no = 404,
     .preset = {{"body-max", "0"}},
     .names = {"key", "owner", "scope", "step", "id", "body"}},
    {.path = "/api/resolve",
     .command = &cli_resolve,
     .complete = complete_resolve,
     .changes = true,
     .no = 409,
     .names = {"key", "owner", "scope", "step", "id", "if-attempt", "if-updated", "complete",
               "header", "text", "fail", "forget", "state", "older"}},
    {.path = "/api/outbox", .command = &cli_list, .preset = {{"outbox", NULL}, {"limit", "200"}}},
    {.path = "/api/redrive",
     .command = &cli_redrive,
     .complete = complete_outbox,
     .changes = true,
     .no = 404},
    {.path = "/api/letters",
     .command = &cli_redrive,
     .complete = complete_letters,
     .changes = true,
     .letters = true,
     .no = 409,
     .preset = {{"dry-run", NULL}, {"in-hand-max", "50"}},
     .names = {"queue", "scope", "key", "key-from", "all"}},
    {.path = "/api/put-back",
     .command = &cli_redrive,
     .complete = complete_put_back,
     .changes = true,
     .letters = true,
     .no = 409,
     .preset = {{"in-hand-max", "1000"}},
     .names = {"queue", "scope", "key", "key-from", "all", "limit"}},
};

/* Options that list what would be resolved, besides those of the table. */
static bool is_bulk(const char *name)
{
    return strcmp(name, "limit") == 0 || strcmp(name, "dry-run") == 0;
}

static bool takes(const struct route *route, const char *name)
{
    for (size_t i = 0; i < NAMES_MAX && route->names[i]; i++)
        if (strcmp(route->names[i], name) == 0)
            return true;
    return route->command == &cli_resolve && is_bulk(name);
}

/* A value as a word of the command line. NULL: it is none. */
static const char *take_word(struct request *request, struct hapax_span value)
{
    char *word = request->texts + request->texts_len;

    if (value.len > 0 && value.ptr[0] >= '0' && value.ptr[0] <= '9') {
        memcpy(word, value.ptr, value.len);
        word[value.len] = '\0';
    } else if (!hapax__raw_copy(word, value.len, value)) {
        return NULL;
    }
    request->texts_len += strlen(word) + 1;
    return word;
}

static enum cli_exit give(struct cli_args *args, struct request *request, const char *name,
                          struct hapax_span value)
{
    const char *word;

    if (strcmp(name, "queue") == 0)
        return CLI_DONE;
    if (hapax__is(value, "true"))
        return strcmp(name, "body") == 0 ? CLI_DONE : cli_give(args, name, NULL);
    word = take_word(request, value);
    if (!word)
        return wrong(request, "a member is neither text nor a number nor true");
    if (strcmp(name, "key") != 0 || !args->command->operand)
        return cli_give(args, name, word);
    args->operand = word;
    return CLI_DONE;
}

static bool is_flag(const struct cli_command *command, const char *name)
{
    for (size_t i = 0; i < command->option_count; i++)
        if (strcmp(command->options[i].name, name) == 0)
            return command->options[i].kind == CLI_FLAG;
    return strcmp(name, "body") == 0;
}

/* Sets the options that the members of the request name. */
static enum cli_exit give_all(struct cli_args *args, struct request *request,
                              const struct route *route)
{
    enum cli_exit exit = CLI_DONE;
    struct hapax__raw_walk walk, items;
    struct hapax_span name, value, item, no_name;
    char option[32];

    hapax__raw_begin(&walk, request->value);
    while (exit == CLI_DONE && hapax__raw_next(&walk, &name, &value)) {
        if (!hapax__raw_copy(option, sizeof(option), name) || !takes(route, option))
            return wrong(request, "a member is not known here");
        if (is_flag(route->command, option) != hapax__is(value, "true"))
            return wrong(request, "a member has a value of another kind");
        if (!hapax__raw_is_array(value)) {
            exit = give(args, request, option, value);
            continue;
        }
        if (strcmp(option, "state") != 0 && strcmp(option, "header") != 0)
            return wrong(request, "a member is given more than once");
        hapax__raw_begin(&items, value);
        while (exit == CLI_DONE && hapax__raw_next(&items, &no_name, &item))
            exit = hapax__is(item, "true") ? wrong(request, "a member has a value of another kind")
                                           : give(args, request, option, item);
    }
    return exit;
}

/* Options of the route's command as the request gives them, for free(). */
static enum cli_exit prepare(struct cli_args **out, struct request *request,
                             const struct route *route)
{
    const struct web *web = request->web;
    struct cli_args *args = calloc(1, route->command->args_size);
    enum cli_exit exit = CLI_DONE;

    *out = args;
    if (!args)
        return CLI_UNREACHED;
    args->command = route->command;
    if (route->command->defaults)
        route->command->defaults(args);
    args->json = true;
    args->out = request->out;
    args->lent = route->letters ? NULL : web->store;
    args->ending = web->ending;
    args->store = web->args->store;
    args->shown = web->args->shown;
    args->by_default = web->args->by_default;
    for (size_t i = 0; i < 3 && route->preset[i][0] && exit == CLI_DONE; i++)
        exit = cli_give(args, route->preset[i][0], route->preset[i][1]);
    if (exit == CLI_DONE)
        exit = give_all(args, request, route);
    if (exit == CLI_DONE && route->complete)
        exit = route->complete(args, request);
    return exit;
}

static enum cli_exit run_command(struct request *request, const struct route *route)
{
    struct cli_args *args;
    enum cli_exit exit = prepare(&args, request, route);

    if (exit == CLI_DONE)
        exit = route->command->run(args);
    free(args);
    return exit;
}

/* Puts an outbox or letters back, with a line of the trail before and after. */
static enum cli_exit put_back(struct request *request, const struct route *route)
{
    const struct web_letters *letters = letters_of(request);
    const char *from = route->letters && letters ? letters->from_shown : NULL;
    struct cli_args args = *request->web->args, *act;
    enum cli_exit exit = prepare(&act, request, route);
    struct audit audit;

    args.out = request->out;
    args.json = true;
    if (exit == CLI_DONE)
        exit = audit_begin(&audit, &args, NULL);
    if (exit != CLI_DONE) {
        free(act);
        return exit;
    }
    exit = audit_put_back(&audit, request->who, from, NULL);
    if (exit == CLI_DONE) {
        exit = act->command->run(act);
        (void)audit_put_back(&audit, request->who, from, exit == CLI_DONE ? "ok" : "not all");
    }
    audit_end(&audit, exit);
    free(act);
    return exit;
}

/* ---- a request ---------------------------------------------------------------------------- */

/* Opens the store where that has not worked yet. What failed stands in the board. */
static void open_store(struct web *web, FILE *out)
{
    struct cli_args args = *web->args;

    if (web->store)
        return;
    args.out = out;
    args.json = true;
    if (cli_open(&web->store, &args, CLI_EXISTING) != CLI_DONE) {
        web->board->error = HAPAX_ERR_UNAVAILABLE;
        (void)snprintf(web->board->text, sizeof(web->board->text), "it cannot be opened");
    }
}

/* A broker may let one wait: so whoever comes second is told, and does not wait, too. */
static enum cli_exit run_letters(struct request *request, const struct route *route)
{
    struct web *web = (struct web *)(uintptr_t)request->web;
    struct cli_args args = *web->args;
    enum cli_exit exit;

    if (pthread_mutex_trylock(&web->redriving) != 0) {
        args.out = request->out;
        args.json = true;
        return cli_fail(&args, CLI_NO, HAPAX_ERR_UNAVAILABLE,
                        "somebody looks at dead letters or puts them back; try again");
    }
    exit = route->complete == complete_put_back ? put_back(request, route)
                                                : run_command(request, route);
    pthread_mutex_unlock(&web->redriving);
    return exit;
}

static enum cli_exit run_route(struct request *request, const struct route *route)
{
    struct web *web = (struct web *)(uintptr_t)request->web;
    enum cli_exit exit = CLI_UNREACHED;

    if (route->letters)
        return run_letters(request, route);
    pthread_mutex_lock(&web->one);
    if (route->answer) {
        FILE *nowhere = fopen("/dev/null", "we");

        open_store(web, nowhere);
        if (nowhere)
            (void)fclose(nowhere);
        exit = route->answer(request);
    } else {
        open_store(web, request->out);
        if (web->store)
            exit = route->command == &cli_redrive ? put_back(request, route)
                                                  : run_command(request, route);
        web->looked_us = route->changes ? 0 : web->looked_us;
    }
    pthread_mutex_unlock(&web->one);
    return exit;
}

static void reply_text(struct hapax__site_reply *reply, unsigned status, const char *type,
                       const char *text)
{
    *reply = (struct hapax__site_reply){
        .status = status, .type = type, .body = text, .len = strlen(text)};
}

static unsigned status_of(enum cli_exit exit, const struct route *route)
{
    switch (exit) {
    case CLI_DONE:
        return 200;
    case CLI_NO:
        return route->no;
    case CLI_USAGE:
        return 400;
    case CLI_UNREACHED:
        break;
    }
    return 503;
}

static void answer_route(struct hapax__site_reply *reply, struct request *request,
                         const struct hapax__site_request *from, const struct route *route)
{
    enum cli_exit exit;

    request->texts = malloc(from->body.len + 1);
    request->out = open_memstream(&request->reply, &request->reply_len);
    if (!request->texts || !request->out) {
        free(request->texts);
        if (request->out)
            (void)fclose(request->out);
        free(request->reply);
        reply_text(reply, 503, "text/plain; charset=utf-8", "out of memory\n");
        return;
    }
    if (hapax__raw_check(&request->value, from->body) && hapax__raw_is_object(request->value))
        exit = run_route(request, route);
    else
        exit = wrong(request, "the request is no JSON object");
    explicit_bzero(request->texts, from->body.len);
    free(request->texts);
    if (fclose(request->out) != 0) {
        free(request->reply);
        reply_text(reply, 503, "text/plain; charset=utf-8", "out of memory\n");
        return;
    }
    *reply = (struct hapax__site_reply){.status = status_of(exit, route),
                                        .type = "application/x-ndjson",
                                        .owned = request->reply,
                                        .len = request->reply_len};
}

static bool is_outbox(const char *store)
{
    return hapax__text_begins(store, "postgres://") || hapax__text_begins(store, "postgresql://");
}

/* What the page has to know first. */
static void answer_session(struct hapax__site_reply *reply, const struct web *web, const char *who)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct json json;

    if (!out) {
        reply_text(reply, 503, "text/plain; charset=utf-8", "out of memory\n");
        return;
    }
    json_begin_at(&json, out);
    json_text(&json, "token", web_guard_token(web->guard));
    json_text(&json, "version", HAPAX_VERSION);
    json_text(&json, "store", web->args->shown);
    json_text(&json, "who", who);
    json_bool(&json, "may_resolve", web->may_resolve);
    json_bool(&json, "has_outbox", is_outbox(web->args->store));
    json_array_begin(&json, "dead");
    for (size_t i = 0; i < web->letters_n; i++) {
        json_object_begin(&json);
        json_text(&json, "from", web->letters[i].from_shown);
        json_text(&json, "to", web->letters[i].to_shown);
        json_object_end(&json);
    }
    json_array_end(&json);
    json_end(&json);
    (void)fclose(out);
    *reply = (struct hapax__site_reply){
        .status = 200, .type = "application/x-ndjson", .owned = text, .len = len};
}

static bool answer_page(struct hapax__site_reply *reply, const char *path)
{
    static const struct {
        const char *path, *type, *text;
    } pages[] = {{"/", "text/html; charset=utf-8", hapax__web_html},
                 {"/style.css", "text/css; charset=utf-8", hapax__web_css},
                 {"/app.js", "text/javascript; charset=utf-8", hapax__web_js}};

    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        if (strcmp(path, pages[i].path) == 0) {
            reply_text(reply, 200, pages[i].type, pages[i].text);
            return true;
        }
    return false;
}

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (strcmp(path, routes[i].path) == 0)
            return &routes[i];
    return NULL;
}

void web_answer(struct hapax__site_reply *reply, const struct hapax__site_request *from, void *arg)
{
    const struct web *web = arg;
    struct request request = {.web = web};
    const struct route *route = find_route(from->path);
    bool reads = strcmp(from->method, "GET") == 0 || strcmp(from->method, "HEAD") == 0;

    if (!web_guard_admits(web->guard, request.who, from, reply))
        return;
    if (reads && answer_page(reply, from->path))
        return;
    if (reads && strcmp(from->path, "/api/session") == 0)
        answer_session(reply, web, request.who);
    else if (!route)
        reply_text(reply, 404, "text/plain; charset=utf-8", "there is no such page\n");
    else if (strcmp(from->method, "POST") != 0)
        reply_text(reply, 405, "text/plain; charset=utf-8", "POST it\n");
    else if (route->changes && !web->may_resolve)
        reply_text(reply, 403, "text/plain; charset=utf-8",
                   "this hapax web only reads; it was started without --allow resolve\n");
    else
        answer_route(reply, &request, from, route);
}
