/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration, and how its levels are merged.
 *
 * A setting that a level does not have comes from the level around. A policy is checked as a whole
 * after the merge, since its parts limit one another. What depends on the merged settings of other
 * modules is checked last. Stores are shared: there is one for each URI, secret and keys.
 */

#include "ngx_http_hapax.h"
#include "http/problem.h"


#define NGX_HTTP_HAPAX_ZONE_SIZE    (2 * 1024 * 1024)
#define NGX_HTTP_HAPAX_LIMIT_ZONE   (16 * 1024 * 1024)
#define NGX_HTTP_HAPAX_LIMIT_MIN    (256 * 1024)

/* takes a pointer from the level around, if this one has none */
#define ngx_http_hapax_inherit(field)                                         \
    if (conf->field == NULL) {                                                \
        conf->field = prev->field;                                            \
    }


/* The modules whose requests nginx may send twice: checked at the end. An nginx may lack some. */

extern ngx_module_t  ngx_http_proxy_module __attribute__((weak));
extern ngx_module_t  ngx_http_fastcgi_module __attribute__((weak));
extern ngx_module_t  ngx_http_uwsgi_module __attribute__((weak));
extern ngx_module_t  ngx_http_scgi_module __attribute__((weak));
extern ngx_module_t  ngx_http_grpc_module __attribute__((weak));


void *
ngx_http_hapax_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_hapax_main_conf_t  *hmcf;

    hmcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_hapax_main_conf_t));
    if (hmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&hmcf->stores, cf->pool, 2,
                       sizeof(ngx_http_hapax_store_t *))
        != NGX_OK
        || ngx_array_init(&hmcf->locations, cf->pool, 8, sizeof(void **))
           != NGX_OK
        || ngx_array_init(&hmcf->switches, cf->pool, 4,
                          sizeof(ngx_http_hapax_switch_t *))
           != NGX_OK)
    {
        return NULL;
    }

    hmcf->nzones = 1;                       /* the one without a name */
    hmcf->events_output = NGX_INVALID_FILE;
    hmcf->held_max = NGX_CONF_UNSET_SIZE;
    hmcf->limit_zone_size = NGX_CONF_UNSET_SIZE;

    return hmcf;
}


/* Each zone has memory of its own, so a reload that adds one keeps the counts of the others. */

static ngx_int_t
ngx_http_hapax_add_zones(ngx_conf_t *cf, ngx_http_hapax_main_conf_t *hmcf)
{
    ngx_str_t               name;
    ngx_uint_t              i;
    ngx_http_hapax_zone_t  *zone;

    for (i = 0; i < hmcf->nzones; i++) {
        zone = &hmcf->zones[i];

        name.len = sizeof("hapax_zone:") - 1 + zone->name.len;
        name.data = ngx_pnalloc(cf->pool, name.len);
        if (name.data == NULL) {
            return NGX_ERROR;
        }

        ngx_sprintf(name.data, "hapax_zone:%V", &zone->name);

        zone->shm = ngx_shared_memory_add(cf, &name, NGX_HTTP_HAPAX_ZONE_SIZE,
                                          &ngx_http_hapax_module);
        if (zone->shm == NULL) {
            return NGX_ERROR;
        }

        zone->shm->init = ngx_http_hapax_zone_init_flows;
    }

    return NGX_OK;
}


char *
ngx_http_hapax_init_main_conf(ngx_conf_t *cf, void *conf)
{
    ngx_http_hapax_main_conf_t *hmcf = conf;

    ngx_str_t  name = ngx_string("hapax");
    ngx_str_t  limits = ngx_string("hapax_limits");

    ngx_conf_init_size_value(hmcf->held_max, 256 * 1024 * 1024);
    ngx_conf_init_size_value(hmcf->limit_zone_size, NGX_HTTP_HAPAX_LIMIT_ZONE);

    if (hmcf->limit_zone_size < NGX_HTTP_HAPAX_LIMIT_MIN) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"hapax_limit_zone\" takes 256k at least");
        return NGX_CONF_ERROR;
    }

    hmcf->zone = ngx_shared_memory_add(cf, &name, NGX_HTTP_HAPAX_ZONE_SIZE,
                                       &ngx_http_hapax_module);
    if (hmcf->zone == NULL) {
        return NGX_CONF_ERROR;
    }

    hmcf->zone->init = ngx_http_hapax_zone_init;

    if (ngx_http_hapax_add_zones(cf, hmcf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (!hmcf->limits) {
        return NGX_CONF_OK;
    }

    hmcf->limit_zone = ngx_shared_memory_add(cf, &limits,
                                             hmcf->limit_zone_size,
                                             &ngx_http_hapax_module);
    if (hmcf->limit_zone == NULL) {
        return NGX_CONF_ERROR;
    }

    hmcf->limit_zone->init = ngx_http_hapax_limit_zone_init;

    return NGX_CONF_OK;
}


void *
ngx_http_hapax_create_srv_conf(ngx_conf_t *cf)
{
    return ngx_pcalloc(cf->pool, sizeof(ngx_http_hapax_srv_conf_t));
}


void *
ngx_http_hapax_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_hapax_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_hapax_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->enable = NGX_CONF_UNSET_UINT;
    conf->push = NGX_CONF_UNSET_UINT;
    conf->key_from = NGX_CONF_UNSET_PTR;
    conf->zone = NGX_CONF_UNSET_PTR;
    conf->keys = NGX_CONF_UNSET_PTR;
    conf->limits = NGX_CONF_UNSET_PTR;
    conf->in_flight_status = NGX_CONF_UNSET_UINT;

    return conf;
}


/* Puts the settings of the level around before those of this level: a later one counts. */

static ngx_int_t
ngx_http_hapax_merge_settings(ngx_conf_t *cf, ngx_http_hapax_loc_conf_t *prev,
    ngx_http_hapax_loc_conf_t *conf)
{
    ngx_uint_t    n;
    ngx_array_t  *settings, *own;

    own = conf->settings;

    if (prev->settings == NULL) {
        return NGX_OK;
    }

    if (own == NULL) {
        conf->settings = prev->settings;
        return NGX_OK;
    }

    n = prev->settings->nelts;
    settings = ngx_array_create(cf->pool, n + own->nelts,
                                sizeof(ngx_http_hapax_setting_t));

    if (settings == NULL
        || ngx_array_push_n(settings, n + own->nelts) == NULL)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(settings->elts, prev->settings->elts, n * settings->size);
    ngx_memcpy((u_char *) settings->elts + n * settings->size, own->elts,
               own->nelts * settings->size);

    conf->settings = settings;

    return NGX_OK;
}


static ngx_int_t
ngx_http_hapax_make_policy(ngx_conf_t *cf, ngx_http_hapax_loc_conf_t *conf)
{
    char                       text[HAPAX_TEXT_MAX];
    ngx_uint_t                 i;
    ngx_http_hapax_setting_t  *setting;

    hapax_policy_init(&conf->policy);

    if (conf->settings) {
        setting = conf->settings->elts;

        for (i = 0; i < conf->settings->nelts; i++) {
            (void) hapax_policy_set(&conf->policy,
                                    (char *) setting[i].name.data,
                                    (char *) setting[i].value.data, text);
        }
    }

    if (conf->enable == NGX_HTTP_HAPAX_REQUIRED) {
        conf->policy.key = HAPAX_KEY_REQUIRED;
    }

    if (hapax_policy_check(&conf->policy, text) != HAPAX_ERR_NONE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "hapax: %s", text);
        return NGX_ERROR;
    }

    if (conf->policy.on_expired == HAPAX_EXPIRED_RECONCILE
        && conf->reconcile == NULL)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"hapax_on_expired reconcile\" needs "
                           "\"hapax_reconcile URI\"");
        return NGX_ERROR;
    }

    if (conf->enable != NGX_HTTP_HAPAX_OFF && conf->policy.owner_required
        && conf->owner == NULL)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"hapax_owner_required on\" (and so "
                           "\"hapax_profile payments\") needs "
                           "\"hapax_owner VALUE\": who it is that a key "
                           "belongs to");
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_hapax_same_keys(const struct hapax__keys *a,
    const struct hapax__keys *b)
{
    if (a == NULL || b == NULL) {
        return a == b;
    }

    return ngx_memcmp(a, b, sizeof(struct hapax__keys)) == 0;
}


static ngx_http_hapax_store_t *
ngx_http_hapax_find_store(ngx_conf_t *cf, ngx_http_hapax_loc_conf_t *conf)
{
    char                          shown[HAPAX_TEXT_MAX];
    ngx_str_t                     text;
    ngx_uint_t                    i;
    ngx_http_hapax_store_t      **stores, *store;
    ngx_http_hapax_main_conf_t   *hmcf;

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_hapax_module);
    stores = hmcf->stores.elts;

    for (i = 0; i < hmcf->stores.nelts; i++) {
        store = stores[i];

        if (store->uri.len == conf->uri.len
            && store->secret.len == conf->secret.len
            && ngx_memcmp(store->uri.data, conf->uri.data, conf->uri.len) == 0
            && (conf->secret.len == 0
                || ngx_memcmp(store->secret.data, conf->secret.data,
                              conf->secret.len)
                   == 0)
            && store->secret_old.len == conf->secret_old.len
            && !store->secret_old.data == !conf->secret_old.data
            && (conf->secret_old.len == 0
                || ngx_memcmp(store->secret_old.data, conf->secret_old.data,
                              conf->secret_old.len)
                   == 0)
            && ngx_http_hapax_same_keys(store->keys, conf->keys))
        {
            return store;
        }
    }

    store = ngx_pcalloc(cf->pool, sizeof(ngx_http_hapax_store_t));
    stores = ngx_array_push(&hmcf->stores);

    if (store == NULL || stores == NULL) {
        return NULL;
    }

    store->uri = conf->uri;
    store->secret = conf->secret;
    store->secret_old = conf->secret_old;
    store->keys = conf->keys;

    hapax_store_shown(shown, (char *) conf->uri.data);

    text.data = (u_char *) shown;
    text.len = ngx_strlen(shown);
    store->shown.len = text.len;
    store->shown.data = ngx_pstrdup(cf->pool, &text);

    if (store->shown.data == NULL) {
        return NULL;
    }

    *stores = store;

    return store;
}


/* A scope that differs between requests has no switch: there would be no end of them. */

static ngx_int_t
ngx_http_hapax_find_switches(ngx_conf_t *cf, ngx_http_hapax_loc_conf_t *conf)
{
    ngx_str_t  scope;

    ngx_str_null(&scope);
    conf->switches[0] = ngx_http_hapax_switch_find(cf, conf->store, &scope);

    if (conf->switches[0] == NULL) {
        return NGX_ERROR;
    }

    if (conf->scope ? conf->scope->lengths != NULL : conf->push != 0) {
        return NGX_OK;
    }

    if (conf->scope) {
        scope = conf->scope->value;

    } else {
        ngx_str_set(&scope, "default");
    }

    if (scope.len == 0 || scope.len > HAPAX_SCOPE_MAX) {
        return NGX_OK;
    }

    conf->switches[1] = ngx_http_hapax_switch_find(cf, conf->store, &scope);

    return conf->switches[1] ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_hapax_merge_names(ngx_http_hapax_loc_conf_t *prev,
    ngx_http_hapax_loc_conf_t *conf)
{
    if (conf->enable == NGX_CONF_UNSET_UINT) {
        conf->mode = prev->mode;
    }

    ngx_conf_merge_uint_value(conf->enable, prev->enable, NGX_HTTP_HAPAX_OFF);
    ngx_conf_merge_uint_value(conf->push, prev->push, NGX_HTTP_HAPAX_PUSH_OFF);
    ngx_conf_merge_str_value(conf->uri, prev->uri, "");

    /* a secret of its own has no older one, unless that is said beside it */
    if (conf->secret_old.data == NULL && conf->secret.data == NULL) {
        conf->secret_old = prev->secret_old;
    }

    ngx_conf_merge_str_value(conf->secret, prev->secret, "");
    ngx_conf_merge_ptr_value(conf->keys, prev->keys, NULL);
    ngx_conf_merge_str_value(conf->key_header, prev->key_header,
                             "Idempotency-Key");
    ngx_conf_merge_str_value(conf->problem_base, prev->problem_base,
                             HAPAX__PROBLEM_PATH);
    ngx_conf_merge_str_value(conf->problem_template, prev->problem_template,
                             "");
    ngx_conf_merge_ptr_value(conf->key_from, prev->key_from, NULL);
    ngx_conf_merge_ptr_value(conf->limits, prev->limits, NULL);
    ngx_conf_merge_uint_value(conf->in_flight_status, prev->in_flight_status,
                              409);

    ngx_http_hapax_inherit(scope);
    ngx_http_hapax_inherit(owner);

    if (conf->caller == NULL) {
        conf->one_caller = prev->one_caller;
    }

    ngx_http_hapax_inherit(caller);
    ngx_http_hapax_inherit(reconcile);
    ngx_http_hapax_inherit(classes);
    ngx_http_hapax_inherit(hide);
    ngx_http_hapax_inherit(keep);

    if (conf->methods == 0) {
        conf->methods = prev->methods ? prev->methods
                                      : (NGX_HTTP_POST|NGX_HTTP_PATCH);
    }

    if (conf->fingerprint == 0) {
        conf->fingerprint = prev->fingerprint;
        conf->pointers = prev->pointers;
        conf->fp_headers = prev->fp_headers;
        conf->select = prev->select;
    }

    if (conf->fingerprint == 0
        || (conf->fingerprint & NGX_HTTP_HAPAX_FP_DEFAULT))
    {
        conf->fingerprint = NGX_HTTP_HAPAX_FP_DEFAULT
                            | (conf->push ? NGX_HTTP_HAPAX_FP_PUSH
                                          : NGX_HTTP_HAPAX_FP_METHOD
                                            |NGX_HTTP_HAPAX_FP_HOST
                                            |NGX_HTTP_HAPAX_FP_URI
                                            |NGX_HTTP_HAPAX_FP_BODY);
    }

    if (conf->select == 0) {
        conf->select = HAPAX__JSON_EXCLUDE;
    }
}


char *
ngx_http_hapax_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_hapax_loc_conf_t *prev = parent;
    ngx_http_hapax_loc_conf_t *conf = child;

    void                       ***location;
    ngx_http_hapax_srv_conf_t    *hscf;
    ngx_http_hapax_main_conf_t   *hmcf;

    ngx_http_hapax_merge_names(prev, conf);

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_hapax_module);
    ngx_conf_merge_ptr_value(conf->zone, prev->zone, &hmcf->zones[0]);

    if (ngx_http_hapax_merge_settings(cf, prev, conf) != NGX_OK
        || ngx_http_hapax_make_policy(cf, conf) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (conf->enable == NGX_HTTP_HAPAX_OFF) {
        return NGX_CONF_OK;
    }

    if (conf->uri.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"hapax\" is on, and there is no \"hapax_store\"");
        return NGX_CONF_ERROR;
    }

    if (conf->secret_old.data && conf->secret.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"hapax_secret_old\", and no \"hapax_secret\"");
        return NGX_CONF_ERROR;
    }

    if (conf->secret_old.data && conf->policy.pass_token) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"hapax_pass_token on\" and "
                           "\"hapax_secret_old\": who completes by a token "
                           "knows one secret");
        return NGX_CONF_ERROR;
    }

    conf->store = ngx_http_hapax_find_store(cf, conf);
    if (conf->store == NULL
        || ngx_http_hapax_find_switches(cf, conf) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    location = ngx_array_push(&hmcf->locations);
    if (location == NULL) {
        return NGX_CONF_ERROR;
    }

    *location = ((ngx_http_conf_ctx_t *) cf->ctx)->loc_conf;

    if (ngx_strcmp(conf->problem_base.data, HAPAX__PROBLEM_PATH) == 0) {
        hscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_hapax_module);
        hscf->problems = 1;
    }

    return NGX_CONF_OK;
}


/* Counts last as long as the longest retention: an owner has one count for all locations. */

static void
ngx_http_hapax_set_kept(ngx_http_hapax_main_conf_t *hmcf)
{
    void                       ***locations;
    int64_t                       kept_ms;
    ngx_uint_t                    i;
    ngx_http_hapax_loc_conf_t    *conf;

    locations = hmcf->locations.elts;
    kept_ms = 0;

    for (i = 0; i < hmcf->locations.nelts; i++) {
        conf = locations[i][ngx_http_hapax_module.ctx_index];

        if (conf->limits) {
            kept_ms = ngx_max(kept_ms, conf->policy.retention_ms);
        }
    }

    for (i = 0; i < hmcf->locations.nelts; i++) {
        conf = locations[i][ngx_http_hapax_module.ctx_index];

        if (conf->limits) {
            conf->limits->kept_us = (kept_ms == HAPAX_FOREVER_MS)
                                    ? 0 : kept_ms * 1000;
        }
    }
}


/*
 * With "non_idempotent" nginx sends a request to a next server after it was
 * sent to one: two runs under one claim. In the configuration of each module
 * below, the upstream's configuration is first.
 */

const char *
ngx_http_hapax_runs_twice(void **loc_conf)
{
    ngx_uint_t                 i;
    ngx_http_upstream_conf_t  *upstream;

    static const struct {
        ngx_module_t  *module;
        const char    *name;
    } modules[] = {
        { &ngx_http_proxy_module, "proxy_next_upstream" },
        { &ngx_http_fastcgi_module, "fastcgi_next_upstream" },
        { &ngx_http_uwsgi_module, "uwsgi_next_upstream" },
        { &ngx_http_scgi_module, "scgi_next_upstream" },
        { &ngx_http_grpc_module, "grpc_next_upstream" }
    };

    for (i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {

        if (modules[i].module == NULL) {
            continue;
        }

        upstream = loc_conf[modules[i].module->ctx_index];

        if (upstream
            && (upstream->next_upstream & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT))
        {
            return modules[i].name;
        }
    }

    return NULL;
}


/* All modules are merged by now. */

ngx_int_t
ngx_http_hapax_check_locations(ngx_conf_t *cf)
{
    void                       ***locations;
    ngx_uint_t                    i;
    const char                   *name;
    ngx_http_hapax_main_conf_t   *hmcf;

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_hapax_module);
    locations = hmcf->locations.elts;

    ngx_http_hapax_set_kept(hmcf);

    for (i = 0; i < hmcf->locations.nelts; i++) {

        name = ngx_http_hapax_runs_twice(locations[i]);

        if (name) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"%s ... non_idempotent\" and \"hapax\" in one "
                          "location: nginx would run an operation twice", name);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
