/* SPDX-License-Identifier: Apache-2.0
 *
 * The breaker (src/core/breaker.h): when claims are turned away without asking the store, which
 * claims still ask, and what ends it.
 */
#include "../cases.h"
#include "flow_bench.h"

/* Flows i and i + 1 wait for their timeout, and no store answers. Both are chased from then on. */
static void claim_in_vain(struct bench *b, int i)
{
    begin(b, i);
    begin(b, i + 1);
    b->now_us += 2000 * MS;
    go_on(b, i);
    go_on(b, i + 1);
}

/* Flow 0 runs, with a lease of a minute. */
static void run_for_a_minute(struct bench *b)
{
    bench_init(b);
    b->policies[0].lease_ms = b->policies[0].run_max_ms = 60000;
    begin(b, 0);
    answered(b, 0, HAPAX_CLAIMED, HAPAX_STATE_STARTED)->record.lease_until_us =
        STORE_US + 60000 * MS;
    told(b, 0);
}

static void start_dead(struct bench *b)
{
    bench_init(b);
    claim_in_vain(b, 0);
    expect(b, "0 ASK claim\n1 ASK claim\n0 ANSWER store_down indeterminate retry 1000\n"
              "1 ANSWER store_down indeterminate retry 1000\n");
}

/* After two claims in vain one new claim asks, and waits for a moment only. All others of that half
 * second are answered at once, and so are those that ask the same as the probe. */
CASE(one_claim_probes_a_dead_store_and_no_other_waits)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    begin(b, 2);
    assert_int_equal(sleeps_ms(b, 2), 100);
    begin(b, 3);
    b->requests[4].id = b->requests[2].id;
    begin(b, 4);
    expect(b, "2 ASK claim\n3 ANSWER store_down unavailable retry 1000\n3 END\n"
              "4 ANSWER store_down unavailable retry 1000\n4 END\n");
    assert_true(b->flows[3].answer.unasked && b->flows[4].answer.unasked);
    assert_int_equal(b->counts.unasked, 2);
    pass_ms(b, 2, 100);
    assert_false(b->flows[2].answer.unasked);
    b->now_us += 399 * MS;
    begin(b, 3);
    expect(b, "2 ANSWER store_down indeterminate retry 1000\n"
              "3 ANSWER store_down unavailable retry 1000\n3 END\n");
    b->now_us += MS;
    begin(b, 3);
    begin(b, 4);
    expect(b, "3 ASK claim\n4 ANSWER store_down unavailable retry 1000\n4 END\n");
}

/* A policy that waits less than a probe does has its way. */
CASE(a_probe_waits_no_longer_than_its_timeout)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    b->policies[2].timeout_ms = 30;
    begin(b, 2);
    assert_int_equal(sleeps_ms(b, 2), 30);
}

/* One claim in vain is not enough. */
CASE(one_claim_in_vain_opens_nothing)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    pass_ms(b, 0, 2000);
    begin(b, 1);
    begin(b, 2);
    expect(b, "0 ASK claim\n0 ANSWER store_down indeterminate retry 1000\n1 ASK claim\n"
              "2 ASK claim\n");
    assert_int_equal(sleeps_ms(b, 2), 2000);
}

/* A client that leaves proves nothing. */
CASE(a_claim_that_was_stopped_does_not_count)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    pass_ms(b, 0, 2000);
    begin(b, 1);
    stop(b, 1);
    begin(b, 2);
    begin(b, 3);
    expect(b, "0 ASK claim\n0 ANSWER store_down indeterminate retry 1000\n1 ASK claim\n"
              "1 ANSWER store_down indeterminate retry 1000\n2 ASK claim\n3 ASK claim\n");
}

/* The verdict of any op closes it: here that of a claim that is chased. */
CASE(a_verdict_closes_it)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    begin(b, 2);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    begin(b, 3);
    begin(b, 4);
    expect(b, "2 ASK claim\n0 END\n3 ASK claim\n4 ASK claim\n");
    assert_int_equal(sleeps_ms(b, 4), 2000);
    assert_false(b->waiters.breaker.open);
    assert_int_equal(hapax__breaker_until(&b->waiters.breaker), 0);
}

/* A store that refuses an op for good has answered, too. An op without a result has not. */
CASE(a_lasting_error_closes_it_and_a_passing_one_does_not)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    begin(b, 2);
    told_error(b, 2, HAPAX_ERR_UNAVAILABLE);
    begin(b, 3);
    expect(b, "2 ASK claim\n3 ANSWER store_down unavailable retry 1000\n3 END\n");
    pass_ms(b, 2, 10);
    told_error(b, 2, HAPAX_ERR_REFUSED);
    begin(b, 3);
    begin(b, 4);
    expect(b, "2 ASK claim\n2 ANSWER store_down refused\n2 END\n3 ASK claim\n4 ASK claim\n");
}

/* A store that answers others while a claim waits is slow, and not dead. */
CASE(a_slow_store_is_not_dead)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 3; i++)
        begin(b, i);
    b->now_us += 1000 * MS;
    told_state(b, 2, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    b->len = 0;
    pass_ms(b, 0, 1000);
    pass_ms(b, 1, 0);
    begin(b, 3);
    begin(b, 4);
    expect(b, "0 ANSWER store_down indeterminate retry 1000\n"
              "1 ANSWER store_down indeterminate retry 1000\n3 ASK claim\n4 ASK claim\n");
}

/* The store answered between the two: they were not in a row. */
CASE(a_verdict_between_two_in_vain_begins_anew)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    pass_ms(b, 0, 2000);
    begin(b, 1);
    told_state(b, 1, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    b->now_us += MS;
    begin(b, 2);
    pass_ms(b, 2, 2000);
    b->len = 0;
    begin(b, 3);
    begin(b, 4);
    expect(b, "3 ASK claim\n4 ASK claim\n");
}

/* What is under way goes on: leases are renewed and outcomes stored, however dead the store is. */
CASE(only_new_claims_are_turned_away)
{
    struct bench bench, *b = &bench;

    run_for_a_minute(b);
    b->now_us += 18000 * MS;
    claim_in_vain(b, 1);
    assert_true(b->waiters.breaker.open);
    b->len = 0;
    go_on(b, 0);
    expect(b, "0 ASK renew\n");
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    pass_ms(b, 0, 10);
    expect(b, "0 ASK renew\n");
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    expect(b, "0 ASK complete 200\n");
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    pass_ms(b, 0, 20);
    told_stored(b, 0);
    expect(b, "0 ASK complete 200\n0 ANSWER fresh 200 recorded\n0 END\n");
    assert_false(b->waiters.breaker.open);
}

/* Of an operation that runs here it is known, without the store, that it runs. */
CASE(who_meets_a_running_attempt_is_told_so)
{
    struct bench bench, *b = &bench;

    run_for_a_minute(b);
    b->now_us += MS;
    claim_in_vain(b, 1);
    b->len = 0;
    for (int i = 3; i < 5; i++)
        b->requests[i].id = b->requests[0].id;
    b->policies[4].wait_ms = 5000;
    begin(b, 3);
    begin(b, 4);
    expect(b, "3 ANSWER in_flight retry 57999\n3 END\n");
    assert_int_equal(sleeps_ms(b, 4), 5000);
}

/* `open` runs at once, and has nothing to store: no claim was sent. */
CASE(under_open_nobody_waits_and_nothing_is_saved)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    for (int i = 2; i < 5; i++)
        b->policies[i].on_store_error = HAPAX_STORE_OPEN;
    begin(b, 2);
    begin(b, 3);
    expect(b, "2 ASK claim\n3 RUN a0\n");
    handled(b, 3, HAPAX_CLASS_FINAL, 200);
    expect(b, "3 ANSWER bypass 200 unprotected\n3 END\n");
    assert_true(b->flows[3].answer.unasked);
    begin(b, 4);
    refused(b, 4);
    expect(b, "4 RUN a0\n4 ANSWER limited in_flight retry 1000\n4 END\n");
    assert_false(b->flows[4].answer.unasked);
}

/* While the store is dead, a probe under `open` runs a moment late. */
CASE(under_open_a_probe_runs_late)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    b->policies[2].on_store_error = HAPAX_STORE_OPEN;
    begin(b, 2);
    pass_ms(b, 2, 100);
    expect(b, "2 ASK claim\n2 RUN a0\n");
    /* The claim is still out. When it surely did not land, nothing is left to save. */
    told_error(b, 2, HAPAX_ERR_UNAVAILABLE);
    handled(b, 2, HAPAX_CLASS_FINAL, 200);
    expect(b, "2 ANSWER bypass 200 unprotected\n2 END\n");
}

/* The probe's client leaves. Half a second after it began another claim probes. */
CASE(a_probe_whose_client_leaves_is_followed_by_another)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    begin(b, 2);
    stop(b, 2);
    b->now_us += 499 * MS;
    begin(b, 3);
    b->now_us += MS;
    begin(b, 4);
    expect(b, "2 ASK claim\n2 ANSWER store_down indeterminate retry 1000\n"
              "3 ANSWER store_down unavailable retry 1000\n3 END\n4 ASK claim\n");
}

/* What was seen five seconds ago is not believed: all ask. The next failure is believed again. */
CASE(an_old_failure_turns_nobody_away)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    b->now_us += 5000 * MS;
    assert_int_equal(hapax__breaker_until(&b->waiters.breaker), b->now_us);
    begin(b, 2);
    begin(b, 3);
    expect(b, "2 ASK claim\n3 ASK claim\n");
    assert_int_equal(sleeps_ms(b, 3), 2000);
    pass_ms(b, 2, 2000);
    begin(b, 4);
    begin(b, 5);
    expect(b, "2 ANSWER store_down indeterminate retry 1000\n4 ASK claim\n"
              "5 ANSWER store_down unavailable retry 1000\n5 END\n");
}

/* A flow whose owner is at a limit looks its operation up first. It is turned away, and probes, as
 * a claim does. A lookup leaves no claim behind that would have to be completed. */
CASE(a_lookup_is_turned_away_and_probes_as_a_claim_does)
{
    struct bench bench, *b = &bench;

    start_dead(b);
    for (int i = 2; i < 4; i++)
        b->requests[i].over = (struct hapax__over){HAPAX__LIMIT_KEYS, 1000};
    b->policies[2].on_store_error = HAPAX_STORE_OPEN;
    begin(b, 2);
    assert_int_equal(sleeps_ms(b, 2), 100);
    begin(b, 3);
    pass_ms(b, 2, 100);
    handled(b, 2, HAPAX_CLASS_FINAL, 200);
    expect(b, "2 ASK read\n3 ANSWER store_down unavailable retry 1000\n3 END\n2 RUN a0\n"
              "2 ANSWER bypass 200 unprotected\n");
    told_state(b, 2, HAPAX_ABSENT, HAPAX_STATE_ABSENT);
    expect(b, "2 END\n");
}
