/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax rotate: the secret of a store is changed while doors are at work. Doors do the work; the
 * operator says when no door has the old secret alone any more, and looks what is left of that
 * time. store/rotation/rotation.h says why this is enough.
 *
 * A record shows neither by which secret it was named, nor whether the other half knows it. So all
 * records count that were created before the last door with the old secret alone was gone; and all
 * outcomes that an operator gave, which come over with a request alone.
 */
#include "rotate.h"

#include "print.h"
#include "store/move/move.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct rotate_args {
    struct cli_args args;
    bool both, end, back;
};

static const struct cli_option options[] = {
    {"both", NULL, CLI_FLAG, offsetof(struct rotate_args, both), 0, 0,
     "Every program has both secrets: none may have the old one alone any more"},
    {"end", NULL, CLI_FLAG, offsetof(struct rotate_args, end), 0, 0,
     "Where nothing older is left: programs may have the new secret alone"},
    {"back", NULL, CLI_FLAG, offsetof(struct rotate_args, back), 0, 0,
     "Before --both: every program has the old secret alone again"},
};

/* What may be in the old half alone. */
struct left {
    int64_t n;
    int64_t last_us; /* when the last of them expires */
    int64_t waiting; /* of those: they do not expire, but wait for an operator or an attempt */
};

struct state {
    enum hapax__rotation at;
    int64_t since_us, now_us;
    struct left left; /* counted at BOTH */
};

/* ---- what is left ------------------------------------------------------------------------ */

static void count(struct state *state, const struct hapax_op *list)
{
    struct left *left = &state->left;

    for (uint32_t i = 0; i < list->count; i++) {
        const struct hapax_record *record = &list->records[i];

        if ((cli_is_own(record) && !cli_is_step_list(record)) ||
            !hapax__pair_left(record, state->since_us, list->now_us))
            continue;
        left->n++;
        left->waiting += record->expires_us == 0;
        if (record->expires_us > left->last_us)
            left->last_us = record->expires_us;
    }
    state->now_us = list->now_us;
}

static enum hapax_error walk(struct state *state, struct hapax_store *store,
                             struct progress *progress)
{
    struct hapax_op list = {.kind = HAPAX_OP_LIST, .states = HAPAX_STATES_ALL};
    enum hapax_error error;

    do {
        progress_tell(progress, progress_share(store, &list.cursor), (uint64_t)state->left.n,
                      "left");
        error = hapax_store_run(store, &list, 1);
        if (error == HAPAX_ERR_NONE && list.damaged)
            error = hapax_store_fail(store, HAPAX_ERR_CORRUPT,
                                     "a damaged place of the store cannot be read (\"hapax "
                                     "check\" says more)");
        if (error == HAPAX_ERR_NONE)
            count(state, &list);
        list.cursor = list.next_cursor;
    } while (error == HAPAX_ERR_NONE && list.more);
    progress_end(progress);
    return error;
}

static enum hapax_error look(struct state *state, struct hapax_store *store,
                             const struct hapax__secrets *secrets, struct progress *progress)
{
    enum hapax_error error;

    memset(state, 0, sizeof(*state));
    error = hapax__rotation_read(store, secrets, &state->at, &state->since_us);
    if (error != HAPAX_ERR_NONE || state->at != HAPAX__ROTATION_BOTH)
        return error;
    return walk(state, store, progress);
}

/* ---- what is said ------------------------------------------------------------------------ */

static void say(char line[HAPAX_TEXT_MAX], const struct state *state)
{
    const struct left *left = &state->left;
    char age[PRINT_AGE_MAX], waiting[128] = "";

    if (state->at == HAPAX__ROTATION_BEGUN) {
        (void)snprintf(line, HAPAX_TEXT_MAX,
                       "the secret is being changed: programs with the old one alone may be "
                       "there. When every program has both: hapax rotate --both");
        return;
    }
    if (state->at == HAPAX__ROTATION_ENDED) {
        (void)snprintf(line, HAPAX_TEXT_MAX,
                       "the secret was changed: take HAPAX_SECRET_OLD_FILE away from every "
                       "program");
        return;
    }
    if (left->n == 0) {
        (void)snprintf(line, HAPAX_TEXT_MAX,
                       "the secret is being changed: nothing is left of the old one: hapax rotate "
                       "--end");
        return;
    }
    if (left->waiting > 0)
        (void)snprintf(waiting, sizeof(waiting), "; %" PRId64 " of them do not expire (hapax list)",
                       left->waiting);
    print_age(age, left->last_us > state->now_us ? left->last_us - state->now_us : 0);
    (void)snprintf(line, HAPAX_TEXT_MAX,
                   "the secret is being changed: %" PRId64 " operation%s may be known under the "
                   "old one alone, the last of which expires in %s%s. Until then every program "
                   "needs both",
                   left->n, left->n == 1 ? "" : "s", age, waiting);
}

enum cli_exit rotate_say(const struct cli_args *args, struct hapax_store *store,
                         struct progress *progress, rotate_tell *tell, void *arg)
{
    struct cli_secrets secrets;
    struct hapax__secrets both;
    char line[HAPAX_TEXT_MAX];
    struct state state;
    enum hapax_error error;
    enum cli_exit exit;

    if (!cli_rotates())
        return CLI_DONE;
    exit = cli_secrets_read(&secrets, args);
    both = cli_secrets_of(&secrets);
    if (exit == CLI_DONE) {
        error = look(&state, store, &both, progress);
        if (error == HAPAX_ERR_NONE)
            say(line, &state);
        else
            (void)snprintf(line, sizeof(line),
                           "how far the change of the secret is was not seen: %.200s",
                           hapax_store_text(store));
        tell(arg, error == HAPAX_ERR_NONE, line);
    }
    explicit_bzero(&secrets, sizeof(secrets));
    return exit;
}

static void report(const struct cli_args *args, const struct state *state)
{
    char line[HAPAX_TEXT_MAX];
    struct json json;

    say(line, state);
    if (!args->json) {
        puts(line);
        return;
    }
    json_begin(&json);
    json_text(&json, "at", hapax__rotation_name(state->at));
    json_number(&json, "since_us", state->since_us);
    json_number(&json, "left", state->left.n);
    json_number(&json, "left_waiting", state->left.waiting);
    json_number(&json, "left_until_us", state->left.last_us);
    json_text(&json, "text", line);
    json_end(&json);
}

/* ---- the command ------------------------------------------------------------------------- */

/* Begins where nothing has begun, and goes on where that is asked and may be. */
static enum cli_exit rotate(const struct rotate_args *rotating, struct hapax_store *store,
                            const struct hapax__secrets *secrets, struct progress *progress)
{
    const struct cli_args *args = &rotating->args;
    enum hapax__rotation at, to = rotating->end ? HAPAX__ROTATION_ENDED : HAPAX__ROTATION_BOTH;
    struct state state = {0};
    enum hapax_error error;

    if (rotating->back) {
        error = hapax__rotation_back(store, secrets);
        if (error == HAPAX_ERR_NONE && !args->json)
            puts("the change of the secret was given up");
        return error == HAPAX_ERR_NONE ? CLI_DONE
                                       : cli_store_failed(args, error, hapax_store_text(store));
    }
    error = hapax__rotation_bind(store, secrets, &at);
    if (error == HAPAX_ERR_NONE)
        error = look(&state, store, secrets, progress);
    if (error == HAPAX_ERR_NONE && rotating->end && state.left.n > 0) {
        report(args, &state);
        return CLI_NO;
    }
    if (error == HAPAX_ERR_NONE && (rotating->both || rotating->end)) {
        error = hapax__rotation_step(store, secrets, to);
        if (error == HAPAX_ERR_NONE)
            error = look(&state, store, secrets, progress);
    }
    if (error != HAPAX_ERR_NONE)
        return cli_store_failed(args, error, hapax_store_text(store));
    report(args, &state);
    return CLI_DONE;
}

static enum cli_exit run(struct cli_args *args)
{
    const struct rotate_args *rotating = (const struct rotate_args *)args;
    struct hapax_store *store = NULL;
    struct cli_secrets secrets;
    struct hapax__secrets both;
    struct progress progress;
    enum cli_exit exit = cli_secrets_read(&secrets, args);

    both = cli_secrets_of(&secrets);
    progress_begin(&progress, args);
    if (exit == CLI_DONE && rotating->both + rotating->end + rotating->back > 1)
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "give one of --both, --end and --back");
    if (exit == CLI_DONE && !secrets.rotates)
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "name the files with the new secret and with the old one: "
                        "HAPAX_SECRET_FILE, HAPAX_SECRET_OLD_FILE");
    if (exit == CLI_DONE)
        exit = cli_open(&store, args, CLI_EXISTING);
    if (exit == CLI_DONE && store->type->unlisted)
        exit = cli_fail(args, CLI_USAGE, HAPAX_ERR_UNSUPPORTED,
                        "the secret of a move: store cannot be changed: end the move before");
    if (exit == CLI_DONE)
        exit = rotate(rotating, store, &both, &progress);
    cli_close(args, store);
    explicit_bzero(&secrets, sizeof(secrets));
    return exit;
}

const struct cli_command cli_rotate = {
    .name = "rotate",
    .summary = "change the secret of a store without a stop",
    .synopsis = {"", "--both", "--end", "--back"},
    .prose =
        "HAPAX_SECRET_FILE names the new secret, and HAPAX_SECRET_OLD_FILE the one before. Without "
        "options the change begins, and a line says how far it is. Then give each program both "
        "files, one after the other.\n\n"
        "When no program has the old secret alone any more, say so with --both: from then on none "
        "can open the store with one secret. What was made before is found under the old secret "
        "until it expires, and the line says how much that is. When nothing is left, --end lets "
        "programs have the new secret alone, and none the old one. Exit status 1 of --end: "
        "something is left, and nothing was changed. docs/rotation.md has all lines to type.\n\n"
        "Before --both the change may be given up: give each program the old secret alone again, "
        "and then say --back. Another new secret may follow.",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .examples = {{"hapax rotate", "Begin, or see how far it is."},
                 {"hapax rotate --both", "Every program was restarted with both files."},
                 {"hapax rotate --end", "The last retention is over."}},
    .args_size = sizeof(struct rotate_args),
    .run = run,
};
