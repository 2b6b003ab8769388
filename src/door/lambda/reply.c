/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies, written. An HTTP response is stored as status, header lines and body, as the HTTP door
 * stores one: either door can replay what the other has run. Other responses are stored as bytes.
 *
 * The invariants: a function's own response is passed on byte for byte, but for the headers that
 * mark it. A stored error is never sent as a response.
 */
#include "reply.h"
#include "lines.h"

#include "json/raw.h"
#include "json/write.h"

#include "base/bytes.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void hapax__reply_release(struct hapax__lambda_reply *reply)
{
    free(reply->text);
    memset(reply, 0, sizeof(*reply));
}

static FILE *reply_open(struct hapax__lambda_reply *reply)
{
    memset(reply, 0, sizeof(*reply));
    return open_memstream(&reply->text, &reply->len);
}

static bool reply_close(struct hapax__lambda_reply *reply, FILE *out)
{
    bool good = !ferror(out);

    good = fclose(out) == 0 && good;
    if (!good)
        hapax__reply_release(reply);
    return good;
}

static void put_string(FILE *out, struct hapax_span bytes)
{
    hapax__json_put_string(&(struct hapax__json_out){.to = out}, bytes);
}

bool hapax__reply_text(struct hapax__lambda_reply *reply, struct hapax_span text)
{
    memset(reply, 0, sizeof(*reply));
    reply->text = malloc(text.len + 1);
    if (!reply->text)
        return false;
    if (text.len > 0)
        memcpy(reply->text, text.ptr, text.len);
    reply->text[text.len] = '\0';
    reply->len = text.len;
    return true;
}

bool hapax__reply_error(struct hapax__lambda_reply *reply, const char *type, const char *message,
                        const char *detail)
{
    FILE *out = reply_open(reply);

    if (!out)
        return false;
    (void)fputs("{\"errorType\":\"Hapax.", out);
    (void)fputs(type, out);
    (void)fputs("\",\"errorMessage\":", out);
    if (detail) {
        char text[512];

        (void)snprintf(text, sizeof(text), "%s: %s", message, detail);
        put_string(out, hapax_str(text));
    } else {
        put_string(out, hapax_str(message));
    }
    (void)fputs(",\"stackTrace\":[]}", out);
    reply->error = true;
    (void)snprintf(reply->error_type, sizeof(reply->error_type), "Hapax.%s", type);
    return reply_close(reply, out);
}

/* ---- HTTP ------------------------------------------------------------------------------ */

static void put_all(FILE *out, struct hapax_span bytes)
{
    if (bytes.len > 0)
        (void)fwrite(bytes.ptr, 1, bytes.len, out);
}

static void put_values(FILE *out, const struct hapax__lines *lines, size_t first, bool list)
{
    struct hapax_span name = lines->at[first].name;
    bool more = false;
    char *joined = NULL;
    size_t len = 0;
    FILE *join = list ? NULL : open_memstream(&joined, &len);

    (void)fputs(list ? "[" : "", out);
    for (size_t i = first; i < lines->n; i++) {
        if (!hapax__line_is(&lines->at[i], name))
            continue;
        if (list) {
            (void)fputs(more ? "," : "", out);
            put_string(out, lines->at[i].value);
        } else if (join) {
            (void)fputs(more ? ", " : "", join);
            put_all(join, lines->at[i].value);
        }
        more = true;
    }
    if (join && fclose(join) == 0)
        put_string(out, (struct hapax_span){(uint8_t *)joined, len});
    else if (!list)
        (void)fputs("\"\"", out);
    free(joined);
    (void)fputs(list ? "]" : "", out);
}

static void put_headers(FILE *out, const struct hapax__lines *lines, bool list)
{
    bool more = false;

    (void)fputs(list ? "\"multiValueHeaders\":{" : "\"headers\":{", out);
    for (size_t i = 0; i < lines->n; i++) {
        if (hapax__lines_first(lines, lines->at[i].name) != i)
            continue;
        (void)fputs(more ? "," : "", out);
        put_string(out, lines->at[i].name);
        (void)fputc(':', out);
        put_values(out, lines, i, list);
        more = true;
    }
    (void)fputc('}', out);
}

/* Whether headers stand in lists: if a load balancer is set to that, or a REST API has several of
 * one name. */
static bool lists_headers(enum hapax_lambda_kind kind, struct hapax_span root,
                          const struct hapax__lines *lines)
{
    struct hapax_span value;

    if (kind == HAPAX_LAMBDA_ALB)
        return hapax__raw_member(&value, root, "multiValueHeaders") && hapax__raw_is_object(value);
    if (kind != HAPAX_LAMBDA_REST)
        return false;
    for (size_t i = 0; i < lines->n; i++)
        if (hapax__lines_first(lines, lines->at[i].name) != i)
            return true;
    return false;
}

static bool put_http(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                     struct hapax_span root, int status, const struct hapax__lines *lines,
                     struct hapax_span body)
{
    bool text = hapax__is_utf8(body);
    FILE *out = reply_open(reply);

    if (!out)
        return false;
    (void)fprintf(out, "{\"statusCode\":%d,", status);
    put_headers(out, lines, lists_headers(kind, root, lines));
    (void)fputs(",\"body\":", out);
    if (text) {
        put_string(out, body);
    } else {
        hapax__json_put_base64(&(struct hapax__json_out){.to = out}, body);
    }
    (void)fprintf(out, ",\"isBase64Encoded\":%s}", text ? "false" : "true");
    return reply_close(reply, out);
}

/* Whether the outcome is a bare string. An HTTP API makes a body of it, and does so again. */
static bool is_bare_string(enum hapax_lambda_kind kind, const struct hapax_outcome *outcome)
{
    return kind == HAPAX_LAMBDA_HTTP && outcome->status == 200 && outcome->body.len > 0 &&
           outcome->body.ptr[0] == '"' &&
           hapax__same(outcome->headers, hapax_str("Content-Type: application/json\r\n"));
}

/* Adds a time in seconds, rounded down: RFC 9111, 5.1. */
static void add_seconds(struct hapax__lines *lines, const char *name, char text[24], int64_t ms)
{
    (void)snprintf(text, 24, "%lld", (long long)(ms / 1000));
    hapax__lines_add(lines, name, text);
}

void hapax__reply_marks(struct hapax__lines *lines, const struct hapax_answer *answer,
                        struct hapax__mark_texts *texts)
{
    bool fresh = answer->kind == HAPAX_ANSWER_FRESH;

    if (answer->unprotected)
        hapax__lines_add(lines, "Idempotency-Protected", "false");
    else if (answer->kind != HAPAX_ANSWER_BYPASS)
        hapax__lines_add(lines, "Idempotency-Replayed", fresh ? "false" : "true");
    if (fresh && !answer->recorded)
        hapax__lines_add(lines, "Idempotency-Recorded", "false");
    if (hapax__reply_is_stored(answer))
        add_seconds(lines, "Age", texts->age, answer->age_ms);
    if (answer->kept_ms > 0)
        add_seconds(lines, "Idempotency-TTL", texts->ttl, answer->kept_ms);
}

bool hapax__reply_is_stored(const struct hapax_answer *answer)
{
    return answer->kind == HAPAX_ANSWER_REPLAY ||
           (answer->kind == HAPAX_ANSWER_FAILED && answer->outcome.body_kept &&
            (answer->outcome.status > 0 || answer->outcome.body.len > 0));
}

bool hapax__reply_outcome(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                          struct hapax_span root, const struct hapax_answer *answer)
{
    const struct hapax_outcome *outcome = &answer->outcome;
    struct hapax__mark_texts texts;
    struct hapax__lines lines;

    if (is_bare_string(kind, outcome))
        return hapax__reply_text(reply, outcome->body);
    hapax__lines_read(&lines, outcome->headers, true);
    hapax__reply_marks(&lines, answer, &texts);
    return put_http(reply, kind, root, outcome->status >= 200 ? outcome->status : 200, &lines,
                    outcome->body);
}

/* ---- problems -------------------------------------------------------------------------- */

void hapax__reply_problem(struct hapax__problem_reply *out, const struct hapax_answer *answer,
                          const char *why, const struct hapax_id *id)
{
    struct hapax__problem_page page = hapax__problem_page_of(answer, time(NULL));
    struct hapax__lines *lines = &out->lines;

    memset(out, 0, sizeof(*out));
    page.base = hapax_str(HAPAX__PROBLEM_BASE);
    page.id = id;
    page.why = why;
    out->status = page.status;
    hapax__problem_put(&out->body, hapax_str(""), &page);
    hapax__lines_add(lines, "Content-Type", "application/problem+json");
    (void)snprintf(out->link, sizeof(out->link), "<%s%s>; rel=\"describedby\"", HAPAX__PROBLEM_BASE,
                   page.problem->slug);
    hapax__lines_add(lines, "Link", out->link);
    hapax__lines_add(lines, "Cache-Control", "no-store");
    if (answer->kind == HAPAX_ANSWER_FAILED)
        hapax__lines_add(lines, "Idempotency-Replayed", "true");
    if (answer->retry_after_ms >= 0) {
        int64_t seconds = (answer->retry_after_ms + 999) / 1000;

        (void)snprintf(out->retry, sizeof(out->retry), "%lld",
                       (long long)(seconds > 0 ? seconds : 1));
        hapax__lines_add(lines, "Retry-After", out->retry);
    }
}

static bool reply_problem(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                          struct hapax_span root, const struct hapax_answer *answer,
                          const char *why, const struct hapax_id *id)
{
    struct hapax__problem_reply problem;
    bool good;

    hapax__reply_problem(&problem, answer, why, id);
    good = !problem.body.failed &&
           put_http(reply, kind, root, problem.status, &problem.lines,
                    (struct hapax_span){(uint8_t *)problem.body.bytes, problem.body.len});
    hapax__json_free(&problem.body);
    return good;
}

/* ---- answers --------------------------------------------------------------------------- */

static bool reply_stored_error(struct hapax__lambda_reply *reply, const char *type,
                               const struct hapax_outcome *outcome)
{
    if (!hapax__reply_text(reply, outcome->body))
        return false;
    reply->error = true;
    (void)snprintf(reply->error_type, sizeof(reply->error_type), "%s", type);
    return true;
}

/* Whether the sender ignores the response: then a lost one is no error. */
static bool is_told_only(enum hapax_lambda_kind kind)
{
    return kind == HAPAX_LAMBDA_SNS || kind == HAPAX_LAMBDA_EVENTBRIDGE ||
           kind == HAPAX_LAMBDA_CLOUDEVENT;
}

bool hapax__reply_answer(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                         struct hapax_span root, const struct hapax_answer *answer, const char *why,
                         const struct hapax_id *id)
{
    bool stored = hapax__reply_is_stored(answer);
    struct hapax__problem_page page;
    char type[256];

    if (stored && hapax__outcome_is_error(type, sizeof(type), &answer->outcome))
        return reply_stored_error(reply, type, &answer->outcome);
    if (hapax__event_is_http(kind))
        return stored ? hapax__reply_outcome(reply, kind, root, answer)
                      : reply_problem(reply, kind, root, answer, why, id);
    if (answer->kind == HAPAX_ANSWER_REPLAY)
        return hapax__reply_text(reply, answer->outcome.body.len > 0 ? answer->outcome.body
                                                                     : hapax_str("null"));
    if (answer->kind == HAPAX_ANSWER_GONE && is_told_only(kind) &&
        !hapax__outcome_is_error(type, sizeof(type), &answer->outcome))
        return hapax__reply_text(reply, hapax_str("null"));
    if (answer->kind == HAPAX_ANSWER_EXPIRED && answer->recorded && is_told_only(kind))
        return hapax__reply_text(reply, hapax_str("null"));
    page = hapax__problem_page_of(answer, time(NULL));
    return hapax__reply_error(reply, page.problem->name, page.problem->title, why);
}

/* ---- a function's own response ------------------------------------------------------------ */

/* Finds the headers that get the marks; empty: there are none yet. *list: their values are lists.
 * False: the member is no object of headers. */
static bool find_headers(struct hapax_span *out, struct hapax_span response, bool *list)
{
    struct hapax_span single, lists;

    (void)hapax__raw_member(&single, response, "headers");
    (void)hapax__raw_member(&lists, response, "multiValueHeaders");
    *list = hapax__raw_is_object(lists) && hapax__raw_is_null(single);
    *out = *list ? lists : single;
    return hapax__raw_is_null(*out) || hapax__raw_is_object(*out);
}

static void put_mark(FILE *out, const char *name, const char *value, bool list)
{
    (void)fprintf(out, list ? "\"%s\":[\"%s\"]" : "\"%s\":\"%s\"", name, value);
}

static void put_marks(FILE *out, const struct hapax_answer *answer, bool list)
{
    if (answer->unprotected) {
        put_mark(out, "Idempotency-Protected", "false", list);
        return;
    }
    put_mark(out, "Idempotency-Replayed", "false", list);
    if (!answer->recorded) {
        (void)fputc(',', out);
        put_mark(out, "Idempotency-Recorded", "false", list);
    }
    if (answer->kept_ms > 0) {
        char ttl[24];

        (void)snprintf(ttl, sizeof(ttl), "%lld", (long long)(answer->kept_ms / 1000));
        (void)fputc(',', out);
        put_mark(out, "Idempotency-TTL", ttl, list);
    }
}

/* Writes the other headers, without marks: only this door sets those. */
static void put_others(FILE *out, struct hapax_span headers)
{
    struct hapax_span name, value;
    struct hapax__raw_walk walk;

    hapax__raw_begin(&walk, headers);
    while (hapax__raw_next(&walk, &name, &value)) {
        if (hapax__line_is_mark((struct hapax_span){name.ptr + 1, name.len - 2}))
            continue;
        (void)fputc(',', out);
        put_all(out, name);
        (void)fputc(':', out);
        put_all(out, value);
    }
}

bool hapax__reply_fresh(struct hapax__lambda_reply *reply, enum hapax_lambda_kind kind,
                        struct hapax_span text, const struct hapax_answer *answer)
{
    struct hapax_span root, headers, status;
    const uint8_t *at;
    bool list;
    FILE *out;

    if (!hapax__event_is_http(kind) ||
        (answer->kind == HAPAX_ANSWER_BYPASS && !answer->unprotected) ||
        !hapax__raw_check(&root, text) || !hapax__raw_is_object(root) ||
        !hapax__raw_member(&status, root, "statusCode") || !find_headers(&headers, root, &list))
        return hapax__reply_text(reply, text);
    out = reply_open(reply);
    if (!out)
        return false;
    at = headers.ptr ? headers.ptr : root.ptr + 1;
    put_all(out, (struct hapax_span){text.ptr, (size_t)(at - text.ptr)});
    (void)fputs(headers.ptr ? "{" : "\"headers\":{", out);
    put_marks(out, answer, list);
    put_others(out, headers);
    (void)fputs(headers.ptr ? "}" : "},", out);
    at += headers.len;
    put_all(out, (struct hapax_span){at, (size_t)(text.ptr + text.len - at)});
    return reply_close(reply, out);
}
