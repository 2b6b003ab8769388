/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes to and from one Redis process: a socket that never blocks, and TLS on it where the URI has it.
 */
#ifndef HAPAX_STORE_REDIS_WIRE_H
#define HAPAX_STORE_REDIS_WIRE_H

#include "link.h"

#include <sys/types.h>

#include <openssl/ssl.h>

#define HAPAX__WIRE_WHY_MAX 160

struct hapax__redis_wire {
    int fd;
    SSL *ssl; /* NULL: plain */
    uint64_t sent; /* bytes that have left this process, TLS's own included */
    short read_wants,
        write_wants; /* what to poll for where reading or writing would have blocked */
    bool refused; /* the other side's TLS said no to us */
    char why[HAPAX__WIRE_WHY_MAX]; /* of what failed */
};

struct hapax__redis_tls {
    SSL_CTX *context;
    BIO_METHOD *method; /* the wire's socket, without SIGPIPE */
};

/* Connects by the deadline. UNAVAILABLE, REFUSED, NOMEM: wire->why says why, and nothing is open. */
enum hapax_error hapax__redis_wire_open(struct hapax__redis_wire *wire,
                                        const struct hapax__redis_address *address,
                                        struct hapax__redis_tls *tls, int64_t deadline_us);
void hapax__redis_wire_close(struct hapax__redis_wire *wire);

/* At least one byte; 0: it would block; -1: the wire is of no use any more, and why says why. */
ssize_t hapax__redis_wire_read(struct hapax__redis_wire *wire, void *out, size_t size);
ssize_t hapax__redis_wire_write(struct hapax__redis_wire *wire, const void *data, size_t len);

/* Waits for any of the events of poll(). False: the deadline has passed. */
bool hapax__redis_wire_wait(const struct hapax__redis_wire *wire, short events,
                            int64_t deadline_us);

/* ---- redis_tls.c ----------------------------------------------------------------------- */

/* TLS on a connected wire. UNAVAILABLE, REFUSED, NOMEM: why says why. */
enum hapax_error hapax__redis_tls_begin(struct hapax__redis_wire *wire,
                                        struct hapax__redis_tls *tls, const char *host,
                                        int64_t deadline_us);
ssize_t hapax__redis_tls_read(struct hapax__redis_wire *wire, void *out, size_t size);
ssize_t hapax__redis_tls_write(struct hapax__redis_wire *wire, const void *data, size_t len);

/* ---- redis_wire.c, below TLS ------------------------------------------------------------ */

/* As send() and recv(), without signals and EINTR; counts what was sent. */
ssize_t hapax__redis_wire_send(struct hapax__redis_wire *wire, const void *data, size_t len);
ssize_t hapax__redis_wire_recv(struct hapax__redis_wire *wire, void *out, size_t size);

/* Sets why from an errno; 0: the other side closed. */
void hapax__redis_wire_lost(struct hapax__redis_wire *wire, int error);

#endif
