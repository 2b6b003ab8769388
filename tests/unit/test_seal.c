/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealed outcomes: what a store is given, what comes back, and what is never given back. The store
 * is a `memory:` whose records a second handle, which seals nothing, reads and writes as they are
 * stored: that is who has a copy of the files, or may write to the store.
 */
#include "store/seal.h"

#include "../cases.h"
#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ONE "one 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"
#define TWO "two fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210\n"
/* The id of the first, with another key. */
#define FALSE_ONE "one 0000000000000000000000000000000000000000000000000000000000000001\n"

static const char headers[] = "Content-Type: text/plain\r\n";
static const char body[] = "the body, which is nobody's business";

struct bed {
    struct hapax_store *store;
    struct hapax__keys keys;
    struct hapax_arena arena;
    char text[HAPAX_TEXT_MAX];
};

static void set_keys(struct bed *bed, const char *text)
{
    assert_int_equal(hapax__keys_read(&bed->keys, hapax_str(text), bed->text), HAPAX_ERR_NONE);
}

/* Without hapax_store_keys(): the cases seal and open by themselves. */
static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof(*bed));

    assert_non_null(bed);
    assert_int_equal(hapax_store_open(&bed->store, "memory:", bed->text), HAPAX_ERR_NONE);
    set_keys(bed, ONE);
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;

    hapax_store_close(bed->store);
    hapax__arena_release(&bed->arena);
    free(bed);
    return 0;
}

static struct hapax_op op_of(enum hapax_op_kind kind, uint8_t id, uint8_t token)
{
    struct hapax_op op = {.kind = kind,
                          .id.bytes = {id},
                          .token.bytes = {token},
                          .scope = hapax_str("s"),
                          .lease_ms = 60000,
                          .retention_ms = 60000,
                          .on_expired = HAPAX_EXPIRED_RERUN};

    if (kind != HAPAX_OP_CLAIM && kind != HAPAX_OP_READ)
        op.outcome = (struct hapax_outcome){200, true, hapax_str(headers), hapax_str(body)};
    return op;
}

/* Asks as a door does. */
static enum hapax_error ask(struct bed *bed, struct hapax_op *op)
{
    enum hapax_error error = hapax__seal(&bed->keys, op, bed->text);

    if (error != HAPAX_ERR_NONE)
        return error;
    (void)hapax_store_run(bed->store, op, 1);
    hapax__unseal(&bed->keys, op, &bed->arena, bed->text);
    assert_null(op->sealed);
    return op->error;
}

static void assert_outcome(const struct hapax_outcome *outcome)
{
    assert_int_equal(outcome->headers.len, strlen(headers));
    assert_memory_equal(outcome->headers.ptr, headers, strlen(headers));
    assert_int_equal(outcome->body.len, strlen(body));
    assert_memory_equal(outcome->body.ptr, body, strlen(body));
}

/* An operation that has run. Returns its claim's op. */
static struct hapax_op complete(struct bed *bed, uint8_t id)
{
    struct hapax_op claim = op_of(HAPAX_OP_CLAIM, id, 1), done = op_of(HAPAX_OP_COMPLETE, id, 1);

    assert_int_equal(ask(bed, &claim), HAPAX_ERR_NONE);
    assert_int_equal(claim.verdict, HAPAX_CLAIMED);
    done.attempt = claim.record.attempt;
    done.fence = claim.record.fence;
    assert_int_equal(ask(bed, &done), HAPAX_ERR_NONE);
    assert_int_equal(done.verdict, HAPAX_OK);
    assert_outcome(&done.record.outcome);
    assert_outcome(&done.outcome);
    return claim;
}

static struct hapax_op read_stored(struct bed *bed, uint8_t id)
{
    struct hapax_op op = op_of(HAPAX_OP_READ, id, 0);

    assert_int_equal(hapax_store_run(bed->store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_FOUND);
    return op;
}

static bool has(struct hapax_span in, const char *word)
{
    return in.len > 0 && memmem(in.ptr, in.len, word, strlen(word)) != NULL;
}

/* The same operation, asked for by another. */
static enum hapax_error repeat(struct bed *bed, struct hapax_op *op, uint8_t id)
{
    *op = op_of(HAPAX_OP_CLAIM, id, 9);
    return ask(bed, op);
}

/* A store holds no byte of headers or body that can be read, and a repeat gets both. */
CASE_WITH(a_store_has_no_outcome_in_clear, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op stored, op;

    complete(bed, 1);
    stored = read_stored(bed, 1);
    assert_int_equal(stored.record.outcome.body.len, strlen(body));
    assert_false(has(stored.record.outcome.body, "body"));
    assert_false(has(stored.record.outcome.headers, "Content"));
    assert_true(has(stored.record.outcome.headers, "one"));
    assert_int_equal(repeat(bed, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_outcome(&op.record.outcome);
}

/* Each bit of what is stored counts; so do the status, whether the body was kept, and who asked. */
CASE_WITH(a_changed_outcome_is_an_error_at_every_bit, set_up, tear_down)
{
    struct bed *bed = *state;
    const struct hapax_op claim = complete(bed, 1);
    const struct hapax_op stored = read_stored(bed, 1);
    const struct hapax_outcome *outcome = &stored.record.outcome;
    size_t size = outcome->headers.len + outcome->body.len;
    uint8_t *bytes = malloc(size);

    assert_non_null(bytes);
    memcpy(bytes, outcome->headers.ptr, outcome->headers.len);
    memcpy(bytes + outcome->headers.len, outcome->body.ptr, outcome->body.len);
    for (size_t i = 0; i <= 8 * size + 4; i++) {
        struct hapax_op op = stored;

        assert_int_equal(op.record.fence, claim.record.fence);
        op.record.outcome.headers.ptr = bytes;
        op.record.outcome.body.ptr = bytes + outcome->headers.len;
        if (i < 8 * size)
            bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        else if (i == 8 * size)
            op.record.outcome.status = 402;
        else if (i == 8 * size + 1)
            op.record.outcome.body_kept = false;
        else if (i == 8 * size + 2)
            op.record.caller.bytes[31] ^= 1;
        else if (i == 8 * size + 3)
            op.record.fingerprint.bytes[0] ^= 1;
        hapax__unseal(&bed->keys, &op, &bed->arena, bed->text);
        if (i == 8 * size + 4) {
            assert_int_equal(op.verdict, HAPAX_FOUND); /* nothing was changed */
        } else if (i < 8) {
            /* Headers that do not begin with a zero byte are not sealed: see the next case. */
            assert_int_equal(op.verdict, HAPAX_FOUND);
        } else {
            assert_int_equal(op.verdict, HAPAX_NO_VERDICT);
            assert_true(op.error == HAPAX_ERR_SEALED || op.error == HAPAX_ERR_UNSUPPORTED);
            assert_true(strlen(bed->text) > 0);
        }
        if (i < 8 * size)
            bytes[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    free(bytes);
}

/* A cut is as bad as a change, at every length. */
CASE_WITH(a_cut_outcome_is_an_error, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op stored;

    complete(bed, 1);
    stored = read_stored(bed, 1);
    for (size_t len = 1; len < stored.record.outcome.headers.len; len++) {
        struct hapax_op op = stored;

        op.record.outcome.headers.len = len;
        hapax__unseal(&bed->keys, &op, &bed->arena, bed->text);
        assert_int_equal(op.error, HAPAX_ERR_SEALED);
    }
}

/* Before keys were set, outcomes were stored as they are. They are shown, unless the file says
 * sealed-only. An outcome without bytes hides nothing, and is no reason to refuse. */
CASE_WITH(what_is_not_sealed_is_shown_unless_all_is_to_be_sealed, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op op, claim = op_of(HAPAX_OP_CLAIM, 2, 1), done = op_of(HAPAX_OP_COMPLETE, 2, 1);

    set_keys(bed, "");
    complete(bed, 1);
    assert_int_equal(ask(bed, &claim), HAPAX_ERR_NONE);
    done.outcome.headers = done.outcome.body = hapax_str(NULL);
    assert_int_equal(ask(bed, &done), HAPAX_ERR_NONE);
    set_keys(bed, ONE);
    assert_int_equal(repeat(bed, &op, 1), HAPAX_ERR_NONE);
    assert_outcome(&op.record.outcome);
    set_keys(bed, ONE "sealed-only\n");
    assert_int_equal(repeat(bed, &op, 1), HAPAX_ERR_SEALED);
    assert_non_null(strstr(bed->text, "sealed-only"));
    assert_int_equal(repeat(bed, &op, 2), HAPAX_ERR_NONE);
}

/* An outcome is sealed by the first key and opened by the one that it names; who lacks that key, or
 * has another by its name, is told the name. Nothing of the record is shown then. */
CASE_WITH(another_key_is_an_error_that_names_it, set_up, tear_down)
{
    static const struct {
        const char *keys, *text;
    } plays[] = {{"", "by the key \"one\", which was not given"},
                 {TWO, "by the key \"one\", which is not in the keys file"},
                 {TWO FALSE_ONE, "by another key \"one\""}};
    struct bed *bed = *state;
    struct hapax_op op;

    complete(bed, 1);
    for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++) {
        set_keys(bed, plays[i].keys);
        assert_int_equal(repeat(bed, &op, 1), HAPAX_ERR_SEALED);
        assert_int_equal(op.verdict, HAPAX_NO_VERDICT);
        assert_int_equal(op.record.state, HAPAX_STATE_COMPLETED);
        assert_int_equal(op.record.outcome.headers.len + op.record.outcome.body.len, 0);
        assert_non_null(strstr(bed->text, plays[i].text));
    }
    set_keys(bed, TWO ONE);
    assert_int_equal(repeat(bed, &op, 1), HAPAX_ERR_NONE);
    assert_outcome(&op.record.outcome);
    complete(bed, 2);
    set_keys(bed, TWO);
    assert_int_equal(repeat(bed, &op, 2), HAPAX_ERR_NONE);
}

/* Writes a record's stored outcome into another record, as who may write to the store can. */
static void move(struct bed *bed, const struct hapax_op *from, uint8_t to)
{
    struct hapax_op op = op_of(HAPAX_OP_COMPLETE, to, 1);

    op.outcome = from->record.outcome;
    assert_int_equal(hapax_store_run(bed->store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_OK);
}

/* An outcome is one operation's, and one claim's of it. */
CASE_WITH(an_outcome_that_was_moved_is_an_error, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op op, stored, claim = op_of(HAPAX_OP_CLAIM, 2, 1),
                                forget = op_of(HAPAX_OP_RESOLVE, 1, 7);

    complete(bed, 1);
    stored = read_stored(bed, 1);
    stored.record.outcome.headers = hapax__arena_copy(&bed->arena, stored.record.outcome.headers);
    stored.record.outcome.body = hapax__arena_copy(&bed->arena, stored.record.outcome.body);
    assert_int_equal(ask(bed, &claim), HAPAX_ERR_NONE);
    move(bed, &stored, 2);
    assert_int_equal(repeat(bed, &op, 2), HAPAX_ERR_SEALED);
    assert_non_null(strstr(bed->text, "\"one\", was changed, or is of another operation"));

    forget.resolve = HAPAX_RESOLVE_FORGET;
    forget.force = true;
    assert_int_equal(ask(bed, &forget), HAPAX_ERR_NONE);
    claim = op_of(HAPAX_OP_CLAIM, 1, 1);
    assert_int_equal(ask(bed, &claim), HAPAX_ERR_NONE);
    move(bed, &stored, 1);
    assert_int_equal(repeat(bed, &op, 1), HAPAX_ERR_SEALED);
}

/* A repeat is known as one, since the same outcome is the same bytes; and another outcome of the
 * same attempt has no bytes in common with it. */
CASE_WITH(the_same_outcome_is_the_same_bytes_and_no_other_is, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op claim = op_of(HAPAX_OP_CLAIM, 1, 1), fail = op_of(HAPAX_OP_FAIL, 1, 1),
                    ops[2] = {op_of(HAPAX_OP_COMPLETE, 3, 1), op_of(HAPAX_OP_COMPLETE, 3, 1)};

    assert_int_equal(ask(bed, &claim), HAPAX_ERR_NONE);
    fail.ran = true;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ask(bed, &fail), HAPAX_ERR_NONE);
        assert_int_equal(fail.verdict, HAPAX_OK);
    }
    ops[1].outcome.body = hapax_str("the body, which is nobody's busineSs");
    for (int i = 0; i < 2; i++)
        assert_int_equal(hapax__seal(&bed->keys, &ops[i], bed->text), HAPAX_ERR_NONE);
    assert_memory_not_equal(ops[0].outcome.body.ptr, ops[1].outcome.body.ptr, 16);
    for (int i = 0; i < 2; i++)
        hapax__unseal(&bed->keys, &ops[i], &bed->arena, bed->text);
    assert_outcome(&ops[0].outcome);
}

/* An operator sets an outcome, which is sealed, and ends what nobody can open. */
CASE_WITH(an_operator_resolves_with_and_without_the_key, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op op, resolve = op_of(HAPAX_OP_RESOLVE, 1, 7);

    complete(bed, 1);
    resolve.resolve = HAPAX_RESOLVE_COMPLETE;
    set_keys(bed, TWO);
    assert_int_equal(ask(bed, &resolve), HAPAX_ERR_NONE);
    assert_int_equal(resolve.verdict, HAPAX_COMPLETED); /* not forced */
    assert_int_equal(resolve.record.outcome.body.len, 0);
    resolve.force = true;
    assert_int_equal(ask(bed, &resolve), HAPAX_ERR_NONE);
    assert_int_equal(resolve.verdict, HAPAX_OK);
    assert_false(has(read_stored(bed, 1).record.outcome.body, "body"));
    assert_int_equal(repeat(bed, &op, 1), HAPAX_ERR_NONE);
    assert_outcome(&op.record.outcome);
}

/* What cannot be sealed is not stored. */
CASE_WITH(what_cannot_be_sealed_is_refused, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op op = op_of(HAPAX_OP_COMPLETE, 1, 1);
    size_t most = HAPAX_HEADERS_MAX - (3 + strlen("one") + 4 + 4 + 8 + 12 + 16);
    char *long_headers = calloc(1, HAPAX_HEADERS_MAX);

    assert_non_null(long_headers);
    memset(long_headers, 'x', HAPAX_HEADERS_MAX);
    op.outcome.headers = (struct hapax_span){(uint8_t *)long_headers, most + 1};
    assert_int_equal(ask(bed, &op), HAPAX_ERR_TOO_BIG);
    op.outcome.headers.len = most;
    assert_int_equal(ask(bed, &op), HAPAX_ERR_NONE);
    long_headers[0] = '\0';
    assert_int_equal(ask(bed, &op), HAPAX_ERR_INVALID);
    free(long_headers);
}

/* A form of a later version is an error of its own. */
CASE_WITH(a_later_form_is_unsupported, set_up, tear_down)
{
    static const uint8_t later[] = {0, 2, 1, 'k', 0, 0, 0, 0};
    struct bed *bed = *state;
    struct hapax_op op = {.kind = HAPAX_OP_READ, .verdict = HAPAX_FOUND};

    op.record.outcome.headers = (struct hapax_span){later, sizeof(later)};
    hapax__unseal(&bed->keys, &op, &bed->arena, bed->text);
    assert_int_equal(op.error, HAPAX_ERR_UNSUPPORTED);
    assert_non_null(strstr(bed->text, "form 2"));
}

/* The same through hapax_store_run(): an op that fails its check goes beside those that are sealed,
 * and a handle without keys opens nothing. */
CASE(a_handle_seals_what_it_stores)
{
    struct hapax_op ops[3] = {op_of(HAPAX_OP_CLAIM, 1, 1), op_of(HAPAX_OP_COMPLETE, 1, 1),
                              op_of(HAPAX_OP_CLAIM, 1, 2)};
    char text[HAPAX_TEXT_MAX];
    struct hapax_store *store;

    assert_int_equal(hapax_store_open(&store, "memory:", text), HAPAX_ERR_NONE);
    assert_int_equal(hapax_store_keys(store, hapax_str("one 12")), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_store_keys(store, hapax_str(ONE)), HAPAX_ERR_NONE);
    assert_int_equal(hapax_store_run(store, ops, 3), HAPAX_ERR_NONE);
    assert_outcome(&ops[1].record.outcome);
    assert_outcome(&ops[2].record.outcome);
    ops[1].outcome.status = 1000;
    assert_int_equal(hapax_store_run(store, ops + 1, 2), HAPAX_ERR_INVALID);
    assert_int_equal(ops[2].verdict, HAPAX_COMPLETED);
    assert_outcome(&ops[2].record.outcome);
    assert_int_equal(hapax_store_keys(store, hapax_str(NULL)), HAPAX_ERR_NONE);
    assert_int_equal(hapax_store_run(store, ops + 2, 1), HAPAX_ERR_SEALED);
    hapax_store_close(store);
}

/* What a keys file may say, and what is said of one that is wrong: never its key. */
CASE(a_keys_file_is_read)
{
    static const struct {
        const char *text, *why; /* why NULL: it is right */
    } plays[] = {
        {"", NULL},
        {"# none yet\n\n", NULL},
        {"# new\n" TWO "\n# old\n" ONE, NULL},
        {"sealed-only\n" ONE, NULL},
        {"sealed-only\n", "it says sealed-only, and has no key"},
        {ONE ONE, "line 2: this id stands before"},
        {"on/e 00", "line 1: an id has"},
        {"one", "line 1: it is not"},
        {"one 0123", "line 1: it is not"},
        {"one 0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef", "line 1: it is"},
        {"one 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef ", "line 1: it is"},
        {"a-name-of-more-than-32-characters 00", "line 1: an id has"},
    };
    char why[HAPAX_TEXT_MAX], many[20 * 70];
    struct hapax__keys keys;
    size_t len = 0;

    for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++) {
        enum hapax_error error = hapax__keys_read(&keys, hapax_str(plays[i].text), why);

        assert_int_equal(error, plays[i].why ? HAPAX_ERR_INVALID : HAPAX_ERR_NONE);
        if (plays[i].why) {
            assert_non_null(strstr(why, plays[i].why));
            assert_null(strstr(why, "0123"));
        }
    }
    assert_int_equal(hapax__keys_read(&keys, hapax_str(TWO ONE "sealed-only"), why),
                     HAPAX_ERR_NONE);
    assert_int_equal(keys.n, 2);
    assert_true(keys.required);
    assert_string_equal(keys.key[0].id, "two");
    for (int i = 0; i < 17; i++)
        len += (size_t)snprintf(many + len, sizeof(many) - len, "k%d %064d\n", i, i);
    assert_int_equal(hapax__keys_read(&keys, hapax_str(many), why), HAPAX_ERR_INVALID);
    assert_non_null(strstr(why, "line 17: there are more than 16 keys"));
    assert_int_equal(hapax__keys_read(&keys, (struct hapax_span){NULL, 4097}, why),
                     HAPAX_ERR_INVALID);
}
