/* SPDX-License-Identifier: Apache-2.0
 *
 * One service of AWS in one region, called by its JSON protocol: POST / with X-Amz-Target, signed
 * by SigV4, over kept connections of libcurl. Calls run side by side. Each is tried again until its
 * deadline, after pauses with full jitter. It ends in the terms of a store: answered, surely not
 * applied, or perhaps applied.
 *
 * One thread at a time uses a handle. It runs calls either to their end (hapax__aws_run()) or from
 * an event loop (submit, watch, pump, reap). Both may be used on one handle, not both at once.
 *
 * Keys are found as AWS's SDKs find them (credentials.h), when the first call begins and minutes
 * before they expire. run(), submit() and pump() then block as long as credentials.h says, even
 * past a deadline: seconds, at worst ten for each role of a chain.
 *
 * An https:// endpoint is reached through the proxy that HTTPS_PROXY and NO_PROXY name, as libcurl
 * and AWS's SDKs read them; an http:// one never is. AWS_CA_BUNDLE names the CAs where it is set.
 * No redirect is followed.
 *
 * Rejected: CURLOPT_AWS_SIGV4 in place of sign.h. libcurl 7.88 signs headers that it then leaves
 * out, takes no date, and parts key and secret at a colon.
 */
#ifndef HAPAX_AWS_AWS_H
#define HAPAX_AWS_AWS_H

#include <hapax/hapax.h>

#define HAPAX__AWS_REPLY_MAX (24u << 20) /* bytes of a reply; a longer one is not read to its end */

struct hapax__aws;

struct hapax__aws_options {
    const char *service; /* "dynamodb", "sqs": in the host's name and in what is signed */
    const char *target; /* what stands before the operation in X-Amz-Target: "DynamoDB_20120810" */
    /* "eu-central-1": 1 to 63 of a-z, 0-9 and '-'. NULL: AWS_REGION, AWS_DEFAULT_REGION, the
     * profile's region. */
    const char *region;
    /* An http:// or https:// URL without path, query and user. NULL: AWS_ENDPOINT_URL_SERVICE,
     * AWS_ENDPOINT_URL, or the region's own host: SERVICE.REGION.amazonaws.com, .cn and the like by
     * the region's name, SERVICE-fips by AWS_USE_FIPS_ENDPOINT. */
    const char *endpoint;
    const char *profile; /* NULL: AWS_PROFILE, else "default" */
    uint32_t connections_max; /* at once; 1 to 1024 */
    int64_t connect_ms; /* for a connection, TLS included */
    int64_t try_ms; /* for one try of a call that does not say its own */
};

enum hapax__aws_result {
    HAPAX__AWS_OPEN = 0, /* under way */
    HAPAX__AWS_OK, /* 200, and a whole reply */
    HAPAX__AWS_REFUSED, /* `error` says why; another try would be refused, too */
    HAPAX__AWS_UNAVAILABLE, /* surely not applied, in any of its tries */
    /* Perhaps applied: a try was sent, and its reply never came or was a 500. */
    HAPAX__AWS_INDETERMINATE
};

/* One call. It is the caller's; it and the memory of its spans stay in place from submit to
 * reap. */
struct hapax__aws_call {
    /* asked */
    const char *operation; /* "PutItem" */
    struct hapax_span body; /* JSON */
    int64_t deadline_us; /* hapax__monotonic_us(): no try begins or goes on past it */
    int64_t try_ms; /* 0: the options'; for long polls */
    bool once; /* not tried again where it may have been applied */
    void *tag; /* the caller's */

    /* answered */
    enum hapax__aws_result result;
    int status; /* of the last reply; 0: none */
    int64_t date_s; /* its Date, seconds since 1970; 0, -1: none */
    uint32_t tries;
    /* A try before the last was perhaps applied, so a "no" may answer the call's own repeat. */
    bool unsure;
    /* The body, in memory of the call until hapax__aws_call_release(). */
    struct hapax_span reply;
    /* REFUSED: the service's name for it, without namespace ("ConditionalCheckFailedException").
     * Otherwise the last such name, or "". */
    char error[96];
    char text[HAPAX_TEXT_MAX]; /* not OK: a line for people; without credentials, keys and bodies */

    /* the handle's own */
    struct hapax__aws_try *attempt;
    struct hapax__aws_call *next;
    int64_t again_us;
    bool renewed; /* its keys were refused once */
    void *memory;
};

/* Reads options and environment, and connects to no host. Texts are copied. INVALID (text names the
 * option), NOMEM. */
HAPAX__SHARED enum hapax_error hapax__aws_open(struct hapax__aws **out,
                                               const struct hapax__aws_options *options,
                                               char text[HAPAX_TEXT_MAX]);

/* Releases the handle; calls under way are dropped, and stay OPEN. NULL is fine. */
HAPAX__SHARED void hapax__aws_close(struct hapax__aws *aws);

/* The host that is spoken to, for texts, and the region. */
const char *hapax__aws_host(const struct hapax__aws *aws);
const char *hapax__aws_region(const struct hapax__aws *aws);

/* Runs n calls, side by side as far as connections_max lets them, until each has a result other
 * than OPEN. */
void hapax__aws_run(struct hapax__aws *aws, struct hapax__aws_call *calls, size_t n);

/* ---- from an event loop -------------------------------------------------------------------- */

/* Begins a call, now or when there is a connection for it. */
HAPAX__SHARED void hapax__aws_submit(struct hapax__aws *aws, struct hapax__aws_call *call);

/* One descriptor (an epoll instance), readable when pump() has something to do; the handle's. */
HAPAX__SHARED int hapax__aws_fd(const struct hapax__aws *aws);

/* When pump() is to be called at the latest, hapax__monotonic_us(); INT64_MAX: no need. */
HAPAX__SHARED int64_t hapax__aws_due(const struct hapax__aws *aws);

HAPAX__SHARED void hapax__aws_pump(struct hapax__aws *aws);

/* The next call that has its result, in the order of their ends; NULL: none. */
HAPAX__SHARED struct hapax__aws_call *hapax__aws_reap(struct hapax__aws *aws);

/* Ends a call that is under way, as for a long poll that is no longer wanted: INDETERMINATE, or
 * UNAVAILABLE where no try was sent. The call is the caller's at once, and is not reaped. */
HAPAX__SHARED void hapax__aws_cancel(struct hapax__aws *aws, struct hapax__aws_call *call);

/* Frees a call's reply; it may be asked again after this. A zeroed call is fine. */
HAPAX__SHARED void hapax__aws_call_release(struct hapax__aws_call *call);

#endif
