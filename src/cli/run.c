/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax run: one command, once for its key, on however many machines it is started. The command's
 * output and exit status are the outcome.
 *
 * The invariants: the output is stored before it is printed, unless it is too long to be stored.
 * The command ends with us, when its claim is lost, and when --run-max is over. What we ourselves
 * have to say goes to stderr, and has exit statuses of its own.
 */
#include "run.h"
#include "child.h"

#include "advice.h"
#include "print.h"

#include "base/clock.h"
#include "base/time.h"
#include "door/call.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define AGAIN_MS 200 /* between two tries to open the store */

void run_say(struct running *r, const char *format, ...)
{
    va_list list;

    if (r->line[0] != '\0')
        return;
    va_start(list, format);
    (void)vsnprintf(r->line, sizeof(r->line), format, list);
    va_end(list);
}

/* ---- the answer -------------------------------------------------------------------------- */

/* Of an answer that says that the command was run neither now nor before, or that it is not known.
 */
static int say_refused(struct running *r, const struct hapax_answer *answer, const char *text)
{
    char age[PRINT_AGE_MAX] = "an unknown time";

    switch (answer->kind) {
    case HAPAX_ANSWER_IN_FLIGHT:
        if (answer->silent_ms >= 0)
            print_age(age, answer->silent_ms * 1000);
        if (r->args->in_flight != 0)
            run_say(r, "another attempt runs; its last sign of life was %s ago", age);
        return (int)r->args->in_flight;
    case HAPAX_ANSWER_UNKNOWN:
        run_say(
            r, "an earlier attempt did not tell its end, and nobody knows what it did: see \"hapax "
               "show\" and \"hapax resolve\"");
        return RUN_NOT_KNOWN;
    case HAPAX_ANSWER_MISMATCH:
        run_say(r, "the key was used for another %s",
                answer->differs == HAPAX_DIFFERS_CALLER ? "caller" : "command or input");
        return RUN_MISMATCH;
    case HAPAX_ANSWER_BAD_KEY:
        run_say(r, "KEY has fewer bytes than --key-min, which is %u", answer->key_min);
        return RUN_FAILED;
    case HAPAX_ANSWER_MISSING_OWNER:
        run_say(r, "--owner is missing, and --owner-required is on");
        return RUN_FAILED;
    case HAPAX_ANSWER_EXPIRED:
        run_say(r, answer->recorded
                       ? "not run: it was done under this KEY, longer ago than --retention"
                       : "not run: KEY is older than --retention, and nothing is known of it");
        return RUN_FAILED;
    default:
        run_say(r, "the store failed, and nothing was run: %s",
                text[0] ? text : hapax_error_name(answer->error));
        return RUN_NO_STORE;
    }
}

/* The exit status of an answer. */
static int judge(struct running *r, const struct hapax_answer *answer, const char *text)
{
    bool ran = answer->cls != 0 && answer->cls != HAPAX_CLASS_NOT_RUN;
    int status = answer->outcome.status;

    switch (answer->kind) {
    case HAPAX_ANSWER_FRESH:
    case HAPAX_ANSWER_BYPASS:
        if (r->stopped)
            return CLI_SIGNALLED + r->stopped;
        if (r->late) {
            run_say(r, "--run-max is over: the command was ended, and nobody knows what it did");
            return RUN_LOST;
        }
        if (answer->unprotected)
            run_say(r, "ran unprotected: the store is away, and --on-store-error is open");
        else if (r->passed_on)
            run_say(r,
                    "the output is longer than --max-response, and is not kept: repeats end with "
                    "%d",
                    RUN_GONE);
        else if (r->args->verbose)
            run_say(r, "ran, as attempt %u", answer->attempt);
        return status;
    case HAPAX_ANSWER_REPLAY:
        if (ran)
            run_say(r, "the claim was lost, and another attempt completed: this is its outcome");
        else if (r->args->verbose)
            run_say(r, "a replay of attempt %u", answer->attempt);
        return status;
    case HAPAX_ANSWER_GONE:
        run_say(r, "done before, with status %d; its output was not kept, as it was too long",
                status);
        return RUN_GONE;
    case HAPAX_ANSWER_FAILED:
        run_say(r, "not run: it failed %u times, as --attempts-max allows; the last time with %d",
                answer->spent, status);
        return RUN_USED_UP;
    default:
        if (!ran)
            return say_refused(r, answer, text);
        run_say(r,
                "the claim was lost while the command ran: another attempt may have run too (%s)",
                hapax_answer_name(answer->kind));
        return RUN_LOST;
    }
}

/* Whether the answer has an outcome to be printed. */
static bool shows(const struct hapax_answer *answer)
{
    return answer->kind == HAPAX_ANSWER_FRESH || answer->kind == HAPAX_ANSWER_REPLAY ||
           answer->kind == HAPAX_ANSWER_BYPASS;
}

static void print_json(struct running *r, const struct hapax_answer *answer, int exit)
{
    struct json json;

    json_begin(&json);
    json_text(&json, "answer", hapax_answer_name(answer->kind));
    json_number(&json, "exit", exit);
    json_number(&json, "attempt", answer->attempt);
    json_unsigned(&json, "fence", answer->fence);
    json_bool(&json, "recorded", answer->recorded);
    if (answer->retry_after_ms >= 0 && !shows(answer))
        json_number(&json, "retry_after_ms", answer->retry_after_ms);
    if (r->line[0] != '\0')
        json_text(&json, "text", r->line);
    if (shows(answer) && !r->passed_on)
        json_bytes(&json, "output", answer->outcome.body);
    json_end(&json);
}

static int give(struct running *r, const struct hapax_answer *answer, const char *text)
{
    int exit = judge(r, answer, text);

    if (r->args->args.json)
        print_json(r, answer, exit);
    else if (shows(answer) && !r->passed_on)
        run_print(r, answer->outcome.body);
    return r->unprinted ? RUN_FAILED : exit;
}

/* ---- the call ---------------------------------------------------------------------------- */

static void tell(struct hapax__call *calls)
{
    const struct running *r = calls->data;

    (void)eventfd_write(r->told, 1);
}

/* Waits for a new state of the call. A signal stops what has not run: what comes of the claim is
 * waited for, --timeout at most. It is heard before the state, which may be that the command is to
 * run. False: that is over, or a second signal came. */
static bool await(struct running *r)
{
    struct pollfd fds[] = {{.fd = r->told, .events = POLLIN}, {.fd = r->signals, .events = POLLIN}};
    int64_t until_us = INT64_MAX;
    eventfd_t count;
    int number;

    for (;;) {
        int64_t left_ms = (until_us - hapax__boot_us()) / US_PER_MS;

        (void)poll(fds, 2, until_us == INT64_MAX ? -1 : left_ms > 0 ? (int)left_ms : 0);
        while ((number = cli_signals_wait(r->signals, 0)) != 0) {
            bool again = r->stopped != 0;

            if (!run_heed(r, number))
                continue;
            if (again)
                return false;
            until_us = hapax__boot_us() + r->policy.timeout_ms * US_PER_MS;
        }
        if (eventfd_read(r->told, &count) == 0)
            return true;
        if (hapax__boot_us() >= until_us)
            return false;
    }
}

/* The store is closed as soon as the outcome is stored; at the latest when the lease is over, since
 * then another attempt may begin. */
static void close_store(struct running *r, const struct hapax_answer *answer)
{
    bool saves = answer->kind == HAPAX_ANSWER_FRESH && !answer->recorded;
    uint32_t lost = hapax_close(r->h, saves ? r->policy.lease_ms : r->policy.timeout_ms);

    r->h = NULL;
    hapax__traces_close(r->traces);
    if (lost > 0) {
        r->line[0] = '\0';
        run_say(r, "the outcome could not be stored: a repeat does not know that the command ran");
    }
}

static int call(struct running *r)
{
    char text[HAPAX_TEXT_MAX];
    struct hapax_answer answer = {.kind = HAPAX_ANSWER_STORE_DOWN};
    struct hapax__call *call =
        hapax__call_new(r->h, &r->policy, &r->request, NULL, r->args->reconcile != NULL, text);
    enum hapax_error error = HAPAX_ERR_NOMEM;
    int exit;

    if (call) {
        call->told = tell;
        call->data = r;
        error = hapax__call_begin(call, text);
    }
    while (error == HAPAX_ERR_NONE) {
        if (!await(r)) /* the store is left open: the call is under way */
            _exit(CLI_SIGNALLED + r->stopped);
        if (call->state == HAPAX__FLOW_ANSWER)
            break;
        hapax__call_ended(call, call->state == HAPAX__FLOW_RUN ? run_handle(r, &call->attempt)
                                                               : run_reconcile(r, &call->attempt));
    }
    if (error == HAPAX_ERR_NONE)
        error = hapax__call_leave(call, &answer, text);
    if (error != HAPAX_ERR_NONE) {
        run_say(r, "%s", text);
        exit = RUN_FAILED;
    } else {
        exit = give(r, &answer, text);
    }
    close_store(r, &answer);
    hapax_answer_release(&answer);
    return exit;
}

/* Without a store. */
static int call_nobody(struct running *r)
{
    struct hapax_answer answer = {
        .kind = HAPAX_ANSWER_BYPASS, .unprotected = true, .retry_after_ms = -1};
    uint8_t *bytes = NULL;
    int exit;

    run_unprotected(r, &answer.outcome, &bytes);
    exit = give(r, &answer, "");
    free(bytes);
    return exit;
}

/* ---- the store --------------------------------------------------------------------------- */

/* Tries for --timeout. h stays NULL where the policy lets the command run without a store, and
 * where a signal came. */
static enum cli_exit open_store(struct running *r)
{
    const struct cli_args *args = &r->args->args;
    enum cli_exit exit = cli_prepare(args, CLI_CREATE);
    const struct hapax__secrets secrets = cli_secrets_of(&r->secrets);
    const struct hapax_options how = {.secret = secrets.now,
                                      .secret_old = secrets.old,
                                      .keys = {r->keys.bytes, r->keys.len},
                                      .calls_max = 1};
    int64_t until_us = hapax__boot_us() + r->policy.timeout_ms * US_PER_MS;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    int number;

    while (exit == CLI_DONE) {
        error = hapax_open(&r->h, args->store, &how, text);
        if (error == HAPAX_ERR_NONE)
            break;
        if ((error != HAPAX_ERR_UNAVAILABLE && error != HAPAX_ERR_INDETERMINATE))
            return cli_store_failed(args, error, text);
        if (hapax__boot_us() >= until_us)
            return r->policy.on_store_error == HAPAX_STORE_OPEN
                       ? CLI_DONE
                       : cli_store_failed(args, error, text);
        number = cli_signals_wait(r->signals, AGAIN_MS);
        if (number != 0 && run_heed(r, number))
            break;
    }
    return exit;
}

/* ---- the command of hapax ---------------------------------------------------------------- */

static enum cli_exit prepare(struct running *r, struct cli_args *args)
{
    enum cli_exit exit;

    if (!args->operand || !*args->operand)
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "KEY is missing: 1 to 255 bytes");
    if (!args->words || !args->words[0])
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "COMMAND is missing: -- and what to run, as -- /usr/local/bin/report");
    exit = run_read(r, args->operand);
    if (exit == CLI_DONE)
        exit = run_ask(r);
    if (exit == CLI_DONE)
        exit = cli_secrets_read(&r->secrets, args);
    if (exit == CLI_DONE)
        exit = cli_keys_read(&r->keys, args);
    if (exit == CLI_DONE)
        exit = cli_traces_open(&r->traces, args, &r->args->telling, HAPAX__TRACED_COMMAND);
    if (exit != CLI_DONE)
        return exit;
    (void)signal(SIGPIPE, SIG_IGN); /* what is printed may have no reader, and is to be stored */
    r->signals = cli_signals_begin_parent();
    r->told = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->signals < 0 || r->told < 0)
        return cli_fail(args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "no descriptor is left");
    return CLI_DONE;
}

static struct running *running_new(struct cli_args *args)
{
    static struct running standing;

    standing.args = (const struct run_args *)args;
    standing.input = -1;
    standing.out = -1;
    return &standing;
}

static enum cli_exit run(struct cli_args *args)
{
    struct running *r = running_new(args);
    int exit = prepare(r, args) == CLI_DONE ? 0 : RUN_FAILED;

    if (exit == 0) {
        enum cli_exit opened = open_store(r);

        if (r->h)
            hapax__use_traces(r->h, r->traces);
        if (opened != CLI_DONE)
            exit = opened == CLI_USAGE ? RUN_FAILED : RUN_NO_STORE;
        else if (r->stopped)
            exit = CLI_SIGNALLED + r->stopped;
        else
            exit = r->h ? call(r) : call_nobody(r);
    }
    explicit_bzero(&r->secrets, sizeof(r->secrets));
    explicit_bzero(&r->keys, sizeof(r->keys));
    if (r->line[0] != '\0') {
        (void)fputs("hapax run: ", stderr);
        print_text(stderr, hapax_str(r->line), false, 0);
        (void)fputc('\n', stderr);
    }
    return (enum cli_exit)exit;
}

static enum cli_exit advise(struct cli_args *args, const struct cli_advice *to)
{
    struct running *r = running_new(args);
    struct cli_door door = {
        .policy = &r->policy,
        .owner = r->args->owner,
        .apart = "whoever has a key is given its output",
    };
    enum cli_exit exit = run_read(r, args->operand && *args->operand ? args->operand : "key");

    if (exit == CLI_DONE)
        cli_advise_door(to, &door);
    return exit;
}

static void defaults(struct cli_args *args)
{
    ((struct run_args *)args)->in_flight = RUN_IN_FLIGHT;
}

const struct cli_command cli_run = {
    .name = "run",
    .summary = "run a command once for its key, on however many machines",
    .synopsis = {"[--scope S] [--POLICY VALUE]... KEY -- COMMAND [ARG]..."},
    .operand = "KEY",
    .words = true,
    .wrong = RUN_FAILED,
    .prose =
        "Runs COMMAND if KEY was not run before, stores its output and exit status, and then "
        "prints the output. Whoever runs KEY later, on any machine with that store, gets the same "
        "output and status, and nothing runs. COMMAND finds HAPAX_KEY, HAPAX_ATTEMPT, HAPAX_FENCE "
        "and HAPAX_STALE in its environment; its stdin is empty; its stderr is passed on and not "
        "kept. It is ended with hapax, when its claim is lost, and when --run-max is over.\n\n"
        "Exit status 0 of COMMAND is final, and 75 means that it did nothing, which is believed "
        "under --on-expired rerun. Any other is a failure: the next one runs it again, unless "
        "--on-failed says otherwise. A death by a signal leaves unknown what was done.\n\n"
        "Own exit statuses: 118 done, but its output was not kept; 119 --attempts-max is used up; "
        "120 KEY was used for another command; 121 nobody knows what an earlier attempt did; 122 "
        "another runs it; 123 the store failed; 124 the claim was lost, or --run-max is over; 125 "
        "wrong usage; 126 and 127 COMMAND cannot be run. docs/run.md tells more.",
    .options = run_options,
    .option_count = RUN_OPTIONS,
    .groups = {{"Options", "scope"}, {"Policies", "profile"}},
    .examples =
        {
            {"hapax run --wait 1h nightly-$(date +%F) -- /usr/local/bin/report",
             "From cron on ten hosts: one runs it, all end with its status."},
            {"hapax run --on-expired hold --owner shop-1 payout-2026-11 -- ./payout",
             "Not again after a crash or a failure, until an operator says so."},
        },
    .settings = true,
    .args_size = sizeof(struct run_args),
    .defaults = defaults,
    .run = run,
    .advise = advise,
};
