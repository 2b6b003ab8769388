/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of AWS side by side: a queue, tries on a multi handle of libcurl, and how calls end.
 *
 * A call waits (for its pause, or for a connection), has a try under way, or has ended and waits to
 * be reaped. The invariant: only a call that was surely not applied ends as UNAVAILABLE. Each try
 * that was sent and not answered sets `unsure`, and nothing clears it. No try runs past the
 * deadline: libcurl's timeout of a try ends with it.
 *
 * Pauses have full jitter: anything from nothing to a bound that doubles. Otherwise calls that are
 * throttled together would come back together.
 *
 * Rejected: a thread in which libcurl waits. The loops that use this have their own epoll.
 * libcurl's sockets are in an epoll of ours, whose descriptor the loops watch.
 */
#include "aws.h"

#include "answer.h"
#include "credentials.h"
#include "endpoint.h"
#include "fetch.h"
#include "try.h"

#include "base/clock.h"
#include "base/fail.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 1024u
#define PAUSE_FIRST_US  INT64_C(50000) /* the bound of the first pause; it doubles */
#define PAUSE_MAX_US    INT64_C(5000000)
#define LEFT_MIN_US     INT64_C(50000) /* what must be left of a call's time for one more try */
#define LATE_US         (20 * INT64_C(1000)) /* after its timeout a try is ended without libcurl */
#define SKEW_S          240 /* a clock that is off by more is told of: services bear with 300 */
#define EVENTS          32

struct queue {
    struct hapax__aws_call *first;
    struct hapax__aws_call **last;
};

struct hapax__aws {
    struct hapax__aws_service place;
    struct hapax__aws_endpoint endpoint;
    struct hapax__aws_source *source;
    char service[32];
    char target[64];
    char region[HAPAX__AWS_REGION_MAX + 1];
    char *ca;
    uint32_t connections_max;
    int64_t try_ms;
    CURLM *multi;
    int epoll;
    int64_t timer_us; /* when libcurl wants to be called; INT64_MAX: not */
    struct queue waiting;
    struct queue ended;
    struct hapax__aws_try *tries; /* all, by next */
    struct hapax__aws_try *idle; /* by next_idle */
    uint32_t active;
};

static void queue_init(struct queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void queue_add(struct queue *queue, struct hapax__aws_call *call)
{
    call->next = NULL;
    *queue->last = call;
    queue->last = &call->next;
}

/* at: where a pointer of the queue to the call is. */
static void queue_take(struct queue *queue, struct hapax__aws_call **at)
{
    struct hapax__aws_call *call = *at;

    *at = call->next;
    if (queue->last == &call->next)
        queue->last = at;
    call->next = NULL;
}

static bool queue_drop(struct queue *queue, struct hapax__aws_call *call)
{
    for (struct hapax__aws_call **at = &queue->first; *at; at = &(*at)->next) {
        if (*at == call) {
            queue_take(queue, at);
            return true;
        }
    }
    return false;
}

/* ---- libcurl's questions ------------------------------------------------------------------- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct hapax__aws *aws = arg;
    struct epoll_event event = {.data.fd = fd};

    (void)easy;
    (void)known;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(aws->epoll, EPOLL_CTL_DEL, fd, &event); /* closed ones are gone already */
        return 0;
    }
    event.events = (what & CURL_POLL_IN ? (uint32_t)EPOLLIN : 0) |
                   (what & CURL_POLL_OUT ? (uint32_t)EPOLLOUT : 0);
    if (epoll_ctl(aws->epoll, EPOLL_CTL_ADD, fd, &event) != 0 && errno == EEXIST)
        epoll_ctl(aws->epoll, EPOLL_CTL_MOD, fd, &event);
    /* Where neither went, the try ends by its timeout. libcurl is not told of it: it would never
     * call again for any socket. */
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg)
{
    struct hapax__aws *aws = arg;

    (void)multi;
    aws->timer_us = ms < 0 ? INT64_MAX : hapax__monotonic_us() + (int64_t)ms * 1000;
    return 0;
}

/* ---- open and close ------------------------------------------------------------------------ */

static enum hapax_error check(const struct hapax__aws_options *options, char text[HAPAX_TEXT_MAX])
{
    assert(options->service && options->target && strlen(options->service) < 32 &&
           strlen(options->target) < 64);
    if (options->connections_max < 1 || options->connections_max > CONNECTIONS_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "connections of %u is not 1 to %u",
                           options->connections_max, CONNECTIONS_MAX);
    if (options->connect_ms < 1 || options->try_ms < 1)
        return hapax__fail(
            text, HAPAX_ERR_INVALID, "a timeout of %lld ms is not at least 1",
            (long long)(options->connect_ms < 1 ? options->connect_ms : options->try_ms));
    return HAPAX_ERR_NONE;
}

static enum hapax_error find_ca(struct hapax__aws *aws, char text[HAPAX_TEXT_MAX])
{
    const char *ca = getenv("AWS_CA_BUNDLE");

    if (!ca || !ca[0])
        return HAPAX_ERR_NONE;
    if (access(ca, R_OK) != 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "AWS_CA_BUNDLE \"%.128s\" cannot be read", ca);
    aws->ca = strdup(ca);
    return aws->ca ? HAPAX_ERR_NONE
                   : hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open AWS: out of memory");
}

static bool set_multi(struct hapax__aws *aws)
{
    aws->epoll = epoll_create1(EPOLL_CLOEXEC);
    aws->multi = curl_multi_init();
    if (aws->epoll < 0 || !aws->multi)
        return false;
    curl_multi_setopt(aws->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(aws->multi, CURLMOPT_SOCKETDATA, aws);
    curl_multi_setopt(aws->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(aws->multi, CURLMOPT_TIMERDATA, aws);
    curl_multi_setopt(aws->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    curl_multi_setopt(aws->multi, CURLMOPT_MAXCONNECTS, (long)aws->connections_max);
    return true;
}

static long as_long(int64_t ms)
{
    return ms > INT_MAX ? INT_MAX : (long)ms; /* more is an error to some libcurls */
}

static enum hapax_error set_up(struct hapax__aws *aws, const struct hapax__aws_options *options,
                               char text[HAPAX_TEXT_MAX])
{
    struct hapax__aws_source_options source = {.profile = options->profile,
                                               .region = options->region};
    enum hapax_error error = hapax__aws_source_open(&aws->source, &source, text);

    if (error == HAPAX_ERR_NONE)
        snprintf(aws->region, sizeof(aws->region), "%s", hapax__aws_source_region(aws->source));
    if (error == HAPAX_ERR_NONE)
        error = options->endpoint
                    ? hapax__aws_endpoint_read(&aws->endpoint, options->endpoint, "endpoint", text)
                    : hapax__aws_endpoint_find(&aws->endpoint, aws->service, aws->region, text);
    if (error == HAPAX_ERR_NONE)
        error = find_ca(aws, text);
    if (error == HAPAX_ERR_NONE && !set_multi(aws))
        error = hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open AWS: out of memory or descriptors");
    aws->place = (struct hapax__aws_service){.endpoint = &aws->endpoint,
                                             .service = aws->service,
                                             .target = aws->target,
                                             .region = aws->region,
                                             .ca = aws->ca,
                                             .connect_ms = as_long(options->connect_ms)};
    return error;
}

enum hapax_error hapax__aws_open(struct hapax__aws **out, const struct hapax__aws_options *options,
                                 char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = check(options, text);
    struct hapax__aws *aws;

    *out = NULL;
    if (error != HAPAX_ERR_NONE)
        return error;
    hapax__aws_curl_init();
    aws = calloc(1, sizeof(*aws));
    if (!aws)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open AWS: out of memory");
    aws->epoll = -1;
    aws->timer_us = INT64_MAX;
    aws->connections_max = options->connections_max;
    aws->try_ms = options->try_ms;
    queue_init(&aws->waiting);
    queue_init(&aws->ended);
    snprintf(aws->service, sizeof(aws->service), "%s", options->service);
    snprintf(aws->target, sizeof(aws->target), "%s", options->target);
    error = set_up(aws, options, text);
    if (error != HAPAX_ERR_NONE) {
        hapax__aws_close(aws);
        return error;
    }
    *out = aws;
    return HAPAX_ERR_NONE;
}

void hapax__aws_close(struct hapax__aws *aws)
{
    struct hapax__aws_quiet quiet;

    if (!aws)
        return;
    hapax__aws_quiet_begin(&quiet);
    for (struct hapax__aws_try *attempt = aws->tries, *next; attempt; attempt = next) {
        next = attempt->next;
        if (attempt->call) {
            attempt->call->attempt = NULL;
            curl_multi_remove_handle(aws->multi, attempt->easy);
        }
        hapax__aws_try_free(attempt);
    }
    curl_multi_cleanup(aws->multi);
    hapax__aws_quiet_end(&quiet);
    if (aws->epoll >= 0)
        close(aws->epoll);
    hapax__aws_source_close(aws->source);
    free(aws->ca);
    free(aws);
}

const char *hapax__aws_host(const struct hapax__aws *aws)
{
    return aws->endpoint.host;
}

const char *hapax__aws_region(const struct hapax__aws *aws)
{
    return aws->region;
}

/* ---- ends ---------------------------------------------------------------------------------- */

static void finish(struct hapax__aws *aws, struct hapax__aws_call *call,
                   enum hapax__aws_result result)
{
    assert(call->result == HAPAX__AWS_OPEN && !call->attempt && result != HAPAX__AWS_OPEN);
    call->result = result;
    if (result == HAPAX__AWS_OK)
        call->text[0] = '\0';
    queue_add(&aws->ended, call);
}

static void give_up(struct hapax__aws *aws, struct hapax__aws_call *call)
{
    finish(aws, call, call->unsure ? HAPAX__AWS_INDETERMINATE : HAPAX__AWS_UNAVAILABLE);
}

static int64_t draw(int64_t below)
{
    uint64_t random;

    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
        random = (uint64_t)hapax__monotonic_us() * UINT64_C(0x9e3779b97f4a7c15) >> 16;
    return below > 0 ? (int64_t)(random % (uint64_t)below) : 0;
}

/* Tries again after a pause of at least least_us, if there is time for it: a try that has none ends
 * as "may have been applied", where the one before it surely was not. */
static void again(struct hapax__aws *aws, struct hapax__aws_call *call, int64_t least_us)
{
    uint32_t doublings = call->tries < 8 ? call->tries : 8;
    int64_t bound = PAUSE_FIRST_US << (doublings > 0 ? doublings - 1 : 0);
    int64_t now = hapax__monotonic_us(), spare = call->deadline_us - now - LEFT_MIN_US - least_us;

    if (spare <= 0) {
        give_up(aws, call);
        return;
    }
    if (bound > PAUSE_MAX_US)
        bound = PAUSE_MAX_US;
    call->again_us = now + least_us + draw(bound < spare ? bound : spare);
    queue_add(&aws->waiting, call);
}

static void say(const struct hapax__aws *aws, struct hapax__aws_call *call, const char *what,
                const char *why)
{
    hapax__fail(call->text, HAPAX_ERR_NONE, "%.64s of \"%.96s\" %s%s%.120s", call->operation,
                aws->endpoint.host, what, why[0] ? ": " : "", why);
}

/* What the service says of permissions helps and tells no key; what it says of data may. */
static void say_answer(const struct hapax__aws *aws, struct hapax__aws_call *call)
{
    char what[160], message[120] = "";

    snprintf(what, sizeof(what), "was answered %d %s", call->status, call->error);
    if (strncmp(call->error, "AccessDenied", 12) == 0) {
        char whole[512];

        if (!hapax__aws_json_string(whole, sizeof(whole), call->reply, "message"))
            hapax__aws_json_string(whole, sizeof(whole), call->reply, "Message");
        snprintf(message, sizeof(message), "%.119s", whole);
        for (char *c = message; *c; c++)
            *c = (unsigned char)*c < ' ' || *c == 0x7f ? ' ' : *c;
    }
    say(aws, call, what, message);
}

/* Seconds since 1970 by a Date header; -1: it is none. */
static int64_t date_of(const char *text)
{
    return text[0] ? (int64_t)curl_getdate(text, NULL) : -1;
}

static void say_keys(const struct hapax__aws *aws, struct hapax__aws_call *call, const char *date)
{
    int64_t theirs = date_of(date), ours = time(NULL);
    int64_t behind = theirs - ours;
    char what[160], why[120];

    if (theirs < 0 || (behind < SKEW_S && behind > -SKEW_S)) {
        say_answer(aws, call);
        return;
    }
    snprintf(what, sizeof(what), "was answered %d %s", call->status, call->error);
    snprintf(why, sizeof(why), "this machine's clock is %lld s %s the service's",
             (long long)(behind < 0 ? -behind : behind), behind < 0 ? "ahead of" : "behind");
    say(aws, call, what, why);
}

/* The reply becomes the call's. */
static void keep_reply(struct hapax__aws_call *call, struct hapax__aws_try *attempt)
{
    hapax__aws_call_release(call);
    call->memory = attempt->body;
    call->reply = (struct hapax_span){attempt->body, attempt->len};
    attempt->body = NULL;
    attempt->len = attempt->size = 0;
}

static void judge(struct hapax__aws *aws, struct hapax__aws_call *call,
                  const struct hapax__aws_try *attempt)
{
    int64_t least_us = attempt->retry_after_s > 0 ? attempt->retry_after_s * 1000000 : 0;
    enum hapax__aws_meaning meaning;
    char name[sizeof(call->error)] = "";

    if (call->status != 200)
        hapax__aws_error_name(name, sizeof(name), attempt->type, call->reply);
    meaning = hapax__aws_meaning_of(call->status, name, aws->service);
    if (name[0] || meaning == HAPAX__AWS_NO)
        memcpy(call->error, name, sizeof(name));
    if (meaning == HAPAX__AWS_KEYS)
        say_keys(aws, call, attempt->date);
    else if (meaning != HAPAX__AWS_DONE)
        say_answer(aws, call);

    if (meaning == HAPAX__AWS_DONE) {
        finish(aws, call, HAPAX__AWS_OK);
    } else if (meaning == HAPAX__AWS_KEYS && !call->renewed) {
        call->renewed = true;
        hapax__aws_source_doubt(aws->source, attempt->generation);
        again(aws, call, least_us);
    } else if (meaning == HAPAX__AWS_NO || meaning == HAPAX__AWS_KEYS) {
        finish(aws, call, HAPAX__AWS_REFUSED);
    } else {
        call->unsure |= meaning == HAPAX__AWS_DOUBT;
        if (call->unsure && call->once)
            give_up(aws, call);
        else
            again(aws, call, least_us);
    }
}

/* ---- tries --------------------------------------------------------------------------------- */

static struct hapax__aws_try *take_try(struct hapax__aws *aws)
{
    struct hapax__aws_try *attempt = aws->idle;

    if (attempt) {
        aws->idle = attempt->next_idle;
        return attempt;
    }
    attempt = hapax__aws_try_new();
    if (attempt) {
        attempt->next = aws->tries;
        aws->tries = attempt;
    }
    return attempt;
}

static void give_try(struct hapax__aws *aws, struct hapax__aws_try *attempt)
{
    hapax__aws_try_end(attempt);
    attempt->next_idle = aws->idle;
    aws->idle = attempt;
}

static void end_try(struct hapax__aws *aws, struct hapax__aws_try *attempt, CURLcode code)
{
    struct hapax__aws_call *call = attempt->call;
    int status = hapax__aws_try_status(attempt, code);
    bool sent = attempt->requests > 0, final = attempt->over || attempt->nomem;

    curl_multi_remove_handle(aws->multi, attempt->easy);
    aws->active--;
    call->attempt = NULL;
    call->status = status;
    call->date_s = status != 0 ? date_of(attempt->date) : 0;
    if (status != 0) {
        keep_reply(call, attempt);
        judge(aws, call, attempt);
    } else {
        hapax__aws_call_release(call); /* an earlier try's */
        say(aws, call, sent ? "got no answer" : "was not sent", attempt->why);
        call->unsure |= sent;
        if (final || (call->unsure && call->once))
            give_up(aws, call);
        else
            again(aws, call, 0);
    }
    give_try(aws, attempt);
}

/* Signs and hands it to libcurl. Asking for keys may have taken long. */
static bool launch(struct hapax__aws *aws, struct hapax__aws_call *call,
                   const struct hapax__aws_keys *keys, uint64_t generation)
{
    int64_t left_ms = (call->deadline_us - hapax__monotonic_us()) / 1000;
    int64_t try_ms = call->try_ms > 0 ? call->try_ms : aws->try_ms;
    long timeout_ms = as_long(try_ms < left_ms ? try_ms : left_ms);
    struct hapax__aws_try *attempt = take_try(aws);

    if (!attempt)
        return false;
    attempt->generation = generation;
    attempt->late_us = hapax__monotonic_us() + timeout_ms * INT64_C(1000) + LATE_US;
    if (!hapax__aws_try_begin(attempt, &aws->place, call, keys, time(NULL),
                              timeout_ms > 0 ? timeout_ms : 1 /* 0: none */) ||
        curl_multi_add_handle(aws->multi, attempt->easy) != CURLM_OK) {
        give_try(aws, attempt);
        return false;
    }
    call->attempt = attempt;
    call->tries++;
    aws->active++;
    return true;
}

static bool is_over(const struct hapax__aws_call *call)
{
    return call->deadline_us - hapax__monotonic_us() < 1000; /* libcurl's least time */
}

/* A call that is in no queue is given a try, a pause or a result. */
static void begin(struct hapax__aws *aws, struct hapax__aws_call *call)
{
    const struct hapax__aws_keys *keys;
    char text[HAPAX_TEXT_MAX];
    uint64_t generation;
    enum hapax_error error = hapax__aws_source_keys(aws->source, &keys, &generation, text);

    if (error != HAPAX_ERR_NONE) {
        memcpy(call->text, text, sizeof(call->text));
        if (!call->unsure && (error == HAPAX_ERR_REFUSED || error == HAPAX_ERR_UNSUPPORTED))
            finish(aws, call, HAPAX__AWS_REFUSED);
        else
            again(aws, call, 0);
    } else if (is_over(call)) {
        if (!call->text[0])
            say(aws, call, "was not sent", "its deadline passed");
        give_up(aws, call);
    } else if (!launch(aws, call, keys, generation)) {
        say(aws, call, "was not sent", "out of memory");
        again(aws, call, PAUSE_FIRST_US);
    }
}

static bool may_begin(const struct hapax__aws *aws, const struct hapax__aws_call *call, int64_t now)
{
    return call->deadline_us - now < 1000 ||
           (call->again_us <= now && aws->active < aws->connections_max);
}

/* What begin() puts back goes to the queue's end, with a pause that ends later than `now`. */
static void begin_waiting(struct hapax__aws *aws)
{
    struct hapax__aws_call **at = &aws->waiting.first;
    int64_t now = hapax__monotonic_us();

    while (*at) {
        struct hapax__aws_call *call = *at;

        if (!may_begin(aws, call, now)) {
            at = &call->next;
            continue;
        }
        queue_take(&aws->waiting, at);
        if (!is_over(call)) {
            begin(aws, call);
            continue;
        }
        if (!call->text[0])
            say(aws, call, "was not sent", "its deadline passed while others had the connections");
        give_up(aws, call);
    }
}

/* ---- the loop ------------------------------------------------------------------------------ */

static int mask_of(uint32_t events)
{
    return (events & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) |
           (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) | (events & EPOLLERR ? CURL_CSELECT_ERR : 0);
}

static void act(struct hapax__aws *aws)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(aws->epoll, events, EVENTS, 0), running;

    for (int i = 0; i < n; i++)
        curl_multi_socket_action(aws->multi, events[i].data.fd, mask_of(events[i].events),
                                 &running);
    if (aws->timer_us <= hapax__monotonic_us()) {
        aws->timer_us = INT64_MAX;
        curl_multi_socket_action(aws->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
}

static void end_tries(struct hapax__aws *aws)
{
    struct CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(aws->multi, &left))) {
        CURLcode code = message->data.result;
        char *attempt = NULL;

        assert(message->msg == CURLMSG_DONE);
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &attempt);
        end_try(aws, (struct hapax__aws_try *)(void *)attempt, code);
    }
}

/* libcurl (7.88) may forget a timeout: where the process stood still while a transfer began, its
 * timer goes off before the transfer's time is over, and none is set again. */
static void end_late(struct hapax__aws *aws)
{
    int64_t now = hapax__monotonic_us();

    for (struct hapax__aws_try *at = aws->tries; at; at = at->next)
        if (at->call && now >= at->late_us)
            end_try(aws, at, CURLE_OPERATION_TIMEDOUT);
}

void hapax__aws_pump(struct hapax__aws *aws)
{
    struct hapax__aws_quiet quiet;

    hapax__aws_quiet_begin(&quiet);
    for (int i = 0; i < 4; i++) { /* what has begun has something to do at once */
        act(aws);
        end_tries(aws);
        end_late(aws);
        begin_waiting(aws);
        if (aws->timer_us > hapax__monotonic_us())
            break;
    }
    hapax__aws_quiet_end(&quiet);
}

void hapax__aws_submit(struct hapax__aws *aws, struct hapax__aws_call *call)
{
    assert(call->operation && strlen(call->operation) < 128 && !call->memory);
    call->result = HAPAX__AWS_OPEN;
    call->status = 0;
    call->date_s = 0;
    call->tries = 0;
    call->unsure = call->renewed = false;
    call->reply = (struct hapax_span){NULL, 0};
    call->error[0] = call->text[0] = '\0';
    call->attempt = NULL;
    call->again_us = 0;
    if (aws->active < aws->connections_max && !aws->waiting.first && !is_over(call)) {
        struct hapax__aws_quiet quiet;

        hapax__aws_quiet_begin(&quiet);
        call->next = NULL;
        begin(aws, call);
        hapax__aws_quiet_end(&quiet);
        return;
    }
    queue_add(&aws->waiting, call);
}

int hapax__aws_fd(const struct hapax__aws *aws)
{
    return aws->epoll;
}

int64_t hapax__aws_due(const struct hapax__aws *aws)
{
    int64_t due = aws->ended.first ? 0 : aws->timer_us;

    for (const struct hapax__aws_call *call = aws->waiting.first; call; call = call->next) {
        if (call->deadline_us - 1000 < due)
            due = call->deadline_us - 1000;
        if (aws->active < aws->connections_max && call->again_us < due)
            due = call->again_us;
    }
    for (const struct hapax__aws_try *at = aws->tries; at; at = at->next)
        if (at->call && at->late_us < due)
            due = at->late_us;
    return due < 0 ? 0 : due;
}

struct hapax__aws_call *hapax__aws_reap(struct hapax__aws *aws)
{
    struct hapax__aws_call *call = aws->ended.first;

    if (call)
        queue_take(&aws->ended, &aws->ended.first);
    return call;
}

void hapax__aws_cancel(struct hapax__aws *aws, struct hapax__aws_call *call)
{
    struct hapax__aws_try *attempt = call->attempt;

    if (attempt) {
        struct hapax__aws_quiet quiet;

        hapax__aws_quiet_begin(&quiet);
        curl_multi_remove_handle(aws->multi, attempt->easy);
        hapax__aws_quiet_end(&quiet);
        aws->active--;
        call->attempt = NULL;
        call->unsure |= attempt->requests > 0;
        give_try(aws, attempt);
    } else if (!queue_drop(&aws->waiting, call)) {
        bool ended = queue_drop(&aws->ended, call);

        assert(ended);
        (void)ended;
        return;
    }
    say(aws, call, "was cancelled", "");
    call->result = call->unsure ? HAPAX__AWS_INDETERMINATE : HAPAX__AWS_UNAVAILABLE;
}

static void await(const struct hapax__aws *aws)
{
    struct pollfd fd = {.fd = aws->epoll, .events = POLLIN};
    int64_t due = hapax__aws_due(aws), now = hapax__monotonic_us();
    int64_t ms = due <= now ? 0 : (due - now) / 1000 + 1;

    if (ms > 0)
        poll(&fd, 1, ms > 60000 ? 60000 : (int)ms);
}

void hapax__aws_run(struct hapax__aws *aws, struct hapax__aws_call *calls, size_t n)
{
    size_t ended = 0;

    assert(!aws->ended.first && !aws->waiting.first && aws->active == 0);
    for (size_t i = 0; i < n; i++)
        hapax__aws_submit(aws, &calls[i]);
    while (ended < n) {
        hapax__aws_pump(aws);
        while (hapax__aws_reap(aws))
            ended++;
        if (ended < n)
            await(aws);
    }
}

void hapax__aws_call_release(struct hapax__aws_call *call)
{
    free(call->memory);
    call->memory = NULL;
    call->reply = (struct hapax_span){NULL, 0};
}
