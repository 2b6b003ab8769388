/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON as SQS speaks it: what is asked is written into a growing text, what is answered is read into a tree.
 */
#ifndef HAPAX_BROKER_SQS_JSON_H
#define HAPAX_BROKER_SQS_JSON_H

#include "base/arena.h"

#include <hapax/hapax.h>

#define HAPAX__SQS_DEPTH_MAX 16u /* of what is answered */
#define HAPAX__SQS_NODES_MAX 20000u /* values in it; ten messages have 1000 */

/* ---- writing ----------------------------------------------------------------------------- */

struct hapax__sqs_text {
    char *at;
    size_t len, size;
    bool failed; /* there was no memory: nothing more is written */
};

void hapax__sqs_put(struct hapax__sqs_text *text, const char *json); /* as it is */
void hapax__sqs_put_string(struct hapax__sqs_text *text,
                           struct hapax_span span); /* UTF-8, quoted */
void hapax__sqs_put_base64(struct hapax__sqs_text *text, struct hapax_span span); /* quoted */
void hapax__sqs_put_number(struct hapax__sqs_text *text, int64_t number);
void hapax__sqs_text_clear(struct hapax__sqs_text *text); /* keeps its memory */
void hapax__sqs_text_release(struct hapax__sqs_text *text);

/* ---- reading ----------------------------------------------------------------------------- */

enum hapax__sqs_type {
    HAPAX__SQS_LITERAL = 1,
    HAPAX__SQS_STRING,
    HAPAX__SQS_OBJECT,
    HAPAX__SQS_ARRAY
};

struct hapax__sqs_value {
    enum hapax__sqs_type type;
    struct hapax_span name; /* in its object */
    struct hapax_span
        text; /* of a string, unescaped; of null, true, false and numbers as written */
    struct hapax__sqs_value *first, *next; /* of a container; the next of its own */
};

/* All in the arena. NULL: no JSON, over the limits, or out of memory. */
const struct hapax__sqs_value *hapax__sqs_parse(struct hapax_arena *arena, struct hapax_span json);

/* The member of that name; NULL: `in` is no object, NULL, or has none. */
const struct hapax__sqs_value *hapax__sqs_get(const struct hapax__sqs_value *in, const char *name);

/* Its text where it is a string; else empty. */
struct hapax_span hapax__sqs_get_text(const struct hapax__sqs_value *in, const char *name);

/* Decodes base64 into the arena. False: it is none, or out of memory. */
bool hapax__sqs_base64(struct hapax_span *out, struct hapax_arena *arena, struct hapax_span text);

#endif
