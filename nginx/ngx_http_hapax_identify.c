/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds out which operation a request is: its key if the body has it, its scope, its fingerprint
 * and its caller.
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
    ngx_buf_t                  *b;
    ngx_chain_t                *cl;
    ngx_http_hapax_ctx_t       *ctx;
    ngx_http_hapax_loc_conf_t  *conf;

    ctx = ngx_http_get_module_ctx(r, ngx_http_hapax_module);

    if (r != r->main || ctx == NULL || ctx->md == NULL
        || ctx->phase != NGX_HTTP_HAPAX_READING)
    {
        return ngx_http_hapax_next_request_body_filter(r, in);
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_hapax_module);

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;

        if (!ngx_buf_in_memory(b)) {
            continue;
        }

        ctx->received += b->last - b->pos;

        if (ctx->received > (off_t) conf->policy.max_request) {
            b->pos = b->last;
            continue;
        }

        (void) EVP_DigestUpdate(ctx->md, b->pos, b->last - b->pos);
    }

    return ngx_http_hapax_next_request_body_filter(r, in);
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


/*
 * With one pointer, the value it finds is the key. With several, the key is a
 * digest of their values, in order. If one finds nothing, there is no key.
 */

static ngx_int_t
ngx_http_hapax_derive_key(ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span body)
{
    size_t                    len;
    uint8_t                   values[HAPAX__JSON_POINTERS_MAX][HAPAX_KEY_MAX];
    ngx_uint_t                i;
    struct hapax_span        *pointers;
    struct hapax_span         parts[HAPAX__JSON_POINTERS_MAX];
    struct hapax_digest       digest;
    enum hapax__json_result   rc;

    pointers = conf->key_from->elts;

    for (i = 0; i < conf->key_from->nelts; i++) {

        rc = hapax__json_scalar(values[i], HAPAX_KEY_MAX, &len, body,
                                pointers[i]);
        switch (rc) {

        case HAPAX__JSON_OK:
            break;

        case HAPAX__JSON_NOMEM:
            return NGX_ERROR;

        case HAPAX__JSON_NOT_SCALAR:
            ngx_http_hapax_bad_key(ctx, "what the body holds in its place is "
                                        "no scalar");
            return NGX_OK;

        case HAPAX__JSON_TOO_LONG:
            ngx_http_hapax_bad_key(ctx, "what the body holds in its place is "
                                        "over 255 bytes");
            return NGX_OK;

        default:
            return NGX_OK;
        }

        if (len == 0) {
            ngx_http_hapax_bad_key(ctx, "what the body holds in its place is "
                                        "empty");
            return NGX_OK;
        }

        parts[i].ptr = values[i];
        parts[i].len = len;
    }

    ctx->given = HAPAX__KEY_GIVEN;

    if (conf->key_from->nelts == 1) {
        ctx->key_len = parts[0].len;
        ngx_memcpy(ctx->key, parts[0].ptr, parts[0].len);
        return NGX_OK;
    }

    hapax_digest(&digest, parts, conf->key_from->nelts);

    ctx->key_len = ngx_hex_dump(ngx_cpymem(ctx->key, "sha256-", 7),
                                digest.bytes, sizeof(digest.bytes))
                   - ctx->key;

    return NGX_OK;
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


static ngx_int_t
ngx_http_hapax_fingerprint(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span body,
    struct hapax_digest *out)
{
    size_t               n;
    ngx_uint_t           which;
    struct hapax_span    parts[3];
    struct hapax_digest  digest;

    n = 0;
    which = conf->fingerprint;

    if (which & NGX_HTTP_HAPAX_FP_PUSH) {
        which |= ctx->envelope ? NGX_HTTP_HAPAX_FP_JSON
                               : NGX_HTTP_HAPAX_FP_BODY;
    }

    if (which & NGX_HTTP_HAPAX_FP_METHOD) {
        parts[n].ptr = r->method_name.data;
        parts[n++].len = r->method_name.len;
    }

    if (which & NGX_HTTP_HAPAX_FP_URI) {
        parts[n].ptr = r->unparsed_uri.data;
        parts[n++].len = r->unparsed_uri.len;
    }

    if (which & NGX_HTTP_HAPAX_FP_BODY) {

        if (ctx->received == 0 && body.len) {
            /* read before this module saw the request */
            (void) EVP_DigestUpdate(ctx->md, body.ptr, body.len);
        }

        if (EVP_DigestFinal_ex(ctx->md, digest.bytes, NULL) != 1) {
            return NGX_ERROR;
        }

        parts[n].ptr = digest.bytes;
        parts[n++].len = sizeof(digest.bytes);

    } else if (which & NGX_HTTP_HAPAX_FP_JSON) {

        if (ngx_http_hapax_fingerprint_json(r, conf, body, &digest) != NGX_OK) {
            return NGX_ERROR;
        }

        parts[n].ptr = digest.bytes;
        parts[n++].len = sizeof(digest.bytes);
    }

    hapax_digest(out, parts, n);

    return NGX_OK;
}


static ngx_int_t
ngx_http_hapax_caller(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf,
    struct hapax_digest *out)
{
    ngx_str_t          value;
    ngx_table_elt_t   *h;
    struct hapax_span  part;

    if (conf->caller) {
        if (ngx_http_complex_value(r, conf->caller, &value) != NGX_OK) {
            return NGX_ERROR;
        }

    } else {
        /* a broker's credentials change between deliveries */
        h = conf->push ? NULL : r->headers_in.authorization;
        ngx_str_null(&value);

        if (h) {
            value = h->value;
        }
    }

    part.ptr = value.data;
    part.len = value.len;
    hapax_digest(out, &part, 1);

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

    } else if (conf->key_from || (conf->fingerprint & NGX_HTTP_HAPAX_FP_JSON)
               || ctx->envelope || ctx->received == 0)
    {
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
    }

    return (ctx->given == HAPAX__KEY_GIVEN) ? NGX_OK : NGX_DECLINED;
}


ngx_int_t
ngx_http_hapax_identify(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf, struct hapax__flow_request *request)
{
    ngx_int_t          rc;
    ngx_str_t          scope;
    struct hapax_span  body, key, none, secret;

    body.ptr = NULL;
    body.len = 0;
    ngx_str_set(&scope, "default");

    rc = ngx_http_hapax_key(r, ctx, conf, request, &scope, &body);

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_hapax_fingerprint(r, ctx, conf, body, &request->fingerprint)
        != NGX_OK
        || ngx_http_hapax_caller(r, conf, &request->caller) != NGX_OK)
    {
        return NGX_ERROR;
    }

    request->key = HAPAX__KEY_GIVEN;
    request->reconciles = (conf->reconcile != NULL);
    request->scope.ptr = scope.data;
    request->scope.len = scope.len;

    key.ptr = ctx->key;
    key.len = ctx->key_len;
    none.ptr = NULL;
    none.len = 0;
    secret.ptr = conf->secret.data;
    secret.len = conf->secret.len;

    if (hapax_id(&request->id, request->scope, key, none, secret)
        != HAPAX_ERR_NONE)
    {
        return NGX_ERROR;
    }

    ctx->id = request->id;
    ctx->identified = 1;

    return NGX_OK;
}
