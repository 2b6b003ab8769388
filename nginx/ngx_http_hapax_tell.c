/* SPDX-License-Identifier: Apache-2.0
 *
 * What a broker makes of a response, and what the gate tells it instead of one (hapax_push).
 *
 * A broker reads one thing out of a response: done, try again, or give up. Two things follow. What the
 * gate itself answers is said in these words: a message that cannot succeed is never tried for ever,
 * and one that may yet succeed is never given up. And a handler's response that is no "done" is no
 * outcome to be kept: who is delivered the message again expects that it runs again. Rejected: to keep
 * refusals, as requests do. One would be given to a message that comes out of the dead letters after a fix.
 */

#include "ngx_http_hapax.h"
#include "json/raw.h"


/* what a broker makes of a response */


/*
 * Dapr reads a status out of a 2xx, as Go reads JSON: a name in any case. What
 * is no object, or has no string there, is a success. The body is canonical:
 * its strings have one spelling, and no name comes twice.
 */

static ngx_http_hapax_tell_e
ngx_http_hapax_push_dapr(struct hapax_span body)
{
    struct hapax_span       name, value;
    struct hapax__raw_walk  walk;

    if (!hapax__raw_is_object(body)) {
        return NGX_HTTP_HAPAX_TELL_DONE;
    }

    hapax__raw_begin(&walk, body);

    while (hapax__raw_next(&walk, &name, &value)) {

        if (name.len != sizeof("\"status\"") - 1
            || ngx_strncasecmp((u_char *) name.ptr, (u_char *) "\"status\"",
                               name.len) != 0)
        {
            continue;
        }

        if (!hapax__raw_is_string(value) || hapax__raw_says(value, "")
            || hapax__raw_says(value, "SUCCESS"))
        {
            return NGX_HTTP_HAPAX_TELL_DONE;
        }

        return hapax__raw_says(value, "DROP")
               ? NGX_HTTP_HAPAX_TELL_DROP : NGX_HTTP_HAPAX_TELL_RETRY;
    }

    return NGX_HTTP_HAPAX_TELL_DONE;
}


static ngx_http_hapax_tell_e
ngx_http_hapax_push_status(struct hapax_span body)
{
    size_t                   len;
    uint8_t                 *json;
    ngx_http_hapax_tell_e    tell;
    enum hapax__json_result  rc;

    if (body.len == 0) {
        return NGX_HTTP_HAPAX_TELL_DONE;
    }

    rc = hapax__json_canonical(&json, &len, body);

    if (rc != HAPAX__JSON_OK) {
        return rc == HAPAX__JSON_NOMEM ? NGX_HTTP_HAPAX_TELL_RETRY
                                       : NGX_HTTP_HAPAX_TELL_DONE;
    }

    tell = ngx_http_hapax_push_dapr((struct hapax_span) { json, len });
    free(json);

    return tell;
}


static ngx_http_hapax_tell_e
ngx_http_hapax_push_of(ngx_uint_t push, ngx_uint_t status,
    struct hapax_span body)
{
    ngx_uint_t  again;

    if (status < NGX_HTTP_SPECIAL_RESPONSE) {
        return push == NGX_HTTP_HAPAX_PUSH_DAPR
               ? ngx_http_hapax_push_status(body) : NGX_HTTP_HAPAX_TELL_DONE;
    }

    switch (push) {

    case NGX_HTTP_HAPAX_PUSH_DAPR:
        again = (status != 404);
        break;

    case NGX_HTTP_HAPAX_PUSH_KNATIVE:
        again = (status >= 500 || status == 404 || status == 408
                 || status == 409 || status == 429);
        break;

    default: /* NGX_HTTP_HAPAX_PUSH_SNS */
        again = (status >= 500 || status == 429);
    }

    return again ? NGX_HTTP_HAPAX_TELL_RETRY : NGX_HTTP_HAPAX_TELL_DROP;
}


enum hapax_class
ngx_http_hapax_push_class(ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf)
{
    ngx_uint_t              status;
    enum hapax_class        cls;
    struct hapax_span       body;
    ngx_http_hapax_ctx_t   *ctx;
    ngx_http_hapax_tell_e   tell;

    ctx = ngx_http_hapax_get_ctx(r);
    status = r->headers_out.status;

    cls = hapax_class_of_status((int) status);

    if (cls != HAPAX_CLASS_FINAL) {
        return cls;
    }

    body.ptr = ctx->body ? ctx->body->data : NULL;
    body.len = ctx->body ? ctx->body->len : 0;

    tell = ngx_http_hapax_push_of(conf->push, status, body);

    if (tell == NGX_HTTP_HAPAX_TELL_DONE) {
        return HAPAX_CLASS_FINAL;
    }

    /* the handler itself asks to be run again, as with a 503 */
    return (tell == NGX_HTTP_HAPAX_TELL_RETRY
            && status < NGX_HTTP_SPECIAL_RESPONSE)
           ? HAPAX_CLASS_NOT_RUN : HAPAX_CLASS_FAILED;
}


/* what the gate says to a broker */


static void
ngx_http_hapax_push_log(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_tell_e tell)
{
    size_t       len;
    u_char       id[2 * sizeof(ctx->id.bytes)];
    ngx_uint_t   level;

    len = 0;

    if (ctx->identified) {
        len = ngx_hex_dump(id, ctx->id.bytes, sizeof(ctx->id.bytes)) - id;
    }

    level = NGX_LOG_INFO;

    if (tell == NGX_HTTP_HAPAX_TELL_DROP) {
        level = NGX_LOG_ERR;

    } else if (ctx->answer.kind == HAPAX_ANSWER_UNKNOWN) {
        level = NGX_LOG_WARN;
    }

    ngx_log_error(level, r->connection->log, 0,
                  "hapax: the broker is told to %s a message: %s%s%s%s%*s",
                  tell == NGX_HTTP_HAPAX_TELL_DROP ? "drop" : "retry",
                  hapax_answer_name(ctx->answer.kind),
                  ctx->why ? ", " : "", ctx->why ? ctx->why : "",
                  len ? ", operation " : "", len, id);
}


ngx_http_hapax_tell_e
ngx_http_hapax_push_tell(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf)
{
    ngx_uint_t             status;
    struct hapax_span      body;
    ngx_http_hapax_tell_e  tell;

    switch (ctx->answer.kind) {

    case HAPAX_ANSWER_REPLAY:
    case HAPAX_ANSWER_GONE:

        /* other doors have outcomes without a status */
        status = ctx->answer.outcome.status;
        body = ctx->answer.outcome.body;
        tell = ngx_http_hapax_push_of(conf->push, status, body);

        if (ctx->answer.kind == HAPAX_ANSWER_REPLAY
            && tell != NGX_HTTP_HAPAX_TELL_RETRY)
        {
            ngx_http_hapax_count_told(tell);
            return NGX_HTTP_HAPAX_TELL_STORED;
        }

        /* it has ended: to be told "again" it would be delivered for ever */
        if (tell == NGX_HTTP_HAPAX_TELL_RETRY) {
            tell = NGX_HTTP_HAPAX_TELL_DROP;
        }

        break;

    case HAPAX_ANSWER_IN_FLIGHT:
    case HAPAX_ANSWER_UNKNOWN:
    case HAPAX_ANSWER_STORE_DOWN:
        tell = NGX_HTTP_HAPAX_TELL_RETRY;
        break;

    default:
        tell = NGX_HTTP_HAPAX_TELL_DROP;
    }

    ngx_http_hapax_count_told(tell);

    if (tell != NGX_HTTP_HAPAX_TELL_DONE) {
        ngx_http_hapax_push_log(r, ctx, tell);
    }

    return tell;
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

    if (ngx_http_hapax_answer_problem(r, ctx, NGX_HTTP_OK, body) != NGX_OK) {
        return NGX_ERROR;
    }

    *body = words[tell];

    ngx_str_set(&r->headers_out.content_type, "application/json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_length_n = body->len;

    return NGX_OK;
}


ngx_int_t
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
        /* without a body: Knative would take one for an event in reply */
        ngx_str_set(body, "");
        r->headers_out.status = NGX_HTTP_OK;
        r->headers_out.status_line.len = 0;
        r->headers_out.content_length_n = 0;

        return NGX_OK;
    }

    if (tell == NGX_HTTP_HAPAX_TELL_DROP) {
        status = NGX_HTTP_BAD_REQUEST;

    } else {
        /* Knative tries 409, 429 and 503 again; SNS of these the last two */
        status = (conf->push == NGX_HTTP_HAPAX_PUSH_SNS)
                 ? NGX_HTTP_SERVICE_UNAVAILABLE : 0;
    }

    return ngx_http_hapax_answer_problem(r, ctx, status, body);
}
