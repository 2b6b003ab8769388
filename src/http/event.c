/* SPDX-License-Identifier: Apache-2.0
 *
 * Written by hand and not by the JSON writer: a gate tells of each request, and the text is the
 * same but for a few names and numbers. No number of the places that one needs is checked while it
 * is written: there is room for the longest.
 */
#include "event.h"

#include "base/span.h"
#include "base/time.h"

#define PUT(at, text) put(at, text, sizeof(text) - 1)

static inline char *put(char *at, const void *text, size_t len)
{
    return (char *)memcpy(at, text, len) + len;
}

static inline char *put_word(char *at, const char *word)
{
    return put(at, word, strlen(word));
}

/* So many digits, two at a time. */
static inline char *put_digits(char *at, unsigned n, uint64_t number)
{
    static const char pairs[] = "00010203040506070809101112131415161718192021222324"
                                "25262728293031323334353637383940414243444546474849"
                                "50515253545556575859606162636465666768697071727374"
                                "75767778798081828384858687888990919293949596979899";
    char *end = at + n;

    for (at = end; n > 1; n -= 2, number /= 100)
        memcpy(at -= 2, pairs + 2 * (number % 100), 2);
    if (n > 0)
        *--at = (char)('0' + number % 10);
    return end;
}

static char *put_number(char *at, uint64_t number)
{
    unsigned n = 1;

    for (uint64_t over = 10; n < 20 && number >= over; over *= 10)
        n++;
    return put_digits(at, n, number);
}

/* A name that was cleaned by hapax_what(). */
static char *put_name(char *at, struct hapax_span name)
{
    for (size_t i = 0; i < name.len; i++) {
        if (name.ptr[i] == '"' || name.ptr[i] == '\\')
            *at++ = '\\';
        *at++ = (char)name.ptr[i];
    }
    return at;
}

static char *put_time(char *at, struct hapax__second *kept, int64_t us)
{
    time_t second = (time_t)(us / US_PER_S);
    struct tm tm;

    if (second != kept->second) {
        (void)gmtime_r(&second, &tm);
        (void)strftime(kept->text, sizeof(kept->text), "%Y-%m-%dT%H:%M:%S.", &tm);
        kept->second = second;
    }
    at = put_word(at, kept->text);
    return put_digits(at, 6, (uint64_t)(us % US_PER_S));
}

static char *put_ms(char *at, int64_t us)
{
    us = hapax__most(us, 0);
    at = put_number(at, (uint64_t)(us / US_PER_MS));
    *at++ = '.';
    return put_digits(at, 3, (uint64_t)(us % US_PER_MS));
}

char *hapax__event(char *at, const struct hapax__told *told, struct hapax_span scope,
                   enum hapax__traced_door door, int64_t ahead_us, struct hapax__second *kept)
{
    static const struct hapax__trace none;
    struct hapax__trace run = hapax__part_of(&told->at, told->at.sent && door != HAPAX__TRACED_RELAY
                                                            ? HAPAX__PART_RUN
                                                            : HAPAX__PART_OPERATION);
    char trace[HAPAX_TRACE_MAX];

    at = PUT(at, "{\"event\":\"attempt\",\"time\":\"");
    at = put_time(at, kept, told->ended_us + ahead_us);
    at = PUT(at, "Z\",\"door\":\"");
    at = put_word(at, hapax__traced_name(door));
    if (told->keyed) {
        at = PUT(at, "\",\"id\":\"");
        at = hapax__hex(at, told->id.bytes, sizeof(told->id.bytes));
        at = PUT(at, "\",\"scope\":\"");
    } else {
        at = PUT(at, "\",\"id\":null,\"scope\":\"");
    }
    at = put_name(at, scope);
    at = PUT(at, "\",\"what\":\"");
    at = put_name(at, (struct hapax_span){told->what, told->what_len});
    at = PUT(at, "\",\"attempt\":");
    at = put_number(at, told->attempt);
    at = PUT(at, ",\"fence\":");
    at = put_number(at, told->fence);
    at = PUT(at, ",\"class\":\"");
    at = put_word(at, hapax__class_name(told->cls));
    at = PUT(at, "\",\"answer\":\"");
    at = put_word(at, hapax_answer_name(told->answer));
    at = told->recorded ? PUT(at, "\",\"recorded\":true,\"status\":")
                        : PUT(at, "\",\"recorded\":false,\"status\":");
    at = put_number(at, (uint64_t)told->status);
    at = PUT(at, ",\"ms\":");
    at = put_ms(at, told->ended_us - told->begun_us);
    at = PUT(at, ",\"handler_ms\":");
    at = put_ms(at, told->handled_us - told->run_us);
    if (memcmp(&told->at.self, &none, sizeof(none)) == 0)
        return PUT(at, ",\"trace\":null}\n");
    hapax__trace_write(trace, &run);
    at = PUT(at, ",\"trace\":\"");
    at = put(at, trace, HAPAX__TRACE_TEXT);
    return PUT(at, "\"}\n");
}
