/* SPDX-License-Identifier: Apache-2.0
 *
 * The policies as options: the same flags, in the same order, of every command that is a door. The
 * policy `key` is not among them, since not every door can leave it to a flag.
 */
#ifndef HAPAX_CLI_POLICIES_H
#define HAPAX_CLI_POLICIES_H

#include "cli.h"

#define CLI_POLICIES 14u

/* All of them, into field[0] to field[CLI_POLICIES - 1]. failed, attempts: the help of on-failed
 * and attempts-max, in which doors differ. */
#define CLI_POLICY_OPTIONS(type, field, failed, attempts)                                          \
    CLI_TEXT_OPTION(type, field[0], "lease", "TIME",                                               \
                    "A claim not renewed for this long is dead; 30s"),                             \
        CLI_TEXT_OPTION(type, field[1], "run-max", "TIME", "How long a handler may take; 1h"),     \
        CLI_TEXT_OPTION(type, field[2], "retention", "TIME", "How long an outcome is kept; 24h"),  \
        CLI_TEXT_OPTION(type, field[3], "wait", "TIME",                                            \
                        "How long a repeat waits for the first; 0: not at all"),                   \
        CLI_TEXT_OPTION(type, field[4], "timeout", "TIME",                                         \
                        "How long the store is tried before anything runs; 2s"),                   \
        CLI_TEXT_OPTION(type, field[5], "save-wait", "TIME",                                       \
                        "How long an outcome waits to be stored; 2s"),                             \
        CLI_TEXT_OPTION(type, field[6], "on-expired", "WHAT",                                      \
                        "A claim died: rerun, hold or reconcile; rerun"),                          \
        CLI_TEXT_OPTION(type, field[7], "on-failed", "WHAT", failed),                              \
        CLI_TEXT_OPTION(type, field[8], "on-store-error", "WHAT",                                  \
                        "closed: nothing runs; open: run unprotected; closed"),                    \
        CLI_TEXT_OPTION(type, field[9], "attempts-max", "N", attempts),                            \
        CLI_TEXT_OPTION(type, field[10], "max-request", "SIZE", "A larger body is refused; 1m"),   \
        CLI_TEXT_OPTION(type, field[11], "max-response", "SIZE", "A larger body is not kept; 1m"), \
        CLI_TEXT_OPTION(type, field[12], "rerun-completed", "on",                                  \
                        "No replays, only exclusion; off"),                                        \
        CLI_TEXT_OPTION(type, field[13], "pass-token", "on",                                       \
                        "The handler may complete the record itself; off")

/* Sets one policy. A wrong value is printed as one of --OPTION, and CLI_USAGE is returned. */
enum cli_exit cli_policy_set(struct hapax_policy *policy, const struct cli_args *args,
                             const char *option, const char *name, const char *value);

/* Sets those of n policies that were given: values[i] is that of options[i]. */
enum cli_exit cli_policies_set(struct hapax_policy *policy, const struct cli_args *args,
                               const struct cli_option *options, const char *const *values,
                               size_t n);

#endif
