/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue is a ring of told operations, each with its names copied. Its thread writes what is at
 * the ring's head without the lock, since doors only add behind it, and then lets the places go.
 * Spans and events have a queue and a thread each: a collector that is down loses no event, and a
 * pipe that nobody reads loses no span.
 *
 * The ids of an operation's spans are one random id with other last bits. So the door knows the id
 * of the handler's span before there is a span.
 *
 * Rejected: spans sent by the door's own thread, which would wait for a collector that stands
 * still.
 */
#include "traces.h"

#include "aws/fetch.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/thread.h"
#include "base/time.h"
#include "base/uri.h"
#include "event.h"
#include "otlp.h"
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
#define WRITE_MAX    4096u /* PIPE_BUF: so much goes into a file whole */

/* A scope as hapax_what() cleans it: mostly it is the one before. */
struct cleaned {
    size_t scope_len, len;
    uint8_t scope[HAPAX_SCOPE_MAX], text[HAPAX_WHAT_MAX];
};

struct queue {
    pthread_t thread;
    pthread_mutex_t lock; /* of the fields below */
    pthread_cond_t wake;
    bool ending;
    int64_t end_us;
    size_t head, count; /* of `told` */
    struct cleaned cleaned; /* the thread's */
    struct hapax__told told[QUEUE_MAX];
};

struct hapax__traces {
    enum hapax__traced_door door;
    struct queue *spans, *events; /* NULL: none */
    char url[URL_MAX]; /* "": no spans */
    struct curl_slist *headers;
    size_t service_len;
    uint8_t service[HAPAX_WHAT_MAX];
    CURL *easy;
    int events_fd; /* -1: none */
    char *events_path; /* NULL: the descriptor is all there is */
    bool stalled; /* nobody reads the events; the thread's, as the next one */
    struct hapax__second second;
    atomic_uint_fast64_t seed;
    atomic_uint_fast64_t sent, dropped, events_dropped;
};

/* Those of this process, for its /metrics: a process is one door. */
static _Atomic(struct hapax__traces *) current;

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

static struct hapax_span clean(struct cleaned *last, const struct hapax__told *told)
{
    struct hapax_span scope = {told->scope, told->scope_len};

    if (scope.len != last->scope_len || memcmp(scope.ptr, last->scope, scope.len) != 0) {
        memcpy(last->scope, scope.ptr, scope.len);
        last->scope_len = scope.len;
        last->len = hapax_what(last->text, &scope, 1);
    }
    return (struct hapax_span){last->text, last->len};
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

static int open_file(const char *path, int more)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | more, 0640);
}

/* A file that was moved away, as logrotate does, is left for the one that its name means now, or
 * for a new one. Where that cannot be opened, the one that is open goes on. Rejected: a signal.
 * Each door would need one, which its handlers may not inherit, and nginx's workers reopen their
 * files at a moment that a thread of theirs does not see. */
static void follow(struct hapax__traces *traces)
{
    struct stat named, is;
    int fd;

    if (!traces->events_path || fstat(traces->events_fd, &is) != 0 || !S_ISREG(is.st_mode) ||
        (stat(traces->events_path, &named) == 0 && named.st_dev == is.st_dev &&
         named.st_ino == is.st_ino))
        return;
    fd = open_file(traces->events_path, O_NONBLOCK);
    if (fd < 0)
        return;
    close(traces->events_fd);
    traces->events_fd = fd;
}

static void write_events(struct hapax__traces *traces, size_t head, size_t count)
{
    int64_t ahead_us = hapax__wall_us() - hapax__boot_us();
    char lines[WRITE_MAX];
    size_t n = 0, len = 0;

    follow(traces);

    for (size_t i = 0; i < count; i++) {
        const struct hapax__told *told = &traces->events->told[(head + i) % QUEUE_MAX];
        char *end = hapax__event(lines + len, told, clean(&traces->events->cleaned, told),
                                 traces->door, ahead_us, &traces->second);

        len = (size_t)(end - lines);
        assert(len <= sizeof(lines));
        n++;
        if (i + 1 < count && len <= sizeof(lines) - HAPAX__EVENT_MAX)
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
static bool post(struct hapax__traces *traces, const uint8_t *body, size_t len, bool *again)
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

static bool post_until(struct hapax__traces *traces, const uint8_t *body, size_t len)
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

static void send_spans(struct hapax__traces *traces, uint8_t *body, size_t head, size_t count)
{
    int64_t ahead_us = hapax__wall_us() - hapax__boot_us();
    uint8_t *spans = body + HAPAX__OTLP_HEAD_MAX, *at = spans;

    for (size_t i = 0; i < count; i++) {
        const struct hapax__told *told = &traces->spans->told[(head + i) % QUEUE_MAX];
        uint8_t *from = at;

        at = hapax__otlp_spans(at, told, clean(&traces->spans->cleaned, told), traces->door,
                               ahead_us);
        assert(at - from <= (ptrdiff_t)HAPAX__OTLP_SPANS_MAX);
    }
    body = hapax__otlp_head(spans, (size_t)(at - spans),
                            (struct hapax_span){traces->service, traces->service_len});
    atomic_fetch_add(
        post_until(traces, body, (size_t)(at - body)) ? &traces->sent : &traces->dropped, count);
}

static void *spans_main(void *arg)
{
    struct hapax__traces *traces = arg;
    uint8_t *body = malloc(HAPAX__OTLP_HEAD_MAX + BATCH_MAX * HAPAX__OTLP_SPANS_MAX);
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
    char shown[HAPAX_TEXT_MAX];
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
        strlen(url) + strlen(path) >= URL_MAX) {
        hapax__uri_shown(shown, url);
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "traces go to http://HOST:PORT or https://…, not to \"%.100s\"", shown);
    }
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
    enum hapax_error error = add_header(traces, "Content-Type: application/x-protobuf", text);

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

static enum hapax_error set_easy(struct hapax__traces *traces, char text[HAPAX_TEXT_MAX])
{
    const char *service = variable("OTEL_SERVICE_NAME");
    struct hapax_span given = hapax_str(service ? service : "hapax");
    CURL *easy;

    traces->service_len = hapax_what(traces->service, &given, 1);
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

int hapax__traces_output(void)
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
    bool named = file && strcmp(file, "-") != 0;

    if (!file)
        return HAPAX_ERR_NONE;
    if (named && !(traces->events_path = strdup(file)))
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    if (settings->events_fd)
        traces->events_fd = fcntl(*settings->events_fd, F_DUPFD_CLOEXEC, 3);
    else
        traces->events_fd = named ? open_file(file, 0) : hapax__traces_output();
    if (traces->events_fd >= 0 && named)
        (void)fcntl(traces->events_fd, F_SETFL, O_APPEND | O_NONBLOCK);
    if (traces->events_fd >= 0)
        return HAPAX_ERR_NONE;
    return hapax__fail(text, HAPAX_ERR_INVALID, "cannot write events to \"%.100s\": %s", file,
                       strerror(errno));
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
    free(traces->events_path);
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
    out->self.span[7] &= (uint8_t) ~(HAPAX__PARTS - 1u);
    out->self.flags = 1;
}

bool hapax__traces_run(struct hapax__trace *out, const struct hapax__traced *traced)
{
    static const struct hapax__trace none;

    *out = traced->sent ? hapax__part_of(traced, HAPAX__PART_RUN) : traced->self;
    return memcmp(out, &none, sizeof(none)) != 0;
}

/* A place at the end of a queue, with its lock. NULL, without it: the queue is full. */
static struct hapax__told *begin_told(struct queue *queue, atomic_uint_fast64_t *dropped)
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
    struct hapax__told *told = begin_told(queue, dropped);

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
        told->scope_len = request->scope.len;
        memcpy(told->scope, request->scope.ptr, request->scope.len);
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

static void tell_publication(struct queue *queue, atomic_uint_fast64_t *dropped,
                             const struct hapax__traced *traced,
                             const struct hapax__publication_told *of, int64_t now_us)
{
    struct hapax__told *told = begin_told(queue, dropped);
    char seq[24];
    struct hapax_span what[] = {of->topic, {NULL, 0}};

    if (!told)
        return;
    (void)snprintf(seq, sizeof(seq), "%" PRId64, of->seq);
    what[1] = hapax_str(seq);
    *told = (struct hapax__told){.at = *traced,
                                 .answer = of->published ? HAPAX_ANSWER_FRESH : HAPAX_ANSWER_FAILED,
                                 .cls = of->published ? HAPAX_CLASS_FINAL : HAPAX_CLASS_FAILED,
                                 .begun_us = of->begun_us,
                                 .run_us = of->begun_us,
                                 .handled_us = now_us,
                                 .ended_us = now_us};
    told->scope_len = hapax_what(told->scope, &of->topic, 1);
    told->what_len = hapax_what(told->what, what, 2);
    end_told(queue);
}

void hapax__traces_published(struct hapax__traces *traces, const struct hapax__publication_told *of,
                             int64_t now_us)
{
    struct hapax__traced traced;

    hapax__traces_begin(traces, &traced, of->traceparent);
    if (traced.sent)
        tell_publication(traces->spans, &traces->dropped, &traced, of, now_us);
    if (traces->events)
        tell_publication(traces->events, &traces->events_dropped, &traced, of, now_us);
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
