/* SPDX-License-Identifier: Apache-2.0
 *
 * A record goes on while it is copied. So each is read in both stores and compared by the rule of
 * the move: store (hapax__pair_covers()), and what is not there is put by IMPORT. Where the new
 * store has another record, a door with both has made it without knowing what the old store knows:
 * that record is forgotten, and IMPORT follows. A door whose claim was forgotten so finds the
 * outcome in the old store, which it asks first.
 *
 * An operator's word comes to the old store first, and may find nothing in the new one: what was
 * read before it is put there after it. So what was put is read once more in the old store. Where
 * an operator has changed it there, it is taken back, and put as it is now. A word that comes later
 * finds it in both. Rejected: an operator's word that leaves a mark in the new store. A FORGET
 * would be no forgetting.
 *
 * What is compared is read in the new store first. A door claims in the old store first: so what
 * the new one has shown by then is no claim that comes after what the old one shows. In the other
 * order an attempt that began between the two READs hid that an earlier one, whose claim was
 * forgotten here, had died. Where the new store has an outcome nothing is copied, and where it has
 * nothing IMPORT finds out.
 *
 * The invariant: nothing is forgotten that runs, or was completed, but for what this command has
 * put there and nobody has claimed or resolved since. The RESOLVE of all else is without force, and
 * names the write that was read. Its attempt would not do: what an operator forgets is counted from
 * 1 again.
 */
#include "copy_live.h"

#include "base/clock.h"
#include "base/time.h"
#include "store/move/move.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

#define PAUSE_MS  20
#define LEAST_US  US_PER_S /* for a chunk, however short --wait is */
#define MORE_US   (60 * US_PER_S) /* to look once more at what was put */
#define CHUNK_MAX MOVING_BATCH

struct chunk {
    struct copy_live *live;
    struct hapax_op *reads; /* of the old store; moved together as some are done */
    size_t n;
    struct hapax_op there[CHUNK_MAX]; /* READs of the new store */
    size_t put_of[CHUNK_MAX]; /* which of them each import is of */
    struct hapax_record put[CHUNK_MAX]; /* which write of each was put there, or absent */
    bool done[CHUNK_MAX];
    bool again; /* something was put or taken back, and is to be looked at */
    bool met; /* something else was in the way */
};

bool copy_live_skips(const struct copy_live *live, const struct hapax_record *record)
{
    return record->created_us > live->since_us && record->state != HAPAX_STATE_COMPLETED;
}

static bool is_live(const struct hapax_op *read)
{
    return read->record.state == HAPAX_STATE_STARTED && read->now_us < read->record.lease_until_us;
}

static bool absent(const struct hapax_op *read)
{
    return read->verdict == HAPAX_ABSENT;
}

static bool covers(const struct copy_live *live, const struct hapax_op *old,
                   const struct hapax_op *new)
{
    const struct hapax__pair_shown shown[] = {{old->record, old->now_us},
                                              {new->record, new->now_us}};

    return hapax__pair_covers(&shown[0], &shown[1], live->since_us);
}

static enum cli_exit failed(const struct copy_live *live, struct hapax_store *store,
                            enum hapax_error error)
{
    progress_end(live->progress);
    return cli_store_failed(live->moving->args, error, hapax_store_text(store));
}

static bool of_one_record(enum hapax_error error)
{
    return error == HAPAX_ERR_NONE || error == HAPAX_ERR_TOO_BIG || error == HAPAX_ERR_CORRUPT ||
           error == HAPAX_ERR_INVALID || error == HAPAX_ERR_UNSUPPORTED;
}

/* Runs ops of the new store, whose answers are wanted without their outcomes. Together they may be
 * too much, in size or in time. */
static enum cli_exit run_there(const struct copy_live *live, struct hapax_op *ops, size_t n)
{
    struct hapax_store *to = live->moving->to;

    (void)hapax_store_run(to, ops, n);
    for (size_t i = 0; i < n; i++) {
        if (n > 1 && !of_one_record(ops[i].error))
            (void)hapax_store_run(to, &ops[i], 1);
        if (!of_one_record(ops[i].error))
            return failed(live, to, ops[i].error);
    }
    return CLI_DONE;
}

static void is_there(struct chunk *k, size_t i, const struct hapax_record *record)
{
    k->done[i] = true;
    k->live->moving->put[record->state] += !cli_is_own(record);
}

static void leave(struct chunk *k, size_t i, const char *why)
{
    k->done[i] = true;
    moving_left(k->live->moving, &k->reads[i].id, why, k->live->progress);
}

static enum cli_exit look(struct chunk *k)
{
    for (size_t i = 0; i < k->n; i++)
        k->there[i] = (struct hapax_op){.kind = HAPAX_OP_READ,
                                        .id = k->reads[i].id,
                                        .fingerprint = k->reads[i].fingerprint,
                                        .caller = k->reads[i].caller};
    return run_there(k->live, k->there, k->n);
}

static bool is_begun_there(const struct chunk *k)
{
    for (size_t i = 0; i < k->n; i++)
        if (!absent(&k->there[i]) && k->there[i].record.state != HAPAX_STATE_COMPLETED)
            return true;
    return false;
}

static enum cli_exit read_old(const struct chunk *k)
{
    (void)hapax_store_run(k->live->from, k->reads, k->n);
    for (size_t i = 0; i < k->n; i++)
        if (!of_one_record(k->reads[i].error))
            return failed(k->live, k->live->from, k->reads[i].error);
    return CLI_DONE;
}

/* A RESOLVE of the new store. */
static enum cli_exit run_forget(const struct chunk *k, struct hapax_op *op)
{
    op->kind = HAPAX_OP_RESOLVE;
    op->resolve = HAPAX_RESOLVE_FORGET;
    op->by = hapax_str("hapax copy");
    if (getrandom(op->token.bytes, sizeof(op->token.bytes), 0) != sizeof(op->token.bytes))
        return cli_fail(k->live->moving->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                        "cannot get random bytes");
    return run_there(k->live, op, 1);
}

static bool to_be_taken_back(const struct chunk *k, size_t i)
{
    return k->put[i].state != HAPAX_STATE_ABSENT &&
           hapax__pair_resolved(&k->put[i], &k->reads[i].record) &&
           hapax__pair_has_put(&k->put[i], &k->there[i].record);
}

/* Takes back what was put there before an operator's word. Where that is written meanwhile, it is
 * looked at again. */
static enum cli_exit take_back(struct chunk *k, size_t i)
{
    struct hapax_op op = {
        .id = k->there[i].id, .if_updated_us = k->there[i].record.updated_us, .force = true};

    k->again = true;
    return run_forget(k, &op);
}

/* Which of the records that were read are there already; the others are to be put, but for those
 * that run. */
static enum cli_exit choose(struct chunk *k)
{
    enum cli_exit exit = CLI_DONE;
    struct moving *moving = k->live->moving;

    for (size_t i = 0; i < k->n && exit == CLI_DONE; i++) {
        const struct hapax_op *old = &k->reads[i];

        k->done[i] = false;
        if (old->error != HAPAX_ERR_NONE) {
            leave(k, i, "cannot be read");
        } else if (k->there[i].error != HAPAX_ERR_NONE) {
            leave(k, i, "there it cannot be read");
        } else if (to_be_taken_back(k, i)) {
            exit = take_back(k, i);
        } else if (absent(old)) {
            k->done[i] = true; /* expired since it was listed */
        } else if (covers(k->live, old, &k->there[i])) {
            is_there(k, i, &old->record);
        } else if (!is_live(old)) {
            k->put_of[moving->n] = i;
            moving_add(moving, &old->record);
        }
    }
    return exit;
}

/* Makes room for what the old store knows. Unless a claim that runs is in the way, another look
 * tells what is there now. */
static enum cli_exit forget(struct chunk *k, size_t i)
{
    const struct hapax_op *there = &k->there[i];
    struct hapax_op op = {.id = there->id, .if_updated_us = there->record.updated_us};
    enum cli_exit exit = CLI_DONE;

    if (!absent(there)) /* otherwise another has put it there meanwhile */
        exit = run_forget(k, &op);
    k->met |= op.error == HAPAX_ERR_NONE && op.verdict != HAPAX_IN_FLIGHT;
    return exit;
}

static void was_put(struct chunk *k, size_t i)
{
    const struct hapax_record *record = &k->reads[i].record;

    k->put[i] = (struct hapax_record){.state = record->state,
                                      .created_us = record->created_us,
                                      .fence = record->fence,
                                      .resolved_us = record->resolved_us};
    k->again = true;
}

static enum cli_exit put(struct chunk *k)
{
    struct moving *moving = k->live->moving;
    size_t n = moving->n;
    enum cli_exit exit;

    moving->n = 0;
    exit = n > 0 ? run_there(k->live, moving->ops, n) : CLI_DONE;
    for (size_t i = 0; i < n && exit == CLI_DONE; i++) {
        const struct hapax_op *op = &moving->ops[i];
        size_t of = k->put_of[i];

        if (op->verdict == HAPAX_OK)
            was_put(k, of);
        else if (op->verdict == HAPAX_FOUND)
            exit = forget(k, of);
        else
            leave(k, of,
                  op->error == HAPAX_ERR_TOO_BIG ? "its outcome is over what the store takes"
                                                 : "it cannot be put there");
    }
    return exit;
}

/* Keeps those that are not done, to be read anew. */
static void keep_undone(struct chunk *k)
{
    size_t left = 0;

    for (size_t i = 0; i < k->n; i++) {
        if (k->done[i])
            continue;
        k->put[left] = k->put[i];
        k->reads[left++] = (struct hapax_op){.kind = HAPAX_OP_READ,
                                             .id = k->reads[i].id,
                                             .fingerprint = k->reads[i].fingerprint,
                                             .caller = k->reads[i].caller};
    }
    k->n = left;
}

enum cli_exit copy_live_chunk(struct copy_live *live, struct hapax_op *reads, size_t n)
{
    struct chunk k = {.live = live, .reads = reads, .n = n};
    int64_t until_us = hapax__monotonic_us() + LEAST_US;
    enum cli_exit exit = CLI_DONE;
    bool read = true; /* by the caller */
    bool ended = false; /* by a signal: what was put is looked at once more */

    assert(n <= CHUNK_MAX);
    until_us = until_us > live->until_us ? until_us : live->until_us;
    for (;;) {
        k.again = k.met = false;
        exit = look(&k);
        if (exit == CLI_DONE && (!read || is_begun_there(&k)))
            exit = read_old(&k);
        read = false;
        if (exit == CLI_DONE)
            exit = choose(&k);
        if (exit == CLI_DONE && !ended)
            exit = put(&k);
        if (exit != CLI_DONE)
            return exit;
        if (ended)
            break;
        keep_undone(&k);
        if (k.n == 0)
            return CLI_DONE;
        if (hapax__monotonic_us() >= until_us + (k.again || k.met ? MORE_US : 0))
            break;
        ended = cli_signals_wait(live->signals, k.again ? 0 : PAUSE_MS) != 0;
        if (ended && !k.again)
            break;
    }
    if (ended) {
        progress_end(live->progress);
        return cli_fail(live->moving->args, CLI_UNREACHED, HAPAX_ERR_UNAVAILABLE,
                        "ended by a signal");
    }
    live->moving->live += (int64_t)k.n;
    return CLI_DONE;
}
