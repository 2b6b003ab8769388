/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of the message door: its thread alone touches source and sink.
 */
#ifndef HAPAX_DOOR_CONSUME_LOOP_H
#define HAPAX_DOOR_CONSUME_LOOP_H

#include "deliveries.h"

/* Runs until stop_fd is readable and all deliveries are released. Closes the source and the sink in
 * any case. NOMEM. REFUSED: the source's pump() failed so, and text is the source's. */
enum hapax_error hapax__loop_run(const struct hapax__loop_parts *parts, char text[HAPAX_TEXT_MAX]);

#endif
