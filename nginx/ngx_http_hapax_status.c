/* SPDX-License-Identifier: Apache-2.0
 *
 * What the gate counts, and the page that shows the counts (hapax_status): Prometheus text, or JSON
 * with ?format=json. Each worker counts in a slot of its own in shared memory, so no counter is
 * contended. A page is the sum of all slots. A worker that takes a slot sets its gauges to 0: a
 * killed worker leaves old values behind. That a store is dead is a time, which passes while no
 * worker has anything to do.
 */

#include "ngx_http_hapax.h"

#include <stdio.h>


#define NGX_HTTP_HAPAX_PAGE  8192


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


static ngx_int_t
ngx_http_hapax_zone_slots(ngx_shm_zone_t *zone, void *data, size_t size)
{
    ngx_slab_pool_t  *pool;

    if (ngx_http_hapax_zone_kept(zone, data)) {
        return NGX_OK;
    }

    pool = (ngx_slab_pool_t *) zone->shm.addr;

    zone->data = ngx_slab_calloc(pool, NGX_HTTP_HAPAX_SLOTS * size);
    pool->data = zone->data;

    return zone->data ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_http_hapax_zone_init(ngx_shm_zone_t *zone, void *data)
{
    return ngx_http_hapax_zone_slots(zone, data,
                                     sizeof(ngx_http_hapax_counts_t));
}


ngx_int_t
ngx_http_hapax_zone_init_flows(ngx_shm_zone_t *zone, void *data)
{
    return ngx_http_hapax_zone_slots(zone, data, sizeof(struct hapax__counts));
}


void
ngx_http_hapax_count_buffered(ssize_t change)
{
    ngx_http_hapax_buffered += change;

    if (ngx_http_hapax_counts) {
        ngx_http_hapax_counts->held = ngx_http_hapax_buffered;
    }
}


/* Adds the words of all slots. */

static void
ngx_http_hapax_sum(void *sum, void *slots, size_t size)
{
    uint64_t    *to, *from;
    ngx_uint_t   i, k;

    ngx_memzero(sum, size);

    to = sum;
    from = slots;

    for (i = 0; slots && i < NGX_HTTP_HAPAX_SLOTS; i++) {
        for (k = 0; k < size / sizeof(uint64_t); k++) {
            to[k] += __atomic_load_n(from++, __ATOMIC_RELAXED);
        }
    }
}


/* How many workers say that a store is dead. */

static ngx_uint_t
ngx_http_hapax_dead(ngx_http_hapax_counts_t *slots)
{
    int64_t     now_us;
    ngx_uint_t  i, n;

    n = 0;
    now_us = hapax__boot_us();

    for (i = 0; slots && i < NGX_HTTP_HAPAX_SLOTS; i++) {
        n += (now_us < (int64_t) slots[i].dead);
    }

    return n;
}


/*
 * When the certificates of nginx's own servers end: the first one.  It is what
 * this worker has loaded, which a reload that failed leaves as it was.
 */

static void
ngx_http_hapax_certificate(FILE *out, ngx_http_request_t *r)
{
#if (NGX_HTTP_SSL)
    int64_t                      end_us;
    ngx_uint_t                   i;
    ngx_http_ssl_srv_conf_t     *sscf;
    ngx_http_core_srv_conf_t   **cscf;
    ngx_http_core_main_conf_t   *cmcf;
    static const char            name[] = "hapax_gate_certificate_seconds";

    end_us = HAPAX_NOT_KNOWN;
    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    cscf = cmcf->servers.elts;

    for (i = 0; i < cmcf->servers.nelts; i++) {
        sscf = cscf[i]->ctx->srv_conf[ngx_http_ssl_module.ctx_index];

        if (sscf->ssl.ctx) {
            hapax__tls_context_end(sscf->ssl.ctx, &end_us);
        }
    }

    if (end_us != HAPAX_NOT_KNOWN) {
        hapax__page_head(out, name, "gauge", "Time until the certificate "
                         "that clients are shown ends.");
        hapax__page_certificate(out, name, NULL, end_us);
    }
#endif
}


/* Writes the page to out. Some stores have lanes in these workers, or none has. */

static ngx_int_t
ngx_http_hapax_text(FILE *out, ngx_http_request_t *r,
    ngx_http_hapax_main_conf_t *hmcf, ngx_http_hapax_counts_t *sum)
{
    ngx_str_t                 *name;
    ngx_uint_t                 i, lanes;
    struct hapax__counts      *counts;
    ngx_http_hapax_store_t   **stores;
    struct hapax__page_zone    zones[NGX_HTTP_HAPAX_ZONES];
    uint64_t                   known, forgotten;

    counts = calloc(hmcf->nzones, sizeof(struct hapax__counts));
    if (counts == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < hmcf->nzones; i++) {
        name = &hmcf->zones[i].name;
        ngx_http_hapax_sum(&counts[i], hmcf->zones[i].shm->data,
                           sizeof(struct hapax__counts));
        zones[i].name = name->len ? (char *) name->data : "";
        zones[i].counts = &counts[i];
    }

    hapax__page_build(out, "gate");
    hapax__page_answers(out, zones, hmcf->nzones);
    hapax__page_shadows(out, zones, hmcf->nzones);
    hapax__page_flows(out, zones, hmcf->nzones);

    free(counts);

    lanes = 0;
    stores = hmcf->stores.elts;

    for (i = 0; i < hmcf->stores.nelts; i++) {
        lanes |= (stores[i]->lane != NULL);
    }

    if (lanes) {
        hapax__page_lane(out, &sum->lane);
    }

    hapax__page_head(out, "hapax_limited_total", "counter",
                     "Requests refused because their owner was at a limit, by "
                     "the limit.");

    for (i = HAPAX__LIMIT_IN_FLIGHT; i < HAPAX__LIMITS; i++) {
        (void) fprintf(out, "hapax_limited_total{limit=\"%s\"} %lu\n",
                       hapax__limit_name((enum hapax__limit) i),
                       (unsigned long) sum->limited[i]);
    }

    hapax__page_head(out, "hapax_push_total", "counter",
                     "What brokers were told of messages that were not run.");
    (void) fprintf(out, "hapax_push_total{told=\"done\"} %lu\n"
                   "hapax_push_total{told=\"retry\"} %lu\n"
                   "hapax_push_total{told=\"drop\"} %lu\n",
                   (unsigned long) sum->told[NGX_HTTP_HAPAX_TELL_DONE],
                   (unsigned long) sum->told[NGX_HTTP_HAPAX_TELL_RETRY],
                   (unsigned long) sum->told[NGX_HTTP_HAPAX_TELL_DROP]);

    ngx_http_hapax_limit_counts(&known, &forgotten);

    hapax__page_numbers(out, "counter", &(struct hapax__page_number) {
        "hapax_limit_forgotten_total", (int64_t) forgotten,
        "Owners whose counts gave way to others." }, 1);

    {
        const struct hapax__page_number  counters[] = {
            { "hapax_traces_sent_total", (int64_t) sum->traces_sent,
              "Operations whose spans a collector took." },
            { "hapax_traces_dropped_total", (int64_t) sum->traces_dropped,
              "Operations whose spans nobody took." },
            { "hapax_events_dropped_total", (int64_t) sum->events_dropped,
              "Events that could not be written." }
        };

        hapax__page_numbers(out, "counter", counters,
                            sizeof(counters) / sizeof(counters[0]));
    }

    {
        const struct hapax__page_number  gauges[] = {
            { "hapax_switch", (int64_t) ngx_http_hapax_switch_lowest(hmcf)
                              - HAPAX__SWITCH_OFF,
              "What the stores' switches leave: 2 all, 1 shadows, 0 nothing. "
              "The lowest of several." },
            { "hapax_limit_owners", (int64_t) known,
              "Owners that are counted." },
            { "hapax_store_dead", (int64_t) sum->dead,
              "Workers that found a store dead." },
            { "hapax_in_flight", (int64_t) sum->in_flight,
              "Operations in hand." },
            { "hapax_lane_queue", (int64_t) sum->queued,
              "Ops that wait or are under way." },
            { "hapax_held_bytes", (int64_t) sum->held,
              "Memory of held responses." },
            { "hapax_unread_bytes", (int64_t) sum->unread,
              "Answers that clients have not read yet." }
        };

        hapax__page_numbers(out, "gauge", gauges,
                            sizeof(gauges) / sizeof(gauges[0]));
    }

    ngx_http_hapax_certificate(out, r);

    return NGX_OK;
}


/* The page in the request's memory. */

static ngx_int_t
ngx_http_hapax_text_body(ngx_http_request_t *r,
    ngx_http_hapax_main_conf_t *hmcf, ngx_http_hapax_counts_t *sum,
    ngx_str_t *body)
{
    char       *text;
    FILE       *out;
    size_t      len;
    ngx_int_t   rc;

    text = NULL;
    len = 0;

    out = open_memstream(&text, &len);
    if (out == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_hapax_text(out, r, hmcf, sum);

    if (fclose(out) != 0) {
        rc = NGX_ERROR;
    }

    if (rc == NGX_OK) {
        body->len = len;
        body->data = ngx_pnalloc(r->pool, len);

        if (body->data == NULL) {
            rc = NGX_ERROR;

        } else {
            ngx_memcpy(body->data, text, len);
        }
    }

    free(text);

    return rc;
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
ngx_http_hapax_json(u_char *p, u_char *end, ngx_http_hapax_main_conf_t *hmcf,
    ngx_http_hapax_counts_t *sum)
{
    uint64_t              known, forgotten, *words, *zone, ops, errors;
    ngx_uint_t            i, k;
    struct hapax__counts  flows, one;

    /* all zones */

    ngx_memzero(&flows, sizeof(struct hapax__counts));
    words = (uint64_t *) &flows;
    zone = (uint64_t *) &one;

    for (i = 0; i < hmcf->nzones; i++) {
        ngx_http_hapax_sum(&one, hmcf->zones[i].shm->data, sizeof(one));

        for (k = 0; k < sizeof(one) / sizeof(uint64_t); k++) {
            words[k] += zone[k];
        }
    }

    p = ngx_slprintf(p, end, "{\"answers\":{");

    for (i = 1; i <= HAPAX_ANSWER_EXPIRED; i++) {
        p = ngx_slprintf(p, end, "%s\"%s\":%uL", i > 1 ? "," : "",
                         hapax_answer_name((enum hapax_answer_kind) i),
                         flows.answers[i]);
    }

    p = ngx_slprintf(p, end, "},\"shadow\":{");

    for (i = 1; i < HAPAX__WOULDS; i++) {
        p = ngx_slprintf(p, end, "%s\"%s\":%uL", i > 1 ? "," : "",
                         hapax__would_name(i), flows.would[i]);
    }

    p = ngx_slprintf(p, end, "},\"shadow_repeats\":{\"same\":%uL,"
                     "\"differs\":%uL},\"limited\":{", flows.repeats[0],
                     flows.repeats[1]);

    for (i = HAPAX__LIMIT_IN_FLIGHT; i < HAPAX__LIMITS; i++) {
        p = ngx_slprintf(p, end, "%s\"%s\":%uA",
                         i > HAPAX__LIMIT_IN_FLIGHT ? "," : "",
                         hapax__limit_name((enum hapax__limit) i),
                         sum->limited[i]);
    }

    p = ngx_slprintf(p, end, "},\"refused\":[");
    p = ngx_http_hapax_json_refusals(p, end);

    ngx_http_hapax_limit_counts(&known, &forgotten);

    ops = 0;
    errors = 0;

    for (i = 0; i < HAPAX__TIMES; i++) {
        ops += flows.op.n[i];
    }

    for (i = 0; i < sizeof(flows.errors) / sizeof(flows.errors[0]); i++) {
        errors += flows.errors[i];
    }

    return ngx_slprintf(p, end,
                        "],\"limit_owners\":%uL,\"limit_forgotten\":%uL,"
                        "\"unrecorded\":%uL,\"store_errors\":%uL,"
                        "\"unasked\":%uL,"
                        "\"push\":{\"done\":%uA,\"retry\":%uA,"
                        "\"drop\":%uA},"
                        "\"store_ops\":%uL,\"store_time_us\":%uL,"
                        "\"store_dead\":%uA,"
                        "\"in_flight\":%uA,\"lane_queue\":%uA,"
                        "\"held_bytes\":%uA,\"unread_bytes\":%uA}\n",
                        known, forgotten, flows.unrecorded, errors,
                        flows.unasked,
                        sum->told[NGX_HTTP_HAPAX_TELL_DONE],
                        sum->told[NGX_HTTP_HAPAX_TELL_RETRY],
                        sum->told[NGX_HTTP_HAPAX_TELL_DROP], ops, flows.op.us,
                        sum->dead, sum->in_flight, sum->queued, sum->held, sum->unread);
}


static ngx_int_t
ngx_http_hapax_status_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_str_t                    format, body;
    ngx_http_hapax_counts_t      sum, *slots;
    ngx_http_hapax_main_conf_t  *hmcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    hmcf = ngx_http_get_module_main_conf(r, ngx_http_hapax_module);

    slots = hmcf->zone ? hmcf->zone->data : NULL;

    ngx_http_hapax_sum(&sum, slots, sizeof(sum));
    sum.dead = ngx_http_hapax_dead(slots);

    if (ngx_http_arg(r, (u_char *) "format", 6, &format) == NGX_OK
        && format.len == 4 && ngx_strncmp(format.data, "json", 4) == 0)
    {
        ngx_str_set(&r->headers_out.content_type, "application/json");

        body.data = ngx_pnalloc(r->pool, NGX_HTTP_HAPAX_PAGE);
        if (body.data == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        body.len = ngx_http_hapax_json(body.data,
                                       body.data + NGX_HTTP_HAPAX_PAGE, hmcf,
                                       &sum)
                   - body.data;

    } else {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4");

        if (ngx_http_hapax_text_body(r, hmcf, &sum, &body) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.status = NGX_HTTP_OK;

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
