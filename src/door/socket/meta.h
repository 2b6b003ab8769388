/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of a client's frames, read. Spans point into the frame or into the arena. Members
 * that nobody knows are passed over; a member of another type, or over a limit, is refused by name.
 */
#ifndef HAPAX_DOOR_SOCKET_META_H
#define HAPAX_DOOR_SOCKET_META_H

#include "base/arena.h"
#include "door/ask.h"
#include "door/lambda/lines.h"
#include <hapax/hapax.h>

#define HAPAX__META_PARTS_MAX 16u

enum hapax__as { HAPAX__AS_CALL = 1, HAPAX__AS_HTTP, HAPAX__AS_MESSAGE };

/* Bytes that a client gave, or did not give. */
struct hapax__given {
    bool is;
    struct hapax_span bytes;
};

struct hapax__parts {
    bool are;
    size_t n;
    struct hapax_span at[HAPAX__META_PARTS_MAX];
};

struct hapax__meta_message {
    int64_t attempts;
    int64_t retry_min_ms, retry_max_ms; /* 0: the default */
    bool dead; /* unknown results go to the dead letters, and are not parked */
    int64_t wait, waits; /* of `again` */
};

/* BEGIN, and RESUME, which has only ticket, in, reconciles, as and message. */
struct hapax__meta_begin {
    struct hapax_span scope, what, step, trace;
    struct hapax__given key, owner;
    struct hapax__parts key_headers;
    struct hapax__parts caller, fingerprint;
    const char *body; /* as the setting `fingerprint`; NULL: the default */
    struct hapax_span policy; /* an object; empty: none */
    bool reconciles;
    struct hapax__given nonce; /* 16 bytes */
    struct hapax_span ticket; /* the text */
    int64_t in; /* 0: none */
    enum hapax__as as;
    struct hapax__given method, host, uri; /* of `request` */
    struct hapax__lines *headers; /* of `request`; NULL: none */
    struct hapax__meta_message message;
};

struct hapax__meta_end {
    enum hapax_class cls; /* 0: by the status */
    int64_t status; /* -1: none */
    struct hapax_span headers; /* as the lines of an outcome */
    bool body_kept; /* false: there is a body, which was not sent */
    struct hapax__given refuse;
};

/* INVALID: text names the member. NOMEM. */
enum hapax_error hapax__meta_begin_read(struct hapax__meta_begin *out, struct hapax_arena *arena,
                                        struct hapax_span meta, char text[HAPAX_TEXT_MAX]);
enum hapax_error hapax__meta_end_read(struct hapax__meta_end *out, struct hapax_arena *arena,
                                      struct hapax_span meta, bool http, char text[HAPAX_TEXT_MAX]);

/* HELLO: the highest version that the client speaks. */
enum hapax_error hapax__meta_hello_read(int64_t *version, struct hapax_arena *arena,
                                        struct hapax_span meta, char text[HAPAX_TEXT_MAX]);

/* Sets the policies of an object `{"on_expired": "hold"}`. INVALID: text names the policy. */
enum hapax_error hapax__meta_policy_set(struct hapax_policy *policy, struct hapax_span object,
                                        char text[HAPAX_TEXT_MAX]);

#endif
