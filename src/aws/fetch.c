/* SPDX-License-Identifier: Apache-2.0
 *
 * Asks for keys: few bytes, seldom, from a service nearby. It blocks, total_ms at most, and keeps
 * no connection open.
 *
 * The invariant: the reply, which is a secret, is wiped from our memory. libcurl's own buffers are
 * out of reach.
 *
 * Rejected: the multi handle of the calls. Keys are renewed hours apart, minutes before they are
 * needed. To do so beside the calls would cost each credentials source a state machine.
 */
#include "fetch.h"

#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

static void init_once(void)
{
    CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);

    assert(code == CURLE_OK);
    (void)code;
}

void hapax__aws_curl_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, init_once);
}

static _Thread_local unsigned quiet_depth;

void hapax__aws_quiet_begin(struct hapax__aws_quiet *quiet)
{
    sigset_t pipe, pending;

    if (quiet_depth++ > 0)
        return;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    quiet->pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe, &quiet->before);
}

void hapax__aws_quiet_end(const struct hapax__aws_quiet *quiet)
{
    const struct timespec now = {0, 0};
    sigset_t pipe;

    if (--quiet_depth > 0)
        return;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    while (!quiet->pending && sigtimedwait(&pipe, NULL, &now) == -1 && errno == EINTR)
        ;
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
}

static size_t on_body(char *bytes, size_t one, size_t n, void *arg)
{
    struct hapax__aws_fetch *fetch = arg;
    size_t len = one * n;

    if (len > HAPAX__AWS_FETCH_MAX - fetch->len)
        return CURL_WRITEFUNC_ERROR;
    memcpy(fetch->reply + fetch->len, bytes, len);
    fetch->len += len;
    return len;
}

static void set_options(CURL *easy, struct hapax__aws_fetch *fetch, struct curl_slist *lines)
{
    curl_easy_setopt(easy, CURLOPT_URL, fetch->url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT,
                     1L); /* or a timeout waits for the name to be found */
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "hapax/" HAPAX_VERSION);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, lines);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, fetch->connect_ms);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, fetch->total_ms);
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
    if (!fetch->proxy)
        curl_easy_setopt(easy, CURLOPT_PROXY, "");
    if (fetch->ca)
        curl_easy_setopt(easy, CURLOPT_CAINFO, fetch->ca);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, fetch);
    if (fetch->body) {
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, fetch->body);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(fetch->body));
    }
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, fetch->method);
}

static void free_lines(struct curl_slist *lines)
{
    for (struct curl_slist *line = lines; line; line = line->next)
        OPENSSL_cleanse(line->data, strlen(line->data));
    curl_slist_free_all(lines);
}

static bool make_lines(struct curl_slist **out, const struct hapax__aws_fetch *fetch)
{
    struct curl_slist *more = curl_slist_append(NULL, "Expect:");

    *out = more;
    for (size_t i = 0; i < fetch->lines_n && more; i++) {
        more = curl_slist_append(*out, fetch->lines[i]);
        if (more)
            *out = more;
    }
    return more != NULL;
}

bool hapax__aws_fetch_run(struct hapax__aws_fetch *fetch)
{
    struct curl_slist *lines = NULL;
    struct hapax__aws_quiet quiet;
    CURL *easy = curl_easy_init();
    CURLcode code = CURLE_OUT_OF_MEMORY;
    long status = 0;

    fetch->status = 0;
    fetch->len = 0;
    fetch->reply = malloc(HAPAX__AWS_FETCH_MAX + 1);
    if (easy && fetch->reply && make_lines(&lines, fetch)) {
        set_options(easy, fetch, lines);
        hapax__aws_quiet_begin(&quiet);
        code = curl_easy_perform(easy);
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_cleanup(easy);
        hapax__aws_quiet_end(&quiet);
        easy = NULL;
    }
    if (code == CURLE_OK)
        fetch->status = (int)status;
    snprintf(fetch->why, sizeof(fetch->why), "%s",
             code == CURLE_WRITE_ERROR ? "the reply is over 64 KiB" : curl_easy_strerror(code));
    if (fetch->reply)
        fetch->reply[fetch->len] = '\0';
    curl_easy_cleanup(easy);
    free_lines(lines);
    return fetch->status != 0;
}

void hapax__aws_fetch_release(struct hapax__aws_fetch *fetch)
{
    if (fetch->reply)
        OPENSSL_cleanse(fetch->reply, fetch->len);
    free(fetch->reply);
    fetch->reply = NULL;
}
