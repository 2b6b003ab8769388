/* SPDX-License-Identifier: Apache-2.0
 *
 * What a handle knows of PostgreSQL without asking: its clock, and the epoch. The epoch is the
 * fence of a record under a fixed id. Every forced RESOLVE raises the epoch in its own transaction
 * (sql/110_run.sql), since nothing else changes a completed record before its retention ends. So a
 * record that was read after the epoch was known to be E is true for as long as the epoch is E. A
 * RESOLVE that waits until nobody can believe in an old epoch is the last word.
 *
 * The invariant: knowledge is dated before its question was sent. The clock is kept as two bounds:
 * ends (of a lease, of a retention) are judged by the higher; times are shown by the lower, which
 * never runs ahead of PostgreSQL.
 * Rejected: raising the epoch by an op of its own in the RESOLVE's batch. An op on a record that
 * another transaction is writing is put off by itself, so two RESOLVEs at a time would be parted
 * from their epochs.
 */
#include "base/clock.h"
#include "hybrid.h"
#include "store/types.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

#define MAKE_LEASE_MS 10000
#define DRIFT_PART    500 /* a five-hundredth: more than any clock is slewed by */

/* The most, or the least, that has passed on a clock that is slewed against ours. */
static int64_t drifted(int64_t passed_us, bool more)
{
    int64_t drift_us = passed_us / DRIFT_PART;

    assert(passed_us >= 0);
    return more ? passed_us + drift_us : passed_us - drift_us;
}

int64_t hapax__known_low(const struct hapax__known *known, int64_t boot_us)
{
    assert(known->clock);
    return known->low_us + drifted(boot_us - known->low_boot_us, false);
}

int64_t hapax__known_high(const struct hapax__known *known, int64_t boot_us)
{
    assert(known->clock);
    return known->high_us + drifted(boot_us - known->high_boot_us, true);
}

bool hapax__known_fresh(const struct hapax__known *known, int64_t boot_us)
{
    return known->epoch > 0 && boot_us - known->epoch_us < HAPAX__HYBRID_FRESH_US;
}

static struct hapax_op epoch_op(enum hapax_op_kind kind)
{
    struct hapax_op op = {.kind = kind, .scope = hapax_str("hapax")};

    hapax__epoch_id(&op.id);
    op.lease_ms = MAKE_LEASE_MS;
    op.retention_ms = HAPAX_FOREVER_MS;
    op.on_expired = HAPAX_EXPIRED_RERUN;
    return op;
}

struct hapax_op hapax__epoch_read(void)
{
    return epoch_op(HAPAX_OP_READ);
}

void hapax__known_clock(struct hapax__known *known, const struct hapax_op *ops, size_t n,
                        int64_t sent_us, int64_t got_us)
{
    int64_t first_us = INT64_MAX, last_us = 0;

    assert(sent_us <= got_us);
    for (size_t i = 0; i < n; i++) {
        if (ops[i].now_us <= 0)
            continue;
        first_us = ops[i].now_us < first_us ? ops[i].now_us : first_us;
        last_us = ops[i].now_us > last_us ? ops[i].now_us : last_us;
    }
    if (last_us == 0)
        return;
    known->clock = true;
    known->low_us = last_us;
    known->low_boot_us = got_us;
    known->high_us = first_us;
    known->high_boot_us = sent_us;
}

void hapax__known_epoch(struct hapax__known *known, const struct hapax_op *read, int64_t sent_us)
{
    if (read->verdict == HAPAX_NO_VERDICT)
        return;
    known->epoch = 0;
    known->asked_us = known->epoch_us = sent_us;
    if (read->verdict == HAPAX_FOUND && read->record.state == HAPAX_STATE_COMPLETED)
        known->epoch = read->record.fence;
}

/* Makes the epoch's record. Where another process makes it meanwhile, it appears soon after. */
static enum hapax_error make_epoch(struct hapax_store *postgres)
{
    struct hapax_op op = epoch_op(HAPAX_OP_CLAIM);
    struct hapax_token token;
    enum hapax_error error;

    if (getrandom(token.bytes, sizeof(token.bytes), 0) != sizeof(token.bytes))
        return hapax_store_fail(postgres, HAPAX_ERR_UNAVAILABLE, "cannot get random bytes");
    op.token = token;
    error = hapax_store_run(postgres, &op, 1);
    if (error != HAPAX_ERR_NONE || op.verdict != HAPAX_CLAIMED)
        return error;
    op = epoch_op(HAPAX_OP_COMPLETE);
    op.token = token;
    return hapax_store_run(postgres, &op, 1);
}

enum hapax_error hapax__known_ask(struct hapax__known *known, struct hapax_store *postgres)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    for (int tries = 0; tries < 2 && error == HAPAX_ERR_NONE; tries++) {
        struct hapax_op op = hapax__epoch_read();
        int64_t sent_us = hapax__boot_us();

        known->asked_us = sent_us;
        error = hapax_store_run(postgres, &op, 1);
        if (error != HAPAX_ERR_NONE)
            break;
        hapax__known_clock(known, &op, 1, sent_us, hapax__boot_us());
        hapax__known_epoch(known, &op, sent_us);
        if (known->epoch > 0 || tries > 0)
            break;
        error = make_epoch(postgres);
    }
    return error;
}
