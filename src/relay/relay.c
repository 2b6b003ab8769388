/* SPDX-License-Identifier: Apache-2.0
 *
 * The relay's loop: lease parts, take rows, publish them, end them in the transaction that takes
 * the next rows. No transaction is open while rows are published.
 *
 * Order: the rows in hand of one aggregate make a chain. A row is published once the row before it
 * in its chain is confirmed. If a row is refused, the rest of its chain is left as it was, and the
 * database holds it back. Whoever leases the part next begins with the first row that has not
 * ended. A relay that was asleep may therefore publish a row again that another relay has
 * published; but no row is published for the first time before the rows that precede it.
 *
 * Nothing is sent once the lease is over: what the sink has taken, and has not begun to send, is
 * taken back. The lease is timed by our own clock, and begins before the database's. Rows that were
 * sent by then still end: a row that has ended stays so.
 *
 * The floor: while any older transaction is open, the database keeps the index entries of published
 * rows. To pass over them, rows are taken from behind the last row that was taken, and rows before
 * it only if their aggregate waits. A transaction that commits late has rows with lower numbers. To
 * find them, rows are taken from the beginning every tenth of a second, and sooner once a
 * transaction has published. But this takes a tenth of the time at most, also where the database
 * gives no answer in time: rows behind the floor go on.
 *
 * Rejected: a transaction that is open while rows are published (it keeps every vacuum back, and a
 * slow broker makes it long); a thread per part (64 connections; the relay waits for the broker,
 * not for the processor).
 */
#include "relay.h"

#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "base/utf8.h"
#include "broker/publish.h"
#include "core/key.h"
#include "door/consume/stats.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows that were committed late are looked for after this time. If the search takes long, it is
 * made less often: it takes one LATE_SHARE-th of the time at most. So does counting what waits. */
#define LATE_US      (100 * US_PER_MS)
#define LATE_SHARE   10
#define PAUSE_MIN_US (50 * US_PER_MS)
#define PAUSE_MAX_US (2 * US_PER_S)
#define LAG_US       (2 * US_PER_S)
#define SWEEP_US     (60 * US_PER_S)
#define STUCK_US     (60 * US_PER_S) /* without a row that ends */
#define FDS_MAX      (HAPAX__POLLFDS_MAX + 2u)
#define BUCKETS      (2u * HAPAX__RELAY_BATCH_MAX)
#define TOLD         4096u

enum state {
    BEHIND, /* waits for the row before it */
    PUBLISHING,
    PUBLISHED,
    REFUSED,
    LEFT /* its part is not ours now, or a row before it was refused */
};

struct item {
    struct hapax__outbox_row row;
    struct hapax__letter letter;
    struct hapax__publication publication;
    enum state state;
    bool leaves; /* it was with the sink when the others were left: it is not sent again */
    int64_t begun_us; /* to be published */
    struct item *next; /* of its aggregate */
    struct item *next_bucket; /* of the first items of chains */
    struct item *last; /* of the first item: the end of its chain */
    char error[HAPAX_TEXT_MAX];
};

struct running {
    const struct hapax__relay *how;
    struct hapax__relay_stats *stats;
    struct hapax__outbox outbox;
    struct hapax__pg_link listener;
    struct hapax__sink *sink;
    struct hapax__publisher publisher;
    struct hapax_arena arena; /* of a batch */
    int16_t parts[HAPAX__RELAY_PARTS];
    size_t part_count;
    /* By hapax__boot_us(), which goes on while the machine is suspended, as the lease does. */
    int64_t lease_due_us;
    int64_t lease_end_us;
    int64_t floor;
    int64_t late_due_us; /* the next search below the floor */
    int64_t late_from_us; /* and when it may be at the earliest */
    int64_t lag_due_us;
    int64_t sweep_due_us;
    int64_t sweep_after;
    int64_t pause_us; /* after a failure of the database */
    int64_t listen_due_us;
    int64_t beat_due_us;
    bool stopping;
    bool called; /* a transaction has published since */
    bool below; /* rows may wait below the floor: they are looked for once that may be */
    bool broker_away; /* and the log has a line about it */
    /* When a row last ended or was taken, the broker was away, or the log had that none ends. */
    int64_t ended_us;
    PGresult *rows;
    struct hapax__outbox_row taken[HAPAX__RELAY_BATCH_MAX];
    struct item items[HAPAX__RELAY_BATCH_MAX];
    size_t count;
    size_t open; /* items that are BEHIND or PUBLISHING */
    struct hapax__outbox_end ends[HAPAX__RELAY_BATCH_MAX];
    size_t end_count;
    struct item *buckets[BUCKETS];
    /* Rows that the log has a line about, each in the place of its number; a later one takes it. */
    int64_t told[TOLD];
};

void hapax__relay_init(struct hapax__relay *relay)
{
    *relay = (struct hapax__relay){.poll_ms = 500,
                                   .lease_ms = 10000,
                                   .retry_ms = 1000,
                                   .keep_ms = INT64_C(24) * 3600 * 1000,
                                   .drain_ms = 10000,
                                   .batch = 500,
                                   .attempts_max = 16,
                                   .stop_fd = -1};
}

static void say(const struct running *r, const char *line)
{
    if (r->how->log)
        r->how->log(r->how->log_arg, line);
}

static void set(int64_t *gauge, int64_t value)
{
    __atomic_store_n(gauge, value, __ATOMIC_RELAXED);
}

/* ---- below the floor --------------------------------------------------------------------- */

/* Rows wait below the floor: has them looked for in the next turn. */
static void look_below(struct running *r)
{
    r->below = true;
    r->late_from_us = 0;
}

/* Sets when the next search below the floor is made, after one that took so long. One that fails
 * may have taken too long. If something else fails, the database is away: 0. */
static void looked_below(struct running *r, int64_t begun_us, int64_t took_us)
{
    r->late_from_us = begun_us + took_us * LATE_SHARE;
    r->late_due_us = begun_us + hapax__most(took_us * LATE_SHARE, LATE_US);
}

/* ---- leaving rows to others -------------------------------------------------------------- */

/* Gives up the rows that are not sent yet, and those that are sent and get lost. The next relay
 * that leases their part publishes them. */
static void leave_unsent(struct running *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct item *item = &r->items[i];

        if (item->state == BEHIND || (item->state == PUBLISHING &&
                                      hapax__publish_withdraw(&r->publisher, &item->publication))) {
            item->state = LEFT;
            r->open--;
        }
        item->leaves = item->state == PUBLISHING;
    }
    look_below(r);
}

/* ---- waiting ----------------------------------------------------------------------------- */

/* Notes in `called` whether a transaction has published since the last call. */
static void read_notifications(struct running *r)
{
    PGnotify *notify;

    if (!r->listener.conn)
        return;
    if (!PQconsumeInput(r->listener.conn)) {
        hapax__pg_drop(&r->listener);
        return;
    }
    while ((notify = PQnotifies(r->listener.conn)) != NULL) {
        r->called = true;
        PQfreemem(notify);
    }
}

/* Logs once that the broker is away, as soon as the sink knows why and a row waits. Logs once that
 * the broker is back. Before the first row is sent, one of several brokers may be away without
 * harm. */
static void see_broker(struct running *r)
{
    char line[HAPAX_TEXT_MAX + 32];

    __atomic_store_n(&r->stats->connected, r->sink->connected, __ATOMIC_RELAXED);
    if (r->sink->connected == !r->broker_away ||
        (!r->broker_away && (r->sink->text[0] == '\0' || r->count == 0)))
        return;
    r->broker_away = !r->sink->connected;
    (void)snprintf(line, sizeof(line), "the broker is away: %s", r->sink->text);
    say(r, r->broker_away ? line : "the broker answers again");
}

/* Logs that no row in hand ends, though the sink may be connected: it loses each letter, or takes
 * none. */
static void see_stuck(struct running *r)
{
    int64_t now_us = hapax__monotonic_us();
    char line[HAPAX_TEXT_MAX + 64];

    if (r->open == 0 || r->broker_away)
        r->ended_us = now_us;
    if (now_us < r->ended_us + STUCK_US)
        return;
    r->ended_us = now_us;
    (void)snprintf(line, sizeof(line), "no row was published or refused for a minute: %s",
                   r->sink->text[0] ? r->sink->text : "the broker does not confirm them");
    say(r, line);
}

/* Tells that the loop goes on, when that is due. Returns the moment, or an earlier one at which to
 * tell it again. */
static int64_t beat(struct running *r, int64_t moment_us)
{
    int64_t now_us = hapax__monotonic_us();

    if (!r->how->beat)
        return moment_us;
    if (now_us >= r->beat_due_us) {
        r->beat_due_us = now_us + r->how->beat_ms * US_PER_MS;
        r->how->beat();
    }
    return hapax__least(moment_us, r->beat_due_us);
}

/* Waits until this moment or until something happens. Keeps the sink's connection alive. */
static void wait_until(struct running *r, int64_t moment_us)
{
    struct pollfd fds[FDS_MAX];
    int64_t due_us, now_us;
    size_t n, stop, notify;

    moment_us = due_us = beat(r, moment_us);
    n = stop = r->sink->type->watch(r->sink, fds, &due_us);
    assert(n <= HAPAX__POLLFDS_MAX);
    if (r->how->stop_fd >= 0 && !r->stopping)
        fds[n++] = (struct pollfd){.fd = r->how->stop_fd, .events = POLLIN};
    notify = n;
    if (r->listener.conn)
        fds[n++] = (struct pollfd){.fd = PQsocket(r->listener.conn), .events = POLLIN};
    now_us = hapax__monotonic_us();
    due_us = hapax__least(due_us, moment_us);
    (void)poll(fds, (nfds_t)n,
               due_us <= now_us ? 0 : (int)hapax__least((due_us - now_us) / US_PER_MS + 1, 60000));
    if (stop < notify && fds[stop].revents != 0)
        r->stopping = true;
    if (notify < n && fds[notify].revents != 0)
        read_notifications(r);
    if (r->open > 0 && hapax__boot_us() >= r->lease_end_us) /* the machine may have slept */
        leave_unsent(r);
    r->sink->type->pump(r->sink);
    see_broker(r);
    see_stuck(r);
}

/* After a failure of the database: logs it once, and waits a while. False: waiting does not
 * help. */
static bool database_failed(struct running *r, enum hapax_error error)
{
    bool was_up = __atomic_exchange_n(&r->stats->database_up, false, __ATOMIC_RELAXED);
    int64_t until_us;

    if (error != HAPAX_ERR_UNAVAILABLE && error != HAPAX_ERR_INDETERMINATE)
        return false;
    if (was_up || r->pause_us == 0)
        say(r, r->outbox.link.text);
    r->pause_us = r->pause_us == 0 ? PAUSE_MIN_US : hapax__least(2 * r->pause_us, PAUSE_MAX_US);
    until_us = hapax__monotonic_us() + r->pause_us;
    while (!r->stopping && hapax__monotonic_us() < until_us)
        wait_until(r, until_us);
    return true;
}

static void database_works(struct running *r)
{
    if (r->pause_us > 0)
        say(r, "the database answers again");
    r->pause_us = 0;
    __atomic_store_n(&r->stats->database_up, true, __ATOMIC_RELAXED);
}

/* ---- leases ------------------------------------------------------------------------------ */

static enum hapax_error lease(struct running *r, bool *changed)
{
    int64_t now_us = hapax__boot_us(), lease_ms = r->how->lease_ms;
    int16_t before[HAPAX__RELAY_PARTS];
    size_t count_before = r->part_count;
    enum hapax_error error;

    memcpy(before, r->parts, sizeof(before));
    error = hapax__outbox_lease(&r->outbox, lease_ms, r->parts, &r->part_count);
    if (error != HAPAX_ERR_NONE)
        return error;
    r->lease_end_us = now_us + lease_ms * US_PER_MS;
    r->lease_due_us = now_us + lease_ms * US_PER_MS / 3;
    *changed = count_before != r->part_count ||
               memcmp(before, r->parts, r->part_count * sizeof(before[0])) != 0;
    if (*changed)
        look_below(r); /* the rows that another relay left are there */
    __atomic_store_n(&r->stats->parts, (uint64_t)r->part_count, __ATOMIC_RELAXED);
    return error;
}

/* While rows are in hand: renews the lease, and gives up the unsent rows if a part is lost. */
static void keep_lease(struct running *r)
{
    bool changed = false;

    if (hapax__boot_us() >= r->lease_due_us && lease(r, &changed) != HAPAX_ERR_NONE)
        r->lease_due_us = hapax__boot_us() + US_PER_S;
    if (changed || hapax__boot_us() >= r->lease_end_us)
        leave_unsent(r);
}

/* When the lease is to be looked at next, by hapax__monotonic_us(). */
static int64_t look_us(const struct running *r)
{
    return hapax__monotonic_us() + hapax__least(r->lease_due_us, r->lease_end_us) -
           hapax__boot_us();
}

/* ---- letters ----------------------------------------------------------------------------- */

static bool next_text(struct hapax_span *text, struct hapax_span *rest)
{
    const uint8_t *end = rest->len > 0 ? memchr(rest->ptr, '\0', rest->len) : NULL;

    if (!end)
        return false;
    *text = (struct hapax_span){rest->ptr, (size_t)(end - rest->ptr)};
    rest->ptr = end + 1;
    rest->len -= text->len + 1;
    return true;
}

static size_t texts_in(struct hapax_span headers)
{
    size_t n = 0;

    for (size_t i = 0; i < headers.len; i++)
        n += headers.ptr[i] == '\0';
    return n;
}

/* Writes the key into a header, as an RFC 8941 String. A key that cannot be a String goes out as
 * the message's id only: without the header, the consumer takes the id for the key. False: out of
 * memory. */
static bool write_key(struct running *r, struct item *item)
{
    struct hapax_message_header *header = hapax__arena_alloc(&r->arena, sizeof(*header));
    uint8_t *value = hapax__arena_alloc(&r->arena, HAPAX__KEY_QUOTED_MAX);
    size_t len;

    if (!header || !value)
        return false;
    if (!hapax__key_quote(value, &len, item->row.key))
        return true;
    *header = (struct hapax_message_header){hapax_str("idempotency-key"), {value, len}};
    item->letter.own = header;
    item->letter.own_count = 1;
    return true;
}

/* False: out of memory. */
static bool write_letter(struct running *r, struct item *item)
{
    const struct hapax__outbox_row *row = &item->row;
    size_t room = 1 + texts_in(row->headers) / 2;
    struct hapax_message_header *headers = hapax__arena_alloc(&r->arena, room * sizeof(*headers));
    char *to = hapax__arena_alloc(&r->arena, row->topic.len + 1);
    struct hapax_span rest = row->headers;

    item->letter = (struct hapax__letter){.body = row->payload,
                                          .content_type = row->content_type,
                                          .id = row->key,
                                          .key = row->aggregate,
                                          .headers = headers};
    if (!headers || !to || !write_key(r, item))
        return false;
    memcpy(to, row->topic.ptr, row->topic.len);
    to[row->topic.len] = '\0';
    item->letter.to = to;
    while (item->letter.header_count < room) {
        struct hapax_message_header *header = &headers[item->letter.header_count];

        if (!next_text(&header->name, &rest) || !next_text(&header->value, &rest))
            break;
        item->letter.header_count++;
    }
    return true;
}

/* ---- a batch ----------------------------------------------------------------------------- */

static size_t bucket_of(struct hapax_span aggregate)
{
    uint64_t hash = 1469598103934665603u; /* FNV-1a */

    for (size_t i = 0; i < aggregate.len; i++)
        hash = (hash ^ aggregate.ptr[i]) * 1099511628211u;
    return (size_t)(hash % BUCKETS);
}

/* Appends the item to the chain of its aggregate. */
static void chain(struct running *r, struct item *item)
{
    struct item **bucket = &r->buckets[bucket_of(item->row.aggregate)];
    struct item *head = *bucket;

    while (head && !hapax__same(head->row.aggregate, item->row.aggregate))
        head = head->next_bucket;
    if (head) {
        item->state = BEHIND;
        head->last->next = item;
        head->last = item;
        return;
    }
    item->state = PUBLISHING;
    item->begun_us = hapax__boot_us();
    item->last = item;
    item->next_bucket = *bucket;
    *bucket = item;
}

/* Begins to publish the rows that were taken. False: out of memory; no row is in hand. */
static bool take_in_hand(struct running *r)
{
    hapax__arena_reset(&r->arena);
    memset(r->buckets, 0, sizeof(r->buckets));
    for (size_t i = 0; i < r->count; i++) {
        struct item *item = &r->items[i];

        memset(item, 0, offsetof(struct item, error));
        item->error[0] = '\0';
        item->row = r->taken[i];
        if (!write_letter(r, item)) {
            r->count = 0;
            return false;
        }
        chain(r, item);
    }
    r->open = r->count;
    r->ended_us = hapax__monotonic_us();
    for (size_t i = 0; i < r->count; i++)
        if (r->items[i].state == PUBLISHING)
            hapax__publish(&r->publisher, &r->items[i].publication, &r->items[i].letter);
    return true;
}

static void end_item(struct running *r, struct item *item, enum state state)
{
    item->state = state;
    r->ended_us = hapax__monotonic_us();
    r->open--;
}

/* Under the context that the row's headers have: the letter hands on that one, and not the span's,
 * since a row that was sent twice is one message. */
static void trace(const struct running *r, const struct item *item, bool is_published)
{
    struct hapax__publication_told told = {.topic = item->row.topic,
                                           .seq = item->row.seq,
                                           .begun_us = item->begun_us,
                                           .published = is_published};

    if (!r->how->traces)
        return;
    for (size_t i = 0; i < item->letter.header_count; i++)
        if (hapax__name_is(item->letter.headers[i].name, "traceparent"))
            told.traceparent = item->letter.headers[i].value;
    hapax__traces_published(r->how->traces, &told, hapax__boot_us());
}

static void published(struct running *r, struct item *item)
{
    hapax__stats_add(&r->stats->published, 1);
    trace(r, item, true);
    end_item(r, item, PUBLISHED);
    item = item->next;
    if (!item || item->state != BEHIND)
        return;
    item->state = PUBLISHING;
    item->begun_us = hapax__boot_us();
    hapax__publish(&r->publisher, &item->publication, &item->letter);
}

/* A sink's text may be cut inside a character, or quote bytes of a broker. PostgreSQL takes UTF-8
 * alone. */
static void make_utf8(char *text)
{
    size_t text_len = strlen(text);

    for (size_t i = 0, len; i < text_len; i += len) {
        uint32_t character;

        len = hapax__utf8_read(&character, (const uint8_t *)text + i, text_len - i);
        if (len > 0)
            continue;
        text[i] = '?';
        len = 1;
    }
}

/* Logs why a row is held back, and with it its aggregate: once, and not at each try. */
static void tell_refused(struct running *r, const struct item *item)
{
    int64_t *told = &r->told[(uint64_t)item->row.seq % TOLD];
    char line[2 * HAPAX_TEXT_MAX + 64];

    if (*told == item->row.seq)
        return;
    *told = item->row.seq;
    (void)snprintf(line, sizeof(line), "row %" PRId64 " for \"%s\" is refused: %s", item->row.seq,
                   item->letter.to, item->error);
    say(r, line);
}

static void refused(struct running *r, struct item *item)
{
    hapax__stats_add(&r->stats->failed, 1);
    trace(r, item, false);
    (void)snprintf(item->error, sizeof(item->error), "%s",
                   r->sink->why[0] ? r->sink->why : "refused by the broker");
    make_utf8(item->error);
    tell_refused(r, item);
    end_item(r, item, REFUSED);
    for (item = item->next; item && item->state == BEHIND; item = item->next)
        end_item(r, item, LEFT);
}

static void reap(struct running *r)
{
    struct hapax__publication *publication;
    enum hapax__sent sent;

    while ((publication = hapax__publisher_reap(&r->publisher, &sent))) {
        struct item *item =
            (struct item *)((char *)publication - offsetof(struct item, publication));

        assert(item->state == PUBLISHING);
        if (sent == HAPAX__SENT_OK) {
            published(r, item);
        } else if (sent == HAPAX__SENT_REFUSED) {
            refused(r, item);
        } else if (item->leaves) {
            end_item(r, item, LEFT);
        } else {
            hapax__stats_add(&r->stats->repeated, 1);
            hapax__publish_again(&r->publisher, publication, PAUSE_MIN_US, PAUSE_MAX_US);
        }
    }
}

/* Publishes the rows in hand until each has ended, or is left. */
static void publish(struct running *r)
{
    int64_t stop_us = INT64_MAX;

    while (r->open > 0) {
        int64_t moment_us;

        keep_lease(r); /* first: the machine may have slept */
        hapax__publisher_pump(&r->publisher);
        reap(r);
        if (r->stopping && stop_us == INT64_MAX) {
            stop_us = hapax__monotonic_us() + r->how->drain_ms * US_PER_MS;
            leave_unsent(r);
        }
        if (r->open == 0 || r->sink->refused || hapax__monotonic_us() >= stop_us)
            return;
        moment_us = hapax__least(look_us(r), hapax__publisher_due(&r->publisher));
        if (moment_us <= hapax__monotonic_us()) /* the sink has no room, and wakes us */
            moment_us = hapax__monotonic_us() + 100 * US_PER_MS;
        wait_until(r, hapax__least(moment_us, stop_us));
    }
}

/* ---- turns ------------------------------------------------------------------------------- */

static void collect_ends(struct running *r)
{
    r->end_count = 0;
    for (size_t i = 0; i < r->count; i++) {
        const struct item *item = &r->items[i];

        if (item->state == PUBLISHED || item->state == REFUSED)
            r->ends[r->end_count++] =
                (struct hapax__outbox_end){&item->row, item->state == REFUSED ? item->error : NULL};
    }
}

/* Whether a turn left rows behind those that it took, or may have. */
static bool is_full(const struct running *r, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += r->taken[i].payload.len;
    return n == r->how->batch || bytes >= HAPAX__RELAY_BYTES;
}

/* Ends the last rows and takes the next ones. False: stop. *error says why, unless a signal
 * came. */
static bool turn(struct running *r, enum hapax_error *error)
{
    int64_t begun_us = hapax__monotonic_us(), took_us;
    bool late = begun_us >= (r->below ? r->late_from_us : r->late_due_us);
    struct hapax__outbox_take take = {.retry_ms = r->how->retry_ms,
                                      .tries_max = r->how->attempts_max,
                                      .parts = r->parts,
                                      .part_count = r->stopping ? 0 : r->part_count,
                                      .floor = late ? 0 : r->floor,
                                      .limit = r->how->batch};
    PGresult *rows = NULL;
    size_t n = 0;

    collect_ends(r);
    *error = hapax__outbox_turn(&r->outbox, r->ends, r->end_count, &take, &rows, r->taken, &n);
    took_us = hapax__monotonic_us() - begun_us;
    if (*error != HAPAX_ERR_NONE) {
        looked_below(r, begun_us, late ? took_us : 0);
        return database_failed(r, *error) && !r->stopping;
    }
    database_works(r);
    hapax__stats_add(&r->stats->turns, 1);
    PQclear(r->rows); /* the last rows pointed into it */
    r->rows = rows;
    r->count = n;
    if (late) {
        looked_below(r, begun_us, took_us);
        r->below = false;
    }
    if (n > 0 && (r->taken[n - 1].seq > r->floor || (late && is_full(r, n))))
        r->floor = r->taken[n - 1].seq;
    if (!take_in_hand(r)) {
        say(r, "out of memory for a batch");
        look_below(r);
    }
    __atomic_store_n(&r->stats->in_hand, (uint64_t)r->count, __ATOMIC_RELAXED);
    return true;
}

/* ---- what is done beside ----------------------------------------------------------------- */

/* Keeps a connection that is notified when a transaction publishes. Without it the relay polls. */
static void listen(struct running *r, int64_t now_us)
{
    PGresult *rows = NULL;

    if (r->listener.conn || now_us < r->listen_due_us)
        return;
    r->listen_due_us = now_us + 30 * US_PER_S;
    if (hapax__pg_connect(&r->listener, now_us + US_PER_S, false) != HAPAX_ERR_NONE)
        return;
    if (hapax__pg_exec(&r->listener, "LISTEN hapax_outbox", NULL, now_us + 2 * US_PER_S, &rows) !=
        HAPAX__PG_DONE)
        hapax__pg_drop(&r->listener);
    PQclear(rows);
    r->called = true;
}

static void look_after(struct running *r, int64_t now_us)
{
    int64_t pending, age_us, aside, swept, took_us;

    listen(r, now_us);
    if (now_us >= r->lag_due_us) {
        if (hapax__outbox_lag(&r->outbox, &pending, &age_us, &aside) == HAPAX_ERR_NONE) {
            set(&r->stats->pending, pending);
            set(&r->stats->age_us, age_us);
            set(&r->stats->aside, aside);
        }
        took_us = hapax__monotonic_us() - now_us;
        r->lag_due_us = now_us + hapax__most(took_us * LATE_SHARE, LAG_US);
    }
    if (now_us >= r->sweep_due_us || r->sweep_after > 0) {
        if (hapax__outbox_sweep(&r->outbox, r->how->keep_ms, &r->sweep_after, &swept) ==
            HAPAX_ERR_NONE)
            hapax__stats_add(&r->stats->swept, (uint64_t)swept);
        else
            r->sweep_after = 0;
        if (r->sweep_after == 0)
            r->sweep_due_us = now_us + SWEEP_US;
    }
}

/* There was no row to take: waits until a transaction publishes, or until the next poll. */
static void idle(struct running *r)
{
    int64_t now_us = hapax__monotonic_us();
    int64_t until_us = hapax__least(now_us + r->how->poll_ms * US_PER_MS, look_us(r));

    if (r->sweep_after > 0) { /* the sweep goes on at once */
        wait_until(r, now_us);
        return;
    }
    if (r->below)
        until_us = hapax__least(until_us, r->late_from_us);
    while (!r->stopping && !r->called && hapax__monotonic_us() < until_us)
        wait_until(r, until_us);
}

static enum hapax_error run(struct running *r)
{
    enum hapax_error error = HAPAX_ERR_NONE;

    while (!r->stopping) {
        int64_t now_us = hapax__monotonic_us();
        bool changed;

        (void)beat(r, now_us); /* what follows waits for the database */
        if (r->sink->refused)
            return HAPAX_ERR_REFUSED;
        if (hapax__boot_us() >= r->lease_due_us) {
            error = lease(r, &changed);
            if (error != HAPAX_ERR_NONE) {
                looked_below(r, now_us, 0);
                if (!database_failed(r, error))
                    return error;
                continue;
            }
            database_works(r);
        }
        look_after(r, now_us);
        r->below |= r->called; /* its rows may have lower numbers than rows that were taken */
        r->called = false;
        if (!turn(r, &error) && !r->stopping)
            return error;
        if (error != HAPAX_ERR_NONE)
            continue;
        if (r->count > 0)
            publish(r);
        else
            idle(r);
    }
    if (r->open > 0) { /* the sink still has letters; close() forgets them */
        r->sink->type->close(r->sink);
        r->sink = NULL;
    }
    (void)turn(r, &error);
    (void)hapax__outbox_lease(&r->outbox, 0, r->parts, &r->part_count);
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__relay_check(const struct hapax__relay *how, char text[HAPAX_TEXT_MAX])
{
    const struct hapax__sink_type *type = hapax__sink_type_of(how->to);
    struct hapax__pg_uri uri;
    struct hapax__sink *sink;
    enum hapax_error error;

    if (how->batch < 1 || how->batch > HAPAX__RELAY_BATCH_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "batch of %u is not between 1 and %u",
                           how->batch, HAPAX__RELAY_BATCH_MAX);
    if (how->lease_ms < 1000 || how->lease_ms > 3600000)
        return hapax__fail(text, HAPAX_ERR_INVALID, "lease is not between 1 s and 1 h");
    if (how->poll_ms < 10 || how->poll_ms > 60000)
        return hapax__fail(text, HAPAX_ERR_INVALID, "poll is not between 10 ms and 1 min");
    if (how->attempts_max < 1 || how->retry_ms < 1 || how->keep_ms < 0 || how->drain_ms < 0)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "attempts_max and retry are at least 1, keep and drain at least 0");
    if (strncmp(how->from, "postgres://", 11) != 0 && strncmp(how->from, "postgresql://", 13) != 0)
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                           "from is no postgres:// URI: an outbox is in PostgreSQL");
    if (!type)
        return hapax__fail(text, HAPAX_ERR_UNSUPPORTED,
                           "to is of no broker known here: amqp://, amqps://, kafka:// or sqs://");
    error = hapax__pg_uri(&uri, how->from, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    hapax__pg_uri_release(&uri);
    error = type->open(&sink, how->to, text);
    if (error == HAPAX_ERR_NONE)
        type->close(sink);
    return error;
}

static enum hapax_error open_all(struct running *r, char text[HAPAX_TEXT_MAX])
{
    const struct hapax__sink_type *type = hapax__sink_type_of(r->how->to);
    enum hapax_error error = hapax__outbox_open(&r->outbox, r->how->from, text);

    if (error == HAPAX_ERR_NONE)
        error = hapax__pg_uri(&r->listener.uri, r->how->from, text);
    if (error == HAPAX_ERR_NONE)
        error = type->open(&r->sink, r->how->to, text);
    if (error == HAPAX_ERR_NONE &&
        hapax__publisher_init(&r->publisher, r->sink, HAPAX__RELAY_BATCH_MAX) != HAPAX_ERR_NONE)
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    return error;
}

enum hapax_error hapax__relay_run(const struct hapax__relay *relay,
                                  struct hapax__relay_stats *stats, char text[HAPAX_TEXT_MAX])
{
    struct running *r = calloc(1, sizeof(*r));
    enum hapax_error error;

    text[0] = '\0';
    if (!r)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    r->how = relay;
    r->stats = stats;
    stats->pending = stats->age_us = stats->aside = -1;
    error = hapax__relay_check(relay, text);
    if (error == HAPAX_ERR_NONE)
        error = open_all(r, text);
    if (error == HAPAX_ERR_NONE) {
        error = run(r);
        if (error != HAPAX_ERR_NONE)
            (void)snprintf(text, HAPAX_TEXT_MAX, "%s",
                           r->sink->refused ? r->sink->text : r->outbox.link.text);
    }
    if (r->sink)
        r->sink->type->close(r->sink);
    hapax__publisher_release(&r->publisher);
    PQclear(r->rows);
    hapax__pg_drop(&r->listener);
    hapax__pg_uri_release(&r->listener.uri);
    hapax__outbox_close(&r->outbox);
    hapax__arena_release(&r->arena);
    free(r);
    return error;
}
