/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax run, in three files: run.c holds the call and says what came of it, run_ask.c reads what is
 * asked, and run_job.c runs the command.
 */
#ifndef HAPAX_CLI_RUN_H
#define HAPAX_CLI_RUN_H

#include "cli.h"
#include "policies.h"

/* Our own statuses, near those of env and timeout. */
#define RUN_GONE      118
#define RUN_USED_UP   119
#define RUN_MISMATCH  120
#define RUN_NOT_KNOWN 121
#define RUN_IN_FLIGHT 122
#define RUN_NO_STORE  123
#define RUN_LOST      124
#define RUN_FAILED    125 /* 126 and 127: CLI_NOT_RUNNABLE, CLI_NOT_FOUND */

#define RUN_OPTIONS   (11u + CLI_POLICIES)
#define RUN_RULES_MAX 64u
#define RUN_TEXT_MAX  640u

struct cli_child;

struct run_args {
    struct cli_args args;
    const char *scope;
    const char *owner;
    const char *fingerprint;
    const char *reconcile;
    struct cli_texts classes;
    struct cli_telling telling;
    int64_t in_flight;
    bool input;
    bool live;
    bool verbose;
    const char *policies[CLI_POLICIES];
};

struct run_rule {
    int first, last;
    enum hapax_class cls;
};

struct running {
    const struct run_args *args;
    struct hapax_policy policy;
    struct hapax_request request;
    struct run_rule rules[RUN_RULES_MAX];
    size_t rule_count;
    struct cli_secrets secrets;
    struct cli_secret keys;
    struct hapax__traces *traces;
    struct hapax *h; /* NULL: it runs unprotected */
    int input; /* what was read from stdin; -1: nothing */
    int signals;
    int told; /* an eventfd: the call has a new state */
    bool ran; /* the command has begun */
    int stopped; /* the first signal that came before that */
    bool ending; /* a signal came that ends a process */
    bool hung_up; /* SIGHUP went to the child, which may reload at it */
    int64_t until_us; /* when --run-max is over; 0: neither hook nor command has begun */
    bool late; /* it was over before their end */
    struct cli_child *child; /* command or hook, while it runs */
    const struct hapax_attempt *attempt; /* the child's; NULL: it runs unprotected */
    int64_t kill_us; /* when the child gets SIGKILL; 0: it is not to end */
    bool passed_on; /* the output is printed */
    int out; /* stdout for the output, without blocking where that can be; -1: not yet used */
    bool unprinted; /* stdout took no more */
    char line[RUN_TEXT_MAX]; /* what there is to say */
};

/* The policies come last. */
extern const struct cli_option run_options[RUN_OPTIONS];

/* Says something once all is over. The first line counts. */
void run_say(struct running *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- what is asked (run_ask.c) ----------------------------------------------------------- */

/* Reads the settings. A wrong one is printed, and CLI_USAGE is returned. */
enum cli_exit run_read(struct running *r, const char *key);

/* Completes the request by its fingerprint, and reads stdin where it is asked for. */
enum cli_exit run_ask(struct running *r);

/* ---- the command (run_job.c) ------------------------------------------------------------- */

/* Takes a signal, and hands it on to the command, or to the hook. True: it tells us to end before
 * the command has begun. */
bool run_heed(struct running *r, int number);

/* Prints a part of the output, and sees to signals and to the command meanwhile. Once a signal came
 * and the command has ended, stdout is waited for no longer than 5 s. A failure is kept in r. */
void run_print(struct running *r, struct hapax_span output);

/* Runs the command, and sets its outcome. */
enum hapax_class run_handle(struct running *r, struct hapax_attempt *attempt);

/* Asks the hook. */
enum hapax_class run_reconcile(struct running *r, struct hapax_attempt *attempt);

/* Runs the command without a store. *bytes, which the output points into, is the caller's. */
void run_unprotected(struct running *r, struct hapax_outcome *outcome, uint8_t **bytes);

#endif
