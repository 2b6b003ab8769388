/* SPDX-License-Identifier: Apache-2.0
 *
 * What the TLS of stores and brokers has in common: the files that a URI names.
 */
#ifndef HAPAX_BASE_TLS_H
#define HAPAX_BASE_TLS_H

#include <hapax/store.h>
#include <openssl/ssl.h>

struct hapax__tls_files { /* paths; "": none is named */
    const char *ca; /* or a directory; none: the system's */
    const char *cert; /* with `key` */
    const char *key;
    bool verify;
};

/* Gives a context its trusted authorities, its certificate and its key. INVALID: a file is not
 * there or holds something else, or the key has a passphrase. REFUSED: everybody can read the
 * key. NOMEM. text names the parameter (tls_ca, tls_cert, tls_key) and the file. */
HAPAX__SHARED enum hapax_error
hapax__tls_use(SSL_CTX *context, const struct hapax__tls_files *files, char text[HAPAX_TEXT_MAX]);

/* Takes note of when the certificates of a connection end, in µs since 1970: the other side's into
 * *server_us, our own into *client_us, where it is sooner than what is there or nothing is there
 * (HAPAX_NOT_KNOWN). */
void hapax__tls_ends(SSL *ssl, int64_t *server_us, int64_t *client_us);

/* Takes note of when a context's own certificate ends. */
void hapax__tls_context_end(SSL_CTX *context, int64_t *us);

/* What an error of OpenSSL's queue (ERR_peek_error() and its like) means; 0: none was there. */
HAPAX__SHARED const char *hapax__tls_reason(unsigned long code);

/* Whether the host is an address, whose certificate names it as one. */
HAPAX__SHARED bool hapax__tls_is_address(const char *host);

#endif
