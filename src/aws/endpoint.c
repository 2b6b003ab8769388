/* SPDX-License-Identifier: Apache-2.0
 *
 * Hosts by region. AWS's partitions differ in the domain, and in their name in ARNs; the region's
 * first letters tell which it is.
 *
 * The invariant: the host that is signed is the host that is sent; it is put together once, here.
 *
 * Rejected: AWS's table of endpoints. The rule holds for the services that are called here, also in
 * regions that are in no table yet. Where it does not hold, there is the endpoint setting.
 */
#include "endpoint.h"

#include "base/fail.h"
#include "base/span.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool hapax__aws_region_check(const char *region)
{
    size_t len = region ? strlen(region) : 0;

    return len >= 1 && len <= HAPAX__AWS_REGION_MAX &&
           strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static const struct partition {
    const char *begin; /* of its regions */
    const char *domain;
    const char *name; /* in ARNs */
} partitions[] = {
    {"cn-", "amazonaws.com.cn", "aws-cn"},       {"us-gov-", "amazonaws.com", "aws-us-gov"},
    {"us-iso-", "c2s.ic.gov", "aws-iso"},        {"us-isob-", "sc2s.sgov.gov", "aws-iso-b"},
    {"us-isof-", "csp.hci.ic.gov", "aws-iso-f"}, {"eu-isoe-", "cloud.adc-e.uk", "aws-iso-e"},
    {"eusc-", "amazonaws.eu", "aws-eusc"},       {"", "amazonaws.com", "aws"},
};

static const struct partition *partition_of(const char *region)
{
    size_t i = 0;

    while (!hapax__text_begins(region, partitions[i].begin))
        i++;
    return &partitions[i];
}

const char *hapax__aws_partition(const char *region)
{
    return partition_of(region)->name;
}

struct parts {
    char *scheme;
    char *host;
    char *port;
    char *path;
    char *user;
    char *query;
    char *fragment;
};

static bool set(struct hapax__aws_endpoint *out, const struct parts *p)
{
    bool tls = strcmp(p->scheme, "https") == 0;
    bool own_port = !p->port || strcmp(p->port, tls ? "443" : "80") == 0;
    size_t len = strlen(p->host);

    if ((!tls && strcmp(p->scheme, "http") != 0) || p->user || p->query || p->fragment ||
        (p->path && strcmp(p->path, "/") != 0) || len == 0 || len > HAPAX__AWS_HOST_MAX)
        return false;
    out->tls = tls;
    snprintf(out->host, sizeof(out->host), "%s%s%s", p->host, own_port ? "" : ":",
             own_port ? "" : p->port);
    snprintf(out->url, sizeof(out->url), "%s://%s/", p->scheme, out->host);
    return true;
}

static void get(CURLU *url, CURLUPart part, char **out)
{
    if (curl_url_get(url, part, out, 0) != CURLUE_OK)
        *out = NULL;
}

enum hapax_error hapax__aws_endpoint_read(struct hapax__aws_endpoint *out, const char *url,
                                          const char *name, char text[HAPAX_TEXT_MAX])
{
    struct parts p = {0};
    CURLU *parsed = curl_url();
    bool good;

    if (!parsed)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot read %s: out of memory", name);
    good = strlen(url) <= HAPAX__AWS_HOST_MAX + 16 &&
           curl_url_set(parsed, CURLUPART_URL, url, 0) == CURLUE_OK;
    if (good) {
        get(parsed, CURLUPART_SCHEME, &p.scheme);
        get(parsed, CURLUPART_HOST, &p.host);
        get(parsed, CURLUPART_PORT, &p.port);
        get(parsed, CURLUPART_PATH, &p.path);
        get(parsed, CURLUPART_USER, &p.user);
        get(parsed, CURLUPART_QUERY, &p.query);
        get(parsed, CURLUPART_FRAGMENT, &p.fragment);
        good = p.scheme && p.host && set(out, &p);
    }
    curl_free(p.scheme);
    curl_free(p.host);
    curl_free(p.port);
    curl_free(p.path);
    curl_free(p.user);
    curl_free(p.query);
    curl_free(p.fragment);
    curl_url_cleanup(parsed);
    /* It is not shown: it may hold a password. */
    return good ? HAPAX_ERR_NONE
                : hapax__fail(text, HAPAX_ERR_INVALID,
                              "%s is no http:// or https:// URL of a host and a port alone", name);
}

/* In AWS GovCloud the plain names are the FIPS ones. */
static bool has_fips_name(const char *region)
{
    return strncmp(region, "us-gov-", 7) != 0;
}

static bool is_on(const char *name)
{
    const char *value = getenv(name);

    return value && strcasecmp(value, "true") == 0;
}

enum hapax_error hapax__aws_endpoint_find(struct hapax__aws_endpoint *out, const char *service,
                                          const char *region, char text[HAPAX_TEXT_MAX])
{
    char name[64] = "AWS_ENDPOINT_URL_";
    size_t len = strlen(name);
    const char *url = NULL;

    for (const char *c = service; *c && len + 1 < sizeof(name); c++)
        name[len++] = (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : '_');
    name[len] = '\0';
    if (!is_on("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")) {
        url = getenv(name);
        if (!url || !url[0]) {
            snprintf(name, sizeof(name), "AWS_ENDPOINT_URL");
            url = getenv(name);
        }
    }
    if (url && url[0])
        return hapax__aws_endpoint_read(out, url, name, text);
    out->tls = true;
    snprintf(out->host, sizeof(out->host), "%s%s.%s.%s", service,
             is_on("AWS_USE_FIPS_ENDPOINT") && has_fips_name(region) ? "-fips" : "", region,
             partition_of(region)->domain);
    snprintf(out->url, sizeof(out->url), "https://%s/", out->host);
    return HAPAX_ERR_NONE;
}
