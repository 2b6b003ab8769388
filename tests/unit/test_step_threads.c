/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax_step() where much happens at once: threads and zombies of one operation, the list of its
 * steps, records that were forgotten, replies that are lost and memory that runs out.
 */
#include "../cases.h"
#include "oom.h"
#include "step_bed.h"

/* ---- threads and zombies -------------------------------------------------------------------- */

#define THREADS 8

struct helper {
    struct hapax_attempt *attempt;
    char name[16];
    struct script *script;
    enum hapax_answer_kind kind;
    char body[32];
    pthread_t thread;
};

static void *helper_main(void *arg)
{
    struct helper *helper = arg;
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    must(hapax_step(helper->attempt, helper->name, play, helper->script, &answer, text) ==
         HAPAX_ERR_NONE);
    helper->kind = answer.kind;
    must(answer.outcome.body.len < sizeof(helper->body));
    memcpy(helper->body, answer.outcome.body.ptr, answer.outcome.body.len);
    hapax_answer_release(&answer);
    return NULL;
}

struct crew {
    struct helper helpers[THREADS];
    struct script scripts[THREADS];
    bool same; /* all of them run the one step */
};

static enum hapax_class run_crew(struct hapax_attempt *attempt, void *arg)
{
    struct crew *crew = arg;

    for (size_t i = 0; i < THREADS; i++) {
        struct helper *helper = &crew->helpers[i];

        helper->attempt = attempt;
        helper->script = &crew->scripts[crew->same ? 0 : i];
        snprintf(helper->name, sizeof(helper->name), "part %zu", crew->same ? 0 : i);
        must(pthread_create(&helper->thread, NULL, helper_main, helper) == 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        must(pthread_join(crew->helpers[i].thread, NULL) == 0);
    return HAPAX_CLASS_FINAL;
}

static void run_with_crew(struct bed *bed, const char *key, struct crew *crew, bool same)
{
    struct hapax_request request = request_of(key);
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    memset(crew, 0, sizeof(*crew));
    crew->same = same;
    for (size_t i = 0; i < THREADS; i++)
        script_init(&crew->scripts[i], HAPAX_CLASS_FINAL, 200, "done");
    assert_int_equal(
        hapax_execute(bed->h, &bed->policy, &request, run_crew, NULL, crew, &answer, text),
        HAPAX_ERR_NONE);
    hapax_answer_release(&answer);
}

/* Threads of one attempt that ask for one step: one runs it, the others are given its outcome. */
CASE(threads_of_an_attempt_share_a_step)
{
    unsigned fresh = 0;
    struct crew crew;
    struct bed bed;

    bed_open(&bed);
    run_with_crew(&bed, "k", &crew, true);
    assert_int_equal(crew.scripts[0].runs, 1);
    for (size_t i = 0; i < THREADS; i++) {
        fresh += crew.helpers[i].kind == HAPAX_ANSWER_FRESH;
        assert_true(crew.helpers[i].kind == HAPAX_ANSWER_FRESH ||
                    crew.helpers[i].kind == HAPAX_ANSWER_REPLAY);
        assert_string_equal(crew.helpers[i].body, "done");
    }
    assert_int_equal(fresh, 1);
    bed_close(&bed);
}

struct zombie {
    struct bed *bed;
    struct order order; /* what it does once its claim is lost */
    bool within; /* it sleeps in a step, and not before it */
    sem_t entered;
    enum hapax_answer_kind kind;
    char body[32];
};

static void sleep_until_lost(struct hapax_attempt *attempt, struct zombie *zombie)
{
    int64_t until_ms = now_ms() + WAIT_MS;

    sem_post(&zombie->entered);
    while (!hapax_attempt_lost(attempt)) {
        struct timespec moment = {0, 1000000};

        must(now_ms() < until_ms);
        nanosleep(&moment, NULL);
    }
}

static enum hapax_class sleep_in_step(struct hapax_attempt *attempt, void *arg)
{
    sleep_until_lost(attempt, arg);
    must(hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str("of the zombie")) ==
         HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

static enum hapax_class handle_zombie(struct hapax_attempt *attempt, void *arg)
{
    struct zombie *zombie = arg;
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    if (!zombie->within) {
        sleep_until_lost(attempt, zombie);
        must(!do_step(&zombie->order, 0, attempt));
        zombie->kind = zombie->order.kinds[0];
        return HAPAX_CLASS_FAILED;
    }
    must(hapax_step(attempt, "charge", sleep_in_step, zombie, &answer, text) == HAPAX_ERR_NONE);
    zombie->kind = answer.kind;
    must(answer.outcome.body.len < sizeof(zombie->body));
    if (answer.outcome.body.len > 0)
        memcpy(zombie->body, answer.outcome.body.ptr, answer.outcome.body.len);
    hapax_answer_release(&answer);
    return HAPAX_CLASS_FINAL;
}

static void *zombie_main(void *arg)
{
    struct zombie *zombie = arg;
    struct hapax_policy policy = zombie->bed->policy;
    struct hapax_request request = request_of("k");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    policy.attempts_max = 5; /* so that it does not share the question of the other */
    must(hapax_execute(zombie->bed->h, &policy, &request, handle_zombie, NULL, zombie, &answer,
                       text) == HAPAX_ERR_NONE);
    hapax_answer_release(&answer);
    return NULL;
}

static enum hapax__fault fail_renewals(void *arg, uint64_t number, const struct hapax_op *op)
{
    (void)arg;
    (void)number;
    return op->kind == HAPAX_OP_RENEW ? HAPAX__FAIL_BEFORE : HAPAX__NO_FAULT;
}

static enum hapax__fault no_fault(void *arg, uint64_t number, const struct hapax_op *op)
{
    (void)arg;
    (void)number;
    (void)op;
    return HAPAX__NO_FAULT;
}

/* A zombie and its successor over one operation: each step is the successor's. */
static void overtake(bool within)
{
    struct zombie zombie;
    struct order order;
    pthread_t thread;
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 200;
    memset(&zombie, 0, sizeof(zombie));
    zombie.bed = &bed;
    zombie.within = within;
    order_init(&zombie.order, &bed);
    order_init(&order, &bed);
    sem_init(&zombie.entered, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, zombie_main, &zombie), 0);
    wait_for(&zombie.entered);
    hapax__plan_decide(&bed.plan, fail_renewals, NULL);
    bed.policy.lease_ms = WAIT_MS; /* the successor's, which needs no renewal */
    assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_FRESH);
    assert_int_equal(order.steps[0].stale, within);
    assert_int_equal(order.steps[0].number, within ? 2 : 1);
    hapax__plan_decide(&bed.plan, no_fault, NULL);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(zombie.kind, within ? HAPAX_ANSWER_REPLAY : HAPAX_ANSWER_IN_FLIGHT);
    assert_string_equal(zombie.body, within ? "charged" : "");
    assert_int_equal(zombie.order.steps[0].runs, 0);
    if (!within) /* nobody has asked how the successor is */
        assert_int_equal(zombie.order.silent_ms, -1);
    bed_close(&bed);
}

/* An attempt whose claim is lost begins no step. */
CASE(a_lost_claim_begins_no_step)
{
    overtake(false);
}

/* One that is lost within a step is told so there, and is given what its successor made of the
 * step. */
CASE(a_claim_lost_within_a_step_is_told_there)
{
    overtake(true);
}

/* ---- the list ------------------------------------------------------------------------- */

struct list {
    struct hapax_digest fingerprint;
    struct hapax_id places[THREADS * THREADS];
    size_t claimed;
    char names[THREADS * THREADS][16];
    size_t named;
    bool fail;
    int64_t retention_ms; /* of the last CLAIM */
};

static enum hapax__fault note_list(void *arg, uint64_t number, const struct hapax_op *op)
{
    struct list *list = arg;
    bool place = false;

    (void)number;
    if (op->kind == HAPAX_OP_CLAIM) {
        list->retention_ms = op->retention_ms;
        if (memcmp(&op->fingerprint, &list->fingerprint, sizeof(op->fingerprint)) == 0) {
            must(list->claimed < THREADS * THREADS);
            list->places[list->claimed++] = op->id;
            place = true;
        }
    }
    for (size_t i = 0; i < list->claimed && op->kind == HAPAX_OP_COMPLETE; i++)
        if (memcmp(&op->id, &list->places[i], sizeof(op->id)) == 0) {
            snprintf(list->names[list->named++], sizeof(list->names[0]), "%.*s",
                     (int)op->outcome.body.len, (const char *)op->outcome.body.ptr);
            break;
        }
    return place && list->fail ? HAPAX__FAIL_BEFORE : HAPAX__NO_FAULT;
}

static void list_init(struct list *list, struct bed *bed)
{
    const struct hapax_span parts[] = {hapax_str("hapax"), hapax_str("step")};

    memset(list, 0, sizeof(*list));
    hapax_digest(&list->fingerprint, parts, 2);
    hapax__plan_decide(&bed->plan, note_list, list);
}

static void place_is(const struct list *list, size_t i, const char *step)
{
    struct hapax_id id;

    assert_int_equal(hapax_id(&id, hapax_str("default"), hapax_str("k"), hapax_str(step),
                              (struct hapax_span){NULL, 0}),
                     HAPAX_ERR_NONE);
    assert_memory_equal(&list->places[i], &id, sizeof(id));
}

/* Steps are listed under .1, .2, … in the order in which they were first run, each once. */
CASE(steps_are_listed_once)
{
    struct order order;
    struct list list;
    struct bed bed;

    bed_open(&bed);
    order_init(&order, &bed);
    list_init(&list, &bed);
    order.steps[1].cls = HAPAX_CLASS_FAILED;
    order.steps[1].status = 500;
    assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_FRESH);
    assert_int_equal(list.named, 2);
    assert_int_equal(list.claimed, 2);
    assert_string_equal(list.names[0], "charge");
    assert_string_equal(list.names[1], "reserve");
    place_is(&list, 0, ".1");
    place_is(&list, 1, ".2");
    order.steps[1].cls = HAPAX_CLASS_FINAL;
    order.steps[1].status = 200;
    assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_FRESH);
    assert_int_equal(list.named, 3);
    assert_string_equal(list.names[2], "mail");
    place_is(&list, list.claimed - 1, ".3");
    bed_close(&bed);
}

/* Threads that list steps at once: each step has a place, whoever came first. */
CASE(threads_take_places_of_their_own)
{
    unsigned seen = 0;
    struct list list;
    struct crew crew;
    struct bed bed;

    bed_open(&bed);
    list_init(&list, &bed);
    run_with_crew(&bed, "k", &crew, false);
    assert_int_equal(list.named, THREADS);
    for (size_t i = 0; i < list.named; i++) {
        assert_memory_equal(list.names[i], "part ", 5);
        seen |= 1u << (list.names[i][5] - '0');
    }
    assert_int_equal(seen, (1u << THREADS) - 1);
    bed_close(&bed);
}

static enum hapax_class run_many(struct hapax_attempt *attempt, void *arg)
{
    struct script *script = arg;

    for (unsigned i = 0; i < HAPAX_STEPS_MAX + 2; i++) {
        struct hapax_answer answer;
        char text[HAPAX_TEXT_MAX];
        char name[16];

        snprintf(name, sizeof(name), "part %u", i);
        must(hapax_step(attempt, name, play, script, &answer, text) == HAPAX_ERR_NONE);
        must(answer.kind == HAPAX_ANSWER_FRESH);
        hapax_answer_release(&answer);
    }
    return HAPAX_CLASS_FINAL;
}

/* The list has HAPAX_STEPS_MAX places; later steps are run, and not listed. */
CASE(steps_over_the_list_run_all_the_same)
{
    struct hapax_request request = request_of("k");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct script script;
    struct list list;
    struct bed bed;

    bed_open(&bed);
    list_init(&list, &bed);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "done");
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, run_many, NULL, &script, &answer, text),
        HAPAX_ERR_NONE);
    hapax_answer_release(&answer);
    assert_int_equal(script.runs, HAPAX_STEPS_MAX + 2);
    assert_int_equal(list.named, HAPAX_STEPS_MAX);
    bed_close(&bed);
}

/* A step whose name cannot be listed is not run; once the store is back it is. */
CASE(a_step_that_cannot_be_listed_is_not_run)
{
    struct order order;
    struct list list;
    struct bed bed;

    bed_open(&bed);
    order_init(&order, &bed);
    list_init(&list, &bed);
    bed.policy.timeout_ms = 1000; /* within which the operation is claimed */
    list.fail = true;
    order.n = 1;
    assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_STORE_DOWN);
    assert_int_equal(order.steps[0].runs, 0);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed.policy.timeout_ms = WAIT_MS;
    assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_FRESH);
    bed_close(&bed);
}

/* ---- time ----------------------------------------------------------------------------- */

/* An operation that is tried again and again outlives its steps' records in the end; from then on
 * an absent step may be a forgotten one, and is not run. */
CASE(a_step_that_may_be_forgotten_is_not_run)
{
    struct order order;
    struct list list;
    struct bed bed;
    int64_t until_ms;

    bed_open(&bed);
    order_init(&order, &bed);
    list_init(&list, &bed);
    bed.policy.retention_ms = 5000; /* of the operation, since it was last tried */
    bed.policy.lease_ms = 1000;
    bed.policy.run_max_ms = 1000;
    order.n = 1;
    order.ends = HAPAX_CLASS_FAILED;
    until_ms = now_ms() + bed.policy.retention_ms;
    do {
        assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_FRESH);
        assert_true(now_ms() < until_ms + WAIT_MS);
    } while (order.kinds[0] != HAPAX_ANSWER_UNKNOWN);
    assert_true(now_ms() >= until_ms - 10); /* two clocks */
    assert_int_equal(order.steps[0].runs, 1);
    bed_close(&bed);
}

/* A step is kept for as long as its operation, and not for longer. */
CASE(a_step_is_kept_as_its_operation_is)
{
    static const int64_t rows[] = {86400000, HAPAX_DURATION_MAX_MS, HAPAX_FOREVER_MS};
    struct bed bed;

    bed_open(&bed);
    for (size_t i = 0; i < 3; i++) {
        struct order order;
        struct list list;
        char key[16];

        order_init(&order, &bed);
        list_init(&list, &bed);
        bed.policy.retention_ms = rows[i];
        snprintf(key, sizeof(key), "k%zu", i);
        assert_int_equal(run_order(&order, key), HAPAX_ANSWER_FRESH);
        assert_int_equal(list.retention_ms, rows[i]);
    }
    bed_close(&bed);
}

/* ---- faults --------------------------------------------------------------------------- */

static bool one_fault(struct bed *bed, enum hapax__fault fault, uint64_t n)
{
    uint64_t from = hapax__plan_counts(&bed->plan).ops;
    struct order order;
    char key[32];

    order_init(&order, bed);
    order.n = 2;
    snprintf(key, sizeof(key), "%d %u", (int)fault, (unsigned)n);
    hapax__plan_set(&bed->plan, fault, n, 2);
    assert_int_equal(run_order(&order, key), HAPAX_ANSWER_FRESH);
    from = hapax__plan_counts(&bed->plan).ops - from;
    hapax__plan_set(&bed->plan, HAPAX__NO_FAULT, 0, 0);
    assert_int_equal(run_order(&order, key), HAPAX_ANSWER_REPLAY);
    for (size_t i = 0; i < order.n; i++)
        assert_int_equal(order.steps[i].runs, 1);
    return from >= n;
}

/* Whichever op of an operation with two steps is lost or doubled: each step runs once. */
CASE(a_fault_at_any_op_runs_no_step_twice)
{
    static const enum hapax__fault faults[] = {HAPAX__FAIL_BEFORE, HAPAX__LOSE_OP,
                                               HAPAX__LOSE_REPLY, HAPAX__DUPLICATE};
    struct bed bed;

    bed_open(&bed);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        uint64_t n = 1;

        while (one_fault(&bed, faults[i], n))
            n++;
        assert_true(n > 10); /* two for the operation, four for each step */
    }
    bed_close(&bed);
}

/* Handlers that are not told of failed memory by must(): what cannot be set is not run. */
static enum hapax_class play_short(struct hapax_attempt *attempt, void *arg)
{
    struct script *script = arg;

    if (hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str(script->body)) !=
        HAPAX_ERR_NONE)
        return HAPAX_CLASS_NOT_RUN;
    atomic_fetch_add(&script->runs, 1);
    return HAPAX_CLASS_FINAL;
}

static enum hapax_class handle_short(struct hapax_attempt *attempt, void *arg)
{
    struct order *order = arg;

    for (size_t i = 0; i < order->n; i++) {
        struct hapax_answer answer;
        char text[HAPAX_TEXT_MAX];
        enum hapax_error error =
            hapax_step(attempt, order->names[i], play_short, &order->steps[i], &answer, text);
        bool done = error == HAPAX_ERR_NONE && answer.outcome.status == 200;

        must(error == HAPAX_ERR_NONE || error == HAPAX_ERR_NOMEM);
        hapax_answer_release(&answer);
        if (!done)
            return HAPAX_CLASS_FAILED;
    }
    order->runs++;
    return HAPAX_CLASS_FINAL;
}

static enum hapax_error run_short(struct order *order, const char *key)
{
    struct hapax_request request = request_of(key);
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error = hapax_execute(order->bed->h, &order->bed->policy, &request,
                                           handle_short, NULL, order, &answer, text);

    hapax_answer_release(&answer);
    return error;
}

/* Whichever allocation fails: no step runs twice, the next attempt goes on, nothing leaks. */
CASE(without_memory_no_step_runs_twice)
{
    int64_t live = oom_live();
    struct bed bed;
    bool more = true;

    bed_open(&bed);
    bed.policy.save_wait_ms = 30;
    for (uint64_t n = 1; more; n++) {
        struct order order;
        char key[32];

        order_init(&order, &bed);
        order.n = 2;
        snprintf(key, sizeof(key), "k%u", (unsigned)n);
        bed.policy.timeout_ms = 30;
        oom_fail_at(n, false);
        run_short(&order, key);
        more = oom_count() >= n;
        oom_fail_at(0, false);
        bed.policy.timeout_ms = WAIT_MS;
        assert_int_equal(run_short(&order, key), HAPAX_ERR_NONE);
        assert_int_equal(order.runs, 1);
        assert_int_equal(order.steps[0].runs, 1);
        assert_int_equal(order.steps[1].runs, 1);
        assert_true(n > 6 || more);
    }
    bed_close(&bed);
    assert_int_equal(oom_live(), live);
}
