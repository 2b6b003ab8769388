/* SPDX-License-Identifier: Apache-2.0 */
#include "effects.h"

#include "store.h"
#include "threads.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

struct effects effects;

void effects_draw(const struct hapax_policy *policy, int keys, const char *scope)
{
    memset(&effects, 0, sizeof(effects));
    effects.policy = *policy;
    for (int i = 0; i < keys; i++)
        (void)effects_add(scope, i, NULL);
}

int effects_add(const char *scope, int n, const char *step)
{
    struct key *key = &effects.keys[effects.keys_count++];
    char text[16];

    assert(effects.keys_count <= KEYS_MAX);
    snprintf(text, sizeof(text), "op-%d", n);
    (void)hapax_id(&key->id, hapax_str(scope), hapax_str(text), hapax_str(step), hapax_str(NULL));
    key->fails = chance(300) ? (unsigned)between(1, 6) : 0;
    key->away = chance(250) ? (unsigned)between(1, 8) : 0;
    key->unknowns = chance(200) ? (unsigned)between(1, 6) : 0;
    key->refuses = chance(100);
    key->effects_before_unknown = chance(500);
    return effects.keys_count - 1;
}

/* The last grants of all keys, and those that were answered once more. */
static void note_grant(int key, uint64_t fence)
{
    effects.grants[effects.grants_count++ % RUNS] =
        (struct grant){.key = key, .fence = fence, .jump_us = sim_store.jump_us};
}

/* How the store's clock was when it granted this claim: it may have jumped since. */
static int64_t granted_jump_us(int key, uint64_t fence)
{
    for (unsigned i = 1; i <= RUNS && i <= effects.grants_count; i++) {
        const struct grant *grant = &effects.grants[(effects.grants_count - i) % RUNS];

        if (grant->key == key && grant->fence == fence)
            return grant->jump_us;
    }
    return sim_store.jump_us;
}

struct run *effects_run(int key, uint64_t fence)
{
    struct run *run = &effects.runs[effects.runs_count++];

    if (effects.runs_count == RUNS) {
        effects.runs_count--;
        violate("over %d runs", RUNS);
    }
    *run = (struct run){.key = key,
                        .proc = process_now(),
                        .life = sim_procs[process_now()].life,
                        .fence = fence,
                        .begun_us = sim_now_us,
                        .jump_us = granted_jump_us(key, fence)};
    return run;
}

enum hapax_class effects_class(struct key *key)
{
    unsigned n = key->runs++;

    if (n < key->away)
        return HAPAX_CLASS_NOT_RUN;
    n -= key->away;
    if (n < key->unknowns)
        return HAPAX_CLASS_UNKNOWN;
    n -= key->unknowns;
    return key->refuses || n < key->fails ? HAPAX_CLASS_FAILED : HAPAX_CLASS_FINAL;
}

static bool is_excused(const struct run *run)
{
    return run->died || run->cls == HAPAX_CLASS_UNKNOWN || run->jump_us != sim_store.jump_us ||
           sim_now_us - run->begun_us >= effects.policy.lease_ms * MS / 2;
}

void effects_effect(struct run *run)
{
    struct key *key = &effects.keys[run->key >= 0 ? run->key : 0];
    bool fenced = effects.policy.on_expired == HAPAX_EXPIRED_RECONCILE;

    if (run->key < 0)
        return;
    if (fenced && run->fence < key->upstream)
        return;
    say("EFFECT of key %d", run->key);
    if (run->fence > 0 && key->effects > 0) {
        effects.again++;
        if (effects.policy.on_expired != HAPAX_EXPIRED_RERUN)
            violate("key %d has a second effect", run->key);
        for (int i = 0; i < effects.runs_count; i++) {
            const struct run *other = &effects.runs[i];

            if (other->key == run->key && other->effected && other->fence > 0 &&
                !is_excused(other) && !is_excused(run))
                violate("key %d has a second effect at once", run->key);
        }
    }
    key->effects += run->fence > 0;
    run->effected = true;
}

enum hapax_class effects_found(struct key *key, uint64_t fence)
{
    key->upstream = fence;
    return key->effects > 0 ? HAPAX_CLASS_FINAL : HAPAX_CLASS_NOT_RUN;
}

enum hapax_class effects_hook(struct key *key, struct hapax_attempt *attempt)
{
    if (effects_found(key, hapax_attempt_fence(attempt)) == HAPAX_CLASS_NOT_RUN)
        return HAPAX_CLASS_NOT_RUN;
    return hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str("done")) == HAPAX_ERR_NONE
               ? HAPAX_CLASS_FINAL
               : HAPAX_CLASS_UNKNOWN;
}

void effects_judged(const struct hapax_op *op)
{
    for (int i = 0; i < effects.keys_count; i++) {
        struct key *key = &effects.keys[i];
        const struct hapax_record *record;

        if (memcmp(&key->id, &op->id, sizeof(op->id)) != 0)
            continue;
        record = sim_store_record(&op->id);
        if (op->kind == HAPAX_OP_COMPLETE && op->verdict == HAPAX_OK)
            key->completed = true;
        if (record && record->state == HAPAX_STATE_UNKNOWN)
            key->was_unknown = true;
        if (op->kind == HAPAX_OP_CLAIM && op->verdict == HAPAX_CLAIMED) {
            key->grants++;
            note_grant(i, op->record.fence);
        }
        if (op->kind == HAPAX_OP_FAIL && op->verdict == HAPAX_OK && !op->ran && !op->as_unknown &&
            key->not_run_attempt != record->attempt) { /* a FAIL may come twice */
            key->not_run_attempt = record->attempt;
            key->not_run++;
        }
        return;
    }
}

void effects_over(int proc, bool killed)
{
    for (int i = 0; i < effects.runs_count; i++)
        if (effects.runs[i].proc == proc && effects.runs[i].life == sim_procs[proc].life)
            effects.runs[i].died |= killed;
}
