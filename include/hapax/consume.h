/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax/consume.h: the message door. It takes messages from a broker and runs a handler once for
 * each logical message, though brokers deliver twice, producers send twice and consumers die
 * half-way. It is in libhapax-consume. `hapax consume` is this door with a handler that is an HTTP
 * service (docs/consume.md).
 *
 * What becomes of a message, by the answer of its operation (hapax.h). "Dead letters" and "parked"
 * are queues or topics of the same broker. A message that waits is in memory, or at a broker that
 * can keep it for the pause.
 *
 *   FRESH and final,     The message is acknowledged, once the outcome is stored.
 *   REPLAY, GONE
 *   FRESH, failed        The message is tried again after a pause that grows from retry_min_ms to
 *                        retry_max_ms, until attempts_max attempts may have run. Then it goes to
 *                        the dead letters. A message that the handler refused goes there at once.
 *                        With on_failed=hold, the default under on_expired=hold, both are unknown,
 *                        and go where `unknown` says.
 *   FRESH, not run       The message is tried again after such a pause, or after the time that the
 *                        handler named, and the attempt is not counted. Where the handler gave no
 *                        status, nobody listens: the message waits. Where a status turned the
 *                        message away several times in a row, the message goes round by the broker,
 *                        if the broker keeps retries (not with Kafka's order). When more than half
 *                        of in_hand_max messages were not run, no other message is taken, until no
 *                        more than a quarter of in_hand_max are left. None is taken either while
 *                        those that wait, and those behind them in their order, fill in_hand_max.
 *   FRESH, unknown       The message waits until the lease is over, and is then tried again. Where
 *                        on_expired or on_failed is hold, its answer is UNKNOWN from then on.
 *   IN_FLIGHT            As `in_flight` says. The message is never acknowledged.
 *   FAILED, MISMATCH,    The message goes to the dead letters.
 *   BAD_KEY, TOO_LARGE,
 *   MISSING_OWNER
 *   UNKNOWN              As `unknown` says. The message is never acknowledged. Where a reconcile
 *                        hook may still tell, the message first waits and is asked for again,
 *                        attempts_max times.
 *   MISSING_KEY          As `no_key` says.
 *   STORE_DOWN, or an    The message waits and is tried again. No other message is taken meanwhile.
 *   outcome not stored   Where a reconcile hook judges failures, a message that was refused, or
 *                        whose last attempt failed, does not wait. It goes to the dead letters.
 *   STORE_DOWN, CORRUPT  The record is damaged: as `unknown` says, with hapax-reason `corrupt`.
 *   STORE_DOWN, SEALED   The keys do not open the outcome. The message waits and is tried again.
 *                        Others are taken meanwhile.
 *   BYPASS               As the handler's class says, and counted in `unprotected`. Only with
 *                        on_store_error=open or no_key=run. An attempt that failed under on_failed
 *                        hold, or whose end is unknown under on_expired hold or reconcile, is as
 *                        UNKNOWN at once: no record and no hook can tell of it.
 *
 * A message leaves the broker in two ways: it is acknowledged, or the broker has confirmed a copy
 * of it among the retries, the parked or the dead letters. So a message is delivered again whatever
 * dies, and its record says what to do. A copy (a "letter") carries its history in these headers:
 *
 *   hapax-attempts  How many of its attempts may have run since it was published or put back.
 *   hapax-base      How many attempts of the record may have run (`spent` of its answer) when the
 *                   count of hapax-attempts began; in dead and parked letters, when the next count
 *                   begins. The record gives up at hapax-base + attempts_max, so handlers that die
 *                   with their process are counted too. Both headers are decimal, 0 to 1000000000.
 *                   Any other value counts as 0.
 *   hapax-id        The id of its record, 64 hex digits, by which `hapax show --id` finds the
 *                   record. A message without a valid key has none.
 *   hapax-reason    failed, refused, mismatch, unknown, corrupt, no_key, bad_key or too_large. Only
 *                   dead and parked letters have this header and the four below.
 *   hapax-error     A line about the reason, without keys or bodies.
 *   hapax-from      The queue or topic that the message came from.
 *   hapax-scope     The scope that the operation was asked for in.
 *   hapax-time      When the letter was made, in µs since 1970.
 *   hapax-position  In all letters, at brokers that have positions: the message's first position.
 *                   With key=position a copy is the same message.
 *   hapax-redrive   The run of `hapax redrive` that put the message back.
 *
 * When the broker refuses a letter, the message stays in hand and the letter is sent again, until
 * the broker takes it. `letters_refused` counts such letters, and the log names them each minute.
 *
 * A message that arrives with hapax-reason was put back, by `hapax redrive` or any other tool. It
 * is no duplicate of the message that failed, and is run attempts_max times more.
 *
 * Of the environment this library reads a login that the URI lacks (HAPAX_AMQP_USER and
 * HAPAX_AMQP_PASSWORD, HAPAX_KAFKA_USER and HAPAX_KAFKA_PASSWORD), for SQS what docs/aws.md names,
 * and what hapax.h names.
 */
#ifndef HAPAX_CONSUME_H
#define HAPAX_CONSUME_H

#include <hapax/hapax.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAPAX_CONCURRENCY_MAX     1024u /* handlers at once */
#define HAPAX_IN_HAND_MAX         65535u /* messages taken and not released */
#define HAPAX_MESSAGE_HEADERS_MAX 256u /* of a message (a copy: 288); with more it is too_large */
#define HAPAX_KEY_SOURCES_MAX     16u

/* ---- messages -------------------------------------------------------------------- */

struct hapax_message_header {
    struct hapax_span name;
    /* Numbers and booleans are written as text. Headers that are tables or arrays are left out. */
    struct hapax_span value;
};

/* A message. It is valid until the handler returns. Kafka tells NULL from empty in a key, a body
 * (NULL: a tombstone) and a header's value: ptr is NULL only where Kafka says NULL. */
struct hapax_message {
    struct hapax_span body;
    struct hapax_span content_type; /* empty: not given */
    struct hapax_span id; /* the producer's: AMQP message-id; empty: none */
    struct hapax_span type; /* AMQP type; empty: none */
    /* What the message is about: Kafka's key, AMQP's routing key. It may be empty. */
    struct hapax_span key;
    struct hapax_span from; /* the queue or topic */
    /* Where the message stands in the broker, the same at each delivery (Kafka:
     * TOPIC/PARTITION/OFFSET). Empty: the broker has no positions. */
    struct hapax_span position;
    const struct hapax_message_header *headers;
    size_t header_count;
    int64_t time_us; /* when it was published, since 1970; 0: not known */
    bool redelivered; /* as far as the broker knows */
};

/* ---- handlers -------------------------------------------------------------------- */

/* One delivery as its handler sees it. Lent to the handler until it returns. */
struct hapax_delivery;

/* Returns the message of a delivery. Borrowed until the handler returns. */
HAPAX_API const struct hapax_message *hapax_delivery_message(const struct hapax_delivery *delivery);

/* Says that trying again will not help. If the handler then returns FAILED, the message goes to the
 * dead letters with hapax-reason `refused`. why: a line for people, without secrets; copied, and
 * cut to HAPAX_TEXT_MAX. NULL reads as "". */
HAPAX_API void hapax_delivery_refuse(struct hapax_delivery *delivery, const char *why);

/* Says that the message should not be tried again before after_ms (above 0) are over. Heeded where
 * the handler then returns NOT_RUN, up to retry_max_ms. */
HAPAX_API void hapax_delivery_retry_after(struct hapax_delivery *delivery, int64_t after_ms);

/* Whether the handler should return soon: the consumer is being stopped, and its drain_ms is over.
 * An outcome that is returned then is still stored. A message that is not done is delivered
 * again. */
HAPAX_API bool hapax_delivery_hurry(const struct hapax_delivery *delivery);

/* A handler, or the reconcile hook. It runs in one of `concurrency` threads; the hook of a message
 * may run in another thread than its handler. `attempt` is as in hapax_execute(): fence, token,
 * steps, outcome. `arg` is that of hapax_consumer_run(). Returns the class of its end. */
typedef enum hapax_class hapax_message_handler(struct hapax_attempt *attempt,
                                               struct hapax_delivery *delivery, void *arg);

/* ---- settings -------------------------------------------------------------------- */

/* What becomes of a message while another attempt of its operation is in flight. */
enum hapax_in_flight {
    /* The message waits. It asks again when the other attempt is done, if that attempt is in this
     * process; otherwise after pauses that grow until the lease may be over. */
    HAPAX_IN_FLIGHT_DELAY = 1,
    /* The message keeps one of `concurrency` for policy.wait_ms, and drain_ms at most. Then it
     * waits as with DELAY. */
    HAPAX_IN_FLIGHT_WAIT,
    /* The message is given back after retry_min_ms at most. Only where there is no order to keep. A
     * queue's delivery limit counts each return. */
    HAPAX_IN_FLIGHT_REQUEUE
};

/* What becomes of a message without a key. */
enum hapax_no_key {
    HAPAX_NO_KEY_DEAD_LETTER = 1,
    /* AMQP only. The message goes to the queue's own dead-letter exchange. A queue that has none
     * drops it. */
    HAPAX_NO_KEY_REJECT,
    HAPAX_NO_KEY_RUN /* the handler runs unprotected, which is counted */
};

/* What becomes of a message whose result is not known. */
enum hapax_unknown {
    HAPAX_UNKNOWN_PARK = 1, /* to `parked` */
    HAPAX_UNKNOWN_DEAD_LETTER /* to `dead_letters` */
};

/* Which messages run one at a time, in the order of the broker, retries included. */
enum hapax_order {
    HAPAX_ORDER_DEFAULT = 0, /* KEY for Kafka and FIFO queues of SQS; otherwise NONE */
    HAPAX_ORDER_KEY, /* those of one Kafka key, or of one group of a FIFO queue */
    HAPAX_ORDER_PARTITION, /* those of one Kafka partition */
    HAPAX_ORDER_NONE /* the only order of AMQP and of other queues of SQS */
};

/* How to consume. hapax_consumer_init() fills in the defaults, which stand behind each field. All
 * texts are borrowed until hapax_consumer_run() returns. */
struct hapax_consumer {
    /* URI of the queue or topic (docs/consume.md). No default. */
    const char *from;
    /* Here attempts_max is 8 and key is `required`; the rest is as in hapax_policy_init().
     * on_failed=replay is refused, since it would acknowledge messages that failed. */
    struct hapax_policy policy;
    const char *scope; /* NULL: the name of the queue, or of the consumer group */
    /* Where the key is. NULL: the usual headers (docs/consume.md). Otherwise sources, parted by
     * commas, at most HAPAX_KEY_SOURCES_MAX: the first source that has a key counts. A source is a
     * header's name, `cloudevents`, `message-id` or a JSON Pointer (several pointers, parted by
     * spaces, are one source). The last source may be `payload` or `position`. */
    const char *key;
    /* Whose key it is: a header's name, or JSON Pointers. Each owner's keys are then its own. A
     * message with a key and without its owner is a dead letter, `bad_key`. NULL: keys have no
     * owner. */
    const char *owner;
    /* What a repeat must have in common. NULL or `body`: the bytes of the body. `json`, with
     * pointers to include, or to exclude after '-': "json -/sent_at". `off`: nothing. */
    const char *fingerprint;
    /* NULL: the message's key is the operation's. Otherwise the message carries the KEY of the
     * operation that an earlier service began, and its own is KEY:step (hapax_key_derive()). */
    const char *step;
    enum hapax_no_key no_key; /* DEAD_LETTER */
    enum hapax_in_flight in_flight; /* DELAY */
    enum hapax_unknown unknown; /* PARK */
    enum hapax_order order; /* DEFAULT */
    int64_t retry_min_ms; /* the first pause before a retry; 1 s */
    int64_t retry_max_ms; /* the longest pause before a retry; 5 min */
    int64_t drain_ms; /* after a stop: how long handlers may go on; 30 s */
    uint32_t concurrency; /* handlers at once, 1 to HAPAX_CONCURRENCY_MAX; 16 */
    /* Messages taken and not released, from `concurrency` to HAPAX_IN_HAND_MAX. 0: four times
     * `concurrency`. */
    uint32_t in_hand_max;
    /* Queue or topic. NULL: NAME.dead (Kafka: TOPIC.GROUP.dead; SQS: NAME-dead). */
    const char *dead_letters;
    /* Queue or topic. NULL: NAME.parked (Kafka: TOPIC.GROUP.parked; SQS: NAME-parked). */
    const char *parked;
    int stop_fd; /* readable: stop; -1: never */
    int hurry_fd; /* readable after stop_fd: drain_ms is over; -1: never */
    /* An eventfd. 1 is written to it when the broker is reached for the first time. -1: none. */
    int ready_fd;
    /* Called with each line of the log, from any of the consumer's threads. NULL: none. */
    void (*log)(void *arg, const char *line);
    void *log_arg;
};

/* Sets every field to its default. Takes no memory and cannot fail. */
HAPAX_API void hapax_consumer_init(struct hapax_consumer *consumer);

/* Checks the settings, without the broker or a store. INVALID, UNSUPPORTED: text names the first
 * setting that is wrong. NOMEM. */
HAPAX_API enum hapax_error hapax_consumer_check(const struct hapax_consumer *consumer,
                                                char text[HAPAX_TEXT_MAX]);

/* ---- running --------------------------------------------------------------------- */

/* Counters and gauges. They may be read while the consumer runs. Each is right by itself; two of
 * them may be of different moments. */
struct hapax_consumer_stats {
    uint64_t taken; /* deliveries */
    uint64_t answers[HAPAX_ANSWER_EXPIRED + 1]; /* by kind of answer */
    uint64_t run; /* handlers that ended */
    uint64_t acknowledged;
    uint64_t retried; /* given a later time, in memory or by way of the broker */
    uint64_t dead_lettered;
    uint64_t parked;
    uint64_t returned; /* given back to the broker */
    /* Deliveries that the broker took back: a lost connection, a rebalance. */
    uint64_t voided;
    uint64_t unprotected; /* ran without a store or a key */
    uint64_t unasked; /* answers without asking a dead store (struct hapax_answer) */
    uint64_t reconnects;
    uint64_t in_hand; /* gauge */
    uint64_t running; /* gauge: handlers */
    /* Gauge, a part of in_hand: the broker refused their letters the last time. */
    uint64_t letters_refused;
    int64_t lag; /* messages that wait at the broker; -1: not known */
    bool connected; /* to the broker */
    bool store_up; /* as of the last answer */
    bool store_dead; /* hapax_store_dead() */
    /* As of the last handler that ended by itself: false where it ended NOT_RUN or UNKNOWN, without
     * a status. */
    bool handler_up;
    bool draining;
    uint64_t handler_us[32]; /* handlers that took less than 2^i µs */
    uint64_t handler_us_sum;
    uint64_t message_us[32]; /* the same for messages, from taken to released */
    uint64_t message_us_sum;
};

/* Takes messages and runs handler(attempt, delivery, arg) once for each operation, until stop_fd is
 * readable. Then it drains and returns NONE. It blocks meanwhile.
 *   h         lent until the function returns; its calls_max is at least in_hand_max
 *   consumer  lent until the function returns
 *   reconcile may be NULL, unless policy.on_expired is reconcile
 *   stats     may be NULL; otherwise written until the function returns, and read by
 *             hapax_consumer_read()
 * A broker or a store that is away is waited for, also at the start.
 * INVALID, UNSUPPORTED: as hapax_consumer_check() says. NOMEM: no memory, threads or random bytes.
 * REFUSED: the queue or topic does not exist, or may not be read; also when it disappears later.
 * text says what the broker said. */
HAPAX_API enum hapax_error
hapax_consumer_run(struct hapax *h, const struct hapax_consumer *consumer,
                   hapax_message_handler *handler, hapax_message_handler *reconcile, void *arg,
                   struct hapax_consumer_stats *stats, char text[HAPAX_TEXT_MAX]);

/* Copies the counters that hapax_consumer_run() writes in another thread. */
HAPAX_API void hapax_consumer_read(struct hapax_consumer_stats *out,
                                   const struct hapax_consumer_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
