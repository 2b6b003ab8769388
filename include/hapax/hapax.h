/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax.h: run each logical request once, and give every repeat the first answer.
 *
 * Hapax keeps one record per operation in a store. A caller CLAIMs the operation, runs its handler,
 * and COMPLETEs it with the outcome. Every later caller of the same key gets that outcome and runs
 * nothing. hapax_execute() does the whole of it.
 *
 *     absent ──CLAIM──► started ──COMPLETE──► completed      every repeat: REPLAY
 *                          │──────FAIL──────► failed         the next caller runs again
 *                          │──lease over────► started        `rerun`: the next caller takes over
 *                          └──lease over────► unknown        `hold`: an operator decides
 *
 * What it promises: while a claim is live no second handler starts; only the holder of the claim's
 * token can finish it; a stored outcome is the answer to every repeat until its retention ends; an
 * outcome is stored before it is given, or the answer says that it is not (`recorded`). Only
 * on_store_error=open, rerun_completed and an operator's force break this, if asked for by name.
 *
 * What it cannot promise: an effect outside the store is not part of the claim (rows in the
 * database of a PostgreSQL store can be: postgres.h). Where a process dies after its effect and
 * before COMPLETE, `rerun` (the default) repeats the effect, `hold` leaves the operation to an
 * operator, and `reconcile` asks a hook whether the effect happened. A handler that runs longer
 * than run_max, or whose process was stopped for longer than the lease, may still run when another
 * takes over. So hand hapax_attempt_fence() to what it writes to, to refuse smaller numbers.
 *
 * Conventions. A span is a pointer and a length; spans passed in are borrowed until the call
 * returns, unless stated otherwise. An out-parameter is yours, a returned pointer is borrowed.
 * Times are int64_t and end in their unit. Failures are of three kinds. A verdict or an answer is
 * normal. An `enum hapax_error` is something the caller can act on; `text`, where there is one,
 * then says what failed and why. A broken rule of this page is a bug and aborts. Functions without
 * a handle are safe from any thread. The library prints nothing, installs no signal handler, and
 * reads no environment but what docs/aws.md names (dynamodb: stores) and what libpq and OpenSSL
 * read. Handles may not be carried over fork(). A child without exec also keeps an embedded store
 * locked if its parent dies, until it ends: fork before hapax_open(), or exec.
 */
#ifndef HAPAX_H
#define HAPAX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The libraries export functions so marked. HAPAX__SHARED: what they use of each other. */
#define HAPAX_API     __attribute__((visibility("default")))
#define HAPAX__SHARED HAPAX_API

#define HAPAX_VERSION "0.1.0"

/* Limits. A value over one is refused with HAPAX_ERR_INVALID or HAPAX_ERR_TOO_BIG; a text, where
 * there is one, names the limit. Nothing is cut, but what an operation is. */
#define HAPAX_KEY_MAX         255u /* bytes of a key */
#define HAPAX_SCOPE_MAX       255u /* bytes of a scope */
#define HAPAX_OWNER_MAX       255u /* bytes of an owner's name */
#define HAPAX_STEP_MAX        64u /* bytes of a step's name */
#define HAPAX_STEPS_MAX       64u /* steps of an operation that `hapax show` finds */
#define HAPAX_HEADERS_MAX     (64u << 10) /* bytes of an outcome's headers */
#define HAPAX_BODY_MAX        (16u << 20) /* bytes of an outcome's body, in any store */
#define HAPAX_TEXT_MAX        256u /* bytes of an error's text, its NUL included */
#define HAPAX_TOKEN_TEXT_MAX  65u /* bytes of an attempt's token as text, its NUL included */
#define HAPAX_TRACE_MAX       56u /* bytes of a W3C traceparent, its NUL included */
#define HAPAX_FOREVER_MS      INT64_MAX /* a retention that never ends */
#define HAPAX_DURATION_MAX_MS (INT64_C(1000) * 86400 * 3650) /* ten years: any other duration */

struct hapax_span {
    const uint8_t *ptr;
    size_t len;
};

/* The bytes of a C string, without its NUL. NULL gives an empty span. */
HAPAX_API struct hapax_span hapax_str(const char *s);

struct hapax_id { /* names an operation in every store */
    uint8_t bytes[32];
};
struct hapax_digest { /* a fingerprint, a caller, or an owner */
    uint8_t bytes[32];
};
struct hapax_token { /* what proves a claim; a secret */
    uint8_t bytes[16];
};

/* ---- errors ---------------------------------------------------------------------- */

enum hapax_error {
    HAPAX_ERR_NONE = 0,
    HAPAX_ERR_INVALID = -1, /* the arguments; the text names which and its limit */
    HAPAX_ERR_NOMEM = -2, /* no memory, thread or descriptor: nothing was done */
    HAPAX_ERR_TOO_BIG = -3, /* the outcome is over what the store can hold */
    HAPAX_ERR_UNAVAILABLE = -4, /* the store was not reached: surely not applied */
    HAPAX_ERR_INDETERMINATE = -5, /* no reply came: may have been applied */
    HAPAX_ERR_CORRUPT = -6, /* the record or the store is damaged; never "absent" */
    HAPAX_ERR_UNSUPPORTED = -7, /* unknown scheme, version, kind of op or name of a policy */
    HAPAX_ERR_REFUSED = -8, /* held by another process, another secret, no permission */
    HAPAX_ERR_SEALED = -9 /* the outcome is sealed, and the keys do not open it; never "absent" */
};

/* The name of an error in lower case ("unavailable"). Static. */
HAPAX_API const char *hapax_error_name(enum hapax_error error);

/* ---- identity -------------------------------------------------------------------- */

/* id = SHA-256 over scope, key and, where step is not empty, step; each preceded by its length as 4
 * bytes, most significant first. With a secret (1 or more bytes): HMAC-SHA-256 over the same.
 * HAPAX_ERR_INVALID, out as it was: scope or key empty or over its limit; step over it, or ':'. */
HAPAX_API enum hapax_error hapax_id(struct hapax_id *out, struct hapax_span scope,
                                    struct hapax_span key, struct hapax_span step,
                                    struct hapax_span secret);

/* digest = SHA-256 over n parts, each preceded by its length as 8 bytes, most significant
 * first: ("ab","c") and ("a","bc") differ. Both fingerprints and callers are made so. */
HAPAX_API void hapax_digest(struct hapax_digest *out, const struct hapax_span *parts, size_t n);

/* Reads one Idempotency-Key header value (draft-ietf-httpapi-idempotency-key-header-07, section
 * 2.1): an RFC 8941 String with or without parameters, or a bare token of A-Z a-z 0-9 _ . : ~
 * + / = -. `"k"` and `k` are the same key; spaces and tabs around it do not count. Writes the
 * key's bytes to out, their number to *len, and NULL to *why. HAPAX_ERR_INVALID: *why says what
 * is wrong, a static text; out and *len are undefined. */
HAPAX_API enum hapax_error hapax_key_parse(uint8_t out[HAPAX_KEY_MAX], size_t *len,
                                           struct hapax_span value, const char **why);

/* The key to hand to the next service for one step of this operation: `KEY:step`; where that would
 * pass HAPAX_KEY_MAX, `sha256-` and the hex SHA-256 of `KEY:step`. HAPAX_ERR_INVALID: key or step
 * empty or over its limit, or ':' in the step; out and *len are as they were. */
HAPAX_API enum hapax_error hapax_key_derive(uint8_t out[HAPAX_KEY_MAX], size_t *len,
                                            struct hapax_span key, struct hapax_span step);

/* ---- outcome --------------------------------------------------------------------- */

/* What a handler gave. `headers` are lines `Name: value\r\n`. `body_kept` false: the operation
 * completed, but its body was over the limit or a stream; a repeat is answered GONE. */
struct hapax_outcome {
    int status; /* 0 to 999; 0 where the door has none */
    bool body_kept;
    struct hapax_span headers;
    struct hapax_span body;
};

/* What a handler's end means for a retry (docs/design.md, "The flow"). */
enum hapax_class {
    HAPAX_CLASS_FINAL = 1, /* done: keep the outcome for every repeat */
    HAPAX_CLASS_NOT_RUN, /* surely nothing happened: a retry runs */
    HAPAX_CLASS_FAILED, /* it failed, perhaps half-way: `on_failed` decides */
    HAPAX_CLASS_UNKNOWN /* nobody can tell: `on_expired` decides */
};

/* ---- policy ---------------------------------------------------------------------- */

enum hapax_on_expired { HAPAX_EXPIRED_RERUN = 1, HAPAX_EXPIRED_HOLD, HAPAX_EXPIRED_RECONCILE };
enum hapax_on_failed { HAPAX_FAILED_RETRY = 1, HAPAX_FAILED_REPLAY, HAPAX_FAILED_HOLD };
enum hapax_on_store_error { HAPAX_STORE_CLOSED = 1, HAPAX_STORE_OPEN };
enum hapax_key_policy { HAPAX_KEY_OPTIONAL = 1, HAPAX_KEY_REQUIRED };

struct hapax_policy {
    int64_t lease_ms; /* how long an attempt may go without renewing; default 30 s */
    int64_t run_max_ms; /* a claim is renewed for this long at most; 1 h */
    int64_t retention_ms; /* how long a record is kept after its last write; 24 h */
    int64_t retention_4xx_ms, retention_failed_ms; /* of such ends; 0: as retention */
    int64_t tombstone_ms; /* after retention a completed key is EXPIRED for so long; 0: it is new */
    int64_t wait_ms; /* how long a repeat waits for one in flight; 0: answer IN_FLIGHT */
    int64_t timeout_ms; /* how long to try the store before a run, or after a lost claim; 2 s */
    int64_t save_wait_ms; /* how long an answer waits for its outcome to be stored; 2 s */
    enum hapax_on_expired on_expired; /* rerun */
    enum hapax_on_failed on_failed; /* 0: retry under rerun, otherwise hold */
    enum hapax_on_store_error on_store_error; /* closed */
    enum hapax_key_policy key; /* optional */
    uint32_t key_min; /* a key of fewer bytes is BAD_KEY, since it can be guessed; 0 */
    bool owner_required; /* a key without an owner is MISSING_OWNER; off */
    bool key_expires; /* a key that says it is older than retention runs nothing: EXPIRED; off */
    uint32_t attempts_max; /* answer FAILED once this many may have run; default 0: no limit */
    size_t max_request; /* bytes of a request's body, at doors that see one; 1m */
    size_t max_response; /* a longer body is given once, and not kept: repeats get GONE; 1m */
    bool rerun_completed; /* exclusion without replay, for reads; off */
    bool pass_token; /* the handler may complete the record itself (hapax_attempt_token()); off */
};

/* Fills in the defaults. */
HAPAX_API void hapax_policy_init(struct hapax_policy *policy);

/* Sets one policy by its name everywhere ("on_expired"; '-' reads as '_') from text: a duration
 * (`500ms`, `30s`, `7d`, `0`; `retention` also `forever`), a size (`64k`), a number, or one of the
 * words (`on`, `off`). `profile` sets several: set it first. `payments`: on_expired=hold,
 * key=required, key_min=16, owner_required=on, retention=7d. HAPAX_ERR_UNSUPPORTED: no such policy.
 * HAPAX_ERR_INVALID: not such a value; text says what is one. Both leave the policy as it was. */
HAPAX_API enum hapax_error hapax_policy_set(struct hapax_policy *policy, const char *name,
                                            const char *value, char text[HAPAX_TEXT_MAX]);

/* Whether the values are within limits (lease 10 ms to 24 h; run_max, retention: a lease at least;
 * timeout 10 ms to 1 h; wait, save_wait: 1 h; sizes: HAPAX_BODY_MAX). INVALID: text names one. */
HAPAX_API enum hapax_error hapax_policy_check(const struct hapax_policy *policy,
                                              char text[HAPAX_TEXT_MAX]);

/* The class of an HTTP response, with headers as in an outcome. Not run: 401 403 408 425 429 503;
 * under hold and reconcile 408 and 503 only with `Retry-After`, otherwise unknown; 409 and 423 with
 * `Retry-After` or `Stripe-Should-Retry: true`. Unknown: 502 504. Failed: 5xx. Final: all else. */
HAPAX_API enum hapax_class hapax_class_of_response(const struct hapax_policy *policy, int status,
                                                   struct hapax_span headers);

/* ---- answers --------------------------------------------------------------------- */

/* "Nothing ran" is said of this call's handler. If it ran and lost the claim (`cls` is not 0 then),
 * REPLAY, GONE, IN_FLIGHT, UNKNOWN and STORE_DOWN say what others made of the operation. */
enum hapax_answer_kind {
    HAPAX_ANSWER_FRESH = 1, /* this call ran the handler; its outcome */
    HAPAX_ANSWER_REPLAY, /* the stored outcome; nothing ran */
    HAPAX_ANSWER_FAILED, /* attempts_max is used up; the last failure, where one was stored */
    HAPAX_ANSWER_MISSING_KEY, /* policy `key` is required and there is none */
    HAPAX_ANSWER_BAD_KEY, /* the key is shorter than policy `key_min`, or malformed; nothing ran */
    HAPAX_ANSWER_IN_FLIGHT, /* another attempt runs; try again after retry_after_ms */
    HAPAX_ANSWER_UNKNOWN, /* an earlier attempt's result is not known; nothing ran */
    HAPAX_ANSWER_MISMATCH, /* the key was used for another request, or by another caller */
    HAPAX_ANSWER_GONE, /* completed, but its body was not kept; status and headers were */
    HAPAX_ANSWER_TOO_LARGE, /* the request is over max_request; not from hapax_execute() */
    HAPAX_ANSWER_STORE_DOWN, /* the store cannot be reached, or it failed; nothing ran */
    HAPAX_ANSWER_BYPASS, /* ran without protection: no key, or `open` and no store */
    HAPAX_ANSWER_MISSING_OWNER, /* nobody can tell whose key it is; nothing ran */
    HAPAX_ANSWER_LIMITED, /* its owner is over a limit; nothing ran; not from hapax_execute() */
    HAPAX_ANSWER_EXPIRED /* no more kept: policies `tombstone`, `key_expires`; nothing ran */
};

/* The name of an answer in lower case ("in_flight"). Static. */
HAPAX_API const char *hapax_answer_name(enum hapax_answer_kind kind);
enum hapax_differs { HAPAX_DIFFERS_NOT = 0, HAPAX_DIFFERS_FINGERPRINT, HAPAX_DIFFERS_CALLER };

struct hapax_answer {
    enum hapax_answer_kind kind;
    enum hapax_class cls; /* how this call's handler ended; 0: it did not run */
    enum hapax_differs differs; /* MISMATCH: in what */
    enum hapax_error error; /* STORE_DOWN, BYPASS under `open`, not recorded: why, if known */
    bool recorded; /* FRESH, REPLAY: the outcome is stored. EXPIRED: it was, so it is done */
    bool unprotected; /* BYPASS under on_store_error=open */
    bool unasked; /* STORE_DOWN, BYPASS: the store is dead, so this call did not wait for it */
    uint32_t key_min; /* BAD_KEY: the key has fewer bytes than this; 0: it is malformed */
    uint32_t attempt; /* of the record, where one was seen; else 0 */
    uint32_t spent; /* FRESH, FAILED, UNKNOWN: attempts that ended and may have run, this one too */
    uint64_t fence; /* FRESH, REPLAY, FAILED, GONE: of that attempt */
    int64_t retry_after_ms; /* IN_FLIGHT, STORE_DOWN, UNKNOWN, LIMITED, where time helps; else -1 */
    int64_t silent_ms; /* IN_FLIGHT: how long ago the attempt's claim was renewed; -1: not known */
    int64_t age_ms; /* REPLAY, FAILED, GONE: how long ago it was stored, as far as is known */
    int64_t kept_ms; /* the same, and FRESH: how much longer it is replayed; 0: for ever, or not */
    char trace[HAPAX_TRACE_MAX]; /* the traceparent of the run that gave the outcome; "": none */
    struct hapax_outcome outcome; /* FRESH, REPLAY, FAILED, GONE, BYPASS; until released */
    void *memory; /* what outcome points into; see hapax_answer_release() */
};

/* Frees what an answer owns and zeroes it. A zeroed answer is fine. */
HAPAX_API void hapax_answer_release(struct hapax_answer *answer);

/* ---- the C door ------------------------------------------------------------------ */
struct hapax; /* a store, the threads that talk to it, and the operations in hand */

struct hapax_options {
    struct hapax_span secret; /* ids and digests are hashed with it (HMAC); copied; empty: none */
    struct hapax_span keys; /* text of a keys file (docs/encryption.md), to seal outcomes; copied */
    struct hapax_span secret_old; /* NULL, or the one before (docs/rotation.md); copied */
    uint32_t calls_max; /* calls in hand, those that still save included: 1 to 1048576; 0: 4096 */
};

/* Opens a store by URI (docs/stores.md) and starts two or three threads for it; the store may start
 * some of its own. `options` may be NULL. *out is yours until hapax_close(); on failure it is NULL
 * and text says why: INVALID (URI, keys, calls_max), UNSUPPORTED (scheme, version), CORRUPT, NOMEM,
 * UNAVAILABLE or REFUSED (permission, silent holder, another secret). Safe from any thread. */
HAPAX_API enum hapax_error hapax_open(struct hapax **out, const char *uri,
                                      const struct hapax_options *options,
                                      char text[HAPAX_TEXT_MAX]);

/* Waits for the calls in hand, however long their handlers take; then for outcomes still being
 * saved, for save_wait_ms (0 or more) and the ops under way; and releases the handle. No call may
 * begin meanwhile. Returns how many outcomes were not saved: their leases run out. NULL is fine. */
HAPAX_API uint32_t hapax_close(struct hapax *h, int64_t save_wait_ms);

/* Whether the store did not answer lately: calls no longer wait for it, but for one each half
 * second, and their answers are `unasked`. Safe from any thread. */
HAPAX_API bool hapax_store_dead(const struct hapax *h);

struct hapax_request {
    struct hapax_span scope; /* empty: "default" */
    struct hapax_span key; /* empty: none, and policy `key` decides */
    struct hapax_span step; /* of the key; empty: the operation itself; does not begin with '.' */
    struct hapax_digest fingerprint; /* hapax_digest() over what makes the request this request */
    struct hapax_digest caller; /* hapax_digest() over who asks */
    struct hapax_span owner; /* whose key it is: each owner's keys are its own; empty: nobody's */
    struct hapax_span what; /* the operation, for operators; cut at HAPAX_WHAT_MAX (store.h) */
    struct hapax_span trace; /* traceparent: kept with the outcome; none, or no such: none is */
};

struct hapax_attempt; /* one run of a handler; valid until the handler returns */

HAPAX_API uint32_t hapax_attempt_number(const struct hapax_attempt *attempt); /* counted from 1 */
HAPAX_API uint64_t hapax_attempt_fence(const struct hapax_attempt *attempt); /* 0: unprotected */
/* An earlier attempt died and may have had its effect. */
HAPAX_API bool hapax_attempt_stale(const struct hapax_attempt *attempt);
/* The claim is lost: another attempt may be running. Poll it between effects and stop. */
HAPAX_API bool hapax_attempt_lost(const struct hapax_attempt *attempt);

/* The key to hand to the next service as its idempotency key: the operation's own; in a step, what
 * hapax_key_derive() makes of both. Empty: the request had none. Borrowed until the return. */
HAPAX_API struct hapax_span hapax_attempt_key(const struct hapax_attempt *attempt);

/* With policy pass_token: the token as text (what the HTTP door sends as Idempotency-Token). By it
 * the receiver completes the record itself, in a transaction of its own: `SELECT
 * hapax.complete(token, …)` (docs/postgres.md). That outcome is then the operation's, whatever the
 * handler returns. A secret: not for logs. False, and "": pass_token is off, or no claim. */
HAPAX_API bool hapax_attempt_token(const struct hapax_attempt *attempt,
                                   char out[HAPAX_TOKEN_TEXT_MAX]);

/* Sets the outcome, and copies headers and body; the last call counts. A handler that sets none
 * gives an empty one of status 0. HAPAX_ERR_NOMEM, or HAPAX_ERR_INVALID (status not 0 to 999,
 * headers or body over a limit, headers that are no lines `Name: value\r\n`): it is as before. */
HAPAX_API enum hapax_error hapax_attempt_outcome(struct hapax_attempt *attempt, int status,
                                                 struct hapax_span headers, struct hapax_span body);

/* Runs in the thread of hapax_execute(), which it may call for others. Returns how it ended. */
typedef enum hapax_class hapax_handler(struct hapax_attempt *attempt, void *arg);

/* With policy on_expired=reconcile: asked before a stale operation runs again, in the same thread.
 * FINAL: the effect happened, and the outcome set is its outcome (the answer is REPLAY). NOT_RUN:
 * it did not happen, so the handler runs. Anything else: the hook cannot tell (UNKNOWN). */
typedef hapax_handler hapax_reconciler;

/* Runs handler(attempt, arg) at most once per claim and gives the operation's answer. Blocks: for
 * the handler, for `wait_ms` where another caller runs the operation, and for the store (timeout_ms
 * before, save_wait_ms after). Renews the lease meanwhile. Callers of one handle who ask the same
 * (id, fingerprint, caller, policy of the claim) share one claim: one of them runs. Of the others,
 * those that wait get its outcome as REPLAY, or run in turn where it failed.
 *   reconcile  may be NULL unless on_expired is reconcile
 *   answer     yours on success, to be released; zeroed on failure
 * HAPAX_ERR_INVALID: a limit or the policy, text names it; nothing ran. NOMEM: calls_max is
 * reached, or there is no memory. Then nothing ran; or text says that the outcome is stored but
 * cannot be handed over: ask again. No other errors. With an answer whose error is set, text has
 * the store's last words. Safe from any number of threads. */
HAPAX_API enum hapax_error hapax_execute(struct hapax *h, const struct hapax_policy *policy,
                                         const struct hapax_request *request,
                                         hapax_handler *handler, hapax_reconciler *reconcile,
                                         void *arg, struct hapax_answer *answer,
                                         char text[HAPAX_TEXT_MAX]);

/* ---- steps ----------------------------------------------------------------------- */

/* Within a handler: runs fn(attempt of the step, arg) at most once for this operation and `name`,
 * and gives its answer. A later attempt of the operation gets the stored outcome, and nothing runs.
 * So a handler that charges, then reserves, then mails, and dies or fails half-way, continues from
 * there when it runs again (docs/steps.md).
 *
 *     if (hapax_step(attempt, "charge", charge, order, &answer, text) != HAPAX_ERR_NONE ||
 *         answer.outcome.status != 201)
 *         return HAPAX_CLASS_FAILED;
 *
 * A step is hapax_execute() for the id of scope, key and step, with the operation's fingerprint,
 * caller and policy. It has its own number, fence, stale, lost, token and outcome;
 * hapax_attempt_key() gives it `KEY:name` for the next service. The policy differs in two points. A
 * step waits for a lease at least, though no longer than an hour, so that an attempt that died in
 * this step is followed at once. And on_expired=reconcile is `hold`, since the hook knows of the
 * operation, not of its parts. Let the retention be longer than the time in which an operation is
 * tried again: after that its steps may be forgotten, and an absent one is not run.
 *
 * What the answer's kind means for the handler:
 *   FRESH, cls FINAL    done now, and stored before this returned, unless `recorded` is false
 *   FRESH, other cls    fn failed; on_failed says what the next attempt finds
 *   REPLAY              done by an earlier attempt, or by another thread of this one
 *   GONE                done; its body was over max_response, and was not kept
 *   BYPASS              ran unprotected: no key, or on_store_error=open and no store. A handler
 *                       that runs so still asks the store for each of its steps
 *   all the others      not run by this call.
 *     IN_FLIGHT         another attempt of the operation is in this step, though its claim was
 *                       lost; or hapax_attempt_lost() holds for this one (retry_after_ms -1 then)
 *     UNKNOWN           an operator decides (`hapax resolve --step`); also where the operation was
 *                       first claimed over a retention ago: the step's outcome may be forgotten
 *     MISMATCH          the step was run for another request of this key
 *     FAILED, STORE_DOWN    as for hapax_execute()
 * A handler that cannot go on returns FAILED: NOT_RUN would say that no step had an effect.
 *
 * Names: 1 to HAPAX_STEP_MAX bytes without ':', not beginning with '.', and the same in every run.
 * A step has no steps of its own. Several threads may run steps of one attempt at once, until the
 * handler returns. Each step counts against calls_max. Each takes one more call to put its name
 * into the list that `hapax show` prints steps from; the HAPAX_STEPS_MAX + 1st and later ones are
 * not listed.
 *
 * In a handler of hapax_pg_execute() the step's record is written in the same transaction, on the
 * same connection: after a rollback the step was never done. That suits steps that are rows. A step
 * with an effect elsewhere needs a record that outlives a rollback: run it within hapax_execute().
 *
 * HAPAX_ERR_INVALID: the name, or a step of a step. Other errors, `answer` and `text` as
 * hapax_execute() or hapax_pg_execute(). Where no answer is given, only fn itself knows whether it
 * ran, and the next attempt of the operation gets the answer. */
HAPAX_API enum hapax_error hapax_step(struct hapax_attempt *attempt, const char *name,
                                      hapax_handler *fn, void *arg, struct hapax_answer *answer,
                                      char text[HAPAX_TEXT_MAX]);

/* Adds the store `rocksdb:`. Without it such a URI is UNSUPPORTED; a store that another process has
 * open is then reached by unix:PATH/keeper.sock. In libhapax-rocksdb; call it once, at start. */
HAPAX_API void hapax_rocksdb_use(void);

#ifdef __cplusplus
}
#endif
#endif
