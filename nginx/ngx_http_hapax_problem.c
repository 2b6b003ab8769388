/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems as responses: as JSON in the shape of hapax_problem_template, or as a status of gRPC.
 * And the pages about problems, below their own path and where hapax_problems says. The texts are
 * the library's (http/problem.h).
 */

#include "ngx_http_hapax.h"
#include "http/problem.h"


/* A client of gRPC cannot read a body, and takes every status but 200 for UNKNOWN. */

static ngx_int_t
ngx_http_hapax_is_grpc(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf)
{
    ngx_table_elt_t  *type;

    type = r->headers_in.content_type;

    return conf->push == NGX_HTTP_HAPAX_PUSH_OFF
           && type
           && type->value.len >= sizeof("application/grpc") - 1
           && ngx_strncasecmp(type->value.data, (u_char *) "application/grpc",
                              sizeof("application/grpc") - 1)
              == 0;
}


/* Moves a text into the request's pool. */

static ngx_int_t
ngx_http_hapax_keep_text(ngx_http_request_t *r, struct hapax__json_out *out,
    ngx_str_t *text)
{
    text->len = out->len;
    text->data = out->failed ? NULL : ngx_pnalloc(r->pool, out->len + 1);

    if (text->data) {
        ngx_memcpy(text->data, out->bytes, out->len);
    }

    hapax__json_free(out);

    return text->data ? NGX_OK : NGX_ERROR;
}


/* A response of trailers only: they are sent as its header, and there is no body. */

static ngx_int_t
ngx_http_hapax_say_grpc(ngx_http_request_t *r,
    struct hapax__problem_page *page, ngx_str_t *body)
{
    u_char                  *p;
    ngx_str_t                message;
    struct hapax__json_out   out;

    ngx_memzero(&out, sizeof(struct hapax__json_out));
    hapax__problem_put_message(&out, page);

    p = ngx_pnalloc(r->pool, NGX_INT_T_LEN);

    if (ngx_http_hapax_keep_text(r, &out, &message) != NGX_OK || p == NULL) {
        return NGX_ERROR;
    }

    ngx_str_set(body, "");

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_type = r->headers_in.content_type->value;
    r->headers_out.content_length_n = 0;

    if (ngx_http_hapax_header(&r->headers_out.headers, "grpc-status", p,
                              ngx_sprintf(p, "%d", page->problem->grpc) - p)
        == NULL
        || ngx_http_hapax_header(&r->headers_out.headers, "grpc-message",
                                 message.data, message.len)
           == NULL)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_hapax_say_json(ngx_http_request_t *r, ngx_http_hapax_loc_conf_t *conf,
    struct hapax__problem_page *page, ngx_str_t *body)
{
    ngx_str_t               link;
    struct hapax_span       template;
    struct hapax__json_out  out;

    template.ptr = conf->problem_template.data;
    template.len = conf->problem_template.len;

    ngx_memzero(&out, sizeof(struct hapax__json_out));
    hapax__problem_put(&out, template, page);

    if (ngx_http_hapax_keep_text(r, &out, body) != NGX_OK) {
        return NGX_ERROR;
    }

    link.data = ngx_pnalloc(r->pool, page->base.len
                                     + ngx_strlen(page->problem->slug)
                                     + sizeof("<>; rel=\"describedby\""));
    if (link.data == NULL) {
        return NGX_ERROR;
    }

    link.len = ngx_sprintf(link.data, "<%V%s>; rel=\"describedby\"",
                           &conf->problem_base, page->problem->slug)
               - link.data;

    r->headers_out.status = page->status;
    r->headers_out.content_length_n = body->len;

    if (template.len) {
        ngx_str_set(&r->headers_out.content_type, "application/json");

    } else {
        ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    }

    return ngx_http_hapax_header(&r->headers_out.headers, "Link", link.data,
                                 link.len)
           ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_http_hapax_say(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    struct hapax__problem_page *page, ngx_str_t *body)
{
    ngx_int_t                   rc;
    ngx_http_hapax_loc_conf_t  *conf;

    conf = ctx->conf;

    page->base.ptr = conf->problem_base.data;
    page->base.len = conf->problem_base.len;
    page->id = ctx->identified ? &ctx->id : NULL;

    rc = ngx_http_hapax_is_grpc(r, conf)
         ? ngx_http_hapax_say_grpc(r, page, body)
         : ngx_http_hapax_say_json(r, conf, page, body);

    r->headers_out.status_line.len = 0;
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    if (rc != NGX_OK
        || ngx_http_hapax_header(&r->headers_out.headers, "Cache-Control",
                                 (u_char *) "no-store", sizeof("no-store") - 1)
           == NULL)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* the service behind the gate gave no whole response */


static ngx_int_t
ngx_http_hapax_say_upstream(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    const struct hapax__problem *problem, ngx_uint_t status, ngx_str_t *body)
{
    struct hapax__problem_page  page;

    ngx_memzero(&page, sizeof(struct hapax__problem_page));
    page.problem = problem;
    page.status = (int) status;

    ngx_http_clean_header(r);

    return ngx_http_hapax_say(r, ctx, &page, body);
}


ngx_int_t
ngx_http_hapax_say_truncated(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body)
{
    return ngx_http_hapax_say_upstream(r, ctx, &hapax__problem_truncated,
                                       hapax__problem_truncated.status, body);
}


ngx_int_t
ngx_http_hapax_say_failed(ngx_http_request_t *r, ngx_http_hapax_ctx_t *ctx,
    ngx_str_t *body)
{
    ngx_uint_t                    status;
    const struct hapax__problem  *problem;

    status = r->headers_out.status;

    if (!ngx_http_hapax_was_sent(r)) {
        problem = &hapax__problem_unreachable;

    } else {
        problem = (status == NGX_HTTP_GATEWAY_TIME_OUT)
                  ? &hapax__problem_timeout : &hapax__problem_failed;
    }

    return ngx_http_hapax_say_upstream(r, ctx, problem, status, body);
}


/* the template */


static ssize_t
ngx_http_hapax_read_template(u_char *name, u_char *buf, size_t size)
{
    ssize_t   n;
    ngx_fd_t  fd;

    fd = ngx_open_file(name, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        return -1;
    }

    n = ngx_read_fd(fd, buf, size);

    (void) ngx_close_file(fd);

    return n;
}


char *
ngx_http_hapax_set_template(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_hapax_loc_conf_t *hlcf = conf;

    char                text[HAPAX_TEXT_MAX];
    u_char              buf[HAPAX__PROBLEM_TEMPLATE_MAX + 1];
    ssize_t             n;
    ngx_str_t          *value, path;
    struct hapax_span   template;

    value = cf->args->elts;

    if (hlcf->problem_template.data) {
        return "is duplicate";
    }

    if (hapax__problem_template_named(&template, (char *) value[1].data)) {
        hlcf->problem_template.data = (u_char *) template.ptr;
        hlcf->problem_template.len = template.len;
        return NGX_CONF_OK;
    }

    path = value[1];

    if (ngx_conf_full_name(cf->cycle, &path, 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    n = ngx_http_hapax_read_template(path.data, buf, sizeof(buf));

    if (n < 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"%V\" takes rfc9457, stripe or a file: cannot "
                           "read \"%V\"", &cmd->name, &path);
        return NGX_CONF_ERROR;
    }

    template.ptr = buf;
    template.len = n;

    if (hapax__problem_template_check(template, text) != HAPAX_ERR_NONE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\": cannot use \"%V\": %s",
                           &cmd->name, &path, text);
        return NGX_CONF_ERROR;
    }

    hlcf->problem_template.len = n;
    hlcf->problem_template.data = ngx_pnalloc(cf->pool, n);

    if (hlcf->problem_template.data == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memcpy(hlcf->problem_template.data, buf, n);

    return NGX_CONF_OK;
}


/* the pages about problems */


static ngx_int_t
ngx_http_hapax_problems_handler(ngx_http_request_t *r)
{
    ngx_int_t          rc;
    ngx_str_t          body;
    struct hapax_span  slug, text;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    slug.ptr = r->uri.data + r->uri.len;

    while (slug.ptr > r->uri.data && slug.ptr[-1] != '/') {
        slug.ptr--;
    }

    slug.len = r->uri.data + r->uri.len - slug.ptr;

    if (!hapax__problem_find(&text, slug)) {
        return NGX_HTTP_NOT_FOUND;
    }

    body.data = (u_char *) text.ptr;
    body.len = text.len;

    ngx_str_set(&r->headers_out.content_type, "text/plain");
    ngx_str_set(&r->headers_out.charset, "utf-8");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = body.len;

    return ngx_http_hapax_send_whole(r, &body);
}


/* Before locations are looked for, so that no location has to be written. */

ngx_int_t
ngx_http_hapax_problems_phase(ngx_http_request_t *r)
{
    ngx_http_hapax_srv_conf_t  *hscf;

    hscf = ngx_http_get_module_srv_conf(r, ngx_http_hapax_module);

    if (!hscf->problems
        || r->uri.len < sizeof(HAPAX__PROBLEM_PATH) - 1
        || ngx_strncmp(r->uri.data, HAPAX__PROBLEM_PATH,
                       sizeof(HAPAX__PROBLEM_PATH) - 1)
           != 0)
    {
        return NGX_DECLINED;
    }

    return ngx_http_hapax_problems_handler(r);
}


char *
ngx_http_hapax_set_problems(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_hapax_problems_handler;

    return NGX_CONF_OK;
}
