/* SPDX-License-Identifier: Apache-2.0
 *
 * How the URIs of stores and brokers are read: by a table of options for each kind of URI.
 */
#ifndef HAPAX_BASE_URI_H
#define HAPAX_BASE_URI_H

#include <hapax/store.h>
#include <stddef.h>

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
bool hapax__uri_parameter(struct hapax__uri_parameter *out, const char **query);

struct hapax__uri_reading;

/* An option of a query: a parameter `name=value`, and the field that it sets. */
struct hapax__uri_option {
    const char *name;
    enum hapax__uri_kind {
        HAPAX__URI_SWITCH, /* a bool: `on` or `off`, or one of `words` */
        HAPAX__URI_NUMBER, /* these four are integers of 2, 4 or 8 bytes, from min to max */
        HAPAX__URI_DURATION, /* in ms */
        HAPAX__URI_SECONDS, /* a duration of whole seconds */
        HAPAX__URI_SIZE,
        HAPAX__URI_TEXT, /* min to max bytes */
        HAPAX__URI_FILE, /* a path, which is not empty and fits the field */
        HAPAX__URI_OWN, /* `set` does it */
    } kind;
    size_t at, width; /* HAPAX__URI_FIELD() of what the reading fills in */
    uint64_t min, max;
    /* What is wrong with a value, in whole. NULL: a text is made of the name (SWITCH, FILE). */
    const char *wrong;
    bool (*allows)(const char *value); /* TEXT: NULL allows each value of such a length */
    enum hapax_error (*set)(struct hapax__uri_reading *reading,
                            const struct hapax__uri_option *option, const char *value);
    const char *words[2]; /* SWITCH: of false and of true */
};

/* The two of a field: `.at` and `.width`. */
#define HAPAX__URI_FIELD(type, field)                                                              \
    .at = offsetof(type, field), .width = sizeof(((type *)0)->field)

/* A URI that is being read. No text about what is wrong with it shows a value. */
struct hapax__uri_reading {
    const char *what; /* "Redis" */
    char *text; /* of HAPAX_TEXT_MAX bytes */
    void *out; /* what the options set fields of */
    const struct hapax__uri_option *options; /* 32 at most */
    size_t option_count;
    /* Called with a parameter that is none of the options. INVALID refuses it. NULL: `query`
     * refuses all such parameters, and `strip` keeps them. */
    enum hapax_error (*other)(struct hapax__uri_reading *reading,
                              const struct hapax__uri_parameter *given);
    bool secretive; /* a '@' behind the hosts: what is read may be the end of a password */
    uint32_t seen; /* bit per option */
};

/* INVALID; text says `the WHAT URI is wrong: …`, printf-like. */
HAPAX__SHARED enum hapax_error hapax__uri_wrong(const struct hapax__uri_reading *reading,
                                                const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The parts of [LOGIN@]HOSTS[/PATH][?QUERY], without the signs between them. */
struct hapax__uri_split {
    const char *hosts, *path, *query;
    size_t hosts_len, path_len; /* the query ends with the URI */
};

/* Splits what follows a scheme, and sees whether the reading is secretive. */
HAPAX__SHARED void hapax__uri_split(struct hapax__uri_split *out,
                                    struct hapax__uri_reading *reading, const char *at);

/* Sets the field of each parameter's option. INVALID: a parameter is not known, is given twice,
 * cannot be decoded, or its value is not allowed. The errors of the options' own setters. */
HAPAX__SHARED enum hapax_error hapax__uri_query(struct hapax__uri_reading *reading,
                                                const char *query);

/* Does the same with the parameters of a postgres:// URI, and takes them out of it: libpq, which
 * reads the others, does not know them. INVALID: as above; the URI may then be half done. */
enum hapax_error hapax__uri_strip(struct hapax__uri_reading *reading, char *uri);

/* Whether an option was given whose name begins so. */
bool hapax__uri_given(const struct hapax__uri_reading *reading, const char *begin);

/* USER[:PASSWORD], decoded into `size` bytes each; without a ':' password is as it was. INVALID. */
HAPAX__SHARED enum hapax_error hapax__uri_login(char *user, char *password, size_t size,
                                                const struct hapax__uri_reading *reading,
                                                const char *in, size_t len);

/* HOST[:PORT], with an IPv6 host in [ ], into host (`size` bytes) and *port, which stays as it was
 * where none is given. INVALID: the text calls the host "ARTICLE host". */
HAPAX__SHARED enum hapax_error hapax__uri_host(char *host, size_t size, uint16_t *port,
                                               const struct hapax__uri_reading *reading,
                                               const char *article, const char *at, size_t len);

/* INVALID: there are options tls_… but no `tls`, which `scheme` is for, or one of certificate and
 * key is missing. */
HAPAX__SHARED enum hapax_error hapax__uri_tls_check(const struct hapax__uri_reading *reading,
                                                    bool tls, const char *scheme);

/* The rows of tls_ca, tls_cert, tls_key and tls_verify, for a type that has such fields. */
#define HAPAX__URI_TLS_OPTIONS(type)                                                               \
    {"tls_ca", HAPAX__URI_FILE, HAPAX__URI_FIELD(type, tls_ca)},                                   \
        {"tls_cert", HAPAX__URI_FILE, HAPAX__URI_FIELD(type, tls_cert)},                           \
        {"tls_key", HAPAX__URI_FILE, HAPAX__URI_FIELD(type, tls_key)},                             \
    {                                                                                              \
        "tls_verify", HAPAX__URI_SWITCH, HAPAX__URI_FIELD(type, tls_verify)                        \
    }

/* The URI of a queue or topic, or a URL, as people may see it: as hapax_store_shown() does, and of
 * its parameters with the queue and the group alone. Where a '@' stands behind a '?', either may be
 * of a password: then nothing else is left but the scheme. */
void hapax__uri_shown(char out[HAPAX_TEXT_MAX], const char *uri);

/* Whether a Redis URI begins here. */
bool hapax__uri_is_redis(const char *at);

/* Whether a URI of a list begins here, behind its ',' or '+'. */
bool hapax__uri_begins(const char *at);

/* Whether it is printable ASCII without spaces and without any of `except`. */
bool hapax__uri_graphic(const char *s, const char *except);

/* Whether it has only small letters and digits, or bytes of `also`. */
HAPAX__SHARED bool hapax__uri_plain(const char *s, const char *also);

/* Whether a host, by name or address, is this machine. */
bool hapax__host_is_near(const char *host, size_t len);

#endif
