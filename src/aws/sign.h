/* SPDX-License-Identifier: Apache-2.0
 *
 * AWS Signature Version 4 as a function of its arguments: no clock, no environment, no state.
 */
#ifndef HAPAX_AWS_SIGN_H
#define HAPAX_AWS_SIGN_H

#include <hapax/hapax.h>

/* Headers of a request that are signed beside host, x-amz-date and the token. */
#define HAPAX__AWS_HEADERS_MAX       12u
#define HAPAX__AWS_QUERY_MAX         16u /* parameters */
#define HAPAX__AWS_KEY_MAX           128u /* bytes of an access key's id */
#define HAPAX__AWS_SECRET_MAX        256u
#define HAPAX__AWS_TOKEN_MAX         (16u << 10) /* bytes of a session's token */
#define HAPAX__AWS_DATE_SIZE         17u /* of "20150830T123600Z" */
#define HAPAX__AWS_AUTHORIZATION_MAX 1024u

/* The keys that a request is signed with. All are secrets, the id less so. */
struct hapax__aws_keys {
    char id[HAPAX__AWS_KEY_MAX + 1];
    char secret[HAPAX__AWS_SECRET_MAX + 1];
    char token[HAPAX__AWS_TOKEN_MAX + 1]; /* "": none */
};

struct hapax__aws_header {
    const char *name; /* in any case; each once */
    const char *value;
};

struct hapax__aws_request {
    const char *method;
    /* As in the Host header: with the port where it is not the scheme's own. */
    const char *host;
    const char *path; /* encoded and normalised; "/" at the least */
    const char *query; /* encoded, without '?', each parameter with its '='; in any order */
    /* The signed ones beside host, x-amz-date and x-amz-security-token. */
    const struct hapax__aws_header *headers;
    size_t headers_n;
    struct hapax_span body;
};

/* "20150830T123600Z" of seconds since 1970, for x-amz-date; 0 to the year 9999. */
void hapax__aws_date(char out[HAPAX__AWS_DATE_SIZE], int64_t time_s);

/* Writes the value of the Authorization header. The request must be sent with x-amz-date for the
 * same time and, where keys have a token, with x-amz-security-token: both are signed. False: out of
 * memory, or over a limit above. */
bool hapax__aws_sign(char out[HAPAX__AWS_AUTHORIZATION_MAX],
                     const struct hapax__aws_request *request, const struct hapax__aws_keys *keys,
                     const char *service, const char *region, int64_t time_s);

/* The key that signs what one service of one region is sent on one day ("20150830"). */
bool hapax__aws_signing_key(uint8_t out[32], const char *secret, const char *day,
                            const char *region, const char *service);

#endif
