/* SPDX-License-Identifier: Apache-2.0
 *
 * The context of a request: found again after a redirect, and released with the request's pool.
 */

#include "ngx_http_hapax.h"


/*
 * r->ctx is zeroed by internal redirects (error_page, try_files, X-Accel), by
 * named locations and by ngx_http_filter_finalize_request(); the pool's cleanup
 * survives them.
 */

ngx_http_hapax_ctx_t *
ngx_http_hapax_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t    *cln;
    ngx_http_upstream_t   *u;
    ngx_http_hapax_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_hapax_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {

        for (cln = r->pool->cleanup; cln; cln = cln->next) {
            if (cln->handler == ngx_http_hapax_cleanup) {
                ctx = cln->data;
                ngx_http_set_ctx(r, ctx, ngx_http_hapax_module);

                if (ctx->as_patch) {
                    ctx->as_patch = 0;
                    r->method &= ~NGX_HTTP_PATCH;
                }

                if (r->err_status) {
                    ctx->error_page = 1;
                }

                /* nginx leads to the page for a body that could not be read */

                if (ctx->phase == NGX_HTTP_HAPAX_READING) {
                    ctx->half_read = 1;
                    ctx->phase = NGX_HTTP_HAPAX_PASSING;
                }

                /* r->upstream stays that of before until another is made */

                u = (r->upstream && ngx_http_hapax_is_accel(r->upstream))
                    ? r->upstream : NULL;

                ctx->led = u && u != ctx->led_by
                           && !r->error_page && !r->err_status;
                ctx->led_by = u;

                if (r->upstream_states && ngx_http_hapax_was_sent(r)) {
                    ctx->elsewhere = 1;
                }

                break;
            }
        }
    }

    return ctx;
}


void
ngx_http_hapax_cleanup(void *data)
{
    ngx_http_hapax_ctx_t *ctx = data;

    if (ctx->wake.posted) {
        ngx_delete_posted_event(&ctx->wake);
    }

    if (ctx->shadow) {
        ngx_http_hapax_shadow_cut(ctx);

    } else if (ctx->call) {
        ngx_http_hapax_call_cut(ctx);
    }

    ngx_http_hapax_reader_remove(ctx);
    ngx_http_hapax_body_drop(ctx->body);
}
