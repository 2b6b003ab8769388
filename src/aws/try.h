/* SPDX-License-Identifier: Apache-2.0
 *
 * One try of a call: a request on a handle of libcurl, and its reply. call.c judges the reply.
 */
#ifndef HAPAX_AWS_TRY_H
#define HAPAX_AWS_TRY_H

#include "aws.h"
#include "endpoint.h"
#include "sign.h"

#include <curl/curl.h>

/* The service that all tries of a handle call; borrowed. */
struct hapax__aws_service {
    const struct hapax__aws_endpoint *endpoint;
    const char *service;
    const char *target;
    const char *region;
    const char *ca; /* NULL: the system's */
    long connect_ms;
};

struct hapax__aws_try {
    CURL *easy; /* kept from try to try, with its settings reset */
    struct hapax__aws_call *call; /* NULL: idle */
    struct hapax__aws_try *next; /* of all of a handle's */
    struct hapax__aws_try *next_idle;
    uint64_t generation; /* of the keys it was signed with */
    int64_t late_us; /* when it is over, if libcurl has not said so */

    /* the exchange */
    struct curl_slist *lines;
    unsigned requests; /* begun on a connection; more than one is never let out */
    bool head; /* the reply's head is whole */
    bool over; /* the body passed HAPAX__AWS_REPLY_MAX */
    bool nomem;
    uint8_t *body;
    size_t len;
    size_t size;
    char type[128]; /* x-amzn-errortype */
    char date[64]; /* Date */
    int64_t retry_after_s; /* -1: none */
    int64_t crc32; /* -1: none */
    char why[CURL_ERROR_SIZE];
};

/* NULL: out of memory. */
struct hapax__aws_try *hapax__aws_try_new(void);
void hapax__aws_try_free(struct hapax__aws_try *attempt);

/* Sets the request up, signed for now_s and limited to timeout_ms. False: out of memory, or libcurl
 * is too old. */
bool hapax__aws_try_begin(struct hapax__aws_try *attempt, const struct hapax__aws_service *place,
                          struct hapax__aws_call *call, const struct hapax__aws_keys *keys,
                          int64_t now_s, long timeout_ms);

/* The status of a whole reply; 0: there is none. `why` says so. */
int hapax__aws_try_status(struct hapax__aws_try *attempt, CURLcode code);

/* Makes it idle. What is left of the body is freed. */
void hapax__aws_try_end(struct hapax__aws_try *attempt);

#endif
