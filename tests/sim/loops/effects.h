/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations and the runs of their handlers, and the rule of effects: under hold and reconcile an
 * operation has one; under rerun a second one only where nobody can tell what became of the first.
 */
#ifndef HAPAX_TESTS_SIM_LOOPS_EFFECTS_H
#define HAPAX_TESTS_SIM_LOOPS_EFFECTS_H

#include <hapax/hapax.h>
#include <hapax/store.h>

#include <stdbool.h>
#include <stdint.h>

#define KEYS     8
#define KEYS_MAX 32 /* with steps */
#define RUNS     1024

struct run {
    int key; /* -1: of a request without one */
    int proc;
    uint32_t life;
    uint64_t fence;
    int64_t begun_us, jump_us; /* its claim is at most this old, and the store's clock was so */
    bool effected, ended, died;
    enum hapax_class cls;
};

struct grant {
    int key;
    uint64_t fence;
    int64_t jump_us; /* of the store's clock, when it was last answered */
};

struct key {
    struct hapax_id id;
    unsigned fails, away, unknowns; /* so many of its runs */
    bool refuses;
    bool effects_before_unknown;
    unsigned runs, effects, grants, not_run;
    bool was_unknown, completed; /* in the store, at some time */
    uint64_t upstream; /* smaller fences are refused there */
    uint32_t put_back, not_run_attempt;
};

extern struct effects {
    struct hapax_policy policy;
    struct key keys[KEYS_MAX];
    int keys_count;
    struct run runs[RUNS];
    int runs_count;
    struct grant grants[RUNS]; /* the last ones, round */
    unsigned grants_count;
    unsigned again; /* second effects */
} effects;

/* Forgets all, and draws what becomes of the runs of so many operations `op-N` of this scope. */
void effects_draw(const struct hapax_policy *policy, int keys, const char *scope);

/* Draws what becomes of one more: of a step of `op-N`. NULL: of the operation. Returns its key. */
int effects_add(const char *scope, int n, const char *step);

/* A handler begins. */
struct run *effects_run(int key, uint64_t fence);

/* How the next run of it is to end. */
enum hapax_class effects_class(struct key *key);

/* A run has its effect. */
void effects_effect(struct run *run);

/* A hook that tells the truth: NOT_RUN or FINAL. No earlier attempt has its effect afterwards. */
enum hapax_class effects_found(struct key *key, uint64_t fence);

/* The same, with an outcome. */
enum hapax_class effects_hook(struct key *key, struct hapax_attempt *attempt);

/* The store has judged an op. */
void effects_judged(const struct hapax_op *op);

void effects_over(int proc, bool killed);

#endif
