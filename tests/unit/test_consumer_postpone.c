/* SPDX-License-Identifier: Apache-2.0
 *
 * Deliveries at a broker that takes one back for a time, as SQS does: what is postponed and for how
 * long, what becomes of those behind it, and how attempts are counted where no header says so. The
 * source, the hands and the clock are the test's own.
 */
#include "door/consume/deliveries.h"

#include <stdio.h>
#include <string.h>

#include "../cases.h"
#include "../must.h"

#define IN_HAND 16
#define MS      INT64_C(1000)

struct bed {
    struct hapax_consumer consumer;
    struct hapax_consumer_stats stats;
    struct hapax__source source;
    struct hapax__sink sink;
    struct hapax__work work;
    struct hapax__loop_parts parts;
    struct hapax__deliveries deliveries;
    struct hapax__delivered delivered[IN_HAND];
    unsigned taken, letters;
    char said[512]; /* "2 acked, 3 in 1000, 4 back, " */
};

static struct bed *playing;

static void say(const struct hapax__delivered *delivered, const char *what, long long ms)
{
    size_t used = strlen(playing->said);

    snprintf(playing->said + used, sizeof(playing->said) - used, "%d %s",
             (int)(delivered - playing->delivered), what);
    used = strlen(playing->said);
    if (ms > 0)
        snprintf(playing->said + used, sizeof(playing->said) - used, " %lld", ms);
    used = strlen(playing->said);
    snprintf(playing->said + used, sizeof(playing->said) - used, ", ");
}

static void release(struct hapax__source *source, struct hapax__delivered *delivered,
                    enum hapax__release how)
{
    (void)source;
    say(delivered, how == HAPAX__RELEASE_ACK ? "acked" : "back", 0);
}

static void postpone(struct hapax__source *source, struct hapax__delivered *delivered,
                     int64_t delay_ms)
{
    (void)source;
    say(delivered, "in", delay_ms);
}

static bool send_letter(struct hapax__sink *sink, const struct hapax__letter *letter)
{
    (void)sink, (void)letter;
    playing->letters++;
    return true;
}

static const struct hapax__source_type source_type = {.release = release, .postpone = postpone};
static const struct hapax__sink_type sink_type = {.send = send_letter};

/* Deliveries of orders: "aab " is two of a, one of b, and one of none. */
static void bed_open(struct bed *bed, const char *orders)
{
    memset(bed, 0, sizeof(*bed));
    playing = bed;
    hapax_consumer_init(&bed->consumer);
    bed->consumer.in_hand_max = IN_HAND;
    bed->consumer.order = HAPAX_ORDER_KEY;
    bed->consumer.retry_min_ms = bed->consumer.retry_max_ms = 4000;
    bed->consumer.policy.attempts_max = 3;
    bed->source.type = &source_type;
    bed->source.name = "Q";
    bed->parts = (struct hapax__loop_parts){.consumer = &bed->consumer,
                                            .source_type = &source_type,
                                            .source = &bed->source,
                                            .sink_type = &sink_type,
                                            .sink = &bed->sink,
                                            .work = &bed->work,
                                            .scope = "Q",
                                            .dead_letters = "Q-dead",
                                            .parked = "Q-parked"};
    bed->deliveries.parts = &bed->parts;
    bed->deliveries.stats = &bed->stats;
    bed->deliveries.now_us = 1;
    must(hapax__deliveries_open(&bed->deliveries) == HAPAX_ERR_NONE);
    for (; *orders; orders++) {
        struct hapax__delivered *one = &bed->delivered[bed->taken++];

        if (*orders != ' ')
            one->order = (struct hapax_span){(const uint8_t *)orders, 1};
        hapax__deliveries_take(&bed->deliveries, one);
    }
}

static void bed_close(struct bed *bed)
{
    hapax__deliveries_drain(&bed->deliveries);
    hapax__deliveries_close(&bed->deliveries);
}

static struct hapax__entry *begin(struct bed *bed)
{
    struct hapax__entry *entry = hapax__deliveries_next(&bed->deliveries);

    must(entry);
    return entry;
}

static void answer(struct bed *bed, struct hapax__entry *entry, struct hapax__ended ended)
{
    entry->ended = ended;
    entry->operation = 1;
    hapax__deliveries_answered(&bed->deliveries, entry);
}

static const struct hapax__ended done = {
    .kind = HAPAX_ANSWER_FRESH, .cls = HAPAX_CLASS_FINAL, .recorded = true, .retry_after_ms = -1};

static struct hapax__ended failed(uint32_t spent)
{
    return (struct hapax__ended){.kind = HAPAX_ANSWER_FRESH,
                                 .cls = HAPAX_CLASS_FAILED,
                                 .recorded = true,
                                 .spent = spent,
                                 .retry_after_ms = -1};
}

/* A time within its jitter, read behind `what`. */
static void assert_about(const struct bed *bed, const char *what, long long ms)
{
    const char *at = strstr(bed->said, what);
    long long said = 0;

    if (!at || sscanf(at + strlen(what), "%lld", &said) != 1 || said < ms * 8 / 10 ||
        said > ms * 12 / 10)
        fail_msg("no \"%s\" of about %lld in: %s", what, ms, bed->said);
}

/* The first of an order that fails goes for its pause, those behind it go with it, in their order,
 * and no other does. */
CASE(one_that_waits_takes_its_order_along)
{
    struct hapax__entry *a, *b, *none;
    struct bed bed;

    bed_open(&bed, "aabaa b");
    a = begin(&bed);
    b = begin(&bed);
    none = begin(&bed);
    assert_null(hapax__deliveries_next(&bed.deliveries));
    answer(&bed, a, failed(1));
    assert_about(&bed, "0 in ", 4000);
    assert_non_null(strstr(bed.said, ", 1 back, 3 back, 4 back, "));
    assert_int_equal(bed.deliveries.inhand.count, 3);
    assert_int_equal(bed.stats.retried, 1);
    assert_int_equal(bed.stats.returned, 3);
    bed.said[0] = '\0';
    answer(&bed, none, failed(1));
    answer(&bed, b, done);
    assert_about(&bed, "5 in ", 4000);
    assert_non_null(strstr(bed.said, "2 acked, "));
    answer(&bed, begin(&bed), done); /* the second of b */
    assert_non_null(strstr(bed.said, "6 acked, "));
    bed_close(&bed);
}

/* One in the midst that was taken back comes again behind none of its order: those behind it go
 * back, too. */
CASE(what_is_behind_a_voided_one_goes_back)
{
    struct bed bed;

    bed_open(&bed, "aaabaa");
    bed.delivered[1].voided = true;
    hapax__deliveries_voided(&bed.deliveries);
    answer(&bed, begin(&bed), done);
    assert_string_equal(bed.said, "0 acked, 1 back, 2 back, 4 back, 5 back, ");
    answer(&bed, begin(&bed), done);
    assert_string_equal(bed.said, "0 acked, 1 back, 2 back, 4 back, 5 back, 3 acked, ");
    bed_close(&bed);
}

/* A pause that is shorter than what the broker counts in is waited for in hand. */
CASE(short_pauses_are_held)
{
    struct bed bed;

    bed_open(&bed, "aa");
    bed.consumer.retry_min_ms = bed.consumer.retry_max_ms = 100;
    answer(&bed, begin(&bed), failed(1));
    assert_string_equal(bed.said, "");
    bed.deliveries.now_us += 200 * MS;
    hapax__deliveries_wake(&bed.deliveries);
    answer(&bed, begin(&bed), done);
    answer(&bed, begin(&bed), done);
    assert_string_equal(bed.said, "0 acked, 1 acked, ");
    bed_close(&bed);
}

/* It comes again without a count: the record's is the one, so that the last of its attempts makes a
 * dead letter. */
CASE(attempts_are_the_records)
{
    struct bed bed;

    bed_open(&bed, " ");
    answer(&bed, begin(&bed), failed(2));
    assert_about(&bed, "0 in ", 4000);
    hapax__deliveries_take(&bed.deliveries, &bed.delivered[1]);
    answer(&bed, begin(&bed), failed(3));
    hapax__deliveries_send(&bed.deliveries);
    assert_int_equal(bed.letters, 1);
    bed_close(&bed);
}

/* What no record counts is counted here, for which it stays in hand: without one, and where a hook
 * decides what a death was. */
CASE(what_no_record_counts_stays_in_hand)
{
    struct hapax__ended bypassed = failed(0), lost = failed(0);
    struct bed bed;

    bypassed.kind = HAPAX_ANSWER_BYPASS;
    bypassed.recorded = lost.recorded = false;
    lost.cls = HAPAX_CLASS_UNKNOWN;
    for (int i = 0; i < 3; i++) {
        bed_open(&bed, " ");
        bypassed.cls = i == 0 ? HAPAX_CLASS_FAILED : HAPAX_CLASS_UNKNOWN;
        if (i == 2)
            bed.consumer.policy.on_expired = HAPAX_EXPIRED_RECONCILE;
        for (int attempt = 1; attempt <= 3; attempt++) {
            assert_int_equal(bed.letters, 0);
            answer(&bed, begin(&bed), i == 2 ? lost : bypassed);
            assert_string_equal(bed.said, "");
            bed.deliveries.now_us += 2 * bed.consumer.policy.lease_ms * MS;
            hapax__deliveries_wake(&bed.deliveries);
        }
        hapax__deliveries_send(&bed.deliveries);
        assert_int_equal(bed.letters, 1);
        bed_close(&bed);
    }
}

/* An attempt elsewhere is asked after a few times, then for the rest of its lease it is left with
 * the broker. */
CASE(a_twin_is_left_for_its_lease)
{
    const struct hapax__ended in_flight = {.kind = HAPAX_ANSWER_IN_FLIGHT, .retry_after_ms = 25000};
    unsigned asked = 0;
    struct bed bed;

    bed_open(&bed, " ");
    do {
        assert_true(asked++ < 9);
        answer(&bed, begin(&bed), in_flight);
        bed.deliveries.now_us += 16000 * MS;
        hapax__deliveries_wake(&bed.deliveries);
    } while (bed.said[0] == '\0');
    assert_true(asked > 5);
    assert_string_equal(bed.said, "0 in 25000, ");
    bed_close(&bed);
}

/* Whoever is turned away by a status keeps no other's place, however short the pauses are. */
CASE(what_is_turned_away_makes_room)
{
    struct hapax__ended turned_away = {.kind = HAPAX_ANSWER_FRESH,
                                       .cls = HAPAX_CLASS_NOT_RUN,
                                       .status = 403,
                                       .recorded = true,
                                       .retry_after_ms = -1};
    struct bed bed;

    bed_open(&bed, " ");
    bed.consumer.retry_min_ms = bed.consumer.retry_max_ms = 100;
    for (int i = 0; i < 4; i++) {
        assert_string_equal(bed.said, "");
        answer(&bed, begin(&bed), turned_away);
        bed.deliveries.now_us += 200 * MS;
        hapax__deliveries_wake(&bed.deliveries);
    }
    assert_about(&bed, "0 in ", 100);
    bed_close(&bed);
}

/* At a stop nothing is left for later: others may have it at once. */
CASE(a_stop_gives_all_back)
{
    struct hapax__entry *entry;
    struct bed bed;

    bed_open(&bed, "aa");
    entry = begin(&bed);
    hapax__deliveries_drain(&bed.deliveries);
    answer(&bed, entry, failed(1));
    assert_string_equal(bed.said, "0 back, 1 back, ");
    bed_close(&bed);
}
