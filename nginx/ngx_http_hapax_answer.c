/* SPDX-License-Identifier: Apache-2.0
 *
 * What the gate itself answers: replays, problems, and the headers that mark a handler's own
 * response. The flow decides which answer it is; this file has its form.
 */

#include "ngx_http_hapax.h"
#include "http/problem.h"


static const char *const  ngx_http_hapax_limits_reached[HAPAX__LIMITS] = {
    NULL,
    "too many operations are in flight",
    "too many new keys came within an hour",
    "too many bytes of responses are kept",
    "too many operations have an unknown outcome"
};


static ngx_int_t
ngx_http_hapax_word(ngx_http_request_t *r, const char *name, const char *value)
{
    return ngx_http_hapax_header(&r->headers_out.headers, name,
                                 (u_char *) value, ngx_strlen(value))
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_hapax_seconds(ngx_http_request_t *r, const char *name, int64_t s)
{
    u_char  *p, *end;

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    end = ngx_sprintf(p, "%L", s);

    return ngx_http_hapax_header(&r->headers_out.headers, name, p, end - p)
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_hapax_retry_after(ngx_http_request_t *r, int64_t ms)
{
    return ms < 0 ? NGX_OK
                  : ngx_http_hapax_seconds(r, "Retry-After",
                                           ngx_max((ms + 999) / 1000, 1));
}


/* How much longer the response is replayed, so how long a retry is safe. */

static ngx_int_t
ngx_http_hapax_ttl(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    return ctx->answer.kept_ms == 0
           ? NGX_OK
           : ngx_http_hapax_seconds(r, "Idempotency-TTL",
                                    ctx->answer.kept_ms / 1000);
}


/* status 0: takes the problem's own status */

static ngx_int_t
ngx_http_hapax_problem(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_uint_t status, ngx_str_t *body)
{
    struct hapax__problem_page  page;

    page = hapax__problem_page_of(&ctx->answer, ngx_time());

    if (ctx->full) {
        page.problem = &hapax__problem_full;
    }

    if (ctx->answer.differs == HAPAX_DIFFERS_CALLER) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "hapax: another caller's key (hapax_owner gives each "
                      "owner keys of its own; hapax_caller says what tells "
                      "callers apart)");
    }

    if (ctx->answer.kind == HAPAX_ANSWER_BAD_KEY) {
        page.why = ctx->why;

    } else if (ctx->answer.kind == HAPAX_ANSWER_LIMITED) {
        page.why = ngx_http_hapax_limits_reached[ctx->limited];
    }

    if (status) {
        page.status = (int) status;

    } else if (ctx->answer.kind == HAPAX_ANSWER_IN_FLIGHT) {
        page.status = (int) ctx->conf->in_flight_status;
    }

    if (ngx_http_hapax_say(r, ctx, &page, body) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->answer.kind == HAPAX_ANSWER_FAILED
        && ngx_http_hapax_word(r, "Idempotency-Replayed", "true") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_hapax_retry_after(r, ctx->answer.retry_after_ms);
}


static ngx_int_t
ngx_http_hapax_replay(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body)
{
    ngx_uint_t             bodiless;
    struct hapax_outcome  *outcome;

    outcome = &ctx->answer.outcome;

    body->data = (u_char *) outcome->body.ptr;
    body->len = outcome->body.len;

    /* other doors have outcomes without a status */
    r->headers_out.status = outcome->status >= NGX_HTTP_OK
                            ? (ngx_uint_t) outcome->status : NGX_HTTP_OK;
    r->headers_out.status_line.len = 0;

    if (r->headers_out.status == NGX_HTTP_NO_CONTENT) {
        /* without a status line nginx takes a 204's Content-Type away */
        ngx_str_set(&r->headers_out.status_line, "204 No Content");
    }

    bodiless = (r->method == NGX_HTTP_HEAD
                || r->headers_out.status == NGX_HTTP_NO_CONTENT
                || r->headers_out.status == NGX_HTTP_NOT_MODIFIED);

    if (bodiless) {
        r->header_only = 1;
    }

    r->headers_out.content_length_n = bodiless ? -1 : (off_t) body->len;

    if (ngx_http_hapax_headers_read(r, ctx->conf, outcome->headers) != NGX_OK) {
        return NGX_ERROR;
    }

    if (r->expect_trailers) {
        r->headers_out.content_length_n = -1;
    }

    if (ngx_http_hapax_word(r, "Idempotency-Replayed", "true") != NGX_OK
        || ngx_http_hapax_seconds(r, "Age", ctx->answer.age_ms / 1000)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_hapax_ttl(r, ctx);
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
    ngx_uint_t  status;

    if (ctx->conf->push == NGX_HTTP_HAPAX_PUSH_DAPR) {
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
        status = (ctx->conf->push == NGX_HTTP_HAPAX_PUSH_SNS)
                 ? NGX_HTTP_SERVICE_UNAVAILABLE : 0;
    }

    return ngx_http_hapax_problem(r, ctx, status, body);
}


ngx_int_t
ngx_http_hapax_answer_fill(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body)
{
    ngx_http_hapax_tell_e  tell;

    r->allow_ranges = 0;
    r->disable_not_modified = 1;

    if (ctx->conf->push) {
        tell = ngx_http_hapax_push_tell(r, ctx, ctx->conf);

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

        break;

    default:
        break;
    }

    return ngx_http_hapax_problem(r, ctx, 0, body);
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
        ngx_string("Idempotency-TTL"),
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
        return ngx_http_hapax_ttl(r, ctx);
    }

    return ngx_http_hapax_word(r, "Idempotency-Recorded", "false");
}


ngx_int_t
ngx_http_hapax_send_whole(ngx_http_request_t *r, ngx_str_t *body)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->pos = body->data;
    b->last = body->data + body->len;
    b->memory = body->len ? 1 : 0;
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


ngx_int_t
ngx_http_hapax_answer_handler(ngx_http_request_t *r)
{
    ngx_int_t              rc;
    ngx_str_t              body;
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

    if (!r->header_only) {
        ngx_http_hapax_reader_add(ctx, body.len);
    }

    return ngx_http_hapax_send_whole(r, &body);
}
