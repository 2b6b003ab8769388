/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a buffered response. The sum of a worker's bytes is limited by hapax_held_max.
 */

#include "ngx_http_hapax.h"


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


void
ngx_http_hapax_body_drop(ngx_http_hapax_body_t *body)
{
    if (body == NULL || --body->refs) {
        return;
    }

    ngx_http_hapax_count_buffered(-(ssize_t) body->size);
    free(body->data);
    free(body);
}
