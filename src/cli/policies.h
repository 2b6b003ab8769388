/* SPDX-License-Identifier: Apache-2.0
 *
 * The policies as options: the same flags, in the same order, of every command that is a door. The
 * policy `key` is not among them, since not every door can leave it to a flag.
 */
#ifndef HAPAX_CLI_POLICIES_H
#define HAPAX_CLI_POLICIES_H

#include "cli.h"

#define CLI_POLICIES 21u

/* Two of them, whose defaults differ between doors. */
#define CLI_POLICY_RUN_MAX 2u
#define CLI_POLICY_WAIT    4u

#define CLI_PROFILE_HELP        "Hold, key and owner required, key-min 16, retention 7d"
#define CLI_KEY_MIN_HELP        "Keys of fewer bytes are refused (default 0, most 255)"
#define CLI_OWNER_REQUIRED_HELP "Keys without an owner are refused (default off)"
#define CLI_KEY_EXPIRES_HELP    "Keys older than --retention are refused (default off)"
#define CLI_4XX_HELP            "How long a 4xx outcome is kept (default: the same)"
#define CLI_KEPT_FAILED_HELP    "How long a failed one is kept (default: the same)"
#define CLI_TOMBSTONE_HELP      "Then its key is refused for so long (default 0)"

/* All of them, into field[0] to field[CLI_POLICIES - 1]. run_max, wait: their defaults.
 * failed, attempts: the help of on-failed and attempts-max, in which doors differ. */
#define CLI_POLICY_OPTIONS(type, field, run_max, wait, failed, attempts)                           \
    CLI_TEXT_OPTION(type, field[0], "profile", "payments", CLI_PROFILE_HELP),                      \
        CLI_TEXT_OPTION(type, field[1], "lease", "TIME",                                           \
                        "A claim not renewed for this long is dead (default 30s)"),                \
        CLI_TEXT_OPTION(type, field[CLI_POLICY_RUN_MAX], "run-max", "TIME",                        \
                        "How long a handler may take (default " run_max ")"),                      \
        CLI_TEXT_OPTION(type, field[3], "retention", "TIME",                                       \
                        "How long an outcome is kept (default 24h)"),                              \
        CLI_TEXT_OPTION(type, field[CLI_POLICY_WAIT], "wait", "TIME",                              \
                        "How long a repeat waits for the first (default " wait ")"),               \
        CLI_TEXT_OPTION(type, field[5], "timeout", "TIME",                                         \
                        "How long to try the store before a run (default 2s)"),                    \
        CLI_TEXT_OPTION(type, field[6], "save-wait", "TIME",                                       \
                        "How long an outcome waits to be stored (default 2s)"),                    \
        CLI_TEXT_OPTION(type, field[7], "on-expired", "WHAT",                                      \
                        "A claim died: rerun, hold or reconcile (default rerun)"),                 \
        CLI_TEXT_OPTION(type, field[8], "on-failed", "WHAT", failed),                              \
        CLI_TEXT_OPTION(type, field[9], "on-store-error", "WHAT",                                  \
                        "closed: nothing runs; open: unprotected (default closed)"),               \
        CLI_TEXT_OPTION(type, field[10], "attempts-max", "N", attempts),                           \
        CLI_TEXT_OPTION(type, field[11], "max-request", "SIZE",                                    \
                        "A larger body is refused (default 1m)"),                                  \
        CLI_TEXT_OPTION(type, field[12], "max-response", "SIZE",                                   \
                        "A larger body is not kept (default 1m)"),                                 \
        CLI_TEXT_OPTION(type, field[13], "rerun-completed", "on",                                  \
                        "No replays, only exclusion (default off)"),                               \
        CLI_TEXT_OPTION(type, field[14], "pass-token", "on",                                       \
                        "The handler may complete the record (default off)"),                      \
        CLI_TEXT_OPTION(type, field[15], "key-min", "N", CLI_KEY_MIN_HELP),                        \
        CLI_TEXT_OPTION(type, field[16], "owner-required", "on", CLI_OWNER_REQUIRED_HELP),         \
        CLI_TEXT_OPTION(type, field[17], "key-expires", "on", CLI_KEY_EXPIRES_HELP),               \
        CLI_TEXT_OPTION(type, field[18], "retention-4xx", "TIME", CLI_4XX_HELP),                   \
        CLI_TEXT_OPTION(type, field[19], "retention-failed", "TIME", CLI_KEPT_FAILED_HELP),        \
        CLI_TEXT_OPTION(type, field[20], "tombstone", "TIME", CLI_TOMBSTONE_HELP)

/* Sets one policy. A wrong value is printed as one of --OPTION, and CLI_USAGE is returned. */
enum cli_exit cli_policy_set(struct hapax_policy *policy, const struct cli_args *args,
                             const char *option, const char *name, const char *value);

/* Sets those of n policies that were given: values[i] is that of options[i]. */
enum cli_exit cli_policies_set(struct hapax_policy *policy, const struct cli_args *args,
                               const struct cli_option *options, const char *const *values,
                               size_t n);

#endif
