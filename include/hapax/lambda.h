/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax/lambda.h: the Lambda door. Each logical event of a Lambda function runs its handler once,
 * even if a client, a queue or Lambda itself sends the event again. The door is in
 * libhapax-lambda. docs/lambda.md says how each kind of event is treated.
 *
 * `hapax lambda -- COMMAND` is for functions in any language: it stands between their runtime and
 * the Lambda Runtime API. hapax_lambda_run() is for functions in C: it is the runtime.
 *
 *     static enum hapax_class handle(struct hapax_attempt *attempt,
 *                                    const struct hapax_lambda_event *event, void *arg)
 *     {
 *         …
 *         hapax_attempt_outcome(attempt, 201, hapax_str("Content-Type: text/plain\r\n"),
 *                               hapax_str("done"));
 *         return HAPAX_CLASS_FINAL;
 *     }
 *
 *     hapax_lambda_init(&lambda);
 *     lambda.runtime_api = getenv("AWS_LAMBDA_RUNTIME_API");
 *     hapax_lambda_run(h, &lambda, handle, NULL, NULL, text);
 */
#ifndef HAPAX_LAMBDA_H
#define HAPAX_LAMBDA_H

#include <hapax/hapax.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAPAX_LAMBDA_CONCURRENCY_MAX 256u
/* Records of a batch; more are handed back to their source. */
#define HAPAX_LAMBDA_RECORDS_MAX 10000u

enum hapax_lambda_kind {
    HAPAX_LAMBDA_PLAIN = 1, /* none of the others */
    HAPAX_LAMBDA_REST, /* API Gateway, REST API (payload 1.0) */
    HAPAX_LAMBDA_HTTP, /* API Gateway, HTTP API (payload 2.0); function URLs */
    HAPAX_LAMBDA_ALB, /* Application Load Balancer */
    HAPAX_LAMBDA_SQS, /* a batch, as the next two: each record is an operation */
    HAPAX_LAMBDA_KINESIS,
    HAPAX_LAMBDA_DYNAMODB,
    HAPAX_LAMBDA_SNS,
    HAPAX_LAMBDA_EVENTBRIDGE,
    HAPAX_LAMBDA_CLOUDEVENT /* in JSON */
};

/* The name of a kind in lower case ("sqs"). Static. */
HAPAX_API const char *hapax_lambda_kind_name(enum hapax_lambda_kind kind);

/* Valid until the handler returns. */
struct hapax_lambda_event {
    enum hapax_lambda_kind kind;
    struct hapax_span json; /* the event; of a batch, one record */
    struct hapax_span request_id;
    struct hapax_span function_arn;
    struct hapax_span trace_id;
    int64_t deadline_ms; /* since 1970; 0: unknown */
};

/* Runs once for each event, and for each record of a batch. The outcome that the handler sets is
 * the response. Of an HTTP event: status, header lines and body, which need not be JSON. Of a
 * record: nothing. Of any other event: the body, which must be JSON (empty: null). The handler
 * returns:
 *   FINAL    done; the outcome is stored, then sent
 *   NOT_RUN, FAILED, UNKNOWN
 *            an HTTP event that has a status is answered with that outcome all the same; a record
 *            is handed back; anything else is an error of the invocation. The body is the text of
 *            that error, if the body is text */
typedef enum hapax_class hapax_lambda_handler(struct hapax_attempt *attempt,
                                              const struct hapax_lambda_event *event, void *arg);

/* The settings. hapax_lambda_init() fills in the defaults. Texts are borrowed until
 * hapax_lambda_run() returns. */
struct hapax_lambda {
    /* The defaults are those of hapax_policy_init(), but max_request and max_response are 6m.
     * on_expired=reconcile is refused: this door has no hook. */
    struct hapax_policy policy;

    /* True: the lease is policy.lease_ms, and is renewed while the function runs. False: the lease
     * ends a second after the invocation's deadline, when the function is dead. On Lambda Managed
     * Instances it is not: the code runs on (AWS, "Understanding the Lambda Managed Instances
     * execution environment"). So there it must be true. */
    bool lease_set;

    const char *runtime_api; /* HOST:PORT, of AWS_LAMBDA_RUNTIME_API */

    /* NULL: "default". `hapax lambda` takes the function's name. */
    const char *scope;

    /* Sources of the key, parted by commas. The first that an event has counts. A source is one of:
     *   NAME           a header (HTTP events) or an attribute (SQS, SNS)
     *   /POINTER …     JSON Pointers, parted by spaces; several make one key together
     *   event-id       the id that the sender gave the event
     *   request-id     the invocation's id
     *   payload        the digest of the body; only as the last source
     * NULL: "Idempotency-Key,event-id" */
    const char *key;

    /* What counts for the fingerprint, as words parted by spaces: method and uri (of HTTP events),
     * then body or json. JSON Pointers choose parts of the JSON; after '-' they leave parts out.
     * Or the one word `off`. NULL: "method uri body" */
    const char *fingerprint;

    /* The event carries the KEY of an operation that an earlier service began; the key here is
     * KEY:step (hapax_key_derive()). NULL: the event's key is the operation's. */
    const char *step;

    /* Whose key it is: JSON Pointers into the event, or into the record of a batch, as in `key`.
     * Each owner's keys are then its own. Where they find nothing, an event with a key is refused:
     * MISSING_OWNER. NULL: keys have no owner. */
    const char *owner;

    /* Who asks: JSON Pointers, which must find something, as for `owner`; or "none": all events
     * are one caller's. NULL: "none" where `owner` is set, and otherwise all credentials that an
     * HTTP event carries; other events have none. */
    const char *caller;

    /* True: records that are not done are named in batchItemFailures. The event source has to be
     * set up for that. False: they make the whole invocation an error. */
    bool batch_report;

    uint32_t concurrency; /* invocations at once: AWS_LAMBDA_MAX_CONCURRENCY; 1 */

    /* When it is readable, hapax_lambda_run() returns once no handler runs. -1: never. */
    int stop_fd;

    /* Takes a line without its end. The line is borrowed, and holds no keys and no bodies. Called
     * from any thread of hapax_lambda_run(). NULL: none. */
    void (*log)(void *arg, const char *line);
    void *log_arg;

    /* The namespace of metrics in CloudWatch. After an invocation in which something was counted,
     * and before the next event is asked for, emf_line takes a line of CloudWatch's embedded metric
     * format, which is to go to stdout with a newline and nothing else. It is called as `log` is.
     * NULL: none. */
    const char *emf;
    const char *emf_function; /* the value of their dimension FunctionName; NULL: no dimension */
    void (*emf_line)(void *arg, const char *line);
};

HAPAX_API void hapax_lambda_init(struct hapax_lambda *lambda);

/* INVALID: text names the first setting that is wrong. */
HAPAX_API enum hapax_error hapax_lambda_check(const struct hapax_lambda *lambda,
                                              char text[HAPAX_TEXT_MAX]);

/* Counters. They can be read at any time, each by itself. */
struct hapax_lambda_stats {
    uint64_t invocations;
    uint64_t answers[HAPAX_ANSWER_EXPIRED + 1]; /* by kind; each record of a batch counts */
    uint64_t run; /* events handed on */
    uint64_t short_cut; /* invocations answered without the function */
    uint64_t not_recorded; /* outcomes that were given and not stored */
    uint64_t unasked; /* answers without asking a dead store (struct hapax_answer) */
};

/* Takes events and runs handler(attempt, event, arg) once for each operation, in `concurrency`
 * threads; the caller's thread is the first. Of a FIFO queue or a stream, the records behind one
 * that failed do not run in this invocation.
 *   h      borrowed until this returns; calls_max must be at least HAPAX_LAMBDA_RECORDS_MAX for
 *          batches of any size
 *   stats  may be NULL
 * NONE: stop_fd is readable. UNAVAILABLE: the Runtime API is gone for good. INVALID: as
 * hapax_lambda_check(). NOMEM. text says what failed. */
HAPAX_API enum hapax_error hapax_lambda_run(struct hapax *h, const struct hapax_lambda *lambda,
                                            hapax_lambda_handler *handler, void *arg,
                                            struct hapax_lambda_stats *stats,
                                            char text[HAPAX_TEXT_MAX]);

#ifdef __cplusplus
}
#endif
#endif
