/* SPDX-License-Identifier: Apache-2.0
 *
 * Which host a service of a region has.
 */
#ifndef HAPAX_AWS_ENDPOINT_H
#define HAPAX_AWS_ENDPOINT_H

#include <hapax/hapax.h>

#define HAPAX__AWS_REGION_MAX 63u
#define HAPAX__AWS_HOST_MAX   255u

struct hapax__aws_endpoint {
    bool tls;
    char host[HAPAX__AWS_HOST_MAX +
              8]; /* as the Host header says it: with the port where that is not the scheme's own */
    char url[HAPAX__AWS_HOST_MAX + 24]; /* with "/" at its end */
};

/* 1 to 63 of a-z, 0-9 and '-'. */
bool hapax__aws_region_check(const char *region);

/* An endpoint as it is given: http:// or https://, a host, perhaps a port, nothing else. INVALID, NOMEM; `name` is what text
 * calls it. */
enum hapax_error hapax__aws_endpoint_read(struct hapax__aws_endpoint *out, const char *url,
                                          const char *name, char text[HAPAX_TEXT_MAX]);

/* Where a service is: AWS_ENDPOINT_URL_SERVICE, else AWS_ENDPOINT_URL, unless AWS_IGNORE_CONFIGURED_ENDPOINT_URLS; else the
 * region's own host, by AWS_USE_FIPS_ENDPOINT the FIPS one. service: of a-z. */
enum hapax_error hapax__aws_endpoint_find(struct hapax__aws_endpoint *out, const char *service,
                                          const char *region, char text[HAPAX_TEXT_MAX]);

#endif
