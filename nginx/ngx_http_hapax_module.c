/* SPDX-License-Identifier: Apache-2.0
 *
 * The module itself: its places in nginx's phases and filters, what a worker does when it starts
 * and ends, and the variables.
 *
 * The module is an HTTP_AUX_FILTER: its filters run after the copy filter, and before headers,
 * gzip, ssi and chunked. So what is stored is the upstream's own response, and nginx adds its own
 * headers to each replay as to any response. The content handler stands in PRECONTENT: after access
 * control, so that a replay is authorised like a first run, and before try_files and mirror, so
 * that a replay runs neither. Rejected: the phase ACCESS. There OK grants access under "satisfy
 * any".
 */

#include "ngx_http_hapax.h"

#include <sys/prctl.h>


static ngx_int_t ngx_http_hapax_preconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_http_hapax_postconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_http_hapax_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_hapax_init_process(ngx_cycle_t *cycle);
static void ngx_http_hapax_exit_process(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_hapax_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);


enum {
    NGX_HTTP_HAPAX_VAR_ANSWER = 1,
    NGX_HTTP_HAPAX_VAR_KEY_ID,
    NGX_HTTP_HAPAX_VAR_ATTEMPT,
    NGX_HTTP_HAPAX_VAR_FENCE,
    NGX_HTTP_HAPAX_VAR_TIME
};


static ngx_http_variable_t  ngx_http_hapax_variables[] = {

    { ngx_string("hapax_answer"), NULL, ngx_http_hapax_variable,
      NGX_HTTP_HAPAX_VAR_ANSWER, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("hapax_key_id"), NULL, ngx_http_hapax_variable,
      NGX_HTTP_HAPAX_VAR_KEY_ID, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("hapax_attempt"), NULL, ngx_http_hapax_variable,
      NGX_HTTP_HAPAX_VAR_ATTEMPT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("hapax_fence"), NULL, ngx_http_hapax_variable,
      NGX_HTTP_HAPAX_VAR_FENCE, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("hapax_time"), NULL, ngx_http_hapax_variable,
      NGX_HTTP_HAPAX_VAR_TIME, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("hapax_mode"), NULL, ngx_http_hapax_mode_variable,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("hapax_shadow"), NULL, ngx_http_hapax_shadow_variable,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("hapax_shadow_id"), NULL, ngx_http_hapax_shadow_variable,
      1, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("hapax_traceparent"), NULL, ngx_http_hapax_traces_variable,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


static ngx_http_module_t  ngx_http_hapax_module_ctx = {
    ngx_http_hapax_preconfiguration,       /* preconfiguration */
    ngx_http_hapax_postconfiguration,      /* postconfiguration */

    ngx_http_hapax_create_main_conf,       /* create main configuration */
    ngx_http_hapax_init_main_conf,         /* init main configuration */

    ngx_http_hapax_create_srv_conf,        /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_hapax_create_loc_conf,        /* create location configuration */
    ngx_http_hapax_merge_loc_conf          /* merge location configuration */
};


ngx_module_t  ngx_http_hapax_module = {
    NGX_MODULE_V1,
    &ngx_http_hapax_module_ctx,            /* module context */
    ngx_http_hapax_commands,               /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_hapax_init_module,            /* init module */
    ngx_http_hapax_init_process,           /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_hapax_exit_process,           /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_http_hapax_preconfiguration(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_hapax_variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_hapax_postconfiguration(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    if (ngx_http_hapax_check_locations(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PRECONTENT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_hapax_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_SERVER_REWRITE_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_hapax_problems_phase;

    ngx_http_hapax_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_hapax_header_filter;

    ngx_http_hapax_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_hapax_body_filter;

    ngx_http_hapax_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = ngx_http_hapax_request_body_filter;

    return NGX_OK;
}


/* Set by hapax serve (src/cli/serve_nginx.c): workers must not outlive their master. Those of a
 * master that was killed would go on, and keep the port, with nobody left to end them. */
static ngx_flag_t  ngx_http_hapax_served;


/* In the master, for workers have lost the environment. */
static ngx_int_t
ngx_http_hapax_init_module(ngx_cycle_t *cycle)
{
    ngx_http_hapax_main_conf_t  *hmcf;

    ngx_http_hapax_served = getenv("HAPAX_SERVED") != NULL;

    hmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_hapax_module);

    return hmcf ? ngx_http_hapax_traces_init(cycle, hmcf) : NGX_OK;
}


static ngx_int_t
ngx_http_hapax_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                    i;
    ngx_http_hapax_store_t      **stores;
    struct hapax__counts         *flows;
    ngx_http_hapax_counts_t      *counts;
    ngx_http_hapax_main_conf_t   *hmcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    if (ngx_http_hapax_served && ngx_process == NGX_PROCESS_WORKER) {

        /* after setuid(), which would take it back */
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);

        if (getppid() != ngx_parent) { /* killed before that line */
            return NGX_ERROR;
        }
    }

    hmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_hapax_module);

    if (hmcf == NULL) {
        return NGX_OK;
    }

    ngx_http_hapax_readers_init();

    if (hmcf->zone && hmcf->zone->data) {
        for (i = 0; i < hmcf->nzones; i++) {
            flows = hmcf->zones[i].shm->data;
            hmcf->zones[i].counts = &flows[ngx_process_slot
                                           % NGX_HTTP_HAPAX_SLOTS];
        }

        counts = hmcf->zone->data;
        ngx_http_hapax_counts = &counts[ngx_process_slot
                                        % NGX_HTTP_HAPAX_SLOTS];
        /* the counters of a former worker stay; its gauges count nothing now */
        ngx_http_hapax_counts->dead = 0;
        ngx_http_hapax_counts->in_flight = 0;
        ngx_http_hapax_counts->queued = 0;
        ngx_http_hapax_counts->held = 0;
        ngx_http_hapax_counts->unread = 0;
    }

    if (hmcf->limit_zone) {
        ngx_http_hapax_limit_worker_init(hmcf->limit_zone);
    }

    ngx_http_hapax_traces_open(hmcf, cycle->log);

    stores = hmcf->stores.elts;

    for (i = 0; i < hmcf->stores.nelts; i++) {

        /* on failure it is tried again with the first request */
        (void) ngx_http_hapax_lane_open(stores[i], cycle->log);
    }

    ngx_http_hapax_switches_open(hmcf);

    return NGX_OK;
}


static void
ngx_http_hapax_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                    i;
    ngx_http_hapax_store_t      **stores;
    ngx_http_hapax_main_conf_t   *hmcf;

    hmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_hapax_module);

    if (hmcf == NULL) {
        return;
    }

    ngx_http_hapax_switches_close(hmcf);

    stores = hmcf->stores.elts;

    for (i = 0; i < hmcf->stores.nelts; i++) {
        ngx_http_hapax_lane_close(stores[i]);
    }

    ngx_http_hapax_limit_worker_exit();

    if (ngx_http_hapax_counts) {
        ngx_http_hapax_counts->dead = 0;
        ngx_http_hapax_counts->in_flight = 0;
        ngx_http_hapax_counts->queued = 0;
        ngx_http_hapax_counts->held = 0;
        ngx_http_hapax_counts->unread = 0;
    }

    ngx_http_hapax_traces_close();
}


static ngx_int_t
ngx_http_hapax_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    u_char                *p;
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_hapax_get_ctx(r->main);

    v->not_found = 1;

    if (ctx == NULL) {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, 2 * sizeof(ctx->id.bytes));
    if (p == NULL) {
        return NGX_ERROR;
    }

    v->data = p;

    switch (data) {

    case NGX_HTTP_HAPAX_VAR_ANSWER:
        if (ctx->answer.kind == 0) {
            return NGX_OK;
        }

        v->data = (u_char *) hapax_answer_name(ctx->answer.kind);
        p = v->data + ngx_strlen(v->data);
        break;

    case NGX_HTTP_HAPAX_VAR_KEY_ID:
        if (!ctx->identified || ctx->shadow) {
            return NGX_OK;
        }

        p = ngx_hex_dump(p, ctx->id.bytes, sizeof(ctx->id.bytes));
        break;

    case NGX_HTTP_HAPAX_VAR_ATTEMPT:
        if (ctx->attempt == 0) {
            return NGX_OK;
        }

        p = ngx_sprintf(p, "%uD", ctx->attempt);
        break;

    case NGX_HTTP_HAPAX_VAR_FENCE:
        if (ctx->fence == 0) {
            return NGX_OK;
        }

        p = ngx_sprintf(p, "%uL", ctx->fence);
        break;

    default: /* NGX_HTTP_HAPAX_VAR_TIME */
        p = ngx_sprintf(p, "%L.%06L", ctx->waited_us / 1000000,
                        ctx->waited_us % 1000000);
    }

    v->len = p - v->data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}
