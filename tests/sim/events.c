/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of events. A binary heap sorts them by time, and then by the order in which they were
 * made. So a schedule is one sequence, and its hash names it. Random numbers come from the seed
 * alone.
 */
#include "sim.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

uint64_t sim_random(struct sim *s)
{
    uint64_t z = s->random += UINT64_C(0x9e3779b97f4a7c15);

    if (s->steady)
        return 0;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32_t sim_below(struct sim *s, uint32_t limit)
{
    return (uint32_t)(((sim_random(s) >> 32) * limit) >> 32);
}

int64_t sim_between(struct sim *s, int64_t low, int64_t high)
{
    assert(low <= high && high - low < UINT32_MAX);
    return low + sim_below(s, (uint32_t)(high - low + 1));
}

bool sim_chance(struct sim *s, unsigned thousandths)
{
    return thousandths > 0 && sim_below(s, 1000) < thousandths;
}

void sim_mix(struct sim *s, uint64_t value)
{
    s->hash = (s->hash ^ value) * UINT64_C(0x100000001b3);
    s->hash ^= s->hash >> 29;
}

static bool before(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->seq < b->seq;
}

void sim_at(struct sim *s, int64_t at_us, enum event_kind kind, int who, uint32_t stamp)
{
    struct event event = {at_us, s->heap_seq++, stamp, (uint16_t)kind, (uint16_t)who};
    unsigned i = s->heap_count++;

    if (i >= EVENTS_MAX) {
        s->heap_count--;
        sim_fail(s, "d bounded", "more than %d events at once", EVENTS_MAX);
        return;
    }
    while (i > 0 && before(&event, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = event;
}

bool sim_take(struct sim *s, struct event *event)
{
    struct event last;
    unsigned i = 0, child;

    if (s->heap_count == 0)
        return false;
    *event = s->heap[0];
    last = s->heap[--s->heap_count];
    while ((child = 2 * i + 1) < s->heap_count) {
        if (child + 1 < s->heap_count && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return true;
}

void sim_trace(struct sim *s, const char *format, ...)
{
    va_list args;

    fprintf(s->trace, "%10.3f ms  ", (double)s->now_us / 1000);
    va_start(args, format);
    vfprintf(s->trace, format, args);
    va_end(args);
    fputc('\n', s->trace);
}

void sim_fail(struct sim *s, const char *rule, const char *format, ...)
{
    va_list args;

    if (s->failed)
        return;
    s->failed = true;
    snprintf(s->rule, sizeof(s->rule), "%s", rule);
    va_start(args, format);
    vsnprintf(s->text, sizeof(s->text), format, args);
    va_end(args);
    TRACE(s, "VIOLATION (%s): %s", s->rule, s->text);
}

void sim_mark(struct sim *s, enum mark mark)
{
    s->marks[mark]++;
    sim_mix(s, (uint64_t)mark);
}

void sim_fault(struct sim *s, enum mark mark)
{
    s->faults_count++;
    sim_mark(s, mark);
}
