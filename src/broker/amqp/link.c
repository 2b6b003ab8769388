/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to RabbitMQ. librabbitmq codes the frames and logs in. All its calls that wait are
 * avoided: frames are read one by one as they come, methods are sent without waiting for their
 * answers, and only what the socket takes at once is written. So neither a slow body nor a broker
 * that stopped reading blocks the loop, and heartbeats go on as long as pump() is called.
 *
 * The invariant: `state` is NULL exactly while there is no connection. Where a connection is lost,
 * `text` and `next_us` are set.
 *
 * Rejected: amqp_consume_message() and amqp_basic_publish(), which wait for a whole message to come
 * or go; except for the login, the library's calls that wait for a reply (such as
 * amqp_queue_declare()).
 */
#include "link.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/tls.h"

#include <assert.h>
#include <errno.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#define PAUSE_MIN_US 100000
#define PAUSE_MAX_US 15000000
#define CHANNELS_MAX 8
/* In ms, per second of heartbeat: sent bytes that stay unconfirmed for so long end the
 * connection. */
#define USER_TIMEOUTS 3000

void hapax__amqp_link_init(struct hapax__amqp_link *link, const struct hapax__amqp_uri *uri,
                           char text[HAPAX_TEXT_MAX])
{
    memset(link, 0, sizeof(*link));
    link->uri = uri;
    link->text = text;
}

static void drop(struct hapax__amqp_link *link)
{
    if (link->state)
        (void)amqp_destroy_connection(link->state);
    link->state = NULL;
    link->blocked = false;
}

void hapax__amqp_link_release(struct hapax__amqp_link *link)
{
    amqp_connection_close_t bye = {.reply_code = AMQP_REPLY_SUCCESS,
                                   .reply_text = amqp_cstring_bytes("bye")};

    if (link->state && hapax__amqp_link_room(link) > 0)
        (void)amqp_send_method(link->state, 0, AMQP_CONNECTION_CLOSE_METHOD, &bye);
    drop(link);
}

/* Half of the pause to all of it, so that a thousand consumers do not come back at once. */
static int64_t pause_us(uint32_t tries)
{
    int64_t us = tries < 8 ? (int64_t)PAUSE_MIN_US << tries : PAUSE_MAX_US;
    uint32_t random;

    if (us > PAUSE_MAX_US)
        us = PAUSE_MAX_US;
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
        random = 0;
    return us / 2 + random % (us / 2);
}

void hapax__amqp_link_works(struct hapax__amqp_link *link)
{
    link->tries = 0;
}

void hapax__amqp_link_lose(struct hapax__amqp_link *link, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(link->text, HAPAX_TEXT_MAX, format, args);
    va_end(args);
    drop(link);
    link->next_us = hapax__monotonic_us() + pause_us(link->tries++);
}

void hapax__amqp_text(char *out, size_t size, amqp_bytes_t bytes)
{
    size_t len = bytes.len < size - 1 ? bytes.len : size - 1;

    for (size_t i = 0; i < len; i++) {
        char c = ((const char *)bytes.bytes)[i];

        out[i] = c >= ' ' && c <= '~' ? c : '?';
    }
    out[len] = '\0';
}

/* ---- TLS ------------------------------------------------------------------------------- */

static enum hapax_error set_tls(SSL_CTX *context, const struct hapax__amqp_uri *uri,
                                char text[HAPAX_TEXT_MAX])
{
    const struct hapax__tls_files files = {uri->tls_ca, uri->tls_cert, uri->tls_key,
                                           uri->tls_verify};
    X509_VERIFY_PARAM *param = SSL_CTX_get0_param(context);
    enum hapax_error error = hapax__tls_use(context, &files, text);

    if (error != HAPAX_ERR_NONE || !uri->tls_verify)
        return error;
    if ((hapax__tls_is_address(uri->host) ? X509_VERIFY_PARAM_set1_ip_asc(param, uri->host)
                                          : X509_VERIFY_PARAM_set1_host(param, uri->host, 0)) == 1)
        return HAPAX_ERR_NONE;
    return hapax__fail(text, HAPAX_ERR_INVALID, "cannot look for the host in certificates");
}

/* Makes a socket, which the state owns. NULL: text says why; text is empty if memory ran out. */
static amqp_socket_t *make_socket(struct hapax__amqp_link *link, char text[HAPAX_TEXT_MAX])
{
    amqp_socket_t *socket;

    text[0] = '\0';
    if (!link->uri->tls)
        return amqp_tcp_socket_new(link->state);
    socket = amqp_ssl_socket_new(link->state);
    if (!socket)
        return NULL;
    /* The library cannot check certificates of IP addresses. OpenSSL can, and checks names as
     * well. */
    amqp_ssl_socket_set_verify_hostname(socket, false);
    amqp_ssl_socket_set_verify_peer(socket, link->uri->tls_verify);
    if (set_tls(amqp_ssl_socket_get_context(socket), link->uri, text) != HAPAX_ERR_NONE)
        return NULL;
    return socket;
}

/* ---- connecting ------------------------------------------------------------------------ */

static enum hapax_error refused(struct hapax__amqp_link *link)
{
    return link->served ? HAPAX_ERR_UNAVAILABLE : HAPAX_ERR_REFUSED;
}

static enum hapax_error open_socket(struct hapax__amqp_link *link, const struct timeval *timeout)
{
    const struct hapax__amqp_uri *uri = link->uri;
    char text[HAPAX_TEXT_MAX];
    amqp_socket_t *socket = make_socket(link, text);
    int status;

    if (text[0] != '\0') {
        hapax__amqp_link_lose(link, "%s", text);
        return refused(link);
    }
    if (!socket) {
        hapax__amqp_link_lose(link, "cannot connect to RabbitMQ: out of memory");
        return HAPAX_ERR_UNAVAILABLE;
    }
    ERR_clear_error();
    status = amqp_socket_open_noblock(socket, uri->host, uri->port, timeout);
    if (status == AMQP_STATUS_OK)
        return HAPAX_ERR_NONE;
    if (status == AMQP_STATUS_SSL_CONNECTION_FAILED && ERR_peek_error() != 0) {
        bool judged = ERR_GET_REASON(ERR_peek_error()) == SSL_R_CERTIFICATE_VERIFY_FAILED;

        hapax__amqp_link_lose(link, "cannot connect to RabbitMQ at %.80s:%u: TLS failed: %.100s",
                              uri->host, uri->port, hapax__tls_reason(ERR_peek_error()));
        return judged ? refused(link) : HAPAX_ERR_UNAVAILABLE;
    }
    hapax__amqp_link_lose(link, "cannot connect to RabbitMQ at %.80s:%u: %.100s", uri->host,
                          uri->port, amqp_error_string2(status));
    return HAPAX_ERR_UNAVAILABLE;
}

/* Judges the connection.close that answers the login. */
static enum hapax_error judge_close(struct hapax__amqp_link *link, const amqp_method_t *method)
{
    const amqp_connection_close_t *close = method->decoded;
    char why[160];
    int code;

    if (method->id != AMQP_CONNECTION_CLOSE_METHOD) {
        hapax__amqp_link_lose(link, "RabbitMQ refused the login");
        return HAPAX_ERR_UNAVAILABLE;
    }
    code = close->reply_code;
    hapax__amqp_text(why, sizeof(why), close->reply_text);
    hapax__amqp_link_lose(link, "RabbitMQ refused the login: %s", why);
    return code == AMQP_ACCESS_REFUSED || code == AMQP_NOT_ALLOWED ? refused(link)
                                                                   : HAPAX_ERR_UNAVAILABLE;
}

static enum hapax_error log_in(struct hapax__amqp_link *link)
{
    amqp_table_entry_t can[2] = {{.key = amqp_cstring_bytes("consumer_cancel_notify"),
                                  .value = {.kind = AMQP_FIELD_KIND_BOOLEAN}},
                                 {.key = amqp_cstring_bytes("connection.blocked"),
                                  .value = {.kind = AMQP_FIELD_KIND_BOOLEAN}}};
    amqp_table_entry_t about[2] = {
        {.key = amqp_cstring_bytes("connection_name"), .value = {.kind = AMQP_FIELD_KIND_UTF8}},
        {.key = amqp_cstring_bytes("capabilities"), .value = {.kind = AMQP_FIELD_KIND_TABLE}}};
    amqp_table_t properties = {.num_entries = 2, .entries = about};
    amqp_rpc_reply_t reply;

    can[0].value.value.boolean = can[1].value.value.boolean = true;
    about[0].value.value.bytes = amqp_cstring_bytes("hapax");
    about[1].value.value.table = (amqp_table_t){.num_entries = 2, .entries = can};
    reply = amqp_login_with_properties(
        link->state, link->uri->vhost, CHANNELS_MAX, HAPAX__AMQP_FRAME_MAX, link->uri->heartbeat_s,
        &properties, AMQP_SASL_METHOD_PLAIN, link->uri->user, link->uri->password);
    if (reply.reply_type == AMQP_RESPONSE_NORMAL)
        return HAPAX_ERR_NONE;
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION)
        return judge_close(link, &reply.reply);
    hapax__amqp_link_lose(link, "cannot log in to RabbitMQ at %.80s:%u: %.100s", link->uri->host,
                          link->uri->port, amqp_error_string2(reply.library_error));
    return HAPAX_ERR_UNAVAILABLE;
}

/* Limits how long sent bytes may stay unconfirmed, so that a write does not wait for a network
 * whose other end vanished. While the broker has an alarm there is no limit: the broker leaves what
 * was sent in its socket until the alarm is over, and its heartbeats show that it lives. */
static void limit_writes(struct hapax__amqp_link *link)
{
    int fd = amqp_get_sockfd(link->state);
    unsigned ms = link->blocked ? 0 : link->uri->heartbeat_s * (unsigned)USER_TIMEOUTS;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

static bool is_4_or_later(amqp_connection_state_t state)
{
    const amqp_table_t *properties = amqp_get_server_properties(state);

    for (int i = 0; i < properties->num_entries; i++) {
        const amqp_table_entry_t *entry = &properties->entries[i];
        char version[16];

        if (entry->key.len != 7 || memcmp(entry->key.bytes, "version", 7) != 0 ||
            entry->value.kind != AMQP_FIELD_KIND_UTF8)
            continue;
        hapax__amqp_text(version, sizeof(version), entry->value.value.bytes);
        return strtol(version, NULL, 10) >= 4;
    }
    return false;
}

enum hapax_error hapax__amqp_link_connect(struct hapax__amqp_link *link)
{
    struct timeval timeout = {.tv_sec = link->uri->timeout_ms / 1000,
                              .tv_usec = link->uri->timeout_ms % 1000 * 1000};
    enum hapax_error error;

    assert(!link->state);
    link->state = amqp_new_connection();
    if (!link->state) {
        hapax__amqp_link_lose(link, "cannot connect to RabbitMQ: out of memory");
        return HAPAX_ERR_UNAVAILABLE;
    }
    (void)amqp_set_handshake_timeout(link->state, &timeout);
    error = open_socket(link, &timeout);
    if (error == HAPAX_ERR_NONE)
        error = log_in(link);
    if (error != HAPAX_ERR_NONE)
        return error;
    limit_writes(link);
    link->served = true;
    link->text[0] = '\0';
    link->minus_one = is_4_or_later(link->state);
    return HAPAX_ERR_NONE;
}

/* ---- frames ---------------------------------------------------------------------------- */

/* False: the connection is over. */
static bool take_control(struct hapax__amqp_link *link, const amqp_method_t *method)
{
    if (method->id == AMQP_CONNECTION_BLOCKED_METHOD ||
        method->id == AMQP_CONNECTION_UNBLOCKED_METHOD) {
        link->blocked = method->id == AMQP_CONNECTION_BLOCKED_METHOD;
        (void)snprintf(link->text, HAPAX_TEXT_MAX, "%s",
                       link->blocked ? "RabbitMQ has an alarm and takes no letters" : "");
        link->turned_us = hapax__monotonic_us();
        limit_writes(link);
    } else if (method->id == AMQP_CONNECTION_CLOSE_METHOD) {
        const amqp_connection_close_t *close = method->decoded;
        amqp_connection_close_ok_t ok = {0};
        char why[160];

        hapax__amqp_text(why, sizeof(why), close->reply_text);
        (void)amqp_send_method(link->state, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &ok);
        hapax__amqp_link_lose(link, "RabbitMQ closed the connection: %s", why);
        return false;
    }
    return true;
}

const amqp_frame_t *hapax__amqp_link_read(struct hapax__amqp_link *link)
{
    const struct timeval now = {0};

    while (link->state) {
        int status;

        amqp_maybe_release_buffers(link->state);
        link->frame.frame_type = 0;
        status = amqp_simple_wait_frame_noblock(link->state, &link->frame, &now);
        if (status == AMQP_STATUS_TIMEOUT)
            return NULL;
        if (status != AMQP_STATUS_OK) {
            hapax__amqp_link_lose(
                link, "lost RabbitMQ: %.100s%s", amqp_error_string2(status),
                status != AMQP_STATUS_HEARTBEAT_TIMEOUT &&
                        link->frame.frame_type == AMQP_FRAME_HEADER
                    ? " (a message whose headers cannot be read: take it out of the queue)"
                    : "");
            return NULL;
        }
        if (link->frame.channel != 0)
            return &link->frame;
        if (link->frame.frame_type == AMQP_FRAME_METHOD)
            (void)take_control(link, &link->frame.payload.method);
    }
    return NULL;
}

size_t hapax__amqp_link_room(struct hapax__amqp_link *link)
{
    struct pollfd fd = {.events = POLLOUT};
    uint32_t memory[SK_MEMINFO_VARS] = {0};
    socklen_t len = sizeof(memory);

    if (!link->state)
        return 0;
    fd.fd = amqp_get_sockfd(link->state);
    if (poll(&fd, 1, 0) != 1 || !(fd.revents & POLLOUT) ||
        getsockopt(fd.fd, SOL_SOCKET, SO_MEMINFO, memory, &len) != 0 ||
        memory[SK_MEMINFO_SNDBUF] <= memory[SK_MEMINFO_WMEM_QUEUED])
        return 0;
    /* Half, because the kernel also counts its own bytes around the data. A socket that polls as
     * writable has a third of its buffer free, so the result is not 0 here. */
    return (memory[SK_MEMINFO_SNDBUF] - memory[SK_MEMINFO_WMEM_QUEUED]) / 2;
}

static bool sent(struct hapax__amqp_link *link, int status)
{
    if (status == AMQP_STATUS_OK)
        return true;
    hapax__amqp_link_lose(link, "lost RabbitMQ: %.100s", amqp_error_string2(status));
    return false;
}

bool hapax__amqp_link_method(struct hapax__amqp_link *link, amqp_channel_t channel,
                             amqp_method_number_t method, void *fields)
{
    return link->state && sent(link, amqp_send_method(link->state, channel, method, fields));
}

bool hapax__amqp_link_frame(struct hapax__amqp_link *link, const amqp_frame_t *frame)
{
    return link->state && sent(link, amqp_send_frame(link->state, frame));
}

void hapax__amqp_link_cork(struct hapax__amqp_link *link, bool corked)
{
    int on = corked;

    if (link->state)
        (void)setsockopt(amqp_get_sockfd(link->state), IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
}

size_t hapax__amqp_link_watch(const struct hapax__amqp_link *link, bool writes, struct pollfd *fds,
                              int64_t *due_us)
{
    if (!link->state) {
        *due_us = link->next_us;
        return 0;
    }
    /* Often enough to send each heartbeat in time, and to see that the broker's heartbeat is
     * late. */
    *due_us = hapax__monotonic_us() + link->uri->heartbeat_s * INT64_C(250000);
    if (amqp_frames_enqueued(link->state) || amqp_data_in_buffer(link->state))
        *due_us = 0;
    fds[0] = (struct pollfd){.fd = amqp_get_sockfd(link->state),
                             .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
    return 1;
}

/* ---- queues ---------------------------------------------------------------------------- */

static amqp_table_entry_t *add(struct hapax__amqp_arguments *to, const char *name, uint8_t kind)
{
    amqp_table_entry_t *entry = &to->entries[to->table.num_entries];

    assert((size_t)to->table.num_entries < sizeof(to->entries) / sizeof(to->entries[0]));
    to->table.num_entries++;
    entry->key = amqp_cstring_bytes(name);
    entry->value.kind = kind;
    return entry;
}

void hapax__amqp_argument_text(struct hapax__amqp_arguments *to, const char *name,
                               const char *value)
{
    add(to, name, AMQP_FIELD_KIND_UTF8)->value.value.bytes = amqp_cstring_bytes(value);
}

void hapax__amqp_argument_number(struct hapax__amqp_arguments *to, const char *name, int64_t value)
{
    add(to, name, AMQP_FIELD_KIND_I64)->value.value.i64 = value;
}

void hapax__amqp_arguments(struct hapax__amqp_arguments *out, const struct hapax__amqp_link *link)
{
    out->table = (amqp_table_t){.num_entries = 0, .entries = out->entries};
    hapax__amqp_argument_text(out, "x-queue-type", link->uri->classic ? "classic" : "quorum");
    if (link->minus_one && !link->uri->classic)
        hapax__amqp_argument_number(out, "x-delivery-limit", -1);
}

bool hapax__amqp_declare(struct hapax__amqp_link *link, amqp_channel_t channel, const char *queue,
                         const struct hapax__amqp_arguments *arguments)
{
    amqp_queue_declare_t declare = {.queue = amqp_cstring_bytes(queue),
                                    .passive = !arguments,
                                    .durable = true,
                                    .arguments = arguments ? arguments->table : amqp_empty_table};

    return hapax__amqp_link_method(link, channel, AMQP_QUEUE_DECLARE_METHOD, &declare);
}
