/* SPDX-License-Identifier: Apache-2.0
 *
 * A response as an outcome, and an outcome as a response.
 *
 * An outcome's headers are lines `Name: value\r\n`, in the order of the response. Headers that
 * belong to one connection (hop-by-hop), to one client (Set-Cookie, Authorization,
 * WWW-Authenticate) or to one moment (Date) are left out, and so are headers that nginx makes
 * (Content-Length). Trailers come last, after a line `Trailer` that names them.
 */

#include "ngx_http_hapax.h"


static ngx_str_t  ngx_http_hapax_never[] = {
    ngx_string("age"),
    ngx_string("authorization"),
    ngx_string("connection"),
    ngx_string("content-length"),
    ngx_string("date"),
    ngx_string("hapax-trace"),
    ngx_string("idempotency-protected"),
    ngx_string("idempotency-recorded"),
    ngx_string("idempotency-replayed"),
    ngx_string("idempotency-ttl"),
    ngx_string("keep-alive"),
    ngx_string("proxy-authenticate"),
    ngx_string("proxy-authorization"),
    ngx_string("proxy-connection"),
    ngx_string("set-cookie"),
    ngx_string("set-cookie2"),
    ngx_string("te"),
    ngx_string("trailer"),
    ngx_string("transfer-encoding"),
    ngx_string("upgrade"),
    ngx_string("www-authenticate"),
    ngx_null_string
};


static ngx_int_t
ngx_http_hapax_same(ngx_str_t *a, u_char *b, size_t len)
{
    return a->len == len && ngx_strncasecmp(a->data, b, len) == 0;
}


static ngx_int_t
ngx_http_hapax_in(ngx_array_t *names, ngx_str_t *name)
{
    ngx_str_t   *n;
    ngx_uint_t   i;

    if (names == NULL) {
        return 0;
    }

    n = names->elts;

    for (i = 0; i < names->nelts; i++) {
        if (ngx_http_hapax_same(&n[i], name->data, name->len)) {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
ngx_http_hapax_is_stored(ngx_http_hapax_loc_conf_t *conf, ngx_str_t *name)
{
    ngx_str_t  *never;

    if (ngx_http_hapax_in(conf->hide, name)) {
        return 0;
    }

    for (never = ngx_http_hapax_never; never->len; never++) {
        if (ngx_http_hapax_same(never, name->data, name->len)) {
            return ngx_http_hapax_in(conf->keep, name);
        }
    }

    return 1;
}


/* writing: returns the length; with out == NULL nothing is written */


static size_t
ngx_http_hapax_line(u_char *out, ngx_str_t *name, ngx_str_t *value)
{
    if (out) {
        out = ngx_cpymem(out, name->data, name->len);
        *out++ = ':';
        *out++ = ' ';
        out = ngx_cpymem(out, value->data, value->len);
        *out++ = '\r';
        *out++ = '\n';
    }

    return name->len + value->len + 4;
}


static size_t
ngx_http_hapax_line_of(u_char *out, const char *name, ngx_str_t *value)
{
    ngx_str_t  key;

    key.data = (u_char *) name;
    key.len = ngx_strlen(name);

    return ngx_http_hapax_line(out, &key, value);
}


static size_t
ngx_http_hapax_content_type(u_char *out, ngx_http_request_t *r)
{
    size_t      len;
    ngx_str_t   value, charset;

    value = r->headers_out.content_type;
    charset = r->headers_out.charset;

    if (value.len == 0) {
        return 0;
    }

    len = ngx_http_hapax_line_of(out, "Content-Type", &value);

    if (charset.len == 0 || r->headers_out.content_type_len != value.len) {
        return len;
    }

    if (out) {
        out = ngx_cpymem(out + len - 2, "; charset=",
                         sizeof("; charset=") - 1);
        out = ngx_cpymem(out, charset.data, charset.len);
        *out++ = '\r';
        *out++ = '\n';
    }

    return len + sizeof("; charset=") - 1 + charset.len;
}


static size_t
ngx_http_hapax_list(u_char *out, ngx_list_t *list,
    ngx_http_hapax_loc_conf_t *conf)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = 0;
    i = 0;
    part = &list->part;

    while ((h = ngx_http_hapax_header_next(&part, &i)) != NULL) {
        if (h->hash && ngx_http_hapax_is_stored(conf, &h->key)) {
            len += ngx_http_hapax_line(out ? out + len : NULL, &h->key,
                                       &h->value);
        }
    }

    return len;
}


/* The names of the trailers, as the value of a line. */

static size_t
ngx_http_hapax_trailers(u_char *out, ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf)
{
    size_t            len;
    u_char           *p;
    ngx_uint_t        i;
    ngx_list_t       *list;
    const char       *before;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    list = &r->headers_out.trailers;
    len = 0;
    i = 0;
    part = &list->part;

    while ((h = ngx_http_hapax_header_next(&part, &i)) != NULL) {

        if (h->hash == 0 || !ngx_http_hapax_is_stored(conf, &h->key)) {
            continue;
        }

        before = len ? ", " : "Trailer: ";

        if (out) {
            p = ngx_cpymem(out + len, before, ngx_strlen(before));
            ngx_memcpy(p, h->key.data, h->key.len);
        }

        len += ngx_strlen(before) + h->key.len;
    }

    if (len == 0) {
        return 0;
    }

    if (out) {
        out[len] = '\r';
        out[len + 1] = '\n';
    }

    return len + 2 + ngx_http_hapax_list(out ? out + len + 2 : NULL, list,
                                         conf);
}


static size_t
ngx_http_hapax_lines(u_char *out, ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf, ngx_uint_t with_length)
{
    size_t     len;
    u_char     buf[sizeof("Wed, 31 Dec 1986 18:00:00 GMT") - 1];
    ngx_str_t  value;

#define NGX_HTTP_HAPAX_AT  (out ? out + len : NULL)

    len = ngx_http_hapax_content_type(out, r);

    if (r->headers_out.last_modified == NULL
        && r->headers_out.last_modified_time != -1)
    {
        value.data = buf;
        value.len = ngx_http_time(buf, r->headers_out.last_modified_time)
                    - buf;
        len += ngx_http_hapax_line_of(NGX_HTTP_HAPAX_AT, "Last-Modified",
                                      &value);
    }

    if (with_length && r->headers_out.content_length_n >= 0) {
        value.data = buf;
        value.len = ngx_sprintf(buf, "%O", r->headers_out.content_length_n)
                    - buf;
        len += ngx_http_hapax_line_of(NGX_HTTP_HAPAX_AT, "Content-Length",
                                      &value);
    }

    len += ngx_http_hapax_list(NGX_HTTP_HAPAX_AT, &r->headers_out.headers,
                               conf);
    len += ngx_http_hapax_trailers(NGX_HTTP_HAPAX_AT, r, conf);

#undef NGX_HTTP_HAPAX_AT

    return len;
}


/* with_length: write Content-Length, as of a response to HEAD */

u_char *
ngx_http_hapax_headers_write(ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf, ngx_uint_t with_length, const char *trace,
    size_t *len)
{
    size_t   line;
    u_char  *out;

    *len = ngx_http_hapax_lines(NULL, r, conf, with_length);

    line = (trace[0] && *len + HAPAX__TRACE_LINE <= HAPAX_HEADERS_MAX)
           ? HAPAX__TRACE_LINE : 0;

    out = malloc(line + *len + 1);

    if (out) {
        if (line) {
            hapax__trace_line(out, trace);
        }

        (void) ngx_http_hapax_lines(out + line, r, conf, with_length);
    }

    *len += line;

    return out;
}


/* reading */


/* Splits off the charset: filters compare the type without it. */

static void
ngx_http_hapax_set_type(ngx_http_request_t *r, ngx_str_t *value)
{
    u_char  *p, *semicolon, *last;

    r->headers_out.content_type = *value;
    r->headers_out.content_type_len = value->len;
    r->headers_out.content_type_lowcase = NULL;
    ngx_str_null(&r->headers_out.charset);

    p = value->data;
    last = p + value->len;

    while ((semicolon = ngx_strlchr(p, last, ';')) != NULL) {

        p = semicolon + 1;

        while (p < last && *p == ' ') {
            p++;
        }

        if (last - p < 8
            || ngx_strncasecmp(p, (u_char *) "charset=", 8) != 0)
        {
            continue;
        }

        p += 8;
        r->headers_out.content_type_len = semicolon - value->data;

        if (p < last && *p == '"') {
            p++;
        }

        if (p < last && *(last - 1) == '"') {
            last--;
        }

        r->headers_out.charset.data = p;
        r->headers_out.charset.len = last - p;

        return;
    }
}


static ngx_int_t
ngx_http_hapax_point_cache_control(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    ngx_table_elt_t  **last;

#if (nginx_version >= 1023000)

    for (last = &r->headers_out.cache_control; *last; last = &(*last)->next) {
        /* void */
    }

#else

    if (r->headers_out.cache_control.elts == NULL
        && ngx_array_init(&r->headers_out.cache_control, r->pool, 1,
                          sizeof(ngx_table_elt_t *))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    last = ngx_array_push(&r->headers_out.cache_control);
    if (last == NULL) {
        return NGX_ERROR;
    }

#endif

    *last = h;

    return NGX_OK;
}


/* Sets nginx's pointer to a header, or its field, if it has one. */

static ngx_int_t
ngx_http_hapax_point(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    u_char      *headers;
    ngx_uint_t   i;

    static const struct {
        ngx_str_t  name;
        size_t     offset;
    } pointers[] = {
        { ngx_string("etag"), offsetof(ngx_http_headers_out_t, etag) },
        { ngx_string("date"), offsetof(ngx_http_headers_out_t, date) },
        { ngx_string("server"), offsetof(ngx_http_headers_out_t, server) },
        { ngx_string("expires"), offsetof(ngx_http_headers_out_t, expires) },
        { ngx_string("location"), offsetof(ngx_http_headers_out_t, location) },
        { ngx_string("last-modified"),
          offsetof(ngx_http_headers_out_t, last_modified) },
        { ngx_string("content-encoding"),
          offsetof(ngx_http_headers_out_t, content_encoding) }
    };

    if (ngx_http_hapax_same(&h->key, (u_char *) "cache-control", 13)) {
        return ngx_http_hapax_point_cache_control(r, h);
    }

    if (ngx_http_hapax_same(&h->key, (u_char *) "location", 8)
        && (h->value.len == 0 || h->value.data[0] == '/'))
    {
        /* nginx would make "/path" absolute; where it did, that is stored */
        return NGX_OK;
    }

    headers = (u_char *) &r->headers_out;

    for (i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
        if (ngx_http_hapax_same(&h->key, pointers[i].name.data,
                                pointers[i].name.len))
        {
            *(ngx_table_elt_t **) (headers + pointers[i].offset) = h;
        }
    }

    if (r->headers_out.last_modified == h) {
        r->headers_out.last_modified_time =
                               ngx_parse_http_time(h->value.data, h->value.len);
    }

    return NGX_OK;
}


/*
 * Other programs may have completed the record. So a line that nginx would not
 * take from an upstream is refused. The line was cut at its LF.
 */

static ngx_int_t
ngx_http_hapax_is_line(ngx_str_t *name, ngx_str_t *value)
{
    size_t  i;

    for (i = 0; i < name->len; i++) {
        if (name->data[i] <= ' ' || name->data[i] == 0x7f) {
            return 0;
        }
    }

    for (i = 0; i < value->len; i++) {
        if (value->data[i] == '\0' || value->data[i] == CR) {
            return 0;
        }
    }

    return 1;
}


static ngx_int_t
ngx_http_hapax_read_line(ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf, ngx_str_t *name, ngx_str_t *value,
    ngx_uint_t trailer)
{
    ngx_table_elt_t  *h;

    if (trailer) {
        if (!ngx_http_hapax_is_stored(conf, name)) {
            return NGX_OK;
        }

        r->expect_trailers = 1;

        h = ngx_http_hapax_header(&r->headers_out.trailers, NULL, value->data,
                                  value->len);
        if (h == NULL) {
            return NGX_ERROR;
        }

        h->key = *name;
        return NGX_OK;
    }

    if (ngx_http_hapax_same(name, (u_char *) "content-type", 12)) {
        ngx_http_hapax_set_type(r, value);
        return NGX_OK;
    }

    if (ngx_http_hapax_same(name, (u_char *) "content-length", 14)) {

        if (r->header_only
            && (r->headers_out.status != NGX_HTTP_NO_CONTENT
                || (value->len == 1 && value->data[0] == '0')))
        {
            r->headers_out.content_length_n = ngx_atoof(value->data,
                                                        value->len);
        }

        return NGX_OK;
    }

    if (!ngx_http_hapax_is_stored(conf, name)) {
        /* an outcome that another program stored may hold anything */
        return NGX_OK;
    }

    h = ngx_http_hapax_header(&r->headers_out.headers, NULL, value->data,
                              value->len);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->key = *name;

    return ngx_http_hapax_point(r, h);
}


/* The headers must live as long as the request. A malformed line is left out. */

ngx_int_t
ngx_http_hapax_headers_read(ngx_http_request_t *r,
    ngx_http_hapax_loc_conf_t *conf, struct hapax_span headers)
{
    u_char      *p, *end, *eol, *colon;
    ngx_str_t    name, value;
    ngx_uint_t   trailer;

    p = (u_char *) headers.ptr;
    end = p + headers.len;
    trailer = 0;

    for ( /* void */ ; p < end; p = eol + 1) {

        eol = ngx_strlchr(p, end, '\n');
        if (eol == NULL) {
            break;
        }

        colon = ngx_strlchr(p, eol, ':');
        if (colon == NULL || colon == p) {
            continue;
        }

        name.data = p;
        name.len = colon - p;

        value.data = colon + 1;

        while (value.data < eol && *value.data == ' ') {
            value.data++;
        }

        value.len = eol - value.data;

        while (value.len && (value.data[value.len - 1] == '\r'
                             || value.data[value.len - 1] == ' '))
        {
            value.len--;
        }

        if (!ngx_http_hapax_is_line(&name, &value)) {
            continue;
        }

        if (ngx_http_hapax_same(&name, (u_char *) "trailer", 7)) {
            trailer = 1;
            continue;
        }

        if (ngx_http_hapax_read_line(r, conf, &name, &value, trailer)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/*
 * Makes "Location: /path" absolute, as nginx would do further down. A replay
 * could not know whether the stored path was meant to be relative.
 */

ngx_int_t
ngx_http_hapax_location_absolute(ngx_http_request_t *r)
{
    u_char                     *p, addr[NGX_SOCKADDR_STRLEN];
    ngx_str_t                   host;
    in_port_t                   port;
    ngx_uint_t                  tls;
    ngx_table_elt_t            *location;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_core_srv_conf_t   *cscf;

    location = r->headers_out.location;
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (location == NULL || location->value.len == 0
        || location->value.data[0] != '/' || !clcf->absolute_redirect)
    {
        return NGX_OK;
    }

    if (clcf->server_name_in_redirect) {
        cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
        host = cscf->server_name;

    } else if (r->headers_in.server.len) {
        host = r->headers_in.server;

    } else {
        host.len = NGX_SOCKADDR_STRLEN;
        host.data = addr;

        if (ngx_connection_local_sockaddr(r->connection, &host, 0) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    tls = 0;
    port = ngx_inet_get_port(r->connection->local_sockaddr);

#if (NGX_HTTP_SSL)
    tls = (r->connection->ssl != NULL);
#endif

    if (!clcf->port_in_redirect || port == (tls ? 443 : 80)) {
        port = 0;
    }

    p = ngx_pnalloc(r->pool, sizeof("https://:65535") - 1 + host.len
                             + location->value.len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    host.data = ngx_pstrdup(r->pool, &host);
    if (host.data == NULL) {
        return NGX_ERROR;
    }

    addr[0] = '\0';
    if (port) {
        *ngx_sprintf(addr, ":%ui", (ngx_uint_t) port) = '\0';
    }

    location->value.len = ngx_sprintf(p, "%s://%V%s%V",
                                      tls ? "https" : "http", &host, addr,
                                      &location->value)
                          - p;
    location->value.data = p;

    return NGX_OK;
}
