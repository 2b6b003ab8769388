/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker's lanes, and the calls on them. What a flow says next is done here.
 *
 * Each event (a store's answer, a timer, a handler's end, a request that ended) goes to one flow.
 * Then the core's driver (core/drive.h) lets flows go on. A request is never resumed from here: its
 * context gets a phase and a posted event. So no call ends while the driver is in it.
 *
 * A call without a request keeps its flow's timer. So a worker that quits waits until the outcome
 * is stored, but for one lease at most: then another attempt may have taken over.
 */

#include "ngx_http_hapax.h"

#include <sys/random.h>


#define NGX_HTTP_HAPAX_TIMER_MAX_US  (INT64_C(3600) * 1000000)
/* 256 bytes: getrandom() gives so many at once, or fails */
#define NGX_HTTP_HAPAX_TOKENS        16


static void ngx_http_hapax_lane_handler(ngx_event_t *ev);
static void ngx_http_hapax_call_free(ngx_http_hapax_call_t *call);
static void ngx_http_hapax_timer_handler(ngx_event_t *ev);
static int64_t ngx_http_hapax_flow_now(const struct hapax__flow *flow);
static bool ngx_http_hapax_flow_act(struct hapax__flow *flow,
    enum hapax__flow_do what, int64_t now_us);


static const struct hapax__flow_door  ngx_http_hapax_flow_door = {
    ngx_http_hapax_flow_now,
    ngx_http_hapax_flow_act
};


/* lanes */


ngx_int_t
ngx_http_hapax_lane_open(ngx_http_hapax_store_t *store, ngx_log_t *log)
{
    char                 text[HAPAX_TEXT_MAX];
    ngx_int_t            rc;
    ngx_connection_t    *c;
    struct hapax_store  *late;

    if (store->lane || store->keeper) {
        return NGX_OK;
    }

    if (store->buckets == NULL) {
        store->buckets = calloc(NGX_HTTP_HAPAX_BUCKETS,
                                sizeof(struct hapax__bucket));
        if (store->buckets == NULL) {
            return NGX_ERROR;
        }

        hapax__waiters_init(&store->waiters, store->buckets,
                            NGX_HTTP_HAPAX_BUCKETS);
        ngx_queue_init(&store->calls);
    }

    rc = ngx_http_hapax_keeper_open(store);

    if (rc != NGX_DECLINED) {
        return rc;
    }

    late = ngx_http_hapax_late_open(store, text);
    if (late == NULL) {
        ngx_log_error(NGX_LOG_ERR, log, 0, "hapax: store \"%V\": %s",
                      &store->shown, text);
        return NGX_ERROR;
    }

    if (hapax__lane_open(&store->lane, late, HAPAX__LANE_QUEUE_MAX)
        != HAPAX_ERR_NONE)
    {
        hapax_store_close(late);
        return NGX_ERROR;
    }

    if (ngx_http_hapax_counts) {
        hapax__lane_count(store->lane, &ngx_http_hapax_counts->lane);
    }

    c = ngx_get_connection(hapax__lane_fd(store->lane), log);
    if (c == NULL) {
        goto failed;
    }

    c->data = store;
    c->log = log;
    c->read->log = log;
    c->write->log = log;
    c->read->handler = ngx_http_hapax_lane_handler;

    if (ngx_add_event(c->read, NGX_READ_EVENT, 0) != NGX_OK) {
        ngx_free_connection(c);
        c->fd = (ngx_socket_t) -1;
        goto failed;
    }

    store->connection = c;

    return NGX_OK;

failed:

    (void) hapax__lane_close(store->lane);
    store->lane = NULL;

    return NGX_ERROR;
}


static void
ngx_http_hapax_lane_end(ngx_http_hapax_store_t *store)
{
    ngx_connection_t   *c;
    struct hapax__job  *job, *next;

    c = store->connection;

    if (c->read->active) {
        (void) ngx_del_event(c->read, NGX_READ_EVENT, 0);
    }

    if (c->read->posted) {
        ngx_delete_posted_event(c->read);
    }

    ngx_free_connection(c);
    c->fd = (ngx_socket_t) -1;              /* the lane closes it */

    for (job = hapax__lane_close(store->lane); job; job = next) {
        next = job->next;
        free(job->memory);
    }

    store->lane = NULL;
}


/* Ops in the queue are still run. Flows end here; their claims run out with their leases. */

void
ngx_http_hapax_lane_close(ngx_http_hapax_store_t *store)
{
    ngx_queue_t  *q;

    if (store->keeper) {
        ngx_http_hapax_keeper_close(store);

    } else if (store->lane) {
        ngx_http_hapax_lane_end(store);

    } else {
        return;
    }

    while (!ngx_queue_empty(&store->calls)) {
        q = ngx_queue_head(&store->calls);
        ngx_http_hapax_call_free(
                            ngx_queue_data(q, ngx_http_hapax_call_t, queue));
    }

    free(store->buckets);
    store->buckets = NULL;
}


/* The text of the store's last failure; empty: there was none. */

static void
ngx_http_hapax_store_text(ngx_http_hapax_store_t *store,
    char text[HAPAX_TEXT_MAX])
{
    text[0] = '\0';

    if (store->keeper) {
        (void) ngx_cpystrn((u_char *) text,
                           (u_char *) ngx_http_hapax_keeper_text(store),
                           HAPAX_TEXT_MAX);

    } else if (store->lane) {
        hapax__lane_text(store->lane, text);
    }
}


/* Logs once a second at most: while a store is down, every request fails in the same way. */

void
ngx_http_hapax_lane_log(ngx_http_hapax_store_t *store, ngx_log_t *log,
    enum hapax_error error)
{
    char  text[HAPAX_TEXT_MAX];

    if (store->logged == ngx_time()) {
        return;
    }

    store->logged = ngx_time();
    ngx_http_hapax_store_text(store, text);

    ngx_log_error(NGX_LOG_ERR, log, 0, "hapax: store \"%V\" is %s%s%s",
                  &store->shown, hapax_error_name(error),
                  text[0] ? ": " : "", text);
}


static void
ngx_http_hapax_call_told(ngx_http_hapax_asker_t *asker)
{
    int64_t                 now_us;
    ngx_http_hapax_call_t  *call;

    call = (ngx_http_hapax_call_t *)
               ((u_char *) asker - offsetof(ngx_http_hapax_call_t, asker));
    now_us = hapax__boot_us();

    ngx_http_hapax_limit_stored(call);

    hapax__flow_told(&call->flow, now_us);
    ngx_http_hapax_call_drive(call);
}


void
ngx_http_hapax_asking_told(struct hapax__asking *asking)
{
    ngx_http_hapax_asker_t  *asker;

    asker = (ngx_http_hapax_asker_t *)
                ((u_char *) asking - offsetof(ngx_http_hapax_asker_t, asking));

    asker->told(asker);
}


static void
ngx_http_hapax_lane_handler(ngx_event_t *ev)
{
    void                    *memory;
    ngx_connection_t        *c;
    struct hapax__job       *job, *next;
    ngx_http_hapax_asker_t  *asker;
    ngx_http_hapax_store_t  *store;

    c = ev->data;
    store = c->data;

    for (job = hapax__lane_reap(store->lane); job; job = next) {
        next = job->next;
        asker = (ngx_http_hapax_asker_t *)
                    ((u_char *) job - offsetof(ngx_http_hapax_asker_t, job));
        memory = job->memory;

        *asker->op = job->op;
        asker->told(asker);

        free(memory);
    }

    if (ngx_http_hapax_counts) {
        ngx_http_hapax_counts->queued = hapax__lane_queued(store->lane);
    }
}


/* calls */


/* For operators: the method and the path. A query may hold secrets. */

static void
ngx_http_hapax_what(ngx_http_request_t *r, ngx_http_hapax_call_t *call,
    struct hapax__flow_request *request)
{
    struct hapax_span  parts[2];

    parts[0].ptr = r->method_name.data;
    parts[0].len = r->method_name.len;
    parts[1].ptr = r->unparsed_uri.data;
    parts[1].len = r->unparsed_uri.len;
    parts[1] = hapax__path_of(parts[1]);

    request->what.ptr = call->what;
    request->what.len = hapax_what(call->what, parts, 2);
}


/* Many tokens for one system call. None stays in memory after it was given. */

static ngx_int_t
ngx_http_hapax_token(struct hapax_token *token)
{
    static ngx_uint_t          left;
    static struct hapax_token  tokens[NGX_HTTP_HAPAX_TOKENS];

    if (left == 0) {
        if (getrandom(tokens, sizeof(tokens), 0) != (ssize_t) sizeof(tokens)) {
            return NGX_ERROR;
        }

        left = NGX_HTTP_HAPAX_TOKENS;
    }

    left--;
    *token = tokens[left];
    explicit_bzero(&tokens[left], sizeof(struct hapax_token));

    return NGX_OK;
}


static ngx_http_hapax_call_t *
ngx_http_hapax_call_create(ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax__flow_request *request)
{
    ngx_http_hapax_call_t  *call;

    call = calloc(1, sizeof(ngx_http_hapax_call_t));
    if (call == NULL) {
        return NULL;
    }

    if (ngx_http_hapax_token(&request->token) != NGX_OK) {
        free(call);
        return NULL;
    }

    ngx_memcpy(call->scope, request->scope.ptr, request->scope.len);
    request->scope.ptr = call->scope;

    ngx_http_hapax_what(ctx->request, call, request);

    call->policy = conf->policy;
    call->store = conf->store;
    call->flow.door = call;
    call->flow.counts = conf->zone->counts;
    call->flow.shadow = ctx->shadow;

    call->timer.handler = ngx_http_hapax_timer_handler;
    call->timer.data = call;
    call->timer.log = ngx_cycle->log;

    call->ctx = ctx;
    ctx->call = call;

    ngx_queue_insert_tail(&call->store->calls, &call->queue);

    ngx_http_hapax_count(in_flight, 1);

    if (ctx->shadow) {
        ngx_http_hapax_shadow_count(1);
    }

    return call;
}


static void
ngx_http_hapax_call_free(ngx_http_hapax_call_t *call)
{
    if (call->ctx) {
        call->ctx->call = NULL;
    }

    if (call->timer.timer_set) {
        ngx_del_timer(&call->timer);
    }

    ngx_queue_remove(&call->queue);

    ngx_http_hapax_limit_end(call);
    ngx_http_hapax_count(in_flight, -1);

    if (call->flow.shadow) {
        ngx_http_hapax_shadow_count(-1);
    }

    ngx_http_hapax_body_drop(call->body);
    free(call->headers);

    explicit_bzero(call, sizeof(ngx_http_hapax_call_t)); /* its token */
    free(call);
}


ngx_int_t
ngx_http_hapax_call_begin(ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax__flow_request *request)
{
    ngx_http_hapax_call_t  *call;

    if (ngx_http_hapax_lane_open(conf->store, ctx->request->connection->log)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    call = ngx_http_hapax_call_create(ctx, conf, request);
    if (call == NULL) {
        return NGX_ERROR;
    }

    if (!ctx->shadow) {
        ngx_http_hapax_limit_look(call, conf, request);
        ngx_http_hapax_traces_begin(ctx, call);
    }

    ctx->since_us = hapax__boot_us();

    hapax__flow_begin(&call->flow, &call->policy, &call->store->waiters,
                      request, ctx->since_us);
    ngx_http_hapax_call_drive(call);

    return NGX_OK;
}


static void
ngx_http_hapax_flow_ended(ngx_http_hapax_call_t *call, enum hapax_class cls,
    const struct hapax_outcome *outcome)
{
    int64_t  now_us;

    now_us = hapax__boot_us();

    if (call->flow.phase == HAPAX__FLOW_RECONCILING) {
        hapax__flow_reconciled(&call->flow, cls, outcome, now_us);

    } else {
        hapax__flow_handled(&call->flow, cls, outcome, now_us);
    }
}


void
ngx_http_hapax_call_ended(ngx_http_hapax_call_t *call, enum hapax_class cls,
    const struct hapax_outcome *outcome)
{
    if (call->ctx) {
        call->ctx->since_us = hapax__boot_us();
    }

    ngx_http_hapax_flow_ended(call, cls, outcome);
    ngx_http_hapax_call_drive(call);
}


/*
 * The request ends before its operation has an answer. A handler that did not
 * begin has not run. An outcome that was reported goes on being stored. For a
 * handler that was cut off the outcome is unknown.
 */

void
ngx_http_hapax_call_cut(ngx_http_hapax_ctx_t *ctx)
{
    enum hapax_class        cls;
    ngx_http_hapax_call_t  *call;
    struct hapax_outcome    outcome;

    call = ctx->call;
    call->ctx = NULL;
    ctx->call = NULL;

    switch (call->flow.phase) {

    case HAPAX__FLOW_RECONCILING:
    case HAPAX__FLOW_RUNNING:

        if (call->flow.answer.cls != 0) {
            return;
        }

        ngx_memzero(&outcome, sizeof(struct hapax_outcome));

        cls = (ctx->phase > NGX_HTTP_HAPAX_GRANTED
               || call->flow.phase == HAPAX__FLOW_RECONCILING)
              ? HAPAX_CLASS_UNKNOWN : HAPAX_CLASS_NOT_RUN;

        ngx_http_hapax_call_ended(call, cls, &outcome);
        return;

    default:
        hapax__flow_stop(&call->flow, hapax__boot_us());
        ngx_http_hapax_call_drive(call);
    }
}


static void
ngx_http_hapax_timer_handler(ngx_event_t *ev)
{
    ngx_http_hapax_call_drive(ev->data);
}


/* Until when a store of this worker is dead: of several, the last one. */

static void
ngx_http_hapax_count_dead(void)
{
    int64_t                       until_us;
    ngx_uint_t                    i;
    ngx_http_hapax_store_t      **stores;
    ngx_http_hapax_main_conf_t   *hmcf;

    hmcf = ngx_http_cycle_get_module_main_conf(ngx_cycle,
                                               ngx_http_hapax_module);

    if (hmcf == NULL || ngx_http_hapax_counts == NULL) {
        return;
    }

    until_us = 0;
    stores = hmcf->stores.elts;

    for (i = 0; i < hmcf->stores.nelts; i++) {
        until_us = ngx_max(until_us, stores[i]->dead_until_us);
    }

    ngx_http_hapax_counts->dead = (ngx_atomic_uint_t) until_us;
}


/* Logs once that the store is dead, and once that it is back. */

static void
ngx_http_hapax_see_breaker(ngx_http_hapax_store_t *store)
{
    char                          text[HAPAX_TEXT_MAX];
    int64_t                       until_us;
    const struct hapax__breaker  *breaker;

    breaker = &store->waiters.breaker;
    until_us = hapax__breaker_until(breaker);

    if (until_us != store->dead_until_us) {
        store->dead_until_us = until_us;
        ngx_http_hapax_count_dead();
    }

    if (breaker->open == store->dead) {
        return;
    }

    store->dead = breaker->open;

    if (!store->dead) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "hapax: store \"%V\" answers again", &store->shown);
        return;
    }

    ngx_http_hapax_store_text(store, text);

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "hapax: store \"%V\" does not answer, and is asked by one "
                  "request each half second; no other waits for it%s%s",
                  &store->shown, text[0] ? ": " : "", text);
}


void
ngx_http_hapax_call_drive(ngx_http_hapax_call_t *call)
{
    ngx_http_hapax_store_t  *store;

    store = call->store;                    /* the call may end here */

    (void) hapax__flow_drive(&call->flow, &ngx_http_hapax_flow_door);

    ngx_http_hapax_see_breaker(store);
}


/* driving */


ngx_int_t
ngx_http_hapax_ask(ngx_http_hapax_store_t *store,
    ngx_http_hapax_asker_t *asker, int64_t deadline_us)
{
    if (store->keeper) {
        asker->asking.op = asker->op;
        asker->asking.deadline_us = deadline_us;

        return ngx_http_hapax_keeper_put(store, &asker->asking);
    }

    asker->job.op = *asker->op;
    asker->job.deadline_us = deadline_us;

    if (store->lane && hapax__lane_submit(store->lane, &asker->job)) {
        return NGX_OK;
    }

    asker->op->verdict = HAPAX_NO_VERDICT;
    asker->op->error = HAPAX_ERR_UNAVAILABLE;

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_hapax_submit(ngx_http_hapax_call_t *call)
{
    int64_t              deadline_us;
    struct hapax__flow  *flow;

    flow = &call->flow;
    deadline_us = 0;

    /* a CLAIM that waits beyond this time is not sent: nobody needs it */

    if (flow->op.kind == HAPAX_OP_CLAIM && flow->limit_us != INT64_MAX) {
        deadline_us = flow->limit_us;
    }

    call->asker.op = &flow->op;
    call->asker.told = ngx_http_hapax_call_told;

    return ngx_http_hapax_ask(call->store, &call->asker, deadline_us);
}


/*
 * A timer that is set for an earlier time stays: the flow then says again when
 * to wake it. Most flows end before, and so set one timer and no more. A flow
 * that waits for the store alone has a timer only to keep its worker.
 */

static void
ngx_http_hapax_set_timer(ngx_http_hapax_call_t *call, int64_t now_us)
{
    int64_t     wake_us, left_us, until_us;
    ngx_msec_t  left;

    until_us = call->flow.begun_us + call->policy.lease_ms * 1000;
    until_us = ngx_max(until_us, call->flow.lease_end_us);

    wake_us = call->flow.wake_us;

    if (wake_us == INT64_MAX && call->ctx == NULL && now_us < until_us
        && call->flow.ask == HAPAX__ASK_OUT)
    {
        wake_us = until_us;
    }

    if (wake_us == INT64_MAX) {
        if (call->timer.timer_set) {
            ngx_del_timer(&call->timer);
        }

        return;
    }

    left_us = ngx_max(wake_us - now_us, 0);
    left_us = ngx_min(left_us, NGX_HTTP_HAPAX_TIMER_MAX_US);

    call->timer.cancelable = (call->ctx == NULL && now_us > until_us);

    left = (ngx_msec_t) ((left_us + 999) / 1000);

    if (call->timer.timer_set) {
        if ((ngx_msec_int_t) (call->timer.timer.key - (ngx_current_msec + left))
            <= 0)
        {
            return;
        }

        ngx_del_timer(&call->timer);
    }

    ngx_add_timer(&call->timer, left);
}


static void
ngx_http_hapax_resume(ngx_http_hapax_ctx_t *ctx, ngx_http_hapax_phase_e phase)
{
    ctx->waited_us += hapax__boot_us() - ctx->since_us;
    ctx->phase = phase;

    ngx_post_event(&ctx->wake, &ngx_posted_events);
}


static ngx_int_t
ngx_http_hapax_keep_span(ngx_pool_t *pool, struct hapax_span *span)
{
    u_char  *p;

    if (span->len == 0) {
        span->ptr = NULL;
        return NGX_OK;
    }

    p = ngx_pnalloc(pool, span->len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, span->ptr, span->len);
    span->ptr = p;

    return NGX_OK;
}


static void
ngx_http_hapax_give(ngx_http_hapax_call_t *call)
{
    ngx_pool_t                *pool;
    ngx_http_hapax_ctx_t      *ctx;
    const struct hapax_answer *answer;

    ctx = call->ctx;
    answer = &call->flow.answer;

    ngx_http_hapax_traces_answer(call);

    if (answer->kind == HAPAX_ANSWER_LIMITED) {
        ngx_http_hapax_count(limited[call->flow.limited], 1);
        ngx_http_hapax_limit_refused(call);
    }

    if (ctx == NULL) {
        return;
    }

    call->ctx = NULL;
    ctx->call = NULL;

    ctx->answer = *answer;
    ctx->limited = call->flow.limited;
    ctx->attempt = answer->attempt;
    ctx->fence = answer->fence;

    if (answer->error != HAPAX_ERR_NONE) {
        ngx_http_hapax_lane_log(call->store, ctx->request->connection->log,
                                answer->error);
    }

    switch (answer->kind) {

    case HAPAX_ANSWER_FRESH:
    case HAPAX_ANSWER_BYPASS:
        /* the response is buffered already */
        break;

    default:
        pool = ctx->request->pool;

        if (ngx_http_hapax_keep_span(pool, &ctx->answer.outcome.headers)
            != NGX_OK
            || ngx_http_hapax_keep_span(pool, &ctx->answer.outcome.body)
               != NGX_OK)
        {
            ctx->failed = 1;
        }
    }

    switch (ctx->phase) {

    case NGX_HTTP_HAPAX_SAVING:
        ngx_http_hapax_resume(ctx, NGX_HTTP_HAPAX_SENDING);
        break;

    case NGX_HTTP_HAPAX_PASSING:
        break;

    default:
        ngx_http_hapax_resume(ctx, NGX_HTTP_HAPAX_ANSWERING);
    }
}


static void
ngx_http_hapax_run(ngx_http_hapax_call_t *call, ngx_http_hapax_phase_e phase)
{
    ngx_http_hapax_ctx_t  *ctx;
    struct hapax__over     over;
    struct hapax_outcome   outcome;

    ctx = call->ctx;

    if (ctx == NULL) {
        ngx_memzero(&outcome, sizeof(struct hapax_outcome));
        ngx_http_hapax_flow_ended(call, phase == NGX_HTTP_HAPAX_RECONCILING
                                        ? HAPAX_CLASS_UNKNOWN
                                        : HAPAX_CLASS_NOT_RUN, &outcome);
        return;
    }

    if (ngx_http_hapax_limit_begin(call, &over) != NGX_OK) {
        hapax__flow_refused(&call->flow, over, hapax__boot_us());
        return;
    }

    ctx->attempt = call->flow.attempt;
    ctx->fence = call->flow.fence;

    ngx_http_hapax_resume(ctx, phase);
}


static int64_t
ngx_http_hapax_flow_now(const struct hapax__flow *flow)
{
    return hapax__boot_us();
}


/* What the flow says to a request that it guards. */

static void
ngx_http_hapax_do(ngx_http_hapax_call_t *call, enum hapax__flow_do what)
{
    switch (what) {

    case HAPAX__FLOW_RUN:
        ngx_http_hapax_run(call, NGX_HTTP_HAPAX_GRANTED);
        break;

    case HAPAX__FLOW_RECONCILE:
        ngx_http_hapax_run(call, NGX_HTTP_HAPAX_RECONCILING);
        break;

    case HAPAX__FLOW_ABANDON:
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "hapax: a claim was lost while its handler runs");
        break;

    default: /* HAPAX__FLOW_ANSWER */
        ngx_http_hapax_give(call);
    }
}


static bool
ngx_http_hapax_flow_act(struct hapax__flow *flow, enum hapax__flow_do what,
    int64_t now_us)
{
    ngx_http_hapax_call_t  *call;

    call = flow->door;

    switch (what) {

    case HAPAX__FLOW_PAUSE:
        ngx_http_hapax_set_timer(call, now_us);
        break;

    case HAPAX__FLOW_ASK:
        if (ngx_http_hapax_submit(call) != NGX_OK) {
            hapax__flow_told(flow, now_us);
        }

        break;

    case HAPAX__FLOW_END:
        ngx_http_hapax_call_free(call);
        break;

    default:
        if (flow->shadow) {
            ngx_http_hapax_shadow_act(call, what);

        } else {
            ngx_http_hapax_do(call, what);
        }
    }

    return true;
}
