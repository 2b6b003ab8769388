/* SPDX-License-Identifier: Apache-2.0
 *
 * How an operation's steps are found: records under the steps ".1", ".2", … of its scope and key, each
 * completed, with one step's name as its body (step.c).
 */
#ifndef HAPAX_DOOR_STEP_H
#define HAPAX_DOOR_STEP_H

#include <hapax/hapax.h>

#define HAPAX__STEP_PLACE_SIZE 8u

/* What all records of such a list have as their fingerprint, and no others. */
void hapax__steps_fingerprint(struct hapax_digest *out);

/* The step under which the list's record number 1 to HAPAX_STEPS_MAX stands. */
void hapax__step_place(char out[HAPAX__STEP_PLACE_SIZE], unsigned number);

#endif
