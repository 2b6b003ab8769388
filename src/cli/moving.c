/* SPDX-License-Identifier: Apache-2.0
 *
 * IMPORT may be repeated, so the batch of a call whose result is not known is put once more by
 * whoever gives the command again; nothing is kept of it here.
 */
#include "moving.h"

#include "core/record.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define TOLD_MAX 10 /* records that are named; more are counted */

void moving_add(struct moving *moving, const struct hapax_record *record)
{
    struct hapax_op *op = &moving->ops[moving->n];
    struct hapax_record bare = *record;

    assert(moving->n < MOVING_BATCH);
    bare.outcome = (struct hapax_outcome){0};
    /* What is copied is dead by the clock of its store, and so it is by the other's. */
    bare.lease_until_us = 0;
    *op = (struct hapax_op){.kind = HAPAX_OP_IMPORT,
                            .id = record->id,
                            .fingerprint = record->fingerprint,
                            .caller = record->caller,
                            .attempt = record->attempt,
                            .fence = record->fence,
                            .outcome = record->outcome,
                            .import = {moving->bare[moving->n], hapax__record_size(&bare)}};
    assert(op->import.len <= MOVING_BARE);
    hapax__record_encode(moving->bare[moving->n], &bare);
    moving->states[moving->n] = record->state;
    moving->own[moving->n++] = cli_is_own(record);
}

void moving_left(struct moving *moving, const struct hapax_id *id, const char *why,
                 struct progress *progress)
{
    char hex[PRINT_HEX_MAX];

    if (moving->left + moving->otherwise < TOLD_MAX) {
        progress_end(progress);
        print_hex(hex, id->bytes);
        (void)fprintf(stderr, "hapax %s: left %s: %s\n", moving->args->command->name, hex, why);
    }
    moving->left++;
}

static void take(struct moving *moving, size_t i, struct progress *progress)
{
    const struct hapax_op *op = &moving->ops[i];

    if (op->verdict == HAPAX_OK) {
        moving->put[moving->states[i]] += !moving->own[i];
        return;
    }
    moving_left(moving, &op->id,
                op->verdict == HAPAX_FOUND       ? "the other store has it otherwise, or further on"
                : op->error == HAPAX_ERR_TOO_BIG ? "its outcome is over what the store takes"
                : op->error == HAPAX_ERR_INVALID ? "no store can have written such a record"
                                                 : "there it cannot be read",
                progress);
    if (op->verdict == HAPAX_FOUND) {
        moving->left--;
        moving->otherwise++;
    }
}

/* Others are the store's. */
static bool of_one_record(enum hapax_error error)
{
    return error == HAPAX_ERR_NONE || error == HAPAX_ERR_TOO_BIG || error == HAPAX_ERR_CORRUPT ||
           error == HAPAX_ERR_INVALID;
}

enum cli_exit moving_put(struct moving *moving, struct progress *progress)
{
    size_t n = moving->n;

    moving->n = 0;
    if (n == 0)
        return CLI_DONE;
    (void)hapax_store_run(moving->to, moving->ops, n);
    for (size_t i = 0; i < n; i++) {
        /* Together they may be too much, in size or in time. */
        if (n > 1 && !of_one_record(moving->ops[i].error))
            (void)hapax_store_run(moving->to, &moving->ops[i], 1);
        if (!of_one_record(moving->ops[i].error)) {
            progress_end(progress);
            return cli_store_failed(moving->args, moving->ops[i].error,
                                    hapax_store_text(moving->to));
        }
        take(moving, i, progress);
    }
    return CLI_DONE;
}

int64_t moving_sum(const struct moving *moving)
{
    int64_t n = 0;

    for (int state = HAPAX_STATE_STARTED; state <= HAPAX_STATE_UNKNOWN; state++)
        n += moving->put[state];
    return n;
}

static void put_json(const struct moving *moving, const char *done)
{
    struct json json;
    char name[32];

    (void)snprintf(name, sizeof(name), "%s", done);
    for (char *c = name; *c; c++)
        if (*c == ' ')
            *c = '_';
    json_begin(&json);
    json_number(&json, name, moving_sum(moving));
    for (int state = HAPAX_STATE_STARTED; state <= HAPAX_STATE_UNKNOWN; state++)
        json_number(&json, hapax_state_name((enum hapax_state)state), moving->put[state]);
    json_number(&json, "left_running", moving->live);
    json_number(&json, "left_otherwise", moving->otherwise);
    json_number(&json, "left_unreadable", moving->left);
    json_number(&json, "left_expired", moving->expired);
    json_end(&json);
}

void moving_report(const struct moving *moving, const char *done)
{
    int64_t n = moving_sum(moving);
    const char *by = " (";

    if (moving->args->json) {
        put_json(moving, done);
        return;
    }
    printf("%s %" PRId64 " operation%s", done, n, n == 1 ? "" : "s");
    for (int state = HAPAX_STATE_STARTED; state <= HAPAX_STATE_UNKNOWN; state++) {
        if (moving->put[state] == 0)
            continue;
        printf("%s%" PRId64 " %s", by, moving->put[state],
               hapax_state_name((enum hapax_state)state));
        by = ", ";
    }
    puts(n > 0 ? ")" : "");
    if (moving->live > 0)
        printf("left %" PRId64 " that run: stop the doors, and copy again with --wait\n",
               moving->live);
    if (moving->otherwise > 0)
        printf("left %" PRId64 " that the other store has otherwise, or further on\n",
               moving->otherwise);
    if (moving->left > 0)
        printf("left %" PRId64 " that could not be put\n", moving->left);
    if (moving->expired > 0)
        printf("left %" PRId64 " that had expired\n", moving->expired);
}
