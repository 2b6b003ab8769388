/* SPDX-License-Identifier: Apache-2.0
 *
 * The brokers this library knows, by the scheme of a URI. A test adds one that it plays itself
 * (seam.h, hapax__source_use()).
 */
#include "seam.h"

#include "sink.h"
#include "source.h"

#include <string.h>

#define SCHEMES 3

static const struct hapax__source_type *const sources[] = {
    &hapax__source_amqp, &hapax__source_kafka, &hapax__source_sqs};
static const struct hapax__sink_type *const sinks[] = {&hapax__sink_amqp, &hapax__sink_kafka,
                                                       &hapax__sink_sqs};
static const struct hapax__source_type *played_source;
static const struct hapax__sink_type *played_sink;

void hapax__source_use(const struct hapax__source_type *source, const struct hapax__sink_type *sink)
{
    played_source = source;
    played_sink = sink;
}

static bool has_scheme(const char *const schemes[SCHEMES], const char *uri)
{
    size_t len = strcspn(uri, ":");

    if (uri[len] != ':')
        return false;
    for (size_t i = 0; i < SCHEMES && schemes[i]; i++)
        if (strlen(schemes[i]) == len && memcmp(schemes[i], uri, len) == 0)
            return true;
    return false;
}

const struct hapax__source_type *hapax__source_type_of(const char *uri)
{
    if (played_source && has_scheme(played_source->schemes, uri))
        return played_source;
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        if (has_scheme(sources[i]->schemes, uri))
            return sources[i];
    return NULL;
}

const struct hapax__sink_type *hapax__sink_type_of(const char *uri)
{
    if (played_sink && has_scheme(played_sink->schemes, uri))
        return played_sink;
    for (size_t i = 0; i < sizeof(sinks) / sizeof(sinks[0]); i++)
        if (has_scheme(sinks[i]->schemes, uri))
            return sinks[i];
    return NULL;
}
