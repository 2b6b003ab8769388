/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis URIs, as people get them wrong: the input alone, and the input behind a login.
 * Claims: a URI that is taken is within its limits, and one that is refused has an error text. No
 * error text and no URI as it is shown contains the password.
 */
#include "fuzz_uri.h"

#include "store/redis/uri.h"

static void check(const struct hapax__redis_uri *uri)
{
    assert(uri->host_count >= 1 && uri->host_count <= HAPAX__REDIS_HOSTS_MAX);
    assert(uri->kind != HAPAX__REDIS_NODE || uri->host_count == 1);
    for (size_t i = 0; i < uri->host_count; i++) {
        assert(memchr(uri->hosts[i].host, '\0', sizeof(uri->hosts[i].host)));
        assert(uri->hosts[i].host[0] != '\0' && uri->hosts[i].port != 0);
    }
    assert((uri->master[0] != '\0') == (uri->kind == HAPAX__REDIS_SENTINEL));
    assert(uri->db == 0 || uri->kind != HAPAX__REDIS_CLUSTER);
    assert(uri->login.user[0] == '\0' || uri->login.password[0] != '\0');
    assert(uri->prefix[0] != '\0' && strlen(uri->prefix) <= HAPAX__REDIS_PREFIX_MAX);
    assert(uri->wait <= HAPAX__REDIS_WAIT_MAX);
    assert(uri->timeout_ms >= 10 && uri->timeout_ms <= 60000);
    assert(uri->tls || (uri->tls_verify && !uri->tls_ca[0] && !uri->tls_cert[0]));
}

static void read_uri(const char *uri, const char *hidden)
{
    char text[HAPAX_TEXT_MAX] = "", shown[HAPAX_TEXT_MAX];
    struct hapax__redis_uri out;
    enum hapax_error error = hapax__redis_uri(&out, uri, text);

    hapax_store_shown(shown, uri);
    assert(strlen(shown) < sizeof(shown));
    if (error == HAPAX_ERR_NONE) {
        check(&out);
    } else {
        assert(error == HAPAX_ERR_INVALID || error == HAPAX_ERR_REFUSED);
        assert(text[0] != '\0' && memchr(text, '\0', sizeof(text)));
    }
    if (hidden)
        assert(!strstr(text, hidden) && !strstr(shown, hidden));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_uri(data, size, "redis://:" PASSWORD "@", read_uri);
    return 0;
}
