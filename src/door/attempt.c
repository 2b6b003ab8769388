/* SPDX-License-Identifier: Apache-2.0
 *
 * What every C door does in the same way: it checks and names a request, shows a handler its
 * attempt, takes the handler's outcome, and hands over the answer.
 *
 * Invariant: an outcome that a handler has set reaches the caller, however little memory is left,
 * because attempt and answer share it. Nothing is copied twice. Rejected: a copy for the answer. A
 * handler that had its effect would then be answered with NOMEM.
 */
#include "attempt.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "core/key.h"
#include "core/question.h"
#include "core/token.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct hapax__bytes {
    atomic_uint owners;
    size_t size;
    uint8_t bytes[];
};

/* ---- outcomes ------------------------------------------------------------------------ */

static struct hapax_span move(uint8_t **at, struct hapax_span from)
{
    struct hapax_span to = {NULL, 0};

    if (from.len == 0)
        return to;
    assert(*at);
    to = (struct hapax_span){memcpy(*at, from.ptr, from.len), from.len};
    *at += from.len;
    return to;
}

/* Copies an outcome, with a line before its headers: *to points into *memory, which is NULL where
 * there are no bytes. False: out of memory, and neither is touched. */
static bool outcome_copy(struct hapax_outcome *to, struct hapax__bytes **memory,
                         struct hapax_span line, const struct hapax_outcome *from)
{
    size_t size = line.len + from->headers.len + from->body.len;
    struct hapax__bytes *bytes = NULL;
    struct hapax_outcome copy = *from;
    uint8_t *at = NULL;

    if (size > 0) {
        bytes = malloc(sizeof(*bytes) + size);
        if (!bytes)
            return false;
        atomic_init(&bytes->owners, 1);
        bytes->size = size;
        at = bytes->bytes;
    }
    line = move(&at, line);
    copy.headers = move(&at, from->headers);
    if (line.len > 0)
        copy.headers = (struct hapax_span){line.ptr, line.len + from->headers.len};
    copy.body = move(&at, from->body);
    *to = copy;
    *memory = bytes;
    return true;
}

static void bytes_drop(struct hapax__bytes *memory)
{
    if (memory && atomic_fetch_sub(&memory->owners, 1) == 1)
        free(memory);
}

static bool points_into(const struct hapax__bytes *memory, struct hapax_span span)
{
    uintptr_t from = (uintptr_t)memory->bytes, at = (uintptr_t)span.ptr;

    return span.len == 0 || (at >= from && at + span.len <= from + memory->size);
}

/* ---- answers ------------------------------------------------------------------------- */

bool hapax__answer_take(struct hapax_answer *to, const struct hapax__flow *flow,
                        const struct hapax_attempt *attempt)
{
    struct hapax__bytes *memory = attempt->memory;
    const struct hapax_outcome *outcome = &flow->answer.outcome;

    *to = flow->answer;
    to->memory = NULL;
    if (memory && points_into(memory, outcome->headers) && points_into(memory, outcome->body)) {
        atomic_fetch_add(&memory->owners, 1);
    } else if (!outcome_copy(&to->outcome, &memory, hapax_str(NULL), outcome)) {
        memset(to, 0, sizeof(*to));
        return false;
    }
    to->memory = memory;
    return true;
}

void hapax_answer_release(struct hapax_answer *answer)
{
    bytes_drop(answer->memory);
    memset(answer, 0, sizeof(*answer));
}

/* ---- attempts ------------------------------------------------------------------------ */

void hapax__attempt_trace(struct hapax_attempt *attempt, const struct hapax__trace *trace)
{
    hapax__trace_write(attempt->trace, trace);
    hapax__trace_line(attempt->trace_line, attempt->trace);
}

/* The line that is kept with an outcome of these headers. */
static struct hapax_span line_of(const struct hapax_attempt *attempt, size_t headers)
{
    bool fits = attempt->trace[0] && headers <= HAPAX_HEADERS_MAX - sizeof(attempt->trace_line);

    return (struct hapax_span){attempt->trace_line, fits ? sizeof(attempt->trace_line) : 0};
}

void hapax__attempt_begin(struct hapax_attempt *attempt, const struct hapax__flow *flow)
{
    bytes_drop(attempt->memory); /* of the hook, which found that nothing happened */
    attempt->memory = NULL;
    attempt->outcome = (struct hapax_outcome){.body_kept = true, .headers = line_of(attempt, 0)};
    attempt->number = flow->attempt > 0 ? flow->attempt : 1;
    attempt->spent = flow->spent;
    attempt->fence = flow->fence;
    attempt->stale = flow->stale;
    attempt->created_us = flow->fence > 0 ? flow->created_us : 0;
    attempt->resolved = flow->resolved;
    /* Without a claim there is nothing to complete, and a token that lands late would be a trap. */
    attempt->has_token = flow->policy->pass_token && flow->fence > 0 && !flow->request.has_old;
    attempt->id = flow->request.id;
    attempt->token = flow->request.token;
}

void hapax__attempt_release(struct hapax_attempt *attempt)
{
    bytes_drop(attempt->memory);
    explicit_bzero(attempt, sizeof(*attempt));
}

uint32_t hapax_attempt_number(const struct hapax_attempt *attempt)
{
    return attempt->number;
}

uint64_t hapax_attempt_fence(const struct hapax_attempt *attempt)
{
    return attempt->fence;
}

bool hapax_attempt_stale(const struct hapax_attempt *attempt)
{
    return attempt->stale;
}

/* A step is lost with the claim of its operation, too. */
bool hapax_attempt_lost(const struct hapax_attempt *attempt)
{
    bool lost = false;

    for (; attempt && !lost; attempt = attempt->outer)
        lost = atomic_load(&attempt->lost);
    return lost;
}

struct hapax_span hapax_attempt_key(const struct hapax_attempt *attempt)
{
    return (struct hapax_span){attempt->key, attempt->key_len};
}

bool hapax_attempt_token(const struct hapax_attempt *attempt, char out[HAPAX_TOKEN_TEXT_MAX])
{
    static_assert(HAPAX_TOKEN_TEXT_MAX == HAPAX__TOKEN_TEXT + 1, "text and NUL");
    out[0] = '\0';
    if (attempt->has_token)
        hapax__token_text(out, &attempt->id, &attempt->token);
    return attempt->has_token;
}

bool hapax__line_is_whole(struct hapax_span name, struct hapax_span value)
{
    for (size_t i = 0; i < name.len; i++)
        if (name.ptr[i] <= ' ' || name.ptr[i] == ':' || name.ptr[i] == 0x7f)
            return false;
    for (size_t i = 0; i < value.len; i++)
        if (strchr("\r\n", value.ptr[i])) /* and NUL */
            return false;
    return name.len > 0;
}

static struct hapax_span span_between(const uint8_t *from, const uint8_t *to)
{
    return (struct hapax_span){from, (size_t)(to - from)};
}

static bool are_lines(struct hapax_span headers)
{
    const uint8_t *at = headers.ptr, *end = headers.len > 0 ? at + headers.len : at;

    while (at != end) {
        const uint8_t *lf = memchr(at, '\n', (size_t)(end - at));
        const uint8_t *colon = lf ? memchr(at, ':', (size_t)(lf - at)) : NULL;

        if (!colon || lf[-1] != '\r' ||
            !hapax__line_is_whole(span_between(at, colon), span_between(colon + 1, lf - 1)))
            return false;
        at = lf + 1;
    }
    return true;
}

enum hapax_error hapax_attempt_outcome(struct hapax_attempt *attempt, int status,
                                       struct hapax_span headers, struct hapax_span body)
{
    struct hapax_outcome given = {status, true, headers, body};
    struct hapax__bytes *before = attempt->memory;
    char others[HAPAX_TRACE_MAX];

    if (status < 0 || status > 999 || headers.len > HAPAX_HEADERS_MAX || !are_lines(headers) ||
        body.len > HAPAX_BODY_MAX)
        return HAPAX_ERR_INVALID;
    do /* a handler's own first line would be read as ours */
        hapax__trace_take(others, &given.headers);
    while (others[0]);
    headers = given.headers;
    if (headers.len + body.len == 0) { /* needs no memory */
        attempt->outcome = (struct hapax_outcome){
            .status = status, .body_kept = true, .headers = line_of(attempt, 0)};
        attempt->memory = NULL;
    } else if (!outcome_copy(&attempt->outcome, &attempt->memory, line_of(attempt, headers.len),
                             &given)) {
        return HAPAX_ERR_NOMEM; /* copied before the former is freed: it may point into that */
    }
    bytes_drop(before);
    return HAPAX_ERR_NONE;
}

/* ---- requests ------------------------------------------------------------------- */

static enum hapax_error over(char text[HAPAX_TEXT_MAX], const char *what, size_t len, unsigned max)
{
    return hapax__fail(text, HAPAX_ERR_INVALID, "%s of %zu bytes is over %u", what, len, max);
}

enum hapax_error hapax__call_check(const struct hapax_policy *policy,
                                   const struct hapax_request *request, bool inner, bool reconciles,
                                   char text[HAPAX_TEXT_MAX])
{
    if (request->scope.len > HAPAX_SCOPE_MAX)
        return over(text, "scope", request->scope.len, HAPAX_SCOPE_MAX);
    if (request->owner.len > HAPAX_OWNER_MAX)
        return over(text, "owner", request->owner.len, HAPAX_OWNER_MAX);
    if (request->key.len > HAPAX_KEY_MAX)
        return over(text, "key", request->key.len, HAPAX_KEY_MAX);
    if (request->step.len > HAPAX_STEP_MAX)
        return over(text, "step", request->step.len, HAPAX_STEP_MAX);
    if (request->step.len > 0 && memchr(request->step.ptr, ':', request->step.len))
        return hapax__fail(text, HAPAX_ERR_INVALID, "step \"%.*s\" holds a ':'",
                           (int)request->step.len, (const char *)request->step.ptr);
    if (!inner && request->step.len > 0 && request->step.ptr[0] == '.')
        return hapax__fail(text, HAPAX_ERR_INVALID, "step \"%.*s\" begins with a '.'",
                           (int)request->step.len, (const char *)request->step.ptr);
    if (policy->on_expired == HAPAX_EXPIRED_RECONCILE && !reconciles)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "on_expired is reconcile, and there is no handler to ask");
    return hapax_policy_check(policy, text);
}

/* What a request is, and in it which step. */
static size_t name_what(uint8_t out[HAPAX_WHAT_MAX], const struct hapax_request *request)
{
    const struct hapax_span parts[] = {request->what, hapax_str("step"), request->step};

    return hapax_what(out, parts, request->step.len > 0 ? 3 : 1);
}

bool hapax__call_identify(struct hapax__flow_request *to, struct hapax__call_names *names,
                          const struct hapax_request *request, const struct hapax__secrets *secrets)
{
    struct hapax_span given = request->scope.len > 0 ? request->scope : hapax_str("default");
    enum hapax_error error;

    memcpy(names->scope, given.ptr, given.len);
    to->key = HAPAX__KEY_GIVEN;
    to->key_len = (uint8_t)request->key.len;
    to->scope = (struct hapax_span){names->scope, given.len};
    to->what = (struct hapax_span){names->what, name_what(names->what, request)};
    to->fingerprint = request->fingerprint;
    to->caller = request->caller;
    error = hapax__identify(to, request->owner, request->key, request->step, secrets);
    assert(error == HAPAX_ERR_NONE);
    return getrandom(to->token.bytes, sizeof(to->token.bytes), 0) ==
           (ssize_t)sizeof(to->token.bytes);
}

int64_t hapax__key_age_ms(const struct hapax_policy *policy, struct hapax_span key)
{
    int64_t made_ms = policy->key_expires ? hapax__key_made_ms(key) : 0;

    return made_ms > 0 ? hapax__wall_us() / US_PER_MS - made_ms : 0;
}

void hapax__attempt_init(struct hapax_attempt *attempt, const struct hapax_policy *policy,
                         const struct hapax_request *request, const struct hapax_attempt *outer)
{
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax__trace trace;

    assert(attempt->execute_inner && attempt->door);
    attempt->policy = policy;
    attempt->request = request;
    attempt->outer = outer;
    attempt->key_len = request->key.len;
    if (request->key.len > 0 && request->step.len > 0)
        error = hapax_key_derive(attempt->key, &attempt->key_len, request->key, request->step);
    else if (request->key.len > 0)
        memcpy(attempt->key, request->key.ptr, request->key.len);
    assert(error == HAPAX_ERR_NONE);
    if (hapax__trace_read(&trace, outer ? hapax_str(outer->trace) : request->trace))
        hapax__attempt_trace(attempt, &trace);
}
