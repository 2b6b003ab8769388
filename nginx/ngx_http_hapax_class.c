/* SPDX-License-Identifier: Apache-2.0
 *
 * What a response means for the operation: final, failed, not run, or unknown.
 *
 * The first rule that applies decides:
 * - no byte was sent to an upstream, so nothing ran;
 * - hapax_class;
 * - what a broker that pushes makes of the response;
 * - the gRPC status;
 * - the HTTP status, and the headers that say "try again".
 *
 * The last three depend on the policy: under hold and reconcile a response is
 * believed only where nobody but the service can have written it. So the
 * response of another location, to which nginx went on after a service was
 * asked, cannot say that nothing ran.
 */

#include "ngx_http_hapax.h"


/*
 * Where the response is from nginx's cache, or its handler asks no upstream,
 * there are no states: it counts as sent. Where the upstream's name did not
 * resolve the states are there, and have no peer.
 */

ngx_int_t
ngx_http_hapax_was_sent(ngx_http_request_t *r)
{
    ngx_uint_t                  i;
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

    for (i = 0; i < r->upstream_states->nelts; i++) {
        if (state[i].bytes_sent > 0) {
            return 1;
        }
    }

    return 0;
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


/* A hapax__header_finder. */

static struct hapax_span
ngx_http_hapax_find_response(void *response, const char *name)
{
    ngx_table_elt_t     *h;
    ngx_http_request_t  *r = response;

    h = ngx_http_hapax_find(&r->headers_out.headers, name);

    return h ? (struct hapax_span) { h->value.data, h->value.len }
             : (struct hapax_span) { NULL, 0 };
}


/* In a response that may be trailers alone they stand in the headers. */

static ngx_int_t
ngx_http_hapax_grpc_number(ngx_http_request_t *r, const char *name)
{
    ngx_table_elt_t  *h;

    h = ngx_http_hapax_find(&r->headers_out.trailers, name);

    if (h == NULL) {
        h = ngx_http_hapax_find(&r->headers_out.headers, name);
    }

    return h ? ngx_atoi(h->value.data, h->value.len) : NGX_ERROR;
}


/*
 * Where the policy is not rerun: a server gives RESOURCE_EXHAUSTED also when
 * the answer is too large, and a proxy UNAVAILABLE also when it lost the server
 * after the request was sent. Only with a pushback they are surely the
 * service's own word, as 503 is with Retry-After.
 */

static enum hapax_class
ngx_http_hapax_class_of_grpc(ngx_http_request_t *r,
    const struct hapax_policy *policy)
{
    switch (ngx_http_hapax_grpc_number(r, "grpc-status")) {

    case 8:     /* RESOURCE_EXHAUSTED */
    case 14:    /* UNAVAILABLE */

        if (policy->on_expired != HAPAX_EXPIRED_RERUN
            && ngx_http_hapax_grpc_number(r, "grpc-retry-pushback-ms") < 0)
        {
            return HAPAX_CLASS_UNKNOWN;
        }

        /* fall through */

    case 7:     /* PERMISSION_DENIED */
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


ngx_uint_t
ngx_http_hapax_is_accel(ngx_http_upstream_t *u)
{
    return u->headers_in.x_accel_redirect
           && !(u->conf->ignore_headers & NGX_HTTP_UPSTREAM_IGN_XA_REDIRECT);
}


/*
 * Whether nothing but the end of its connection ended the upstream's response.
 * nginx sees each other end that comes too early. FastCGI and gRPC have ends of
 * their own. What nginx sends for an upstream's X-Accel-Redirect is whole. An
 * upstream whose URL could not be evaluated has no schema, and sent nothing.
 */

bool
ngx_http_hapax_ends_by_close(ngx_http_request_t *r)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u == NULL || u->schema.len == 0 || ngx_http_hapax_is_accel(u)
        || r->method == NGX_HTTP_HEAD
        || u->headers_in.content_length_n >= 0 || u->headers_in.chunked)
    {
        return false;
    }

    return ngx_strncmp(u->schema.data, "http", 4) == 0
           || ngx_strncmp(u->schema.data, "scgi", 4) == 0
           || ngx_strncmp(u->schema.data, "uwsgi", 5) == 0;
}


/* The built-in rules. The page of an error is nginx's, and whole. */

static enum hapax_class
ngx_http_hapax_class_of_status(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    bool  by_close;

    by_close = !ctx->error_page && ngx_http_hapax_ends_by_close(r);

    return hapax__class_of(&ctx->conf->policy, (int) r->headers_out.status,
                           by_close, ngx_http_hapax_find_response, r);
}


static enum hapax_class
ngx_http_hapax_push_class(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ngx_uint_t              status;
    enum hapax_class        cls;
    struct hapax_span       body;
    ngx_http_hapax_tell_e   tell;

    status = r->headers_out.status;

    cls = ngx_http_hapax_class_of_status(r, ctx);

    if (cls != HAPAX_CLASS_FINAL) {
        return cls;
    }

    body.ptr = ctx->body ? ctx->body->data : NULL;
    body.len = ctx->body ? ctx->body->len : 0;

    tell = ngx_http_hapax_push_of(ctx->conf->push, status, body);

    if (tell == NGX_HTTP_HAPAX_TELL_DONE) {
        return HAPAX_CLASS_FINAL;
    }

    /*
     * The handler itself asks to be run again, as with a 503. But many
     * subscribers answer so whatever was thrown half-way.
     */
    return (tell == NGX_HTTP_HAPAX_TELL_RETRY
            && status < NGX_HTTP_SPECIAL_RESPONSE
            && ctx->conf->policy.on_expired == HAPAX_EXPIRED_RERUN)
           ? HAPAX_CLASS_NOT_RUN : HAPAX_CLASS_FAILED;
}


static enum hapax_class
ngx_http_hapax_class_of_response(ngx_http_request_t *r,
    ngx_http_hapax_ctx_t *ctx)
{
    ngx_str_t   *type;
    ngx_uint_t   status;

    if (ctx->conf->push) {
        return ngx_http_hapax_push_class(r, ctx);
    }

    type = &r->headers_out.content_type;
    status = r->headers_out.status;

    if (status == NGX_HTTP_OK && type->len >= sizeof("application/grpc") - 1
        && ngx_strncasecmp(type->data, (u_char *) "application/grpc",
                           sizeof("application/grpc") - 1)
           == 0)
    {
        return ngx_http_hapax_class_of_grpc(r, &ctx->conf->policy);
    }

    return ngx_http_hapax_class_of_status(r, ctx);
}


enum hapax_class
ngx_http_hapax_class(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    enum hapax_class            cls;
    ngx_http_hapax_loc_conf_t  *conf;

    if (!ngx_http_hapax_was_sent(r)) {
        return HAPAX_CLASS_NOT_RUN;
    }

    if (ctx->refused) {
        return ctx->elsewhere ? HAPAX_CLASS_UNKNOWN : HAPAX_CLASS_NOT_RUN;
    }

    conf = ctx->conf;

    if (conf->classes) {
        cls = hapax__class_by(conf->classes->elts, conf->classes->nelts,
                              (int) r->headers_out.status,
                              ngx_http_hapax_find_response, r);

        if (cls) {
            return cls;
        }
    }

    cls = ngx_http_hapax_class_of_response(r, ctx);

    return (cls == HAPAX_CLASS_NOT_RUN && ctx->elsewhere
            && conf->policy.on_expired != HAPAX_EXPIRED_RERUN)
           ? HAPAX_CLASS_UNKNOWN : cls;
}
