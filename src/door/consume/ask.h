/* SPDX-License-Identifier: Apache-2.0
 *
 * What a message asks (ask.c).
 */
#ifndef HAPAX_DOOR_CONSUME_ASK_H
#define HAPAX_DOOR_CONSUME_ASK_H

#include "broker/source.h"
#include "door/ask.h"

/* Reads the settings key, fingerprint, scope and step of a consumer, which is borrowed. INVALID:
 * text names the setting. */
enum hapax_error hapax__message_ask_read(struct hapax__ask *ask,
                                         const struct hapax_consumer *consumer,
                                         const struct hapax__source *source,
                                         char text[HAPAX_TEXT_MAX]);

/* Finds what a message asks. With MISSING_KEY the rest of the request is there. The caller is that
 * of the HTTP door for a request without credentials: a broker does not say who sends. NOMEM: ask
 * again. */
enum hapax_error hapax__message_ask(struct hapax__asked *out, const struct hapax__ask *ask,
                                    const struct hapax_policy *policy,
                                    const struct hapax__delivered *delivered);

#endif
