/* SPDX-License-Identifier: Apache-2.0
 *
 * What is sent as the response, or the error, of an invocation: a function's own with its marks, a stored one, a problem;
 * and what a function's response says of the operation.
 */
#ifndef HAPAX_DOOR_LAMBDA_REPLY_H
#define HAPAX_DOOR_LAMBDA_REPLY_H

#include "event.h"

/* What is posted: to …/response, or to …/error with its type. */
struct hapax__lambda_reply {
    bool error;
    bool own; /* the function's own words, so that its headers go with them */
    char error_type[256]; /* Lambda-Runtime-Function-Error-Type */
    char *text; /* from malloc() */
    size_t len;
};

void hapax__reply_release(struct hapax__lambda_reply *reply);

/* Copies a text that is posted as it is. False: out of memory, as of all that follow. */
bool hapax__reply_text(struct hapax__lambda_reply *reply, struct hapax_span text);

/* An error of our own: {"errorType":"Hapax.TYPE",…}. detail: static, NULL: none. */
bool hapax__reply_error(struct hapax__lambda_reply *reply, const char *type, const char *message,
                        const char *detail);

/* What the flow answered where the function did not run, or what it said does not count: a stored response, a problem, or an
 * error, in the form that the event's sender expects. root: the event. why: of BAD_KEY and TOO_LARGE, static. */
bool hapax__reply_answer(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                         struct hapax_span root, const struct hapax_answer *answer,
                         const char *why);

/* A function's own response, with the marks of a FRESH or unprotected one where it is HTTP; else as it is. */
bool hapax__reply_fresh(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                        struct hapax_span text, const struct hapax_answer *answer);

/* The answer's outcome as an HTTP response in the form that the event's sender expects, with its marks. */
bool hapax__reply_outcome(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                          struct hapax_span root, const struct hapax_answer *answer);

/* ---- what a function said ---------------------------------------------------------------- */

struct hapax__response {
    enum hapax_class cls;
    struct hapax_outcome outcome; /* spans into the response, or memory */
    char *headers;
    uint8_t *body;
};

/* Reads a response. Of an HTTP event: its status gives the class. False: out of memory. */
bool hapax__response_read(struct hapax__response *response, enum hapax_lambda_kind kind,
                          struct hapax_span text);

/* An error that the runtime posted: FAILED. Its outcome is known again by hapax__outcome_is_error(). */
bool hapax__response_error(struct hapax__response *response, struct hapax_span type,
                           struct hapax_span text);

void hapax__response_release(struct hapax__response *response);

/* Whether an outcome is an invocation's error; *type, cut to size, is its type. */
bool hapax__outcome_is_error(char *type, size_t size, const struct hapax_outcome *outcome);

#endif
