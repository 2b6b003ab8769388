/* SPDX-License-Identifier: Apache-2.0
 *
 * The metrics pages of doors (--metrics, hapax_status), read again and again: rates between two
 * readings, and the last hour of them. Nothing but our own metrics is taken.
 */
#ifndef HAPAX_CLI_WATCH_H
#define HAPAX_CLI_WATCH_H

#include <hapax/store.h>

#define WATCH_MAX     16u /* pages */
#define WATCH_ANSWERS 16u /* above any enum hapax_answer_kind */
#define WATCH_TIMES   5u
#define WATCH_FIGURES 28u
#define WATCH_BUCKETS 40u
#define WATCH_POINTS  720u

/* One reading of a page. What the page does not have is -1. */
struct watch_reading {
    int64_t at_us; /* by the monotonic clock; 0: none */
    double answers[WATCH_ANSWERS]; /* by kind */
    double figures[WATCH_FIGURES]; /* NAN: absent, for some may be negative */
    struct watch_times {
        uint32_t n;
        double most[WATCH_BUCKETS], count[WATCH_BUCKETS];
    } times[WATCH_TIMES];
};

/* What is kept of a reading for an hour: each second, and how long most took. */
struct watch_point {
    int64_t at_us; /* by the wall clock */
    float fresh, replay, other; /* answers each second */
    float p99_s; /* -1: not known */
};

struct watch_page;

struct watch {
    const char *url;
    void *curl;
    bool up;
    char text[160]; /* why it is not up */
    struct watch_reading last, before;
    struct watch_point *points; /* a ring; NULL: none are kept */
    uint32_t points_n, points_next;
};

/* url is borrowed. keep: an hour is kept. INVALID: not http:// or https://. */
enum hapax_error watch_open(struct watch *watch, const char *url, bool keep,
                            char text[HAPAX_TEXT_MAX]);

/* Reads the page once more; waits for two seconds at most. The page is to be given to
 * watch_take(). Changes nothing that the other functions look at. */
struct watch_page *watch_fetch(struct watch *watch);

/* Takes what a page says, and frees it. */
void watch_take(struct watch *watch, struct watch_page *page);

void watch_close(struct watch *watch);

struct json;

/* The members of an object: url, up, rate, answers, times, figures; with `points` the readings of
 * the last hour that came after since_us. */
void watch_members(struct json *json, const struct watch *watch, bool points, int64_t since_us);

/* Answers of a kind each second, or of all with kind 0; -1: not known. */
double watch_rate(const struct watch *watch, int kind);

/* Within which time this share (0.99) of the calls between the two readings was done, in seconds,
 * by the first of the page's histograms; -1: not known. */
double watch_within(const struct watch *watch, double share);

/* A count by its name without "hapax_"; -1: the page does not have it. */
double watch_figure(const struct watch *watch, const char *name);

#endif
