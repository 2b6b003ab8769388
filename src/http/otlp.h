/* SPDX-License-Identifier: Apache-2.0
 *
 * Spans as a collector takes them: the body of a request of OTLP over HTTP, in protobuf.
 */
#ifndef HAPAX_HTTP_OTLP_H
#define HAPAX_HTTP_OTLP_H

#include "told.h"

#define HAPAX__OTLP_HEAD_MAX  512u /* what stands before the spans */
#define HAPAX__OTLP_SPANS_MAX 2048u /* all spans of an operation: two names of 255 bytes at most */
#define HAPAX__OTLP_MAX       ((size_t)1 << 20) /* all spans of a request */

/* Appends all spans of an operation. scope: its scope, by hapax_what(). ahead_us: of the wall
 * clock, before the door's. */
uint8_t *hapax__otlp_spans(uint8_t *at, const struct hapax__told *told, struct hapax_span scope,
                           enum hapax__traced_door door, int64_t ahead_us);

/* Writes what stands before spans, right before them. Returns where the request begins. service: by
 * hapax_what(). */
uint8_t *hapax__otlp_head(uint8_t *spans, size_t spans_len, struct hapax_span service);

#endif
