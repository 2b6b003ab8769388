/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS from files. A key under a passphrase is refused: OpenSSL would ask the terminal. So is one
 * that everybody can read, for it is no secret any more.
 */
#include "tls.h"

#include "fail.h"
#include "time.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/pem.h>

bool hapax__tls_is_address(const char *host)
{
    unsigned char bytes[16];

    return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

const char *hapax__tls_reason(unsigned long code)
{
    const char *why = code != 0 ? ERR_reason_error_string(code) : NULL;

    if (code != 0 && ERR_GET_LIB(code) == ERR_LIB_SYS)
        return strerror(ERR_GET_REASON(code));
    return why ? why : "no reason is known";
}

static enum hapax_error file_fail(char text[HAPAX_TEXT_MAX], const char *name, const char *path)
{
    unsigned long first = ERR_peek_error();
    bool system = first != 0 && ERR_GET_LIB(first) == ERR_LIB_SYS;

    /* That the file is not there comes first and is then called a fault of PEM. */
    return hapax__fail(text, HAPAX_ERR_INVALID, "cannot use %s \"%.100s\": %s", name, path,
                       hapax__tls_reason(system ? first : ERR_peek_last_error()));
}

static int no_passphrase(char *out, int size, int writing, void *arg)
{
    (void)out;
    (void)size;
    (void)writing;
    (void)arg;
    return -1;
}

static enum hapax_error load_own(SSL_CTX *context, const struct hapax__tls_files *files,
                                 char text[HAPAX_TEXT_MAX])
{
    struct stat st;

    if (SSL_CTX_use_certificate_chain_file(context, files->cert) != 1)
        return file_fail(text, "tls_cert", files->cert);
    if (stat(files->key, &st) == 0 && (st.st_mode & S_IROTH))
        return hapax__fail(text, HAPAX_ERR_REFUSED,
                           "cannot use tls_key \"%.120s\": everybody can read it; chmod o-r it",
                           files->key);
    SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    if (SSL_CTX_use_PrivateKey_file(context, files->key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context) != 1)
        return file_fail(text, "tls_key", files->key);
    return HAPAX_ERR_NONE;
}

static enum hapax_error load_ca(SSL_CTX *context, const char *path, char text[HAPAX_TEXT_MAX])
{
    struct stat st;
    int loaded;

    if (path[0] == '\0')
        return SSL_CTX_set_default_verify_paths(context) == 1
                   ? HAPAX_ERR_NONE
                   : hapax__fail(text, HAPAX_ERR_NOMEM, "cannot set TLS up: out of memory");
    loaded = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? SSL_CTX_load_verify_dir(context, path)
                                                         : SSL_CTX_load_verify_file(context, path);
    return loaded == 1 ? HAPAX_ERR_NONE : file_fail(text, "tls_ca", path);
}

enum hapax_error hapax__tls_use(SSL_CTX *context, const struct hapax__tls_files *files,
                                char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    ERR_clear_error();
    SSL_CTX_set_verify(context, files->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    error = load_ca(context, files->ca, text);
    if (error == HAPAX_ERR_NONE && files->cert[0] != '\0')
        error = load_own(context, files, text);
    ERR_clear_error();
    return error;
}

/* ---- when certificates end -------------------------------------------------------------- */

static int64_t end_of(const X509 *certificate)
{
    struct tm at;

    if (!certificate || ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &at) != 1)
        return HAPAX_NOT_KNOWN;
    return (int64_t)timegm(&at) * US_PER_S;
}

static void note(int64_t *us, const X509 *certificate)
{
    int64_t end_us = end_of(certificate);

    if (end_us != HAPAX_NOT_KNOWN && (*us == HAPAX_NOT_KNOWN || end_us < *us))
        *us = end_us;
}

void hapax__tls_ends(SSL *ssl, int64_t *server_us, int64_t *client_us)
{
    note(server_us, SSL_get0_peer_certificate(ssl));
    note(client_us, SSL_get_certificate(ssl));
}

void hapax__tls_context_end(SSL_CTX *context, int64_t *us)
{
    note(us, SSL_CTX_get0_certificate(context));
}
