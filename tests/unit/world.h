/* SPDX-License-Identifier: Apache-2.0
 *
 * A store of one record whose time a test sets, and the ops the machine's tests run on it. Every
 * answer is checked for what holds of all: it shows no token, and neither fence nor attempt falls.
 */
#ifndef HAPAX_TESTS_WORLD_H
#define HAPAX_TESTS_WORLD_H

#include "core/machine.h"
#include "record_diff.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define START    INT64_C(1700000000000000)
#define SECOND   INT64_C(1000000)
#define LEASE_MS 30000
#define LEASE_US (LEASE_MS * INT64_C(1000))

/* A store of one record. */
struct world {
    struct hapax_record record;
    bool present;
    int64_t now_us;
};

static inline struct world empty(void)
{
    return (struct world){.now_us = START};
}

static inline struct hapax_op op_of(enum hapax_op_kind kind, uint8_t who)
{
    struct hapax_op op = {.kind = kind, .lease_ms = LEASE_MS, .retention_ms = 86400000};

    memset(&op.id, 0xa1, sizeof(op.id));
    memset(&op.token, who, sizeof(op.token));
    memset(&op.fingerprint, 0xf1, sizeof(op.fingerprint));
    memset(&op.caller, 0xc1, sizeof(op.caller));
    op.scope = hapax_str("default");
    op.on_expired = HAPAX_EXPIRED_RERUN;
    op.outcome.status = 200;
    op.outcome.body_kept = true;
    op.outcome.headers = hapax_str("A: b\r\n");
    op.outcome.body = hapax_str("done");
    return op;
}

/* Runs the op, keeps what it writes, and checks what holds for every answer. */
static inline struct hapax_op run(struct world *world, struct hapax_op op)
{
    static const struct hapax_mark none;
    struct hapax_record next;
    enum hapax__write write =
        hapax__machine(world->present ? &world->record : NULL, &op, world->now_us, &next);

    if (write == HAPAX__WRITE) {
        if (world->present && !hapax__expired(&world->record, world->now_us)) {
            assert_true(next.fence >= world->record.fence);
            assert_true(next.attempt >= world->record.attempt);
        }
        world->record = next;
    }
    world->present = write == HAPAX__WRITE || (world->present && write == HAPAX__KEEP);
    assert_memory_equal(&op.record.mark, &none, sizeof(none));
    assert_int_equal(op.error, HAPAX_ERR_NONE);
    assert_int_not_equal(op.verdict, HAPAX_NO_VERDICT);
    return op;
}

static inline struct hapax_op claim(struct world *world, uint8_t who)
{
    return run(world, op_of(HAPAX_OP_CLAIM, who));
}

static inline struct hapax_op claim_as(struct world *world, uint8_t who,
                                       enum hapax_on_expired on_expired)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, who);

    op.on_expired = on_expired;
    return run(world, op);
}

static inline struct hapax_op claim_at_most(struct world *world, uint8_t who, uint32_t attempts_max)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, who);

    op.attempts_max = attempts_max;
    return run(world, op);
}

static inline struct hapax_op complete(struct world *world, uint8_t who)
{
    return run(world, op_of(HAPAX_OP_COMPLETE, who));
}

static inline struct hapax_op fail_with(struct world *world, uint8_t who, bool ran)
{
    struct hapax_op op = op_of(HAPAX_OP_FAIL, who);

    op.ran = ran;
    op.outcome.status = 500;
    op.outcome.body = hapax_str(NULL);
    return run(world, op);
}

static inline struct hapax_op resolve(struct world *world, uint8_t who, enum hapax_resolve what,
                                      bool force)
{
    struct hapax_op op = op_of(HAPAX_OP_RESOLVE, who);

    op.resolve = what;
    op.force = force;
    op.by = hapax_str("ann");
    op.outcome.status = 202;
    return run(world, op);
}

static inline void let_the_lease_run_out(struct world *world)
{
    world->now_us = world->record.lease_until_us;
}

static inline bool shows_outcome(const struct hapax_op *op)
{
    static const struct hapax_outcome none;

    return outcome_diff(&op->record.outcome, &none) != NULL;
}

static inline struct hapax_op claim_otherwise(struct world *world, uint8_t who, bool caller)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, who);

    if (caller)
        op.caller.bytes[0] ^= 1;
    else
        op.fingerprint.bytes[0] ^= 1;
    return run(world, op);
}

#endif
