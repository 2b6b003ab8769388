/* SPDX-License-Identifier: Apache-2.0
 *
 * The Redis store on processes that the test plays: what is answered where replies are lost,
 * replicas are missing, or one batch takes several rounds. Real servers can be brought to each of
 * these only by chance. /
 */
#include "redis_play.h"

#include "../cases.h"
#include "base/clock.h"

#include <hapax/store.h>

#include <stdio.h>
#include <string.h>

#define PLAYS 4u

#define HEAD       "$10\r\n1700000000\r\n$1\r\n0\r\n"
#define ABSENT     ":10\r\n$-1\r\n"
#define LOST       ":8\r\n$-1\r\n"
#define FORGOTTEN  ":263\r\n$-1\r\n" /* OK, once the replicas hold it */
#define LATER      ":-4\r\n$3\r\n100\r\n"
#define NOREPLICAS ":-1\r\n$23\r\nNOREPLICAS Not enough..\r\n"
#define ONE(said)  "*4\r\n" HEAD said
#define TWO(a, b)  "*6\r\n" HEAD a b

struct bed {
    struct play plays[PLAYS];
    struct hapax_store *store;
    char names[PLAYS][80]; /* what a sentinel says to name a play */
};

static void bed_open(struct bed *bed, const char *format, size_t hosts)
{
    char uri[200], text[HAPAX_TEXT_MAX];

    for (size_t k = 0; k < PLAYS; k++) {
        char port[8];

        play_open(&bed->plays[k]);
        snprintf(port, sizeof(port), "%u", (unsigned)bed->plays[k].port);
        snprintf(bed->names[k], sizeof(bed->names[k]), "*2\r\n$9\r\n127.0.0.1\r\n$%zu\r\n%s\r\n",
                 strlen(port), port);
        play_rule(&bed->plays[k], "ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n", 0);
    }
    if (hosts == 1)
        snprintf(uri, sizeof(uri), "redis://127.0.0.1:%u%s", (unsigned)bed->plays[0].port, format);
    else
        snprintf(uri, sizeof(uri), "redis+sentinel://127.0.0.1:%u,127.0.0.1:%u/main%s",
                 (unsigned)bed->plays[0].port, (unsigned)bed->plays[1].port, format);
    if (hapax_store_open(&bed->store, uri, text) != HAPAX_ERR_NONE)
        fail_msg("%s", text);
}

static void bed_close(struct bed *bed)
{
    hapax_store_close(bed->store);
    for (size_t k = 0; k < PLAYS; k++)
        play_close(&bed->plays[k]);
}

static struct hapax_op op_of(enum hapax_op_kind kind, uint8_t n)
{
    struct hapax_op op = {.kind = kind, .lease_ms = 60000, .retention_ms = 3600000};

    memset(&op.id, n, sizeof(op.id));
    memset(&op.token, 7, sizeof(op.token));
    op.scope = hapax_str("scope");
    op.on_expired = HAPAX_EXPIRED_RERUN;
    return op;
}

/* A link that has worked before, so that a reply lost on it is asked for again. */
static void warm(struct bed *bed)
{
    struct hapax_op op = op_of(HAPAX_OP_READ, 1);

    play_rule(&bed->plays[0], "EVALSHA", ONE(ABSENT), 1);
    assert_int_equal(hapax_store_run(bed->store, &op, 1), HAPAX_ERR_NONE);
}

/* A refusal answers the repeat alone: the try whose reply was lost may have been carried out. */
CASE(a_refused_repeat_is_not_surely_undone)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);
    struct bed bed;

    bed_open(&bed, "?timeout=30s", 1);
    warm(&bed);
    play_rule(&bed.plays[0], "EVALSHA", CUT, 1);
    play_rule(&bed.plays[0], "EVALSHA", ONE(NOREPLICAS), 1);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_INDETERMINATE);
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    /* Where nothing was lost it is. */
    play_rule(&bed.plays[0], "EVALSHA", ONE(NOREPLICAS), 1);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_UNAVAILABLE);
    bed_close(&bed);
}

/* Nor where the repeat left the op to a later round, and that one refused it. */
CASE(a_repeat_left_for_later_is_not_surely_undone)
{
    struct hapax_op ops[] = {op_of(HAPAX_OP_COMPLETE, 1), op_of(HAPAX_OP_COMPLETE, 2)};
    struct bed bed;

    bed_open(&bed, "?timeout=30s", 1);
    warm(&bed);
    play_rule(&bed.plays[0], "EVALSHA", CUT, 1);
    play_rule(&bed.plays[0], "EVALSHA", TWO(LOST, LATER), 1);
    play_rule(&bed.plays[0], "EVALSHA", ONE(NOREPLICAS), 1);
    assert_int_equal(hapax_store_run(bed.store, ops, 2), HAPAX_ERR_INDETERMINATE);
    assert_int_equal(ops[0].verdict, HAPAX_LOST);
    assert_int_equal(ops[1].error, HAPAX_ERR_INDETERMINATE);
    bed_close(&bed);
}

/* All rounds of a batch share one timeout: here the first takes most of it, and the second is not
 * answered. */
CASE(the_rounds_of_a_batch_share_one_timeout)
{
    struct hapax_op ops[] = {op_of(HAPAX_OP_READ, 1), op_of(HAPAX_OP_READ, 2)};
    int64_t took_us = INT64_MAX;

    for (unsigned tries = 0; took_us > 3300000;
         tries++) { /* others may keep us from the processor */
        int64_t before_us = hapax__monotonic_us();
        struct bed bed;

        assert_true(tries < 6);
        bed_open(&bed, "?timeout=2s", 2);
        play_rule(&bed.plays[0], "SENTINEL", bed.names[2], 0);
        play_rule(&bed.plays[2], "EVALSHA", "-READONLY for a while\r\n", 70); /* 20 ms each */
        play_rule(&bed.plays[2], "EVALSHA", TWO(ABSENT, LATER), 1);
        play_rule(&bed.plays[2], "EVALSHA", HANG, 0);
        assert_int_not_equal(hapax_store_run(bed.store, ops, 2), HAPAX_ERR_NONE);
        took_us = hapax__monotonic_us() - before_us;
        assert_true(took_us >= 1400000);
        bed_close(&bed);
    }
}

/* Two sentinels name two primaries. No replica follows the first primary, and its script replies
 * `script`, so the op ends with `error`. The next batch asks the other sentinel, and so the other
 * primary. */
static void expect_doubt(const char *script, enum hapax_error error)
{
    struct hapax_op op = op_of(HAPAX_OP_RESOLVE, 1);
    struct bed bed;

    op.resolve = HAPAX_RESOLVE_FORGET;
    op.force = true;
    bed_open(&bed, "?timeout=30s&wait=1", 2);
    play_rule(&bed.plays[0], "SENTINEL", bed.names[2], 0);
    play_rule(&bed.plays[1], "SENTINEL", bed.names[3], 0);
    play_rule(&bed.plays[2], "EVALSHA", script, 0);
    play_rule(&bed.plays[2], "WAIT", ":0\r\n", 0);
    play_rule(&bed.plays[3], "EVALSHA", ONE(FORGOTTEN), 0);
    play_rule(&bed.plays[3], "WAIT", ":1\r\n", 0);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), error);
    assert_int_equal(play_met(&bed.plays[3]), 0);
    assert_int_equal(hapax_store_run(bed.store, &op, 1), HAPAX_ERR_NONE);
    assert_int_equal(op.verdict, HAPAX_OK);
    assert_int_equal(play_met(&bed.plays[0]), 1);
    bed_close(&bed);
}

/* A primary whose replicas do not follow it may be the one of before: the next batch asks who it is
 * now, and another sentinel than the one that named it. */
CASE(a_primary_without_its_replicas_is_doubted)
{
    expect_doubt(ONE(FORGOTTEN), HAPAX_ERR_INDETERMINATE);
}

/* So is one that refuses an op for the same reason, and it is doubted once: with two sentinels a
 * second doubt would bring the first one back. */
CASE(a_primary_is_doubted_once_in_a_round)
{
    expect_doubt(ONE(NOREPLICAS), HAPAX_ERR_UNAVAILABLE);
}

/* What a list asks for first in its next part, where this is who answers before and after it. */
static void expect_scan(struct bed *bed, struct hapax_op *op, const char *before, const char *after,
                        const char *scan)
{
    struct play *play = &bed->plays[0];
    const char *log;

    play_forget(play);
    play_rule(play, "TIME", "*2\r\n" HEAD, 0);
    play_rule(play, "SCAN", "*2\r\n$1\r\n5\r\n*0\r\n", 0); /* never ends */
    play_rule(play, "INFO", before, 1);
    play_rule(play, "INFO", after, 0);
    assert_int_equal(hapax_store_run(bed->store, op, 1), HAPAX_ERR_NONE);
    assert_true(op->more);
    op->cursor = op->next_cursor;
    log = strstr(play_log(play), "SCAN ");
    assert_non_null(log);
    assert_memory_equal(log, scan, strlen(scan));
}

/* A cursor of SCAN means nothing to another process: where one was restarted or took over, before a
 * part of a list or within it, its keys are walked anew. Where nobody says who it is, the list goes
 * on. */
CASE(a_list_begins_anew_with_another_process)
{
    static const char one[] = "$17\r\nrun_id:0a11223344\r\n";
    static const char other[] = "$17\r\nrun_id:0b11223344\r\n";
    static const char silent[] = "-NOPERM no\r\n";
    struct hapax_op op = {.kind = HAPAX_OP_LIST};
    struct bed bed;

    bed_open(&bed, "?timeout=30s", 1);
    expect_scan(&bed, &op, one, one, "SCAN 0 ");
    expect_scan(&bed, &op, one, one, "SCAN 5 ");
    expect_scan(&bed, &op, other, other, "SCAN 0 ");
    expect_scan(&bed, &op, other, one, "SCAN 5 ");
    expect_scan(&bed, &op, one, one, "SCAN 0 ");
    op.cursor = (struct hapax_id){{0}};
    expect_scan(&bed, &op, silent, silent, "SCAN 0 ");
    expect_scan(&bed, &op, silent, silent, "SCAN 5 ");
    bed_close(&bed);
}
