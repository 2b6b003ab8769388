/* SPDX-License-Identifier: Apache-2.0
 *
 * The relay: publishes the outbox of a PostgreSQL database (sql/150_outbox.sql) through a broker's
 * sink. Each message is published at least once, and with the same key each time. The messages of
 * an aggregate are published in the order of their commits, however many relays run.
 */
#ifndef HAPAX_RELAY_RELAY_H
#define HAPAX_RELAY_RELAY_H

#include "broker/sink.h"
#include "http/traces.h"
#include "store/postgres/postgres.h"

#define HAPAX__RELAY_BATCH_MAX 1000u
#define HAPAX__RELAY_PARTS     64u
#define HAPAX__RELAY_BYTES     ((size_t)16 << 20) /* a turn takes no more rows behind these */

/* ---- the outbox (outbox.c) --------------------------------------------------------------- */

/* A connection that calls hapax.outbox_…(), one statement at a time. Each is one short
 * transaction. */
struct hapax__outbox {
    struct hapax__pg_link link;
    struct hapax__pg_out out;
    uint8_t relay[16]; /* random: names this relay */
    /* An answer to the last call's statement was lost. It may have been done then, whatever a
     * repeat of it says. */
    bool lost;
};

struct hapax__outbox_row {
    int64_t seq;
    struct hapax_span topic, aggregate, key, content_type, payload;
    /* Names and values in turn, each with a zero byte behind. */
    struct hapax_span headers;
};

/* A row that has ended. */
struct hapax__outbox_end {
    const struct hapax__outbox_row *row; /* as it was taken */
    const char *error; /* NULL: published */
};

/* The functions of an outbox fail with UNAVAILABLE, REFUSED or UNSUPPORTED (no schema, or another
 * version); or with INDETERMINATE, whatever came last, where an answer was lost. outbox->link.text
 * says why. hapax__outbox_open() connects to nobody. A turn can be repeated: a row ends only
 * once. */
enum hapax_error hapax__outbox_open(struct hapax__outbox *outbox, const char *uri,
                                    char text[HAPAX_TEXT_MAX]);
void hapax__outbox_close(struct hapax__outbox *outbox);

/* Leases our share of the parts, for lease_ms from the moment of the call. 0: gives all parts
 * back. */
enum hapax_error hapax__outbox_lease(struct hapax__outbox *outbox, int64_t lease_ms,
                                     int16_t parts[HAPAX__RELAY_PARTS], size_t *n);

struct hapax__outbox_take {
    int64_t retry_ms;
    uint32_t tries_max;
    const int16_t *parts;
    size_t part_count; /* 0: takes no row */
    int64_t floor;
    uint32_t limit;
};

/* Ends n rows (HAPAX__RELAY_BATCH_MAX at most), those that are still the same message. Then takes
 * rows. On NONE the caller frees *rows with PQclear(); out[0..*count) points into it. */
enum hapax_error hapax__outbox_turn(struct hapax__outbox *outbox,
                                    const struct hapax__outbox_end *ends, size_t n,
                                    const struct hapax__outbox_take *take, PGresult **rows,
                                    struct hapax__outbox_row out[HAPAX__RELAY_BATCH_MAX],
                                    size_t *count);

enum hapax_error hapax__outbox_lag(struct hapax__outbox *outbox, int64_t *pending, int64_t *age_us,
                                   int64_t *aside);

/* Deletes some rows that were published keep_ms ago. *after: where the next step begins; 0: all are
 * deleted. */
enum hapax_error hapax__outbox_sweep(struct hapax__outbox *outbox, int64_t keep_ms, int64_t *after,
                                     int64_t *swept);

/* A page of the rows behind *after that were put aside. *after: where the next page begins; 0: this
 * was the last. *rows as in a turn. `out` has neither key nor payload. */
struct hapax__outbox_aside {
    int64_t seq;
    struct hapax_span topic, aggregate, error;
    int64_t tries, created_us, ended_us, size;
};
enum hapax_error hapax__outbox_aside(struct hapax__outbox *outbox, int64_t *after, PGresult **rows,
                                     struct hapax__outbox_aside out[HAPAX__RELAY_BATCH_MAX],
                                     size_t *count);

/* Lets rows that were put aside be published after all: those behind *after, at most 1000; with a
 * key, only those of the key. *after: where the next step begins; 0: all are done. *count leaves
 * out what a try did whose answer was lost (outbox->lost). */
enum hapax_error hapax__outbox_put_back(struct hapax__outbox *outbox, const char *key,
                                        int64_t *after, int64_t *count);

/* ---- the relay (relay.c) ----------------------------------------------------------------- */

/* Counters that may be read at any time, each by itself (hapax__relay_read()). */
struct hapax__relay_stats {
    uint64_t published;
    uint64_t repeated; /* sent again: the result was unknown */
    uint64_t failed; /* tries that were refused */
    uint64_t turns;
    uint64_t swept;
    uint64_t parts; /* leased by us */
    uint64_t in_hand;
    int64_t pending; /* -1: not known yet */
    int64_t age_us;
    int64_t aside;
    bool database_up;
    bool connected; /* to the broker */
};

struct hapax__relay {
    const char *from; /* postgres://… */
    const char *to; /* amqp://… or kafka://… */
    /* The time between two polls without a notification; 500 ms. */
    int64_t poll_ms;
    int64_t lease_ms; /* 10 s */
    int64_t retry_ms; /* the first pause of a message that was refused; 1 s */
    int64_t keep_ms; /* how long published messages stay; 24 h */
    int64_t drain_ms; /* 10 s */
    uint32_t batch; /* 500 */
    uint32_t attempts_max; /* then it is put aside; 16 */
    int stop_fd;
    struct hapax__traces *traces; /* of what is published; NULL: none */
    void (*log)(void *arg, const char *line);
    void *log_arg;
    /* Called by the loop about every beat_ms, as long as the loop goes on; NULL: not. */
    void (*beat)(void);
    int64_t beat_ms;
};

void hapax__relay_init(struct hapax__relay *relay);

/* Checks the settings, with their URIs. INVALID, UNSUPPORTED: text names the first wrong one. */
enum hapax_error hapax__relay_check(const struct hapax__relay *relay, char text[HAPAX_TEXT_MAX]);

/* Relays until stop_fd is readable; then ends the rows in hand and returns NONE. Waits for a
 * database or a broker that is away. INVALID, UNSUPPORTED, REFUSED, NOMEM: text says what. */
enum hapax_error hapax__relay_run(const struct hapax__relay *relay,
                                  struct hapax__relay_stats *stats, char text[HAPAX_TEXT_MAX]);

#endif
