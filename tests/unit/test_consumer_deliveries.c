/* SPDX-License-Identifier: Apache-2.0
 *
 * Deliveries without their loop. A test plays the source, the sink, the hands and the clock, so
 * that plays which take minutes, or need a certain order of events, are the same each time.
 */
#include "door/consume/deliveries.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

#include "../cases.h"
#include "../must.h"

#define IN_HAND 8
#define TAKEN   64
#define MS      INT64_C(1000)
#define MINUTE  (60000 * MS)

struct bed {
    struct hapax_consumer consumer;
    struct hapax_consumer_stats stats;
    struct hapax__source source;
    struct hapax__sink sink;
    struct hapax__work work;
    struct hapax__loop_parts parts;
    struct hapax__deliveries deliveries;
    struct hapax__delivered delivered[TAKEN];
    unsigned taken, released;
    void *tags[IN_HAND]; /* letters with the sink */
    unsigned letters;
    unsigned held; /* of them: those that have not ended yet */
    bool full; /* the sink takes no letter */
    enum hapax__sent result; /* of letters */
    char log[4096];
};

static struct bed *playing;

static void release(struct hapax__source *source, struct hapax__delivered *delivered,
                    enum hapax__release how)
{
    (void)source, (void)delivered, (void)how;
    playing->released++;
}

static bool send_letter(struct hapax__sink *sink, const struct hapax__letter *letter)
{
    (void)sink;
    if (playing->full)
        return false;
    must(playing->letters < IN_HAND);
    playing->tags[playing->letters++] = letter->tag;
    return true;
}

static enum hapax__sent reap(struct hapax__sink *sink, void **tag)
{
    (void)sink;
    if (playing->letters == playing->held)
        return HAPAX__SENT_NOTHING;
    *tag = playing->tags[--playing->letters];
    return playing->result;
}

static const struct hapax__source_type source_type = {.release = release};
static const struct hapax__sink_type sink_type = {.send = send_letter, .reap = reap};

static void log_line(void *arg, const char *line)
{
    struct bed *bed = arg;
    size_t used = strlen(bed->log);

    snprintf(bed->log + used, sizeof(bed->log) - used, "%s\n", line);
}

static unsigned log_count(const struct bed *bed, const char *part)
{
    unsigned count = 0;

    for (const char *at = bed->log; (at = strstr(at, part)); at++)
        count++;
    return count;
}

static void bed_open(struct bed *bed)
{
    memset(bed, 0, sizeof(*bed));
    playing = bed;
    hapax_consumer_init(&bed->consumer);
    bed->consumer.in_hand_max = IN_HAND;
    bed->consumer.concurrency = IN_HAND;
    bed->consumer.log = log_line;
    bed->consumer.log_arg = bed;
    bed->source.name = "Q";
    bed->result = HAPAX__SENT_OK;
    bed->parts = (struct hapax__loop_parts){
        .consumer = &bed->consumer,
        .source_type = &source_type,
        .source = &bed->source,
        .sink_type = &sink_type,
        .sink = &bed->sink,
        .work = &bed->work,
        .scope = "Q",
        .dead_letters = "Q.dead",
        .parked = "Q.parked",
    };
    bed->deliveries.parts = &bed->parts;
    bed->deliveries.stats = &bed->stats;
    bed->deliveries.by_broker = true;
    bed->deliveries.now_us = 1; /* taken_us is compared with the real clock */
    must(hapax__deliveries_open(&bed->deliveries) == HAPAX_ERR_NONE);
}

static void bed_close(struct bed *bed)
{
    hapax__deliveries_drain(&bed->deliveries);
    hapax__deliveries_close(&bed->deliveries);
    assert_int_equal(bed->deliveries.away, 0);
    assert_int_equal(bed->stats.letters_refused, 0);
    assert_int_equal(bed->released, bed->taken);
}

/* Takes as many as there is room for, n at most; how many. */
static unsigned take(struct bed *bed, unsigned n)
{
    size_t room = hapax__deliveries_room(&bed->deliveries);
    unsigned most = n < room ? n : (unsigned)room;

    must(bed->taken + most <= TAKEN);
    for (unsigned i = 0; i < most; i++)
        hapax__deliveries_take(&bed->deliveries, &bed->delivered[bed->taken++]);
    return most;
}

static struct hapax__entry *begin(struct bed *bed)
{
    struct hapax__entry *entry = hapax__deliveries_next(&bed->deliveries);

    if (entry)
        memset(&entry->ended, 0, sizeof(entry->ended));
    return entry;
}

/* Its handler ended so. */
static void end(struct bed *bed, struct hapax__entry *entry, enum hapax_class cls)
{
    entry->ended = (struct hapax__ended){
        .kind = HAPAX_ANSWER_FRESH, .cls = cls, .recorded = true, .retry_after_ms = -1};
    hapax__deliveries_answered(&bed->deliveries, entry);
}

/* Runs all that are ready: the last `good` to end go through, nobody listened to the others. How
 * many ran. */
static unsigned run_ready(struct bed *bed, unsigned good)
{
    struct hapax__entry *entries[IN_HAND];
    unsigned n = 0;

    while (n < IN_HAND && (entries[n] = begin(bed)))
        n++;
    for (unsigned i = 0; i < n; i++)
        end(bed, entries[i], i + good >= n ? HAPAX_CLASS_FINAL : HAPAX_CLASS_NOT_RUN);
    return n;
}

/* It becomes a dead letter. */
static void mismatch(struct bed *bed, struct hapax__entry *entry)
{
    entry->ended = (struct hapax__ended){.kind = HAPAX_ANSWER_MISMATCH, .retry_after_ms = -1};
    hapax__deliveries_answered(&bed->deliveries, entry);
}

static void send_and_reap(struct bed *bed)
{
    hapax__deliveries_send(&bed->deliveries);
    hapax__deliveries_reap(&bed->deliveries);
}

static void pass_us(struct bed *bed, int64_t us)
{
    bed->deliveries.now_us += us;
    hapax__deliveries_wake(&bed->deliveries);
}

/* ---- nobody listens ---------------------------------------------------------------------- */

/* A handler that lets one of many through is overloaded, not back: pauses go on growing, nothing
 * more is taken, and the log does not flap. */
CASE(a_storm_of_503_does_not_begin_the_pauses_anew)
{
    struct hapax__entry *entry;
    unsigned fewest = UINT32_MAX;
    struct bed bed;

    bed_open(&bed);
    assert_int_equal(take(&bed, TAKEN), IN_HAND);
    run_ready(&bed, 0);
    assert_int_equal(hapax__deliveries_room(&bed.deliveries), 0);
    for (int round = 0; round < 3; round++) {
        pass_us(&bed, MINUTE / 4);
        assert_true(run_ready(&bed, 1) > 0);
        assert_int_equal(hapax__deliveries_room(&bed.deliveries), 0);
        assert_int_equal(run_ready(&bed, 0), 2); /* woken by it */
    }
    TAILQ_FOREACH (entry, &bed.deliveries.inhand.all, in_hand)
        fewest = entry->before.waits < fewest ? entry->before.waits : fewest;
    assert_true(fewest >= 4);
    assert_int_equal(bed.deliveries.away, IN_HAND - 3);
    assert_int_equal(log_count(&bed, "takes no messages"), 1);
    assert_int_equal(log_count(&bed, "takes messages again"), 0);
    bed_close(&bed);
}

/* Back for good, it has all of them soon: each that goes through wakes two. */
CASE(a_handler_that_is_back_gets_all_that_waited)
{
    struct hapax__entry *first;
    struct bed bed;

    bed_open(&bed);
    bed.consumer.retry_min_ms = 1000;
    take(&bed, TAKEN);
    run_ready(&bed, 0);
    while (STAILQ_EMPTY(&bed.deliveries.ready))
        pass_us(&bed, 1 * MS);
    first = begin(&bed);
    end(&bed, first, HAPAX_CLASS_FINAL);
    while (run_ready(&bed, IN_HAND) > 0)
        continue;
    assert_int_equal(bed.stats.acknowledged, IN_HAND);
    assert_int_equal(hapax__deliveries_room(&bed.deliveries), IN_HAND);
    assert_int_equal(log_count(&bed, "takes messages again"), 1);
    bed_close(&bed);
}

/* ---- an order ---------------------------------------------------------------------------- */

/* Those behind a message that waits take all places in the end. The log says so each minute, until
 * a place is free. */
CASE(places_taken_by_those_behind_one_are_told)
{
    struct hapax__entry *other;
    struct bed bed;

    bed_open(&bed);
    bed.deliveries.by_broker = false;
    for (int i = 0; i < IN_HAND; i++)
        bed.delivered[i].order = i == 0 ? hapax_str("other") : hapax_str("key");
    assert_int_equal(take(&bed, TAKEN), IN_HAND);
    other = begin(&bed); /* its handler takes long */
    for (unsigned minute = 0; minute < 3; minute++) {
        assert_true(run_ready(&bed, 0) <= 1);
        pass_us(&bed, MINUTE - 1);
        assert_int_equal(log_count(&bed, "no message is taken: 6 of the 8 in hand"), minute);
        assert_true(run_ready(&bed, 0) <= 1);
        pass_us(&bed, 1);
        assert_int_equal(log_count(&bed, "no message is taken: 6 of the 8 in hand"), minute + 1);
        assert_int_equal(hapax__deliveries_room(&bed.deliveries), 0);
        assert_true(hapax__deliveries_due(&bed.deliveries) > bed.deliveries.now_us);
    }
    end(&bed, other, HAPAX_CLASS_FINAL);
    assert_int_equal(hapax__deliveries_room(&bed.deliveries), 1);
    pass_us(&bed, MINUTE);
    assert_int_equal(log_count(&bed, "no message is taken"), 3);
    bed_close(&bed);
}

/* ---- duplicates -------------------------------------------------------------------------- */

/* Those that wait for another attempt of their operation are woken by its end, and by no other. No
 * time passes here. */
CASE(the_end_of_an_operation_wakes_its_duplicates)
{
    struct hapax__entry *first, *other, *duplicate;
    struct bed bed;

    bed_open(&bed);
    bed.consumer.policy.lease_ms = 60000;
    take(&bed, 3);
    first = begin(&bed);
    other = begin(&bed);
    duplicate = begin(&bed);
    first->operation = duplicate->operation = 7;
    other->operation = 8;
    duplicate->ended =
        (struct hapax__ended){.kind = HAPAX_ANSWER_IN_FLIGHT, .retry_after_ms = 60000};
    hapax__deliveries_answered(&bed.deliveries, duplicate);
    end(&bed, other, HAPAX_CLASS_FINAL);
    assert_null(begin(&bed));
    end(&bed, first, HAPAX_CLASS_FINAL);
    assert_ptr_equal(begin(&bed), duplicate);
    end(&bed, duplicate, HAPAX_CLASS_FINAL);
    bed_close(&bed);
}

/* Those who would find out are the broker's again, and a long handler is none of them. */
CASE(taking_goes_on_when_those_who_waited_are_taken_back)
{
    struct hapax__entry *longest;
    struct bed bed;

    bed_open(&bed);
    take(&bed, TAKEN);
    longest = begin(&bed);
    run_ready(&bed, 0);
    assert_int_equal(hapax__deliveries_room(&bed.deliveries), 0);
    for (unsigned i = 0; i < bed.taken; i++)
        bed.delivered[i].voided = true;
    hapax__deliveries_voided(&bed.deliveries);
    assert_int_equal(hapax__deliveries_room(&bed.deliveries), IN_HAND - 1);
    end(&bed, longest, HAPAX_CLASS_FINAL);
    bed_close(&bed);
}

/* One that asks again is waited for, or each round would take more; but not once it is voided. */
CASE(while_one_asks_again_none_is_taken)
{
    struct hapax__entry *asking[IN_HAND];
    struct bed bed;
    unsigned n = 0;

    bed_open(&bed);
    take(&bed, IN_HAND - 2);
    run_ready(&bed, 0);
    pass_us(&bed, MINUTE);
    while ((asking[n] = begin(&bed)))
        n++;
    assert_int_equal(n, IN_HAND - 2);
    bed.stats.running = n; /* within their handlers */
    assert_int_equal(hapax__deliveries_room(&bed.deliveries), 0);
    for (unsigned i = 0; i < n; i++)
        bed.delivered[i].voided = true;
    hapax__deliveries_voided(&bed.deliveries);
    assert_int_equal(hapax__deliveries_room(&bed.deliveries), 2);
    bed.stats.running = 0;
    for (unsigned i = 0; i < n; i++)
        end(&bed, asking[i], HAPAX_CLASS_NOT_RUN);
    bed_close(&bed);
}

/* ---- letters ------------------------------------------------------------------------------- */

/* Refused for good, it is seen in a gauge, and the log says so each minute. */
CASE(a_letter_that_is_refused_for_good_is_shown)
{
    struct bed bed;

    bed_open(&bed);
    bed.result = HAPAX__SENT_REFUSED;
    snprintf(bed.sink.why, sizeof(bed.sink.why), "no queue");
    take(&bed, 2);
    for (int i = 0; i < 2; i++)
        mismatch(&bed, begin(&bed));
    for (int minute = 0; minute < 10; minute++) {
        for (int i = 0; i < 12; i++) {
            hapax__deliveries_send(&bed.deliveries);
            hapax__deliveries_reap(&bed.deliveries);
            pass_us(&bed, MINUTE / 12);
        }
        assert_int_equal(bed.stats.letters_refused, 2);
    }
    assert_in_range(log_count(&bed, "letters to \"Q.dead\" are refused"), 5, 10);
    assert_int_equal(log_count(&bed, "no queue"), log_count(&bed, "are refused"));
    bed.result = HAPAX__SENT_OK;
    pass_us(&bed, MINUTE);
    hapax__deliveries_send(&bed.deliveries);
    hapax__deliveries_reap(&bed.deliveries);
    assert_int_equal(bed.stats.letters_refused, 0);
    assert_int_equal(bed.stats.dead_lettered, 2);
    assert_int_equal(log_count(&bed, "are taken again"), 1);
    bed_close(&bed);
}

/* While no letter is confirmed or refused, the log says why, each minute and not at once: without a
 * connection, where each letter is lost, and where the sink takes none. */
CASE(letters_that_cannot_be_sent_are_told)
{
    static const struct {
        bool connected, full;
        const char *text, *said;
    } plays[] = {{false, false, "no broker", "no broker"},
                 {true, false, "too few replicas", "too few replicas"},
                 {true, true, "", "the broker does not confirm them"}};

    for (size_t play = 0; play < sizeof(plays) / sizeof(plays[0]); play++) {
        char line[HAPAX_TEXT_MAX];
        struct bed bed;

        bed_open(&bed);
        bed.result = HAPAX__SENT_LOST;
        bed.full = plays[play].full;
        bed.sink.connected = plays[play].connected;
        snprintf(bed.sink.text, sizeof(bed.sink.text), "%s", plays[play].text);
        snprintf(line, sizeof(line), "letters cannot be sent, their messages are kept: %s\n",
                 plays[play].said);
        take(&bed, 1);
        mismatch(&bed, begin(&bed));
        for (unsigned minute = 0; minute < 3; minute++) {
            for (int i = 0; i < 12; i++) {
                send_and_reap(&bed);
                assert_int_equal(log_count(&bed, line), minute);
                pass_us(&bed, MINUTE / 12);
            }
        }
        bed.result = HAPAX__SENT_OK;
        bed.full = false;
        pass_us(&bed, MINUTE);
        send_and_reap(&bed);
        assert_int_equal(bed.stats.dead_lettered, 1);
        assert_int_equal(log_count(&bed, "cannot be sent"), 2);
        bed_close(&bed);
    }
}

/* One letter that is slow is none that cannot be sent, while another goes through. */
CASE(a_letter_that_is_confirmed_puts_the_line_about_others_off)
{
    struct bed bed;

    bed_open(&bed);
    take(&bed, 2);
    mismatch(&bed, begin(&bed));
    bed.held = 1;
    send_and_reap(&bed);
    pass_us(&bed, MINUTE - 1);
    mismatch(&bed, begin(&bed));
    send_and_reap(&bed);
    assert_int_equal(bed.stats.dead_lettered, 1);
    pass_us(&bed, MINUTE - 1);
    send_and_reap(&bed);
    assert_int_equal(log_count(&bed, "cannot be sent"), 0);
    pass_us(&bed, 1);
    send_and_reap(&bed);
    assert_int_equal(log_count(&bed, "cannot be sent"), 1);
    bed.held = 0;
    send_and_reap(&bed);
    assert_int_equal(bed.stats.dead_lettered, 2);
    bed_close(&bed);
}

/* One that is refused when the broker takes its message back counts no more. */
CASE(a_refused_letter_whose_message_is_voided_counts_no_more)
{
    struct bed bed;

    bed_open(&bed);
    bed.result = HAPAX__SENT_REFUSED;
    take(&bed, 1);
    mismatch(&bed, begin(&bed));
    hapax__deliveries_send(&bed.deliveries);
    hapax__deliveries_reap(&bed.deliveries);
    assert_int_equal(bed.stats.letters_refused, 1);
    bed.delivered[0].voided = true;
    hapax__deliveries_voided(&bed.deliveries);
    assert_int_equal(bed.stats.letters_refused, 0);
    bed_close(&bed);
}

/* ---- damaged records ------------------------------------------------------------------------- */

/* Many of them are two lines of the log within a minute, and a store that is not away. */
CASE(damaged_records_are_parked_and_said_twice)
{
    struct bed bed;

    bed_open(&bed);
    take(&bed, 5);
    for (int i = 0; i < 5; i++) {
        struct hapax__entry *entry = begin(&bed);

        entry->ended = (struct hapax__ended){
            .kind = HAPAX_ANSWER_STORE_DOWN, .error = HAPAX_ERR_CORRUPT, .retry_after_ms = -1};
        hapax__deliveries_answered(&bed.deliveries, entry);
    }
    hapax__deliveries_send(&bed.deliveries);
    hapax__deliveries_reap(&bed.deliveries);
    assert_int_equal(bed.stats.parked, 5);
    assert_int_equal(log_count(&bed, "letters to \"Q.parked\": 1 with hapax-reason corrupt"), 1);
    assert_int_equal(log_count(&bed, "\"Q.parked\""), 1);
    bed.deliveries.now_us = hapax__deliveries_due(&bed.deliveries) - 1;
    hapax__deliveries_wake(&bed.deliveries);
    assert_int_equal(log_count(&bed, "\"Q.parked\""), 1);
    bed.deliveries.now_us++;
    hapax__deliveries_wake(&bed.deliveries);
    assert_int_equal(log_count(&bed, "letters to \"Q.parked\": 4 with hapax-reason corrupt, the "
                                     "last one: its record is damaged"),
                     1);
    assert_true(hapax__deliveries_due(&bed.deliveries) == INT64_MAX);
    assert_int_equal(hapax__deliveries_room(&bed.deliveries), IN_HAND);
    bed_close(&bed);
}
