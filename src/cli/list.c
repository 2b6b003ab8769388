/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax list: the records of a store, page by page, printed as they come, so that a store of any
 * size can be listed in little memory.
 */
#include "cli.h"

#include "outbox.h"
#include "print.h"
#include "report.h"
#include "totals.h"

#include "base/clock.h"
#include "base/time.h"

#include <string.h>

/* A page ends after this time, with what was found until then. */
#define PAGE_US (500 * US_PER_MS)

struct list_args {
    struct cli_args args;
    struct cli_texts states;
    const char *owner;
    const char *scope;
    int64_t older_ms;
    int64_t limit;
    const char *after;
    bool totals;
    bool outbox;
};

static const struct cli_option options[] = {
    {"state", "S", CLI_TEXTS, offsetof(struct list_args, states), 0, 0,
     "Only in this state: started, completed, failed or unknown. May be given several times"},
    {"owner", "O", CLI_TEXT, offsetof(struct list_args, owner), 0, 0, "Only of this owner"},
    {"scope", "S", CLI_TEXT, offsetof(struct list_args, scope), 0, 0, "Only of this scope"},
    {"older", "T", CLI_DURATION, offsetof(struct list_args, older_ms), 0, HAPAX_DURATION_MAX_MS,
     "Only where nothing was written for this long"},
    {"limit", "N", CLI_NUMBER, offsetof(struct list_args, limit), 1, INT64_MAX,
     "At most so many (default 1000)"},
    {"after", "ID", CLI_TEXT, offsetof(struct list_args, after), 0, 0,
     "A page: \"start\", or what the page before ends with"},
    {"totals", NULL, CLI_FLAG, offsetof(struct list_args, totals), 0, 0,
     "Not operations, but how many of each unfinished state, and the age of the oldest"},
    {"outbox", NULL, CLI_FLAG, offsetof(struct list_args, outbox), 0, 0,
     "Not operations, but messages of the outbox that were put aside"},
};

static void defaults(struct cli_args *args)
{
    ((struct list_args *)args)->limit = 1000;
}

enum cli_exit cli_states(uint32_t *bits, const struct cli_args *args,
                         const struct cli_texts *states)
{
    *bits = 0;
    for (size_t i = 0; i < states->n; i++) {
        uint32_t bit = 0;

        for (int state = HAPAX_STATE_STARTED; state <= HAPAX_STATE_UNKNOWN; state++)
            if (strcmp(states->items[i], hapax_state_name((enum hapax_state)state)) == 0)
                bit = 1u << state;
        if (bit == 0)
            return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                            "--state \"%s\" is not started, completed, failed or unknown",
                            states->items[i]);
        *bits |= bit;
    }
    return CLI_DONE;
}

/* Prints a page; how many of its records count. The library's own are no operations. */
static int64_t put_page(const struct cli_args *args, const struct hapax_op *op, bool first,
                        int64_t left)
{
    int64_t n = 0;

    for (uint32_t i = 0; i < op->count && n < left; i++) {
        const struct hapax_record *record = &op->records[i];

        if (cli_is_own(record))
            continue;
        if (args->json) {
            struct json json;

            json_begin_at(&json, args->out);
            report_members(&json, record, REPORT_LISTED, op->now_us);
            json_end(&json);
        } else {
            if (first && n == 0)
                report_row_head();
            report_row(record, op->now_us);
        }
        n++;
    }
    return n;
}

/* What a page ends with. */
static void put_end(const struct cli_args *args, const struct hapax_op *op, int64_t n)
{
    struct json json;
    char hex[PRINT_HEX_MAX];

    print_hex(hex, op->cursor.bytes);
    if (!args->json) {
        if (op->more)
            (void)fprintf(stderr, "hapax list: the next page is --after %s\n", hex);
        return;
    }
    json_begin_at(&json, args->out);
    json_number(&json, "count", n);
    json_bool(&json, "more", op->more);
    if (op->more)
        json_text(&json, "after", hex);
    else
        json_null(&json, "after");
    json_number(&json, "now_us", op->now_us);
    json_end(&json);
}

/* Prints what one LIST finds; *n counts what was printed, also by LISTs before. */
static enum cli_exit put_all(const struct cli_args *args, struct hapax_store *store,
                             struct hapax_op *op, struct report_damage *damage, int64_t *n)
{
    const struct list_args *list = (const struct list_args *)args;
    int64_t until_us = hapax__monotonic_us() + PAGE_US;

    do {
        enum hapax_error error;

        op->limit = (uint32_t)hapax__least(list->limit - *n, HAPAX_LIST_MAX);
        error = hapax_store_run(store, op, 1);
        if (error != HAPAX_ERR_NONE)
            return cli_store_failed(args, error, hapax_store_text(store));
        report_damage(damage, "list", op);
        *n += put_page(args, op, *n == 0, list->limit - *n);
        op->cursor = op->next_cursor;
    } while (op->more && *n < list->limit && !ferror(stdout) &&
             !(list->after && hapax__monotonic_us() > until_us));
    return CLI_DONE;
}

/* Lists for each of the n owners; n is 1 where it is not asked for one, and op has none. */
static enum cli_exit put_owners(const struct cli_args *args, struct hapax_store *store,
                                struct hapax_op *op, const struct hapax_digest *owners, size_t n)
{
    const struct list_args *list = (const struct list_args *)args;
    const struct hapax_op first = *op;
    struct report_damage damage = {0};
    int64_t shown = 0;
    enum cli_exit exit = CLI_DONE;
    size_t i;

    for (i = 0; i < n && exit == CLI_DONE && shown < list->limit; i++) {
        *op = first;
        if (list->owner)
            op->owner = owners[i];
        exit = put_all(args, store, op, &damage, &shown);
    }
    if (exit != CLI_DONE)
        return exit;
    if (list->after)
        put_end(args, op, shown);
    if (damage.places > 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_CORRUPT,
                        "%u damaged places were passed over (\"hapax check\" says more)",
                        damage.places);
    if (shown == 0 && !args->json)
        (void)fputs("hapax list: there are none\n", stderr);
    if (!list->after && (op->more || i < n) && shown == list->limit && !args->json)
        (void)fprintf(stderr, "hapax list: there may be more; this is --limit %lld\n",
                      (long long)list->limit);
    return CLI_DONE;
}

static enum cli_exit run(struct cli_args *args)
{
    const struct list_args *list = (const struct list_args *)args;
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .older_ms = list->older_ms};
    struct hapax_digest owners[CLI_OWNERS_MAX];
    struct hapax_store *store;
    enum cli_exit exit;
    size_t n = 1;

    op.scope = hapax_str(list->scope);
    if (list->scope && (op.scope.len == 0 || op.scope.len > HAPAX_SCOPE_MAX))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--scope is not of 1 to %u bytes",
                        HAPAX_SCOPE_MAX);
    if (list->outbox && (list->states.n > 0 || list->owner || list->scope || list->older_ms > 0 ||
                         list->after || list->totals))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--outbox goes with --limit alone: messages have no state, owner, scope "
                        "or age");
    if (list->outbox)
        return outbox_list(args, args->store, list->limit);
    if (list->totals &&
        (list->states.n > 0 || list->owner || list->scope || list->older_ms > 0 || list->after))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--totals goes alone");
    if (list->after && strcmp(list->after, "start") != 0 && !cli_id_read(&op.cursor, list->after))
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "--after is neither \"start\" nor 64 hex digits");
    exit = cli_states(&op.states, args, &list->states);
    if (exit == CLI_DONE)
        exit = cli_open(&store, args, CLI_EXISTING);
    if (exit != CLI_DONE)
        return exit;
    if (list->owner)
        exit = cli_owners(owners, &n, args, store, list->owner);
    if (exit == CLI_DONE && n > 1 && list->after)
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_UNSUPPORTED,
                        "--after goes with --owner only while the secret is not being changed");
    if (exit == CLI_DONE)
        exit = list->totals ? totals_list(args, store) : put_owners(args, store, &op, owners, n);
    cli_close(args, store);
    return exit;
}

const struct cli_command cli_list = {
    .name = "list",
    .summary = "list the operations of a store",
    .synopsis = {"[--state S]... [--owner O] [--scope S] [--older T] [--limit N]",
                 "--after start|ID ...", "--totals", "--outbox [--limit N]"},
    .prose =
        "Lists operations, in the order of their ids (a Redis has none, and may show one twice). "
        "AGE is the time since the record was last written; LEASE is how long a running "
        "attempt may still go without a sign of life, or \"over\" where it seems to have "
        "died; WHAT is the method and path of a request, or the queue and type of a message.\n\n"
        "A step stands here as an operation of its own, in its scope. With --outbox: the messages "
        "that a relay has put aside, without their keys and payloads; \"hapax redrive\" puts them "
        "back.\n\n"
        "Unfinished operations (all but completed) are found without reading the finished ones, "
        "except in a Redis, which is walked from end to end. With --json each operation is an "
        "object on a line of its own, without its body; a page ends with {\"count\", \"more\", "
        "\"after\", \"now_us\"}, where \"after\" begins the next one. --totals counts at most "
        "10000 operations, for a second at most, and says if there are more.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax list --state unknown", "Those that wait for an operator."},
                 {"hapax list --state started --older 5m", "Those that seem stuck."}},
    .args_size = sizeof(struct list_args),
    .defaults = defaults,
    .run = run,
};
