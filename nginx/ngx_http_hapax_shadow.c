/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that are only watched (hapax shadow): each goes to its handler as without a gate, and
 * its response to the client, while a flow beside it says what the gate would have done. The flow
 * claims, waits and stores as ever, with a shadow's records: in a scope of their own, and with a
 * digest in the place of the body.
 *
 * The invariant: a watched request waits for nothing, and no byte of it is changed. It has the
 * phase PASSING from the first, and the flow begins when the last byte of its body has come by. A
 * call may outlive its request, as ever, and what the two have to tell each other may come in
 * either order: that the flow says RUN, and that the response has ended; the first response, and
 * this one.
 *
 * Rejected: records under the ids that the gate has when it is on. They tell of operations that ran
 * unguarded: a second run may have had another outcome, and an `unknown` one was perhaps answered.
 * Turned on, the gate would replay and refuse what nobody has looked after. Rejected: to read the
 * body first, as for an operation. A call that sends while it receives would wait for ever.
 */

#include "ngx_http_hapax.h"


/* calls of one worker; what comes above that is not judged */
#define NGX_HTTP_HAPAX_SHADOWS_MAX   1024

/* so much of a message's response is looked at, for the word of Dapr in it */
#define NGX_HTTP_HAPAX_SHADOW_BODY   4096

static ngx_uint_t  ngx_http_hapax_shadows;


static void
ngx_http_hapax_shadow_not_judged(ngx_http_hapax_ctx_t *ctx)
{
    ctx->watching = 0;
    ctx->would = HAPAX__WOULD_NOT_KNOWN;

    if (ctx->conf->zone->counts) {
        hapax__count(&ctx->conf->zone->counts->would[ctx->would], 1);
    }
}


/* Logs what would have become of a request. id NULL: it is no operation. */

static void
ngx_http_hapax_shadow_log(ngx_log_t *log, unsigned would, struct hapax_id *id)
{
    size_t  len;
    u_char  hex[2 * sizeof(id->bytes)];

    if (would == HAPAX_ANSWER_FRESH || would == HAPAX_ANSWER_BYPASS) {
        return;
    }

    len = id ? ngx_hex_dump(hex, id->bytes, sizeof(id->bytes)) - hex : 0;

    ngx_log_error(NGX_LOG_NOTICE, log, 0, "hapax: shadow: %s%s%*s",
                  hapax__would_name(would), len ? ", operation " : "", len,
                  hex);
}


/* the request */


void
ngx_http_hapax_shadow_alone(ngx_http_hapax_ctx_t *ctx, ngx_uint_t too_large)
{
    struct hapax__flow  flow;

    ctx->watching = 0;

    (void) ngx_http_hapax_decide_alone(&flow, ctx, ctx->conf, too_large);

    ctx->would = flow.would;
    ngx_http_hapax_shadow_log(ctx->request->connection->log, ctx->would, NULL);
}


/* The body has come by as a whole. */

static void
ngx_http_hapax_shadow_ask(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ngx_int_t                    rc;
    struct hapax__flow_request   request;

    ctx->hashing = 0;

    if (ngx_http_hapax_shadows >= NGX_HTTP_HAPAX_SHADOWS_MAX
        || (r->request_body_no_buffering && ctx->received
            && ngx_http_hapax_needs_body(ctx, ctx->conf)))
    {
        ngx_http_hapax_shadow_not_judged(ctx);
        return;
    }

    ngx_memzero(&request, sizeof(struct hapax__flow_request));

    rc = ngx_http_hapax_identify(r, ctx, ctx->conf, &request);

    if (rc == NGX_DECLINED) {
        ngx_http_hapax_shadow_alone(ctx, request.too_large);

    } else if (rc != NGX_OK
               || ngx_http_hapax_call_begin(ctx, ctx->conf, &request) != NGX_OK)
    {
        ngx_http_hapax_shadow_not_judged(ctx);
    }
}


void
ngx_http_hapax_shadow_read(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    if (ctx->hashing && r->request_body && r->request_body->rest == 0
        && r->request_body->last_saved)
    {
        ngx_http_hapax_shadow_ask(r, ctx);
    }
}


ngx_int_t
ngx_http_hapax_shadow_begin(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ctx->watching = 1;
    ctx->hashing = 1;

    if (SHA256_Init(&ctx->sha256) != 1) {
        return NGX_ERROR;
    }

    if (r->request_body
        || (r->headers_in.content_length_n <= 0 && !r->headers_in.chunked))
    {
        ngx_http_hapax_shadow_ask(r, ctx);
    }

    return NGX_OK;
}


/* the first response, and this one */


static void
ngx_http_hapax_shadow_compare(struct hapax__counts *counts,
    const ngx_http_hapax_seen_t *first, const ngx_http_hapax_seen_t *own)
{
    ngx_uint_t  differs;

    if (counts == NULL || first->status == 0 || own->status == 0) {
        return;
    }

    differs = (first->status != own->status
               || ngx_memcmp(&first->body, &own->body, sizeof(first->body))
                  != 0);

    hapax__count(&counts->repeats[differs], 1);
}


/* The flow gives its answer: keeps the first response of a replay, in the form that a shadow has
 * stored. */

static void
ngx_http_hapax_shadow_answer(ngx_http_hapax_call_t *call)
{
    ngx_http_hapax_seen_t       *first;
    const struct hapax_answer   *answer;

    answer = &call->flow.answer;

    if (answer->error != HAPAX_ERR_NONE) {
        ngx_http_hapax_lane_log(call->store, ngx_cycle->log, answer->error);
    }

    if (answer->kind != HAPAX_ANSWER_REPLAY
        || call->flow.would != HAPAX_ANSWER_REPLAY
        || answer->outcome.body.len != sizeof(first->body))
    {
        return;
    }

    first = call->ctx ? &call->ctx->first : &call->first;
    first->status = answer->outcome.status;
    ngx_memcpy(&first->body, answer->outcome.body.ptr, sizeof(first->body));

    /* otherwise its own response has not ended, and is compared then */

    if (call->kept == NGX_HTTP_HAPAX_KEPT_WHOLE) {
        ngx_http_hapax_shadow_compare(call->flow.counts, first, &call->own);
    }
}


/* what the flow says */


/* The flow waits for the end of its handler, and that has come already. */

static void
ngx_http_hapax_shadow_end(ngx_http_hapax_call_t *call)
{
    struct hapax_outcome  outcome;

    ngx_memzero(&outcome, sizeof(struct hapax_outcome));

    if (call->kept) {
        outcome.status = (int) call->own.status;
        outcome.body_kept = (call->kept == NGX_HTTP_HAPAX_KEPT_WHOLE);
        outcome.body.ptr = call->own.body.bytes;
        outcome.body.len = outcome.body_kept ? sizeof(call->own.body) : 0;
    }

    hapax__flow_handled(&call->flow, call->ended, &outcome, hapax__boot_us());
}


void
ngx_http_hapax_shadow_act(ngx_http_hapax_call_t *call, enum hapax__flow_do what)
{
    ngx_http_hapax_ctx_t  *ctx;
    struct hapax_outcome   none;

    ctx = call->ctx;

    if (ctx) {
        ctx->would = call->flow.would;
    }

    if (!call->logged && call->flow.would) {
        call->logged = 1;
        ngx_http_hapax_shadow_log(ctx ? ctx->request->connection->log
                                      : ngx_cycle->log,
                                  call->flow.would, &call->flow.request.id);
    }

    switch (what) {

    case HAPAX__FLOW_RUN:
        if (call->ended) {
            ngx_http_hapax_shadow_end(call);
        }

        break;

    case HAPAX__FLOW_RECONCILE:
        /* the hook is not asked: its "no" has the outcome of this run stored */
        ngx_memzero(&none, sizeof(struct hapax_outcome));
        hapax__flow_reconciled(&call->flow, HAPAX_CLASS_NOT_RUN, &none,
                               hapax__boot_us());
        break;

    case HAPAX__FLOW_ANSWER:
        ngx_http_hapax_shadow_answer(call);
        break;

    default:
        break;
    }
}


void
ngx_http_hapax_shadow_count(ngx_int_t change)
{
    ngx_http_hapax_shadows += change;
}


/* the response */


/* The response has ended, or will not. */

static void
ngx_http_hapax_shadow_ended(ngx_http_hapax_ctx_t *ctx, enum hapax_class cls,
    ngx_http_hapax_kept_e kept)
{
    ngx_http_hapax_call_t  *call;

    ctx->watching = 0;

    if (kept == NGX_HTTP_HAPAX_KEPT_WHOLE) {
        ngx_http_hapax_shadow_compare(ctx->conf->zone->counts, &ctx->first,
                                      &ctx->own);
    }

    if (ctx->hashing) {
        /* it has ended before its request, so nobody knows which one it was */
        ctx->hashing = 0;
        ngx_http_hapax_shadow_not_judged(ctx);
        return;
    }

    call = ctx->call;

    if (call == NULL) {
        return;
    }

    call->ended = cls;
    call->kept = kept;
    call->own = ctx->own;

    /* otherwise it will say RUN, or never: a call always has a key */

    if (call->flow.phase == HAPAX__FLOW_RUNNING && call->flow.answer.cls == 0) {
        ngx_http_hapax_shadow_end(call);
        ngx_http_hapax_call_drive(call);
    }
}


void
ngx_http_hapax_shadow_cut(ngx_http_hapax_ctx_t *ctx)
{
    ngx_uint_t              gone_on;
    ngx_http_hapax_call_t  *call;

    if (ctx->watching) {
        ctx->own.status = 0;

        /* of a client that left the gate would have gone on: no operator is to be asked */

        gone_on = (ctx->request->connection->error
                   && ctx->conf->policy.on_expired != HAPAX_EXPIRED_RERUN);

        ngx_http_hapax_shadow_ended(ctx,
                                    ngx_http_hapax_was_sent(ctx->request)
                                    && !gone_on
                                    ? HAPAX_CLASS_UNKNOWN
                                    : HAPAX_CLASS_NOT_RUN,
                                    NGX_HTTP_HAPAX_KEPT_NOTHING);
    }

    call = ctx->call;

    if (call) {
        call->ctx = NULL;
        ctx->call = NULL;
    }
}


void
ngx_http_hapax_shadow_header(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    if (!ctx->watching
        || (r->headers_out.status < NGX_HTTP_OK
            && r->headers_out.status != NGX_HTTP_SWITCHING_PROTOCOLS))
    {
        return;
    }

    ctx->own.status = r->headers_out.status;
    ctx->responded = 0;

    if (SHA256_Init(&ctx->response_sha256) != 1) {
        ngx_http_hapax_shadow_cut(ctx);
        return;
    }

    if (r->header_only || r->method == NGX_HTTP_HEAD
        || ctx->own.status == NGX_HTTP_NO_CONTENT
        || ctx->own.status == NGX_HTTP_NOT_MODIFIED)
    {
        (void) SHA256_Final(ctx->own.body.bytes, &ctx->response_sha256);
        ngx_http_hapax_shadow_ended(ctx, ngx_http_hapax_class(r, ctx),
                                    NGX_HTTP_HAPAX_KEPT_WHOLE);
        return;
    }

    if (ctx->own.status == NGX_HTTP_SWITCHING_PROTOCOLS) {
        ngx_http_hapax_shadow_ended(ctx, HAPAX_CLASS_FINAL,
                                    NGX_HTTP_HAPAX_KEPT_STATUS);
        return;
    }

    if (ngx_http_hapax_is_stream(r)
        || r->headers_out.content_length_n > (off_t) ctx->conf->policy.max_response)
    {
        ngx_http_hapax_shadow_ended(ctx, ngx_http_hapax_class(r, ctx),
                                    NGX_HTTP_HAPAX_KEPT_STATUS);
        return;
    }

    /* what is in files is looked at, too */
    r->filter_need_in_memory = 1;
}


void
ngx_http_hapax_shadow_body(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_chain_t *in)
{
    size_t       len;
    ngx_buf_t   *b;
    ngx_uint_t   last;

    if (!ctx->watching || ctx->own.status == 0) {
        return;
    }

    last = 0;

    for ( /* void */ ; in; in = in->next) {
        b = in->buf;
        len = ngx_buf_in_memory(b) ? (size_t) (b->last - b->pos) : 0;

        (void) SHA256_Update(&ctx->response_sha256, b->pos, len);
        ctx->responded += len;

        if (ctx->conf->push && ctx->responded <= NGX_HTTP_HAPAX_SHADOW_BODY) {
            if (ctx->body == NULL) {
                ctx->body = ngx_http_hapax_body_create();
            }

            if (ctx->body) {
                (void) ngx_http_hapax_body_append(ctx->body, b->pos, len,
                                                  NGX_HTTP_HAPAX_SHADOW_BODY);
            }
        }

        last |= b->last_buf;
    }

    if (ctx->responded > ctx->conf->policy.max_response) {
        ngx_http_hapax_shadow_ended(ctx, ngx_http_hapax_class(r, ctx),
                                    NGX_HTTP_HAPAX_KEPT_STATUS);

    } else if (last) {
        (void) SHA256_Final(ctx->own.body.bytes, &ctx->response_sha256);
        ngx_http_hapax_shadow_ended(ctx, ngx_http_hapax_class(r, ctx),
                                    NGX_HTTP_HAPAX_KEPT_WHOLE);
    }
}


/* $hapax_mode: what is done with the request */

ngx_int_t
ngx_http_hapax_mode_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_hapax_get_ctx(r->main);

    v->data = (u_char *) (ctx == NULL ? "off" : ctx->shadow ? "shadow" : "on");
    v->len = ngx_strlen(v->data);
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


/* $hapax_shadow: what would have become of the request, as far as it is known by now */

ngx_int_t
ngx_http_hapax_shadow_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_hapax_get_ctx(r->main);
    v->not_found = 1;

    if (ctx == NULL || !ctx->shadow || (data ? !ctx->identified : !ctx->would))
    {
        return NGX_OK;
    }

    if (data) {
        v->data = ngx_pnalloc(r->pool, 2 * sizeof(ctx->id.bytes));
        if (v->data == NULL) {
            return NGX_ERROR;
        }

        v->len = ngx_hex_dump(v->data, ctx->id.bytes, sizeof(ctx->id.bytes))
                 - v->data;

    } else {
        v->data = (u_char *) hapax__would_name(ctx->would);
        v->len = ngx_strlen(v->data);
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}
