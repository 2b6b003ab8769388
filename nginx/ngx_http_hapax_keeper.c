/* SPDX-License-Identifier: Apache-2.0
 *
 * A store that a keeper serves, asked from the worker's own events: no thread stands between the
 * request and the socket. The protocol and its rules are those of the link (store/keeper/link.h);
 * this file only tells the link when there is something to do.
 *
 * The store opens with the first op, and again after a failure, as other stores do (in
 * ngx_http_hapax_late.c): connected, then bound to the secret, and only then are ops sent. So no id
 * is looked up under a secret that is not the store's. Until then each op is UNAVAILABLE: surely
 * not applied.
 *
 * Ops of one round of events are sent together, by a posted event at its end. The timer is one that
 * a worker that quits does not wait for: the flows have timers of their own.
 */

#include "ngx_http_hapax.h"
#include "base/arena.h"
#include "store/types.h"


/* without a connection of nginx's the socket is looked at so often */
#define NGX_HTTP_HAPAX_KEEPER_LOOK_MS  10


typedef enum {
    NGX_HTTP_HAPAX_KEEPER_CLOSED = 0,
    NGX_HTTP_HAPAX_KEEPER_BINDING,
    NGX_HTTP_HAPAX_KEEPER_BOUND
} ngx_http_hapax_keeper_phase_e;


struct ngx_http_hapax_keeper_s {
    struct hapax__link              link;
    struct hapax_arena              arena;
    struct hapax_span               secret;      /* the configuration's */
    const struct hapax__keys       *keys;        /* also; NULL: none */
    ngx_http_hapax_keeper_phase_e   phase;
    ngx_connection_t               *connection;  /* NULL: none watches the socket */
    ngx_event_t                     turn;        /* posted: ops were put */
    ngx_event_t                     timer;

    /* while it is not bound */
    struct hapax__askings          pending;
    uint32_t                        pending_n;
    struct hapax_op                 op;
    struct hapax__asking           binding;
    int64_t                         again_us;
    int64_t                         pause_us;
    enum hapax_error                error;       /* of the last try */
};


static void ngx_http_hapax_keeper_closing(struct hapax__link *link);
static void ngx_http_hapax_keeper_read_handler(ngx_event_t *ev);
static void ngx_http_hapax_keeper_write_handler(ngx_event_t *ev);
static void ngx_http_hapax_keeper_turn_handler(ngx_event_t *ev);
static void ngx_http_hapax_keeper_timer_handler(ngx_event_t *ev);


ngx_int_t
ngx_http_hapax_keeper_open(ngx_http_hapax_store_t *store)
{
    u_char                   *uri;
    char                      text[HAPAX_TEXT_MAX];
    enum hapax_error          error;
    ngx_http_hapax_keeper_t  *k;

    /* while the secret is changed an op is two records, which the lane knows */

    if (store->secret_old.data
        || (ngx_strncmp(store->uri.data, "unix:", 5) != 0
            && ngx_strncmp(store->uri.data, "rocksdb:", 8) != 0))
    {
        return NGX_DECLINED;
    }

    k = calloc(1, sizeof(ngx_http_hapax_keeper_t));
    uri = malloc(store->uri.len + 1);

    if (k == NULL || uri == NULL) {
        free(uri);
        free(k);
        return NGX_ERROR;
    }

    (void) ngx_cpystrn(uri, store->uri.data, store->uri.len + 1);
    error = hapax__link_init_uri(&k->link, (char *) uri, text);
    free(uri);

    if (error != HAPAX_ERR_NONE) {
        free(k);
        return NGX_DECLINED;                   /* the lane will say why */
    }

    k->link.arena = &k->arena;
    k->link.closing = ngx_http_hapax_keeper_closing;
    k->link.owner = k;

    k->secret.ptr = store->secret.data;
    k->secret.len = store->secret.len;
    k->keys = store->keys;
    k->pause_us = NGX_HTTP_HAPAX_OPEN_MIN_US;
    k->binding.op = &k->op;
    STAILQ_INIT(&k->pending);

    k->turn.handler = ngx_http_hapax_keeper_turn_handler;
    k->turn.data = k;
    k->turn.log = ngx_cycle->log;

    k->timer.handler = ngx_http_hapax_keeper_timer_handler;
    k->timer.data = k;
    k->timer.log = ngx_cycle->log;
    k->timer.cancelable = 1;

    store->keeper = k;

    return NGX_OK;
}


/* Ops that the link has are still run. Nobody is told of them any more. */

void
ngx_http_hapax_keeper_close(ngx_http_hapax_store_t *store)
{
    struct hapax__asking     *asking;
    ngx_http_hapax_keeper_t  *k;

    k = store->keeper;
    store->keeper = NULL;

    if (k->turn.posted) {
        ngx_delete_posted_event(&k->turn);
    }

    if (k->timer.timer_set) {
        ngx_del_timer(&k->timer);
    }

    hapax__link_run(&k->link);

    while ((asking = hapax__link_take(&k->link)) != NULL) {

        if (asking != &k->binding) {
            hapax__unseal(k->keys, asking->op, &k->arena, k->link.text);
        }
    }

    hapax__link_release(&k->link);
    hapax__arena_release(&k->arena);

    free(k);
}


static void
ngx_http_hapax_keeper_told(ngx_http_hapax_keeper_t *k,
    struct hapax__asking *asking)
{
    hapax__unseal(k->keys, asking->op, &k->arena, k->link.text);
    ngx_http_hapax_asking_told(asking);
}


const char *
ngx_http_hapax_keeper_text(ngx_http_hapax_store_t *store)
{
    return store->keeper->link.text;
}


/* nginx's side of the socket */


static void
ngx_http_hapax_keeper_closing(struct hapax__link *link)
{
    ngx_connection_t         *c;
    ngx_http_hapax_keeper_t  *k;

    k = link->owner;
    c = k->connection;

    if (c == NULL) {
        return;
    }

    k->connection = NULL;

    if (c->read->active) {
        (void) ngx_del_event(c->read, NGX_READ_EVENT, 0);
    }

    if (c->write->active) {
        (void) ngx_del_event(c->write, NGX_WRITE_EVENT, 0);
    }

    if (c->read->posted) {
        ngx_delete_posted_event(c->read);
    }

    if (c->write->posted) {
        ngx_delete_posted_event(c->write);
    }

    ngx_free_connection(c);
    c->fd = (ngx_socket_t) -1;                 /* the link closes it */
}


/* On failure the timer looks at the socket. */

static void
ngx_http_hapax_keeper_watch(ngx_http_hapax_keeper_t *k)
{
    ngx_connection_t  *c;

    c = ngx_get_connection(k->link.fd, ngx_cycle->log);
    if (c == NULL) {
        return;
    }

    c->data = k;
    c->log = ngx_cycle->log;
    c->read->log = ngx_cycle->log;
    c->write->log = ngx_cycle->log;
    c->read->handler = ngx_http_hapax_keeper_read_handler;
    c->write->handler = ngx_http_hapax_keeper_write_handler;

    if (ngx_add_event(c->read, NGX_READ_EVENT, 0) != NGX_OK) {
        ngx_free_connection(c);
        c->fd = (ngx_socket_t) -1;
        return;
    }

    k->connection = c;
}


static void
ngx_http_hapax_keeper_set_timer(ngx_http_hapax_keeper_t *k)
{
    int64_t  left_us, wake_us;

    if (k->timer.timer_set) {
        ngx_del_timer(&k->timer);
    }

    if (k->link.fd >= 0 && k->connection == NULL) {
        ngx_add_timer(&k->timer, NGX_HTTP_HAPAX_KEEPER_LOOK_MS);
        return;
    }

    wake_us = hapax__link_wake_us(&k->link);

    if (wake_us != INT64_MAX) {
        left_us = ngx_max(wake_us - hapax__boot_us(), 0);
        ngx_add_timer(&k->timer, (ngx_msec_t) (left_us / 1000 + 1));
    }
}


static void
ngx_http_hapax_keeper_set_events(ngx_http_hapax_keeper_t *k)
{
    ngx_uint_t         writes;
    ngx_connection_t  *c;

    if (k->link.fd >= 0 && k->connection == NULL) {
        ngx_http_hapax_keeper_watch(k);
    }

    c = k->connection;

    if (c) {
        writes = hapax__link_writes(&k->link);

        if (writes && !c->write->active) {
            (void) ngx_add_event(c->write, NGX_WRITE_EVENT, 0);

        } else if (!writes && c->write->active) {
            (void) ngx_del_event(c->write, NGX_WRITE_EVENT, 0);
        }
    }

    ngx_http_hapax_keeper_set_timer(k);
}


/* opening */


static void
ngx_http_hapax_keeper_failed(ngx_http_hapax_keeper_t *k, enum hapax_error error)
{
    struct hapax__asking   *asking;
    struct hapax__askings   pending;

    /* the binding may have landed, but none of the ops that wait was sent */
    k->error = (error == HAPAX_ERR_INDETERMINATE) ? HAPAX_ERR_UNAVAILABLE
                                                  : error;
    k->phase = NGX_HTTP_HAPAX_KEEPER_CLOSED;
    k->again_us = hapax__boot_us() + k->pause_us;
    k->pause_us = ngx_min(2 * k->pause_us, NGX_HTTP_HAPAX_OPEN_MAX_US);

    STAILQ_INIT(&pending);
    STAILQ_CONCAT(&pending, &k->pending);
    k->pending_n = 0;

    while ((asking = STAILQ_FIRST(&pending)) != NULL) {
        STAILQ_REMOVE_HEAD(&pending, next);
        asking->op->error = k->error;
        ngx_http_hapax_keeper_told(k, asking);
    }
}


static void
ngx_http_hapax_keeper_bind(ngx_http_hapax_keeper_t *k)
{
    enum hapax_error  error;

    k->phase = NGX_HTTP_HAPAX_KEEPER_BINDING;
    error = hapax__bind_begin(&k->op, k->secret, k->link.text);

    if (error != HAPAX_ERR_NONE) {
        ngx_http_hapax_keeper_failed(k, error);
        return;
    }

    hapax__op_preset(&k->op);
    hapax__link_put(&k->link, &k->binding);
}


static void
ngx_http_hapax_keeper_bound(ngx_http_hapax_keeper_t *k)
{
    bool                    more;
    enum hapax_error        error;
    struct hapax__asking   *asking;

    more = false;
    error = k->op.error;

    if (error == HAPAX_ERR_NONE) {
        error = hapax__bind_told(&k->op, k->secret, &more, k->link.text);

    } else if (k->link.error != HAPAX_ERR_NONE) {
        error = k->link.error;                 /* why nobody was reached */
    }

    if (error != HAPAX_ERR_NONE) {
        ngx_http_hapax_keeper_failed(k, error);
        return;
    }

    if (more) {
        hapax__op_preset(&k->op);
        hapax__link_put(&k->link, &k->binding);
        return;
    }

    k->phase = NGX_HTTP_HAPAX_KEEPER_BOUND;
    k->pause_us = NGX_HTTP_HAPAX_OPEN_MIN_US;
    k->pending_n = 0;

    while ((asking = STAILQ_FIRST(&k->pending)) != NULL) {
        STAILQ_REMOVE_HEAD(&k->pending, next);
        hapax__link_put(&k->link, asking);
    }
}


/* turns */


static void
ngx_http_hapax_keeper_turn(ngx_http_hapax_keeper_t *k, ngx_uint_t readable)
{
    struct hapax__asking  *asking;

    do {
        hapax__link_turn(&k->link, hapax__boot_us(), readable);
        readable = 0;

        while ((asking = hapax__link_take(&k->link)) != NULL) {

            if (asking == &k->binding) {
                ngx_http_hapax_keeper_bound(k);

            } else {
                ngx_http_hapax_keeper_told(k, asking);
            }
        }

        if (!hapax__link_halfway(&k->link)) {
            hapax__arena_reset(&k->arena);
        }

    } while (k->link.paused);

    if (ngx_http_hapax_counts) {
        ngx_http_hapax_counts->queued = k->link.queued + k->pending_n;
    }

    ngx_http_hapax_keeper_set_events(k);
}


static void
ngx_http_hapax_keeper_read_handler(ngx_event_t *ev)
{
    ngx_connection_t  *c;

    c = ev->data;

    ngx_http_hapax_keeper_turn(c->data, 1);
}


static void
ngx_http_hapax_keeper_write_handler(ngx_event_t *ev)
{
    ngx_connection_t  *c;

    c = ev->data;

    ngx_http_hapax_keeper_turn(c->data, 0);
}


static void
ngx_http_hapax_keeper_turn_handler(ngx_event_t *ev)
{
    ngx_http_hapax_keeper_turn(ev->data, 0);
}


static void
ngx_http_hapax_keeper_timer_handler(ngx_event_t *ev)
{
    ngx_http_hapax_keeper_t  *k;

    k = ev->data;

    ngx_http_hapax_keeper_turn(k, k->connection == NULL);
}


/* DECLINED: the op has its error already. */

ngx_int_t
ngx_http_hapax_keeper_put(ngx_http_hapax_store_t *store,
    struct hapax__asking *asking)
{
    struct hapax_op          *op;
    ngx_http_hapax_keeper_t  *k;

    k = store->keeper;
    op = asking->op;

    hapax__op_preset(op);

    if (!hapax__op_check(op, HAPAX_BODY_MAX, k->link.text)) {
        return NGX_DECLINED;
    }

    if (k->link.queued + k->pending_n >= HAPAX__LANE_QUEUE_MAX) {
        op->error = HAPAX_ERR_UNAVAILABLE;
        return NGX_DECLINED;
    }

    if (k->phase == NGX_HTTP_HAPAX_KEEPER_CLOSED) {

        if (hapax__boot_us() < k->again_us) {
            op->error = k->error;
            return NGX_DECLINED;
        }

        ngx_http_hapax_keeper_bind(k);
    }

    if (k->phase == NGX_HTTP_HAPAX_KEEPER_CLOSED) {
        op->error = k->error;
        return NGX_DECLINED;
    }

    if (hapax__seal(k->keys, op, k->link.text) != HAPAX_ERR_NONE) {
        return NGX_DECLINED;
    }

    if (k->phase == NGX_HTTP_HAPAX_KEEPER_BOUND) {
        hapax__link_put(&k->link, asking);

    } else {
        STAILQ_INSERT_TAIL(&k->pending, asking, next);
        k->pending_n++;
    }

    if (!k->turn.posted) {
        ngx_post_event(&k->turn, &ngx_posted_events);
    }

    return NGX_OK;
}
