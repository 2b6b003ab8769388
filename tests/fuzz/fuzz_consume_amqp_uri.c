/* SPDX-License-Identifier: Apache-2.0
 *
 * AMQP URIs, as people get them wrong: the input alone, and the input behind a login.
 * Claims: a URI that is taken is within its limits, and one that is refused has an error text. No
 * error text and no URI as it is shown contains the password.
 */
#include "fuzz_uri.h"

#include "broker/amqp/uri.h"

#include <hapax/store.h>

static void check(const struct hapax__amqp_uri *uri)
{
    assert(uri->host[0] != '\0' && memchr(uri->host, '\0', sizeof(uri->host)));
    assert(uri->vhost[0] != '\0' && memchr(uri->vhost, '\0', sizeof(uri->vhost)));
    assert(uri->user[0] != '\0' && memchr(uri->user, '\0', sizeof(uri->user)));
    assert(memchr(uri->password, '\0', sizeof(uri->password)));
    assert(strlen(uri->queue) <= HAPAX__AMQP_QUEUE_MAX);
    assert(uri->port != 0);
    assert(uri->heartbeat_s >= 1 && uri->heartbeat_s <= 600);
    assert(uri->timeout_ms >= 100 && uri->timeout_ms <= 60000);
    assert((uri->tls_cert[0] == '\0') == (uri->tls_key[0] == '\0'));
    assert(uri->tls || (uri->tls_verify && !uri->tls_ca[0] && !uri->tls_cert[0]));
}

static void read_uri(const char *uri, const char *hidden)
{
    char text[HAPAX_TEXT_MAX] = "", shown[HAPAX_TEXT_MAX];
    struct hapax__amqp_uri out;
    enum hapax_error error = hapax__amqp_uri(&out, uri, text);

    hapax_store_shown(shown, uri);
    if (error == HAPAX_ERR_NONE) {
        check(&out);
    } else {
        assert(error == HAPAX_ERR_INVALID);
        assert(text[0] != '\0' && memchr(text, '\0', sizeof(text)));
    }
    if (hidden)
        assert(!strstr(text, hidden) && !strstr(shown, hidden));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_uri(data, size, "amqp://u:" PASSWORD "@", read_uri);
    return 0;
}
