/* SPDX-License-Identifier: Apache-2.0
 *
 * AMQP URIs (docs/consume-rabbitmq.md):
 *
 *   amqp[s]://[USER[:PASSWORD]@]HOST[:PORT][/VHOST][?queue=QUEUE…]
 *
 * USER, PASSWORD and VHOST are percent-decoded; an empty or missing VHOST is "/". An IPv6 host
 * stands in [ ]. A user or password that the URI does not have comes from the environment:
 * HAPAX_AMQP_USER and HAPAX_AMQP_PASSWORD. Without either, both are guest, which RabbitMQ takes on
 * its own machine.
 */
#ifndef HAPAX_BROKER_AMQP_URI_H
#define HAPAX_BROKER_AMQP_URI_H

#include <hapax/hapax.h>

#define HAPAX__AMQP_NAME_MAX 255u /* bytes of a host, a path, a user, a password, a vhost */
/* Bytes of `queue`; NAME.retry.131072 must be a name, too. */
#define HAPAX__AMQP_QUEUE_MAX 240u

struct hapax__amqp_uri {
    bool tls;
    /* `tls_verify=off`: encrypted, but anybody may be at the other end. */
    bool tls_verify;
    char tls_ca[HAPAX__AMQP_NAME_MAX + 1]; /* `tls_ca=PATH`; "": the system's */
    char tls_cert[HAPAX__AMQP_NAME_MAX + 1]; /* `tls_cert=PATH` with `tls_key=PATH` */
    char tls_key[HAPAX__AMQP_NAME_MAX + 1];
    char host[HAPAX__AMQP_NAME_MAX + 1];
    uint16_t port; /* 5672; 5671 with TLS */
    char user[HAPAX__AMQP_NAME_MAX + 1];
    char password[HAPAX__AMQP_NAME_MAX + 1];
    char vhost[HAPAX__AMQP_NAME_MAX + 1];
    char queue[HAPAX__AMQP_QUEUE_MAX + 1]; /* `queue=`; "": none is named */
    /* `type=classic` or `quorum` (the default): the type of queues that are made. */
    bool classic;
    /* `declare=on`: makes the queue if it does not exist; off by default. */
    bool declare;
    /* `prefetch=N`, 1 to 65535, less than in_hand_max. 0: not given. */
    uint16_t prefetch;
    /* `heartbeat=10s`, 1s to 10m. A broker silent for two heartbeats is lost. */
    uint16_t heartbeat_s;
    int64_t timeout_ms; /* `timeout=5s`: connecting and logging in; 100ms to 1m */
};

/* Reads a URI, and the environment. INVALID: text says what is wrong, and shows no password. */
enum hapax_error hapax__amqp_uri(struct hapax__amqp_uri *out, const char *uri,
                                 char text[HAPAX_TEXT_MAX]);

#endif
