/* SPDX-License-Identifier: Apache-2.0
 *
 * The DynamoDB store: runs the ops of a batch side by side (op.c), as many at once as there are
 * connections. A slow op delays only the op that waits for its connection.
 *
 * The machine judges here, by this host's clock, and DynamoDB only says whether anything has
 * changed meanwhile; so verdicts are the machine's by construction. Rejected: TransactWriteItems,
 * which is all or nothing at twice the price. Rejected: PartiQL's batches, which show no item with
 * a failed INSERT.
 */
#include "dynamodb.h"

#include "aws/fetch.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "store/types.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The bytes of a batch's answers, after which no more ops begin. Ops under way may pass it. */
#define ANSWER_MAX (256u << 20)

/* ---- run ------------------------------------------------------------------------------- */

struct run {
    struct hapax__ddb *ddb;
    struct hapax_op *ops;
    size_t n;
    size_t next; /* the first op that has not begun */
    size_t active;
    int64_t deadline_us;
};

static bool too_big(struct hapax__ddb *ddb, struct hapax_op *op)
{
    bool carries = op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL ||
                   op->kind == HAPAX_OP_RESOLVE || op->kind == HAPAX_OP_IMPORT;

    if (!carries || op->outcome.body.len <= ddb->uri.body_max)
        return false;
    op->error = hapax_store_fail(&ddb->base, HAPAX_ERR_TOO_BIG, "a body of %zu bytes is over %zu",
                                 op->outcome.body.len, ddb->uri.body_max);
    return true;
}

static void end_if_over(struct run *run, struct hapax__ddb_op *work)
{
    if (!hapax__ddb_op_over(work))
        return;
    hapax__ddb_op_free(work);
    run->active--;
}

static void begin_op(struct run *run, struct hapax_op *op)
{
    struct hapax__ddb *ddb = run->ddb;
    struct hapax__ddb_op *work;

    if (too_big(ddb, op))
        return;
    if (ddb->kept >= ANSWER_MAX) {
        op->error = hapax_store_fail(&ddb->base, HAPAX_ERR_UNAVAILABLE,
                                     "over 256 MiB of answers in one batch");
        return;
    }
    work = hapax__ddb_op_new(ddb, op, run->deadline_us);
    if (!work) {
        op->error = hapax_store_fail(&ddb->base, HAPAX_ERR_NOMEM, "out of memory for an operation");
        return;
    }
    run->active++;
    end_if_over(run, work);
}

static void wait_for_calls(struct hapax__aws *aws)
{
    struct pollfd fd = {.fd = hapax__aws_fd(aws), .events = POLLIN};
    int64_t due_us = hapax__aws_due(aws), wait_us = due_us - hapax__monotonic_us();
    struct timespec ts = hapax__timespec(wait_us);

    if (wait_us > 0) /* EINTR: the caller looks again */
        (void)ppoll(&fd, 1, due_us == INT64_MAX ? NULL : &ts, NULL);
    hapax__aws_pump(aws);
}

static void run_ops(struct run *run)
{
    struct hapax__aws *aws = run->ddb->aws;
    struct hapax__aws_call *call;

    while (run->next < run->n || run->active > 0) {
        while (run->next < run->n && run->active < run->ddb->uri.connections)
            begin_op(run, &run->ops[run->next++]);
        call = hapax__aws_reap(aws);
        if (call)
            end_if_over(run, hapax__ddb_op_take(call));
        else if (run->active > 0)
            wait_for_calls(aws);
    }
}

static enum hapax_error ddb_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct hapax__ddb *ddb = (struct hapax__ddb *)store;
    int64_t deadline_us = hapax__monotonic_us() + ddb->uri.timeout_ms * US_PER_MS;
    struct run run = {.ddb = ddb, .ops = ops, .n = n, .deadline_us = deadline_us};
    struct hapax__aws_quiet quiet;

    if (ops[0].kind == HAPAX_OP_LIST)
        return hapax__ddb_list(ddb, &ops[0], deadline_us);
    /* The table's TTL forgets, and LIST finds dead claims under hold. */
    if (ops[0].kind == HAPAX_OP_PURGE) {
        ops[0].verdict = HAPAX_OK;
        ops[0].error = HAPAX_ERR_NONE;
        ops[0].now_us = hapax__wall_us();
        return HAPAX_ERR_NONE;
    }
    ddb->kept = 0;
    hapax__aws_quiet_begin(&quiet); /* once for all its calls */
    run_ops(&run);
    hapax__aws_quiet_end(&quiet);
    for (size_t i = 0; i < n; i++)
        if (ops[i].error != HAPAX_ERR_NONE)
            return ops[i].error;
    return HAPAX_ERR_NONE;
}

/* ---- open, close ----------------------------------------------------------------------- */

static void ddb_close(struct hapax_store *store)
{
    struct hapax__ddb *ddb = (struct hapax__ddb *)store;

    hapax__aws_close(ddb->aws);
    hapax__ddb_recent_free(ddb->recent);
    free(ddb);
}

static enum hapax_error ddb_open(struct hapax_store **out, const char *uri,
                                 char text[HAPAX_TEXT_MAX])
{
    struct hapax__ddb *ddb = calloc(1, sizeof(*ddb));
    enum hapax_error error;

    *out = NULL;
    if (!ddb)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    error = hapax__ddb_uri(&ddb->uri, uri, text);
    if (error == HAPAX_ERR_NONE) {
        ddb->recent = hapax__ddb_recent_new();
        if (!ddb->recent)
            error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    }
    if (error == HAPAX_ERR_NONE)
        error = hapax__ddb_client(&ddb->aws, &ddb->uri, text);
    if (error != HAPAX_ERR_NONE) {
        hapax__ddb_recent_free(ddb->recent);
        free(ddb);
        return error;
    }
    *out = &ddb->base;
    return HAPAX_ERR_NONE;
}

const struct hapax_store_type hapax__dynamodb = {
    .scheme = "dynamodb",
    .batch_max = HAPAX__DDB_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .forgets = true,
    .remains = "backups, and point-in-time recovery, which goes back 35 days",
    .open = ddb_open,
    .run = ddb_run,
    .init = hapax__ddb_init,
    .rights = hapax__ddb_rights,
    .check = hapax__ddb_check,
    .close = ddb_close,
    .measure = hapax__ddb_measure,
};
