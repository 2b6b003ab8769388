/* SPDX-License-Identifier: Apache-2.0
 *
 * A metric is a row here: its name, its help, and where its words are. So a metric has the same
 * name at each door.
 */
#include "prometheus.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stddef.h>

#define TIME_FIRST 6u /* 64 µs, and all that is less */
#define TIME_LAST  30u /* 1074 s */

/* ---- lines --------------------------------------------------------------------------- */

void hapax__page_head(FILE *out, const char *name, const char *type, const char *about)
{
    (void)fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, about, name, type);
}

void hapax__page_numbers(FILE *out, const char *type, const struct hapax__page_number *numbers,
                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (numbers[i].value < 0)
            continue;
        hapax__page_head(out, numbers[i].name, type, numbers[i].about);
        (void)fprintf(out, "%s %" PRId64 "\n", numbers[i].name, numbers[i].value);
    }
}

void hapax__page_label(FILE *out, const char *value)
{
    for (const char *c = value; *c; c++) {
        if (*c == '"' || *c == '\\' || *c == '\n')
            (void)fputc('\\', out);
        (void)fputc(*c == '\n' ? 'n' : *c, out);
    }
}

/* A sample's name and labels, to which one more may come: {label="value",zone="zone"}. */
static void put_name(FILE *out, const char *name, const char *suffix, const char *zone,
                     const char *label, const char *value)
{
    (void)fprintf(out, "%s%s", name, suffix);
    if (!label && !*zone)
        return;
    (void)fputc('{', out);
    if (label)
        (void)fprintf(out, "%s=\"%s\"%s", label, value, *zone ? "," : "");
    if (*zone) {
        (void)fputs("zone=\"", out);
        hapax__page_label(out, zone);
        (void)fputc('"', out);
    }
    (void)fputc('}', out);
}

static uint64_t word(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static void put_times(FILE *out, const char *name, const char *zone,
                      const struct hapax__times *times)
{
    uint64_t us = word(&times->us), n = 0;
    char le[32];

    for (unsigned i = 0; i < HAPAX__TIMES; i++) {
        n += word(&times->n[i]);
        if (i < TIME_FIRST || i > TIME_LAST)
            continue;
        (void)snprintf(le, sizeof(le), "%.6f", (double)(UINT64_C(1) << i) / 1e6);
        put_name(out, name, "_bucket", zone, "le", le);
        (void)fprintf(out, " %" PRIu64 "\n", n);
    }
    put_name(out, name, "_bucket", zone, "le", "+Inf");
    (void)fprintf(out, " %" PRIu64 "\n", n);
    put_name(out, name, "_sum", zone, NULL, NULL);
    (void)fprintf(out, " %" PRIu64 ".%06" PRIu64 "\n", us / 1000000, us % 1000000);
    put_name(out, name, "_count", zone, NULL, NULL);
    (void)fprintf(out, " %" PRIu64 "\n", n);
}

void hapax__page_times(FILE *out, const char *name, const char *about,
                       const struct hapax__times *times)
{
    hapax__page_head(out, name, "histogram", about);
    put_times(out, name, "", times);
}

/* ---- flows --------------------------------------------------------------------------- */

static const char *answer_name(unsigned at)
{
    return at > 0 ? hapax_answer_name((enum hapax_answer_kind)at) : NULL;
}

static const char *class_name(unsigned at)
{
    static const char *const names[] = {NULL, "final", "not_run", "failed", "unknown"};

    return names[at];
}

/* What a hook has said, by the class with which it ended. */
static const char *said_name(unsigned at)
{
    static const char *const names[] = {NULL, "happened", "did_not", "failed", "cannot_tell"};

    return names[at];
}

static const char *op_name(unsigned at)
{
    static const char *const names[] = {NULL, "claim", "renew", "complete", "fail", "read"};

    return names[at];
}

static const char *error_name(unsigned at)
{
    return at > 0 ? hapax_error_name((enum hapax_error)(-(int)at)) : NULL;
}

static const char *would_name(unsigned at)
{
    static const char *const others[] = {"run_again", "ask_hook", "not_judged"};

    return at <= HAPAX_ANSWER_EXPIRED ? answer_name(at) : others[at - HAPAX__WOULD_RUN_AGAIN];
}

static const char *response_name(unsigned at)
{
    return at == 0 ? "same" : "differs";
}

struct counter {
    const char *name;
    const char *about;
    size_t at; /* in struct hapax__counts */
    unsigned n; /* words; 0: one, without a label */
    const char *label;
    const char *(*value)(unsigned at); /* NULL: that word is none */
};

#define WORDS(field)                                                                               \
    offsetof(struct hapax__counts, field),                                                         \
        sizeof(((struct hapax__counts *)0)->field) / sizeof(uint64_t)

static const struct counter answers[] = {
    {"hapax_answers_total", "Answers, by kind.", WORDS(answers), "answer", answer_name},
    {"hapax_unasked_total", "Answers that did not ask a dead store.",
     offsetof(struct hapax__counts, unasked), 0, NULL, NULL},
};

static const struct counter shadows[] = {
    {"hapax_shadow_total", "Requests that were only watched, by what would have become of them.",
     WORDS(would), "would", would_name},
    {"hapax_shadow_repeats_total",
     "Requests that would have been replayed, by whether their response was the first one again.",
     WORDS(repeats), "response", response_name},
};

static const struct counter others[] = {
    {"hapax_unrecorded_total", "Answers that went out before their outcome was stored.",
     offsetof(struct hapax__counts, unrecorded), 0, NULL, NULL},
    {"hapax_attempts_total", "Handlers that ended, by what their end means for a retry.",
     WORDS(attempts), "class", class_name},
    {"hapax_reconciles_total", "Hooks that ended, by what they said of the effect.",
     WORDS(reconciles), "said", said_name},
    {"hapax_takeovers_total", "Claims granted where an earlier attempt had died.",
     offsetof(struct hapax__counts, takeovers), 0, NULL, NULL},
    {"hapax_lost_total", "Attempts that found their claim gone: what they ended with was refused.",
     offsetof(struct hapax__counts, lost), 0, NULL, NULL},
    {"hapax_store_ops_total", "Ops that the store was asked, by kind.", WORDS(ops), "op", op_name},
    {"hapax_store_errors_total", "Ops without a verdict, by error.", WORDS(errors), "error",
     error_name},
};

static const uint64_t *words_of(const struct hapax__counts *counts, const struct counter *counter)
{
    const uint8_t *bytes = (const uint8_t *)counts;

    return (const uint64_t *)(const void *)(bytes + counter->at);
}

static void put_counter(FILE *out, const struct hapax__page_zone *zone,
                        const struct counter *counter)
{
    const uint64_t *words = words_of(zone->counts, counter);

    if (counter->n == 0) {
        put_name(out, counter->name, "", zone->name, NULL, NULL);
        (void)fprintf(out, " %" PRIu64 "\n", word(words));
        return;
    }
    for (unsigned i = 0; i < counter->n; i++) {
        if (!counter->value(i))
            continue;
        put_name(out, counter->name, "", zone->name, counter->label, counter->value(i));
        (void)fprintf(out, " %" PRIu64 "\n", word(&words[i]));
    }
}

static void put_counters(FILE *out, const struct hapax__page_zone *zones, size_t n,
                         const struct counter *counters, size_t counter_n)
{
    for (size_t i = 0; i < counter_n; i++) {
        hapax__page_head(out, counters[i].name, "counter", counters[i].about);
        for (size_t z = 0; z < n; z++)
            put_counter(out, &zones[z], &counters[i]);
    }
}

void hapax__counts_each(const struct hapax__counts *counts,
                        void (*take)(void *arg, const char *name, const char *value,
                                     uint64_t number),
                        void *arg)
{
    for (size_t c = 0; c < sizeof(others) / sizeof(others[0]); c++) {
        const uint64_t *words = words_of(counts, &others[c]);

        if (others[c].n == 0)
            take(arg, others[c].name, NULL, word(words));
        for (unsigned i = 0; i < others[c].n; i++)
            if (others[c].value(i))
                take(arg, others[c].name, others[c].value(i), word(&words[i]));
    }
}

void hapax__page_answers(FILE *out, const struct hapax__page_zone *zones, size_t n)
{
    put_counters(out, zones, n, answers, sizeof(answers) / sizeof(answers[0]));
}

void hapax__page_shadows(FILE *out, const struct hapax__page_zone *zones, size_t n)
{
    put_counters(out, zones, n, shadows, sizeof(shadows) / sizeof(shadows[0]));
}

const char *hapax__would_name(unsigned would)
{
    return would == 0 ? "" : would_name(would);
}

void hapax__page_flows(FILE *out, const struct hapax__page_zone *zones, size_t n)
{
    static const struct {
        const char *name;
        const char *about;
        size_t at;
    } times[] = {
        {"hapax_handler_seconds", "How long handlers and hooks took.",
         offsetof(struct hapax__counts, handler)},
        {"hapax_waiting_seconds",
         "From an operation's begin to its answer, without handler and hook.",
         offsetof(struct hapax__counts, waiting)},
        {"hapax_store_seconds", "From an op's submission to its answer.",
         offsetof(struct hapax__counts, op)},
    };

    put_counters(out, zones, n, others, sizeof(others) / sizeof(others[0]));
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        hapax__page_head(out, times[i].name, "histogram", times[i].about);
        for (size_t z = 0; z < n; z++) {
            const uint8_t *bytes = (const uint8_t *)zones[z].counts;

            put_times(out, times[i].name, zones[z].name,
                      (const struct hapax__times *)(const void *)(bytes + times[i].at));
        }
    }
}

/* ---- what else every door has ---------------------------------------------------------- */

void hapax__page_build(FILE *out, const char *door)
{
    hapax__page_head(out, "hapax_build_info", "gauge", "Which door this is, and its version.");
    (void)fprintf(out, "hapax_build_info{door=\"%s\",version=\"%s\"} 1\n", door, HAPAX_VERSION);
}

void hapax__page_lane(FILE *out, const struct hapax__lane_counts *counts)
{
    static const char name[] = "hapax_store_batch_ops";
    uint64_t n = 0;

    hapax__page_head(out, name, "histogram", "Batches given to the store, by their ops.");
    for (unsigned i = 0; i < HAPAX__SIZES; i++) {
        n += word(&counts->sizes[i]);
        if (i < HAPAX__SIZES - 1)
            (void)fprintf(out, "%s_bucket{le=\"%u\"} %" PRIu64 "\n", name, 1u << i, n);
    }
    (void)fprintf(out,
                  "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %" PRIu64 "\n%s_count %" PRIu64 "\n",
                  name, n, name, word(&counts->ops), name, n);
    hapax__page_times(out, "hapax_store_sync_seconds", "How long an embedded store's disk took.",
                      &counts->sync);
}

void hapax__page_census(FILE *out, const struct hapax__census_found *found)
{
    static const char *const states[HAPAX__CENSUS_STATES] = {"started", "started_over", "failed",
                                                             "unknown"};
    const struct hapax__page_number numbers[] = {
        {"hapax_store_census_up", found->up, "Whether the last count of operations succeeded."},
        {"hapax_store_census_whole", found->us > 0 ? found->whole : -1,
         "Whether all unfinished operations were counted; otherwise there are more."},
    };

    hapax__page_numbers(out, "gauge", numbers, sizeof(numbers) / sizeof(numbers[0]));
    if (found->us == 0)
        return;
    hapax__page_head(out, "hapax_store_census_seconds", "gauge", "How long the last count took.");
    (void)fprintf(out, "hapax_store_census_seconds %.6f\n", (double)found->us / 1e6);
    hapax__page_head(out, "hapax_store_operations", "gauge",
                     "Unfinished operations in the store, by state; started_over: their lease is "
                     "over.");
    for (unsigned i = 0; i < HAPAX__CENSUS_STATES; i++)
        (void)fprintf(out, "hapax_store_operations{state=\"%s\"} %" PRIu64 "\n", states[i],
                      found->n[i]);
    hapax__page_head(out, "hapax_store_oldest_seconds", "gauge",
                     "Time since the first claim of the oldest of these operations; 0: there is "
                     "none.");
    for (unsigned i = 0; i < HAPAX__CENSUS_STATES; i++)
        (void)fprintf(out, "hapax_store_oldest_seconds{state=\"%s\"} %.3f\n", states[i],
                      (double)found->oldest_us[i] / 1e6);
}

static void put_seconds(FILE *out, const char *name, const char *about, int64_t us)
{
    if (us == HAPAX_NOT_KNOWN)
        return;
    hapax__page_head(out, name, "gauge", about);
    (void)fprintf(out, "%s %.6f\n", name, (double)us / 1e6);
}

void hapax__page_certificate(FILE *out, const char *name, const char *of, int64_t end_us)
{
    if (end_us == HAPAX_NOT_KNOWN)
        return;
    put_name(out, name, "", "", of ? "of" : NULL, of);
    (void)fprintf(out, " %.0f\n", (double)(end_us - hapax__wall_us()) / 1e6);
}

void hapax__page_vitals(FILE *out, const struct hapax_vitals *vitals)
{
    static const char certificate[] = "hapax_store_certificate_seconds";
    const struct hapax__page_number numbers[] = {
        {"hapax_store_replicas", vitals->replicas, "Replicas connected to the store."},
        {"hapax_store_replica_lag_bytes", vitals->lag_bytes,
         "What the replica that is furthest behind has not acknowledged."},
        {"hapax_store_disk_free_bytes", vitals->disk_free_bytes,
         "Room on the disk of an embedded store."},
        {"hapax_store_disk_size_bytes", vitals->disk_bytes,
         "Size of the disk of an embedded store."},
    };

    hapax__page_numbers(out, "gauge", numbers, sizeof(numbers) / sizeof(numbers[0]));
    put_seconds(out, "hapax_store_replica_silent_seconds",
                "Time since the most silent replica acknowledged something, where it lacks "
                "something.",
                vitals->silent_us);
    put_seconds(out, "hapax_store_clock_ahead_seconds",
                "How far the store's clock is ahead of this machine's.", vitals->clock_ahead_us);
    if (vitals->server_cert_us == HAPAX_NOT_KNOWN && vitals->client_cert_us == HAPAX_NOT_KNOWN)
        return;
    hapax__page_head(out, certificate, "gauge",
                     "Time until the certificate of the store's server, or this client's, ends.");
    hapax__page_certificate(out, certificate, "server", vitals->server_cert_us);
    hapax__page_certificate(out, certificate, "client", vitals->client_cert_us);
}
