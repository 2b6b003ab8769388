/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue is a ring of told operations, each with its names copied. Its thread writes what is at
 * the ring's head without the lock, since doors only add behind it, and then lets the places go.
 * Spans and events have a queue and a thread each: a collector that is down loses no event, and a
 * pipe that nobody reads loses no span.
 *
 * Spans and events are written by hand and not by the JSON writer: a gate tells of each request,
 * and the text of a span is the same but for a few numbers. No number of the places that one
 * operation needs is checked while it is written: there is room for the longest.
 *
 * The ids of an operation's spans are one random id with other last bits. So the door knows the id
 * of the handler's span before there is a span.
 *
 * Rejected: the SDK of OpenTelemetry, which is C++, with its protobuf or gRPC. Rejected: spans sent
 * by the door's own thread, which would wait for a collector that stands still.
 */
#include "traces.h"

#include "aws/fetch.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/thread.h"
#include "base/time.h"
#include "prometheus.h"
#include <hapax/store.h>

#include <assert.h>
#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define QUEUE_MAX    4096u
#define BATCH_MAX    256u
#define GATHER_US    US_PER_S /* how long a batch gathers */
#define CLOSE_US     (2 * US_PER_S)
#define TRIES_MAX    4u
#define PAUSE_MIN_US (500 * US_PER_MS) /* before the second try; it doubles */
#define TIMEOUT_MS   5000L
#define URL_MAX      1024u
#define HEADERS_MAX  4096u
#define LINES_MAX_US US_PER_S /* a reader that stands still is given so much */
#define PATH         "/v1/traces"
#define EVENT_MAX    2048u /* an event: two names of 255 bytes, all quotes, and its numbers */
#define WRITE_MAX    4096u /* PIPE_BUF: so much goes into a file whole */
#define SPANS_MAX    8192u /* all spans of an operation */

/* The spans of an operation, by the last bits of their ids. */
enum part { OPERATION, CLAIM, RUN, COMPLETE, WAIT, PARTS = 8 };

struct told {
    bool published; /* of a relay: it was not put aside */
    struct hapax__traced at;
    bool keyed;
    struct hapax_id id;
    enum hapax_answer_kind answer;
    enum hapax_class cls;
    bool recorded;
    int status;
    uint32_t attempt;
    uint64_t fence;
    int64_t begun_us, wait_us, run_us, handled_us, ended_us;
    char link[HAPAX_TRACE_MAX]; /* the run that gave the outcome; "": this one, or none */
    size_t scope_len, what_len;
    uint8_t scope[HAPAX_SCOPE_MAX]; /* a relay's: the destination */
    uint8_t what[HAPAX_WHAT_MAX];
};

struct queue {
    pthread_t thread;
    pthread_mutex_t lock; /* of the fields below */
    pthread_cond_t wake;
    bool ending;
    int64_t end_us;
    size_t head, count; /* of `told` */
    struct told told[QUEUE_MAX];
};

struct hapax__traces {
    enum hapax__traced_door door;
    struct queue *spans, *events; /* NULL: none */
    char url[URL_MAX]; /* "": no spans */
    struct curl_slist *headers;
    char *resource; /* what stands before the spans */
    size_t resource_len;
    CURL *easy;
    int events_fd; /* -1: none */
    bool stalled; /* nobody reads the events; the thread's, as what follows */
    time_t second; /* of `time_text` */
    char time_text[32];
    atomic_uint_fast64_t seed;
    atomic_uint_fast64_t sent, dropped, events_dropped;
};

/* Those of this process, for its /metrics: a process is one door. */
static _Atomic(struct hapax__traces *) current;

static const struct {
    const char *name, *span; /* before the scope */
    int kind; /* SERVER 2, PRODUCER 4, CONSUMER 5, INTERNAL 1 */
} doors[] = {
    [HAPAX__TRACED_HTTP] = {"http", "request ", 2},
    [HAPAX__TRACED_MESSAGE] = {"message", "process ", 5},
    [HAPAX__TRACED_LAMBDA] = {"lambda", "invoke ", 2},
    [HAPAX__TRACED_SOCKET] = {"socket", "call ", 1},
    [HAPAX__TRACED_COMMAND] = {"command", "command ", 1},
    [HAPAX__TRACED_RELAY] = {"relay", "publish ", 4},
};

static const char *class_name(enum hapax_class cls)
{
    static const char *const names[] = {"", "final", "not_run", "failed", "unknown"};

    return names[cls];
}

/* ---- writing ------------------------------------------------------------------------- */

static char *put(char *at, const char *text)
{
    size_t len = strlen(text);

    return (char *)memcpy(at, text, len) + len;
}

static char *put_number(char *at, uint64_t number)
{
    char digits[20];
    size_t n = 0;

    do {
        digits[n++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (n > 0)
        *at++ = digits[--n];
    return at;
}

/* A name that was cleaned by hapax_what(). */
static char *put_name(char *at, const uint8_t *name, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (name[i] == '"' || name[i] == '\\')
            *at++ = '\\';
        *at++ = (char)name[i];
    }
    return at;
}

static char *put_text(char *at, const char *key, const char *value)
{
    at = put(at, ",{\"key\":\"");
    at = put(at, key);
    at = put(at, "\",\"value\":{\"stringValue\":\"");
    at = put(at, value);
    return put(at, "\"}}");
}

static char *put_count(char *at, const char *key, uint64_t value)
{
    at = put(at, ",{\"key\":\"");
    at = put(at, key);
    at = put(at, "\",\"value\":{\"intValue\":\"");
    at = put_number(at, value);
    return put(at, "\"}}");
}

/* ---- spans --------------------------------------------------------------------------- */

static struct hapax__trace part_of(const struct hapax__traced *traced, enum part part)
{
    struct hapax__trace context = traced->self;

    context.span[7] = (uint8_t)(context.span[7] ^ part);
    return context;
}

/* Begins a span; its name and its attributes follow. */
static char *put_span(char *at, const struct told *told, enum part part, int kind, int64_t begun_us,
                      int64_t ended_us, int64_t ahead_us)
{
    const struct hapax__traced *traced = &told->at;
    struct hapax__trace self = part_of(traced, part);
    static const uint8_t none[8];

    at = put(at, "{\"traceId\":\"");
    at = hapax__hex(at, self.trace, sizeof(self.trace));
    at = put(at, "\",\"spanId\":\"");
    at = hapax__hex(at, self.span, sizeof(self.span));
    if (part != OPERATION || memcmp(traced->parent.span, none, sizeof(none)) != 0) {
        at = put(at, "\",\"parentSpanId\":\"");
        at = hapax__hex(at, part == OPERATION ? traced->parent.span : traced->self.span, 8);
    }
    at = put(at, "\",\"kind\":");
    at = put_number(at, (uint64_t)kind);
    at = put(at, ",\"startTimeUnixNano\":\"");
    at = put_number(at, (uint64_t)(begun_us + ahead_us));
    at = put(at, "000\",\"endTimeUnixNano\":\"");
    at = put_number(at, (uint64_t)(hapax__most(ended_us, begun_us) + ahead_us));
    return put(at, "000\",\"name\":\"");
}

static char *put_part(char *at, const struct told *told, enum part part, const char *name,
                      int64_t begun_us, int64_t ended_us, int64_t ahead_us)
{
    *at++ = ',';
    at = put_span(at, told, part, 1, begun_us, ended_us, ahead_us);
    at = put(at, name);
    return put(at, "\"}");
}

static char *put_attributes(char *at, const struct told *told, enum hapax__traced_door door)
{
    bool failed = told->answer == HAPAX_ANSWER_STORE_DOWN || told->answer == HAPAX_ANSWER_UNKNOWN ||
                  told->answer == HAPAX_ANSWER_FAILED || told->cls == HAPAX_CLASS_FAILED ||
                  told->cls == HAPAX_CLASS_UNKNOWN;

    at = put(at, "\",\"attributes\":[{\"key\":\"hapax.door\",\"value\":{\"stringValue\":\"");
    at = put(at, doors[door].name);
    at = put(at, "\"}},{\"key\":\"hapax.answer\",\"value\":{\"stringValue\":\"");
    at = put(at, hapax_answer_name(told->answer));
    at = put(at, "\"}}");
    if (told->keyed) {
        at = put(at, ",{\"key\":\"hapax.id\",\"value\":{\"stringValue\":\"");
        at = hapax__hex(at, told->id.bytes, sizeof(told->id.bytes));
        at = put(at, "\"}},{\"key\":\"hapax.scope\",\"value\":{\"stringValue\":\"");
        at = put_name(at, told->scope, told->scope_len);
        at = put(at, "\"}}");
    }
    if (told->what_len > 0) {
        at = put(at, ",{\"key\":\"hapax.what\",\"value\":{\"stringValue\":\"");
        at = put_name(at, told->what, told->what_len);
        at = put(at, "\"}}");
    }
    if (told->attempt > 0)
        at = put_count(at, "hapax.attempt", told->attempt);
    if (told->fence > 0)
        at = put_count(at, "hapax.fence", told->fence);
    if (told->cls)
        at = put_text(at, "hapax.class", class_name(told->cls));
    if (told->status > 0 && door == HAPAX__TRACED_COMMAND)
        at = put_count(at, "process.exit.code", (uint64_t)told->status);
    else if (told->status >= 100)
        at = put_count(at, "http.response.status_code", (uint64_t)told->status);
    at = put(at, "]");
    return failed ? put(at, ",\"status\":{\"code\":2}") : at;
}

static char *put_link(char *at, const char *link)
{
    if (!link[0])
        return at;
    at = put(at, ",\"links\":[{\"traceId\":\"");
    at = (char *)memcpy(at, link + 3, 32) + 32;
    at = put(at, "\",\"spanId\":\"");
    at = (char *)memcpy(at, link + 36, 16) + 16;
    return put(at, "\"}]");
}

static char *put_publication(char *at, const struct told *told, int64_t ahead_us)
{
    at = put_span(at, told, OPERATION, doors[HAPAX__TRACED_RELAY].kind, told->begun_us,
                  told->ended_us, ahead_us);
    at = put(at, doors[HAPAX__TRACED_RELAY].span);
    at = put_name(at, told->scope, told->scope_len);
    at =
        put(at, "\",\"attributes\":[{\"key\":\"hapax.door\",\"value\":{\"stringValue\":\"relay\"}},"
                "{\"key\":\"messaging.operation.type\",\"value\":{\"stringValue\":\"send\"}},"
                "{\"key\":\"messaging.destination.name\",\"value\":{\"stringValue\":\"");
    at = put_name(at, told->scope, told->scope_len);
    at = put(at, "\"}}]");
    return put(at, told->published ? "}" : ",\"status\":{\"code\":2}}");
}

/* All spans of an operation, with commas between. At most SPANS_MAX bytes. */
static char *put_spans(char *at, const struct told *told, enum hapax__traced_door door,
                       int64_t ahead_us)
{
    int64_t claimed_us = told->wait_us  ? told->wait_us
                         : told->run_us ? told->run_us
                                        : told->ended_us;

    if (door == HAPAX__TRACED_RELAY)
        return put_publication(at, told, ahead_us);
    at = put_span(at, told, OPERATION, doors[door].kind, told->begun_us, told->ended_us, ahead_us);
    at = put(at, doors[door].span);
    at = put_name(at, told->scope, told->scope_len);
    at = put_attributes(at, told, door);
    at = put_link(at, told->link);
    at = put(at, "}");
    if (told->keyed)
        at = put_part(at, told, CLAIM, told->link[0] && !told->wait_us ? "replay" : "claim",
                      told->begun_us, claimed_us, ahead_us);
    if (told->wait_us > 0)
        at = put_part(at, told, WAIT, "wait", told->wait_us,
                      told->run_us ? told->run_us : told->ended_us, ahead_us);
    if (told->cls)
        at = put_part(at, told, RUN, "handler", told->run_us, told->handled_us, ahead_us);
    if (told->cls && told->keyed)
        at = put_part(at, told, COMPLETE, "complete", told->handled_us, told->ended_us, ahead_us);
    return at;
}

/* ---- events -------------------------------------------------------------------------- */

static char *put_time(char *at, struct hapax__traces *traces, int64_t us)
{
    time_t second = (time_t)(us / US_PER_S);
    struct tm tm;

    if (second != traces->second) {
        (void)gmtime_r(&second, &tm);
        (void)strftime(traces->time_text, sizeof(traces->time_text), "%Y-%m-%dT%H:%M:%S.", &tm);
        traces->second = second;
    }
    at = put(at, traces->time_text);
    for (int64_t unit = US_PER_S / 10; unit > 0; unit /= 10)
        *at++ = (char)('0' + us / unit % 10);
    return put(at, "Z");
}

static char *put_ms(char *at, const char *name, int64_t us)
{
    us = hapax__most(us, 0);
    at = put(at, name);
    at = put_number(at, (uint64_t)(us / US_PER_MS));
    *at++ = '.';
    for (int64_t unit = US_PER_MS / 10; unit > 0; unit /= 10)
        *at++ = (char)('0' + us / unit % 10);
    return at;
}

/* At most EVENT_MAX bytes. */
static char *put_event(char *at, struct hapax__traces *traces, const struct told *told,
                       int64_t ahead_us)
{
    static const struct hapax__trace none;
    struct hapax__trace run = part_of(&told->at, RUN);
    char trace[HAPAX_TRACE_MAX];

    at = put(at, "{\"event\":\"attempt\",\"time\":\"");
    at = put_time(at, traces, told->ended_us + ahead_us);
    at = put(at, "\",\"door\":\"");
    at = put(at, doors[traces->door].name);
    at = put(at, "\",\"id\":");
    if (told->keyed) {
        *at++ = '"';
        at = hapax__hex(at, told->id.bytes, sizeof(told->id.bytes));
        *at++ = '"';
    } else {
        at = put(at, "null");
    }
    at = put(at, ",\"scope\":\"");
    at = put_name(at, told->scope, told->scope_len);
    at = put(at, "\",\"what\":\"");
    at = put_name(at, told->what, told->what_len);
    at = put(at, "\",\"attempt\":");
    at = put_number(at, told->attempt);
    at = put(at, ",\"fence\":");
    at = put_number(at, told->fence);
    at = put(at, ",\"class\":\"");
    at = put(at, class_name(told->cls));
    at = put(at, "\",\"answer\":\"");
    at = put(at, hapax_answer_name(told->answer));
    at = put(at, told->recorded ? "\",\"recorded\":true" : "\",\"recorded\":false");
    at = put(at, ",\"status\":");
    at = put_number(at, (uint64_t)told->status);
    at = put_ms(at, ",\"ms\":", told->ended_us - told->begun_us);
    at = put_ms(at, ",\"handler_ms\":", told->handled_us - told->run_us);
    at = put(at, ",\"trace\":");
    if (memcmp(&told->at.self, &none, sizeof(none)) == 0)
        return put(at, "null}\n");
    hapax__trace_write(trace, told->at.sent ? &run : &told->at.self);
    *at++ = '"';
    at = put(at, trace);
    return put(at, "\"}\n");
}

/* ---- the threads --------------------------------------------------------------------- */

/* Waits until there is something to send, and some time for more of it. Returns how many are there,
 * from *head on; 0: the end. */
static size_t gather(struct queue *queue, size_t *head)
{
    struct timespec until;
    size_t count;
    bool late = false;

    pthread_mutex_lock(&queue->lock);
    while (queue->count == 0 && !queue->ending)
        pthread_cond_wait(&queue->wake, &queue->lock);
    until = hapax__timespec(hapax__monotonic_us() + GATHER_US);
    while (queue->count < BATCH_MAX && !queue->ending && !late)
        late = pthread_cond_timedwait(&queue->wake, &queue->lock, &until) == ETIMEDOUT;
    count = queue->count < BATCH_MAX ? queue->count : BATCH_MAX;
    *head = queue->head;
    pthread_mutex_unlock(&queue->lock);
    return count;
}

static void let_go(struct queue *queue, size_t count)
{
    pthread_mutex_lock(&queue->lock);
    queue->head = (queue->head + count) % QUEUE_MAX;
    queue->count -= count;
    pthread_mutex_unlock(&queue->lock);
}

/* How long the thread may still take; INT64_MAX until the end is near. */
static int64_t left_us(struct queue *queue)
{
    int64_t left;

    pthread_mutex_lock(&queue->lock);
    left = queue->ending ? hapax__most(queue->end_us - hapax__monotonic_us(), 0) : INT64_MAX;
    pthread_mutex_unlock(&queue->lock);
    return left;
}

/* Waits for a pause, or until the end is near. */
static void pause_for(struct queue *queue, int64_t us)
{
    struct timespec until = hapax__timespec(hapax__monotonic_us() + us);

    pthread_mutex_lock(&queue->lock);
    while (!queue->ending &&
           pthread_cond_timedwait(&queue->wake, &queue->lock, &until) != ETIMEDOUT) {
        /* more has come */
    }
    pthread_mutex_unlock(&queue->lock);
}

/* Whole lines, at once. A reader that stood still is not waited for again until it has read. */
static bool write_lines(struct hapax__traces *traces, const char *bytes, size_t len)
{
    struct pollfd fd = {.fd = traces->events_fd, .events = POLLOUT};
    int64_t now_us = hapax__monotonic_us(),
            until_us = now_us + hapax__least(LINES_MAX_US, left_us(traces->events));
    ssize_t wrote = -1;

    do {
        int64_t wait_us = traces->stalled ? 0 : hapax__most(until_us - now_us, 0);

        if (poll(&fd, 1, (int)(wait_us / US_PER_MS)) != 1 || !(fd.revents & POLLOUT))
            break;
        wrote = write(traces->events_fd, bytes, len); /* another process may have been faster */
        now_us = hapax__monotonic_us();
    } while (wrote < 0 && errno == EAGAIN && !traces->stalled && now_us < until_us);
    traces->stalled = wrote != (ssize_t)len;
    return !traces->stalled;
}

static void write_events(struct hapax__traces *traces, size_t head, size_t count)
{
    int64_t ahead_us = hapax__wall_us() - hapax__boot_us();
    char lines[WRITE_MAX];
    size_t n = 0, len = 0;

    for (size_t i = 0; i < count; i++) {
        const struct told *told = &traces->events->told[(head + i) % QUEUE_MAX];

        len = (size_t)(put_event(lines + len, traces, told, ahead_us) - lines);
        assert(len <= sizeof(lines));
        n++;
        if (i + 1 < count && len <= sizeof(lines) - EVENT_MAX)
            continue;
        if (!write_lines(traces, lines, len))
            atomic_fetch_add(&traces->events_dropped, n);
        n = len = 0;
    }
}

static void *events_main(void *arg)
{
    struct hapax__traces *traces = arg;
    size_t head, count;

    pthread_setname_np(pthread_self(), "hapax-events");
    while ((count = gather(traces->events, &head)) > 0) {
        write_events(traces, head, count);
        let_go(traces->events, count);
    }
    return NULL;
}

static size_t ignore(char *bytes, size_t size, size_t n, void *arg)
{
    (void)bytes;
    (void)arg;
    return size * n;
}

/* A request that was under way when the end began has no longer than the others. */
static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    struct hapax__traces *traces = arg;

    (void)a;
    (void)b;
    (void)c;
    (void)d;
    return left_us(traces->spans) == 0;
}

/* Sends a body once. *again: to be tried again. */
static bool post(struct hapax__traces *traces, const char *body, size_t len, bool *again)
{
    long status = 0;
    int64_t timeout_ms = hapax__least(TIMEOUT_MS, left_us(traces->spans) / US_PER_MS + 1);
    CURLcode code;

    curl_easy_setopt(traces->easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(traces->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
    curl_easy_setopt(traces->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    code = curl_easy_perform(traces->easy);
    if (code == CURLE_OK)
        curl_easy_getinfo(traces->easy, CURLINFO_RESPONSE_CODE, &status);
    *again = code != CURLE_OK || status == 429 || status == 502 || status == 503 || status == 504;
    return code == CURLE_OK && status / 100 == 2;
}

static bool post_until(struct hapax__traces *traces, const char *body, size_t len)
{
    int64_t pause_us = PAUSE_MIN_US;
    bool again = true;

    for (unsigned tries = 0; tries < TRIES_MAX && again; tries++) {
        if (tries > 0)
            pause_for(traces->spans, pause_us);
        if (tries > 0 && left_us(traces->spans) != INT64_MAX)
            return false;
        pause_us *= 2;
        if (post(traces, body, len, &again))
            return true;
    }
    return false;
}

static void send_spans(struct hapax__traces *traces, char *body, size_t head, size_t count)
{
    int64_t ahead_us = hapax__wall_us() - hapax__boot_us();
    char *at = (char *)memcpy(body, traces->resource, traces->resource_len) + traces->resource_len;

    for (size_t i = 0; i < count; i++) {
        const struct told *told = &traces->spans->told[(head + i) % QUEUE_MAX];
        char *from = at;

        if (i > 0)
            *at++ = ',';
        at = put_spans(at, told, traces->door, ahead_us);
        assert(at - from <= (ptrdiff_t)SPANS_MAX);
    }
    at = put(at, "]}]}]}");
    atomic_fetch_add(
        post_until(traces, body, (size_t)(at - body)) ? &traces->sent : &traces->dropped, count);
}

static void *spans_main(void *arg)
{
    struct hapax__traces *traces = arg;
    char *body = malloc(traces->resource_len + BATCH_MAX * SPANS_MAX + 64);
    size_t head, count;

    pthread_setname_np(pthread_self(), "hapax-traces");
    while ((count = gather(traces->spans, &head)) > 0) {
        if (body && left_us(traces->spans) > 0)
            send_spans(traces, body, head, count);
        else
            atomic_fetch_add(&traces->dropped, count);
        let_go(traces->spans, count);
    }
    free(body);
    return NULL;
}

/* ---- settings ------------------------------------------------------------------------ */

/* A variable of the environment; NULL where it is not set, or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value && value[0] ? value : NULL;
}

static bool is_off(void)
{
    const char *disabled = variable("OTEL_SDK_DISABLED"),
               *exporter = variable("OTEL_TRACES_EXPORTER");

    return (disabled && strcasecmp(disabled, "true") == 0) ||
           (exporter && strcmp(exporter, "none") == 0);
}

static enum hapax_error set_url(struct hapax__traces *traces, const char *given,
                                char text[HAPAX_TEXT_MAX])
{
    const char *url = given, *path = "", *host;

    if (!url && !is_off())
        url = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    if (!url && !is_off() && (url = variable("OTEL_EXPORTER_OTLP_ENDPOINT")))
        path = PATH;
    if (!url)
        return HAPAX_ERR_NONE;
    host = strstr(url, "://");
    host = host ? host + 3 : "";
    if (given && !strchr(host, '/'))
        path = PATH;
    if (*path && url[strlen(url) - 1] == '/')
        path++;
    if ((!hapax__text_begins(url, "http://") && !hapax__text_begins(url, "https://")) || !*host ||
        strlen(url) + strlen(path) >= URL_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "traces go to http://HOST:PORT or https://…, not to \"%.100s\"", url);
    memcpy(mempcpy(traces->url, url, strlen(url)), path, strlen(path));
    return HAPAX_ERR_NONE;
}

static enum hapax_error add_header(struct hapax__traces *traces, const char *line,
                                   char text[HAPAX_TEXT_MAX])
{
    struct curl_slist *more = curl_slist_append(traces->headers, line);

    if (!more)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    traces->headers = more;
    return HAPAX_ERR_NONE;
}

static bool is_header(const char *name, size_t name_len, const char *value, size_t value_len)
{
    for (size_t i = 0; i < name_len; i++)
        if (name[i] <= ' ' || name[i] >= 127 || name[i] == ':')
            return false;
    for (size_t i = 0; i < value_len; i++)
        if ((unsigned char)value[i] < ' ' || value[i] == 127)
            return false;
    return name_len > 0;
}

/* One `name=value`, percent-encoded. The value may be a secret: no text shows it. */
static enum hapax_error set_header(struct hapax__traces *traces, const char *name, size_t len,
                                   char text[HAPAX_TEXT_MAX])
{
    const char *equals = memchr(name, '=', len);
    size_t name_len = equals ? (size_t)(equals - name) : 0, value_len = 0;
    char line[HEADERS_MAX + 8], value[HEADERS_MAX];

    for (size_t i = name_len + 1; i < len; i++) {
        char hex[3] = {0}, c = name[i];

        if (c == '%' && i + 2 < len && isxdigit((unsigned char)name[i + 1]) &&
            isxdigit((unsigned char)name[i + 2])) {
            memcpy(hex, name + i + 1, 2);
            c = (char)strtol(hex, NULL, 16);
            i += 2;
        }
        value[value_len++] = c;
    }
    if (!is_header(name, name_len, value, value_len))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "OTEL_EXPORTER_OTLP_HEADERS is a list of name=value");
    (void)snprintf(line, sizeof(line), "%.*s: %.*s", (int)name_len, name, (int)value_len, value);
    return add_header(traces, line, text);
}

static enum hapax_error set_headers(struct hapax__traces *traces, char text[HAPAX_TEXT_MAX])
{
    const char *at = variable("OTEL_EXPORTER_OTLP_TRACES_HEADERS");
    enum hapax_error error = add_header(traces, "Content-Type: application/json", text);

    if (!at)
        at = variable("OTEL_EXPORTER_OTLP_HEADERS");
    if (at && strlen(at) >= HEADERS_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "OTEL_EXPORTER_OTLP_HEADERS is over %u bytes",
                           HEADERS_MAX);
    while (at && *at && error == HAPAX_ERR_NONE) {
        size_t space = strspn(at, " ,"), len = strcspn(at + space, ",");

        if (len > 0)
            error = set_header(traces, at + space, len, text);
        at += space + len;
    }
    return error;
}

static enum hapax_error set_resource(struct hapax__traces *traces, char text[HAPAX_TEXT_MAX])
{
    const char *service = variable("OTEL_SERVICE_NAME");
    uint8_t name[HAPAX_WHAT_MAX];
    struct hapax_span given = hapax_str(service ? service : "hapax");
    size_t len = hapax_what(name, &given, 1);
    char *at = malloc(2 * sizeof(name) + 256);

    traces->resource = at;
    if (!at)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    at = put(at, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[{\"key\":\"service.name\","
                 "\"value\":{\"stringValue\":\"");
    at = put_name(at, name, len);
    at = put(at, "\"}}]},\"scopeSpans\":[{\"scope\":{\"name\":\"hapax\",\"version\":"
                 "\"" HAPAX_VERSION "\"},\"spans\":[");
    traces->resource_len = (size_t)(at - traces->resource);
    return HAPAX_ERR_NONE;
}

static enum hapax_error set_easy(struct hapax__traces *traces, char text[HAPAX_TEXT_MAX])
{
    CURL *easy;

    hapax__aws_curl_init();
    easy = traces->easy = curl_easy_init();
    if (!easy)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    curl_easy_setopt(easy, CURLOPT_URL, traces->url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, traces->headers);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* does not wait for a name to be found */
    curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(easy, CURLOPT_XFERINFODATA, traces);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "hapax/" HAPAX_VERSION);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, ignore);
    return HAPAX_ERR_NONE;
}

/* A write never blocks. Others share standard output, so a pipe there is opened anew. Where that is
 * forbidden (another user's), it is used as it is. */
static int own_output(void)
{
    struct stat is;
    int fd = -1;

    if (fstat(STDOUT_FILENO, &is) == 0 && S_ISFIFO(is.st_mode))
        fd = open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 ? fd : fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
}

static enum hapax_error set_events(struct hapax__traces *traces,
                                   const struct hapax__traces_settings *settings,
                                   char text[HAPAX_TEXT_MAX])
{
    const char *file = settings->events;

    if (settings->events_fd)
        traces->events_fd = fcntl(*settings->events_fd, F_DUPFD_CLOEXEC, 3);
    else if (file && strcmp(file, "-") == 0)
        traces->events_fd = own_output();
    else if (file)
        traces->events_fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (traces->events_fd >= 0 && (!file || strcmp(file, "-") != 0))
        (void)fcntl(traces->events_fd, F_SETFL, O_APPEND | O_NONBLOCK);
    if (traces->events_fd >= 0 || (!file && !settings->events_fd))
        return HAPAX_ERR_NONE;
    return hapax__fail(text, HAPAX_ERR_INVALID, "cannot write events to \"%.100s\": %s",
                       file ? file : "a descriptor", strerror(errno));
}

/* ---- open and close ------------------------------------------------------------------ */

static void queue_free(struct queue *queue)
{
    pthread_cond_destroy(&queue->wake);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

static bool queue_open(struct queue **out, void *(*run)(void *), struct hapax__traces *traces)
{
    struct queue *queue = calloc(1, sizeof(*queue));

    if (!queue)
        return false;
    pthread_mutex_init(&queue->lock, NULL);
    hapax__cond_init(&queue->wake);
    *out = queue;
    if (hapax__thread_start(&queue->thread, run, traces))
        return true;
    queue_free(queue);
    *out = NULL;
    return false;
}

static void queue_end(struct queue *queue, int64_t end_us)
{
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->ending = true;
    queue->end_us = end_us;
    pthread_cond_signal(&queue->wake);
    pthread_mutex_unlock(&queue->lock);
}

static void queue_close(struct queue *queue)
{
    if (!queue)
        return;
    pthread_join(queue->thread, NULL);
    queue_free(queue);
}

static void traces_free(struct hapax__traces *traces)
{
    int64_t end_us = hapax__monotonic_us() + CLOSE_US;

    queue_end(traces->spans, end_us);
    queue_end(traces->events, end_us);
    queue_close(traces->spans);
    queue_close(traces->events);
    if (traces->easy)
        curl_easy_cleanup(traces->easy);
    if (traces->events_fd >= 0)
        close(traces->events_fd);
    curl_slist_free_all(traces->headers); /* may hold a secret, as the environment does */
    free(traces->resource);
    free(traces);
}

enum hapax_error hapax__traces_open(struct hapax__traces **out,
                                    const struct hapax__traces_settings *settings,
                                    char text[HAPAX_TEXT_MAX])
{
    struct hapax__traces *traces = calloc(1, sizeof(*traces));
    enum hapax_error error;
    uint64_t seed;

    *out = NULL;
    if (!traces)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    traces->door = settings->door;
    traces->events_fd = -1;
    error = settings->no_spans ? HAPAX_ERR_NONE : set_url(traces, settings->url, text);
    if (error == HAPAX_ERR_NONE)
        error = set_events(traces, settings, text);
    if (error == HAPAX_ERR_NONE && !traces->url[0] && traces->events_fd < 0) {
        traces_free(traces);
        return HAPAX_ERR_NONE;
    }
    if (error == HAPAX_ERR_NONE && traces->url[0])
        error = set_headers(traces, text);
    if (error == HAPAX_ERR_NONE && traces->url[0])
        error = set_resource(traces, text);
    if (error == HAPAX_ERR_NONE && traces->url[0])
        error = set_easy(traces, text);
    if (error == HAPAX_ERR_NONE &&
        (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed) ||
         (traces->url[0] && !queue_open(&traces->spans, spans_main, traces)) ||
         (traces->events_fd >= 0 && !queue_open(&traces->events, events_main, traces))))
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "no thread, or no random bytes");
    if (error != HAPAX_ERR_NONE) {
        traces_free(traces);
        return error;
    }
    atomic_store(&traces->seed, seed);
    atomic_store(&current, traces);
    *out = traces;
    return HAPAX_ERR_NONE;
}

void hapax__traces_close(struct hapax__traces *traces)
{
    if (!traces)
        return;
    atomic_store(&current, NULL);
    traces_free(traces);
}

/* ---- for doors ----------------------------------------------------------------------- */

/* Ids are no secrets: SplitMix64. */
static uint64_t draw(struct hapax__traces *traces)
{
    uint64_t z = atomic_fetch_add_explicit(&traces->seed, UINT64_C(0x9e3779b97f4a7c15),
                                           memory_order_relaxed);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void hapax__traces_begin(struct hapax__traces *traces, struct hapax__traced *out,
                         struct hapax_span traceparent)
{
    uint64_t id[3];
    bool child;

    memset(out, 0, sizeof(*out));
    child = hapax__trace_read(&out->parent, traceparent);
    if (!child)
        memset(&out->parent, 0, sizeof(out->parent));
    out->self = out->parent;
    out->sent = traces && traces->url[0] && (!child || (out->parent.flags & 1));
    if (!out->sent)
        return;
    for (size_t i = 0; i < 3; i++)
        id[i] = draw(traces);
    if (!child)
        memcpy(out->self.trace, id, sizeof(out->self.trace));
    memcpy(out->self.span, id + 2, sizeof(out->self.span));
    out->self.span[0] |= 1; /* not zero */
    out->self.span[7] &= (uint8_t) ~(PARTS - 1u);
    out->self.flags = 1;
}

bool hapax__traces_run(struct hapax__trace *out, const struct hapax__traced *traced)
{
    static const struct hapax__trace none;

    *out = traced->sent ? part_of(traced, RUN) : traced->self;
    return memcmp(out, &none, sizeof(none)) != 0;
}

/* A place at the end of a queue, with its lock. NULL, without it: the queue is full. */
static struct told *begin_told(struct queue *queue, atomic_uint_fast64_t *dropped)
{
    pthread_mutex_lock(&queue->lock);
    if (queue->count < QUEUE_MAX)
        return &queue->told[(queue->head + queue->count) % QUEUE_MAX];
    pthread_mutex_unlock(&queue->lock);
    atomic_fetch_add(dropped, 1);
    return NULL;
}

static void end_told(struct queue *queue)
{
    bool wake;

    queue->count++;
    wake = queue->count == 1 || queue->count == BATCH_MAX;
    pthread_mutex_unlock(&queue->lock);
    if (wake)
        pthread_cond_signal(&queue->wake);
}

static void tell(struct queue *queue, atomic_uint_fast64_t *dropped,
                 const struct hapax__traced *traced, const struct hapax__flow *flow, int64_t now_us)
{
    const struct hapax__flow_request *request = &flow->request;
    const struct hapax_answer *answer = &flow->answer;
    struct told *told = begin_told(queue, dropped);

    if (!told)
        return;
    told->at = *traced;
    told->keyed = request->key == HAPAX__KEY_GIVEN;
    told->id = request->id;
    told->answer = answer->kind;
    told->cls = answer->cls;
    told->recorded = answer->recorded;
    told->status = answer->outcome.status;
    told->attempt = answer->attempt;
    told->fence = answer->fence;
    told->begun_us = flow->begun_us;
    told->wait_us = flow->wait_us;
    told->run_us = flow->run_us;
    told->handled_us = flow->handled_us;
    told->ended_us = now_us;
    told->link[0] = '\0';
    if (answer->kind != HAPAX_ANSWER_FRESH && answer->kind != HAPAX_ANSWER_BYPASS)
        memcpy(told->link, answer->trace, sizeof(told->link));
    told->scope_len = told->what_len = 0;
    if (told->keyed) {
        told->scope_len = hapax_what(told->scope, &request->scope, 1);
        told->what_len = request->what.len;
        memcpy(told->what, request->what.ptr, request->what.len);
    }
    end_told(queue);
}

void hapax__traces_answer(struct hapax__traces *traces, const struct hapax__traced *traced,
                          const struct hapax__flow *flow, int64_t now_us)
{
    if (traced->sent)
        tell(traces->spans, &traces->dropped, traced, flow, now_us);
    if (traces && traces->events && flow->answer.cls != 0)
        tell(traces->events, &traces->events_dropped, traced, flow, now_us);
}

void hapax__traces_published(struct hapax__traces *traces, struct hapax_span traceparent,
                             struct hapax_span destination, int64_t begun_us, int64_t now_us,
                             bool published)
{
    struct hapax__traced traced;
    struct told *told;

    hapax__traces_begin(traces, &traced, traceparent);
    told = traced.sent ? begin_told(traces->spans, &traces->dropped) : NULL;
    if (!told)
        return;
    *told = (struct told){
        .at = traced, .published = published, .begun_us = begun_us, .ended_us = now_us};
    told->scope_len = hapax_what(told->scope, &destination, 1);
    end_told(traces->spans);
}

struct hapax__traces_counts hapax__traces_counts(const struct hapax__traces *traces)
{
    return (struct hapax__traces_counts){.sent = atomic_load(&traces->sent),
                                         .dropped = atomic_load(&traces->dropped),
                                         .events_dropped = atomic_load(&traces->events_dropped)};
}

void hapax__traces_metrics(FILE *out)
{
    const struct hapax__traces *traces = atomic_load(&current);
    struct hapax__traces_counts counts;

    if (!traces)
        return;
    counts = hapax__traces_counts(traces);
    hapax__page_numbers(out, "counter",
                        (const struct hapax__page_number[]){
                            {"hapax_traces_sent_total", (int64_t)counts.sent,
                             "Operations whose spans a collector took."},
                            {"hapax_traces_dropped_total", (int64_t)counts.dropped,
                             "Operations whose spans nobody took."},
                            {"hapax_events_dropped_total", (int64_t)counts.events_dropped,
                             "Events that could not be written."},
                        },
                        3);
}
