/* SPDX-License-Identifier: Apache-2.0
 *
 * Consumers, simulated: hapax_consumer_run() with its loop, hands, calls, pulse and lane, in one to
 * three processes at one queue and one store. They run as they are (threads.h). Played are the
 * broker behind the seams of src/broker, the store's machine (store.h), handlers and hooks.
 *
 * At first everything may fail. Processes are killed in any call, stopped, drained and begun anew;
 * connections are cut; the broker and the store are away, lose, repeat and delay; letters are
 * refused or lost, with their confirmation or before; partitions move; memory runs out; handlers
 * fail, turn away, refuse, and outlive their lease. Then comes the calm, and every message must
 * come to its end. Last, all processes are stopped, and must end.
 *
 * The rules:
 *   - under hold and reconcile an operation has one effect; under rerun a second one only where
 *     nobody can tell what became of the first. Of an unprotected run only the delivery knows
 *   - a message is acknowledged only when its outcome is stored, a copy of it is confirmed, or the
 *     settings say that it runs without a store
 *   - no message is lost; each letter says the truth about why
 *   - none of an order begins before those that precede it have come to their end
 *   - a delivery is released once, none is taken without room, none while draining; a voided one
 *     becomes no letter
 *   - a delivery that is kept is extended
 *   - a drain ends, and leaves no delivery, letter, call or thread
 *
 *     sim_consume [--first N] [--schedules N] [--seconds N] [--twice] [--marks]
 *     sim_consume --seed N                      one, with what happens
 */
#include "broker/letter.h"
#include "broker/sink.h"
#include "broker/source.h"
#include "door/consume/inhand.h"
#include "effects.h"
#include "play.h"
#include "seeds.h"
#include "store.h"
#include "threads.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CONSUMERS   3
#define CALM_US     (25 * SECOND)
#define ORDERS      3
#define ROOTS       16 /* messages that producers publish */
#define MESSAGES    2048 /* with the letters: duplicates may go round by the broker all the time */
#define OUTS        32 /* deliveries of one process */
#define LETTERS     6 /* with one sink */
#define VISIBLE_US  (12 * SECOND)
#define EXTENDED_US (6 * SECOND)
#define REST_US     (3600 * SECOND)
#define DRAIN_US    (30 * SECOND)

enum queue { QUEUE, DEAD, PARKED };
static const char *const queue_names[] = {"Q", "Q.dead", "Q.parked"};

struct message {
    int root; /* which of those that producers published */
    int key; /* -1: none */
    int order;
    bool other; /* not the request that its key was used for first */
    enum queue queue;
    enum { WAITS, OUT, DONE } state;
    int64_t due_us;
    uint32_t out; /* counts its deliveries, and each time that the broker takes one back */
    int holder;
    uint32_t batch;
    int64_t visible_us;
    char attempts[16], base[16], reason[16];
};

struct out {
    struct hapax__delivered delivered;
    struct hapax_message_header headers[5];
    char key[16], root[8], body[16], order[8];
    bool used;
    bool copied; /* and that was confirmed */
    bool held; /* an unprotected run may have had its effect, and must stay the last */
    int message;
    uint32_t out;
};

struct sent {
    const struct hapax__letter *letter;
    enum hapax__sent result;
    uint32_t number;
};

/* What one process is to its broker. */
struct link {
    struct hapax__source source;
    struct hapax__sink sink;
    struct out outs[OUTS];
    struct sent sent[LETTERS];
    bool has_room;
    int poke_fd, sent_fd;
    int64_t retry_us;
    uint32_t connection; /* counts */
    struct hapax_consumer_stats stats;
};

struct root {
    bool acked, dead, parked, rejected;
    bool ran_bare; /* to its end, without protection */
    bool put_back; /* behind those of its order */
};

#define MARKS(X)                                                                                   \
    X(killed)                                                                                      \
    X(drained)                                                                                     \
    X(stopped)                                                                                     \
    X(cut)                                                                                         \
    X(broker_away)                                                                                 \
    X(store_away)                                                                                  \
    X(rebalanced)                                                                                  \
    X(voided)                                                                                      \
    X(ack_lost)                                                                                    \
    X(acknowledged)                                                                                \
    X(returned)                                                                                    \
    X(rejected)                                                                                    \
    X(postponed)                                                                                   \
    X(hidden_too_long)                                                                             \
    X(letter_retry)                                                                                \
    X(letter_dead)                                                                                 \
    X(letter_parked)                                                                               \
    X(letter_refused)                                                                              \
    X(letter_lost)                                                                                 \
    X(letter_lost_published)                                                                       \
    X(sink_full)                                                                                   \
    X(put_back)                                                                                    \
    X(second_effect)                                                                               \
    X(bare_run)                                                                                    \
    X(turned_away)                                                                                 \
    X(hurried)                                                                                     \
    X(hook)                                                                                        \
    X(no_memory)

SEEDS_MARKS(MARKS)

static struct world {
    enum { AMQP, KAFKA, SQS } broker;
    bool ordered;
    struct play play;
    int orders_count, roots_count, count;
    struct hapax_consumer consumer;
    struct message messages[MESSAGES];
    struct link links[PROCS];
    struct root roots[ROOTS];
    int owners[ORDERS];
    int64_t broker_down_until_us;
    int64_t refused_until_us[3];
    uint32_t batches, letters;
    unsigned cuts, letter_lost, letter_lost_published, sink_full, ack_late, no_memory, slow,
        ignores;
    unsigned hook_unsure, kills, stops, drains, outages, rebalances, put_backs, refusals;
    bool visible_short; /* stops may outlive the visibility of messages */
    struct hapax__source_type source_type;
} w;

static int proc_of(const struct hapax__source *source)
{
    return (int)((const struct link *)(const void *)source - w.links);
}

/* ---- the broker -------------------------------------------------------------------------- */

static void poke_all(void)
{
    uint64_t one = 1;

    for (int p = 0; p < w.play.procs_count; p++)
        if (sim_procs[p].alive && w.links[p].poke_fd > 0)
            (void)!write(w.links[p].poke_fd, &one, sizeof(one));
}

/* The broker has the message again; whoever holds it holds it in vain. */
static void take_back(struct message *m, int64_t due_us)
{
    m->state = WAITS;
    m->due_us = due_us;
    m->out++;
}

static void take_back_all(int proc)
{
    for (int i = 0; i < w.count; i++)
        if (w.messages[i].state == OUT && w.messages[i].holder == proc)
            take_back(&w.messages[i], sim_now_us);
}

static void cut(int proc)
{
    struct link *link = &w.links[proc];

    if (!link->source.connected)
        return;
    say("        CUT p%d", proc);
    mark(MARK_cut);
    link->connection++;
    link->source.connected = link->sink.connected = false;
    link->retry_us = sim_now_us + between(0, 200 * MS);
    take_back_all(proc);
    poke_all();
}

static void give_order(int order, int proc)
{
    if (w.owners[order] == proc)
        return;
    w.owners[order] = proc;
    for (int i = 0; i < w.count; i++)
        if (w.messages[i].order == order && w.messages[i].state == OUT)
            take_back(&w.messages[i], sim_now_us);
    say("        order %d is p%d's", order, proc);
}

static bool in_turn(const struct message *m, int proc)
{
    const struct link *link = &w.links[proc];

    if (!w.ordered)
        return true;
    if (w.broker == KAFKA && w.owners[m->order] != proc)
        return false;
    for (int i = 0; i < w.count && &w.messages[i] < m; i++) {
        const struct message *before = &w.messages[i];

        if (before->queue != QUEUE || before->order != m->order || before->state == DONE)
            continue;
        if (before->state == WAITS || before->holder != proc)
            return false;
        if (w.broker == SQS && before->batch != link->source.reconnects)
            return false;
    }
    return true;
}

/* The next message for a process that is due by this time. */
static struct message *next_for(int proc, int64_t by_us)
{
    struct message *found = NULL;

    for (int i = 0; i < w.count; i++) {
        struct message *m = &w.messages[i];

        if (m->queue == QUEUE && m->state == WAITS && m->due_us <= by_us && in_turn(m, proc) &&
            (!found || m->due_us < found->due_us))
            found = m;
        if (found && found->due_us <= sim_now_us)
            return found;
    }
    return found;
}

static struct message *publish(const struct message *like)
{
    struct message *m = &w.messages[w.count];

    if (w.count == MESSAGES) {
        violate("over %d letters", MESSAGES);
        return NULL;
    }
    *m = *like;
    m->out = 0;
    m->state = m->queue == QUEUE ? WAITS : DONE;
    w.count++;
    return m;
}

/* ---- the rules --------------------------------------------------------------------------- */

static bool is_over(int root)
{
    const struct root *r = &w.roots[root];

    return r->acked || r->dead || r->parked || r->rejected;
}

static bool is_done(const struct message *m)
{
    return (m->key >= 0 && effects.keys[m->key].completed) || w.roots[m->root].ran_bare;
}

static void check_ack(const struct message *m, bool copied)
{
    if (copied || is_done(m))
        return;
    violate("message %d of key %d is acknowledged, and its outcome is not stored", m->root, m->key);
}

static unsigned counted(const struct key *key)
{
    unsigned bare = 0;

    for (int i = 0; i < effects.runs_count; i++)
        bare += effects.runs[i].key == key - effects.keys && effects.runs[i].fence == 0 &&
                effects.runs[i].cls && effects.runs[i].cls != HAPAX_CLASS_NOT_RUN;
    return key->grants - key->not_run + bare;
}

static bool is_mixed(int key)
{
    bool other = false, same = false;

    for (int i = 0; i < w.count; i++)
        if (w.messages[i].key == key) {
            other |= w.messages[i].other;
            same |= !w.messages[i].other;
        }
    return other && same;
}

static bool holds_failures(void)
{
    const struct hapax_policy *policy = &w.consumer.policy;

    return policy->on_failed == HAPAX_FAILED_HOLD ||
           (policy->on_failed == 0 && policy->on_expired != HAPAX_EXPIRED_RERUN);
}

/* Whether nothing may run after such an end. */
static bool is_held(enum hapax_class cls)
{
    return (cls == HAPAX_CLASS_FAILED && holds_failures()) ||
           (cls == HAPAX_CLASS_UNKNOWN && w.consumer.policy.on_expired != HAPAX_EXPIRED_RERUN);
}

/* Whether a dead or parked letter says the truth. */
static bool is_true(const struct message *m)
{
    const struct key *key = m->key >= 0 ? &effects.keys[m->key] : NULL;
    bool bare = w.consumer.policy.on_store_error == HAPAX_STORE_OPEN;

    if (strcmp(m->reason, "no_key") == 0)
        return !key && w.consumer.no_key == HAPAX_NO_KEY_DEAD_LETTER;
    if (!key)
        return strcmp(m->reason, "failed") == 0 || strcmp(m->reason, "refused") == 0 ||
               strcmp(m->reason, "unknown") == 0;
    if (strcmp(m->reason, "refused") == 0)
        return key->refuses && (bare || w.consumer.policy.on_expired == HAPAX_EXPIRED_RECONCILE ||
                                !holds_failures());
    if (strcmp(m->reason, "mismatch") == 0)
        return is_mixed(m->key);
    if (strcmp(m->reason, "failed") == 0)
        return key->put_back > 0 || counted(key) >= w.consumer.policy.attempts_max;
    if (strcmp(m->reason, "unknown") == 0)
        return bare || w.consumer.policy.on_expired != HAPAX_EXPIRED_HOLD || key->was_unknown;
    return false;
}

static void check_letter(const struct message *m)
{
    enum queue aside = w.consumer.unknown == HAPAX_UNKNOWN_PARK ? PARKED : DEAD;
    bool unknown = strcmp(m->reason, "unknown") == 0;

    if (!is_true(m))
        violate("a letter of message %d, key %d, says %s", m->root, m->key, m->reason);
    if (m->queue != (unknown ? aside : DEAD))
        violate("a letter of message %d says %s, and is in %s", m->root, m->reason,
                queue_names[m->queue]);
}

static void check_order(const struct message *m)
{
    for (int root = 0; w.ordered && root < m->root && !w.roots[m->root].put_back; root++) {
        const struct message *before = &w.messages[root];

        if (before->order == m->order && !is_done(before) && !is_over(root) &&
            !w.roots[root].put_back)
            violate("message %d runs before message %d of its order", m->root, root);
    }
}

/* ---- the source -------------------------------------------------------------------------- */

static enum hapax_error source_open(struct hapax__source **out,
                                    const struct hapax_consumer *consumer,
                                    char text[HAPAX_TEXT_MAX])
{
    struct link *link = &w.links[process_now()];

    (void)consumer, (void)text;
    link->source = (struct hapax__source){
        .type = &w.source_type, .name = "Q", .group = "Q", .reconnects = link->source.reconnects};
    link->retry_us = sim_now_us;
    *out = &link->source;
    return HAPAX_ERR_NONE;
}

static int64_t local_us(int64_t world_us)
{
    const struct process *process = &sim_procs[process_now()];

    return world_us == INT64_MAX ? INT64_MAX : world_us + process->offset_us - process->slept_us;
}

static size_t source_watch(struct hapax__source *source, struct pollfd *fds, int64_t *due_us)
{
    struct link *link = &w.links[proc_of(source)];
    const struct message *next;

    fds[0] = (struct pollfd){.fd = link->poke_fd, .events = POLLIN};
    next = link->has_room ? next_for(proc_of(source), INT64_MAX) : NULL;
    if (!source->connected)
        *due_us = local_us(link->retry_us);
    else if (next)
        *due_us = local_us(next->due_us);
    return 1;
}

static void connect(struct link *link)
{
    if (sim_now_us < link->retry_us)
        return;
    if (sim_now_us < w.broker_down_until_us) {
        link->retry_us = sim_now_us + between(10 * MS, 300 * MS);
        snprintf(link->source.text, sizeof(link->source.text), "away");
        return;
    }
    link->source.connected = link->sink.connected = true;
    sim_procs[process_now()].no_memory = play_calm ? 0 : w.no_memory;
}

static enum hapax_error source_pump(struct hapax__source *source, size_t room)
{
    struct link *link = &w.links[proc_of(source)];
    uint64_t count;

    step();
    (void)!read(link->poke_fd, &count, sizeof(count));
    if (source->connected && chance(w.cuts))
        cut(proc_of(source));
    else if (!source->connected)
        connect(link);
    for (int i = 0; i < OUTS; i++) {
        struct out *out = &link->outs[i];
        const struct message *m = &w.messages[out->message];

        if (!out->used || out->delivered.voided || m->out == out->out)
            continue;
        out->delivered.voided = true;
        source->voided++;
        mark(MARK_voided);
    }
    source->reconnects++; /* here it numbers the batches, too */
    link->has_room = room > 0;
    return HAPAX_ERR_NONE;
}

static void set_header(struct out *out, const char *name, const char *value)
{
    struct hapax_message *message = &out->delivered.message;

    assert(message->header_count < sizeof(out->headers) / sizeof(out->headers[0]));
    if (value[0])
        out->headers[message->header_count++] =
            (struct hapax_message_header){hapax_str(name), hapax_str(value)};
}

static struct hapax__delivered *deliver(struct link *link, struct message *m)
{
    struct out *out = link->outs;

    while (out < link->outs + OUTS && out->used)
        out++;
    assert(out < link->outs + OUTS);
    *out = (struct out){.used = true, .message = (int)(m - w.messages), .out = ++m->out};
    m->state = OUT;
    m->holder = proc_of(&link->source);
    m->batch = (uint32_t)link->source.reconnects;
    m->visible_us = sim_now_us + VISIBLE_US;
    snprintf(out->root, sizeof(out->root), "%d", m->root);
    snprintf(out->body, sizeof(out->body), "%d%s", m->key, m->other ? " other" : "");
    if (m->key >= 0)
        snprintf(out->key, sizeof(out->key), "op-%d", m->key);
    snprintf(out->order, sizeof(out->order), "%d", m->order);
    out->delivered.message = (struct hapax_message){
        .body = hapax_str(out->body), .from = hapax_str("Q"), .headers = out->headers};
    if (w.ordered)
        out->delivered.order = hapax_str(out->order);
    set_header(out, "Idempotency-Key", out->key);
    set_header(out, "root", out->root);
    set_header(out, HAPAX__HEADER_ATTEMPTS, m->attempts);
    set_header(out, HAPAX__HEADER_BASE, m->base);
    set_header(out, HAPAX__HEADER_REASON, m->reason);
    say("        message %d (%d) of key %d to p%d", m->root, out->message, m->key, m->holder);
    return &out->delivered;
}

static struct hapax__delivered *source_take(struct hapax__source *source)
{
    struct link *link = &w.links[proc_of(source)];
    struct message *m;
    unsigned outs = 0;

    step();
    for (int i = 0; i < OUTS; i++)
        outs += link->outs[i].used;
    if (!link->has_room)
        violate("a message is taken, and the broker was told of no room");
    if (outs >= w.consumer.in_hand_max)
        violate("over in_hand_max messages are taken");
    if (link->stats.draining)
        violate("a message is taken while draining");
    m = source->connected ? next_for(proc_of(source), sim_now_us) : NULL;
    return m ? deliver(link, m) : NULL;
}

/* What a release tells the broker, perhaps a little later. */
struct told {
    int message;
    uint32_t out;
    enum hapax__release how;
    bool copied;
    int64_t due_us;
};

static void take_word(const struct told *told)
{
    struct message *m = &w.messages[told->message];

    if (m->out != told->out) {
        mark(MARK_ack_lost);
        return;
    }
    if (told->how == HAPAX__RELEASE_RETURN) {
        take_back(m, told->due_us);
        poke_all();
        return;
    }
    m->state = DONE;
    m->out++;
    if (told->how == HAPAX__RELEASE_REJECT)
        w.roots[m->root].rejected = true;
    else if (!told->copied)
        w.roots[m->root].acked = true;
    poke_all();
}

static void tell_late(void *arg)
{
    struct told told = *(struct told *)arg;

    free(arg);
    pass_us(between(0, 20 * MS));
    take_word(&told);
}

static void end_delivery(struct hapax__source *source, struct hapax__delivered *delivered,
                         enum hapax__release how, int64_t delay_ms)
{
    struct out *out = (struct out *)delivered;
    struct told told = {out->message, out->out, how, out->copied, sim_now_us + delay_ms * MS};
    bool voided = delivered->voided;
    struct told *late;

    (void)source;
    step();
    if (!out->used)
        violate("a delivery is released twice");
    memset(out, 0xdd, sizeof(*out));
    out->used = false;
    if (voided)
        return;
    say("        message %d: %s", w.messages[told.message].root,
        how == HAPAX__RELEASE_ACK      ? "ACK"
        : how == HAPAX__RELEASE_RETURN ? "RETURN"
                                       : "REJECT");
    if (how == HAPAX__RELEASE_ACK)
        check_ack(&w.messages[told.message], told.copied);
    if (how == HAPAX__RELEASE_REJECT && w.messages[told.message].key >= 0)
        violate("a message with a key is rejected");
    if (!chance(w.ack_late)) {
        take_word(&told);
        return;
    }
    late = aligned_alloc(64, 64);
    assert(late);
    *late = told;
    world_thread(tell_late, late);
}

static void source_release(struct hapax__source *source, struct hapax__delivered *delivered,
                           enum hapax__release how)
{
    mark(how == HAPAX__RELEASE_ACK      ? MARK_acknowledged
         : how == HAPAX__RELEASE_RETURN ? MARK_returned
                                        : MARK_rejected);
    end_delivery(source, delivered, how, 0);
}

static void source_postpone(struct hapax__source *source, struct hapax__delivered *delivered,
                            int64_t delay_ms)
{
    mark(MARK_postponed);
    if (delay_ms <= 0)
        violate("a message is postponed for no time");
    end_delivery(source, delivered, HAPAX__RELEASE_RETURN, delay_ms);
}

static void source_extend(struct hapax__source *source, struct hapax__delivered *delivered)
{
    struct out *out = (struct out *)delivered;

    (void)source;
    step();
    if (!out->used || delivered->voided)
        violate("a delivery is extended that is not held");
    else if (w.messages[out->message].out == out->out)
        w.messages[out->message].visible_us = sim_now_us + VISIBLE_US;
}

static void source_close(struct hapax__source *source, int64_t wait_ms)
{
    struct link *link = &w.links[proc_of(source)];

    (void)wait_ms;
    for (int i = 0; i < OUTS; i++)
        if (link->outs[i].used)
            violate("a delivery is not released at the end");
    take_back_all(proc_of(source));
    source->connected = false;
}

/* ---- the sink ---------------------------------------------------------------------------- */

static enum hapax_error sink_open(struct hapax__sink **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX])
{
    extern const struct hapax__sink_type sim_sink;
    struct link *link = &w.links[process_now()];

    (void)uri, (void)text;
    memset(link->sent, 0, sizeof(link->sent));
    link->sink = (struct hapax__sink){.type = &sim_sink, .name = "Q"};
    *out = &link->sink;
    return HAPAX_ERR_NONE;
}

static struct link *link_of(struct hapax__sink *sink)
{
    return (struct link *)((char *)sink - offsetof(struct link, sink));
}

static void sink_make(struct hapax__sink *sink, const char *name)
{
    (void)sink, (void)name;
}

static size_t sink_watch(struct hapax__sink *sink, struct pollfd *fds, int64_t *due_us)
{
    (void)due_us;
    fds[0] = (struct pollfd){.fd = link_of(sink)->sent_fd, .events = POLLIN};
    return 1;
}

static void sink_pump(struct hapax__sink *sink)
{
    uint64_t count;

    (void)!read(link_of(sink)->sent_fd, &count, sizeof(count));
}

struct on_its_way {
    struct message copy;
    int proc, slot;
    uint32_t number, connection, life;
    int of; /* the message that it is a copy of */
    uint32_t out;
};

static const char *text_of(const struct hapax__letter *letter, const char *name, char *to,
                           size_t size)
{
    to[0] = '\0';
    for (size_t i = 0; i < letter->header_count + letter->own_count; i++) {
        const struct hapax_message_header *header =
            i < letter->own_count ? &letter->own[i] : &letter->headers[i - letter->own_count];

        if (header->name.len == strlen(name) &&
            memcmp(header->name.ptr, name, header->name.len) == 0) {
            snprintf(to, size, "%.*s", (int)header->value.len, (const char *)header->value.ptr);
            break;
        }
    }
    return to;
}

static void set_result(const struct on_its_way *way, enum hapax__sent result)
{
    struct link *link = &w.links[way->proc];
    struct sent *sent = &link->sent[way->slot];
    uint64_t one = 1;

    if (sim_procs[way->proc].life != way->life || !sim_procs[way->proc].alive || !sent->letter ||
        sent->number != way->number)
        return;
    sent->result = result;
    (void)!write(link->sent_fd, &one, sizeof(one));
}

static bool is_connected(const struct on_its_way *way)
{
    return sim_procs[way->proc].alive && sim_procs[way->proc].life == way->life &&
           w.links[way->proc].connection == way->connection && w.links[way->proc].source.connected;
}

static void count_letter(const struct message *m)
{
    struct root *root = &w.roots[m->root];

    if (m->queue == DEAD)
        root->dead = true;
    if (m->queue == PARKED)
        root->parked = true;
    mark(m->queue == QUEUE  ? MARK_letter_retry
         : m->queue == DEAD ? MARK_letter_dead
                            : MARK_letter_parked);
}

static void travel(void *arg)
{
    struct on_its_way way = *(struct on_its_way *)arg;
    enum hapax__sent result = HAPAX__SENT_OK;

    free(arg);
    pass_us(between(20, 10 * MS));
    if (sim_now_us < w.refused_until_us[way.copy.queue]) {
        mark(MARK_letter_refused);
        result = HAPAX__SENT_REFUSED;
    } else if (sim_now_us < w.broker_down_until_us || chance(w.letter_lost)) {
        mark(MARK_letter_lost);
        result = HAPAX__SENT_LOST;
    } else {
        say("        message %d: a letter in %s %s", way.copy.root, queue_names[way.copy.queue],
            way.copy.reason);
        if (publish(&way.copy))
            count_letter(&way.copy);
        poke_all();
    }
    pass_us(between(20, 10 * MS));
    if (result == HAPAX__SENT_OK && (!is_connected(&way) || chance(w.letter_lost_published))) {
        mark(MARK_letter_lost_published);
        result = HAPAX__SENT_LOST;
    }
    set_result(&way, result);
}

static bool sink_send(struct hapax__sink *sink, const struct hapax__letter *letter)
{
    struct link *link = link_of(sink);
    const struct hapax__entry *entry = letter->tag;
    const struct out *out = (const struct out *)entry->delivered;
    struct on_its_way *way;
    char number[16];
    int slot = 0;

    step();
    while (slot < LETTERS && link->sent[slot].letter)
        slot++;
    if (slot == LETTERS || (slot > 0 && chance(w.sink_full))) {
        mark(MARK_sink_full);
        return false;
    }
    if (entry->delivered->voided)
        violate("a letter of a voided delivery is sent");
    way = aligned_alloc(64, (sizeof(*way) + 63) / 64 * 64);
    assert(way);
    link->sent[slot] = (struct sent){letter, HAPAX__SENT_NOTHING, ++w.letters};
    *way = (struct on_its_way){
        w.messages[out->message],      process_now(), slot,    w.letters, link->connection,
        sim_procs[process_now()].life, out->message,  out->out};
    if (strtol(text_of(letter, "root", number, sizeof(number)), NULL, 10) != way->copy.root)
        violate("a letter is of another message");
    way->copy.queue = strcmp(letter->to, "Q") == 0        ? QUEUE
                      : strcmp(letter->to, "Q.dead") == 0 ? DEAD
                                                          : PARKED;
    text_of(letter, HAPAX__HEADER_ATTEMPTS, way->copy.attempts, sizeof(way->copy.attempts));
    text_of(letter, HAPAX__HEADER_BASE, way->copy.base, sizeof(way->copy.base));
    text_of(letter, HAPAX__HEADER_REASON, way->copy.reason, sizeof(way->copy.reason));
    way->copy.due_us = sim_now_us + (letter->delay_ms + 999) / 1000 * SECOND; /* as sink.h says */
    if (way->copy.queue != QUEUE)
        check_letter(&way->copy);
    else if (w.ordered)
        violate("a message of an order goes round by the broker");
    else if (out->held)
        violate("message %d is to run again after an unprotected run", way->copy.root);
    world_thread(travel, way);
    return true;
}

static enum hapax__sent sink_reap(struct hapax__sink *sink, void **tag)
{
    struct link *link = link_of(sink);

    for (int i = 0; i < LETTERS; i++) {
        struct sent *sent = &link->sent[i];
        enum hapax__sent result = sent->result;

        if (!sent->letter || result == HAPAX__SENT_NOTHING)
            continue;
        *tag = sent->letter->tag;
        ((struct out *)((struct hapax__entry *)*tag)->delivered)->copied = result == HAPAX__SENT_OK;
        sent->letter = NULL;
        return result;
    }
    return HAPAX__SENT_NOTHING;
}

static void sink_close(struct hapax__sink *sink)
{
    memset(link_of(sink)->sent, 0, sizeof(link_of(sink)->sent));
}

static const struct hapax__source_type sim_source = {
    .schemes = {"sim"},
    .open = source_open,
    .watch = source_watch,
    .pump = source_pump,
    .take = source_take,
    .release = source_release,
    .close = source_close,
};

const struct hapax__sink_type sim_sink = {
    .schemes = {"sim"},
    .open = sink_open,
    .make = sink_make,
    .watch = sink_watch,
    .pump = sink_pump,
    .send = sink_send,
    .reap = sink_reap,
    .close = sink_close,
};

/* ---- handlers ---------------------------------------------------------------------------- */

static int number_in(const struct hapax_message *message, const char *name)
{
    char text[16] = "";

    for (size_t i = 0; i < message->header_count; i++)
        if (message->headers[i].name.len == strlen(name) &&
            memcmp(message->headers[i].name.ptr, name, strlen(name)) == 0)
            snprintf(text, sizeof(text), "%.*s", (int)message->headers[i].value.len,
                     (const char *)message->headers[i].value.ptr);
    return (int)strtol(text, NULL, 10);
}

static enum hapax_class end_of(struct key *key, struct hapax_delivery *delivery, int status)
{
    enum hapax_class cls = effects_class(key);

    if (cls == HAPAX_CLASS_NOT_RUN) {
        mark(MARK_turned_away);
        if (status > 0 && chance(500))
            hapax_delivery_retry_after(delivery, between(1, 3000));
    } else if (cls == HAPAX_CLASS_FAILED && key->refuses) {
        hapax_delivery_refuse(delivery, "never");
    }
    return cls;
}

/* Until this time, or until the handler sees that it should return. */
static bool works(const struct hapax_attempt *attempt, const struct hapax_delivery *delivery,
                  int64_t us, bool ignores)
{
    int64_t until_us = sim_now_us + us;

    while (sim_now_us < until_us) {
        int64_t left_us = until_us - sim_now_us;

        pass_us(left_us < 20 * MS ? left_us : 20 * MS);
        if (!ignores && (hapax_attempt_lost(attempt) || hapax_delivery_hurry(delivery)))
            return false;
    }
    return true;
}

static enum hapax_class handle(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                               void *arg)
{
    struct out *out = (struct out *)hapax_delivery_message(delivery); /* its first member */
    struct message *m = &w.messages[number_in(&out->delivered.message, "root")];
    struct run *run = effects_run(m->key, hapax_attempt_fence(attempt));
    struct key keyless = {.runs = 0}, *key = m->key >= 0 ? &effects.keys[m->key] : &keyless;
    int64_t lease_us = w.consumer.policy.lease_ms * MS;
    int64_t long_us = chance(w.slow) ? between(0, 3 * lease_us) : between(0, lease_us / 8);
    int status = chance(500) ? 503 : 0;
    bool ignores = chance(w.ignores);
    enum hapax_class cls;

    (void)arg;
    say("RUN message %d of key %d, attempt %u fence %llu", m->root, m->key,
        hapax_attempt_number(attempt), (unsigned long long)run->fence);
    check_order(m);
    cls = end_of(key, delivery, status);
    if (out->held && w.no_memory == 0) /* without memory for its letter it asks again */
        violate("message %d runs again after an unprotected run", m->root);
    if (run->fence == 0) {
        mark(MARK_bare_run);
        if (m->key >= 0 && w.consumer.policy.on_store_error != HAPAX_STORE_OPEN)
            violate("key %d runs without a claim", m->key);
    }
    if (!works(attempt, delivery, long_us / 2, ignores)) {
        mark(MARK_hurried);
        cls = HAPAX_CLASS_UNKNOWN;
    } else if (cls == HAPAX_CLASS_FINAL ||
               (cls == HAPAX_CLASS_UNKNOWN && key->effects_before_unknown)) {
        effects_effect(run);
        if (!works(attempt, delivery, long_us / 2, ignores)) {
            mark(MARK_hurried);
            cls = HAPAX_CLASS_UNKNOWN;
        }
    }
    if (cls != HAPAX_CLASS_UNKNOWN && (cls != HAPAX_CLASS_NOT_RUN || status > 0) &&
        hapax_attempt_outcome(attempt,
                              cls == HAPAX_CLASS_FINAL ? 200
                              : status > 0             ? status
                                                       : 500,
                              hapax_str(NULL), hapax_str("done")) != HAPAX_ERR_NONE &&
        cls != HAPAX_CLASS_FINAL)
        cls = HAPAX_CLASS_UNKNOWN;
    run->ended = true;
    run->cls = cls;
    out->held = run->fence == 0 && is_held(cls);
    if (run->fence == 0 && cls == HAPAX_CLASS_FINAL)
        w.roots[m->root].ran_bare = true;
    say("END of message %d: class %d", m->root, (int)cls);
    return cls;
}

/* It tells the truth, and no earlier attempt has its effect later. */
static enum hapax_class hook(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                             void *arg)
{
    const struct message *m = &w.messages[number_in(hapax_delivery_message(delivery), "root")];
    struct key *key = &effects.keys[m->key];

    (void)arg;
    mark(MARK_hook);
    pass_us(between(0, 50 * MS));
    if (!play_calm && chance(w.hook_unsure))
        return HAPAX_CLASS_UNKNOWN;
    return effects_hook(key, attempt);
}

/* ---- processes --------------------------------------------------------------------------- */

static void log_line(void *arg, const char *line)
{
    (void)arg;
    say("LOG %s", line);
}

static void consumer_main(int proc)
{
    struct hapax_options options = {.calls_max = w.consumer.in_hand_max};
    struct link *link = &w.links[proc];
    struct hapax_consumer consumer = w.consumer;
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;
    enum hapax_error error;

    link->poke_fd = eventfd(0, 0);
    link->sent_fd = eventfd(0, 0);
    stops[proc].fd = consumer.stop_fd = eventfd(0, 0);
    consumer.log = log_line;
    while (hapax_open(&h, "sim:", &options, text) != HAPAX_ERR_NONE)
        pass_us(between(10 * MS, 200 * MS));
    error = hapax_consumer_run(h, &consumer, handle, hook, NULL, &link->stats, text);
    if (error != HAPAX_ERR_NONE)
        violate("a consumer ends: %.100s", text);
    else if (stops[proc].at_us == 0)
        violate("a consumer ends, and was not told to");
    if (link->stats.in_hand > 0 || link->stats.running > 0)
        violate("a consumer ends with messages in hand");
    (void)hapax_close(h, 1000);
    close(link->poke_fd);
    close(link->sent_fd);
    close(consumer.stop_fd);
}

static void begin(int proc)
{
    struct link *link = &w.links[proc];
    uint64_t batches = link->source.reconnects;

    memset(link, 0, sizeof(*link));
    link->source.reconnects = batches;
    process_begin(proc, consumer_main);
    for (int order = 0; order < w.orders_count; order++)
        if (chance(500) || !sim_procs[w.owners[order]].alive)
            give_order(order, proc);
}

static void over(int proc, bool killed)
{
    effects_over(proc, killed);
    if (killed)
        mark(MARK_killed);
    if (play_stopped(proc, killed))
        mark(MARK_drained);
    w.links[proc].connection++;
    w.links[proc].source.connected = false;
    w.links[proc].poke_fd = 0;
    take_back_all(proc);
    for (int order = 0; order < w.orders_count; order++)
        for (int p = 0; p < w.play.procs_count && w.owners[order] == proc; p++)
            if (sim_procs[p].alive)
                give_order(order, p);
    poke_all();
    play_over(proc);
}

/* ---- the world --------------------------------------------------------------------------- */

static int64_t outage_us(void)
{
    return between(10 * MS, 4 * w.consumer.policy.lease_ms * MS);
}

static void suspend(int proc)
{
    bool long_one = w.visible_short && chance(300);

    mark(MARK_stopped);
    process_stop(proc, long_one ? between(12 * SECOND, 18 * SECOND) : outage_us());
}

static void put_one_back(void)
{
    for (int i = 0; i < w.count; i++) {
        struct message *m = &w.messages[i];

        if (m->queue != DEAD || m->key < 0 || effects.keys[m->key].put_back > 0)
            continue;
        mark(MARK_put_back);
        say("        message %d is put back", m->root);
        effects.keys[m->key].put_back++;
        w.roots[m->root] = (struct root){.put_back = true};
        if (publish(m)) {
            struct message *copy = &w.messages[w.count - 1];

            copy->queue = QUEUE;
            copy->state = WAITS;
            copy->due_us = sim_now_us;
        }
        poke_all();
        return;
    }
}

static void something_happens(int proc)
{
    play_kill(proc, w.kills);
    if (chance(w.stops) && sim_procs[proc].alive)
        suspend(proc);
    if (chance(w.drains))
        (void)play_stop(proc);
    if (chance(w.cuts))
        cut(proc);
    if (chance(w.outages)) {
        mark(MARK_broker_away);
        w.broker_down_until_us = sim_now_us + outage_us();
        for (int p = 0; p < w.play.procs_count; p++)
            cut(p);
    }
    if (chance(w.outages)) {
        mark(MARK_store_away);
        say("        STORE AWAY");
        sim_store.down_until_us = sim_now_us + outage_us();
    }
    if (chance(w.outages))
        sim_store.jump_us += between(0, 2 * w.consumer.policy.lease_ms * MS);
    if (chance(w.refusals))
        w.refused_until_us[between(QUEUE, PARKED)] = sim_now_us + outage_us();
    if (w.broker == KAFKA && chance(w.rebalances) && sim_procs[proc].alive) {
        mark(MARK_rebalanced);
        give_order((int)between(0, w.orders_count - 1), proc);
        poke_all();
    }
    if (chance(w.put_backs))
        put_one_back();
}

/* SQS: what nobody extends comes again. */
static void see_visible(struct message *m)
{
    const struct process *holder = &sim_procs[m->holder];

    if (m->state != OUT || sim_now_us < m->visible_us)
        return;
    mark(MARK_hidden_too_long);
    if (holder->stopped_us < EXTENDED_US)
        violate("p%d keeps message %d, and does not extend it", m->holder, m->root);
    take_back(m, sim_now_us);
    poke_all();
}

static void watch(void)
{
    for (int i = 0; w.broker == SQS && i < w.count; i++)
        see_visible(&w.messages[i]);
}

static void producer(void *arg)
{
    (void)arg;
    for (int i = 0; i < w.roots_count; i++) { /* root i is message i: it is there, and waits */
        pass_us(between(0, 300 * MS));
        w.messages[i].due_us = sim_now_us;
        poke_all();
    }
}

static void draw_faults(void)
{
    bool all = chance(200);

    w.cuts = play_rate(all, 60);
    w.letter_lost = play_rate(all, 300);
    w.letter_lost_published = play_rate(all, 300);
    w.sink_full = play_rate(all, 500);
    w.ack_late = play_rate(all, 700);
    w.no_memory = chance(150) ? (unsigned)between(1, 60) : 0;
    w.slow = play_rate(all, 400);
    w.ignores = play_rate(all, 1000);
    w.hook_unsure = play_rate(all, 500);
    w.kills = play_rate(all, 300);
    w.stops = play_rate(all, 150);
    w.drains = play_rate(all, 100);
    w.outages = play_rate(all, 100);
    w.rebalances = play_rate(all, 300);
    w.put_backs = play_rate(all, 300);
    w.refusals = play_rate(all, 100);
    w.visible_short = chance(300);
    sim_store_draw(all);
}

static void draw_policy(struct hapax_policy *policy)
{
    policy->lease_ms = between(100, 1500);
    policy->attempts_max = (uint32_t)between(1, 5);
    policy->on_expired =
        (enum hapax_on_expired)between(HAPAX_EXPIRED_RERUN, HAPAX_EXPIRED_RECONCILE);
    policy->on_failed = (enum hapax_on_failed)(chance(500)   ? 0
                                               : chance(500) ? HAPAX_FAILED_RETRY
                                                             : HAPAX_FAILED_HOLD);
    policy->wait_ms = between(1, 500);
    policy->timeout_ms = between(50, 2000);
    policy->save_wait_ms = between(-200, 2000);
    if (policy->save_wait_ms < 0) /* answers do not wait for the store */
        policy->save_wait_ms = 0;
    if (chance(80))
        policy->on_store_error = HAPAX_STORE_OPEN;
}

static void draw_consumer(void)
{
    struct hapax_consumer *consumer = &w.consumer;

    hapax_consumer_init(consumer);
    consumer->from = "sim:Q";
    draw_policy(&consumer->policy);
    consumer->no_key = (enum hapax_no_key)between(HAPAX_NO_KEY_DEAD_LETTER, HAPAX_NO_KEY_RUN);
    if (w.broker != AMQP && consumer->no_key == HAPAX_NO_KEY_REJECT)
        consumer->no_key = HAPAX_NO_KEY_DEAD_LETTER;
    consumer->in_flight = (enum hapax_in_flight)between(
        HAPAX_IN_FLIGHT_DELAY, w.ordered ? HAPAX_IN_FLIGHT_WAIT : HAPAX_IN_FLIGHT_REQUEUE);
    consumer->unknown = chance(700) ? HAPAX_UNKNOWN_PARK : HAPAX_UNKNOWN_DEAD_LETTER;
    consumer->retry_min_ms = between(1, chance(200) ? 50000 : 1000);
    consumer->retry_max_ms = consumer->retry_min_ms + between(0, chance(200) ? 100000 : 3000);
    consumer->drain_ms = between(0, 3000);
    consumer->concurrency = (uint32_t)between(1, 4);
    consumer->in_hand_max = consumer->concurrency + (uint32_t)between(0, 12);
    consumer->dead_letters = queue_names[DEAD];
    consumer->parked = queue_names[PARKED];
}

static void draw_messages(void)
{
    effects_draw(&w.consumer.policy, (int)between(1, KEYS), "Q");
    w.roots_count = w.count = (int)between(1, ROOTS);
    for (int i = 0; i < w.roots_count; i++)
        w.messages[i] =
            (struct message){.root = i,
                             .key = chance(60) ? -1 : (int)between(0, effects.keys_count - 1),
                             .order = (int)between(0, ORDERS - 1),
                             .other = chance(40),
                             .due_us = INT64_MAX};
}

static void calm(void)
{
    w.cuts = w.letter_lost = w.letter_lost_published = w.sink_full = w.no_memory = 0;
    w.broker_down_until_us = sim_store.down_until_us = 0;
    memset(w.refused_until_us, 0, sizeof(w.refused_until_us));
    sim_store.request_lost = sim_store.reply_lost = sim_store.late = sim_store.twice =
        sim_store.refused = 0;
    marks[MARK_no_memory] += sim_no_memory;
    marks[MARK_second_effect] += effects.again;
}

static bool all_over(void)
{
    for (int i = 0; i < w.count; i++)
        if (w.messages[i].queue == QUEUE && w.messages[i].state != DONE)
            return false;
    return true;
}

static void violate_rest(void)
{
    for (int i = 0; i < w.count; i++)
        if (w.messages[i].queue == QUEUE && w.messages[i].state != DONE)
            violate("message %d of key %d is not at its end %lld s after the faults, but %s",
                    w.messages[i].root, w.messages[i].key, (long long)(REST_US / SECOND),
                    w.messages[i].state == OUT ? "out" : "waits");
}

static void check_all(void)
{
    for (int i = 0; i < w.roots_count; i++)
        if (!is_over(i))
            violate("message %d of key %d is lost", i, w.messages[i].key);
}

static void draw_world(void)
{
    memset(&w, 0, sizeof(w));
    w.broker = (int)between(AMQP, SQS);
    w.ordered = w.broker == KAFKA || (w.broker == SQS && chance(600));
    w.orders_count = w.broker == KAFKA ? ORDERS : 0;
    w.play = (struct play){.procs_count = (int)between(1, CONSUMERS),
                           .calm_us = CALM_US,
                           .rest_us = REST_US,
                           .drain_us = DRAIN_US,
                           .begin = begin,
                           .happens = something_happens,
                           .calm = calm,
                           .watch = watch,
                           .is_over = all_over,
                           .not_over = violate_rest};
    w.source_type = sim_source;
    w.source_type.rejects = w.broker == AMQP;
    w.source_type.delays = w.broker == AMQP && chance(700);
    w.source_type.orders = w.ordered ? HAPAX_ORDER_KEY : HAPAX_ORDER_NONE;
    w.source_type.extend = w.broker == SQS ? source_extend : NULL;
    w.source_type.postpone = w.broker == SQS ? source_postpone : NULL;
    hapax__source_use(&w.source_type, &sim_sink);
    draw_faults();
    draw_consumer();
    draw_messages();
}

static void schedule(uint64_t seed)
{
    threads_reset(seed);
    sim_store_reset();
    draw_world();
    process_over = over;
    sim_store_judged = effects_judged;
    world_thread(producer, NULL);
    play_run(&w.play);
    if (!sim_failed)
        check_all();
}

int main(int argc, char **argv)
{
    return seeds_main(argc, argv, schedule, marks, mark_names, MARKS_COUNT);
}
