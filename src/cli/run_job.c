/* SPDX-License-Identifier: Apache-2.0
 *
 * The command of hapax run: its environment, its output, its end.
 *
 * The output is kept until it is stored. Output that is over max_response cannot be stored, and is
 * printed as it comes.
 */
#include "child.h"
#include "run.h"

#include "base/clock.h"
#include "base/time.h"
#include "door/call.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRY_AGAIN    75 /* EX_TEMPFAIL of sysexits.h */
#define LOOK_MS      200 /* between two looks whether the command is to end */
#define GRACE_US     (5 * US_PER_S) /* from SIGTERM to SIGKILL, where the command is to end */
#define VARIABLES    6u
#define VARIABLE_MAX 320u

struct output {
    uint8_t *bytes;
    size_t len, size;
    bool kept; /* otherwise it is over max_response */
    bool pass_on; /* print what cannot be kept */
};

static bool is_ours(const char *variable)
{
    static const char *const names[] = {
        "HAPAX_KEY=", "HAPAX_ATTEMPT=", "HAPAX_FENCE=", "HAPAX_STALE=", "HAPAX_TOKEN="};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* The environment with the attempt in it. attempt NULL: it runs unprotected. variables: what is
 * ours. NULL: out of memory. */
static char **make_env(char variables[VARIABLES][VARIABLE_MAX], const struct hapax_attempt *attempt,
                       struct hapax_span key)
{
    bool traced = attempt && attempt->trace[0];
    char token[HAPAX_TOKEN_TEXT_MAX];
    size_t n = 0, all = 0;
    char **env;

    while (environ[all])
        all++;
    env = calloc(all + VARIABLES + 1, sizeof(*env));
    if (!env)
        return NULL;
    for (size_t i = 0; i < all; i++)
        if (!is_ours(environ[i]) && !(traced && strncmp(environ[i], "TRACEPARENT=", 12) == 0))
            env[n++] = environ[i];
    (void)snprintf(variables[0], VARIABLE_MAX, "HAPAX_KEY=%.*s", (int)key.len,
                   (const char *)key.ptr);
    (void)snprintf(variables[1], VARIABLE_MAX, "HAPAX_ATTEMPT=%u",
                   attempt ? hapax_attempt_number(attempt) : 1);
    (void)snprintf(variables[2], VARIABLE_MAX, "HAPAX_FENCE=%" PRIu64,
                   attempt ? hapax_attempt_fence(attempt) : 0);
    (void)snprintf(variables[3], VARIABLE_MAX, "HAPAX_STALE=%d",
                   attempt && hapax_attempt_stale(attempt));
    for (size_t i = 0; i < 4; i++)
        env[n++] = variables[i];
    if (attempt && hapax_attempt_token(attempt, token)) {
        (void)snprintf(variables[4], VARIABLE_MAX, "HAPAX_TOKEN=%s", token);
        env[n++] = variables[4];
    }
    if (traced) {
        (void)snprintf(variables[5], VARIABLE_MAX, "TRACEPARENT=%s", attempt->trace);
        env[n++] = variables[5];
    }
    return env;
}

bool run_heed(struct running *r, int number)
{
    bool reloads = number == SIGHUP && r->child && !cli_child_ended(r->child);

    if (number == SIGCHLD)
        return false;
    if (r->child)
        cli_child_signal(r->child, number);
    if (cli_signal_ignored(number))
        return false;
    if (!r->ran && !r->stopped)
        r->stopped = number;
    if (reloads)
        r->hung_up = true;
    else if (number != SIGUSR1 && number != SIGUSR2)
        r->ending = true;
    return !r->ran;
}

static void hand_on(struct running *r)
{
    int number;

    while ((number = cli_signals_wait(r->signals, 0)) != 0)
        (void)run_heed(r, number);
}

/* Whether a signal has told us to end. One that the command died of has. */
static bool is_ending(struct running *r)
{
    r->ending = r->ending || (r->hung_up && r->child && cli_child_killed(r->child) == SIGHUP);
    return r->ending;
}

/* Whether nothing of the command runs, and only its output is left to be read: nobody writes more
 * of it. */
static bool is_done(const struct cli_child *child)
{
    struct pollfd out = {.fd = child->out, .events = POLLIN};

    return cli_child_ended(child) && cli_child_alone(child) &&
           (child->out < 0 || (poll(&out, 1, 0) > 0 && (out.revents & POLLHUP)));
}

/* Whether the command is to end. When --run-max is over, a part of the lease is left: the last
 * renewal was asked less than a third of a lease ago. */
static bool is_to_end(struct running *r)
{
    r->late = r->late || (hapax__boot_us() >= r->until_us && !is_done(r->child));
    return r->late || (r->attempt && hapax_attempt_lost(r->attempt));
}

/* Hears signals, and ends a command that is to end. True: SIGKILL has gone to its group. */
static bool look(struct running *r)
{
    hand_on(r);
    if (!r->child || !is_to_end(r))
        return false;
    if (r->kill_us == 0) {
        cli_child_signal(r->child, SIGTERM);
        r->kill_us = hapax__boot_us() + GRACE_US;
    }
    if (hapax__boot_us() < r->kill_us)
        return false;
    cli_child_signal(r->child, SIGKILL);
    return true;
}

/* A description of stdout of our own, which does not block: others have the one that we were given.
 * What is neither a pipe nor a device, or cannot be opened anew, is used as it is. With --json
 * stdout has the object alone, and output that is not in it goes to stderr. */
static int open_stdout(bool json)
{
    int given = json ? 2 : 1, fd = -1;
    struct stat kind;

    if (fstat(given, &kind) == 0 && (S_ISFIFO(kind.st_mode) || S_ISCHR(kind.st_mode)))
        fd = open(json ? "/proc/self/fd/2" : "/proc/self/fd/1",
                  O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return fd >= 0 ? fd : given;
}

/* Waits until stdout takes more, and looks meanwhile. False: it takes nothing, the command has
 * ended, and a signal came to end us, too. */
static bool await_stdout(struct running *r)
{
    struct pollfd fds[] = {{.fd = r->signals, .events = POLLIN}, {.fd = r->out, .events = POLLOUT}};
    int64_t until_us = hapax__boot_us() + GRACE_US;

    for (;;) {
        (void)poll(fds, 2, LOOK_MS);
        (void)look(r);
        if (fds[1].revents != 0)
            return true;
        if (is_ending(r) && (!r->child || cli_child_ended(r->child)) &&
            hapax__boot_us() >= until_us)
            return false;
    }
}

void run_print(struct running *r, struct hapax_span output)
{
    if (r->out < 0)
        r->out = open_stdout(r->args->args.json);
    for (size_t done = 0; done < output.len && !r->unprinted;) {
        bool takes = await_stdout(r);
        size_t left = output.len - done;
        ssize_t put = -1;

        if (takes) /* a pipe with any room takes so many bytes at once */
            put = write(r->out, output.ptr + done, left < PIPE_BUF ? left : PIPE_BUF);
        if (put >= 0) {
            done += (size_t)put;
        } else if (!takes || (errno != EINTR && errno != EAGAIN)) {
            r->unprinted = true;
            run_say(r, "cannot print the output: %s", takes ? strerror(errno) : "nobody reads it");
        }
    }
}

/* Keeps the bytes, or from the first one that does not fit prints all of the output. */
static void keep(struct running *r, struct output *out, const uint8_t *bytes, size_t len)
{
    size_t most = r->policy.max_response, size = out->size;

    if (out->kept && len <= most - out->len) {
        while (size < out->len + len)
            size = size > 0 ? 2 * size : 4096;
        if (size > out->size) {
            uint8_t *more = realloc(out->bytes, size);

            out->kept = more != NULL;
            out->bytes = more ? more : out->bytes;
            out->size = more ? size : out->size;
        }
        if (out->kept) {
            memcpy(out->bytes + out->len, bytes, len);
            out->len += len;
            return;
        }
    }
    out->kept = false;
    if (!out->pass_on)
        return;
    run_print(r, (struct hapax_span){out->bytes, out->len});
    run_print(r, (struct hapax_span){bytes, len});
    out->len = 0;
    r->passed_on = true;
}

/* Takes a part of what the command has printed by now. */
static void take_output(struct running *r, struct output *out)
{
    uint8_t bytes[65536];
    ssize_t got;

    if (r->child->out < 0)
        return;
    got = read(r->child->out, bytes, sizeof(bytes));
    if (got > 0) {
        keep(r, out, bytes, (size_t)got);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        close(r->child->out);
        r->child->out = -1;
    }
}

/* Waits until the command has ended and its output is closed: what it left running may still
 * print. A command that is to end is ended, with all of its process group. */
static void follow(struct running *r, struct output *out)
{
    struct pollfd fds[] = {{.fd = r->signals, .events = POLLIN}, {.events = POLLIN}};

    while (r->child->out >= 0 || !cli_child_ended(r->child) ||
           (r->kill_us > 0 && !cli_child_alone(r->child))) {
        fds[1].fd = r->child->out;
        (void)poll(fds, 2, LOOK_MS);
        take_output(r, out);
        if (look(r) && cli_child_ended(r->child))
            return;
    }
}

/* Runs a command to its end. False: it did not run, and *status is what a shell gives for that. */
static bool run_command(struct running *r, char *const *words, const struct hapax_attempt *attempt,
                        struct output *out, int *status, bool *killed)
{
    char variables[VARIABLES][VARIABLE_MAX];
    struct hapax_span key = attempt ? hapax_attempt_key(attempt) : r->request.key;
    char **env = make_env(variables, attempt, key);
    struct cli_child_how how = {words, env, r->input, out->pass_on ? !r->args->live : true};
    struct cli_child child;
    int error = ENOMEM;

    if (r->until_us == 0)
        r->until_us = hapax__boot_us() + r->policy.run_max_ms * US_PER_MS;
    if (r->input >= 0)
        (void)lseek(r->input, 0, SEEK_SET); /* the hook may have read it */
    if (env)
        error = cli_child_start(&child, &how, status);
    free(env);
    explicit_bzero(variables, sizeof(variables));
    if (error != 0) {
        run_say(r, "cannot run \"%.200s\": %s", words[0], strerror(error));
        *status = *status ? *status : RUN_FAILED;
        return false;
    }
    r->child = &child;
    r->attempt = attempt;
    r->kill_us = 0;
    follow(r, out);
    hand_on(r); /* what came as it ended */
    (void)is_ending(r); /* while what the command died of can be asked */
    r->child = NULL;
    *status = cli_child_reap(&child, killed);
    return true;
}

/* What the end of the command means. Under hold a 75 is not believed: a script ends with the
 * status of whatever failed in it, perhaps after an effect. Who was killed got nobody knows how
 * far. */
static enum hapax_class class_of(const struct running *r, int status, bool killed)
{
    for (size_t i = 0; i < r->rule_count; i++)
        if (r->rules[i].first <= status && status <= r->rules[i].last)
            return r->rules[i].cls;
    if (killed)
        return HAPAX_CLASS_UNKNOWN;
    if (status == TRY_AGAIN && r->policy.on_expired == HAPAX_EXPIRED_RERUN)
        return HAPAX_CLASS_NOT_RUN;
    return status == 0 ? HAPAX_CLASS_FINAL : HAPAX_CLASS_FAILED;
}

/* Sets the outcome. What there is no memory for is not kept. */
static void set_outcome(struct running *r, struct hapax_attempt *attempt, int status,
                        const struct output *out)
{
    const struct hapax_span none = {NULL, 0};
    bool kept = out->kept &&
                hapax_attempt_outcome(attempt, status, none,
                                      (struct hapax_span){out->bytes, out->len}) == HAPAX_ERR_NONE;

    if (kept)
        return;
    if (out->pass_on && !r->passed_on)
        run_print(r, (struct hapax_span){out->bytes, out->len});
    r->passed_on = r->passed_on || out->pass_on;
    (void)hapax_attempt_outcome(attempt, status, none, none); /* which takes no memory */
    attempt->outcome.body_kept = false;
}

enum hapax_class run_handle(struct running *r, struct hapax_attempt *attempt)
{
    struct output out = {.kept = true, .pass_on = true};
    enum hapax_class cls = HAPAX_CLASS_NOT_RUN;
    bool killed = false;
    int status = 0;

    if (r->stopped)
        return cls;
    r->ran = true; /* signals are the command's from here on */
    r->ran = run_command(r, r->args->args.words, attempt, &out, &status, &killed);
    if (r->ran)
        cls = class_of(r, status, killed);
    if (r->late || hapax_attempt_lost(attempt))
        cls = HAPAX_CLASS_UNKNOWN;
    set_outcome(r, attempt, status, &out);
    free(out.bytes);
    return cls;
}

enum hapax_class run_reconcile(struct running *r, struct hapax_attempt *attempt)
{
    char shell[] = "sh", option[] = "-c";
    char *words[] = {shell, option, (char *)r->args->reconcile, NULL};
    struct output out = {.kept = true};
    enum hapax_class cls = HAPAX_CLASS_UNKNOWN;
    bool killed = false;
    int status = 0;

    if (r->stopped)
        return cls;
    /* One that a signal of ours may have ended, with whatever status, has not answered. */
    if (run_command(r, words, attempt, &out, &status, &killed) && !r->stopped && !r->late &&
        !killed && status <= 1)
        cls = status == 0 ? HAPAX_CLASS_FINAL : HAPAX_CLASS_NOT_RUN;
    if (cls == HAPAX_CLASS_FINAL)
        set_outcome(r, attempt, 0, &out);
    free(out.bytes);
    return cls;
}

void run_unprotected(struct running *r, struct hapax_outcome *outcome, uint8_t **bytes)
{
    struct output out = {.kept = true, .pass_on = true};
    bool killed = false;

    r->ran = true;
    (void)run_command(r, r->args->args.words, NULL, &out, &outcome->status, &killed);
    outcome->body = (struct hapax_span){out.bytes, out.len};
    *bytes = out.bytes;
}
