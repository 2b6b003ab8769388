/* SPDX-License-Identifier: Apache-2.0
 *
 * What the command line asks of the policies' tables besides <hapax/hapax.h>.
 */
#ifndef HAPAX_CORE_POLICY_H
#define HAPAX_CORE_POLICY_H

/* The value that a profile gives the policy `name`, written as for hapax_policy_set(). NULL: the
 * profile leaves that policy alone, or there is none of that name. */
const char *hapax__policy_profile(const char *profile, const char *name);

#endif
