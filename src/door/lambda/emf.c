/* SPDX-License-Identifier: Apache-2.0
 *
 * Only what rose since the last line is in a line: each name that ever occurs is a metric that
 * CloudWatch bills. A time is the mean of what ended since the last line, which for an event that
 * is no batch is one operation. Rejected: arrays of values. They would be the histogram's buckets,
 * for a hundred values at most.
 */
#include "emf.h"

#include "base/clock.h"
#include "base/span.h"
#include "base/time.h"
#include "http/prometheus.h"
#include "json/write.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_LEN 64u
#define PREFIX       "hapax_"
#define SUFFIX       "_total"

struct line {
    struct hapax__json_out names; /* of MetricDefinition objects */
    struct hapax__json_out values;
};

static void put(struct line *line, const char *name, const char *unit)
{
    hapax__json_put(&line->names, line->names.len > 0 ? ",{\"Name\":\"" : "{\"Name\":\"");
    hapax__json_put(&line->names, name);
    hapax__json_put(&line->names, "\",\"Unit\":\"");
    hapax__json_put(&line->names, unit);
    hapax__json_put(&line->names, "\"}");
    hapax__json_put(&line->values, ",\"");
    hapax__json_put(&line->values, name);
    hapax__json_put(&line->values, "\":");
}

/* Takes a counter as Prometheus names it: hapax_attempts_total{class="final"} is attempts_final. */
static void put_count(void *arg, const char *metric, const char *value, uint64_t number)
{
    struct line *line = arg;
    char name[NAME_MAX_LEN];
    size_t len;

    if (number == 0)
        return;
    metric += hapax__text_begins(metric, PREFIX) ? strlen(PREFIX) : 0;
    len = strlen(metric);
    if (len > strlen(SUFFIX) && strcmp(metric + len - strlen(SUFFIX), SUFFIX) == 0)
        len -= strlen(SUFFIX);
    (void)snprintf(name, sizeof(name), "%.*s%s%s", (int)len, metric, value ? "_" : "",
                   value ? value : "");
    put(line, name, "Count");
    hapax__json_put_number(&line->values, (int64_t)number);
}

static uint64_t word(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_RELAXED);
}

static void put_time(struct line *line, const char *name, const struct hapax__times *times)
{
    uint64_t n = 0;
    char number[32];

    for (unsigned i = 0; i < HAPAX__TIMES; i++)
        n += times->n[i];
    if (n == 0)
        return;
    put(line, name, "Seconds");
    (void)snprintf(number, sizeof(number), "%.6f", (double)times->us / (double)n / 1e6);
    hapax__json_put(&line->values, number);
}

/* rise = now - last, and last = now, word by word; both structs are of uint64_t alone. */
static void take_rise(void *rise, const void *now, void *last, size_t size)
{
    uint64_t *to = rise, *before = last;
    const uint64_t *from = now;

    for (size_t i = 0; i < size / sizeof(*to); i++) {
        uint64_t value = word(&from[i]);

        to[i] = value - before[i];
        before[i] = value;
    }
}

static void put_stats(struct line *line, const struct hapax_lambda_stats *rise)
{
    put_count(line, "invocations", NULL, rise->invocations);
    put_count(line, "short_cut", NULL, rise->short_cut);
    put_count(line, "unasked", NULL, rise->unasked);
    for (size_t kind = 1; kind < sizeof(rise->answers) / sizeof(rise->answers[0]); kind++)
        put_count(line, "answers", hapax_answer_name((enum hapax_answer_kind)kind),
                  rise->answers[kind]);
}

static void put_flows(struct line *line, const struct hapax__counts *rise)
{
    hapax__counts_each(rise, put_count, line);
    put_time(line, "handler_seconds", &rise->handler);
    put_time(line, "waiting_seconds", &rise->waiting);
    put_time(line, "store_seconds", &rise->op);
}

/* Puts the parts together and tells them. Without memory a line is left out. */
static void tell(const struct hapax_lambda *lambda, const struct line *line)
{
    struct hapax__json_out out = {.to = NULL};

    hapax__json_put(&out, "{\"_aws\":{\"Timestamp\":");
    hapax__json_put_number(&out, hapax__wall_us() / US_PER_MS);
    hapax__json_put(&out, ",\"CloudWatchMetrics\":[{\"Namespace\":");
    hapax__json_put_string(&out, hapax_str(lambda->emf));
    hapax__json_put(&out, ",\"Dimensions\":[[");
    hapax__json_put(&out,
                    lambda->emf_function ? "\"FunctionName\"]],\"Metrics\":[" : "]],\"Metrics\":[");
    hapax__json_put(&out, line->names.bytes);
    hapax__json_put(&out, "]}]}");
    if (lambda->emf_function) {
        hapax__json_put(&out, ",\"FunctionName\":");
        hapax__json_put_string(&out, hapax_str(lambda->emf_function));
    }
    hapax__json_put(&out, line->values.bytes);
    hapax__json_put(&out, "}");
    if (!out.failed)
        lambda->emf_line(lambda->log_arg, out.bytes);
    hapax__json_free(&out);
}

void hapax__emf_tell(const struct hapax_lambda *lambda, const struct hapax__counts *counts,
                     const struct hapax_lambda_stats *stats, struct hapax__emf_told *told)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of `told`, and of the order */
    struct hapax_lambda_stats stats_rise;
    struct hapax__counts rise = {.unrecorded = 0};
    struct line line = {.names = {.to = NULL}};

    if (!lambda->emf || !lambda->emf_line)
        return;
    pthread_mutex_lock(&lock);
    take_rise(&stats_rise, stats, &told->stats, sizeof(stats_rise));
    if (counts)
        take_rise(&rise, counts, &told->counts, sizeof(rise));
    put_stats(&line, &stats_rise);
    put_flows(&line, &rise);
    if (line.names.len > 0 && !line.names.failed && !line.values.failed)
        tell(lambda, &line);
    pthread_mutex_unlock(&lock);
    hapax__json_free(&line.names);
    hapax__json_free(&line.values);
}
