/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h: what a store is, for those who write one or speak to one without a door.
 *
 * A store keeps one record per id and answers ops about it, each exactly as the machine
 * does (docs/design.md, "The machine"); the memory store calls the machine directly and
 * every other store is compared with it. This header may change between minor versions.
 */
#ifndef HAPAX_STORE_H
#define HAPAX_STORE_H

#include <hapax/hapax.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAPAX_BATCH_MAX 1024u /* ops in one call of a store's own `run` */
#define HAPAX_LIST_MAX  1000u /* records one LIST gives, and one PURGE changes */

/* ---- records --------------------------------------------------------------------- */

enum hapax_state {
    HAPAX_STATE_ABSENT = 0, /* also: expired */
    HAPAX_STATE_STARTED,
    HAPAX_STATE_COMPLETED,
    HAPAX_STATE_FAILED,
    HAPAX_STATE_UNKNOWN
};

/* "started", …. Static. */
const char *hapax_state_name(enum hapax_state state);

/* Times are µs since 1970 by the store's clock. */
struct hapax_record {
    struct hapax_id id;
    enum hapax_state state;
    bool hold; /* an expired claim becomes `unknown`: some granted CLAIM asked for it */
    bool stale; /* an attempt died with its fate unknown */
    bool ran; /* the last failed attempt may have run */
    bool reruns; /* every granted CLAIM said rerun_completed */
    uint32_t attempt; /* of the last claim, counted from 1 */
    uint32_t spent; /* attempts that failed or died and may have run; attempts_max limits it */
    uint64_t fence;
    struct hapax_token token; /* zeroed in what a store answers */
    struct hapax_digest fingerprint;
    struct hapax_digest caller;
    struct hapax_span scope;
    int64_t created_us;
    int64_t updated_us;
    int64_t lease_until_us; /* 0 unless started */
    int64_t expires_us; /* 0: never */
    int64_t retention_ms;
    struct hapax_outcome outcome;
    int64_t resolved_us; /* 0: never resolved by an operator */
    struct hapax_span resolved_by; /* at most HAPAX_BY_MAX bytes */
};

/* ---- ops ------------------------------------------------------------------------- */

enum hapax_op_kind {
    HAPAX_OP_CLAIM = 1, /* id token scope fingerprint caller lease_ms retention_ms on_expired
                           attempts_max rerun_completed */
    HAPAX_OP_RENEW, /* id token lease_ms reconciled if_attempt */
    HAPAX_OP_COMPLETE, /* id token outcome */
    HAPAX_OP_FAIL, /* id token outcome ran as_unknown */
    HAPAX_OP_READ, /* id */
    HAPAX_OP_LIST, /* states scope older_ms limit cursor */
    HAPAX_OP_PURGE, /* limit cursor */
    HAPAX_OP_RESOLVE /* id token outcome resolve if_attempt force by */
};

enum hapax_verdict {
    HAPAX_NO_VERDICT = 0, /* see error */
    HAPAX_CLAIMED, /* CLAIM: the token holds it; record.attempt, .spent, .fence, .stale,
                      .lease_until_us, .created_us, .resolved_us */
    HAPAX_IN_FLIGHT, /* CLAIM, RESOLVE: a live lease; record.attempt, .lease_until_us */
    HAPAX_COMPLETED, /* CLAIM, RESOLVE: record.outcome */
    HAPAX_FAILED, /* CLAIM: attempts_max is used up; record.spent, .outcome, the last failure */
    HAPAX_UNKNOWN, /* CLAIM: an attempt's fate is not known; record.spent */
    HAPAX_MISMATCH, /* CLAIM: differs says in what */
    HAPAX_OK, /* done; COMPLETE: record.outcome is what is stored; RENEW: what CLAIMED shows; PURGE:
                   purged, settled, more, cursor */
    HAPAX_LOST, /* the token holds nothing: record.state (absent included), .attempt, .fingerprint,
                   .caller and, if completed, .outcome. RENEW, RESOLVE: if_attempt does not fit */
    HAPAX_FOUND, /* READ: record. LIST: records, count, more, cursor */
    HAPAX_ABSENT /* READ, RESOLVE: no such record */
};

/* The name of a verdict in lower case ("in_flight"); "none". Static. */
const char *hapax_verdict_name(enum hapax_verdict verdict);

enum hapax_resolve { HAPAX_RESOLVE_COMPLETE = 1, HAPAX_RESOLVE_FAIL, HAPAX_RESOLVE_FORGET };

#define HAPAX_STATES_ALL  0x1eu /* of `states`: bit 1 << enum hapax_state */
#define HAPAX_STATES_OPEN 0x1au /* all but completed */

struct hapax_op {
    enum hapax_op_kind kind;

    /* asked; spans are borrowed until the call returns */
    struct hapax_id id;
    struct hapax_token
        token; /* one request's alone: its fingerprint and caller go with it. RESOLVE: a
                                 new one, which becomes the record's */
    struct hapax_span scope; /* LIST: only this scope; empty: all */
    struct hapax_digest fingerprint;
    struct hapax_digest caller;
    int64_t lease_ms;
    int64_t retention_ms;
    enum hapax_on_expired on_expired;
    uint32_t attempts_max;
    bool rerun_completed;
    bool reconciled; /* RENEW: the hook said "it did not happen": clears stale */
    bool ran; /* FAIL: the attempt may have run */
    bool as_unknown; /* FAIL: to `unknown`, not `failed` */
    bool force; /* RESOLVE: even on a live lease or a completed record; FORGET: or a damaged one */
    enum hapax_resolve resolve;
    uint32_t if_attempt; /* RENEW, RESOLVE: only if the record's attempt is this; 0: any */
    struct hapax_span by; /* RESOLVE: who, for the record */
    struct hapax_outcome outcome;
    uint32_t states; /* LIST: bits; 0: all */
    int64_t older_ms; /* LIST: last written at least this long ago */
    uint32_t limit; /* LIST, PURGE: at most HAPAX_LIST_MAX; 0: that. An answer may have fewer, even
                       none, and `more` */
    struct hapax_id cursor; /* LIST, PURGE: zeroed: at the start. Answered: where to go on, when
                               `more`. An id in stores that list in the order of ids, which then begin
                               after it; opaque in stores that hash (redis): their LIST comes in no
                               order, and may show a record twice, but misses none that stays */

    /* answered; what spans point to is the store's and valid until its next call, or is what the
     * op itself lent (the scope of a CLAIM, the outcome of a COMPLETE) */
    enum hapax_verdict verdict;
    enum hapax_error error; /* NONE exactly when there is a verdict */
    enum hapax_differs differs;
    struct hapax_record record;
    int64_t now_us; /* the store's clock when it judged; 0 where it did not */
    struct hapax_record *records; /* LIST: without outcomes' headers and bodies */
    uint32_t count;
    uint32_t purged; /* PURGE: expired records removed; with settled, at most limit */
    uint32_t
        settled; /* PURGE: claims under hold whose lease is over, and which are `unknown` now */
    bool more;
};

/* ---- calls ----------------------------------------------------------------------- */

struct hapax_store;

/* Opens the store a URI names. One thread at a time may use the handle. Errors as hapax_open(),
 * except that no secret is looked at. */
enum hapax_error hapax_store_open(struct hapax_store **out, const char *uri,
                                  char text[HAPAX_TEXT_MAX]);

/* Runs n ops (any n), in order per id; ops on different ids have no order. Blocks. Each op
 * gets its own verdict or its own error: one that is refused does not touch the rest. Ops whose
 * fate is not known get INDETERMINATE: repeat them with the same token, until a verdict comes
 * back. An error that answers a repeat, UNAVAILABLE too, says nothing of the first try. A RESOLVE
 * that forgets leaves no token behind: READ instead of repeating it.
 * Returns NONE when every op has a verdict, else the first error among them. */
enum hapax_error hapax_store_run(struct hapax_store *store, struct hapax_op *ops, size_t n);

/* Looks whether the store can be reached and is set up safely; UNAVAILABLE or CORRUPT, among
 * others, if not. Calls say(arg, danger, line) for each piece of advice, which is borrowed for that
 * call; danger: acknowledged outcomes can be lost as it is set now, which is no error. */
typedef void hapax_say(void *arg, bool danger, const char *line);
enum hapax_error hapax_store_check(struct hapax_store *store, hapax_say *say, void *arg);

/* What failed in the last call on this handle (the last of several), "" if nothing did. Valid
 * until its next call. */
const char *hapax_store_text(const struct hapax_store *store);

/* Makes the check value of a secret the store's, or compares it: a store is for one
 * secret, and a store first used without one for none. An ordinary completed record under a
 * fixed id holds it (scope "hapax"). REFUSED: the store was first used with another. Else
 * errors as hapax_store_run(); it may be called again. */
enum hapax_error hapax_store_bind(struct hapax_store *store, struct hapax_span secret);

/* Makes what the store needs before its first use (tables, functions), or brings it to what this
 * version needs; where all is there it does nothing. Calls say(arg, false, line) for each thing made,
 * or, with print, for each line of what would be run, and runs nothing. Errors as hapax_store_open(), and
 * UNSUPPORTED: a newer version made it. */
enum hapax_error hapax_store_init(const char *uri, bool print, hapax_say *say, void *arg,
                                  char text[HAPAX_TEXT_MAX]);

/* A URI as logs may show it: with *** for each password in it. Cut to fit. */
void hapax_store_shown(char out[HAPAX_TEXT_MAX], const char *uri);

/* Syncs what is in hand and releases the handle. NULL is fine. */
void hapax_store_close(struct hapax_store *store);

/* ---- for store authors ----------------------------------------------------------- */

struct hapax_arena;

/* Memory for answers: valid until the handle's next call. Not in `open`. NULL: out of memory. */
void *hapax_store_memory(struct hapax_store *store, size_t size);

/* Sets the handle's text, printf-like; returns error, so that one can `return` it. */
enum hapax_error hapax_store_fail(struct hapax_store *store, enum hapax_error error,
                                  const char *format, ...) __attribute__((format(printf, 3, 4)));

struct hapax_store_type {
    const char *scheme; /* what stands before ':' */
    uint32_t batch_max; /* ops in one run, 1 to HAPAX_BATCH_MAX */
    size_t body_max; /* bytes of a body; an op over it gets TOO_BIG and does not reach run */
    bool serial; /* judges a batch in order, so that it may hold one id several times */
    bool
        forgets; /* drops expired records by itself, and cannot walk for more: PURGE does nothing */

    /* Allocates *out, with the struct hapax_store first in it and zeroed. On failure *out is NULL
     * and text is set. A store on a network looks at the URI only and connects when it is first run,
     * so that a server that is down keeps nobody from starting. A store that finds another to serve it may return a handle of that
     * type, with `type` set. */
    enum hapax_error (*open)(struct hapax_store **out, const char *uri, char text[HAPAX_TEXT_MAX]);

    /* Answers ops[0..n), n ≤ batch_max; a LIST or PURGE comes alone. Before the call each has error
     * INDETERMINATE. What returns NONE has answered every op; what returns an error leaves the
     * rest as they are, so that a store that dies half-way is safe. Set an op to UNAVAILABLE only
     * where it surely was not applied: a caller that reads "not applied" of one that was will run
     * a handler twice. A verdict, once given, is durable as far as the store promises
     * durability at all. */
    enum hapax_error (*run)(struct hapax_store *store, struct hapax_op *ops, size_t n);

    /* As hapax_store_init(). NULL: it needs nothing. */
    enum hapax_error (*init)(const char *uri, bool print, hapax_say *say, void *arg,
                             char text[HAPAX_TEXT_MAX]);

    /* As hapax_store_check(). */
    enum hapax_error (*check)(struct hapax_store *store, hapax_say *say, void *arg);

    /* Frees the handle. Its arena goes after it. */
    void (*close)(struct hapax_store *store);
};

struct hapax_store {
    const struct hapax_store_type *type;
    struct hapax_arena *arena; /* given to it after `open`; hapax_store_memory() */
    char text[HAPAX_TEXT_MAX]; /* hapax_store_fail() */
};

#ifdef __cplusplus
}
#endif
#endif
