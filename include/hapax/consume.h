/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax/consume.h: the message door. Takes messages from a broker and runs a handler once for each
 * logical message, though brokers deliver twice, producers send twice and consumers die half-way.
 * In libhapax-consume. `hapax consume` is this with a handler that is an HTTP service (docs/consume.md).
 *
 * What becomes of a message, by the answer of its operation (hapax.h):
 *
 *   FRESH and final, REPLAY, GONE  acknowledged, once the outcome is stored
 *   FRESH, failed                  tried again after a pause that grows from retry_min_ms to retry_max_ms, until
 *                                  attempts_max attempts may have run; then it goes to the dead letters.
 *                                  One that the handler refused goes there at once. With on_failed=hold both
 *                                  are unknown, and go where `unknown` says
 *   FRESH, not run                 tried again after such a pause, and not counted. Where the handler gave no status, nobody
 *                                  listens: it stays in hand. Once most of what may be in hand was not run, no other is
 *                                  taken until three quarters of that go through again, or go. One that a status turned
 *                                  away several times goes round by the broker
 *   FRESH, unknown                 held until the lease is over, then tried again; UNKNOWN from then on
 *                                  where on_expired or on_failed is hold
 *   IN_FLIGHT                      as in_flight says; never acknowledged
 *   FAILED, MISMATCH, BAD_KEY, TOO_LARGE   to the dead letters
 *   UNKNOWN                        as `unknown` says; never acknowledged. Where a reconcile hook may still tell, it
 *                                  is held and asked attempts_max times first
 *   MISSING_KEY                    as `no_key` says
 *   STORE_DOWN, or not recorded    held and tried again; meanwhile no message is taken
 *   STORE_DOWN, CORRUPT            its record is damaged: as `unknown` says, with hapax-reason `corrupt`
 *   BYPASS                         (on_store_error=open, or no_key=run) as its class says, and counted
 *
 * A message leaves the broker only by an acknowledgement, or after its copy among the retries, the parked
 * or the dead letters is confirmed by the broker. So whatever dies, it is delivered again, and its
 * record says what to do. A copy carries its history in these headers:
 *
 *   hapax-attempts  how many of its attempts may have run since it was published or put back
 *   hapax-base      how many attempts of the record may have run (`spent` of its answer) when that count began; in dead
 *                   and parked letters, when the next one begins. The record gives up at hapax-base + attempts_max, so
 *                   that handlers which die with their process are counted too. Both are decimal, 0 to 1000000000;
 *                   anything else counts as 0
 *   hapax-reason    dead and parked letters: failed, refused, mismatch, unknown, corrupt, no_key, bad_key, too_large
 *   hapax-error     and a line about it, without keys or bodies
 *   hapax-from      and the queue or topic it came from
 *   hapax-scope     and the scope it was asked for in
 *   hapax-time      and when, in µs since 1970
 *   hapax-position  where it first stood, at brokers that have positions: with key=position a copy is the same message
 *   hapax-redrive   put back by `hapax redrive`: which run of it
 *
 * A letter that the broker refuses keeps its message in hand and is sent again, for as long as it takes:
 * letters_refused counts them, and the log says it again each minute.
 *
 * A message that arrives with hapax-reason was put back, by `hapax redrive` or any other tool: it is no
 * duplicate of the one that failed, and is run attempts_max times more.
 */
#ifndef HAPAX_CONSUME_H
#define HAPAX_CONSUME_H

#include <hapax/hapax.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAPAX_CONCURRENCY_MAX     1024u /* handlers at once */
#define HAPAX_IN_HAND_MAX         65535u /* messages taken and not settled */
#define HAPAX_MESSAGE_HEADERS_MAX 256u /* of one message; one with more is too_large */
#define HAPAX_KEY_SOURCES_MAX     16u

struct hapax_message_header {
    struct hapax_span name;
    struct hapax_span value; /* numbers and booleans as text; tables and arrays are left out */
};

/* Valid until the handler returns. Kafka tells NULL from empty in a key, a body (NULL: a tombstone) and a header's value:
 * ptr is NULL for the one, and is not for the other. */
struct hapax_message {
    struct hapax_span body;
    struct hapax_span content_type; /* empty: not said */
    struct hapax_span id; /* the producer's: AMQP message-id; empty: none */
    struct hapax_span type; /* AMQP type; empty: none */
    struct hapax_span key; /* Kafka's key, AMQP's routing key: what it is about; may be empty */
    struct hapax_span from; /* the queue or topic */
    struct hapax_span position; /* where it stands in the broker, the same at each delivery (Kafka:
                                   TOPIC/PARTITION/OFFSET); empty: the broker has no such thing */
    const struct hapax_message_header *headers;
    size_t header_count;
    int64_t time_us; /* when it was published, since 1970; 0: not known */
    bool redelivered; /* as far as the broker knows */
};

/* One delivery as its handler sees it. */
struct hapax_delivery;

const struct hapax_message *hapax_delivery_message(const struct hapax_delivery *delivery);

/* Says that trying again will not help: where the handler then returns FAILED, the message goes to the dead
 * letters with hapax-reason `refused`. why: a line for people, copied, cut to HAPAX_TEXT_MAX; no secrets. */
void hapax_delivery_refuse(struct hapax_delivery *delivery, const char *why);

/* Whether the consumer is being stopped and its drain_ms is over: return soon. What is returned then is
 * still stored; what is not done is delivered again. */
bool hapax_delivery_hurry(const struct hapax_delivery *delivery);

/* Runs in one of `concurrency` threads; the hook of a message may have another than its handler. `attempt` is as in hapax_execute(): fence, token, steps, outcome. */
typedef enum hapax_class hapax_message_handler(struct hapax_attempt *attempt,
                                               struct hapax_delivery *delivery, void *arg);

enum hapax_in_flight { HAPAX_IN_FLIGHT_DELAY = 1, HAPAX_IN_FLIGHT_WAIT, HAPAX_IN_FLIGHT_REQUEUE };
enum hapax_no_key { HAPAX_NO_KEY_DEAD_LETTER = 1, HAPAX_NO_KEY_REJECT, HAPAX_NO_KEY_RUN };
enum hapax_unknown { HAPAX_UNKNOWN_PARK = 1, HAPAX_UNKNOWN_DEAD_LETTER };
enum hapax_order {
    HAPAX_ORDER_DEFAULT = 0,
    HAPAX_ORDER_KEY,
    HAPAX_ORDER_PARTITION,
    HAPAX_ORDER_NONE
};

/* Counters and gauges, to be read while it runs; each by itself. */
struct hapax_consumer_stats {
    uint64_t taken; /* deliveries */
    uint64_t answers[HAPAX_ANSWER_BYPASS + 1]; /* by kind of answer */
    uint64_t run; /* handlers that ended */
    uint64_t acknowledged;
    uint64_t retried; /* given a later time, by us or by way of the broker */
    uint64_t dead_lettered;
    uint64_t parked;
    uint64_t returned; /* given back to the broker */
    uint64_t voided; /* deliveries the broker took back: a lost connection, a rebalance */
    uint64_t unprotected; /* ran without a store */
    uint64_t reconnects;
    uint64_t in_hand;
    uint64_t running;
    uint64_t letters_refused; /* of in_hand: the broker refused their letters, the last time */
    int64_t lag; /* messages that wait at the broker; -1: not known */
    bool connected; /* to the broker */
    bool store_up; /* as of the last answer */
    bool draining;
    uint64_t handler_us[32]; /* handlers that took less than 2^i µs */
    uint64_t handler_us_sum;
    uint64_t message_us[32]; /* the same from taken to settled */
    uint64_t message_us_sum;
};

/* How to consume. hapax_consumer_init() fills in the defaults; texts are borrowed while it runs. */
struct hapax_consumer {
    const char *from; /* URI of the queue or topic (docs/consume.md) */
    struct hapax_policy
        policy; /* attempts_max 8, key required, the rest as ever. on_failed=replay is refused: it
                                   would acknowledge what failed */
    const char *scope; /* NULL: the name of the queue, or of the consumer group */
    const char *
        key; /* NULL: the usual headers (docs/consume.md); else sources, parted by commas, the first that has one counts: header
                        names, `cloudevents`, `message-id`, JSON Pointers (several parted by spaces are one
                        source), and last `payload` or `position` */
    const char
        *fingerprint; /* NULL or `body`: its bytes; or `json`, with pointers to include or, after
                                '-', to exclude: "json -/sent_at"; or `off` */
    const char
        *step; /* NULL: the operation itself; else the message carries the KEY of the operation
                         that an earlier service began, and its own is KEY:step (hapax_key_derive()) */
    enum hapax_no_key
        no_key; /* DEAD_LETTER. REJECT: back to the broker, whose own dead-letter exchange
                                 takes it or nobody (AMQP only). RUN: unprotected, counted */
    enum hapax_in_flight
        in_flight; /* DELAY: held, and asked again when the other is done, if that is in this
                                       process, or after pauses that grow until the lease may be over. WAIT: it
                                       keeps one of `concurrency` for policy.wait_ms, and drain_ms at most, before it is held. REQUEUE: given back after
                                       retry_min_ms at most; only where there is no order to keep, and counted by a
                                       queue's delivery limit */
    enum hapax_unknown unknown; /* PARK: to NAME.parked; DEAD_LETTER: to NAME.dead */
    enum hapax_order
        order; /* messages of a Kafka key (default), or of a partition, run one at a time and in
                               order, retries included, and so do those of a group of a FIFO queue (KEY, its default);
                               AMQP and other queues of SQS have no order but NONE */
    int64_t retry_min_ms; /* 1 s */
    int64_t retry_max_ms; /* 5 min */
    int64_t drain_ms; /* after `stop`: how long what runs may go on; 30 s */
    uint32_t concurrency; /* handlers at once: 1 to HAPAX_CONCURRENCY_MAX; 16 */
    uint32_t
        in_hand_max; /* messages taken and not settled, at least concurrency; 0: 4 times that */
    const char *dead_letters; /* queue or topic; NULL: NAME.dead (Kafka: TOPIC.GROUP.dead; SQS:
                                 NAME-dead) */
    const char *parked; /* NULL: NAME.parked (Kafka: TOPIC.GROUP.parked; SQS: NAME-parked) */
    int stop_fd; /* readable: stop; -1: never */
    int hurry_fd; /* readable after stop_fd: drain_ms is over; -1: never */
    int ready_fd; /* an eventfd, to which 1 is written when the broker is there for the first time; -1: none */
    void (*log)(void *arg, const char *line); /* NULL: none; called from any of its threads */
    void *log_arg;
};

void hapax_consumer_init(struct hapax_consumer *consumer);

/* INVALID or UNSUPPORTED: text names the first setting that cannot be. */
enum hapax_error hapax_consumer_check(const struct hapax_consumer *consumer,
                                      char text[HAPAX_TEXT_MAX]);

/* Takes messages and runs handler(attempt, delivery, arg) for each operation once, until stop_fd is
 * readable; then drains and returns NONE. Blocks. A broker or a store that goes away is waited for, and so is one
 * that is not there yet; a queue or topic that does not exist, or that may not be read, is REFUSED: where it
 * is there no longer, too.
 *   h         lent until it returns; calls_max at least in_hand_max
 *   reconcile may be NULL unless policy.on_expired is reconcile
 *   stats     may be NULL; else written while it runs, to be read by hapax_consumer_read()
 * INVALID, UNSUPPORTED: as hapax_consumer_check(); NOMEM; REFUSED: text says what the broker said. */
enum hapax_error hapax_consumer_run(struct hapax *h, const struct hapax_consumer *consumer,
                                    hapax_message_handler *handler,
                                    hapax_message_handler *reconcile, void *arg,
                                    struct hapax_consumer_stats *stats, char text[HAPAX_TEXT_MAX]);

/* Reads what hapax_consumer_run() in another thread writes. */
void hapax_consumer_read(struct hapax_consumer_stats *out,
                         const struct hapax_consumer_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
