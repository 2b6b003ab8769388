/* SPDX-License-Identifier: Apache-2.0
 *
 * Where keys come from, in the order of AWS's own SDKs (docs/aws.md has the list). The first
 * credentials source that is configured is used. If it fails, the next one is not asked: its keys
 * would be somebody else's.
 *
 * Temporary keys are renewed five minutes before they expire. While renewals fail, the old keys are
 * used until they expire. One thread at a time uses a source.
 */
#ifndef HAPAX_AWS_CREDENTIALS_H
#define HAPAX_AWS_CREDENTIALS_H

#include "sign.h"

struct hapax__aws_source;

struct hapax__aws_source_options {
    /* NULL: AWS_PROFILE, AWS_DEFAULT_PROFILE, "default". A profile that is named here goes before
     * the environment's keys, and no other source is asked. */
    const char *profile;
    const char *region; /* NULL: AWS_REGION, AWS_DEFAULT_REGION, the profile's */
    int64_t (*wall_s)(void *arg); /* NULL: the machine's clock */
    void *arg;
};

/* Reads the environment and finds the region; it does not look for keys yet. INVALID (a value is
 * over its limit, no region, no endpoint), NOMEM. */
enum hapax_error hapax__aws_source_open(struct hapax__aws_source **out,
                                        const struct hapax__aws_source_options *options,
                                        char text[HAPAX_TEXT_MAX]);

/* Wipes the keys. NULL is fine. */
void hapax__aws_source_close(struct hapax__aws_source *source);

/* Gives the keys to sign with now, borrowed until the next call. Where there are none, or they are
 * about to expire, it asks for new ones and blocks: 3 s at most with instance metadata, 4 s with a
 * container's agent, 10 s for each role from STS. After a failure it asks again a second later;
 * while the old keys are valid, 30 s later.
 *   REFUSED      there are no keys, or what names them is wrong: text says where it looked
 *   UNAVAILABLE  the source did not answer
 *   UNSUPPORTED  text names a setting that this library does not support */
enum hapax_error hapax__aws_source_keys(struct hapax__aws_source *source,
                                        const struct hapax__aws_keys **keys, uint64_t *generation,
                                        char text[HAPAX_TEXT_MAX]);

/* Tells that a service refused the keys of this generation. They are renewed, unless they were
 * renewed since. */
void hapax__aws_source_doubt(struct hapax__aws_source *source, uint64_t generation);

/* The region that was found. */
const char *hapax__aws_source_region(const struct hapax__aws_source *source);

#endif
