/* SPDX-License-Identifier: Apache-2.0
 *
 * nginx's lists of headers: walked, searched, added to.
 */

#include "ngx_http_hapax.h"


/* nginx may let '_' through, and the handler may read it as '-' */

ngx_int_t
ngx_http_hapax_header_named(ngx_str_t *given, ngx_str_t *name)
{
    u_char      c, n;
    ngx_uint_t  i;

    if (given->len != name->len) {
        return 0;
    }

    for (i = 0; i < name->len; i++) {
        c = ngx_tolower(given->data[i]);
        n = ngx_tolower(name->data[i]);

        if ((c == '_' ? '-' : c) != (n == '_' ? '-' : n)) {
            return 0;
        }
    }

    return 1;
}


ngx_table_elt_t *
ngx_http_hapax_header_next(ngx_list_part_t **part, ngx_uint_t *i)
{
    ngx_table_elt_t  *h;

    while (*i >= (*part)->nelts) {
        if ((*part)->next == NULL) {
            return NULL;
        }

        *part = (*part)->next;
        *i = 0;
    }

    h = (*part)->elts;

    return &h[(*i)++];
}


ngx_table_elt_t *
ngx_http_hapax_find_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_uint_t *n, ngx_uint_t *exact)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *found;

    *n = 0;
    *exact = 0;
    i = 0;
    found = NULL;
    part = &r->headers_in.headers.part;

    while ((h = ngx_http_hapax_header_next(&part, &i)) != NULL) {

        if (!ngx_http_hapax_header_named(&h->key, name)) {
            continue;
        }

        ++*n;
        found = h;
        *exact = (ngx_strncasecmp(h->key.data, name->data, name->len) == 0);
    }

    return found;
}


ngx_table_elt_t *
ngx_http_hapax_header(ngx_list_t *list, const char *name, u_char *value,
    size_t len)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(list);
    if (h == NULL) {
        return NULL;
    }

    /* from nginx 1.23 on there is a field "next", too */
    ngx_memzero(h, sizeof(ngx_table_elt_t));

    h->hash = 1;
    h->value.data = value;
    h->value.len = len;

    if (name) {
        h->key.data = (u_char *) name;
        h->key.len = ngx_strlen(name);
    }

    return h;
}
