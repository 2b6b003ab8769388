/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands out, replies in, over one wire. The invariant: an error is UNAVAILABLE only where no
 * byte of the commands has left this process; from the first byte on, a failure is INDETERMINATE.
 *
 * Bytes move both ways while a request is sent. A server stops reading when its replies are not
 * taken, and two sides that only write wait for each other. What arrives meanwhile is kept for get.
 *
 * The login is sent in one piece with the first question, so that it costs one round trip. The
 * question is PING: a Redis that is -LOADING or -MASTERDOWN refuses only commands that need the
 * data.
 */
#include "link.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "reader.h"
#include "wire.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT_KEPT     (1u << 20) /* a larger buffer is freed after it was sent */
#define OUT_MAX      (1u << 30)
#define LOGIN_MAX    4u /* commands of a login */
#define LOGIN_TEXT   160
#define NUMBER_MAX   24 /* bytes of "*N\r\n" */
#define PORT_LEN_MAX 9 /* "[]:65535" and its NUL */

struct hapax__redis_link {
    struct hapax__redis_wire wire;
    struct hapax__redis_reader *reader;
    char name[HAPAX__REDIS_NAME_MAX + PORT_LEN_MAX]; /* "host:port" */
    const char *fault; /* what is wrong with the bytes that came; a static text */
    bool dead;

    /* To send: out[sent..len). */
    char *out;
    size_t sent, len, size;
};

static const char *why(const struct hapax__redis_link *link)
{
    return link->fault ? link->fault : link->wire.why;
}

/* ---- commands -------------------------------------------------------------------------- */

static bool reserve(struct hapax__redis_link *link, size_t more)
{
    size_t size = link->size > 0 ? link->size : 4096;
    char *out;

    if (more > OUT_MAX - link->len)
        return false;
    while (size < link->len + more)
        size *= 2;
    if (size == link->size)
        return true;
    out = realloc(link->out, size);
    if (!out)
        return false;
    link->out = out;
    link->size = size;
    return true;
}

/* Digit by digit, since printf is slow and each argument of a request has a number. */
static void put_number(struct hapax__redis_link *link, char type, size_t n)
{
    char digits[NUMBER_MAX];
    size_t at = NUMBER_MAX;

    digits[--at] = '\n';
    digits[--at] = '\r';
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n > 0);
    assert(at > 0);
    digits[--at] = type;
    memcpy(link->out + link->len, digits + at, NUMBER_MAX - at);
    link->len += NUMBER_MAX - at;
}

bool hapax__redis_link_put(struct hapax__redis_link *link, const struct hapax_span *args,
                           size_t argc)
{
    size_t more = NUMBER_MAX;

    assert(argc > 0);
    for (size_t i = 0; i < argc; i++) {
        if (args[i].len > OUT_MAX || more > OUT_MAX)
            more = OUT_MAX;
        more += NUMBER_MAX + args[i].len + 2;
    }
    if (link->dead)
        return false;
    if (!reserve(link, more) || !hapax__redis_reader_want(link->reader)) {
        link->dead = true;
        link->fault = "out of memory for the request";
        return false;
    }
    put_number(link, '*', argc);
    for (size_t i = 0; i < argc; i++) {
        put_number(link, '$', args[i].len);
        if (args[i].len > 0)
            memcpy(link->out + link->len, args[i].ptr, args[i].len);
        link->len += args[i].len;
        memcpy(link->out + link->len, "\r\n", 2);
        link->len += 2;
    }
    assert(link->len <= link->size);
    return true;
}

/* ---- both ways ------------------------------------------------------------------------- */

/* Returns 1 where a byte came at least, 0 where it would block, -1 where the link is dead. */
static int receive(struct hapax__redis_link *link)
{
    size_t size;
    void *room = hapax__redis_reader_room(link->reader, &size);
    ssize_t n = hapax__redis_wire_read(&link->wire, room, size);

    if (n > 0)
        link->fault = hapax__redis_reader_took(link->reader, (size_t)n);
    if (n < 0 || link->fault)
        link->dead = true;
    return link->dead ? -1 : n > 0;
}

static void late(struct hapax__redis_link *link)
{
    link->dead = true;
    (void)snprintf(link->wire.why, sizeof(link->wire.why), "no answer in time");
}

/* Sends some bytes, and takes what arrives. False: the link is dead. */
static bool pump(struct hapax__redis_link *link, int64_t deadline_us)
{
    ssize_t n =
        hapax__redis_wire_write(&link->wire, link->out + link->sent, link->len - link->sent);
    short wants = POLLIN;
    int got;

    if (n < 0) {
        char first[HAPAX__WIRE_WHY_MAX];

        /* The server may have sent a reason before it closed. */
        memcpy(first, link->wire.why, sizeof(first));
        while (receive(link) > 0)
            ;
        if (!link->wire.refused)
            memcpy(link->wire.why, first, sizeof(first));
        link->dead = true;
        return false;
    }
    link->sent += (size_t)n;
    if (link->sent == link->len)
        return true;
    if (n == 0) {
        got = receive(link);
        if (got < 0)
            return false;
        wants = (short)(link->wire.write_wants | link->wire.read_wants);
        if (got == 0 && !hapax__redis_wire_wait(&link->wire, wants, deadline_us)) {
            late(link);
            return false;
        }
    }
    if (hapax__monotonic_us() <= deadline_us)
        return true;
    late(link);
    return false;
}

enum hapax_error hapax__redis_link_send(struct hapax__redis_link *link, int64_t deadline_us,
                                        char text[HAPAX_TEXT_MAX])
{
    uint64_t before = link->wire.sent;

    while (!link->dead && link->sent < link->len)
        (void)pump(link, deadline_us);
    if (link->dead)
        return hapax__fail(
            text, link->wire.sent == before ? HAPAX_ERR_UNAVAILABLE : HAPAX_ERR_INDETERMINATE,
            "cannot send to \"%.100s\": %s", link->name, why(link));
    link->sent = link->len = 0;
    if (link->size > OUT_KEPT) {
        free(link->out);
        link->out = NULL;
        link->size = 0;
    }
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__redis_link_get(struct hapax__redis_link *link, struct hapax__resp **out,
                                       int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    *out = NULL;
    assert(link->dead || hapax__redis_reader_wanted(link->reader) > 0);
    for (;;) {
        int got;

        *out = hapax__redis_reader_next(link->reader);
        if (*out)
            return HAPAX_ERR_NONE;
        if (link->dead)
            break;
        got = receive(link);
        if (got == 0 && !hapax__redis_wire_wait(&link->wire, link->wire.read_wants, deadline_us))
            late(link);
        else if (got > 0 && hapax__monotonic_us() > deadline_us &&
                 hapax__redis_reader_ready(link->reader) == 0)
            late(link); /* bytes come, but too slowly */
    }
    return hapax__fail(text, HAPAX_ERR_INDETERMINATE, "no reply from \"%.100s\": %s", link->name,
                       why(link));
}

bool hapax__redis_link_ready(struct hapax__redis_link *link, int64_t deadline_us)
{
    while (!link->dead && hapax__redis_reader_ready(link->reader) == 0)
        if (receive(link) == 0 &&
            !hapax__redis_wire_wait(&link->wire, link->wire.read_wants, deadline_us))
            return false;
    return true;
}

bool hapax__redis_link_stale(struct hapax__redis_link *link)
{
    return link->dead || hapax__redis_reader_wanted(link->reader) > 0 || receive(link) != 0;
}

/* ---- login ----------------------------------------------------------------------------- */

/* Copies an error of the login as a text may show it: it may repeat the arguments of AUTH. */
static void say_error(char out[LOGIN_TEXT], const struct hapax__resp *reply, const char *password)
{
    size_t len = reply->len < LOGIN_TEXT - 1 ? reply->len : LOGIN_TEXT - 1;
    bool echoes = password[0] != '\0' && strstr(reply->str, password) != NULL;

    if (echoes || strstr(reply->str, "with args"))
        len = strcspn(reply->str, " ") < len ? strcspn(reply->str, " ") : len;
    for (size_t i = 0; i < len; i++)
        out[i] = reply->str[i] < ' ' || reply->str[i] > '~' ? '?' : reply->str[i];
    out[len] = '\0';
    if (echoes && strstr(out, password))
        (void)snprintf(out, LOGIN_TEXT, "an error");
}

static bool begins(const struct hapax__resp *reply, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (hapax__text_begins(reply->str, words[i]))
            return true;
    return false;
}

/* essential: the reply is to AUTH or SELECT. The other commands may fail with errors of their
 * own (an ACL). */
static enum hapax_error judge_login(const struct hapax__resp *reply, bool essential)
{
    static const char *const later[] = {"LOADING", "MASTERDOWN", "BUSY",
                                        "ERR max number of clients"};
    static const char *const never[] = {"NOAUTH", "WRONGPASS", "DENIED"};

    if (reply->type != HAPAX__RESP_ERROR)
        return HAPAX_ERR_NONE;
    if (begins(reply, later, sizeof(later) / sizeof(later[0])))
        return HAPAX_ERR_UNAVAILABLE;
    return essential || begins(reply, never, sizeof(never) / sizeof(never[0])) ? HAPAX_ERR_REFUSED
                                                                               : HAPAX_ERR_NONE;
}

/* Puts the commands of a login and returns their number. The first *essential of them must
 * succeed. 0: out of memory. */
static size_t put_login(struct hapax__redis_link *link, const struct hapax__redis_login *login,
                        uint32_t db, size_t *essential)
{
    const struct hapax_span auth[] = {hapax_str("AUTH"), hapax_str(login->user),
                                      hapax_str(login->password)};
    const struct hapax_span alone[] = {auth[0], auth[2]};
    const struct hapax_span name[] = {hapax_str("CLIENT"), hapax_str("SETNAME"),
                                      hapax_str("hapax")};
    const struct hapax_span ping = hapax_str("PING");
    struct hapax_span select[] = {hapax_str("SELECT"), {NULL, 0}};
    char number[12];
    bool good = true;

    *essential = 0;
    if (login->password[0] != '\0') {
        good = login->user[0] != '\0' ? hapax__redis_link_put(link, auth, 3)
                                      : hapax__redis_link_put(link, alone, 2);
        ++*essential;
    }
    if (db > 0) {
        (void)snprintf(number, sizeof(number), "%u", (unsigned)db);
        select[1] = hapax_str(number);
        good = good && hapax__redis_link_put(link, select, 2);
        ++*essential;
    }
    good = good && hapax__redis_link_put(link, name, 3) && hapax__redis_link_put(link, &ping, 1);
    return good ? *essential + 2 : 0;
}

static enum hapax_error login_to(struct hapax__redis_link *link,
                                 const struct hapax__redis_login *login, uint32_t db,
                                 int64_t deadline_us, char text[HAPAX_TEXT_MAX])
{
    size_t essential, count = put_login(link, login, db, &essential);
    enum hapax_error lost = HAPAX_ERR_NONE, error = HAPAX_ERR_NONE;
    char said[LOGIN_TEXT];

    assert(count <= LOGIN_MAX);
    if (count == 0)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot log in to \"%.100s\": out of memory",
                           link->name);
    if (hapax__redis_link_send(link, deadline_us, text) != HAPAX_ERR_NONE)
        lost = link->wire.refused ? HAPAX_ERR_REFUSED : HAPAX_ERR_UNAVAILABLE;
    assert(link->out); /* count is not 0 */
    explicit_bzero(link->out, link->size);
    for (size_t i = 0; i < count && error == HAPAX_ERR_NONE; i++) {
        struct hapax__resp *reply;

        if (hapax__redis_link_get(link, &reply, deadline_us, text) != HAPAX_ERR_NONE)
            return lost != HAPAX_ERR_NONE ? lost
                   : link->wire.refused   ? HAPAX_ERR_REFUSED
                                          : HAPAX_ERR_UNAVAILABLE;
        error = judge_login(reply, i < essential);
        if (error != HAPAX_ERR_NONE) {
            say_error(said, reply, login->password);
            hapax__fail(text, error, "cannot log in to \"%.100s\": it answered \"%s\"", link->name,
                        said);
        }
        hapax__resp_free(reply);
    }
    return error;
}

/* ---- a link ---------------------------------------------------------------------------- */

static struct hapax__redis_link *link_new(const struct hapax__redis_address *address)
{
    struct hapax__redis_link *link = calloc(1, sizeof(*link));

    if (!link)
        return NULL;
    link->wire.fd = -1;
    link->reader = hapax__redis_reader_open();
    if (!link->reader) {
        free(link);
        return NULL;
    }
    (void)snprintf(link->name, sizeof(link->name), strchr(address->host, ':') ? "[%s]:%u" : "%s:%u",
                   address->host, (unsigned)address->port);
    return link;
}

enum hapax_error hapax__redis_link_open(struct hapax__redis_link **out,
                                        const struct hapax__redis_address *address,
                                        const struct hapax__redis_login *login, uint32_t db,
                                        struct hapax__redis_tls *tls, int64_t deadline_us,
                                        char text[HAPAX_TEXT_MAX])
{
    struct hapax__redis_link *link = link_new(address);
    enum hapax_error error;

    *out = NULL;
    if (!link)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot connect: out of memory");
    error = hapax__redis_wire_open(&link->wire, address, deadline_us);
    if (error == HAPAX_ERR_NONE && tls)
        error = hapax__redis_tls_begin(&link->wire, tls, address->host, deadline_us);
    if (error != HAPAX_ERR_NONE)
        hapax__fail(text, error, "cannot connect to \"%.100s\": %s", link->name, link->wire.why);
    else
        error = login_to(link, login, db, deadline_us, text);
    if (error == HAPAX_ERR_NONE)
        *out = link;
    else
        hapax__redis_link_close(link);
    return error;
}

void hapax__redis_link_close(struct hapax__redis_link *link)
{
    if (!link)
        return;
    hapax__redis_wire_close(&link->wire);
    hapax__redis_reader_close(link->reader);
    free(link->out);
    free(link);
}

void hapax__redis_link_ends(const struct hapax__redis_link *link, int64_t *server_us,
                            int64_t *client_us)
{
    hapax__redis_tls_ends(&link->wire, server_us, client_us);
}
