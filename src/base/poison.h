/* SPDX-License-Identifier: Apache-2.0
 *
 * Included before every source of ours (meson.build): calls that have no bound do not compile.
 */
#ifndef HAPAX_BASE_POISON_H
#define HAPAX_BASE_POISON_H

/* What declares them comes first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef sprintf /* with clang and FORTIFY_SOURCE a macro, and those cannot be poisoned quietly */
#pragma GCC poison strcpy strcat sprintf vsprintf gets atoi atol strtok

#endif
