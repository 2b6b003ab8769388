/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket is made here: libmicrohttpd cannot report why a socket failed, or which port it got.
 */
#include "listen.h"

#include "base/fail.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOST_MAX 255u
#define BACKLOG  16

/* Splits HOST:PORT or [IPV6]:PORT. */
static bool split(char host[HOST_MAX + 1], char port[6], const char *address)
{
    const char *colon = strrchr(address, ':');
    const char *from = address;
    size_t len = colon ? (size_t)(colon - address) : 0;

    if (len >= 2 && address[0] == '[' && address[len - 1] == ']') {
        from++;
        len -= 2;
    } else if (memchr(address, ':', len)) {
        return false;
    }
    if (len == 0 || len > HOST_MAX)
        return false;
    memcpy(host, from, len);
    host[len] = '\0';
    len = strspn(colon + 1, "0123456789");
    if (len == 0 || len > 5 || colon[1 + len] != '\0' || strtoul(colon + 1, NULL, 10) > 65535)
        return false;
    memcpy(port, colon + 1, len + 1);
    return true;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof(at);
    char port[6] = "0";

    if (getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        (void)getnameinfo((struct sockaddr *)&at, len, NULL, 0, port, sizeof(port), NI_NUMERICSERV);
    return (uint16_t)strtoul(port, NULL, 10);
}

/* Opens a listening socket at the first address that works. -1: none does, and errno says why. */
static int listen_at(const struct addrinfo *at)
{
    static const int on = 1;
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    int error;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

static bool is_own(const struct sockaddr *at)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)at;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)at;

    if (at->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    return at->sa_family == AF_INET && ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

enum hapax_error hapax__http_listen(int *fd, uint16_t *port, const struct hapax__http_place *place,
                                    char text[HAPAX_TEXT_MAX])
{
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char host[HOST_MAX + 1];
    char service[6];
    int error;

    *fd = -1;
    if (!split(host, service, place->address))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "%s: \"%.100s\" is not HOST:PORT, as 127.0.0.1:9464", place->what,
                           place->address);
    error = getaddrinfo(host, service, &want, &found);
    if (error != 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "%s: cannot find \"%.100s\": %s", place->what,
                           host, gai_strerror(error));
    if (!place->anywhere && !is_own(found->ai_addr)) {
        freeaddrinfo(found);
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "%s: other machines can reach \"%.100s\", and nobody is asked for a "
                           "password there; %s",
                           place->what, host, place->allows);
    }
    *fd = listen_at(found);
    error = errno;
    freeaddrinfo(found);
    if (*fd < 0)
        return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "%s: cannot listen on \"%.100s\": %s",
                           place->what, place->address, strerror(error));
    *port = port_of(*fd);
    return HAPAX_ERR_NONE;
}
