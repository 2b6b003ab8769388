/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds out which operation a request is: its key if the body has it, its owner, its scope, its
 * fingerprint and its caller.
 *
 * The body is hashed while nginx reads it, so a body in a file is not read again. It is gathered
 * only if its content is needed. A body over max_request is not kept, but it is read to its end: a
 * refusal in the middle would cost the connection.
 */

#include "ngx_http_hapax.h"


ngx_http_request_body_filter_pt  ngx_http_hapax_next_request_body_filter;


void
ngx_http_hapax_bad_key(ngx_http_hapax_ctx_t *ctx, const char *why)
{
    ctx->given = HAPAX__KEY_BAD;
    ctx->why = why;
}


/* the body of the request */


ngx_int_t
ngx_http_hapax_request_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_int_t              rc;
    ngx_buf_t             *b;
    ngx_chain_t           *cl;
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_hapax_get_ctx(r);

    if (r != r->main || ctx == NULL || !ctx->hashing
        || (ctx->phase != NGX_HTTP_HAPAX_READING && !ctx->shadow))
    {
        return ngx_http_hapax_next_request_body_filter(r, in);
    }

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;

        if (!ngx_buf_in_memory(b)) {
            continue;
        }

        ctx->received += b->last - b->pos;

        if (ctx->received > (off_t) ctx->conf->policy.max_request) {

            if (!ctx->shadow) {
                b->pos = b->last;
            }

            continue;
        }

        (void) SHA256_Update(&ctx->sha256, b->pos, b->last - b->pos);
    }

    rc = ngx_http_hapax_next_request_body_filter(r, in);

    if (rc == NGX_OK && ctx->shadow) {
        ngx_http_hapax_shadow_read(r, ctx);
    }

    return rc;
}


/* Gets the whole body. DECLINED: it is over max. */

static ngx_int_t
ngx_http_hapax_gather(ngx_http_request_t *r, size_t max, struct hapax_span *body)
{
    off_t         size;
    u_char       *p;
    ssize_t       n;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    body->ptr = NULL;
    body->len = 0;
    size = 0;

    if (r->request_body == NULL) {
        return NGX_OK;          /* discarded, before an internal redirect */
    }

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    if (size > (off_t) max) {
        return NGX_DECLINED;
    }

    if (size == 0) {
        return NGX_OK;
    }

    cl = r->request_body->bufs;

    if (cl->next == NULL && ngx_buf_in_memory(cl->buf)) {
        body->ptr = cl->buf->pos;
        body->len = cl->buf->last - cl->buf->pos;
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->ptr = p;
    body->len = size;

    for ( /* void */ ; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            p = ngx_cpymem(p, b->pos, b->last - b->pos);
            continue;
        }

        n = ngx_read_file(b->file, p, b->file_last - b->file_pos, b->file_pos);

        if (n != b->file_last - b->file_pos) {
            return NGX_ERROR;
        }

        p += n;
    }

    return NGX_OK;
}


/* Sets no key if a pointer finds nothing. */

static ngx_int_t
ngx_http_hapax_derive_key(ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span body)
{
    struct hapax__ask       ask;
    struct hapax__asked     asked;
    struct hapax__ask_view  view;

    ngx_memzero(&ask, sizeof(ask));
    ngx_memzero(&view, sizeof(view));

    ask.pointers.n = conf->key_from->nelts;
    ngx_memcpy(ask.pointers.at, conf->key_from->elts,
               ask.pointers.n * sizeof(struct hapax_span));

    ask.source_count = 1;
    ask.sources[0].kind = HAPAX__ASK_POINTERS;
    ask.sources[0].count = ask.pointers.n;

    view.ask = &ask;
    view.body = body;

    switch (hapax__ask_key(&asked, &view)) {

    case HAPAX__FOUND:
        ctx->given = HAPAX__KEY_GIVEN;
        ctx->key_len = asked.request.key.len;
        ngx_memcpy(ctx->key, asked.request.key.ptr, ctx->key_len);
        return NGX_OK;

    case HAPAX__FOUND_BAD:
        ngx_http_hapax_bad_key(ctx, asked.why);
        return NGX_OK;

    case HAPAX__FOUND_NOTHING:
        return NGX_OK;

    default: /* HAPAX__FOUND_NOMEM */
        return NGX_ERROR;
    }
}


static ngx_int_t
ngx_http_hapax_fingerprint_json(ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span body,
    struct hapax_digest *out)
{
    ngx_uint_t                n;
    enum hapax__json_result   rc;
    const struct hapax_span  *pointers;

    if (conf->fingerprint & NGX_HTTP_HAPAX_FP_PUSH) {
        rc = ngx_http_hapax_push_fingerprint(out, conf, body);
        n = 1;

    } else {
        pointers = conf->pointers ? conf->pointers->elts : NULL;
        n = conf->pointers ? conf->pointers->nelts : 0;
        rc = hapax__json_fingerprint(out, body, conf->select, pointers, n);
    }

    if (rc == HAPAX__JSON_NOT_CANONICAL && n) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "hapax: the body is no JSON to select from, "
                      "all of it counts for the fingerprint");
    }

    return rc == HAPAX__JSON_NOMEM ? NGX_ERROR : NGX_OK;
}


/* a list of parts to be hashed */


static ngx_int_t
ngx_http_hapax_put_part(ngx_array_t *parts, const void *data, size_t len)
{
    struct hapax_span  *part;

    part = ngx_array_push(parts);
    if (part == NULL) {
        return NGX_ERROR;
    }

    part->ptr = data;
    part->len = len;

    return NGX_OK;
}


/*
 * Puts the name of a header before each of its values. name: in lower case. An
 * upstream may take "_" for "-", so it counts as the same here.
 */

static ngx_int_t
ngx_http_hapax_put_header(ngx_http_request_t *r, ngx_array_t *parts,
    ngx_str_t *name)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    i = 0;
    part = &r->headers_in.headers.part;

    while ((h = ngx_http_hapax_header_next(&part, &i)) != NULL) {

        if (!ngx_http_hapax_header_named(&h->key, name)) {
            continue;
        }

        if (ngx_http_hapax_put_part(parts, name->data, name->len) != NGX_OK
            || ngx_http_hapax_put_part(parts, h->value.data, h->value.len)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_hapax_body_digest(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, ngx_uint_t which, struct hapax_span body,
    struct hapax_digest *out)
{
    if (which & NGX_HTTP_HAPAX_FP_JSON) {
        return ngx_http_hapax_fingerprint_json(r, conf, body, out);
    }

    if (ctx->received == 0 && body.len) {
        /* read before this module saw the request */
        (void) SHA256_Update(&ctx->sha256, body.ptr, body.len);
    }

    return SHA256_Final(out->bytes, &ctx->sha256) == 1 ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_hapax_fingerprint(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span body,
    struct hapax_digest *out)
{
    ngx_str_t            *names;
    ngx_uint_t            i, which;
    ngx_array_t           parts;
    struct hapax_digest   digest;

    which = conf->fingerprint;

    if (which & NGX_HTTP_HAPAX_FP_PUSH) {
        which |= ctx->envelope ? NGX_HTTP_HAPAX_FP_JSON
                               : NGX_HTTP_HAPAX_FP_BODY;
    }

    if (ngx_array_init(&parts, r->pool, 8, sizeof(struct hapax_span))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if ((which & NGX_HTTP_HAPAX_FP_METHOD)
        && ngx_http_hapax_put_part(&parts, r->method_name.data,
                                   r->method_name.len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if ((which & NGX_HTTP_HAPAX_FP_HOST)
        && ngx_http_hapax_put_part(&parts, r->headers_in.server.data,
                                   r->headers_in.server.len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if ((which & NGX_HTTP_HAPAX_FP_URI)
        && ngx_http_hapax_put_part(&parts, r->unparsed_uri.data,
                                   r->unparsed_uri.len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (which & (NGX_HTTP_HAPAX_FP_BODY|NGX_HTTP_HAPAX_FP_JSON)) {

        if (ngx_http_hapax_body_digest(r, ctx, conf, which, body, &digest)
            != NGX_OK
            || ngx_http_hapax_put_part(&parts, digest.bytes,
                                       sizeof(digest.bytes))
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (which & NGX_HTTP_HAPAX_FP_HEADER) {
        names = conf->fp_headers->elts;

        for (i = 0; i < conf->fp_headers->nelts; i++) {
            if (ngx_http_hapax_put_header(r, &parts, &names[i]) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    hapax_digest(out, parts.elts, parts.nelts);

    return NGX_OK;
}


/* who asks, and whose the key is */


static ngx_str_t  ngx_http_hapax_credentials[] = {
    ngx_string("authorization"),
    ngx_string("cookie"),
    ngx_string("x-api-key"),
    ngx_string("api-key"),
    ngx_string("x-auth-token"),
    ngx_string("x-access-token")
};


/* All credentials that the request carries. */

static ngx_int_t
ngx_http_hapax_put_credentials(ngx_http_request_t *r, ngx_array_t *parts)
{
    ngx_str_t                   name;
    ngx_uint_t                  i;
    ngx_http_variable_value_t  *cert;

    for (i = 0;
         i < sizeof(ngx_http_hapax_credentials) / sizeof(ngx_str_t);
         i++)
    {
        if (ngx_http_hapax_put_header(r, parts, &ngx_http_hapax_credentials[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (r->connection->ssl == NULL) {
        return NGX_OK;
    }

    ngx_str_set(&name, "ssl_client_raw_cert");
    cert = ngx_http_get_variable(r, &name,
                                 ngx_hash_key(name.data, name.len));

    if (cert == NULL || cert->not_found || cert->len == 0) {
        return NGX_OK;
    }

    if (ngx_http_hapax_put_part(parts, name.data, name.len) != NGX_OK
        || ngx_http_hapax_put_part(parts, cert->data, cert->len) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* The value of a directive. It has to say something, or the request is refused. */

static ngx_int_t
ngx_http_hapax_named(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_complex_value_t *from, const char *directive, ngx_str_t *value)
{
    if (ngx_http_complex_value(r, from, value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value->len == 0) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "hapax: %s is empty for this request, so nobody can "
                      "tell whose key it has", directive);
        ctx->given = HAPAX__KEY_UNOWNED;
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* The caller of a request without credentials, as at the message door. */

static struct hapax_digest
ngx_http_hapax_nobody(void)
{
    static ngx_uint_t           known;
    static struct hapax_digest  nobody;

    struct hapax_span  empty;

    if (!known) {
        empty.ptr = NULL;
        empty.len = 0;
        hapax_digest(&nobody, &empty, 1);
        known = 1;
    }

    return nobody;
}


/* DECLINED: nobody can tell whose key it is. */

static ngx_int_t
ngx_http_hapax_who(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, ngx_str_t *owner,
    struct hapax_digest *caller)
{
    ngx_int_t    rc;
    ngx_str_t    value;
    ngx_array_t  parts;

    if (conf->owner) {
        rc = ngx_http_hapax_named(r, ctx, conf->owner, "hapax_owner", owner);
        if (rc != NGX_OK) {
            return rc;
        }

        if (owner->len > HAPAX_OWNER_MAX) {
            ngx_http_hapax_bad_key(ctx, "its owner is over 255 bytes");
            return NGX_DECLINED;
        }
    }

    if (ngx_array_init(&parts, r->pool, 4, sizeof(struct hapax_span))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (conf->caller && !conf->one_caller) {
        rc = ngx_http_hapax_named(r, ctx, conf->caller, "hapax_caller",
                                  &value);
        if (rc == NGX_OK) {
            rc = ngx_http_hapax_put_part(&parts, value.data, value.len);
        }

    } else if (conf->one_caller || conf->owner || conf->push) {
        /* an owner's tokens, and a broker's, change between requests */
        rc = NGX_OK;

    } else {
        rc = ngx_http_hapax_put_credentials(r, &parts);
    }

    if (rc == NGX_OK && parts.nelts == 0) {
        *caller = ngx_http_hapax_nobody();

    } else if (rc == NGX_OK) {
        hapax_digest(caller, parts.elts, parts.nelts);
    }

    return rc;
}


ngx_uint_t
ngx_http_hapax_needs_body(ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf)
{
    return conf->key_from || (conf->fingerprint & NGX_HTTP_HAPAX_FP_JSON)
           || ctx->envelope;
}


/*
 * A shadow's records are in a scope of their own. A scope that is too long for
 * that has its digest there.
 */

static ngx_int_t
ngx_http_hapax_shadow_scope(ngx_http_request_t *r, ngx_str_t *scope)
{
    u_char               *p;
    ngx_str_t             own;
    struct hapax_span     part;
    struct hapax_digest   digest;

    own.data = ngx_pnalloc(r->pool, HAPAX_SCOPE_MAX);
    if (own.data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(own.data, "shadow/", sizeof("shadow/") - 1);

    if (sizeof("shadow/") - 1 + scope->len <= HAPAX_SCOPE_MAX) {
        p = ngx_cpymem(p, scope->data, scope->len);

    } else {
        part.ptr = scope->data;
        part.len = scope->len;
        hapax_digest(&digest, &part, 1);

        p = ngx_cpymem(p, "sha256-", sizeof("sha256-") - 1);
        p = ngx_hex_dump(p, digest.bytes, sizeof(digest.bytes));
    }

    own.len = p - own.data;
    *scope = own;

    return NGX_OK;
}


/* Finds the key. DECLINED: the answer needs no store. */

static ngx_int_t
ngx_http_hapax_key(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax__flow_request *request,
    ngx_str_t *scope, struct hapax_span *body)
{
    ngx_int_t  rc;

    rc = NGX_OK;

    if (ctx->received > (off_t) conf->policy.max_request) {
        rc = NGX_DECLINED;

    } else if (ngx_http_hapax_needs_body(ctx, conf) || ctx->received == 0) {
        rc = ngx_http_hapax_gather(r, conf->policy.max_request, body);
    }

    if (rc == NGX_DECLINED) {
        ctx->given = HAPAX__KEY_GIVEN;
        request->too_large = 1;
    }

    if (rc != NGX_OK) {
        return rc;
    }

    if (ctx->given == HAPAX__KEY_NONE) {
        rc = conf->key_from ? ngx_http_hapax_derive_key(ctx, conf, *body)
                            : ngx_http_hapax_push_key(ctx, *body);
        if (rc != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (conf->scope) {
        if (ngx_http_complex_value(r, conf->scope, scope) != NGX_OK) {
            return NGX_ERROR;
        }

    } else if (conf->push && ngx_http_hapax_push_scope(r, scope) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->given == HAPAX__KEY_GIVEN
        && (scope->len == 0 || scope->len > HAPAX_SCOPE_MAX))
    {
        ngx_http_hapax_bad_key(ctx, scope->len ? "its scope is over 255 bytes"
                                               : "its scope is empty");

    } else if (ctx->given == HAPAX__KEY_GIVEN
               && scope->len >= sizeof("shadow/") - 1
               && ngx_strncmp(scope->data, "shadow/", sizeof("shadow/") - 1)
                  == 0)
    {
        ngx_http_hapax_bad_key(ctx, "its scope is a shadow's");
    }

    return (ctx->given == HAPAX__KEY_GIVEN) ? NGX_OK : NGX_DECLINED;
}


ngx_int_t
ngx_http_hapax_identify(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax__flow_request *request)
{
    int64_t            made_ms;
    ngx_int_t          rc;
    ngx_str_t          owner, scope;
    struct hapax_span  body, key, none, whose;
    struct hapax__secrets  secrets;

    body.ptr = NULL;
    body.len = 0;
    ngx_str_null(&owner);
    ngx_str_set(&scope, "default");

    rc = ngx_http_hapax_key(r, ctx, conf, request, &scope, &body);

    if (rc == NGX_OK && ctx->shadow) {
        rc = ngx_http_hapax_shadow_scope(r, &scope);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_hapax_who(r, ctx, conf, &owner, &request->caller);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_hapax_fingerprint(r, ctx, conf, body, &request->fingerprint)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (body.ptr && body.ptr != r->request_body->bufs->buf->pos) {
        /* gathered: not kept while the request waits or runs */
        (void) ngx_pfree(r->pool, (void *) body.ptr);
    }

    request->key = HAPAX__KEY_GIVEN;
    request->key_len = ctx->key_len;
    request->reconciles = (conf->reconcile != NULL);
    request->scope.ptr = scope.data;
    request->scope.len = scope.len;

    key.ptr = ctx->key;
    key.len = ctx->key_len;

    made_ms = conf->policy.key_expires ? hapax__key_made_ms(key) : 0;

    if (made_ms) {
        request->key_age_ms = hapax__wall_us() / 1000 - made_ms;
    }

    none.ptr = NULL;
    none.len = 0;
    whose.ptr = owner.data;
    whose.len = owner.len;
    secrets.now.ptr = conf->secret.data;
    secrets.now.len = conf->secret.len;
    secrets.old.ptr = conf->secret_old.data;
    secrets.old.len = conf->secret_old.len;

    if (hapax__identify(request, whose, key, none, &secrets)
        != HAPAX_ERR_NONE)
    {
        return NGX_ERROR;
    }

    ctx->id = request->id;
    ctx->identified = 1;

    return NGX_OK;
}
