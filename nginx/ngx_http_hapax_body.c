/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a buffered response. The sum of a worker's bytes is limited by hapax_held_max.
 *
 * Once the outcome is stored the bytes wait for the client alone. They then count apart, under the
 * same limit: a client that does not read takes no room from operations. Over the limit the
 * connection that was not read from for longest is closed. Its outcome is stored, and a repeat gets
 * it. Rejected: temporary files, which move the same problem to a disk.
 */

#include "ngx_http_hapax.h"


/* the one that was not read from for longest comes first */
static ngx_queue_t  ngx_http_hapax_readers;
static size_t       ngx_http_hapax_unread;


ngx_http_hapax_body_t *
ngx_http_hapax_body_create(void)
{
    ngx_http_hapax_body_t  *body;

    body = calloc(1, sizeof(ngx_http_hapax_body_t));

    if (body) {
        body->refs = 1;
    }

    return body;
}


ngx_int_t
ngx_http_hapax_body_append(ngx_http_hapax_body_t *body, u_char *data,
    size_t len, size_t max)
{
    u_char  *p;
    size_t   size;

    if (len == 0) {
        return NGX_OK;
    }

    if (body->len + len > body->size) {
        size = ngx_max(2 * body->size, 1024);
        size = ngx_max(size, body->len + len);
        size = ngx_max(ngx_min(size, max), body->len + len);

        p = realloc(body->data, size);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_http_hapax_count_buffered((ssize_t) (size - body->size));
        body->data = p;
        body->size = size;
    }

    ngx_memcpy(body->data + body->len, data, len);
    body->len += len;

    return NGX_OK;
}


/* From here on the bytes count as unread, and not as buffered. */

static void
ngx_http_hapax_body_uncount(ngx_http_hapax_body_t *body)
{
    if (body->sent && body->refs == 1) {
        ngx_http_hapax_count_buffered(-(ssize_t) body->size);
        body->size = 0;
    }
}


void
ngx_http_hapax_body_sent(ngx_http_hapax_body_t *body)
{
    body->sent = 1;
    ngx_http_hapax_body_uncount(body);
}


void
ngx_http_hapax_body_drop(ngx_http_hapax_body_t *body)
{
    if (body == NULL) {
        return;
    }

    if (--body->refs) {
        ngx_http_hapax_body_uncount(body);
        return;
    }

    ngx_http_hapax_count_buffered(-(ssize_t) body->size);
    free(body->data);
    free(body);
}


/* readers */


void
ngx_http_hapax_readers_init(void)
{
    ngx_queue_init(&ngx_http_hapax_readers);
}


static void
ngx_http_hapax_count_unread(ssize_t change)
{
    ngx_http_hapax_unread += change;

    if (ngx_http_hapax_counts) {
        ngx_http_hapax_counts->unread = ngx_http_hapax_unread;
    }
}


/* What send_timeout does, before its time. */

static void
ngx_http_hapax_reader_close(ngx_http_hapax_ctx_t *ctx)
{
    ngx_event_t  *wev;

    wev = ctx->request->connection->write;

    ngx_log_error(NGX_LOG_INFO, ctx->request->connection->log, 0,
                  "hapax: too many responses are not read: closing");

    ngx_http_hapax_reader_remove(ctx);

    wev->timedout = 1;
    wev->delayed = 0;
    ngx_post_event(wev, &ngx_posted_events);
}


void
ngx_http_hapax_reader_add(ngx_http_hapax_ctx_t *ctx, size_t len)
{
    ngx_queue_t                 *q;
    ngx_http_hapax_main_conf_t  *hmcf;

    if (len == 0 || ctx->unread) {
        return;
    }

    hmcf = ngx_http_get_module_main_conf(ctx->request, ngx_http_hapax_module);

    ctx->unread = len;
    ngx_queue_insert_tail(&ngx_http_hapax_readers, &ctx->reader);
    ngx_http_hapax_count_unread((ssize_t) len);

    while (ngx_http_hapax_unread > hmcf->held_max) {
        q = ngx_queue_head(&ngx_http_hapax_readers);

        if (q == &ctx->reader) {
            break;
        }

        ngx_http_hapax_reader_close(
                             ngx_queue_data(q, ngx_http_hapax_ctx_t, reader));
    }
}


void
ngx_http_hapax_reader_reads(ngx_http_hapax_ctx_t *ctx)
{
    if (ctx->unread) {
        ngx_queue_remove(&ctx->reader);
        ngx_queue_insert_tail(&ngx_http_hapax_readers, &ctx->reader);
    }
}


void
ngx_http_hapax_reader_remove(ngx_http_hapax_ctx_t *ctx)
{
    if (ctx->unread) {
        ngx_queue_remove(&ctx->reader);
        ngx_http_hapax_count_unread(-(ssize_t) ctx->unread);
        ctx->unread = 0;
    }
}
