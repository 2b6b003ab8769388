/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax resolve: an operator finishes an operation by hand. The store decides whether that is
 * allowed. If the reply never comes, the command asks again with the same token, which tells the
 * machine that the question is the same.
 */
#include "cli.h"

#include "audit.h"
#include "bulk.h"
#include "print.h"

#include "base/span.h"
#include "store/types.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#define LIMIT_MANY 1000 /* without --limit */

struct resolve_args {
    struct cli_args args;
    struct cli_operation operation;
    int64_t status; /* -1: no --complete */
    struct cli_texts headers;
    const char *body;
    const char *text;
    bool fail;
    bool forget;
    int64_t if_attempt;
    int64_t if_updated_us; /* 0: whenever */
    bool force;
    const char *by;
    const char *audit;
    struct cli_texts states;
    int64_t older_ms; /* -1: not given */
    int64_t limit; /* 0: not given */
    bool dry_run;
};

/* What the op lends from. */
struct resolve_memory {
    char headers[HAPAX_HEADERS_MAX];
    size_t headers_len;
    uint8_t *body;
    size_t body_len;
    char by[HAPAX_BY_MAX + 1];
};

static const struct cli_option options[] = {
    {"complete", "STATUS", CLI_NUMBER, offsetof(struct resolve_args, status), 0, 999,
     "It happened: repeats are answered with this status"},
    {"header", "'N: V'", CLI_TEXTS, offsetof(struct resolve_args, headers), 0, 0,
     "With --complete: a header of the answer; may be given several times"},
    {"body", "FILE", CLI_TEXT, offsetof(struct resolve_args, body), 0, 0,
     "With --complete: the body of the answer, - for standard input. A name as x.json gives the "
     "Content-Type, if no --header does"},
    {"text", "BODY", CLI_TEXT, offsetof(struct resolve_args, text), 0, 0,
     "With --complete: the body itself"},
    {"fail", NULL, CLI_FLAG, offsetof(struct resolve_args, fail), 0, 0,
     "It did not happen: the next request runs it again"},
    {"forget", NULL, CLI_FLAG, offsetof(struct resolve_args, forget), 0, 0,
     "Remove the record: the next request is the first"},
    {"if-attempt", "N", CLI_NUMBER, offsetof(struct resolve_args, if_attempt), 1, UINT32_MAX,
     "Only if its last attempt is the Nth"},
    {"if-updated", "US", CLI_NUMBER, offsetof(struct resolve_args, if_updated_us), 1, INT64_MAX,
     "Only if its updated_us is this: nothing has changed it since"},
    {"force", NULL, CLI_FLAG, offsetof(struct resolve_args, force), 0, 0,
     "Even while an attempt runs, or where it has completed; with --forget also where the record "
     "is damaged"},
    {"by", "NAME", CLI_TEXT, offsetof(struct resolve_args, by), 0, 0,
     "Who settles it, for the record (default: your login name)"},
    {"state", "S", CLI_TEXTS, offsetof(struct resolve_args, states), 0, 0,
     "All of --scope in this state: unknown, failed, started"},
    {"older", "T", CLI_DURATION, offsetof(struct resolve_args, older_ms), 0, HAPAX_DURATION_MAX_MS,
     "With --state: only what did not change for this long"},
    {"limit", "N", CLI_NUMBER, offsetof(struct resolve_args, limit), 1, INT64_MAX,
     "With --state: at most so many (default 1000)"},
    {"dry-run", NULL, CLI_FLAG, offsetof(struct resolve_args, dry_run), 0, 0,
     "With --state: print them, and leave them all"},
    {"audit", "FILE", CLI_TEXT, offsetof(struct resolve_args, audit), 0, 0,
     "Where acts leave lines (default $HAPAX_AUDIT_FILE)"},
    CLI_OPERATION_OPTIONS(struct resolve_args, operation),
};

static void defaults(struct cli_args *args)
{
    ((struct resolve_args *)args)->status = -1;
    ((struct resolve_args *)args)->older_ms = -1;
}

/* ---- what is asked ------------------------------------------------------------------- */

static enum cli_exit add_header(const struct cli_args *args, struct resolve_memory *memory,
                                const char *header)
{
    size_t left = sizeof(memory->headers) - memory->headers_len;
    struct hapax_span name = {(const uint8_t *)header, strcspn(header, ":")};
    int len;

    if (!header[name.len] || !hapax__is_field_name(name) ||
        !hapax__is_field_value(hapax_str(header)))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--header \"%s\" is not of the form 'Name: value'", header);
    len = snprintf(memory->headers + memory->headers_len, left, "%s\r\n", header);
    if (len < 0 || (size_t)len >= left)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_TOO_BIG, "the headers are over %u bytes",
                        HAPAX_HEADERS_MAX);
    memory->headers_len += (size_t)len;
    return CLI_DONE;
}

static enum cli_exit read_body(const struct cli_args *args, struct resolve_memory *memory,
                               const char *path)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rbe");
    bool broken;

    if (!file)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "cannot open --body \"%s\": %s", path,
                        strerror(errno));
    memory->body = malloc(HAPAX_BODY_MAX + 1u);
    if (memory->body)
        memory->body_len = fread(memory->body, 1, HAPAX_BODY_MAX + 1u, file);
    broken = ferror(file);
    if (!standard)
        (void)fclose(file);
    if (!memory->body)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    if (broken)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "cannot read --body \"%s\"", path);
    if (memory->body_len > HAPAX_BODY_MAX)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_TOO_BIG, "--body \"%s\" is over %u bytes", path,
                        HAPAX_BODY_MAX);
    return CLI_DONE;
}

/* The header that the end of a file's name stands for; NULL: none that is sure. */
static const char *type_of(const char *path)
{
    static const char *const types[][2] = {
        {".json", "Content-Type: application/json"}, {".txt", "Content-Type: text/plain"},
        {".html", "Content-Type: text/html"},        {".htm", "Content-Type: text/html"},
        {".xml", "Content-Type: application/xml"},   {".csv", "Content-Type: text/csv"},
        {".pdf", "Content-Type: application/pdf"},   {".png", "Content-Type: image/png"},
        {".jpg", "Content-Type: image/jpeg"},        {".jpeg", "Content-Type: image/jpeg"},
    };
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const char *end = strrchr(name, '.');

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]) && end; i++)
        if (strcasecmp(end, types[i][0]) == 0)
            return types[i][1];
    return NULL;
}

static bool has_type(const struct cli_texts *headers)
{
    static const char name[] = "Content-Type:";

    for (size_t i = 0; i < headers->n; i++)
        if (strncasecmp(headers->items[i], name, sizeof(name) - 1) == 0)
            return true;
    return false;
}

static enum cli_exit check_choice(const struct resolve_args *resolve)
{
    const struct cli_args *args = &resolve->args;
    int choices = (resolve->status >= 0) + resolve->fail + resolve->forget;

    if (choices != 1)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "say how, with one of --complete STATUS, --fail and --forget");
    if (resolve->status < 0 && (resolve->headers.n > 0 || resolve->body || resolve->text))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--header, --body and --text go with --complete");
    if (resolve->body && resolve->text)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "give --body or --text, not both");
    if (resolve->by && (!*resolve->by || strlen(resolve->by) > HAPAX_BY_MAX))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--by is not of 1 to %u bytes",
                        HAPAX_BY_MAX);
    if (resolve->states.n == 0 &&
        (resolve->older_ms >= 0 || resolve->limit > 0 || resolve->dry_run))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--older, --limit and --dry-run go with --state");
    if (resolve->states.n > 0 &&
        (args->operand || resolve->operation.id || resolve->operation.step))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--state is for many operations: give no KEY, --id or --step with it");
    if (resolve->states.n > 0 &&
        (resolve->force || resolve->if_attempt > 0 || resolve->if_updated_us > 0))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--force, --if-attempt and --if-updated are for one operation, not for "
                        "--state");
    return CLI_DONE;
}

static enum cli_exit make_op(struct hapax_op *op, struct resolve_memory *memory,
                             const struct resolve_args *resolve)
{
    const struct cli_args *args = &resolve->args;
    enum cli_exit exit = check_choice(resolve);

    for (size_t i = 0; i < resolve->headers.n && exit == CLI_DONE; i++)
        exit = add_header(args, memory, resolve->headers.items[i]);
    if (exit == CLI_DONE && resolve->body && !has_type(&resolve->headers) && type_of(resolve->body))
        exit = add_header(args, memory, type_of(resolve->body));
    if (exit == CLI_DONE && resolve->body)
        exit = read_body(args, memory, resolve->body);
    if (exit != CLI_DONE)
        return exit;
    if (getrandom(op->token.bytes, sizeof(op->token.bytes), 0) != sizeof(op->token.bytes))
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE, "cannot get random bytes");
    op->kind = HAPAX_OP_RESOLVE;
    op->resolve = resolve->fail     ? HAPAX_RESOLVE_FAIL
                  : resolve->forget ? HAPAX_RESOLVE_FORGET
                                    : HAPAX_RESOLVE_COMPLETE;
    op->if_attempt = (uint32_t)resolve->if_attempt;
    op->if_updated_us = resolve->if_updated_us;
    op->force = resolve->force;
    op->by = hapax_str(cli_by(memory->by, resolve->by));
    if (op->resolve != HAPAX_RESOLVE_COMPLETE)
        return CLI_DONE;
    op->outcome.status = (int)resolve->status;
    op->outcome.body_kept = true;
    op->outcome.headers =
        (struct hapax_span){(const uint8_t *)memory->headers, memory->headers_len};
    op->outcome.body = resolve->text ? hapax_str(resolve->text)
                                     : (struct hapax_span){memory->body, memory->body_len};
    return CLI_DONE;
}

/* ---- what is answered ---------------------------------------------------------------- */

static void refusal(char *out, size_t size, const struct hapax_op *op)
{
    char age[PRINT_AGE_MAX];

    switch (op->verdict) {
    case HAPAX_ABSENT:
        (void)snprintf(out, size, "there is no such operation");
        break;
    case HAPAX_IN_FLIGHT:
        print_age(age, op->record.lease_until_us - op->now_us);
        (void)snprintf(out, size,
                       "attempt %" PRIu32 " still runs (its lease lasts another %s); wait, or use "
                       "--force if you know that it is dead",
                       op->record.attempt, age);
        break;
    case HAPAX_COMPLETED:
        (void)snprintf(out, size, "it has completed already, with status %d; --force replaces that",
                       op->record.outcome.status);
        break;
    default:
        if (op->record.attempt == op->if_attempt)
            (void)snprintf(out, size, "another attempt with this number has begun");
        else
            (void)snprintf(out, size, "its last attempt is number %" PRIu32 ", not %" PRIu32,
                           op->record.attempt, op->if_attempt);
    }
}

static const char *done_text(const struct hapax_op *op)
{
    switch (op->resolve) {
    case HAPAX_RESOLVE_COMPLETE:
        return "completed: repeats get the answer you gave";
    case HAPAX_RESOLVE_FAIL:
        return "failed: the next request with this key runs it again";
    case HAPAX_RESOLVE_FORGET:
        break;
    }
    return "forgotten: the next request with this key is the first";
}

static enum cli_exit report(const struct cli_args *args, const struct hapax_op *op)
{
    bool done = op->verdict == HAPAX_OK;
    bool gone = done ? op->resolve == HAPAX_RESOLVE_FORGET : op->verdict == HAPAX_ABSENT;
    struct json json;
    char why[256];

    if (!done)
        refusal(why, sizeof(why), op);
    if (!args->json) {
        if (done)
            puts(done_text(op));
        else
            (void)fprintf(stderr, "hapax resolve: not resolved: %s\n", why);
        return done ? CLI_DONE : CLI_NO;
    }
    json_begin_at(&json, args->out);
    json_hex(&json, "id", op->id.bytes);
    json_bool(&json, "resolved", done);
    json_text(&json, "verdict", hapax_verdict_name(op->verdict));
    json_text(&json, "state", hapax_state_name(gone ? HAPAX_STATE_ABSENT : op->record.state));
    if (!gone)
        json_number(&json, "attempt", op->record.attempt);
    if (done)
        json_bytes(&json, "resolved_by", op->by);
    else
        json_text(&json, "text", why);
    json_end(&json);
    return done ? CLI_DONE : CLI_NO;
}

/* Says that another operator, or an attempt, was faster. */
static enum cli_exit report_changed(const struct cli_args *args, const struct hapax_record *now)
{
    struct json json;

    if (!args->json) {
        (void)fprintf(stderr,
                      "hapax resolve: not resolved: it was changed meanwhile, and is %s now\n",
                      hapax_state_name(now->state));
        return CLI_NO;
    }
    json_begin_at(&json, args->out);
    json_hex(&json, "id", now->id.bytes);
    json_bool(&json, "resolved", false);
    json_text(&json, "verdict", "changed");
    json_text(&json, "state", hapax_state_name(now->state));
    json_number(&json, "attempt", now->attempt);
    if (now->resolved_us > 0)
        json_bytes(&json, "resolved_by", now->resolved_by);
    json_text(&json, "text", "it was changed meanwhile");
    json_end(&json);
    return CLI_NO;
}

static enum cli_exit ask(const struct cli_args *args, struct hapax_store *store,
                         struct hapax_op *op)
{
    (void)hapax_store_run(store, op, 1);
    hapax__ask_again(store, op);
    if (op->error == HAPAX_ERR_INDETERMINATE)
        return cli_fail(args, CLI_UNREACHED, op->error,
                        "no reply came, so it may be done or not; look with \"hapax show\": %s",
                        hapax_store_text(store));
    if (op->error != HAPAX_ERR_NONE)
        return cli_store_failed(args, op->error, hapax_store_text(store));
    if (op->verdict == HAPAX_LOST && op->if_updated_us > 0)
        return report_changed(args, &op->record);
    return report(args, op);
}

/* ---- one, or many -------------------------------------------------------------------- */

static enum cli_exit resolve_one(struct resolve_args *resolve, struct hapax_op *op)
{
    struct cli_args *args = &resolve->args;
    struct hapax_op before = {.kind = HAPAX_OP_READ};
    struct hapax_store *store;
    enum hapax_error error;
    bool found;
    struct audit audit;
    struct cli_names names;
    enum cli_exit exit = cli_open_operation(&store, &names, args, &resolve->operation);

    if (exit != CLI_DONE)
        return exit;
    cli_name(op, &names);
    cli_name(&before, &names);
    error = hapax_store_run(store, &before, 1);
    found = before.verdict == HAPAX_FOUND || error == HAPAX_ERR_SEALED; /* its key may be lost */
    if (error != HAPAX_ERR_NONE && error != HAPAX_ERR_CORRUPT && error != HAPAX_ERR_SEALED)
        exit = cli_store_failed(args, error, hapax_store_text(store));
    else if (found && resolve->if_updated_us > 0 &&
             before.record.updated_us != resolve->if_updated_us)
        exit = report_changed(args, &before.record);
    else
        exit = audit_begin(&audit, args, resolve->audit);
    if (exit == CLI_DONE) {
        exit = audit_asked(&audit, op, &before.record, error);
        if (exit == CLI_DONE) {
            exit = ask(args, store, op);
            audit_answered(&audit, op);
        }
        audit_end(&audit, exit);
    }
    cli_close(args, store);
    return exit;
}

static enum cli_exit resolve_many(const struct resolve_args *resolve, const struct hapax_op *op)
{
    const struct cli_args *args = &resolve->args;
    const char *scope = resolve->operation.scope;
    struct hapax_digest owners[CLI_OWNERS_MAX] = {0};
    struct audit audit;
    struct bulk bulk = {.args = args,
                        .list = {.kind = HAPAX_OP_LIST,
                                 .older_ms = resolve->older_ms > 0 ? resolve->older_ms : 0,
                                 .scope = hapax_str(scope)},
                        .owners = owners,
                        .owners_n = 1,
                        .act = *op,
                        .limit = resolve->limit > 0 ? resolve->limit : LIMIT_MANY,
                        .dry_run = resolve->dry_run,
                        .audit = &audit};
    struct hapax_store *store;
    enum cli_exit exit = cli_states(&bulk.list.states, args, &resolve->states);

    if (exit == CLI_DONE && (bulk.list.states & 1u << HAPAX_STATE_COMPLETED))
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--state \"completed\": what has completed is replaced one by one, with "
                        "--force");
    if (exit == CLI_DONE && scope && (!*scope || strlen(scope) > HAPAX_SCOPE_MAX))
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--scope is not of 1 to %u bytes",
                        HAPAX_SCOPE_MAX);
    if (exit == CLI_DONE)
        exit = cli_open(&store, args, CLI_EXISTING);
    if (exit != CLI_DONE)
        return exit;
    if (resolve->operation.owner)
        exit = cli_owners(owners, &bulk.owners_n, args, store, resolve->operation.owner);
    if (exit == CLI_DONE && !resolve->dry_run)
        exit = audit_begin(&audit, args, resolve->audit);
    if (exit == CLI_DONE) {
        exit = bulk_resolve(&bulk, store);
        if (!resolve->dry_run)
            audit_end(&audit, exit);
    }
    cli_close(args, store);
    return exit;
}

static enum cli_exit run(struct cli_args *args)
{
    struct resolve_args *resolve = (struct resolve_args *)args;
    struct resolve_memory *memory = calloc(1, sizeof(*memory));
    struct hapax_op op = {.kind = HAPAX_OP_RESOLVE};
    enum cli_exit exit;

    if (!memory)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    exit = make_op(&op, memory, resolve);
    if (exit == CLI_DONE)
        exit = resolve->states.n > 0 ? resolve_many(resolve, &op) : resolve_one(resolve, &op);
    free(memory->body);
    free(memory);
    return exit;
}

const struct cli_command cli_resolve = {
    .name = "resolve",
    .summary = "settle an operation by hand",
    .synopsis = {"KEY --complete STATUS [--header 'N: V']... [--body FILE]",
                 "KEY --fail | --forget", "--id HEX ...",
                 "--state unknown [--scope S] [--older T] [--dry-run] ..."},
    .prose =
        "For operations whose fate the program cannot know (state unknown): find out whether "
        "it happened, then say so. The record keeps who settled it, and when, and what stood "
        "there before: its state and its status.\n\n"
        "An operation that runs at this moment, or that has completed, is left alone (exit "
        "status 1) unless --force is given. With --force an attempt that still lives "
        "cannot save its outcome, but what it does elsewhere it may do still.\n\n"
        "A step is settled with --step, apart from its operation: once it is completed, the next "
        "request with KEY goes on behind it. --forget leaves an operation's steps as they are.\n\n"
        "With --state many are resolved in one way; those that run, or change meanwhile, are "
        "passed over. Each act leaves two lines in the system's log (authpriv), and in --audit "
        "FILE: who, when, what stood there, what was done.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .operand = "KEY",
    .examples = {{"hapax resolve order-1 --complete 200 --body receipt.json",
                  "The charge was made: repeats get its receipt."},
                 {"hapax resolve order-1 --fail --if-attempt 3",
                  "It was not made, and nobody has tried again meanwhile."},
                 {"hapax resolve --state unknown --scope probes --older 1d --forget --dry-run",
                  "What would be forgotten; without --dry-run it is."}},
    .args_size = sizeof(struct resolve_args),
    .defaults = defaults,
    .run = run,
};
