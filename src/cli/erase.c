/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax erase: all operations of an owner, or of a scope, are forgotten, and the store's files hold
 * nothing of them any more.
 *
 * The records are listed page by page, and each is forgotten by a RESOLVE that names the write
 * which was listed. So one that changed meanwhile stays, and is counted. The attempt alone would
 * not do: a record may have expired since, and its key runs as attempt 1 again. What runs stays,
 * too: its END would find no record, and the next request would run beside it. What waits for an
 * operator stays unless --unknown is given: once it is forgotten, it runs again. Rejected: an op of
 * its own that removes by owner. Each store would have a second way to remove records, for what
 * LIST and RESOLVE do; and a store that hashes would walk through all records in one op.
 */
#include "audit.h"
#include "print.h"
#include "progress.h"
#include "report.h"

#include "core/machine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define PAGE_MAX 100u
#define LOOK_MS  100 /* between two looks whether the files are written anew */

struct erase_args {
    struct cli_args args;
    const char *owner;
    const char *scope;
    const char *audit;
    bool unknown;
    bool dry_run;
};

static const struct cli_option options[] = {
    CLI_TEXT_OPTION(struct erase_args, owner, "owner", "O", "All of this owner"),
    CLI_TEXT_OPTION(struct erase_args, scope, "scope", "S",
                    "All of this scope; with --owner: of both"),
    {"unknown", NULL, CLI_FLAG, offsetof(struct erase_args, unknown), 0, 0,
     "Also what waits for an operator: it may then take effect a second time"},
    {"dry-run", NULL, CLI_FLAG, offsetof(struct erase_args, dry_run), 0, 0,
     "Count them, and leave them all"},
    CLI_TEXT_OPTION(struct erase_args, audit, "audit", "FILE",
                    "Where the act leaves lines (default $HAPAX_AUDIT_FILE)"),
};

struct erasing {
    const struct erase_args *args;
    struct hapax_store *store;
    int signals;
    struct hapax_op list;
    struct hapax_digest owners[CLI_OWNERS_MAX]; /* list.owner is one after the other */
    size_t owners_n;
    struct hapax_op ops[PAGE_MAX];
    enum hapax_state states[PAGE_MAX]; /* of the records that ops[] forget */
    bool steps[PAGE_MAX]; /* a list of steps, which is no operation */
    size_t n;
    int64_t erased[HAPAX_STATE_UNKNOWN + 1]; /* by state */
    int64_t runs, unknown, changed, not_known; /* left */
    struct progress progress;
    struct report_damage damage;
};

/* ---- the report -------------------------------------------------------------------------- */

static int64_t sum(const struct erasing *e)
{
    int64_t n = 0;

    for (int state = HAPAX_STATE_STARTED; state <= HAPAX_STATE_UNKNOWN; state++)
        n += e->erased[state];
    return n;
}

static void put_json(const struct erasing *e)
{
    struct json json;

    json_begin(&json);
    json_number(&json, e->args->dry_run ? "would_erase" : "erased", sum(e));
    for (int state = HAPAX_STATE_STARTED; state <= HAPAX_STATE_UNKNOWN; state++)
        json_number(&json, hapax_state_name((enum hapax_state)state), e->erased[state]);
    json_number(&json, "left_running", e->runs);
    json_number(&json, "left_unknown", e->unknown);
    json_number(&json, "left_changed", e->changed);
    json_number(&json, "not_known", e->not_known);
    if (e->store->type->remains)
        json_text(&json, "remains_in", e->store->type->remains);
    json_end(&json);
}

static void put_left(int64_t n, const char *what)
{
    if (n > 0)
        printf("left %" PRId64 " %s\n", n, what);
}

static void put_report(const struct erasing *e)
{
    int64_t n = sum(e);
    const char *by = " (";

    if (e->args->args.json) {
        put_json(e);
        return;
    }
    printf("%s %" PRId64 " operation%s", e->args->dry_run ? "would erase" : "erased", n,
           n == 1 ? "" : "s");
    for (int state = HAPAX_STATE_STARTED; state <= HAPAX_STATE_UNKNOWN; state++) {
        if (e->erased[state] == 0)
            continue;
        printf("%s%" PRId64 " %s", by, e->erased[state], hapax_state_name((enum hapax_state)state));
        by = ", ";
    }
    puts(n > 0 ? ")" : "");
    put_left(e->runs, "that run: erase again once they have ended");
    put_left(e->unknown, "whose result is unknown: hapax resolve, or --unknown");
    put_left(e->changed, "that changed meanwhile: erase again");
    put_left(e->not_known, "of which no reply came: erase again");
    if (!e->args->dry_run && e->store->type->remains)
        printf("their bytes may still be in: %s\n", e->store->type->remains);
}

/* ---- a page ------------------------------------------------------------------------------ */

/* Whether a record is to be forgotten; what is left is counted. What PURGE would make `unknown`
 * waits for an operator, too. Of the library's own records only the lists of steps go: they are an
 * owner's. */
static bool is_chosen(struct erasing *e, const struct hapax_record *record, int64_t now_us)
{
    bool live = record->state == HAPAX_STATE_STARTED && record->lease_until_us > now_us;
    struct hapax_record next;
    bool unknown =
        record->state == HAPAX_STATE_UNKNOWN ||
        (hapax__swept(record, now_us, &next) == HAPAX__WRITE && next.state == HAPAX_STATE_UNKNOWN);

    if (cli_is_own(record) && !cli_is_step_list(record))
        return false;
    if (live)
        e->runs++;
    else if (unknown && !e->args->unknown)
        e->unknown++;
    else
        return true;
    return false;
}

static enum cli_exit take(struct erasing *e, const struct hapax_op *list)
{
    e->n = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct hapax_record *record = &list->records[i];
        struct hapax_op *op = &e->ops[e->n];

        if (!is_chosen(e, record, list->now_us))
            continue;
        *op = (struct hapax_op){.kind = HAPAX_OP_RESOLVE,
                                .resolve = HAPAX_RESOLVE_FORGET,
                                .id = record->id,
                                .if_attempt = record->attempt,
                                .if_updated_us = record->updated_us,
                                .force = record->state == HAPAX_STATE_COMPLETED};
        e->states[e->n] = record->state;
        e->steps[e->n++] = cli_is_step_list(record);
        if (getrandom(op->token.bytes, sizeof(op->token.bytes), 0) != sizeof(op->token.bytes))
            return cli_fail(&e->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                            "cannot get random bytes");
    }
    return CLI_DONE;
}

/* A forget is asked once: it takes its token away with the record, and a repeat could forget a
 * newer record. */
static enum cli_exit forget(struct erasing *e)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    if (e->n > 0 && !e->args->dry_run)
        (void)hapax_store_run(e->store, e->ops, e->n);
    for (size_t i = 0; i < e->n; i++) {
        const struct hapax_op *op = &e->ops[i];

        if (e->args->dry_run || op->verdict == HAPAX_OK)
            e->erased[e->states[i]] += !e->steps[i];
        else if (op->error == HAPAX_ERR_INDETERMINATE)
            e->not_known++;
        else if (op->error != HAPAX_ERR_NONE)
            error = op->error;
        else if (op->verdict == HAPAX_IN_FLIGHT)
            e->runs++;
        else
            e->changed += op->verdict != HAPAX_ABSENT;
    }
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    return cli_store_failed(&e->args->args, error, hapax_store_text(e->store));
}

/* A signal ends it, between two pages and while the files are written. */
static enum cli_exit go_on(struct erasing *e, int64_t wait_ms)
{
    if (cli_signals_wait(e->signals, wait_ms) == 0)
        return CLI_DONE;
    return cli_fail(&e->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                    "ended before it was done: erase again");
}

static enum cli_exit walk(struct erasing *e)
{
    enum cli_exit exit;

    do {
        enum hapax_error error = hapax_store_run(e->store, &e->list, 1);

        if (error != HAPAX_ERR_NONE || e->list.damaged)
            progress_end(&e->progress);
        if (error != HAPAX_ERR_NONE)
            return cli_store_failed(&e->args->args, error, hapax_store_text(e->store));
        report_damage(&e->damage, "erase", &e->list);
        e->list.cursor = e->list.next_cursor;
        exit = take(e, &e->list);
        if (exit == CLI_DONE)
            exit = forget(e);
        if (exit == CLI_DONE)
            exit = go_on(e, 0);
        if (e->list.more)
            progress_tell(&e->progress, progress_share(e->store, &e->list.cursor), (uint64_t)sum(e),
                          "forgotten");
    } while (exit == CLI_DONE && e->list.more);
    return exit;
}

/* ---- the files --------------------------------------------------------------------------- */

/* Also where nothing was erased: an earlier one may have been ended before this. */
static enum cli_exit scrub(struct erasing *e)
{
    struct hapax_op op = {.kind = HAPAX_OP_PURGE, .scrub = true};
    enum cli_exit exit = CLI_DONE;

    while (exit == CLI_DONE) {
        enum hapax_error error = hapax_store_run(e->store, &op, 1);

        if (error != HAPAX_ERR_NONE)
            return cli_store_failed(&e->args->args, error, hapax_store_text(e->store));
        if (!op.more)
            break;
        op.cursor = op.next_cursor;
        progress_tell(&e->progress, 0, (uint64_t)sum(e),
                      "forgotten; writing the store's files anew");
        exit = go_on(e, LOOK_MS);
    }
    return exit;
}

/* ---- the command ------------------------------------------------------------------------- */

static enum cli_exit erase(struct erasing *e, const struct audit *audit)
{
    const struct cli_args *args = &e->args->args;
    char end[128];
    enum cli_exit exit = CLI_DONE;

    if (!e->args->dry_run)
        exit = audit_erase(audit, &e->list, NULL);
    if (exit != CLI_DONE)
        return exit;
    /* The old half of a rotation first: what is brought over meanwhile is met in the new one. */
    for (size_t i = e->owners_n > 0 ? e->owners_n : 1; exit == CLI_DONE && i > 0; i--) {
        e->list.owner = e->owners[i - 1];
        memset(&e->list.cursor, 0, sizeof(e->list.cursor));
        exit = walk(e);
    }
    e->list.owner = e->owners[0];
    if (exit == CLI_DONE && !e->args->dry_run)
        exit = scrub(e);
    progress_end(&e->progress);
    (void)snprintf(end, sizeof(end), "%s: erased %" PRId64 ", left %" PRId64,
                   exit == CLI_DONE ? "done" : "broken off", sum(e),
                   e->runs + e->unknown + e->changed + e->not_known + e->damage.places);
    if (!e->args->dry_run)
        (void)audit_erase(audit, &e->list, end);
    put_report(e);
    if (exit == CLI_DONE && e->damage.places > 0)
        exit = cli_fail(args, CLI_UNREACHED, HAPAX_ERR_CORRUPT,
                        "%u damaged places were passed over (\"hapax check\" says more)",
                        e->damage.places);
    if (exit == CLI_DONE && e->not_known > 0)
        return CLI_UNREACHED;
    return exit == CLI_DONE && e->runs + e->unknown + e->changed > 0 ? CLI_NO : exit;
}

static enum cli_exit check(const struct erase_args *args)
{
    if (!args->owner && !args->scope)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "say what, with --owner or --scope");
    if (args->scope && (!*args->scope || strlen(args->scope) > HAPAX_SCOPE_MAX))
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--scope is not of 1 to %u bytes", HAPAX_SCOPE_MAX);
    if (args->scope && strcmp(args->scope, "hapax") == 0)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--scope \"hapax\" is the store's own");
    return CLI_DONE;
}

static enum cli_exit run(struct cli_args *args)
{
    struct erasing *e = calloc(1, sizeof(*e));
    struct audit audit = {.fd = -1};
    enum cli_exit exit;

    if (!e)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    e->args = (const struct erase_args *)args;
    e->list = (struct hapax_op){
        .kind = HAPAX_OP_LIST, .scope = hapax_str(e->args->scope), .limit = PAGE_MAX};
    progress_begin(&e->progress, args);
    e->signals = cli_signals_begin();
    exit = check(e->args);
    if (exit == CLI_DONE && e->signals < 0)
        exit = cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    if (exit == CLI_DONE)
        exit = cli_open(&e->store, args, CLI_EXISTING);
    if (exit == CLI_DONE && e->args->owner)
        exit = cli_owners(e->owners, &e->owners_n, args, e->store, e->args->owner);
    e->list.owner = e->owners[0];
    if (exit == CLI_DONE && !e->args->dry_run)
        exit = audit_begin(&audit, args, e->args->audit);
    if (exit == CLI_DONE) {
        exit = erase(e, &audit);
        if (!e->args->dry_run)
            audit_end(&audit, exit);
    }
    hapax_store_close(e->store);
    if (e->signals >= 0)
        close(e->signals);
    free(e);
    return exit;
}

const struct cli_command cli_erase = {
    .name = "erase",
    .summary = "forget all operations of an owner or a scope",
    .synopsis = {"--owner O [--scope S] [--unknown] [--dry-run]",
                 "--scope S [--unknown] [--dry-run]"},
    .prose =
        "Removes the records of an owner, of a scope, or of an owner in a scope, with their "
        "responses, and the steps among them. Stop the requests of the owner first: what begins "
        "meanwhile is not erased, and a repeat of what was erased runs as the first.\n\n"
        "What runs at this moment is left, and so is what waits for an operator, without "
        "--unknown: exit status 1 says that something was left. An embedded store then writes its "
        "files anew, which needs as much room as it has and goes on beside other work; when this "
        "command is done, none of its files has bytes of what was erased. The last line names "
        "what may still have some: logs, replicas, backups.\n\n"
        "The act leaves two lines in the system's log (authpriv), and in --audit FILE: who, when, "
        "how many; of the owner a digest.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax erase --owner customer-17 --dry-run", "How many there are."},
                 {"hapax erase --owner customer-17", "They are gone."}},
    .args_size = sizeof(struct erase_args),
    .run = run,
};
