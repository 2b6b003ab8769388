/* SPDX-License-Identifier: Apache-2.0
 *
 * A store that opens late: with its first batch, in the thread of its lane, and again after a
 * failure. So nginx starts while a store is down, a worker's events are not blocked, and the gate
 * serves again by itself once the store is back. Until then each op is UNAVAILABLE: surely not
 * applied.
 *
 * The secret is bound right after the store is opened, before any op. So no id is looked up under a
 * secret that is not the store's.
 */

#include "ngx_http_hapax.h"
#include "base/fail.h"
#include "store/rotation/rotation.h"
#include "store/seal.h"
#include "store/types.h"

#include <stdio.h>


#define NGX_HTTP_HAPAX_LATE_SCHEME   "late"


typedef struct {
    struct hapax_store   store;
    struct hapax_store  *inner;         /* NULL: not open */
    char                *uri;
    struct hapax__secrets       secrets;  /* owned by the configuration, as keys */
    const struct hapax__keys   *keys;     /* of the inner store; NULL: none */
    int64_t              again_us;
    int64_t              pause_us;
    enum hapax_error     error;         /* of the last try */
    char                 text[HAPAX_TEXT_MAX];
} ngx_http_hapax_late_t;


static enum hapax_error ngx_http_hapax_late_create(struct hapax_store **out,
    const char *uri, char text[HAPAX_TEXT_MAX]);
static enum hapax_error ngx_http_hapax_late_run(struct hapax_store *store,
    struct hapax_op *ops, size_t n);
static enum hapax_error ngx_http_hapax_late_check(struct hapax_store *store,
    hapax_say *say, void *arg);
static void ngx_http_hapax_late_close(struct hapax_store *store);


static const struct hapax_store_type  ngx_http_hapax_late = {
    .scheme = NGX_HTTP_HAPAX_LATE_SCHEME,
    .batch_max = HAPAX_BATCH_MAX,
    .body_max = HAPAX_BODY_MAX,         /* the inner store has its own limit */
    .serial = true,                     /* and its own rounds */
    .open = ngx_http_hapax_late_create,
    .run = ngx_http_hapax_late_run,
    .check = ngx_http_hapax_late_check,
    .close = ngx_http_hapax_late_close
};


struct hapax_store *
ngx_http_hapax_late_open(ngx_http_hapax_store_t *store,
    char text[HAPAX_TEXT_MAX])
{
    u_char                 *uri;
    struct hapax_store     *opened;
    ngx_http_hapax_late_t  *late;

    hapax__store_add(&ngx_http_hapax_late);

    uri = malloc(sizeof(NGX_HTTP_HAPAX_LATE_SCHEME ":") + store->uri.len);
    if (uri == NULL) {
        (void) snprintf(text, HAPAX_TEXT_MAX, "out of memory");
        return NULL;
    }

    *ngx_sprintf(uri, NGX_HTTP_HAPAX_LATE_SCHEME ":%V", &store->uri) = '\0';

    (void) hapax_store_open(&opened, (char *) uri, text);
    free(uri);

    if (opened) {
        late = (ngx_http_hapax_late_t *) opened;
        late->secrets.now.ptr = store->secret.data;
        late->secrets.now.len = store->secret.len;
        late->secrets.old.ptr = store->secret_old.data;
        late->secrets.old.len = store->secret_old.len;
        late->keys = store->keys;
    }

    return opened;
}


static enum hapax_error
ngx_http_hapax_late_create(struct hapax_store **out, const char *uri,
    char text[HAPAX_TEXT_MAX])
{
    ngx_http_hapax_late_t  *late;

    *out = NULL;

    late = calloc(1, sizeof(ngx_http_hapax_late_t));
    if (late == NULL) {
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    }

    late->uri = strdup(uri + sizeof(NGX_HTTP_HAPAX_LATE_SCHEME));
    if (late->uri == NULL) {
        free(late);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    }

    late->pause_us = NGX_HTTP_HAPAX_OPEN_MIN_US;
    *out = &late->store;

    return HAPAX_ERR_NONE;
}


static enum hapax_error
ngx_http_hapax_late_try(ngx_http_hapax_late_t *late)
{
    int64_t              now_us;
    enum hapax_error     error;
    struct hapax_store  *inner;

    now_us = hapax__boot_us();

    if (now_us < late->again_us) {
        return hapax_store_fail(&late->store, late->error, "%s", late->text);
    }

    error = hapax_store_open(&inner, late->uri, late->text);

    if (error == HAPAX_ERR_NONE) {
        error = hapax__store_keys(inner, late->keys);

        if (error == HAPAX_ERR_NONE) {
            error = hapax__store_bind(&inner, &late->secrets);
        }

        if (error != HAPAX_ERR_NONE) {
            (void) snprintf(late->text, sizeof(late->text), "%s",
                            hapax_store_text(inner));
            hapax_store_close(inner);
        }
    }

    if (error == HAPAX_ERR_NONE) {
        late->inner = inner;
        late->pause_us = NGX_HTTP_HAPAX_OPEN_MIN_US;
        return HAPAX_ERR_NONE;
    }

    late->again_us = hapax__boot_us() + late->pause_us;
    late->pause_us = ngx_min(2 * late->pause_us, NGX_HTTP_HAPAX_OPEN_MAX_US);

    /* the binding may have landed, but none of the caller's ops was sent */
    late->error = error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE
                                                   : error;

    return hapax_store_fail(&late->store, late->error, "%s", late->text);
}


static enum hapax_error
ngx_http_hapax_late_run(struct hapax_store *store, struct hapax_op *ops,
    size_t n)
{
    size_t                  i;
    enum hapax_error        error;
    ngx_http_hapax_late_t  *late = (ngx_http_hapax_late_t *) store;

    if (late->inner == NULL) {
        error = ngx_http_hapax_late_try(late);

        if (error != HAPAX_ERR_NONE) {
            for (i = 0; i < n; i++) {
                ops[i].error = error;
            }

            return error;
        }
    }

    error = hapax_store_run(late->inner, ops, n);

    if (error == HAPAX_ERR_NONE) {
        return HAPAX_ERR_NONE;
    }

    return hapax_store_fail(store, error, "%s", hapax_store_text(late->inner));
}


static enum hapax_error
ngx_http_hapax_late_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    enum hapax_error        error;
    ngx_http_hapax_late_t  *late = (ngx_http_hapax_late_t *) store;

    if (late->inner == NULL) {
        error = ngx_http_hapax_late_try(late);

        if (error != HAPAX_ERR_NONE) {
            return error;
        }
    }

    return hapax_store_check(late->inner, say, arg);
}


static void
ngx_http_hapax_late_close(struct hapax_store *store)
{
    ngx_http_hapax_late_t  *late = (ngx_http_hapax_late_t *) store;

    hapax_store_close(late->inner);
    free(late->uri);
    free(late);
}
