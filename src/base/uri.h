/* SPDX-License-Identifier: Apache-2.0
 *
 * What the URIs of several stores have in common.
 */
#ifndef HAPAX_BASE_URI_H
#define HAPAX_BASE_URI_H

#include <hapax/store.h>

/* Decodes %XX of in[0..len) into out, of size bytes with its NUL. False: over the size, a NUL,
 * or not two hex digits. RFC 3986, section 2.1. */
HAPAX__SHARED bool hapax__uri_decode(char *out, size_t size, const char *in, size_t len);

/* One parameter `name=value` of a query: *query is set behind it. False: none is left. The
 * value's end is '&' or the text's end; a parameter without '=' has an empty value. */
struct hapax__uri_parameter {
    const char *name;
    size_t name_len;
    const char *value;
    size_t value_len;
};
HAPAX__SHARED bool hapax__uri_parameter(struct hapax__uri_parameter *out, const char **query);

/* A URI that is being read, for the texts about what is wrong with it. None shows a value. */
struct hapax__uri_reading {
    const char *what; /* "Redis" */
    char *text; /* of HAPAX_TEXT_MAX bytes */
    bool secretive; /* a '@' behind the hosts: what is read may be the end of a password */
    uint32_t seen; /* bit per parameter, by its place among the names */
};

/* INVALID; text says `the WHAT URI is wrong: …`, printf-like. */
HAPAX__SHARED enum hapax_error hapax__uri_wrong(const struct hapax__uri_reading *reading,
                                                const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Finds a parameter among names: *at gets the index of its name, and value (`size` bytes) its
 * decoded value. name_of(i) gives the i-th name, of 32 at most; NULL ends the list. INVALID: the
 * parameter has none of the names, was given before, cannot be decoded, or is too long. */
HAPAX__SHARED enum hapax_error hapax__uri_named(size_t *at, char *value, size_t size,
                                                struct hapax__uri_reading *reading,
                                                const struct hapax__uri_parameter *given,
                                                const char *(*name_of)(size_t i));

/* USER[:PASSWORD], decoded into `size` bytes each; without a ':' password is as it was. INVALID. */
HAPAX__SHARED enum hapax_error hapax__uri_login(char *user, char *password, size_t size,
                                                const struct hapax__uri_reading *reading,
                                                const char *in, size_t len);

/* Whether it is printable ASCII without spaces and without any of `except`. */
HAPAX__SHARED bool hapax__uri_graphic(const char *s, const char *except);

/* Reads a whole number of 1 to 9 digits, up to max. False: it is no such number; *out is then
 * undefined. */
HAPAX__SHARED bool hapax__uri_number(uint32_t *out, const char *in, size_t len, uint32_t max);

#endif
