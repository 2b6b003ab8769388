/* SPDX-License-Identifier: Apache-2.0
 *
 * The Runtime API as a runtime sees it. hapax stands between the runtime and the real one.
 */
#ifndef HAPAX_DOOR_LAMBDA_PROXY_H
#define HAPAX_DOOR_LAMBDA_PROXY_H

#include "invocation.h"

struct hapax__proxy;

/* Listens on a loopback address; NULL: 127.0.0.1:9009, or any port if that one is taken. Accepts
 * nothing yet. function and upstream are borrowed until the process ends, since the threads end no
 * sooner. INVALID, UNAVAILABLE (the port is taken), NOMEM. */
enum hapax_error hapax__proxy_open(struct hapax__proxy **out, struct hapax__function *function,
                                   struct hapax__upstream *upstream, const char *address,
                                   char text[HAPAX_TEXT_MAX]);

/* HOST:PORT, as AWS_LAMBDA_RUNTIME_API has it. */
const char *hapax__proxy_address(const struct hapax__proxy *proxy);

/* Serves from threads of its own. False: no thread can be started. */
bool hapax__proxy_start(struct hapax__proxy *proxy);

/* Lets the first event be asked for. Until then a runtime that asks for one waits. */
void hapax__proxy_ready(struct hapax__proxy *proxy);

/* The runtime is gone: the claims of its invocations are left to their leases, and no more are
 * begun. The claims of an event that it never had whole are given back. What it has sent is heard
 * before, for a second at most. Waits for threads that begin or end an invocation, for wait_ms and
 * a second. False: some still do, and the store has to stay open. */
bool hapax__proxy_lost(struct hapax__proxy *proxy, int64_t wait_ms);

#endif
