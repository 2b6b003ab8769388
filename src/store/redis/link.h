/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to one Redis process: socket, TLS, login and RESP. Commands are put into a buffer
 * and sent at once, and their replies are taken in order. A link knows no ops and no topology.
 *
 * After any failure the link is dead: close it. Deadlines are µs of hapax__monotonic_us().
 */
#ifndef HAPAX_STORE_REDIS_LINK_H
#define HAPAX_STORE_REDIS_LINK_H

#include "reader.h"
#include "tls.h"
#include "uri.h"

struct hapax__redis_link;
/* Connects, with TLS where tls is given (the certificate must be the host's), logs in where
 * login has a password, and SELECTs db where it is not 0. On failure nothing is open, and text
 * names the address and the cause, never the password. UNAVAILABLE: no server there, no answer
 * by the deadline, or the server is loading. REFUSED: the login, the certificate or the db was
 * refused. NOMEM. */
enum hapax_error hapax__redis_link_open(struct hapax__redis_link **out,
                                        const struct hapax__redis_address *address,
                                        const struct hapax__redis_login *login, uint32_t db,
                                        struct hapax__redis_tls *tls, int64_t deadline_us,
                                        char text[HAPAX_TEXT_MAX]);
void hapax__redis_link_close(struct hapax__redis_link *link);

/* Appends a command to what the next send will send. False: out of memory; the link is dead. */
bool hapax__redis_link_put(struct hapax__redis_link *link, const struct hapax_span *args,
                           size_t argc);

/* Sends the commands that were put. UNAVAILABLE: no byte of them left this process, so none was
 * carried out. INDETERMINATE: some bytes left. */
enum hapax_error hapax__redis_link_send(struct hapax__redis_link *link, int64_t deadline_us,
                                        char text[HAPAX_TEXT_MAX]);

/* Waits for the next reply, which the caller frees. An error reply is a reply. INDETERMINATE:
 * the reply was lost, late, malformed or over a limit. */
enum hapax_error hapax__redis_link_get(struct hapax__redis_link *link, struct hapax__resp **out,
                                       int64_t deadline_us, char text[HAPAX_TEXT_MAX]);

/* Whether get would end at once; waits for that until the deadline. After false the link is
 * still good. */
bool hapax__redis_link_ready(struct hapax__redis_link *link, int64_t deadline_us);

/* Whether an idle link is of no use: the other side has closed it, or sent what was not asked
 * for. Does not wait. */
bool hapax__redis_link_stale(struct hapax__redis_link *link);

/* Takes note of when its certificates end, as hapax__tls_ends(). */
void hapax__redis_link_ends(const struct hapax__redis_link *link, int64_t *server_us,
                            int64_t *client_us);

#endif
