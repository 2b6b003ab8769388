/* SPDX-License-Identifier: Apache-2.0
 *
 * What became of operations, told to others: spans to a collector by OTLP over HTTP, in its JSON
 * form, and events, a line of JSON for each attempt that has ended (docs/traces.md has both).
 *
 * A door puts what it tells into bounded queues, and never waits. A thread sends spans, another one
 * writes events. What finds a queue full, or what nobody takes, is dropped and counted.
 */
#ifndef HAPAX_HTTP_TRACES_H
#define HAPAX_HTTP_TRACES_H

#include "core/flow.h"
#include "told.h"

#include <stdatomic.h>
#include <stdio.h>

struct hapax__traces;

struct hapax__traces_settings {
    enum hapax__traced_door door;
    /* The collector's URL; without a path /v1/traces is added. NULL: the environment's
     * (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT). Neither: no spans. */
    const char *url;
    bool no_spans; /* whatever the environment says */
    const char *events; /* a file to append to; "-": standard output; NULL: no events */
    const int *events_fd; /* it is open already, and stays the caller's; NULL: it is to be opened */
};

/* Opens what the settings name. *out is NULL where that is nothing. INVALID: a URL, a header or a
 * file; text names it. NOMEM. */
enum hapax_error hapax__traces_open(struct hapax__traces **out,
                                    const struct hapax__traces_settings *settings,
                                    char text[HAPAX_TEXT_MAX]);

/* Standard output, to be written without blocking. Others share it, so a pipe is opened anew; where
 * that is forbidden (another user's), it is used as it is. -1: there is none. */
int hapax__traces_output(void);

/* Sends what is queued, for 2 s, or 3 where a request is under way, and frees. NULL: does
 * nothing. */
void hapax__traces_close(struct hapax__traces *traces);

/* Begins an operation under the caller's context, which may be none. The caller decides whether it
 * is recorded; where there is no caller it is. traces may be NULL. */
void hapax__traces_begin(struct hapax__traces *traces, struct hapax__traced *out,
                         struct hapax_span traceparent);

/* The context of the handler's run: what is handed on, and kept with the outcome. False: none. */
bool hapax__traces_run(struct hapax__trace *out, const struct hapax__traced *traced);

/* The flow gives its answer. */
void hapax__traces_answer(struct hapax__traces *traces, const struct hapax__traced *traced,
                          const struct hapax__flow *flow, int64_t now_us);

/* A relay's publication of a row has ended. All is copied. */
struct hapax__publication_told {
    struct hapax_span traceparent, topic;
    int64_t seq;
    int64_t begun_us;
    bool published; /* the broker confirmed it */
};
HAPAX__SHARED void hapax__traces_published(struct hapax__traces *traces,
                                           const struct hapax__publication_told *of,
                                           int64_t now_us);

/* How many operations were sent as spans, dropped instead, and how many events were dropped. */
struct hapax__traces_counts {
    uint64_t sent, dropped, events_dropped;
};
struct hapax__traces_counts hapax__traces_counts(const struct hapax__traces *traces);

/* The same of this process, for its /metrics; nothing where it has none. The page is closed before
 * they are. */
HAPAX__SHARED void hapax__traces_metrics(FILE *out);

#endif
