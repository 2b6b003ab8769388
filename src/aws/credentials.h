/* SPDX-License-Identifier: Apache-2.0
 *
 * Where keys come from, in the order of AWS's own SDKs; docs/aws.md says which. The first that is configured is
 * the one: where it fails, the next is not asked, for that would be someone else's keys.
 *
 * Temporary keys are renewed five minutes before they expire; while that fails and they are still valid, they are given
 * all the same. One thread at a time uses a source.
 */
#ifndef HAPAX_AWS_CREDENTIALS_H
#define HAPAX_AWS_CREDENTIALS_H

#include "sign.h"

struct hapax__aws_source;

struct hapax__aws_source_options {
    const char *
        profile; /* NULL: AWS_PROFILE, AWS_DEFAULT_PROFILE, "default"; one that is named here goes before the
                            environment's keys, and nothing else is asked */
    const char *region; /* NULL: AWS_REGION, AWS_DEFAULT_REGION, the profile's region */
    int64_t (*wall_s)(void *arg); /* NULL: the machine's clock */
    void *arg;
};

/* Reads the environment, and the region; keys are not looked for yet. INVALID (a value is over its limit, no region, no
 * endpoint), NOMEM. */
enum hapax_error hapax__aws_source_open(struct hapax__aws_source **out,
                                        const struct hapax__aws_source_options *options,
                                        char text[HAPAX_TEXT_MAX]);

/* Wipes the keys. NULL is fine. */
void hapax__aws_source_close(struct hapax__aws_source *source);

/* The keys to sign with now, borrowed until the next call. Where there are none yet, or they are about to expire, it
 * asks for them, which may take seconds: at most 3 with instance metadata, 4 with a container's agent, 10 for each role
 * from STS. In vain it does so only once a second or, while the old ones are valid, every 30.
 *   REFUSED      there are none, or what names them is wrong: text says where was looked
 *   UNAVAILABLE  what gives them did not answer
 *   UNSUPPORTED  a setting that asks for what this library does not do; text names it */
enum hapax_error hapax__aws_source_keys(struct hapax__aws_source *source,
                                        const struct hapax__aws_keys **keys, uint64_t *generation,
                                        char text[HAPAX_TEXT_MAX]);

/* A service refused the keys of this generation: they are asked for anew, unless they have been since. */
void hapax__aws_source_doubt(struct hapax__aws_source *source, uint64_t generation);

/* The region that was found. */
const char *hapax__aws_source_region(const struct hapax__aws_source *source);

#endif
