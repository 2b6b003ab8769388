/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies by scope: a file with a JSON object, `{"payments": {"on_expired": "hold"}}`.
 */
#ifndef HAPAX_DOOR_SOCKET_SCOPES_H
#define HAPAX_DOOR_SOCKET_SCOPES_H

#include <hapax/hapax.h>

#define HAPAX__SCOPES_MAX 1024u

struct hapax__scopes {
    struct hapax_policy policy; /* of a scope that is not named */
    struct hapax__scope {
        uint8_t name[HAPAX_SCOPE_MAX];
        size_t name_len;
        struct hapax_policy policy;
    } * named;
    size_t n;
};

/* Reads the text of a file. What a scope does not set is scopes->policy, which is set already.
 * INVALID: text names the scope. NOMEM. On failure there are no named scopes. */
enum hapax_error hapax__scopes_read(struct hapax__scopes *scopes, struct hapax_span json,
                                    char text[HAPAX_TEXT_MAX]);
void hapax__scopes_release(struct hapax__scopes *scopes);

const struct hapax_policy *hapax__scopes_find(const struct hapax__scopes *scopes,
                                              struct hapax_span name);

#endif
