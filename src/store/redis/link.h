/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to one Redis process: socket, TLS, login and RESP. Commands are put into a buffer,
 * sent at once, and their replies taken in order. It knows no ops and no topology.
 *
 * After any failure the link is dead: close it. Deadlines are µs of hapax__monotonic_us().
 */
#ifndef HAPAX_STORE_REDIS_LINK_H
#define HAPAX_STORE_REDIS_LINK_H

#include "reader.h"
#include "tls.h"
#include "uri.h"

struct hapax__redis_link;
/* Connects, with TLS where tls is given (the certificate must be the host's), logs in where login has a
 * password, SELECTs db where it is not 0. UNAVAILABLE: nobody there, no answer by the deadline, loading;
 * REFUSED: the login, the certificate or the db was refused. Nothing is open then, and text names the
 * address and why, never the password. */
enum hapax_error hapax__redis_link_open(struct hapax__redis_link **out,
                                        const struct hapax__redis_address *address,
                                        const struct hapax__redis_login *login, uint32_t db,
                                        struct hapax__redis_tls *tls, int64_t deadline_us,
                                        char text[HAPAX_TEXT_MAX]);
void hapax__redis_link_close(struct hapax__redis_link *link);

/* Appends a command to what the next send will send. False: out of memory; the link is dead. */
bool hapax__redis_link_put(struct hapax__redis_link *link, const struct hapax_span *args,
                           size_t argc);

/* Sends what was put. UNAVAILABLE: no byte of it left this process, so nothing of it was carried out;
 * INDETERMINATE: some left. */
enum hapax_error hapax__redis_link_send(struct hapax__redis_link *link, int64_t deadline_us,
                                        char text[HAPAX_TEXT_MAX]);

/* Waits for the next reply, which is the caller's to free. Error replies are replies.
 * INDETERMINATE: lost, late, nonsense, or over a limit. */
enum hapax_error hapax__redis_link_get(struct hapax__redis_link *link, struct hapax__resp **out,
                                       int64_t deadline_us, char text[HAPAX_TEXT_MAX]);

/* Whether get would end at once, waiting for that until the deadline. Where not, the link lives on. */
bool hapax__redis_link_ready(struct hapax__redis_link *link, int64_t deadline_us);

/* Whether the other side has closed an idle link, or sent what nobody asked for: then it is of no use.
 * Does not wait. */
bool hapax__redis_link_stale(struct hapax__redis_link *link);

#endif
