/* SPDX-License-Identifier: Apache-2.0
 *
 * A message's history in the headers that Hapax adds. The history is read from the headers that the
 * message came with, which are foreign bytes, and written into the letter that copies the message.
 */
#ifndef HAPAX_BROKER_LETTER_H
#define HAPAX_BROKER_LETTER_H

#include "sink.h"
#include "source.h"

/* The most attempts that a header may count. A larger number is read as 0. */
#define HAPAX__COUNT_MAX 1000000000u

/* hapax-reason: why a message became a dead or parked letter. */
enum hapax__reason {
    HAPAX__REASON_NONE = 0,
    HAPAX__REASON_FAILED,
    HAPAX__REASON_REFUSED,
    HAPAX__REASON_MISMATCH,
    HAPAX__REASON_UNKNOWN,
    HAPAX__REASON_CORRUPT,
    HAPAX__REASON_NO_KEY,
    HAPAX__REASON_BAD_KEY,
    HAPAX__REASON_TOO_LARGE,
    HAPAX__REASONS
};

/* The text of hapax-reason: static. `reason` is not NONE. */
const char *hapax__reason_name(enum hapax__reason reason);

/* The reason of a letter. NONE: hapax-reason is missing, or has another text. */
enum hapax__reason hapax__reason_read(const struct hapax_message *message);

/* The value of a message's header. An empty span with a NULL pointer: the header is missing. */
struct hapax_span hapax__header_of(const struct hapax_message *message, const char *name);

struct hapax__history {
    /* How many attempts may have run since the message was published or put back. */
    uint32_t attempts;
    /* How many attempts the record counted when `attempts` began at 0. */
    uint32_t base;
};

/* Reads hapax-attempts and hapax-base. A text that is no decimal number counts as 0. A message with
 * hapax-reason was put back: its attempts begin at 0 again, and its base is what the record had
 * spent when the message was given up. */
struct hapax__history hapax__history_read(const struct hapax_message *message);

/* The attempts_max of the CLAIM for a message with this base. 0: no limit. */
uint32_t hapax__attempts_limit(uint32_t attempts_max, uint32_t base);

struct hapax__letter_args {
    const char *to; /* borrowed as long as the letter */
    struct hapax__history history; /* this attempt counted */
    const struct hapax_id *id; /* of the record; NULL: the message has no key */
    int64_t delay_ms;
    /* NONE: a retry. The next four fields are then not used. */
    enum hapax__reason reason;
    const char *error; /* hapax-error; copied */
    uint32_t spent; /* attempts that the record counts now */
    const char *scope; /* borrowed as long as the letter */
    int64_t time_us; /* since 1970 */
    void *tag;
};

/* Copies the delivery's message into a letter, with its history and, if there is one, the reason.
 * The letter borrows the delivery until hapax__letter_free(). NULL: out of memory. */
struct hapax__letter *hapax__letter_copy(const struct hapax__delivered *delivered,
                                         const struct hapax__letter_args *args);
void hapax__letter_free(struct hapax__letter *letter);

#endif
