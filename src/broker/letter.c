/* SPDX-License-Identifier: Apache-2.0
 *
 * What a letter carries. A retry has hapax-attempts and hapax-base alone; without a reason it is
 * what it was, some attempts later. A dead or parked letter's hapax-base is where its next life
 * begins: what the record had spent when it was given up, so that whoever puts it back need only
 * put it back. A crash counts at the record and in no header, and what the record has spent is the
 * bound of both; not its attempt, which counts those that did not run.
 *
 * Rejected: counting by the broker's own x-death or delivery counts. They count redeliveries of
 * which nothing ran, and begin anew where a letter is copied by other tools.
 */
#include "letter.h"

#include "base/span.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OWN_MAX 8

struct hapax__posting {
    struct hapax__letter letter;
    struct hapax_message_header own[OWN_MAX];
    char attempts[12];
    char base[12];
    char time[24];
    char error[HAPAX_TEXT_MAX];
    struct hapax_message_header headers[];
};

static bool is_own(struct hapax_span name)
{
    return hapax__is(name, HAPAX__HEADER_ATTEMPTS) || hapax__is(name, HAPAX__HEADER_BASE) ||
           hapax__is(name, HAPAX__HEADER_REASON) || hapax__is(name, HAPAX__HEADER_ERROR) ||
           hapax__is(name, HAPAX__HEADER_FROM) || hapax__is(name, HAPAX__HEADER_SCOPE) ||
           hapax__is(name, HAPAX__HEADER_TIME) || hapax__is(name, HAPAX__HEADER_POSITION);
}

/* ---- reading ------------------------------------------------------------------------- */

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

static uint32_t next_base(const struct hapax__post_what *what)
{
    uint32_t base = what->history.base;

    if (what->reason && what->spent > base)
        base = what->spent;
    return base < HAPAX__COUNT_MAX ? base : HAPAX__COUNT_MAX;
}

static void add(struct hapax__posting *posting, const char *name, struct hapax_span value)
{
    assert(posting->letter.own_count < OWN_MAX);
    posting->own[posting->letter.own_count++] =
        (struct hapax_message_header){hapax_str(name), value};
}

static struct hapax_span header_of(const struct hapax_message *message, const char *name)
{
    for (size_t i = 0; i < message->header_count; i++)
        if (hapax__is(message->headers[i].name, name))
            return message->headers[i].value;
    return (struct hapax_span){NULL, 0};
}

/* Where it first stood: a copy of a copy is still the same message. */
static struct hapax_span position_of(const struct hapax_message *message)
{
    struct hapax_span first = header_of(message, HAPAX__HEADER_POSITION);

    return first.len > 0 ? first : message->position;
}

static void add_own(struct hapax__posting *posting, const struct hapax_message *message,
                    const struct hapax__post_what *what)
{
    struct hapax_span position = position_of(message);
    uint32_t attempts = what->history.attempts;

    snprintf(posting->attempts, sizeof(posting->attempts), "%" PRIu32,
             attempts < HAPAX__COUNT_MAX ? attempts : HAPAX__COUNT_MAX);
    add(posting, HAPAX__HEADER_ATTEMPTS, hapax_str(posting->attempts));
    snprintf(posting->base, sizeof(posting->base), "%" PRIu32, next_base(what));
    add(posting, HAPAX__HEADER_BASE, hapax_str(posting->base));
    if (position.len > 0)
        add(posting, HAPAX__HEADER_POSITION, position);
    if (!what->reason)
        return;
    add(posting, HAPAX__HEADER_REASON, hapax_str(what->reason));
    snprintf(posting->error, sizeof(posting->error), "%s", what->error);
    add(posting, HAPAX__HEADER_ERROR, hapax_str(posting->error));
    add(posting, HAPAX__HEADER_FROM, message->from);
    add(posting, HAPAX__HEADER_SCOPE, hapax_str(what->scope));
    snprintf(posting->time, sizeof(posting->time), "%" PRId64, what->time_us);
    add(posting, HAPAX__HEADER_TIME, hapax_str(posting->time));
}

struct hapax__posting *hapax__posting_new(const struct hapax__delivered *delivered,
                                          const struct hapax__post_what *what)
{
    const struct hapax_message *message = &delivered->message;
    struct hapax__posting *posting =
        calloc(1, sizeof(*posting) + message->header_count * sizeof(posting->headers[0]));
    struct hapax__letter *letter;

    if (!posting)
        return NULL;
    letter = &posting->letter;
    letter->to = what->to;
    letter->body = message->body;
    letter->content_type = message->content_type;
    letter->id = message->id;
    letter->type = message->type;
    letter->key = message->key;
    letter->kept = delivered->kept;
    letter->life = header_of(message, HAPAX__HEADER_TIME);
    letter->delay_ms = what->delay_ms;
    letter->tag = what->tag;
    letter->headers = posting->headers;
    letter->own = posting->own;
    for (size_t i = 0; i < message->header_count; i++)
        if (!is_own(message->headers[i].name))
            posting->headers[letter->header_count++] = message->headers[i];
    add_own(posting, message, what);
    return posting;
}

void hapax__posting_free(struct hapax__posting *posting)
{
    free(posting);
}

const struct hapax__letter *hapax__posting_letter(const struct hapax__posting *posting)
{
    return &posting->letter;
}
