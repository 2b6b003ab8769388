/* SPDX-License-Identifier: Apache-2.0
 *
 * What an AMQP URI says (docs/consume.md, "RabbitMQ"):
 *
 *   amqp[s]://[USER[:PASSWORD]@]HOST[:PORT][/VHOST][?queue=QUEUE…]
 *
 * USER, PASSWORD and VHOST are percent-decoded; no VHOST, or an empty one, is "/". An IPv6 host stands in [ ]. What
 * of user and password is not in the URI comes from the environment, HAPAX_AMQP_USER and HAPAX_AMQP_PASSWORD;
 * where there is neither, both are guest, which RabbitMQ takes on its own machine.
 */
#ifndef HAPAX_BROKER_AMQP_URI_H
#define HAPAX_BROKER_AMQP_URI_H

#include <hapax/hapax.h>

#define HAPAX__AMQP_NAME_MAX  255u /* bytes of a host, a path, a user, a password, a vhost */
#define HAPAX__AMQP_QUEUE_MAX 240u /* of `queue`: NAME.retry.131072 is a name, too */

struct hapax__amqp_uri {
    bool tls;
    bool tls_verify; /* `tls_verify=off`: encrypted, but anybody may be at the other end */
    char tls_ca[HAPAX__AMQP_NAME_MAX + 1]; /* `tls_ca=PATH`; "": the system's */
    char tls_cert[HAPAX__AMQP_NAME_MAX + 1]; /* `tls_cert=PATH` with `tls_key=PATH` */
    char tls_key[HAPAX__AMQP_NAME_MAX + 1];
    char host[HAPAX__AMQP_NAME_MAX + 1];
    uint16_t port; /* 5672; 5671 with TLS */
    char user[HAPAX__AMQP_NAME_MAX + 1];
    char password[HAPAX__AMQP_NAME_MAX + 1];
    char vhost[HAPAX__AMQP_NAME_MAX + 1];
    char queue[HAPAX__AMQP_QUEUE_MAX + 1]; /* `queue=`; "": none is named */
    bool classic; /* `type=classic` or `quorum` (the default): of the queues that are made */
    bool declare; /* `declare=on`: make the queue where it is not there; off */
    uint16_t prefetch; /* `prefetch=N`, 1 to 65535: less than in_hand_max; 0: not said */
    uint16_t heartbeat_s; /* `heartbeat=10s`: 1s to 10m. A broker silent for two of them is lost */
    int64_t timeout_ms; /* `timeout=5s`: connecting and logging in; 100ms to 1m */
};

/* Reads a URI, and the environment. INVALID: text says what is wrong, and never shows a password. */
enum hapax_error hapax__amqp_uri(struct hapax__amqp_uri *out, const char *uri,
                                 char text[HAPAX_TEXT_MAX]);

#endif
