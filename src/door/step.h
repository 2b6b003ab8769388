/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of an operation's steps: completed records under the steps ".1", ".2", … of the
 * operation's scope and key. The body of each record is the name of one step (step.c).
 */
#ifndef HAPAX_DOOR_STEP_H
#define HAPAX_DOOR_STEP_H

#include <hapax/hapax.h>

#define HAPAX__STEP_INDEX_SIZE 8u

/* Writes the fingerprint that all records of such lists have, and no other record. */
void hapax__steps_fingerprint(struct hapax_digest *out);

/* Writes the step of the list's record number `index` (1 to HAPAX_STEPS_MAX), as text: ".1". */
void hapax__step_index(char out[HAPAX__STEP_INDEX_SIZE], unsigned index);

#endif
