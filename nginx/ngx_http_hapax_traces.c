/* SPDX-License-Identifier: Apache-2.0
 *
 * The traces of requests (http/traces.h): each worker has a queue and a thread of its own.
 */

#include "ngx_http_hapax.h"


static struct hapax__traces  *ngx_http_hapax_traces;
static uint64_t               ngx_http_hapax_traces_counted[3];


/* The master opens the file, as it does logs: workers may not be able to. */

char *
ngx_http_hapax_set_events(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t                   *value;
    ngx_http_hapax_main_conf_t  *hmcf;

    hmcf = conf;
    value = cf->args->elts;

    if (hmcf->events.data) {
        return "is duplicate";
    }

    if (ngx_strcmp(value[1].data, "-") == 0) {
        hmcf->events = value[1];
        return NGX_CONF_OK;
    }

    hmcf->events_file = ngx_conf_open_file(cf->cycle, &value[1]);
    if (hmcf->events_file == NULL) {
        return NGX_CONF_ERROR;
    }

    hmcf->events = hmcf->events_file->name;

    return NGX_CONF_OK;
}


static void
ngx_http_hapax_traces_cleanup(void *data)
{
    ngx_http_hapax_main_conf_t  *hmcf;

    hmcf = data;

    if (close(hmcf->events_output) == -1) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      "close() of hapax_events failed");
    }
}


/*
 * A pipe at standard output: the workers may not be able to open it anew, and
 * would then wait in it for each other.  With "daemon on" there is no output.
 */

ngx_int_t
ngx_http_hapax_traces_init(ngx_cycle_t *cycle, ngx_http_hapax_main_conf_t *hmcf)
{
    ngx_core_conf_t     *ccf;
    ngx_pool_cleanup_t  *cln;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    if (ccf->daemon || hmcf->events.data == NULL || hmcf->events_file
        || ngx_test_config)
    {
        return NGX_OK;
    }

    cln = ngx_pool_cleanup_add(cycle->pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    hmcf->events_output = hapax__traces_output();

    if (hmcf->events_output != NGX_INVALID_FILE) {
        cln->handler = ngx_http_hapax_traces_cleanup;
        cln->data = hmcf;
    }

    return NGX_OK;
}


/* A collector that cannot be used leaves the requests as they are. */

void
ngx_http_hapax_traces_open(ngx_http_hapax_main_conf_t *hmcf, ngx_log_t *log)
{
    char                            text[HAPAX_TEXT_MAX];
    struct hapax__traces_settings   settings;

    if (hmcf->traces.data == NULL && hmcf->events.data == NULL) {
        return;
    }

    ngx_memzero(&settings, sizeof(struct hapax__traces_settings));

    settings.door = HAPAX__TRACED_HTTP;
    settings.no_spans = (hmcf->traces.data == NULL);
    settings.events = (char *) hmcf->events.data;

    if (hmcf->events_file) {
        settings.events_fd = &hmcf->events_file->fd;

    } else if (hmcf->events_output != NGX_INVALID_FILE) {
        settings.events_fd = &hmcf->events_output;
    }

    /* "env": what the environment says */

    if (hmcf->traces.data && ngx_strcmp(hmcf->traces.data, "env") != 0) {
        settings.url = (char *) hmcf->traces.data;
    }

    if (hapax__traces_open(&ngx_http_hapax_traces, &settings, text)
        != HAPAX_ERR_NONE)
    {
        ngx_log_error(NGX_LOG_ERR, log, 0, "hapax: no traces: %s", text);
    }
}


void
ngx_http_hapax_traces_close(void)
{
    hapax__traces_close(ngx_http_hapax_traces);
    ngx_http_hapax_traces = NULL;
}


static struct hapax_span
ngx_http_hapax_traceparent(ngx_http_request_t *r)
{
    ngx_uint_t          n, exact;
    ngx_table_elt_t    *h;
    struct hapax_span   value;
    static ngx_str_t    name = ngx_string("traceparent");

    value.ptr = NULL;
    value.len = 0;

    h = ngx_http_hapax_find_header(r, &name, &n, &exact);

    if (n == 1 && exact) {
        value.ptr = h->value.data;
        value.len = h->value.len;
    }

    return value;
}


void
ngx_http_hapax_traces_begin(ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_call_t *call)
{
    struct hapax__trace  run;

    hapax__traces_begin(ngx_http_hapax_traces, &call->traced,
                        ngx_http_hapax_traceparent(ctx->request));

    if (hapax__traces_run(&run, &call->traced)) {
        hapax__trace_write(ctx->trace, &run);
    }
}


void
ngx_http_hapax_traces_answer(ngx_http_hapax_call_t *call)
{
    struct hapax__traces_counts  counts;

    if (ngx_http_hapax_traces == NULL) {
        return;
    }

    hapax__traces_answer(ngx_http_hapax_traces, &call->traced, &call->flow,
                         hapax__boot_us());

    counts = hapax__traces_counts(ngx_http_hapax_traces);

    if (counts.sent == ngx_http_hapax_traces_counted[0]
        && counts.dropped == ngx_http_hapax_traces_counted[1]
        && counts.events_dropped == ngx_http_hapax_traces_counted[2])
    {
        return;
    }

    ngx_http_hapax_count(traces_sent,
                         counts.sent - ngx_http_hapax_traces_counted[0]);
    ngx_http_hapax_count(traces_dropped,
                         counts.dropped - ngx_http_hapax_traces_counted[1]);
    ngx_http_hapax_count(events_dropped, counts.events_dropped
                                         - ngx_http_hapax_traces_counted[2]);

    ngx_http_hapax_traces_counted[0] = counts.sent;
    ngx_http_hapax_traces_counted[1] = counts.dropped;
    ngx_http_hapax_traces_counted[2] = counts.events_dropped;
}


/* $hapax_traceparent: of the handler's run; where there is none, the client's own */

ngx_int_t
ngx_http_hapax_traces_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    struct hapax_span      value;
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_hapax_get_ctx(r->main);

    if (ctx && ctx->trace[0]) {
        value.ptr = (u_char *) ctx->trace;
        value.len = HAPAX__TRACE_TEXT;

    } else {
        value = ngx_http_hapax_traceparent(r->main);
    }

    v->data = (u_char *) value.ptr;
    v->len = value.len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = (value.len == 0);

    return NGX_OK;
}
