/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems: every answer that has one, their texts, and the pages about them.
 */
#include "../cases.h"
#include "http/problem.h"

#include <stdlib.h>
#include <string.h>

static const enum hapax_answer_kind kinds[] = {
    HAPAX_ANSWER_FAILED,     HAPAX_ANSWER_REPLAY,        HAPAX_ANSWER_MISSING_KEY,
    HAPAX_ANSWER_BAD_KEY,    HAPAX_ANSWER_IN_FLIGHT,     HAPAX_ANSWER_UNKNOWN,
    HAPAX_ANSWER_MISMATCH,   HAPAX_ANSWER_GONE,          HAPAX_ANSWER_TOO_LARGE,
    HAPAX_ANSWER_STORE_DOWN, HAPAX_ANSWER_MISSING_OWNER, HAPAX_ANSWER_LIMITED,
    HAPAX_ANSWER_EXPIRED,
};

static void check_problem(const struct hapax__problem *problem)
{
    const struct hapax__problem_page page = {.problem = problem, .why = "why it is so"};
    struct hapax__json_out out = {0};
    struct hapax_span text;

    assert_in_range(problem->status, 400, 599);
    assert_in_range(problem->grpc, 1, 16);
    hapax__problem_put_message(&out, &page);
    assert_string_equal(out.bytes + out.len - strlen(" Why it is so."), " Why it is so.");
    for (size_t i = 0; i < out.len; i++)
        assert_true(out.bytes[i] >= ' ' && out.bytes[i] <= '~' && !strchr("%\"\\", out.bytes[i]));
    hapax__json_free(&out);
    assert_true(hapax__problem_find(&text, hapax_str(problem->slug)));
}

/* Each problem has a page, and a message that is a grpc-message and a part of a JSON string as it
 * stands. */
CASE(every_problem_has_texts_and_a_page)
{
    struct hapax_answer answer = {.retry_after_ms = -1};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        answer.kind = kinds[i];
        check_problem(hapax__problem_page_of(&answer, 1000).problem);
    }
    check_problem(&hapax__problem_full);
    check_problem(&hapax__problem_truncated);
    check_problem(&hapax__problem_failed);
    check_problem(&hapax__problem_timeout);
    check_problem(&hapax__problem_unreachable);
}

/* Another caller's key is told apart; and an unknown outcome that a hook may clear up may be asked
 * for again. */
CASE(a_problem_follows_from_the_whole_answer)
{
    struct hapax_answer answer = {
        .kind = HAPAX_ANSWER_MISMATCH, .differs = HAPAX_DIFFERS_CALLER, .retry_after_ms = -1};

    assert_string_equal(hapax__problem_page_of(&answer, 1000).problem->slug, "caller-mismatch");
    answer = (struct hapax_answer){.kind = HAPAX_ANSWER_BAD_KEY, .key_min = 16};
    assert_int_equal(hapax__problem_page_of(&answer, 1000).key_min, 16);
    answer = (struct hapax_answer){.kind = HAPAX_ANSWER_UNKNOWN, .retry_after_ms = -1};
    assert_int_equal(hapax__problem_page_of(&answer, 1000).problem->grpc, 9);
    answer.retry_after_ms = 1000;
    assert_int_equal(hapax__problem_page_of(&answer, 1000).problem->grpc, 10);
    answer = (struct hapax_answer){.kind = HAPAX_ANSWER_IN_FLIGHT, .silent_ms = 2999};
    assert_int_equal(hapax__problem_page_of(&answer, 1000).since_s, 998);
    answer.silent_ms = -1;
    assert_int_equal(hapax__problem_page_of(&answer, 1000).since_s, 0);
}
