/* SPDX-License-Identifier: Apache-2.0
 *
 * A message's history in the consumer's own headers: read from those it came with, which are
 * foreign bytes, and written into the letters that carry it on.
 */
#ifndef HAPAX_BROKER_LETTER_H
#define HAPAX_BROKER_LETTER_H

#include "sink.h"
#include "source.h"

#define HAPAX__COUNT_MAX                                                                           \
    1000000000u /* of attempts, in a header; what is over it counts as none   \
                                      */

struct hapax__history {
    uint32_t attempts; /* how many may have run since it was published or put back */
    uint32_t base; /* what the record had spent when that count began */
};

/* hapax-attempts and hapax-base, decimal numbers; what is no such number counts as 0. With
 * hapax-reason the message was put back: it begins with no attempts, at what was spent when it was
 * given up. */
struct hapax__history hapax__history_read(const struct hapax_message *message);

/* What the CLAIM's attempts_max is for a message with this base; 0: no limit. */
uint32_t hapax__attempts_limit(uint32_t attempts_max, uint32_t base);

/* A letter with the memory for its headers. */
struct hapax__posting;

struct hapax__post_what {
    const char *to; /* borrowed as long as the posting */
    struct hapax__history history; /* this attempt counted */
    int64_t delay_ms;
    const char *reason; /* NULL: a retry, and the next four are not looked at */
    const char *error; /* a line about the reason, copied */
    uint32_t spent; /* by the record, when the message was given up */
    const char *scope;
    int64_t time_us; /* since 1970 */
    void *tag;
};

/* A copy of the delivery's message with its history; with a reason, why it was given up. The
 * delivery is borrowed until it is freed. NULL: out of memory. */
struct hapax__posting *hapax__posting_new(const struct hapax__delivered *delivered,
                                          const struct hapax__post_what *what);
void hapax__posting_free(struct hapax__posting *posting);
const struct hapax__letter *hapax__posting_letter(const struct hapax__posting *posting);

#endif
