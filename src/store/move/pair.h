/* SPDX-License-Identifier: Apache-2.0
 *
 * One op of a move: store as a state machine: which op of which half comes next, and what both say
 * together. Pure, so that a test can end a process, lose a reply or let another door go ahead
 * between any two of these ops (tests/store/test_move.c).
 *
 * Three kinds of doors share an operation during a move: those with the old store alone (O), those
 * with both (M), and those with the new one alone (N). O and M may be there at once, and M and N;
 * never O and N. docs/design.md, "Moving", says why what is done here is enough.
 *
 * A half here is a store: the old one or the new one. The invariants:
 *   - M runs only what both halves have granted to its token;
 *   - M shows no outcome that the new half does not have, but for what may run again, and for
 *     what any request or another one has: begin_mirror() leaves that in the old half;
 *   - a token whose claim was given back, and nobody knows whether that has landed, is LOST: its
 *     flow never claims with it again.
 */
#ifndef HAPAX_STORE_MOVE_PAIR_H
#define HAPAX_STORE_MOVE_PAIR_H

#include <hapax/store.h>

enum hapax__half { HAPAX__HALF_OLD, HAPAX__HALF_NEW };

struct hapax__pair;
typedef void hapax__pair_then(struct hapax__pair *pair);

/* What a half has shown of the operation. */
struct hapax__pair_shown {
    struct hapax_record record;
    int64_t now_us;
};

/* Within which an M door claims in both halves: 2 s. A simulation, whose leases are shorter than
 * that, sets less. */
extern int64_t hapax__pair_together_us;

struct hapax__pair {
    /* for the caller */
    enum hapax__half half;
    /* To be run on that half. What its answer points to must stay until the pair is over. */
    struct hapax_op sub;

    /* the pair's own */
    struct hapax_op *op; /* what was asked; answered when the pair is over */
    hapax__pair_then *then; /* takes the answer of sub; NULL: the pair is over */
    struct hapax__pair_shown old, new; /* the last answer of each half */
    bool ours; /* the new half has granted the token already */
    bool gives_again; /* the claim was given back once, without an answer, */
    bool unheard; /* and that may land yet */
    bool later; /* RESOLVE: the new half was written last, by the looks of it */
    enum hapax_verdict verdict; /* to be answered once a claim was given back */
    enum hapax_error error;
    enum hapax_differs differs;
    struct hapax__pair_shown shown; /* the same; or what the old half says of a CLAIM */
};

/* Begins an op, which must be by id and no IMPORT. pair->sub is the first one to run. */
void hapax__pair_begin(struct hapax__pair *pair, struct hapax_op *op);

/* sub was answered, by a verdict or an error. False: the pair is over and its op answered;
 * otherwise sub is the next one to run. */
bool hapax__pair_told(struct hapax__pair *pair);

/* Whether the new half knows all that the old one knows of an operation, so that a door may have
 * the new one alone. since_us is a time of the old half's clock from which on M doors alone write
 * there: what began later has begun in both. Both records are as a READ has shown them. */
bool hapax__pair_covers(const struct hapax__pair_shown *old, const struct hapax__pair_shown *new,
                        int64_t since_us);

/* Whether an operator has given the old half's record another word since it was imported, as `put`,
 * into the new half. The operator may have found nothing there yet. Then what was put is to be
 * forgotten, if the new half still has it, and what the old half has now to be put. */
bool hapax__pair_resolved(const struct hapax_record *put, const struct hapax_record *old);
/* Whether the new half still has what was put: no claim was granted there, and no word given. */
bool hapax__pair_has_put(const struct hapax_record *put, const struct hapax_record *new);

/* Of two halves in one store, where nothing is copied: whether a record of either, as a READ or a
 * LIST shows it, may stand for something that the old half alone knows. since_us is as above, by
 * the clock of that store. Such a record is older, or is an outcome that an operator gave, which
 * comes over with the next request alone. Where there is none left, a door may have the new half
 * alone. */
bool hapax__pair_left(const struct hapax_record *record, int64_t since_us, int64_t now_us);

#endif
