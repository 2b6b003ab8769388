/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation that has ended, as spans (otlp.h) and events (event.h) tell of it.
 */
#ifndef HAPAX_HTTP_TOLD_H
#define HAPAX_HTTP_TOLD_H

#include "core/trace.h"

#include <hapax/store.h>

/* The door, as spans and events name it; what kind of span its operations are. */
enum hapax__traced_door {
    HAPAX__TRACED_HTTP,
    HAPAX__TRACED_MESSAGE,
    HAPAX__TRACED_LAMBDA,
    HAPAX__TRACED_SOCKET,
    HAPAX__TRACED_COMMAND,
    HAPAX__TRACED_RELAY
};

/* Where an operation stands. Zeroed: its caller has no trace, and no spans are sent. */
struct hapax__traced {
    struct hapax__trace parent; /* the caller's; zeroed: none */
    struct hapax__trace self;
    bool sent; /* as spans */
};

/* The spans of an operation, by the last bits of their ids. */
enum hapax__part {
    HAPAX__PART_OPERATION,
    HAPAX__PART_CLAIM,
    HAPAX__PART_RUN,
    HAPAX__PART_COMPLETE,
    HAPAX__PART_WAIT,
    HAPAX__PARTS = 8
};

struct hapax__told {
    struct hapax__traced at;
    bool keyed;
    struct hapax_id id;
    enum hapax_answer_kind answer;
    enum hapax_class cls;
    bool recorded;
    int status;
    uint32_t attempt;
    uint64_t fence;
    int64_t begun_us, wait_us, run_us, handled_us, ended_us;
    char link[HAPAX_TRACE_MAX]; /* the run that gave the outcome; "": this one, or none */
    size_t scope_len, what_len;
    uint8_t scope[HAPAX_SCOPE_MAX]; /* as the caller gave it; of a relay: the topic */
    uint8_t what[HAPAX_WHAT_MAX]; /* by hapax_what(); of a relay: the topic and the row's number */
};

static inline struct hapax__trace hapax__part_of(const struct hapax__traced *traced,
                                                 enum hapax__part part)
{
    struct hapax__trace context = traced->self;

    context.span[7] = (uint8_t)(context.span[7] ^ part);
    return context;
}

const char *hapax__traced_name(enum hapax__traced_door door);
const char *hapax__class_name(enum hapax_class cls);

#endif
