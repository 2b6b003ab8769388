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

#define HAPAX_WHAT_MAX  255u /* bytes of what an operation is, in its record */
#define HAPAX_BY_MAX    64u /* bytes of an operator's name */
#define HAPAX_BATCH_MAX 1024u /* ops in one call of a store's own `run` */
#define HAPAX_ANY_BYTE  0xff
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

/* What a record keeps of its claim's token: the first 16 bytes of the token's SHA-256. Whoever
 * reads a store, its backup or its replica cannot end a claim with that. */
struct hapax_mark {
    uint8_t bytes[16];
};

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
    /* Of the token that has the claim. Zeroed in every record that a store answers. */
    struct hapax_mark mark;
    /* Of the request, and of who asked. All bytes HAPAX_ANY_BYTE: of any, since the record was
     * imported from a table that did not keep it. */
    struct hapax_digest fingerprint;
    struct hapax_digest caller;
    /* Of the operation's owner, by hapax_owner(); zeroed: it has none. */
    struct hapax_digest owner;
    struct hapax_span scope;
    /* What the operation is, for people: as the last granted CLAIM said it; empty: not said. */
    struct hapax_span what;
    int64_t created_us;
    int64_t updated_us;
    int64_t lease_until_us; /* 0 unless started */
    /* When the record goes; 0: never. Of a completed record that is later than retention_ms after
     * updated_us where a tombstone is to follow. */
    int64_t expires_us;
    int64_t retention_ms;
    struct hapax_outcome outcome;
    /* When an operator resolved the record; 0: never. */
    int64_t resolved_us;
    /* Which operator; at most HAPAX_BY_MAX bytes. */
    struct hapax_span resolved_by;
    /* What the operator replaced: the state, and the status of its outcome (0: there was none).
     * ABSENT: never resolved, or by a version that did not keep this. */
    enum hapax_state replaced_state;
    int replaced_status;
};

/* ---- names ------------------------------------------------------------------------ */

/* The id of an operation that has an owner, whose keys are its own: as hapax_id(), over an empty
 * part, the owner, and then scope, key and step. No scope is empty, so no such id is one without an
 * owner. An empty owner gives the id of hapax_id(). HAPAX_ERR_INVALID: also an owner over its
 * limit. */
HAPAX_API enum hapax_error hapax_owned_id(struct hapax_id *out, struct hapax_span owner,
                                          struct hapax_span scope, struct hapax_span key,
                                          struct hapax_span step, struct hapax_span secret);

/* The digest of an owner, by which the records of one owner are found: as the id, over an empty
 * part and the owner alone. HAPAX_ERR_INVALID: the owner is empty or over its limit; out is as it
 * was. */
HAPAX_API enum hapax_error hapax_owner(struct hapax_digest *out, struct hapax_span owner,
                                       struct hapax_span secret);

/* Writes what an operation is, for its record, to be shown to operators: the parts with one space
 * between, empty ones left out ("POST", "/payments"). Bytes that are no UTF-8, and controls, become
 * '?'. A text over HAPAX_WHAT_MAX is cut between two characters, and ends with "…". Returns the
 * length. A part is not for secrets: give no query of a URI. */
HAPAX_API size_t hapax_what(uint8_t out[HAPAX_WHAT_MAX], const struct hapax_span *parts, size_t n);

/* ---- ops ------------------------------------------------------------------------- */

/* What each kind of op asks, besides its kind, and its verdicts:
 *
 *   kind      reads                                     verdicts
 *   CLAIM     id token owner scope what fingerprint     CLAIMED IN_FLIGHT COMPLETED FAILED
 *             caller lease_ms retention_ms              UNKNOWN MISMATCH LOST
 *             on_expired attempts_max
 *             rerun_completed says_kept
 *   RENEW     id token lease_ms reconciled if_attempt   OK LOST
 *   COMPLETE  id token outcome kept_ms tombstone_ms     OK LOST
 *   FAIL      id token outcome ran as_unknown died      OK LOST
 *             kept_ms
 *   READ      id                                        FOUND ABSENT
 *   LIST      states owner scope older_ms limit cursor  FOUND
 *   PURGE     limit cursor scrub                        OK
 *   RESOLVE   id token outcome resolve if_attempt       OK ABSENT IN_FLIGHT COMPLETED LOST
 *             force by if_updated_us
 *   IMPORT    id import outcome                         OK FOUND
 *
 * All answer now_us; LIST also records, count, more and next_cursor; PURGE also purged,
 * expired_claims, more and next_cursor; MISMATCH also differs. Every verdict about a record but
 * ABSENT answers `record`: all of it, as it is now, without its mark. (A RESOLVE that forgets: as
 * it was, unless it is damaged.) Doors read any of its fields. Its outcome is there with FOUND and
 * FAILED, and with COMPLETED, LOST and OK where its state is completed; never with IMPORT.
 * Exceptions:
 *   - LOST where there is no record: the state is ABSENT.
 *   - IN_FLIGHT by a claim that is not in the record yet: state and lease_until_us alone are known
 *     (postgres: a caller's open transaction); of a hybrid store's lock also fingerprint and
 *     caller.
 *   - Another request's record, where a store tells doors from operators: a READ is REFUSED, LOST
 *     is as without a record, and MISMATCH shows the state alone. */
enum hapax_op_kind {
    HAPAX_OP_CLAIM = 1,
    HAPAX_OP_RENEW,
    HAPAX_OP_COMPLETE,
    HAPAX_OP_FAIL,
    HAPAX_OP_READ,
    HAPAX_OP_LIST,
    HAPAX_OP_PURGE,
    HAPAX_OP_RESOLVE,
    HAPAX_OP_IMPORT
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
    HAPAX_LOST, /* the token has no claim; RENEW, RESOLVE: or an if_... does not fit */
    HAPAX_FOUND, /* IMPORT: there is another record, or the same one further on */
    HAPAX_ABSENT /* there is no such record */
};

/* The name of a verdict in lower case ("in_flight"); "none". Static. */
HAPAX_API const char *hapax_verdict_name(enum hapax_verdict verdict);

enum hapax_resolve { HAPAX_RESOLVE_COMPLETE = 1, HAPAX_RESOLVE_FAIL, HAPAX_RESOLVE_FORGET };

#define HAPAX_STATES_ALL  0x1eu /* of `states`: bit 1 << enum hapax_state */
#define HAPAX_STATES_OPEN 0x1au /* all but completed */

/* The names of one operation, as its record has them. */
struct hapax_identity {
    struct hapax_id id;
    struct hapax_digest owner, fingerprint, caller;
};

struct hapax_op {
    enum hapax_op_kind kind;

    /* Asked. A store changes none of these. What the spans point to is the caller's, and is
     * borrowed until the call returns. */

    struct hapax_id id;
    /* One request's alone: its fingerprint and caller go with it. RESOLVE: a new one, which
     * becomes the record's. */
    struct hapax_token token;
    /* CLAIM: for the record; its part of the id is the caller's to see to. LIST: only this owner's;
     * zeroed: all. */
    struct hapax_digest owner;
    /* LIST: only this scope; empty: all scopes. */
    struct hapax_span scope;
    /* At most HAPAX_WHAT_MAX bytes; see hapax_what(). */
    struct hapax_span what;
    /* CLAIM: for the record. RENEW, COMPLETE, FAIL, READ: of the request, for stores that show a
     * door only the records of its own requests; others do not read them. */
    struct hapax_digest fingerprint;
    struct hapax_digest caller;
    int64_t lease_ms;
    int64_t retention_ms;
    /* COMPLETE, FAIL: the retention from this write on; 0: as the CLAIM said. */
    int64_t kept_ms;
    /* COMPLETE: for how much longer its tombstone is kept. */
    int64_t tombstone_ms;
    /* CLAIM: its end may say kept_ms or tombstone_ms. A keeper may be so old that it does not know
     * them. Then the CLAIM is UNSUPPORTED, and nothing runs. */
    bool says_kept;
    enum hapax_on_expired on_expired;
    uint32_t attempts_max;
    bool rerun_completed;
    /* The hook said "it did not happen": `stale` is cleared. */
    bool reconciled;
    /* The attempt may have run. A FAIL without this and without as_unknown stores no outcome. */
    bool ran;
    /* FAIL makes the record `unknown`, not `failed`. */
    bool as_unknown;
    /* With ran and as_unknown: nothing of the attempt will write any more, since its process is
     * surely dead. So a record without `hold` becomes `failed` and `stale` all the same, and the
     * next CLAIM need not wait for the lease. */
    bool died;
    /* RESOLVE works on a live lease and on a completed record too; FORGET on a damaged one too. */
    bool force;
    enum hapax_resolve resolve;
    /* IMPORT: a record as hapax__record_encode() writes it, without its outcome, which is the op's.
     * A claim's mark does not come along. */
    struct hapax_span import;
    /* COMPLETE, FAIL, IMPORT: the attempt and the fence of the claim, as its answer had them, to
     * which a sealed outcome is bound, with fingerprint and caller (docs/encryption.md). RENEW: the
     * same, for a store of two halves, where they tell whether it is that claim in both. 0: not
     * known. */
    uint32_t attempt;
    uint64_t fence;
    /* Only if the record's attempt is this one; 0: any. */
    uint32_t if_attempt;
    /* RESOLVE: only if the record's updated_us is this one, so that nothing has been written since
     * it was shown; 0: any. */
    int64_t if_updated_us;
    /* The operator's name, for the record. */
    struct hapax_span by;
    /* The same operation under the old secret, for a handle on a store whose secret is being
     * changed (docs/rotation.md); NULL: the op is about one record. Only such a handle reads it.
     * Borrowed. */
    const struct hapax_identity *old;
    struct hapax_outcome outcome;
    /* Bits; 0: all states. */
    uint32_t states;
    /* Only records that were last written at least this long ago. 0: all, also one whose time is
     * ahead of the store's clock. */
    int64_t older_ms;
    /* PURGE removes nothing, but writes the store's files anew, so that they hold no bytes of what
     * was removed before. The first one (cursor zeroed) begins that, and answers `more`; one with
     * the next_cursor answers `more` until it is done. Ask with pauses. Of a store that has no
     * files of its own nothing is done, and the answer has no time; see `remains` of its type. */
    bool scrub;
    /* At most HAPAX_LIST_MAX, as 0 does. An answer may have fewer, even none, and `more`. */
    uint32_t limit;
    /* Where to begin: zeroed, or the next_cursor of the answer before. In stores that list in the
     * order of ids it is an id, and the list begins after it. In stores that hash (redis) it is
     * opaque: their LIST comes in no order, and may show a record twice, but misses none that
     * stays. */
    struct hapax_id cursor;
    /* NULL; used while the op is with a store. */
    struct hapax__sealed *sealed;

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
    /* Expired records that were removed, and tombstones that lost their outcome. purged and
     * expired_claims are together at most `limit`. */
    uint32_t purged;
    /* Claims under hold whose lease was over, and which are `unknown` now. */
    uint32_t expired_claims;
    bool more;
    /* Where the next op has to begin. Valid with `more`. */
    struct hapax_id next_cursor;
    /* LIST, PURGE: something could not be read, since the store's files are damaged there, and was
     * passed over. It is the record damaged_from where damaged_to is the same id, otherwise every
     * record behind damaged_from up to damaged_to. An answer passes over one place at most, but
     * for PURGE, which may name one of two. */
    bool damaged;
    struct hapax_id damaged_from, damaged_to;
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

/* As hapax_store_run(), but does not wait for the disk where the store can go on without. Answer i
 * rests on the write rests[i] (what it wrote or what it shows), 0: on none. Nobody may be told of
 * an answer before hapax_store_sync() says that its write is durable. */
HAPAX_API enum hapax_error hapax_store_judge(struct hapax_store *store, struct hapax_op *ops,
                                             size_t n, uint64_t *rests);

/* Waits until this write is durable; write 0 always is. INDETERMINATE: nobody knows whether the
 * write is durable, so each answer that rests on the write is INDETERMINATE; text says why. Ask for
 * each write on which an answer rests: one before may be lost all the same, where a sync failed and
 * the store came back between the two. Called by any thread, also while another one uses the
 * handle. */
HAPAX_API enum hapax_error hapax_store_sync(struct hapax_store *store, uint64_t number,
                                            char text[HAPAX_TEXT_MAX]);

#define HAPAX_BEGUN_MAX 4u

/* hapax_store_run() in two halves, so that the next ops are sent before the answers to these have
 * come. Here they are sent, and hapax_store_end() waits for their answers; until then they stay
 * where they are. At most HAPAX_BEGUN_MAX calls are begun and not ended, and meanwhile nothing but
 * these two is called on the handle. They may be called by two threads at once, each by one.
 * False: nothing was sent. The store does not take these ops in halves: run them when nothing is
 * begun. */
HAPAX_API bool hapax_store_begin(struct hapax_store *store, struct hapax_op *ops, size_t n);

/* Waits for the answers to what was begun first, which are these ops. Returns what
 * hapax_store_run() returns; text says what failed last. What the answers point to is valid until
 * the next end. */
HAPAX_API enum hapax_error hapax_store_end(struct hapax_store *store, struct hapax_op *ops,
                                           size_t n, char text[HAPAX_TEXT_MAX]);

/* One piece of advice. The line is borrowed for the call. danger: with these settings the store can
 * lose acknowledged outcomes; this alone is no error. */
typedef void hapax_say(void *arg, bool danger, const char *line);

/* Checks whether the store can be reached and is set up safely, and calls say(arg, danger, line)
 * for each piece of advice. Errors: UNAVAILABLE and CORRUPT, among others. */
HAPAX_API enum hapax_error hapax_store_check(struct hapax_store *store, hapax_say *say, void *arg);

/* A member of struct hapax_vitals that is not known, or that does not exist. */
#define HAPAX_NOT_KNOWN INT64_MIN

/* What the servers of a store, and this connection to them, are at: for an operator to watch. */
struct hapax_vitals {
    /* How far the store's clock is ahead of this machine's. Of several servers: of the one that is
     * furthest off. 0: by less than the question took. */
    int64_t clock_ahead_us;
    /* Connected to the primaries. */
    int64_t replicas;
    /* Of the replica that is furthest behind: what it has not acknowledged. */
    int64_t lag_bytes;
    /* Of the replica that has been silent for longest, though it lacks something. */
    int64_t silent_us;
    /* When certificates end, in µs since 1970: the first of those that servers showed, and the one
     * by which this process shows itself. */
    int64_t server_cert_us, client_cert_us;
    /* The file system of an embedded store. */
    int64_t disk_bytes, disk_free_bytes;
};

#define HAPAX_VITALS_INIT                                                                          \
    {                                                                                              \
        HAPAX_NOT_KNOWN, HAPAX_NOT_KNOWN, HAPAX_NOT_KNOWN, HAPAX_NOT_KNOWN, HAPAX_NOT_KNOWN,       \
            HAPAX_NOT_KNOWN, HAPAX_NOT_KNOWN, HAPAX_NOT_KNOWN                                      \
    }

/* Asks a store for its vitals. What it has not, or what this user may not ask, is HAPAX_NOT_KNOWN.
 * Errors: UNAVAILABLE and REFUSED, among others; what was known before the failure is in *out. */
HAPAX_API enum hapax_error hapax_store_measure(struct hapax_store *store, struct hapax_vitals *out);

/* What failed in the last call on this handle (the last of several failures); "" if nothing did.
 * Valid until the handle's next call. */
HAPAX_API const char *hapax_store_text(const struct hapax_store *store);

/* Binds the store to a secret, and tells this handle the secret. The first call leaves a check
 * value of the secret in the store, every later call compares. A store that is first bound without
 * a secret is bound to none. The check value is an ordinary completed record under a fixed id
 * (scope "hapax"). REFUSED: the store was first used with another secret. Other errors are those of
 * hapax_store_run(). May be repeated. */
HAPAX_API enum hapax_error hapax_store_bind(struct hapax_store *store, struct hapax_span secret);

/* Has this handle seal the outcomes that it stores, by the first key in the text of a keys file
 * (docs/encryption.md), and open those that it is shown: an op whose outcome cannot be opened gets
 * SEALED. With an empty text the handle seals nothing, and each sealed outcome is SEALED. Without
 * this call outcomes go through as they are stored: for who passes them on. To be called before the
 * first op. INVALID: no such text. */
HAPAX_API enum hapax_error hapax_store_keys(struct hapax_store *store, struct hapax_span text);

/* Makes what the store needs before its first use (tables, functions), or brings it up to this
 * version. Does nothing where all is there. Calls say(arg, false, line) for each thing it made.
 * With print it runs nothing, and calls say() for each line of what it would run. Errors are those
 * of hapax_store_open(), and UNSUPPORTED: a newer version made the store. */
HAPAX_API enum hapax_error hapax_store_init(const char *uri, bool print, hapax_say *say, void *arg,
                                            char text[HAPAX_TEXT_MAX]);

/* Gives `role`, which is made if it is missing, the least rights for one use of the store: "door"
 * runs operations, "operator" lists and resolves them; a store may have more. With print it only
 * says by which statements. use and role NULL: says, for each use, what a user of the store needs;
 * for stores whose users are made elsewhere. Calls say(arg, false, line). Errors are those of
 * hapax_store_open(), and INVALID: no such use, or no name of a role; UNSUPPORTED: the store has
 * none of this. */
HAPAX_API enum hapax_error hapax_store_rights(const char *uri, const char *use, const char *role,
                                              bool print, hapax_say *say, void *arg,
                                              char text[HAPAX_TEXT_MAX]);

/* A URI as logs may show it: with *** for each password in it, and for what may be one. Cut to
 * fit. */
HAPAX_API void hapax_store_shown(char out[HAPAX_TEXT_MAX], const char *uri);

/* Syncs what is not synced yet and releases the handle. NULL is fine. */
HAPAX_API void hapax_store_close(struct hapax_store *store);

/* ---- for store authors ----------------------------------------------------------- */

struct hapax_arena;
struct hapax__keys;

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
    /* The store takes no LIST, PURGE or IMPORT: it is two stores, each of which takes them. */
    bool unlisted;
    /* The store takes a PURGE that scrubs. */
    bool scrubs;
    /* What still has bytes of removed records once a scrub is done, and what ends that: a text for
     * operators, without a full stop. */
    const char *remains;

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

    /* As hapax_store_judge(), with the rules of `run`; and as hapax_store_sync(), where number is
     * not 0. Both NULL: the store answers when all is durable. A store that has them is `serial`.
     */
    enum hapax_error (*judge)(struct hapax_store *store, struct hapax_op *ops, size_t n,
                              uint64_t *rests);
    enum hapax_error (*sync)(struct hapax_store *store, uint64_t number, char text[HAPAX_TEXT_MAX]);

    /* As hapax_store_begin(), but what comes are ops that `run` takes in one batch; and as
     * hapax_store_end(), with the rules of `run`. Both NULL: the store has no halves. A store that
     * has them is `serial`. */
    void (*begin)(struct hapax_store *store, struct hapax_op *ops, size_t n);
    enum hapax_error (*end)(struct hapax_store *store, struct hapax_op *ops, size_t n,
                            char text[HAPAX_TEXT_MAX]);

    /* As hapax_store_init(). NULL: the store needs nothing. */
    enum hapax_error (*init)(const char *uri, bool print, hapax_say *say, void *arg,
                             char text[HAPAX_TEXT_MAX]);

    /* hapax_store_bind() is about to bind the store to this secret, which is not empty and is
     * borrowed. NULL: the store makes nothing of it. */
    void (*bound)(struct hapax_store *store, struct hapax_span secret);

    /* As hapax_store_keys(), with keys that were read (NULL: none): the store has handles of its
     * own, which seal. NULL: outcomes are sealed before `run`. */
    enum hapax_error (*keys)(struct hapax_store *store, const struct hapax__keys *keys);

    /* As hapax_store_rights(). NULL: the store has none. */
    enum hapax_error (*rights)(const char *uri, const char *use, const char *role, bool print,
                               hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX]);

    /* As hapax_store_check(). */
    enum hapax_error (*check)(struct hapax_store *store, hapax_say *say, void *arg);

    /* Frees the handle. hapax_store_close() frees the arena afterwards. */
    void (*close)(struct hapax_store *store);

    /* As hapax_store_measure(). Before the call nothing is known. NULL: nothing ever is. */
    enum hapax_error (*measure)(struct hapax_store *store, struct hapax_vitals *out);
};

struct hapax_store {
    const struct hapax_store_type *type;
    /* Set by hapax_store_open() after `open`; see hapax_store_memory(). */
    struct hapax_arena *arena;
    /* See hapax_store_keys(); NULL: outcomes go through. */
    struct hapax__sealing *sealing;
    /* See hapax_store_fail(). */
    char text[HAPAX_TEXT_MAX];
};

#ifdef __cplusplus
}
#endif
#endif
