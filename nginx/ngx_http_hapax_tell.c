/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax_push: the gate behind a broker that delivers by HTTP (Dapr, Knative, SNS).
 *
 * Such a broker reads one of three things in a response: done, deliver again, or give up. This file
 * says which of the three a handler's response is, and writes the gate's own answers so that they
 * mean one of the three. The broker gives up a message that can never succeed, and delivers a
 * message again that may. Only "done" is kept as an outcome: the next delivery is expected to run.
 * Rejected: keeping refusals, as for other requests. An operator mends the handler and delivers a
 * dead letter again; a kept refusal would answer that delivery.
 */

#include "ngx_http_hapax.h"
#include "json/raw.h"


/* what a broker makes of a response */


/*
 * Dapr reads the member "status" of a 2xx as Go reads JSON: the case of the
 * name does not count. A body that is no object, or has no string there, is a
 * success. The body here is canonical: its strings have one spelling, and no
 * name comes twice.
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


ngx_http_hapax_tell_e
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


/* what the gate tells a broker */


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
            ngx_http_hapax_count(told[tell], 1);
            return NGX_HTTP_HAPAX_TELL_STORED;
        }

        /* the operation has ended: "retry" would deliver the message for ever */
        if (tell == NGX_HTTP_HAPAX_TELL_RETRY) {
            tell = NGX_HTTP_HAPAX_TELL_DROP;
        }

        break;

    case HAPAX_ANSWER_EXPIRED:
        /* known to be done: a late repeat, and no letter for nobody */
        tell = ctx->answer.recorded ? NGX_HTTP_HAPAX_TELL_DONE
                                    : NGX_HTTP_HAPAX_TELL_DROP;
        break;

    case HAPAX_ANSWER_IN_FLIGHT:
    case HAPAX_ANSWER_UNKNOWN:
    case HAPAX_ANSWER_STORE_DOWN:
    case HAPAX_ANSWER_LIMITED:
        tell = NGX_HTTP_HAPAX_TELL_RETRY;
        break;

    default:
        tell = NGX_HTTP_HAPAX_TELL_DROP;
    }

    ngx_http_hapax_count(told[tell], 1);

    if (tell != NGX_HTTP_HAPAX_TELL_DONE) {
        ngx_http_hapax_push_log(r, ctx, tell);
    }

    return tell;
}
