/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a run stands among the traces of its caller: W3C Trace Context, `traceparent`.
 *
 * A run's context is kept with its outcome, as the first of the outcome's header lines. So it is in
 * every store, with the outcome, and no longer than the outcome. The doors put the line there; the
 * flow takes it off from every outcome that it answers with.
 */
#ifndef HAPAX_CORE_TRACE_H
#define HAPAX_CORE_TRACE_H

#include <hapax/hapax.h>

#define HAPAX__TRACE_NAME "Hapax-Trace: "
#define HAPAX__TRACE_TEXT ((size_t)HAPAX_TRACE_MAX - 1)
#define HAPAX__TRACE_LINE (sizeof(HAPAX__TRACE_NAME) - 1 + HAPAX__TRACE_TEXT + 2)

struct hapax__trace {
    uint8_t trace[16];
    uint8_t span[8];
    uint8_t flags; /* bit 1: it is recorded */
};

/* Reads a traceparent of version 00, or what a later version has of it. False: it is none. */
bool hapax__trace_read(struct hapax__trace *out, struct hapax_span text);

/* Writes it as version 00, with a NUL. */
void hapax__trace_write(char out[HAPAX_TRACE_MAX], const struct hapax__trace *trace);

/* Writes the line of an outcome's headers, for a text that hapax__trace_write() wrote. */
void hapax__trace_line(uint8_t out[HAPAX__TRACE_LINE], const char text[HAPAX_TRACE_MAX]);

/* Takes the line off from an outcome's headers. out: its text; "" where there is none. */
void hapax__trace_take(char out[HAPAX_TRACE_MAX], struct hapax_span *headers);

#endif
