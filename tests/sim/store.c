/* SPDX-License-Identifier: Apache-2.0
 *
 * The store: records in an array, judged by the machine, durable through restarts. Its clock is its
 * own. The clock drifts, and after a restart it may be ahead of where it was, but never behind.
 */
#include "sim.h"

#include <assert.h>
#include <string.h>

#define EPOCH_US INT64_C(1700000000000000)

int64_t store_now_us(const struct sim *s)
{
    return EPOCH_US + s->now_us + s->now_us * s->store.drift / 1024 + s->store.jump_us;
}

static bool too_big(const struct sim *s, struct hapax_op *op)
{
    if ((op->kind != HAPAX_OP_COMPLETE && op->kind != HAPAX_OP_FAIL) ||
        op->outcome.body.len <= s->store.body_max)
        return false;
    op->verdict = HAPAX_NO_VERDICT;
    op->error = HAPAX_ERR_TOO_BIG;
    return true;
}

void store_judge(struct sim *s, struct hapax_op *op, int call, uint32_t ask)
{
    int id = op->id.bytes[31] - 1;
    struct hapax_record *record = &s->store.records[id];
    struct hapax_record next;
    enum hapax__write write;

    s->ops++;
    if (too_big(s, op)) {
        sim_mark(s, MARK_store_too_big);
        return;
    }
    write = hapax__machine(s->store.present[id] ? record : NULL, op, store_now_us(s), &next);
    if (write == HAPAX__WRITE)
        *record = next;
    s->store.present[id] = write == HAPAX__WRITE || (s->store.present[id] && write == HAPAX__KEEP);
    sim_mix(s, (uint64_t)op->kind << 8 | (uint64_t)op->verdict);
    TRACE(s, "        store: op%d %s c%d: %s, id %d attempt %u fence %llu %s%s%s", (int)op->kind,
          op->token.bytes[14] == 0xff ? "operator's" : "of", op->token.bytes[15] - 1,
          hapax_verdict_name(op->verdict), id, op->record.attempt,
          (unsigned long long)op->record.fence,
          s->store.present[id] ? hapax_state_name(record->state) : "absent",
          s->store.present[id] && record->hold ? " hold" : "",
          s->store.present[id] && record->stale ? " stale" : "");
    check_judged(s, op, call, ask);
}

void store_purge(struct sim *s)
{
    int64_t now_us = store_now_us(s);

    for (int id = 0; id < s->ids_count; id++) {
        struct hapax_record *record = &s->store.records[id];
        enum hapax__write write;

        if (!s->store.present[id])
            continue;
        if (shadow_live(s, &s->shadows[id]))
            sim_mark(s, MARK_purge_met_live_claim);
        write = hapax__swept(record, now_us, record);
        if (write == HAPAX__DELETE) {
            s->store.present[id] = false;
            sim_mark(s, MARK_purged);
            TRACE(s, "        store: purged id %d", id);
            check_purged(s, id);
        } else if (write == HAPAX__WRITE && record->state == HAPAX_STATE_COMPLETED) {
            sim_mark(s, MARK_tombstone_buried);
            TRACE(s, "        store: buried id %d", id);
            check_buried(s, id);
        } else if (write == HAPAX__WRITE) {
            sim_mark(s, MARK_swept_to_unknown);
            TRACE(s, "        store: swept id %d to unknown", id);
            check_swept(s, id);
        }
    }
}
