/* SPDX-License-Identifier: Apache-2.0
 *
 * The Runtime API as a runtime sees it: hapax stands in it, between the runtime and the real one.
 */
#ifndef HAPAX_DOOR_LAMBDA_PROXY_H
#define HAPAX_DOOR_LAMBDA_PROXY_H

#include "invocation.h"

struct hapax__proxy;

/* Listens on a loopback address; NULL: 127.0.0.1:9009, or any other port if that is taken. Nothing is accepted yet. door and
 * upstream are borrowed until the process ends: its threads do not end before. INVALID, UNAVAILABLE (taken), NOMEM. */
enum hapax_error hapax__proxy_open(struct hapax__proxy **out, struct hapax__function *function,
                                   struct hapax__upstream *upstream, const char *address,
                                   char text[HAPAX_TEXT_MAX]);

/* HOST:PORT, as AWS_LAMBDA_RUNTIME_API has it. */
const char *hapax__proxy_address(const struct hapax__proxy *proxy);

/* Serves from threads of its own. False: no thread is left. */
bool hapax__proxy_start(struct hapax__proxy *proxy);

/* Lets the first event be asked for: until this is called, a runtime's question for it waits. */
void hapax__proxy_ready(struct hapax__proxy *proxy);

/* The runtime is gone: what it had in hand is left to the leases, and nothing is begun any more. Waits for what is being
 * begun or ended, for wait_ms and a second. False: something still is, and the store has to be left open. */
bool hapax__proxy_lost(struct hapax__proxy *proxy, int64_t wait_ms);

#endif
