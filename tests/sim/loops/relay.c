/* SPDX-License-Identifier: Apache-2.0
 *
 * Relays, simulated: hapax__relay_run() as it is, in one to three processes (threads.h), on one
 * outbox and one broker. Played are the functions of the outbox, which do what sql/150_outbox.sql
 * says, and the broker's sink.
 *
 * At first everything may fail. Processes are killed in any call, stopped with their machine or
 * without, drained and begun anew; the database is away, slow, or loses its answers, and what it
 * was asked comes late; transactions commit late; the broker is away, refuses letters, and loses
 * them before or after they were published. Then comes the calm, and every row must come to its
 * end. Last, all processes are stopped, and must end.
 *
 * The rules:
 *   - no row is published for the first time before those that precede it in its aggregate have
 *     been published, or put aside
 *   - a row ends as published only when it is, and fails only when it was refused
 *   - nothing is sent for a part whose lease is over, or which the relay knows to be another's
 *   - each row that is committed comes to its end
 *   - a drain ends
 *
 *     sim_relay [--first N] [--schedules N] [--seconds N] [--twice] [--marks]
 *     sim_relay --seed N                        one, with what happens
 */
#include "relay/relay.h"
#include "base/fail.h"
#include "inner.h"
#include "play.h"
#include "seeds.h"
#include "threads.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PARTS      HAPAX__RELAY_PARTS
#define AGGREGATES 4
#define ROWS       40
#define LETTERS    4 /* with one sink */
#define RELAYS     3
#define CALM_US    (25 * SECOND)
#define REST_US    (600 * SECOND)
#define DRAIN_US   (18 * SECOND)
#define ASKED_US   (1 * SECOND) /* how long a relay waits for its database */
#define FRESH_US   (5 * MS) /* what a process does before it looks at its clock again */

struct row {
    int aggregate;
    enum { OPEN, WAITS, PUBLISHED, ASIDE } state; /* OPEN: not committed */
    uint32_t tries;
    int64_t due_us;
    unsigned published, refused;
};

struct part {
    int64_t until_us;
    int owner; /* a process + 1; 0: none */
    uint32_t life;
};

struct sent {
    const struct hapax__letter *letter;
    enum hapax__sent result;
    uint32_t number;
    bool waits; /* for a connection */
    int row;
};

struct link {
    struct hapax__sink sink;
    struct sent sent[LETTERS];
    int sent_fd, notify_fd;
    bool listens;
    int64_t retry_us;
    uint32_t connection;
    int64_t until_us[PARTS]; /* of the leases that it was told of; 0: none */
    struct hapax__relay_stats stats;
};

#define MARKS(X)                                                                                   \
    X(killed)                                                                                      \
    X(drained)                                                                                     \
    X(stopped)                                                                                     \
    X(database_away)                                                                               \
    X(answer_lost)                                                                                 \
    X(came_late)                                                                                   \
    X(broker_away)                                                                                 \
    X(letter_refused)                                                                              \
    X(letter_lost)                                                                                 \
    X(letter_lost_published)                                                                       \
    X(sink_full)                                                                                   \
    X(withdrawn)                                                                                   \
    X(published_again)                                                                             \
    X(put_aside)                                                                                   \
    X(part_taken_over)                                                                             \
    X(committed_late)                                                                              \
    X(no_memory)

SEEDS_MARKS(MARKS)

static struct world {
    struct play play;
    int aggregates_count, rows_count, rows_planned;
    struct hapax__relay relay;
    struct link links[PROCS];
    struct row rows[ROWS];
    struct part parts[PARTS];
    int writer[AGGREGATES]; /* open transactions of the aggregate */
    int64_t database_down_until_us, broker_down_until_us, refused_until_us[AGGREGATES];
    uint32_t letters, unanswered; /* turns */
    unsigned unavailable, answer_lost, late, slow, letter_lost, letter_lost_published, sink_full,
        silent;
    unsigned no_memory, kills, stops, drains, outages, refusals;
} w;

static int part_of(int aggregate)
{
    return aggregate * 17 % (int)PARTS;
}

/* ---- the outbox -------------------------------------------------------------------------- */

static void notify_all(void)
{
    uint64_t one = 1;

    for (int p = 0; p < w.play.procs_count; p++)
        if (sim_procs[p].alive && w.links[p].listens)
            (void)!write(w.links[p].notify_fd, &one, sizeof(one));
}

static bool is_database_down(void)
{
    return sim_now_us < w.database_down_until_us;
}

/* Lets a question to the database take its time. False: it was not asked. */
static bool asked(struct hapax__outbox *outbox)
{
    step();
    if (is_database_down() || chance(w.unavailable)) {
        mark(MARK_database_away);
        pass_us(chance(w.slow) ? ASKED_US : between(50, 5 * MS));
        (void)hapax__fail(outbox->link.text, HAPAX_ERR_UNAVAILABLE, "the database is away");
        return false;
    }
    pass_us(chance(w.slow) ? between(0, ASKED_US) : between(50, 5 * MS));
    return true;
}

/* Whether its answer arrives. */
static bool answered(struct hapax__outbox *outbox)
{
    if (chance(w.answer_lost)) {
        mark(MARK_answer_lost);
        pass_us(between(0, ASKED_US));
        (void)hapax__fail(outbox->link.text, HAPAX_ERR_UNAVAILABLE, "the connection is lost");
        return false;
    }
    pass_us(chance(w.slow) ? between(0, ASKED_US / 4) : between(50, 5 * MS));
    return true;
}

enum hapax_error hapax__outbox_open(struct hapax__outbox *outbox, const char *uri,
                                    char text[HAPAX_TEXT_MAX])
{
    (void)uri, (void)text;
    memset(outbox, 0, sizeof(*outbox));
    return HAPAX_ERR_NONE;
}

void hapax__outbox_close(struct hapax__outbox *outbox)
{
    (void)outbox;
}

static bool is_mine(const struct part *part, int proc)
{
    return part->owner == proc + 1 && part->life == sim_procs[proc].life;
}

/* How many relays have a lease, the caller among them. */
static size_t living(int proc)
{
    size_t n = 1;

    for (int p = 0; p < w.play.procs_count; p++)
        n += p != proc && sim_procs[p].alive;
    return n;
}

enum hapax_error hapax__outbox_lease(struct hapax__outbox *outbox, int64_t lease_ms,
                                     int16_t parts[PARTS], size_t *n)
{
    int proc = process_now();
    size_t share = lease_ms > 0 ? (PARTS - 1 + living(proc)) / living(proc) : 0, count = 0;
    bool mine[PARTS] = {false};
    int16_t given[PARTS];
    int64_t until_us;

    if (!asked(outbox))
        return HAPAX_ERR_UNAVAILABLE;
    until_us = sim_now_us + lease_ms * MS;
    for (int round = 0; round < 2; round++) /* those it has come first */
        for (size_t i = 0; i < PARTS && count < share; i++) {
            const struct part *part = &w.parts[i];
            bool own = is_mine(part, proc);

            if (round == 0 ? own : !own && (part->owner == 0 || part->until_us <= sim_now_us)) {
                if (!own && part->owner > 0)
                    mark(MARK_part_taken_over);
                mine[i] = true;
                given[count++] = (int16_t)i;
            }
        }
    for (size_t i = 0; i < PARTS; i++)
        if (mine[i])
            w.parts[i] = (struct part){until_us, proc + 1, sim_procs[proc].life};
        else if (is_mine(&w.parts[i], proc))
            w.parts[i] = (struct part){0};
    say("        p%d leases %zu parts", proc, count);
    if (!answered(outbox))
        return HAPAX_ERR_UNAVAILABLE;
    memcpy(parts, given, count * sizeof(given[0]));
    for (size_t i = 0; i < PARTS; i++)
        w.links[proc].until_us[i] = mine[i] ? until_us : 0;
    *n = count;
    return HAPAX_ERR_NONE;
}

struct ends {
    int64_t after_us;
    int64_t retry_ms;
    uint32_t tries_max;
    size_t n;
    struct {
        int64_t seq;
        bool failed;
    } end[ROWS];
};

static void end_rows(const struct ends *ends)
{
    for (size_t i = 0; i < ends->n; i++) {
        struct row *row = &w.rows[ends->end[i].seq - 1];

        if (row->state != WAITS)
            continue;
        say("        row %lld %s", (long long)ends->end[i].seq,
            ends->end[i].failed ? "failed" : "ended");
        if (!ends->end[i].failed && row->published == 0)
            violate("row %lld ends as published, and is not", (long long)ends->end[i].seq);
        row->state = ends->end[i].failed ? WAITS : PUBLISHED;
        if (!ends->end[i].failed)
            continue;
        row->due_us = sim_now_us + (ends->retry_ms << (row->tries < 20 ? row->tries : 20)) * MS;
        /* A turn whose answer was lost is repeated, and counts a refusal again. */
        if (++row->tries > row->refused + w.unanswered)
            violate("row %lld fails, and was not refused", (long long)ends->end[i].seq);
        if (row->tries < ends->tries_max)
            continue;
        mark(MARK_put_aside);
        row->state = ASIDE;
    }
}

static void end_late(void *arg)
{
    struct ends ends = *(struct ends *)arg;

    free(arg);
    pass_us(ends.after_us);
    end_rows(&ends);
}

static bool is_taken(const struct row *row, const struct hapax__outbox_take *take)
{
    bool ours = false;
    int head = 0;

    for (size_t i = 0; i < take->part_count; i++)
        ours |= take->parts[i] == part_of(row->aggregate);
    while (w.rows[head].aggregate != row->aggregate || w.rows[head].state != WAITS)
        head++;
    return ours && &w.rows[head] <= row && row - w.rows >= take->floor && head >= take->floor &&
           w.rows[head].due_us <= sim_now_us;
}

/* What a PGresult is here. */
struct texts {
    char of[ROWS][3][16];
};

enum hapax_error hapax__outbox_turn(struct hapax__outbox *outbox,
                                    const struct hapax__outbox_end *given, size_t n,
                                    const struct hapax__outbox_take *take, PGresult **rows,
                                    struct hapax__outbox_row out[HAPAX__RELAY_BATCH_MAX],
                                    size_t *count)
{
    struct ends ends = {.retry_ms = take->retry_ms, .tries_max = take->tries_max, .n = n};
    struct texts *texts;
    size_t found = 0;

    assert(n <= ROWS);
    for (size_t i = 0; i < n; i++) {
        ends.end[i].seq = given[i].row->seq;
        ends.end[i].failed = given[i].error != NULL;
    }
    if (!asked(outbox))
        return HAPAX_ERR_UNAVAILABLE;
    if (chance(w.late)) {
        struct ends *late = aligned_alloc(64, (sizeof(*late) + 63) / 64 * 64);

        assert(late);
        mark(MARK_came_late);
        w.unanswered++;
        *late = ends;
        late->after_us = between(0, 3 * SECOND);
        world_thread(end_late, late);
        (void)hapax__fail(outbox->link.text, HAPAX_ERR_UNAVAILABLE, "no answer in time");
        pass_us(ASKED_US);
        return HAPAX_ERR_UNAVAILABLE;
    }
    end_rows(&ends);
    texts = calloc(1, sizeof(*texts));
    for (int i = 0; texts && i < w.rows_count && found < take->limit; i++) {
        if (w.rows[i].state != WAITS || !is_taken(&w.rows[i], take))
            continue;
        snprintf(texts->of[found][0], 16, "topic");
        snprintf(texts->of[found][1], 16, "a-%d", w.rows[i].aggregate);
        snprintf(texts->of[found][2], 16, "%d", i + 1);
        out[found] = (struct hapax__outbox_row){.seq = i + 1,
                                                .topic = hapax_str(texts->of[found][0]),
                                                .aggregate = hapax_str(texts->of[found][1]),
                                                .key = hapax_str(texts->of[found][2]),
                                                .payload = hapax_str(texts->of[found][2])};
        found++;
    }
    if (!texts || !answered(outbox)) {
        w.unanswered++;
        free(texts);
        return texts ? HAPAX_ERR_UNAVAILABLE : HAPAX_ERR_INDETERMINATE;
    }
    *rows = (PGresult *)(void *)texts;
    *count = found;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__outbox_lag(struct hapax__outbox *outbox, int64_t *pending, int64_t *age_us,
                                   int64_t *aside)
{
    if (!asked(outbox) || !answered(outbox))
        return HAPAX_ERR_UNAVAILABLE;
    *pending = *age_us = *aside = 0;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__outbox_sweep(struct hapax__outbox *outbox, int64_t keep_ms, int64_t *after,
                                     int64_t *swept)
{
    (void)keep_ms;
    if (!asked(outbox) || !answered(outbox))
        return HAPAX_ERR_UNAVAILABLE;
    *after = *swept = 0;
    return HAPAX_ERR_NONE;
}

/* ---- the listener ------------------------------------------------------------------------ */

WRAPPED(enum hapax_error, hapax__pg_uri, struct hapax__pg_uri *out, const char *uri,
        char text[HAPAX_TEXT_MAX])
{
    (void)out, (void)uri, (void)text;
    return HAPAX_ERR_NONE;
}

WRAPPED(void, hapax__pg_uri_release, struct hapax__pg_uri *uri)
{
    (void)uri;
}

WRAPPED(enum hapax_error, hapax__pg_connect, struct hapax__pg_link *link, int64_t deadline_us,
        bool patient)
{
    (void)deadline_us, (void)patient;
    pass_us(between(50, 5 * MS));
    if (is_database_down() || chance(w.unavailable))
        return HAPAX_ERR_UNAVAILABLE;
    link->conn = (PGconn *)(void *)&w.links[process_now()];
    return HAPAX_ERR_NONE;
}

WRAPPED(enum hapax__pg_end, hapax__pg_exec, struct hapax__pg_link *link, const char *sql,
        const struct hapax__pg_params *params, int64_t deadline_us, PGresult **out)
{
    (void)link, (void)sql, (void)params, (void)deadline_us;
    *out = NULL;
    w.links[process_now()].listens = true;
    return HAPAX__PG_DONE;
}

WRAPPED(void, hapax__pg_drop, struct hapax__pg_link *link)
{
    link->conn = NULL;
    w.links[process_now()].listens = false;
}

WRAPPED(int, PQsocket, const PGconn *conn)
{
    return ((const struct link *)(const void *)conn)->notify_fd;
}

WRAPPED(int, PQconsumeInput, PGconn *conn)
{
    (void)conn;
    return !is_database_down();
}

WRAPPED(PGnotify *, PQnotifies, PGconn *conn)
{
    static PGnotify one;
    uint64_t count;

    return read(((struct link *)(void *)conn)->notify_fd, &count, sizeof(count)) > 0 ? &one : NULL;
}

WRAPPED(void, PQfreemem, void *memory)
{
    (void)memory;
}

WRAPPED(void, PQclear, PGresult *rows)
{
    free(rows);
}

/* ---- the broker -------------------------------------------------------------------------- */

static struct link *link_of(struct hapax__sink *sink)
{
    return (struct link *)(void *)sink;
}

static const struct hapax__sink_type sim_sink;

static enum hapax_error sink_open(struct hapax__sink **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    struct link *link = &w.links[process_now()];

    (void)uri, (void)text;
    memset(link->sent, 0, sizeof(link->sent));
    link->sink = (struct hapax__sink){.type = &sim_sink, .name = ""};
    link->retry_us = sim_now_us;
    *out = &link->sink;
    return HAPAX_ERR_NONE;
}

static size_t sink_watch(struct hapax__sink *sink, struct pollfd *fds, int64_t *due_us)
{
    const struct process *process = &sim_procs[process_now()];

    fds[0] = (struct pollfd){.fd = link_of(sink)->sent_fd, .events = POLLIN};
    if (!sink->connected &&
        link_of(sink)->retry_us + process->offset_us - process->slept_us < *due_us)
        *due_us = link_of(sink)->retry_us + process->offset_us - process->slept_us;
    return 1;
}

static void cut(int proc)
{
    w.links[proc].connection++;
    w.links[proc].sink.connected = false;
    w.links[proc].retry_us = sim_now_us + between(0, 200 * MS);
}

static void let_travel(struct link *link);

static void sink_pump(struct hapax__sink *sink)
{
    struct link *link = link_of(sink);
    uint64_t count;

    (void)!read(link->sent_fd, &count, sizeof(count));
    if (sink->connected || sim_now_us < link->retry_us)
        return;
    sink->connected = sim_now_us >= w.broker_down_until_us;
    link->retry_us = sim_now_us + between(10 * MS, 300 * MS);
    snprintf(sink->text, sizeof(sink->text), "away");
    sim_procs[process_now()].no_memory = play_calm ? 0 : w.no_memory;
    let_travel(link);
}

struct on_its_way {
    int row, proc, slot;
    uint32_t number, connection, life;
};

static void check_order(int row)
{
    for (int i = 0; i < row; i++)
        if (w.rows[i].aggregate == w.rows[row].aggregate && w.rows[i].published == 0 &&
            w.rows[i].state != ASIDE)
            violate("row %d is published before row %d of its aggregate", row + 1, i + 1);
}

static void travel(void *arg)
{
    struct on_its_way way = *(struct on_its_way *)arg;
    struct link *link = &w.links[way.proc];
    enum hapax__sent result = HAPAX__SENT_OK;
    struct row *row = &w.rows[way.row];
    uint64_t one = 1;

    free(arg);
    pass_us(between(20, 10 * MS));
    if (sim_now_us < w.refused_until_us[row->aggregate]) {
        mark(MARK_letter_refused);
        result = HAPAX__SENT_REFUSED;
        row->refused++;
    } else if (sim_now_us < w.broker_down_until_us || chance(w.letter_lost)) {
        mark(MARK_letter_lost);
        result = HAPAX__SENT_LOST;
    } else {
        say("        row %d is published", way.row + 1);
        if (row->published++ == 0)
            check_order(way.row);
        else
            mark(MARK_published_again);
    }
    pass_us(between(20, chance(w.silent) ? 40 * SECOND : 10 * MS));
    if (!sim_procs[way.proc].alive || sim_procs[way.proc].life != way.life ||
        link->sent[way.slot].number != way.number || !link->sent[way.slot].letter)
        return;
    if (result == HAPAX__SENT_OK &&
        (link->connection != way.connection || chance(w.letter_lost_published))) {
        mark(MARK_letter_lost_published);
        result = HAPAX__SENT_LOST;
    }
    link->sent[way.slot].result = result;
    (void)!write(link->sent_fd, &one, sizeof(one));
}

/* A process that was stopped sees its clock a moment later. Parts that it gave back, and was not
 * told so, are its own until the lease before is over. */
static void check_lease(int row)
{
    int64_t until_us = w.links[process_now()].until_us[part_of(w.rows[row].aggregate)];

    if (sim_now_us >= sim_procs[process_now()].stopped_until_us + FRESH_US &&
        sim_now_us > until_us + FRESH_US)
        violate("row %d is sent, and the lease of its part is over", row + 1);
}

/* Sends the letters that wait, if there is a connection. */
static void let_travel(struct link *link)
{
    for (int slot = 0; slot < LETTERS && link->sink.connected; slot++) {
        struct sent *sent = &link->sent[slot];
        struct on_its_way *way;

        if (!sent->letter || !sent->waits)
            continue;
        sent->waits = false;
        check_lease(sent->row);
        way = aligned_alloc(64, 64);
        assert(way);
        *way = (struct on_its_way){sent->row,    process_now(),    slot,
                                   sent->number, link->connection, sim_procs[process_now()].life};
        world_thread(travel, way);
    }
}

static bool sink_send(struct hapax__sink *sink, const struct hapax__letter *letter)
{
    struct link *link = link_of(sink);
    char text[16];
    int slot = 0, row;

    step();
    while (slot < LETTERS && link->sent[slot].letter)
        slot++;
    if (slot == LETTERS || (slot > 0 && chance(w.sink_full))) {
        mark(MARK_sink_full);
        return false;
    }
    snprintf(text, sizeof(text), "%.*s", (int)letter->body.len, (const char *)letter->body.ptr);
    row = (int)strtol(text, NULL, 10) - 1;
    if (row < 0 || row >= w.rows_count || strcmp(letter->to, "topic") != 0) {
        violate("a letter is of no row");
        return false;
    }
    /* The publisher's letter is on its stack: its tag is what is kept. */
    link->sent[slot] =
        (struct sent){letter->tag, HAPAX__SENT_NOTHING, ++w.letters, .waits = true, .row = row};
    check_lease(row);
    let_travel(link);
    return true;
}

static bool sink_withdraw(struct hapax__sink *sink, const void *tag)
{
    struct link *link = link_of(sink);

    for (int i = 0; i < LETTERS; i++) {
        struct sent *sent = &link->sent[i];

        if (sent->letter != tag || !sent->waits)
            continue;
        mark(MARK_withdrawn);
        *sent = (struct sent){0};
        return true;
    }
    return false;
}

static enum hapax__sent sink_reap(struct hapax__sink *sink, void **tag)
{
    struct link *link = link_of(sink);

    for (int i = 0; i < LETTERS; i++) {
        struct sent *sent = &link->sent[i];

        if (!sent->letter || sent->result == HAPAX__SENT_NOTHING)
            continue;
        *tag = (void *)(uintptr_t)sent->letter;
        sent->letter = NULL;
        snprintf(sink->why, sizeof(sink->why), "%s",
                 sent->result == HAPAX__SENT_REFUSED ? "refused" : "");
        return sent->result;
    }
    return HAPAX__SENT_NOTHING;
}

static void sink_close(struct hapax__sink *sink)
{
    memset(link_of(sink)->sent, 0, sizeof(link_of(sink)->sent));
}

static const struct hapax__sink_type sim_sink = {
    .schemes = {"sim"},
    .open = sink_open,
    .watch = sink_watch,
    .pump = sink_pump,
    .send = sink_send,
    .withdraw = sink_withdraw,
    .reap = sink_reap,
    .close = sink_close,
};

/* ---- processes --------------------------------------------------------------------------- */

static void log_line(void *arg, const char *line)
{
    (void)arg;
    say("LOG %s", line);
}

static void relay_main(int proc)
{
    struct link *link = &w.links[proc];
    struct hapax__relay relay = w.relay;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    link->sent_fd = eventfd(0, 0);
    link->notify_fd = eventfd(0, 0);
    stops[proc].fd = relay.stop_fd = eventfd(0, 0);
    relay.log = log_line;
    error = hapax__relay_run(&relay, &link->stats, text);
    if (error != HAPAX_ERR_NONE && error != HAPAX_ERR_NOMEM)
        violate("a relay ends: %.100s", text);
    if (error == HAPAX_ERR_NONE && stops[proc].at_us == 0)
        violate("a relay ends, and was not told to");
    close(link->sent_fd);
    close(link->notify_fd);
    close(relay.stop_fd);
}

static void begin(int proc)
{
    uint32_t connection = w.links[proc].connection;

    w.links[proc] = (struct link){.connection = connection + 1};
    process_begin(proc, relay_main);
}

static void over(int proc, bool killed)
{
    if (killed)
        mark(MARK_killed);
    if (play_stopped(proc, killed))
        mark(MARK_drained);
    w.links[proc].listens = false;
    play_over(proc);
}

/* ---- the world --------------------------------------------------------------------------- */

static void something_happens(int proc)
{
    play_kill(proc, w.kills);
    if (chance(w.stops) && sim_procs[proc].alive) {
        mark(MARK_stopped);
        process_stop(proc, between(10 * MS, 6 * SECOND));
    }
    if (chance(w.drains))
        (void)play_stop(proc);
    if (chance(w.outages)) {
        say("        DATABASE AWAY");
        w.database_down_until_us = sim_now_us + between(10 * MS, 5 * SECOND);
    }
    if (chance(w.outages)) {
        mark(MARK_broker_away);
        w.broker_down_until_us = sim_now_us + between(10 * MS, chance(200) ? CALM_US : 5 * SECOND);
        for (int p = 0; p < w.play.procs_count; p++)
            cut(p);
    }
    if (chance(w.outages))
        cut(proc);
    if (chance(w.refusals))
        w.refused_until_us[between(0, AGGREGATES - 1)] = sim_now_us + between(10 * MS, 5 * SECOND);
}

/* One transaction with one or two messages of an aggregate, whose lock it has to its end. */
static void transaction(void *arg)
{
    int aggregate = (int)(intptr_t)arg, rows[2], n = 0;

    while (w.writer[aggregate] > 0)
        pass_us(5 * MS);
    w.writer[aggregate] = 1;
    for (int wanted = (int)between(1, 2); n < wanted && w.rows_count < w.rows_planned; n++) {
        rows[n] = w.rows_count++;
        w.rows[rows[n]] = (struct row){.aggregate = aggregate};
        pass_us(between(0, 5 * MS));
    }
    if (chance(200)) {
        mark(MARK_committed_late);
        pass_us(between(0, 3 * SECOND));
    }
    for (int i = 0; i < n; i++) {
        say("        row %d of aggregate %d", rows[i] + 1, aggregate);
        w.rows[rows[i]].state = WAITS;
    }
    w.writer[aggregate] = 0;
    notify_all();
}

static void producer(void *arg)
{
    (void)arg;
    while (w.rows_count < w.rows_planned) {
        pass_us(between(0, 800 * MS));
        world_thread(transaction, (void *)(intptr_t)between(0, w.aggregates_count - 1));
    }
}

static void calm(void)
{
    w.unavailable = w.answer_lost = w.late = w.slow = w.letter_lost = w.letter_lost_published =
        w.sink_full = w.silent = w.no_memory = 0;
    w.database_down_until_us = w.broker_down_until_us = 0;
    memset(w.refused_until_us, 0, sizeof(w.refused_until_us));
    marks[MARK_no_memory] += sim_no_memory;
}

static int not_over(void)
{
    for (int i = 0; i < w.rows_count; i++)
        if (w.rows[i].state == OPEN || w.rows[i].state == WAITS)
            return i + 1;
    return w.rows_count < w.rows_planned ? w.rows_count + 1 : 0;
}

static bool is_over(void)
{
    return not_over() == 0;
}

static void violate_rest(void)
{
    violate("row %d is not at its end %lld s after the faults", not_over(),
            (long long)(REST_US / SECOND));
}

static void draw_world(void)
{
    bool all = chance(200);

    memset(&w, 0, sizeof(w));
    w.play = (struct play){.procs_count = (int)between(1, RELAYS),
                           .calm_us = CALM_US,
                           .rest_us = REST_US,
                           .drain_us = DRAIN_US,
                           .begin = begin,
                           .happens = something_happens,
                           .calm = calm,
                           .is_over = is_over,
                           .not_over = violate_rest};
    w.aggregates_count = (int)between(1, AGGREGATES);
    w.rows_planned = (int)between(1, ROWS);
    w.unavailable = play_rate(all, 150);
    w.answer_lost = play_rate(all, 150);
    w.late = play_rate(all, 100);
    w.slow = play_rate(all, 200);
    w.letter_lost = play_rate(all, 300);
    w.letter_lost_published = play_rate(all, 300);
    w.sink_full = play_rate(all, 500);
    w.silent = play_rate(all, 50);
    w.no_memory = chance(150) ? (unsigned)between(1, 60) : 0;
    w.kills = play_rate(all, 200);
    w.stops = play_rate(all, 150);
    w.drains = play_rate(all, 100);
    w.outages = play_rate(all, 100);
    w.refusals = play_rate(all, 200);
    hapax__relay_init(&w.relay);
    w.relay.from = "postgres://db/outbox";
    w.relay.to = "sim:";
    w.relay.poll_ms = between(10, 1000);
    w.relay.lease_ms = between(1000, 4000);
    w.relay.retry_ms = between(10, 2000);
    w.relay.drain_ms = between(0, 3000);
    w.relay.batch = (uint32_t)between(1, 20);
    w.relay.attempts_max = (uint32_t)between(1, 5);
    hapax__source_use(NULL, &sim_sink);
}

static void schedule(uint64_t seed)
{
    threads_reset(seed);
    draw_world();
    process_over = over;
    world_thread(producer, NULL);
    play_run(&w.play);
}

int main(int argc, char **argv)
{
    return seeds_main(argc, argv, schedule, marks, mark_names, MARKS_COUNT);
}
