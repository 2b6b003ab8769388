/* SPDX-License-Identifier: Apache-2.0
 *
 * The pulse: the one thread of a C door that drives the flows of all its calls (call.h). Threads of
 * the door run handlers, and wait or are told; everything else that a flow asks for is done by the
 * pulse.
 */
#ifndef HAPAX_DOOR_PULSE_H
#define HAPAX_DOOR_PULSE_H

#include "lane/lane.h"

#define HAPAX__CALLS_MAX (1u << 20)

struct hapax__pulse;

/* Starts the thread. From then on the lane is the pulse's. NOMEM: *out is NULL, and the lane is
 * still yours. calls_max: 1 to HAPAX__CALLS_MAX. */
enum hapax_error hapax__pulse_open(struct hapax__pulse **out, struct hapax__lane *lane,
                                   uint32_t calls_max);

/* Waits until every call was left, and for outcomes that are still being stored, until save_wait_ms
 * is over. Then it stops the rest, closes the lane and ends the thread. Returns how many outcomes
 * were not stored. */
uint32_t hapax__pulse_close(struct hapax__pulse *pulse, int64_t save_wait_ms);

#endif
