/* SPDX-License-Identifier: Apache-2.0
 *
 * The pulse: the one thread of a C door that drives the flows of all its calls (call.h). The door's
 * own threads run handlers, and wait or are notified. The pulse does all else that a flow asks for.
 */
#ifndef HAPAX_DOOR_PULSE_H
#define HAPAX_DOOR_PULSE_H

#include "lane/lane.h"

#define HAPAX__CALLS_MAX (1u << 20)

struct hapax__pulse;

/* Whether the breaker of its calls turns claims away (core/breaker.h). Safe from any thread. */
bool hapax__pulse_store_dead(const struct hapax__pulse *pulse);

/* hapax__claims_leave() */
void hapax__pulse_leave_claims(struct hapax__pulse *pulse);

/* What its flows and its lane count. Read each word by itself. Safe from any thread. */
struct hapax__counts *hapax__pulse_counts(struct hapax__pulse *pulse);
const struct hapax__lane_counts *hapax__pulse_lane_counts(const struct hapax__pulse *pulse);

/* Starts the thread. calls_max: how many calls may be under way, 1 to HAPAX__CALLS_MAX. On success
 * the pulse owns the lane. NOMEM: *out is NULL, and the lane is still the caller's. */
enum hapax_error hapax__pulse_open(struct hapax__pulse **out, struct hapax__lane *lane,
                                   uint32_t calls_max);

/* Waits until the doors have left every call. Then it waits for outcomes that are still being
 * stored, for save_wait_ms at most. Stops the rest, closes the lane, ends the thread and frees the
 * pulse. Returns how many outcomes were not stored. */
uint32_t hapax__pulse_close(struct hapax__pulse *pulse, int64_t save_wait_ms);

#endif
