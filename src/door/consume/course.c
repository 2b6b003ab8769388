/* SPDX-License-Identifier: Apache-2.0
 *
 * The course of deliveries: ready, with a hand, held, in letters, out of hand.
 *
 * What it keeps: a delivery is settled exactly once, and acknowledged only when it is done with or its letter is
 * confirmed. What is `voided` is not begun any more, and its letter not sent. Those of one order are asked for one
 * at a time; one that is held, or whose letter is on its way, keeps the others behind it.
 *
 * Taking stops while the store is away, or once most of what may be in hand was not run because nobody listens. Those
 * in hand go on asking. The first that the store answers lets the taking go on, and wakes the others; of those for
 * which nobody listened each that goes through wakes two more, and taking goes on when few are left: a handler that is
 * overloaded lets some through, too. Rejected: probes of our own. They would know less than the operations themselves,
 * and load what is already in trouble.
 */
#include "course.h"

#include "base/clock.h"
#include "base/time.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

#define RESEND_MIN_MS   100
#define POSTPONE_MIN_MS 750
#define RESEND_MAX_MS   30000
#define SAY_AGAIN_US    (60 * 1000 * US_PER_MS) /* the log says the same once in this time */

/* ---- small things -------------------------------------------------------------------- */

void hapax__course_say(const struct hapax__course *course, const char *format, ...)
{
    const struct hapax_consumer *consumer = course->parts->consumer;
    char line[2 * HAPAX_TEXT_MAX];
    va_list args;

    if (!consumer->log)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    consumer->log(consumer->log_arg, line);
}

static void show(bool *gauge, bool value)
{
    __atomic_store_n(gauge, value, __ATOMIC_RELAXED);
}

static void add(struct hapax__queue *queue, struct hapax__entry *entry)
{
    entry->next = NULL;
    if (queue->first)
        queue->last->next = entry;
    else
        queue->first = entry;
    queue->last = entry;
}

static struct hapax__entry *pop(struct hapax__queue *queue)
{
    struct hapax__entry *entry = queue->first;

    if (entry)
        queue->first = entry->next;
    return entry;
}

static uint32_t random_of(struct hapax__course *course)
{
    course->random = course->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(course->random >> 33);
}

/* ---- out of hand ----------------------------------------------------------------------- */

static void unhold(struct hapax__course *course, struct hapax__entry *entry)
{
    assert(entry->phase == HAPAX__PHASE_HELD && course->held[entry->before.hold] > 0);
    course->held[entry->before.hold]--;
    hapax__inhand_wake_not(&course->inhand, entry);
    hapax__inhand_untwin(&course->inhand, entry);
}

static void make_ready(struct hapax__course *course, struct hapax__entry *entry)
{
    entry->phase = HAPAX__PHASE_READY;
    add(&course->ready, entry);
}

static void set_away(struct hapax__course *course, struct hapax__entry *entry, bool away)
{
    course->away += (uint32_t)away - (uint32_t)entry->away;
    entry->away = away;
}

static void set_refused(struct hapax__course *course, struct hapax__entry *entry, bool refused)
{
    if (entry->letter_refused == refused)
        return;
    entry->letter_refused = refused;
    if (refused)
        hapax__stats_add(&course->stats->letters_refused, 1);
    else
        hapax__stats_sub(&course->stats->letters_refused, 1);
}

static struct hapax__entry *settle_one(struct hapax__course *course, struct hapax__entry *entry,
                                       enum hapax__release how)
{
    struct hapax__delivered *delivered = entry->delivered;
    int64_t postpone_ms = entry->postpone_ms;
    struct hapax__entry *next;

    if (how != HAPAX__RELEASE_ACK && !delivered->voided && postpone_ms == 0)
        hapax__stats_add(&course->stats->returned, 1);
    hapax__stats_time(course->stats->message_us, &course->stats->message_us_sum,
                      hapax__monotonic_us() - entry->taken_us);
    hapax__stats_sub(&course->stats->in_hand, 1);
    hapax__posting_free(entry->posting);
    entry->posting = NULL;
    set_refused(course, entry, false);
    set_away(course, entry, false);
    next = hapax__inhand_remove(&course->inhand, entry);
    if (postpone_ms > 0)
        course->parts->source_type->postpone(course->parts->source, delivered, postpone_ms);
    else
        course->parts->source_type->release(course->parts->source, delivered, how);
    course->settled = true;
    return next;
}

/* Settles one that stands in no list, and lets the next of its order go: to a hand, or out as well. A broker that can be
 * asked for a message later gives none of its order before it, and takes back one at a time: what is behind that goes, too. */
static void release(struct hapax__course *course, struct hapax__entry *entry,
                    enum hapax__release how)
{
    struct hapax__entry *next = settle_one(course, entry, how);
    bool keeps_order = course->parts->source_type->postpone != NULL;
    bool back = how == HAPAX__RELEASE_RETURN && keeps_order;

    while (next && (next->delivered->voided || course->draining || back)) {
        back |= next->delivered->voided && keeps_order;
        next->phase = HAPAX__PHASE_READY;
        next = settle_one(course, next, HAPAX__RELEASE_RETURN);
    }
    if (next)
        make_ready(course, next);
}

/* Gives up on one that nobody is at work on; what is IN_LINE goes with the one before it. */
static void give_back(struct hapax__course *course, struct hapax__entry *entry)
{
    if (entry->phase == HAPAX__PHASE_HELD)
        unhold(course, entry);
    else if (entry->phase != HAPAX__PHASE_RESEND)
        return;
    release(course, entry, HAPAX__RELEASE_RETURN);
}

/* The first of a line at or behind `entry`. No release of another ends it. */
static struct hapax__entry *first_of_line(struct hapax__entry *entry)
{
    while (entry && entry->phase == HAPAX__PHASE_IN_LINE)
        entry = entry->after_it;
    return entry;
}

/* All that are not with a hand or the sink, or only those of them that are voided. */
static void give_back_all(struct hapax__course *course, bool only_voided)
{
    struct hapax__queue ready = course->ready;
    struct hapax__entry *entry;

    course->ready = (struct hapax__queue){NULL, NULL};
    while ((entry = pop(&ready))) {
        if (entry->delivered->voided || !only_voided)
            release(course, entry, HAPAX__RELEASE_RETURN);
        else
            add(&course->ready, entry);
    }
    entry = first_of_line(course->inhand.all);
    while (entry) {
        struct hapax__entry *after = first_of_line(entry->after_it);

        if (entry->delivered->voided || !only_voided)
            give_back(course, entry);
        entry = after;
    }
}

/* ---- held ------------------------------------------------------------------------------ */

static void hold(struct hapax__course *course, struct hapax__entry *entry, enum hapax__hold why,
                 int64_t after_ms)
{
    if (course->draining) {
        release(course, entry, HAPAX__RELEASE_RETURN);
        return;
    }
    if (entry->before.hold != why)
        entry->before.holds = 0;
    entry->before.hold = why;
    entry->before.holds++;
    set_away(course, entry, why == HAPAX__HOLD_AWAY);
    entry->phase = HAPAX__PHASE_HELD;
    course->held[why]++;
    hapax__inhand_wake_at(&course->inhand, entry, course->now_us + after_ms * US_PER_MS);
    if (why == HAPAX__HOLD_TWIN && entry->operation > 0)
        hapax__inhand_twin(&course->inhand, entry);
    if (why != HAPAX__HOLD_RETURN)
        hapax__stats_add(&course->stats->retried, 1);
}

/* Their pauses do not begin anew: what they are woken for may not hold for all of them. */
static void wake(struct hapax__course *course, enum hapax__hold why, uint32_t most)
{
    for (struct hapax__entry *entry = course->inhand.all;
         entry && course->held[why] > 0 && most > 0; entry = entry->after_it) {
        if (entry->phase != HAPAX__PHASE_HELD || entry->before.hold != why)
            continue;
        unhold(course, entry);
        make_ready(course, entry);
        most--;
    }
}

/* Those who wait for this operation may ask again: it is done. */
static void wake_twins(struct hapax__course *course, uint64_t operation)
{
    struct hapax__entry *twin;

    while (operation > 0 && (twin = hapax__inhand_twin_of(&course->inhand, operation))) {
        unhold(course, twin);
        make_ready(course, twin);
    }
}

/* Whether it is time to say something (again), which is noted. */
static bool is_due(const struct hapax__course *course, int64_t *said_us)
{
    if (*said_us > 0 && course->now_us < *said_us + SAY_AGAIN_US)
        return false;
    *said_us = course->now_us;
    return true;
}

/* ---- letters --------------------------------------------------------------------------- */

static const char *to_of(const struct hapax__course *course, enum hapax__act as)
{
    switch (as) {
    case HAPAX__ACT_DEAD:
        return course->parts->dead_letters;
    case HAPAX__ACT_PARK:
        return course->parts->parked;
    default:
        return course->parts->source->name;
    }
}

static void post(struct hapax__course *course, struct hapax__entry *entry, enum hapax__act as,
                 const struct hapax__settling *settling)
{
    const struct hapax__post_what what = {
        .to = to_of(course, as),
        .history = entry->history,
        .delay_ms = as == HAPAX__ACT_RETRY ? settling->after_ms : 0,
        .reason = as == HAPAX__ACT_RETRY ? NULL : settling->reason,
        .ended = &entry->ended,
        .refused = entry->delivery.why,
        .scope = course->parts->scope,
        .time_us = hapax__wall_us(),
        .tag = entry,
    };

    assert(!entry->posting);
    entry->posting = hapax__posting_new(entry->delivered, &what);
    if (!entry->posting) { /* it is asked for again, and where it failed runs again */
        hold(course, entry, HAPAX__HOLD_MEMORY, RESEND_MIN_MS);
        return;
    }
    set_away(course, entry, false);
    entry->sent_as = as;
    entry->sends = 0;
    entry->phase = HAPAX__PHASE_SENDING;
    add(&course->to_send, entry);
}

static void count_letter(struct hapax__course *course, const struct hapax__entry *entry)
{
    switch (entry->sent_as) {
    case HAPAX__ACT_DEAD:
        hapax__stats_add(&course->stats->dead_lettered, 1);
        break;
    case HAPAX__ACT_PARK:
        hapax__stats_add(&course->stats->parked, 1);
        break;
    default:
        hapax__stats_add(&course->stats->retried, 1);
    }
}

/* A line when they begin to be refused and, while they are, now and then; one when they are taken again. */
static void say_refused(struct hapax__course *course, const struct hapax__entry *entry,
                        bool refused)
{
    int64_t *said_us = &course->refused_us[entry->sent_as];

    if (refused && is_due(course, said_us))
        hapax__course_say(course, "letters to \"%s\" are refused, their messages are kept: %s",
                          to_of(course, entry->sent_as), course->parts->sink->why);
    if (refused || *said_us == 0)
        return;
    *said_us = 0;
    hapax__course_say(course, "letters to \"%s\" are taken again", to_of(course, entry->sent_as));
}

static void letter_back(struct hapax__course *course, struct hapax__entry *entry,
                        enum hapax__sent sent)
{
    assert(entry->phase == HAPAX__PHASE_SENDING && entry->posting);
    if (sent != HAPAX__SENT_LOST) {
        set_refused(course, entry, sent == HAPAX__SENT_REFUSED);
        say_refused(course, entry, sent == HAPAX__SENT_REFUSED);
    }
    if (sent == HAPAX__SENT_OK) {
        count_letter(course, entry);
        release(course, entry, HAPAX__RELEASE_ACK);
        return;
    }
    entry->phase = HAPAX__PHASE_RESEND;
    if (entry->delivered->voided) {
        give_back(course, entry);
        return;
    }
    hapax__inhand_wake_at(
        &course->inhand, entry,
        course->now_us +
            US_PER_MS * hapax__settle_pause_ms(
                            hapax__least(RESEND_MIN_MS, course->parts->consumer->retry_min_ms),
                            RESEND_MAX_MS, entry->sends++, random_of(course)));
}

void hapax__course_send(struct hapax__course *course)
{
    while (course->to_send.first) {
        struct hapax__entry *entry = course->to_send.first;

        if (entry->delivered->voided) {
            pop(&course->to_send);
            entry->phase = HAPAX__PHASE_RESEND;
            give_back(course, entry);
            continue;
        }
        if (!course->parts->sink_type->send(course->parts->sink,
                                            hapax__posting_letter(entry->posting)))
            return;
        pop(&course->to_send);
        course->sent = true;
    }
}

void hapax__course_reap(struct hapax__course *course)
{
    enum hapax__sent sent;
    void *tag;

    while ((sent = course->parts->sink_type->reap(course->parts->sink, &tag)) !=
           HAPAX__SENT_NOTHING)
        letter_back(course, tag, sent);
}

/* ---- answers --------------------------------------------------------------------------- */

static void set_store_away(struct hapax__course *course, bool away)
{
    course->store_away = away;
    atomic_store(&course->parts->work->store_away, away);
}

/* By answers of STORE_DOWN and outcomes not recorded taking stops; by any other answer it goes on. With `open` it
 * never stops for long, for BYPASS is such an answer. */
static void see_store(struct hapax__course *course, const struct hapax__entry *entry,
                      const struct hapax__settling *settling)
{
    bool away = settling->store == HAPAX__STORE_AWAY;

    if (settling->store != HAPAX__STORE_NOT_SEEN && course->stats->store_up == away) {
        show(&course->stats->store_up, !away);
        if (away)
            hapax__course_say(course, "the store is away: %s",
                              entry->ended.error ? hapax_error_name(entry->ended.error)
                                                 : "an outcome was not stored in time");
        else
            hapax__course_say(course, "the store is back");
    }
    if (away && settling->hold == HAPAX__HOLD_STORE) {
        set_store_away(course, true);
    } else if (course->store_away &&
               (settling->store == HAPAX__STORE_UP || entry->ended.kind == HAPAX_ANSWER_BYPASS)) {
        set_store_away(course, false);
        wake(course, HAPAX__HOLD_STORE, UINT32_MAX);
    }
}

/* What it says of the store is left to the answers: one from before may still come. */
void hapax__course_see_claims(struct hapax__course *course)
{
    if (!course->store_away || atomic_load(&course->parts->work->store_away))
        return;
    set_store_away(course, false);
    wake(course, HAPAX__HOLD_STORE, UINT32_MAX);
}

/* Two for each that went through: as many as a handler that is well takes, and no more than one that is not. */
static void see_listener(struct hapax__course *course, const struct hapax__settling *settling)
{
    if (!settling->ran)
        return;
    if (course->nobody)
        wake(course, HAPAX__HOLD_AWAY, 2);
    if (course->nobody && course->away > course->parts->consumer->in_hand_max / 4)
        return;
    if (course->nobody)
        wake(course, HAPAX__HOLD_AWAY, UINT32_MAX);
    course->nobody = false;
    if (course->nobody_told)
        hapax__course_say(course, "the handler takes messages again");
    course->nobody_told = false;
}

static void see_nobody(struct hapax__course *course)
{
    if (course->nobody || course->away <= course->parts->consumer->in_hand_max / 2)
        return;
    course->nobody = true;
    if (course->nobody_told || !is_due(course, &course->nobody_us))
        return;
    course->nobody_told = true;
    hapax__course_say(course,
                      "the handler takes no messages: none is taken until some went through");
}

static void say_corrupt(struct hapax__course *course, const struct hapax__ended *ended)
{
    if (ended->kind == HAPAX_ANSWER_STORE_DOWN && ended->error == HAPAX_ERR_CORRUPT &&
        is_due(course, &course->corrupt_us))
        hapax__course_say(course,
                          "a record is damaged: its message goes to \"%s\" with hapax-reason "
                          "corrupt, as do all such",
                          to_of(course, course->parts->consumer->unknown == HAPAX_UNKNOWN_PARK
                                            ? HAPAX__ACT_PARK
                                            : HAPAX__ACT_DEAD));
}

/* Whether its attempts are counted by the record, for what comes again from the broker has no count. With a hook that is
 * asked what a death was they are not. */
static bool is_counted(const struct hapax__course *course, const struct hapax__entry *entry,
                       const struct hapax__settling *settling)
{
    if (settling->hold == HAPAX__HOLD_FAILED)
        return entry->ended.kind == HAPAX_ANSWER_FRESH;
    if (settling->hold == HAPAX__HOLD_LEASE)
        return entry->ended.kind == HAPAX_ANSWER_FRESH &&
               course->parts->consumer->policy.on_expired != HAPAX_EXPIRED_RECONCILE;
    return true;
}

/* For how long it is left with a broker that takes it back for a time; 0: it is held. In whole seconds, so that what is short
 * is held, but for one that is turned away, whose place is for others. A twin is held until its pauses are a quarter of the
 * lease, for what is in this process wakes it, and then left for the rest of that. */
static int64_t postponed_ms(const struct hapax__course *course, const struct hapax__entry *entry,
                            const struct hapax__settling *settling, bool crowded)
{
    bool twin = settling->hold == HAPAX__HOLD_TWIN && settling->act == HAPAX__ACT_HOLD;
    bool turned_away = settling->hold == HAPAX__HOLD_AWAY && settling->act == HAPAX__ACT_RETRY;
    int64_t least_ms = twin ? course->parts->consumer->policy.lease_ms / 4 : POSTPONE_MIN_MS;
    int64_t lease_ms = twin ? entry->ended.retry_after_ms : 0;

    if (!course->parts->source_type->postpone || course->draining ||
        !is_counted(course, entry, settling))
        return 0;
    if (settling->act != HAPAX__ACT_RETRY && settling->hold != HAPAX__HOLD_LEASE && !twin)
        return 0;
    if (settling->after_ms < least_ms && !crowded && !turned_away)
        return 0;
    return lease_ms > settling->after_ms ? lease_ms : settling->after_ms;
}

static void hold_or_delay(struct hapax__course *course, struct hapax__entry *entry,
                          const struct hapax__settling *settling)
{
    bool crowded = settling->hold == HAPAX__HOLD_TWIN &&
                   course->held[HAPAX__HOLD_TWIN] > course->parts->consumer->in_hand_max / 2;

    if (course->by_broker && (crowded || settling->act == HAPAX__ACT_RETRY)) {
        post(course, entry, HAPAX__ACT_RETRY, settling);
        return;
    }
    entry->postpone_ms = postponed_ms(course, entry, settling, crowded);
    if (entry->postpone_ms > 0) {
        hapax__stats_add(&course->stats->retried, 1);
        release(course, entry, HAPAX__RELEASE_RETURN);
        return;
    }
    hold(course, entry, settling->hold, settling->after_ms);
    if (settling->hold == HAPAX__HOLD_AWAY)
        see_nobody(course);
}

static void act(struct hapax__course *course, struct hapax__entry *entry,
                const struct hapax__settling *settling)
{
    switch (settling->act) {
    case HAPAX__ACT_ACK:
        hapax__stats_add(&course->stats->acknowledged, 1);
        release(course, entry, HAPAX__RELEASE_ACK);
        return;
    case HAPAX__ACT_REJECT:
        release(course, entry, HAPAX__RELEASE_REJECT);
        return;
    case HAPAX__ACT_DEAD:
    case HAPAX__ACT_PARK:
        post(course, entry, settling->act, settling);
        return;
    case HAPAX__ACT_RETRY:
    case HAPAX__ACT_HOLD:
    case HAPAX__ACT_RETURN:
        hold_or_delay(course, entry, settling);
        return;
    }
}

/* What was left with the broker carries no count: the record's is the one. */
static void see_spent(const struct hapax__course *course, struct hapax__entry *entry)
{
    struct hapax__history *history = &entry->history;
    const struct hapax__ended *ended = &entry->ended;
    bool ran = ended->cls == HAPAX_CLASS_FAILED || ended->cls == HAPAX_CLASS_UNKNOWN;
    uint32_t spent =
        ended->spent - (ran && ended->spent > 0); /* this one is counted by its answer */

    if (course->parts->source_type->postpone && spent > history->base &&
        spent - history->base > history->attempts)
        history->attempts = spent - history->base;
}

static bool is_over(enum hapax__act what)
{
    return what == HAPAX__ACT_ACK || what == HAPAX__ACT_DEAD || what == HAPAX__ACT_PARK;
}

void hapax__course_answered(struct hapax__course *course, struct hapax__entry *entry)
{
    const struct hapax__ended *ended = &entry->ended;
    uint64_t operation = entry->operation;
    bool voided = entry->delivered->voided;
    struct hapax__settling settling;

    assert(entry->phase == HAPAX__PHASE_RUNNING && course->running > 0);
    course->running--;
    see_spent(course, entry);
    entry->before.attempts = entry->history.attempts;
    settling =
        hapax__settle_rule(course->parts->consumer, ended, &entry->before, random_of(course));
    if (ended->kind > 0)
        hapax__stats_add(&course->stats->answers[ended->kind], 1);
    if (ended->kind == HAPAX_ANSWER_BYPASS)
        hapax__stats_add(&course->stats->unprotected, 1);
    if (settling.ran) {
        entry->history.attempts++;
        set_away(course, entry, false);
    }
    say_corrupt(course, ended);
    see_store(course, entry, &settling);
    see_listener(course, &settling);
    if (voided)
        release(course, entry, HAPAX__RELEASE_RETURN);
    else
        act(course, entry, &settling);
    /* What was voided was delivered again, and goes on as that. */
    if (voided || is_over(settling.act))
        wake_twins(course, operation);
}

/* ---- taking, asking, waking -------------------------------------------------------------- */

/* What taking stopped for is over, too, when nobody is left in hand who would find that out. Within a handler
 * nobody asks the store for anything, for as long as that takes. */
static bool takes(struct hapax__course *course)
{
    uint64_t in_handlers = __atomic_load_n(&course->stats->running, __ATOMIC_RELAXED);

    if (course->store_away && !course->ready.first && course->running <= in_handlers &&
        course->held[HAPAX__HOLD_STORE] == 0)
        set_store_away(course, false);
    if (course->away == 0)
        course->nobody = false;
    return !course->draining && !course->store_away && !course->nobody;
}

size_t hapax__course_room(struct hapax__course *course)
{
    return takes(course) ? course->inhand.max - course->inhand.count : 0;
}

void hapax__course_take(struct hapax__course *course, struct hapax__delivered *delivered)
{
    struct hapax__entry *entry = hapax__inhand_add(&course->inhand, delivered, course->now_us);

    entry->history = hapax__history_read(&delivered->message);
    hapax__stats_add(&course->stats->taken, 1);
    hapax__stats_add(&course->stats->in_hand, 1);
    if (entry->phase == HAPAX__PHASE_READY)
        add(&course->ready, entry);
}

struct hapax__entry *hapax__course_next(struct hapax__course *course)
{
    const struct hapax_consumer *consumer = course->parts->consumer;
    struct hapax__entry *entry;

    while ((entry = pop(&course->ready)) && entry->delivered->voided)
        release(course, entry, HAPAX__RELEASE_RETURN);
    if (!entry)
        return NULL;
    entry->policy = consumer->policy;
    entry->policy.attempts_max =
        hapax__attempts_limit(consumer->policy.attempts_max, entry->history.base);
    /* What waits for another attempt cannot be told to stop. */
    entry->policy.wait_ms = consumer->in_flight == HAPAX_IN_FLIGHT_WAIT
                                ? hapax__least(consumer->policy.wait_ms, consumer->drain_ms)
                                : 0;
    entry->policy.key =
        consumer->no_key == HAPAX_NO_KEY_RUN ? HAPAX_KEY_OPTIONAL : HAPAX_KEY_REQUIRED;
    entry->phase = HAPAX__PHASE_RUNNING;
    course->running++;
    return entry;
}

void hapax__course_wake(struct hapax__course *course)
{
    struct hapax__entry *entry;

    while ((entry = hapax__inhand_woken(&course->inhand, course->now_us))) {
        if (entry->phase == HAPAX__PHASE_RESEND) {
            entry->phase = HAPAX__PHASE_SENDING;
            add(&course->to_send, entry);
            continue;
        }
        unhold(course, entry);
        if (entry->before.hold == HAPAX__HOLD_RETURN)
            release(course, entry, HAPAX__RELEASE_RETURN);
        else
            make_ready(course, entry);
    }
}

/* ---- the broker takes back, and the end -------------------------------------------------- */

void hapax__course_voided(struct hapax__course *course)
{
    give_back_all(course, true);
    /* With a hand: what it finds out may take as long as its handler. */
    for (struct hapax__entry *entry = course->inhand.all; entry; entry = entry->after_it)
        if (entry->delivered->voided)
            set_away(course, entry, false);
}

void hapax__course_drain(struct hapax__course *course)
{
    course->draining = true;
    give_back_all(course, false);
}

void hapax__course_end(struct hapax__course *course)
{
    struct hapax__entry *entry;

    assert(course->draining || course->inhand.count == 0);
    while ((entry = first_of_line(course->inhand.all))) {
        assert(entry->phase == HAPAX__PHASE_SENDING || entry->phase == HAPAX__PHASE_RESEND);
        release(course, entry, HAPAX__RELEASE_RETURN);
    }
}
