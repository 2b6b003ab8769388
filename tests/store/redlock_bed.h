/* SPDX-License-Identifier: Apache-2.0
 *
 * Redis processes for the lock's tests: each can be killed, stopped, started again empty, and asked
 * behind the lock's back. All end with the process that started them. /
 */
#ifndef HAPAX_TESTS_REDLOCK_BED_H
#define HAPAX_TESTS_REDLOCK_BED_H

#include "store/redlock/redlock.h"

#include <hiredis/hiredis.h>
#include <sys/types.h>

#define BED_NODES 5u

struct bed_node {
    pid_t pid; /* 0: it does not run */
    int port;
    char uri[64];
};

extern struct bed_node bed_nodes[BED_NODES];

/* Starts all nodes, those that do not run; waits until each answers. */
void bed_start(void);
void bed_end(void);

void bed_kill(size_t i);
void bed_stop(size_t i); /* SIGSTOP: connections stay open, and nobody answers */
void bed_cont(size_t i);

/* One command on a connection of its own; the reply is yours. */
redisReply *bed_ask(size_t i, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sends a command and does not wait. Free the context. */
redisContext *bed_send(size_t i, const char *command);

/* Whether the node has value under the lock's name; NULL: whether it has nothing. */
bool bed_has(size_t i, const char *name, const char *value);

/* How many scripts the node has run since it was started. */
long long bed_scripts(size_t i);

/* A lock over the first n nodes. */
struct hapax__redlock *bed_lock(size_t n);

struct hapax__redlock_item bed_item(const char *name, const char *value, int64_t ttl_ms);

#endif
