/* SPDX-License-Identifier: Apache-2.0
 *
 * The key, scope and fingerprint of a message that a broker pushes by HTTP (hapax_push: Dapr,
 * Knative Eventing, Amazon SNS).
 *
 * The key is what stays the same when the message is delivered again: id and source of a
 * CloudEvent, or SNS's message id. The envelope (trace ids, signatures) and the broker's
 * credentials change, and are not compared. Rejected: one scope for all subscribers, as requests
 * have. A broker gives one event with one id to each subscriber. With one scope, the first
 * subscriber's response would answer the second.
 */

#include "ngx_http_hapax.h"


#define NGX_HTTP_HAPAX_EVENT  "application/cloudevents+json"


static struct hapax_span  ngx_http_hapax_of_event[] = {
    { (const uint8_t *) "/data", 5 },
    { (const uint8_t *) "/data_base64", 12 }
};

static struct hapax_span  ngx_http_hapax_of_sns[] = {
    { (const uint8_t *) "/Type", 5 },
    { (const uint8_t *) "/TopicArn", 9 },
    { (const uint8_t *) "/Subject", 8 },
    { (const uint8_t *) "/Message", 8 },
    { (const uint8_t *) "/MessageAttributes", 18 }
};


/* the key */


static void
ngx_http_hapax_push_event(ngx_http_hapax_ctx_t *ctx, struct hapax_span source,
    struct hapax_span id)
{
    ctx->given = HAPAX__KEY_GIVEN;

    if (hapax__key_of_event(ctx->key, &ctx->key_len, source, id)
        != HAPAX_ERR_NONE)
    {
        ngx_http_hapax_bad_key(ctx, "source or id of the event is missing, "
                                     "empty, or over 4096 bytes");
    }
}


/* Turns a header's value back into the attribute: removes quotes and escapes, decodes %XX. */

static ngx_int_t
ngx_http_hapax_push_decode(ngx_http_request_t *r, ngx_str_t *value,
    struct hapax_span *out)
{
    u_char     *p, *last, *to;
    ngx_int_t   c, quoted;

    p = value->data;
    last = p + value->len;

    to = ngx_pnalloc(r->pool, value->len + 1);
    if (to == NULL) {
        return NGX_ERROR;
    }

    out->ptr = to;
    quoted = (value->len > 1 && *p == '"' && *(last - 1) == '"');

    if (quoted) {
        p++;
        last--;
    }

    while (p < last) {

        if (quoted && *p == '\\' && p + 1 < last) {
            p++;

        } else if (*p == '%' && last - p > 2) {
            c = ngx_hextoi(p + 1, 2);

            if (c != NGX_ERROR) {
                *to++ = (u_char) c;
                p += 3;
                continue;
            }
        }

        *to++ = *p++;
    }

    out->len = to - out->ptr;

    return NGX_OK;
}


/* The key of a CloudEvent in binary mode. */

static ngx_int_t
ngx_http_hapax_push_headers(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx)
{
    ngx_uint_t         n, m, exact_id, exact_source;
    ngx_table_elt_t   *id, *source;
    struct hapax_span  id_span, source_span;
    static ngx_str_t   id_name = ngx_string("ce-id");
    static ngx_str_t   source_name = ngx_string("ce-source");

    id = ngx_http_hapax_find_header(r, &id_name, &n, &exact_id);
    source = ngx_http_hapax_find_header(r, &source_name, &m, &exact_source);

    if (n == 0 && m == 0) {
        return NGX_OK;
    }

    if (n != 1 || m != 1 || !exact_id || !exact_source) {
        ngx_http_hapax_bad_key(ctx, "ce-id and ce-source must each stand once");
        return NGX_OK;
    }

    if (ngx_http_hapax_push_decode(r, &id->value, &id_span) != NGX_OK
        || ngx_http_hapax_push_decode(r, &source->value, &source_span)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_hapax_push_event(ctx, source_span, id_span);

    return NGX_OK;
}


static void
ngx_http_hapax_push_sns(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_uint_t keyless)
{
    ngx_uint_t        n, exact, unused;
    ngx_table_elt_t  *id, *raw;
    static ngx_str_t  id_name = ngx_string("x-amz-sns-message-id");
    static ngx_str_t  raw_name = ngx_string("x-amz-sns-rawdelivery");

    id = ngx_http_hapax_find_header(r, &id_name, &n, &exact);

    if (id == NULL) {
        return;
    }

    raw = ngx_http_hapax_find_header(r, &raw_name, &unused, &unused);

    ctx->envelope = !(raw && raw->value.len == 4
                      && ngx_strncasecmp(raw->value.data, (u_char *) "true", 4)
                         == 0);

    if (!keyless) {
        return;
    }

    if (n > 1 || !exact || id->value.len == 0
        || id->value.len > HAPAX_KEY_MAX)
    {
        ngx_http_hapax_bad_key(ctx, "x-amz-sns-message-id must stand once, "
                                     "with 1 to 255 bytes");
        return;
    }

    ctx->given = HAPAX__KEY_GIVEN;
    ctx->key_len = id->value.len;
    ngx_memcpy(ctx->key, id->value.data, id->value.len);
}


static ngx_int_t
ngx_http_hapax_push_is_event(ngx_http_request_t *r)
{
    size_t      len;
    ngx_str_t  *type;

    if (r->headers_in.content_type == NULL) {
        return 0;
    }

    type = &r->headers_in.content_type->value;
    len = sizeof(NGX_HTTP_HAPAX_EVENT) - 1;

    return type->len >= len
           && ngx_strncasecmp(type->data, (u_char *) NGX_HTTP_HAPAX_EVENT, len)
              == 0
           && (type->len == len || type->data[len] == ';'
               || type->data[len] == ' ');
}


/* Idempotency-Key and hapax_key_from were asked for, so they beat the message's own key. */

ngx_int_t
ngx_http_hapax_push_begin(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_http_hapax_loc_conf_t *conf)
{
    ngx_uint_t  keyless;

    keyless = (ctx->given == HAPAX__KEY_NONE && conf->key_from == NULL);

    if (conf->push == NGX_HTTP_HAPAX_PUSH_SNS) {
        ngx_http_hapax_push_sns(r, ctx, keyless);
        return NGX_OK;
    }

    if (ngx_http_hapax_push_is_event(r)) {
        ctx->envelope = 1;
        return NGX_OK;
    }

    return keyless ? ngx_http_hapax_push_headers(r, ctx) : NGX_OK;
}


/* The key of a CloudEvent in structured mode. */

ngx_int_t
ngx_http_hapax_push_key(ngx_http_hapax_ctx_t *ctx, struct hapax_span body)
{
    uint8_t                  values[2][HAPAX__EVENT_NAME_MAX];
    ngx_uint_t               i, absent;
    struct hapax_span        pointer, names[2];
    enum hapax__json_result  rc;
    static const char *const pointers[] = { "/source", "/id" };

    absent = 0;

    for (i = 0; i < 2; i++) {
        pointer = hapax_str(pointers[i]);
        names[i].ptr = values[i];
        names[i].len = 0;

        rc = hapax__json_scalar(values[i], sizeof(values[i]), &names[i].len,
                                body, pointer);
        switch (rc) {

        case HAPAX__JSON_OK:
            break;

        case HAPAX__JSON_ABSENT:
            absent++;
            names[i].len = 0;
            break;

        case HAPAX__JSON_NOMEM:
            return NGX_ERROR;

        case HAPAX__JSON_NOT_CANONICAL:
            return NGX_OK;

        default:
            ngx_http_hapax_bad_key(ctx, "source or id of the event is no "
                                         "string of at most 4096 bytes");
            return NGX_OK;
        }
    }

    if (absent < 2) {
        ngx_http_hapax_push_event(ctx, names[0], names[1]);
    }

    return NGX_OK;
}


/* fingerprint and scope */


enum hapax__json_result
ngx_http_hapax_push_fingerprint(struct hapax_digest *out,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span body)
{
    ngx_uint_t  sns;

    sns = (conf->push == NGX_HTTP_HAPAX_PUSH_SNS);

    return hapax__json_fingerprint(out, body, HAPAX__JSON_INCLUDE,
                    sns ? ngx_http_hapax_of_sns : ngx_http_hapax_of_event,
                    (sns ? sizeof(ngx_http_hapax_of_sns)
                         : sizeof(ngx_http_hapax_of_event))
                    / sizeof(struct hapax_span));
}


ngx_int_t
ngx_http_hapax_push_scope(ngx_http_request_t *r, ngx_str_t *scope)
{
    u_char               *p;
    ngx_str_t            *host;
    struct hapax_span     parts[2];
    struct hapax_digest   digest;

    host = &r->headers_in.server;
    scope->len = host->len + r->uri.len;

    if (scope->len > HAPAX_SCOPE_MAX) {
        scope->len = sizeof("sha256-") - 1 + 2 * sizeof(digest.bytes);
    }

    scope->data = ngx_pnalloc(r->pool, scope->len);
    if (scope->data == NULL) {
        return NGX_ERROR;
    }

    if (scope->len == host->len + r->uri.len) {
        p = ngx_cpymem(scope->data, host->data, host->len);
        ngx_memcpy(p, r->uri.data, r->uri.len);
        return NGX_OK;
    }

    parts[0].ptr = host->data;
    parts[0].len = host->len;
    parts[1].ptr = r->uri.data;
    parts[1].len = r->uri.len;
    hapax_digest(&digest, parts, 2);

    p = ngx_cpymem(scope->data, "sha256-", sizeof("sha256-") - 1);
    ngx_hex_dump(p, digest.bytes, sizeof(digest.bytes));

    return NGX_OK;
}
