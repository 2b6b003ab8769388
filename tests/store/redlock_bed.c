/* SPDX-License-Identifier: Apache-2.0 */
#include "redlock_bed.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_US INT64_C(60000000)
/* Below what the system gives to clients, so that a node can be started again on its own port. */
#define PORT_FIRST 10000
#define BLOCK_SIZE 32
#define BLOCKS     500

struct bed_node bed_nodes[BED_NODES];

/* Reserves a block of ports by an abstract socket name, as tests/servers/process.py does, so
 * that no other test gets them. */
static int own_block(void)
{
    static const struct sockaddr_un nameless = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    for (unsigned tried = 0; tried < BLOCKS; tried++) {
        int first = PORT_FIRST + (int)(((unsigned)getpid() * 97u + tried) % BLOCKS) * BLOCK_SIZE;
        struct sockaddr_un holder = nameless;
        int len = snprintf(holder.sun_path + 1, sizeof(holder.sun_path) - 1, "hapax-test-ports-%d",
                           first);

        if (bind(fd, (struct sockaddr *)&holder,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)) == 0)
            return first; /* until this process ends */
    }
    fail_msg("every block of ports is held");
    return 0;
}

static int free_port(void)
{
    static int block, given;

    if (block == 0)
        block = own_block();
    for (;;) {
        struct sockaddr_in address = {.sin_family = AF_INET};
        int port = block + given++ % BLOCK_SIZE;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int taken;

        address.sin_port = htons((uint16_t)port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        taken = bind(fd, (struct sockaddr *)&address, sizeof(address));
        close(fd);
        if (taken == 0)
            return port;
    }
}

static void run_server(int port)
{
    char number[16];
    int null = open("/dev/null", O_RDWR);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    (void)snprintf(number, sizeof(number), "%d", port);
    execlp("redis-server", "redis-server", "--port", number, "--bind", "127.0.0.1", "--save", "",
           "--appendonly", "no", "--dir", "/tmp", "--enable-debug-command", "yes", (char *)NULL);
    _exit(127);
}

static redisContext *connect_to(size_t i)
{
    struct timeval patience = {60, 0};
    redisContext *context = redisConnectWithTimeout("127.0.0.1", bed_nodes[i].port, patience);

    if (context && !context->err)
        redisSetTimeout(context, patience);
    return context;
}

static bool answers(size_t i)
{
    redisContext *context = connect_to(i);
    redisReply *reply = context && !context->err ? redisCommand(context, "PING") : NULL;
    bool good = reply && reply->type == REDIS_REPLY_STATUS;

    if (reply)
        freeReplyObject(reply);
    if (context)
        redisFree(context);
    return good;
}

/* False: it ended, as one whose port was taken meanwhile does. */
static bool wait_ready(size_t i)
{
    int64_t deadline_us = hapax__monotonic_us() + PATIENCE_US;

    while (!answers(i)) {
        assert_true(hapax__monotonic_us() < deadline_us);
        if (waitpid(bed_nodes[i].pid, NULL, WNOHANG) != 0) {
            bed_nodes[i].pid = 0;
            return false;
        }
        usleep(1000);
    }
    return true;
}

static void start_node(size_t i)
{
    struct bed_node *node = &bed_nodes[i];

    do {
        if (node->port == 0)
            node->port = free_port();
        (void)snprintf(node->uri, sizeof(node->uri), "redis://127.0.0.1:%d", node->port);
        node->pid = fork();
        assert_true(node->pid >= 0);
        if (node->pid == 0)
            run_server(node->port);
        if (!wait_ready(i))
            node->port = 0;
    } while (node->pid == 0);
}

void bed_start(void)
{
    for (size_t i = 0; i < BED_NODES; i++)
        if (bed_nodes[i].pid == 0)
            start_node(i);
}

void bed_end(void)
{
    for (size_t i = 0; i < BED_NODES; i++)
        if (bed_nodes[i].pid > 0)
            bed_kill(i);
}

void bed_kill(size_t i)
{
    assert_true(bed_nodes[i].pid > 0); /* 0 would be this process and all its group */
    kill(bed_nodes[i].pid, SIGKILL);
    waitpid(bed_nodes[i].pid, NULL, 0);
    bed_nodes[i].pid = 0;
}

void bed_stop(size_t i)
{
    int status;

    assert_true(bed_nodes[i].pid > 0);
    kill(bed_nodes[i].pid, SIGSTOP);
    assert_int_equal(waitpid(bed_nodes[i].pid, &status, WUNTRACED), bed_nodes[i].pid);
    assert_true(WIFSTOPPED(status));
}

void bed_cont(size_t i)
{
    assert_true(bed_nodes[i].pid > 0);
    kill(bed_nodes[i].pid, SIGCONT);
}

redisReply *bed_ask(size_t i, const char *format, ...)
{
    redisContext *context = connect_to(i);
    redisReply *reply;
    va_list args;

    assert_non_null(context);
    assert_int_equal(context->err, 0);
    va_start(args, format);
    reply = redisvCommand(context, format, args);
    va_end(args);
    assert_non_null(reply);
    redisFree(context);
    return reply;
}

redisContext *bed_send(size_t i, const char *command)
{
    redisContext *context = connect_to(i);
    int done = 0;

    assert_non_null(context);
    assert_int_equal(redisAppendCommand(context, command), REDIS_OK);
    while (!done)
        assert_int_equal(redisBufferWrite(context, &done), REDIS_OK);
    return context;
}

bool bed_has(size_t i, const char *name, const char *value)
{
    redisReply *reply = bed_ask(i, "GET hapax:%s", name);
    bool has = value ? reply->type == REDIS_REPLY_STRING && strcmp(reply->str, value) == 0
                     : reply->type == REDIS_REPLY_NIL;

    freeReplyObject(reply);
    return has;
}

long long bed_scripts(size_t i)
{
    redisReply *reply = bed_ask(i, "INFO commandstats");
    const char *at = strstr(reply->str, "cmdstat_eval:calls=");
    long long count = at ? strtoll(at + strlen("cmdstat_eval:calls="), NULL, 10) : 0;

    freeReplyObject(reply);
    return count;
}

struct hapax__redlock *bed_lock(size_t n)
{
    const char *uris[BED_NODES];
    char text[HAPAX_TEXT_MAX];
    struct hapax__redlock *lock;

    for (size_t i = 0; i < n; i++)
        uris[i] = bed_nodes[i].uri;
    assert_int_equal(hapax__redlock_open(&lock, uris, n, text), HAPAX_ERR_NONE);
    return lock;
}

struct hapax__redlock_item bed_item(const char *name, const char *value, int64_t ttl_ms)
{
    return (struct hapax__redlock_item){
        .name = hapax_str(name), .value = hapax_str(value), .ttl_ms = ttl_ms};
}
