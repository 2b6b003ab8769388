/* SPDX-License-Identifier: Apache-2.0
 *
 * What a consumer shows of itself at /metrics and /health (pages.c).
 *
 * The invariant: no key and no body of a message is shown. The only text is the source's name, as
 * in logs.
 */
#include "metrics.h"

#include "base/fail.h"
#include "door/call.h"
#include "lane/census.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct hapax__metrics {
    const struct hapax_consumer_stats *stats;
    struct hapax__pages *pages;
    char source[HAPAX_TEXT_MAX];
    pthread_mutex_t lock; /* of the two below; a page holds it */
    const struct hapax *h; /* NULL: the store is not open */
    struct hapax__census *census;
};

/* ---- the text --------------------------------------------------------------------------- */

static void put_answers(FILE *out, const struct hapax_consumer_stats *stats)
{
    hapax__page_head(out, "hapax_answers_total", "counter", "Answers, by kind.");
    for (int i = HAPAX_ANSWER_FRESH; i <= HAPAX_ANSWER_EXPIRED; i++)
        (void)fprintf(out, "hapax_answers_total{answer=\"%s\"} %" PRIu64 "\n",
                      hapax_answer_name((enum hapax_answer_kind)i), stats->answers[i]);
}

static void put_numbers(FILE *out, const struct hapax_consumer_stats *stats)
{
    const struct hapax__page_number counters[] = {
        {"hapax_consumer_taken_total", (int64_t)stats->taken,
         "Messages taken, each delivery counted."},
        {"hapax_consumer_run_total", (int64_t)stats->run, "Handlers that ended."},
        {"hapax_consumer_acknowledged_total", (int64_t)stats->acknowledged,
         "Messages acknowledged."},
        {"hapax_consumer_retried_total", (int64_t)stats->retried, "Messages given a later time."},
        {"hapax_consumer_dead_lettered_total", (int64_t)stats->dead_lettered,
         "Messages put to the dead letters."},
        {"hapax_consumer_parked_total", (int64_t)stats->parked, "Messages parked."},
        {"hapax_consumer_returned_total", (int64_t)stats->returned,
         "Messages given back to the broker."},
        {"hapax_consumer_voided_total", (int64_t)stats->voided,
         "Deliveries that the broker took back."},
        {"hapax_consumer_unprotected_total", (int64_t)stats->unprotected,
         "Handlers that ran without a store."},
        {"hapax_consumer_reconnects_total", (int64_t)stats->reconnects,
         "Connections to the broker after the first."},
        {"hapax_unasked_total", (int64_t)stats->unasked, "Requests that did not ask a dead store."},
    };
    const struct hapax__page_number gauges[] = {
        {"hapax_consumer_in_hand", (int64_t)stats->in_hand, "Messages taken and not released."},
        {"hapax_consumer_running", (int64_t)stats->running, "Handlers under way."},
        {"hapax_consumer_letters_refused", (int64_t)stats->letters_refused,
         "Messages in hand whose letter the broker refuses."},
        {"hapax_consumer_connected", stats->connected,
         "Whether there is a connection to the broker."},
        {"hapax_consumer_store_up", stats->store_up, "Whether the store answered, the last time."},
        {"hapax_store_dead", stats->store_dead,
         "Whether the store is dead, and no message waits for it."},
        {"hapax_consumer_handler_up", stats->handler_up,
         "Whether the handler answered, the last time."},
        {"hapax_consumer_draining", stats->draining, "Whether it is being stopped."},
        {"hapax_consumer_lag", stats->lag, "Messages that wait at the broker."},
    };

    hapax__page_numbers(out, "counter", counters, sizeof(counters) / sizeof(counters[0]));
    hapax__page_numbers(out, "gauge", gauges, sizeof(gauges) / sizeof(gauges[0]));
}

static void put_histogram(FILE *out, const char *name, const char *about, const uint64_t *buckets,
                          uint64_t sum_us)
{
    struct hapax__times times = {.us = sum_us};

    memcpy(times.n, buckets, sizeof(times.n));
    hapax__page_times(out, name, about, &times);
}

static void put_metrics(FILE *out, const void *arg)
{
    struct hapax__metrics *metrics = (struct hapax__metrics *)(uintptr_t)arg; /* for its lock */
    struct hapax_consumer_stats read, *stats = &read;

    hapax_consumer_read(stats, metrics->stats);
    hapax__page_build(out, "consume");
    hapax__page_head(out, "hapax_consumer_info", "gauge", "Where messages come from.");
    (void)fputs("hapax_consumer_info{from=\"", out);
    hapax__page_label(out, metrics->source);
    (void)fprintf(out, "\",version=\"%s\"} 1\n", HAPAX_VERSION);
    put_answers(out, stats);
    put_numbers(out, stats);
    put_histogram(out, "hapax_consumer_handler_seconds", "How long handlers took.",
                  stats->handler_us, stats->handler_us_sum);
    put_histogram(out, "hapax_consumer_message_seconds", "From a message's coming to its release.",
                  stats->message_us, stats->message_us_sum);
    pthread_mutex_lock(&metrics->lock);
    if (metrics->h)
        hapax__page_handle(out, metrics->h, false);
    hapax__census_page(out, metrics->census);
    pthread_mutex_unlock(&metrics->lock);
}

/* NULL: all is well. A handler that is away is not named: supervisors start a consumer anew when
 * /health fails, and a new one would not reach the handler either. */
static const char *what_is_away(const void *arg)
{
    const struct hapax__metrics *metrics = arg;
    struct hapax_consumer_stats read, *stats = &read;

    hapax_consumer_read(stats, metrics->stats);
    if (stats->draining)
        return "it is being stopped\n";
    if (!stats->connected)
        return stats->store_up ? "the broker is away\n" : "broker and store are away\n";
    return stats->store_up ? NULL : "the store is away\n";
}

/* ---- opening and closing ---------------------------------------------------------------- */

static void metrics_free(struct hapax__metrics *metrics)
{
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

enum hapax_error hapax__metrics_open(struct hapax__metrics **out,
                                     const struct hapax__page_place *place,
                                     const struct hapax_consumer_stats *stats, const char *source,
                                     uint16_t *port, char text[HAPAX_TEXT_MAX])
{
    struct hapax__metrics *metrics = calloc(1, sizeof(*metrics));
    const struct hapax__page_source from = {put_metrics, what_is_away, metrics};
    enum hapax_error error;

    assert(stats && source);
    *out = NULL;
    if (!metrics)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "metrics: out of memory");
    metrics->stats = stats;
    (void)snprintf(metrics->source, sizeof(metrics->source), "%s", source);
    pthread_mutex_init(&metrics->lock, NULL);
    error = hapax__pages_open(&metrics->pages, place, &from, port, text);
    if (error == HAPAX_ERR_NONE)
        *out = metrics;
    else
        metrics_free(metrics);
    return error;
}

void hapax__metrics_show(struct hapax__metrics *metrics, const struct hapax *h,
                         struct hapax__census *census)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->h = h;
    metrics->census = census;
    pthread_mutex_unlock(&metrics->lock);
}

void hapax__metrics_close(struct hapax__metrics *metrics)
{
    if (!metrics)
        return;
    hapax__pages_close(metrics->pages);
    metrics_free(metrics);
}
