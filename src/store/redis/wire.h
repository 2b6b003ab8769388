/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes to and from one Redis process: a socket that never blocks. TLS (tls.h) puts itself between
 * the socket and the wire's user. /
 */
#ifndef HAPAX_STORE_REDIS_WIRE_H
#define HAPAX_STORE_REDIS_WIRE_H

#include "uri.h"

#include <sys/types.h>

#define HAPAX__WIRE_WHY_MAX 160

struct hapax__redis_wire;

/* How bytes go through a wire. read and write return the number of bytes, 0 where they would block
 * (then read_wants or write_wants is what to poll for), or -1 and the wire's `why`. */
struct hapax__redis_io {
    ssize_t (*read)(struct hapax__redis_wire *wire, void *out, size_t size);
    ssize_t (*write)(struct hapax__redis_wire *wire, const void *data, size_t len);
    void (*close)(struct hapax__redis_wire *wire); /* frees `layer`; NULL: nothing to free */
};

struct hapax__redis_wire {
    int fd; /* -1: closed */
    const struct hapax__redis_io *io;
    void *layer; /* of io; NULL: the socket alone */
    uint64_t sent; /* bytes that have left this process, those of TLS included */
    short read_wants; /* what to poll for after a read that would have blocked */
    short write_wants;
    bool refused; /* the TLS of one side refused the other */
    char why[HAPAX__WIRE_WHY_MAX]; /* what failed */
};

/* Connects by the deadline. UNAVAILABLE, NOMEM: wire->why says why, and nothing is open. */
enum hapax_error hapax__redis_wire_open(struct hapax__redis_wire *wire,
                                        const struct hapax__redis_address *address,
                                        int64_t deadline_us);
void hapax__redis_wire_close(struct hapax__redis_wire *wire);

/* At least one byte; 0: it would block; -1: the wire is of no use any more, and why says why. */
ssize_t hapax__redis_wire_read(struct hapax__redis_wire *wire, void *out, size_t size);
ssize_t hapax__redis_wire_write(struct hapax__redis_wire *wire, const void *data, size_t len);

/* Waits for any of the events of poll(). False: the deadline has passed. */
bool hapax__redis_wire_wait(const struct hapax__redis_wire *wire, short events,
                            int64_t deadline_us);

/* ---- for a layer ----------------------------------------------------------------------- */

/* As send() and recv() on the socket, without signals and EINTR; the bytes sent are counted. */
ssize_t hapax__redis_wire_send(struct hapax__redis_wire *wire, const void *data, size_t len);
ssize_t hapax__redis_wire_recv(struct hapax__redis_wire *wire, void *out, size_t size);

/* Sets why from an errno; 0: the other side closed. */
void hapax__redis_wire_lost(struct hapax__redis_wire *wire, int error);

#endif
