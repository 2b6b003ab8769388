/* SPDX-License-Identifier: Apache-2.0
 *
 * librabbitmq's headers. Since 0.12 they stand in a folder, and the old names warn.
 */
#ifndef HAPAX_BROKER_AMQP_LIBRARY_H
#define HAPAX_BROKER_AMQP_LIBRARY_H

#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/ssl_socket.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#endif

#endif
