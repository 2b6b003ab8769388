/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include "door/call.h"
#include "lane/census.h"

static int64_t read_count(const atomic_uint_fast64_t *counter)
{
    return (int64_t)atomic_load_explicit(counter, memory_order_relaxed);
}

static void put_metrics(FILE *out, const void *arg)
{
    const struct hapax__door_stats *stats = arg;
    const struct hapax *h = atomic_load(&stats->h);
    const struct hapax__page_number counters[] = {
        {"hapax_door_run_total", read_count(&stats->run), "Handlers that were told to run."},
        {"hapax_door_resumed_total", read_count(&stats->resumed),
         "Operations that went on after the end of another door."},
        {"hapax_door_deserted_total", read_count(&stats->deserted),
         "Handlers in hand when their client's connection ended."},
        {"hapax_door_faults_total", read_count(&stats->faults), "Frames refused."},
    };
    const struct hapax__page_number gauges[] = {
        {"hapax_door_connections", read_count(&stats->connections), "Clients connected."},
        {"hapax_door_in_hand", read_count(&stats->in_hand), "Operations in hand."},
        {"hapax_door_running", read_count(&stats->running), "Handlers under way."},
        {"hapax_door_saving_bytes", read_count(&stats->saving),
         "Bytes of outcomes that were answered and are not stored yet."},
        {"hapax_door_store_up", atomic_load(&stats->store_up),
         "Whether the store answered, the last time."},
        {"hapax_store_dead", h && hapax_store_dead(h),
         "Whether the store is dead, and no operation waits for it."},
    };

    hapax__page_build(out, "door");
    if (h)
        hapax__page_handle(out, h, true);
    hapax__page_numbers(out, "counter", counters, sizeof(counters) / sizeof(counters[0]));
    hapax__page_numbers(out, "gauge", gauges, sizeof(gauges) / sizeof(gauges[0]));
    hapax__census_page(out, atomic_load(&stats->census));
}

static const char *away(const void *arg)
{
    const struct hapax__door_stats *stats = arg;

    return atomic_load(&stats->store_up) ? NULL : "the store is away";
}

enum hapax_error hapax__door_metrics(struct hapax__pages **out,
                                     const struct hapax__page_place *place,
                                     const struct hapax__door_stats *stats, uint16_t *port,
                                     char text[HAPAX_TEXT_MAX])
{
    const struct hapax__page_source source = {put_metrics, away, stats};

    return hapax__pages_open(out, place, &source, port, text);
}
