/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that run until they are told to end. The signals become a descriptor, so that no code of
 * ours runs inside a handler, and the ending is an event among others.
 */
#include "cli.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

int cli_signals_begin(void)
{
    return cli_signals_begin_with(NULL, 0);
}

int cli_signals_begin_with(const int *more, size_t n)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    for (size_t i = 0; i < n; i++)
        sigaddset(&set, more[i]);
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0)
        return -1;
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int cli_signals_begin_parent(void)
{
    static const int more[] = {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};

    (void)signal(SIGCHLD, SIG_DFL); /* ignored, it would leave no child to wait for */
    return cli_signals_begin_with(more, sizeof(more) / sizeof(more[0]));
}

/* We set no handlers, so that what was ignored still is. One that is blocked comes nevertheless. */
bool cli_signal_ignored(int number)
{
    struct sigaction now;

    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

int cli_signals_wait(int fd, int64_t timeout_ms)
{
    struct signalfd_siginfo info;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int64_t beat_ms = cli_watchdog_ms();
    int64_t slice = 3600000;

    if (beat_ms > 0 && beat_ms < slice)
        slice = beat_ms;
    do {
        if (timeout_ms >= 0 && timeout_ms < slice)
            slice = timeout_ms;
        if (beat_ms > 0)
            cli_notify("WATCHDOG=1");
        if (poll(&ready, 1, (int)slice) > 0 && read(fd, &info, sizeof(info)) == sizeof(info))
            return (int)info.ssi_signo;
        if (timeout_ms > 0)
            timeout_ms -= slice;
    } while (timeout_ms != 0);
    return 0;
}
