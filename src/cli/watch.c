/* SPDX-License-Identifier: Apache-2.0
 *
 * A page is foreign text: at most 1 MiB of it is read, and only the metrics named here are taken.
 * Each number and each sum is within VALUE_MAX, so what is computed from them is finite.
 * A counter that fell is one of a process that was started anew, and counts from 0.
 */
#include "watch.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"
#include "base/uri.h"
#include "print.h"

#include <curl/curl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_MAX   (1u << 20)
#define TIMEOUT_MS 2000L
#define LABEL_MAX  64u
#define VALUE_MAX  1e18

/* Histograms, those first that a client feels. */
static const char *const times[WATCH_TIMES] = {
    "hapax_consumer_message_seconds", "hapax_handler_seconds", "hapax_consumer_handler_seconds",
    "hapax_store_seconds", "hapax_waiting_seconds"};

/* least: of several lines the smallest counts, and not their sum. */
static const struct {
    const char *name;
    bool least;
} figures[WATCH_FIGURES] = {{"takeovers_total", false},
                            {"lost_total", false},
                            {"in_flight", false},
                            {"lane_queue", false},
                            {"unrecorded_total", false},
                            {"store_errors_total", false},
                            {"store_dead", false},
                            {"consumer_in_hand", false},
                            {"consumer_running", false},
                            {"consumer_lag", false},
                            {"consumer_retried_total", false},
                            {"consumer_parked_total", false},
                            {"consumer_dead_lettered_total", false},
                            {"consumer_letters_refused", false},
                            {"door_in_hand", false},
                            {"door_running", false},
                            {"door_connections", false},
                            {"relay_lag", false},
                            {"relay_lag_seconds", false},
                            {"relay_held", false},
                            {"store_clock_ahead_seconds", false},
                            {"store_replicas", false},
                            {"store_replica_lag_bytes", false},
                            {"store_replica_silent_seconds", false},
                            {"store_certificate_seconds", true},
                            {"gate_certificate_seconds", true},
                            {"store_disk_free_bytes", false},
                            {"store_disk_size_bytes", false}};

/* ---- a page ---------------------------------------------------------------------------- */

struct watch_page {
    CURLcode code;
    size_t len;
    char text[PAGE_MAX + 1];
};

static size_t take(char *from, size_t size, size_t n, void *arg)
{
    struct watch_page *page = arg;

    (void)size;
    if (n > PAGE_MAX - page->len)
        return 0;
    memcpy(page->text + page->len, from, n);
    page->len += n;
    return n;
}

/* The value of a label within the braces of a line, without escapes; false: it has none. */
static bool find_label(char out[LABEL_MAX], const char *labels, const char *name)
{
    const char *at = strstr(labels, name);
    size_t len;

    if (!at)
        return false;
    at += strlen(name);
    len = strcspn(at, "\"\n");
    if (len >= LABEL_MAX)
        return false;
    memcpy(out, at, len);
    out[len] = '\0';
    return true;
}

static double bound(double value)
{
    return value > VALUE_MAX ? VALUE_MAX : value < -VALUE_MAX ? -VALUE_MAX : value;
}

static void add(double *to, double value)
{
    *to = bound((*to < 0 ? 0 : *to) + value);
}

static void take_figure(double *to, double value, bool least)
{
    if (isnan(*to))
        *to = value;
    else if (!least)
        *to = bound(*to + value);
    else if (value < *to)
        *to = value;
}

static void take_answer(struct watch_reading *reading, const char *labels, double value)
{
    char name[LABEL_MAX];

    if (!find_label(name, labels, "answer=\""))
        return;
    for (int kind = HAPAX_ANSWER_FRESH; kind <= HAPAX_ANSWER_EXPIRED; kind++)
        if (strcmp(name, hapax_answer_name((enum hapax_answer_kind)kind)) == 0)
            add(&reading->answers[kind], value);
}

/* Buckets of several zones with the same limit are added up. */
static void take_bucket(struct watch_times *to, const char *labels, double value)
{
    char le[LABEL_MAX];
    double most;

    if (!find_label(le, labels, "le=\""))
        return;
    most = strtod(le, NULL);
    if (!(most >= 0) || (most > VALUE_MAX && !isinf(most))) /* no number, too */
        return;
    for (uint32_t i = 0; i < to->n; i++)
        if (to->most[i] == most) {
            to->count[i] = bound(to->count[i] + value);
            return;
        }
    if (to->n == WATCH_BUCKETS || (to->n > 0 && most < to->most[to->n - 1]))
        return;
    to->most[to->n] = most;
    to->count[to->n++] = value;
}

static bool is_bucket_of(const char *line, size_t len, const char *name)
{
    size_t stem = strlen(name);

    return len == stem + strlen("_bucket") && memcmp(line, name, stem) == 0 &&
           memcmp(line + stem, "_bucket", strlen("_bucket")) == 0;
}

/* line: "name value" or "name{labels} value", ended by a NUL. */
static void take_line(struct watch_reading *reading, const char *line)
{
    static const char prefix[] = "hapax_";
    size_t len = strcspn(line, "{ ");
    const char *labels = line[len] == '{' ? line + len : "";
    const char *space = strrchr(line, ' ');
    double value = space ? strtod(space, NULL) : NAN;

    if (!hapax__text_begins(line, prefix) || !(fabs(value) <= VALUE_MAX))
        return;
    if (value >= 0 && len == strlen("hapax_answers_total") &&
        memcmp(line, "hapax_answers_total", len) == 0)
        take_answer(reading, labels, value);
    for (size_t i = 0; i < WATCH_TIMES && value >= 0; i++)
        if (is_bucket_of(line, len, times[i]))
            take_bucket(&reading->times[i], labels, value);
    line += sizeof(prefix) - 1;
    len -= sizeof(prefix) - 1;
    for (size_t i = 0; i < WATCH_FIGURES; i++)
        if (strlen(figures[i].name) == len && memcmp(line, figures[i].name, len) == 0)
            take_figure(&reading->figures[i], value, figures[i].least);
}

static void take_page(struct watch_reading *reading, struct watch_page *page)
{
    char *rest = page->text, *line;

    *reading = (struct watch_reading){.at_us = hapax__monotonic_us()};
    for (size_t i = 0; i < WATCH_ANSWERS; i++)
        reading->answers[i] = -1;
    for (size_t i = 0; i < WATCH_FIGURES; i++)
        reading->figures[i] = NAN;
    page->text[page->len] = '\0';
    while ((line = strsep(&rest, "\n")))
        take_line(reading, line);
}

/* ---- two readings ----------------------------------------------------------------------- */

static bool are_two(const struct watch *watch)
{
    return watch->up && watch->before.at_us > 0 && watch->last.at_us > watch->before.at_us;
}

/* What a counter rose by. */
static double risen(double now, double before)
{
    return before < 0 || now < before ? now : now - before;
}

double watch_rate(const struct watch *watch, int kind)
{
    double sum = 0;
    bool known = false;

    if (!are_two(watch))
        return -1;
    for (int i = HAPAX_ANSWER_FRESH; i <= HAPAX_ANSWER_EXPIRED; i++)
        if ((kind == 0 || kind == i) && watch->last.answers[i] >= 0) {
            sum += risen(watch->last.answers[i], watch->before.answers[i]);
            known = true;
        }
    return known ? sum * 1e6 / (double)(watch->last.at_us - watch->before.at_us) : -1;
}

/* The buckets hold how many took at most so long; the last one holds all. */
static double within(const struct watch_times *now, const struct watch_times *before, double share)
{
    bool anew =
        now->n != before->n || (now->n > 0 && now->count[now->n - 1] < before->count[now->n - 1]);
    double all, below = 0, least = 0;

    if (now->n == 0)
        return -1;
    all = now->count[now->n - 1] - (anew ? 0 : before->count[now->n - 1]);
    if (all <= 0)
        return -1;
    for (uint32_t i = 0; i < now->n; i++) {
        double count = now->count[i] - (anew ? 0 : before->count[i]);

        if (count >= share * all) {
            if (i + 1 == now->n) /* le="+Inf" */
                return least;
            return least + (now->most[i] - least) * (share * all - below) /
                               (count > below ? count - below : 1);
        }
        below = count;
        least = now->most[i];
    }
    return least;
}

double watch_within(const struct watch *watch, double share)
{
    double found;

    for (size_t i = 0; i < WATCH_TIMES && are_two(watch); i++) {
        found = within(&watch->last.times[i], &watch->before.times[i], share);
        if (found >= 0)
            return found;
    }
    return -1;
}

double watch_figure(const struct watch *watch, const char *name)
{
    for (size_t i = 0; i < WATCH_FIGURES && watch->up; i++)
        if (strcmp(figures[i].name, name) == 0 && !isnan(watch->last.figures[i]))
            return watch->last.figures[i];
    return -1;
}

static void keep_point(struct watch *watch)
{
    double all = watch_rate(watch, 0), fresh = watch_rate(watch, HAPAX_ANSWER_FRESH);
    double replay = watch_rate(watch, HAPAX_ANSWER_REPLAY);
    struct watch_point *point;

    if (!watch->points || all < 0)
        return;
    point = &watch->points[watch->points_next];
    watch->points_next = (watch->points_next + 1) % WATCH_POINTS;
    watch->points_n += watch->points_n < WATCH_POINTS;
    fresh = fresh < 0 ? 0 : fresh;
    replay = replay < 0 ? 0 : replay;
    *point = (struct watch_point){hapax__wall_us(), (float)fresh, (float)replay,
                                  (float)(all - fresh - replay), (float)watch_within(watch, 0.99)};
}

/* ---- reading ------------------------------------------------------------------------------ */

enum hapax_error watch_open(struct watch *watch, const char *url, bool keep,
                            char text[HAPAX_TEXT_MAX])
{
    char shown[HAPAX_TEXT_MAX];
    CURL *curl;

    *watch = (struct watch){.url = url};
    if (!hapax__text_begins(url, "http://") && !hapax__text_begins(url, "https://")) {
        hapax__uri_shown(shown, url);
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "--watch \"%.100s\" is not http://HOST:PORT/metrics", shown);
    }
    (void)snprintf(watch->text, sizeof(watch->text), "not read yet");
    curl = curl_easy_init();
    if (keep)
        watch->points = calloc(WATCH_POINTS, sizeof(*watch->points));
    watch->curl = curl;
    if (!curl || (keep && !watch->points)) {
        watch_close(watch);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    }
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, TIMEOUT_MS);
    (void)curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    return HAPAX_ERR_NONE;
}

struct watch_page *watch_fetch(struct watch *watch)
{
    struct watch_page *page = malloc(sizeof(*page));

    if (!page)
        return NULL;
    page->len = 0;
    (void)curl_easy_setopt(watch->curl, CURLOPT_WRITEDATA, page);
    page->code = curl_easy_perform(watch->curl);
    return page;
}

void watch_take(struct watch *watch, struct watch_page *page)
{
    CURLcode code = page ? page->code : CURLE_OUT_OF_MEMORY;

    watch->up = code == CURLE_OK;
    if (watch->up) {
        watch->before = watch->last;
        take_page(&watch->last, page);
        keep_point(watch);
    } else {
        (void)snprintf(watch->text, sizeof(watch->text), "%s", curl_easy_strerror(code));
        watch->last.at_us = 0;
    }
    free(page);
}

void watch_close(struct watch *watch)
{
    curl_easy_cleanup(watch->curl);
    free(watch->points);
    *watch = (struct watch){.url = NULL};
}

/* ---- JSON --------------------------------------------------------------------------------- */

static void put_decimal(struct json *json, const char *name, double value)
{
    if (value < 0)
        json_null(json, name);
    else
        json_decimal(json, name, value);
}

static void put_answers(struct json *json, const struct watch *watch)
{
    put_decimal(json, "rate", watch_rate(watch, 0));
    json_array_begin(json, "answers");
    for (int kind = HAPAX_ANSWER_FRESH; kind <= HAPAX_ANSWER_EXPIRED && watch->up; kind++) {
        if (watch->last.answers[kind] < 0)
            continue;
        json_object_begin(json);
        json_text(json, "answer", hapax_answer_name((enum hapax_answer_kind)kind));
        json_number(json, "total", (int64_t)watch->last.answers[kind]);
        put_decimal(json, "rate", watch_rate(watch, kind));
        json_object_end(json);
    }
    json_array_end(json);
}

static void put_times(struct json *json, const struct watch *watch)
{
    json_array_begin(json, "times");
    for (size_t i = 0; i < WATCH_TIMES && are_two(watch); i++) {
        const struct watch_times *now = &watch->last.times[i], *before = &watch->before.times[i];

        if (now->n == 0)
            continue;
        json_object_begin(json);
        json_text(json, "name", times[i] + strlen("hapax_"));
        put_decimal(json, "p50_ms", within(now, before, 0.5) * 1000);
        put_decimal(json, "p99_ms", within(now, before, 0.99) * 1000);
        json_object_end(json);
    }
    json_array_end(json);
}

static void put_figures(struct json *json, const struct watch *watch)
{
    json_array_begin(json, "figures");
    for (size_t i = 0; i < WATCH_FIGURES && watch->up; i++) {
        if (isnan(watch->last.figures[i]))
            continue;
        json_object_begin(json);
        json_text(json, "name", figures[i].name);
        json_decimal(json, "value", watch->last.figures[i]);
        json_object_end(json);
    }
    json_array_end(json);
}

static void put_points(struct json *json, const struct watch *watch, int64_t since_us)
{
    uint32_t first = watch->points_next + WATCH_POINTS - watch->points_n;

    json_array_begin(json, "points");
    for (uint32_t i = 0; i < watch->points_n; i++) {
        const struct watch_point *point = &watch->points[(first + i) % WATCH_POINTS];

        if (point->at_us <= since_us)
            continue;
        json_object_begin(json);
        json_number(json, "at_us", point->at_us);
        json_decimal(json, "fresh", (double)point->fresh);
        json_decimal(json, "replay", (double)point->replay);
        json_decimal(json, "other", (double)point->other);
        put_decimal(json, "p99_ms", (double)point->p99_s * 1000);
        json_object_end(json);
    }
    json_array_end(json);
}

void watch_members(struct json *json, const struct watch *watch, bool points, int64_t since_us)
{
    char shown[HAPAX_TEXT_MAX];

    hapax__uri_shown(shown, watch->url);
    json_text(json, "url", shown);
    json_bool(json, "up", watch->up);
    if (!watch->up)
        json_text(json, "text", watch->text);
    put_answers(json, watch);
    put_times(json, watch);
    put_figures(json, watch);
    if (points)
        put_points(json, watch, since_us);
}
