/* SPDX-License-Identifier: Apache-2.0
 *
 * A handler over HTTP: each message is one POST, and the server's answer is the operation's
 * outcome.
 *
 * The invariants: a message is sent at most once per attempt. Only a message that surely was not
 * sent is NOT_RUN. Half an answer, or none, is never success. An answer takes no more memory than
 * the limits say.
 *
 * libcurl repeats a request by itself if a kept connection breaks before the first byte of the
 * answer. The handler may have run by then, so on_request() forbids that. It is rare, since
 * connections that were idle for longer than IDLE_MAX_S are not used again.
 *
 * No redirect is followed: it would take a message elsewhere than the settings say. No proxy of the
 * environment is asked, and no .netrc is read.
 *
 * Rejected: libcurl's multi interface. Each call has a thread anyway, and waits in it.
 */
#include "event.h"
#include "post.h"

#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"
#include "core/class.h"
#include "door/attempt.h"

#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IDLE_MAX_S     1L
#define CONNECT_MAX_MS 10000
#define URL_MAX        8192u
#define LATER_MAX_S    (24 * 3600) /* of Retry-After; pauses have a lower limit */
/* Bytes of an answer that are read, kept or not. */
#define DRAIN_MAX (4 * (size_t)HAPAX_BODY_MAX)

struct hapax__post {
    char *to;
    char *reconcile; /* NULL: none */
    char *user; /* NULL: none */
    char *password;
    char *ca; /* NULL: the system's */
    char *broker;
    char **pass_headers; /* ends with NULL */
    long timeout_ms;
    size_t body_max;
    uint32_t idle_max;
    void (*log)(void *arg, const char *line);
    void *log_arg;
    atomic_int trouble; /* the last call's CURLcode; CURLE_OK: it was answered */
    pthread_mutex_t mutex;
    CURL **idle; /* handles with their connections */
    uint32_t idle_count;
};

/* One request and its answer. */
struct exchange {
    const struct hapax__post *post;
    const struct hapax_attempt *attempt;
    struct hapax_delivery *delivery;
    CURL *easy;
    struct curl_slist *lines;
    unsigned requests; /* begun on a connection; a second is forbidden */
    bool head; /* the answer's head is whole */
    bool over; /* the body passed body_max, and is not kept */
    bool nomem; /* there was no memory to keep the body in */
    bool cut; /* reading was given up at DRAIN_MAX */
    size_t received;
    size_t len;
    size_t size;
    uint8_t *body;
};

/* ---- signals ----------------------------------------------------------------------------- */

/* An OpenSSL write to a peer that is gone raises SIGPIPE. libcurl would suppress the signal for the
 * whole process. So this thread blocks it, and takes it back if it came. A hand takes no signals:
 * there the signal stays, and each system call for it would be one too many. */
static void quiet_begin(sigset_t *before)
{
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, before);
}

static void quiet_end(const sigset_t *before)
{
    const struct timespec now = {0, 0};
    sigset_t pipe;

    if (sigismember(before, SIGPIPE) == 1)
        return;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    while (sigtimedwait(&pipe, NULL, &now) == -1 && errno == EINTR)
        ;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static void close_handle(CURL *easy)
{
    sigset_t before;

    if (!easy)
        return;
    quiet_begin(&before);
    curl_easy_cleanup(easy);
    quiet_end(&before);
}

/* ---- open and close ---------------------------------------------------------------------- */

static void init_once(void)
{
    CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);

    assert(code == CURLE_OK);
}

static bool is_url(const char *url)
{
    CURLU *parts = strlen(url) <= URL_MAX ? curl_url() : NULL;
    char *scheme = NULL, *host = NULL;
    bool is = parts &&
              curl_url_set(parts, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK &&
              curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK && host[0] &&
              (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);

    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(parts);
    return is;
}

/* A text never names the URL, which may hold a password. */
static enum hapax_error check(const struct hapax__post_options *options, char text[HAPAX_TEXT_MAX])
{
    if (!options->to || !is_url(options->to))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "to is no http:// or https:// URL of at most %u bytes", URL_MAX);
    if (options->reconcile && !is_url(options->reconcile))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "reconcile is no http:// or https:// URL of at most %u bytes", URL_MAX);
    if (options->ca && access(options->ca, R_OK) != 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "ca \"%.128s\" cannot be read", options->ca);
    for (size_t i = 0; i < options->pass_header_count; i++) {
        if (!hapax__event_may_pass(hapax_str(options->pass_headers[i])))
            return hapax__fail(text, HAPAX_ERR_INVALID,
                               "pass_header \"%.128s\" is no header that a message may set",
                               options->pass_headers[i]);
    }
    if (options->timeout_ms < 1)
        return hapax__fail(text, HAPAX_ERR_INVALID, "timeout of %lld ms is not at least 1",
                           (long long)options->timeout_ms);
    if (options->body_max > HAPAX_BODY_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "body_max of %zu bytes is over %u",
                           options->body_max, HAPAX_BODY_MAX);
    if (options->concurrency < 1 || options->concurrency > HAPAX_CONCURRENCY_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "concurrency of %u is not 1 to %u",
                           options->concurrency, HAPAX_CONCURRENCY_MAX);
    return HAPAX_ERR_NONE;
}

static bool copy(char **to, const char *from)
{
    *to = from ? strdup(from) : NULL;
    return *to || !from;
}

static bool copy_names(struct hapax__post *post, const struct hapax__post_options *options)
{
    post->pass_headers = calloc(options->pass_header_count + 1, sizeof(char *));
    for (size_t i = 0; post->pass_headers && i < options->pass_header_count; i++) {
        if (!copy(&post->pass_headers[i], options->pass_headers[i]))
            return false;
    }
    return post->pass_headers;
}

enum hapax_error hapax__post_open(struct hapax__post **out,
                                  const struct hapax__post_options *options,
                                  char text[HAPAX_TEXT_MAX])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    enum hapax_error error = check(options, text);
    struct hapax__post *post;

    *out = NULL;
    if (error != HAPAX_ERR_NONE)
        return error;
    pthread_once(&once, init_once);
    post = calloc(1, sizeof(*post));
    if (!post)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot call the handler: out of memory");
    pthread_mutex_init(&post->mutex, NULL);
    post->timeout_ms = options->timeout_ms > LONG_MAX ? LONG_MAX : (long)options->timeout_ms;
    post->body_max = options->body_max;
    post->log = options->log;
    post->log_arg = options->log_arg;
    atomic_init(&post->trouble, CURLE_OK);
    post->idle_max = options->concurrency;
    post->idle = calloc(options->concurrency, sizeof(CURL *));
    if (!post->idle || !copy_names(post, options) || !copy(&post->to, options->to) ||
        !copy(&post->reconcile, options->reconcile) || !copy(&post->user, options->user) ||
        !copy(&post->password, options->password) || !copy(&post->ca, options->ca) ||
        !copy(&post->broker, options->broker ? options->broker : "messages")) {
        hapax__post_close(post);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot call the handler: out of memory");
    }
    *out = post;
    return HAPAX_ERR_NONE;
}

static void forget(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    free(secret);
}

void hapax__post_close(struct hapax__post *post)
{
    if (!post)
        return;
    assert(post->idle || post->idle_count == 0);
    for (uint32_t i = 0; i < post->idle_count; i++)
        close_handle(post->idle[i]);
    pthread_mutex_destroy(&post->mutex);
    free(post->idle);
    forget(post->to);
    forget(post->reconcile);
    forget(post->user);
    forget(post->password);
    free(post->ca);
    free(post->broker);
    for (char **name = post->pass_headers; name && *name; name++)
        free(*name);
    free(post->pass_headers);
    free(post);
}

/* ---- handles ----------------------------------------------------------------------------- */

static CURL *take_handle(struct hapax__post *post)
{
    CURL *easy = NULL;

    pthread_mutex_lock(&post->mutex);
    if (post->idle_count > 0)
        easy = post->idle[--post->idle_count];
    pthread_mutex_unlock(&post->mutex);
    return easy ? easy : curl_easy_init();
}

/* Keeps the handle's connections, and drops its options. */
static void give_handle(struct hapax__post *post, CURL *easy)
{
    curl_easy_reset(easy);
    pthread_mutex_lock(&post->mutex);
    if (post->idle_count < post->idle_max) {
        post->idle[post->idle_count++] = easy;
        easy = NULL;
    }
    pthread_mutex_unlock(&post->mutex);
    close_handle(easy);
}

/* ---- libcurl's questions ------------------------------------------------------------------- */

/* Called before each request on a connection, also before one that libcurl repeats. */
static int on_request(void *arg, char *to_ip, char *from_ip, int to_port, int from_port)
{
    struct exchange *x = arg;

    (void)to_ip;
    (void)from_ip;
    (void)to_port;
    (void)from_port;
    return ++x->requests == 1 ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}

static int on_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                       curl_off_t up)
{
    struct exchange *x = arg;

    (void)down_total;
    (void)down;
    (void)up_total;
    (void)up;
    return hapax_attempt_lost(x->attempt) || hapax_delivery_hurry(x->delivery);
}

static void drop_body(struct exchange *x)
{
    free(x->body);
    x->body = NULL;
    x->len = x->size = 0;
}

static bool make_room(struct exchange *x, size_t more)
{
    size_t size = x->size > 0 ? x->size : 4096;
    uint8_t *body;

    while (size < x->len + more)
        size *= 2;
    if (size == x->size)
        return true;
    body = realloc(x->body, size);
    if (!body)
        return false;
    x->body = body;
    x->size = size;
    return true;
}

/* libcurl takes a head that breaks off for a whole one. */
static size_t on_header(char *bytes, size_t one, size_t n, void *arg)
{
    struct exchange *x = arg;
    size_t len = one * n;

    if (len >= 5 && memcmp(bytes, "HTTP/", 5) == 0)
        x->head = false;
    else if ((len == 2 && bytes[0] == '\r') || (len == 1 && bytes[0] == '\n'))
        x->head = true;
    return len;
}

/* An answer that is not kept is still read up to DRAIN_MAX: a handler that cannot send its answer
 * may undo its work. */
static size_t on_body(char *bytes, size_t one, size_t n, void *arg)
{
    struct exchange *x = arg;
    size_t len = one * n;

    x->received += len;
    if (x->received > DRAIN_MAX) {
        x->cut = true;
        return CURL_WRITEFUNC_ERROR;
    }
    if (x->over || x->nomem)
        return len;
    if (len > x->post->body_max - x->len) {
        x->over = true;
        drop_body(x);
    } else if (!make_room(x, len)) {
        x->nomem = true;
        drop_body(x);
    } else if (len > 0) {
        memcpy(x->body + x->len, bytes, len);
        x->len += len;
    }
    return len;
}

/* ---- the exchange ------------------------------------------------------------------------ */

static void set_options(const struct exchange *x, const char *url)
{
    CURL *easy = x->easy;
    long connect_ms = x->post->timeout_ms < CONNECT_MAX_MS ? x->post->timeout_ms : CONNECT_MAX_MS;

    curl_easy_setopt(easy, CURLOPT_URL, url);
    if (x->post->user) { /* a login in the URL beats this one */
        curl_easy_setopt(easy, CURLOPT_USERNAME, x->post->user);
        curl_easy_setopt(easy, CURLOPT_PASSWORD, x->post->password);
    }
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "hapax/" HAPAX_VERSION);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, x->lines);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, x->post->timeout_ms);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, connect_ms);
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, IDLE_MAX_S);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    if (x->post->ca)
        curl_easy_setopt(easy, CURLOPT_CAINFO, x->post->ca);
    curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_request);
    curl_easy_setopt(easy, CURLOPT_PREREQDATA, x);
    curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(easy, CURLOPT_XFERINFODATA, x);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, x);
}

static void set_body(const struct exchange *x, struct hapax_span body)
{
    curl_easy_setopt(x->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(x->easy, CURLOPT_POSTFIELDS, body.len > 0 ? (const char *)body.ptr : "");
    curl_easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.len);
}

/* Logs when calls begin to go unanswered, and when they are answered again. */
static void tell(struct hapax__post *post, CURLcode code)
{
    char line[HAPAX_TEXT_MAX];

    if (atomic_exchange(&post->trouble, (int)code) == (int)code || !post->log)
        return;
    if (code == CURLE_OK)
        snprintf(line, sizeof(line), "handler answers again");
    else
        snprintf(line, sizeof(line), "handler does not answer: %s", curl_easy_strerror(code));
    post->log(post->log_arg, line);
}

/* Sends the request and waits. Returns the status of an answer that is whole, or was cut at
 * DRAIN_MAX. 0: there is no answer, and the request may have been sent. -1: it surely was not. */
static int exchange(struct exchange *x, struct hapax__post *post, const char *url, bool with_body)
{
    const struct hapax_message *message = hapax_delivery_message(x->delivery);
    sigset_t before;
    long status = 0;
    CURLcode code;

    x->post = post;
    x->easy = take_handle(post);
    if (!x->easy || !hapax__event_lines(&x->lines, message, x->attempt, post->broker,
                                        post->pass_headers, with_body))
        return -1;
    set_options(x, url);
    if (with_body)
        set_body(x, message->body);
    quiet_begin(&before);
    code = curl_easy_perform(x->easy);
    quiet_end(&before);
    if (x->cut && code == CURLE_WRITE_ERROR)
        code = CURLE_OK;
    tell(post, code);
    if (x->requests == 0)
        return -1;
    if (code != CURLE_OK || !x->head)
        return 0;
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    return status >= 200 && status <= 599 ? (int)status : 0;
}

static void release(struct exchange *x, struct hapax__post *post)
{
    if (x->easy)
        give_handle(post, x->easy);
    curl_slist_free_all(x->lines);
    free(x->body);
}

/* ---- the outcome --------------------------------------------------------------------------- */

/* Headers of one connection, one client or one moment are not kept, as at the HTTP door. */
static bool is_stored(struct hapax_span name)
{
    static const char *const never[] = {
        "authorization",
        "connection",
        "content-length",
        "date",
        "idempotency-protected",
        "idempotency-recorded",
        "idempotency-replayed",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "set-cookie",
        "set-cookie2",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
    };

    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++) {
        if (hapax__name_is(name, never[i]))
            return false;
    }
    return true;
}

static bool is_line(const struct curl_header *header)
{
    struct hapax_span name = hapax_str(header->name), value = hapax_str(header->value);

    return hapax__is_field_value(value) && hapax__line_is_whole(name, value);
}

static size_t put(char *out, size_t at, const char *text)
{
    size_t len = strlen(text);

    if (out)
        memcpy(out + at, text, len);
    return at + len;
}

/* Writes the lines to out, if that is not NULL. Returns their length. */
static size_t write_headers(char *out, CURL *easy)
{
    struct curl_header *header = NULL;
    size_t at = 0;

    while ((header = curl_easy_nextheader(easy, CURLH_HEADER, -1, header))) {
        if (!is_stored(hapax_str(header->name)) || !is_line(header))
            continue;
        at = put(out, put(out, at, header->name), ": ");
        at = put(out, put(out, at, header->value), "\r\n");
    }
    return at;
}

/* Sets the outcome. Over the limits, or without memory, it has no headers and no body, and repeats
 * are answered GONE. */
static void set_outcome(struct hapax_attempt *attempt, const struct exchange *x, int status)
{
    const struct hapax_span none = {NULL, 0};
    size_t len = write_headers(NULL, x->easy);
    char *lines = len <= HAPAX_HEADERS_MAX ? malloc(len + 1) : NULL;
    enum hapax_error error = HAPAX_ERR_NOMEM;
    bool kept = false;

    if (lines && !x->over && !x->nomem && !x->cut) {
        write_headers(lines, x->easy);
        error =
            hapax_attempt_outcome(attempt, status, (struct hapax_span){(const uint8_t *)lines, len},
                                  (struct hapax_span){x->body, x->len});
        kept = error == HAPAX_ERR_NONE;
    }
    if (!kept)
        error = hapax_attempt_outcome(attempt, status, none, none);
    assert(error == HAPAX_ERR_NONE); /* an empty one takes no memory */
    attempt->outcome.body_kept = kept;
    free(lines);
}

/* Gives the delivery the time that Retry-After names, in seconds or as a date. */
static void heed_later(const struct exchange *x)
{
    curl_off_t after_s = 0;

    curl_easy_getinfo(x->easy, CURLINFO_RETRY_AFTER, &after_s);
    if (after_s > 0)
        hapax_delivery_retry_after(x->delivery, hapax__least(after_s, LATER_MAX_S) * 1000);
}

static struct hapax_span find_header(void *easy, const char *name)
{
    struct curl_header *header;

    if (curl_easy_header(easy, name, 0, CURLH_HEADER, -1, &header) != CURLHE_OK)
        return (struct hapax_span){NULL, 0};
    return hapax_str(header->value);
}

/* Whether only the end of the connection ended the response. Then half a response looks whole. In
 * all other cases libcurl reports an end that comes too early; HTTP/2 marks the end of a response.
 */
static bool ends_by_close(const struct exchange *x)
{
    long version = 0;

    curl_easy_getinfo(x->easy, CURLINFO_HTTP_VERSION, &version);
    return version <= CURL_HTTP_VERSION_1_1 && !find_header(x->easy, "content-length").ptr &&
           !find_header(x->easy, "transfer-encoding").ptr;
}

/* Of the final answers only 2xx is a success. */
static enum hapax_class class_of(const struct exchange *x, int status)
{
    enum hapax_class cls =
        hapax__class_of(x->attempt->policy, status, ends_by_close(x), find_header, x->easy);
    char why[HAPAX_TEXT_MAX];

    heed_later(x);
    if (cls != HAPAX_CLASS_FINAL || status / 100 == 2)
        return cls;
    snprintf(why, sizeof(why), "handler answered %d", status);
    hapax_delivery_refuse(x->delivery, why);
    return HAPAX_CLASS_FAILED;
}

enum hapax_class hapax__post_handler(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                                     void *arg)
{
    struct hapax__post *post = arg;
    struct exchange x = {.attempt = attempt, .delivery = delivery};
    int status = exchange(&x, post, post->to, true);
    enum hapax_class cls = status < 0 ? HAPAX_CLASS_NOT_RUN : HAPAX_CLASS_UNKNOWN;

    if (status > 0) {
        cls = class_of(&x, status);
        set_outcome(attempt, &x, status);
    }
    release(&x, post);
    return cls;
}

/* As the HTTP door asks: GET, with the headers of the operation. */
enum hapax_class hapax__post_reconcile(struct hapax_attempt *attempt,
                                       struct hapax_delivery *delivery, void *arg)
{
    struct hapax__post *post = arg;
    struct exchange x = {.attempt = attempt, .delivery = delivery};
    enum hapax_class cls = HAPAX_CLASS_UNKNOWN;
    int status;

    assert(post->reconcile);
    status = exchange(&x, post, post->reconcile, false);
    if (status == 404) {
        cls = HAPAX_CLASS_NOT_RUN;
    } else if (status / 100 == 2 && (status == 204 || !ends_by_close(&x))) {
        cls = HAPAX_CLASS_FINAL; /* 204 has no body that could be cut off */
        set_outcome(attempt, &x, status);
    }
    release(&x, post);
    return cls;
}
