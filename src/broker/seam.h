/* SPDX-License-Identifier: Apache-2.0
 *
 * The brokers this library knows, by the scheme of a URI. The message door takes from a source
 * (source.h). The message door, the relay and `hapax redrive` publish by a sink (sink.h).
 */
#ifndef HAPAX_BROKER_SEAM_H
#define HAPAX_BROKER_SEAM_H

struct hapax__sink_type;
struct hapax__source_type;

/* The most descriptors that one source or sink has polled. */
#define HAPAX__POLLFDS_MAX 8u

/* The source and the sink type of a URI's scheme; NULL: no type has this scheme. */
const struct hapax__source_type *hapax__source_type_of(const char *uri);
const struct hapax__sink_type *hapax__sink_type_of(const char *uri);

/* Adds a source and a sink that a test plays; both are looked up before the built-in ones. NULL
 * removes them. Call it while no other thread looks a type up. */
void hapax__source_use(const struct hapax__source_type *source,
                       const struct hapax__sink_type *sink);

#endif
