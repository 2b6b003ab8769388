/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS to Redis, by OpenSSL over a BIO of our own. Rejected: OpenSSL's socket BIO, since it raises
 * SIGPIPE, which a library may not touch, and does not tell whether a byte has left this process. /
 */
#include "tls.h"

#include "base/fail.h"
#include "base/tls.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

struct hapax__redis_tls {
    SSL_CTX *context;
    BIO_METHOD *method; /* the wire's socket, without SIGPIPE */
};

/* ---- the BIO --------------------------------------------------------------------------- */

static int bio_write(BIO *bio, const char *data, int len)
{
    ssize_t n;

    if (len <= 0)
        return 0;
    n = hapax__redis_wire_send(BIO_get_data(bio), data, (size_t)len);
    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_write(bio);
    return (int)n;
}

static int bio_read(BIO *bio, char *out, int size)
{
    ssize_t n;

    if (size <= 0)
        return 0;
    n = hapax__redis_wire_recv(BIO_get_data(bio), out, (size_t)size);
    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(bio);
    if (n == 0)
        BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return (int)n;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)number;
    (void)pointer;
    if (command == BIO_CTRL_EOF)
        return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *make_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "hapax");

    if (!method)
        return NULL;
    if (BIO_meth_set_write(method, bio_write) == 1 && BIO_meth_set_read(method, bio_read) == 1 &&
        BIO_meth_set_ctrl(method, bio_ctrl) == 1)
        return method;
    BIO_meth_free(method);
    return NULL;
}

/* ---- the context ----------------------------------------------------------------------- */

enum hapax_error hapax__redis_tls_open(struct hapax__redis_tls **out,
                                       const struct hapax__redis_uri *uri,
                                       char text[HAPAX_TEXT_MAX])
{
    const struct hapax__tls_files files = {uri->tls_ca, uri->tls_cert, uri->tls_key,
                                           uri->tls_verify};
    struct hapax__redis_tls *tls;
    enum hapax_error error;

    *out = NULL;
    if (!uri->tls)
        return HAPAX_ERR_NONE;
    tls = calloc(1, sizeof(*tls));
    if (tls) {
        tls->context = SSL_CTX_new(TLS_client_method());
        tls->method = make_method();
    }
    if (!tls || !tls->context || !tls->method ||
        SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION) != 1) {
        hapax__redis_tls_close(tls);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot set TLS up: out of memory");
    }
    (void)SSL_CTX_set_mode(tls->context,
                           SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    (void)SSL_CTX_set_session_cache_mode(tls->context, SSL_SESS_CACHE_OFF);
    error = hapax__tls_use(tls->context, &files, text);
    if (error == HAPAX_ERR_NONE)
        *out = tls;
    else
        hapax__redis_tls_close(tls);
    return error;
}

void hapax__redis_tls_close(struct hapax__redis_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->method);
    free(tls);
}

/* ---- a connection ---------------------------------------------------------------------- */

static SSL *make_ssl(struct hapax__redis_wire *wire, struct hapax__redis_tls *tls, const char *host)
{
    SSL *ssl = SSL_new(tls->context);
    BIO *bio = ssl ? BIO_new(tls->method) : NULL;
    bool set;

    if (!bio) {
        SSL_free(ssl);
        return NULL;
    }
    BIO_set_data(bio, wire);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    if (hapax__tls_is_address(host))
        set = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    else
        set = SSL_set_tlsext_host_name(ssl, host) == 1 && SSL_set1_host(ssl, host) == 1;
    if (set)
        return ssl;
    SSL_free(ssl);
    return NULL;
}

/* What an SSL call that did not succeed means: 0: it would block, and *wants says for what; -1. */
static int judge(struct hapax__redis_wire *wire, int returned, short *wants)
{
    SSL *ssl = wire->layer;
    int error = errno;
    unsigned long code;

    switch (SSL_get_error(ssl, returned)) {
    case SSL_ERROR_WANT_READ:
        *wants = POLLIN;
        return 0;
    case SSL_ERROR_WANT_WRITE:
        *wants = POLLOUT;
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        hapax__redis_wire_lost(wire, 0);
        return -1;
    case SSL_ERROR_SYSCALL:
        hapax__redis_wire_lost(wire, error);
        return -1;
    default:
        break;
    }
    code = ERR_peek_last_error();
    if (ERR_GET_LIB(code) == ERR_LIB_SSL &&
        ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        hapax__redis_wire_lost(wire, 0);
        return -1;
    }
    wire->refused = true;
    if (SSL_get_verify_result(ssl) != X509_V_OK && SSL_get_verify_mode(ssl) != 0)
        (void)snprintf(wire->why, sizeof(wire->why), "its certificate is refused: %s",
                       X509_verify_cert_error_string(SSL_get_verify_result(ssl)));
    else
        (void)snprintf(wire->why, sizeof(wire->why), "TLS failed: %s",
                       hapax__tls_reason(ERR_peek_last_error()));
    return -1;
}

static ssize_t tls_read(struct hapax__redis_wire *wire, void *out, size_t size)
{
    int n;

    ERR_clear_error();
    n = SSL_read(wire->layer, out, size < INT_MAX ? (int)size : INT_MAX);
    if (n > 0)
        return n;
    return judge(wire, n, &wire->read_wants);
}

static ssize_t tls_write(struct hapax__redis_wire *wire, const void *data, size_t len)
{
    int n;

    ERR_clear_error();
    n = SSL_write(wire->layer, data, len < INT_MAX ? (int)len : INT_MAX);
    if (n > 0)
        return n;
    return judge(wire, n, &wire->write_wants);
}

static void tls_free(struct hapax__redis_wire *wire)
{
    SSL_free(wire->layer);
}

enum hapax_error hapax__redis_tls_begin(struct hapax__redis_wire *wire,
                                        struct hapax__redis_tls *tls, const char *host,
                                        int64_t deadline_us)
{
    static const struct hapax__redis_io io = {tls_read, tls_write, tls_free};
    SSL *ssl;

    ERR_clear_error();
    ssl = make_ssl(wire, tls, host);
    if (!ssl) {
        (void)snprintf(wire->why, sizeof(wire->why), "out of memory for TLS");
        return HAPAX_ERR_NOMEM;
    }
    wire->io = &io;
    wire->layer = ssl;
    for (;;) {
        short wants = 0;
        int connected;

        ERR_clear_error();
        connected = SSL_connect(ssl);
        if (connected == 1)
            return HAPAX_ERR_NONE;
        if (judge(wire, connected, &wants) < 0)
            return wire->refused ? HAPAX_ERR_REFUSED : HAPAX_ERR_UNAVAILABLE;
        if (!hapax__redis_wire_wait(wire, wants, deadline_us)) {
            hapax__redis_wire_lost(wire, ETIMEDOUT);
            return HAPAX_ERR_UNAVAILABLE;
        }
    }
}

void hapax__redis_tls_ends(const struct hapax__redis_wire *wire, int64_t *server_us,
                           int64_t *client_us)
{
    if (wire->layer)
        hapax__tls_ends(wire->layer, server_us, client_us);
}
