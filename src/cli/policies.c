/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies from a command line: texts until every option is read, since the limits of one depend on
 * another.
 */
#include "policies.h"

enum cli_exit cli_policy_set(struct hapax_policy *policy, const struct cli_args *args,
                             const char *option, const char *name, const char *value)
{
    char text[HAPAX_TEXT_MAX];

    if (hapax_policy_set(policy, name, value, text) == HAPAX_ERR_NONE)
        return CLI_DONE;
    return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID, "--%.200s: %s", option, text);
}

enum cli_exit cli_policies_set(struct hapax_policy *policy, const struct cli_args *args,
                               const struct cli_option *options, const char *const *values,
                               size_t n)
{
    enum cli_exit exit = CLI_DONE;

    for (size_t i = 0; i < n && exit == CLI_DONE; i++)
        if (values[i])
            exit = cli_policy_set(policy, args, options[i].name, options[i].name, values[i]);
    return exit;
}
