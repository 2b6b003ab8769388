/* SPDX-License-Identifier: Apache-2.0
 *
 * What the URIs of several stores have in common.
 */
#ifndef HAPAX_STORE_URI_H
#define HAPAX_STORE_URI_H

#include <hapax/store.h>

/* Decodes %XX of in[0..len) into out, of size bytes with its NUL. False: over the size, a NUL, or not
 * two hex digits. RFC 3986, section 2.1. */
bool hapax__uri_decode(char *out, size_t size, const char *in, size_t len);

/* One parameter `name=value` of a query: *query is set behind it. False: none is left. The value's end
 * is '&' or the text's end; a parameter without '=' has an empty value. */
struct hapax__uri_parameter {
    const char *name;
    size_t name_len;
    const char *value;
    size_t value_len;
};
bool hapax__uri_parameter(struct hapax__uri_parameter *out, const char **query);

#endif
