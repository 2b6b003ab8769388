/* SPDX-License-Identifier: Apache-2.0
 *
 * What the door tells a client of an operation: RUN, RECONCILE and ANSWER, in the form that the
 * client asked for.
 */
#include "connection.h"

#include "base/clock.h"
#include "base/span.h"
#include "base/utf8.h"
#include "door/consume/decide.h"
#include "door/lambda/reply.h"
#include "ticket.h"

#include <assert.h>
#include <stdio.h>

#define ID_DIGITS 64

/* ---- members ------------------------------------------------------------------------- */

static void put_text(struct hapax__json_out *out, struct hapax_span bytes)
{
    if (hapax__is_utf8(bytes)) {
        hapax__json_put_string(out, bytes);
        return;
    }
    hapax__json_put(out, "{\"base64\":");
    hapax__json_put_base64(out, bytes);
    hapax__json_put(out, "}");
}

/* `,"name":`, without the comma at the start. */
static void put_name(struct hapax__json_out *out, const char *name)
{
    hapax__json_put(out, out->len == 0 ? "{\"" : ",\"");
    hapax__json_put(out, name);
    hapax__json_put(out, "\":");
}

static void put_word(struct hapax__json_out *out, const char *name, const char *word)
{
    put_name(out, name);
    hapax__json_put_shown(out, hapax_str(word)); /* a text may be cut within a character */
}

static void put_number(struct hapax__json_out *out, const char *name, int64_t number)
{
    put_name(out, name);
    hapax__json_put_number(out, number);
}

/* Leaves out a number that is 0. */
static void put_count(struct hapax__json_out *out, const char *name, uint64_t number)
{
    if (number > 0)
        put_number(out, name, (int64_t)number);
}

static void put_bool(struct hapax__json_out *out, const char *name, bool is)
{
    put_name(out, name);
    hapax__json_put(out, is ? "true" : "false");
}

static void put_lines(struct hapax__json_out *out, const struct hapax__lines *lines)
{
    put_name(out, "headers");
    for (size_t i = 0; i < lines->n; i++) {
        hapax__json_put(out, i == 0 ? "[[" : ",[");
        put_text(out, lines->at[i].name);
        hapax__json_put(out, ",");
        put_text(out, lines->at[i].value);
        hapax__json_put(out, "]");
    }
    hapax__json_put(out, lines->n == 0 ? "[]" : "]");
}

/* ---- RUN ----------------------------------------------------------------------------- */

static void put_id(struct hapax__json_out *out, const struct hapax_id *id)
{
    char digits[ID_DIGITS + 1] = {0};

    hapax__hex(digits, id->bytes, sizeof(id->bytes));
    put_word(out, "id", digits);
}

static void put_ticket(struct hapax__json_out *out, const struct hapax__door_op *op)
{
    const struct hapax_attempt *attempt = &op->call->attempt;
    struct hapax__ticket ticket = {
        .policy = op->policy,
        .request = op->request,
        .token = attempt->token,
        .claim = {.attempt = attempt->number,
                  .spent = attempt->spent,
                  .fence = attempt->fence,
                  .stale = attempt->stale,
                  .resolved = attempt->resolved,
                  .reconciling = op->reconciling,
                  .created_us = attempt->created_us},
        .reconciles = op->reconciles,
    };

    ticket.request.trace = hapax_str(attempt->trace);
    put_name(out, "ticket");
    hapax__ticket_put(out, &ticket);
}

void hapax__door_put_run(struct hapax__door_op *op)
{
    const struct hapax_attempt *attempt = &op->call->attempt;
    struct hapax__json_out *out = &op->c->door->json;
    char token[HAPAX_TOKEN_TEXT_MAX];

    hapax__json_clear(out);
    put_number(out, "attempt", attempt->number);
    put_number(out, "fence", (int64_t)attempt->fence);
    put_bool(out, "stale", attempt->stale);
    if (op->request.key.len > 0) {
        put_id(out, &attempt->id);
        put_name(out, "key");
        put_text(out, hapax_attempt_key(attempt));
    }
    if (attempt->trace[0])
        put_word(out, "traceparent", attempt->trace);
    if (hapax_attempt_token(attempt, token))
        put_word(out, "token", token);
    if (attempt->fence > 0)
        put_ticket(out, op);
    hapax__json_put(out, "}");
    hapax__door_put(op->c, op->reconciling ? HAPAX__DOOR_RECONCILE : HAPAX__DOOR_RUN, op->number,
                    (struct hapax_span){NULL, 0});
    explicit_bzero(token, sizeof(token));
}

/* ---- HTTP ---------------------------------------------------------------------------- */

/* Puts the response of an answer that is not the handler's own. Returns its body; *problem holds
 * the body where the answer is a problem. */
static struct hapax_span put_response(struct hapax__json_out *out, struct hapax__door_op *op,
                                      struct hapax__problem_reply *problem)
{
    const struct hapax_outcome *outcome = &op->answer.outcome;
    struct hapax__mark_texts texts;
    struct hapax__lines lines;

    if (!hapax__reply_is_stored(&op->answer)) {
        hapax__reply_problem(problem, &op->answer, op->why, NULL);
        put_number(out, "status", problem->status);
        put_lines(out, &problem->lines);
        return (struct hapax_span){(uint8_t *)problem->body.bytes, problem->body.len};
    }
    hapax__lines_read(&lines, outcome->headers, true);
    hapax__reply_marks(&lines, &op->answer, &texts);
    put_number(out, "status", outcome->status >= 200 ? outcome->status : 200);
    put_lines(out, &lines);
    return outcome->body;
}

/* ---- messages ------------------------------------------------------------------------ */

static const char *do_of(enum hapax__act act)
{
    switch (act) {
    case HAPAX__ACT_ACK:
        return "ack";
    case HAPAX__ACT_DEAD:
    case HAPAX__ACT_REJECT:
        return "dead";
    case HAPAX__ACT_PARK:
        return "park";
    default:
        return "retry";
    }
}

static void put_message(struct hapax__json_out *out, const struct hapax__door_op *op)
{
    const struct hapax__meta_message *message = &op->message;
    const struct hapax_answer *answer = &op->answer;
    const struct hapax__ended ended = {
        .kind = answer->kind,
        .cls = answer->cls,
        .error = answer->error,
        .differs = answer->differs,
        .recorded = answer->recorded,
        .unprotected = answer->unprotected,
        .refused = op->refused,
        .status = answer->outcome.status,
        .spent = answer->spent,
        .retry_after_ms = answer->retry_after_ms,
        .key_min = answer->key_min,
        .why = op->why,
    };
    struct hapax__before before = {.attempts = (uint32_t)message->attempts,
                                   .wait = (enum hapax__wait)message->wait,
                                   .waits = (unsigned)message->waits};
    struct hapax_consumer consumer;
    struct hapax__decision decision;
    char line[HAPAX_TEXT_MAX];
    uint32_t spent;
    bool ran;

    hapax_consumer_init(&consumer);
    consumer.policy = op->policy;
    if (message->retry_min_ms > 0)
        consumer.retry_min_ms = message->retry_min_ms;
    consumer.retry_max_ms = message->retry_max_ms > consumer.retry_min_ms   ? message->retry_max_ms
                            : consumer.retry_max_ms > consumer.retry_min_ms ? consumer.retry_max_ms
                                                                            : consumer.retry_min_ms;
    if (message->dead)
        consumer.unknown = HAPAX_UNKNOWN_DEAD_LETTER;
    /* The record counts this attempt, too, where it may have run. */
    ran = answer->cls == HAPAX_CLASS_FAILED || answer->cls == HAPAX_CLASS_UNKNOWN;
    spent = answer->spent - (ran && answer->spent > 0);
    if (spent > before.attempts)
        before.attempts = spent;
    /* Only to spread pauses. */
    decision = hapax__decide(&consumer, &ended, &before,
                             (uint32_t)hapax__boot_us() * UINT32_C(2654435761));
    put_word(out, "do", do_of(decision.act));
    if (decision.reason) {
        hapax__reason_line(line, decision.reason, &ended, op->text);
        put_word(out, "reason", hapax__reason_name(decision.reason));
        put_word(out, "line", line);
    }
    if (decision.after_ms > 0) {
        put_number(out, "after_ms", decision.after_ms);
        put_name(out, "again");
        hapax__json_put(out, "{\"wait\":");
        hapax__json_put_number(out, decision.wait);
        hapax__json_put(out, ",\"waits\":");
        hapax__json_put_number(out, before.wait == decision.wait ? before.waits + 1 : 1);
        hapax__json_put(out, "}");
    }
}

/* ---- ANSWER -------------------------------------------------------------------------- */

static const char *class_name(enum hapax_class cls)
{
    static const char *const names[] = {"", "final", "not_run", "failed", "unknown"};

    return names[cls];
}

static bool is_own(const struct hapax_answer *answer)
{
    return answer->kind == HAPAX_ANSWER_FRESH || answer->kind == HAPAX_ANSWER_BYPASS;
}

/* A line for people. */
static void put_line(struct hapax__json_out *out, const struct hapax__door_op *op)
{
    const struct hapax_answer *answer = &op->answer;
    char line[2 * HAPAX_TEXT_MAX];

    if (answer->error != HAPAX_ERR_NONE) {
        put_word(out, "text", op->text[0] ? op->text : hapax_error_name(answer->error));
    } else if (!is_own(answer) && answer->kind != HAPAX_ANSWER_REPLAY) {
        (void)snprintf(line, sizeof(line), "%s%s%s",
                       hapax__problem_page_of(answer, 0).problem->title, op->why ? ": " : "",
                       op->why ? op->why : "");
        put_word(out, "text", line);
    }
}

static void put_members(struct hapax__json_out *out, const struct hapax__door_op *op)
{
    const struct hapax_answer *answer = &op->answer;

    put_word(out, "answer", hapax_answer_name(answer->kind));
    put_bool(out, "own", is_own(answer));
    if (answer->cls)
        put_word(out, "class", class_name(answer->cls));
    put_bool(out, "recorded", answer->recorded);
    if (answer->unprotected)
        put_bool(out, "unprotected", true);
    if (answer->unasked)
        put_bool(out, "unasked", true);
    if (answer->retry_after_ms >= 0)
        put_number(out, "retry_after_ms", answer->retry_after_ms);
    if (answer->silent_ms >= 0)
        put_number(out, "silent_ms", answer->silent_ms);
    if (answer->differs)
        put_word(out, "differs",
                 answer->differs == HAPAX_DIFFERS_CALLER ? "caller" : "fingerprint");
    put_count(out, "attempt", answer->attempt);
    put_count(out, "spent", answer->spent);
    put_count(out, "fence", answer->fence);
    if (answer->trace[0])
        put_word(out, "traceparent", answer->trace);
    if (answer->error != HAPAX_ERR_NONE)
        put_word(out, "error", hapax_error_name(answer->error));
    put_line(out, op);
}

/* Puts the outcome that an answer has. Returns the body of the frame. */
static struct hapax_span put_outcome(struct hapax__json_out *out, struct hapax__door_op *op,
                                     struct hapax__problem_reply *problem)
{
    const struct hapax_outcome *outcome = &op->answer.outcome;
    struct hapax_span none = {NULL, 0};
    struct hapax__mark_texts texts;
    struct hapax__lines lines = {.n = 0};
    bool http = op->as == HAPAX__AS_HTTP;

    if (http && !is_own(&op->answer))
        return put_response(out, op, problem);
    if (http)
        hapax__reply_marks(&lines, &op->answer, &texts);
    else if (is_own(&op->answer))
        return none;
    else
        hapax__lines_read(&lines, outcome->headers, false);
    put_number(out, "status", outcome->status);
    put_lines(out, &lines);
    return is_own(&op->answer) ? none : outcome->body;
}

void hapax__door_put_answer(struct hapax__door_op *op)
{
    struct hapax__json_out *out = &op->c->door->json;
    struct hapax__problem_reply problem = {.body = {.bytes = NULL}};
    struct hapax_span body;

    hapax__json_clear(out);
    put_members(out, op);
    body = put_outcome(out, op, &problem);
    if (op->as == HAPAX__AS_MESSAGE)
        put_message(out, op);
    hapax__json_put(out, "}");
    if (problem.body.failed)
        out->failed = true;
    hapax__door_put(op->c, HAPAX__DOOR_ANSWER, op->number, body);
    hapax__json_free(&problem.body);
}
