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
    /* As in the Host header: with the port where it is not the scheme's own. */
    char host[HAPAX__AWS_HOST_MAX + 8];
    char url[HAPAX__AWS_HOST_MAX + 24]; /* with "/" at its end */
};

/* 1 to 63 of a-z, 0-9 and '-'. */
bool hapax__aws_region_check(const char *region);

/* What the region's partition is called in ARNs: "aws", "aws-cn", … */
const char *hapax__aws_partition(const char *region);

/* Reads an endpoint: http:// or https://, a host, perhaps a port, nothing else. `name` is what text
 * calls it. INVALID, NOMEM. */
enum hapax_error hapax__aws_endpoint_read(struct hapax__aws_endpoint *out, const char *url,
                                          const char *name, char text[HAPAX_TEXT_MAX]);

/* Finds the endpoint of a service (a-z). AWS_ENDPOINT_URL_SERVICE goes before AWS_ENDPOINT_URL, and
 * AWS_IGNORE_CONFIGURED_ENDPOINT_URLS turns both off. Otherwise it is the region's own host, with
 * AWS_USE_FIPS_ENDPOINT the FIPS one. */
enum hapax_error hapax__aws_endpoint_find(struct hapax__aws_endpoint *out, const char *service,
                                          const char *region, char text[HAPAX_TEXT_MAX]);

#endif
