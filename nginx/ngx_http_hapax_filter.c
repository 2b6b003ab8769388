/* SPDX-License-Identifier: Apache-2.0
 *
 * The way out: a handler's response is buffered until its outcome is stored.
 *
 * Stored first, sent second: no byte goes out before the flow has answered. The header filter keeps
 * nginx from sending the header, and the body filter copies the body. At the end the flow gets the
 * outcome, r->buffered keeps the request, and the answer's event sends everything. A response that
 * is not kept (over the limit, or a stream) has an outcome without a body: its first bytes wait for
 * the answer, and the rest passes. The backpressure is nginx's own: buffers are not consumed, so
 * nothing more is read from the upstream.
 *
 * nginx sets header_only further down. This filter sets it too: otherwise the end of a response
 * without a body would never come.
 */

#include "ngx_http_hapax.h"


ngx_http_output_header_filter_pt  ngx_http_hapax_next_header_filter;
ngx_http_output_body_filter_pt    ngx_http_hapax_next_body_filter;


static ngx_int_t ngx_http_hapax_end(ngx_http_request_t *r,
    ngx_http_hapax_ctx_t *ctx, ngx_uint_t kept, enum hapax_class cls);
static ngx_int_t ngx_http_hapax_send(ngx_http_request_t *r,
    ngx_http_hapax_ctx_t *ctx);


/* the header */


ngx_int_t
ngx_http_hapax_is_stream(ngx_http_request_t *r)
{
    ngx_str_t  *type;

    type = &r->headers_out.content_type;

    return (type->len >= sizeof("text/event-stream") - 1
            && ngx_strncasecmp(type->data, (u_char *) "text/event-stream",
                               sizeof("text/event-stream") - 1)
               == 0)
           || (type->len >= sizeof("multipart/x-mixed-replace") - 1
               && ngx_strncasecmp(type->data,
                                  (u_char *) "multipart/x-mixed-replace",
                                  sizeof("multipart/x-mixed-replace") - 1)
                  == 0);
}


static ngx_int_t
ngx_http_hapax_hook_header(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    r->filter_need_in_memory = 1;
    r->allow_ranges = 0;

    ngx_http_hapax_body_drop(ctx->body);
    ctx->hook_over = 0;
    ctx->hook_last = (r->header_only
                      || r->headers_out.status == NGX_HTTP_NO_CONTENT);

    ctx->body = ngx_http_hapax_body_create();

    return ctx->body ? NGX_OK : NGX_ERROR;
}


/*
 * nginx made this response itself, since the handler's service gave none, and
 * no error_page has another one for it.
 */

static ngx_int_t
ngx_http_hapax_is_nginx_error(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    return (r->err_status == NGX_HTTP_BAD_GATEWAY
            || r->err_status == NGX_HTTP_GATEWAY_TIME_OUT)
           && r->headers_out.status == r->err_status
           && !ctx->error_page;
}


/* Puts a problem in the place of nginx's error page. */

static ngx_int_t
ngx_http_hapax_replace_error(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ngx_str_t         text;
    enum hapax_class  cls;

    cls = ngx_http_hapax_class(r, ctx);

    if (ngx_http_hapax_say_failed(r, ctx, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (r->method == NGX_HTTP_HEAD) {
        r->header_only = 1;
        ctx->response = NGX_HTTP_HAPAX_HEADER_ONLY;

    } else if (ngx_http_hapax_body_append(ctx->body, text.data, text.len,
                                          text.len)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_hapax_end(r, ctx, 1, cls) == NGX_OK ? NGX_AGAIN
                                                        : NGX_ERROR;
}


static ngx_int_t
ngx_http_hapax_buffer_header(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ctx->body = ngx_http_hapax_body_create();
    if (ctx->body == NULL) {
        return NGX_ERROR;
    }

    ctx->phase = NGX_HTTP_HAPAX_BUFFERING;

    if (ngx_http_hapax_is_nginx_error(r, ctx)) {
        return ngx_http_hapax_replace_error(r, ctx);
    }

    /* ranges are cut by filters above; an outcome is stored whole */
    ngx_http_clear_accept_ranges(r);
    r->filter_need_in_memory = 1;

    if (ngx_http_hapax_location_absolute(r) != NGX_OK) {
        return NGX_ERROR;
    }

    if (r->method == NGX_HTTP_HEAD
        || r->headers_out.status == NGX_HTTP_NO_CONTENT
        || r->headers_out.status == NGX_HTTP_NOT_MODIFIED)
    {
        r->header_only = 1;
    }

    if (r->header_only) {
        ctx->response = NGX_HTTP_HAPAX_HEADER_ONLY;

        return ngx_http_hapax_end(r, ctx, 1, ngx_http_hapax_class(r, ctx))
               == NGX_OK ? NGX_AGAIN : NGX_ERROR;
    }

    if (ngx_http_hapax_is_stream(r)
        || r->headers_out.content_length_n
           > (off_t) ctx->call->policy.max_response)
    {
        ctx->response = NGX_HTTP_HAPAX_STREAM;

        return ngx_http_hapax_end(r, ctx, 0, ngx_http_hapax_class(r, ctx));
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_hapax_header_filter(ngx_http_request_t *r)
{
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_hapax_get_ctx(r->main);

    if (ctx == NULL) {
        return ngx_http_hapax_next_header_filter(r);
    }

    if (r != r->main) {
        return (ctx->hook == r) ? ngx_http_hapax_hook_header(r, ctx)
                                : ngx_http_hapax_next_header_filter(r);
    }

    switch (ctx->phase) {

    case NGX_HTTP_HAPAX_GRANTED:
    case NGX_HTTP_HAPAX_RUNNING:
        break;

    case NGX_HTTP_HAPAX_BUFFERING:
        /* another response takes the place of the buffered one */
        ngx_http_hapax_body_drop(ctx->body);
        ctx->body = NULL;
        break;

    case NGX_HTTP_HAPAX_SAVING:
    case NGX_HTTP_HAPAX_SENDING:
        return NGX_AGAIN;

    case NGX_HTTP_HAPAX_DROPPING:
        return NGX_OK;

    default:
        if (ctx->shadow) {
            ngx_http_hapax_shadow_header(r, ctx);
        }

        return ngx_http_hapax_next_header_filter(r);
    }

    if (r->headers_out.status == NGX_HTTP_SWITCHING_PROTOCOLS) {
        /* nginx tunnels from here on, and nothing can be buffered */
        ctx->phase = NGX_HTTP_HAPAX_PASSING;
        ctx->response = NGX_HTTP_HAPAX_STREAM;

        if (ngx_http_hapax_end(r, ctx, 0, HAPAX_CLASS_FINAL) != NGX_OK) {
            return NGX_ERROR;
        }

        return ngx_http_hapax_next_header_filter(r);
    }

    if (r->headers_out.status < NGX_HTTP_OK) {
        return ngx_http_hapax_next_header_filter(r);
    }

    return ngx_http_hapax_buffer_header(r, ctx);
}


/* the body */


static void
ngx_http_hapax_consume(ngx_buf_t *b)
{
    b->pos = b->last;

    if (b->in_file) {
        b->file_pos = b->file_last;
    }
}


static void
ngx_http_hapax_discard(ngx_chain_t *cl)
{
    for ( /* void */ ; cl; cl = cl->next) {
        ngx_http_hapax_consume(cl->buf);
    }
}


static ngx_int_t
ngx_http_hapax_hook_body(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_chain_t *in)
{
    size_t        len, max;
    ngx_buf_t    *b;

    if (ctx->call == NULL || ctx->body == NULL) {
        return NGX_OK;
    }

    max = ctx->call->policy.max_response;

    for ( /* void */ ; in; in = in->next) {
        b = in->buf;
        len = ngx_buf_in_memory(b) ? (size_t) (b->last - b->pos) : 0;

        if (len > max - ctx->body->len) {
            ctx->hook_over = 1;

        } else if (ngx_http_hapax_body_append(ctx->body, b->pos, len, max)
                   != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (b->last_in_chain || b->last_buf) {
            ctx->hook_last = 1;
        }

        ngx_http_hapax_consume(b);
    }

    return NGX_OK;
}


/*
 * Copies the buffers to ctx->body. DONE: the response has ended. DECLINED: the
 * response is over a limit, and *rest is what was not copied.
 */

static ngx_int_t
ngx_http_hapax_take(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_chain_t *in, ngx_chain_t **rest, ngx_uint_t *flush)
{
    size_t                       len, max;
    ngx_int_t                    rc;
    ngx_buf_t                   *b;
    ngx_chain_t                 *cl;
    ngx_http_hapax_main_conf_t  *hmcf;

    hmcf = ngx_http_get_module_main_conf(r, ngx_http_hapax_module);
    max = ctx->call->policy.max_response;
    rc = NGX_OK;

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            len = b->last - b->pos;

            if (len > max - ctx->body->len
                || (len && ngx_http_hapax_buffered + len > hmcf->held_max))
            {
                *rest = cl;
                return NGX_DECLINED;
            }

            if (ngx_http_hapax_body_append(ctx->body, b->pos, len, max)
                != NGX_OK)
            {
                return NGX_ERROR;
            }

        } else if (!ngx_buf_special(b)) {
            ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                          "hapax: a buffer is not in memory");
            return NGX_ERROR;
        }

        ngx_http_hapax_consume(b);

        if (b->last_buf) {
            rc = NGX_DONE;
        }

        if (b->flush) {
            *flush = 1;
        }
    }

    return rc;
}


/*
 * nginx ends a response that was cut off with a flush, and no last buffer. After
 * a redirect the upstream is that of before, which sent no header.
 */

static ngx_int_t
ngx_http_hapax_is_truncated(ngx_http_request_t *r)
{
    return r->upstream && r->upstream->cleanup == NULL && !r->keepalive
           && r->upstream->header_sent;
}


static ngx_int_t
ngx_http_hapax_truncated(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ngx_str_t  text;

    if (ngx_http_hapax_say_truncated(r, ctx, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx->body->len = 0;

    if (ngx_http_hapax_body_append(ctx->body, text.data, text.len, text.len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_hapax_end(r, ctx, 1, HAPAX_CLASS_UNKNOWN);
}


static ngx_int_t
ngx_http_hapax_buffer(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_chain_t *in)
{
    ngx_int_t          rc;
    ngx_uint_t         flush;
    ngx_chain_t       *rest;
    enum hapax_class   cls;

    flush = 0;
    rest = NULL;

    rc = ngx_http_hapax_take(r, ctx, in, &rest, &flush);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_OK) {

        if (!flush || !ngx_http_hapax_is_truncated(r)) {
            return NGX_OK;
        }

        return ngx_http_hapax_truncated(r, ctx) == NGX_OK ? NGX_AGAIN
                                                          : NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {
        ctx->response = NGX_HTTP_HAPAX_STREAM;

        if (ngx_chain_add_copy(r->pool, &ctx->rest, rest) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    cls = ngx_http_hapax_class(r, ctx);

    if (ngx_http_hapax_end(r, ctx, rc == NGX_DONE, cls) != NGX_OK) {
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


ngx_int_t
ngx_http_hapax_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_hapax_get_ctx(r->main);

    if (ctx == NULL) {
        return ngx_http_hapax_next_body_filter(r, in);
    }

    if (r != r->main) {
        return (ctx->hook == r) ? ngx_http_hapax_hook_body(r, ctx, in)
                                : ngx_http_hapax_next_body_filter(r, in);
    }

    switch (ctx->phase) {

    case NGX_HTTP_HAPAX_BUFFERING:
        return in ? ngx_http_hapax_buffer(r, ctx, in) : NGX_OK;

    case NGX_HTTP_HAPAX_SAVING:
    case NGX_HTTP_HAPAX_SENDING:

        if (in && ctx->response == NGX_HTTP_HAPAX_STREAM) {

            if (ngx_chain_add_copy(r->pool, &ctx->rest, in) != NGX_OK) {
                return NGX_ERROR;
            }

        } else {
            ngx_http_hapax_discard(in);
        }

        if (ctx->phase == NGX_HTTP_HAPAX_SAVING || ctx->wake.posted) {
            return NGX_AGAIN;
        }

        return ngx_http_hapax_send(r, ctx);

    case NGX_HTTP_HAPAX_DROPPING:
        ngx_http_hapax_discard(in);

        return ngx_http_hapax_next_body_filter(r, NULL);

    default:
        /* nginx calls with nothing where the client has read something */
        if (in == NULL) {
            ngx_http_hapax_reader_reads(ctx);
        }

        if (ctx->shadow) {
            ngx_http_hapax_shadow_body(r, ctx, in);
        }

        return ngx_http_hapax_next_body_filter(r, in);
    }
}


/* Gives the handler's outcome to the flow. The call owns the outcome's memory. */

static ngx_int_t
ngx_http_hapax_end(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_uint_t kept, enum hapax_class cls)
{
    size_t                  len;
    u_char                 *headers;
    ngx_http_hapax_call_t  *call;
    struct hapax_outcome    outcome;

    call = ctx->call;

    headers = ngx_http_hapax_headers_write(r, ctx->conf,
                              ctx->response == NGX_HTTP_HAPAX_HEADER_ONLY,
                              ctx->trace, &len);
    if (headers == NULL) {
        return NGX_ERROR;
    }

    if (len > HAPAX_HEADERS_MAX) {
        kept = 0;
        len = 0;
    }

    free(call->headers);
    call->headers = headers;

    ngx_memzero(&outcome, sizeof(struct hapax_outcome));

    outcome.status = (int) r->headers_out.status;
    outcome.headers.ptr = headers;
    outcome.headers.len = len;

    if (kept) {
        ngx_http_hapax_body_drop(call->body);
        call->body = ctx->body;
        call->body->refs++;

        outcome.body_kept = true;
        outcome.body.ptr = ctx->body->data;
        outcome.body.len = ctx->body->len;
    }

    if (ctx->phase != NGX_HTTP_HAPAX_PASSING) {
        ctx->phase = NGX_HTTP_HAPAX_SAVING;
        r->buffered |= NGX_HTTP_HAPAX_BUFFERED;
    }

    ngx_http_hapax_call_ended(call, cls, &outcome);

    return NGX_OK;
}


/* Makes the buffered response the answer. */

static ngx_int_t
ngx_http_hapax_release(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *text)
{
    ctx->phase = NGX_HTTP_HAPAX_PASSING;

    text->data = ctx->body->data;
    text->len = ctx->body->len;

    if (ctx->response == NGX_HTTP_HAPAX_WHOLE) {
        ngx_http_clear_content_length(r);
        r->headers_out.content_length_n = text->len;
    }

    if (r->headers_out.trailers.part.nelts) {
        /* some clients stop reading after the length */
        r->expect_trailers = 1;
        ngx_http_clear_content_length(r);
    }

    return ngx_http_hapax_answer_mark(r, ctx);
}


/* Another attempt's answer stands: drops this response, buffered or still to come. */

static ngx_int_t
ngx_http_hapax_replace(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *text)
{
    ctx->phase = NGX_HTTP_HAPAX_DROPPING;

    ngx_http_hapax_discard(ctx->rest);
    ctx->rest = NULL;

    ngx_http_hapax_body_drop(ctx->body);
    ctx->body = NULL;

    ngx_http_clean_header(r);
    r->header_only = (r->method == NGX_HTTP_HEAD);

    return ngx_http_hapax_answer_fill(r, ctx, text);
}


static ngx_int_t
ngx_http_hapax_send(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ngx_int_t     rc;
    ngx_str_t     text;
    ngx_buf_t    *b;
    ngx_uint_t    ours;
    ngx_chain_t   out;

    r->buffered &= ~NGX_HTTP_HAPAX_BUFFERED;

    if (ctx->failed) {
        return NGX_ERROR;
    }

    ours = (ctx->answer.kind == HAPAX_ANSWER_FRESH
            || ctx->answer.kind == HAPAX_ANSWER_BYPASS);

    rc = ours ? ngx_http_hapax_release(r, ctx, &text)
              : ngx_http_hapax_replace(r, ctx, &text);

    if (rc != NGX_OK) {
        return NGX_ERROR;
    }

    rc = ngx_http_hapax_next_header_filter(r);

    if (rc == NGX_ERROR || rc > NGX_OK) {
        return NGX_ERROR;
    }

    if (r->header_only) {
        return rc;
    }

    if (ours) {
        ngx_http_hapax_body_sent(ctx->body);
    }

    ngx_http_hapax_reader_add(ctx, text.len);

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_ERROR;
    }

    b->pos = text.data;
    b->last = text.data + text.len;
    b->memory = text.len ? 1 : 0;
    b->last_buf = (!ours || ctx->response != NGX_HTTP_HAPAX_STREAM);
    b->last_in_chain = b->last_buf;

    out.buf = b;
    out.next = ctx->rest;
    ctx->rest = NULL;

    if (text.len == 0 && !b->last_buf) {
        return out.next ? ngx_http_hapax_next_body_filter(r, out.next) : rc;
    }

    return ngx_http_hapax_next_body_filter(r, &out);
}


/* the hook */


ngx_int_t
ngx_http_hapax_hook_done(ngx_http_request_t *sr, void *data, ngx_int_t rc)
{
    size_t                  len;
    ngx_uint_t              status;
    enum hapax_class        cls;
    ngx_http_hapax_ctx_t   *ctx = data;
    ngx_http_hapax_call_t  *call;
    struct hapax_outcome    outcome;

    call = ctx->call;

    if (call == NULL || ctx->hook != sr || rc == NGX_ERROR) {
        return rc;
    }

    if (!sr->header_sent
        && (rc >= NGX_HTTP_SPECIAL_RESPONSE || rc == NGX_HTTP_CREATED
            || rc == NGX_HTTP_NO_CONTENT))
    {
        /* nginx makes a response of this status, and calls again */
        return rc;
    }

    ctx->hook = NULL;

    status = sr->headers_out.status;

    ngx_memzero(&outcome, sizeof(struct hapax_outcome));
    cls = HAPAX_CLASS_UNKNOWN;

    if (status == NGX_HTTP_NOT_FOUND) {
        cls = HAPAX_CLASS_NOT_RUN;

    } else if (status >= 200 && status < 300 && ctx->hook_last && ctx->body
               && (status == NGX_HTTP_NO_CONTENT
                   || !ngx_http_hapax_ends_by_close(sr)))
    {
        cls = HAPAX_CLASS_FINAL;

        call->headers = ngx_http_hapax_headers_write(sr, ctx->conf, 0, "",
                                                     &len);

        if (call->headers == NULL) {
            cls = HAPAX_CLASS_UNKNOWN;
            len = 0;
        }

        if (len > HAPAX_HEADERS_MAX) {
            ctx->hook_over = 1;
            len = 0;
        }

        outcome.status = (int) status;
        outcome.headers.ptr = call->headers;
        outcome.headers.len = len;

        if (!ctx->hook_over) {
            call->body = ctx->body;
            call->body->refs++;

            outcome.body_kept = true;
            outcome.body.ptr = call->body->data;
            outcome.body.len = call->body->len;
        }
    }

    ngx_http_hapax_body_drop(ctx->body);
    ctx->body = NULL;

    ctx->phase = NGX_HTTP_HAPAX_ASKING;

    ngx_http_hapax_call_ended(call, cls, &outcome);

    return rc;
}
