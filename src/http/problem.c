/* SPDX-License-Identifier: Apache-2.0
 *
 * The problems with their texts, and the pages made of them.
 *
 * The status of gRPC is the one on which gRPC's own documents let a client act: ABORTED and
 * UNAVAILABLE may be sent again as they are, FAILED_PRECONDITION not before somebody has acted.
 * Rejected: templates compiled into pieces. A page is made for a refusal only, and is short.
 */
#include "problem.h"

#include "base/fail.h"
#include "base/span.h"
#include "json/raw.h"

#include <ctype.h>
#include <inttypes.h>
#include <time.h>

#define DETAIL_MAX 512u

enum grpc {
    INVALID_ARGUMENT = 3,
    ALREADY_EXISTS = 6,
    RESOURCE_EXHAUSTED = 8,
    FAILED_PRECONDITION = 9,
    ABORTED = 10,
    INTERNAL = 13,
    UNAVAILABLE = 14,
};

#define IDEMPOTENCY "idempotency_error"
#define REQUEST     "invalid_request_error"
#define API         "api_error"
#define RATE_LIMIT  "rate_limit_error"

static const struct hapax__problem problems[] = {
    /* where no failure was stored, and before brokers that push */
    [HAPAX_ANSWER_FAILED] = {500, INTERNAL, "attempts-used-up", API, "AttemptsUsedUp",
                             "No more attempts",
                             "All attempts that this operation may have were used up."},
    /* before brokers that push, where the stored response would be retried for ever */
    [HAPAX_ANSWER_REPLAY] = {400, INVALID_ARGUMENT, "refused-before", REQUEST, "RefusedBefore",
                             "The message was refused before",
                             "The operation completed with a response that is no success, and will "
                             "not have another."},
    [HAPAX_ANSWER_MISSING_KEY] = {400, INVALID_ARGUMENT, "missing-key", REQUEST, "MissingKey",
                                  "Idempotency key is missing",
                                  "This operation needs an idempotency key."},
    [HAPAX_ANSWER_BAD_KEY] = {400, INVALID_ARGUMENT, "bad-key", REQUEST, "BadKey",
                              "Idempotency key is malformed",
                              "The key is not what this service takes for one."},
    [HAPAX_ANSWER_MISSING_OWNER] = {400, INVALID_ARGUMENT, "missing-owner", REQUEST, "MissingOwner",
                                    "Nobody can tell whose idempotency key this is",
                                    "The request does not say who sends it. Nothing was run."},
    [HAPAX_ANSWER_IN_FLIGHT] = {409, ABORTED, "in-flight", IDEMPOTENCY, "InFlight",
                                "A request with this idempotency key is in flight, or was just "
                                "cut off",
                                "Another attempt is in flight; or it was cut off less than a "
                                "lease ago, and its outcome is not known yet. Ask again, with the "
                                "same key, after the time in Retry-After."},
    [HAPAX_ANSWER_UNKNOWN] = {409, FAILED_PRECONDITION, "unknown-outcome", IDEMPOTENCY,
                              "UnknownOutcome", "The outcome of this operation is not known",
                              "An earlier attempt was cut off, and may or may not have had its "
                              "effect. It is not run again."},
    [HAPAX_ANSWER_MISMATCH] = {422, INVALID_ARGUMENT, "fingerprint-mismatch", IDEMPOTENCY,
                               "FingerprintMismatch",
                               "Idempotency key was used for another request",
                               "The key names an operation whose request was another."},
    [HAPAX_ANSWER_GONE] = {410, ALREADY_EXISTS, "response-not-kept", IDEMPOTENCY, "ResponseNotKept",
                           "The operation completed, its response was not kept",
                           "The operation took effect. Its response was too large, or a stream."},
    [HAPAX_ANSWER_TOO_LARGE] = {413, RESOURCE_EXHAUSTED, "request-too-large", REQUEST,
                                "RequestTooLarge",
                                "Request is too large for an idempotent operation",
                                "Nothing was run."},
    [HAPAX_ANSWER_LIMITED] =
        {429, RESOURCE_EXHAUSTED, "limit-reached", RATE_LIMIT, "LimitReached",
         "A limit of this account is reached",
         "The owner of this key has reached a limit of what one owner may have "
         "in flight or stored. "
         "Nothing was run for this request."},
    [HAPAX_ANSWER_EXPIRED] = {410, FAILED_PRECONDITION, "expired-key", IDEMPOTENCY, "ExpiredKey",
                              "Idempotency key is too old",
                              "The outcome of this key is not kept any more, or the key was made "
                              "longer ago than outcomes are kept: an operation may have had its "
                              "effect. Nothing was run for this request."},
    [HAPAX_ANSWER_STORE_DOWN] = {503, UNAVAILABLE, "store-unavailable", API, "StoreUnavailable",
                                 "The operation cannot be protected now",
                                 "The idempotency store is not available. Nothing was run for this "
                                 "request."},
};

static const struct hapax__problem caller_mismatch = {
    422,
    INVALID_ARGUMENT,
    "caller-mismatch",
    IDEMPOTENCY,
    "CallerMismatch",
    "Idempotency key is another caller's",
    "The key names an operation of another caller."};

/* A hook may still find out: the client may ask again. */
static const struct hapax__problem unknown_yet = {
    409,
    ABORTED,
    "unknown-outcome",
    IDEMPOTENCY,
    "UnknownOutcome",
    "The outcome of this operation is not known",
    "An earlier attempt was cut off, and may or may not have had its effect. Ask again, with the "
    "same key, after the time in Retry-After."};

const struct hapax__problem hapax__problem_full = {
    503,
    UNAVAILABLE,
    "store-unavailable",
    API,
    "StoreUnavailable",
    "The operation cannot be protected now",
    "The gate holds as many responses as it may. Nothing was run for this request."};

const struct hapax__problem hapax__problem_truncated = {
    502,
    UNAVAILABLE,
    "response-truncated",
    API,
    "ResponseTruncated",
    "The response was cut off",
    "The service behind the gate began a response and did not end it. The operation may have had "
    "its effect."};

const struct hapax__problem hapax__problem_failed = {
    502,
    UNAVAILABLE,
    "upstream-failed",
    API,
    "UpstreamFailed",
    "The service gave no response",
    "The service behind the gate got the request and gave no valid response. The operation may "
    "have had its effect."};

const struct hapax__problem hapax__problem_timeout = {
    504,
    UNAVAILABLE,
    "upstream-timeout",
    API,
    "UpstreamTimeout",
    "The service took too long",
    "The service behind the gate got the request and gave no response in time. The operation may "
    "have had its effect."};

const struct hapax__problem hapax__problem_unreachable = {
    502,
    UNAVAILABLE,
    "upstream-unreachable",
    API,
    "UpstreamUnreachable",
    "The service cannot be reached",
    "The service behind the gate cannot be reached. Nothing was run."};

static const struct hapax__problem *problem_of(const struct hapax_answer *answer)
{
    if (answer->kind == HAPAX_ANSWER_MISMATCH && answer->differs == HAPAX_DIFFERS_CALLER)
        return &caller_mismatch;
    if (answer->kind == HAPAX_ANSWER_UNKNOWN && answer->retry_after_ms >= 0)
        return &unknown_yet;
    return &problems[answer->kind];
}

struct hapax__problem_page hapax__problem_page_of(const struct hapax_answer *answer, int64_t now_s)
{
    const struct hapax__problem *problem = problem_of(answer);
    bool stored = answer->kind == HAPAX_ANSWER_REPLAY || answer->kind == HAPAX_ANSWER_GONE;
    bool timed = answer->kind == HAPAX_ANSWER_IN_FLIGHT && answer->silent_ms >= 0;

    return (struct hapax__problem_page){.problem = problem,
                                        .status = problem->status,
                                        .key_min = answer->key_min,
                                        .original_status = stored ? answer->outcome.status : 0,
                                        .since_s = timed ? now_s - answer->silent_ms / 1000 : 0};
}

/* ---- pages --------------------------------------------------------------------------- */

static void escape(struct hapax__json_out *out, const char *text)
{
    hapax__json_put_escaped(out, hapax_str(text));
}

static void put_type(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    hapax__json_put_escaped(out, page->base);
    escape(out, page->problem->slug);
}

static void put_detail(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    char text[DETAIL_MAX];

    escape(out, page->problem->detail);
    if (page->key_min) {
        (void)snprintf(text, sizeof(text), " It has fewer than %" PRIu32 " bytes.", page->key_min);
        escape(out, text);
    }
    if (!page->why || !page->why[0])
        return;
    (void)snprintf(text, sizeof(text), " %c%s.", toupper((unsigned char)page->why[0]),
                   page->why + 1);
    escape(out, text);
}

void hapax__problem_put_message(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    escape(out, page->problem->title);
    hapax__json_put(out, ". ");
    put_detail(out, page);
}

static void put_instance(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    char hex[2 * sizeof(page->id->bytes) + 1];

    if (!page->id)
        return;
    *hapax__hex(hex, page->id->bytes, sizeof(page->id->bytes)) = '\0';
    hapax__json_put(out, HAPAX__INSTANCE_BASE);
    hapax__json_put(out, hex);
}

static void put_original_status(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    if (page->original_status)
        hapax__json_put_number(out, page->original_status);
    else
        hapax__json_put(out, "null");
}

static void put_since(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    char text[sizeof("YYYY-mm-ddTHH:MM:SSZ") + 16];
    time_t time = page->since_s;
    struct tm tm;

    if (page->since_s && gmtime_r(&time, &tm) &&
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm) > 0)
        hapax__json_put(out, text);
}

static void put_status(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    hapax__json_put_number(out, page->status);
}

static void put_title(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    escape(out, page->problem->title);
}

static void put_code(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    escape(out, page->problem->slug);
}

static void put_error_type(struct hapax__json_out *out, const struct hapax__problem_page *page)
{
    escape(out, page->problem->error_type);
}

static const struct variable {
    const char *name;
    void (*put)(struct hapax__json_out *out, const struct hapax__problem_page *page);
} variables[] = {
    {"type", put_type},
    {"title", put_title},
    {"status", put_status},
    {"detail", put_detail},
    {"instance", put_instance},
    {"code", put_code},
    {"message", hapax__problem_put_message},
    {"error_type", put_error_type},
    {"original_status", put_original_status},
    {"since", put_since},
};

/* The next piece of a template: text up to a '$', a dollar, or a variable. */
struct piece {
    struct hapax_span text; /* of a variable: its name */
    bool is_variable;
    const struct variable *variable; /* NULL: there is none of that name */
};

/* Takes a piece off the rest of a template, which is not empty. */
static struct piece take_piece(struct hapax_span *rest)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
    struct piece piece = {.text = *rest};
    size_t len = 0;

    if (rest->ptr[0] != '$') {
        const uint8_t *dollar = memchr(rest->ptr, '$', rest->len);

        piece.text.len = dollar ? (size_t)(dollar - rest->ptr) : rest->len;
    } else if (rest->len > 1 && rest->ptr[1] == '$') {
        piece.text.len = 1;
        rest->ptr++;
        rest->len--;
    } else {
        rest->ptr++;
        rest->len--;
        while (len < rest->len && rest->ptr[len] && strchr(letters, rest->ptr[len]))
            len++;
        piece = (struct piece){{rest->ptr, len}, true, NULL};
        for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
            if (hapax__is(piece.text, variables[i].name))
                piece.variable = &variables[i];
    }
    rest->ptr += piece.text.len;
    rest->len -= piece.text.len;
    return piece;
}

static const char rfc9457[] =
    "{\"type\":\"$type\",\"title\":\"$title\",\"status\":$status,\"detail\":\"$detail\",";
static const char rfc9457_end[] =
    "\"error\":{\"type\":\"$error_type\",\"code\":\"$code\",\"message\":\"$message\"}}\n";
static const char stripe[] = "{\"error\":{\"type\":\"$error_type\",\"code\":\"$code\","
                             "\"message\":\"$message\",\"doc_url\":\"$type\"}}\n";

static void put_template(struct hapax__json_out *out, struct hapax_span rest,
                         const struct hapax__problem_page *page)
{
    while (rest.len > 0) {
        struct piece piece = take_piece(&rest);

        if (piece.variable)
            piece.variable->put(out, page);
        else
            hapax__json_put_span(out, piece.text);
    }
}

void hapax__problem_put(struct hapax__json_out *out, struct hapax_span template,
                        const struct hapax__problem_page *page)
{
    if (template.len > 0) {
        put_template(out, template, page);
        return;
    }
    put_template(out, hapax_str(rfc9457), page);
    if (page->id)
        put_template(out, hapax_str("\"instance\":\"$instance\","), page);
    if (page->original_status)
        put_template(out, hapax_str("\"original_status\":$original_status,"), page);
    if (page->since_s)
        put_template(out, hapax_str("\"since\":\"$since\","), page);
    put_template(out, hapax_str(rfc9457_end), page);
}

/* ---- pages of docs/problems ---------------------------------------------------------- */

extern const char hapax__problem_pages[]; /* all of them; each begins with "# SLUG (" */

bool hapax__problem_find(struct hapax_span *page, struct hapax_span slug)
{
    char head[64];
    const char *at, *end;

    if (slug.len == 0 || slug.len + sizeof("#  (") > sizeof(head))
        return false;
    (void)snprintf(head, sizeof(head), "# %.*s (", (int)slug.len, (const char *)slug.ptr);
    at = strstr(hapax__problem_pages, head);
    if (!at)
        return false;
    end = strstr(at, "\n# ");
    *page = (struct hapax_span){(const uint8_t *)at, end ? (size_t)(end + 1 - at) : strlen(at)};
    return true;
}

/* ---- templates ----------------------------------------------------------------------- */

bool hapax__problem_template_named(struct hapax_span *template, const char *name)
{
    *template = hapax_str("");
    if (strcmp(name, "stripe") == 0)
        *template = hapax_str(stripe);
    return template->len > 0 || strcmp(name, "rfc9457") == 0;
}

static enum hapax_error check_json(struct hapax_span template, int original_status,
                                   char text[HAPAX_TEXT_MAX])
{
    const struct hapax__problem_page page = {.problem = &problems[HAPAX_ANSWER_GONE],
                                             .status = 410,
                                             .base = hapax_str(HAPAX__PROBLEM_BASE),
                                             .original_status = original_status};
    struct hapax__json_out out = {0};
    struct hapax_span value;
    enum hapax_error error = HAPAX_ERR_NONE;

    put_template(&out, template, &page);
    if (out.failed)
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    else if (!hapax__raw_check(&value, (struct hapax_span){(uint8_t *)out.bytes, out.len}))
        error = hapax__fail(text, HAPAX_ERR_INVALID,
                            "it gives no JSON; only $status and $original_status stand outside of "
                            "strings");
    hapax__json_free(&out);
    return error;
}

enum hapax_error hapax__problem_template_check(struct hapax_span template,
                                               char text[HAPAX_TEXT_MAX])
{
    struct hapax_span rest = template;
    enum hapax_error error;

    if (template.len == 0 || template.len > HAPAX__PROBLEM_TEMPLATE_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "it is empty, or over %u bytes",
                           HAPAX__PROBLEM_TEMPLATE_MAX);
    while (rest.len > 0) {
        struct piece piece = take_piece(&rest);

        if (piece.is_variable && !piece.variable)
            return hapax__fail(
                text, HAPAX_ERR_INVALID, "there is no variable \"$%.*s\"; $$ is a dollar",
                (int)(piece.text.len < 40 ? piece.text.len : 40), (const char *)piece.text.ptr);
    }
    error = check_json(template, 0, text);
    return error == HAPAX_ERR_NONE ? check_json(template, 200, text) : error;
}
