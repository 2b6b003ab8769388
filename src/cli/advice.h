/* SPDX-License-Identifier: Apache-2.0
 *
 * What the settings of a door promise, and which of them are dangerous. `hapax serve` and
 * `hapax consume` say it at their start. `hapax check -- DOOR OPTION…` says it of every door,
 * without a start.
 *
 * Each line says what is set, what may follow, and what to set instead.
 */
#ifndef HAPAX_CLI_ADVICE_H
#define HAPAX_CLI_ADVICE_H

#include "cli.h"

#define CLI_PROMISE_MAX 1024u

enum cli_level {
    CLI_OK = 1,
    CLI_WARNING, /* dangerous in some places, which no program can see */
    CLI_DANGER /* an effect may happen twice, or strangers may read or change something */
};

/* Whom advice is given. The line is borrowed for the call. */
struct cli_advice {
    void (*say)(void *arg, enum cli_level level, const char *line);
    void *arg;
};

/* Settings that all doors have. */
struct cli_door {
    const struct hapax_policy *policy;
    const char *mode; /* "shadow" or "off": those that are not on; NULL: all are on */
    int64_t on_percent; /* of 100 keys so many are on all the same */
    bool differs; /* some requests have other policies or classes */
    const char *owner, *caller, *scope; /* as they were given; NULL: not given */
    const char *apart; /* a clause: what tells keys apart where neither owner nor caller is given */
    const char *risk; /* a line: what may follow then; NULL: nothing */
    const struct cli_texts *classes; /* "503 not_run", of a door that has such; otherwise NULL */
};

void cli_advise(const struct cli_advice *to, enum cli_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A `say` for the start of a door, with its struct cli_args for `arg`: prints dangers, as
 * cli_log(), and no warnings, which may be none. */
void cli_log_danger(void *arg, enum cli_level level, const char *line);

/* What the settings promise: after a crash, after a 500, for whom keys are told apart, for how
 * long. Returns WARNING where an effect may happen twice, otherwise OK. */
enum cli_level cli_promise(char out[CLI_PROMISE_MAX], const struct cli_door *door);

/* Says the promise, and what of the settings is dangerous. */
void cli_advise_door(const struct cli_advice *to, const struct cli_door *door);

/* Warns of a URL or a broker's URI by which bytes go to another machine in clear, or to one that
 * is not known. option: that it was given by. NULL: it was not given. */
void cli_advise_wire(const struct cli_advice *to, enum cli_level level, const char *option,
                     const char *url);

#endif
