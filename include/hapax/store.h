/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h: the manual for those who write a store, or who use one without a door.
 *
 * A store keeps one record per id and answers ops about records, exactly as the machine says
 * (docs/design.md, "The machine"). The memory store calls the machine directly; every other store
 * is compared with the memory store. This header may change between minor versions.
 *
 * A new store: fill in a struct hapax_store_type (at the end of this header), and run the store's
 * suite on it (tests/store).
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

/* The name of a state in lower case ("started"). Static. */
HAPAX_API const char *hapax_state_name(enum hapax_state state);

/* Times are µs since 1970 by the store's clock. */
struct hapax_record {
    struct hapax_id id;
    enum hapax_state state;
    /* An expired claim becomes `unknown`: a granted CLAIM asked for this. */
    bool hold;
    /* An attempt died, and nobody knows whether it had its effect. */
    bool stale;
    /* The last failed attempt may have run. */
    bool ran;
    /* Every granted CLAIM said rerun_completed. */
    bool reruns;
    /* The number of the last claim, counted from 1. */
    uint32_t attempt;
    /* How many attempts failed or died and may have run; attempts_max limits this number. */
    uint32_t spent;
    uint64_t fence;
    /* Zeroed in every record that a store answers. */
    struct hapax_token token;
    struct hapax_digest fingerprint;
    struct hapax_digest caller;
    struct hapax_span scope;
    int64_t created_us;
    int64_t updated_us;
    int64_t lease_until_us; /* 0 unless started */
    int64_t expires_us; /* 0: never */
    int64_t retention_ms;
    struct hapax_outcome outcome;
    /* When an operator resolved the record; 0: never. */
    int64_t resolved_us;
    /* Which operator; at most HAPAX_BY_MAX bytes. */
    struct hapax_span resolved_by;
};

/* ---- ops ------------------------------------------------------------------------- */

/* What each kind of op asks, besides its kind, and what its verdicts answer, besides now_us:
 *
 *   kind      reads                                     verdict    answers
 *   CLAIM     id token scope fingerprint caller         CLAIMED    record.attempt .spent .fence
 *             lease_ms retention_ms on_expired                     .stale .lease_until_us
 *             attempts_max rerun_completed                         .created_us .resolved_us
 *                                                       IN_FLIGHT  record.attempt .lease_until_us
 *                                                       COMPLETED  record.outcome
 *                                                       FAILED     record.spent .outcome
 *                                                       UNKNOWN    record.spent
 *                                                       MISMATCH   differs
 *                                                       LOST       see below
 *   RENEW     id token lease_ms reconciled if_attempt   OK         as CLAIMED
 *                                                       LOST       see below
 *   COMPLETE  id token outcome                          OK         record.outcome: what is stored
 *                                                       LOST       see below
 *   FAIL      id token outcome ran as_unknown           OK
 *                                                       LOST       see below
 *   READ      id                                        FOUND      record
 *                                                       ABSENT
 *   LIST      states scope older_ms limit cursor        FOUND      records count more next_cursor
 *   PURGE     limit cursor                              OK         purged expired_claims more
 *                                                                  next_cursor
 *   RESOLVE   id token outcome resolve if_attempt       OK
 *             force by                                  ABSENT
 *                                                       IN_FLIGHT  record.attempt .lease_until_us
 *                                                       COMPLETED  record.outcome
 *                                                       LOST       see below
 *
 * LOST answers record.state (which may be absent), .attempt, .fingerprint, .caller and, where the
 * record is completed, .outcome. */
enum hapax_op_kind {
    HAPAX_OP_CLAIM = 1,
    HAPAX_OP_RENEW,
    HAPAX_OP_COMPLETE,
    HAPAX_OP_FAIL,
    HAPAX_OP_READ,
    HAPAX_OP_LIST,
    HAPAX_OP_PURGE,
    HAPAX_OP_RESOLVE
};

enum hapax_verdict {
    HAPAX_NO_VERDICT = 0, /* see error */
    HAPAX_CLAIMED, /* the token has the claim */
    HAPAX_IN_FLIGHT, /* another token has it, and its lease is live */
    HAPAX_COMPLETED,
    HAPAX_FAILED, /* attempts_max is used up; the outcome is the last failure's */
    HAPAX_UNKNOWN, /* an attempt died, or said so itself: an operator or a hook must find out */
    HAPAX_MISMATCH, /* another request has this id */
    HAPAX_OK, /* done */
    HAPAX_LOST, /* the token has no claim; RENEW, RESOLVE: or if_attempt does not fit */
    HAPAX_FOUND,
    HAPAX_ABSENT /* there is no such record */
};

/* The name of a verdict in lower case ("in_flight"); "none". Static. */
HAPAX_API const char *hapax_verdict_name(enum hapax_verdict verdict);

enum hapax_resolve { HAPAX_RESOLVE_COMPLETE = 1, HAPAX_RESOLVE_FAIL, HAPAX_RESOLVE_FORGET };

#define HAPAX_STATES_ALL  0x1eu /* of `states`: bit 1 << enum hapax_state */
#define HAPAX_STATES_OPEN 0x1au /* all but completed */

struct hapax_op {
    enum hapax_op_kind kind;

    /* Asked. A store changes none of these. What the spans point to is the caller's, and is
     * borrowed until the call returns. */

    struct hapax_id id;
    /* One request's alone: its fingerprint and caller go with it. RESOLVE: a new one, which
     * becomes the record's. */
    struct hapax_token token;
    /* LIST: only this scope; empty: all scopes. */
    struct hapax_span scope;
    struct hapax_digest fingerprint;
    struct hapax_digest caller;
    int64_t lease_ms;
    int64_t retention_ms;
    enum hapax_on_expired on_expired;
    uint32_t attempts_max;
    bool rerun_completed;
    /* The hook said "it did not happen": `stale` is cleared. */
    bool reconciled;
    /* The attempt may have run. */
    bool ran;
    /* FAIL makes the record `unknown`, not `failed`. */
    bool as_unknown;
    /* RESOLVE works on a live lease and on a completed record too; FORGET on a damaged one too. */
    bool force;
    enum hapax_resolve resolve;
    /* Only if the record's attempt is this one; 0: any. */
    uint32_t if_attempt;
    /* The operator's name, for the record. */
    struct hapax_span by;
    struct hapax_outcome outcome;
    /* Bits; 0: all states. */
    uint32_t states;
    /* Only records that were last written at least this long ago. */
    int64_t older_ms;
    /* At most HAPAX_LIST_MAX, as 0 does. An answer may have fewer, even none, and `more`. */
    uint32_t limit;
    /* Where to begin: zeroed, or the next_cursor of the answer before. In stores that list in the
     * order of ids it is an id, and the list begins after it. In stores that hash (redis) it is
     * opaque: their LIST comes in no order, and may show a record twice, but misses none that
     * stays. */
    struct hapax_id cursor;

    /* Answered. What the spans point to is the store's, and is valid until the store's next call;
     * or it is what the op itself lent (the scope of a CLAIM, the outcome of a COMPLETE). */

    enum hapax_verdict verdict;
    enum hapax_error error; /* NONE exactly when there is a verdict */
    enum hapax_differs differs;
    struct hapax_record record;
    /* The store's clock when it judged; 0 where it did not judge. */
    int64_t now_us;
    /* Without the headers and bodies of outcomes. */
    struct hapax_record *records;
    uint32_t count;
    /* Expired records that were removed. purged and expired_claims are together at most `limit`. */
    uint32_t purged;
    /* Claims under hold whose lease was over, and which are `unknown` now. */
    uint32_t expired_claims;
    bool more;
    /* Where the next op has to begin. Valid with `more`. */
    struct hapax_id next_cursor;
};

/* ---- calls ----------------------------------------------------------------------- */

struct hapax_store;

/* Opens the store that a URI names. One thread at a time may use the handle. Errors are those of
 * hapax_open(), but nobody looks at a secret here. */
HAPAX_API enum hapax_error hapax_store_open(struct hapax_store **out, const char *uri,
                                            char text[HAPAX_TEXT_MAX]);

/* Runs n ops (any n). Ops on one id run in order; ops on different ids have no order. Blocks.
 * Each op gets its own verdict or its own error: an op that is refused does not touch the others.
 * An op gets INDETERMINATE where it may or may not have been applied: repeat it with the same token
 * until a verdict comes back. The error of a repeat (UNAVAILABLE too) says nothing about the first
 * try. A RESOLVE that forgets leaves no token behind: READ instead of repeating it.
 * Returns NONE when every op has a verdict, otherwise the first error among the ops. */
HAPAX_API enum hapax_error hapax_store_run(struct hapax_store *store, struct hapax_op *ops,
                                           size_t n);

/* One piece of advice. The line is borrowed for the call. danger: with these settings the store can
 * lose acknowledged outcomes; this alone is no error. */
typedef void hapax_say(void *arg, bool danger, const char *line);

/* Checks whether the store can be reached and is set up safely, and calls say(arg, danger, line)
 * for each piece of advice. Errors: UNAVAILABLE and CORRUPT, among others. */
HAPAX_API enum hapax_error hapax_store_check(struct hapax_store *store, hapax_say *say, void *arg);

/* What failed in the last call on this handle (the last of several failures); "" if nothing did.
 * Valid until the handle's next call. */
HAPAX_API const char *hapax_store_text(const struct hapax_store *store);

/* Binds the store to a secret. The first call leaves a check value of the secret in the store,
 * every later call compares. A store that is first bound without a secret is bound to none. The
 * check value is an ordinary completed record under a fixed id (scope "hapax"). REFUSED: the store
 * was first used with another secret. Other errors are those of hapax_store_run(). May be
 * repeated. */
HAPAX_API enum hapax_error hapax_store_bind(struct hapax_store *store, struct hapax_span secret);

/* Makes what the store needs before its first use (tables, functions), or brings it up to this
 * version. Does nothing where all is there. Calls say(arg, false, line) for each thing it made.
 * With print it runs nothing, and calls say() for each line of what it would run. Errors are those
 * of hapax_store_open(), and UNSUPPORTED: a newer version made the store. */
HAPAX_API enum hapax_error hapax_store_init(const char *uri, bool print, hapax_say *say, void *arg,
                                            char text[HAPAX_TEXT_MAX]);

/* A URI as logs may show it: with *** for each password in it. Cut to fit. */
HAPAX_API void hapax_store_shown(char out[HAPAX_TEXT_MAX], const char *uri);

/* Syncs what is not synced yet and releases the handle. NULL is fine. */
HAPAX_API void hapax_store_close(struct hapax_store *store);

/* ---- for store authors ----------------------------------------------------------- */

struct hapax_arena;

/* Memory for answers, valid until the handle's next call. Not for use in `open`. NULL: out of
 * memory. */
HAPAX_API void *hapax_store_memory(struct hapax_store *store, size_t size);

/* Sets the handle's text, printf-like. Returns error, so that a store can `return` the call. */
HAPAX_API enum hapax_error hapax_store_fail(struct hapax_store *store, enum hapax_error error,
                                            const char *format, ...)
    __attribute__((format(printf, 3, 4)));

struct hapax_store_type {
    /* What stands before ':' in the URI. */
    const char *scheme;
    /* The most ops of one run, 1 to HAPAX_BATCH_MAX. */
    uint32_t batch_max;
    /* The most bytes of a body. An op over this gets TOO_BIG and does not reach `run`. */
    size_t body_max;
    /* The store judges a batch in order, so one batch may have several ops on one id. */
    bool serial;
    /* The store drops expired records by itself, and nobody can walk it for more: PURGE does
     * nothing. */
    bool forgets;

    /* Allocates *out: a struct of the store's own that begins with a zeroed struct hapax_store. On
     * failure *out is NULL and text is set. A store on a network reads the URI only, and connects
     * when it is first run: a server that is down keeps no program from starting. A store that is
     * served by another may return a handle of that other type, with `type` set. */
    enum hapax_error (*open)(struct hapax_store **out, const char *uri, char text[HAPAX_TEXT_MAX]);

    /* Answers ops[0..n), n at most batch_max; a LIST or PURGE comes alone. Before the call each op
     * has the error INDETERMINATE and an empty answer. A run that returns NONE has answered every
     * op. A run that returns an error leaves the other ops as they are, so that a store that dies
     * half-way is safe. Set an op to UNAVAILABLE only where it surely was not applied: a caller
     * that reads "not applied" of an op that was applied will run a handler twice. A verdict, once
     * given, is durable as far as the store promises durability at all. */
    enum hapax_error (*run)(struct hapax_store *store, struct hapax_op *ops, size_t n);

    /* As hapax_store_init(). NULL: the store needs nothing. */
    enum hapax_error (*init)(const char *uri, bool print, hapax_say *say, void *arg,
                             char text[HAPAX_TEXT_MAX]);

    /* As hapax_store_check(). */
    enum hapax_error (*check)(struct hapax_store *store, hapax_say *say, void *arg);

    /* Frees the handle. hapax_store_close() frees the arena afterwards. */
    void (*close)(struct hapax_store *store);
};

struct hapax_store {
    const struct hapax_store_type *type;
    /* Set by hapax_store_open() after `open`; see hapax_store_memory(). */
    struct hapax_arena *arena;
    /* See hapax_store_fail(). */
    char text[HAPAX_TEXT_MAX];
};

#ifdef __cplusplus
}
#endif
#endif
