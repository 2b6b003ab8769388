/* SPDX-License-Identifier: Apache-2.0
 *
 * The switch of a store (hapax switch): each worker READs it once a second, through the store's own
 * link or lane. The word stands in shared memory, so all workers turn at once, and a worker that
 * starts goes on from the last word. It takes away from what a location says, and adds nothing to
 * it: where nobody has ever reached the store, a location does what it says. With the word stands
 * the fence of its record: an answer that comes late, or a store that went back in time, lowers
 * nothing.
 */

#include "ngx_http_hapax.h"


#define NGX_HTTP_HAPAX_SWITCH_MS  1000

/* fences are microseconds since 1970, and words are below 4: 64 bits hold both */
#define ngx_http_hapax_switch_known(fence, word)  (((fence) << 2) | (word))
#define NGX_HTTP_HAPAX_SWITCH_WORD  3


static void ngx_http_hapax_switch_told(ngx_http_hapax_asker_t *asker);
static void ngx_http_hapax_switch_timer_handler(ngx_event_t *ev);


static ngx_int_t
ngx_http_hapax_switch_zone_init(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t  *pool;

    if (ngx_http_hapax_zone_kept(zone, data)) {
        return NGX_OK;
    }

    pool = (ngx_slab_pool_t *) zone->shm.addr;

    zone->data = ngx_slab_calloc(pool, sizeof(ngx_atomic_t));
    pool->data = zone->data;

    return zone->data ? NGX_OK : NGX_ERROR;
}


/* Its name has no password: one of a store, and of a scope, whatever the secret. */

static ngx_shm_zone_t *
ngx_http_hapax_switch_zone(ngx_conf_t *cf, ngx_http_hapax_store_t *store,
    ngx_str_t *scope)
{
    u_char               *p;
    ngx_str_t             name;
    ngx_shm_zone_t       *zone;
    struct hapax_span     parts[2];
    struct hapax_digest   digest;

    parts[0].ptr = store->uri.data;
    parts[0].len = store->uri.len;
    parts[1].ptr = scope->data;
    parts[1].len = scope->len;
    hapax_digest(&digest, parts, 2);

    name.len = sizeof("hapax_switch:") - 1 + 2 * sizeof(digest.bytes);
    name.data = ngx_pnalloc(cf->pool, name.len);
    if (name.data == NULL) {
        return NULL;
    }

    p = ngx_cpymem(name.data, "hapax_switch:", sizeof("hapax_switch:") - 1);
    (void) ngx_hex_dump(p, digest.bytes, sizeof(digest.bytes));

    zone = ngx_shared_memory_add(cf, &name, 8 * ngx_pagesize,
                                 &ngx_http_hapax_module);
    if (zone) {
        zone->init = ngx_http_hapax_switch_zone_init;
    }

    return zone;
}


ngx_http_hapax_switch_t *
ngx_http_hapax_switch_find(ngx_conf_t *cf, ngx_http_hapax_store_t *store,
    ngx_str_t *scope)
{
    ngx_uint_t                    i;
    ngx_http_hapax_switch_t     **switches, *s;
    ngx_http_hapax_main_conf_t   *hmcf;

    hmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_hapax_module);
    switches = hmcf->switches.elts;

    for (i = 0; i < hmcf->switches.nelts; i++) {
        s = switches[i];

        if (s->store == store && s->scope.len == scope->len
            && ngx_memcmp(s->scope.data, scope->data, scope->len) == 0)
        {
            return s;
        }
    }

    s = ngx_pcalloc(cf->pool, sizeof(ngx_http_hapax_switch_t));
    switches = ngx_array_push(&hmcf->switches);

    if (s == NULL || switches == NULL) {
        return NULL;
    }

    s->store = store;
    s->scope = *scope;
    s->zone = ngx_http_hapax_switch_zone(cf, store, scope);

    *switches = s;

    return s->zone ? s : NULL;
}


ngx_uint_t
ngx_http_hapax_switch_word(ngx_http_hapax_switch_t *s)
{
    ngx_atomic_t  *word;

    word = s->zone->data;

    return word ? *word & NGX_HTTP_HAPAX_SWITCH_WORD : 0;
}


ngx_uint_t
ngx_http_hapax_switch_lower(ngx_http_hapax_loc_conf_t *conf, ngx_uint_t mode)
{
    ngx_uint_t  i, word;

    for (i = 0; i < 2; i++) {
        word = conf->switches[i]
               ? ngx_http_hapax_switch_word(conf->switches[i]) : 0;

        if (word) {
            /* the words are in the order of the modes, and begin with 1 */
            mode = ngx_min(mode, word - HAPAX__SWITCH_OFF);
        }
    }

    return mode;
}


static void
ngx_http_hapax_switch_ask(ngx_http_hapax_switch_t *s)
{
    struct hapax_span  scope;

    scope.ptr = s->scope.data;
    scope.len = s->scope.len;

    s->op = hapax__switch_read(scope);
    s->asker.op = &s->op;
    s->asker.told = ngx_http_hapax_switch_told;

    if (ngx_http_hapax_lane_open(s->store, ngx_cycle->log) != NGX_OK
        || ngx_http_hapax_ask(s->store, &s->asker, 0) != NGX_OK)
    {
        ngx_add_timer(&s->timer, NGX_HTTP_HAPAX_SWITCH_MS);
    }
}


/* A READ that failed leaves the word as it is. The first worker that sees another word logs it. */

static void
ngx_http_hapax_switch_heard(ngx_http_hapax_switch_t *s)
{
    ngx_uint_t           was, word;
    ngx_atomic_t        *known;
    ngx_atomic_uint_t    before, now;

    known = s->zone->data;

    if (known == NULL) {
        return;
    }

    word = hapax__switch_said(&s->op);
    before = *known;
    was = before & NGX_HTTP_HAPAX_SWITCH_WORD;
    now = ngx_http_hapax_switch_known((ngx_atomic_uint_t) s->op.record.fence,
                                      word);

    /* what is older may raise the word, and not lower it */

    if (now == before || (now < before && word < was)
        || !ngx_atomic_cmp_set(known, before, now))
    {
        return;
    }

    if (word != was && (was || word != HAPAX__SWITCH_ON)) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "hapax: store \"%V\"%s%V is switched to %s",
                      &s->store->shown, s->scope.len ? ", scope " : "",
                      &s->scope, hapax__switch_name(word));
    }
}


static void
ngx_http_hapax_switch_told(ngx_http_hapax_asker_t *asker)
{
    enum hapax_error          error;
    ngx_http_hapax_switch_t  *s;

    s = (ngx_http_hapax_switch_t *)
            ((u_char *) asker - offsetof(ngx_http_hapax_switch_t, asker));

    error = s->op.error;

    if (error == HAPAX_ERR_NONE) {
        ngx_http_hapax_switch_heard(s);

    } else if (error != s->error && error != HAPAX_ERR_UNAVAILABLE
               && error != HAPAX_ERR_INDETERMINATE)
    {
        ngx_http_hapax_lane_log(s->store, ngx_cycle->log, error);
    }

    s->error = error;

    if (!ngx_exiting && !ngx_terminate && !ngx_quit) {
        ngx_add_timer(&s->timer, NGX_HTTP_HAPAX_SWITCH_MS);
    }
}


static void
ngx_http_hapax_switch_timer_handler(ngx_event_t *ev)
{
    ngx_http_hapax_switch_ask(ev->data);
}


void
ngx_http_hapax_switches_open(ngx_http_hapax_main_conf_t *hmcf)
{
    ngx_uint_t                 i;
    ngx_http_hapax_switch_t  **switches, *s;

    switches = hmcf->switches.elts;

    for (i = 0; i < hmcf->switches.nelts; i++) {
        s = switches[i];

        s->timer.handler = ngx_http_hapax_switch_timer_handler;
        s->timer.data = s;
        s->timer.log = ngx_cycle->log;
        s->timer.cancelable = 1;

        ngx_http_hapax_switch_ask(s);
    }
}


/* Before the lanes are closed: nobody is asked any more. */

void
ngx_http_hapax_switches_close(ngx_http_hapax_main_conf_t *hmcf)
{
    ngx_uint_t                 i;
    ngx_http_hapax_switch_t  **switches;

    switches = hmcf->switches.elts;

    for (i = 0; i < hmcf->switches.nelts; i++) {
        if (switches[i]->timer.timer_set) {
            ngx_del_timer(&switches[i]->timer);
        }
    }
}


/* The lowest word of all; ON where none is known. */

ngx_uint_t
ngx_http_hapax_switch_lowest(ngx_http_hapax_main_conf_t *hmcf)
{
    ngx_uint_t                 i, word, lowest;
    ngx_http_hapax_switch_t  **switches;

    switches = hmcf->switches.elts;
    lowest = HAPAX__SWITCH_ON;

    for (i = 0; i < hmcf->switches.nelts; i++) {
        word = ngx_http_hapax_switch_word(switches[i]);
        lowest = word ? ngx_min(lowest, word) : lowest;
    }

    return lowest;
}
