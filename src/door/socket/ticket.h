/* SPDX-License-Identifier: Apache-2.0
 *
 * Tickets: what a client gives back so that its operation goes on at another door (RESUME). A
 * ticket holds the request, the policy and the claim with its token: all that a call needs. The
 * door keeps nothing for clients that come back.
 *
 * A ticket is not sealed. Whoever changes one changes what they could have asked for with BEGIN,
 * and ends no claim whose token they do not know.
 */
#ifndef HAPAX_DOOR_SOCKET_TICKET_H
#define HAPAX_DOOR_SOCKET_TICKET_H

#include "base/arena.h"
#include "core/flow.h"
#include "door/attempt.h"
#include "json/write.h"

struct hapax__ticket {
    struct hapax_policy policy;
    struct hapax_request request; /* its spans: the encoder's, or into the ticket's bytes */
    struct hapax_token token;
    struct hapax__flow_claim claim;
    bool reconciles; /* there is a hook */
};

/* Puts a ticket as a JSON string. */
void hapax__ticket_put(struct hapax__json_out *out, const struct hapax__ticket *ticket);

/* Reads a ticket's text, whose bytes it writes to the arena. INVALID: it is none; text says so.
 * NOMEM. */
enum hapax_error hapax__ticket_read(struct hapax__ticket *out, struct hapax_arena *arena,
                                    struct hapax_span in, char text[HAPAX_TEXT_MAX]);

#endif
