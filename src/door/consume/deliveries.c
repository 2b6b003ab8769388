/* SPDX-License-Identifier: Apache-2.0
 *
 * Deliveries in hand: ready, with a hand, waiting, in letters, released.
 *
 * Invariant: a delivery is released exactly once. It is acknowledged only when its message is done
 * or its letter is confirmed. No handler begins for a voided delivery, and its letter is not sent.
 * Deliveries of one order ask one at a time. A delivery that waits, or whose letter is on its way,
 * keeps the others of its order behind it. Once these fill in_hand_max, nothing is taken.
 *
 * Taking stops while the store is away. It also stops when more than half of in_hand_max messages
 * did not run because nobody listens. The deliveries in hand go on asking. When the store answers
 * the first of them, taking goes on and the others are woken. Where nobody listened, each delivery
 * that goes through wakes two more. Taking goes on when a quarter of in_hand_max is left, and not
 * at the first success: an overloaded handler lets some messages through, too.
 *
 * Rejected: probes of the store or the handler. A probe would know less than the operations
 * themselves, and would add load where there is trouble already.
 */
#include "deliveries.h"

#include "base/clock.h"
#include "base/span.h"
#include "base/time.h"
#include "core/class.h"
#include "stats.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

#define RESEND_MIN_MS   100
#define POSTPONE_MIN_MS 750
#define RESEND_MAX_MS   30000
/* The log has the same line once in this time. */
#define LOG_AGAIN_US (60 * 1000 * US_PER_MS)

/* ---- small things -------------------------------------------------------------------- */

void hapax__deliveries_log(const struct hapax__deliveries *d, const char *format, ...)
{
    const struct hapax_consumer *consumer = d->parts->consumer;
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

static struct hapax__entry *pop(struct hapax__entries *entries)
{
    struct hapax__entry *entry = STAILQ_FIRST(entries);

    if (entry)
        STAILQ_REMOVE_HEAD(entries, next);
    return entry;
}

static uint32_t random_of(struct hapax__deliveries *d)
{
    d->random = d->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(d->random >> 33);
}

/* ---- release ----------------------------------------------------------------------- */

static void stop_waiting(struct hapax__deliveries *d, struct hapax__entry *entry)
{
    assert(entry->phase == HAPAX__PHASE_WAITING && d->waiting[entry->before.wait] > 0);
    d->waiting[entry->before.wait]--;
    hapax__inhand_wake_not(&d->inhand, entry);
    hapax__inhand_duplicate_remove(&d->inhand, entry);
}

static void make_ready(struct hapax__deliveries *d, struct hapax__entry *entry)
{
    entry->phase = HAPAX__PHASE_READY;
    STAILQ_INSERT_TAIL(&d->ready, entry, next);
}

static void set_away(struct hapax__deliveries *d, struct hapax__entry *entry, bool away)
{
    d->away += (uint32_t)away - (uint32_t)entry->away;
    entry->away = away;
}

static void set_refused(struct hapax__deliveries *d, struct hapax__entry *entry, bool refused)
{
    if (entry->letter_refused == refused)
        return;
    entry->letter_refused = refused;
    if (refused)
        hapax__stats_add(&d->stats->letters_refused, 1);
    else
        hapax__stats_sub(&d->stats->letters_refused, 1);
}

static struct hapax__entry *release_one(struct hapax__deliveries *d, struct hapax__entry *entry,
                                        enum hapax__release how)
{
    struct hapax__delivered *delivered = entry->delivered;
    int64_t postpone_ms = entry->postpone_ms;
    struct hapax__entry *next;

    if (how != HAPAX__RELEASE_ACK && !delivered->voided && postpone_ms == 0)
        hapax__stats_add(&d->stats->returned, 1);
    hapax__stats_time(d->stats->message_us, &d->stats->message_us_sum,
                      hapax__monotonic_us() - entry->taken_us);
    hapax__stats_sub(&d->stats->in_hand, 1);
    d->letters_out -= entry->letter != NULL;
    hapax__letter_free(entry->letter);
    entry->letter = NULL;
    set_refused(d, entry, false);
    set_away(d, entry, false);
    next = hapax__inhand_remove(&d->inhand, entry);
    if (postpone_ms > 0)
        d->parts->source_type->postpone(d->parts->source, delivered, postpone_ms);
    else
        d->parts->source_type->release(d->parts->source, delivered, how);
    d->released = true;
    return next;
}

/* Releases an entry that is in no list. The next entry of its order becomes ready, or is released
 * as well. A broker that can postpone messages delivers none of an order before the postponed one,
 * and takes back one message at a time. So the entries behind a returned one are returned, too. */
static void release(struct hapax__deliveries *d, struct hapax__entry *entry,
                    enum hapax__release how)
{
    struct hapax__entry *next = release_one(d, entry, how);
    bool keeps_order = d->parts->source_type->postpone != NULL;
    bool back = how == HAPAX__RELEASE_RETURN && keeps_order;

    while (next && (next->delivered->voided || d->draining || back)) {
        back |= next->delivered->voided && keeps_order;
        next->phase = HAPAX__PHASE_READY;
        next = release_one(d, next, HAPAX__RELEASE_RETURN);
    }
    if (next)
        make_ready(d, next);
}

/* Returns an entry to the broker if it is WAITING or RESEND. An entry IN_LINE is returned with the
 * entry before it. */
static void give_back(struct hapax__deliveries *d, struct hapax__entry *entry)
{
    if (entry->phase == HAPAX__PHASE_WAITING)
        stop_waiting(d, entry);
    else if (entry->phase != HAPAX__PHASE_RESEND)
        return;
    release(d, entry, HAPAX__RELEASE_RETURN);
}

/* Returns the first entry, at or behind this one, that is not IN_LINE. Releasing another entry does
 * not free it. NULL: none. */
static struct hapax__entry *first_of_line(struct hapax__entry *entry)
{
    while (entry && entry->phase == HAPAX__PHASE_IN_LINE)
        entry = TAILQ_NEXT(entry, in_hand);
    return entry;
}

/* Returns all entries that are not with a hand or the sink, or only the voided ones of them. */
static void give_back_all(struct hapax__deliveries *d, bool only_voided)
{
    struct hapax__entries ready = STAILQ_HEAD_INITIALIZER(ready);
    struct hapax__entry *entry;

    STAILQ_CONCAT(&ready, &d->ready);
    while ((entry = pop(&ready))) {
        if (entry->delivered->voided || !only_voided)
            release(d, entry, HAPAX__RELEASE_RETURN);
        else
            make_ready(d, entry);
    }
    entry = first_of_line(TAILQ_FIRST(&d->inhand.all));
    while (entry) {
        struct hapax__entry *after = first_of_line(TAILQ_NEXT(entry, in_hand));

        if (entry->delivered->voided || !only_voided)
            give_back(d, entry);
        entry = after;
    }
}

/* ---- waiting ------------------------------------------------------------------------------ */

static void let_wait(struct hapax__deliveries *d, struct hapax__entry *entry, enum hapax__wait why,
                     int64_t after_ms)
{
    if (d->draining) {
        release(d, entry, HAPAX__RELEASE_RETURN);
        return;
    }
    if (entry->before.wait != why)
        entry->before.waits = 0;
    entry->before.wait = why;
    entry->before.waits++;
    set_away(d, entry, why == HAPAX__WAIT_AWAY);
    entry->phase = HAPAX__PHASE_WAITING;
    d->waiting[why]++;
    hapax__inhand_wake_at(&d->inhand, entry, d->now_us + after_ms * US_PER_MS);
    if (why == HAPAX__WAIT_DUPLICATE && entry->operation > 0)
        hapax__inhand_duplicate_add(&d->inhand, entry);
    if (why != HAPAX__WAIT_RETURN)
        hapax__stats_add(&d->stats->retried, 1);
}

/* Makes entries ready that wait for this reason, `most` of them at most; not those that the handler
 * told how long to wait. Their pauses go on
 * growing, since the reason may still be true for some of them. */
static void wake(struct hapax__deliveries *d, enum hapax__wait why, uint32_t most)
{
    struct hapax__entry *entry;

    TAILQ_FOREACH (entry, &d->inhand.all, in_hand) {
        if (d->waiting[why] == 0 || most == 0)
            return;
        if (entry->phase != HAPAX__PHASE_WAITING || entry->before.wait != why || entry->told)
            continue;
        stop_waiting(d, entry);
        make_ready(d, entry);
        most--;
    }
}

/* Makes the entries ready that wait for an operation which is now done. */
static void wake_duplicates(struct hapax__deliveries *d, uint64_t operation)
{
    struct hapax__entry *entry;

    while (operation > 0 && (entry = hapax__inhand_duplicate_of(&d->inhand, operation))) {
        stop_waiting(d, entry);
        make_ready(d, entry);
    }
}

/* Whether the log may have a line (again). If so, *logged_us becomes the time of this line. */
static bool is_due(const struct hapax__deliveries *d, int64_t *logged_us)
{
    if (*logged_us > 0 && d->now_us < *logged_us + LOG_AGAIN_US)
        return false;
    *logged_us = d->now_us;
    return true;
}

/* ---- letters --------------------------------------------------------------------------- */

static const char *to_of(const struct hapax__deliveries *d, enum hapax__act as)
{
    switch (as) {
    case HAPAX__ACT_DEAD:
        return d->parts->dead_letters;
    case HAPAX__ACT_PARK:
        return d->parts->parked;
    default:
        return d->parts->source->name;
    }
}

static void post(struct hapax__deliveries *d, struct hapax__entry *entry, enum hapax__act as,
                 const struct hapax__decision *decision)
{
    char error[HAPAX_TEXT_MAX] = "";
    struct hapax__letter_args args = {
        .to = to_of(d, as),
        .history = entry->history,
        .id = entry->has_id ? &entry->id : NULL,
        .error = error,
        .spent = entry->ended.spent,
        .scope = d->parts->scope,
        .time_us = hapax__wall_us(),
        .tag = entry,
    };

    assert(!entry->letter);
    if (as == HAPAX__ACT_RETRY) {
        args.delay_ms = decision->after_ms;
    } else {
        args.reason = decision->reason;
        hapax__reason_line(error, decision->reason, &entry->ended, entry->delivery.why);
    }
    entry->letter = hapax__letter_copy(entry->delivered, &args);
    if (!entry->letter) { /* the entry asks again; if its handler failed, the handler runs again */
        let_wait(d, entry, HAPAX__WAIT_MEMORY, RESEND_MIN_MS);
        return;
    }
    if (d->letters_out++ == 0)
        d->sink_us = d->now_us;
    set_away(d, entry, false);
    entry->sent_as = as;
    entry->reason = args.reason;
    entry->sends = 0;
    entry->phase = HAPAX__PHASE_SENDING;
    STAILQ_INSERT_TAIL(&d->to_send, entry, next);
}

/* Logs the letters that the log does not have yet. */
static void log_letters(const struct hapax__deliveries *d, enum hapax__reason reason,
                        struct hapax__letters_seen *seen)
{
    hapax__deliveries_log(d, "letters to \"%s\": %llu with hapax-reason %s, the last one: %s",
                          to_of(d, seen->as), (unsigned long long)seen->count,
                          hapax__reason_name(reason), seen->error);
    seen->count = 0;
}

/* Logs the first letter of a reason at once. Those that follow are counted, and logged together. */
static void see_letter(struct hapax__deliveries *d, const struct hapax__entry *entry)
{
    struct hapax__letters_seen *seen = &d->letters[entry->reason];

    seen->count++;
    seen->as = entry->sent_as;
    hapax__reason_line(seen->error, entry->reason, &entry->ended, entry->delivery.why);
    if (is_due(d, &seen->logged_us))
        log_letters(d, entry->reason, seen);
}

static void count_letter(struct hapax__deliveries *d, const struct hapax__entry *entry)
{
    switch (entry->sent_as) {
    case HAPAX__ACT_DEAD:
        hapax__stats_add(&d->stats->dead_lettered, 1);
        see_letter(d, entry);
        break;
    case HAPAX__ACT_PARK:
        hapax__stats_add(&d->stats->parked, 1);
        see_letter(d, entry);
        break;
    default:
        hapax__stats_add(&d->stats->retried, 1);
    }
}

/* Logs that letters are refused, once in LOG_AGAIN_US while they are. Logs once that the sink takes
 * them again. */
static void log_refused(struct hapax__deliveries *d, const struct hapax__entry *entry, bool refused)
{
    int64_t *logged_us = &d->refused_us[entry->sent_as];

    if (refused && is_due(d, logged_us))
        hapax__deliveries_log(d, "letters to \"%s\" are refused, their messages are kept: %s",
                              to_of(d, entry->sent_as), d->parts->sink->why);
    if (refused || *logged_us == 0)
        return;
    *logged_us = 0;
    hapax__deliveries_log(d, "letters to \"%s\" are taken again", to_of(d, entry->sent_as));
}

static void letter_back(struct hapax__deliveries *d, struct hapax__entry *entry,
                        enum hapax__sent sent)
{
    assert(entry->phase == HAPAX__PHASE_SENDING && entry->letter);
    if (sent != HAPAX__SENT_LOST) {
        set_refused(d, entry, sent == HAPAX__SENT_REFUSED);
        log_refused(d, entry, sent == HAPAX__SENT_REFUSED);
        d->sink_us = d->now_us;
    }
    if (sent == HAPAX__SENT_OK) {
        count_letter(d, entry);
        release(d, entry, HAPAX__RELEASE_ACK);
        return;
    }
    entry->phase = HAPAX__PHASE_RESEND;
    if (entry->delivered->voided) {
        give_back(d, entry);
        return;
    }
    hapax__inhand_wake_at(
        &d->inhand, entry,
        d->now_us + US_PER_MS * hapax__pause_ms(
                                    hapax__least(RESEND_MIN_MS, d->parts->consumer->retry_min_ms),
                                    RESEND_MAX_MS, entry->sends++, random_of(d)));
}

void hapax__deliveries_send(struct hapax__deliveries *d)
{
    struct hapax__entry *entry;

    while ((entry = STAILQ_FIRST(&d->to_send))) {
        if (entry->delivered->voided) {
            pop(&d->to_send);
            entry->phase = HAPAX__PHASE_RESEND;
            give_back(d, entry);
            continue;
        }
        if (!d->parts->sink_type->send(d->parts->sink, entry->letter))
            return;
        pop(&d->to_send);
        d->sent = true;
    }
}

/* Logs once in LOG_AGAIN_US that letters wait, and none was confirmed or refused since. A sink may
 * be connected, and lose each letter or take none. */
static void see_sink(struct hapax__deliveries *d)
{
    const char *text = d->parts->sink->text;

    if (d->letters_out > 0 && is_due(d, &d->sink_us))
        hapax__deliveries_log(d, "letters cannot be sent, their messages are kept: %s",
                              text[0] ? text : "the broker does not confirm them");
}

void hapax__deliveries_reap(struct hapax__deliveries *d)
{
    enum hapax__sent sent;
    void *tag;

    while ((sent = d->parts->sink_type->reap(d->parts->sink, &tag)) != HAPAX__SENT_NOTHING)
        letter_back(d, tag, sent);
    see_sink(d);
}

/* ---- answers --------------------------------------------------------------------------- */

static void set_store_away(struct hapax__deliveries *d, bool away)
{
    d->store_away = away;
    atomic_store(&d->parts->work->store_away, away);
}

/* An answer of STORE_DOWN, or an outcome that is not recorded, stops taking. Any other answer makes
 * taking go on. BYPASS is one, so under on_store_error=open taking does not stop for long. */
static void see_store(struct hapax__deliveries *d, const struct hapax__entry *entry,
                      const struct hapax__decision *decision)
{
    bool away = decision->store == HAPAX__STORE_AWAY;

    if (decision->store != HAPAX__STORE_NOT_SEEN && d->stats->store_up == away) {
        show(&d->stats->store_up, !away);
        if (away)
            hapax__deliveries_log(d, "the store is away: %s",
                                  entry->ended.error ? hapax_error_name(entry->ended.error)
                                                     : "an outcome was not stored in time");
        else
            hapax__deliveries_log(d, "the store is back");
    }
    if (away && decision->wait == HAPAX__WAIT_STORE) {
        set_store_away(d, true);
    } else if (d->store_away &&
               (decision->store == HAPAX__STORE_UP || entry->ended.kind == HAPAX_ANSWER_BYPASS)) {
        set_store_away(d, false);
        wake(d, HAPAX__WAIT_STORE, UINT32_MAX);
    }
}

/* Logs once in LOG_AGAIN_US that a message waits for the keys of its outcome. */
static void see_sealed(struct hapax__deliveries *d, const struct hapax__entry *entry)
{
    char id[2 * sizeof(entry->id.bytes) + 1];

    if (entry->ended.error != HAPAX_ERR_SEALED || !is_due(d, &d->sealed_us))
        return;
    *hapax__hex(id, entry->id.bytes, sizeof(entry->id.bytes)) = '\0';
    hapax__deliveries_log(
        d, "the outcome of %s is sealed, and the keys do not open it: its message is kept", id);
}

/* Leaves `store_up` and the log to the next answer: an older answer may still say that the store is
 * away. */
void hapax__deliveries_see_claims(struct hapax__deliveries *d)
{
    if (!d->store_away || atomic_load(&d->parts->work->store_away))
        return;
    set_store_away(d, false);
    wake(d, HAPAX__WAIT_STORE, UINT32_MAX);
}

/* Wakes two entries for each one that went through. So a healthy handler soon has them all, and a
 * sick one gets few. */
static void see_listener(struct hapax__deliveries *d, const struct hapax__decision *decision)
{
    if (!decision->ran)
        return;
    if (d->nobody)
        wake(d, HAPAX__WAIT_AWAY, 2);
    if (d->nobody && d->away > d->parts->consumer->in_hand_max / 4)
        return;
    if (d->nobody)
        wake(d, HAPAX__WAIT_AWAY, UINT32_MAX);
    d->nobody = false;
    if (d->nobody_logged)
        hapax__deliveries_log(d, "the handler takes messages again");
    d->nobody_logged = false;
}

static void see_nobody(struct hapax__deliveries *d)
{
    if (d->nobody || d->away <= d->parts->consumer->in_hand_max / 2)
        return;
    d->nobody = true;
    if (d->nobody_logged || !is_due(d, &d->nobody_us))
        return;
    d->nobody_logged = true;
    hapax__deliveries_log(d,
                          "the handler takes no messages: none is taken until some went through");
}

/* Whether the record counts this attempt. A message that is postponed carries no count of its own.
 * The record has no count where a hook decides what became of an attempt. */
static bool is_counted(const struct hapax__deliveries *d, const struct hapax__entry *entry,
                       const struct hapax__decision *decision)
{
    const struct hapax_policy *policy = &d->parts->consumer->policy;
    bool hook_decides = policy->on_expired == HAPAX_EXPIRED_RECONCILE;

    if (decision->wait == HAPAX__WAIT_FAILED)
        hook_decides = hook_decides && hapax__on_failed(policy) == HAPAX_FAILED_HOLD;
    else if (decision->wait != HAPAX__WAIT_LEASE)
        return true;
    return entry->ended.kind == HAPAX_ANSWER_FRESH && !hook_decides;
}

/* Returns how long the broker keeps the message before it delivers it again. 0: the message waits
 * in hand. The broker counts whole seconds, so short pauses are spent in hand. A message that the
 * handler turned away is an exception: it makes room for others. A duplicate waits in hand, where
 * this process can wake it, until its pauses are a quarter of the lease. Then the broker keeps it
 * for the rest of the lease. */
static int64_t postponed_ms(const struct hapax__deliveries *d, const struct hapax__entry *entry,
                            const struct hapax__decision *decision, bool crowded)
{
    const struct hapax_policy *policy = &d->parts->consumer->policy;
    bool duplicate = decision->wait == HAPAX__WAIT_DUPLICATE && decision->act == HAPAX__ACT_WAIT;
    bool turned_away = decision->wait == HAPAX__WAIT_AWAY && decision->act == HAPAX__ACT_RETRY;
    int64_t least_ms = duplicate ? policy->lease_ms / 4 : POSTPONE_MIN_MS;
    int64_t lease_ms = duplicate ? entry->ended.retry_after_ms : 0;

    if (!d->parts->source_type->postpone || d->draining || !is_counted(d, entry, decision))
        return 0;
    if (decision->act != HAPAX__ACT_RETRY && decision->wait != HAPAX__WAIT_LEASE && !duplicate)
        return 0;
    if (decision->after_ms < least_ms && !crowded && !turned_away)
        return 0;
    return lease_ms > decision->after_ms ? lease_ms : decision->after_ms;
}

static void wait_or_delay(struct hapax__deliveries *d, struct hapax__entry *entry,
                          const struct hapax__decision *decision)
{
    bool crowded = decision->wait == HAPAX__WAIT_DUPLICATE &&
                   d->waiting[HAPAX__WAIT_DUPLICATE] > d->parts->consumer->in_hand_max / 2;

    if (d->by_broker && (crowded || decision->act == HAPAX__ACT_RETRY)) {
        post(d, entry, HAPAX__ACT_RETRY, decision);
        return;
    }
    entry->postpone_ms = postponed_ms(d, entry, decision, crowded);
    if (entry->postpone_ms > 0) {
        hapax__stats_add(&d->stats->retried, 1);
        release(d, entry, HAPAX__RELEASE_RETURN);
        return;
    }
    entry->told = decision->told;
    let_wait(d, entry, decision->wait, decision->after_ms);
    if (decision->wait == HAPAX__WAIT_AWAY)
        see_nobody(d);
}

static void act(struct hapax__deliveries *d, struct hapax__entry *entry,
                const struct hapax__decision *decision)
{
    switch (decision->act) {
    case HAPAX__ACT_ACK:
        hapax__stats_add(&d->stats->acknowledged, 1);
        release(d, entry, HAPAX__RELEASE_ACK);
        return;
    case HAPAX__ACT_REJECT:
        release(d, entry, HAPAX__RELEASE_REJECT);
        return;
    case HAPAX__ACT_DEAD:
    case HAPAX__ACT_PARK:
        post(d, entry, decision->act, decision);
        return;
    case HAPAX__ACT_RETRY:
    case HAPAX__ACT_WAIT:
    case HAPAX__ACT_RETURN:
        wait_or_delay(d, entry, decision);
        return;
    }
}

/* Takes the record's count of attempts where the message's own is less. The message's own count is
 * in memory, so it is lost when the broker takes the delivery back. */
static void see_spent(struct hapax__entry *entry)
{
    struct hapax__history *history = &entry->history;
    const struct hapax__ended *ended = &entry->ended;
    bool ran = ended->cls == HAPAX_CLASS_FAILED || ended->cls == HAPAX_CLASS_UNKNOWN;
    /* Without this attempt, which its answer counts. */
    uint32_t spent = ended->spent - (ran && ended->spent > 0);

    if (spent > history->base && spent - history->base > history->attempts)
        history->attempts = spent - history->base;
}

static bool is_over(enum hapax__act what)
{
    return what == HAPAX__ACT_ACK || what == HAPAX__ACT_DEAD || what == HAPAX__ACT_PARK;
}

void hapax__deliveries_answered(struct hapax__deliveries *d, struct hapax__entry *entry)
{
    const struct hapax__ended *ended = &entry->ended;
    uint64_t operation = entry->operation;
    bool voided = entry->delivered->voided;
    struct hapax__decision decision;

    assert(entry->phase == HAPAX__PHASE_RUNNING && d->running > 0);
    d->running--;
    see_spent(entry);
    entry->before.attempts = entry->history.attempts;
    decision = hapax__decide(d->parts->consumer, ended, &entry->before, random_of(d));
    if (ended->kind > 0)
        hapax__stats_add(&d->stats->answers[ended->kind], 1);
    if (ended->kind == HAPAX_ANSWER_BYPASS)
        hapax__stats_add(&d->stats->unprotected, 1);
    if (ended->unasked)
        hapax__stats_add(&d->stats->unasked, 1);
    if (decision.ran) {
        entry->history.attempts++;
        set_away(d, entry, false);
    }
    see_store(d, entry, &decision);
    see_sealed(d, entry);
    see_listener(d, &decision);
    if (voided)
        release(d, entry, HAPAX__RELEASE_RETURN);
    else
        act(d, entry, &decision);
    /* A voided message is delivered again: its duplicates need not wait for this delivery. */
    if (voided || is_over(decision.act))
        wake_duplicates(d, operation);
}

/* ---- taking, asking, waking -------------------------------------------------------------- */

/* Whether messages may be taken. Taking also goes on when no entry in hand will ask the store, or
 * the handler, again. An entry whose handler runs does not ask the store, however long the handler
 * takes. */
static bool takes(struct hapax__deliveries *d)
{
    uint64_t in_handlers = __atomic_load_n(&d->stats->running, __ATOMIC_RELAXED);

    if (d->store_away && STAILQ_EMPTY(&d->ready) && d->running <= in_handlers &&
        d->waiting[HAPAX__WAIT_STORE] == 0)
        set_store_away(d, false);
    if (d->away == 0)
        d->nobody = false;
    return !d->draining && !d->store_away && !d->nobody;
}

/* Logs that no message is taken, since those in hand wait behind others of their order. */
static void see_full(struct hapax__deliveries *d)
{
    const struct hapax__entry *entry;
    uint32_t in_line = 0;

    if (d->inhand.count < d->inhand.max || !is_due(d, &d->full_us) || !takes(d))
        return;
    TAILQ_FOREACH (entry, &d->inhand.all, in_hand)
        in_line += entry->phase == HAPAX__PHASE_IN_LINE;
    if (in_line > d->inhand.max / 2)
        hapax__deliveries_log(d,
                              "no message is taken: %u of the %u in hand wait behind others of "
                              "their key, group or partition",
                              in_line, d->inhand.count);
}

size_t hapax__deliveries_room(struct hapax__deliveries *d)
{
    return takes(d) ? d->inhand.max - d->inhand.count : 0;
}

void hapax__deliveries_take(struct hapax__deliveries *d, struct hapax__delivered *delivered)
{
    struct hapax__entry *entry = hapax__inhand_add(&d->inhand, delivered, d->now_us);

    entry->history = hapax__history_read(&delivered->message);
    hapax__stats_add(&d->stats->taken, 1);
    hapax__stats_add(&d->stats->in_hand, 1);
    if (entry->phase == HAPAX__PHASE_READY)
        STAILQ_INSERT_TAIL(&d->ready, entry, next);
    if (d->inhand.count == d->inhand.max)
        d->full_us = d->now_us;
}

struct hapax__entry *hapax__deliveries_next(struct hapax__deliveries *d)
{
    const struct hapax_consumer *consumer = d->parts->consumer;
    struct hapax__entry *entry;

    while ((entry = pop(&d->ready)) && entry->delivered->voided)
        release(d, entry, HAPAX__RELEASE_RETURN);
    if (!entry)
        return NULL;
    entry->policy = consumer->policy;
    entry->policy.attempts_max =
        hapax__attempts_limit(consumer->policy.attempts_max, entry->history.base);
    /* An entry that waits for another attempt cannot be told to stop. */
    entry->policy.wait_ms = consumer->in_flight == HAPAX_IN_FLIGHT_WAIT
                                ? hapax__least(consumer->policy.wait_ms, consumer->drain_ms)
                                : 0;
    entry->policy.key =
        consumer->no_key == HAPAX_NO_KEY_RUN ? HAPAX_KEY_OPTIONAL : HAPAX_KEY_REQUIRED;
    entry->phase = HAPAX__PHASE_RUNNING;
    d->running++;
    return entry;
}

int64_t hapax__deliveries_due(const struct hapax__deliveries *d)
{
    int64_t due_us = hapax__inhand_due(&d->inhand);

    for (size_t i = 0; i < HAPAX__REASONS; i++)
        if (d->letters[i].count > 0)
            due_us = hapax__least(due_us, d->letters[i].logged_us + LOG_AGAIN_US);
    if (d->inhand.count == d->inhand.max)
        due_us = hapax__least(due_us, d->full_us + LOG_AGAIN_US);
    return due_us;
}

void hapax__deliveries_wake(struct hapax__deliveries *d)
{
    struct hapax__entry *entry;

    for (enum hapax__reason reason = HAPAX__REASON_FAILED; reason < HAPAX__REASONS; reason++)
        if (d->letters[reason].count > 0 && is_due(d, &d->letters[reason].logged_us))
            log_letters(d, reason, &d->letters[reason]);
    see_full(d);
    while ((entry = hapax__inhand_woken(&d->inhand, d->now_us))) {
        if (entry->phase == HAPAX__PHASE_RESEND) {
            entry->phase = HAPAX__PHASE_SENDING;
            STAILQ_INSERT_TAIL(&d->to_send, entry, next);
            continue;
        }
        stop_waiting(d, entry);
        if (entry->before.wait == HAPAX__WAIT_RETURN)
            release(d, entry, HAPAX__RELEASE_RETURN);
        else
            make_ready(d, entry);
    }
}

/* ---- the broker takes back, and the end -------------------------------------------------- */

void hapax__deliveries_voided(struct hapax__deliveries *d)
{
    struct hapax__entry *entry;

    give_back_all(d, true);
    /* Voided entries with a hand no longer count as away: their handlers may take long. */
    TAILQ_FOREACH (entry, &d->inhand.all, in_hand)
        if (entry->delivered->voided)
            set_away(d, entry, false);
}

void hapax__deliveries_drain(struct hapax__deliveries *d)
{
    d->draining = true;
    give_back_all(d, false);
}

enum hapax_error hapax__deliveries_open(struct hapax__deliveries *d)
{
    STAILQ_INIT(&d->ready);
    STAILQ_INIT(&d->to_send);
    return hapax__inhand_open(&d->inhand, d->parts->consumer->in_hand_max, d->parts->work->seed);
}

void hapax__deliveries_close(struct hapax__deliveries *d)
{
    struct hapax__entry *entry;

    assert(d->draining || d->inhand.count == 0);
    while ((entry = first_of_line(TAILQ_FIRST(&d->inhand.all)))) {
        assert(entry->phase == HAPAX__PHASE_SENDING || entry->phase == HAPAX__PHASE_RESEND);
        release(d, entry, HAPAX__RELEASE_RETURN);
    }
    for (enum hapax__reason reason = HAPAX__REASON_FAILED; reason < HAPAX__REASONS; reason++)
        if (d->letters[reason].count > 0)
            log_letters(d, reason, &d->letters[reason]);
    hapax__inhand_close(&d->inhand);
}
