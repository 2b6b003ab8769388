/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the check value of a rotation is gone for a moment, and a door opens the store then. A
 * store that fails on purpose lets the ops of a step come one by one, as DynamoDB judges them.
 */
#include "store/rotation/rotation.h"

#include "../cases.h"
#include "../store/faulty.h"
#include "store/types.h"

#include <string.h>

#define WAIT_MS 60000

struct bed {
    struct hapax__plan plan;
    struct hapax_store *inner, *store;
    struct hapax__secrets both;
    uint64_t forgotten; /* of the ops, the one that is answered late */
    struct hapax_op late; /* a FORGET that was lost, and comes while that one is not answered */
    enum hapax__rotation to;
    enum hapax_error error; /* of the step */
};

static int set_up(void **state)
{
    struct bed *bed = test_calloc(1, sizeof(*bed));
    char text[HAPAX_TEXT_MAX];
    enum hapax__rotation at;

    bed->both = (struct hapax__secrets){.now = hapax_str("new"), .old = hapax_str("old")};
    hapax__plan_init(&bed->plan);
    assert_int_equal(hapax_store_open(&bed->inner, "memory:", text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__faulty_wrap(&bed->store, bed->inner, &bed->plan), HAPAX_ERR_NONE);
    assert_int_equal(hapax_store_bind(bed->inner, bed->both.old), HAPAX_ERR_NONE);
    assert_int_equal(hapax__rotation_bind(bed->inner, &bed->both, &at), HAPAX_ERR_NONE);
    assert_int_equal(at, HAPAX__ROTATION_BEGUN);
    *state = bed;
    return 0;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;

    hapax_store_close(bed->store);
    hapax__plan_release(&bed->plan);
    test_free(bed);
    return 0;
}

static enum hapax__fault after_the_first_forget(void *arg, uint64_t number,
                                                const struct hapax_op *op)
{
    struct bed *bed = arg;

    if (op->kind == HAPAX_OP_RESOLVE && bed->forgotten == 0)
        bed->forgotten = number;
    return bed->forgotten == number ? HAPAX__DELAY_REPLY : HAPAX__NO_FAULT;
}

static void *step(void *arg)
{
    struct bed *bed = arg;

    bed->error = hapax__rotation_step(bed->store, &bed->both, bed->to);
    return NULL;
}

/* A step to `to`, with a door of these secrets in its gap. */
static void step_with(struct bed *bed, enum hapax__rotation to,
                      const struct hapax__secrets *secrets)
{
    enum hapax__rotation at;
    pthread_t thread;

    bed->to = to;
    bed->forgotten = 0;
    hapax__plan_decide(&bed->plan, after_the_first_forget, bed);
    assert_int_equal(pthread_create(&thread, NULL, step, bed), 0);
    assert_true(hapax__plan_wait(&bed->plan, 1, WAIT_MS));
    assert_int_equal(secrets->old.ptr ? hapax__rotation_bind(bed->inner, secrets, &at)
                                      : hapax_store_bind(bed->inner, secrets->now),
                     HAPAX_ERR_NONE);
    if (bed->late.kind)
        assert_int_equal(hapax_store_run(bed->inner, &bed->late, 1), HAPAX_ERR_NONE);
    hapax__plan_set(&bed->plan, HAPAX__NO_FAULT, 0, 0);
    hapax__plan_go(&bed->plan);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static enum hapax__rotation at_of(struct bed *bed)
{
    enum hapax__rotation at;
    int64_t since_us;

    assert_int_equal(hapax__rotation_read(bed->inner, &bed->both, &at, &since_us), HAPAX_ERR_NONE);
    return at;
}

/* It would run again what the old secret knows, so the step does not end there, and says so. */
CASE_WITH(one_with_the_new_secret_comes_too_early, set_up, tear_down)
{
    struct bed *bed = *state;

    step_with(bed, HAPAX__ROTATION_BOTH, &(struct hapax__secrets){.now = bed->both.now});
    assert_int_equal(bed->error, HAPAX_ERR_REFUSED);
    assert_non_null(strstr(hapax_store_text(bed->store), "the new secret alone"));
    assert_int_equal(at_of(bed), HAPAX__ROTATION_BOTH);
    assert_int_equal(hapax_store_bind(bed->inner, bed->both.now), HAPAX_ERR_REFUSED);
}

/* Where a step was interrupted, the next one cannot tell it from an end. */
CASE_WITH(one_that_came_before_the_step_is_told, set_up, tear_down)
{
    struct bed *bed = *state;

    step_with(bed, HAPAX__ROTATION_BOTH, &bed->both);
    assert_int_equal(hapax__rotation_step(bed->inner, &bed->both, HAPAX__ROTATION_ENDED),
                     HAPAX_ERR_NONE);
    assert_int_equal(hapax__rotation_step(bed->inner, &bed->both, HAPAX__ROTATION_BOTH),
                     HAPAX_ERR_REFUSED);
    assert_non_null(strstr(hapax_store_text(bed->inner), "\"ended\""));
}

/* A door with both secrets takes the gap for a beginning; the step goes on all the same. */
CASE_WITH(a_step_goes_on_over_a_beginning, set_up, tear_down)
{
    struct bed *bed = *state;

    step_with(bed, HAPAX__ROTATION_BOTH, &bed->both);
    assert_int_equal(bed->error, HAPAX_ERR_NONE);
    assert_int_equal(at_of(bed), HAPAX__ROTATION_BOTH);
}

/* Whom the gap of the last step let in with the old secret would run again what is known under the
 * new one. So the step does not end there, a new wait begins, and the next step ends. */
static void is_not_ended_over(struct bed *bed, const struct hapax__secrets *secrets)
{
    enum hapax__rotation at;
    int64_t before_us, since_us;

    assert_int_equal(hapax__rotation_step(bed->inner, &bed->both, HAPAX__ROTATION_BOTH),
                     HAPAX_ERR_NONE);
    assert_int_equal(hapax__rotation_read(bed->inner, &bed->both, &at, &before_us), HAPAX_ERR_NONE);
    step_with(bed, HAPAX__ROTATION_ENDED, secrets);
    assert_int_equal(bed->error, HAPAX_ERR_REFUSED);
    assert_non_null(strstr(hapax_store_text(bed->store), "one secret alone"));
    assert_int_equal(hapax__rotation_read(bed->inner, &bed->both, &at, &since_us), HAPAX_ERR_NONE);
    assert_int_equal(at, HAPAX__ROTATION_BOTH);
    assert_true(since_us > before_us);
    assert_int_equal(hapax_store_bind(bed->inner, bed->both.old), HAPAX_ERR_REFUSED);
    assert_int_equal(hapax_store_bind(bed->inner, bed->both.now), HAPAX_ERR_REFUSED);
    assert_int_equal(hapax__rotation_step(bed->inner, &bed->both, HAPAX__ROTATION_ENDED),
                     HAPAX_ERR_NONE);
}

/* One that was refused before comes again in the gap. */
CASE_WITH(one_with_the_old_secret_in_the_gap_of_the_end, set_up, tear_down)
{
    struct bed *bed = *state;

    is_not_ended_over(bed, &(struct hapax__secrets){.now = bed->both.old});
}

/* What it leaves there lets one with the old secret in, who is not seen. */
CASE_WITH(one_with_both_secrets_in_the_gap_of_the_end, set_up, tear_down)
{
    struct bed *bed = *state;

    is_not_ended_over(bed, &bed->both);
}

static enum hapax__fault lose_the_forget(void *arg, uint64_t number, const struct hapax_op *op)
{
    struct bed *bed = arg;

    (void)number;
    if (op->kind != HAPAX_OP_RESOLVE)
        return HAPAX__NO_FAULT;
    bed->late = *op;
    return HAPAX__LOSE_OP;
}

/* A step has failed, and was given again. What the first one has sent still comes: it takes away
 * nothing but what that step has seen. */
CASE_WITH(a_late_forget_hides_nobody, set_up, tear_down)
{
    struct bed *bed = *state;

    assert_int_equal(hapax__rotation_step(bed->inner, &bed->both, HAPAX__ROTATION_BOTH),
                     HAPAX_ERR_NONE);
    hapax__plan_decide(&bed->plan, lose_the_forget, bed);
    assert_int_equal(hapax__rotation_step(bed->store, &bed->both, HAPAX__ROTATION_ENDED),
                     HAPAX_ERR_INDETERMINATE);
    step_with(bed, HAPAX__ROTATION_ENDED, &(struct hapax__secrets){.now = bed->both.old});
    assert_int_equal(bed->late.verdict, HAPAX_LOST);
    assert_int_equal(bed->error, HAPAX_ERR_REFUSED);
    assert_int_equal(at_of(bed), HAPAX__ROTATION_BOTH);
}

static enum hapax__fault hold_completions(void *arg, uint64_t number, const struct hapax_op *op)
{
    (void)arg;
    (void)number;
    return op->kind == HAPAX_OP_COMPLETE ? HAPAX__DELAY : HAPAX__NO_FAULT;
}

static void *bind_old(void *arg)
{
    struct bed *bed = arg;

    bed->error = hapax_store_bind(bed->store, bed->both.old);
    return NULL;
}

/* A door whose value is forgotten before it is completed has not opened the store. */
CASE_WITH(a_value_that_is_forgotten_binds_nobody, set_up, tear_down)
{
    struct bed *bed = *state;
    struct hapax_op forget = {
        .kind = HAPAX_OP_RESOLVE, .resolve = HAPAX_RESOLVE_FORGET, .token = {{'f'}}, .force = true};
    struct hapax_digest value;
    pthread_t thread;

    assert_int_equal(hapax__rotation_back(bed->inner, &bed->both), HAPAX_ERR_NONE);
    hapax__bind_check(&forget.id, &value, bed->both.now);
    assert_int_equal(hapax_store_run(bed->inner, &forget, 1), HAPAX_ERR_NONE);
    assert_int_equal(forget.verdict, HAPAX_OK);
    hapax__plan_decide(&bed->plan, hold_completions, NULL);
    assert_int_equal(pthread_create(&thread, NULL, bind_old, bed), 0);
    assert_true(hapax__plan_wait(&bed->plan, 1, WAIT_MS));
    assert_int_equal(hapax__rotation_step(bed->inner, &bed->both, HAPAX__ROTATION_BOTH),
                     HAPAX_ERR_NONE);
    hapax__plan_set(&bed->plan, HAPAX__NO_FAULT, 0, 0);
    hapax__plan_go(&bed->plan);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(bed->error, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(hapax_store_bind(bed->inner, bed->both.old), HAPAX_ERR_REFUSED);
}

/* What was begun with one new secret may be begun with another once it was given up. */
CASE_WITH(a_beginning_is_given_up, set_up, tear_down)
{
    struct bed *bed = *state;
    const struct hapax__secrets other = {.now = hapax_str("third"), .old = bed->both.old};
    enum hapax__rotation at;

    assert_int_equal(hapax__rotation_bind(bed->inner, &other, &at), HAPAX_ERR_REFUSED);
    assert_int_equal(hapax__rotation_back(bed->inner, &bed->both), HAPAX_ERR_NONE);
    assert_int_equal(hapax__rotation_bind(bed->inner, &other, &at), HAPAX_ERR_NONE);
    assert_int_equal(hapax__rotation_step(bed->inner, &other, HAPAX__ROTATION_BOTH),
                     HAPAX_ERR_NONE);
    assert_int_equal(hapax__rotation_back(bed->inner, &other), HAPAX_ERR_REFUSED);
}
