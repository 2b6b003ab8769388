/* SPDX-License-Identifier: Apache-2.0
 *
 * What the gate counts, and the page that shows the counts (hapax_status): Prometheus text, or JSON
 * with ?format=json. Each worker counts in a slot of its own in shared memory, so no counter is
 * contended. A page is the sum of all slots. A worker that takes a slot sets its gauges to 0: a
 * killed worker leaves old values behind.
 */

#include "ngx_http_hapax.h"


#define NGX_HTTP_HAPAX_PAGE  8192


typedef struct {
    const char  *le;
    int64_t      us;
} ngx_http_hapax_time_t;


static ngx_http_hapax_time_t  ngx_http_hapax_times[NGX_HTTP_HAPAX_TIMES] = {
    { "0.0001", 100 },
    { "0.00025", 250 },
    { "0.0005", 500 },
    { "0.001", 1000 },
    { "0.0025", 2500 },
    { "0.005", 5000 },
    { "0.01", 10000 },
    { "0.025", 25000 },
    { "0.1", 100000 },
    { "0.25", 250000 },
    { "1", 1000000 },
    { "2.5", 2500000 }
};


ngx_http_hapax_counts_t  *ngx_http_hapax_counts;
size_t                    ngx_http_hapax_buffered;


ngx_uint_t
ngx_http_hapax_zone_kept(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t  *pool;

    pool = (ngx_slab_pool_t *) zone->shm.addr;

    if (data == NULL && zone->shm.exists) {
        data = pool->data;
    }

    zone->data = data;

    return data != NULL;
}


ngx_int_t
ngx_http_hapax_zone_init(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t  *pool;

    if (ngx_http_hapax_zone_kept(zone, data)) {
        return NGX_OK;
    }

    pool = (ngx_slab_pool_t *) zone->shm.addr;

    zone->data = ngx_slab_calloc(pool, NGX_HTTP_HAPAX_SLOTS
                                       * sizeof(ngx_http_hapax_counts_t));
    pool->data = zone->data;

    return zone->data ? NGX_OK : NGX_ERROR;
}


void
ngx_http_hapax_count_time(int64_t us)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_HAPAX_TIMES; i++) {
        if (us <= ngx_http_hapax_times[i].us) {
            break;
        }
    }

    ngx_http_hapax_count(times[i], 1);
    ngx_http_hapax_count(time_us, us);
}


void
ngx_http_hapax_count_buffered(ssize_t change)
{
    ngx_http_hapax_buffered += change;

    if (ngx_http_hapax_counts) {
        ngx_http_hapax_counts->held = ngx_http_hapax_buffered;
    }
}


static void
ngx_http_hapax_sum(ngx_http_hapax_counts_t *sum, ngx_http_hapax_counts_t *slots)
{
    ngx_uint_t     i, k;
    ngx_atomic_t  *to, *from;

    ngx_memzero(sum, sizeof(ngx_http_hapax_counts_t));

    to = (ngx_atomic_t *) sum;

    for (i = 0; slots && i < NGX_HTTP_HAPAX_SLOTS; i++) {
        from = (ngx_atomic_t *) &slots[i];

        for (k = 0; k < sizeof(*sum) / sizeof(ngx_atomic_t); k++) {
            to[k] += from[k];
        }
    }
}


static u_char *
ngx_http_hapax_text(u_char *p, u_char *end, ngx_http_hapax_counts_t *sum)
{
    uint64_t    known, forgotten;
    ngx_uint_t  i, n;

    p = ngx_slprintf(p, end,
                     "# HELP hapax_answers_total Answers, by kind.\n"
                     "# TYPE hapax_answers_total counter\n");

    for (i = 1; i < NGX_HTTP_HAPAX_ANSWERS; i++) {
        p = ngx_slprintf(p, end, "hapax_answers_total{answer=\"%s\"} %uA\n",
                         hapax_answer_name((enum hapax_answer_kind) i),
                         sum->answers[i]);
    }

    p = ngx_slprintf(p, end,
                     "# HELP hapax_unrecorded_total Answers that went out "
                     "before their outcome was stored.\n"
                     "# TYPE hapax_unrecorded_total counter\n"
                     "hapax_unrecorded_total %uA\n"
                     "# HELP hapax_store_errors_total Ops without a verdict.\n"
                     "# TYPE hapax_store_errors_total counter\n"
                     "hapax_store_errors_total %uA\n"
                     "# HELP hapax_unasked_total Requests that did not ask "
                     "a dead store.\n"
                     "# TYPE hapax_unasked_total counter\n"
                     "hapax_unasked_total %uA\n"
                     "# HELP hapax_limited_total Requests refused because "
                     "their owner was at a limit, by the limit.\n"
                     "# TYPE hapax_limited_total counter\n",
                     sum->unrecorded, sum->store_errors, sum->unasked);

    for (i = HAPAX__LIMIT_IN_FLIGHT; i < HAPAX__LIMITS; i++) {
        p = ngx_slprintf(p, end, "hapax_limited_total{limit=\"%s\"} %uA\n",
                         hapax__limit_name((enum hapax__limit) i),
                         sum->limited[i]);
    }

    ngx_http_hapax_limit_counts(&known, &forgotten);

    p = ngx_slprintf(p, end,
                     "# HELP hapax_limit_owners Owners that are counted.\n"
                     "# TYPE hapax_limit_owners gauge\n"
                     "hapax_limit_owners %uL\n"
                     "# HELP hapax_limit_forgotten_total Owners whose counts "
                     "gave way to others.\n"
                     "# TYPE hapax_limit_forgotten_total counter\n"
                     "hapax_limit_forgotten_total %uL\n"
                     "# HELP hapax_push_total What brokers were told of "
                     "messages that were not run.\n"
                     "# TYPE hapax_push_total counter\n"
                     "hapax_push_total{told=\"done\"} %uA\n"
                     "hapax_push_total{told=\"retry\"} %uA\n"
                     "hapax_push_total{told=\"drop\"} %uA\n"
                     "# HELP hapax_store_seconds From an op's submission to "
                     "its answer.\n"
                     "# TYPE hapax_store_seconds histogram\n",
                     known, forgotten,
                     sum->told[NGX_HTTP_HAPAX_TELL_DONE],
                     sum->told[NGX_HTTP_HAPAX_TELL_RETRY],
                     sum->told[NGX_HTTP_HAPAX_TELL_DROP]);

    n = 0;

    for (i = 0; i < NGX_HTTP_HAPAX_TIMES; i++) {
        n += sum->times[i];
        p = ngx_slprintf(p, end, "hapax_store_seconds_bucket{le=\"%s\"} %ui\n",
                         ngx_http_hapax_times[i].le, n);
    }

    n += sum->times[i];

    return ngx_slprintf(p, end,
                        "hapax_store_seconds_bucket{le=\"+Inf\"} %ui\n"
                        "hapax_store_seconds_sum %uA.%06uA\n"
                        "hapax_store_seconds_count %ui\n"
                        "# HELP hapax_store_dead Workers that found a store "
                        "dead.\n"
                        "# TYPE hapax_store_dead gauge\n"
                        "hapax_store_dead %uA\n"
                        "# HELP hapax_in_flight Operations in hand.\n"
                        "# TYPE hapax_in_flight gauge\n"
                        "hapax_in_flight %uA\n"
                        "# HELP hapax_lane_queue Ops that wait or are under "
                        "way.\n"
                        "# TYPE hapax_lane_queue gauge\n"
                        "hapax_lane_queue %uA\n"
                        "# HELP hapax_held_bytes Memory of held responses.\n"
                        "# TYPE hapax_held_bytes gauge\n"
                        "hapax_held_bytes %uA\n"
                        "# HELP hapax_unread_bytes Answers that clients have "
                        "not read yet.\n"
                        "# TYPE hapax_unread_bytes gauge\n"
                        "hapax_unread_bytes %uA\n",
                        n, sum->time_us / 1000000, sum->time_us % 1000000, n,
                        sum->dead, sum->in_flight, sum->queued, sum->held, sum->unread);
}


/* The digests' first bytes: a name is for nobody who reads this page. */

static u_char *
ngx_http_hapax_json_refusals(u_char *p, u_char *end)
{
    u_char                    hex[16];
    ngx_uint_t                i;
    const char               *comma;
    ngx_http_hapax_refusal_t  refusals[NGX_HTTP_HAPAX_REFUSALS];

    ngx_http_hapax_limit_refusals(refusals);
    comma = "";

    for (i = 0; i < NGX_HTTP_HAPAX_REFUSALS; i++) {

        if (refusals[i].times == 0) {
            continue;
        }

        ngx_hex_dump(hex, refusals[i].owner.bytes, sizeof(hex) / 2);

        p = ngx_slprintf(p, end,
                         "%s{\"owner\":\"%*s\",\"limit\":\"%s\","
                         "\"times\":%ui,\"seconds_ago\":%T}",
                         comma, sizeof(hex), hex,
                         hapax__limit_name(refusals[i].limit),
                         refusals[i].times, ngx_time() - refusals[i].last);
        comma = ",";
    }

    return p;
}


static u_char *
ngx_http_hapax_json(u_char *p, u_char *end, ngx_http_hapax_counts_t *sum)
{
    uint64_t    known, forgotten;
    ngx_uint_t  i, n;

    p = ngx_slprintf(p, end, "{\"answers\":{");

    for (i = 1; i < NGX_HTTP_HAPAX_ANSWERS; i++) {
        p = ngx_slprintf(p, end, "%s\"%s\":%uA", i > 1 ? "," : "",
                         hapax_answer_name((enum hapax_answer_kind) i),
                         sum->answers[i]);
    }

    p = ngx_slprintf(p, end, "},\"limited\":{");

    for (i = HAPAX__LIMIT_IN_FLIGHT; i < HAPAX__LIMITS; i++) {
        p = ngx_slprintf(p, end, "%s\"%s\":%uA",
                         i > HAPAX__LIMIT_IN_FLIGHT ? "," : "",
                         hapax__limit_name((enum hapax__limit) i),
                         sum->limited[i]);
    }

    p = ngx_slprintf(p, end, "},\"refused\":[");
    p = ngx_http_hapax_json_refusals(p, end);

    ngx_http_hapax_limit_counts(&known, &forgotten);

    n = 0;

    for (i = 0; i <= NGX_HTTP_HAPAX_TIMES; i++) {
        n += sum->times[i];
    }

    return ngx_slprintf(p, end,
                        "],\"limit_owners\":%uL,\"limit_forgotten\":%uL,"
                        "\"unrecorded\":%uA,\"store_errors\":%uA,"
                        "\"unasked\":%uA,"
                        "\"push\":{\"done\":%uA,\"retry\":%uA,"
                        "\"drop\":%uA},"
                        "\"store_ops\":%ui,\"store_time_us\":%uA,"
                        "\"store_dead\":%uA,"
                        "\"in_flight\":%uA,\"lane_queue\":%uA,"
                        "\"held_bytes\":%uA,\"unread_bytes\":%uA}\n",
                        known, forgotten, sum->unrecorded, sum->store_errors,
                        sum->unasked,
                        sum->told[NGX_HTTP_HAPAX_TELL_DONE],
                        sum->told[NGX_HTTP_HAPAX_TELL_RETRY],
                        sum->told[NGX_HTTP_HAPAX_TELL_DROP], n, sum->time_us,
                        sum->dead, sum->in_flight, sum->queued, sum->held, sum->unread);
}


static ngx_int_t
ngx_http_hapax_status_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    u_char                      *last;
    ngx_str_t                    format, body;
    ngx_http_hapax_counts_t      sum;
    ngx_http_hapax_main_conf_t  *hmcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    hmcf = ngx_http_get_module_main_conf(r, ngx_http_hapax_module);

    body.data = ngx_pnalloc(r->pool, NGX_HTTP_HAPAX_PAGE);
    if (body.data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    last = body.data + NGX_HTTP_HAPAX_PAGE;

    ngx_http_hapax_sum(&sum, hmcf->zone ? hmcf->zone->data : NULL);

    if (ngx_http_arg(r, (u_char *) "format", 6, &format) == NGX_OK
        && format.len == 4 && ngx_strncmp(format.data, "json", 4) == 0)
    {
        ngx_str_set(&r->headers_out.content_type, "application/json");
        last = ngx_http_hapax_json(body.data, last, &sum);

    } else {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4");
        last = ngx_http_hapax_text(body.data, last, &sum);
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.status = NGX_HTTP_OK;

    body.len = last - body.data;
    r->headers_out.content_length_n = body.len;

    return ngx_http_hapax_send_whole(r, &body);
}


char *
ngx_http_hapax_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_hapax_status_handler;

    return NGX_CONF_OK;
}
