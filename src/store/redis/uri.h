/* SPDX-License-Identifier: Apache-2.0
 *
 * What a Redis URI says (docs/stores.md, "Redis"):
 *
 *   redis[s]://[USER[:PASSWORD]@]HOST[:PORT][/DB][?…]
 *   redis[s]+sentinel://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/MASTER[/DB][?…]
 *   redis[s]+cluster://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][?…]
 *
 * USER and PASSWORD are percent-decoded; an IPv6 host stands in [ ]. `redis://:PASSWORD@…` is
 * the default user. For Sentinel the hosts are the sentinels, and USER and PASSWORD are for the
 * Redis behind them.
 */
#ifndef HAPAX_STORE_REDIS_URI_H
#define HAPAX_STORE_REDIS_URI_H

#include <hapax/store.h>

#define HAPAX__REDIS_HOSTS_MAX  16u
#define HAPAX__REDIS_NAME_MAX   255u /* bytes of a host, a path, a user, a password, a master */
#define HAPAX__REDIS_PREFIX_MAX 64u
#define HAPAX__REDIS_WAIT_MAX   16u

enum hapax__redis_kind { HAPAX__REDIS_NODE, HAPAX__REDIS_SENTINEL, HAPAX__REDIS_CLUSTER };

struct hapax__redis_address {
    char host[HAPAX__REDIS_NAME_MAX + 1];
    uint16_t port;
};

struct hapax__redis_login {
    char user[HAPAX__REDIS_NAME_MAX + 1]; /* "": the default user */
    char password[HAPAX__REDIS_NAME_MAX + 1]; /* "": none, nothing is sent */
};

struct hapax__redis_uri {
    enum hapax__redis_kind kind;
    bool tls;
    bool tls_verify; /* `tls_verify=off`: encrypted, but anybody may be at the other end */
    char tls_ca[HAPAX__REDIS_NAME_MAX + 1]; /* `tls_ca=PATH`; "": the system's */
    char tls_cert[HAPAX__REDIS_NAME_MAX + 1]; /* `tls_cert=PATH` with `tls_key=PATH` */
    char tls_key[HAPAX__REDIS_NAME_MAX + 1];
    struct hapax__redis_login login; /* `password_file=PATH` in place of one in the URI */
    struct hapax__redis_login sentinel_login; /* `sentinel_user=`, `sentinel_password_file=PATH` */
    char master[HAPAX__REDIS_NAME_MAX + 1];
    uint32_t db;
    char prefix[HAPAX__REDIS_PREFIX_MAX + 1]; /* `prefix=`, of every key; "hapax:" */
    uint32_t wait; /* `wait=N`: replicas that must hold what counts; 0 */
    int64_t timeout_ms; /* `timeout=2s`: one run, connecting and WAIT included; 10ms to 1m */
    struct hapax__redis_address hosts[HAPAX__REDIS_HOSTS_MAX];
    size_t host_count; /* at least 1; NODE: 1 */
};

/* The first host that is not this machine. NULL: there is none. */
const struct hapax__redis_address *hapax__redis_far(const struct hapax__redis_uri *uri);

/* Whether the URI has what proves who we are: a password or a certificate. */
bool hapax__redis_login(const struct hapax__redis_uri *uri);

/* Reads a URI of one of the six schemes, and the files it names passwords by. INVALID, REFUSED
 * (a file others can read): text says what is wrong, and never shows a password. */
enum hapax_error hapax__redis_uri(struct hapax__redis_uri *out, const char *uri,
                                  char text[HAPAX_TEXT_MAX]);

#endif
