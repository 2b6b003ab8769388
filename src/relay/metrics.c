/* SPDX-License-Identifier: Apache-2.0
 *
 * A relay's counters and gauges as Prometheus metrics. Each value is read by itself. No metric has
 * anything of a message.
 */
#include "metrics.h"

#define READ(field) __atomic_load_n(&stats->field, __ATOMIC_RELAXED)

static void put_metrics(FILE *out, const void *arg)
{
    const struct hapax__relay_stats *stats = arg;
    const int64_t age_us = READ(age_us);
    const struct hapax__page_number counters[] = {
        {"hapax_relay_published_total", (int64_t)READ(published), "Messages the broker confirmed."},
        {"hapax_relay_repeated_total", (int64_t)READ(repeated),
         "Messages sent again, since their result was not known."},
        {"hapax_relay_refused_total", (int64_t)READ(failed), "Tries that the broker refused."},
        {"hapax_relay_turns_total", (int64_t)READ(turns),
         "Transactions that end rows and take rows."},
        {"hapax_relay_swept_total", (int64_t)READ(swept), "Published messages removed."},
    };
    const struct hapax__page_number gauges[] = {
        {"hapax_relay_lag", READ(pending), "Messages that wait in the outbox, at most 100000."},
        {"hapax_relay_held", READ(aside), "Messages put aside, at most 100000."},
        {"hapax_relay_in_hand", (int64_t)READ(in_hand), "Messages taken and not ended."},
        {"hapax_relay_parts", (int64_t)READ(parts), "Parts of the outbox that are its own."},
        {"hapax_relay_connected", READ(connected), "Whether there is a connection to the broker."},
        {"hapax_relay_database_up", READ(database_up),
         "Whether the database answered, the last time."},
    };

    hapax__page_build(out, "relay");
    hapax__page_numbers(out, "counter", counters, sizeof(counters) / sizeof(counters[0]));
    hapax__page_numbers(out, "gauge", gauges, sizeof(gauges) / sizeof(gauges[0]));
    if (age_us < 0)
        return;
    hapax__page_head(out, "hapax_relay_lag_seconds", "gauge",
                     "How old the oldest of those is that wait.");
    (void)fprintf(out, "hapax_relay_lag_seconds %.6f\n", (double)age_us / 1e6);
}

static const char *what_is_away(const void *arg)
{
    const struct hapax__relay_stats *stats = arg;

    if (!READ(database_up))
        return "the database is away\n";
    return READ(connected) ? NULL : "the broker is away\n";
}

enum hapax_error hapax__relay_metrics(struct hapax__pages **out,
                                      const struct hapax__page_place *place,
                                      const struct hapax__relay_stats *stats, uint16_t *port,
                                      char text[HAPAX_TEXT_MAX])
{
    const struct hapax__page_source from = {put_metrics, what_is_away, stats};

    return hapax__pages_open(out, place, &from, port, text);
}
