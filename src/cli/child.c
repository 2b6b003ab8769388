/* SPDX-License-Identifier: Apache-2.0
 *
 * Between fork() and exec() only async-signal-safe functions are called, since the store has
 * threads.
 */
#include "child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a pipe gives; 0 at its end. */
static size_t take(int fd, void *out, size_t size)
{
    ssize_t got;

    do {
        got = read(fd, out, size);
    } while (got < 0 && errno == EINTR);
    return got > 0 ? (size_t)got : 0;
}

/* ---- in the new processes ---------------------------------------------------------------- */

/* Signals are as they were when we were started, but for what is blocked: nothing. */
static void reset_signals(void)
{
    sigset_t none;

    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
}

/* Only returns on failure, with errno. The guard hears of the group before the command can start
 * anything: told by the parent, it would not where that is killed in between. */
static void exec_command(const struct cli_child_how *how, int out, int alive, pid_t parent)
{
    int in = how->in >= 0 ? how->in : open("/dev/null", O_RDONLY | O_CLOEXEC);
    pid_t group = getpid();

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(CLI_SIGNALLED + SIGKILL);
    (void)setsid(); /* no terminal, so that a question of the command fails and does not stop it */
    if (write(alive, &group, sizeof(group)) != sizeof(group) || in < 0 || dup2(in, 0) < 0 ||
        (out >= 0 && dup2(out, 1) < 0))
        return;
    reset_signals();
    (void)execvpe(how->words[0], how->words, how->env);
}

/* Closes all but stdin. Older kernels and some sandboxes lack close_range(), and closefrom() aborts
 * where they lack /proc, too. */
static void close_all(void)
{
    long most = sysconf(_SC_OPEN_MAX);

    if (close_range(1, ~0u, 0) == 0)
        return;
    if (access("/proc/self/fd/0", F_OK) == 0)
        closefrom(1);
    else
        for (int fd = 1; fd < most; fd++)
            close(fd);
}

/* Reads the group's number first. Without one nothing was started. */
static _Noreturn void guard_group(int alive)
{
    pid_t group = 0;

    /* Nothing of ours stays open: neither the store, nor our output, nor our end of the pipe. */
    if (dup2(alive, 0) == 0)
        close_all();
    if (take(0, &group, sizeof(group)) == sizeof(group)) {
        (void)take(0, &(char){0}, 1);
        (void)kill(-group, SIGKILL);
    }
    _exit(0);
}

/* ---- ours -------------------------------------------------------------------------------- */

static void close_both(const int fds[2])
{
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Forks the command, and waits until it has been executed. 0, or an errno. */
static int fork_command(struct cli_child *child, const struct cli_child_how *how, int out,
                        int alive, int failure[2], int *status)
{
    pid_t parent = getpid();
    int error = 0;

    child->pid = fork();
    if (child->pid == 0) {
        exec_command(how, out, alive, parent);
        error = errno;
        (void)!write(failure[1], &error, sizeof(error));
        _exit(CLI_SIGNALLED - 1);
    }
    if (child->pid < 0)
        return errno;
    close(failure[1]);
    failure[1] = -1;
    if (take(failure[0], &error, sizeof(error)) != sizeof(error))
        return 0;
    *status = error == ENOENT || error == ENOTDIR ? CLI_NOT_FOUND : CLI_NOT_RUNNABLE;
    (void)waitpid(child->pid, NULL, 0);
    return error;
}

/* out, alive, failure: pipes. */
static int start(struct cli_child *child, const struct cli_child_how *how, int out,
                 const int alive[2], int failure[2], int *status)
{
    int error;

    child->guard = fork();
    if (child->guard == 0)
        guard_group(alive[0]);
    if (child->guard < 0)
        return errno;
    /* Before there is a command: whoever kills our own group must not meet the guard, too. */
    (void)setpgid(child->guard, child->guard);
    error = fork_command(child, how, out, alive[1], failure, status);
    if (error != 0) {
        (void)kill(child->guard, SIGKILL);
        (void)waitpid(child->guard, NULL, 0);
    }
    return error;
}

int cli_child_start(struct cli_child *child, const struct cli_child_how *how, int *status)
{
    int out[2] = {-1, -1}, alive[2] = {-1, -1}, failure[2] = {-1, -1};
    int error = 0;

    *status = 0;
    memset(child, 0, sizeof(*child));
    if (pipe2(alive, O_CLOEXEC) != 0 || pipe2(failure, O_CLOEXEC) != 0 ||
        (how->capture && pipe2(out, O_CLOEXEC) != 0) ||
        (how->capture && fcntl(out[0], F_SETFL, O_NONBLOCK) != 0))
        error = errno;
    if (error == 0)
        error = start(child, how, out[1], alive, failure, status);
    if (error == 0) {
        child->out = out[0];
        child->alive = alive[1];
        out[0] = alive[1] = -1;
    }
    close_both(out);
    close_both(alive);
    close_both(failure);
    return error;
}

bool cli_child_ended(const struct cli_child *child)
{
    siginfo_t info = {.si_pid = 0};

    return waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid != 0;
}

int cli_child_killed(const struct cli_child *child)
{
    siginfo_t info = {.si_pid = 0};

    if (waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0 || info.si_code == CLD_EXITED)
        return 0;
    return info.si_status;
}

/* Rejected: kill() with 0. It finds the zombie, too. As process 1 we inherit those that the command
 * leaves, and wait for them here. */
bool cli_child_alone(const struct cli_child *child)
{
    DIR *processes = opendir("/proc");
    const struct dirent *entry = NULL;
    bool seen = false, others = false;

    while (processes && !others && (entry = readdir(processes))) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10); /* 0 where it is no process */

        if (pid == child->pid)
            seen = true;
        else
            others = getpgid(pid) == child->pid && waitpid(pid, NULL, WNOHANG) != pid;
    }
    if (processes)
        (void)closedir(processes);
    return seen && !others;
}

void cli_child_signal(const struct cli_child *child, int number)
{
    (void)kill(-child->pid, number);
}

int cli_child_reap(struct cli_child *child, bool *killed)
{
    int status = 0;

    /* First the guard: it must not find us gone, and the group's number taken by others. */
    (void)kill(child->guard, SIGKILL);
    (void)waitpid(child->guard, NULL, 0);
    close(child->alive);
    if (child->out >= 0)
        close(child->out);
    (void)waitpid(child->pid, &status, 0);
    *killed = WIFSIGNALED(status);
    return *killed ? CLI_SIGNALLED + WTERMSIG(status) : WEXITSTATUS(status);
}
