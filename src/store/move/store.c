/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of a move, and of a rotation. Every op is a pair (pair.h). A batch goes on in rounds:
 * what its pairs ask of one half goes there together, in turns of the old and the new one, until
 * all are over.
 *
 * In a rotation (docs/rotation.md) both halves are one handle: the records under the old secret,
 * and those under the new one. What the pairs ask goes there together in each round. An op without
 * an identity under the old secret is about one record, and goes through as it is: a LIST, a PURGE,
 * the switch.
 *
 * A batch has no id twice (the type is not `serial`), so ops on one id keep their order. Outcomes
 * are sealed by the handles of the halves: an outcome is bound to a claim, which is another one in
 * each half.
 */
#include "base/arena.h"
#include "base/fail.h"
#include "base/time.h"
#include "move.h"
#include "store/rotation/rotation.h"
#include "store/seal.h"
#include "store/types.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX 256u
#define CLOCKS_US (50 * US_PER_MS) /* clocks that differ by no more need no word */

static const char *const names[] = {"the old store", "the new store"};

struct move {
    struct hapax_store base;
    struct hapax_store_type type; /* as base.type: the limits are those of both */
    struct hapax_store *half[2];
    struct hapax__pair pairs[BATCH_MAX];
    size_t going[BATCH_MAX]; /* the pairs that are not over */
    struct hapax_op asked[BATCH_MAX];
};

static bool rotates(const struct move *m)
{
    return m->half[HAPAX__HALF_OLD] == m->half[HAPAX__HALF_NEW];
}

static enum hapax_error fail_as(struct move *m, enum hapax__half half, enum hapax_error error)
{
    if (rotates(m))
        return hapax_store_fail(&m->base, error, "%s", hapax_store_text(m->half[half]));
    return hapax_store_fail(&m->base, error, "%s: %.220s", names[half],
                            hapax_store_text(m->half[half]));
}

/* ---- run ----------------------------------------------------------------------------- */

/* Runs what the pairs ask of a half, or of both where they are one. Returns how many of the n pairs
 * go on. */
static size_t run_half(struct move *m, enum hapax__half half, size_t n)
{
    size_t count = 0, left = 0;
    enum hapax_error error;

    for (size_t i = 0; i < n; i++)
        if (rotates(m) || m->pairs[m->going[i]].half == half)
            m->asked[count++] = m->pairs[m->going[i]].sub;
    if (count == 0)
        return n;
    error = hapax_store_run(m->half[half], m->asked, count);
    if (error != HAPAX_ERR_NONE)
        (void)fail_as(m, half, error);
    count = 0;
    for (size_t i = 0; i < n; i++) {
        struct hapax__pair *pair = &m->pairs[m->going[i]];
        bool goes = true;

        if (rotates(m) || pair->half == half) {
            pair->sub = m->asked[count++];
            if (pair->sub.verdict != HAPAX_NO_VERDICT)
                (void)hapax__store_keep(&m->base, &pair->sub);
            goes = hapax__pair_told(pair);
        }
        if (goes)
            m->going[left++] = m->going[i];
    }
    return left;
}

/* An op about one record, which in a rotation goes through. */
static void pass_on(struct move *m, struct hapax_op *op)
{
    enum hapax_error error = hapax_store_run(m->half[HAPAX__HALF_NEW], op, 1);

    if (error != HAPAX_ERR_NONE)
        (void)fail_as(m, HAPAX__HALF_NEW, error);
    if (op->verdict != HAPAX_NO_VERDICT)
        (void)hapax__store_keep(&m->base, op);
}

static enum hapax_error move_run(struct hapax_store *store, struct hapax_op *ops, size_t n)
{
    struct move *m = (struct move *)store;
    size_t going = 0;

    assert(n >= 1 && n <= BATCH_MAX);
    for (size_t i = 0; i < n; i++) {
        if (rotates(m) && !ops[i].old) {
            pass_on(m, &ops[i]);
            continue;
        }
        if (ops[i].kind == HAPAX_OP_LIST || ops[i].kind == HAPAX_OP_PURGE ||
            ops[i].kind == HAPAX_OP_IMPORT) {
            ops[i].error = hapax_store_fail(
                store, HAPAX_ERR_UNSUPPORTED,
                "a move: store is for doors, and for one operation at a time: list, purge, erase "
                "and copy with the URI of the old store, and with that of the new one");
            continue;
        }
        hapax__pair_begin(&m->pairs[i], &ops[i]);
        m->going[going++] = i;
    }
    while (going > 0) {
        going = run_half(m, HAPAX__HALF_NEW, going);
        going = run_half(m, HAPAX__HALF_OLD, going);
    }
    for (size_t i = 0; i < n; i++) {
        if (ops[i].verdict != HAPAX_NO_VERDICT)
            continue;
        if (store->text[0] == '\0') /* no half has failed */
            (void)hapax_store_fail(store, ops[i].error,
                                   "the two records do not tell whether the op is applied; ask "
                                   "again with the same token");
        return ops[i].error;
    }
    return HAPAX_ERR_NONE;
}

/* ---- check, measure ------------------------------------------------------------------ */

struct half_saying {
    hapax_say *say;
    void *arg;
    const char *name;
};

static void say_of_half(void *arg, bool danger, const char *line)
{
    const struct half_saying *to = arg;

    hapax__tell(to->say, to->arg, danger, "%s: %s", to->name, line);
}

static enum hapax_error check_half(struct move *m, enum hapax__half half, hapax_say *say, void *arg,
                                   bool *secret, int64_t *now_us)
{
    struct half_saying saying = {say, arg, names[half]};
    struct hapax_op op = {.kind = HAPAX_OP_READ};
    enum hapax_error error = hapax_store_check(m->half[half], say_of_half, &saying);

    if (error == HAPAX_ERR_NONE)
        error = hapax_store_run(m->half[half], &op, 1);
    *now_us = op.now_us;
    if (error == HAPAX_ERR_NONE)
        error = hapax__bind_has_secret(m->half[half], secret);
    return error == HAPAX_ERR_NONE ? error : fail_as(m, half, error);
}

static enum hapax_error move_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct move *m = (struct move *)store;
    int64_t now_us[2] = {0, 0}, ahead_us;
    bool secret[2] = {false, false};

    for (int half = HAPAX__HALF_OLD; half <= HAPAX__HALF_NEW; half++) {
        enum hapax_error error =
            check_half(m, (enum hapax__half)half, say, arg, &secret[half], &now_us[half]);

        if (error != HAPAX_ERR_NONE)
            return error;
    }
    ahead_us = now_us[HAPAX__HALF_NEW] - now_us[HAPAX__HALF_OLD];
    if (ahead_us > CLOCKS_US || ahead_us < -CLOCKS_US)
        hapax__tell(say, arg, false,
                    "the clock of the new store is %" PRId64 " ms %s the old one's: of two "
                    "attempts that follow each other within half of that the later one may have "
                    "the smaller fence, if different stores made them",
                    (ahead_us > 0 ? ahead_us : -ahead_us) / US_PER_MS,
                    ahead_us > 0 ? "ahead of" : "behind");
    if (secret[HAPAX__HALF_OLD] && !secret[HAPAX__HALF_NEW])
        hapax__tell(say, arg, false,
                    "the new store is bound to the secret when the first door opens the two");
    return HAPAX_ERR_NONE;
}

static int64_t worse(int64_t a, int64_t b, bool greater)
{
    if (a == HAPAX_NOT_KNOWN || b == HAPAX_NOT_KNOWN)
        return a == HAPAX_NOT_KNOWN ? b : a;
    return (a > b) == greater ? a : b;
}

static int64_t size_of(int64_t us)
{
    return us == HAPAX_NOT_KNOWN || us >= 0 ? us : -us;
}

/* Of each figure the one that is worse: an operation needs both. */
static enum hapax_error move_measure(struct hapax_store *store, struct hapax_vitals *out)
{
    struct move *m = (struct move *)store;
    struct hapax_vitals vitals[2];

    for (int half = HAPAX__HALF_OLD; half <= HAPAX__HALF_NEW; half++) {
        enum hapax_error error = hapax_store_measure(m->half[half], &vitals[half]);

        if (error != HAPAX_ERR_NONE)
            return fail_as(m, (enum hapax__half)half, error);
    }
    *out = vitals[0];
    if (worse(size_of(vitals[0].clock_ahead_us), size_of(vitals[1].clock_ahead_us), true) !=
        size_of(vitals[0].clock_ahead_us))
        out->clock_ahead_us = vitals[1].clock_ahead_us;
    out->replicas = worse(vitals[0].replicas, vitals[1].replicas, false);
    out->lag_bytes = worse(vitals[0].lag_bytes, vitals[1].lag_bytes, true);
    out->silent_us = worse(vitals[0].silent_us, vitals[1].silent_us, true);
    out->server_cert_us = worse(vitals[0].server_cert_us, vitals[1].server_cert_us, false);
    out->client_cert_us = worse(vitals[0].client_cert_us, vitals[1].client_cert_us, false);
    if (worse(vitals[0].disk_free_bytes, vitals[1].disk_free_bytes, false) !=
        vitals[0].disk_free_bytes) {
        out->disk_bytes = vitals[1].disk_bytes;
        out->disk_free_bytes = vitals[1].disk_free_bytes;
    }
    return HAPAX_ERR_NONE;
}

/* ---- open, close, init --------------------------------------------------------------- */

static void move_bound(struct hapax_store *store, struct hapax_span secret)
{
    struct move *m = (struct move *)store;

    for (int half = HAPAX__HALF_OLD; half <= HAPAX__HALF_NEW; half++)
        if (m->half[half]->type->bound)
            m->half[half]->type->bound(m->half[half], secret);
}

static enum hapax_error move_keys(struct hapax_store *store, const struct hapax__keys *keys)
{
    struct move *m = (struct move *)store;
    enum hapax_error error = hapax__store_keys(m->half[HAPAX__HALF_OLD], keys);

    if (error == HAPAX_ERR_NONE)
        error = hapax__store_keys(m->half[HAPAX__HALF_NEW], keys);
    return error == HAPAX_ERR_NONE ? error : hapax_store_fail(store, error, "out of memory");
}

static void move_close(struct hapax_store *store)
{
    struct move *m = (struct move *)store;

    if (!rotates(m))
        hapax_store_close(m->half[HAPAX__HALF_OLD]);
    hapax_store_close(m->half[HAPAX__HALF_NEW]);
    free(m);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static enum hapax_error open_halves(struct move *m, const char *uri, char text[HAPAX_TEXT_MAX])
{
    struct hapax__move_uris uris;
    enum hapax_error error = hapax__move_uris(&uris, uri, text);

    for (int half = HAPAX__HALF_OLD; half <= HAPAX__HALF_NEW && error == HAPAX_ERR_NONE; half++)
        error = hapax_store_open(&m->half[half], uris.of[half], text);
    hapax__move_uris_release(&uris);
    return error;
}

static enum hapax_error move_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    struct move *m = calloc(1, sizeof(*m));
    const struct hapax_store_type *old, *new;
    enum hapax_error error;

    *out = NULL;
    if (!m)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    error = open_halves(m, uri, text);
    if (error != HAPAX_ERR_NONE) {
        move_close(&m->base);
        return error;
    }
    old = m->half[HAPAX__HALF_OLD]->type;
    new = m->half[HAPAX__HALF_NEW]->type;
    m->type = hapax__move;
    m->type.body_max = least(old->body_max, new->body_max);
    m->type.batch_max = (uint32_t)least(BATCH_MAX, least(old->batch_max, new->batch_max));
    m->base.type = &m->type;
    *out = &m->base;
    return HAPAX_ERR_NONE;
}

static enum hapax_error move_init(const char *uri, bool print, hapax_say *say, void *arg,
                                  char text[HAPAX_TEXT_MAX])
{
    struct hapax__move_uris uris;
    enum hapax_error error = hapax__move_uris(&uris, uri, text);

    for (int half = HAPAX__HALF_OLD; half <= HAPAX__HALF_NEW && error == HAPAX_ERR_NONE; half++)
        error = hapax_store_init(uris.of[half], print, say, arg, text);
    hapax__move_uris_release(&uris);
    return error;
}

static enum hapax_error move_rights(const char *uri, const char *use, const char *role, bool print,
                                    hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX])
{
    (void)uri;
    (void)use;
    (void)role;
    (void)print;
    (void)say;
    (void)arg;
    return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                       "rights are given in each store of a move: by itself, with its own URI");
}

const struct hapax_store_type hapax__move = {
    .scheme = "move",
    .batch_max = BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,
    .unlisted = true,
    .open = move_open,
    .run = move_run,
    .init = move_init,
    .rights = move_rights,
    .check = move_check,
    .bound = move_bound,
    .keys = move_keys,
    .close = move_close,
    .measure = move_measure,
};

/* ---- a rotation ----------------------------------------------------------------------- */

static enum hapax_error rotation_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct move *m = (struct move *)store;
    enum hapax_error error = hapax_store_check(m->half[HAPAX__HALF_NEW], say, arg);

    return error == HAPAX_ERR_NONE ? error : fail_as(m, HAPAX__HALF_NEW, error);
}

static enum hapax_error rotation_keys(struct hapax_store *store, const struct hapax__keys *keys)
{
    struct move *m = (struct move *)store;

    return hapax__store_keys(m->half[HAPAX__HALF_NEW], keys);
}

static enum hapax_error rotation_measure(struct hapax_store *store, struct hapax_vitals *out)
{
    struct move *m = (struct move *)store;
    enum hapax_error error = hapax_store_measure(m->half[HAPAX__HALF_NEW], out);

    return error == HAPAX_ERR_NONE ? error : fail_as(m, HAPAX__HALF_NEW, error);
}

static const struct hapax_store_type rotation = {
    .run = move_run,
    .check = rotation_check,
    .keys = rotation_keys,
    .close = move_close,
    .measure = rotation_measure,
};

struct hapax_store *hapax__rotation_under(struct hapax_store *store)
{
    struct hapax_store *under;
    struct move *m = (struct move *)store;

    if (!store || store->type->run != move_run || !rotates(m))
        return store;
    under = m->half[HAPAX__HALF_NEW];
    hapax__arena_release(m->base.arena);
    free(m->base.arena);
    free(m);
    return under;
}

enum hapax_error hapax__rotation_over(struct hapax_store **store)
{
    const struct hapax_store_type *type = (*store)->type;
    struct move *m = calloc(1, sizeof(*m));

    if (m)
        m->base.arena = calloc(1, sizeof(*m->base.arena));
    if (!m || !m->base.arena) {
        free(m);
        return hapax_store_fail(*store, HAPAX_ERR_NOMEM, "out of memory");
    }
    m->type = rotation;
    m->type.scheme = type->scheme;
    m->type.batch_max = (uint32_t)least(BATCH_MAX, type->batch_max);
    m->type.body_max = type->body_max;
    m->type.forgets = type->forgets;
    m->type.scrubs = type->scrubs;
    m->type.remains = type->remains;
    m->half[HAPAX__HALF_OLD] = m->half[HAPAX__HALF_NEW] = *store;
    m->base.type = &m->type;
    *store = &m->base;
    return HAPAX_ERR_NONE;
}
