/* SPDX-License-Identifier: Apache-2.0
 *
 * What the gate itself answers: replays, problems (RFC 9457), and the headers that mark a handler's
 * own response. The flow decides which answer it is; this file has its form and its texts.
 */

#include "ngx_http_hapax.h"


typedef struct {
    ngx_uint_t   status;
    const char  *slug;
    const char  *title;
    const char  *detail;
} ngx_http_hapax_problem_t;


static ngx_http_hapax_problem_t  ngx_http_hapax_problems[] = {

    /* where no failure was stored, and under hapax_push */
    [HAPAX_ANSWER_FAILED] =
    { 500, "attempts-used-up", "No more attempts",
      "All attempts that this operation may have were used up." },

    /* under hapax_push, where the stored response would be retried for ever */
    [HAPAX_ANSWER_REPLAY] =
    { 400, "refused-before", "The message was refused before",
      "The operation completed with a response that is no success, and will "
      "not have another." },

    [HAPAX_ANSWER_MISSING_KEY] =
    { 400, "missing-key", "Idempotency key is missing",
      "This operation needs an idempotency key." },

    [HAPAX_ANSWER_BAD_KEY] =
    { 400, "bad-key", "Idempotency key is malformed",
      "The key is not what this service takes for one." },

    [HAPAX_ANSWER_IN_FLIGHT] =
    { 409, "in-flight", "A request with this idempotency key is in flight",
      "Ask again, with the same key, after the time in Retry-After." },

    [HAPAX_ANSWER_UNKNOWN] =
    { 409, "unknown-outcome", "The outcome of this operation is not known",
      "An earlier attempt was cut off, and may or may not have had its effect. "
      "It is not run again." },

    [HAPAX_ANSWER_MISMATCH] =
    { 422, "fingerprint-mismatch", "Idempotency key was used for another request",
      "The key names an operation whose request was another." },

    [HAPAX_ANSWER_GONE] =
    { 410, "response-not-kept", "The operation completed, its response was not kept",
      "The operation took effect. Its response was too large, or a stream." },

    [HAPAX_ANSWER_TOO_LARGE] =
    { 413, "request-too-large", "Request is too large for an idempotent operation",
      "Nothing was run." },

    [HAPAX_ANSWER_STORE_DOWN] =
    { 503, "store-unavailable", "The operation cannot be protected now",
      "The idempotency store is not available. Nothing was run for this "
      "request." },
};


static ngx_http_hapax_problem_t  ngx_http_hapax_caller_mismatch = {
    422, "caller-mismatch", "Idempotency key is another caller's",
    "The key names an operation of another caller."
};

static ngx_http_hapax_problem_t  ngx_http_hapax_full = {
    503, "store-unavailable", "The operation cannot be protected now",
    "The gate holds as many responses as it may. Nothing was run for this "
    "request."
};

static ngx_http_hapax_problem_t  ngx_http_hapax_cut_off = {
    502, "response-truncated", "The response was cut off",
    "The service behind the gate began a response and did not end it. The "
    "operation may have had its effect."
};


static ngx_int_t
ngx_http_hapax_word(ngx_http_request_t *r, const char *name, const char *value)
{
    return ngx_http_hapax_header(&r->headers_out.headers, name,
                                 (u_char *) value, ngx_strlen(value))
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_hapax_retry_after(ngx_http_request_t *r, int64_t ms)
{
    u_char  *p, *end;

    if (ms < 0) {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    end = ngx_sprintf(p, "%L", ngx_max((ms + 999) / 1000, 1));

    return ngx_http_hapax_header(&r->headers_out.headers, "Retry-After", p,
                                 end - p)
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_hapax_say(ngx_http_request_t *r, ngx_http_hapax_problem_t *problem,
    ngx_uint_t status, const char *why, int original, ngx_str_t *body)
{
    u_char                     *p;
    size_t                      len, why_len;
    ngx_str_t                   link;
    ngx_http_hapax_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_hapax_module);
    why_len = why ? ngx_strlen(why) : 0;

    len = sizeof("{\"type\":\"\",\"title\":\"\",\"status\":,\"detail\":\"\","
                 "\"original_status\":}\n")
          + conf->problem_base.len + ngx_strlen(problem->slug)
          + ngx_strlen(problem->title) + ngx_strlen(problem->detail)
          + why_len + ngx_escape_json(NULL, (u_char *) why, why_len)
          + sizeof(" .") + 2 * NGX_INT_T_LEN;

    body->data = ngx_pnalloc(r->pool, len);
    if (body->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(body->data,
                    "{\"type\":\"%V%s\",\"title\":\"%s\",\"status\":%ui,"
                    "\"detail\":\"%s",
                    &conf->problem_base, problem->slug, problem->title, status,
                    problem->detail);

    if (why) {
        *p++ = ' ';
        *p++ = ngx_toupper(why[0]);
        p = (u_char *) ngx_escape_json(p, (u_char *) why + 1, why_len - 1);
        *p++ = '.';
    }

    *p++ = '"';

    if (original) {
        p = ngx_sprintf(p, ",\"original_status\":%d", original);
    }

    p = ngx_cpymem(p, "}\n", 2);
    body->len = p - body->data;

    link.len = conf->problem_base.len + ngx_strlen(problem->slug)
               + sizeof("<>; rel=\"describedby\"") - 1;

    link.data = ngx_pnalloc(r->pool, link.len);
    if (link.data == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(link.data, "<%V%s>; rel=\"describedby\"", &conf->problem_base,
                problem->slug);

    r->headers_out.status = status;
    r->headers_out.status_line.len = 0;
    ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.content_length_n = body->len;

    if (ngx_http_hapax_header(&r->headers_out.headers, "Link", link.data,
                              link.len)
        == NULL)
    {
        return NGX_ERROR;
    }

    return ngx_http_hapax_word(r, "Cache-Control", "no-store");
}


/* status 0: takes the problem's own status */

static ngx_int_t
ngx_http_hapax_problem(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_uint_t status, ngx_str_t *body)
{
    int                         original;
    const char                 *why;
    ngx_http_hapax_problem_t   *problem;
    ngx_http_hapax_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_hapax_module);

    problem = &ngx_http_hapax_problems[ctx->answer.kind];
    why = NULL;
    original = 0;

    switch (ctx->answer.kind) {

    case HAPAX_ANSWER_BAD_KEY:
        why = ctx->why;
        break;

    case HAPAX_ANSWER_MISMATCH:
        if (ctx->answer.differs == HAPAX_DIFFERS_CALLER) {
            problem = &ngx_http_hapax_caller_mismatch;
        }

        break;

    case HAPAX_ANSWER_STORE_DOWN:
        if (ctx->full) {
            problem = &ngx_http_hapax_full;
        }

        break;

    case HAPAX_ANSWER_REPLAY:
    case HAPAX_ANSWER_GONE:
        original = ctx->answer.outcome.status;
        break;

    default:
        break;
    }

    if (status == 0) {
        status = (ctx->answer.kind == HAPAX_ANSWER_IN_FLIGHT)
                 ? conf->in_flight_status : problem->status;
    }

    if (ngx_http_hapax_say(r, problem, status, why, original, body) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->answer.kind == HAPAX_ANSWER_FAILED
        && ngx_http_hapax_word(r, "Idempotency-Replayed", "true") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_hapax_retry_after(r, ctx->answer.retry_after_ms);
}


ngx_int_t
ngx_http_hapax_answer_truncated(ngx_http_request_t *r, ngx_str_t *body)
{
    ngx_http_clean_header(r);

    return ngx_http_hapax_say(r, &ngx_http_hapax_cut_off,
                              ngx_http_hapax_cut_off.status, NULL, 0, body);
}


static ngx_int_t
ngx_http_hapax_replay(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body)
{
    struct hapax_outcome  *outcome;

    outcome = &ctx->answer.outcome;

    body->data = (u_char *) outcome->body.ptr;
    body->len = outcome->body.len;

    /* other doors have outcomes without a status */
    r->headers_out.status = outcome->status >= NGX_HTTP_OK
                            ? (ngx_uint_t) outcome->status : NGX_HTTP_OK;
    r->headers_out.status_line.len = 0;
    r->headers_out.content_length_n = (r->method == NGX_HTTP_HEAD)
                                      ? -1 : (off_t) body->len;

    if (ngx_http_hapax_headers_read(r, outcome->headers) != NGX_OK) {
        return NGX_ERROR;
    }

    if (r->headers_out.status == NGX_HTTP_NO_CONTENT
        || r->headers_out.status == NGX_HTTP_NOT_MODIFIED
        || r->expect_trailers)
    {
        r->headers_out.content_length_n = -1;
    }

    return ngx_http_hapax_word(r, "Idempotency-Replayed", "true");
}


static ngx_int_t
ngx_http_hapax_push_fill_dapr(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_tell_e tell, ngx_str_t *body)
{
    static ngx_str_t  words[] = {
        ngx_string("{\"status\":\"SUCCESS\"}\n"),
        ngx_string("{\"status\":\"RETRY\"}\n"),
        ngx_string("{\"status\":\"DROP\"}\n")
    };

    if (ngx_http_hapax_problem(r, ctx, NGX_HTTP_OK, body) != NGX_OK) {
        return NGX_ERROR;
    }

    *body = words[tell];

    ngx_str_set(&r->headers_out.content_type, "application/json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_length_n = body->len;

    return NGX_OK;
}


static ngx_int_t
ngx_http_hapax_push_fill(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_tell_e tell, ngx_str_t *body)
{
    ngx_uint_t                  status;
    ngx_http_hapax_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_hapax_module);

    if (conf->push == NGX_HTTP_HAPAX_PUSH_DAPR) {
        return ngx_http_hapax_push_fill_dapr(r, ctx, tell, body);
    }

    if (tell == NGX_HTTP_HAPAX_TELL_DONE) {
        /* without a body, which Knative would take for an event in reply */
        ngx_str_set(body, "");
        r->headers_out.status = NGX_HTTP_OK;
        r->headers_out.status_line.len = 0;
        r->headers_out.content_length_n = 0;

        return NGX_OK;
    }

    if (tell == NGX_HTTP_HAPAX_TELL_DROP) {
        status = NGX_HTTP_BAD_REQUEST;

    } else {
        /* Knative tries 409, 429 and 503 again, SNS only 429 and 503 */
        status = (conf->push == NGX_HTTP_HAPAX_PUSH_SNS)
                 ? NGX_HTTP_SERVICE_UNAVAILABLE : 0;
    }

    return ngx_http_hapax_problem(r, ctx, status, body);
}


ngx_int_t
ngx_http_hapax_answer_fill(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body)
{
    ngx_http_hapax_tell_e       tell;
    ngx_http_hapax_loc_conf_t  *conf;

    r->allow_ranges = 0;
    r->disable_not_modified = 1;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_hapax_module);

    if (conf->push) {
        tell = ngx_http_hapax_push_tell(r, ctx, conf);

        if (tell != NGX_HTTP_HAPAX_TELL_STORED) {
            return ngx_http_hapax_push_fill(r, ctx, tell, body);
        }
    }

    switch (ctx->answer.kind) {

    case HAPAX_ANSWER_REPLAY:
        return ngx_http_hapax_replay(r, ctx, body);

    case HAPAX_ANSWER_FAILED:
        if (ctx->answer.outcome.status && ctx->answer.outcome.body_kept) {
            return ngx_http_hapax_replay(r, ctx, body);
        }

        /* fall through */

    default:
        return ngx_http_hapax_problem(r, ctx, 0, body);
    }
}


/* Removes the marks of another gate behind this one. */

static void
ngx_http_hapax_unmark(ngx_http_request_t *r)
{
    ngx_str_t         *mark;
    ngx_uint_t         i;
    ngx_list_part_t   *part;
    ngx_table_elt_t   *h;
    static ngx_str_t   marks[] = {
        ngx_string("Idempotency-Replayed"),
        ngx_string("Idempotency-Recorded"),
        ngx_string("Idempotency-Protected"),
        ngx_null_string
    };

    i = 0;
    part = &r->headers_out.headers.part;

    while ((h = ngx_http_hapax_header_next(&part, &i)) != NULL) {
        for (mark = marks; mark->len; mark++) {
            if (h->key.len == mark->len
                && ngx_strncasecmp(h->key.data, mark->data, mark->len) == 0)
            {
                h->hash = 0;
            }
        }
    }
}


ngx_int_t
ngx_http_hapax_answer_mark(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ngx_http_hapax_unmark(r);

    if (ctx->answer.kind == HAPAX_ANSWER_BYPASS) {
        return ctx->answer.unprotected
               ? ngx_http_hapax_word(r, "Idempotency-Protected", "false")
               : NGX_OK;
    }

    if (ngx_http_hapax_word(r, "Idempotency-Replayed", "false") != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->answer.recorded) {
        return NGX_OK;
    }

    return ngx_http_hapax_word(r, "Idempotency-Recorded", "false");
}


ngx_int_t
ngx_http_hapax_answer_handler(ngx_http_request_t *r)
{
    ngx_int_t              rc;
    ngx_buf_t             *b;
    ngx_str_t              body;
    ngx_chain_t            out;
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_hapax_get_ctx(r);

    if (ctx->failed) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r->headers_in.expect && !r->expect_tested && r->request_body == NULL) {
        /* no "100 Continue" for a body that is not needed */
        r->expect_tested = 1;
        r->keepalive = 0;

    } else {
        rc = ngx_http_discard_request_body(r);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (ngx_http_hapax_answer_fill(r, ctx, &body) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->pos = body.data;
    b->last = body.data + body.len;
    b->memory = body.len ? 1 : 0;
    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}
