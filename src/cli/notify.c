/* SPDX-License-Identifier: Apache-2.0
 *
 * What a service manager is told: sd_notify(3)'s datagram, without its library.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void cli_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t len = path ? strlen(path) : 0;
    int fd;

    if (len < 2 || len >= sizeof(to.sun_path) || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(to.sun_path, path, len);
    if (path[0] == '@') /* an abstract address */
        to.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&to,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    close(fd);
}

int64_t cli_watchdog_ms(void)
{
    const char *us = getenv("WATCHDOG_USEC");
    char *end;
    unsigned long long value = us ? strtoull(us, &end, 10) : 0;

    return us && *us && *end == '\0' && value >= 2000 && value / 2000 < INT64_MAX
               ? (int64_t)(value / 2000)
               : -1;
}
