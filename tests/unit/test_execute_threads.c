/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax_execute() where much happens at once: callers that race, leases that are renewed, claims
 * that are lost, a handle that closes, memory that runs out. HAPAX_TEST_KEYS sets how many keys the
 * race is about, for slow instruments.
 */
#include "../cases.h"
#include "execute_bed.h"
#include "oom.h"

#define RACERS 64

#if defined(__SANITIZE_THREAD__)
#define KEYS_DEFAULT 100
#else
#define KEYS_DEFAULT 1000
#endif

/* ---- races --------------------------------------------------------------------------- */

static unsigned keys_of_race(void)
{
    const char *given = getenv("HAPAX_TEST_KEYS");
    unsigned long keys = given ? strtoul(given, NULL, 10) : KEYS_DEFAULT;

    must(keys > 0 && keys <= 1000000);
    return (unsigned)keys;
}

struct race {
    struct bed *bed;
    unsigned keys;
    pthread_barrier_t start;
    atomic_uint runs;
    atomic_uint fresh;
    atomic_uint *runs_of; /* by key */
};

struct lap {
    struct race *race;
    unsigned key;
};

static enum hapax_class run_lap(struct hapax_attempt *attempt, void *arg)
{
    struct lap *lap = arg;
    char body[32];

    must(atomic_fetch_add(&lap->race->runs_of[lap->key], 1) == 0);
    snprintf(body, sizeof(body), "run %u of key %u", atomic_fetch_add(&lap->race->runs, 1),
             lap->key);
    must(hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str(body)) == HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

static void *racer_main(void *arg)
{
    struct race *race = arg;
    struct hapax_answer *answers = calloc(race->keys, sizeof(*answers));
    char text[HAPAX_TEXT_MAX];

    must(answers);
    for (unsigned i = 0; i < race->keys; i++) {
        struct lap lap = {race, i};
        struct hapax_request request;
        char key[32];

        snprintf(key, sizeof(key), "key %u", i);
        request = request_of(key);
        pthread_barrier_wait(&race->start);
        must(hapax_execute(race->bed->h, &race->bed->policy, &request, run_lap, NULL, &lap,
                           &answers[i], text) == HAPAX_ERR_NONE);
        must(answers[i].kind == HAPAX_ANSWER_FRESH || answers[i].kind == HAPAX_ANSWER_REPLAY);
        if (answers[i].kind == HAPAX_ANSWER_FRESH)
            atomic_fetch_add(&race->fresh, 1);
    }
    return answers;
}

static bool same_body(const struct hapax_answer *a, const struct hapax_answer *b)
{
    return a->outcome.body.len == b->outcome.body.len &&
           memcmp(a->outcome.body.ptr, b->outcome.body.ptr, a->outcome.body.len) == 0;
}

/* One run per key, one FRESH per key, and all callers of a key hold the same bytes. */
CASE(sixty_four_threads_racing_on_one_key_run_the_handler_once) /* promise 1 */
{
    struct hapax_answer *answers[RACERS];
    pthread_t threads[RACERS];
    struct race race;
    struct bed bed;

    bed_open(&bed);
    memset(&race, 0, sizeof(race));
    race.bed = &bed;
    race.keys = keys_of_race();
    race.runs_of = calloc(race.keys, sizeof(*race.runs_of));
    assert_non_null(race.runs_of);
    pthread_barrier_init(&race.start, NULL, RACERS);
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, racer_main, &race), 0);
    for (int i = 0; i < RACERS; i++)
        assert_int_equal(pthread_join(threads[i], (void **)&answers[i]), 0);
    assert_int_equal(race.runs, race.keys);
    assert_int_equal(race.fresh, race.keys);
    for (unsigned key = 0; key < race.keys; key++)
        for (int i = 1; i < RACERS; i++)
            assert_true(same_body(&answers[i][key], &answers[0][key]));
    for (int i = 0; i < RACERS; i++) {
        for (unsigned key = 0; key < race.keys; key++)
            hapax_answer_release(&answers[i][key]);
        free(answers[i]);
    }
    pthread_barrier_destroy(&race.start);
    free(race.runs_of);
    bed_close(&bed);
}

/* One of two tenants. They draw from the same keys and bodies. */
struct tenant {
    struct bed *bed;
    atomic_uint *runs_of; /* by key, of both */
    uint32_t keys;
    uint32_t requests; /* still to send */
    uint32_t drawn;
    bool owned;
    char name[2];
    char (*told)[40]; /* by key: what this tenant was told first */
    char *with; /* by key: the body of that request */
};

struct tagged {
    atomic_uint *runs;
    char body[40];
};

static enum hapax_class run_tagged(struct hapax_attempt *attempt, void *arg)
{
    struct tagged *run = arg;

    atomic_fetch_add(run->runs, 1);
    must(hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str(run->body)) ==
         HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

static void send_one(struct tenant *t, uint32_t key, char with)
{
    struct hapax_request request;
    char fingerprint[] = {with, '\0'};
    struct hapax_span part = hapax_str(fingerprint);
    struct tagged run = {.runs = &t->runs_of[key]};
    struct hapax_answer answer;
    char name[32], text[HAPAX_TEXT_MAX];

    snprintf(name, sizeof(name), "key %u", key);
    snprintf(run.body, sizeof(run.body), "%s %u %c %u", t->name, key, with, t->requests);
    request = request_of(name);
    hapax_digest(&request.fingerprint, &part, 1);
    part = hapax_str(t->name);
    if (t->owned)
        request.owner = part;
    else
        hapax_digest(&request.caller, &part, 1);
    must(hapax_execute(t->bed->h, &t->bed->policy, &request, run_tagged, NULL, &run, &answer,
                       text) == HAPAX_ERR_NONE);
    if (answer.kind == HAPAX_ANSWER_MISMATCH) {
        must(t->with[key] ? t->with[key] != with : !t->owned);
    } else if (answer.kind == HAPAX_ANSWER_FRESH) {
        must(!t->with[key] && body_is(&answer, run.body));
        t->with[key] = with;
        memcpy(t->told[key], run.body, sizeof(run.body));
    } else {
        must(answer.kind == HAPAX_ANSWER_REPLAY && t->with[key] == with);
        must(body_is(&answer, t->told[key]));
    }
    hapax_answer_release(&answer);
}

static void *tenant_main(void *arg)
{
    struct tenant *t = arg;

    for (; t->requests > 0; t->requests--) {
        t->drawn = t->drawn * 1664525 + 1013904223;
        send_one(t, (t->drawn >> 8) % t->keys, t->drawn >> 31 ? 'x' : 'y');
    }
    return NULL;
}

static void race_tenants(bool owned)
{
    const char *given = getenv("HAPAX_TENANT_REQUESTS");
    uint32_t requests = given ? (uint32_t)strtoul(given, NULL, 10) : 2000, keys = requests / 4 + 1;
    atomic_uint *runs_of = calloc(keys, sizeof(*runs_of));
    struct tenant tenants[2];
    pthread_t threads[2];
    struct bed bed;

    assert_non_null(runs_of);
    bed_open(&bed);
    for (unsigned i = 0; i < 2; i++) {
        tenants[i] = (struct tenant){.bed = &bed, .runs_of = runs_of, .keys = keys};
        tenants[i].requests = requests;
        tenants[i].drawn = i;
        tenants[i].owned = owned;
        tenants[i].name[0] = (char)('a' + i);
        tenants[i].told = calloc(keys, sizeof(*tenants[i].told));
        tenants[i].with = calloc(keys, 1);
        assert_true(tenants[i].told && tenants[i].with);
        assert_int_equal(pthread_create(&threads[i], NULL, tenant_main, &tenants[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t key = 0; key < keys; key++) {
        unsigned ran = tenants[0].with[key] ? 1 : 0;

        ran += tenants[1].with[key] ? 1 : 0;
        assert_int_equal(runs_of[key], ran);
        assert_true(owned || ran <= 1);
    }
    for (unsigned i = 0; i < 2; i++) {
        free(tenants[i].told);
        free(tenants[i].with);
    }
    free(runs_of);
    bed_close(&bed);
}

/* No request of either is answered with the other's, run twice, or refused for the other's sake. */
CASE(two_owners_with_equal_requests_never_meet) /* promise 9 */
{
    race_tenants(true);
}

/* A key is the caller's who came first; the other is told that, and nothing else. */
CASE(two_callers_with_equal_requests_never_get_each_others_answers) /* promise 8 */
{
    race_tenants(false);
}

/* While one runs, `reject` turns the others away, and tells them when to come again. */
CASE(with_reject_one_runs_and_the_rest_are_in_flight)
{
    struct caller first, others[16];
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.wait_ms = 0;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    script.gated = true;
    caller_start(&first, &bed, "k", &script);
    wait_for(&script.entered);
    for (int i = 0; i < 16; i++)
        caller_start(&others[i], &bed, "k", &script);
    for (int i = 0; i < 16; i++) {
        caller_join(&others[i]);
        assert_int_equal(others[i].answer.kind, HAPAX_ANSWER_IN_FLIGHT);
        assert_true(others[i].answer.retry_after_ms > 0 &&
                    others[i].answer.retry_after_ms <= bed.policy.lease_ms);
        hapax_answer_release(&others[i].answer);
    }
    sem_post(&script.go);
    caller_join(&first);
    assert_int_equal(first.answer.kind, HAPAX_ANSWER_FRESH);
    hapax_answer_release(&first.answer);
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
}

static enum hapax_class fail_once(struct hapax_attempt *attempt, void *arg)
{
    struct script *script = arg;

    if (hapax_attempt_number(attempt) > 1)
        return play(attempt, script);
    play(attempt, script);
    return HAPAX_CLASS_FAILED;
}

static void *failing_main(void *arg)
{
    struct caller *caller = arg;
    struct hapax_request request = request_of(caller->key);
    char text[HAPAX_TEXT_MAX];

    must(hapax_execute(caller->bed->h, &caller->policy, &request, fail_once, NULL, caller->script,
                       &caller->answer, text) == HAPAX_ERR_NONE);
    return NULL;
}

/* After a failure exactly one of those who wait runs next; the others are given its answer. */
CASE(after_a_failure_one_waiter_runs_for_all)
{
    struct caller callers[12];
    struct script script;
    struct bed bed;
    unsigned failed = 0, second = 0, replayed = 0;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    script.gated = true;
    for (int i = 0; i < 12; i++) {
        callers[i] = (struct caller){.bed = &bed, .policy = bed.policy, .key = "k"};
        callers[i].script = &script;
        assert_int_equal(pthread_create(&callers[i].thread, NULL, failing_main, &callers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        wait_for(&script.entered);
        sem_post(&script.go);
    }
    for (int i = 0; i < 12; i++) {
        const struct hapax_answer *answer = &callers[i].answer;

        caller_join(&callers[i]);
        assert_true(body_is(answer, "ran"));
        failed += answer->kind == HAPAX_ANSWER_FRESH && answer->cls == HAPAX_CLASS_FAILED;
        second += answer->kind == HAPAX_ANSWER_FRESH && answer->attempt == 2;
        replayed += answer->kind == HAPAX_ANSWER_REPLAY && answer->attempt == 2;
        hapax_answer_release(&callers[i].answer);
    }
    assert_int_equal(failed, 1);
    assert_int_equal(second, 1);
    assert_int_equal(replayed, 10);
    assert_int_equal(script.runs, 2);
    bed_close(&bed);
}

/* ---- leases -------------------------------------------------------------------------- */

struct renewals {
    sem_t seen;
    bool fail;
};

static enum hapax__fault note_renewals(void *arg, uint64_t number, const struct hapax_op *op)
{
    struct renewals *renewals = arg;

    (void)number;
    if (op->kind != HAPAX_OP_RENEW)
        return HAPAX__NO_FAULT;
    sem_post(&renewals->seen);
    return renewals->fail ? HAPAX__FAIL_BEFORE : HAPAX__NO_FAULT;
}

/* A handler may take far longer than its lease: while it runs nobody takes the claim over. */
CASE(a_lease_is_renewed_while_the_handler_runs)
{
    struct renewals renewals = {.fail = false};
    struct caller first, rival;
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 5000; /* and a renewal may be late by more than half of it */
    sem_init(&renewals.seen, 0, 0);
    hapax__plan_decide(&bed.plan, note_renewals, &renewals);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    script.gated = true;
    caller_start(&first, &bed, "k", &script);
    wait_for(&script.entered);
    /* One with another attempts_max asks a question of its own, and would be granted it. */
    bed.policy.attempts_max = 5;
    caller_start(&rival, &bed, "k", &script);
    for (int i = 0; i < 4; i++)
        wait_for(&renewals.seen);
    sem_post(&script.go);
    caller_join(&first);
    caller_join(&rival);
    assert_int_equal(first.answer.kind, HAPAX_ANSWER_FRESH);
    assert_true(first.answer.recorded);
    assert_int_equal(rival.answer.kind, HAPAX_ANSWER_REPLAY);
    assert_int_equal(rival.answer.attempt, 1);
    hapax_answer_release(&first.answer);
    hapax_answer_release(&rival.answer);
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
}

struct zombie {
    struct bed *bed;
    sem_t entered;
};

static enum hapax_class run_until_lost(struct hapax_attempt *attempt, void *arg)
{
    struct zombie *zombie = arg;
    int64_t until_ms = now_ms() + WAIT_MS;

    sem_post(&zombie->entered);
    while (!hapax_attempt_lost(attempt)) {
        struct timespec moment = {0, 1000000};

        must(now_ms() < until_ms);
        nanosleep(&moment, NULL);
    }
    must(hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str("of the zombie")) ==
         HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

static void *zombie_main(void *arg)
{
    struct zombie *zombie = arg;
    struct hapax_policy policy = zombie->bed->policy;
    struct hapax_request request = request_of("k");
    struct hapax_answer *answer = calloc(1, sizeof(*answer));
    char text[HAPAX_TEXT_MAX];

    must(answer);
    policy.attempts_max = 5;
    must(hapax_execute(zombie->bed->h, &policy, &request, run_until_lost, NULL, zombie, answer,
                       text) == HAPAX_ERR_NONE);
    return answer;
}

/* Once another holds the claim the handler is told; its caller gets the other's outcome, not its
 * own. */
CASE(a_handler_whose_claim_is_lost_is_told)
{
    struct renewals renewals = {.fail = true};
    struct hapax_answer *answer;
    struct zombie zombie;
    struct script script;
    pthread_t thread;
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 200;
    zombie.bed = &bed;
    sem_init(&zombie.entered, 0, 0);
    sem_init(&renewals.seen, 0, 0);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "of the other");
    assert_int_equal(pthread_create(&thread, NULL, zombie_main, &zombie), 0);
    wait_for(&zombie.entered);
    hapax__plan_decide(&bed.plan, note_renewals, &renewals);
    bed.policy.lease_ms = WAIT_MS; /* the other's, which needs no renewal */
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "of the other");
    assert_true(script.stale);
    assert_int_equal(script.number, 2);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    assert_int_equal(pthread_join(thread, (void **)&answer), 0);
    assert_int_equal(answer->kind, HAPAX_ANSWER_REPLAY);
    assert_true(body_is(answer, "of the other"));
    hapax_answer_release(answer);
    free(answer);
    expect(&bed, "k", &script, HAPAX_ANSWER_REPLAY, "of the other");
    bed_close(&bed);
}

/* ---- many in hand -------------------------------------------------------------------- */

/* Each waits as long as its own policy says, however many wait with it, in whatever order. */
CASE(everybody_is_turned_away_in_time)
{
    enum { WAITERS = 48 };
    struct caller first, callers[WAITERS];
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 4 * WAIT_MS;
    bed.policy.run_max_ms = 8 * WAIT_MS;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    script.gated = true;
    caller_start(&first, &bed, "k", &script);
    wait_for(&script.entered);
    for (int i = 0; i < WAITERS; i++) {
        bed.policy.wait_ms = i % 3 == 0 ? WAIT_MS : 20 + i * 29 % 97;
        caller_start(&callers[i], &bed, "k", &script);
    }
    for (int i = 0; i < WAITERS; i++) {
        if (callers[i].policy.wait_ms == WAIT_MS)
            continue;
        caller_join(&callers[i]);
        assert_int_equal(callers[i].answer.kind, HAPAX_ANSWER_IN_FLIGHT);
    }
    sem_post(&script.go);
    caller_join(&first);
    hapax_answer_release(&first.answer);
    /* Had a timer been late, those that wait long would have been turned away before it. */
    for (int i = 0; i < WAITERS; i += 3) {
        caller_join(&callers[i]);
        assert_int_equal(callers[i].answer.kind, HAPAX_ANSWER_REPLAY);
        hapax_answer_release(&callers[i].answer);
    }
    bed_close(&bed);
}

static enum hapax_class begin_another(struct hapax_attempt *attempt, void *arg)
{
    struct bed *bed = arg;
    struct hapax_request request = request_of("inner");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    (void)attempt;
    must(hapax_execute(bed->h, &bed->policy, &request, begin_another, NULL, bed, &answer, text) ==
         HAPAX_ERR_NOMEM);
    must(strstr(text, "calls_max of 1 ") != NULL);
    return HAPAX_CLASS_FINAL;
}

/* Calls in hand are bounded; what is over the bound is refused, and the bound is free again
 * after. */
CASE(calls_max_bounds_what_is_in_hand)
{
    struct hapax_options options = {.calls_max = 1};
    struct hapax_request request = request_of("outer");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;
    struct bed bed;

    bed_open_with(&bed, &options);
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, begin_another, NULL, &bed, &answer, text),
        HAPAX_ERR_NONE);
    assert_int_equal(answer.kind, HAPAX_ANSWER_FRESH);
    hapax_answer_release(&answer);
    assert_int_equal(hapax_close(bed.h, WAIT_MS), 0);
    hapax__plan_release(&bed.plan);

    options.calls_max = (1u << 20) + 1;
    assert_int_equal(hapax_open(&h, "memory:", &options, text), HAPAX_ERR_INVALID);
    assert_null(h);
    assert_non_null(strstr(text, "calls_max"));
    assert_int_equal(hapax_open(&h, "nothing:", NULL, text), HAPAX_ERR_UNSUPPORTED);
    assert_null(h);
}

/* ---- the end ------------------------------------------------------------------------- */

struct last_words {
    struct bed *bed;
    sem_t entered;
    sem_t closing;
    struct script inner;
    atomic_bool over;
};

/* Goes on executing for a good while after close() was called. */
static enum hapax_class speak_on(struct hapax_attempt *attempt, void *arg)
{
    struct last_words *last = arg;
    char key[32];

    (void)attempt;
    sem_post(&last->entered);
    wait_for(&last->closing);
    for (int i = 0; i < 200; i++) {
        struct hapax_answer answer;

        snprintf(key, sizeof(key), "inner %d", i);
        answer = execute(last->bed, key, &last->inner);
        must(answer.kind == HAPAX_ANSWER_FRESH && answer.recorded);
        hapax_answer_release(&answer);
    }
    atomic_store(&last->over, true);
    return HAPAX_CLASS_FINAL;
}

static void *speaker_main(void *arg)
{
    struct last_words *last = arg;
    struct hapax_request request = request_of("outer");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    must(hapax_execute(last->bed->h, &last->bed->policy, &request, speak_on, NULL, last, &answer,
                       text) == HAPAX_ERR_NONE);
    must(answer.kind == HAPAX_ANSWER_FRESH && answer.recorded);
    hapax_answer_release(&answer);
    return NULL;
}

/* close() takes a handle away from under nobody: a handler that runs still has it, and so do
 * its inner calls. */
CASE(close_waits_for_the_handlers_that_run)
{
    struct last_words last;
    pthread_t thread;
    struct bed bed;

    bed_open(&bed);
    memset(&last, 0, sizeof(last));
    last.bed = &bed;
    script_init(&last.inner, HAPAX_CLASS_FINAL, 200, "ran");
    sem_init(&last.entered, 0, 0);
    sem_init(&last.closing, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, speaker_main, &last), 0);
    wait_for(&last.entered);
    sem_post(&last.closing);
    assert_int_equal(hapax_close(bed.h, WAIT_MS), 0);
    assert_true(last.over);
    assert_int_equal(pthread_join(thread, NULL), 0);
    hapax__plan_release(&bed.plan);
}

/* ---- out of memory ------------------------------------------------------------------- */

static enum hapax_class run_whatever_comes(struct hapax_attempt *attempt, void *arg)
{
    atomic_uint *runs = arg;

    atomic_fetch_add(runs, 1);
    /* A handler without memory for its outcome may still have had its effect. */
    hapax_attempt_outcome(attempt, 200, hapax_str("A: b\r\n"), hapax_str("bytes"));
    return HAPAX_CLASS_FINAL;
}

static enum hapax_error run_short(struct bed *bed, const char *key, atomic_uint *runs,
                                  enum hapax_answer_kind *kind)
{
    struct hapax_request request = request_of(key);
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error = hapax_execute(bed->h, &bed->policy, &request, run_whatever_comes, NULL,
                                           runs, &answer, text);

    *kind = answer.kind;
    must(answer.outcome.body.len == 0 || body_is(&answer, "bytes"));
    must((error == HAPAX_ERR_NONE) == (answer.kind != 0));
    must(error == HAPAX_ERR_NONE || (error == HAPAX_ERR_NOMEM && text[0] != '\0'));
    hapax_answer_release(&answer);
    return error;
}

/* Fails the n-th allocation of a first call. False: there were fewer. */
static bool first_is_short(struct bed *bed, const char *key, uint64_t n, bool forever)
{
    enum hapax_answer_kind kind;
    enum hapax_error error;
    atomic_uint runs = 0;
    uint64_t count;

    bed->policy.timeout_ms = 30;
    oom_fail_at(n, forever);
    error = run_short(bed, key, &runs, &kind);
    count = oom_count();
    oom_fail_at(0, false);
    assert_true(error == HAPAX_ERR_NONE || runs == 0);
    assert_true(kind != HAPAX_ANSWER_FRESH || runs == 1);
    bed->policy.timeout_ms = WAIT_MS;
    assert_int_equal(run_short(bed, key, &runs, &kind), HAPAX_ERR_NONE);
    assert_int_equal(runs, 1);
    return count >= n;
}

/* Fails the n-th allocation of a repeat; *error is what came of it. */
static bool repeat_is_short(struct bed *bed, const char *key, uint64_t n, bool forever,
                            enum hapax_error *error)
{
    enum hapax_answer_kind kind;
    atomic_uint runs = 0;
    uint64_t count;

    assert_int_equal(run_short(bed, key, &runs, &kind), HAPAX_ERR_NONE);
    bed->policy.timeout_ms = 30;
    oom_fail_at(n, forever);
    *error = run_short(bed, key, &runs, &kind);
    count = oom_count();
    oom_fail_at(0, false);
    bed->policy.timeout_ms = WAIT_MS;
    assert_int_equal(run_short(bed, key, &runs, &kind), HAPAX_ERR_NONE);
    assert_int_equal(kind, HAPAX_ANSWER_REPLAY);
    assert_int_equal(runs, 1);
    return count >= n;
}

/* Whichever allocation fails, once or for good: no second run, no answer that lies, nothing
 * leaks. */
CASE(without_memory_nothing_runs_twice)
{
    int64_t live = oom_live();
    unsigned kept_back = 0;
    struct bed bed;

    for (int forever = 0; forever < 2; forever++) {
        enum hapax_error error;
        bool first = true, repeat = true;

        bed_open(&bed);
        bed.policy.save_wait_ms = 30;
        for (uint64_t n = 1; first || repeat; n++) {
            char key[32];

            snprintf(key, sizeof(key), "first %u", (unsigned)n);
            first = first_is_short(&bed, key, n, forever);
            snprintf(key, sizeof(key), "repeat %u", (unsigned)n);
            repeat = repeat_is_short(&bed, key, n, forever, &error);
            kept_back += n > 1 && error == HAPAX_ERR_NOMEM;
            assert_true(n > 3 || first);
        }
        bed_close(&bed);
        assert_int_equal(oom_live(), live);
    }
    assert_true(kept_back > 0); /* what was stored could not be handed over, and said so */
}

/* A handle is there as a whole or not at all. */
CASE(without_memory_nothing_is_half_open)
{
    int64_t live = oom_live();
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;
    uint64_t n;

    for (n = 1;; n++) {
        enum hapax_error error;

        oom_fail_at(n, false);
        error = hapax_open(&h, "memory:", NULL, text);
        if (oom_count() < n)
            break;
        oom_fail_at(0, false);
        assert_true(error != HAPAX_ERR_NONE && text[0] != '\0');
        assert_null(h);
        assert_int_equal(oom_live(), live);
    }
    oom_fail_at(0, false);
    assert_true(n > 5);
    assert_int_equal(hapax_close(h, 0), 0);
    assert_int_equal(oom_live(), live);
}
