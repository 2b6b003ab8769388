/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax copy: what one store has, another store has as well, record by record (docs/moving.md).
 *
 * The records are listed page by page, read with their outcomes, and put by IMPORT, which repeats
 * without harm and takes nothing away. So a copy that was broken off, at whatever point, goes on
 * when it is started again; and a second one shows whether the first was whole. Outcomes go as they
 * are stored: no key is read, and what is sealed stays sealed. Rejected: a mark of how far a copy
 * is. It would have to be kept somewhere, and to be true of records that changed behind it.
 *
 * A claim that is live is left: its attempt ends it in the store where it began.
 */
#include "copy_live.h"

#include "base/clock.h"
#include "base/time.h"
#include "store/types.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_MAX    256u
#define CHUNK_MAX   64u /* records read at once, with their bodies */
#define CHUNK_FIRST 8u
#define CHUNK_MANY  ((size_t)4 << 20) /* bytes of a chunk, above which the next one has fewer */
#define LOOK_MS     500 /* between two looks for live claims */
#define LIVE_US     (2 * US_PER_S) /* by which clocks of the doors that ask a DynamoDB may differ */
#define AGREE_US    US_PER_S /* clocks that differ by no more need no word */

struct copy_args {
    struct cli_args args;
    const char *from;
    const char *to;
    int64_t wait_ms;
    bool live;
    bool dry_run;
};

static const struct cli_option options[] = {
    CLI_TEXT_OPTION(struct copy_args, from, "from", "URI", "The store that has the records"),
    CLI_TEXT_OPTION(struct copy_args, to, "to", "URI", "The store that is to have them as well"),
    {"wait", "TIME", CLI_DURATION, offsetof(struct copy_args, wait_ms), 0, HAPAX_DURATION_MAX_MS,
     "Wait so long at most for operations that run (default 0)"},
    {"live", NULL, CLI_FLAG, offsetof(struct copy_args, live), 0, 0,
     "The doors run, and all of them have the two stores (move:)"},
    {"dry-run", NULL, CLI_FLAG, offsetof(struct copy_args, dry_run), 0, 0,
     "Count the records, and copy none"},
};

struct copying {
    const struct copy_args *args;
    struct hapax_store *from;
    int signals;
    struct moving moving;
    struct copy_live live;
    struct hapax_op list;
    struct hapax_op reads[PAGE_MAX];
    size_t n, chunk;
    struct progress progress;
    struct report_damage damage;
};

/* ---- the two stores ---------------------------------------------------------------------- */

/* Opens a store as it is, without keys: outcomes go through as they are stored. */
static enum cli_exit open_as_is(struct hapax_store **out, struct cli_args *args, const char *uri,
                                enum cli_opening opening)
{
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    enum cli_exit exit;

    args->store = uri;
    exit = cli_store_name(args);
    if (exit == CLI_DONE)
        exit = cli_prepare(args, opening);
    if (exit != CLI_DONE)
        return exit;
    error = hapax_store_open(out, args->store, text);
    return error == HAPAX_ERR_NONE ? CLI_DONE : cli_store_failed(args, error, text);
}

static enum cli_exit open_both(struct copying *c, struct cli_args *args)
{
    enum cli_exit exit;

    if (!c->args->from || !c->args->to)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "say which stores, by --from and --to");
    if (strcmp(c->args->from, c->args->to) == 0)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--from and --to are one store");
    exit = open_as_is(&c->from, args, c->args->from, CLI_EXISTING);
    if (exit == CLI_DONE)
        exit = open_as_is(&c->moving.to, args, c->args->to, CLI_CREATE);
    return exit;
}

static enum cli_exit failed(struct copying *c, struct hapax_store *store, enum hapax_error error)
{
    progress_end(&c->progress);
    return cli_store_failed(&c->args->args, error, hapax_store_text(store));
}

/* The check value of a store's secret, in its record. A store that was never used has none. */
static enum cli_exit read_secret(struct copying *c, struct hapax_store *store, struct hapax_op *op)
{
    enum hapax_error error;

    *op = (struct hapax_op){.kind = HAPAX_OP_READ};
    hapax__bind_check(&op->id, &op->fingerprint, (struct hapax_span){NULL, 0});
    error = hapax_store_run(store, op, 1);
    return error == HAPAX_ERR_NONE ? CLI_DONE : failed(c, store, error);
}

/* Gives the other store the check value before all else: a door that is started too soon then
 * cannot tie it to another secret. */
static enum cli_exit put_secret(struct copying *c, const struct hapax_op *from,
                                const struct hapax_op *to)
{
    if (c->args->dry_run || to->verdict == HAPAX_FOUND || from->verdict != HAPAX_FOUND ||
        from->record.state != HAPAX_STATE_COMPLETED)
        return CLI_DONE;
    moving_add(&c->moving, &from->record);
    return moving_put(&c->moving, &c->progress);
}

/* Refuses stores of two secrets, in which the same key is two operations. */
static enum cli_exit compare(struct copying *c)
{
    struct hapax_op from, to;
    enum cli_exit exit = read_secret(c, c->from, &from);
    char differ[PRINT_AGE_MAX];
    int64_t ahead_us;

    if (exit == CLI_DONE)
        exit = read_secret(c, c->moving.to, &to);
    if (exit != CLI_DONE)
        return exit;
    if (from.verdict == HAPAX_FOUND && to.verdict == HAPAX_FOUND &&
        memcmp(&from.record.fingerprint, &to.record.fingerprint, sizeof(from.fingerprint)) != 0)
        return cli_fail(&c->args->args, CLI_USAGE, HAPAX_ERR_REFUSED,
                        "the two stores were first used with different secrets, or one of them "
                        "with none: no key of one would be found in the other");
    c->live.since_us = from.now_us + LIVE_US;
    ahead_us = to.now_us - from.now_us;
    print_age(differ, ahead_us < 0 ? -ahead_us : ahead_us);
    if (ahead_us > AGREE_US || ahead_us < -AGREE_US)
        (void)fprintf(stderr,
                      "hapax copy: the clock of --to is %s %s: what is copied expires so much "
                      "%s\n",
                      differ, ahead_us > 0 ? "ahead" : "behind", ahead_us > 0 ? "sooner" : "later");
    return put_secret(c, &from, &to);
}

/* ---- what runs --------------------------------------------------------------------------- */

static bool is_live(const struct hapax_record *record, int64_t now_us)
{
    return record->state == HAPAX_STATE_STARTED && record->lease_until_us > now_us;
}

static enum cli_exit count_live(struct copying *c, int64_t *live)
{
    struct hapax_op op = {.kind = HAPAX_OP_LIST, .states = 1u << HAPAX_STATE_STARTED};

    *live = 0;
    do {
        enum hapax_error error = hapax_store_run(c->from, &op, 1);

        if (error != HAPAX_ERR_NONE)
            return failed(c, c->from, error);
        for (uint32_t i = 0; i < op.count; i++)
            *live += is_live(&op.records[i], op.now_us);
        op.cursor = op.next_cursor;
    } while (op.more);
    return CLI_DONE;
}

/* A signal ends it, between two pages. */
static enum cli_exit go_on(struct copying *c, int64_t wait_ms)
{
    if (cli_signals_wait(c->signals, wait_ms) == 0)
        return CLI_DONE;
    progress_end(&c->progress);
    return cli_fail(&c->args->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE, "ended by a signal");
}

/* Waits for the last operations of doors that were stopped. */
static enum cli_exit wait_for_live(struct copying *c)
{
    int64_t end_us = hapax__monotonic_us() + c->args->wait_ms * US_PER_MS, live = 1;
    enum cli_exit exit = CLI_DONE;

    while (exit == CLI_DONE && live > 0 && hapax__monotonic_us() < end_us) {
        exit = count_live(c, &live);
        if (exit == CLI_DONE && live > 0)
            exit = go_on(c, LOOK_MS);
        progress_tell(&c->progress, 0, (uint64_t)live, "still run");
    }
    return exit;
}

/* ---- a page ------------------------------------------------------------------------------ */

/* Takes what is to be read: an answer of LIST has no outcomes, and goes with the next call. What a
 * store has for itself is not copied: the secret's check value is there already, and an epoch is of
 * one PostgreSQL. */
static void take_page(struct copying *c)
{
    c->n = 0;
    for (uint32_t i = 0; i < c->list.count; i++) {
        const struct hapax_record *record = &c->list.records[i];

        if (cli_is_own(record) && !cli_is_step_list(record))
            continue;
        if (c->args->live && copy_live_skips(&c->live, record))
            continue;
        if (is_live(record, c->list.now_us) && (!c->args->live || c->args->dry_run)) {
            c->moving.live++;
        } else if (c->args->dry_run) {
            c->moving.put[record->state] += !cli_is_own(record);
        } else {
            c->reads[c->n++] = (struct hapax_op){.kind = HAPAX_OP_READ,
                                                 .id = record->id,
                                                 .fingerprint = record->fingerprint,
                                                 .caller = record->caller};
        }
    }
}

/* Puts what a chunk of READs has found. What is absent has expired since it was listed. */
static enum cli_exit put_chunk(struct copying *c, struct hapax_op *reads, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++) {
        const struct hapax_record *record = &reads[i].record;

        if (c->args->live)
            ; /* all of them are compared */
        else if (reads[i].error != HAPAX_ERR_NONE)
            moving_left(&c->moving, &reads[i].id, "cannot be read", &c->progress);
        else if (reads[i].verdict == HAPAX_FOUND && is_live(record, reads[i].now_us))
            c->moving.live++;
        else if (reads[i].verdict == HAPAX_FOUND)
            moving_add(&c->moving, record);
        bytes += record->outcome.headers.len + record->outcome.body.len;
    }
    if (bytes > CHUNK_MANY)
        c->chunk = (c->chunk + 1) / 2;
    else
        c->chunk = c->chunk < CHUNK_MAX / 2 ? c->chunk * 2 : CHUNK_MAX;
    return c->args->live ? copy_live_chunk(&c->live, reads, n)
                         : moving_put(&c->moving, &c->progress);
}

/* Reads a chunk. Returns an error of the store, where there is one: others are of one record. */
static enum hapax_error read_chunk(struct copying *c, struct hapax_op *reads, size_t n)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    (void)hapax_store_run(c->from, reads, n);
    for (size_t i = 0; i < n; i++)
        if (reads[i].error != HAPAX_ERR_CORRUPT && reads[i].error != HAPAX_ERR_UNSUPPORTED &&
            reads[i].error != HAPAX_ERR_NONE)
            error = reads[i].error;
    return error;
}

/* A chunk that fails is read anew one by one: its outcomes may be too much for one answer, in size
 * or in time. */
static enum cli_exit copy_page(struct copying *c)
{
    enum cli_exit exit = CLI_DONE;

    for (size_t at = 0, n; at < c->n && exit == CLI_DONE;) {
        enum hapax_error error;

        n = c->n - at < c->chunk ? c->n - at : c->chunk;
        error = read_chunk(c, &c->reads[at], n);
        if (error == HAPAX_ERR_NONE) {
            exit = put_chunk(c, &c->reads[at], n);
            at += n;
        } else if (n > 1) {
            c->chunk = 1;
        } else {
            exit = failed(c, c->from, error);
        }
    }
    return exit;
}

static enum cli_exit walk(struct copying *c)
{
    enum cli_exit exit;

    do {
        enum hapax_error error = hapax_store_run(c->from, &c->list, 1);

        if (error != HAPAX_ERR_NONE)
            return failed(c, c->from, error);
        if (c->list.damaged)
            progress_end(&c->progress);
        report_damage(&c->damage, "copy", &c->list);
        c->list.cursor = c->list.next_cursor;
        take_page(c);
        exit = copy_page(c);
        if (exit == CLI_DONE)
            exit = go_on(c, 0);
        if (c->list.more)
            progress_tell(&c->progress, progress_share(c->from, &c->list.cursor),
                          (uint64_t)moving_sum(&c->moving), "copied");
    } while (exit == CLI_DONE && c->list.more);
    return exit;
}

/* ---- the command ------------------------------------------------------------------------- */

static enum cli_exit copy(struct copying *c)
{
    enum cli_exit exit = compare(c);

    c->live = (struct copy_live){
        c->from,    &c->moving,       &c->progress,
        c->signals, c->live.since_us, hapax__monotonic_us() + c->args->wait_ms * US_PER_MS};
    if (exit == CLI_DONE && c->args->wait_ms > 0 && !c->args->live)
        exit = wait_for_live(c);
    if (exit != CLI_DONE)
        return exit;
    exit = walk(c);
    progress_end(&c->progress);
    if (exit != CLI_DONE)
        (void)fputs("hapax copy: it is not done; the same command goes on\n", stderr);
    moving_report(&c->moving, c->args->dry_run ? "would copy" : "copied");
    if (exit == CLI_DONE && c->damage.places > 0)
        exit = cli_fail(&c->args->args, CLI_UNREACHED, HAPAX_ERR_CORRUPT,
                        "%u damaged places were passed over (\"hapax check\" says more)",
                        c->damage.places);
    return exit == CLI_DONE && c->moving.live + c->moving.otherwise + c->moving.left > 0 ? CLI_NO
                                                                                         : exit;
}

static enum cli_exit run(struct cli_args *args)
{
    struct copying *c = calloc(1, sizeof(*c));
    enum cli_exit exit;

    if (!c)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "out of memory");
    c->args = (const struct copy_args *)args;
    c->moving.args = args;
    c->chunk = CHUNK_FIRST;
    c->list = (struct hapax_op){.kind = HAPAX_OP_LIST, .limit = PAGE_MAX};
    progress_begin(&c->progress, args);
    c->signals = cli_signals_begin();
    exit = c->signals < 0 ? cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left")
                          : open_both(c, args);
    if (exit == CLI_DONE)
        exit = copy(c);
    hapax_store_close(c->from);
    hapax_store_close(c->moving.to);
    if (c->signals >= 0)
        close(c->signals);
    free(c);
    return exit;
}

const struct cli_command cli_copy = {
    .name = "copy",
    .summary = "copy what a store has into another store",
    .synopsis = {"--from URI --to URI [--live] [--wait TIME] [--dry-run]"},
    .prose =
        "Puts every record of one store into another, of whatever kind, as it is: state, outcome, "
        "request, owner, attempts, fence, hold, what an operator decided, and the end of its "
        "retention; the steps of operations too, and the check value of the secret. Sealed "
        "outcomes stay sealed. The first store is not changed. See docs/moving.md.\n\n"
        "Stop the doors, copy, and start the doors with the other store. What runs at this moment "
        "is left, and counted: --wait waits for it. A record that is in the other store already "
        "is replaced only by its own later state, and never where it is completed. So the command "
        "may be given as often as one likes: first while the doors run, which copies most of it, "
        "and again when they are stopped; and after a kill it goes on.\n\n"
        "With --live the doors go on: all of them have move:OLD+NEW, and none has the old store "
        "alone any more. Then the command waits up to a second, or for --wait, for what began "
        "before they had it, and exit status 0 says that the doors may be given the new store "
        "alone.\n\n"
        "Exit status 1 says that something was left: it runs, or the other store has it "
        "otherwise. 0 says that the other store has all of it.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .no_store = true,
    .examples = {{"hapax copy --from redis://cache/0 --to postgres://shop@db/shop --dry-run",
                  "How many there are."},
                 {"hapax copy --from redis://cache/0 --to postgres://shop@db/shop --wait 1m",
                  "All that has ended is in PostgreSQL as well."},
                 {"hapax copy --live --from redis://cache/0 --to postgres://shop@db/shop --wait 1m",
                  "The doors have move:redis://cache/0+postgres://shop@db/shop."}},
    .args_size = sizeof(struct copy_args),
    .run = run,
};
