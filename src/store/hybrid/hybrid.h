/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the hybrid store: hints in Redis, in front of records in PostgreSQL (docs/design.md,
 * "Hybrid"). A hint is a value under one key per id:
 *
 *   rank    41 digits: the fence (20), the kind (1), and (20) a lock's lease end or a copy's epoch
 *   mark    16 bytes: of a lock, its token's; of a copy, the seal
 *   bare    (kind 0, fence 0) fingerprint 32, caller 32, until 20 digits: a claim that PostgreSQL
 *           has not judged yet
 *   lock    (kind 1) the record as its CLAIM or RENEW showed it, by hapax__record_encode()
 *   copy    (kind 2) the completed record, the same way
 *
 * The higher rank wins, so hints that come late change nothing. A hint contains no token.
 *
 * The seal of a copy is the first 16 bytes of an HMAC over the id, the rank and the record. Its key
 * is made of the store's secret. Without a secret the seal is zeros, and nobody looks at it.
 */
#ifndef HAPAX_STORE_HYBRID_HYBRID_H
#define HAPAX_STORE_HYBRID_HYBRID_H

#include "base/arena.h"
#include "store/redlock/redlock.h"

#define HAPAX__HYBRID_BATCH_MAX 127u /* one op less than PostgreSQL's: to ask for the epoch */
#define HAPAX__HYBRID_FRESH_US  INT64_C(500000) /* how old knowledge of the epoch may be */
#define HAPAX__HINT_BARE_MS     30000 /* a bare lock stands for its lease, at most so long */
#define HAPAX__HINT_RANK        41u
#define HAPAX__HINT_MARK        sizeof(struct hapax_mark)
#define HAPAX__HINT_HEAD        (HAPAX__HINT_RANK + HAPAX__HINT_MARK)

/* ---- values (value.c) -------------------------------------------------------------- */

enum hapax__hint_kind { HAPAX__HINT_BARE, HAPAX__HINT_LOCK, HAPAX__HINT_COPY };

struct hapax__hint {
    enum hapax__hint_kind kind;
    struct hapax_mark mark;
    uint64_t epoch; /* of a copy */
    struct hapax_record record; /* bare: as far as it is known; spans borrow from the value */
};

/* Make values in the arena; ptr NULL: out of memory. A lock's record is STARTED, a copy's
 * COMPLETED. key: of the seals; NULL: there is no secret. */
struct hapax_span hapax__hint_bare(struct hapax_arena *arena, const struct hapax_op *claim,
                                   const struct hapax_mark *mark, int64_t until_us);
struct hapax_span hapax__hint_lock(struct hapax_arena *arena, const struct hapax_record *record,
                                   const struct hapax_mark *mark);
struct hapax_span hapax__hint_copy(struct hapax_arena *arena, const struct hapax_record *record,
                                   uint64_t epoch, const struct hapax_digest *key);

/* Reads the hint of an id. False: the value is no hint, of another id, or a copy whose seal is not
 * that of the key. */
bool hapax__hint_read(struct hapax__hint *out, const struct hapax_id *id, struct hapax_span value,
                      const struct hapax_digest *key);

/* ---- rounds (hints.c) -------------------------------------------------------------- */

/* What the nodes show about one CLAIM. */
struct hapax__lookup {
    const struct hapax_op *op;
    struct hapax_mark mark;
    bool locked; /* a majority of the nodes has the lock of one other mark: `lock` */
    bool copied; /* a node has a copy: `copy`, the highest one */
    bool placed; /* the op's own bare lock may stand on a node */
    bool taken; /* a majority has the op's bare lock, or a fuller lock of the same mark */
    int64_t until_us; /* when that lock ends */
    struct hapax__hint lock;
    struct hapax__hint copy;
};

/* Looks up the hints of n CLAIMs on all nodes at once. With take it also takes the free locks; they
 * end no later than leases that are granted after now_us. Nodes that do not answer show nothing.
 * The results are valid until the redlock's next call. *large counts the lookups that remain in
 * bounded mode; start it at 0. A lookup that met large copies sets it. While it is above 0, a
 * node's answer is limited to 4 MiB, copies beyond the limit count as absent, and lookups take
 * locks even without take. key: as in hapax__hint_read(). False: out of memory; nothing was
 * sent. */
bool hapax__hints_lookup(struct hapax__redlock *lock, struct hapax_arena *arena,
                         struct hapax__lookup *lookups, size_t n, int64_t now_us, bool take,
                         unsigned *large, const struct hapax_digest *key);

enum hapax__refresh_kind {
    HAPAX__REFRESH_DROP = 1, /* deletes the lock of this mark */
    HAPAX__REFRESH_PUT, /* replaces what has no higher rank */
    HAPAX__REFRESH_COPY, /* puts a copy in place of anything: cheaper than PUT */
    HAPAX__REFRESH_FORGET /* deletes whatever stands there */
};

/* One hint to bring up to date. */
struct hapax__refresh {
    enum hapax__refresh_kind what;
    const struct hapax_id *id;
    const struct hapax_mark *mark; /* of the op's token; FORGET ignores it */
    struct hapax_span value; /* PUT, COPY */
    int64_t ttl_ms; /* PUT, COPY */
};

/* Sends refreshes to all nodes, and does not wait. A value beyond 4 MiB in all is not sent: its
 * refresh becomes a DROP. */
void hapax__hints_refresh(struct hapax__redlock *lock, struct hapax_arena *arena,
                          struct hapax__refresh *refreshes, size_t n);

/* ---- what is known of PostgreSQL (epoch.c) ----------------------------------------- */

struct hapax__known {
    bool clock; /* the four times below are known */
    /* PostgreSQL's clock was not below low_us at the boot time low_boot_us, and not above high_us
     * at high_boot_us. */
    int64_t low_us, low_boot_us;
    int64_t high_us, high_boot_us;
    uint64_t epoch; /* 0: not known */
    int64_t epoch_us; /* boot time before the READ of the epoch was sent */
    int64_t asked_us; /* boot time of the last question; 0: none */
};

int64_t hapax__known_low(const struct hapax__known *known, int64_t boot_us);
int64_t hapax__known_high(const struct hapax__known *known, int64_t boot_us);

/* Whether a copy of this epoch may be served. */
bool hapax__known_fresh(const struct hapax__known *known, int64_t boot_us);

/* The READ that asks for the epoch. */
struct hapax_op hapax__epoch_read(void);

/* Take answers: the clock from all ops of a call that began at sent_us and ended at got_us; the
 * epoch from its READ. */
void hapax__known_clock(struct hapax__known *known, const struct hapax_op *ops, size_t n,
                        int64_t sent_us, int64_t got_us);
void hapax__known_epoch(struct hapax__known *known, const struct hapax_op *read, int64_t sent_us);

/* Asks for both, and makes the epoch's record where there is none. Errors as hapax_store_run(). */
enum hapax_error hapax__known_ask(struct hapax__known *known, struct hapax_store *postgres);

/* ---- the URI (uri.c) ----------------------------------------------------------------- */

/* A copy of it, cut into its parts. */
struct hapax__hybrid_parts {
    char *copy;
    size_t size;
    const char *redis[HAPAX__REDLOCK_NODES_MAX];
    size_t redis_count;
    char *postgres; /* without the parameters that are the hybrid's own */
    bool stale_replay;
};

/* INVALID: it is no such URI, and text says why, without passwords; NOMEM. Release the parts in any
 * case. */
enum hapax_error hapax__hybrid_parts(struct hapax__hybrid_parts *parts, const char *uri,
                                     char text[HAPAX_TEXT_MAX]);
void hapax__hybrid_parts_release(struct hapax__hybrid_parts *parts);

#endif
