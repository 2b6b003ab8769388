/* SPDX-License-Identifier: Apache-2.0
 *
 * A command that runs as our child, in a session of its own. Its whole process group is ended with
 * us: where we are killed, even by SIGKILL and with our own process group, a guard kills the group.
 *
 * The guard is a second child of ours, in a group of its own. It waits at a pipe whose other end
 * only we have. Rejected: PR_SET_PDEATHSIG alone. That reaches the command, and not what the
 * command has started: of `sh -c 'dump | upload'` the shell would die and the upload go on.
 */
#ifndef HAPAX_CLI_CHILD_H
#define HAPAX_CLI_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

struct cli_child {
    pid_t pid; /* also its process group */
    pid_t guard;
    int alive; /* our end of the guard's pipe */
    int out; /* the command's output, which does not block; -1: not captured, or at its end */
};

struct cli_child_how {
    char *const *words; /* ends with NULL, as does env */
    char *const *env;
    int in; /* its stdin; -1: /dev/null */
    bool capture; /* its stdout is a pipe; otherwise ours */
};

#define CLI_NOT_RUNNABLE 126 /* a shell's statuses of commands that cannot be executed */
#define CLI_NOT_FOUND    127
#define CLI_SIGNALLED    128 /* and the signal's number */

/* Starts a command. 0: it runs; cli_child_reap() is then due. Otherwise an errno, and nothing has
 * run. *status is then one of the first two where the command itself could not be executed, and
 * otherwise 0. SIGCHLD must not be ignored. Call it in the thread that lives as long as the
 * command. */
int cli_child_start(struct cli_child *child, const struct cli_child_how *how, int *status);

/* Whether the command has ended. It stays a zombie, so that its group's number is not reused. */
bool cli_child_ended(const struct cli_child *child);

/* The signal that the command died of; 0: none, or it has not ended. */
int cli_child_killed(const struct cli_child *child);

/* Whether nobody is left of the process group of a command that has ended. False also where /proc
 * does not show the command. */
bool cli_child_alone(const struct cli_child *child);

/* Sends a signal to the command's process group. */
void cli_child_signal(const struct cli_child *child, int number);

/* After its end: releases all. What the command has left running goes on. Returns its status as a
 * shell does; *killed: it ended by a signal. */
int cli_child_reap(struct cli_child *child, bool *killed);

#endif
