/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies: what is posted as the response or the error of an invocation. A reply is the function's
 * own with its marks, a stored one, or a problem. And responses: what a function gave, as an
 * outcome.
 */
#ifndef HAPAX_DOOR_LAMBDA_REPLY_H
#define HAPAX_DOOR_LAMBDA_REPLY_H

#include "event.h"
#include "http/problem.h"
#include "lines.h"

/* A text that is posted to …/response, or to …/error with its type. */
struct hapax__lambda_reply {
    bool error;
    bool own; /* of the function: the runtime's headers go with it */
    char error_type[256]; /* Lambda-Runtime-Function-Error-Type */
    char *text; /* from malloc() */
    size_t len;
};

void hapax__reply_release(struct hapax__lambda_reply *reply);

/* Copies a text that is posted as it is. False, here and below: out of memory. */
bool hapax__reply_text(struct hapax__lambda_reply *reply, struct hapax_span text);

/* Makes an error of our own: {"errorType":"Hapax.TYPE",…}. detail: static; NULL: none. */
bool hapax__reply_error(struct hapax__lambda_reply *reply, const char *type, const char *message,
                        const char *detail);

/* Makes a reply of the flow's answer, when the function did not run or its response does not count:
 * a stored response, a problem, or an error, in the form that the event's sender expects.
 *   root  the event
 *   why   static; the reason of BAD_KEY and TOO_LARGE; NULL: none
 *   id    of the operation; NULL: there is none */
bool hapax__reply_answer(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                         struct hapax_span root, const struct hapax_answer *answer, const char *why,
                         const struct hapax_id *id);

/* Makes a reply of the function's own response. An HTTP response gets the marks of FRESH or of an
 * unprotected answer. */
bool hapax__reply_fresh(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                        struct hapax_span text, const struct hapax_answer *answer);

/* Makes an HTTP response of the answer's outcome, with its marks, in the form that the event's
 * sender expects. */
bool hapax__reply_outcome(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                          struct hapax_span root, const struct hapax_answer *answer);

/* ---- what doors answer over HTTP by themselves --------------------------------------------- */

/* The numbers in marks, which lines borrow. */
struct hapax__mark_texts {
    char age[24];
    char ttl[24];
};

/* Adds the marks of a response. */
void hapax__reply_marks(struct hapax__lines *lines, const struct hapax_answer *answer,
                        struct hapax__mark_texts *texts);

/* Whether the answer is a stored response, and no problem. */
bool hapax__reply_is_stored(const struct hapax_answer *answer);

/* A problem as a response. */
struct hapax__problem_reply {
    int status;
    struct hapax__lines lines; /* point into the fields below */
    char link[160], retry[24];
    struct hapax__json_out body; /* to be freed; failed: out of memory */
};

/* Makes the problem of an answer that is no stored response. It must stay where it is. why and id
 * as hapax__reply_answer(). */
void hapax__reply_problem(struct hapax__problem_reply *out, const struct hapax_answer *answer,
                          const char *why, const struct hapax_id *id);

/* ---- responses (response.c) -------------------------------------------------------------- */

/* What a function gave, as an outcome. */
struct hapax__response {
    enum hapax_class cls;
    struct hapax_outcome outcome; /* spans into the response, or memory */
    char *headers;
    uint8_t *body;
};

/* Reads a response. The status of an HTTP response gives the class, by the policy's rules. */
bool hapax__response_read(struct hapax__response *response, const struct hapax_policy *policy,
                          enum hapax_lambda_kind kind, struct hapax_span text);

/* Makes the outcome of an error that the runtime posted: FAILED. hapax__outcome_is_error() knows it
 * again. */
bool hapax__response_error(struct hapax__response *response, struct hapax_span type,
                           struct hapax_span text);

void hapax__response_release(struct hapax__response *response);

/* Whether an outcome is an invocation's error; gives the error's type, cut to size. */
bool hapax__outcome_is_error(char *type, size_t size, const struct hapax_outcome *outcome);

#endif
