/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS on a wire. The certificate must be of the wire's host, and a CA of the URI or the system must
 * have signed it; `tls_verify=off` asks for less.
 */
#ifndef HAPAX_STORE_REDIS_TLS_H
#define HAPAX_STORE_REDIS_TLS_H

#include "wire.h"

struct hapax__redis_tls; /* shared by the wires of one store */

/* NULL out and NONE where the URI has no TLS. INVALID: a file that the URI names cannot be used. */
enum hapax_error hapax__redis_tls_open(struct hapax__redis_tls **out,
                                       const struct hapax__redis_uri *uri,
                                       char text[HAPAX_TEXT_MAX]);
void hapax__redis_tls_close(struct hapax__redis_tls *tls);

/* Starts TLS on a connected wire. UNAVAILABLE, REFUSED, NOMEM: wire->why says why, and the wire is
 * to be closed. */
enum hapax_error hapax__redis_tls_begin(struct hapax__redis_wire *wire,
                                        struct hapax__redis_tls *tls, const char *host,
                                        int64_t deadline_us);

/* Takes note of when the certificates of a wire end, as hapax__tls_ends(). */
void hapax__redis_tls_ends(const struct hapax__redis_wire *wire, int64_t *server_us,
                           int64_t *client_us);

#endif
