/* SPDX-License-Identifier: Apache-2.0
 *
 * The listener, and each request of a runtime. Each connection has a thread: a question for the
 * next event may wait for ever, and the response to an event may come by another connection.
 *
 * The invariants: an outcome is stored before its response leaves for the Runtime API. The runtime
 * gets the answer of the Runtime API. An event that could not be handed over goes to the next
 * question. A request that is not about an invocation passes through as it is.
 */
#include "proxy.h"

#include "connection.h"

#include "base/bytes.h"
#include "base/fail.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG         128
#define CONNECTIONS_MAX 1024u
#define STACK_SIZE      (512u << 10)
#define DEFAULT_ADDRESS "127.0.0.1:9009"
#define HEARD_S         1 /* for what a runtime that is gone has sent */

/* A post under way, on its thread's stack. An invocation has one at a time. */
struct ending {
    struct hapax_span id;
    struct ending *next;
};

struct hapax__proxy {
    struct hapax__function *function;
    struct hapax__upstream *upstream;
    int fd;
    char address[64];
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool ready;
    bool closing; /* nothing is begun or ended any more */
    unsigned inside; /* threads that begin or end something */
    unsigned connections;
    unsigned asking; /* threads that ask for the next event; at most `concurrency` */
    struct ending *ending;
    /* Handed to the runtime, and not ended or not posted yet. */
    struct hapax__invocation *running;
    /* Begun, but the connection broke before the runtime had the event. */
    struct hapax__invocation *left;
};

struct connection {
    struct hapax__runtime_connection c;
    struct hapax__proxy *proxy;
};

/* ---- lists of invocations ------------------------------------------------------------------ */

static void keep(struct hapax__proxy *proxy, struct hapax__invocation **list,
                 struct hapax__invocation *invocation)
{
    pthread_mutex_lock(&proxy->lock);
    invocation->next = *list;
    *list = invocation;
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->lock);
}

/* Takes the invocation of this id from a list; with an empty id, any. NULL: there is none. */
static struct hapax__invocation *fetch(struct hapax__proxy *proxy, struct hapax__invocation **list,
                                       struct hapax_span id)
{
    struct hapax__invocation *found;

    pthread_mutex_lock(&proxy->lock);
    while (*list && id.len > 0 && !hapax__same((*list)->id, id))
        list = &(*list)->next;
    found = *list;
    if (found)
        *list = found->next;
    pthread_mutex_unlock(&proxy->lock);
    return found;
}

/* False: nothing may begin or end any more. */
static bool enter(struct hapax__proxy *proxy)
{
    bool good;

    pthread_mutex_lock(&proxy->lock);
    good = !proxy->closing;
    proxy->inside += good;
    pthread_mutex_unlock(&proxy->lock);
    return good;
}

static void leave(struct hapax__proxy *proxy)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->inside--;
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->lock);
}

/* ---- the next event ------------------------------------------------------------------------ */

/* Waits until one more question is allowed. A runtime that closed a connection and asks by another
 * one must not have two events under way. */
static void begin_asking(struct hapax__proxy *proxy)
{
    pthread_mutex_lock(&proxy->lock);
    while (!proxy->ready || (proxy->asking >= proxy->function->lambda->concurrency &&
                             !proxy->left && !proxy->closing))
        pthread_cond_wait(&proxy->changed, &proxy->lock);
    proxy->asking++;
    pthread_mutex_unlock(&proxy->lock);
}

static void end_asking(struct hapax__proxy *proxy)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->asking--;
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->lock);
}

/* Posts a reply of our own. A failure is logged; the next event is asked for all the same. */
static void post(struct hapax__proxy *proxy, struct hapax_span id,
                 const struct hapax__lambda_reply *reply)
{
    struct hapax__got got;

    if (!hapax__upstream_post(&got, proxy->upstream, id, reply)) {
        hapax__say(proxy->function->lambda, "an answer could not be posted", errno);
        return;
    }
    if (got.head.status >= 300) {
        char line[64];

        (void)snprintf(line, sizeof(line), "an answer was refused with %d", got.head.status);
        hapax__say(proxy->function->lambda, line, 0);
    }
    hapax__got_release(&got);
}

/* Begins an invocation with an event. NULL: the event has been answered. */
static struct hapax__invocation *begin(struct hapax__proxy *proxy, struct hapax__got *got)
{
    struct hapax__invocation *invocation;
    struct hapax__lambda_reply reply;
    bool run = false;

    invocation = hapax__invocation_begin(proxy->function, got, &run, &reply);
    if (invocation && run)
        return invocation;
    if (!invocation &&
        !hapax__reply_error(&reply, "OutOfMemory", "There is no memory for this event", NULL)) {
        hapax__got_release(got);
        return NULL;
    }
    post(proxy,
         invocation ? invocation->id
                    : hapax__head_line(&got->head, "Lambda-Runtime-Aws-Request-Id"),
         &reply);
    hapax__reply_release(&reply);
    if (invocation)
        hapax__invocation_free(invocation);
    hapax__got_release(got);
    return NULL;
}

static bool hand_over(struct connection *c, struct hapax__invocation *invocation)
{
    struct hapax__proxy *proxy = c->proxy;
    struct hapax__invocation *back;
    bool good;

    /* Its response may come by another connection before this function returns. */
    hapax__invocation_pin(invocation);
    keep(proxy, &proxy->running, invocation);
    good = !hapax__wire_is_closed(&c->c.wire) &&
           hapax__respond(&c->c, 200, &invocation->event.head, hapax__invocation_event(invocation));
    back = good ? NULL : fetch(proxy, &proxy->running, invocation->id);
    hapax__invocation_free(invocation);
    if (back)
        keep(proxy, &proxy->left, back);
    return good;
}

static bool ask_next(struct connection *c)
{
    struct hapax__proxy *proxy = c->proxy;
    struct hapax__invocation *invocation;
    struct hapax__got got;
    bool good;

    while (!hapax__wire_is_closed(&c->c.wire)) {
        if (!enter(proxy))
            return false;
        invocation = fetch(proxy, &proxy->left, (struct hapax_span){NULL, 0});
        good = invocation && hand_over(c, invocation);
        leave(proxy);
        if (invocation)
            return good;
        hapax__function_tell(proxy->function);
        if (!hapax__upstream_next(&got, proxy->upstream, c->c.wire.fd))
            return errno == ECANCELED ? false : hapax__gone(&c->c);
        if (got.head.status != 200)
            return hapax__relay(&c->c, &got);
        if (!enter(proxy)) {
            hapax__got_release(&got);
            return false;
        }
        invocation = begin(proxy, &got);
        good = invocation && hand_over(c, invocation);
        leave(proxy);
        if (invocation)
            return good;
    }
    return false;
}

static bool serve_next(struct connection *c)
{
    bool good;

    begin_asking(c->proxy);
    good = ask_next(c);
    end_asking(c->proxy);
    return good;
}

/* ---- its end --------------------------------------------------------------------------------- */

static bool is_streaming(const struct hapax__head *head)
{
    struct hapax__line mode = {.name =
                                   hapax__head_line(head, "Lambda-Runtime-Function-Response-Mode")};

    return hapax__line_is(&mode, hapax_str("streaming"));
}

static bool serve_end(struct connection *c, struct hapax__invocation *invocation, bool error,
                      struct hapax_span body)
{
    struct hapax_span type = hapax__head_line(&c->c.head, "Lambda-Runtime-Function-Error-Type");
    bool streaming = !error && is_streaming(&c->c.head);
    bool again = invocation->ended;
    struct hapax__got got;

    if (streaming)
        error = hapax__stream_failed(&c->c, &type, &body);
    if (!again && !hapax__invocation_end(invocation, error, type, body, &invocation->reply)) {
        hapax__invocation_free(invocation);
        return hapax__respond_error(&c->c, 500, "OutOfMemory",
                                    "There is no memory for this response");
    }
    invocation->ended = true;
    if (again || streaming) /* the headers of this request may be about another body */
        invocation->reply.own = false;
    if (!hapax__post_end(&got, &c->c, invocation, &invocation->reply)) {
        keep(c->proxy, &c->proxy->running, invocation);
        return hapax__gone(&c->c);
    }
    hapax__invocation_free(invocation);
    return hapax__relay(&c->c, &got);
}

/* Takes a response or an error once all of it has come: a runtime that breaks off may post again.
 * If the invocation is not known here, the Runtime API says what is wrong. */
static bool serve_whole(struct connection *c, struct hapax_span id, bool error)
{
    struct hapax__invocation *invocation;
    uint8_t *body;
    size_t len;
    bool good;

    if (!hapax__read_body(&c->c, &body, &len))
        return false;
    invocation = fetch(c->proxy, &c->proxy->running, id);
    if (invocation)
        good = serve_end(c, invocation, error, (struct hapax_span){body, len});
    else
        good = hapax__pass(&c->c, (struct hapax_span){body, len});
    free(body);
    return good;
}

static bool serve_stream(struct connection *c, struct hapax_span id)
{
    struct hapax__invocation *invocation = fetch(c->proxy, &c->proxy->running, id);
    bool good, over;

    /* The report of a batch has to be read before any of the response is passed on. */
    if (invocation && !invocation->batch && !invocation->ended) {
        good = hapax__serve_stream(&c->c, invocation, &over);
        if (!over)
            keep(c->proxy, &c->proxy->running, invocation);
        return good;
    }
    if (invocation)
        keep(c->proxy, &c->proxy->running, invocation);
    return serve_whole(c, id, false);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Whether a target is …/invocation/ID/WHAT; gives the ID. */
static bool is_end(struct hapax_span *id, struct hapax_span target, const char *what)
{
    static const char before[] = HAPAX__RUNTIME_PATH "invocation/";
    size_t first = strlen(before), last = strlen(what);

    if (target.len <= first + last || memcmp(target.ptr, before, first) != 0 ||
        memcmp(target.ptr + target.len - last, what, last) != 0)
        return false;
    *id = (struct hapax_span){target.ptr + first, target.len - first - last};
    return !memchr(id->ptr, '/', id->len);
}

static bool is_ending(const struct hapax__proxy *proxy, struct hapax_span id)
{
    for (const struct ending *at = proxy->ending; at; at = at->next)
        if (hapax__same(at->id, id))
            return true;
    return false;
}

/* A runtime that gave up waiting may post again while its first post is being stored. The second
 * must not overtake the first. */
static void begin_ending(struct hapax__proxy *proxy, struct ending *own)
{
    pthread_mutex_lock(&proxy->lock);
    while (is_ending(proxy, own->id))
        pthread_cond_wait(&proxy->changed, &proxy->lock);
    own->next = proxy->ending;
    proxy->ending = own;
    pthread_mutex_unlock(&proxy->lock);
}

static void end_ending(struct hapax__proxy *proxy, struct ending *own)
{
    struct ending **at = &proxy->ending;

    pthread_mutex_lock(&proxy->lock);
    while (*at != own)
        at = &(*at)->next;
    *at = own->next;
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->lock);
}

static bool serve_post(struct connection *c, struct hapax_span id, bool error)
{
    struct ending own = {.id = id};
    bool good;

    if (!enter(c->proxy))
        return false;
    begin_ending(c->proxy, &own);
    good = !error && is_streaming(&c->c.head) ? serve_stream(c, id) : serve_whole(c, id, error);
    end_ending(c->proxy, &own);
    leave(c->proxy);
    return good;
}

static bool serve_other(struct connection *c)
{
    uint8_t *body;
    size_t len;
    bool good;

    if (!hapax__read_body(&c->c, &body, &len))
        return false;
    if (hapax__same(c->c.head.method, hapax_str("GET")) &&
        hapax__same(hapax__path_of(c->c.head.target),
                    hapax_str(HAPAX__RUNTIME_PATH "invocation/next")))
        good = serve_next(c);
    else
        good = hapax__pass(&c->c, (struct hapax_span){body, len});
    free(body);
    return good;
}

/* False: the connection has to be closed. */
static bool serve(struct connection *c)
{
    /* The Runtime API ignores a query, too. */
    struct hapax_span id, path = hapax__path_of(c->c.head.target);
    bool posts = hapax__same(c->c.head.method, hapax_str("POST"));

    if (posts && is_end(&id, path, "/response"))
        return serve_post(c, id, false);
    if (posts && is_end(&id, path, "/error"))
        return serve_post(c, id, true);
    return serve_other(c);
}

static void count_out(struct hapax__proxy *proxy)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->connections--;
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->lock);
}

static void *serve_connection(void *arg)
{
    struct connection *c = arg;
    struct hapax__proxy *proxy = c->proxy;
    bool goes_on = true;

    while (goes_on && hapax__wire_request(&c->c.wire, &c->c.head) == HAPAX__WIRE_GOOD) {
        goes_on = serve(c) && c->c.head.keep_alive && c->c.wire.framing == HAPAX__BODY_OVER;
        hapax__head_release(&c->c.head);
    }
    hapax__wire_close(&c->c.wire);
    free(c);
    count_out(proxy);
    return NULL;
}

/* ---- the listener ---------------------------------------------------------------------------- */

static bool start(void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    pthread_t thread;
    bool good;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_SIZE);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    good = pthread_create(&thread, &attr, run, arg) == 0;
    pthread_attr_destroy(&attr);
    return good;
}

static bool count_in(struct hapax__proxy *proxy)
{
    bool good;

    pthread_mutex_lock(&proxy->lock);
    good = proxy->connections < CONNECTIONS_MAX;
    proxy->connections += good;
    pthread_mutex_unlock(&proxy->lock);
    return good;
}

static void take_in(struct hapax__proxy *proxy, int fd)
{
    struct connection *c;

    if (!count_in(proxy)) {
        close(fd);
        return;
    }
    c = calloc(1, sizeof(*c));
    if (c) {
        c->proxy = proxy;
        c->c.lambda = proxy->function->lambda;
        c->c.upstream = proxy->upstream;
        if (hapax__wire_open(&c->c.wire, fd) && start(serve_connection, c))
            return;
        hapax__wire_close(&c->c.wire);
        free(c);
    } else {
        close(fd);
    }
    count_out(proxy);
}

static void *accept_all(void *arg)
{
    struct hapax__proxy *proxy = arg;

    for (;;) {
        int fd = accept4(proxy->fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd >= 0)
            take_in(proxy, fd);
        else if (errno == EBADF || errno == EINVAL)
            return NULL;
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
            usleep(10000);
    }
}

bool hapax__proxy_start(struct hapax__proxy *proxy)
{
    return start(accept_all, proxy);
}

void hapax__proxy_ready(struct hapax__proxy *proxy)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->ready = true;
    pthread_cond_broadcast(&proxy->changed);
    pthread_mutex_unlock(&proxy->lock);
}

/* Waits until there are none, with the lock held. False: there still are. */
static bool await_none(struct hapax__proxy *proxy, const unsigned *count, time_t most_s)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += most_s;
    while (*count > 0 && pthread_cond_timedwait(&proxy->changed, &proxy->lock, &until) != ETIMEDOUT)
        continue;
    return *count == 0;
}

/* The runtime's connections end by themselves, once what it sent last is read. Its children may
 * have inherited some, which stay. */
bool hapax__proxy_lost(struct hapax__proxy *proxy, int64_t wait_ms)
{
    struct hapax__invocation *invocation;
    bool over;

    pthread_mutex_lock(&proxy->lock);
    (void)await_none(proxy, &proxy->connections, HEARD_S);
    proxy->closing = true;
    over = await_none(proxy, &proxy->inside, (time_t)(wait_ms / 1000) + 1);
    pthread_mutex_unlock(&proxy->lock);
    while ((invocation = fetch(proxy, &proxy->running, (struct hapax_span){NULL, 0})))
        hapax__invocation_lost(invocation);
    while ((invocation = fetch(proxy, &proxy->left, (struct hapax_span){NULL, 0})))
        hapax__invocation_not_run(invocation);
    return over;
}

const char *hapax__proxy_address(const struct hapax__proxy *proxy)
{
    return proxy->address;
}

/* Reads HOST:PORT. The host must be a loopback address: any process that reaches the listener can
 * answer for the function. */
static bool read_address(struct sockaddr_in *at, const char *address)
{
    const char *colon = strrchr(address, ':');
    char host[32], *end;
    unsigned long port;

    if (!colon || (size_t)(colon - address) >= sizeof(host) || colon[1] < '0' || colon[1] > '9')
        return false;
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    port = strtoul(colon + 1, &end, 10);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (port > 65535 || *end != '\0')
        return false;
    if (strcmp(host, "localhost") == 0)
        (void)snprintf(host, sizeof(host), "127.0.0.1");
    return inet_pton(AF_INET, host, &at->sin_addr) == 1 && ntohl(at->sin_addr.s_addr) >> 24 == 127;
}

static int listen_at(struct sockaddr_in *at)
{
    static const int on = 1;
    socklen_t len = sizeof(*at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)at, sizeof(*at)) == 0 && listen(fd, BACKLOG) == 0 &&
        getsockname(fd, (struct sockaddr *)at, &len) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

enum hapax_error hapax__proxy_open(struct hapax__proxy **out, struct hapax__function *function,
                                   struct hapax__upstream *upstream, const char *address,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__proxy *proxy;
    struct sockaddr_in at;
    char host[INET_ADDRSTRLEN];
    int fd;

    *out = NULL;
    if (!read_address(&at, address ? address : DEFAULT_ADDRESS))
        return hapax__fail(
            text, HAPAX_ERR_INVALID,
            "listen \"%.100s\" is not 127.0.0.1:PORT: only the function may reach it", address);
    fd = listen_at(&at);
    if (fd < 0 && errno == EADDRINUSE && !address) {
        at.sin_port = 0;
        fd = listen_at(&at);
    }
    if (fd < 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "listen: cannot listen on \"%.100s\": %s",
                           address ? address : DEFAULT_ADDRESS, strerror(errno));
    proxy = calloc(1, sizeof(*proxy));
    if (!proxy) {
        close(fd);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    }
    proxy->function = function;
    proxy->upstream = upstream;
    proxy->fd = fd;
    (void)inet_ntop(AF_INET, &at.sin_addr, host, sizeof(host));
    (void)snprintf(proxy->address, sizeof(proxy->address), "%s:%u", host, ntohs(at.sin_port));
    pthread_mutex_init(&proxy->lock, NULL);
    pthread_cond_init(&proxy->changed, NULL);
    *out = proxy;
    return HAPAX_ERR_NONE;
}
