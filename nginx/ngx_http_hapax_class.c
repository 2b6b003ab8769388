/* SPDX-License-Identifier: Apache-2.0
 *
 * What a response means for the operation: final, failed, not run, or unknown.
 *
 * The first rule that applies decides:
 * - no byte was sent to an upstream, so nothing ran;
 * - hapax_class;
 * - what a broker that pushes makes of the response;
 * - the gRPC status;
 * - the HTTP status.
 */

#include "ngx_http_hapax.h"


/* Returns 0 if an upstream was tried, and no byte of the request was sent to one. */

static ngx_int_t
ngx_http_hapax_was_sent(ngx_http_request_t *r)
{
    ngx_uint_t                  i, tried;
    ngx_http_upstream_t        *u;
    ngx_http_upstream_state_t  *state;

    if (r->upstream_states == NULL) {
        return 1;
    }

    /* a state gets its bytes only when its connection is given back */
    u = r->upstream;

    if (u && u->peer.connection && u->peer.connection->sent > 0) {
        return 1;
    }

    state = r->upstream_states->elts;
    tried = 0;

    for (i = 0; i < r->upstream_states->nelts; i++) {

        if (state[i].bytes_sent > 0) {
            return 1;
        }

        if (state[i].peer) {
            tried = 1;
        }
    }

    return !tried;
}


static ngx_table_elt_t *
ngx_http_hapax_find(ngx_list_t *list, const char *name)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = ngx_strlen(name);
    i = 0;
    part = &list->part;

    while ((h = ngx_http_hapax_header_next(&part, &i)) != NULL) {
        if (h->hash
            && h->key.len == len
            && ngx_strncasecmp(h->key.data, (u_char *) name, len) == 0)
        {
            return h;
        }
    }

    return NULL;
}


static enum hapax_class
ngx_http_hapax_class_of_grpc(ngx_int_t status)
{
    switch (status) {

    case 7:     /* PERMISSION_DENIED */
    case 8:     /* RESOURCE_EXHAUSTED */
    case 14:    /* UNAVAILABLE */
    case 16:    /* UNAUTHENTICATED */
        return HAPAX_CLASS_NOT_RUN;

    case 10:    /* ABORTED */
    case 13:    /* INTERNAL */
    case 15:    /* DATA_LOSS */
        return HAPAX_CLASS_FAILED;

    case 1:     /* CANCELLED */
    case 2:     /* UNKNOWN */
    case 4:     /* DEADLINE_EXCEEDED */
    case NGX_ERROR:
        return HAPAX_CLASS_UNKNOWN;

    default:
        return HAPAX_CLASS_FINAL;
    }
}


static enum hapax_class
ngx_http_hapax_push_class(ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf)
{
    ngx_uint_t              status;
    enum hapax_class        cls;
    struct hapax_span       body;
    ngx_http_hapax_ctx_t   *ctx;
    ngx_http_hapax_tell_e   tell;

    ctx = ngx_http_hapax_get_ctx(r);
    status = r->headers_out.status;

    cls = hapax_class_of_status((int) status);

    if (cls != HAPAX_CLASS_FINAL) {
        return cls;
    }

    body.ptr = ctx->body ? ctx->body->data : NULL;
    body.len = ctx->body ? ctx->body->len : 0;

    tell = ngx_http_hapax_push_of(conf->push, status, body);

    if (tell == NGX_HTTP_HAPAX_TELL_DONE) {
        return HAPAX_CLASS_FINAL;
    }

    /* the handler itself asks to be run again, as with a 503 */
    return (tell == NGX_HTTP_HAPAX_TELL_RETRY
            && status < NGX_HTTP_SPECIAL_RESPONSE)
           ? HAPAX_CLASS_NOT_RUN : HAPAX_CLASS_FAILED;
}


enum hapax_class
ngx_http_hapax_class(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf)
{
    ngx_str_t               *type;
    ngx_uint_t               i, status;
    ngx_table_elt_t         *h;
    ngx_http_hapax_class_t  *c;

    if (!ngx_http_hapax_was_sent(r)) {
        return HAPAX_CLASS_NOT_RUN;
    }

    status = r->headers_out.status;

    if (conf->classes) {
        c = conf->classes->elts;

        for (i = 0; i < conf->classes->nelts; i++) {
            if (status >= c[i].first && status <= c[i].last) {
                return c[i].cls;
            }
        }
    }

    if (conf->push) {
        return ngx_http_hapax_push_class(r, conf);
    }

    type = &r->headers_out.content_type;

    if (status == NGX_HTTP_OK && type->len >= sizeof("application/grpc") - 1
        && ngx_strncasecmp(type->data, (u_char *) "application/grpc",
                           sizeof("application/grpc") - 1)
           == 0)
    {
        h = ngx_http_hapax_find(&r->headers_out.trailers, "grpc-status");

        if (h == NULL) {
            h = ngx_http_hapax_find(&r->headers_out.headers, "grpc-status");
        }

        return ngx_http_hapax_class_of_grpc(
                             h ? ngx_atoi(h->value.data, h->value.len)
                               : NGX_ERROR);
    }

    return hapax_class_of_status((int) status);
}
