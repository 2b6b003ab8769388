/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax/lambda.h: the Lambda door. Each logical event of a Lambda function runs its handler once, though
 * clients, queues and Lambda itself send it again. In libhapax-lambda; docs/lambda.md says what becomes of each kind
 * of event.
 *
 * `hapax lambda -- COMMAND` is for functions in any language: it stands between their runtime and the Lambda Runtime
 * API. hapax_lambda_run() is for functions in C: it is the runtime.
 *
 *     static enum hapax_class handle(struct hapax_attempt *attempt, const struct hapax_lambda_event *event, void *arg)
 *     {
 *         …
 *         hapax_attempt_outcome(attempt, 201, hapax_str("Content-Type: text/plain\r\n"), hapax_str("done"));
 *         return HAPAX_CLASS_FINAL;
 *     }
 *
 *     hapax_lambda_init(&lambda);
 *     lambda.runtime_api = getenv("AWS_LAMBDA_RUNTIME_API");
 *     hapax_lambda_run(h, &lambda, handle, NULL, text);
 */
#ifndef HAPAX_LAMBDA_H
#define HAPAX_LAMBDA_H

#include <hapax/hapax.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAPAX_LAMBDA_CONCURRENCY_MAX 256u
#define HAPAX_LAMBDA_RECORDS_MAX     10000u /* of a batch; more are handed back to their source */

enum hapax_lambda_kind {
    HAPAX_LAMBDA_PLAIN = 1, /* whatever is none of the others */
    HAPAX_LAMBDA_REST, /* API Gateway, REST API (payload 1.0) */
    HAPAX_LAMBDA_HTTP, /* API Gateway, HTTP API (payload 2.0); function URLs */
    HAPAX_LAMBDA_ALB, /* Application Load Balancer */
    HAPAX_LAMBDA_SQS, /* the batches: each record is an operation */
    HAPAX_LAMBDA_KINESIS,
    HAPAX_LAMBDA_DYNAMODB,
    HAPAX_LAMBDA_SNS,
    HAPAX_LAMBDA_EVENTBRIDGE,
    HAPAX_LAMBDA_CLOUDEVENT /* in JSON */
};

/* The name of a kind in lower case ("sqs"). Static. */
const char *hapax_lambda_kind_name(enum hapax_lambda_kind kind);

/* Valid until the handler returns. */
struct hapax_lambda_event {
    enum hapax_lambda_kind kind;
    struct hapax_span json; /* the event; of a batch, one record */
    struct hapax_span request_id;
    struct hapax_span function_arn;
    struct hapax_span trace_id;
    int64_t deadline_ms; /* since 1970; 0: not said */
};

/* Runs once for each event, and for each record of a batch. The outcome it sets is the response: of HTTP events its
 * status, header lines and body, which need not be JSON; of others the body, which has to be JSON (empty: null), and of a
 * record nothing. Returned:
 *   FINAL    done. It is stored, then sent
 *   NOT_RUN, FAILED, UNKNOWN  an HTTP event with a status is answered with it all the same; without one, and all others:
 *            an error of the invocation, whose text is the body where that is text; a record is handed back */
typedef enum hapax_class hapax_lambda_handler(struct hapax_attempt *attempt,
                                              const struct hapax_lambda_event *event, void *arg);

/* How to protect. hapax_lambda_init() fills in the defaults; texts are borrowed until hapax_lambda_run() returns. */
struct hapax_lambda {
    /* max_request and max_response are 6m, the rest as ever. on_expired=reconcile is refused: there is no hook. */
    struct hapax_policy policy;

    /* policy.lease_ms counts, and is renewed while the function runs. Else a lease lasts until the invocation's deadline, after
     * which the function is dead, and a second more. */
    bool lease_set;

    const char *runtime_api; /* HOST:PORT, of AWS_LAMBDA_RUNTIME_API */
    const char *scope; /* NULL: default; `hapax lambda` has the function's name */

    /* Sources, parted by commas; the first that has one counts: names of headers (HTTP events) and attributes (SQS, SNS), JSON
     * Pointers (several parted by spaces are one source), `event-id`, `request-id`, and last `payload`.
     * NULL: "Idempotency-Key,event-id" */
    const char *key;

    /* Words parted by spaces: method, uri (HTTP events), then body, or json, with pointers to include or, after '-', to exclude; or
     * `off`. NULL: "method uri body" */
    const char *fingerprint;

    /* The event carries the KEY of the operation that an earlier service began, and its own is KEY:step (hapax_key_derive()).
     * NULL: the operation itself */
    const char *step;

    /* Records that are not done are named in batchItemFailures, for which the event source has to be set up. Off: they make the whole
     * invocation an error. */
    bool batch_report;

    uint32_t concurrency; /* invocations at once: AWS_LAMBDA_MAX_CONCURRENCY; 1 */
    int stop_fd; /* readable: hapax_lambda_run() returns once no handler runs; -1: never */

    /* Takes a line, without its end, and without keys or bodies; borrowed. Called from any of its threads. NULL: none */
    void (*log)(void *arg, const char *line);
    void *log_arg;
};

void hapax_lambda_init(struct hapax_lambda *lambda);

/* INVALID: text names the first setting that cannot be. */
enum hapax_error hapax_lambda_check(const struct hapax_lambda *lambda, char text[HAPAX_TEXT_MAX]);

/* Counters, to be read while it runs; each by itself. */
struct hapax_lambda_stats {
    uint64_t invocations;
    uint64_t answers[HAPAX_ANSWER_BYPASS + 1]; /* by kind; each record of a batch counts */
    uint64_t run; /* events handed on */
    uint64_t short_cut; /* invocations answered without the function */
    uint64_t not_recorded; /* outcomes that were given and not stored */
};

/* Takes events and runs handler(attempt, event, arg) for each operation once, in `concurrency` threads, of which
 * this one is the first. Returns when stop_fd is readable (NONE), or when the Runtime API is gone for good (UNAVAILABLE).
 *   h      lent until it returns; calls_max at least HAPAX_LAMBDA_RECORDS_MAX for batches of any size
 *   stats  may be NULL
 * INVALID: as hapax_lambda_check(). NOMEM. Text says what failed. Of FIFO queues and streams, what follows a
 * record that failed is not run in this invocation. */
enum hapax_error hapax_lambda_run(struct hapax *h, const struct hapax_lambda *lambda,
                                  hapax_lambda_handler *handler, void *arg,
                                  struct hapax_lambda_stats *stats, char text[HAPAX_TEXT_MAX]);

#ifdef __cplusplus
}
#endif
#endif
