/* SPDX-License-Identifier: Apache-2.0
 *
 * Where requests come in: which of them are operations, what their key is, and how a request waits
 * until its flow (src/core/flow.h) says what to do.
 *
 * Two things happen before anything else. Headers that only the gate may set are removed from every
 * request. A bad key is answered before the body is read.
 *
 * The invariant: a request that waits has no event handler of nginx's. So a client that leaves does
 * not stop its operation: the upstream's response is stored, and nginx notices only when the answer
 * is written.
 */

#include "ngx_http_hapax.h"


static ngx_int_t ngx_http_hapax_begin(ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf, ngx_uint_t shadow);
static ngx_int_t ngx_http_hapax_go_on(ngx_http_request_t *r,
    ngx_http_hapax_ctx_t *ctx);
static ngx_int_t ngx_http_hapax_content_handler(ngx_http_request_t *r);


static ngx_str_t  ngx_http_hapax_ours[] = {
    ngx_string("idempotency-fence"),
    ngx_string("idempotency-attempt"),
    ngx_string("idempotency-token"),
    ngx_null_string
};

/* with a client's deadline the service would give up what is to run to its end */
static ngx_str_t  ngx_http_hapax_grpc_timeout = ngx_string("grpc-timeout");


/* headers */


static ngx_int_t
ngx_http_hapax_is_ours(ngx_table_elt_t *h, ngx_uint_t operation)
{
    ngx_str_t  *name;

    if (operation
        && ngx_http_hapax_header_named(&h->key, &ngx_http_hapax_grpc_timeout))
    {
        return 1;
    }

    if (h->key.len < 11 || ngx_tolower(h->key.data[0]) != 'i') {
        return 0;
    }

    for (name = ngx_http_hapax_ours; name->len; name++) {
        if (ngx_http_hapax_header_named(&h->key, name)) {
            return 1;
        }
    }

    return 0;
}


/*
 * Makes a new list without the gate's headers and, in an operation, without
 * the client's deadline. nginx has pointers to the old elements, so the old
 * list stays as it was.
 */

static ngx_int_t
ngx_http_hapax_strip(ngx_http_request_t *r, ngx_uint_t operation)
{
    ngx_uint_t        i, n, ours;
    ngx_list_t        list;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *new;

    ours = 0;
    n = 0;
    i = 0;
    part = &r->headers_in.headers.part;

    while ((h = ngx_http_hapax_header_next(&part, &i)) != NULL) {
        n++;
        ours += ngx_http_hapax_is_ours(h, operation);
    }

    if (ours == 0) {
        return NGX_OK;
    }

    if (ngx_list_init(&list, r->pool, n + 4, sizeof(ngx_table_elt_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    i = 0;
    part = &r->headers_in.headers.part;

    while ((h = ngx_http_hapax_header_next(&part, &i)) != NULL) {

        if (ngx_http_hapax_is_ours(h, operation)) {
            continue;
        }

        new = ngx_list_push(&list);
        if (new == NULL) {
            return NGX_ERROR;
        }

        *new = *h;
    }

    r->headers_in.headers = list;

    /* the list has one part, and that part is embedded in it */
    r->headers_in.headers.last = &r->headers_in.headers.part;

    return NGX_OK;
}


static void
ngx_http_hapax_find_key(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf,
    ngx_http_hapax_ctx_t *ctx)
{
    ngx_uint_t         n, exact;
    ngx_table_elt_t   *found;
    struct hapax_span  value;

    found = NULL;
    n = 0;
    exact = 0;

    if (conf->key_header.len) {
        found = ngx_http_hapax_find_header(r, &conf->key_header, &n, &exact);
    }

    if (n == 0) {
        ctx->given = HAPAX__KEY_NONE;
        return;
    }

    if (n > 1) {
        ngx_http_hapax_bad_key(ctx, "the header stands more than once");
        return;
    }

    if (!exact) {
        ngx_http_hapax_bad_key(ctx, "the name of the header is misspelled");
        return;
    }

    ctx->given = HAPAX__KEY_BAD;
    value.ptr = found->value.data;
    value.len = found->value.len;

    if (hapax_key_parse(ctx->key, &ctx->key_len, value, &ctx->why)
        == HAPAX_ERR_NONE)
    {
        ctx->given = HAPAX__KEY_GIVEN;
    }
}


static ngx_int_t
ngx_http_hapax_add_header(ngx_http_request_t *r, ngx_uint_t which,
    u_char *value, size_t len)
{
    ngx_table_elt_t         *h;
    static const char *const names[] = {
        "Idempotency-Fence", "Idempotency-Attempt", "Idempotency-Token"
    };

    h = ngx_http_hapax_header(&r->headers_in.headers, names[which], value,
                              len);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->lowcase_key = ngx_http_hapax_ours[which].data;
    h->hash = ngx_hash_key(h->lowcase_key, h->key.len);

    return NGX_OK;
}


/* Gives the handler the fence, to refuse a zombie, and the token, to complete the record. */

static ngx_int_t
ngx_http_hapax_hand_over(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    u_char                 *p, *value;
    ngx_http_hapax_call_t  *call;

    if (ngx_http_hapax_strip(r, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    call = ctx->call;

    if (call == NULL || ctx->fence == 0) {
        return NGX_OK;
    }

    value = ngx_pnalloc(r->pool, NGX_INT64_LEN + NGX_INT32_LEN
                                 + HAPAX__TOKEN_TEXT + 1);
    if (value == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(value, "%uL", ctx->fence);

    if (ngx_http_hapax_add_header(r, 0, value, p - value) != NGX_OK) {
        return NGX_ERROR;
    }

    value = p;
    p = ngx_sprintf(value, "%uD", ctx->attempt);

    if (ngx_http_hapax_add_header(r, 1, value, p - value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!call->policy.pass_token) {
        return NGX_OK;
    }

    hapax__token_text((char *) p, &ctx->id, &call->flow.request.token);

    return ngx_http_hapax_add_header(r, 2, p, HAPAX__TOKEN_TEXT);
}


/* What is done with this request. A variable that says none of the words leaves it guarded. */

static ngx_int_t
ngx_http_hapax_mode(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf,
    ngx_uint_t *mode)
{
    ngx_str_t       value;
    ngx_uint_t      i;
    static time_t   logged;

    static ngx_str_t  words[] = {
        ngx_string("off"),          /* NGX_HTTP_HAPAX_OFF, and so on */
        ngx_string("shadow"),
        ngx_string("on")
    };

    *mode = ngx_min(conf->enable, NGX_HTTP_HAPAX_ON);

    if (conf->mode == NULL) {
        return NGX_OK;
    }

    if (ngx_http_complex_value(r, conf->mode, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = NGX_HTTP_HAPAX_OFF; i <= NGX_HTTP_HAPAX_ON; i++) {
        if (value.len == words[i].len
            && ngx_strncmp(value.data, words[i].data, value.len) == 0)
        {
            *mode = i;
            return NGX_OK;
        }
    }

    *mode = NGX_HTTP_HAPAX_ON;

    if (logged != ngx_time()) {
        logged = ngx_time();
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "hapax: \"hapax %V\" is \"%V\" for this request, and "
                      "none of off, shadow and on: it is on",
                      &conf->mode->value, &value);
    }

    return NGX_OK;
}


/* the handler of the phase */


ngx_int_t
ngx_http_hapax_handler(ngx_http_request_t *r)
{
    ngx_uint_t                  mode;
    ngx_http_hapax_ctx_t       *ctx;
    ngx_http_hapax_loc_conf_t  *conf;

    if (r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_hapax_get_ctx(r);

    if (ctx) {
        return ngx_http_hapax_go_on(r, ctx);
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_hapax_module);

    if (conf->enable == NGX_HTTP_HAPAX_OFF) {
        return NGX_DECLINED;
    }

    /* of each mode: what is only watched now may have been guarded before */

    if (ngx_http_hapax_strip(r, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!(r->method & conf->methods)) {
        return NGX_DECLINED;
    }

    if (ngx_http_hapax_mode(r, conf, &mode) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    mode = ngx_http_hapax_switch_lower(conf, mode);

    if (mode == NGX_HTTP_HAPAX_OFF) {
        return NGX_DECLINED;
    }

    return ngx_http_hapax_begin(r, conf, mode == NGX_HTTP_HAPAX_SHADOW);
}


static ngx_http_hapax_ctx_t *
ngx_http_hapax_create_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t    *cln;
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_hapax_ctx_t));
    if (ctx == NULL) {
        return NULL;
    }

    cln = ngx_pool_cleanup_add(r->pool, 0);
    if (cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_hapax_cleanup;
    cln->data = ctx;

    ctx->request = r;
    ctx->wake.handler = ngx_http_hapax_wake_handler;
    ctx->wake.data = ctx;
    ctx->wake.log = r->connection->log;

    ngx_http_set_ctx(r, ctx, ngx_http_hapax_module);

    return ctx;
}


ngx_uint_t
ngx_http_hapax_decide_alone(struct hapax__flow *flow, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, ngx_uint_t too_large)
{
    int64_t                      now_us;
    struct hapax_outcome         outcome;
    struct hapax__flow_request   request;

    ngx_memzero(flow, sizeof(struct hapax__flow));
    ngx_memzero(&request, sizeof(struct hapax__flow_request));
    ngx_memzero(&outcome, sizeof(struct hapax_outcome));

    flow->counts = conf->zone->counts;
    flow->shadow = ctx->shadow;

    request.key = ctx->given;
    request.too_large = too_large;
    now_us = hapax__boot_us();

    hapax__flow_begin(flow, &conf->policy, &conf->store->waiters, &request,
                      now_us);

    if (hapax__flow_next(flow, now_us) != HAPAX__FLOW_RUN) {
        return 0;
    }

    hapax__flow_handled(flow, HAPAX_CLASS_FINAL, &outcome, now_us);
    (void) hapax__flow_next(flow, now_us);

    return 1;
}


/* Answers a request that needs no store: a flow on the stack decides. */

static void
ngx_http_hapax_answer_alone(ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, ngx_uint_t too_large)
{
    struct hapax__flow  flow;

    ctx->phase = ngx_http_hapax_decide_alone(&flow, ctx, conf, too_large)
                 ? NGX_HTTP_HAPAX_PASSING : NGX_HTTP_HAPAX_ANSWERING;

    ctx->answer = flow.answer;
}


/* Refuses a request because hapax_held_max is reached. */

static void
ngx_http_hapax_refuse(ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf)
{
    ctx->phase = NGX_HTTP_HAPAX_ANSWERING;
    ctx->full = 1;
    ctx->answer.kind = HAPAX_ANSWER_STORE_DOWN;
    ctx->answer.retry_after_ms = 1000;

    if (conf->zone->counts) {
        hapax__count(&conf->zone->counts->answers[ctx->answer.kind], 1);
    }
}


static void
ngx_http_hapax_body_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_http_hapax_ctx_t        *ctx;
    struct hapax__flow_request   request;

    ctx = ngx_http_get_module_ctx(r, ngx_http_hapax_module);

    r->preserve_body = 1;
    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    ctx->phase = NGX_HTTP_HAPAX_ASKING;
    ngx_memzero(&request, sizeof(struct hapax__flow_request));

    rc = ngx_http_hapax_identify(r, ctx, ctx->conf, &request);

    if (rc == NGX_OK) {
        rc = ngx_http_hapax_call_begin(ctx, ctx->conf, &request);

        if (rc == NGX_OK) {
            return;
        }
    }

    if (rc == NGX_DECLINED) {
        ngx_http_hapax_answer_alone(ctx, ctx->conf, request.too_large);

    } else {
        ctx->failed = 1;
    }

    ngx_post_event(&ctx->wake, &ngx_posted_events);
}


static ngx_int_t
ngx_http_hapax_begin(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf,
    ngx_uint_t shadow)
{
    ngx_int_t                    rc;
    ngx_uint_t                   too_large, in_body;
    ngx_http_hapax_ctx_t        *ctx;
    ngx_http_hapax_main_conf_t  *hmcf;

    ctx = ngx_http_hapax_create_ctx(r);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->conf = conf;

    if (shadow) {
        ctx->shadow = 1;
        ctx->phase = NGX_HTTP_HAPAX_PASSING;
    }

    ngx_http_hapax_find_key(r, conf, ctx);

    if (conf->push && ngx_http_hapax_push_begin(r, ctx, conf) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    in_body = (conf->key_from || ctx->envelope);

    too_large = r->headers_in.content_length_n
                > (off_t) conf->policy.max_request;

    if (ctx->given == HAPAX__KEY_NONE && in_body && too_large) {
        /* the body is over the limit, so its key is not looked for */
        ctx->given = HAPAX__KEY_GIVEN;
    }

    hmcf = ngx_http_get_module_main_conf(r, ngx_http_hapax_module);

    if (ctx->given == HAPAX__KEY_BAD
        || (ctx->given == HAPAX__KEY_NONE && !in_body)
        || too_large)
    {
        if (shadow) {
            ngx_http_hapax_shadow_alone(ctx, too_large);

        } else {
            ngx_http_hapax_answer_alone(ctx, conf, too_large);
        }

        return ngx_http_hapax_go_on(r, ctx);
    }

    if (shadow) {
        return ngx_http_hapax_shadow_begin(r, ctx) == NGX_OK
               ? NGX_DECLINED : NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_hapax_buffered >= hmcf->held_max) {
        ngx_http_hapax_refuse(ctx, conf);
        return ngx_http_hapax_go_on(r, ctx);
    }

    ctx->hashing = 1;

    if (SHA256_Init(&ctx->sha256) != 1) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_read_client_request_body(r, ngx_http_hapax_body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;
}


/* Asks hapax_reconcile "did it happen?" by a subrequest. The filters take the response. */

static ngx_int_t
ngx_http_hapax_ask_hook(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ngx_str_t                    uri, args;
    ngx_uint_t                   flags;
    ngx_http_request_t          *sr;
    ngx_http_post_subrequest_t  *ps;

    if (ngx_http_hapax_hand_over(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_str_null(&args);
    flags = 0;

    if (ngx_http_complex_value(r, ctx->conf->reconcile, &uri) != NGX_OK
        || ngx_http_parse_unsafe_uri(r, &uri, &args, &flags) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ps = ngx_palloc(r->pool, sizeof(ngx_http_post_subrequest_t));
    if (ps == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ps->handler = ngx_http_hapax_hook_done;
    ps->data = ctx;

    if (ngx_http_subrequest(r, &uri, &args, &sr, ps,
                            NGX_HTTP_SUBREQUEST_WAITED)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->hook = sr;

    return NGX_AGAIN;
}


/* An error page that is not a named location is got by GET. */

static ngx_uint_t
ngx_http_hapax_has_clients_method(ngx_http_request_t *r)
{
    return r->request_line.len > r->method_name.len
           && ngx_strncmp(r->request_line.data, r->method_name.data,
                          r->method_name.len)
              == 0;
}


static ngx_int_t
ngx_http_hapax_go_on(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    /* another event came first: what the posted one is for is done here */

    if (ctx->wake.posted && ctx->phase != NGX_HTTP_HAPAX_SENDING) {
        ngx_delete_posted_event(&ctx->wake);
    }

    if (ctx->failed && ctx->phase < NGX_HTTP_HAPAX_BUFFERING) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    switch (ctx->phase) {

    case NGX_HTTP_HAPAX_READING:
    case NGX_HTTP_HAPAX_ASKING:
        return NGX_DONE;

    case NGX_HTTP_HAPAX_RECONCILING:

        if (ctx->hook) {
            return NGX_AGAIN;
        }

        return ngx_http_hapax_ask_hook(r, ctx);

    case NGX_HTTP_HAPAX_GRANTED:

        if (ngx_http_hapax_hand_over(r, ctx) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ctx->phase = NGX_HTTP_HAPAX_RUNNING;

        __attribute__((fallthrough));

    case NGX_HTTP_HAPAX_RUNNING:

        r->disable_not_modified = 1;

        if (r->content_handler
            && r->content_handler != ngx_http_hapax_content_handler)
        {
            ctx->content_handler = r->content_handler;
            r->content_handler = ngx_http_hapax_content_handler;
        }

        return NGX_DECLINED;

    case NGX_HTTP_HAPAX_ANSWERING:

        /* OK, and not DECLINED: the rest of the phase is skipped */
        r->content_handler = ngx_http_hapax_answer_handler;
        return NGX_OK;

    default:

        /* a page may be sent, but no server gets half of an operation */

        if (ctx->half_read && r->content_handler
            && ngx_http_hapax_has_clients_method(r))
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return NGX_DECLINED;
    }
}


/*
 * Whether this would give a second server what a first one may have done: after
 * error_page a named location has the same method and body. Where an upstream's
 * X-Accel-Redirect leads is its own answer.
 */

static ngx_uint_t
ngx_http_hapax_runs_again(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    return ctx->elsewhere && !ctx->led
           && ctx->conf->policy.on_expired != HAPAX_EXPIRED_RERUN
           && ngx_http_hapax_has_clients_method(r);
}


/*
 * Starts the handler, then stops watching for a client that leaves: the
 * handler's outcome is stored in any case.
 */

static ngx_int_t
ngx_http_hapax_content_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    const char                *name;
    ngx_http_upstream_t       *u;
    ngx_http_hapax_ctx_t      *ctx;
    ngx_http_core_loc_conf_t  *clcf;

    ctx = ngx_http_hapax_get_ctx(r);

    /* nginx -t has seen to it for the location that met the request */

    name = ngx_http_hapax_runs_twice(r->loc_conf);
    ctx->refused = (name != NULL || ngx_http_hapax_runs_again(r, ctx));

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (name) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "hapax: \"%s ... non_idempotent\" in location \"%V\", "
                      "to which an operation was redirected: nginx would run "
                      "it twice, so it is refused", name, &clcf->name);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->refused) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "hapax: location \"%V\", to which an operation was "
                      "redirected, could run it a second time, so it is "
                      "refused: its hapax_on_expired is not rerun",
                      &clcf->name);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /*
     * after bytes were sent nginx tries a next upstream for GET, PUT and
     * DELETE, but not for a method that has the bit of PATCH too; a redirect
     * takes it back
     */
    if (r->method & (NGX_HTTP_GET|NGX_HTTP_PUT|NGX_HTTP_DELETE)) {
        r->method |= NGX_HTTP_PATCH;
        ctx->as_patch = 1;
    }

    rc = ctx->content_handler(r);

    if (rc != NGX_DONE) {
        return rc;
    }

    u = r->upstream;

    if (u && u->cleanup && !r->buffered) {
        r->read_event_handler = ngx_http_block_reading;

        if (!u->header_sent) {
            r->write_event_handler = ngx_http_request_empty_handler;
        }
    }

    return rc;
}


void
ngx_http_hapax_wake_handler(ngx_event_t *ev)
{
    ngx_connection_t      *c;
    ngx_http_request_t    *r;
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    if (ctx->phase == NGX_HTTP_HAPAX_SENDING) {

        /*
         * while the upstream still sends, its handler would call the filters
         * only once it has more
         */
        (void) ngx_http_output_filter(r, NULL);

    } else {
        r->write_event_handler = ngx_http_core_run_phases;
    }

    r->write_event_handler(r);

    ngx_http_run_posted_requests(c);
}
