/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes and reads the hapax-* headers of letters: retries, dead letters (the handler failed for
 * good) and parked ones (an operator must look).
 *
 * The invariant: the record of the operation counts its attempts, and headers say only where a
 * count began. hapax-attempts is how many attempts the message has had since it was published or
 * put back. hapax-base is what the record had counted when the message was last given up;
 * attempts_max counts from there. So a tool may put a dead letter back without changing a header,
 * and the letter has all its attempts again. An attempt that crashed could write no header; the
 * record has counted it.
 *
 * Only dead and parked letters say why (hapax-reason): a retry is the same message, a little later.
 *
 * Rejected: counting by the broker's own x-death or delivery counts. They also count deliveries
 * that ran no handler, and they begin at 0 when another tool copies a letter.
 */
#include "letter.h"

#include "base/span.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#define OWN_MAX 9

struct copy {
    struct hapax__letter letter; /* the first member: hapax__letter_free() frees the copy */
    struct hapax_message_header own[OWN_MAX];
    char attempts[12];
    char base[12];
    char id[2 * sizeof(struct hapax_id) + 1];
    char time[24];
    char error[HAPAX_TEXT_MAX];
    struct hapax_message_header headers[];
};

static const char *const own_names[OWN_MAX] = {
    HAPAX__HEADER_ATTEMPTS, HAPAX__HEADER_BASE,     HAPAX__HEADER_REASON,
    HAPAX__HEADER_ERROR,    HAPAX__HEADER_FROM,     HAPAX__HEADER_SCOPE,
    HAPAX__HEADER_TIME,     HAPAX__HEADER_POSITION, HAPAX__HEADER_ID,
};

static const char *const reasons[HAPAX__REASONS] = {
    [HAPAX__REASON_FAILED] = "failed",     [HAPAX__REASON_REFUSED] = "refused",
    [HAPAX__REASON_MISMATCH] = "mismatch", [HAPAX__REASON_UNKNOWN] = "unknown",
    [HAPAX__REASON_CORRUPT] = "corrupt",   [HAPAX__REASON_NO_KEY] = "no_key",
    [HAPAX__REASON_BAD_KEY] = "bad_key",   [HAPAX__REASON_TOO_LARGE] = "too_large",
};

const char *hapax__reason_name(enum hapax__reason reason)
{
    assert(reason > HAPAX__REASON_NONE && reason < HAPAX__REASONS);
    return reasons[reason];
}

/* ---- reading ------------------------------------------------------------------------- */

struct hapax_span hapax__header_of(const struct hapax_message *message, const char *name)
{
    for (size_t i = 0; i < message->header_count; i++)
        if (hapax__is(message->headers[i].name, name))
            return message->headers[i].value;
    return (struct hapax_span){NULL, 0};
}

enum hapax__reason hapax__reason_read(const struct hapax_message *message)
{
    struct hapax_span name = hapax__header_of(message, HAPAX__HEADER_REASON);

    for (enum hapax__reason reason = HAPAX__REASON_FAILED; reason < HAPAX__REASONS; reason++)
        if (hapax__is(name, reasons[reason]))
            return reason;
    return HAPAX__REASON_NONE;
}

static uint32_t count_of(struct hapax_span value)
{
    uint64_t count = 0;

    if (value.len == 0 || value.len > 10)
        return 0;
    for (size_t i = 0; i < value.len; i++) {
        if (value.ptr[i] < '0' || value.ptr[i] > '9')
            return 0;
        count = count * 10 + (uint64_t)(value.ptr[i] - '0');
    }
    return count <= HAPAX__COUNT_MAX ? (uint32_t)count : 0;
}

struct hapax__history hapax__history_read(const struct hapax_message *message)
{
    struct hapax__history history = {0, 0};
    bool put_back = false;

    for (size_t i = 0; i < message->header_count; i++) {
        const struct hapax_message_header *header = &message->headers[i];

        if (hapax__is(header->name, HAPAX__HEADER_ATTEMPTS))
            history.attempts = count_of(header->value);
        else if (hapax__is(header->name, HAPAX__HEADER_BASE))
            history.base = count_of(header->value);
        else if (hapax__is(header->name, HAPAX__HEADER_REASON))
            put_back = true;
    }
    if (put_back)
        history.attempts = 0;
    return history;
}

uint32_t hapax__attempts_limit(uint32_t attempts_max, uint32_t base)
{
    if (attempts_max == 0)
        return 0;
    return attempts_max > UINT32_MAX - base ? UINT32_MAX : attempts_max + base;
}

/* ---- writing ------------------------------------------------------------------------- */

static bool is_own(struct hapax_span name)
{
    for (size_t i = 0; i < OWN_MAX; i++)
        if (hapax__is(name, own_names[i]))
            return true;
    return false;
}

static void add(struct hapax__letter *letter, struct hapax_message_header *own, const char *name,
                struct hapax_span value)
{
    assert(letter->own_count < OWN_MAX);
    own[letter->own_count++] = (struct hapax_message_header){hapax_str(name), value};
}

static void add_count(struct hapax__letter *letter, struct hapax_message_header *own,
                      const char *name, char text[12], uint32_t count)
{
    snprintf(text, 12, "%" PRIu32, count < HAPAX__COUNT_MAX ? count : HAPAX__COUNT_MAX);
    add(letter, own, name, hapax_str(text));
}

static void add_own(struct copy *copy, const struct hapax_message *message,
                    const struct hapax__letter_args *args)
{
    struct hapax__letter *letter = &copy->letter;
    struct hapax_span position = hapax__header_of(message, HAPAX__HEADER_POSITION);
    uint32_t base = args->history.base;

    if (args->reason != HAPAX__REASON_NONE && args->spent > base)
        base = args->spent;
    add_count(letter, copy->own, HAPAX__HEADER_ATTEMPTS, copy->attempts, args->history.attempts);
    add_count(letter, copy->own, HAPAX__HEADER_BASE, copy->base, base);
    if (args->id) {
        *hapax__hex(copy->id, args->id->bytes, sizeof(args->id->bytes)) = '\0';
        add(letter, copy->own, HAPAX__HEADER_ID, hapax_str(copy->id));
    }
    /* The first position stays: a copy of a copy is still the same message. */
    if (position.len == 0)
        position = message->position;
    if (position.len > 0)
        add(letter, copy->own, HAPAX__HEADER_POSITION, position);
    if (args->reason == HAPAX__REASON_NONE)
        return;
    add(letter, copy->own, HAPAX__HEADER_REASON, hapax_str(hapax__reason_name(args->reason)));
    snprintf(copy->error, sizeof(copy->error), "%s", args->error);
    add(letter, copy->own, HAPAX__HEADER_ERROR, hapax_str(copy->error));
    add(letter, copy->own, HAPAX__HEADER_FROM, message->from);
    add(letter, copy->own, HAPAX__HEADER_SCOPE, hapax_str(args->scope));
    snprintf(copy->time, sizeof(copy->time), "%" PRId64, args->time_us);
    add(letter, copy->own, HAPAX__HEADER_TIME, hapax_str(copy->time));
}

struct hapax__letter *hapax__letter_copy(const struct hapax__delivered *delivered,
                                         const struct hapax__letter_args *args)
{
    const struct hapax_message *message = &delivered->message;
    struct copy *copy = calloc(1, sizeof(*copy) + message->header_count * sizeof(copy->headers[0]));

    if (!copy)
        return NULL;
    copy->letter = (struct hapax__letter){
        .to = args->to,
        .body = message->body,
        .content_type = message->content_type,
        .id = message->id,
        .type = message->type,
        .key = message->key,
        .kept = delivered->kept,
        .life = hapax__header_of(message, HAPAX__HEADER_TIME),
        .delay_ms = args->delay_ms,
        .tag = args->tag,
        .headers = copy->headers,
        .own = copy->own,
    };
    for (size_t i = 0; i < message->header_count; i++)
        if (!is_own(message->headers[i].name))
            copy->headers[copy->letter.header_count++] = message->headers[i];
    add_own(copy, message, args);
    return &copy->letter;
}

void hapax__letter_free(struct hapax__letter *letter)
{
    free(letter);
}
