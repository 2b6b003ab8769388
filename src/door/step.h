/* SPDX-License-Identifier: Apache-2.0
 *
 * What makes a call a step (step.c), for hapax_step() and for the socket's door, and the list of an
 * operation's steps: completed records under the steps ".1", ".2", … of the operation's scope and
 * key. The body of each record is the name of one step.
 */
#ifndef HAPAX_DOOR_STEP_H
#define HAPAX_DOOR_STEP_H

#include <hapax/hapax.h>

#define HAPAX__STEP_INDEX_SIZE 8u

/* ---- a step --------------------------------------------------------------------------- */

/* Whether an attempt can have a step of this name. INVALID: text says why not. */
enum hapax_error hapax__step_check(const struct hapax_attempt *outer, struct hapax_span name,
                                   char text[HAPAX_TEXT_MAX]);

/* Makes the policy of an operation's steps. */
void hapax__step_policy(struct hapax_policy *policy, const struct hapax_policy *operation);

/* Whether an earlier record of a step that is to run may have come and gone since its operation
 * began. Then the step is not run, and UNKNOWN is answered. */
bool hapax__step_forgotten(const struct hapax_attempt *attempt, const struct hapax_attempt *outer);

/* ---- the list of steps ------------------------------------------------------------------ */

/* Writes the fingerprint that all records of such lists have, and no other record. */
void hapax__steps_fingerprint(struct hapax_digest *out);

/* Writes the step of the list's record number `index` (1 to HAPAX_STEPS_MAX), as text: ".1". */
void hapax__step_index(char out[HAPAX__STEP_INDEX_SIZE], unsigned index);

/* A call that puts a step's name into one record of the list, unless the record has a name. */
struct hapax__step_entry {
    struct hapax_policy policy;
    struct hapax_request request; /* points into `name` and into the operation's request */
    char name[HAPAX__STEP_INDEX_SIZE];
};

/* The number of the last record that surely has no use for a step of this attempt. A step that runs
 * for the first time (number 1) cannot be in the list: the search begins behind the names that
 * `outer` has put there. */
unsigned hapax__step_list_from(const struct hapax_attempt *outer, uint32_t number);

void hapax__step_entry_init(struct hapax__step_entry *entry, const struct hapax_attempt *outer,
                            unsigned index);

/* The call's handler. */
enum hapax_class hapax__step_entry_run(struct hapax_attempt *attempt, struct hapax_span name);

enum hapax__entry_is {
    HAPAX__ENTRY_OURS = 1, /* the record has this name */
    HAPAX__ENTRY_TAKEN, /* another name, or nobody knows: the next record is tried */
    HAPAX__ENTRY_NOT_REACHED, /* the store is away: answer->error says why */
    HAPAX__ENTRY_NOMEM
};

/* What the call's answer says. */
enum hapax__entry_is hapax__step_entry_of(const struct hapax_answer *answer,
                                          struct hapax_span name);

/* The list is known to have `at` records. */
void hapax__step_listed(struct hapax_attempt *outer, unsigned at);

#endif
